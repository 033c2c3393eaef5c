"""Where no known mistake gives the numbers: in which calls they differ, and what is true there."""

import torch
from torch import Tensor

from attn_check.cases import LONG, Exam
from attn_check.modules import unexplained
from attn_check.reference import Case
from attn_check.report import largest
from attn_check.search import Pair, agrees, compared, open_rows, right


def report_unknown(exam: Exam) -> None:
    """The inputs for which the output differs, and what is true of it, none of it a guess."""
    if exam.state_example:
        exam.found.unchecked.append("each call by itself: some differ from attention's")
        return
    base = right(exam.intent, exam.layer)
    wrong = [pair for pair in exam.answered if not agrees(pair, base, exam.intent)]
    wrong.sort(key=lambda pair: (pair[0].closes, pair[0].lengths))
    rest = [pair for pair in exam.answered if not any(pair[0] is case for case, _ in wrong)]
    case, out = wrong[0][0], wrong[0][1].out
    assert out is not None  # noqa: S101
    expected = exam.expected(case)
    example = f"{case.name}: an output of shape {tuple(out.shape)}, expected "
    example += f"{tuple(expected.shape)}, in the book's order of axes"
    if out.shape == expected.shape:
        example = exam.shown(case, out, expected)
    later = [exam.later_keys] if exam.later_keys and exam.intent.causal else []
    texts = [*later, _where(exam, wrong, rest), *_facts(exam, wrong)]
    exam.found.broken("the output is not attention's", " ".join(texts), example)


def _where(exam: Exam, wrong: list[Pair], rest: list[Pair]) -> str:
    """In which calls the output differs, and how far the others agree."""
    text = "No known mistake that was tried, for what is said and assumed here, gives these numbers"
    if exam.intent.rope_base is None:
        text += " (assumed: no RoPE inside, as no usual base fits; if there is, pass rope_base=)"
    text += f". The output differs from attention's in {len(wrong)} of {len(exam.answered)} calls"
    gaps = {id(pair): _gap(exam, pair) for pair in [*wrong, *rest]}
    least = min(1e-4, *(gaps[id(pair)] for pair in wrong))
    near = [pair for pair in rest if gaps[id(pair)] < least]
    rough = [pair for pair in rest if gaps[id(pair)] >= least]  # large scores are allowed more
    if near:
        where = _in_common([case for case, _ in [*wrong, *rough]], [case for case, _ in near])
        if not where and len(wrong) < min(len(near), 7):
            text += f", these: {_names(wrong)}"
        bound = 1.5 * max(1e-9, *(gaps[id(pair)] for pair in near))  # a bound in one digit too
        text += f"; it agrees with it within {bound:.1g} in {where or f'these: {_names(near)}'}"
    if rough:
        bound = 1.5 * max(gaps[id(pair)] for pair in rough)
        text += f"; in these it is off by at most {bound:.1g}, which is not counted, as rounding "
        text += f"may give as much there: {_names(rough)}"
    return f"{text}."


def _gap(exam: Exam, pair: Pair) -> float:
    """The largest difference from the reference, in rows that may attend to something."""
    out, expected = pair[1].out, exam.expected(pair[0])
    if out is None or out.shape != expected.shape:
        return float("inf")
    gap = compared((out - expected).abs(), pair[0], exam.intent).nan_to_num(float("inf"))
    return gap.max().item() if gap.numel() else 0.0


def _names(pairs: list[Pair]) -> str:
    names = list(dict.fromkeys(case.name for case, _ in pairs))
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _in_common(wrong: list[Case], rest: list[Case]) -> str:
    """What all calls that agree have in common, where no other call has it."""
    longest = max(max(case.lengths) for case in rest)
    for words, kind in (
        ("all without a mask", lambda case: case.mask is None),
        ("all with a mask that closes nothing", lambda case: not case.closes),
        ("all without a context", lambda case: "context" not in case.tensors),
        ("all with T = S", lambda case: case.lengths[0] == case.lengths[1]),
        ("all with T != S", lambda case: case.lengths[0] != case.lengths[1]),
        ("all with more than one query", lambda case: case.lengths[0] > 1),
        (f"all of up to {longest} positions", lambda case: max(case.lengths) <= longest),
    ):
        if all(map(kind, rest)) and not any(map(kind, wrong)):
            return words
    return ""


def _facts(exam: Exam, wrong: list[Pair]) -> list[str]:
    subject, texts = exam.subject, []
    if subject.projects and subject.module is not None:
        if others := unexplained(subject.module, subject.projections):
            text = f"The module also has {', '.join(others[:6])}, not used in this comparison: if "
            text += "this is a block, pass its attention alone; if they project, pass projections=."
            texts.append(text)
    elif not subject.projects and not subject.heads and not {"B", "H"} <= {*subject.layout}:
        text = f"Its inputs were passed in the layout {subject.layout}: if they are (B, T, H · d), "
        texts.append(f"{text}heads side by side, pass heads=.")
    outs = [(case, answer.out, exam.expected(case)) for case, answer in wrong]
    given = [(c, out, x) for c, out, x in outs if out is not None and out.shape == x.shape]
    finite = [bool(compared(out, case, exam.intent).isfinite().all()) for case, out, _ in given]
    if lost := sum(bool(out.isnan().all()) for _, out, _ in given):
        return [*texts, f"In {lost} of these calls the whole output is NaN."]
    if spoiled := finite.count(False):
        texts.append(f"In {spoiled} of these calls some of the output is NaN or infinite.")
    gaps = [
        (out - expected).abs().amax(dim=(0, 2, 3))
        for case, out, expected in given
        if out.dim() == 4 and out.shape[1] > 1 and open_rows(case, exam.intent) is None
    ]
    if gaps:
        texts += _apart("head", torch.stack(gaps).amax(dim=0), 1e-3, f" of {exam.heads}")
    texts += _ahead(exam)
    return texts if subject.projects else [*texts, *_values(exam), *_queries(exam)]


def _listed(noun: str, cells: Tensor) -> str:
    """The numbers of the cells that are True: "key 3", "keys 1, 2" or "keys 64 to 69"."""
    numbers = cells.nonzero().flatten().tolist()
    if len(numbers) > 1:
        noun = f"{noun}s".replace("querys", "queries")
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{noun} {numbers[0]} to {numbers[-1]}"
    return f"{noun} {', '.join(map(str, numbers[:8]))}{', …' if len(numbers) > 8 else ''}"


def _apart(noun: str, gap: Tensor, least: float, among: str = "") -> list[str]:
    """Those that differ, where others do not."""
    off = gap > least
    if not off.any() or off.all() or not gap.isfinite().all():
        return []
    verb = "differs" if int(off.sum()) == 1 else "differ"
    text = f"{verb} by up to {gap[off].max():.3g}, the rest by at most {1.5 * gap[~off].max():.1g}."
    return [f"{_listed(noun, off)}{among} {text}"]


def _ahead(exam: Exam) -> list[str]:
    """Whether later keys have far less influence than earlier ones, where none is meant."""
    changes = exam.changes(exam.case("6 positions", 6)).amax(dim=0)
    later, earlier = changes.triu(1).max().item(), changes.tril(-1).max().item()
    if exam.intent.causal or later >= 0.05 * earlier:  # or each query reads its own key alone
        return []
    return [
        "With 6 positions, another input at one of them changes the outputs before it by up to "
        f"{later:.2g} of their size, those after it by up to {earlier:.2g}: if the function is "
        "meant to be causal, pass causal=True."
    ]


def _values(exam: Exam) -> list[str]:
    """The weights show as the output where the values are the unit vectors."""
    for S in (LONG, exam.d_k):
        case = exam.case("weights", S, d_v=S)
        v = torch.eye(S, dtype=torch.float64).expand(case.batch, case.kv_heads, S, S)
        v = v.transpose(1, 2).flatten(-2) if case.merged else v
        values = (torch.zeros_like(v), v, 2.0 * v, torch.ones_like(v))
        outs = [exam.out(case.with_tensors(v=x)) for x in values]
        given = [out for out in outs if out is not None]
        if len(given) == len(outs):
            break
    if len(given) < len(outs) or not all(bool(x.isfinite().all()) for x in given):
        return []
    zero, one, two, ones = given
    if (size := zero.abs().max().item()) > 1e-5:
        return [f"With {S} keys and values of zero the output is not zero: up to {size:.3g}."]
    if (gap := largest(two, 2.0 * one)) > 1e-4:
        text = f"with {S} keys, twice the values differ from twice the output by up to {gap:.3g}"
        return [f"The output is not linear in v: {text}."]
    texts, low, high = [], ones.min().item(), ones.max().item()
    if exam.intent.sinks is None and max(abs(low - 1.0), abs(high - 1.0)) >= 1e-3:
        shown = " to ".join(dict.fromkeys((f"{low:.4g}", f"{high:.4g}")))
        texts.append(f"With {S} keys whose values are all 1, the output is {shown}, not 1.")
    expected = exam.expected(case.with_tensors(v=v))
    if one.shape == expected.shape and not case.merged:
        start = f"With {S} keys and unit vectors as values, "
        texts += [f"{start}{text}" for text in _weights(one, expected)]
    return texts


def _weights(weights: Tensor, expected: Tensor) -> list[str]:
    """Of an output with unit vectors as values: channel s shows the weight of key s."""
    texts = []
    if weights.min().item() < -1e-5:
        texts.append(f"the output is as low as {weights.min().item():.3g}, below 0.")
    used, meant = (x.abs().flatten(0, -2).amax(dim=0) for x in (weights, expected))
    if (lost := (meant > 1e-5) & (used < 1e-7)).any():
        texts.append(f"the value of {_listed('key', lost)} reaches no row by 1e-7 or more.")
    gap = (weights - expected).abs().amax(dim=-1).flatten(0, -2).amax(dim=0)
    return texts + _apart("query", gap, 1e-4)


def _queries(exam: Exam) -> list[str]:
    """Whether the size of the queries, and the order of the keys, matter."""
    case, order = exam.case("queries", 6), torch.tensor([3, 0, 4, 1, 5, 2])
    larger = case.with_tensors(q=3.0 * case.tensors["q"])
    moved = case.with_tensors(**{role: case.tensors[role][..., order, :] for role in "kv"})
    outs = [exam.out(one) for one in (case, larger, moved)]
    given = [out for out in outs if out is not None and bool(out.isfinite().all())]
    if len(given) < len(outs):
        return []
    size, place = (largest(given[0], out) for out in given[1:])
    texts, ordered = [], exam.intent.causal or exam.intent.rope_base is not None
    if size < 1e-5:
        texts.append("Three times larger queries, 6 of them without a mask, change nothing.")
    if place > 1e-4 and not ordered:
        texts.append(f"6 keys in another order, values too, change the output by {place:.3g}.")
    return texts
