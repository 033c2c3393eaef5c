"""Images: sizes, patches joined, a detector of models that ignore the order."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attn_lib.exercises._verdict import differs, exercise, numbers_of, yes_or_no


@exercise("15.1")
def vit_sizes(answer: Any) -> str | None:
    """Images of 224 pixels, patches of 16, three channels, width 768."""
    given = numbers_of(answer)
    if len(given) != 2:
        return f"two numbers are wanted, tokens and parameters of the embedding, not {len(given)}"
    tokens, parameters = given
    if tokens == 196:
        return "196 is the number of patches: the class token is a token too"
    if tokens != 197:
        return "there are 224 / 16 patches in a row, and as many rows; then add the class token"
    if parameters == 589_824:
        return "the biases are missing, one for each of the 768 outputs"
    if parameters in (196_608, 197_376):
        return "a patch has three colours"
    if parameters != 590_592:
        return "each of the 16 times 16 times 3 numbers has a weight for each of the 768 outputs"
    return None


@exercise("15.2")
def join(answer: Callable[[Tensor, int, int], Tensor]) -> str | None:
    """From patches back to images, against fold."""
    for B, channels, side, p in ((2, 1, 3, 2), (2, 3, 2, 5), (3, 2, 1, 4)):
        images = torch.arange(float(B * channels * (side * p) ** 2))
        images = images.view(B, channels, side * p, side * p)
        patches = F.unfold(images, p, stride=p).mT
        out = answer(patches.clone(), p, channels)
        fault = differs(out, images)
        if not fault:
            continue
        if not differs(out, patches.reshape(images.shape)):
            return "a reshape alone makes strips of pixels: bring each row of pixels together first"
        if not differs(out, images.mT):
            return "rows and columns are swapped"
        case = f"{channels} channels and {side} by {side} patches of {p}"
        return f"for {case}: {fault}"
    return None


@exercise("15.3")
def ignores_order(answer: Callable[[Callable[[Tensor], Tensor], Tensor], bool]) -> str | None:
    """A detector of models that ignore the order of patches, tried on known ones."""
    generator = torch.Generator().manual_seed(0)
    patches, W = torch.randn(2, 9, 7, generator=generator, dtype=torch.float64)
    patches = patches[None]

    def read(x: Tensor) -> Tensor:
        return x @ W[:7].to(x)

    def attend(x: Tensor) -> Tensor:
        return (read(x) @ x.mT).softmax(-1) @ x

    def placed(x: Tensor, size: float) -> Tensor:  # for any number of patches
        return x + size * (torch.arange(x.shape[1])[:, None] + torch.arange(7)).sin().to(x)

    models = {
        "attention, then the mean": (lambda x: attend(x).mean(1), True),
        "a network for each patch, then the largest": (lambda x: read(x).tanh().amax(1), True),
        "the sum of all patches": (lambda x: x.sum(1), True),
        "attention with positions": (lambda x: attend(placed(x, 1.0)).mean(1), False),
        "the first patch alone": (lambda x: x[:, 0], False),
        "the last patch alone": (lambda x: x[:, -1], False),
        "neighbours multiplied": (lambda x: (x[:, 1:] * x[:, :-1]).sum(1), False),
        "neighbours multiplied, around a circle": (lambda x: (x * x.roll(1, 1)).sum(1), False),
        "the patch in the middle alone": (lambda x: x[:, x.shape[1] // 2], False),
        "faint positions": (lambda x: attend(placed(x, 0.01)).mean(1), False),
        "logits that are always the same": (lambda x: x.sum(1) * 0.0, True),
    }
    for name, (model, ignores) in models.items():
        if yes_or_no(answer(model, patches.clone())) != ignores:
            return f"{name}: it {'ignores' if ignores else 'uses'} the order, but you say otherwise"
    return None
