import math
import re

import pytest
import torch
import torch.nn.functional as F
from cases import FLOATS, cases, draw, random_mask
from hypothesis import given
from hypothesis import strategies as st
from oracle import attention_by_loops
from tables import for_each

from attn_lib import attention, attention_weights
from attn_lib.fused import fused_attention
from attn_lib.masks import to_additive

INF = math.inf


@given(cases())
def test_equals_plain_loops(case):
    q, k, v, options = case
    out, weights = attention(q, k, v, **options)
    expected_out, expected_weights = attention_by_loops(q, k, v, **options)
    # double precision, and scores of up to 30 · 30 · 9: 1e-10 is a thousand rounding steps
    torch.testing.assert_close(weights, expected_weights, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(out, expected_out, rtol=1e-10, atol=1e-10)
    assert torch.equal(weights, attention_weights(q, k, **options))


@given(cases(dtypes=(torch.float16, torch.bfloat16)))
def test_half_precision_is_as_exact_as_its_rounding(case):
    """Error at most twice that of rounding the exact answer to the dtype."""
    q, k, v, options = case
    out, weights = attention(q, k, v, **options)
    assert out.dtype == weights.dtype == attention_weights(q, k, **options).dtype == q.dtype
    for found, exact in zip((out, weights), attention_by_loops(q, k, v, **options), strict=True):
        floor = (exact.to(q.dtype).double() - exact).abs().max()
        # a float32 computation inside adds its own error, far below half precision
        inside = 1e-4 * exact.abs().max() + 1e-7
        assert (found.double() - exact).abs().max() <= 2 * floor + inside


@given(
    st.tuples(*[st.integers(1, 6)] * 6),
    st.sampled_from(["none", "bool", "float", "causal"]),
    st.sampled_from([None, 0.3]),
    st.sampled_from(FLOATS),
)
def test_equals_torch_kernel(sizes, kind, scale, dtype):
    B, H, T, S, d_k, d_v = sizes
    sizes = enumerate([(T, d_k), (S, d_k), (S, d_v)])
    q, k, v = (draw(B, H, n, w, seed=i, dtype=dtype) for i, (n, w) in sizes)
    mask, bias = random_mask(B, 1, T, S, seed=3), draw(B, H, T, S, seed=4, dtype=dtype)
    triangle = torch.ones(T, S, dtype=torch.bool).tril(S - T)
    ours, attn_mask = {
        "none": ({}, None),
        "bool": ({"mask": mask}, mask),
        "float": ({"attn_bias": bias}, bias),
        # PyTorch's is_causal counts from the first position; ours from the last, so it is a mask
        "causal": ({"causal": True}, triangle),
    }[kind]
    expected = F.scaled_dot_product_attention(q, k, v, scale=scale, attn_mask=attn_mask)
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-6}.get(dtype, 2e-2)
    found = attention(q, k, v, scale=scale, **ours)[0]
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("how", ["mask", "attn_bias", "causal"])
def test_a_query_that_may_attend_to_nothing_gets_zeros(dtype, how):
    q, k, v = (draw(3, n, 5, seed=i, dtype=dtype).requires_grad_() for i, n in enumerate([7, 4, 4]))
    mask = (torch.arange(7) >= 3)[:, None].expand(7, 4)
    options = {
        "mask": {"mask": mask},
        "attn_bias": {"attn_bias": torch.zeros(7, 4, dtype=dtype).masked_fill(~mask, -INF)},
        "causal": {"causal": True},  # seven queries, four keys: the first three come too early
    }[how]
    out, weights = attention(q, k, v, **options)
    out.sum().backward()
    for empty in (weights[:, :3], out[:, :3], q.grad[:, :3]):
        assert torch.equal(empty, torch.zeros_like(empty))
    assert out.dtype == weights.dtype == dtype
    assert torch.allclose(weights[:, 3:].double().sum(-1), torch.ones(3, 4).double(), atol=1e-2)
    assert all(bool(x.grad.isfinite().all()) for x in (q, k, v))
    assert bool((v.grad != 0).any())


@pytest.mark.parametrize("garbage", [math.nan, INF, -INF, 1e30])
@pytest.mark.parametrize("how", ["mask", "attn_bias"])
def test_what_no_query_may_attend_to_may_hold_anything_in_the_gradient_too(how, garbage):
    """Key and value closed to every query, and a query that may attend to nothing."""
    mask = torch.tensor([[True, True, False, True], [False] * 4, [True, True, False, False]])
    options = {"mask": mask} if how == "mask" else {"attn_bias": to_additive(mask).double()}
    results = []
    for padding in (0.0, garbage):
        q, k, v = draw(3, 5), draw(4, 5, seed=1), draw(4, 7, seed=2)
        k[2] = v[2] = padding
        inputs = [x.requires_grad_() for x in (q, k, v)]
        out, weights = attention(*inputs, **options)
        results.append([out, weights, *torch.autograd.grad(out.sum(), inputs)])
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))
    assert torch.equal(results[1][0][1], torch.zeros(7, dtype=torch.float64))


def test_autocast_changes_nothing():
    q, x = torch.full((1, 64), 200.0, dtype=torch.float16), draw(3, 5, dtype=torch.float32)
    k = torch.stack([q[0], -q[0]])  # the products do not fit
    for tensors in ((q, k, k), (x, x, x)):
        expected = attention(*tensors)
        with torch.autocast("cpu", torch.bfloat16):
            for found, same in zip(attention(*tensors), expected, strict=True):
                assert torch.equal(found, same)


def test_a_real_nan_is_not_hidden_and_an_empty_row_is_zero_beside_it():
    q, k, v = draw(3, 5), draw(4, 5, seed=1), draw(4, 7, seed=2)
    mask = torch.tensor([[True] * 4, [False] * 4, [True] * 4])
    for spoilt, rows in ((q, [True, False, False]), (v, [True, False, True])):
        spoilt[0] = math.nan
        out, weights = attention(q, k, v, mask=mask)
        assert torch.equal(out.isnan(), torch.tensor(rows)[:, None].expand(3, 7))
        assert torch.equal(out[1], torch.zeros(7, dtype=torch.float64))
        assert torch.equal(weights[1], torch.zeros(4, dtype=torch.float64))


def test_large_uneven_rows_stay_exact():
    """A softmax that subtracts one maximum for the whole matrix underflows here."""
    bias = torch.tensor([[1e4, 1e4 - 1], [-1e4, -1e4 - 1], [3e38, 0.0]])
    weights = attention_weights(torch.zeros(3, 1), torch.zeros(2, 1), attn_bias=bias)
    first = 1 / (1 + math.exp(-1))
    expected = torch.tensor([[first, 1 - first], [first, 1 - first], [1.0, 0.0]])
    torch.testing.assert_close(weights, expected)


def test_dropout_leaves_the_returned_weights_alone():
    q, k, v = draw(50, 5), draw(40, 5, seed=1), torch.eye(40, dtype=torch.float64)
    torch.manual_seed(0)
    out, weights = attention(q, k, v, dropout_p=0.25)
    assert torch.equal(weights, attention_weights(q, k))
    left = out != 0  # the values are the identity, so out is the dropped weights
    assert 0.7 < left.double().mean() < 0.8
    torch.testing.assert_close(out[left], weights[left] / 0.75)
    before = torch.get_rng_state()
    assert torch.equal(attention(q, k, v)[0], attention(q, k, v)[0])
    assert torch.equal(torch.get_rng_state(), before)
    nothing, same = attention(q, k, v, dropout_p=1.0)
    assert not nothing.any()
    assert torch.equal(same, weights)


@pytest.mark.parametrize("causal", [False, True])
def test_empty_and_single(causal):
    for T, S in ((0, 3), (3, 0), (1, 1)):
        q, k, v = draw(2, T, 5), draw(2, S, 5), draw(2, S, 7)
        out, weights = attention(q, k, v, causal=causal)
        assert weights.shape == (2, T, S)
        assert torch.equal(out, v if T == S else torch.zeros(2, T, 7, dtype=torch.float64))


def test_runs_on_meta_tensors():
    q, k, v = (torch.empty(2, n, w, device="meta") for n, w in [(3, 5), (4, 5), (4, 7)])
    mask = torch.empty(3, 4, dtype=torch.bool, device="meta")
    bias = torch.empty(3, 4, device="meta")
    out, weights = attention(q, k, v, mask=mask, attn_bias=bias, causal=True)
    assert (out.shape, weights.shape) == ((2, 3, 7), (2, 3, 4))
    assert out.device.type == weights.device.type == "meta"


GOOD = {"q": draw(2, 3, 5), "k": draw(2, 4, 5), "v": draw(2, 4, 7)}
FLOAT32 = {name: x.float() for name, x in GOOD.items()}
MASK = torch.ones(3, 4).bool()
LEADING = r"^q and k must have the same leading axes, got shapes \(2, 3, 5\) and \(1, 4, 5\)$"
ROW_PER_KEY = "^v must have one row per key: the shape of k but for the last axis, got "
ROW_PER_KEY += r"\(2, 3, 7\) for k \(2, 4, 5\)$"
NO_BIAS = r"^attn_bias must not hold NaN or \+inf; -inf closes a cell$"
NUMBERS = "got torch.float32; numbers to add to the scores go through attn_bias$"
KINDS = "one of float64, float32, float16, bfloat16, got torch.int64$"
FIVE = {**dict.fromkeys("qkv", draw(2, 2, 3, 5)), "mask": torch.ones(2, 3, 3).bool()}
BAD = [  # changes to a good call, error, what its message must name
    ({"k": draw(2, 4, 6)}, ValueError, "5 and 6"),
    ({"q": draw(2, 3, 0), "k": draw(2, 4, 0)}, ValueError, "at least 1"),
    ({"k": draw(1, 4, 5), "v": draw(1, 4, 7)}, ValueError, LEADING),
    ({"k": draw(4, 5), "v": draw(4, 7)}, ValueError, r"\(4, 5\)"),
    ({"q": draw(5)}, ValueError, r"two axes, got shape \(5,\)"),
    ({"v": draw(2, 3, 7)}, ValueError, ROW_PER_KEY),
    ({"v": draw(1, 4, 7)}, ValueError, r"\(1, 4, 7\)"),
    ({"q": torch.ones(2, 3, 5).long()}, TypeError, KINDS),
    ({"k": torch.ones(2, 4, 5).long()}, TypeError, "^k must be floating point"),
    ({"v": torch.ones(2, 4, 7).long()}, TypeError, "torch.int64"),
    ({"k": draw(2, 4, 5).float()}, TypeError, "float64 and torch.float32"),
    ({"v": draw(2, 4, 7).float()}, TypeError, "torch.float32"),
    ({"mask": MASK.float()}, TypeError, NUMBERS),
    ({"mask": torch.ones(2, 4).bool()}, ValueError, r"\(3, 4\)"),  # padding
    ({"mask": torch.ones(4).bool()}, ValueError, "write out the missing axes"),
    # (B, T, S) against (B, H, T, S) scores: with B == H broadcasting would take it silently
    (FIVE, ValueError, "^mask must .*write out the missing axes"),
    ({"attn_bias": torch.ones(3, 4).bool()}, TypeError, "torch.bool"),
    ({"attn_bias": draw(3, 4).float()}, TypeError, "torch.float32"),
    ({"attn_bias": draw(4, 3)}, ValueError, r"\(4, 3\)"),
    ({"attn_bias": draw(3, 4) * math.nan}, ValueError, NO_BIAS),
    ({"attn_bias": torch.full((3, 4), INF).double()}, ValueError, r"\+inf"),
    ({"attn_bias": 1.0}, TypeError, "attn_bias must be a tensor, got float"),
    ({"softcap": "1"}, TypeError, "got '1'"),
    ({"softcap": 0.0}, ValueError, "positive and finite .*, at least 2.23e-308, got 0.0$"),
    ({"softcap": INF}, ValueError, "got inf"),
    ({"dropout_p": True}, TypeError, "got True"),
    ({"dropout_p": 1.5}, ValueError, "got 1.5"),
    ({"scale": INF}, ValueError, "finite in torch.float64, got inf"),
    ({**FLOAT32, "scale": 1e39}, ValueError, "finite in torch.float32"),
    ({"scale": "1"}, TypeError, "scale must be a number, got '1'"),
    ({"causal": "False"}, TypeError, "causal must be True or False"),
    ({"q": [[1.0]]}, TypeError, "q must be a tensor, got list"),
    ({"mask": (GOOD["q"] > 0).numpy()}, TypeError, "got ndarray"),
    ({"q": GOOD["q"].to(torch.float8_e4m3fn)}, TypeError, "float8_e4m3fn"),
    ({"k": GOOD["k"].to("meta")}, ValueError, "meta and cpu"),
    ({"v": GOOD["v"].to("meta")}, ValueError, "meta and cpu"),
    ({"mask": MASK.to("meta")}, ValueError, "mask must be on the device of q, got meta and cpu"),
]


@pytest.mark.parametrize(("changes", "error", "message"), BAD)
def test_bad_input_is_named(changes, error, message):
    with pytest.raises(error, match=message) as caught:
        attention(**{**GOOD, **changes})
    # the message names an argument that was wrong, as its first word or in "q and k"
    assert re.match(rf"(q and k|{'|'.join(changes)}) must ", str(caught.value)), caught.value
    if changes.keys() >= {"q", "k", "v"} or not {"v", "dropout_p"} & changes.keys():
        with pytest.raises(error, match=re.escape(str(caught.value))):  # the weights are as strict
            attention_weights(**{n: t for n, t in {**GOOD, **changes}.items() if n != "v"})


# ---------------------------------------------------------------- bugs of other projects


@for_each(
    (torch.float64, 1e6, -1e9),
    (torch.float32, 1e6, -1e9),
    (torch.bfloat16, 1e6, -1e9),
    (torch.float16, 200.0, -1e4),
)
def test_flax_982_no_number_stands_for_minus_infinity(dtype, size, fill):
    """Rows 2.22, A08, B08, C20: a closed key gets nothing, however low the open scores are."""
    q, k = torch.tensor([[size]], dtype=dtype), torch.tensor([[-size], [0.0]], dtype=dtype)
    mask, wanted = torch.tensor([[True, False]]), torch.tensor([[1.0, 0.0]], dtype=dtype)
    additive = to_additive(mask, dtype=dtype)
    for options in ({"mask": mask}, {"attn_bias": additive}, {"mask": mask, "attn_bias": additive}):
        assert torch.equal(attention_weights(q, k, scale=1.0, **options), wanted)
    published = (q @ k.mT).masked_fill(~mask, fill).softmax(-1)
    assert torch.equal(published, 1.0 - wanted)
    if dtype == torch.float16:
        with pytest.raises(RuntimeError, match="overflow"):
            published.masked_fill(~mask, -1e9)


INPUTS = ["q", "k", "v", "attn_bias"]


@pytest.mark.parametrize("softcap", [None, 2.0], ids=["fast", "softcap"])
@pytest.mark.parametrize("wanted", [*[[name] for name in INPUTS], INPUTS])
def test_pytorch_148476_each_gradient_alone(wanted, softcap):
    """Rows 2.30: against finite differences, with an empty row; the bias alone once crashed."""
    given = {"q": draw(1, 2, 3, 2), "k": draw(1, 2, 4, 2, seed=1), "v": draw(1, 2, 4, 3, seed=2)}
    given["attn_bias"] = draw(1, 2, 3, 4, seed=3)
    options = {"mask": torch.tensor([[True, False, True, True], [False] * 4, [True] * 4])}
    options |= {"scale": 0.3, "causal": False, "dropout_p": 0.0}

    def run(*tensors):
        full = {**given, **dict(zip(wanted, tensors, strict=True)), **options}
        return attention(**full, softcap=softcap)[0] if softcap else fused_attention(**full)

    tensors = [given[name].clone().requires_grad_() for name in wanted]
    assert torch.autograd.gradcheck(run, tensors)
    assert not softcap or torch.autograd.gradgradcheck(run, tensors)


@pytest.mark.parametrize(("d_k", "d_v"), [(2, 8), (8, 2), (5, 5), (3, 7)])
def test_the_kernel_scales_by_the_width_of_the_queries(d_k, d_v):
    """Padded to the width of the values, it would choose the scale of that."""
    q, k, v = (draw(2, 3, n, w, seed=w + n) for n, w in [(4, d_k), (5, d_k), (5, d_v)])
    out = fused_attention(q, k, v)
    torch.testing.assert_close(out, attention(q, k, v)[0], atol=1e-12, rtol=0)
