"""The rules that every page keeps, each a function that returns what breaks it.

`test_book.py` applies them to the pages and, with planted mistakes, shows each one able to fail.
"""

import ast
import functools
import itertools
import re
from pathlib import Path

import colab
import nbformat
import number_sources
import pictures
import printed_tables
import yaml
from number_sources import printed
from sitting import FOLDED, stands_by_itself, tags, within_one_sitting

ROOT = Path(__file__).resolve().parents[2]
BOOK = ROOT / "book"
NOTEBOOKS = sorted(BOOK.glob("*.ipynb"))
CHAPTERS = [path for path in NOTEBOOKS if path.stem[:2].isdigit()]  # the others are appendices
TEXTS = sorted(BOOK.glob("*.md"))

ALLOWED_MIME = {"text/plain", "image/png", "image/svg+xml"}
METADATA = {"tags", "mystnb", "reason", "numbers", "shown", "live", "drawn", "held", "table"}
METADATA |= {"licence"}  # of a figure, where it is not CC BY 4.0
METADATA |= {"cellView", "collapsed", "jupyter"}  # exactly as test_colab.py wants them
OF_A_NOTEBOOK = {"appendix", "kernelspec", "language_info", "record", "teaches"}
COMPARING = {"allclose", "isclose", "equal", "array_equal"}
# others need a reason
TAGS = r"hide-input|hide-cell|experiment|caption|licence|(exercise|solution)-\d+\.\d+"
SHOWN = {"figure", "image", "code_prompt_show", "code_prompt_hide"}


def config() -> dict:
    return yaml.safe_load((ROOT / "_config.yml").read_text())


def address() -> str:
    return config()["repository"]["url"]


def tests_in(name: str) -> list[str]:
    """The tests of a file."""
    return re.findall(r"^def (test_\w+)", (ROOT / name).read_text(), re.MULTILINE)


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.v4.reads(path.read_text())


def appendix(notebook) -> bool:
    """Whether a page says of itself that it is looked up, not learnt from: it has no exercises."""
    return notebook.metadata.get("appendix", False) is True


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
    others = {cell.id: set(cell.metadata) - METADATA for cell in notebook.cells}
    faults = [f"{name}: metadata {sorted(extra)}" for name, extra in others.items() if extra]
    if extra := set(notebook.metadata) - OF_A_NOTEBOOK:
        faults.append(f"metadata {sorted(extra)}")
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        faults.append("the kernelspec is not python3")
    if notebook.metadata.get("language_info") != {"name": "python"}:
        faults.append("language_info holds more than the name: store with book/_tools/execute.py")
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
    text = without_code(text)
    faults = [f"raw HTML {tag!r}" for tag in re.findall(r"<(?:/?[A-Za-z]|!)[^>]*>", text)]
    elsewhere = re.findall(r"!\[[^]]*\]\((\w+:[^)]*)", text)
    return faults + [f"a picture from {url}" for url in elsewhere]


# ---------------------------------------------------------------- exercises


def exercises_named(notebook) -> list[str]:
    """The tag of an exercise's cell, its prompts and its check name the same exercise."""
    names = {cell.id: set(_exercises(cell)) for cell in code_cells(notebook)}
    return [f"{cell} names {named}" for cell, named in names.items() if len(named) > 1]


def folds_named(notebook) -> list[str]:
    """A folded cell says what it holds: there is nothing else to see of it."""
    return [
        f"{cell.id} is folded without a name in mystnb.code_prompt_show"
        for cell in code_cells(notebook)
        if tags(cell) & FOLDED
        and cell.metadata.get("mystnb", {}).get("code_prompt_show", "Show the code")[:4] == "Show"
    ]


def _exercises(cell) -> list[str]:
    shown = cell.metadata.get("mystnb", {})
    prompts = [shown.get(f"code_prompt_{what}", "") for what in ("show", "hide")]
    named = r"(?i)\b(?:exercise|solution|check)(?: |-|\(\")(\d+\.\d+)"
    return re.findall(named, "\n".join([*tags(cell), *prompts, cell.source]))


# ---------------------------------------------------------------- figures


def figures_described(notebook) -> list[str]:
    faults, captions = [], {cell.id for cell in notebook.cells if colab.is_caption(cell)}
    below = {cell.id: other for cell, other in itertools.pairwise(notebook.cells)}
    for cell in code_cells(notebook):
        if not any("image/png" in output.get("data", {}) for output in cell.outputs):
            continue
        shown = cell.metadata.get("mystnb", {})
        if len(shown.get("image", {}).get("alt", "")) < 40:
            faults.append(f"{cell.id}: a figure needs a description of at least 40 characters")
        if not shown.get("figure", {}).get("name", "").startswith("fig-"):
            faults.append(f"{cell.id}: a figure needs a name, fig-…")
        caption = below.get(cell.id, notebook.cells[0])
        if not (colab.is_caption(caption) and colab.unnumbered(caption.source).strip()):
            faults.append(f"{cell.id}: a figure needs a caption, in the cell below")
        captions.discard(caption.id)
    return faults + [f"{name}: a caption without a figure above" for name in captions]


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


# ---------------------------------------------------------------- tables


def tables_marked(notebook) -> list[str]:
    """A cell that prints a table says so, and what it prints is read as one."""
    faults = []
    for cell in code_cells(notebook):
        text = re.sub(r"(?m)^<Figure.*", "", printed(cell))
        if cell.metadata.get("table"):
            faults += [f"{cell.id}: {fault}" for fault in printed_tables.faults(text)]
        elif any(map(_headed, printed_tables.parts(text))):
            faults.append(f'{cell.id} prints a table: say "table": true in its metadata')
    return faults


def _headed(rows: str | list[list[str]]) -> bool:
    """Whether the first line looks like headings: words above numbers, or nothing above names."""
    if isinstance(rows, str) or not all(rows[0][1:]):
        return False
    columns = [list(column) for column in zip(*rows, strict=True)]
    words = [column for column in columns if re.search(r"[^\W\d]", column[0])]
    return not rows[0][0] or any(map(printed_tables.numeric, words))


# ---------------------------------------------------------------- numbers in the text


def numbers_bound(notebook) -> list[str]:
    """Each number that is read comes from where the page's metadata say, and is written so."""
    lines = [line for cell in notebook.cells for line in cell.metadata.get("numbers", [])]
    given = " ".join(line for line in lines if " <- given: " in line)
    links = "".join(f"]({url})" for url in re.findall(r"https?://[^\s\"]+", given))
    return number_sources.page_faults(notebook) + unlisted_links(links)


def without_code(text: str) -> str:
    text = re.sub(r"^```.*?^```", " ", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", " ", text)


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
        if name not in sources or not compares(sources[name])
    ]


def compares(source: str) -> bool:
    """Whether a cell asserts, or prints what came of a comparison."""
    tree = ast.parse(source)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    asserted = any(isinstance(node, ast.Assert) for node in ast.walk(tree))
    if asserted or any(_name(call).startswith("assert_") for call in calls):
        return True
    compared = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and _compared(node.value, set())
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    seen = [call for call in calls if _name(call) == "print"]
    seen += [node for node in tree.body[-1:] if isinstance(node, ast.Expr)]
    return any(_compared(node, compared) for node in seen)


def _name(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _compared(tree: ast.AST, names: set[str]) -> bool:
    """Whether an expression holds a comparison, or one of the names."""
    return any(
        isinstance(node, ast.Compare)
        or (isinstance(node, ast.Call) and _name(node) in COMPARING)
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
        given = [k.value for k in call.keywords if k.arg in ("atol", "rtol")]
        if _compares(call):
            given += [k.value for k in call.keywords if k.arg is None]
            given += call.args[1 if _owner(call) else 2 :]
        found += [f"tolerance {ast.unparse(value)}" for value in given if not _close(value)]
        if _name(call) in ("print", "display"):
            found += _written(call.args)
    if tree.body and isinstance(last := tree.body[-1], ast.Expr):
        found += _written(getattr(last.value, "elts", [last.value]))
    return found


def _close(value: ast.AST) -> bool:
    """Whether a tolerance is a number, and small; a message is none."""
    number = getattr(value, "value", None) if isinstance(value, ast.Constant) else None
    return isinstance(number, str) or (isinstance(number, float | int) and number <= CLOSE)


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
        for tree in [ast.parse(cell.source)]
        for others in [_other_names(tree)]
        for node in ast.walk(tree)
        if _always_holds(node, others)
    ]


def _other_names(tree: ast.AST) -> dict[str, str]:
    """Names that a cell gives to a thing, or to a part of it, without computing anything."""
    return {
        node.targets[0].id: ast.unparse(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Name | ast.Subscript | ast.Attribute)
    }


def _always_holds(node: ast.AST, others: dict[str, str]) -> bool:
    sides: list[ast.AST] = []
    if isinstance(node, ast.Call) and (_compares(node) or _name(node) == "zip"):
        sides = [*([node.func.value] if _owner(node) else []), *node.args]
        sides = [*sides, *(k.value for k in node.keywords)][:2]
    elif isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        sides = [node.left, node.right]
    elif isinstance(node, ast.BoolOp):
        return any(isinstance(value, ast.Constant) and value.value is True for value in node.values)
    elif isinstance(node, ast.Assert):
        named = any(isinstance(part, ast.Name) for part in ast.walk(node.test))
        return isinstance(node.test, ast.Tuple) or not named
    texts = [re.sub(r"\.(clone|detach|contiguous|copy)\(\)", "", ast.unparse(x)) for x in sides]
    return len({others.get(text, text) for text in texts}) < len(texts)


def _compares(call: ast.Call) -> bool:
    return _name(call) in COMPARING or _name(call).startswith("assert_")


def _owner(call: ast.Call) -> bool:
    """Whether a comparison is a method of one of its sides, not a function of a module."""
    module = ast.unparse(getattr(call.func, "value", ast.Name("torch"))).split(".")[0]
    return module not in ("torch", "np", "numpy", "testing")


# ---------------------------------------------------------------- links and set-up


def links_listed(notebook) -> list[str]:
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    return [fault for text in texts for fault in unlisted_links(colab.relative(text))]


@functools.cache
def works() -> dict[str, str]:
    """By the address of each work of the bibliography: whose it is, and its year."""
    entries = (BOOK / "references.bib").read_text().split("\n@")
    return {field(e, "url"): f"{field(e, 'author')} {field(e, 'year')}" for e in entries}


def unlisted_links(text: str) -> list[str]:
    """Every outside address that a page names stands in the bibliography, as whose it says.

    The first whom it names is the first there.
    """
    known = works()
    first = {url: whose.partition(" and ")[0] for url, whose in known.items()}
    found = re.findall(r"\]\((https?://[^)\s]+)\)", text)
    cited = re.findall(r"\[([^]]*\(\d{4})[a-z]?\)\]\((https?://[^)\s]+)\)", text)
    return [f"{url} is not in references.bib" for url in found if url not in known] + [
        f"{url} is not by {name}"
        for label, url in cited
        for n, name in enumerate(
            re.findall(r"[A-Za-z]{2,}|\d{4}", re.sub(r"\b(and|et al)\b", "", label))
        )
        if name not in (known if n else first).get(url, name)
    ]


def field(entry: str, name: str) -> str:
    """A field of an entry of the bibliography, or nothing."""
    return "".join(re.findall(rf"^  {name} = {{(.*)}}", entry, re.MULTILINE))


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
    *(safe_outputs, safe_source, exercises_named, folds_named, figures_described),
    *(figures_legible, links_listed, starts_with_bootstrap, numbers_bound),
    *(conclusions_shown, within_one_sitting, stands_by_itself, pictures_bound, tables_marked),
]


def not_in_contents(contents: dict, present: list[str]) -> list[str]:
    """Pages missing from the table of contents, and entries without a page."""
    listed = [contents["root"]]
    chapters = [chapter for part in contents["parts"] for chapter in part["chapters"]]
    listed += [
        one["file"] for chapter in chapters for one in (chapter, *chapter.get("sections", []))
    ]
    return sorted(set(listed) ^ set(present))


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
