"""Right attentions that look unusual: nothing may be said against them."""

import math
import warnings

import torch
import torch.nn.functional as F
from torch import nn

from planted.plants import PLANTS, RIGHT


def right(**intent):
    def keep(fn):
        RIGHT[fn.__name__] = (lambda: fn, intent)
        return fn

    return keep


def right_made(**intent):
    def keep(make):
        RIGHT[make.__name__] = (make, intent)
        return make

    return keep


# ---------------------------------------------------------------- functions


@right()
def loops(q, k, v):
    out = q.new_zeros(*q.shape[:-1], v.shape[-1])
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for t in range(q.shape[2]):
                w = torch.softmax(k[b, h] @ q[b, h, t] / math.sqrt(q.shape[-1]), dim=0)
                out[b, h, t] = w @ v[b, h]
    return out


@right(mask_means="attend")
def einsum(q, k, v, mask=None):
    scores = torch.einsum("bhtd,bhsd->bhts", q, k) / q.shape[-1] ** 0.5
    if mask is not None:
        scores = torch.where(mask, scores, -torch.inf)
    return torch.einsum("bhts,bhsd->bhtd", scores.softmax(-1), v)


@right()
def online_softmax(q, k, v, block=16):
    q = q / math.sqrt(q.shape[-1])
    top = q.new_full((*q.shape[:-1], 1), -torch.inf)
    total, out = torch.zeros_like(top), q.new_zeros(*q.shape[:-1], v.shape[-1])
    for keys, values in zip(k.split(block, dim=2), v.split(block, dim=2), strict=True):
        s = q @ keys.mT
        new = torch.maximum(top, s.amax(-1, keepdim=True))
        e, shrink = (s - new).exp(), (top - new).exp()
        out, total, top = out * shrink + e @ values, total * shrink + e.sum(-1, True), new
    return out / total


@right(mask_means="blocked", causal=True)
def in_float64(q, k, v, mask=None):
    T, S = q.shape[-2], k.shape[-2]
    closed = torch.ones(T, S, dtype=torch.bool).triu(S - T + 1)
    closed = closed if mask is None else closed | mask
    scores = (q.double() @ k.double().mT / math.sqrt(q.shape[-1])).masked_fill(closed, -math.inf)
    return (scores.softmax(-1).masked_fill(closed, 0.0) @ v.double()).to(q.dtype)


@right(causal=True)
def chunked_queries(q, k, v, chunk=8):
    T, S, outs = q.shape[2], k.shape[2], []
    for first in range(0, T, chunk):
        part = q[:, :, first : first + chunk]
        at = torch.arange(first, first + part.shape[2])[:, None] + S - T
        s = part @ k.mT / math.sqrt(q.shape[-1])
        outs.append(s.masked_fill(torch.arange(S) > at, -torch.inf).softmax(-1) @ v)
    return torch.cat(outs, dim=2)


@right(mask_means="attend")
def in_place_on_its_own(q, k, v, mask=None):
    scores = torch.matmul(q, k.mT)
    scores.mul_(q.shape[-1] ** -0.5)
    if mask is not None:
        scores.masked_fill_(~mask, float("-inf"))
    return torch.matmul(scores.softmax(dim=-1), v).contiguous()


@right(mask_means="additive")
def heads_in_the_batch(q, k, v, mask=None):
    B, H, T, d = q.shape
    q, k, v = (t.reshape(B * H, *t.shape[2:]) for t in (q, k, v))
    start = q.new_zeros(1, 1, 1) if mask is None else mask.expand(B, H, T, k.shape[1])
    start = start if mask is None else start.reshape(B * H, T, -1).to(q.dtype)
    w = torch.baddbmm(start, q, k.mT, alpha=1 / math.sqrt(d)).softmax(-1)
    return torch.bmm(w, v).view(B, H, T, -1)


@right(causal=True)
def log_sum_exp(q, k, v):
    T, S = q.shape[-2:-1].numel(), k.shape[-2]
    s = (q / math.sqrt(q.shape[-1])) @ k.mT
    s = s + torch.full((T, S), -torch.inf, dtype=s.dtype).triu(S - T + 1)
    return (s - s.logsumexp(-1, keepdim=True)).exp() @ v


@right()
def transposed_keys(q, k, v):
    root = q.shape[-1] ** 0.25
    keys = (k / root).permute(0, 1, 3, 2).contiguous()  # (B, H, d, S), as some caches store them
    w = (q / root @ keys).softmax(-1)
    return w @ v, w


@right_made(causal=True)
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


@right(layout="BTHd", mask_means="blocked")
def positions_before_heads(query, key, value, mask=None):
    s = torch.einsum("bthd,bshd->bhts", query, key) * query.shape[-1] ** -0.5
    s = s if mask is None else s.masked_fill(mask, -torch.inf)
    return torch.einsum("bhts,bshd->bthd", s.softmax(-1), value)


@right(layout="TBHd")
def sequence_first(q, k, v):
    moved = (t.permute(1, 2, 0, 3) for t in (q, k, v))
    return F.scaled_dot_product_attention(*moved).permute(2, 0, 1, 3)


@right(layout="BTd")
def no_heads(q, k, v):
    return torch.bmm(torch.softmax(torch.bmm(q, k.mT) / math.sqrt(k.shape[-1]), dim=2), v)


@right(layout="Td", causal=True)
def one_sentence(q, k, v):
    T, S = len(q), len(k)
    s = (q @ k.T / math.sqrt(q.shape[-1])).masked_fill(
        torch.ones(T, S).triu(S - T + 1).bool(), -torch.inf
    )
    return s.softmax(-1) @ v


@right(mask_means="attend")
def empty_rows_are_zero(q, k, v, mask=None):
    s = (
        (q.float() @ k.float().mT / math.sqrt(q.shape[-1]))
        if q.dtype != torch.float64
        else (q @ k.mT / math.sqrt(q.shape[-1]))
    )
    if mask is not None:
        s = s.masked_fill(~mask, -torch.inf)
    w = s.softmax(-1)
    w = w if mask is None else w.masked_fill(~mask, 0.0)
    return (w @ v.to(w.dtype)).to(q.dtype)


# ---------------------------------------------------------------- libraries

RIGHT["sdpa"] = (lambda: F.scaled_dot_product_attention, {"arguments": "q, k, v, mask"})
RIGHT["sdpa_grouped"] = (
    lambda: F.scaled_dot_product_attention,
    {"arguments": "q, k, v", "options": {"enable_gqa": True}, "heads": 4, "kv_heads": 2},
)
RIGHT["sdpa_causal"] = (
    lambda: F.scaled_dot_product_attention,
    {"arguments": "q, k, v", "options": {"is_causal": True}, "causal": "top_left"},
)
RIGHT["sdpa_scaled"] = (
    lambda: F.scaled_dot_product_attention,
    {"arguments": "q, k, v", "options": {"scale": 0.5}, "scale": 0.5},
)


def _torch(**options):
    torch.manual_seed(0)
    return nn.MultiheadAttention(12, 3, **options).eval()


_QKV = {"arguments": "q, k, v"}
RIGHT["torch_batch_first"] = (lambda: _torch(batch_first=True), {})
RIGHT["torch_sequence_first"] = (lambda: _torch(), {"layout": "TBd"})
RIGHT["torch_dropout"] = (lambda: _torch(batch_first=True, dropout=0.1, bias=False), {})


@right_made(mask_means="attend")
def attn_lib_layer():
    from attn_lib import MultiHeadAttention

    torch.manual_seed(0)
    return MultiHeadAttention(16, 4, num_kv_heads=2)


@right_made(mask_means="attend")
def attn_lib_function():
    from attn_lib import attention

    return lambda q, k, v, mask=None: attention(q, k, v, mask=mask)


@right_made(causal=True, rope_base=10_000.0, heads=4, kv_heads=2, module=lambda fn: fn.layer)
def hugging_face_llama():
    from transformers.models.llama import modeling_llama as llama

    config = llama.LlamaConfig(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, attn_implementation="eager"
    )
    torch.manual_seed(0)
    layer = llama.LlamaAttention(config, layer_idx=0).eval()
    table = llama.LlamaRotaryEmbedding(config)

    def attend(hidden_states):
        T = hidden_states.shape[1]
        turned = table(hidden_states, torch.arange(T)[None])
        late = torch.full((T, T), torch.finfo(hidden_states.dtype).min).triu(1)
        mask = late.to(hidden_states.dtype)[None, None]
        return layer(hidden_states, position_embeddings=turned, attention_mask=mask)

    attend.layer = layer
    return attend


@right_made(mask_means="additive", mask_shape="B11S", heads=3)
def hugging_face_bert():
    from transformers.models.bert import modeling_bert as bert

    config = bert.BertConfig(
        hidden_size=12,
        num_attention_heads=3,
        attn_implementation="eager",
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(0)
    return bert.BertSelfAttention(config).eval()


@right_made(heads=4, kv_heads=2)
def flex_attention():
    from torch.nn.attention.flex_attention import flex_attention as flex

    def attend(q, k, v):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns that it is not compiled
            return flex(q, k, v, enable_gqa=True)

    return attend


@right_made(causal=True, heads=3)
def x_transformers():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it still uses torch.jit.script
        from x_transformers.x_transformers import Attention
    torch.manual_seed(0)
    layer = Attention(12, heads=3, dim_head=4, causal=True).eval()
    for p in layer.parameters():
        nn.init.normal_(p, std=0.3)  # its output projection starts at zero
    return layer


_found = set()
for _plant in PLANTS:
    _fn = _plant.right(0)
    _same = (
        (_plant.form, str(getattr(_plant.right, "keywords", None)))
        if isinstance(_fn, nn.Module)
        else _fn
    )
    _key = (str(_same), str(sorted(_plant.intent.items(), key=str)))
    if not _plant.rope and "third" not in _plant.form and _key not in _found:
        _found.add(_key)
        RIGHT[f"right of {_plant.name}"] = (lambda p=_plant: p.right(0), _plant.intent)
