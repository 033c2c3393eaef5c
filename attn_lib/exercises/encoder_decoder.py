"""Encoder and decoder: cached rows, a masked loss, greedy decoding."""

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from attn_lib.exercises._verdict import Wrong, differs, exercise, numbers_of


@exercise("14.1")
def rows_computed(answer: Callable[[int, int], tuple[int, int]]) -> str | None:
    """Rows that become keys while n tokens follow a prompt of P."""
    for P, n in ((2, 10), (5, 1), (3, 4)):
        known = [P + k for k in range(n)]  # number of tokens before each new one
        found = numbers_of(answer(P, n))
        if len(found) != 2:
            return f"two numbers are wanted, without a cache and with one, not {len(found)}"
        without, kept = found
        case = f"for a prompt of {P} and {n} new tokens"
        if without == sum(known) and kept == known[-1]:
            continue
        if (without, kept) == (known[-1], sum(known)):
            return "the two are swapped: with a cache, fewer rows are computed"
        if kept == P + n:
            return "the last new token is written but never read: it needs no key"
        if kept == n:
            return "the prompt has to be read too, once"
        if without == sum(known) + n:
            return f"{case}, the first one needs only the prompt's {P} rows"
        if without == n * P:
            return "without a cache the new tokens are computed again, too"
        return f"{case} it is {sum(known)} without a cache and {known[-1]} with one"
    return None


@exercise("14.2")
def masked_loss(answer: Callable[[Tensor, Tensor, int], Tensor]) -> str | None:
    """Cross-entropy over the real targets, without the padding."""
    generator = torch.Generator().manual_seed(0)
    for B, T, V, padding in ((2, 5, 7, 6), (3, 4, 5, 0)):
        logits = 3 * torch.randn(B, T, V, generator=generator)
        wanted = torch.randint(1, V - 1, (B, T), generator=generator)
        wanted[0, 2:] = padding
        out = answer(logits.clone(), wanted.clone(), padding)
        expected = F.cross_entropy(logits.mT, wanted, ignore_index=padding)
        fault = differs(out, expected)
        if not fault:
            continue
        costs = F.cross_entropy(logits.mT, wanted, reduction="none")
        real = wanted != padding
        for found, wrong in (
            ("padding is counted", costs.mean()),
            (
                "each example is averaged first, so that a short one weighs as much as a long one",
                ((costs * real).sum(1) / real.sum(1)).mean(),
            ),
            ("the sum over real tokens is divided by the number of all", (costs * real).mean()),
            ("this is the sum: divide by the number of real tokens", (costs * real).sum()),
        ):
            if not differs(out, wrong):
                return found
        return fault
    return None


@exercise("14.3")
def greedy(answer: Callable[..., list[int]]) -> str | None:
    """Write until END, or up to a given length, with models that are plain tables."""
    START, END = 5, 6
    chain = {START: 3, 3: 1, 1: 4, 4: END, END: 2, 2: 0, 0: 2}  # it goes on, if one reads on
    circle = {START: 0, 0: 2, 2: 0}

    def scores_of(follows: dict[int, int]) -> Callable[[list[int]], list[float]]:
        def scores(tokens: list[int]) -> list[float]:
            read = [int(token) for token in tokens] if isinstance(tokens, Iterable) else []
            if len(read) > 50:
                raise Wrong("it goes on for ever where a model never ends: stop at longest")
            whole = [START]
            while len(whole) < len(read):
                whole.append(follows[whole[-1]])
            if not read or read != whole:
                raise Wrong("give the model START and everything written so far, in this order")
            row = [-3.0 - i for i in range(7)]
            row[follows[read[-1]]] = -1.0  # all scores are negative, as logs are
            return row

        return scores

    for name, follows, longest, expected in (
        ("a model that ends by itself", chain, 10, [3, 1, 4]),
        ("a model that never ends", circle, 5, [0, 2, 0, 2, 0]),
        ("a model that may write 0 tokens", chain, 0, []),
    ):
        found = numbers_of(answer(scores_of(follows), START, END, longest))
        out = [int(token) if token.is_integer() else token for token in found]
        if out == expected:
            continue
        if out == [START, *expected] or out == [*expected, END] or START in out or END in out:
            return f"for {name}, START and END do not belong to the answer: {out}"
        return f"for {name}, {expected} is wanted, not {out}"
    return None
