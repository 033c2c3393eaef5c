"""Which known mistakes reproduce the function's numbers in every case: hypotheses on trial."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product, repeat
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from attn_check.mistakes import MISTAKES
from attn_check.reference import Case, Change, Intent, Layer, Run, compute, triangle
from attn_check.subject import Answer


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """One or two mistakes, each in one of its forms, and what empty rows give."""

    mistakes: tuple[str, ...]
    forms: tuple[int, ...]  # the number of each one's form
    change: Change
    intent: Intent
    layer: Layer | None


Pair = tuple[Case, Answer]
Answered = Sequence[Pair]

_EMPTY = ("nan", "zeros", "uniform")
_ROWS: WeakKeyDictionary[Case, dict[tuple, Tensor | None]] = WeakKeyDictionary()
_ALONE: WeakKeyDictionary[Case, dict[tuple, list[Hypothesis]]] = WeakKeyDictionary()


def open_rows(case: Case, intent: Intent) -> Tensor | None:
    """(B, T) rows that may attend to something; None where all may."""
    known, key = _ROWS.setdefault(case, {}), (intent.causal, intent.window)
    if key not in known:
        cells = reachable(intent, *case.lengths).expand(case.batch, *case.lengths)
        if case.mask is not None:
            cells = cells & (case.mask.all(dim=1) if case.mask.dim() == 4 else case.mask)
        rows = cells.any(dim=-1)
        rows = rows if case.ignored is None else rows & ~case.ignored
        known[key] = None if rows.all() else rows
    return known[key]


def reachable(intent: Intent, T: int, S: int) -> Tensor:
    """(T, S) cells that causal mask and window open."""
    run = Run(intent=intent, T=T, S=S)
    cells = triangle(T, S, run.first if intent.causal else S)
    return cells if intent.window is None else cells & run.near(intent.window)


def allowed(case: Case, expected: Tensor) -> float:
    """How far an output may be off from the expected one."""
    size = expected.nan_to_num(0.0, 0.0, 0.0).abs().max().item() if expected.numel() else 0.0
    return case.tolerance * (1.0 + size)


def equal(actual: Tensor, expected: Tensor, case: Case, intent: Intent) -> bool:
    """Whether two outputs agree in all rows that may attend to something."""
    if actual.shape != expected.shape:
        return False
    actual, expected = (compared(x, case, intent) for x in (actual, expected))
    atol = allowed(case, expected)
    return torch.allclose(actual, expected, rtol=0.0, atol=atol, equal_nan=True)


def compared(out: Tensor, case: Case, intent: Intent) -> Tensor:
    """The rows of an output that may attend to something."""
    rows = open_rows(case, intent)
    return out if rows is None else rows_of(out, rows)


def rows_of(out: Tensor, rows: Tensor) -> Tensor:
    """The rows of (B, T, ·) or (B, H, T, ·) that are chosen."""
    return out[rows] if out.dim() == 3 else out.transpose(1, 2)[rows]


def agrees(pair: Pair, hypothesis: Hypothesis, meant: Intent) -> bool:
    """Whether a hypothesis gives the answer of one case; a call that raised says nothing."""
    case, actual = pair[0], pair[1].out
    out = outcome(case, hypothesis)
    if actual is None or out is None:
        return actual is None
    if hypothesis.mistakes != ("softmax_low_precision",):
        return equal(actual, out, case, meant)
    if actual.shape != out.shape:
        return False
    exact = compute(case, meant, hypothesis.layer).out
    actual, out, exact = (compared(x, case, meant) for x in (actual, out, exact))
    # much nearer than the reference; single rows may be off: an edge is rounded either way
    off, gap = (actual - out).abs().mean().item(), (exact - out).abs().mean().item()
    return off < max(0.35 * gap, 1e-6)  # never where something is NaN


def outcome(case: Case, hypothesis: Hypothesis) -> Tensor | None:
    """The output of a hypothesis; None where it cannot be computed."""
    try:
        return compute(case, hypothesis.intent, hypothesis.layer, hypothesis.change).out
    except (RuntimeError, ValueError, IndexError, TypeError):
        return None


def right(intent: Intent, layer: Layer | None) -> Hypothesis:
    """The hypothesis that nothing is wrong."""
    return Hypothesis((), (), {}, intent, layer)


def explain(
    answered: Answered,
    meant: Intent,
    layers: Sequence[Layer | None],
    *,
    depth: int,
    tries: Iterable[int] = (),
) -> list[Hypothesis]:
    """The smallest sets of known mistakes that give every answer, of as few as the depth allows.

    Depth 1: one mistake, or none; 2: two, one of which explains the simplest failing case alone;
    3: two that explain it together. Of pairs, only as many are tried as ``tries`` has items left.
    """
    simple = sorted(answered, key=by_size)
    for layer in layers:
        base = right(meant, layer)
        ordered = sorted(simple, key=lambda pair: agrees(pair, base, meant))
        if not ordered or agrees(ordered[0], base, meant):
            return [base] if depth == 1 else []
        fits: list[Hypothesis] = []
        candidates = _candidates(ordered[0], base, depth)
        # tries come first: where none is left, nothing is computed
        for _, candidate in zip(repeat(0) if depth == 1 else tries, candidates, strict=False):
            fits += _fitting(candidate, ordered, meant)
        if fits:
            return fits
    return []


def _candidates(failing: Pair, base: Hypothesis, depth: int) -> Iterator[Hypothesis]:
    """What may explain one failing case, the likeliest first."""
    case, meant = failing[0], base.intent
    if depth == 1:
        yield from _alone(failing, base)
    elif depth == 2:
        both = product(_alone(failing, base), _forms(base))
        yield from filter(None, (_together(meant, *pair) for pair in both))
    else:  # neither alone explains the case: both change it
        expected = compute(case, meant, base.layer).out
        outs = [(form, outcome(case, form)) for form in _forms(base)]
        changing = [h for h, x in outs if x is not None and not equal(x, expected, case, meant)]
        pairs = sorted(combinations(changing, 2), key=lambda two: sum(two[0].forms + two[1].forms))
        yield from filter(None, (_together(meant, *pair) for pair in pairs))


def _forms(base: Hypothesis) -> list[Hypothesis]:
    """Every mistake in every form, with what is meant of empty rows, or what else they may give."""
    others = _other_rows(base.intent)
    return [
        Hypothesis((mistake.id,), (form,), change, intent, base.layer)
        for mistake in MISTAKES.values()
        for form, change in enumerate(mistake.forms)
        for intent in ([base.intent, *others] if mistake.empties else [base.intent])
    ]


def _other_rows(intent: Intent) -> list[Intent]:
    """The same, but that rows without a key give something else."""
    return [replace(intent, empty=empty) for empty in _EMPTY if empty != intent.empty]


def _alone(failing: Pair, base: Hypothesis) -> list[Hypothesis]:
    """Single mistakes that explain one failing case: found once, as several searches ask."""
    known, key = _ALONE.setdefault(failing[0], {}), (failing[1], base.intent, base.layer)
    if key not in known:
        known[key] = [form for form in _forms(base) if agrees(failing, form, base.intent)]
    return known[key]


def _fitting(hypothesis: Hypothesis, ordered: Answered, meant: Intent) -> list[Hypothesis]:
    """The hypothesis, with what rows without a key give, if it gives every answer."""

    def fits(one: Hypothesis, pairs: Answered) -> bool:
        return all(agrees(pair, one, meant) for pair in pairs)

    if not fits(hypothesis, ordered[:1]):
        return []
    if fits(hypothesis, ordered[1:]):
        return [hypothesis]
    if not fits(hypothesis, [pair for pair in ordered if open_rows(pair[0], meant) is None]):
        return []
    # rows without a key are not compared, but a mistake may move them to where others are expected
    tried = [replace(hypothesis, intent=intent) for intent in _other_rows(hypothesis.intent)]
    return [one for one in tried if fits(one, ordered)]


def _together(meant: Intent, *pair: Hypothesis) -> Hypothesis | None:
    """Two mistakes at once, if they change other steps; at most one has other empty rows."""
    a, b = sorted(pair, key=lambda h: h.mistakes)  # names and parts in one order
    other = {h.intent.empty: h.intent for h in pair if h.intent.empty != meant.empty}
    if a.mistakes == b.mistakes or {*a.change} & {*b.change} or len(other) > 1:
        return None
    intent, change = next(iter(other.values()), meant), {**a.change, **b.change}
    return Hypothesis(a.mistakes + b.mistakes, a.forms + b.forms, change, intent, a.layer)


def by_size(pair: Pair) -> tuple:
    """What cases are sorted by: those that tell something first, then the smallest."""
    lost = pair[1].out is not None and bool(pair[1].out.isnan().all())
    return lost, pair[0].closes, 1 in (pair[0].batch, pair[0].lengths[1]), pair[0].lengths
