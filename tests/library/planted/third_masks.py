"""Heads folded into the batch of a bmm; what is closed is decided by torch.where."""

import math
from functools import cache, partial

import torch
import torch.nn.functional as F

from planted.plants import PLANTS, Plant

CALL = {"arguments": "q, k, v, allowed=mask"}
NOWHERE = -math.inf


def full(allowed, scores):
    """Four axes, True where it may be attended to."""
    return torch.ones_like(scores, dtype=torch.bool) if allowed is None else allowed


def refused(banned, scores):
    return full(None if banned is None else ~banned, scores)


def keys_of(real, scores):
    return full(None if real is None else real[:, None, None, :], scores)


def distance(scores, last=True):
    """How far each key lies before its query, the last query at the last key."""
    T, S = scores.shape[-2:]
    first = S - T if last else 0
    return (torch.arange(T) + first).view(T, 1) - torch.arange(S).view(1, S)


def back(least, most=math.inf, last=True):
    def gate(allowed, scores):
        ago = distance(scores, last)
        return full(allowed, scores) & (ago >= least) & (ago <= most)

    return gate


def closing(scores, gate, number=NOWHERE):
    return torch.where(gate, scores, torch.full((), number, dtype=scores.dtype))


def weighing(scores, gate):
    """A row without a key weighs nothing."""
    alive = gate.any(dim=-1, keepdim=True)
    return torch.where(alive, torch.where(alive, closing(scores, gate), 0.0).softmax(-1), 0.0)


def finite(scores, gate):
    return closing(scores, gate, torch.finfo(scores.dtype).min).softmax(dim=-1)


def folded(q, k, v, allowed=None, *, gate=full, weigh=weighing, wide=torch.float32):
    B, H, T, d = q.shape
    dtype = q.dtype
    if wide is not None:
        q, k, v = (t.to(torch.promote_types(t.dtype, wide)) for t in (q, k, v))
    flat = [t.reshape(B * H, t.shape[2], t.shape[3]) for t in (q, k, v)]
    scores = torch.bmm(flat[0], flat[1].mT).div(math.sqrt(d)).view(B, H, T, -1)
    weights = weigh(scores, gate(allowed, scores).expand_as(scores))
    return torch.bmm(weights.view(B * H, T, -1), flat[2]).view(B, H, T, -1).to(dtype)


def read_as(kind, gate):
    """The gate of a mask that is not True where it may be attended to."""

    def read(mask, scores):
        if mask is None:
            return gate(None, scores)
        return gate(~mask if kind == "blocked" else mask == 0, scores)

    return read


@cache
def twin(kind, parts):
    """The same object for the same parts, so that it is passed once."""
    parts = {"gate": full, **dict(parts)}
    if kind != "attend":
        parts["gate"] = read_as(kind, parts["gate"])
    return partial(folded, **parts)


def plant(mistake, good=None, intent=None, make=None, others=True, **wrong):
    """Three times: the mask says what is open, what is closed, or what is added."""
    good, said = good or {}, {**CALL, **(intent or {"causal": False})}
    for kind in ("attend", "blocked", "additive") if others and not make else ("attend",):
        right = twin(kind, tuple(good.items()))
        planted = twin(kind, tuple({**good, **wrong}.items()))
        PLANTS.append(
            Plant(
                mistake,
                "third" if kind == "attend" else f"third-{kind}",
                make or (lambda _, f=planted: f),
                lambda _, f=right: f,
                {**said, "mask": kind},
            )
        )


# A mask of (B, 1, T, S).
plant("mask_inverted", others=False, gate=refused)
plant("mask_ignored", gate=lambda allowed, scores: full(None, scores))
plant("mask_transposed", gate=lambda m, s: full(None if m is None else m.mT, s))
plant("mask_first_example", gate=lambda m, s: full(None if m is None else m[:1], s))
plant("mask_of_the_batch", gate=lambda m, s: full(None if m is None else m.all(0, True), s))
plant("mask_zeroes_scores", weigh=lambda s, gate: closing(s, gate, 0.0).softmax(-1))
plant("mask_multiplied", others=False, weigh=lambda s, gate: (s * gate).softmax(-1))
plant("mask_added_as_01", others=False, weigh=lambda s, gate: (s + gate).softmax(-1))
plant("softmax_before_mask", weigh=lambda s, gate: torch.where(gate, s.softmax(-1), 0.0))
plant("mask_small_fill", weigh=lambda s, gate: closing(s, gate, -8.0).softmax(-1))
plant(
    "mask_fill_overflows_half",
    good={"weigh": finite},
    weigh=lambda s, gate: s.masked_fill(~gate, -1e9).softmax(-1),
    wide=None,
)
plant(
    "mask_first_head",
    intent={"mask_shape": "BHTS", "causal": False},
    gate=lambda m, s: full(None if m is None else m[:, :1], s),
)


def none_if_one_fails(scores, gate):
    weights = closing(scores, gate).softmax(dim=-1)
    return torch.where(weights.isnan().any(), torch.zeros_like(weights), weights)


def first_block_alone(scores, gate):
    """The second block of keys is scored without the mask."""
    blocks = [closing(scores[..., :4], gate[..., :4], -1e30), scores[..., 4:]]
    return torch.cat(blocks, dim=-1).softmax(dim=-1)


plant("empty_row_spreads", weigh=none_if_one_fails)
plant("closed_key_reaches_output", weigh=first_block_alone)

CAP = {"causal": False, "softcap": 4.0}


def capped(scores):
    return 4.0 * torch.tanh(scores / 4.0)


plant(
    "softcap_after_mask",
    good={"weigh": lambda s, gate: weighing(capped(s), gate)},
    intent=CAP,
    weigh=lambda s, gate: capped(closing(s, gate)).softmax(-1),
)

# Which keys of an example are real: (B, S).
PADDING = {"mask_shape": "BS", "causal": False}


def heads_if_as_many(real, scores):
    if real is not None and real.shape[0] == scores.shape[1]:
        return real[None, :, None, :]
    return keys_of(real, scores)


def rows_of(real, scores):
    return full(None if real is None else real[:, None, :, None], scores)


plant("mask_guessed_by_rank", {"gate": keys_of}, PADDING, gate=heads_if_as_many)
plant("mask_on_queries", {"gate": keys_of}, PADDING, gate=rows_of)

# Causal, and a window of three keys.
BACK = {"good": {"gate": back(0)}, "intent": {"causal": True}}
plant("causal_missing", **BACK, gate=full)
plant("causal_sees_one_ahead", **BACK, gate=back(-1))
plant("causal_excludes_self", **BACK, gate=back(1))
plant("causal_reversed", **BACK, gate=back(-math.inf, 0))
plant("causal_top_left", **BACK, gate=back(0, last=False))
plant("causal_not_meant", gate=back(0))
plant("mask_or_causal", **BACK, gate=lambda m, s: back(0)(None, s) if m is None else m.expand_as(s))
plant(
    "causal_bottom_right_by_cut",
    good={"gate": back(0, last=False)},
    intent={"causal": "top_left"},
    gate=back(0),
)
WINDOW = {
    "good": {"gate": back(0, 2)},
    "intent": {"causal": True, "window": 3},
}
plant("window_one_more", **WINDOW, gate=back(0, 3))
plant("window_one_less", **WINDOW, gate=back(0, 1))
plant("window_not_causal", **WINDOW, gate=back(-2, 2))
plant("window_ignored", **WINDOW, gate=back(0))


class Remembered:
    """Makes the triangle once; in a longer call nothing is closed beyond it."""

    def __init__(self, size):
        self.triangle, self.beyond = None, size == 1

    def gate(self, allowed, scores):
        if self.triangle is None:
            self.triangle = back(0)(None, scores[:1, :1])
        kept, (T, S) = self.triangle, scores.shape[-2:]
        if self.beyond:
            more = (0, max(0, S - kept.shape[-1]), 0, max(0, T - kept.shape[-2]))
            kept = F.pad(kept, more, value=True)[..., :T, :S]
        return full(allowed, scores) & kept

    def __call__(self, q, k, v, allowed=None):
        return folded(q, k, v, allowed, gate=self.gate)


plant("causal_cached_length", **BACK, make=Remembered)


def narrowed_in_place(allowed, scores):
    if allowed is None:
        return back(0)(None, scores)
    allowed &= distance(scores) >= 0
    return allowed


plant("inplace_mask", **BACK, others=False, gate=narrowed_in_place)
