"""What an attack on ``diagnose`` found: in silence, under a wrong name, or refused.

Each row was wrong before it became a test.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from planted.functions import distances, masked, plain, with_bias
from planted.layers import CausalSelfAttention, CrossAttention
from planted.plants import edited
from subjects import Packed, Separate, headline, past_of, scores_of
from tables import for_each
from torch import nn

from attn_check import diagnose
from attn_lib.positions import apply_rope

pytestmark = pytest.mark.usefixtures("one_thread")
BEHIND = {"layout": "BHTd", "causal": False}


# ---------------------------------------------------------------- sizes of 1, and limits


def squeezed(q, k, v):
    return scores_of(q, k).softmax(-1).squeeze() @ v.squeeze()


def at(i, size):
    """Wrong where one axis of q or k has length 1."""

    def wrong(q, k, v):
        return plain(q, k, v) * (1.5 if (q, k)[i < 0].shape[abs(i)] == size else 1.0)

    return wrong


@for_each(squeezed, at(0, 1), at(1, 1), at(2, 1), at(-2, 1))
def test_sizes_of_1_are_asked_for(fn):
    report = diagnose(fn, **BEHIND)
    assert report.mistakes == ["size_of_one"], report


def equal_lengths(q, k, v):
    assert q.shape[2] == k.shape[2]
    return plain(q, k, v)


# as nanoGPT: no more positions than its buffer has
TWENTY = ("torch.ones(256, 256)).view(1, 1, 256, 256)", "torch.ones(20, 20)).view(1, 1, 20, 20)")
BUFFERED = edited(CausalSelfAttention, [TWENTY])(12, 3)


@for_each(
    (equal_lengths, BEHIND, "refused: queries and keys of different lengths."),
    (BUFFERED, {"causal": True}, "refused: more than 20 positions."),
)
def test_what_is_refused_as_a_whole_is_a_limit(fn, options, words):
    report = diagnose(fn, **options)
    assert report.ok, report
    assert words in headline(report)


# ---------------------------------------------------------------- masks, weights, guesses


def padding_of_the_first(q, k, v, mask=None):
    return masked(q, k, v, None if mask is None or mask[0].all() else mask)


def weights_without_the_mask(q, k, v, mask=None):
    return masked(q, k, v, mask), scores_of(q, k).softmax(-1)


@for_each((padding_of_the_first, [None]), (weights_without_the_mask, ["weights_wrong"]))
def test_masks_are_compared_in_every_way(fn, mistakes):
    assert diagnose(fn, mask_means="attend", **BEHIND).mistakes == mistakes


class Viewed(Separate):
    """Heads by views alone, and a mask that nobody uses."""

    def heads_of(self, x):
        return x.view(len(x), 3, -1, 4)

    def merged(self, out):
        return self.out_proj(out.reshape(len(out), -1, 12))

    def forward(self, x, mask=None):
        return super().forward(x)


def test_a_guess_is_not_punished():
    report = diagnose(Viewed())
    assert set(report.mistakes) == {"mask_ignored", "heads_split_without_transpose"}, report
    assert "taken for causal" not in str(report)


def test_a_guess_that_leads_to_a_failure_comes_first():
    def odd(q, k, v):
        return scores_of(q, k).sin().masked_fill(~past_of(q, k), -math.inf).softmax(-1) @ v

    (failure,) = diagnose(odd, layout="BHTd").failures
    assert failure.likely.startswith("Seen: ")
    assert "As causal= is not passed, it is taken for causal." in failure.likely


def test_what_the_caller_passed_ranks_first():
    sinks = torch.tensor([0.5, 1.0, -0.5])

    def added(q, k, v):
        return (scores_of(q, k) + sinks[:, None, None]).softmax(-1) @ v

    assert diagnose(added, sinks=sinks, **BEHIND).mistakes == ["sinks_dropped"]


def test_rows_of_nan_stand_in_the_headline():
    text = str(diagnose(masked, mask_means="attend"))
    assert text.startswith("masked: no mistake found, 1 warning: rows of NaN.")
    for words in ("Look for: scores.masked_fill", "Repair: scores.masked_fill", "See: https://"):
        assert words in text
    assert diagnose(plain, **BEHIND).notes == []  # nor one on half precision


# ---------------------------------------------------------------- parts that are not known


class Normed(Separate):
    """A norm before the projections."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(12)

    def forward(self, x):
        return super().forward(self.norm(x))


def partly_rotated(q, k, v):
    S, turned = k.shape[2], []
    for x in (q, k):  # the queries are the last
        at = torch.arange(S - x.shape[2], S)
        turned.append(torch.cat([apply_rope(x[..., :4], at), x[..., 4:]], dim=-1))
    return plain(*turned, v)


PARTS = {
    "attn_bias": (with_bias, {"attn_bias": distances}, BEHIND),
    "rope_dims": (partly_rotated, {"rope_base": 1e4, "rope_dims": 4}, BEHIND),
    "prenorm": (Normed(), {"prenorm": "norm"}, {"causal": False}),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_is_not_known_can_be_passed(name):
    fn, given, options = PARTS[name]
    without = diagnose(fn, **options)
    assert without.mistakes == [None]
    assert f"(pass {name}=)" in without.failures[0].likely or f"({name}=)" in str(without)
    assert diagnose(fn, **given, **options).ok


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


def test_the_most_copied_attention_is_read():
    found = ["projection_shared_by_heads", "scale_by_model_width"]
    assert diagnose(OfVideos()).mistakes == found


class PerHead(nn.Module):
    """Tensors (H, d_model, d_k), and norms under names of their own."""

    def __init__(self):
        super().__init__()
        self.num_heads = 3
        self.W_Q, self.W_K, self.W_V = (nn.Parameter(torch.randn(3, 12, 4) / 4) for _ in "qkv")
        self.W_O = nn.Linear(12, 12)
        self.rms_of_queries, self.rms_of_keys = nn.RMSNorm(4, eps=1e-6), nn.RMSNorm(4, eps=1e-6)

    def forward(self, x):
        q, k, v = (torch.einsum("btm,hmd->bhtd", x, W) for W in (self.W_Q, self.W_K, self.W_V))
        y = F.scaled_dot_product_attention(self.rms_of_queries(q), self.rms_of_keys(k), v)
        return self.W_O(y.transpose(1, 2).flatten(2))


def weights_first(q, k, v):
    weights = scores_of(q, k).softmax(-1)
    return weights, weights @ v


def of_integers(q, k, v, mask=None):
    scores = scores_of(q, k)
    if mask is not None:
        scores = scores.masked_fill((1 - mask).bool(), -math.inf)
    return scores.softmax(-1) @ v


@for_each(
    (nn.MultiheadAttention(12, 3, kdim=8, vdim=10, batch_first=True), {}),
    (PerHead(), {"qk_norm": "rms", "causal": False}),
    (Packed("to_vkq", "attn_out", order="vkq"), {"causal": False}),
    (weights_first, BEHIND),
    (of_integers, BEHIND),
)
def test_right_attentions_that_were_refused(fn, options):
    report = diagnose(fn, **options)
    assert report.ok, report


# ---------------------------------------------------------------- queries as the first positions


def by_first(turned):
    """As callers of torch's causal mask: queries and keys begin at position 0 alike."""

    def fn(q, k, v):
        turn = {"qk": (q, k), "qkv": (q, k, v)}[turned]
        q, k, *rest = (apply_rope(x, torch.arange(x.shape[2])) for x in turn)
        return F.scaled_dot_product_attention(q, k, *(rest or [v]), is_causal=True)

    return fn


@for_each(
    (by_first("qk"), []),
    (by_first("qkv"), ["rope_on_values"]),
)
def test_queries_that_are_the_first_positions_are_rotated_as_such(fn, mistakes):
    report = diagnose(fn, causal="top_left", rope_base=1e4, layout="BHTd")
    assert report.mistakes == mistakes, report


# ---------------------------------------------------------------- words that fit what is wrong


KEYS = ("self.to_k(context)", "self.to_k(x)")
VALUES = ("self.to_v(context)", "self.to_v(x)")


@for_each(
    ([KEYS], "keys are projected from x", "self.k_proj(context)"),
    (
        [KEYS, VALUES],
        "keys and values are projected from x",
        "self.k_proj(context), self.v_proj(context)",
    ),
)
def test_whether_keys_values_or_both_are_from_x(edits, name, repair):
    (failure,) = diagnose(edited(CrossAttention, edits)(12, 3), mask_means="attend").failures
    assert (failure.name, failure.repair) == (name, repair)


def test_what_was_passed_is_not_proposed():
    def wrong(q, k, v):
        return scores_of(q, k).sin().softmax(-1) @ v

    given = {"attn_bias": distances, "rope_base": 1e4, "rope_dims": 4}
    (failure,) = diagnose(wrong, **given, **BEHIND).failures
    assert not any(f"{name}=" in failure.likely for name in given)
    assert failure.likely.endswith("a residual around it.")


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
        return self.get_submodule(self.out)(plain(*parts).transpose(1, 2).flatten(2))


@for_each(
    (Concat(), {}),
    (Concat("mixer"), {"projections": {"q": "w_q", "out": "mixer"}}),
)
def test_projections_that_are_named_join_those_that_are_found(fn, given):
    assert diagnose(fn, **given).ok


def test_a_name_that_is_given_wins():
    swapped = {"k": "w_v", "v": "w_k"}
    assert diagnose(Concat(), projections=swapped).mistakes == ["key_value_swapped"]


class Listed(Concat):
    """Projections in a list, as the Annotated Transformer's, but in an order of its own."""

    def __init__(self):
        super().__init__("proj")
        self.all = nn.ModuleList([self.w_k, self.w_q, self.w_v, self.proj])
        del self.w_k, self.w_q, self.w_v, self.proj
        self.out = "all.3"

    w_k, w_q, w_v = (property(lambda self, i=i: self.all[i]) for i in range(3))


def test_of_a_list_the_rest_is_not_guessed_where_one_is_named():
    with pytest.raises(ValueError, match="no projections of queries, keys and values are found"):
        diagnose(Listed(), projections={"q": "all.1"})
    named = {"q": "all.1", "k": "all.0", "v": "all.2", "out": "all.3"}
    assert diagnose(Listed(), projections=named).ok


class Convolved(Concat):
    """Projections by convolutions of width 1, over (B, C, T)."""

    def __init__(self, make):
        super().__init__("proj", lambda c, n: make(c, n, 1))

    def forward(self, x):
        wide = (1,) * isinstance(self.w_q, nn.Conv2d)
        y = x.mT.reshape(len(x), 12, -1, *wide)
        parts = (f(y).view(len(x), 3, 4, -1).mT for f in (self.w_q, self.w_k, self.w_v))
        return self.proj(plain(*parts).mT.reshape(y.shape)).flatten(2).mT


@for_each(nn.Conv1d, nn.Conv2d)
def test_convolutions_of_width_1_are_read(make):
    report = diagnose(Convolved(make))
    assert report.ok, report
    assert "gradients to the projections are those of the reference" in report.holds


def test_a_wider_convolution_is_no_projection():
    with pytest.raises(ValueError, match=r"w_q\.weight \(12, 12, 3\)"):
        diagnose(Concat("proj", lambda c, n: nn.Conv1d(c, n, 3, padding=1)))


# ---------------------------------------------------------------- batch and positions


class WithoutBatchFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(12, 3)

    def forward(self, x):
        return self.attn(x, x, x, need_weights=False)[0]


def over_the_first_axis(q, k, v):
    weights = (torch.einsum("tbhd,sbhd->bhts", q, k) / math.sqrt(q.shape[-1])).softmax(-1)
    return torch.einsum("bhts,sbhd->tbhd", weights, v)


def test_positions_in_the_place_of_the_batch_are_named():
    (failure,) = diagnose(WithoutBatchFirst(), layout="BTd").failures
    assert failure.mistake == "batch_exchanged", failure
    assert "batch_first" in failure.repair


@for_each((WithoutBatchFirst(), "TBd"), (over_the_first_axis, "TBHd"))
def test_positions_that_are_assumed_to_come_first_stand_in_the_headline(fn, layout):
    report = diagnose(fn)
    assert report.ok
    assert f"the layout is {layout}" in report.assumed
    assert "if you mean what is assumed below" in headline(report)


def test_a_repair_fits_what_gives_the_same_numbers():
    def twice(q, k, v):
        return F.scaled_dot_product_attention(q / math.sqrt(q.shape[-1]), k, v)

    (failure,) = diagnose(twice, **BEHIND).failures
    assert (failure.mistake, failure.alike) == ("scale_by_d_k", ("scale_twice",))
    assert "once" in failure.repair
    assert "scaled_dot_product_attention" in failure.repair
