"""The attention layer and the feed-forward layer, and a way to look at the weights of a model.

The fast path is PyTorch's ``scaled_dot_product_attention``; ``attn_lib.attention`` is the
reference that the tests hold it equal to.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attn_lib.functional import _check_mask, _closed, attention, attention_weights
from attn_lib.masks import _check_sizes
from attn_lib.positions import apply_rope

Cache = dict[nn.Module, tuple[Tensor, Tensor, Tensor | None]]
"""Layer to keys and values per head, and the context they were made from (None: of ``x``)."""

_recorders: list[tuple[dict[nn.Module, str], dict[str, Tensor]]] = []


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Cut the last axis into heads, and bring the heads before the positions.

    A ``view`` alone to (B, H, T, d) would have the same shape and scramble heads and positions.

    Args:
        x: (B, T, H · d).
        num_heads: H.

    Returns:
        (B, H, T, d).

    Raises:
        ValueError: a width that H does not divide.

    Example:
        >>> split_heads(torch.arange(4).view(1, 1, 4), 2).flatten().tolist()
        [0, 1, 2, 3]

    Source: Vaswani et al. (2017), section 3.2.2.
    """
    if num_heads < 1 or x.shape[-1] % num_heads:
        raise ValueError(f"num_heads={num_heads} must divide the width {x.shape[-1]}")
    return x.unflatten(-1, (num_heads, x.shape[-1] // num_heads)).transpose(-3, -2)


def merge_heads(x: Tensor) -> Tensor:
    """Undo :func:`split_heads`.

    Args:
        x: (B, H, T, d).

    Returns:
        (B, T, H · d).

    Example:
        >>> x = torch.arange(12).view(1, 3, 4)
        >>> torch.equal(merge_heads(split_heads(x, 2)), x)
        True

    Source: Vaswani et al. (2017), section 3.2.2.
    """
    return x.transpose(-3, -2).flatten(-2)


class MultiHeadAttention(nn.Module):
    """concat(head_1, …, head_H) W^O with head_h = attention(x W_h^Q, context W_h^K, context W_h^V).

    The layer returns its output alone; :func:`record_attention` shows the weights. d_model, H, d_k
    and d_v are independent of each other once d_k is given.

    Args:
        d_model: width of the input and of the output.
        num_heads: H, number of query heads.
        d_k: width of a query or key; default d_model / H, which must be whole.
        d_v: width of a value; default d_k.
        d_context: width of ``context``; default d_model.
        num_kv_heads: number of key and value heads, a divisor of H; default H. Query head h uses
            key head h // (H / num_kv_heads).
        scale: multiplies the scores; default 1/sqrt(d_k).
        softcap: if given, bounds the scores, as in
            :func:`attn_lib.functional.attention_weights`; takes the slower, explicit path.
        rotary: if given, the base of rotary positions; key s stands at s, and the queries are
            the last T of the S positions.
        bias: whether the four projections add a learned constant.
        dropout: probability of dropping a weight, in training only.

    Raises:
        ValueError: sizes that do not fit; a dropout outside [0, 1].
        TypeError: sizes that are not integers.

    Example:
        >>> layer = MultiHeadAttention(4, 8, d_k=64, d_v=32)
        >>> layer(torch.zeros(2, 5, 4)).shape
        torch.Size([2, 5, 4])

    Source: Vaswani et al. (2017), section 3.2.2; grouped heads: Ainslie et al. (2023).
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        d_k: int | None = None,
        d_v: int | None = None,
        d_context: int | None = None,
        num_kv_heads: int | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        rotary: float | None = None,
        bias: bool = True,
        dropout: float = 0.0,
    ):
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        _check_at_least_one(d_model=d_model, num_heads=num_heads, num_kv_heads=num_kv_heads)
        if d_k is None and d_model % num_heads:
            raise ValueError(
                f"d_model={d_model} must be divisible by num_heads={num_heads} unless d_k is given"
            )
        d_k = d_model // num_heads if d_k is None else d_k
        d_v = d_k if d_v is None else d_v
        d_context = d_model if d_context is None else d_context
        _check_at_least_one(d_k=d_k, d_v=d_v, d_context=d_context)
        if num_heads % num_kv_heads:
            raise ValueError(f"num_kv_heads={num_kv_heads} must divide num_heads={num_heads}")
        if not 0.0 <= dropout <= 1.0:
            raise ValueError(f"dropout must be in [0, 1], got {dropout}")
        if rotary is not None and d_k % 2:
            raise ValueError(f"rotary positions need an even width d_k, got {d_k}")
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.d_k, self.d_v = d_k, d_v
        self.scale = 1.0 / math.sqrt(d_k) if scale is None else scale
        self.softcap, self.rotary, self.dropout = softcap, rotary, dropout
        self.q_proj = nn.Linear(d_model, num_heads * d_k, bias=bias)
        self.k_proj = nn.Linear(d_context, num_kv_heads * d_k, bias=bias)
        self.v_proj = nn.Linear(d_context, num_kv_heads * d_v, bias=bias)
        self.out_proj = nn.Linear(num_heads * d_v, d_model, bias=bias)

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        causal: bool = False,
        cache: Cache | None = None,
    ) -> Tensor:
        """Let the positions of ``x`` look at those of ``context``.

        Args:
            x: (B, T, d_model).
            context: (B, S, d_context), where keys and values come from; default ``x``.
            mask: bool, True = may attend: (T, S), or four axes that broadcast to (B, H, T, S).
                Positions of ``context`` that it closes to every query may hold anything (with a
                ``cache``, their gradient may not).
            bias: added to the scaled scores; shapes as ``mask``. In the dtype of ``x``; under
                autocast in any.
            causal: if True, the queries are the last T of S positions and see no later key.
            cache: a dict, empty at first and the same in every call, that holds what a sequence
                given piece by piece has shown so far. Without ``context``, the keys and values
                of ``x`` are appended, and S counts them all; with it, they are made once. It
                belongs to one forward pass through each layer at a time: a layer that a model
                uses twice needs two.

        Returns:
            (B, T, d_model); for a query that may attend to nothing, what ``out_proj`` makes of
            zeros.

        Raises:
            ValueError: shapes that do not fit; NaN or +inf in ``bias``; a cache of another batch
                or context.
            TypeError: a mask that is not bool; a bias of another dtype.
        """
        self._check_inputs(x, x if context is None else context)
        q = split_heads(self.q_proj(x), self.num_heads)  # (B, H, T, d_k)
        k, v = self._keys_values(q, x, context, mask, cache)
        if bias is not None and torch.is_autocast_enabled(x.device.type):
            bias = bias.to(q.dtype)
        if self.rotary is not None:
            q, k = _turned(q, k, self.rotary)
        group = self.num_heads // self.num_kv_heads
        if group > 1:
            k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        options = {"mask": mask, "bias": bias, "scale": self.scale, "causal": causal}
        for names, maps in _recorders:
            if self in names:
                with torch.no_grad():
                    maps[names[self]] = attention_weights(q, k, softcap=self.softcap, **options)
        dropout_p = self.dropout if self.training else 0.0
        if self.softcap is None:
            out = _fast_attention(q, k, v, dropout_p=dropout_p, **options)
        else:
            out = attention(q, k, v, softcap=self.softcap, dropout_p=dropout_p, **options)[0]
        return self.out_proj(merge_heads(out))

    def _keys_values(self, q, x, context, mask, cache) -> tuple[Tensor, Tensor]:
        """(B, H_kv, S, ·) keys and values, from the cache what it has."""
        source = x if context is None else context
        past = None if cache is None else cache.get(self)
        if past is not None:
            self._check_cache(past, x, context)
        S = source.shape[1] + (past[0].shape[-2] if past is not None and context is None else 0)
        closed = None
        if mask is not None:
            _check_mask(mask, q, torch.Size((*q.shape[:-1], S)))
            closed = _closed_to_all(mask)[..., None]  # (S, 1) or (B, S, 1)
        if cache is None and closed is not None:
            source = source.masked_fill(closed, 0.0)
        if past is None or context is None:
            k = split_heads(self.k_proj(source), self.num_kv_heads)
            v = split_heads(self.v_proj(source), self.num_kv_heads)
            if past is not None:
                k, v = torch.cat([past[0], k], dim=-2), torch.cat([past[1], v], dim=-2)
        else:
            k, v, _ = past
        if cache is not None:
            cache[self] = (k, v, context)
            if closed is not None:  # in this call only: a later query may see it
                closed = closed.unsqueeze(-3)
                k, v = k.masked_fill(closed, 0.0), v.masked_fill(closed, 0.0)
        return k, v

    def _check_cache(self, past, x: Tensor, context: Tensor | None) -> None:
        k, _, seen = past
        if context is not seen:
            raise ValueError("the cache was filled with another context: start with an empty one")
        if k.shape[0] != x.shape[0]:
            raise ValueError(
                f"x and cache must have one batch size, got {x.shape[0]} and {k.shape[0]}"
            )

    def _check_inputs(self, x: Tensor, context: Tensor) -> None:
        for name, tensor, width in (
            ("x", x, self.q_proj.in_features),
            ("context", context, self.k_proj.in_features),
        ):
            if tensor.dim() != 3 or tensor.shape[-1] != width:
                raise ValueError(
                    f"{name} must be (batch, length, {width}), got {tuple(tensor.shape)}"
                )
        if x.shape[0] != context.shape[0]:
            raise ValueError(
                f"x and context must have one batch size, got {x.shape[0]} and {context.shape[0]}"
            )

    @classmethod
    def from_torch(cls, layer: nn.MultiheadAttention) -> "MultiHeadAttention":
        """A layer with the weights of a ``torch.nn.MultiheadAttention``.

        Args:
            layer: the layer to copy; its dropout and its mode, training or not, come along.

        Returns:
            A layer of its own, batch first whatever ``layer`` is.

        Raises:
            ValueError: ``kdim`` differs from ``vdim``; ``bias_k`` or ``add_zero_attn`` is used.

        Example:
            >>> theirs = nn.MultiheadAttention(4, 2, batch_first=True)
            >>> x = torch.ones(1, 3, 4)
            >>> ours = MultiHeadAttention.from_torch(theirs)
            >>> torch.allclose(ours(x), theirs(x, x, x)[0], atol=1e-6)
            True

        Source: the layout of ``in_proj_weight``: queries, keys, values, in this order.
        """
        if layer.kdim != layer.vdim:
            raise ValueError(
                f"keys and values of one width are needed, got kdim={layer.kdim} and "
                f"vdim={layer.vdim}"
            )
        if layer.bias_k is not None or layer.add_zero_attn:
            raise ValueError("add_bias_kv and add_zero_attn have no counterpart here")
        ours = cls(
            layer.embed_dim,
            layer.num_heads,
            d_context=layer.kdim,
            bias=layer.in_proj_bias is not None,
            dropout=layer.dropout,
        ).to(layer.out_proj.weight)
        with torch.no_grad():
            for mine, theirs in zip(ours._projections(), _torch_projections(layer), strict=True):
                for name, value in theirs.items():
                    getattr(mine, name).copy_(value)
        return ours.train(layer.training)

    def to_torch(self) -> nn.MultiheadAttention:
        """The same weights as a ``torch.nn.MultiheadAttention`` with ``batch_first=True``.

        Returns:
            A layer of its own, in the same mode.

        Raises:
            ValueError: what PyTorch's layer cannot express: widths of a head other than
                d_model / H, grouped heads, another scale, softcap, rotary positions.

        Example:
            >>> MultiHeadAttention(4, 2).to_torch().num_heads
            2

        Source: as :meth:`from_torch`.
        """
        d_model = self.q_proj.in_features
        plain = (
            self.d_k == self.d_v == d_model / self.num_heads
            and self.num_kv_heads == self.num_heads
            and self.scale == 1.0 / math.sqrt(self.d_k)
            and self.softcap is None
            and self.rotary is None
        )
        if not plain:
            raise ValueError(
                "nn.MultiheadAttention needs d_k = d_v = d_model / num_heads, as many key heads, "
                "the default scale, and neither softcap nor rotary positions"
            )
        theirs = nn.MultiheadAttention(
            d_model,
            self.num_heads,
            dropout=self.dropout,
            bias=self.q_proj.bias is not None,
            kdim=self.k_proj.in_features,
            vdim=self.v_proj.in_features,
            batch_first=True,
        ).to(self.out_proj.weight)
        with torch.no_grad():
            for mine, views in zip(self._projections(), _torch_projections(theirs), strict=True):
                for name, view in views.items():
                    view.copy_(getattr(mine, name))
        return theirs.train(self.training)

    def _projections(self) -> list[nn.Linear]:
        return [self.q_proj, self.k_proj, self.v_proj, self.out_proj]


class FeedForward(nn.Module):
    """activation(x W_1 + b_1) W_2 + b_2, for each position alone.

    Args:
        d_model: width of the input and of the output.
        d_ff: width in between.
        activation: ``"gelu"`` or ``"relu"``.
        dropout: probability of dropping a number in between, in training only.

    Raises:
        ValueError: an unknown activation; a dropout outside [0, 1].

    Example:
        >>> FeedForward(4, 16)(torch.zeros(2, 3, 4)).shape
        torch.Size([2, 3, 4])

    Source: Vaswani et al. (2017), section 3.3.
    """

    def __init__(self, d_model: int, d_ff: int, *, activation: str = "gelu", dropout: float = 0.0):
        super().__init__()
        _check_at_least_one(d_model=d_model, d_ff=d_ff)
        known = {"gelu": nn.GELU, "relu": nn.ReLU}
        if activation not in known:
            raise ValueError(f"activation must be one of {', '.join(known)}, got {activation!r}")
        if not 0.0 <= dropout <= 1.0:
            raise ValueError(f"dropout must be in [0, 1], got {dropout}")
        self.up, self.activation = nn.Linear(d_model, d_ff), known[activation]()
        self.dropout, self.down = nn.Dropout(dropout), nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_model) to (..., d_model)."""
        return self.down(self.dropout(self.activation(self.up(x))))


@contextmanager
def record_attention(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Inside the ``with`` block, keep the weights of every attention layer of a model.

    The output of the model does not change, not by one bit: the weights are computed beside it,
    from the very queries, keys, mask and bias.

    Args:
        model: a module that holds :class:`MultiHeadAttention` layers, or is one.

    Yields:
        Name of the layer in ``model`` to (B, H, T, S) weights of its latest call, before
        dropout, detached. A model that is itself a layer has the name ``""``.

    Example:
        >>> layer = MultiHeadAttention(4, 2)
        >>> with record_attention(layer) as maps:
        ...     out = layer(torch.zeros(1, 3, 4))
        >>> maps[""].shape
        torch.Size([1, 2, 3, 3])

    Source: weights obtained from a second forward pass, or kept after dropout, mislead.
    """
    names = {m: n for n, m in model.named_modules() if isinstance(m, MultiHeadAttention)}
    recorder = (names, {})
    _recorders.append(recorder)
    try:
        yield recorder[1]
    finally:
        _recorders[:] = [other for other in _recorders if other is not recorder]


def _turned(q: Tensor, k: Tensor, base: float) -> tuple[Tensor, Tensor]:
    """Rotary positions: the queries are the last T of the S positions."""
    T, S = q.shape[-2], k.shape[-2]
    places = torch.arange(max(S, T), device=q.device)
    turned_q = apply_rope(q, places[places.numel() - T :], base=base)
    return turned_q, apply_rope(k, places[places.numel() - S :], base=base)


def _fast_attention(q, k, v, *, mask, bias, scale, causal, dropout_p) -> Tensor:
    """PyTorch's fused function, with our conventions; everything is (B, H, ·, ·)."""
    T, S, d_v = q.shape[-2], k.shape[-2], v.shape[-1]
    allowed = None
    if mask is not None or bias is not None or (causal and T != S):
        # one combined mask: kernels disagree about a mask together with is_causal
        closed = _closed(q, mask, bias, causal, torch.Size((*q.shape[:-1], S)))
        allowed, causal = ~closed if bias is None else bias.masked_fill(closed, -math.inf), False
    # unequal widths would fall to the slow kernel: the narrower one is padded with zeros
    width = max(q.shape[-1], d_v)
    q, k, v = (F.pad(t, (0, width - t.shape[-1])) if t.shape[-1] < width else t for t in (q, k, v))
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=allowed, dropout_p=dropout_p, is_causal=causal, scale=scale
    )
    return out[..., :d_v]


def _closed_to_all(mask: Tensor) -> Tensor:
    """(S,) or (B, S): positions that no query of any head may see."""
    seen = mask.any(dim=-2)
    return ~(seen.any(dim=1) if mask.dim() == 4 else seen)


def _torch_projections(layer: nn.MultiheadAttention) -> list[dict[str, Tensor]]:
    """Views of the queries', keys', values' and output's weight and bias, ours by theirs."""
    if layer.in_proj_weight is not None:
        weights = layer.in_proj_weight.chunk(3)
    else:
        weights = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    views = [{"weight": weight} for weight in (*weights, layer.out_proj.weight)]
    if layer.in_proj_bias is not None:
        for view, bias in zip(
            views, (*layer.in_proj_bias.chunk(3), layer.out_proj.bias), strict=True
        ):
            view["bias"] = bias
    return views


def _check_at_least_one(**sizes: int) -> None:
    _check_sizes(**sizes)
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
