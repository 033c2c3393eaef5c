"""Reading a module: which of its weights project what, and how many heads it has."""

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from attn_check.calls import NAMES
from attn_check.reference import Layer

_ROLES = {word: role for role, words in NAMES["projections"].items() for word in words.split()}
_NORM = re.compile(r"(q|k)(uery|ey)?_?(layer)?_?(norm|ln)")
_WORDS = {"q": "queries", "k": "keys", "v": "values"}
Names = dict[str, list[str]]  # of parameters, by role
Tensors = dict[str, Tensor]  # by role, or all parameters by name
Projections = Mapping[str, str] | None


def role_of(name: str) -> str | None:
    """The role of a parameter, from its name."""
    parts = [p for p in name.split(".") if p not in ("weight", "bias") and not p.isdigit()]
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", parts[-1] if parts else "")
    words = [word for word in spaced.lower().split("_") if word]
    telling = "".join(w for w in words if w not in NAMES["words of any projection"].split())
    return _ROLES.get(telling, "out" if words and not telling else None)


def read_layer(
    module: nn.Module, heads: int | None, kv_heads: int | None, projections: Projections
) -> list[Layer]:
    """The projections of a module, in each way in which they may be meant, the likeliest first."""
    parameters, by_role = _named(module, projections)
    if not ({"q", "k", "v"} <= by_role.keys() or "qkv" in by_role or {"q", "kv"} <= by_role.keys()):
        return []
    weights = {role: _joined(parameters, names) for role, names in by_role.items()}
    biases = {r: _joined(parameters, n).flatten() for r, n in _biases(parameters, by_role).items()}
    if "qkv" in biases and "qkv" not in by_role:
        biases |= zip("qkv", biases.pop("qkv").chunk(3), strict=True)
    H, H_kv = count_heads(module, weights, by_role, heads, kv_heads)
    raw = any(_is_raw(module, name) for names in by_role.values() for name in names)
    layers = []
    for turned in (True, False) if raw else (False,):
        for by_head in (False, True) if by_role.keys() & {"qkv", "kv"} else (False,):
            order, words = _order(by_role, turned, by_head)
            parts = _unpacked(weights, biases, H, H_kv, order, turned, by_head)
            if parts is not None:
                layers.append(Layer(H, H_kv, *parts, _norms(module), words))
    return layers


def misfit(module: nn.Module, heads: int | None, projections: Projections) -> str:
    """Shapes of matrices that were found and do not fit together; "" where none were found."""
    parameters, by_role = _named(module, projections)
    if not by_role.keys() & {"q", "qkv"}:
        return ""
    shapes = [f"{n} {tuple(parameters[n].shape)}" for names in by_role.values() for n in names]
    count = _attribute(module, "heads") if heads is None else heads
    return (
        f"with {count} heads the projections do not fit together: {', '.join(shapes)}; q and k "
        "must give H · d_k and H_kv · d_k channels, v must give H_kv · d_v, and out must take H · "
        "d_v. Pass heads=, kv_heads= or projections="
    )


def matrices(module: nn.Module, projections: Projections) -> tuple[list[str], list[str]]:
    """Names of the matrices that project queries, keys or values, and of those of the output."""
    _, by_role = _named(module, projections, aliases=False)
    first = [name for role, names in by_role.items() if role != "out" for name in names]
    return first, by_role.get("out", [])


def unexplained(module: nn.Module, projections: Projections) -> list[str]:
    """Names of parameters that no part of attention explains."""
    parameters, by_role = _named(module, projections, aliases=False)
    explained = [*by_role.values(), *_biases(parameters, by_role).values()]
    used = {_stem(name) for names in explained for name in names}
    norms = {name for name, _ in module.named_modules() if _NORM.fullmatch(name.split(".")[-1])}
    return sorted({_stem(name) for name in parameters if "sink" not in name} - used - norms)


def count_heads(
    module: nn.Module, weights: Tensors, by_role: Names, heads: int | None, kv_heads: int | None
) -> tuple[int, int]:
    """H and H_kv, from what the module says and what the caller says."""
    found, width = _attribute(module, "heads"), _attribute(module, "widths of a head")
    flat = "q" in weights and weights["q"].dim() == 2
    if found is None and len(by_role.get("q", [])) > 1:
        found = len(by_role["q"])
    elif found is None and width is not None and flat:
        found = len(weights["q"]) // width
    H = _agreed("heads", heads, found)
    if H is None:
        raise ValueError(
            "the number of heads is not among the module's attributes: pass heads=, "
            "for instance heads=1"
        )
    H_kv = _agreed("kv_heads", kv_heads, _attribute(module, "key heads"))
    if H_kv is None and flat and "k" in weights:
        times, rest = divmod(len(weights["k"]) * H, len(weights["q"]))
        H_kv = None if rest else times
    return H, H if H_kv is None else H_kv


def _agreed(name: str, given: int | None, found: int | None) -> int | None:
    if given is not None and found is not None and given != found:
        raise ValueError(f"{name}={given} contradicts the module, which says {found}")
    return found if given is None else given


def _attribute(module: nn.Module, kind: str) -> int | None:
    """The first number of one of the names of this kind that a part has, or its config."""
    for part in module.modules():
        for owner in (part, getattr(part, "config", None)):
            for value in (getattr(owner, name, None) for name in NAMES[kind].split()):
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
    return None


def _named(
    module: nn.Module, projections: Projections, *, aliases: bool = True
) -> tuple[Tensors, Names]:
    """All parameters, and the names of the matrices of each role."""
    parameters: Tensors = dict(module.named_parameters(remove_duplicate=not aliases))
    by_role: Names = {}
    if projections is not None:
        for role, given in projections.items():
            name = given if given in parameters else f"{given}.weight"
            if role not in NAMES["projections"] or name not in parameters:
                raise ValueError(
                    f"projections must map {', '.join(NAMES['projections'])} to names of "
                    f"parameters; got {role!r}: {name!r}, and there are {', '.join(parameters)}"
                )
            by_role[role] = [name]
        return parameters, by_role
    found = [n for n, p in parameters.items() if p.dim() >= 2 and not n.endswith("bias")]
    roles = {name: role_of(name) for name in found}
    by_role = {r: [n for n in found if roles[n] == r] for r in roles.values() if r is not None}
    listed = [n for n in found if re.search(r"\.\d+\.weight$", n)]  # as the Annotated Transformer's
    if not by_role.keys() & {"q", "qkv"} and len(listed) in (3, 4):
        by_role = {r: [n] for r, n in zip(("q", "k", "v", "out"), listed, strict=False)}
    if "out" in by_role:
        by_role["out"] = by_role["out"][-1:]
    return parameters, by_role


def _biases(parameters: Tensors, by_role: Names) -> Names:
    """Names of the biases of a role, where each of its matrices has one."""
    found: Names = {}
    for role, names in by_role.items():
        biases = []
        for name in names:
            spelled = re.sub(r"weight$", "bias", name), re.sub(r"(^|\.)[wW]", r"\1b", name)
            biases += [s for s in spelled if s in parameters and s not in names][:1]
        if len(biases) == len(names):
            found[role] = biases
    packed = [name for name in parameters if name.endswith("in_proj_bias")]
    if packed and {"q", "k", "v"} <= by_role.keys():  # torch's, where widths differ
        found["qkv"] = packed[:1]
    return found


def _stem(name: str) -> str:
    return re.sub(r"[._]?(weight|bias)$", "", name)


def _is_raw(module: nn.Module, name: str) -> bool:
    """Whether a parameter stands by itself: then it may multiply from either side."""
    parent, _, last = name.rpartition(".")
    owner = module.get_submodule(parent)
    return not isinstance(owner, nn.Linear | nn.MultiheadAttention) and last != "in_proj_weight"


def _joined(parameters: Tensors, names: list[str]) -> Tensor:
    """Matrices of single heads one under the other."""
    return torch.cat([parameters[name].detach().double() for name in names])


def _norms(module: nn.Module) -> Tensors:
    """Gains, biases and eps of the norms of queries and keys."""
    found: Tensors = {}
    for name, part in module.named_modules():
        if not (match := _NORM.fullmatch(name.split(".")[-1])):
            continue
        role = match[1]
        for key, value in ((role, "weight"), (f"{role}_bias", "bias")):
            tensor = getattr(part, value, None)
            if isinstance(tensor, Tensor):
                found[key] = tensor.detach().double()
        eps = getattr(part, "eps", getattr(part, "variance_epsilon", None))
        if isinstance(eps, float):
            found[f"{role}_eps"] = torch.tensor(eps)
        elif isinstance(part, nn.RMSNorm):
            found[f"{role}_eps"] = torch.tensor(torch.finfo(torch.float32).eps)
    return found


def _order(by_role: Names, turned: bool, by_head: bool) -> tuple[str, str]:
    """Whose lines a packed matrix holds, as its name says, and in words; "" where there is none."""
    order = "kqv" if any("kqv" in name.lower() for name in by_role.get("qkv", [])) else "qkv"
    for role, letters in (("qkv", order), ("kv", "kv")):
        if role in by_role:
            lines, parts = "columns" if turned else "rows", ", ".join(_WORDS[c] for c in letters)
            end = "head by head" if by_head else "in this order"
            return order, f"the {lines} of {by_role[role][0]} are those of {parts}, {end}"
    return order, ""


def _unpacked(
    weights: Tensors, biases: Tensors, H: int, H_kv: int, order: str, turned: bool, by_head: bool
) -> tuple[Tensors, dict[str, Tensor | None]] | None:
    """Matrices (outputs, inputs) and biases by role; None where they do not fit together."""
    if not turned and any(weight.dim() == 3 for weight in weights.values()):
        return None
    counts = {"q": H, "k": H_kv, "v": H_kv}
    flat = {role: _two_axes(x, role, counts.get(role, H)) for role, x in weights.items()}
    found = {role: x.mT if turned else x for role, x in flat.items()}
    vectors: dict[str, Tensor | None] = dict(biases)
    for packed, letters in (("qkv", order), ("kv", "kv")):
        if packed not in found:
            continue
        whole, bias = found.pop(packed), vectors.pop(packed, None)
        parts = [counts[role] for role in letters]
        if len(whole) % sum(parts) or (by_head and len(set(parts)) > 1):
            return None
        unit, index = len(whole) // sum(parts), torch.arange(len(whole))
        lines = index.split([unit * n for n in parts])
        if by_head:  # head by head: its query, its key, its value
            lines = index.view(parts[0], len(parts), unit).transpose(0, 1).flatten(1).unbind()
        for role, at in zip(letters, lines, strict=True):
            found[role], vectors[role] = whole[at], None if bias is None else bias[at]
    widths = {role: len(found[role]) / n for role, n in counts.items()}
    fits = (
        all(width.is_integer() for width in widths.values())
        and widths["q"] == widths["k"]
        and found["k"].shape[1] == found["v"].shape[1]
        and ("out" not in found or found["out"].shape[1] == H * widths["v"])
        and all(b is None or b.numel() == len(found[r]) for r, b in vectors.items() if r in found)
    )
    return (found, vectors) if fits else None


def _two_axes(weight: Tensor, role: str, heads: int) -> Tensor:
    """From (H, d_model, d) or (d_model, H, d), and from (H, d, d_model) of the output."""
    if weight.dim() != 3:
        return weight
    if role == "out":
        return weight.flatten(0, 1)
    return weight.transpose(0, 1).flatten(1) if len(weight) == heads else weight.flatten(1)
