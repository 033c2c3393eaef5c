"""Images as sequences of patches: the Vision Transformer, and rollout of its attention.

Source: Dosovitskiy et al. (2021), "An Image is Worth 16x16 Words". Built by hand in the page
on vision.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attn_lib._checks import check_at_least_one, check_no_cross_attention, check_sizes
from attn_lib.positions import LearnedPositions
from attn_lib.transformer import TransformerEncoder


class PatchEmbedding(nn.Module):
    """patch W + b, for each square patch of an image, flattened to one row of numbers.

    A convolution whose stride equals its kernel size cuts and projects at once.

    Args:
        patch_size: side of a patch, in pixels.
        in_channels: number of channels of a pixel, 3 for colour.
        d_model: width of a patch's vector.

    Raises:
        ValueError: a size below 1.
        TypeError: sizes that are not integers.

    Example:
        >>> layer = PatchEmbedding(patch_size=2, in_channels=3, d_model=5)
        >>> images = torch.randn(1, 3, 4, 4)
        >>> second = images[:, :, :2, 2:].flatten(1)  # the patch to the right of the first
        >>> weight, bias = layer.projection.weight, layer.projection.bias
        >>> torch.allclose(layer(images)[:, 1], second @ weight.flatten(1).T + bias, atol=1e-5)
        True

    Source: Dosovitskiy et al. (2021), section 3.1, equation 1. Built in the page on vision.
    """

    def __init__(self, *, patch_size: int, in_channels: int, d_model: int):
        super().__init__()
        check_at_least_one(patch_size=patch_size, in_channels=in_channels, d_model=d_model)
        self.patch_size, self.in_channels = patch_size, in_channels
        self.projection = nn.Conv2d(in_channels, d_model, patch_size, stride=patch_size)

    def forward(self, images: Tensor) -> Tensor:
        """A vector for each patch of each image.

        Args:
            images: (B, in_channels, height, width), with sides that ``patch_size`` divides.

        Returns:
            (B, height · width / patch_size², d_model): the patches row by row.

        Raises:
            ValueError: another number of axes or channels; a side that ``patch_size`` does not
                divide.
        """
        size, shape = self.patch_size, tuple(images.shape)
        if len(shape) != 4 or shape[1] != self.in_channels or shape[2] % size or shape[3] % size:
            raise ValueError(
                f"images must be (B, {self.in_channels}, height, width) with sides that "
                f"{size} divides, got {shape}"
            )
        # (B, d_model, rows, columns) to (B, rows · columns, d_model)
        return self.projection(images).flatten(2).transpose(1, 2)


class VisionTransformer(nn.Module):
    """A Transformer encoder that reads an image as a sequence of patches.

    Apart from the patches themselves, nothing in the model says that an image has two dimensions:
    the learned positions have to find that out.

    Args:
        image_size: side of the square images, in pixels, a multiple of ``patch_size``.
        patch_size: side of a patch, in pixels.
        in_channels: number of channels of a pixel, 3 for colour.
        num_classes: number of logits; with 0 the model returns the pooled vector instead.
        d_model: width of the residual stream.
        num_heads: H, the number of heads of each block.
        d_ff: number of hidden activations of each feed-forward network.
        num_layers: number of blocks.
        pool: ``"class"``, the vector of a learned token that stands before the patches and is no
            part of the image; or ``"mean"`` over the patches, and there is no such token.
        dropout: as :class:`attn_lib.transformer.TransformerBlock`, and on what enters the first.
        block: the other arguments of every :class:`attn_lib.transformer.TransformerBlock`.

    Raises:
        ValueError: sizes that do not fit; an unknown ``pool``.
        TypeError: sizes that are not integers.

    Example:
        >>> sizes = {"d_model": 16, "num_heads": 4, "d_ff": 32, "num_layers": 2}
        >>> image = {"image_size": 28, "patch_size": 7, "in_channels": 1}
        >>> model = VisionTransformer(**image, num_classes=10, **sizes)
        >>> model(torch.zeros(2, 1, 28, 28)).shape, model.features(torch.zeros(2, 1, 28, 28)).shape
        (torch.Size([2, 10]), torch.Size([2, 17, 16]))

    Source: Dosovitskiy et al. (2021), section 3.1. Built in the page on vision.
    """

    def __init__(
        self,
        *,
        image_size: int,
        patch_size: int,
        in_channels: int,
        num_classes: int,
        d_model: int,
        num_heads: int,
        d_ff: int,
        num_layers: int,
        pool: str = "class",
        dropout: float = 0.0,
        **block: Any,
    ):
        super().__init__()
        check_no_cross_attention("VisionTransformer", block)
        check_sizes(num_classes=num_classes)
        check_at_least_one(image_size=image_size, patch_size=patch_size)
        if image_size % patch_size:
            raise ValueError(f"patch_size={patch_size} must divide image_size={image_size}")
        if pool not in ("class", "mean"):
            raise ValueError(f"pool must be 'class' or 'mean', got {pool!r}")
        self.image_size = image_size
        self.patches = PatchEmbedding(
            patch_size=patch_size, in_channels=in_channels, d_model=d_model
        )
        self.class_token = nn.Parameter(torch.empty(1, d_model)) if pool == "class" else None
        if self.class_token is not None:
            nn.init.normal_(self.class_token, std=0.02)  # as large as the positions
        length = (image_size // patch_size) ** 2 + (pool == "class")
        self.positions = LearnedPositions(max_len=length, d_model=d_model)
        self.dropout = nn.Dropout(dropout)
        self.encoder = TransformerEncoder(
            d_model=d_model,
            num_heads=num_heads,
            d_ff=d_ff,
            num_layers=num_layers,
            dropout=dropout,
            **block,
        )
        self.head = nn.Linear(d_model, num_classes) if num_classes else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the classes.

        Args:
            images: (B, in_channels, image_size, image_size).

        Returns:
            (B, num_classes) logits; without classes, the pooled vector (B, d_model).

        Raises:
            ValueError: images of another size.
        """
        x = self.features(images)
        return self.head(x[:, 0] if self.class_token is not None else x.mean(dim=1))

    def features(self, images: Tensor) -> Tensor:
        """A vector for each patch, computed from the whole image.

        Args:
            images: (B, in_channels, image_size, image_size).

        Returns:
            (B, T, d_model), after the last norm: the class token, where there is one, then the
            patches row by row.

        Raises:
            ValueError: images of another size.
        """
        side = self.image_size
        if images.shape[2:] != (side, side):
            raise ValueError(
                f"images must be (B, {self.patches.in_channels}, {side}, {side}), got "
                f"{tuple(images.shape)}"
            )
        x = self.patches(images)  # (B, number of patches, d_model)
        if self.class_token is not None:  # T = number of patches + 1
            x = torch.cat([self.class_token.expand(x.shape[0], 1, -1), x], dim=1)
        return self.encoder(self.dropout(self.positions(x)))


def resample_positions(table: Tensor, grid: int) -> Tensor:
    """Learned positions for another number of patches, by bicubic interpolation.

    Args:
        table: (1 + n · n, d_model): the class token's position, then those of n by n patches, row
            by row.
        grid: number of patches along a side that is wanted, at least 1.

    Returns:
        (1 + grid · grid, d_model); the class token's row stays as it was.

    Raises:
        ValueError: a number of patches that is not a square; a grid below 1.
        TypeError: a grid that is not an integer.

    Example:
        >>> table = torch.tensor([[7.0], [1.0], [2.0], [3.0], [4.0]])  # patches 1 2 / 3 4
        >>> resample_positions(table, 3)[1:].view(3, 3)
        tensor([[0.7396, 1.3264, 1.9132],
                [1.9132, 2.5000, 3.0868],
                [3.0868, 3.6736, 4.2604]])

    Source: Dosovitskiy et al. (2021), section 3.2. Built in the page on vision.
    """
    check_at_least_one(grid=grid)
    n = math.isqrt(len(table))
    if n * n != len(table) - 1:
        raise ValueError(f"table must have 1 + n² rows, got {len(table)}")
    if n == grid:
        return table
    square = table[1:].T.unflatten(1, (n, n))[None]  # (n · n, d_model) to (1, d_model, n, n)
    resized = F.interpolate(square, size=(grid, grid), mode="bicubic")
    # (1, d_model, grid, grid) to (grid · grid, d_model)
    return torch.cat([table[:1], resized[0].flatten(1).T])


def attention_rollout(maps: Iterable[Tensor]) -> Tensor:
    """Ã_L … Ã_2 Ã_1 with Ã = (A + I) / 2, and A a layer's weights, averaged over its heads.

    The identity stands for the residual stream. Values and feed-forward networks play no part: a
    rollout says where information could have come from, not what the model made of it.

    Args:
        maps: (B, H, T, T) weights of each layer, first layer first, for example
            ``maps.values()`` of :func:`attn_lib.recording.record_attention`.

    Returns:
        (B, T, T), in [0, 1]: row i gives the share of each input in position i. Rows sum to 1,
        also for a query that may attend to nothing: only the identity remains there.

    Raises:
        ValueError: no map; a map that is not (B, H, T, T), or whose B or T differs from the
            first one's.

    Example:
        >>> first = torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]]])  # both attend to position 0
        >>> second = torch.tensor([[[[0.5, 0.5], [0.5, 0.5]]]])  # uniform attention
        >>> attention_rollout([first, second])
        tensor([[[0.8750, 0.1250],
                 [0.6250, 0.3750]]])

    Source: Abnar and Zuidema (2020), "Quantifying Attention Flow in Transformers", section 3. Built
    in the page on large vision.
    """
    total = None
    for weights in maps:
        if weights.dim() != 4 or weights.shape[2] != weights.shape[3]:
            raise ValueError(f"a map must be (B, H, T, T), got {tuple(weights.shape)}")
        mixed = weights.mean(dim=1) + torch.eye(
            weights.shape[-1], dtype=weights.dtype, device=weights.device
        )
        # an empty row has only the identity, so that its sum is 1 and not 2
        mixed = mixed / mixed.sum(dim=-1, keepdim=True)
        if total is not None and mixed.shape != total.shape:
            raise ValueError(
                f"maps must agree in B and T, got {tuple(total.shape)} and {tuple(mixed.shape)}"
            )
        total = mixed if total is None else mixed @ total
    if total is None:
        raise ValueError("maps must hold at least one map, got none")
    return total
