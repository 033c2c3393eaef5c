"""Set-up of all tests: weights, strict continuous integration, a suite that cannot shrink."""

import os
from pathlib import Path

import copies
import hypothesis
import kept
import pytest
from _pytest.config import Config
from browsing import browser, served, site  # noqa: F401, fixtures of the pages' tests

from attn_lib import files

KEPT = Path(__file__).with_name("kept.txt")
# files that take minutes begin first, or the last of them runs alone
LONGEST = ("test_site.py", "test_access.py", "test_checks.py", "test_records.py")
LONGEST += ("test_mutation.py", "test_alone.py")

# the same examples everywhere, so that a red run can be repeated
hypothesis.settings.register_profile("book", derandomize=True, deadline=None, max_examples=60)
# a mutant is dead at its first red example: no search for a smaller one
hypothesis.settings.register_profile(
    "mutation",
    hypothesis.settings.get_profile("book"),
    phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
)
hypothesis.settings.load_profile("mutation" if "MUTANT_UNDER_TEST" in os.environ else "book")


_seen = []  # the ids of the tests that a worker found


def pytest_sessionstart(session):
    for name in ("PYTEST_ADDOPTS", "PIP_NO_DEPS"):  # how this run is started, not what it starts
        os.environ.pop(name, None)
    for name in files.SOURCES:
        files.fetch(name)


@pytest.fixture(scope="module")
def one_thread():
    """Where everything is tiny: on a busy machine two threads wait for each other."""
    import torch  # not where a suite that tests no tensor is tested

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pytest_addoption(parser):
    parser.addoption(
        "--everything", action="store_true", help="each form of a mistake, each setting"
    )
    parser.addoption("--keep", action="store_true", help="write tests/kept.txt anew, and stop")


def pytest_collection_modifyitems(session, config, items):
    items.sort(key=lambda item: (*LONGEST, item.path.name).index(item.path.name))
    if not hasattr(config, "workerinput") and not session.testsfailed:
        check_kept(config, [item.nodeid for item in items])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node, ids):
    """Where workers collect, the process that started them compares: its word is heard."""
    if ids != _seen:  # the other workers find the same
        _seen[:] = ids
        check_kept(node.config, ids)


def check_kept(config, ids: list[str]) -> None:
    """A run of everything must find all that tests/kept.txt names, and nothing else."""
    whole = config.args_source == Config.ArgsSource.TESTPATHS
    if not whole or config.option.keyword or config.option.markexpr or config.option.deselect:
        return
    now = kept.lines(ids)
    if config.option.keep:
        KEPT.write_text("\n".join([*sorted(now), ""]))
        pytest.exit("tests/kept.txt is written: read its difference", 0)
    if found := kept.change(now, set(KEPT.read_text().splitlines())):
        said = "\n".join(["not as tests/kept.txt says; if it is meant: pytest --keep", *found[:40]])
        raise pytest.UsageError(said)


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
