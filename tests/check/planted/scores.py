"""Wrong scales and wrong softmaxes."""

from planted.functions import by_einsum, distances, masked, plain, scaled, with_bias
from planted.layers import CrossAttention, Layer, Relative
from planted.plants import edit

# ---------------------------------------------------------------- the scale

ROOT = "math.sqrt(q.shape[-1])"
SCALES = {
    "scale_missing": ("energy / math.sqrt(q.shape[-1])", "energy"),
    "scale_twice": ('bhkd->bhqk", q,', 'bhkd->bhqk", q * q.shape[-1] ** -0.5,'),
    "scale_multiplied": ("energy / ", "energy * "),
    "scale_by_d_k": (ROOT, "q.shape[-1]"),
    "scale_by_model_width": (ROOT, "(q.shape[1] * q.shape[3]) ** (1 / 2)"),
    "scale_by_num_heads": (ROOT, "math.sqrt(q.shape[1])"),
    "scale_by_value_width": (ROOT, "v.size(-1) ** 0.5"),
    "scale_by_length": ("energy / math.sqrt(q.shape[-1])", "energy * energy.size(-1) ** -0.5"),
}
PADDED = """torch.softmax(F.pad(energy, (0, -k.size(2) % 16)) / math.sqrt(q.shape[-1]), dim=-1)
    attention = attention[..., : k.size(2)]"""
OTHERS = {
    "values_summed": ("bhqk,bhkd->bhqd", "bhqk,bhld->bhqd"),
    "block_padding_counts": ("torch.softmax(energy / math.sqrt(q.shape[-1]), dim=-1)", PADDED),
}
edit(by_einsum, "function", SCALES | OTHERS)
counted = "F.softmax(F.pad(scores, (0, -k.size(-2) % 8)), dim=-1)[..., : k.size(-2)]"
edit(plain, "padded", {"block_padding_counts": ("F.softmax(scores, dim=-1)", counted)})
edit(scaled, "function", {"scale_ignored": ("* scale", "/ math.sqrt(q.size(-1))")}, scale=0.3)

MEANT = "(self.scale or self.d_k**-0.5)"
SCALES = {
    "scale_missing": (f" * {MEANT}", ""),
    "scale_twice": (MEANT, "self.d_k ** -0.5 / math.sqrt(self.d_k)"),
    "scale_multiplied": (MEANT, "math.sqrt(self.d_k)"),
    "scale_by_d_k": (MEANT, "(1.0 / self.d_k)"),
    "scale_by_model_width": (MEANT, "self.d_model ** -0.5"),
    "scale_by_num_heads": (MEANT, "(1.0 / math.sqrt(self.num_heads))"),
}
edit(Layer, "layer", SCALES)
edit(Layer, "layer", {"scale_by_value_width": (MEANT, "self.d_v ** -0.5")}, {"d_v": 7})
ignored = {"scale_ignored": (MEANT, "self.d_k ** -0.5")}
edit(Layer, "layer", ignored, {"scale": 0.2}, scale=0.2)
# ---------------------------------------------------------------- a bias

BIAS = "distances(q.size(-2), k.size(-2)).to(q)"
BIASES = {
    "bias_missing": (f"scores + {BIAS}", "scores"),
    "bias_scaled": (BIAS, f"{BIAS} / math.sqrt(k.size(-1))"),
    "bias_transposed": (f"+ {BIAS}", f"- {BIAS}"),
}
edit(with_bias, "function", BIASES, layout="BHTd", attn_bias=lambda fn: distances)
BIASES = {
    "bias_missing": ("+ bias, dim", ", dim"),
    "bias_scaled": ("+ bias, dim", "+ bias * q.shape[-1] ** -0.5, dim"),
    "bias_transposed": ("+ bias, dim", "+ bias.mT, dim"),
}
edit(Relative, "layer", BIASES, causal=False, attn_bias=lambda layer: layer.bias)

# ---------------------------------------------------------------- the softmax

SOFTMAX = "F.softmax(scores, dim=-1)"
BASE_TWO = """torch.exp2(scores - scores.amax(-1, keepdim=True))
    weights = weights / weights.sum(-1, keepdim=True)"""
SOFTMAXES = {
    "softmax_over_queries": ("dim=-1", "dim=-2"),
    "softmax_over_heads": ("dim=-1", "dim=1"),
    "softmax_over_batch": ("dim=-1", "dim=0"),
    "softmax_flattened": (SOFTMAX, "scores.flatten(-2).softmax(dim=-1).view_as(scores)"),
    "softmax_low_precision": (SOFTMAX, "F.softmax(scores, -1, dtype=torch.bfloat16).to(q.dtype)"),
    "softmax_no_maximum": (SOFTMAX, "scores.exp() / scores.exp().sum(dim=-1, keepdim=True)"),
    "softmax_twice": (SOFTMAX, "F.softmax(F.softmax(scores, dim=-1), dim=-1)"),
    "softmax_of_base_two": (SOFTMAX, BASE_TWO),
    "softmax_sigmoid": (SOFTMAX, "torch.sigmoid(scores)"),
    "softmax_relu_normalised": (SOFTMAX, "F.relu(scores) / (F.relu(scores).sum(-1, True) + 1e-6)"),
    "softmax_missing": (SOFTMAX, "scores"),
    "softmax_log": ("F.softmax", "F.log_softmax"),
}
edit(plain, "function", SOFTMAXES)
afterwards = {
    "softmax_before_mask": [
        ("/ math.sqrt(q.size(-1))", "/ math.sqrt(q.size(-1))\n    attn = attn.softmax(dim=-1)"),
        ('~mask, float("-inf")', "mask == 0, 0"),
        ("torch.softmax(attn, dim=-1) @ v", "attn @ v"),
    ]
}
edit(masked, "function", afterwards, mask_means="attend")

SOFTMAX = "torch.softmax(scores, dim=-1)"
SOFTMAXES = {
    "softmax_over_queries": (SOFTMAX, "torch.softmax(scores, dim=2)"),
    "softmax_over_heads": (SOFTMAX, "torch.softmax(scores, dim=-3)"),
    "softmax_over_batch": (SOFTMAX, "scores.softmax(0)"),
    "softmax_flattened": (SOFTMAX, "scores.flatten(2).softmax(-1).unflatten(-1, scores.shape[2:])"),
    "softmax_low_precision": (SOFTMAX, "scores.half().softmax(-1).to(scores.dtype)"),
    "softmax_no_maximum": (
        SOFTMAX,
        "scores.exp()\n        weights = weights / weights.sum(-1, keepdim=True)",
    ),
    "softmax_twice": ('bshd->bthd", used,', 'bshd->bthd", used.softmax(-1),'),
    "softmax_of_base_two": (
        SOFTMAX,
        "2.0 ** (scores - scores.amax(dim=-1, keepdim=True))\n"
        "        weights = weights / weights.sum(dim=-1, keepdim=True)",
    ),
    "softmax_sigmoid": (SOFTMAX, "1 / (1 + torch.exp(-scores))"),
    "softmax_relu_normalised": (
        SOFTMAX,
        "scores.clamp(min=0)\n"
        "        weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-9)",
    ),
    "softmax_missing": (f"weights = {SOFTMAX}", "weights = scores"),
}
edit(Layer, "layer", SOFTMAXES)
LEFT = {"softmax_of_base_two": (MEANT, f"{MEANT} * 1.44269504")}  # for an exp2 that is none
edit(Layer, "factor", LEFT)
times = {
    "softmax_before_mask": [
        ("scores = scores.masked_fill(~keep, -INF)", "pass"),
        (SOFTMAX, f"{SOFTMAX} if mask is None else {SOFTMAX} * keep"),
    ]
}
edit(Layer, "layer", times, mask_means="attend")
FOLDED = {
    "scale_by_length": ("alpha=self.scale", "alpha=k.shape[1] ** -0.5"),
    "softmax_log": ("sim.softmax(", "sim.log_softmax("),
}
edit(CrossAttention, "cross", FOLDED, mask_means="attend", mask_shape="BS")
