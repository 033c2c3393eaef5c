"""Masks as sentences about indices: boolean, True = this query may attend to this key.

Combine them with ``&`` (both must allow it) and ``|`` (one is enough). Numbers that are added to
the scores are no masks: they go through ``attn_bias``. The book's page on masks builds each by
hand.
"""

import torch
from torch import Tensor

from attn_lib._checks import check_at_least_one, check_bool, check_integers, check_sizes, found

_FAR = 2**62  # beyond every position, with room for a sum in int64


def causal_mask(T: int, S: int | None = None, *, offset: int | Tensor | None = None) -> Tensor:
    """Let query i, at position i + offset, attend to every key up to and including its position.

    By default the T queries are the last T of the S positions, as in decoding with a cache.

    Args:
        T: number of queries, at least 0.
        S: number of keys, at least 0; default T.
        offset: position of the first query: an integer, or (B,) integers, one for each example;
            default S − T.

    Returns:
        bool (T, S), or (B, 1, T, S) where ``offset`` is (B,): True where key j ≤ i + offset.

    Raises:
        ValueError: T or S negative; an offset of another rank.
        TypeError: a size or an offset that is not an integer or an integer tensor.

    Example:
        >>> causal_mask(2, 3)
        tensor([[ True,  True, False],
                [ True,  True,  True]])

    Source: Vaswani et al. (2017), section 3.2.3; the default offset is that of
    ``torch.nn.attention.bias.causal_lower_right``. Built in the page on masks.
    """
    distance = _distance(T, S, offset)
    return distance <= 0


def window_mask(
    T: int,
    S: int | None = None,
    *,
    window: int,
    right: int = 0,
    offset: int | Tensor | None = None,
) -> Tensor:
    """Let query i, at position i + offset, attend to the last ``window`` keys, its own among them.

    The token itself is counted, as in Mistral and Keras: with ``window=3`` a query attends to three
    keys. Longformer's "w on each side" is ``window=w + 1, right=w``.

    Args:
        T: number of queries, at least 0.
        S: number of keys, at least 0; default T.
        window: number of keys up to and including the query's own position, at least 1.
        right: number of keys after it, at least 0; default 0, which is causal.
        offset: position of the first query: an integer, or (B,) integers, one for each example;
            default S − T.

    Returns:
        bool (T, S), or (B, 1, T, S) where ``offset`` is (B,): True where
        i + offset − window < j ≤ i + offset + right.

    Raises:
        ValueError: T, S or right negative; window below 1; an offset of another rank.
        TypeError: a size or an offset that is not an integer or an integer tensor.

    Example:
        >>> window_mask(3, window=2)
        tensor([[ True, False, False],
                [ True,  True, False],
                [False,  True,  True]])

    Source: Beltagy et al. (2020), "Longformer", section 3.1; Jiang et al. (2023), "Mistral 7B".
    Built in the page on masks.
    """
    check_at_least_one(window=window)
    check_sizes(right=right)
    distance = _distance(T, S, offset)
    return (distance > -window) & (distance <= right)


def padding_mask(lengths: Tensor, S: int) -> Tensor:
    """Close the padding after the end of each example, for every head and every query.

    Args:
        lengths: (B,) integers: how many of the S keys of each example are real tokens, 0 to S.
        S: number of keys, padding included.

    Returns:
        bool (B, 1, 1, S): True where key j < lengths. The axes of size 1 broadcast over the heads
        and the queries.

    Raises:
        TypeError: ``lengths`` is not an integer tensor.
        ValueError: not one axis; a length below 0 or above S.

    Example:
        >>> padding_mask(torch.tensor([3, 1]), 3)[:, 0, 0]
        tensor([[ True,  True,  True],
                [ True, False, False]])

    Source: ``key_padding_mask`` of ``torch.nn.MultiheadAttention``, in which True means *blocked*.
    Built in the page on masks.
    """
    check_integers("lengths", lengths, axes=1)
    check_sizes(S=S)
    lengths = lengths.long()  # S may not fit into the dtype of the lengths
    # a compiled graph cannot branch on values, so this check is skipped there
    readable = lengths.device.type != "meta" and not torch.compiler.is_compiling()
    if readable and bool(((lengths < 0) | (lengths > S)).any()):
        raise ValueError(f"lengths must be 0 to S={S}, got {lengths.tolist()}")
    return (torch.arange(S, device=lengths.device) < lengths[:, None])[:, None, None, :]


def segment_mask(segments: Tensor) -> Tensor:
    """Let tokens attend only within their own segment: several texts packed into one row.

    Args:
        segments: (B, T) integers; tokens with the same number belong together.

    Returns:
        bool (B, 1, T, T): True where query and key have the same number.

    Raises:
        TypeError: ``segments`` is not an integer tensor.
        ValueError: not two axes.

    Example:
        >>> segment_mask(torch.tensor([[0, 0, 1]]))[0, 0]
        tensor([[ True,  True, False],
                [ True,  True, False],
                [False, False,  True]])

    Source: Krell et al. (2021), "Efficient Sequence Packing without Cross-contamination". Built in
    the page on masks.
    """
    check_integers("segments", segments, axes=2)
    return (segments[:, :, None] == segments[:, None, :])[:, None]


def to_blocked(mask: Tensor) -> Tensor:
    """Our mask for code in which True means *blocked*, such as ``torch.nn.MultiheadAttention``.

    Args:
        mask: bool of any shape, True = may attend.

    Returns:
        bool of the same shape, True = blocked.

    Raises:
        TypeError: ``mask`` is not bool.

    Example:
        >>> to_blocked(causal_mask(2))
        tensor([[False,  True],
                [False, False]])

    Source: ``attn_mask`` and ``key_padding_mask`` of ``torch.nn.MultiheadAttention``. Compared in
    the page on conventions.
    """
    check_bool("mask", mask)
    return ~mask


def from_blocked(blocked: Tensor) -> Tensor:
    """Our mask from one in which True means *blocked*.

    Args:
        blocked: bool of any shape, True = blocked.

    Returns:
        bool of the same shape, True = may attend.

    Raises:
        TypeError: ``blocked`` is not bool.

    Example:
        >>> from_blocked(torch.tensor([False, True]))
        tensor([ True, False])

    Source: ``attn_mask`` and ``key_padding_mask`` of ``torch.nn.MultiheadAttention``. Compared in
    the page on conventions.
    """
    check_bool("blocked", blocked)
    return ~blocked


def to_additive(mask: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Our mask as the numbers that other code adds to its scores: 0 and −inf.

    With a large finite number in place of −inf, an empty row would still get weights that sum to 1.

    Args:
        mask: bool of any shape, True = may attend.
        dtype: floating point, the dtype of the scores; default float32.

    Returns:
        ``dtype`` of the same shape: 0 where open, −inf where closed.

    Raises:
        TypeError: ``mask`` is not bool; ``dtype`` is not floating point.

    Example:
        >>> to_additive(causal_mask(2))
        tensor([[0., -inf],
                [0., 0.]])

    Source: a floating-point ``attn_mask`` of ``torch.nn.functional.scaled_dot_product_attention``.
    Compared in the page on conventions.
    """
    check_bool("mask", mask)
    if not dtype.is_floating_point:
        raise TypeError(f"dtype must be floating point, got {dtype}")
    zeros = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return zeros.masked_fill(~mask, -torch.inf)


def from_additive(additive: Tensor) -> Tensor:
    """Our mask from the numbers that other code adds to its scores.

    Args:
        additive: floating point of any shape; each entry is 0 (open), or −inf or the lowest
            finite number of its dtype (closed).

    Returns:
        bool of the same shape, True = may attend.

    Raises:
        TypeError: ``additive`` is not floating point.
        ValueError: any other entry: it is not a mask but a bias, which no boolean can hold.

    Example:
        >>> from_additive(torch.tensor([0.0, -torch.inf, torch.finfo(torch.float32).min]))
        tensor([ True, False, False])

    Source: a floating-point ``attn_mask`` of ``torch.nn.functional.scaled_dot_product_attention``;
    the lowest finite number is the package transformers' choice. Compared in the page on
    conventions.
    """
    if not isinstance(additive, Tensor) or not additive.is_floating_point():
        raise TypeError(f"an additive mask must be a floating-point tensor, got {found(additive)}")
    lowest = torch.finfo(additive.dtype).min
    neither = (additive != 0) & ~(additive <= lowest)
    if bool(neither.any()):
        entry = float(additive[neither][0])
        raise ValueError(
            f"an additive mask must hold 0 and -inf (or {lowest:.4g}), got {entry:.4g}: "
            "such a number is a bias"
        )
    return additive == 0


def to_binary(mask: Tensor) -> Tensor:
    """A padding mask as the 1 and 0 of Hugging Face's ``attention_mask``.

    Args:
        mask: bool (B, 1, 1, S), True = may attend, as :func:`padding_mask` makes it.

    Returns:
        int64 (B, S): 1 = may be attended to, 0 = padding.

    Raises:
        TypeError: ``mask`` is not bool.
        ValueError: another shape: (B, S) numbers can express only padding.

    Example:
        >>> to_binary(padding_mask(torch.tensor([1, 2]), 2))
        tensor([[1, 0],
                [1, 1]])

    Source: Hugging Face's ``attention_mask``, as tokenizers of the package transformers return it.
    Compared in the page on conventions.
    """
    check_bool("mask", mask)
    if mask.dim() != 4 or mask.shape[1:3] != (1, 1):
        raise ValueError(f"a padding mask must be (B, 1, 1, S), got {tuple(mask.shape)}")
    return mask[:, 0, 0].long()


def from_binary(binary: Tensor) -> Tensor:
    """Our padding mask from the 1 and 0 of Hugging Face's ``attention_mask``.

    Args:
        binary: (B, S) integers or bool: 1 = may be attended to, 0 = padding.

    Returns:
        bool (B, 1, 1, S), True = may attend.

    Raises:
        TypeError: a tensor that holds neither integers nor bool.
        ValueError: not two axes; an entry that is neither 0 nor 1.

    Example:
        >>> from_binary(torch.tensor([[1, 0]]))
        tensor([[[[ True, False]]]])

    Source: Hugging Face's ``attention_mask``, as tokenizers of the package transformers return it.
    Compared in the page on conventions.
    """
    if isinstance(binary, Tensor) and binary.dtype == torch.bool:
        binary = binary.long()
    check_integers("binary", binary, axes=2)
    other = binary[(binary != 0) & (binary != 1)]
    if other.numel():
        raise ValueError(f"binary must hold 0 and 1, got {int(other[0])}")
    return (binary == 1)[:, None, None, :]


def _distance(T: int, S: int | None, offset: int | Tensor | None) -> Tensor:
    """(T, S) or (B, 1, T, S): the key's position minus the query's."""
    S = T if S is None else S
    check_sizes(T=T, S=S)
    device = None
    if offset is None:
        offset = S - T
    elif isinstance(offset, Tensor):
        check_integers("offset", offset, axes=1)
        device, offset = offset.device, offset.long().clamp(-_FAR, _FAR)[:, None, None, None]
    elif isinstance(offset, bool) or not isinstance(offset, int):
        raise TypeError(f"offset must be an integer or (B,) integers, got {offset!r}")
    else:
        offset = min(max(offset, -_FAR), _FAR)
    queries = torch.arange(T, device=device)[:, None] + offset
    return torch.arange(S, device=device) - queries
