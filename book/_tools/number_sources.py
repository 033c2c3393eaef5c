"""Write down where numbers of a page come from: ``python book/_tools/number_sources.py PAGE …``.

For each number that a reader sees, in reading order, a line ``0.601 <- SOURCE``. SOURCE is

* ``ch01-code-09 out 2:3``, the third number in line 2 of what this cell printed;
* ``ch01-code-09 src 2:3``, the same of its source, for what a cell sets;
* ``given: definition, WHY``, ``given: year``, or ``given: WHOSE, https://…`` for other people's;
* on a page of text also ``tests/counts.json: "notebooks":``, the number after words of a file.

In a notebook these lines stand in the metadata of a cell, under ``numbers``: of a Markdown cell for
its text, of a code cell for its alt text and prompts. Those of texts stand in
`tests/book/numbers.json`. A line that is still true is kept, so what you write by hand stays. For
any other number the command chooses: in the same section before elsewhere, what is printed before
what is set, what stands before the text before what follows it, then the nearest cell. A number
that is nowhere, or no longer in the cell where it was, gets a ``?``, which is yours to settle.
Lines that changed are printed, each beside the line that it points to: read them.
"""

import collections
import functools
import itertools
import json
import re
import sys
from pathlib import Path

import nbformat
from numerals import in_words, numbers, numbers_in_markdown, same

ROOT = Path(__file__).resolve().parents[2]
TEXTS = ROOT / "tests" / "book" / "numbers.json"
GIVEN = re.compile(r"given: (definition, .{8,}|year|.*https://.*)")


def printed(cell) -> str:
    """All text that a code cell left behind."""
    # printed lines arrive in pieces that differ from run to run
    texts = ["".join(output.get("text", "") for output in cell.get("outputs", []))]
    for output in cell.get("outputs", []):
        texts.append(output.get("data", {}).get("text/plain", ""))
        texts.append(output.get("evalue", ""))
    return "\n".join(filter(None, texts))


def lines(cell, kind: str) -> list[str]:
    """What a cell printed, or its source; without sizes of figures, comments, ``%``."""
    if kind == "out":
        return re.sub(r"(?m)^<Figure.*", "", printed(cell)).splitlines()
    return re.sub(r"(?m)(?<![\"'])#.*|%", "", cell.source).splitlines()


def known(cells: list) -> dict[str, str]:
    """Every place where a code cell prints or sets a number, and that number."""
    return {
        f"{cell.id} {kind} {row}:{column}": number
        for cell in cells
        if cell.cell_type == "code"
        for kind in ("out", "src")
        for row, line in enumerate(lines(cell, kind), 1)
        for column, number in enumerate(numbers(line), 1)
    }


@functools.cache
def book() -> dict[str, str]:
    """The places of all pages."""
    pages = map(load, (ROOT / "book").glob("*.ipynb"))
    return known([cell for page in pages for cell in page.cells])


def everywhere(cells: list) -> dict[str, str]:
    """The places of a page as it is now, and those of the other pages."""
    own = {cell.id for cell in cells}
    others = {place: n for place, n in book().items() if place.split(" ")[0] not in own}
    return others | known(cells)


def texts(cell) -> list[str]:
    """What is read of a cell, but for its code and output."""
    if cell.cell_type == "markdown":
        return [] if "licence" in cell.metadata.get("tags", []) else [cell.source]
    shown = cell.metadata.get("mystnb", {})
    prompts = [shown.get("code_prompt_show"), shown.get("code_prompt_hide")]
    return [text for text in (shown.get("image", {}).get("alt"), *prompts) if text]


def read(cell) -> list[str]:
    """The numbers that are read there."""
    return [number for text in texts(cell) for number in numbers_in_markdown(text)]


# ---------------------------------------------------------------- what is wrong


def page_faults(notebook) -> list[str]:
    """Numbers of a page that do not come from where they are bound to, or are words."""
    here, found = everywhere(notebook.cells), []
    for cell in notebook.cells:
        wrong = faults(read(cell), cell.metadata.get("numbers", []), here)
        wrong += [f"{word!r}: digits, please" for text in texts(cell) for word in in_words(text)]
        found += [f"{cell.id}: {fault}" for fault in wrong]
    return found


def faults(found: list[str], written: list[str], here: dict[str, str]) -> list[str]:
    """What is wrong with the lines that are written down for these numbers."""
    expected = [line.partition(" <- ")[0] for line in written]
    for now, then in itertools.zip_longest(found, expected, fillvalue="nothing"):
        if now != then:
            return [
                f"{now} is read where {then} is bound: run number_sources.py, read what it chooses"
            ]
    return [wrong for line in written if (wrong := fault(line, here))]


def fault(line: str, here: dict[str, str]) -> str:
    """What is wrong with one line, or nothing."""
    number, _, source = line.partition(" <- ")
    if GIVEN.fullmatch(source):
        year = source != "given: year" or re.fullmatch(r"(19|20)\d\d", number)
        return "" if year else f"{number} is not a year"
    found = here.get(source) or _in_a_file(source)
    if found and same(number, found):
        return ""
    return f"{number} comes from {source}, where there is {found or 'no number'}"


def _in_a_file(source: str) -> str | None:
    name, _, words = source.partition(": ")
    if not words or not (ROOT / name).is_file():
        return None
    _, *after = (ROOT / name).read_text().split(words)
    return next(iter(numbers(after[0].split("\n")[0])), None) if len(after) == 1 else None


# ---------------------------------------------------------------- the command


class Page:
    """The lines of a notebook: those that are still true, and chosen ones."""

    def __init__(self, cells: list) -> None:
        """Look up all places of the notebook once."""
        self.cells, self.known, self.everywhere = cells, known(cells), everywhere(cells)
        self.at = {cell.id: n for n, cell in enumerate(cells)}
        self.order = {source: n for n, source in enumerate(self.known)}
        headings = (c.cell_type == "markdown" and re.match(r"#{1,3} ", c.source) for c in cells)
        self.section = list(itertools.accumulate(map(bool, headings)))
        old = [line for cell in cells for line in cell.metadata.get("numbers", [])]
        self.given = {line.split(" <- ")[0]: line for line in old if " <- given: " in line}

    def bound(self, at: int) -> list[str]:
        """The lines of one cell."""
        cell, found = self.cells[at], []
        old = list(cell.metadata.get("numbers", []))
        for number in read(cell):
            same_number = [line for line in old if line.startswith(f"{number} <- ")]
            true = [line for line in same_number if not fault(line, self.everywhere)]
            was = (true or same_number or [""])[0]
            if was:
                old.remove(was)
            last = found[-1].partition(" <- ")[2] if found else ""
            found.append(was if true else self.chosen(at, number, was, last))
        return found

    def chosen(self, at: int, number: str, was: str, last: str) -> str:
        """A line by the rule, for a number whose old line, if there is one, is no longer true."""
        hint = was.partition(" <- ")[2].lstrip("? ")
        cell = hint.split(" ")[0]
        found = [
            source
            for source, there in self.known.items()
            if same(number, there) and (cell not in self.at or source.startswith(f"{cell} "))
        ]
        if not found:
            open_line = f"{number} <- ? {hint}".rstrip()
            return open_line if cell in self.at else self.given.get(number, open_line)
        return f"{number} <- {min(found, key=lambda source: self.rank(at, source, last))}"

    def rank(self, at: int, source: str, last: str) -> tuple:
        """How far a source is from cell ``at``, where the number before comes from ``last``."""
        cell, kind, _ = source.split(" ")
        n = self.at[cell]
        # sentences follow the order of what is printed: on from the number before
        back = last.startswith(f"{cell} {kind} ") and self.order[source] <= self.order[last]
        elsewhere = self.section[n] != self.section[at]
        return elsewhere, kind == "src", n > at, abs(n - at), back, self.order[source]

    def shown(self, line: str) -> str:
        """A line beside the one that it points to, and how many others of that cell would do."""
        source = line.partition(" <- ")[2]
        if source not in self.known:
            return line
        cell, kind, place = source.split(" ")
        there = lines(self.cells[self.at[cell]], kind)[int(place.split(":")[0]) - 1].strip()
        others = sum(
            same(self.known[source], number) and other.startswith(f"{cell} {kind} ")
            for other, number in self.known.items()
        )
        more = f"[1 of {others}] " if others > 1 else ""
        return f"{line:36} {more}{there[:80]}"


def load(path: Path):
    """A notebook; or a page of text, as a notebook of one cell."""
    if path.suffix == ".ipynb":
        return nbformat.v4.reads(path.read_text())
    name = path.resolve().relative_to(ROOT).as_posix()
    lines = json.loads(TEXTS.read_text()).get(name)
    metadata = {"numbers": lines} if lines else {}
    label = path.stem.replace(".", "-")
    cell = nbformat.v4.new_markdown_cell(path.read_text(), id=label, metadata=metadata)
    return nbformat.v4.new_notebook(cells=[cell])


def save(path: Path, notebook) -> None:
    """The lines, to where :func:`load` finds them."""
    if path.suffix == ".ipynb":
        return nbformat.write(notebook, path)
    name = path.resolve().relative_to(ROOT).as_posix()
    every = {**json.loads(TEXTS.read_text()), name: notebook.cells[0].metadata.get("numbers", [])}
    TEXTS.write_text(json.dumps(every, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


def bind(path: Path) -> int:
    """Bind the numbers of a page, print what changed, and return how many are left open."""
    notebook = load(path)
    page, kinds = Page(notebook.cells), collections.Counter()
    found = [page.bound(at) for at in range(len(page.cells))]
    for cell, now in zip(page.cells, found, strict=True):
        before = cell.metadata.pop("numbers", [])
        if now:
            cell.metadata["numbers"] = now
        if now != before:
            print(cell.id, *map(page.shown, now), sep="\n  ")
        kinds.update(next(kind for mark, kind in KINDS.items() if mark in line) for line in now)
    save(path, notebook)
    print(f"{path}: {kinds.total()} numbers,", *(f"{n} {kind}" for kind, n in kinds.items()))
    return kinds["open"]


KINDS = {
    " <- ?": "open",
    " <- given: ": "given",
    " out ": "printed",
    " src ": "set",
    "": "of a file",
}


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    raise SystemExit(sum(bind(Path(name)) for name in sys.argv[1:]) > 0)
