"""Decoding step by step: one query and a mask, and pieces with a cache, which give the whole."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, chain, islice

import torch
from torch import Tensor

from attn_check.calls import WithoutDropout, copied, from_layout, to_layout
from attn_check.cases import Exam, key_masks
from attn_check.reference import Case, Step, triangle
from attn_check.report import largest
from attn_check.subject import module_of, quoted

PIECES = (3, 1, 2, 1)
_WORDS = f"pieces of {', '.join(map(str, PIECES))} positions"
_CUT = [range(b - PIECES[n], b) for n, b in enumerate(accumulate(PIECES))]  # tokens of each call
_PIECE_OF = [piece for piece in _CUT for _ in piece]  # of each token


@dataclass(frozen=True)
class Plan:
    """How a cache is wrong: in each field, what one piece gets."""

    keys: Callable[[range], list[int]] = lambda p: [*range(p.stop)]  # tokens, in their order
    start: Callable[[range], int] = lambda p: p.start  # the position of its first token, for RoPE
    of_queries: Callable[[range], int] = lambda p: 0  # what is added to positions of queries
    again: bool = False  # each call rotates what the cache holds once more
    reach: Callable[[int, int], Tensor] = lambda T, S: triangle(T, S, S - T)


PLANS: dict[str, tuple[Plan, ...]] = {
    "rope_positions_restart": (
        *(Plan(start=lambda p: 0), Plan(of_queries=lambda p: -p.start)),
        Plan(start=lambda p: 0, of_queries=lambda p: p.start),
    ),
    "cache_position": (
        Plan(start=lambda p: max(p.start - 1, 0)),
        Plan(start=lambda p: p.start + 1 if p.start else 0),
        Plan(start=lambda p: p.stop),
        Plan(start=lambda p: p.stop if p.start else 0),
        Plan(start=lambda p: p.stop - 1),
        Plan(start=_CUT.index),  # one a call, however many tokens it brings
    ),
    "rope_twice": (Plan(again=True),),
    "cache_mask": (
        Plan(reach=lambda T, S: triangle(T, S, 0)),
        Plan(reach=lambda T, S: triangle(T, S, S if T < S else 0)),
        Plan(reach=lambda T, S: triangle(T, S, 0 if T > 1 else S)),
        Plan(reach=lambda T, S: triangle(T, S, S)),
    ),
    "cache_stale": (
        Plan(lambda p: [*range(min(p.start, PIECES[0])), *p]),
        Plan(lambda p: [*range(min(p.start, PIECES[0])), *p], lambda p: min(p.start, PIECES[0])),
        Plan(lambda p: [*range(_PIECE_OF[max(p.start - 1, 0)].start, p.stop)]),
    ),
    "cache_not_appended": (Plan(list), Plan(list, start=lambda p: 0)),
    "cache_order": (Plan(lambda p: sorted(range(p.stop), key=lambda i: -_PIECE_OF[i].start)),),
}


def _planned(exam: Exam, case: Case, plan: Plan, piece: range) -> Tensor:
    """The output of one piece that a wrong cache would give."""
    keys, now, sources = plan.keys(piece), [*piece], dict(case.tensors)
    if exam.layer is not None:
        sources["context"] = sources["x"]
    rows = {role: x[..., now if role in "qx" else keys, :] for role, x in sources.items()}
    places = torch.tensor([plan.start(p) + i - p.start for i, p in enumerate(_PIECE_OF)])
    calls = [1 + plan.again * (_CUT.index(piece) - _CUT.index(p)) for p in _PIECE_OF]
    positions = places[now] + plan.of_queries(piece), (places * torch.tensor(calls))[keys]
    change: dict[str, Step] = {"causal": lambda run: plan.reach(len(now), len(keys))}
    if exam.intent.rope_base is not None:
        change["positions"] = lambda run: positions
    return exam.expected(case.with_tensors(**rows), change)


def check_one_query(exam: Exam) -> None:
    """A mask in a step of decoding: one query, several keys."""
    if not exam.masked or not exam.subject.crosses or exam.broadcasts:
        return
    B = 2 if "B" in exam.subject.mask_shape else 1
    mask = key_masks(B, 6, "left").expand(2, 1, 6)
    case = replace(exam.case("1 query, 6 keys and a mask", 1, 6), mask=mask)
    out, expected = exam.out(case), exam.expected(case)
    if out is None or exam.equal(out, expected, case):
        return
    unmasked = exam.equal(out, exam.expected(replace(case, mask=None)), case)
    kind = "that without a mask" if unmasked else "not attention's"
    text = f"With a mask, 1 query and 6 keys the output is {kind}."
    exam.found.broken("one query with a mask is wrong", text, exam.shown(case, out, expected))


def check_steps(exam: Exam) -> None:
    """Give sequences in pieces, and compare with the reference for the whole of one."""
    subject, found = exam.subject, exam.found
    if subject.step is None:
        return
    if not exam.intent.causal:
        found.unchecked.append("step by step: only where causal=True is meant")
        return
    if exam.layer is not None and subject.original is not None:
        _, own = copied(subject.original, subject.original, to_cpu=True)
        exam.layer = exam.read(own or subject.original)  # as the step function has it
    step, _ = copied(subject.step, None, to_cpu=True)
    case = exam.case(_WORDS, sum(PIECES))
    if (owner := module_of(step)) is not None:
        owner.eval()
    found.unchecked.append(f"step by step: more than {sum(PIECES)} positions")
    expected, lost = exam.expected(case), list[bool]()
    out, raised = _joined(_pieces(exam, step, case, lost))
    if out is None:
        found.broken("the step function cannot be used", "It raises in the first pieces.", raised)
        return
    right = exam.equal(out, expected, case)
    if right:
        found.holds.append(f"{_WORDS}, with the cache, equal the whole")
    _check_again(exam, step, case, out, right)
    if not right:
        _report(exam, case, out, expected, any(lost))


def _pieces(exam: Exam, step: Callable, case: Case, lost: list[bool]) -> Iterator[Tensor]:
    """The output of one piece after the other; ``lost`` gets whether None was the cache."""
    cache, subject = None, exam.subject
    counts = {"q": case.heads, "k": case.kv_heads, "v": case.kv_heads}
    for piece in _CUT:
        part = case.with_tensors(**{r: x[..., [*piece], :] for r, x in case.tensors.items()})
        inputs = [
            to_layout(x.to(subject.dtype), subject.layout, part.merged, counts.get(role, 1))
            for role, x in part.tensors.items()
        ]
        with torch.no_grad(), WithoutDropout():
            result = step(*inputs, cache)
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise TypeError(f"step must return (out, cache), got {type(result).__name__}")
        out, cache = result
        lost.append(cache is None)
        yield from_layout(out, subject.layout, part, subject.projects)


def _joined(pieces: Iterable[Tensor]) -> tuple[Tensor | None, str]:
    """The pieces as one output, or what is raised on the way."""
    try:
        return torch.cat([*pieces], dim=-2), ""
    except Exception as error:  # whatever it raises is an answer
        return None, quoted(error)


def _check_again(exam: Exam, step: Callable, case: Case, first: Tensor, right: bool) -> None:
    """Whether a sequence gives the same again while another is open, which then goes on."""
    words = f"the same {_WORDS} as a second sequence, cache=None in its first call"
    other = exam.case("other pieces", sum(PIECES))
    opened = _pieces(exam, step, other, [])
    begun, raised = _joined(islice(opened, 2))
    second, error = _joined(_pieces(exam, step, case, []))
    if begun is None or second is None:
        exam.found.known("cache_of_earlier_sequence", f"{words}: {raised or error}")
    elif not exam.equal(second, first, case):
        example = exam.shown(replace(case, name=words), second, first)
        exam.found.known("cache_of_earlier_sequence", example)
    elif right:
        out, _ = _joined(chain([begun], opened))
        if out is not None and exam.equal(out, exam.expected(other), other):
            text = "of two sequences that are open at once, neither disturbs the other"
            exam.found.holds.append(text)
        else:
            text = "Of two sequences that are open at once, the first is wrong from the second's "
            text += "first call on: step keeps something that is not in the cache it returns. One "
            exam.note(f"{text}after the other they are right.")


def _report(exam: Exam, case: Case, out: Tensor, expected: Tensor, no_cache: bool) -> None:
    """The known mistakes that give this output, or else how it differs."""
    forms: dict[str, int] = {}
    for name, plans in PLANS.items():
        for form, plan in enumerate(plans):
            given = torch.cat([_planned(exam, case, plan, piece) for piece in _CUT], dim=-2)
            if exam.equal(out, given, case):
                forms.setdefault(name, form)
    example = exam.shown(case, out, expected)
    if forms:
        first, *rest = forms
        exam.found.known(first, example, alike=tuple(rest), form=forms[first])
    elif "cache_of_earlier_sequence" in exam.found.mistakes:
        return
    elif out.shape != expected.shape:
        text = "What step returns of all pieces, joined, has not the shape of the whole."
        exam.found.broken("pieces have another shape than the whole", text, example)
    elif no_cache:
        text = "The pieces differ from the whole, and step returned None as the cache: it must "
        text += "return what the next call needs, as (out, cache)."
        exam.found.broken("step returns no cache", text, example)
    else:
        text = "No known mistake that was tried gives these numbers. The sequence in pieces, with "
        text += f"the cache, differs by up to {largest(out, expected):.3g} from the whole, "
        exam.found.broken("pieces differ from the whole", f"{text}which is right.", example)
