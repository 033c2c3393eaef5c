"""Transformer layers and stacks: attention and a feed-forward network around a residual stream.

Source: Vaswani et al. (2017), "Attention Is All You Need", section 3; the order with the norm
first: Xiong et al. (2020). Built by hand in chapters 6 and 7 of the book.
"""

import torch
from torch import Tensor, nn

from attn_lib.layers import Cache, FeedForward, MultiHeadAttention, _check_at_least_one


class TransformerBlock(nn.Module):
    """Attention, then a feed-forward network; each adds its output to what came in.

    With ``norm_first`` a part computes x + part(norm(x)), and nothing ever stands in the way of
    x itself; without, norm(x + part(x)), the order of the paper. Cross-attention, where there is
    any, stands between the two.

    Args:
        d_model: width of the residual stream.
        num_heads: H.
        d_ff: width inside the feed-forward network.
        norm_first: which of the two orders.
        dropout: probability, in training only, of dropping an attention weight, a number inside
            the feed-forward network, and a number of what is added to the stream.
        cross_attention: whether there is a part that looks at ``context``.
        activation: ``"gelu"`` or ``"relu"``.
        eps: added to the variance in each LayerNorm.
        layer_scale: if given, what each part adds to the stream is first multiplied by a learned
            number a channel, which starts at this value.
        attention: passed on to :class:`attn_lib.layers.MultiHeadAttention`, for example
            ``num_kv_heads`` or ``rotary``; not to the cross-attention.

    Raises:
        ValueError: sizes that do not fit; an unknown activation; a dropout outside [0, 1].
        TypeError: sizes that are not integers.

    Example:
        >>> TransformerBlock(6, 3, 24)(torch.zeros(2, 5, 6)).shape
        torch.Size([2, 5, 6])

    Source: Vaswani et al. (2017), sections 3.1 and 5.4; chapter 6. LayerScale: Touvron et al.
    (2021), "Going deeper with Image Transformers", section 2; chapter 8.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        *,
        norm_first: bool = True,
        dropout: float = 0.0,
        cross_attention: bool = False,
        activation: str = "gelu",
        eps: float = 1e-5,
        layer_scale: float | None = None,
        **attention,
    ):
        super().__init__()
        self.norm_first = norm_first
        self.attention = MultiHeadAttention(d_model, num_heads, dropout=dropout, **attention)
        self.attention_norm = nn.LayerNorm(d_model, eps=eps)
        self.cross = self.cross_norm = None
        if cross_attention:
            self.cross = MultiHeadAttention(d_model, num_heads, dropout=dropout)
            self.cross_norm = nn.LayerNorm(d_model, eps=eps)
        self.feed_forward = FeedForward(d_model, d_ff, activation=activation, dropout=dropout)
        self.feed_forward_norm = nn.LayerNorm(d_model, eps=eps)
        self.dropout = nn.Dropout(dropout)

        self.attention_gain = self.cross_gain = self.feed_forward_gain = None
        if layer_scale is not None:
            start = torch.full((d_model,), float(layer_scale))
            self.attention_gain = nn.Parameter(start.clone())
            self.cross_gain = nn.Parameter(start.clone()) if cross_attention else None
            self.feed_forward_gain = nn.Parameter(start.clone())

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        causal: bool = False,
        context_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Args as in :meth:`attn_lib.layers.MultiHeadAttention.forward`.

        Args:
            x: (B, T, d_model).
            context: (B, S, d_model), for a block with cross-attention, and only there.
            mask: who may attend to whom within ``x``.
            bias: added to the scores within ``x``.
            causal: whether ``x`` hides its future.
            context_mask: who may attend to which position of ``context``.
            cache: keys and values of earlier calls.

        Returns:
            (B, T, d_model).

        Raises:
            ValueError: a context without cross-attention, or the reverse; shapes that do not fit.
        """
        if (context is None) != (self.cross is None):
            having = "no" if self.cross is None else "a"
            raise ValueError(
                f"this block has {having} cross-attention: context must be "
                f"{'None' if self.cross is None else '(B, S, d_model)'}"
            )
        if context is None and context_mask is not None:
            raise ValueError("context_mask needs a context")

        def attend(y):
            return self.attention(y, mask=mask, bias=bias, causal=causal, cache=cache)

        def look(y):
            return self.cross(y, context, mask=context_mask, cache=cache)

        x = self._add(x, attend, self.attention_norm, self.attention_gain)
        if self.cross is not None:
            x = self._add(x, look, self.cross_norm, self.cross_gain)
        return self._add(x, self.feed_forward, self.feed_forward_norm, self.feed_forward_gain)

    def _add(self, x: Tensor, part, norm: nn.LayerNorm, gain: Tensor | None) -> Tensor:
        added = part(norm(x) if self.norm_first else x)
        if gain is not None:
            added = added * gain
        x = x + self.dropout(added)
        return x if self.norm_first else norm(x)

    @classmethod
    def from_torch(
        cls, layer: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer
    ) -> "TransformerBlock":
        """A block with the weights of a ``torch.nn.TransformerEncoderLayer`` or ``…DecoderLayer``.

        Args:
            layer: the layer to copy; its order, dropout and mode come along. A decoder layer
                becomes a block with cross-attention; to hide the future is the caller's part.

        Returns:
            A block of its own, batch first whatever ``layer`` is.

        Raises:
            ValueError: an activation other than relu and gelu; a layer without biases.

        Example:
            >>> theirs = nn.TransformerEncoderLayer(6, 3, 24, batch_first=True).eval()
            >>> x = torch.ones(1, 5, 6)
            >>> torch.allclose(TransformerBlock.from_torch(theirs)(x), theirs(x), atol=1e-5)
            True

        Source: ``linear1`` and ``linear2`` are the feed-forward network; ``norm1``, ``norm2`` and,
        in a decoder layer, ``norm3`` belong to the parts in their order.
        """
        if layer.linear1.bias is None:
            raise ValueError("a layer without biases has no counterpart here")
        decodes = isinstance(layer, nn.TransformerDecoderLayer)
        ours = cls(
            layer.linear1.in_features,
            layer.self_attn.num_heads,
            layer.linear1.out_features,
            norm_first=layer.norm_first,
            dropout=layer.dropout.p,
            cross_attention=decodes,
            activation=_activation_name(layer),
            eps=layer.norm1.eps,
        ).to(layer.linear1.weight)
        ours.attention = MultiHeadAttention.from_torch(layer.self_attn)
        if decodes:
            ours.cross = MultiHeadAttention.from_torch(layer.multihead_attn)
        for mine, theirs in zip(ours._plain_parts(), _torch_parts(layer), strict=True):
            mine.load_state_dict(theirs.state_dict())
        return ours.train(layer.training)

    def to_torch(self) -> nn.TransformerEncoderLayer | nn.TransformerDecoderLayer:
        """The same weights as a layer of PyTorch with ``batch_first=True``.

        Returns:
            A layer of its own, in the same mode: a ``torch.nn.TransformerDecoderLayer`` where the
            block has cross-attention, else a ``torch.nn.TransformerEncoderLayer``.

        Raises:
            ValueError: LayerScale, or what ``nn.MultiheadAttention`` cannot express.

        Example:
            >>> TransformerBlock(6, 3, 24, activation="relu").to_torch().linear1.out_features
            24

        Source: as :meth:`from_torch`.
        """
        if self.attention_gain is not None:
            raise ValueError("PyTorch's layers have no LayerScale")
        up = self.feed_forward.up
        kind = nn.TransformerEncoderLayer if self.cross is None else nn.TransformerDecoderLayer
        theirs = kind(
            up.in_features,
            self.attention.num_heads,
            up.out_features,
            dropout=self.dropout.p,
            activation="relu" if isinstance(self.feed_forward.activation, nn.ReLU) else "gelu",
            layer_norm_eps=self.attention_norm.eps,
            norm_first=self.norm_first,
        ).to(up.weight)
        theirs.self_attn = self.attention.to_torch()  # attention alone knows the batch is first
        if self.cross is not None:
            theirs.multihead_attn = self.cross.to_torch()
        for mine, other in zip(self._plain_parts(), _torch_parts(theirs), strict=True):
            other.load_state_dict(mine.state_dict())
        return theirs.train(self.training)

    def _plain_parts(self) -> list[nn.Module]:
        norms = [self.attention_norm, self.cross_norm, self.feed_forward_norm]
        network = [self.feed_forward.up, self.feed_forward.down]
        return network + [norm for norm in norms if norm is not None]


class TransformerEncoder(nn.Module):
    """A stack of blocks, and a last LayerNorm where the blocks have theirs first.

    Args:
        d_model: width of the residual stream.
        num_heads: H.
        d_ff: width inside the feed-forward networks.
        num_layers: number of blocks, at least 1.
        block: passed on to every :class:`TransformerBlock`.

    Raises:
        ValueError: as :class:`TransformerBlock`.
        TypeError: as :class:`TransformerBlock`.

    Example:
        >>> TransformerEncoder(6, 3, 24, num_layers=2)(torch.zeros(2, 5, 6)).shape
        torch.Size([2, 5, 6])

    Source: Vaswani et al. (2017), section 3.1; chapter 6.
    """

    def __init__(self, d_model: int, num_heads: int, d_ff: int, num_layers: int, **block):
        super().__init__()
        _check_at_least_one(num_layers=num_layers)
        self.blocks = nn.ModuleList(
            TransformerBlock(d_model, num_heads, d_ff, **block) for _ in range(num_layers)
        )
        first = self.blocks[0]
        # without it, what leaves a stack that normalises first would never be normalised
        self.norm = (
            nn.LayerNorm(d_model, eps=first.attention_norm.eps)
            if first.norm_first
            else nn.Identity()
        )

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        **options,
    ) -> Tensor:
        """Every block in turn, with the same options as :meth:`TransformerBlock.forward`.

        Args:
            x: (B, T, d_model).
            context: (B, S, d_model) for blocks with cross-attention.
            options: ``mask``, ``bias``, ``causal``, ``context_mask``, ``cache``.

        Returns:
            (B, T, d_model).
        """
        for block in self.blocks:
            x = block(x, context, **options)
        return self.norm(x)


class TransformerDecoder(TransformerEncoder):
    """A stack of blocks that hides the future, each looking at a context as well.

    Args:
        d_model: width of the residual stream.
        num_heads: H.
        d_ff: width inside the feed-forward networks.
        num_layers: number of blocks, at least 1.
        cross_attention: False for a decoder that stands alone, as in a language model.
        block: passed on to every :class:`TransformerBlock`.

    Raises:
        ValueError: as :class:`TransformerBlock`.
        TypeError: as :class:`TransformerBlock`.

    Example:
        >>> decoder = TransformerDecoder(6, 3, 24, num_layers=2)
        >>> decoder(torch.zeros(2, 5, 6), torch.zeros(2, 7, 6)).shape
        torch.Size([2, 5, 6])

    Source: Vaswani et al. (2017), section 3.1; chapter 7.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        num_layers: int,
        *,
        cross_attention: bool = True,
        **block,
    ):
        super().__init__(
            d_model, num_heads, d_ff, num_layers, cross_attention=cross_attention, **block
        )

    def forward(self, x: Tensor, context: Tensor | None = None, **options) -> Tensor:
        """As :meth:`TransformerEncoder.forward`, always with ``causal=True``.

        Args:
            x: (B, T, d_model), after what ``cache`` holds.
            context: (B, S, d_model), unless the decoder stands alone.
            options: ``mask``, ``bias``, ``context_mask``, ``cache``.

        Returns:
            (B, T, d_model); row t depends on the rows up to t, and on all of ``context``.
        """
        return super().forward(x, context, causal=True, **options)


def _activation_name(layer: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer) -> str:
    for name, function, module in (
        ("relu", nn.functional.relu, nn.ReLU),
        ("gelu", nn.functional.gelu, nn.GELU),
    ):
        used = layer.activation
        if used is function or (
            isinstance(used, module)
            and torch.equal(used(torch.linspace(-3, 3, 7)), function(torch.linspace(-3, 3, 7)))
        ):
            return name
    raise ValueError(f"activation must be relu or gelu, got {layer.activation}")


def _torch_parts(layer: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer) -> list[nn.Module]:
    norms = [layer.norm1, layer.norm2, getattr(layer, "norm3", None)]
    return [layer.linear1, layer.linear2] + [norm for norm in norms if norm is not None]
