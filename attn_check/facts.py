"""How many calls agree; and, where no known mistake gives the numbers, what is true of them."""

from dataclasses import replace

import torch
from torch import Tensor

from attn_check.calls import NAMES, PAIRINGS
from attn_check.cases import LONG, Exam
from attn_check.modules import numbers_of, part_of, unexplained
from attn_check.reference import Case
from attn_check.report import NOT_JUDGED, largest, numbers
from attn_check.search import Answered, allowed, compared, open_rows

_KINDS = NAMES["parts in words"]  # by what can be passed of the intent
Call = tuple[Case, Tensor, Tensor]  # with the output, and with the one that is expected


def equality(exam: Exam, attempt: Answered) -> str:
    """In how many calls something was compared, and what was left out."""
    rows = [open_rows(case, exam.intent) for case, _ in attempt]
    n = sum(one is None or bool(one.any()) for one in rows)
    unmarked = [replace(case, ignored=None) for case, _ in attempt]
    empty = any(open_rows(case, exam.intent) is not None for case in unmarked)
    left = ["rows that may attend to nothing"] if empty else []
    if any(case.ignored is not None for case, _ in attempt):
        left.append("padded positions")
    text = f"equal to the reference in {n} different calls"
    return f"{text}, {' and '.join(left)} left out" if left else text


def report_single(exam: Exam, pairs: Answered) -> None:
    """The first call in which a size is 1 and the output is wrong, as in no other."""
    for case, answer in pairs:
        if (out := answer.out) is not None and not exam.equal(out, exam.expected(case), case):
            exam.found.known("size_of_one", exam.shown(case, out, exam.expected(case)))
            return


def report_unknown(exam: Exam) -> None:
    """The inputs for which the output differs, and what is true of it, none of it a guess."""
    if exam.state_example:
        exam.found.unchecked.append("each call by itself: some differ from attention's")
        return
    right, wrong = list[Call](), list[Call]()
    for case, answer in exam.answered:
        if (out := answer.out) is not None:
            expected = exam.expected(case)
            (right if exam.equal(out, expected, case) else wrong).append((case, out, expected))
    right = [call for call in right if call[0].lengths[1] > 1]  # with one key, most are right
    wrong.sort(key=lambda call: (call[0].closes, call[0].single, call[0].lengths))
    later = [exam.later_keys] if exam.later_keys and exam.intent.causal else []
    kinds = [text for part, text in _KINDS.items() if getattr(exam.intent, part, None) is None]
    more = f"Or it has a part that is not known here: {', '.join(kinds)}."
    texts = [*later, _where(exam, wrong, right), *_facts(exam, wrong), more]
    title, own = "the output is not attention's", _own_parts(exam)
    if own:
        names, ways = ", ".join([*own][:6]), ", ".join(dict.fromkeys(own.values()))
        title = f"{NOT_JUDGED}: it has parts that are not known here ({names}): pass {ways}"
    exam.found.broken(title, " ".join(texts), exam.shown(*wrong[0]))


def _own_parts(exam: Exam) -> dict[str, str]:
    """Parts of a module that nothing here explains, and what can be passed of each."""
    module, layer = exam.subject.module, exam.layer
    if module is None or layer is None:
        return {}
    names, buffers = unexplained(module, exam.subject.projections), module.named_buffers()
    odd = {n: x[(x != 0) & (x != 1) & (x > -1e3)].isfinite() for n, x in buffers}  # no mask, cache
    names += [name for name, x in odd.items() if part_of(name) and bool(x.any())]
    width = len(layer.weights["q"]) // layer.heads, layer.weights["q"].shape[1]
    usual = [n**power for n in (1, *width) for power in (-1.0, -0.5, 0.5, 1.0)]
    for name, n in numbers_of(module).items():
        scale = part_of(name) == "scale" and min(abs(n / known - 1.0) for known in usual) > 1e-6
        names += [name] if scale or part_of(name) in ("softcap", "rope_dims") else []
    pairs = [(n, part_of(n)) for n in names if getattr(exam.intent, part_of(n), None) is None]
    return {n: f"{part}=" if part else "projections=, or its attention alone" for n, part in pairs}


def _where(exam: Exam, wrong: list[Call], right: list[Call]) -> str:
    """In which calls the output differs, and how far the others agree."""

    def gap(call: Call) -> float:  # the largest, in rows that may attend to something
        case, out, expected = call
        if out.shape != expected.shape:
            return float("inf")
        rows = [compared(x, case, exam.intent) for x in (out, expected)]
        return largest(*rows) if rows[0].numel() else 0.0

    text = "No known mistake that was tried, for what is said and assumed here, gives these "
    text += "numbers"
    if exam.intent.rope_base is None:
        text += " (assumed: no RoPE inside, as no usual base fits; if there is, pass rope_base=)"
    n = len(wrong)
    text += f". The output differs from attention's in {n} of {n + len(right)} calls"
    least = min(1e-4, *map(gap, wrong))
    near = [call for call in right if gap(call) < least]
    rough = [call for call in right if gap(call) >= least]  # large scores are allowed more
    if near:
        where = _in_common([*wrong, *rough], near)
        if not where and n < min(len(near), 7):
            text += f", these: {_names(wrong)}"
        bound = 1.5 * max(1e-9, *map(gap, near))  # a bound in one digit too
        text += f"; it agrees with it within {bound:.1g} in {where or f'these: {_names(near)}'}"
    if rough:
        bound = 1.5 * max(map(gap, rough))
        text += f"; in these it is off by at most {bound:.1g}, which is not counted, as rounding "
        text += f"may give as much there: {_names(rough)}"
    return f"{text}."


def _names(calls: list[Call]) -> str:
    names = list(dict.fromkeys(case.name for case, *_ in calls))
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _in_common(wrong: list[Call], right: list[Call]) -> str:
    """What all calls that agree have in common, where no other call has it."""
    longest = max(max(case.lengths) for case, *_ in right)
    for words, kind in (
        ("all without a mask", lambda case: case.mask is None),
        ("all with a mask that closes nothing", lambda case: not case.closes),
        ("all without a context", lambda case: "context" not in case.tensors),
        ("all with T = S", lambda case: case.lengths[0] == case.lengths[1]),
        ("all with T != S", lambda case: case.lengths[0] != case.lengths[1]),
        ("all with more than one query", lambda case: case.lengths[0] > 1),
        (f"all of up to {longest} positions", lambda case: max(case.lengths) <= longest),
    ):
        if all(kind(case) for case, *_ in right) and not any(kind(case) for case, *_ in wrong):
            return words
    return ""


def _facts(exam: Exam, wrong: list[Call]) -> list[str]:
    subject, texts = exam.subject, []
    if not subject.projects and not subject.heads and not {"B", "H"} <= {*subject.layout}:
        text = f"Its inputs were passed in the layout {subject.layout}: if they are "
        texts.append(f"{text}(B, T, H · d), heads side by side, pass heads=.")
    given = [call for call in wrong if call[1].shape == call[2].shape]
    if lost := sum(bool(out.isnan().all()) for _, out, _ in given):
        return [*texts, f"In {lost} of these calls the whole output is NaN."]
    finite = [bool(compared(out, c, exam.intent).isfinite().all()) for c, out, _ in given]
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
    most, rest = gap[off].max(), 1.5 * gap[~off].max()
    text = f"{verb} by up to {most:.3g}, the rest by at most {rest:.1g}."
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


def _outs(exam: Exam, *cases: Case) -> list[Tensor]:
    """The outputs of all these cases; none where one raises or is not finite."""
    outs = [out for case in cases if (out := exam.out(case)) is not None]
    return outs if len(outs) == len(cases) and all(bool(x.isfinite().all()) for x in outs) else []


def _values(exam: Exam) -> list[str]:
    """The weights show as the output where the values are the unit vectors."""
    for S in (LONG, exam.d_k):
        case = exam.case("weights", S, d_v=S)
        v = torch.eye(S, dtype=torch.float64).expand(case.batch, case.kv_heads, S, S)
        v = v.transpose(1, 2).flatten(-2) if case.merged else v
        values = (torch.zeros_like(v), v, 2.0 * v, torch.ones_like(v))
        if outs := _outs(exam, *(case.with_tensors(v=x) for x in values)):
            break
    else:
        return []
    zero, one, two, ones = outs
    if (size := zero.abs().max().item()) > 1e-5:
        return [f"With {S} keys and values of zero the output is not zero: up to {size:.3g}."]
    if (gap := largest(two, 2.0 * one)) > 1e-4:
        text = f"with {S} keys, twice the values differ from twice the output by up to {gap:.3g}"
        return [f"The output is not linear in v: {text}."]
    texts, low, high = [], ones.min().item(), ones.max().item()
    if exam.intent.sinks is None and max(abs(low - 1.0), abs(high - 1.0)) >= 1e-3:
        span = " to ".join(dict.fromkeys((f"{low:.4g}", f"{high:.4g}")))
        texts.append(f"With {S} keys whose values are all 1, the output is {span}, not 1.")
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
    texts, ordered = [], exam.intent.causal or exam.intent.rope_base is not None
    if outs := _outs(exam, case, larger, moved):
        size, place = (largest(outs[0], out) for out in outs[1:])
        if size < 1e-5:
            texts.append("Three times larger queries, 6 of them without a mask, change nothing.")
        if place > 1e-4 and not ordered:
            texts.append(f"6 keys in another order, values too, change the output by {place:.3g}.")
    return texts


# ---------------------------------------------------------------- of a rotation

Turned = tuple[Case, str, Tensor, Tensor]  # q or k, as it was turned, and as it is expected


def of_rotation(
    wrong: list[Turned], cases: list[Case], pairing: str, *, both: bool
) -> tuple[str, str]:
    """A title and a text for outputs that no known mistake of RoPE gives."""
    text = "No known mistake, and no two of them, gives these numbers."
    title = "the rotation is not RoPE's"
    for _, name, y, x in wrong:
        if y.shape != x.shape:
            text += f" The output {name} has the shape {tuple(y.shape)}, not {tuple(x.shape)}."
            return title, text
    longer = max((y.norm(dim=-1) / x.norm(dim=-1) - 1.0).abs().max() for *_, y, x in wrong)
    moved = [(y - x)[..., 0, :].abs().max() for case, _, y, x in wrong if not case.start]
    at_0 = max(moved, default=0.0)
    bad = list(dict.fromkeys(case.name for case, *_ in wrong))
    right = [case.name for case in cases if case.name not in bad]
    names = {name for _, name, *_ in wrong}
    facts = {
        "Outputs are NaN or infinite.": not all(y.isfinite().all() for *_, y, _ in wrong),
        f"The length of a row changes by up to {100 * longer:.3g} %.": longer > 1e-4,
        f"Position 0 is changed, by up to {at_0:.3g}: its angle should be 0.": at_0 > 1e-4,
        f"Right: {'; '.join(right)}. Wrong: {'; '.join(bad)}.": right,
        f"Only {min(names)} is wrong.": len(names) == 1 and both,
        _angles(pairing, *wrong[0]): True,
    }
    title = "the output is not a rotation" if longer > 1e-4 else title
    return title, " ".join([text, *(fact for fact, holds in facts.items() if fact and holds)])


def _angles(pairing: str, case: Case, name: str, actual: Tensor, expected: Tensor) -> str:
    """By which angles the pairs turn, where that is so; or which channels are not changed."""
    x, call = case.tensors[name], f"In the call with {case.name}"
    off = (actual - expected).abs().amax(dim=(0, 1, 3)) > allowed(case, expected)
    at, pairings = int(off.int().argmax()), [pairing, *PAIRINGS]
    meant = turns(x, expected, pairing)
    for pairing in pairings:
        turned = turns(x, actual, pairing)
        apart = (turned[..., at, :] - turned[:1, :1, at]).abs().max()
        if apart < 1e-3 and (turned.abs() - 1.0).abs().max() < 1e-4:
            rows = [z[0, 0, at].angle().round(decimals=12) + 0.0 for z in (turned, meant)]
            angles = ", where ".join(numbers(row)[1:-1] for row in rows)
            return (
                f"{call}, pairs of {PAIRINGS[pairing]} of {name} turn at position "
                f"{case.start + at} by the angles {angles} are meant (up to whole turns)."
            )
    same = ((actual - x).abs().amax(dim=(0, 1, 2)) < 1e-5).nonzero().flatten().tolist()
    return f"{call}, channels {str(same)[1:-1]} of {name} are not changed." if same else ""


def turns(x: Tensor, y: Tensor, pairing: str) -> Tensor:
    """The complex number that each pair of channels is multiplied by."""
    if pairing == "half":
        x, y = (z.unflatten(-1, (2, -1)).mT.flatten(-2) for z in (x, y))
    before, after = (torch.view_as_complex(z.unflatten(-1, (-1, 2))) for z in (x, y))
    return after / before
