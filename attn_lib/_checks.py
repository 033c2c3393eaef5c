"""The argument checks that several modules share: each states the rule and what came instead."""

import numbers
import sys
from typing import Any

import torch
from torch import Tensor

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def found(x: Any) -> str:
    """What came instead, for a message: the dtype of a tensor, the type of anything else."""
    return str(x.dtype if isinstance(x, Tensor) else type(x).__name__)


def check_sizes(**sizes: int) -> None:
    """Integers of at least 0."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int | torch.SymInt):
            raise TypeError(f"{name} must be an integer, got {size!r}")
        if size < 0:
            raise ValueError(f"{name} must be at least 0, got {name}={size}")


def check_at_least_one(**sizes: int) -> None:
    """Integers of at least 1."""
    check_sizes(**sizes)
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")


def check_flag(name: str, value: bool) -> None:
    """True or False, and not a number that stands for one."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")


def check_number(name: str, value: float) -> None:
    """A real number; True and False are refused."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}")


def check_finite(name: str, value: float) -> None:
    """A number that is neither NaN nor infinite."""
    check_number(name, value)
    if not abs(value) <= sys.float_info.max:  # NaN too, and integers that no float holds
        raise ValueError(f"{name} must be finite, got {value}")


def check_positive(name: str, value: float) -> None:
    """A finite number above 0."""
    check_finite(name, value)
    if not value > 0.0:
        raise ValueError(f"{name} must be positive, got {value}")


def check_probability(name: str, value: float) -> None:
    """A number in [0, 1]."""
    check_number(name, value)
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must be in [0, 1], got {value}")


def check_rotary_width(d_k: int) -> None:
    """An even width of at least 2: rotary positions rotate pairs of channels."""
    if d_k % 2 or d_k == 0:
        raise ValueError(f"rotary positions need an even width d_k, got {d_k}")


def check_no_cross_attention(name: str, block: dict[str, Any]) -> None:
    """Options of the blocks of a model that has no context to attend to."""
    if block.get("cross_attention"):
        raise ValueError(f"{name} has no context: its blocks have no cross-attention")


def check_float(name: str, x: Tensor) -> None:
    """A floating-point tensor of a precision that this library computes in."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
    if x.dtype not in FLOATS:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in FLOATS)
        raise TypeError(f"{name} must be floating point, one of {known}, got {x.dtype}")


def check_bool(name: str, mask: Tensor) -> None:
    """A boolean tensor."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise TypeError(f"{name} must be a bool tensor, got {found(mask)}")


def check_integers(name: str, x: Tensor, *, axes: int) -> None:
    """A tensor of integers of any width, with that many axes."""
    if not isinstance(x, Tensor) or x.dtype not in INTEGERS:
        raise TypeError(f"{name} must be an integer tensor, got {found(x)}")
    if x.dim() != axes:
        raise ValueError(f"{name} must have {axes} axes, got shape {tuple(x.shape)}")


def check_indices(name: str, x: Tensor, size: int) -> None:
    """Integers that index a table of ``size`` rows; a bool tensor would act as a mask there."""
    if x.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"{name} must be integers, int64 or int32, got {x.dtype}")
    # a compiled graph cannot branch on values, so this check is skipped there
    if x.device.type != "meta" and not torch.compiler.is_compiling() and x.numel():
        low, high = (bound.item() for bound in x.aminmax())
        if low < 0 or high >= size:
            raise ValueError(f"{name} must be 0 to {size - 1}, got {low} to {high}")


def check_device(name: str, x: Tensor, device: torch.device) -> None:
    """A tensor on the device of the queries."""
    if x.device != device:
        raise ValueError(f"{name} must be on the device of q, got {x.device} and {device}")


def check_mask(mask: Tensor, shape: torch.Size, device: torch.device) -> None:
    """A boolean mask of two axes (T, S) or of all axes of the scores, on their device."""
    if found(mask) != "torch.bool":
        raise TypeError(
            f"mask must be a bool tensor, True = may attend, got {found(mask)}; "
            "numbers to add to the scores go through attn_bias"
        )
    check_broadcast("mask", mask, shape, device)


def check_attn_bias(attn_bias: Tensor, shape: torch.Size, q: Tensor) -> None:
    """Numbers to add to the scores: of the queries' dtype and a mask's shape, no NaN or +inf."""
    check_float("attn_bias", attn_bias)
    if attn_bias.dtype != q.dtype:
        raise TypeError(f"attn_bias must have the dtype of q, got {attn_bias.dtype} and {q.dtype}")
    check_broadcast("attn_bias", attn_bias, shape, q.device)
    # a compiled graph cannot branch on values: there, a NaN or +inf makes its whole row NaN
    readable = attn_bias.device.type != "meta" and not torch.compiler.is_compiling()
    if readable and bool((attn_bias.isnan() | attn_bias.isposinf()).any()):
        raise ValueError("attn_bias must not hold NaN or +inf; -inf closes a cell")


def check_broadcast(name: str, x: Tensor, shape: torch.Size, device: torch.device) -> None:
    """Two axes (T, S), or every axis of the scores: nothing is guessed to be padding."""
    check_device(name, x, device)
    if x.dim() not in (2, len(shape)):
        raise ValueError(
            f"{name} must have 2 axes, (T, S), or {len(shape)}, as the scores "
            f"{tuple(shape)}; got shape {tuple(x.shape)}: write out the missing axes, for "
            f"example {name}[:, None]"
        )
    wanted = shape[-x.dim() :]
    # not `have in (1, want)`: where sizes are symbolic, torch.compile looks at plain numbers only
    if any(have != 1 and have != want for have, want in zip(x.shape, wanted, strict=True)):
        raise ValueError(
            f"{name} must broadcast to {tuple(wanted)} of the scores {tuple(shape)}, "
            f"got shape {tuple(x.shape)}"
        )
