"""The next token: temperature and top-p on paper, min-p, bits per byte, a question in a form."""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attn_lib import pretrained
from attn_lib.exercises._verdict import exercise, near, numbers_of, tensor_of
from attn_lib.generation import generate

_FACTS = {
    "Vienna": "Austria",
    "Brussels": "Belgium",
    "Sofia": "Bulgaria",
    "Zagreb": "Croatia",
    "Nicosia": "Cyprus",
    "Copenhagen": "Denmark",
    "Tallinn": "Estonia",
    "Helsinki": "Finland",
    "Paris": "France",
    "Berlin": "Germany",
    "Athens": "Greece",
    "Budapest": "Hungary",
    "Dublin": "Ireland",
    "Rome": "Italy",
    "Riga": "Latvia",
    "Vilnius": "Lithuania",
    "Valletta": "Malta",
    "Warsaw": "Poland",
    "Lisbon": "Portugal",
    "Bucharest": "Romania",
    "Bratislava": "Slovakia",
    "Ljubljana": "Slovenia",
    "Madrid": "Spain",
    "Stockholm": "Sweden",
}
_ENOUGH = 15  # of the 24


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
    """Minus infinity for what has less than min_p times the largest probability."""
    generator = torch.Generator().manual_seed(0)
    cases, right, fault = [], True, None
    for size, tau, limit in ((7, 1.0, 0.3), (11, 2.0, 0.4), (13, 0.5, 0.05), (5, 1.0, 1.0)):
        logits = 2 * torch.randn(size, generator=generator).double()
        given = logits.clone()
        out = tensor_of(answer(given, tau, limit))
        if out.is_complex():
            return "real numbers are wanted, not complex ones"
        out = out.double()
        if not torch.equal(given, logits):
            return "it changed its argument: masked_fill gives a new tensor"
        if out.shape != logits.shape:
            return f"a logit for each of {size} tokens is wanted, not {tuple(out.shape)}"
        if out.isnan().any():
            return "there is NaN: 0 times minus infinity is none; use masked_fill"
        expected = logits.masked_fill(logits < logits.max() + tau * math.log(limit), -math.inf)
        right = right and torch.allclose(out, expected)
        cases.append((logits, tau, limit, out))
        if fault is None and not torch.equal(out == -math.inf, expected == -math.inf):
            count = f"{int((out > -math.inf).sum())} of {size} tokens are kept"
            wanted = int((expected > -math.inf).sum())
            fault = f"for temperature {tau} and min_p {limit}, {count}, {wanted} should be"
    if right:
        return None
    if all(bool((out >= 0).all()) and abs(float(out.sum()) - 1) < 1e-4 for *_, out in cases):
        return "those are probabilities: logits are wanted, minus infinity where a token is cut"
    if fault is None:
        return "right tokens are cut, but the others must keep their logit"
    for said, rule in _RULES.items():
        if all(torch.equal(out > -math.inf, rule(z, tau, m)) for z, tau, m, out in cases):
            return said
    return fault


def _before(p: Tensor) -> Tensor:
    """The probability of all likelier tokens."""
    ordered, order = p.sort(descending=True)
    return torch.zeros_like(p).scatter(0, order, ordered.cumsum(dim=0) - ordered)


def _p(z: Tensor, tau: float) -> Tensor:
    return (z / tau).softmax(dim=-1)


# what else somebody may keep, and what to say: a rule that agrees in every case
_RULES: dict[str, Callable[[Tensor, float, float], Tensor]] = {
    "a token on the bound is kept: it has at least min_p times the best, not more": (
        lambda z, tau, m: z > z.max() + tau * math.log(m)
    ),
    "the bound is min_p times the probability of the best, not min_p itself": (
        lambda z, tau, m: _p(z, tau) >= m
    ),
    "that is top-p: min-p compares each token with the best, and adds nothing up": (
        lambda z, tau, m: _before(_p(z, tau)) < m
    ),
    "the temperature is missing: it multiplies the logarithm of min_p": (
        lambda z, tau, m: z >= z.max() + math.log(m)
    ),
    "the temperature multiplies the logarithm of min_p; it does not divide it": (
        lambda z, tau, m: z >= z.max() + math.log(m) / tau
    ),
    "that compares logits by a factor; a factor of probabilities is a difference of logits": (
        lambda z, tau, m: z >= m * z.max()
    ),
    "min_p is a share of probability: its logarithm is the difference of logits": (
        lambda z, tau, m: z >= z.max() - m
    ),
    "it keeps what should be cut, and cuts what should be kept": (
        lambda z, tau, m: z < z.max() + tau * math.log(m)
    ),
}


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


@exercise("8.4")
def asked(answer: Callable[[str], str]) -> str | None:
    """A prompt after which SmolLM2 names the country of a capital, for 15 of 24."""
    prompts = []
    for city in _FACTS:
        prompt = answer(city)
        if not isinstance(prompt, str):
            return f"the function must return a text, not {type(prompt).__name__}"
        if city not in prompt:
            return f"the prompt for {city} does not name {city}"
        if told := [country for country in _FACTS.values() if country in prompt]:
            return f"the prompt for {city} names {told[0]}: that is no question"
        prompts.append(prompt)
    found = sum(map(str.__contains__, _written(tuple(prompts)), _FACTS.values()))
    if found >= _ENOUGH:
        return None
    marked = "<|im_start|>assistant" in prompts[0]
    if marked and "?" not in prompts[0]:
        hint = "inside the markers somebody asks: put a question there"
    elif marked:
        hint = "try it without a system message, or with another wording"
    elif "?" in prompts[0]:
        hint = "a question that nobody is to answer: add the markers, or examples of answers"
    else:
        hint = "show it by examples what kind of text this is, or ask in the chat template"
    return f"it names the country of {found} of 24, and {_ENOUGH} are wanted; {hint}"


@functools.lru_cache(maxsize=8)
def _written(prompts: tuple[str, ...]) -> list[str]:
    """The greedy continuations of SmolLM2, 12 tokens each."""
    tokenizer = pretrained.smollm2_tokenizer()
    rows = [tokenizer.encode(prompt).ids for prompt in prompts]
    T = max(map(len, rows))
    tokens = torch.tensor([[0] * (T - len(row)) + row for row in rows])
    real = torch.arange(T) >= T - torch.tensor([[len(row)] for row in rows])
    new = generate(_model(), tokens, max_new_tokens=12, mask=real[:, None, None])
    return tokenizer.decode_batch(new[:, T:].tolist())


@functools.cache
def _model() -> torch.nn.Module:
    return pretrained.smollm2()
