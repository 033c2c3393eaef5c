"""Step by step with a cache: the pieces together must give what the whole gives."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attn_check.cases import Draw
from attn_check.projections import read_layer
from attn_check.reference import Case, Change, Layer, compute, triangle
from attn_check.report import Findings, largest, show
from attn_check.search import equal
from attn_check.sequences import (
    PIECES,
    WORDS,
    check_open,
    check_second,
    in_pieces,
    own_step,
    together,
)
from attn_check.subject import Subject, quoted


@dataclass(frozen=True)
class Plan:
    """What one piece sees: which positions as keys, all positions for RoPE, and open cells."""

    keys: list[int]
    of_queries: list[int]
    of_keys: list[int]
    reach: Tensor


Planner = Callable[[int, int, list[Plan]], Plan]


def _plan(
    keys: list[int], a: int, b: int, *, first: int, before: dict[int, int], reach: Tensor | None
) -> Plan:
    """New tokens a to b get positions from ``first`` on; earlier ones keep those they have."""
    placed = {**before, **{a + i: first + i for i in range(b - a)}}
    T, S = b - a, len(keys)
    return Plan(
        keys,
        [placed[i] for i in range(a, b)],
        [placed[i] for i in keys],
        triangle(T, S, S - T) if reach is None else reach,
    )


def _placed(earlier: list[Plan]) -> dict[int, int]:
    """The position that each earlier token was given."""
    return {i: p for plan in earlier for i, p in zip(plan.keys, plan.of_keys, strict=True)}


def _right(a: int, b: int, earlier: list[Plan]) -> Plan:
    return _plan([*range(b)], a, b, first=a, before=_placed(earlier), reach=None)


def _at(first: Callable[[int, int], int]) -> Planner:
    def plan(a: int, b: int, earlier: list[Plan]) -> Plan:
        return _plan([*range(b)], a, b, first=first(a, b), before=_placed(earlier), reach=None)

    return plan


def _queries_restart(a: int, b: int, earlier: list[Plan]) -> Plan:
    return replace(_right(a, b, earlier), of_queries=[*range(b - a)])


def _counts_calls(a: int, b: int, earlier: list[Plan]) -> Plan:
    """Positions go on by one a call, however many tokens it brings."""
    return _plan([*range(b)], a, b, first=len(earlier), before=_placed(earlier), reach=None)


def _reaching(reach: Callable[[int, int], Tensor]) -> Planner:
    def plan(a: int, b: int, earlier: list[Plan]) -> Plan:
        return replace(_right(a, b, earlier), reach=reach(b - a, b))

    return plan


def _own_keys(restart: bool) -> Planner:
    def plan(a: int, b: int, earlier: list[Plan]) -> Plan:
        first = 0 if restart else a
        return _plan([*range(a, b)], a, b, first=first, before={}, reach=None)

    return plan


def _first_and_own(restart: bool) -> Planner:
    def plan(a: int, b: int, earlier: list[Plan]) -> Plan:
        kept = [*range(PIECES[0])] if earlier else []
        first = len(kept) if restart else a
        return _plan([*kept, *range(a, b)], a, b, first=first, before=_placed(earlier), reach=None)

    return plan


def _last_and_own(a: int, b: int, earlier: list[Plan]) -> Plan:
    kept = [i for i in earlier[-1].keys if i >= a - PIECES[len(earlier) - 1]] if earlier else []
    return _plan([*kept, *range(a, b)], a, b, first=a, before=_placed(earlier), reach=None)


def _new_first(a: int, b: int, earlier: list[Plan]) -> Plan:
    old = earlier[-1].keys if earlier else []
    return _plan([*range(a, b), *old], a, b, first=a, before=_placed(earlier), reach=None)


PLANS: dict[str, tuple[Planner, ...]] = {
    "rope_positions_restart": (_at(lambda a, b: 0), _queries_restart),
    "cache_position": (
        _at(lambda a, b: max(a - 1, 0)),
        _at(lambda a, b: a + 1 if a else 0),
        _at(lambda a, b: b),
        _at(lambda a, b: b if a else 0),
        _at(lambda a, b: b - 1),
        _counts_calls,
    ),
    "cache_mask": (
        _reaching(lambda T, S: triangle(T, S, 0)),
        _reaching(lambda T, S: torch.ones(T, S, dtype=torch.bool) if T < S else triangle(T, S, 0)),
    ),
    "cache_stale": (_first_and_own(False), _first_and_own(True), _last_and_own),
    "cache_not_appended": (_own_keys(False), _own_keys(True)),
    "cache_order": (_new_first,),
}


def check_steps(subject: Subject, draw: Draw, found: Findings) -> None:
    """Give sequences in pieces, and compare with the reference for the whole of one."""
    if subject.step is None:
        return
    if not draw.intent.causal:
        found.unchecked.append("step by step: only where causal=True is meant")
        return
    layer, step = _layer(subject), own_step(subject)
    case = draw.case("pieces", sum(PIECES))
    expected = compute(case, draw.intent, layer).out
    try:
        mine, no_cache = together(in_pieces(subject, step, case))
    except Exception as error:  # whatever it raises is an answer
        found.property(
            "the step function cannot be used", "It raises in the first pieces.", quoted(error)
        )
        return
    right = mine.shape == expected.shape and equal(mine, expected, case, draw.intent)
    known = mine.shape == expected.shape and not right and _named(draw, layer, case, mine, found)
    alike = check_second(subject, draw, step, case, mine, found)
    if right:
        found.holds.append(f"{WORDS}, with the cache, equal the whole")
        if alike:
            check_open(subject, draw, case, mine, found)
    elif alike and not known:
        _unknown(draw, case, mine, expected, no_cache, found)


def _named(draw: Draw, layer: Layer | None, case: Case, mine: Tensor, found: Findings) -> bool:
    """Whether a known mistake gives these numbers: then it is reported."""
    forms: dict[str, int] = {}
    for name, planners in PLANS.items():
        for form, planner in enumerate(planners):
            if equal(mine, _planned(case, draw, layer, planner), case, draw.intent):
                forms.setdefault(name, form)
    if forms:
        first, *rest = forms
        expected = compute(case, draw.intent, layer).out
        example = show(replace(case, words=WORDS), mine, expected, draw.intent)
        found.known(first, example, alike=tuple(rest), form=forms[first])
    return bool(forms)


def _unknown(
    draw: Draw, case: Case, mine: Tensor, expected: Tensor, no_cache: bool, found: Findings
) -> None:
    if mine.shape != expected.shape:
        found.property(
            "pieces have another shape than the whole",
            f"The pieces together have the shape {tuple(mine.shape)}, not {tuple(expected.shape)}.",
        )
        return
    example = show(replace(case, words=WORDS), mine, expected, draw.intent)
    if no_cache:
        found.property(
            "step returns no cache",
            "The pieces differ from the whole, and step returned None as the cache: it must return "
            "what the next call needs, as (out, cache).",
            example,
        )
        return
    found.property(
        "pieces differ from the whole",
        "No known mistake that was tried gives these numbers. The sequence in pieces, with the "
        f"cache, differs by up to {largest(mine, expected):.3g} from the whole, which is right.",
        example,
    )


def _layer(subject: Subject) -> Layer | None:
    """The projections as the step function has them, not those of the copy."""
    if not subject.projects or subject.original is None:
        return None
    layers = read_layer(
        subject.original,
        heads=subject.heads,
        kv_heads=subject.kv_heads,
        projections=subject.projections,
    )
    return layers[subject.reading]


def _planned(case: Case, draw: Draw, layer: Layer | None, planner: Planner) -> Tensor:
    """The output that a wrong cache would give, piece by piece."""
    outs: list[Tensor] = []
    plans: list[Plan] = []
    a = 0
    for size in PIECES:
        plan = planner(a, a + size, plans)
        plans.append(plan)
        outs.append(_run(case, draw, layer, plan, a, a + size))
        a += size
    return torch.cat(outs, dim=-2)


def _run(case: Case, draw: Draw, layer: Layer | None, plan: Plan, a: int, b: int) -> Tensor:
    t = case.tensors
    if layer is None:
        tensors = {"q": t["q"][..., a:b, :], "k": t["k"][..., plan.keys, :]}
        tensors["v"] = t["v"][..., plan.keys, :]
    else:
        tensors = {"x": t["x"][..., a:b, :], "context": t["x"][..., plan.keys, :]}

    positions = torch.tensor(plan.of_queries), torch.tensor(plan.of_keys)
    change: Change = {"causal": lambda run: plan.reach}
    if draw.intent.rope_base is not None:
        change = {**change, "positions": lambda run: positions}
    return compute(replace(case, tensors=tensors), draw.intent, layer, change).out
