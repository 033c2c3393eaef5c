"""Rotations of queries and keys: RoPE's own, and those of known mistakes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attn_lib.diagnosis.rope_calls import Hearing, RopeAnswer, RopeCall

PAIRINGS = ("half", "neighbours")
TOLERANCE = 2e-4
_RESTART = "The numbers are those of positions 0, 1, ... where 5, 6, ... are passed."
WORDS = {"half": "halves (i, i + d/2)", "neighbours": "neighbours (2i, 2i + 1)"}


@dataclass(frozen=True)
class Turn:
    """A rotation: RoPE's, or that of a mistake. Pairs are of queries and of keys."""

    base: float
    pairing: str
    times: tuple[float, float] = (1.0, 1.0)  # the position is multiplied by this
    shifts: tuple[int, int] = (0, 0)
    restart: tuple[bool, bool] = (False, False)
    over_heads: bool = False
    mixed: str = ""  # the pairing of the angles, where it is another one


@dataclass(frozen=True)
class Guess:
    """What may be wrong: a row of the table, or a sentence of its own."""

    mistake: str | None
    change: dict[str, Any]
    name: str = ""
    likely: str = ""
    repair: str = ""
    roles: str = "q"  # qk: says something of keys too


def guesses_of(hearing: Hearing, turn: Turn, with_tables: bool) -> list[Guess]:
    """Everything that may be wrong, in the order in which it is tried."""
    other = "neighbours" if turn.pairing == "half" else "half"
    guesses = [Guess("rope_pairing", {"pairing": other})]
    if not with_tables:
        guesses += [_mixed(turn, turned, angles) for turned, angles in (PAIRINGS, PAIRINGS[::-1])]
    guesses += [
        _reversed((-1.0, -1.0), "q", ""),
        _reversed((1.0, -1.0), "qk", "the keys, not the queries, "),
        _reversed((-1.0, 1.0), "qk", "the queries, not the keys, "),
        Guess("rope_only_queries", {"times": (1.0, 0.0)}, roles="qk"),
        Guess("rope_only_keys", {"times": (0.0, 1.0)}, roles="qk"),
        Guess("rope_positions_restart", {"restart": (True, True)}, likely=_RESTART),
        Guess("rope_positions_restart", {"restart": (True, False)}, roles="qk"),
        Guess("rope_keys_off_by_one", {"shifts": (0, 1)}, roles="qk"),
        Guess("rope_keys_off_by_one", {"shifts": (1, 0)}, roles="qk"),
        Guess("rope_missing", {"times": (0.0, 0.0)}),
        Guess("rope_twice", {"times": (2.0, 2.0)}),
        _over_heads(hearing.way.layout),
        Guess(
            None,
            {"shifts": (1, 1)},
            "the positions are one higher than meant",
            "The numbers are those of positions 1, 2, ... where 0, 1, ... are meant.",
            "positions = torch.arange(T)",
        ),
    ]
    guesses += [_another_base(turn.base, base) for base in _bases(hearing, turn)]
    with_keys = any(answer.k is not None for answer in hearing.answers)
    return [guess for guess in guesses if with_keys or guess.roles == "q"]


def _reversed(times: tuple[float, float], roles: str, what: str) -> Guess:
    likely = f"RoPE turns {what}in the other direction."
    return Guess("rope_direction", {"times": times}, likely=likely, roles=roles)


def _over_heads(layout: str) -> Guess:
    other = {"BHTd": "BTHd", "BTHd": "BHTd"}.get(layout)
    repair = "Transpose first"
    repair += f"; or say layout={other!r}, if that is the order of the axes." if other else "."
    return Guess("rope_over_heads", {"over_heads": True}, repair=repair)


def _mixed(turn: Turn, turned: str, angles: str) -> Guess:
    return Guess(
        "rope_pairing",
        {"pairing": turned, "mixed": angles},
        "the rotation is none: angles of one pairing, channels of another",
        f"cos and sin are in the order of {WORDS[angles]}, but the channels are combined as "
        f"{WORDS[turned]}: the two channels of a pair get different angles, so that the lengths "
        "of rows change.",
        "torch.cat([angles, angles], dim=-1) with rotate_half, or "
        "angles.repeat_interleave(2, dim=-1) with x[..., ::2] and x[..., 1::2]",
    )


def _another_base(meant: float, base: float) -> Guess:
    likely = f"The numbers are those of base {base:.6g}, where {meant:.6g} is meant."
    if abs(base - meant**0.5) < 1e-3 * base:
        likely += " The exponent i / d instead of 2 i / d gives the same."
    repair = f"position / base ** (2 i / d_k); or say base={base:.6g}, if that is meant"
    return Guess("rope_base", {"base": base}, likely=likely, repair=repair)


def _bases(hearing: Hearing, turn: Turn) -> Iterator[float]:
    """Bases that the angle of the second pair leads to, at position 1."""
    for answer in hearing.answers:
        x, y, d = answer.call.q, answer.q, answer.call.q.shape[-1]
        at = (answer.call.positions == 1).nonzero().flatten().tolist()
        if not at or d < 4 or y.shape != x.shape:
            continue
        for pairing in PAIRINGS:
            first, second = (1, 1 + d // 2) if pairing == "half" else (2, 3)
            a, b = x[0, 0, at[0], first], x[0, 0, at[0], second]
            c, e = y[0, 0, at[0], first], y[0, 0, at[0], second]
            angle = abs(torch.atan2(a * e - b * c, a * c + b * e).item())
            for part in (angle, angle / 2.0):
                if 1e-9 < part < 1.0:
                    base = part ** (-d / 2.0)
                    near = float(f"{base:.2g}")
                    base = near if abs(base - near) < 2e-3 * near else float(f"{base:.4g}")
                    if base <= 1e9 and abs(base - turn.base) > 1e-3 * turn.base:
                        yield base
        return


def turned(call: RopeCall, turn: Turn) -> tuple[Tensor, Tensor]:
    """The q and k that this rotation gives."""
    outs = []
    for i, x in enumerate((call.q, call.k)):
        x = x.transpose(1, 2) if turn.over_heads else x
        at = call.positions
        if turn.restart[i] or turn.over_heads:
            at = torch.arange(x.shape[-2])
        at = turn.times[i] * (at + turn.shifts[i]).double()
        d = x.shape[-1]
        angles = at[:, None] / turn.base ** (torch.arange(0, d, 2).double() / d)
        if (turn.mixed or turn.pairing) == "half":
            angles = torch.cat([angles, angles], dim=-1)
        else:
            angles = angles.repeat_interleave(2, dim=-1)
        if turn.pairing == "half":
            a, b = x.chunk(2, dim=-1)
            across = torch.cat([-b, a], dim=-1)
        else:
            across = torch.stack([-x[..., 1::2], x[..., 0::2]], dim=-1).flatten(-2)
        y = x * angles.cos() + across * angles.sin()
        outs.append(y.transpose(1, 2) if turn.over_heads else y)
    return outs[0], outs[1]


def fits(hearing: Hearing, turn: Turn) -> bool:
    """Whether this rotation gives every answer."""
    return all(not wrong_in(answer, turn) for answer in hearing.answers)


def wrong_in(answer: RopeAnswer, turn: Turn) -> list[tuple[str, Tensor, Tensor]]:
    """Name, actual and expected of each tensor that differs."""
    pairs = zip(answer.pairs, turned(answer.call, turn), strict=False)
    return [
        (name, mine, theirs)
        for (name, _, mine), theirs in pairs
        if mine.shape != theirs.shape or not torch.allclose(mine, theirs, atol=TOLERANCE)
    ]
