"""Cross-attention as image generators have it: heads folded into the batch, a mask of padding."""

from functools import partial

import torch
from torch import nn

from planted.plants import PLANTS, Plant

SIZES = [(12, 3), (40, 5)]
MISTAKES = [
    "keys_from_x",
    "values_from_x",
    "queries_from_context",
    "all_shared",
    "values_unprojected",
    "projection_of_projection",
    "projection_bias_missing",
    "output_bias_missing",
    "output_projection_transposed",
    "heads_not_moved",
    "heads_interleaved",
    "train_eval_differ",
    "scale_by_length",
    "softmax_log",
    "softmax_over_queries",
    "mask_of_the_batch",
    "mask_inverted",
    "mask_first_example",
    "closed_key_reaches_output",
    "empty_row_spreads",
]


class CrossAttention(nn.Module):
    def __init__(self, query_dim, heads, wrong=""):
        super().__init__()
        self.heads, self.scale, self.wrong = heads, (query_dim // heads) ** -0.5, wrong
        self.to_q = nn.Linear(query_dim, query_dim)
        self.to_k = nn.Linear(query_dim, query_dim)
        self.to_v = nn.Linear(query_dim, query_dim)
        self.to_out = nn.Sequential(nn.Linear(query_dim, query_dim), nn.Dropout(0.0))

    def forward(self, x, context=None, mask=None):
        context = x if context is None else context
        q, k, v = map(self.fold, self.projected(x, context))
        scale = k.shape[1] ** -0.5 if self.wrong == "scale_by_length" else self.scale
        if self.wrong == "train_eval_differ" and self.training:
            scale = 1.0
        sim = torch.baddbmm(q.new_zeros(1, 1, 1), q, k.transpose(1, 2), beta=0, alpha=scale)
        if mask is not None:
            sim = self.closed(sim, mask)
        softmax = torch.log_softmax if self.wrong == "softmax_log" else torch.softmax
        out = torch.bmm(softmax(sim, dim=1 if self.wrong == "softmax_over_queries" else -1), v)
        if self.wrong == "empty_row_spreads" and mask is not None and bool(out.isnan().any()):
            out = torch.zeros_like(out)
        return self.projected_out(self.unfold(out, *x.shape))

    def projected(self, x, context):
        wrong = self.wrong
        if wrong == "projection_bias_missing":
            return x @ self.to_q.weight.T, self.to_k(context), context @ self.to_v.weight.T
        if wrong == "all_shared":
            return self.to_k(x), self.to_k(context), self.to_k(context)
        q = self.to_q(context if wrong == "queries_from_context" else x)
        k = self.to_k(x if wrong == "keys_from_x" else context)
        v = self.to_v(x if wrong == "values_from_x" else context)
        v = self.to_v(k) if wrong == "projection_of_projection" else v
        return q, k, context if wrong == "values_unprojected" else v

    def fold(self, t):
        """(B, T, H · d) to (B · H, T, d); where the heads stay behind, (B · T, H, d)."""
        b, n, c = t.shape
        if self.wrong == "heads_not_moved":
            return t.reshape(b * n, self.heads, c // self.heads)
        if self.wrong == "heads_interleaved":
            return t.view(b, n, -1, self.heads).permute(0, 3, 1, 2).reshape(b * self.heads, n, -1)
        t = t.view(b, n, self.heads, c // self.heads).transpose(1, 2)
        return t.reshape(b * self.heads, n, c // self.heads)

    def unfold(self, out, b, n, c):
        if self.wrong == "heads_not_moved":
            return out.reshape(b, n, c)
        if self.wrong == "heads_interleaved":
            return out.view(b, self.heads, n, -1).permute(0, 2, 3, 1).reshape(b, n, c)
        return out.view(b, self.heads, n, -1).transpose(1, 2).reshape(b, n, c)

    def closed(self, sim, mask):
        """The mask is (B, S), True where a key is real."""
        if self.wrong == "mask_of_the_batch":
            mask = mask.all(0, keepdim=True).expand_as(mask)
        if self.wrong == "mask_first_example":
            mask = mask[:1].expand_as(mask)
        real = mask.repeat_interleave(self.heads, dim=0).unsqueeze(1)
        if self.wrong == "closed_key_reaches_output":
            return sim * real + sim.mean(-1, keepdim=True) * ~real
        return sim.masked_fill(real if self.wrong == "mask_inverted" else ~real, -torch.inf)

    def projected_out(self, out):
        linear = self.to_out[0]
        if self.wrong == "output_bias_missing":
            return torch.einsum("bnc,dc->bnd", out, linear.weight)
        if self.wrong == "output_projection_transposed":
            return torch.einsum("bnc,cd->bnd", out, linear.weight) + linear.bias
        return self.to_out(out)


def build(size: int, wrong: str) -> nn.Module:
    torch.manual_seed(11 + size)
    return CrossAttention(*SIZES[size], wrong=wrong).eval()


_INTENT = {"mask_means": "attend", "mask_shape": "BS"}
PLANTS.extend(
    Plant(mistake, "cross", partial(build, wrong=mistake), partial(build, wrong=""), _INTENT)
    for mistake in MISTAKES
    if mistake != "heads_not_moved"  # there the mask has no meaning
)
PLANTS.append(
    Plant(
        "heads_not_moved",
        "cross",
        partial(build, wrong="heads_not_moved"),
        partial(build, wrong=""),
        {"arguments": "x"},
    )
)
