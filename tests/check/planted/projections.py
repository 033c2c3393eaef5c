"""Wrong projections, and queries, keys and values that are mixed up."""

from planted.functions import plain
from planted.layers import CausalSelfAttention, CrossAttention, Layer
from planted.plants import edit

FUNCTION = {
    "key_value_swapped": [("k.transpose", "v.transpose"), ("weights, v", "weights, k")],
    "query_key_swapped": ("matmul(q, k.transpose(-2, -1))", "matmul(k, q.transpose(-2, -1))"),
    "value_is_key": ("weights, v", "weights, k"),
    "value_is_query": ("weights, v", "weights, q"),
    "residual_added": ("return torch", "return q + torch"),
    "channels_reversed": ("weights, v)", "weights, v).flip(-1)"),
    "values_summed": ("weights, v)", "weights, v.sum(-2, True).expand_as(v))"),
    "keys_reshaped": ("k.transpose(-2, -1)", "k.reshape(*k.shape[:2], k.size(3), k.size(2))"),
}
edit(plain, "function", FUNCTION)
rotated = {"order_rotated": ("plain(q, k, v)", "plain(v, k, q)")}
edit(plain, "function", rotated, arguments="q, k, v")

# ---------------------------------------------------------------- four projections

PARTS = "self.q_proj(x), self.k_proj(memory), self.v_proj(memory)"
OUT = "out = self.out_proj(out.flatten(2))"
LAYER = {
    "query_key_shared": ("self.k_proj(memory)", "self.q_proj(memory)"),
    "keys_from_x": ("self.k_proj(memory)", "self.k_proj(x)"),
    "values_from_x": ("self.v_proj(memory)", "self.v_proj(x)"),
    "queries_from_context": ("self.q_proj(x)", "self.q_proj(memory)"),
    "projection_of_projection": ("self.v_proj(memory)", "self.v_proj(self.k_proj(memory))"),
    "projections_cloned": (
        "self.v_proj = nn",
        "self.k_proj.load_state_dict(self.q_proj.state_dict())\n        self.v_proj = nn",
    ),
    "output_projection_missing": (OUT, "out = out.flatten(2)"),
    "output_bias_twice": (OUT, f"{OUT} + self.out_proj.bias"),
    "values_summed": ('"bhts,bshd->bthd"', '"bhts,bzhd->bthd"'),
    "keys_reshaped": (
        'torch.einsum("bthd,bshd->bhts", q, k)',
        "q.transpose(1, 2) @ k.transpose(1, 2).reshape(len(k), self.num_heads, self.d_k, -1)",
    ),
}
edit(Layer, "layer", LAYER)
CUT = "(t.unflatten(-1, (self.num_heads, -1)) for t in {})"
SMALL = [  # projected once they are cut into heads
    (
        f"self.{role}_proj = nn.Linear(d_model, num_heads * {d})",
        f"self.{role}_proj = nn.Linear({d}, {d})",
    )
    for role, d in (("q", "self.d_k"), ("k", "self.d_k"), ("v", "self.d_v"))
]
FIRST = f"x, memory = {CUT.format('(x, memory)')}\n        q, k, v = {PARTS}"
cut_first = [*SMALL, (f"q, k, v = {PARTS}", FIRST), (f"q, k, v = {CUT.format('(q, k, v)')}", "")]
edit(Layer, "layer", {"projection_shared_by_heads": cut_first})
WIDE, SMALL = "query_dim, query_dim)\n", "query_dim // heads, query_dim // heads)\n"
cut_first = [
    *[(f"self.to_{t} = nn.Linear({WIDE}", f"self.to_{t} = nn.Linear({SMALL}") for t in "qkv"],
    (
        "q, k, v = self.to_q(x), self.to_k(context), self.to_v(context)",
        "x, context = (t.unflatten(2, (self.heads, -1)) for t in (x, context))\n"
        "        q, k, v = self.to_q(x), self.to_k(context), self.to_v(context)",
    ),
    ("t.unflatten(2, (h, -1)).transpose", "t.transpose"),
]
shared = {"projection_shared_by_heads": cut_first}
edit(CrossAttention, "cross", shared, mask_means="attend", mask_shape="BS")

# ---------------------------------------------------------------- one packed projection

SPLIT = "q, k, v = self.c_attn(x).split(self.n_embd, dim=2)"
COPIES = """
        with torch.no_grad():
            self.c_attn.weight.copy_(self.c_attn.weight[:n_embd].repeat(3, 1))
            self.c_attn.bias.copy_(self.c_attn.bias[:n_embd].repeat(3))"""
VIEW = ".view(B, T, self.n_head, C // self.n_head).transpose(1, 2)"
LINEAR, OUT = "nn.Linear(n_embd, 3 * n_embd)", "y = self.c_proj(y)"
PACKED = {
    "values_unprojected": ("v = v.view", "v = x.view"),
    "projection_bias_missing": (SPLIT, "q, k, v = (x @ self.c_attn.weight.T).chunk(3, dim=-1)"),
    "query_key_shared": (f"k = k{VIEW}", "k = q"),
    "key_value_swapped": (SPLIT, SPLIT.replace("q, k, v", "q, v, k")),
    "query_key_swapped": (SPLIT, SPLIT.replace("q, k, v", "k, q, v")),
    "value_is_key": (f"v = v{VIEW}", "v = k"),
    "value_is_query": (f"v = v{VIEW}", "v = q"),
    "all_shared": (SPLIT, f"{SPLIT}\n        k = v = q"),
    "order_rotated": (SPLIT, SPLIT.replace("q, k, v", "v, k, q")),
    "projections_cloned": (LINEAR, LINEAR + COPIES),
    "output_projection_missing": (OUT, "y = self.attn_dropout(y)"),
    "output_projection_transposed": (OUT, "y = y @ self.c_proj.weight + self.c_proj.bias"),
    "output_bias_missing": (OUT, "y = F.linear(y, self.c_proj.weight)"),
    "output_bias_twice": (OUT, f"{OUT} + self.c_proj.bias"),
    "residual_added": (OUT, "y = x + self.c_proj(y)"),
    "channels_reversed": (OUT, "y = torch.flip(self.c_proj(y), (2,))"),
}
edit(CausalSelfAttention, "packed", PACKED, causal=True)

# ---------------------------------------------------------------- a context

KEYS, OUT = "self.to_k(context)", "return self.to_out(out)"
CROSS = {
    "keys_from_x": (KEYS, "self.to_k(x)"),
    "values_from_x": ("self.to_v(context)", "self.to_v(x)"),
    "queries_from_context": ("self.to_q(x)", "self.to_q(context)"),
    "all_shared": [("self.to_q(x)", "self.to_k(x)"), ("self.to_v(context)", KEYS)],
    "values_unprojected": ("self.to_v(context)", "context"),
    "projection_of_projection": ("self.to_v(context)", f"self.to_v({KEYS})"),
    "projection_bias_missing": [
        ("self.to_q(x)", "x @ self.to_q.weight.T"),
        ("self.to_v(context)", "context @ self.to_v.weight.T"),
    ],
    "output_bias_missing": (OUT, 'return torch.einsum("bnc,dc->bnd", out, self.to_out[0].weight)'),
    "output_projection_transposed": (
        OUT,
        "linear = self.to_out[0]\n"
        '        return torch.einsum("bnc,cd->bnd", out, linear.weight) + linear.bias',
    ),
}
edit(CrossAttention, "cross", CROSS, mask_means="attend", mask_shape="BS")
