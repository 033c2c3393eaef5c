"""Wrong attentions of every known kind, in several forms, and right ones that look unusual."""

from importlib import import_module

from planted.plants import PLANTS, RIGHT, Plant

for _name in (
    "functions_scores",
    "functions_masks",
    "functions_causal",
    "functions_heads",
    "functions_more",
    "functions_einsum",
    "modules_planted",
    "packed",
    "cross",
    "published",
    "ropes",
    "rotary_planted",
    "right",
    "right_modules",
    "right_styles",
):
    import_module(f"planted.{_name}")

__all__ = ["PLANTS", "RIGHT", "Plant"]
