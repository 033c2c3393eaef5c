"""Displayed formulas: each is computed by a line of its page, and those of the notation here."""

import math
import re

import pages
import torch
from tables import for_each

from attn_lib import MultiHeadAttention, attention
from attn_lib.layers import split_heads

NOTATION = (pages.BOOK / "notation.md").read_text()

# ---------------------------------------------------------------- in the pages


def unheld(notebook) -> list[str]:
    """Displayed formulas that no line holds whole; nbval asks the lines in their page."""
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    displayed = re.findall(r"\$\$\s*(.*?)\s*(?:\\tag\{[A\d.]+\}\s*)?\$\$", text, re.DOTALL)
    assert text.count("$$") == 2 * len(displayed)
    lines = [line for cell in notebook.cells for line in cell.metadata.get("held", [])]
    held = "\n".join(line.partition(" <- ")[0] for line in lines)
    return [tex for tex in displayed if " ".join(tex.split()) not in held]


def test_each_displayed_formula_stands_in_a_line_of_its_page():
    notebooks = {path.stem: pages.read(path) for path in pages.NOTEBOOKS}
    assert {name: tex for name, page in notebooks.items() if (tex := unheld(page))} == {}
    page = notebooks["05_positions"]
    (cell,) = (cell for cell in page.cells if r"\tag{5.7}" in cell.source)
    cell.source = cell.source.replace(r"_{i-j}\, q", r"_{j-i}\, q")
    assert len(unheld(page)) == 1


# ---------------------------------------------------------------- in the notation

FORMULA = r"""
$$
\text{out} = \operatorname{softmax}\!\left(\frac{QK^\top}{\sqrt{d_k}}\right) V
$$
"""
STEPS = {
    "1. scale": "`scores = q @ k.mT * scale`",
    "2. softcap": r"$c \tanh(\text{scores} / c)$ keeps every score between $-c$ and $c$",
    "3. bias": "`scores + attn_bias`",
    "4. mask": r"where `mask` is False, the score becomes $-\infty$",
    "5. softmax": "over the keys, the last axis; a row that is closed everywhere becomes zeros",
    "6. dropout": "some weights become 0, the others grow by $1/(1-p)$; in training only",
    "7. times $V$": "`out = weights @ v`",
}


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


Q, K, V = draw(3, 4), draw(5, 4, seed=1), draw(5, 2, seed=2)


def same(*pair) -> bool:
    return torch.allclose(*pair, rtol=1e-12)


def test_the_formula_of_the_notation_is_that_of_attention():
    assert NOTATION.count("$$") == 2
    assert NOTATION.count(FORMULA) == 1
    powers = (Q @ K.mT / math.sqrt(4)).exp()
    assert same(attention(Q, K, V)[0], powers / powers.sum(dim=1, keepdim=True) @ V)


def test_the_steps_of_the_notation_are_those_of_attention():
    """In training only: the layers' own tests say so of dropout."""
    assert dict(re.findall(r"(?m)^\| (\d\. [^|]+) \| ([^|]+) \|", NOTATION)) == STEPS
    bias, mask = draw(3, 5, seed=3), torch.arange(5) <= torch.tensor([[2], [0], [-1]])
    options = {"scale": 0.7, "softcap": 0.8, "attn_bias": bias, "mask": mask}
    scores = 0.8 * (Q @ K.mT * 0.7 / 0.8).tanh() + bias
    powers = scores.exp() * mask
    weights = powers / powers.sum(dim=1, keepdim=True).clamp(min=1e-99)
    assert same(attention(Q, K, V, **options)[0], weights @ V)
    torch.manual_seed(0)
    used = attention(Q, K, torch.eye(5).double(), dropout_p=0.25, **options)[0]
    assert same(used, (used != 0) * weights / (1 - 0.25))
    assert 0 < (used != 0).sum() < (weights != 0).sum()


def shared_heads():
    layer, x = MultiHeadAttention(12, 6, num_kv_heads=2).double(), draw(1, 4, 12)
    q = split_heads(layer.q_proj(x), 6)
    k, v = (split_heads(part(x), 2) for part in (layer.k_proj, layer.v_proj))
    heads = [attention(q[:, h], k[:, h // (6 // 2)], v[:, h // (6 // 2)])[0] for h in range(6)]
    return same(layer(x), layer.out_proj(torch.cat(heads, dim=-1)))


def last_queries():
    rows = [attention(Q[i : i + 1], K[: i + 3], V[: i + 3])[0] for i in range(3)]
    return same(attention(Q, K, V, causal=True)[0], torch.cat(rows))


@for_each(
    (r"query head $h$ uses key head $\lfloor h / (H / H_\text{kv}) \rfloor$", shared_heads),
    (
        r"a causal mask and $T \ne S$, the queries are the **last** $T$ of the $S$ positions",
        last_queries,
    ),
    (r"| $d_\text{model} / H$ by default |", lambda: MultiHeadAttention(12, 3).d_k == 12 / 3),
    (
        "`nn.Linear(d_model, H * d_k).weight` has the shape `(H * d_k, d_model)`",
        lambda: MultiHeadAttention(12, 3, d_k=5).q_proj.weight.shape == (3 * 5, 12),
    ),
    (
        "`d_model=4, H=8, d_k=64, d_v=32` is legal",
        lambda: MultiHeadAttention(4, 8, d_k=64, d_v=32).out_proj.weight.shape == (4, 8 * 32),
    ),
)
def test_a_sentence_of_the_notation_is_true(sentence, holds):
    assert NOTATION.count(sentence) == 1
    assert holds()


NAMED = {"N": "num_layers", "X": "x", "C": "context", "A": "weights", "AV": "out", "M": "mask"}
NAMED |= {"W^Q": "q_proj", "W^K": "k_proj", "W^V": "v_proj", "W^O": "out_proj", "z": "logits"}
NAMED |= {"b": "attn_bias", r"QK^\top / \sqrt{d_k}": "scores", "Q": "q", "K": "k", "V": "v"}
NAMED |= {r"\beta_t": "beta", "g_t": "log_decay"}


def test_symbols_of_the_notation_are_those_of_the_code():
    symbols = re.findall(r"(?m)^\| \$([^$]+)\$ \| `(\w+)`", NOTATION)
    assert len(symbols) > 20
    for tex, name in symbols:
        assert NAMED.get(tex, re.sub(r"\\text\{(\w+)\}", r"\1", tex)) == name
