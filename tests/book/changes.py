"""Mistakes in the outputs of a page and in what its figures read, each with what is said of it."""

import base64
import io
import re
from types import SimpleNamespace

import nbformat
import pages
import pictures
from matplotlib.image import imread, imsave


def one_digit(cell):
    """That of which the README shows what the command says."""
    cell.outputs[0].text = cell.outputs[0].text.replace("16.919   0.601", "16.919   0.602")


def cleared_output(cell):
    cell.outputs = []


def warned(cell):
    cell.outputs[0].name = "stderr"


def figure_of(cell):
    (found,) = [output for output in cell.outputs if "image/png" in output.get("data", {})]
    return found


def painted_block(cell):
    """The smallest that is seen."""
    data, buffer = figure_of(cell).data, io.BytesIO()
    image = imread(io.BytesIO(base64.b64decode(data["image/png"])), format="png").copy()
    height, width = image.shape[:2]
    block = image[height // 2 :, width // 2 :, :3][:3, :3]
    block[:] = 1 - block
    imsave(buffer, image, format="png")
    data["image/png"] = base64.b64encode(buffer.getvalue()).decode()


def lost_figure(cell):
    del figure_of(cell).data["image/png"]


TEXT = {
    cleared_output: "Unexpected output fields",
    warned: "{'stderr'}",
    one_digit: "mismatch 'stdout'",
}
FIGURE = {
    painted_block: "pixels differ from",
    lost_figure: "1 figures drawn, 0 stored",
}


def plant(notebook) -> dict[int, str]:
    """Make each mistake in a code cell of its own: the numbers of these cells -> what is said."""
    cells = pages.code_cells(notebook)
    expected = {}
    for kind, mistakes in (("stream", TEXT), ("display_data", FIGURE)):
        alone = [n for n, c in enumerate(cells) if [o.output_type for o in c.outputs] == [kind]]
        still = [n for n in alone if "live" not in cells[n].metadata]
        for number, (mistake, message) in zip(still, mistakes.items(), strict=False):
            mistake(cells[number])
            expected[number] = message
    assert len(expected) == len(TEXT) + len(FIGURE)
    return expected


def plant_at_the_end(notebook) -> dict[int, str]:
    """What only the book's own run sees: a file that no reader has, another kind of output."""
    after = len(pages.code_cells(notebook))
    file = nbformat.v4.new_code_cell("print(bool(open('02_masks.ipynb')))", execution_count=after)
    file.outputs = [nbformat.v4.new_output("stream", text="True\n")]
    kind = nbformat.v4.new_code_cell("1", execution_count=after + 1)
    kind.outputs = [nbformat.v4.new_output("display_data", data={"text/plain": "1"})]
    notebook.cells += [file, kind]
    return {after: "FileNotFoundError", after + 1: "execute_result"}


def plant_in_words(notebook) -> dict[int, str]:
    """The first figure that moves, and the last text that is held, say otherwise than is so."""
    cells = pages.code_cells(notebook)
    number = next(n for n, cell in enumerate(cells) if {"drawn", "live"} <= cell.metadata.keys())
    held = max(n for n, cell in enumerate(notebook.cells) if "held" in cell.metadata)
    above = len(pages.code_cells(SimpleNamespace(cells=notebook.cells[:held]))) - 1
    return {
        number: f"not as it was drawn: {_turned(cells[number].metadata['drawn'])}",
        above: f"not as the text says: {_turned(notebook.cells[held].metadata['held'])}",
    }


def _turned(lines: list[str]) -> str:
    """The words of the first line, which is true of the opposite now."""
    words, _, holds = lines[0].partition(pictures.ARROW)
    lines[0] = f"{words}{pictures.ARROW}not ({holds})"
    return words


def plant_in_figures(text: str, notebook) -> tuple[str, dict[int, str]]:
    """``live_data.js`` with one number of each moving figure of a page changed, and the same."""
    expected = {}
    for number, cell in enumerate(pages.code_cells(notebook)):
        if "live" in cell.metadata:
            name = cell.metadata.mystnb.figure.name
            start = text.index(f'"{name}"')
            text = text[:start] + re.sub(r"0\.\d+", "0.5", text[start:], count=1)
            expected[number] = f"{name} reads other numbers from live_data.js"
    return text, expected
