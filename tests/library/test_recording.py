"""Weights of any model: against other libraries' own, and in every bad moment."""

import copy
import gc
import math
import re
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from cases import draw, layer_of, random_mask
from hypothesis import given
from hypothesis import strategies as st
from tables import for_each, raises_for_each
from torch import nn
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.modules import module as torch_module
from torch.utils.checkpoint import checkpoint

from attn_lib import attention_weights, record_attention
from attn_lib.layers import split_heads

INF = math.inf


class Kernel(nn.Module):
    """Calls the kernel and nothing else."""

    def forward(self, *args, **options):
        return F.scaled_dot_product_attention(*args, **options)


class Model(nn.Module):
    """A projection and the kernel, T queries of three heads."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.q_proj, self.dropout = nn.Linear(6, 6), dropout

    def forward(self, x):
        q = split_heads(self.q_proj(x), 3)
        p = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, q, q, dropout_p=p).transpose(1, 2).flatten(2)


class Multi(nn.Module):
    """Self-attention by PyTorch's layer."""

    def __init__(self, **options):
        super().__init__()
        self.inner = nn.MultiheadAttention(6, 3, batch_first=True, **options)

    def forward(self, x):
        return self.inner(x, x, x, need_weights=False)[0]


KINDS = {
    "kernel": lambda p, seed: Model(p),
    "multi": lambda p, seed: Multi(dropout=p),
    "ours": lambda p, seed: layer_of(seed, torch.float32, dropout=p),
    "softcap": lambda p, seed: layer_of(seed, torch.float32, dropout=p, softcap=2.0),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def model_of(kind, dropout=0.0, seed=0):
    torch.manual_seed(seed)
    return KINDS[kind](dropout, seed)


def inputs(*shape, seed=0):
    return draw(*shape, seed=seed, dtype=torch.float32)


def recorded(model, *args, **options):
    """The weights of a call, and what it returned."""
    with record_attention(model) as maps:
        out = model(*args, **options)
    return maps, out


def of_kernel(*args, **options):
    maps, out = recorded(Kernel(), *args, **options)
    return maps[""], out


def hooks():
    names = ("forward_hooks", "forward_pre_hooks", "forward_hooks_always_called")
    return [hook for name in names for hook in getattr(torch_module, f"_global_{name}").values()]


# ---------------------------------------------------------------- other libraries' models

TEXT = {"vocab_size": 31, "hidden_size": 24, "intermediate_size": 20}
TEXT |= {"num_hidden_layers": 2, "num_attention_heads": 6}
GPT2 = {"vocab_size": 31, "n_embd": 24, "n_layer": 2, "n_head": 6}
IMAGE = {**TEXT, "image_size": 8, "patch_size": 4, "num_channels": 2}
HUGGING_FACE = {
    "Llama": ({**TEXT, "num_key_value_heads": 2}, "left", "layers.{}.self_attn"),
    "Bert": (TEXT, "right", "encoder.layer.{}.attention.self"),
    "GPT2": (GPT2, "left", "h.{}.attn"),
    "ViT": (IMAGE, None, "layers.{}.attention"),
}


def hugging_face(name, kind):
    torch.manual_seed(0)
    options = {**HUGGING_FACE[name][0], "attn_implementation": kind}
    config = getattr(transformers, f"{name}Config")(**options)
    return getattr(transformers, f"{name}Model")(config).eval()


@pytest.mark.parametrize("name", HUGGING_FACE)
@torch.no_grad()
def test_hugging_face_models_give_their_own_eager_weights(name):
    _, padded, layer_name = HUGGING_FACE[name]
    model, eager = (hugging_face(name, kind) for kind in ("sdpa", "eager"))
    real, given_to = torch.ones(2, 7, dtype=torch.long), {"pixel_values": inputs(2, 2, 8, 8)}
    if padded:
        real[1, slice(0, 3) if padded == "left" else slice(4, 7)] = 0
        tokens = torch.randint(31, (2, 7), generator=torch.Generator().manual_seed(1))
        given_to = {"input_ids": tokens, "attention_mask": real}
    maps, out = recorded(model, **given_to)
    assert torch.equal(out.last_hidden_state, model(**given_to).last_hidden_state)
    expected = eager(**given_to, output_attentions=True).attentions
    assert list(maps) == [layer_name.format(i) for i in range(2)]
    for found, weights in zip(maps.values(), expected, strict=True):
        assert found.shape == weights.shape
        rows = real.bool() if padded else torch.ones(2, found.shape[-2], dtype=torch.bool)
        found, weights = (w.transpose(1, 2)[rows] for w in (found, weights))
        torch.testing.assert_close(found, weights, rtol=1e-5, atol=1e-6)
        assert (found - 1 / found.shape[-1]).abs().max() > 1e-3  # no uniform rows compared


CLOSED = {"attn_mask": torch.ones(5, 7, dtype=torch.bool).triu(3)}
PADDED = {"key_padding_mask": torch.arange(7) >= torch.tensor([[7], [4]])}
MASKS = {
    "none": {},
    "bool": CLOSED,
    "float": {"attn_mask": torch.full((5, 7), -INF).triu(3)},
    "per head": {"attn_mask": draw(6, 5, 7, dtype=torch.float32)},
    "padding": PADDED,
    "both": {**CLOSED, **PADDED},
}
LAYERS = {"plain": {}, "widths": {"kdim": 4, "vdim": 5}}
LAYERS["extra keys"] = {"add_bias_kv": True, "add_zero_attn": True}


@pytest.mark.parametrize("layout", ["batch first", "batch second", "unbatched"])
@pytest.mark.parametrize("options", LAYERS)
@pytest.mark.parametrize("masked", MASKS)
def test_the_layer_of_pytorch_gives_its_own_weights_per_head(masked, options, layout):
    torch.manual_seed(0)
    masks, asked = dict(MASKS[masked]), layout == "unbatched"
    if layout == "unbatched":  # those of example 0 or 1 alone
        one = {"attn_mask": slice(3) if masked == "per head" else ..., "key_padding_mask": 1}
        masks = {name: mask[one[name]] for name, mask in masks.items()}
    of_layer = {"batch_first": layout == "batch first", "dropout": 0.3, **LAYERS[options]}
    layer = nn.MultiheadAttention(6, 3, **of_layer)
    k_width, v_width = (4, 5) if options == "widths" else (6, 6)
    inside = inputs(2, 5, 6), inputs(2, 7, k_width, seed=1), inputs(2, 7, v_width, seed=2)
    if layout == "batch second":
        inside = [x.transpose(0, 1) for x in inside]
    elif layout == "unbatched":
        inside = [x[0] for x in inside]
    results = []
    for block in (nullcontext(), record_attention(layer)):
        torch.manual_seed(1)
        with block as maps:
            out, weights = layer(*inside, need_weights=asked, **masks)
        results.append([out, *([weights] if asked else []), torch.random.get_rng_state()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    layer.eval()
    _, expected = layer(*inside, average_attn_weights=False, **masks)
    expected = expected if expected.dim() == 4 else expected[None]
    assert list(maps) == [""]
    assert maps[""].shape == expected.shape
    torch.testing.assert_close(maps[""], expected)


CLOSED_TO_ALL = torch.zeros(5, 7, dtype=torch.bool)
CLOSED_TO_ALL[2] = True
ONE_HEAD = torch.zeros(6, 5, 7, dtype=torch.bool)
ONE_HEAD[4, 2] = True  # of example 1, head 1
NO_KEY = torch.tensor([[False] * 7, [True] * 7])


@for_each(  # how they are closed, and which are empty; None: there is no batch
    ({"attn_mask": CLOSED_TO_ALL}, np.s_[:, :, 2]),
    ({"key_padding_mask": NO_KEY}, 1),
    ({"key_padding_mask": NO_KEY[1]}, None),
    ({"attn_mask": ONE_HEAD}, (1, 1, 2)),
)
def test_a_query_of_pytorchs_layer_without_a_key_has_zeros(options, empty):
    layer = nn.MultiheadAttention(6, 3, batch_first=True)
    x, context = inputs(2, 5, 6), inputs(2, 7, 6, seed=1)
    if empty is None:
        x, context = x[0], context[0]
    maps, _ = recorded(layer, x, context, context, need_weights=False, **options)
    expected = torch.ones(maps[""].shape[:-1])
    expected[empty] = 0.0
    torch.testing.assert_close(maps[""].sum(-1), expected)
    layer.in_proj_weight.data[0, 0] = math.nan  # what is NaN itself stays so
    maps, _ = recorded(layer, x, context, context, need_weights=False, **options)
    assert torch.equal(maps[""].isnan().all(-1)[:, 0], expected[:, 0] == 1)


def test_the_function_behind_pytorchs_layer_may_be_called_with_a_bool_mask():
    """The layer itself always hands it numbers."""

    class Direct(nn.Module):
        def forward(self, x, mask):
            weights = inputs(18, 6), inputs(18), None, None, False, 0.0, inputs(6, 6), inputs(6)
            options = {"need_weights": False, "attn_mask": mask}
            return F.multi_head_attention_forward(x, x, x, 6, 3, *weights, **options)

    mask = torch.eye(5, dtype=torch.bool)  # True = closed
    mask[2] = True
    maps, _ = recorded(Direct(), inputs(5, 2, 6), mask)
    assert torch.equal(maps[""] != 0, ~mask.expand(2, 3, 5, 5))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("train", [True, False])
def test_the_encoder_of_pytorch_is_recorded_in_every_mode(train, grad):
    """In evaluation without gradients it would run fused, on a nested tensor without padding."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 11, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 1).train(train)
    x, closed = inputs(2, 5, 8), torch.arange(5) >= torch.tensor([[5], [3]])
    with torch.set_grad_enabled(grad):
        maps, out = recorded(model, x, src_key_padding_mask=closed)
        plain = model(x, src_key_padding_mask=closed)
    assert list(maps) == ["layers.0.self_attn"]
    options = {"key_padding_mask": closed, "average_attn_weights": False}
    _, expected = model.layers[0].self_attn(x, x, x, **options)
    torch.testing.assert_close(maps["layers.0.self_attn"], expected)
    if train or grad:
        assert torch.equal(out, plain)
    else:
        torch.testing.assert_close(out[~closed], plain[~closed], rtol=1e-5, atol=1e-6)
        assert not plain[closed].any()  # the fused encoder's zeros
        assert out[closed].any()


# ---------------------------------------------------------------- the kernel


def check_weights(q, k, v, **options):
    """Recorded weights times v is what the call returned; they are the library's own."""
    weights, out = of_kernel(q, k, v, **options)
    assert torch.equal(out, Kernel()(q, k, v, **options))
    assert weights.dtype == q.dtype
    if options.get("enable_gqa"):
        k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], dim=-3) for x in (k, v))
    torch.testing.assert_close(weights @ v, out, rtol=1e-10, atol=1e-12)
    mask, shape = options.get("attn_mask"), weights.shape
    q, k = (x.expand(*shape[:-2], *x.shape[-2:]) for x in (q, k))
    parts = {}
    if mask is not None:
        kind = "mask" if mask.dtype == torch.bool else "attn_bias"
        parts[kind] = mask.expand(shape)
    if options.get("is_causal"):
        causal = torch.ones(shape[-2:], dtype=torch.bool).tril()  # top left, unlike causal_mask
        parts["mask"] = causal & parts.get("mask", causal)
    expected = attention_weights(q, k, scale=options.get("scale"), **parts)
    torch.testing.assert_close(weights, expected, rtol=1e-10, atol=1e-12)


@st.composite
def calls(draw_from):
    """Arguments of the kernel: sizes, ranks, masks and options that nobody chose by hand."""
    T, S, d_k, d_v, heads = (draw_from(st.integers(1, 5)) for _ in range(5))
    seed, group = draw_from(st.integers(0, 2**20)), draw_from(st.integers(1, 3))
    leading = draw_from(st.sampled_from([(), (2,), (3, 2)]))
    grouped = draw_from(st.booleans())
    sizes = [(heads * (group if grouped else 1), T, d_k), (heads, S, d_k), (heads, S, d_v)]
    q, k, v = (draw(*leading, *size, seed=seed + i) for i, size in enumerate(sizes))
    options = {"enable_gqa": True} if grouped else {}
    if draw_from(st.booleans()):
        options["scale"] = draw_from(st.sampled_from([0.1, 1.0, 3.0, -0.3]))
    masked = draw_from(st.sampled_from([None, "causal", "bool", "float", "closed"]))
    if masked == "causal":
        options["is_causal"] = True
    elif masked:
        shape = draw_from(st.sampled_from([(T, S), (1, S), (*q.shape[:-2], T, S), (1, T, 1)]))
        keep, attn_bias = random_mask(*shape, seed=seed + 3), draw(*shape, seed=seed + 4)
        closed = attn_bias.masked_fill(~keep, -INF)
        options["attn_mask"] = {"bool": keep, "float": attn_bias, "closed": closed}[masked]
    return (q, k, v), options


@given(calls())
def test_the_kernel_is_understood_as_pytorch_means_it(call):
    tensors, options = call
    check_weights(*tensors, **options)


Q, K, V = draw(2, 3, 5, 7), draw(2, 3, 11, 7, seed=1), draw(2, 3, 11, 13, seed=2)
EMPTY = torch.ones(2, 1, 5, 11, dtype=torch.bool)
EMPTY[1, 0, 2] = False


@for_each(
    ((Q[0, 0], K[0, 0], V[0, 0]), {"is_causal": True}),
    ((Q[:1], K, V), {}),  # leading axes that broadcast
    ((Q, Q, Q), {"attn_mask": torch.rand(2, 3, 5, 5) < 0.5, "is_causal": True}),
    ((Q[..., :0, :], K, V), {}),
)
def test_the_kernel_in_its_corners(tensors, options):
    check_weights(*tensors, **options)


def test_positional_and_keyword_arguments_are_one():
    mask = torch.rand(5, 11, generator=torch.Generator().manual_seed(0)) < 0.5
    with record_attention(model := Kernel()) as maps:
        model(Q, K, V, mask, 0.0, False, scale=0.3)
        positional = maps[""]
        model(value=V, query=Q, key=K, scale=0.3, attn_mask=mask)
        assert torch.equal(maps[""], positional)
        model(Q[:, :, :3], K[:, :, :3], V[:, :, :3], None, 0.0, True)
    assert torch.equal(maps[""] > 0, torch.ones(2, 3, 3, 3, dtype=torch.bool).tril())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    q, k, v = (30 * x.to(dtype) for x in (Q, K, V))  # q·k is far beyond what dtype tells apart
    weights, out = of_kernel(q, k, v, scale=0.01)
    expected = attention_weights(q.double(), k.double(), scale=0.01)
    assert weights.dtype == out.dtype == dtype
    torch.testing.assert_close(weights.double(), expected, rtol=torch.finfo(dtype).eps, atol=1e-6)


@for_each({}, {"attn_mask": EMPTY}, {"attn_mask": inputs(5, 11)}, ids=["", "bool", "float"])
def test_under_autocast_the_kernels_own_inputs_count(options):
    q, k, v = (x.float() for x in (Q, K, V))
    with torch.autocast("cpu", torch.bfloat16):
        plain = Kernel()(q, k, v, **options)
        weights, out = of_kernel(q, k, v, **options)
    assert torch.equal(out, plain)
    assert weights.dtype == plain.dtype == torch.bfloat16
    mask = options.get("attn_mask")
    kind = "mask" if mask is None or mask.dtype == torch.bool else "attn_bias"

    def expected(round_to):
        given = [x if x is None or x.dtype == torch.bool else round_to(x) for x in (q, k, mask)]
        return attention_weights(*given[:2], **{kind: given[2]}).double()

    near, weights = {"rtol": 2**-8, "atol": 1e-6}, weights.double()
    torch.testing.assert_close(weights, expected(lambda x: x.bfloat16().double()), **near)
    assert not torch.allclose(weights, expected(torch.Tensor.double), **near)


@pytest.mark.parametrize("variant", [causal_upper_left, causal_lower_right])
def test_a_causal_bias_of_pytorch_is_its_triangle(variant):
    triangle = torch.ones(5, 11, dtype=torch.bool).tril(6 if variant is causal_lower_right else 0)
    for q, k, v in ((Q, K, V), (Q[0], K[0], V[0])):
        weights, out = of_kernel(q, k, v, attn_mask=variant(5, 11))
        torch.testing.assert_close(weights @ v, out)
        assert torch.equal(weights > 0, triangle.expand(weights.shape))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_padded_with_zeros():
    queries, keys = [5, 2], [7, 11]
    lists = enumerate([queries, keys, keys])
    rows = [[draw(n, 3, 7, seed=10 * seed + n) for n in lengths] for seed, lengths in lists]
    jagged = [torch.nested.nested_tensor(one, layout=torch.jagged) for one in rows]
    q, k, v = (one.transpose(1, 2) for one in jagged)
    weights, out = of_kernel(q, k, v, scale=0.3)
    assert weights.shape == (2, 3, 5, 11)
    for b, (T, S) in enumerate(zip(queries, keys, strict=True)):
        torch.testing.assert_close(weights[b, :, :T, :S] @ v.unbind()[b], out.unbind()[b])
        assert not weights[b, :, T:].any()
        assert not weights[b, :, :, S:].any()


def test_a_nan_that_the_kernel_loses_is_seen_in_the_weights():
    spoilt = K.clone()
    spoilt[..., 0, 0] = math.nan
    assert bool(of_kernel(Q[..., :1, :], spoilt, V)[0].isnan().all())


def test_meta_tensors_have_shapes():
    weights, _ = of_kernel(*[torch.empty(2, 3, 5, 7, device="meta")] * 3, is_causal=True)
    assert (weights.shape, weights.device.type) == ((2, 3, 5, 5), "meta")


# ---------------------------------------------------------------- nothing else changes


@every_kind
@pytest.mark.parametrize("train", [True, False])
def test_outputs_gradients_and_random_numbers_are_the_same(kind, train):
    model, x = model_of(kind, dropout=0.3).train(train), inputs(2, 5, 6).requires_grad_()
    results = []
    for block in (nullcontext(), record_attention(model)):
        torch.manual_seed(3)
        with block as maps:
            outs = [model(x) for _ in range(2)]
        sums = [weights.sum(-1) for weights in (maps or {}).values()]
        for weights in (maps or {}).values():
            weights.zero_()  # they are the caller's own
        (grad,) = torch.autograd.grad(sum(out.square().sum() for out in outs), x)
        results.append([*outs, grad, torch.random.get_rng_state()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert torch.equal(results[0][0], results[0][1]) != train
    assert list(maps) == (["inner"] if kind == "multi" else [""])
    (weights,) = maps.values()
    assert not weights.requires_grad
    torch.testing.assert_close(sums, [torch.ones(2, 3, 5)])  # before dropout


def test_nothing_is_kept_but_the_weights():
    kept, alive = [], []
    for kind in KINDS:
        model, x = model_of(kind), inputs(2, 5, 6).requires_grad_()
        maps, out = recorded(model, x)
        kept.extend(maps.values())
        alive += [weakref.ref(thing) for thing in (model, x, out)]
    del model, x, out
    gc.collect()
    assert {ref() for ref in alive} == {None}
    assert {weights.grad_fn for weights in kept} == {None}
    assert [w.untyped_storage().nbytes() for w in kept] == [4 * 2 * 3 * 5 * 5] * len(KINDS)
    assert hooks() == []


# ---------------------------------------------------------------- names and passes


class Twice(nn.Module):
    """Two layers, of which the first is used as often as is said."""

    def __init__(self, make):
        super().__init__()
        self.first, self.second = make(), make()
        self.tied = self.first

    def forward(self, x, times=2):
        for _ in range(times):
            x = self.tied(x)
        return self.second(x)


@every_kind
def test_a_further_call_in_one_pass_has_a_name_of_its_own(kind):
    model, x = Twice(lambda: model_of(kind)), inputs(2, 5, 6)
    inner = ".inner" if kind == "multi" else ""
    names = [f"first{inner}", f"first{inner}#2", f"first{inner}#3", f"second{inner}"]
    with record_attention(model.first) as single:
        model.first(x)
        one = single[inner[1:]]
        model.first(model.first(x))  # two passes of it, not two calls in one
    assert list(single) == [inner[1:]]
    with record_attention(model) as maps:
        model(x, times=3)
        assert list(maps) == names
        assert torch.equal(maps[names[0]], one)
        assert torch.equal(maps[names[1]], single[inner[1:]])
        assert not torch.equal(maps[names[1]], maps[names[2]])
        before = dict(maps)
        model(x[:1], times=2)
        assert list(maps) == [names[0], names[3], names[1]]  # none of an earlier pass
        assert {weights.shape[0] for weights in maps.values()} == {1}
        model.first(x)  # a part, called from outside, is a pass of its own
    assert {name: len(weights) for name, weights in maps.items()} == {names[0]: 2, names[3]: 1}
    assert len(before[names[1]]) == 2


def test_only_what_runs_inside_the_model_is_recorded():
    x = inputs(2, 5, 6)
    model, other = Twice(lambda: model_of("kernel")), model_of("kernel", seed=1)
    wrapped = nn.Sequential(other, nn.Sequential(model))
    with record_attention(model) as maps:
        other(x)
        F.scaled_dot_product_attention(x, x, x)
        assert maps == {}
        wrapped(x)
        found = dict(maps)
        other(x)
        F.scaled_dot_product_attention(x, x, x)
    assert list(maps) == ["first", "first#2", "second"]
    assert all(maps[name] is weights for name, weights in found.items())
    maps, _ = recorded(wrapped, x)
    assert list(maps) == ["0", "1.0.first", "1.0.first#2", "1.0.second"]
    assert all(torch.equal(maps[f"1.0.{name}"], weights) for name, weights in found.items())


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_recomputed_part_keeps_its_name(reentrant):
    class Checkpointed(Twice):
        def forward(self, x):
            return self.second(checkpoint(self.first, x, use_reentrant=reentrant))

    model = Checkpointed(lambda: model_of("kernel"))
    with record_attention(model) as maps:
        for _ in range(2):
            model(inputs(2, 5, 6).requires_grad_()).sum().backward()
    assert sorted(maps) == ["first", "second"]


# ---------------------------------------------------------------- nested, failing, threaded


@every_kind
def test_recordings_nest(kind):
    model, other, x = model_of(kind), model_of(kind, seed=1), inputs(2, 5, 6)
    name = "inner" if kind == "multi" else ""
    expected, _ = recorded(model, x)
    with record_attention(model) as outer, record_attention(other) as others:
        other(x)
        with record_attention(model) as inner:
            model(x)
        assert list(outer) == [name]  # not once more for what the inner one asked
        assert torch.equal(outer[name], inner[name])
        model(2 * x)
    assert list(outer) == list(inner) == list(others) == [name]
    assert torch.equal(inner[name], expected[name])
    assert not torch.equal(outer[name], expected[name])
    assert not torch.equal(others[name], expected[name])
    assert hooks() == []


class Failing(nn.Module):
    def forward(self, x):
        q = x[:, None]
        F.scaled_dot_product_attention(q, q, q)
        if len(x) == 1:
            raise ValueError("one example")
        return x


def test_an_error_inside_the_model_tears_nothing():
    model = nn.Sequential(nn.Sequential(Model(), Failing()), Model())
    with record_attention(model) as maps:
        for _ in range(2):
            with pytest.raises(ValueError, match="one example"):
                model(inputs(1, 5, 6))
        assert list(maps) == ["0.0", "0.1"]
        model(inputs(2, 5, 6))
    assert list(maps) == ["0.0", "0.1", "1"]
    assert {len(weights) for weights in maps.values()} == {2}


def test_leaving_by_an_error_ends_the_recording():
    model, x = model_of("kernel"), inputs(2, 5, 6)
    with pytest.raises(AttributeError, match="no_such_method"), record_attention(model) as maps:
        model(x).no_such_method()
    assert hooks() == torch.overrides._get_current_function_mode_stack() == []
    before = maps[""]
    model(2 * x)
    assert maps[""] is before
    with pytest.raises(ValueError, match="first"), record_attention(model):
        raise ValueError("first")  # not: the model did not run


def test_two_threads_do_not_mix():
    model, xs = model_of("kernel"), [inputs(2, 5, 6, seed=i) for i in range(2)]
    expected = [recorded(model, x)[0][""] for x in xs]
    barrier = threading.Barrier(2, timeout=60)

    def work(i):
        for _ in range(40):
            barrier.wait()
            with record_attention(model) as maps:
                barrier.wait()
                model(xs[i])
                barrier.wait()
            assert list(maps) == [""]
            assert torch.equal(maps[""], expected[i])

    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(work, range(2))] == [None] * 2
    assert hooks() == []


def test_a_recording_hears_its_own_thread_alone():
    """Also while its model runs: the other thread stands in a part of it when this one calls."""
    x, y = inputs(2, 5, 6), inputs(3, 7, 6, seed=1)
    inside, called = threading.Event(), threading.Event()

    class Holds(nn.Module):
        def forward(self, y):
            inside.set()
            called.wait(60)
            return model[0](y)

    class Calls(nn.Sequential):
        def forward(self, x):
            other = threading.Thread(target=self[0], args=(y,))
            other.start()
            inside.wait(60)
            q = x[:, None]
            F.scaled_dot_product_attention(q, q, q)
            called.set()
            other.join()
            return x

    model = nn.Sequential(Model(), Calls(Holds()), Model())
    maps, _ = recorded(model, x)
    shapes = {"0": (2, 3, 5, 5), "1": (2, 1, 5, 5), "2": (2, 3, 5, 5)}
    assert {name: tuple(w.shape) for name, w in maps.items()} == shapes


# ---------------------------------------------------------------- what cannot be seen

UNSEEN = (
    "Linear ran, but nothing could be recorded: it never called F.scaled_dot_product_attention "
    "or nn.MultiheadAttention where this thread can see it. Load a transformers model with "
    "attn_implementation='sdpa'; run a compiled, scripted or traced model as the plain module "
    "that it was made from"
)


EAGER = partial(hugging_face, "Bert", "eager")


@pytest.mark.filterwarnings("ignore:`torch.jit.trace")
@raises_for_each(
    (lambda: nn.Linear(6, 6), [inputs(2, 6)], RuntimeError, f"^{re.escape(UNSEEN)}$"),
    (EAGER, [torch.zeros(1, 3).long()], RuntimeError, "BertModel ran.*attn_implementation='sdpa'"),
    (partial(torch.jit.trace, Kernel(), (Q, K, V)), (Q, K, V), RuntimeError, "nothing.*traced"),
    (lambda: print, "x", TypeError, r"model must be an nn\.Module, got builtin_function"),
)
def test_a_model_without_attention_is_reported(make, args):
    model = make()
    with record_attention(model):
        model(*args)


@for_each(
    lambda model, x: copy.deepcopy(model)(x),
    lambda model, x: ThreadPoolExecutor(1).submit(model, x).result(),
)
def test_a_model_that_did_not_run_is_reported(call):
    message = "^Model did not run inside the block of record_attention "
    message += r"\(or ran only compiled, or in another thread\): "
    message += "call the very model that was given, uncompiled$"
    model = model_of("kernel")
    with pytest.raises(RuntimeError, match=message), record_attention(model):
        call(model, inputs(2, 5, 6))


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
@torch.no_grad()
def test_a_compiled_model_is_reported_and_can_be_helped():
    """Compiled as a whole, under another name, and in one layer."""
    torch._dynamo.reset()
    model, other, x = *(Twice(lambda: model_of("kernel")) for _ in range(2)), inputs(2, 5, 6)
    plain, whole = model(x), torch.compile(model, backend="aot_eager")
    other.second.compile(backend="aot_eager")
    hidden = r"ran compiled.*cannot be recorded: run the block under .*'force_eager'\)$"
    unseen = "did not run.*only compiled"
    rows = (whole, whole, hidden), (whole, model, unseen), (other, other, hidden)
    for called, watched, message in rows:
        called(x)  # compiled before the recording, too
        for _ in range(2):
            with pytest.raises(RuntimeError, match=message), record_attention(watched):
                torch.testing.assert_close(called(x), plain)
        with torch.compiler.set_stance("force_eager"), record_attention(watched) as maps:
            assert torch.equal(called(x), plain)
        assert len(maps) == 3
    torch._dynamo.reset()
