"""One attention layer with a switch for each mistake: four projections, einsum, (B, T, d_model).

Right: ``Layer(12, 3)(x)``, ``Layer(12, 3)(x, memory)`` and ``Layer(12, 3)(x, mask=mask)``.
"""

import math

import torch
from torch import nn

INF = float("inf")
FACTORS = {
    "scale_missing": lambda m: 1.0,
    "scale_twice": lambda m: 1.0 / m.d_k,
    "scale_multiplied": lambda m: math.sqrt(m.d_k),
    "scale_by_d_k": lambda m: 1.0 / m.d_k,
    "scale_by_model_width": lambda m: 1.0 / math.sqrt(m.d_model),
    "scale_by_num_heads": lambda m: 1.0 / math.sqrt(m.num_heads),
    "scale_by_value_width": lambda m: 1.0 / math.sqrt(m.d_v),
    "scale_ignored": lambda m: 1.0 / math.sqrt(m.d_k),
}


def no_maximum(s):
    e = s.exp()
    return e / e.sum(-1, keepdim=True)


def relu_normalised(s):
    positive = s.clamp(min=0)
    return positive / positive.sum(-1, keepdim=True).clamp(min=1e-9)


SOFTMAXES = {
    "softmax_over_queries": lambda s: torch.softmax(s, dim=2),
    "softmax_over_heads": lambda s: torch.softmax(s, dim=-3),
    "softmax_over_batch": lambda s: torch.softmax(s, dim=0),
    "softmax_flattened": lambda s: s.flatten(2).softmax(-1).unflatten(-1, s.shape[2:]),
    "softmax_low_precision": lambda s: s.half().softmax(-1).to(s.dtype),
    "softmax_no_maximum": no_maximum,
    "softmax_twice": lambda s: s.softmax(-1).softmax(-1),
    "softmax_sigmoid": torch.sigmoid,
    "softmax_relu_normalised": relu_normalised,
    "softmax_missing": lambda s: s,
}


def by_rank(s, keep):
    keep = keep[:, None, None] if keep.dim() == 2 else keep
    return s.masked_fill(~keep, -INF)


CLOSINGS = {  # keep: True = may attend
    "mask_inverted": lambda s, keep: s.masked_fill(keep, -INF),
    "mask_added_as_01": lambda s, keep: s + keep.to(s.dtype),
    "mask_multiplied": lambda s, keep: s * keep.to(s.dtype),
    "mask_zeroes_scores": lambda s, keep: torch.where(keep, s, torch.zeros_like(s)),
    "mask_ignored": lambda s, keep: s,
    "mask_on_queries": lambda s, keep: s.masked_fill(~keep.mT, -1e4),
    "mask_transposed": lambda s, keep: s.masked_fill(~keep.expand_as(s).mT, -INF),
    "mask_guessed_by_rank": by_rank,
    "mask_first_example": lambda s, keep: s.masked_fill(~keep[:1], -INF),
    "mask_first_head": lambda s, keep: s.masked_fill(~keep[:, 0:1], -INF),
    "mask_small_fill": lambda s, keep: s.masked_fill(~keep, -5.0),
    "mask_fill_overflows_half": lambda s, keep: s.masked_fill(~keep, -1e9),
}
BANDS = {  # back: how far behind the query a key is
    "causal_missing": lambda back, w: back > -INF,
    "causal_sees_one_ahead": lambda back, w: back >= -1,
    "causal_excludes_self": lambda back, w: back > 0,
    "causal_reversed": lambda back, w: back <= 0,
    "window_one_more": lambda back, w: (back >= 0) & (back <= w),
    "window_one_less": lambda back, w: (back >= 0) & (back < w - 1),
    "window_not_causal": lambda back, w: (back < w) & (back > -w),
    "window_ignored": lambda back, w: back >= 0,
}


class Layer(nn.Module):
    def __init__(self, d_model, num_heads, wrong="", *, kv_heads=None, d_v=None, **options):
        super().__init__()
        self.d_model, self.num_heads, self.d_k = d_model, num_heads, d_model // num_heads
        self.num_kv_heads, self.d_v = kv_heads or num_heads, d_v or self.d_k
        self.wrong, self.seen = wrong, {}
        self.causal, self.window = options.get("causal", False), options.get("window")
        self.softcap, self.scale = options.get("softcap"), options.get("scale")
        self.blocked, self.dropout = options.get("blocked", False), options.get("dropout", 0.0)
        self.padding = options.get("padding", False)  # the mask is (B, S)
        self.return_weights = options.get("return_weights", False)
        self.q_proj = nn.Linear(d_model, num_heads * self.d_k)
        self.k_proj = nn.Linear(d_model, self.num_kv_heads * self.d_k)
        self.v_proj = nn.Linear(d_model, self.num_kv_heads * self.d_v)
        self.out_proj = nn.Linear(num_heads * self.d_v, d_model)
        if options.get("sinks"):
            self.sinks = nn.Parameter(torch.linspace(-1.0, 2.0, num_heads))
        if wrong == "projections_cloned":
            self.k_proj.load_state_dict(self.q_proj.state_dict())

    def forward(self, x, memory=None, mask=None):
        memory = x if memory is None else memory
        q, k, v = self.heads_of(x, memory)
        if mask is not None:
            mask = ~mask if self.blocked else mask
            mask = mask[:, None, None, :] if self.padding else mask
        weights = self.weights_of(self.scores_of(q, k), mask)
        late = 0.0 if self.wrong == "dropout_before_softmax" else self.dropout
        used = nn.functional.dropout(weights, late, self.dropped)
        if self.wrong == "gradient_detached_weights":
            used = used.detach()
        out = self.merged(torch.einsum("bhts,bshd->bthd", used, v), x)
        returned = used if self.wrong == "weights_after_dropout" else weights
        if self.wrong == "weights_averaged":
            returned = returned.mean(1)
        return (out, returned) if self.return_weights else out

    @property
    def dropped(self):
        return self.training or self.wrong == "dropout_in_evaluation"

    def heads_of(self, x, memory):
        """q (B, T, H, d), k and v (B, S, H, d)."""
        wrong, of_k, of_v = self.wrong, memory, memory
        of_k = x if wrong == "keys_from_x" else of_k
        of_v = x if wrong == "values_from_x" else of_v
        of_q = memory if wrong == "queries_from_context" else x
        q, k, v = self.q_proj(of_q), self.k_proj(of_k), self.v_proj(of_v)
        v = self.v_proj(k) if wrong == "projection_of_projection" else v
        if wrong == "gradient_missing_projection":
            k = nn.functional.linear(of_k, self.k_proj.weight.detach(), self.k_proj.bias)
        k = self.q_proj(of_k) if wrong == "query_key_shared" else k
        v = k if wrong == "value_is_key" else v
        k, v = (v, k) if wrong == "key_value_swapped" else (k, v)
        q, k = (k, q) if wrong == "query_key_swapped" else (q, k)
        part = {"gradient_detached_q": 0, "gradient_detached_k": 1, "gradient_detached_v": 2}
        q, k, v = (t.detach() if part.get(wrong) == i else t for i, t in enumerate((q, k, v)))
        if wrong == "batch_leak":
            q = q * (1.0 + q.mean(0, keepdim=True))
        if wrong == "state_between_calls":
            mean = v.detach().mean((0, 1))
            v = v - mean + self.seen.setdefault("mean of the values", mean)
        return self.cut(q, self.num_heads), *(self.cut(t, self.num_kv_heads) for t in (k, v))

    def cut(self, t, heads):
        if self.wrong == "heads_split_without_transpose":
            split = t.reshape(len(t), heads, t.shape[1], -1).transpose(1, 2)
        else:
            split = t.unflatten(-1, (heads, -1))
        groups = self.num_heads // heads
        if self.wrong == "kv_heads_tiled":
            return split.repeat(1, 1, groups, 1)
        if self.wrong == "kv_first_head_for_all" and groups > 1:
            return split[:, :, :1].expand(-1, -1, self.num_heads, -1)
        return split.repeat_interleave(groups, dim=2)

    def scores_of(self, q, k):
        if self.wrong == "one_head_only":
            q, k = q[:, :, :1].expand_as(q), k[:, :, :1].expand_as(k)
        scores = torch.einsum("bthd,bshd->bhts", q, k)
        factor = FACTORS.get(self.wrong, lambda m: m.scale or 1.0 / math.sqrt(m.d_k))(self)
        if self.softcap is None or self.wrong in ("softcap_missing", "softcap_after_softmax"):
            return scores * factor
        if self.wrong == "softcap_before_scale":
            return self.capped(scores) * factor
        return (
            scores * factor if self.wrong == "softcap_after_mask" else self.capped(scores * factor)
        )

    def capped(self, s):
        return self.softcap * torch.tanh(s / self.softcap)

    def open_at(self, T, S):
        """(T, S), True where a causal layer may attend."""
        if self.wrong == "causal_only_in_training" and not self.training:
            return torch.ones(T, S, dtype=torch.bool)
        back = (torch.arange(T)[:, None] + (S - T) - torch.arange(S)).double()
        if self.wrong == "causal_cached_length":
            rows, columns = self.seen.setdefault("lengths", (T, S))
            return ~((back < 0) & (torch.arange(T)[:, None] < rows) & (torch.arange(S) < columns))
        band = (back >= 0) if self.window is None else (back >= 0) & (back < self.window)
        return BANDS[self.wrong](back, self.window) if self.wrong in BANDS else band

    def weights_of(self, s, mask):
        softmax = SOFTMAXES.get(self.wrong, lambda s: torch.softmax(s, dim=-1))
        if self.causal or self.wrong == "causal_not_meant":
            s = s.masked_fill(~self.open_at(*s.shape[-2:]), -INF)
        if self.wrong == "dropout_before_softmax":
            s = nn.functional.dropout(s, self.dropout, self.training)
        if self.wrong == "softmax_before_mask":
            return softmax(s) if mask is None else softmax(s) * mask
        if mask is not None:
            s = CLOSINGS.get(self.wrong, lambda s, keep: s.masked_fill(~keep, -INF))(s, mask)
        s = self.capped(s) if self.wrong == "softcap_after_mask" else s
        if hasattr(self, "sinks") and self.wrong != "sinks_dropped":
            sinks = self.sinks[:, None, None].expand(*s.shape[:-1], 1)
            return torch.cat([s, sinks], -1).softmax(-1)[..., :-1]
        w = softmax(s)
        w = self.capped(w) if self.wrong == "softcap_after_softmax" else w
        return w.mean(1, keepdim=True).expand_as(w) if self.wrong == "heads_averaged" else w

    def merged(self, out, x):
        if self.wrong == "heads_merged_without_transpose":
            out = out.transpose(1, 2).reshape(out.shape)
        out = out.flatten(2)
        if self.wrong == "output_projection_missing":
            return out
        out = self.out_proj(out)
        out = out + self.out_proj.bias if self.wrong == "output_bias_twice" else out
        return out + x if self.wrong == "residual_added" else out
