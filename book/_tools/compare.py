"""What differs between the outputs of a cell as it ran just now and as they are stored.

nbval compares texts and leaves out figures, kinds of output, and which stream was written to.
"""

import base64
import io

import numpy as np
from matplotlib.image import imread
from nbval.plugin import coalesce_streams

TOLERANCE = 0.05  # of the 0-to-1 range: two processors differ by less than 0.01
PIXELS = 8  # so many may differ by more: less than a character of a label


def figures(outputs) -> list[np.ndarray]:
    """The PNGs among the outputs of a cell, as (height, width, 4) floats in [0, 1]."""
    return [imread(io.BytesIO(base64.b64decode(png)), format="png") for png in _pngs(outputs)]


def _pngs(outputs) -> list[str]:
    return [out["data"]["image/png"] for out in outputs if "image/png" in out.get("data", {})]


def figure_fault(new: list[np.ndarray], stored: list[np.ndarray]) -> str | None:
    """What differs between the figures drawn now and those stored, or None."""
    if len(new) != len(stored):
        return f"{len(new)} figures drawn, {len(stored)} stored"
    for number, (now, then) in enumerate(zip(new, stored, strict=True)):
        if now.shape != then.shape:
            return f"figure {number} is {now.shape[:2]} pixels, stored {then.shape[:2]}"
        differ = (np.abs(now - then) > TOLERANCE).any(axis=-1).sum()
        if differ > PIXELS:
            return f"figure {number}: {differ} pixels differ from the stored ones"
    return None


def output_fault(new: list, stored: list) -> str | None:
    """What differs between all outputs now and those stored, or None."""
    now, then = ([_shown(output) for output in coalesce_streams(list)] for list in (new, stored))
    fault = None
    if _pngs(new) != _pngs(stored):  # most are the same to the byte
        fault = figure_fault(figures(new), figures(stored))
    if now != then:
        return fault or f"{now} now, {then} stored"
    return fault


def _shown(output) -> dict:
    """An output without what differs from run to run, and without the figure itself."""
    aside = ("metadata", "execution_count", "traceback")
    shown = {key: value for key, value in output.items() if key not in aside}
    if "image/png" in shown.get("data", {}):
        shown["data"] = {**shown["data"], "image/png": "a figure"}
    return shown
