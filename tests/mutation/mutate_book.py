"""Whether a mistake in what the book uses turns some page red.

    pip install mutmut==3.8.1
    python tests/mutation/mutate_book.py [--mutants 60]
    python tests/mutation/mutate_book.py masks.causal_mask functional.attention
    python tests/mutation/mutate_book.py --mistakes [module.function ...]

Every page runs once and must be green; what it calls of the library is noted, line by line. Then

* each public function that returned something is made grossly wrong (``gross.py``), one at a time:
  *some* page must turn red, for every one of them. With names, only these are;
* small changes are sampled, half of them in lines of the library that ran, half in the code of
  the pages: at least 85 % must turn some page red. Signatures, checks of exercises and arguments,
  and what ``equivalent_mutants.csv`` declares are passed over. With ``--mistakes``, what
  ``mistakes.csv`` lists is made in their place, each from a cell on whose page must turn red.

A page is run as far as the first cell that uses what is mutated; from there a fork of the process
runs on with the mutant, up to the first cell that raises or whose outputs differ from the stored
ones. A mutant that lets one page be goes on to the next that uses it. No thread but one runs.

Exit status: 0 if so; not 0 if too many mutants survive, which are listed, if a page is not green
without a mutant, a name is not called, or the version of mutmut is another.
"""

import argparse
import ast
import builtins
import csv
import inspect
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from importlib import import_module, metadata
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from gross import grossly_wrong, wrong
from page_runs import LIBRARY, ROOT, Page, code_cells, forked, used

BOOK = ROOT / "book"
MUTMUT, WANTED = "3.8.1", 85


# ---------------------------------------------------------------- mutants


class Mutant(NamedTuple):
    """A change of one function of the library, or of one cell of a page."""

    file: str  # "masks.py" of the library, or "02_masks.ipynb"
    place: str  # the function, or the number of the cell
    text: str  # the whole module, or the cell, with the change
    label: str  # what it is, for the list of survivors

    def plant(self) -> None:
        """Give the function of the library the changed code, wherever it was imported to."""
        module = self.file.removesuffix(".py").replace("/", ".")
        function = import_module(f"attn_lib.{module}")
        for part in self.place.split("."):
            function = inspect.getattr_static(function, part)
        function = getattr(function, "fget", None) or getattr(function, "__func__", function)
        inspect.unwrap(function).__code__ = self.code()

    def code(self):
        """The changed code of the function; of overloads, the last is the function."""
        code = compile(self.text, self.file, "exec")
        for depth in range(1, 1 + len(self.place.split("."))):
            name = ".".join(self.place.split(".")[:depth])
            code = [c for c in code.co_consts if getattr(c, "co_qualname", "") == name][-1]
        return code


def replaced(name: str) -> Mutant:
    """The function with what it returns grossly wrong."""
    module, _, place = name.partition(".")
    if module == "exercises":
        module, place = f"exercises/{place.partition('.')[0]}", place.partition(".")[2]
    file = f"{module}.py"
    return Mutant(file, place, grossly_wrong(LIBRARY / file, place), f"{name} grossly wrong")


def tried(page: Page, cell: int, mutant: Mutant) -> str | None:
    """The first red cell of a page that runs on with a mutant, or None."""
    builtins._wrong = wrong
    source = mutant.text if mutant.file.endswith(".ipynb") else mutant.plant()
    for number in range(cell, len(page.cells)):
        if page.red(number, source if number == cell else None):
            return f"cell {number}"
    return None


def walk(path: Path, planned: list[tuple[int, Mutant]]) -> list[str | None]:
    """The verdict of a page on each mutant, which is tried from the given cell on."""
    page, found = Page(path), {}
    for cell in range(1 + max(cell for cell, _ in planned)):
        for number, (first, mutant) in enumerate(planned):
            if first == cell:
                found[number] = forked(tried, page, cell, mutant)
                label = mutant.label.replace("\n", "")
                print(path.stem, found[number], label, sep=": ", file=sys.stderr, flush=True)
        page.run(cell)
    return [found[number] for number in range(len(planned))]


# ---------------------------------------------------------------- small changes


def in_library(pages: dict[str, dict]) -> Iterator[tuple[Mutant, dict[str, int]]]:
    """Changes of lines of the library that pages run, with the first cell of each such page."""
    run = {line for page in pages.values() for line in page["lines"]}
    found = []
    for file in sorted({line.partition(":")[0] for line in run}):
        if file != "_checks.py" and not file.startswith("exercises/"):
            lines = {int(x.rpartition(":")[2]) for x in run if x.startswith(f"{file}:")}
            found += small_changes(file, (LIBRARY / file).read_text(), lines)
    for file, before, after in mutated(found):
        line, old, new = difference(before, after)
        place = function_at(ast.parse(before), line)
        cells = first_cells(pages, "lines", f"{file}:{line}")
        label = f"attn_lib/{file}, {place}:\n  - {old}\n  + {new}"
        mutant, plain = Mutant(file, place, after, label), Mutant(file, place, before, "")
        if (
            cells
            and (f"attn_lib.{file[:-3]}.{place}", old, new) not in equivalent()
            and not re.match(r"(_names\.)?check_", old)
            and mutant.code().co_freevars == plain.code().co_freevars  # or Python refuses it
        ):
            yield mutant, cells


def in_pages() -> Iterator[tuple[Mutant, dict[str, int]]]:
    """Changes of the pages' cells, all but the first, which installs the library in Colab."""
    found = []
    for path in sorted(BOOK.glob("*.ipynb")):
        for number, cell in list(enumerate(code_cells(path)))[1:]:
            # only what stands in a function is changed
            source = "def cell():\n" + textwrap.indent(cell.source, "    ", lambda line: True)
            found += small_changes((path.name, number), source)
    for (file, number), *texts in mutated(found):
        before, after = (textwrap.dedent(text.partition("\n")[2]) for text in texts)
        _, old, new = difference(before, after)
        label = f"book/{file}, cell {number}:\n  - {old}\n  + {new}"
        yield Mutant(file, str(number), after, label), {file: number}


def equivalent() -> set[tuple[str, str, str]]:
    """The function, the line before and after, of changes that nobody can see."""
    with Path(__file__).with_name("equivalent_mutants.csv").open() as file:
        return {(row["function"], row["before"], row["after"]) for row in csv.DictReader(file)}


def small_changes(place: object, source: str, lines: set[int] | None = None) -> list:
    """(place, parsed source, mutation) of each small change of a source, or of these lines."""
    # not at the top: mutmut is not pinned, and only this needs it
    from mutmut.mutation.file_mutation import create_mutations

    tree, mutations, *_ = create_mutations("", source, lines)
    return [(place, tree, mutation) for mutation in mutations]


def mutated(found: list) -> Iterator[tuple]:
    """The place, the source as it is, and with the change, in an order that stays."""
    from mutmut.mutation.file_mutation import deep_replace

    for number in np.random.default_rng(0).permutation(len(found)):
        place, tree, mutation = found[number]
        changed = deep_replace(tree, mutation.original_node, mutation.mutated_node)
        yield place, tree.code, changed.code


def difference(before: str, after: str) -> tuple[int, str, str]:
    """The number of the first line that differs, what is taken out and what is put in."""
    old, new = before.splitlines(), after.splitlines()
    first = next(n for n, lines in enumerate(zip(old, new, strict=False)) if len(set(lines)) > 1)
    while old[-1] == new[-1] and min(len(old), len(new)) > first + 1:
        del old[-1], new[-1]
    return (first + 1, *(" ".join(map(str.strip, lines[first:])) for lines in (old, new)))


def function_at(tree, line: int) -> str:
    """The name of the function or method in which a line stands."""
    (node,) = [node for node in tree.body if node.lineno <= line <= node.end_lineno]
    inner = f".{function_at(node, line)}" if isinstance(node, ast.ClassDef) else ""
    return node.name + inner


def mistakes() -> Iterator[tuple[Mutant, dict[str, int]]]:
    """Each mistake that is listed, with its page and cell."""
    pages = {path.name: enumerate(code_cells(path)) for path in BOOK.glob("*.ipynb")}
    cells = {cell.id: {page: n} for page, numbered in pages.items() for n, cell in numbered}
    with Path(__file__).with_name("mistakes.csv").open() as file:
        for row in csv.DictReader(file):
            text = (LIBRARY / row["file"]).read_text()
            if text.count(row["before"]) != 1:
                sys.exit(f"{row['mistake']}: {row['before']!r} must stand once in {row['file']}")
            text = text.replace(row["before"], row["after"])
            yield Mutant(row["file"], row["function"], text, row["mistake"]), cells[row["cell"]]


# ---------------------------------------------------------------- the command


def pages_used(names: set[str]) -> dict[str, dict]:
    """What each page uses, the quickest first; of pages that name some, until all are called."""
    pages = {}
    for path in sorted(BOOK.glob("*.ipynb")):
        words = set(re.findall(r"\w+", path.read_text()))
        here = {name for name in names - called(pages) if name.rpartition(".")[2] in words}
        if here or not names:
            page = pages[path.name] = forked(used, path, here)
            if page["red"]:
                sys.exit(f"{path.name} is red without a mutant, cell {page['cell']}: {page['red']}")
    return dict(sorted(pages.items(), key=lambda page: page[1]["seconds"]))


def called(pages: dict[str, dict]) -> set[str]:
    return {name for page in pages.values() for name in page["functions"]}


def first_cells(pages: dict[str, dict], what: str, name: str) -> dict[str, int]:
    """The first cell of each page that uses that line, or that function."""
    return {page: use[what][name] for page, use in pages.items() if name in use[what]}


def verdicts(planned: list[tuple[Mutant, dict[str, int]]], pages: Iterable[str]) -> list:
    """Which page and cell turned red at each mutant, or None; the pages in this order."""
    found = [None] * len(planned)
    for name in pages:
        left = [n for n, (_, cells) in enumerate(planned) if name in cells and not found[n]]
        if left:
            here = [(planned[n][1][name], planned[n][0]) for n in left]
            for n, verdict in zip(left, forked(walk, BOOK / name, here), strict=True):
                found[n] = verdict and f"{name}, {verdict}"
    return found


def report(what: str, planned: list, found: list, wanted: int) -> bool:
    """Print each mutant with its red cell, and the share of red ones; whether that is enough."""
    for (mutant, _), verdict in zip(planned, found, strict=True):
        print(mutant.label, verdict or "SURVIVED", sep="\n    ")
    red = len(found) - found.count(None)
    print(f"\n{what}: {red} of {len(found)} turn a page red, {wanted} % wanted\n")
    return red > 0 and 100 * red >= wanted * len(found)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("functions", nargs="*", metavar="module.function")
    parser.add_argument("--mistakes", action="store_true")
    parser.add_argument("--mutants", type=int, default=60)
    chosen = parser.parse_args()
    names = set(chosen.functions)
    os.environ |= {"ATTN_LIB_PROGRESS": "0", "TOKENIZERS_PARALLELISM": "false"}
    torch.set_num_threads(1)  # a fork has one thread
    given = bool(names or chosen.mistakes)
    if not given and metadata.version("mutmut") != MUTMUT:
        parser.error(f"the small changes are those of mutmut=={MUTMUT}")
    listed = list(mistakes()) if chosen.mistakes else []
    pages = {} if chosen.mistakes and not names else pages_used(names)
    if names - called(pages):
        parser.error(f"no page calls {sorted(names - called(pages))}")
    wanted = sorted(names or called(pages))
    gross = [(replaced(name), first_cells(pages, "functions", name)) for name in wanted]
    half = 0 if given else chosen.mutants // 2
    small = [*islice(in_library(pages), half), *islice(in_pages(), half)]
    further = sorted({page for _, cells in listed for page in cells} - pages.keys())
    found = iter(verdicts(gross + listed + small, [*pages, *further]))
    parts = {"grossly wrong functions": (gross, 100), "mistakes": (listed, 100)}
    parts["small changes"] = (small, WANTED)
    enough = [
        report(what, planned, list(islice(found, len(planned))), wanted)
        for what, (planned, wanted) in parts.items()
        if planned
    ]
    return int(not all(enough))


if __name__ == "__main__":
    sys.exit(main())
