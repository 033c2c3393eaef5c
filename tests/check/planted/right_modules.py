"""Right layers as they are found in the wild: nothing is said of them, and nothing against them."""

import torch
import torch.nn.functional as F
from torch import nn

from planted.plants import RIGHT


class Head(nn.Module):
    def __init__(self, width, size):
        super().__init__()
        self.key = nn.Linear(width, size, bias=False)
        self.query = nn.Linear(width, size, bias=False)
        self.value = nn.Linear(width, size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(256, 256)))
        self.dropout = nn.Dropout(0.2)

    def forward(self, x):
        T = x.shape[1]
        wei = self.query(x) @ self.key(x).transpose(-2, -1) * self.key.out_features**-0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        return self.dropout(F.softmax(wei, dim=-1)) @ self.value(x)


class ListOfHeads(nn.Module):
    """Each head has projections of its own."""

    def __init__(self, num_heads, width):
        super().__init__()
        self.heads = nn.ModuleList(Head(width, width // num_heads) for _ in range(num_heads))
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        return self.proj(torch.cat([head(x) for head in self.heads], dim=-1))


class PackedByHead(nn.Module):
    """The rows of the projection are q, k and v of head 0, then of head 1, ..."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.query_key_value = nn.Linear(dim, 3 * dim)
        self.dense = nn.Linear(dim, dim)

    def forward(self, x):
        B, T, C = x.shape
        qkv = self.query_key_value(x).view(B, T, self.num_heads, -1).transpose(1, 2)
        out = F.scaled_dot_product_attention(*qkv.chunk(3, dim=-1), is_causal=True)
        return self.dense(out.transpose(1, 2).reshape(B, T, C))


class FourLinears(nn.Module):
    """The projections are numbered, not named; the mask is (B, T, S)."""

    def __init__(self, h, d_model, dropout=0.1):
        super().__init__()
        self.h, self.d_k = h, d_model // h
        self.linears = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(4))
        self.attn, self.dropout = None, nn.Dropout(p=dropout)

    def forward(self, query, key, value, mask=None):
        B = query.size(0)
        pairs = zip(self.linears, (query, key, value), strict=False)
        q, k, v = (lin(x).view(B, -1, self.h, self.d_k).transpose(1, 2) for lin, x in pairs)
        scores = q @ k.transpose(-2, -1) / self.d_k**0.5
        if mask is not None:
            lowest = torch.finfo(scores.dtype).min
            scores = scores.masked_fill(mask.unsqueeze(1) == 0, lowest)
        self.attn = self.dropout(scores.softmax(dim=-1))
        return self.linears[-1]((self.attn @ v).transpose(1, 2).reshape(B, -1, self.h * self.d_k))


def gpt2():
    from transformers.models.gpt2 import modeling_gpt2 as gpt2

    config = gpt2.GPT2Config(n_embd=12, n_head=3, attn_implementation="eager")
    return gpt2.GPT2Attention(config, layer_idx=0)


def bart():
    from transformers.models.bart import modeling_bart as bart

    config = bart.BartConfig(attn_implementation="eager")
    return bart.BartAttention(12, 3, config=config, layer_idx=0)


def clip():
    from transformers.models.clip import modeling_clip as clip

    sizes = {"hidden_size": 12, "num_attention_heads": 3}
    return clip.CLIPAttention(clip.CLIPTextConfig(**sizes, attn_implementation="eager"))


for _name, _make in {
    "list of heads": lambda: ListOfHeads(3, 12),
    "packed by head": lambda: PackedByHead(24, 4),
    "four linears": lambda: FourLinears(3, 12),
    "stored in half": lambda: PackedByHead(24, 4).half(),
    "hugging face gpt2": gpt2,
    "hugging face bart": bart,
    "hugging face clip": clip,
}.items():
    RIGHT[_name] = (_make, {})
