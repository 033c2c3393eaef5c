"""How a function is called: argument roles, layouts of what they hold, no trace left behind."""

import copy
import functools
import inspect
import io
import json
import logging
import random
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from inspect import Parameter
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attn_check.reference import Case, Layer

LAYOUTS = ("BHTd", "BTHd", "TBHd", "HTd", "THd", "BTd", "TBd", "Td")
IMAGES = ("BdYX", "BYXd")  # with rows and columns of pixels
SHAPES = ("B1TS", "BTS", "BS", "TS", "B11S", "BHTS")
POLARITIES = ("attend", "blocked", "additive")
PAIRINGS = {"half": "halves (i, i + d/2)", "neighbours": "neighbours (2i, 2i + 1)"}
# names that people give to arguments, projections and sizes
NAMES = json.loads(Path(__file__).with_name("names.json").read_text(encoding="utf-8"))
_NO_TENSORS = ("causal", "cache", "heads")
Arguments = tuple[list[str], dict[str, str], dict[str, str]]
_STORES = (list, dict, set, Tensor, nn.Module)  # what a call may write into
_DROPOUTS: set[Any] = {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout}
_DROPOUTS |= {F.feature_alpha_dropout, torch.dropout, torch.dropout_, torch.alpha_dropout}
_DROPOUTS |= {torch.feature_dropout, torch.native_dropout}


def roles_of(kind: str) -> dict[str, str]:
    """What each of the names that people give stands for."""
    return {name: role for role, names in NAMES[kind].items() for name in names.split()}


_ROLES = roles_of("arguments")


def default_of(fn: Callable, name: str) -> Any:
    """The default of a parameter: ``Parameter.empty`` if it has none, None if fn has none such."""
    return next((p.default for p in parameters_of(fn) or () if p.name == name), None)


def never_passed(fn: Callable, positional: list[str], passed: set[str], steps: bool) -> list[str]:
    """Sentences about the parameters that no call is given."""
    names = [p.name for p in parameters_of(fn) or ()][len(positional) :]
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
    roles, own = {*positional, *named.values()}, "context_mask"
    if not {"mask", "context"} <= roles:  # the only mask, whatever its name
        other = "mask" if "mask" not in roles else ""
        positional = [other if role == own else role for role in positional]
        named = {n: other if role == own else role for n, role in named.items()}
    return [*filter(None, positional)], {n: r for n, r in named.items() if r}, others


def _from_signature(fn: Callable) -> str:
    """What a caller could have passed as ``arguments=``."""
    parameters = parameters_of(fn)
    if parameters is None:
        further = ", attn_mask=mask, is_causal=causal"
        return "q, k, v" + (further if fn is F.scaled_dot_product_attention else "")
    state = "h" if isinstance(getattr(fn, "__self__", fn), nn.Module) else ""  # of a module
    items, roles = list[str](), set[str]()
    needed = [p.name for p in parameters if p.default is p.empty]
    for p in parameters:
        role = _role(p.name) if p.name != state else None
        if role is None and state and needed == [p.name]:
            role = "x"  # a module's only input, whatever its name
        if role is not None and (role not in roles or role in _NO_TENSORS):
            items.append(role if p.kind is p.POSITIONAL_ONLY else f"{p.name}={role}")
            roles.add(role)
        elif p.default is p.empty:
            raise ValueError(
                f"the role of the parameter {p.name!r} is not known: pass arguments=, "
                'for instance arguments="q, k, v, mask" or arguments="x, memory=context"'
            )
    return ", ".join(items)


def parameters_of(fn: Callable) -> list[Parameter] | None:
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
    if "Y" in layout:
        x, letters = x.unflatten(1, (2 - x.shape[1] % 2, -1)), "BYXd"
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
    axes = "BHTd" if "H" in letters else "BYXd" if "Y" in letters else "BTd"
    out = out.permute([letters.index(c) for c in axes]).cpu().double()
    out = out.flatten(1, 2) if "Y" in letters else out
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


@contextmanager
def quietly() -> Iterator[None]:
    """Restore the random states of torch, numpy and Python, and print and warn nothing."""
    python, numpy, logged = random.getstate(), np.random.get_state(), logging.root.manager.disable
    logging.disable(max(logged, logging.WARNING))
    gpus = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
    try:
        with torch.random.fork_rng(gpus), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                yield
    finally:
        logging.disable(logged)
        random.setstate(python)
        np.random.set_state(numpy)


@contextmanager
def unchanged(module: nn.Module | None) -> Iterator[None]:
    """Restore a module's modes and buffers: also of one that cannot be copied."""
    module = nn.Module() if module is None else module
    modes = [(part, part.training) for part in module.modules()]
    buffers = {name: buffer.detach().clone() for name, buffer in module.named_buffers()}
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
        for name, buffer in module.named_buffers():
            if name in buffers and buffer.shape == buffers[name].shape:
                buffer.detach().copy_(buffers[name])


class _Detached(torch.overrides.TorchFunctionMode):
    """Tensors with a history, which a module may keep of an earlier call, can be copied too."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            return args[1].setdefault(id(args[0]), args[0].detach().clone())
        return func(*args, **(kwargs or {}))


class WithoutDropout(torch.overrides.TorchFunctionMode):
    """Every dropout inside returns its input; ``dropped`` are those of which it would drop."""

    def __init__(self) -> None:
        super().__init__()
        self.dropped: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in _DROPOUTS:
            given = dict(zip(("input", "p", "training"), args, strict=False)) | kwargs
            x, training = given["input"], given.get("training", given.get("train", True))
            self.dropped += [x] if training and given.get("p", 0.5) else []
            return (x, torch.ones_like(x)) if func is torch.native_dropout else x
        if func is F.multi_head_attention_forward:
            kwargs["training"] = False
        if func is F.scaled_dot_product_attention:
            kwargs |= dict(zip(("dropout_p", "is_causal"), args[4:], strict=False))
            args, kwargs["dropout_p"] = args[:4], 0.0
        return func(*args, **kwargs)


def copied(
    fn: Callable, module: nn.Module | None, *, to_cpu: bool = False
) -> tuple[Callable, nn.Module | None]:
    """A copy of a callable, with what it remembers, and the copy's own module."""
    memo: dict[int, Any] = {}
    try:
        with _Detached():
            twin = _copied(fn, memo)
        for x in memo.values():
            if to_cpu and isinstance(x, Tensor) and x.device.type not in ("cpu", "meta"):
                x.data = x.data.cpu()
        # a module that fn does not know by a name is not part of the copy: then it is itself
        return twin, None if module is None else memo.get(id(module), module)
    except Exception:  # whatever a part of it raises
        return fn, module


def _copied(fn: Any, memo: dict[int, Any], *, ours: bool = True) -> Any:
    """A copy; ``ours`` is whether no installed package stands around it, which may compile it."""
    if isinstance(fn, types.MethodType):
        return types.MethodType(_copied(fn.__func__, memo), _copied(fn.__self__, memo))
    if isinstance(fn, functools.partial):
        args = [_copied(value, memo) for value in fn.args]
        options = {name: _copied(value, memo) for name, value in fn.keywords.items()}
        return functools.partial(_copied(fn.func, memo), *args, **options)
    if not isinstance(fn, types.FunctionType):
        return copy.deepcopy(fn, memo)
    ours = ours and "site-packages" not in str(fn.__globals__.get("__file__"))
    inside = [_copied(cell.cell_contents, memo, ours=ours) for cell in fn.__closure__ or ()]
    known = _globals(fn, memo) if ours else fn.__globals__
    if not inside and known is fn.__globals__ and not (ours and _stores(fn)):
        return fn
    return _twin(fn, known, tuple(map(types.CellType, inside)), memo)


def _stores(fn: types.FunctionType) -> bool:
    defaults = (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values())
    return any(isinstance(value, _STORES) for value in defaults)


def _twin(fn: types.FunctionType, known: dict, cells: tuple | None, memo: dict) -> Callable:
    def own(value: Any) -> Any:
        return copy.deepcopy(value, memo) if isinstance(value, _STORES) else value

    twin = types.FunctionType(fn.__code__, known, fn.__name__, None, cells or None)
    twin.__defaults__ = fn.__defaults__ and tuple(map(own, fn.__defaults__))
    twin.__kwdefaults__ = {name: own(value) for name, value in (fn.__kwdefaults__ or {}).items()}
    twin.__dict__.update(copy.deepcopy(fn.__dict__, memo))
    return twin


def _globals(fn: types.FunctionType, memo: dict[int, Any]) -> dict[str, Any]:
    """Global names of a copy of their own, where the function may keep something in them."""
    known, codes = fn.__globals__, [fn.__code__]
    found, helpers = dict[str, Any](), dict[str, types.FunctionType]()
    for code in codes:  # while it grows: by functions within the function and beside it
        used = {n: known[n] for n in code.co_names if n in known and n not in found}
        functions = {n: f for n, f in used.items() if isinstance(f, types.FunctionType)}
        beside = {n: f for n, f in functions.items() if f.__globals__ is known}
        found, helpers = found | used, helpers | beside
        codes += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
        codes += [helper.__code__ for helper in beside.values()]
    kept = {n: v for n, v in found.items() if isinstance(v, (*_STORES, int, float, type(None)))}
    if not kept and not any(map(_stores, helpers.values())):
        return known
    own = known | {name: copy.deepcopy(value, memo) for name, value in kept.items()}
    own |= {name: _twin(f, own, f.__closure__, memo) for name, f in helpers.items()}
    return own
