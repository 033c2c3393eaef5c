"""The modules of both packages: one order each, no circle, and neither package in the other."""

import ast
from pathlib import Path

import attn_lib

ROOT = Path(attn_lib.__file__).parents[1]
HOUSE = (ROOT / "CONTRIBUTING.md").read_text().split("## The house")[1].split("```")[1]


def drawn(house: str) -> dict[str, list[str]]:
    """The modules of a drawing, from the lowest; the second column begins where its name does."""
    lines = house.split("attn_lib", 1)[1].splitlines()
    at = len("   attn_lib") + lines[0].index("attn_check")
    columns = {"attn_lib": slice(at), "attn_check": slice(at, None)}
    return {
        name: " ".join(x[part] for x in lines[1:]).split()[::-1] for name, part in columns.items()
    }


# a module imports only those before it; the functions that callers have stand in __init__
ORDER = {name: [*modules, "__init__"] for name, modules in drawn(HOUSE).items()}
ORDER["attn_check"].append("__main__")


def module(path: Path) -> tuple[str, str]:
    """Its package and its name; all exercises are one module."""
    return path.relative_to(ROOT).with_suffix("").parts[:2]


def imports(source: str, package: str) -> list[str]:
    """The module of the package that each import names, wherever it stands.

    What is no module is a name of the package itself.
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [f"{alias.name}." for alias in node.names]
    names = [name.split(".")[1] for name in found if name.startswith(f"{package}.")]
    return [name if name in ORDER[package] else "__init__" for name in names]


def faults(package: str, name: str, source: str) -> list[str]:
    order = ORDER[package]
    others = [other for other in imports(source, package) if other != name]
    late = [other for other in others if order.index(other) >= order.index(name)]
    return [f"{name} imports {other}, which stands after it" for other in late]


PATHS = [path for package in ORDER for path in sorted((ROOT / package).rglob("*.py"))]


def test_every_module_has_its_place():
    """One, in the drawing of the guide."""
    placed = [(package, name) for package, names in ORDER.items() for name in names]
    assert sorted({module(path) for path in PATHS}) == sorted(placed)


def test_a_module_imports_earlier_modules_alone():
    assert [fault for path in PATHS for fault in faults(*module(path), path.read_text())] == []


def test_neither_package_imports_the_other():
    other = {"attn_lib": "attn_check", "attn_check": "attn_lib"}
    for path in PATHS:
        assert imports(path.read_text(), other[module(path)[0]]) == [], path


def test_a_planted_import_is_found():
    late = ["layers imports models, which stands after it"]
    assert faults("attn_lib", "layers", "from attn_lib.models import DecoderLM") == late
    assert faults("attn_lib", "layers", "def f():\n    from attn_lib import models") == late
    assert faults("attn_lib", "layers", "import attn_lib.models") == late
    earlier = "from attn_lib.functional import attention\nimport torch"
    assert faults("attn_lib", "layers", earlier) == []


def test_B11_no_check_disappears_under_dash_O():
    """Rows B11, C09, C18, E18: validation raises; `assert` would be stripped."""
    for path in Path(attn_lib.__file__).parent.glob("*.py"):
        assert not [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Assert)]
