"""Right attentions in further styles, with all that their authors may mean."""

import torch
import torch.nn.functional as F
from torch import nn

from planted.plants import RIGHT

NAMED = {"arguments": "queries=q, keys=k, values=v"}


def widened(t):
    return t.to(torch.promote_types(t.dtype, torch.float32))


# ---------------------------------------------------------------- sequence first, axes named


def named(scale=None, softcap=None, sinks=None):
    """t queries, s keys, b examples, h heads."""

    def attend(queries, keys, values):
        each = queries.shape[2] // keys.shape[2]
        q, k, v = (widened(t) for t in (queries, keys, values))
        k, v = k.repeat_interleave(each, 2), v.repeat_interleave(each, 2)
        scores = torch.einsum("tbhd,sbhd->tbhs", q, k) * (scale or q.shape[-1] ** -0.5)
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        if sinks is not None:
            column = sinks.to(scores.dtype).expand(*scores.shape[:2], -1)[..., None]
            scores = torch.cat([scores, column], dim=3)
        powers = (scores - scores.amax(dim=3, keepdim=True).detach()).exp()
        weights = (powers / powers.sum(dim=3, keepdim=True))[..., : keys.shape[0]]
        return torch.einsum("tbhs,sbhd->tbhd", weights, v).to(queries.dtype)

    return attend


SINKS = torch.tensor([0.9, -0.4, 1.7])
for _name, _options, _intent in [
    ("", {}, {}),
    (" with a scale", {"scale": 0.3}, {"scale": 0.3}),
    (" with a softcap", {"softcap": 5.0}, {"softcap": 5.0}),
    (" with sinks", {"sinks": SINKS}, {"sinks": SINKS, "heads": 3}),
    (" with grouped heads", {}, {"heads": 4, "kv_heads": 2}),
]:
    RIGHT[f"sequence first{_name}"] = (
        lambda options=_options: named(**options),
        {**NAMED, "layout": "TBHd", **_intent},
    )


# ---------------------------------------------------------------- heads folded into the batch


def folded(means, *, softcap=None, causal=None, window=None, finite=False):
    """A mask of keys (B, S) or of cells; it says what is open, what is closed, or is added."""

    def gate(mask, scores):
        T, S = scores.shape[-2:]
        cells = torch.ones_like(scores, dtype=torch.bool)
        if mask is not None:
            mask = {"attend": mask, "blocked": ~mask if means == "blocked" else mask}.get(
                means, mask == 0
            )
            cells = cells & (mask[:, None, None] if mask.dim() == 2 else mask)
        if causal:
            past = torch.arange(T)[:, None] - torch.arange(S)
            past = past if causal == "top_left" else past + S - T
            cells = cells & (past >= 0) & (past < (window or S + T))
        return cells

    def attend(q, k, v, allowed=None):
        B, H, T, d = q.shape
        q, k, wide_v = (widened(t).flatten(0, 1) for t in (q, k, v))
        scores = torch.bmm(q, k.mT).div(d**0.5).view(B, H, T, -1)
        scores = softcap * torch.tanh(scores / softcap) if softcap else scores
        cells = gate(allowed, scores)
        if finite:
            weights = torch.where(cells, scores, torch.finfo(scores.dtype).min).softmax(-1)
        else:  # a row without a key weighs nothing
            some = cells.any(dim=-1, keepdim=True)
            closed = torch.where(cells, scores, -torch.inf)
            weights = torch.where(some, torch.where(some, closed, 0.0).softmax(-1), 0.0)
        return torch.bmm(weights.view(B * H, T, -1), wide_v).view(B, H, T, -1).to(v.dtype)

    return attend


for _name, _options, _intent in [
    ("", {}, {}),
    (" with a finite fill", {"finite": True}, {}),
    (" with a mask for each head", {}, {"mask_shape": "BHTS"}),
    (" with a mask of keys", {}, {"mask_shape": "BS"}),
    (" with a softcap", {"softcap": 4.0}, {"softcap": 4.0}),
    (" and causal", {"causal": True}, {"causal": True}),
    (" and causal from the top left", {"causal": "top_left"}, {"causal": "top_left"}),
    (" and a window", {"causal": True, "window": 3}, {"causal": True, "window": 3}),
]:
    for _means in ("attend", "blocked", "additive"):
        RIGHT[f"folded, {_means}{_name}"] = (
            lambda means=_means, options=_options: folded(means, **options),
            {
                "arguments": "q, k, v, allowed=mask",
                "causal": False,
                "mask_means": _means,
                **_intent,
            },
        )


# ---------------------------------------------------------------- layers


def mixed(q, k, v):
    """Of (B, T, H, d), the axis of heads left where it is."""
    weights = (torch.einsum("bqhc,bkhc->bqhk", q, k) / q.shape[-1] ** 0.5).softmax(dim=-1)
    return torch.einsum("bqhk,bkhc->bqhc", weights, v)


class Matrices(nn.Module):
    """Four parameters (out, in), no bias."""

    def __init__(self, width=12, heads=3):
        super().__init__()
        self.num_heads = heads
        for name in ("into_q", "into_k", "into_v", "outward"):
            setattr(self, name, nn.Parameter(torch.randn(width, width) / width**0.5))

    def forward(self, x, context=None):
        pairs = zip("qkv", (x, *[x if context is None else context] * 2), strict=True)
        three = (torch.einsum("oi,bti->bto", getattr(self, f"into_{n}"), s) for n, s in pairs)
        out = mixed(*(t.unflatten(-1, (self.num_heads, -1)) for t in three))
        return torch.einsum("oi,bti->bto", self.outward, out.flatten(2))


class PackedPairs(nn.Module):
    """Keys and values from one matrix, biases everywhere."""

    def __init__(self, width=16, heads=4):
        super().__init__()
        self.num_heads = heads
        self.ask, self.pair = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.close = nn.Linear(width, width)

    def forward(self, x, context=None):
        k, v = self.pair(x if context is None else context).tensor_split(2, dim=2)
        parts = (t.unflatten(-1, (self.num_heads, -1)) for t in (self.ask(x), k, v))
        return self.close(mixed(*parts).flatten(2))


class SmallHead(nn.Module):
    def __init__(self, width, d, dropout):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, d, bias=False) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, closed):
        scores = torch.baddbmm(closed, self.query(x), self.key(x).mT, alpha=5**-0.5)
        weights = scores.softmax(dim=2)
        return self.dropout(weights) @ self.value(x), weights


class Committee(nn.Module):
    """Small heads, causal; hands back their weights where they are asked for."""

    def __init__(self, dropout=0.0, told=False):
        super().__init__()
        self.num_heads, self.told = 2, told
        self.heads = nn.ModuleList(SmallHead(10, 5, dropout) for _ in range(2))
        self.proj = nn.Linear(10, 10)

    def forward(self, x):
        T = x.shape[1]
        closed = torch.triu(x.new_full((T, T), -torch.inf), diagonal=1)
        outs, weights = zip(*[head(x, closed) for head in self.heads], strict=True)
        out = self.proj(torch.cat(outs, dim=2))
        return (out, torch.stack(weights, 1)) if self.told else out


class Telling(nn.Module):
    """Each head by itself, in a list; no parameters."""

    def __init__(self, told):
        super().__init__()
        self.told = told

    def forward(self, query, memory, content):
        outs, told = [], []
        for q, k, v in zip(*(widened(t).unbind(1) for t in (query, memory, content)), strict=True):
            scores = torch.baddbmm(q.new_zeros(()), q, k.mT, beta=0, alpha=q.shape[-1] ** -0.5)
            told.append(F.softmax(scores, dim=2))
            outs.append(torch.bmm(told[-1], v).to(query.dtype))
        out = torch.stack(outs, dim=1)
        return (out, torch.stack(told, dim=1)) if self.told else out


# ---------------------------------------------------------------- rotations as matrices


def turned(t, first=0, base=10_000.0):
    """Rotates t (..., T, d) by the exponential of the position times a generator."""
    d, made = t.shape[-1], torch.zeros(t.shape[-1], t.shape[-1], dtype=torch.float64)
    i = torch.arange(d // 2)
    made[i + d // 2, i] = base ** (-2.0 * i.double() / d)
    at = torch.arange(first, first + t.shape[-2]).double()[:, None, None]
    return torch.einsum("tij,...tj->...ti", torch.matrix_exp(at * (made - made.T)), t.double())


def rotating(heads=None):
    """(B, H, T, d), the queries being the last; or heads side by side in (B, T, H·d)."""

    def attend(queries, keys, values):
        three = (queries, keys, values)
        if heads:
            three = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in three)
        q, k, v = three
        q, k, v = turned(q, k.shape[-2] - q.shape[-2]), turned(k), v.double()
        out = (torch.einsum("bhti,bhsi->bhts", q, k) * q.shape[-1] ** -0.5).softmax(-1) @ v
        return (out.transpose(1, 2).flatten(2) if heads else out).to(queries.dtype)

    return attend


class Gain(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(1.0 + 0.5 * torch.randn(d))

    def forward(self, t):
        return t / t.square().mean(dim=-1, keepdim=True).add(1e-6).sqrt() * self.weight


class Normed(nn.Module):
    """One matrix for all three; gains before the rotation."""

    def __init__(self, heads=2, d=4):
        super().__init__()
        self.num_heads, self.d = heads, d
        self.qkv = nn.Linear(heads * d, 3 * heads * d, bias=False)
        self.out = nn.Linear(heads * d, heads * d, bias=False)
        self.q_norm, self.k_norm = Gain(d), Gain(d)

    def forward(self, x):
        outs = []
        for q, k, v in zip(*(t.split(self.d, -1) for t in self.qkv(x).chunk(3, -1)), strict=True):
            q, k = turned(self.q_norm(q)).to(x.dtype), turned(self.k_norm(k)).to(x.dtype)
            outs.append(torch.bmm(torch.softmax(q @ k.mT * self.d**-0.5, dim=2), v))
        return self.out(torch.cat(outs, dim=2))


class Decoder(nn.Module):
    """Keys and values packed, neighbours turned as complex numbers; the cache is a dict."""

    def __init__(self, width=16, heads=2):
        super().__init__()
        self.num_heads = heads
        self.w_q, self.w_kv, self.w_out = (
            nn.Linear(width, n * width, bias=False) for n in (1, 2, 1)
        )

    def turn(self, t, first):
        T, d = t.shape[1], t.shape[3]
        angles = (first + torch.arange(T)).double()[:, None]
        angles = angles * 100.0 ** (-torch.arange(0, d, 2).double() / d)
        turns = torch.complex(angles.cos(), angles.sin())[:, None]
        pairs = torch.complex(t[..., 0::2].double(), t[..., 1::2].double()) * turns
        return torch.stack([pairs.real, pairs.imag], dim=-1).flatten(3).to(t.dtype)

    def step(self, x, cache=None):
        parts = (self.w_q(x), *self.w_kv(x).chunk(2, dim=2))
        q, k, v = (t.unflatten(2, (self.num_heads, -1)) for t in parts)
        first = cache["k"].shape[1] if cache else 0
        q, k = self.turn(q, first), self.turn(k, first)
        if cache:
            k, v = torch.cat([cache["k"], k], dim=1), torch.cat([cache["v"], v], dim=1)
        late = torch.arange(k.shape[1]) > torch.arange(first, k.shape[1])[:, None]
        scores = torch.einsum("bthd,bshd->bhts", q, k) / q.shape[3] ** 0.5
        weights = torch.where(late, -torch.inf, scores).softmax(dim=3)
        return self.w_out(torch.einsum("bhts,bshd->bthd", weights, v).flatten(2)), {"k": k, "v": v}

    def forward(self, x):
        return self.step(x)[0]


def seeded(kind, *options):
    torch.manual_seed(3)
    return kind(*options).eval()


CROSS = {"causal": False, "arguments": "x, context=context"}
MATRICES = {"q": "into_q", "k": "into_k", "v": "into_v", "out": "outward"}
PAIRS = {"q": "ask.weight", "kv": "pair.weight", "out": "close.weight"}
ROPE = {"causal": False, "rope_base": 10_000.0}
STEPS = {
    "causal": True,
    "rope_base": 100.0,
    "rope_pairing": "neighbours",
    "step": lambda fn: fn.step,
    "projections": {"q": "w_q.weight", "kv": "w_kv.weight", "out": "w_out.weight"},
}
MEMORY = {"arguments": "query=q, memory=k, content=v"}
RIGHT |= {
    "bare matrices": (lambda: seeded(Matrices), {**CROSS, "projections": MATRICES}),
    "packed keys and values": (lambda: seeded(PackedPairs), {**CROSS, "projections": PAIRS}),
    "committee": (lambda: seeded(Committee), {"causal": True}),
    "committee with dropout": (lambda: seeded(Committee, 0.2), {"causal": True}),
    "committee with weights": (lambda: seeded(Committee, 0.2, True), {"causal": True}),
    "head by head": (lambda: Telling(False), MEMORY),
    "head by head, with weights": (lambda: Telling(True), MEMORY),
    "rotations as matrices": (lambda: rotating(), {**NAMED, **ROPE}),
    "rotations of heads side by side": (
        lambda: rotating(3),
        {**NAMED, **ROPE, "layout": "BTd", "heads": 3},
    ),
    "gains before rotations": (lambda: seeded(Normed), {**ROPE, "qk_norm": "rms"}),
    "decoder with a dict": (lambda: seeded(Decoder), STEPS),
}
