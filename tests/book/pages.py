"""The rules that every page keeps, each a function that returns what breaks it.

`test_book.py` applies them to the pages and, with planted mistakes, shows each one able to fail.
"""

import ast
import functools
import itertools
import re
from collections import defaultdict
from pathlib import Path

import colab
import nbformat
import number_sources
import pictures
import yaml
from idle import TOLERANCES, always_holds, compares, name_of
from markdown_it import MarkdownIt
from number_sources import printed
from pybtex.database import parse_string
from sitting import minutes_said, tags

ROOT = Path(__file__).resolve().parents[2]
BOOK = ROOT / "book"
NOTEBOOKS = sorted(BOOK.glob("*.ipynb"))
CHAPTERS = [path for path in NOTEBOOKS if path.stem[:2].isdigit()]  # the others are appendices
TEXTS = sorted(BOOK.glob("*.md"))

FOLDED = {"hide-input", "hide-cell"}
ALLOWED_MIME = {"text/plain", "image/png", "image/svg+xml"}
METADATA = {"tags", "mystnb", "reason", "numbers", "shown", "live", "drawn", "held", "table"}
METADATA |= {"licence"}  # of a figure, where it is not CC BY 4.0
METADATA |= {"cellView", "collapsed", "jupyter"}  # exactly as test_colab.py wants them
OF_A_NOTEBOOK = {"appendix", "kernelspec", "language_info", "record", "teaches"}
# others need a reason
TAGS = r"hide-input|hide-cell|experiment|caption|licence|(exercise|solution)-\d+\.\d+"
SHOWN = {"figure", "image", "code_prompt_show", "code_prompt_hide"}


def config() -> dict:
    return yaml.safe_load((ROOT / "_config.yml").read_text())


def address() -> str:
    return config()["repository"]["url"]


@functools.cache
def tests_in(name: str) -> list[str]:
    """The tests of a file."""
    return re.findall(r"^def (test_\w+)", (ROOT / name).read_text(), re.MULTILINE)


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.v4.reads(path.read_text())


def nodes_of(source: str) -> list[ast.AST]:
    """All parts of code, without the magics of a notebook."""
    return [*ast.walk(ast.parse(re.sub("(?m)^( *)%.*", r"\1pass", source)))]


def imported(source: str) -> set[str]:
    """The modules that code imports, at its top or late, but for those beside it."""
    nodes = nodes_of(source)
    plain = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    found = (node for node in nodes if isinstance(node, ast.ImportFrom) and not node.level)
    return plain | {node.module for node in found}


def code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@functools.cache
def sources(path: Path) -> dict[str, str]:
    return {cell.id: cell.source for cell in code_cells(read(path))}


@functools.cache
def written() -> dict[str, str]:
    """What stands in each module of the packages, each text and each notebook, by their names."""
    found = {path.name: path.read_text() for path in [*ROOT.glob("attn_*/*.py"), *TEXTS]}
    return found | {p.name: "\n".join(c.source for c in read(p).cells) for p in NOTEBOOKS}


def defined_by(parts: list[str], *changes: tuple[str, str], **given) -> dict:
    """What code of a page defines; each change, as of a planted mistake, must find its one place.

    What is given by name is there before.
    """
    source = "\n".join(parts)
    for old, new in changes:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    found = dict(given)
    exec(compile(source, "a page", "exec"), found)  # noqa: S102 - the book's own
    return found


def lines(cell) -> list[str]:
    return [line for line in cell.source.splitlines() if line.strip()]


# ---------------------------------------------------------------- stored as it ran


def stored_as_it_ran(notebook) -> list[str]:
    counts = [cell.execution_count for cell in code_cells(notebook) if cell.source.strip()]
    if counts != list(range(1, len(counts) + 1)):
        return [f"execution counts are {counts}, not 1 to {len(counts)}: run it from a clean start"]
    return []


def no_stray_output(notebook) -> list[str]:
    faults = []
    for cell in code_cells(notebook):
        if any(output.get("name") == "stderr" for output in cell.outputs):
            faults.append(f"{cell.id}: stderr is stored")
        for pattern in (r" at 0x[0-9a-f]{6,}", r"/(home|root|Users|tmp)/", r"-0\.0+\b"):
            found = re.search(pattern, printed(cell))
            if found:
                faults.append(f"{cell.id}: {found.group(0)!r} is stored")
    return faults


def clean_metadata(notebook) -> list[str]:
    named = [("the notebook", set(notebook.metadata) - OF_A_NOTEBOOK)]
    named += [(cell.id, set(cell.metadata) - METADATA) for cell in notebook.cells]
    faults = [f"{name}: metadata {sorted(others)}" for name, others in named if others]
    kernel = notebook.metadata.get("kernelspec", {}).get("name")
    if (kernel, notebook.metadata.get("language_info")) != ("python3", {"name": "python"}):
        faults.append("another kernel, or more than its name: store with book/_tools/execute.py")
    return faults


# ---------------------------------------------------------------- safe to open


def safe_outputs(notebook) -> list[str]:
    return [
        f"{cell.id}: an output of type {mime}"
        for cell in code_cells(notebook)
        for output in cell.outputs
        for mime in output.get("data", {})
        if mime not in ALLOWED_MIME
    ]


def safe_source(notebook) -> list[str]:
    faults = []
    for number, cell in enumerate(code_cells(notebook)):
        for line in lines(cell):
            install = number == 0 and line.strip().startswith("%pip install")
            if re.match(r"\s*(!|%)", line) and not install:
                faults.append(f"{cell.id}: a shell or magic line: {line.strip()}")
        forbidden = r"(?<![.\w])(?:eval|exec)\(|pickle|torch\.load\b|trust_remote_code"
        faults += [f"{cell.id}: {found}" for found in re.findall(forbidden, cell.source)]
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            faults += [f"{cell.id}: {fault}" for fault in safe_markdown(cell.source)]
    return faults


def safe_markdown(text: str) -> list[str]:
    """Raw HTML, and pictures from elsewhere: both can make a page call another server."""
    blocks = MarkdownIt().parse(text)
    parts = [part for block in blocks for part in (block, *(block.children or []))]
    faults = [f"raw HTML {part.content!r}" for part in parts if part.type.startswith("html")]
    faults += ["a link in <>, which no rule reads" for part in parts if part.markup == "autolink"]
    sources = [part.attrs["src"] for part in parts if part.type == "image"]
    return faults + [f"a picture from {source}" for source in sources if ":" in source]


# ---------------------------------------------------------------- exercises


def exercises_named(notebook) -> list[str]:
    """The tag of an exercise's cell, its prompts and its check name the same exercise."""
    named = r"(?i)\b(?:exercise|solution|check)(?: |-|\(\")(\d+\.\d+)"
    faults = []
    for cell in code_cells(notebook):
        shown = cell.metadata.get("mystnb", {})
        prompts = [shown.get(f"code_prompt_{what}", "") for what in ("show", "hide")]
        names = set(re.findall(named, "\n".join([*tags(cell), *prompts, cell.source])))
        faults += [f"{cell.id} names {names}"] * (len(names) > 1)
    return faults


# ---------------------------------------------------------------- figures


def figures_described(notebook) -> list[str]:
    """At length, with a name to be called by; a caption elsewhere stops the build."""
    faults = []
    for cell, below in itertools.pairwise(notebook.cells):
        if any("image/png" in output.get("data", {}) for output in cell.get("outputs", ())):
            shown = cell.metadata.get("mystnb", {})
            caption = colab.is_caption(below) and colab.unnumbered(below.source).strip()
            named = shown.get("figure", {}).get("name", "").startswith("fig-")
            if not (caption and named and len(shown.get("image", {}).get("alt", "")) >= 40):
                faults.append(f"{cell.id}: no description, name fig-… or caption below")
    return faults


def figures(notebook):
    """Each cell with a figure, and the words of its caption."""
    for cell, below in itertools.pairwise(notebook.cells):
        if "figure" in cell.metadata.get("mystnb", {}):
            yield cell, colab.unnumbered(below.source)


def pictures_bound(notebook) -> list[str]:
    """What nbval holds against a figure, or against the code above a text, is said there."""
    found = [f for cell, caption in figures(notebook) for f in pictures.line_faults(cell, caption)]
    first = notebook.cells.index(code_cells(notebook)[0])
    for n, cell in enumerate(notebook.cells):
        if "held" in cell.metadata:
            found += pictures.text_faults(cell)
            found += [f"{cell.id}: no code above asks its lines"] if n < first else []
    return found


PHONE, LEAST = 390, 9  # pixels: the width of a figure there, and the least height of its type


def figures_legible(notebook) -> list[str]:
    """On a phone no letter is too small; a figure that moves is drawn anew there."""
    faults = []
    for cell in code_cells(notebook):
        sizes = re.findall(r"\b(?:font|label)?size=(\d[\d.]*)", cell.source)
        for output in cell.outputs:
            drawn = output.get("metadata", {}).get("image/png", {}).get("width")
            if drawn is None or "live" in cell.metadata:
                continue
            letters = min([10, *map(float, sizes)]) * 100 / 72 * min(1, PHONE / drawn)
            if letters < LEAST:
                faults.append(f"{cell.id}: letters of {letters:.1f} px on a phone")
    return faults


# ---------------------------------------------------------------- numbers in the text


def numbers_bound(notebook) -> list[str]:
    """Each number that is read comes from where the page's metadata say, and is written so."""
    lines = [line for cell in notebook.cells for line in cell.metadata.get("numbers", [])]
    given = " ".join(line for line in lines if " <- given: " in line)
    links = "".join(f"]({url})" for url in re.findall(r"https?://[^\s\"]+", given))
    return number_sources.page_faults(notebook) + unlisted_links(links)


# ---------------------------------------------------------------- conclusions


def conclusions_shown(notebook) -> list[str]:
    """Each bullet of "What to remember" names a cell that asserts, or prints a comparison."""
    last = [c for c in notebook.cells if re.match(r"#+ What to remember\b", c.source)]
    if len(last) != 1:
        return [f"{len(last)} cells with the heading What to remember"]
    bullets = re.findall(r"^[*-] ", last[0].source, re.MULTILINE)
    shown = last[0].metadata.get("shown", [])
    faults = [f"{len(bullets)} bullets, {len(shown)} cells"] if len(bullets) != len(shown) else []
    sources = {cell.id: cell.source for cell in code_cells(notebook)}
    return faults + [
        f"{name} compares nothing that is seen"
        for name in shown
        if name not in sources or not shows_a_comparison(sources[name])
    ]


def shows_a_comparison(source: str) -> bool:
    """Whether a cell asserts, or prints what came of a comparison."""
    tree = ast.parse(source)
    nodes = [*ast.walk(tree)]
    if any(isinstance(n, ast.Assert) or name_of(n).startswith("assert_") for n in nodes):
        return True
    given = [n for n in nodes if isinstance(n, ast.Assign) and _compared(n.value, set())]
    names = {name_of(target) for assigned in given for target in assigned.targets}
    seen = [n for n in nodes if isinstance(n, ast.Call) and name_of(n) == "print"]
    seen += [n for n in tree.body[-1:] if isinstance(n, ast.Expr)]
    return any(_compared(node, names) for node in seen)


def _compared(tree: ast.AST, names: set[str]) -> bool:
    """Whether an expression holds a comparison, or one of the names."""
    return any(
        isinstance(node, ast.Compare)
        or compares(node)
        or (isinstance(node, ast.Name) and node.id in names)
        for node in ast.walk(tree)
    )


# ---------------------------------------------------------------- comparisons that can fail

CLOSE = 0.001  # a wider atol or rtol needs a reason
_RESULT = r"(?<![\w.])-?\d[\d.e+-]*|\b(?:True|False|nan|inf)\b"
_COMPUTED = (ast.Name, ast.Call, ast.BinOp)


def unusual_with_reason(notebook) -> list[str]:
    """What hides, skips or weakens a check says why, in the cell's metadata under ``reason``."""
    return [
        f"{cell.id}: {what} without a reason"
        for cell in notebook.cells
        if len(cell.metadata.get("reason", "")) < 20
        for what in [
            *(tag for tag in sorted(tags(cell)) if not re.fullmatch(TAGS, tag)),
            *sorted(set(cell.metadata.get("mystnb", {})) - SHOWN),
            *(re.findall(r"NBVAL_\w+|PYTEST_VALIDATE\w+", cell.source)),
            *(_weak(cell.source) if cell in code_cells(notebook)[1:] else []),
        ]
    ]


def _weak(source: str) -> list[str]:
    """Wide tolerances, and results that are written where they should be computed."""
    tree, found = ast.parse(source), []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        given = [part.value for part in call.keywords if part.arg in TOLERANCES]
        given += [n for n in call.args if compares(call) and type(_value(n)) in (int, float)]
        wide = [n for n in given if not isinstance(_value(n), int | float) or _value(n) > CLOSE]
        found += [f"tolerance {ast.unparse(value)}" for value in wide]
        if name_of(call) in ("print", "display"):
            found += _written(call.args)
    if tree.body and isinstance(last := tree.body[-1], ast.Expr):
        found += _written(getattr(last.value, "elts", [last.value]))
    return found


def _value(node: ast.AST) -> object:
    return getattr(node, "value", None) if isinstance(node, ast.Constant) else None


def _written(shown: list) -> list[str]:
    """The results among what is shown that no code computes; words may stand beside others."""
    fixed = [x for x in shown if not any(isinstance(n, _COMPUTED) for n in ast.walk(x))]
    texts = [str(x.value) if isinstance(x, ast.Constant) else ast.unparse(x) for x in fixed]
    seen = re.search if len(fixed) == len(shown) else re.fullmatch
    return [f"the written result {text!r}" for text in texts if seen(_RESULT, text.strip())]


def can_fail(notebook) -> list[str]:
    """No comparison of a thing with itself, no assertion that always holds."""
    return [
        f"{cell.id}: {ast.unparse(node)} always holds"
        for cell in code_cells(notebook)[1:]
        for node in ast.walk(ast.parse(cell.source))
        if always_holds(node)
    ]


# ---------------------------------------------------------------- links and set-up


def links_listed(notebook) -> list[str]:
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    return [fault for text in texts for fault in unlisted_links(colab.relative(text))]


@functools.cache
def bibliography(text: str) -> list[dict[str, str]]:
    """The fields of each entry, and its key; a field that it lacks is empty."""
    entries = parse_string(text, "bibtex").entries.items()  # refuses a key that stands twice
    return [
        defaultdict(str, key=key, author=" and ".join(map(str, e.persons["author"])), **e.fields)
        for key, e in entries
    ]


@functools.cache
def works() -> dict[str, str]:
    """By the address of each work of the bibliography: whose it is, and its year."""
    entries = bibliography((BOOK / "references.bib").read_text())
    return {entry["url"]: f"{entry['author']} {entry['year']}" for entry in entries}


def unlisted_links(text: str) -> list[str]:
    """Every outside address that a page names stands in the bibliography, as whose it says.

    The first whom it names is the first there.
    """
    links = re.findall(r"\]\((https?://[^)\s]+)\)", text)
    found = [f"{url} is not in references.bib" for url in links if url not in works()]
    cited = re.findall(r"\[([^]]*\(\d{4})[a-z]?\)\]\((https?://[^)\s]+)\)", text)
    for label, url in cited:
        whose = works().get(url, label)
        first, *others = re.findall(r"[A-Za-z]{2,}|\d{4}", re.sub(r"\b(and|et al)\b", "", label))
        wrong = [name for name in others if name not in whose]
        wrong += [first] * (first not in whose.partition(" and ")[0])
        found += [f"{url} is not by {name}" for name in wrong]
    return found


def fetched(notebook) -> list[str]:
    """The weight files that the first cell names."""
    return re.findall(r'files\.fetch\("([^"]+)"\)', code_cells(notebook)[0].source)


def starts_with_bootstrap(notebook) -> list[str]:
    first = colab.untitled(code_cells(notebook)[0].source)
    set_up = colab.bootstrap(fetched(notebook), address())
    if not f"{first}\n".startswith(f"{set_up}\n"):
        return ["the first code cell is not the set-up that book/_tools/colab.py writes"]
    return []


RULES = [
    *(stored_as_it_ran, no_stray_output, unusual_with_reason, can_fail, clean_metadata),
    *(safe_outputs, safe_source, exercises_named, figures_described, figures_legible),
    *(links_listed, starts_with_bootstrap, numbers_bound, conclusions_shown, pictures_bound),
    minutes_said,
]


def readme_faults(text: str) -> list[str]:
    """Links of README to what is not there, and chapters under another title than their own."""
    found = []
    for label, name in re.findall(r"\[([^]]*)\]\(([\w./-]+)\)", text):
        path = ROOT / name
        if not path.exists():
            found.append(f"{name} is not there")
        elif path in NOTEBOOKS:
            title = read(path).cells[0].source.partition("\n")[0]
            if label != f"{int(path.stem[:2])}. {title.removeprefix('# ')}":
                found.append(f"{label!r} is called {title!r}")
    return found
