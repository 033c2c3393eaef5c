"""A real encoder: the vector of a text by hand, a mean over real tokens, a detector of company."""

import math
import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attn_lib.exercises._verdict import differs, exercise, near, numbers_of, yes_or_no

Encode = Callable[[list[str]], Tensor]


@exercise("7.1")
def text_vector(answer: Any) -> str | None:
    """Two real tokens, (5, 0) and (1, 8), and padding, (-6, 1)."""
    given = numbers_of(answer)
    if len(given) != 2:
        return f"a token's vector has two numbers, so two are wanted, not {len(given)}"
    mistakes = {
        (3.0, 4.0): "this is the mean of the real tokens: now divide it by its length",
        (6.0, 8.0): "this is the sum of the real tokens: now divide it by its length",
        (0.0, 1.0): "padding is left out of the mean",
        (0.0, 3.0): "padding is left out of the mean, which is then divided by its length",
        (0.0, 9.0): "padding is left out of the sum, which is then divided by its length",
        (0.75, 0.66): "add the vectors as they are: only their mean is divided by its length",
        (1.0, 0.0): "this is the first token alone: take the mean of both real tokens",
    }
    for wrong, said in mistakes.items():
        if near(given, wrong):
            return said
    if near(given, (0.6, 0.8)):
        return None
    return "at least one number is off: mean of the two real tokens, then divided by its length"


@exercise("7.2")
def mean_of_real(answer: Callable[[Tensor, Tensor], Tensor]) -> str | None:
    """Mean over the real tokens, whatever the padding holds."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([5, 2, 3])
    for T, d in ((5, 7), (6, 4)):
        out = torch.randn(3, T, d, generator=generator)
        expected = torch.stack([rows[:n].mean(0) for rows, n in zip(out, lengths, strict=True)])
        given = answer(out.clone(), lengths.clone())
        if not differs(given, out.mean(dim=1)):
            return "this is the mean over all rows, padding included"
        fault = differs(given, expected)
        if fault and not differs(given, expected * lengths[:, None] / T):
            return f"the sum is right, but you divided by T={T} instead of each text's length"
        if fault:
            return fault
        for padding in (math.nan, math.inf, -math.inf):
            spoiled = out.clone()
            for row, n in zip(spoiled, lengths, strict=True):
                row[n:] = padding
            before = spoiled.clone()
            if differs(answer(spoiled, lengths.clone()), expected):
                return f"padding that holds {padding:g} gets through: times 0 is not enough"
            if not torch.equal(spoiled.nan_to_num(), before.nan_to_num()):
                return "it changed its argument; work on a new tensor"
    return None


@exercise("7.3")
def depends_on_company(answer: Callable[[Encode], bool]) -> str | None:
    """A detector, tried on encoders that are known to depend on the batch or not."""
    encoders = {
        "an encoder that is right": (_encode(), False),
        "an encoder that is right up to rounding": (_rounded, False),
        "an encoder without a mask": (_encode(masked=False), True),
        "an encoder with padding in the mean": (_encode(pool_padding=True), True),
        "an encoder that cuts each text to the shortest": (_encode(cut=True), True),
        "an encoder that subtracts the mean of the batch": (_centred, True),
    }
    for name, (encode, depends) in encoders.items():
        if yes_or_no(answer(encode)) != depends:
            return f"{name} gets the verdict {not depends}"
    return None


def _encode(*, masked: bool = True, pool_padding: bool = False, cut: bool = False) -> Encode:
    """Attention without parameters over vectors that a word's letters decide; then the mean."""

    def encode(texts: list[str]) -> Tensor:
        rows = [torch.stack([_vector(word) for word in text.split()]) for text in texts]
        size = (min if cut else max)(len(row) for row in rows)
        padding = _vector("")
        vectors = []
        for row in rows:
            x = torch.cat([row[:size], padding.expand(max(0, size - len(row)), -1)])
            real = torch.arange(len(x)) < len(row)
            scores = x @ x.mT
            if masked:
                scores = scores.masked_fill(~real, -math.inf)
            out = x + scores.softmax(dim=-1) @ x
            vectors.append(out.mean(0) if pool_padding else out[real].mean(0))
        return torch.nn.functional.normalize(torch.stack(vectors), dim=-1)

    return encode


def _vector(word: str) -> Tensor:
    return torch.randn(7, generator=torch.Generator().manual_seed(zlib.crc32(word.encode())))


def _rounded(texts: list[str]) -> Tensor:
    return _encode()(texts) + 1e-7 * len(texts)


def _centred(texts: list[str]) -> Tensor:
    vectors = _encode()(texts)
    return vectors - vectors.mean(dim=0)
