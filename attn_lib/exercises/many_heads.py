"""Many heads: parameters, a split, one head of a packed matrix."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attn_lib.exercises._verdict import Wrong, differs, exercise, one_number, tensor_of


@exercise("3.1")
def count_weights(answer: Any) -> str | None:
    """Parameters of a layer with d_model 6, H 3, d_k 4, d_v 5, biases included."""
    sizes = [(6, 3 * 4), (6, 3 * 4), (6, 3 * 5), (3 * 5, 6)]  # in and out of each Linear
    weights = sum(width * outputs for width, outputs in sizes)
    biases = sum(outputs for _, outputs in sizes)
    given = one_number(answer)
    if given == weights + biases:
        return None
    if given == weights:
        return "the four weight matrices are right; now add the biases, one for each output"
    if given in (weights / 3, (weights + biases) / 3, weights / 3 + 4 + 4 + 5 + 6):
        return "that is one head; there are three"
    if given == 4 * 6 * 6 + 4 * 6:
        return "that is for heads of width d_model / H; here d_k and d_v are given"
    if given == weights + biases - 15 * 6 - 6:
        return "the output projection, which joins the heads, is missing"
    return "add up four Linear layers: each has (inputs) times (outputs) weights, plus its biases"


@exercise("3.2")
def split_heads(answer: Callable[[Tensor, int], Tensor]) -> str | None:
    """(B, T, H · d) to (B, H, T, d)."""
    for B, T, H, d in ((2, 3, 5, 7), (1, 4, 4, 2), (3, 2, 1, 5)):
        x = torch.arange(float(B * T * H * d)).view(B, T, H * d)
        out = answer(x.clone(), H)
        rows = x.tolist()
        expected = torch.tensor(
            [[[row[h * d : (h + 1) * d] for row in text] for h in range(H)] for text in rows]
        )
        fault = differs(out, expected)
        if not fault:
            continue
        if fault.startswith("the largest"):
            if not differs(out, x.reshape(B, H, T, d)):
                return "the shape is right, but the numbers are scrambled by a reshape alone"
            return "the shape is right, but head h takes numbers h * d to (h + 1) * d of each token"
        return f"for B={B}, T={T}, H={H}, d={d}, {fault}"
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
