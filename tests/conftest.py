"""Set-up of all tests: weights, and strict continuous integration."""

import os

import copies
import hypothesis
import pytest
from browsing import browser, served, site  # noqa: F401, fixtures of the pages' tests

from attn_lib import files

# files that take long begin first, or the last of them runs alone
LONGEST = "figures records unfamiliar alone looks checks date_reader diagnose exercises".split()
LONGEST += "dark planted mutation access modules site pdf".split()
LONGEST = [f"test_{name}.py" for name in LONGEST]

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


@pytest.fixture
def double():
    """Where what a page defines is compared to the last digits."""
    import torch

    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def pytest_addoption(parser):
    what = "each form of a mistake, each setting"
    parser.addoption("--everything", action="store_true", help=what)


@pytest.fixture
def everything(request):
    return request.config.getoption("--everything")


def pytest_collection_modifyitems(config, items):
    """The longest files first; what is marked as weekly only with ``--everything``."""
    items.sort(key=lambda item: (*LONGEST, item.path.name).index(item.path.name))
    if not config.getoption("--everything"):
        config.hook.pytest_deselected(items=[i for i in items if i.get_closest_marker("weekly")])
        items[:] = [item for item in items if not item.get_closest_marker("weekly")]


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
