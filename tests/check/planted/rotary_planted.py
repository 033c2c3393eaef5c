"""Each mistake of ``rotary``, with what its author would say."""

from functools import partial

import torch

from planted import rotary
from planted.plants import PLANTS, Plant

SIZES = [(16, 4, 2), (48, 6, 3)]
ROPES = [
    "rope_pairing",
    "rope_direction",
    "rope_on_values",
    "rope_only_queries",
    "rope_only_keys",
    "rope_base",
    "rope_before_split",
    "rope_keys_off_by_one",
    "rope_missing",
    "rope_twice",
]
HEADS = ["kv_heads_tiled", "kv_first_head_for_all"]
NORMS = ["qk_norm_axis", "qk_norm_after_rope", "qk_norm_missing"]
CACHES = ["cache_position", "cache_mask", "cache_stale", "cache_not_appended", "cache_order"]
CACHES = ["rope_positions_restart", "cache_of_earlier_sequence", *CACHES]
KINDS = {
    "llama": (rotary.Llama, {"rope_pairing": "half"}, "rms"),
    "meta": (rotary.Meta, {"rope_pairing": "neighbours"}, "layer"),
}


def build(size: int, kind: type, wrong: str, normed: bool) -> torch.nn.Module:
    torch.manual_seed(3 + size)
    return kind(*SIZES[size], wrong=wrong, normed=normed).eval()


def step_of(layer: torch.nn.Module):
    return layer.step


for _form, (_kind, _said, _norm) in KINDS.items():
    for _mistake in [*ROPES, *HEADS, *NORMS, *CACHES]:
        _intent = {"causal": True, "rope_base": 10_000.0, **_said}
        _intent |= {"qk_norm": _norm} if _mistake in NORMS else {}
        _intent |= {"step": step_of} if _mistake in CACHES else {}
        _options = {"kind": _kind, "normed": _mistake in NORMS}
        _made = (partial(build, wrong=wrong, **_options) for wrong in (_mistake, ""))
        PLANTS.append(Plant(_mistake, _form, *_made, _intent))
