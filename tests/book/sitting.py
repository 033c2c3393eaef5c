"""What is seen of a page, and how long one reads it."""

import re

import colab

UNSEEN = {"hide-input", "hide-cell", "remove-input", "remove-cell"}


def tags(cell) -> set[str]:
    return set(cell.metadata.get("tags", []))


def lesson(notebook) -> list:
    """The cells of code before the exercises."""
    cells = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and re.match(r"## .*xercise", cell.source):
            break
        cells += [cell] if cell.cell_type == "code" else []
    return cells


def visible(notebook) -> list:
    return [cell for cell in lesson(notebook) if not tags(cell) & UNSEEN]


def minutes(notebook) -> float:
    """A minute for 160 words or six lines of code, five for an exercise."""
    written = [c for c in notebook.cells if c.cell_type == "markdown" and not colab.is_licence(c)]
    text = "\n\n".join(colab.unnumbered(cell.source) for cell in written)
    of_exercises = re.findall(r"^> \*\*Exercise [\d.]+\*\*.*(?:\n>.*)*", text, re.MULTILINE)
    marks = r"\$\$.*?\$\$|\$[^$]*\$|`[^`]*`|\]\([^)]*\)"  # a formula, or code, is one word
    words = len(re.sub(marks, " x ", text, flags=re.DOTALL).split())
    words -= sum(len(one.split()) for one in of_exercises)
    lines = [line for cell in visible(notebook) for line in cell.source.splitlines() if line]
    return words / 160 + len(lines) / 6 + 5 * len(of_exercises)


def minutes_said(notebook) -> list[str]:
    """A chapter says how long it takes, and that is about an hour or less."""
    if notebook.metadata.get("appendix", False) is True:
        return []
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"][:12]
    said = re.search(r"about (?:(\d+) minutes|an hour)", "\n".join(texts))
    says, takes = int(said[1] or 60) if said else 0, minutes(notebook)
    right = takes <= 75 and 0.7 <= says / takes <= 1.3
    return [] if right else [f"it takes {takes:.0f} minutes, not {says}"]
