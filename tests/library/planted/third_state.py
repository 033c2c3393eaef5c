"""Objects that are called: what they keep, what they hand back, and a cache that is a dict."""

import torch
import torch.nn.functional as F
from torch import nn

from planted.plants import PLANTS, Plant

CALL = {"arguments": "query=q, memory=k, content=v"}


class Plain:
    """Each head by itself, in a list."""

    weights = False

    def prepare(self, query, memory, content):
        return query, memory, content

    def score(self, query, memory):
        return torch.baddbmm(
            query.new_zeros(()), query, memory.mT, beta=0, alpha=query.shape[-1] ** -0.5
        )

    def report(self, scores, weights):
        return weights

    def __call__(self, query, memory, content):
        dtype = query.dtype
        three = self.prepare(query, memory, content)
        three = [t.to(torch.promote_types(t.dtype, torch.float32)) for t in three]
        outs, kept = [], []
        for q, k, v in zip(*(t.unbind(dim=1) for t in three), strict=True):
            scores = self.score(q, k)
            weights = F.softmax(scores, dim=2)
            outs.append(torch.bmm(weights, v).to(dtype))
            kept.append(self.report(scores, weights))
        out = torch.stack(outs, dim=1)
        return (out, torch.stack(kept, dim=1)) if self.weights else out


class Telling(Plain):
    weights = True


class Scores(Telling):
    def report(self, scores, weights):
        return scores


class OfOthers(Telling):
    """Sharper weights than those that were used."""

    def report(self, scores, weights):
        return (2.0 * scores).softmax(dim=-1)


class Mean(Telling):
    def __call__(self, query, memory, content):
        out, weights = super().__call__(query, memory, content)
        return out, weights.mean(dim=1)


class Leftovers(Plain):
    """A buffer for keys and values that grows: what a longer call left there stays."""

    def __init__(self):
        self.room = None

    def prepare(self, query, memory, content):
        new = (memory, content)
        fits = self.room is not None and all(
            old.shape[:2] == t.shape[:2] and old.shape[3] == t.shape[3] and old.dtype == t.dtype
            for old, t in zip(self.room, new, strict=True)
        )
        if fits:
            new = [
                torch.cat([t, old[:, :, t.shape[2] :]], dim=2)
                for old, t in zip(self.room, new, strict=True)
            ]
        self.room = [t.detach().clone() for t in new]
        return (query, *new)


class Shaky(Plain):
    def score(self, query, memory):
        scores = super().score(query, memory)
        return scores + 0.05 * torch.randn_like(scores)


class InPlace(Plain):
    def prepare(self, query, memory, content):
        query.mul_(query.shape[-1] ** -0.5)
        return query, memory, content

    def score(self, query, memory):
        return torch.bmm(query, memory.mT)


class Memory(Plain):
    """Reads the numbers of the keys as they lie in memory."""

    def prepare(self, query, memory, content):
        strides = torch.empty(memory.shape, device="meta").stride()
        return query, memory.as_strided(memory.shape, strides), content


class WholeBlocks(Plain):
    """Keys in blocks of 16; what is left over after the last whole block is lost."""

    def prepare(self, query, memory, content):
        S = memory.shape[2]
        kept = S - S % 16 if S >= 16 else S
        return query, memory[:, :, :kept], content[:, :, :kept]


PLAIN, TELLING = Plain(), Telling()


def plant(mistake, wrong, right=PLAIN):
    PLANTS.append(Plant(mistake, "third", lambda _: wrong(), lambda _: right, CALL))


plant("state_between_calls", Leftovers)
plant("not_deterministic", Shaky)
plant("inplace_arguments", InPlace)
plant("not_contiguous", Memory)
plant("block_remainder_dropped", WholeBlocks)
plant("weights_before_softmax", Scores, TELLING)
plant("weights_wrong", OfOthers, TELLING)
plant("weights_averaged", Mean, TELLING)


class Decoder(nn.Module):
    """A query matrix, keys and values packed, rotated by complex numbers; the cache is a dict."""

    base = 100.0

    def __init__(self, size, mistake=""):
        super().__init__()
        self.num_heads, width = (2, 16) if size == 0 else (3, 12)
        self.mistake, self.first_cache = mistake, self.new_cache()
        self.w_q = nn.Linear(width, width, bias=False)
        self.w_kv = nn.Linear(width, 2 * width, bias=False)
        self.w_out = nn.Linear(width, width, bias=False)

    def turn(self, t, first):
        """Neighbours are a complex number; t is (B, T, H, d)."""
        T, d = t.shape[1], t.shape[3]
        angles = (first + torch.arange(T)).double()[:, None]
        angles = angles * self.base ** (-torch.arange(0, d, 2).double() / d)
        turns = torch.complex(angles.cos(), angles.sin())[:, None]
        pairs = torch.complex(t[..., 0::2].double(), t[..., 1::2].double()) * turns
        return torch.stack([pairs.real, pairs.imag], dim=-1).flatten(3).to(t.dtype)

    def first(self, cache):
        return cache["calls"] if self.mistake == "cache_position" else cache["length"]

    def together(self, old, new):
        if old is None or self.mistake == "cache_not_appended":
            return new
        return torch.cat([new, old] if self.mistake == "cache_order" else [old, new], dim=1)

    def new_cache(self):
        return {"k": None, "v": None, "length": 0, "calls": 0}

    def step(self, x, cache=None):
        T, H = x.shape[1], self.num_heads
        if self.mistake == "cache_of_earlier_sequence":
            cache = cache or self.first_cache  # made once, and filled below
        else:
            cache = dict(cache or self.new_cache())
        q = self.w_q(x).unflatten(2, (H, -1))
        k, v = self.w_kv(x).chunk(2, dim=2)
        k, v = k.unflatten(2, (H, -1)), v.unflatten(2, (H, -1))
        first = self.first(cache)
        q, k = self.turn(q, first), self.turn(k, first)
        k, v = self.together(cache["k"], k), self.together(cache["v"], v)
        S = k.shape[1]
        ahead = torch.arange(S)[None, :] - torch.arange(T)[:, None]
        if self.mistake != "cache_mask":
            ahead = ahead - (S - T)
        scores = torch.einsum("bthd,bshd->bhts", q, k) / q.shape[3] ** 0.5
        weights = torch.where(ahead > 0, -torch.inf, scores).softmax(dim=3)
        out = torch.einsum("bhts,bshd->bthd", weights, v).flatten(2)
        cache.update(length=cache["length"] + T, calls=cache["calls"] + 1)
        if not (self.mistake == "cache_stale" and cache["calls"] > 1):
            cache.update(k=k, v=v)
        return self.w_out(out), cache

    def forward(self, x):
        return self.step(x, self.new_cache())[0]


def decoder(size, mistake=""):
    with torch.random.fork_rng():
        torch.manual_seed(11 + size)
        return Decoder(size, mistake).eval()


STEPS = {
    "causal": True,
    "rope_base": Decoder.base,
    "rope_pairing": "neighbours",
    "step": lambda fn: fn.step,
    "projections": {"q": "w_q.weight", "kv": "w_kv.weight", "out": "w_out.weight"},
}

for _name in ("position", "mask", "stale", "not_appended", "order", "of_earlier_sequence"):
    PLANTS.append(
        Plant(
            f"cache_{_name}",
            "third",
            lambda size, m=f"cache_{_name}": decoder(size, m),
            decoder,
            STEPS,
        )
    )
