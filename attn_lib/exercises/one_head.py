"""One head: a row by hand, a softmax, attention, a query, and positions."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attn_lib import pretrained
from attn_lib.exercises._verdict import Called, differs, exercise, near, numbers_of


@exercise("1.1")
def one_row(answer: Any) -> str | None:
    """The weights of ``q = (1, 2)`` on keys (2, 0), (0, 1), (1, -1)."""
    scores, root = [2.0, 2.0, -1.0], math.sqrt(2)
    given = numbers_of(answer)
    if len(given) != 3:
        return f"there are three keys, so three weights are wanted, not {len(given)}"
    if not all(map(math.isfinite, given)):
        return "weights are finite numbers"

    def softmax(row: list[float]) -> list[float]:
        powers = [math.exp(s) for s in row]
        return [p / sum(powers) for p in powers]

    if near(given, softmax([s / root for s in scores])):
        return None
    if near(given, softmax(scores)):
        return "these weights lack the scale: divide each score by the square root of d_k first"
    if near(given, softmax([s / 2 for s in scores])):
        return "you divided by d_k, which is 2: the scale is its square root"
    if near(given, [math.exp(s / root) for s in scores]):
        return "these are the exponentials: divide each by their sum"
    if near(given, [s / root for s in scores]) or near(given, scores):
        return "these are scores: exponentiate them, then divide by the sum"
    if abs(sum(given) - 1.0) > 0.02:
        return f"weights sum to 1, yours to {sum(given):.2f}"
    return "the weights sum to 1, but at least one is off: compute the three dot products again"


@exercise("1.2")
def softmax(answer: Callable[[Tensor], Tensor]) -> str | None:
    """A stable softmax over the last axis."""

    def fault_for(*rows: list[float], within: float = 1e-5) -> str | None:
        scores = torch.tensor(rows, dtype=torch.float32)
        before = scores.clone()
        with Called() as names:
            out = answer(scores)
        if used := sorted(n for n in names if "softm" in n or "attention" in n):
            return f"it calls PyTorch's {used[0]}: write the two steps yourself"
        if not torch.equal(scores, before):
            return "it changed its argument; work on a new tensor"
        fault = differs(out, F.softmax(scores, dim=-1), within=within)
        if fault and "nan" in fault:
            return "large scores give NaN: subtract the row's maximum before the exponential"
        if fault and not differs(out, F.softmax(scores, dim=0)):
            return "your columns sum to 1, but each query's row must: normalise the last axis"
        return fault

    fault = fault_for([1.0, 2.0, 4.0], [3.0, 0.0, -1.0])
    if fault:
        return fault
    # at 1000, float32 has three decimals left: a logsumexp is right, and off by 3e-5
    fault = fault_for([1000.0, 999.0], within=1e-3)
    if fault:
        return fault
    # what is subtracted must be the maximum, and each row's own
    apart = [0.0, -1000.0, 1000.0], [1000.0, 0.0, -1000.0], [-1000.0, -1000.0, -2000.0]
    if fault_for(*apart, within=1e-3):
        return "it is wrong for rows of very different size: subtract each row's own maximum"
    if fault_for([1e30, 2e30, 0.0], within=1e-3):
        return "it is wrong for scores as large as 1e30: subtract the row's maximum"
    deep = torch.arange(24.0).view(2, 3, 4)
    if differs(answer(deep), F.softmax(deep, dim=-1)):
        return "it is wrong with three axes: normalise the last one, whatever comes before"
    return None


@exercise("1.3")
def attention(answer: Callable[[Tensor, Tensor, Tensor], Tensor]) -> str | None:
    """Attention for any leading axes, T, S, d_k and d_v."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    for batch, d_k in (((), 7), ((2,), 7), ((2, 3), 7), ((), 2)):
        q, k, v = draw(*batch, 5, d_k), draw(*batch, 4, d_k), draw(*batch, 4, 3)
        given = q.clone(), k.clone(), v.clone()
        with Called() as names:
            out = answer(*given)
        if used := sorted(name for name in names if "attention" in name):
            return f"it calls PyTorch's {used[0]}: write the three lines yourself"
        if not all(map(torch.equal, given, (q, k, v))):
            return "it changed an argument; work on new tensors"
        if isinstance(out, tuple):
            return "return the output alone, not a pair"
        fault = differs(out, F.scaled_dot_product_attention(q, k, v))
        if not fault:
            continue
        for scale, said in (
            (1.0, "not scaled"),
            (1 / d_k, "divided by d_k itself"),
            (d_k**0.5, "multiplied"),
            (3.0**-0.5, "scaled by d_v"),
        ):
            if not differs(out, F.scaled_dot_product_attention(q, k, v, scale=scale)):
                return f"your scores are {said}: divide them by the square root of d_k"
        wrong_axis = ((q @ k.mT) / d_k**0.5).softmax(-2) @ v
        if not differs(out, wrong_axis):
            return "your softmax runs over the queries: the last axis holds the keys"
        return f"with {len(batch)} leading axes, {fault}"
    return None


@exercise("1.4")
def query_for_milk(answer: Any) -> str | None:
    """A query that puts more than 0.99 on milk, keys as on the page."""
    tokens = ["the", "cat", "drank", "the", "warm", "milk"]
    keys = [(0, 0), (2, 0), (1, 1), (0, 0), (0, 1), (0, 2)]
    query = numbers_of(answer)
    if len(query) != 2:
        return f"a query has d_k = 2 numbers, not {len(query)}"
    if not all(map(math.isfinite, query)):
        return "the two numbers must be finite"
    shrink = max(1.0, max(map(abs, query)) / 1e100)  # sums of the largest floats overflow
    query = [number / shrink for number in query]
    scores = [(query[0] * a + query[1] * b) / math.sqrt(2) for a, b in keys]
    powers = [math.exp(s - max(scores)) for s in scores]
    weights = [p / sum(powers) for p in powers]
    if weights[5] > 0.99:
        return None
    best = max(range(6), key=weights.__getitem__)
    if best != 5:
        return f"it attends most to {tokens[best]!r}: rotate the arrow towards milk"
    return (
        f"milk gets {weights[5]:.3f}: a longer arrow makes the softmax sharper, above all one that "
        "points straight at milk"
    )


@exercise("1.5")
def positions_for_next(answer: Any) -> str | None:
    """Positions with which the previous-token head of MiniLM attends to the next token."""
    given = numbers_of(answer)
    if len(given) != 9:
        return f"there are nine tokens, so nine positions are wanted, not {len(given)}"
    if not all(p.is_integer() and 0 <= p < 512 for p in given):
        return "a position is a whole number from 0 to 511"
    if all(here - after == 1 for here, after in itertools.pairwise(given)):
        return None  # what is meant, though in some parts of the table the head is less exact
    model = pretrained.minilm().requires_grad_(False)
    pieces = model.tokenizer.encode("The cat drank the warm milk.")
    x = model.words(torch.tensor(pieces.ids)) + model.segment
    x = model.norm(x + model.positions.table[torch.tensor(given).long()])
    layer: Any = model.encoder.blocks[0].attention
    head = slice(64, 96)
    q, k = (project(x)[:, head] for project in (layer.q_proj, layer.k_proj))
    most = F.softmax(q @ k.T / math.sqrt(32), dim=-1).argmax(dim=-1).tolist()
    if most[:8] == list(range(1, 9)):
        return None
    if most[1:] == list(range(8)):
        return "every token still attends to the previous one"
    t = next(t for t in range(8) if most[t] != t + 1)
    return (
        f"{pieces.tokens[t]!r}, token {t}, attends most to token {most[t]}, not to {t + 1}: the "
        "next one must seem to stand just before it"
    )
