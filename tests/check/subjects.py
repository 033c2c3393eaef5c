"""Attentions that several tests of ``diagnose`` begin with, and what is read of its reports."""

import math
import re

import torch
import torch.nn.functional as F
from planted.functions import plain
from torch import nn

from attn_check import diagnose


def scores_of(q, k):
    return q @ k.mT / math.sqrt(q.shape[-1])


def sdpa(q, k, v, attn_mask=None):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)


def unscaled(q, k, v):
    return (q @ k.mT).softmax(-1) @ v


def past_of(q, k):
    """Earlier keys and a query's own, the queries being the last."""
    T, S = q.shape[-2], k.shape[-2]
    return torch.ones(T, S, dtype=torch.bool).tril(S - T)


def closing(close, score=scores_of):
    """What ``close`` makes of the scores and the mask, where there is one."""

    def fn(q, k, v, mask=None):
        scores = score(q, k)
        return (scores if mask is None else close(scores, mask)).softmax(-1) @ v

    return fn


def filled(number=None):
    """A mask that fills with the number, or with the least one of the scores' dtype."""
    return closing(
        lambda scores, mask: scores.masked_fill(
            ~mask, torch.finfo(scores.dtype).min if number is None else number
        )
    )


def broken(q, k, v):
    raise RuntimeError("shape of nothing")


def where_lengths_agree(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[-2] == k.shape[-2])


def torch_layer(**options):
    torch.manual_seed(0)
    return nn.MultiheadAttention(12, 3, batch_first=True, **options)


class Separate(nn.Module):
    """Four projections; what is done between them is up to ``attend``."""

    def __init__(self, width=12, heads=3, kv_heads=None, attend=None):
        super().__init__()
        if attend is not None:
            self.attend = attend
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


class Masked(Separate):
    def forward(self, x, mask=None):
        return self.merged(self.attend(*self.parts(x), mask))


class Packed(nn.Module):
    """One projection of queries, keys and values, under many names and in many orders."""

    def __init__(
        self,
        packed="qkv",
        out="proj",
        heads="num_heads",
        kv_heads=None,
        order="qkv",
        by_head=False,
        attend=plain,
    ):
        super().__init__()
        torch.manual_seed(0)
        setattr(self, heads, 4)
        if kv_heads:
            setattr(self, kv_heads, 2)
        self.names, self.order, self.by_head = (packed, out), order, by_head
        self.attend = attend
        self.rows = [16, 8, 8] if kv_heads else [16, 16, 16]
        self.add_module(packed, nn.Linear(16, sum(self.rows)))
        self.add_module(out, nn.Linear(16, 16))

    def forward(self, x):
        packed, out = (getattr(self, name) for name in self.names)
        if self.by_head:
            parts = packed(x).unflatten(-1, (4, -1)).transpose(1, 2).chunk(3, dim=-1)
        else:
            parts = packed(x).split(self.rows, dim=-1)
            parts = [part.unflatten(-1, (-1, 4)).transpose(1, 2) for part in parts]
        parts = dict(zip(self.order, parts, strict=True))
        k, v = (parts[role].repeat_interleave(16 // self.rows[1], dim=1) for role in "kv")
        heads = self.attend(parts["q"], k, v)
        return out(heads.transpose(1, 2).reshape(x.shape))


def words_of(report, *names):
    return "\n".join(text for name in names for text in getattr(report, name))


def headline(report):
    return " ".join(str(report).partition("\n\n")[0].split())


WITHOUT = "^(?!.*{})"  # a pattern of what is nowhere said


def row(fn, mistakes, *patterns, **options):
    """What is asked, which mistakes must be found, and what must be said."""
    return fn, mistakes, patterns, options


def check_report(fn, mistakes, patterns=(), options=None):
    """And each report says something of gradients and of half precision."""
    report = diagnose(fn, **(options or {}))
    assert sorted(report.mistakes, key=str) == mistakes, report
    text = " ".join(str(report).split())
    for pattern in (*patterns, "gradient", "[Hh]alf[ -]precision|float16"):
        assert re.search(pattern, text), (pattern, report)
