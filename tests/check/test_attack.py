"""What an attack on ``diagnose`` found: in silence, under a wrong name, or refused.

Each row was wrong before it became a test.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from planted.functions import behind, distances, masked, plain
from planted.heads import FOLD, UNFOLD
from planted.layers import CausalSelfAttention, CrossAttention
from planted.plants import edited
from planted.properties import EXCHANGED
from planted.right import FourLinears
from subjects import WITHOUT, Separate, check_report, row, scores_of
from torch import nn

from attn_check import diagnose
from attn_lib.positions import apply_rope

pytestmark = pytest.mark.usefixtures("one_thread")
BEHIND = {"layout": "BHTd", "causal": False}


def at(i):
    """Wrong where one axis of q, or of k, has length 1."""

    def wrong(q, k, v):
        return plain(q, k, v) * (1.5 if (q, k)[i < 0].shape[abs(i)] == 1 else 1.0)

    return wrong


def squeezed(q, k, v):
    return scores_of(q, k).softmax(-1).squeeze() @ v.squeeze()


def equal_lengths(q, k, v):
    assert q.shape[2] == k.shape[2]
    return plain(q, k, v)


# as nanoGPT: no more positions than its buffer has
TWENTY = ("torch.ones(256, 256)).view(1, 1, 256, 256)", "torch.ones(20, 20)).view(1, 1, 20, 20)")
BUFFERED = edited(CausalSelfAttention, [TWENTY])(12, 3)


# ---------------------------------------------------------------- masks, weights, guesses


def padding_of_the_first(q, k, v, mask=None):
    return masked(q, k, v, None if mask is None or mask[0].all() else mask)


def weights_without_the_mask(q, k, v, mask=None):
    return masked(q, k, v, mask), scores_of(q, k).softmax(-1)


# heads by views alone, and a mask that nobody uses
VIEWS = [
    (FOLD, "t.reshape(b * h, -1, self.dim_head)"),
    (UNFOLD, "out.reshape(b, -1, h * self.dim_head)"),
    ("sim = sim.masked_fill", "sim.masked_fill"),
]
SINKS = torch.tensor([0.5, 1.0, -0.5])


def sinks_added(q, k, v):
    return (scores_of(q, k) + SINKS[:, None, None]).softmax(-1) @ v


def partly_rotated(q, k, v):
    S, turned = k.shape[2], []
    for x in (q, k):  # the queries are the last
        at = torch.arange(S - x.shape[2], S)
        turned.append(torch.cat([apply_rope(x[..., :4], at), x[..., 4:]], dim=-1))
    return plain(*turned, v)


# ---------------------------------------------------------------- what was refused


class OfVideos(nn.Module):
    """The most copied attention of the web: heads share their matrices, and its root is wrong."""

    def __init__(self, embed_size=24, heads=3):
        super().__init__()
        self.embed_size, self.heads, self.head_dim = embed_size, heads, embed_size // heads
        self.values, self.keys, self.queries = (
            nn.Linear(self.head_dim, self.head_dim, bias=False) for _ in range(3)
        )
        self.fc_out = nn.Linear(embed_size, embed_size)

    def forward(self, values, keys, query, mask):
        values, keys, query = (
            x.reshape(*x.shape[:2], self.heads, self.head_dim) for x in (values, keys, query)
        )
        queries, keys, values = self.queries(query), self.keys(keys), self.values(values)
        energy = torch.einsum("nqhd,nkhd->nhqk", queries, keys)
        if mask is not None:
            energy = energy.masked_fill(mask == 0, float("-1e20"))
        weights = torch.softmax(energy / self.embed_size**0.5, dim=3)
        return self.fc_out(torch.einsum("nhql,nlhd->nqhd", weights, values).flatten(2))


class NamedNorms(Separate):
    """Norms under names of their own."""

    def __init__(self):
        super().__init__()
        self.rms_of_queries, self.rms_of_keys = (nn.RMSNorm(4, eps=1e-6) for _ in "qk")

    def attend(self, q, k, v):
        return plain(self.rms_of_queries(q), self.rms_of_keys(k), v)


def weights_first(q, k, v):
    weights = scores_of(q, k).softmax(-1)
    return weights, weights @ v


def of_integers(q, k, v, mask=None):
    scores = scores_of(q, k)
    if mask is not None:
        scores = scores.masked_fill((1 - mask).bool(), -math.inf)
    return scores.softmax(-1) @ v


def by_first(turned):
    """As callers of torch's causal mask: queries and keys begin at position 0 alike."""

    def fn(q, k, v):
        turn = {"qk": (q, k), "qkv": (q, k, v)}[turned]
        q, k, *rest = (apply_rope(x, torch.arange(x.shape[2])) for x in turn)
        return F.scaled_dot_product_attention(q, k, *(rest or [v]), is_causal=True)

    return fn


FROM_X = [(f"self.to_{role}(context)", f"self.to_{role}(x)") for role in "kv"]


def of_sines(q, k, v):
    return scores_of(q, k).sin().softmax(-1) @ v


# ---------------------------------------------------------------- names and shapes of projections


class Concat(nn.Module):
    """As hyunwoongko's Transformer, but for the name of the last projection."""

    def __init__(self, out="w_concat", make=nn.Linear):
        super().__init__()
        torch.manual_seed(0)
        self.n_head, self.out = 3, out
        for name in ("w_q", "w_k", "w_v", out):
            self.add_module(name, make(12, 12))

    def forward(self, x):
        parts = (f(x).unflatten(-1, (3, 4)).transpose(1, 2) for f in (self.w_q, self.w_k, self.w_v))
        return getattr(self, self.out)(plain(*parts).transpose(1, 2).flatten(2))


# a list, as the Annotated Transformer's, but in an order of its own
IN_ORDER = ("zip(self.linears,", "zip((self.linears[i] for i in (1, 0, 2)),")
OF_X = ("query, key, value, mask=None):", "x, mask=None):\n        query = key = value = x")
LISTED = edited(FourLinears, [IN_ORDER, OF_X])(3, 12).eval()


def test_of_a_list_the_rest_is_not_guessed_where_one_is_named():
    with pytest.raises(ValueError, match="no projections of queries, keys and values are found"):
        diagnose(LISTED, projections={"q": "linears.1"})
    named = dict(zip(["k", "q", "v", "out"], (f"linears.{i}" for i in range(4)), strict=True))
    assert diagnose(LISTED, projections=named).ok


class Convolved(Concat):
    """Projections by convolutions of width 1, over (B, C, T)."""

    def __init__(self):
        super().__init__("proj", lambda c, n: nn.Conv1d(c, n, 1))

    def forward(self, x):
        parts = (f(x.mT).view(len(x), 3, 4, -1).mT for f in (self.w_q, self.w_k, self.w_v))
        return self.proj(plain(*parts).mT.flatten(1, 2)).mT


def test_a_wider_convolution_is_no_projection():
    with pytest.raises(ValueError, match=r"w_q\.weight \(12, 12, 3\)"):
        diagnose(Concat("proj", lambda c, n: nn.Conv1d(c, n, 3, padding=1)))


class WithoutBatchFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(12, 3)

    def forward(self, x):
        return self.attn(x, x, x, need_weights=False)[0]


def divided_before(q, k, v):
    return F.scaled_dot_product_attention(q / math.sqrt(q.shape[-1]), k, v)


# ---------------------------------------------------------------- one attention, one report


MASKED = {"mask_means": "attend", **BEHIND}
FIRST = {"causal": "top_left", "rope_base": 1e4, "layout": "BHTd"}
IF_YOU_MEAN = "no mistake found, if you mean what is assumed below"
GRADIENTS = "Holds.*gradients to the projections are those of the reference"
REPORTED = {
    "one example": row(at(0), ["size_of_one"], **BEHIND),
    "one head": row(at(1), ["size_of_one"], **BEHIND),
    "one query": row(at(2), ["size_of_one"], **BEHIND),
    "one key": row(at(-2), ["size_of_one"], **BEHIND),
    "squeezed": row(squeezed, ["size_of_one"], **BEHIND),
    "other lengths": row(
        equal_lengths, [], r"refused: queries and keys of different lengths\.", **BEHIND
    ),
    "a short buffer": row(BUFFERED, [], r"refused: more than 20 positions\.", causal=True),
    "the first mask alone": row(padding_of_the_first, [None], **MASKED),
    "weights of no mask": row(weights_without_the_mask, ["weights_wrong"], **MASKED),
    # a guess is not punished, and what was passed ranks first
    "views, and no mask": row(
        edited(CrossAttention, VIEWS)(12, 3),
        ["heads_split_without_transpose", "mask_ignored"],
        WITHOUT.format("taken for causal"),
    ),
    "sinks that are added": row(sinks_added, ["sinks_dropped"], sinks=SINKS, **BEHIND),
    "the most copied": row(OfVideos(), ["projection_shared_by_heads", "scale_by_model_width"]),
    # what was refused
    "widths of keys and values": row(
        nn.MultiheadAttention(12, 3, kdim=8, vdim=10, batch_first=True), []
    ),
    "names of norms": row(NamedNorms(), [], qk_norm="rms", causal=False),
    "weights first": row(weights_first, [], **BEHIND),
    "masks of integers": row(of_integers, [], **BEHIND),
    "queries are the first": row(by_first("qk"), [], **FIRST),
    "values too": row(by_first("qkv"), ["rope_on_values"], **FIRST),
    "keys and values of x": row(
        edited(CrossAttention, FROM_X)(12, 3),
        ["keys_from_x"],
        r"Keys and values are projected from x\..*"
        r"Repair: self.k_proj\(context\), self.v_proj\(context\) ",
        mask_means="attend",
    ),
    "rows of NaN": row(
        masked,
        [],
        "^masked: no mistake found, 1 warning: rows of NaN.*Notes.*Look for: scores.masked_fill"
        ".*Repair: scores.masked_fill.*See: https://",
        mask_means="attend",
    ),
    "no notes": row(plain, [], WITHOUT.format("Notes"), **BEHIND),
    "RoPE on some channels": row(partly_rotated, [], rope_base=1e4, rope_dims=4, **BEHIND),
    "what may be passed": row(
        of_sines,
        [None],
        r"\(pass attn_bias=\), RoPE on some channels \(rope_dims=\)",
        **BEHIND,
    ),
    "what was passed is not proposed": row(
        of_sines,
        [None],
        WITHOUT.format("(attn_bias|rope_base|rope_dims)="),
        **{"attn_bias": distances, "rope_base": 1e4, "rope_dims": 4, **BEHIND},
    ),
    "a repair fits the same numbers": row(
        divided_before,
        ["scale_by_d_k"],
        r"Repair:.*once.*scaled_dot_product_attention.*\(scale_twice\)",
        **BEHIND,
    ),
    "positions first": row(WithoutBatchFirst(), [], f"{IF_YOU_MEAN}.*the layout is TBd"),
    "of heads": row(edited(behind, EXCHANGED), [], f"{IF_YOU_MEAN}.*the layout is TBHd"),
    # projections that are named join those that are found, and win
    "w_concat": row(Concat(), []),
    "a name": row(Concat("mixer"), [], projections={"q": "w_q", "out": "mixer"}),
    "wrong names": row(Concat(), ["key_value_swapped"], projections={"k": "w_v", "v": "w_k"}),
    "convolutions": row(Convolved(), [], GRADIENTS),
}


@pytest.mark.parametrize("name", REPORTED)
def test_one_report(name):
    check_report(*REPORTED[name])
