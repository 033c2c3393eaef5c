"""The page on one state: its functions and its claims, at other seeds, widths and lengths.

`delta_rule`, `one_state`, `chunk`, `in_chunks` and `reading` are taken from the page's own cells.
"""

import json
import math

import pages
import pytest
import record
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import for_each

from attn_lib.recurrent import gated_delta_rule, linear_attention

PAGE = pages.BOOK / "13_one_state.ipynb"
IMPORTS = """import math
import torch
import torch.nn.functional as F
from torch import nn
from attn_lib import attention
"""
CELLS = ("ch13-code-11", "ch13-code-14", "ch13-code-25", "ch13-code-30", "ch13-code-42")


pytestmark = pytest.mark.usefixtures("double")


def run(*changes: tuple[str, str]) -> dict:
    """What these cells of the page define, without the table that one of them prints."""
    parts = [pages.sources(PAGE)[name].partition('\nd = 32\nprint("')[0] for name in CELLS]
    return pages.defined_by([IMPORTS, *parts], *changes)


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


@for_each((0, 1, False), (1, 7, False), (2, 7, True))
def test_the_loop_is_the_formula(seed, T, channels):
    given_ = inputs(seed, T, channels=channels)
    assert apart(OWN["one_state"](*given_), by_loops(*given_)) < 1e-12


def library(q, k, v, beta, log_gate, S):
    channels = log_gate.shape[-1] > 1
    out, S = gated_delta_rule(
        q[:, None], k[:, None], v[:, None], beta[:, None, :, 0],
        log_decay=log_gate[:, None] if channels else log_gate[:, None, :, 0],
        state=S[:, None], scale=1.0,
    )  # fmt: skip
    return out[:, 0], S[:, 0]


def faults(page, seed=0, T=11, size=4) -> float:
    """The largest difference of the page's functions from the formula and the library."""
    one, channel = inputs(seed, T), inputs(seed, T, channels=True)
    wanted = by_loops(*one)
    q, k, v, beta, log_gate, S = one
    return max(
        apart(page["one_state"](*one), wanted),
        apart(page["one_state"](*channel), library(*channel)),
        apart(page["in_chunks"](*one, size), wanted),
        apart(
            [page["delta_rule"](k, v, beta[0, 0, 0], S)],
            [page["one_state"](q, k, v, torch.full_like(beta, beta[0, 0, 0]), 0 * log_gate, S)[1]],
        ),
    )


# ---------------------------------------------------------------- chunks


@settings(max_examples=100, deadline=None)
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


def test_chunks_take_the_steps_that_the_page_counts(monkeypatch):
    counted = []

    def counting(*given_):
        counted.append(given_[0].shape[-2])
        return chunk(*given_)

    page = run()
    chunk = page["chunk"]
    page["chunk"] = counting
    for size in (1, 7, 16, 64, 100):
        counted.clear()
        page["in_chunks"](*inputs(0, 100), size)
        assert len(counted) == math.ceil(100 / size)
        assert sum(counted) == 100
    chunk, _, _ = pages.sources(PAGE)["ch13-code-30"].partition("def in_chunks")
    assert "for " not in chunk  # over no token


def test_a_chunk_computes_no_power_that_could_overflow():
    torch.set_default_dtype(torch.float32)
    made = [x.float() for x in inputs(0, 64, strong=0.0)]
    made[4] = torch.full((2, 64, 1), math.log(0.1))
    out, S = OWN["in_chunks"](*made, 64)
    wanted = by_loops(*(x.double() for x in made))
    assert apart((out.double(), S.double()), wanted) < 1e-5
    powers = "(g.exp() * (-g).exp().mT).tril()"
    broken = run(("(g - g.mT).masked_fill(later, -math.inf).exp()", powers))
    out, S = broken["in_chunks"](*made, 64)
    assert out.isnan().any()


# ---------------------------------------------------------------- what a matrix can recall


def pairs(seed, N, d, d_v, draws=300):
    g = torch.Generator().manual_seed(seed)
    k = F.normalize(torch.randn(draws, N, d, generator=g, dtype=torch.float64), dim=-1)
    return k, torch.randn(draws, N, d_v, generator=g, dtype=torch.float64)


@for_each((5, 7, 16, 16), (6, 40, 16, 16), (7, 90, 48, 20), (8, 12, 64, 5), (9, 200, 24, 24))
def test_what_was_added_has_the_error_of_the_formula(seed, N, d, d_v):
    k, v = pairs(seed, N, d, d_v)
    error, _ = OWN["reading"](k.mT @ v, k, v)
    assert error == pytest.approx((N - 1) / d, rel=0.06)
    best, _ = OWN["reading"](torch.linalg.pinv(k) @ v, k, v)
    assert best == pytest.approx(max(0, 1 - d / N), abs=0.02)
    # the state of the page is that of the library
    k, v = k[:, None], v[:, None]
    assert torch.allclose(linear_attention(k, k, v)[1], k.mT @ v)


@for_each((1, 16, 10), (2, 32, 40), (3, 24, 70))
def test_no_matrix_is_better_than_least_squares_and_above_d_none_is_exact(seed, d, N):
    k, v = pairs(seed, N, d, d, draws=20)
    best = torch.linalg.pinv(k) @ v
    floor, _ = OWN["reading"](best, k, v)
    g = torch.Generator().manual_seed(seed)
    for _ in range(20):
        other = best + 0.1 * torch.randn(best.shape, generator=g, dtype=torch.float64)
        assert OWN["reading"](other, k, v)[0] >= floor
    for S in (k.mT @ v, OWN["delta_rule"](k, v, 1.0, torch.zeros(d, d))):
        assert OWN["reading"](S, k, v)[0] > floor
    assert (floor > 0.05) == (d < N)


@for_each((11, 32), (12, 24), (13, 48), (14, 64))
def test_the_delta_rule_overwrites_and_among_other_keys_the_oldest_fade(seed, d):
    """The table and the figure of the page, at other widths: twice as many writes as channels."""
    N, empty = 2 * d, torch.zeros(300, d, d)
    k, v = pairs(seed, N, d, d)
    added, delta = k.mT @ v, OWN["delta_rule"](k, v, 1.0, empty)
    (error_a, recalled_a), (error_d, recalled_d) = (OWN["reading"](S, k, v) for S in (added, delta))
    read = k @ added
    shrunk, _ = OWN["reading"]((read * v).sum() / read.square().sum() * added, k, v)
    assert shrunk < error_d < error_a
    assert recalled_d < recalled_a
    by_age = (k @ delta - v).square().sum(dim=(0, 2)) / v.square().sum(dim=(0, 2))
    assert by_age[-1] < 1e-12
    assert by_age[: d // 2].min() > 1 > by_age[-d // 4 :].max()
    few = k[:, : d // 4]
    rounds = torch.arange(N).expand(300, N)
    g = torch.Generator().manual_seed(seed)
    shuffled = torch.rand(300, N, generator=g, dtype=torch.float64).argsort(dim=1)
    for order in (rounds % (d // 4), shuffled % (d // 4)):  # each key eight times
        again = few.gather(1, order[..., None].expand(-1, -1, d))
        last = torch.stack([((order == n) * rounds).amax(dim=1) for n in range(d // 4)], dim=1)
        newest = v.gather(1, last[..., None].expand(-1, -1, d))
        added, delta = again.mT @ v, OWN["delta_rule"](again, v, 1.0, empty)
        assert OWN["reading"](delta, few, newest)[0] < 0.25
        assert OWN["reading"](added, few, newest)[0] > 8


@for_each((1.0, 1.0), (0.5, 3.0), (0.3, 1.5), (1.0, 2.5))
def test_a_write_multiplies_its_own_error_by_one_minus_beta_times_the_squared_length(beta, squared):
    k, v = pairs(0, 1, 6, 4, draws=1)
    S = torch.randn(1, 6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    k = k * math.sqrt(squared)
    after = k @ OWN["delta_rule"](k, v, beta, S) - v
    assert torch.allclose(after, (1 - beta * squared) * (k @ S - v))


@for_each((16,), (32,), (64,))
def test_a_state_explodes_unless_its_keys_are_normalised(d):
    for seed in range(5):
        g = torch.Generator().manual_seed(seed)
        k, v = torch.randn(2, 64, d, generator=g, dtype=torch.float64)
        assert OWN["delta_rule"](k, v, 1.0, torch.zeros(d, d)).abs().max() > 1e15
        tidy = OWN["delta_rule"](F.normalize(k, dim=-1), v, 1.0, torch.zeros(d, d))
        assert tidy.abs().max() < 10


@for_each((1,), (2,), (3,))
def test_one_pass_is_not_exact_and_many_are(seed):
    k, v = pairs(seed, 12, 24, 24)
    S, errors = torch.zeros(300, 24, 24), []
    for _ in range(40):
        S = OWN["delta_rule"](k, v, 1.0, S)
        errors.append(OWN["reading"](S, k, v)[0])
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0.2
    assert errors[-1] < 1e-3


def test_padding_with_no_write_and_an_open_gate_leaves_the_state_alone():
    q, k, v, beta, log_gate, S = inputs(3, 9)
    longer = [torch.cat([torch.randn(2, 4, x.shape[-1]), x], dim=1) for x in (q, k, v)]
    still = [F.pad(x, (0, 0, 4, 0)) for x in (beta, log_gate)]
    out, last = OWN["one_state"](*longer, *still, S)
    wanted = OWN["one_state"](q, k, v, beta, log_gate, S)
    assert apart((out[:, 4:], last), wanted) < 1e-12


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


def recorded() -> dict:
    return json.loads((record.DATA / "13_one_state.json").read_text())


def chosen(found, name):
    """(5, 24): the share recalled of each seed, at the rate that was best on other texts."""
    rate = torch.tensor([run["validation"] for run in found[name]]).mean(dim=0).argmax()
    return torch.tensor([run["by place"][rate] for run in found[name]])


def test_the_hybrid_recalls_all_and_two_states_do_not():
    found = recorded()
    assert len(found["seeds"]) == 5
    pure, hybrid, softmax, wide = (
        chosen(found, name).mean(dim=1)
        for name in ("two states", "state and softmax", "softmax alone", "two states, wide")
    )
    assert pure.max() < 0.73 < 0.98 < wide.min()
    assert min(hybrid.min(), softmax.min()) > 0.999
    # at no other rate does any seed of two states come near
    every = torch.tensor([run["by place"] for run in found["two states"]]).mean(dim=-1)
    assert every.shape == (5, 3)
    assert every.max() < 0.77


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
    "the gate is never applied": [(".mT.exp() * S  # forget", ".mT.exp() ** 0 * S")],
    "the gate is no logarithm": [(".mT.exp() * S  # forget", ".mT * S")],
    "one gate for all channels": [
        ("S = log_gate[..., now, :].mT.exp() * S", "S = log_gate[..., now, :1].mT.exp() * S")
    ],
    "the query reads before the write": [
        ("        outs.append(q[..., now, :] @ S)\n", ""),
        (READ, "        outs.append(q[..., now, :] @ S)\n" + READ),
    ],
    "β for each channel": [
        (
            "write = beta[..., now, :] * (v",
            "write = beta[..., now, :] ** (1 + torch.arange(v.shape[-1])) * (v",
        )
    ],
    "the value itself is written": [("(v[..., now, :] - read)", "v[..., now, :]")],
    "the difference the other way": [("(v[..., now, :] - read)", "(read - v[..., now, :])")],
    "the write is turned round": [(WRITE, WRITE.replace("S + k", "S - k"))],
    "the delta rule adds": [("(beta * (v_t - read))", "(beta * v_t)")],
    "a chunk reads the future": [("dtype=torch.bool).triu(1)", "dtype=torch.bool).triu(2)")],
    "a chunk does not read itself": [("dtype=torch.bool).triu(1)", "dtype=torch.bool).triu(0)")],
    "a chunk reads an undecayed state": [("known = beta * (v - g.exp() * (k @ S))",
                                          "known = beta * (v - (k @ S))")],
    "a query reads an undecayed state": [("out = g.exp() * (q @ S)", "out = (q @ S)")],
    "a chunk's products do not fade": [
        ("system = beta * (k @ k.mT) * faded", "system = beta * (k @ k.mT)")
    ],
    "β on the right side alone": [
        ("system = beta * (k @ k.mT) * faded", "system = (k @ k.mT) * faded")
    ],
    "the system is transposed": [("(k @ k.mT) * faded", "(k @ k.mT) * faded.mT")],
    "writes do not fade to the end": [("(k * (last - g).exp()).mT", "k.mT")],
    "the old state does not fade": [("S = last.exp() * S +", "S = S +")],
    "the state before is lost": [("S = last.exp() * S +", "S =")],
    "the gate of the first token alone": [("last = g[..., -1:, :]", "last = g[..., :1, :]")],
    "a sum that leaves its own token out": [
        ("log_gate.cumsum(dim=-2)", "(log_gate.cumsum(dim=-2) - log_gate)")
    ],
    "the state is not handed on": [("out, S = chunk(", "out, _ = chunk(")],
    "the last tokens are lost": [
        ("range(0, q.shape[-2], size)", "range(0, q.shape[-2] - size + 1, size)")
    ],
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


def test_the_rule_fits_a_phone():
    """At most 15 lines, and no name that is not in it."""
    body = pages.sources(PAGE)["ch13-code-25"].splitlines()
    assert len([line for line in body if line.strip()]) <= 15
