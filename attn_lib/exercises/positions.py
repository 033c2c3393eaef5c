"""Positions: the ends of hands, two layouts of RoPE, speeds for longer texts."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attn_lib.exercises._verdict import differs, exercise, near, numbers_of, tensor_of


def _flat(answer: Any) -> Any:
    """A list of lists, such as a point for each hand, as one list."""
    rows = list(answer) if isinstance(answer, (list, tuple)) else []
    if rows and all(isinstance(row, (list, tuple, Tensor, np.ndarray)) for row in rows):
        return [number for row in rows for number in numbers_of(row)]
    return answer


@exercise("5.1")
def ends_of_hands(answer: Any) -> str | None:
    """The ends of two hands at position 3, d = 4, base 100."""
    given = numbers_of(_flat(answer))
    if len(given) != 4:
        return f"a position has d = 4 numbers here, not {len(given)}"
    if not all(map(math.isfinite, given)):
        return "sines and cosines are finite numbers"

    def row(p: int, slow: float = 0.1, unit: float = 1.0) -> list[float]:
        angles = p * unit, p * slow * unit
        return [f(angle) for angle in angles for f in (math.cos, math.sin)]

    right = row(3)
    if near(given, right):
        return None
    for numbers, fault in (
        (row(4), "this is position 4: positions start at 0, so the fourth token has position 3"),
        (row(3, unit=math.pi / 180), "the angles are radians, not degrees"),
        (row(3, slow=0.01), "the second speed is 100 to the power of -2/4, and that is 1/10"),
        (row(3, slow=1.0), "the second pair has a speed of its own, 1/10"),
        ([right[i] for i in (0, 2, 1, 3)], "x and y of one hand stand side by side"),
        ([right[i] for i in (1, 0, 3, 2)], "x is the cosine, and comes first"),
    ):
        if near(given, numbers):
            return fault
    return "at least one is off: the angles are 3 and 0.3, each gives its cosine, then its sine"


@exercise("5.2")
def to_half_split(answer: Callable[[Tensor, int], Tensor]) -> str | None:
    """Reorder a matrix of neighbour-paired RoPE; judged by scores, in complex numbers."""
    generator = torch.Generator().manual_seed(0)
    for H, d_k, d_model in ((1, 6, 5), (3, 4, 7), (2, 8, 16)):
        W_q, W_k = torch.randn(2, H * d_k, d_model, generator=generator)
        x = torch.randn(9, d_model, generator=generator, dtype=torch.float64)
        speeds = 100.0 ** (-torch.arange(0, d_k, 2, dtype=torch.float64) / d_k)
        angles = torch.arange(9.0, dtype=torch.float64)[:, None] * speeds
        rotations = torch.polar(torch.ones_like(angles), angles)

        def scores(W_q: Tensor, W_k: Tensor, halves: bool) -> Tensor:
            q, k = ((x @ W.T).unflatten(1, (H, d_k)).transpose(0, 1) for W in (W_q, W_k))  # noqa: B023
            pairs = [
                t.unflatten(-1, (2, -1)).mT if halves else t.unflatten(-1, (-1, 2)) for t in (q, k)
            ]
            q, k = (torch.view_as_complex(t.contiguous()) * rotations for t in pairs)  # noqa: B023
            return (q @ k.mH).real

        given = W_q.clone()
        got = tensor_of(answer(given, H)), tensor_of(answer(W_k.clone(), H))
        if not torch.equal(given, W_q):
            return "it changed its argument; work on a new tensor"
        wanted = scores(W_q.double(), W_k.double(), halves=False)
        for out in got:
            if out.shape != W_q.shape or out.is_complex():
                return differs(out, W_q)
        if not differs(scores(got[0].double(), got[1].double(), halves=True), wanted):
            continue
        if not differs(got[0], W_q):
            return "the matrix came back as it was"
        if H == 1:
            back = torch.arange(d_k).view(2, -1).T.flatten()
            if not differs(got[0], W_q[back]):
                return "this is the inverse, from the half-split order to neighbours"
            return "it is wrong for one head: the even rows come first, then the odd ones"
        return f"with one head it is right, with {H} it is not: reorder within each head"
    return None


@exercise("5.3")
def slowed(answer: Callable[[Tensor, int, int], Tensor]) -> str | None:
    """Speeds for longer texts: pairs that made a whole turn keep theirs, the others are slowed."""
    cases = (1e4, 6, 150, 3000), (1e4, 7, 400, 1000), (1e3, 5, 64, 72)
    for base, pairs, trained, wanted in cases:
        speeds = base ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
        whole = (trained - 1) * speeds >= 2 * math.pi
        right = torch.where(whole, speeds, speeds * trained / wanted)
        given = speeds.clone()
        out = tensor_of(answer(given, trained, wanted))
        if not torch.equal(given, speeds):
            return "it changed its argument; work on a new tensor"
        if not (fault := differs(out, right)):
            continue
        for other, words in (
            (speeds, "nothing was slowed down"),
            (speeds * trained / wanted, "that is position interpolation: it slows all pairs"),
            (
                torch.where(whole, speeds, speeds * wanted / trained),
                "the slow pairs became faster: multiply by trained / wanted",
            ),
            (
                torch.where(whole, speeds * trained / wanted, speeds),
                "the other way round: pairs that made a whole turn keep their speed",
            ),
            (
                torch.where((trained - 1) * speeds >= 1.0, speeds, speeds * trained / wanted),
                "a whole turn is 2π radians, not 1",
            ),
            (
                torch.where(
                    (wanted - 1) * speeds >= 2 * math.pi, speeds, speeds * trained / wanted
                ),
                "a pair must have made its turn in training, on trained tokens",
            ),
            (
                (base * (wanted / trained) ** (pairs / (pairs - 1)))
                ** (-torch.arange(pairs, dtype=torch.float64) / pairs),
                "that is NTK-aware scaling: it changes the base, and so all pairs but the first",
            ),
        ):
            if not differs(out, other) and differs(other, right):
                return words
        shapes = f"for {pairs} pairs, {trained} tokens in training and {wanted} wanted"
        return f"{shapes}, {fault.replace('from PyTorch', 'from the rule')}"
    return None
