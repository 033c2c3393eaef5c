"""The attention weights of any PyTorch model, seen while it runs.

A mode of ``torch.overrides`` sees the arguments of each attention call of this thread; hooks on
all modules say inside which module of the model it happens. Nothing is added to the model.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from threading import Lock, get_ident
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from attn_lib.functional import attention

_asking: ContextVar[bool] = ContextVar("_asking", default=False)
"""Whether this thread asks for weights just now: an outer recording must not record that."""

_registering = Lock()  # PyTorch numbers its hooks without one: two threads may get one number


@contextmanager
def record_attention(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Inside the ``with`` block, keep the attention weights of every call in a model.

    It works on any model that calls ``F.scaled_dot_product_attention``, ``nn.MultiheadAttention``
    or :func:`attn_lib.functional.attention`. The weights are computed a second time, beside the
    model, from the very arguments of the call; the model's outputs, gradients and random numbers
    stay the same, bit for bit. One exception is PyTorch's own: in evaluation without gradients,
    ``nn.MultiheadAttention`` and ``nn.TransformerEncoder`` use a fused kernel, which they leave
    while a recording runs. Their outputs then move by rounding, and padded positions that the
    kernel sets to zero hold numbers.

    Only calls inside ``model``, in this thread, inside the block are recorded. Compiled graphs hide
    their calls: a model of which any part ran compiled raises on leaving, if ``torch.compile``
    did not refuse to run beside a recording. A part that is scripted, calls ``torch.ops.aten…``
    or writes its softmax by hand is skipped unnoticed, if any other part is seen. Where NaN
    parameters vanish in the fused kernel, the weights show them.

    Args:
        model: any module.

    Yields:
        Name of the innermost running module, as in ``model.named_modules()``, to the weights of
        its latest call, before dropout, detached, in the dtype in which the call computed:
        (B, H, T, S), or the leading axes of the call's query where it has others. A model that
        itself makes the call has the name ``""``. Further calls of one module in one pass are
        ``"name#2"``, ``"name#3"``; a new pass, which is a call of ``model`` or of a part of it
        from outside, overwrites them. Rows sum to 1, or to 0 where nothing may be attended to.

    Raises:
        TypeError: ``model`` is not a module.
        RuntimeError: on leaving a block that raised nothing itself: the model did not run in it,
            made no call that can be seen, or ran compiled in any part.

    Example:
        >>> layer = nn.MultiheadAttention(4, 2, batch_first=True)
        >>> x = torch.zeros(1, 3, 4)
        >>> with record_attention(layer) as maps:
        ...     out, _ = layer(x, x, x, need_weights=False)
        >>> maps[""].shape
        torch.Size([1, 2, 3, 3])
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
    recorder = _Recorder(model)
    with _registering:
        handles = [
            register_module_forward_pre_hook(recorder.enter),
            register_module_forward_hook(recorder.leave, always_call=True),
        ]
    try:
        with recorder:
            yield recorder.maps
    finally:
        with _registering:
            for handle in handles:
                handle.remove()
    recorder.check(type(model).__name__)


class _Recorder(TorchFunctionMode):
    """Sees every attention call of this thread, and keeps those inside one model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.names = {module: name for name, module in model.named_modules()}
        self.thread = get_ident()
        self.running: list[str] = []  # names, outermost first
        self.calls: Counter[str] = Counter()  # by name, in this pass
        self.maps: dict[str, Tensor] = {}
        self.ran = self.found = self.hidden = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """The call, and after it the weights."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if torch.compiler.is_compiling():
            if self.running:
                self.hidden = True  # part of what is traced: each call of the graph repeats it
        elif func in _WEIGHTS and self.running and not _asking.get():
            token = _asking.set(True)
            try:
                with torch.no_grad():
                    self.keep(_WEIGHTS[func](out, *args, **kwargs))
            finally:
                _asking.reset(token)
        return out

    def keep(self, weights: Tensor) -> None:
        name = self.running[-1]
        self.found = True
        self.calls[name] += 1
        if self.calls[name] == 1:
            for old in [key for key in self.maps if key.startswith(f"{name}#")]:
                del self.maps[old]  # of an earlier pass
            self.maps[name] = weights.detach()
        else:
            self.maps[f"{name}#{self.calls[name]}"] = weights.detach()

    def enter(self, module: nn.Module, args: Any) -> None:
        if self.knows(module):
            if not self.running:
                self.calls.clear()
            self.ran = True
            self.running.append(self.names[module])

    def leave(self, module: nn.Module, args: Any, out: Any) -> None:
        if self.knows(module) and self.running[-1:] == [self.names[module]]:
            self.running.pop()

    def knows(self, module: nn.Module) -> bool:
        if torch.compiler.is_compiling() or get_ident() != self.thread:
            return False
        return module in self.names

    def check(self, kind: str) -> None:
        if self.hidden:
            raise RuntimeError(
                f"a part of {kind} ran compiled, and what happens inside a compiled graph cannot "
                "be recorded: run the block under torch.compiler.set_stance('force_eager')"
            )
        if not self.ran:
            raise RuntimeError(
                f"{kind} did not run inside the block of record_attention (or ran only compiled, "
                "or in another thread): call the very model that was given, uncompiled"
            )
        if not self.found:
            raise RuntimeError(
                f"{kind} ran, but nothing could be recorded: it never called "
                "F.scaled_dot_product_attention or nn.MultiheadAttention where this thread can "
                "see it. Load a transformers model with attn_implementation='sdpa'; run a "
                "compiled, scripted or traced model as the plain module that it was made from"
            )


def _of_kernel(
    out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """(..., T, S) weights behind F.scaled_dot_product_attention, by its documentation."""
    if query.is_nested:
        return _of_nested(query, key, is_causal, scale, enable_gqa)
    q, k, bias = query, key, attn_mask
    if not q.is_meta and torch.is_autocast_enabled(q.device.type):  # what the kernel was given
        q, k = q.to(out.dtype), k.to(out.dtype)
        bias = bias.to(out.dtype) if bias is not None and bias.is_floating_point() else bias
    return _weights(q, k, bias, is_causal, scale, enable_gqa)


def _weights(
    q: Tensor,
    k: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    dtype, device = q.dtype, q.device
    if dtype in (torch.float16, torch.bfloat16):
        q, k = q.float(), k.float()
    if enable_gqa:
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3)
    with nullcontext() if q.is_meta else torch.autocast(device.type, enabled=False):
        scores = q @ k.mT * (1.0 / math.sqrt(q.shape[-1]) if scale is None else scale)
    everything = torch.ones(scores.shape[-2:], dtype=torch.bool, device=device)
    closed = everything.triu(1) if is_causal else ~everything  # causal from the top left
    variant = getattr(attn_mask, "variant", None)
    if variant is not None:  # torch.nn.attention.bias.CausalBias, which has no cells to read
        right = variant.name == "LOWER_RIGHT"
        closed = everything.triu(1 + (k.shape[-2] - q.shape[-2] if right else 0))
    elif attn_mask is not None and attn_mask.dtype == torch.bool:
        closed = closed | ~attn_mask
    elif attn_mask is not None:
        closed = closed | (attn_mask == -math.inf)
        scores = scores + attn_mask
    # softmax of a row of -inf would be NaN: an empty row is kept finite, then zeroed
    empty = closed.all(dim=-1, keepdim=True)
    scores = scores.masked_fill(closed, -math.inf).masked_fill(empty, 0.0)
    return torch.softmax(scores, dim=-1).masked_fill(empty, 0.0).to(dtype)


def _of_nested(q: Tensor, k: Tensor, is_causal: bool, *options: Any) -> Tensor:
    """(B, H, T, S) of examples of unequal lengths: zeros beyond them."""
    pairs = zip(q.unbind(), k.unbind(), strict=True)
    maps = [_weights(one, other, None, is_causal, *options) for one, other in pairs]
    T, S = (max(weights.shape[axis] for weights in maps) for axis in (-2, -1))
    return torch.stack([F.pad(w, (0, S - w.shape[-1], 0, T - w.shape[-2])) for w in maps])


def _of_multi_head(out: tuple[Tensor, Tensor | None], *args: Any, **kwargs: Any) -> Tensor:
    """(B, H, T, S) weights of nn.MultiheadAttention, asked a second time, without dropout."""
    asked = {**kwargs, "need_weights": True, "average_attn_weights": False, "training": False}
    again: Any = F.multi_head_attention_forward
    weights = again(*args, **asked)[1].to(out[0].dtype)
    weights = weights if weights.dim() == 4 else weights.unsqueeze(0)
    closed = torch.zeros_like(weights, dtype=torch.bool)
    for name in ("attn_mask", "key_padding_mask"):
        mask = kwargs.get(name)
        if mask is None or mask.shape[-1] != weights.shape[-1]:
            continue  # an appended key, of bias_k or add_zero_attn, is open to every query
        mask = mask if mask.dtype == torch.bool else mask == -math.inf
        if name == "key_padding_mask":
            mask = mask.view(-1, 1, 1, mask.shape[-1])
        elif mask.dim() == 3:
            mask = mask.view(weights.shape)
        closed = closed | mask
    return weights.masked_fill(closed.all(dim=-1, keepdim=True), 0.0)


def _of_attention(out: tuple[Tensor, Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """The weights that attn_lib.attention returned; a copy, for the caller owns them."""
    return out[1].clone()


_WEIGHTS: dict[Callable[..., Any], Callable[..., Tensor]] = {
    F.scaled_dot_product_attention: _of_kernel,
    F.multi_head_attention_forward: _of_multi_head,
    attention: _of_attention,
}
