"""Sentences that no number and no output holds: their words, and what must be true for them.

A row names a file, words of it, and Python that holds if they are true. Words that were changed
are seen, and words that are no longer true; whether the Python says what the words say, a person
has to judge.
"""

import math
import re

import pages
import torch
from tables import for_each

from attn_lib import files, functional, masks, positions, vision
from attn_lib.layers import FeedForward, MultiHeadAttention, split_heads
from attn_lib.training import train

CHECK, ARCHITECTURES = ".github/workflows/check.yml", "tests/library/test_architectures.py"
FILES = ["README.md", "LICENSE", "pyproject.toml", "CITATION.cff", CHECK, ARCHITECTURES]
FILES += ["attn_lib/data/photographs.txt"]
FILES += [str(path.relative_to(pages.ROOT)) for path in pages.ROOT.glob("attn_lib/*.py")]
TEXTS = {name: " ".join((pages.ROOT / name).read_text().split()) for name in FILES}


def has(name: str, *words: str) -> bool:
    return all(word in TEXTS[name] for word in words)


def draw(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def near(one, other) -> bool:
    one, other = torch.as_tensor(one).double(), torch.as_tensor(other).double()
    return one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=5e-4)


README = {
    "with Python 3.10 or later": lambda: has("pyproject.toml", 'requires-python = ">=3.10"'),
    "in a fresh environment of Python 3.11": lambda: has(CHECK, 'python-version: "3.11"'),
    "Random models of Llama, Qwen3, Gemma2, Gemma3, Olmo2 and SmolLM3 become models of this "
    "library": lambda: (
        re.findall(r'": "(\w+)"', re.search(r"DECODERS = {(.*?)}", TEXTS[ARCHITECTURES])[1])
        == "Llama Qwen3 Gemma2 Gemma3 Olmo2 SmolLM3".split()
    ),
    "The typefaces, Inter and Fira Math, are under the SIL Open Font License.": lambda: has(
        "LICENSE",
        "Inter, copyright The Inter Project Authors, under the SIL Open Font",
        "Fira Math",
    ),
    "The weights of all-MiniLM-L6-v2, DINOv2 and SmolLM2 are fetched, never stored here, and "
    "are under Apache 2.0": lambda: (
        TEXTS["LICENSE"].count("under the Apache License 2.0")
        == len({n.split("/")[0] for n in files.SOURCES})
    ),
    "Fashion-MNIST is under MIT, the photographs are CC0 or public domain: notes stand beside "
    "them in `attn_lib/data`.": lambda: (
        has("LICENSE", "fashion.npz: Fashion-MNIST, copyright 2017 Zalando SE, under the MIT")
        and has("attn_lib/data/photographs.txt", "CC0", "public domain")
    ),
}
LICENSE = {
    "weather.csv: NOAA, public domain, by way of vega_datasets 0.9.0, whose package is under "
    "the MIT License, copyright 2018 Jake Vanderplas.": lambda: has(
        "attn_lib/datasets.py", "NOAA, public domain, from the package vega_datasets."
    ),
    "weights.txt, a list of packages: as the code.": lambda: all(
        name.replace("==", " ") in TEXTS["LICENSE"]
        for name in re.findall(r"(?m)^(\S+==\S+)", (files.DATA / "weights.txt").read_text())
    ),
    "Inter, copyright The Inter Project Authors, under the SIL Open Font License 1.1; it "
    "stands in inter.txt.": lambda: all(
        words in (files.DATA / "inter.txt").read_text()
        for words in ("The Inter Project Authors", "SIL OPEN FONT LICENSE Version 1.1")
    ),
    "book/assets/fonts/formulas.woff2 is a part of Fira Math 0.3.4, under the SIL Open Font "
    "License 1.1; it stands in formulas.txt beside it.": lambda: all(
        words in (pages.BOOK / "assets/fonts/formulas.txt").read_text()
        for words in ("Fira Math 0.3.4,", "Version 1.1 - 26")
    ),
    "4. Weights of others, fetched at run time, never stored here:": lambda: (
        not [*pages.ROOT.glob("attn_lib/data/*minilm*"), *pages.ROOT.glob("**/*.gguf")]
    ),
}

# ---------------------------------------------------------------- docstrings

Q, K, V = draw(2, 5, 8), draw(2, 7, 8), draw(2, 7, 3)
OPEN, CLOSED = torch.ones(5, 7, dtype=torch.bool), torch.zeros(5, 7, dtype=torch.bool)


def layer(**options):
    torch.manual_seed(0)
    return MultiHeadAttention(12, 3, **options).double()


def moved(of_key: int, **options) -> list[int]:
    """Which queries of a layer see a change of one key."""
    attend, x = layer(**options), draw(1, 6, 12)
    other = x.clone()
    other[0, of_key] += 1
    difference = (attend(x, causal=True) - attend(other, causal=True)).abs().sum(dim=-1)[0]
    return difference.gt(1e-9).nonzero().flatten().tolist()


def mode_after_training() -> bool:
    model = torch.nn.Linear(1, 1).eval()
    seen = []
    train(model, lambda m, _: (seen.append(m.training), m(torch.ones(1)).sum())[1], steps=1, lr=0.1)
    return seen == [True] and not model.training


DOCSTRINGS = {
    "functional": {
        "A query that may attend to nothing gets a row of zeros, never NaN and "
        "never uniform": lambda: functional.attention_weights(Q, K, mask=CLOSED).eq(0).all(),
        "query i of T attends to the keys up to position i + S − T": lambda: torch.equal(
            functional.attention_weights(Q, K, causal=True)[0] > 0,
            torch.tensor([[j <= i + 7 - 5 for j in range(7)] for i in range(5)]),
        ),
        "scores become softcap · tanh(scores / softcap)": lambda: near(
            functional.attention_weights(Q, K, softcap=0.7),
            (0.7 * (Q @ K.mT / 8**0.5 / 0.7).tanh()).softmax(dim=-1),
        ),
        "rows sum to 1, or to 0 where nothing may be attended to": lambda: near(
            functional.attention_weights(Q, K).sum(dim=-1), torch.ones(2, 5)
        ),
        "The weights are returned before dropout, so their rows still sum to 1 "
        "in training.": lambda: near(
            functional.attention(Q, K, V, dropout_p=0.5)[1].sum(dim=-1), torch.ones(2, 5)
        ),
        "``-inf`` closes a cell, as False does in ``mask``": lambda: near(
            functional.attention_weights(
                Q, K, attn_bias=masks.to_additive(OPEN.tril(), dtype=torch.float64)
            ),
            functional.attention_weights(Q, K, mask=OPEN.tril()),
        ),
    },
    "layers": {
        "head h holds channels h · d to (h + 1) · d of each position": lambda: torch.equal(
            split_heads(Q, 4)[:, 2], Q[..., 4:6]
        ),
        "number of positions that each query may attend to: its own and those "
        "just before it": lambda: moved(1, window=3) == [1, 2, 3],
        'with ``"silu"`` SwiGLU, which at the same d_ff has half as many '
        "parameters again": lambda: (
            [
                sum(
                    p.numel()
                    for p in FeedForward(d_model=4, d_ff=6, gated=g, bias=False).parameters()
                )
                for g in (True, False)
            ]
            == [72, 48]
        ),
        "for a query that may attend to nothing, the output projection of zeros, which is its "
        "bias": lambda: near(
            layer()(draw(1, 5, 12), mask=CLOSED[:, :5]), layer().out_proj.bias.expand(1, 5, 12)
        ),
        "if True, the queries are the last T of S positions and see no later key": lambda: (
            moved(2) == [2, 3, 4, 5]
        ),
    },
    "masks": {
        "The token itself is counted, as in Mistral and Keras: with ``window=3`` a query "
        'attends to three keys. Longformer\'s "w on each side" is ``window=w + '
        "1, right=w``.": lambda: (
            masks.window_mask(9, window=3)[5].sum() == 3
            and masks.window_mask(9, window=3, right=2)[4].tolist()
            == [abs(j - 4) <= 2 for j in range(9)]
        ),
        "Let query i, at position i + offset, attend to every key up to and including its "
        "position.": lambda: torch.equal(
            masks.causal_mask(5, 7, offset=1),
            torch.tensor([[j <= i + 1 for j in range(7)] for i in range(5)]),
        ),
        "Close the padding after the end of each example": lambda: (
            masks.padding_mask(torch.tensor([2]), 4).flatten().tolist() == [1, 1, 0, 0]
        ),
        "0 where open, −inf where closed": lambda: (
            masks.to_additive(OPEN).eq(0).all() and masks.to_additive(CLOSED).eq(-math.inf).all()
        ),
        "int64 (B, S): 1 = may be attended to, 0 = padding": lambda: (
            masks.to_binary(masks.padding_mask(torch.tensor([1]), 2)).tolist() == [[1, 0]]
        ),
        "bool of the same shape, True = blocked": lambda: torch.equal(
            masks.to_blocked(OPEN), CLOSED
        ),
    },
    "positions": {
        "column 2i is sin(p / base^(2i/d_model)) and column 2i + 1 the cosine of the same "
        "angle": lambda: near(
            positions.sinusoidal(4, 6)[3, 2:4],
            [f(3 / 1e4 ** (2 / 6)) for f in (math.sin, math.cos)],
        ),
        "each pair keeps its length": lambda: near(
            positions.apply_rope(Q, torch.arange(5)).view(2, 5, 2, 4).norm(dim=2),
            Q.view(2, 5, 2, 4).norm(dim=2),
        ),
        "−slope · distance for keys at or before the query, and 0 for later keys": lambda: near(
            positions.alibi_bias(2, 3)[0, 1], [-1 / 16, 0.0, 0.0]
        ),
    },
    "vision": {
        "row i gives the share of each input in position i. Rows sum to 1, also for a query "
        "that may attend to nothing": lambda: near(
            vision.attention_rollout([torch.zeros(1, 2, 3, 3)])[0], torch.eye(3)
        ),
    },
    "training": {
        "trained in place, in training mode; afterwards each module has its "
        "earlier mode": mode_after_training,
    },
}

TABLES = {"README.md": README, "LICENSE": LICENSE}
TABLES |= {f"attn_lib/{name}.py": table for name, table in DOCSTRINGS.items()}
ROWS = {words: (name, holds) for name, table in TABLES.items() for words, holds in table.items()}


@for_each(*ROWS, ids=lambda words: " ".join(words.split()[:6]))
def test_a_sentence_stands_and_is_true(words):
    name, holds = ROWS[words]
    assert words in TEXTS[name]
    assert holds()


def test_a_sentence_that_is_no_longer_true_is_seen(monkeypatch):
    (holds,) = (holds for words, (_, holds) in ROWS.items() if "a row of zeros" in words)
    right = functional.attention_weights
    assert holds()
    monkeypatch.setattr(functional, "attention_weights", lambda *of, **how: right(*of, **how) + 0.1)
    assert not holds()
