"""The page on attention without the matrix: its functions, at more sizes than it has time for.

`tiled_attention`, `Recomputed`, `merge` and `most_memory` are taken from the page's own cells.
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
IMPORTS = """import math
from itertools import accumulate
import torch
import torch.nn.functional as F
from torch.autograd.profiler import profile
"""
CELLS = [f"ch12-code-{n}" for n in (64, 12, 18, 21, 25, 30)]


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


SIZES = st.tuples(*[st.integers(1, most) for most in (2, 3, 23, 29, 5, 7)])


def judged(page, seed, sizes, block, causal):
    """How far the output, the log-sum-exp and both ways to gradients are from `attention`."""
    inputs = drawn(seed, *sizes)
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


@given(st.integers(0, 2**20), SIZES, st.integers(1, 31), st.booleans())
def test_tiles_of_any_size_are_attention(seed, sizes, block, causal):
    """Output, log-sum-exp and gradients, in double precision; some rows are empty."""
    off = judged(OWN, seed, sizes, block, causal)
    assert max(off) <= 1e-12  # NaN is not
    assert not any(map(math.isnan, off))


@given(st.integers(0, 2**20), SIZES, st.integers(1, 31), st.booleans())
@torch.no_grad()
def test_large_scores_lose_no_digits(seed, sizes, block, causal):
    """Scores up to about 1e4 in single precision, beside one softmax in double precision."""
    low = [x.float() for x in drawn(seed, *sizes, spread=4e3)]
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


def test_a_row_that_a_score_closes_gives_zeros_and_no_gradient():
    """Rows that are empty by causality stand among the sizes above."""
    closed = lambda s, i, j: s.masked_fill(i == 2, -math.inf)  # noqa: E731
    inputs = drawn(0, 2, 1, 6, 6, 4, 3)
    out, log = OWN["tiled_attention"](*inputs, block=4, score=closed)
    d_q, d_k, d_v = gradients(out, inputs)
    assert (out[:, :, 2] == 0).all()
    assert (log[:, :, 2] == -math.inf).all()
    assert (d_q[:, :, 2] == 0).all()
    assert all(bool(d.isfinite().all()) for d in (d_q, d_k, d_v))


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


@for_each(
    ("out = out * rescale + powers", "out = out + powers"),
    ("d_w - mean[..., rows, :]", "d_w"),
)
def test_a_mistake_in_either_pass_is_seen(old, new):
    assert max(judged(run((old, new)), 0, (2, 2, 11, 11, 4, 3), block=3, causal=True)) > 1e-6


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
