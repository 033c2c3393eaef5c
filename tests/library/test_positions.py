import cmath
import itertools
import math

import pytest
import torch
from cases import FLOATS, draw
from tables import for_each, raises_for_each

from attn_lib.positions import LearnedPositions, alibi_bias, apply_rope, sinusoidal


@pytest.mark.parametrize("base", [50.0, 0.5])
@pytest.mark.parametrize("d_model", [1, 2, 5, 8])
def test_sinusoidal_equals_the_formula(d_model, base):
    table = sinusoidal(7, d_model, base=base)
    for p in range(7):
        for column in range(d_model):
            angle = p / base ** (2 * (column // 2) / d_model)
            expected = math.cos(angle) if column % 2 else math.sin(angle)
            assert table[p, column] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("dtype", FLOATS)
def test_rope_multiplies_complex_numbers(dtype):
    x, places = draw(2, 5, 6).to(dtype), torch.tensor([0.0, 1.0, 12345.0, 2.5, -3.0])
    found = apply_rope(x, places, base=100.0)
    assert found.dtype == dtype
    for b, t, i in itertools.product(range(2), range(5), range(3)):
        number = complex(float(x[b, t, i]), float(x[b, t, i + 3]))
        turned = number * cmath.exp(1j * places[t].item() * 100.0 ** (-2 * i / 6))
        step = 2 * torch.finfo(dtype).eps * abs(number) + 1e-11  # of the large angle
        assert abs(complex(float(found[b, t, i]), float(found[b, t, i + 3])) - turned) <= step


def test_learned_positions_are_added_and_trained():
    torch.manual_seed(0)
    layer = LearnedPositions(max_len=5, d_model=4)
    x = torch.zeros(2, 3, 4)
    assert torch.equal(layer(x), layer.table[:3].expand(2, 3, 4))
    layer(x).sum().backward()
    assert torch.equal(layer.table.grad, torch.tensor([2.0, 2, 2, 0, 0])[:, None].expand(5, 4))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_learned_positions_may_be_given(dtype):
    torch.manual_seed(0)
    layer, x = LearnedPositions(max_len=7, d_model=4), torch.randn(2, 3, 4)
    own = torch.tensor([[6, 0, 0], [2, 3, 4]], dtype=dtype)
    for places in (own, own[0]):
        found = layer(x, places)
        for b, t in itertools.product(range(2), range(3)):
            place = int(places.expand(2, 3)[b, t])
            assert torch.equal(found[b, t], x[b, t] + layer.table[place])
    assert torch.equal(layer(x, start=4), layer(x, torch.tensor([4, 5, 6])))
    assert layer(x[:, :0], own[:, :0]).shape == (2, 0, 4)
    # fewer vectors than rows suffice where positions are given
    few, x = LearnedPositions(max_len=2, d_model=4), torch.zeros(1, 5, 4)
    assert few(x, torch.tensor([0, 0, 0, 0, 1])).shape == (1, 5, 4)


@raises_for_each(
    ((2, 3, 4), {"start": 5}, ValueError, "^positions must be 0 to 6, got 5 to 7$"),
    ((2, 3, 4), {"start": -1}, ValueError, "^positions must be 0 to 6, got -1 to 1$"),
    (
        (2, 3, 4),
        {"positions": torch.tensor([3, -1, 7])},
        ValueError,
        "^positions must be 0 to 6, got -1 to 7$",
    ),
    ((2, 3, 4), {"positions": torch.ones(1, 2).long()}, ValueError, r"or \(2, 3\), got \(1, 2\)$"),
    (
        (3, 4),
        {"positions": torch.ones(7, 3).long()},
        ValueError,
        r"be \(3,\) or \(3,\), got \(7, 3\)$",
    ),
    ((1, 3, 4), {"positions": torch.ones(7, 3).long()}, ValueError, r"or \(1, 3\), got \(7, 3\)$"),
    (
        (2, 3, 4),
        {"positions": torch.ones(3).bool()},
        TypeError,
        r"int64 or int32, got torch\.bool$",
    ),
    ((1, 8, 4), {}, ValueError, r" with T at most 7, got \(1, 8, 4\)"),
    ((2, 3, 5), {"positions": torch.arange(3)}, ValueError, r"got \(2, 3, 5\)$"),
)
def test_positions_without_a_vector_are_named(shape, options):
    LearnedPositions(max_len=7, d_model=4)(torch.zeros(shape), **options)


def test_the_default_base_is_ten_thousand():
    x, places = torch.ones(1, 4, dtype=torch.float64), torch.tensor([10**6])
    assert torch.equal(apply_rope(x, places), apply_rope(x, places, base=10_000.0))
    assert torch.equal(sinusoidal(5, 4), sinusoidal(5, 4, base=10_000.0))
    assert apply_rope(x.to("meta"), places.to("meta")).is_meta


def test_alibi_grows_with_the_distance_to_earlier_keys():
    distance = torch.tensor([[2, 1, 0, 0, 0], [3, 2, 1, 0, 0], [4, 3, 2, 1, 0]])
    assert torch.equal(
        alibi_bias(2, 3, 5), -distance * torch.tensor([2.0**-4, 2.0**-8]).view(2, 1, 1)
    )


def test_alibi_has_the_published_slopes():
    assert (-alibi_bias(8, 2)[:, 1, 0]).tolist() == [2.0**-h for h in range(1, 9)]
    twelve = (-alibi_bias(12, 2)[:, 1, 0]).tolist()
    assert twelve[:8] == [2.0**-h for h in range(1, 9)]
    assert twelve[8:] == pytest.approx([2.0 ** -(h / 2) for h in (1, 3, 5, 7)])


def rotated(*shape, T=2, dtype=torch.float32):
    return apply_rope(torch.ones(shape, dtype=dtype), torch.arange(T))


@raises_for_each(
    (lambda: sinusoidal(2, 4, base=0.0), ValueError, "base must be positive"),
    (lambda: rotated(2, 3), ValueError, "even width d_k, got 3"),
    (lambda: apply_rope(torch.ones(2, 4), torch.ones(2).bool()), TypeError, "numbers, got bool"),
    (lambda: rotated(2, 4, T=3), ValueError, r"end in T=2, got shape \(3,\)"),
    (lambda: rotated(2, 4, dtype=torch.int64), TypeError, "torch.int64"),
    (lambda: rotated(2, 0), ValueError, "even width d_k, got 0"),
    (lambda: LearnedPositions(max_len=4, d_model=-1), ValueError, "d_model=-1"),
    (lambda: LearnedPositions(max_len=-1, d_model=4), ValueError, "max_len=-1"),
    (lambda: alibi_bias(2, 2, -1), ValueError, "S=-1"),
    (lambda: alibi_bias(2, -1, 2), ValueError, "T=-1"),
)
def test_bad_input_is_named(call):
    call()


@for_each(((3, 3, 5, 4), (3, 5)), ((3, 4), (5, 3)), ((2, 3, 5, 4), (2, 5)))
def test_positions_of_another_rank_are_not_guessed(x, positions):
    """(B, T) became positions of the heads where B = H; (5, 3) turned (3, 4) into (5, 3, 4)."""
    with pytest.raises(ValueError, match=r" but the last, of its size or 1, got shape \("):
        apply_rope(torch.ones(x), torch.zeros(positions))


@pytest.mark.parametrize("heads", [(), (3,)])
def test_positions_of_each_example_have_an_axis_for_the_heads(heads):
    x, positions = draw(2, *heads, 5, 4), torch.arange(10).view(2, 5)
    found = apply_rope(x, positions.view(2, *(1 for _ in heads), 5))
    for b in range(2):
        torch.testing.assert_close(found[b], apply_rope(x[b], positions[b]), rtol=0, atol=0)


@pytest.mark.usefixtures("double")
def test_alibi_has_the_default_dtype_as_it_says():
    """It once promised float32, and the bias was refused beside queries of float32."""
    assert "in the default dtype" in alibi_bias.__doc__
    assert alibi_bias(3, 4).dtype == torch.float64
