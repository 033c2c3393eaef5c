"""Run notebooks anew and store their outputs: ``python book/_tools/execute.py book/NAME.ipynb …``.

Beside them, each figure that is drawn by lines is stored as an SVG (``vector.py``).

`jupyter execute` cannot be told to leave out each cell's start and end times, and stores the
Python version; both would change with every run and hide the changes that matter.
"""

import os
import sys
import tempfile
from pathlib import Path

import nbformat
import vector
from nbclient import NotebookClient
from nbval.plugin import coalesce_streams


def execute(path: Path) -> None:
    """Run one notebook from a clean start, in place, without times in it."""
    notebook = nbformat.read(path, as_version=4)
    folder = {"metadata": {"path": str(path.parent)}}
    with tempfile.TemporaryDirectory() as figures:
        options = {"record_timing": False, "extra_arguments": [vector.watching(figures)]}
        NotebookClient(notebook, timeout=120, resources=folder, **options).execute()
        vector.keep(path.stem, notebook, Path(figures))
    for cell in notebook.cells:
        if cell.cell_type == "code":
            # printed lines arrive in pieces that differ from run to run: store them as one
            cell.outputs = coalesce_streams(cell.outputs)
    notebook.metadata["language_info"] = {"name": "python"}
    nbformat.write(notebook, path)


if __name__ == "__main__":
    os.environ["ATTN_LIB_PROGRESS"] = "0"
    for name in sys.argv[1:]:
        execute(Path(name))
