"""Where no known mistake matches: what is true of the function, each in one sentence."""

from collections.abc import Sequence

import torch
from torch import Tensor

from attn_lib.diagnosis.cases import LONG, Draw
from attn_lib.diagnosis.formula import Case, Intent, Layer, compute
from attn_lib.diagnosis.projections import unexplained
from attn_lib.diagnosis.properties import largest
from attn_lib.diagnosis.subject import Answer, Subject


def facts(
    subject: Subject,
    draw: Draw,
    wrong: Sequence[tuple[Case, Answer]],
    intent: Intent,
    layer: Layer | None,
) -> list[str]:
    """Sentences about a function that differs from attention, none of them a guess.

    Args:
        subject: what is called.
        draw: makes further inputs.
        wrong: the calls in which it differs.
        intent: what is meant.
        layer: a module's projections.

    Returns:
        Which heads and positions differ; for a function of q, k and v also whether it is linear
        in v, whether rows of weights sum to 1, and which keys are never used.

    Example:
        >>> mine = Subject(lambda q, k, v: v * 1.5, "mine", ["q", "k", "v"], {}, {})
        >>> facts(mine, Draw(mine, Intent()), [], Intent(), None)[0]
        'Where every value is 1, the output is 1.5, not 1.'

    Source: attention is linear in v, and its weights are averages.
    """
    texts = _where(wrong, intent, layer)
    if subject.projects and subject.module is not None:
        others = unexplained(subject.module, subject.projections)
        if others:
            shown = ", ".join(others[:6])
            texts.append(
                f"The module also has {shown}, which attention has no use for: if this is a "
                "block, pass its attention alone."
            )
    lost = sum(bool(a.out is not None and a.out.isnan().all()) for _, a in wrong)
    if lost:
        return [*texts, f"In {lost} of these calls the whole output is NaN."]
    if not subject.projects:
        texts += _weights(subject, draw, intent)
        texts += _queries(subject, draw)
    return texts


def _where(wrong: Sequence[tuple[Case, Answer]], intent: Intent, layer: Layer | None) -> list[str]:
    """Heads and positions that differ, where others do not."""
    heads: list[Tensor] = []
    for case, answer in wrong:
        expected = compute(case, intent, layer).out
        if answer.out is None or answer.out.shape != expected.shape or expected.dim() != 4:
            continue
        gap = (answer.out - expected).abs().nan_to_num(9.0) > 10.0 * case.tolerance
        if expected.shape[1] > 1 and case.mask is None:
            heads.append(gap.any(dim=-1).any(dim=-1).any(dim=0))
    same = heads and all(h.shape == heads[0].shape for h in heads)
    if same and not bool(torch.stack(heads).any(dim=0).all()):
        numbers = torch.stack(heads).any(dim=0).nonzero().flatten().tolist()
        verb = "differs" if len(numbers) == 1 else "differ"
        return [f"Only {listed('head', numbers)} of {len(heads[0])} {verb}."]
    return []


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
        if not all(bool(out.isfinite().all()) for out in (zero, one, two, all_one)):
            return []
        if zero.abs().max().item() > 1e-5:
            size = zero.abs().max().item()
            return [f"With values of zero the output is not zero, but up to {size:.3g}."]
        if largest(two, 2.0 * one) > 1e-4:
            return ["The output is not linear in v: doubling the values does not double it."]
        texts = _ones(all_one) if intent.sinks is None else []
        expected = compute(_with(case, v=v), intent, None).out
        if one.shape == expected.shape and not case.merged:
            texts += _rows(one, expected)
        return texts
    return []


def _ones(out: Tensor) -> list[str]:
    low, high = out.min().item(), out.max().item()
    if max(abs(low - 1.0), abs(high - 1.0)) < 1e-3:
        return []
    shown = f"{low:.3g}" if high - low < 1e-3 else f"{low:.3g} to {high:.3g}"
    return [f"Where every value is 1, the output is {shown}, not 1."]


def _rows(weights: Tensor, expected: Tensor) -> list[str]:
    texts = []
    if weights.min().item() < -1e-5:
        low = weights.min().item()
        texts.append(f"With unit vectors as values, the output is as low as {low:.3g}, below 0.")
    used = weights.abs().flatten(0, -2).amax(dim=0) > 1e-7
    meant = expected.abs().flatten(0, -2).amax(dim=0) > 1e-7
    lost, extra = (meant & ~used).nonzero(), (used & ~meant).nonzero()
    if lost.numel():
        texts.append(
            f"With {len(used)} keys, {listed('key', lost.flatten().tolist())} "
            f"{'gets' if lost.numel() == 1 else 'get'} no weight in any row."
        )
    if extra.numel():
        texts.append(f"Used although closed: {listed('key', extra.flatten().tolist())}.")
    rows = ((weights - expected).abs() > 1e-4).any(dim=-1).flatten(0, -2).any(dim=0)
    if rows.any() and not rows.all():
        numbers = rows.nonzero().flatten().tolist()
        one = len(numbers) == 1
        which = listed("query", numbers).replace("querys", "queries")
        texts.append(f"With {len(rows)} queries, only {which} {'differs' if one else 'differ'}.")
    return texts


def _queries(subject: Subject, draw: Draw) -> list[str]:
    """Whether the size of the queries, and the order of the keys, matter."""
    texts = []
    case = draw.case("queries", 6)
    base = subject.answer(case).out
    larger = subject.answer(_with(case, q=3.0 * case.tensors["q"])).out
    if base is None or not bool(base.isfinite().all()):
        return []
    if larger is not None and largest(base, larger) < 1e-5:
        texts.append("Three times larger queries give the same output.")
    if not draw.intent.causal and draw.intent.rope_base is None:
        order = torch.tensor([3, 0, 4, 1, 5, 2])
        k, v = (case.tensors[role][..., order, :] for role in "kv")
        moved = subject.answer(_with(case, k=k, v=v)).out
        if moved is not None and largest(moved, base) > 1e-4:
            texts.append(
                "Keys in another order, each with its value, change the output by up to "
                f"{largest(moved, base):.3g}."
            )
    return texts


def _with(case: Case, **tensors: Tensor) -> Case:
    return Case(**{**vars(case), "tensors": {**case.tensors, **tensors}})
