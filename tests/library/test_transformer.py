import copy
import itertools
from functools import partial

import pytest
import torch
from cases import ORDERS, ROTATE, SIZES, draw, shaken
from torch import nn

from attn_lib import (
    Cache,
    DecoderLM,
    Transformer,
    VisionTransformer,
    causal_mask,
    interop,
    padding_mask,
)
from attn_lib.layers import FeedForward
from attn_lib.masks import to_blocked
from attn_lib.positions import LearnedPositions
from attn_lib.transformer import TransformerBlock, TransformerDecoder, TransformerEncoder
from attn_lib.vision import PatchEmbedding


def torch_layer(norm_at, seed=0, kind=nn.TransformerEncoderLayer, **options):
    first = norm_at == "before"
    return shaken(kind(6, 3, 11, batch_first=True, norm_first=first, **options), seed)


# ---------------------------------------------------------------- against PyTorch's layer


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("masked", ["nothing", "padding", "causal", "both"])
def test_equals_torch_with_the_same_weights(order, activation, masked):
    theirs = torch_layer(ORDERS[order], activation=activation, dropout=0.0, layer_norm_eps=1e-3)
    ours = interop.from_torch(theirs)
    x = draw(2, 5, 6).requires_grad_()
    padding, options, their_options = padding_mask(torch.tensor([5, 3]), 5), {}, {}
    if masked in ("padding", "both"):
        options["mask"] = padding
        their_options["src_key_padding_mask"] = to_blocked(padding)[:, 0, 0]
    if masked in ("causal", "both"):
        options["causal"] = True
        their_options["src_mask"] = to_blocked(causal_mask(5))
    out, expected = ours(x, **options), theirs(x, **their_options)
    torch.testing.assert_close(out, expected)
    weight = draw(2, 5, 6, seed=3)
    parameters = dict(theirs.named_parameters())
    grads = torch.autograd.grad((out * weight).sum(), [x, *ours.parameters()])
    expected_grads = torch.autograd.grad((expected * weight).sum(), [x, *parameters.values()])
    torch.testing.assert_close(grads[0], expected_grads[0])
    by_name = dict(zip(parameters, expected_grads[1:], strict=True))
    up = dict(zip(ours.state_dict(), grads[1:], strict=True))["feed_forward.up.weight"]
    torch.testing.assert_close(up, by_name["linear1.weight"])
    back = interop.to_torch(ours)
    for name, value in theirs.state_dict().items():
        assert torch.equal(back.state_dict()[name], value), name
    torch.testing.assert_close(back(x, **their_options), expected)


def in_torchs_layout(block, numbers):
    """A number for each of our weights, under PyTorch's names: by way of ``to_torch``."""
    block = copy.deepcopy(block)
    for p, values in zip(block.parameters(), numbers, strict=True):
        p.data = values
    return dict(interop.to_torch(block).named_parameters())


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("padded", ["nothing", "context", "both"])
def test_a_decoder_layer_equals_torchs(order, activation, padded):
    """Outputs and every gradient, under the causal mask; weights there and back."""
    options = {"activation": activation, "dropout": 0.0, "layer_norm_eps": 1e-3}
    theirs = torch_layer(ORDERS[order], kind=nn.TransformerDecoderLayer, **options)
    ours = interop.from_torch(theirs)
    x, context = draw(2, 5, 6).requires_grad_(), draw(2, 7, 6, seed=1).requires_grad_()
    given, their_options = {"causal": True}, {"tgt_mask": to_blocked(causal_mask(5))}
    if padded in ("context", "both"):
        given["context_mask"] = padding_mask(torch.tensor([4, 7]), 7)
        their_options["memory_key_padding_mask"] = to_blocked(given["context_mask"])[:, 0, 0]
    if padded == "both":
        given["mask"] = padding_mask(torch.tensor([5, 3]), 5)
        their_options["tgt_key_padding_mask"] = to_blocked(given["mask"])[:, 0, 0]
    out, expected = ours(x, context, **given), theirs(x, context, **their_options)
    torch.testing.assert_close(out, expected)

    weight = draw(2, 5, 6, seed=3)
    grads = torch.autograd.grad((out * weight).sum(), [x, context, *ours.parameters()])
    parameters = dict(theirs.named_parameters())
    sources = [x, context, *parameters.values()]
    expected_grads = torch.autograd.grad((expected * weight).sum(), sources)
    torch.testing.assert_close(grads[:2], expected_grads[:2])
    named = in_torchs_layout(ours, grads[2:])
    assert named.keys() == parameters.keys()
    for name, value in zip(parameters, expected_grads[2:], strict=True):
        torch.testing.assert_close(named[name].detach(), value, msg=lambda m, n=name: f"{n}: {m}")

    back = interop.to_torch(ours)
    assert isinstance(back, nn.TransformerDecoderLayer)
    for name, value in theirs.state_dict().items():
        assert torch.equal(back.state_dict()[name], value), name
    torch.testing.assert_close(back(x, context, **their_options), expected)


def test_copies_of_a_decoder_layer_keep_dropout_mode_order_and_eps():
    kind = nn.TransformerDecoderLayer
    theirs = torch_layer("before", kind=kind, dropout=0.25, layer_norm_eps=1e-3).eval()
    ours = interop.from_torch(theirs)
    back = interop.to_torch(ours)
    assert ours.norm_at == "before"
    assert back.norm_first
    assert not any(m.training for layer in (ours, back) for m in layer.modules())
    assert ours.cross.dropout == ours.dropout.p == back.multihead_attn.dropout == 0.25
    assert back.dropout1.p == back.dropout2.p == back.dropout3.p == 0.25
    assert ours.cross_norm.eps == back.norm1.eps == back.norm2.eps == back.norm3.eps == 1e-3
    ours.cross.q_proj.weight.data.zero_()
    assert bool((theirs.multihead_attn.in_proj_weight != 0).all())  # a copy, not a view


@pytest.mark.parametrize("order", ORDERS)
def test_a_stack_equals_torchs_decoder(order):
    norm = shaken(nn.LayerNorm(6), seed=9) if order == "pre-norm" else None
    kind, options = nn.TransformerDecoderLayer, {"activation": "gelu", "dropout": 0.0}
    layers = [torch_layer(ORDERS[order], seed=s, kind=kind, **options) for s in range(3)]
    theirs = nn.TransformerDecoder(layers[0], 3, norm=norm)
    theirs.layers = nn.ModuleList(layers)
    ours = TransformerDecoder(
        d_model=6, num_heads=3, d_ff=11, num_layers=3, norm_at=ORDERS[order]
    ).double()
    ours.blocks = nn.ModuleList(interop.from_torch(layer) for layer in layers)
    if norm is not None:
        ours.norm.load_state_dict(norm.state_dict())
    x, context = draw(2, 5, 6), draw(2, 7, 6, seed=1)
    mask, context_mask = (padding_mask(torch.tensor(n), m) for n, m in (([5, 3], 5), ([4, 7], 7)))
    expected = theirs(
        x,
        context,
        tgt_mask=to_blocked(causal_mask(5)),
        tgt_key_padding_mask=to_blocked(mask)[:, 0, 0],
        memory_key_padding_mask=to_blocked(context_mask)[:, 0, 0],
    )
    torch.testing.assert_close(ours(x, context, mask=mask, context_mask=context_mask), expected)


def test_copies_keep_dropout_mode_order_and_eps():
    theirs = torch_layer("before", dropout=0.25, layer_norm_eps=1e-3).eval()
    ours = interop.from_torch(theirs)
    back = interop.to_torch(ours)
    assert ours.norm_at == "before"
    assert back.norm_first
    for layer in (ours, back):
        assert not layer.training
        assert layer.dropout.p == 0.25
    assert ours.attention.dropout == ours.feed_forward.dropout.p == 0.25
    assert back.self_attn.dropout == back.dropout1.p == back.dropout2.p == 0.25
    assert ours.attention_norm.eps == ours.feed_forward_norm.eps == back.norm2.eps == 1e-3
    ours.feed_forward.up.weight.data.zero_()
    assert bool((theirs.linear1.weight != 0).any())  # a copy, not a view


@pytest.mark.parametrize("order", ORDERS)
def test_a_stack_equals_torchs_stack(order):
    norm = nn.LayerNorm(6).double() if order == "pre-norm" else None
    layers = [torch_layer(ORDERS[order], seed=s, activation="gelu").eval() for s in range(3)]
    theirs = nn.TransformerEncoder(layers[0], 3, norm=norm, enable_nested_tensor=False).eval()
    theirs.layers = nn.ModuleList(layers)
    ours = (
        TransformerEncoder(d_model=6, num_heads=3, d_ff=11, num_layers=3, norm_at=ORDERS[order])
        .double()
        .eval()
    )
    ours.blocks = nn.ModuleList(interop.from_torch(layer) for layer in layers)
    if norm is not None:
        torch.nn.init.normal_(norm.weight)
        ours.norm.load_state_dict(norm.state_dict())
    x, mask = draw(2, 5, 6), padding_mask(torch.tensor([5, 3]), 5)
    expected = theirs(x, src_key_padding_mask=to_blocked(mask)[:, 0, 0])
    torch.testing.assert_close(ours(x, mask=mask)[1, :3], expected[1, :3])
    torch.testing.assert_close(ours(x, mask=mask)[0], expected[0])


# ---------------------------------------------------------------- the order of the sublayers


@pytest.mark.parametrize("order", ORDERS)
def test_cross_attention_comes_between_and_attends_to_the_context(order):
    torch.manual_seed(0)
    block = TransformerBlock(
        d_model=6, num_heads=3, d_ff=11, norm_at=ORDERS[order], cross_attention=True
    ).double()
    x, context = draw(2, 4, 6), draw(2, 7, 6, seed=1)
    mask = padding_mask(torch.tensor([7, 4]), 7)
    y = x
    for sublayer, norm in (
        (lambda z: block.attention(z, causal=True), block.attention_norm),
        (lambda z: block.cross(z, context, mask=mask), block.cross_norm),
        (block.feed_forward, block.feed_forward_norm),
    ):
        y = y + sublayer(norm(y)) if order == "pre-norm" else norm(y + sublayer(y))
    got = block(x, context, causal=True, context_mask=mask)
    torch.testing.assert_close(got, y)
    assert not torch.allclose(got, block(x, context, causal=True), atol=1e-3)


@pytest.mark.parametrize("norm_at", ["before", "after", "inside", "both"])
def test_norms_stand_where_they_are_said_to(norm_at):
    """Every sublayer, with random norms: two of one sublayer swapped would show."""
    options = {"norm_at": norm_at, "norm": nn.RMSNorm, "cross_attention": True, "layer_scale": 1.0}
    block = TransformerBlock(d_model=6, num_heads=3, d_ff=11, gated=True, **options)
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
        y = {
            "before": lambda y, f=f, n=n, gain=gain: y + gain * f(n(y)),
            "after": lambda y, f=f, n=n, gain=gain: n(y + gain * f(y)),
            "inside": lambda y, f=f, n=n, gain=gain: y + gain * n(f(y)),
            "both": lambda y, f=f, n=n, n2=n2, gain=gain: y + gain * n2(f(n(y))),
        }[norm_at](y)
    torch.testing.assert_close(block(x, context, causal=True), y)


def test_options_of_the_attention_may_differ_by_layer():
    asked = []

    def attention(layer):
        asked.append(layer)
        return {"window": 1 + layer, "rotate": ROTATE if layer else None}

    sizes = {"d_model": 6, "num_heads": 3, "d_ff": 11}
    stack = TransformerDecoder(**sizes, num_layers=3, cross_attention=False, attention=attention)
    assert asked == [0, 1, 2]
    layers = [block.attention for block in stack.blocks]
    assert [layer.window for layer in layers] == [1, 2, 3]
    assert [layer.rotate for layer in layers] == [None, ROTATE, ROTATE]
    same = TransformerDecoder(**sizes, num_layers=2, attention={"scale": 2.0})
    assert [block.attention.scale for block in same.blocks] == [2.0, 2.0]
    assert [block.cross.scale for block in same.blocks] == [1 / 2**0.5, 1 / 2**0.5]


def test_dropout_is_on_the_sublayers_output_not_on_the_stream():
    """Dropping everything leaves the residual stream alone; eval drops nothing."""
    block, x = (
        TransformerBlock(d_model=6, num_heads=3, d_ff=11, dropout=1.0).double(),
        draw(2, 4, 6),
    )
    assert torch.equal(block(x), x)
    post = TransformerBlock(d_model=6, num_heads=3, d_ff=11, dropout=1.0, norm_at="after").double()
    norm = nn.functional.layer_norm
    torch.testing.assert_close(post(x), norm(norm(x, (6,)), (6,)))
    assert not torch.equal(block.eval()(x), x)


def test_every_sublayer_gets_its_options():
    block = TransformerBlock(
        d_model=6,
        num_heads=3,
        d_ff=11,
        dropout=0.25,
        norm=partial(nn.LayerNorm, eps=1e-3),
        cross_attention=True,
        attention={"scale": 2.0},
    )
    assert block.attention.dropout == block.cross.dropout == block.feed_forward.dropout.p == 0.25
    norms = (block.attention_norm, block.cross_norm, block.feed_forward_norm)
    assert [norm.eps for norm in norms] == [1e-3] * 3
    assert block.attention.scale == 2.0
    norm = partial(nn.LayerNorm, eps=1e-3)
    stack = TransformerEncoder(d_model=6, num_heads=3, d_ff=11, num_layers=1, norm=norm)
    assert stack.norm.eps == 1e-3


def test_a_bias_reaches_every_block():
    torch.manual_seed(0)
    stack, x, bias = (
        TransformerEncoder(d_model=6, num_heads=3, d_ff=11, num_layers=2).double(),
        draw(2, 4, 6),
        draw(4, 4),
    )
    y = x
    for block in stack.blocks:
        y = y + block.attention(block.attention_norm(y), attn_bias=bias)
        y = y + block.feed_forward(block.feed_forward_norm(y))
    torch.testing.assert_close(stack(x, attn_bias=bias), stack.norm(y))
    assert not torch.allclose(stack(x), stack.norm(y), atol=1e-3)


def test_the_input_is_not_changed():
    block, x = (
        TransformerBlock(d_model=6, num_heads=3, d_ff=11, cross_attention=True).double(),
        draw(2, 4, 6),
    )
    before = x.clone()
    block(x, x)
    assert torch.equal(x, before)


def test_a_stack_ends_with_a_norm():
    x = 100 * draw(2, 4, 6)
    for order in ("before", "after", "inside", "both"):
        out = TransformerEncoder(
            d_model=6, num_heads=3, d_ff=11, num_layers=2, norm_at=order
        ).double()(x)
        torch.testing.assert_close(out.mean(-1), torch.zeros(2, 4).double(), atol=1e-9, rtol=0)
        torch.testing.assert_close(
            out.std(-1, correction=0), torch.ones(2, 4).double(), atol=1e-3, rtol=0
        )


def test_blocks_start_different():
    stack = TransformerEncoder(d_model=6, num_heads=3, d_ff=11, num_layers=3)
    weights = [block.feed_forward.up.weight for block in stack.blocks]
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(weights, 2))


@pytest.mark.parametrize("pieces", [[5], [1, 4], [2, 2, 1], [1] * 5])
def test_a_cache_in_any_split_equals_the_full_pass(pieces):
    torch.manual_seed(0)
    stack = TransformerEncoder(
        d_model=6,
        num_heads=3,
        d_ff=11,
        num_layers=2,
        cross_attention=True,
        attention={"num_kv_heads": 1, "d_k": 4, "rotate": ROTATE},
    ).double()
    x, context = draw(2, 5, 6), draw(2, 7, 6, seed=1)
    options = {"causal": True, "context_mask": padding_mask(torch.tensor([7, 4]), 7)}
    cache = Cache()
    outs = [stack(part, context, cache=cache, **options) for part in x.split(pieces, dim=1)]
    torch.testing.assert_close(torch.cat(outs, dim=1), stack(x, context, **options))
    assert cache.length == sum(pieces)


def test_a_block_computes_the_keys_of_a_context_once():
    block = TransformerBlock(d_model=6, num_heads=3, d_ff=11, cross_attention=True).double()
    x, context, cache, computed = draw(2, 5, 6), draw(2, 7, 6, seed=1), Cache(), []
    block.cross.k_proj.register_forward_hook(lambda *_: computed.append(1))
    for part in x.split([2, 1, 2], dim=1):
        block(part, context, causal=True, cache=cache)
    assert len(computed) == 1


def test_a_block_that_raises_leaves_the_cache_as_it_was():
    """Also called by itself, where its attention has appended before the cross-attention raises."""
    block = TransformerBlock(d_model=6, num_heads=3, d_ff=11, cross_attention=True).double()
    x, context, cache = draw(2, 5, 6), draw(2, 7, 6, seed=1), Cache()
    block(x[:, :2], context, causal=True, cache=cache)
    with pytest.raises(ValueError, match=r"^the cache was filled with another context: start with"):
        block(x[:, 2:], 2 * context, causal=True, cache=cache)
    assert cache.length == 2
    out = block(x[:, 2:], context, causal=True, cache=cache)
    torch.testing.assert_close(out, block(x, context, causal=True)[:, 2:])


def test_a_cache_without_the_causal_order_is_refused():
    stack = TransformerEncoder(d_model=6, num_heads=3, d_ff=11, num_layers=2).double()
    message = (
        "^a cache needs causal=True: otherwise earlier tokens would have to attend to later ones; "
        "if that is meant, say causal=False$"
    )
    with pytest.raises(ValueError, match=message):
        stack(draw(2, 5, 6), cache=Cache())
    assert stack(draw(2, 5, 6), cache=Cache(), causal=False).shape == (2, 5, 6)


# ---------------------------------------------------------------- refused


def test_what_torch_has_and_we_have_not_is_refused():
    class Leaky(nn.ReLU):
        def forward(self, x):
            return nn.functional.leaky_relu(x)

    for used in (torch.tanh, nn.SiLU(), nn.GELU(approximate="tanh"), Leaky()):
        with pytest.raises(ValueError, match="activation must be relu or gelu, got"):
            interop.from_torch(nn.TransformerEncoderLayer(6, 3, 11, activation=used))
    for used in (nn.GELU(), nn.ReLU()):
        theirs = nn.TransformerEncoderLayer(6, 3, 11, activation=used, batch_first=True).eval()
        x = torch.ones(1, 2, 6)
        torch.testing.assert_close(interop.from_torch(theirs)(x), theirs(x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": {"num_kv_heads": 1}}, "as many key heads"),
        (
            {"cross_attention": True, "attention": {"rotate": ROTATE}},
            "no softcap, window, sinks, rotary positions or norm of the queries",
        ),
        ({"layer_scale": 1.0}, "^PyTorch's layers have no LayerScale$"),
        ({"gated": True}, "^PyTorch's layers have no gate$"),
        ({"activation": "silu"}, "^PyTorch's layers have relu or gelu for activation$"),
        ({"activation": "gelu_tanh"}, "^PyTorch's layers have relu or gelu for activation$"),
        ({"norm_at": "inside"}, "^PyTorch's layers have norms before or after the sublayers$"),
        ({"norm_at": "both"}, "^PyTorch's layers have norms before or after the sublayers$"),
        ({"norm": nn.RMSNorm}, "^PyTorch's layers have LayerNorm for norm$"),
        ({"bias": False}, "^PyTorch's layers have a bias in every part or in none$"),
    ],
)
def test_what_we_have_and_torch_has_not_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        interop.to_torch(TransformerBlock(d_model=6, num_heads=3, d_ff=11, **options))


def test_a_context_needs_cross_attention_and_the_reverse():
    x = torch.zeros(2, 4, 6)
    with pytest.raises(ValueError, match="has no cross-attention: context must be None"):
        TransformerBlock(d_model=6, num_heads=3, d_ff=11)(x, x)
    with pytest.raises(ValueError, match=r"has cross-attention: context must be \(B, S, d_m"):
        TransformerBlock(d_model=6, num_heads=3, d_ff=11, cross_attention=True)(x)
    with pytest.raises(ValueError, match=r"^context_mask needs a context$"):
        TransformerBlock(d_model=6, num_heads=3, d_ff=11)(
            x, context_mask=padding_mask(torch.tensor([4, 4]), 4)
        )


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_layers": 0}, ValueError, "num_layers must be at least 1, got 0"),
        ({"num_layers": 1.0}, TypeError, "num_layers must be an integer, got 1.0"),
        ({"activation": "tanh"}, ValueError, "gelu, gelu_tanh, relu, silu, got 'tanh'"),
        ({"dropout": 2.0}, ValueError, "dropout must be in"),
        ({"norm_at": "first"}, ValueError, "^norm_at must be before, .* or both, got 'first'$"),
    ],
)
def test_bad_stacks_are_named(options, error, message):
    with pytest.raises(error, match=message):
        TransformerEncoder(d_model=6, num_heads=3, d_ff=11, **{"num_layers": 2, **options})


def test_a_decoder_always_hides_the_future():
    decoder, x = (
        TransformerDecoder(d_model=6, num_heads=3, d_ff=11, num_layers=1, cross_attention=False),
        draw(2, 5, 6),
    )
    with pytest.raises(TypeError, match="causal"):
        decoder.double()(x, causal=False)
    with pytest.raises(ValueError, match="has no cross-attention: context must be None"):
        decoder(x, x)
    with pytest.raises(ValueError, match="has cross-attention: context must be"):
        TransformerDecoder(d_model=6, num_heads=3, d_ff=11, num_layers=1).double()(x)


# ---------------------------------------------------------------- misuses that ran in silence


BLOCK = {"d_model": 6, "num_heads": 3, "d_ff": 11}


@pytest.mark.parametrize(
    "build",
    [
        lambda: VisionTransformer(28, 7, 1, 10, 16, 2, 4, 32),
        lambda: TransformerBlock(6, 3, 11),
        lambda: TransformerEncoder(6, 3, 11, 2),
        lambda: TransformerDecoder(6, 3, 11, 2),
        lambda: DecoderLM(13, 5, 6, 3, 11, 2),
        lambda: Transformer(13, 13, 5, 6, 3, 11, 2),
        lambda: FeedForward(6, 11),
        lambda: PatchEmbedding(7, 1, 16),
        lambda: LearnedPositions(5, 6),
    ],
)
def test_sizes_in_another_order_built_the_wrong_model(build):
    with pytest.raises(TypeError, match=r"takes 1 positional argument but \d+ were given$"):
        build()


VOCABULARIES = {"source_vocab_size": 13, "target_vocab_size": 13, "max_len": 5}


IMAGES = {"image_size": 28, "patch_size": 7, "in_channels": 1, "num_classes": 10}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("kind", "others"),
    [
        (TransformerEncoder, {}),
        (TransformerDecoder, {}),
        (DecoderLM, {"vocab_size": 13, "max_len": 5}),
        (Transformer, VOCABULARIES),
        (VisionTransformer, IMAGES),
    ],
)
def test_a_size_that_is_missing_is_the_models_own(kind, others, size):
    """``help(DecoderLM)`` once showed none of them, and ``TransformerDecoder`` was blamed."""
    given = {name: value for name, value in (SIZES | others).items() if name != size}
    where = rf"^{kind.__name__}.__init__\(\) missing 1 required keyword-only argument: '{size}'$"
    with pytest.raises(TypeError, match=where):
        kind(**given)


def test_a_block_without_biases_has_none_in_any_sublayer():
    """``bias=False`` once took the biases of the attention alone."""
    norm = partial(nn.LayerNorm, bias=False)
    block = TransformerBlock(**BLOCK, cross_attention=True, bias=False, norm=norm)
    assert [name for name, _ in block.named_parameters() if name.endswith("bias")] == []
    stack = TransformerEncoder(**SIZES, bias=False, norm=norm)
    assert [name for name, _ in stack.named_parameters() if name.endswith("bias")] == []
    with_bias = TransformerBlock(**BLOCK)
    assert sum(n.endswith("bias") for n, _ in with_bias.named_parameters()) == 4 + 2 + 2


@pytest.mark.parametrize("kind", [TransformerBlock, TransformerEncoder, DecoderLM])
def test_a_misspelt_option_of_a_block_is_the_blocks(kind):
    """It was once blamed on ``MultiHeadAttention.__init__``."""
    sizes = {TransformerBlock: BLOCK, TransformerEncoder: SIZES}.get(kind)
    sizes = sizes or {"vocab_size": 13, "max_len": 5, **SIZES}
    with pytest.raises(TypeError, match=r"TransformerBlock.*'norm_frist'"):
        kind(**sizes, norm_frist=True)
    with pytest.raises(TypeError, match=r"MultiHeadAttention.*'num_kv_head'"):
        kind(**sizes, attention={"num_kv_head": 1})


def test_an_encoder_with_a_cache_but_without_causal_is_refused():
    stack, x = TransformerEncoder(**SIZES).double(), draw(2, 4, 6)
    with pytest.raises(ValueError, match=r"^a cache needs causal=True: otherwise earlier tokens"):
        stack(x, cache=Cache())
    torch.testing.assert_close(stack(x, causal=True, cache=Cache()), stack(x, causal=True))


@pytest.mark.parametrize("build", ["DecoderLM", "VisionTransformer"])
def test_models_without_a_context_do_not_swallow_cross_attention(build):
    image = {"image_size": 4, "patch_size": 2, "in_channels": 1, "num_classes": 3}
    text = {"vocab_size": 13, "max_len": 5}
    kind, sizes = {"DecoderLM": (DecoderLM, text)}.get(build, (VisionTransformer, image))
    with pytest.raises(ValueError, match=f"^{build} has no context: its blocks have no cross-att"):
        kind(**sizes, **SIZES, cross_attention=True)
    kind(**sizes, **SIZES, cross_attention=False)


@pytest.mark.parametrize("decodes", [False, True])
def test_each_norm_keeps_its_own_eps_there_and_back(decodes):
    kind = nn.TransformerDecoderLayer if decodes else nn.TransformerEncoderLayer
    theirs = kind(6, 3, 11, batch_first=True).double().eval()
    for i, norm in enumerate(m for m in theirs.modules() if isinstance(m, nn.LayerNorm)):
        norm.eps = 0.1 * (i + 1)
    ours, x = interop.from_torch(theirs), draw(2, 4, 6)
    given = (x, x) if decodes else (x,)
    torch.testing.assert_close(ours(*given), theirs(*given))
    torch.testing.assert_close(interop.to_torch(ours)(*given), theirs(*given))


def test_dropouts_that_differ_are_refused():
    theirs = nn.TransformerEncoderLayer(6, 3, 11, dropout=0.1)
    theirs.dropout2.p = 0.3
    with pytest.raises(ValueError, match=r"^one dropout for all sublayers is needed, got \[0.1, "):
        interop.from_torch(theirs)
    theirs = nn.TransformerEncoderLayer(6, 3, 11, dropout=0.1)
    theirs.self_attn.dropout = 0.3
    with pytest.raises(ValueError, match=r"^one dropout for all sublayers is needed, got \[0.1, "):
        interop.from_torch(theirs)


def test_what_is_not_trained_stays_so_there_and_back():
    theirs = nn.TransformerEncoderLayer(6, 3, 11)
    theirs.linear1.weight.requires_grad_(False)
    theirs.norm2.bias.requires_grad_(False)
    theirs.self_attn.in_proj_weight.requires_grad_(False)
    theirs.self_attn.out_proj.bias.requires_grad_(False)
    ours = interop.from_torch(theirs)
    frozen = {name for name, p in ours.named_parameters() if not p.requires_grad}
    assert frozen == {
        "attention.q_proj.weight",
        "attention.k_proj.weight",
        "attention.v_proj.weight",
        "attention.out_proj.bias",
        "feed_forward.up.weight",
        "feed_forward_norm.bias",
    }
    back = interop.to_torch(ours)
    assert {n: p.requires_grad for n, p in back.named_parameters()} == {
        n: p.requires_grad for n, p in theirs.named_parameters()
    }
    ours.attention.k_proj.weight.requires_grad_(True)
    message = (
        r"^nn\.MultiheadAttention keeps the projections of queries, keys and values in one "
        r"parameter: all three must require gradients, or none$"
    )
    with pytest.raises(ValueError, match=message):
        interop.to_torch(ours)


@pytest.mark.parametrize("kind", [nn.TransformerEncoderLayer, nn.TransformerDecoderLayer])
def test_a_layer_without_biases_goes_there_and_back(kind):
    theirs, x = kind(6, 3, 11, bias=False, batch_first=True).double().eval(), draw(2, 4, 6)
    given = (x, x) if kind is nn.TransformerDecoderLayer else (x,)
    ours = interop.from_torch(theirs)
    torch.testing.assert_close(ours(*given), theirs(*given))
    torch.testing.assert_close(interop.to_torch(ours)(*given), theirs(*given))
