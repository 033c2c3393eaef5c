"""A causal layer as small language models have it: one packed projection, view and transpose.

A mistake replaces a step of it.
"""

import math
from functools import partial

import torch
import torch.nn as nn
from torch.nn import functional as F

from planted.plants import PLANTS, Plant

SIZES = [(24, 4), (30, 5)]
CAUSAL = {"causal": True}
INF = float("inf")


class CausalSelfAttention(nn.Module):
    dropout = 0.0
    returns_att = False

    def __init__(self, n_embd, n_head):
        super().__init__()
        assert n_embd % n_head == 0
        self.n_head, self.n_embd = n_head, n_embd
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.attn_dropout = nn.Dropout(self.dropout)
        self.register_buffer("bias", torch.tril(torch.ones(256, 256)).view(1, 1, 256, 256))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.qkv(x)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = F.softmax(self.mask(att, T), dim=-1)
        y, att = self.mix(att, v)
        y = self.out(self.merge(y, B, T, C), x)
        return (y, att) if self.returns_att else y

    def qkv(self, x):
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        return self.heads(q), self.heads(k), self.heads(v)

    def heads(self, t):
        B, T, C = t.shape
        return t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)

    def mask(self, att, T):
        return att.masked_fill(self.bias[:, :, :T, :T] == 0, -INF)

    def mix(self, att, v):
        return self.attn_dropout(att) @ v, att

    def merge(self, y, B, T, C):
        return y.transpose(1, 2).contiguous().view(B, T, C)

    def out(self, y, x):
        return self.c_proj(y)


class WithWeights(CausalSelfAttention):
    dropout = 0.2
    returns_att = True


# ---------------------------------------------------------------- steps of a few lines


def result_is_lost(self, att, T):
    att.masked_fill(self.bias[:, :, :T, :T] == 0, -INF)
    return att


def mask_of_the_first_call(self, att, T):
    if getattr(self, "made", None) is None:
        self.made = torch.full((T, T), -INF).triu(1)
    if len(self.made) < T:
        self.made = F.pad(self.made, (0, T - len(self.made), 0, T - len(self.made)))
    return att + self.made[:T, :T].to(att.dtype)


def keep_the_scores(self, att, T):
    self.scores = CausalSelfAttention.mask(self, att, T)
    return self.scores


def mean_of_heads(self, att, v):
    y = (att @ v).mean(dim=1, keepdim=True)
    return y.repeat(1, self.n_head, 1, 1), att


def weights_as_dropped(self, att, v):
    att = self.attn_dropout(att)
    return att @ v, att


def count_the_calls(self, x):
    q, k, v = CausalSelfAttention.qkv(self, x)
    self.calls = getattr(self, "calls", 0) + 1
    return q * (1 + 0.1 * min(self.calls - 1, 5)), k, v


def louder_in_training(self, x):
    q, k, v = CausalSelfAttention.qkv(self, x)
    return (1.2 * q if self.training else q), k, v


def values_of_x(self, x):
    q, k, _ = CausalSelfAttention.qkv(self, x)
    return q, k, self.heads(x)


def no_bias(self, x):
    q, k, v = (x @ self.c_attn.weight.T).chunk(3, dim=-1)
    return self.heads(q), self.heads(k), self.heads(v)


def weight_without_gradient(self, x):
    q, k, v = F.linear(x, self.c_attn.weight.data, self.c_attn.bias).chunk(3, dim=-1)
    return self.heads(q), self.heads(k), self.heads(v)


def x_used_again(self, x):
    """The name x for what was projected."""
    found = []
    for weight, bias in zip(self.c_attn.weight.chunk(3), self.c_attn.bias.chunk(3), strict=True):
        x = F.linear(x, weight, bias)
        found.append(self.heads(x))
    return found


def copies(self, n_embd, n_head):
    CausalSelfAttention.__init__(self, n_embd, n_head)
    with torch.no_grad():
        self.c_attn.weight.copy_(self.c_attn.weight[:n_embd].repeat(3, 1))
        self.c_attn.bias.copy_(self.c_attn.bias[:n_embd].repeat(3))


def centre_x(self, x):
    y = CausalSelfAttention.forward(self, x)
    with torch.no_grad():
        x.sub_(x.mean(-1, keepdim=True))
    return y


# ---------------------------------------------------------------- mistakes, by step

PARTS = {  # q, k and v (B, H, T, d)
    "query_key_shared": lambda q, k, v: (q, q, v),
    "key_value_swapped": lambda q, k, v: (q, v, k),
    "query_key_swapped": lambda q, k, v: (k, q, v),
    "value_is_key": lambda q, k, v: (q, k, k),
    "value_is_query": lambda q, k, v: (q, k, q),
    "all_shared": lambda q, k, v: (q, q, q),
    "order_rotated": lambda v, k, q: (q, k, v),
    "batch_leak": lambda q, k, v: (q, k, v / v.detach().abs().amax(dim=(0, 1, 2), keepdim=True)),
    "not_deterministic": lambda q, k, v: (q, k, v + torch.randn_like(v) / 50),
    "gradient_detached_q": lambda q, k, v: (q.data, k, v),
    "gradient_detached_k": lambda q, k, v: (q, k.clone().detach(), v),
    "gradient_detached_v": lambda q, k, v: (q, k, v.detach()),
}
STEPS = {
    "qkv": {
        "state_between_calls": count_the_calls,
        "values_unprojected": values_of_x,
        "projection_bias_missing": no_bias,
        "projection_of_projection": x_used_again,
        "gradient_missing_projection": weight_without_gradient,
        "train_eval_differ": louder_in_training,
        **{
            name: lambda self, x, change=change: change(*CausalSelfAttention.qkv(self, x))
            for name, change in PARTS.items()
        },
    },
    "heads": {
        "heads_split_without_transpose": lambda self, t: t.contiguous().view(
            t.shape[0], self.n_head, t.shape[1], t.shape[2] // self.n_head
        ),
        "heads_interleaved": lambda self, t: t.view(*t.shape[:2], -1, self.n_head).permute(
            0, 3, 1, 2
        ),
        "one_head_only": lambda self, t: t.unsqueeze(1),
    },
    "mask": {
        "causal_missing": result_is_lost,
        "causal_sees_one_ahead": lambda self, att, T: att.masked_fill(
            torch.ones(T, T).tril(1) == 0, -INF
        ),
        "causal_excludes_self": lambda self, att, T: att.masked_fill(
            torch.ones(T, T).triu(0) == 1, torch.finfo(att.dtype).min
        ),
        "causal_reversed": lambda self, att, T: att.masked_fill(
            self.bias[:, :, :T, :T].bool().tril(-1), -INF
        ),
        "causal_only_in_training": lambda self, att, T: (
            CausalSelfAttention.mask(self, att, T) if self.training else att
        ),
        "causal_cached_length": mask_of_the_first_call,
        "dropout_before_softmax": lambda self, att, T: CausalSelfAttention.mask(
            self, self.attn_dropout(att), T
        ),
    },
    "mix": {
        "heads_averaged": mean_of_heads,
        "gradient_detached_weights": lambda self, att, v: (att.data @ v, att),
        "gradient_wrong": lambda self, att, v: (att @ (2 * v - v.detach()), att),
        "dropout_in_evaluation": lambda self, att, v: (F.dropout(att, 0.15) @ v, att),
        "weights_after_dropout": weights_as_dropped,
        "weights_before_softmax": lambda self, att, v: (
            self.attn_dropout(att) @ v,
            self.__dict__.pop("scores"),
        ),
        "weights_averaged": lambda self, att, v: (self.attn_dropout(att) @ v, att.mean(dim=1)),
        "weights_wrong": lambda self, att, v: (self.attn_dropout(att) @ v, att.flip(1)),
    },
    "merge": {
        "heads_merged_without_transpose": lambda self, y, B, T, C: y.contiguous().view(B, T, C),
        "heads_reversed": lambda self, y, B, T, C: torch.cat(y.unbind(1)[::-1], dim=-1),
    },
    "out": {
        "output_projection_missing": lambda self, y, x: y,
        "output_projection_transposed": lambda self, y, x: (
            y @ self.c_proj.weight + self.c_proj.bias
        ),
        "output_bias_missing": lambda self, y, x: F.linear(y, self.c_proj.weight),
        "output_bias_twice": lambda self, y, x: self.c_proj(y) + self.c_proj.bias,
        "residual_added": lambda self, y, x: x + self.c_proj(y),
        "channels_reversed": lambda self, y, x: torch.flip(self.c_proj(y), (2,)),
        "output_dtype": lambda self, y, x: self.c_proj(y).double(),
        "gradient_missing": lambda self, y, x: self.c_proj(y).detach(),
    },
    "__init__": {"projections_cloned": copies},
    "forward": {"inplace_arguments": centre_x},
}
BESIDE = {  # what the changed step needs
    "weights_before_softmax": {"mask": keep_the_scores},
    "dropout_before_softmax": {"mix": lambda self, att, v: (att @ v, att), "dropout": 0.2},
}


def build(size: int, kind: type) -> nn.Module:
    torch.manual_seed(7 + size)
    return kind(*SIZES[size]).eval()


def plant(mistake, steps):
    kind = WithWeights if mistake.startswith("weights") else CausalSelfAttention
    wrong = type("CausalSelfAttention", (kind,), steps)
    PLANTS.append(
        Plant(mistake, "packed", partial(build, kind=wrong), partial(build, kind=kind), CAUSAL)
    )


for _step, _mistakes in STEPS.items():
    for _mistake, _change in _mistakes.items():
        plant(_mistake, {_step: _change, **BESIDE.get(_mistake, {})})
