"""Rotations as matrices: each position's is the exponential of the position times a generator."""

from functools import partial

import torch
from torch import nn

from planted.plants import PLANTS, Plant


def generator(d, base, apart):
    """Antisymmetric (d, d): turns channel i into its partner, ``apart`` channels further."""
    made = torch.zeros(d, d, dtype=torch.float64)
    for pair in range(d // 2):
        i = pair if apart == d // 2 else 2 * pair
        speed = base ** (-2.0 * pair / d)
        made[i + apart, i], made[i, i + apart] = speed, -speed
    return made


def turned(t, positions, base=10000.0, halves=True, sense=1.0):
    """Rotates t (…, T, d), where positions has T numbers."""
    d = t.shape[-1]
    matrix = sense * generator(d, base, d // 2 if halves else 1)
    turns = torch.matrix_exp(positions.double()[:, None, None] * matrix)
    return torch.einsum("tij,...tj->...ti", turns, t.double()).to(t.dtype)


def pair_of(turn_q, turn_k=None):
    turn_k = turn_k or turn_q

    def both(q, k, places=None):
        if places is not None:
            return turn_q(q, places), turn_k(k, places)
        T, S = q.shape[-2], k.shape[-2]  # the queries are the last of the keys' positions
        return turn_q(q, torch.arange(S - T, S)), turn_k(k, torch.arange(S))

    return both


def by_the_heads(q, k, places=None):
    return [turned(t.transpose(1, 2), torch.arange(t.shape[1])).transpose(1, 2) for t in (q, k)]


def once_more(t, places):
    return turned(turned(t, places), places)


def as_it_is(t, places=None):
    return t


def restarted(t, places):
    return turned(t, places - places[0])


TURNS = {
    "rope_pairing": pair_of(partial(turned, halves=False)),
    "rope_direction": pair_of(partial(turned, sense=-1.0)),
    "rope_base": pair_of(partial(turned, base=100.0)),
    "rope_only_queries": pair_of(turned, as_it_is),
    "rope_only_keys": pair_of(as_it_is, turned),
    "rope_keys_off_by_one": pair_of(turned, lambda k, places: turned(k, places + 1)),
    "rope_positions_restart": pair_of(restarted),
    "rope_missing": pair_of(as_it_is),
    "rope_twice": pair_of(once_more),
    "rope_over_heads": by_the_heads,
}
RIGHT_TURN = pair_of(turned)


for _mistake, _turn in TURNS.items():
    PLANTS.append(
        Plant(
            _mistake,
            "third-alone",
            lambda _, f=_turn: f,
            lambda _: RIGHT_TURN,
            {"pairing": "half"},
            rope=True,
        )
    )


# Inside of a function.
def rotating(queries, keys, values, *, turn, turn_values=as_it_is, whole=0):
    """(B, H, T, d); ``whole`` heads lie side by side in (B, T, H·d)."""
    dtype = queries.dtype
    queries, keys = turn(queries, keys)
    values = turn_values(values)
    three = [t.double() for t in (queries, keys, values)]
    if whole:
        three = [t.unflatten(-1, (whole, -1)).movedim(2, 1) for t in three]
    scores = torch.einsum("bhti,bhsi->bhts", *three[:2]) * three[0].shape[-1] ** -0.5
    out = torch.einsum("bhts,bhsi->bhti", scores.softmax(dim=-1), three[2])
    return (out.movedim(1, 2).flatten(2) if whole else out).to(dtype)


def plant(mistake, right, intent=None, **parts):
    made = partial(rotating, **{**right.keywords, **parts})
    said = {
        "arguments": "queries=q, keys=k, values=v",
        "causal": False,
        "rope_base": 10000.0,
        **(intent or {}),
    }
    PLANTS.append(Plant(mistake, "third", lambda _: made, lambda _: right, said))


INSIDE = partial(rotating, turn=RIGHT_TURN)
for _mistake, _turn in TURNS.items():
    plant(_mistake, INSIDE, turn=_turn)
plant("rope_on_values", INSIDE, turn_values=lambda v: turned(v, torch.arange(v.shape[-2])))


def each_head(q, k, heads=3):
    apart = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k))
    return [t.transpose(1, 2).flatten(2) for t in RIGHT_TURN(*apart)]


SIDE = partial(rotating, turn=each_head, whole=3)
plant("rope_before_split", SIDE, {"layout": "BTd", "heads": 3}, turn=RIGHT_TURN)


# Norms with gains, before the rotation.
class Gain(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(1.0 + 0.5 * torch.randn(d))

    def forward(self, t, axis=-1):
        root = t.square().mean(dim=axis, keepdim=True).add(1e-6).sqrt()
        return t / root * self.weight


class Normed(nn.Module):
    """One matrix for all three, (B, T, 3·H·d); heads are a list that is stacked at the end."""

    def __init__(self, size, mistake=""):
        super().__init__()
        self.num_heads, self.d, self.mistake = 2 + size, 4, mistake
        width = self.num_heads * self.d
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.q_norm, self.k_norm = Gain(self.d), Gain(self.d)

    def prepared(self, t, norm, places):
        if self.mistake == "qk_norm_missing":
            return turned(t, places)
        if self.mistake == "qk_norm_after_rope":
            return norm(turned(t, places))
        return turned(norm(t, 1 if self.mistake == "qk_norm_axis" else -1), places)

    def forward(self, x):
        places = torch.arange(x.shape[1])
        outs = []
        for columns in zip(*(t.split(self.d, -1) for t in self.qkv(x).chunk(3, -1)), strict=True):
            q = self.prepared(columns[0], self.q_norm, places)
            k = self.prepared(columns[1], self.k_norm, places)
            weights = torch.softmax(q @ k.mT * self.d**-0.5, dim=2)
            outs.append(torch.bmm(weights, columns[2]))
        return self.out(torch.cat(outs, dim=2))


def normed(size, mistake=""):
    with torch.random.fork_rng():
        torch.manual_seed(5 + size)
        return Normed(size, mistake).eval()


NORMS = {"causal": False, "rope_base": 10000.0, "qk_norm": "rms"}
for _mistake in ("qk_norm_axis", "qk_norm_after_rope", "qk_norm_missing"):
    PLANTS.append(
        Plant(_mistake, "third", partial(normed, mistake=_mistake), partial(normed), NORMS)
    )
