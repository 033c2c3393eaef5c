"""Wrong heads: split, merged, mixed up or shared."""

from planted.functions import grouped, plain, side_by_side
from planted.layers import CausalSelfAttention, CrossAttention, Llama
from planted.plants import edit
from planted.rotations import HALVES

SPLIT = "t.unflatten(-1, (4, -1)).transpose(1, 2)"
MERGE = "out.transpose(1, 2).flatten(2)"
SIDES = {
    "heads_split_without_transpose": (SPLIT, "t.reshape(len(t), 4, t.shape[1], -1)"),
    "heads_merged_without_transpose": (MERGE, "out.reshape(len(out), out.shape[2], -1)"),
    "heads_not_moved": [(SPLIT, "t.unflatten(-1, (4, -1))"), (MERGE, "out.flatten(2)")],
    "heads_interleaved": [
        (SPLIT, "t.unflatten(-1, (-1, 4)).permute(0, 3, 1, 2)"),
        (MERGE, "out.permute(0, 2, 3, 1).flatten(2)"),
    ],
    "heads_reversed": (MERGE, "torch.cat(list(out.unbind(1))[::-1], dim=-1)"),
}
edit(side_by_side, "function", SIDES, layout="BTd", heads=4)
ALL = {
    "heads_averaged": ("scores, dim=-1)", "scores, dim=-1).mean(dim=1, keepdim=True)"),
    "one_head_only": ("matmul(weights, v)", "matmul(weights[:, :1], v)"),
}
edit(plain, "function", ALL)


def packed(new):
    """Each of the three is split otherwise."""
    views = "{0}.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)"
    return [(views.format(name), new.format(name)) for name in "qkv"]


MERGE = "y.transpose(1, 2).contiguous().view(B, T, C)"
PACKED = {
    "heads_split_without_transpose": packed("{0}.reshape(B, self.n_head, T, C // self.n_head)"),
    "heads_interleaved": packed("{0}.view(B, T, -1, self.n_head).permute(0, 3, 1, 2)"),
    "one_head_only": packed("{0}.unsqueeze(1)"),
    "heads_averaged": (") @ v", ") @ v\n        y = y.mean(1, True).expand_as(y)"),
    # jsbaan/transformer-from-scratch#6
    "heads_merged_without_transpose": (MERGE, "y.contiguous().view(B, T, C)"),
    "heads_reversed": ("y.transpose(1, 2)", "y.flip(1).transpose(1, 2)"),
}
edit(CausalSelfAttention, "packed", PACKED, causal=True)

FOLD = "t.unflatten(2, (h, -1)).transpose(1, 2).flatten(0, 1)"
UNFOLD = "out.unflatten(0, (b, h)).transpose(1, 2).flatten(2)"
FOLDED = {
    "heads_not_moved": [
        (FOLD, "t.reshape(-1, h, self.dim_head)"),
        (UNFOLD, "out.reshape(b, -1, h * self.dim_head)"),
    ],
}
edit(CrossAttention, "cross", FOLDED, arguments="x")

# ---------------------------------------------------------------- fewer key heads

REPEATED = "{0}.repeat_interleave(n_rep, dim=1)"
FEWER = {
    "kv_heads_tiled": [(REPEATED.format(t), f"{t}.repeat(1, n_rep, 1, 1)") for t in "kv"],
    "kv_first_head_for_all": [
        (REPEATED.format(t), f"{t}[:, 0:1].expand(-1, q.shape[1], -1, -1)") for t in "kv"
    ],
}
edit(grouped, "function", FEWER, heads=4, kv_heads=2)
REPEATED = "{0}[:, :, None].expand(-1, -1, n_rep, -1, -1).reshape(B, -1, S, self.head_dim)"
FEWER = {
    "kv_heads_tiled": [
        (
            REPEATED.format(t),
            f"{t}[:, None].expand(-1, n_rep, -1, -1, -1).reshape(B, -1, S, self.head_dim)",
        )
        for t in "kv"
    ],
    "kv_first_head_for_all": [(REPEATED.format(t), f"{t}[:, [0] * self.num_heads]") for t in "kv"],
}
edit(Llama, "llama", FEWER, **HALVES)
