"""The next token: temperature and top-p on paper, min-p, bits per byte."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attn_lib.exercises._verdict import differs, exercise, near, numbers_of, tensor_of


@exercise("8.1")
def two_knobs(answer: Any) -> str | None:
    """0.4, 0.3, 0.2, 0.1 after a temperature of 0.5, then a top-p of 0.8."""
    given = numbers_of(answer)
    if len(given) != 4:
        return f"four numbers are wanted, 0 for a token that is cut off, not {len(given)}"
    said = {
        "the temperature is right; now cut off the tail and rescale": (
            16 / 30,
            9 / 30,
            4 / 30,
            1 / 30,
        ),
        "right tokens, but rescale what is kept: it must sum to 1": (16 / 30, 9 / 30, 0, 0),
        "that is top-p first; the temperature comes first": (16 / 29, 9 / 29, 4 / 29, 0),
        "the first token has less than 0.8, so the next is kept, too": (1, 0, 0, 0),
        "that is top-p alone; the temperature comes first": (4 / 9, 3 / 9, 2 / 9, 0),
    }
    if near(given, (16 / 25, 9 / 25, 0, 0)):
        return None
    for fault, wrong in said.items():
        if near(given, wrong):
            return fault
    if abs(sum(given) - 1) > 0.02:
        return "probabilities must sum to 1"
    if given[0] < 0.5:
        return "a temperature below 1 favours the likeliest: divide the logits, do not multiply"
    return "dividing the logits by 0.5 squares each probability; rescale, cut, rescale"


@exercise("8.2")
def min_p(answer: Callable[[Tensor, float, float], Tensor]) -> str | None:
    """Keep what has at least min_p times the largest probability, after the temperature."""
    generator = torch.Generator().manual_seed(0)
    for size, temperature, limit in ((7, 1.0, 0.3), (11, 2.0, 0.4), (13, 0.5, 0.05), (5, 1.0, 1.0)):
        logits = 2 * torch.randn(size, generator=generator).double()
        expected = _min_p(logits, temperature, limit)
        out = answer(logits.clone(), temperature, limit)
        fault = differs(out, expected)
        if not fault:
            continue
        if not fault.startswith("the largest"):
            return f"for {size} logits {fault}"
        shares = tensor_of(out).double()
        p = (logits / temperature).softmax(dim=-1)
        bound = "the bound is min_p times the probability of the likeliest, not min_p itself"
        if shares.isnan().any():
            return f"0 / 0 is NaN; if nothing is kept, {bound}"
        if abs(float(shares.sum()) - 1) > 1e-4:
            return f"the shares must sum to 1, here {float(shares.sum()):.2f}"
        if not differs(shares, _rescaled(p, p >= limit)):
            return bound
        if not differs(shares, _min_p(logits, 1.0, limit)):
            return "the temperature is missing"
        if not differs(
            shares, _rescaled(p, logits.softmax(dim=-1) >= limit * logits.softmax(dim=-1).max())
        ):
            return "the temperature comes first, before the bound"
        if not differs(shares, _rescaled(p, p > limit * p.max())):
            return "at least as much: a token on the bound is kept"
        return f"for temperature {temperature} and min_p {limit}, {fault.replace('PyTorch', 'it')}"
    return None


def _rescaled(p: Tensor, kept: Tensor) -> Tensor:
    return p * kept / (p * kept).sum()


def _min_p(logits: Tensor, temperature: float, limit: float) -> Tensor:
    # a share of min_p is a distance of log(min_p) in logits: no softmax
    bound = float(logits.max()) + temperature * float(torch.tensor(limit).double().log())
    powers = [
        2.718281828459045 ** ((z - float(logits.max())) / temperature) if z >= bound else 0.0
        for z in logits.tolist()
    ]
    return torch.tensor(powers).double() / sum(powers)


@exercise("8.3")
def bits_per_byte(answer: Any) -> str | None:
    """1200 bytes: 300 tokens of perplexity 16, or 200 of perplexity 32."""
    given = numbers_of(answer)
    if len(given) != 2:
        return f"two numbers are wanted, of A and of B, not {len(given)}"
    said = {
        "those are bits per token; now spread them over the bytes": (4, 5),
        "the two are swapped: A comes first": (5 / 6, 1),
        "those are bytes per token": (4, 6),
        "those are all bits of the text; divide by its bytes": (1200, 1000),
        "those are nats; the logarithm of base 2 gives bits": (0.693, 0.578),
        "take the logarithm of the perplexity first": (4, 32 / 6),
    }
    if near(given, (1, 5 / 6)):
        return None
    for fault, wrong in said.items():
        if near(given, wrong):
            return fault
    return "bits per token are the logarithm of the perplexity; times tokens, divided by bytes"
