import pytest
import torch

from attn_lib import causal_mask


@pytest.mark.parametrize("T", range(5))
@pytest.mark.parametrize("S", range(5))
def test_causal_mask_equals_a_loop_over_pairs(T, S):
    for offset in range(-6, 7):
        table = [[j <= i + offset for j in range(S)] for i in range(T)]
        expected = torch.tensor(table, dtype=torch.bool).reshape(T, S)
        assert torch.equal(causal_mask(T, S, offset=offset), expected)
    assert torch.equal(causal_mask(T, S), causal_mask(T, S, offset=S - T))


def test_causal_mask_takes_an_offset_for_each_example():
    mask = causal_mask(2, 5, offset=torch.tensor([0, 3, -4]))
    assert mask.shape == (3, 1, 2, 5)
    for example, offset in enumerate([0, 3, -4]):
        assert torch.equal(mask[example, 0], causal_mask(2, 5, offset=offset))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"T": -1}, ValueError, "T=-1"),
        ({"T": 2, "S": -3}, ValueError, "S=-3"),
        ({"T": 2, "offset": 1.0}, TypeError, "got 1.0"),
        ({"T": 2, "offset": True}, TypeError, "got True"),
        ({"T": 2, "offset": torch.tensor([0.5])}, TypeError, "torch.float32"),
        ({"T": 2, "offset": torch.zeros(2, 2).long()}, ValueError, r"\(2, 2\)"),
    ],
)
def test_bad_input_is_named(arguments, error, message):
    with pytest.raises(error, match=message):
        causal_mask(**arguments)
