"""Masks: for a prefix, for a decoder; a detector of leaks; a softmax with empty rows."""

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from attn_lib.exercises._verdict import differs, differs_mask, exercise, tensor_of, yes_or_no


@exercise("2.1")
def prefix_mask(answer: Callable[[int, int], Tensor]) -> str | None:
    """The tokens of the prefix attend to each other; the rest is causal."""
    for T, prefix in ((5, 2), (4, 0), (3, 3), (6, 1), (11, 4)):
        out = answer(T, prefix)
        expected = torch.tensor([[s <= t or s < prefix for s in range(T)] for t in range(T)])
        fault = differs_mask(out, expected, f"T={T}, prefix={prefix}")
        if fault:
            causal = torch.tensor([[s <= t for s in range(T)] for t in range(T)])
            if not differs_mask(out, causal, ""):
                return "this is the causal mask: tokens of the prefix also attend to its later ones"
            return fault
    return None


@exercise("2.2")
def decoder_mask(answer: Callable[[Tensor], Tensor]) -> str | None:
    """Causal, with padding closed, from a tokenizer's 1 and 0."""
    for binary in (
        torch.tensor([[1, 1, 1], [1, 0, 0]]),  # B and S differ
        torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0]]),  # B and S collide
        torch.tensor([[0, 1, 1, 1]]),  # padding on the left
        torch.tensor([[1, 0, 1], [0, 0, 0]]),  # a gap, and nothing real
    ):
        B, S = binary.shape
        try:
            out = tensor_of(answer(binary.clone()))
        except RuntimeError as error:
            return f"for {tuple(binary.shape)} it raised {error}: write out both axes, (B, 1, 1, S)"
        table = [
            [[bool(binary[b, s]) and s <= t for s in range(S)] for t in range(S)] for b in range(B)
        ]
        expected = torch.tensor(table)[:, None]
        if out.dim() != 4:
            return (
                f"the shape is {tuple(out.shape)}, and must be (B, 1, T, S), here {(B, 1, S, S)}: "
                "the axis of size 1 broadcasts over the heads"
            )
        fault = differs_mask(out, expected, f"B={B}, S={S}")
        if fault:
            causal, queries = expected.new_ones(S, S).tril(), binary.bool()[:, None, :, None]
            if any(not differs_mask(out, found & queries, "") for found in (causal, expected)):
                return "it closes queries: padding must not be attended to, so it closes keys"
            return fault
    return None


@exercise("2.3")
def sees_future(answer: Callable[[Callable[[Tensor], Tensor], Tensor], bool]) -> str | None:
    """A detector of leaks, tried on heads that are known to leak or not."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(7, 3, generator=generator, dtype=torch.float64)

    def head(offset: int) -> Callable[[Tensor], Tensor]:
        def run(x: Tensor) -> Tensor:
            closed = torch.ones(len(x), len(x), dtype=torch.bool).triu(1 + offset)
            scores = (x @ x.mT).masked_fill(closed, -torch.inf)
            return scores.softmax(dim=-1) @ x

        return run

    def leak(t: int, s: int) -> Callable[[Tensor], Tensor]:  # one output, from one later token
        def run(x: Tensor) -> Tensor:
            late = 0.01 * x[s : s + 1].sum(dim=0)  # 0 where x is shorter
            return head(0)(x) + late * (torch.arange(len(x)) == t)[:, None]

        return run

    def spread(*factors: float) -> Callable[[Tensor], Tensor]:  # component 0 of the last token
        return lambda x: head(0)(x) + x[-1:, :1] * x.new_tensor(factors)

    heads = {
        "a causal head": (head(0), False),
        "a head that attends to every position": (head(99), True),
        "a head that attends one position too far": (head(1), True),
        "a head that uses only the tokens strictly before": (lambda x: x.cumsum(0) - x, False),
        "a head of which only the first output leaks": (leak(0, 2), True),
        "a head that leaks the mean of all tokens": (lambda x: x + x.mean(0), True),
    }
    for t, s in itertools.combinations(range(7), 2):
        heads[f"a head of which only output {t} leaks, and only token {s}"] = leak(t, s), True
    heads["a head whose leak cancels out in a sum of derivatives"] = (
        lambda x: x + (x[-1:, 0] - x[-1:, 1])[:, None] / 2,
        True,
    )
    heads["a head that leaks only from one component to another"] = spread(0.0, 0.01, 0.0), True
    heads["a head that leaks to two components with opposite signs"] = (
        spread(0.0, 0.01, -0.01),
        True,
    )
    for name, (run, leaks) in heads.items():
        if yes_or_no(answer(run, x.clone())) != leaks:
            return f"{name}: this one {'leaks' if leaks else 'does not leak'}, you say otherwise"
    return None


@exercise("2.4")
def masked_softmax(answer: Callable[[Tensor, Tensor], Tensor]) -> str | None:
    """Zeros for closed cells and empty rows, with a clean gradient."""
    two, leads = (2, 1, 1), torch.arange(18.0).view(2, 3, 3)
    scores = torch.tensor([[1.0, 2.0, 4.0], [3.0, 0.0, -1.0], [-1e35, -1e35, 5.0]]).repeat(two)
    mask = torch.tensor([[True, False, True], [False, False, False], [True, True, False]])
    mask, leaf = mask.repeat(two), scores.clone().requires_grad_()
    given = leaf.clone()  # no leaf: what changes it is told so by us
    out = answer(given, mask.clone())
    first, last = 1 / (1 + math.exp(3)), 1 / (1 + math.exp(-3))
    expected = torch.tensor([[first, 0, last], [0, 0, 0], [0.5, 0.5, 0]]).repeat(two)
    plain = tensor_of(out)
    if plain.shape != expected.shape or plain.is_complex():
        return differs(out, expected)
    if not differs(plain, scores.masked_fill(mask, -math.inf).softmax(-1).nan_to_num()):
        return "the mask is read the wrong way round: True means may attend"
    if bool(plain[:, 1].isnan().any()):
        return "a row without an open cell gives NaN: it must give zeros"
    if bool((plain[:, 1] != 0).any()):
        return "a row without an open cell gives weight to closed cells: it must give zeros"
    if bool((plain[~mask] != 0).any()):
        return "a closed cell still has some weight: only minus infinity closes it for certain"
    if not torch.equal(given.detach(), scores):
        return "it changed its argument; work on a new tensor"
    if differs(out, expected):
        return "a row with an open cell must sum to 1, even if its scores are large and negative"
    if not isinstance(out, Tensor) or not out.requires_grad:
        return "no gradient flows back: keep the computation in tensors"
    gradient = torch.autograd.grad((out * leads).sum(), leaf, allow_unused=True)[0]
    if gradient is None or not bool(gradient.isfinite().all()):
        return "the gradient has NaN: avoid computing a NaN at all, rather than overwriting it"
    mean = (expected * leads).sum(dim=-1, keepdim=True)
    if differs(gradient, expected * (leads - mean)):
        return "the weights are right, but not their gradient: detach nothing on the way"
    return None
