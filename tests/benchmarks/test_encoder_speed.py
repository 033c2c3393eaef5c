"""How fast the encoder is on texts of unequal length, beside ``torch.nn.TransformerEncoder``.

In evaluation mode, and without gradients, PyTorch's encoder leaves its own Python code: each layer
is one fused call, and the padding is cut away before the first, unless the norms come first. How
it is measured, ``rounds.py`` says.
"""

import warnings

import pytest
import torch
from rounds import race
from torch import Tensor, nn

from attn_lib import TransformerEncoder, interop, padding_mask

SIZES = {"d_model": 256, "num_heads": 8, "d_ff": 1024, "num_layers": 4}
LENGTHS = torch.arange(8, 136, 8)  # 16 texts of 8 to 128 tokens: 47 % of the table is padding


def to_torch(ours: TransformerEncoder) -> nn.TransformerEncoder:
    layers = [interop.to_torch(block) for block in ours.blocks]
    norm = ours.norm if isinstance(ours.norm, nn.LayerNorm) else None
    nested = not layers[0].norm_first  # or PyTorch warns that it cuts nothing away
    theirs = nn.TransformerEncoder(layers[0], len(layers), norm, enable_nested_tensor=nested)
    theirs.layers = nn.ModuleList(layers)  # it has copied the first one
    return theirs.train(ours.training)


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "forward + backward"])
@pytest.mark.parametrize("norm_at", ["after", "before"])
def test_speed_of_reading(norm_at, backward, benchmark, capsys):
    torch.manual_seed(0)
    B, T = len(LENGTHS), int(LENGTHS.max())
    ours = TransformerEncoder(**SIZES, norm_at=norm_at).train(backward)
    theirs = to_torch(ours)
    x, mask = torch.randn(B, T, SIZES["d_model"]), padding_mask(LENGTHS, T)
    real = mask[:, 0, 0]

    def their_reading() -> Tensor:
        return theirs(x, src_key_padding_mask=~real)

    calls = {"nn.TransformerEncoder": their_reading, "attn_lib": lambda: ours(x, mask=mask)}
    with torch.set_grad_enabled(backward), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are said to be a prototype
        out, expected = (call()[real] for call in calls.values())
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)  # wherever there is a text
    title = f"{B} texts of {LENGTHS.min()} to {T} tokens, norm {norm_at}"
    title += ", training, forward + backward" if backward else ", evaluation, forward"
    race(title, calls, benchmark, capsys, backward=backward)
