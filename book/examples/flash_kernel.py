"""Attention without the matrix, as a Triton kernel of 25 lines, compared with PyTorch's.

It is the loop of the page on attention without the matrix, with one program for each block of
queries of each head. On a machine without a GPU, Triton's interpreter runs it as NumPy:

    pip install --no-deps triton==3.9.0
    TRITON_INTERPRET=1 python book/examples/flash_kernel.py

With a GPU, leave TRITON_INTERPRET away. It needs torch and triton, and nothing of this book.
"""

import math
import os

import torch
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def flash(q, k, v, out, T, S, scale, CAUSAL: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    """One block of queries of one head, against all keys that they may attend to."""
    head = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = rows[:, None] * D + tl.arange(0, D)  # (BLOCK, D): where these queries are
    queries = tl.load(q + head * T * D + at, mask=rows[:, None] < T, other=0.0)
    m = tl.full((BLOCK,), -float("inf"), tl.float32)  # running maximum
    total = tl.zeros((BLOCK,), tl.float32)  # running sum
    mixed = tl.zeros((BLOCK, D), tl.float32)  # running sum of values
    last = tl.minimum(S, (tl.program_id(0) + 1) * BLOCK + S - T) if CAUSAL else S
    for start in range(0, last, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        there = head * S * D + cols[:, None] * D + tl.arange(0, D)
        keys = tl.load(k + there, mask=cols[:, None] < S, other=0.0)
        values = tl.load(v + there, mask=cols[:, None] < S, other=0.0)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        closed = cols[None, :] >= S
        if CAUSAL:
            closed = closed | (cols[None, :] > rows[:, None] + S - T)
        scores = tl.where(closed, -float("inf"), scores)
        new = tl.maximum(m, tl.max(scores, 1))
        base = tl.where(new == -float("inf"), 0.0, new)  # -inf - (-inf) is NaN
        old, m = tl.exp(m - base), new
        w = tl.exp(scores - base[:, None])
        total = total * old + tl.sum(w, 1)
        mixed = mixed * old[:, None] + tl.dot(w.to(values.dtype), values, input_precision="ieee")
    done = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(out + head * T * D + at, done.to(out.dtype.element_ty), mask=rows[:, None] < T)


def flash_attention(q, k, v, *, causal=False, block=64):
    """softmax(q kᵀ / √D) v; q: (B, H, T, D), k and v: (B, H, S, D), D a power of two.

    Under ``causal`` the queries are the last T of the S positions; a row that may attend to
    nothing gives zeros.
    """
    B, H, T, D = q.shape
    S = k.shape[2]
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    out = torch.empty_like(q)
    programs = (triton.cdiv(T, block), B * H)
    flash[programs](q, k, v, out, T, S, 1 / math.sqrt(D), CAUSAL=causal, D=D, BLOCK=block)
    return out


def largest_difference(B, H, T, S, D, *, causal, block, dtype=torch.float32, device="cpu"):
    """From PyTorch's kernel, which is given the same numbers in double precision."""
    torch.manual_seed(0)
    q = torch.randn(B, H, T, D, device=device).to(dtype)
    k, v = torch.randn(2, B, H, S, D, device=device).to(dtype)
    mask = torch.ones(T, S, dtype=torch.bool, device=device)
    mask = mask.tril(S - T) if causal else mask
    wide = [x.double() for x in (q, k, v)]
    expected = F.scaled_dot_product_attention(*wide, attn_mask=mask)
    expected = expected.masked_fill(~mask.any(1)[:, None], 0.0)  # no key: zeros
    out = flash_attention(q, k, v, causal=causal, block=block)
    return (out - expected).abs().max().item()


def main():
    """Five shapes, each with something that a kernel gets wrong easily."""
    device = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
    print("B  H    T    S   D  block  causal  largest difference")
    worst = 0.0
    for B, H, T, S, D, block, causal in [
        (1, 1, 64, 64, 16, 16, False),  # whole blocks
        (2, 3, 50, 50, 16, 16, True),  # a ragged end
        (1, 2, 5, 75, 32, 32, True),  # five new queries after a cache of seventy
        (1, 2, 70, 33, 64, 16, True),  # 37 queries that may attend to nothing
        (1, 1, 37, 101, 64, 64, False),
    ]:
        found = largest_difference(B, H, T, S, D, causal=causal, block=block, device=device)
        print(f"{B}  {H}  {T:3}  {S:3}  {D:2}  {block:5}  {causal!s:6}  {found:.1e}")
        worst = max(worst, found)
    if not worst <= 1e-6:
        raise SystemExit("differs from PyTorch's kernel by more than 1e-6")


if __name__ == "__main__":
    main()
