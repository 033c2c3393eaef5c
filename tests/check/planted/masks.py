"""Masks that are used wrongly; True = may attend, but for ``blocked``."""

from planted.functions import behind_and_causal, masked, masked_and_causal, padded
from planted.layers import CrossAttention, Layer
from planted.plants import edit

ATTEND, BLOCKED = {"mask_means": "attend"}, {"mask_means": "blocked"}
PADDING = {"mask_means": "attend", "mask_shape": "BS"}

# ---------------------------------------------------------------- a function, or a layer

FILLS = {
    "mask_inverted": "scores.masked_fill({0}, -torch.inf)",
    "mask_added_as_01": "scores + {0}.to(scores.dtype)",
    "mask_multiplied": "scores * {0}.to(scores.dtype)",
    "mask_zeroes_scores": "scores.masked_fill(~{0}, 0.0)",
    "mask_ignored": "scores",  # QwenLM/Qwen#933
    "mask_transposed": "scores.masked_fill(~{0}.expand(scores.shape).mT, -torch.inf)",
    "mask_small_fill": "scores.masked_fill(~{0}, -10.0)",
    "mask_fill_overflows_half": "scores.masked_fill(~{0}, -1e9)",
}
FILL, KEPT = 'scores.masked_fill(~mask, float("-inf"))', "scores.masked_fill(~keep, -INF)"
edit(masked, "function", {m: (FILL, x.format("mask")) for m, x in FILLS.items()}, **ATTEND)
edit(Layer, "layer", {m: (KEPT, x.format("keep")) for m, x in FILLS.items()}, **ATTEND)

# ---------------------------------------------------------------- functions

OUT = "return torch.softmax(scores, dim=-1) @ v"
MASKS = {
    "mask_first_example": ("~mask", "~mask[0]"),
    "closed_key_reaches_output": (FILL, "torch.where(mask, scores, scores.amin(-1, keepdim=True))"),
    "empty_row_spreads": (
        OUT,
        "out = scores.softmax(-1) @ v\n"
        "    return torch.zeros_like(out) if torch.isnan(out).any() else out",
    ),
    "state_between_calls": [
        ("mask=None):", "mask=None, seen={}):"),
        ("torch.matmul(q, k.", "torch.matmul(q, seen.setdefault(k.shape, k.detach().clone())."),
    ],
}
edit(masked, "function", MASKS, **ATTEND)
ROWS = "(torch.arange(q.size(0) * q.size(1)) % q.size(0)).view(q.shape[:2])"
RANK = "if mask is not None:\n        mask = mask[:, None, None, :] if mask.dim() == 2 else mask"
BY_SHAPE = {
    "BHTS": {"mask_first_head": ("~mask", "~mask[:, :1]")},
    "B1TS": {
        "mask_of_the_batch": ("~mask", "~mask.any(0, keepdim=True)"),
        "mask_tiled_over_heads": ("~mask", f"~mask.expand(len(q), *mask.shape[1:])[{ROWS}, 0]"),
    },
    "TS": {"mask_guessed_by_rank": ("if mask is not None:", RANK)},
}
for shape, mistakes in BY_SHAPE.items():
    edit(masked, "function", mistakes, mask_shape=shape, **ATTEND)
PADDED = {
    "mask_on_queries": ("[:, None, None, :]", "[:, None, :, None]"),
    "padding_zeroed": [
        ('~real, float("-inf")', "~real, 0.0"),
        ("return", "    v = v * real.mT\n    return"),
    ],
}
edit(padded, "function", PADDED, **PADDING)
IN_PLACE = "mask.logical_{0}_({1}) if mask.size(-2) == T else {1} {2} mask"
BOTH = {
    "inplace_mask": ("keep & mask", IN_PLACE.format("and", "keep", "&")),
    "mask_or_causal": ("keep & mask", "keep | mask"),
}
edit(masked_and_causal, "function", BOTH, causal=True, **ATTEND)
ZEROS = "torch.softmax(scores, dim=-1).nan_to_num()"
empty = {"empty_row_nan": (".nan_to_num()", "")}
edit(masked, "function", empty, before=(("torch.softmax(scores, dim=-1)", ZEROS),), **ATTEND)
BOTH = {
    "inplace_mask": ("closed | mask", IN_PLACE.format("or", "closed", "|")),
    "mask_or_causal": ("closed | mask", "mask"),
}
edit(behind_and_causal, "einsum", BOTH, layout="BTHd", causal=True, **BLOCKED)

# ---------------------------------------------------------------- layers

blocked = {"blocked": True}
head = {"mask_first_head": ("~keep, -INF", "~keep[:, 0:1], -INF")}
edit(Layer, "layer", head, blocked, mask_shape="BHTS", **BLOCKED)
queries = {"mask_on_queries": ("~keep, -INF", "~keep.mT, -1e4")}
edit(Layer, "layer", queries, {**blocked, "padding": True}, mask_shape="BS", **BLOCKED)
zeros = ("(scores, dim=-1)", "(scores, dim=-1).masked_fill(scores == -INF, 0.0)")
empty = {"empty_row_nan": (".masked_fill(scores == -INF, 0.0)", "")}
edit(Layer, "layer", empty, blocked, before=(zeros,), **BLOCKED)
example = {"mask_first_example": ("~keep, -INF", "~keep[:1], -INF")}
edit(Layer, "layer", example, mask_shape="B1TS", **ATTEND)
padding = {"mask_guessed_by_rank": ("if self.padding", "if keep.dim() == 2")}
edit(Layer, "layer", padding, mask_shape="TS", **ATTEND)
FILL = "sim.masked_fill(~real, -torch.inf)"
FOLDED = {
    "mask_tiled_over_heads": ("repeat_interleave(h, dim=0)", "repeat(h, 1)"),
    "mask_of_the_batch": ("mask.repeat", "mask.all(0).expand_as(mask).repeat"),
    "closed_key_reaches_output": (FILL, "sim * real + sim.mean(-1, keepdim=True) * ~real"),
    "padding_zeroed": (FILL, "torch.where(real, sim, 0.0)\n            v = v * real.mT"),
    "empty_row_spreads": ("to_out(out)", "to_out(torch.where(out.isnan().any(), 0.0, out))"),
}
edit(CrossAttention, "cross", FOLDED, **PADDING)
