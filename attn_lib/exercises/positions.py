"""Positions: a row of sines, two layouts of RoPE, positions with padding, relative or not."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attn_lib.exercises._verdict import differs, exercise, near, numbers_of, tensor_of, yes_or_no


@exercise("5.1")
def row_of_sines(answer: Any) -> str | None:
    """Sines and cosines of position 3, d = 4, base 100."""
    given = numbers_of(answer)
    if len(given) != 4:
        return f"a position has d = 4 numbers here, not {len(given)}"
    if not all(map(math.isfinite, given)):
        return "sines and cosines are finite numbers"

    def row(p: int, slow: float = 0.1, unit: float = 1.0) -> list[float]:
        angles = p * unit, p * slow * unit
        return [f(angle) for angle in angles for f in (math.sin, math.cos)]

    right = row(3)
    if near(given, right):
        return None
    for numbers, fault in (
        (row(4), "this is position 4: positions start at 0, so the fourth token has position 3"),
        (row(3, unit=math.pi / 180), "the angles are radians, not degrees"),
        (row(3, slow=0.01), "the second speed is 100 to the power of -2/4, and that is 1/10"),
        (row(3, slow=1.0), "the second pair has a speed of its own, 1/10"),
        ([right[i] for i in (0, 2, 1, 3)], "sine and cosine of one angle stand side by side"),
        ([right[i] for i in (1, 0, 3, 2)], "in each pair the sine comes first"),
    ):
        if near(given, numbers):
            return fault
    return "at least one is off: the angles are 3 and 0.3, each gives its sine, then its cosine"


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
def positions_of(answer: Callable[[Tensor], Tensor]) -> str | None:
    """Positions that count only real tokens."""
    for rows in (
        [[1, 1, 1, 1], [1, 1, 0, 0]],
        [[0, 0, 1, 1], [0, 1, 1, 1], [1, 1, 1, 1]],
        [[0, 1, 1, 0, 0], [0, 0, 0, 0, 0]],
    ):
        real = torch.tensor(rows, dtype=torch.bool)
        out = tensor_of(answer(real.clone()))
        if out.shape != real.shape:
            return differs(out, real.double())
        if out.dtype not in (torch.int64, torch.int32):  # what nn.Embedding takes
            return f"positions index a table: integers are wanted, not {out.dtype}"
        for row, positions in zip(rows, out.tolist(), strict=True):
            wanted = 0
            for is_real, position in zip(row, positions, strict=True):
                if is_real and position != wanted:
                    return f"for {row} real tokens have positions 0, 1, …, but you say {positions}"
                if not 0 <= position < len(row):
                    return f"for {row} some padding has position {position}, not in the table"
                wanted += is_real
    return None


@exercise("5.4")
def is_relative(answer: Callable[[Callable[[int, int], float]], bool]) -> str | None:
    """A detector of relative scores, tried on tables that are known to be relative or not."""
    generator = torch.Generator().manual_seed(0)
    q, k, learned = torch.randn(3, 100, 8, generator=generator, dtype=torch.float64)
    p = torch.arange(100, dtype=torch.float64)
    apart = p[:, None] - p
    angles = p[:, None] * 100.0 ** (-torch.arange(4, dtype=torch.float64) / 4)
    sines = torch.cat([angles.sin(), angles.cos()], dim=1)
    rotations = torch.polar(torch.ones_like(angles), angles)

    def rotary(row: Tensor) -> Tensor:
        return torch.complex(row[:4], row[4:]) * rotations

    end = (p.clamp(min=90)[:, None] - p.clamp(min=90)) / 10
    tables = {
        "RoPE": ((rotary(q[0]) @ rotary(k[0]).mH).real, True),
        "ALiBi": (-0.5 * apart.abs(), True),
        "a score with one number for each distance up to 8": (
            learned[0][(apart.clamp(-7, 0).abs()).long()],
            True,
        ),
        "a product of two rows of sines": (sines @ sines.T, True),
        "a learned table": (learned @ learned.T, False),
        "sines added to a word": ((q[0] + sines) @ (k[0] + sines).T, False),
        "a penalty for late keys": (-0.01 * p.expand(100, 100), False),
        "a score that distinguishes positions only near the end": (end.clamp(min=0), False),
        "a score that repeats after five positions": ((p[:, None] % 5) * (p % 5), False),
        "a distance with a faint bend": (-apart.abs() + 1e-4 * p[:, None], False),
    }
    distance, late, odd = -apart.abs(), 0.1 * p[:, None], p % 2 == 1
    for where, cells in {
        "before the query": apart > 0,
        "after the query": apart < 0,
        "farther away than 50": apart.abs() > 50,
        "at the first position": p == 0,
        "at the query's own position": apart == 0,
        "at odd positions": odd,
        "at even positions": ~odd,
    }.items():
        tables[f"a distance, but for keys {where}"] = distance + late * cells, False
    tables["a distance, but for queries at odd positions"] = distance + 0.1 * odd[:, None], False
    pairs = 0.1 * (p // 2)
    tables["a distance, and a number for each two queries"] = distance + pairs[:, None], False
    tables["a distance, and a number for each two keys"] = distance + pairs, False
    for name, (table, relative) in tables.items():
        rows = table.tolist()
        if yes_or_no(answer(lambda i, j: rows[i][j])) != relative:  # noqa: B023
            depends = "depends" if relative else "does not depend"
            return f"{name} {depends} on i - j alone, but you say otherwise"
    return None
