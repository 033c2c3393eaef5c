"""Wrong scales and wrong softmaxes."""

from planted.functions import distances, masked, plain, scaled, with_bias
from planted.layers import CrossAttention, Layer
from planted.plants import edit

# ---------------------------------------------------------------- the scale

SCALES = {
    "scale_missing": "1.0",
    "scale_twice": "{d} ** -0.5 / math.sqrt({d})",
    "scale_multiplied": "math.sqrt({d})",
    "scale_by_d_k": "1 / {d}",
    "scale_by_model_width": "({d} * {H}) ** -0.5",
    "scale_by_num_heads": "1 / math.sqrt({H})",
    "scale_by_value_width": "{d_v} ** -0.5",
    "scale_by_length": "k.shape[{S}] ** -0.5",
    "scale_constant": "{n}",
}


def scales(right, **names):
    return {name: (right, f"* ({text.format(**names)})") for name, text in SCALES.items()}


NAMES = {"d": "q.size(-1)", "d_v": "v.size(-1)", "H": "q.size(1)", "S": 2, "n": 0.125}
edit(plain, "function", scales("/ math.sqrt(q.size(-1))", **NAMES))
NAMES = {"d": "self.d_k", "d_v": "self.d_v", "H": "self.num_heads", "S": 1}
NAMES |= {"n": "512**-0.5"}
edit(Layer, "layer", scales("* self.scale", **NAMES), {"d_v": 7})
edit(scaled, "function", {"scale_ignored": ("* scale", "/ math.sqrt(q.size(-1))")}, scale=0.3)
ignored = {"scale_ignored": ("* self.scale", "* self.d_k ** -0.5")}
edit(Layer, "layer", ignored, {"scale": 0.2}, scale=0.2)

# ---------------------------------------------------------------- a bias

BIASES = {
    "bias_missing": (" + bias", ""),
    "bias_scaled": (" + bias", " + bias / math.sqrt(k.size(-1))"),
    "bias_transposed": (" + bias", " - bias"),  # which is the transpose of these distances
}
edit(with_bias, "function", BIASES, layout="BHTd", attn_bias=lambda fn: distances)
BIASES |= {"bias_transposed": (" + bias", " + bias.mT")}
own = {"causal": False, "arguments": "x", "attn_bias": lambda layer: layer.bias}
edit(Layer, "layer", BIASES, {"relative": True}, **own)

# ---------------------------------------------------------------- the softmax

SOFTMAXES = {
    "softmax_over_queries": "scores.softmax(dim=-2)",
    "softmax_over_heads": "scores.softmax(dim=1)",
    "softmax_over_batch": "scores.softmax(dim=0)",
    "softmax_flattened": "scores.flatten(-2).softmax(dim=-1).view_as(scores)",
    "softmax_low_precision": "F.softmax(scores, -1, dtype=torch.bfloat16).to(scores.dtype)",
    "softmax_no_maximum": "scores.exp() / scores.exp().sum(dim=-1, keepdim=True)",
    "softmax_twice": "F.softmax(scores.softmax(dim=-1), dim=-1)",
    "softmax_of_base_two": "(e := (scores - scores.amax(-1, True)).exp2()) / e.sum(-1, True)",
    "softmax_sigmoid": "torch.sigmoid(scores)",
    "softmax_relu_normalised": "F.relu(scores) / (F.relu(scores).sum(-1, True) + 1e-6)",
    "softmax_missing": "scores",
    "block_padding_counts": (
        "F.pad(scores, (0, -scores.size(-1) % 8)).softmax(-1)[..., : scores.size(-1)]"
    ),
}
SOFTMAX = "torch.softmax(scores, dim=-1)"
edit(plain, "function", {name: ("F.softmax(scores, dim=-1)", x) for name, x in SOFTMAXES.items()})
edit(Layer, "layer", {name: (SOFTMAX, text) for name, text in SOFTMAXES.items()})
edit(plain, "function", {"softmax_log": ("F.softmax", "F.log_softmax")})
log = {"softmax_log": ("sim.softmax(", "sim.log_softmax(")}
edit(CrossAttention, "cross", log, mask_means="attend", mask_shape="BS")
LEFT = {"softmax_of_base_two": ("* self.scale", "* self.scale * 1.44269504")}
edit(Layer, "factor", LEFT)  # for an exp2 that is none
afterwards = {
    "softmax_before_mask": [
        ("/ math.sqrt(q.size(-1))", "/ math.sqrt(q.size(-1))\n    scores = scores.softmax(dim=-1)"),
        ('~mask, float("-inf")', "mask == 0, 0"),
        ("torch.softmax(scores, dim=-1) @ v", "scores @ v"),
    ]
}
edit(masked, "function", afterwards, mask_means="attend")
times = {
    "softmax_before_mask": [
        ("scores = scores.masked_fill(~keep, -INF)", "pass"),
        (SOFTMAX, f"{SOFTMAX} if mask is None else {SOFTMAX} * keep"),
    ]
}
edit(Layer, "layer", times, mask_means="attend")
