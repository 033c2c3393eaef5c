"""The page on attention without the matrix: its functions, at more sizes than it has time for.

`tiled_attention`, `Recomputed`, `merge` and `most_memory` are taken from the page's own cells.
"""

import math

import pages
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import for_each

from attn_lib import attention

PAGE = pages.BOOK / "12_without_matrix.ipynb"
IMPORTS = """import math
from itertools import accumulate
import torch
import torch.nn.functional as F
from torch.autograd.profiler import profile
"""
CELLS = (
    "ch12-code-64",
    "ch12-code-12",
    "ch12-code-18",
    "ch12-code-21",
    "ch12-code-25",
    "ch12-code-30",
)


def run(*changes: tuple[str, str]) -> dict:
    return pages.defined_by([IMPORTS, *(pages.sources(PAGE)[name] for name in CELLS)], *changes)


OWN = run()


def drawn(seed, *sizes, dtype=torch.float64, spread=1.0):
    """Queries, keys and values of (B, H, T, S, d_k, d_v)."""
    B, H, T, S, d_k, d_v = sizes
    generator = torch.Generator().manual_seed(seed)
    shapes = ((B, H, T, d_k), (B, H, S, d_k), (B, H, S, d_v))
    made = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    made[0] = made[0] * spread
    return [x.to(dtype).requires_grad_() for x in made]


def gradients(out, inputs):
    generator = torch.Generator().manual_seed(1)
    way = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype)
    return torch.autograd.grad(out, inputs, way)


def largest(ones, others):
    """The largest difference; NaN where there is one."""
    pairs = zip(ones, others, strict=True)
    found = [(a - b).detach().abs().amax() for a, b in pairs if a.numel()]
    return float(torch.stack(found).amax()) if found else 0.0


SIZES = st.tuples(
    st.integers(1, 2),
    st.integers(1, 3),
    st.integers(1, 23),
    st.integers(1, 29),
    st.integers(1, 5),
    st.integers(1, 7),
)


def judged(page, seed, sizes, block, causal, spread=1.0):
    """How far the output, the log-sum-exp and both ways to gradients are from `attention`."""
    inputs = drawn(seed, *sizes, spread=spread)
    q, k, _ = inputs
    expected, _ = attention(*inputs, causal=causal)
    out, log = page["tiled_attention"](*inputs, block=block, causal=causal)
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        T, S = scores.shape[-2:]
        scores = scores.masked_fill(~torch.ones(T, S).tril(S - T).bool(), -math.inf)
    whole = scores.logsumexp(-1, keepdim=True)
    is_open = whole.isfinite()
    off = [largest([out], [expected]), largest([log[is_open]], [whole[is_open]])]
    assert bool((log[~is_open] == -math.inf).all())
    kept = page["Recomputed"].apply(*inputs, block, causal)
    right = gradients(expected, inputs)
    off.append(largest([kept], [expected]))
    off += [largest(gradients(made, inputs), right) for made in (out, kept)]
    return off


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**20), SIZES, st.integers(1, 31), st.booleans())
def test_tiles_of_any_size_are_attention(seed, sizes, block, causal):
    """Output, log-sum-exp and gradients, in double precision; some rows are empty."""
    off = judged(OWN, seed, sizes, block, causal)
    assert max(off) <= 1e-12  # NaN is not
    assert not any(map(math.isnan, off))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**20), SIZES, st.integers(1, 31), st.booleans())
def test_large_scores_lose_no_digits(seed, sizes, block, causal):
    """Scores up to about 1e4, beside a reference that is one softmax in double precision."""
    with torch.no_grad():
        q, k, v = drawn(seed, *sizes, spread=4e3)
        out, _ = OWN["tiled_attention"](q, k, v, block=block, causal=causal)
        expected, _ = attention(q, k, v, causal=causal)
        size = expected.abs().amax().clamp(min=1.0)
        assert float((out - expected).abs().amax() / size) <= 1e-9
    low = [x.detach().float() for x in (q, k, v)]
    wide = [x.double() for x in low]
    out, _ = OWN["tiled_attention"](*low, block=block, causal=causal)
    assert out.dtype == torch.float32
    assert out.isfinite().all()
    expected, _ = attention(*wide, causal=causal)
    scores = (wide[0] @ wide[1].mT).abs().amax() / math.sqrt(sizes[4])
    # a score of s has an error of s · 2⁻²³ or so, and the weights have it relatively
    bound = 16 * float(scores.clamp(min=1.0)) * 2**-23 * float(wide[2].abs().amax())
    assert largest([out.double()], [expected]) <= bound


@for_each((torch.float16,), (torch.bfloat16,))
def test_half_precision_is_within_two_rounding_steps(dtype):
    for seed, block in enumerate((1, 3, 8, 50)):
        q, k, v = (x.detach() for x in drawn(seed, 2, 3, 19, 23, 16, 8, dtype=dtype, spread=3.0))
        out, log = OWN["tiled_attention"](q, k, v, block=block, causal=True)
        expected, _ = attention(q.double(), k.double(), v.double(), causal=True)
        assert (out.dtype, log.dtype) == (dtype, torch.float32)
        exponent = expected.abs().clamp(min=torch.finfo(dtype).tiny).log2().floor()
        step = torch.finfo(dtype).eps * 2.0**exponent
        assert float(((out.double() - expected).abs() / step).amax()) <= 2


@for_each((1,), (4,), (9,), (40,))
def test_empty_rows_give_zeros_and_no_gradient(block):
    """By causality, and by a score function that closes everything to one query."""
    inputs = drawn(0, 2, 1, 13, 6, 4, 3)
    ways = [OWN["tiled_attention"](*inputs, block=block, causal=True)[0]]
    ways.append(OWN["Recomputed"].apply(*inputs, block, True))
    for out in ways:
        assert (out[:, :, :7] == 0).all()
        assert (out[:, :, 7:] != 0).all()
        d_q, d_k, d_v = gradients(out, inputs)
        assert (d_q[:, :, :7] == 0).all()
        assert all(bool(d.isfinite().all()) for d in (d_q, d_k, d_v))
    closed = lambda s, i, j: s.masked_fill(i == 2, -math.inf)  # noqa: E731
    inputs = drawn(0, 2, 1, 6, 6, 4, 3)
    out, log = OWN["tiled_attention"](*inputs, block=block, score=closed)
    d_q, d_k, d_v = gradients(out, inputs)
    assert (out[:, :, 2] == 0).all()
    assert (log[:, :, 2] == -math.inf).all()
    assert (d_q[:, :, 2] == 0).all()
    assert all(bool(d.isfinite().all()) for d in (d_q, d_k, d_v))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**20), SIZES, st.integers(1, 31), st.integers(0, 29))
def test_shards_merge(seed, sizes, block, cut):
    with torch.no_grad():
        q, k, v = drawn(seed, *sizes)
        cut = min(cut, sizes[3])  # a shard may be empty, as a cache is at first
        whole, log = OWN["tiled_attention"](q, k, v, block=block)
        first = OWN["tiled_attention"](q, k[:, :, :cut], v[:, :, :cut], block=block)
        second = OWN["tiled_attention"](q, k[:, :, cut:], v[:, :, cut:], block=block)
        for a, b in ((first, second), (second, first)):
            out, joined = OWN["merge"](*a, *b)
            assert largest([out, joined], [whole, log]) <= 1e-12


def test_a_row_that_is_closed_in_both_shards_stays_zero():
    q, k, v = (x.detach() for x in drawn(0, 1, 2, 13, 6, 4, 3))
    part = OWN["tiled_attention"](q, k, v, block=4, causal=True)
    out, lse = OWN["merge"](*part, *part)  # the same keys twice
    assert largest([out], [part[0]]) <= 1e-12
    assert (lse[:, :, :7] == -math.inf).all()
    guard = ("lse.masked_fill(lse == -math.inf, 0)  # empty rows\n    share_a", "lse\n    share_a")
    assert run(guard)["merge"](*part, *part)[0].isnan().any()


def test_the_least_memory_is_seen_from_inside_pytorch_too():
    """What the profiler adds up is what a tensor of known size takes."""
    assert OWN["most_memory"](lambda: [torch.ones(1000)]) == 0
    seen = OWN["most_memory"](lambda: [torch.ones(1000).sum()])
    assert 0.004 <= seen <= 0.0042
    q = torch.ones(1024, 16)
    assert OWN["most_memory"](lambda: [(q @ q.mT).sum(-1)]) >= 1024 * 1024 * 4 / 1e6


# ---------------------------------------------------------------- mistakes, planted

MISTAKES = {
    "the factor is turned round": [("rescale = torch.exp(m - base)", "rescale = (base - m).exp()")],
    "the denominator of the last tile only": [("total = total * rescale +", "total =")],
    "the ragged end of the queries is lost": [
        ("result = q.new_empty(", "result = q.new_zeros("),
        ("in torch.arange(T).split(block):", "in torch.arange(T - T % block).split(block):"),
    ],
    "the base of a row without keys": [("new.masked_fill(new == -math.inf, 0)", "new")],
    "tiles are skipped one too early": [
        ("if causal and j[0] > i[-1]:", "if causal and j[-1] > i[-1]:")
    ],
    "queries stand first, not last": [
        ("i = rows[:, None] + S - T", "i = rows[:, None]"),
        ("rows, :], rows[:, None] + S - T", "rows, :], rows[:, None]"),
    ],
    "the log-sum-exp without the maximum": [("= m + total.log()", "= total.log()")],
    "backward: the mean is left out": [("d_w - mean[..., rows, :]", "d_w")],
    "backward: only the last tile's queries": [("d_q[..., rows, :] +=", "d_q[..., rows, :] =")],
    "backward: no guard for empty rows": [
        ("lse = lse.masked_fill(lse == -math.inf, 0)", "lse = lse"),
        ("base = lse.masked_fill(lse == -math.inf, 0)", "base = lse"),
    ],
}
# shapes at which each is seen: rising scores, ragged ends, more queries than keys
SHAPES = [((2, 2, 11, 11, 4, 3), 3), ((1, 2, 4, 13, 3, 2), 5), ((1, 1, 12, 7, 3, 3), 4)]


def is_seen(name) -> bool:
    """Whether a planted mistake raises, or gives an error above the bound."""
    page = run(*MISTAKES[name])
    worst = 0.0
    for seed, (sizes, block) in enumerate(SHAPES):
        for causal, spread in ((False, 1.0), (True, 1.0), (True, 1e3)):
            try:
                off = judged(page, seed, sizes, block, causal, spread)
            except (AssertionError, RuntimeError):
                return True
            worst = math.nan if any(map(math.isnan, off)) else max(worst, *off)
            if not worst <= 1e-6:
                return True
    return False


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_seen(name):
    assert is_seen(name)


@for_each(
    ("torch.logaddexp(lse_a, lse_b)", "torch.maximum(lse_a, lse_b)"),
    ("share_b = torch.exp(lse_b - base)", "share_b = torch.exp(lse_b)"),
)
def test_a_wrong_merge_is_seen(old, new):
    page = run((old, new))
    q, k, v = (x.detach() for x in drawn(0, 1, 2, 5, 12, 4, 3))
    whole, log = page["tiled_attention"](q, k, v, block=4)
    parts = [page["tiled_attention"](q, k[:, :, a], v[:, :, a], block=4)
             for a in (slice(0, 4), slice(4, 12))]  # fmt: skip
    out, joined = page["merge"](*parts[0], *parts[1])
    assert largest([out, joined], [whole, log]) > 0.01


# ---------------------------------------------------------------- which kernel


GPU_OPERATORS = {
    "flash": ("_scaled_dot_product_flash_attention", ()),
    "efficient": ("_scaled_dot_product_efficient_attention", (None, False)),
    "cuDNN": ("_scaled_dot_product_cudnn_attention", (None, False)),
}


@pytest.mark.parametrize("kernel", GPU_OPERATORS)
def test_the_kernels_of_a_gpu_are_known_by_name(kernel):
    """PyTorch's own operators, on tensors without values: what the profiler calls them."""
    q = torch.empty(1, 2, 16, 8, device="meta", dtype=torch.float16)
    name, more = GPU_OPERATORS[kernel]
    call = lambda: getattr(torch.ops.aten, name)(q, q, q, *more)  # noqa: E731
    assert OWN["kernel_of"](call) == kernel
    assert OWN["kernel_of"](lambda: q @ q.mT) == "unknown"


def test_the_kernel_takes_larger_tiles_from_768_queries_on():
    """So says the page of the step in its figure of memory."""

    def memory(n):
        q, k, v = torch.randn(3, 1, 1, n, 64).requires_grad_().unbind()
        attend = lambda: [F.scaled_dot_product_attention(q, k, v, is_causal=True)]  # noqa: E731
        return OWN["most_memory"](attend)

    assert memory(767) < 1.5 * memory(700)
    assert memory(768) > 2 * memory(767)


def test_the_kernel_of_the_examples_is_as_short_as_the_page_says():
    source = (pages.BOOK / "examples" / "flash_kernel.py").read_text()
    body = source[source.index("    head = tl.program_id(1)") : source.index("def flash_attention")]
    assert 24 <= len([line for line in body.splitlines() if line.strip()]) <= 29
    assert 'input_precision="ieee"' in body
    assert "triton" not in (pages.ROOT / "requirements.txt").read_text()
