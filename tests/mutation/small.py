"""Small changes of a module: a sign, a comparison, a number, a condition, what is returned."""

import ast
from collections.abc import Iterator

SWAPPED = [
    *[(ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.BitAnd, ast.BitOr), (ast.And, ast.Or)],
    *[(ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot)],
    (ast.In, ast.NotIn),
]
OTHER = {**dict(SWAPPED), **{b: a for a, b in SWAPPED}}


def changed(node: ast.AST) -> tuple[str, object] | None:
    """The field of a node to change, and its new value; None where there is nothing to change."""
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in OTHER:
        return "op", OTHER[type(node.op)]()
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OTHER:
        return "ops", [OTHER[type(node.ops[0])](), *node.ops[1:]]
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return "value", not node.value
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return "value", node.value + 1
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        return "test", ast.UnaryOp(ast.Not(), node.test)
    if isinstance(node, ast.Return) and node.value:
        return "value", ast.Constant(None)
    return None


def annotations(tree: ast.AST) -> set[int]:
    """What only a type checker reads."""
    given = (getattr(n, f, None) for n in ast.walk(tree) for f in ("annotation", "returns"))
    return {id(part) for annotation in given if annotation for part in ast.walk(annotation)}


def small_changes(source: str) -> Iterator[tuple[int, str, str]]:
    """(line, what changes, the whole module with it) of each small change."""
    tree = ast.parse(source)
    passed_over = annotations(tree)
    for node in ast.walk(tree):
        if id(node) in passed_over or (change := changed(node)) is None:
            continue
        field, value = change
        before, old = ast.unparse(node).partition("\n")[0], getattr(node, field)
        setattr(node, field, value)
        text = ast.unparse(ast.fix_missing_locations(tree))
        after = ast.unparse(node).partition("\n")[0]
        setattr(node, field, old)
        yield node.lineno, f"{before} -> {after}", text
