"""Wrong rotary positions, norms and caches of layers that have all of them."""

from planted.layers import Llama, Meta
from planted.plants import edit
from planted.rotations import HALVES, NEIGHBOURS

STEP = {"step": lambda layer: layer.step}


def norms(q, k, turned, axis):
    """Edits of the line that norms queries and keys, of these names, before they are turned."""
    line = f"            {q}, {k} = self.q_norm({q}), self.k_norm({k})\n"
    off = (line, "            pass\n")
    return {
        "qk_norm_missing": off,
        "qk_norm_axis": (line, axis),
        "qk_norm_of_the_other": (line, line.replace("self.k_norm", "self.q_norm")),
        "qk_norm_after_rope": [off, (turned, f"{turned}        if self.normed:\n{line}")],
    }


# ---------------------------------------------------------------- halves, and a pair

TURN = "q, k = by_halves(q, at), by_halves(k, at)"
LINEAR = "q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)"
ROTATIONS = {
    "rope_pairing": (TURN, "q, k = by_complex(q, at), by_complex(k, at)"),
    "rope_direction": (TURN, "q, k = by_halves(q, -at), by_halves(k, -at)"),
    "rope_base": (TURN, "q, k = by_halves(q, at, 1e6), by_halves(k, at, 1e6)"),
    "rope_twice": (TURN, f"{TURN}\n        {TURN}"),
    "rope_missing": (f"        {TURN}\n", ""),
    "rope_only_queries": (TURN, "q = by_halves(q, at)"),
    "rope_only_keys": (TURN, "k = by_halves(k, at)"),
    "rope_on_values": (TURN, f"{TURN}\n        v = by_halves(v, at)"),
    "rope_keys_off_by_one": (TURN, "q, k = by_halves(q, at), by_halves(k, at + 1)"),
    "rope_before_split": [(f"        {TURN}\n", ""), (LINEAR, f"{LINEAR}\n        {TURN}")],
}
edit(Llama, "llama", ROTATIONS, **HALVES)
AXIS = "            q, k = self.q_norm(q, dim=1), self.k_norm(k, dim=1)\n"
NORMS = norms("q", "k", f"        {TURN}\n", AXIS)
edit(Llama, "llama", NORMS, {"normed": True}, qk_norm="rms", **HALVES)
KEPT = "past = (k, v)"
JOINED = "k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)"
CACHES = {
    "rope_positions_restart": ("arange(seen, seen + T)", "arange(T)"),
    "cache_position": ("arange(seen, seen + T)", "arange(T) + max(seen - 1, 0)"),
    "cache_mask": ("triu(S - T + 1)", "triu(1)"),
    "cache_stale": (KEPT, "past = past or (k, v)"),
    "cache_not_appended": [
        (JOINED, "longer = [torch.cat(two, dim=2) for two in zip(past, (k, v))]"),
        (KEPT, "past = (k, v) if past is None else longer"),
    ],
    "cache_order": [("[past[0], k]", "[k, past[0]]"), ("[past[1], v]", "[v, past[1]]")],
    "cache_of_earlier_sequence": (
        "return self.attended(hidden_states, past)",
        "out, self.past = self.attended(hidden_states, self.past)\n        return out, self.past",
    ),
}
edit(Llama, "llama", CACHES, **STEP, **HALVES)
AGAIN = (KEPT, f"k = by_halves(k, torch.arange(k.shape[2]))\n        {KEPT}")
AGAIN_OF_ALL = {"rope_twice": [(TURN, "q = by_halves(q, at)"), AGAIN]}
edit(Llama, "all that is cached", AGAIN_OF_ALL, **STEP, **HALVES)

# ---------------------------------------------------------------- neighbours, and memory

TURN = "by_complex(t.transpose(1, 2), at).transpose(1, 2) for t in (xq, xk)"
TURNED = f"        xq, xk = ({TURN})\n"
FLAT = "(by_complex(t.flatten(2), at).view_as(t) for t in (xq, xk))"
ROTATIONS = {
    "rope_on_values": (f"xq, xk = ({TURN})", f"xq, xk, xv = ({TURN[:-1]}, xv))"),
    "rope_before_split": (f"({TURN})", FLAT),
}
edit(Meta, "meta", ROTATIONS, **NEIGHBOURS)
TOGETHER = """            flat = (t.flatten(2) for t in (xq, xk))
            flat = (F.layer_norm(t, t.shape[2:]) for t in flat)
            xq, xk = (t.unflatten(2, (-1, self.head_dim)) for t in flat)
            xq = xq * self.q_norm.weight + self.q_norm.bias
            xk = xk * self.k_norm.weight + self.k_norm.bias
"""
NORMS = norms("xq", "xk", TURNED, TOGETHER)
edit(Meta, "meta", NORMS, {"normed": True}, qk_norm="layer", **NEIGHBOURS)
CACHES = {
    "rope_positions_restart": ("2), at)", "2), at - start)"),
    "cache_position": ("2), at)", "2), at + (start > 0))"),
    "cache_mask": ("masked_fill(late,", "masked_fill(late & (start == 0),"),
    "cache_stale": ('"filled": end', '"filled": start or end'),
    "cache_not_appended": (
        'keys, values = cache["k"][:, :end], cache["v"][:, :end]',
        "at, keys, values = at - start, xk, xv",
    ),
    "cache_order": [
        (
            f'cache["{name}"][:, start:end] = x{name}',
            f'cache["{name}"][:, :end] = torch.cat([x{name}, cache["{name}"][:, :start]], 1)',
        )
        for name in "kv"
    ],
    "cache_of_earlier_sequence": [
        ("cache = self.fresh(x) if", "cache = (self.memory or self.fresh(x)) if"),
        (
            "return self.attended(x, cache)\n",
            "out, self.memory = self.attended(x, cache)\n        return out, self.memory\n",
        ),
    ],
}
edit(Meta, "meta", CACHES, **STEP, **NEIGHBOURS)
