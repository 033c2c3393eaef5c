"""What ``diagnose`` says of a function of q, k and v, and of what it cannot call."""

import inspect
import json
import math
import re
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from subjects import (
    Separate,
    broken,
    causal,
    closing,
    filled,
    past_of,
    plain,
    scores_of,
    sdpa,
    top_left,
    torch_layer,
    unscaled,
    unscaled_causal,
    where_lengths_agree,
    words_of,
)
from torch import nn

from attn_check import assert_attention, diagnose
from attn_check.mistakes import MISTAKES

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(("one", "other"), [("attn_lib", "attn_check"), ("attn_check", "attn_lib")])
def test_neither_package_imports_the_other(one, other):
    script = f"import sys, {one}; print({one!r} in sys.modules, {other!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "True False\n", done.stderr


# ---------------------------------------------------------------- what cannot be


class NoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(12, 12) for _ in range(3))

    def forward(self, x):
        return (self.q_proj(x) @ self.k_proj(x).mT / 12**0.5).softmax(-1) @ self.v_proj(x)


WRONG = {
    "a class": (nn.MultiheadAttention, {}, TypeError, "instance.*MultiheadAttention"),
    "a number": (3, {}, TypeError, "callable"),
    "layout": (sdpa, {"layout": "BHSD"}, ValueError, "BHTd.*BTHd.*'BHSD'"),
    "mask": (sdpa, {"mask_means": "true"}, ValueError, "attend.*blocked.*additive.*'true'"),
    "mask shape": (sdpa, {"mask_shape": "BLS"}, ValueError, "B1TS.*'BLS'"),
    "window": (sdpa, {"window": 0}, ValueError, "window must be at least 1, got 0"),
    "causal": (sdpa, {"causal": "yes"}, ValueError, "top_left.*'yes'"),
    "norm": (sdpa, {"qk_norm": "batch"}, ValueError, "rms.*'batch'"),
    "heads are contradicted": (torch_layer(), {"heads": 4}, ValueError, "heads"),
    "heads are not said": (NoHeads(), {}, ValueError, "heads="),
    "it raises": (broken, {}, ValueError, "RuntimeError: shape of nothing"),
    "an unknown role": (sdpa, {"arguments": "q, k, w"}, ValueError, "w"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_is_said(name):
    fn, adapter, error, message = WRONG[name]
    with pytest.raises(error, match=message):
        diagnose(fn, **adapter)


def test_one_wide_head_is_right_where_it_is_meant():
    assert diagnose(NoHeads(), heads=1).ok


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
    numbers = re.findall(r"(?m)^ *(actual|expected)  +\[", text)
    assert numbers == ["actual", "expected"] == re.findall(r"(?m)^ *(actual|expected)  +\[", page)
    assert json.loads(json.dumps(report.as_dict()))["failures"][0]["mistake"] == "scale_missing"
    assert (report.ok, report.mistakes) == (False, ["scale_missing"])


def test_the_numbers_of_the_example_are_those_of_the_function():
    report = diagnose(unscaled)
    rows = re.findall(r"(actual|expected) +\[(.*?)\]", report.failures[0].example)
    (_, actual), (_, expected) = rows
    assert actual != expected
    assert all(abs(float(x)) < 10 for row in (actual, expected) for x in row.split(","))


def test_what_nobody_knows_is_no_guess():
    def fn(q, k, v):
        return sdpa(q, k, v) + 0.01 * q.sum() * v.mean(-2, keepdim=True)

    (failure,) = diagnose(fn).failures
    assert failure.mistake in (None, "batch_leak")  # both are true of it
    assert "No known mistake" in failure.likely or failure.mistake


def test_asserting_is_one_line():
    assert assert_attention(sdpa) is None
    with pytest.raises(AssertionError, match=r"(?s)scale is missing.*Repair"):
        assert_attention(unscaled)


# ---------------------------------------------------------------- the table


@pytest.mark.parametrize("name", MISTAKES)
def test_each_row_of_the_table_is_whole(name):
    row = MISTAKES[name]
    assert row.id == name
    assert row.likely[0].isupper()
    assert row.likely.endswith(".")
    assert row.name
    assert row.look_for
    assert row.repair
    assert row.source.startswith("https://")


def test_the_table_is_long_enough():
    assert len(MISTAKES) >= 100
    texts = [row.likely for row in MISTAKES.values()]
    assert len(texts) == len(set(texts))


# ---------------------------------------------------------------- what is found out, and notes


def test_what_is_not_said_is_found_out_and_told():
    report = diagnose(causal)
    assert report.ok, report
    assert "causal" in " ".join(report.assumed)
    assert diagnose(causal, causal=False).mistakes == ["causal_not_meant"]
    blocked = diagnose(lambda q, k, v, mask=None: sdpa(q, k, v, None if mask is None else ~mask))
    assert blocked.ok, blocked
    assert "True = closed" in " ".join(blocked.assumed)


NOTED = {
    "uniform rows": (filled, {}, "equally"),
    "NaN rows": (lambda: filled(-math.inf), {}, "NaN"),
    "averaged weights": (torch_layer, {}, "weights_averaged"),
    "dropped weights": (lambda: torch_layer(dropout=0.3), {}, "weights_after_dropout"),
}


@pytest.mark.parametrize("name", NOTED)
def test_what_real_libraries_do_is_a_note(name):
    make, adapter, words = NOTED[name]
    report = diagnose(make(), **adapter)
    assert report.ok, report
    notes = " ".join(f"{note.mistake}: {note.text}" for note in report.notes)
    assert words in notes, report


def by_torch(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=past_of(q, k))


def side_by_side(attend, transposed, heads=4):
    """Heads side by side; merged without a transpose, or with one."""

    def fn(q, k, v):
        q, k, v = (x.unflatten(2, (heads, -1)).transpose(1, 2) for x in (q, k, v))
        out = attend(q, k, v)
        return (out.transpose(1, 2) if transposed else out).reshape(len(q), q.shape[2], -1)

    return fn


# ---------------------------------------------------------------- rows without a key


@pytest.mark.parametrize("attend", [by_torch, causal])
def test_a_wrong_merge_whatever_rows_without_a_key_give(attend):
    """Zeros of torch, or NaN: the merge moves them into other rows."""
    report = diagnose(side_by_side(attend, False), causal=True, heads=4)
    assert report.mistakes == ["heads_merged_without_transpose"]
    assert diagnose(side_by_side(attend, True), causal=True, heads=4).ok


# ---------------------------------------------------------------- two mistakes, each with evidence


def by_d_k(q, k, v):
    return (q @ k.mT / q.shape[-1]).softmax(-1) @ v


def test_each_of_two_mistakes_is_shown_where_it_matters():
    found = {f.mistake: f.example for f in diagnose(by_d_k, causal=True).failures}
    assert set(found) == {"causal_missing", "scale_by_d_k"}
    assert found["scale_by_d_k"].startswith("1 query and 6 keys;")
    words, numbers = found["causal_missing"].splitlines()[0], found["causal_missing"].split("[")[1:]
    assert words.startswith("3 positions;")
    assert "position 2" not in words  # the last query may attend to all
    assert numbers != found["scale_by_d_k"].split("[")[1:]


# ---------------------------------------------------------------- heads that nobody mentioned


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


@pytest.mark.parametrize("kv_heads", [1, 2, 3])
def test_key_heads_are_enough_said(kv_heads):
    report = diagnose(interleaved, causal=True, kv_heads=kv_heads)
    assert report.ok, report
    assert f"there are {2 * kv_heads} heads, as heads= is not passed" in report.assumed
    if kv_heads > 1:
        assert diagnose(tiled, causal=True, kv_heads=kv_heads).mistakes == ["kv_heads_tiled"]
    with pytest.raises(ValueError, match="heads must be a multiple of kv_heads, got 4 and 3"):
        diagnose(tiled, heads=4, kv_heads=3)


def leaks_late(q, k, v):
    n = k.shape[-2]
    return causal(q, k, v) if n <= 200 else F.scaled_dot_product_attention(q, k, v)


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
    for adapter in ({}, {"heads": 4}, {"heads": 2}):
        report = diagnose(own, **adapter)
        assert report.mistakes == ["heads_split_without_transpose"]
        assert f"H={adapter.get('heads', 4)} is passed in each call" in report.assumed
        assert diagnose(own_right, **adapter).ok
        named = diagnose(with_default, **adapter)
        assert named.mistakes == ["heads_merged_without_transpose"]
        assert ("H=2 is passed in each call" in named.assumed) == (adapter.get("heads") == 2)
    assert "there are 4 heads: H=4" in diagnose(with_default).assumed


# ---------------------------------------------------------------- what is said of intents


@pytest.mark.parametrize("number", [-7.3, -6.2])
def test_a_causal_fill_that_leaks_is_asked_about(number):
    fn = causally_filled(number)
    (failure,) = diagnose(fn).failures
    assert "if the function is meant to be causal, pass causal=True" in failure.likely
    assert diagnose(fn, causal=True).mistakes == ["closed_key_reaches_output"]
    (other,) = diagnose(lambda q, k, v: 1.1 * F.scaled_dot_product_attention(q, k, v)).failures
    assert "causal" not in other.likely


def split_by_view(q, k, v, H):
    parts = (x.reshape(len(x), H, x.shape[1], -1) for x in (q, k, v))
    return F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)


def test_where_split_and_merge_are_wrong_both_repairs_are_said():
    (one,), (two,) = (diagnose(fn, heads=4).failures for fn in (split_by_view, own))
    assert one.mistake == two.mistake == "heads_split_without_transpose"
    assert two.repair == f"{one.repair}, and out.transpose(1, 2).reshape(B, T, H * d)"
    assert "split and merged" in two.name


def taught(q, k, v, mask=None, scale=8**-0.5):
    """Self-attention as it is taught: its (T, T) mask broadcasts where there is one query."""
    past = torch.ones(q.shape[-2], q.shape[-2]).tril().bool()
    scores = (q @ k.mT * scale).masked_fill(~past, -torch.inf)
    scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(dim=-1) @ v


@pytest.mark.parametrize("causal", [True, "top_left", None])
@pytest.mark.parametrize("masked", [False, True])
def test_one_query_says_nothing_where_other_unequal_lengths_raise(causal, masked):
    fn = taught if masked else lambda q, k, v: taught(q, k, v)
    report = diagnose(fn, causal=causal)
    assert report.ok, report
    apart = "1 query and 6 keys: other unequal lengths raise"
    assert (apart in report.unchecked) == (causal == "top_left")
    report = diagnose(lambda q, k, v: taught(q, k, v, scale=1.0), causal=causal)
    assert report.mistakes == ["scale_missing"]


# ---------------------------------------------------------------- a mask that is always needed


def inverted(q, k, v, mask):
    return scores_of(q, k).masked_fill(mask, -math.inf).softmax(-1) @ v


def inverted_padding(q, k, v, mask):
    return scores_of(q, k).masked_fill(mask[:, None, None] == 1, -1e9).softmax(-1) @ v


class InvertedLayer(Separate):
    def forward(self, x, mask):
        return self.merged(inverted(*self.parts(x), mask))


@pytest.mark.parametrize("fn", [inverted, inverted_padding, InvertedLayer()])
def test_a_mask_that_is_needed_and_inverted(fn):
    report = diagnose(fn, mask_means="attend")
    assert report.mistakes == ["mask_inverted"]
    assert any("needs a mask" in text for text in report.assumed)
    assert diagnose(fn, mask_means="blocked").mistakes in ([], ["mask_fill_overflows_half"])


# ---------------------------------------------------------------- gradients and half precision


REPORTS = {
    "function": (lambda: plain, {}),
    "causal": (lambda: causal, {}),
    "mask": (lambda: F.scaled_dot_product_attention, {"arguments": "q, k, v, attn_mask=mask"}),
    "module": (Separate, {}),
    "module in double": (lambda: Separate().double(), {}),
    "module in half": (lambda: Separate().half(), {}),
    "torch": (lambda: nn.MultiheadAttention(12, 3, batch_first=True), {}),
    "wrong": (lambda: lambda q, k, v: (q @ k.mT).softmax(-1) @ v, {}),
    "keeps something": (lambda: keeps, {}),
    "unknown": (lambda: lambda q, k, v: 1.1 * plain(q, k, v), {}),
    "not in half": (lambda: only_float, {}),
    "by gradients": (lambda: by_mode, {}),
}


CALLS = []


def keeps(q, k, v):
    CALLS.append(0)
    return plain(q * min(len(CALLS), 4), k, v)


def only_float(q, k, v):
    assert q.dtype not in (torch.float16, torch.bfloat16)
    return plain(q, k, v)


def by_mode(q, k, v):
    """Right under no_grad alone."""
    return plain(q, k, v).detach() if not torch.is_grad_enabled() else plain(2 * q, k, v)


@pytest.mark.parametrize("name", REPORTS)
def test_gradients_and_half_precision_are_in_every_report(name):
    make, adapter = REPORTS[name]
    report = diagnose(make(), **adapter)
    notes = [note.text for note in report.notes]
    said = "\n".join([words_of(report, "holds", "unchecked"), *notes])
    assert "half precision" in said or "alf-precision" in said
    failures = " ".join(failure.name for failure in report.failures)
    assert "gradients" in said + failures
    if name.startswith("module"):
        assert "gradients to the projections" in said


def far_from_float16(q, k, v, mask=None):
    """Rounded once more where there is a mask."""
    scores = scores_of(q.float(), k.float()) if q.dtype != torch.float64 else scores_of(q, k)
    if mask is not None:
        scores = scores.to(q.dtype).masked_fill(~mask, -math.inf)
    return (scores.softmax(-1).to(v.dtype)) @ v


def test_half_precision_has_one_limit_with_a_mask_and_without():
    report = diagnose(far_from_float16, mask_means="attend")
    assert report.ok, report
    (note,) = (note for note in report.notes if note.mistake == "not_float32_inside")
    assert "in float16 with a mask" in note.text
    assert not any("half precision" in text for text in report.holds)


def by_requirement(q, k, v):
    return plain(q, k, v) if not q.requires_grad else plain(q, k, 1.5 * v)


@pytest.mark.parametrize("fn", [by_mode, by_requirement])
def test_an_output_that_depends_on_gradients_is_called_so(fn):
    (failure,) = diagnose(fn).failures
    assert failure.name == "the output depends on whether gradients are recorded"
    assert "The output is right, but" not in failure.likely


# ---------------------------------------------------------------- what was compared


def test_rows_without_keys_are_not_counted():
    def fn(q, k, v):
        assert q.shape[-2] == k.shape[-2]
        return causal(q, k, v)

    text = next(text for text in diagnose(fn, causal=True).holds if "equal to" in text)
    n = sum(a.isdigit() and int(a) for a in text.split())
    assert text == f"equal to the reference in {n} different calls"
    more = next(text for text in diagnose(causal, causal=True).holds if "equal to" in text)
    assert more.endswith("different calls, rows that may attend to nothing left out")


# ---------------------------------------------------------------- fills that close too little


def causally_filled(number):
    return lambda q, k, v: filled(number)(q, k, v, past_of(q, k))


class LearnedFill(nn.Module):
    def __init__(self):
        super().__init__()
        self.fill = nn.Parameter(torch.tensor(-6.7))

    def forward(self, q, k, v, mask=None):
        fill = closing(lambda scores, mask: torch.where(mask, scores, self.fill.to(scores.dtype)))
        return fill(q, k, v, mask)


@pytest.mark.parametrize("number", [-20.0, -50.0, -100.0, -1e3])
def test_usual_fills_that_are_too_small_are_named(number):
    assert diagnose(filled(number), mask_means="attend").mistakes == ["mask_small_fill"]
    assert diagnose(filled(number)).mistakes == ["mask_small_fill"]


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lambda: filled(-7.3), {"mask_means": "attend"}),
        (lambda: filled(-30.0), {"mask_means": "attend"}),
        (lambda: filled(-41.0), {}),
        (LearnedFill, {"mask_means": "attend"}),
        (lambda: causally_filled(-7.3), {"causal": True}),
        (lambda: causally_filled(-30.0), {"causal": True}),
        (lambda: causally_filled(-200.0), {}),
    ],
)
def test_other_fills_are_shown_to_leak_in_numbers(make, options):
    (failure,) = diagnose(make(), **options).failures
    assert failure.mistake == "closed_key_reaches_output"
    assert "is closed to query" in failure.example
    before, after = (line.partition("[")[2] for line in failure.example.splitlines()[1:])
    assert before != after


@pytest.mark.parametrize("number", [-1e4, -1e9, torch.finfo(torch.float32).min])
def test_large_fills_are_right(number):
    assert set(diagnose(filled(number)).mistakes) <= {"mask_fill_overflows_half"}
    assert set(diagnose(causally_filled(number)).mistakes) <= {"mask_fill_overflows_half"}


# ---------------------------------------------------------------- methods, flags and packed weights


def with_flag(q, k, v, is_causal=False):
    return causal(q, k, v) if is_causal else plain(q, k, v)


def test_a_flag_that_is_passed_on_is_said():
    assert "is_causal=True is passed in each call" in diagnose(with_flag, causal=True).assumed
    assert "is_causal" not in words_of(diagnose(with_flag), "assumed")
    said = diagnose(with_flag, causal=True, options={"is_causal": True})
    assert said.ok
    assert "is_causal" not in words_of(said, "assumed")


@pytest.mark.parametrize("masked", [False, True])
def test_a_third_example_is_compared_in_most_calls(masked):
    """Wrong from the third example on, for 5 positions only."""

    def fn(q, k, v, mask=None):
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        if q.shape[-2] == 5 and masked == (mask is not None):
            out[2:] = out[2:] * 1.5
        return out

    (failure,) = diagnose(fn, mask_means="attend").failures
    assert failure.mistake is None


# ---------------------------------------------------------------- what is kept


def first_keys_alone(q, k, v):
    closed = torch.arange(k.shape[-2]) >= 4
    return scores_of(q, k).masked_fill(~past_of(q, k) | closed, -math.inf).softmax(-1) @ v


def test_the_first_keys_are_no_window():
    assert "window" not in words_of(diagnose(first_keys_alone), "assumed")


not_a_number = closing(
    lambda scores, mask: scores + (~mask).to(scores.dtype) * torch.tensor(-1e9).to(scores.dtype)
)


# ---------------------------------------------------------------- what only the author can say


closes_where_true = closing(lambda scores, mask: scores.masked_fill(mask, -math.inf))


@pytest.mark.parametrize(
    ("fn", "guess"), [(closes_where_true, "mask_means='attend'"), (causal, "causal")]
)
def test_nothing_is_right_without_what_was_guessed(fn, guess):
    report = diagnose(fn)
    assert report.ok, report
    assert str(report).startswith(
        f"{fn.__name__}: no mistake found, if you mean what is assumed below."
    )
    assert any(guess in text for text in report.assumed)
    said = {"mask_means": "blocked"} if fn is closes_where_true else {"causal": True}
    assert "if you mean" not in str(diagnose(fn, **said))


def test_a_function_that_cannot_run_is_told_so_and_not_asked_for_layouts():
    def forgot(q, k, v):
        return (q @ k.mT / maths.sqrt(q.shape[-1])).softmax(-1) @ v  # noqa: F821

    words = r"^fn fails whatever it is given, mend that first: NameError: name 'maths'"
    with pytest.raises(ValueError, match=words):
        diagnose(forgot)


# ---------------------------------------------------------------- what a mask means


def either_alone(q, k, v, mask=None):
    cells = past_of(q, k)
    if mask is not None:
        cells = mask.int() + cells.int() == 1  # of 0 and -inf too
    return scores_of(q, k).masked_fill(~cells, torch.finfo(q.dtype).min).softmax(-1) @ v


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
    assert any("pass mask_shape='B1TS'" in note.text for note in report.notes)
    (failure,) = diagnose(merging(-2), mask_shape="B1TS").failures
    assert failure.name == "the queries' masks are merged"
    (failure,) = diagnose(merging(0), mask_shape="B1TS").failures
    assert failure.name == "the examples' masks are merged"
    assert "pass mask_shape" not in "".join(n.text for n in diagnose(closing(ADDITIVE[0])).notes)


# ---------------------------------------------------------------- what was seen, and what assumed


def with_a_prefix(q, k, v):
    cells = past_of(q, k) | (torch.arange(k.shape[-2]) < 2)
    return scores_of(q, k).masked_fill(~cells, -math.inf).softmax(-1) @ v


EVIDENCE = {
    where_lengths_agree: "with 6 queries and 6 keys, queries attend to no later key; with 4 "
    "queries and 7 keys, queries attend to all later keys",
    with_a_prefix: "with 6 queries and 6 keys, queries attend to 1 of 15 later keys, query 0 to "
    "key 1 first; with 4 queries and 7 keys, queries attend to no later key",
}


@pytest.mark.parametrize("fn", EVIDENCE)
def test_what_was_seen_is_said_before_what_is_assumed(fn):
    (failure,) = diagnose(fn).failures
    assert failure.likely.startswith(f"Seen: {EVIDENCE[fn]}. As causal= is not passed,")
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
    assert diagnose(fn, mask_means="attend").mistakes == ["mask_small_fill"]


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


# ---------------------------------------------------------------- one function, one report


MERGE = "heads_merged_without_transpose"
OVERFLOW = ["mask_fill_overflows_half"], {"example": "In float16"}
REPORTED = {
    "two mistakes": (
        lambda q, k, v: (q @ k.mT).softmax(-2) @ v,
        {},
        ["scale_missing", "softmax_over_queries"],
        {},
    ),
    "two mistakes and rows without a key": (
        side_by_side(unscaled_causal, False),
        {"causal": True, "heads": 4},
        [MERGE, "scale_missing"],
        {},
    ),
    "heads that nothing says": (
        side_by_side(by_torch, True),
        {"causal": True},
        [None],
        {"likely": "pass heads="},
    ),
    "the longest length": (leaks_late, {"causal": True}, [], {"unchecked": "more than 133 keys"}),
    "the triangle of torch": (
        top_left,
        {"causal": True},
        ["causal_top_left"],
        {"likely": "Where they are equal", "repair": 'pass causal="top_left"'},
    ),
    "the triangle of torch, as meant": (top_left, {"causal": "top_left"}, [], {}),
    "numbers that are not added": (
        either_alone,
        {},
        ["closed_key_reaches_output"],
        {"assumed": "what the mask means: True = may attend; if not, pass mask_means='blocked'"},
    ),
    "a guess that is not meant": (
        closes_where_true,
        {"mask_means": "attend"},
        ["mask_inverted"],
        {},
    ),
    "NaN in half precision": (
        not_a_number,
        {},
        [None],
        {"likely": "In float16 with a mask some rows that may attend to something"},
    ),
    "right where lengths are equal": (
        where_lengths_agree,
        {"causal": False},
        [None],
        {"likely": "in all with T != S."},
    ),
    "a required mask that overflows": (
        lambda q, k, v, mask: scores_of(q, k).masked_fill(~mask, -1e9).softmax(-1) @ v,
        {},
        *OVERFLOW,
    ),
    "a mask that overflows": (filled(-1e9), {}, *OVERFLOW),
    "a triangle that overflows": (causally_filled(-1e9), {}, *OVERFLOW),
}


@pytest.mark.parametrize("name", REPORTED)
def test_one_report(name):
    fn, options, mistakes, words = REPORTED[name]
    report = diagnose(fn, **options)
    assert sorted(report.mistakes, key=str) == mistakes, report
    for field, text in words.items():  # a whole line of the report, or words of its one failure
        place = report if hasattr(report, field) else report.failures[0]
        assert text in getattr(place, field)
