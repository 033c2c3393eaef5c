"""The table of known mistakes: words in ``mistakes.json``, forms here, both under one name.

The words say what the mistake is, which line to look for, how to repair it and where people made
it. A form is what it puts in the place of one or two steps of the reference, the usual form first.
A mistake without forms is found by a property instead.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attn_check.reference import Change, NotMeant, Run, Step, both, closed, cut, repeated, triangle

Forms = list[Change]
SIZES = (1, 2, 4, 8, 16, 32, 64)  # of blocks
WIDTHS = (8, 12, 16, 24, 32, 48, 64, 80, 96, 100, 128, 192, 256, 384, 512, 768, 1024, 4096)


def _of(step: str, *ways: Step) -> Forms:
    """Forms that all change one step."""
    return [{step: way} for way in ways]


def _with(step: str, way: Callable[[Any, Run], Any], *choices: Any) -> Forms:
    """Forms that take one step in one way, each with another choice."""
    return [{step: partial(way, choice)} for choice in choices]


def _together(**ways: Step) -> Forms:
    """One form that changes several steps."""
    return [ways]


def _weights(*functions: Callable[[Tensor], Tensor]) -> Forms:
    """Weights made of the scores by something else than the softmax over the keys."""
    return _with("softmax", lambda f, r: f(_bare(r)), *functions)


def _mask(*readings: Callable[[Tensor], Tensor | None]) -> Forms:
    """Other readings of the mask that is given, (B, 1 or H, T, S)."""
    return _with("mask", lambda f, r: None if r.given is None else f(r.given), *readings)


def _meant(value: Any) -> Any:
    """A part of the intent, or of the layer, without which there is no such mistake."""
    if value is None or value is False:
        raise NotMeant("this part is not meant to be there")
    return value


def _bare(r: Run) -> Tensor:
    """Scores that no sink joins: else to leave it out would be a second mistake."""
    return _meant(r.intent.sinks is None) and r.scores


def _zeroed(r: Run, cells: Tensor | None) -> Tensor:
    return closed(_bare(r).softmax(dim=-1), cells, 0.0)


def _jointly(scores: Tensor, axis: int) -> Tensor:
    """One softmax over an axis and all that follow."""
    return scores.flatten(axis).softmax(dim=-1).view_as(scores)


def _normalised(powers: Tensor) -> Tensor:
    return (powers / powers.sum(dim=-1, keepdim=True)).double()


def _rounded(dtype: torch.dtype) -> Forms:
    """Rounded scores, the softmax of them too, rounded weights; products of rounded numbers."""
    softmax = _weights(
        lambda s: s.float().to(dtype).double().softmax(dim=-1),
        lambda s: s.float().to(dtype).softmax(dim=-1).double(),
        lambda s: s.float().softmax(dim=-1).to(dtype).double(),
    )
    softmax += _of("score", lambda r: (r.q.to(dtype) @ r.k.mT.to(dtype)).double())
    return softmax + _of("mix", lambda r: (r.weights.to(dtype) @ r.v.to(dtype)).double())


def _square(cells: Tensor) -> Tensor:
    return _meant(cells.shape[-1] == cells.shape[-2]) and cells


def _other_axis(choice: tuple[str, Callable[[Tensor], Tensor]], r: Run) -> Tensor | None:
    """The mask on another axis than its own, where two sizes are equal."""
    pair, pick = choice
    sizes = {"B": len(r.scores), "H": r.scores.shape[1], "T": r.T}
    alike = sizes[pair[0]] == sizes[pair[1]]
    return pick(r.given) if r.given is not None and alike else r.given


def _passed(r: Run) -> Tensor:
    """The mask as the numbers 0 and 1 that were passed."""
    return (~r.given if r.intent.polarity == "blocked" else r.given).double()


def _closing(way: Step) -> Change:
    """Another way of closing what the mask closes; the causal mask closes as it should."""
    return {"close": lambda r: closed(way(r) if r.given is not None else r.scores, r.reach)}


def _filled(*values: float, adds: tuple[bool, ...] = (False,)) -> Forms:
    """Numbers for closed cells of all masks, then for those of the given one alone."""

    def put(r: Run, cells: Tensor | None, add: bool, value: float) -> Tensor:
        if cells is None or not add:
            return closed(r.scores, cells, value)
        return r.scores + (~cells) * value

    pairs = [(add, value) for add in adds for value in values]
    every = _with("close", lambda pair, r: put(r, both(r.given, r.reach), *pair), *pairs)
    return every + [_closing(partial(lambda pair, r: put(r, r.given, *pair), p)) for p in pairs]


def _turned_bias(r: Run) -> Tensor:
    """The bias of all positions, keys and queries exchanged, for the last T and S of them."""
    n = max(r.T, r.S)
    return r.intent.attn_bias(n, n).mT[..., n - r.T :, n - r.S :]


def _within(n: int, r: Run) -> Tensor:
    """Later keys are closed within the first n positions alone."""
    rows = torch.arange(r.T)[:, None] + r.first < n
    return r.below() | ~(rows & (torch.arange(r.S) < n))


def _blocks(size: int) -> Forms:
    """The keys, or the queries, of a last block that is not whole are left out; or of any such."""

    def whole(n: int) -> Tensor:
        return torch.arange(n) < (n - n % size or n)

    def queries(left: float, r: Run) -> Tensor:
        return (r.weights @ r.v).masked_fill(~whole(r.T)[:, None], left)

    def first(n: int, r: Run) -> Tensor:  # with none, the output is 0
        return _bare(r)[..., :n].softmax(dim=-1) @ r.v[..., :n, :]

    keys = _of("reach", lambda r: both(r.reach, whole(r.S).expand(r.T, r.S)))
    keys += _of("mix", lambda r: first(r.S - r.S % size, r))
    return keys + _with("mix", queries, 0.0, math.nan)


def _online(choice: tuple[int, tuple[float | None, ...]], r: Run) -> Tensor:
    """Blocks of keys in turn; what was summed before is kept by these factors, None for right."""
    out, total = torch.zeros_like(r.q[..., :1] * r.v[..., :1, :]), torch.zeros_like(r.q[..., :1])
    top, (size, factors) = torch.full_like(total, -math.inf), choice
    for scores, v in zip(_bare(r).split(size, dim=-1), r.v.split(size, dim=-2), strict=True):
        new = torch.maximum(top, scores.amax(-1, keepdim=True)).clamp(min=-1e30)
        kept, other = ((top - new).exp() if factor is None else factor for factor in factors)
        powers, top = (scores - new).exp(), new
        out, total = out * kept + powers @ v, total * other + powers.sum(-1, keepdim=True)
    return out / total


def _averaged(n: int, r: Run) -> Tensor:
    """Parts of the keys, each with a softmax of its own."""
    pairs = zip(_bare(r).tensor_split(n, -1), r.v.tensor_split(n, -2), strict=True)
    return torch.stack([s.softmax(-1) @ v for s, v in pairs if v.shape[-2]]).mean(dim=0)


def _tiled_mask(r: Run) -> Tensor | None:
    """Head h of example b has the mask number b · H + h of the examples' masks in turn."""
    if r.given is None:
        return None
    B, H = len(r.scores), r.scores.shape[1]
    return r.given.expand(B, *r.given.shape[1:])[(torch.arange(B * H) % B).view(B, H), 0]


def _each(split: Callable[[Tensor, int], Tensor]) -> Step:
    """A way of splitting heads, for queries, keys and values."""
    return lambda r: (split(r.q, r.H), split(r.k, r.H_kv), split(r.v, r.H_kv))


def _viewed(x: Tensor, H: int) -> Tensor:
    return x.reshape(x.shape[0], H, x.shape[1], -1)


def _dealt(x: Tensor, H: int) -> Tensor:
    """Channels dealt to the heads in turn."""
    return x.unflatten(-1, (-1, H)).permute(0, 3, 1, 2)


def _spread(x: Tensor, r: Run) -> Tensor:
    return x.expand(-1, r.q.shape[1], -1, -1)


def _fewer(r: Run) -> tuple[Tensor, Tensor]:
    """Keys and values that have fewer heads than the queries."""
    return _meant(r.k.shape[1] != r.q.shape[1]) and (r.k, r.v)


def _tiled(roles: str, r: Run) -> list[Tensor]:
    """Keys, values or both: query head h uses head h % H_kv."""
    n, parts = r.q.shape[1] // r.k.shape[1], zip("kv", _fewer(r), strict=True)
    return [x.repeat(1, n, 1, 1) if m in roles else repeated(r, x) for m, x in parts]


def _wide(width: Step) -> Change:
    """The heads are not split."""
    return {
        "split": lambda r: (r.q[:, None], r.k[:, None], r.v[:, None]),
        "group": lambda r: (r.k, r.v),
        "scale": lambda r: r.intent.scale or width(r) ** -0.5,
    }


def _projected(*choices: str) -> Forms:
    """Queries, keys and values by other projections, or of other inputs: x or c(ontext)."""
    return _with("project", lambda choice, r: r.project(*choice.split()), *choices)


def _chained(roles: str, r: Run) -> tuple[Tensor, ...]:
    """Keys and values, each projected from c(ontext), or from queries or keys."""
    q, k, _ = _meant(r.layer) and r.project()
    k = r.linear("k", {"c": r.context, "q": q}[roles[0]])
    return q, k, r.linear("v", {"c": r.context, "q": q, "k": k}[roles[1]])


def _without_bias(roles: str, r: Run) -> tuple[Tensor, ...]:
    biases = {n: _meant(r.layer).biases.get(n) if n in roles else None for n in "qkv"}
    parts = zip(biases.values(), r.project(), strict=True)
    return tuple(x if bias is None else x - bias for bias, x in parts)


def _rope(step: str, *pairs: tuple[int, int]) -> Forms:
    """Other numbers for queries and keys: what is added to positions, or how often they turn."""
    return _with(step, lambda pair, r: pair, *pairs)


def _mixed_pairing(r: Run) -> tuple[Tensor, ...]:
    """Channels as in the pairing that is meant, angles in the order of the other."""
    q, k = (r.turn(x, at, mixed=True) for x, at in zip((r.q, r.k), r.positions, strict=True))
    return q, k, r.v


def _over_heads(r: Run) -> tuple[Tensor, ...]:
    """A rotation by the index of the head."""
    parts = [(x.transpose(1, 2), torch.arange(x.shape[1])) for x in (r.q, r.k)]
    return (*(r.turn(x, heads).transpose(1, 2) for x, heads in parts), r.v)


def _rotated(r: Run) -> Run:
    return Run(**(vars(r) | dict(zip("qkv", r.rotate(), strict=True))))


def _normed(axis: int | None, r: Run) -> list[Tensor]:
    """Queries and keys, normed over another axis, or, with None, over all heads together."""
    parts = []
    for role, x in (("q", r.q), ("k", r.k)):
        merged = x.transpose(1, 2).flatten(-2)
        one = cut(r.normed(merged), x.shape[1]) if axis is None else r.normed(x, axis=axis)
        parts.append(r.with_gain(one, role))
    return parts


FORMS: dict[str, Forms] = {
    # ---------------------------------------------------------------- scale
    "scale_missing": _of("scale", lambda r: 1.0),
    "scale_by_model_width": _of(
        "scale",
        lambda r: (r.d_k * r.H) ** -0.5,
        lambda r: _meant(r.H != r.H_kv) and (r.d_k * r.H / r.H_kv) ** -0.5,
        lambda r: _meant(r.layer).weights["q"].shape[1] ** -0.5,
    ),
    "scale_multiplied": _of("scale", lambda r: 1.0 / r.scale),
    "scale_by_d_k": _of("scale", lambda r: 1.0 / r.d_k, lambda r: 0.5 / r.d_k),
    "scale_twice": _of("scale", lambda r: r.scale**2),
    "scale_by_num_heads": _of("scale", lambda r: r.H**-0.5, lambda r: 1.0 / r.H),
    "scale_by_value_width": _of("scale", lambda r: r.v.shape[-1] ** -0.5),
    "scale_by_length": _of("scale", lambda r: r.S**-0.5, lambda r: r.T**-0.5),
    "scale_ignored": _of("scale", lambda r: _meant(r.intent.scale) and r.d_k**-0.5),
    "scale_constant": _with("scale", lambda width, r: width**-0.5, *WIDTHS),
    # ---------------------------------------------------------------- softmax
    "softmax_over_queries": _weights(lambda s: s.softmax(dim=-2))
    + _of("mix", lambda r: _square(r.weights).mT @ r.v),
    "softmax_over_heads": _weights(lambda s: s.softmax(dim=1)),
    "softmax_over_batch": _weights(
        lambda s: s.softmax(dim=0), lambda s: s.flatten(0, 1).softmax(dim=0).view_as(s)
    ),
    "softmax_flattened": _weights(
        lambda s: _jointly(s, -2),
        lambda s: _jointly(s, 1),
        lambda s: _jointly(s, 0),
        lambda s: _jointly(s.transpose(1, 2).contiguous(), 2).transpose(1, 2),
    ),
    "softmax_low_precision": _rounded(torch.bfloat16) + _rounded(torch.float16),
    "softmax_no_maximum": _weights(
        lambda s: _normalised(s.float().exp()), lambda s: _normalised((s - s.max()).float().exp())
    ),
    "softmax_before_mask": _together(
        close=lambda r: r.scores, softmax=lambda r: _zeroed(r, both(r.given, r.reach))
    )
    + _together(close=lambda r: closed(r.scores, r.reach), softmax=lambda r: _zeroed(r, r.given)),
    "softmax_twice": _weights(lambda s: s.softmax(dim=-1).softmax(dim=-1)),
    "softmax_of_base_two": _weights(
        lambda s: (s * math.log(2)).softmax(dim=-1), lambda s: (s / math.log(2)).softmax(dim=-1)
    ),
    "softmax_sigmoid": _weights(torch.sigmoid),
    "softmax_relu_normalised": _weights(
        lambda s: _normalised(s.relu()),
        lambda s: s.relu() / (s.relu().sum(-1, keepdim=True) + 1e-6),
        lambda s: s.relu() / s.relu().sum(-1, keepdim=True).clamp(min=1e-9),
        torch.relu,
    ),
    "softmax_missing": _weights(
        lambda s: s,
        lambda s: s.masked_fill(s.isneginf(), 0.0),
        lambda s: s / s.masked_fill(s.isneginf(), 0.0).sum(-1, keepdim=True),
    ),
    "softmax_log": _weights(lambda s: s.log_softmax(dim=-1)),
    # ---------------------------------------------------------------- masks
    "mask_inverted": _mask(lambda m: ~m),
    "mask_added_as_01": [_closing(lambda r: r.scores + _passed(r))],
    "mask_multiplied": [_closing(lambda r: r.scores * _passed(r))],
    "mask_ignored": _mask(lambda m: None),
    "mask_on_queries": _mask(lambda m: _square(m).any(-2, keepdim=True).mT.expand_as(m)),
    "mask_transposed": _mask(lambda m: _square(m).mT),
    "mask_guessed_by_rank": _with(
        "mask",
        _other_axis,
        ("BH", lambda m: m[:, 0, 0][None, :, None]),
        ("BH", lambda m: m[:, 0][None]),
        ("BT", lambda m: m[:, 0, 0][None, None]),
        ("BT", lambda m: m[0, 0][:, None, None]),
        ("HT", lambda m: m[0, 0][None, :, None]),
    ),
    "mask_first_example": _mask(lambda m: m[:1], lambda m: m[-1:]),
    "mask_first_head": _mask(lambda m: m[:, :1]),
    "mask_tiled_over_heads": _of("mask", _tiled_mask),
    "mask_of_the_batch": _mask(
        *(partial(f, dim=axis, keepdim=True) for axis in (0, -2) for f in (torch.any, torch.all))
    ),
    "mask_or_causal": _of(
        "close",
        lambda r: closed(
            r.scores,
            both(r.given, r.reach) if r.given is None or r.reach is None else r.given | r.reach,
        ),
        lambda r: closed(r.scores, r.reach if r.given is None else r.given),
        lambda r: closed(r.scores, r.given if r.reach is None else r.reach),
    ),
    "mask_small_fill": _filled(
        *(-1.0, -2.0, -5.0, -8.0, -10.0, -20.0, -30.0, -50.0, -100.0, -1000.0), adds=(False, True)
    ),
    "mask_zeroes_scores": _filled(0.0, 1.0),
    "padding_zeroed": _together(
        **_closing(lambda r: closed(r.scores, r.given, 0.0)),
        mix=lambda r: closed(r.weights, r.given, 0.0) @ r.v,
    ),
    # ---------------------------------------------------------------- causal, window, sink, softcap
    "causal_missing": _of("causal", lambda r: None),
    "causal_not_meant": _of(
        "reach",
        lambda r: _meant(not r.intent.causal) and both(r.reach, triangle(r.T, r.S, r.S - r.T)),
        lambda r: _meant(not r.intent.causal) and both(r.reach, triangle(r.T, r.S, 0)),
    ),
    "causal_sees_one_ahead": _of("causal", lambda r: r.below(1), lambda r: triangle(r.T, r.S, 1)),
    "causal_excludes_self": _of("causal", lambda r: r.below(-1)),
    "causal_reversed": _of("causal", lambda r: ~r.below(-1), lambda r: ~r.below()),
    "causal_top_left": _of("causal", lambda r: triangle(r.T, r.S, 0)),
    "causal_bottom_right_by_cut": _of(
        "causal", lambda r: _meant(r.intent.causal == "top_left") and triangle(r.T, r.S, r.S - r.T)
    ),
    "causal_only_in_training": _of(
        "causal",
        lambda r: r.below() if r.training else None,
        lambda r: None if r.training else r.below(),
    ),
    "causal_cached_length": [
        *_with("causal", _within, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 32, 64),
        *_with("causal", lambda n, r: r.below() if n >= r.S else None, 4, 5, 8, 16, 32, 64),
    ],
    "causal_restarts": _with(
        "causal",
        lambda n, r: torch.arange(r.S) <= torch.arange(r.T)[:, None] % n + r.first,
        *(2, 4, 8, 16, 32, 64),
    ),
    "window_one_more": _of("window", lambda r: both(r.reach, r.near(r.intent.window + 1))),
    "window_one_less": _of("window", lambda r: both(r.reach, r.near(r.intent.window - 1))),
    "window_not_causal": _of(
        "window",
        lambda r: (r.places[0][:, None] - r.places[1]).abs() < r.intent.window,
        lambda r: r.near(r.intent.window),
    ),
    "window_in_blocks": _of(
        "window",
        lambda r: both(
            r.reach, r.places[0][:, None] // r.intent.window == r.places[1] // r.intent.window
        ),
    ),
    "window_ignored": _of("window", lambda r: r.reach),
    "online_softmax_not_rescaled": _with(
        "mix", _online, *product(SIZES, ((1.0, None), (1.0, 1.0), (None, 1.0)))
    ),
    "online_softmax_last_sum": _with("mix", _online, *product(SIZES, ((None, 0.0),))),
    "block_padding_counts": _with(
        "softmax",
        lambda n, r: F.pad(r.scores, (0, -r.S % n)).softmax(-1)[..., : r.S],
        *(4, 8, 16, 32, 64, 128),
    ),
    "parts_averaged": _with("mix", _averaged, 2, 4),
    "block_remainder_dropped": [f for n in (*SIZES[1:], 128) for f in _blocks(n)],
    "sinks_dropped": _of(
        "softmax", lambda r: _meant(r.intent.sinks is not None) and r.scores.softmax(-1)
    ),
    "softcap_missing": _of("cap", lambda r: r.scores),
    "softcap_after_mask": _together(
        cap=lambda r: r.scores, close=lambda r: r.capped(closed(r.scores, both(r.given, r.reach)))
    ),
    "softcap_after_softmax": _together(
        cap=lambda r: r.scores, softmax=lambda r: r.capped(r.scores.softmax(dim=-1))
    ),
    "softcap_before_scale": _together(
        scaled=lambda r: _meant(r.intent.softcap) and r.capped(r.scores) * r.factor,
        cap=lambda r: r.scores,
    ),
    "softcap_clamped": _of(
        "cap",
        lambda r: r.scores.clamp(-r.intent.softcap, r.intent.softcap),
        lambda r: r.capped(r.scores) / r.intent.softcap,
    ),
    "bias_missing": _of("bias", lambda r: r.scores)
    + _together(
        bias=lambda r: r.scores, softmax=lambda r: r.softmax() + r.intent.attn_bias(r.T, r.S)
    ),
    "bias_scaled": _of("bias", lambda r: r.scores + r.factor * r.intent.attn_bias(r.T, r.S)),
    "bias_transposed": _of("bias", lambda r: r.scores + _turned_bias(r)),
    # ---------------------------------------------------------------- heads
    "heads_split_without_transpose": [
        {"split": _each(_viewed)},
        {"split": _each(_viewed), "merge": lambda r: r.out.reshape(len(r.out), r.T, -1)},
        {"split": lambda r: (cut(r.q, r.H), _viewed(r.k, r.H_kv), _viewed(r.v, r.H_kv))},
        {"split": lambda r: _viewed(torch.cat([r.q, r.k, r.v], -1), 3 * r.H).chunk(3, dim=1)},
    ],
    "heads_merged_without_transpose": _of(
        "merge",
        lambda r: r.out.reshape(len(r.out), r.T, -1),
        lambda r: r.out.mT.reshape(len(r.out), r.T, -1),
    ),
    "heads_not_moved": _together(
        split=_each(lambda x, H: x.unflatten(-1, (H, -1))), merge=lambda r: r.out.flatten(-2)
    ),
    "heads_interleaved": [
        {"split": _each(_dealt), "merge": lambda r: r.out.permute(0, 2, 3, 1).flatten(-2)},
        {"split": _each(_dealt)},
        {"merge": lambda r: r.out.permute(0, 2, 3, 1).flatten(-2)},
    ],
    "heads_reversed": _of("merge", lambda r: r.out.flip(1).transpose(1, 2).flatten(-2)),
    "kv_heads_tiled": _with("group", _tiled, "kv", "k", "v"),
    "kv_first_head_for_all": _of("group", lambda r: [_spread(x[:, :1], r) for x in _fewer(r)]),
    "one_head_only": [
        _wide(lambda r: r.d_k // r.H),
        _wide(lambda r: r.d_k),
        {"mix": lambda r: r.weights[:, :1] @ r.v},
        {"score": lambda r: _spread(r.q[:, :1], r) @ _spread(r.k[:, :1], r).mT},
        {"mix": lambda r: _spread(r.weights[:, :1] @ r.v[:, :1], r)},
    ],
    "heads_averaged": _of(
        "mix",
        lambda r: r.weights.mean(1, keepdim=True) @ r.v,
        lambda r: _spread((r.weights @ r.v).mean(1, keepdim=True), r),
    ),
    "batch_exchanged": _together(
        project=lambda r: [x.transpose(0, -2) for x in r.project()],
        end=lambda r: r.out.transpose(0, -2),
    ),
    # ---------------------------------------------------------------- projections
    "keys_reshaped": _of("score", lambda r: r.q @ r.k.reshape(*r.k.shape[:2], *r.k.mT.shape[2:])),
    "values_summed": _of(
        "mix",
        lambda r: r.weights.sum(-1, keepdim=True) * r.v.sum(-2, keepdim=True),
        lambda r: _square(r.weights).sum(-1, keepdim=True) * r.v,
    ),
    "query_key_shared": _projected("qqv", "kkv"),
    "all_shared": _projected("qqq", "kkk", "vvv"),
    "key_value_swapped": _projected("qvk"),
    "query_key_swapped": _projected("kqv")
    + _of("project", lambda r: [r.project()[i] for i in (1, 0, 2)]),
    "order_rotated": _projected("vkq", "kvq", "vqk"),
    "output_projection_missing": _of("output", lambda r: r.out),
    "output_projection_transposed": _of(
        "output", lambda r: F.linear(r.out, r.layer.weights["out"].mT, r.layer.biases.get("out"))
    ),
    "keys_from_x": _projected("qkv xxc", "qkv xxx"),
    "values_from_x": _projected("qkv xcx"),
    "queries_from_context": _projected("qkv ccc", "qkv cxx"),
    "value_is_key": _projected("qkk"),
    "value_is_query": _projected("qkq"),
    "projection_of_projection": _with("project", _chained, "ck", "cq", "qc", "qk", "qq"),
    "values_unprojected": _of(
        "project", lambda r: _meant(r.layer) and (*r.project()[:2], r.context)
    ),
    "projection_bias_missing": _with("project", _without_bias, "q", "k", "v", "qk", "qkv"),
    "output_bias_twice": _of("end", lambda r: r.out + _meant(_meant(r.layer).biases.get("out"))),
    "output_bias_missing": _of("end", lambda r: r.out - _meant(_meant(r.layer).biases.get("out"))),
    "residual_added": _of("end", lambda r: r.out + r.tensors["x" if r.layer else "q"]),
    "channels_reversed": _of("end", lambda r: r.out.flip(-1))
    + _of("mix", lambda r: (r.weights @ r.v).flip(-1)),
    # ---------------------------------------------------------------- RoPE and norms
    "rope_pairing": [
        {"pairing": lambda r: "neighbours" if r.intent.rope_pairing == "half" else "half"},
        {"rotate": _mixed_pairing},
    ],
    "rope_direction": _rope("times", (-1, -1), (1, -1), (-1, 1)),
    "rope_on_values": _of("rotate", lambda r: r.rotate("qkv")),
    "rope_only_queries": _rope("times", (1, 0)),
    "rope_only_keys": _rope("times", (0, 1)),
    "rope_base": [
        *_with(
            "base",
            lambda base, r: _meant(base != r.intent.rope_base) and base,
            *(m * 10.0**n for n in range(1, 8) for m in (1, 2, 5)),
        ),
        {"base": lambda r: 1.0 / r.intent.rope_base},
        {"rotate": lambda r: r.rotate(width=2 * r.q.shape[-1])},
        {"rotate": lambda r: r.rotate(width=max(r.q.shape[-1] // 2, 1))},
        {"rotate": lambda r: r.rotate(width=r.q.shape[-1] * r.H)},
    ],
    "rope_before_split": _together(
        split=lambda r: _meant(r.intent.rope_base) and _each(cut)(_rotated(r)),
        rotate=lambda r: (r.q, r.k, r.v),
    ),
    "rope_positions_restart": _of(
        "positions",
        lambda r: (torch.arange(r.T), r.places[1]),
        lambda r: (torch.arange(r.T), torch.arange(r.S)),
    ),
    "rope_keys_off_by_one": _rope("shift", (0, 1), (1, 0)),
    "rope_missing": _rope("times", (0, 0)),
    "rope_twice": _rope("times", (2, 2)),
    "rope_over_heads": _of("rotate", _over_heads),
    "qk_norm_axis": _with("norm", _normed, -2, 1, None),
    "qk_norm_after_rope": _together(
        norm=lambda r: (r.q, r.k),
        rotate=lambda r: _meant(r.intent.qk_norm) and (*_rotated(r).norm(), r.v),
    ),
    "qk_norm_of_the_other": _with(
        "norm", lambda role, r: (r.normed(r.q, role), r.normed(r.k, role)), "q", "k"
    ),
    "qk_norm_missing": _with("norm", lambda roles, r: r.norm(roles), "", "k", "q"),
}


@dataclass(frozen=True)
class Mistake:
    """One row: what goes wrong, in words, and its forms."""

    id: str
    name: str
    likely: str
    look_for: str
    repair: str
    source: str
    note: bool = False  # behaviour that real libraries have: not a failure
    warns: bool = False  # a note that stands in the headline
    empties: bool = False  # may leave rows without any open cell
    words: dict[str, dict[str, Any]] = field(default_factory=dict)  # of a form, by its number

    @property
    def forms(self) -> Forms:
        """What it changes in the reference; empty where only a property tells."""
        return FORMS.get(self.id, [])


_ROWS = json.loads(Path(__file__).with_name("mistakes.json").read_text(encoding="utf-8"))
MISTAKES = {name: Mistake(name, **words) for name, words in _ROWS.items()}
