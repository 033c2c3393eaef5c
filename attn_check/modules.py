"""Reading a module: which of its weights project what, and how many heads it has."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor, nn

from attn_check.calls import NAMES, roles_of
from attn_check.reference import Layer

_ROLES = roles_of("projections")
_NORM = re.compile(r"(q|k)(uery|ey)?_?(layer)?_?(norm|ln)")
_OF_NORMS = {"q": {"q", "query", "queries"}, "k": {"k", "key", "keys"}}
_WORDS = {"q": "queries", "k": "keys", "v": "values"}
_HEADS = "the number of heads is {}, as no attribute says it: if it is another, pass heads="
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)
# orders of the rows of a packed matrix: (H_kv, heads of a group, d) of their numbers
_ORDERS: dict[str, Callable[[Tensor, int, int], Tensor] | None] = {
    "in this order": None,
    "head by head": lambda rows, groups, d: rows.view(groups, -1, d),
    "head by head, channel by channel": lambda rows, groups, d: rows.view(groups, d, -1).mT,
    "channel by channel": lambda rows, groups, d: rows.view(d, -1, groups).transpose(0, 2),
}
_LINEAR = (nn.Linear, nn.MultiheadAttention, *_CONVOLUTIONS)
Names = dict[str, list[str]]  # of parameters, by role
Tensors = dict[str, Tensor]  # by role, or all parameters by name
Projections = Mapping[str, str] | None


def read_layer(
    module: nn.Module, heads: int | None, kv_heads: int | None, projections: Projections
) -> list[Layer]:
    """The projections of a module, in each way in which they may be meant, the likeliest first."""
    parameters, by_role = read_names(module, projections)
    if not {*"qkv"} <= {*"".join(by_role)}:
        return []
    weights = {role: _joined(parameters, names) for role, names in by_role.items()}
    biases = {r: _joined(parameters, n).flatten() for r, n in _biases(parameters, by_role).items()}
    if "qkv" in biases and "qkv" not in by_role:
        biases |= zip("qkv", biases.pop("qkv").chunk(3), strict=True)
    counts = count_heads(module, weights, by_role, heads, kv_heads)
    norms, parts = _norms(module), dict(module.named_modules())
    paths = [(role, n.rpartition(".")) for role, names in by_role.items() for n in names]
    raw = {  # a parameter that stands by itself may multiply from either side
        role
        for role, (parent, _, last) in paths
        if last != "in_proj_weight" and not isinstance(parts[parent], _LINEAR)
    }
    text = _HEADS if len(counts) > 1 else ""
    wholes = [Layer(*n, weights, biases, norms, text.format(n[0])) for n in counts]
    readings = product(
        wholes,
        (raw, set[str]()) if raw else (raw,),
        _ORDERS if by_role.keys() & {"qkv", "kv"} else ("in this order",),
    )
    layers = [_unpacked(whole, by_role, turned, packing) for whole, turned, packing in readings]
    fitting = [layer for layer in layers if layer is not None]
    return fitting or [layer for layer in map(_shared, wholes) if _fits(layer)]


def misfit(module: nn.Module, heads: int | None, projections: Projections) -> str:
    """Shapes of matrices that do not fit together; "" where not all were found."""
    parameters, by_role = read_names(module, projections)
    if not {*"qkv"} <= {*"".join(by_role)}:
        return ""
    shapes = [f"{n} {tuple(parameters[n].shape)}" for names in by_role.values() for n in names]
    count = _attribute(module, "heads") if heads is None else heads
    return (
        f"with {count} heads the projections do not fit together: {', '.join(shapes)}; q and k "
        "must give H · d_k and H_kv · d_k channels, v must give H_kv · d_v, and out must take H · "
        "d_v. Pass heads=, kv_heads= or projections="
    )


def unexplained(module: nn.Module, projections: Projections) -> list[str]:
    """Names of parameters that no part of attention explains."""
    parameters, by_role = read_names(module, projections, aliases=False)
    explained = [*by_role.values(), *_biases(parameters, by_role).values()]
    used = {_stem(name) for names in explained for name in names}
    norms = {name for name, part in module.named_modules() if _normed_role(name, part)}
    return sorted({_stem(name) for name in parameters if "sink" not in name} - used - norms)


def numbers_of(module: nn.Module | None) -> dict[str, float]:
    """Attributes that are positive numbers, of all parts, by name."""
    owned = {n: x for part in (module.modules() if module else ()) for n, x in vars(part).items()}
    return {n: x for n, x in owned.items() if type(x) in (int, float) and x > 0}


def part_of(name: str) -> str:
    """What can be passed of a part that is called so; "" where that is not known."""
    kinds = NAMES["parts that are not known"].items()
    return next((part for part, words in kinds if re.search(words, name.lower())), "")


def count_heads(
    module: nn.Module, weights: Tensors, by_role: Names, heads: int | None, kv_heads: int | None
) -> list[tuple[int, int]]:
    """H and H_kv, from what the module says and what the caller says; else what fits."""
    found, width = _attribute(module, "heads"), _attribute(module, "widths of a head")
    flat = "q" in weights and weights["q"].dim() == 2
    first = next(iter(weights.values()))  # flat, (H, d_model, d) or (d_model, H, d)
    if found is None and len(by_role.get("q", [])) > 1:
        found = len(by_role["q"])
    elif found is None and width is not None and flat:
        found = len(weights["q"]) // width
    said = _attribute(module, "key heads")
    for name, given, its in (("heads", heads, found), ("kv_heads", kv_heads, said)):
        if given is not None and its is not None and given != its:
            raise ValueError(f"{name}={given} contradicts the module, which says {its}")
    H, H_kv = found if heads is None else heads, said if kv_heads is None else kv_heads
    counts = []
    of_keys = sum(len(weights[role]) / len(role) for role in ("k", "kv") if role in weights)
    fitting = [n for n in (1, 2, 3, 4, 6, 8, 12, 16) if not len(first) % n]
    for n in (fitting if first.dim() == 2 else first.shape[:2]) if H is None else [H]:
        times, rest = divmod(of_keys * n, len(weights["q"])) if flat else (0, 1)
        counts.append((n, H_kv or (n if rest or not times else int(times))))
    return counts


def _attribute(module: nn.Module, kind: str) -> int | None:
    """The first number of one of the names of this kind that a part has, or its config."""
    for part in module.modules():
        for owner in (part, getattr(part, "config", None)):
            for value in (getattr(owner, name, None) for name in NAMES[kind].split()):
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
    return None


def read_names(
    module: nn.Module, projections: Projections, *, aliases: bool = True
) -> tuple[Tensors, Names]:
    """All parameters, and the names of the matrices of each role."""
    parameters: Tensors = dict(module.named_parameters(remove_duplicate=not aliases))
    for name, part in module.named_modules():
        own = parameters.get(f"{name}.weight")
        if isinstance(part, _CONVOLUTIONS) and own is not None and own[0, 0].numel() == 1:
            parameters[f"{name}.weight"] = own.flatten(1)  # of width 1
    by_role, given = Names(), Names()
    for role, said in (projections or {}).items():
        name = said if said in parameters else f"{said}.weight"
        if role not in NAMES["projections"] or name not in parameters:
            raise ValueError(
                f"projections must map {', '.join(NAMES['projections'])} to names of "
                f"parameters; got {role!r}: {name!r}, and there are {', '.join(parameters)}"
            )
        given[role] = [name]
    found = [n for n, p in parameters.items() if p.dim() >= 2 and not n.endswith("bias")]
    found = [name for name in found if [name] not in given.values()]
    for name in found:
        parts = [p for p in name.split(".") if p not in ("weight", "bias") and not p.isdigit()]
        spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", parts[-1] if parts else "")
        words = [word for word in spaced.lower().split("_") if word]
        empty = NAMES["words of any projection"].split()
        for ignored in (empty, [*empty, *NAMES["words of attention"].split()]):
            telling = "".join(word for word in words if word not in ignored)
            meant = _ROLES.get(telling, "out" if words and not telling else None)
            if meant is not None:
                by_role.setdefault(meant, []).append(name)
                break
    listed = [n for n in found if re.search(r"\.\d+\.weight$", n)]  # as the Annotated Transformer's
    if not {*by_role, *given} & {"q", "qkv"} and len(listed) in (3, 4):
        by_role = {r: [n] for r, n in zip(("q", "k", "v", "out"), listed, strict=False)}
    if "out" in by_role:
        by_role["out"] = by_role["out"][-1:]
    letters = {*"".join(given)}  # qkv is given with q, k and v
    return parameters, given | {role: n for role, n in by_role.items() if not letters & {*role}}


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
    for name in parameters if "qkv" in by_role else ():
        if alone := re.fullmatch(r"(?:.*\.)?([qkv])_bias", name):  # as Swin's q_bias
            found[alone[1]] = [name]
    packed = [name for name in parameters if name.endswith("in_proj_bias")]
    if packed and {"q", "k", "v"} <= by_role.keys():  # torch's, where widths differ
        found["qkv"] = packed[:1]
    return found


def _stem(name: str) -> str:
    return re.sub(r"[._]?(weight|bias)$", "", name)


def _joined(parameters: Tensors, names: list[str]) -> Tensor:
    """Matrices of single heads one under the other."""
    return torch.cat([parameters[name].detach().double() for name in names])


def _normed_role(name: str, part: nn.Module) -> str | None:
    """Role q or k, of a norm that is called after one of them."""
    last = name.rpartition(".")[2].lower()
    if match := _NORM.fullmatch(last):
        return match[1]
    words = set(last.split("_")) if "norm" in type(part).__name__.lower() else set()
    roles = [role for role, its in _OF_NORMS.items() if its & words]
    return roles[0] if len(roles) == 1 else None


def _norms(module: nn.Module) -> Tensors:
    """Gains, biases and eps of the norms of queries and keys."""
    found: Tensors = {}
    for name, part in module.named_modules():
        if not (role := _normed_role(name, part)):
            continue
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


def _unpacked(whole: Layer, names: Names, turned: set[str], packing: str) -> Layer | None:
    """With matrices (outputs, inputs) and biases by role; None where they do not fit together."""
    if not turned and any(weight.dim() == 3 for weight in whole.weights.values()):
        return None
    counts = {"q": whole.heads, "k": whole.kv_heads, "v": whole.kv_heads}
    vectors, found, texts = dict(whole.biases), Tensors(), [whole.order]
    for role, x in whole.weights.items():
        if x.dim() == 3 and role == "out":  # (H, d, d_model)
            x = x.flatten(0, 1)
        elif x.dim() == 3:  # (H, d_model, d) or (d_model, H, d)
            x = (x.transpose(0, 1) if len(x) == counts.get(role, whole.heads) else x).flatten(1)
        found[role] = x.mT if role in turned else x
    spelled = [re.search("[qkv]{3}", name.lower()) for name in names.get("qkv", [])]
    order = next((match[0] for match in spelled if match and set(match[0]) == {*"qkv"}), "qkv")
    for packed, letters in (("qkv", order), ("kv", "kv")):
        if packed not in found:
            continue
        matrix, bias = found.pop(packed), vectors.pop(packed, None)
        parts = [counts[role] for role in letters]
        if len(matrix) % sum(parts):
            return None
        unit, groups, index = len(matrix) // sum(parts), min(parts), torch.arange(len(matrix))
        lines = index.split([unit * n for n in parts])
        if arranged := _ORDERS[packing]:
            several = arranged(index, groups, unit).split([n // groups for n in parts], dim=1)
            lines = [heads.flatten() for heads in several]
        for role, at in zip(letters, lines, strict=True):
            found[role] = matrix[at]
            vectors[role] = vectors.get(role) if bias is None else bias[at]
        whose = ", ".join(_WORDS[role] for role in letters)
        text = f"the {'columns' if packed in turned else 'rows'} of {names[packed][0]} are those of"
        texts.append(f"{text} {whose}, {packing}")
    layer = replace(whole, weights=found, biases=vectors, order="; ".join(filter(None, texts)))
    return layer if _fits(layer) else None


def _shared(layer: Layer) -> Layer:
    """One small matrix of each role, by which every head projects its own part of the input."""
    weights, biases = dict(layer.weights), dict(layer.biases)
    for role in {"q", "k", "v"} & weights.keys():
        weights[role] = torch.kron(torch.eye(layer.heads).double(), weights[role])
        bias = biases.get(role)
        biases[role] = None if bias is None else bias.repeat(layer.heads)
    return replace(layer, weights=weights, biases=biases, shared=True)


def _fits(layer: Layer) -> bool:
    """Whether queries meet keys of their width, and all else has a number of lines that fits."""
    x, H, H_kv = layer.weights, layer.heads, layer.kv_heads
    if not {"q", "k", "v"} <= x.keys() or any(w.dim() != 2 for w in x.values()):
        return False
    widths = {role: len(x[role]) / n for role, n in (("q", H), ("k", H_kv), ("v", H_kv))}
    return (
        all(width.is_integer() for width in widths.values())
        and widths["q"] == widths["k"]
        and ("out" not in x or x["out"].shape[1] == H * widths["v"])
        and all(b is None or b.numel() == len(x[r]) for r, b in layer.biases.items() if r in x)
    )


def make_random(module: nn.Module) -> None:
    """Let constant parameters of a copy be random, so that no bias or gain hides a mistake."""
    module.eval()
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in module.parameters():
            if p.is_floating_point() and p.numel() > 1:
                p.requires_grad_(True)
                if bool((p == p.flatten()[0]).all()):
                    size = 0.3 if p.dim() < 2 else p.shape[-1] ** -0.5
                    p.add_((size * torch.randn(p.shape, generator=draw)).to(p))
