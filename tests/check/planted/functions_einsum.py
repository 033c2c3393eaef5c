"""Second forms of rare mistakes: positions before heads, (B, T, H, d), with einsum."""

import math

import torch

from planted.functions_causal import plain_causal
from planted.functions_heads import plain_upcast
from planted.functions_more import behind
from planted.functions_scores import plain, plain_masked
from planted.plants import planted

FORM = "einsum"
BTHD = {"layout": "BTHd"}
BOUND = 1.5


def scores_of(q, k):
    return torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(q.shape[3])


def mixed(w, v):
    return torch.einsum("bhts,bshd->bthd", w, v)


def late(q, k):
    T, S = q.shape[1], k.shape[1]
    return torch.ones(T, S, dtype=torch.bool).triu(S - T + 1)


def right_masked(q, k, v, mask=None):
    return plain_masked(*(t.transpose(1, 2) for t in (q, k, v)), mask).transpose(1, 2)


def right_both(q, k, v, mask=None):
    keep = ~late(q, k) if mask is None else ~late(q, k) & ~mask
    return right_masked(q, k, v, keep)


def right_capped(q, k, v):
    return mixed((BOUND * (scores_of(q, k) / BOUND).tanh()).softmax(-1), v)


@planted("not_float32_inside", FORM, behind(plain_upcast), **BTHD)
def all_in_half(q, k, v):
    return mixed(scores_of(q, k).softmax(-1), v)


@planted("block_remainder_dropped", FORM, behind(plain), **BTHD)
def whole_blocks_of_queries(q, k, v, block=8):
    out = torch.zeros(*q.shape[:3], v.shape[3], dtype=q.dtype)
    for i in range(max(q.shape[1] // block, 1)):
        part = slice(i * block, (i + 1) * block)
        out[:, part] = mixed(scores_of(q[:, part], k).softmax(-1), v)
    return out


@planted("mask_or_causal", FORM, right_both, mask_means="blocked", causal=True, **BTHD)
def one_or_the_other(q, k, v, mask=None):
    closed = late(q, k) if mask is None else mask
    return mixed(scores_of(q, k).masked_fill(closed, -torch.inf).softmax(-1), v)


@planted("softcap_clamped", FORM, right_capped, softcap=BOUND, **BTHD)
def not_multiplied_back(q, k, v):
    return mixed((scores_of(q, k) / BOUND).tanh().softmax(-1), v)


@planted("not_contiguous", FORM, behind(plain), **BTHD)
def values_by_memory(q, k, v):
    S, H, d = v.shape[1:]
    v = v.as_strided(v.shape, (S * H * d, H * d, d, 1))
    return mixed(scores_of(q, k).softmax(-1), v)


@planted("causal_missing", FORM, behind(plain_causal), causal=True, **BTHD)
def built_and_not_used(q, k, v):
    late(q, k)
    return mixed(scores_of(q, k).softmax(-1), v)


@planted("softmax_over_heads", FORM, behind(plain), **BTHD)
def wrong_axis_of_three(q, k, v):
    return mixed(torch.softmax(scores_of(q, k), 1), v)


@planted("mask_ignored", FORM, right_masked, mask_means="attend", **BTHD)
def mask_to_the_wrong_name(q, k, v, mask=None):
    scores = scores_of(q, k)
    if mask is not None:
        closed = scores.masked_fill(~mask, -torch.inf)  # noqa: F841
    return mixed(scores.softmax(-1), v)


@planted("causal_not_meant", FORM, behind(plain), causal=False, **BTHD)
def causal_by_habit(q, k, v):
    scores = scores_of(q, k).masked_fill(late(q, k), torch.finfo(q.dtype).min)
    return mixed(scores.softmax(-1), v)
