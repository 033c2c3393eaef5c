"""A function of the library, replaced by one that returns its result grossly wrong."""

import ast
from pathlib import Path

import torch


def wrong(value):
    """The value, grossly wrong; the very same object where there is no way for its kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return 1.5 * value + 1 if isinstance(value, float) else value + 1
    if isinstance(value, str | bytes):
        return value[:0]  # as false as None, where it is a fault that somebody asks for
    if isinstance(value, torch.Tensor):
        return _wrong_tensor(value)
    if isinstance(value, dict):
        return {key: wrong(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [wrong(part) for part in value]
        return value._make(parts) if hasattr(value, "_make") else type(value)(parts)
    if isinstance(value, torch.nn.Module):
        with torch.no_grad():
            for parameter in value.parameters():
                parameter.copy_(_wrong_tensor(parameter))
    elif hasattr(value, "invert_xaxis"):  # a plot
        value.invert_xaxis()
    return value


def is_itself_wrong(value) -> bool:
    """Whether ``wrong`` changes the very object, which others may hold, too."""
    return isinstance(value, torch.nn.Module) or hasattr(value, "invert_xaxis")


def _wrong_tensor(x: torch.Tensor) -> torch.Tensor:
    if x.dtype == torch.bool:
        return ~x
    rolled = x.roll(1, dims=-1) if x.dim() else x
    return 1.5 * rolled if x.is_floating_point() else rolled if x.dim() else x + 1


def can_be_wrong(value) -> bool:
    """Whether ``wrong`` knows a way."""
    if isinstance(value, torch.nn.Module):
        return not all(parameter.is_meta for parameter in value.parameters())
    known = bool | int | float | str | bytes | torch.Tensor | dict | list | tuple
    return isinstance(value, known) or hasattr(value, "invert_xaxis")


class _Wrong(ast.NodeTransformer):
    """What one function returns or yields goes through ``wrong``."""

    def visit_Return(self, node):
        if node.value:
            node.value = ast.Call(ast.Name("_wrong", ast.Load()), [node.value], [])
        return node

    visit_Yield = visit_Return

    def visit_FunctionDef(self, node):
        return node  # what an inner function returns stays

    visit_Lambda = visit_FunctionDef


def grossly_wrong(path: Path, name: str) -> str:
    """The module's source, with that function's returns grossly wrong."""
    tree = body = ast.parse(path.read_text())
    for part in name.split("."):
        # of overloads, the last is the function
        body = [node for node in body.body if getattr(node, "name", "") == part][-1]
    body.body = [_Wrong().visit(node) for node in body.body]
    return ast.unparse(ast.fix_missing_locations(tree))
