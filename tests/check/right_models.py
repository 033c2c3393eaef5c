"""Right language models of several kinds, in which tests of the audit plant leaks.

They share no code with the library. Masks and segments are (B, all tokens so far).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, VOCABULARY, LONGEST = 24, 3, 37, 60


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """Halves of (B, H, T, d), by positions (B, T)."""
    half = x.shape[-1] // 2
    rates = 100.0 ** (-torch.arange(half) / half)
    angles = positions[:, None, :, None] * rates
    a, b = x[..., :half], x[..., half:]
    cos, sin = angles.cos().to(x), angles.sin().to(x)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.second_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.sinks = nn.Parameter(torch.randn(HEADS, 1, 1))


class Decoder(nn.Module):
    """A decoder: ``positions_by`` is rope or table."""

    def __init__(self, positions_by="rope", window=None, sinks=False, layers=1):
        super().__init__()
        self.positions_by, self.window, self.with_sinks = positions_by, window, sinks
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.table = nn.Embedding(LONGEST, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens, mask=None, positions=None, segments=None):
        return self.read(tokens, None, mask, positions, segments)[0]

    def step(self, tokens, past, mask=None, positions=None):
        return self.read(tokens, past, mask, positions, None)

    def read(self, tokens, past, mask, positions, segments):
        B, T = tokens.shape
        seen = 0 if past is None else past[0][2]
        at = torch.arange(seen, seen + T)
        if positions is None:
            positions = at.expand(B, T)
        keys = torch.arange(seen + T)
        may = keys <= at[:, None]
        if self.window is not None:
            may = may & (keys > at[:, None] - self.window)
        may = may[None, None]
        if mask is not None:
            may = may & mask[:, None, None, :].bool()
        if segments is not None:
            may = may & (segments[:, None, :, None] == segments[:, None, None, :])
        x = self.embedding(tokens)
        if self.positions_by == "table":
            x = x + self.table(positions)
        kept = []
        for i, block in enumerate(self.blocks):
            old = None if past is None else past[i]
            y, new = self.attend(block, block.norm(x), old, positions, may)
            kept.append(new)
            x = x + y
            x = x + block.narrow(F.gelu(block.wide(block.second_norm(x))))
        return self.norm(x) @ self.embedding.weight.T, kept

    def attend(self, block, x, old, positions, may):
        q, k, v = (
            f(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for f in (block.q, block.k, block.v)
        )
        if self.positions_by == "rope":
            q, k = rotated(q, positions), rotated(k, positions)
        seen = k.shape[2] if old is None else old[2] + k.shape[2]
        if old is not None:
            k, v = torch.cat([old[0], k], dim=2), torch.cat([old[1], v], dim=2)
        new = (k, v, seen)
        if self.window is not None:
            new = (k[:, :, -self.window + 1 :], v[:, :, -self.window + 1 :], seen)
            may = may[..., -k.shape[2] :]
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(~may, torch.finfo(scores.dtype).min)
        if self.with_sinks:
            sink = block.sinks.expand(len(q), -1, q.shape[2], 1)
            weights = torch.cat([scores, sink], dim=-1).softmax(dim=-1)[..., :-1]
        else:
            weights = scores.softmax(dim=-1)
        return block.out((weights @ v).transpose(1, 2).flatten(2)), new
