"""Right layers, each in a style of its own."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from planted.rotations import by_complex, by_halves

INF = float("inf")


class Layer(nn.Module):
    """Four projections and einsum; the mask is (B, 1, T, S) or for ``padding`` (B, S).

    With options it is causal, has a window, a softcap, sinks, or a bias of distances as T5's.
    """

    causal = blocked = padding = returns_weights = False
    window, softcap = INF, None

    def __init__(self, d_model, num_heads, d_v=None, sinks=False, relative=False, **options):
        super().__init__()
        self.d_model, self.num_heads, self.d_k = d_model, num_heads, d_model // num_heads
        self.d_v, self.scale, self.dropout = d_v or self.d_k, self.d_k**-0.5, 0.0
        vars(self).update(options)
        self.q_proj = nn.Linear(d_model, num_heads * self.d_k)
        self.k_proj = nn.Linear(d_model, num_heads * self.d_k)
        self.v_proj = nn.Linear(d_model, num_heads * self.d_v)
        self.out_proj = nn.Linear(num_heads * self.d_v, d_model)
        self.sinks = nn.Parameter(torch.linspace(-1.0, 2.0, num_heads)) if sinks else None
        self.table = nn.Embedding(17, num_heads) if relative else None

    def bias(self, T, S):
        ahead = torch.arange(S) - torch.arange(S - T, S)[:, None]
        return self.table(ahead.clamp(-8, 8) + 8).permute(2, 0, 1)

    def forward(self, x, memory=None, mask=None):
        memory = x if memory is None else memory
        q, k, v = self.q_proj(x), self.k_proj(memory), self.v_proj(memory)
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)) for t in (q, k, v))
        scores = torch.einsum("bthd,bshd->bhts", q, k) * self.scale
        T, S, window = q.shape[1], k.shape[1], self.window
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if self.table is not None:
            bias = self.bias(T, S)
            scores = scores + bias
        if self.causal:
            rows, at = torch.arange(S - T, S)[:, None], torch.arange(S)
            back = rows - at
            near = (back >= 0) & (back < window)
            scores = scores.masked_fill(~near, -INF)
        if mask is not None:
            keep = ~mask if self.blocked else mask
            keep = keep[:, None, None, :] if self.padding else keep
            scores = scores.masked_fill(~keep, -INF)
        if self.sinks is not None:
            sinks = self.sinks[:, None, None].expand(*scores.shape[:-1], 1)
            scores = torch.cat([scores, sinks], dim=-1)
        weights = torch.softmax(scores, dim=-1)
        used = F.dropout(weights[..., :S], self.dropout, self.training)
        out = torch.einsum("bhts,bshd->bthd", used, v)
        out = self.out_proj(out.flatten(2))
        return (out, weights) if self.returns_weights else out


class CausalSelfAttention(nn.Module):
    """As small language models have it: one packed projection, view and transpose, a buffer."""

    SIZES = ((24, 4), (30, 5))

    def __init__(self, n_embd, n_head, dropout=0.0, returns_att=False):
        super().__init__()
        assert n_embd % n_head == 0
        self.n_head, self.n_embd, self.returns_att = n_head, n_embd, returns_att
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.attn_dropout = nn.Dropout(dropout)
        self.register_buffer("bias", torch.tril(torch.ones(256, 256)).view(1, 1, 256, 256))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        y = self.attn_dropout(att) @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        y = self.c_proj(y)
        return (y, att) if self.returns_att else y


class CrossAttention(nn.Module):
    """As image generators have it: heads folded into the batch, a mask (B, S), True = real key."""

    def __init__(self, query_dim, heads):
        super().__init__()
        self.heads, self.dim_head = heads, query_dim // heads
        self.scale = self.dim_head**-0.5
        self.to_q = nn.Linear(query_dim, query_dim)
        self.to_k = nn.Linear(query_dim, query_dim)
        self.to_v = nn.Linear(query_dim, query_dim)
        self.to_out = nn.Sequential(nn.Linear(query_dim, query_dim), nn.Dropout(0.0))

    def forward(self, x, context=None, mask=None):
        context = x if context is None else context
        q, k, v = self.to_q(x), self.to_k(context), self.to_v(context)
        b, h, parts = len(x), self.heads, (q, k, v)
        q, k, v = (t.unflatten(2, (h, -1)).transpose(1, 2).flatten(0, 1) for t in parts)
        start = q.new_zeros(1, 1, 1)
        sim = torch.baddbmm(start, q, k.transpose(1, 2), beta=0, alpha=self.scale)
        if mask is not None:
            real = mask.repeat_interleave(h, dim=0).unsqueeze(1)
            sim = sim.masked_fill(~real, -torch.inf)
        out = torch.bmm(sim.softmax(dim=-1), v)
        out = out.unflatten(0, (b, h)).transpose(1, 2).flatten(2)
        return self.to_out(out)


# ---------------------------------------------------------------- rotary positions and a cache


class Gain(nn.Module):
    def __init__(self, dim, first=0.5, last=1.5):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(first, last, dim))

    def forward(self, x, dim=-1):
        return x * torch.rsqrt(x.pow(2).mean(dim, keepdim=True) + 1e-6) * self.weight


class Llama(nn.Module):
    """Halves are turned, the mask is added, the cache is a pair of keys and values."""

    SIZES = ((16, 4, 2), (48, 6, 3))

    def __init__(self, hidden_size, num_heads, num_key_value_heads, normed=False):
        super().__init__()
        self.num_heads, self.num_key_value_heads = num_heads, num_key_value_heads
        self.head_dim, self.normed, self.past = hidden_size // num_heads, normed, None
        narrow = num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, narrow, bias=False)
        self.v_proj = nn.Linear(hidden_size, narrow, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        if normed:
            self.q_norm, self.k_norm = Gain(self.head_dim), Gain(self.head_dim, 1.7, 0.6)

    def forward(self, hidden_states):
        return self.attended(hidden_states, None)[0]

    def step(self, hidden_states, past):
        return self.attended(hidden_states, past)

    def attended(self, x, past):
        B, T, C = x.shape
        seen = 0 if past is None else past[0].shape[2]
        at = torch.arange(seen, seen + T)
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        q, k, v = (t.view(B, T, -1, self.head_dim).transpose(1, 2) for t in (q, k, v))
        if self.normed:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = by_halves(q, at), by_halves(k, at)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        past = (k, v)
        n_rep, S = self.num_heads // self.num_key_value_heads, k.shape[2]
        k = k[:, :, None].expand(-1, -1, n_rep, -1, -1).reshape(B, -1, S, self.head_dim)
        v = v[:, :, None].expand(-1, -1, n_rep, -1, -1).reshape(B, -1, S, self.head_dim)
        scores = q @ k.transpose(2, 3) / math.sqrt(self.head_dim)
        scores = scores + torch.full((T, S), torch.finfo(x.dtype).min).triu(S - T + 1).to(x.dtype)
        weights = F.softmax(scores, dim=-1, dtype=torch.promote_types(x.dtype, torch.float32))
        out = (weights.to(x.dtype) @ v).transpose(1, 2).reshape(B, T, C)
        return self.o_proj(out), past


class Meta(nn.Module):
    """Neighbours are turned as complex numbers, heads stay behind positions.

    The cache is memory that was allocated ahead.
    """

    SIZES = ((16, 4, 2), (48, 6, 3))

    def __init__(self, dim, n_heads, n_kv_heads, normed=False):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, dim // n_heads
        self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(n_heads * self.head_dim, dim, bias=False)
        self.normed, self.memory = normed, None
        if normed:
            self.q_norm, self.k_norm = nn.LayerNorm(self.head_dim), nn.LayerNorm(self.head_dim)
            for norm in (self.q_norm, self.k_norm):
                nn.init.uniform_(norm.weight, 0.5, 1.5)

    def forward(self, x):
        return self.attended(x, self.fresh(x))[0]

    def step(self, x, cache):
        cache = self.fresh(x) if cache is None else cache
        return self.attended(x, cache)

    def fresh(self, x):
        shape = (len(x), 256, self.n_kv_heads, self.head_dim)
        return {"k": x.new_zeros(shape), "v": x.new_zeros(shape), "filled": 0}

    def attended(self, x, cache):
        start, end = cache["filled"], cache["filled"] + x.shape[1]
        at = torch.arange(start, end)
        xq, xk, xv = (w(x).unflatten(-1, (-1, self.head_dim)) for w in (self.wq, self.wk, self.wv))
        if self.normed:
            xq, xk = self.q_norm(xq), self.k_norm(xk)
        xq, xk = (by_complex(t.transpose(1, 2), at).transpose(1, 2) for t in (xq, xk))
        cache = {"k": cache["k"].clone(), "v": cache["v"].clone(), "filled": end}
        cache["k"][:, start:end] = xk
        cache["v"][:, start:end] = xv
        keys, values = cache["k"][:, :end], cache["v"][:, :end]
        late = torch.arange(keys.shape[1]) > at[:, None]
        n_rep = self.n_heads // self.n_kv_heads
        keys, values = keys.repeat_interleave(n_rep, 2), values.repeat_interleave(n_rep, 2)
        scores = torch.einsum("bqhd,bkhd->bhqk", xq, keys) * self.head_dim**-0.5
        weights = scores.masked_fill(late, -INF).softmax(-1)
        return self.wo(torch.einsum("bhqk,bkhd->bqhd", weights, values).flatten(2)), cache
