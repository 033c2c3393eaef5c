"""Wrong causal masks, windows, sinks and softcaps, as functions of q, k, v (B, H, T, d)."""

import math

import torch
import torch.nn.functional as F

from planted.functions_masks import plain_causal_masked, scores_of
from planted.plants import planted, planted_maker

FORM = "function"
SINKS = torch.tensor([0.7, -0.4, 1.3])
CAP = 2.0


def plain_causal(q, k, v):
    return plain_causal_masked(q, k, v)


def plain_window(q, k, v):
    """Three positions: the token itself and the two before it."""
    T, S = q.shape[-2], k.shape[-2]
    band = torch.ones(T, S, dtype=torch.bool).triu(S - T - 2)
    return plain_causal_masked(q, k, v, band)


def plain_capped(q, k, v):
    T, S = q.shape[-2], k.shape[-2]
    scores = CAP * torch.tanh(scores_of(q, k) / CAP)
    late = torch.ones(T, S, dtype=torch.bool).triu(S - T + 1)
    return scores.masked_fill(late, -math.inf).softmax(-1).nan_to_num(0.0) @ v


def plain_sinks(q, k, v):
    scores = scores_of(q, k)
    sinks = SINKS.to(scores)[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat([scores, sinks], -1).softmax(-1)[..., :-1] @ v


# ---------------------------------------------------------------- causal


@planted("causal_missing", FORM, plain_causal, causal=True)
def result_of_masked_fill_is_lost(q, k, v):
    scores = scores_of(q, k)
    future = torch.ones(scores.shape[-2:]).triu(1 + k.size(-2) - q.size(-2)).bool()
    scores.masked_fill(future, float("-inf"))
    return scores.softmax(-1) @ v


@planted("causal_sees_one_ahead", FORM, plain_causal, causal=True)
def diagonal_two(q, k, v):
    T, S = q.size(-2), k.size(-2)
    future = torch.triu(torch.ones(T, S), diagonal=S - T + 2).bool()
    return scores_of(q, k).masked_fill(future, float("-inf")).softmax(-1) @ v


@planted("causal_excludes_self", FORM, plain_causal, causal=True)
def diagonal_zero(q, k, v):
    T, S = q.size(-2), k.size(-2)
    future = torch.triu(torch.ones(T, S), diagonal=S - T).bool()
    return scores_of(q, k).masked_fill(future, -1e4).softmax(-1) @ v


@planted("causal_reversed", FORM, plain_causal, causal=True)
def upper_triangle_kept(q, k, v):
    T, S = q.size(-2), k.size(-2)
    keep = torch.triu(torch.ones(T, S, dtype=torch.bool), diagonal=S - T)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)


@planted("causal_top_left", FORM, plain_causal, causal=True)
def tril_of_ones(q, k, v):
    T, S = q.size(-2), k.size(-2)
    att = scores_of(q, k)
    att = att.masked_fill(torch.tril(torch.ones(T, S)) == 0, float("-inf"))
    return F.softmax(att, dim=-1) @ v


@planted_maker("causal_cached_length", FORM, plain_causal, causal=True)
def mask_of_the_first_call():
    memo = {}

    def attend(q, k, v):
        att = scores_of(q, k)
        if "mask" not in memo:
            T, S = att.shape[-2:]
            memo["mask"] = torch.ones(T, S, dtype=torch.bool).triu(S - T + 1)
        rows, cols = (min(a, b) for a, b in zip(memo["mask"].shape, att.shape[-2:], strict=True))
        att[..., :rows, :cols] = att[..., :rows, :cols].masked_fill(
            memo["mask"][:rows, :cols], float("-inf")
        )
        return att.softmax(-1) @ v

    return attend


# ---------------------------------------------------------------- windows


def distances(q, k):
    T, S = q.size(-2), k.size(-2)
    return torch.arange(S - T, S)[:, None] - torch.arange(S)[None, :]


@planted("window_one_more", FORM, plain_window, causal=True, window=3)
def not_more_than_three_back(q, k, v):
    far = distances(q, k)
    closed = (far < 0) | (far > 3)
    return scores_of(q, k).masked_fill(closed, float("-inf")).softmax(-1) @ v


@planted("window_one_less", FORM, plain_window, causal=True, window=3)
def fewer_than_two_back(q, k, v):
    far = distances(q, k)
    keep = (far >= 0) & (far < 3 - 1)
    return scores_of(q, k).masked_fill(~keep, float("-inf")).softmax(-1) @ v


@planted("window_not_causal", FORM, plain_window, causal=True, window=3)
def both_sides(q, k, v):
    keep = distances(q, k).abs() < 3
    return scores_of(q, k).masked_fill(~keep, float("-inf")).softmax(-1) @ v


@planted("window_ignored", FORM, plain_window, causal=True, window=3)
def only_causal(q, k, v, sliding_window=3):
    closed = distances(q, k) < 0
    return scores_of(q, k).masked_fill(closed, float("-inf")).softmax(-1) @ v


# ---------------------------------------------------------------- sinks and softcap


@planted("sinks_dropped", FORM, plain_sinks, sinks=SINKS, heads=3)
def sinks_are_never_appended(q, k, v, sinks=None):
    return scores_of(q, k).softmax(-1) @ v


@planted("softcap_missing", FORM, plain_capped, causal=True, softcap=CAP)
def softcap_never_applied(q, k, v, softcap=CAP):
    closed = distances(q, k) < 0
    return scores_of(q, k).masked_fill(closed, float("-inf")).softmax(-1) @ v


@planted("softcap_after_mask", FORM, plain_capped, causal=True, softcap=CAP)
def tanh_reopens_the_mask(q, k, v):
    scores = scores_of(q, k).masked_fill(distances(q, k) < 0, float("-inf"))
    scores = torch.tanh(scores / CAP) * CAP
    return F.softmax(scores, dim=-1) @ v


@planted("softcap_after_softmax", FORM, plain_capped, causal=True, softcap=CAP)
def tanh_of_weights(q, k, v):
    scores = scores_of(q, k).masked_fill(distances(q, k) < 0, float("-inf"))
    return (CAP * torch.tanh(F.softmax(scores, dim=-1) / CAP)) @ v


@planted("softcap_before_scale", FORM, plain_capped, causal=True, softcap=CAP)
def tanh_then_scale(q, k, v):
    scores = CAP * torch.tanh(q @ k.transpose(2, 3) / CAP) / math.sqrt(q.size(-1))
    return scores.masked_fill(distances(q, k) < 0, float("-inf")).softmax(-1) @ v
