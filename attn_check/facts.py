"""How many calls agree; and, where no known mistake gives the numbers, what is true of them."""

from dataclasses import replace

import torch
from torch import Tensor

from attn_check.calls import NAMES
from attn_check.cases import Exam
from attn_check.modules import numbers_of, part_of, unexplained
from attn_check.reference import Case
from attn_check.report import NOT_JUDGED
from attn_check.search import Answered, compared, open_rows

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
    kinds = [text for part, text in _KINDS.items() if getattr(exam.intent, part, None) is None]
    more = f"Or it has a part that is not known here: {', '.join(kinds)}."
    texts = [_where(exam, wrong, right), *_facts(exam, wrong), more]
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
    """In which calls the output differs, and in which it does not."""
    text = "No known mistake that was tried, for what is said and assumed here, gives these "
    text += "numbers"
    if exam.intent.rope_base is None:
        text += " (assumed: no RoPE inside, as no usual base fits; if there is, pass rope_base=)"
    text += f". The output differs from attention's in {len(wrong)} of {len(wrong) + len(right)} "
    text += f"calls ({_names(wrong)})"
    return text + (f"; within rounding, it is right in {_names(right)}." if right else ".")


def _names(calls: list[Call]) -> str:
    names = list(dict.fromkeys(case.name for case, *_ in calls))
    return "; ".join(names[:6]) + (f"; and {len(names) - 6} more" if len(names) > 6 else "")


def _facts(exam: Exam, wrong: list[Call]) -> list[str]:
    subject, texts = exam.subject, []
    if not subject.projects and not subject.heads and not {"B", "H"} <= {*subject.layout}:
        text = f"Its inputs were passed in the layout {subject.layout}: if they are "
        texts.append(f"{text}(B, T, H · d), heads side by side, pass heads=.")
    given = [call for call in wrong if call[1].shape == call[2].shape]
    finite = [bool(compared(out, c, exam.intent).isfinite().all()) for c, out, _ in given]
    if n := finite.count(False):
        return [*texts, f"In {n} of these calls some of the output is NaN or infinite."]
    texts += _ahead(exam)
    return texts if subject.projects or not given else texts + _values(exam, given[0][0])


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


def _values(exam: Exam, case: Case) -> list[str]:
    """What values of 0 and of 1 give in a call whose output is wrong, if it is another number."""
    texts = []
    for value in (0.0, 1.0) if exam.intent.sinks is None else (0.0,):  # a sink takes a part
        out = exam.out(case.with_tensors(v=torch.full_like(case.tensors["v"], value)))
        given = case.tensors["v"].new_empty(0) if out is None else compared(out, case, exam.intent)
        if given.numel() and not (given - value).abs().max() < 1e-3:
            span = " to ".join(dict.fromkeys(f"{x:.4g}" for x in given.aminmax()))
            texts.append(f"In the call with {case.name}, values of {value:g} give {span}.")
    return texts


# ---------------------------------------------------------------- of a rotation

Turned = tuple[Case, str, Tensor, Tensor]  # q or k, as it was turned, and as it is expected


def of_rotation(wrong: list[Turned], cases: list[Case]) -> tuple[str, str]:
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
    facts = {
        f"The length of a row changes by up to {100 * longer:.3g} %.": longer > 1e-4,
        f"Position 0 is changed, by up to {at_0:.3g}: its angle should be 0.": at_0 > 1e-4,
        f"Right: {'; '.join(right)}. Wrong: {'; '.join(bad)}.": right,
    }
    title = "the output is not a rotation" if longer > 1e-4 else title
    return title, " ".join([text, *(fact for fact, holds in facts.items() if holds)])


def turns(x: Tensor, y: Tensor, pairing: str) -> Tensor:
    """The complex number that each pair of channels is multiplied by."""
    if pairing == "half":
        x, y = (z.unflatten(-1, (2, -1)).mT.flatten(-2) for z in (x, y))
    before, after = (torch.view_as_complex(z.unflatten(-1, (-1, 2))) for z in (x, y))
    return after / before
