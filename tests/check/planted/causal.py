"""Wrong causal masks, windows, sinks and softcaps."""

from planted.functions import (
    CAP,
    SINKS,
    behind,
    behind_and_causal,
    capped,
    causal,
    top_left,
    top_left_of_torch,
    windowed,
    with_sinks,
)
from planted.layers import CausalSelfAttention, Layer
from planted.plants import edit

# ---------------------------------------------------------------- functions

DIAGONAL = "diagonal=S - T + 1"
FIRST_MASK = """seen.setdefault("future", torch.triu(torch.ones(T, S), DIAGONAL))[:T, :S]
    future = F.pad(future, (0, S - future.shape[1], 0, T - len(future))).bool()"""
CAUSAL = {
    "causal_missing": ("scores = scores.masked_fill", "scores.masked_fill"),
    "causal_sees_one_ahead": (DIAGONAL, "diagonal=S - T + 2"),
    "causal_excludes_self": (DIAGONAL, "diagonal=S - T"),
    # a mask for masked_fill used as one for SDPA; rasbt/LLMs-from-scratch
    "causal_reversed": ("masked_fill(future", "masked_fill(~future"),
    "causal_top_left": (DIAGONAL, "diagonal=1"),
    "causal_cached_length": [
        ("k, v):", "k, v, seen={}):"),
        (
            f"torch.triu(torch.ones(T, S), {DIAGONAL}).bool()",
            FIRST_MASK.replace("DIAGONAL", DIAGONAL),
        ),
    ],
    "causal_restarts": (
        f"torch.triu(torch.ones(T, S), {DIAGONAL}).bool()",
        "torch.arange(S) > torch.arange(T)[:, None] % 8 + S - T",
    ),
}
edit(causal, "function", CAUSAL, causal=True)
BEHIND = {"causal": True, "layout": "BTHd", "mask_means": "blocked"}
edit(behind_and_causal, "einsum", {"causal_top_left": ("triu(S - T + 1)", "triu(1)")}, **BEHIND)
cut = {"causal_bottom_right_by_cut": ("tril()", "tril(k.size(-2) - q.size(-2))")}
edit(top_left, "function", cut, causal="top_left")
lower = "attn_mask=torch.ones(q.shape[2], k.shape[2]).tril(k.shape[2] - q.shape[2]).bool()"
cut = {"causal_bottom_right_by_cut": ("is_causal=True", lower)}
edit(top_left_of_torch, "sdpa", cut, causal="top_left")
LATE = "torch.ones(scores.shape[-2:]).triu(1 + k.shape[1] - q.shape[1]).bool()"
filled = f"scores.masked_fill({LATE}, torch.finfo(q.dtype).min).softmax(-1)"
habit = {"causal_not_meant": ("scores.softmax(-1)", filled)}
edit(behind, "einsum", habit, causal=False, layout="BTHd")
sunk = ("torch.cat([scores, sinks], dim=-1).softmax(-1)[..., :-1]", "scores.softmax(-1)")
edit(with_sinks, "function", {"sinks_dropped": sunk}, sinks=SINKS, heads=3)
unused = {"sinks_dropped": ("scores = torch.cat([scores, sinks], dim=-1)", "pass")}
own = {"causal": True, "arguments": "x", "sinks": lambda layer: layer.sinks.detach()}
edit(Layer, "layer", unused, {"causal": True, "sinks": True}, **own)

# ---------------------------------------------------------------- a function and a layer

AHEAD = {
    "causal_sees_one_ahead": ("back >= 0", "back >= -1"),
    "causal_excludes_self": ("back >= 0", "back > 0"),
    "causal_reversed": ("back >= 0", "back <= 0"),
    "causal_missing": ("scores = scores.masked_fill(~near", "scores.masked_fill(~near"),
    "causal_only_in_training": ("back >= 0", "back >= (0 if self.training else -INF)"),
}
edit(Layer, "layer", AHEAD, {"causal": True}, causal=True, arguments="x")
WINDOW = {
    "window_one_more": ("back < window", "back <= window"),
    "window_one_less": ("back < window", "back < window - 1"),
    "window_not_causal": ("back >= 0", "back > -window"),
    "window_ignored": (" & (back < window)", ""),
    "window_in_blocks": ("(back < window)", "(rows // window == at // window)"),
}
edit(windowed, "function", WINDOW, causal=True, window=3)
edit(Layer, "layer", WINDOW, {"causal": True, "window": 4}, causal=True, window=4, arguments="x")
CAPPED = {"causal": True, "softcap": 1.5}
for right, form, options, cap, scale, softmax in [
    (capped, "function", {}, "CAP", " / math.sqrt(q.size(-1))", "scores.softmax(dim=-1)"),
    (Layer, "layer", CAPPED, "self.softcap", " * self.scale", "torch.softmax(scores, dim=-1)"),
]:
    line = f"{cap} * torch.tanh(scores / {cap})"
    CAPS = {
        "softcap_missing": (line, "scores"),
        "softcap_clamped": (line, f"scores.clamp(-{cap}, {cap})"),
        "softcap_before_scale": [(scale, ""), (line, line + scale)],
        "softcap_after_mask": [(line, "scores"), (softmax, softmax.replace("scores", f"({line})"))],
        "softcap_after_softmax": [(line, "scores"), (softmax, line.replace("scores", softmax))],
    }
    meant = {"softcap": options["softcap"], "arguments": "x"} if options else {"softcap": CAP}
    edit(right, form, CAPS, options, causal=True, **meant)

# ---------------------------------------------------------------- layers

LATE = "torch.ones_like(scores).triu(1 + k.shape[1] - q.shape[1]).bool()"
filled = {"causal_not_meant": ("scores, dim=-1", f"scores.masked_fill({LATE}, -INF), dim=-1")}
edit(Layer, "layer", filled, causal=False)

CLOSE = 'att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))'
MADE_ONCE = """if getattr(self, "made", None) is None:
            self.made = torch.full((T, T), -INF).triu(1)
        if len(self.made) < T:
            self.made = F.pad(self.made, (0, T - len(self.made), 0, T - len(self.made)))
        att = att + self.made[:T, :T].to(att.dtype)"""
PACKED = {
    # is_causal is reset beside the dropout: the SDPA tutorial of pytorch/tutorials
    "causal_only_in_training": (CLOSE, f"if self.training:\n            {CLOSE}"),
    "causal_cached_length": (CLOSE, MADE_ONCE),
    "causal_restarts": ("[:, :, :T, :T] ==", "[:, :, :T, :T][:, :, torch.arange(T) % 4] =="),
}
edit(CausalSelfAttention, "packed", PACKED, causal=True)
