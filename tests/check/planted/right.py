"""Right attentions that look unusual, as they are found in the wild and in libraries."""

import warnings
from importlib import import_module

import torch
import torch.nn.functional as F
from torch import nn

from planted.plants import RIGHT


def grown_mask():
    memo = {"mask": torch.ones(2, 2, dtype=torch.bool).tril()}

    def attend(q, k, v):
        T, S = q.shape[-2], k.shape[-2]
        if S > len(memo["mask"]):
            memo["mask"] = torch.ones(S, S, dtype=torch.bool).tril()
        rows = torch.arange(S - T, S).clamp(min=0)
        keep = memo["mask"][rows, :S] & (torch.arange(S - T, S) >= 0)[:, None]
        s = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~keep, -torch.inf)
        return s.softmax(-1) @ v

    return attend


class SmallHead(nn.Module):
    def __init__(self, width, d):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, d, bias=False) for _ in range(3))
        self.dropout = nn.Dropout(0.2)

    def forward(self, x, closed):
        scores = torch.baddbmm(closed, self.query(x), self.key(x).mT, alpha=5**-0.5)
        weights = scores.softmax(dim=2)
        return self.dropout(weights) @ self.value(x), weights


class Committee(nn.Module):
    """Small heads, causal; hands back their weights."""

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(SmallHead(10, 5) for _ in range(2))
        self.proj = nn.Linear(10, 10)

    def forward(self, x):
        T = x.shape[1]
        closed = torch.triu(x.new_full((T, T), -torch.inf), diagonal=1)
        outs, weights = zip(*[head(x, closed) for head in self.heads], strict=True)
        return self.proj(torch.cat(outs, dim=2)), torch.stack(weights, 1)


class DotProduct(nn.Module):
    """No parameters; it returns its weights too."""

    def forward(self, query, memory, content):
        weights = (query @ memory.mT / query.shape[-1] ** 0.5).softmax(dim=-1)
        return weights @ content, weights


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


# ---------------------------------------------------------------- libraries


def attn_lib_function():
    from attn_lib import attention

    return lambda q, k, v, mask=None: attention(q, k, v, mask=mask)


def attn_lib_layer():
    from attn_lib import MultiHeadAttention

    torch.manual_seed(0)
    return MultiHeadAttention(16, 4, num_kv_heads=2)


def x_transformers():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it still uses torch.jit.script
        from x_transformers.x_transformers import Attention
    torch.manual_seed(0)
    layer = Attention(12, heads=3, dim_head=4, causal=True).eval()
    for p in layer.parameters():
        nn.init.normal_(p, std=0.3)  # its output projection starts at zero
    return layer


def hugging_face(model, config, attention, sizes, **options):
    """A layer of random weights."""
    module = import_module(f"transformers.models.{model}.modeling_{model}")
    made = getattr(module, config)(**sizes, attn_implementation="eager")
    torch.manual_seed(0)
    return getattr(module, attention)(made, **options).eval()


def hugging_face_llama():
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    layer = hugging_face("llama", "LlamaConfig", "LlamaAttention", sizes, layer_idx=0)
    table = LlamaRotaryEmbedding(layer.config)

    def attend(hidden_states):
        T = hidden_states.shape[1]
        turned = table(hidden_states, torch.arange(T)[None])
        late = torch.full((T, T), torch.finfo(hidden_states.dtype).min).triu(1)
        mask = late.to(hidden_states.dtype)[None, None]
        return layer(hidden_states, position_embeddings=turned, attention_mask=mask)

    attend.layer = layer
    return attend


def bart():
    from transformers.models.bart import modeling_bart as bart

    config = bart.BartConfig(attn_implementation="eager")
    return bart.BartAttention(12, 3, config=config, layer_idx=0)


WIDTHS = {"hidden_size": 12, "num_attention_heads": 3}
BERT = ("bert", "BertConfig", "BertSelfAttention", {**WIDTHS, "attention_probs_dropout_prob": 0.0})
GPT2 = ("gpt2", "GPT2Config", "GPT2Attention", {"n_embd": 12, "n_head": 3})


# ---------------------------------------------------------------- what their authors would say


def of_torch(**options):
    torch.manual_seed(0)
    return nn.MultiheadAttention(12, 3, **options).eval()


def seeded(kind):
    torch.manual_seed(3)
    return kind().eval()


SDPA = F.scaled_dot_product_attention
GROUPED = {"arguments": "q, k, v", "options": {"enable_gqa": True}, "heads": 4, "kv_heads": 2}
LLAMA = {"causal": True, "rope_base": 10_000.0, "heads": 4, "kv_heads": 2}
PADDING = {"mask_means": "additive", "mask_shape": "B11S", "heads": 3}
RIGHT |= {
    "a mask that grows": (grown_mask, {"causal": True}),
    "committee": (lambda: seeded(Committee), {"causal": True}),
    "committee in training": (lambda: seeded(Committee).train(), {}),
    "no parameters": (DotProduct, {"arguments": "query=q, memory=k, content=v"}),
    "four linears": (lambda: FourLinears(3, 12), {}),
    "torch's function": (lambda: SDPA, {"arguments": "q, k, v, mask"}),
    "torch's function, grouped": (lambda: SDPA, GROUPED),
    "torch, sequence first": (lambda: of_torch(), {"layout": "TBd"}),
    "torch with dropout": (lambda: of_torch(batch_first=True, dropout=0.1, bias=False), {}),
    "attn_lib's function": (attn_lib_function, {"mask_means": "attend"}),
    "attn_lib": (attn_lib_layer, {"mask_means": "attend"}),
    "hugging face llama": (hugging_face_llama, {**LLAMA, "module": lambda fn: fn.layer}),
    "hugging face bert": (lambda: hugging_face(*BERT), PADDING),
    "hugging face gpt2": (lambda: hugging_face(*GPT2, layer_idx=0), {}),
    "hugging face bart": (bart, {}),
    "x-transformers": (x_transformers, {"causal": True, "heads": 3}),
}
