"""Rotary positions of (..., T, d): halves are turned, or neighbours as complex numbers."""

import torch

from planted.plants import PLANTS, Plant

HALVES = {"causal": True, "rope_base": 10_000.0, "rope_pairing": "half"}
NEIGHBOURS = {**HALVES, "rope_pairing": "neighbours"}


def angles(positions, d, base=10000.0):
    inv_freq = 1.0 / (base ** (torch.arange(0, d, 2).double() / d))
    return positions.double()[..., None] * inv_freq


def rotate_half(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def by_halves(x, positions, base=10000.0, sign=1.0):
    theta = angles(positions, x.shape[-1], base)
    theta = torch.cat((theta, theta), dim=-1)
    return (x * theta.cos() + sign * rotate_half(x) * theta.sin()).to(x.dtype)


def by_complex(x, positions, base=10000.0, sign=1.0):
    theta = sign * angles(positions, x.shape[-1], base)
    turn = torch.polar(torch.ones_like(theta), theta)
    pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype)


# ---------------------------------------------------------------- wrong ones, for diagnose_rope


def over_heads(turn):
    def rotate(q, k, positions=None):
        heads = torch.arange(q.shape[1])
        return tuple(turn(t.transpose(1, 2), heads).transpose(1, 2) for t in (q, k))

    return rotate


def rotations(turn, other):
    """Functions of q, k and positions, by mistake; the right one has no name."""
    return {
        "": lambda q, k, p: (turn(q, p), turn(k, p)),
        "rope_pairing": lambda q, k, p: (other(q, p), other(k, p)),
        "rope_direction": lambda q, k, p: (turn(q, p, sign=-1.0), turn(k, p, sign=-1.0)),
        "rope_only_queries": lambda q, k, p: (turn(q, p), k),
        "rope_only_keys": lambda q, k, p: (q, turn(k, p)),
        "rope_base": lambda q, k, p: (turn(q, p, base=500.0), turn(k, p, base=500.0)),
        "rope_keys_off_by_one": lambda q, k, p: (turn(q, p), turn(k, p + 1)),
        "rope_missing": lambda q, k, p: (q, k),
        "rope_twice": lambda q, k, p: (turn(turn(q, p), p), turn(turn(k, p), p)),
        "rope_over_heads": over_heads(turn),
        "rope_positions_restart": lambda q, k, p: (turn(q, p - p.min()), turn(k, p - p.min())),
    }


for form, turn, other, pairing in [
    ("rope-halves", by_halves, by_complex, "half"),
    ("rope-complex", by_complex, by_halves, "neighbours"),
]:
    made = rotations(turn, other)
    right = made.pop("")
    for mistake, wrong in made.items():
        pair = (lambda _, fn=wrong: fn, lambda _, fn=right: fn)
        PLANTS.append(Plant(mistake, form, *pair, {"rope_pairing": pairing}, rope=True))
