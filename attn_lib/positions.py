"""Positional information: attention ignores order; four ways to add it.

Two change the vectors that enter a layer (sinusoidal, learned), one rotates queries and keys
(rotary), and one changes the scores (ALiBi). The book's page on positions derives each.
"""

import threading

import torch
from torch import Tensor, nn

from attn_lib._checks import check_at_least_one, check_indices, check_rotary_width, check_sizes


def sinusoidal(T: int, d_model: int, *, base: float = 10_000.0) -> Tensor:
    """Sines and cosines of each position, at wavelengths from 2π up to almost 2π · base.

    A shift by n positions rotates each (sine, cosine) pair by an angle that is the same for every
    position.

    Args:
        T: number of positions, at least 0.
        d_model: width, at least 1; if odd, the last cosine is left out.
        base: sets the longest wavelength, which approaches 2π · base as d_model grows; above 0;
            default 10,000.

    Returns:
        float32 (T, d_model) in [−1, 1]: in the row of position p, column 2i is
        sin(p / base^(2i/d_model)) and column 2i + 1 the cosine of the same angle.

    Raises:
        ValueError: T negative, d_model below 1 or base not positive.
        TypeError: sizes that are not integers.

    Example:
        >>> sinusoidal(2, 3)
        tensor([[0.0000, 1.0000, 0.0000],
                [0.8415, 0.5403, 0.0022]])

    Source: Vaswani et al. (2017), section 3.5. Built in the page on positions.
    """
    check_sizes(T=T)
    check_at_least_one(d_model=d_model)
    angles = _angles(torch.arange(T), d_model, base)
    table = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
    return table[:, :d_model].float()


class LearnedPositions(nn.Module):
    """A learned vector for each position, added to the tokens' vectors.

    Args:
        max_len: number of positions that have a vector; longer inputs raise.
        d_model: width of a vector.

    Raises:
        ValueError: a negative size.
        TypeError: sizes that are not integers.

    Example:
        >>> layer = LearnedPositions(max_len=5, d_model=4)
        >>> out = layer(torch.zeros(3, 4), torch.tensor([0, 2, 1]))
        >>> torch.equal(out, layer.table[[0, 2, 1]])
        True

    Source: Gehring et al. (2017), "Convolutional Sequence to Sequence Learning"; Devlin et al.
    (2019), "BERT", section 3. Built in the page on positions.
    """

    def __init__(self, *, max_len: int, d_model: int):
        super().__init__()
        check_sizes(max_len=max_len, d_model=d_model)
        self.table = nn.Parameter(torch.empty(max_len, d_model))
        nn.init.normal_(self.table, std=0.02)

    def forward(
        self, x: Tensor, positions: Tensor | None = None, *, start: int | None = None
    ) -> Tensor:
        """Add to each row of ``x`` the vector of its position.

        Args:
            x: (..., T, d_model).
            positions: (T,) or (..., T) integers from 0 to ``max_len`` − 1; default 0 to T − 1, or
                from ``start`` on.
            start: position of the first row, where no positions are given.

        Returns:
            (..., T, d_model).

        Raises:
            ValueError: a position that has no vector; positions of another shape; an ``x`` of
                another width.
            TypeError: positions that are not integers.
        """
        T, (max_len, d_model) = x.shape[-2], self.table.shape
        if x.shape[-1] != d_model or (positions is None and start is None and T > max_len):
            raise ValueError(
                f"x must be (..., T, {d_model}) with T at most {max_len}, got {tuple(x.shape)}"
            )
        if positions is None:
            start = 0 if start is None else start
            if not 0 <= start <= max_len - T:
                raise ValueError(
                    f"positions must be 0 to {max_len - 1}, got {start} to {start + T - 1}"
                )
            return x + self.table[start : start + T]
        ends = zip(positions.shape[-2::-1], x.shape[-3::-1], strict=False)  # before T, from behind
        fits = positions.dim() < x.dim() and all(n in (1, size) for n, size in ends)
        if positions.shape[-1:] != (T,) or not fits:
            raise ValueError(
                f"positions must be ({T},) or {tuple(x.shape[:-1])}, got {tuple(positions.shape)}"
            )
        check_indices("positions", positions, max_len)
        return x + self.table[positions]


def apply_rope(x: Tensor, positions: Tensor, *, base: float = 10_000.0) -> Tensor:
    """Rotate pair i of each query or key by the angle position / base^(2i/d_k).

    Once queries and keys are rotated, their products depend only on the *difference* of their
    positions. Pairs are (x[i], x[i + d_k/2]), the "half-split" order; some libraries pair
    neighbours, (x[2i], x[2i + 1]).

    Args:
        x: (..., T, d_k) queries or keys, floating point, d_k even.
        positions: (T,), or one axis for each of ``x`` but the last, integers or floats: position
            of each row. For x (B, H, T, d_k) with positions of each example: (B, 1, T).
        base: ratio of the slowest to the fastest rotation, above 0.

    Returns:
        (..., T, d_k) in the dtype of ``x``; each pair keeps its length.

    Raises:
        TypeError: ``x`` is not floating point; ``positions`` are bool.
        ValueError: d_k odd; positions of another shape; base not positive.

    Example:
        >>> x = torch.tensor([[1.0, 1.0, 0.0, 0.0]])  # two pairs, (1, 0) and (1, 0)
        >>> apply_rope(x, torch.tensor([torch.pi / 3]), base=4.0)
        tensor([[0.5000, 0.8660, 0.8660, 0.5000]])

    Source: Su et al. (2021), "RoFormer", section 3.4; the order of the pairs is that of
    ``rotate_half`` in the package transformers' Llama. Built in the page on positions.
    """
    if not x.is_floating_point():
        raise TypeError(f"x must be floating point, got {x.dtype}")
    if positions.dtype == torch.bool:
        raise TypeError("positions must be numbers, got bool: a mask is none")
    T, d_k = x.shape[-2:]
    check_rotary_width(d_k)
    if positions.shape[-1:] != (T,):
        raise ValueError(f"positions must end in T={T}, got shape {tuple(positions.shape)}")
    leading = positions.shape[:-1]
    fits = len(leading) in (0, x.dim() - 2)  # no axis is guessed to be the batch or the heads
    if not fits or any(n != 1 and n != size for n, size in zip(leading, x.shape, strict=False)):
        raise ValueError(
            f"positions must be (T,), or have one axis for each of x {tuple(x.shape)} but the "
            f"last, of its size or 1, got shape {tuple(positions.shape)}"
        )
    dtype = torch.promote_types(x.dtype, torch.float32)
    cos, sin = _turns(positions, d_k, base, dtype)
    first, second = x.to(dtype).chunk(2, dim=-1)
    rotated = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return rotated.to(x.dtype)


class _Tables(threading.local):
    """The positions that were counted last, and the rotation tables made of them so far."""

    def __init__(self) -> None:
        self.positions: Tensor | None = None
        self.made: dict[tuple[int, float, torch.dtype], tuple[Tensor, Tensor]] = {}

    def of(self, positions: Tensor) -> dict[tuple[int, float, torch.dtype], tuple[Tensor, Tensor]]:
        """Those of these positions: none if they are others, or were written into since."""
        if torch.compiler.is_compiling() or positions is not self.positions or positions._version:
            return {}
        return self.made


_tables = _Tables()


def counted(start: int, stop: int, device: torch.device) -> Tensor:
    """Positions start … stop − 1; the layers that are given this very tensor share their tables."""
    with torch.inference_mode(False):  # tensors of inference mode do not count their changes
        _tables.positions, _tables.made = torch.arange(start, stop, device=device), {}
    return _tables.positions


def alibi_bias(num_heads: int, T: int, S: int | None = None) -> Tensor:
    """−slope · distance to the key, with a slope of its own for each head.

    Args:
        num_heads: H, at least 1.
        T: number of queries; they are the last T of the S positions.
        S: number of keys; default T.

    Returns:
        (H, T, S) in the default dtype: −slope · distance for keys at or before the query, and 0
        for later keys: combine it with a causal mask. The slopes are 2^(−8h/H), h = 1 … H, where
        H is a power of two; otherwise they are those of the next lower power, and then every
        other slope of the next higher.

    Raises:
        ValueError: a size out of range.
        TypeError: sizes that are not integers.

    Example:
        >>> alibi_bias(2, 2, 3)[0]  # the queries stand at positions 1 and 2
        tensor([[-0.0625,  0.0000,  0.0000],
                [-0.1250, -0.0625,  0.0000]])

    Source: Press et al. (2022), "Train Short, Test Long", section 3. Built in the page on
    positions.
    """
    S = T if S is None else S
    check_at_least_one(num_heads=num_heads)
    check_sizes(T=T, S=S)
    distance = torch.arange(T)[:, None] + (S - T) - torch.arange(S)
    slopes = torch.tensor(_alibi_slopes(num_heads))
    return slopes[:, None, None] * -distance.clamp(min=0)


def _alibi_slopes(num_heads: int) -> list[float]:
    power = 1 << (num_heads.bit_length() - 1)  # the largest power of two up to H
    slopes = [2.0 ** (-8.0 * h / power) for h in range(1, power + 1)]
    between = [2.0 ** (-4.0 * h / power) for h in range(1, 2 * power, 2)]
    return slopes + between[: num_heads - power]


def _turns(positions: Tensor, width: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(..., T, width / 2) cosines and sines of the angles of every position."""
    tables = _tables.of(positions)
    if (width, base, dtype) not in tables:
        angles = _angles(positions, width, base)
        tables[width, base, dtype] = angles.cos().to(dtype), angles.sin().to(dtype)
    return tables[width, base, dtype]


def _angles(positions: Tensor, width: int, base: float) -> Tensor:
    """(..., T, ceil(width / 2)) angles in double precision: position / base^(2i / width)."""
    if not base > 0.0:
        raise ValueError(f"base must be positive, got {base}")
    steps = torch.arange(0, width, 2, dtype=torch.float64, device=positions.device)
    return positions.double()[..., None] / base ** (steps / width)
