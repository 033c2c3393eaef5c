"""Encoder and decoder: parameters, a masked loss, greedy decoding, which rows hold something."""

from collections.abc import Callable, Iterable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from attn_lib.exercises._verdict import Wrong, differs, exercise, numbers_of, one_number, tensor_of


@exercise("14.1")
def extra_parameters(answer: Callable[[int], int]) -> str | None:
    """What cross-attention and its norm add to a block."""
    for d in (64, 5, 1):
        found = one_number(answer(d))
        expected = 4 * d * d + 6 * d
        if found == expected:
            continue
        for wrong, words in (
            (4 * d * d + 4 * d, "the norm before cross-attention has a scale and a shift"),
            (4 * d * d + 5 * d, "a norm has both a scale and a shift"),
            (4 * d * d + 2 * d, "each of the four projections has a bias, too"),
            (4 * d * d, "biases and the norm are missing"),
            (3 * d * d + 5 * d, "there is a fourth projection, of the output"),
            (3 * d * d + 3 * d, "the output projection and the norm are missing"),
        ):
            if found == wrong:
                return words
        return f"for d_model = {d} it is {expected}, not {found:g}"
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


@exercise("14.4")
def smallest_sets(answer: Callable[..., list[tuple[int, ...]]]) -> str | None:
    """All of the smallest sets of rows that bring something, of places that are made up."""
    places: list[tuple[str, int, list[set[int]]]] = [
        ("it sits in row 3", 6, [{3}]),
        ("it sits in row 0, and as well in row 4", 5, [{0}, {4}]),
        ("it needs rows 1 and 4 together", 6, [{1, 4}]),
        ("it needs row 2 with row 0 or row 3", 4, [{0, 2}, {2, 3}]),
        ("it needs all three rows", 3, [{0, 1, 2}]),
        ("no rows bring it", 4, []),
    ]
    for name, S, holders in places:

        def brings(rows: Iterable[int], S: int = S, holders: list[set[int]] = holders) -> bool:
            if not isinstance(rows, Iterable):
                raise Wrong("brings takes a list of rows, also where it is only one")
            given = {int(row) for row in rows}
            if not given <= set(range(S)):
                raise Wrong(f"there are rows 0 to {S - 1}, and brings was asked for {max(given)}")
            return any(holder <= given for holder in holders)

        found = answer(S, brings)
        if isinstance(found, (Tensor, np.ndarray)):
            found = tensor_of(found).tolist()
        if not isinstance(found, Iterable):
            return f"a list of tuples is wanted, not {type(found).__name__}"
        sets: list[tuple[float, ...]] = []
        for rows in found:
            if not isinstance(rows, Iterable) or isinstance(rows, str):
                return f"each set is a tuple of rows, also where it has only one: not {rows!r}"
            sets.append(tuple(sorted(numbers_of(rows))))
        expected: list[tuple[float, ...]] = sorted(tuple(sorted(holder)) for holder in holders)
        if sorted(sets) == expected:
            continue
        sets = [tuple(int(row) if row.is_integer() else row for row in rows) for rows in sets]
        if len(set(sets)) < len(sets):
            return f"if {name}, a set is returned twice: {sets}"
        if expected and set(expected) < set(sets):
            return f"if {name}, a larger set is no smallest one: {sets} instead of {expected}"
        if sets and set(sets) < set(expected):
            return f"if {name}, there is more than one smallest set: {expected}"
        return f"if {name}, {expected} is wanted, not {sets}"
    return None
