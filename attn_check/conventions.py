"""How a function is called: the roles of its arguments, and the layouts of what they hold."""

import inspect
import json
from collections.abc import Callable
from inspect import Parameter
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from attn_check.reference import Case, Layer

LAYOUTS = ("BHTd", "BTHd", "TBHd", "HTd", "THd", "BTd", "TBd", "Td")
SHAPES = ("B1TS", "BTS", "BS", "TS", "B11S", "BHTS")
POLARITIES = ("attend", "blocked", "additive")
# names that people give to arguments, projections and sizes
NAMES = json.loads(Path(__file__).with_name("names.json").read_text(encoding="utf-8"))
_ROLES = {name: role for role, names in NAMES["arguments"].items() for name in names.split()}
_NO_TENSORS = ("causal", "cache", "heads")
Arguments = tuple[list[str], dict[str, str], dict[str, str]]


def default_of(fn: Callable, name: str) -> Any:
    """The default of a parameter: ``Parameter.empty`` if it has none, None if fn has none such."""
    return next((p.default for p in _parameters(fn) or () if p.name == name), None)


def never_passed(fn: Callable, positional: list[str], passed: set[str], steps: bool) -> list[str]:
    """Sentences about the parameters that no call is given."""
    names = [p.name for p in _parameters(fn) or ()][len(positional) :]
    texts, others = [], []
    for name in (name for name in names if name not in passed):
        if name in NAMES["dropout rates"].split():
            texts.append(f"dropout: {name} was left at its default")
        elif _role(name) != "cache":
            others.append(name)
        elif not steps:
            texts.append(f"the cache ({name}): pass step= to have it checked")
    words = f"{', '.join(others)}; to have them checked pass arguments= or options="
    return texts + [f"parameters that were never passed: {words}"] * bool(others)


def read_arguments(fn: Callable, text: str | None) -> Arguments:
    """Roles of positional arguments, of named ones, and of further parameters of the function."""
    positional, named, others = list[str](), dict[str, str](), dict[str, str]()
    for item in (_from_signature(fn) if text is None else text).replace(",", " ").split():
        name, equals, given = item.partition("=")
        role = _role(given or name)
        if role is None:
            known = ", ".join(NAMES["arguments"])
            raise ValueError(f"arguments must name the roles {known}; got {given or name!r}")
        if role in _NO_TENSORS:
            others[name] = role
        elif equals:
            named[name] = role
        else:
            positional.append(role)
    if text is None and not {"q", "x"} & {*positional, *named.values()}:
        raise ValueError(
            "fn must take q, k and v, or x: say which of its parameters these are with "
            'arguments=, for instance arguments="q, k, v" or arguments="x"'
        )
    return positional, named, others


def _from_signature(fn: Callable) -> str:
    """What a caller could have passed as ``arguments=``."""
    parameters = _parameters(fn)
    if parameters is None:
        further = ", attn_mask=mask, is_causal=causal"
        return "q, k, v" + (further if fn is F.scaled_dot_product_attention else "")
    state = "h" if isinstance(getattr(fn, "__self__", fn), nn.Module) else ""  # of a module
    items, roles = list[str](), set[str]()
    for p in parameters:
        role = _role(p.name) if p.name != state else None
        if role is not None and (role not in roles or role in _NO_TENSORS):
            items.append(role if p.kind is p.POSITIONAL_ONLY else f"{p.name}={role}")
            roles.add(role)
        elif p.default is p.empty:
            raise ValueError(
                f"the role of the parameter {p.name!r} is not known: pass arguments=, "
                'for instance arguments="q, k, v, mask" or arguments="x, memory=context"'
            )
    return ", ".join(items)


def _parameters(fn: Callable) -> list[Parameter] | None:
    """Those that have a name of their own; None where a function, written in C, tells none."""
    try:
        called = inspect.signature(fn.forward if isinstance(fn, nn.Module) else fn)
    except (TypeError, ValueError):
        return None
    return [p for p in called.parameters.values() if not p.kind.name.startswith("VAR_")]


def _role(name: str) -> str | None:
    return _ROLES.get(name.strip("_").lower())


def to_layout(x: Tensor, layout: str, merged: bool, heads: int) -> Tensor:
    """A canonical tensor, (B, H, T, d) or (B, T, H · d), in the layout of the function."""
    if merged and "H" in layout:
        x = x.unflatten(-1, (heads, -1)).transpose(1, 2)
    letters = "BHTd" if x.dim() == 4 else "BTd"
    x = x.squeeze(tuple(i for i, letter in enumerate(letters) if letter not in layout))
    letters = "".join(letter for letter in letters if letter in layout)
    return x.permute([letters.index(letter) for letter in layout]).contiguous()


def from_layout(out: Tensor, layout: str, case: Case, projects: bool) -> Tensor:
    """The output in double precision, in the layout of the case."""
    if projects or "H" not in layout or out.dim() == len(layout) - 1:
        letters = "BTd" if "H" in layout else layout
    else:  # the layout of the arguments, or one that has the shape
        sizes = {"B": case.batch, "H": case.heads, "T": case.lengths[0]}
        layouts = ("BTHd", "BHTd", "TBHd", layout)  # the last that fits
        by_shape = {tuple(sizes[c] for c in letters[:-1]): letters for letters in layouts}
        letters = by_shape.get(tuple(out.shape[:-1]), layout)
    if "B" not in letters:
        out, letters = out[None], "B" + letters
    out = out.permute([letters.index(c) for c in ("BHTd" if "H" in letters else "BTd")]).double()
    if "H" in letters and case.merged:
        return out.transpose(1, 2).flatten(-2)
    whole = "H" not in letters and not case.merged and not projects
    return out.unflatten(-1, (case.heads, -1)).transpose(1, 2) if whole else out


def shaped(mask: Tensor, shape: str) -> Tensor:
    """A mask (B, T, S), or (B, H, T, S), in another shape, without a loss."""
    full = mask if mask.dim() == 4 else mask[:, None]
    if "T" not in shape and not bool((full == full[:, :, :1]).all()):
        raise ValueError(f"a mask of shape {shape} closes keys for all queries")
    if "B" not in shape and not bool((full == full[:1]).all()):
        raise ValueError(f"a mask of shape {shape} is the same for all examples")
    parts = {"TS": full[0, 0], "BS": full[:, 0, 0], "BTS": full[:, 0], "B11S": full[:, :, :1]}
    return parts.get(shape, full)


def output_shape(case: Case, layer: Layer | None) -> tuple[int, ...]:
    """The shape of the formula's output."""
    if layer is not None:
        values, out = layer.weights["v"], layer.weights.get("out")
        width = len(values) // layer.kv_heads * layer.heads if out is None else len(out)
    elif case.merged:
        width = case.tensors["v"].shape[-1] // case.kv_heads * case.heads
    else:
        return *case.tensors["q"].shape[:-1], case.tensors["v"].shape[-1]
    return case.batch, case.lengths[0], width
