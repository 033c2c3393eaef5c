import copy
import gc
import itertools
import math
import pickle
import weakref
from contextlib import nullcontext

import pytest
import torch
from cases import ROTATE, by_loops, draw, layer_of, shaken
from hypothesis import given
from hypothesis import strategies as st
from oracle import attention_by_loops
from torch import nn

from attn_lib import (
    Cache,
    attention,
    causal_mask,
    functional,
    fused,
    interop,
    layers,
    padding_mask,
    window_mask,
)
from attn_lib.layers import (
    FeedForward,
    MultiHeadAttention,
    merge_heads,
    split_heads,
)
from attn_lib.masks import to_additive, to_blocked
from attn_lib.positions import alibi_bias, sinusoidal
from attn_lib.recording import record_attention

# ---------------------------------------------------------------- heads


def test_split_puts_each_number_where_it_belongs():
    B, H, T, d = 2, 3, 5, 7
    x = torch.arange(B * T * H * d).view(B, T, H * d)
    heads = split_heads(x, H)
    assert heads.shape == (B, H, T, d)
    for b, h, t, i in itertools.product(*map(range, (B, H, T, d))):
        assert heads[b, h, t, i] == x[b, t, h * d + i]
    assert torch.equal(merge_heads(heads), x)
    assert not torch.equal(x.view(B, H, T, d), heads)  # the tempting mistake


def test_more_axes_may_come_first():
    x = torch.arange(2 * 3 * 5 * 4).view(2, 3, 5, 4)
    heads = split_heads(x, 2)
    assert heads.shape == (2, 3, 2, 5, 2)
    assert torch.equal(heads[1], split_heads(x[1], 2))
    assert torch.equal(merge_heads(heads), x)


def test_split_needs_a_divisor():
    with pytest.raises(ValueError, match="num_heads=4 must divide the width 6"):
        split_heads(torch.zeros(1, 1, 6), 4)


# ---------------------------------------------------------------- against loops


@pytest.mark.parametrize("shape", [(1, 7), (2, 1, 1, 7), (1, 4, 1, 7), (2, 4, 1, 7)])
@pytest.mark.parametrize("kind", ["mask", "attn_bias"])
def test_the_heads_of_a_group_are_computed_together(shape, kind):
    """One query: its heads become queries of one head, unless somebody looks at the call."""
    q, k, v = draw(2, 4, 1, 6, seed=1), draw(2, 2, 7, 6, seed=2), draw(2, 2, 7, 5, seed=3)
    added = draw(*shape, seed=4)
    options = {kind: added > -0.5 if kind == "mask" else added}
    out = fused.fused_attention(q, k, v, **options)
    wanted, _ = functional.attention(
        q, k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1), **options
    )
    torch.testing.assert_close(out, wanted)
    layer = MultiHeadAttention(6, 4, num_kv_heads=2, d_k=6).double().eval()
    with record_attention(layer) as maps:
        layer(q[:, 0], k[:, 0], **options)
    (weights,) = maps.values()
    assert weights.shape == (2, 4, 1, 7)


@pytest.mark.parametrize(
    ("H_kv", "T", "S", "queries", "causal", "gqa"),
    [
        (6, 5, 5, (6, 5), True, False),  # the kernel knows this mask without its cells
        (6, 1, 7, (6, 1), False, False),  # one query, the last, attends to every key
        (2, 5, 5, (6, 5), True, True),
        (2, 1, 7, (2, 3), False, False),  # the heads of a group as queries of one head
    ],
)
def test_the_kernel_is_called_as_it_is_fastest(H_kv, T, S, queries, causal, gqa, monkeypatch):
    q, k, v = (draw(2, *n, 4, seed=n[1]) for n in ((6, T), (H_kv, S), (H_kv, S)))
    kernel, calls = fused.F.scaled_dot_product_attention, []

    def noted(*tensors, **options):
        calls.append((tensors[0].shape[1:3], options))
        return kernel(*tensors, **options)

    monkeypatch.setattr(fused.F, "scaled_dot_product_attention", noted)
    fused.fused_attention(q, k, v, scale=0.5, causal=True)
    ((shape, options),) = calls
    assert shape == queries
    assert (options["attn_mask"], options["scale"]) == (None, 0.5)
    assert (options["is_causal"], options["enable_gqa"]) == (causal, gqa)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_broken_example_is_seen_and_breaks_no_other(dtype, broken):
    q, k, v = (draw(2, 3, 5, 4, seed=seed).to(dtype) for seed in range(3))
    sound, spoilt = fused.fused_attention(q, k, v), k.clone()
    spoilt[0, 1, 2, 3] = broken
    out = fused.fused_attention(q, spoilt, v)
    assert out.dtype == dtype
    torch.testing.assert_close(sound, functional.attention(q, k, v)[0], rtol=0.02, atol=0.01)
    assert out[0].isnan().any()
    assert torch.equal(out[1], sound[1])
    none = torch.zeros_like(q)  # numbers that sum to zero are no broken ones
    assert fused.fused_attention(none, none, v).isfinite().all()


@given(
    st.sampled_from([(None, None, None), (64, 32, None), (2, 5, 1), (3, 3, 2), (4, 1, 3)]),
    st.sampled_from(["self", "cross"]),
    st.sampled_from([None, "mask", "attn_bias", "both"]),
    st.booleans(),
    st.sampled_from([None, 2.0]),
    st.booleans(),
    st.integers(0, 1000),
)
def test_equals_plain_loops(widths, source, masked, causal, softcap, constants, seed):
    d_k, d_v, groups = widths
    layer = layer_of(
        seed,
        num_heads=6 if groups else 3,
        d_k=d_k,
        d_v=d_v,
        num_kv_heads=groups,
        softcap=softcap,
        bias=constants,
        d_context=None if source == "self" else 5,
    )
    x = draw(2, 4, 6, seed=seed)
    context = x if source == "self" else draw(2, 7, 5, seed=seed + 1)
    H, T, S = layer.num_heads, 4, context.shape[1]
    generator = torch.Generator().manual_seed(seed)
    mask = attn_bias = None
    if masked in ("mask", "both"):
        mask = torch.rand(2, 1, T, S, generator=generator) < 0.6
    if masked in ("attn_bias", "both"):
        attn_bias = draw(2, H, T, S, seed=seed + 2)
    got = layer(
        x, None if source == "self" else context, mask=mask, attn_bias=attn_bias, causal=causal
    )
    with torch.no_grad():
        expected = by_loops(layer, x, context, mask, attn_bias, causal)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-10)


# ---------------------------------------------------------------- against PyTorch's layer


@pytest.mark.parametrize("constants", [True, False])
@pytest.mark.parametrize("width", [6, 5])
@pytest.mark.parametrize("masked", ["nothing", "padding", "causal", "both"])
def test_equals_torch_with_the_same_weights(constants, width, masked):
    theirs = nn.MultiheadAttention(
        6, 3, bias=constants, kdim=width, vdim=width, batch_first=True
    ).double()
    ours = interop.from_torch(theirs)
    x = draw(2, 5, 6).requires_grad_()
    context = x if width == 6 else draw(2, 5, 5, seed=1)
    lengths = torch.tensor([5, 3])
    padding = padding_mask(lengths, 5)
    options, their_options = {}, {}
    if masked in ("padding", "both"):
        options["mask"] = padding
        their_options["key_padding_mask"] = to_blocked(padding)[:, 0, 0]
    if masked in ("causal", "both"):
        options["causal"] = True
        their_options["attn_mask"] = to_blocked(causal_mask(5))
    with record_attention(ours) as maps:
        out = ours(x, None if context is x else context, **options)
    expected, weights = theirs(x, context, context, average_attn_weights=False, **their_options)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(maps[""], weights)
    (grad,) = torch.autograd.grad(out.square().sum(), x, retain_graph=True)
    (expected_grad,) = torch.autograd.grad(expected.square().sum(), x)
    torch.testing.assert_close(grad, expected_grad)
    back = interop.to_torch(ours)
    for name, value in theirs.state_dict().items():
        assert torch.equal(back.state_dict()[name], value), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kdim": 5, "vdim": 4}, "kdim=5 and vdim=4"),
        ({"add_bias_kv": True}, "^add_bias_kv and add_zero_attn have no counterpart here$"),
        ({"add_zero_attn": True}, "add_zero_attn"),
    ],
)
def test_what_torch_has_and_we_have_not_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        interop.from_torch(nn.MultiheadAttention(6, 3, **options))


@pytest.mark.parametrize(
    "options",
    [
        {"d_k": 4},
        {"d_v": 1},
        {"num_kv_heads": 1},
        {"scale": 1.0},
        {"softcap": 1.0},
        {"rotate": ROTATE},
        {"window": 2},
        {"sinks": True},
        {"qk_norm": lambda heads, d_k: nn.RMSNorm(d_k)},
    ],
)
def test_what_we_have_and_torch_has_not_is_refused(options):
    message = (
        "^nn.MultiheadAttention needs d_k = d_v = d_model / num_heads, as many key heads, "
        "the default scale, and no softcap, window, sinks, rotary positions or norm of the queries$"
    )
    with pytest.raises(ValueError, match=message):
        interop.to_torch(layer_of(**options))


# ---------------------------------------------------------------- key-value cache


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.sampled_from([{}, {"d_k": 4, "rotate": ROTATE}, {"num_kv_heads": 1}, {"softcap": 2.0}]),
    st.sampled_from(["nothing", "padding", "window", "attn_bias"]),
)
def test_a_cache_in_any_split_equals_the_full_pass(pieces, options, masked):
    """Outputs and gradients; the queries of a later piece attend to all that came before."""
    layer, T = layer_of(**options), sum(pieces)
    x = draw(2, T, 6).requires_grad_()
    given = {}
    if masked == "padding":  # on the left, as in generation
        given["mask"] = padding_mask(torch.tensor([T, max(T - 2, 0)]), T).flip(-1)
    elif masked == "window":
        given["mask"] = window_mask(T, window=3)
    elif masked == "attn_bias":
        given["attn_bias"] = draw(2, 1, T, T, seed=5)
    full = layer(x, causal=True, **given)
    cache, outs, end = Cache(), [], 0
    for n in pieces:
        start, end = end, end + n
        rows = {name: o[..., start:end, :] for name, o in given.items() if o.shape[-2] > 1}
        columns = {name: o[..., :end] for name, o in {**given, **rows}.items()}
        outs.append(layer(x[:, start:end], causal=True, cache=cache, **columns))
        assert cache.length == end
    got = torch.cat(outs, dim=1)
    torch.testing.assert_close(got, full)
    weight = draw(2, T, 6, seed=8)
    grads = [torch.autograd.grad((o * weight).sum(), x, retain_graph=True)[0] for o in (got, full)]
    torch.testing.assert_close(*grads)


def test_a_cache_keeps_what_a_context_has_shown():
    layer, context = layer_of(d_context=5), draw(2, 7, 5, seed=1)
    mask, x, cache = padding_mask(torch.tensor([7, 4]), 7), draw(2, 3, 6), Cache()
    full, computed = layer(x, context, mask=mask), []
    layer.k_proj.register_forward_hook(lambda *_: computed.append(1))
    for t in range(3):
        got = layer(x[:, t : t + 1], context, mask=mask, cache=cache)
        torch.testing.assert_close(got, full[:, t : t + 1])
    assert computed == [1]  # once
    # the same numbers in another tensor are the same context: a stored cache has such a one
    torch.testing.assert_close(layer(x, context.clone(), mask=mask, cache=cache), full)
    message = r"^the cache was filled with another context: start with an empty one$"
    with pytest.raises(ValueError, match=message):
        layer(x, context + 1e-9, cache=cache)
    plain = layer_of()
    for first, then in (((x, x), (x,)), ((x,), (x, x))):  # a context, or none: not both
        cache = Cache()
        plain(*first, cache=cache)
        with pytest.raises(ValueError, match=message):
            plain(*then, cache=cache)


@pytest.mark.parametrize("garbage", [math.nan, math.inf])
@pytest.mark.parametrize("source", ["self", "cross"])
def test_padding_may_hold_anything_with_a_cache_too(garbage, source):
    layer, x, context = layer_of(), draw(2, 4, 6), draw(2, 4, 6, seed=1)
    filled, mask = (x if source == "self" else context), padding_mask(torch.tensor([4, 2]), 4)
    results = []
    for padding in (0.0, garbage):
        filled[1, 2:], cache = padding, Cache()
        given = (x, None) if source == "self" else (x[:, :2], context)
        results.append(layer(*given, mask=mask, cache=cache)[:, :2])
        if source == "self":  # the padding is closed to the next query too
            wider = torch.cat([mask, torch.ones(2, 1, 1, 1).bool()], dim=-1)
            results.append(layer(context[:, :1], mask=wider, cache=cache))
    half = len(results) // 2
    for clean, dirty in zip(results[:half], results[half:], strict=True):
        assert torch.equal(clean, dirty)


@pytest.mark.parametrize(
    ("k", "v", "harmless"),
    [
        (2.0**49, 2.0**48, True),
        (2.0**50, 0.0, False),
        (0.0, 2.0**50, False),
        (1.0, math.inf, False),  # 0 · inf is NaN
        (math.inf, 1.0, False),
        (math.nan, 1.0, False),
    ],
)
def test_only_moderate_padding_is_left_to_a_weight_of_zero(k, v, harmless):
    k, v = (torch.full((1, 1, 1, 1), number).double() for number in (k, v))
    assert layers._harmless(k, v) is harmless


def test_where_numbers_cannot_be_read_padding_is_always_cleared(monkeypatch):
    layer, mask = layer_of(), padding_mask(torch.tensor([4, 2]), 4)
    x = draw(2, 4, 6)
    expected = layer(x, mask=mask)[:, :2]
    x[1, 2:] = math.nan
    meta = layer_of().to("meta")
    assert meta(x.to("meta"), mask=mask.to("meta"), cache=Cache()).shape == (2, 4, 6)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)  # as in a graph
    torch.testing.assert_close(layer(x, mask=mask, cache=Cache())[:, :2], expected)


def test_what_is_closed_now_may_be_attended_to_later():
    layer, x = layer_of(), draw(1, 3, 6)
    mask = torch.tensor([[True, False], [True, False]])
    cache = Cache()
    layer(x[:, :2], mask=mask, cache=cache)
    later = torch.ones(1, 3, dtype=torch.bool)
    torch.testing.assert_close(layer(x[:, 2:], mask=later, cache=cache), layer(x[:, 2:], x))


def test_autocast_takes_a_bias_of_any_dtype():
    layer, x = layer_of(dtype=torch.float32), draw(2, 4, 6, dtype=torch.float32)
    attn_bias = draw(4, 4, seed=1, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x, attn_bias=attn_bias)
    torch.testing.assert_close(out.float(), layer(x, attn_bias=attn_bias), rtol=0.05, atol=0.02)
    assert not torch.allclose(out.float(), layer(x), atol=0.05)


def test_a_cache_of_another_batch_is_refused():
    layer, cache = layer_of(), Cache()
    layer(draw(2, 3, 6), cache=cache)
    with pytest.raises(ValueError, match=r"^x and cache .* the same batch size, got 1 and 2$"):
        layer(draw(1, 5, 6), cache=cache)


def test_layers_share_a_cache_without_mixing():
    first, second, cache = layer_of(), layer_of(1), Cache()
    x = draw(1, 4, 6)
    full = second(first(x, causal=True), causal=True)
    got = [second(first(x[:, t : t + 1], cache=cache), cache=cache) for t in range(4)]
    torch.testing.assert_close(torch.cat(got, dim=1), full)
    assert cache.length == 4


# ---------------------------------------------------------------- conventions


def test_an_empty_example_harms_nobody():
    layer = layer_of()
    x = draw(2, 4, 6)
    mask = padding_mask(torch.tensor([4, 0]), 4)
    out = layer(x, mask=mask)
    torch.testing.assert_close(out[1], layer.out_proj.bias.expand(4, 6))
    torch.testing.assert_close(out[:1], layer(x[:1]))
    out.sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in layer.parameters())


@pytest.mark.parametrize("garbage", [math.nan, math.inf, 1e30])
def test_padding_of_a_context_may_hold_anything(garbage):
    layer = layer_of()
    x, context = draw(2, 4, 6), draw(2, 5, 6, seed=1)
    mask = padding_mask(torch.tensor([5, 3]), 5)
    expected = layer(x, context, mask=mask)
    context[1, 3:] = garbage
    assert torch.equal(layer(x, context, mask=mask), expected)


def test_recording_changes_nothing_and_shows_what_was_used():
    model = nn.Sequential(layer_of(dropout=0.5), layer_of(1, dropout=0.5))
    x = draw(2, 4, 6)
    for mode in (True, False):
        model.train(mode)
        torch.manual_seed(0)
        plain = model(x)
        torch.manual_seed(0)
        with record_attention(model) as maps:
            recorded = model(x)
        assert torch.equal(recorded, plain)
        assert set(maps) == {"0", "1"}
        assert all(not m.requires_grad and m.shape == (2, 3, 4, 4) for m in maps.values())
        torch.testing.assert_close(maps["0"].sum(-1), torch.ones(2, 3, 4, dtype=torch.float64))
    first = model[0]
    mixed = maps["0"] @ split_heads(first.v_proj(x), 3)
    torch.testing.assert_close(first.out_proj(merge_heads(mixed)), first(x))
    before = dict(maps)
    model(x + 1)
    assert all(torch.equal(maps[name], before[name]) for name in maps)


def test_what_is_recorded_knows_every_option():
    layer, x, attn_bias = layer_of(softcap=1.0, scale=2.0), draw(1, 4, 6), draw(1, 3, 4, 4, seed=1)
    with record_attention(layer) as maps:
        layer(x, attn_bias=attn_bias, causal=True)
    q, k, v = (split_heads(part(x), 3)[0] for part in (layer.q_proj, layer.k_proj, layer.v_proj))
    for h in range(3):
        _, weights = attention_by_loops(
            q[h], k[h], v[h], attn_bias=attn_bias[0, h], scale=2.0, softcap=1.0, causal=True
        )
        torch.testing.assert_close(maps[""][0, h], weights)


def test_copies_keep_dropout_mode_and_dtype():
    theirs = nn.MultiheadAttention(6, 3, dropout=0.25, batch_first=False).double().eval()
    ours = interop.from_torch(theirs)
    assert (ours.dropout, ours.training, ours.q_proj.weight.dtype) == (0.25, False, torch.float64)
    back = interop.to_torch(ours)
    assert (back.dropout, back.training, back.batch_first) == (0.25, False, True)
    assert back.out_proj.weight.dtype == torch.float64
    assert interop.to_torch(interop.from_torch(theirs.train()).train()).training
    ours.q_proj.weight.data.zero_()
    assert not bool((theirs.in_proj_weight[:6] == 0).all())  # a copy, not a view


def test_without_constants_there_are_none():
    assert [n for n, _ in layer_of(bias=False).named_parameters() if n.endswith("bias")] == []
    assert sum(n.endswith("bias") for n, _ in layer_of().named_parameters()) == 4


def test_softcap_drops_out_in_training_too():
    layer, x = layer_of(softcap=1.0, dropout=0.5), draw(2, 4, 6)
    assert not torch.equal(layer(x), layer(x))
    assert torch.equal(layer.eval()(x), layer(x))


def test_a_column_closed_to_all_may_hold_anything():
    layer, x, context = layer_of(), draw(2, 4, 6), draw(2, 5, 6, seed=1)
    mask = torch.ones(4, 5, dtype=torch.bool)
    mask[:, 2] = False
    expected = layer(x, context, mask=mask)
    context[:, 2] = math.nan
    assert torch.equal(layer(x, context, mask=mask), expected)


@pytest.mark.parametrize(
    "options", [{}, {"d_k": 4, "rotate": ROTATE}, {"d_k": 4, "d_v": 7}, {"window": 2}]
)
@pytest.mark.parametrize("cached", [False, True])
def test_runs_on_meta_tensors(options, cached):
    layer, cache = layer_of(**options).to("meta"), Cache() if cached else None
    x = torch.empty(2, 4, 6, device="meta", dtype=torch.float64)
    mask = torch.empty(2, 1, 1, 4, device="meta", dtype=torch.bool)
    out = layer(x, mask=mask, causal=True, cache=cache)
    assert (out.shape, out.device.type) == ((2, 4, 6), "meta")


def test_exported_for_any_length():
    class Causal(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer_of()

        def forward(self, x):
            return self.layer(x, causal=True)

    model = Causal()
    length = torch.export.Dim("T", min=2)
    program = torch.export.export(model, (draw(2, 5, 6),), dynamic_shapes={"x": {1: length}})
    x = draw(2, 11, 6, seed=1)
    torch.testing.assert_close(program.module()(x), model(x))


def test_no_query_at_all():
    assert layer_of()(draw(2, 0, 6), draw(2, 3, 6)).shape == (2, 0, 6)
    assert layer_of(d_k=4, rotate=ROTATE)(draw(2, 0, 6)).shape == (2, 0, 6)


def test_recorders_nest_and_end_with_an_error():
    layer, inner = layer_of(), {}

    def fails():
        with record_attention(layer) as maps:
            layer(draw(1, 2, 6))
            inner.update(maps)
            raise RuntimeError("stop")

    with record_attention(layer) as outer:
        with pytest.raises(RuntimeError, match="stop"):
            fails()
        layer(draw(1, 3, 6))
    assert inner[""].shape[-1] == 2
    assert outer[""].shape[-1] == 3


def test_dropout_is_for_training_only():
    layer, x = layer_of(dropout=0.5), draw(2, 4, 6)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))
    torch.testing.assert_close(layer(x), layer_of()(x))


@pytest.mark.parametrize(("d_k", "d_v"), [(4, 7), (7, 4), (5, 5)])
def test_the_kernel_gets_one_width(d_k, d_v, monkeypatch):
    """Unequal widths would fall to PyTorch's slow kernel; the answer would be the same."""
    widths, kernel = [], fused.F.scaled_dot_product_attention

    def watched(q, k, v, **options):
        widths.extend(x.shape[-1] for x in (q, k, v))
        return kernel(q, k, v, **options)

    monkeypatch.setattr(fused.F, "scaled_dot_product_attention", watched)
    layer_of(d_k=d_k, d_v=d_v)(draw(2, 4, 6))
    assert widths == [max(d_k, d_v)] * 3


def test_rotary_scores_depend_on_distance_only():
    layer = layer_of(d_k=4, rotate=ROTATE)
    x = draw(1, 1, 6).expand(1, 7, 6)  # the same token everywhere: only positions differ
    with record_attention(layer) as maps:
        layer(x)
    logits = maps[""].log()
    ratios = logits[..., :, 1:] - logits[..., :, :-1]  # of neighbouring keys, per query
    for distance in range(-5, 6):
        diagonal = ratios.diagonal(offset=distance, dim1=-2, dim2=-1)
        torch.testing.assert_close(diagonal, diagonal[..., :1].expand_as(diagonal))
    plain = layer_of(d_k=4)
    with record_attention(plain) as even:
        plain(x)
    assert torch.allclose(even[""], torch.full_like(even[""], 1 / 7))
    assert not torch.allclose(maps[""], even[""], atol=1e-3)


def test_rotary_positions_are_of_one_sequence():
    """They were once applied to a context as well, counted from wherever it ended."""
    layer, x = layer_of(d_k=4, rotate=ROTATE), draw(1, 6, 6)
    for queries in (x, x[:, 4:]):  # of one length, nothing else would fail
        with pytest.raises(ValueError, match=r"^rotary positions and a window .* no context$"):
            layer(queries, x)


def test_initial_projections_differ():
    layer = layer_of(d_k=2)
    weights = [linear.weight for linear in (layer.q_proj, layer.k_proj, layer.v_proj)]
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(weights, 2))


@pytest.mark.parametrize("equal", [True, False])
def test_only_their_start_tells_heads_apart(equal):
    """Heads that start equal get equal gradients, so no step of training parts them."""
    layer = layer_of(d_k=5, d_v=7)
    inward = (layer.q_proj, layer.k_proj, layer.v_proj)

    def of_heads(tensor):  # the numbers of each of three heads
        parts = [getattr(linear.weight, tensor) for linear in inward]
        return [
            part.unflatten(0, (3, -1))
            for part in (*parts, getattr(layer.out_proj.weight, tensor).mT)
        ]

    for part in of_heads("data"):
        part.copy_(part[:1].clone().expand_as(part) if equal else part)
    for linear in inward:
        nn.init.zeros_(linear.bias)
    layer(draw(2, 11, 6)).square().sum().backward()
    assert all(grad.abs().max() > 0 for grad in of_heads("grad"))
    assert all(torch.allclose(grad[1:], grad[:-1]) == equal for grad in of_heads("grad"))


@pytest.mark.parametrize(("B", "T", "S"), [(0, 3, 3), (2, 0, 3), (2, 1, 1)])
def test_empty_and_single(B, T, S):
    assert layer_of()(draw(B, T, 6), draw(B, S, 6)).shape == (B, T, 6)


BAD_LAYERS = [
    ({"num_heads": 4}, ValueError, "d_model=6 must be divisible by num_heads=4 unless d_k"),
    ({"num_heads": 0}, ValueError, "num_heads must be at least 1, got num_heads=0|got 0"),
    ({"num_heads": -2}, ValueError, "num_heads=-2"),
    ({"num_heads": 2.0}, TypeError, "num_heads must be an integer, got 2.0"),
    ({"num_kv_heads": 2}, ValueError, "num_kv_heads=2 must divide num_heads=3"),
    ({"d_k": 0}, ValueError, "d_k must be at least 1"),
    ({"d_v": 0}, ValueError, "d_v must be at least 1"),
    ({"d_context": 0}, ValueError, "d_context must be at least 1"),
    ({"num_kv_heads": 0}, ValueError, "num_kv_heads must be at least 1"),
    ({"dropout": 1.5}, ValueError, "dropout must be in .0, 1., got 1.5"),
    ({"window": 0}, ValueError, "window must be at least 1, got 0"),
    ({"window": 2.0}, TypeError, "window must be an integer, got 2.0"),
]


def test_a_layer_needs_a_width():
    with pytest.raises(ValueError, match="d_model must be at least 1, got 0"):
        MultiHeadAttention(0, 3, d_k=2)


def test_dropping_everything_is_allowed():
    layer = layer_of(dropout=1.0)
    torch.testing.assert_close(layer(draw(1, 2, 6)), layer.out_proj.bias.expand(1, 2, 6))
    forward = FeedForward(d_model=2, d_ff=3, dropout=1.0)
    assert torch.equal(forward(torch.ones(1, 2)), forward.down.bias[None])


@pytest.mark.parametrize(("options", "error", "message"), BAD_LAYERS)
def test_bad_layers_are_named(options, error, message):
    with pytest.raises(error, match=message):
        layer_of(**options)


BAD_CALLS = [
    ({"x": draw(4, 6)}, ValueError, r"x must be \(batch, length, 6\), got \(4, 6\)"),
    ({"x": draw(2, 4, 5)}, ValueError, r"x must be .*got \(2, 4, 5\)"),
    ({"context": draw(2, 4, 7)}, ValueError, "context must be"),
    ({"context": draw(3, 4, 6)}, ValueError, "same batch size, got 2 and 3"),
    ({"mask": torch.ones(4, 4)}, TypeError, "mask must be a bool tensor"),
    ({"mask": [[True]]}, TypeError, "mask must be a bool tensor, .* got list"),
    ({"mask": torch.ones(2, 4).bool()}, ValueError, r"\(4, 4\) of the scores"),
    ({"mask": torch.ones(4, 7).bool()}, ValueError, r"\(4, 4\) of the scores"),
    ({"mask": torch.ones(3, 1, 4, 4).bool()}, ValueError, r"\(2, 3, 4, 4\) of the scores"),
    ({"mask": torch.ones(2, 4, 4).bool()}, ValueError, "write out the missing axes"),
    ({"attn_bias": torch.full((4, 4), math.nan).double()}, ValueError, "NaN"),
    ({"attn_bias": torch.zeros(4, 4)}, TypeError, "attn_bias must have the dtype of q"),
]


@pytest.mark.parametrize(("changes", "error", "message"), BAD_CALLS)
def test_bad_calls_are_named(changes, error, message):
    call = {"x": draw(2, 4, 6), **changes}
    with pytest.raises(error, match=message):
        layer_of()(call.pop("x"), call.pop("context", None), **call)


# ---------------------------------------------------------------- windows


@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 1}, {"softcap": 2.0}, {"sinks": True}])
@pytest.mark.parametrize("window", [1, 2, 3, 7, 9])
def test_a_window_counts_the_token_itself(window, options):
    """Beside a mask written out pair by pair."""
    layer, plain, x = layer_of(window=window, **options), layer_of(**options), draw(2, 7, 6)
    near = torch.tensor([[0 <= i - j < window for j in range(7)] for i in range(7)])
    torch.testing.assert_close(layer(x, causal=True), plain(x, mask=near))
    real = padding_mask(torch.tensor([7, 4]), 7).flip(-1)
    attn_bias = draw(7, 7, seed=1)
    torch.testing.assert_close(
        layer(x, causal=True, mask=real, attn_bias=attn_bias),
        plain(x, mask=real & near, attn_bias=attn_bias),
    )


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("window", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 1, "rotate": ROTATE, "d_k": 4}])
def test_a_window_in_any_split_of_a_cache(window, options, grad):
    """With padding and a bias; no older key is handed to the layer, or kept for long."""
    layer, x = layer_of(window=window, sinks=True, **options), draw(2, 5, 6)
    with torch.no_grad():
        layer.sinks.copy_(draw(3, seed=5))
    mask, attn_bias = padding_mask(torch.tensor([5, 3]), 5).flip(-1), draw(2, 3, 5, 5, seed=1)
    full = layer(x, causal=True, mask=mask, attn_bias=attn_bias)
    for ends in itertools.chain.from_iterable(
        itertools.combinations(range(1, 5), n) for n in range(5)
    ):
        cache, outs = Cache(), []
        for start, end in itertools.pairwise([0, *ends, 5]):
            given = {"mask": mask[..., :end], "attn_bias": attn_bias[:, :, start:end, :end]}
            with torch.set_grad_enabled(grad):
                outs.append(layer(x[:, start:end], causal=True, cache=cache, **given))
            assert cache.length == end
        torch.testing.assert_close(torch.cat(outs, dim=1), full)


@pytest.mark.parametrize("grad", [True, False])
def test_what_a_mask_closes_in_a_window_may_hold_anything(grad):
    """Without a cache it is cleared before the keys; with one, of the keys that are left."""
    layer, x = layer_of(window=3), draw(2, 9, 6)
    x[0, 4] = math.nan
    mask = torch.ones(2, 1, 1, 9, dtype=torch.bool)
    mask[0, ..., 4] = False
    full = layer(x, mask=mask, causal=True)
    cache, outs = Cache(), []
    for start, end in itertools.pairwise([0, 3, 5, 6, 7, 9]):
        with torch.set_grad_enabled(grad):
            outs.append(layer(x[:, start:end], mask=mask[..., :end], causal=True, cache=cache))
    real = [*range(4), *range(5, 9)]  # the query that is NaN itself is another matter
    out = torch.cat(outs, dim=1)
    assert out[:, real].isfinite().all()
    torch.testing.assert_close(out[:, real], full[:, real])


def test_rotated_keys_in_a_cache_while_a_graph_is_traced(monkeypatch):
    layer, x = layer_of(rotate=ROTATE, d_k=4), draw(2, 5, 6)
    full, cache = layer(x, causal=True), Cache()
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    pieces = [layer(piece, causal=True, cache=cache) for piece in x.split([2, 1, 2], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), full)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_a_cache_drops_what_no_window_can_reach(mode):
    layer, cache, sizes = layer_of(window=3), Cache(), []
    with mode():
        for _ in range(40):
            layer(draw(1, 1, 6), causal=True, cache=cache)
            ((entry),) = cache._entries.values()
            sizes.append(entry.k.shape[2])
    assert cache.length == 40
    assert max(sizes) <= 6
    assert (copy.deepcopy(cache).length, pickle.loads(pickle.dumps(cache)).length) == (40, 40)  # noqa: S301


def test_a_cache_hands_out_what_a_window_reaches_and_no_more():
    layer, cache = nn.Identity(), Cache()
    for step in range(20):
        with torch.no_grad(), cache.forward_pass(layer):
            k, v = cache.append(layer, *torch.full((2, 1, 1, 1, 2), step), window=3)
        for handed in (k, v):
            assert handed[0, 0, :, 0].tolist() == list(range(max(step - 2, 0), step + 1))


def test_a_layer_that_stands_in_a_stack_three_times_has_three_places():
    layer, stack, cache = nn.Identity(), nn.Identity(), Cache()
    for step in range(2):
        with cache.forward_pass(stack):
            places = [
                cache.append(layer, *torch.full((2, 1, 1, 1, 2), 10 * place + step))[0]
                for place in range(3)
            ]
    assert [keys[0, 0, :, 0].tolist() for keys in places] == [[0, 1], [10, 11], [20, 21]]


def test_layers_of_one_pass_may_be_given_unequal_lengths():
    """Angles are shared by those alone that have the same positions."""
    lengths = {layer_of(seed, d_k=4, rotate=ROTATE): T for seed, T in [(1, 5), (2, 3)]}
    x, cache = draw(2, 5, 6), Cache()
    with cache.forward_pass(nn.Identity()):
        outs = [layer(x[:, :T], causal=True, cache=cache) for layer, T in lengths.items()]
    for (layer, T), out in zip(lengths.items(), outs, strict=True):
        torch.testing.assert_close(out, layer(x[:, :T], causal=True))


def test_what_a_window_dropped_is_not_made_up():
    layer, cache = layer_of(window=3), Cache()
    for _ in range(9):
        layer(draw(1, 1, 6), causal=True, cache=cache)
    for window in (None, 5):
        layer.window = window
        with pytest.raises(ValueError, match=f"^window={window} needs keys that a smaller window"):
            layer(draw(1, 1, 6), causal=True, cache=cache)
    assert cache.length == 9
    for window in (4, 2):  # where gradients are recorded, the last three keys are kept
        layer.window = window
        layer(draw(1, 1, 6), causal=True, cache=cache)
    assert cache.length == 11


def test_a_layer_of_another_context_needs_one():
    with pytest.raises(ValueError, match=r"^context must be \(batch, length, 5\), got None$"):
        layer_of(d_context=5)(draw(1, 4, 6))


def test_a_window_needs_the_causal_order():
    layer, x = layer_of(window=3), draw(1, 4, 6)
    with pytest.raises(ValueError, match=r"^a window ends with the token itself: .* causal=True$"):
        layer(x)
    with pytest.raises(ValueError, match="takes no context"):
        layer(x, x, causal=True)


# ---------------------------------------------------------------- sinks


@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 1}, {"softcap": 2.0}, {"d_v": 5}])
@pytest.mark.parametrize("length", [1, 4, 40])
@pytest.mark.parametrize("biased", [False, True])
def test_a_sink_is_one_more_term_of_the_denominator(options, length, biased):
    """Beside the weights without it, each multiplied by its share: for every head its own."""
    layer, x = layer_of(sinks=True, **options), draw(3, length, 6)
    attn_bias = draw(1, 3, length, length, seed=7) if biased else None
    sinks = draw(3, seed=4).requires_grad_()
    layer.sinks = torch.nn.Parameter(sinks)
    q = split_heads(layer.q_proj(x), 3)
    k, v = (
        split_heads(p(x), layer.num_kv_heads).repeat_interleave(3 // layer.num_kv_heads, dim=1)
        for p in (layer.k_proj, layer.v_proj)
    )
    scores = q @ k.mT * layer.scale
    if layer.softcap is not None:
        scores = layer.softcap * (scores / layer.softcap).tanh()
    if biased:
        scores = scores + attn_bias
    mask = padding_mask(torch.tensor([length, length // 2, 1]), length)
    closed = ~(causal_mask(length) & mask)
    powers = scores.exp().masked_fill(closed, 0.0)
    weights = powers / (powers.sum(-1, keepdim=True) + layer.sinks.exp()[:, None, None])
    expected = layer.out_proj(merge_heads(weights @ v))
    out = layer(x, mask=mask, attn_bias=attn_bias, causal=True)
    torch.testing.assert_close(out, expected)
    weight = draw(3, length, 6, seed=6)
    got, wanted = (
        torch.autograd.grad((y * weight).sum(), list(layer.parameters()), retain_graph=True)
        for y in (out, expected)
    )
    torch.testing.assert_close(got, wanted)
    with record_attention(layer) as maps:
        layer(x, mask=mask, attn_bias=attn_bias, causal=True)
    torch.testing.assert_close(maps[""][..., 1:], weights.detach())
    torch.testing.assert_close(maps[""].sum(-1), torch.ones(3, 3, length).double())


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_sinks_under_autocast(softcap):
    layer = layer_of(sinks=True, dtype=torch.float32, softcap=softcap)
    x = draw(2, 4, 6, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x, causal=True)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), layer(x, causal=True), rtol=0.05, atol=0.02)


def test_sinks_start_at_zero_and_are_off_by_default():
    assert layer_of().sinks is None
    assert torch.equal(layer_of(sinks=True).sinks.detach(), torch.zeros(3).double())
    with pytest.raises(TypeError, match=r"^sinks must be True or False, got 1$"):
        layer_of(sinks=1)


# ---------------------------------------------------------------- norms of queries and keys


@pytest.mark.parametrize("together", [False, True])
def test_queries_and_keys_are_normalised_before_they_are_rotated(together):
    """Each head alone as in Qwen 3, or all of them together as in OLMo 2."""

    def qk_norm(heads, d_k):
        return nn.RMSNorm((heads, d_k) if together else d_k)

    layer = layer_of(num_heads=4, d_k=4, num_kv_heads=2, rotate=ROTATE, qk_norm=qk_norm)
    shaken(layer, 1)
    x = draw(2, 5, 6)

    def normed(rows, heads, weight):
        heads_apart = rows.unflatten(-1, (heads, 4))
        axes = (-2, -1) if together else (-1,)
        size = heads_apart.square().mean(axes, keepdim=True).add(torch.finfo(x.dtype).eps).sqrt()
        return (heads_apart / size * weight).transpose(1, 2)

    q = ROTATE(normed(layer.q_proj(x), 4, layer.q_norm.weight), torch.arange(5))
    k = ROTATE(normed(layer.k_proj(x), 2, layer.k_norm.weight), torch.arange(5))
    v = split_heads(layer.v_proj(x), 2)
    out, _ = functional.attention(q, *(t.repeat_interleave(2, dim=1) for t in (k, v)), causal=True)
    torch.testing.assert_close(layer(x, causal=True), layer.out_proj(merge_heads(out)))


def test_the_norms_are_told_how_many_heads_there_are():
    asked = []

    def qk_norm(heads, d_k):
        asked.append((heads, d_k))
        return nn.Identity()

    layer_of(num_heads=6, num_kv_heads=2, d_k=5, qk_norm=qk_norm)
    assert asked == [(6, 5), (2, 5)]
    assert layer_of().q_norm is layer_of().k_norm is None
    cross, x, context = (
        layer_of(d_context=4, qk_norm=lambda h, d: nn.RMSNorm(d)),
        draw(2, 3, 6),
        None,
    )
    context = draw(2, 5, 4)
    assert cross(x, context).shape == (2, 3, 6)
    torch.testing.assert_close(cross(x, context), cross(x, context, cache=Cache()))


def test_any_function_of_positions_may_rotate():
    """It is given the positions of the tokens; of a cached step, those of the new ones."""
    seen = []

    def rotate(x, positions):
        seen.append((tuple(x.shape), positions.tolist()))
        return x * (1 + positions[:, None])

    layer, cache = layer_of(num_kv_heads=1, rotate=rotate), Cache()
    layer(draw(2, 3, 6), causal=True, cache=cache)
    layer(draw(2, 1, 6), causal=True, cache=cache)
    assert seen == [((2, 4, 3, 2), [0, 1, 2]), ((2, 4, 1, 2), [3])]


# ---------------------------------------------------------------- feed-forward


BENDS = {
    "relu": lambda x: x.clamp(min=0.0),
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x / 2 * (1 + torch.tanh((x + 0.044715 * x**3) * math.sqrt(2 / math.pi))),
    "silu": lambda x: x / (1 + torch.exp(-x)),
}


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", BENDS)
def test_feed_forward_is_two_maps_with_a_bend_between(activation, gated):
    torch.manual_seed(0)
    layer, x = (
        FeedForward(d_model=4, d_ff=7, activation=activation, gated=gated).double(),
        draw(2, 3, 4),
    )
    inner = x @ layer.up.weight.T + layer.up.bias
    if gated:
        hidden = BENDS[activation](x @ layer.gate.weight.T + layer.gate.bias) * inner
    else:
        hidden = BENDS[activation](inner)
        assert layer.gate is None
    torch.testing.assert_close(layer(x), hidden @ layer.down.weight.T + layer.down.bias)
    torch.testing.assert_close(layer(x)[:, 1], layer(x[:, 1]))  # each position alone


def test_a_gate_has_a_bias_where_the_others_have_one():
    assert FeedForward(d_model=4, d_ff=7).gate is None
    names = {name for name, _ in FeedForward(d_model=4, d_ff=7, gated=True).named_parameters()}
    assert names == {f"{m}.{w}" for m in ("up", "gate", "down") for w in ("weight", "bias")}
    names = {
        name
        for name, _ in FeedForward(d_model=4, d_ff=7, gated=True, bias=False).named_parameters()
    }
    assert names == {"up.weight", "gate.weight", "down.weight"}
    with pytest.raises(TypeError, match=r"^gated must be True or False, got 1$"):
        FeedForward(d_model=4, d_ff=7, gated=1)


def test_feed_forward_drops_in_training_only():
    layer, x = FeedForward(d_model=4, d_ff=64, dropout=0.5), draw(2, 3, 4, dtype=torch.float32)
    assert not torch.equal(layer(x), layer(x))
    assert torch.equal(layer.eval()(x), layer(x))


@pytest.mark.parametrize(
    ("sizes", "options", "message"),
    [
        ((4, 0), {}, "d_ff must be at least 1"),
        ((4, 8), {"activation": "tanh"}, "gelu, gelu_tanh, relu, silu, got 'tanh'"),
        ((0, 8), {}, "d_model must be at least 1"),
        ((4, 8), {"dropout": -0.1}, "got -0.1"),
        ((4, 8), {"dropout": 1.5}, "dropout must be in .*got 1.5"),
    ],
)
def test_bad_feed_forward_is_named(sizes, options, message):
    with pytest.raises(ValueError, match=message):
        FeedForward(d_model=sizes[0], d_ff=sizes[1], **options)


# ---------------------------------------------------------------- bugs of other projects


both_paths = pytest.mark.parametrize("softcap", [None, 2.0], ids=["fast", "softcap"])


def random_mask(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.6


@both_paths
@pytest.mark.parametrize("how", ["mask", "attn_bias"])
def test_pytorch_41508_a_fully_masked_row_harms_nobody(how, softcap):
    """Rows 2.1, 2.39, D11, X03: the gradients are those of a loss that leaves this query out."""
    layer, x, context = layer_of(softcap=softcap), draw(2, 5, 6), draw(2, 7, 6, seed=1)
    shared = [linear.weight for linear in (layer.q_proj, layer.k_proj, layer.v_proj)]
    inputs = [x.requires_grad_(), context.requires_grad_(), *shared]
    mask, grads = random_mask(2, 1, 5, 7), []
    mask[..., 0] = True
    for row, counted in ((True, 0.0), (False, 1.0)):
        mask[1, 0, 2], share = row, torch.ones(2, 5, 1, dtype=torch.float64)
        share[1, 2] = counted
        options = {"mask": mask} if how == "mask" else {"attn_bias": to_additive(mask).double()}
        with torch.autograd.set_detect_anomaly(True):  # no NaN on the way, even a covered one
            out = layer(x, context, **options)
            grads.append(torch.autograd.grad((out * share).square().sum(), inputs))
    torch.testing.assert_close(out[1, 2], layer.out_proj.bias)
    torch.testing.assert_close(grads[1], grads[0])
    assert all(bool((grad != 0).any()) for grad in grads[0])
    published = (layer.q_proj(x) @ context.mT + to_additive(mask[:, 0])).softmax(-1)
    poisoned = torch.autograd.grad(published[0].square().sum(), shared[0])[0]
    assert bool(poisoned.isnan().all())  # by the other example, through the shared weight


@both_paths
def test_d2l_2423_an_empty_example_sends_nothing_into_its_padding(softcap):
    """Rows 2.24, A09, B07, C10, E10: zero weights and zero gradient, not a uniform row."""
    layer, x = layer_of(softcap=softcap), draw(2, 5, 6).requires_grad_()
    mask = padding_mask(torch.tensor([3, 0]), 5)
    with record_attention(layer) as maps:
        layer(x, mask=mask).sum().backward()
    assert not maps[""][1].any()
    assert not x.grad[1].any()
    assert bool((x.grad[0, :3] != 0).all())
    published = draw(2, 1, 5, 5).masked_fill(~mask, -1e6).softmax(-1)
    assert bool((published[1] == 1 / 5).all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_pytorch_110213_a_finite_bias_closes_nothing(dtype):
    """Rows 2.3: the lowest number everywhere leaves the mean of V; only -inf is closed."""
    layer, x, v = layer_of(dtype=dtype), draw(2, 5, 6, dtype=dtype), draw(2, 3, 5, 2, dtype=dtype)
    q, lowest = v[..., 1:, :], torch.full((4, 5), torch.finfo(dtype).min, dtype=dtype)
    mean = v.mean(-2, keepdim=True).expand(2, 3, 4, 2)
    torch.testing.assert_close(attention(q, v, v, attn_bias=lowest)[0], mean)
    values = layer.v_proj(x).mean(-2, keepdim=True).expand(2, 4, 6)
    torch.testing.assert_close(layer(x[:, 1:], x, attn_bias=lowest), layer.out_proj(values))
    assert not attention(q, v, v, attn_bias=lowest * math.inf)[0].any()


MASKED = {
    "nothing": {},
    "causal": {"causal": True},
    "padding": {"mask": padding_mask(torch.tensor([5, 3, 0]), 5).expand(3, 3, 5, 5)},
    "a whole head": {"mask": (torch.arange(3) != 1)[:, None, None].expand(3, 3, 5, 5)},
    "attn_bias": {"attn_bias": draw(3, 3, 5, 5, seed=2)},
    "all": {"mask": random_mask(3, 3, 5, 5), "attn_bias": draw(3, 3, 5, 5, seed=3), "causal": True},
}


@both_paths
@pytest.mark.parametrize("masked", MASKED)
def test_pytorch_163997_every_mode_gives_the_numbers_of_the_loops(masked, softcap):
    """Rows 2.4, 2.5, 2.8, 2.11, 2.14, 2.38, 2.40: train or eval, with or without weights."""
    layer, x, options = layer_of(softcap=softcap), draw(3, 5, 6), MASKED[masked]
    expected = by_loops(layer, x, x, *(options.get(n) for n in ("mask", "attn_bias", "causal")))
    modes = [nullcontext, torch.no_grad, torch.inference_mode]
    for training, mode in itertools.product([True, False], modes):
        layer.train(training)
        with mode():
            alone = layer(x, **options)
            with record_attention(layer):
                assert torch.equal(layer(x, **options), alone)
        torch.testing.assert_close(alone, expected, rtol=1e-10, atol=1e-12)


@both_paths
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_keras_23038_no_mode_lets_the_future_in(dropout, softcap):
    """Rows 2.12, 2.13: gradients of an early output, under every other option and none."""
    for mask, biased, rotary, shared, train, record in itertools.product([False, True], repeat=6):
        heads = {"num_heads": 6, "d_k": 4, "num_kv_heads": 2 if shared else None}
        rotate = ROTATE if rotary else None
        layer = layer_of(**heads, rotate=rotate, softcap=softcap, dropout=dropout).train(train)
        options = {"mask": padding_mask(torch.tensor([5, 4]), 5)} if mask else {}
        options |= {"attn_bias": draw(1, 6, 5, 5, seed=1)} if biased else {}
        x = draw(2, 5, 6).requires_grad_()
        with record_attention(layer) if record else nullcontext():
            layer(x, causal=True, **options)[:, 2].sum().backward()
        assert not x.grad[:, 3:].any()
        assert bool((x.grad[:, :3] != 0).any(dim=(-1, -2)).all())


@both_paths
@pytest.mark.parametrize("training", [True, False])
def test_pytorch_97409_the_rank_alone_says_what_a_mask_means(training, softcap):
    """Rows 2.15, A03, A04, A05, B05, C01, C02, C04, C07, C16, E04, E05: sizes that collide."""
    layer, x = layer_of(softcap=softcap).train(training), draw(3, 3, 6)  # B = H = T = S = 3
    for shape in [(3, 3), (1, 3), (3, 1, 1, 3), (3, 1, 3, 3), (1, 3, 1, 3), (3, 3, 3, 3)]:
        mask = random_mask(*shape, seed=1)
        expected = by_loops(layer, x, x, mask.expand(3, 3, 3, 3), None, False)
        torch.testing.assert_close(layer(x, mask=mask), expected)
    for shape in [(3,), (3, 3, 3), (3, 1, 3), (1, 3, 1, 1, 3)]:
        mask = random_mask(*shape, seed=1)
        for call in (layer, lambda x, mask: attention(*[x.view(3, 3, 3, 2)] * 3, mask=mask)):
            with pytest.raises(ValueError, match="mask must have 2 axes"):
                call(x, mask=mask)
    square = random_mask(3, 3, seed=1)
    published = layer(x, mask=square[None, :, None])  # unsqueeze(1): head h gets row h
    assert not torch.allclose(layer(x, mask=square), published, atol=1e-3)


@both_paths
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_automodel_2658_masks_of_half_precision_may_be_combined(dtype, softcap):
    """Rows 2.23: mask, causal, and two additive masks at once; empty rows stay finite."""
    layer, x = layer_of(softcap=softcap, dtype=dtype), draw(2, 5, 6, dtype=dtype).requires_grad_()
    mask = padding_mask(torch.tensor([5, 2]), 5) & window_mask(5, window=2, right=1)
    additive = to_additive(mask, dtype=dtype)
    out = layer(x, mask=mask, attn_bias=additive + additive, causal=True)
    wide, same = copy.deepcopy(layer).double(), x.detach().double()
    expected = by_loops(wide, same, same, mask & causal_mask(5), None, False)
    torch.testing.assert_close(out.double(), expected, rtol=0.0, atol=2e-2)
    torch.testing.assert_close(out[1, 3:], layer.out_proj.bias.expand(2, 6))
    out.sum().backward()
    assert bool(x.grad.isfinite().all())
    lowest = torch.full((1,), torch.finfo(dtype).min, dtype=dtype)
    assert bool((lowest + lowest).isinf())  # published


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("scale", [-0.7, 0.0])  # `scale or ...` would lose the 0
def test_pytorch_105190_negative_scale_and_long_stretches_of_nothing(scale, causal):
    """Rows 2.41, D09: a fused kernel takes keys in blocks; some blocks are closed entirely."""
    layer, x, context = layer_of(scale=scale), draw(2, 3, 6), draw(2, 1031, 6, seed=1)
    assert layer.scale == scale
    mask = torch.zeros(2, 1, 3, 1031, dtype=torch.bool)
    mask[0, 0, 0, -7:] = mask[0, 0, 1, :5] = mask[1, 0, 0, 500:506] = mask[1, 0, 2, ::100] = True
    for options in ({}, {"mask": mask}, {"attn_bias": to_additive(mask).double()}):
        got = layer(x, context, causal=causal, **options)
        expected = by_loops(layer, x, context, mask if options else None, None, causal)
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-10)


@both_paths
@pytest.mark.parametrize(("dtype", "size"), [("float16", 200.0), ("bfloat16", 133120.0)])
def test_large_halves_do_not_overflow_in_the_layer(dtype, size, softcap):
    """Rows B09, float16 200, bfloat16 133120: a product that does not fit, an answer that does."""
    layer = MultiHeadAttention(64, 1, softcap=softcap, bias=False).to(getattr(torch, dtype))
    for linear in (layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj):
        nn.init.eye_(linear.weight)
    x = torch.full((2, 3, 64), size, dtype=getattr(torch, dtype))
    assert torch.equal(layer(x), x)
    assert torch.equal(attention(x, x, x, softcap=softcap)[0], x)
    assert bool((x.half() @ x.half().mT / 8).softmax(-1).isnan().all())  # published


@both_paths
def test_pytorch_112577_strides_change_nothing_not_even_in_the_gradient(softcap):
    """Rows 2.29: transposed, sliced and expanded inputs, and such a gradient coming in."""
    layer, mask = layer_of(softcap=softcap), random_mask(10, 5, seed=2)[::2].T
    inputs = draw(5, 2, 6).transpose(0, 1), draw(2, 10, 12)[:, ::2, ::2], draw(1, 1, 6)
    incoming = draw(6, 5, 2, seed=1).permute(2, 1, 0), draw(2, 1, 1, seed=1)
    for x, back in itertools.product(inputs, incoming):
        x, back, answers = x.expand(2, 5, 6), back.expand(2, 5, 6), []
        assert not x.is_contiguous()
        for change in (lambda t: t, torch.Tensor.contiguous):
            wanted = [change(x).requires_grad_(), *layer.parameters()][:-2]
            out = layer(wanted[0], mask=change(mask), causal=True)
            answers.append([out, *torch.autograd.grad(out, wanted, change(back))])
        torch.testing.assert_close(*answers)


@both_paths
def test_A10_nothing_is_changed_in_place(softcap):
    """Rows A10, A11: neither an argument nor what a hook has seen; a residual stays float32."""
    layer, seen = layer_of(softcap=softcap, d_k=4), []
    for module in layer.modules():
        module.register_forward_hook(lambda m, args, out: seen.append((out, out.clone())))
    given = [draw(2, 5, 6), draw(2, 7, 6, seed=1), random_mask(2, 1, 5, 7), draw(1, 3, 5, 7)]
    before = [tensor.clone() for tensor in given]
    x, context, mask, attn_bias = given
    layer(x, context, mask=mask, attn_bias=attn_bias, causal=True)
    assert all(torch.equal(now, then) for now, then in zip(given, before, strict=True))
    assert len(seen) == 5
    assert all(torch.equal(out, then) for out, then in seen)
    out, then = seen[-1]
    out += x  # published
    assert not torch.equal(out, then)
    with torch.autocast("cpu", torch.bfloat16):
        stream = x.float() + layer.float()(x.float(), mask=random_mask(5, 5), causal=True)
    assert stream.dtype == torch.float32


@both_paths
def test_E08_a_layer_keeps_no_tensor_of_a_call(softcap):
    """Rows E08: it can be copied after a training step, and its input is set free."""
    layer, x = (
        layer_of(softcap=softcap, rotate=ROTATE, d_k=4),
        draw(2, 5, 6).requires_grad_(),
    )
    names = set(vars(layer)) | set(layer.state_dict())
    with record_attention(layer):
        layer(x, causal=True).sum().backward()
    assert set(vars(layer)) | set(layer.state_dict()) == names
    torch.testing.assert_close(copy.deepcopy(layer)(x), layer(x))
    alive = weakref.ref(x)
    del x
    gc.collect()
    assert alive() is None
    layer.kept = layer(draw(2, 5, 6))  # published
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.deepcopy(layer)


@pytest.mark.parametrize("causal", [True, False])
def test_transformers_33095_padding_on_the_left_is_padding_on_the_right(causal):
    """Rows 2.36: real tokens give the same numbers, by rotation, by slope, or by counting."""
    right, padding, table = padding_mask(torch.tensor([3, 5]), 7), draw(1, 7, 6), sinusoidal(7, 6)
    x, real, out = {}, {"right": right[:, 0, 0], "left": right[:, 0, 0].flip(-1)}, {}
    for side, places in real.items():
        x[side] = padding.repeat(2, 1, 1)
        x[side][places] = draw(8, 6, seed=1)
    for way in ("rotary", "alibi", "counted", "published"):
        layer = layer_of(d_k=4, rotate=ROTATE if way == "rotary" else None)
        attn_bias = alibi_bias(3, 7).double()[None] if way == "alibi" else None
        for side, places in real.items():
            where = {"counted": places.cumsum(-1) - 1, "published": torch.arange(7)}.get(way)
            inside = x[side] if where is None else x[side] + table[where.clamp(min=0)]
            mask = places[:, None, None]
            out[side] = layer(inside, mask=mask, causal=causal, attn_bias=attn_bias)[places]
        assert torch.allclose(out["left"], out["right"], atol=1e-10) == (way != "published"), way


@both_paths
def test_one_head_is_the_formula_between_projections(softcap):
    """Rows one head, C21: no second path for a single head."""
    layer, x, context = layer_of(num_heads=1, softcap=softcap), draw(2, 4, 6), draw(2, 5, 6, seed=1)
    projected = layer.q_proj(x), layer.k_proj(context), layer.v_proj(context)
    out, _ = attention(*projected, causal=True, softcap=softcap)
    torch.testing.assert_close(layer(x, context, causal=True), layer.out_proj(out))


@both_paths
@pytest.mark.parametrize("causal", [True, False])
def test_no_keys_are_no_error(causal, softcap):
    """Rows empty keys: what the output projection makes of zeros."""
    layer = layer_of(softcap=softcap, d_k=4)
    for options in ({}, {"mask": torch.ones(3, 0).bool()}, {"mask": torch.ones(2, 1, 1, 0).bool()}):
        out = layer(draw(2, 3, 6), draw(2, 0, 6), causal=causal, **options)
        torch.testing.assert_close(out, layer.out_proj.bias.expand(2, 3, 6))


def test_a_mask_given_as_context_is_named():
    with pytest.raises(TypeError, match=r"^context must be floating point, got bool: pass a mask"):
        layer_of()(draw(2, 4, 6), torch.ones(4, 4, dtype=torch.bool))


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_causal_that_is_a_number_gets_our_own_message(softcap):
    with pytest.raises(TypeError, match=r"^causal must be True or False, got 1$"):
        layer_of(softcap=softcap)(draw(2, 4, 6), causal=1)


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
