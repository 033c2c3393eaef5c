"""How fast the attention layer is, beside the least work it could be and two other layers.

``pytest tests/benchmarks`` prints, for each size, the time of each layer as a multiple of the
floor: one packed matrix product, PyTorch's fused attention, one matrix product; how it is
measured, ``rounds.py`` says. Peak memory is that of a fresh process.
"""

import subprocess
import sys
import warnings

import pytest
import torch
import torch.nn.functional as F
from rounds import race
from torch import nn

from attn_lib import MultiHeadAttention, interop

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it still uses torch.jit.script
    from x_transformers.x_transformers import Attention

SIZES = [  # B, N, E, H, causal
    (32, 64, 256, 8, False),
    (8, 256, 512, 8, False),
    (8, 256, 512, 8, True),
    (1, 2048, 512, 8, True),
]


class Floor(nn.Module):
    """The least work: queries, keys and values from one product, no check, no option."""

    def __init__(self, layer: MultiHeadAttention):
        super().__init__()
        parts = (layer.q_proj, layer.k_proj, layer.v_proj)
        self.weight = nn.Parameter(torch.cat([part.weight for part in parts]).detach())
        self.bias = nn.Parameter(torch.cat([part.bias for part in parts]).detach())
        self.out_proj, self.num_heads = layer.out_proj, layer.num_heads

    def forward(self, x, causal):
        B, N, E = x.shape
        packed = F.linear(x, self.weight, self.bias).view(B, N, 3, self.num_heads, -1)
        q, k, v = packed.permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.out_proj(out.transpose(1, 2).reshape(B, N, E))


def contestants(B, N, E, H, causal, backward):
    torch.manual_seed(0)
    ours = MultiHeadAttention(d_model=E, num_heads=H)
    floor, theirs = Floor(ours), interop.to_torch(ours)
    other = Attention(E, heads=H, dim_head=E // H, causal=causal, flash=True)
    blocked = torch.ones(N, N, dtype=torch.bool).triu(1) if causal else None
    x = torch.randn(B, N, E).requires_grad_(backward)

    def torch_layer():
        return theirs(x, x, x, need_weights=False, attn_mask=blocked, is_causal=causal)[0]

    return {
        "floor": lambda: floor(x, causal),
        "attn_lib": lambda: ours(x, causal=causal),
        "nn.MultiheadAttention": torch_layer,
        "x-transformers": lambda: other(x),
    }


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "forward + backward"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_speed(size, backward, benchmark, capsys):
    layers = contestants(*size, backward)
    torch.testing.assert_close(layers["attn_lib"](), layers["floor"]())  # the same work
    title = f"{size} {'forward + backward' if backward else 'forward'}"
    race(title, layers, benchmark, capsys, backward=backward)


PROBE = """
import re, sys, torch
from pathlib import Path
from attn_lib import MultiHeadAttention, padding_mask

def mebibytes(name):
    return int(re.search(name + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024

N, mode = int(sys.argv[1]), sys.argv[2]
layer, x = MultiHeadAttention(d_model=64, num_heads=4), torch.zeros(1, N, 64)
options = {
    "nothing": {}, "causal": {"causal": True},
    "padding": {"mask": padding_mask(torch.tensor([N - 1]), N)},
    "table": {"mask": torch.ones(N, N, dtype=torch.bool)},
}[mode]
with torch.no_grad():
    layer(x[:, :16])
    Path("/proc/self/clear_refs").write_text("5")  # Linux forgets the peak so far
    before = mebibytes("VmRSS")
    layer(x, **options)
print(mebibytes("VmHWM") - before)
"""


@pytest.mark.parametrize("mode", ["nothing", "causal", "padding", "table"])
def test_memory(mode, capsys):
    peaks = {}
    for N in (512, 1024, 2048, 4096, 8192):
        command = [sys.executable, "-c", PROBE, str(N), mode]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks[N] = float(run.stdout)
    with capsys.disabled():
        print(f"\npeak memory, mask: {mode}, MiB above the start:", peaks)
    if mode != "table":  # 16 times the length: quadratic memory would be 256 times
        assert peaks[8192] < 24 * max(peaks[512], 2.0)
