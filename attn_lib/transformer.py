"""Transformer blocks and stacks: attention and a feed-forward network around a residual stream.

Source: Vaswani et al. (2017), "Attention Is All You Need", section 3; the order with the norm
first: Xiong et al. (2020). Built by hand in the page on the block and the page on the encoder and
decoder.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attn_lib._checks import check_at_least_one, check_finite
from attn_lib.cache import Cache, one_pass
from attn_lib.layers import FeedForward, MultiHeadAttention

Norm = Callable[[int], nn.Module]  # d_model to a norm: nn.LayerNorm, partial(nn.RMSNorm, eps=1e-6)


class TransformerBlock(nn.Module):
    """x + sublayer(norm(x)), first for attention, then for the feed-forward network.

    That is pre-norm, the default: the residual stream itself is never normalised. ``norm_at`` puts
    the norm elsewhere. Cross-attention, where there is any, is a third sublayer between the two.

    Args:
        d_model: width of the residual stream.
        num_heads: H, the number of heads.
        d_ff: number of hidden activations of the feed-forward network.
        norm: makes each norm from d_model, and alone decides its eps and whether it has a bias:
            ``nn.LayerNorm``, the default, or ``functools.partial(nn.RMSNorm, eps=1e-6)``.
        norm_at: where it stands: ``"before"``, x + f(norm(x)), the default; ``"after"``,
            norm(x + f(x)), the order of the paper, post-norm; ``"inside"``, x + norm(f(x)), as in
            OLMo 2; ``"both"``, x + norm_2(f(norm(x))), as in Gemma 2.
        dropout: probability, in training only, of dropping an attention weight, a hidden
            activation of the feed-forward network, and a number of a sublayer's output.
        cross_attention: whether there is a sublayer that attends to ``context``.
        activation: as in :class:`attn_lib.layers.FeedForward`.
        gated: as in :class:`attn_lib.layers.FeedForward`.
        layer_scale: if given, each sublayer's output is multiplied by a learned number per
            channel, which starts at this value.
        bias: whether the projections and the feed-forward network have one.
        attention: options of :class:`attn_lib.layers.MultiHeadAttention`, for example
            ``{"num_kv_heads": 2, "rotate": apply_rope}``; not for the cross-attention.

    Raises:
        ValueError: sizes that do not fit; an unknown activation or ``norm_at``; a dropout outside
            [0, 1].
        TypeError: sizes that are not integers.

    Example:
        >>> TransformerBlock(d_model=6, num_heads=3, d_ff=24)(torch.zeros(2, 5, 6)).shape
        torch.Size([2, 5, 6])

    Source: Vaswani et al. (2017), sections 3.1 and 5.4; pre-norm: Xiong et al. (2020); inside: OLMo
    (2025), "2 OLMo 2 Furious", section 3; both: Gemma Team (2024), "Gemma 2", section 2.
    LayerScale: Touvron et al. (2021), "Going deeper with Image Transformers", section 2. Built in
    the page on the block.
    """

    def __init__(
        self,
        *,
        d_model: int,
        num_heads: int,
        d_ff: int,
        norm: Norm = nn.LayerNorm,
        norm_at: str = "before",
        dropout: float = 0.0,
        cross_attention: bool = False,
        activation: str = "gelu",
        gated: bool = False,
        layer_scale: float | None = None,
        bias: bool = True,
        attention: dict[str, Any] | None = None,
    ):
        super().__init__()
        if norm_at not in ("before", "after", "inside", "both"):
            raise ValueError(f"norm_at must be before, after, inside or both, got {norm_at!r}")
        self.norm_at = norm_at
        common: dict[str, Any] = {"dropout": dropout, "bias": bias}
        self.attention = MultiHeadAttention(d_model, num_heads, **{**common, **(attention or {})})
        self.attention_norm = norm(d_model)
        self.cross = self.cross_norm = None
        if cross_attention:
            self.cross = MultiHeadAttention(d_model, num_heads, **common)
            self.cross_norm = norm(d_model)
        network = {**common, "activation": activation, "gated": gated}
        self.feed_forward = FeedForward(d_model=d_model, d_ff=d_ff, **network)
        self.feed_forward_norm = norm(d_model)
        self.dropout = nn.Dropout(dropout)

        self.attention_norm_2 = self.cross_norm_2 = self.feed_forward_norm_2 = None
        if norm_at == "both":
            self.attention_norm_2 = norm(d_model)
            self.cross_norm_2 = norm(d_model) if cross_attention else None
            self.feed_forward_norm_2 = norm(d_model)

        self.attention_gain = self.cross_gain = self.feed_forward_gain = None
        if layer_scale is not None:
            check_finite("layer_scale", layer_scale)
            start = torch.full((d_model,), float(layer_scale))
            self.attention_gain = nn.Parameter(start.clone())
            self.cross_gain = nn.Parameter(start.clone()) if cross_attention else None
            self.feed_forward_gain = nn.Parameter(start.clone())

    @one_pass
    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        attn_bias: Tensor | None = None,
        causal: bool = False,
        context_mask: Tensor | None = None,
        cache: Cache | None = None,
        layer: int = 0,
    ) -> Tensor:
        """The residual stream after this block.

        Args:
            x: (B, T, d_model).
            context: (B, S, d_model), for a block with cross-attention, and only there.
            mask: as in :meth:`attn_lib.layers.MultiHeadAttention.forward`, within ``x``.
            attn_bias: added to the scaled scores within ``x``.
            causal: whether each position of ``x`` attends only to itself and earlier positions;
                default False.
            context_mask: bool, True = may attend: which positions of ``context`` each position of
                ``x`` may attend to.
            cache: keys and values of earlier calls, as in
                :meth:`attn_lib.layers.MultiHeadAttention.forward`.
            layer: the index of this block among those that share the cache; a stack counts its own.

        Returns:
            (B, T, d_model).

        Raises:
            ValueError: a context without cross-attention, or the reverse; shapes that do not fit.
            TypeError: a mask that is not bool; an attn_bias of another dtype.
        """
        if (context is None) != (self.cross is None):
            having, wanted = ("no ", "None") if self.cross is None else ("", "(B, S, d_model)")
            raise ValueError(f"this block has {having}cross-attention: context must be {wanted}")
        if context is None and context_mask is not None:
            raise ValueError("context_mask needs a context")

        norm, before = self.attention_norm, self.norm_at in ("before", "both")
        y = norm(x) if before else x
        y = self.attention(
            y, mask=mask, attn_bias=attn_bias, causal=causal, cache=cache, layer=layer
        )
        x = self._added(x, y, norm, self.attention_norm_2, self.attention_gain)
        if self.cross is not None and self.cross_norm is not None:
            y = self.cross_norm(x) if before else x
            y = self.cross(y, context, mask=context_mask, cache=cache, layer=layer)
            x = self._added(x, y, self.cross_norm, self.cross_norm_2, self.cross_gain)
        norm = self.feed_forward_norm
        y = self.feed_forward(norm(x) if before else x)
        return self._added(x, y, norm, self.feed_forward_norm_2, self.feed_forward_gain)

    def _added(
        self, x: Tensor, y: Tensor, norm: nn.Module, norm_2: nn.Module | None, gain: Tensor | None
    ) -> Tensor:
        """The residual stream after a sublayer has written ``y``."""
        if self.norm_at == "inside":
            y = norm(y)
        elif norm_2 is not None:
            y = norm_2(y)
        y = y if gain is None else y * gain
        x = x + (self.dropout(y) if self.training else y)
        return norm(x) if self.norm_at == "after" else x


class TransformerEncoder(nn.Module):
    """norm(block_L(… block_1(x))): a stack of blocks, and a last norm unless they are post-norm.

    Args:
        d_model: width of the residual stream.
        num_heads: H, the number of heads of each block.
        d_ff: number of hidden activations of each feed-forward network.
        num_layers: number of blocks, at least 1.
        attention: as in :class:`TransformerBlock`, or a function of the block's index, from 0 on,
            that returns it: windows or rotary positions may differ from layer to layer.
        block: the other arguments of every :class:`TransformerBlock`.

    Raises:
        ValueError: as :class:`TransformerBlock`.
        TypeError: as :class:`TransformerBlock`.

    Example:
        >>> encoder = TransformerEncoder(d_model=6, num_heads=3, d_ff=24, num_layers=2)
        >>> encoder(torch.zeros(2, 5, 6)).shape
        torch.Size([2, 5, 6])

    Source: Vaswani et al. (2017), section 3.1; the last norm: Xiong et al. (2020). Built in the
    page on the block.
    """

    def __init__(
        self,
        *,
        d_model: int,
        num_heads: int,
        d_ff: int,
        num_layers: int,
        attention: dict[str, Any] | Callable[[int], dict[str, Any]] | None = None,
        **block: Any,
    ):
        super().__init__()
        check_at_least_one(num_layers=num_layers)
        block |= {"d_model": d_model, "num_heads": num_heads, "d_ff": d_ff}
        options = [attention(i) if callable(attention) else attention for i in range(num_layers)]
        blocks = [TransformerBlock(attention=each, **block) for each in options]
        self.blocks, first = nn.ModuleList(blocks), blocks[0]
        # all but post-norm blocks leave their output unnormalised; normalise once at the end
        last = nn.Identity() if first.norm_at == "after" else copy.deepcopy(first.attention_norm)
        self.norm = last

    @one_pass
    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        cache: Cache | None = None,
        **options: Any,
    ) -> Tensor:
        """Every block after the other, with the same options for each.

        Args:
            x: (B, T, d_model).
            context: (B, S, d_model) for blocks with cross-attention.
            cache: keys and values of earlier calls.
            options: ``mask``, ``attn_bias``, ``causal``, ``context_mask``.

        Returns:
            (B, T, d_model).

        Raises:
            ValueError: a cache where ``causal`` is not given; as :meth:`TransformerBlock.forward`.
        """
        if cache is not None and "causal" not in options:
            raise ValueError(
                "a cache needs causal=True: otherwise earlier tokens would have to attend to later "
                "ones; if that is meant, say causal=False"
            )
        for i, block in enumerate(self.blocks):
            x = block(x, context, cache=cache, layer=i, **options)
        return self.norm(x)


class TransformerDecoder(TransformerEncoder):
    """A stack of causal blocks, each of which attends to a context as well.

    Args:
        d_model: width of the residual stream.
        num_heads: H, the number of heads of each block.
        d_ff: number of hidden activations of each feed-forward network.
        num_layers: number of blocks, at least 1.
        cross_attention: False for a decoder that stands alone, as in a language model.
        block: the other arguments of a :class:`TransformerEncoder`.

    Raises:
        ValueError: as :class:`TransformerBlock`.
        TypeError: as :class:`TransformerBlock`.

    Example:
        >>> decoder = TransformerDecoder(d_model=6, num_heads=3, d_ff=24, num_layers=2)
        >>> decoder(torch.zeros(2, 5, 6), torch.zeros(2, 7, 6)).shape
        torch.Size([2, 5, 6])

    Source: Vaswani et al. (2017), section 3.1; without an encoder: Radford et al. (2019), "Language
    Models are Unsupervised Multitask Learners". Built in the page on the encoder and decoder.
    """

    def __init__(
        self,
        *,
        d_model: int,
        num_heads: int,
        d_ff: int,
        num_layers: int,
        cross_attention: bool = True,
        **block: Any,
    ):
        block |= {"d_model": d_model, "num_heads": num_heads, "d_ff": d_ff}
        super().__init__(num_layers=num_layers, cross_attention=cross_attention, **block)

    def forward(self, x: Tensor, context: Tensor | None = None, **options: Any) -> Tensor:
        """As :meth:`TransformerEncoder.forward`, always with ``causal=True``.

        Args:
            x: (B, T, d_model), the positions that follow those in ``cache``.
            context: (B, S, d_model), unless the decoder has no cross-attention.
            options: ``mask``, ``attn_bias``, ``context_mask``, ``cache``, as in
                :meth:`TransformerBlock.forward`.

        Returns:
            (B, T, d_model); row t depends on the rows up to t, and on all of ``context``.

        Raises:
            ValueError: as :meth:`TransformerBlock.forward`.
            TypeError: as :meth:`TransformerBlock.forward`; a ``causal`` among the options.
        """
        return super().forward(x, context, causal=True, **options)
