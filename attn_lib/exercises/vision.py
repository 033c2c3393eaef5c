"""Images: sizes, patches joined, a detector of models that ignore the order, unfair races."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attn_lib.exercises._verdict import Wrong, differs, exercise, numbers_of, yes_or_no


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
        if not differs(out, _folded(patches, p, channels, columns=True)):
            return "the patches come row by row, not column by column"
        if not differs(out, _folded(patches, p, channels, last=True)):
            return "within a patch the channels come first, not last"
        case = f"{channels} channel{'s' * (channels > 1)} and {side} by {side} patches of {p}"
        return f"for {case}: {fault}"
    return None


def _folded(
    patches: Tensor, p: int, channels: int, *, columns: bool = False, last: bool = False
) -> Tensor:
    """Images of patches, read in a wrong order: column by column, or with the channels last."""
    side = round(patches.shape[1] ** 0.5)
    if columns:
        patches = patches.unflatten(1, (side, side)).transpose(1, 2).flatten(1, 2)
    if last:
        patches = patches.unflatten(2, (p * p, channels)).mT.flatten(2)
    return F.fold(patches.mT, side * p, p, stride=p)


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


RACES = {  # what is wrong with each, and where to look
    "a": ("rate", "ask which of the two that number happens to suit"),
    "b": ("compute", "compare what one image costs each of them"),
    "c": ("test", "ask which images decided, and which ones judge"),
    "d": ("fair", "compare parameters and work, and ask who chose the rates"),
}
SAID = {  # words of the field for the four answers
    "rate": "rate, rates, learning rate, learning rates, lr",
    "compute": "compute, work, multiply-adds, macs, flops, cost",
    "test": "test, test set, test images, leak, leakage, selection",
    "fair": "fair, nothing, none, ok",
}


@exercise("15.4")
def referee(answer: Any) -> str | None:
    """A word for each of four races: what makes it unfair, if anything does."""
    given = _words(answer)
    if set(given) != set(RACES):
        raise Wrong(f"a word for each of {', '.join(RACES)} is wanted")
    for name, (fault, hint) in RACES.items():
        word = re.sub(r"[\s_]+", " ", given[name]).strip().lower()
        meant = [kind for kind, words in SAID.items() if word in words.split(", ")]
        if not meant:
            return f"{name}: one of {', '.join(SAID)} is wanted, not {given[name]!r}"
        if meant != [fault]:
            return f"{word!r} is not the answer for {name}: {hint}"
    return None


def _words(answer: Any) -> dict[str, str]:
    """Of a dict, or of four words in order."""
    if isinstance(answer, str):
        answer = re.split(r"[,;\n]+", answer.strip(" ,;\n"))
    if isinstance(answer, Mapping):
        return {str(name).strip().lower(): str(word) for name, word in answer.items()}
    try:
        return {name: str(word) for name, word in zip(RACES, answer, strict=True)}
    except (TypeError, ValueError):  # not four of anything
        return {}
