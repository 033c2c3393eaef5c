"""From the answers to the findings: hypotheses first, properties where none fits."""

import time
from collections.abc import Iterator
from dataclasses import replace

from torch import nn

from attn_check import explore, properties, unknown
from attn_check.cases import (
    Draw,
    guessed_cases,
    masked_cases,
    opened,
    plain_cases,
    without_padded_rows,
)
from attn_check.conventions import output_shape
from attn_check.further import further
from attn_check.mistakes import MISTAKES
from attn_check.modes import check_training
from attn_check.reference import Case, Intent, Layer, compute
from attn_check.report import Failure, Findings, Note, show
from attn_check.search import Hypothesis, Memo, agrees, equal, explain, open_rows, right
from attn_check.subject import Answer, Subject
from attn_check.unknown import Answered

_ASSUMED = {"causal_not_meant", "rope_missing", "rope_base", "rope_pairing"}  # not meant then
PROPERTIES = {"batch_leak", "closed_key_reaches_output"}


def examine(subject: Subject, intent: Intent, found: Findings) -> None:
    """Ask the battery, explain the answers, and check what needs no reference."""
    draw = Draw(subject, intent)
    answered = _answers(subject, draw, found)
    if answered and not subject.random:
        properties.check_again(subject, *answered[0], intent, found)
    layers: list[Layer | None] = list(subject.layers) or [None]
    if subject.random:
        found.unchecked.append("everything else: the output is random")
        return
    intent = _meant(subject, answered, intent, layers, found)
    draw.intent = intent
    layers = _fitting_first(answered, intent, layers)
    hypothesis = _explained(subject, draw, answered, intent, layers, found)
    further(subject, draw, answered, hypothesis, layers[0], found)
    if answered:
        properties.check_again(subject, *answered[0], intent, found)


def _meant(
    subject: Subject,
    answered: Answered,
    intent: Intent,
    layers: list[Layer | None],
    found: Findings,
) -> Intent:
    """The intent, or else, if only that can be explained, without what was assumed."""
    pairs = [(c, a) for c, a in answered if _shape_fits(c, a, intent, layers[0])]
    attempts = list(_attempts(subject, pairs))
    for meant in _intents(subject, intent, found):
        memo: Memo = {}
        for _, attempt in attempts:
            hypotheses = explain(attempt, meant, layers, depth=1, memo=memo)
            if hypotheses and _ASSUMED.isdisjoint(hypotheses[0].mistakes):
                dropped = [meant.causal != intent.causal, meant.window != intent.window]
                found.assumed = [
                    text
                    for text in found.assumed
                    if not any(gone and text in found.guessed[i] for i, gone in enumerate(dropped))
                ]
                found.later_keys = found.later_keys if meant.causal else ""
                if words := explore.inside(intent, meant):
                    found.assumed.append(f"it is meant to have {words}")
                return meant
    return intent


def _fitting_first(
    answered: Answered, intent: Intent, layers: list[Layer | None]
) -> list[Layer | None]:
    """Readings of packed projections, those first that are right in the most calls without a mask.

    What a mask means may be wrong as well: it says nothing about how projections are packed.
    """
    if len(layers) < 2:
        return layers
    plain = [(case, answer) for case, answer in answered if not case.closes]

    def fitting(layer: Layer | None) -> int:
        return sum(agrees(a, c, right(intent, layer), intent) for c, a in plain)

    return sorted(layers, key=fitting, reverse=True)


def _intents(subject: Subject, intent: Intent, found: Findings) -> Iterator[Intent]:
    """What may be meant: as assumed, with less of it, or, of a module, with RoPE inside."""
    if found.guessed:
        yield intent
        yield replace(intent, window=None)
        if found.guessed[0]:  # else causal is given
            yield replace(intent, causal=False, window=None)
    if intent.rope_base is None and subject.projects and not subject.drifts:
        if not found.guessed:
            yield intent
        if explore.positional(subject, Draw(subject, intent)):
            for base in explore.ROPE_BASES[:3]:
                for pairing in ("half", "neighbours"):
                    yield replace(intent, rope_base=base, rope_pairing=pairing)


def _answers(subject: Subject, draw: Draw, found: Findings) -> Answered:
    cases = plain_cases(draw)
    if subject.always_mask:
        cases = [opened(case) for case in cases]
    if subject.takes_mask and not subject.mask_refused:
        cases += masked_cases(draw)
    pairs = [(case, subject.answer(case)) for case in cases]
    raised = [(case, answer) for case, answer in pairs if answer.out is None]
    if len(raised) == len(pairs):
        raise ValueError(f"every call of fn raises; the first: {raised[0][1].raised}")
    found.unchecked += [f"{case.words or case.name}: {answer.raised}" for case, answer in raised]
    subject.refuses_cross = any(c.lengths[0] != c.lengths[1] and not c.closes for c, _ in raised)
    if subject.broadcasts(draw.intent):
        one = [(c, a) for c, a in pairs if c.lengths[0] == 1 and a.out is not None]
        found.unchecked += [f"{case.words}: other unequal lengths raise" for case, _ in one]
        pairs = [pair for pair in pairs if pair[0].lengths[0] > 1]
    if subject.takes_mask and subject.mask_refused:
        guessed = [(case, subject.answer(case)) for case in guessed_cases(draw)]
        pairs += guessed
        if all(answer.out is None for _, answer in guessed):
            found.failures.append(
                Failure(
                    None,
                    "the mask raises",
                    f"A mask of the shape {subject.mask_shape} raises in every call.",
                    example=subject.mask_refused,
                )
            )
    return [(case, answer) for case, answer in pairs if answer.out is not None]


def _explained(
    subject: Subject,
    draw: Draw,
    answered: Answered,
    intent: Intent,
    layers: list[Layer | None],
    found: Findings,
) -> Hypothesis | None:
    """The hypothesis that gives every answer, if there is one; its mistakes are reported."""
    if subject.drifts:  # answers of different states say nothing together
        found.unchecked.append("the numbers of each call: equal calls give different ones")
        return None
    # outputs of another shape are no evidence for or against a mistake
    same_shape = [(c, a) for c, a in answered if _shape_fits(c, a, intent, layers[0])]
    hypotheses, attempt = _search(subject, draw, same_shape, intent, layers, found)
    layer = hypotheses[0].layer if hypotheses else layers[0]
    if layer is not None and layer.order and not isinstance(subject.fn, nn.MultiheadAttention):
        found.assumed.append(layer.order)
    if not hypotheses:
        known = not {failure.mistake for failure in found.failures}.isdisjoint(PROPERTIES)
        if intent.causal and not known and not found.state_example:
            known = not properties.check_closed_keys(subject, draw, found)
        if not known:
            unknown.report_unknown(subject, draw, answered, intent, layers[0], found)
        return None
    if hypotheses[0].mistakes:
        _report_known(hypotheses, same_shape, intent, found)
    elif len(same_shape) < len(answered) and not subject.refuses_cross:
        unknown.report_unknown(subject, draw, answered, intent, hypotheses[0].layer, found)
    else:
        found.holds.append(_equality(attempt, intent))
    if subject.mask_refused and not found.failures:
        found.failures.append(
            Failure(
                None,
                "the mask raises",
                f"A mask of the shape {subject.mask_shape} raises unless sizes are equal.",
                example=subject.mask_refused,
            )
        )
    return hypotheses[0]


def _search(
    subject: Subject,
    draw: Draw,
    pairs: Answered,
    intent: Intent,
    layers: list[Layer | None],
    found: Findings,
) -> tuple[list[Hypothesis], Answered]:
    """One mistake before two, all answers before some of them, and properties between."""
    memo: Memo = {}
    attempts = list(_attempts(subject, pairs))
    for depth in (1, 2, 3):
        deadline = time.thread_time() + found.seconds
        if depth == 3 and (
            found.state_example or _property(subject, draw, pairs, right(intent, layers[0]), found)
        ):
            return [], []
        for words, attempt in attempts:
            hypotheses = explain(attempt, intent, layers, depth=depth, deadline=deadline, memo=memo)
            if hypotheses:
                if words == "training":
                    check_training(subject, draw, hypotheses[0], found)
                elif words:
                    found.notes.append(Note(None, words))
                    subject.ignores_padded = any(c.ignored is not None for c, _ in attempt)
                return hypotheses, attempt
    return [], []


def _equality(attempt: Answered, intent: Intent) -> str:
    """In how many calls something was compared, and what was left out."""
    rows = [open_rows(case, intent) for case, _ in attempt]
    n = sum(one is None or bool(one.any()) for one in rows)
    left = []
    if any(open_rows(replace(case, ignored=None), intent) is not None for case, _ in attempt):
        left.append("rows that may attend to nothing")
    if any(case.ignored is not None for case, _ in attempt):
        left.append("padded positions")
    text = f"equal to the reference in {n} different calls"
    return f"{text}, {' and '.join(left)} left out" if left else text


def _property(
    subject: Subject, draw: Draw, pairs: Answered, base: Hypothesis, found: Findings
) -> bool:
    """Whether a property that needs no reference breaks; then it is reported."""
    before = len(found.failures)
    properties.check_batch(subject, draw, found)
    wrong = [case for case, answer in pairs if not agrees(answer, case, base, base.intent)]
    if len(found.failures) == before and subject.takes_mask and wrong:
        if all(case.closes for case in wrong):
            properties.check_closed_keys(subject, draw, found)
    return len(found.failures) > before


def _attempts(subject: Subject, pairs: Answered) -> Iterator[tuple[str, Answered]]:
    """All answers, or else those that are left without a kind of them, and words for that."""
    if pairs:
        yield "", pairs
    if any(case.training for case, _ in pairs):
        yield "training", [(case, answer) for case, answer in pairs if not case.training]
    if subject.refuses_cross:
        same = [(c, a) for c, a in pairs if c.lengths[0] == c.lengths[1]]
        yield "Queries and keys of different lengths are refused, or broadcast.", same
    if subject.projects and subject.mask_shape in ("BS", "B11S"):
        yield (
            "Outputs of padded positions, which nobody reads, are not attention's.",
            [(without_padded_rows(case), answer) for case, answer in pairs],
        )


def _shape_fits(case: Case, answer: Answer, intent: Intent, layer: Layer | None) -> bool:
    return answer.out is not None and answer.out.shape == output_shape(case, layer)


def _report_known(
    hypotheses: list[Hypothesis], answered: Answered, intent: Intent, found: Findings
) -> None:
    first = hypotheses[0]
    for i, mistake in enumerate(first.mistakes):
        others = {h.mistakes[i] for h in hypotheses if len(h.mistakes) > i} - {mistake}
        part = replace(first, change=first.parts[i] if len(first.parts) > i else first.change)
        example = _example(answered, intent, part, first)
        forms = [j for j, one in enumerate(MISTAKES[mistake].forms) if one is part.change]
        found.known(mistake, example, alike=tuple(sorted(others)), form=(forms or [0])[0])


def _simplest(pair: tuple[Case, Answer]) -> tuple:
    case, answer = pair
    lost = answer.out is not None and bool(answer.out.isnan().all())
    return lost, case.closes, case.lengths


def _example(answered: Answered, intent: Intent, part: Hypothesis, whole: Hypothesis) -> str:
    """The smallest case, and in it a row, in which the mistake alone changes something."""
    base = right(intent, whole.layer)
    for case, answer in sorted(answered, key=_simplest):
        expected = compute(case, base.intent, base.layer).out
        try:
            alone = compute(case, part.intent, part.layer, part.change).out
        except (RuntimeError, ValueError, IndexError, TypeError):
            continue
        if answer.out is None or equal(alone, expected, case, intent):
            continue
        actual = answer.out
        if len(whole.mistakes) > 1 and alone.shape == expected.shape:  # rows of this one alone
            gap = (alone - expected).abs().nan_to_num(1e9).amax(dim=-1, keepdim=True)
            actual = actual.where(gap > 1e-2 * gap.amax().clamp(max=1.0), expected)
        if not equal(actual, expected, case, intent):
            return show(case, actual, expected, intent)
    return ""
