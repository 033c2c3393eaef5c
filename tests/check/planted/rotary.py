"""Two layers with rotary positions, grouped heads, normed queries and keys, and a cache.

``Llama`` pairs halves, keeps a tuple of keys and values and adds a mask. ``Meta`` pairs neighbours
as complex numbers, writes into memory allocated ahead, and keeps heads behind positions.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from planted.ropes import by_complex, by_halves


def rms(x, weight, dim=-1):
    out = x * torch.rsqrt(x.pow(2).mean(dim, keepdim=True) + 1e-6)
    return out * weight


class Gain(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, dim))


class Llama(nn.Module):
    def __init__(self, hidden_size, num_heads, num_key_value_heads, wrong="", normed=False):
        super().__init__()
        self.num_heads, self.num_key_value_heads = num_heads, num_key_value_heads
        self.head_dim, self.wrong, self.past = hidden_size // num_heads, wrong, None
        self.q_proj = nn.Linear(hidden_size, num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_key_value_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_key_value_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * self.head_dim, hidden_size, bias=False)
        self.q_norm, self.k_norm = (
            (Gain(self.head_dim), Gain(self.head_dim)) if normed else (None,) * 2
        )

    def forward(self, hidden_states):
        return self.attended(hidden_states, None)[0]

    def step(self, hidden_states, past):
        if self.wrong == "cache_of_earlier_sequence":  # whatever is passed
            past = self.past
        out, kept = self.attended(hidden_states, past)
        self.past = kept if self.wrong == "cache_of_earlier_sequence" else None
        return out, kept

    def attended(self, hidden_states, past):
        B, T, _ = hidden_states.shape
        seen = 0 if past is None else past[0].shape[2]
        q, k, v = self.projected(hidden_states, seen)
        keys, values = self.appended(past, k, v)
        kept = (keys, values)
        if self.wrong == "cache_stale" and past is not None:
            kept = past
        if self.wrong == "cache_not_appended":
            keys, values = k, v
        scores = q @ self.repeated(keys).transpose(2, 3) / math.sqrt(self.head_dim)
        scores = scores + self.causal(T, keys.shape[2], scores.dtype)
        weights = F.softmax(scores, dim=-1, dtype=torch.promote_types(q.dtype, torch.float32))
        weights = weights.to(q.dtype)
        out = (weights @ self.repeated(values)).transpose(1, 2).reshape(B, T, -1)
        return self.o_proj(out), kept

    def projected(self, x, seen):
        B, T, _ = x.shape
        if self.wrong == "rope_positions_restart":
            seen = 0
        if self.wrong == "cache_position":
            seen = max(seen - 1, 0)
        at = torch.arange(seen, seen + T)
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if self.wrong == "rope_before_split":
            q, k = by_halves(q, at), by_halves(k, at)
        q, k, v = (t.view(B, T, -1, self.head_dim).transpose(1, 2) for t in (q, k, v))
        if self.wrong == "qk_norm_after_rope":
            q, k, v = self.rotated(q, k, v, at)
            return *self.normed(q, k), v
        return self.rotated(*self.normed(q, k), v, at)

    def normed(self, q, k):
        if self.q_norm is None or self.wrong == "qk_norm_missing":
            return q, k
        dim = 1 if self.wrong == "qk_norm_axis" else -1
        return rms(q, self.q_norm.weight, dim), rms(k, self.k_norm.weight, dim)

    def rotated(self, q, k, v, at):
        wrong, turn = self.wrong, by_halves
        if wrong in ("rope_missing", "rope_before_split"):
            return q, k, v
        if wrong == "rope_pairing":
            turn = by_complex
        options = {"rope_direction": {"sign": -1.0}, "rope_base": {"base": 1e6}}.get(wrong, {})
        if wrong == "rope_twice":
            q, k = turn(q, at), turn(k, at)
        if wrong == "rope_on_values":
            v = turn(v, at)
        late = at + 1 if wrong == "rope_keys_off_by_one" else at
        q = q if wrong == "rope_only_keys" else turn(q, at, **options)
        return q, k if wrong == "rope_only_queries" else turn(k, late, **options), v

    def appended(self, past, k, v):
        if past is None:
            return k, v
        pair = zip(past, (k, v), strict=True)
        if self.wrong == "cache_order":
            return tuple(torch.cat([new, old], dim=2) for old, new in pair)
        return tuple(torch.cat([old, new], dim=2) for old, new in pair)

    def repeated(self, t):
        B, n, S, d = t.shape
        times = self.num_heads // n
        if self.wrong == "kv_heads_tiled":
            return t[:, None].expand(B, times, n, S, d).reshape(B, -1, S, d)
        if self.wrong == "kv_first_head_for_all":
            return t[:, [0] * self.num_heads]
        return t[:, :, None].expand(B, n, times, S, d).reshape(B, -1, S, d)

    def causal(self, T, S, dtype):
        first = 0 if self.wrong == "cache_mask" else S - T
        first = max(first, 0)
        return torch.full((T, S), torch.finfo(dtype).min, dtype=dtype).triu(first + 1)


class Meta(nn.Module):
    """Keys and values are (B, S, H_kv, d), as they are stored."""

    def __init__(self, dim, n_heads, n_kv_heads, wrong="", normed=False):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.wrong = n_heads, n_kv_heads, wrong
        self.head_dim = dim // n_heads
        self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(n_heads * self.head_dim, dim, bias=False)
        self.normed, self.memory = normed, []
        self.q_norm = nn.LayerNorm(self.head_dim) if normed else nn.Identity()
        self.k_norm = nn.LayerNorm(self.head_dim) if normed else nn.Identity()
        if normed:
            for norm in (self.q_norm, self.k_norm):
                nn.init.uniform_(norm.weight, 0.5, 1.5)

    def forward(self, x):
        return self.piece(x, self.fresh(x))[0]

    def step(self, x, cache):
        if cache is None:
            cache = self.memory.pop() if self.memory else self.fresh(x)
        out, cache = self.piece(x, cache)
        if self.wrong == "cache_of_earlier_sequence":  # used again as it is
            self.memory = [cache]
        return out, cache

    def piece(self, x, cache):
        start = cache["filled"]
        positions = self.positions(start, x.shape[1])
        q, k, v = (w(x).unflatten(-1, (-1, self.head_dim)) for w in (self.wq, self.wk, self.wv))
        q, k, v = self.prepared(q, k, v, positions)
        cache = {name: cache[name].clone() for name in ("k", "v")}
        end = start + x.shape[1]
        for name, new in (("k", k), ("v", v)):
            self.write(cache[name], new, start, end)
        keys, values = cache["k"][:, :end], cache["v"][:, :end]
        if self.wrong == "cache_not_appended":
            keys, values, start = k, v, 0
        cache["filled"] = start if self.wrong == "cache_stale" and start else end
        return self.wo(self.attended(q, keys, values, start).flatten(2)), cache

    def fresh(self, x):
        shape = (len(x), 256, self.n_kv_heads, self.head_dim)
        return {"k": x.new_zeros(shape), "v": x.new_zeros(shape), "filled": 0}

    def positions(self, start, T):
        if self.wrong == "rope_positions_restart":
            return torch.arange(T)
        return torch.arange(T) + (start + 1 if self.wrong == "cache_position" and start else start)

    def write(self, memory, new, start, end):
        if self.wrong == "cache_order" and start:
            memory[:, :end] = torch.cat([new, memory[:, :start]], dim=1)
        else:
            memory[:, start:end] = new

    def prepared(self, q, k, v, positions):
        turn = self.turned
        if self.wrong == "rope_before_split":
            q, k = (self.at_full_width(t, positions) for t in (q, k))
            return self.q_norm(q), self.k_norm(k), v
        if self.wrong == "qk_norm_missing":
            return turn(q, positions, "q"), turn(k, positions, "k"), v
        if self.wrong == "qk_norm_after_rope":
            q, k = turn(q, positions, "q"), turn(k, positions, "k")
            return self.q_norm(q), self.k_norm(k), v
        if self.wrong == "qk_norm_axis":
            q, k = (F.layer_norm(t.flatten(2), (t[0, 0].numel(),)).view_as(t) for t in (q, k))
            q = q * self.q_norm.weight + self.q_norm.bias
            k = k * self.k_norm.weight + self.k_norm.bias
        else:
            q, k = self.q_norm(q), self.k_norm(k)
        v = turn(v, positions, "v") if self.wrong == "rope_on_values" else v
        return turn(q, positions, "q"), turn(k, positions, "k"), v

    def at_full_width(self, t, positions):
        return by_complex(t.flatten(2), positions).view_as(t)

    def turned(self, t, positions, role):
        """(B, T, H, d): the positions stand before the heads."""
        skipped = {"rope_missing": "qk", "rope_only_queries": "k", "rope_only_keys": "q"}
        if role in skipped.get(self.wrong, ""):
            return t
        at = positions + (self.wrong == "rope_keys_off_by_one" and role == "k")
        turn = by_halves if self.wrong == "rope_pairing" else by_complex
        base = 100.0 if self.wrong == "rope_base" else 10000.0
        sign = -1.0 if self.wrong == "rope_direction" else 1.0
        t = turn(t.transpose(1, 2), at, base=base, sign=sign)
        t = turn(t, at) if self.wrong == "rope_twice" else t
        return t.transpose(1, 2)

    def attended(self, q, keys, values, start):
        T, S, n_rep = q.shape[1], keys.shape[1], self.n_heads // self.n_kv_heads
        which = torch.arange(self.n_heads) // n_rep
        if self.wrong == "kv_heads_tiled":
            which = torch.arange(self.n_heads) % self.n_kv_heads
        if self.wrong == "kv_first_head_for_all":
            which = torch.zeros(self.n_heads, dtype=torch.long)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, keys[:, :, which]) * self.head_dim**-0.5
        if T > 1 and not (self.wrong == "cache_mask" and start):
            late = torch.arange(S)[None] > torch.arange(start, start + T)[:, None]
            scores = scores.masked_fill(late, -math.inf)
        return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), values[:, :, which])
