"""Calls that leave no trace: modes, random states, tensors and the terminal stay as they were."""

import copy
import functools
import io
import random
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

_STORES = (list, dict, set, Tensor, nn.Module)  # what a call may write into
_DROPOUTS: set[Any] = {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout}
_DROPOUTS |= {F.feature_alpha_dropout, torch.dropout, torch.dropout_, torch.alpha_dropout}
_DROPOUTS |= {torch.feature_dropout, torch.native_dropout}


@contextmanager
def quietly() -> Iterator[None]:
    """Restore the random states of torch, numpy and Python, and print and warn nothing."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                yield
    finally:
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


def copied(fn: Callable, module: nn.Module | None) -> tuple[Callable, nn.Module | None]:
    """A copy of a callable, with what it remembers, and the copy's own module."""
    memo: dict[int, Any] = {}
    try:
        with _Detached():
            twin = _copied(fn, memo)
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
