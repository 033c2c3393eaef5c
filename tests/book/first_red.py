"""A plugin of pytest, ``-p first_red``: of each notebook no cell runs after the first red one."""

import pytest

_red = set()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        _red.add(item.path)
    return report


def pytest_runtest_setup(item):
    if item.path in _red:
        pytest.skip("an earlier cell of this notebook is red")
