"""The formula by PyTorch's fused kernel, with what the kernel needs to give the same answer."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import has_torch_function

from attn_lib.functional import at_least_float32, closed_cells

_FEW_KEYS = 32  # as many as fit into the registers that PyTorch's kernel compares at once, twice


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    attn_bias: Tensor | None = None,
    scale: float | None = None,
    causal: bool = False,
    dropout_p: float = 0.0,
) -> Tensor:
    """The output of :func:`attn_lib.functional.attention`, from PyTorch's fused kernel.

    The kernel never shows the weights.

    This is the inner step of a layer, which has checked the arguments: nothing is checked here,
    and keys and values that no query may attend to must be finite, unlike in that function.

    Args:
        q: (B, H, T, d_k) queries.
        k: (B, H_kv, S, d_k) keys; query head h uses key head h // (H / H_kv).
        v: (B, H_kv, S, d_v) values.
        mask: as in that function.
        attn_bias: as in that function.
        scale: as in that function.
        causal: as in that function.
        dropout_p: as in that function.

    Returns:
        (B, H, T, d_v) in the dtype of ``q``.

    Example:
        >>> q, k, v = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 7)
        >>> from attn_lib import attention
        >>> out, _ = attention(q, k, v, causal=True)
        >>> torch.allclose(fused_attention(q, k, v, causal=True), out, atol=1e-5)
        True
    """
    (_, H, T, d_k), (_, H_kv, S, d_v) = q.shape, v.shape
    if scale is not None and scale <= 0.0:
        # the kernel multiplies its own -inf by the scale, which would open or destroy closed cells
        q, scale = q * scale, 1.0
    if scale is None:
        scale = 1.0 / math.sqrt(d_k)  # the kernel would take it from the width that it is given
    allowed = empty = None
    if T == 1:
        causal = False  # the last query attends to every key
    if mask is not None or attn_bias is not None or (causal and T != S):
        # one combined mask: kernels disagree about a mask together with is_causal
        closed = closed_cells(mask, attn_bias, causal, torch.Size((*q.shape[:-1], S)), q.device)
        if closed is not None:
            # numbers, not booleans: of these PyTorch makes finite ones for half precision on a GPU,
            # where a query without keys then sees every key, and may have NaN as its gradient
            added = q.new_zeros(()) if attn_bias is None else attn_bias
            allowed, causal = added.masked_fill(closed, -math.inf), False
            empty = closed.all(dim=-1, keepdim=True)
    if d_k != d_v:
        # would fall back to the slow kernel: pad the narrower with zeros to one width
        width = max(d_k, d_v)
        q, k, v = (F.pad(t, (0, width - t.shape[-1])) for t in (q, k, v))
    together = T == 1 and H != H_kv and not has_torch_function((q, k, v))  # unless a call is seen
    if together:
        # the query heads of a group as so many queries of one head: its keys are read once
        q = q.reshape(q.shape[0], H_kv, H // H_kv, q.shape[-1])
        if allowed is not None and allowed.dim() == 4 and allowed.shape[1] == H:
            allowed = allowed.reshape(allowed.shape[0], H_kv, H // H_kv, allowed.shape[-1])
    out = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=allowed,
        dropout_p=dropout_p,
        is_causal=causal,
        scale=scale,
        enable_gqa=not together and H != H_kv,
    )
    if together:
        out = out.reshape(out.shape[0], H, 1, out.shape[-1])
    if d_v < d_k:
        out = out[..., :d_v]
    if not torch.compiler.is_compiling() and S < _FEW_KEYS:  # in this order, for torch.export
        # among few keys the kernel takes a row of NaN scores for an empty one: 0 · NaN is NaN
        of_q = at_least_float32(q.detach()).sum(dim=-1).view(*out.shape[:-1], 1)
        of_k = at_least_float32(k.detach()).sum(dim=(1, 2, 3), keepdim=True)  # (B, 1, 1, 1)
        out = out + (0.0 * (of_q + of_k)).to(out.dtype)
    return out if empty is None else out.masked_fill(empty, 0.0)
