"""Where no known mistake gives the numbers: in which calls they differ, and what is true there."""

from collections.abc import Callable

from attn_check import outside
from attn_check.cases import Draw
from attn_check.reference import Case, Intent, Layer, compute
from attn_check.report import Failure, Findings, show
from attn_check.search import agrees, compared, right
from attn_check.subject import Answer, Subject

Answered = list[tuple[Case, Answer]]


def report_unknown(
    subject: Subject,
    draw: Draw,
    answered: Answered,
    intent: Intent,
    layer: Layer | None,
    found: Findings,
) -> None:
    """The property that breaks; where none does, the inputs for which the output differs."""
    if found.state_example:
        found.unchecked.append("the numbers of each call by itself: some differ from attention's")
        return
    base = right(intent, layer)
    wrong = [(c, a) for c, a in answered if not agrees(a, c, base, intent)]
    wrong.sort(key=lambda c: (c[0].closes, c[0].lengths))
    case, answer = wrong[0]
    expected = compute(case, intent, layer).out
    if answer.out is not None and answer.out.shape == expected.shape:
        example = show(case, answer.out, expected, intent)
    else:
        shape = None if answer.out is None else tuple(answer.out.shape)
        example = (
            f"{case.words}: an output of shape {shape}, expected {tuple(expected.shape)}, "
            "in the book's order of axes"
        )
    rest = [pair for pair in answered if not any(pair[0] is c for c, _ in wrong)]
    later = [found.later_keys] if found.later_keys and intent.causal else []
    facts = outside.facts(subject, draw, wrong, intent, layer)
    likely = " ".join([*later, _compared(wrong, rest, intent, layer), *facts])
    found.failures.append(Failure(None, "the output is not attention's", likely, example=example))


def _compared(wrong: Answered, rest: Answered, intent: Intent, layer: Layer | None) -> str:
    """In which calls the output differs, and how far the others agree."""
    text = "No known mistake that was tried, for what is said and assumed here, gives these numbers"
    if intent.rope_base is None:
        text += " (assumed: no RoPE inside, as no usual base fits; if there is, pass rope_base=)"
    n = len(wrong) + len(rest)
    text += f". The output differs from that of attention in {len(wrong)} of {n} calls"
    gaps = {id(case): _gap(case, answer, intent, layer) for case, answer in [*wrong, *rest]}
    least = min(gaps[id(case)] for case, _ in wrong)
    usual = min(least, 1e-4)  # scores that are large are allowed more: these are named apart
    rough = [(c, a) for c, a in rest if gaps[id(c)] >= (usual if c.tolerance > 1e-4 else least)]
    near = [pair for pair in rest if not any(pair[0] is case for case, _ in rough)]
    if near:
        where = _split([*wrong, *rough], near)
        if not where and len(wrong) < min(len(near), 7):
            text += f", these: {_names(wrong)}"
        bound = 1.5 * max(1e-9, *(gaps[id(case)] for case, _ in near))  # a bound in one digit too
        where = where or f"these: {_names(near)}"
        text += f"; it agrees with it within {bound:.1g} in {where}"
    if rough:
        bound = 1.5 * max(gaps[id(case)] for case, _ in rough)
        text += (
            f"; in these it is off by at most {bound:.1g}, which is not counted, as rounding may "
            f"give as much there: {_names(rough)}"
        )
    return f"{text}."


def _gap(case: Case, answer: Answer, intent: Intent, layer: Layer | None) -> float:
    """The largest difference from the reference, in rows that may attend to something."""
    expected = compute(case, intent, layer).out
    if answer.out is None or answer.out.shape != expected.shape:
        return float("inf")
    gap = compared((answer.out - expected).abs(), case, intent).nan_to_num(float("inf"))
    return gap.max().item() if gap.numel() else 0.0


def _names(pairs: Answered) -> str:
    """Of six calls at most."""
    names = list(dict.fromkeys(case.words or case.name for case, _ in pairs))
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(names[:6]) + more


def _split(wrong: Answered, rest: Answered) -> str:
    """What all calls that agree have in common, where no other call has it."""
    kinds: dict[str, Callable[[Case], bool]] = {
        "all without a mask": lambda case: case.mask is None,
        "all with a mask that closes nothing": lambda case: not case.closes,
        "all without a context": lambda case: "context" not in case.tensors,
        "all with T = S": lambda case: case.lengths[0] == case.lengths[1],
        "all with T != S": lambda case: case.lengths[0] != case.lengths[1],
        "all with one query": lambda case: case.lengths[0] == 1,
        "all with more than one query": lambda case: case.lengths[0] > 1,
    }
    for words, kind in kinds.items():
        if all(kind(case) for case, _ in rest) and not any(kind(case) for case, _ in wrong):
            return words
    longest = max(max(case.lengths) for case, _ in rest)
    if any(max(case.lengths) <= longest for case, _ in wrong):
        return ""
    return f"all of up to {longest} positions"
