"""Mistakes that are named although other things stand beside them."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attn_lib import diagnose

pytestmark = pytest.mark.usefixtures("one_thread")


def allowed(q, k):
    """Earlier keys, the queries being the last."""
    T, S = q.shape[-2], k.shape[-2]
    return torch.ones(T, S, dtype=torch.bool).tril(S - T)


def by_torch(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed(q, k))


def by_hand(q, k, v):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return scores.masked_fill(~allowed(q, k), -math.inf).softmax(-1) @ v


def unscaled(q, k, v):
    return by_torch(q * q.shape[-1] ** 0.5, k, v)


def side_by_side(attend, transposed, heads=4):
    """Heads side by side; merged without a transpose, or with one."""

    def mine(q, k, v):
        q, k, v = (x.unflatten(2, (heads, -1)).transpose(1, 2) for x in (q, k, v))
        out = attend(q, k, v)
        return (out.transpose(1, 2) if transposed else out).reshape(len(q), q.shape[2], -1)

    return mine


# ---------------------------------------------------------------- rows without a key


@pytest.mark.parametrize("attend", [by_torch, by_hand])
def test_a_wrong_merge_whatever_rows_without_a_key_give(attend):
    """Zeros of torch, or NaN: the merge moves them into other rows."""
    report = diagnose(side_by_side(attend, False), causal=True, heads=4)
    assert report.mistakes == ["heads_merged_without_transpose"]
    assert diagnose(side_by_side(attend, True), causal=True, heads=4).ok


def test_a_wrong_merge_beside_another_mistake_and_rows_without_a_key():
    report = diagnose(side_by_side(unscaled, False), causal=True, heads=4)
    assert sorted(report.mistakes) == ["heads_merged_without_transpose", "scale_missing"]


# ---------------------------------------------------------------- two mistakes, each with evidence


def by_d_k(q, k, v):
    return (q @ k.mT / q.shape[-1]).softmax(-1) @ v


def test_each_of_two_mistakes_is_shown_where_it_matters():
    found = {f.mistake: f.example for f in diagnose(by_d_k, causal=True).failures}
    assert set(found) == {"causal_missing", "scale_by_d_k"}
    assert found["scale_by_d_k"].startswith("1 query and 6 keys;")
    words, numbers = found["causal_missing"].splitlines()[0], found["causal_missing"].split("[")[1:]
    assert words.startswith("3 positions;")
    assert "position 2" not in words  # the last query may attend to all
    assert numbers != found["scale_by_d_k"].split("[")[1:]


class Packed(nn.Module):
    """A layer of one packed projection: its merge, its mask and its scale may be wrong."""

    def __init__(self, transposed=True, masked=True, scaled=True, width=48, heads=3):
        super().__init__()
        torch.manual_seed(0)
        self.n_head, self.transposed, self.masked, self.scaled = heads, transposed, masked, scaled
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        B, T, C = x.shape
        parts = self.c_attn(x).split(C, dim=2)
        q, k, v = (y.view(B, T, self.n_head, -1).transpose(1, 2) for y in parts)
        q = q if self.scaled else q * q.shape[-1] ** 0.5
        out = F.scaled_dot_product_attention(q, k, v, is_causal=self.masked)
        out = out.transpose(1, 2) if self.transposed else out
        return self.c_proj(out.reshape(B, T, C))


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ({"transposed": False}, ["heads_merged_without_transpose"]),
        ({"masked": False}, ["causal_missing"]),
        (
            {"transposed": False, "masked": False},
            ["causal_missing", "heads_merged_without_transpose"],
        ),
        (
            {"transposed": False, "scaled": False},
            ["heads_merged_without_transpose", "scale_missing"],
        ),
        ({"masked": False, "scaled": False}, ["causal_missing", "scale_missing"]),
    ],
)
def test_two_mistakes_of_a_layer_in_one_call(wrong, names):
    assert diagnose(Packed(**wrong), causal=True).mistakes == names
    assert diagnose(Packed(), causal=True).ok


# ---------------------------------------------------------------- heads that nobody mentioned


def grouped(repeat):
    def mine(q, k, v):
        k, v = (repeat(x, q.shape[1] // k.shape[1]) for x in (k, v))
        return by_torch(q, k, v)

    return mine


interleaved = grouped(lambda x, n: x.repeat_interleave(n, dim=1))
tiled = grouped(lambda x, n: x.repeat(1, n, 1, 1))


def test_grouped_heads_that_nobody_mentioned_are_not_passed_over():
    report = diagnose(tiled, causal=True)
    assert report.ok, report
    assert any("fewer key heads than query heads" in text for text in report.unchecked)
    held = diagnose(interleaved, causal=True)
    assert "equal to the reference with 4 query heads and 2 key heads" in held.holds
    assert not any("key heads" in text for text in held.unchecked)
    for fn in (by_hand, F.scaled_dot_product_attention):  # they refuse them
        assert "key heads" not in str(diagnose(fn))


@pytest.mark.parametrize("kv_heads", [1, 2, 3])
def test_key_heads_are_enough_said(kv_heads):
    report = diagnose(interleaved, causal=True, kv_heads=kv_heads)
    assert report.ok, report
    assert f"there are {2 * kv_heads} heads, as heads= is not said" in report.assumed
    if kv_heads > 1:
        assert diagnose(tiled, causal=True, kv_heads=kv_heads).mistakes == ["kv_heads_tiled"]
    with pytest.raises(ValueError, match="heads must be a multiple of kv_heads, got 4 and 3"):
        diagnose(tiled, heads=4, kv_heads=3)


def leaks_late(q, k, v):
    n = k.shape[-2]
    return by_hand(q, k, v) if n <= 200 else F.scaled_dot_product_attention(q, k, v)


def test_the_longest_length_is_said():
    assert "more than 133 keys" in diagnose(leaks_late, causal=True).unchecked
    assert "more than 70 keys" in diagnose(Packed(), causal=True).unchecked


def own(q, k, v, H):
    """Heads are split by a view."""
    B, T, width = q.shape
    q, k, v = (x.reshape(B, H, -1, width // H) for x in (q, k, v))
    return ((q @ k.mT / (width // H) ** 0.5).softmax(-1) @ v).reshape(B, T, width)


def own_right(q, k, v, n_heads):
    return side_by_side(F.scaled_dot_product_attention, True, n_heads)(q, k, v)


def with_default(q, k, v, H=4):
    return side_by_side(F.scaled_dot_product_attention, False, H)(q, k, v)


def test_a_parameter_for_the_number_of_heads_is_given_it():
    for adapter in ({}, {"heads": 4}, {"heads": 2}):
        report = diagnose(own, **adapter)
        assert report.mistakes == ["heads_split_without_transpose"]
        assert f"H={adapter.get('heads', 4)} is passed in each call" in report.assumed
        assert diagnose(own_right, **adapter).ok
        named = diagnose(with_default, **adapter)
        assert named.mistakes == ["heads_merged_without_transpose"]
        assert ("H=2 is passed in each call" in named.assumed) == (adapter.get("heads") == 2)
    assert "there are 4 heads: H=4" in diagnose(with_default).assumed


def test_heads_that_nothing_says_are_asked_for():
    (failure,) = diagnose(side_by_side(by_torch, True), causal=True).failures
    assert failure.mistake is None
    assert "say heads=" in failure.likely


# ---------------------------------------------------------------- what is said of intents


@pytest.mark.parametrize("number", [-7.3, -6.2])
def test_a_causal_fill_that_leaks_is_asked_about(number):
    def mine(q, k, v):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        return scores.masked_fill(~allowed(q, k), number).softmax(-1) @ v

    (failure,) = diagnose(mine).failures
    assert "if the function is meant to be causal, say causal=True" in failure.likely
    assert diagnose(mine, causal=True).mistakes == ["closed_key_reaches_output"]
    (other,) = diagnose(lambda q, k, v: 1.1 * F.scaled_dot_product_attention(q, k, v)).failures
    assert "causal" not in other.likely


def split_by_view(q, k, v, H):
    parts = (x.reshape(len(x), H, x.shape[1], -1) for x in (q, k, v))
    return F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)


def test_where_split_and_merge_are_wrong_both_repairs_are_said():
    (one,), (two,) = (diagnose(fn, heads=4).failures for fn in (split_by_view, own))
    assert one.mistake == two.mistake == "heads_split_without_transpose"
    assert two.repair == f"{one.repair}, and out.transpose(1, 2).reshape(B, T, H * d)"
    assert "split and merged" in two.name


def test_the_triangle_of_torch_is_explained_kindly():
    def mine(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    (failure,) = diagnose(mine, causal=True).failures
    assert failure.mistake == "causal_top_left"
    assert "Where they are equal" in failure.likely
    assert 'say causal="top_left"' in failure.repair
    assert diagnose(mine, causal="top_left").ok


def taught(q, k, v, mask=None, scale=8**-0.5):
    """Self-attention as it is taught: its (T, T) mask broadcasts where there is one query."""
    past = torch.ones(q.shape[-2], q.shape[-2]).tril().bool()
    scores = (q @ k.mT * scale).masked_fill(~past, -torch.inf)
    scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(dim=-1) @ v


@pytest.mark.parametrize("causal", [True, "top_left", None])
@pytest.mark.parametrize("masked", [False, True])
def test_one_query_says_nothing_where_other_unequal_lengths_raise(causal, masked):
    fn = taught if masked else lambda q, k, v: taught(q, k, v)
    report = diagnose(fn, causal=causal)
    assert report.ok, report
    apart = "1 query and 6 keys: other unequal lengths raise"
    assert (apart in report.unchecked) == (causal == "top_left")
    unscaled = diagnose(lambda q, k, v: taught(q, k, v, scale=1.0), causal=causal)
    assert unscaled.mistakes == ["scale_missing"]


class Twice(nn.MultiheadAttention):
    def forward(self, query, key, value):
        out, weights = super().forward(query, key, value)
        return out * 1.1, weights


def test_biases_that_are_used_are_not_called_unused():
    (failure,) = diagnose(Twice(12, 3, batch_first=True, kdim=6, vdim=6)).failures
    assert failure.mistake is None
    assert "also has" not in failure.likely
