"""A causal layer as small language models have it: one packed projection, view and transpose.

Each mistake is a subclass that overrides a step.
"""

import math

import torch
import torch.nn as nn
from torch.nn import functional as F

CAUSAL = {"causal": True}
KINDS: dict[str, type["CausalSelfAttention"]] = {}


def called(mistake):
    def keep(kind):
        kind.__name__ = "CausalSelfAttention"
        KINDS[mistake] = kind
        return kind

    return keep


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
        return att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))

    def mix(self, att, v):
        return self.attn_dropout(att) @ v, att

    def merge(self, y, B, T, C):
        return y.transpose(1, 2).contiguous().view(B, T, C)

    def out(self, y, x):
        return self.c_proj(y)


class WithWeights(CausalSelfAttention):
    dropout = 0.2
    returns_att = True


# ---------------------------------------------------------------- heads


@called("heads_split_without_transpose")
class _(CausalSelfAttention):
    def heads(self, t):
        B, T, C = t.shape
        return t.contiguous().view(B, self.n_head, T, C // self.n_head)


@called("heads_merged_without_transpose")
class _(CausalSelfAttention):
    def merge(self, y, B, T, C):
        return y.contiguous().view(B, T, C)


@called("one_head_only")
class _(CausalSelfAttention):
    def heads(self, t):
        return t.unsqueeze(1)


@called("heads_averaged")
class _(CausalSelfAttention):
    def mix(self, att, v):
        y = (att @ v).mean(dim=1, keepdim=True)
        return y.repeat(1, self.n_head, 1, 1), att


# ---------------------------------------------------------------- projections


@called("query_key_shared")
class _(CausalSelfAttention):
    def qkv(self, x):
        q, _, v = super().qkv(x)
        return q, q, v


@called("key_value_swapped")
class _(CausalSelfAttention):
    def qkv(self, x):
        q, v, k = super().qkv(x)
        return q, k, v


@called("query_key_swapped")
class _(CausalSelfAttention):
    def qkv(self, x):
        k, q, v = super().qkv(x)
        return q, k, v


@called("value_is_key")
class _(CausalSelfAttention):
    def qkv(self, x):
        q, k, _ = super().qkv(x)
        return q, k, k


@called("projections_cloned")
class _(CausalSelfAttention):
    def __init__(self, n_embd, n_head):
        super().__init__(n_embd, n_head)
        with torch.no_grad():
            self.c_attn.weight.copy_(self.c_attn.weight[:n_embd].repeat(3, 1))
            self.c_attn.bias.copy_(self.c_attn.bias[:n_embd].repeat(3))


@called("output_projection_missing")
class _(CausalSelfAttention):
    def out(self, y, x):
        return y


@called("output_bias_twice")
class _(CausalSelfAttention):
    def out(self, y, x):
        return super().out(y, x) + self.c_proj.bias


@called("residual_added")
class _(CausalSelfAttention):
    def out(self, y, x):
        return x + self.c_proj(y)


# ---------------------------------------------------------------- causal


@called("causal_missing")
class _(CausalSelfAttention):
    def mask(self, att, T):
        att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        return att


@called("causal_sees_one_ahead")
class _(CausalSelfAttention):
    def mask(self, att, T):
        return att.masked_fill(torch.ones(T, T).tril(1) == 0, float("-inf"))


@called("causal_excludes_self")
class _(CausalSelfAttention):
    def mask(self, att, T):
        return att.masked_fill(torch.ones(T, T).triu(0) == 1, torch.finfo(att.dtype).min)


@called("causal_reversed")
class _(CausalSelfAttention):
    def mask(self, att, T):
        return att.masked_fill(self.bias[:, :, :T, :T].bool().tril(-1), float("-inf"))


@called("causal_only_in_training")
class _(CausalSelfAttention):
    def mask(self, att, T):
        return super().mask(att, T) if self.training else att


@called("causal_cached_length")
class _(CausalSelfAttention):
    def mask(self, att, T):
        if getattr(self, "made", None) is None:
            self.made = torch.full((T, T), float("-inf")).triu(1)
        if len(self.made) < T:
            self.made = F.pad(self.made, (0, T - len(self.made), 0, T - len(self.made)))
        return att + self.made[:T, :T].to(att.dtype)


# ---------------------------------------------------------------- leaks and state


@called("batch_leak")
class _(CausalSelfAttention):
    def qkv(self, x):
        q, k, v = super().qkv(x)
        return q, k, v / v.detach().abs().amax(dim=(0, 1, 2), keepdim=True)


@called("state_between_calls")
class _(CausalSelfAttention):
    def qkv(self, x):
        q, k, v = super().qkv(x)
        self.calls = getattr(self, "calls", 0) + 1
        return q * (1 + 0.1 * min(self.calls - 1, 5)), k, v


@called("inplace_arguments")
class _(CausalSelfAttention):
    def forward(self, x):
        y = super().forward(x)
        with torch.no_grad():
            x.sub_(x.mean(-1, keepdim=True))
        return y


@called("gradient_detached_q")
class _(CausalSelfAttention):
    def qkv(self, x):
        q, k, v = super().qkv(x)
        return q.data, k, v


@called("gradient_detached_k")
class _(CausalSelfAttention):
    def qkv(self, x):
        q, k, v = super().qkv(x)
        return q, k.clone().detach(), v


@called("gradient_detached_v")
class _(CausalSelfAttention):
    def qkv(self, x):
        q, k, v = super().qkv(x)
        return q, k, v.detach()


@called("gradient_detached_weights")
class _(CausalSelfAttention):
    def mix(self, att, v):
        return att.data @ v, att


# ---------------------------------------------------------------- dropout and weights


@called("dropout_in_evaluation")
class _(CausalSelfAttention):
    def mix(self, att, v):
        return F.dropout(att, 0.15) @ v, att


@called("weights_after_dropout")
class _(WithWeights):
    def mix(self, att, v):
        att = self.attn_dropout(att)
        return att @ v, att


@called("weights_before_softmax")
class _(WithWeights):
    def mask(self, att, T):
        self.scores = super().mask(att, T)
        return self.scores

    def mix(self, att, v):
        return self.attn_dropout(att) @ v, self.__dict__.pop("scores")


@called("weights_averaged")
class _(WithWeights):
    def mix(self, att, v):
        return self.attn_dropout(att) @ v, att.mean(dim=1)
