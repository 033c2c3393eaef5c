"""What ``diagnose`` says of a function of q, k and v, what it cannot call, and the command line."""

import inspect
import itertools
import json
import math
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from planted.functions import causal, plain, windowed
from planted.functions import masked_and_causal as by_torch
from planted.functions import top_left_of_torch as top_left
from planted.plants import edited
from subjects import (
    WITHOUT,
    Separate,
    broken,
    check_report,
    closing,
    filled,
    past_of,
    row,
    scores_of,
    sdpa,
    torch_layer,
    unscaled,
    unscaled_causal,
    words_of,
)
from tables import for_each
from torch import nn

import attn_check
import attn_lib
import attn_lib.positions
from attn_check import Report, __main__, assert_attention, diagnose
from attn_check.calls import shaped
from attn_check.mistakes import FORMS, MISTAKES
from attn_check.reference import STEPS
from attn_lib import causal_mask

pytestmark = pytest.mark.usefixtures("one_thread")


# ---------------------------------------------------------------- the table


def test_each_row_of_the_table_is_whole():
    assert FORMS.keys() <= MISTAKES.keys()
    for known in MISTAKES.values():
        assert all([known.name, known.likely, known.look_for, known.repair])
        assert known.source.startswith("https://")
        assert {step for form in known.forms for step in form} <= STEPS.keys()
        numbers = {int(number) for number in known.words}
        assert not known.forms or numbers <= set(range(1, len(known.forms)))


FORMULA = re.compile(r"(?:\w+ )?\b\w+ (?:[+·%]|//) (?:\([^()]*\)|\w+)(?: [+−] \w+)*")


def stated() -> dict[str, bool]:
    """The formulas in sentences of reports, each with the word before it, and whether it holds."""
    h, i, t, c, seen, start, B, H, H_kv, d, T, S = 4, 2, 3, 1, 5, 3, 5, 6, 2, 7, 8, 10
    piece, slices = causal_mask(4, seen + 4), causal_mask(T, S)[start:]
    split, interleaved = torch.arange(H * d).view(H, d), torch.arange(H * d).view(d, H)
    group = h // (H / H_kv) == torch.arange(H_kv).repeat_interleave(H // H_kv)[h]
    found = {
        "t + 1": t + 1 == causal_mask(9, 9)[t].sum(),
        "position seen + i": seen + i == piece[i].nonzero().max(),
        "to seen + i + 1": seen + i + 1 == piece[i].sum(),
        "key start + i + S − T": start + i + S - T == slices[i].nonzero().max(),
        "b · H + h": 2 * H + h == torch.arange(B * H).view(B, H)[2, h],
        "h + H": h + H == interleaved[1, h],
        "h + 2H": h + 2 * H == interleaved[2, h],
        "channel c · H + h": split.T.flatten()[c * H + h] == split[h, c],
        "where h · d + c": split.flatten()[h * d + c] == split[h, c],
        "head h % H_kv": h % H_kv == torch.arange(H_kv).repeat(H // H_kv)[h],
    }
    found |= {f"{word} h // (H / H_kv)": group for word in ("head", "where")}
    return {formula: bool(holds) for formula, holds in found.items()}


def test_formulas_in_sentences_of_reports_hold():
    folder = Path(attn_check.__file__).parent
    texts = "".join((folder / f"{name}.json").read_text() for name in ("audit", "mistakes"))
    sentences = re.findall(r'"([^"\n]*\.)"', texts)
    found = {formula for text in sentences for formula in FORMULA.findall(text)}
    assert dict.fromkeys(found, True) == stated()


# ---------------------------------------------------------------- what cannot be


def unnamed():
    layer = nn.Module()
    layer.one, layer.two = nn.Linear(12, 36), nn.Linear(12, 12)
    layer.forward = lambda x: layer.two(layer.one(x)[..., :12])
    return layer


def needs_a_mask(q, k, v, mask):
    return 1 / 0


def forgot(q, k, v):
    return (q @ k.mT / maths.sqrt(q.shape[-1])).softmax(-1) @ v  # noqa: F821


WRONG = {
    "layout": (sdpa, {"layout": "BHSD"}, "BHTd.*BTHd.*'BHSD'"),
    "mask": (sdpa, {"mask_means": "true"}, "attend.*blocked.*additive.*'true'"),
    "mask shape": (sdpa, {"mask_shape": "BLS"}, "B1TS.*'BLS'"),
    "window": (sdpa, {"window": 0}, "window must be at least 1, got 0"),
    "window alone": (sdpa, {"window": 7, "causal": False}, "^window= is of causal queries: pass "),
    "causal": (sdpa, {"causal": "yes"}, "top_left.*'yes'"),
    "norm": (sdpa, {"qk_norm": "batch"}, "rms.*'batch'"),
    "base": (sdpa, {"rope_base": True}, "^rope_base must be a number above 1, as 1"),
    "odd RoPE": (sdpa, {"rope_dims": 3, "rope_base": 1e4}, "^rope_dims must be even, and 2 or m"),
    "RoPE of no base": (sdpa, {"rope_dims": 4}, "rope_dims= is of a rotation: pass rope_base="),
    "no such norm": (Separate(), {"prenorm": "ln"}, "a part of the module, q_proj, .*; got 'ln'$"),
    "heads": (sdpa, {"heads": 4, "kv_heads": 3}, "a multiple of kv_heads, got 4 and 3"),
    "heads are contradicted": (torch_layer(), {"heads": 4}, "heads"),
    "key heads are contradicted": (Separate(16, 4, 2), {"kv_heads": 4}, "contradicts"),
    "no such part": (unnamed(), {"heads": 2, "projections": {"q": "three"}}, "there are one"),
    "no names of projections": (unnamed(), {"heads": 2}, "projections="),
    "it raises": (broken, {}, "the first call gave: RuntimeError: shape of nothing$"),
    "with a mask too": (needs_a_mask, {}, "with a mask or without one.*ZeroDivisionError"),
    "a name is not known": (
        forgot,
        {},
        r"^fn fails whatever it is given, mend that first: Name.*maths",
    ),
    "an unknown role": (sdpa, {"arguments": "q, k, w"}, "'w'"),
    "names without a role": (lambda a, b: a, {}, "arguments="),
    "x without a module": (lambda x: x, {}, "module="),
    "no inputs": (torch.relu, {}, "accepts no inputs"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_is_an_error(name):
    fn, adapter, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        diagnose(fn, **adapter)


ANSWERS = iter([sdpa])  # not inside the function, whose own state is put back before each call


def test_a_function_that_answers_only_once_is_an_error():
    def once(q, k, v):
        return next(ANSWERS, broken)(q, k, v)

    with pytest.raises(ValueError, match=r"^every call of fn raises; the first: RuntimeError: "):
        diagnose(once, layout="BHTd")


@for_each(("BS", "closes keys for all queries"), ("TS", "is the same for all examples"))
def test_no_cell_of_a_mask_is_lost_in_another_shape(shape, message):
    mask = torch.tensor([[[True, False], [True, True]], [[True, True], [True, True]]])
    with pytest.raises(ValueError, match=f"^a mask of shape {shape} {message}$"):
        shaped(mask, shape)


def test_what_is_no_function():
    with pytest.raises(TypeError, match=r"instance.*the class MultiheadAttention"):
        diagnose(nn.MultiheadAttention)
    with pytest.raises(TypeError, match="callable"):
        diagnose(3)
    with pytest.raises(TypeError, match="attn_bias must be a function of T and S, got Tensor"):
        diagnose(sdpa, attn_bias=torch.zeros(3, 5, 5))


# ---------------------------------------------------------------- the report


def test_the_report_can_be_read_shown_and_stored():
    report = diagnose(unscaled)
    (failure,) = report.failures
    text, page = str(report), report._repr_markdown_()
    for part in (failure.likely, failure.look_for, failure.repair, failure.source):
        assert part
        assert part in text
        assert part in page
    assert text.startswith("unscaled: one mistake found.")
    assert "1. **The scale is missing.**" in page
    assert "```text" in page
    rows = re.findall(r"(?m)^ *(actual|expected)  +\[(.*?)\]", text)
    assert rows == re.findall(r"(?m)^ *(actual|expected)  +\[(.*?)\]", page)
    (_, actual), (_, expected) = rows
    assert actual != expected
    assert all(abs(float(x)) < 10 for row in (actual, expected) for x in row.split(","))
    assert json.loads(json.dumps(report.as_dict()))["failures"][0]["mistake"] == "scale_missing"
    assert (report.ok, report.mistakes) == (False, ["scale_missing"])
    assert str(Report("mine")) == repr(Report("mine")) == "mine: no mistake found."


def test_asserting_is_one_line():
    assert assert_attention(sdpa) is None
    with pytest.raises(AssertionError, match=r"(?s)scale is missing.*Repair"):
        assert_attention(unscaled)


def test_an_example_shows_the_entry_that_differs():
    def fn(q, k, v):
        out = plain(q, k, v)
        out[:1, 1:2, 2:3, -1] += 2e-4
        return out

    (failure,) = diagnose(fn, layout="BHTd", causal=False).failures
    assert "example 0, head 1, position 2, channels 4-7 (from 0)" in failure.example
    actual, expected = failure.example.splitlines()[1:]
    assert actual.removeprefix("actual") != expected.removeprefix("expected")


def wrong_from(example, head, position):
    """Right before it, and ever more wrong from there on."""

    def fn(q, k, v):
        gain = torch.tensor(1e-2)
        for axis, place in enumerate((example, head, position)):
            late = torch.arange(q.shape[axis]).sub(place - 1).clamp(min=0)
            gain = gain[..., None] * late
        return plain(q, k, v) * (1.0 + gain[..., None])

    return fn


def test_the_example_shows_the_first_wrong_row():
    (failure,) = diagnose(wrong_from(1, 2, 1)).failures
    assert "; example 1, head 2, position 1, channels" in failure.example
    actual, expected = failure.example.splitlines()[-2:]
    assert actual.partition("[")[2] != expected.partition("[")[2]


# ---------------------------------------------------------------- what is found out, and notes


Multi = attn_lib.MultiHeadAttention
ROTARY = {"rotate": attn_lib.positions.apply_rope}
NORMED = {"qk_norm": lambda heads, d_k: nn.RMSNorm(d_k, eps=1e-6)}
SEVEN = edited(windowed, [("far < 3", "far < 7")])
CAUSAL = {"arguments": "x", "options": {"causal": True}}


def closes(where):
    return closing(lambda scores, mask: scores.masked_fill(where(mask), -math.inf))


closes_where_true = closes(lambda mask: mask)


def neither_nan_nor_uniform(q, k, v, mask=None):
    out = sdpa(q, k, v, mask)
    return out if mask is None else torch.where(mask.any(-1, keepdim=True), out, 1.0)


@for_each("HTd", "THd", "TBd")  # the others are those of planted and of right ones
def test_every_layout_can_be_given(layout):
    absent = [letter for letter in "BH" if letter not in layout]
    letters = "".join(absent) + layout
    order = [letters.index(letter) for letter in "BHTd"]
    back = ["BHTd".index(letter) for letter in letters]

    def fn(*parts):
        for _ in absent:
            parts = [t[None] for t in parts]
        out = plain(*(t.permute(order) for t in parts)).permute(back)
        return out[(0,) * len(absent)]

    assert diagnose(fn, layout=layout, arguments="q, k, v").ok


@for_each(
    (closes_where_true, "mask_means='attend'", {"mask_means": "blocked"}),
    (causal, "causal", {"causal": True}),
)
def test_nothing_is_right_without_what_was_guessed(fn, guess, options):
    report = diagnose(fn)
    assert report.ok, report
    start = f"{fn.__name__}: no mistake found, if you mean what is assumed below"
    assert str(report).startswith(start)
    assert any(guess in text for text in report.assumed)
    assert "if you mean" not in str(diagnose(fn, **options))


def with_a_prefix(q, k, v):
    """The first keys alone: two of them for all queries, four for later ones."""
    at = torch.arange(k.shape[-2])
    cells = (past_of(q, k) | (at < 2)) & (at < 4)
    return scores_of(q, k).masked_fill(~cells, -math.inf).softmax(-1) @ v


def open_elsewhere(q, k, v):
    return with_a_prefix(q, k, v) if q.shape == k.shape else plain(q, k, v)


@for_each((with_a_prefix, "no later key"), (open_elsewhere, "all later keys"))
def test_what_was_seen_is_said_before_what_is_assumed(fn, reached):
    report = diagnose(fn)
    (failure,) = report.failures
    assert "a window of" not in str(report)
    assert failure.likely.startswith(
        "Seen: with 6 queries and 6 keys, queries attend to 1 of 15 later keys, query 0 to key 1 "
        f"first; with 4 queries and 7 keys, queries attend to {reached}. As causal= is not "
        "passed, it is taken for causal."
    )


def test_what_was_seen_is_not_said_where_nothing_is_assumed():
    assert "Seen:" not in str(diagnose(with_a_prefix, causal=True))


# ---------------------------------------------------------------- what a mask means


MEANINGS = {
    "attend": "True = may attend",
    "blocked": "True = closed",
    "additive": "it is added, 0 or −inf",
}


def masked(means, shape, q, k, v, mask):
    """A mask of one kind and shape."""
    assert mask.dim() == len(shape)
    mask = {"BTS": mask[:, None], "BS": mask[:, None, None]}.get(shape, mask)
    if means == "additive":
        return (scores_of(q, k) + mask).softmax(dim=-1) @ v
    return filled(-math.inf)(q, k, v, ~mask if means == "blocked" else mask)


@for_each(("attend", "B1TS"), ("blocked", "BTS"), ("additive", "BS"), ("blocked", "TS"))
def test_the_kind_of_mask_is_found(means, shape):
    def fn(q, k, v, mask=None):
        return plain(q, k, v) if mask is None else masked(means, shape, q, k, v, mask)

    report = diagnose(fn)
    assert report.ok, report
    assert f"what the mask means: {MEANINGS[means]}" in words_of(report, "assumed")
    assert f"the mask's shape: {shape}" in report.assumed


def test_a_mask_that_is_needed_in_every_call():
    report = diagnose(lambda q, k, v, mask: masked("additive", "B1TS", q, k, v, mask))
    assert report.ok, report
    assert "needs a mask" in words_of(report, "assumed")
    assert report.unchecked == ["more than 133 keys"]


def inverted(q, k, v, mask):
    return scores_of(q, k).masked_fill(mask, -math.inf).softmax(-1) @ v


def needing(fn):
    return lambda q, k, v, mask: fn(q, k, v, mask)


class InvertedLayer(Separate):
    def forward(self, x, mask):
        return self.merged(inverted(*self.parts(x), mask))


@for_each(lambda q, k, v, mask: inverted(q, k, v, mask[:, None, None] == 1), InvertedLayer())
def test_a_mask_that_is_needed_and_inverted(fn):
    report = diagnose(fn, mask_means="attend")
    assert report.mistakes == ["mask_inverted"]
    assert any("needs a mask" in text for text in report.assumed)
    assert diagnose(fn, mask_means="blocked").mistakes in ([], ["mask_fill_overflows_half"])


def attending(name, change):
    """Attention with one more parameter of that name, which changes the scores."""
    fn = closing(change)
    usual = inspect.signature(fn).parameters.values()
    given = [p.replace(name=name) if p.name == "mask" else p for p in usual]

    def renamed(*args, **options):
        return fn(*args, *options.values())

    renamed.__signature__ = inspect.Signature(given)
    return renamed


@for_each("valid", "memory_key_padding_mask")
def test_other_names_of_masks(name):
    fn = attending(name, lambda scores, mask: scores.masked_fill(~mask, -1.0))
    assert diagnose(fn, mask_means="attend").mistakes == ["mask_small_fill"]


@for_each("attn_bias", "context_lengths")
def test_what_is_never_passed_is_said(name):
    report = diagnose(attending(name, torch.mul))
    assert f"parameters that were never passed: {name};" in words_of(report, "unchecked")


def test_what_is_passed_is_not_said_to_be_left():
    fn = attending("extra", torch.mul)
    for adapter in ({"options": {"extra": 1.0}}, {"arguments": "q, k, v, extra=mask"}):
        assert "never passed" not in words_of(diagnose(fn, **adapter), "unchecked")
    assert "never passed" not in words_of(diagnose(Separate()), "unchecked")
    left = words_of(diagnose(nn.MultiheadAttention(12, 3, batch_first=True)), "unchecked")
    assert "need_weights" in left
    assert "attn_mask" in left


def with_flag(q, k, v, is_causal=False):
    return causal(q, k, v) if is_causal else plain(q, k, v)


# ---------------------------------------------------------------- fills that close too little


def causally_filled(number):
    return lambda q, k, v: filled(number)(q, k, v, past_of(q, k))


@for_each((-20.0, {"mask_means": "attend"}), (-1e3, {}))
def test_usual_fills_that_are_too_small_are_named(number, meant):
    assert diagnose(filled(number), **meant).mistakes == ["mask_small_fill"]


@for_each(
    (filled(-41.0), {}),
    (causally_filled(-6.2), {"causal": True}),
    (causally_filled(-30.0), {"causal": True}),
)
def test_other_fills_are_shown_to_leak_in_numbers(fn, options):
    (failure,) = diagnose(fn, **options).failures
    assert failure.mistake == "closed_key_reaches_output"
    assert "is closed to query" in failure.example
    before, after = (line.partition("[")[2] for line in failure.example.splitlines()[1:])
    assert before != after


@for_each(-1e4, torch.finfo(torch.float32).min)
def test_large_fills_are_right(number):
    assert set(diagnose(filled(number)).mistakes) <= {"mask_fill_overflows_half"}
    assert set(diagnose(causally_filled(number)).mistakes) <= {"mask_fill_overflows_half"}


# ---------------------------------------------------------------- heads


def side_by_side(attend, transposed, heads=4):
    """Heads side by side; merged without a transpose, or with one."""

    def fn(q, k, v):
        q, k, v = (x.unflatten(2, (heads, -1)).transpose(1, 2) for x in (q, k, v))
        out = attend(q, k, v)
        return (out.transpose(1, 2) if transposed else out).reshape(len(q), q.shape[2], -1)

    return fn


def grouped(repeat):
    def fn(q, k, v):
        k, v = (repeat(x, q.shape[1] // k.shape[1]) for x in (k, v))
        return by_torch(q, k, v)

    return fn


interleaved = grouped(lambda x, n: x.repeat_interleave(n, dim=1))
tiled = grouped(lambda x, n: x.repeat(1, n, 1, 1))


def test_grouped_heads_that_nobody_mentioned_are_not_passed_over():
    report = diagnose(tiled, causal=True)
    assert report.ok, report
    assert any("fewer key heads than query heads" in text for text in report.unchecked)
    held = diagnose(interleaved, causal=True)
    assert "equal to the reference with 4 query heads and 2 key heads" in held.holds
    assert not any("key heads" in text for text in held.unchecked)
    for fn in (causal, F.scaled_dot_product_attention):  # they refuse them
        assert "key heads" not in str(diagnose(fn))


def test_key_heads_are_enough_said():
    report = diagnose(interleaved, causal=True, kv_heads=3)
    assert report.ok, report
    assert "there are 6 heads, as heads= is not passed" in report.assumed
    assert diagnose(tiled, causal=True, kv_heads=3).mistakes == ["kv_heads_tiled"]


def own(q, k, v, H):
    """Heads are split by a view."""
    B, T, width = q.shape
    q, k, v = (x.reshape(B, H, -1, width // H) for x in (q, k, v))
    return ((q @ k.mT / (width // H) ** 0.5).softmax(-1) @ v).reshape(B, T, width)


def own_right(q, k, v, n_heads):
    return side_by_side(F.scaled_dot_product_attention, True, n_heads)(q, k, v)


def with_default(q, k, v, H=4):
    return side_by_side(F.scaled_dot_product_attention, False, H)(q, k, v)


def test_a_parameter_for_the_number_of_heads_is_given_it():
    for adapter in ({}, {"heads": 2}):
        report = diagnose(own, **adapter)
        assert report.mistakes == ["heads_split_without_transpose"]
        assert f"H={adapter.get('heads', 4)} is passed in each call" in report.assumed
        assert diagnose(own_right, **adapter).ok
        named = diagnose(with_default, **adapter)
        assert named.mistakes == ["heads_merged_without_transpose"]
        given = "H=2 is passed in each call" if adapter else "there are 4 heads: H=4"
        assert given in named.assumed


def split_by_view(q, k, v, H):
    parts = (x.reshape(len(x), H, x.shape[1], -1) for x in (q, k, v))
    return F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)


def test_where_split_and_merge_are_wrong_both_repairs_are_said():
    (one,), (two,) = (diagnose(fn, heads=4).failures for fn in (split_by_view, own))
    assert one.mistake == two.mistake == "heads_split_without_transpose"
    assert two.repair == f"{one.repair}, and out.transpose(1, 2).reshape(B, T, H * d)"
    assert "split and merged" in two.name


# ---------------------------------------------------------------- two mistakes


def changed(old, new):
    return edited(plain, [(old, new)])


def test_each_of_two_mistakes_is_shown_where_it_matters(monkeypatch):
    """However slow the machine is: each look at a clock takes an hour."""
    fn, hours = changed("math.sqrt(q.size(-1))", "q.size(-1)"), itertools.count(step=3600.0)
    with monkeypatch.context() as patched:
        for clock in ("time", "monotonic", "perf_counter", "process_time", "thread_time"):
            patched.setattr(time, clock, lambda: next(hours))
        found = {f.mistake: f.example for f in diagnose(fn, causal=True).failures}
    assert set(found) == {"causal_missing", "scale_by_d_k"}
    assert found["scale_by_d_k"].startswith("1 query and 6 keys;")
    words, numbers = found["causal_missing"].splitlines()[0], found["causal_missing"].split("[")[1:]
    assert words.startswith("3 positions;")
    assert "position 2" not in words  # the last query may attend to all
    assert numbers != found["scale_by_d_k"].split("[")[1:]


# ---------------------------------------------------------------- gradients and half precision


def only_float(q, k, v):
    assert q.dtype not in (torch.float16, torch.bfloat16)
    return plain(q, k, v)


def far_from_float16(q, k, v, mask=None):
    """Rounded once more where there is a mask."""
    scores = scores_of(q.float(), k.float()) if q.dtype != torch.float64 else scores_of(q, k)
    if mask is not None:
        coarse = torch.bfloat16 if q.dtype == torch.float16 else q.dtype
        scores = scores.to(coarse).masked_fill(~mask, -math.inf)
    return (scores.softmax(-1).to(v.dtype)) @ v


def unsqueezed(q, k, v, mask=None):
    return sdpa(q, k, v, mask if mask is None else mask.unsqueeze(1))


def up_to_200(q, k, v):
    return causal(q, k, v) if k.shape[2] <= 200 else plain(q, k, v)


def by_requirement(q, k, v):
    return plain(q, k, v) if not q.requires_grad else plain(q, k, 1.5 * v)


# ---------------------------------------------------------------- what no known mistake explains


def decays(q, k, v):
    distance = torch.arange(k.shape[-2]) - torch.arange(q.shape[-2])[:, None]
    return (q @ k.mT / math.sqrt(q.shape[-1]) - 0.3 * distance.abs()).softmax(dim=-1) @ v


@for_each(
    (lambda q, k, v, mask=None: sdpa(q, k, v, mask) * (1 + (mask is not None)), "without a"),
    (lambda q, k, v: plain(q, k, v) * (1 + (max(q.shape[2], k.shape[2]) > 64)), "up to 7 pos"),
)
def test_what_the_calls_that_agree_have_in_common(fn, words):
    (failure,) = diagnose(fn, layout="BHTd", causal=False, mask_means="attend").failures
    assert words in failure.likely
    bound = float(re.search(r"it agrees with it within (\S+) in", failure.likely)[1])
    assert 0 < bound < 1e-4


class ReadsOne(nn.Module):
    """A module of (query, key, value) that reads one of the last two for both."""

    def __init__(self, name):
        super().__init__()
        self.inside, self.name = nn.MultiheadAttention(12, 3, batch_first=True), name

    def forward(self, query, key, value):
        one = {"key": key, "value": value}.get(self.name)
        key, value = (key, value) if one is None else (one, one)
        return self.inside(query, key, value)[0]


def test_a_third_example_is_compared_in_most_calls():
    """Wrong from the third example on, for 5 positions and a mask only."""

    def fn(q, k, v, mask=None):
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        if q.shape[-2] == 5 and mask is not None:
            out[2:] = out[2:] * 1.5
        return out

    assert diagnose(fn, mask_means="attend").mistakes == [None]


def test_rows_without_keys_are_not_counted():
    def fn(q, k, v):
        assert q.shape[-2] == k.shape[-2]
        return causal(q, k, v)

    text = next(text for text in diagnose(fn, causal=True).holds if "equal to" in text)
    n = sum(a.isdigit() and int(a) for a in text.split())
    assert text == f"equal to the reference in {n} different calls"
    more = next(text for text in diagnose(causal, causal=True).holds if "equal to" in text)
    assert more.endswith("different calls, rows that may attend to nothing left out")


def taught(q, k, v, mask=None, scale=8**-0.5):
    """Self-attention as it is taught: its (T, T) mask broadcasts where there is one query."""
    past = torch.ones(q.shape[-2], q.shape[-2]).tril().bool()
    scores = (q @ k.mT * scale).masked_fill(~past, -torch.inf)
    scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(dim=-1) @ v


@for_each(True, "top_left")
def test_one_query_says_nothing_where_other_unequal_lengths_raise(causal):
    apart = "1 query and 6 keys: other unequal lengths raise"
    report = diagnose(taught, causal=causal)
    assert report.ok, report
    assert (apart in report.unchecked) == (causal == "top_left")
    check_report(*row(lambda q, k, v: taught(q, k, v, scale=1.0), ["scale_missing"], causal=causal))


def from_call_37(calls):
    return 1.5 if calls > 36 else 1.0


def every_fifth_call(calls):
    return 1.0 if calls % 5 else 1.01


@pytest.mark.parametrize("gain", [from_call_37, every_fifth_call])
def test_the_first_call_is_repeated_after_all_others(gain):
    counted = itertools.count(1)
    report = diagnose(lambda q, k, v: plain(q, k, v) * gain(next(counted)), layout="BHTd")
    assert report.mistakes
    assert "a call does not depend on earlier ones" not in report.holds
    assert "batch_leak" not in report.mistakes


# ---------------------------------------------------------------- one function, one report


def either_alone(q, k, v, mask=None):
    cells = past_of(q, k)
    if mask is not None:
        cells = mask.int() + cells.int() == 1  # of 0 and -inf too
    return scores_of(q, k).masked_fill(~cells, torch.finfo(q.dtype).min).softmax(-1) @ v


not_a_number = closing(
    lambda scores, mask: scores + (~mask).to(scores.dtype) * torch.tensor(-1e9).to(scores.dtype)
)


BY_KEYS = {"mask_means": "attend", "mask_shape": "BS"}
BY_CELLS = {"mask_shape": "B1TS"}
MERGED = {axis: closes(lambda m, axis=axis: ~m.any(axis, True)) for axis in (0, -2)}
BLOCK = nn.TransformerEncoderLayer(12, 3, batch_first=True)
NOT_IN_HALF = WITHOUT.format("half precision: the error")
OFF = "training mode, with dropout switched off, equals evaluation mode"
MERGE = ["heads_merged_without_transpose"]
OVERFLOW = ["mask_fill_overflows_half"]
ADDED = "what the mask means: it is added, 0 or −inf"
NO_BOUND = WITHOUT.format("it agrees with it within")
LARGE_SCORES = "off by at most.*not counted, as rounding may give as much there: scores up to"
UNIT_LENGTH = "matmul(F.normalize(q, dim=-1), F.normalize(k, dim=-1)."
CLAMPED = "calls, these: scores up to about 300.*it agrees with it.*5 positions"
EPSILON = (
    "(scores - scores.amax(-1, True)).exp()\n    weights = weights / (weights.sum(-1, True) + 1e-3)"
)
NO_WINDOW = WITHOUT.format("window of")
NOT_RIGHT = WITHOUT.format("The output is right, but")
RECORDED = "output depends on whether gradients are recorded"


def first(q, axis):
    """1 at the first place of an axis, then zeros."""
    return (torch.arange(q.shape[axis]) == 0).to(q.dtype)


UNEXPLAINED = {
    "the value of key 69 reaches no row": lambda q, k, v: plain(
        q, *(t[..., : max(k.shape[-2] - 1, 2), :] for t in (k, v))
    ),
    "Three times larger queries, 6 of them without a mask": changed(
        "matmul(q", "matmul(F.normalize(q, dim=-1)"
    ),
    "head 0 of 3 differs by up to": lambda q, k, v: (
        plain(q, k, v) * (1.0 + 2.0 * first(q, 1)[:, None, None])
    ),
    "unit vectors as values, query 69 differs by": lambda q, k, v: (
        plain(q, k, v) * (1.0 - 0.5 * first(q, 2).flip(0)[:, None])
    ),
    "6 keys in another order": decays,
    "not linear in v": changed("weights, v)", "weights, v).round(decimals=1)"),
    "values of zero": changed("weights, v)", "weights, v) + 0.5"),
    "the whole output is NaN": changed("weights, v)", "weights, v) * math.nan"),
    "as low as": changed("weights, v)", "1.1 * weights - 0.2 / k.size(-2), v)"),
    "With 70 keys whose values are all 1, the output is 1.25, not 1[.]": changed(
        "weights, v)", "weights, 1.25 * v)"
    ),
}


@pytest.mark.parametrize("words", UNEXPLAINED)
def test_what_is_true_of_an_unknown_mistake(words):
    patterns = words, WITHOUT.format("pass causal=True")
    check_report(*row(UNEXPLAINED[words], [None], *patterns, layout="BHTd", causal=False))


REPORTED = {
    # what is assumed, and what is a note
    "unit length": row(changed("matmul(q, k.", UNIT_LENGTH), [], qk_norm="l2"),
    "a norm's own epsilon": row(
        Multi(16, 4, qk_norm=lambda _, d: nn.RMSNorm(d)), [], qk_norm="rms"
    ),
    "a window": row(SEVEN, [], "it is meant to have a window of 7", causal=True),
    "no window": row(causal, [], NO_WINDOW, causal=True),
    "norms and RoPE": row(Multi(16, 4, **ROTARY, **NORMED), [], "RoPE.*10000.*rms", arguments="x"),
    "a mask that is compared": row(closes(lambda m: m < -1e4), [], ADDED),
    "uniform rows": row(filled(), [], "Notes.*attends to all positions equally"),
    "other rows": row(neither_nan_nor_uniform, [], "Notes.*neither"),
    "rounded where there is a mask": row(
        far_from_float16, [], "Notes.*In float16 with a mask", NOT_IN_HALF, mask_means="attend"
    ),
    "dropped weights": row(torch_layer(dropout=0.3), [], "Notes.*dropout", OFF),
    "a module in double": row(Separate().double(), [], "gradients to the projections"),
    "a module in half": row(Separate().half(), [], "gradients to the projections"),
    "what raises in half": row(only_float, []),
    "a flag": row(with_flag, [], "is_causal=True is passed in each call", causal=True),
    "a flag that is not needed": row(with_flag, [], WITHOUT.format("Assumed.*is_causal")),
    "a flag that is given": row(
        with_flag, [], WITHOUT.format("is_causal=True is"), causal=True, options={"is_causal": True}
    ),
    # of masks for all queries alike nothing is merged
    "masks of queries, merged": row(MERGED[-2], [], "shape: B11S", "pass mask_shape='B1TS'"),
    "masks, not merged": row(closing(torch.add), [], WITHOUT.format("pass mask_shape")),
    "queries": row(MERGED[-2], ["mask_of_the_batch"], "The queries' masks are merged", **BY_CELLS),
    "examples": row(MERGED[0], ["mask_of_the_batch"], "The examples' masks are merged", **BY_CELLS),
    "sizes that make mistakes alike": row(
        Multi(16, 4, scale=0.25),  # d_k = H = 4, 1/sqrt(16) = 1/4
        ["scale_by_model_width"],
        "Either scaled by the width of the model, or .*: the numbers are the same.*scale_by_d_k",
    ),
    "a function has no modes": row(plain, ["causal_missing"], "1. No causal mask", causal=True),
    # two mistakes
    "over the wrong axis too": row(
        lambda q, k, v: (q @ k.mT).softmax(-2) @ v, ["scale_missing", "softmax_over_queries"]
    ),
    "the mask too": row(
        closing(lambda s, m: s.masked_fill(m, -math.inf), lambda q, k: q @ k.mT),
        ["mask_inverted", "scale_missing"],
        mask_means="attend",
    ),
    "the merge too": row(
        side_by_side(unscaled_causal, False), [*MERGE, "scale_missing"], causal=True, heads=4
    ),
    # one mistake
    # rows without a key are zeros of torch, or NaN: the merge moves them into other rows
    "not merged, zeros": row(side_by_side(by_torch, False), MERGE, causal=True, heads=4),
    "not merged, NaN": row(side_by_side(causal, False), MERGE, causal=True, heads=4),
    "merged, zeros": row(side_by_side(by_torch, True), [], causal=True, heads=4),
    "two gradients": row(
        lambda q, k, v: plain(q.detach(), k.detach(), v), ["gradient_detached_weights"]
    ),
    "a mask that fits by accident": row(unsqueezed, ["mask_guessed_by_rank"], **BY_KEYS),
    "the triangle of torch": row(
        top_left, ["causal_top_left"], 'Where they are equal.*pass causal="top_left"', causal=True
    ),
    "numbers that are not added": row(
        either_alone, ["closed_key_reaches_output"], "may attend; if not, pass mask_means='blocked'"
    ),
    "one that is needed": row(needing(filled(-1e9)), OVERFLOW, "In float16"),
    # none
    "the longest length": row(up_to_200, [], "Not checked.*more than 133 keys", causal=True),
    "both inputs": row(ReadsOne("both"), [], heads=3),
    # no known one
    "keys alone": row(ReadsOne("key"), [None], "Another value gives the same output.", heads=3),
    "one query is not masked": row(
        lambda q, k, v, mask=None: sdpa(q, k, v, mask if q.shape[2] > 1 else None),
        [None],
        "the output is that without a mask",
        mask_means="attend",
        **BY_CELLS,
    ),
    "a mask that raises": row(
        lambda q, k, v, mask=None: sdpa(q, k, v, mask and 1), [None], "mask raises", **BY_KEYS
    ),
    "unknown heads": row(side_by_side(by_torch, True), [None], "pass heads=", causal=True),
    "NaN in half precision": row(
        not_a_number, [None], "In float16 with a mask some rows that may attend to something"
    ),
    "a causal fill": row(causally_filled(-7.3), [None], "meant to be causal, pass causal=True"),
    "by requirement": row(by_requirement, [None], RECORDED, NOT_RIGHT),
    "an epsilon": row(
        changed("F.softmax(scores, dim=-1)", EPSILON), [None], NO_BOUND, LARGE_SCORES
    ),
    "clamped scores": row(
        changed("F.softmax(scores", "F.softmax(scores.clamp(-20, 20)"), [None], CLAMPED
    ),
    "a block": row(BLOCK, [None], "linear1, linear2, norm1, norm2"),
}


@pytest.mark.parametrize("name", REPORTED)
def test_one_report(name):
    check_report(*REPORTED[name])


# ---------------------------------------------------------------- the command line


SOURCE = """
import torch
from planted import functions, rotations

class Layer(torch.nn.MultiheadAttention):
    def __init__(self, d_model, num_heads):
        assert d_model % num_heads == 0
        super().__init__(d_model, num_heads, batch_first=True)

class Heads:
    def __init__(self, number):
        self.number = number
    def attend(self, q, k, v):
        return functions.plain(q, k, v)

layer, plain = Layer(12, 3), Heads(2).attend

def attend(q, k, v, causal=False):
    return functions.causal(q, k, v) if causal else plain(q, k, v)

def rotate(x):
    return rotations.by_complex(x, torch.arange(x.shape[-2]), base=500_000.0)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "my_attention.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("my_attention", None)


@for_each(
    ("my_attention:rotate --rope --rope-base 500000 --rope-pairing neighbours", 0),
    ("my_attention.py:plain --causal", 1),
    ("--causal my_attention:attend --options causal=True", 0),
    ("my_attention:plain --causal no", 0),
    ("my_attention:plain --causal top_left", 1),
    ("my_attention:Layer(12,3)", 0),
    ("my_attention:Heads(2).attend", 0),
    ("attn_lib:MultiHeadAttention(12,num_heads=3) --markdown", 0),
    ("torch.nn.functional:scaled_dot_product_attention --scale 0.5", 1),
)
def test_the_command_line(words, status, here, capsys):
    assert __main__.main(words.split()) == status
    shown = capsys.readouterr()
    assert shown.err == ""
    assert ("no mistake found" in shown.out) == (status == 0)
    assert shown.out.startswith("**") == ("--markdown" in words)


def test_the_command_says_the_same():
    command = [sys.executable, "-m", "attn_check", "attn_lib:attention", "--scale", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
    assert MISTAKES["scale_ignored"].likely[:40] in done.stdout


HINTS = {
    "True = closed; if not, pass mask_means='attend'": "if not, pass --mask-means attend",
    "pass layout=, mask_means= or mask_shape=, if known": "pass --layout, --mask-means or --mask-s",
    "meant to be causal, pass causal=True.": "pass --causal.",
    "or pass rope_base=500000, if": "or pass --rope-base 500000, if",
    "such masks are meant, pass\n    mask_shape='B1TS'.": "pass\n    --mask-shape B1TS.",
    "it has one, pass step=": "pass step=",  # for which there is no flag
    "Repair: attention(q, scale=1.0)": "scale=1.0",
}


@pytest.mark.parametrize("said", HINTS)
def test_a_hint_is_written_as_a_shell_takes_it(said):
    assert HINTS[said] in __main__._in_shell(said)


def test_a_shell_takes_what_its_report_advises(here, capsys):
    with open("my_attention.py", "a") as file:
        file.write("\ndef closes(q, k, v, mask=None):\n")
        file.write("    mask = None if mask is None else ~mask\n")
        file.write("    return F.scaled_dot_product_attention(q, k, v, mask)\n")
        file.write("import torch.nn.functional as F\n")
    assert __main__.main(["my_attention:closes"]) == 0
    advised = re.search(r"if not, pass (--mask-means \w+)", capsys.readouterr().out)[1]
    assert __main__.main(["my_attention:closes", *advised.split()]) == 1


@for_each(
    (["Layer"], r"make an instance, as in my_attention:Layer\(32, 4\).*num_heads"),
    (["Layer(7, 2)"], r"AssertionError.*my_attention.py, line 7: assert d_model"),
    (["Layer(dim, 2)"], "dim is not a constant"),
    (["1 + 1"], "neither a name nor a call"),
    (["rotate", "--rope", "--window", "3"], "--window cannot be passed"),
    (["attend", "--options", "causal"], "KEY=VALUE"),
    (["absent"], "absent"),
    (["nowhere:wrong"], "nowhere"),
    (["attn_lib:"], "pass module:function"),
)
def test_what_the_command_line_cannot_check(words, message, here, capsys):
    place = words[0] if ":" in words[0] else f"my_attention:{words[0]}"
    assert __main__.main([place, *words[1:]]) == 2
    shown = capsys.readouterr()
    assert re.search(message, shown.err)
    assert "Traceback" not in shown.err
    assert shown.out == ""


def test_the_usage_and_the_exit_status_are_explained(capsys):
    with pytest.raises(SystemExit):
        __main__.main(["--help"])
    assert "2, it could not be checked" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        __main__.main([])
    assert stopped.value.code == 2
    assert "usage: python -m attn_check" in capsys.readouterr().err
