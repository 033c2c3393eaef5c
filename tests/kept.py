"""What the suite holds, so that nothing of it is lost or loosened in silence: `tests/kept.txt`.

A line for each test, with the number of its cases, of its comparisons, and its bounds; one for each
other file with bounds; one for each notebook, with its comparisons and bounds. ``pytest --keep``
writes it anew; the difference is then there to be read.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pages

TOLERANCES = {"atol", "rtol", "abs", "rel", "max_examples"}
ORDER = ast.Lt | ast.LtE | ast.Gt | ast.GtE
# what a constant of a module may be made of: numbers, and what they belong to
PLAIN = ast.Constant | ast.Tuple | ast.List | ast.Dict | ast.Name | ast.Attribute | ast.Load


def lines(ids: Iterable[str], root: Path = pages.ROOT) -> set[str]:
    """All that is kept, given the ids of the collected tests."""
    found = {name: [str(n)] for name, n in Counter(i.partition("[")[0] for i in ids).items()}
    for path in [*(root / "tests").rglob("*.py"), root / "book" / "_tools" / "compare.py"]:
        name = path.relative_to(root).as_posix()
        for node in ast.parse(path.read_text()).body:
            if re.match("test", getattr(node, "name", "")):
                # also what is run by name alone, such as the benchmarks
                found.setdefault(f"{name}::{node.name}", []).extend(held(node, bounds(node)))
            elif bounded := written(bounds(node)):
                found.setdefault(name, []).extend(bounded)
    for path in (root / "book").glob("*.ipynb"):
        cells = pages.code_cells(pages.read(path))[1:]  # the first may install
        page = ast.parse("\n".join(cell.source for cell in cells))
        found[path.relative_to(root).as_posix()] = held(page, [*tolerances(page), *limits(page)])
    floors = re.findall(r"(?m)^fail_under = .*", (root / "pyproject.toml").read_text())
    found["pyproject.toml"] = floors
    return {" | ".join([name, *values]) for name, values in found.items()}


def held(tree: ast.AST, bounds: Iterable[ast.AST]) -> list[str]:
    """How many assertions and comparisons there are, and the bounds as they are written."""
    n = sum(
        isinstance(node, ast.Assert | ast.Compare)
        or (name := getattr(node, "attr", getattr(node, "id", ""))) in pages.COMPARING
        or name.startswith("assert_")
        for node in ast.walk(tree)
    )
    return [f"{n} comparisons", *written(bounds)]


def written(nodes: Iterable[ast.AST]) -> list[str]:
    """Those that hold a number."""
    return [ast.unparse(node) for node in nodes if any(map(_number, ast.walk(node)))]


def tolerances(tree: ast.AST) -> Iterable[ast.AST]:
    """Tolerances that are given to a call."""
    keywords = (node for node in ast.walk(tree) if isinstance(node, ast.keyword))
    return (node for node in keywords if node.arg in TOLERANCES)


def limits(tree: ast.AST) -> Iterable[ast.AST]:
    """Comparisons of size."""
    compares = (node for node in ast.walk(tree) if isinstance(node, ast.Compare))
    return (node for node in compares if any(isinstance(op, ORDER) for op in node.ops))


def bounds(tree: ast.AST) -> Iterable[ast.AST]:
    """The tolerances, limits of assertions and constants of a statement of a test's file."""
    yield from tolerances(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            yield from limits(node)
        elif isinstance(node, ast.Assign):
            target = ast.unparse(node.targets[0])
            constant = target.isupper() and all(isinstance(n, PLAIN) for n in ast.walk(node.value))
            if constant or target == "tolerance":
                yield node


def _number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def change(now: set[str], then: set[str]) -> list[str]:
    """The lines that are gone, with -, and those that are new, with +; one name's together."""
    found = [f"- {line}" for line in then - now] + [f"+ {line}" for line in now - then]
    return sorted(found, key=lambda line: (line.split(" ")[1], line[0] == "+"))
