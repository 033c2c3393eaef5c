"""The library's modules: one order, no circle."""

import ast
from pathlib import Path

import pytest

import attn_lib

FOLDER = Path(attn_lib.__file__).parent
# a module imports only those above it; the order in which the library is read
ORDER = [
    "_checks",
    "masks",
    "functional",
    "fused",
    "recording",
    "positions",
    "_embedding",
    "cache",
    "layers",
    "transformer",
    "models",
    "generation",
    "vision",
    "_names",
    "_decoders",
    "interop",
    "files",
    "records",
    "pretrained",
    "datasets",
    "training",
    "plotting",
    "exercises",
]


def module(path: Path) -> str:
    return path.relative_to(FOLDER).with_suffix("").parts[0]


def imports(source: str) -> list[str]:
    """The module of the library that each import names, wherever it stands."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "attn_lib":
            found += [f"attn_lib.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append(node.module or "")
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return [name.split(".")[1] for name in found if name.startswith("attn_lib.")]


def faults(name: str, source: str) -> list[str]:
    others = [other for other in imports(source) if other != name]
    late = [other for other in others if ORDER.index(other) >= ORDER.index(name)]
    return [f"{name} imports {other}, which stands after it" for other in late]


PATHS = [p for p in sorted(FOLDER.rglob("*.py")) if p != FOLDER / "__init__.py"]


def test_every_module_has_its_place():
    assert {module(path) for path in PATHS} == set(ORDER)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_module_imports_earlier_modules_alone(path):
    assert faults(module(path), path.read_text()) == []


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("masks", "from attn_lib.layers import split_heads", "masks imports layers"),
        ("masks", "def f():\n    import attn_lib.functional", "masks imports functional"),
        ("layers", "from attn_lib import models", "layers imports models"),
        ("layers", "import attn_lib.exercises.masks", "layers imports exercises"),
    ],
)
def test_a_planted_import_is_found(name, line, message):
    (fault,) = faults(name, line)
    assert fault.startswith(message)
    assert faults("layers", "from attn_lib.functional import attention\nimport torch") == []


def test_B11_no_check_disappears_under_dash_O():
    """Rows B11, C09, C18, E18: validation raises; `assert` would be stripped."""
    for path in Path(attn_lib.__file__).parent.glob("*.py"):
        assert not [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Assert)]
