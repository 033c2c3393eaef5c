"""The block: a norm by hand, the size of a block of today, its order."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attn_lib.exercises._verdict import differs, exercise, near, numbers_of, one_number
from attn_lib.transformer import TransformerBlock

Sublayer = Callable[[Tensor], Tensor]
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
    return "at least one number is off: mean 4, then the mean of the four squared deviations"


@exercise("6.2")
def size_today(answer: Callable[[int, int, int, int], int]) -> str | None:
    """Parameters of a block with shared key heads, RMSNorm and SwiGLU, counted in the library's."""
    today: dict[str, Any] = {"norm": torch.nn.RMSNorm, "gated": True, "activation": "silu"}
    for d_model, H, H_kv, d_ff in ((12, 6, 2, 10), (8, 4, 1, 32), (10, 5, 5, 3)):
        heads: dict[str, Any] = {"num_heads": H, "attention": {"num_kv_heads": H_kv}}
        with torch.device("meta"):
            block = TransformerBlock(d_model=d_model, d_ff=d_ff, bias=False, **heads, **today)
        size = sum(p.numel() for p in block.parameters())
        given = one_number(answer(d_model, H, H_kv, d_ff))
        if given == size:
            continue
        narrow = d_model * H_kv // H
        said: dict[float, str] = {
            -d_model * d_ff: "SwiGLU has three matrices: gate, up and down",
            2 * d_model * (d_model - narrow): "keys and values are narrower: they have H_kv heads",
            -2 * d_model: "you forgot the gains of the two norms",
            -d_model: "each of the two norms has a gain for each number",
            2 * d_model: "an RMSNorm has a gain and no bias",
            -(d_model**2): "you forgot the output projection, which joins the heads",
            -d_model * narrow: "keys and values have a matrix each",
        }
        case = f"for {d_model=}, {H=}, {H_kv=}, {d_ff=} it is {size}, but you say {given:g}"
        told = said.get(given - size)
        return f"{case}: {told}" if told else case
    return None


@exercise("6.3")
def pre_norm_block(answer: Callable[..., Tensor]) -> str | None:
    """``x + sublayer(norm(x))``, twice."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    x, A, W, gains = draw(2, 5, 7), draw(5, 5).softmax(-1), draw(7, 7), (draw(7), draw(7))

    def attend(y: Tensor) -> Tensor:
        return A.to(y) @ y

    def think(y: Tensor) -> Tensor:
        return (y @ W.to(y)).relu()

    def first(y: Tensor) -> Tensor:
        return F.layer_norm(y, (7,), gains[0].to(y))

    def second(y: Tensor) -> Tensor:
        return F.layer_norm(y, (7,), gains[1].to(y))

    given = x.clone()
    out = answer(given, attend, think, first, second)
    if not torch.equal(given, x):
        return "it changed its argument: write x = x + ..., not x += ..."
    middle = x + attend(first(x))
    fault = differs(out, middle + think(second(middle)))
    if not fault:
        return None
    post = first(x + attend(x))
    mistakes = {
        "this is post-norm: normalise what a sublayer reads, not the sum": second(
            post + think(post)
        ),
        "the network must read the residual stream after attention has written to it": middle
        + think(second(x)),
        "the second sum must start from the residual stream, not from the first x": x
        + think(second(middle)),
        "you added to the normalised token: add to x itself": _on_the_norm(
            x, attend, think, first, second
        ),
        "each sublayer has its own norm; you used the first twice": middle + think(first(middle)),
        "each sublayer has its own norm; you swapped them": _pre_norm(
            x, attend, think, second, first
        ),
        "the result of a pre-norm block is not normalised": second(middle + think(second(middle))),
        "the output of each sublayer is added: the network's too": think(second(middle)),
    }
    for said, wrong in mistakes.items():
        if not differs(out, wrong):
            return said
    return fault


def _pre_norm(x: Tensor, attend: Sublayer, think: Sublayer, first: Norm, second: Norm) -> Tensor:
    x = x + attend(first(x))
    return x + think(second(x))


def _on_the_norm(x: Tensor, attend: Sublayer, think: Sublayer, first: Norm, second: Norm) -> Tensor:
    x = first(x)
    x = second(x + attend(x))
    return x + think(x)
