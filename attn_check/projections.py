"""Reading a module: which of its weights project what, and how many heads it has."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attn_check.packed import order_in_words, order_of, unpacked
from attn_check.reference import Layer

_ROLES = {
    "q": {"q", "qs", "query", "queries", "wq", "qw", "xq"},
    "k": {"k", "ks", "key", "keys", "wk", "kw", "xk"},
    "v": {"v", "vs", "value", "values", "val", "wv", "vw", "xv"},
    "out": {
        "o",
        "wo",
        "out",
        "output",
        "fcout",
        "outputs",
        "c",
        "dense",
        "unify",
        "unifyheads",
        "",
    },
    "qkv": {"qkv", "wqkv", "in", "cattn", "querykeyvalue", "qkvs", "kqv"},
    "kv": {"kv", "wkv", "keyvalue"},
}
_EMPTY_WORDS = {"proj", "projection", "projections", "linear", "lin", "layer", "to", "w", "fc"}
_EMPTY_WORDS |= {"matrix", "weight", "weights", "bias", "net", "0", "transform", "map", "head"}
_HEADS: tuple[str, ...] = (
    "num_heads",
    "n_heads",
    "n_head",
    "nhead",
    "nheads",
    "num_attention_heads",
    "heads",
)
_HEADS += ("head_num", "n_h", "h", "H", "num_q_heads", "n_q_heads", "num_head", "attention_heads")
_KV_HEADS: tuple[str, ...] = (
    "num_kv_heads",
    "n_kv_heads",
    "num_key_value_heads",
    "n_kv",
    "n_kv_head",
    "kv_heads",
)
_KV_HEADS += ("num_kv", "num_query_groups", "n_kv_groups", "num_groups_kv", "h_kv", "H_kv")
_WIDTHS: tuple[str, ...] = (
    "head_dim",
    "d_k",
    "d_head",
    "dim_head",
    "head_size",
    "attention_head_size",
    "dk",
)


_NORM = re.compile(r"(q|k)(uery|ey)?_?(layer)?_?(norm|ln)")


def role_of(name: str) -> str | None:
    """The role of a parameter, from its name."""
    parts = [part for part in name.split(".") if part not in ("weight", "bias")]
    last = next((part for part in reversed(parts) if not part.isdigit()), "")
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", last)
    words = [w for w in spaced.lower().split("_") if w]
    kept = "".join(w for w in words if w not in _EMPTY_WORDS)
    if not words:
        return None
    found = (role for role, names in _ROLES.items() if kept in names)
    return next(found, None)


def read_layer(
    module: nn.Module,
    *,
    heads: int | None,
    kv_heads: int | None,
    projections: Mapping[str, str] | None,
) -> list[Layer]:
    """The projections of a module, in each way in which they may be meant, the likeliest first."""
    parameters: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    by_role = _named(module, parameters, projections)
    if not ({"q", "k", "v"} <= by_role.keys() or "qkv" in by_role or {"q", "kv"} <= by_role.keys()):
        return []
    biases = _biases(by_role, parameters)
    weights = {role: _stacked([parameters[n] for n in names]) for role, names in by_role.items()}
    raw = any(_is_raw(module, n) for names in by_role.values() for n in names)
    H, H_kv = count_heads(module, weights, by_role, heads, kv_heads)
    norms = _norms(module)
    layers = []
    for turned in (True, False) if raw else (False,):
        for interleaved in (False, True):
            how = {"turned": turned, "interleaved": interleaved}
            parts = unpacked(weights, biases, H, H_kv, **how, order=order_of(by_role))
            if parts is not None:
                layers.append(Layer(H, H_kv, *parts, norms, order_in_words(by_role, **how)))
            if "qkv" not in weights and "kv" not in weights:
                break
    return layers


def misfit(module: nn.Module, heads: int | None, projections: Mapping[str, str] | None) -> str:
    """Shapes of matrices that were found and do not fit together; "" where none were found."""
    parameters: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    by_role = _named(module, parameters, projections)
    if not by_role.keys() & {"q", "qkv"}:
        return ""
    shapes = {n: tuple(parameters[n].shape) for names in by_role.values() for n in names}
    listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    said = _attribute(module, _HEADS) if heads is None else heads
    return (
        f"with {said} heads the projections do not fit together: {listed}; q and k must give H · "
        "d_k and H_kv · d_k channels, v must give H_kv · d_v, and out must take H · d_v. "
        "Pass heads=, kv_heads= or projections="
    )


def matrices(
    module: nn.Module, projections: Mapping[str, str] | None
) -> tuple[list[str], list[str]]:
    """Names of the matrices that project queries, keys or values, and of those of the output."""
    named = _named(module, dict(module.named_parameters()), projections)
    first = [name for role, names in named.items() if role != "out" for name in names]
    return first, named.get("out", [])


def unexplained(module: nn.Module, projections: Mapping[str, str] | None) -> list[str]:
    """Names of parameters that no part of attention explains."""
    parameters: dict[str, Tensor] = dict(module.named_parameters())
    by_role = _named(module, parameters, projections)
    named = {n for names in by_role.values() for n in names}
    named |= {n for names in _spelled_biases(by_role, parameters).values() for n in names}
    used = {re.sub(r"[._]?(weight|bias)$", "", n) for n in named}
    norms = {n for n, part in module.named_modules() if _NORM.fullmatch(n.rpartition(".")[2])}
    stems = [re.sub(r"[._]?(weight|bias)$", "", n) for n in parameters if "sink" not in n]
    return sorted({stem for stem in stems if stem not in used and stem not in norms})


def _norms(module: nn.Module) -> dict[str, Tensor]:
    """Gains, biases and eps of the norms of queries and keys."""
    found: dict[str, Tensor] = {}
    for name, part in module.named_modules():
        match = _NORM.fullmatch(name.rpartition(".")[2])
        if match is None:
            continue
        role = match[1]
        for key, attribute in ((role, "weight"), (f"{role}_bias", "bias")):
            value = getattr(part, attribute, None)
            if isinstance(value, Tensor):
                found[key] = value.detach().double()
        eps = getattr(part, "eps", getattr(part, "variance_epsilon", None))
        if isinstance(eps, float):
            found[f"{role}_eps"] = torch.tensor(eps)
        elif isinstance(part, nn.RMSNorm):
            found[f"{role}_eps"] = torch.tensor(torch.finfo(torch.float32).eps)
    return found


def _named(
    module: nn.Module, parameters: dict[str, Tensor], projections: Mapping[str, str] | None
) -> dict[str, list[str]]:
    if projections is not None:
        named = {}
        for role, said in projections.items():
            name = said if said in parameters else f"{said}.weight"
            if role not in _ROLES or name not in parameters:
                known = ", ".join(parameters)
                raise ValueError(
                    f"projections must map {', '.join(_ROLES)} to names of parameters; "
                    f"got {role!r}: {name!r}, and there are {known}"
                )
            named[role] = [name]
        return named
    matrices = [n for n, p in parameters.items() if p.dim() >= 2 and not n.endswith("bias")]
    by_role: dict[str, list[str]] = {}
    for matrix in matrices:
        found = role_of(matrix)
        if found is not None:
            by_role.setdefault(found, []).append(matrix)
    if not by_role.keys() & {"q", "qkv"}:
        listed = [n for n in matrices if re.search(r"\.\d+\.weight$", n)]
        if len(listed) in (3, 4):  # a list of four, as in the Annotated Transformer
            by_role = {role: [n] for role, n in zip(("q", "k", "v", "out"), listed, strict=False)}
    if len(by_role.get("out", [])) > 1:
        by_role["out"] = by_role["out"][-1:]
    return by_role


def _is_raw(module: nn.Module, name: str) -> bool:
    """Whether a parameter stands by itself: then it may multiply from either side."""
    parent, _, last = name.rpartition(".")
    owner = module.get_submodule(parent)
    return not isinstance(owner, nn.Linear | nn.MultiheadAttention) and last != "in_proj_weight"


def _stacked(parts: list[Tensor]) -> Tensor:
    """Matrices of single heads one under the other."""
    flat = [p.detach().double() for p in parts]
    return flat[0] if len(flat) == 1 else torch.cat(flat, dim=0)


def _spelled_biases(
    by_role: dict[str, list[str]], parameters: dict[str, Tensor]
) -> dict[str, list[str]]:
    """Names of the biases that belong to the matrices of a role, where each has one."""
    found = {}
    for role, names in by_role.items():
        spelled = [[re.sub(r"weight$", "bias", n)] for n in names]
        spelled = [
            [*s, re.sub(r"(^|\.)[wW]", r"\1b", n)] for s, n in zip(spelled, names, strict=True)
        ]
        mine = [next((s for s in ss if s in parameters and s not in names), None) for ss in spelled]
        if all(m is not None for m in mine):
            found[role] = [m for m in mine if m]
    packed = [n for n in parameters if n.endswith("in_proj_bias")]
    if packed and {"q", "k", "v"} <= by_role.keys():  # torch's, where widths differ
        found["qkv"] = packed[:1]
    return found


def _biases(by_role: dict[str, list[str]], parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for role, names in _spelled_biases(by_role, parameters).items():
        bias = torch.cat([parameters[n].detach().double().flatten() for n in names])
        packed = role == "qkv" and role not in by_role
        found |= dict(zip("qkv", bias.chunk(3), strict=True)) if packed else {role: bias}
    return found


def count_heads(
    module: nn.Module,
    weights: dict[str, Tensor],
    by_role: dict[str, list[str]],
    heads: int | None,
    kv_heads: int | None,
) -> tuple[int, int]:
    """H and H_kv, from what the module says and what the caller says."""
    said = _attribute(module, _HEADS)
    if said is None and len(by_role.get("q", [])) > 1:
        said = len(by_role["q"])
    width = _attribute(module, _WIDTHS)
    if said is None and width is not None and "q" in weights and weights["q"].dim() == 2:
        said = weights["q"].shape[0] // width
    if heads is not None and said is not None and heads != said:
        raise ValueError(f"heads={heads} contradicts the module, which says {said}")
    found = heads if heads is not None else said
    if found is None:
        raise ValueError(
            "the number of heads is not among the module's attributes: pass heads=, "
            "for instance heads=1"
        )
    kv_said = _attribute(module, _KV_HEADS)
    if kv_heads is not None and kv_said is not None and kv_heads != kv_said:
        raise ValueError(f"kv_heads={kv_heads} contradicts the module, which says {kv_said}")
    found_kv = kv_heads if kv_heads is not None else kv_said
    if found_kv is None:
        found_kv = _kv_from_widths(weights, found)
    return found, found_kv


def _kv_from_widths(weights: dict[str, Tensor], heads: int) -> int:
    if "q" in weights and "k" in weights and weights["q"].dim() == 2:
        rows, fewer = weights["q"].shape[0], weights["k"].shape[0]
        if rows != fewer and rows % heads == 0 and fewer % (rows // heads) == 0:
            return fewer // (rows // heads)
    return heads


def _attribute(module: nn.Module, names: tuple[str, ...]) -> int | None:
    for owner in _owners(module):
        for name in names:
            value = getattr(owner, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


def _owners(module: nn.Module) -> Iterator[Any]:
    for part in module.modules():
        yield part
        if hasattr(part, "config"):
            yield part.config
