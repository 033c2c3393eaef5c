"""What a contributor is told is there: files, names, versions."""

import re

import pages
import tomllib
import yaml

GUIDE = (pages.ROOT / "CONTRIBUTING.md").read_text()


def named_files(text: str) -> list[str]:
    """The paths of the repository, and the names of test files, in backquotes or links."""
    found = re.findall(r"`((?:book|attn_lib|tests|\.ci)/[\w./]*\w/?)`", text)
    found += re.findall(r"\]\((\.github/[\w./]+)\)", text)
    found += re.findall(r"(?:python|bash) ((?:book|\.ci)/\w[\w/.]*)", text)
    return found + [f"tests/library/{name}" for name in re.findall(r"`(test_\w+\.py)`", text)]


def test_every_file_that_the_guide_names_is_there():
    files = [name for name in named_files(GUIDE) if "NN_" not in name and "/name.py" not in name]
    assert len(files) > 20
    assert [name for name in files if not (pages.ROOT / name).exists()] == []
    assert named_files("`tests/gone.py`, `test_lost.py`") == [
        "tests/gone.py",
        "tests/library/test_lost.py",
    ]


def test_every_test_of_the_library_has_a_line_in_the_table():
    present = {path.name for path in (pages.ROOT / "tests").glob("*/test_*.py")}
    grouped = {
        path.name
        for room in ("book", "benchmarks", "mutation")
        for path in (pages.ROOT / "tests" / room).glob("test_*.py")
    }
    told = {name.rpartition("/")[2] for name in named_files(GUIDE)}
    assert present - grouped - told == set()


def test_the_citation_has_the_version_of_the_package():
    citation = yaml.safe_load((pages.ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((pages.ROOT / "pyproject.toml").read_text())["project"]
    assert citation["version"] == project["version"]
    assert citation["authors"] == [{"name": "The Attention, Checked authors"}]


def test_the_issue_form_asks_where_what_and_why():
    path = pages.ROOT / ".github" / "ISSUE_TEMPLATE" / "error_on_a_page.yml"
    form = yaml.safe_load(path.read_text())
    required = [part["id"] for part in form["body"] if part.get("validations", {}).get("required")]
    assert required == ["page", "stands", "should"]
