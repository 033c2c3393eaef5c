"""Right functions that look unusual: nothing may be said against them."""

import math
from functools import partial

import torch
import torch.nn.functional as F

from planted.plants import RIGHT


def right(made=False, **intent):
    """A right function; if it is ``made``, what is decorated makes it anew for each use."""

    def keep(fn):
        RIGHT[fn.__name__] = (fn if made else lambda: fn, intent)
        return fn

    return keep


def widened(t):
    return t.to(torch.promote_types(t.dtype, torch.float32))


@right(causal=True)
def log_sum_exp(q, k, v):
    T, S = q.shape[-2:-1].numel(), k.shape[-2]
    s = (q / math.sqrt(q.shape[-1])) @ k.mT
    s = s + torch.full((T, S), -torch.inf, dtype=s.dtype).triu(S - T + 1)
    return (s - s.logsumexp(-1, keepdim=True)).exp() @ v


@right()
def transposed_keys(q, k, v):
    root = q.shape[-1] ** 0.25
    keys = (k / root).permute(0, 1, 3, 2).contiguous()  # (B, H, d, S), as some caches store them
    w = (q / root @ keys).softmax(-1)
    return w @ v, w


@right(made=True, causal=True)
def grown_mask():
    memo = {"mask": torch.ones(2, 2, dtype=torch.bool).tril()}

    def attend(q, k, v):
        T, S = q.shape[-2], k.shape[-2]
        if S > len(memo["mask"]):
            memo["mask"] = torch.ones(S, S, dtype=torch.bool).tril()
        rows = torch.arange(S - T, S).clamp(min=0)
        keep = memo["mask"][rows, :S] & (torch.arange(S - T, S) >= 0)[:, None]
        s = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~keep, -torch.inf)
        return s.softmax(-1) @ v

    return attend


# ---------------------------------------------------------------- heads folded into the batch


OPEN = {
    "attend": lambda mask: mask,
    "blocked": lambda mask: ~mask,
    "additive": lambda mask: mask == 0,
}


def folded(means):
    """A mask of keys (B, S) or of cells; it says what is open, what is closed, or is added."""

    def attend(q, k, v, allowed=None):
        B, H, T, d = q.shape
        S, dtype = k.shape[2], v.dtype
        q, k, v = (widened(t).flatten(0, 1) for t in (q, k, v))
        scores = torch.bmm(q, k.mT).div(d**0.5).view(B, H, T, S)
        cells = torch.ones(T, S, dtype=torch.bool)
        if allowed is not None:
            allowed = OPEN[means](allowed)
            cells = cells & (allowed[:, None, None] if allowed.dim() == 2 else allowed)
        weights = torch.where(cells, scores, torch.finfo(scores.dtype).min).softmax(-1)
        weights = weights.masked_fill(~cells, 0.0)  # a row without a key weighs nothing
        return torch.bmm(weights.view(B * H, T, S), v).view(B, H, T, -1).to(dtype)

    return attend


FOLDED = {"arguments": "q, k, v, allowed=mask", "causal": False}
for _means, _shape in {"attend": None, "blocked": "BHTS", "additive": "BS"}.items():
    _intent = {**FOLDED, "mask_means": _means, "mask_shape": _shape}
    RIGHT[f"folded, {_means}"] = (partial(folded, _means), _intent)


# ---------------------------------------------------------------- rotations as matrices


def turned(t, first=0, base=10_000.0):
    """Rotates t (..., T, d) by the exponential of the position times a generator."""
    d, made = t.shape[-1], torch.zeros(t.shape[-1], t.shape[-1], dtype=torch.float64)
    i = torch.arange(d // 2)
    made[i + d // 2, i] = base ** (-2.0 * i.double() / d)
    at = torch.arange(first, first + t.shape[-2]).double()[:, None, None]
    return torch.einsum("tij,...tj->...ti", torch.matrix_exp(at * (made - made.T)), t.double())


@right(arguments="queries=q, keys=k, values=v", causal=False, rope_base=1e4)
def rotations_as_matrices(queries, keys, values):
    """The queries are the last."""
    q, k = turned(queries, keys.shape[-2] - queries.shape[-2]), turned(keys)
    weights = (torch.einsum("bhti,bhsi->bhts", q, k) * q.shape[-1] ** -0.5).softmax(-1)
    return (weights @ values.double()).to(queries.dtype)


# ---------------------------------------------------------------- of torch and ours

SDPA = F.scaled_dot_product_attention
GROUPED = {"arguments": "q, k, v", "options": {"enable_gqa": True}, "heads": 4, "kv_heads": 2}
RIGHT |= {
    "sdpa": (lambda: SDPA, {"arguments": "q, k, v, mask"}),
    "sdpa_grouped": (lambda: SDPA, GROUPED),
}


@right(made=True, mask_means="attend")
def attn_lib_function():
    from attn_lib import attention

    return lambda q, k, v, mask=None: attention(q, k, v, mask=mask)
