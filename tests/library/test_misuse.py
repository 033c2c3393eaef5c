"""Misuses that ran in silence or blamed the wrong thing, and defects that an attack found.

Each test is named after one of them and was red before its repair.
"""

import copy
import pickle
import sys
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from cases import ROTATE, draw, layer_of
from torch import nn

from attn_lib import (
    Cache,
    DecoderLM,
    Transformer,
    TransformerBlock,
    TransformerDecoder,
    TransformerEncoder,
    VisionTransformer,
    attention,
    causal_mask,
    generate,
    interop,
)
from attn_lib.positions import alibi_bias, apply_rope
from attn_lib.pretrained import dinov2_inputs

SIZES = {"d_model": 6, "num_heads": 3, "d_ff": 11, "num_layers": 2}
BLOCK = {"d_model": 6, "num_heads": 3, "d_ff": 11}


def language_model(**options):
    torch.manual_seed(0)
    model = DecoderLM(vocab_size=13, max_len=40, **{**SIZES, **options}).double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape) * 0.5)
    return model


TOKENS = torch.randint(13, (2, 6), generator=torch.Generator().manual_seed(1))

# ---------------------------------------------------------------- the interface


@pytest.mark.parametrize(
    "build",
    [
        lambda: VisionTransformer(28, 7, 1, 10, 16, 2, 4, 32),
        lambda: TransformerBlock(6, 3, 11),
        lambda: TransformerEncoder(6, 3, 11, 2),
        lambda: TransformerDecoder(6, 3, 11, 2),
        lambda: DecoderLM(13, 5, 6, 3, 11, 2),
        lambda: Transformer(13, 13, 5, 6, 3, 11, 2),
    ],
)
def test_sizes_in_another_order_built_the_wrong_model(build):
    with pytest.raises(TypeError, match=r"takes 1 positional argument but \d+ were given$"):
        build()


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


def test_a_mask_given_as_context_is_named():
    with pytest.raises(TypeError, match=r"^context must be floating point, got bool: pass a mask"):
        layer_of()(draw(2, 4, 6), torch.ones(4, 4, dtype=torch.bool))


@pytest.mark.parametrize("build", ["DecoderLM", "VisionTransformer"])
def test_models_without_a_context_do_not_swallow_cross_attention(build):
    image = {"image_size": 4, "patch_size": 2, "in_channels": 1, "num_classes": 3}
    text = {"vocab_size": 13, "max_len": 5}
    kind, sizes = {"DecoderLM": (DecoderLM, text)}.get(build, (VisionTransformer, image))
    with pytest.raises(ValueError, match=f"^{build} has no context: its blocks have no cross-att"):
        kind(**sizes, **SIZES, cross_attention=True)
    kind(**sizes, **SIZES, cross_attention=False)


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_causal_that_is_a_number_gets_our_own_message(softcap):
    with pytest.raises(TypeError, match=r"^causal must be True or False, got 1$"):
        layer_of(softcap=softcap)(draw(2, 4, 6), causal=1)


# ---------------------------------------------------------------- the scale


@pytest.mark.parametrize("scale", [-1.0, 0.0, -0.3])
@pytest.mark.parametrize("masked", [False, True])
def test_a_scale_that_is_not_positive_keeps_the_future_closed(scale, masked):
    """PyTorch's kernel multiplies its -inf by the scale: NaN in all rows but the last."""
    layer, x = layer_of(scale=scale), draw(2, 5, 6)
    options = {"mask": causal_mask(5)} if masked else {"causal": True}
    out = layer(x, **options)
    q, k, v = (
        proj(x).unflatten(-1, (3, -1)).transpose(1, 2)
        for proj in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    expected = attention(q, k, v, scale=scale, causal=True)[0].transpose(1, 2).flatten(2)
    torch.testing.assert_close(out, layer.out_proj(expected))


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
def test_a_scale_that_is_no_number_is_refused_when_the_layer_is_made(scale):
    with pytest.raises(ValueError, match=f"^scale must be finite, got {scale}$"):
        layer_of(scale=scale)
    with pytest.raises(TypeError, match=r"^scale must be a number, got '1'$"):
        layer_of(scale="1")


@pytest.mark.parametrize("part", ["q_proj", "k_proj", "v_proj", "out_proj"])
@pytest.mark.parametrize("T", [1, 2, 7, 8, 15, 16, 17, 31, 32, 40])
def test_a_parameter_that_is_nan_does_not_vanish(part, T):
    """PyTorch's kernel took a row of NaN scores, among fewer than 16 keys, for an empty row."""
    layer = layer_of(dtype=torch.float32)
    with torch.no_grad():
        getattr(layer, part).weight[0, 0] = torch.nan
    for causal in (False, True):
        assert layer(draw(2, T, 6).float(), causal=causal).isnan().any()


# ---------------------------------------------------------------- the cache


def in_pieces(model, cache, tokens):
    return [model(tokens[:, t : t + 1], cache=cache) for t in range(tokens.shape[1])]


@pytest.mark.parametrize("copied", ["cache", "model", "both", "pickled cache", "pickled both"])
@pytest.mark.parametrize("grad", [True, False])
def test_a_copied_cache_is_not_empty(copied, grad):
    """Beam search copies caches; a copy once counted as empty (off by 1.7)."""
    model, cache = language_model(), Cache()
    with torch.set_grad_enabled(grad and "pickled" not in copied):
        full = model(TOKENS)
        model(TOKENS[:, :4], cache=cache)
        if copied == "cache":
            cache = copy.deepcopy(cache)
        elif copied == "model":
            model = copy.deepcopy(model)
        elif copied == "both":
            model, cache = copy.deepcopy((model, cache))
        elif copied == "pickled cache":
            cache = pickle.loads(pickle.dumps(cache))  # noqa: S301 - our own, made here
        else:
            model, cache = pickle.loads(pickle.dumps((model, cache)))  # noqa: S301
        assert cache.length == 4
        torch.testing.assert_close(model(TOKENS[:, 4:], cache=cache), full[:, 4:])


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("grad", [True, False])
def test_two_copies_of_a_cache_go_their_own_ways(copier, grad):
    model, cache, other = language_model(), Cache(), TOKENS.flip(1)
    with torch.set_grad_enabled(grad):
        model(TOKENS[:, :3], cache=cache)
        twin = copier(cache)
        outs = [model(tokens[:, 3:5], cache=c) for tokens, c in ((TOKENS, cache), (other, twin))]
        for tokens, out in zip((TOKENS, other), outs, strict=True):
            whole = torch.cat([TOKENS[:, :3], tokens[:, 3:5]], dim=1)
            torch.testing.assert_close(out, model(whole)[:, 3:])
        assert cache.length == twin.length == 5


def test_the_cache_of_a_layer_alone_can_be_stored():
    """It knows its layer by a weak reference, which no file can hold."""
    layer, x, cache = layer_of(), draw(1, 5, 6), Cache()
    layer(x[:, :3].detach(), causal=True, cache=cache)
    with torch.no_grad():
        full, cache = layer(x, causal=True), Cache()
        layer(x[:, :3], causal=True, cache=cache)
        stored = pickle.loads(pickle.dumps(cache))  # noqa: S301 - our own, made here
        twin = copy.deepcopy(layer)  # the stored cache belongs to nobody yet
        torch.testing.assert_close(twin(x[:, 3:], causal=True, cache=stored), full[:, 3:])
        with cache.forward_pass(layer):
            assert not pickle.loads(pickle.dumps(cache)).in_pass  # noqa: S301


@pytest.mark.parametrize("where", ["second block", "output", "output of a pair"])
@pytest.mark.parametrize("grad", [True, False])
def test_a_call_that_raises_leaves_the_cache_as_it_was(where, grad):
    """The retry once appended the same keys twice."""
    model, cache = language_model(), Cache()
    part = model.decoder.blocks[1].feed_forward if where == "second block" else model.output
    if where == "output of a pair":
        pair = Transformer(source_vocab_size=13, target_vocab_size=13, max_len=9, **SIZES).eval()
        model, part = partial(pair.decode, context=draw(2, 5, 6).float()), pair.output

    def fail(*_):
        raise RuntimeError("stop")

    with torch.set_grad_enabled(grad):
        for done in (0, 3):  # an empty cache, and one that is not
            handle = part.register_forward_hook(fail)
            with pytest.raises(RuntimeError, match="stop"):
                model(TOKENS[:, done : done + 3], cache=cache)
            handle.remove()
            assert cache.length == done
            out = model(TOKENS[:, done : done + 3], cache=cache)
            torch.testing.assert_close(out, model(TOKENS[:, : done + 3])[:, done:])


def test_a_refused_call_of_a_layer_leaves_the_cache_as_it_was():
    layer, x, cache = layer_of(), draw(1, 4, 6), Cache()
    layer(x[:, :2], causal=True, cache=cache)
    with pytest.raises(ValueError, match="NaN"):
        layer(x[:, 2:], bias=torch.full((2, 4), torch.nan).double(), causal=True, cache=cache)
    layer.softcap = -1.0  # is looked at when the keys have been appended
    with pytest.raises(ValueError, match="softcap must be positive"):
        layer(x[:, 2:], causal=True, cache=cache)
    layer.softcap = None
    assert cache.length == 2
    out = layer(x[:, 2:], causal=True, cache=cache)
    torch.testing.assert_close(out, layer(x, causal=True)[:, 2:])


def test_a_layer_used_twice_in_a_stack_has_two_places():
    torch.manual_seed(0)
    stack = TransformerDecoder(**SIZES, cross_attention=False).double()
    stack.blocks[1] = stack.blocks[0]
    x, cache = draw(2, 5, 6), Cache()
    got = torch.cat([stack(piece, cache=cache) for piece in x.split([3, 1, 1], dim=1)], dim=1)
    torch.testing.assert_close(got, stack(x))


def test_layers_made_by_copying_share_a_cache_without_mixing():
    torch.manual_seed(0)
    stack = TransformerDecoder(**SIZES, cross_attention=False).double()
    stack.blocks[1] = copy.deepcopy(stack.blocks[0])
    x, cache = draw(2, 5, 6), Cache()
    got = torch.cat([stack(piece, cache=cache) for piece in x.split([3, 1, 1], dim=1)], dim=1)
    torch.testing.assert_close(got, stack(x))
    first, x, cache = layer_of(), draw(1, 3, 6), Cache()
    second = copy.deepcopy(first)
    first(x, causal=True, cache=cache)
    with pytest.raises(ValueError, match=r"^a layer and its copy would share one place in the"):
        second(x, causal=True, cache=cache)


def test_a_layer_that_other_layers_have_overtaken_is_refused():
    torch.manual_seed(0)
    stack = TransformerDecoder(**SIZES, cross_attention=False).double()
    x, cache = draw(2, 5, 6), Cache()
    stack.blocks[0].attention(x[:, :2], causal=True, cache=cache)  # one layer alone
    message = "^the cache holds 0 tokens of this layer and 2 of others: start with an empty one$"
    with pytest.raises(ValueError, match=message):
        stack(x[:, 2:], cache=cache)


def test_generate_names_a_model_that_uses_a_layer_twice():
    layer, table = layer_of(), draw(13, 6)

    def call(tokens, mask=None, cache=None):
        x = table[tokens]
        for _ in range(2):
            x = x + layer(x, causal=True, cache=cache)
        return x @ table.T

    message = (
        "^the cache holds 12 tokens after 6 were given: the model uses a layer twice; "
        "call its layers through one TransformerDecoder$"
    )
    with pytest.raises(ValueError, match=message):
        generate(call, TOKENS, max_new_tokens=2)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("then", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_a_cache_goes_on_in_another_mode_of_gradients(mode, then):
    model, cache = (
        language_model(attention={"d_k": 4, "rotate": ROTATE}),
        Cache(),
    )
    full, outs = model(TOKENS), []
    for context, part in ((mode, [0, 1]), (then, [2, 3]), (mode, [4, 5])):
        with context():
            outs.append(model(TOKENS[:, part], cache=cache))
    torch.testing.assert_close(torch.cat([out.clone() for out in outs], dim=1), full)


def test_a_backward_pass_after_more_tokens_finds_what_it_needs():
    """Writing in place would have changed the keys that an earlier piece's gradient needs."""
    model, cache = language_model(), Cache()
    for p in model.parameters():
        p.requires_grad_("q_proj" in p_name_of(model, p))
    outs = in_pieces(model, cache, TOKENS)
    got = torch.autograd.grad(sum(o.square().sum() for o in outs), trained(model))
    expected = torch.autograd.grad(model(TOKENS).square().sum(), trained(model))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)


def p_name_of(model, parameter):
    return next(name for name, p in model.named_parameters() if p is parameter)


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


def test_a_step_copies_no_cache():
    """Memory is allocated ahead: a hundred steps allocate keys a few times, not a hundred."""
    layer, x, cache, places = layer_of(), draw(1, 100, 6), Cache(), set()
    with torch.no_grad():
        for t in range(100):
            layer(x[:, t : t + 1], causal=True, cache=cache)
            (entry,) = cache._entries.values()
            places.add((entry.k.untyped_storage().data_ptr(), entry.k.shape[2]))
    assert cache.length == 100
    assert sorted(capacity for _, capacity in places) == [2, 6, 14, 30, 62, 126]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.float(), "dtype and device, got torch.float32 on cpu and torch.float64 on"),
        (lambda x: x[:1], "the same batch size, got 1 and 2$"),
    ],
)
def test_a_cache_of_another_kind_is_refused(change, message):
    layer, x, cache = layer_of(), draw(2, 4, 6), Cache()
    layer(x, causal=True, cache=cache)
    other = copy.deepcopy(layer).to(change(x).dtype)
    other.cache_key, cache._owners = layer.cache_key, {}
    with pytest.raises(ValueError, match=message):
        other(change(x), causal=True, cache=cache)
    assert cache.length == 4


def test_modules_without_a_key_are_told_apart_by_where_they_are():
    cache, first, second = Cache(), nn.Identity(), nn.Identity()
    for layers in ((first, second), (second, first)):
        with cache.forward_pass(nn.Identity()):
            for layer in layers:
                own = torch.full((1, 1, 1, 1), float(layer is second))
                k, _ = cache.append(layer, own, own)
                assert torch.equal(k, own.expand_as(k))


def test_a_cache_outside_of_a_pass_is_refused():
    for use in (
        lambda cache: cache.append(layer_of(), draw(1, 1, 2, 4), draw(1, 1, 2, 4)),
        lambda cache: cache.once("angles", list),
    ):
        with pytest.raises(ValueError, match=r"^a cache is used within its forward_pass$"):
            use(Cache())


# ---------------------------------------------------------------- rotary positions


@pytest.mark.parametrize(
    ("x", "positions"), [((3, 3, 5, 4), (3, 5)), ((3, 4), (5, 3)), ((2, 3, 5, 4), (2, 5))]
)
def test_positions_of_another_rank_are_not_guessed(x, positions):
    """(B, T) became positions of the heads where B = H; (5, 3) turned (3, 4) into (5, 3, 4)."""
    with pytest.raises(ValueError, match=r"^positions must be \(T,\), or have one axis for each"):
        apply_rope(torch.ones(x), torch.zeros(positions))


def test_positions_of_each_example_have_an_axis_for_the_heads():
    x, positions = draw(2, 3, 5, 4), torch.arange(10).view(2, 1, 5)
    got = apply_rope(x, positions)
    for b in range(2):
        torch.testing.assert_close(got[b], apply_rope(x[b], positions[b, 0]))


# ---------------------------------------------------------------- conversions


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


# ---------------------------------------------------------------- writing


def test_a_model_in_training_mode_is_refused():
    model = language_model().train()
    with pytest.raises(ValueError, match=r"^the model is in training mode: call model.eval\(\) fi"):
        generate(model, TOKENS, max_new_tokens=2)
    pair = Transformer(source_vocab_size=13, target_vocab_size=13, max_len=9, **SIZES)
    call = partial(pair.decode, context=draw(2, 5, 6).float())
    with pytest.raises(ValueError, match="training mode"):
        generate(call, TOKENS, max_new_tokens=2)
    pair.eval()
    assert generate(call, TOKENS, max_new_tokens=2).shape == (2, 8)


def test_writing_stops_when_every_row_has_ended():
    calls = []

    def count(tokens, mask=None, cache=None):
        calls.append(tokens.shape[1])
        return F.one_hot((tokens + 1) % 13, 13).float()

    got = generate(count, torch.tensor([[0], [2]]), max_new_tokens=1000, end=4)
    assert got.tolist() == [[0, 1, 2, 3, 4], [2, 3, 4, 4, 4]]
    assert len(calls) == 4


def test_too_small_a_max_len_is_named_before_writing_starts():
    model, called = language_model(), []
    model.register_forward_hook(lambda *_: called.append(1))
    with pytest.raises(ValueError, match=r"^6 tokens and max_new_tokens=36 need a model with max"):
        generate(model, TOKENS, max_new_tokens=36)
    assert called == []
    assert generate(model, TOKENS, max_new_tokens=35).shape == (2, 41)  # the last is not read
    mask = torch.arange(6) >= torch.tensor([[2], [3]])
    padded = generate(model, TOKENS, max_new_tokens=37, mask=mask[:, None, None])
    assert padded.shape == (2, 43)
    with pytest.raises(ValueError, match=r"^4 tokens and max_new_tokens=38 need a model with max"):
        generate(model, TOKENS, max_new_tokens=38, mask=mask[:, None, None])


def test_a_model_without_a_max_len_has_no_limit():
    class Same(torch.nn.Module):
        def forward(self, tokens, mask=None, cache=None):
            return F.one_hot(tokens, 13).float()

    got = generate(Same().eval(), torch.tensor([[3]]), max_new_tokens=50)
    assert got.tolist() == [[3] * 51]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_not_chosen(bad, temperature):
    def call(tokens, mask=None, cache=None):
        return torch.tensor([0.0, bad, 1.0]).expand(*tokens.shape, 3)

    with pytest.raises(ValueError, match=r"^the model's logits must be finite, got NaN or infin"):
        generate(call, TOKENS, max_new_tokens=1, temperature=temperature)


def test_a_token_may_be_forbidden_by_minus_infinity():
    def call(tokens, mask=None, cache=None):
        return torch.tensor([0.0, -torch.inf, 1.0]).expand(*tokens.shape, 3)

    for temperature in (0.0, 5.0):
        got = generate(call, TOKENS, max_new_tokens=50, temperature=temperature)[:, 6:]
        assert 1 not in got.tolist()[0] + got.tolist()[1]


@pytest.mark.parametrize("temperature", [1e-60, 5e-324, 1e300, sys.float_info.max])
def test_temperatures_beyond_the_range_of_floats_are_sound(temperature):
    def call(tokens, mask=None, cache=None):
        return torch.tensor([-1.0, 4.0, 3.0]).expand(*tokens.shape, 3)

    drawn = generate(call, TOKENS[:1], max_new_tokens=60, temperature=temperature)[:, 6:]
    assert set(drawn[0].tolist()) == ({1} if temperature < 1 else {0, 1, 2})
    with pytest.raises(ValueError, match=r"^temperature must be at least 0 and finite, got 1000"):
        generate(call, TOKENS, max_new_tokens=1, temperature=10**400)


def test_top_p_draws_among_the_most_probable():
    """Probabilities 0.4, 0.3, 0.2, 0.1 in an order of their own, 20,000 rows."""
    shares = torch.tensor([0.2, 0.4, 0.1, 0.3]).double()

    def call(tokens, mask=None, cache=None):
        return shares.log().expand(*tokens.shape, 4)

    rows = torch.zeros(20_000, 1).long()
    for top_p, kept in (
        (1e-9, {1}),
        (0.39, {1}),
        (0.41, {1, 3}),
        (0.75, {0, 1, 3}),
        (1.0, {0, 1, 2, 3}),
    ):
        generator = torch.Generator().manual_seed(0)
        options = {"temperature": 1.0, "top_p": top_p, "generator": generator}
        drawn = generate(call, rows, max_new_tokens=1, **options)[:, 1]
        total = sum(float(shares[token]) for token in kept)
        for token in range(4):
            p = float(shares[token]) / total if token in kept else 0.0
            error = (p * (1 - p) / 20_000) ** 0.5
            assert abs(float((drawn == token).double().mean()) - p) <= 4 * error
    options = {"max_new_tokens": 1, "temperature": 1.0, "top_p": 0.5}
    drawn = generate(lambda tokens, **_: torch.zeros(*tokens.shape, 2), rows, **options)[:, 1]
    assert len(drawn.unique()) == 1  # of two halves, one is probable enough


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"top_p": 0.5}, ValueError, "^top_p needs a temperature above 0"),
        ({"top_p": 0.0, "temperature": 1.0}, ValueError, r"^top_p must be in \(0, 1\], got 0.0$"),
        ({"top_p": 1.5, "temperature": 1.0}, ValueError, r"^top_p must be in \(0, 1\], got 1.5$"),
        ({"top_p": "all", "temperature": 1.0}, TypeError, "^top_p must be a number, got 'all'$"),
        ({"temperature": "hot"}, TypeError, "^temperature must be a number, got 'hot'$"),
    ],
)
def test_choices_that_cannot_be_are_named(options, error, message):
    with pytest.raises(error, match=message):
        generate(language_model(), TOKENS, max_new_tokens=1, **options)


# ---------------------------------------------------------------- nits


def test_alibi_has_the_default_dtype_as_it_says():
    """It once promised float32, and the bias was refused beside queries of float32."""
    assert "in the default dtype" in alibi_bias.__doc__
    torch.set_default_dtype(torch.float64)
    try:
        assert alibi_bias(3, 4).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("shape", [(1, 8, 8), (2, 1, 8, 8), (8, 8), (4, 8, 8)])
def test_dinov2_inputs_make_no_colours_of_grey(shape):
    with pytest.raises(ValueError, match=r"^images must be \(..., 3, height, width\), got \("):
        dinov2_inputs(torch.zeros(shape, dtype=torch.uint8))
