"""Sequences in pieces through the step function: each must be as it is by itself."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attn_check.cases import Draw
from attn_check.conventions import from_layout, to_layout
from attn_check.quiet import WithoutDropout, copied
from attn_check.reference import Case
from attn_check.report import Findings, Note, show
from attn_check.search import equal
from attn_check.subject import Subject, quoted

PIECES = (3, 1, 2, 1)
WORDS = f"pieces of {', '.join(map(str, PIECES))} positions"


def own_step(subject: Subject) -> Callable:
    """A copy of the step function that was never called, with all that it keeps."""
    assert subject.step is not None  # noqa: S101
    step = copied(subject.step, None)[0]
    owner = getattr(step, "__self__", None)
    if isinstance(owner, nn.Module):
        owner.eval()
    return step


def in_pieces(subject: Subject, step: Callable, case: Case) -> Iterator[tuple[Tensor, Any]]:
    """Output and cache of one piece of a new sequence after the other."""
    cache, a = None, 0
    for size in PIECES:
        tensors = {role: x[..., a : a + size, :] for role, x in case.tensors.items()}
        piece = replace(case, tensors=tensors)
        with torch.no_grad(), WithoutDropout():
            result = step(*_inputs(subject, piece), cache)
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise TypeError(f"step must return (out, cache), got {type(result).__name__}")
        out, cache = result
        yield from_layout(out, subject.layout, piece, subject.projects), cache
        a += size


def together(pieces: Iterator[tuple[Tensor, Any]]) -> tuple[Tensor, bool]:
    """The pieces that are left as one, and whether None was returned as a cache."""
    outs, caches = zip(*pieces, strict=True)
    return torch.cat(outs, dim=-2), any(cache is None for cache in caches)


def _inputs(subject: Subject, piece: Case) -> list[Tensor]:
    counts = {"q": piece.heads, "k": piece.kv_heads, "v": piece.kv_heads}
    return [
        to_layout(x.to(subject.dtype), subject.layout, piece.merged, counts.get(role, 1))
        for role, x in piece.tensors.items()
    ]


def check_second(
    subject: Subject, draw: Draw, step: Callable, case: Case, first: Tensor, found: Findings
) -> bool:
    """Whether a sequence given again, while another is open, gives what it gave at first."""
    words = f"the same {WORDS} as a second sequence, cache=None in its first call"
    opened = in_pieces(subject, step, draw.case("other pieces", sum(PIECES)))
    try:
        next(opened), next(opened)
        second = together(in_pieces(subject, step, case))[0]
    except Exception as error:  # whatever it raises is an answer
        found.known("cache_of_earlier_sequence", f"{words}: {quoted(error)}")
        return False
    if equal(second, first, case, draw.intent):
        return True
    example = f"{words}: an output of shape {tuple(second.shape)}, not {tuple(first.shape)}"
    if second.shape == first.shape:
        example = show(replace(case, words=words), second, first, draw.intent)
    found.known("cache_of_earlier_sequence", example)
    return False


def check_open(subject: Subject, draw: Draw, case: Case, alone: Tensor, found: Findings) -> None:
    """Whether a sequence goes on as it would alone after another was begun; else a note."""
    step = own_step(subject)
    opened = in_pieces(subject, step, case)
    try:
        begun = [next(opened)[0], next(opened)[0]]
        together(in_pieces(subject, step, draw.case("other pieces", sum(PIECES))))
        out = torch.cat([*begun, together(opened)[0]], dim=-2)
    except Exception:  # as where the other's cache has another length
        out = alone[..., :0, :]
    if equal(out, alone, case, draw.intent):
        found.holds.append("of two sequences that are open at once, neither disturbs the other")
        return
    text = (
        "Of two sequences that are open at once, each with its cache, the first is wrong from the "
        "second's first call on: step keeps something that is not in the cache it returns. One "
        "after the other they are right."
    )
    found.notes.append(Note(None, text))
