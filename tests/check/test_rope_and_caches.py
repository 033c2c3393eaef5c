"""``diagnose_rope``, RoPE within layers, caches, and what calls keep or leave as it was."""

import copy
import math
import random
from functools import partial

import numpy as np
import pytest
import torch
from planted import PLANTS
from planted.functions import causal, plain
from planted.functions import top_left_of_torch as top_left
from planted.rotations import angles, rotate_half
from planted.rotations import by_complex as neighbours
from planted.rotations import by_halves as halves
from subjects import (
    WITHOUT,
    Separate,
    broken,
    check_report,
    past_of,
    row,
    scores_of,
    sdpa,
    torch_layer,
    unscaled,
    where_lengths_agree,
    words_of,
)
from tables import for_each
from torch import nn

import attn_lib
from attn_check import assert_rope, diagnose, diagnose_rope

pytestmark = pytest.mark.usefixtures("one_thread")


# ---------------------------------------------------------------- RoPE that nobody mentioned


def rotary(base, turn=halves, scale=None):
    return attn_lib.MultiHeadAttention(24, 3, rotate=partial(turn, base=base), scale=scale)


MEANT = "Assumed - it is meant to have RoPE inside, with base {}, pairing {}$"
REPORTED = {
    "a base of 160000": row(
        rotary(160_000.0, neighbours), [], MEANT.format(160000, "neighbours"), arguments="x"
    ),
    "a mistake beside it": row(
        rotary(500_000.0, scale=1.0),
        ["scale_missing"],
        MEANT.format(500000, "halves"),
        arguments="x",
    ),
    "a base that nobody uses": row(
        rotary(777.0),
        [None],
        "no usual base fits; if there is, pass rope_base=",
        arguments="x",
    ),
    "the same, given": row(rotary(777.0), [], arguments="x", rope_base=777.0),
}


@pytest.mark.parametrize("name", REPORTED)
def test_rotations_within_a_layer(name):
    check_report(*REPORTED[name])


# ---------------------------------------------------------------- nothing is disturbed


def test_a_module_stays_as_it_is():
    layer = torch_layer(dropout=0.1)
    layer.out_proj.eval()  # a mode of its own within a module in training
    layer.in_proj_bias.requires_grad_(False)
    before = copy.deepcopy(layer.state_dict())
    assert diagnose(layer).ok
    modes = {name: part.training for name, part in layer.named_modules()}
    assert modes == {"": True, "out_proj": False}
    assert all(torch.equal(layer.state_dict()[name], value) for name, value in before.items())
    assert all(p.grad is None for p in layer.parameters())
    assert not layer.in_proj_bias.requires_grad
    assert layer.dropout == 0.1


def test_tensors_and_lists_that_a_function_holds_stay_as_they_are():
    gain, calls = torch.ones(1), []

    def fn(q, k, v):
        calls.append(len(calls))
        return sdpa(q * gain, k, v)

    assert diagnose(fn).ok
    assert torch.equal(gain, torch.ones(1))
    assert calls == []


def talking(q, k, v):
    print("nothing", torch.rand(1), random.random(), np.random.rand())  # noqa: S311
    return sdpa(q, k, v)


def test_random_state_modes_and_output_stay_as_they_are(capsys):
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        if states:
            diagnose(talking)
        states.append((torch.rand(2).tolist(), random.random(), np.random.rand()))  # noqa: S311
    assert states[0] == states[1]
    assert torch.get_default_dtype() == torch.float32
    assert capsys.readouterr() == ("", "")


def test_it_works_without_gradients_and_with_another_default_dtype():
    with torch.no_grad():
        assert diagnose(unscaled).mistakes == ["scale_missing"]
        assert "gradients to the projections" in words_of(diagnose(Separate()), "holds")
        assert not torch.is_grad_enabled()
    torch.set_default_dtype(torch.float64)
    try:
        assert diagnose(sdpa).ok
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_report_is_the_same_each_time():
    torch.manual_seed(1)
    report = str(diagnose(unscaled))
    torch.manual_seed(2)
    assert str(diagnose(unscaled)) == report


# ---------------------------------------------------------------- what calls keep


STALE = []


def mask_of_the_first_call(q, k):
    if not STALE:
        STALE.append(~past_of(q, k))
    return STALE[0]


def with_a_stale_mask(q, k, v):
    return scores_of(q, k).masked_fill(mask_of_the_first_call(q, k), -math.inf).softmax(-1) @ v


def test_what_a_global_name_keeps_is_found_and_left_alone():
    report = diagnose(with_a_stale_mask, causal=True, layout="BHTd")
    assert report.mistakes == ["causal_cached_length"]
    assert not STALE


@pytest.mark.parametrize("length", [3, 16])
def test_a_mask_that_is_too_short_is_named(length):
    (plant,) = (plant for plant in PLANTS if plant.name == "causal_cached_length-packed")
    layer = plant.build(0)
    layer(torch.randn(1, length, 24))  # it was called before
    assert diagnose(layer, causal=True).mistakes == ["causal_cached_length"]


def doubled_for_more_examples(q, k, v, seen=[]):  # noqa: B006
    seen.append(len(q))
    return plain(q * (1.0 if len(q) <= seen[0] else 2.0), k, v)


def test_what_depends_on_earlier_examples_is_not_called_a_length():
    fn = doubled_for_more_examples
    check_report(*row(fn, ["state_between_calls"], "5 examples", causal=False))


# ---------------------------------------------------------------- one sequence after another


class InPieces(Separate):
    """The cache is a pair of keys and values."""

    past = None

    def __init__(self, attend=causal):
        super().__init__(attend=attend)

    def step(self, x, cache):
        q, *pair = self.parts(x)
        if cache is not None:
            pair = [torch.cat(two, 2) for two in zip(cache, pair, strict=True)]
        return self.merged(self.attend(q, *pair)), tuple(pair)


class Keeping(InPieces):
    """The cache stays with the module, and is never emptied."""

    def step(self, x, cache):
        out, self.past = super().step(x, self.past)
        return out, True


class Emptied(Keeping):
    def step(self, x, cache):
        self.past = self.past if cache else None
        return super().step(x, cache)


class OfEqualBatch(Keeping):
    def step(self, x, cache):
        self.past = self.past if self.past and len(self.past[0]) == len(x) else None
        return super().step(x, cache)


LAYER, KEEPING = InPieces(), Keeping()


def with_a_list(x, pairs):
    out, pair = LAYER.step(x, pairs[-1] if pairs else None)
    pairs.append(pair)
    return out, pairs


def of_a_default(x, cache, pairs=[]):  # noqa: B006
    return with_a_list(x, pairs)


def through_a_helper(x, cache):
    return of_a_default(x, cache)


def of_a_global_module(x, cache):
    return KEEPING.step(x, cache)


def of_a_list_each(x, cache):
    return with_a_list(x, [] if cache is None else cache)


def test_a_module_that_kept_a_sequence_before_it_was_diagnosed():
    """With gradients, which copy.deepcopy refuses; it stays as it was."""
    layer = Keeping()
    layer.step(torch.randn(2, 3, 12), None)
    before = layer.past
    assert before[0].grad_fn is not None
    assert diagnose(layer, causal=True, step=layer.step).mistakes == EARLIER
    assert layer.past is before
    assert before[0].shape[2] == 3


class Raising(InPieces):
    def step(self, x, cache):
        self.past = cache
        if cache is None and hasattr(self, "begun"):
            raise RuntimeError("the cache is full")
        self.begun = True
        return super().step(x, cache)


# ---------------------------------------------------------------- steps


def of_the_latest(x, cache):
    out, pair = LAYER.step(x, cache)
    return out, tuple(part[:, :, -x.shape[1] :] for part in pair)


def drifting(x, cache):
    """Right in the first piece; in later ones ever more wrong."""
    out, pair = LAYER.step(x, cache)
    return out * (1.0 + 0.01 * (pair[0].shape[2] - 3) ** 2), pair


class KeysRestart(InPieces):
    """The keys of each piece turn by positions from 0 on, its queries by their own."""

    def step(self, x, cache):
        (q, k, v), seen = self.parts(x), 0 if cache is None else cache[0].shape[2]
        at = torch.arange(x.shape[1])
        q, pair = halves(q, at + seen), [halves(k, at), v]
        if cache is not None:
            pair = [torch.cat(two, 2) for two in zip(cache, pair, strict=True)]
        return self.merged(self.attend(q, *pair)), tuple(pair)

    def forward(self, x):
        return self.step(x, None)[0]


class Stepwise(InPieces):
    def forward(self, x, cache=None):
        return self.step(x, cache)


def step_of_a_function(q, k, v, cache):
    if cache is not None:
        k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
    return causal(q, k, v), (k, v)


def stepped(step, mistakes, *patterns, **options):
    layer = getattr(step, "__self__", step if isinstance(step, Stepwise) else LAYER)
    return row(layer, mistakes, *patterns, causal=True, step=step, **options)


NOT_CAUSAL = Stepwise(plain)
HELD, UNCHECKED = "Holds.*cache.*Not checked", "Not checked.*cache.*step="
OPEN = "Holds.*neither disturbs the other"
EARLIER = ["cache_of_earlier_sequence"]
SECOND = "as a second sequence, cache=None in its first call"
FIRST_WRONG = "Notes.*the first is wrong from the second's first call on"
STEPS = {
    "open at once": stepped(InPieces().step, [], OPEN),
    "a list each": stepped(of_a_list_each, [], OPEN),
    "one at a time": stepped(Emptied().step, [], FIRST_WRONG, WITHOUT.format("neither disturbs")),
    "a second one raises": stepped(Raising().step, EARLIER, "Error: the cache is full"),
    "kept for a batch": stepped(OfEqualBatch().step, EARLIER, SECOND),
    "kept by a default": stepped(through_a_helper, EARLIER, SECOND),
    "kept globally": row(KEEPING, EARLIER, SECOND, causal=True, step=of_a_global_module),
    # forms of mistakes
    "from the top left": stepped(
        InPieces(top_left).step, ["cache_mask"], "aligned at the first key"
    ),
    "not causal": stepped(InPieces(where_lengths_agree).step, ["cache_mask"], "has no causal mask"),
    "the latest": stepped(of_the_latest, ["cache_stale"], "keeps only the latest piece"),
    "keys restart": stepped(KeysRestart().step, ["rope_positions_restart"], rope_base=10000.0),
    # where steps are given
    "a module": stepped(Stepwise(), [], HELD, WITHOUT.format(UNCHECKED), arguments="x"),
    "not causal, so no steps": row(
        NOT_CAUSAL, [], "Not checked.*causal=True", arguments="x", causal=False, step=NOT_CAUSAL
    ),
    "no step": row(Stepwise(), [], UNCHECKED, causal=True),
    "a function": row(causal, [], HELD, causal=True, step=step_of_a_function),
    # what no known mistake explains
    "no cache": stepped(lambda x, cache: x, [None], r"must return \(out, cache\), got Tensor"),
    "an error": stepped(lambda x, cache: broken(x, x, x), [None], "Error: shape of nothing"),
    "None": stepped(lambda x, cache: (Separate()(x), None), [None], "returned None as the cache"),
    "a shape": stepped(lambda x, cache: (x[:, :1], cache), [None], "another shape"),
    "ever more wrong": stepped(drifting, [None], "example 0, position 3, channels"),
    "numbers": stepped(lambda x, cache: (x * 0.0 + 0.5, ()), [None], "differ from the whole"),
}


@pytest.mark.parametrize("name", STEPS)
def test_what_is_said_of_steps(name):
    check_report(*STEPS[name])
    assert KEEPING.past is None
    assert of_a_default.__defaults__ == ([],)


# ---------------------------------------------------------------- a rotation by itself


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
        self.register_buffer(
            "table", torch.cat([angles(torch.arange(length), d)] * 2, dim=-1).float()
        )
        self.keep, self.length = keep, None

    def forward(self, x):
        self.length = self.length if self.keep and self.length else x.shape[-2]
        table = self.table[: self.length]
        return x * table.cos() + rotate_half(x) * table.sin()


class Turning(nn.Module):
    def forward(self, xq, xk, offset=0):
        at = torch.arange(offset, offset + xq.shape[-2])
        return halves(xq, at), halves(xk, at)


@for_each(
    (positions_second, {}, ["layout is 'BTHd'"]),
    (lambda x: halves(x, torch.arange(x.shape[-2])), {}, ["layout is 'BHTd'"]),
    (lambda x, p: neighbours(x, p), {"rope_pairing": None}, ["'neighbours'", "'BHTd'"]),
    (of_tables, {"rope_base": 500.0}, ["'BHTd'", "(B, T, d)"]),
    (of_longer_tables, {}, ["'BHTd'", "tables"]),
    (of_complex, {"rope_pairing": "neighbours"}, ["'BTHd'", "(T, d/2)"]),
    (by_rows, {}, ["'BHTd'"]),
    (Turning(), {}, ["'BHTd'"]),
    (lambda x: halves(x, torch.arange(x.shape[-2])), {"layout": "Td"}, []),
    (Fixed(20), {"d_k": 20}, ["'BHTd'"]),
    (Fixed(8, 32), {}, ["'BHTd'", "d_k = 8"]),
)
def test_a_right_rotation_is_passed_and_what_was_found_out_is_assumed(fn, options, assumed):
    report = diagnose_rope(fn, **options)
    assert report.ok, report
    assert len(report.assumed) == len(assumed)
    assert all(words in text for words, text in zip(assumed, report.assumed, strict=True))
    too_long = "70 positions, shape (2, 3, 70, 8): RuntimeError"
    assert (too_long in words_of(report, "unchecked")) == ("d_k = 8" in assumed)


def mixed(x):
    theta = angles(torch.arange(x.shape[-2]), x.shape[-1]).repeat_interleave(2, dim=-1).to(x.dtype)
    return x * theta.cos() + rotate_half(x) * theta.sin()


def partly_turned(x, positions):
    return torch.cat([halves(x[..., :2], positions), x[..., 2:]], dim=-1)


BOTH = ["rope_pairing", "rope_positions_restart"]


def in_place(q, k, positions):
    q.copy_(halves(q, positions))
    return q, halves(k, positions)


@for_each(
    (mixed, {}, ["rope_pairing"], "order of neighbours (2i, 2i + 1)"),
    (lambda x, p: halves(x, p, 7e5), {}, ["rope_base"], "or pass rope_base=700000"),
    (lambda x, p: halves(x, p, 100.0), {}, ["rope_base"], "i / d instead of 2 i / d"),
    (lambda x, p: halves(x, p, 1e-4), {}, ["rope_base"], "base^(-2i / d) is meant"),
    (lambda x, p: halves(x, p + 1), {}, [None], "positions 1, 2, ..."),
    (lambda x, p: neighbours(x, p - p[0]), {}, BOTH, "where halves (i, i + d/2) are meant"),
    (lambda x, p: halves(x, -p, 777.0), {}, ["rope_direction", "rope_base"], "direction"),
    (positions_second, {"layout": "BHTd"}, ["rope_over_heads"], "or pass layout='BTHd'"),
    (Fixed(8, keep=True), {}, ["state_between_calls"], "something is kept"),
    (in_place, {}, ["inplace_arguments"], "changes a tensor that was passed"),
    (lambda x, p: 1.5 * halves(x, p), {}, [None], "length of a row changes by up to 50 %"),
    (lambda x, p: halves(x, 3 * p + 2), {}, [None], "Position 0 is changed"),
    (lambda x, p: x[..., :4], {}, [None], "has the shape"),
    (partly_turned, {"rope_pairing": "neighbours"}, [None], "No known mistake"),
    (lambda x, p: halves(x, p / 8), {}, [None], "No known mistake"),
    (lambda q, k: (Turning()(q, k)[0], k.flip(-1)), {}, [None], "No known mistake"),
)
def test_what_is_wrong_is_named(fn, options, mistakes, words):
    report = diagnose_rope(fn, **options)
    assert report.mistakes == mistakes, report
    assert words in report.failures[0].likely + report.failures[0].repair


@for_each(
    (Turning, {}, TypeError, "an instance"),
    (halves, {"rope_pairing": "other"}, ValueError, "'neighbours'"),
    (halves, {"layout": "BSHD"}, ValueError, "'BTHd'"),
    (halves, {"d_k": 7}, ValueError, "d_k must be even"),
    (
        lambda q, k: broken(q, k, k),
        {},
        ValueError,
        r"first, 4 .*\(2, 3, 4, 8\): RuntimeError: sh",
    ),
    (lambda q, k, rotary: q, {}, ValueError, "needs rotary.*wrap it"),
    (lambda q, k, cos: q, {}, ValueError, "cos and sin together"),
    (lambda q, k: q, {}, ValueError, "returns one tensor"),
    (lambda q: "q", {}, ValueError, "returns str"),
)
def test_what_cannot_be_called_is_an_error(fn, options, error, words):
    with pytest.raises(error, match=words):
        diagnose_rope(fn, **options)


def test_asserting_is_one_line():
    assert assert_rope(positions_second) is None
    with pytest.raises(AssertionError, match=r"(?s)takes the heads.*Repair") as caught:
        assert_rope(positions_second, layout="BHTd")
    assert caught.traceback[-1].frame.f_locals["__tracebackhide__"]
