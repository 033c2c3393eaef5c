"""Scale: spreads, an unknown scale, one knob with initialiser and learning rate."""

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
    if abs(variance - 4.0) < 0.05 and abs(deviation - 144.0) < 0.5:
        return "the two numbers are right, but the variance comes first"
    wrong = {
        36.0: "that uses one variance: a product has two factors, so it is the fourth power of 2",
        72.0: "that adds the two variances: those of two independent factors multiply, 4 times 4",
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
    pairs = []
    for name, d_k, scale, attend in functions:
        found = one_number(answer(attend, d_k))
        pairs.append((name, d_k, scale, found))
    wrong = [row for row in pairs if not _near(row[3], row[2])]
    if not wrong:
        return None
    if all(_near(found, scale * d_k) for _, d_k, scale, found in pairs):
        return "you return the scale times d_k: is the product of your q and k one, or d_k?"
    if all(_near(found * scale, 1.0) for _, _, scale, found in pairs):
        name, _, scale, found = wrong[0]
        return f"for scale {name} you return its inverse, {found:.3f}"
    if all(_near(found, d_k**-0.5) for _, d_k, _, found in pairs):
        return "you return 1 / sqrt(d_k) for each function, but some use another scale: ask them"
    _, d_k, scale, found = wrong[0]
    return f"a function with d_k = {d_k} has scale {scale:.3f}, but you say {found:.3f}"


def _near(found: float, wanted: float) -> bool:
    return abs(found - wanted) < 1e-3 * abs(wanted) + 1e-6


@exercise("4.3")
def spread_of_related_words(answer: Any) -> str | None:
    """``768 * 0.02^2 * sqrt(1 - 3/4)``."""
    spread = one_number(answer)
    if abs(spread - 0.1536) < 0.002:
        return None
    wrong = {
        0.3072: "that is for unrelated words: with the cosine 3/4, they have similar keys",
        0.0768: "the variance falls by 1 - 3/4, so the spread falls by its root",
        0.2660: "that takes the root of 3/4: what words have in common moves all scores alike, and "
        "what differs is 1 - 3/4",
        0.0236: "that is the variance: the spread is its root",
        7.68: "two matrices make a score, so the deviation of 0.02 enters twice",
        1.2288: "that is not divided, for a width of 64: the division cancels the root of d_k",
    }
    for number, words in wrong.items():
        if abs(spread - number) < 0.01 * number:
            return words
    return (
        "formula (4.2), times the root of 1 - 3/4, gives another number than "
        f"{spread:.4g}: put in c = 1 / sqrt(d_k) first"
    )


@exercise("4.4")
def same_run(answer: Callable[[int, float, float, float], Any]) -> str | None:
    """Divided by ``a = d_k^(1/4)``: initialiser and rate; times ``a``: epsilon."""
    names = ("standard deviation", "learning rate", "epsilon")
    for d_k, *old in ((16, 0.02, 0.003, 1e-8), (64, 0.05, 0.01, 1e-6), (81, 0.1, 0.0004, 1e-10)):
        new = numbers_of(answer(d_k, *old))
        if len(new) != 3:
            return f"three numbers are wanted, for each of the three settings one, not {len(new)}"
        a = d_k**0.25
        for name, was, found, wanted in zip(
            names, old, new, (old[0] / a, old[1] / a, old[2] * a), strict=True
        ):
            if abs(found - wanted) < 1e-6 * wanted:
                continue
            wrong = {
                was: "stays as it was",
                was / a**2: "is divided by the root of d_k: that is a², for queries and keys "
                "together, and each has its own a",
                was * a**2: "is multiplied by the root of d_k: that is a², and a is wanted",
                was / a: "is divided by a: gradients get larger by a, and so must epsilon",
                was * a: "grows: without the division the products must get smaller, not larger"
                if name == "standard deviation"
                else "grows: matrices that are smaller by a must move less by a",
                was / d_k: "is divided by d_k: without the division, the scale grows by its root",
            }
            for number, words in wrong.items():
                if abs(found - number) < 1e-6 * number:
                    return f"for d_k = {d_k} the {name} {words}"
            return f"for d_k = {d_k} the {name} must be {wanted:.4g}, not {found:.4g}"
    return None
