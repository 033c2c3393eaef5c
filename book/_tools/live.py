"""Write the numbers of the figures that move: ``python book/_tools/live.py [book/02_masks.ipynb]``.

A cell whose figure moves has `live` in its metadata: the kind of the figure, the caption of what
moves, and for each name that ``book/assets/live.js`` wants an expression, such as ``{"kind": "map",
"caption": "Choose a row.", "weights": "trained"}``. The
cells up to there are run, and the values go to ``book/assets/live_data.js`` under the name of the
figure, with the colours of :mod:`attn_lib.plotting`; where pages are named, those of the others
stay as they are. A page read from disk can load a script, but no other data.
"""

import json
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

BOOK = Path(__file__).resolve().parents[1]
DATA = BOOK / "assets" / "live_data.js"
START = "const LIVE = "
WORDS = ("kind", "caption")  # what is no expression
STEPS = "≈"  # begins a text whose letters are steps: rounding may take one to the next
FOLDER = {"metadata": {"path": str(BOOK)}}


def moving(notebook) -> list:
    """The cells whose figures move."""
    return [cell for cell in notebook.cells if "live" in cell.metadata]


def question(cell) -> str:
    """Code that prints what the figure of a cell reads."""
    live = cell.metadata.live
    pairs = ", ".join(f"{name!r}: {live[name]}" for name in live if name not in WORDS)
    return f"import json\nprint(json.dumps({{{pairs}}}, default=lambda value: value.tolist()))"


def numbers(cell, printed: str) -> dict:
    """The words of its figure, and what the question's answer says."""
    read = json.loads(printed, parse_float=lambda number: round(float(number), 6))
    return {**{name: cell.metadata.live[name] for name in WORDS}, **read}


def fault(cell, printed: str) -> str | None:
    """What a figure that moves would show otherwise than its page computes, or None."""
    name = cell.metadata.mystnb.figure.name
    now, read = numbers(cell, printed), stored()["figures"].get(name, {})
    differ = [key for key in {**now, **read} if not _same(now.get(key), read.get(key))]
    return f"{name} reads other numbers from {DATA.name}: {', '.join(differ)}" if differ else None


def _same(new, old) -> bool:
    """Whether two trees of numbers and texts differ by rounding alone."""
    if isinstance(new, dict) and isinstance(old, dict):
        return new.keys() == old.keys() and all(_same(new[key], old[key]) for key in old)
    if isinstance(new, list) and isinstance(old, list):
        return len(new) == len(old) and all(map(_same, new, old))
    if isinstance(new, float) and isinstance(old, float):
        return abs(new - old) < 1e-4
    if isinstance(new, str) and isinstance(old, str) and new[:1] == old[:1] == STEPS:
        codes = zip(map(ord, new), map(ord, old), strict=False)
        return len(new) == len(old) and all(abs(a - b) <= 2 for a, b in codes)
    return new == old


def stored() -> dict:
    """What the file says: ``roles`` and ``figures``."""
    return json.loads(DATA.read_text().partition(START)[2].removesuffix(";\n"))


def write(*names: str) -> None:
    """Run the pages of these names, or all, and write the file, a figure a line."""
    from attn_lib.plotting import ROLES  # loads torch, which who only compares has no need of

    figures, before = {}, stored()["figures"] if names else {}
    for path in sorted(BOOK.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        wanted = moving(notebook)
        if names and path.name not in names:
            kept = (cell.metadata.mystnb.figure.name for cell in wanted)
            figures |= {name: before[name] for name in kept}
        elif wanted:
            print(path.name)
            for cell in wanted:
                asking = nbformat.v4.new_code_cell(question(cell))
                notebook.cells.insert(notebook.cells.index(cell) + 1, asking)
            del notebook.cells[notebook.cells.index(asking) + 1 :]
            NotebookClient(notebook, timeout=120, resources=FOLDER).execute()
            for cell in wanted:
                answer = notebook.cells[notebook.cells.index(cell) + 1].outputs[0].text
                figures[cell.metadata.mystnb.figure.name] = numbers(cell, answer)
    lines = [f'"roles": {json.dumps(ROLES)}', '"figures": {']
    inside = (f"{json.dumps(name)}: {json.dumps(data)}" for name, data in figures.items())
    body = f"{lines[0]},\n{lines[1]}\n" + ",\n".join(inside) + "\n}"
    DATA.write_text(f"// Written by book/_tools/live.py.\n{START}{{\n{body}\n}};\n")


if __name__ == "__main__":
    write(*(Path(page).name for page in sys.argv[1:]))
