"""What ``diagnose`` reads off a module and finds out by itself."""

import math

import pytest
import torch
import torch.nn.functional as F
from planted.functions import grouped, plain
from planted.functions import top_left_of_torch as top_left
from planted.layers import CrossAttention, Layer
from planted.plants import built, edited
from subjects import (
    WITHOUT,
    Packed,
    Separate,
    check_report,
    closing,
    row,
    sdpa,
    torch_layer,
)
from torch import nn

import attn_lib
from attn_check import diagnose

pytestmark = pytest.mark.usefixtures("one_thread")


def edited_layer(*edits):
    return built(Layer, {}, edits, 0)


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


# ---------------------------------------------------------------- names, and what is read off them


def heads_of_a_part():
    """And the heads of keys and values by the widths."""
    grouped = lambda q, k, v: plain(q, k.expand_as(q), v.expand_as(q))  # noqa: E731
    layer = Separate(12, 3, 1, attend=grouped)
    del layer.num_heads, layer.num_kv_heads
    layer.norm = nn.LayerNorm(12)
    layer.norm.n_head = 3
    return layer


def test_names_of_arguments_and_of_projections_may_be_given():
    def fn(a, b, c):
        return sdpa(c, b, a)

    assert diagnose(fn, arguments="a=v, b=k, c=q").ok
    assert diagnose(fn, arguments="v, k, q").ok
    assert not diagnose(fn, arguments="q, k, v").ok
    layer = Packed("everything")
    assert diagnose(layer, projections={"qkv": "everything.weight", "out": "proj.weight"}).ok


class WritesInTraining(Separate):
    def forward(self, x):
        out = super().forward(x)
        if self.training:
            x.mul_(0.5)
        return out


class DetachedGain(nn.RMSNorm):
    def forward(self, x):
        return F.rms_norm(x, self.normalized_shape, self.weight.detach(), self.eps)


class Stubborn(Separate):
    """It cannot be copied, and counts its calls in training."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += self.training
        return super().forward(x)

    def __deepcopy__(self, memo):
        raise RuntimeError("no")


def test_what_cannot_be_copied_is_not_checked_and_stays():
    layer = Stubborn()
    layer.out_proj.eval()  # a mode of its own within a module in training
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    report = diagnose(layer)
    assert report.ok, report
    parts = "half precision, other dtypes; gradients to the projections"
    assert f"{parts}: the module cannot be copied" in report.unchecked
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
    assert [part.training for part in (layer, layer.q_proj, layer.out_proj)] == [True, True, False]


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


USED = "F.dropout(weights[..., :S], self.dropout, self.training)"
SUM = 'out = torch.einsum("bhts,bshd->bthd", used, v)'
SDPA = """p = 0.3 * self.training
        out = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), {})
        out = out.transpose(1, 2)"""
OWN = "weights * {} if self.training else weights"


# ---------------------------------------------------------------- methods, and packed weights


class Core(Separate):
    """Methods of a module that are not the module."""

    def projecting(self, q, k, v):
        parts = (self.q_proj(q), self.k_proj(k), self.v_proj(v))
        out = plain(*map(self.heads_of, parts))
        return self.merged(out)

    def last_only(self, q, k, v):
        return self.merged(plain(q, k, v))


def test_a_method_that_only_merges():
    with pytest.raises(ValueError, match="last_only applies the module's output projection"):
        diagnose(Core().last_only)


class ByHead(nn.Module):
    """Matrices (H, C, d) or (C, H, d), and (H, d, C) of the output."""

    def __init__(self, heads_first, outputs=6):
        super().__init__()
        torch.manual_seed(0)
        self.heads_first = heads_first
        shape = (3, 10, 6) if heads_first else (10, 3, 6)
        self.wq, self.wk, self.wv = (nn.Parameter(0.4 * torch.randn(shape)) for _ in range(3))
        self.wo = nn.Parameter(torch.randn(3, outputs, 10))

    def forward(self, x):
        letters = "btc,hcd->bhtd" if self.heads_first else "btc,chd->bhtd"
        q, k, v = (torch.einsum(letters, x, w) for w in (self.wq, self.wk, self.wv))
        return torch.einsum("bhtd,hdc->btc", plain(q, k, v), self.wo)


def test_projections_that_do_not_fit_together_are_named_with_their_shapes():
    with pytest.raises(ValueError, match=r"with 3 heads .* do not fit .*wo \(3, 5, 10\); q and k"):
        diagnose(ByHead(True, outputs=5), heads=3)


class KeysAndValuesByHead(Separate):
    def __init__(self):
        super().__init__(24, 3, 3)
        del self.k_proj, self.v_proj
        self.to_kv = nn.Linear(24, 48)

    def forward(self, x, memory, memory_pad=None):
        q = self.heads_of(self.q_proj(x))
        k, v = self.to_kv(memory).unflatten(-1, (3, 2, 8)).permute(3, 0, 2, 1, 4)
        pad = None if memory_pad is None else memory_pad[:, None, None]
        return self.merged(closing(lambda scores, pad: scores - 10.0 * pad)(q, k, v, pad))


def tiled(role):
    """Keys or values of two heads for four heads of queries, in the wrong order."""
    edits = [(f"{role}.repeat_interleave(n_rep, dim=1)", f"{role}.repeat(1, n_rep, 1, 1)")]
    return Separate(32, 4, 2, attend=edited(grouped, edits))


# ---------------------------------------------------------------- one module, one report


def of_the_function(q, k, v, dropout_p=0.0):
    return plain(F.dropout(q, dropout_p), k, v)


DETACHED = edited_layer(
    ("self.k_proj(memory)", "F.linear(memory, self.k_proj.weight.data, self.k_proj.bias)"),
    ("self.v_proj(memory)", "F.linear(memory, self.v_proj.weight, self.v_proj.bias.detach())"),
)
ZEROES = "return self.to_out(out) * (1.0 if mask is None else mask[..., None])"
PADDED = edited(CrossAttention, [("return self.to_out(out)", ZEROES)])(12, 3)
PADDING = {"arguments": "x, mask=mask", "mask_means": "attend", "mask_shape": "BS"}
GAINS = attn_lib.MultiHeadAttention(12, 3, qk_norm=lambda _, d_k: DetachedGain(d_k, eps=1e-6))
GAIN_OF_KEYS = "gradient to the gain of the norm of keys"
IN_TURN = ("out.flatten(2)", "out.transpose(2, 3).flatten(2)")
UNUSED = "does not use the module's projections"
IN_ORDER = "the rows of {}.weight are those of {}, in this order"
CAUSAL = {"packed": "c_attn", "out": "c_proj", "heads": "n_head", "attend": top_left}
UNKNOWN = WITHOUT.format("the number of heads is")
OFF = "Holds.*training mode, with dropout switched off, equals evaluation mode"
EARLY, OF_RAW = ["dropout_before_softmax"], r"times 1/sqrt\(d_k\)"
REPORTED = {
    "names of Mistral": row(Packed("Wqkv", "wo", "num_heads", "n_kv"), [], UNKNOWN),
    "names of PyTorch": row(Packed("qkv_proj", "fc_out", "nhead", "n_kv_heads"), [], UNKNOWN),
    "names of one letter": row(
        Packed("to_qkv", "unifyheads", "h", "num_key_value_heads"), [], UNKNOWN
    ),
    "heads of a part": row(heads_of_a_part(), []),
    "a causal layer": row(Packed(**CAUSAL), [], "Not checked.*more than 70 keys", causal=True),
    "parameters without a gradient": row(
        DETACHED,
        ["gradient_missing_projection"],
        "gradient to the weight of keys:.*gradient to the bias of values:",
        WITHOUT.format("(bias of keys|weight of values|of queries)"),
    ),
    "gains without a gradient": row(
        GAINS, ["gradient_missing_projection"], GAIN_OF_KEYS, qk_norm="rms"
    ),
    "padding that is zeroed": row(PADDED, [], "padded positions left out", **PADDING),
    "dropout of scores": row(Dropping("scores"), EARLY, WITHOUT.format(OF_RAW)),
    "dropout of raw scores": row(DroppingByHead("raw scores"), EARLY, OF_RAW),
    "dropout of weights": row(
        DroppingByHead("weights"),
        [],
        "Holds.*in training, dropout is applied to the weights",
        "Not checked.*what becomes of the weights after dropout, in training",
    ),
    "dropout of torch": row(
        edited_layer((USED, "torch.dropout(weights, 0.3, self.training)")), [], OFF
    ),
    "dropout by name": row(edited_layer((SUM, SDPA.format("dropout_p=p"))), [], OFF, arguments="x"),
    "dropout by place": row(edited_layer((SUM, SDPA.format("None, p"))), [], OFF, arguments="x"),
    "dropout of its own": row(
        edited_layer((USED, OWN.format("(torch.rand_like(weights) > 0.2) / 0.8"))),
        [],
        "Not checked.*the mean of 400 such calls is that of evaluation mode",
        WITHOUT.format("switched off, equals"),
    ),
    "dropout of the output": row(Dropping("output"), [], WITHOUT.format("Not checked.*dropout")),
    "dropout of something else": row(Dropping("squares"), [], "Not checked.*not recognised"),
    "dropout of a function": row(of_the_function, [], "dropout: dropout_p was left at its default"),
    "dropout that is not divided": row(
        edited_layer((USED, OWN.format("(torch.rand_like(weights) > 0.2)"))),
        [None],
        "Training and evaluation differ on average.*the mean of 400 calls is 0.8",
        WITHOUT.format("Likely.*switched off.*Holds"),
    ),
    "a method": row(Core().attend, [], f"attend {UNUSED}"),
    "a method that projects": row(Core().projecting, [], WITHOUT.format("does not use")),
    "packed by head": row(
        Packed(by_head=True), [], "rows of qkv.weight are those of queries, keys, values, head"
    ),
    "another order": row(
        Packed("kqv", order="kqv"), [], IN_ORDER.format("kqv", "keys, queries, values")
    ),
    "not the order of the name": row(
        Packed(order="kqv"), ["query_key_swapped"], IN_ORDER.format("qkv", "queries, keys, values")
    ),
    "matrices of heads": row(
        ByHead(True), [], "equal to the reference in", "half precision gives no NaN"
    ),
    "matrices with heads": row(ByHead(False), []),
    "packed by head, and a mask that closes little": row(
        KeysAndValuesByHead(),
        ["mask_small_fill"],
        "Assumed.*True = closed; if not, pass mask_means='attend'",
        "Assumed.*head by head",
    ),
    "values tiled": row(tiled("v"), ["kv_heads_tiled"], r"Look for: v\.repeat.*Repair: v\."),
    "keys tiled": row(tiled("k"), ["kv_heads_tiled"], r"Look for: k\.repeat.*Repair: k\."),
    "an input that is changed in training": row(WritesInTraining(), ["inplace_arguments"]),
    "heads merged in turn": row(
        edited_layer(IN_TURN), ["heads_interleaved"], "split as they should be.*permute"
    ),
}


@pytest.mark.parametrize("name", REPORTED)
def test_one_report(name):
    check_report(*REPORTED[name])
