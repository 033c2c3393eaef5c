"""What attention must do whatever the numbers are: laws that need no reference implementation.

The other laws of the kind stand beside what they test: equality with loops, garbage behind a
mask, empty rows and precision in test_functional.py; windows and offsets in test_masks.py; heads,
groups, caches, rotary positions and the future in test_layers.py and test_positions.py.
"""

import math

import pytest
import torch
from cases import FLOATS, PADDING, ROTATE, TARGET, cases, draw, language_model, layer_of
from hypothesis import given
from hypothesis import strategies as st
from oracle import attention_by_loops

from attn_lib import attention, attention_weights, causal_mask, padding_mask

INF = math.inf


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@given(cases(), st.randoms(use_true_random=False), st.integers(0, 2**9 - 1))
def test_rows_sum_to_one_keys_have_no_order_and_to_close_them_is_to_remove_them(case, random, bits):
    q, k, v, options = case
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

    options["causal"] = False  # which is about order
    out, weights = attention(q, k, v, **options)

    def of_keys(keys):
        some = {n: o[:, keys] if isinstance(o, torch.Tensor) else o for n, o in options.items()}
        return attention(q, k[keys], v[keys], **some)

    order = random.sample(range(len(k)), len(k))
    close(of_keys(order), (out, weights[:, order]))
    left = [s for s in range(len(k)) if bits >> s & 1]
    expected, mask = of_keys(left)[0], torch.zeros(len(q), len(k), dtype=torch.bool)
    mask[:, left] = True
    options["mask"] = mask & options.get("mask", torch.tensor(True))
    close(attention(q, k, v, **options)[0], expected)


# ---------------------------------------------------------------- strict surroundings


@pytest.fixture(params=["float64", "bfloat16", "deterministic", "inference"])
def surroundings(request):
    deterministic = torch.are_deterministic_algorithms_enabled()
    default = torch.get_default_dtype()
    if "float" in request.param:
        torch.set_default_dtype(getattr(torch, request.param))
    torch.use_deterministic_algorithms(request.param == "deterministic" or deterministic)
    with torch.inference_mode(request.param == "inference"):
        yield
    torch.use_deterministic_algorithms(deterministic)
    torch.set_default_dtype(default)


LAYER = layer_of(d_k=4, rotate=ROTATE)  # made before the surroundings change
CALL = {"causal": True, "mask": padding_mask(torch.tensor([5, 3]), 5)}
EXPECTED = LAYER(draw(2, 5, 6), **CALL).detach()


@pytest.mark.usefixtures("surroundings")
def test_surroundings_change_nothing():
    """Equal to loops under every global setting: no tensor is made in the default dtype."""
    for dtype in FLOATS:
        q, k, v = (draw(n, 5, seed=n, dtype=dtype) for n in (3, 4, 4))
        options = {"mask": draw(3, 4, seed=5) > -1, "attn_bias": draw(3, 4, seed=6, dtype=dtype)}
        options |= {"causal": True, "softcap": 5.0}
        step = 4 * torch.finfo(dtype).eps
        results = zip(
            attention(q, k, v, **options), attention_by_loops(q, k, v, **options), strict=True
        )
        for found, exact in results:
            assert found.dtype == dtype
            torch.testing.assert_close(found.double(), exact, rtol=step, atol=step)
    close(LAYER(draw(2, 5, 6), **CALL), EXPECTED)


def check_compiled(model, *args, **options):
    """One graph, forward and backward, with the outputs and gradients of the model itself."""
    torch._dynamo.reset()
    compiled, results = torch.compile(model, fullgraph=True, backend="aot_eager"), []
    for run in (model, compiled):
        out = run(*args, **options)
        wanted = [*(x for x in args if x.requires_grad), *model.parameters()]
        results.append([out.detach(), *torch.autograd.grad(out.square().sum(), wanted)])
    for plain, fast in zip(*results, strict=True):
        close(fast, plain)


def test_a_compiled_layer_is_the_same():
    layer = layer_of(num_kv_heads=1, d_k=4, d_v=7, rotate=ROTATE).eval()
    options = {"mask": torch.ones(5, 5).bool(), "attn_bias": draw(5, 5, seed=9), "causal": True}
    check_compiled(layer, draw(2, 5, 6).requires_grad_(), **options)


def test_a_compiled_language_model_is_the_same():
    """It cannot look at the tokens, and does not."""
    model = language_model(num_layers=1, attention={"softcap": 2.0})
    check_compiled(model, TARGET, mask=PADDING["left"][1])


class Masking(torch.nn.Module):
    """Masked by lengths, or by a mask that is stored."""

    def __init__(self):
        super().__init__()
        self.layer = layer_of()
        self.register_buffer("mask", causal_mask(5))

    def forward(self, x, lengths=None):
        mask = self.mask if lengths is None else padding_mask(lengths, x.shape[1])
        return self.layer(x, mask=mask)


def test_exported_for_any_length_with_causal_and_a_mask():
    layer, T, options = layer_of(), torch.export.Dim("T", min=2), {"causal": True}
    given = {"mask": torch.ones(2, 1, 1, 5, dtype=torch.bool)} | options
    shapes = {"x": {1: T}, "mask": {3: T}, "causal": None}
    program = torch.export.export(layer, (draw(2, 5, 6),), given, dynamic_shapes=shapes)
    x, mask = draw(2, 11, 6, seed=1), padding_mask(torch.tensor([11, 4]), 11)
    close(program.module()(x, mask=mask, **options), layer(x, mask=mask, **options))


def test_exported_for_any_length_with_a_padding_mask():
    model, T = Masking(), torch.export.Dim("T", min=2)
    given, shapes = (draw(2, 5, 6), torch.tensor([5, 3])), {"x": {1: T}, "lengths": None}
    program = torch.export.export(model, given, dynamic_shapes=shapes)
    x, lengths = draw(2, 11, 6, seed=1), torch.tensor([4, 11])
    close(program.module()(x, lengths), model(x, lengths))


def test_compiled_for_symbolic_shapes_refuses_no_right_mask():
    """A stored mask keeps its sizes: ``5 in (1, T)`` was once False for a symbolic T that is 5."""
    options, x = {"fullgraph": True, "dynamic": True, "backend": "eager"}, draw(2, 5, 6)
    stored, layer = Masking(), layer_of()
    close(torch.compile(stored, **options)(x), stored(x))
    compiled = torch.compile(layer, **options)
    for T in (5, 7, 11):
        x, mask = draw(2, T, 6), padding_mask(torch.tensor([T, 2]), T)
        close(compiled(x, mask=mask, causal=True), layer(x, mask=mask, causal=True))
