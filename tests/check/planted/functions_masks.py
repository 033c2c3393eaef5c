"""Masks that are used wrongly, in functions of q, k, v and a mask, True = may attend.

A mask of padding is (B, S), any other broadcasts to (B, H, T, S).
"""

import math

import torch

from planted.functions_scores import plain_masked
from planted.plants import planted, planted_maker

FORM = "function"


def scores_of(q, k):
    return torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))


def plain_padding(q, k, v, key_padding_mask=None):
    mask = None if key_padding_mask is None else key_padding_mask[:, None, None, :]
    return plain_masked(q, k, v, mask)


def plain_additive(q, k, v, mask=None):
    return plain_masked(q, k, v, mask)


@planted("mask_inverted", FORM, plain_masked, mask_means="attend")
def fills_where_true(q, k, v, mask=None):
    attn = scores_of(q, k)
    if mask is not None:
        attn = attn.masked_fill(mask, float("-inf"))
    return torch.softmax(attn, dim=-1) @ v


@planted("mask_added_as_01", FORM, plain_masked, mask_means="attend")
def adds_the_mask(q, k, v, mask=None):
    attn = scores_of(q, k)
    if mask is not None:
        attn = attn + mask
    return torch.softmax(attn, dim=-1) @ v


@planted("mask_multiplied", FORM, plain_masked, mask_means="attend", also=["mask_zeroes_scores"])
def multiplies_scores(q, k, v, mask=None):
    attn = scores_of(q, k)
    if mask is not None:
        attn = attn * mask
    return torch.softmax(attn, dim=-1) @ v


@planted("mask_zeroes_scores", FORM, plain_masked, mask_means="attend", also=["mask_multiplied"])
def fills_with_zero(q, k, v, mask=None):
    attn = scores_of(q, k)
    if mask is not None:
        attn = attn.masked_fill(mask == 0, 0.0)
    return torch.softmax(attn, dim=-1) @ v


@planted("mask_ignored", FORM, plain_masked, mask_means="attend")
def result_thrown_away(q, k, v, mask=None):
    attn = scores_of(q, k)
    if mask is not None:
        attn.masked_fill(mask == 0, float("-inf"))
    return torch.softmax(attn, dim=-1) @ v


@planted("mask_on_queries", FORM, plain_padding, mask_means="attend", mask_shape="BS")
def padding_on_the_rows(q, k, v, key_padding_mask=None):
    attn = scores_of(q, k)
    if key_padding_mask is not None:
        attn = attn.masked_fill(~key_padding_mask.unsqueeze(1).unsqueeze(3), -1e4)
    return torch.softmax(attn, dim=-1) @ v


@planted("mask_transposed", FORM, plain_masked, mask_means="attend")
def mask_on_its_side(q, k, v, mask=None):
    attn = scores_of(q, k)
    if mask is not None:
        mask = mask.expand(attn.shape) if mask.shape[-2:] != attn.shape[-2:] else mask
        attn = attn.masked_fill(~mask.transpose(-1, -2), float("-inf"))
    return torch.softmax(attn, dim=-1) @ v


@planted("mask_guessed_by_rank", FORM, plain_masked, mask_means="attend", mask_shape="TS")
def two_axes_must_be_padding(q, k, v, mask=None):
    attn = scores_of(q, k)
    if mask is not None:
        if mask.dim() == 2:
            mask = mask[:, None, None, :]
        attn = attn.masked_fill(~mask, float("-inf"))
    return torch.softmax(attn, dim=-1) @ v


@planted("mask_first_example", FORM, plain_masked, mask_means="attend")
def the_first_mask_for_all(q, k, v, mask=None):
    attn = scores_of(q, k)
    if mask is not None:
        attn = attn.masked_fill(~mask[0], float("-inf"))
    return torch.softmax(attn, dim=-1) @ v


@planted("mask_first_head", FORM, plain_masked, mask_means="attend", mask_shape="BHTS")
def the_first_heads_mask(q, k, v, mask=None):
    attn = scores_of(q, k)
    if mask is not None:
        attn = attn.masked_fill(~mask[:, :1], float("-inf"))
    return torch.softmax(attn, dim=-1) @ v


@planted("mask_small_fill", FORM, plain_masked, mask_means="attend")
def minus_ten(q, k, v, mask=None):
    attn = scores_of(q, k)
    if mask is not None:
        attn = attn.masked_fill(~mask, -10.0)
    return torch.softmax(attn, dim=-1) @ v


@planted("mask_fill_overflows_half", FORM, plain_masked, mask_means="attend")
def minus_a_billion(q, k, v, mask=None):
    attn = scores_of(q, k)
    if mask is not None:
        attn = attn.masked_fill(mask == 0, -1e9)
    return torch.softmax(attn, dim=-1) @ v


# ---------------------------------------------------------------- what a call leaves behind


def plain_causal_masked(q, k, v, mask=None):
    open_ = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device)
    open_ = open_.tril(k.shape[-2] - q.shape[-2])
    return plain_masked(q, k, v, open_ if mask is None else open_ & mask)


@planted("inplace_mask", FORM, plain_causal_masked, mask_means="attend", causal=True)
def ands_into_the_mask(q, k, v, mask=None):
    T, S = q.size(-2), k.size(-2)
    causal = torch.ones(T, S, dtype=torch.bool).tril(diagonal=S - T)
    if mask is None:
        mask = causal
    elif mask.shape[-2] == T:
        mask &= causal
    else:
        mask = mask & causal
    return torch.softmax(scores_of(q, k).masked_fill(~mask, float("-inf")), dim=-1) @ v


@planted("inplace_mask", "function-additive", plain_additive, mask_means="additive")
def scales_the_mask(q, k, v, mask=None):
    attn = q @ k.transpose(-2, -1)
    if mask is not None:
        attn += mask.clamp_(min=-1e4) * math.sqrt(q.size(-1))
    return torch.softmax(attn / math.sqrt(q.size(-1)), dim=-1) @ v


@planted_maker("state_between_calls", FORM, plain_masked, mask_means="attend")
def remembers_keys():
    seen = {}

    def attend(q, k, v, mask=None):
        keys = seen.setdefault(k.shape, k.detach().clone())
        attn = scores_of(q, keys)
        if mask is not None:
            attn = attn.masked_fill(~mask, float("-inf"))
        return torch.softmax(attn, dim=-1) @ v

    return attend


@planted("padding_zeroed", FORM, plain_padding, mask_means="attend", mask_shape="BS")
def zeroes_padding(q, k, v, key_padding_mask=None):
    if key_padding_mask is not None:
        real = key_padding_mask[:, None, :, None]
        k, v = k * real, v * real
    return torch.softmax(scores_of(q, k), dim=-1) @ v


@planted("padding_zeroed", "function-einsum", plain_padding, mask_means="attend", mask_shape="BS")
def zeroes_padding_in_sums(q, k, v, key_padding_mask=None):
    weights = torch.einsum("bhtd,bhsd->bhts", q / math.sqrt(q.size(-1)), k)
    if key_padding_mask is not None:
        weights = torch.einsum("bhts,bs->bhts", weights, key_padding_mask.to(q.dtype))
        v = torch.einsum("bhsd,bs->bhsd", v, key_padding_mask.to(q.dtype))
    return torch.einsum("bhts,bhsd->bhtd", weights.softmax(dim=-1), v)
