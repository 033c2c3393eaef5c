"""The same answer: pairs in a packed row, what its ends say, a leak to be proven, its repair."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from attn_lib.exercises._verdict import (
    differs,
    exercise,
    numbers_of,
    one_number,
    tensor_of,
)

_VOCABULARY, _WIDTH = 31, 16


def suspect(tokens: Tensor, segments: Tensor | None = None) -> Tensor:
    """A small language model, in which something crosses from one document to another.

    Args:
        tokens: (B, T) integers below 31.
        segments: (B, T) integers, the number of each token's document; default: one document.

    Returns:
        (B, T, 31) logits, float64.
    """
    if segments is None:
        segments = torch.zeros_like(tokens)
    generator = torch.Generator().manual_seed(11)
    sizes = [(_VOCABULARY, _WIDTH), *[(_WIDTH, _WIDTH)] * 8, (_WIDTH, _VOCABULARY)]
    first, *inside, last = (
        torch.randn(size, generator=generator, dtype=torch.float64) / _WIDTH**0.5 for size in sizes
    )
    x = first[tokens] * _WIDTH**0.5
    open_ = (segments[:, :, None] == segments[:, None]).tril()
    for layer in range(2):
        W_q, W_k, W_v, W_before = inside[4 * layer : 4 * layer + 4]
        x = x + torch.nn.functional.pad(x[:, :-1], (0, 0, 1, 0)) @ W_before  # the token before
        scores = (x @ W_q) @ (x @ W_k).mT / _WIDTH**0.5
        x = x + scores.masked_fill(~open_, -torch.inf).softmax(dim=-1) @ x @ W_v
    return x @ last


@exercise("11.1")
def open_pairs_by_hand(answer: Any) -> str | None:
    """Open pairs of a row with documents of 2, 3 and 1 tokens: causal alone, and with segments."""
    given = numbers_of(answer)
    if len(given) != 2:
        return f"two numbers are wanted, without and with a segment mask, not {len(given)}"
    for numbers, fault in (
        ((21, 10), None),
        ((10, 21), "first the row without a segment mask, then with it"),
        ((36, 14), "both masks are causal too: no token may attend to a later one"),
        ((21, 14), "with segments, the mask is still causal: inside a document, too"),
        ((36, 10), "without segments, the mask is still causal"),
        ((15, 4), "each token may attend to itself, too"),
        ((21, 11), "that is what the segment mask closes; how many stay open?"),
        ((21, 6), "each token may attend to all earlier tokens of its own document, too"),
    ):
        if tuple(given) == numbers:
            return fault
    if given[0] != 21:
        return "without segments, token t may attend to t + 1 tokens: add up 1 to 6"
    return "with segments, a document of n tokens has n (n + 1) / 2 open pairs; add up three"


@exercise("11.2")
def unpacked_ends(answer: Callable[[Tensor], tuple[Tensor, Tensor]]) -> str | None:
    """Positions and numbers of documents, from where the documents end."""
    for ends in ([0, 3, 5], [0, 1, 5, 8], [0, 4]):
        out = answer(torch.tensor(ends))
        if not isinstance(out, (tuple, list)) or len(out) != 2:
            return "two tensors are wanted: positions and segments"
        positions, segments = map(tensor_of, out)
        sizes = [b - a for a, b in pairwise(ends)]
        right = torch.cat([torch.arange(size) for size in sizes])
        document = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        case = f"for {ends}"
        for name, tensor in (("positions", positions), ("segments", segments)):
            if tensor.shape != right.shape:
                shape = tuple(tensor.shape)
                return f"{case}, {name} have the shape {shape} instead of {tuple(right.shape)}"
        if torch.equal(positions.long(), document) and torch.equal(segments.long(), right):
            return "first the positions, then the segments"
        if not torch.equal(positions.double(), right.double()):
            whole = torch.arange(ends[-1]).double()
            for offset in (0, 1):
                if len(sizes) > 1 and torch.equal(positions.double(), whole + offset):
                    return f"{case}, the positions count on: they begin anew with each document"
            if torch.equal(positions.double(), right.double() + 1):
                return f"{case}, the first position of a document is 1 instead of 0"
            return f"{case}, the positions are {positions.tolist()} instead of {right.tolist()}"
        if not torch.equal(segments[:, None] == segments, document[:, None] == document):
            late = torch.bucketize(torch.arange(ends[-1]), torch.tensor(ends[1:]))
            if torch.equal(segments.long(), late):
                return f"{case}, the first token of a document still belongs to the one before"
            return f"{case}, the segments are {segments.tolist()}; like {document.tolist()}"
    return None


@exercise("11.3")
def leak_proven(answer: Any) -> str | None:
    """Two rows that differ outside the document of a token, whose logits change."""
    if not isinstance(answer, (tuple, list)) or len(answer) != 4:
        return "four things are wanted: one, other, segments, t"
    one, other, segments = (tensor_of(part) for part in answer[:3])
    t = int(one_number(answer[3]))
    for name, row in (("one", one), ("other", other), ("segments", segments)):
        if row.ndim != 2 or len(row) != 1 or row.shape != one.shape:
            return f"one, other and segments are (1, T) each; {name} is {tuple(row.shape)}"
        if row.is_floating_point() or row.dtype == torch.bool:
            return f"{name} holds integers, not {row.dtype}"
    for row in (one, other):
        if not ((row >= 0) & (row < _VOCABULARY)).all():
            return f"tokens are numbers from 0 to {_VOCABULARY - 1}"
    T = one.shape[1]
    if not 0 <= t < T:
        return f"t is a token of the row, from 0 to {T - 1}, not {t}"
    if (segments.diff() < 0).any():
        return "the numbers of the documents rise along the row"
    own, changed = segments[0] == segments[0, t], (one != other)[0]
    if not changed.any():
        return "the two rows are equal: change a token"
    if own.all():
        return "there is only one document: nothing can cross into it"
    if (changed & own).any():
        return "the rows differ inside the document of t, which may change the answer"
    if changed.sum() > 1:
        return f"they differ in {int(changed.sum())} tokens; which one of them does it?"
    moved = (suspect(one, segments) - suspect(other, segments))[0].abs().amax(dim=-1)
    if moved[t] > 1e-3:
        return None
    at = int(changed.nonzero()[0, 0])
    if at > t:
        return f"token {at} is later than {t}, and is not seen: nothing changes there"
    seen = [s for s in range(T) if moved[s] > 1e-3 and segments[0, s] != segments[0, at]]
    if seen:
        return f"the logits of token {t} stay the same; those of another document's token change"
    return f"the logits of token {t} stay the same: token {at} is not seen in its document"


@exercise("11.4")
def shifted_inside_documents(answer: Callable[[Tensor, Tensor], Tensor]) -> str | None:
    """The token before, within the document; zeros where there is none."""
    generator = torch.Generator().manual_seed(0)
    for rows in ([[0, 0, 0, 1, 1]], [[2, 2, 2, 2]], [[0, 1, 1, 2, 2, 2], [3, 3, 3, 3, 5, 6]]):
        segments = torch.tensor(rows)
        B, T = segments.shape
        x = torch.randn(B, T, 3, generator=generator, dtype=torch.float64)
        before = torch.cat([torch.zeros(B, 1, 3, dtype=torch.float64), x[:, :-1]], dim=1)
        begins = torch.ones(B, T, dtype=torch.bool)
        begins[:, 1:] = segments[:, 1:] != segments[:, :-1]
        right = before.masked_fill(begins[..., None], 0.0)
        out = tensor_of(answer(x.clone(), segments.clone()))
        if out.shape != x.shape:
            return f"the shape is {tuple(out.shape)} instead of {tuple(x.shape)}"
        out = out.double()
        if not differs(out, right):
            continue
        ends = begins.roll(-1, 1)
        for told, wrong in (
            ("it still crosses: the first token of a document gets the last one before it", before),
            ("the first token of the row gets the last one", x.roll(1, 1)),
            ("nothing is moved", x),
            ("it is moved the other way: a token gets the one after it", x.roll(-1, 1)),
            (
                "the last token of each document is cleared; clear what the first one gets",
                before.masked_fill(ends[..., None], 0.0),
            ),
            (
                "the first token of the row gets the last one",
                x.roll(1, 1) * (segments == segments.roll(1, 1))[..., None],
            ),
            (
                "the first token of a document keeps itself; zeros are wanted",
                right + x * begins[..., None],
            ),
        ):
            if not differs(out, wrong):
                return told
        return f"for the segments {rows}, {differs(out, right)}"
    return None
