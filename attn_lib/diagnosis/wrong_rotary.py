"""Executable variants: mistakes in rotary positions and in norms of queries and keys."""

from collections.abc import Callable

import torch

from attn_lib.diagnosis import formula
from attn_lib.diagnosis.formula import Run, cut, normed, turned, with_gain
from attn_lib.diagnosis.wrong_layers import needs
from attn_lib.diagnosis.wrong_scores import Change, skip


def rotating(change: Callable[[Run], None]) -> Change:
    """Another rotation than the one that is meant."""

    def stage(run: Run) -> None:
        needs(run.intent.rope_base is not None, "RoPE")
        change(run)

    return {"rotate": stage}


def _turn(
    run: Run,
    roles: str = "qk",
    *,
    shift: tuple[int, int] = (0, 0),
    sign: int = 1,
    base: float | None = None,
    pairing: str | None = None,
    width: int | None = None,
) -> None:
    if pairing == "other":
        pairing = "neighbours" if run.intent.rope_pairing == "half" else "half"
    positions = dict(zip("qkv", (*run.positions, run.positions[1]), strict=True))
    moved = dict(zip("qkv", (*shift, 0), strict=True))
    for role in roles:
        at = sign * (positions[role] + moved[role])
        x = turned(run, getattr(run, role), at, base=base, pairing=pairing, width=width)
        setattr(run, role, x)


def _turn_both(run: Run, of_queries: int, of_keys: int) -> None:
    _turn(run, "q", sign=of_queries)
    _turn(run, "k", sign=of_keys)


def _turn_twice(run: Run) -> None:
    _turn(run)
    _turn(run)


def _mixed_pairing(run: Run) -> None:
    x, other = run, "neighbours" if run.intent.rope_pairing == "half" else "half"
    d = x.q.shape[-1]
    for role in "qk":
        at = run.positions[0 if role == "q" else 1].double()[:, None]
        steps = torch.arange(0, d, 2, dtype=torch.float64) / d
        angles = at / (run.intent.rope_base or 10_000.0) ** steps
        if other == "neighbours":  # cosines of neighbours with the halves' rotation
            angles = angles.repeat_interleave(2, dim=-1)
            a, b = getattr(run, role).chunk(2, dim=-1)
            turned_x = torch.cat([-b, a], dim=-1)
        else:
            angles = torch.cat([angles, angles], dim=-1)
            a, b = getattr(run, role)[..., 0::2], getattr(run, role)[..., 1::2]
            turned_x = torch.stack([-b, a], dim=-1).flatten(-2)
        setattr(run, role, getattr(run, role) * angles.cos() + turned_x * angles.sin())


def _from_zero(run: Run) -> None:
    run.positions = (torch.arange(run.q.shape[-2]), run.positions[1])
    _turn(run)


def _both_from_zero(run: Run) -> None:
    run.positions = (torch.arange(run.q.shape[-2]), torch.arange(run.k.shape[-2]))
    _turn(run)


def _over_heads(run: Run) -> None:
    for role in "qk":
        x = getattr(run, role).transpose(1, 2)  # the heads as positions
        setattr(run, role, turned(run, x, torch.arange(x.shape[-2])).transpose(1, 2))


def _before_split(run: Run) -> None:
    needs(run.merged and run.intent.rope_base is not None, "RoPE")
    run.q = cut(turned(run, run.q, run.positions[0]), run.heads)
    run.k = cut(turned(run, run.k, run.positions[1]), run.kv_heads)
    run.v = cut(run.v, run.kv_heads)


_BASES = tuple(m * 10.0**n for n in range(1, 8) for m in (1.0, 2.0, 5.0))
ROPE_PAIRING = (rotating(lambda run: _turn(run, pairing="other")), rotating(_mixed_pairing))
ROPE_DIRECTION = (
    rotating(lambda run: _turn(run, sign=-1)),
    rotating(lambda run: _turn_both(run, 1, -1)),
    rotating(lambda run: _turn_both(run, -1, 1)),
)
ROPE_ON_VALUES = (rotating(lambda run: _turn(run, "qkv")),)
ROPE_ONLY_QUERIES = (rotating(lambda run: _turn(run, "q")),)
ROPE_ONLY_KEYS = (rotating(lambda run: _turn(run, "k")),)


def _with_base(base: float) -> Callable[[Run], None]:
    def change(run: Run) -> None:
        needs(base != run.intent.rope_base, "another base")
        _turn(run, base=base)

    return change


ROPE_BASE = (
    *(rotating(_with_base(base)) for base in _BASES),
    rotating(lambda run: _turn(run, width=2 * run.q.shape[-1])),
    rotating(lambda run: _turn(run, width=max(run.q.shape[-1] // 2, 1))),
    rotating(lambda run: _turn(run, width=run.q.shape[-1] * run.heads)),
)
ROPE_BEFORE_SPLIT: tuple[Change, ...] = ({"split": _before_split, "rotate": skip},)
ROPE_POSITIONS_RESTART = (rotating(_from_zero), rotating(_both_from_zero))
ROPE_KEYS_OFF_BY_ONE = (
    rotating(lambda run: _turn(run, shift=(0, 1))),
    rotating(lambda run: _turn(run, shift=(1, 0))),
)
ROPE_MISSING = (rotating(skip),)
ROPE_TWICE = (rotating(_turn_twice),)
ROPE_OVER_HEADS = (rotating(_over_heads),)


def norming(change: Callable[[Run], None]) -> Change:
    """Another norm of queries and keys than the one that is meant."""

    def stage(run: Run) -> None:
        needs(run.intent.qk_norm is not None, "QK-norm")
        change(run)

    return {"norm": stage}


def _along(axes: int) -> Callable[[Run], None]:
    def change(run: Run) -> None:
        kind = run.intent.qk_norm or "rms"
        gains = run.layer.norms if run.layer else {}
        for role in "qk":
            x = normed(getattr(run, role), kind, {}, role, axes)
            setattr(run, role, with_gain(x, gains, role))

    return change


def _all_heads(run: Run) -> None:
    kind = run.intent.qk_norm or "rms"
    gains = run.layer.norms if run.layer else {}
    for role in "qk":
        x = getattr(run, role)
        flat = normed(x.transpose(1, 2).flatten(-2), kind, {}, role)
        setattr(run, role, with_gain(cut(flat, x.shape[1]), gains, role))


def _one_only(role: str) -> Callable[[Run], None]:
    def change(run: Run) -> None:
        before = getattr(run, role)
        formula.norm(run)
        setattr(run, role, before)

    return change


def _rotate_then_norm(run: Run) -> None:
    needs(run.intent.qk_norm is not None, "QK-norm")
    formula.rotate(run)
    formula.norm(run)


QK_NORM_AXIS = (norming(_along(-2)), norming(_along(1)), norming(_all_heads))
QK_NORM_AFTER_ROPE: tuple[Change, ...] = ({"norm": skip, "rotate": _rotate_then_norm},)
QK_NORM_MISSING = (norming(skip), norming(_one_only("q")), norming(_one_only("k")))
