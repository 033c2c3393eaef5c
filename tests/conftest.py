"""Set-up of all tests: weights, strict continuous integration, a count that cannot shrink."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import hypothesis
import pytest
from _pytest.config import Config

from attn_lib import files

COUNTS = json.loads((Path(__file__).parent / "counts.json").read_text())

# the same examples everywhere, so that a red run can be repeated
hypothesis.settings.register_profile("book", derandomize=True, deadline=None, max_examples=60)
# a mutant is dead at its first red example: no search for a smaller one
hypothesis.settings.register_profile(
    "mutation",
    hypothesis.settings.get_profile("book"),
    phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
)
hypothesis.settings.load_profile("mutation" if "MUTANT_UNDER_TEST" in os.environ else "book")


def pytest_sessionstart(session):
    for name in files.SOURCES:
        files.fetch(name)


def pytest_collection_modifyitems(session, config, items):
    """A run of everything must find every test: a suite must not shrink in silence."""
    whole = config.args_source == Config.ArgsSource.TESTPATHS
    chosen = config.option.keyword or config.option.markexpr or config.option.deselect
    if whole and not chosen and len(items) != COUNTS["tests"]:
        raise pytest.UsageError(
            f"{len(items)} tests collected, tests/counts.json says {COUNTS['tests']}: "
            "set the new number there if the change is meant"
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """In continuous integration a skipped test is a failed one."""
    report = yield
    if report.skipped and os.environ.get("CI"):
        report.outcome = "failed"
        report.longrepr = f"skipped where nothing may be skipped: {report.longrepr}"
    return report


@pytest.fixture
def checkout(tmp_path):
    """A copy of the working tree, without what git ignores."""
    return copy_tree(tmp_path / "checkout")


def copy_tree(target: Path) -> Path:
    root = Path(__file__).resolve().parents[1]
    files = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    for name in files:
        if (root / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, target / name)
    return target
