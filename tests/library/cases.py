"""Inputs, layers and models that several of these tests share."""

import math
from functools import partial

import torch
from hypothesis import strategies as st
from oracle import attention_by_loops
from torch import nn

from attn_lib import causal_mask, interop, padding_mask
from attn_lib.layers import MultiHeadAttention
from attn_lib.masks import to_blocked
from attn_lib.models import DecoderLM
from attn_lib.positions import apply_rope

INF = math.inf
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
ORDERS = {"post-norm": "after", "pre-norm": "before"}
TARGET = torch.tensor([[10, 3, 4, 1, 6], [0, 7, 7, 12, 12]])
PADDING = {  # side: which of the source's and of the target's tokens are real
    "none": (None, None),
    "right": (padding_mask(torch.tensor([7, 4]), 7), padding_mask(torch.tensor([5, 3]), 5)),
}
PADDING["left"] = tuple(mask.flip(0, -1) for mask in PADDING["right"])
ROTATE = partial(apply_rope, base=100.0)
BLOCK = {"d_model": 6, "num_heads": 3, "d_ff": 11}
SIZES = {**BLOCK, "num_layers": 2}


def draw(*shape, seed=0, dtype=torch.float64, size=1.0):
    generator = torch.Generator().manual_seed(seed)
    return (size * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)


@st.composite
def cases(draw_from, dtypes=(torch.float64,)):
    """q, k, v and options for one head, with sizes, magnitudes and masks nobody chose by hand."""
    T, S, d_k, d_v = (draw_from(st.integers(1, 9)) for _ in range(4))
    size = draw_from(st.sampled_from([1e-3, 1.0, 30.0]))
    dtype = draw_from(st.sampled_from(dtypes))
    if dtype == torch.float16:
        size = min(size, 9.0)
    seed = draw_from(st.integers(0, 2**20))
    shapes = enumerate([(T, d_k), (S, d_k), (S, d_v)], seed)
    q, k, v = (draw(*shape, seed=i, dtype=dtype, size=size) for i, shape in shapes)
    options = {"causal": draw_from(st.booleans())}
    if draw_from(st.booleans()):
        options["scale"] = draw_from(st.sampled_from([0.0, 0.1, 1.0, -0.7]))
    if draw_from(st.booleans()):
        options["softcap"] = draw_from(st.sampled_from([0.5, 5.0, 50.0]))
    generator = torch.Generator().manual_seed(seed + 3)
    if draw_from(st.booleans()):
        options["mask"] = torch.rand(T, S, generator=generator) < 0.6
    if draw_from(st.booleans()):
        closed = torch.rand(T, S, generator=generator) < 0.2
        options["attn_bias"] = draw(T, S, seed=seed + 4, dtype=dtype).masked_fill(closed, -INF)
    return q, k, v, options


# ---------------------------------------------------------------- layers


def layer_of(seed=0, dtype=torch.float64, *, d_model=6, num_heads=3, **options):
    torch.manual_seed(seed)
    return MultiHeadAttention(d_model, num_heads, **options).to(dtype)


def masks_for_both(masked, mask_name="attn_mask", padding_name="key_padding_mask"):
    """Options for five positions, of which the second example has three: ours, and PyTorch's."""
    padding, ours, torchs = padding_mask(torch.tensor([5, 3]), 5), {}, {}
    if masked in ("padding", "both"):
        ours["mask"], torchs[padding_name] = padding, to_blocked(padding)[:, 0, 0]
    if masked in ("causal", "both"):
        ours["causal"], torchs[mask_name] = True, to_blocked(causal_mask(5))
    return ours, torchs


def random_mask(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.6


def by_loops(layer, x, context, mask, attn_bias, causal):
    """Each head on its own, its matrices cut out by hand, through the loop oracle."""
    if layer.window is not None:
        places = range(x.shape[1])
        near = torch.tensor([[0 <= i - j < layer.window for j in places] for i in places])
        mask = near if mask is None else mask & near
    outs, shape = [], (len(x), layer.num_heads, -1, -1)
    given = {"mask": mask, "attn_bias": attn_bias}
    wide = {name: part.expand(shape) for name, part in given.items() if part is not None}
    options = {"scale": layer.scale, "softcap": layer.softcap, "causal": causal}
    for b in range(len(x)):
        heads = []
        for h in range(layer.num_heads):
            kv = h // (layer.num_heads // layer.num_kv_heads)

            def project(linear, rows, index, width):
                part = slice(index * width, (index + 1) * width)
                constant = 0.0 if linear.bias is None else linear.bias[part]
                return rows @ linear.weight[part].T + constant

            q = project(layer.q_proj, x[b], h, layer.d_k)
            k = project(layer.k_proj, context[b], kv, layer.d_k)
            v = project(layer.v_proj, context[b], kv, layer.d_v)
            own = {name: given[b, h] for name, given in wide.items()}
            own |= {} if layer.sinks is None else {"sink": layer.sinks[h].item()}
            heads.append(attention_by_loops(q, k, v, **own, **options)[0])
        outs.append(layer.out_proj(torch.cat(heads, dim=-1)))
    return torch.stack(outs)


# ---------------------------------------------------------------- models


def shaken(module, seed=0):
    """Random weights throughout: freshly made norms would not show a norm left out or swapped."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.5)
    return module.double()


def torch_stack(stack):
    """PyTorch's own stack of PyTorch's own layers, with our weights; unchanged without dropout."""
    layers = [interop.to_torch(block) for block in stack.blocks]
    norm = None if isinstance(stack.norm, nn.Identity) else stack.norm
    if isinstance(layers[0], nn.TransformerDecoderLayer):
        found = nn.TransformerDecoder(layers[0], len(layers), norm=norm)
    else:
        found = nn.TransformerEncoder(layers[0], len(layers), norm, enable_nested_tensor=False)
    found.layers = nn.ModuleList(layers)
    return found.train()  # in evaluation PyTorch may take another way


# with these seeds what is written on is more than one token over and over
def language_model(seed=5, max_len=17, **options):
    return shaken(DecoderLM(vocab_size=13, max_len=max_len, **(SIZES | options)), seed).eval()
