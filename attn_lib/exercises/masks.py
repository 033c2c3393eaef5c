"""Masks: a prefix, a decoder's, a detective of leaks, a softmax with empty rows."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attn_lib.exercises._verdict import differs, differs_mask, exercise


@exercise("2.1")
def prefix_mask(answer: Callable[[int, int], Tensor]) -> str | None:
    """The first tokens see each other, the rest is causal."""
    for T, prefix in ((5, 2), (4, 0), (3, 3), (6, 1)):
        out = answer(T, prefix)
        expected = torch.tensor([[s <= t or s < prefix for s in range(T)] for t in range(T)])
        fault = differs_mask(out, expected, f"T={T}, prefix={prefix}")
        if fault:
            causal = torch.tensor([[s <= t for s in range(T)] for t in range(T)])
            if isinstance(out, Tensor) and out.dtype == torch.bool and torch.equal(out, causal):
                return "this is the causal mask: tokens of the prefix also see its later ones"
            return fault
    return None


@exercise("2.2")
def decoder_mask(answer: Callable[[Tensor], Tensor]) -> str | None:
    """Causal and blind to filler, from a tokenizer's 1 and 0."""
    for binary in (
        torch.tensor([[1, 1, 1], [1, 0, 0]]),  # B and S differ
        torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0]]),  # B and S collide
        torch.tensor([[0, 1, 1, 1]]),  # filler on the left
    ):
        B, S = binary.shape
        out = answer(binary)
        table = [
            [[bool(binary[b, s]) and s <= t for s in range(S)] for t in range(S)] for b in range(B)
        ]
        expected = torch.tensor(table)[:, None]
        if isinstance(out, Tensor) and out.dim() != 4:
            return (
                f"the shape is {tuple(out.shape)}: with heads between, it must be (B, 1, T, S), "
                f"here {(B, 1, S, S)}"
            )
        fault = differs_mask(out, expected, f"B={B}, S={S}")
        if fault:
            return fault
    return None


@exercise("2.3")
def sees_future(answer: Callable[[Callable[[Tensor], Tensor], Tensor], bool]) -> str | None:
    """A detective of leaks, tried on heads whose guilt is known."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(7, 3, generator=generator, dtype=torch.float64)

    def head(offset: int) -> Callable[[Tensor], Tensor]:
        def run(x: Tensor) -> Tensor:
            closed = torch.ones(len(x), len(x), dtype=torch.bool).triu(1 + offset)
            scores = (x @ x.mT).masked_fill(closed, -torch.inf)
            return scores.softmax(dim=-1) @ x

        return run

    def late_leak(
        x: Tensor,
    ) -> Tensor:  # only the first output leaks, and only from the third token
        out = head(0)(x)
        return torch.cat([out[:1] + 0.01 * x[2:3], out[1:]])

    suspects = {
        "a causal head": (head(0), False),
        "a head that sees everything": (head(99), True),
        "a head that sees one token too far": (head(1), True),
        "a head that sees only what came strictly before": (lambda x: x.cumsum(0) - x, False),
        "a head whose first output alone leaks": (late_leak, True),
        "a head that leaks the mean of all tokens": (lambda x: x + x.mean(0), True),
    }
    for name, (suspect, guilty) in suspects.items():
        verdict = answer(suspect, x.clone())
        if bool(verdict) != guilty:
            return f"{name} {'leaks' if guilty else 'does not leak'}, and you say otherwise"
    return None


@exercise("2.4")
def masked_softmax(answer: Callable[[Tensor, Tensor], Tensor]) -> str | None:
    """Zeros for closed cells and empty rows, with a clean gradient."""
    scores = torch.tensor([[1.0, 2.0, 4.0], [3.0, 0.0, -1.0], [-1e4, -1e4, 5.0]])
    mask = torch.tensor([[True, False, True], [False, False, False], [True, True, False]])
    leaf = scores.clone().requires_grad_()
    out = answer(leaf, mask)
    expected = torch.zeros(3, 3)
    expected[0, 0], expected[0, 2] = 1 / (1 + math.exp(3)), 1 / (1 + math.exp(-3))
    expected[2, 0] = expected[2, 1] = 0.5
    if not isinstance(out, Tensor) or out.shape != expected.shape:
        return differs(out, expected)
    if bool(out[1].isnan().any()):
        return "a row with nothing open gives NaN: it wants zeros"
    if bool((out[1] != 0).any()):
        return "a row with nothing open gives weight to what is closed: it wants zeros"
    if not torch.allclose(out, expected, atol=1e-6):
        if bool((out[~mask] != 0).any()):
            return "a closed cell has some weight left: only minus infinity closes for sure"
        return "rows with something open must sum to 1, large negative scores included"
    if not torch.equal(leaf.detach(), scores):
        return "it changed its argument; work on a new tensor"
    if not out.requires_grad:
        return "no gradient comes back: keep the computation in tensors"
    (out * torch.arange(9.0).view(3, 3)).sum().backward()
    gradient: Any = leaf.grad
    if not bool(gradient.isfinite().all()):
        return "the gradient has NaN: NaN was made and then covered up, instead of never made"
    return None
