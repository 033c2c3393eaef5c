"""Text from a language model, one token at a time.

Source: Holtzman et al. (2019), "The Curious Case of Neural Text Degeneration".
"""

import math
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attn_lib._checks import check_number, check_sizes
from attn_lib.cache import Cache


def generate(
    model: Callable[..., Tensor],
    tokens: Tensor,
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_p: float | None = None,
    mask: Tensor | None = None,
    end: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Append one token at a time, each chosen by the logits that follow the tokens so far.

    Every step computes the newest token alone; keys and values of the others are cached. It stops
    early when every row has written ``end``.

    Args:
        model: called as ``model(tokens, mask=…, cache=…)``, returns (B, T, vocabulary) logits: a
            :class:`attn_lib.models.DecoderLM` or, with its context filled in by
            ``functools.partial``, the ``decode`` of a :class:`attn_lib.models.Transformer`. In
            evaluation mode.
        tokens: (B, T) integers, T at least 1: where each row starts.
        max_new_tokens: how many to append at most, at least 0.
        temperature: 0 takes the best token; above, tokens are drawn with probability
            softmax(logits / temperature).
        top_p: if given, draw only among the most probable tokens that together have at least
            this probability, in (0, 1].
        mask: (B, 1, 1, T) bool, True = a real token. Rows of unequal length are padded on the
            *left*: the last token must be real.
        end: a row that has written this token writes nothing else after it.
        generator: of the random draws; default PyTorch's global one.

    Returns:
        (B, at most T + max_new_tokens) integers.

    Raises:
        ValueError: no token to start from; padding that is not on the left; a negative
            ``max_new_tokens``; a temperature that is negative or not finite; a ``top_p`` outside
            (0, 1], or with a temperature of 0; a model in training mode, or with too small a
            ``max_len``; a largest logit that is NaN or infinite; a model that uses a layer twice.
        TypeError: ``max_new_tokens`` or ``end`` that is not an integer.

    Example:
        >>> def count(tokens, mask=None, cache=None):  # a model: the next token is one more
        ...     return torch.nn.functional.one_hot((tokens + 1) % 5, 5).float()
        >>> generate(count, torch.tensor([[0], [3]]), max_new_tokens=3, end=4)
        tensor([[0, 1, 2, 3],
                [3, 4, 4, 4]])

    Source: Holtzman et al. (2019), "The Curious Case of Neural Text Degeneration", for ``top_p``.
    Used in the page on the next token.
    """
    _check_start(model, tokens, mask, max_new_tokens)
    if end is not None:
        check_sizes(end=end)
    _check_choice(temperature, top_p)
    cache, new, written = Cache(), tokens, [tokens]
    ended = torch.zeros_like(tokens[:, :1], dtype=torch.bool)  # (B, 1)
    with torch.inference_mode():
        for length in range(tokens.shape[1], tokens.shape[1] + max_new_tokens):
            logits = model(new, mask=mask, cache=cache)[:, -1]  # (B, vocabulary)
            if cache.length not in (0, length):
                raise ValueError(
                    f"the cache holds {cache.length} tokens after {length} were given: "
                    "the model uses a layer twice; call its layers through one TransformerDecoder"
                )
            new = _chosen(logits, temperature, top_p, generator)
            if end is not None:
                new = new.masked_fill(ended, end)
                ended = ended | (new == end)
            written.append(new)
            if end is not None and bool(ended.all()):
                break
            if mask is not None:
                mask = F.pad(mask, (0, 1), value=True)
    return torch.cat(written, dim=1)  # a tensor like any other: gradients may flow past it


def _check_start(
    model: Callable[..., Tensor], tokens: Tensor, mask: Tensor | None, max_new_tokens: int
) -> None:
    check_sizes(max_new_tokens=max_new_tokens)
    if tokens.dim() != 2 or tokens.shape[1] == 0:
        raise ValueError(f"tokens must be (B, T) with T at least 1, got {tuple(tokens.shape)}")
    if mask is not None and not (mask[..., -1].all() and (mask[..., :-1] <= mask[..., 1:]).all()):
        raise ValueError(
            "each row must end with its real tokens, side by side: put the padding on the left"
        )
    called = getattr(model, "func", model)  # of functools.partial
    module = getattr(called, "__self__", called)  # of a method
    if not isinstance(module, nn.Module):
        return
    if module.training:
        raise ValueError("the model is in training mode: call model.eval() first")
    real = tokens.shape[1] if mask is None else max(mask.sum(dim=-1).flatten().tolist(), default=0)
    max_len = getattr(module, "max_len", None)
    max_len = math.inf if max_len is None else max_len
    if max_new_tokens and real + max_new_tokens - 1 > max_len:
        raise ValueError(
            f"{real} tokens and max_new_tokens={max_new_tokens} need a model with max_len of at "
            f"least {real + max_new_tokens - 1}, got {max_len}"
        )


def _check_choice(temperature: float, top_p: float | None) -> None:
    check_number("temperature", temperature)
    if not 0.0 <= temperature <= sys.float_info.max:
        raise ValueError(f"temperature must be at least 0 and finite, got {temperature}")
    if top_p is None:
        return
    check_number("top_p", top_p)
    if not 0.0 < top_p <= 1.0:
        raise ValueError(f"top_p must be in (0, 1], got {top_p}")
    if temperature == 0.0:
        raise ValueError("top_p needs a temperature above 0: at 0 the best token is taken")


def _chosen(
    logits: Tensor, temperature: float, top_p: float | None, generator: torch.Generator | None
) -> Tensor:
    """(B, vocabulary) to (B, 1)."""
    best, token = logits.max(dim=1, keepdim=True)  # NaN counts as larger than any number
    if not all(math.isfinite(logit) for logit in best.flatten().tolist()):
        raise ValueError("the model's logits must be finite, got NaN or infinity")
    if temperature == 0.0:
        return token
    weights = ((logits - best).double() / temperature).softmax(dim=1)  # no overflow
    if top_p is not None:
        ordered, order = weights.sort(descending=True)
        before = ordered.cumsum(dim=1) - ordered  # of the more probable ones
        weights = weights.masked_fill((before >= top_p).gather(1, order.argsort()), 0.0)
    return torch.multinomial(weights, 1, generator=generator)
