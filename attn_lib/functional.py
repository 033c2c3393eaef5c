"""The formula, readable: the reference that everything else is compared with.

``attention_weights`` compares queries with keys, and ``attention`` then mixes the values. The
order is fixed: scale, softcap, attn_bias, mask, softmax, dropout, times V. The layers use
:mod:`attn_lib.fused`, the same formula by PyTorch's kernel.

Source: Vaswani et al. (2017), "Attention Is All You Need", section 3.2.1. Built by hand in
the page on one head; the page on masks and the page on scaling derive the rest.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from attn_lib._checks import (
    check_attn_bias,
    check_device,
    check_flag,
    check_float,
    check_mask,
    check_number,
    check_probability,
)
from attn_lib.masks import causal_mask


def attention_weights(
    q: Tensor,
    k: Tensor,
    *,
    mask: Tensor | None = None,
    attn_bias: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    causal: bool = False,
) -> Tensor:
    """softmax(q kᵀ · scale + attn_bias), over the keys.

    A query that may attend to nothing gets a row of zeros, never NaN and never uniform attention.

    Args:
        q: (..., T, d_k) queries, floating point.
        k: (..., S, d_k) keys; same leading axes, dtype and device as ``q``.
        mask: bool, True = may attend; either two axes that broadcast to (T, S), or as many axes
            as ``q``, that broadcast to (..., T, S). Default: every query attends to every key.
        attn_bias: added to the scaled scores; the same dtype as ``q``, the same shapes as ``mask``.
            ``-inf`` closes a cell, as False does in ``mask``. Default: nothing is added.
        scale: multiplies the scores; default 1/sqrt(d_k).
        softcap: a positive bound: scores become softcap · tanh(scores / softcap). Default: no
            bound.
        causal: if True, query i of T attends to the keys up to position i + S − T: the queries
            are the last T of the S positions. Combined with ``mask`` by AND. Default False.

    Returns:
        (..., T, S) weights in [0, 1], in the dtype of ``q``; rows sum to 1, or to 0 where
        nothing may be attended to. Half precision is computed in float32 inside.

    Raises:
        TypeError: dtypes that are not floating point, or that differ; a mask that is not bool.
        ValueError: shapes or devices that do not fit; NaN or +inf in ``attn_bias`` (under
            ``torch.compile`` such a row becomes NaN instead); a scale that is not finite; a
            softcap that is not positive and finite.

    Example:
        >>> q = torch.tensor([[2.0, 0.0], [0.0, 0.0]])
        >>> k = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 5.0]])
        >>> attention_weights(q, k)
        tensor([[0.6728, 0.1636, 0.1636],
                [0.3333, 0.3333, 0.3333]])
        >>> mask = torch.tensor([[True, True, False], [False, False, False]])
        >>> attention_weights(q, k, mask=mask)
        tensor([[0.8044, 0.1956, 0.0000],
                [0.0000, 0.0000, 0.0000]])

    Source: Vaswani et al. (2017), equation 1, built by hand in the page on one head. The softcap:
    the ``softcap`` attribute of ONNX's ``Attention`` operator.
    """
    _check_inputs(q, k, None, mask, attn_bias, causal)
    with full_precision(q):
        return _weights(q, k, mask, attn_bias, scale, softcap, causal)[0].to(q.dtype)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    attn_bias: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    causal: bool = False,
    dropout_p: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """softmax(q kᵀ · scale + attn_bias) v, and the weights that were used.

    The weights are returned before dropout, so their rows still sum to 1 in training. Keys and
    values that no query may attend to may hold anything, NaN included; a value that only some
    queries may attend to must be finite, because a weight of zero times NaN is NaN.

    Args:
        q: (..., T, d_k) queries.
        k: (..., S, d_k) keys.
        v: (..., S, d_v) values; d_v is free.
        mask: as in :func:`attention_weights`.
        attn_bias: as in :func:`attention_weights`.
        scale: as in :func:`attention_weights`.
        softcap: as in :func:`attention_weights`.
        causal: as in :func:`attention_weights`.
        dropout_p: probability, in [0, 1], of dropping each weight before it multiplies a value.
            There is no training flag: pass 0.0, the default, in evaluation.

    Returns:
        ``(out, weights)``: out (..., T, d_v), each row a weighted average of the rows of
        ``v``; weights (..., T, S). Both in the dtype of ``q``.

    Raises:
        TypeError: as in :func:`attention_weights`, for ``v`` too.
        ValueError: as in :func:`attention_weights`; ``k`` and ``v`` of different lengths or
            leading axes; ``dropout_p`` outside [0, 1].

    Example:
        >>> q = torch.tensor([[2.0, 0.0, 0.0, 0.0]])
        >>> k = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
        >>> attention(q, k, torch.tensor([[10.0], [20.0]]))  # scores 1 and 0
        (tensor([[12.6894]]), tensor([[0.7311, 0.2689]]))

    Source: Vaswani et al. (2017), equation 1, built by hand in the page on one head.
    """
    if has_torch_function((q, k, v)):  # so that a recording sees this call
        options: dict[str, Any] = {"mask": mask, "attn_bias": attn_bias, "scale": scale}
        options |= {"softcap": softcap, "causal": causal, "dropout_p": dropout_p}
        return handle_torch_function(attention, (q, k, v), q, k, v, **options)
    _check_inputs(q, k, v, mask, attn_bias, causal)
    with full_precision(q):
        weights, closed = _weights(q, k, mask, attn_bias, scale, softcap, causal)
        used = _dropped(weights, dropout_p)
        v = at_least_float32(v)
        if closed is None:
            out = used @ v
        else:
            # 0 · NaN is NaN: zero the values that no query may attend to
            out = used @ v.masked_fill(closed.all(dim=-2)[..., None], 0.0)
            out = out.masked_fill(closed.all(dim=-1, keepdim=True), 0.0)
        return out.to(q.dtype), weights.to(q.dtype)


def closed_to_all(mask: Tensor) -> Tensor:
    """(S,) or (B, S): keys that no query of any head may attend to; they may hold anything."""
    attended = mask.any(dim=-2)
    return ~(attended.any(dim=1) if mask.dim() == 4 else attended)


def _weights(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None,
    attn_bias: Tensor | None,
    scale: float | None,
    softcap: float | None,
    causal: bool,
) -> tuple[Tensor, Tensor | None]:
    """(..., T, S) weights in float32 or float64, and the closed cells if there are any."""
    shape = torch.Size((*q.shape[:-1], k.shape[-2]))
    closed = closed_cells(mask, attn_bias, causal, shape, q.device)
    closed = None if closed is None else closed.expand(shape)
    # float32 before the product: q·k of two float16 vectors may overflow float16
    q, k = at_least_float32(q), at_least_float32(k)
    if closed is not None:
        k = k.masked_fill(closed.all(dim=-2)[..., None], 0.0)
    scores = q @ k.mT * _scale(scale, q)
    if softcap is not None:
        scores = _softcapped(scores, softcap)
    if attn_bias is not None:
        scores = scores + attn_bias
    if closed is None:
        return torch.softmax(scores, dim=-1), None
    # the softmax of a row of -inf is NaN, and so is its gradient: keep it finite, then zero it
    empty = closed.all(dim=-1, keepdim=True)
    scores = scores.masked_fill(closed, -math.inf).masked_fill(empty, 0.0)
    return torch.softmax(scores, dim=-1).masked_fill(closed, 0.0), closed


def _scale(scale: float | None, q: Tensor) -> float:
    if scale is None:
        return 1.0 / math.sqrt(q.shape[-1])
    check_number("scale", scale)
    if not abs(scale) <= torch.finfo(q.dtype).max:
        raise ValueError(f"scale must be finite in {q.dtype}, got {scale}")
    return scale


def _softcapped(scores: Tensor, softcap: float) -> Tensor:
    check_number("softcap", softcap)
    limits = torch.finfo(scores.dtype)
    if not limits.tiny <= softcap <= limits.max:
        raise ValueError(
            f"softcap must be positive and finite in {scores.dtype}, at least {limits.tiny:.3g}, "
            f"got {softcap}"
        )
    return softcap * torch.tanh(scores / softcap)


def _dropped(weights: Tensor, dropout_p: float) -> Tensor:
    check_probability("dropout_p", dropout_p)
    return torch.dropout(weights, dropout_p, train=True)


def closed_cells(
    mask: Tensor | None,
    attn_bias: Tensor | None,
    causal: bool,
    shape: torch.Size,
    device: torch.device,
) -> Tensor | None:
    """The cells where a query may not attend, broadcastable to the scores; None if all are open."""
    parts = []
    if mask is not None:
        parts.append(~mask)
    if attn_bias is not None:
        parts.append(attn_bias == -math.inf)
    if causal:
        parts.append(~causal_mask(*shape[-2:]).to(device))
    if not parts:
        return None
    closed = parts[0]
    for part in parts[1:]:
        closed = closed | part
    return closed


def at_least_float32(x: Tensor) -> Tensor:
    """Half precision as float32; anything else as it is."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def full_precision(x: Tensor) -> AbstractContextManager:
    """Switch autocast off: it would compute the products in half precision, whatever the dtype."""
    if x.device.type == "meta":
        return nullcontext()
    return torch.autocast(x.device.type, enabled=False)


def _check_inputs(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    mask: Tensor | None,
    attn_bias: Tensor | None,
    causal: bool,
) -> None:
    for name, x in (("q", q), ("k", k)):
        check_float(name, x)
        if x.dim() < 2:
            raise ValueError(f"{name} must have at least two axes, got shape {tuple(x.shape)}")
    if q.dtype != k.dtype:
        raise TypeError(f"q and k must have the same dtype, got {q.dtype} and {k.dtype}")
    check_device("k", k, q.device)
    if q.shape[-1] != k.shape[-1] or q.shape[-1] == 0:
        raise ValueError(
            f"q and k must share a width d_k of at least 1, got {q.shape[-1]} and {k.shape[-1]}"
        )
    if q.shape[:-2] != k.shape[:-2]:
        raise ValueError(
            "q and k must have the same leading axes, got shapes "
            f"{tuple(q.shape)} and {tuple(k.shape)}"
        )
    if v is not None:
        _check_values(k, v)
    check_flag("causal", causal)
    shape = torch.Size((*q.shape[:-1], k.shape[-2]))
    if mask is not None:
        check_mask(mask, shape, q.device)
    if attn_bias is not None:
        check_attn_bias(attn_bias, shape, q)


def _check_values(k: Tensor, v: Tensor) -> None:
    check_float("v", v)
    check_device("v", v, k.device)
    if v.dtype != k.dtype:
        raise TypeError(f"v must have the dtype of q and k, got {v.dtype} and {k.dtype}")
    if v.dim() != k.dim() or v.shape[:-1] != k.shape[:-1]:
        raise ValueError(
            "v must have one row per key: the shape of k but for the last axis, got "
            f"{tuple(v.shape)} for k {tuple(k.shape)}"
        )
