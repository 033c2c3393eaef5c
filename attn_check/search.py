"""Which known mistakes reproduce the function's numbers in every case: hypotheses on trial."""

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from attn_check.mistakes import MISTAKES, Mistake
from attn_check.reference import Case, Change, Intent, Layer, Run, compute, first, near, triangle
from attn_check.subject import Answer


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """One or two mistakes, each in one of its forms, and what empty rows give."""

    mistakes: tuple[str, ...]
    change: Change
    parts: tuple[Change, ...]
    intent: Intent
    layer: Layer | None


_EMPTY = ("nan", "zeros", "uniform")
Memo = dict[tuple[int, int], tuple[list[Hypothesis], list[Hypothesis]]]

_ROWS: WeakKeyDictionary[Case, dict[tuple, Tensor | None]] = WeakKeyDictionary()


def open_rows(case: Case, intent: Intent) -> Tensor | None:
    """(B, T) rows that may attend to something; None where all may."""
    known, key = _ROWS.setdefault(case, {}), (intent.causal, intent.window)
    if key not in known:
        known[key] = _open_rows(case, intent)
    return known[key]


def _open_rows(case: Case, intent: Intent) -> Tensor | None:
    T, S = case.lengths
    cells = reachable(intent, T, S).expand(case.batch, T, S)
    if case.mask is not None:
        cells = cells & (case.mask.all(dim=1) if case.mask.dim() == 4 else case.mask)
    rows = cells.any(dim=-1) if case.ignored is None else cells.any(dim=-1) & ~case.ignored
    return None if rows.all() else rows


def reachable(intent: Intent, T: int, S: int) -> Tensor:
    """(T, S) cells that causal mask and window open."""
    run = Run(intent=intent, T=T, S=S)
    cells = triangle(T, S, first(run) if intent.causal else S)
    return cells if intent.window is None else cells & near(run, intent.window)


def allowed(case: Case, expected: Tensor) -> float:
    """How far an output may be off from the expected one."""
    finite = expected[expected.isfinite()]
    return case.tolerance * (1.0 + (finite.abs().max().item() if finite.numel() else 0.0))


def equal(actual: Tensor, expected: Tensor, case: Case, intent: Intent) -> bool:
    """Whether two outputs agree in all rows that may attend to something."""
    if actual.shape != expected.shape:
        return False
    rows = open_rows(case, intent)
    if rows is not None:
        actual, expected = rows_of(actual, rows), rows_of(expected, rows)
    atol = allowed(case, expected)
    return torch.allclose(actual, expected, rtol=0.0, atol=atol, equal_nan=True)


def compared(out: Tensor, case: Case, intent: Intent) -> Tensor:
    """The rows of an output that may attend to something."""
    rows = open_rows(case, intent)
    return out if rows is None else rows_of(out, rows)


def rows_of(out: Tensor, rows: Tensor) -> Tensor:
    """The rows of (B, T, ·) or (B, H, T, ·) that are chosen."""
    return out[rows] if out.dim() == 3 else out.transpose(1, 2)[rows]


def agrees(answer: Answer, case: Case, hypothesis: Hypothesis, meant: Intent) -> bool:
    """Whether a hypothesis gives the answer of one case; a call that raised says nothing."""
    if answer.out is None:
        return True
    try:
        run = compute(case, hypothesis.intent, hypothesis.layer, hypothesis.change)
    except (RuntimeError, ValueError, IndexError, TypeError):
        return False
    if hypothesis.mistakes == ("softmax_low_precision",):
        return _rounded(answer.out, run.out, case, hypothesis, meant)
    return equal(answer.out, run.out, case, meant)


def _rounded(
    actual: Tensor, rounded: Tensor, case: Case, hypothesis: Hypothesis, meant: Intent
) -> bool:
    exact, rows = compute(case, meant, hypothesis.layer).out, open_rows(case, meant)
    if rows is not None and actual.shape == rounded.shape:
        actual, rounded, exact = (rows_of(out, rows) for out in (actual, rounded, exact))
    return mostly_equal(actual, rounded, exact)


def mostly_equal(actual: Tensor, rounded: Tensor, exact: Tensor) -> bool:
    """Whether a rounded variant is much nearer than the reference, wherever the two differ.

    Single rows may be off: a score at the edge is rounded either way.
    """
    if actual.shape != rounded.shape or bool(actual.isnan().any() | rounded.isnan().any()):
        return False
    off, gap = (actual - rounded).abs().mean().item(), (exact - rounded).abs().mean().item()
    return off < max(0.35 * gap, 1e-6)


def right(intent: Intent, layer: Layer | None) -> Hypothesis:
    """The hypothesis that nothing is wrong."""
    return Hypothesis((), {}, (), intent, layer)


def explain(
    cases: Sequence[tuple[Case, Answer]],
    meant: Intent,
    layers: Sequence[Layer | None],
    *,
    depth: int = 3,
    deadline: float = math.inf,
    memo: Memo | None = None,
) -> list[Hypothesis]:
    """The smallest sets of known mistakes that give every answer, of as few as the depth allows.

    Depth 1: one mistake, or none; 2: two, one of which explains the simplest failing case alone;
    3: two that explain it together. The deadline is by ``time.thread_time``, so that what else
    runs does not matter; the memo holds what earlier calls with this intent and layers found.
    """
    answered = [(case, answer) for case, answer in cases if answer.out is not None]
    memo = {} if memo is None else memo
    for layer in layers:
        base = right(meant, layer)
        fine = [c for c in answered if agrees(c[1], c[0], base, meant)]
        failing = [c for c in answered if c not in fine]
        if not failing:
            return [base] if depth == 1 else []
        failing.sort(key=lambda c: (c[0].closes, _cost(c[0])))
        ordered = failing + fine
        key = (id(failing[0][0]), id(layer))
        if key not in memo:
            others = [replace(meant, empty=e) for e in _EMPTY if e != meant.empty]
            forms = [h for m in MISTAKES.values() for h in _forms(m, [meant, *others], layer)]
            memo[key] = forms, [h for h in forms if _all(h, failing[:1], meant)]
        forms, alone = memo[key]
        if depth == 1:
            fits = [h for one in alone for h in _fitting(one, ordered, meant)]
        else:
            fits = _pairs(forms, alone, ordered, meant, depth, deadline)
        if fits:
            return fits
    return []


def _cost(case: Case) -> int:
    T, S = case.lengths
    return T * S * case.batch


def _all(hypothesis: Hypothesis, cases: Sequence[tuple[Case, Answer]], meant: Intent) -> bool:
    return all(agrees(answer, case, hypothesis, meant) for case, answer in cases)


def _forms(mistake: Mistake, intents: list[Intent], layer: Layer | None) -> list[Hypothesis]:
    """With what is meant of empty rows alone, or also with what else they may give."""
    return [
        Hypothesis((mistake.id,), change, (change,), intent, layer)
        for change in mistake.forms
        for intent in (intents if mistake.empties else intents[:1])
    ]


def _pairs(
    forms: list[Hypothesis],
    alone: list[Hypothesis],
    ordered: Sequence[tuple[Case, Answer]],
    meant: Intent,
    depth: int,
    deadline: float,
) -> list[Hypothesis]:
    simplest = ordered[:1]
    candidates: Iterable[tuple[Hypothesis, Hypothesis]]
    if depth == 2:
        candidates = ((a, b) for a in alone for b in forms)
    else:  # neither alone explains the case: both change it
        expected = compute(simplest[0][0], meant, forms[0].layer).out
        candidates = _by_form([h for h in forms if _changes(h, simplest[0][0], expected, meant)])
    fits: list[Hypothesis] = []
    for n, (a, b) in enumerate(candidates):
        if n % 16 == 0 and time.thread_time() > deadline:  # to ask is slow too
            break
        both = _together(a, b)
        if both is not None:
            fits += _fitting(both, ordered, meant)
    return fits


def _fitting(
    hypothesis: Hypothesis, ordered: Sequence[tuple[Case, Answer]], meant: Intent
) -> list[Hypothesis]:
    """The hypothesis, with what rows without a key give, if it gives every answer.

    Such rows are not compared, but a mistake may move them to where others are expected.
    """
    if not _all(hypothesis, ordered[:1], meant):
        return []
    if _all(hypothesis, ordered[1:], meant):
        return [hypothesis]
    rest = [c for c in ordered if open_rows(c[0], meant) is None]
    if len(rest) == len(ordered) or not _all(hypothesis, rest, meant):
        return []
    others = [e for e in _EMPTY if e != hypothesis.intent.empty]
    tried = [replace(hypothesis, intent=replace(hypothesis.intent, empty=e)) for e in others]
    return [one for one in tried if _all(one, ordered, meant)]


def _by_form(forms: list[Hypothesis]) -> list[tuple[Hypothesis, Hypothesis]]:
    """All pairs; those of the first form of both mistakes before those of later forms."""
    count: Counter[tuple[str, ...]] = Counter()
    ranked = []
    for form in forms:
        ranked.append((count[form.mistakes], form))
        count[form.mistakes] += 1
    pairs = sorted(combinations(ranked, 2), key=lambda pair: pair[0][0] + pair[1][0])
    return [(a, b) for (_, a), (_, b) in pairs]


def _changes(hypothesis: Hypothesis, case: Case, expected: Tensor, meant: Intent) -> bool:
    """Whether a mistake gives another output in this case than the reference."""
    try:
        out = compute(case, hypothesis.intent, hypothesis.layer, hypothesis.change).out
    except (RuntimeError, ValueError, IndexError, TypeError):
        return False
    return not equal(out, expected, case, meant)


def _together(a: Hypothesis, b: Hypothesis) -> Hypothesis | None:
    if a.mistakes == b.mistakes or a.change.keys() & b.change.keys():
        return None
    if a.intent.empty != b.intent.empty:
        return None
    one, other = sorted((a, b), key=lambda h: h.mistakes)  # names and parts in one order
    pair, parts = (*one.mistakes, *other.mistakes), (*one.parts, *other.parts)
    return Hypothesis(pair, {**a.change, **b.change}, parts, a.intent, a.layer)
