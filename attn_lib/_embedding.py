"""Where a model of text begins: the vectors of its tokens, and of their learned positions."""

import torch
from torch import Tensor, nn

from attn_lib._checks import check_at_least_one, check_indices
from attn_lib.positions import LearnedPositions


class Embedding(nn.Module):
    """Token plus position embeddings; padding does not advance the position."""

    def __init__(
        self,
        *,
        vocab_size: int,
        max_len: int | None,
        d_model: int,
        dropout: float,
        scale: float = 1.0,
    ):
        super().__init__()
        check_at_least_one(vocab_size=vocab_size)
        self.vectors, self.scale = nn.Embedding(vocab_size, d_model), scale
        nn.init.normal_(self.vectors.weight, std=0.02)  # as large as the positions
        self.positions, self.dropout = None, nn.Dropout(dropout)
        if max_len is not None:
            check_at_least_one(max_len=max_len)
            self.positions = LearnedPositions(max_len=max_len, d_model=d_model)

    def forward(self, tokens: Tensor, mask: Tensor | None, seen: int = 0) -> Tensor:
        check_tokens(tokens, mask, seen)
        check_indices("tokens", tokens, self.vectors.num_embeddings)
        x = self.vectors(tokens)
        x = x if self.scale == 1.0 else x * self.scale
        if self.positions is not None:
            positions = None
            if mask is not None:
                real_so_far = mask[:, 0, 0].cumsum(dim=1)  # (B, seen + T)
                positions = (real_so_far - 1).clamp(min=0)[:, seen:]
            x = self.positions(x, positions, start=seen)
        return self.dropout(x) if self.training else x


def check_tokens(tokens: Tensor, mask: Tensor | None, seen: int = 0) -> None:
    """(B, T) tokens, and which of them and of those ``seen`` before are real."""
    if tokens.dim() != 2:
        raise ValueError(f"tokens must be (B, T), got {tuple(tokens.shape)}")
    B, T = tokens.shape
    if mask is not None and mask.dtype != torch.bool:
        raise TypeError(f"mask must be bool, True = a real token, got {mask.dtype}")
    if mask is not None and mask.shape != (B, 1, 1, seen + T):
        raise ValueError(f"mask must be (B, 1, 1, {seen + T}) with B={B}, got {tuple(mask.shape)}")
