"""The page on one state: its functions beside the library's, and its task.

`delta_rule`, `one_state`, `chunk`, `in_chunks` and the task are taken from the page's own cells.
"""

import pages
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import for_each

from attn_lib.recurrent import gated_delta_rule

PAGE = pages.BOOK / "13_one_state.ipynb"
IMPORTS = """import math
import torch
import torch.nn.functional as F
from torch import nn
from attn_lib import attention
"""
CELLS = ("ch13-code-14", "ch13-code-25", "ch13-code-30", "ch13-code-42")


pytestmark = pytest.mark.usefixtures("double")


def run(*changes: tuple[str, str]) -> dict:
    return pages.defined_by([IMPORTS, *(pages.sources(PAGE)[name] for name in CELLS)], *changes)


OWN = run()


def inputs(seed, T, d=5, d_v=3, *, channels=False, strong=3.0):
    g = torch.Generator().manual_seed(seed)
    q, k = F.normalize(torch.randn(2, 2, T, d, generator=g, dtype=torch.float64), dim=-1)
    v = torch.randn(2, T, d_v, generator=g, dtype=torch.float64)
    beta = torch.rand(2, T, 1, generator=g, dtype=torch.float64)
    shape = (2, T, d if channels else 1)
    log_gate = -strong * torch.rand(shape, generator=g, dtype=torch.float64)
    S = torch.randn(2, d, d_v, generator=g, dtype=torch.float64)
    return q, k, v, beta, log_gate, S


def by_library(q, k, v, beta, log_gate, S):
    """The rule of `attn_lib`, token by token, of one head."""
    q, k, v, log_gate, S = (x[:, None] for x in (q, k, v, log_gate, S))
    decay = log_gate if log_gate.shape[-1] > 1 else log_gate[..., 0]
    options = {"log_decay": decay, "scale": 1.0, "state": S, "chunk_size": None}
    out, S = gated_delta_rule(q, k, v, beta.mT, **options)
    return out[:, 0], S[:, 0]


def apart(made, wanted):
    return max(float((a - b).abs().amax()) for a, b in zip(made, wanted, strict=True))


def largest_difference(page) -> float:
    """Of the page's functions from the library's; that of one head in chunks, the page compares."""
    one, channel = inputs(0, 11), inputs(0, 11, channels=True)
    q, k, v, beta, log_gate, S = one
    share = beta[0, 0, 0]
    alone = by_library(q, k, v, torch.full_like(beta, share), 0 * log_gate, S)[1]
    return max(
        apart(page["one_state"](*one), by_library(*one)),
        apart(page["one_state"](*channel), by_library(*channel)),
        apart([page["delta_rule"](k, v, share, S)], [alone]),
    )


def test_the_rule_is_that_of_the_library_token_by_token():
    assert largest_difference(OWN) < 1e-12


@for_each(
    ("S = log_gate[..., now, :].mT.exp() * S", "S = log_gate[..., now, :1].mT.exp() * S"),
    ("(beta * (v_t - read))", "(beta * v_t)"),
)
def test_a_planted_mistake_is_seen(old, new):
    assert largest_difference(run((old, new))) > 1e-3


@settings(max_examples=40)
@given(st.integers(0, 2**20), st.integers(1, 40), st.integers(1, 45), st.floats(0, 60))
def test_chunks_of_any_size_are_the_loop(seed, T, size, strong):
    """Also where gates are so strong that e^(−g) overflows; outputs, states and gradients."""
    made = inputs(seed, T, strong=strong)
    assert apart(OWN["in_chunks"](*made, size), OWN["one_state"](*made)) < 1e-12
    leaves = [x.requires_grad_() for x in made]
    found = []
    for outs in (OWN["in_chunks"](*leaves, size), OWN["one_state"](*leaves)):
        total = sum(out.sin().sum() for out in outs)
        found.append(torch.autograd.grad(total, leaves))
    assert apart(*found) < 1e-11


def test_a_text_of_the_task_asks_for_each_pair_once():
    torch.manual_seed(0)
    keys, values, answers = OWN["write_texts"](50)
    n, blank = OWN["PAIRS"], OWN["NAMES"]
    assert keys.shape == values.shape == (50, 2 * n)
    for row, said, wanted in zip(keys.tolist(), values.tolist(), answers.tolist(), strict=True):
        assert len(set(row[:n])) == n
        assert sorted(row[:n]) == sorted(row[n:])
        known = dict(zip(row[:n], said[:n], strict=True))
        assert [known[name] for name in row[n:]] == wanted
        assert said[n:] == [blank] * n
