"""Real bugs of attention code, each put to this library.

``2.n`` is the n-th of 41 bugs reported to other projects, named by its report; a name such as
``empty keys`` is an input that no report names; ``A03`` is a defect of the five posts, a row of
``seed_rows.csv``. Each test begins with what it answers; ANSWERED says which test elsewhere does.
Where a line or two suffice, the mistake is made as well ("published"), and seen to differ.
"""

import ast
import copy
import csv
import functools
import gc
import itertools
import math
import weakref
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from cases import ROTATE, by_loops, draw, layer_of
from torch import nn

import attn_lib
from attn_lib import attention, attention_weights, causal_mask, padding_mask, window_mask
from attn_lib.functional import fused_attention
from attn_lib.layers import MultiHeadAttention
from attn_lib.masks import from_additive, from_binary, from_blocked, to_additive
from attn_lib.positions import alibi_bias, sinusoidal
from attn_lib.recording import record_attention

pytestmark = pytest.mark.usefixtures("one_thread")

INF = math.inf
both_paths = pytest.mark.parametrize("softcap", [None, 2.0], ids=["fast", "softcap"])


def random_mask(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.6


# ---------------------------------------------------------------- rows without a key


@both_paths
@pytest.mark.parametrize("how", ["mask", "bias"])
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
        options = {"mask": mask} if how == "mask" else {"bias": to_additive(mask).double()}
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
    torch.testing.assert_close(attention(q, v, v, bias=lowest)[0], mean)
    values = layer.v_proj(x).mean(-2, keepdim=True).expand(2, 4, 6)
    torch.testing.assert_close(layer(x[:, 1:], x, bias=lowest), layer.out_proj(values))
    assert not attention(q, v, v, bias=lowest * INF)[0].any()


# ---------------------------------------------------------------- every mode

MASKED = {
    "nothing": {},
    "causal": {"causal": True},
    "padding": {"mask": padding_mask(torch.tensor([5, 3, 0]), 5).expand(3, 3, 5, 5)},
    "a whole head": {"mask": (torch.arange(3) != 1)[:, None, None].expand(3, 3, 5, 5)},
    "bias": {"bias": draw(3, 3, 5, 5, seed=2)},
    "all": {"mask": random_mask(3, 3, 5, 5), "bias": draw(3, 3, 5, 5, seed=3), "causal": True},
}


@both_paths
@pytest.mark.parametrize("masked", MASKED)
def test_pytorch_163997_every_mode_gives_the_numbers_of_the_loops(masked, softcap):
    """Rows 2.4, 2.5, 2.8, 2.11, 2.14, 2.38, 2.40: train or eval, with or without weights."""
    layer, x, options = layer_of(softcap=softcap), draw(3, 5, 6), MASKED[masked]
    expected = by_loops(layer, x, x, *(options.get(n) for n in ("mask", "bias", "causal")))
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
    for mask, bias, rotary, shared, train, record in itertools.product([False, True], repeat=6):
        heads = {"num_heads": 6, "d_k": 4, "num_kv_heads": 2 if shared else None}
        rotate = ROTATE if rotary else None
        layer = layer_of(**heads, rotate=rotate, softcap=softcap, dropout=dropout).train(train)
        options = {"mask": padding_mask(torch.tensor([5, 4]), 5)} if mask else {}
        options |= {"bias": draw(1, 6, 5, 5, seed=1)} if bias else {}
        x = draw(2, 5, 6).requires_grad_()
        with record_attention(layer) if record else nullcontext():
            layer(x, causal=True, **options)[:, 2].sum().backward()
        assert not x.grad[:, 3:].any()
        assert bool((x.grad[:, :3] != 0).any(dim=(-1, -2)).all())


TABLES = {(2, 5): "11110 11111", (5, 2): "00 00 00 10 11", (1, 4): "1111", (4, 1): "0 0 0 1"}


@both_paths
@pytest.mark.parametrize("sizes", TABLES)
def test_flash_attention_1778_the_queries_are_the_last_of_the_positions(sizes, softcap):
    """Rows 2.9, D10: the tables of FlashAttention's README, not those from the top left."""
    T, S = sizes
    table = torch.tensor([[cell == "1" for cell in row] for row in TABLES[sizes].split()])
    assert torch.equal(causal_mask(T, S), table)
    layer, x, context = layer_of(softcap=softcap), draw(2, T, 6), draw(2, S, 6, seed=1)
    with record_attention(layer) as maps:
        out = layer(x, context, causal=True)
    assert torch.equal(maps[""] > 0, table.expand(2, 3, T, S))
    torch.testing.assert_close(out, by_loops(layer, x, context, table, None, False))
    assert not torch.equal(torch.ones(T, S).tril().bool(), table)  # published


def test_transformers_31673_what_may_not_attend_ahead_cannot_learn_to():
    """Rows 2.28: tokens are drawn anew, so only a leak can bring the loss below log 5."""
    causal, window = causal_mask(6), window_mask(6, 3)
    near = -4.0 * (torch.arange(6) - torch.arange(6)[:, None] - 1).abs()  # tempts to look ahead
    additive = to_additive(causal).clamp(min=torch.finfo(torch.float32).min)
    losses = []
    for options in (
        {"mask": causal & window, "bias": near},
        {"bias": near + additive * window},  # published: outside the window, closed · 0 is open
    ):
        torch.manual_seed(0)
        layer = MultiHeadAttention(5, 1)
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
        for _ in range(80):
            tokens = torch.randint(5, (128, 6))
            logits = layer(F.one_hot(tokens, 5).float(), **options)[:, :-1]
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[0] > math.log(5) - 0.02
    assert losses[1] < 0.3 * math.log(5)


# ---------------------------------------------------------------- polarity, types, ranks


@both_paths
def test_pytorch_170400_true_is_may_attend_everywhere(softcap):
    """Rows 2.16, A06, B03, C03, C05, C06, X02: closed is exactly zero, open is not."""
    layer, x = layer_of(softcap=softcap), draw(2, 5, 6)
    q, k, lengths = draw(2, 3, 5, 2), draw(2, 3, 5, 2, seed=1), torch.tensor([5, 3])
    padding, causal = padding_mask(lengths, 5), causal_mask(5)
    assert torch.equal(padding, from_binary(torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])))
    assert torch.equal(padding, from_blocked(torch.arange(5) >= lengths[:, None])[:, None, None])
    assert torch.equal(causal, from_additive(torch.full((5, 5), -INF).triu(1)))
    for mask in (padding, causal, padding & causal):
        mask = mask.expand(2, 3, 5, 5)
        with record_attention(layer) as maps:
            layer(x, mask=mask)
        for weights in (maps[""], attention_weights(q, k, mask=mask, softcap=softcap)):
            assert torch.equal(weights > 0, mask)
        published = (q @ k.mT).masked_fill(mask, -INF).softmax(-1)  # True taken for blocked
        assert not (published > 0)[mask].any()


KINDS = {
    "0 and 1": ("mask", torch.ones(5, 5).tril().double()),
    "0 and -inf": ("mask", to_additive(causal_mask(5)).double()),
    "integer mask": ("mask", torch.ones(5, 5).tril().long()),
    "bytes": ("mask", torch.ones(5, 5).tril().byte()),
    "bool bias": ("bias", causal_mask(5)),
    "integer bias": ("bias", torch.zeros(5, 5).long()),
    "float32 bias": ("bias", torch.zeros(5, 5)),
}


@both_paths
@pytest.mark.parametrize("kind", KINDS)
def test_cs249r_book_1785_a_mask_is_no_bias_and_a_bias_no_mask(kind, softcap):
    """Rows 2.17, C08, integer mask, float64 against float32: the wrong one raises, by name."""
    (name, given), q = KINDS[kind], draw(2, 3, 5, 2)
    for call in (
        lambda **o: attention_weights(q, q, softcap=softcap, **o),
        lambda **o: attention(q, q, q, softcap=softcap, **o),
        lambda **o: layer_of(softcap=softcap)(draw(2, 5, 6), **o),
    ):
        with pytest.raises(TypeError, match=f"^{name} must .*got {given.dtype}"):
            call(**{name: given})
    published = F.scaled_dot_product_attention(q, q, q, attn_mask=KINDS["0 and 1"][1])  # added
    closed = attention(q, q, q, causal=True)[0]
    assert not torch.allclose(published, closed, atol=0.1)


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


# ---------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("dtype", "size", "fill"),
    [
        (torch.float64, 1e6, -1e9),
        (torch.float32, 1e6, -1e9),
        (torch.bfloat16, 1e6, -1e9),
        (torch.float16, 200.0, -1e4),
    ],
)
def test_flax_982_no_number_stands_for_minus_infinity(dtype, size, fill):
    """Rows 2.22, A08, B08, C20: a closed key gets nothing, however low the open scores are."""
    q, k = torch.tensor([[size]], dtype=dtype), torch.tensor([[-size], [0.0]], dtype=dtype)
    mask, wanted = torch.tensor([[True, False]]), torch.tensor([[1.0, 0.0]], dtype=dtype)
    additive = to_additive(mask, dtype=dtype)
    for options in ({"mask": mask}, {"bias": additive}, {"mask": mask, "bias": additive}):
        assert torch.equal(attention_weights(q, k, scale=1.0, **options), wanted)
    published = (q @ k.mT).masked_fill(~mask, fill).softmax(-1)
    assert torch.equal(published, 1.0 - wanted)
    if dtype == torch.float16:
        with pytest.raises(RuntimeError, match="overflow"):
            published.masked_fill(~mask, -1e9)


@both_paths
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_automodel_2658_masks_of_half_precision_may_be_combined(dtype, softcap):
    """Rows 2.23: mask, causal, and two additive masks at once; empty rows stay finite."""
    layer, x = layer_of(softcap=softcap, dtype=dtype), draw(2, 5, 6, dtype=dtype).requires_grad_()
    mask = padding_mask(torch.tensor([5, 2]), 5) & window_mask(5, 1, 1)
    additive = to_additive(mask, dtype=dtype)
    out = layer(x, mask=mask, bias=additive + additive, causal=True)
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
    for options in ({}, {"mask": mask}, {"bias": to_additive(mask).double()}):
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


# ---------------------------------------------------------------- gradients and memory


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
@pytest.mark.parametrize("wanted", [["q"], ["k"], ["v"], ["bias"], ["q", "k", "v", "bias"]])
def test_pytorch_148476_each_gradient_alone(wanted, softcap):
    """Rows 2.30: against finite differences, with an empty row; the bias alone once crashed."""
    given = {"q": draw(1, 2, 3, 2), "k": draw(1, 2, 4, 2, seed=1), "v": draw(1, 2, 4, 3, seed=2)}
    given["bias"] = draw(1, 2, 3, 4, seed=3)
    options = {"mask": torch.tensor([[True, False, True, True], [False] * 4, [True] * 4])}
    options |= {"scale": 0.3, "causal": False, "dropout_p": 0.0}

    def run(*tensors):
        full = {**given, **dict(zip(wanted, tensors, strict=True)), **options}
        return attention(**full, softcap=softcap)[0] if softcap else fused_attention(**full)

    assert torch.autograd.gradcheck(run, [given[n].clone().requires_grad_() for n in wanted])


@both_paths
def test_A10_nothing_is_changed_in_place(softcap):
    """Rows A10, A11: neither an argument nor what a hook has seen; a residual stays float32."""
    layer, seen = layer_of(softcap=softcap, d_k=4), []
    for module in layer.modules():
        module.register_forward_hook(lambda m, args, out: seen.append((out, out.clone())))
    given = [draw(2, 5, 6), draw(2, 7, 6, seed=1), random_mask(2, 1, 5, 7), draw(1, 3, 5, 7)]
    before = [tensor.clone() for tensor in given]
    x, context, mask, bias = given
    layer(x, context, mask=mask, bias=bias, causal=True)
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


# ---------------------------------------------------------------- heads, padding, sizes


def test_B02_each_head_reads_the_whole_vector_with_weights_of_its_own():
    """Rows B02, B02b, B19: not one small matrix for the slice of every head."""
    layer, x = layer_of(bias=False), draw(2, 5, 2).repeat(1, 1, 3)  # three equal slices
    assert sum(p.numel() for p in layer.parameters()) == 4 * 6 * 6
    changed = x.clone()
    changed[..., 2:] += draw(2, 5, 4, seed=1)  # what head 0 of the published class never reads
    with record_attention(layer) as maps:
        layer(x)
        weights = maps[""]
        layer(changed)
    assert all((weights[:, g] - weights[:, h]).abs().max() > 1e-3 for g, h in [(0, 1), (1, 2)])
    assert (weights[:, 0] - maps[""][:, 0]).abs().max() > 1e-3
    published = x.unflatten(-1, (3, 2)) @ draw(2, 2)
    assert torch.equal(published[..., 0, :], published[..., 1, :])


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
        bias = alibi_bias(3, 7).double()[None] if way == "alibi" else None
        for side, places in real.items():
            where = {"counted": places.cumsum(-1) - 1, "published": torch.arange(7)}.get(way)
            inside = x[side] if where is None else x[side] + table[where.clamp(min=0)]
            mask = places[:, None, None]
            out[side] = layer(inside, mask=mask, causal=causal, bias=bias)[places]
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


def test_B11_no_check_disappears_under_dash_O():
    """Rows B11, C09, C18, E18: validation raises; `assert` would be stripped."""
    for path in Path(attn_lib.__file__).parent.glob("*.py"):
        assert not [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Assert)]


# ---------------------------------------------------------------- nothing is left out

INPUTS = (
    "empty keys, empty queries, empty batch, length 1, one head, d_k is not d_v, one key head, "
    "integer mask, float64 against float32, mixed dtypes, width 0, float16 200, bfloat16 133120"
)
# bugs -> the tests elsewhere that prove them absent
ANSWERED = {
    "2.2 pytorch#103749": "functional::test_a_query_that_may_attend_to_nothing_gets_zeros",
    "2.6 pytorch#101967, X01": "functional::test_a_closed_key_may_hold_anything "
    "functional::test_what_no_query_may_attend_to_may_hold_anything_in_the_gradient_too "
    "layers::test_padding_of_a_context_may_hold_anything",
    "2.7 pytorch#193728, D20, mixed dtypes, width 0, one key head": (
        "functional::test_bad_input_is_named"
    ),
    "2.9 pytorch#108108, 2.10 onnx#8054": (
        "layers::test_a_cache_in_any_split_equals_the_full_pass"
    ),
    "2.18 pytorch#117939": "checks::test_changed_outputs_turn_the_command_red",
    "2.19 pytorch#124464, A02": "layers::test_dropout_is_for_training_only "
    "layers::test_dropping_everything_is_allowed "
    "layers::test_softcap_drops_out_in_training_too",
    "2.20 pytorch#42929, A07, E09": (
        "functional::test_dropout_leaves_the_returned_weights_alone "
        "layers::test_recording_changes_nothing_and_shows_what_was_used"
    ),
    "2.21 pytorch#34537, 2.31 ng-video-lecture#6, 2.32 perceiver-io#9, B01, B10, C14, D02": (
        "layers::test_equals_torch_with_the_same_weights"
    ),
    "2.25 onnx#7865, 2.33 attention-is-all-you-need-pytorch#19, A17, B04, B06": (
        "functional::test_equals_plain_loops"
    ),
    "2.26 onnx#7274, d_k is not d_v, C18, D06, D13": "layers::test_equals_plain_loops",
    "2.27 transformers#39408": "masks::test_window "
    "masks::test_a_window_counts_the_keys_before_the_token_not_the_token",
    "2.34 opacus#825": "layers::test_split_puts_each_number_where_it_belongs",
    "2.35 rotary-embedding-torch#11": "positions::test_rope_scores_depend_on_the_distance_only "
    "positions::test_rope_multiplies_complex_numbers "
    "layers::test_a_cache_in_any_split_equals_the_full_pass",
    "2.37 BERT-pytorch#78": "positions::test_sinusoidal_equals_the_formula",
    # programs that end in an error whatever they are given: ours runs
    "A01, C11, C12, C13, D01, D03, D04, D05, E01, E03": "layers::test_equals_plain_loops",
    "A15, D14, E06, E07": "layers::test_bad_calls_are_named functional::test_bad_input_is_named",
    "C15, D07, D08": "layers::test_bad_layers_are_named",
    "A16, empty batch, empty queries, length 1": "layers::test_empty_and_single",
    "B13, D12": "layers::test_runs_on_meta_tensors "
    "positions::test_everything_is_made_where_its_arguments_are",
    "B14": "positions::test_learned_positions_are_added_and_trained",
    "E02": "layers::test_initial_projections_differ",
}
NOT_OURS = {
    "B12": "the order inside a Transformer block",
    "B15": "an encoder that makes no padding mask; its shifted positions are row 2.36",
    "A12, A13, A14, B21, C17, D15, D16, D17, D18, E11, E19, E20, X04": "names and comments",
    "B16, B17, B18, B20, D19, D21, E12, E13, E14, E15, E16, E17": "explanations: pages",
    "C19": "examples that check nothing: pages",
    "D22, D23": "measured, and no defect",
}


@functools.cache
def docstrings(path):
    """Name of each test of a file -> its docstring."""
    found = (n for n in ast.parse(path.read_text()).body if isinstance(n, ast.FunctionDef))
    return {n.name: ast.get_docstring(n) or "" for n in found if n.name.startswith("test_")}


def gaps(answered):
    """Bugs that nothing answers, and whatever is named but does not exist."""
    folder = Path(__file__).parents[1]
    with (folder / "book" / "seed_rows.csv").open() as file:
        wanted = {row["id"] for row in csv.DictReader(file) if not row["id"].startswith("F")}
    wanted |= {*INPUTS.split(", "), *(f"2.{n}" for n in range(1, 42))}
    heads = [text.partition(":")[0] for text in docstrings(Path(__file__)).values()]
    here = [head.removeprefix("Rows ") for head in heads if head.startswith("Rows ")]
    entries = [entry for head in (*here, *answered, *NOT_OURS) for entry in head.split(", ")]
    named = {entry.split()[0] if entry.startswith("2.") else entry for entry in entries}
    tests = {tuple(test.split("::")) for tests in answered.values() for test in tests.split()}
    files = {path.stem: path for path in folder.glob("*/test_*.py")}
    lost = {name for file, name in tests if name not in docstrings(files[f"test_{file}"])}
    return (wanted ^ named) | lost


def test_every_bug_is_answered():
    assert not gaps(ANSWERED)


def test_a_gap_would_be_seen():
    for rows in ANSWERED:
        assert gaps({other: tests for other, tests in ANSWERED.items() if other != rows}), rows
    assert gaps(ANSWERED | {"2.42 x#1": "layers::test_lost"}) == {"2.42", "test_lost"}
