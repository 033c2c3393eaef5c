"""The attention layer and the feed-forward layer.

The fast path is PyTorch's ``scaled_dot_product_attention``; the tests hold it equal to the
reference, ``attn_lib.attention``. The book's page on many heads builds the attention layer by hand.
"""

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attn_lib._checks import (
    check_at_least_one,
    check_attn_bias,
    check_finite,
    check_flag,
    check_mask,
    check_positive,
    check_probability,
)
from attn_lib.cache import Cache, one_pass
from attn_lib.functional import attention, closed_to_all
from attn_lib.fused import fused_attention
from attn_lib.masks import window_mask

Rotate = Callable[[Tensor, Tensor], Tensor]  # (x, positions) to x, as apply_rope

_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "gelu_tanh": partial(nn.GELU, approximate="tanh"),
    "relu": nn.ReLU,
    "silu": nn.SiLU,
}


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Cut the last axis into heads, and move the heads before the positions.

    A ``view`` alone to (B, H, T, d) would have the same shape, but scramble heads and positions.

    Args:
        x: (B, T, H · d).
        num_heads: H, at least 1.

    Returns:
        (B, H, T, d): head h holds channels h · d to (h + 1) · d of each position.

    Raises:
        ValueError: H below 1, or a width that H does not divide.

    Example:
        >>> split_heads(torch.arange(8).view(1, 2, 4), 2)  # head 0: the first half of each row
        tensor([[[[0, 1],
                  [4, 5]],
        <BLANKLINE>
                 [[2, 3],
                  [6, 7]]]])

    Source: Vaswani et al. (2017), section 3.2.2. Built in the page on many heads.
    """
    *leading, width = x.shape
    if num_heads < 1 or width % num_heads:
        raise ValueError(f"num_heads={num_heads} must divide the width {width}")
    return x.reshape(*leading, num_heads, width // num_heads).transpose(-3, -2)


def merge_heads(x: Tensor) -> Tensor:
    """Undo :func:`split_heads`: put the heads of each position side by side.

    Args:
        x: (B, H, T, d).

    Returns:
        (B, T, H · d).

    Example:
        >>> x = torch.arange(12).view(1, 3, 4)
        >>> torch.equal(merge_heads(split_heads(x, 2)), x)
        True

    Source: Vaswani et al. (2017), section 3.2.2. Built in the page on many heads.
    """
    # (B, H, T, d) to (B, T, H, d) to (B, T, H · d)
    return x.transpose(-3, -2).flatten(-2)


class MultiHeadAttention(nn.Module):
    """concat(head_1, …, head_H) W^O with head_h = attention(x W_h^Q, context W_h^K, context W_h^V).

    The layer returns its output alone; :func:`attn_lib.recording.record_attention`
    gives the weights. Once d_k is given, d_model, H, d_k and d_v are independent of each other.

    Args:
        d_model: width of the input and of the output.
        num_heads: H, the number of query heads.
        d_k: width of a query or key, per head; default d_model / H, which must be whole.
        d_v: width of a value, per head; default d_k.
        d_context: width of ``context``; default d_model.
        num_kv_heads: H_kv, the number of key and value heads, a divisor of H; default H. Query
            head h uses key head h // (H / H_kv).
        scale: multiplies the scores; default 1/sqrt(d_k).
        softcap: bounds the scores, as in :func:`attn_lib.functional.attention_weights`, on a
            slower path that computes the weights explicitly; default: no bound.
        window: number of positions that each query may attend to: its own and those just before
            it. Such a layer is called with ``causal=True``, and a cache keeps no other key.
            Default: no window.
        sinks: whether each head has a sink, a learned score that is one more term of the softmax's
            denominator and has no value: then a query need not spend its weight on any token. A
            recording shows the sink as one more key, before all others. Default False.
        rotate: rotates queries and keys by their positions: (x, positions) to x, as
            :func:`attn_lib.positions.apply_rope`; x is (B, H + H_kv, T, d_k), the queries' heads
            and then the keys'. Positions are counted from 0 on. Default: none is rotated.
        qk_norm: factory ``(heads, d_k) -> nn.Module`` for the norms of queries and of keys, applied
            to (B, ·, heads, d_k) before the rotation; one that needs a single size, such as
            ``nn.RMSNorm``, is given d_k. Default: no norms.
        bias: whether the four projections have a bias; default True.
        dropout: probability of dropping an attention weight, in training only; default 0.

    Raises:
        ValueError: sizes that do not fit; a dropout outside [0, 1]; a scale that is not finite, or
            a softcap that is not positive and finite.
        TypeError: sizes that are not integers, numbers that are none; ``sinks`` that is not True
            or False; ``rotate`` that cannot be called.

    Example:
        >>> layer, x = MultiHeadAttention(6, 3), torch.randn(2, 5, 6)
        >>> q, k, v = (split_heads(p(x), 3) for p in (layer.q_proj, layer.k_proj, layer.v_proj))
        >>> out, weights = attention(q, k, v)
        >>> torch.allclose(layer(x), layer.out_proj(merge_heads(out)), atol=1e-5)
        True

    Source: Vaswani et al. (2017), section 3.2.2; grouped heads: Ainslie et al. (2023); windows:
    Jiang et al. (2023), "Mistral 7B"; sinks: OpenAI (2025), "gpt-oss-120b & gpt-oss-20b Model
    Card", section 2; norms of queries and keys: Henry et al. (2020), "Query-Key Normalization for
    Transformers", and for RMSNorm ``Qwen3Attention`` of the package transformers. Built in the page
    on many heads.
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
        window: int | None = None,
        sinks: bool = False,
        rotate: Rotate | None = None,
        qk_norm: Callable[..., nn.Module] | None = None,
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
        check_flag("sinks", sinks)
        if window is not None:
            check_at_least_one(window=window)
        self.d_model, self.d_context, self.d_k, self.d_v = d_model, d_context, d_k, d_v
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        if scale is not None:
            check_finite("scale", scale)
        if softcap is not None:
            check_positive("softcap", softcap)
        if rotate is not None and not callable(rotate):
            raise TypeError(f"rotate must be a function (x, positions) -> x, got {rotate!r}")
        self.scale = 1.0 / math.sqrt(d_k) if scale is None else scale
        self.softcap, self.window, self.rotate, self.dropout = softcap, window, rotate, dropout
        self.q_proj = nn.Linear(d_model, num_heads * d_k, bias=bias)
        self.k_proj = nn.Linear(d_context, num_kv_heads * d_k, bias=bias)
        self.v_proj = nn.Linear(d_context, num_kv_heads * d_v, bias=bias)
        self.out_proj = nn.Linear(num_heads * d_v, d_model, bias=bias)
        self.q_norm = None if qk_norm is None else _norm_of(qk_norm, num_heads, d_k)
        self.k_norm = None if qk_norm is None else _norm_of(qk_norm, num_kv_heads, d_k)
        self.sinks = nn.Parameter(torch.zeros(num_heads)) if sinks else None

    @one_pass
    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        attn_bias: Tensor | None = None,
        causal: bool = False,
        cache: Cache | None = None,
        layer: int = 0,
    ) -> Tensor:
        """Let the positions of ``x`` attend to those of ``context``.

        Args:
            x: (B, T, d_model), from which the queries are projected.
            context: (B, S, d_context), from which keys and values are projected; default ``x``.
            mask: bool, True = may attend: (T, S), or four axes that broadcast to (B, H, T, S).
                Positions of ``context`` that it closes to every query may hold anything (with a
                ``cache``, their gradient may not).
            attn_bias: added to the scaled scores; shapes as ``mask``. In the dtype of ``x``; under
                autocast in any.
            causal: if True, the queries are the last T of S positions and see no later key.
            cache: keys and values of a sequence that is given piece by piece; the same in every
                call. Without ``context``, those of ``x`` are appended, and S counts them all;
                with it, they are computed once.
            layer: the index of this layer among those that share the cache; a stack counts its own.

        Returns:
            (B, T, d_model); for a query that may attend to nothing, the output projection of
            zeros, which is its bias.

        Raises:
            ValueError: shapes that do not fit; NaN or +inf in ``attn_bias``; a cache of another
                batch, context or layer; a window without ``causal``; a context for a layer that
                rotates or has a window.
            TypeError: a mask that is not bool; an attn_bias of another dtype.
        """
        check_flag("causal", causal)
        self._check_inputs(x, context, causal)
        source = x if context is None else context
        seen = 0 if cache is None or context is not None else cache.length
        B, T, S, closed = x.shape[0], x.shape[1], seen + source.shape[1], None
        if mask is not None:
            check_mask(mask, torch.Size((B, self.num_heads, T, S)), x.device)
            closed = closed_to_all(mask)[..., None]  # (S, 1) or (B, S, 1)
        if closed is not None and cache is None:
            source = source.masked_fill(closed, 0.0)
        q = _normed(split_heads(self.q_proj(x), self.num_heads), self.q_norm)  # (B, H, T, d_k)
        if attn_bias is not None:
            if torch.is_autocast_enabled(x.device.type):
                attn_bias = attn_bias.to(q.dtype)
            check_attn_bias(attn_bias, torch.Size((B, self.num_heads, T, S)), q)
        if cache is not None and context is not None:
            k, v = cache._of_context(layer, context, self._keys_values, self)
        else:
            k, v = self._keys_values(source)  # (B, H_kv, S, d_k), (B, H_kv, S, d_v)
        if self.rotate is not None:
            if cache is None or torch.compiler.is_compiling():
                positions = torch.arange(seen, S, device=x.device)
            else:
                positions = cache._counted(S, x.device)
            both = self.rotate(torch.cat([q, k], dim=1), positions)  # the angles are computed once
            q, k = both[:, : self.num_heads], both[:, self.num_heads :]
        if cache is not None and context is None:
            k, v = cache.append(layer, k, v, owner=self, window=self.window)
            kept = k.shape[2]
            if kept < S:  # the others are outside of every query's window
                last = slice(-kept or S, None)  # all of an axis of size 1
                closed = None if closed is None else closed[..., last, :]
                mask, attn_bias = (t if t is None else t[..., last] for t in (mask, attn_bias))
        if cache is not None and closed is not None and not _harmless(k, v):
            # cleared in this call only: a later query may attend to it
            k, v = (t.masked_fill(closed.unsqueeze(-3), 0.0) for t in (k, v))
        out = self._attend(q, k, v, mask, attn_bias, causal)
        return self.out_proj(merge_heads(out))  # (B, H, T, d_v) to (B, T, d_model)

    def _keys_values(self, source: Tensor) -> tuple[Tensor, Tensor]:
        k = _normed(split_heads(self.k_proj(source), self.num_kv_heads), self.k_norm)
        return k, split_heads(self.v_proj(source), self.num_kv_heads)

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        attn_bias: Tensor | None,
        causal: bool,
    ) -> Tensor:
        """(B, H, T, d_v), by the fused kernel where it can."""
        if self.window is not None:
            T, S = q.shape[2], k.shape[2]
            # an exported graph is for all lengths: its mask is always there
            if torch.compiler.is_compiling() or S > self.window:
                near = window_mask(T, S, window=self.window).to(q.device)
                mask = near if mask is None else mask & near
        if self.sinks is not None:
            k, v, mask, attn_bias = _with_sinks(self.sinks.to(q.dtype), k, v, mask, attn_bias)
        options: dict[str, Any] = {"mask": mask, "attn_bias": attn_bias, "scale": self.scale}
        if self.training:
            options["dropout_p"] = self.dropout
        if self.softcap is None:
            return fused_attention(q, k, v, causal=causal, **options)
        k, v = _repeated(k, q), _repeated(v, q)
        return attention(q, k, v, causal=causal, softcap=self.softcap, **options)[0]

    def _check_inputs(self, x: Tensor, context: Tensor | None, causal: bool) -> None:
        _check_width("x", x, self.d_model)
        if self.window is not None and not causal:
            raise ValueError("a window ends with the token itself: call the layer with causal=True")
        if context is None:
            if self.d_context != self.d_model:
                raise ValueError(f"context must be (batch, length, {self.d_context}), got None")
            return
        if context.dtype == torch.bool:
            raise TypeError("context must be floating point, got bool: pass a mask as mask=…")
        _check_width("context", context, self.d_context)
        if x.shape[0] != context.shape[0]:
            raise ValueError(
                f"x and context must have the same batch size, got {x.shape[0]} "
                f"and {context.shape[0]}"
            )
        if self.rotate is not None or self.window is not None:
            raise ValueError(
                "rotary positions and a window are of one sequence: a layer that has them takes no "
                "context"
            )


class FeedForward(nn.Module):
    """activation(x W_1 + b_1) W_2 + b_2, at each position separately.

    Gated, it is (activation(x W_g + b_g) * (x W_1 + b_1)) W_2 + b_2: with ``"silu"`` SwiGLU, which
    at the same d_ff has half as many parameters again.

    Args:
        d_model: width of the input and of the output.
        d_ff: width of the hidden layer.
        activation: ``"gelu"``, ``"gelu_tanh"`` (its approximation by tanh), ``"relu"`` or
            ``"silu"``.
        gated: whether the activation, of a third projection, multiplies the hidden layer.
        bias: whether the projections have one.
        dropout: dropout on the hidden activations, in training only.

    Raises:
        ValueError: a size below 1; an unknown activation; a dropout outside [0, 1].
        TypeError: sizes that are not integers.

    Example:
        >>> layer, x = FeedForward(d_model=4, d_ff=16, activation="relu"), torch.randn(2, 3, 4)
        >>> torch.allclose(layer(x), layer.down(layer.up(x).clamp(min=0.0)))
        True

    Source: Vaswani et al. (2017), section 3.3; GELU: Hendrycks and Gimpel (2016); gated: Shazeer
    (2020), "GLU Variants Improve Transformer", section 2. Built in the page on the block.
    """

    def __init__(
        self,
        *,
        d_model: int,
        d_ff: int,
        activation: str = "gelu",
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
    ):
        super().__init__()
        check_at_least_one(d_model=d_model, d_ff=d_ff)
        if activation not in _ACTIVATIONS:
            known = ", ".join(_ACTIVATIONS)
            raise ValueError(f"activation must be one of {known}, got {activation!r}")
        check_flag("gated", gated)
        check_probability("dropout", dropout)
        self.up, self.activation = nn.Linear(d_model, d_ff, bias=bias), _ACTIVATIONS[activation]()
        self.gate = nn.Linear(d_model, d_ff, bias=bias) if gated else None
        self.dropout, self.down = nn.Dropout(dropout), nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_model) to (..., d_model)."""
        hidden = self.up(x)
        if self.gate is None:
            hidden = self.activation(hidden)
        else:
            hidden = self.activation(self.gate(x)) * hidden
        return self.down(self.dropout(hidden) if self.training else hidden)


def _check_width(name: str, x: Tensor, width: int) -> None:
    if x.dim() != 3 or x.shape[-1] != width:
        raise ValueError(f"{name} must be (batch, length, {width}), got {tuple(x.shape)}")


def _norm_of(factory: Callable[..., nn.Module], heads: int, d_k: int) -> nn.Module:
    """A norm over d_k, or over (heads, d_k), by what the factory needs."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(factory).parameters.values()
    needed = sum(p.kind in kinds and p.default is p.empty for p in parameters)
    if any(p.kind is p.VAR_POSITIONAL for p in parameters) or needed == 2:
        return factory(heads, d_k)
    if needed != 1:
        raise TypeError(f"qk_norm must be a factory of (heads, d_k), or of d_k, got {factory!r}")
    return factory(d_k)


def _normed(x: Tensor, norm: nn.Module | None) -> Tensor:
    """(B, heads, ·, d_k); the norm sees the heads of a position side by side."""
    return x if norm is None else norm(x.transpose(1, 2)).transpose(1, 2)


def _with_sinks(
    sinks: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, attn_bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """One more key before the others, open to every query: its score is the sink, its value 0."""
    H, S = len(sinks), k.shape[2]
    rest = k.new_zeros(()) if attn_bias is None else attn_bias
    rest = rest[(None,) * (4 - rest.dim())]
    rest = rest.expand(rest.shape[0], H, rest.shape[2], S)
    attn_bias = torch.cat([sinks[:, None, None].expand(*rest.shape[:3], 1), rest], dim=-1)
    if mask is not None:
        mask = F.pad(mask.expand(*mask.shape[:-1], S), (1, 0), value=True)
    k, v = (F.pad(t, (0, 0, 1, 0)) for t in (k, v))
    return k, v, mask, attn_bias


def _repeated(x: Tensor, q: Tensor) -> Tensor:
    """(B, H_kv, S, ·) to (B, H, S, ·): query head h uses key head h // (H / H_kv)."""
    return x.repeat_interleave(q.shape[1] // x.shape[1], dim=1)


def _harmless(k: Tensor, v: Tensor) -> bool:
    """A weight of zero keeps moderate keys and values out; a norm reads them without a copy."""
    # a compiled graph cannot branch on values
    if torch.compiler.is_compiling() or k.device.type == "meta":
        return False
    norm = torch.linalg.vector_norm
    return bool(norm(k.detach()) + norm(v.detach()) < 2.0**50)
