"""The page on attention without the matrix: what its own tables do not ask of its functions.

Large scores, half precision, closed rows, and the kernels of a GPU; `tiled_attention`, `merge` and
`kernel_of` are taken from the page's own cells.
"""

import math

import pages
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tables import for_each

from attn_lib import attention

PAGE = pages.BOOK / "12_without_matrix.ipynb"
IMPORTS = "import math\nimport torch\nfrom torch.autograd.profiler import profile"
CELLS = [pages.sources(PAGE)[f"ch12-code-{n}"] for n in (64, 12, 25, 30)]
OWN = pages.defined_by([IMPORTS, *CELLS])


def drawn(seed, B, H, T, S, d_k, d_v):
    """Queries, keys and values."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((B, H, T, d_k), (B, H, S, d_k), (B, H, S, d_v))
    return [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]


SIZES = st.tuples(*[st.integers(1, most) for most in (2, 3, 23, 29, 5, 7)])


@given(st.integers(0, 2**20), SIZES, st.integers(1, 31), st.booleans())
def test_large_scores_lose_no_digits(seed, sizes, block, causal):
    """Scores up to about 1e4 in single precision, beside one softmax in double precision."""
    q, k, v = (x.float() for x in drawn(seed, *sizes))
    q = 4e3 * q
    out, _ = OWN["tiled_attention"](q, k, v, block=block, causal=causal)
    assert out.dtype == torch.float32
    wide = [x.double() for x in (q, k, v)]
    expected, _ = attention(*wide, causal=causal)
    score = float((wide[0] @ wide[1].mT).abs().amax()) / math.sqrt(sizes[4])
    # a score of s has an error of s · 2⁻²³ or so, and the weights have it relatively
    bound = 16 * max(score, 1.0) * 2**-23 * float(v.abs().amax())
    torch.testing.assert_close(out.double(), expected, atol=bound, rtol=0)


@for_each(torch.float16, torch.bfloat16)
def test_half_precision_is_within_two_rounding_steps(dtype):
    for seed, block in enumerate((1, 3, 8, 50)):
        q, k, v = (x.to(dtype) for x in drawn(seed, 2, 3, 19, 23, 16, 8))
        q = 3 * q
        out, log = OWN["tiled_attention"](q, k, v, block=block, causal=True)
        expected, _ = attention(q.double(), k.double(), v.double(), causal=True)
        assert (out.dtype, log.dtype) == (dtype, torch.float32)
        exponent = expected.abs().clamp(min=torch.finfo(dtype).tiny).log2().floor()
        step = torch.finfo(dtype).eps * 2.0**exponent
        assert float(((out.double() - expected).abs() / step).amax()) <= 2


def test_a_row_that_a_score_closes_gives_zeros_and_no_gradient():
    """Rows that are empty by causality stand on the page."""
    closed = lambda s, i, j: s.masked_fill(i == 2, -math.inf)  # noqa: E731
    inputs = [x.requires_grad_() for x in drawn(0, 2, 1, 6, 6, 4, 3)]
    out, log = OWN["tiled_attention"](*inputs, block=4, score=closed)
    d_q, *others = torch.autograd.grad(out.square().sum(), inputs)
    assert (out[:, :, 2] == 0).all()
    assert (log[:, :, 2] == -math.inf).all()
    assert (d_q[:, :, 2] == 0).all()
    assert all(bool(d.isfinite().all()) for d in (d_q, *others))


def test_a_row_that_is_closed_in_both_shards_stays_zero():
    part = OWN["tiled_attention"](*drawn(0, 1, 2, 13, 6, 4, 3), block=4, causal=True)
    out, lse = OWN["merge"](*part, *part)  # the same keys twice
    torch.testing.assert_close(out, part[0], atol=1e-12, rtol=0)
    assert (lse[:, :, :7] == -math.inf).all()


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


def test_the_kernel_of_the_examples_is_as_short_as_the_page_says():
    source = (pages.BOOK / "examples" / "flash_kernel.py").read_text()
    body = source[source.index("    head = tl.program_id(1)") : source.index("def flash_attention")]
    assert 24 <= len([line for line in body.splitlines() if line.strip()]) <= 29
    assert 'input_precision="ieee"' in body
    assert "triton" not in (pages.ROOT / "requirements.txt").read_text()
