"""The block: a norm by hand, a block's order, and what its writes add to a logit."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attn_lib.exercises._verdict import (
    differs,
    exercise,
    near,
    numbers_of,
    tensor_of,
)

Norm = Callable[[Tensor], Tensor]


@exercise("6.1")
def layer_norm(answer: Any) -> str | None:
    """The token (2, 4, 4, 6)."""
    given = numbers_of(answer)
    if len(given) != 4:
        return f"the token has four numbers, so four are wanted, not {len(given)}"

    centred = [-2.0, 0.0, 0.0, 2.0]
    if near(given, [c / math.sqrt(2) for c in centred]):
        return None
    if near(given, [c / math.sqrt(8 / 3) for c in centred]):
        return "this variance divides by three: LayerNorm divides the sum of squares by all four"
    if near(given, [c / 2 for c in centred]):
        return "you divided by the variance: take its root first"
    if near(given, centred):
        return "the mean is subtracted, as it should be: now divide by the standard deviation"
    if near(given, [n / math.sqrt(2) for n in (2, 4, 4, 6)]):
        return "subtract the mean before you divide"
    if near(given, [n / math.sqrt(18) for n in (2, 4, 4, 6)]):
        return "that is RMSNorm: LayerNorm subtracts the mean first"
    if near(given, [c / math.sqrt(18) for c in centred]):
        return (
            "after the mean is subtracted, divide by the root of what is left, squared and averaged"
        )
    return "at least one number is off: mean 4, then the mean of the four squared deviations"


@exercise("6.2")
def sandwich_block(answer: Callable[..., Tensor]) -> str | None:
    """``x + norm_2(sublayer(norm(x)))``, twice."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    x, A, W, gains = draw(2, 5, 7), draw(5, 5).softmax(-1), draw(7, 7), draw(4, 7)

    def attend(y: Tensor) -> Tensor:
        return A.to(y) @ y

    def think(y: Tensor) -> Tensor:
        return (y @ W.to(y)).relu()

    def norm_with(gain: Tensor) -> Norm:
        return lambda y: F.layer_norm(y, (7,), gain.to(y))

    a, b, c, d = norms = [norm_with(gain) for gain in gains]
    given = x.clone()
    out = answer(given, attend, think, norms)
    if not torch.equal(given, x):
        return "it changed its argument: write x = x + ..., not x += ..."

    def block(*four: Norm) -> Tensor:
        y = x + four[1](attend(four[0](x)))
        return y + four[3](think(four[2](y)))

    fault = differs(out, block(a, b, c, d))
    if not fault:
        return None
    y, plain = x + b(attend(a(x))), _as_it_is
    on_the_norm = a(x) + b(attend(a(x)))
    post = b(x + attend(a(x)))
    mistakes = {
        "this is pre-norm: normalise what each sublayer writes as well": [
            block(a, plain, b, plain),
            block(a, plain, c, plain),
        ],
        "this is an output norm: normalise what each sublayer reads as well": [
            block(plain, a, plain, b),
            block(plain, b, plain, d),
        ],
        "this is post-norm: the sum itself is never normalised": [
            d(post + think(c(post))),
            b((y0 := a(x + attend(x))) + think(y0)),
            d((y0 := b(x + attend(x))) + think(y0)),
        ],
        "there is no norm in it yet": [block(plain, plain, plain, plain)],
        "what attention writes is added to the stream: + x is missing": [
            (y0 := b(attend(a(x)))) + d(think(c(y0)))
        ],
        "what the network writes is added to the stream as well": [d(think(c(y)))],
        "nothing is added: each sublayer writes to the stream, and does not replace it": [
            d(think(c(b(attend(a(x))))))
        ],
        "the network must read the residual stream after attention has written to it": [
            y + d(think(c(x)))
        ],
        "the second sum must start from the residual stream, not from the first x": [
            x + d(think(c(y)))
        ],
        "you added to the normalised token: add to x itself": [
            on_the_norm + d(think(c(on_the_norm))),
            (y0 := c(on_the_norm)) + d(think(y0)),
        ],
        "the norms come in the order in which a token meets them: 0 and 1 are attention's": [
            block(a, c, b, d),
            block(b, a, d, c),
            block(c, d, a, b),
        ],
        "each sublayer has norms of its own; you used the first two twice": [block(a, b, a, b)],
    }
    for said, forms in mistakes.items():
        if any(not differs(out, form) for form in forms):
            return said
    return fault.replace("PyTorch", "x + norms[1](attend(norms[0](x))), twice,")


def _as_it_is(y: Tensor) -> Tensor:
    return y


@exercise("6.3")
def credits_of_writes(answer: Callable[[Tensor, Tensor, Tensor, float], Tensor]) -> str | None:
    """What each write adds to a logit, behind an RMSNorm."""
    generator = torch.Generator().manual_seed(0)
    for n, d, eps in ((5, 7, 0.1), (3, 4, 1e-5)):
        writes = torch.randn(n, d, generator=generator)
        gain, row = torch.randn(2, d, generator=generator)
        z = writes.sum(dim=0)
        size = (z.square().mean() + eps).sqrt()
        right = writes / size * gain @ row
        out = answer(writes.clone(), gain.clone(), row.clone(), eps)
        fault = differs(out, right)
        if not fault:
            continue
        each = (writes.square().mean(dim=-1, keepdim=True) + eps).sqrt()
        mistakes = {
            "each write is divided by its own size: the norm divides all by that of their sum": (
                writes / each * gain @ row
            ),
            "the last norm divides by the size of the final vector": writes * gain @ row,
            "the last norm has a gain": writes / size @ row,
            "eps is part of the size: the root of the mean square plus eps": (
                writes / z.square().mean().sqrt() * gain @ row
            ),
            "RMSNorm divides by the root of the mean square, not of the sum of squares": (
                writes / (z.square().sum() + eps).sqrt() * gain @ row
            ),
            "these are shares of the final vector: what is asked is how much of the logit": (
                writes @ z / z.square().sum()
            ),
            "the numbers add up to 1; they should add up to the logit": right / right.sum(),
        }
        for said, wrong in mistakes.items():
            if not differs(out, wrong):
                return said
        if not differs(out, right.sum()):
            return "that is the logit itself: say how much of it comes from each write"
        added = tensor_of(out)
        if added.shape == right.shape and not differs(added.sum(), right.sum()):
            return "the numbers add up to the logit, but each must be that of its own write"
        return fault.replace("PyTorch", "the right numbers")
    return None
