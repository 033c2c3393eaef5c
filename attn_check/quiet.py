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
from torch.overrides import TorchFunctionMode

_STORES = (list, dict, set, Tensor, nn.Module)  # what a call may write into
_KEEPING = (*_STORES, int, float, type(None))  # what a global name may keep
_DROPOUTS = {
    F.dropout,
    F.dropout1d,
    F.dropout2d,
    F.dropout3d,
    F.alpha_dropout,
    F.feature_alpha_dropout,
    torch.dropout,
    torch.dropout_,
    torch.alpha_dropout,
    torch.feature_dropout,
    torch.native_dropout,
}


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
    parts = [] if module is None else list(module.modules())
    modes = [part.training for part in parts]
    buffers = {} if module is None else {n: b.clone() for n, b in module.named_buffers()}
    try:
        yield
    finally:
        for part, mode in zip(parts, modes, strict=True):
            part.training = mode
        now = {} if module is None else dict(module.named_buffers())
        with torch.no_grad():
            for name, before in buffers.items():
                if name in now and now[name].shape == before.shape:
                    now[name].copy_(before)


class _Detached(TorchFunctionMode):
    """Tensors with a history, which a module may keep of an earlier call, can be copied too."""

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Copy what ``copy.deepcopy`` refuses; let through all else."""
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            args[1][id(args[0])] = args[0].detach().clone()
            return args[1][id(args[0])]
        return func(*args, **(kwargs or {}))


class WithoutDropout(TorchFunctionMode):
    """Every dropout inside returns its input; ``dropped`` are those of which it would drop."""

    def __init__(self) -> None:
        super().__init__()
        self.dropped: list[Tensor] = []

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Let through all calls but those of dropout."""
        kwargs = dict(kwargs or {})
        if func in _DROPOUTS:
            p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
            training = kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else 1))
            x = args[0] if args else kwargs["input"]
            self.dropped += [x] if training and p else []
            return (x, torch.ones_like(x)) if func is torch.native_dropout else x
        if func is F.multi_head_attention_forward:
            kwargs["training"] = False
        if func is F.scaled_dot_product_attention:
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
            elif "dropout_p" in kwargs:
                kwargs["dropout_p"] = 0.0
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
    if isinstance(fn, types.FunctionType):
        ours = ours and "site-packages" not in str(fn.__globals__.get("__file__"))
        cells = fn.__closure__
        if cells is not None:
            parts = [_copied(c.cell_contents, memo, ours=ours) for c in cells]
            cells = tuple(map(types.CellType, parts))
        known = _globals(fn, memo) if ours else fn.__globals__
        if cells is None and known is fn.__globals__ and not (ours and _stores(fn)):
            return fn
        return _twin(fn, known, cells, memo)
    if isinstance(fn, types.MethodType):
        return types.MethodType(_copied(fn.__func__, memo), _copied(fn.__self__, memo))
    if isinstance(fn, functools.partial):
        options = {name: _copied(value, memo) for name, value in fn.keywords.items()}
        return functools.partial(
            _copied(fn.func, memo), *(_copied(value, memo) for value in fn.args), **options
        )
    return copy.deepcopy(fn, memo)


def _stores(fn: types.FunctionType) -> bool:
    """Whether a default argument of a function may keep something."""
    defaults = (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values())
    return any(isinstance(value, _STORES) for value in defaults)


def _twin(fn: types.FunctionType, known: dict, cells: tuple | None, memo: dict) -> Callable:
    def own(value: Any) -> Any:
        return copy.deepcopy(value, memo) if isinstance(value, _STORES) else value

    defaults = fn.__defaults__ and tuple(map(own, fn.__defaults__))
    twin = types.FunctionType(fn.__code__, known, fn.__name__, defaults, cells)
    given = fn.__kwdefaults__
    twin.__kwdefaults__ = given and {name: own(value) for name, value in given.items()}
    twin.__dict__.update(copy.deepcopy(fn.__dict__, memo))
    return twin


def _globals(fn: types.FunctionType, memo: dict[int, Any]) -> dict[str, Any]:
    """Global names of a copy of their own, where the function may keep something in them."""
    helpers, names, new = {"": fn}, set[str](), [fn]
    while new:
        used = {name for name in _names(new.pop().__code__) if name in fn.__globals__} - names
        names |= used
        for name in used:
            value = fn.__globals__[name]
            if isinstance(value, types.FunctionType) and value.__globals__ is fn.__globals__:
                helpers[name] = value
                new.append(value)
    kept = {n for n in names if isinstance(fn.__globals__[n], _KEEPING)}
    if not kept and not any(_stores(f) for name, f in helpers.items() if name):
        return fn.__globals__
    known = dict(fn.__globals__)
    known |= {name: copy.deepcopy(known[name], memo) for name in kept}
    known |= {n: _twin(f, known, f.__closure__, memo) for n, f in helpers.items() if n}
    return known


def _names(code: types.CodeType) -> set[str]:
    """Global names in a function, and in functions within it."""
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def make_random(module: nn.Module) -> None:
    """Let constant parameters of a copy be random, so that no bias or gain hides a mistake."""
    module.eval()
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in module.parameters():
            if not parameter.is_floating_point() or parameter.numel() < 2:
                continue
            parameter.requires_grad_(True)
            if bool((parameter == parameter.flatten()[0]).all()):
                noise = torch.randn(parameter.shape, generator=draw)
                size = 0.3 if parameter.dim() < 2 else parameter.shape[-1] ** -0.5
                parameter.add_((size * noise).to(parameter))
