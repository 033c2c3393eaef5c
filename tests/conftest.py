"""Set-up of all tests: weights, strict continuous integration, a count that cannot shrink."""

import json
import os
from pathlib import Path

import copies
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
    os.environ.pop("PYTEST_ADDOPTS", None)  # how this run is spread is not how its tests run pytest
    for name in files.SOURCES:
        files.fetch(name)


def pytest_collection_modifyitems(config, items):
    if not hasattr(config, "workerinput"):
        check_count(config, len(items))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node, ids):
    """Where workers collect, the process that started them counts: its word is heard."""
    check_count(node.config, len(ids))


def check_count(config, number: int) -> None:
    """A run of everything must find every test: a suite must not shrink in silence."""
    whole = config.args_source == Config.ArgsSource.TESTPATHS
    chosen = config.option.keyword or config.option.markexpr or config.option.deselect
    if whole and not chosen and number != COUNTS["tests"]:
        raise pytest.UsageError(
            f"{number} tests collected, tests/counts.json says {COUNTS['tests']}: "
            "set the new number there if the change is meant"
        )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Each worker takes a file, or one of the pages that run alone: they take as long as files."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            page = nodeid.startswith("tests/book/test_alone.py::test_a_notebook_runs_alone[")
            return nodeid if page else super()._split_scope(nodeid)

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


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
    return copies.copy_tree(tmp_path / "checkout")
