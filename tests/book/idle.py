"""What cannot fail, read off the syntax of tests and of pages."""

import ast
import re

COMPARING = {"equal", "allclose", "isclose", "array_equal"}  # of torch and numpy
TOLERANCES = ("abs", "rel", "atol", "rtol")
SAME = r"\.(clone|detach|contiguous|copy)\(\)"  # what leaves a thing as it is


def name_of(node: ast.AST) -> str:
    """The last part of a name, or of what is called: ``raises`` of ``pytest.raises(…)``."""
    node = node.func if isinstance(node, ast.Call) else node
    return getattr(node, "attr", getattr(node, "id", ""))


def compares(node: ast.AST) -> bool:
    """Whether a call compares."""
    name = name_of(node)
    return isinstance(node, ast.Call) and (name in COMPARING or name.startswith("assert_"))


def always_holds(node: ast.AST) -> bool:
    """One thing on two sides, ``or True``, and an assertion that names nothing.

    Two calls may differ, so they may be compared.
    """
    if isinstance(node, ast.BoolOp):
        return any(getattr(value, "value", 0) is True for value in node.values)
    if isinstance(node, ast.Assert):
        named = any(isinstance(part, ast.Name) for part in ast.walk(node.test))
        return isinstance(node.test, ast.Tuple) or not named
    sides: list[ast.AST] = []
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        sides = [node.left, node.right]
    elif compares(node):
        given = [part.value for part in node.keywords if part.arg not in TOLERANCES]
        sides = [getattr(node.func, "value", node.func), *node.args, *given]
    texts = [re.sub(SAME, "", ast.unparse(side)) for side in sides]
    texts = [text for text in texts if re.match(r"[A-Za-z]", text) and "(" not in text]
    return len({*texts}) < len(texts)
