import copy
import itertools
import math
import pickle
import weakref
from contextlib import nullcontext
from functools import partial
from unittest import mock

import pytest
import torch
from cases import ROTATE, by_loops, draw, layer_of, masks_for_both, random_mask
from hypothesis import example, given
from hypothesis import strategies as st
from tables import for_each, raises_for_each
from torch import nn

from attn_lib import Cache, attention, functional, fused, interop, layers
from attn_lib.cache import one_pass
from attn_lib.layers import FeedForward, MultiHeadAttention, merge_heads, split_heads
from attn_lib.masks import causal_mask, padding_mask, to_additive, window_mask
from attn_lib.positions import alibi_bias
from attn_lib.recording import record_attention

ROTATES = {"d_k": 4, "rotate": ROTATE}
both_paths = pytest.mark.parametrize("softcap", [None, 2.0], ids=["fast", "softcap"])

# ---------------------------------------------------------------- heads


def test_split_puts_each_number_where_it_belongs():
    B, H, T, d = 2, 3, 5, 7
    x = torch.arange(B * T * H * d).view(B, T, H * d)
    heads = split_heads(x, H)
    for b, h, t, i in itertools.product(*map(range, (B, H, T, d))):
        assert heads[b, h, t, i] == x[b, t, h * d + i]
    further = torch.stack([x, x + 1])  # more axes may come first
    assert torch.equal(split_heads(further, H), torch.stack([heads, heads + 1]))
    assert torch.equal(merge_heads(heads), x)
    assert torch.equal(merge_heads(split_heads(further, H)), further)
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
    each = (x.repeat_interleave(2, dim=1) for x in (k, v))
    wanted, _ = functional.attention(q, *each, **options)
    torch.testing.assert_close(out, wanted)
    layer = MultiHeadAttention(6, 4, num_kv_heads=2, d_k=6).double().eval()
    with record_attention(layer) as maps:
        layer(q[:, 0], k[:, 0], **options)
    (weights,) = maps.values()
    assert weights.shape == (2, 4, 1, 7)


@for_each(
    (6, 5, 5, (6, 5), True, False),  # the kernel knows this mask without its cells
    (6, 1, 7, (6, 1), False, False),  # one query, the last, attends to every key
    (2, 5, 5, (6, 5), True, True),
    (2, 1, 7, (2, 3), False, False),  # the heads of a group as queries of one head,
)
def test_the_kernel_is_called_as_it_is_fastest(H_kv, T, S, queries, causal, gqa):
    q, k, v = draw(2, 6, T, 4), draw(2, H_kv, S, 4), draw(2, H_kv, S, 7)
    name = "scaled_dot_product_attention"
    with mock.patch.object(fused.F, name, wraps=fused.F.scaled_dot_product_attention) as kernel:
        fused.fused_attention(q, k, v, scale=0.5, causal=True)
    tensors, options = kernel.call_args
    assert tensors[0].shape[1:3] == queries
    assert {x.shape[-1] for x in tensors} == {7}  # PyTorch's slow kernel takes unequal widths
    assert (options["attn_mask"], options["scale"]) == (None, 0.5)
    assert (options["is_causal"], options["enable_gqa"]) == (causal, gqa)


@pytest.mark.parametrize("shape", [(5, 7), (2, 1, 5, 7), (2, 1, 1, 7), (2, 3, 5, 7)])
@pytest.mark.parametrize("kind", ["mask", "attn_bias"])
def test_a_query_without_keys_gets_zeros_whatever_the_kernel_gives(shape, kind, monkeypatch):
    """With booleans in half precision on a GPU it sees every key, and has NaN as its gradient."""
    usual, seen = fused.F.scaled_dot_product_attention, []

    def kernel(q, k, v, attn_mask, **options):
        seen.append(attn_mask.dtype)
        opened = attn_mask if attn_mask.dtype == torch.bool else attn_mask > -math.inf
        empty = ~opened.any(dim=-1, keepdim=True)
        return usual(q, k, v, attn_mask.masked_fill(empty, 1), **options)

    mask = draw(*shape, seed=4) > -0.5
    mask[..., -1:, :] = False
    q, k, v = (draw(2, 3, n, 4, seed=n).requires_grad_() for n in (5, 7, 7))
    options = {kind: mask if kind == "mask" else to_additive(mask, dtype=q.dtype)}
    broken = torch.cat([q[..., :-1, :], q[..., -1:, :] * math.nan], dim=-2)
    for x in (q, broken):
        wanted, _ = functional.attention(x, k, v, **options)
        torch.testing.assert_close(fused.fused_attention(x, k, v, **options), wanted)
    wanted, _ = functional.attention(q, k, v, **options)
    opened = kernel(q, k, v, mask)
    monkeypatch.setattr(fused.F, "scaled_dot_product_attention", kernel)
    out = fused.fused_attention(q, k, v, **options)
    torch.testing.assert_close(out, wanted)
    assert not torch.allclose(out, opened)
    assert seen == [torch.bool, q.dtype]
    given, right = (torch.autograd.grad(x.square().sum(), (q, k, v)) for x in (out, wanted))
    torch.testing.assert_close(given, right)


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
    st.sampled_from([(1,), (3,), (3, 64, 32), (6, 2, 5, 1), (6, 3, 3, 2), (6, 4, 1, 3)]),
    st.sampled_from([None, 5]),
    st.sampled_from([None, "mask", "attn_bias", "both"]),
    st.booleans(),
    st.fixed_dictionaries(
        {"softcap": st.sampled_from([None, 2.0]), "window": st.sampled_from([None, 1, 3, 9])}
        | {"bias": st.booleans(), "sinks": st.booleans()}
    ),
    st.booleans(),
    st.sampled_from([nullcontext, torch.no_grad, torch.inference_mode]),
    st.integers(0, 1000),
)
def test_equals_plain_loops(widths, d_context, masked, causal, options, training, mode, seed):
    """Also where a head is without keys, in every mode; and nothing comes from the future."""
    if options["window"]:
        d_context, causal = None, True
    sizes = dict(zip(("num_heads", "d_k", "d_v", "num_kv_heads"), widths, strict=False))
    layer = layer_of(seed, **sizes, **options, d_context=d_context).train(training)
    if layer.sinks is not None:
        layer.sinks.data.copy_(draw(layer.num_heads, seed=seed + 3))
    x, context = draw(2, 4, 6, seed=seed), d_context and draw(2, 7, 5, seed=seed + 1)
    source = (x if context is None else context).requires_grad_()
    T, S, mask, attn_bias = 4, source.shape[1], None, None
    if masked in ("mask", "both"):
        mask = random_mask(2, [1, layer.num_heads][seed % 2], T, S, seed=seed)
        mask[0, ..., 1] = mask[1, 0] = False
    if masked in ("attn_bias", "both"):
        attn_bias = draw(2, layer.num_heads, T, S, seed=seed + 2)
    given = {"mask": mask, "attn_bias": attn_bias, "causal": causal}
    with mode():
        found = layer(x, context, **given)
        with record_attention(layer):
            assert torch.equal(layer(x, context, **given), found)
    with torch.no_grad():
        expected = by_loops(layer, x, source, **given)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
    if causal and mode is nullcontext:
        (grad,) = torch.autograd.grad(found[:, 1].sum(), source)
        assert not grad[:, S - T + 2 :].any()


@pytest.mark.parametrize("length", [1, 4, 40])
def test_a_recording_shows_a_sink_as_one_more_key(length):
    layer, x = layer_of(sinks=True), draw(2, length, 6)
    layer.sinks.data.copy_(draw(3, seed=4))
    with record_attention(layer) as maps:
        out = layer(x, causal=True)
    torch.testing.assert_close(out, by_loops(layer, x, x, None, None, True))
    torch.testing.assert_close(maps[""].sum(-1), torch.ones(2, 3, length).double())
    joined = merge_heads(maps[""][..., 1:] @ split_heads(layer.v_proj(x), 3))
    torch.testing.assert_close(layer.out_proj(joined), out)


# ---------------------------------------------------------------- against PyTorch's layer


@pytest.mark.parametrize("constants", [True, False])
@pytest.mark.parametrize("width", [6, 5])
@pytest.mark.parametrize("masked", ["nothing", "padding", "causal", "both"])
def test_equals_torch_with_the_same_weights(constants, width, masked):
    sizes = {"bias": constants, "kdim": width, "vdim": width}
    given = nn.MultiheadAttention(6, 3, **sizes, batch_first=True).double().train(constants)
    layer, x = interop.from_torch(given), draw(2, 5, 6).requires_grad_()
    context = x if width == 6 else draw(2, 5, 5, seed=1)
    options, given_options = masks_for_both(masked)
    with record_attention(layer) as maps:
        out = layer(x, None if context is x else context, **options)
    expected, weights = given(x, context, context, average_attn_weights=False, **given_options)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(maps[""], weights)
    grads = [torch.autograd.grad(y.square().sum(), x, retain_graph=True) for y in (out, expected)]
    torch.testing.assert_close(*grads)
    back = interop.to_torch(layer)
    assert back.training == layer.training == constants
    for name, value in given.state_dict().items():
        assert torch.equal(back.state_dict()[name], value), name


@raises_for_each(
    ({"kdim": 5, "vdim": 4}, ValueError, "^keys and values must .* width, got kdim=5 and vdim=4$"),
    ({"add_bias_kv": True}, ValueError, "^add_bias_kv and add_zero_attn have no counterpart here$"),
    ({"add_zero_attn": True}, ValueError, "add_zero_attn"),
)
def test_what_torch_has_and_we_have_not_is_refused(options):
    interop.from_torch(nn.MultiheadAttention(6, 3, **options))


BEYOND_TORCH = {
    **{"d_k": 4, "d_v": 1, "num_kv_heads": 1, "scale": 1.0, "softcap": 1.0, "rotate": ROTATE},
    **{"window": 2, "sinks": True, "qk_norm": lambda heads, d_k: nn.RMSNorm(d_k)},
}


@pytest.mark.parametrize("option", BEYOND_TORCH)
def test_what_we_have_and_torch_has_not_is_refused(option):
    message = (
        "^nn.MultiheadAttention needs d_k = d_v = d_model / num_heads, as many key heads, "
        "the default scale, and no softcap, window, sinks, rotary positions or norm of the queries$"
    )
    with pytest.raises(ValueError, match=message):
        interop.to_torch(layer_of(**{option: BEYOND_TORCH[option]}))


# ---------------------------------------------------------------- key-value cache


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.sampled_from([{}, ROTATES, {"num_kv_heads": 1}, {"softcap": 2.0}]),
    st.sampled_from([None, 1, 2, 3, 5]),
    st.sampled_from(["nothing", "padding", "window", "attn_bias", "cells"]),
    st.booleans(),
    st.booleans(),
)
@example([3, 0, 1], {}, 1, "padding", False, False)  # an empty piece once got the whole mask
def test_a_cache_in_any_split_equals_the_full_pass(pieces, options, window, masked, sinks, grad):
    """Outputs and gradients; the queries of a later piece attend to all that came before."""
    layer, T = layer_of(**options, window=window, sinks=sinks), sum(pieces)
    if sinks:
        layer.sinks.data.copy_(draw(3, seed=5))
    x = draw(2, T, 6).requires_grad_()
    given = {
        "nothing": {},
        # on the left, as in generation
        "padding": {"mask": padding_mask(torch.tensor([T, max(T - 2, 0)]), T).flip(-1)},
        "window": {"mask": window_mask(T, window=3), "attn_bias": draw(T, T, seed=6)},
        "attn_bias": {"attn_bias": draw(2, 1, T, T, seed=5)},
        "cells": {"mask": torch.tensor([[True]]), "attn_bias": torch.tensor([[0.5]]).double()},
    }[masked]
    full = layer(x, causal=True, **given)
    cache, outs, end = Cache(), [], 0
    for n in pieces:
        start, end = end, end + n
        rows = {name: o[..., start:end, :] for name, o in given.items() if o.shape[-2] > 1}
        columns = {name: o[..., :end] for name, o in {**given, **rows}.items()}
        with torch.set_grad_enabled(grad):
            outs.append(layer(x[:, start:end], causal=True, cache=cache, **columns))
        assert cache.length == end
    found = torch.cat(outs, dim=1)
    torch.testing.assert_close(found, full)
    if grad:
        weight = draw(2, T, 6, seed=8)
        sums = [(out * weight).sum() for out in (found, full)]
        grads = [torch.autograd.grad(one, x, retain_graph=True) for one in sums]
        torch.testing.assert_close(*grads)


def test_a_cache_keeps_what_a_context_has_shown():
    layer, context = layer_of(d_context=5), draw(2, 7, 5, seed=1)
    mask, x, cache = padding_mask(torch.tensor([7, 4]), 7), draw(2, 3, 6), Cache()
    full, computed = layer(x, context, mask=mask), []
    layer.k_proj.register_forward_hook(lambda *_: computed.append(1))
    for t in range(3):
        found = layer(x[:, t : t + 1], context, mask=mask, cache=cache)
        torch.testing.assert_close(found, full[:, t : t + 1])
    assert computed == [1]  # once
    # the same numbers in another tensor are the same context: a stored cache has such a one
    torch.testing.assert_close(layer(x, context.clone(), mask=mask, cache=cache), full)
    message = r"^the cache was filled with another context: start with an empty one$"
    with pytest.raises(ValueError, match=message):
        layer(x, context + 1e-9, cache=cache)
    # what is closed may hold anything, and what is changed in place is another context
    closed, cache = (
        context.clone().mul_(1.0).masked_fill_(~mask[:, 0, 0, :, None], math.nan),
        Cache(),
    )
    with torch.no_grad():
        layer(x, closed, mask=mask, cache=cache)
        stored = pickle.loads(pickle.dumps(cache))  # noqa: S301 - our own, made here
        for one, again in ((cache, closed), (cache, closed.clone()), (stored, closed)):
            torch.testing.assert_close(layer(x, again, mask=mask, cache=one), full)
        with pytest.MonkeyPatch.context() as patch:  # a graph that is traced counts no changes
            patch.setattr(torch.compiler, "is_compiling", lambda: True)
            torch.testing.assert_close(layer(x, closed, mask=mask, cache=cache), full)
        closed.mul_(2.0)
        for one in (cache, copy.deepcopy(cache), stored):
            with pytest.raises(ValueError, match=message):
                layer(x, closed, mask=mask, cache=one)
    with torch.inference_mode():  # whose tensors do not count their changes
        shown, cache = context.clone(), Cache()
        for _ in range(2):
            torch.testing.assert_close(layer(x, shown, mask=mask, cache=cache), full)
    plain = layer_of()
    for first, then in (((x, x), (x,)), ((x,), (x, x))):  # a context, or none: not both
        cache = Cache()
        plain(*first, cache=cache)
        with pytest.raises(ValueError, match=message):
            plain(*then, cache=cache)


@pytest.mark.parametrize("garbage", [math.nan, math.inf])
@pytest.mark.parametrize("mode", ["grad", "no grad", "traced"])
@for_each({}, {"window": 3}, ROTATES)
def test_padding_may_hold_anything_with_a_cache_too(options, mode, garbage, monkeypatch):
    """Without a cache it is cleared before the keys; with one, of the keys that are left."""
    layer, x, real = layer_of(**options), draw(2, 9, 6), [*range(4), *range(5, 9)]
    mask = torch.ones(2, 1, 1, 9, dtype=torch.bool)
    mask[0, ..., 4] = False
    full = layer(x, mask=mask, causal=True)[:, real]
    x[0, 4] = garbage
    torch.testing.assert_close(layer(x, mask=mask, causal=True)[:, real], full)
    if mode == "traced":  # a graph cannot read numbers
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    cache, outs = Cache(), []
    for start, end in itertools.pairwise([0, 3, 5, 6, 7, 9]):
        with torch.set_grad_enabled(mode == "grad"):
            outs.append(layer(x[:, start:end], mask=mask[..., :end], causal=True, cache=cache))
    torch.testing.assert_close(torch.cat(outs, dim=1)[:, real], full)


@for_each((2.0**49, 2.0**48, True), (2.0**50, 0.0, False), (1.0, math.inf, False))
def test_only_moderate_padding_is_left_to_a_weight_of_zero(k, v, harmless):
    k, v = (torch.full((1, 1, 1, 1), number).double() for number in (k, v))
    assert layers._harmless(k, v) is harmless


def test_what_is_closed_now_may_be_attended_to_later():
    layer, x = layer_of(), draw(1, 3, 6)
    mask = torch.tensor([[True, False], [True, False]])
    cache = Cache()
    layer(x[:, :2], mask=mask, cache=cache)
    later = torch.ones(1, 3, dtype=torch.bool)
    torch.testing.assert_close(layer(x[:, 2:], mask=later, cache=cache), layer(x[:, 2:], x))


@for_each(
    ({}, {"attn_bias": draw(4, 4, seed=1, dtype=torch.float32)}),  # a bias of any dtype
    ({"sinks": True}, {"causal": True}),
    ({"sinks": True, "softcap": 2.0}, {"causal": True}),
)
def test_under_autocast_every_option_counts(options, given):
    layer, x = layer_of(dtype=torch.float32, **options), draw(2, 4, 6, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x, **given)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), layer(x, **given), rtol=0.05, atol=0.02)
    assert not torch.allclose(out.float(), layer(x), atol=0.05)


# ---------------------------------------------------------------- conventions


@pytest.mark.parametrize("garbage", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize("closed", [(1, slice(3, None)), (slice(None), 2)], ids=["end", "column"])
def test_padding_of_a_context_may_hold_anything(closed, garbage):
    layer, x, context = layer_of(), draw(2, 4, 6), draw(2, 5, 6, seed=1)
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[closed] = False
    expected = layer(x, context, mask=mask[:, None, None])
    context[closed] = garbage
    assert torch.equal(layer(x, context, mask=mask[:, None, None]), expected)
    cached = layer(x, context, mask=mask[:, None, None], cache=Cache())
    torch.testing.assert_close(cached, expected)
    if not mask[0].all():  # the same of every example, with two axes
        assert torch.equal(layer(x, context, mask=mask[:1].expand(4, 5)), expected)


@for_each({}, ROTATES, {"d_k": 4, "d_v": 7}, {"window": 2})
@pytest.mark.parametrize("cached", [False, True])
def test_runs_on_meta_tensors(options, cached):
    layer, cache = layer_of(**options).to("meta"), Cache() if cached else None
    x = torch.empty(2, 4, 6, device="meta", dtype=torch.float64)
    mask = torch.empty(2, 1, 1, 4, device="meta", dtype=torch.bool)
    out = layer(x, mask=mask, causal=True, cache=cache)
    assert (out.shape, out.device.type) == ((2, 4, 6), "meta")


@pytest.mark.parametrize("softcap", [None, 1.0])
def test_dropout_is_for_training_only(softcap):
    layer, x = layer_of(softcap=softcap, dropout=0.5), draw(2, 4, 6)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))
    torch.testing.assert_close(layer(x), layer_of(softcap=softcap)(x))
    everything = layer_of(softcap=softcap, dropout=1.0)
    torch.testing.assert_close(everything(x), layer.out_proj.bias.expand(2, 4, 6))


def test_feed_forward_drops_in_training_only():
    layer, x = FeedForward(d_model=4, d_ff=64, dropout=0.5), draw(2, 3, 4, dtype=torch.float32)
    assert not torch.equal(layer(x), layer(x))
    assert torch.equal(layer.eval()(x), layer(x))
    layer = FeedForward(d_model=4, d_ff=3, dropout=1.0)
    assert torch.equal(layer(x), layer.down.bias.expand(2, 3, 4))


def test_feed_forward_has_no_gate_unless_asked():
    layer, x = FeedForward(d_model=4, d_ff=8), draw(2, 3, 4, dtype=torch.float32)
    torch.testing.assert_close(layer(x), layer.down(torch.nn.functional.gelu(layer.up(x))))


def test_initial_projections_differ():
    layer = layer_of(d_k=2)
    weights = [linear.weight for linear in (layer.q_proj, layer.k_proj, layer.v_proj)]
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(weights, 2))


@both_paths
@pytest.mark.parametrize("causal", [True, False])
@for_each((0, 3, 3), (2, 0, 3), (2, 1, 1), (2, 0, 0), (2, 3, 0))
def test_empty_and_single(B, T, S, causal, softcap):
    """Without keys the output is what the output projection makes of zeros."""
    layer = layer_of(softcap=softcap, d_k=4)
    for options in ({}, {"mask": torch.ones(T, S).bool()}, {"mask": torch.ones(B, 1, 1, S).bool()}):
        out = layer(draw(B, T, 6), draw(B, S, 6), causal=causal, **options)
        assert out.shape == (B, T, 6)
        if S == 0:
            torch.testing.assert_close(out, layer.out_proj.bias.expand(B, T, 6))
    layer.rotate = ROTATE
    assert layer(draw(B, T, 6), causal=causal).shape == (B, T, 6)


@raises_for_each(
    ({"d_model": 0, "d_k": 2}, ValueError, "d_model must be at least 1, got 0"),
    ({"num_heads": 4}, ValueError, "d_model=6 must be divisible by num_heads=4 unless d_k"),
    ({"num_heads": 2.0}, TypeError, "num_heads must be an integer, got 2.0"),
    ({"num_kv_heads": 2}, ValueError, "num_kv_heads=2 must divide num_heads=3"),
    ({"d_k": 0}, ValueError, "d_k must be at least 1"),
    ({"d_v": 0}, ValueError, "d_v must be at least 1"),
    ({"d_context": 0}, ValueError, "d_context must be at least 1"),
    ({"num_kv_heads": 0}, ValueError, "num_kv_heads must be at least 1"),
    ({"dropout": 1.5}, ValueError, "dropout must be in .0, 1., got 1.5"),
    ({"window": 0}, ValueError, "window must be at least 1, got 0"),
    ({"scale": math.nan}, ValueError, "^scale must be finite, got nan$"),
    ({"scale": "1"}, TypeError, "^scale must be a number, got '1'$"),
    ({"sinks": 1}, TypeError, "^sinks must be True or False, got 1$"),
    ({"softcap": 0.0}, ValueError, "^softcap must be positive, got 0.0$"),
    ({"softcap": "x"}, TypeError, "^softcap must be a number, got 'x'$"),
    ({"scale": 10**400}, ValueError, "^scale must be finite, got 1000"),
    ({"qk_norm": partial(nn.RMSNorm, 3)}, TypeError, "^qk_norm must be a factory of "),
    ({"rotate": True}, TypeError, r"^rotate must be a function \(x, positions\) -> x, got True"),
)
def test_bad_layers_are_named(options):
    layer_of(**options)


@raises_for_each(
    ({"d_model": 0}, ValueError, "^d_model must be at least 1, got 0"),
    ({"d_ff": 0}, ValueError, "^d_ff must be at least 1, got 0"),
    ({"activation": "tanh"}, ValueError, "gelu, gelu_tanh, relu, silu, got 'tanh'"),
    ({"dropout": 1.5}, ValueError, "dropout must be in .*got 1.5"),
    ({"gated": 1}, TypeError, "^gated must be True or False, got 1$"),
)
def test_bad_feed_forward_is_named(options):
    FeedForward(**{"d_model": 4, "d_ff": 8, **options})


NO_MASK = "^context must be floating point, got bool: pass a mask"
ONE_SEQUENCE = "^rotary positions and a window .* no context$"


@raises_for_each(
    ({}, {"x": draw(4, 6)}, ValueError, r"x must be \(batch, length, 6\), got \(4, 6\)"),
    ({}, {"x": draw(2, 4, 5)}, ValueError, r"x must be .*got \(2, 4, 5\)"),
    ({}, {"context": draw(2, 4, 7)}, ValueError, "context must be"),
    ({}, {"context": draw(3, 4, 6)}, ValueError, "same batch size, got 2 and 3"),
    ({}, {"context": torch.ones(4, 4).bool()}, TypeError, NO_MASK),
    ({"d_context": 5}, {}, ValueError, r"^context must be \(batch, length, 5\), got None$"),
    ({}, {"mask": torch.ones(4, 4)}, TypeError, "mask must be a bool tensor"),
    ({}, {"mask": torch.ones(3, 1, 4, 4).bool()}, ValueError, r"\(2, 3, 4, 4\) of the scores"),
    ({}, {"attn_bias": torch.zeros(4, 4)}, TypeError, "attn_bias must have the dtype of q"),
    ({}, {"causal": 1}, TypeError, "^causal must be True or False, got 1$"),
    ({"window": 3}, {}, ValueError, "^a window ends with the token itself: .* causal=True$"),
    ({"window": 3}, {"context": draw(2, 4, 6), "causal": True}, ValueError, ONE_SEQUENCE),
    # of one length, nothing else would fail; they were once applied to a context as well
    (ROTATES, {"context": draw(2, 4, 6)}, ValueError, ONE_SEQUENCE),
)
def test_bad_calls_are_named(options, changes):
    call = {"x": draw(2, 4, 6), **changes}
    layer_of(**options)(call.pop("x"), call.pop("context", None), **call)


# ---------------------------------------------------------------- windows


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_a_cache_hands_out_what_a_window_reaches_and_keeps_little_more(mode):
    handed_out = []

    class Keeping(Cache):
        def append(self, *args, **options):
            handed_out[:] = super().append(*args, **options)
            return handed_out

    layer, cache = layer_of(window=3, bias=False), Keeping()
    layer.k_proj.weight.data = layer.v_proj.weight.data = torch.eye(6).double()
    for step in range(20):
        with mode():
            layer(torch.full((1, 1, 6), step).double(), causal=True, cache=cache)
        for handed in handed_out:
            assert handed[0, 0, :, 0].tolist() == list(range(max(step - 2, 0), step + 1))
        (entry,) = cache._entries.values()
        assert entry.k.shape[2] <= 6
    assert cache.length == copy.deepcopy(cache).length == 20


def test_layers_of_one_pass_may_be_given_unequal_lengths():
    """Angles are shared by those alone that have the same positions."""

    class Shortening(nn.Module):
        @one_pass
        def forward(self, x, *, cache=None):
            for i, (layer, T) in enumerate(lengths.items()):
                outs.append(layer(x[:, :T], causal=True, cache=cache, layer=i))

    lengths = {layer_of(seed, d_k=4, rotate=ROTATE): T for seed, T in [(1, 5), (2, 3)]}
    x, outs = draw(2, 5, 6), []
    Shortening()(x, cache=Cache())
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


# ---------------------------------------------------------------- rotations


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


# ---------------------------------------------------------------- bugs of other projects


@both_paths
@pytest.mark.parametrize("how", ["mask", "attn_bias"])
def test_pytorch_41508_a_fully_masked_row_harms_nobody(how, softcap):
    """The gradients are those of a loss that leaves this query out.

    Rows 2.1, 2.24, 2.39, A09, B07, C10, D11, E10, X03.
    """
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


@for_each((-0.7, True), (0.0, False))  # `scale or ...` would lose the 0
def test_pytorch_105190_negative_scale_and_long_stretches_of_nothing(scale, causal):
    """Rows 2.41, D09: a fused kernel takes keys in blocks; some blocks are closed entirely.

    PyTorch's multiplies its -inf by the scale: NaN in all rows but the last, or an open future.
    """
    layer, x, context = layer_of(scale=scale), draw(2, 3, 6), draw(2, 1031, 6, seed=1)
    assert layer.scale == scale
    mask = torch.zeros(2, 1, 3, 1031, dtype=torch.bool)
    mask[0, 0, 0, -7:] = mask[0, 0, 1, :5] = mask[1, 0, 0, 500:506] = mask[1, 0, 2, ::100] = True
    masked = by_loops(layer, x, context, mask, None, causal)
    past = by_loops(layer, x, x, None, None, causal=True)
    for source, options, expected in (
        (context, {"causal": causal}, by_loops(layer, x, context, None, None, causal)),
        (context, {"causal": causal, "mask": mask}, masked),
        (context, {"causal": causal, "attn_bias": to_additive(mask).double()}, masked),
        (x, {"causal": True}, past),
        (x, {"mask": causal_mask(3)}, past),
    ):
        found = layer(x, source, **options)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


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
    with torch.autocast("cpu", torch.bfloat16):
        stream = x.float() + layer.float()(x.float(), mask=random_mask(5, 5), causal=True)
    assert stream.dtype == torch.float32


@both_paths
def test_E08_a_layer_keeps_no_tensor_of_a_call(softcap):
    """Rows E08: it can be copied after a training step, and its input is set free."""
    layer, x = (layer_of(softcap=softcap, rotate=ROTATE, d_k=4), draw(2, 5, 6).requires_grad_())
    names = set(vars(layer)) | set(layer.state_dict())
    with record_attention(layer):
        layer(x, causal=True).sum().backward()
    assert set(vars(layer)) | set(layer.state_dict()) == names
    torch.testing.assert_close(copy.deepcopy(layer)(x), layer(x))
    alive = weakref.ref(x)
    del x
    assert alive() is None


@pytest.mark.parametrize("causal", [True, False])
def test_transformers_33095_padding_on_the_left_is_padding_on_the_right(causal):
    """Rows 2.36: real tokens give the same numbers, by rotation or by slope."""
    right, padding, out = padding_mask(torch.tensor([3, 5]), 7)[:, 0, 0], draw(1, 7, 6), []
    for rotate, attn_bias in ((ROTATE, None), (None, alibi_bias(3, 7).double()[None])):
        layer = layer_of(d_k=4, rotate=rotate)
        for places in (right, right.flip(-1)):
            x = padding.repeat(2, 1, 1)
            x[places] = draw(8, 6, seed=1)
            mask = places[:, None, None]
            out.append(layer(x, mask=mask, causal=causal, attn_bias=attn_bias)[places])
    torch.testing.assert_close(out[0], out[1], atol=1e-10, rtol=0)
    torch.testing.assert_close(out[2], out[3], atol=1e-10, rtol=0)


@pytest.mark.parametrize("part", ["q_proj", "k_proj", "v_proj", "out_proj"])
@pytest.mark.parametrize("T", [1, 2, 7, 8, 15, 16, 17, 31, 32, 40])
def test_a_parameter_that_is_nan_does_not_vanish(part, T):
    """PyTorch's kernel took a row of NaN scores, among fewer than 16 keys, for an empty row."""
    layer = layer_of(dtype=torch.float32)
    with torch.no_grad():
        getattr(layer, part).weight[0, 0] = torch.nan
    for causal in (False, True):
        assert layer(draw(2, T, 6).float(), causal=causal).isnan().any()


# ---------------------------------------------------------------- what an attack found


@pytest.mark.parametrize("heads", [4, 3])  # 4 heads of width 4: heads and width may be confused
@pytest.mark.parametrize("norm", [nn.RMSNorm, nn.LayerNorm, partial(nn.RMSNorm, eps=1e-3)])
def test_a_norm_that_needs_one_size_is_given_the_width(heads, norm):
    layer = MultiHeadAttention(4 * heads, heads, num_kv_heads=1, qk_norm=norm)
    by_two = MultiHeadAttention(4 * heads, heads, num_kv_heads=1, qk_norm=lambda _, d_k: norm(d_k))
    by_two.load_state_dict(layer.state_dict())
    assert layer.q_norm.eps == norm(4).eps
    x = draw(2, 5, 4 * heads, dtype=torch.float32)
    assert torch.equal(layer(x), by_two(x))


def test_a_layer_is_exported_for_lengths_on_both_sides_of_its_window():
    layer = layer_of(sinks=True, window=5).eval()
    length = torch.export.Dim("T", min=2, max=64)
    given = {"x": {1: length}, "causal": None}
    call = (draw(2, 11, 6),), {"causal": True}
    graph = torch.export.export(layer, *call, dynamic_shapes=given).module()
    for T in (2, 5, 6, 50):
        x = draw(2, T, 6, seed=T)
        expected = layer(x, causal=True)
        torch.testing.assert_close(graph(x, causal=True), expected, atol=1e-12, rtol=0)
