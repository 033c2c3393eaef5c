"""Write the numbers of the figures that move: ``python book/_tools/live.py``.

A cell whose figure moves has `live` in its metadata: the kind of the figure, and for each name that
``book/assets/live.js`` wants an expression, such as ``{"kind": "map", "weights": "trained"}``. The
cells up to there are run, and the values go to ``book/assets/live_data.js`` under the name of the
figure, with the colours of :mod:`attn_lib.plotting`. A page read from disk can load a script, but
no other data.
"""

import json
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from attn_lib.plotting import ROLES

BOOK = Path(__file__).resolve().parents[1]
DATA = BOOK / "assets" / "live_data.js"
START = "const LIVE = "
FOLDER = {"metadata": {"path": str(BOOK)}}


def moving(notebook) -> list:
    """The cells whose figures move."""
    return [cell for cell in notebook.cells if "live" in cell.metadata]


def ask(notebook) -> None:
    """Behind each cell whose figure moves, put one that prints its numbers."""
    for cell in moving(notebook):
        wishes = {name: wish for name, wish in cell.metadata.live.items() if name != "kind"}
        pairs = ", ".join(f"{name!r}: {wish}" for name, wish in wishes.items())
        call = f"import json\nprint(json.dumps({{{pairs}}}, default=lambda value: value.tolist()))"
        asking = nbformat.v4.new_code_cell(call, metadata={"asks": cell.id})
        notebook.cells.insert(notebook.cells.index(cell) + 1, asking)


def answers(notebook) -> dict[str, dict]:
    """Take these cells out of a page that has run: name of each figure -> its kind and numbers."""
    asking = {c.metadata.asks: c for c in notebook.cells if "asks" in c.metadata}
    notebook.cells = [cell for cell in notebook.cells if "asks" not in cell.metadata]
    return {
        cell.metadata.mystnb.figure.name: {
            "kind": cell.metadata.live.kind,
            **json.loads(asking[cell.id].outputs[0].text, parse_float=lambda n: round(float(n), 6)),
        }
        for cell in moving(notebook)
    }


def stored() -> dict:
    """What the file says: ``roles`` and ``figures``."""
    return json.loads(DATA.read_text().partition(START)[2].removesuffix(";\n"))


def write() -> None:
    """Run the pages and write the file, a figure a line."""
    figures = {}
    for path in sorted(BOOK.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        if wanted := moving(notebook):
            del notebook.cells[notebook.cells.index(wanted[-1]) + 1 :]
            ask(notebook)
            NotebookClient(notebook, timeout=120, resources=FOLDER).execute()
            figures |= answers(notebook)
    lines = [f'"roles": {json.dumps(ROLES)}', '"figures": {']
    inside = (f"{json.dumps(name)}: {json.dumps(data)}" for name, data in figures.items())
    body = f"{lines[0]},\n{lines[1]}\n" + ",\n".join(inside) + "\n}"
    DATA.write_text(f"// Written by book/_tools/live.py.\n{START}{{\n{body}\n}};\n")


if __name__ == "__main__":
    write()
