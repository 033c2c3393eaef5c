"""What strict nbval leaves out: figures compared, weights there, a green run recorded."""

import os
import sys
from collections import Counter
from pathlib import Path

import checked
import nbformat
import pytest
from compare import figure_fault, figures
from nbval.plugin import IPyNbCell

from attn_lib import files

BOOK = Path(__file__).parent
collect_ignore = ["_ext", "_tools"]
os.environ["ATTN_LIB_PROGRESS"] = "0"

_compare_text = IPyNbCell.compare_outputs
_passed: Counter[Path] = Counter()


def pytest_sessionstart(session):
    """Fetch every weight file before a notebook asks for it, and take back the last record."""
    if session.config.getoption("nbval"):
        checked.forget()
    for name in files.SOURCES:
        files.fetch(name)


def pytest_collection_modifyitems(items):
    """The last pages first: they take longest, and no process shall wait for one at the end."""
    items.sort(key=lambda item: item.path, reverse=True)


def _compare_outputs(cell, test, ref, skip_compare=None):
    if not _compare_text(cell, test, ref, skip_compare):
        return False
    fault = figure_fault(figures(test), figures(ref))
    if fault:
        cell.comparison_traceback = [fault]
    return fault is None


IPyNbCell.compare_outputs = _compare_outputs


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Say in the report which notebook's outputs were compared, if any were."""
    report = yield
    compared = isinstance(item, IPyNbCell) and item.options["check"]
    report.compared = str(item.path) if compared else None
    return report


def pytest_runtest_logreport(report):
    """Count the cells of each notebook that ran, were compared and passed, in whatever process."""
    if report.when == "call" and report.passed and report.compared:
        _passed[Path(report.compared)] += 1


def pytest_sessionfinish(session, exitstatus):
    """Record a run that was green over every code cell of every notebook, and only that."""
    if hasattr(session.config, "workerinput"):
        return  # a worker has not seen every report
    cells = {
        path: sum(cell.cell_type == "code" for cell in nbformat.read(path, 4).cells)
        for path in sorted(BOOK.glob("*.ipynb"))
    }
    if exitstatus == 0 and _passed == cells:
        checked.write()
        print(f"\nchecked: {len(cells)} notebooks, {sum(cells.values())} cells", file=sys.stderr)
