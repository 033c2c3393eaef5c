"""Tiles: a log-sum-exp of blocks, tiles that are needed, a sink, a bias as a function."""

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from attn_lib.exercises._verdict import differs, exercise, one_number, tensor_of


@exercise("12.1")
def log_sum_exp(answer: Callable[[Sequence[Tensor]], Tensor]) -> str | None:
    """The logarithm of Σ e^score, of blocks that come one after the other."""
    closed = [-math.inf, -math.inf]
    cases = {
        "one block": [[0.5, -1.0, 2.0]],
        "blocks of other lengths": [[0.5], [2.0, -1.0], [0.0, 0.25, 0.1]],
        "scores that fall": [[3.0, 2.5], [1.0, 0.5], [-4.0]],
        "scores that rise": [[-4.0], [0.5, 1.0], [2.5, 3.0]],
        "scores that fall far": [[900.0, 1.0], [2.0, 0.5]],
        "large scores": [[1000.0, 999.0], [1001.0, 0.0]],
        "very negative scores": [[-1000.0, -999.0], [-1001.0]],
        "a first block that is closed": [closed, [1.0, 2.0]],
        "a last block that is closed": [[1.0, 2.0], closed],
        "nothing but closed blocks": [closed, closed],
    }
    for name, blocks in cases.items():
        given = [torch.tensor(block, dtype=torch.float64) for block in blocks]
        flat = torch.cat(given)
        expected = flat.logsumexp(0)
        out = one_number(answer([block.clone() for block in given]))
        if math.isnan(out):
            return (
                f"{name}: it gives NaN; −∞ − (−∞) is NaN, so take off 0 where nothing is open yet"
            )
        if math.isinf(out) and out > 0:
            return f"{name}: it overflows; take off the maximum before you exponentiate"
        if out == expected or abs(out - expected) < 1e-6 * max(1, abs(float(expected))):
            continue
        if math.isinf(out) and math.isfinite(expected):
            return f"{name}: it gives −∞; take off the maximum before you exponentiate"
        if name in ("scores that rise", "blocks of other lengths"):
            return f"{name}: when the maximum rises, the old sum must be multiplied, and it is not"
        return f"{name}: {out:.4f} instead of {float(expected):.4f}"
    return None


@exercise("12.2")
def tiles_needed(answer: Callable[[int, int, int, int], int]) -> str | None:
    """How many tiles hold a pair that a causal window leaves open."""
    faults: dict[str, list[int]] = {
        "that leaves out what the window closes on the left": [],
        "query t stands at position t + S − T": [],
        "a window of n counts the token itself, so n − 1 before it": [],
    }
    first: str | None = None
    given: list[float] = []
    sizes = itertools.product((1, 4, 7, 12), (1, 7, 12, 19), (1, 3, 4, 50), (1, 2, 5, 30))
    for T, S, block, window in sizes:
        if T > S:
            continue
        open_tiles: list[set[tuple[int, int]]] = [set(), set(), set(), set()]
        right, *wrong = open_tiles
        for t, s in itertools.product(range(T), range(S)):
            gap = t + S - T - s
            opened = (0 <= gap < window, 0 <= gap, 0 <= t - s < window, 0 <= gap <= window)
            for found, is_open in zip(open_tiles, opened, strict=True):
                if is_open:
                    found.add((t // block, s // block))
        given.append(one_number(answer(T, S, block, window)))
        for counts, tiles in zip(faults.values(), wrong, strict=True):
            counts.append(len(tiles))
        if first is None and given[-1] != len(right):
            case = f"T={T}, S={S}, block={block}, window={window}"
            first = f"for {case}: {given[-1]:g} instead of {len(right)}"
    # a fault is named if it explains every size, not if it happens to fit one
    named = [fault for fault, counts in faults.items() if counts == given]
    return named[0] if named else first


@exercise("12.3")
def with_a_sink(answer: Callable[[Tensor, Tensor, float], Tensor]) -> str | None:
    """A key with a score of its own and a value of zeros, put in afterwards."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 3, 5, 7, generator=generator, dtype=torch.float64)
    values = torch.randn(2, 3, 7, 4, generator=generator, dtype=torch.float64)
    for raised, sink in ((0.0, 0.7), (0.0, -30.0), (1000.0, 1001.0), (-1000.0, -999.0), (0.0, 5.0)):
        given = scores + raised
        out = given.softmax(-1) @ values
        log = given.logsumexp(-1, keepdim=True)
        with_sink = torch.cat([given, torch.full((2, 3, 5, 1), sink, dtype=torch.float64)], dim=-1)
        expected = with_sink.softmax(-1)[..., :-1] @ values
        found = tensor_of(answer(out.clone(), log.clone(), sink))
        case = f"scores near {raised:g}, a sink of {sink:g}"
        if found.shape == out.shape and found.isnan().any():
            return f"{case}: it gives NaN; a power overflows, so subtract before you exponentiate"
        fault = differs(found, expected)
        if fault:
            if not differs(found, out):
                return f"{case}: the sink changes nothing here"
            share = torch.sigmoid(sink - log)
            if not differs(found, out * share):
                return f"{case}: that is the share of the sink; the keys keep the rest"
            return f"{case}: {fault}"
    return None


@exercise("12.4")
def alibi(answer: Callable[[Tensor], Callable[[Tensor, Tensor, Tensor], Tensor]]) -> str | None:
    """ALiBi as a function of a tile's scores and of its positions."""
    generator = torch.Generator().manual_seed(0)
    slopes = torch.tensor([0.5, 0.25, 0.125])
    score = answer(slopes.clone())
    if not callable(score):
        return f"a function that returns a function is wanted; it returned {type(score).__name__}"
    for i, j in ((range(4), range(4)), (range(8, 12), range(3, 10)), (range(5, 7), range(2))):
        rows, columns = torch.tensor(i)[:, None], torch.tensor(j)
        for batch in (1, 2):
            scores = torch.randn(batch, 3, len(i), len(j), generator=generator)
            try:
                found = score(scores.clone(), rows.clone(), columns.clone())
            except TypeError as error:
                return f"the function that it returns is called with scores, i and j: {error}"
            gap = (rows - columns).float()
            expected = scores - slopes[:, None, None] * gap
            case = f"queries {i[0]} to {i[-1]}, keys {j[0]} to {j[-1]}"
            fault = differs(found, expected)
            if not fault:
                continue
            if not differs(found, scores + slopes[:, None, None] * gap):
                return f"{case}: the sign: far keys get less, not more"
            local = torch.arange(len(i))[:, None] - torch.arange(len(j))
            if not differs(found, scores - slopes[:, None, None] * local):
                return f"{case}: count positions in the text, not in the tile: i and j hold them"
            return f"{case}: {fault}"
    return None
