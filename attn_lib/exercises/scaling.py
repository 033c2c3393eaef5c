"""Scale: spreads, an unknown scale, entropy."""

import math
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from attn_lib.exercises._verdict import exercise, numbers_of, one_number


@exercise("4.1")
def spread_of_products(answer: Any) -> str | None:
    """With d_k 9 and deviation 2: variance of a product, deviation of a score."""
    given = numbers_of(answer)
    if len(given) != 2:
        return f"two numbers are wanted, a variance and a deviation, not {len(given)}"
    variance, deviation = given
    wrong = {
        36.0: "that uses one variance: a product has two factors, so it is the fourth power of 2",
        12.0: "that is the deviation of a product: its square is the variance",
        16.0: "that is the variance of one term: there are nine",
        18.0: "a deviation of 2 enters with its fourth power: two factors, each squared",
    }
    if not abs(variance - 144.0) < 0.5:
        return "the variance of a product: " + wrong.get(
            round(variance, 6), "it is d_k times the fourth power of the deviation"
        )
    wrong = {
        12.0: "that is the product's: divide it by the square root of 9",
        16.0: "that is the variance of a score: take its root",
        36.0: "dividing by 9 instead of its root, and no root of the variance, gives 16 or 36",
    }
    if not abs(deviation - 4.0) < 0.05:
        return "the deviation of a score: " + wrong.get(
            round(deviation, 6), "the deviation of a product, divided by the square root of 9"
        )
    return None


@exercise("4.2")
def find_scale(answer: Callable[[Callable[[Tensor, Tensor], Tensor], int], float]) -> str | None:
    """The scale of an unknown attention function, from its weights."""

    def scaled(scale: float) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda q, k: F.softmax(q @ k.mT * scale, dim=-1)

    def mean_free(
        q: Tensor, k: Tensor
    ) -> Tensor:  # the same weights: a constant in a row changes nothing
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        return F.softmax(scores - scores.mean(dim=-1, keepdim=True) + 3.0, dim=-1)

    functions = [
        ("1 / sqrt(d_k)", 16, 0.25, scaled(0.25)),
        ("1", 16, 1.0, scaled(1.0)),
        ("1 / d_k", 64, 1 / 64, scaled(1 / 64)),
        ("sqrt(d_k)", 9, 3.0, scaled(3.0)),
        ("1 / sqrt(d_model)", 8, 64**-0.5, scaled(64**-0.5)),
        ("1 / sqrt(d_k), with a constant added to each row", 4, 0.5, mean_free),
    ]
    for name, d_k, scale, attend in functions:
        found = one_number(answer(attend, d_k))
        if abs(found - scale) < 1e-3 * scale + 1e-6:
            continue
        if abs(found * scale - 1.0) < 1e-3:
            return f"for scale {name} you return its inverse, {found:.3f}"
        return f"a function with d_k = {d_k} has scale {scale:.3f}, but you say {found:.3f}"
    return None


@exercise("4.3")
def scale_for_entropy(answer: Any) -> str | None:
    """``log 1024 - (scale * 8)^2 / 2 = log 256``."""
    scale = one_number(answer)
    spread = math.sqrt(2 * math.log(4))
    if abs(scale - spread / 8) < 0.002:
        return None
    if abs(scale - spread) < 0.02:
        return "that is the spread of the scaled scores: unscaled, their spread is 8 already"
    if abs(scale - spread / 64) < 0.0003:
        return "dot products of width d_k have a spread of the square root of d_k, not of d_k"
    if abs(scale - math.sqrt(math.log(4)) / 8) < 0.002:
        return "the entropy formula has a factor of one half before the squared spread"
    if abs(scale + spread / 8) < 0.002:
        return "a negative scale attends most to the key that fits worst"
    if not math.isfinite(scale):
        return "a finite number is wanted"
    keys = math.exp(min(math.log(1024) - (8 * scale) ** 2 / 2, 99))
    return f"with this scale, the entropy formula predicts e^H = {keys:.3g} keys"
