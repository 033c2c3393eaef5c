"""The house in order: every check that readers are told of is run; what a guide names is there."""

import ast
import os
import re
import subprocess

import pages
import pytest
import tomllib
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

SCRIPTS = ("run", "weekly", "publish", "versions")
CI = {name: (pages.ROOT / ".ci" / name).read_text() for name in SCRIPTS}
# what the pages say is run, beside the commands that they print
RUN = "ruff check .;ruff format --check .;mypy --disallow-untyped-defs attn_lib attn_check"
WEEKLY = "env $sse4 pytest --nbval book;env $avx2 pytest --nbval book;env $all pytest --nbval book"
WEEKLY += ";bash .ci/colab;--everything;python tests/mutation/repairs.py"


def printed_commands() -> list[str]:
    """What "How this book is checked" prints to be run; not what writes pages or records."""
    text = (pages.BOOK / "how_checked.md").read_text()
    blocks = re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    found = [part for block in blocks for part in re.split(r" && |\n", block) if part]
    return [c for c in found if not re.search(r"execute\.py|record\.py book", c)]


def lost(texts: dict[str, str]) -> list[str]:
    """The checks that a reader is told of and no script runs."""
    told = {"run": RUN.split(";"), "weekly": WEEKLY.split(";")}
    bare = {name: re.sub(r"(?m)^\s*#.*", "", text) for name, text in texts.items()}
    gone = [c for name, wanted in told.items() for c in wanted if c not in bare[name]]
    return gone + [c for c in printed_commands() if c not in bare["run"] + bare["weekly"]]


def test_every_check_that_readers_are_told_of_is_run():
    assert len(printed_commands()) > 10
    assert lost(CI) == []
    assert lost(CI | {"run": CI["run"].replace("mypy", "pyre")}) == RUN.split(";")[-1:]
    weekly = CI["weekly"].replace("pytest tests/benchmarks", "")
    assert lost(CI | {"weekly": weekly}) == ["pytest tests/benchmarks"]


@pytest.mark.parametrize(
    ("name", "last", "status"),
    [
        ("run", "sleep 0 & wait $!", 0),
        ("run", "false & wait $!", 1),
        ("run", "sleep 60 & false", 1),  # it would be waited for
        *[(name, last, status) for name in CI for last, status in (("true", 0), ("exit 3", 3))],
    ],
)
def test_a_script_ends_as_its_last_command_does_and_leaves_nothing(name, last, status, tmp_path):
    """What it takes away at its end must not make a green run red, or a red one green."""
    start = re.findall(r"^(?:set -euo|work=|trap ).*$", CI[name], re.MULTILINE)
    assert len(start) == 3
    assert "\nexport CI=true " in CI[name]
    run = subprocess.run(
        ["bash", "-c", "\n".join([*start, last])],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        timeout=30,
    )
    assert run.returncode == status
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- what a contributor is told

GUIDE = (pages.ROOT / "CONTRIBUTING.md").read_text()


def named_files(text: str) -> list[str]:
    """The paths of the repository, in backquotes or links or behind a command."""
    found = re.findall(r"`((?:book|attn_lib|tests|\.ci)/[\w./]*\w/?)`", text)
    found += re.findall(r"\]\((\.github/[\w./]+)\)", text)
    return found + re.findall(r"(?:python|bash) ((?:book|\.ci)/\w[\w/.]*)", text)


def test_every_file_and_folder_of_the_guide_is_there():
    files = [name for name in named_files(GUIDE) if "NN_" not in name and "/name.py" not in name]
    assert len(files) > 20
    assert [name for name in files if not (pages.ROOT / name).exists()] == []
    assert named_files("`tests/gone.py`") == ["tests/gone.py"]
    folders = {f"tests/{path.parent.name}/" for path in (pages.ROOT / "tests").glob("*/test_*.py")}
    assert folders <= set(files) | {f"{name.rstrip('/')}/" for name in files}


def test_the_citation_has_the_version_of_the_package():
    citation = yaml.safe_load((pages.ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((pages.ROOT / "pyproject.toml").read_text())["project"]
    assert citation["version"] == project["version"]


def test_the_issue_form_asks_where_what_and_why():
    path = pages.ROOT / ".github" / "ISSUE_TEMPLATE" / "error_on_a_page.yml"
    form = yaml.safe_load(path.read_text())
    required = [part["id"] for part in form["body"] if part.get("validations", {}).get("required")]
    assert required == ["page", "stands", "should"]
