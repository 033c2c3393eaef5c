"""Every mask against a loop over pairs of indices, written from the sentence that defines it."""

import itertools
from functools import partial

import pytest
import torch
from cases import draw, random_mask
from hypothesis import given
from hypothesis import strategies as st
from tables import raises_for_each
from torch import nn

from attn_lib import attention, causal_mask, masks, padding_mask, window_mask
from attn_lib.masks import segment_mask, to_additive, to_binary, to_blocked

SIZES, OFFSETS = range(7), range(-7, 8)


def by_pairs(T, S, attends):
    table = [[bool(attends(i, j)) for j in range(S)] for i in range(T)]
    return torch.tensor(table, dtype=torch.bool).reshape(T, S)


@pytest.mark.parametrize("T", SIZES)
def test_causal(T):
    for S, offset in itertools.product(SIZES, OFFSETS):
        expected = by_pairs(T, S, lambda i, j, o=offset: j <= i + o)
        assert torch.equal(causal_mask(T, S, offset=offset), expected)
        if offset == S - T:
            assert torch.equal(causal_mask(T, S), expected)
    assert torch.equal(causal_mask(T), causal_mask(T, T, offset=0))


@pytest.mark.parametrize("T", SIZES)
def test_window(T):
    for S, offset in itertools.product(SIZES, (*OFFSETS, None)):
        start = S - T if offset is None else offset
        for window, right in [(1, 0), (2, 0), (1, 1), (3, 3), (7, 6)]:
            expected = by_pairs(
                T, S, lambda i, j, o=start, w=window, b=right: i + o - w < j <= i + o + b
            )
            found = window_mask(T, S, window=window, right=right, offset=offset)
            assert torch.equal(found, expected)
            assert found.sum(-1).max() <= window + right if T else True


def test_an_offset_for_each_example():
    offsets = torch.tensor([0, 3, -4])
    for made in (causal_mask, partial(window_mask, window=3, right=1)):
        batch = made(2, 5, offset=offsets)
        assert batch.shape == (3, 1, 2, 5)
        for example, offset in zip(batch, offsets.tolist(), strict=True):
            assert torch.equal(example[0], made(2, 5, offset=offset))


@pytest.mark.parametrize("S", SIZES)
def test_padding(S):
    lengths = torch.arange(S + 1)
    expected = by_pairs(S + 1, S, lambda length, j: j < length)
    assert torch.equal(padding_mask(lengths, S), expected[:, None, None, :])


def test_padding_does_not_wrap_around_in_small_integers():
    mask = padding_mask(torch.tensor([3, 100], dtype=torch.int8), 200)
    assert mask.sum(-1).flatten().tolist() == [3, 100]


@given(st.lists(st.lists(st.integers(0, 3), min_size=5, max_size=5), min_size=1, max_size=3))
def test_segments(rows):
    found = segment_mask(torch.tensor(rows))
    assert found.shape == (len(rows), 1, 5, 5)
    for row, mask in zip(rows, found, strict=True):
        assert torch.equal(mask[0], by_pairs(5, 5, lambda i, j, r=row: r[i] == r[j]))


# ---------------------------------------------------------------- conversions


@given(st.integers(1, 3), st.integers(1, 5), st.integers(0, 2**20))
def test_conversions_come_back(B, S, seed):
    mask = torch.rand(B, 1, S, S, generator=torch.Generator().manual_seed(seed)) < 0.5
    assert torch.equal(masks.from_blocked(to_blocked(mask)), mask)
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        additive = to_additive(mask, dtype=dtype)
        assert additive.dtype == dtype
        assert torch.equal(masks.from_additive(additive), mask)
        finite = additive.clamp(min=torch.finfo(dtype).min)
        assert torch.equal(masks.from_additive(finite), mask)
    padding = mask[:, :, :1]
    binary = to_binary(padding)
    assert binary.shape == (B, S)
    assert set(binary.unique().tolist()) <= {0, 1}
    assert torch.equal(masks.from_binary(binary), padding)
    assert torch.equal(masks.from_binary(binary.bool()), padding)


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.integers(0, 2**20))
def test_conversions_mean_the_same_to_the_other_library(B, H, S, seed):
    """The converted mask, given to nn.MultiheadAttention and SDPA, yields our own answer."""
    x, mask = draw(B, S, 2 * H, seed=seed), random_mask(B, 1, S, S, seed=seed)
    mask = mask | torch.eye(S, dtype=torch.bool)  # PyTorch's is not defined on empty rows
    identity = torch.eye(2 * H, dtype=torch.float64)
    layer = nn.MultiheadAttention(2 * H, H, bias=False, batch_first=True).double()
    layer.in_proj_weight = nn.Parameter(identity.repeat(3, 1))
    layer.out_proj.weight = nn.Parameter(identity)
    q = x.unflatten(-1, (H, 2)).transpose(1, 2)
    expected = attention(q, q, q, mask=mask)[0]
    blocked = to_blocked(mask).expand(B, H, S, S).reshape(B * H, S, S)
    found = layer(x, x, x, attn_mask=blocked, need_weights=False)[0]
    torch.testing.assert_close(found, expected.transpose(1, 2).flatten(-2))
    additive = to_additive(mask, dtype=torch.float64)
    sdpa = nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=additive)
    torch.testing.assert_close(sdpa, expected)
    torch.testing.assert_close(attention(q, q, q, attn_bias=additive)[0], expected)


# ---------------------------------------------------------------- bad input

FLOATS, BOOLS = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool)
ONES, TWO_AXES = torch.ones(2, 2).long(), r"offset must have 1 axes, got shape \(2, 2\)"


def test_masks_are_made_where_their_arguments_are():
    lengths = torch.empty(3, dtype=torch.int64, device="meta")
    segments = torch.empty(3, 4, dtype=torch.int64, device="meta")
    made = [
        padding_mask(lengths, 4),
        causal_mask(2, 4, offset=lengths),
        window_mask(2, 4, window=2, right=1, offset=lengths),
        segment_mask(segments),
        to_additive(padding_mask(lengths, 4)),
        to_binary(padding_mask(lengths, 4)),
    ]
    assert all(mask.device.type == "meta" for mask in made)
    shapes = [(3, 1, 1, 4), (3, 1, 2, 4), (3, 1, 2, 4), (3, 1, 4, 4), (3, 1, 1, 4), (3, 4)]
    assert [tuple(mask.shape) for mask in made] == shapes


@pytest.mark.parametrize("far", [10**6, 2**62, 2**63 - 1])
def test_far_offsets_do_not_wrap_around(far):
    for make in (lambda o: o, lambda o: torch.tensor([o])):
        assert bool(causal_mask(5, 3, offset=make(far)).all())
        assert not bool(causal_mask(5, 3, offset=make(-far - 1)).any())
        for end in (far, -far - 1):
            assert not bool(window_mask(5, 3, window=6, right=5, offset=make(end)).any())


@raises_for_each(
    (lambda: causal_mask(2, -3), ValueError, "S=-3"),
    (lambda: causal_mask(2.0), TypeError, "T must be an integer, got 2.0"),
    (lambda: causal_mask(2, offset=1.0), TypeError, "got 1.0"),
    (lambda: causal_mask(2, offset=True), TypeError, "got True"),
    (lambda: causal_mask(2, offset=torch.ones(2)), TypeError, "torch.float32"),
    (lambda: window_mask(2, window=2, offset=ONES), ValueError, TWO_AXES),
    (lambda: masks.from_additive([0.0]), TypeError, "got list"),
    (lambda: masks.from_binary([[1]]), TypeError, "^binary must be .* got list"),
    (lambda: padding_mask([1], 2), TypeError, "^lengths must be an integer tensor, got list"),
    (lambda: padding_mask(BOOLS[0], 3), TypeError, "torch.bool"),
    (lambda: padding_mask(BOOLS.long(), 3), ValueError, r"1 axes, got shape \(2, 3\)"),
    (lambda: padding_mask(torch.tensor([1, 4]), 3), ValueError, r"0 to S=3, got \[1, 4\]"),
    (lambda: padding_mask(torch.tensor([-1]), 3), ValueError, r"got \[-1\]"),
    (lambda: segment_mask(ONES[0]), ValueError, r"^segments must have 2 axes, got shape \(2,\)"),
    (lambda: segment_mask(FLOATS), TypeError, "torch.float32"),
    (lambda: to_blocked(FLOATS), TypeError, "^mask must be a bool tensor, got torch.float32"),
    (lambda: masks.from_blocked(FLOATS), TypeError, "blocked must be a bool"),
    (lambda: to_additive(FLOATS), TypeError, "^mask must be a bool"),
    (lambda: to_additive(BOOLS, dtype=torch.int64), TypeError, "got torch.int64"),
    (lambda: masks.from_additive(BOOLS), TypeError, "torch.bool"),
    (lambda: masks.from_additive(torch.tensor([0.0, -3.0])), ValueError, "got -3: such"),
    (lambda: masks.from_additive(torch.tensor([0.0, -1e9])), ValueError, r"got -1e\+09"),
    (lambda: masks.from_additive(torch.tensor([torch.nan])), ValueError, "got nan"),
    (lambda: masks.from_additive(torch.ones(2)), ValueError, "got 1"),
    (lambda: to_binary(FLOATS), TypeError, "^mask must be a bool"),
    (lambda: to_binary(causal_mask(3)[None, None]), ValueError, r"got \(1, 1, 3, 3\)"),
    (lambda: to_binary(causal_mask(3)), ValueError, r"\(B, 1, 1, S\), got \(3, 3\)"),
    (lambda: masks.from_binary(torch.tensor([[2]])), ValueError, "0 and 1, got 2"),
    (lambda: masks.from_binary(BOOLS[0]), ValueError, r"got shape \(3,\)"),
)
def test_bad_input_is_named(call):
    call()
