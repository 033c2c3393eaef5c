"""What strict nbval leaves out: figures compared, weights there, a green run recorded."""

import base64
import io
import os
import sys
from pathlib import Path

import checked
import nbformat
import numpy as np
import pytest
from matplotlib.image import imread
from nbval.plugin import IPyNbCell

from attn_lib import files

BOOK = Path(__file__).parent
collect_ignore = ["_ext", "_tools"]
os.environ["ATTN_LIB_PROGRESS"] = "0"

PIXEL_TOLERANCE = 0.1  # of the 0-to-1 range: anti-aliasing differs less between machines
SHARE_TOLERANCE = 0.001  # of the pixels

_compare_text = IPyNbCell.compare_outputs
_passed: dict[Path, int] = {}


def pytest_sessionstart(session):
    """Fetch every weight file before a notebook asks for it, and take back the last record."""
    if session.config.getoption("nbval"):
        checked.forget()
    for name in files.SOURCES:
        files.fetch(name)


def figures(outputs) -> list[np.ndarray]:
    """The PNGs among the outputs of a cell, as (height, width, 4) floats in [0, 1]."""
    pngs = [out["data"]["image/png"] for out in outputs if "image/png" in out.get("data", {})]
    return [imread(io.BytesIO(base64.b64decode(png)), format="png") for png in pngs]


def figure_fault(new: list[np.ndarray], stored: list[np.ndarray]) -> str | None:
    """What differs between the figures drawn now and those stored, or None."""
    if len(new) != len(stored):
        return f"{len(new)} figures drawn, {len(stored)} stored"
    for number, (now, then) in enumerate(zip(new, stored, strict=True)):
        if now.shape != then.shape:
            return f"figure {number} is {now.shape[:2]} pixels, stored {then.shape[:2]}"
        share = (np.abs(now - then) > PIXEL_TOLERANCE).any(axis=-1).mean()
        if share > SHARE_TOLERANCE:
            return f"figure {number}: {share:.2%} of the pixels differ from the stored ones"
    return None


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
    """Count the cells of each notebook that ran, were compared and passed."""
    report = yield
    if isinstance(item, IPyNbCell) and report.when == "call" and report.outcome == "passed":
        if item.options["check"]:
            _passed[Path(item.path)] = _passed.get(Path(item.path), 0) + 1
    return report


def pytest_sessionfinish(session, exitstatus):
    """Record a run that was green over every code cell of every notebook, and only that."""
    cells = {
        path: sum(cell.cell_type == "code" for cell in nbformat.read(path, 4).cells)
        for path in sorted(BOOK.glob("*.ipynb"))
    }
    if exitstatus == 0 and _passed == cells:
        checked.write()
        print(f"\nchecked: {len(cells)} notebooks, {sum(cells.values())} cells", file=sys.stderr)
