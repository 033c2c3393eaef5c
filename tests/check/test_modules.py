"""What ``diagnose`` reads off a module and finds out by itself, and what it says from a shell."""

import math
import re
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from subjects import (
    Masked,
    Packed,
    Separate,
    closing,
    filled,
    plain,
    scores_of,
    sdpa,
    top_left,
    torch_layer,
    unscaled,
    unscaled_causal,
    words_of,
)
from torch import nn

from attn_check import __main__, diagnose

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_report_asks_about_a_hundred_questions():
    """So that it stays short: each is one call of the module (107 today, under a second)."""
    calls = []
    hook = nn.modules.module.register_module_forward_pre_hook(
        lambda module, _: (
            calls.append(type(module)) if isinstance(module, nn.MultiheadAttention) else None
        )
    )
    with hook:
        assert diagnose(torch_layer()).ok
    assert 50 < len(calls) < 150


# ---------------------------------------------------------------- modules of many kinds


HEADS = ["num_heads", "n_head", "n_heads", "nhead", "heads", "num_attention_heads"]
PACKED = ["Wqkv", "qkv", "c_attn", "to_qkv", "qkv_proj", "in_proj"]
KV_HEADS = ["n_kv", "n_kv_heads", "num_kv_heads", "num_key_value_heads"]


@pytest.mark.parametrize(
    "names",
    [{"heads": name} for name in HEADS]
    + [{"packed": name} for name in PACKED]
    + [{"kv_heads": name} for name in KV_HEADS],
)
def test_names_that_a_module_gives_its_parts(names):
    report = diagnose(Packed(**names))
    assert report.ok, report


def test_names_of_arguments_and_of_projections_may_be_said():
    def fn(a, b, c):
        return sdpa(c, b, a)

    assert diagnose(fn, arguments="a=v, b=k, c=q").ok
    assert diagnose(fn, arguments="v, k, q").ok
    assert not diagnose(fn, arguments="q, k, v").ok
    layer = Packed("everything")
    assert diagnose(layer, projections={"qkv": "everything.weight", "out": "proj.weight"}).ok


# ---------------------------------------------------------------- two mistakes, each with evidence


MERGE = "heads_merged_without_transpose"


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ({"transposed": False}, [MERGE]),
        ({"attend": plain}, ["causal_missing"]),
        ({"transposed": False, "attend": plain}, ["causal_missing", MERGE]),
        ({"transposed": False, "attend": unscaled_causal}, [MERGE, "scale_missing"]),
        ({"attend": unscaled}, ["causal_missing", "scale_missing"]),
    ],
)
def test_two_mistakes_of_a_layer_in_one_call(wrong, names):
    right = {"packed": "c_attn", "out": "c_proj", "heads": "n_head", "attend": top_left}
    assert diagnose(Packed(**right | wrong), causal=True).mistakes == names
    report = diagnose(Packed(**right), causal=True)
    assert report.ok
    assert "more than 70 keys" in report.unchecked


# ---------------------------------------------------------------- what is said of intents


class Twice(nn.MultiheadAttention):
    def forward(self, query, key, value):
        out, weights = super().forward(query, key, value)
        return out * 1.1, weights


def test_biases_that_are_used_are_not_called_unused():
    (failure,) = diagnose(Twice(12, 3, batch_first=True, kdim=6, vdim=6)).failures
    assert failure.mistake is None
    assert "also has" not in failure.likely


# ---------------------------------------------------------------- gradients and half precision


class DetachedBias(Separate):
    def forward(self, x):
        k = F.linear(x, self.k_proj.weight.data, self.k_proj.bias)
        v = F.linear(x, self.v_proj.weight, self.v_proj.bias.detach())
        out = self.attend(*map(self.heads_of, (self.q_proj(x), k, v)))
        return self.merged(out)


def test_each_parameter_without_a_gradient_is_listed():
    (failure,) = diagnose(DetachedBias()).failures
    assert failure.mistake == "gradient_missing_projection"
    lines = failure.example.splitlines()
    assert [line.partition(":")[0] for line in lines[1:]] == [
        "gradient to the weight of keys",
        "gradient to the bias of values",
    ]


class WrongOfWeight(Separate):
    def forward(self, x):
        twice = 2 * self.q_proj.weight - self.q_proj.weight.detach()
        q = F.linear(x, twice, self.q_proj.bias)
        parts = (q, self.k_proj(x), self.v_proj(x))
        out = self.attend(*map(self.heads_of, parts))
        return self.merged(out)


def test_a_wrong_gradient_of_a_parameter():
    (failure,) = diagnose(WrongOfWeight()).failures
    assert failure.mistake == "gradient_wrong"
    assert "gradient to the weight of queries" in failure.example


def coarse(q, k, v):
    return plain(q, k, v.round() if q.dtype == torch.bfloat16 else v)


def test_a_module_that_is_coarse_in_half_precision():
    assert any("half precision: the error" in text for text in diagnose(Separate()).holds)
    report = diagnose(Separate(attend=coarse))
    assert report.ok, report
    assert any("In bfloat16 the largest error is" in note.text for note in report.notes)


def test_gradients_are_asked_for_where_the_caller_has_none():
    with torch.no_grad():
        report = diagnose(Separate())
    assert report.ok, report
    assert "gradients to the projections" in words_of(report, "holds")


# ---------------------------------------------------------------- what was compared


class ZeroesPadding(Separate):
    def forward(self, x, mask=None):
        if mask is None:
            return super().forward(x)
        return self.merged(sdpa(*self.parts(x), mask[:, None, None])) * mask[..., None]


def test_padded_positions_that_are_not_compared_are_said():
    report = diagnose(ZeroesPadding(), mask_means="attend", mask_shape="BS")
    assert report.ok, report
    assert any("padded positions left out" in text for text in report.holds)


# ---------------------------------------------------------------- dropout in training


class Dropping(Separate):
    def __init__(self, where, heads=3):
        super().__init__(heads=heads)
        self.where, self.drop = where, nn.Dropout(0.3)

    def dropped(self, name, x):
        return self.drop(x) if name == self.where else x

    def attend(self, q, k, v):
        scores = self.dropped("raw scores", q @ k.mT) / math.sqrt(q.shape[-1])
        weights = self.dropped("scores", scores).softmax(-1)
        weights = self.dropped("squares", self.dropped("weights", weights) ** 0.5) ** 2
        return self.dropped("output", weights @ v)


class DroppingByHead(Dropping):
    def attend(self, q, k, v):
        parts = zip(*(t.split(1, dim=1) for t in (q, k, v)), strict=True)
        outs = [super(DroppingByHead, self).attend(*(t[:, 0] for t in three)) for three in parts]
        return torch.stack(outs, dim=1)


@pytest.mark.parametrize("kind", [Dropping, DroppingByHead])
@pytest.mark.parametrize("where", ["scores", "raw scores"])
def test_dropout_of_scores_is_named(kind, where):
    (failure,) = diagnose(kind(where)).failures
    assert failure.mistake == "dropout_before_softmax"
    assert ("times 1/sqrt(d_k)" in failure.example) == (where == "raw scores")


@pytest.mark.parametrize("kind", [Dropping, DroppingByHead])
def test_dropout_of_weights_is_right(kind):
    report = diagnose(kind("weights"))
    assert report.ok, report
    assert "in training, dropout is applied to the weights" in report.holds


def test_dropout_of_something_else_is_no_mistake():
    report = diagnose(Dropping("output"))
    assert report.ok, report
    assert "dropout" not in words_of(report, "unchecked")
    assert "not recognised" in words_of(diagnose(Dropping("squares")), "unchecked")


def test_the_dropout_of_a_function_is_not_checked():
    def fn(q, k, v, dropout_p=0.0):
        return plain(F.dropout(q, dropout_p), k, v)

    assert "dropout: dropout_p was left at its default" in diagnose(fn).unchecked
    held = diagnose(fn, options={"dropout_p": 0.0})
    assert "dropout" not in words_of(held, "unchecked")


# ---------------------------------------------------------------- fills that close too little


@pytest.mark.parametrize("number", [-50.0, -100.0])
def test_small_fills_of_a_module(number):
    assert diagnose(Masked(attend=filled(number)), mask_means="attend").mistakes == [
        "mask_small_fill"
    ]
    assert diagnose(Masked(attend=filled(-1e4)), mask_means="attend").ok


# ---------------------------------------------------------------- methods, flags and packed weights


class Core(Separate):
    """Methods of a module that are not the module."""

    def __init__(self, width=12, heads=3):
        super().__init__(width, heads)
        self.scale = (width // heads) ** -0.5

    def own_scale(self, q, k, v):
        return (q @ k.mT * self.scale).softmax(-1) @ v

    def unscaled(self, q, k, v):
        return (q @ k.mT).softmax(-1) @ v

    def projecting(self, q, k, v):
        parts = (self.q_proj(q), self.k_proj(k), self.v_proj(v))
        out = plain(*map(self.heads_of, parts))
        return self.merged(out)

    def last_only(self, q, k, v):
        return self.merged(plain(q, k, v))


@pytest.mark.parametrize("name", ["attend", "own_scale"])
def test_a_method_that_uses_no_projection_is_a_function(name):
    report = diagnose(getattr(Core(), name))
    assert report.ok, report
    assert f"{name} does not use the module's projections" in report.assumed[0]


def test_a_method_is_examined_as_what_it_is():
    assert diagnose(Core().unscaled).mistakes == ["scale_missing"]
    report = diagnose(Core().projecting)
    assert report.ok, report
    assert "does not use" not in words_of(report, "assumed")
    with pytest.raises(ValueError, match="last_only applies the module's output projection"):
        diagnose(Core().last_only)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (Packed(), "the rows of qkv.weight are those of queries, keys, values, in this order"),
        (Packed(by_head=True), "rows of qkv.weight are those of queries, keys, values, head"),
        (
            Packed("kqv", order="kqv"),
            "the rows of kqv.weight are those of keys, queries, values, in this",
        ),
    ],
)
def test_the_order_of_packed_weights_is_said(layer, words):
    report = diagnose(layer)
    assert report.ok, report
    assert words in words_of(report, "assumed")


def test_another_order_is_a_mistake_beside_what_was_assumed():
    report = diagnose(Packed(order="kqv"))
    assert report.mistakes == ["query_key_swapped"]
    assert "queries, keys, values, in this order" in words_of(report, "assumed")
    assert "in this order" not in words_of(diagnose(nn.MultiheadAttention(12, 3)), "assumed")


# ---------------------------------------------------------------- what is kept


@pytest.mark.parametrize("options", [{"kdim": 6, "vdim": 6}, {"bias": False}, {"dropout": 0.3}])
def test_layers_of_torch_are_right(options):
    torch.manual_seed(1)
    report = diagnose(nn.MultiheadAttention(12, 3, batch_first=True, **options))
    assert report.ok, report


class Normed(Separate):
    """Norms of queries and keys, whose gains have no gradient."""

    def __init__(self, detached=""):
        super().__init__()
        self.q_norm, self.k_norm = nn.RMSNorm(4, eps=1e-6), nn.RMSNorm(4, eps=1e-6)
        self.detached = detached

    def normed(self, norm, x):
        gain = norm.weight.detach() if self.detached else norm.weight
        return F.rms_norm(x, (4,), gain, norm.eps)

    def attend(self, q, k, v):
        return plain(self.normed(self.q_norm, q), self.normed(self.k_norm, k), v)


def test_gains_of_norms_have_gradients_too():
    assert diagnose(Normed(), qk_norm="rms").ok
    (failure,) = diagnose(Normed("all"), qk_norm="rms").failures
    assert failure.mistake == "gradient_missing_projection"
    assert "gradient to the gain of the norm of keys" in failure.example


class Stubborn(Separate):
    def __deepcopy__(self, memo):
        raise RuntimeError("no")


def test_what_cannot_be_copied_is_not_checked_and_stays():
    layer = Stubborn()
    before = {name: p.clone() for name, p in layer.named_parameters()}
    report = diagnose(layer)
    assert report.ok, report
    parts = "half precision, other dtypes; gradients to the projections"
    assert f"{parts}: the module cannot be copied" in report.unchecked
    assert all(torch.equal(p, before[name]) for name, p in layer.named_parameters())


# ---------------------------------------------------------------- weights of three axes


class ByHead(nn.Module):
    """Matrices (H, C, d) or (C, H, d), and (H, d, C) of the output."""

    def __init__(self, heads_first, outputs=6, attend=plain):
        super().__init__()
        torch.manual_seed(0)
        self.heads_first, self.attend = heads_first, attend
        shape = (3, 10, 6) if heads_first else (10, 3, 6)
        self.wq, self.wk, self.wv = (nn.Parameter(0.4 * torch.randn(shape)) for _ in range(3))
        self.wo = nn.Parameter(torch.randn(3, outputs, 10))

    def forward(self, x):
        letters = "btc,hcd->bhtd" if self.heads_first else "btc,chd->bhtd"
        q, k, v = (torch.einsum(letters, x, w) for w in (self.wq, self.wk, self.wv))
        return torch.einsum("bhtd,hdc->btc", self.attend(q, k, v), self.wo)


@pytest.mark.parametrize("heads_first", [True, False])
def test_matrices_of_three_axes_are_read(heads_first):
    report = diagnose(ByHead(heads_first), heads=3)
    assert report.ok, report
    assert diagnose(ByHead(True, attend=unscaled), heads=3).mistakes == ["scale_missing"]


def test_projections_that_do_not_fit_together_are_named_with_their_shapes():
    with pytest.raises(ValueError, match=r"with 3 heads .* do not fit .*wo \(3, 5, 10\); q and k"):
        diagnose(ByHead(True, outputs=5), heads=3)


# ---------------------------------------------------------------- what calls that agree share


class NoBiasOfContext(Separate):
    def forward(self, x, context=None):
        c = x if context is None else context
        bias = self.v_proj.bias if context is None else None
        values = F.linear(c, self.v_proj.weight, bias)
        parts = (self.q_proj(x), self.k_proj(c), values)
        return self.merged(plain(*map(self.heads_of, parts)))


def test_calls_without_a_context_that_are_right_are_said():
    (failure,) = diagnose(NoBiasOfContext()).failures
    assert "agrees with it within" in failure.likely
    assert "in all without a context." in failure.likely


# ---------------------------------------------------------------- which form a mistake has


def tiled(role, attend=plain):
    """Keys or values of two heads for four heads of queries, in the wrong order."""

    def fn(q, k, v, *mask):
        wide = {"k": k.repeat_interleave(2, 1), "v": v.repeat_interleave(2, 1)}
        wide[role] = {"k": k, "v": v}[role].repeat(1, 2, 1, 1)
        return attend(q, wide["k"], wide["v"], *mask)

    return fn


@pytest.mark.parametrize("role", ["v", "k"])
def test_which_heads_are_tiled(role):
    (failure,) = diagnose(Separate(32, 4, 2, attend=tiled(role))).failures
    assert failure.mistake == "kv_heads_tiled"
    assert failure.look_for == f"{role}.repeat(1, groups, 1, 1)"
    assert failure.repair.startswith(f"{role}.")
    assert ("its keys are those that are meant" in failure.likely) == (role == "v")


class MergedInTurn(Separate):
    def merged(self, y):
        return self.out_proj(y.permute(0, 2, 3, 1).flatten(2))


def test_heads_that_are_merged_in_turn():
    (failure,) = diagnose(MergedInTurn()).failures
    assert failure.mistake == "heads_interleaved"
    assert "split as they should be" in failure.likely
    assert "permute" in failure.look_for


# ---------------------------------------------------------------- rows without a key


class FoldedMask(Masked):
    """Heads are folded into the batch, and the masks of the examples are tiled."""

    def attend(self, q, k, v, mask):
        mask = mask if mask is None else mask.repeat(self.num_heads, 1, 1)
        folded = filled()(*(part.flatten(0, 1) for part in (q, k, v)), mask)
        return folded.unflatten(0, q.shape[:2])


def test_the_note_about_empty_rows_is_about_this_function():
    report = diagnose(Masked(32, 4, 2, attend=tiled("v", filled())))
    assert report.mistakes == ["kv_heads_tiled"]
    (note,) = report.notes
    assert "attends to all positions equally" in note.text
    folded = diagnose(FoldedMask(), mask_means="attend", mask_shape="BTS", causal=False)
    assert not folded.ok
    assert not any("equally" in note.text for note in folded.notes)


# ---------------------------------------------------------------- packed weights and a mask


class KeysAndValuesByHead(Separate):
    def __init__(self, close):
        super().__init__(24, 3, 3)
        del self.k_proj, self.v_proj
        self.to_kv, self.close = nn.Linear(24, 48), close

    def forward(self, x, memory, memory_pad=None):
        q = self.heads_of(self.q_proj(x))
        k, v = self.to_kv(memory).unflatten(-1, (3, 2, 8)).permute(3, 0, 2, 1, 4)
        pad = None if memory_pad is None else memory_pad[:, None, None]
        return self.merged(closing(self.close)(q, k, v, pad))


def closes_little(scores, pad):
    return scores - 10.0 * pad.to(scores.dtype)


def adds_the_sum(scores, pad):
    return scores + 0.37 * pad.to(scores.dtype) * scores.sum(-1, keepdim=True)


@pytest.mark.parametrize("options", [{}, {"arguments": "x, memory=context, memory_pad=mask"}])
def test_a_mask_that_closes_little_spoils_no_packed_weights(options):
    report = diagnose(KeysAndValuesByHead(closes_little), **options)
    assert report.mistakes == ["mask_small_fill"], report
    assert "what the mask means: True = closed; if not, pass mask_means='attend'" in report.assumed
    assert any("head by head" in text for text in report.assumed)
    unknown = diagnose(KeysAndValuesByHead(adds_the_sum), **options)
    assert any("head by head" in text for text in unknown.assumed)


# ---------------------------------------------------------------- dropout that is drawn by hand


class OwnDropout(Separate):
    def __init__(self, divisor=0.8, bernoulli=False):
        super().__init__(16, 4)
        self.divisor, self.bernoulli = divisor, bernoulli

    def attend(self, q, k, v):
        weights = scores_of(q, k).softmax(-1)
        if self.training:
            if self.bernoulli:
                kept = torch.bernoulli(torch.full_like(weights, 0.8))
            else:
                kept = torch.rand_like(weights) > 0.2
            weights = weights * kept / self.divisor
        return weights @ v


@pytest.mark.parametrize("bernoulli", [False, True])
def test_dropout_of_its_own_is_right(bernoulli):
    report = diagnose(OwnDropout(bernoulli=bernoulli))
    assert report.ok, report
    assert "the mean of 400 such calls is that of evaluation mode" in words_of(report, "unchecked")
    assert not any("switched off, equals" in text for text in report.holds)


def test_dropout_of_its_own_that_is_not_divided():
    (failure,) = diagnose(OwnDropout(divisor=1.0)).failures
    assert failure.name == "training and evaluation differ on average"
    assert "0.80 times" in failure.likely
    assert "switched off" not in failure.likely


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

def unscaled(q, k, v):
    return (q @ k.mT).softmax(-1) @ v

layer = Layer(12, 3)

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
        ("layer", 0),
    ],
)
def test_the_command_line(here, words, status, capsys):
    words = words.split()
    at = 1 if words[0] == "--causal" else 0
    words[at] = f"my_attention:{words[at]}"
    assert __main__.main(words) == status
    shown = capsys.readouterr()
    assert shown.err == ""
    assert ("no mistake found" in shown.out) == (status == 0)


def test_the_command_says_the_same(here):
    done = subprocess.run(
        [sys.executable, "-m", "attn_check", "my_attention:unscaled"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "The scale is missing" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["Layer"], r"make an instance, as in my_attention:Layer\(32, 4\).*num_heads"),
        (["Layer(7, 2)"], r"AssertionError.*my_attention.py, line 7: assert d_model"),
        (["Layer(dim, 2)"], "dim is not a constant"),
        (["1 + 1"], "neither a name nor a call"),
        (["rotate", "--rope", "--window", "3"], "--window cannot be passed"),
        (["attend", "--options", "causal"], "KEY=VALUE"),
        (["absent"], "absent"),
        (["nowhere:wrong"], "nowhere"),
    ],
)
def test_what_the_command_line_cannot_check(here, words, message, capsys):
    place = words[0] if ":" in words[0] else f"my_attention:{words[0]}"
    assert __main__.main([place, *words[1:]]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_the_exit_status_is_explained(capsys):
    with pytest.raises(SystemExit):
        __main__.main(["--help"])
    assert "2, it could not be checked" in capsys.readouterr().out


def test_without_a_word_the_usage_is_printed(capsys):
    with pytest.raises(SystemExit) as stopped:
        __main__.main([])
    assert stopped.value.code == 2
    assert "usage: python -m attn_check" in capsys.readouterr().err
