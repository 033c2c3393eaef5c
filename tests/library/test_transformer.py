import copy
import inspect
import itertools
from functools import partial

import pytest
import torch
from cases import BLOCK, ORDERS, ROTATE, SIZES, draw, masks_for_both, shaken
from tables import for_each, raises_for_each
from torch import nn

from attn_lib import Cache, DecoderLM, Transformer, VisionTransformer, interop, padding_mask
from attn_lib.layers import FeedForward, MultiHeadAttention
from attn_lib.masks import to_blocked
from attn_lib.positions import LearnedPositions
from attn_lib.transformer import TransformerBlock, TransformerDecoder, TransformerEncoder
from attn_lib.vision import PatchEmbedding

X = draw(2, 4, 6)
KINDS = {"encoder": nn.TransformerEncoderLayer, "decoder": nn.TransformerDecoderLayer}
every_kind = pytest.mark.parametrize("kind", KINDS)
every_order = pytest.mark.parametrize("order", ORDERS)


def torch_layer(kind, norm_at="after", **options):
    first = norm_at == "before"
    return shaken(KINDS[kind](6, 3, 11, batch_first=True, norm_first=first, **options))


def call_of(kind, masked):
    """Inputs of a layer, our options and PyTorch's."""
    x, context = draw(2, 5, 6).requires_grad_(), draw(2, 7, 6, seed=1).requires_grad_()
    if kind == "encoder":
        return [x], *masks_for_both(masked, "src_mask", "src_key_padding_mask")
    own = "both" if masked == "both" else "causal"
    ours, torchs = masks_for_both(own, "tgt_mask", "tgt_key_padding_mask")
    if masked != "nothing":
        ours["context_mask"] = padding_mask(torch.tensor([4, 7]), 7)
        torchs["memory_key_padding_mask"] = to_blocked(ours["context_mask"])[:, 0, 0]
    return [x, context], ours, torchs


# ---------------------------------------------------------------- against PyTorch's layer


@every_order
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@for_each(
    *itertools.product(["encoder"], ["nothing", "padding", "causal", "both"]),
    *itertools.product(["decoder"], ["nothing", "context", "both"]),
)
def test_equals_torch_with_the_same_weights(kind, masked, order, activation):
    """Outputs and every gradient, of a decoder under the causal mask; weights there and back."""
    options = {"activation": activation, "dropout": 0.0, "layer_norm_eps": 1e-3}
    given = torch_layer(kind, ORDERS[order], **options)
    layer, (inputs, ours, torchs) = interop.from_torch(given), call_of(kind, masked)
    out, expected = layer(*inputs, **ours), given(*inputs, **torchs)
    torch.testing.assert_close(out, expected)

    weight, n = draw(2, 5, 6, seed=3), len(inputs)
    grads = torch.autograd.grad((out * weight).sum(), [*inputs, *layer.parameters()])
    parameters = dict(given.named_parameters())
    expected_grads = torch.autograd.grad((expected * weight).sum(), [*inputs, *parameters.values()])
    torch.testing.assert_close(grads[:n], expected_grads[:n])
    named = in_torchs_layout(layer, grads[n:])
    assert named.keys() == parameters.keys()
    for name, value in zip(parameters, expected_grads[n:], strict=True):
        torch.testing.assert_close(named[name].detach(), value, msg=lambda m, n=name: f"{n}: {m}")

    back = interop.to_torch(layer)
    assert isinstance(back, KINDS[kind])
    for name, value in given.state_dict().items():
        assert torch.equal(back.state_dict()[name], value), name
    torch.testing.assert_close(back(*inputs, **torchs), expected)


def in_torchs_layout(block, numbers):
    """A number for each of our weights, under PyTorch's names: by way of ``to_torch``."""
    block = copy.deepcopy(block)
    for p, values in zip(block.parameters(), numbers, strict=True):
        p.data = values
    return dict(interop.to_torch(block).named_parameters())


@every_kind
def test_copies_keep_dropout_and_mode_and_share_no_memory(kind):
    given = torch_layer(kind, dropout=0.25).eval()
    layer = interop.from_torch(given)
    for copied in (layer, interop.to_torch(layer)):
        parts = [*copied.modules()]
        assert not any(part.training for part in parts)
        assert {part.p for part in parts if isinstance(part, nn.Dropout)} == {0.25}
        attentions = [p for p in parts if isinstance(p, MultiHeadAttention | nn.MultiheadAttention)]
        assert [part.dropout for part in attentions] == [0.25] * (1 + (kind == "decoder"))
        weights = {p.data_ptr() for p in copied.parameters()}
        assert weights.isdisjoint(p.data_ptr() for p in given.parameters())


# ---------------------------------------------------------------- the order of the sublayers


@pytest.mark.parametrize("norm_at", ["before", "after", "inside", "both"])
def test_norms_stand_where_they_are_said_to(norm_at):
    """Every sublayer, with random norms: two of one sublayer swapped would show."""
    options = {"norm_at": norm_at, "norm": nn.RMSNorm, "cross_attention": True, "layer_scale": 1}
    block = TransformerBlock(**BLOCK, gated=True, **options)
    gains = [p for name, p in block.named_parameters() if name.endswith("gain")]
    assert [gain.tolist() for gain in gains] == [[1.0] * 6] * 3
    block = shaken(block).eval()
    x, context = draw(2, 4, 6), draw(2, 7, 6, seed=1)
    y = x
    for f, name in (
        (lambda z: block.attention(z, causal=True), "attention"),
        (lambda z: block.cross(z, context), "cross"),
        (block.feed_forward, "feed_forward"),
    ):
        n, n2 = getattr(block, f"{name}_norm"), getattr(block, f"{name}_norm_2")
        gain = getattr(block, f"{name}_gain")
        assert (n2 is not None) == (norm_at == "both")
        if norm_at == "before":
            y = y + gain * f(n(y))
        elif norm_at == "after":
            y = n(y + gain * f(y))
        elif norm_at == "inside":
            y = y + gain * n(f(y))
        else:
            y = y + gain * n2(f(n(y)))
    torch.testing.assert_close(block(x, context, causal=True), y)


def test_dropout_is_on_the_sublayers_output_not_on_the_stream():
    """Dropping everything leaves the residual stream alone; eval drops nothing."""
    block, x = TransformerBlock(**BLOCK, dropout=1.0).double(), draw(2, 4, 6)
    assert torch.equal(block(x), x)
    post, norm = TransformerBlock(**BLOCK, dropout=1.0, norm_at="after"), nn.functional.layer_norm
    torch.testing.assert_close(post.double()(x), norm(norm(x, (6,)), (6,)))
    assert not torch.equal(block.eval()(x), x)


def test_a_bias_reaches_every_block():
    stack, x, bias = TransformerEncoder(**SIZES).double(), draw(2, 4, 6), draw(4, 4)
    y = x
    for block in stack.blocks:
        y = y + block.attention(block.attention_norm(y), attn_bias=bias)
        y = y + block.feed_forward(block.feed_forward_norm(y))
    torch.testing.assert_close(stack(x, attn_bias=bias), stack.norm(y))
    assert not torch.allclose(stack(x), stack.norm(y), atol=1e-3)


def test_blocks_start_different():
    weights = [block.feed_forward.up.weight for block in TransformerEncoder(**SIZES).blocks]
    assert not torch.equal(*weights)


def test_a_block_that_raises_leaves_the_cache_as_it_was():
    """Also called by itself, where its attention has appended before the cross-attention raises."""
    block = TransformerBlock(**BLOCK, cross_attention=True).double()
    x, context, cache = draw(2, 5, 6), draw(2, 7, 6, seed=1), Cache()
    block(x[:, :2], context, causal=True, cache=cache)
    with pytest.raises(ValueError, match=r"^the cache was filled with another context: start with"):
        block(x[:, 2:], 2 * context, causal=True, cache=cache)
    assert cache.length == 2
    out = block(x[:, 2:], context, causal=True, cache=cache)
    torch.testing.assert_close(out, block(x, context, causal=True)[:, 2:])


# ---------------------------------------------------------------- refused


def test_what_torch_has_and_we_have_not_is_refused():
    class Leaky(nn.ReLU):
        def forward(self, x):
            return nn.functional.leaky_relu(x)

    for used in (torch.tanh, nn.SiLU(), nn.GELU(approximate="tanh"), Leaky()):
        with pytest.raises(ValueError, match="activation must be relu or gelu, got"):
            interop.from_torch(torch_layer("encoder", activation=used))
    for used in (nn.GELU(), nn.ReLU()):
        given = torch_layer("encoder", activation=used).eval()
        torch.testing.assert_close(interop.from_torch(given)(X), given(X))


@for_each(
    (
        {"cross_attention": True, "attention": {"rotate": ROTATE}},
        "no softcap, window, sinks, rotary positions or norm of the queries",
    ),
    ({"layer_scale": 1.0}, "^PyTorch's layers have no LayerScale$"),
    ({"gated": True}, "^PyTorch's layers have no gate$"),
    ({"activation": "gelu_tanh"}, "^PyTorch's layers have relu or gelu for activation$"),
    ({"norm_at": "inside"}, "^PyTorch's layers have norms before or after the sublayers$"),
    ({"norm_at": "both"}, "^PyTorch's layers have norms before or after the sublayers$"),
    ({"norm": nn.RMSNorm}, "^PyTorch's layers have LayerNorm for norm$"),
    ({"bias": False}, "^PyTorch's layers have a bias in every part or in none$"),
)
def test_what_we_have_and_torch_has_not_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        interop.to_torch(TransformerBlock(**BLOCK, **options))


DECODER, CROSS = {"num_layers": 1, "cross_attention": False}, {"cross_attention": True}
REAL = padding_mask(torch.tensor([4, 4]), 4)
SAY_CAUSAL = "^a cache needs causal=True: otherwise earlier tokens would have to attend to later "
SAY_CAUSAL += "ones; if that is meant, say causal=False$"
NORM_AT = "must be before, after, inside or both, got 'first'$"


@raises_for_each(
    (TransformerBlock, {}, {"context": X}, ValueError, "has no cross-attention: context must"),
    (TransformerBlock, CROSS, {}, ValueError, r"has cross-attention: context must be \(B, S, d_m"),
    (TransformerBlock, {}, {"context_mask": REAL}, ValueError, "^context_mask needs a context$"),
    # a decoder always hides the future
    (TransformerDecoder, DECODER, {"causal": False}, TypeError, "causal"),
    (TransformerDecoder, DECODER, {"context": X}, ValueError, "has no cross-attention: context"),
    (TransformerDecoder, {"num_layers": 1}, {}, ValueError, "has cross-attention: context must"),
    (TransformerEncoder, {"num_layers": 2}, {"cache": Cache()}, ValueError, SAY_CAUSAL),
    (TransformerBlock, {"norm_at": "first"}, {}, ValueError, NORM_AT),
)
def test_calls_that_do_not_fit_the_block_are_named(kind, options, call):
    kind(**BLOCK, **options).double()(X, **call)


def test_a_cache_goes_with_either_order_that_is_asked_for():
    stack = TransformerEncoder(**SIZES).double()
    assert stack(X, cache=Cache(), causal=False).shape == (2, 4, 6)
    torch.testing.assert_close(stack(X, causal=True, cache=Cache()), stack(X, causal=True))


# ---------------------------------------------------------------- misuses that ran in silence


@for_each(
    lambda: VisionTransformer(28, 7, 1, 10, 16, 2, 4, 32),
    lambda: TransformerBlock(6, 3, 11),
    lambda: TransformerEncoder(6, 3, 11, 2),
    lambda: TransformerDecoder(6, 3, 11, 2),
    lambda: DecoderLM(13, 5, 6, 3, 11, 2),
    lambda: Transformer(13, 13, 5, 6, 3, 11, 2),
    lambda: FeedForward(6, 11),
    lambda: PatchEmbedding(7, 1, 16),
    lambda: LearnedPositions(5, 6),
)
def test_sizes_in_another_order_built_the_wrong_model(build):
    with pytest.raises(TypeError, match=r"takes 1 positional argument but \d+ were given$"):
        build()


MODELS = {  # and what they need beside SIZES
    TransformerEncoder: {},
    TransformerDecoder: {},
    DecoderLM: {"vocab_size": 13, "max_len": 5},
    Transformer: {"source_vocab_size": 13, "target_vocab_size": 13, "max_len": 5},
    VisionTransformer: {"image_size": 4, "patch_size": 2, "in_channels": 1, "num_classes": 3},
}


@pytest.mark.parametrize("kind", MODELS)
def test_sizes_are_named_in_the_models_own_signature(kind):
    """``help(DecoderLM)`` once showed none of them."""
    assert SIZES.keys() <= inspect.signature(kind).parameters.keys()


def test_a_block_without_biases_has_none_in_any_sublayer():
    """``bias=False`` once took the biases of the attention alone."""

    def biases(module):
        return [name for name, _ in module.named_parameters() if name.endswith("bias")]

    options = {"bias": False, "norm": partial(nn.LayerNorm, bias=False)}
    assert biases(TransformerBlock(**BLOCK, cross_attention=True, **options)) == []
    assert biases(TransformerEncoder(**SIZES, **options)) == []
    assert len(biases(TransformerBlock(**BLOCK))) == 4 + 2 + 2


@pytest.mark.parametrize("kind", [TransformerBlock, TransformerEncoder, DecoderLM])
def test_a_misspelt_option_of_a_block_is_the_blocks(kind):
    """It was once blamed on ``MultiHeadAttention.__init__``."""
    sizes = BLOCK if kind is TransformerBlock else SIZES | MODELS[kind]
    with pytest.raises(TypeError, match=r"TransformerBlock.*'norm_frist'"):
        kind(**sizes, norm_frist=True)
    with pytest.raises(TypeError, match=r"MultiHeadAttention.*'num_kv_head'"):
        kind(**sizes, attention={"num_kv_head": 1})


@pytest.mark.parametrize("kind", [DecoderLM, VisionTransformer])
def test_models_without_a_context_do_not_swallow_cross_attention(kind):
    message = f"^{kind.__name__} has no context: its blocks have no cross-att"
    with pytest.raises(ValueError, match=message):
        kind(**MODELS[kind], **SIZES, cross_attention=True)
    kind(**MODELS[kind], **SIZES, cross_attention=False)


@every_kind
@pytest.mark.parametrize("bias", [True, False])
def test_each_norm_keeps_its_own_eps_and_no_bias_arises_there_and_back(kind, bias):
    given = torch_layer(kind, bias=bias).eval()
    for i, norm in enumerate(m for m in given.modules() if isinstance(m, nn.LayerNorm)):
        norm.eps = 0.1 * (i + 1)
    layer, inputs = interop.from_torch(given), call_of(kind, "nothing")[0]
    torch.testing.assert_close(layer(*inputs), given(*inputs))
    torch.testing.assert_close(interop.to_torch(layer)(*inputs), given(*inputs))


@pytest.mark.parametrize(("place", "name"), [("dropout2", "p"), ("self_attn", "dropout")])
def test_dropouts_that_differ_are_refused(place, name):
    given = nn.TransformerEncoderLayer(6, 3, 11, dropout=0.1)
    setattr(given.get_submodule(place), name, 0.3)
    with pytest.raises(ValueError, match=r"^one dropout for all sublayers is needed, got \[0.1, "):
        interop.from_torch(given)


def test_what_is_not_trained_stays_so_there_and_back():
    given = nn.TransformerEncoderLayer(6, 3, 11)
    for name in ("linear1.weight", "norm2.bias", "self_attn.in_proj_weight"):
        given.get_parameter(name).requires_grad_(False)
    given.self_attn.out_proj.bias.requires_grad_(False)
    layer = interop.from_torch(given)
    frozen = {name for name, p in layer.named_parameters() if not p.requires_grad}
    assert frozen == {
        *(f"attention.{part}_proj.weight" for part in "qkv"),
        *("attention.out_proj.bias", "feed_forward.up.weight", "feed_forward_norm.bias"),
    }
    back = interop.to_torch(layer)
    trained = [{n: p.requires_grad for n, p in m.named_parameters()} for m in (given, back)]
    assert trained[0] == trained[1]
    layer.attention.k_proj.weight.requires_grad_(True)
    message = (
        r"^nn\.MultiheadAttention keeps the projections of queries, keys and values in one "
        r"parameter: all three must require gradients, or none$"
    )
    with pytest.raises(ValueError, match=message):
        interop.to_torch(layer)
