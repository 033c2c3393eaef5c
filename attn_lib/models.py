"""Whole models: two that write token by token, and one that maps a sentence to a vector.

Source: Vaswani et al. (2017), "Attention Is All You Need", section 3. Built by hand in the page
on the encoder and decoder.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attn_lib._checks import (
    check_at_least_one,
    check_finite,
    check_flag,
    check_indices,
    check_no_cross_attention,
    check_positive,
)
from attn_lib._embedding import Embedding, check_tokens
from attn_lib.cache import Cache, one_pass
from attn_lib.masks import padding_mask
from attn_lib.positions import LearnedPositions
from attn_lib.transformer import TransformerDecoder, TransformerEncoder


class Transformer(nn.Module):
    """An encoder that reads one sequence and a decoder that writes another.

    Each side has its own vocabulary and its own learned positions. Padding does not advance the
    position, so sequences may be padded on either side.

    Args:
        source_vocab_size: number of tokens that can be read.
        target_vocab_size: number of tokens that can be written.
        max_len: length of the longest sequence of either kind, in tokens, padding not counted.
        d_model: width of the residual streams.
        num_heads: H, the number of heads of each block.
        d_ff: number of hidden activations of each feed-forward network.
        num_layers: number of blocks in the encoder, and again in the decoder.
        dropout: as in a block, and on the embeddings.
        block: the other arguments of every :class:`attn_lib.transformer.TransformerBlock`.

    Raises:
        ValueError: as :class:`attn_lib.transformer.TransformerBlock`.
        TypeError: as :class:`attn_lib.transformer.TransformerBlock`.

    Example:
        >>> sizes = {"d_model": 6, "num_heads": 3, "d_ff": 24, "num_layers": 2}
        >>> model = Transformer(source_vocab_size=11, target_vocab_size=7, max_len=5, **sizes)
        >>> source, target = torch.tensor([[10, 3, 4, 1]]), torch.tensor([[0, 6]])
        >>> logits = model(source, target)
        >>> logits.shape
        torch.Size([1, 2, 7])
        >>> torch.allclose(logits[:, :1], model(source, target[:, :1]), atol=1e-5)  # causal
        True

    Source: Vaswani et al. (2017), figure 1; learned positions: Gehring et al. (2017). Built in the
    page on the encoder and decoder.
    """

    def __init__(
        self,
        *,
        source_vocab_size: int,
        target_vocab_size: int,
        max_len: int,
        d_model: int,
        num_heads: int,
        d_ff: int,
        num_layers: int,
        dropout: float = 0.0,
        **block: Any,
    ):
        super().__init__()
        block |= {"num_heads": num_heads, "d_ff": d_ff, "num_layers": num_layers}
        common: dict[str, Any] = {"d_model": d_model, "dropout": dropout}
        self.max_len = max_len
        self.encoder = TransformerEncoder(**common, **block)
        self.decoder = TransformerDecoder(**common, **block)
        self.source = Embedding(vocab_size=source_vocab_size, max_len=max_len, **common)
        self.target = Embedding(vocab_size=target_vocab_size, max_len=max_len, **common)
        self.output = nn.Linear(d_model, target_vocab_size)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        *,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
    ) -> Tensor:
        """Logits for what follows each token of ``target``.

        Args:
            source: (B, S) integers below ``source_vocab_size``.
            target: (B, T) integers below ``target_vocab_size``.
            source_mask: (B, 1, 1, S) bool, True = a real token; default: all are real.
            target_mask: (B, 1, 1, T) bool, True = a real token; default: all are real.

        Returns:
            (B, T, target_vocab_size) logits; row t depends on ``source`` and on the tokens of
            ``target`` up to t.

        Raises:
            ValueError: tokens out of range; tokens or masks of another shape; more real tokens
                than ``max_len``.
            TypeError: tokens that are not integers; a mask that is not bool.
        """
        context = self.encode(source, mask=source_mask)
        return self.decode(target, context, mask=target_mask, context_mask=source_mask)

    def encode(self, source: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """The decoder's context: what the encoder makes of the source.

        Args:
            source: (B, S) integers below ``source_vocab_size``.
            mask: (B, 1, 1, S) bool, True = a real token; default: all are real.

        Returns:
            (B, S, d_model); rows of padding mean nothing.

        Raises:
            ValueError: as :meth:`forward`.
            TypeError: as :meth:`forward`.
        """
        return self.encoder(self.source(source, mask), mask=mask)

    @one_pass
    def decode(
        self,
        target: Tensor,
        context: Tensor,
        *,
        mask: Tensor | None = None,
        context_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Logits for what follows each token of ``target``, given the encoder's output.

        Args:
            target: (B, T) integers below ``target_vocab_size``, the tokens that follow those in
                ``cache``.
            context: (B, S, d_model) from :meth:`encode`.
            mask: (B, 1, 1, all tokens so far) bool, True = a real token.
            context_mask: (B, 1, 1, S) bool, True = a real token.
            cache: keys and values of earlier calls.
        """
        x = self.target(target, mask, 0 if cache is None else cache.length)
        x = self.decoder(x, context, mask=mask, context_mask=context_mask, cache=cache)
        return self.output(x)


class DecoderLM(nn.Module):
    """A decoder without an encoder: from the tokens so far, logits for the next one.

    Args:
        vocab_size: number of tokens in the vocabulary.
        max_len: length of the longest sequence, in tokens, padding not counted; None for a model
            without learned positions, which gets them from its blocks, such as rotary ones.
        d_model: width of the residual stream.
        num_heads: H, the number of heads of each block.
        d_ff: number of hidden activations of each feed-forward network.
        num_layers: number of blocks.
        tied: whether the output's matrix is that of the embedding; the output then has no bias.
            Untied, it has one where the blocks have.
        embedding_scale: multiplies the tokens' vectors, sqrt(d_model) in the paper and in Gemma;
            default 1.
        logit_softcap: a bound c: logits become c · tanh(logits / c). Default: no bound.
        dropout: as in a block, and on the embeddings.
        attention: options of each block's attention layer, or a function of the block's index, as
            in :class:`attn_lib.transformer.TransformerEncoder`.
        block: the other arguments of every :class:`attn_lib.transformer.TransformerBlock`.

    Raises:
        ValueError: as :class:`attn_lib.transformer.TransformerBlock`; a ``logit_softcap`` that is
            not positive.
        TypeError: as :class:`attn_lib.transformer.TransformerBlock`.

    Example:
        >>> sizes = {"d_model": 6, "num_heads": 3, "d_ff": 24, "num_layers": 2}
        >>> model = DecoderLM(vocab_size=11, max_len=5, **sizes)
        >>> model(torch.tensor([[10, 3, 4]])).shape
        torch.Size([1, 3, 11])
        >>> from attn_lib.positions import apply_rope
        >>> today = {"norm": nn.RMSNorm, "gated": True, "activation": "silu", "bias": False}
        >>> heads = {"d_k": 4, "num_kv_heads": 1, "rotate": apply_rope}
        >>> today |= {"max_len": None, "tied": True, "attention": heads}
        >>> model = DecoderLM(vocab_size=11, **today, **sizes)
        >>> sum(p.numel() for p in model.parameters())  # 66 + 2 · (6 + 192 + 6 + 432) + 6
        1344

    Source: Radford et al. (2019), "Language Models are Unsupervised Multitask Learners", section
    2.3, for pre-norm blocks and learned positions; tied: Press and Wolf (2017), "Using the Output
    Embedding to Improve Language Models"; the other parts together: Touvron et al. (2023), "LLaMA",
    section 2.2, and Gemma Team (2024), "Gemma 2", section 2. Built in the page on the language
    model.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        max_len: int | None,
        d_model: int,
        num_heads: int,
        d_ff: int,
        num_layers: int,
        tied: bool = False,
        embedding_scale: float = 1.0,
        logit_softcap: float | None = None,
        dropout: float = 0.0,
        attention: dict[str, Any] | Callable[[int], dict[str, Any]] | None = None,
        **block: Any,
    ):
        super().__init__()
        check_no_cross_attention("DecoderLM", block)
        check_flag("tied", tied)
        check_finite("embedding_scale", embedding_scale)
        if logit_softcap is not None:
            check_positive("logit_softcap", logit_softcap)
        bias, self.max_len, self.logit_softcap = block.get("bias", True), max_len, logit_softcap
        common: dict[str, Any] = {"d_model": d_model, "dropout": dropout}
        block |= {"num_heads": num_heads, "d_ff": d_ff, "num_layers": num_layers}
        block |= {"attention": attention, "cross_attention": False}
        self.decoder = TransformerDecoder(**common, **block)
        self.embedding = Embedding(
            vocab_size=vocab_size, max_len=max_len, scale=embedding_scale, **common
        )
        self.output = None if tied else nn.Linear(d_model, vocab_size, bias=bias)

    @one_pass
    def forward(
        self, tokens: Tensor, *, mask: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        """Logits for what follows each token.

        Args:
            tokens: (B, T) integers below ``vocab_size``, after what ``cache`` holds.
            mask: (B, 1, 1, all tokens so far) bool, True = a real token.
            cache: keys and values of earlier calls.

        Returns:
            (B, T, vocab_size) logits; row t depends on the tokens up to t.

        Raises:
            ValueError: tokens out of range; tokens or a mask of another shape; more real tokens
                than ``max_len``.
            TypeError: tokens that are not integers; a mask that is not bool.
        """
        x = self.embedding(tokens, mask, 0 if cache is None else cache.length)
        x = self.decoder(x, mask=mask, cache=cache)
        if self.output is None:
            logits = F.linear(x, self.embedding.vectors.weight)
        else:
            logits = self.output(x)
        if self.logit_softcap is None:
            return logits
        return self.logit_softcap * torch.tanh(logits / self.logit_softcap)


class SentenceEncoder(nn.Module):
    """An encoder that reads a sentence; the mean of its tokens' vectors represents the sentence.

    Word, position and segment embeddings are added and normalised; post-norm blocks follow, as in
    BERT. :func:`attn_lib.pretrained.minilm` is one with trained weights.

    Args:
        vocab_size: number of tokens that can be read.
        max_len: length of the longest sentence, in tokens.
        d_model: width of the residual stream.
        num_heads: H, the number of heads of each block.
        d_ff: number of hidden activations of each feed-forward network.
        num_layers: number of blocks.
        eps: added to the variance in each LayerNorm; default 1e-12, as in BERT.
        tokenizer: what :meth:`encode` splits texts with: ``tokenizer.encode(text).ids`` is the
            list of a text's tokens; default: none, and only tokens can be read.

    Raises:
        ValueError: as :class:`attn_lib.transformer.TransformerBlock`.
        TypeError: as :class:`attn_lib.transformer.TransformerBlock`.

    Example:
        >>> model = SentenceEncoder(
        ...     vocab_size=7, max_len=5, d_model=6, num_heads=3, d_ff=24, num_layers=2
        ... )
        >>> mask = padding_mask(torch.tensor([3, 1]), 3)
        >>> out = model(torch.tensor([[3, 1, 4], [2, 0, 0]]), mask=mask)
        >>> alone = model(torch.tensor([[2]]))  # the second row, unpadded
        >>> torch.allclose(out[1, :1], alone[0], atol=1e-5)
        True

    Source: Devlin et al. (2019), "BERT", section 3; Reimers and Gurevych (2019), "Sentence-BERT".
    Built in the page on the real encoder.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        max_len: int,
        d_model: int,
        num_heads: int,
        d_ff: int,
        num_layers: int,
        eps: float = 1e-12,
        tokenizer: Any = None,
    ):
        super().__init__()
        check_at_least_one(vocab_size=vocab_size, max_len=max_len)
        self.words = nn.Embedding(vocab_size, d_model)
        self.positions = LearnedPositions(max_len=max_len, d_model=d_model)
        self.segment = nn.Parameter(torch.zeros(d_model))
        self.norm = nn.LayerNorm(d_model, eps=eps)
        self.encoder = TransformerEncoder(
            num_layers=num_layers,
            d_model=d_model,
            num_heads=num_heads,
            d_ff=d_ff,
            norm=partial(nn.LayerNorm, eps=eps),
            norm_at="after",
        )
        self.tokenizer = tokenizer

    def embed(self, tokens: Tensor) -> Tensor:
        """What the first block receives: word, position and segment embeddings, normalised.

        Args:
            tokens: (..., T) integers below ``vocab_size``, T at most ``max_len``.

        Returns:
            (..., T, d_model).

        Raises:
            ValueError: tokens out of range; more than ``max_len`` of them.
            TypeError: tokens that are not integers.
        """
        check_indices("tokens", tokens, self.words.num_embeddings)
        max_len = len(self.positions.table)
        if tokens.shape[-1] > max_len:
            raise ValueError(
                f"a sentence must have at most {max_len} tokens, got {tokens.shape[-1]}"
            )
        return self.norm(self.positions(self.words(tokens)) + self.segment)

    def forward(self, tokens: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """A vector for each token, computed from the whole sentence.

        As in BERT, padding has positions too: it stands after the end of each row.

        Args:
            tokens: (B, T) integers below ``vocab_size``, T at most ``max_len``; padding may be any
                token.
            mask: (B, 1, 1, T) bool, True = a real token; default: all are real.

        Returns:
            (B, T, d_model); rows of padding mean nothing.

        Raises:
            ValueError: tokens out of range; tokens or a mask of another shape; more than
                ``max_len`` tokens.
            TypeError: tokens that are not integers; a mask that is not bool.
        """
        check_tokens(tokens, mask)
        return self.encoder(self.embed(tokens), mask=mask)

    @torch.no_grad()
    def encode(self, texts: list[str]) -> Tensor:
        """One vector for each text: the mean over its tokens, [CLS] and [SEP] included.

        Args:
            texts: at least one text, each of at most ``max_len`` tokens; none is truncated.

        Returns:
            (len(texts), d_model), rows of length 1: the product of two rows is their cosine
            similarity.

        Raises:
            ValueError: a model without a tokenizer; no text, or one that is too long.
            TypeError: a single string in place of a list.
        """
        if self.tokenizer is None:
            raise ValueError("to encode texts, the model needs a tokenizer")
        if isinstance(texts, str):
            raise TypeError("texts must be a list of strings, got one string")
        if not texts:
            raise ValueError("texts must hold at least one text, got none")
        rows = [torch.tensor(self.tokenizer.encode(text).ids) for text in texts]
        lengths = torch.tensor([len(row) for row in rows])
        if not lengths.all():
            empty = texts[int(lengths.argmin())]
            raise ValueError(f"a text must have at least one token, got none for {empty!r}")
        tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        mask = padding_mask(lengths, tokens.shape[1])
        padding = ~mask[:, 0, 0, :, None]  # (B, T, 1)
        mean = self(tokens, mask=mask).masked_fill(padding, 0.0).sum(dim=1) / lengths[:, None]
        return nn.functional.normalize(mean, dim=-1)
