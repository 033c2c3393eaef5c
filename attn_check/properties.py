"""What must hold whatever the numbers are; each check asks one thing and settles it."""

from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from attn_check.cases import Exam, far_below, with_empty_row, with_other_key, without_padded_rows
from attn_check.reference import Case
from attn_check.report import largest, numbers
from attn_check.search import compared, reachable
from attn_check.subject import Answer

APART = "examples of a batch do not influence each other"
_INDEPENDENT = "a call does not depend on earlier ones"


def same(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether two tensors hold the same numbers, NaN included, to the last bit."""
    if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
        return a is b
    return torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


def check_repeats(exam: Exam, probe: Exam) -> None:
    """Equal calls of fresh copies are equal; else they are tried again, without dropout."""
    case, subject = probe.case("repeat", 5), exam.subject
    first, second = (subject.fresh().answer(case).out for _ in range(2))
    if first is None or second is None or same(first, second):
        return
    text = f"Two equal calls in evaluation mode differ by up to {largest(first, second):.3g}"
    quiet = (subject.fresh(never_drops=True).answer(case).out for _ in range(2))
    subject.never_drops = same(*quiet)
    exam.random = not subject.never_drops
    if exam.random:
        exam.found.known("not_deterministic", f"{text}.")
    else:
        text += "; with dropout switched off, as in all other checks, they are equal"
        exam.found.known("dropout_in_evaluation", f"{text}.")


def check_state(exam: Exam, probe: Exam) -> str | None:
    """The mistake, if a call is not answered as by a copy that was never called."""
    case, used = probe.case("first", 5), exam.subject.fresh()
    for words, now in (
        ("5 positions", case),
        ("5 positions of other values", probe.case("same length", 5)),
        ("7 positions", probe.case("another length", 7)),
        ("the first 5 positions again", case),
        ("5 positions of 5 examples", probe.case("more examples", 5, B=5)),
    ):
        alone, after = exam.subject.fresh().answer(now).out, used.answer(now)
        if alone is not None and not same(alone, after.out):
            exam.subject.always_fresh = True
            exam.state_example = _after_others(f"A call with {words}", alone, after)
            return "causal_cached_length" if words == "7 positions" else "state_between_calls"
    exam.found.holds.append(_INDEPENDENT)
    return None


def _after_others(call: str, first: Tensor, after: Answer) -> str:
    if after.out is None:
        return f"{call} raises after other calls: {after.raised}"
    return f"{call} differs by up to {largest(first, after.out):.3g} after other calls."


def check_again(exam: Exam) -> None:
    """The first call again, some times, after all others: else it depends on these."""
    if not exam.answered or exam.random or exam.subject.always_fresh or exam.drifts:
        return
    case, first = exam.answered[0][0], exam.answered[0][1].out
    assert first is not None  # noqa: S101
    for again in (exam.subject.answer(case) for _ in range(6)):
        if again.out is None or not exam.equal(again.out, first, case):
            exam.drifts = True
            exam.found.holds = [text for text in exam.found.holds if text != _INDEPENDENT]
            text = _after_others(f"The same call ({case.name})", first, again)
            exam.found.known("state_between_calls", text)
            return


def check_arguments(exam: Exam) -> None:
    """Tensors and masks that are passed stay as they are."""
    subject, found, called = exam.subject, exam.found, False
    case = exam.padded(exam.case("arguments", 5, B=1 + ("B" in subject.layout)))
    for training in (True, False):
        try:
            if subject.module is not None:
                subject.module.train(training)
            tensors, mask = subject.tensors(case), subject.mask_of(case)
            passed = tensors if mask is None else {**tensors, "mask": mask}
            before = {name: x.clone() for name, x in passed.items()}
            with torch.no_grad():
                subject.quiet_call(tensors, mask)
        except Exception:  # other checks report what it raises  # noqa: S112
            continue
        called = True
        for name, x in passed.items():
            if not same(x, before[name]):
                was, now = (f"{tuple(x.shape)}, {numbers(x)}" for x in (before[name], x))
                mistake = "inplace_mask" if name == "mask" else "inplace_arguments"
                found.known(mistake, f"{name} before the call: {was}; after: {now}.")
    if called and {"inplace_arguments", "inplace_mask"}.isdisjoint(found.mistakes):
        found.holds.append("arguments are not changed")


def check_batch(exam: Exam) -> None:
    """Examples of a batch have no influence on each other."""
    case = exam.case("batch", 5, B=3)
    other = {role: torch.cat([x[:1], -2.0 * x[1:]]) for role, x in case.tensors.items()}
    base, moved = exam.out(case), exam.out(case.with_tensors(**other))
    if base is None or moved is None or "B" not in exam.subject.layout:
        return
    text = "Other examples 1 and 2 of a batch change the output of example 0 by up to "
    text += f"{largest(base[:1], moved[:1]):.3g}."
    exam.found.settle(exam.equal(base[:1], moved[:1], case.example()), APART, "batch_leak", text)


def check_strides(exam: Exam) -> None:
    """Inputs that are stored in another order give the same output."""
    case, words = exam.case("strides", 5), "inputs that are not contiguous"
    one, two = exam.out(case), replace(exam.subject, strided=True).answer(case)
    if two.out is None:
        exam.found.unchecked.append(f"{words}: {two.raised}")
    elif one is not None:
        text = f"The same values, stored in another order: up to {largest(one, two.out):.3g}."
        right = exam.equal(one, two.out, case)
        exam.found.settle(right, f"{words} give the same output", "not_contiguous", text)


def check_closed_keys(exam: Exam) -> bool:
    """Whether keys that are closed to a query have no influence on it; else a failure."""
    for case in map(exam.padded, [exam.case("5 positions", 5), far_below(exam)]):
        one = case.example()
        closed = ~reachable(exam.intent, 5, 5)
        closed = closed if one.mask is None else closed | ~one.mask[0]
        if exam.subject.projects:
            closed = closed & ~torch.eye(5, dtype=torch.bool)
        for t, s in (exam.influence(one) & closed).nonzero()[:1].tolist():
            before, after = exam.out(one), exam.out(with_other_key(one, s))
            if before is None or after is None:  # it raises, which others report
                continue
            row = replace(one, mask=None, ignored=torch.arange(5)[None] != t)
            text = f"key {s} is closed to query {t}; actual: with another key, expected: without. "
            exam.found.known("closed_key_reaches_output", text + exam.shown(row, after, before))
            return False
    return True


def check_empty_row(exam: Exam) -> None:
    """A query that may attend to nothing changes no other query's output."""
    case = with_empty_row(exam)
    case = without_padded_rows(case) if exam.ignores_padded else case
    out, expected = exam.out(case), exam.expected(case)
    if exam.masked and out is not None:
        text = "a query that may attend to nothing changes no other query"
        alike, example = exam.equal(out, expected, case), exam.shown(case, out, expected)
        exam.found.settle(alike, text, "empty_row_spreads", example)


def check_three_inputs(exam: Exam) -> None:
    """A module of (q, k, v), where all three differ."""
    if exam.layer is None or not {"q", "k", "v"} <= exam.subject.roles:
        return
    case = exam.cross(exam.case("three different inputs", 5))
    values = exam.size * exam.normal(2, 5, exam.layer.weights["v"].shape[1])
    case = case.with_tensors(values=values)
    answer, expected = exam.subject.answer(case), exam.expected(case)
    if answer.out is None:
        exam.found.unchecked.append(f"keys that are not also the values: {answer.raised}")
    elif exam.equal(answer.out, expected, case):
        exam.found.holds.append("keys and values are each read from their own input")
    else:
        name = "keys and values are not read from their own inputs"
        text = "Right where the same tensor is passed as both, wrong otherwise."
        exam.found.broken(name, text, exam.shown(case, answer.out, expected))


def check_clones(exam: Exam) -> None:
    """The projections of queries and keys start with different weights."""
    if exam.subject.projects:
        weights = exam.subject.layers[0].weights
        pairs = [pair for pair in ("qk", "qv", "kv") if same(*(weights[role] for role in pair))]
        text = f"The weights of {' and '.join(pairs[0] if pairs else '')} are equal."
        held = "queries, keys and values have weights of their own"
        exam.found.settle(not pairs, held, "projections_cloned", text)


_HALF = (torch.float16, torch.bfloat16)


def check_precision(exam: Exam) -> None:
    """Ask in every dtype, with a mask too, and look for NaN and infinity."""
    subject, unchecked = exam.subject, exam.found.unchecked
    if subject.dtype != torch.float32:
        stored = str(subject.dtype).removeprefix("torch.")
        unchecked.append(f"half precision: the parameters are {stored}")
        return
    if subject.module is not None and subject.fresh().module is subject.original:
        unchecked.append("half precision, other dtypes: the module cannot be copied")
        return
    case, finite = exam.case("half", 24, B=4), dict[str, bool]()
    if not subject.projects:
        case = case.with_tensors(q=10.0 * case.tensors["q"])
    cases = [("", case)] + ([(" with a mask", exam.padded(case))] if subject.takes_mask else [])
    for dtype, (words, one) in product((*_HALF, torch.float32, torch.float64), cases):
        name = f"{str(dtype).removeprefix('torch.')}{words}"
        out = _in_dtype(exam, one, dtype, name)
        if out is not None and dtype in _HALF:
            finite[name] = bool(compared(out, one, exam.intent).isfinite().all())
    if lost := [name for name, is_finite in finite.items() if not is_finite]:
        text = "some rows that may attend to something are NaN or infinite."
        exam.found.broken("NaN or infinity in half precision", f"In {' and '.join(lost)} {text}")
    elif finite:
        exam.found.holds.append("half precision gives no NaN, and nothing infinite")


def _in_dtype(exam: Exam, case: Case, dtype: torch.dtype, name: str) -> Tensor | None:
    """The output in another dtype, and what is wrong with it apart from its numbers."""
    twin, found = exam.subject.fresh(dtype=dtype), exam.found
    answer, half = twin.answer(case), dtype in _HALF
    if answer.out is None and half and "overflow" in answer.raised:
        found.known("mask_fill_overflows_half", f"In {name}: {answer.raised}")
    elif answer.out is None:
        found.unchecked.append(f"{'half precision, ' if half else ''}{name}: {answer.raised}")
    elif answer.dtype != dtype:
        text = f"Inputs of {name} give an output of {str(answer.dtype).removeprefix('torch.')}."
        if not half:
            found.known("output_dtype", text)
        elif "output_dtype" not in {note.mistake for note in found.notes}:
            exam.note(text, "output_dtype")
    return answer.out
