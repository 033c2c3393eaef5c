"""How fast the gated delta rule is: in chunks, token by token, and beside softmax attention.

``pytest tests/benchmarks`` prints, for each length, the time in chunks as a multiple of PyTorch's
causal attention on the same queries, keys and values, and of the recurrence. How it is measured,
``rounds.py`` says.
"""

import pytest
import torch
import torch.nn.functional as F
from rounds import ROUNDS, race

from attn_lib.recurrent import gated_delta_rule

B, H, D = 1, 4, 64
LENGTHS = [64, 256, 1024, 4096]


def contestants(T, decay):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, B, H, T, D).unbind()
    given = (q, F.normalize(k, dim=-1), v, torch.rand(B, H, T))
    options = {"log_decay": -torch.rand(B, H, T, *[D] * (decay == "channel"))}
    layers = {
        "softmax": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "attn_lib": lambda: gated_delta_rule(*given, **options)[0],
    }
    if T <= 1024:  # longer, it would only say the same again
        layers["tokens"] = lambda: gated_delta_rule(*given, **options, chunk_size=None)[0]
    return layers


@pytest.mark.parametrize("decay", ["head", "channel"])
@pytest.mark.parametrize("T", LENGTHS)
@torch.no_grad()
def test_speed(T, decay, benchmark, capsys):
    layers = contestants(T, decay)
    if "tokens" in layers:  # the same work
        torch.testing.assert_close(layers["tokens"](), layers["attn_lib"](), atol=1e-4, rtol=1e-4)
    race(f"{T} tokens, one decay a {decay}", layers, benchmark, capsys, rounds=min(ROUNDS, 20))
