"""What ``diagnose`` reads off a module, finds out by itself, and says from a shell."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from subjects import sdpa, torch_layer
from torch import nn

from attn_lib import diagnose

pytestmark = pytest.mark.usefixtures("one_thread")


def broken(q, k, v):
    raise RuntimeError("shape of nothing")


# ---------------------------------------------------------------- steps


class Stepwise(nn.Module):
    def __init__(self):
        super().__init__()
        self.num_heads = 2
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x, cache=None):
        B, T, d = x.shape
        q, k, v = (
            p(x).view(B, T, 2, d // 2).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        late = torch.ones(T, k.shape[2], dtype=torch.bool).triu(k.shape[2] - T + 1)
        w = (q @ k.mT / (d // 2) ** 0.5).masked_fill(late, -torch.inf).softmax(-1)
        return (w @ v).transpose(1, 2).reshape(B, T, d), (k, v)


def test_steps_are_checked_where_they_are_given():
    layer = Stepwise()
    report = diagnose(layer, arguments="x", causal=True, step=layer)
    assert report.ok, report
    assert "cache" in " ".join(report.holds)
    assert "cache" not in " ".join(report.unchecked)


def test_a_cache_without_steps_is_not_checked():
    assert "cache" in " ".join(diagnose(Stepwise(), causal=True).unchecked)


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (lambda x, cache: x, "cache"),
        (lambda x, cache: broken(x, x, x), "shape of nothing"),
    ],
    ids=["no cache", "raises"],
)
def test_steps_that_cannot_be_taken_are_said(step, words):
    report = diagnose(Stepwise(), arguments="x", causal=True, step=step)
    assert words in str(report)
    assert not report.ok or words in " ".join(report.unchecked)


# ---------------------------------------------------------------- modules of many kinds

HEADS = ["num_heads", "n_head", "n_heads", "nhead", "heads", "num_attention_heads"]
PACKED = ["Wqkv", "qkv", "c_attn", "to_qkv", "qkv_proj", "in_proj"]


class Packed(nn.Module):
    def __init__(self, heads_name="num_heads", packed_name="qkv", kv_name=None):
        super().__init__()
        setattr(self, heads_name, 4)
        self._h, self._kv = heads_name, 4
        if kv_name:
            setattr(self, kv_name, 2)
            self._kv = 2
        self._p = packed_name
        self.add_module(packed_name, nn.Linear(16, 16 + 2 * 4 * self._kv))
        self.proj = nn.Linear(16, 16)

    def forward(self, x):
        B, T, _ = x.shape
        q, k, v = getattr(self, self._p)(x).split([16, 4 * self._kv, 4 * self._kv], -1)
        q, k, v = (t.view(B, T, -1, 4).transpose(1, 2) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return self.proj(out.transpose(1, 2).reshape(B, T, 16))


@pytest.mark.parametrize("name", HEADS)
def test_a_module_says_how_many_heads_it_has(name):
    report = diagnose(Packed(heads_name=name))
    assert report.ok, report


@pytest.mark.parametrize("name", PACKED)
def test_packed_projections_are_read(name):
    report = diagnose(Packed(packed_name=name))
    assert report.ok, report


@pytest.mark.parametrize("name", ["n_kv", "n_kv_heads", "num_kv_heads", "num_key_value_heads"])
def test_a_module_says_how_many_key_heads_it_has(name):
    report = diagnose(Packed(kv_name=name))
    assert report.ok, report


def test_names_of_arguments_and_of_projections_may_be_said():
    def mine(a, b, c):
        return sdpa(c, b, a)

    assert diagnose(mine, arguments="a=v, b=k, c=q").ok
    assert diagnose(mine, arguments="v, k, q").ok
    assert not diagnose(mine, arguments="q, k, v").ok
    layer = Packed(packed_name="everything")
    assert diagnose(layer, projections={"qkv": "everything.weight", "out": "proj.weight"}).ok


# ---------------------------------------------------------------- what is found out, and notes


def causal(q, k, v):
    T, S = q.shape[-2], k.shape[-2]
    late = torch.ones(T, S, dtype=torch.bool).triu(S - T + 1)
    return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(late, -torch.inf).softmax(-1) @ v


def test_what_is_not_said_is_found_out_and_told():
    report = diagnose(causal)
    assert report.ok, report
    assert "causal" in " ".join(report.assumed)
    assert diagnose(causal, causal=False).mistakes == ["causal_not_meant"]
    blocked = diagnose(lambda q, k, v, mask=None: sdpa(q, k, v, None if mask is None else ~mask))
    assert blocked.ok, blocked
    assert "True = closed" in " ".join(blocked.assumed)


def uniform(q, k, v, mask=None):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return scores.softmax(-1) @ v


def nan(q, k, v, mask=None):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(-1) @ v


NOTED = {
    "uniform rows": (lambda: uniform, {}, "equally"),
    "NaN rows": (lambda: nan, {}, "NaN"),
    "averaged weights": (torch_layer, {}, "weights_averaged"),
    "dropped weights": (lambda: torch_layer(dropout=0.3), {}, "weights_after_dropout"),
}


@pytest.mark.parametrize("name", NOTED)
def test_what_real_libraries_do_is_a_note(name):
    make, adapter, words = NOTED[name]
    report = diagnose(make(), **adapter)
    assert report.ok, report
    notes = " ".join(f"{note.mistake}: {note.text}" for note in report.notes)
    assert words in notes, report


# ---------------------------------------------------------------- the command

COMMAND = """
import torch
def wrong(q, k, v):
    return (q @ k.mT).softmax(-1) @ v
def right(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)
layer = torch.nn.MultiheadAttention(12, 3, batch_first=True)
"""


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("mine:wrong", 1, "The scale is missing"),
        ("mine:right", 0, "no mistake found"),
        ("mine:layer", 0, "no mistake found"),
        ("mine:absent", 2, "absent"),
        ("nowhere:wrong", 2, "nowhere"),
    ],
)
def test_the_command_says_the_same(name, status, words, tmp_path):
    (tmp_path / "mine.py").write_text(COMMAND)
    command = [sys.executable, "-m", "attn_lib", name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    assert words in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
