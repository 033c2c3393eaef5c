"""Attention without the softmax: one matrix, the state, in place of a cache that grows.

Each token writes its key and value into the state, and its query reads the state: S is (d_k, d_v)
for each head, however long the text. The functions take all tokens at once or a few at a time:
they return the state, which the next call takes.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attn_lib._checks import check_at_least_one, check_bool, check_device, check_finite, check_float
from attn_lib.functional import at_least_float32, full_precision

_FORGOTTEN = -800.0  # exp of it is 0 in float64 too, and sums of it can be subtracted


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None = None,
    scale: float | None = None,
    mask: Tensor | None = None,
    state: Tensor | None = None,
    chunk_size: int | None = 64,
) -> tuple[Tensor, Tensor]:
    """S ← exp(log_decay) S + k vᵀ, then out = scale · Sᵀ q, for one token after the other.

    Without a decay this is causal attention that skips the softmax: out = scale · (q kᵀ) v, summed
    over the keys so far. The weights q kᵀ do not sum to 1 and may be negative.

    Args:
        q: (B, H, T, d_k) queries.
        k: (B, H_kv, T, d_k) keys; query head h reads the state of head h // (H / H_kv).
        v: (B, H_kv, T, d_v) values.
        log_decay: (B, H_kv, T) or (B, H_kv, T, d_k): one of each head, or one of each channel of
            its keys. The logarithm of what is kept of the state before the token is written, at
            most 0; −inf forgets everything. Default: nothing is forgotten.
        scale: factor of the output; default 1/sqrt(d_k).
        mask: bool (B, 1, 1, T), True = real token, as from
            :func:`attn_lib.masks.padding_mask`. Padding leaves the state as it was, wherever it
            stands, and its output is 0.
        state: (B, H_kv, d_k, d_v) what earlier tokens left; default zeros.
        chunk_size: tokens that are computed together, at least 1; the answer does not depend on
            it. None: token by token, as the formula says.

    Returns:
        ``(out, state)``: out (B, H, T, d_v) in the dtype of ``q``; the state after the last token,
        at least float32.

    Raises:
        TypeError: a tensor that is not floating point, or not of the dtype of ``q`` (``log_decay``
            and ``state`` may have another); a mask that is not bool; a chunk_size that is not an
            integer.
        ValueError: shapes that do not fit together; a chunk_size below 1; a log_decay that is
            positive or NaN; a scale that is not finite.

    Example:
        >>> q = k = torch.eye(2)[None, None]  # two keys at right angles
        >>> v = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
        >>> linear_attention(q, k, v, scale=1.0)[0][0, 0]  # each reads its own value
        tensor([[1., 2.],
                [3., 4.]])

    Source: Katharopoulos et al. (2020), "Transformers are RNNs", section 3.4; Yang et al. (2024),
    "Gated Linear Attention Transformers", section 4, for the decay and the chunks.
    """
    return _scanned(q, k, v, None, log_decay, scale, mask, state, chunk_size)


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    *,
    log_decay: Tensor | None = None,
    scale: float | None = None,
    mask: Tensor | None = None,
    state: Tensor | None = None,
    chunk_size: int | None = 64,
) -> tuple[Tensor, Tensor]:
    """S ← D S + β k (v − (D S)ᵀ k)ᵀ with D = exp(log_decay), then out = scale · Sᵀ q.

    What is written is the difference between the value and what the key reads already: with β = 1
    and a key of length 1, the key reads its new value afterwards. Keys are not normalised here:
    where β times a key's squared length exceeds 2, writing it again and again makes the state
    explode.

    Args:
        q: as in :func:`linear_attention`.
        k: as in :func:`linear_attention`.
        v: (B, H_kv, T, d_v) values.
        beta: (B, H_kv, T) the share of the difference that is written, for each head.
        log_decay: as in :func:`linear_attention`; it acts before the write.
        scale: as in :func:`linear_attention`.
        mask: as in :func:`linear_attention`.
        state: as in :func:`linear_attention`.
        chunk_size: as in :func:`linear_attention`; within a chunk one triangular system is solved.

    Returns:
        ``(out, state)``, as in :func:`linear_attention`.

    Raises:
        TypeError: as in :func:`linear_attention`; ``beta`` may have another dtype than ``q``.
        ValueError: as in :func:`linear_attention`; ``beta`` of another shape, such as one of each
            channel.

    Example:
        >>> k = torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]]])  # one key, written twice
        >>> v, beta = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), torch.ones(1, 1, 2)
        >>> gated_delta_rule(k, k, v, beta, scale=1.0)[0][0, 0]  # the second write replaces
        tensor([[1., 2.],
                [3., 4.]])

    Source: Yang et al. (2024), "Parallelizing Linear Transformers with the Delta Rule over Sequence
    Length", section 3; Yang et al. (2025), "Gated Delta Networks"; a decay of each channel is
    that of "Kimi Linear" (2025).
    """
    return _scanned(q, k, v, beta, log_decay, scale, mask, state, chunk_size)


def short_convolution(
    x: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """For each channel, out[t] = Σ over j < K of weight[j] · x[t − K + 1 + j].

    The state is the last K − 1 inputs: the only cache that such a layer needs.

    Args:
        x: (B, T, d_model) inputs.
        weight: (d_model, K) of each channel, the newest token last.
        bias: (d_model,) added to each output; default none.
        mask: bool (B, 1, 1, T), as in :func:`linear_attention`: the convolution passes over padding
            as if it were not there.
        state: (B, kept, d_model) the kept = K − 1 inputs before ``x``; default zeros.

    Returns:
        ``(out, state)``: out (B, T, d_model), and the last K − 1 inputs, the next call's ``state``;
        both in the dtype of ``x``.

    Raises:
        TypeError: a tensor that is not floating point, or not of the dtype of ``x``; a mask that is
            not bool.
        ValueError: shapes that do not fit together.

    Example:
        >>> x = torch.tensor([[[1.0], [2.0], [3.0]]])
        >>> out, state = short_convolution(x, torch.tensor([[10.0, 1.0]]))
        >>> out[0, :, 0], state[0, :, 0]
        (tensor([ 1., 12., 23.]), tensor([3.]))

    Source: Yang et al. (2025), "Gated Delta Networks"; ``CausalConvWithState`` of ONNX.
    """
    check_float("x", x)
    if x.dim() != 3 or not isinstance(weight, Tensor) or weight.dim() != 2:
        raise ValueError(f"x must have 3 axes and weight 2, got {_shape(x)} and {_shape(weight)}")
    (B, T, d_model), before = x.shape, weight.shape[-1] - 1
    _check_fits("weight", weight, (d_model, max(before, 0) + 1), x, same_dtype=True)
    if bias is not None:
        _check_fits("bias", bias, (d_model,), x, same_dtype=True)
    if state is None:
        state = x.new_zeros(B, before, d_model)
    _check_fits("state", state, (B, before, d_model), x, same_dtype=True)
    real = _real_tokens(mask, B, T, x)
    # the real tokens first, in their order, as if there were no padding
    order = (~real).to(torch.uint8).argsort(dim=1, stable=True)[..., None]  # (B, T, 1)
    x = x.masked_fill(~real[..., None], 0.0).gather(1, order.expand_as(x))
    seen = torch.cat([state, x], dim=1)  # (B, K − 1 + T, d_model)
    out = x.new_zeros(d_model) if bias is None else bias
    for j in range(before + 1):  # the few taps of the kernel, not the tokens
        out = at_least_float32(out) + seen[:, j : j + T] * at_least_float32(weight[:, j])
    out = out.to(x.dtype).gather(1, order.argsort(dim=1).expand_as(x))
    last = real.sum(dim=1, keepdim=True) + torch.arange(before, device=x.device)  # (B, K − 1)
    state = seen.gather(1, last[..., None].expand(B, before, d_model))
    return out.masked_fill(~real[..., None], 0.0), state


def _scanned(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    log_decay: Tensor | None,
    scale: float | None,
    mask: Tensor | None,
    state: Tensor | None,
    chunk_size: int | None,
) -> tuple[Tensor, Tensor]:
    """Both functions: without ``beta`` the value itself is written, not a difference."""
    B, H, H_kv, T, d_k, d_v = _sizes(q, k, v)
    real = _real_tokens(mask, B, T, q)
    log_decay = _decay(log_decay, (B, H_kv, T, d_k), real, q)
    if beta is not None:
        _check_fits("beta", beta, (B, H_kv, T), q)
    if scale is not None:
        check_finite("scale", scale)
    if chunk_size is not None:
        check_at_least_one(chunk_size=chunk_size)
    if state is not None:
        _check_fits("state", state, (B, H_kv, d_k, d_v), q)

    of_q, dtype = q.dtype, at_least_float32(q[:0]).dtype
    q, k, v = (x.masked_fill(~real[:, None, :, None], 0.0).to(dtype) for x in (q, k, v))
    q = q * (1.0 / math.sqrt(d_k) if scale is None else scale)
    q = q.unflatten(1, (H_kv, H // H_kv))  # (B, H_kv, group, T, d_k)
    state = q.new_zeros(B, H_kv, d_k, d_v) if state is None else state.to(dtype)
    if beta is not None:
        beta = beta.masked_fill(~real[:, None], 0.0).to(dtype)[..., None]  # (B, H_kv, T, 1)
    step = _token if chunk_size is None or T == 1 else _chunk
    outs = [q.new_zeros(B, H_kv, H // H_kv, 0, d_v)]
    with full_precision(q):
        for pieces in _pieces(1 if step is _token else chunk_size, T, q, k, v, beta, log_decay):
            out, state = step(state, *pieces)
            outs.append(out)
    return torch.cat(outs, dim=-2).flatten(1, 2).to(of_q), state


def _pieces(size: int | None, T: int, *tensors: Tensor | None) -> Iterator[list[Any]]:
    """The tokens of all tensors, ``size`` at a time; the last piece may be shorter."""
    for start in range(0, T, size or 1):
        length = min(size or 1, T - start)
        yield [None if x is None else x.narrow(-2, start, length) for x in tensors]


def _token(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None, log_decay: Tensor
) -> tuple[Tensor, Tensor]:
    """The formula for one token: q (B, H_kv, group, 1, d_k), the others without a group."""
    state = state * log_decay.transpose(-1, -2).to(state.dtype).exp()  # (B, H_kv, d_k, d_v)
    if beta is not None:
        v = beta * (v - k @ state)
    state = state + k.transpose(-1, -2) @ v
    return q @ state.unsqueeze(2), state


def _chunk(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None, log_decay: Tensor
) -> tuple[Tensor, Tensor]:
    """The same for C tokens at once, by products of matrices and one triangular system."""
    # in float64: sums of large decays are subtracted from each other below
    total = log_decay.double().clamp(min=_FORGOTTEN).cumsum(dim=-2)  # (B, H_kv, C, d_k or 1)
    kept = total.exp().to(q.dtype)  # of the old state, at each token
    if beta is not None:
        # what token i writes, u_i = β_i (v_i − what is read), reads what the tokens before it wrote
        system = beta * _products(k, k, total)  # its diagonal is not read: it is 1
        read = (k * kept) @ state
        v = torch.linalg.solve_triangular(
            system, beta * (v - read), upper=False, unitriangular=True
        )
    total, kept = total.unsqueeze(2), kept.unsqueeze(2)  # with an axis for the group
    out = (q * kept) @ state.unsqueeze(2) + _products(q, k.unsqueeze(2), total) @ v.unsqueeze(2)
    total, kept = total.squeeze(2), kept.squeeze(2)
    left = (total[..., -1:, :] - total).exp().to(q.dtype)  # of each write, at the chunk's end
    state = kept[..., -1, :, None] * state + (k * left).transpose(-1, -2) @ v
    return out, state


def _products(a: Tensor, b: Tensor, total: Tensor) -> Tensor:
    """(..., C, C): Σ over channels of a_i b_j exp(total_i − total_j) where j ≤ i, else 0.

    The difference is never positive: exp(−total_j) alone would overflow.
    """
    if total.shape[-1] > 1:
        return _products_of_channels(a, b, total)
    later = torch.ones(a.shape[-2], a.shape[-2], dtype=torch.bool, device=a.device).triu(1)
    gap = (total - total.transpose(-1, -2)).masked_fill(later, -math.inf)
    return (a @ b.transpose(-1, -2)) * gap.exp().to(a.dtype)


def _products_of_channels(a: Tensor, b: Tensor, total: Tensor) -> Tensor:
    """The same with a decay of each channel: blocks of 1, 2, 4, … tokens, two joined at a time.

    From j in one block to i in the next the decay has two factors, from j to the first block's end
    and from there to i, and neither is above 1. So a product of two matrices is enough.
    """
    C = a.shape[-2]
    more = (1 << (C - 1).bit_length()) - C  # to the next power of two
    a, b = (F.pad(x, (0, 0, 0, more)) for x in (a, b))
    # nothing decays after the last token: a sum of 0 there would give exp(large), and 0 · inf
    total = total[..., torch.arange(C + more, device=total.device).clamp(max=C - 1), :]
    blocks = (a * b).sum(dim=-1)[..., None, None]  # (..., C, 1, 1)
    while blocks.shape[-1] < C:
        pair = (-1, 2, blocks.shape[-1])
        sums, (upper, lower) = total.unflatten(-2, pair), blocks.unflatten(-3, (-1, 2)).unbind(-3)
        end = sums[..., 0, -1:, :]
        of_a = a.unflatten(-2, pair)[..., 1, :, :] * (sums[..., 1, :, :] - end).exp().to(a.dtype)
        of_b = b.unflatten(-2, pair)[..., 0, :, :] * (end - sums[..., 0, :, :]).exp().to(a.dtype)
        rows = torch.cat([of_a @ of_b.transpose(-1, -2), lower], dim=-1)
        blocks = torch.cat([F.pad(upper, (0, upper.shape[-1])), rows], dim=-2)
    return blocks.squeeze(-3)[..., :C, :C]


def _shape(x: Any) -> Any:
    return tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__


def _check_fits(
    name: str, x: Tensor, shape: tuple[int, ...], of: Tensor, *, same_dtype: bool = False
) -> None:
    """A floating-point tensor of one shape, on the device of another."""
    check_float(name, x)
    if same_dtype and x.dtype != of.dtype:
        raise TypeError(f"{name} must have the dtype of x, got {x.dtype} and {of.dtype}")
    if x.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(x.shape)}")
    check_device(name, x, of.device)


def _sizes(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, int, int, int, int, int]:
    """B, H, H_kv, T, d_k and d_v of tensors that fit together."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_float(name, x)
        if x.dim() != 4:
            raise ValueError(f"{name} must have 4 axes, (B, H, T, width), got {tuple(x.shape)}")
        if x.dtype != q.dtype:
            raise TypeError(f"{name} must have the dtype of q, got {x.dtype} and {q.dtype}")
        check_device(name, x, q.device)
    (B, H, T, d_k), (H_kv, d_v) = q.shape, (v.shape[1], v.shape[3])
    if k.shape != (B, H_kv, T, d_k) or v.shape != (B, H_kv, T, d_v) or d_k == 0:
        raise ValueError(
            "q (B, H, T, d_k), k (B, H_kv, T, d_k) and v (B, H_kv, T, d_v) must fit together, "
            f"got shapes {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}"
        )
    if H_kv == 0 or H % H_kv:
        raise ValueError(f"the heads of q must be a multiple of those of k, got {H} and {H_kv}")
    return B, H, H_kv, T, d_k, d_v


def _decay(log_decay: Tensor | None, shape: tuple[int, ...], real: Tensor, of: Tensor) -> Tensor:
    """(B, H_kv, T, d_k), or 1 in place of d_k where a head has one decay; 0 at padding."""
    if log_decay is None:
        log_decay = of.new_zeros(shape[:-1])
    per_channel = isinstance(log_decay, Tensor) and log_decay.dim() == 4
    _check_fits("log_decay", log_decay, shape if per_channel else shape[:-1], of)
    if not per_channel:
        log_decay = log_decay[..., None]
    log_decay = log_decay.masked_fill(~real[:, None, :, None], 0.0)
    # a compiled graph cannot branch on values, so this check is skipped there
    readable = log_decay.device.type != "meta" and not torch.compiler.is_compiling()
    if readable and not bool((log_decay <= 0.0).all()):
        raise ValueError("log_decay must be at most 0, and not NaN: the logarithm of what is kept")
    return log_decay


def _real_tokens(mask: Tensor | None, B: int, T: int, of: Tensor) -> Tensor:
    """(B, T), True = real, from a mask (B, 1, 1, T)."""
    if mask is None:
        return torch.ones(B, T, dtype=torch.bool, device=of.device)
    check_bool("mask", mask)
    if mask.shape != (B, 1, 1, T):
        raise ValueError(
            f"mask must have shape {(B, 1, 1, T)}, as from padding_mask, got {tuple(mask.shape)}"
        )
    check_device("mask", mask, of.device)
    return mask[:, 0, 0]
