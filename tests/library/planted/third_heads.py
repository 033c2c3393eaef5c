"""Modules: matrices that are bare parameters, packed keys and values, a list of small heads."""

from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from planted.plants import PLANTS, Plant


def mixed(q, k, v, mask, weigh=None):
    """Attention of (B, T, H, d), the heads' axis left where it is."""
    scores = torch.einsum("bqhc,bkhc->bqhk", q, k) / q.shape[-1] ** 0.5
    if mask is not None:
        scores = torch.where(mask, scores, -torch.inf)
    weights = scores.softmax(dim=-1)
    return torch.einsum("bqhk,bkhc->bqhc", weights if weigh is None else weigh(weights), v)


class Base(nn.Module):
    """What both kinds of layer share; ``parts`` are methods that take another's place."""

    def __init__(self, width, heads, parts):
        super().__init__()
        self.num_heads = heads
        for name, part in parts.items():
            setattr(self, name, partial(part, self))

    def sources(self, x, context):
        return x, context, context

    def split(self, y):
        return y.unflatten(-1, (self.num_heads, -1))

    def merge(self, y):
        return y.flatten(start_dim=2)

    def finish(self, out, x):
        return self.leave(out)

    def forward(self, x, context=None):
        three = self.project(*self.sources(x, x if context is None else context))
        return self.finish(self.merge(mixed(*map(self.split, three), None)), x)


class Matrices(Base):
    """Four parameters of (out, in), no bias."""

    names = ("into_q", "into_k", "into_v", "outward")
    where: ClassVar = {"q": "into_q", "k": "into_k", "v": "into_v", "out": "outward"}

    def __init__(self, parts):
        super().__init__(12, 3, parts)
        for name in self.names:
            setattr(self, name, nn.Parameter(torch.randn(12, 12) / 12**0.5))

    def project(self, *sources):
        matrices = (getattr(self, name) for name in self.names[:3])
        return [torch.einsum("oi,bti->bto", m, s) for m, s in zip(matrices, sources, strict=True)]

    def leave(self, out):
        return torch.einsum("oi,bti->bto", self.outward, out)


class PackedPairs(Base):
    """Keys and values from one matrix, biases everywhere."""

    where: ClassVar = {"q": "ask.weight", "kv": "pair.weight", "out": "close.weight"}

    def __init__(self, parts):
        super().__init__(16, 4, parts)
        self.ask, self.pair, self.close = nn.Linear(16, 16), nn.Linear(16, 32), nn.Linear(16, 16)
        for linear in (self.ask, self.pair, self.close):
            nn.init.normal_(linear.bias)

    def project(self, asking, for_keys, for_values):
        k, v = self.pair(for_keys).tensor_split(2, dim=2)
        if for_values is not for_keys:
            v = self.pair(for_values).tensor_split(2, dim=2)[1]
        return [self.ask(asking), k, v]

    def leave(self, out):
        return self.close(out)


def seeded(make):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return make().eval()


def layer(size, **parts):
    return seeded(lambda: (Matrices, PackedPairs)[size](parts))


def biased(_size, **parts):
    return seeded(lambda: PackedPairs(parts))


EITHER = partial(layer)
SAID = {
    "causal": False,
    "arguments": "x, context=context",
    "projections": lambda fn: fn.where,
}


def plant(mistake, good=EITHER, **parts):
    PLANTS.append(Plant(mistake, "third", partial(good, **parts), good, SAID))


def cut_apart(self, y):
    """(B, T, H·d) read as (B, H, T, d)."""
    B, T, _ = y.shape
    return y.reshape(B, self.num_heads, T, -1).transpose(1, 2)


def glued(self, y):
    """(B, H, T, d) read as (B, T, H·d)."""
    B, T, _, _ = y.shape
    return y.transpose(1, 2).reshape(B, T, -1)


def transposed_way_out(self, out):
    if isinstance(self, Matrices):
        return torch.einsum("oi,bto->bti", self.outward, out)
    return torch.einsum("oi,bto->bti", self.close.weight, out) + self.close.bias


def unprojected(self, x, context, _):
    q, k, _ = type(self).project(self, x, context, context)
    return [q, k, context]


def from_one(self, x, context, _=None):
    """Queries by the matrix of the keys."""
    _, k, v = type(self).project(self, x, context, context)
    return [type(self).project(self, x, x, x)[1], k, v]


def all_from_one(self, x, context, _):
    return [type(self).project(self, t, t, t)[2] for t in (x, context, context)]


def without_bias(self, x, context, _):
    return [F.linear(x, self.ask.weight), *self.pair(context).tensor_split(2, dim=2)]


plant("heads_split_without_transpose", split=cut_apart)
plant("heads_merged_without_transpose", merge=glued)
plant("heads_interleaved", split=lambda self, y: y.unflatten(-1, (-1, self.num_heads)).mT)
plant("query_key_shared", project=from_one)
plant(
    "all_shared",
    project=lambda self, x, context, _: [from_one(self, t, t)[0] for t in (x, context, context)],
)
plant("output_projection_missing", leave=lambda self, out: out)
plant("output_projection_transposed", leave=transposed_way_out)
plant("keys_from_x", sources=lambda self, x, context: (x, x, context))
plant("values_from_x", sources=lambda self, x, context: (x, context, x))
plant("queries_from_context", sources=lambda self, x, context: (context, context, context))
plant("values_unprojected", project=unprojected)
plant("residual_added", finish=lambda self, out, x: self.leave(out) + x)
plant("projection_bias_missing", biased, project=without_bias)
plant("output_bias_twice", biased, leave=lambda self, out: self.close(out) + self.close.bias)
plant("output_bias_missing", biased, leave=lambda self, out: F.linear(out, self.close.weight))


def copied(size):
    made = layer(size)
    with torch.no_grad():
        if isinstance(made, Matrices):
            made.into_k.copy_(made.into_q)
        else:
            made.pair.weight[:16].copy_(made.ask.weight)
            made.pair.bias[:16].copy_(made.ask.bias)
    return made


PLANTS.append(Plant("projections_cloned", "third", copied, EITHER, SAID))


# A list of small heads.
class SmallHead(nn.Module):
    def __init__(self, width, d, dropout):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, d, bias=False) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, closed, mistake):
        weights = torch.baddbmm(
            closed, self.query(x), self.key(x).mT, alpha=self.key.out_features**-0.5
        ).softmax(dim=2)
        if mistake == "dropout_in_evaluation":
            dropped = F.dropout(weights, self.dropout.p)
        else:
            dropped = self.dropout(weights)
        return dropped @ self.value(x), weights, dropped


class Committee(nn.Module):
    """Causal; hands back the weights of its heads where they are asked for."""

    def __init__(self, size, mistake="", dropout=0.0, told=False):
        super().__init__()
        self.mistake, self.told = mistake, told
        self.num_heads, d = (2, 5) if size == 0 else (3, 4)
        width = self.num_heads * d
        self.heads = nn.ModuleList(SmallHead(width, d, dropout) for _ in range(self.num_heads))
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        T = x.shape[1]
        closed = torch.triu(x.new_full((T, T), -torch.inf), diagonal=1)
        if self.mistake == "causal_only_in_training" and not self.training:
            closed = torch.zeros_like(closed)
        outs, weights, dropped = zip(*[h(x, closed, self.mistake) for h in self.heads], strict=True)
        out = self.proj(torch.cat(outs, dim=2))
        if self.mistake == "train_eval_differ" and self.training:
            out = 0.5 * out
        if not self.told:
            return out
        return out, torch.stack(dropped if self.mistake == "weights_after_dropout" else weights, 1)


def committee(size, **kwargs):
    return seeded(lambda: Committee(size, **kwargs))


for _mistake, _how in {
    "causal_only_in_training": {},
    "train_eval_differ": {},
    "dropout_in_evaluation": {"dropout": 0.2},
    "weights_after_dropout": {"dropout": 0.2, "told": True},
}.items():
    PLANTS.append(
        Plant(
            _mistake,
            "third",
            partial(committee, mistake=_mistake, **_how),
            partial(committee, **_how),
            {"causal": True},
        )
    )
