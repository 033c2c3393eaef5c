"""The house in order: each test in its room, each check in the command that must run it."""

import ast
import json
import os
import re
import subprocess
import sys

import pages
import pytest
import yaml

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


# ---------------------------------------------------------------- what runs when

WEEKLY_PASSES = ("$sse4", "$sse4 $one", "$avx2", "$one")
# functions of which a page says early that they are wrong
TEN = [
    *("functional.attention", "functional.attention_weights", "masks.causal_mask"),
    *("masks.from_binary", "masks.padding_mask", "masks.segment_mask", "masks.to_blocked"),
    *("masks.window_mask", "plotting.plot_mask", "plotting.plot_weights"),
]
WANTED = {
    "run": [
        'export PYTEST_ADDOPTS="-n 2 --dist loadfile --no-loadscope-reorder"',
        *re.findall(
            r"^pip install -r requirements.txt && .*$",
            (pages.ROOT / "README.md").read_text(),
            re.MULTILINE,
        ),
        "ruff check . && ruff format --check .",
        "mypy --disallow-untyped-defs attn_lib",
        f"python tests/mutation/mutate_book.py {' '.join(TEN)}",
    ],
    "weekly": [
        'sse4="MKL_CBWR=COMPATIBLE ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41"',
        'avx2="MKL_CBWR=AVX2 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2"',
        'one="OMP_NUM_THREADS=1 MKL_NUM_THREADS=1"',
        *(f"env {variables} pytest --nbval book" for variables in WEEKLY_PASSES),
        "pytest tests/benchmarks",
        "python tests/mutation/mutate_book.py",
        *re.findall(
            r"^(?:coverage run|pip install mutmut==\S+ && OMP_NUM_THREADS).*$",
            (pages.BOOK / "how_checked.md").read_text(),
            re.MULTILINE,
        ),
    ],
}


def script(name):
    """The text, each line whole."""
    return (pages.ROOT / ".ci" / name).read_text().replace(" \\\n  ", " ")


def lacking(text, wanted):
    """The lines that a script would have to hold and does not."""
    return [line for line in wanted if f"\n{line}\n" not in text]


@pytest.mark.parametrize("name", WANTED)
def test_the_scripts_hold_every_check(name):
    wanted = WANTED[name]
    assert len(wanted) == {"run": 6, "weekly": 11}[name]
    assert lacking(script(name), wanted) == []
    assert "\nset -euo pipefail\n" in script(name)
    assert "\nexport CI=true " in script(name)
    for line in wanted:
        assert lacking(script(name).replace(f"\n{line}\n", "\n"), wanted) == [line]


def test_workflows_run_the_scripts():
    """Every change runs the one; every week runs both; nothing else has a clock."""
    folder = pages.ROOT / ".github" / "workflows"
    found = {path.stem: yaml.safe_load(path.read_text()) for path in folder.glob("*.yml")}
    when = {name: set(workflow[True]) for name, workflow in found.items()}  # "on" is read as True
    assert when == {"check": {"push", "pull_request"}, "weekly": {"schedule", "workflow_dispatch"}}
    (job,) = found["check"]["jobs"].values()
    assert job["steps"][-1]["run"] == "bash .ci/run"
    (job,) = found["weekly"]["jobs"].values()
    assert job["steps"][-1]["run"] == "bash .ci/${{ matrix.script }}"
    assert job["strategy"]["matrix"] == {"script": ["run", "weekly"]}


@pytest.mark.parametrize("processes", [(), ("-n", "2", "--dist", "loadfile")], ids=["one", "two"])
def test_a_suite_that_shrank_turns_red(checkout, processes):
    """However many processes collect: one test less than tests/counts.json says."""
    for path in checkout.glob("tests/*/test_*.py"):
        path.unlink()
    for name in ("a", "b"):
        (checkout / "tests" / "library" / f"test_{name}.py").write_text("def test():\n    pass\n")
    (checkout / "tests" / "counts.json").write_text(json.dumps({"tests": 3}))
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-o", "testpaths=tests", *processes],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: 2 tests collected, tests/counts.json says 3" in run.stdout + run.stderr
