"""What the suite holds, so that nothing of it is lost or loosened in silence: `tests/kept.txt`.

A line for each test, with the number of its cases and its bounds; one for each other file with
bounds; one for each notebook, with the number of its assertions and comparisons. ``pytest --keep``
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
            test = re.match("test", getattr(node, "name", ""))
            if bounds := bounds_of(node):
                found.setdefault(f"{name}::{node.name}" if test else name, []).extend(bounds)
            elif test:  # also what is run by name alone, such as the benchmarks
                found.setdefault(f"{name}::{node.name}", [])
    for path in (root / "book").glob("*.ipynb"):
        n = pages.comparisons(pages.read(path))
        found[path.relative_to(root).as_posix()] = [f"{n} comparisons"]
    floors = re.findall(r"(?m)^fail_under = .*", (root / "pyproject.toml").read_text())
    found["pyproject.toml"] = floors
    return {" | ".join([name, *values]) for name, values in found.items()}


def bounds_of(tree: ast.AST) -> list[str]:
    """The tolerances, limits of assertions and constants of a statement, as they are written."""
    return [ast.unparse(node) for node in _bounds(tree) if any(map(_number, ast.walk(node)))]


def _bounds(tree: ast.AST) -> Iterable[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg in TOLERANCES:
            yield node
        elif isinstance(node, ast.Assert):
            compares = [n for n in ast.walk(node) if isinstance(n, ast.Compare)]
            yield from (n for n in compares if any(isinstance(op, ORDER) for op in n.ops))
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
