"""The attention layer and the feed-forward layer.

The fast path is PyTorch's ``scaled_dot_product_attention``; ``attn_lib.attention`` is the
reference that the tests hold it equal to.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from attn_lib._checks import (
    check_at_least_one,
    check_bias,
    check_mask,
    check_probability,
    check_rotary_width,
)
from attn_lib.functional import attention, closed_to_all, fused_attention
from attn_lib.positions import apply_rope

Cache = dict[nn.Module, tuple[Tensor, Tensor, Tensor | None]]
"""Layer to keys and values per head, and the context they were made from (None: of ``x``)."""


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
        >>> split_heads(torch.arange(8).view(1, 2, 4), 2)  # head 0 has the first half of each row
        tensor([[[[0, 1],
                  [4, 5]],
        <BLANKLINE>
                 [[2, 3],
                  [6, 7]]]])

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

    The layer returns its output alone; :func:`attn_lib.recording.record_attention` shows the
    weights. d_model, H, d_k and d_v are independent of each other once d_k is given.

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
        bias: whether the four projections have a bias (not the ``bias`` of :meth:`forward`).
        dropout: probability of dropping an attention weight, in training only.

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
        check_at_least_one(d_model=d_model, num_heads=num_heads, num_kv_heads=num_kv_heads)
        if d_k is None and d_model % num_heads:
            raise ValueError(
                f"d_model={d_model} must be divisible by num_heads={num_heads} unless d_k is given"
            )
        d_k = d_model // num_heads if d_k is None else d_k
        d_v = d_k if d_v is None else d_v
        d_context = d_model if d_context is None else d_context
        check_at_least_one(d_k=d_k, d_v=d_v, d_context=d_context)
        if num_heads % num_kv_heads:
            raise ValueError(f"num_kv_heads={num_kv_heads} must divide num_heads={num_heads}")
        check_probability("dropout", dropout)
        if rotary is not None:
            check_rotary_width(d_k)
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
        """Let the positions of ``x`` attend to those of ``context``.

        Args:
            x: (B, T, d_model).
            context: (B, S, d_context), where keys and values come from; default ``x``.
            mask: bool, True = may attend: (T, S), or four axes that broadcast to (B, H, T, S).
                Positions of ``context`` that it closes to every query may hold anything (with a
                ``cache``, their gradient may not).
            bias: added to the scaled scores; shapes as ``mask``. In the dtype of ``x``; under
                autocast in any.
            causal: if True, the queries are the last T of S positions and see no later key.
            cache: a dict, empty at first and the same in every call, that holds the keys and
                values of a sequence given piece by piece. Without ``context``, those of ``x`` are
                appended, and S counts them all; with it, they are computed once. Entries are
                keyed by layer: a layer used twice needs two caches.

        Returns:
            (B, T, d_model); for a query that may attend to nothing, what ``out_proj`` makes of
            zeros.

        Raises:
            ValueError: shapes that do not fit; NaN or +inf in ``bias``; a cache of another batch
                or context.
            TypeError: a mask that is not bool; a bias of another dtype.
        """
        source, past = x if context is None else context, None
        self._check_inputs(x, source)
        if cache is not None and self in cache:
            past = cache[self]
            self._check_cache(past, x, context)
        seen = 0 if past is None or context is not None else past[0].shape[-2]
        shape = torch.Size((x.shape[0], self.num_heads, x.shape[1], seen + source.shape[1]))
        closed = None
        if mask is not None:
            check_mask(mask, shape, x.device)
            closed = closed_to_all(mask)[..., None]  # (S, 1) or (B, S, 1)
        if cache is None and closed is not None:
            source = source.masked_fill(closed, 0.0)

        q = split_heads(self.q_proj(x), self.num_heads)  # (B, H, T, d_k)
        if past is not None and context is not None:
            k, v = past[:2]
        else:
            k = split_heads(self.k_proj(source), self.num_kv_heads)  # (B, H_kv, S, d_k)
            v = split_heads(self.v_proj(source), self.num_kv_heads)  # (B, H_kv, S, d_v)
            if past is not None:
                k, v = torch.cat([past[0], k], dim=-2), torch.cat([past[1], v], dim=-2)
        if cache is not None:
            cache[self] = (k, v, context)
            if closed is not None:  # in this call only: a later query may attend to it
                k = k.masked_fill(closed.unsqueeze(-3), 0.0)
                v = v.masked_fill(closed.unsqueeze(-3), 0.0)
        if self.rotary is not None:
            q, k = _rotated(q, k, self.rotary)
        group = self.num_heads // self.num_kv_heads
        if group > 1:
            k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        if bias is not None:
            bias = bias.to(q.dtype) if torch.is_autocast_enabled(x.device.type) else bias
            check_bias(bias, shape, q)
        out = self._attend(q, k, v, mask, bias, causal)
        return self.out_proj(merge_heads(out))  # (B, H, T, d_v) to (B, T, d_model)

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        bias: Tensor | None,
        causal: bool,
    ) -> Tensor:
        """(B, H, T, d_v), by the fused kernel where it can."""
        options: dict[str, Any] = {
            "mask": mask,
            "bias": bias,
            "scale": self.scale,
            "causal": causal,
        }
        dropout_p = self.dropout if self.training else 0.0
        if self.softcap is None:
            return fused_attention(q, k, v, dropout_p=dropout_p, **options)
        return attention(q, k, v, softcap=self.softcap, dropout_p=dropout_p, **options)[0]

    def _check_cache(
        self, past: tuple[Tensor, Tensor, Tensor | None], x: Tensor, context: Tensor | None
    ) -> None:
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


class FeedForward(nn.Module):
    """activation(x W_1 + b_1) W_2 + b_2, at each position separately.

    Args:
        d_model: width of the input and of the output.
        d_ff: width of the hidden layer.
        activation: ``"gelu"`` or ``"relu"``.
        dropout: dropout on the hidden activations, in training only.

    Raises:
        ValueError: an unknown activation; a dropout outside [0, 1].

    Example:
        >>> FeedForward(4, 16)(torch.zeros(2, 3, 4)).shape
        torch.Size([2, 3, 4])

    Source: Vaswani et al. (2017), section 3.3.
    """

    def __init__(self, d_model: int, d_ff: int, *, activation: str = "gelu", dropout: float = 0.0):
        super().__init__()
        check_at_least_one(d_model=d_model, d_ff=d_ff)
        known = {"gelu": nn.GELU, "relu": nn.ReLU}
        if activation not in known:
            raise ValueError(f"activation must be one of {', '.join(known)}, got {activation!r}")
        check_probability("dropout", dropout)
        self.up, self.activation = nn.Linear(d_model, d_ff), known[activation]()
        self.dropout, self.down = nn.Dropout(dropout), nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_model) to (..., d_model)."""
        return self.down(self.dropout(self.activation(self.up(x))))


def _rotated(q: Tensor, k: Tensor, base: float) -> tuple[Tensor, Tensor]:
    """Rotary positions: the queries are the last T of the S positions."""
    T, S = q.shape[-2], k.shape[-2]
    positions = torch.arange(max(S, T), device=q.device)
    rotated_q = apply_rope(q, positions[positions.numel() - T :], base=base)
    return rotated_q, apply_rope(k, positions[positions.numel() - S :], base=base)
