"""What ``diagnose`` says of a function of q, k and v, what it cannot call, and the command line."""

import itertools
import json
import math
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from planted.functions import causal, plain, side_by_side, windowed, with_bias
from planted.functions import top_left_of_torch as top_left
from planted.heads import SIDES
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
)
from tables import for_each
from torch import nn

import attn_check
import attn_lib
import attn_lib.positions
from attn_check import __main__, assert_attention, diagnose
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
    with pytest.raises(TypeError, match=r"an instance, got <class.*MultiheadAttention"):
        diagnose(nn.MultiheadAttention)
    with pytest.raises(TypeError, match="a function or an instance, got 3"):
        diagnose(3)
    with pytest.raises(TypeError, match="attn_bias must be a function of T and S, got Tensor"):
        diagnose(sdpa, attn_bias=torch.zeros(3, 5, 5))


# ---------------------------------------------------------------- the report


def test_the_report_can_be_read_shown_and_stored():
    report = diagnose(unscaled)
    (failure,) = report.failures
    parts = (failure.likely, failure.look_for, failure.repair, failure.source)
    text, page = str(report), report._repr_markdown_()
    assert all(part and part in text and part in page for part in parts)
    assert text.startswith("unscaled: one mistake found.")
    assert "1. **The scale is missing.**" in page
    assert "```text" in page
    assert json.loads(json.dumps(report.as_dict()))["failures"][0]["mistake"] == "scale_missing"
    assert (report.ok, report.mistakes) == (False, ["scale_missing"])


def test_asserting_is_one_line():
    assert assert_attention(sdpa) is None
    with pytest.raises(AssertionError, match=r"(?s)scale is missing.*Repair"):
        assert_attention(unscaled)


def wrong_from(example, head, position):
    """Right before it, and ever more wrong from there on, in one channel."""

    def fn(q, k, v):
        gain, out = torch.tensor(2e-4), plain(q, k, v)
        for axis, place in enumerate((example, head, position)):
            late = torch.arange(q.shape[axis]).sub(place - 1).clamp(min=0)
            gain = gain[..., None] * late
        out[..., -1] += gain
        return out

    return fn


def test_the_example_shows_the_first_entry_that_differs():
    (failure,) = diagnose(wrong_from(0, 1, 2), layout="BHTd", causal=False).failures
    assert "; example 0, head 1, position 2, channels 4-7 (from 0)" in failure.example
    actual, expected = failure.example.splitlines()[-2:]
    assert actual.partition("[")[2] != expected.partition("[")[2]


# ---------------------------------------------------------------- what is found out, and notes


Multi = attn_lib.MultiHeadAttention
ROTARY = {"rotate": attn_lib.positions.apply_rope}
NORMED = {"qk_norm": lambda heads, d_k: nn.RMSNorm(d_k, eps=1e-6)}
SEVEN = edited(windowed, [("window, S = 3", "window, S = 7")])


def closes(where):
    return closing(lambda scores, mask: scores.masked_fill(where(mask), -math.inf))


closes_where_true = closes(lambda mask: mask)


def neither_nan_nor_uniform(q, k, v, mask=None):
    out = sdpa(q, k, v, mask)
    return out if mask is None else torch.where(mask.any(-1, keepdim=True), out, 1.0)


@for_each("BTd", "HTd", "THd", "TBd", "TBHd", "Td")  # the others are those of planted ones
def test_every_layout_can_be_given(layout):
    absent = [letter for letter in "BH" if letter not in layout]
    letters = "".join(absent) + layout
    order = [letters.index(letter) for letter in "BHTd"]
    back = ["BHTd".index(letter) for letter in letters]

    def fn(*parts):
        for _ in absent:
            parts = [t[None] for t in parts]
        out = causal(*(t.permute(order) for t in parts)).permute(back)
        return out[(0,) * len(absent)]

    assert diagnose(fn, layout=layout, arguments="q, k, v", causal=True).ok


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


# ---------------------------------------------------------------- what a mask means


def masked(means, shape):
    """A function of a mask of one kind and shape."""

    def fn(q, k, v, mask=None):
        if mask is None:
            return plain(q, k, v)
        assert mask.dim() == len(shape)
        mask = {"BTS": mask[:, None], "BS": mask[:, None, None]}.get(shape, mask)
        if means == "additive":
            return (scores_of(q, k) + mask).softmax(dim=-1) @ v
        return filled(-math.inf)(q, k, v, ~mask if means == "blocked" else mask)

    return fn


def inverted(q, k, v, mask):
    return scores_of(q, k).masked_fill(mask, -math.inf).softmax(-1) @ v


class InvertedLayer(Separate):
    def forward(self, x, mask):
        return self.merged(inverted(*self.parts(x), mask))


def plain_with(q, k, v, attn_bias=None):
    return plain(q, k, v)


def with_flag(q, k, v, is_causal=False):
    return causal(q, k, v) if is_causal else plain(q, k, v)


def causally_filled(number):
    return lambda q, k, v: filled(number)(q, k, v, past_of(q, k))


@for_each(
    (filled(-41.0), {}),
    (causally_filled(-70.0), {"causal": True}),
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


def sides(attend, *mistakes, counted=""):
    """Heads side by side, counted by a parameter or always four, with planted mistakes."""
    edits = [SIDES[f"heads_{mistake}_without_transpose"] for mistake in mistakes]
    if counted:
        edits += [("4", counted.partition("=")[0]), ("k, v):", f"k, v, {counted}):")]
    return edited(side_by_side, [("F.scaled_dot_product_attention", attend), *edits])


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


def only_float(q, k, v):
    assert q.dtype not in (torch.float16, torch.bfloat16)
    return plain(q, k, v)


def unsqueezed(q, k, v, mask=None):
    return sdpa(q, k, v, mask if mask is None else mask.unsqueeze(1))


def up_to_200(q, k, v):
    return causal(q, k, v) if k.shape[2] <= 200 else plain(q, k, v)


def by_requirement(q, k, v):
    return plain(q, k, v) if not q.requires_grad else plain(q, k, 1.5 * v)


# ---------------------------------------------------------------- what no known mistake explains


def wrong_beside_a_mask(q, k, v, mask=None):
    return sdpa(q, k, v, mask) * (1.0 if mask is None else 2.0)


class ReadsOne(nn.Module):
    """A module of (query, key, value) that reads one of the last two for both."""

    def __init__(self, name):
        super().__init__()
        self.inside, self.name = nn.MultiheadAttention(12, 3, batch_first=True), name

    def forward(self, query, key, value):
        one = {"key": key, "value": value}.get(self.name)
        key, value = (key, value) if one is None else (one, one)
        return self.inside(query, key, value)[0]


def third_example(q, k, v, mask=None):
    """Wrong from the third example on, for 5 positions and a mask only."""
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    if q.shape[-2] == 5 and mask is not None:
        out[2:] = out[2:] * 1.5
    return out


def taught(q, k, v, mask=None, scale=8**-0.5):
    """Self-attention as it is taught: its (T, T) mask broadcasts where there is one query."""
    past = torch.ones(q.shape[-2], q.shape[-2]).tril().bool()
    scores = (q @ k.mT * scale).masked_fill(~past, -torch.inf)
    scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(dim=-1) @ v


def from_call_38(calls):
    return 1.5 if calls > 37 else 1.0


def every_fifth_call(calls):
    return 1.0 if calls % 5 else 1.01


@pytest.mark.parametrize("gain", [from_call_38, every_fifth_call])
def test_the_first_call_is_repeated_after_all_others(gain):
    counted = itertools.count(1)
    report = diagnose(lambda q, k, v: plain(q, k, v) * gain(next(counted)), layout="BHTd")
    assert report.mistakes
    assert "a call does not depend on earlier ones" not in report.holds
    assert "batch_leak" not in report.mistakes


# ---------------------------------------------------------------- one function, one report


not_a_number = closing(
    lambda scores, mask: scores + (~mask).to(scores.dtype) * torch.tensor(-1e9).to(scores.dtype)
)


UNSCALED = partial(taught, scale=1.0)
APART = "Not checked.*1 query and 6 keys: other unequal lengths raise"
BY_KEYS = {"mask_means": "attend", "mask_shape": "BS"}
BEHIND = {"layout": "BHTd", "causal": False, "mask_means": "attend"}
BY_CELLS = {"mask_shape": "B1TS"}
MERGED = {axis: closes(lambda m, axis=axis: ~m.any(axis, True)) for axis in (0, -2)}
BLOCK = nn.TransformerEncoderLayer(12, 3, batch_first=True)
MERGE = ["heads_merged_without_transpose"]
ADDED = "Assumed.*what the mask means: it is added, 0 or −inf"
SMALL = ["mask_small_fill"]
NEEDED = "Assumed.*needs a mask"
BLOCKED = "Assumed.*what the mask means: True = closed"
NEVER = "Not checked.*parameters that were never passed: "
SPLIT = ["heads_split_without_transpose"]
ZEROS = "masked_and_causal"  # in rows without a key
BOTH_REPAIRS = r"split and merged.*Repair:.*, and out\.transpose\(1, 2\)\.reshape\(B, T, H \* d\)"
CLOSED = ["closed_key_reaches_output"]
SEEN = "Assumed.*it is meant to be causal: some keys have no influence"
LARGE_SCORES = r"within rounding, it is right in scores up to about 300\."
UNIT_LENGTH = "matmul(F.normalize(q, dim=-1), F.normalize(k, dim=-1)."
CLAMPED = r"in 1 of 13 calls \(scores up to about 300\); within.*right in 3 positions; 5 positions"
EPSILON = (
    "(scores - scores.amax(-1, True)).exp()\n    weights = weights / (weights.sum(-1, True) + 1e-3)"
)
NO_WINDOW = WITHOUT.format("window of")
NOT_RIGHT = WITHOUT.format("The output is right, but")
RECORDED = "output depends on whether gradients are recorded"


UNEXPLAINED = {
    "values of 0 give 0.5[.].*values of 1 give 1.5[.]": changed("weights, v)", "weights, v) + 0.5"),
    "In 15 of these calls some of the output is NaN": changed(
        "weights, v)", "weights, v) * math.nan"
    ),
    "values of 1 give 0.9[.]": changed("weights, v)", "1.1 * weights - 0.2 / k.size(-2), v)"),
    "No known mistake that was tried": with_bias,
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
    "norms and RoPE": row(Multi(16, 4, **ROTARY, **NORMED), [], "RoPE.*10000.*rms", arguments="x"),
    "a mask that is compared": row(closes(lambda m: m < -1e4), [], ADDED),
    "uniform rows": row(filled(), [], "Notes.*attends to all positions equally"),
    "other rows": row(neither_nan_nor_uniform, [], "Notes.*neither"),
    "a module in double": row(Separate().double(), [], "gradients to the projections"),
    "a module in half": row(Separate().half(), [], "gradients to the projections"),
    "what raises in half": row(only_float, []),
    "a flag": row(with_flag, [], "is_causal=True is passed in each call", causal=True),
    "a flag that is given": row(
        with_flag, [], WITHOUT.format("is_causal=True is"), causal=True, options={"is_causal": True}
    ),
    # of masks for all queries alike nothing is merged
    "masks of queries, merged": row(MERGED[-2], [], "shape: B11S", "pass mask_shape='B1TS'"),
    "queries": row(MERGED[-2], ["mask_of_the_batch"], "The queries' masks are merged", **BY_CELLS),
    "examples": row(MERGED[0], ["mask_of_the_batch"], "The examples' masks are merged", **BY_CELLS),
    "sizes that make mistakes alike": row(
        Multi(16, 4, scale=0.25),  # d_k = H = 4, 1/sqrt(16) = 1/4
        ["scale_by_model_width"],
        "Either scaled by the width of the model, or .*: the numbers are the same.*scale_by_d_k",
    ),
    "a prefix": row(with_a_prefix, CLOSED, SEEN, NO_WINDOW),
    "a prefix, where nothing is assumed": row(
        with_a_prefix, CLOSED, WITHOUT.format("some keys have no"), causal=True
    ),
    "rows without keys": row(
        causal, [], NO_WINDOW, "calls, rows that may attend to nothing left out", causal=True
    ),
    # one query says nothing where other unequal lengths raise
    "as it is taught": row(taught, [], WITHOUT.format(APART), causal=True, d_k=8),
    "the same, from the top left": row(taught, [], APART, causal="top_left", d_k=8),
    "as it is taught, unscaled": row(UNSCALED, ["scale_missing"], causal=True),
    # masks
    "True = may attend": row(
        masked("attend", "B1TS"), [], "means: True = may attend", "the mask's shape: B1TS"
    ),
    "True = closed": row(masked("blocked", "BTS"), [], BLOCKED, "the mask's shape: BTS"),
    "additive": row(masked("additive", "BS"), [], ADDED, "the mask's shape: BS"),
    "one for all": row(masked("blocked", "TS"), [], BLOCKED, "the mask's shape: TS"),
    "of heads": row(masked("additive", "BHTS"), [], ADDED, mask_shape="BHTS"),
    "needed": row(
        lambda q, k, v, mask: (scores_of(q, k) + mask).softmax(-1) @ v,
        [],
        NEEDED,
        "Not checked - more than 133 keys Assumed",
    ),
    "needed and inverted": row(InvertedLayer(), ["mask_inverted"], NEEDED, mask_means="attend"),
    "needed and meant": row(InvertedLayer(), [], mask_means="blocked"),
    "another name": row(
        lambda q, k, v, valid=None: filled(-1.0)(q, k, v, valid), SMALL, mask_means="attend"
    ),
    "never passed": row(plain_with, [], f"{NEVER}attn_bias;"),
    "passed by the caller": row(plain_with, [], WITHOUT.format(NEVER), options={"attn_bias": 1.0}),
    "passed as the mask": row(
        plain_with, ["mask_ignored"], WITHOUT.format(NEVER), arguments="q, k, v, attn_bias=mask"
    ),
    "never passed to torch": row(torch_layer(), [], f"{NEVER}.*need_weights"),
    "a larger one": row(filled(-1e3), SMALL),
    # a parameter for the number of heads is given it
    "split by a view": row(sides("plain", "split"), SPLIT, WITHOUT.format(BOTH_REPAIRS), heads=4),
    "split and merged by a view": row(
        sides("plain", "split", "merged", counted="H"),
        SPLIT,
        BOTH_REPAIRS,
        "H=4 is passed in each call",
    ),
    "two heads": row(
        sides("plain", counted="n_heads"), [], "n_heads=2 is passed in each call", heads=2
    ),
    "a default for heads": row(
        sides("plain", "merged", counted="H=4"), MERGE, "there are 4 heads: H=4"
    ),
    # two mistakes
    "the merge too": row(
        sides("(lambda q, k, v: causal(q * q.shape[-1] ** 0.5, k, v))", "merged"),
        [*MERGE, "scale_missing"],
        causal=True,
        heads=4,
    ),
    # one mistake
    # rows without a key are zeros of torch, or NaN: the merge moves them into other rows
    "not merged, zeros": row(sides(ZEROS, "merged"), MERGE, causal=True, heads=4),
    "not merged, NaN": row(sides("causal", "merged"), MERGE, causal=True, heads=4),
    "merged, zeros": row(sides(ZEROS), [], causal=True, heads=4),
    "two gradients": row(
        lambda q, k, v: plain(q.detach(), k.detach(), v), ["gradient_detached_weights"]
    ),
    "a mask that fits by accident": row(unsqueezed, ["mask_guessed_by_rank"], **BY_KEYS),
    "the triangle of torch": row(
        top_left, ["causal_top_left"], 'Where they are equal.*pass causal="top_left"', causal=True
    ),
    # none
    "the longest length": row(up_to_200, [], "Not checked.*more than 133 keys", causal=True),
    "both inputs": row(ReadsOne("both"), [], heads=3),
    # no known one
    "wrong beside a mask": row(
        wrong_beside_a_mask, [None], "values of 1 give 2.", "right in 3 positions", **BEHIND
    ),
    "a third example": row(third_example, [None], mask_means="attend"),
    "keys alone": row(ReadsOne("key"), [None], "wrong otherwise", heads=3),
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
    "unknown heads": row(sides(ZEROS), [None], "pass heads=", causal=True),
    "NaN in half precision": row(
        not_a_number, [None], "In float16 with a mask some rows that may attend to something"
    ),
    "a causal fill": row(causally_filled(-7.3), [None], "meant to be causal, pass causal=True"),
    "by requirement": row(by_requirement, [None], RECORDED, NOT_RIGHT),
    "an epsilon": row(
        changed("F.softmax(scores, dim=-1)", EPSILON),
        [None],
        LARGE_SCORES,
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

WIDTH = 12

class Layer(torch.nn.MultiheadAttention):
    def __init__(self, d_model, num_heads):
        assert d_model % num_heads == 0
        super().__init__(d_model, num_heads, batch_first=True)

class Heads:
    def __init__(self, number):
        self.number = number
    def attend(self, q, k, v):
        return functions.plain(q, k, v)

plain = Heads(2).attend

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


RIGHT, FOUND = ": no mistake found", ": one mistake found"


@for_each(
    ("my_attention:rotate --rope --rope-base 500000 --rope-pairing neighbours", 0, RIGHT),
    ("my_attention.py:plain --causal", 1, FOUND),
    ("--causal my_attention:attend --options causal=True", 0, RIGHT),
    ("my_attention:plain --causal no", 0, RIGHT),
    ("my_attention:plain --causal top_left", 1, FOUND),
    ("my_attention:Layer(12,3)", 0, RIGHT),
    ("my_attention:Layer(WIDTH,num_heads=3)", 0, RIGHT),
    ("my_attention:Heads(2).attend", 0, RIGHT),
    ("attn_lib:MultiHeadAttention(12,num_heads=3) --markdown", 0, r"^\*\*.*: no mistake found"),
    ("torch.nn.functional:scaled_dot_product_attention --scale 0.5", 1, FOUND),
    ("my_attention:Layer", 2, r"make an instance, as in my_attention:Layer\(32, 4\).*num_heads"),
    ("my_attention:Layer(7,2)", 2, r"AssertionError.*my_attention.py, line 9: assert d_model"),
    ("my_attention:Layer(dim,2)", 2, "no attribute 'dim'"),
    ("my_attention:1+1", 2, "no name, call or constant"),
    ("my_attention:rotate --rope --window 3", 2, "unexpected keyword argument 'window'"),
    ("my_attention:attend --options causal", 2, "KEY=VALUE"),
    ("my_attention:absent", 2, "absent"),
    ("nowhere:wrong", 2, "nowhere"),
    ("attn_lib:", 2, "pass module:function"),
)
def test_the_command_line(words, status, said, here, capsys):
    assert __main__.main(words.split()) == status
    shown = capsys.readouterr()
    text, nothing = (shown.err, shown.out) if status == 2 else (shown.out, shown.err)
    assert re.search(said, text)
    assert "Traceback" not in text
    assert nothing == ""


def test_the_command_says_the_same():
    command = [sys.executable, "-m", "attn_check", "attn_lib:attention", "--scale", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
    assert MISTAKES["scale_ignored"].likely[:40] in done.stdout


def test_the_usage_and_the_exit_status_are_explained(capsys):
    with pytest.raises(SystemExit):
        __main__.main(["--help"])
    assert "2, it could not be checked" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        __main__.main([])
    assert stopped.value.code == 2
    assert "usage: python -m attn_check" in capsys.readouterr().err
