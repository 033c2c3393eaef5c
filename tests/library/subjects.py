"""Attentions that several tests of ``diagnose`` begin with, and what is read of its reports."""

import math

import torch
import torch.nn.functional as F
from torch import nn


def scores_of(q, k):
    return q @ k.mT / math.sqrt(q.shape[-1])


def plain(q, k, v):
    return scores_of(q, k).softmax(-1) @ v


def sdpa(q, k, v, attn_mask=None):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)


def torch_layer(**options):
    torch.manual_seed(0)
    return nn.MultiheadAttention(12, 3, batch_first=True, **options)


class Separate(nn.Module):
    """Four projections; what is done between them is up to ``attend``."""

    def __init__(self, width=12, heads=3, kv_heads=None):
        super().__init__()
        torch.manual_seed(0)
        self.num_heads, self.num_kv_heads = heads, kv_heads or heads
        self.d = width // heads
        self.q_proj, self.out_proj = nn.Linear(width, width), nn.Linear(width, width)
        narrow = self.num_kv_heads * self.d
        self.k_proj, self.v_proj = nn.Linear(width, narrow), nn.Linear(width, narrow)

    def heads_of(self, x):
        return x.unflatten(-1, (-1, self.d)).transpose(1, 2)

    def parts(self, x):
        return [self.heads_of(proj(x)) for proj in (self.q_proj, self.k_proj, self.v_proj)]

    def merged(self, out):
        return self.out_proj(out.transpose(1, 2).flatten(2))

    def forward(self, x):
        return self.merged(self.attend(*self.parts(x)))

    def attend(self, q, k, v):
        return plain(q, k, v)


def words_of(report, *names):
    return "\n".join(text for name in names for text in getattr(report, name))
