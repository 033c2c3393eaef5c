"""The library's modules: one order, no circle, nothing private fetched from a neighbour."""

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
    "recording",
    "positions",
    "_embedding",
    "cache",
    "layers",
    "transformer",
    "models",
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
    "diagnosis",
    "__main__",
]


def module(path: Path) -> str:
    return path.relative_to(FOLDER).with_suffix("").parts[0]


def imports(source: str) -> list[tuple[str, list[str]]]:
    """(module of the library, names taken from it) of each import, wherever it stands."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "attn_lib":
            found += [(alias.name, []) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("attn_lib."):
            found.append((node.module.split(".", 1)[1], [alias.name for alias in node.names]))
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("attn_lib.")]
            found += [(name.split(".", 1)[1], []) for name in names]
    return found


def faults(name: str, source: str) -> list[str]:
    found = []
    for other, taken in imports(source):
        above = other.split(".")[0]
        if above != name and ORDER.index(above) >= ORDER.index(name):
            found.append(f"{name} imports {other}, which stands after it")
        found += [f"{name} takes {t} from {other}" for t in taken if t.startswith("_")]
    return found


PATHS = [p for p in sorted(FOLDER.rglob("*.py")) if p != FOLDER / "__init__.py"]


def test_every_module_has_its_place():
    assert {module(path) for path in PATHS} == set(ORDER)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_module_imports_public_names_of_earlier_modules(path):
    assert faults(module(path), path.read_text()) == []


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("masks", "from attn_lib.layers import split_heads", "masks imports layers"),
        ("masks", "def f():\n    import attn_lib.functional", "masks imports functional"),
        ("layers", "from attn_lib import models", "layers imports models"),
        ("layers", "from attn_lib.functional import _weights", "layers takes _weights"),
        ("exercises", "from attn_lib.exercises.verdict import _x", "exercises takes _x"),
    ],
)
def test_a_planted_import_is_found(name, line, message):
    (fault,) = faults(name, line)
    assert fault.startswith(message)
    assert faults("layers", "from attn_lib.functional import attention\nimport torch") == []
