"""``diagnose_rope`` and the command line, as somebody meets them who has read nothing."""

import re
import sys

import pytest
import torch
from torch import nn

from attn_lib import __main__
from attn_lib.diagnosis.rope import assert_rope, diagnose_rope


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat([-b, a], dim=-1)


def angles(T, d, base=10_000.0):
    return torch.arange(T)[:, None] / base ** (torch.arange(0, d, 2) / d)


def halves(x, at, base=10_000.0, join=lambda a: torch.cat([a, a], dim=-1)):
    theta = join(at[:, None] / base ** (torch.arange(0, x.shape[-1], 2) / x.shape[-1]))
    return x * theta.cos() + rotate_half(x) * theta.sin()


def neighbours(x, at):
    theta = at[:, None] / 10_000.0 ** (torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    a, b = x[..., ::2], x[..., 1::2]
    turned = (a * theta.cos() - b * theta.sin(), b * theta.cos() + a * theta.sin())
    return torch.stack(turned, dim=-1).flatten(-2)


def positions_second(q, k):  # (B, T, H, d)
    at = torch.arange(q.shape[1])
    return tuple(halves(x.transpose(1, 2), at).transpose(1, 2) for x in (q, k))


def of_tables(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def of_longer_tables(q, k, cos, sin, position_ids):
    return of_tables(q, k, cos.squeeze()[position_ids], sin.squeeze()[position_ids])


def of_complex(xq, xk, freqs_cis):  # (B, T, H, d)
    turned = []
    for x in (xq, xk):
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        turned.append(torch.view_as_real(pairs * freqs_cis[None, :, None]).flatten(-2))
    return tuple(turned)


def by_rows(x, position_ids):  # (B, T)
    assert position_ids.dim() == 2
    return halves(x, position_ids[0])


class Fixed(nn.Module):
    """Of one width, and of at most ``length`` positions."""

    def __init__(self, d=16, length=100, keep=False):
        super().__init__()
        self.register_buffer("table", torch.cat([angles(length, d)] * 2, dim=-1))
        self.keep, self.length = keep, None

    def forward(self, x):
        self.length = self.length if self.keep and self.length else x.shape[-2]
        table = self.table[: self.length]
        return x * table.cos() + rotate_half(x) * table.sin()


@pytest.mark.parametrize(
    ("fn", "said", "assumed"),
    [
        (positions_second, {}, ["layout is 'BTHd'"]),
        (positions_second, {"layout": "BTHd"}, []),
        (lambda x: halves(x, torch.arange(x.shape[-2])), {}, ["layout is 'BHTd'"]),
        (lambda x, p: neighbours(x, p), {"pairing": None}, ["'neighbours'", "'BHTd'"]),
        (of_tables, {"base": 500.0}, ["'BHTd'", "(B, T, d)"]),
        (of_longer_tables, {}, ["'BHTd'", "tables"]),
        (of_complex, {"pairing": "neighbours"}, ["'BTHd'", "(T, d/2)"]),
        (by_rows, {}, ["'BHTd'"]),
        (Fixed(), {}, ["'BHTd'", "d_k = 16"]),
        (Fixed(20), {"d_k": 20}, ["'BHTd'"]),
        (Fixed(8, 32), {}, ["'BHTd'", "d_k = 8"]),
    ],
)
def test_a_right_rotation_is_passed_and_what_was_found_out_is_said(fn, said, assumed):
    report = diagnose_rope(fn, **said)
    assert report.ok, report
    assert len(report.assumed) == len(assumed)
    assert all(words in text for words, text in zip(assumed, report.assumed, strict=True))


def test_what_could_not_be_called_is_said():
    report = diagnose_rope(Fixed(8, 32))
    assert "70 positions, shape (2, 3, 70, 8): RuntimeError" in report.unchecked[0]


def mixed(x):
    return halves(x, torch.arange(x.shape[-2]), join=lambda a: a.repeat_interleave(2, dim=-1))


@pytest.mark.parametrize(
    ("fn", "said", "mistakes", "words"),
    [
        (mixed, {}, ["rope_pairing"], "order of neighbours (2i, 2i + 1)"),
        (lambda x, p: neighbours(x, p), {}, ["rope_pairing"], "RoPE turns neighbours"),
        (lambda x, p: halves(x, p, 7e5), {}, ["rope_base"], "base 700000, where 10000 is meant"),
        (lambda x, p: halves(x, p, 100.0), {}, ["rope_base"], "i / d instead of 2 i / d"),
        (lambda x, p: halves(x, p + 1), {}, [None], "positions 1, 2, ..."),
        (
            lambda x, p: neighbours(x, p - p[0]),
            {},
            ["rope_pairing", "rope_positions_restart"],
            "where halves (i, i + d/2) are meant",
        ),
        (lambda x, p: halves(x, -p, 777.0), {}, ["rope_direction", "rope_base"], "direction"),
        (positions_second, {"layout": "BHTd"}, ["rope_over_heads"], "the head for the position"),
        (Fixed(8, keep=True), {}, ["state_between_calls"], "something is kept"),
        (lambda x, p: halves(x, p / 8), {}, [None], "angles 0.125, 0.0125"),
        (
            lambda q, k: (halves(q, torch.arange(q.shape[-2])), k.flip(-1)),
            {},
            [None],
            "Only k is wrong",
        ),
    ],
)
def test_what_is_wrong_is_named(fn, said, mistakes, words):
    report = diagnose_rope(fn, **said)
    assert report.mistakes == mistakes, report
    assert words in report.failures[0].likely


@pytest.mark.parametrize("change", [lambda x: x * float("nan"), torch.rand_like])
def test_only_what_is_kept_is_called_so(change):
    (failure,) = diagnose_rope(lambda x, p: change(halves(x, p))).failures
    assert failure.mistake is None
    assert "No known mistake" in failure.likely


def test_what_was_meant_is_in_the_repair():
    (failure,) = diagnose_rope(positions_second, layout="BHTd").failures
    assert "or say layout='BTHd'" in failure.repair
    (failure,) = diagnose_rope(lambda x, p: halves(x, p, 500.0)).failures
    assert "or say base=500" in failure.repair


def test_the_example_names_the_entry_and_its_rows_differ():
    (failure,) = diagnose_rope(lambda x, p: halves(x, p, 500.0)).failures
    place = r"q, example \d, head \d, position \d, channels \d to \d \(all counted from 0\)"
    assert re.search(place, failure.example)
    (_, actual), (_, expected) = re.findall(r"(actual|expected) +\[(.*?)\]", failure.example)
    assert actual != expected


def raises(q, k):
    raise RuntimeError("boom")


@pytest.mark.parametrize(
    ("fn", "said", "words"),
    [
        (raises, {}, r"the first, 4 positions, shape \(2, 3, 4, 8\): RuntimeError: boom"),
        (lambda q, k, rotary: q, {}, "needs rotary.*wrap it"),
        (lambda q, k, cos: q, {}, "cos and sin together"),
        (lambda q, k: q, {}, "returns one tensor"),
        (lambda q: "q", {}, "returns str"),
        (positions_second, {"d_k": 7}, "d_k must be even"),
    ],
)
def test_what_cannot_be_called_is_an_error(fn, said, words):
    with pytest.raises(ValueError, match=words):
        diagnose_rope(fn, **said)


def test_asserting_is_one_line():
    assert assert_rope(positions_second) is None
    with pytest.raises(AssertionError, match=r"(?s)takes the heads.*Repair") as caught:
        assert_rope(positions_second, layout="BHTd")
    assert caught.traceback[-1].frame.f_locals["__tracebackhide__"]


# ---------------------------------------------------------------- the command line

SOURCE = """
import math
import torch

class Layer(torch.nn.MultiheadAttention):
    def __init__(self, d_model, num_heads):
        assert d_model % num_heads == 0
        super().__init__(d_model, num_heads, batch_first=True)

class Heads:
    def __init__(self, number):
        self.number = number
    def attend(self, q, k, v):
        return attend(q, k, v)

def plain(q, k, v):
    return attend(q, k, v)

def attend(q, k, v, causal=False):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        T, S = scores.shape[-2:]
        scores = scores.masked_fill(~torch.ones(T, S, dtype=torch.bool).tril(S - T), -math.inf)
    return scores.softmax(-1) @ v

def rotate(x, base=500_000.0):
    a = torch.arange(x.shape[-2])[:, None] / base ** (torch.arange(0, x.shape[-1], 2)/x.shape[-1])
    a, x1, x2 = a.double(), x[..., ::2], x[..., 1::2]
    return torch.stack([x1 * a.cos() - x2 * a.sin(), x2 * a.cos() + x1 * a.sin()], -1).flatten(-2)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "my_attention.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("my_attention", None)


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("rotate --rope --rope-base 500000 --rope-pairing neighbours", 0),
        ("rotate --rope --rope-base 500000", 1),
        ("plain --causal", 1),
        ("--causal attend --options causal=True", 0),
        ("plain --causal no", 0),
        ("plain --causal yes", 1),
        ("plain --causal top_left", 1),
        ("Layer(12,3)", 0),
        ("Heads(2).attend", 0),
    ],
)
def test_the_command_line(here, words, status, capsys):
    words = words.split()
    at = 1 if words[0] == "--causal" else 0
    words[at] = f"my_attention:{words[at]}"
    assert __main__.main(words) == status
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["Layer"], r"make an instance, as in my_attention:Layer\(32, 4\).*num_heads"),
        (["Layer(7, 2)"], r"AssertionError.*my_attention.py, line 7: assert d_model"),
        (["Layer(dim, 2)"], "dim is not a constant"),
        (["1 + 1"], "neither a name nor a call"),
        (["rotate", "--rope", "--window", "3"], "--window cannot be said"),
        (["attend", "--options", "causal"], "KEY=VALUE"),
    ],
)
def test_what_the_command_line_cannot_check(here, words, message, capsys):
    assert __main__.main([f"my_attention:{words[0]}", *words[1:]]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_the_exit_status_is_explained(capsys):
    with pytest.raises(SystemExit):
        __main__.main(["--help"])
    assert "2, it could not be checked" in capsys.readouterr().out
