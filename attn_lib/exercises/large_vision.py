"""Maps of images: rollout, a paired difference, a detector of maps that ignore the image."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attn_lib.exercises._verdict import differs, exercise, numbers_of, yes_or_no


@exercise("16.1")
def rollout(answer: Callable[[list[Tensor]], Tensor]) -> str | None:
    """The product of (A + I) / 2, last layer first."""
    generator = torch.Generator().manual_seed(0)
    for layers, B, H, T in ((1, 2, 3, 5), (3, 2, 2, 4)):
        shape = (layers, B, H, T, T)
        maps = torch.randn(shape, generator=generator).softmax(-1)
        eye = torch.eye(T)

        def product(steps: list[Tensor]) -> Tensor:
            total = eye  # noqa: B023
            for step in steps:
                total = step @ total
            return total.expand(B, T, T)  # noqa: B023

        mean = maps.mean(dim=2)
        steps = [(A + eye) / 2 for A in mean]
        out = answer(list(maps.clone()))
        fault = differs(out, product(steps))
        if not fault:
            continue
        for found, wrong in (
            ("the order is reversed: the first layer acts first", product(steps[::-1])),
            ("the residual stream, I, is missing", product(list(mean))),
            ("halve each factor, so that its rows sum to 1", product([2 * s for s in steps])),
            ("average over the heads, do not add them up", product([H * A + eye for A in mean])),
            ("this is the last layer alone: multiply the factors of all layers", steps[-1]),
        ):
            if not differs(out, wrong):
                return found
        return fault
    return None


@exercise("16.2")
def paired(answer: Callable[[list[int], list[int]], Any]) -> str | None:
    """The mean difference of two lists of 0 and 1, and 1.96 standard errors of it."""
    generator = torch.Generator().manual_seed(0)
    for n, chance in ((40, 0.2), (9, 0.5)):
        first = torch.rand(n, generator=generator) < 0.6
        second = first ^ (torch.rand(n, generator=generator) < chance)
        given = [row.int().tolist() for row in (first, second)]
        out = numbers_of(answer(*[list(row) for row in given]))
        if len(out) != 2:
            return f"two numbers are wanted, the difference and 1.96 of its errors, not {len(out)}"
        a, b = first.double(), second.double()
        apart = a - b
        mean, error = float(apart.mean()), float(apart.std() / n**0.5)
        apiece = float((a.var() / n + b.var() / n).sqrt())
        if abs(out[0] + mean) < 1e-5:
            return "this is the second minus the first"
        if abs(out[0] - mean) > 1e-5:
            return f"{out[0]:.4g} is not the difference of the shares, which is {mean:.4g}"
        for width, said in (
            (error, "this is one standard error: multiply it by 1.96"),
            (1.96 * apiece, "the images are the same: take the difference of each image first"),
            (1.96 * float(apart.std()), "divide the deviation by the root of the number of images"),
            (1.96 * error / n**0.5, "divide by the root of the number of images only once"),
        ):
            if abs(out[1] - width) < 1e-5:
                return said
        # with n or with n - 1 in the deviation: both are usual
        allowed = (1.96 * error, 1.96 * error * ((n - 1) / n) ** 0.5)
        if min(abs(out[1] - width) for width in allowed) > 1e-5:
            return f"{out[1]:.4g} is not 1.96 standard errors of the difference"
    return None


@exercise("16.3")
def is_blind(answer: Callable[[Callable[[Tensor], Tensor], Tensor], bool]) -> str | None:
    """A detector of maps that do not depend on the image, tried on known ones."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(6, 1, 28, 28, generator=generator)
    fixed, W = torch.rand(49, generator=generator), torch.randn(784, 49, generator=generator)

    def fits(x: Tensor) -> Tensor:
        return fixed.expand(len(x), 49).to(x)

    def own(x: Tensor) -> Tensor:
        return (x.flatten(1) @ W.to(x) / 28).softmax(dim=-1)

    explainers = {
        "one map for all": (fits, True),
        "a uniform map": (lambda x: torch.full((len(x), 49), 1 / 49).to(x), True),
        "one map, and rounding": (lambda x: fits(x) + 1e-9 * own(x), True),
        "one map in large numbers, and rounding": (lambda x: 1e4 * fits(x) + 1e-4 * own(x), True),
        "a map of each image": (own, False),
        "the mean map of the batch": (lambda x: own(x).mean(0).expand(len(x), 49), False),
        "one map, made darker by the image": (
            lambda x: fits(x) * x.mean((1, 2, 3))[:, None],
            False,
        ),
        "one map but for one patch": (
            lambda x: torch.cat([fits(x)[:, :48], own(x)[:, 48:]], dim=1),
            False,
        ),
        "one map, and a faint trace of the image": (lambda x: fits(x) + 0.01 * own(x), False),
        "a map of each image, in tiny numbers": (lambda x: 1e-7 * own(x), False),
    }
    for name, (explain, blind) in explainers.items():
        if yes_or_no(answer(explain, images.clone())) != blind:
            said = "ignores the image" if blind else "depends on the image"
            return f"{name}: it {said}, but you say otherwise"
    return None
