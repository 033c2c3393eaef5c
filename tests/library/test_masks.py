"""Every mask against a loop over pairs of indices, written from the sentence that defines it."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attn_lib import attention, masks

SIZES = [(T, S) for T in range(10) for S in range(10)]
OFFSETS = range(-10, 11)


def by_pairs(T, S, attends):
    table = [[bool(attends(i, j)) for j in range(S)] for i in range(T)]
    return torch.tensor(table, dtype=torch.bool).reshape(T, S)


@pytest.mark.parametrize(("T", "S"), SIZES)
def test_causal(T, S):
    for offset in OFFSETS:
        expected = by_pairs(T, S, lambda i, j, o=offset: j <= i + o)
        assert torch.equal(masks.causal_mask(T, S, offset=offset), expected)
    last = by_pairs(T, S, lambda i, j: j <= i + (S - T))
    assert torch.equal(masks.causal_mask(T, S), last)
    assert torch.equal(masks.causal_mask(T), masks.causal_mask(T, T, offset=0))


@pytest.mark.parametrize(("T", "S"), SIZES)
def test_window(T, S):
    for offset in (*OFFSETS, None):
        start = S - T if offset is None else offset
        for window, right in [(1, 0), (2, 0), (1, 1), (3, 3), (10, 9)]:
            expected = by_pairs(
                T, S, lambda i, j, o=start, w=window, b=right: i + o - w < j <= i + o + b
            )
            got = masks.window_mask(T, S, window=window, right=right, offset=offset)
            assert torch.equal(got, expected)
            assert got.sum(-1).max() <= window + right if T else True


def test_a_window_counts_the_token_itself():
    mask = masks.window_mask(9, window=3)
    assert mask.sum(-1).tolist() == [1, 2, 3, 3, 3, 3, 3, 3, 3]
    assert torch.equal(masks.window_mask(9, window=9), masks.causal_mask(9))


def test_an_offset_for_each_example():
    offsets = torch.tensor([0, 3, -4])
    for made in (masks.causal_mask, partial(masks.window_mask, window=3, right=1)):
        batch = made(2, 5, offset=offsets)
        assert batch.shape == (3, 1, 2, 5)
        for example, offset in zip(batch, offsets.tolist(), strict=True):
            assert torch.equal(example[0], made(2, 5, offset=offset))


@pytest.mark.parametrize("S", range(10))
def test_padding(S):
    lengths = torch.arange(S + 1)
    expected = by_pairs(S + 1, S, lambda length, j: j < length)
    assert torch.equal(masks.padding_mask(lengths, S), expected[:, None, None, :])


def test_padding_does_not_wrap_around_in_small_integers():
    mask = masks.padding_mask(torch.tensor([3, 100], dtype=torch.int8), 200)
    assert mask.sum(-1).flatten().tolist() == [3, 100]


@given(st.lists(st.lists(st.integers(0, 3), min_size=5, max_size=5), min_size=1, max_size=3))
def test_segments(rows):
    got = masks.segment_mask(torch.tensor(rows))
    assert got.shape == (len(rows), 1, 5, 5)
    for row, mask in zip(rows, got, strict=True):
        assert torch.equal(mask[0], by_pairs(5, 5, lambda i, j, r=row: r[i] == r[j]))


@given(st.integers(1, 4), st.integers(1, 6), st.data())
def test_combined_masks_are_and_and_or(B, T, data):
    lengths = torch.tensor(data.draw(st.lists(st.integers(0, T), min_size=B, max_size=B)))
    padding, causal, window = (
        masks.padding_mask(lengths, T),
        masks.causal_mask(T),
        masks.window_mask(T, window=2, right=1),
    )
    both, either = padding & causal & window, causal | window
    for b, length in enumerate(lengths.tolist()):
        expected = by_pairs(T, T, lambda i, j, n=length: j < n and j <= i and abs(i - j) <= 1)
        assert torch.equal(both[b, 0], expected)
    assert torch.equal(either, by_pairs(T, T, lambda i, j: j <= i + 1))


# ---------------------------------------------------------------- conversions


@given(st.integers(1, 3), st.integers(1, 5), st.integers(0, 2**20))
def test_conversions_come_back(B, S, seed):
    mask = torch.rand(B, 1, S, S, generator=torch.Generator().manual_seed(seed)) < 0.5
    assert torch.equal(masks.from_blocked(masks.to_blocked(mask)), mask)
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        additive = masks.to_additive(mask, dtype=dtype)
        assert additive.dtype == dtype
        assert torch.equal(masks.from_additive(additive), mask)
        finite = additive.clamp(min=torch.finfo(dtype).min)
        assert torch.equal(masks.from_additive(finite), mask)
    padding = mask[:, :, :1]
    binary = masks.to_binary(padding)
    assert binary.shape == (B, S)
    assert set(binary.unique().tolist()) <= {0, 1}
    assert torch.equal(masks.from_binary(binary), padding)
    assert torch.equal(masks.from_binary(binary.bool()), padding)


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.integers(0, 2**20))
def test_conversions_mean_the_same_to_the_other_library(B, H, S, seed):
    """The converted mask, given to nn.MultiheadAttention and SDPA, yields our own answer."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(B, S, 2 * H, generator=generator, dtype=torch.float64)
    mask = torch.rand(B, 1, S, S, generator=generator) < 0.5
    mask = mask | torch.eye(S, dtype=torch.bool)  # theirs is not defined on empty rows
    identity = torch.eye(2 * H, dtype=torch.float64)
    theirs = torch.nn.MultiheadAttention(2 * H, H, bias=False, batch_first=True).double()
    theirs.in_proj_weight = torch.nn.Parameter(identity.repeat(3, 1))
    theirs.out_proj.weight = torch.nn.Parameter(identity)
    q = x.unflatten(-1, (H, 2)).transpose(1, 2)
    ours = attention(q, q, q, mask=mask)[0]
    blocked = masks.to_blocked(mask).expand(B, H, S, S).reshape(B * H, S, S)
    got = theirs(x, x, x, attn_mask=blocked, need_weights=False)[0]
    torch.testing.assert_close(got, ours.transpose(1, 2).flatten(-2))
    additive = masks.to_additive(mask, dtype=torch.float64)
    sdpa = torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=additive)
    torch.testing.assert_close(sdpa, ours)
    torch.testing.assert_close(attention(q, q, q, attn_bias=additive)[0], ours)


# ---------------------------------------------------------------- bad input

FLOATS, BOOLS = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool)
BAD = {
    "negative T": (lambda: masks.causal_mask(-1), ValueError, "T=-1"),
    "negative S": (lambda: masks.causal_mask(2, -3), ValueError, "S=-3"),
    "T not whole": (lambda: masks.causal_mask(2.0), TypeError, "T must be an integer, got 2.0"),
    "T a bool": (lambda: masks.causal_mask(True), TypeError, "got True"),
    "offset not whole": (lambda: masks.causal_mask(2, offset=1.0), TypeError, "got 1.0"),
    "offset a bool": (lambda: masks.causal_mask(2, offset=True), TypeError, "got True"),
    "float offsets": (
        lambda: masks.causal_mask(2, offset=torch.ones(2)),
        TypeError,
        "torch.float32",
    ),
    "offsets of two axes": (
        lambda: masks.window_mask(2, window=2, offset=torch.ones(2, 2).long()),
        ValueError,
        r"offset must have 1 axes, got shape \(2, 2\)",
    ),
    "additive a list": (lambda: masks.from_additive([0.0]), TypeError, "got list"),
    "binary a list": (lambda: masks.from_binary([[1]]), TypeError, "^binary must be .* got list"),
    "no window": (lambda: masks.window_mask(3, window=0), ValueError, "window must be at least 1"),
    "negative right": (lambda: masks.window_mask(3, window=2, right=-2), ValueError, "right=-2"),
    "window None": (lambda: masks.window_mask(3, window=None), TypeError, "window must be an int"),
    "lengths a list": (
        lambda: masks.padding_mask([1], 2),
        TypeError,
        "^lengths must be an integer tensor, got list",
    ),
    "float lengths": (lambda: masks.padding_mask(torch.ones(2), 2), TypeError, "torch.float32"),
    "bool lengths": (lambda: masks.padding_mask(BOOLS[0], 3), TypeError, "torch.bool"),
    "lengths of two axes": (
        lambda: masks.padding_mask(BOOLS.long(), 3),
        ValueError,
        r"1 axes, got shape \(2, 3\)",
    ),
    "length above S": (
        lambda: masks.padding_mask(torch.tensor([1, 4]), 3),
        ValueError,
        r"0 to S=3, got \[1, 4\]",
    ),
    "negative length": (
        lambda: masks.padding_mask(torch.tensor([-1]), 3),
        ValueError,
        r"got \[-1\]",
    ),
    "segments of one axis": (
        lambda: masks.segment_mask(torch.tensor([1, 2])),
        ValueError,
        r"^segments must have 2 axes, got shape \(2,\)",
    ),
    "float segments": (lambda: masks.segment_mask(FLOATS), TypeError, "torch.float32"),
    "float to blocked": (
        lambda: masks.to_blocked(FLOATS),
        TypeError,
        "^mask must be a bool tensor, got torch.float32",
    ),
    "float from blocked": (lambda: masks.from_blocked(FLOATS), TypeError, "blocked must be a bool"),
    "float to additive": (lambda: masks.to_additive(FLOATS), TypeError, "^mask must be a bool"),
    "additive of integers": (
        lambda: masks.to_additive(BOOLS, dtype=torch.int64),
        TypeError,
        "got torch.int64",
    ),
    "bool from additive": (lambda: masks.from_additive(BOOLS), TypeError, "torch.bool"),
    "a bias": (lambda: masks.from_additive(torch.tensor([0.0, -3.0])), ValueError, "got -3: such"),
    "minus a billion": (
        lambda: masks.from_additive(torch.tensor([0.0, -1e9])),
        ValueError,
        r"got -1e\+09",
    ),
    "NaN": (lambda: masks.from_additive(torch.tensor([torch.nan])), ValueError, "got nan"),
    "ones": (lambda: masks.from_additive(torch.ones(2)), ValueError, "got 1"),
    "list to blocked": (lambda: masks.to_blocked([True]), TypeError, "got list"),
    "float to binary": (lambda: masks.to_binary(FLOATS), TypeError, "^mask must be a bool"),
    "causal for each example to binary": (
        lambda: masks.to_binary(masks.causal_mask(3)[None, None]),
        ValueError,
        r"got \(1, 1, 3, 3\)",
    ),
    "causal to binary": (
        lambda: masks.to_binary(masks.causal_mask(3)),
        ValueError,
        r"\(B, 1, 1, S\), got \(3, 3\)",
    ),
    "two to binary": (lambda: masks.from_binary(torch.tensor([[2]])), ValueError, "0 and 1, got 2"),
    "one axis from binary": (lambda: masks.from_binary(BOOLS[0]), ValueError, r"got shape \(3,\)"),
    "float from binary": (lambda: masks.from_binary(FLOATS), TypeError, "torch.float32"),
}


def test_masks_are_made_where_their_arguments_are():
    lengths = torch.empty(3, dtype=torch.int64, device="meta")
    segments = torch.empty(3, 4, dtype=torch.int64, device="meta")
    made = [
        masks.padding_mask(lengths, 4),
        masks.causal_mask(2, 4, offset=lengths),
        masks.window_mask(2, 4, window=2, right=1, offset=lengths),
        masks.segment_mask(segments),
        masks.to_additive(masks.padding_mask(lengths, 4)),
        masks.to_binary(masks.padding_mask(lengths, 4)),
    ]
    assert all(mask.device.type == "meta" for mask in made)
    shapes = [(3, 1, 1, 4), (3, 1, 2, 4), (3, 1, 2, 4), (3, 1, 4, 4), (3, 1, 1, 4), (3, 4)]
    assert [tuple(mask.shape) for mask in made] == shapes


@pytest.mark.parametrize("far", [10**6, 2**62, 2**63 - 1])
def test_far_offsets_do_not_wrap_around(far):
    for make in (lambda o: o, lambda o: torch.tensor([o])):
        assert bool(masks.causal_mask(5, 3, offset=make(far)).all())
        assert not bool(masks.causal_mask(5, 3, offset=make(-far - 1)).any())
        for end in (far, -far - 1):
            assert not bool(masks.window_mask(5, 3, window=6, right=5, offset=make(end)).any())


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    call, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call()
