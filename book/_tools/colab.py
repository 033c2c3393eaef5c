"""What a notebook needs where the website is not: ``python book/_tools/colab.py``.

The website folds cells, numbers figures and finds other pages by itself. For Colab and JupyterLab
the command writes the same into every notebook:

* a folded cell is folded there too, and begins with its name, ``# @title Solution 1.1``;
* the caption of a figure, which is the Markdown cell below it with the tag ``caption``, begins with
  its number, ``**Fig. 1.2.** …``, in appendices, which are counted through, ``**Fig. A.1.** …``;
* the first cell installs the library, if it is not there in the notebook's own version: from the
  folder above, from a wheel beside the notebook, from the book's public address, or, as long as
  there is none, says what to do; and links to other pages are whole;
* the last cell, tagged `licence`, says whose the page is, as ``CITATION.cff`` has it.

A notebook is read as it is stored. The website alone reads it through :func:`for_website`.
"""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import yaml

ROOT = Path(__file__).resolve().parents[2]
INIT = ROOT / "attn_lib" / "__init__.py"  # where the version stands
UNSET = ".invalid/"  # in the address, as long as there is none
GITHUB, COLAB = "https://github.com/", "https://colab.research.google.com/github/"
# how the website folds a cell -> how JupyterLab does; Colab calls a cell without source a form
FOLDS = {
    "hide-input": {"source_hidden": True},
    "hide-cell": {"source_hidden": True, "outputs_hidden": True},
}
LICENCE = {"tags": ["licence"]}
_LINK = re.compile(r"(?<=\]\()(\w[\w.]*\.(?:ipynb|md))\b")
_WHOLE = re.compile(r"(?<=\]\()https://[^)\s]+/blob/\w+/book/(?=\w[\w.]*\.(?:ipynb|md)\b)")
_SET_UP = re.compile(r"\Afrom importlib\.util .*\n(?:.+(?:\n|\Z))+")


# ---------------------------------------------------------------- what is stored


def is_caption(cell) -> bool:
    """Whether a cell is the caption of the figure above it."""
    return "caption" in cell.metadata.get("tags", [])


def unnumbered(caption: str) -> str:
    """The words of a caption, without ``**Fig. 1.2.**``."""
    return re.sub(r"\A\*\*Fig\. [\dA.]+\.\*\* ", "", caption)


def untitled(source: str) -> str:
    """The code of a cell, without the name that it has where it is folded."""
    return re.sub(r"\A# @title .*\n", "", source)


def is_licence(cell) -> bool:
    """Whether a cell says whose the page is; the website does so at the end of every page."""
    return "licence" in cell.metadata.get("tags", [])


def relative(text: str) -> str:
    """Links to other pages as the website has them."""
    return _WHOLE.sub("", text)


# ---------------------------------------------------------------- the command


def prepare(
    notebook: nbformat.NotebookNode, numbers: Iterator, address: str
) -> nbformat.NotebookNode:
    """A notebook with names of folded cells, whole links, a licence; figures take ``numbers``."""
    page = notebook.cells[0].id.partition("-")[0]
    own = nbformat.v4.new_markdown_cell(licence(), id=f"{page}-licence", metadata=LICENCE)
    notebook.cells = [*(cell for cell in notebook.cells if not is_licence(cell)), own]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            source = untitled(cell.source)
            cell.source = _SET_UP.sub(lambda found: _set_up(found[0], address), source)
            _fold(cell)
            continue
        cell.source = _linked(relative(cell.source), address)
        if is_caption(cell):
            cell.source = f"**Fig. {next(numbers)}.** {unnumbered(cell.source)}"
    return notebook


def licence() -> str:
    """Whose a page is, how it may be used, and how it is cited."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    author, year = citation["authors"][0]["name"], citation["date-released"].year
    book = f"*{citation['title']}*, version {citation['version']}"
    return f"Text and figures: CC BY 4.0; code: MIT. To cite: {author} ({year}). {book}."


def _fold(cell) -> None:
    """Fold a cell as the website does, under its name."""
    for name in ("cellView", "collapsed", "jupyter"):
        cell.metadata.pop(name, None)
    for fold in (FOLDS[tag] for tag in cell.metadata.get("tags", []) if tag in FOLDS):
        title = cell.metadata.get("mystnb", {}).get("code_prompt_show")
        if not title:
            raise ValueError(f"{cell.id} is folded: its name belongs into mystnb.code_prompt_show")
        cell.source = f"# @title {title}\n{cell.source}"
        cell.metadata |= {"cellView": "form", "jupyter": fold}
        if "outputs_hidden" in fold:
            cell.metadata["collapsed"] = True  # Colab's word for it


def _linked(text: str, address: str) -> str:
    """With whole links to the other pages; a notebook is opened in Colab, if it can be."""
    if UNSET in address:
        return text

    def whole(link: re.Match) -> str:
        colab = link[1].endswith(".ipynb")
        base = address.replace(GITHUB, COLAB) if colab else address
        return f"{base}/blob/main/book/{link[1]}"

    return _LINK.sub(whole, text)


def _set_up(source: str, address: str) -> str:
    """The same set-up for another address."""
    return bootstrap(re.findall(r'files\.fetch\("([^"]+)"\)', source), address) + "\n"


def bootstrap(data: list[str], address: str) -> str:
    """What the first cell of every notebook begins with; ``data``: the weight files of its page."""
    version = re.search(r'^__version__ = "(.*)"$', INIT.read_text(), re.MULTILINE)[1]
    wanted = [
        "    wanted = source.as_uri()",
        "    if not source.exists():",
        "        raise ImportError(",
        '            f"download {wheel} from any page\'s menu, drop it into "',
        '            "Files (Jupyter: beside this notebook), run this cell again")',
    ]
    if UNSET not in address:
        wanted = [
            f'    address = "git+{address}"',
            "    wanted = source.as_uri() if source.exists() else address",
        ]
    return "\n".join(
        [
            "from importlib.util import find_spec",
            "from pathlib import Path",
            f'version = "{version}"  # of attn_lib, on this page',
            'found = find_spec("attn_lib")',
            "if not found or f'\"{version}\"' not in Path(found.origin).read_text():",
            '    wheel = f"attn_lib-{version}-py3-none-any.whl"  # in this folder',
            '    source = Path(".." if Path("../attn_lib").is_dir() else wheel).resolve()',
            *wanted,
            '    %pip install -q "attn_lib[book] @ {wanted}"',
            "    import attn_lib",
            "    assert attn_lib.__version__ == version, attn_lib.__version__",
            *(["    from attn_lib import files"] if data else []),
            *[f'    files.fetch("{name}")' for name in data],
        ]
    )


def write(root: Path = ROOT) -> None:
    """Bring every notebook up to date; where nothing changed, nothing is changed."""
    address = yaml.safe_load((root / "_config.yml").read_text())["repository"]["url"]
    contents = re.findall(r"(?m)file: book/(\w+)$", (root / "_toc.yml").read_text())
    appendices = (f"A.{n}" for n in itertools.count(1))
    for path in (root / "book" / f"{name}.ipynb" for name in contents):
        if path.exists():
            chapter = re.match(r"0*(\d+)", path.stem)
            own = (f"{chapter[1]}.{n}" for n in itertools.count(1)) if chapter else appendices
            nbformat.write(prepare(nbformat.read(path, as_version=4), own, address), path)


# ---------------------------------------------------------------- the website


def for_website(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A notebook whose figures hold their captions, without names, whole links and a licence."""
    cells = []
    for cell in notebook.cells:
        if is_licence(cell):
            continue
        if not is_caption(cell):
            code = cell.cell_type == "code"
            cell.source = untitled(cell.source) if code else relative(cell.source)
            cells.append(cell)
        elif cells and (figure := cells[-1].metadata.get("mystnb", {}).get("figure")):
            figure["caption"] = unnumbered(relative(cell.source))
        else:
            raise ValueError(f"{cell.id}: a caption stands right below its figure")
    notebook.cells = cells
    return notebook


def _read(app, page: str, content: list[str]) -> None:
    if app.env.doc2path(page).endswith(".ipynb"):
        content[0] = nbformat.writes(for_website(nbformat.reads(content[0], as_version=4)))


def _number(app, env) -> list[str]:
    """The figures of pages without a number are A.1, A.2, … there, too."""
    for kinds in env.toc_fignumbers.values():
        for figures in kinds.values():
            figures |= {name: ("A", *own) for name, own in figures.items() if len(own) == 1}
    return []


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("env-get-updated", _number, priority=900)  # after Sphinx has numbered them
    app.connect("source-read", _read)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    write()
