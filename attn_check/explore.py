"""What the caller leaves open, found out by looking at the function from outside."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attn_check.cases import Draw, with_empty_row
from attn_check.conventions import LAYOUTS, SHAPES, output_shape
from attn_check.projections import matrices
from attn_check.reference import Case, Intent, Layer, compute, triangle
from attn_check.search import rows_of
from attn_check.subject import Subject

ROPE_BASES = (1e4, 5e5, 1e6, 1e5, 1.5e5, 1.6e5, 5e6, 8e6, 1e7, 1e3, 1e2)  # of published models


def find_layouts(subject: Subject, intent: Intent, given: str | None = None) -> list[str]:
    """The layouts that accept queries and keys of different lengths, the likeliest first."""
    options: tuple[str, ...] = ("BTd", "TBd") if subject.projects else LAYOUTS
    if not subject.projects and subject.heads and subject.heads > 1:
        options = tuple(o for o in LAYOUTS if o not in ("Td", "HTd", "THd"))
    options = options if given is None else (given,)
    raised, found = "", list[str]()
    shapes: list[str | None] = [None, *(mask_options(subject, None) if subject.takes_mask else ())]
    for shape in shapes:  # without a mask first, then with one that closes nothing
        for sizes in ((4, 7), (5, 5)) if subject.crosses else ((5, 5),):
            for layout in options:
                twin = replace(subject.fresh(), layout=layout, always_mask=shape is not None)
                twin.mask_shape = shape or subject.mask_shape
                case = Draw(twin, intent).case("layout", *sizes)
                answer = twin.answer(case)
                if answer.out is not None:
                    if fits(answer.out, case, twin):
                        found.append(layout)
                        continue
                    raised = raised or f"an output of shape {tuple(answer.out.shape)}"
                raised = raised or answer.raised
            if found:
                subject.always_mask = shape is not None
                full = [layout for layout in found if len(layout) == 4]
                return full or found  # of fewer axes only where four are refused
    if raised.startswith(("NameError", "UnboundLocalError", "ImportError", "ModuleNotFoundError")):
        raise ValueError(f"fn fails whatever it is given, mend that first: {raised}")
    masked = ", with a mask or without one" if subject.takes_mask else ""
    raise ValueError(
        f"fn accepts no inputs in any of the layouts {', '.join(options)}{masked}: "
        f"pass layout=, mask_means= or mask_shape= if they are known; the first call gave: {raised}"
    )


def influence(subject: Subject, case: Case) -> Tensor:
    """(T, S) bool: whether the value (or input) at a key's position changes a query's output."""
    return changes(subject, case) > 1e-6


def changes(subject: Subject, case: Case) -> Tensor:
    """(T, S): how far it changes it, as a share of the output's size; 1 where a call raises."""
    return changes_of_each(subject, case).amax(dim=0)


def changes_of_each(subject: Subject, case: Case) -> Tensor:
    """(B, T, S): the same for each example, of which all are changed at once."""
    B, (T, S) = case.batch, case.lengths
    base = subject.answer(case).out
    if base is None:
        return torch.ones(B, T, S, dtype=torch.float64)
    found = torch.zeros(B, T, S, dtype=torch.float64)
    for j in range(S):
        out = subject.answer(with_other_key(case, j)).out
        if out is None or out.shape != base.shape:
            return torch.ones(B, T, S, dtype=torch.float64)
        change = (out - base).abs().nan_to_num(1.0).transpose(-2, 1).flatten(2).amax(dim=-1)
        found[..., j] = change / (1.0 + base.abs().max().nan_to_num(1.0))
    return found


def with_other_key(case: Case, j: int) -> Case:
    """The case with another key and value, or input, at one position."""
    role = "v" if "v" in case.tensors else ("context" if "context" in case.tensors else "x")
    moved = {role: case.tensors[role].clone()}
    if role == "v" and case.tensors["k"].shape == moved["v"].shape:
        moved["k"] = case.tensors["k"].clone()
    for x in moved.values():
        x[..., j, :] = -x[..., j, :] + 1.0
    return replace(case, tensors={**case.tensors, **moved})


def find_causal(subject: Subject, draw: Draw) -> bool:
    """Whether keys on one side of the query have no influence on it."""
    reached = influence(subject, draw.case("influence", 6))
    T = reached.shape[0]
    ahead = torch.arange(T) > torch.arange(T)[:, None]
    behind = ahead.mT
    for side, other in ((ahead, behind), (behind, ahead)):
        far = side & ((torch.arange(T) - torch.arange(T)[:, None]).abs() > 1)
        if not reached[far].any() and bool(reached[other].any()):
            return True
    return False


def later_keys(subject: Subject, draw: Draw) -> str:
    """To which later keys queries attend, where T and S are equal and where they are not."""
    texts = []
    for T, S in [(6, 6), (4, 7)] if subject.crosses else [(6, 6)]:
        later = ~triangle(T, S, S - T)
        reached = influence(subject, draw.case("later keys", T, S)) & later
        which = "no later key" if not reached.any() else "all later keys"
        if reached.any() and not reached[later].all():
            t, s = reached.nonzero()[0].tolist()
            which = (
                f"{int(reached.sum())} of {int(later.sum())} later keys, query {t} to key {s} first"
            )
        texts.append(f"with {T} queries and {S} keys, queries attend to {which}")
    return f"Seen: {'; '.join(texts)}. As causal= is not passed, it is taken for causal."


def find_window(subject: Subject, draw: Draw) -> int | None:
    """The window of a causal function, if it has one."""
    reached = influence(subject, draw.case("window", 24))
    width, T = int(reached.sum(dim=-1).max()), len(reached)
    back = torch.arange(T)[:, None] - torch.arange(T)
    band = (back >= 0) & (back < width)
    return width if 1 < width < 20 and torch.equal(reached, band) else None


def mask_options(subject: Subject, shape: str | None) -> Iterator[str]:
    """Shapes that a mask may have, the likeliest first."""
    if shape is not None:
        yield shape
        return
    if subject.projects:
        name = next((n for n, role in subject.named.items() if role == "mask"), "")
        padding_first = "pad" in name or "attention_mask" in name
        order = ("BS", "B11S", "B1TS", "BTS", "TS", "BHTS")
        yield from order if padding_first else ("B1TS", "BTS", "TS", "BS", "B11S", "BHTS")
    elif "H" not in subject.layout and (subject.heads or 1) == 1:
        yield from ("BTS", "TS", "BS", "B1TS") if "B" in subject.layout else ("TS", "BS")
    else:
        yield from SHAPES


def fits(out: Tensor, case: Case, subject: Subject) -> bool:
    """Whether the output has the shape of the formula's."""
    layer = subject.layers[0] if subject.projects else None
    return out.shape == output_shape(case, layer)


def find_empty(subject: Subject, draw: Draw) -> str | None:
    """What a row without any open cell gives: nan, zeros, uniform, or something else."""
    try:
        case = with_empty_row(draw)
        answer = subject.answer(case)
        if answer.out is None or case.mask is None:
            return None
        rows = ~case.mask.any(dim=-1)  # (B, T)
        for name in ("nan", "zeros", "uniform"):
            intent = replace(draw.intent, empty=name, causal=False, window=None)
            for layer in _layers(subject):
                expected = compute(case, intent, layer).out
                pair = rows_of(answer.out, rows), rows_of(expected, rows)
                if torch.allclose(*pair, atol=1e-4, rtol=1e-3, equal_nan=True):
                    return name
        return "other"
    except ValueError:
        return None


def find_inside(subject: Subject, intent: Intent) -> tuple[Intent, str]:
    """Norms of queries and keys, and RoPE, if exactly they make the output right; and in words."""
    long = Draw(subject, intent).case("inside", 24)  # tells bases apart
    case = long if subject.answer(long).out is not None else Draw(subject, intent).case("", 5)
    answer = subject.answer(case)
    if answer.out is None:
        return intent, ""
    norms = [intent.qk_norm]
    if intent.qk_norm is None and subject.projects and "q" in subject.layers[0].norms:
        norms = [None, "rms", "layer"]
    ropes: list[tuple[float | None, str]] = [(intent.rope_base, intent.rope_pairing)]
    if intent.rope_base is None:
        ropes += [(b, p) for b in ROPE_BASES for p in ("half", "neighbours")]
    for rope_base, pairing in ropes:
        for kind in norms:
            meant = replace(intent, rope_base=rope_base, rope_pairing=pairing, qk_norm=kind)
            if any(_gives(answer.out, case, meant, one) for one in _layers(subject)):
                return meant, inside(intent, meant)
    return intent, ""


def _gives(out: Tensor, case: Case, meant: Intent, layer: Layer | None) -> bool:
    try:
        expected = compute(case, meant, layer).out
    except RuntimeError:  # a width that cannot be paired
        return False
    return out.shape == expected.shape and torch.allclose(out, expected, atol=1e-4, equal_nan=True)


def positional(subject: Subject, draw: Draw) -> bool:
    """Whether the order of earlier inputs matters to the last query."""
    case = draw.case("order", 6)
    order = torch.tensor([3, 0, 4, 1, 2, 5])
    moved = {r: x if r == "q" else x[..., order, :] for r, x in case.tensors.items()}
    one, two = (subject.answer(c).out for c in (case, replace(case, tensors=moved)))
    if one is None or two is None or one.shape != two.shape:
        return False
    return not torch.allclose(one[..., -1, :], two[..., -1, :], atol=1e-4)


def inside(before: Intent, after: Intent) -> str:
    """What a module has inside, in words."""
    texts = []
    if after.rope_base != before.rope_base:
        pairs = "halves" if after.rope_pairing == "half" else "neighbours"
        texts.append(f"RoPE inside, with base {after.rope_base:.0f}, pairing {pairs}")
    if after.qk_norm != before.qk_norm:
        texts.append(f"norms of queries and keys ({after.qk_norm})")
    return " and ".join(texts)


def _layers(subject: Subject) -> list[Layer | None]:
    """Each way of reading the projections, or None where there are none."""
    return list(subject.layers) or [None]


def without_projections(subject: Subject, intent: Intent, layout: str | None) -> Subject:
    """A method as a function of projected q, k and v, if it does not use the projections."""
    if not subject.projects or not {"q", "k", "v"} <= subject.roles:
        return subject
    layer = subject.layers[0]
    bare = replace(subject.fresh(), layers=[], heads=layer.heads, kv_heads=layer.kv_heads)
    bare.d_k = subject.d_k or layer.weights["q"].shape[0] // layer.heads
    try:
        bare.layout = find_layouts(bare, intent, layout)[0]
    except ValueError:
        return subject
    case, twin = Draw(bare, intent).case("projections", 5), bare.fresh()
    one = bare.answer(case).out
    if twin.module is None or twin.module is subject.original or one is None:
        return subject
    first, last = matrices(twin.module, subject.projections)
    for names in (first, last):
        with torch.no_grad():
            for name in names:
                twin.module.get_parameter(name).add_(1.0)
        two = twin.answer(case).out
        if two is None or not torch.allclose(one, two, equal_nan=True):
            if names is first:
                return subject
            raise ValueError(
                f"{subject.name} applies the module's output projection, but not those of "
                "queries, keys and values: pass the module, or a function without any of them"
            )
    bare.assumed.append(
        f"{subject.name} does not use the module's projections: its q, k and v are projected ones"
    )
    return bare
