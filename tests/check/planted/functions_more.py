"""Rarer mistakes, as functions of q, k, v: other layouts, merged masks, noise, lost strides."""

import math

import torch
import torch.nn.functional as F

from planted.functions_causal import CAP, distances, plain_capped, plain_causal
from planted.functions_masks import plain_causal_masked, plain_masked, scores_of
from planted.functions_scores import plain
from planted.plants import planted

FORM, OTHER = "function", "einsum"


def plain_top_left(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def behind(fn):
    """The same with positions before heads, (B, T, H, d)."""
    return lambda q, k, v: fn(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2)


@planted("scale_by_length", FORM, plain)
def size_after_the_transpose(q, k, v):
    k = k.transpose(-2, -1)
    return torch.softmax(q @ k / math.sqrt(k.size(-1)), dim=-1) @ v


@planted("softmax_log", FORM, plain)
def log_softmax(q, k, v):
    return F.log_softmax(scores_of(q, k), dim=-1) @ v


@planted("mask_of_the_batch", FORM, plain_masked, mask_means="attend", mask_shape="B1TS")
def any_example_opens(q, k, v, mask=None):
    attn = scores_of(q, k)
    if mask is not None:
        attn = attn.masked_fill(~mask.any(0, keepdim=True), float("-inf"))
    return attn.softmax(-1) @ v


@planted("mask_or_causal", FORM, plain_causal_masked, mask_means="attend", causal=True)
def either_opens(q, k, v, mask=None):
    keep = distances(q, k) >= 0
    keep = keep if mask is None else mask | keep
    return scores_of(q, k).masked_fill(~keep, float("-inf")).softmax(-1) @ v


@planted("empty_row_spreads", FORM, plain_masked, mask_means="attend")
def all_or_nothing(q, k, v, mask=None):
    out = plain_masked(q, k, v, mask)
    if mask is not None:
        w = scores_of(q, k).masked_fill(~mask, float("-inf")).softmax(-1)
        out = w @ v
    return torch.zeros_like(out) if torch.isnan(out).any() else out


@planted("closed_key_reaches_output", FORM, plain_masked, mask_means="attend")
def fills_with_the_smallest(q, k, v, mask=None):
    attn = scores_of(q, k)
    if mask is not None:
        attn = torch.where(mask, attn, attn.amin(-1, keepdim=True))
    return attn.softmax(-1) @ v


@planted("softcap_clamped", FORM, plain_capped, causal=True, softcap=CAP)
def clamps(q, k, v):
    scores = scores_of(q, k).clamp(-CAP, CAP)
    return scores.masked_fill(distances(q, k) < 0, float("-inf")).softmax(-1) @ v


@planted("order_rotated", FORM, plain, arguments="q, k, v")
def values_first(values, keys, query):
    return scores_of(query, keys).softmax(-1) @ values


@planted("value_is_query", FORM, plain)
def mixes_the_queries(q, k, v):
    return scores_of(q, k).softmax(-1) @ q


@planted("residual_added", FORM, plain)
def plus_q(q, k, v):
    return q + F.scaled_dot_product_attention(q, k, v)


@planted("channels_reversed", FORM, plain)
def flipped(q, k, v):
    return (scores_of(q, k).softmax(-1) @ v).flip(-1)


@planted("not_deterministic", FORM, plain)
def noisy(q, k, v):
    return (scores_of(q, k) + 0.01 * torch.randn_like(q[..., :1])).softmax(-1) @ (
        v + 0.01 * torch.randn_like(v)
    )


@planted("gradient_wrong", FORM, plain)
def half_of_the_gradient(q, k, v):
    w = scores_of(q, k).softmax(-1)
    w = 0.5 * w + 0.5 * w.detach()
    return w @ v


@planted("weights_wrong", FORM, lambda q, k, v: right_weights(q, k, v), causal=True)
def unmasked_weights(q, k, v):
    scores = scores_of(q, k)
    out = scores.masked_fill(distances(q, k) < 0, float("-inf")).softmax(-1) @ v
    return out, scores.softmax(-1)


def right_weights(q, k, v):
    w = scores_of(q, k).masked_fill(distances(q, k) < 0, float("-inf")).softmax(-1)
    return w @ v, w


@planted("output_dtype", FORM, plain)
def always_float32(q, k, v):
    return F.scaled_dot_product_attention(q.float(), k.float(), v.float())


@planted("not_contiguous", FORM, plain)
def by_memory(q, k, v):
    B, H, S, d = k.shape
    flat = torch.as_strided(k, (B * H, S, d), (S * d, d, 1))
    return scores_of(q, flat.view(B, H, S, d)).softmax(-1) @ v


@planted("causal_bottom_right_by_cut", FORM, plain_top_left, causal="top_left")
def last_rows(q, k, v):
    return plain_causal(q, k, v)


@planted(
    "causal_bottom_right_by_cut", OTHER, behind(plain_top_left), causal="top_left", layout="BTHd"
)
def lower_right_corner(q, k, v):
    T, S = q.shape[1], k.shape[1]
    n = max(T, S)
    keep = torch.tril(torch.ones(n, n, dtype=torch.bool))[n - T :, n - S :]
    s = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("bhqk,bkhd->bqhd", torch.where(keep, s, -math.inf).softmax(-1), v)


@planted("causal_top_left", OTHER, behind(plain_causal), causal=True, layout="BTHd")
def upper_left_corner(q, k, v):
    late = torch.arange(k.shape[1])[None, :] > torch.arange(q.shape[1])[:, None]
    s = torch.einsum("bqhd,bkhd->bhqk", q, k).div(q.shape[-1] ** 0.5)
    s.masked_fill_(late, -1e4)
    return torch.einsum("bhqk,bkhd->bqhd", s.softmax(3), v)


# ---------------------------------------------------------------- heads side by side: (B, T, H · d)

MERGED = {"layout": "BTd", "heads": 3}


def by_three(q, k, v):
    q, k, v = (t.unflatten(-1, (3, -1)).transpose(1, 2) for t in (q, k, v))
    return plain(q, k, v).transpose(1, 2).flatten(2)


@planted("heads_not_moved", "merged", by_three, **MERGED)
def heads_among_themselves(q, k, v):
    q, k, v = (t.view(*t.shape[:2], 3, t.shape[2] // 3) for t in (q, k, v))
    return (scores_of(q, k).softmax(-1) @ v).flatten(2)


@planted("heads_interleaved", "merged", by_three, **MERGED)
def heads_last(q, k, v):
    q, k, v = (t.view(*t.shape[:2], t.shape[2] // 3, 3).permute(0, 3, 1, 2) for t in (q, k, v))
    return plain(q, k, v).permute(0, 2, 3, 1).flatten(2)


@planted("heads_reversed", "merged", by_three, **MERGED)
def inserted_at_the_front(q, k, v):
    outs = []
    for a, b, c in zip(q.chunk(3, -1), k.chunk(3, -1), v.chunk(3, -1), strict=True):
        outs.insert(0, scores_of(a, b).softmax(-1) @ c)
    return torch.cat(outs, dim=-1)


@planted("heads_split_without_transpose", "merged", by_three, **MERGED)
def viewed_as_heads(q, k, v):
    q, k, v = (t.reshape(len(t), 3, t.shape[1], -1) for t in (q, k, v))
    return plain(q, k, v).transpose(1, 2).flatten(2)


@planted("heads_merged_without_transpose", "merged", by_three, **MERGED)
def reshaped_back(q, k, v):
    B, T, _ = q.shape
    q, k, v = (t.unflatten(2, (3, -1)).transpose(1, 2) for t in (q, k, v))
    return plain(q, k, v).reshape(B, T, -1)
