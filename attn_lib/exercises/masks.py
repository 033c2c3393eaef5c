"""Masks: for a prefix, for a decoder; a detector of leaks; a softmax with empty rows."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attn_lib.exercises._verdict import differs, differs_mask, exercise


@exercise("2.1")
def prefix_mask(answer: Callable[[int, int], Tensor]) -> str | None:
    """The tokens of the prefix attend to each other; the rest is causal."""
    for T, prefix in ((5, 2), (4, 0), (3, 3), (6, 1)):
        out = answer(T, prefix)
        expected = torch.tensor([[s <= t or s < prefix for s in range(T)] for t in range(T)])
        fault = differs_mask(out, expected, f"T={T}, prefix={prefix}")
        if fault:
            causal = torch.tensor([[s <= t for s in range(T)] for t in range(T)])
            if isinstance(out, Tensor) and out.dtype == torch.bool and torch.equal(out, causal):
                return "this is the causal mask: tokens of the prefix also attend to its later ones"
            return fault
    return None


@exercise("2.2")
def decoder_mask(answer: Callable[[Tensor], Tensor]) -> str | None:
    """Causal, with padding closed, from a tokenizer's 1 and 0."""
    for binary in (
        torch.tensor([[1, 1, 1], [1, 0, 0]]),  # B and S differ
        torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0]]),  # B and S collide
        torch.tensor([[0, 1, 1, 1]]),  # padding on the left
    ):
        B, S = binary.shape
        out = answer(binary)
        table = [
            [[bool(binary[b, s]) and s <= t for s in range(S)] for t in range(S)] for b in range(B)
        ]
        expected = torch.tensor(table)[:, None]
        if isinstance(out, Tensor) and out.dim() != 4:
            return (
                f"the shape is {tuple(out.shape)}, and must be (B, 1, T, S), here {(B, 1, S, S)}: "
                "the axis of size 1 broadcasts over the heads"
            )
        fault = differs_mask(out, expected, f"B={B}, S={S}")
        if fault:
            return fault
    return None


@exercise("2.3")
def sees_future(answer: Callable[[Callable[[Tensor], Tensor], Tensor], bool]) -> str | None:
    """A detector of leaks, tried on heads that are known to leak or not."""
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

    heads = {
        "a causal head": (head(0), False),
        "a head that attends to every position": (head(99), True),
        "a head that attends one position too far": (head(1), True),
        "a head that uses only the tokens strictly before": (lambda x: x.cumsum(0) - x, False),
        "a head of which only the first output leaks": (late_leak, True),
        "a head that leaks the mean of all tokens": (lambda x: x + x.mean(0), True),
    }
    for name, (run, leaks) in heads.items():
        verdict = answer(run, x.clone())
        if bool(verdict) != leaks:
            return f"{name} {'leaks' if leaks else 'does not leak'}, but you say otherwise"
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
        return "a row without an open cell gives NaN: it must give zeros"
    if bool((out[1] != 0).any()):
        return "a row without an open cell gives weight to closed cells: it must give zeros"
    if not torch.allclose(out, expected, atol=1e-6):
        if bool((out[~mask] != 0).any()):
            return "a closed cell still has some weight: only minus infinity closes it for certain"
        return "a row with an open cell must sum to 1, even if its scores are large and negative"
    if not torch.equal(leaf.detach(), scores):
        return "it changed its argument; work on a new tensor"
    if not out.requires_grad:
        return "no gradient flows back: keep the computation in tensors"
    (out * torch.arange(9.0).view(3, 3)).sum().backward()
    gradient: Any = leaf.grad
    if not bool(gradient.isfinite().all()):
        return "the gradient has NaN: avoid computing a NaN at all, rather than overwriting it"
    return None
