"""Numbered formulas: what is printed, what it means, and what the page computes, three times.

A row holds a formula's TeX as it stands on the page, an expression that is typed here from it, and
a function or class that the page defines, both evaluated on random numbers. A rewritten page brings
its rows; pages that have none stand in a list that only gets shorter.
"""

import ast
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pages
import pytest
import torch
import torch.nn.functional as F
from tables import for_each
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import attn_lib

WITHOUT_ROWS = {"04_scaling", "05_positions", "08_language_model", "09_next_token"}
WITHOUT_ROWS |= {"10_encoder_decoder", "11_vision", "12_large_vision"}
TAGGED = re.compile(r"\$\$\s*((?:(?!\$\$).)*?)\s*\\tag\{([\d.]+)\}\s*\$\$", re.DOTALL)


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def formulas(notebook) -> dict[str, str]:
    """From numbers to TeX."""
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    return {number: tex for text in texts for tex, number in TAGGED.findall(text)}


def defined(notebook) -> dict:
    """The functions and classes that the page's cells define, without running anything else."""
    names = {"torch": torch, "nn": nn, "F": F, "math": math, "partial": partial}
    names["attn_lib"] = attn_lib
    for cell in pages.code_cells(notebook):
        try:
            tree = ast.parse(cell.source)
        except SyntaxError:  # the cell that installs
            continue
        parts = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
        module = ast.Module(body=parts, type_ignores=[])
        exec(compile(module, cell.id, "exec"), names)  # noqa: S102 - the book's own functions
    return names


# ---------------------------------------------------------------- what each formula says


def one_head(page):
    Q, K, V = draw(4, 3), draw(5, 3, seed=1), draw(5, 2, seed=2)
    powers = (Q @ K.T / math.sqrt(3)).exp()
    expected = powers / powers.sum(dim=1, keepdim=True) @ V
    yield page["one_head"](Q, K, V)[0], expected
    yield page["head_by_einsum"](Q, K, V), expected


def sum_of_heads(page):
    heads, W_O = draw(1, 3, 4, 2), draw(6, 5, seed=1)  # (B, H, T, d_v), (H · d_v, d_model)
    expected = sum(heads[0, h] @ W_O[2 * h : 2 * h + 2] for h in range(3))
    yield page["merge"](heads)[0] @ W_O, expected


def wide_layer(page):
    return page["MultiHeadAttention"](10, 3, 4, 7).requires_grad_(False)


def number_of_parameters(page):
    sizes = [p.numel() for p in wide_layer(page).parameters() if p.dim() == 2]  # without biases
    yield sum(sizes), 2 * 10 * 3 * (4 + 7)


def number_of_operations(page):
    layer, T, P = wide_layer(page), 5, 2 * 10 * 3 * (4 + 7)
    with FlopCounterMode(display=False) as counter:
        layer(torch.zeros(1, T, 10))
    yield counter.get_total_flops(), 2 * T * P + 2 * T**2 * 3 * (4 + 7)


def residual(page):
    x, W, norm = draw(4, 3), draw(3, 3, seed=1), nn.Identity()
    yield page["before"](x, lambda y: y @ W, norm), x + x @ W


def shares(page):
    writes = draw(7, 3)
    z = writes.sum(dim=0)
    share = torch.stack([w @ z / (z @ z) for w in writes])
    yield share.sum(), torch.ones((), dtype=torch.float64)


def rms(page):
    x = draw(4, 3)
    expected = torch.stack([row / math.sqrt(float((row**2).mean()) + 0.1) for row in x])
    yield page["rms_norm"](x, eps=0.1), expected
    mean = x.mean(dim=1, keepdim=True)
    variance = x.var(dim=1, keepdim=True, correction=0)
    yield page["layer_norm"](x, eps=0.1), (x - mean) / (variance + 0.1).sqrt()


def swiglu(page):
    layer, x = page["SwiGLU"](3, 7).double().requires_grad_(False), draw(4, 3)
    gate, up, down = layer.gate.weight.T, layer.up.weight.T, layer.down.weight.T
    a = x @ gate
    yield layer(x), (a / (1 + (-a).exp()) * (x @ up)) @ down


def feed_forward(page):
    layer = attn_lib.FeedForward(d_model=3, d_ff=7, activation="relu").double()
    layer, x = layer.requires_grad_(False), draw(4, 3)
    h = (x @ layer.up.weight.T + layer.up.bias).clamp(min=0.0)
    yield layer(x), h @ layer.down.weight.T + layer.down.bias


@dataclass(frozen=True)
class Row:
    """A formula as it is printed, and pairs of what the page computes and what it says."""

    page: str
    number: str
    tex: str
    pairs: Callable


OUT = r"\text{out} = \operatorname{softmax}\!\left(\frac{QK^\top}{\sqrt{d_k}}\right) V"
PARAMETERS = r"\text{parameters} = 2\, d_\text{model} H (d_k + d_v)"
SHARES = r"\text{share}_i = \frac{w_i \cdot z}{z \cdot z}, \qquad \sum_i w_i = z"
RMS = r"\operatorname{RMS}(x) = \frac{x}{\sqrt{\overline{x^2} + \varepsilon}}"
ROWS = [
    Row("01_one_head", "1.1", OUT, one_head),
    Row("03_many_heads", "3.1", r"[\,o_1, \dots, o_H]\, W^O = \sum_h o_h W^O_h", sum_of_heads),
    Row("03_many_heads", "3.2", PARAMETERS, number_of_parameters),
    Row("03_many_heads", "3.3", r"N = 2 T P + 2 T^2 H (d_k + d_v)", number_of_operations),
    Row("06_block", "6.1", r"x \leftarrow x + f(x)", residual),
    Row("06_block", "6.2", SHARES, shares),
    Row("06_block", "6.3", RMS, rms),
    Row("06_block", "6.4", r"\operatorname{FFN}(x) = h\, W_2 + b_2", feed_forward),
    Row("06_block", "6.5", r"\operatorname{SwiGLU}(x) = h\, W_\text{down}", swiglu),
]
PAGES = {path.stem: pages.read(path) for path in pages.NOTEBOOKS}


def unlike(row: Row, names: dict) -> list[int]:
    """Which of the row's pairs are not equal."""
    pairs = [(torch.as_tensor(a), torch.as_tensor(b)) for a, b in row.pairs(names)]
    assert pairs
    return [i for i, (a, b) in enumerate(pairs) if not torch.allclose(a, b, rtol=1e-12)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.number)
def test_a_formula_is_printed_as_it_is_computed(row):
    notebook = PAGES[row.page]
    assert formulas(notebook)[row.number] == row.tex
    assert unlike(row, defined(notebook)) == []


def test_each_numbered_formula_has_its_row():
    numbered = {name: set(formulas(notebook)) for name, notebook in PAGES.items()}
    held = {name: {row.number for row in ROWS if row.page == name} for name in PAGES}
    assert {name for name in PAGES if numbered[name] != held[name]} == WITHOUT_ROWS
    assert all(not held[name] for name in WITHOUT_ROWS)


@for_each(
    ("1.1", "/ math.sqrt(k.shape[-1])", "/ k.shape[-1]"),
    ("3.1", "return x.transpose(1, 2).flatten(2)", "return x.flip(1).transpose(1, 2).flatten(2)"),
    ("3.2", "nn.Linear(d_model, H * d_v)", "nn.Linear(d_model, H * d_k)"),
    ("3.3", "q @ k.mT /", "(q @ k.mT + 0 * (q @ k.mT)) /"),
    ("6.1", "return x + f(norm(x))", "return f(norm(x))"),
    ("6.3", "x.square().mean", "x.abs().mean"),
    ("6.5", "F.silu(self.gate(x))", "F.sigmoid(self.gate(x))"),
)
def test_another_computation_is_seen(number, old, new):
    (row,) = (row for row in ROWS if row.number == number)
    notebook = pages.read(pages.BOOK / f"{row.page}.ipynb")
    cells = [cell for cell in pages.code_cells(notebook) if old in cell.source]
    for cell in cells:
        cell.source = cell.source.replace(old, new)
    assert cells
    assert unlike(row, defined(notebook))


def test_another_formula_is_seen():
    notebook = pages.read(pages.BOOK / "01_one_head.ipynb")
    for cell in notebook.cells:
        cell.source = cell.source.replace(r"{\sqrt{d_k}}\right", r"{d_k}\right")
    assert formulas(notebook)["1.1"] != ROWS[0].tex
