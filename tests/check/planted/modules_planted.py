"""Each mistake of ``modules.Layer``, with what its author would say."""

from functools import partial

import torch

from planted import modules
from planted.plants import PLANTS, Plant

SIZES = [(12, 3), (40, 5)]
GROUPED = [
    {"d_model": 16, "num_heads": 4, "kv_heads": 2},
    {"d_model": 48, "num_heads": 6, "kv_heads": 3},
]
CAUSAL = {"causal": True}
WINDOW = {"causal": True, "window": 4}
CAPPED = {"causal": True, "softcap": 1.5}

# from a mistake to the options of the layer, and to what is said beside them
LAYERS: dict[str, tuple[dict, dict]] = {
    **{name: ({}, {}) for name in [*modules.FACTORS, *modules.SOFTMAXES]},
    "scale_by_value_width": ({"d_v": 7}, {}),
    "scale_ignored": ({"scale": 0.2}, {"scale": 0.2}),
    "softmax_before_mask": ({}, {"mask_means": "attend"}),
    **{name: ({"blocked": True}, {"mask_means": "blocked"}) for name in modules.CLOSINGS},
    "mask_added_as_01": ({}, {"mask_means": "attend"}),
    "mask_multiplied": ({}, {"mask_means": "attend"}),
    "mask_on_queries": (
        {"blocked": True, "padding": True},
        {"mask_means": "blocked", "mask_shape": "BS"},
    ),
    "mask_guessed_by_rank": ({}, {"mask_means": "attend", "mask_shape": "TS"}),
    "mask_first_example": ({}, {"mask_means": "attend", "mask_shape": "B1TS"}),
    "mask_first_head": ({"blocked": True}, {"mask_means": "blocked", "mask_shape": "BHTS"}),
    **{name: (CAUSAL, CAUSAL) for name in modules.BANDS if "causal" in name},
    "causal_not_meant": ({}, {"causal": False}),
    "causal_only_in_training": (CAUSAL, CAUSAL),
    "causal_cached_length": (CAUSAL, CAUSAL),
    **{name: (WINDOW, WINDOW) for name in modules.BANDS if "window" in name},
    "sinks_dropped": ({"sinks": True}, {"sinks": lambda layer: layer.sinks.detach()}),
    **{f"softcap_{how}": (CAPPED, CAPPED) for how in ("missing", "after_mask", "before_scale")},
    "softcap_after_softmax": (CAPPED, CAPPED),
    **dict.fromkeys(
        [
            "heads_split_without_transpose",
            "heads_merged_without_transpose",
            "one_head_only",
            "heads_averaged",
            "query_key_shared",
            "key_value_swapped",
            "query_key_swapped",
            "projections_cloned",
            "output_projection_missing",
            "keys_from_x",
            "values_from_x",
            "queries_from_context",
            "value_is_key",
            "output_bias_twice",
            "residual_added",
            "batch_leak",
            "state_between_calls",
            "gradient_detached_q",
            "gradient_detached_k",
            "gradient_detached_v",
            "gradient_detached_weights",
            "gradient_missing_projection",
            "projection_of_projection",
        ],
        ({}, {}),
    ),
    "kv_heads_tiled": ({"grouped": True}, {}),
    "kv_first_head_for_all": ({"grouped": True}, {}),
    "dropout_in_evaluation": ({"dropout": 0.1}, {}),
    "dropout_before_softmax": ({"dropout": 0.3}, {}),
    "weights_after_dropout": ({"dropout": 0.2, "return_weights": True}, {}),
    "weights_averaged": ({"return_weights": True}, {}),
}
ALIKE = [("scale_twice", "scale_by_d_k"), ("mask_multiplied", "mask_zeroes_scores")]


def build(size: int, wrong: str, options: dict) -> modules.Layer:
    options = dict(options)
    sizes = dict(zip(("d_model", "num_heads"), SIZES[size], strict=True))
    if options.pop("grouped", False):
        sizes = GROUPED[size]
    torch.manual_seed(size)
    return modules.Layer(wrong=wrong, **sizes, **options).eval()


for _mistake, (_options, _intent) in LAYERS.items():
    PLANTS.append(
        Plant(
            _mistake,
            "layer",
            partial(build, wrong=_mistake, options=_options),
            partial(build, wrong="", options=_options),
            _intent,
            also=tuple(n for pair in ALIKE if _mistake in pair for n in pair if n != _mistake),
        )
    )
