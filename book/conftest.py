"""What strict nbval leaves out.

Each page alone in an empty folder, every kind of output compared, what its moving figures read,
what is said of its pictures and in its text, weights there, a green run recorded.
"""

import os
import sys
import tempfile
from collections import Counter
from itertools import takewhile
from pathlib import Path

import checked
import live
import nbformat
import pictures
import pytest
from compare import output_fault
from nbval import plugin
from nbval.plugin import IPyNbCell

from attn_lib import files

BOOK = Path(__file__).parent
collect_ignore = ["_ext", "_tools"]
os.environ["ATTN_LIB_PROGRESS"] = "0"

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


class AloneInAFolder(plugin.RunningKernel):
    """A page runs where no file of the book lies beside it, as in Colab."""

    def __init__(self, kernel_name, cwd, **options):
        self.folder = tempfile.TemporaryDirectory()
        super().__init__(kernel_name, cwd=self.folder.name, **options)


def _run(item):
    """A cell, and questions: what its moving figure would read, and whether words are true."""
    metadata = item.cell.metadata
    if "drawn" in metadata:
        _ask(item, pictures.before())
    _run_cell(item)
    faults = []
    if "drawn" in metadata:
        faults.append(pictures.fault(_ask(item, pictures.after(item.cell))))
    if "live" in metadata:
        faults.append(live.fault(item.cell, _ask(item, live.question(item.cell))))
    texts = [item.cell, *_texts_below(item)]
    if any("held" in cell.metadata for cell in texts):
        faults.append(pictures.fault(_ask(item, pictures.after_text(texts)), "as the text says"))
    if faults := [fault for fault in faults if fault]:
        item.raise_cell_error("\n".join(faults))


def _texts_below(item):
    """The texts between this cell of code and the next."""
    cells = iter(item.parent.nb.cells)
    next(cell for cell in cells if cell is item.cell)
    return list(takewhile(lambda cell: cell.cell_type != "code", cells))


def _ask(item, question):
    """What a page's kernel prints, beside the page."""
    messages = []
    item.parent.kernel.kc.execute_interactive(
        question,
        store_history=False,
        output_hook=lambda message: messages.append(message["content"]),
        timeout=float(item.config.option.nbval_cell_timeout),
    )
    return "".join(content.get("text", "") for content in messages)


def _compare_outputs(cell, test, ref, skip_compare=None):
    """First as nbval does, which says it best."""
    if not _compare_text(cell, test, ref, skip_compare):
        return False
    fault = output_fault(test, ref)
    if fault:
        cell.comparison_traceback = [fault]
    return fault is None


_run_cell, IPyNbCell.runtest = IPyNbCell.runtest, _run
_compare_text, IPyNbCell.compare_outputs = IPyNbCell.compare_outputs, _compare_outputs
plugin.RunningKernel = AloneInAFolder


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
