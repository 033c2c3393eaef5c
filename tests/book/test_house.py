"""The house in order: each test in its room."""

import ast

import pages
import pytest

TESTS = sorted((pages.ROOT / "tests").rglob("*.py"))


def imported(source: str) -> set[str]:
    """The modules that a source imports, by the last part of their names too."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module or "", *(alias.name for alias in node.names)}
    return names | {name.rpartition(".")[2] for name in names}


def test_no_test_imports_another():
    """What tests share stands in a module beside them, where it is found and named for itself."""
    modules = {path.stem for path in TESTS if path.stem.startswith(("test_", "conftest"))}
    assert len(modules) > 15
    for path in TESTS:
        assert imported(path.read_text()) & modules == set(), path


@pytest.mark.parametrize(
    "source",
    ["import test_a", "import x.test_a as y", "from test_a import b", "from x import test_a"],
)
def test_each_way_to_import_is_seen(source):
    assert "test_a" in imported(f"def f():\n    {source}")
    assert "test_a" not in imported("from test_ab import a  # test_a")
