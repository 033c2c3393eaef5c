"""The house in order: each test in its room, each check in the command that must run it."""

import ast
import os
import re
import subprocess
import sys

import kept
import nbformat
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


def ending_early(source: str) -> list[str]:
    """The tests that return, so that what they assert after it is never tried."""

    def own(node: ast.AST) -> list[ast.AST]:  # without those of inner functions
        inner = ast.FunctionDef | ast.Lambda | ast.ClassDef
        parts = [n for n in ast.iter_child_nodes(node) if not isinstance(n, inner)]
        return parts + [n for part in parts for n in own(part)]

    return [
        node.name
        for node in ast.parse(source).body
        if getattr(node, "name", "").startswith("test")
        and any(isinstance(part, ast.Return) for part in own(node))
    ]


def test_no_test_ends_early():
    for path in TESTS:
        assert ending_early(path.read_text()) == [], path


@pytest.mark.parametrize(("line", "early"), [("return", 1), ("if x:\n  return", 1), ("f = g", 0)])
def test_each_way_to_end_early_is_seen(line, early):
    body = "\n".join(f"    {part}" for part in f"def g():\n    return 1\n{line}".splitlines())
    assert len(ending_early(f"def test_a():\n{body}\n    assert g()")) == early


# ---------------------------------------------------------------- what runs when

README = (pages.ROOT / "README.md").read_text()
WEEKLY_PASSES = ("$sse4", "$sse4 $one", "$avx2", "$all")
# functions of which a page says early that they are wrong
TEN = [
    *("functional.attention", "functional.attention_weights", "masks.causal_mask"),
    *("masks.from_binary", "masks.padding_mask", "masks.segment_mask", "masks.to_blocked"),
    *("masks.window_mask", "plotting.plot_mask", "plotting.plot_weights"),
]
WANTED = {
    "run": [
        "export OMP_NUM_THREADS=1",
        'export PYTEST_ADDOPTS="-n 3 --dist loadfile --no-loadscope-reorder"',
        *re.findall(
            r"^pip install -r requirements.txt && .*$",
            README,
            re.MULTILINE,
        ),
        "ruff check . && ruff format --check .",
        "once_checked mypy --disallow-untyped-defs attn_lib & types=$!",
        f"once_checked python tests/mutation/mutate_book.py {' '.join(TEN)} & wrong=$!",
        "wait $types && wait $wrong",
    ],
    "weekly": [
        'sse4="MKL_CBWR=COMPATIBLE ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41"',
        'avx2="MKL_CBWR=AVX2 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2"',
        'one="OMP_NUM_THREADS=1 MKL_NUM_THREADS=1"',
        'all="-u OMP_NUM_THREADS -u MKL_NUM_THREADS"',
        *(f"env {variables} pytest --nbval book" for variables in WEEKLY_PASSES),
        "bash .ci/colab",
        "pytest tests/benchmarks",
        "python tests/mutation/mutate_book.py",
        "python tests/mutation/repairs.py",
        *re.findall(
            r"^(?:coverage run|python \S+ --check|pip install mutmut==\S+ && OMP_NUM_THREADS).*$",
            (pages.BOOK / "how_checked.md").read_text(),
            re.MULTILINE,
        ),
    ],
    "publish": [
        *re.findall(r"^pip install .*--keep-going$", README, re.MULTILINE),
        "python book/_tools/paper.py",
    ],
    "versions": [
        '    check="pytest --nbval book" ;;',
        '    check="pytest tests/library attn_lib" ;;',
        '$check | tee "$work/said.txt" || status=$?',
        'exit "${status:-0}"',
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
    assert len(wanted) == {"run": 8, "weekly": 15, "publish": 2, "versions": 4}[name]
    assert lacking(script(name), wanted) == []
    assert "\nset -euo pipefail\n" in script(name)
    assert "\nexport CI=true " in script(name)
    for line in wanted:
        assert lacking(script(name).replace(f"\n{line}\n", "\n"), wanted) == [line]


@pytest.mark.parametrize(
    ("name", "last", "status"),
    [
        ("run", "sleep 0 & wait $!", 0),
        ("run", "false & wait $!", 1),
        ("run", "sleep 60 & false", 1),  # it would be waited for
        *[(name, last, status) for name in WANTED for last, status in (("true", 0), ("exit 3", 3))],
    ],
)
def test_a_script_ends_as_its_last_command_does_and_leaves_nothing(name, last, status, tmp_path):
    """What it takes away at its end must not make a green run red, or a red one green."""
    start = re.findall(r"^(?:set -euo|work=|trap ).*$", script(name), re.MULTILINE)
    assert len(start) == 3
    run = subprocess.run(
        ["bash", "-c", "\n".join([*start, last])],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        timeout=30,
    )
    assert run.returncode == status
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- nothing lost in silence

PAGE = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source="", id="a")])
PAGE.cells.append(
    nbformat.v4.new_code_cell("assert a == b\nprint(torch.equal(a, b), c < 1e-5)", id="b")
)
HELD = {
    "tests/library/test_a.py": """
WANTED = 90.0

@pytest.mark.parametrize("x", ["this", "that"])
def test_close(x):
    tolerance = {"this": 1e-6}.get(x, 1e-2)
    assert_close(x, y, atol=1e-4, rtol=tolerance)
    assert (x - y).max() < 0.5

def test_other():
    pass
    assert x == y
""",
    "tests/benchmarks/test_b.py": "def test_race():\n    assert 1.05 >= ratio\n",
    "book/_tools/compare.py": "PIXELS = 8\n",
    "book/01_page.ipynb": nbformat.writes(PAGE),
    "pyproject.toml": "[tool.coverage.report]\nfail_under = 98\n",
}
CASES = [
    *(f"tests/library/test_a.py::test_{name}" for name in ("close[this]", "close[that]", "other")),
    "attn_lib/masks.py::attn_lib.masks.causal_mask",
]


def held(root, changed=None, cases=CASES):
    for name, text in HELD.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text if changed is None else text.replace(*changed))
    return kept.lines(cases, root)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("90.0", "70.0", "tests/library/test_a.py"),
        ("1e-6}", "1e-3}", "tests/library/test_a.py::test_close"),
        ("atol=1e-4", "atol=1e9", "tests/library/test_a.py::test_close"),
        ("< 0.5", "< 5.0", "tests/library/test_a.py::test_close"),
        ("1.05", "1.5", "tests/benchmarks/test_b.py::test_race"),
        ("test_race", "race", "tests/benchmarks/test_b.py::test_race"),
        ("assert x == y", "x, y", "tests/library/test_a.py::test_other"),
        ("= 8", "= 800", "book/_tools/compare.py"),
        ("assert a == b", "a, b", "book/01_page.ipynb"),
        ("torch.equal(a, b)", "True", "book/01_page.ipynb"),
        ("1e-5", "1e5", "book/01_page.ipynb"),
        ("fail_under = 98", "fail_under = 8", "pyproject.toml"),
    ],
)
def test_what_is_loosened_or_taken_out_is_named(tmp_path, old, new, what):
    before = held(tmp_path)
    after = held(tmp_path, (old, new))
    assert what in {line.split(" ")[1] for line in kept.change(after, before) if line[0] == "-"}
    assert kept.change(held(tmp_path, ("pass", "return")), before) == []


@pytest.mark.parametrize("case", CASES)
def test_a_case_that_vanishes_is_named(tmp_path, case):
    fewer = held(tmp_path, cases=[other for other in CASES if other != case])
    (gone, *_) = kept.change(fewer, held(tmp_path))
    assert gone.startswith(f"- {case.partition('[')[0]} | {1 + ('[' in case)}")


FILE = "tests/library/test_a.py"


@pytest.fixture
def small(checkout):
    """A suite of two tests, and what runs it."""
    for path in [*checkout.glob("tests/*/*.py"), *checkout.glob("book/*.ipynb")]:
        if path.stem not in ("browsing", "copies", "pages"):
            path.unlink()
    (checkout / "attn_lib" / "__init__.py").write_text("")  # so that no process loads torch
    (checkout / FILE).write_text("def test_a():\n    pass\n\ndef test_b():\n    pass\n")
    kept_now = kept.lines([f"{FILE}::test_a", f"{FILE}::test_b"], checkout)
    (checkout / "tests" / "kept.txt").write_text("\n".join(kept_now))
    return checkout


def run(root, *arguments):
    settings = ["-o", "testpaths=tests", "-o", "addopts=", "-p", "no:hypothesispytest"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *settings, *arguments],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("processes", [(), ("-n", "2", "--dist", "loadfile")], ids=["one", "two"])
def test_a_suite_that_shrank_turns_red(small, processes):
    """However many processes collect."""
    (small / FILE).write_text("def test_a():\n    pass\n")
    shrank = run(small, *processes)
    assert shrank.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"\n- {FILE}::test_b | 1 | 0 comparisons\n" in shrank.stdout + shrank.stderr


def test_one_command_says_that_a_change_is_meant(small):
    """But what cannot be collected is not struck off."""
    names = small / "tests" / "kept.txt"
    before = names.read_text()
    (small / FILE).write_text("import nowhere\n")
    assert run(small, "--keep").returncode != 0
    assert names.read_text() == before
    (small / FILE).write_text("def test_a():\n    pass\n")
    assert run(small, "--keep").returncode == 0
    gone = set(before.splitlines()) - set(names.read_text().splitlines())
    assert gone == {f"{FILE}::test_b | 1 | 0 comparisons"}
    assert run(small).returncode == 0
