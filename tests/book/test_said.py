"""Sentences that no number and no output holds: their words, and what must be true for them.

A row names a file, words of it, and Python that holds if they are true. Words that were changed
are seen, and words that are no longer true; whether the Python says what the words say, a person
has to judge.
"""

import inspect
import json
import math
import re
from inspect import signature

import compare
import nbformat
import pages
import torch
from tables import for_each

import attn_check
import attn_lib
from attn_lib import files, functional, fused, masks, positions, recurrent, vision
from attn_lib.layers import FeedForward, MultiHeadAttention, split_heads
from attn_lib.models import SentenceEncoder
from attn_lib.training import train

CHECK, PINS = ".github/workflows/check.yml", "requirements.txt"
FILES = ["README.md", "LICENSE", "pyproject.toml", PINS, ".ci/run", "CITATION.cff"]
FILES += [CHECK, "attn_lib/data/photographs.txt", "_toc.yml", "CONTRIBUTING.md", "CHANGELOG.md"]
FILES += ["tests/library/oracle.py", "tests/library/test_functional.py"]
FILES += [
    "tests/library/test_architectures.py",
    "tests/book/browsing.py",
    "tests/book/test_front.py",
]
FILES += ["tests/book/test_checks.py", "book/_tools/pdf.py"]
FILES += [str(path.relative_to(pages.ROOT)) for path in pages.ROOT.glob("attn_*/*.py")]
TEXTS = {name: " ".join((pages.ROOT / name).read_text().split()) for name in FILES}
TEXTS |= {path.stem: " ".join(path.read_text().split()) for path in pages.TEXTS}
for path in pages.NOTEBOOKS:
    cells = [cell.source for cell in pages.read(path).cells if cell.cell_type == "markdown"]
    TEXTS[path.stem] = " ".join(re.sub(r"(?m)^> ?", "", "\n".join(cells)).split())

RAW = (pages.ROOT / "README.md").read_text()
ARCHITECTURES = TEXTS["tests/library/test_architectures.py"]
COMMANDS = re.findall(r"(?m)^pip install -r requirements.txt && (.*)$", RAW)
LIBRARY = (
    "functional masks layers positions transformer vision training plotting pretrained".split()
)
LIBRARY += ["exercises"]


def has(name: str, *words: str) -> bool:
    return all(word in TEXTS[name] for word in words)


def took() -> list[int]:
    """Seconds of installing, of running every page and of building, as they were measured."""
    numbers = json.loads((pages.ROOT / "tests/book/numbers.json").read_text())["README.md"]
    (line,) = (line for line in numbers if "nbval" in line)
    return [int(n) for n in re.findall(r"(?:pip|nbval|build) (\d+)", line)]


def printed(text: str) -> list:
    return [nbformat.v4.new_output("stream", text=text)]


def draw(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def near(one, other) -> bool:
    one, other = torch.as_tensor(one).double(), torch.as_tensor(other).double()
    return one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=5e-4)


def stands_alone() -> bool:
    """Whether attn_check imports nothing of attn_lib."""
    return not any(
        re.search(r"(?m)^ *(import|from) attn_lib", path.read_text())
        for path in pages.ROOT.glob("attn_check/*.py")
    )


def report(attend) -> str:
    return str(attn_check.diagnose(attend, causal=True))


def peeks(q, k, v):
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1) @ v


def hides(q, k, v):
    return functional.attention(q, k, v, causal=True)[0]


README = {
    "Attention is a few lines of code, and they go wrong in silence.": lambda: (
        has("index", "Attention goes wrong in silence.")
        and len(inspect.getsource(hides).splitlines()) < 5
    ),
    "and teaches the checks that notice. Beside its small library, `attn_lib`, stands "
    "`attn_check`, which says in words what is wrong with an attention of your own.": lambda: (
        has("index", "brings the checks that notice.", "which comes with the small library")
        and has("attn_check/__init__.py", "Say in words what is wrong with somebody's attention")
    ),
    "![The front page of the book: what you will be able to do, beside a figure of one head "
    "whose query can be dragged](book/assets/page.png)": lambda: has(
        "index", "You will be able to", "front-figure} fig-one-head-drag", "The **query**"
    ),
    "in this folder": lambda: (pages.ROOT / "pyproject.toml").is_file(),
    "In a test, use `attn_check.assert_attention` (for RoPE `assert_rope`);": lambda: (
        {"assert_attention", "assert_rope"} <= {*attn_check.__all__}
    ),
    "The first time they fetch about 290 MB of trained weights into the cache folder; the "
    "packages take 1.9 GB with PyTorch for processors alone (the flag is below). On two cores the "
    "website took us 6 minutes, half of them for running every page.": lambda: (
        0.45 < took()[1] / sum(took()) < 0.55 and round(sum(took()) / 60) == 6
    ),
    "**Every claim is executed, compared with something independent, and "
    "shown able to fail.**": lambda: has(
        "CONTRIBUTING.md", "**every claim is executed, compared with something indep"
    ),
    "The whole list, with reasons: [How this book is checked](book/how_checked.md).": lambda: has(
        "how_checked", "# How this book is checked"
    ),
    "Code under MIT, text and figures under CC BY 4.0; see [LICENSE](LICENSE).": lambda: has(
        "LICENSE", "under the MIT License below", "(CC BY 4.0)"
    ),
    "What changed is in the [changelog](CHANGELOG.md).": lambda: has(
        "CHANGELOG.md", "What changes for readers", attn_lib.__version__
    ),
    "This book takes you from one attention head to real language models and Vision "
    "Transformers, on real sentences and real trained weights,": lambda: (
        has("README.md", "1. Build one attention head", "a real language model, SmolLM2")
        and has("README.md", "race a Vision Transformer", "a real sentence encoder, MiniLM")
    ),
    "You come out able to build a head, a Transformer block, a language model and a Vision "
    "Transformer; to load published weights into code of your own and prove that it is the "
    "same model; to look into trained heads and tell a finding from a story; and to find what "
    "is wrong with an attention that runs.": lambda: (
        has("index", "**build** a head, a block, a language model, a Vision Transformer;")
        and has("index", "**load** published weights, and prove that it is the same model;")
        and has("index", "**look** into trained heads, and tell a finding from a story;")
    ),
    "`_build/html/index.html`, which needs no server and no network; `python "
    "book/_tools/pdf.py` then prints the whole as a PDF beside it.": lambda: has(
        "book/_tools/pdf.py", 'ROOT / "_build" / "html"'
    ),
    "in a shell, `python -m attn_check module:function`.": lambda: has(
        "attn_check/__main__.py", "module:function"
    ),
    "The first runs every page anew, compares its outputs and builds the website,": lambda: (
        [("--nbval" in line, "jupyter-book" in line) for line in COMMANDS]
        == [(True, True), (False, False)]
    ),
    "The second tests the library and the book,": lambda: (
        [("--nbval" in line, "jupyter-book" in line) for line in COMMANDS]
        == [(True, True), (False, False)]
    ),
    "One that you have downloaded, for Colab or any Jupyter, installs the library from its "
    "first cell: from a wheel beside it, which the download menu of each page offers.": lambda: all(
        ".whl" in pages.code_cells(pages.read(p))[0].source for p in pages.NOTEBOOKS
    ),
    "Every text that a notebook prints and every figure that it draws are compared anew on "
    "every build; where one of them differs, there is no book. The numbers in the sentences "
    "are bound to the cells that print them.": lambda: (
        compare.output_fault(printed("a"), printed("b"))
        and not compare.output_fault(printed("a"), printed("a"))
        and pages.numbers_bound in pages.RULES
    ),
    "with Python 3.10 or later": lambda: has("pyproject.toml", 'requires-python = ">=3.10"'),
    "in a fresh environment of Python 3.11": lambda: has(CHECK, 'python-version: "3.11"'),
    "names the mistake, the line to look for, the repair and the smallest example that shows "
    "it": lambda: all(
        w in report(peeks) for w in ("No causal mask", "Look for:", "Repair:", "3 pos")
    ),
    "or says what holds, and what could not be checked": lambda: all(
        w in report(hides) for w in ("no mistake found", "Holds", "Not checked")
    ),
    "in a headless Chromium where there is one": lambda: has(
        "tests/book/browsing.py", "playwright.chromium.launch(executable_path=found"
    ),
    "`jupyter lab book` opens the notebooks (`pip install jupyterlab` first)": lambda: (
        (pages.BOOK / "01_one_head.ipynb").exists() and not has(PINS, "jupyterlab==")
    ),
    "attn_lib/ the library: attention, masks, layers, positions, blocks, images, training, "
    "figures, trained weights, exercise checks": lambda: (
        {*LIBRARY} <= {path.stem for path in pages.ROOT.glob("attn_lib/*")}
    ),
    "attn_check/ what finds the mistake in somebody's attention; it imports nothing of "
    "attn_lib": stands_alone,
    "book/ the pages: notebooks, stored as they ran": lambda: len(pages.NOTEBOOKS) > 10,
    "We changed one digit that chapter 1 prints, and the first command said:": lambda: has(
        "tests/book/test_checks.py", "The lines of the README that a changed digit brought forth"
    ),
    "Mistakes of each kind are planted by tests, on copies, which expect failure.": lambda: has(
        "tests/book/test_checks.py", "(checkout", "returncode == 1"
    ),
    "`attn_lib.attention` is compared with plain loops in double precision and with PyTorch's "
    "own kernel, on inputs drawn by hypothesis, and passes all 93 attention cases that ONNX "
    "publishes, in half precision within one rounding step, two for bfloat16 (`python "
    "tests/conformance/test_onnx.py`).": lambda: (
        has("tests/library/oracle.py", "plain Python loops and double precision")
        and has("tests/library/test_functional.py", "hypothesis", "scaled_dot_product_attention")
    ),
    "Random models of Llama, Qwen3, Gemma2, Gemma3, Olmo2 and SmolLM3 become models of this "
    "library and give the same logits, gradients and texts (`python "
    "tests/library/test_architectures.py`).": lambda: (
        re.findall(r'": "(\w+)"', re.search(r"DECODERS = {(.*?)}", ARCHITECTURES)[1])
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
    "This project has two parts of its own, under two licences, and data and weights, some of "
    "others.": lambda: has(
        "LICENSE", "1. Code:", "2. Text and figures:", "3. Data", "4. Weights of others"
    ),
    "under the Creative Commons Attribution 4.0 International License (CC BY 4.0), "
    "https://creativecommons.org/licenses/by/4.0/legalcode": lambda: has(
        "CITATION.cff", "license: [MIT, CC-BY-4.0]"
    ),
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

# ---------------------------------------------------------------- what the changelog says of code


def by_position(of) -> list[str]:
    """The sizes that a constructor takes without their names."""
    parameters = [*signature(of.__init__).parameters.values()][1:]
    return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]


def refuses(**options) -> bool:
    try:
        layer(**options)
    except (TypeError, ValueError):
        return True
    return False


def delta(part=slice(None), decays=(4,), **options):
    """What the gated delta rule gives for some of five tokens, and its state."""
    sizes = {"q": (4,), "k": (4,), "v": (3,), "beta": (), "log_decay": decays}
    given = {name: draw(1, 2, 5, *width)[:, :, part] / 3 for name, width in sizes.items()}
    given["log_decay"] = -given["log_decay"].abs()
    return recurrent.gated_delta_rule(**given, **options)


def equal(*pairs) -> bool:
    return all(near(one, other) for one, other in zip(*pairs, strict=True))


def keeps_a_state() -> bool:
    """Token by token, in chunks and with padding, from the state of the first three tokens on."""
    padding, first = torch.zeros(1, 1, 1, 5).bool(), delta(slice(3))[1]
    return (
        equal(delta(chunk_size=None), delta(chunk_size=2))
        and equal(delta(decays=(), chunk_size=None), delta(decays=(), chunk_size=2))
        and near(delta(slice(3, None), state=first)[0], delta()[0][:, :, 3:])
        and near(delta(mask=padding, state=first)[1], first)
    )


def steps_with_caches() -> bool:
    """Two layers that share a cache by their numbers give what they give without one."""
    first, second, x = layer(), layer(window=2), draw(1, 4, 12)
    cache = attn_lib.Cache()
    steps = []
    for token in x.split(1, dim=1):
        middle = first(token, causal=True, cache=cache, layer=0)
        steps.append(second(middle, causal=True, cache=cache, layer=1))
    return near(torch.cat(steps, dim=1), second(first(x, causal=True), causal=True))


SIZED = [MultiHeadAttention, FeedForward, SentenceEncoder, attn_lib.DecoderLM]
SIZED += [attn_lib.Transformer, attn_lib.TransformerBlock, attn_lib.VisionTransformer]
CHANGELOG = {
    "`attn_check`, a package of its own that comes with `attn_lib` and imports nothing of it, "
    "holds `diagnose`, `assert_attention`, `diagnose_rope` and `assert_rope`;": lambda: (
        {"diagnose", "assert_attention", "diagnose_rope", "assert_rope"} <= {*attn_check.__all__}
        and stands_alone()
    ),
    "`window_mask(T, window=3)` counts the token itself, as a layer's `window` does.": lambda: (
        masks.window_mask(9, window=3)[5].sum() == 3 and moved(1, window=3) == [1, 2, 3]
    ),
    "Numbers added to the scores are `attn_bias`; `bias` is a projection's, as in "
    "PyTorch.": lambda: (
        "attn_bias" in signature(attn_lib.attention).parameters
        and "bias" not in signature(attn_lib.attention).parameters
        and layer(bias=False).q_proj.bias is None
    ),
    "Sizes are given by name, except in `MultiHeadAttention(d_model, num_heads)`": lambda: (
        [by_position(of) for of in SIZED] == [["d_model", "num_heads"], *[[]] * (len(SIZED) - 1)]
    ),
    "`SentenceEncoder` takes `tokens` and `mask=`.": lambda: (
        [*signature(SentenceEncoder.forward).parameters][1:] == ["tokens", "mask"]
    ),
    "A cache tells layers apart by their index: a stack counts its own; layers of a stack of your "
    "own are called with `layer=0, 1, …`.": steps_with_caches,
    "`qk_norm=` also takes a factory of one size, such as `nn.RMSNorm`.": lambda: (
        layer(qk_norm=torch.nn.RMSNorm).q_norm.normalized_shape == (4,)
    ),
    "Numbers that are none, NaN or infinite are refused when a layer or a model is made.": lambda: (
        all(refuses(scale=number) for number in ("1", math.nan, math.inf))
        and not refuses(scale=0.5)
    ),
    "`fused_attention` without a scale divided by the root of the values' width where these are "
    "wider than the keys.": lambda: near(
        fused.fused_attention(*(x[None] for x in (Q, K, draw(2, 7, 32)))),
        attn_lib.attention(*(x[None] for x in (Q, K, draw(2, 7, 32))))[0],
    ),
    "An empty piece, a mask and a window of one failed.": lambda: (
        moved(1, window=1) == [1] and layer()(draw(1, 0, 12)).shape == (1, 0, 12)
    ),
    "linear attention and the gated delta rule, token by token or in chunks, with a state that is "
    "given and returned, a decay of each head or of each channel, and padding that leaves the "
    "state alone;": keeps_a_state,
    "gradients do not vanish without the division, they concentrate on few queries": lambda: has(
        "04_scaling", "it does not vanish, it concentrates on few queries."
    ),
    "Exercise 5.3 is another one, and there is no 5.4.": lambda: (
        [f"Exercise 5.{n}.**" in TEXTS["05_positions"] for n in (3, 4)] == [True, False]
    ),
}

# ---------------------------------------------------------------- formulas inside sentences

# a sum that no line of its page holds
FORMULAS = {
    "03_many_heads": {
        "$0.7 \\cdot 0 + 0.3 \\cdot 1 = 0.3$": lambda: near(0.7 * 0 + 0.3 * 1, 0.3),
    },
}
TABLES = {"README.md": README, "LICENSE": LICENSE, "CHANGELOG.md": CHANGELOG, **FORMULAS}
TABLES |= {f"attn_lib/{name}.py": table for name, table in DOCSTRINGS.items()}
ROWS = [(name, *row) for name, table in TABLES.items() for row in table.items()]


@for_each(*ROWS, ids=lambda part: " ".join(part.split()[:6]) if isinstance(part, str) else "")
def test_a_sentence_stands_and_is_true(name, words, holds):
    assert words in TEXTS[name]
    assert holds()


def still_true(words: str) -> bool:
    (holds,) = (holds for _, begins, holds in ROWS if begins.startswith(words))
    return bool(holds())


@for_each(
    ("with Python 3.10 or later", "pyproject.toml", ">=3.10", ">=3.11"),
    ("This project has two parts", "LICENSE", "2. Text and figures:", "2. Text:"),
)
def test_a_sentence_that_is_no_longer_true_is_seen(words, name, old, new, monkeypatch):
    assert still_true(words)
    monkeypatch.setitem(TEXTS, name, TEXTS[name].replace(old, new))
    assert not still_true(words)


@for_each(
    ("A query that may attend to nothing", functional, "attention_weights"),
    ("Close the padding after the end", masks, "padding_mask"),
)
def test_a_docstring_of_another_computation_is_seen(words, module, name, monkeypatch):
    right = getattr(module, name)

    def wrong(*given, **options):
        found = right(*given, **options)
        return ~found if found.dtype == torch.bool else found + 0.1

    monkeypatch.setattr(module, name, wrong)
    assert not still_true(words)


# words of the README that no row holds: what is brought on Linux, and where there is no GPU
UNHELD = 26


def unheld(text: str) -> list[str]:
    """Words of the README outside of its tables, its code and all rows."""
    text = re.sub(r"(?ms)^\|[^\n]*$|^#+ [^\n]*$|```.*?```|<!--.*?-->", "", text)
    text = " ".join(text.split())
    for words in sorted(README, key=len, reverse=True):
        text = text.replace(words, " ")
    return re.findall(r"\w[\w.]*", text)


def test_nearly_all_words_of_the_readme_are_held():
    assert len(unheld(RAW)) == UNHELD, unheld(RAW)
    assert len(unheld(RAW.replace("no server and no network", "a server and no network"))) > UNHELD
