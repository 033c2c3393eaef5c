"""Whole models: from tokens to scores for the next token, and writing with them.

Source: Vaswani et al. (2017), "Attention Is All You Need", section 3. Built by hand in chapter 7
of the book.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attn_lib.layers import Cache, _check_at_least_one
from attn_lib.masks import _check_sizes
from attn_lib.positions import LearnedPositions
from attn_lib.transformer import TransformerDecoder, TransformerEncoder


class Transformer(nn.Module):
    """An encoder that reads one sequence and a decoder that writes another.

    Each side has its own vocabulary and its own learned positions. Filler takes no position, so
    that it may stand on either side.

    Args:
        source_size: number of tokens that can be read.
        target_size: number of tokens that can be written.
        max_len: longest sequence of either kind, filler not counted.
        d_model: width of the residual streams.
        num_heads: H.
        d_ff: width inside the feed-forward networks.
        num_layers: number of blocks in the encoder, and again in the decoder.
        dropout: as in a block, and on what enters the first one.
        block: passed on to every :class:`attn_lib.transformer.TransformerBlock`.

    Raises:
        ValueError: as :class:`attn_lib.transformer.TransformerBlock`.
        TypeError: as :class:`attn_lib.transformer.TransformerBlock`.

    Example:
        >>> model = Transformer(11, 7, 5, d_model=6, num_heads=3, d_ff=24, num_layers=2)
        >>> source, target = torch.tensor([[10, 3, 4, 1]]), torch.tensor([[0, 6]])
        >>> model(source, target).shape
        torch.Size([1, 2, 7])

    Source: Vaswani et al. (2017), figure 1, with learned positions; chapter 7.
    """

    def __init__(
        self,
        source_size: int,
        target_size: int,
        max_len: int,
        d_model: int,
        num_heads: int,
        d_ff: int,
        num_layers: int,
        *,
        dropout: float = 0.0,
        **block,
    ):
        super().__init__()
        block = {**block, "dropout": dropout}
        self.encoder = TransformerEncoder(d_model, num_heads, d_ff, num_layers, **block)
        self.decoder = TransformerDecoder(d_model, num_heads, d_ff, num_layers, **block)
        self.source = _Embedding(source_size, max_len, d_model, dropout)
        self.target = _Embedding(target_size, max_len, d_model, dropout)
        self.output = nn.Linear(d_model, target_size)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        *,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
    ) -> Tensor:
        """Scores for what follows each token of ``target``.

        Args:
            source: (B, S) integers below ``source_size``.
            target: (B, T) integers below ``target_size``.
            source_mask: (B, 1, 1, S) bool, True = no filler.
            target_mask: (B, 1, 1, T) bool, True = no filler.

        Returns:
            (B, T, target_size) logits; row t knows ``source`` and the first t + 1 of ``target``.

        Raises:
            ValueError: tokens or masks out of range or shape; more tokens than ``max_len``.
            TypeError: tokens that are not integers; a mask that is not bool.
        """
        context = self.encode(source, mask=source_mask)
        return self.decode(target, context, mask=target_mask, context_mask=source_mask)

    def encode(self, source: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """(B, S) tokens and their (B, 1, 1, S) mask to (B, S, d_model): the decoder's context."""
        return self.encoder(self.source(source, mask), mask=mask)

    def decode(
        self,
        target: Tensor,
        context: Tensor,
        *,
        mask: Tensor | None = None,
        context_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Logits (B, T, target_size) for what follows each token of ``target``.

        Args:
            target: (B, T) integers, after what ``cache`` holds.
            context: (B, S, d_model) from :meth:`encode`.
            mask: (B, 1, 1, all tokens so far) bool, True = no filler.
            context_mask: (B, 1, 1, S) bool, True = no filler.
            cache: keys and values of earlier calls; empty at first.
        """
        x = self.target(target, mask, _seen(cache, self.decoder))
        x = self.decoder(x, context, mask=mask, context_mask=context_mask, cache=cache)
        return self.output(x)


class DecoderLM(nn.Module):
    """A decoder alone: from the tokens so far, scores for the next one.

    Args:
        vocab_size: number of tokens.
        max_len: longest sequence, filler not counted.
        d_model: width of the residual stream.
        num_heads: H.
        d_ff: width inside the feed-forward networks.
        num_layers: number of blocks.
        dropout: as in a block, and on what enters the first one.
        block: passed on to every :class:`attn_lib.transformer.TransformerBlock`.

    Raises:
        ValueError: as :class:`attn_lib.transformer.TransformerBlock`.
        TypeError: as :class:`attn_lib.transformer.TransformerBlock`.

    Example:
        >>> model = DecoderLM(11, 5, d_model=6, num_heads=3, d_ff=24, num_layers=2)
        >>> model(torch.tensor([[10, 3, 4]])).shape
        torch.Size([1, 3, 11])

    Source: Radford et al. (2019), "Language Models are Unsupervised Multitask Learners", for the
    order with the norm first and learned positions; chapter 7.
    """

    def __init__(
        self,
        vocab_size: int,
        max_len: int,
        d_model: int,
        num_heads: int,
        d_ff: int,
        num_layers: int,
        *,
        dropout: float = 0.0,
        **block,
    ):
        super().__init__()
        block = {**block, "dropout": dropout, "cross_attention": False}
        self.decoder = TransformerDecoder(d_model, num_heads, d_ff, num_layers, **block)
        self.embedding = _Embedding(vocab_size, max_len, d_model, dropout)
        self.output = nn.Linear(d_model, vocab_size)

    def forward(
        self, tokens: Tensor, *, mask: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        """Scores for what follows each token.

        Args:
            tokens: (B, T) integers below ``vocab_size``, after what ``cache`` holds.
            mask: (B, 1, 1, all tokens so far) bool, True = no filler.
            cache: keys and values of earlier calls; empty at first.

        Returns:
            (B, T, vocab_size) logits; row t knows the tokens up to t.

        Raises:
            ValueError: tokens or mask out of range or shape; more tokens than ``max_len``.
            TypeError: tokens that are not integers; a mask that is not bool.
        """
        x = self.embedding(tokens, mask, _seen(cache, self.decoder))
        return self.output(self.decoder(x, mask=mask, cache=cache))


@torch.no_grad()
def generate(
    model: Callable[..., Tensor],
    tokens: Tensor,
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    mask: Tensor | None = None,
    end: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Write on: append one token at a time, each chosen by the scores that the last ones gave.

    Every step computes the newest token alone; keys and values of the others are cached.

    Args:
        model: called as ``model(tokens, mask=…, cache=…)``, returns (B, T, vocabulary) logits: a
            :class:`DecoderLM` or, with its context filled in by ``functools.partial``, the
            ``decode`` of a :class:`Transformer`. In which mode it runs is the caller's to say.
        tokens: (B, T) integers, T at least 1: where each row starts.
        max_new_tokens: how many to append, at least 0.
        temperature: 0 takes the best token; above, tokens are drawn with probability
            softmax(logits / temperature).
        mask: (B, 1, 1, T) bool, True = no filler. Rows of unequal length are filled up on the
            *left*: the last token must be real.
        end: a row that has written this token writes nothing else after it.
        generator: of the random draws; default PyTorch's global one.

    Returns:
        (B, T + max_new_tokens) integers.

    Raises:
        ValueError: no token to start from; filler at the end of a row; a negative
            ``max_new_tokens``; a temperature that is negative or not finite.
        TypeError: ``max_new_tokens`` that is not an integer.

    Example:
        >>> def count(tokens, mask=None, cache=None):  # a model: the next token is one more
        ...     return torch.nn.functional.one_hot((tokens + 1) % 5, 5).float()
        >>> generate(count, torch.tensor([[0], [3]]), max_new_tokens=3, end=4)
        tensor([[0, 1, 2, 3],
                [3, 4, 4, 4]])

    Source: chapter 7, which builds it without and with the cache.
    """
    _check_sizes(max_new_tokens=max_new_tokens)
    if tokens.dim() != 2 or tokens.shape[1] == 0:
        raise ValueError(f"tokens must be (B, T) with T at least 1, got {tuple(tokens.shape)}")
    if not 0.0 <= temperature < math.inf:
        raise ValueError(f"temperature must be at least 0 and finite, got {temperature}")
    if mask is not None and not mask[..., -1].all():
        raise ValueError("the last token of every row must be real: put filler on the left")
    cache, new = {}, tokens
    ended = torch.zeros_like(tokens[:, :1], dtype=torch.bool)  # (B, 1)
    for _ in range(max_new_tokens):
        logits = model(new, mask=mask, cache=cache)[:, -1]  # (B, vocabulary)
        if temperature == 0.0:
            new = logits.argmax(dim=-1, keepdim=True)
        else:
            below = logits - logits.amax(dim=-1, keepdim=True)  # no overflow in the division
            weights = (below / temperature).softmax(dim=-1)
            new = torch.multinomial(weights, 1, generator=generator)
        if end is not None:
            new = new.masked_fill(ended, end)
            ended = ended | (new == end)
        tokens = torch.cat([tokens, new], dim=1)
        if mask is not None:
            mask = F.pad(mask, (0, 1), value=True)
    return tokens


class _Embedding(nn.Module):
    """(B, T) tokens and their places to (B, T, d_model); filler takes no place."""

    def __init__(self, vocab_size: int, max_len: int, d_model: int, dropout: float):
        super().__init__()
        _check_at_least_one(vocab_size=vocab_size, max_len=max_len)
        self.vectors = nn.Embedding(vocab_size, d_model)
        nn.init.normal_(self.vectors.weight, std=0.02)  # as large as the places
        self.places, self.dropout = LearnedPositions(max_len, d_model), nn.Dropout(dropout)

    def forward(self, tokens: Tensor, mask: Tensor | None, seen: int = 0) -> Tensor:
        self._check(tokens, mask, seen)
        T = tokens.shape[1]
        if mask is None:
            positions = torch.arange(seen, seen + T, device=tokens.device)
        else:
            real_so_far = mask[:, 0, 0].cumsum(dim=-1)  # (B, seen + T)
            positions = (real_so_far - 1).clamp(min=0)[:, seen:]
        return self.dropout(self.places(self.vectors(tokens), positions))

    def _check(self, tokens: Tensor, mask: Tensor | None, seen: int) -> None:
        if tokens.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"tokens must be integers, int64 or int32, got {tokens.dtype}")
        if tokens.dim() != 2:
            raise ValueError(f"tokens must be (B, T), got {tuple(tokens.shape)}")
        size = self.vectors.num_embeddings
        # a compiled graph cannot look at values
        if not torch.compiler.is_compiling() and tokens.numel():
            low, high = tokens.min().item(), tokens.max().item()
            if low < 0 or high >= size:
                raise ValueError(f"tokens must be 0 to {size - 1}, got {low} to {high}")
        B, T = tokens.shape
        if mask is not None and mask.dtype != torch.bool:
            raise TypeError(f"mask must be bool, True = no filler, got {mask.dtype}")
        if mask is not None and mask.shape != (B, 1, 1, seen + T):
            raise ValueError(
                f"mask must be (B, 1, 1, {seen + T}) with B={B}, got {tuple(mask.shape)}"
            )


def _seen(cache: Cache | None, decoder: TransformerDecoder) -> int:
    """How many tokens a cache holds."""
    past = None if cache is None else cache.get(decoder.blocks[0].attention)
    return 0 if past is None else past[0].shape[-2]
