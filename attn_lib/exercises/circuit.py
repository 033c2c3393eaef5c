"""Circuits: what an induction head predicts, a mask against one word, a score, and a rival."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attn_lib.exercises._verdict import (
    differs,
    exercise,
    near,
    numbers_of,
    one_number,
    tensor_of,
)


@exercise("10.1")
def shares_by_hand(answer: Any) -> str | None:
    """Shares of dax, wug, lop after "dax wug lop dax wug dax lop wug dax"."""
    given = numbers_of(answer)
    if len(given) != 3:
        return f"there are three words, so three shares are wanted, not {len(given)}"
    for numbers, fault in (
        ((0, 2 / 3, 1 / 3), None),
        ((1, 0, 0), "that is what earlier copies of this word are; ask what followed them"),
        ((0, 1 / 3, 2 / 3), "wug followed twice and lop once"),
        ((0, 1 / 2, 1 / 2), "that is what came before the earlier ones; ask what came after them"),
        ((1 / 3, 1 / 3, 1 / 3), "that is the second word after each; take the first"),
        ((4 / 9, 3 / 9, 2 / 9), "that counts all words; count only those just after a dax"),
        ((0, 1, 0), "that is the likeliest word alone, or the word before this one; give shares"),
    ):
        if near(given, numbers):
            return fault
    if not math.isclose(sum(given), 1, abs_tol=0.02):
        return "shares sum to 1"
    return "mark the dax at 0, 3 and 5, and look at the word after each"


@exercise("10.2")
def broken_for_one_word(answer: Callable[[Tensor, int], Tensor]) -> str | None:
    """The causal mask of layer 1 where no word reads the given one straight before it."""
    generator = torch.Generator().manual_seed(0)
    for T, states in ((8, 2), (12, 3), (9, 3)):
        text = torch.randint(states, (T,), generator=generator)
        word = int(text[T // 2])
        out = tensor_of(answer(text.clone(), word))
        if out.dtype != torch.bool:
            return f"a mask is a bool tensor, not {out.dtype}"
        if out.shape != (T, T):
            return f"for {T} words the shape is {tuple(out.shape)} instead of {(T, T)}"
        place = torch.arange(T)
        causal, gap = place <= place[:, None], place[:, None] - place
        key, query = text == word, (text == word)[:, None]
        after = torch.cat([torch.zeros(1).bool(), key[:-1]])  # a key that came after the word
        closed = causal & (gap == 1) & key
        if torch.equal(out, causal & ~closed):
            continue
        for wrong, fault in (
            (~causal | closed, "the mask is inverted: True means may attend"),
            (causal, "nothing is closed: this is the causal mask"),
            (
                causal & (gap != 1),
                "that breaks it for every word: close only keys that are this one",
            ),
            (
                causal & ~((gap == 1) & query),
                "that is what this word reads before it; who reads it straight after?",
            ),
            (causal & ~((gap == 2) & key), "that is the second word after it, one too far"),
            (causal & ~((gap == 0) & key), "that closes the word to itself; who comes after it?"),
            (
                causal & ~(query & after),
                "that is what the second layer looks for; the first has to write it before",
            ),
        ):
            if torch.equal(out, wrong):
                return fault
        if (out & ~causal).any():
            return "it opens the future: a word may attend to a later one"
        if (out & closed).any():
            return "some word can still read this one straight before it, and tell the second layer"
        return "it closes more than it has to: only the word straight after loses one key"
    return None


def _mass(weights: Tensor, tokens: Tensor, back: int, *, itself: bool = False) -> Tensor:
    """Mean weight on s where token s - back, an earlier one, is the query's, if there is any."""
    T = len(tokens)
    s, t = torch.arange(T), torch.arange(T)[:, None]
    earlier = (s - back >= 0) & (s - back < t + itself) & (s <= t)
    keys = earlier & (tokens[(s - back).clamp(0, T - 1)] == tokens[t])
    return (weights * keys).sum(-1)[keys.any(-1)].mean()


@exercise("10.3")
def induction_score(answer: Callable[[Tensor, Tensor], Any]) -> str | None:
    """The mean weight on what followed earlier occurrences of the query's token."""
    generator = torch.Generator().manual_seed(0)
    for T, states in ((12, 3), (9, 4), (20, 6)):
        tokens = torch.randint(states, (T,), generator=generator)
        scores = torch.randn(T, T, generator=generator)
        above = torch.ones(T, T).triu(1).bool()
        weights = scores.masked_fill(above, -math.inf).softmax(-1)
        given = one_number(answer(weights.clone(), tokens.clone()))
        right = _mass(weights, tokens, 1)
        if abs(given - right) < 1e-4:
            continue
        has = sum(bool((tokens[:t] == tokens[t]).any()) for t in range(T))
        for wrong, fault in (
            (weights.diagonal(-1).mean(), "that is the score of a previous-token head"),
            (weights.diagonal(-1).sum() / T, "that is the score of a previous-token head"),
            (_mass(weights, tokens, 0), "that is attention to the same token; what followed it?"),
            (
                _mass(weights, tokens, 0, itself=True),
                "that is attention to the same token; what followed it?",
            ),
            (_mass(weights, tokens, 2), "it is off by one: this is the second token after"),
            (_mass(weights, tokens, -1), "it is off by one: this is the token before"),
            (right * has / T, "take the mean only over queries whose token occurred earlier"),
        ):
            if abs(given - wrong) < 1e-4:
                return fault
        return f"for {T} tokens the score is {right:.3f}, not {given:.3f}"
    return None


def _counted(text: Tensor, states: int, *, words: int = 2, start: float = 1.0) -> Tensor:
    """Of each position from 1 on: what followed its last words so far."""
    rows, seen = [], text.tolist()
    for t in range(1, len(seen)):
        counts = [start] * states
        for s in range(words, t + 1):
            if seen[s - words : s] == seen[t - words + 1 : t + 1]:
                counts[seen[s]] += 1
        rows.append([c / sum(counts) if sum(counts) else 1 / states for c in counts])
    return torch.tensor(rows)


@exercise("10.4")
def rival_of_three_layers(answer: Callable[[Tensor, int], Tensor]) -> str | None:
    """Counts of what followed each pair of words, from one on."""
    generator = torch.Generator().manual_seed(0)
    for T, states in ((40, 3), (25, 2), (7, 4)):
        text = torch.randint(states, (T,), generator=generator)
        out = answer(text.clone(), states)
        right = _counted(text, states)
        fault = differs(out, right)
        if not fault:
            continue
        out = tensor_of(out)
        if out.shape != right.shape:
            return fault
        ahead = torch.cat([right[1:], right[-1:]])
        late = torch.cat([torch.full((1, states), 1 / states), right[:-1]])
        for wrong, said in (
            (_counted(text, states, words=1), "that is the bigram: it uses one word, not two"),
            (_counted(text, states, words=3), "it uses three words, not two"),
            (_counted(text, states, start=0.0), "start every count at one"),
            (_counted(text, states, start=0.5), "start every count at one"),
            (ahead, "it is one word ahead: row 0 belongs to the second word"),
            (late, "it is one word late: row 0 belongs to the second word"),
        ):
            if not differs(out, wrong):
                return said
        if not torch.allclose(out.double().sum(-1), torch.ones(len(out)).double(), atol=1e-4):
            return "each row holds probabilities, which sum to 1"
        row = int((out - right).abs().amax(-1).argmax())
        return f"row {row} is wrong: use what followed this pair up to there, and nothing later"
    return None
