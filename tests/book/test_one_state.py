"""The page on one state: its functions beside its formulas, number by number.

`delta_rule`, `one_state`, `chunk`, `in_chunks` and the task are taken from the page's own cells.
"""

import math

import pages
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

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


def by_loops(q, k, v, beta, log_gate, S):
    """The formula of the page, number by number."""
    outs, S = torch.zeros_like(v), S.clone()
    for b in range(len(q)):
        for t in range(q.shape[1]):
            for r in range(k.shape[-1]):
                S[b, r] *= math.exp(log_gate[b, t, min(r, log_gate.shape[-1] - 1)])
            for c in range(v.shape[-1]):
                read = sum(k[b, t, r] * S[b, r, c] for r in range(k.shape[-1]))
                missing = beta[b, t, 0] * (v[b, t, c] - read)
                for r in range(k.shape[-1]):
                    S[b, r, c] += k[b, t, r] * missing
                outs[b, t, c] = sum(q[b, t, r] * S[b, r, c] for r in range(k.shape[-1]))
    return outs, S


def apart(made, wanted):
    return max(float((a - b).abs().amax()) for a, b in zip(made, wanted, strict=True))


# ---------------------------------------------------------------- the rule, token by token


def faults(page, seed=0, T=11, size=4) -> float:
    """The largest difference of the page's functions from the formula."""
    one, channel = inputs(seed, T), inputs(seed, T, channels=True)
    wanted = by_loops(*one)
    q, k, v, beta, log_gate, S = one
    return max(
        apart(page["one_state"](*one), wanted),
        apart(page["one_state"](*channel), by_loops(*channel)),
        apart(page["in_chunks"](*one, size), wanted),
        apart(
            [page["delta_rule"](k, v, beta[0, 0, 0], S)],
            [page["one_state"](q, k, v, torch.full_like(beta, beta[0, 0, 0]), 0 * log_gate, S)[1]],
        ),
    )


# ---------------------------------------------------------------- chunks


@settings(max_examples=40, deadline=None)
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


# ---------------------------------------------------------------- the trained models


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


# ---------------------------------------------------------------- mistakes, planted

READ, WRITE = "        read = k[..., now, :] @ S", "        S = S + k[..., now, :].mT @ write"
MISTAKES = {
    "the gate acts after the write": [
        ("        S = log_gate[..., now, :].mT.exp() * S  # forget\n", ""),
        (
            "        outs.append(q[..., now, :] @ S)",
            "        S = log_gate[..., now, :].mT.exp() * S\n"
            "        outs.append(q[..., now, :] @ S)",
        ),
    ],
    "one gate for all channels": [
        ("S = log_gate[..., now, :].mT.exp() * S", "S = log_gate[..., now, :1].mT.exp() * S")
    ],
    "the query reads before the write": [
        ("        outs.append(q[..., now, :] @ S)\n", ""),
        (READ, "        outs.append(q[..., now, :] @ S)\n" + READ),
    ],
    "the delta rule adds": [("(beta * (v_t - read))", "(beta * v_t)")],
    "a chunk reads the future": [("dtype=torch.bool).triu(1)", "dtype=torch.bool).triu(2)")],
    "a chunk's products do not fade": [
        ("system = beta * (k @ k.mT) * faded", "system = beta * (k @ k.mT)")
    ],
    "the old state does not fade": [("S = last.exp() * S +", "S = S +")],
    "the state is not handed on": [("out, S = chunk(", "out, _ = chunk(")],
}  # fmt: skip


def test_without_a_mistake_there_is_none():
    assert faults(OWN) < 1e-12


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_seen(name):
    page = run(*MISTAKES[name])
    try:
        assert not faults(page) < 1e-3
    except RuntimeError:
        pass  # shapes that do not fit, or nothing to join
