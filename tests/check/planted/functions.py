"""Right functions of queries, keys and values, each in a style of its own."""

import math

import torch
import torch.nn.functional as F

CAP = 2.0
SINKS = torch.tensor([0.7, -0.4, 1.3])


def plain(q, k, v):
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    weights = F.softmax(scores, dim=-1)
    return torch.matmul(weights, v)


def online_softmax(q, k, v, block=16):
    q = q / math.sqrt(q.shape[-1])
    top = q.new_full((*q.shape[:-1], 1), -torch.inf)
    total, out = torch.zeros_like(top), q.new_zeros(*q.shape[:-1], v.shape[-1])
    for keys, values in zip(k.split(block, dim=2), v.split(block, dim=2), strict=True):
        s = q @ keys.mT
        new = torch.maximum(top, s.amax(-1, keepdim=True))
        e, shrink = (s - new).exp(), (top - new).exp()
        out, total, top = out * shrink + e @ values, total * shrink + e.sum(-1, True), new
    return out / total


def scaled(q, k, v, scale=0.3):
    attn_weight = q @ k.transpose(-2, -1) * scale
    return torch.softmax(attn_weight, dim=-1) @ v


def grouped(q, k, v):
    n_rep = q.shape[1] // k.shape[1]
    k = k.repeat_interleave(n_rep, dim=1)
    v = v.repeat_interleave(n_rep, dim=1)
    return F.scaled_dot_product_attention(q, k, v)


def side_by_side(q, k, v):
    """Four heads side by side: (B, T, H · d)."""
    q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v)
    return out.transpose(1, 2).flatten(2)


# ---------------------------------------------------------------- masks, True = may attend


def masked(q, k, v, mask=None):
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return torch.softmax(scores, dim=-1) @ v


def padded(q, k, v, key_padding_mask=None):
    attn = q @ k.mT * q.size(-1) ** -0.5
    if key_padding_mask is not None:
        real = key_padding_mask[:, None, None, :]
        attn = attn.masked_fill(~real, float("-inf"))
    return torch.softmax(attn, dim=-1) @ v


def masked_and_causal(q, k, v, mask=None):
    T, S = q.size(-2), k.size(-2)
    keep = torch.ones(T, S, dtype=torch.bool).tril(diagonal=S - T)
    if mask is not None:
        keep = keep & mask
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)


# ---------------------------------------------------------------- causal


def causal(q, k, v):
    T, S = q.size(-2), k.size(-2)
    future = torch.triu(torch.ones(T, S), diagonal=S - T + 1).bool()
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    scores = scores.masked_fill(future, float("-inf"))
    return F.softmax(scores, dim=-1) @ v


def top_left(q, k, v):
    att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    att = att.masked_fill(torch.ones_like(att).tril() == 0, float("-inf"))
    return F.softmax(att, dim=-1) @ v


def top_left_of_torch(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def windowed(q, k, v):
    """Three positions: the token itself and the two before it."""
    window, S = 3, k.size(-2)
    rows, at = torch.arange(S - q.size(-2), S)[:, None], torch.arange(S)
    back = rows - at
    near = (back >= 0) & (back < window)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    return scores.masked_fill(~near, float("-inf")).softmax(-1) @ v


def capped(q, k, v):
    future = torch.ones(q.size(-2), k.size(-2)).triu(k.size(-2) - q.size(-2) + 1)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    scores = CAP * torch.tanh(scores / CAP)
    scores = scores.masked_fill(future.bool(), float("-inf"))
    return scores.softmax(dim=-1) @ v


def with_sinks(q, k, v):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    sinks = SINKS.to(scores)[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat([scores, sinks], dim=-1).softmax(-1)[..., :-1] @ v


def distances(T, S):
    """For each of three heads: later keys get more, or less."""
    ahead = torch.arange(S) - torch.arange(S - T, S)[:, None]
    return torch.tensor([0.5, 0.1, -0.25])[:, None, None] * ahead


def with_bias(q, k, v):
    bias = distances(q.size(-2), k.size(-2)).to(q)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)) + bias
    return F.softmax(scores, dim=-1) @ v


def with_weights(q, k, v):
    """Causal; it returns its weights too."""
    future = torch.ones(q.size(-2), k.size(-2)).triu(k.size(-2) - q.size(-2) + 1)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    closed = scores.masked_fill(future.bool(), float("-inf"))
    weights = closed.softmax(-1)
    return weights @ v, weights


# ---------------------------------------------------------------- positions before heads: BTHd


def behind(q, k, v):
    dtype = torch.promote_types(q.dtype, torch.float32)
    query, key, value = q.to(dtype), k.to(dtype), v.to(dtype)
    scores = torch.einsum("bthd,bshd->bhts", query, key) / math.sqrt(q.shape[3])
    weights = scores.softmax(-1)
    return torch.einsum("bhts,bshd->bthd", weights, value).to(q.dtype)


def behind_and_causal(q, k, v, mask=None):
    """The mask says what is closed."""
    T, S = q.shape[1], k.shape[1]
    closed = torch.ones(T, S, dtype=torch.bool).triu(S - T + 1)
    if mask is not None:
        closed = closed | mask
    scores = torch.einsum("bthd,bshd->bhts", q, k).div(q.shape[-1] ** 0.5)
    return torch.einsum("bhts,bshd->bthd", scores.masked_fill(closed, -torch.inf).softmax(3), v)
