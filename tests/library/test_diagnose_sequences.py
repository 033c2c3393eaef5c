"""Sequences, one after the other and at once; masks of unclear meaning; the first wrong row."""

import math

import pytest
import torch
import torch.nn.functional as F
from subjects import Separate, plain, scores_of, words_of
from torch import nn

from attn_lib import diagnose

pytestmark = pytest.mark.usefixtures("one_thread")


# ---------------------------------------------------------------- one sequence after another


def past_of(q, k):
    T, S = q.shape[-2], k.shape[-2]
    return torch.ones(T, S, dtype=torch.bool).tril(S - T)


def causal(q, k, v):
    return scores_of(q, k).masked_fill(~past_of(q, k), -math.inf).softmax(-1) @ v


class InPieces(Separate):
    """The cache is a pair of keys and values."""

    past = None

    def attend(self, q, k, v):
        return causal(q, k, v)

    def joined(self, x, past):
        q, *pair = self.parts(x)
        if past is not None:
            pair = [torch.cat(two, 2) for two in zip(past, pair, strict=True)]
        return self.merged(self.attend(q, *pair)), pair

    def step(self, x, cache):
        return self.joined(x, cache)


class Kept(InPieces):
    """The cache stays with the module, and is never emptied."""

    def step(self, x, cache):
        out, self.past = self.joined(x, self.past)
        return out, True


class ReturnsNone(Kept):
    def step(self, x, cache):
        return super().step(x, cache)[0], None


class Emptied(Kept):
    def step(self, x, cache):
        self.past = self.past if cache else None
        return super().step(x, cache)


class OfEqualBatch(Kept):
    def step(self, x, cache):
        self.past = self.past if self.past and len(self.past[0]) == len(x) else None
        return super().step(x, cache)


STORE, LAYER, KEPT = [], InPieces(), Kept()


def with_a_list(x, kept):
    out, pair = LAYER.joined(x, kept[-1] if kept else None)
    kept.append(pair)
    return out, kept


def of_one_list(x, cache):
    return with_a_list(x, STORE if cache is None else cache)


def of_a_default(x, cache, kept=[]):  # noqa: B006
    return with_a_list(x, kept)


def through_a_helper(x, cache):
    return of_a_default(x, cache)


def of_a_global_module(x, cache):
    return KEPT.step(x, cache)


def of_a_list_each(x, cache):
    return with_a_list(x, [] if cache is None else cache)


WRONG = {
    "module": lambda: Kept().step,
    "none": lambda: ReturnsNone().step,
    "batch": lambda: OfEqualBatch().step,
    "list": lambda: of_one_list,
    "default": lambda: of_a_default,
    "helper": lambda: through_a_helper,
    "global": lambda: of_a_global_module,
}


def in_steps(step):
    layer = getattr(step, "__self__", KEPT if step is of_a_global_module else LAYER)
    return diagnose(layer, causal=True, step=step)


@pytest.mark.parametrize("name", WRONG)
def test_a_cache_of_an_earlier_sequence(name):
    (failure,) = in_steps(WRONG[name]()).failures
    assert failure.mistake == "cache_of_earlier_sequence"
    assert "as a second sequence, cache=None in its first call" in failure.example
    assert not STORE
    assert KEPT.past is None
    assert of_a_default.__defaults__ == ([],)


@pytest.mark.parametrize("step", [InPieces().step, of_a_list_each])
def test_sequences_that_are_open_at_once(step):
    report = in_steps(step)
    assert report.ok, report
    assert "neither disturbs the other" in words_of(report, "holds")


def test_a_cache_that_is_emptied_is_right_for_one_sequence_at_a_time():
    report = in_steps(Emptied().step)
    assert report.ok, report
    assert "neither disturbs" not in words_of(report, "holds")
    (note,) = report.notes
    assert "the first is wrong from the second's first call on" in note.text


def test_a_module_that_kept_a_sequence_before_it_was_diagnosed():
    """With gradients, which copy.deepcopy refuses; it stays as it was."""
    layer = Kept()
    layer.step(torch.randn(2, 3, 12), None)
    before = layer.past
    assert before[0].grad_fn is not None
    (failure,) = in_steps(layer.step).failures
    assert failure.mistake == "cache_of_earlier_sequence"
    assert layer.past is before
    assert before[0].shape[2] == 3


class Raising(InPieces):
    def step(self, x, cache):
        self.past = cache
        if cache is None and hasattr(self, "begun"):
            raise RuntimeError("the cache is full")
        self.begun = True
        return super().step(x, cache)


def test_a_second_sequence_that_raises():
    (failure,) = in_steps(Raising().step).failures
    assert failure.mistake == "cache_of_earlier_sequence"
    assert "RuntimeError: the cache is full" in failure.example


# ---------------------------------------------------------------- what a mask means


def either_alone(q, k, v, mask=None):
    cells = past_of(q, k)
    if mask is not None:
        cells = mask.int() + cells.int() == 1  # of 0 and -inf too
    return scores_of(q, k).masked_fill(~cells, torch.finfo(q.dtype).min).softmax(-1) @ v


def test_numbers_that_are_not_added_are_no_additive_mask():
    report = diagnose(either_alone)
    assert report.mistakes == ["closed_key_reaches_output"]
    assert "what the mask means: True = may attend; if not, say mask='blocked'" in report.assumed


def closing(closed):
    def fn(q, k, v, mask=None):
        scores = scores_of(q, k)
        return (scores if mask is None else closed(scores, mask)).softmax(-1) @ v

    return fn


ADDITIVE = [
    lambda scores, mask: scores + mask,
    lambda scores, mask: scores.masked_fill(mask < -1e4, -math.inf),
    lambda scores, mask: scores.masked_fill(mask.isneginf(), -math.inf),
    lambda scores, mask: scores.masked_fill(~mask.isfinite(), -math.inf),
]


@pytest.mark.parametrize("closed", ADDITIVE)
def test_additive_masks_that_are_only_compared(closed):
    report = diagnose(closing(closed))
    assert report.ok, report
    assert "what the mask means: it is added, 0 or −inf" in report.assumed


def merging(axis):
    return closing(lambda s, mask: s.masked_fill(~mask.any(axis, keepdim=True), -math.inf))


def test_masks_that_are_merged_over_the_queries():
    report = diagnose(merging(-2))
    assert report.mistakes == []  # of masks for all queries alike nothing is merged
    assert "the mask's shape: B11S" in report.assumed
    assert any("say mask_shape='B1TS'" in note.text for note in report.notes)
    (failure,) = diagnose(merging(-2), mask_shape="B1TS").failures
    assert failure.name == "the queries' masks are merged"
    (failure,) = diagnose(merging(0), mask_shape="B1TS").failures
    assert failure.name == "the examples' masks are merged"
    assert "say mask_shape" not in "".join(n.text for n in diagnose(closing(ADDITIVE[0])).notes)


# ---------------------------------------------------------------- what was seen, and what assumed


def where_lengths_agree(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[-2] == k.shape[-2])


def with_a_prefix(q, k, v):
    cells = past_of(q, k) | (torch.arange(k.shape[-2]) < 2)
    return scores_of(q, k).masked_fill(~cells, -math.inf).softmax(-1) @ v


SEEN = {
    where_lengths_agree: "with 6 queries and 6 keys, queries attend to no later key; with 4 "
    "queries and 7 keys, queries attend to all later keys",
    with_a_prefix: "with 6 queries and 6 keys, queries attend to 1 of 15 later keys, query 0 to "
    "key 1 first; with 4 queries and 7 keys, queries attend to no later key",
}


@pytest.mark.parametrize("fn", SEEN)
def test_what_was_seen_is_said_before_what_is_assumed(fn):
    (failure,) = diagnose(fn).failures
    assert failure.likely.startswith(f"Seen: {SEEN[fn]}. As causal= is not said,")
    for said in (True, False):
        assert "Seen:" not in str(diagnose(fn, causal=said))


# ---------------------------------------------------------------- the first wrong row


def wrong_from(example, head, position):
    """Right before it, and ever more wrong from there on."""

    def fn(q, k, v):
        out = plain(q, k, v)
        B, H, T, _ = out.shape
        rows = [
            torch.arange(n).sub(first - 1).clamp(min=0)
            for n, first in zip((B, H, T), (example, head, position), strict=True)
        ]
        gain = rows[0][:, None, None] * rows[1][:, None] * rows[2]
        return out * (1.0 + 1e-2 * gain[..., None])

    return fn


@pytest.mark.parametrize("at", [(0, 0, 1), (1, 0, 2), (0, 2, 0), (1, 1, 1)])
def test_the_example_shows_the_first_wrong_row(at):
    (failure,) = diagnose(wrong_from(*at)).failures
    example, head, position = at
    assert f"; example {example}, head {head}, position {position}, channels" in failure.example
    actual, expected = failure.example.splitlines()[-2:]
    assert actual.partition("[")[2] != expected.partition("[")[2]


class Drifting(InPieces):
    """Right in the first piece; in later ones ever more wrong."""

    def joined(self, x, past):
        out, pair = super().joined(x, past)
        return out * (1.0 + 0.01 * (pair[0].shape[2] - 3) ** 2), pair


def test_the_first_wrong_piece_is_shown():
    (failure,) = diagnose(InPieces(), causal=True, step=Drifting().step).failures
    assert "example 0, position 3, channels" in failure.example


# ---------------------------------------------------------------- weights of three axes


class ByHead(nn.Module):
    """Matrices (H, C, d) or (C, H, d), and (H, d, C) of the output."""

    factor = 1.0

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
        return torch.einsum("bhtd,hdc->btc", plain(self.factor * q, k, v), self.wo)


class ByHeadUnscaled(ByHead):
    factor = math.sqrt(6)  # undoes the scale


@pytest.mark.parametrize("heads_first", [True, False])
def test_matrices_of_three_axes_are_read(heads_first):
    report = diagnose(ByHead(heads_first), heads=3)
    assert report.ok, report
    assert diagnose(ByHeadUnscaled(True), heads=3).mistakes == ["scale_missing"]


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
    (failure,) = diagnose(where_lengths_agree, causal=False).failures
    assert "in all with T != S." in failure.likely
