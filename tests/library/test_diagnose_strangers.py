"""What a stranger found: reports that said something false, or kept something silent."""

import inspect
import math

import pytest
import torch
import torch.nn.functional as F
from subjects import Separate, scores_of, words_of
from torch import nn

from attn_lib import diagnose

pytestmark = pytest.mark.usefixtures("one_thread")


# ---------------------------------------------------------------- parameters that are not passed


def attending(name, change):
    """A function of q, k, v and one more parameter, with that name, which changes the scores."""

    def fn(*args, **given):
        q, k, v, *more = signature.bind(*args, **given).args
        scores = scores_of(q, k)
        return (change(scores, *more) if more and more[0] is not None else scores).softmax(-1) @ v

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    given = [inspect.Parameter(role, kind) for role in "qkv"]
    signature = inspect.Signature([*given, inspect.Parameter(name, kind, default=None)])
    fn.__signature__ = signature
    return fn


def times(scores, factor):
    return scores * factor


@pytest.mark.parametrize(
    "name", ["memory_pad", "pad", "padding", "is_pad", "valid", "memory_key_padding_mask"]
)
def test_other_names_of_masks(name):
    fn = attending(name, lambda scores, mask: scores.masked_fill(~mask, -1.0))
    assert diagnose(fn, mask="attend").mistakes == ["mask_small_fill"]


@pytest.mark.parametrize("name", ["bias", "attn_bias", "lengths", "context_lengths", "extra"])
def test_what_is_never_passed_is_said(name):
    report = diagnose(attending(name, times))
    assert f"parameters that were never passed: {name};" in words_of(report, "unchecked")
    wrong = diagnose(lambda q, k, v, extra=None: (q @ k.mT).softmax(-1) @ v)
    assert "never passed: extra;" in words_of(wrong, "unchecked")


def test_what_is_passed_is_not_said_to_be_left():
    fn = attending("extra", times)
    for adapter in ({"options": {"extra": 1.0}}, {"arguments": "q, k, v, extra=mask"}):
        assert "never passed" not in words_of(diagnose(fn, **adapter), "unchecked")
    assert "never passed" not in words_of(diagnose(Separate()), "unchecked")
    said = words_of(diagnose(nn.MultiheadAttention(12, 3, batch_first=True)), "unchecked")
    assert "need_weights" in said
    assert "attn_mask" in said


# ---------------------------------------------------------------- which form a mistake has


class TiledValues(Separate):
    tiled = 1

    def __init__(self):
        super().__init__(32, 4, 2)

    def attend(self, q, *pair):
        wide = [x.repeat_interleave(2, 1) for x in pair]
        wide[self.tiled] = pair[self.tiled].repeat(1, 2, 1, 1)
        return scores_of(q, wide[0]).softmax(-1) @ wide[1]


class TiledKeys(TiledValues):
    tiled = 0


@pytest.mark.parametrize(("layer", "role"), [(TiledValues, "v"), (TiledKeys, "k")])
def test_which_heads_are_tiled(layer, role):
    (failure,) = diagnose(layer()).failures
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


class Cached(Separate):
    offset = staticmethod(lambda T, S: 0)

    def forward(self, x, cache=None):
        q, k, v = self.parts(x)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        out = self.merged(F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask(q, k)))
        return out if cache is None and not self.stepping else (out, (k, v))

    stepping = False

    def step(self, x, cache):
        self.stepping = True
        out = self(x, cache)
        self.stepping = False
        return out

    def mask(self, q, k):
        T, S = q.shape[-2], k.shape[-2]
        return torch.ones(T, S, dtype=torch.bool).tril(self.offset(T, S))


class NoMaskLater(Cached):
    offset = staticmethod(lambda T, S: 0 if T == S else S)


@pytest.mark.parametrize(
    ("layer", "words"), [(Cached, "aligned at the first key"), (NoMaskLater, "has no causal mask")]
)
def test_which_mask_a_cache_has(layer, words):
    mine = layer()
    (failure,) = diagnose(mine, causal=True, step=mine.step).failures
    assert failure.mistake == "cache_mask"
    assert words in failure.likely


# ---------------------------------------------------------------- rows without a key


class TiledValuesWithMask(TiledValues):
    def forward(self, x, mask=None):
        q, k, v = self.parts(x)
        scores = q @ k.repeat_interleave(2, 1).mT / math.sqrt(self.d)
        if mask is not None:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        return self.merged(scores.softmax(-1) @ v.repeat(1, 2, 1, 1))


class FoldedMask(Separate):
    """Heads are folded into the batch, and the masks of the examples are tiled."""

    def forward(self, x, mask=None):
        q, k, v = (part.flatten(0, 1) for part in self.parts(x))
        scores = q @ k.mT / math.sqrt(self.d)
        if mask is not None:
            closed = ~mask.repeat(self.num_heads, 1, 1)
            scores = scores.masked_fill(closed, torch.finfo(scores.dtype).min)
        return self.merged((scores.softmax(-1) @ v).unflatten(0, (len(x), -1)))


def test_the_note_about_empty_rows_is_about_this_function():
    report = diagnose(TiledValuesWithMask())
    assert report.mistakes == ["kv_heads_tiled"]
    (note,) = report.notes
    assert "attends to all positions equally" in note.text
    folded = diagnose(FoldedMask(), mask="attend", mask_shape="BTS", causal=False)
    assert not folded.ok
    assert not any("equally" in note.text for note in folded.notes)


# ---------------------------------------------------------------- how far the others agree


def with_epsilon(q, k, v):
    powers = (scores_of(q, k) - scores_of(q, k).amax(-1, keepdim=True)).exp()
    return powers / (powers.sum(-1, keepdim=True) + 1e-3) @ v


def clamped(q, k, v):
    return scores_of(q, k).clamp(-20, 20).softmax(-1) @ v


def test_the_bound_is_below_the_error():
    (failure,) = diagnose(with_epsilon).failures
    assert "it agrees with it within" not in failure.likely
    assert "off by at most" in failure.likely
    assert "is not counted, as rounding may give as much there: scores up to" in failure.likely


def test_few_calls_that_differ_are_named():
    (failure,) = diagnose(clamped).failures
    before, _, after = failure.likely.partition("it agrees with it")
    assert "calls, these: scores up to about 300" in before
    assert "5 positions" in after


# ---------------------------------------------------------------- packed weights and a mask


class PackedByHead(Separate):
    fill = -10.0

    def __init__(self):
        super().__init__(24, 3, 3)
        del self.k_proj, self.v_proj
        self.to_kv = nn.Linear(24, 48)

    def forward(self, x, memory, memory_pad=None):
        q = self.heads_of(self.q_proj(x))
        k, v = self.to_kv(memory).unflatten(-1, (3, 2, 8)).permute(3, 0, 2, 1, 4)
        scores = q @ k.mT / math.sqrt(self.d)
        if memory_pad is not None:
            scores = self.closed(scores, memory_pad[:, None, None])
        return self.merged(scores.softmax(-1) @ v)

    def closed(self, scores, pad):
        return scores + pad.to(scores.dtype) * -10.0


class PackedNothingNamed(PackedByHead):
    def closed(self, scores, pad):
        return scores + 0.37 * pad.to(scores.dtype) * scores.sum(-1, keepdim=True)


@pytest.mark.parametrize("said", [{}, {"arguments": "x, memory=context, memory_pad=mask"}])
def test_a_mask_that_closes_little_spoils_no_packed_weights(said):
    report = diagnose(PackedByHead(), **said)
    assert report.mistakes == ["mask_small_fill"], report
    assert "what the mask means: True = closed; if not, say mask='attend'" in report.assumed
    assert any("head by head" in text for text in report.assumed)
    unknown = diagnose(PackedNothingNamed(), **said)
    assert any("head by head" in text for text in unknown.assumed)


# ---------------------------------------------------------------- dropout that is drawn by hand


class OwnDropout(Separate):
    p, divided = 0.2, True

    def __init__(self):
        super().__init__(16, 4)

    def kept(self, a):
        return torch.rand_like(a) > self.p

    def attend(self, q, k, v):
        a = scores_of(q, k).softmax(-1)
        if self.training:
            a = a * self.kept(a)
            a = a / (1 - self.p) if self.divided else a
        return a @ v


class ByBernoulli(OwnDropout):
    def kept(self, a):
        return torch.bernoulli(torch.full_like(a, 1 - self.p))


class NotDivided(OwnDropout):
    divided = False


@pytest.mark.parametrize("layer", [OwnDropout, ByBernoulli])
def test_dropout_of_its_own_is_right(layer):
    report = diagnose(layer())
    assert report.ok, report
    assert "the mean of 400 such calls is that of evaluation mode" in words_of(report, "unchecked")
    assert not any("switched off, equals" in text for text in report.holds)


def test_dropout_of_its_own_that_is_not_divided():
    (failure,) = diagnose(NotDivided()).failures
    assert failure.name == "training and evaluation differ on average"
    assert "0.80 times" in failure.likely
    assert "switched off" not in failure.likely
