"""How fast the encoder is on texts of unequal length, beside ``torch.nn.TransformerEncoder``.

In evaluation mode, and without gradients, PyTorch's encoder leaves its own Python code: each layer
is one fused call, and with ``enable_nested_tensor``, its default, the padding is cut away before
the first, unless the norms come first. Every printed name says which of these ways was taken. How
it is measured, ``rounds.py`` says.
"""

import warnings
from collections.abc import Callable
from unittest import mock

import pytest
import torch
from rounds import race
from torch import Tensor, nn

from attn_lib import TransformerEncoder, interop, padding_mask

SIZES = {"d_model": 256, "num_heads": 8, "d_ff": 1024, "num_layers": 4}
LENGTHS = torch.arange(8, 136, 8)  # 16 texts of 8 to 128 tokens: 47 % of the table is padding


def to_torch(ours: TransformerEncoder, *, nested: bool) -> nn.TransformerEncoder:
    layers = [interop.to_torch(block) for block in ours.blocks]
    norm = ours.norm if isinstance(ours.norm, nn.LayerNorm) else None
    theirs = nn.TransformerEncoder(layers[0], len(layers), norm, enable_nested_tensor=nested)
    theirs.layers = nn.ModuleList(layers)  # it has copied the first one
    return theirs.train(ours.training)


def way(call: Callable[[], Tensor]) -> str:
    """Which of PyTorch's ways through an encoder layer a call takes."""
    fused = "torch._transformer_encoder_layer_fwd"
    with mock.patch(fused, wraps=torch._transformer_encoder_layer_fwd) as layer:
        call()
    if not layer.called:
        return "not fused"
    return f"fused, {'nested' if layer.call_args.args[0].is_nested else 'padding computed'}"


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "forward + backward"])
@pytest.mark.parametrize("norm_first", [False, True], ids=["norm last", "norm first"])
def test_speed_of_reading(norm_first, backward, benchmark, capsys):
    torch.manual_seed(0)
    B, T = len(LENGTHS), int(LENGTHS.max())
    ours = TransformerEncoder(**SIZES, norm_at="before" if norm_first else "after").train(backward)
    x = torch.randn(B, T, SIZES["d_model"])
    mask = padding_mask(LENGTHS, T)
    real, blocked = mask[:, 0, 0], ~mask[:, 0, 0]
    calls = {}
    for nested in [False] if norm_first else [True, False]:
        theirs = to_torch(ours, nested=nested)

        def read(theirs: nn.TransformerEncoder = theirs) -> Tensor:
            return theirs(x, src_key_padding_mask=blocked)

        with torch.set_grad_enabled(backward), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nested tensors are said to be a prototype
            name = f"nn.TransformerEncoder, enable_nested_tensor={nested} ({way(read)})"
        calls[name] = read
    calls["attn_lib"] = lambda: ours(x, mask=mask)
    with torch.set_grad_enabled(backward):  # the same work, wherever there is a text
        out = calls["attn_lib"]()[real]
        for name in calls:
            torch.testing.assert_close(calls[name]()[real], out, atol=1e-4, rtol=1e-4)
    title = f"{B} texts of {LENGTHS.min()} to {T} tokens, norm {'first' if norm_first else 'last'}"
    title += ", training, forward + backward" if backward else ", evaluation, forward"
    race(title, calls, benchmark, capsys, backward=backward)
