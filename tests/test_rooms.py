"""The modules of both packages: one order each, no circle, and neither package in the other."""

import ast
from pathlib import Path

from tables import for_each

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
PATHS = [path for package in ORDER for path in sorted((ROOT / package).rglob("*.py"))]


def place(path: Path) -> tuple[str, str]:
    """The package of a module and its name; all exercises are one module."""
    return path.relative_to(ROOT).with_suffix("").parts[:2]


def faults(package: str, name: str, source: str) -> list[str]:
    """Imports of the other package, and of modules that stand after this one."""
    nodes, order = [*ast.walk(ast.parse(source))], ORDER[package]
    found = [alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names]
    for node in (n for n in nodes if isinstance(n, ast.ImportFrom)):
        found += [f"{node.module}.{alias.name}" for alias in node.names]
    own = [f"{one}.".split(".")[:2] for one in found]
    wrong = [f"{name} imports {other}" for other, _ in own if other in ORDER.keys() - {package}]
    for inner in (inner for other, inner in own if other == package and inner != name):
        late = inner if inner in order else "__init__"  # a name of the package itself
        if order.index(late) >= order.index(name):
            wrong.append(f"{name} imports {late}, which stands after it")
    return wrong


def test_every_module_has_its_place():
    """One, in the drawing of the guide."""
    placed = [(package, name) for package, names in ORDER.items() for name in names]
    assert sorted({place(path) for path in PATHS}) == sorted(placed)


def test_a_module_imports_earlier_modules_of_its_package_alone():
    assert [fault for path in PATHS for fault in faults(*place(path), path.read_text())] == []


@for_each(
    ("def f():\n    from attn_lib import models", ["layers imports models, which stands after it"]),
    ("import attn_lib.models", ["layers imports models, which stands after it"]),
    ("from attn_check import rope", ["layers imports attn_check"]),
    ("from attn_lib.functional import attention\nimport torch", []),
)
def test_a_planted_import_is_found(source, found):
    assert faults("attn_lib", "layers", source) == found
