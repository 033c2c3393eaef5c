"""What reports say to look for and to write instead, where it is code, run on small tensors."""

import ast
import json
import math
import re
from functools import partial

import known_mistakes
import torch
import torch.nn.functional as F
from tables import for_each
from torch import nn

WORDS = json.loads(known_mistakes.WORDS.read_text())
B, H, T, S, D = 2, 4, 3, 5, 6  # in and out of heads, no two sizes alike
# what is wrong with the same numbers: one that nobody assigns, one where v is as wide as k
UNSEEN = {"mask_ignored", "scale_by_value_width"}
UNSCALED = {"query_key_swapped"}  # rows whose repair leaves the scale to others
HALVES = re.compile(r"(?m)^(\w+) = cat\((.*)\)$")
AXES = {"mask_on_queries", "mask_guessed_by_rank", "mask_tiled_over_heads"}  # rows on a (B, S) mask


def tensors() -> dict:
    """What the code of reports calls things."""
    torch.manual_seed(0)
    module = nn.Module()
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        module.add_module(name, nn.Linear(H * D, H * D).double())
    x, context = torch.randn(B, T, H * D).double(), torch.randn(B, S, H * D).double()
    q = module.q_proj(x).view(B, T, H, D).transpose(1, 2)
    k = module.k_proj(context).view(B, S, H, D).transpose(1, 2)
    v = module.v_proj(context).view(B, S, H, D).transpose(1, 2)
    scores = q @ k.mT
    rows = torch.tensor([[1, 1, 1, 0, 1], [0, 0, 0, 0, 0]]).bool()  # one of them empty
    i, j = torch.arange(T)[:, None] + S - T, torch.arange(S)
    angles = torch.arange(T)[:, None] / torch.arange(1.0, H * D // 2 + 1).double()
    return {
        "B": B, "H": H, "T": T, "S": S, "d": D, "d_k": D, "head_dim": D, "d_model": H * D,
        "embed_dim": H * D, "num_heads": H, "self": module, "x": x, "context": context,
        "q": q, "k": k, "v": v, "scores": scores, "rows": rows,
        "mask": rows[:, None, None], "i": i, "j": j, "key": j,
        "query": i, "window": 2, "causal": j <= i, "weights": scores.softmax(-1),
        "out": scores.softmax(-1) @ v, "softcap": 0.5, "groups": 3, "seen": 4,
        "bias": torch.randn(H, T, S).double(), "sink": torch.randn(B, H, T, 1).double(),
        "cached_k": torch.randn(B, H, 2, D).double(), "weight": module.q_proj.weight,
        "scale": D**-0.5, "inf": math.inf, "math": math, "torch": torch, "F": F,
        "softmax": torch.softmax, "log_softmax": torch.log_softmax, "exp": torch.exp,
        "exp2": torch.exp2, "tanh": torch.tanh, "relu": torch.relu, "cat": torch.cat,
        "arange": torch.arange, "tril": torch.tril, "triu": torch.triu, "ones": torch.ones,
        "normalize": F.normalize, "new_max": scores.amax(-1, keepdim=True) + 1.0,
        "old_max": scores.amax(-1, keepdim=True), "total": torch.ones(B, H, T, 1).double(),
        "first": x[..., : H * D // 2], "second": x[..., H * D // 2 :],
        "cos": torch.cat([angles.cos()] * 2, -1), "sin": torch.cat([angles.sin()] * 2, -1),
    }  # fmt: skip


def right(t: dict) -> list:
    """What is right somewhere in attention, each written another way than reports write it."""
    scores, v, m = t["scores"], t["v"], t["self"]
    factor, closed = torch.tensor(D).double().rsqrt(), t["mask"].logical_not()
    weights = (scores - scores.logsumexp(-1, keepdim=True)).exp()
    masked = torch.where(closed, -math.inf, scores)
    behind = torch.arange(S - T, S)[:, None] - torch.arange(S)
    heads = torch.stack(t["x"].split(D, dim=-1), dim=1)
    with_sink = scores.exp() / (scores.exp().sum(-1, keepdim=True) + t["sink"].exp())
    older = t["total"] * (t["old_max"] - t["new_max"]).exp()
    turn = torch.complex(t["cos"], t["sin"])[:, : H * D // 2]
    turned = torch.complex(t["first"], t["second"]) * turn
    repeated = torch.stack([t["k"][:, h // 3] for h in range(3 * H)], dim=1)
    return [
        factor, scores * factor, scores * factor + t["bias"], scores + t["bias"],
        weights, torch.einsum("bhts,bhsd->bhtd", weights, v),
        scores.exp(), masked, masked.softmax(-1).nan_to_num(0.0), t["mask"] & (behind >= 0),
        ~closed, t["q"] * factor,
        behind >= 0, (behind >= 0).double(), torch.ones(T, S).double().tril(),
        (behind >= 0) & (behind < t["window"]), behind < t["window"],
        t["softcap"] * (scores / t["softcap"]).tanh(), with_sink, heads, heads.transpose(1, 2),
        torch.cat([*t["out"].unbind(1)], dim=-1), repeated, t["q"], t["k"], t["v"],
        *[F.linear(x, p.weight, p.bias) for p in (m.q_proj, m.k_proj, m.v_proj)
          for x in (t["x"], t["context"])],
        older + (scores - t["new_max"]).exp().sum(-1, keepdim=True), t["k"].transpose(2, 3),
        torch.stack([t["cached_k"][:, :, 0], t["cached_k"][:, :, 1], *t["k"].unbind(2)], dim=2),
        torch.tensor(range(4, 4 + T)), torch.cat([turned.real, turned.imag], dim=-1),
        # parts of what is right: a divisor, a maximum, fills, axes of masks, what a mask closes
        torch.tensor(D).double().sqrt(), scores.max(dim=-1, keepdim=True)[0],
        torch.tensor(-math.inf), torch.tensor(torch.finfo(torch.float64).min),
        t["rows"].unsqueeze(1).unsqueeze(1), t["rows"].unsqueeze(0).unsqueeze(0),
        torch.stack([t["rows"][b] for b in range(B) for _ in range(H)]), behind < 0,
    ]  # fmt: skip


def values(code: str, t: dict) -> list:
    """The tensors and numbers that code gives, apart where commas or ``or`` part them."""
    try:
        (statement,) = ast.parse(code).body
    except (SyntaxError, ValueError):
        return []
    found = getattr(statement, "value", None)
    if not isinstance(statement, ast.Expr | ast.Assign):
        return []
    parts = found.elts if isinstance(found, ast.Tuple) else [found]
    parts = [one for part in parts for one in getattr(part, "values", [part])]
    given = []
    for part in parts:
        try:
            value = eval(ast.unparse(part), dict(t))  # noqa: S307 - the repository's own words
        except (NameError, TypeError, RuntimeError, AttributeError, ValueError, SyntaxError):
            continue
        value = torch.tensor(value) if isinstance(value, float) else value
        given += [value] if isinstance(value, torch.Tensor) else []
    return given


def given_by(words: str, t: dict) -> list:
    """What all code in words gives; it may say what a function does to ``first`` and ``second``."""
    code = [part for part, is_code in known_mistakes.pieces(words) if is_code]
    halves = {
        name: values(f"cat([{parts}], -1)", t) for name, parts in HALVES.findall("\n".join(code))
    }
    t = t | {name: partial(lambda half, x: half, *half) for name, half in halves.items()}
    return [v for part in code for v in values(part, t)]


def same(a, b) -> bool:
    return a.shape == b.shape and torch.allclose(a.double(), b.double(), equal_nan=True)


def checked(words: dict) -> tuple[int, set[str]]:
    """How many rows have code that ran, and those of which the code does not do what is said."""
    known, ran, wrong = right(tensors()), 0, set()
    for name, row in words.items():
        own = tensors()
        own["mask"] = own["rows"] if name in AXES else own["mask"]
        repair, look_for = (given_by(row[part], own) for part in ("repair", "look_for"))
        ran += bool(repair or look_for)
        rights = [*known, own["scores"]] if name in UNSCALED else known
        repaired = all(any(same(v, one) for one in rights) for v in repair)
        alike = any(same(v, one) for v in look_for for one in repair)
        if not repaired or (alike and name not in UNSEEN):
            wrong.add(name)
    return ran, wrong


def test_a_repair_computes_what_is_right_and_what_to_look_for_something_else():
    ran, wrong = checked(WORDS)
    assert ran > 95
    assert wrong == set()


@for_each(
    ("causal_top_left", "repair", "S - T", "T - S"),
    ("softmax_over_queries", "look_for", "dim=-2", "dim=-1"),
    ("rope_direction", "repair", "-second, first", "second, -first"),
)
def test_an_exchanged_word_of_code_is_seen(name, part, old, new):
    row = WORDS[name]
    assert old in row[part]
    assert checked({name: row | {part: row[part].replace(old, new)}})[1] == {name}
