"""What a notebook needs where the website is not: ``python book/_tools/elsewhere.py``.

The website folds cells, numbers figures and finds other pages by itself. For Colab and JupyterLab
the command writes the same into every notebook, from what stands there once:

* a folded cell is folded there too, and begins with its name, ``# @title Solution 1.1``;
* the caption of a figure is a Markdown cell below it, ``**Fig. 1.2.** …``, with its number;
* the first cell installs the library from the book's public address, and links to other pages are
  whole; as long as there is no address, that cell says what to do instead.

The website, and whoever asks what a page says, reads a notebook through :func:`plain`, which takes
all of this away again and gives a figure its caption back. So a caption may be written in the
metadata, under ``mystnb.figure.caption``, and afterwards where it is seen.
"""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import yaml

ROOT = Path(__file__).resolve().parents[2]
UNSET = ".invalid/"  # in the address, as long as there is none
GITHUB, COLAB = "https://github.com/", "https://colab.research.google.com/github/"
# how the website folds a cell -> how JupyterLab does; Colab calls a cell without source a form
FOLDS = {
    "hide-input": {"source_hidden": True},
    "hide-cell": {"source_hidden": True, "outputs_hidden": True},
}
_TITLE = re.compile(r"\A# @title .*\n")
_CAPTION = re.compile(r"\A\*\*Fig\. [\d.]+\.\*\* ")
_LINK = re.compile(r"(?<=\]\()(\w+\.(?:ipynb|md))\b")
_WHOLE = re.compile(r"(?<=\]\()https://[^)\s]+/blob/\w+/book/(?=\w+\.(?:ipynb|md)\b)")
_SET_UP = re.compile(r"\Atry:\n    import attn_lib\nexcept .*\n(?:    .*(?:\n|\Z))+")


def read(path: Path) -> nbformat.NotebookNode:
    """A notebook as the website has it."""
    return plain(nbformat.v4.reads(path.read_text()))


def plain(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A notebook without what :func:`dress` adds."""
    cells = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.source = _TITLE.sub("", cell.source)
            for name in ("cellView", "collapsed", "jupyter"):
                cell.metadata.pop(name, None)
        else:
            cell.source = _WHOLE.sub("", cell.source)
            figure = cells[-1].metadata.get("mystnb", {}).get("figure") if cells else None
            if figure and (label := _CAPTION.match(cell.source)):
                figure.setdefault("caption", cell.source[label.end() :])
                continue
        cells.append(cell)
    notebook.cells = cells
    return notebook


def dress(
    notebook: nbformat.NotebookNode, numbers: Iterator, address: str
) -> nbformat.NotebookNode:
    """A notebook with names of folded cells, captions and links; its figures take ``numbers``."""
    cells = []
    for cell in plain(notebook).cells:
        cells.append(cell)
        if cell.cell_type != "code":
            cell.source = _linked(cell.source, address)
            continue
        cell.source = _SET_UP.sub(lambda found: _set_up(found[0], address), cell.source)
        shown = cell.metadata.get("mystnb", {})
        for fold in (FOLDS[tag] for tag in cell.metadata.get("tags", []) if tag in FOLDS):
            cell.source = f"# @title {shown.get('code_prompt_show', '')}\n{cell.source}"
            cell.metadata |= {"cellView": "form", "jupyter": fold}
            if "outputs_hidden" in fold:
                cell.metadata["collapsed"] = True  # Colab's word for it
        if caption := shown.get("figure", {}).pop("caption", None):
            text = f"**Fig. {next(numbers)}.** {_linked(caption, address)}"
            cells.append(nbformat.v4.new_markdown_cell(text, id=f"{cell.id}-caption"))
    notebook.cells = cells
    return notebook


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
    wanted = "no address yet: run `pip install -r requirements.txt` in the book's folder"
    unset = [f"    wanted = {wanted!r}", "    raise ImportError(wanted) from None"]
    fetches = [f'    files.fetch("{name}")' for name in data]
    return "\n".join(
        [
            "try:",
            "    import attn_lib",
            "except ModuleNotFoundError:  # in Colab: install the library, fetch weights",
            f'    address = "git+{address}"',
            *(unset if UNSET in address else []),
            '    %pip install -q "attn_lib[book] @ {address}"',
            *(["    from attn_lib import files", *fetches] if data else []),
        ]
    )


def write(root: Path = ROOT) -> None:
    """Bring every notebook up to date; where nothing changed, nothing is changed."""
    address = yaml.safe_load((root / "_config.yml").read_text())["repository"]["url"]
    contents = re.findall(r"(?m)file: book/(\w+)$", (root / "_toc.yml").read_text())
    appendices = itertools.count(1)  # whose figures are counted through
    for path in (root / "book" / f"{name}.ipynb" for name in contents):
        if path.exists():
            chapter = re.match(r"0*(\d+)", path.stem)
            own = (f"{chapter[1]}.{n}" for n in itertools.count(1)) if chapter else appendices
            nbformat.write(dress(nbformat.read(path, as_version=4), own, address), path)


def _read(app, page: str, content: list[str]) -> None:
    if app.env.doc2path(page).endswith(".ipynb"):
        content[0] = nbformat.writes(plain(nbformat.reads(content[0], as_version=4)))


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("source-read", _read)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    write()
