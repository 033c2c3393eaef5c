"""The table of known mistakes: words in ``mistakes.json``, forms here, both under one name.

The words say what the mistake is, which line to look for, how to repair it and where people made
it. A form is what it puts in the place of one or two steps of the reference, the usual form first.
A mistake without forms is found by a property instead.
"""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from attn_check import changes as by
from attn_check.changes import Forms, below, mask, meant, of, weights
from attn_check.reference import both, capped, closed, cut, near, norm, project, rotate, triangle

FORMS: dict[str, Forms] = {
    # ---------------------------------------------------------------- scale
    "scale_missing": of("scale", lambda r: 1.0),
    "scale_by_model_width": of("scale", lambda r: (r.d_k * r.H) ** -0.5),
    "scale_multiplied": of("scale", lambda r: 1.0 / r.scale),
    "scale_by_d_k": of("scale", lambda r: 1.0 / r.d_k),
    "scale_twice": of("scale", lambda r: r.scale**2),
    "scale_by_num_heads": of("scale", lambda r: r.H**-0.5, lambda r: 1.0 / r.H),
    "scale_by_value_width": of("scale", lambda r: r.v.shape[-1] ** -0.5),
    "scale_by_length": of("scale", lambda r: r.S**-0.5),
    "scale_ignored": of("scale", lambda r: meant(r.intent.scale) and r.d_k**-0.5),
    # ---------------------------------------------------------------- softmax
    "softmax_over_queries": weights(lambda s: s.softmax(dim=-2)),
    "softmax_over_heads": weights(lambda s: s.softmax(dim=1)),
    "softmax_over_batch": weights(lambda s: s.softmax(dim=0)),
    "softmax_flattened": weights(
        lambda s: by.jointly(s, -2),
        lambda s: by.jointly(s, 1),
        lambda s: by.jointly(s, 0),
        lambda s: by.jointly(s.transpose(1, 2).contiguous(), 2).transpose(1, 2),
    ),
    "softmax_low_precision": weights(*by.rounded(torch.bfloat16), *by.rounded(torch.float16)),
    "softmax_no_maximum": weights(
        lambda s: by.normalised(s.float().exp()),
        lambda s: by.normalised((s - s.max()).float().exp()),
    ),
    "softmax_before_mask": [
        {
            "close": lambda r: r.scores,
            "softmax": lambda r: by.times(r.scores.softmax(dim=-1), both(r.given, r.reach)),
        },
        {
            "close": lambda r: closed(r.scores, r.reach),
            "softmax": lambda r: by.times(r.scores.softmax(dim=-1), r.given),
        },
    ],
    "softmax_twice": weights(lambda s: s.softmax(dim=-1).softmax(dim=-1)),
    "softmax_sigmoid": weights(torch.sigmoid),
    "softmax_relu_normalised": weights(
        lambda s: by.normalised(s.relu()),
        lambda s: s.relu() / (s.relu().sum(-1, keepdim=True) + 1e-6),
        lambda s: s.relu() / s.relu().sum(-1, keepdim=True).clamp(min=1e-9),
        torch.relu,
    ),
    "softmax_missing": weights(
        lambda s: s, by.finite, lambda s: s / by.finite(s).sum(-1, keepdim=True)
    ),
    "softmax_log": weights(lambda s: s.log_softmax(dim=-1)),
    # ---------------------------------------------------------------- masks
    "mask_inverted": mask(lambda m: ~m),
    "mask_added_as_01": [by.closing(lambda r: r.scores + by.passed(r))],
    "mask_multiplied": [by.closing(lambda r: r.scores * by.passed(r))],
    "mask_ignored": mask(lambda m: None),
    "mask_on_queries": mask(lambda m: by.square(m).any(-2, keepdim=True).mT.expand_as(m)),
    "mask_transposed": mask(lambda m: by.square(m).mT),
    "mask_guessed_by_rank": [
        by.by_rank(lambda m: m[:, 0, 0][None, :, None], "B", "H"),
        by.by_rank(lambda m: m[:, 0][None], "B", "H"),
        by.by_rank(lambda m: m[:, 0, 0][None, None], "B", "T"),
        by.by_rank(lambda m: m[0, 0][:, None, None], "B", "T"),
        by.by_rank(lambda m: m[0, 0][None, :, None], "H", "T"),
    ],
    "mask_first_example": mask(lambda m: m[:1], lambda m: m[-1:]),
    "mask_first_head": mask(lambda m: m[:, :1]),
    "mask_of_the_batch": mask(
        lambda m: m.any(0, keepdim=True),
        lambda m: m.all(0, keepdim=True),
        lambda m: m.any(-2, keepdim=True),
        lambda m: m.all(-2, keepdim=True),
    ),
    "mask_or_causal": of(
        "close",
        lambda r: closed(
            r.scores,
            both(r.given, r.reach) if r.given is None or r.reach is None else r.given | r.reach,
        ),
        lambda r: closed(r.scores, r.reach if r.given is None else r.given),
        lambda r: closed(r.scores, r.given if r.reach is None else r.reach),
    ),
    "mask_small_fill": [
        by.filled(-float(n), given_only=given_only, add=add)
        for given_only in (False, True)
        for add in (False, True)
        for n in (1, 2, 5, 8, 10, 20, 50, 100, 1000)
    ],
    "mask_zeroes_scores": [
        by.filled(n, given_only=given_only) for given_only in (False, True) for n in (0.0, 1.0)
    ],
    "padding_zeroed": [
        {
            **by.closing(lambda r: closed(r.scores, r.given, 0.0)),
            "mix": lambda r: by.times(r.weights, r.given) @ r.v,
        }
    ],
    # ---------------------------------------------------------------- causal, window, sink, softcap
    "causal_missing": of("causal", lambda r: None),
    "causal_not_meant": [by.unasked(lambda r: r.S - r.T), by.unasked(lambda r: 0)],
    "causal_sees_one_ahead": of("causal", lambda r: below(r, 1)),
    "causal_excludes_self": of("causal", lambda r: below(r, -1)),
    "causal_reversed": of("causal", lambda r: ~below(r, -1), lambda r: ~below(r)),
    "causal_top_left": of("causal", lambda r: triangle(r.T, r.S, 0)),
    "causal_bottom_right_by_cut": of(
        "causal",
        lambda r: meant(r.intent.causal == "top_left") and triangle(r.T, r.S, r.S - r.T),
    ),
    "causal_only_in_training": of(
        "causal",
        lambda r: below(r) if r.training else None,
        lambda r: None if r.training else below(r),
    ),
    "causal_cached_length": [by.within(n) for n in (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 32, 64)],
    "window_one_more": of("window", lambda r: both(r.reach, near(r, r.intent.window + 1))),
    "window_one_less": of("window", lambda r: both(r.reach, near(r, r.intent.window - 1))),
    "window_not_causal": of(
        "window",
        by.around,
        lambda r: near(r, r.intent.window),
    ),
    "window_ignored": of("window", lambda r: r.reach),
    "block_remainder_dropped": [f for n in (2, 4, 8, 16, 32, 64, 128) for f in by.blocks(n)],
    "sinks_dropped": of(
        "softmax", lambda r: meant(r.intent.sinks is not None) and r.scores.softmax(-1)
    ),
    "softcap_missing": of("cap", lambda r: r.scores),
    "softcap_after_mask": [
        {
            "cap": lambda r: r.scores,
            "close": lambda r: capped(r, closed(r.scores, both(r.given, r.reach))),
        }
    ],
    "softcap_after_softmax": [
        {"cap": lambda r: r.scores, "softmax": lambda r: capped(r, r.scores.softmax(dim=-1))}
    ],
    "softcap_before_scale": [
        {
            "scaled": lambda r: meant(r.intent.softcap) and capped(r, r.scores) * r.factor,
            "cap": lambda r: r.scores,
        }
    ],
    "softcap_clamped": of(
        "cap",
        lambda r: r.scores.clamp(-r.intent.softcap, r.intent.softcap),
        lambda r: capped(r, r.scores) / r.intent.softcap,
    ),
    # ---------------------------------------------------------------- heads
    "heads_split_without_transpose": [
        {"split": by.each(by.viewed)},
        {"split": by.each(by.viewed), "merge": lambda r: r.out.reshape(len(r.out), r.T, -1)},
        {"split": lambda r: (cut(r.q, r.H), by.viewed(r.k, r.H_kv), by.viewed(r.v, r.H_kv))},
    ],
    "heads_merged_without_transpose": of("merge", lambda r: r.out.reshape(len(r.out), r.T, -1)),
    "heads_not_moved": [
        {
            "split": by.each(lambda x, H: x.unflatten(-1, (H, -1))),
            "merge": lambda r: r.out.flatten(-2),
        }
    ],
    "heads_interleaved": [
        {
            "split": by.each(by.dealt),
            "merge": lambda r: r.out.permute(0, 2, 3, 1).flatten(-2),
        },
        {"split": by.each(by.dealt)},
        {"merge": lambda r: r.out.permute(0, 2, 3, 1).flatten(-2)},
    ],
    "heads_reversed": of("merge", lambda r: r.out.flip(1).transpose(1, 2).flatten(-2)),
    "kv_heads_tiled": [by.tiled("kv"), by.tiled("k"), by.tiled("v")],
    "kv_first_head_for_all": of(
        "group",
        lambda r: (
            meant(r.k.shape[1] != r.q.shape[1])
            and (by.spread(r.k[:, :1], r), by.spread(r.v[:, :1], r))
        ),
    ),
    "one_head_only": [
        by.wide(lambda r: r.d_k // r.H),
        by.wide(lambda r: r.d_k),
        {"mix": lambda r: r.weights[:, :1] @ r.v},
        {"score": lambda r: by.spread(r.q[:, :1], r) @ by.spread(r.k[:, :1], r).mT},
        {"mix": lambda r: by.spread(r.weights[:, :1] @ r.v[:, :1], r)},
    ],
    "heads_averaged": of(
        "mix",
        lambda r: r.weights.mean(1, keepdim=True) @ r.v,
        lambda r: by.spread((r.weights @ r.v).mean(1, keepdim=True), r),
    ),
    # ---------------------------------------------------------------- projections
    "query_key_shared": by.shared("qqv", "kkv"),
    "all_shared": by.shared("qqq", "kkk", "vvv"),
    "key_value_swapped": by.shared("qvk"),
    "query_key_swapped": [
        *by.shared("kqv"),
        {"project": lambda r: [project(r)[i] for i in (1, 0, 2)]},
    ],
    "order_rotated": by.shared("vkq", "kvq", "vqk"),
    "output_projection_missing": of("output", lambda r: r.out),
    "output_projection_transposed": of("output", by.transposed_output),
    "keys_from_x": by.sources("xxc", "xxx"),
    "values_from_x": by.sources("xcx"),
    "queries_from_context": by.sources("ccc", "cxx"),
    "value_is_key": by.shared("qkk"),
    "value_is_query": by.shared("qkq"),
    "projection_of_projection": [by.chained(*roles) for roles in ("ck", "cq", "qc", "qk", "qq")],
    "values_unprojected": of("project", lambda r: meant(r.layer) and (*project(r)[:2], r.context)),
    "projection_bias_missing": [by.without_bias(roles) for roles in ("q", "k", "v", "qk", "qkv")],
    "output_bias_twice": of("end", lambda r: r.out + by.output_bias(r)),
    "output_bias_missing": of("end", lambda r: r.out - by.output_bias(r)),
    "residual_added": of("end", lambda r: r.out + (r.x if r.layer else r.tensors["q"])),
    "channels_reversed": [
        {"end": lambda r: r.out.flip(-1)},
        {"mix": lambda r: (r.weights @ r.v).flip(-1)},
    ],
    # ---------------------------------------------------------------- RoPE and norms
    "rope_pairing": [*of("pairing", by.other_pairing), *of("rotate", by.mixed_pairing)],
    "rope_direction": by.rope("times", (-1, -1), (1, -1), (-1, 1)),
    "rope_on_values": of("rotate", lambda r: rotate(r, "qkv")),
    "rope_only_queries": by.rope("times", (1, 0)),
    "rope_only_keys": by.rope("times", (0, 1)),
    "rope_base": [
        *of("base", *(by.with_base(m * 10.0**n) for n in range(1, 8) for m in (1, 2, 5))),
        *of(
            "rotate",
            lambda r: rotate(r, width=2 * r.q.shape[-1]),
            lambda r: rotate(r, width=max(r.q.shape[-1] // 2, 1)),
            lambda r: rotate(r, width=r.q.shape[-1] * r.H),
        ),
    ],
    "rope_before_split": [{"split": by.rotated_whole, "rotate": lambda r: (r.q, r.k, r.v)}],
    "rope_positions_restart": of(
        "positions",
        lambda r: (torch.arange(r.T), r.places[1]),
        lambda r: (torch.arange(r.T), torch.arange(r.S)),
    ),
    "rope_keys_off_by_one": by.rope("shift", (0, 1), (1, 0)),
    "rope_missing": by.rope("times", (0, 0)),
    "rope_twice": by.rope("times", (2, 2)),
    "rope_over_heads": of("rotate", by.over_heads),
    "qk_norm_axis": of("norm", by.normed_along(-2), by.normed_along(1), by.normed_together),
    "qk_norm_after_rope": [{"norm": lambda r: (r.q, r.k), "rotate": by.normed_last}],
    "qk_norm_missing": of(
        "norm", lambda r: (r.q, r.k), lambda r: norm(r, "k"), lambda r: norm(r, "q")
    ),
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
    empties: bool = False  # may leave rows without any open cell
    words: dict[str, dict[str, Any]] = field(default_factory=dict)  # of a form, by its number

    @property
    def forms(self) -> Forms:
        """What it changes in the reference; empty where only a property tells."""
        return FORMS.get(self.id, [])

    def in_form(self, number: int) -> "Mistake":
        """The row with the words of one of its forms, where these are others."""
        return replace(self, **self.words.get(str(number), {}))


_ROWS = json.loads(Path(__file__).with_name("mistakes.json").read_text(encoding="utf-8"))
MISTAKES = {name: Mistake(name, **words) for name, words in _ROWS.items()}
