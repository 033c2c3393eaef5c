"""Wrong scales and wrong softmaxes, as functions of q, k, v (B, H, T, d)."""

import math

import torch
import torch.nn.functional as F

from planted.plants import planted

FORM = "function"


def plain(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def plain_masked(q, k, v, mask=None):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def scaled(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, scale=0.3)


# ---------------------------------------------------------------- the scale


@planted("scale_missing", FORM, plain)
def no_scale(q, k, v):
    attn = torch.matmul(q, k.transpose(-2, -1))
    attn = attn.softmax(dim=-1)
    return torch.matmul(attn, v)


@planted("scale_twice", FORM, plain)
def scaled_queries_and_scores(q, k, v):
    scale = q.size(-1) ** -0.5
    q = q * scale
    attn = (q @ k.transpose(-2, -1)) * scale
    return attn.softmax(dim=-1) @ v


@planted("scale_multiplied", FORM, plain)
def times_root(q, k, v):
    energy = torch.einsum("bhqd,bhkd->bhqk", q, k)
    attention = torch.softmax(energy * math.sqrt(q.shape[-1]), dim=-1)
    return torch.einsum("bhqk,bhkd->bhqd", attention, v)


@planted("scale_by_d_k", FORM, plain)
def without_the_root(q, k, v):
    d_k = k.size(-1)
    scores = torch.matmul(q, k.permute(0, 1, 3, 2)) / d_k
    return torch.matmul(F.softmax(scores, -1), v)


@planted("scale_by_model_width", FORM, plain)
def by_embed_size(q, k, v):
    heads, head_dim = q.shape[1], q.shape[3]
    embed_size = heads * head_dim
    energy = torch.einsum("nhqd,nhkd->nhqk", [q, k])
    attention = torch.softmax(energy / (embed_size ** (1 / 2)), dim=3)
    return torch.einsum("nhql,nhld->nhqd", [attention, v])


@planted("scale_by_num_heads", FORM, plain)
def by_heads(q, k, v):
    n_head = q.shape[1]
    w = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(n_head)
    return torch.matmul(w.softmax(-1), v)


@planted("scale_by_value_width", FORM, plain)
def by_value_width(q, k, v):
    v_head_dim = v.size(-1)
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * v_head_dim**-0.5
    return scores.softmax(dim=-1).matmul(v)


@planted("scale_ignored", FORM, scaled, scale=0.3)
def given_scale_is_not_used(q, k, v, scale=0.3):
    attn_weight = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    return torch.softmax(attn_weight, dim=-1) @ v


# ---------------------------------------------------------------- the softmax


@planted("softmax_over_queries", FORM, plain)
def dim_minus_two(q, k, v):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return F.softmax(scores, dim=-2) @ v


@planted("softmax_over_heads", FORM, plain)
def dim_one(q, k, v):
    attn_scores = torch.matmul(q, k.transpose(-1, -2)) / k.shape[-1] ** 0.5
    attn_weights = torch.softmax(attn_scores, dim=1)
    return torch.matmul(attn_weights, v)


@planted("softmax_over_batch", FORM, plain)
def dim_zero(q, k, v):
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    p_attn = F.softmax(scores, dim=0)
    return torch.matmul(p_attn, v)


@planted("softmax_flattened", FORM, plain)
def over_all_cells(q, k, v):
    dots = torch.einsum("bhid,bhjd->bhij", q, k) * (q.shape[-1] ** -0.5)
    b, h, i, j = dots.shape
    attn = dots.view(b, h, i * j).softmax(dim=-1).view(b, h, i, j)
    return torch.einsum("bhij,bhjd->bhid", attn, v)


@planted("softmax_low_precision", FORM, plain)
def in_bfloat16(q, k, v):
    scores = (q @ k.transpose(-2, -1)) * (q.size(-1) ** -0.5)
    probs = torch.softmax(scores, dim=-1, dtype=torch.bfloat16).to(q.dtype)
    return probs @ v


@planted("softmax_no_maximum", FORM, plain)
def naive_exp(q, k, v):
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
    e = torch.exp(scores)
    return torch.matmul(e / e.sum(dim=-1, keepdim=True), v)


@planted("softmax_before_mask", FORM, plain_masked, mask_means="attend")
def mask_after_softmax(q, k, v, mask=None):
    att = F.softmax(q @ k.transpose(-2, -1) * (1.0 / math.sqrt(k.size(-1))), dim=-1)
    if mask is not None:
        att = att.masked_fill(mask == 0, 0)
    return att @ v


@planted("softmax_twice", FORM, plain)
def softmax_of_softmax(q, k, v):
    weights = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(k.size(-1)), dim=-1)
    weights = F.softmax(weights, dim=-1)
    return weights @ v


@planted("softmax_sigmoid", FORM, plain)
def sigmoid_gate(q, k, v):
    weights = torch.sigmoid(q @ k.transpose(-2, -1) / math.sqrt(k.size(-1)))
    return weights @ v


@planted("softmax_relu_normalised", FORM, plain)
def relu_over_sum(q, k, v):
    weights = F.relu(q @ k.transpose(-2, -1) / math.sqrt(k.size(-1)))
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-6)
    return weights @ v


@planted("softmax_missing", FORM, plain)
def raw_scores(q, k, v):
    weights = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
    return weights @ v
