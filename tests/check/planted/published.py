"""Mistakes in the form in which they were published, cut down to what matters.

Each class says where: the repository and the number of the issue or of the change that repaired it.
"""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from planted.plants import PLANTS, Plant

SIZES = [(12, 3), (40, 5)]
KINDS: list[tuple[type, str, dict]] = []


def published(mistake, **intent):
    def keep(kind):
        KINDS.append((kind, mistake, intent))
        return kind

    return keep


class Separate(nn.Module):
    """What most of them have in common: three projections, heads, an output."""

    right = False

    def __init__(self, width, heads):
        super().__init__()
        self.num_heads, self.head_dim = heads, width // heads
        self.q_proj, self.k_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.v_proj, self.out_proj = nn.Linear(width, width), nn.Linear(width, width)

    def split(self, x):
        B, T, _ = x.shape
        parts = (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        return [t.view(B, T, self.num_heads, self.head_dim).transpose(1, 2) for t in parts]

    def joined(self, out):
        return self.out_proj(out.transpose(1, 2).flatten(2))


@published("causal_reversed", causal=True)
class FutureOnly(Separate):
    """A mask for masked_fill handed to SDPA, where True is open; rasbt/LLMs-from-scratch."""

    def forward(self, x):
        q, k, v = self.split(x)
        T = x.shape[1]
        mask = torch.triu(torch.ones(T, T), diagonal=1).bool()
        mask = ~mask if self.right else mask
        return self.joined(F.scaled_dot_product_attention(q, k, v, attn_mask=mask))


@published("causal_only_in_training", causal=True)
class CausalInTraining(Separate):
    """is_causal is reset beside the dropout; the SDPA tutorial of pytorch/tutorials."""

    def forward(self, x):
        q, k, v = self.split(x)
        if self.training or self.right:
            is_causal = True
        else:
            is_causal = False
        return self.joined(F.scaled_dot_product_attention(q, k, v, is_causal=is_causal))


@published("scale_by_num_heads")
class RootOfHeads(Separate):
    """1/sqrt(heads) instead of 1/sqrt(head_dim); tenstorrent/tt-metal#56789."""

    def forward(self, x):
        q, k, v = self.split(x)
        root = math.sqrt(self.head_dim if self.right else self.num_heads)
        return self.joined(torch.softmax(q @ k.mT / root, dim=-1) @ v)


@published("scale_by_model_width")
class RootOfDimV(Separate):
    """Heads as chunks along the batch, scaled by all of them; juho-lee/set_transformer#18."""

    def forward(self, x):
        Q, K, V = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        Q, K, V = (torch.cat(t.split(self.head_dim, 2), 0) for t in (Q, K, V))
        root = math.sqrt(self.head_dim if self.right else self.head_dim * self.num_heads)
        A = torch.softmax(Q.bmm(K.transpose(1, 2)) / root, 2)
        return self.out_proj(torch.cat(A.bmm(V).split(x.size(0), 0), 2))


@published("heads_split_without_transpose")
class ViewAlone(Separate):
    """view(batch · heads, -1, d) at once; 649453932/Chinese-Text-Classification-Pytorch#10."""

    def forward(self, x):
        B = x.size(0)
        if self.right:
            q, k, v = (t.flatten(0, 1) for t in self.split(x))
        else:
            q, k, v = (
                p(x).view(B * self.num_heads, -1, self.head_dim)
                for p in (self.q_proj, self.k_proj, self.v_proj)
            )
        context = torch.softmax(q @ k.permute(0, 2, 1) * k.size(-1) ** -0.5, dim=-1) @ v
        if self.right:
            return self.joined(context.unflatten(0, (B, self.num_heads)))
        return self.out_proj(context.view(B, -1, self.head_dim * self.num_heads))


@published("heads_merged_without_transpose")
class NoPermute(Separate):
    """No permute before the last reshape; jsbaan/transformer-from-scratch#6."""

    def forward(self, x):
        q, k, v = self.split(x)
        values = F.scaled_dot_product_attention(q, k, v)
        values = values.permute(0, 2, 1, 3) if self.right else values
        return self.out_proj(values.reshape(x.shape))


@published("cache_mask", causal=True, step=lambda layer: layer.step)
class CausalWithACache(Separate):
    """is_causal=True with a cache opens the first key alone; pytorch/pytorch#108108."""

    def forward(self, x):
        return self.step(x, None)[0]

    def step(self, x, cache):
        q, k, v = self.split(x)
        if cache is not None:
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        T, S = q.shape[2], k.shape[2]
        late = torch.ones(T, S, dtype=torch.bool).tril(S - T if self.right else 0)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=late)
        return self.joined(out), (k, v)


@published("mask_ignored", mask_means="attend")
class FilledAndForgotten(Separate):
    """masked_fill without an assignment; QwenLM/Qwen#933."""

    def forward(self, x, attention_mask=None):
        q, k, v = self.split(x)
        attn = q @ k.mT / self.head_dim**0.5
        if attention_mask is not None:
            filled = attn.masked_fill(~attention_mask, torch.finfo(attn.dtype).min)
            attn = filled if self.right else attn
        return self.joined(attn.softmax(-1) @ v)


@published("mask_guessed_by_rank", mask_means="attend", mask_shape="TS")
class UnsqueezedOnce(Separate):
    """unsqueeze(1) for the heads, whatever the mask is; post 000 of the five."""

    def forward(self, x, mask=None):
        q, k, v = self.split(x)
        attn = torch.matmul(q / self.head_dim**0.5, k.transpose(2, 3))
        if mask is not None:
            mask = mask if self.right else mask.unsqueeze(1)  # row h for head h, where T = H
            attn = attn.masked_fill(mask == 0, torch.finfo(attn.dtype).min)
        return self.joined(attn.softmax(-1) @ v)


def build(size: int, kind: type, right: bool) -> nn.Module:
    torch.manual_seed(size)
    layer = kind(*SIZES[size]).eval()
    layer.right = right
    return layer


PLANTS.extend(
    Plant(
        mistake, "published", *(partial(build, kind=kind, right=r) for r in (False, True)), intent
    )
    for kind, mistake, intent in KINDS
)
