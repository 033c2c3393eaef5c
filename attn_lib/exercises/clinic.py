"""The clinic: three broken functions, to be repaired."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from attn_lib.exercises._verdict import differs, exercise, tensor_of


def _draw(*shapes: tuple[int, ...]) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)


def _alike(out: Tensor, other: Tensor) -> bool:
    return out.shape == other.shape and not differs(out, other)


@exercise("18.1")
def scale_and_padding(answer: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> str | None:
    """The scores were divided by d_k, and the mask came after the softmax."""
    q, k, v = _draw((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6))
    words = torch.arange(7) < torch.tensor([[7], [3]])
    out = tensor_of(answer(q.clone(), k.clone(), v.clone(), words.clone()))
    keys = words[:, None, None]
    fault = differs(out, F.scaled_dot_product_attention(q, k, v, attn_mask=keys))
    if not fault:
        return None

    def late(scale: float) -> Tensor:
        return (q @ k.mT * scale).softmax(dim=-1) * keys @ v

    for told, wrong in (
        ("the mask is repaired; the scores are still divided by d_k, not by its root", 1 / 4),
        ("the mask is repaired; now the scores are not scaled at all", 1.0),
        ("the mask is repaired; but the scores are multiplied by the root of d_k", 2.0),
    ):
        if _alike(out, F.scaled_dot_product_attention(q, k, v, attn_mask=keys, scale=wrong)):
            return told
    if _alike(out, late(1 / 2)):
        return "the scale is repaired; the mask still comes after the softmax, so rows sum to less"
    if _alike(out, late(1 / 4)):
        return "that is the function as it was: repair the scale, and the place of the mask"
    if _alike(out, F.scaled_dot_product_attention(q, k, v)):
        return "the scale is repaired; but now the mask has no effect"
    if _alike(out, F.scaled_dot_product_attention(q, k, v, attn_mask=~keys)):
        return "the mask is inverted: True means a word, which may be attended to"
    return fault


@exercise("18.2")
def causal_with_a_cache(answer: Callable[[Tensor, Tensor, Tensor], Tensor]) -> str | None:
    """The causal mask was aligned at the first key."""
    for T, S in ((5, 5), (1, 4), (3, 7)):
        q, k, v = _draw((2, 3, T, 4), (2, 3, S, 4), (2, 3, S, 6))

        def seeing(offset: int, q: Tensor = q, k: Tensor = k, v: Tensor = v) -> Tensor:
            mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril(offset)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

        out, case = tensor_of(answer(q.clone(), k.clone(), v.clone())), f"with T={T} and S={S}"
        fault = differs(out, seeing(S - T))
        if not fault:
            continue
        for told, offset in (
            ("the queries are still taken for the first positions", 0),
            ("each query sees one key too many", S - T + 1),
            ("each query sees one key too few: its own is closed", S - T - 1),
            ("nothing is closed", S),
        ):
            if _alike(out.nan_to_num(), seeing(offset)):
                return f"{case}, {told}"
        return f"{case}, {fault}"
    return None


@exercise("18.3")
def heads_in_order(answer: Callable[[Tensor, Tensor, Tensor, int], Tensor]) -> str | None:
    """The heads were cut and merged by reshape alone."""
    for B, T, H, d in ((2, 5, 3, 4), (1, 7, 2, 6)):
        q, k, v = _draw(*[(B, T, H * d)] * 3)

        def attend(
            cut: bool,
            merged: bool,
            scale: float | None = None,
            parts: tuple[Tensor, ...] = (q, k, v),
            H: int = H,
        ) -> Tensor:
            q, k, v = parts
            B, T, _ = q.shape
            q, k, v = (
                x.unflatten(2, (H, -1)).transpose(1, 2) if cut else x.reshape(B, H, T, -1)
                for x in parts
            )
            out = F.scaled_dot_product_attention(q, k, v, scale=scale)
            return (out.transpose(1, 2) if merged else out).reshape(B, T, -1)

        out = tensor_of(answer(q.clone(), k.clone(), v.clone(), H))
        fault = differs(out, attend(True, True))
        if not fault:
            continue
        if _alike(out, attend(True, False)):
            return "the heads are cut well; merged, they still lie in another order"
        if _alike(out, attend(False, True)):
            return "the merge has its transpose; the cut still mixes positions and heads"
        if _alike(out, attend(False, False)):
            return "that is the function as it was: repair the cut, and the merge"
        if _alike(out, attend(True, True, scale=(H * d) ** -0.5)):
            return "cut and merge are right; the scale is that of one head's width, not of all"
        return f"for B={B}, T={T} and {H} heads of {d}, {fault}"
    return None
