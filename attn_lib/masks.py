"""Masks as sentences about indices: boolean, True = this query may attend to this key.

Combine them with ``&`` and ``|``.
"""

import torch
from torch import Tensor


def causal_mask(T: int, S: int | None = None, *, offset: int | Tensor | None = None) -> Tensor:
    """Let query i, which stands at position i + offset, see every key up to its position.

    By default the T queries are the last T of the S positions, as in decoding with a cache.

    Args:
        T: number of queries, at least 0.
        S: number of keys; default T.
        offset: position of the first query: an integer, or (B,) integers, one an example;
            default S − T.

    Returns:
        bool (T, S), or (B, 1, T, S) where ``offset`` is (B,): True where key j ≤ i + offset.

    Raises:
        ValueError: T or S negative; an offset of another rank.
        TypeError: an offset that is not an integer or an integer tensor.

    Example:
        >>> causal_mask(2, 3)
        tensor([[ True,  True, False],
                [ True,  True,  True]])

    Source: Vaswani et al. (2017), section 3.2.3.
    """
    S = T if S is None else S
    if T < 0 or S < 0:
        raise ValueError(f"T and S must be at least 0, got T={T} and S={S}")
    offset = S - T if offset is None else offset
    if isinstance(offset, Tensor):
        if offset.is_floating_point() or offset.is_complex() or offset.dtype == torch.bool:
            raise TypeError(f"offset must hold integers, got {offset.dtype}")
        if offset.dim() != 1:
            raise ValueError(f"offset must be an integer or (B,), got {tuple(offset.shape)}")
        offset = offset[:, None, None, None]
    elif isinstance(offset, bool) or not isinstance(offset, int):
        raise TypeError(f"offset must be an integer or (B,) integers, got {offset!r}")
    device = offset.device if isinstance(offset, Tensor) else None
    queries = torch.arange(T, device=device)[:, None]
    keys = torch.arange(S, device=device)
    return keys <= queries + offset
