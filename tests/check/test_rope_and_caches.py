"""``diagnose_rope``, RoPE within layers, caches, and what calls keep or leave as it was."""

import copy
import math
import random
import re

import numpy as np
import pytest
import torch
from subjects import (
    Separate,
    broken,
    causal,
    past_of,
    plain,
    scores_of,
    sdpa,
    top_left,
    torch_layer,
    unscaled,
    where_lengths_agree,
    words_of,
)
from torch import nn

from attn_check import assert_rope, diagnose, diagnose_rope

pytestmark = pytest.mark.usefixtures("one_thread")


# ---------------------------------------------------------------- RoPE that nobody mentioned


class Rotary(Separate):
    """Halves, or neighbours; the queries are not scaled if ``scaled`` is not."""

    def __init__(self, base, pairing="half", scaled=True, width=24):
        super().__init__(width)
        self.base, self.pairing, self.scaled = base, pairing, scaled

    def turned(self, x):
        turn = halves if self.pairing == "half" else neighbours
        return turn(x, torch.arange(x.shape[-2]), self.base).to(x.dtype)

    def attend(self, q, k, v):
        q, k = self.turned(q), self.turned(k)
        return plain(q if self.scaled else q * q.shape[-1] ** 0.5, k, v)


@pytest.mark.parametrize("base", [10_000.0, 500_000.0, 1_000_000.0, 100_000.0, 160_000.0])
@pytest.mark.parametrize("pairing", ["half", "neighbours"])
def test_usual_bases_are_tried_and_said(base, pairing):
    report = diagnose(Rotary(base, pairing))
    assert report.ok, report
    words = {"half": "halves", "neighbours": "neighbours"}[pairing]
    meant = f"it is meant to have RoPE inside, with base {base:.0f}, pairing {words}"
    assert report.assumed == [meant]


@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
def test_a_mistake_beside_rope_that_nobody_mentioned(base):
    report = diagnose(Rotary(base, scaled=False))
    assert report.mistakes == ["scale_missing"]
    assert (
        f"it is meant to have RoPE inside, with base {base:.0f}, pairing halves" in report.assumed
    )


def test_a_base_that_nobody_uses_is_asked_for():
    (failure,) = diagnose(Rotary(777.0)).failures
    assert failure.mistake is None
    assert "no usual base fits; if there is, pass rope_base=" in failure.likely
    assert diagnose(Rotary(777.0), rope_base=777.0).ok


# ---------------------------------------------------------------- nothing is disturbed


def test_a_module_stays_as_it_is():
    layer = torch_layer(dropout=0.1)
    layer.out_proj.eval()  # a mode of its own within a module in training
    layer.in_proj_bias.requires_grad_(False)
    before = copy.deepcopy(layer.state_dict())
    diagnose(layer)
    modes = {name: part.training for name, part in layer.named_modules()}
    assert modes == {"": True, "out_proj": False}
    assert all(torch.equal(layer.state_dict()[name], value) for name, value in before.items())
    assert all(p.grad is None for p in layer.parameters())
    assert not layer.in_proj_bias.requires_grad
    assert layer.dropout == 0.1


def test_tensors_that_a_function_holds_stay_as_they_are():
    gain, layer = torch.ones(1), nn.Linear(8, 8)
    before = layer.weight.clone()

    def fn(q, k, v):
        return sdpa(q * gain, k, v)

    diagnose(fn)
    assert torch.equal(gain, torch.ones(1))
    assert torch.equal(layer.weight, before)


@pytest.mark.parametrize("make", [lambda: unscaled, torch_layer], ids=["function", "module"])
def test_random_state_modes_and_output_stay_as_they_are(make, capsys):
    fn, states = make(), []
    for _ in range(2):
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        if states:
            diagnose(fn)
        states.append((torch.rand(2).tolist(), random.random(), np.random.rand()))  # noqa: S311
    assert states[0] == states[1]
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32
    assert capsys.readouterr() == ("", "")


def test_it_works_without_gradients_and_with_another_default_dtype():
    with torch.no_grad():
        assert diagnose(unscaled).mistakes == ["scale_missing"]
        assert not torch.is_grad_enabled()
    torch.set_default_dtype(torch.float64)
    try:
        assert diagnose(sdpa).ok
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_report_is_the_same_each_time():
    reports = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        reports.append(str(diagnose(unscaled)))
    assert reports[0] == reports[1]


# ---------------------------------------------------------------- what is kept


STALE = []


TABLE = {"mask": None}


def kept_mask(T, S):
    if TABLE["mask"] is None:
        TABLE["mask"] = torch.ones(T, S, dtype=torch.bool).triu(S - T + 1)
    return TABLE["mask"]


def in_a_list(q, k, v):
    if not STALE:
        STALE.append(~past_of(q, k))
    return scores_of(q, k).masked_fill(STALE[0], -math.inf).softmax(-1) @ v


def in_a_table(q, k, v):
    mask, scores = kept_mask(q.shape[-2], k.shape[-2]), scores_of(q, k)
    T, S = (min(n) for n in zip(mask.shape, scores.shape[-2:], strict=True))
    closed = torch.zeros(scores.shape[-2:], dtype=torch.bool)
    closed[:T, :S] = mask[:T, :S]
    return scores.masked_fill(closed, -math.inf).softmax(-1) @ v


@pytest.mark.parametrize("fn", [in_a_list, in_a_table])
def test_what_a_global_name_keeps_is_found_and_left_alone(fn):
    assert diagnose(fn, causal=True, layout="BHTd").mistakes == ["causal_cached_length"]
    assert not STALE
    assert TABLE == {"mask": None}


LOG = []


def counted(q, k, v):
    LOG.append(len(LOG))
    return plain(q, k, v)


def test_a_global_name_that_changes_nothing_is_no_mistake():
    report = diagnose(counted)
    assert report.ok, report
    assert not LOG


class Stale(Separate):
    """The triangle of the first call; beyond it everything is open."""

    def __init__(self):
        super().__init__()
        self.closed = None

    def attend(self, q, k, v):
        T = q.shape[-2]
        if self.closed is None:
            self.closed = torch.ones(T, T, dtype=torch.bool).triu(1)
        closed, n = torch.zeros(T, T, dtype=torch.bool), min(T, len(self.closed))
        closed[:n, :n] = self.closed[:n, :n]
        return scores_of(q, k).masked_fill(closed, -math.inf).softmax(-1) @ v


@pytest.mark.parametrize("length", [0, 2, 3, 4, 8, 16])
def test_a_mask_that_is_too_short_is_named(length):
    layer = Stale()
    if length:  # it was called before
        layer(torch.randn(1, length, 12))
    assert diagnose(layer, causal=True).mistakes == ["causal_cached_length"]


def more_examples():
    seen = []

    def fn(q, k, v):
        seen.append(q.shape[0])
        return plain(q * (1.0 if q.shape[0] <= seen[0] else 2.0), k, v)

    return fn


def test_what_depends_on_earlier_examples_is_not_called_a_length():
    report = diagnose(more_examples(), causal=False)
    assert report.mistakes == ["state_between_calls"]
    assert "5 examples" in report.failures[0].example


# ---------------------------------------------------------------- one sequence after another


class InPieces(Separate):
    """The cache is a pair of keys and values."""

    past = None

    def __init__(self, attend=causal):
        super().__init__(attend=attend)

    def joined(self, x, past):
        q, *pair = self.parts(x)
        if past is not None:
            pair = [torch.cat(two, 2) for two in zip(past, pair, strict=True)]
        return self.merged(self.attend(q, *pair)), tuple(pair)

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


EARLIER = {
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


@pytest.mark.parametrize("name", EARLIER)
def test_a_cache_of_an_earlier_sequence(name):
    (failure,) = in_steps(EARLIER[name]()).failures
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


# ---------------------------------------------------------------- the first wrong row


class Drifting(InPieces):
    """Right in the first piece; in later ones ever more wrong."""

    def joined(self, x, past):
        out, pair = super().joined(x, past)
        return out * (1.0 + 0.01 * (pair[0].shape[2] - 3) ** 2), pair


def test_the_first_wrong_piece_is_shown():
    (failure,) = diagnose(InPieces(), causal=True, step=Drifting().step).failures
    assert "example 0, position 3, channels" in failure.example


# ---------------------------------------------------------------- which form a mistake has


@pytest.mark.parametrize(
    ("attend", "words"),
    [(top_left, "aligned at the first key"), (where_lengths_agree, "has no causal mask")],
)
def test_which_mask_a_cache_has(attend, words):
    layer = InPieces(attend)
    (failure,) = diagnose(layer, causal=True, step=layer.step).failures
    assert failure.mistake == "cache_mask"
    assert words in failure.likely


class Stepwise(InPieces):
    def forward(self, x, cache=None):
        return self.joined(x, cache)


def test_steps_are_checked_where_they_are_given():
    layer = Stepwise()
    report = diagnose(layer, arguments="x", causal=True, step=layer)
    assert report.ok, report
    assert "cache" in words_of(report, "holds")
    assert "cache" not in words_of(report, "unchecked")
    assert "cache" in words_of(diagnose(layer, causal=True), "unchecked")


@pytest.mark.parametrize(
    ("step", "words"),
    [(lambda x, cache: x, "cache"), (lambda x, cache: broken(x, x, x), "shape of nothing")],
    ids=["no cache", "raises"],
)
def test_steps_that_cannot_be_taken_are_said(step, words):
    report = diagnose(Stepwise(), arguments="x", causal=True, step=step)
    assert words in str(report)
    assert not report.ok or words in words_of(report, "unchecked")


# ---------------------------------------------------------------- a rotation by itself


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat([-b, a], dim=-1)


def angles(T, d, base=10_000.0):
    return torch.arange(T)[:, None] / base ** (torch.arange(0, d, 2) / d)


def halves(x, at, base=10_000.0, join=lambda a: torch.cat([a, a], dim=-1)):
    theta = join(at[:, None] / base ** (torch.arange(0, x.shape[-1], 2) / x.shape[-1]))
    return x * theta.cos() + rotate_half(x) * theta.sin()


def neighbours(x, at, base=10_000.0):
    theta = at[:, None] / base ** (torch.arange(0, x.shape[-1], 2) / x.shape[-1])
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
    ("fn", "options", "assumed"),
    [
        (positions_second, {}, ["layout is 'BTHd'"]),
        (positions_second, {"layout": "BTHd"}, []),
        (lambda x: halves(x, torch.arange(x.shape[-2])), {}, ["layout is 'BHTd'"]),
        (lambda x, p: neighbours(x, p), {"rope_pairing": None}, ["'neighbours'", "'BHTd'"]),
        (of_tables, {"rope_base": 500.0}, ["'BHTd'", "(B, T, d)"]),
        (of_longer_tables, {}, ["'BHTd'", "tables"]),
        (of_complex, {"rope_pairing": "neighbours"}, ["'BTHd'", "(T, d/2)"]),
        (by_rows, {}, ["'BHTd'"]),
        (Fixed(), {}, ["'BHTd'", "d_k = 16"]),
        (Fixed(20), {"d_k": 20}, ["'BHTd'"]),
        (Fixed(8, 32), {}, ["'BHTd'", "d_k = 8"]),
    ],
)
def test_a_right_rotation_is_passed_and_what_was_found_out_is_said(fn, options, assumed):
    report = diagnose_rope(fn, **options)
    assert report.ok, report
    assert len(report.assumed) == len(assumed)
    assert all(words in text for words, text in zip(assumed, report.assumed, strict=True))


def test_what_could_not_be_called_is_said():
    report = diagnose_rope(Fixed(8, 32))
    assert "70 positions, shape (2, 3, 70, 8): RuntimeError" in report.unchecked[0]


def mixed(x):
    return halves(x, torch.arange(x.shape[-2]), join=lambda a: a.repeat_interleave(2, dim=-1))


@pytest.mark.parametrize(
    ("fn", "options", "mistakes", "words"),
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
def test_what_is_wrong_is_named(fn, options, mistakes, words):
    report = diagnose_rope(fn, **options)
    assert report.mistakes == mistakes, report
    assert words in report.failures[0].likely


@pytest.mark.parametrize("change", [lambda x: x * float("nan"), torch.rand_like])
def test_only_what_is_kept_is_called_so(change):
    (failure,) = diagnose_rope(lambda x, p: change(halves(x, p))).failures
    assert failure.mistake is None
    assert "No known mistake" in failure.likely


def test_what_was_meant_is_in_the_repair():
    (failure,) = diagnose_rope(positions_second, layout="BHTd").failures
    assert "or pass layout='BTHd'" in failure.repair
    (failure,) = diagnose_rope(lambda x, p: halves(x, p, 500.0)).failures
    assert "or pass rope_base=500" in failure.repair


def test_the_example_names_the_entry_and_its_rows_differ():
    (failure,) = diagnose_rope(lambda x, p: halves(x, p, 500.0)).failures
    place = r"q, example \d, head \d, position \d, channels \d to \d \(all counted from 0\)"
    assert re.search(place, failure.example)
    (_, actual), (_, expected) = re.findall(r"(actual|expected) +\[(.*?)\]", failure.example)
    assert actual != expected


def raises(q, k):
    raise RuntimeError("boom")


@pytest.mark.parametrize(
    ("fn", "options", "words"),
    [
        (raises, {}, r"the first, 4 positions, shape \(2, 3, 4, 8\): RuntimeError: boom"),
        (lambda q, k, rotary: q, {}, "needs rotary.*wrap it"),
        (lambda q, k, cos: q, {}, "cos and sin together"),
        (lambda q, k: q, {}, "returns one tensor"),
        (lambda q: "q", {}, "returns str"),
        (positions_second, {"d_k": 7}, "d_k must be even"),
    ],
)
def test_what_cannot_be_called_is_an_error(fn, options, words):
    with pytest.raises(ValueError, match=words):
        diagnose_rope(fn, **options)


def test_asserting_is_one_line():
    assert assert_rope(positions_second) is None
    with pytest.raises(AssertionError, match=r"(?s)takes the heads.*Repair") as caught:
        assert_rope(positions_second, layout="BHTd")
    assert caught.traceback[-1].frame.f_locals["__tracebackhide__"]


def test_rope_has_a_diagnosis_of_its_own():
    from attn_lib.positions import apply_rope

    def rotate(q, k, positions):
        return apply_rope(q, positions), apply_rope(k, positions)

    assert diagnose_rope(rotate).ok
    assert diagnose_rope(lambda x, positions: apply_rope(x, positions)).ok
    assert diagnose_rope(lambda x, positions: apply_rope(x, -positions)).mistakes == [
        "rope_direction"
    ]
