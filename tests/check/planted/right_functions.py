"""Right functions that look unusual: nothing may be said against them."""

import math
import warnings

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


@right()
def loops(q, k, v):
    out = q.new_zeros(*q.shape[:-1], v.shape[-1])
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for t in range(q.shape[2]):
                w = torch.softmax(k[b, h] @ q[b, h, t] / math.sqrt(q.shape[-1]), dim=0)
                out[b, h, t] = w @ v[b, h]
    return out


@right(mask_means="blocked", causal=True)
def in_float64(q, k, v, mask=None):
    T, S = q.shape[-2], k.shape[-2]
    closed = torch.ones(T, S, dtype=torch.bool).triu(S - T + 1)
    closed = closed if mask is None else closed | mask
    scores = (q.double() @ k.double().mT / math.sqrt(q.shape[-1])).masked_fill(closed, -math.inf)
    return (scores.softmax(-1).masked_fill(closed, 0.0) @ v.double()).to(q.dtype)


@right(causal=True)
def chunked_queries(q, k, v, chunk=8):
    T, S, outs = q.shape[2], k.shape[2], []
    for first in range(0, T, chunk):
        part = q[:, :, first : first + chunk]
        at = torch.arange(first, first + part.shape[2])[:, None] + S - T
        s = part @ k.mT / math.sqrt(q.shape[-1])
        outs.append(s.masked_fill(torch.arange(S) > at, -torch.inf).softmax(-1) @ v)
    return torch.cat(outs, dim=2)


@right(mask_means="attend")
def in_place_on_its_own(q, k, v, mask=None):
    scores = torch.matmul(q, k.mT)
    scores.mul_(q.shape[-1] ** -0.5)
    if mask is not None:
        scores.masked_fill_(~mask, float("-inf"))
    return torch.matmul(scores.softmax(dim=-1), v).contiguous()


@right(mask_means="additive")
def heads_in_the_batch(q, k, v, mask=None):
    B, H, T, d = q.shape
    q, k, v = (t.reshape(B * H, *t.shape[2:]) for t in (q, k, v))
    start = q.new_zeros(1, 1, 1) if mask is None else mask.expand(B, H, T, k.shape[1])
    start = start if mask is None else start.reshape(B * H, T, -1).to(q.dtype)
    w = torch.baddbmm(start, q, k.mT, alpha=1 / math.sqrt(d)).softmax(-1)
    return torch.bmm(w, v).view(B, H, T, -1)


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


@right(layout="BTd")
def no_heads(q, k, v):
    return torch.bmm(torch.softmax(torch.bmm(q, k.mT) / math.sqrt(k.shape[-1]), dim=2), v)


@right(layout="Td", causal=True)
def one_sentence(q, k, v):
    T, S = len(q), len(k)
    s = (q @ k.T / math.sqrt(q.shape[-1])).masked_fill(
        torch.ones(T, S).triu(S - T + 1).bool(), -torch.inf
    )
    return s.softmax(-1) @ v


@right(mask_means="attend")
def empty_rows_are_zero(q, k, v, mask=None):
    s = widened(q) @ widened(k).mT / math.sqrt(q.shape[-1])
    s = s if mask is None else s.masked_fill(~mask, -torch.inf)
    w = s.softmax(-1)
    w = w if mask is None else w.masked_fill(~mask, 0.0)
    return (w @ widened(v)).to(q.dtype)


# ---------------------------------------------------------------- sequence first, axes named


def named(scale=None, softcap=None, sinks=None):
    """t queries, s keys, b examples, h heads."""

    def attend(queries, keys, values):
        each = queries.shape[2] // keys.shape[2]
        q, k, v = (widened(t) for t in (queries, keys, values))
        k, v = k.repeat_interleave(each, 2), v.repeat_interleave(each, 2)
        scores = torch.einsum("tbhd,sbhd->tbhs", q, k) * (scale or q.shape[-1] ** -0.5)
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        if sinks is not None:
            column = sinks.to(scores.dtype).expand(*scores.shape[:2], -1)[..., None]
            scores = torch.cat([scores, column], dim=3)
        powers = (scores - scores.amax(dim=3, keepdim=True).detach()).exp()
        weights = (powers / powers.sum(dim=3, keepdim=True))[..., : keys.shape[0]]
        return torch.einsum("tbhs,sbhd->tbhd", weights, v).to(queries.dtype)

    return attend


NAMED = {"arguments": "queries=q, keys=k, values=v"}
SINKS = torch.tensor([0.9, -0.4, 1.7])
for _name, _options, _intent in [
    ("", {}, {}),
    (" with a scale", {"scale": 0.3}, {"scale": 0.3}),
    (" with a softcap", {"softcap": 5.0}, {"softcap": 5.0}),
    (" with sinks", {"sinks": SINKS}, {"sinks": SINKS, "heads": 3}),
    (" with grouped heads", {}, {"heads": 4, "kv_heads": 2}),
]:
    RIGHT[f"sequence first{_name}"] = (
        lambda options=_options: named(**options),
        {**NAMED, "layout": "TBHd", **_intent},
    )


# ---------------------------------------------------------------- heads folded into the batch


OPEN = {
    "attend": lambda mask: mask,
    "blocked": lambda mask: ~mask,
    "additive": lambda mask: mask == 0,
}


def folded(means, *, softcap=None, causal=None, window=None, finite=False):
    """A mask of keys (B, S) or of cells; it says what is open, what is closed, or is added."""

    def attend(q, k, v, allowed=None):
        B, H, T, d = q.shape
        S, dtype = k.shape[2], v.dtype
        q, k, v = (widened(t).flatten(0, 1) for t in (q, k, v))
        scores = torch.bmm(q, k.mT).div(d**0.5).view(B, H, T, S)
        scores = softcap * torch.tanh(scores / softcap) if softcap else scores
        back = torch.arange(T)[:, None] - torch.arange(S) + (0 if causal == "top_left" else S - T)
        cells = (back >= 0) & (back < (window or S + T)) if causal else back > -S - T
        if allowed is not None:
            allowed = OPEN[means](allowed)
            cells = cells & (allowed[:, None, None] if allowed.dim() == 2 else allowed)
        weights = torch.where(cells, scores, torch.finfo(scores.dtype).min).softmax(-1)
        if not finite:  # a row without a key weighs nothing
            weights = weights.masked_fill(~cells, 0.0)
        return torch.bmm(weights.view(B * H, T, S), v).view(B, H, T, -1).to(dtype)

    return attend


FOLDED = {"arguments": "q, k, v, allowed=mask", "causal": False}
for _name, _options, _intent in [
    ("", {}, {}),
    (" with a finite fill", {"finite": True}, {}),
    (" with a mask for each head", {}, {"mask_shape": "BHTS"}),
    (" with a mask of keys", {}, {"mask_shape": "BS"}),
    (" with a softcap", {"softcap": 4.0}, {"softcap": 4.0}),
    (" and causal", {"causal": True}, {"causal": True}),
    (" and causal from the top left", {"causal": "top_left"}, {"causal": "top_left"}),
    (" and a window", {"causal": True, "window": 3}, {"causal": True, "window": 3}),
]:
    for _means in OPEN:
        RIGHT[f"folded, {_means}{_name}"] = (
            lambda means=_means, options=_options: folded(means, **options),
            {**FOLDED, "mask_means": _means, **_intent},
        )


# ---------------------------------------------------------------- rotations as matrices


def turned(t, first=0, base=10_000.0):
    """Rotates t (..., T, d) by the exponential of the position times a generator."""
    d, made = t.shape[-1], torch.zeros(t.shape[-1], t.shape[-1], dtype=torch.float64)
    i = torch.arange(d // 2)
    made[i + d // 2, i] = base ** (-2.0 * i.double() / d)
    at = torch.arange(first, first + t.shape[-2]).double()[:, None, None]
    return torch.einsum("tij,...tj->...ti", torch.matrix_exp(at * (made - made.T)), t.double())


def rotating(heads=None):
    """(B, H, T, d), the queries being the last; or heads side by side in (B, T, H·d)."""

    def attend(queries, keys, values):
        three = (queries, keys, values)
        if heads:
            three = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in three)
        q, k, v = three
        q, k, v = turned(q, k.shape[-2] - q.shape[-2]), turned(k), v.double()
        out = (torch.einsum("bhti,bhsi->bhts", q, k) * q.shape[-1] ** -0.5).softmax(-1) @ v
        return (out.transpose(1, 2).flatten(2) if heads else out).to(queries.dtype)

    return attend


# ---------------------------------------------------------------- of torch and ours

SDPA, QKV = F.scaled_dot_product_attention, {"arguments": "q, k, v"}
RIGHT |= {
    "sdpa": (lambda: SDPA, {"arguments": "q, k, v, mask"}),
    "sdpa_grouped": (
        lambda: SDPA,
        {**QKV, "options": {"enable_gqa": True}, "heads": 4, "kv_heads": 2},
    ),
    "sdpa_causal": (lambda: SDPA, {**QKV, "options": {"is_causal": True}, "causal": "top_left"}),
    "sdpa_scaled": (lambda: SDPA, {**QKV, "options": {"scale": 0.5}, "scale": 0.5}),
}


@right(made=True, mask_means="attend")
def attn_lib_function():
    from attn_lib import attention

    return lambda q, k, v, mask=None: attention(q, k, v, mask=mask)


@right(made=True, heads=4, kv_heads=2)
def flex_attention():
    from torch.nn.attention.flex_attention import flex_attention as flex

    def attend(q, k, v):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns that it is not compiled
            return flex(q, k, v, enable_gqa=True)

    return attend


RIGHT |= {
    "rotations as matrices": (lambda: rotating(), {**NAMED, "causal": False, "rope_base": 1e4}),
    "rotations of heads side by side": (
        lambda: rotating(3),
        {**NAMED, "causal": False, "rope_base": 1e4, "layout": "BTd", "heads": 3},
    ),
}
