"""One state: two pairs by hand, the limit of recall, a chunk's boundary, a wrong gate."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attn_lib.exercises._verdict import differs, exercise, near, numbers_of, one_number, yes_or_no


@exercise("13.1")
def read_back(answer: Any) -> str | None:
    """What the first of two keys reads after the delta rule has written both."""
    given = numbers_of(answer)
    if len(given) != 2:
        return f"a value has two numbers, not {len(given)}"
    if near(given, [3.2, 9.4]):
        return None
    faults = {
        (5.0, 10.0): "that is what the first key read before the second was written",
        (5.0, 13.0): "that is what adding gives; write only what the second key does not read yet",
        (6.8, 10.6): "the difference is the value minus what is read, not the other way round",
        (0.0, 5.0): "that is what the second key reads",
        (2.0, 9.0): "the difference is written along the second key: the first reads 0.6 of it",
        (-1.8, -0.6): "that is what the second write changes; add what was there",
    }
    for numbers, fault in faults.items():
        if near(given, numbers):
            return fault
    return "read with the second key first, and write the difference along that key"


@exercise("13.2")
def most_pairs(answer: Callable[[int, float], int]) -> str | None:
    """The largest N for which (N − 1)/d is at most an error."""
    sizes = [(32, 0.5), (32, 1.0), (16, 0.25), (64, 2.0), (8, 0.3), (8, 0.0), (128, 0.01), (2, 1.8)]
    expected = [math.floor(d * error) + 1 for d, error in sizes]
    given = [one_number(answer(d, error)) for d, error in sizes]
    if given == expected:
        return None
    faults: dict[str, list[float]] = {
        "a pair is no noise for itself: N − 1 others are": [math.floor(d * e) for d, e in sizes],
        "the error itself grows with N − 1, not its root": [
            math.floor(d * e * e) + 1 for d, e in sizes
        ],
        "the square of a product of keys is 1/d on average, not its root": [
            math.floor(math.sqrt(d) * e) + 1 for d, e in sizes
        ],
        "that is the number of keys that may stand at right angles": [d for d, _ in sizes],
        "pairs come whole: round down": [d * e + 1 for d, e in sizes],
    }
    for fault, numbers in faults.items():
        if all(abs(a - b) < 1e-9 for a, b in zip(given, numbers, strict=True)):
            return fault
    cases = zip(sizes, given, expected, strict=True)
    (d, error), found, right = next(case for case in cases if case[1] != case[2])
    return f"for d={d} and an error of {error}: {found:g} instead of {right}"


def _read_all(g: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of the gates and the state of a text, by one sum over its tokens."""
    faded = (g.sum() - g.cumsum(0)).exp()  # of each token's part, at the end
    return g.sum(), torch.einsum("t,td,te->de", faded, k, v)


@exercise("13.3")
def join(answer: Callable[[Tensor, Tensor, Tensor, Tensor], Any]) -> str | None:
    """The state of a text from those of its halves."""
    generator = torch.Generator().manual_seed(0)
    for cut, T in ((3, 7), (1, 6), (5, 6)):
        g = -torch.rand(T, generator=generator, dtype=torch.float64)
        k, v = torch.randn(2, T, 4, generator=generator, dtype=torch.float64)
        total, state = _read_all(g, k, v)
        halves = *_read_all(g[:cut], k[:cut], v[:cut]), *_read_all(g[cut:], k[cut:], v[cut:])
        sum_a, S_a, sum_b, S_b = halves
        out = answer(*(x.clone() for x in halves))
        if not isinstance(out, (tuple, list)) or len(out) != 2:
            return "two things are wanted: the sum and the state"
        if fault := differs(out[1], state):
            faults = {
                "the first state must fade by the gates of the second half": S_a + S_b,
                "it is the first state that fades, not the second": S_a + sum_a.exp() * S_b,
                "the first state fades by the gates of the second half, not by its own": sum_a.exp()
                * S_a
                + S_b,
                "the second state was faded already; only the first one still is to be": sum_b.exp()
                * (S_a + S_b),
                "the sum is a logarithm: the factor is e to it": sum_b * S_a + S_b,
            }
            named = [words for words, wrong in faults.items() if differs(out[1], wrong) is None]
            return f"the state: {named[0] if named else fault}"
        if fault := differs(out[0], total):
            if differs(out[0], total.exp()) is None:
                return "the sum: give back the sum of logarithms, not e to it"
            if differs(out[0], sum_a * sum_b) is None:
                return "the sum: factors are multiplied, so their logarithms are added"
            return f"the sum: {fault}"
    return None


def _rule(
    *,
    at: str = "before",
    fades_write: bool = False,
    reads_faded: bool = True,
    sign: int = 1,
) -> Callable[..., tuple[Tensor, Tensor]]:
    """A layer whose gate acts as is said."""

    def rule(
        q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_gate: Tensor, S: Tensor
    ) -> tuple[Tensor, Tensor]:
        outs = []
        for t in range(q.shape[-2]):
            now = slice(t, t + 1)
            gate = (sign * log_gate[..., now, :]).mT.exp()
            old = S
            if at == "before":
                S = gate * S
            read = k[..., now, :] @ (S if reads_faded else old)
            write = k[..., now, :].mT @ (beta[..., now, :] * (v[..., now, :] - read))
            S = S + (gate * write if fades_write else write)
            if at == "after":
                S = gate * S
            outs.append(q[..., now, :] @ S)
        return torch.cat(outs, dim=-2), S

    return rule


@exercise("13.4")
def gate_is_right(answer: Callable[[Callable[..., tuple[Tensor, Tensor]]], bool]) -> str | None:
    """A test that tells a gate that acts before the write from others."""
    wrong = {
        "acts after the write": _rule(at="after"),
        "is never applied": _rule(at="never"),
        "also fades what the token writes": _rule(fades_write=True),
        "acts before the write, while the key reads the state from before it": _rule(
            reads_faded=False
        ),
        "makes the state larger": _rule(sign=-1),
    }
    if not yes_or_no(answer(_rule())):
        return "a layer is refused that is right"
    for name, rule in wrong.items():
        if yes_or_no(answer(rule)):
            return f"it passes a layer whose gate {name}"
    return None
