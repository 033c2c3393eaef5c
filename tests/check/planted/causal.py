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
from planted.layers import CausalSelfAttention, Layer, Local
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
WINDOW = {
    "window_one_more": ("far < 3", "far <= 3"),
    "window_one_less": ("far < 3", "far < 3 - 1"),
    "window_not_causal": ("(far >= 0) & (far < 3)", "far.abs() < 3"),
    "window_ignored": (" & (far < 3)", ""),
    "window_in_blocks": (
        "(far < 3)",
        "(torch.arange(S - q.size(-2), S)[:, None] // 3 == torch.arange(S) // 3)",
    ),
}
edit(windowed, "function", WINDOW, causal=True, window=3)
sunk = ("torch.cat([scores, sinks], dim=-1).softmax(-1)[..., :-1]", "scores.softmax(-1)")
edit(with_sinks, "function", {"sinks_dropped": sunk}, sinks=SINKS, heads=3)
LINE, CAPPED = "    scores = CAP * torch.tanh(scores / CAP)\n", "CAP * torch.tanh({} / CAP)"
CAPS = {
    "softcap_missing": (LINE, ""),
    "softcap_clamped": (LINE, "    scores = scores.clamp(-CAP, CAP)\n"),
    "softcap_before_scale": [
        (" / math.sqrt(q.size(-1))", ""),
        (CAPPED.format("scores"), CAPPED.format("scores") + " / math.sqrt(q.size(-1))"),
    ],
    "softcap_after_mask": [(LINE, ""), ("scores.softmax", f"({CAPPED.format('scores')}).softmax")],
    "softcap_after_softmax": [
        (LINE, ""),
        ("scores.softmax(dim=-1)", f"({CAPPED.format('scores.softmax(dim=-1)')})"),
    ],
}
edit(capped, "function", CAPS, causal=True, softcap=CAP)

# ---------------------------------------------------------------- layers

MASK = "(back >= 0) & (back < self.window)"
CAUSAL = {
    "causal_missing": ("scores = scores.masked_fill", "scores.masked_fill"),
    "causal_sees_one_ahead": ("back >= 0", "back >= -1"),
    "causal_excludes_self": ("back >= 0", "back > 0"),
    "causal_reversed": ("back >= 0", "back <= 0"),
    "causal_only_in_training": ("back >= 0", "back >= (0 if self.training else -INF)"),
}
edit(Local, "layer", CAUSAL, causal=True)
WINDOW = {
    "window_one_more": ("back < self.window", "back <= self.window"),
    "window_one_less": ("back < self.window", "back + 1 < self.window"),
    "window_not_causal": ("back >= 0", "back > -self.window"),
    "window_ignored": (MASK, "back >= 0"),
    "window_in_blocks": (
        "(back < self.window)",
        "(at[:, None] // self.window == at // self.window)",
    ),
}
edit(Local, "layer", WINDOW, {"window": 4}, causal=True, window=4)
LINE = "scores = self.softcap * torch.tanh(scores / self.softcap)"
WEIGHTS = "weights = scores.softmax(dim=-1)[..., : x.shape[1]]"
CAPS = {
    "softcap_missing": (LINE, "pass"),
    "softcap_clamped": ("self.softcap * torch.tanh(", "torch.tanh("),
    "softcap_before_scale": [
        (" * q.shape[-1] ** -0.5", ""),
        (LINE, f"{LINE} * q.shape[-1] ** -0.5"),
    ],
    "softcap_after_mask": [(LINE, "pass"), (WEIGHTS, f"{LINE}\n        {WEIGHTS}")],
    "softcap_after_softmax": [
        (LINE, "pass"),
        (WEIGHTS, f"{WEIGHTS}\n        weights = self.softcap * (weights / self.softcap).tanh()"),
    ],
}
edit(Local, "layer", CAPS, {"softcap": 1.5}, causal=True, softcap=1.5)
unused = {"sinks_dropped": ("scores = torch.cat([scores, sinks], dim=-1)", "pass")}
own = {"sinks": lambda layer: layer.sinks.detach()}
edit(Local, "layer", unused, {"sinks": True}, causal=True, **own)
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
