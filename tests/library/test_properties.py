"""What attention must do whatever the numbers are: laws that need no reference implementation.

The other laws of the kind stand beside what they test: equality with loops, garbage behind a
mask, empty rows and precision in test_functional.py; windows and offsets in test_masks.py; heads,
groups, caches and rotary positions in test_layers.py and test_positions.py.
"""

import itertools
import math
from contextlib import nullcontext

import pytest
import torch
from cases import FLOATS, PADDING, ROTATE, TARGET, cases, draw, language_model, layer_of
from hypothesis import given
from hypothesis import strategies as st
from oracle import attention_by_loops

from attn_lib import attention, attention_weights, causal_mask, padding_mask, record_attention

INF = math.inf


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


@given(cases())
def test_a_row_sums_to_one_or_is_empty(case):
    q, k, _, options = case
    weights = attention_weights(q, k, **options)
    open_cells = torch.ones(weights.shape, dtype=torch.bool)
    if "mask" in options:
        open_cells &= options["mask"]
    if "attn_bias" in options:
        open_cells &= options["attn_bias"] != -INF
    if options["causal"]:
        open_cells &= torch.ones(weights.shape, dtype=torch.bool).tril(len(k) - len(q))
    assert bool((weights >= 0).all())
    assert torch.equal(weights[~open_cells], torch.zeros(int((~open_cells).sum())).double())
    close(weights.sum(-1), open_cells.any(-1).double())


@given(cases())
def test_the_output_stays_between_the_values_it_may_attend_to(case):
    q, k, v, options = case
    out, weights = attention(q, k, v, **options)
    room = 1e-12 * (1 + v.abs().max())
    for t in range(len(q)):
        seen = v[weights[t] > 0]
        if len(seen):
            assert bool((out[t] >= seen.min(0).values - room).all())
            assert bool((out[t] <= seen.max(0).values + room).all())


@given(cases(), st.randoms(use_true_random=False))
def test_the_order_of_the_keys_does_not_matter(case, random):
    q, k, v, options = case
    order = list(range(len(k)))
    random.shuffle(order)
    options["causal"] = False  # causal is about order
    moved = {n: o[:, order] if isinstance(o, torch.Tensor) else o for n, o in options.items()}
    out, weights = attention(q, k, v, **options)
    got_out, got_weights = attention(q, k[order], v[order], **moved)
    close(got_out, out)
    close(got_weights, weights[:, order])


@given(cases(), st.randoms(use_true_random=False))
def test_the_order_of_the_queries_orders_the_outputs(case, random):
    q, k, v, options = case
    order = list(range(len(q)))
    random.shuffle(order)
    options["causal"] = False
    moved = {n: o[order] if isinstance(o, torch.Tensor) else o for n, o in options.items()}
    close(attention(q[order], k, v, **moved)[0], attention(q, k, v, **options)[0][order])


@given(st.tuples(*[st.integers(1, 5)] * 6), st.booleans())
def test_examples_and_heads_do_not_touch_each_other(sizes, causal):
    B, H, T, S, d_k, d_v = sizes
    q, k, v = draw(B, H, T, d_k), draw(B, H, S, d_k, seed=1), draw(B, H, S, d_v, seed=2)
    mask, attn_bias = draw(B, H, T, S, seed=3) > -1, draw(B, H, T, S, seed=4)
    out, weights = attention(q, k, v, mask=mask, attn_bias=attn_bias, causal=causal)
    for b, h in itertools.product(range(B), range(H)):
        alone = attention(
            q[b, h], k[b, h], v[b, h], mask=mask[b, h], attn_bias=attn_bias[b, h], causal=causal
        )
        close(out[b, h], alone[0])
        close(weights[b, h], alone[1])
    by_rank = attention(q[0], k[0], v[0], mask=mask[0], attn_bias=attn_bias[0], causal=causal)
    close(by_rank[0], out[0])  # two, three and four axes agree


@given(cases(), st.integers(0, 2**9 - 1))
def test_closing_keys_is_removing_them(case, bits):
    q, k, v, options = case
    options["causal"] = False
    kept = [s for s in range(len(k)) if bits >> s & 1]
    mask = torch.zeros(len(q), len(k), dtype=torch.bool)
    mask[:, kept] = True
    fewer = {n: o[:, kept] if isinstance(o, torch.Tensor) else o for n, o in options.items()}
    expected = attention(q, k[kept], v[kept], **fewer)[0]
    options["mask"] = mask & options.get("mask", torch.tensor(True))
    close(attention(q, k, v, **options)[0], expected)


@given(cases(), st.floats(-50, 50))
def test_a_constant_added_to_a_row_changes_nothing(case, constant):
    q, k, v, options = case
    plain = attention(q, k, v, **options)[1]
    options["attn_bias"] = options.get("attn_bias", torch.zeros(plain.shape).double()) + constant
    close(attention(q, k, v, **options)[1], plain)


@given(cases(), st.floats(-3, 3))
def test_linear_in_the_values(case, factor):
    q, k, v, options = case
    other = draw(*v.shape, seed=77)
    both = attention(q, k, factor * v + other, **options)[0]
    out, rest = attention(q, k, v, **options)[0], attention(q, k, other, **options)[0]
    torch.testing.assert_close(both, factor * out + rest, rtol=1e-9, atol=1e-9)


@given(st.integers(1, 5), st.integers(1, 7), st.integers(1, 4))
def test_equal_keys_average_the_values(T, S, d_k):
    v = draw(S, 3, seed=2)
    out, weights = attention(draw(T, d_k), draw(1, d_k, seed=1).expand(S, d_k), v)
    close(weights, torch.full((T, S), 1 / S, dtype=torch.float64))
    close(out, v.mean(0).expand(T, 3))


@given(cases(), st.sampled_from([-2.0, 0.1, 3.0]))
def test_the_scale_may_be_folded_into_the_queries(case, scale):
    q, k, v, options = case
    options["scale"] = scale
    expected = attention(q, k, v, **options)[0]
    options["scale"] = 1.0
    torch.testing.assert_close(attention(q * scale, k, v, **options)[0], expected)


@given(cases(closed_rows=False))
def test_a_bias_of_zero_is_none_and_minus_infinity_is_a_mask(case):
    q, k, v, options = case
    options.pop("attn_bias", None)
    out = attention(q, k, v, **options)[0]
    zeros = torch.zeros(len(q), len(k), dtype=torch.float64)
    assert torch.equal(attention(q, k, v, attn_bias=zeros, **options)[0], out)
    mask = options.pop("mask", zeros == 0)
    closed = zeros.masked_fill(~mask, -INF)
    masked = attention(q, k, v, mask=mask, **options)[0]
    assert torch.equal(attention(q, k, v, attn_bias=closed, **options)[0], masked)


# ---------------------------------------------------------------- nothing from the future

MODES = {
    "plain": {},
    "masked": {"mask": torch.ones(5, 5, dtype=torch.bool)},
    "biased": {"attn_bias": draw(5, 5, seed=9)},
    "both": {"mask": torch.ones(5, 5, dtype=torch.bool), "attn_bias": draw(5, 5, seed=9)},
}
LAYERS = {
    "plain": {},
    "grouped": {"num_kv_heads": 1},
    "softcap": {"softcap": 2.0},
    "rotary": {"d_k": 4, "rotate": ROTATE},
    "widths": {"d_k": 5, "d_v": 7},
    "dropout": {"dropout": 0.1},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("recorded", [False, True])
def test_the_future_has_no_gradient(mode, kind, recorded):
    """In every mode: exactly zero from later positions, not zero from those before."""
    layer = layer_of(**LAYERS[kind])
    x = draw(1, 5, 6).requires_grad_()
    with record_attention(layer) if recorded else nullcontext():
        torch.manual_seed(0)
        out = layer(x, causal=True, **MODES[mode])
    for t in range(5):
        (grad,) = torch.autograd.grad(out[0, t].sum(), x, retain_graph=True)
        assert torch.equal(grad[0, t + 1 :], torch.zeros(4 - t, 6).double())
        assert bool((grad[0, : t + 1].abs().sum(-1) > 1e-6).all())


# ---------------------------------------------------------------- gradients


@pytest.mark.parametrize("name", ["q", "k", "v", "attn_bias"])
def test_each_input_alone_may_need_a_gradient(name):
    inputs = {"q": draw(2, 3, 5), "k": draw(2, 4, 5, seed=1), "v": draw(2, 4, 7, seed=2)}
    inputs["attn_bias"] = draw(2, 3, 4, seed=3)
    mask = torch.tensor([[True, False, True, True], [False] * 4, [True] * 4])

    def run(value):
        return attention(**{**inputs, name: value}, mask=mask)[0]

    value = inputs[name].clone().requires_grad_()
    assert torch.autograd.gradcheck(run, value)
    assert torch.autograd.gradgradcheck(run, value)


# ---------------------------------------------------------------- dropout


def test_dropout_is_right_on_average():
    q, k, v = draw(3, 5), draw(4, 5, seed=1), draw(4, 2, seed=2)
    torch.manual_seed(0)
    runs = torch.stack([attention(q, k, v, dropout_p=0.3)[0] for _ in range(3000)])
    expected = attention(q, k, v)[0]
    # five standard errors: a wrong factor of 0.7 would be far outside
    allowed = 5 * runs.std(0) / math.sqrt(len(runs))
    assert bool(((runs.mean(0) - expected).abs() < allowed).all())
    assert bool((allowed < 0.3 * expected.abs()).any())


# ---------------------------------------------------------------- padding


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_example_equals_the_example_alone(kind, side):
    layer = layer_of(**LAYERS[kind]).eval()
    alone = draw(1, 3, 6, seed=1)
    padding = torch.full((1, 2, 6), 1e3, dtype=torch.float64)
    row = torch.cat([padding, alone] if side == "left" else [alone, padding], dim=1)
    x = torch.cat([draw(1, 5, 6, seed=2), row])
    mask = padding_mask(torch.tensor([5, 3]), 5)
    real = slice(0, 3)
    if side == "left":
        mask[1], real = mask[1].flip(-1), slice(2, 5)
    for causal in (False, True):
        got = layer(x, mask=mask, causal=causal)[1, real]
        torch.testing.assert_close(got, layer(alone, causal=causal)[0])


# ---------------------------------------------------------------- strict surroundings


@pytest.fixture(params=["float64 default", "bfloat16 default", "deterministic", "inference"])
def surroundings(request):
    deterministic = torch.are_deterministic_algorithms_enabled()
    default = torch.get_default_dtype()
    if "default" in request.param:
        torch.set_default_dtype(getattr(torch, request.param.split()[0]))
    if request.param == "deterministic":
        torch.use_deterministic_algorithms(True)
    with torch.inference_mode(request.param == "inference"):
        yield
    torch.use_deterministic_algorithms(deterministic)
    torch.set_default_dtype(default)


@pytest.mark.usefixtures("surroundings")
@pytest.mark.parametrize("dtype", FLOATS)
def test_surroundings_change_nothing(dtype):
    """Equal to loops under every global setting: no tensor is made in the default dtype."""
    q, k, v = (draw(n, 5, seed=n, dtype=dtype) for n in (3, 4, 4))
    mask, attn_bias = draw(3, 4, seed=5) > -1, draw(3, 4, seed=6, dtype=dtype)
    out, weights = attention(q, k, v, mask=mask, attn_bias=attn_bias, causal=True, softcap=5.0)
    expected = attention_by_loops(q, k, v, mask=mask, attn_bias=attn_bias, causal=True, softcap=5.0)
    assert out.dtype == weights.dtype == dtype
    step = 4 * torch.finfo(dtype).eps
    for got, exact in zip((out, weights), expected, strict=True):
        torch.testing.assert_close(got.double(), exact, rtol=step, atol=step)


LAYER = layer_of(d_k=4, rotate=ROTATE)  # made before the surroundings change
CALL = {"causal": True, "mask": padding_mask(torch.tensor([5, 3]), 5)}
EXPECTED = LAYER(draw(2, 5, 6), **CALL).detach()


@pytest.mark.usefixtures("surroundings")
def test_surroundings_do_not_change_a_layer():
    close(LAYER(draw(2, 5, 6), **CALL), EXPECTED)


# compiling takes long: every kind once, every mode at least once
COMPILED = [
    *zip(LAYERS, itertools.cycle(MODES), strict=False),
    ("softcap", "both"),
    ("grouped", "biased"),
]


@pytest.mark.parametrize(("kind", "mode"), COMPILED)
def test_compiled_is_the_same(kind, mode):
    """The whole layer is one graph, forward and backward."""
    torch._dynamo.reset()
    layer = layer_of(**LAYERS[kind]).eval()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    results = []
    for run in (layer, compiled):
        x = draw(2, 5, 6).requires_grad_()
        out = run(x, causal=True, **MODES[mode])
        out.square().sum().backward()
        results.append((out, x.grad))
    for plain, fast in zip(*results, strict=True):
        close(fast, plain)


def test_a_compiled_language_model_is_the_same():
    """One graph, forward and backward; it cannot look at the tokens, and does not."""
    torch._dynamo.reset()
    model, mask = language_model(), PADDING["left"][1]
    compiled, results = torch.compile(model, fullgraph=True, backend="aot_eager"), []
    for run in (model, compiled):
        model.zero_grad()
        out = run(TARGET, mask=mask)
        out.square().sum().backward()
        results.append([out.detach(), *(p.grad for p in model.parameters())])
    for plain, fast in zip(*results, strict=True):
        close(fast, plain)


class Masked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = layer_of()

    def forward(self, x, mask):
        return self.layer(x, mask=mask, causal=True)


class Padded(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = layer_of()

    def forward(self, x, lengths):
        return self.layer(x, mask=padding_mask(lengths, x.shape[1]))


class Stored(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = layer_of()
        self.register_buffer("mask", causal_mask(5))

    def forward(self, x):
        return self.layer(x, mask=self.mask)


def test_exported_for_any_length_with_causal_and_a_mask():
    model, T = Masked(), torch.export.Dim("T", min=2)
    given = draw(2, 5, 6), torch.ones(2, 1, 1, 5, dtype=torch.bool)
    shapes = {"x": {1: T}, "mask": {3: T}}
    program = torch.export.export(model, given, dynamic_shapes=shapes)
    x, mask = draw(2, 11, 6, seed=1), padding_mask(torch.tensor([11, 4]), 11)
    close(program.module()(x, mask), model(x, mask))


def test_exported_for_any_length_with_a_padding_mask():
    model, T = Padded(), torch.export.Dim("T", min=2)
    given, shapes = (draw(2, 5, 6), torch.tensor([5, 3])), {"x": {1: T}, "lengths": None}
    program = torch.export.export(model, given, dynamic_shapes=shapes)
    x, lengths = draw(2, 11, 6, seed=1), torch.tensor([4, 11])
    close(program.module()(x, lengths), model(x, lengths))


def test_compiled_for_symbolic_shapes_refuses_no_right_mask():
    """A stored mask keeps its sizes: ``5 in (1, T)`` was once False for a symbolic T that is 5."""
    stored, x = Stored(), draw(2, 5, 6)
    compiled = torch.compile(stored, fullgraph=True, dynamic=True, backend="aot_eager")
    close(compiled(x), stored(x))
    model = Masked()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    for T in (5, 7, 11):
        x, mask = draw(2, T, 6), padding_mask(torch.tensor([T, 2]), T)
        close(compiled(x, mask), model(x, mask))
