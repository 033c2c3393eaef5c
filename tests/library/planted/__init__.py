"""Wrong attentions of every known kind, in several forms, and right ones that look unusual."""

from importlib import import_module

from planted.plants import PLANTS, Plant

for _name in (
    "functions_scores",
    "functions_masks",
    "functions_causal",
    "functions_heads",
    "functions_more",
    "functions_einsum",
    "modules_planted",
    "packed_planted",
    "cross",
    "published",
    "ropes",
    "rotary_planted",
    "third_scores",
    "third_masks",
    "third_heads",
    "third_rotary",
    "third_state",
):
    import_module(f"planted.{_name}")

__all__ = ["PLANTS", "Plant"]
