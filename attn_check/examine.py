"""The examination: the battery is asked, the answers are explained, and properties are checked."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from torch import nn

from attn_check import assume, calls, cases, facts, inputs, properties, search, training
from attn_check.cases import Exam
from attn_check.mistakes import MISTAKES
from attn_check.reference import Intent, compute
from attn_check.report import Report, grouped
from attn_check.search import Answered, Hypothesis, Pair, agrees, right
from attn_check.steps import check_one_query, check_steps
from attn_check.subject import Given, Subject

# not meant, if only they explain the answers
_NOT_MEANT = {"causal_not_meant", "rope_missing", "rope_base", "rope_pairing"}
_PROPERTIES = {"batch_leak", "closed_key_reaches_output"}
_OF_LAYOUTS = {None, "batch_exchanged", *_PROPERTIES}  # another layout may explain them
# with these the rest can still be judged
_APART = {"dropout_in_evaluation", "mask_fill_overflows_half", "output_dtype"}
_APART |= {"dropout_before_softmax"}
_FAR = "With scores far from zero the output is another one."
_PARTS = ("sinks", "softcap", "window", "scale")  # begin the names of mistakes about them
_OF_RIGHT_OUTPUTS = (
    properties.check_empty_row,
    properties.check_three_inputs,
    check_one_query,
    properties.check_batch,
    properties.check_strides,
    training.check_training,
    properties.check_clones,
    properties.check_precision,
)


def investigate(subject: Subject, intent: Intent, given: Given) -> Report:
    """The findings of the first layout that is accepted, unless another alone explains all."""
    flag = next((name for name, role in subject.others.items() if role == "causal"), None)
    if given.causal and flag is not None and flag not in subject.options:
        subject.options[flag] = True
        subject.assumed.append(f"{flag}=True is passed in each call")
    heads = {name for name, role in subject.others.items() if role == "heads"}
    passed, steps = heads.union(subject.named, subject.options), subject.step is not None
    never = calls.never_passed(subject.fn, subject.positional, passed, steps) + subject.moved
    layout = given.layout
    if layout is None and getattr(subject.module, "batch_first", True) is False:
        layout = "TBd"
    subject.mask_shape = given.mask_shape or subject.mask_shape
    reports: list[Report] = []
    for candidate in inputs.find_layouts(subject, intent, layout):
        exam = Exam(subject.fresh(layout=candidate), intent)
        found = exam.found
        found.assumed += subject.assumed
        found.unchecked += never
        if reports:
            exam.tries = 0  # of pairs of mistakes
        if layout is None and not (subject.projects and candidate == "BTd"):
            found.assumed.append(f"the layout is {candidate}")
        assume.assume(exam, given)
        exam.answered = _answers(exam)
        properties.check_again(exam)
        if exam.random:
            found.unchecked.append("everything else: the output is random")
        else:
            exam.hypothesis = _explained(exam)
            _check_further(exam)
            properties.check_again(exam)
        found.unchecked = grouped(found.unchecked)
        if _OF_LAYOUTS.isdisjoint(found.mistakes):
            return found
        reports.append(found)
    return reports[0]


def _answers(exam: Exam) -> Answered:
    found, subject = exam.found, exam.subject
    asked = cases.plain_cases(exam)
    if subject.always_mask:
        asked = [cases.opened(case) for case in asked]
    if exam.masked:
        asked += cases.masked_cases(exam)
    pairs = [(case, subject.answer(case)) for case in asked]
    raised = [(case, answer) for case, answer in pairs if answer.out is None]
    accepted = [case for case, answer in pairs if answer.out is not None]
    if len(raised) == len(pairs):
        raise ValueError(f"every call of fn raises; the first: {raised[0][1].raised}")
    found.unchecked += [f"{case.name}: {answer.raised}" for case, answer in raised]
    exam.refuses_cross = any(c.lengths[0] != c.lengths[1] and not c.closes for c, _ in raised)
    assume.find_limits(exam, raised, accepted)
    if exam.broadcasts:
        one = [c for c, a in pairs if c.lengths[0] == 1 < c.lengths[1] and a.out is not None]
        found.unchecked += [f"{case.name}: other unequal lengths raise" for case in one]
        pairs = [pair for pair in pairs if pair[0] not in one]
    if exam.mask_refused:
        guessed: list[Pair] = []  # where sizes are equal, for a function that refuses others
        H = exam.heads
        for B, T in {(H, 5), (5, 5), (2, H), (H, H), (1, 5)}:
            case = exam.with_mask(f"a mask with B = {B} and T = {T}", exam.allowed_mask(B, T, T))
            guessed.append((case, subject.answer(case)))
        pairs += guessed
        if all(answer.out is None for _, answer in guessed):
            text = f"A mask of the shape {subject.mask_shape} raises in every call."
            found.broken("the mask raises", text, exam.mask_refused)
    return [(case, answer) for case, answer in pairs if answer.out is not None]


def _explained(exam: Exam) -> Hypothesis | None:
    """The hypothesis that gives the answers; what it says is reported, or what else is known."""
    found, answered = exam.found, exam.answered
    if not answered:
        return None
    pairs = [  # outputs of another shape are no evidence for or against a mistake
        (case, answer)
        for case, answer in answered
        if answer.out is not None and answer.out.shape == calls.output_shape(case, exam.layer)
    ]
    hypotheses, attempt = _search(exam, pairs)
    if (layer := exam.layer) is not None and layer.shared:
        found.known("projection_shared_by_heads", "")
    if layer is not None and layer.order and not isinstance(exam.subject.fn, nn.MultiheadAttention):
        found.assumed.append(layer.order)
    if not hypotheses:
        known = not _PROPERTIES.isdisjoint(found.mistakes)
        if exam.intent.causal and not known and not exam.state_example:
            known = not properties.check_closed_keys(exam)
        if not known:
            facts.report_unknown(exam)
        return None
    if hypotheses[0].mistakes:
        _report_known(exam, hypotheses, pairs)
    elif len(pairs) < len(answered) and not exam.refuses_cross:
        misshapen = [pair for pair in answered if pair not in pairs]
        if all(case.single for case, _ in misshapen):
            facts.report_single(exam, misshapen)
        else:
            facts.report_unknown(exam)
    else:
        found.holds.append(facts.equality(exam, attempt))
    if exam.mask_refused and not found.failures:
        text = f"A mask of the shape {exam.subject.mask_shape} raises unless sizes are equal."
        found.broken("the mask raises", text, exam.mask_refused)
    return hypotheses[0]


def _search(exam: Exam, pairs: list[Pair]) -> tuple[list[Hypothesis], Answered]:
    """The fewest mistakes that give all answers, or else some of them; properties between."""
    attempts = list(_attempts(exam, pairs))
    plain = [pair for pair in exam.answered if not pair[0].closes]
    guesses = [exam.intent]
    if exam.guessed and exam.guessed[0]:  # what is only guessed is not held against it
        guesses.append(replace(exam.intent, causal=False, window=None))
    for meant, depth, strict in chain(  # strict: what is not meant is no answer
        ((meant, 1, True) for meant in assume.intents(exam)),
        ((meant, n, meant is not exam.intent) for n in (1, 2, 3) for meant in guesses),
    ):
        layers = exam.layers
        if len(layers) > 1:  # those first that are right in most calls without a mask
            bases = {layer: right(meant, layer) for layer in layers}
            wrong = {x: sum(not agrees(p, base, meant) for p in plain) for x, base in bases.items()}
            layers = sorted(layers, key=lambda layer: 2 * wrong[layer] > len(plain))
        exam.layer, layers = (exam.layer, layers) if strict else (layers[0], layers[: 6 // depth])
        tries = iter(range(exam.tries))  # of all attempts together
        if depth == 3 and (exam.state_example or _breaks_a_property(exam, pairs)):
            break
        for words, attempt in attempts:
            found = search.explain(attempt, meant, layers, depth=depth, tries=tries)
            if not found or (strict and not _NOT_MEANT.isdisjoint(found[0].mistakes)):
                continue
            if words == _FAR and not found[0].mistakes:
                continue
            exam.layer = found[0].layer
            assume.settle(exam, meant)
            # of equal explanations, first those that are about what the caller passed
            passed = tuple(part for part in _PARTS if getattr(meant, part) is not None)
            found.sort(key=lambda h: not any(m.startswith(passed) for m in h.mistakes))
            if words == "single" and found[0].mistakes:
                exam.note("With one example, query or key the output is another one.")
            elif words == "single":
                facts.report_single(exam, pairs)
            elif words == "training":
                exam.hypothesis = found[0]
                training.check_training(exam)
            elif words:
                exam.note(words)
                exam.ignores_padded = any(case.ignored is not None for case, _ in attempt)
            return found, attempt
    return [], []


def _attempts(exam: Exam, pairs: list[Pair]) -> Iterator[tuple[str, Answered]]:
    """All answers, or else those that are left without a kind of them, and words for that."""
    if pairs:
        yield "", pairs
    if several := [(case, answer) for case, answer in pairs if not case.single]:
        yield "single", several
    if near := [(case, answer) for case, answer in pairs if case.tolerance < 1e-3]:
        yield _FAR, near
    if any(case.training for case, _ in pairs):
        yield "training", [(case, answer) for case, answer in pairs if not case.training]
    if exam.refuses_cross:
        same = [(c, a) for c, a in pairs if c.lengths[0] == c.lengths[1]]
        yield "Queries and keys of different lengths are refused, or broadcast.", same
    if exam.subject.projects and exam.subject.mask_shape in ("BS", "B11S"):
        words = "Outputs of padded positions, which nobody reads, are not attention's."
        yield words, [(cases.without_padded_rows(case), answer) for case, answer in pairs]


def _breaks_a_property(exam: Exam, pairs: list[Pair]) -> bool:
    """Whether a property that needs no reference breaks; then it is reported."""
    before = len(exam.found.failures)
    properties.check_batch(exam)
    base = right(exam.intent, exam.layer)
    wrong = [pair[0] for pair in pairs if not agrees(pair, base, exam.intent)]
    unbroken = len(exam.found.failures) == before
    if unbroken and exam.subject.takes_mask and wrong and all(case.closes for case in wrong):
        properties.check_closed_keys(exam)
    return len(exam.found.failures) > before


def _report_known(exam: Exam, hypotheses: list[Hypothesis], pairs: list[Pair]) -> None:
    whole = hypotheses[0]
    for i, (mistake, form) in enumerate(zip(whole.mistakes, whole.forms, strict=True)):
        if mistake == "residual_added" and exam.intent.prenorm is not None:
            exam.found.assumed.append("it is meant to add its input to its output")
            exam.found.holds.append(facts.equality(exam, pairs))
            exam.added = MISTAKES[mistake].forms[form]
            continue
        others = {h.mistakes[i] for h in hypotheses if len(h.mistakes) > i} - {mistake}
        others -= {"causal_only_in_training"} if exam.subject.module is None else set()  # no modes
        others -= {"scale_constant"}  # any scale of one width is a constant
        alone = replace(whole, change=MISTAKES[mistake].forms[form])
        example = _example(exam, pairs, alone, whole)
        exam.found.known(mistake, example, alike=tuple(sorted(others)), form=form)


def _example(exam: Exam, pairs: list[Pair], part: Hypothesis, whole: Hypothesis) -> str:
    """The smallest case, and in it a row, in which the mistake alone changes something."""
    for case, answer in sorted(pairs, key=search.by_size):
        actual, alone = answer.out, search.outcome(case, part)
        expected = compute(case, exam.intent, whole.layer).out
        if actual is None or alone is None or exam.equal(alone, expected, case):
            continue
        if len(whole.mistakes) > 1 and alone.shape == expected.shape:  # rows of this one alone
            gap = (alone - expected).abs().nan_to_num(1e9).amax(dim=-1, keepdim=True)
            actual = actual.where(gap > 1e-2 * gap.amax().clamp(max=1.0), expected)
        if not exam.equal(actual, expected, case):
            return exam.shown(case, actual, expected)
    return ""


def _check_further(exam: Exam) -> None:
    """Properties, most of them only where the numbers are right; what is not checked is said."""
    found, hypothesis = exam.found, exam.hypothesis
    properties.check_arguments(exam)
    if exam.masked:
        training.note_empty_rows(exam)
    if hypothesis is not None:
        training.check_weights(exam, hypothesis)
        training.check_dropped_weights(exam)
        training.check_dropout(exam, hypothesis)
    rest = "batch, strides, modes, gradients, half precision"
    rest += " and steps" if exam.subject.step is not None else ""
    if hypothesis is None or hypothesis.change != exam.added:
        found.holds = [text for text in found.holds if text != properties.APART]
        found.unchecked.append(f"{rest}: once the output is right")
        return
    if set(found.mistakes) - _APART:
        found.unchecked.append(f"{rest}: once this is repaired")
        return
    for check in _OF_RIGHT_OUTPUTS:
        check(exam)
    if set(found.mistakes) - _APART:
        found.unchecked.append("gradients: once this is repaired")
    else:
        training.check_gradients(exam)
    check_steps(exam)
    longest, window = max(c.lengths[1] for c, _ in exam.answered), exam.intent.window or 0
    found.unchecked.append(f"more than {longest} keys{', and so the window' * (window >= longest)}")
