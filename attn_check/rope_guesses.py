"""What may be wrong with a rotation: each guess is another way of taking steps of the reference."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from attn_check.mistakes import FORMS
from attn_check.reference import Change, Intent
from attn_check.rope_calls import PAIRINGS, WORDS, Trial


@dataclass(frozen=True)
class Guess:
    """What may be wrong: a form of a row of the table, or a sentence of its own."""

    mistake: str | None
    change: Change
    name: str = ""
    likely: str = ""
    repair: str = ""
    of_keys: bool = False  # says something of keys too


def guesses_of(trial: Trial, intent: Intent, with_tables: bool) -> list[Guess]:
    """Everything that may be wrong, in the order in which it is tried."""
    one, *_ = FORMS["rope_pairing"]
    guesses = [Guess("rope_pairing", one)]
    if not with_tables:
        guesses += [_mixed(intent, turned, angles) for turned, angles in (PAIRINGS, PAIRINGS[::-1])]
    what = ("", "the keys, not the queries, ", "the queries, not the keys, ")
    for form, text in zip(FORMS["rope_direction"], what, strict=True):
        likely = f"RoPE turns {text}in the other direction."
        guesses.append(Guess("rope_direction", form, likely=likely, of_keys=bool(text)))
    of_queries, of_both = FORMS["rope_positions_restart"]
    likely = "The numbers are those of positions 0, 1, ... where 5, 6, ... are passed."
    guesses += [
        Guess("rope_only_queries", FORMS["rope_only_queries"][0], of_keys=True),
        Guess("rope_only_keys", FORMS["rope_only_keys"][0], of_keys=True),
        Guess("rope_positions_restart", of_both, likely=likely),
        Guess("rope_positions_restart", of_queries, of_keys=True),
        *(Guess("rope_keys_off_by_one", f, of_keys=True) for f in FORMS["rope_keys_off_by_one"]),
        Guess("rope_missing", FORMS["rope_missing"][0]),
        Guess("rope_twice", FORMS["rope_twice"][0]),
        _over_heads(trial.way.layout),
        Guess(
            None,
            {"shift": lambda run: (1, 1)},
            "the positions are one higher than meant",
            "The numbers are those of positions 1, 2, ... where 0, 1, ... are meant.",
            "positions = torch.arange(T)",
        ),
        *(_another_base(intent.rope_base, base) for base in _bases(trial, intent.rope_base)),
    ]
    with_keys = any("k" in answer.outs for answer in trial.answers)
    return [guess for guess in guesses if with_keys or not guess.of_keys]


def _over_heads(layout: str) -> Guess:
    other = {"BHTd": "BTHd", "BTHd": "BHTd"}.get(layout)
    repair = "Transpose first"
    repair += f"; or pass layout={other!r}, if that is the order of the axes." if other else "."
    return Guess("rope_over_heads", FORMS["rope_over_heads"][0], repair=repair)


def _mixed(intent: Intent, turned: str, angles: str) -> Guess:
    change = FORMS["rope_pairing"][1]
    if turned != intent.rope_pairing:
        change = {**change, "pairing": lambda run: turned}
    return Guess(
        "rope_pairing",
        change,
        "the rotation is none: angles of one pairing, channels of another",
        f"cos and sin are in the order of {WORDS[angles]}, but the channels are combined as "
        f"{WORDS[turned]}: the two channels of a pair get different angles, so that the lengths "
        "of rows change.",
        "torch.cat([angles, angles], dim=-1) with rotate_half, or "
        "angles.repeat_interleave(2, dim=-1) with x[..., ::2] and x[..., 1::2]",
    )


def _another_base(meant: float | None, base: float) -> Guess:
    assert meant is not None  # noqa: S101
    likely = f"The numbers are those of base {base:.6g}, where {meant:.6g} is meant."
    if abs(base - meant**0.5) < 1e-3 * base:
        likely += " The exponent i / d instead of 2 i / d gives the same."
    repair = f"position / base ** (2 i / d_k); or pass rope_base={base:.6g}, if that is meant"
    return Guess("rope_base", {"base": lambda run: base}, likely=likely, repair=repair)


def _bases(trial: Trial, meant: float | None) -> Iterator[float]:
    """Bases that the angle of the second pair leads to, at position 1."""
    for answer in trial.answers:
        x, y = answer.call.tensors["q"], answer.outs["q"]
        d, at = x.shape[-1], (answer.positions == 1).nonzero().flatten().tolist()
        if not at or d < 4 or y.shape != x.shape:
            continue
        for pairing in PAIRINGS:
            pair = [1, 1 + d // 2] if pairing == "half" else [2, 3]
            (a, b), (c, e) = x[0, 0, at[0], pair], y[0, 0, at[0], pair]
            angle = abs(torch.atan2(a * e - b * c, a * c + b * e).item())
            for part in (angle, angle / 2.0):
                if 1e-9 < part < 1.0:
                    base = part ** (-d / 2.0)
                    near = float(f"{base:.2g}")
                    base = near if abs(base - near) < 2e-3 * near else float(f"{base:.4g}")
                    if base <= 1e9 and abs(base - (meant or 0.0)) > 1e-3 * (meant or 0.0):
                        yield base
        return
