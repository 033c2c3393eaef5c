"""The checks behind the pages' exercises: each says in words what is wrong.

A check compares an answer with PyTorch's own kernel or with plain arithmetic, never with the
code that the page teaches.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Verdict(NamedTuple):
    """What a check found; shown as one sentence, true if the answer passed."""

    passed: bool
    message: str

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return self.message


def check(number: str, answer: Any) -> Verdict:
    """Check an answer to an exercise of the book.

    Args:
        number: chapter and exercise, such as ``"1.1"``.
        answer: what the exercise asks for; ``...`` where there is no answer yet.

    Returns:
        A verdict with ``passed`` and a sentence that says what is right or wrong. A wrong
        answer of any kind is a verdict, never an exception.

    Raises:
        ValueError: an unknown exercise.

    Example:
        >>> check("1.1", ...)
        Exercise 1.1 is waiting for your answer: replace the ... above.
        >>> check("1.1", [1.0, 2.0]).passed
        False

    Source: the exercise sections of the chapters.
    """
    if number not in _CHECKS:
        raise ValueError(f"unknown exercise {number!r}; known: {', '.join(_CHECKS)}")
    if answer is ...:
        return Verdict(
            False, f"Exercise {number} is waiting for your answer: replace the ... above."
        )
    try:
        fault = _CHECKS[number](answer)
    except Exception as error:  # the reader's code may raise anything: that is a verdict too
        fault = f"it raised {type(error).__name__}: {error}"
    if fault:
        return Verdict(False, f"Exercise {number}, not yet: {fault}.")
    return Verdict(True, f"Exercise {number}: correct.")


def _one_row(answer) -> str | None:
    """1.1: q = (1, 2), keys (2, 0), (0, 1), (1, -1)."""
    scores, root = [2.0, 2.0, -1.0], math.sqrt(2)
    given = [float(a) for a in answer]
    if len(given) != 3:
        return f"there are three keys, so three weights are wanted, not {len(given)}"

    def softmax(row):
        powers = [math.exp(s) for s in row]
        return [p / sum(powers) for p in powers]

    def near(row):
        return all(abs(a - b) < 0.006 for a, b in zip(given, row, strict=True))

    if near(softmax([s / root for s in scores])):
        return None
    if near(softmax(scores)):
        return "these weights lack the scale: divide each score by the square root of d_k first"
    if near([math.exp(s / root) for s in scores]):
        return "these are the exponentials: divide each by their sum"
    if near([s / root for s in scores]) or near(scores):
        return "these are scores: exponentiate them, then divide by the sum"
    if abs(sum(given) - 1.0) > 0.02:
        return f"weights sum to 1, yours to {sum(given):.2f}"
    return "the weights sum to 1, but at least one is off: compute the three dot products again"


def _softmax(answer: Callable[[Tensor], Tensor]) -> str | None:
    """1.2: a stable softmax over the last axis."""
    scores = torch.tensor([[1.0, 2.0, 4.0], [3.0, 0.0, -1.0]])
    before = scores.clone()
    out = answer(scores)
    if not torch.equal(scores, before):
        return "it changed its argument; work on a new tensor"
    fault = _differs(out, F.softmax(scores, dim=-1))
    if fault:
        if torch.allclose(out, F.softmax(scores, dim=0)):
            return "the columns sum to 1, but each query needs its row to: normalise the last axis"
        return fault
    large = torch.tensor([[1000.0, 999.0]])
    if _differs(answer(large), F.softmax(large, dim=-1)):
        return "large scores give NaN: subtract the row's maximum before the exponential"
    uneven = torch.tensor([[1000.0, 999.0], [-1000.0, -1001.0]])
    if _differs(answer(uneven), F.softmax(uneven, dim=-1)):
        return "rows of very different size go wrong: subtract each row's own maximum"
    return None


def _attention(answer: Callable[[Tensor, Tensor, Tensor], Tensor]) -> str | None:
    """1.3: attention for any leading axes, T, S, d_k and d_v."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    for batch in ((), (2,), (2, 3)):
        q, k, v = draw(*batch, 5, 7), draw(*batch, 4, 7), draw(*batch, 4, 3)
        out = answer(q, k, v)
        if isinstance(out, tuple):
            return "return the output alone, not a pair"
        fault = _differs(out, F.scaled_dot_product_attention(q, k, v))
        if not fault:
            continue
        for scale, said in ((1.0, "without"), (7.0**0.5, "times"), (3.0**-0.5, "with d_v in")):
            if not _differs(out, F.scaled_dot_product_attention(q, k, v, scale=scale)):
                return f"your scores are {said} the scale; it is 1 over the square root of d_k"
        wrong_axis = ((q @ k.mT) / 7**0.5).softmax(-2) @ v
        if not _differs(out, wrong_axis):
            return "your softmax runs over the queries: the last axis holds the keys"
        return f"with {len(batch)} leading axes, {fault}"
    return None


def _query_for_milk(answer) -> str | None:
    """1.4: a query that puts more than 0.99 on milk, keys as on the page."""
    tokens = ["the", "cat", "drank", "the", "warm", "milk"]
    keys = [(0, 0), (2, 0), (1, 1), (0, 0), (-1, 1), (0, 2)]
    query = [float(a) for a in answer]
    if len(query) != 2:
        return f"a query has d_k = 2 numbers, not {len(query)}"
    if not all(map(math.isfinite, query)):
        return "the two numbers must be finite"
    scores = [(query[0] * a + query[1] * b) / math.sqrt(2) for a, b in keys]
    powers = [math.exp(s - max(scores)) for s in scores]
    weights = [p / sum(powers) for p in powers]
    if weights[5] > 0.99:
        return None
    best = max(range(6), key=weights.__getitem__)
    if best != 5:
        return f"it looks hardest at {tokens[best]!r}: turn the arrow towards milk"
    return (
        f"milk gets {weights[5]:.3f}: the direction is right, and a longer arrow makes the "
        "softmax sharper"
    )


def _unshuffle(answer: Callable[[Tensor, Tensor], Tensor]) -> str | None:
    """1.5: undo a shuffle."""
    order = torch.tensor([3, 0, 4, 1, 2])
    rows = torch.arange(10.0).view(5, 2)
    out = answer(rows[order], order)
    if torch.equal(out, rows):
        return None
    if torch.equal(out, rows[order][order]):
        return "that shuffles a second time: you need the inverse order, order.argsort()"
    return "row order[i] of your result must be row i of the shuffled one"


def _differs(out, expected: Tensor) -> str | None:
    if not isinstance(out, Tensor):
        return f"a tensor is wanted, not {type(out).__name__}"
    if out.shape != expected.shape:
        return f"the shape is {tuple(out.shape)} instead of {tuple(expected.shape)}"
    difference = (out - expected).abs().max()
    if not difference < 1e-5:  # so written, NaN differs
        return f"the largest difference from PyTorch is {difference:.3f}"
    return None


_CHECKS: dict[str, Callable[[Any], str | None]] = {
    "1.1": _one_row,
    "1.2": _softmax,
    "1.3": _attention,
    "1.4": _query_for_milk,
    "1.5": _unshuffle,
}
