"""Many heads: parameters, a test of a split, one head of a packed matrix."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attn_lib.exercises._verdict import Wrong, differs, exercise, one_number, tensor_of, yes_or_no


@exercise("3.1")
def count_weights(answer: Any) -> str | None:
    """Parameters of a layer with d_model 6, H 3, d_k 4, d_v 5, biases included."""
    sizes = [(6, 3 * 4), (6, 3 * 4), (6, 3 * 5), (3 * 5, 6)]  # in and out of each Linear
    weights = sum(width * outputs for width, outputs in sizes)
    biases = sum(outputs for _, outputs in sizes)
    given = one_number(answer)
    if given == weights + biases:
        return None
    if given == weights + biases - 6:
        return "one bias is missing: the output projection has one, too"
    if given == weights:
        return "the four weight matrices are right; now add the biases, one for each output"
    if given in (weights / 3, (weights + biases) / 3, weights / 3 + 4 + 4 + 5 + 6):
        return "that is one head; there are three"
    if given == 4 * 6 * 6 + 4 * 6:
        return "that is for heads of width d_model / H; here d_k and d_v are given"
    if given == weights + biases - 15 * 6 - 6:
        return "the output projection, which joins the heads, is missing"
    return "add up four Linear layers: each has (inputs) times (outputs) weights, plus its biases"


def _right(x: Tensor, H: int) -> Tensor:
    return x.unflatten(-1, (H, -1)).transpose(1, 2)


_SPLITS: list[tuple[str, bool, Callable[[Tensor, int], Tensor]]] = [
    ("view, then transpose", True, _right),
    ("slices", True, lambda x, H: torch.stack(x.chunk(H, dim=-1), dim=1)),
    ("a view alone", False, lambda x, H: x.reshape(len(x), H, x.shape[1], -1)),
    ("no transpose", False, lambda x, H: x.unflatten(-1, (H, -1))),
    ("numbers dealt out in turn", False, lambda x, H: x.unflatten(-1, (-1, H)).permute(0, 3, 1, 2)),
    ("heads in reverse", False, lambda x, H: _right(x, H).flip(1)),
    ("tokens in reverse", False, lambda x, H: _right(x.flip(1), H)),
    ("texts mixed up", False, lambda x, H: _right(x.flip(0), H)),
    (
        "the last two heads exchanged",
        False,
        lambda x, H: torch.cat([_right(x, H)[:, :-2], _right(x, H)[:, -2:].flip(1)], dim=1),
    ),
    (
        "the heads of the last text in reverse",
        False,
        lambda x, H: torch.cat([_right(x[:-1], H), _right(x[-1:], H).flip(1)]),
    ),
]


@exercise("3.2")
def splits_right(answer: Callable[[Callable[[Tensor, int], Tensor]], bool]) -> str | None:
    """Whether a split gives head h the numbers h · d to (h + 1) · d of every token."""
    for name, right, split in _SPLITS:
        said = yes_or_no(answer(split))
        if said != right:
            verdict = "accepts a wrong" if said else "refuses a right"
            return f"it {verdict} split: {name}"
    return None


@exercise("3.3")
def one_of_the_heads(answer: Callable[[Tensor, int, int], tuple]) -> str | None:
    """The matrices of one head of nn.MultiheadAttention, for x @ W."""
    generator = torch.Generator().manual_seed(0)
    for d_model, H in ((6, 3), (8, 2)):
        with torch.random.fork_rng(devices=[]):  # leaves the reader's random state as it was
            layer = torch.nn.MultiheadAttention(d_model, H, bias=False)
        packed = torch.randn(3 * d_model, d_model, generator=generator)
        layer.in_proj_weight = torch.nn.Parameter(packed.clone())
        x = torch.randn(5, d_model, generator=generator)
        with torch.no_grad():
            theirs = layer(x, x, x, average_attn_weights=False)[1]
        for h in range(H):
            found = _three(answer(packed.clone(), h, H))
            d_k = d_model // H
            columns = packed[:d_model, h * d_k : (h + 1) * d_k]
            if not (differs(found[0], columns) and differs(found[0].mT, columns)):
                return "these are columns of in_proj_weight: what a head brings are rows of it"
            shapes = [tuple(W.shape) for W in found]
            if shapes == [(d_k, d_model)] * 3:
                return "for x @ W the matrices must be transposed: Linear stores them (out, in)"
            if shapes != [(d_model, d_k)] * 3:
                return f"each matrix must be (d_model, d_k), here {(d_model, d_k)}, not {shapes[0]}"
            q, k, _ = (x.double() @ W.double() for W in found)
            if differs(F.softmax(q @ k.mT / d_k**0.5, dim=-1), theirs[h]):
                return f"head {h} of {H} attends differently in PyTorch: check which rows you take"
            wanted = [part[h * d_k : (h + 1) * d_k].T for part in packed.split(d_model)]
            if differs(found[2], wanted[2]):
                return "queries and keys are right, but the values are not: W_v comes third"
            if differs(found[0], wanted[0]) or differs(found[1], wanted[1]):
                return "this head attends as it should, but take its rows as they are"
    return None


def _three(found: Any) -> list[Tensor]:
    if not isinstance(found, Iterable) or getattr(found, "ndim", 3) == 0:
        raise Wrong("three matrices are wanted: W_q, W_k, W_v")
    matrices = [tensor_of(W) for W in itertools.islice(found, 4)]
    if len(matrices) != 3 or any(W.dim() != 2 or W.is_complex() for W in matrices):
        raise Wrong("three matrices are wanted: W_q, W_k, W_v")
    return matrices
