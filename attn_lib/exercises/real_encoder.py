"""A real encoder: the first wrong block, a mean over real tokens, a detector of company."""

import math
import zlib
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from attn_lib.exercises._verdict import differs, exercise, yes_or_no

Encode = Callable[[list[str]], Tensor]
Block = Callable[[Tensor], Tensor]


@exercise("7.1")
def first_wrong(answer: Callable[[list[Block], list[Block], Tensor], int | None]) -> str | None:
    """The first of two lists of blocks that differ, given what the one before it should return."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 7, generator=generator)
    right = [_block(generator) for _ in range(4)]
    rounded = [_off(block, 1e-7) for block in right]
    large = [right[0], lambda x: 1e6 * x, *right[2:]]
    off = [_off(block, 0.1) for block in right]
    hidden = [*right[:3], lambda x: torch.zeros_like(x)]
    cases = {
        "the same blocks": (right, right, None),
        "blocks that differ by rounding": (rounded, right, None),
        "rounding that a later block makes a million times as large": (
            [rounded[0], *large[1:]],
            large,
            None,
        ),
        "a mistake in the first block": ([off[0], *right[1:]], right, 0),
        "a mistake in the last block": ([*right[:3], off[3]], right, 3),
        "two mistakes": ([right[0], off[1], right[2], off[3]], right, 1),
        "a mistake that the last block hides": ([*right[:2], off[2], hidden[3]], hidden, 2),
    }
    for name, (ours, theirs, wanted) in cases.items():
        given = answer(ours, theirs, x.clone())
        if given is not None and (isinstance(given, bool) or not hasattr(given, "__index__")):
            return f"the index of a block, or None, is wanted, not {given!r}"
        if given is None and wanted is None:
            continue
        if given is None or wanted is None or int(given) != wanted:
            return f"{name}: {wanted} is wanted, not {given}{_why(given, wanted, name)}"
    return None


def _why(given: int | None, wanted: int | None, name: str) -> str:
    if wanted is not None and given == wanted + 1:
        return "; blocks are counted from 0" if wanted in (0, 3) else ""
    if "million" in name:
        return "; give both blocks the same x, so that nothing adds up"
    return "; rounding is no mistake" if "rounding" in name else ""


def _block(generator: torch.Generator) -> Block:
    W = torch.randn(7, 7, generator=generator) / 7**0.5
    return lambda x: x + torch.tanh(x @ W)


def _off(block: Block, by: float) -> Block:
    return lambda x: block(x) + by


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
        if fault := differs(given, expected):
            found = _known_mean(given, out, lengths)
            return found or fault.replace("PyTorch", "the mean of the real tokens")
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


def _known_mean(given: Tensor, out: Tensor, lengths: Tensor) -> str | None:
    """What a wrong mean has done, if it is one of the usual mistakes."""
    n, T = lengths[:, None], out.shape[1]
    steps = torch.arange(T)

    def total(real: Tensor) -> Tensor:
        return (out * real[..., None]).sum(dim=1)

    more, fewer = steps <= n, steps < n - 1
    sums = total(steps < n)
    padded = "this takes in a row of padding: token t is real if t < n, not if t <= n"
    short = "this leaves out the last real token of each text, whose index is n - 1"
    alone = "this is the first token alone: take the mean of all real tokens"
    mistakes = [
        (sums, "this is the sum over the real tokens: now divide it by each text's length"),
        (sums / T, f"the sum is right, but you divided by T={T} instead of each text's length"),
        (sums / lengths.sum(), "you divided by the tokens of all texts: each has its own length"),
        (total(more) / n, padded),
        (total(more) / more.sum(dim=1, keepdim=True), padded),
        (total(fewer) / n, short),
        (total(fewer) / (n - 1), short),
        (F.normalize(sums, dim=1), "this is divided by its own length: the mean alone is wanted"),
        (out[:, 0], alone),
    ]
    return next((said for wrong, said in mistakes if not differs(given, wrong)), None)


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
