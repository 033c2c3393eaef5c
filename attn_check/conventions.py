"""How a function is called: the roles of its arguments, and the layouts of what they hold."""

import inspect
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from attn_check.reference import Case, Layer

_NAMES = {
    "q": {"q", "query", "queries", "xq", "qs"},
    "k": {"k", "key", "keys", "xk", "ks"},
    "v": {"v", "value", "values", "xv", "vs", "val"},
    "x": {"x", "hidden_states", "input", "inputs", "tokens", "src", "tgt", "embeddings", "hidden"}
    | {"embeds", "x_q", "inp", "sequence", "seq", "query_states", "input_tensor"},
    "context": {"context", "encoder_hidden_states", "memory", "source", "y", "kv", "x_kv", "ctx"}
    | {"key_value_states", "enc", "encoder_output", "cond"},
    "mask": {"mask", "attn_mask", "attention_mask", "padding_mask", "key_padding_mask", "m"}
    | {"pad_mask", "src_mask", "key_mask", "masks", "allowed", "keep", "valid", "valid_mask"}
    | {"pad", "padding", "is_pad", "is_padding", "memory_pad", "memory_mask", "context_mask"}
    | {"memory_key_padding_mask", "src_key_padding_mask", "encoder_attention_mask", "kv_mask"},
    "causal": {"causal", "is_causal"},
    "heads": {"h", "heads", "n_heads", "num_heads", "n_head", "num_head", "nhead", "nheads"}
    | {"num_attention_heads"},
    "cache": {"cache", "past", "past_key_value", "past_key_values", "kv_cache", "layer_past"},
}
_OTHERS = ("causal", "cache", "heads")  # no tensors


def default_of(fn: Callable, name: str) -> Any:
    """The default of a parameter, or ``inspect.Parameter.empty`` where there is none."""
    try:
        called = fn.forward if isinstance(fn, nn.Module) else fn
        return inspect.signature(called).parameters[name].default
    except (TypeError, ValueError, KeyError):
        return inspect.Parameter.empty


_RATES = ("dropout", "dropout_p", "p_dropout", "dropout_rate", "attn_dropout", "p_drop")


def never_passed(
    fn: Callable, positional: list[str], named: dict[str, str], *known: str, steps: bool = False
) -> list[str]:
    """Sentences about the parameters that no call is given."""
    try:
        called = fn.forward if isinstance(fn, nn.Module) else fn
        parameters = list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):
        return []
    fixed = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    left = [name for name in fixed[len(positional) :] if name not in {*named, *known}]
    rates = [name for name in left if name in _RATES]
    caches = [name for name in left if _role(name) == "cache"]
    left = [name for name in left if name not in {*rates, *caches}]
    texts = [f"dropout: {name} was left at its default" for name in rates]
    texts += [f"the cache ({name}): pass step= to have it checked" for name in caches if not steps]
    if left:
        shown = ", ".join(left)
        words = "to have them checked pass arguments= or options="
        texts.append(f"parameters that were never passed: {shown}; {words}")
    return texts


def read_arguments(
    fn: Callable, text: str | None
) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """Roles of positional arguments, of named ones, and of further parameters of the function."""
    if text is not None:
        return _said(text)
    if fn is F.scaled_dot_product_attention:
        return ["q", "k", "v"], {"attn_mask": "mask"}, {"is_causal": "causal"}
    try:
        called = fn.forward if isinstance(fn, nn.Module) else fn
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):
        return ["q", "k", "v"], {}, {}
    hidden = "h" if isinstance(getattr(fn, "__self__", fn), nn.Module) else ""  # a state
    positional, named, others = list[str](), dict[str, str](), dict[str, str]()
    for parameter in parameters:
        role = _role(parameter.name) if parameter.name != hidden else None
        required = parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        )
        if role in _OTHERS:
            others[parameter.name] = role
        elif role is not None and role not in named.values():
            if parameter.kind is parameter.POSITIONAL_ONLY:
                positional.append(role)
            else:
                named[parameter.name] = role
        elif required:
            raise ValueError(
                f"the role of the parameter {parameter.name!r} is not known: pass arguments=, "
                'for instance arguments="q, k, v, mask" or arguments="x, memory=context"'
            )
    roles = {*positional, *named.values()}
    if not ({"q", "k", "v"} <= roles or "x" in roles or "q" in roles):
        raise ValueError(
            "fn must take q, k and v, or x: say which of its parameters these are with "
            'arguments=, for instance arguments="q, k, v" or arguments="x"'
        )
    return positional, named, others


def _said(text: str) -> tuple[list[str], dict[str, str], dict[str, str]]:
    positional: list[str] = []
    named: dict[str, str] = {}
    others: dict[str, str] = {}
    for item in text.replace(",", " ").split():
        name, equals, role = item.partition("=")
        role = role or name
        if role not in _NAMES:
            role = _role(role) or role
        if role not in _NAMES:
            raise ValueError(f"arguments must name the roles {', '.join(_NAMES)}; got {role!r}")
        if role in _OTHERS:
            others[name] = role
        elif equals:
            named[name] = role
        else:
            positional.append(role)
    return positional, named, others


def _role(name: str) -> str | None:
    plain = name.strip("_")
    plain = plain if plain in ("Q", "K", "V", "X") else plain.lower()
    return next((role for role, names in _NAMES.items() if plain.lower() in names), None)


LAYOUTS = ("BHTd", "BTHd", "TBHd", "HTd", "THd", "BTd", "TBd", "Td")
SHAPES = ("B1TS", "BTS", "BS", "TS", "B11S", "BHTS")
POLARITIES = ("attend", "blocked", "additive")


def to_layout(x: Tensor, layout: str, merged: bool, heads: int) -> Tensor:
    """A canonical tensor, (B, H, T, d) or (B, T, H · d), in the layout of the function."""
    if merged and "H" in layout:
        x = x.unflatten(-1, (heads, -1)).transpose(1, 2)
    letters = "BHTd" if x.dim() == 4 else "BTd"
    for letter in "BH":
        if letter in letters and letter not in layout:
            x = x.squeeze(letters.index(letter))
            letters = letters.replace(letter, "")
    return x.permute([letters.index(letter) for letter in layout]).contiguous()


def from_layout(out: Tensor, layout: str, case: Case, projects: bool) -> Tensor:
    """The output in double precision, in the layout of the case."""
    T, _ = case.lengths
    out = out.detach().double() if not out.requires_grad else out.double()
    if projects or "H" not in layout or out.dim() == len(layout) - 1:
        letters = layout.replace("H", "") if "H" in layout else layout
        letters = "BTd" if "H" in layout else letters
    else:
        letters = layout
        sizes = {"B": case.batch, "H": case.heads, "T": T}
        expected = [sizes.get(letter) for letter in letters[:-1]]
        if list(out.shape[:-1]) != expected:
            for other in ("BTHd", "BHTd", "TBHd"):
                if list(out.shape[:-1]) == [sizes.get(letter) for letter in other[:-1]]:
                    letters = other
    out = out[None] if "B" not in letters else out
    letters = letters if "B" in letters else "B" + letters
    target = "BHTd" if "H" in letters else "BTd"
    out = out.permute([letters.index(letter) for letter in target])
    if "H" in letters and case.merged:
        return out.transpose(1, 2).flatten(-2)
    if "H" not in letters and not case.merged and not projects:
        return out.unflatten(-1, (case.heads, -1)).transpose(1, 2)
    return out


def shaped(mask: Tensor, shape: str) -> Tensor:
    """A mask (B, T, S), or (B, H, T, S), in another shape, without a loss."""
    full = mask if mask.dim() == 4 else mask[:, None]
    if "T" not in shape and not bool((full == full[:, :, :1]).all()):
        raise ValueError(f"a mask of shape {shape} closes keys for all queries")
    if "B" not in shape and not bool((full == full[:1]).all()):
        raise ValueError(f"a mask of shape {shape} is the same for all examples")
    if shape == "TS":
        return full[0, 0]
    if shape == "BS":
        return full[:, 0, 0]
    if shape == "BTS":
        return full[:, 0]
    return full[:, :, :1] if shape == "B11S" else full


def output_shape(case: Case, layer: Layer | None) -> tuple[int, ...]:
    """The shape of the formula's output."""
    T, _ = case.lengths
    if layer is not None:
        rows = layer.weights["v"].shape[0] // layer.kv_heads * layer.heads
        out = layer.weights.get("out")
        return case.batch, T, rows if out is None else out.shape[0]
    d_v = case.tensors["v"].shape[-1]
    if case.merged:
        return case.batch, T, d_v // case.kv_heads * case.heads
    return *case.tensors["q"].shape[:-1], d_v
