"""Wrong heads, leaks, lost gradients and what else a function of q, k, v can hide."""

import math

import torch
import torch.nn.functional as F

from planted.functions_masks import scores_of
from planted.functions_scores import plain
from planted.plants import planted

FORM = "function"


def plain_grouped(q, k, v):
    g = q.shape[1] // k.shape[1]
    return plain(q, k.repeat_interleave(g, dim=1), v.repeat_interleave(g, dim=1))


def plain_weights(q, k, v):
    w = scores_of(q, k).softmax(-1)
    return w @ v, w


@planted("kv_heads_tiled", FORM, plain_grouped, heads=4, kv_heads=2)
def repeat_tiles(q, k, v):
    n_rep = q.shape[1] // k.shape[1]
    k, v = k.repeat(1, n_rep, 1, 1), v.repeat(1, n_rep, 1, 1)
    return torch.softmax(scores_of(q, k), dim=-1) @ v


@planted("kv_first_head_for_all", FORM, plain_grouped, heads=4, kv_heads=2)
def expands_head_zero(q, k, v):
    k = k[:, 0:1].expand(-1, q.shape[1], -1, -1)
    v = v[:, 0:1].expand(-1, q.shape[1], -1, -1)
    return torch.softmax(scores_of(q, k), dim=-1) @ v


@planted("heads_averaged", FORM, plain)
def mean_over_heads(q, k, v):
    w = scores_of(q, k).softmax(-1).mean(dim=1, keepdim=True)
    return w @ v


@planted("one_head_only", FORM, plain)
def weights_of_head_zero(q, k, v):
    w = scores_of(q[:, 0], k[:, 0]).softmax(-1)
    return torch.einsum("bij,bhjd->bhid", w, v)


@planted("key_value_swapped", FORM, plain)
def takes_values_for_keys(q, k, v):
    k, v = v, k
    return F.scaled_dot_product_attention(q, k, v)


@planted("query_key_swapped", FORM, plain)
def keys_ask(q, k, v):
    scores = k @ q.transpose(-2, -1) / math.sqrt(q.size(-1))
    return scores.softmax(-1) @ v


@planted("value_is_key", FORM, plain)
def mixes_the_keys(q, k, v):
    return scores_of(q, k).softmax(-1) @ k


@planted("batch_leak", FORM, plain)
def centres_over_the_batch(q, k, v):
    q = q - q.mean(dim=0, keepdim=True)
    return scores_of(q, k).softmax(-1) @ v


@planted("inplace_arguments", FORM, plain)
def scales_in_place(q, k, v):
    q *= q.size(-1) ** -0.5
    return (q @ k.transpose(-2, -1)).softmax(dim=-1) @ v


@planted("gradient_detached_q", FORM, plain)
def q_from_data(q, k, v):
    q = q.detach() / math.sqrt(q.size(-1))
    return (q @ k.transpose(-2, -1)).softmax(dim=-1) @ v


@planted("gradient_detached_k", FORM, plain)
def k_is_a_cached_copy(q, k, v):
    keys = k.detach().clone()
    return scores_of(q, keys).softmax(dim=-1) @ v


@planted("gradient_detached_v", FORM, plain)
def v_from_data(q, k, v):
    return scores_of(q, k).softmax(dim=-1) @ v.data


@planted("gradient_detached_weights", FORM, plain)
def weights_without_gradient(q, k, v):
    with torch.no_grad():
        attn = scores_of(q, k).softmax(dim=-1)
    return attn @ v


@planted("gradient_missing", FORM, plain)
@torch.no_grad()
def decorated(q, k, v):
    return scores_of(q, k).softmax(dim=-1) @ v


@planted("dropout_in_evaluation", FORM, plain)
def dropout_always(q, k, v):
    attn = scores_of(q, k).softmax(dim=-1)
    attn = F.dropout(attn, p=0.1)
    return attn @ v


@planted("weights_before_softmax", FORM, plain_weights)
def returns_the_scores(q, k, v):
    scores = scores_of(q, k)
    return torch.matmul(F.softmax(scores, dim=-1), v), scores


@planted("weights_averaged", FORM, plain_weights)
def returns_one_map(q, k, v):
    w = scores_of(q, k).softmax(-1)
    return w @ v, w.mean(dim=1)


def plain_upcast(q, k, v):
    wide = torch.promote_types(q.dtype, torch.float32)
    return plain(q.to(wide), k.to(wide), v.to(wide)).to(q.dtype)


@planted("not_float32_inside", FORM, plain_upcast)
def all_in_the_dtype_of_q(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) * q.size(-1) ** -0.5, dim=-1) @ v


@planted("block_remainder_dropped", FORM, plain)
def whole_blocks_of_keys(q, k, v, block=16):
    if k.size(-2) < block:
        return scores_of(q, k).softmax(-1) @ v
    top = q.new_full((*q.shape[:-1], 1), -torch.inf)
    total, out = torch.zeros_like(top), torch.zeros_like(q[..., :1] * v[..., :1, :])
    for i in range(k.size(-2) // block):
        part = slice(i * block, (i + 1) * block)
        s = scores_of(q, k[..., part, :])
        new = torch.maximum(top, s.amax(-1, keepdim=True))
        e, shrink = (s - new).exp(), (top - new).exp()
        out, total, top = out * shrink + e @ v[..., part, :], total * shrink + e.sum(-1, True), new
    return out / total
