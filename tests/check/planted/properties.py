"""What only a property tells: leaks, lost gradients, dropout, what is returned, rounding."""

from planted.functions import behind, online_softmax, plain, with_weights
from planted.layers import CausalSelfAttention, CrossAttention, Layer
from planted.plants import edit

# ---------------------------------------------------------------- functions

SCORES = "torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))"
AVERAGED = (
    "torch.cat([s.softmax(-1) for s in scores.tensor_split({0}, -1)], dim=-1)"
    " / min({0}, scores.size(-1))"
)
FUNCTION = {
    "batch_leak": ("matmul(q, k", "matmul(q - q.mean(dim=0, keepdim=True), k"),
    "inplace_arguments": (SCORES, "torch.matmul(q.mul_(q.size(-1) ** -0.5), k.transpose(-2, -1))"),
    "not_deterministic": ("weights, v", "weights, v + 0.01 * torch.randn_like(v)"),
    "output_dtype": ("weights, v)", "weights, v).float()"),
    "not_contiguous": ("k.transp", "k.as_strided(k.shape, torch.empty(k.shape).stride()).transp"),
    "gradient_detached_q": ("matmul(q, k", "matmul(q.detach(), k"),
    "gradient_detached_k": ("k.transpose", "k.detach().clone().transpose"),
    "gradient_detached_v": ("weights, v", "weights, v.data"),
    "gradient_detached_weights": (
        "    weights = F",
        "    with torch.no_grad():\n        weights = F",
    ),
    "gradient_missing": ("def plain", "@torch.no_grad()\ndef plain"),
    "gradient_wrong": ("weights, v", "0.5 * weights + 0.5 * weights.detach(), v"),
    "dropout_in_evaluation": ("(weights, v", "(F.dropout(weights, p=0.1), v"),
    "size_of_one": ("(weights, v)", "(weights, v).squeeze()"),
    "parts_averaged": ("F.softmax(scores, dim=-1)", AVERAGED.format(2)),
}
edit(plain, "function", FUNCTION)
RETURNED = {
    "weights_before_softmax": ("@ v, weights", "@ v, scores"),
    "weights_averaged": ("@ v, weights", "@ v, weights.mean(dim=1)"),
    "weights_wrong": ("@ v, weights", "@ v, scores.softmax(-1)"),
}
edit(with_weights, "function", RETURNED, causal=True)
EXCHANGED = [("bthd,bshd->bhts", "tbhd,sbhd->bhts"), ("bhts,bshd->bthd", "bhts,sbhd->tbhd")]
edit(Layer, "layer", {"batch_exchanged": EXCHANGED}, layout="BTd", arguments="x")
STRIDED = "value.as_strided(v.shape, torch.empty(v.shape).stride())).to"
SMALL = ("block=16", "block=4")
WHOLE = "[:, :, : max(k.shape[2] // block, 1) * block].split(block, dim=2)"
BLOCKS = {
    "block_remainder_dropped": [(f"{t}.split(block, dim=2)", f"{t}{WHOLE}") for t in "kv"],
    "online_softmax_not_rescaled": [SMALL, ("out * shrink", "out")],
    "online_softmax_last_sum": [SMALL, ("total * shrink + e.sum", "e.sum")],
}
edit(online_softmax, "function", BLOCKS)
stale = [("out * shrink", "out"), ("total * shrink", "total")]
edit(online_softmax, "stale", {"online_softmax_not_rescaled": stale})
EIGHT = "(torch.arange(q.shape[1]) < max(q.shape[1] // 8, 1) * 8)[:, None]"
EINSUM = {
    "batch_exchanged": EXCHANGED,
    "not_contiguous": ("value).to", STRIDED),
    "parts_averaged": ("scores.softmax(-1)", AVERAGED.format(4)),
    "block_remainder_dropped": ("scores.softmax(-1)", f"scores.softmax(-1) * {EIGHT}"),
    "online_softmax_last_sum": (
        "scores.softmax(-1)",
        "(e := (scores - scores.amax(-1, True)).exp()) / e.split(16, -1)[-1].sum(-1, True)",
    ),
}
edit(behind, "einsum", EINSUM, layout="BTHd")

# ---------------------------------------------------------------- four projections

LAST = "self.out_proj(out.flatten(2))"
Q, K, V = "self.q_proj(x)", "self.k_proj(memory)", "self.v_proj(memory)"
USED = "used = F.dropout(weights[..., :S], self.dropout, self.training)"
LAYER = {
    "gradient_detached_q": (Q, f"{Q}.detach()"),
    "gradient_detached_k": (K, f"{K}.detach()"),
    "gradient_detached_v": (V, f"{V}.detach()"),
    "gradient_detached_weights": (USED, "used = weights.detach()"),
    "gradient_missing_projection": (K, "memory @ self.k_proj.weight.data.mT + self.k_proj.bias"),
    "batch_leak": (Q, f"{Q} * (1.0 + {Q}.mean(0, keepdim=True))"),
    "size_of_one": (LAST, f"{LAST}.squeeze(0)"),
}
edit(Layer, "layer", LAYER)
DROPPED = {
    "dropout_in_evaluation": (USED, "used = F.dropout(weights, self.dropout)"),
    "dropout_before_softmax": [
        (USED, "used = weights"),
        ("softmax(scores,", "softmax(F.dropout(scores, self.dropout, self.training),"),
    ],
}
edit(Layer, "layer", DROPPED, {"dropout": 0.3})
RETURNED = {
    "weights_after_dropout": ("(out, weights)", "(out, used)"),
    "weights_averaged": ("(out, weights)", "(out, weights.mean(1))"),
}
edit(Layer, "layer", RETURNED, {"dropout": 0.2, "returns_weights": True})

# ---------------------------------------------------------------- one packed projection

SPLIT = "q, k, v = self.c_attn(x).split(self.n_embd, dim=2)"
SCORES = "att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))"
DROPPED, OUT = "y = self.attn_dropout(att) @ v", "y = self.c_proj(y)"
UNTRAINED = "F.linear(x, self.c_attn.weight.data, self.c_attn.bias)"
COUNTED = """
        self.calls = getattr(self, "calls", 0) + 1
        q = q * (1 + 0.1 * min(self.calls - 1, 5))"""
CENTRED = """
        with torch.no_grad():
            x.sub_(x.mean(-1, keepdim=True))"""
PACKED = {
    "not_deterministic": (DROPPED, "y = self.attn_dropout(att) @ (v + torch.randn_like(v) / 50)"),
    "gradient_wrong": (DROPPED, "y = self.attn_dropout(att) @ (2 * v - v.detach())"),
    "gradient_missing_projection": ("self.c_attn(x)", UNTRAINED),
    "gradient_missing": (OUT, f"{OUT}.detach()"),
    "state_between_calls": (SPLIT, SPLIT + COUNTED),
    "train_eval_differ": (SPLIT, f"{SPLIT}\n        q = 1.2 * q if self.training else q"),
    "output_dtype": (OUT, f"{OUT}.double()"),
    "inplace_arguments": (OUT, OUT + CENTRED),
}
edit(CausalSelfAttention, "packed", PACKED, causal=True)
early = {
    "dropout_before_softmax": [
        (SCORES, f"{SCORES}\n        att = self.attn_dropout(att)"),
        (DROPPED, "y = att @ v"),
    ]
}
edit(CausalSelfAttention, "packed", early, {"dropout": 0.2}, causal=True)
RETURNED = {
    "weights_after_dropout": (DROPPED, "att = self.attn_dropout(att)\n        y = att @ v"),
    "weights_before_softmax": [
        ("att = F.softmax(att, dim=-1)", "weights = F.softmax(att, dim=-1)"),
        (DROPPED, "y = self.attn_dropout(weights) @ v"),
    ],
    "weights_wrong": ("(y, att)", "(y, att.flip(1))"),
}
telling = {"dropout": 0.2, "returns_att": True}
edit(CausalSelfAttention, "packed", RETURNED, telling, causal=True)
unscaled = {"train_eval_differ": ("alpha=self.scale", "alpha=1.0 if self.training else self.scale")}
edit(CrossAttention, "cross", unscaled, mask_means="attend", mask_shape="BS")
