"""Where no known mistake matches: what is true of the function, each in one sentence."""

from collections.abc import Sequence

import torch
from torch import Tensor

from attn_check.cases import LONG, Draw
from attn_check.explore import with_other_key
from attn_check.projections import unexplained
from attn_check.reference import Case, Intent, Layer, compute
from attn_check.report import largest
from attn_check.search import compared, open_rows
from attn_check.subject import Answer, Subject


def facts(
    subject: Subject,
    draw: Draw,
    wrong: Sequence[tuple[Case, Answer]],
    intent: Intent,
    layer: Layer | None,
) -> list[str]:
    """Sentences about a function that differs from attention, none of them a guess."""
    texts = _where(wrong, intent, layer)
    if subject.projects and subject.module is not None:
        others = unexplained(subject.module, subject.projections)
        if others:
            shown = ", ".join(others[:6])
            texts.append(
                f"The module also has {shown}, not used in this comparison: if this is a "
                "block, pass its attention alone; if they project, pass projections=."
            )
    elif not subject.projects and not subject.heads and "H" not in subject.layout:
        texts.append("It is compared with one head: if heads lie side by side, pass heads=.")
    elif not subject.projects and not subject.heads and "B" not in subject.layout:
        texts.append(
            f"Its inputs were passed in the layout {subject.layout}: if they are (B, T, H · d), "
            "heads side by side, pass heads=."
        )
    lost = sum(bool(a.out is not None and a.out.isnan().all()) for _, a in wrong)
    if lost:
        return [*texts, f"In {lost} of these calls the whole output is NaN."]
    spoiled = sum(a.out is not None and not _finite(c, a.out, intent) for c, a in wrong)
    if spoiled:
        counted = "one of these calls" if spoiled == 1 else f"{spoiled} of these calls"
        texts.append(f"In {counted} some of the output is NaN or infinite.")
    texts += _ahead(subject, draw, intent)
    if not subject.projects:
        texts += _weights(subject, draw, intent)
        texts += _queries(subject, draw)
    return texts


def _ahead(subject: Subject, draw: Draw, intent: Intent) -> list[str]:
    """Whether later keys have far less influence than earlier ones, where none is meant."""
    case = draw.case("ahead", 6, words="6 positions")
    base = subject.answer(case).out
    if intent.causal or base is None or not bool(base.isfinite().all()):
        return []
    most = {"later": 0.0, "earlier": 0.0}
    for s in range(6):
        out = subject.answer(with_other_key(case, s)).out
        if out is None or out.shape != base.shape or not bool(out.isfinite().all()):
            return []
        change = (out - base).abs().transpose(-2, 0).flatten(1).amax(dim=-1)  # of each query
        for name, rows in (("later", change[:s]), ("earlier", change[s + 1 :])):
            most[name] = max(most[name], *rows.tolist(), 0.0)
    if most["later"] >= 0.05 * most["earlier"]:  # or where each query reads its own key alone
        return []
    return [
        f"With 6 positions, another input at one of them changes the outputs before it by up to "
        f"{most['later']:.2g}, those after it by up to {most['earlier']:.2g}: if the function is "
        "meant to be causal, pass causal=True."
    ]


def _finite(case: Case, out: Tensor, intent: Intent) -> bool:
    """Whether all rows that may attend to something are finite."""
    if out.dim() < 3 or (out.shape[0], out.shape[-2]) != (case.batch, case.lengths[0]):
        return bool(out.isfinite().all())
    return bool(compared(out, case, intent).isfinite().all())


def _where(wrong: Sequence[tuple[Case, Answer]], intent: Intent, layer: Layer | None) -> list[str]:
    """Heads that differ, where others do not: in calls without a mask."""
    heads: list[Tensor] = []
    for case, answer in wrong:
        expected = compute(case, intent, layer).out
        if answer.out is None or answer.out.shape != expected.shape or expected.dim() != 4:
            continue
        if expected.shape[1] > 1 and not case.closes:
            gap = (answer.out - expected).abs()
            rows = open_rows(case, intent)
            gap = gap if rows is None else gap.masked_fill(~rows[:, None, :, None], 0.0)
            heads.append(gap.transpose(0, 1).flatten(1).amax(dim=1))
    if not heads or any(h.shape != heads[0].shape or not h.isfinite().all() for h in heads):
        return []
    most = torch.stack(heads).amax(dim=0)
    off = most > 1e-3
    if not off.any() or off.all():
        return []
    which = listed("head", off.nonzero().flatten().tolist())
    verb = "differs" if int(off.sum()) == 1 else "differ"
    return [
        f"In those without a mask, {which} of {len(most)} {verb} by up to {most[off].max():.3g}, "
        f"the rest by at most {1.5 * most[~off].max():.1g}."
    ]


def listed(noun: str, numbers: list[int]) -> str:
    """As "key 3", "keys 1, 2" or "keys 64 to 69"."""
    if len(numbers) == 1:
        return f"{noun} {numbers[0]}"
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{noun}s {numbers[0]} to {numbers[-1]}"
    shown = ", ".join(map(str, numbers[:8]))
    return f"{noun}s {shown}{', …' if len(numbers) > 8 else ''}"


def _weights(subject: Subject, draw: Draw, intent: Intent) -> list[str]:
    """The weights show as the output where the values are the unit vectors."""
    for S in (LONG, draw.d_k):
        case = draw.case("weights", S, d_v=S)
        v = torch.eye(S, dtype=torch.float64).expand(case.batch, case.kv_heads, S, S)
        v = v.transpose(1, 2).flatten(-2) if case.merged else v
        zero = subject.answer(_with(case, v=torch.zeros_like(v))).out
        one, two = (subject.answer(_with(case, v=n * v)).out for n in (1.0, 2.0))
        all_one = subject.answer(_with(case, v=torch.ones_like(v))).out
        if zero is None or one is None or two is None or all_one is None:
            continue
        if not all(_finite(case, out, intent) for out in (zero, one, two, all_one)):
            return []
        if zero.abs().max().item() > 1e-5:
            size = zero.abs().max().item()
            return [f"With {S} keys and values of zero the output is not zero: up to {size:.3g}."]
        if largest(two, 2.0 * one) > 1e-4:
            return [
                f"The output is not linear in v: with {S} keys and unit vectors as values, twice "
                f"the values differ from twice the output by up to {largest(two, 2.0 * one):.3g}."
            ]
        texts = _ones(all_one, S) if intent.sinks is None else []
        expected = compute(_with(case, v=v), intent, None).out
        if one.shape == expected.shape and not case.merged:
            texts += _rows(one, expected)
        return texts
    return []


def _ones(out: Tensor, S: int) -> list[str]:
    low, high = out.min().item(), out.max().item()
    if max(abs(low - 1.0), abs(high - 1.0)) < 1e-3:
        return []
    shown = f"{low:.3g}" if high - low < 1e-4 else f"{low:.6g} to {high:.6g}"
    return [f"With {S} keys whose values are all 1, the output is {shown}, not 1."]


def _rows(weights: Tensor, expected: Tensor) -> list[str]:
    """Of an output with unit vectors as values: channel s shows the weight of key s."""
    texts, S = [], weights.shape[-1]
    start = f"With {S} keys and unit vectors as values, "
    if weights.min().item() < -1e-5:
        texts.append(f"{start}the output is as low as {weights.min().item():.3g}, below 0.")
    used = weights.abs().flatten(0, -2).amax(dim=0)
    meant = expected.abs().flatten(0, -2).amax(dim=0)
    lost = ((meant > 1e-5) & (used < 1e-7)).nonzero().flatten().tolist()
    extra = ((used > 1e-5) & (meant == 0.0)).nonzero().flatten().tolist()
    if lost:
        verb = "reaches" if len(lost) == 1 else "reach"
        texts.append(f"{start}the value of {listed('key', lost)} {verb} no row by 1e-7 or more.")
    if extra:
        verb = "reaches" if len(extra) == 1 else "reach"
        texts.append(
            f"{start}the value of {listed('key', extra)}, which is closed, {verb} the output."
        )
    gap = (weights - expected).abs().amax(dim=-1).flatten(0, -2).amax(dim=0)
    rows = gap > 1e-4
    if rows.any() and not rows.all():
        which = listed("query", rows.nonzero().flatten().tolist()).replace("querys", "queries")
        verb = "differs" if int(rows.sum()) == 1 else "differ"
        texts.append(
            f"{start}{which} {verb} by up to {gap[rows].max():.3g}, the rest by at most "
            f"{1.5 * gap[~rows].max():.1g}."
        )
    return texts


def _queries(subject: Subject, draw: Draw) -> list[str]:
    """Whether the size of the queries, and the order of the keys, matter."""
    texts = []
    case = draw.case("queries", 6)
    base = subject.answer(case).out
    larger = subject.answer(_with(case, q=3.0 * case.tensors["q"])).out
    if base is None or not bool(base.isfinite().all()):
        return []
    if larger is not None and bool(larger.isfinite().all()) and largest(base, larger) < 1e-5:
        texts.append(
            "Three times larger queries, 6 of them without a mask, change the output by at most "
            f"{1.5 * largest(base, larger):.1g}."
        )
    if not draw.intent.causal and draw.intent.rope_base is None:
        order = torch.tensor([3, 0, 4, 1, 5, 2])
        k, v = (case.tensors[role][..., order, :] for role in "kv")
        moved = subject.answer(_with(case, k=k, v=v)).out
        if moved is not None and bool(moved.isfinite().all()) and largest(moved, base) > 1e-4:
            texts.append(
                "6 keys in another order, each with its value, change the output by up to "
                f"{largest(moved, base):.3g}."
            )
    return texts


def _with(case: Case, **tensors: Tensor) -> Case:
    return Case(**{**vars(case), "tensors": {**case.tensors, **tensors}})
