"""Figures of the book: one style, one Axes each, weights always on a 0-to-1 scale.

``ROLES`` gives queries, keys, values, weights and outputs one colour each, in every figure.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import matplotlib.patches as mpatches
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from torch import Tensor

from attn_lib import files

# Okabe and Ito's colours, which colour-blind readers can tell apart; dark grey text on white
COLORS = {"blue": "#0072B2", "amber": "#E69F00", "green": "#009E73", "orange": "#D55E00"}
ROLES = {
    "query": COLORS["orange"],
    "key": COLORS["amber"],
    "value": COLORS["green"],
    "weight": COLORS["blue"],  # as the colour map of `plot_weights`
    "output": "#CC79A7",
}
FACES = ("inter-regular.otf", "inter-italic.otf", "inter-semibold.otf")
_STYLE: Any = {
    "figure.figsize": (5.0, 3.6),
    "figure.dpi": 100,
    "figure.facecolor": "white",
    "figure.constrained_layout.use": True,
    "font.family": [
        "Inter Book",
        "DejaVu Sans",
    ],  # as the pages; what it lacks from matplotlib's own
    "font.size": 10,
    "mathtext.fontset": "custom",
    "mathtext.rm": "Inter Book",
    "mathtext.it": "Inter Book:italic",
    "mathtext.bf": "Inter Book:bold",
    "mathtext.cal": "Inter Book:italic",
    "mathtext.sf": "Inter Book",
    "mathtext.tt": "DejaVu Sans Mono",
    "mathtext.fallback": "stixsans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": plt.cycler(color=list(COLORS.values())),
    "text.color": "#222222",
    "axes.labelcolor": "#222222",
    "axes.edgecolor": "#666666",
    "xtick.color": "#444444",
    "ytick.color": "#444444",
}


def use_style() -> None:
    """Draw every later figure in the book's style; in a notebook, at double resolution.

    Example:
        >>> use_style()
        >>> mpl.rcParams["figure.figsize"], mpl.rcParams["axes.spines.top"]
        ([5.0, 3.6], False)

    Source: Okabe and Ito (2008), "Color Universal Design", for the colours.
    """
    known = {font.fname for font in font_manager.fontManager.ttflist}
    for name in FACES:
        files.packaged(name)  # whole, or it raises
        if str(files.DATA / name) not in known:
            font_manager.fontManager.addfont(files.DATA / name)
    mpl.rcParams.update(_STYLE)
    if "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None:
        from matplotlib_inline.backend_inline import set_matplotlib_formats

        set_matplotlib_formats("retina")


def plot_weights(
    weights: Tensor,
    *,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    vmax: float = 1.0,
    ax: Axes | None = None,
) -> Axes:
    """Heat map of attention weights: a row is a query, a column is a key.

    The colour scale runs from 0 to ``vmax`` whatever the data, so that figures can be compared. A
    cell that is exactly zero, as a closed one is, is grey; in a table of up to 64 cells, every
    other cell also shows its number.

    Args:
        weights: (T, S) numbers in [0, ``vmax``].
        queries: T labels for the rows; default their indices.
        keys: S labels for the columns; default their indices.
        vmax: top of the colour scale, in (0, 1]; default 1. Lower it, for all panels of a figure
            together, only where the largest weight is under 0.3; the colour bar shows it.
        ax: where to draw; default a new figure.

    Returns:
        The Axes drawn on.

    Raises:
        TypeError: ``weights`` is not a tensor.
        ValueError: not two axes; weights outside [0, vmax] or NaN; labels of another length.

    Example:
        >>> weights = torch.tensor([[1.0, 0.0, 0.0], [0.25, 0.5, 0.25]])
        >>> ax = plot_weights(weights, queries=["a", "b"], keys=["x", "y", "z"])
        >>> [label.get_text() for label in ax.get_yticklabels()], ax.images[0].get_clim()
        (['a', 'b'], (0.0, 1.0))
        >>> ax.images[0].get_array().tolist()  # zero cells are masked out, hence grey
        [[1.0, None, None], [0.25, 0.5, 0.25]]
        >>> plt.close(ax.figure)
    """
    if not isinstance(weights, Tensor):
        raise TypeError(f"weights must be a tensor, got {type(weights).__name__}")
    if weights.dim() != 2:
        raise ValueError(f"weights must be (T, S), got shape {tuple(weights.shape)}")
    if not 0.0 < vmax <= 1.0:
        raise ValueError(f"vmax must be in (0, 1], got {vmax}")
    table = weights.detach().double()
    # a softmax in low precision may exceed 1 by a rounding step
    if not bool(((table >= 0.0) & (table <= vmax * 1.01)).all()):
        raise ValueError(
            f"weights must be in [0, {vmax}], got {table.min():.3g} to {table.max():.3g}"
        )
    T, S = table.shape
    numbered = T * S <= 64
    ax, image = _draw_table(table, queries, keys, vmax, 0.46 if numbered else 0.33, ax)
    if numbered:
        for t in range(T):
            for s in range(S):
                weight = float(table[t, s])
                if weight == 0.0:
                    continue
                color = "white" if weight > 0.5 * vmax else "#222222"
                ax.text(s, t, f"{weight:.2f}", ha="center", va="center", color=color, fontsize=9)
    bar = ax.figure.colorbar(image, ticks=[0.0, vmax / 2, vmax], shrink=0.9, pad=0.02)
    bar.set_label("weight")
    bar.outline.set_visible(False)
    return ax


def plot_mask(
    mask: Tensor,
    *,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Picture of a mask: rows are queries, columns are keys; open cells are blue, closed ones grey.

    Args:
        mask: bool (T, S), True = may attend.
        queries: T labels for the rows; default their indices.
        keys: S labels for the columns; default their indices.
        ax: where to draw; default a new figure.

    Returns:
        The Axes drawn on.

    Raises:
        TypeError: ``mask`` is not bool.
        ValueError: not two axes; labels of another length.

    Example:
        >>> ax = plot_mask(torch.tensor([[True, False], [True, True]]))
        >>> ax.images[0].get_array().tolist()
        [[1.0, None], [1.0, 1.0]]
        >>> plt.close(ax.figure)
    """
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be bool, got {mask.dtype}")
    if mask.dim() != 2:
        raise ValueError(f"mask must be (T, S), got shape {tuple(mask.shape)}")
    return _draw_table(mask.double(), queries, keys, 1.0, 0.30, ax)[0]


def plot_diagram(
    boxes: Mapping[str, tuple[float, float, str, str | None]],
    arrows: Sequence[tuple[str, str, str]],
    *,
    ax: Axes | None = None,
) -> Axes:
    """Diagram of a mechanism: boxes for tensors, arrows for what is computed from what.

    Args:
        boxes: name -> (column, row, text, role). Row 0 is the top; columns and rows may be
            fractions. A role of ``ROLES`` gives the box its colour, None leaves it grey.
        arrows: (from, to, label) by the names of boxes; the label is a shape, or empty.
        ax: where to draw; default a new figure of the size that the boxes need.

    Returns:
        The Axes drawn on.

    Raises:
        ValueError: an arrow names no box; a role that does not exist.

    Example:
        >>> boxes = {"x": (0, 0, "tokens", None), "q": (0, 1, "queries", "query")}
        >>> ax = plot_diagram(boxes, [("x", "q", "(T, d_model)")])
        >>> [text.get_text() for text in ax.texts]
        ['tokens', 'queries', '(T, d_model)']
        >>> plt.close(ax.figure)
    """
    for start, end, _ in arrows:
        if not {start, end} <= boxes.keys():
            raise ValueError(f"an arrow joins boxes, {list(boxes)}; got {start!r} to {end!r}")
    for *_, role in boxes.values():
        if role is not None and role not in ROLES:
            raise ValueError(f"a role is one of {list(ROLES)} or None, got {role!r}")
    centres = {name: (1.45 * box[0], -1.05 * box[1]) for name, box in boxes.items()}
    xs, ys = np.transpose(list(centres.values()))
    left, right, low, high = min(xs) - 0.7, max(xs) + 0.7, min(ys) - 0.4, max(ys) + 0.4
    if ax is None:
        _, ax = plt.subplots(figsize=(right - left, high - low))
    ax.set(xlim=(left, right), ylim=(low, high), aspect="equal")
    ax.set_axis_off()
    drawn = {}
    for name, (_, _, text, role) in boxes.items():
        (x, y), color = centres[name], ROLES[role] if role else "#888888"
        shape = mpatches.FancyBboxPatch((x - 0.6, y - 0.26), 1.2, 0.52, "round,pad=0.04")
        shape.set(facecolor=mpl.colors.to_rgba(color, 0.15), edgecolor=color, linewidth=2.0)
        drawn[name] = ax.add_patch(shape)
        ax.text(x, y, text, ha="center", va="center", linespacing=1.4)
    for start, end, label in arrows:
        ends = centres[start], centres[end]
        arrow = mpatches.FancyArrowPatch(
            *ends, patchA=drawn[start], patchB=drawn[end], arrowstyle="-|>", mutation_scale=12
        )
        ax.add_patch(arrow).set_color("#555555")
        x, y = np.mean(ends, axis=0)
        under = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
        ax.text(x, y, label, ha="center", va="center", fontsize=9, bbox=under)
    return ax


def _draw_table(
    table: Tensor,
    queries: Sequence[str] | None,
    keys: Sequence[str] | None,
    vmax: float,
    cell: float,
    ax: Axes | None,
) -> tuple[Axes, AxesImage]:
    """The cells, lines and labels that the pictures of all (T, S) tables share."""
    T, S = table.shape
    rows, columns = _labels("queries", queries, T), _labels("keys", keys, S)
    if ax is None:
        _, ax = plt.subplots(figsize=(1.9 + cell * S, 1.3 + cell * T))
    # exactly zero is closed, and grey; a small weight is open, and pale blue
    colors = mpl.colormaps["Blues"].with_extremes(bad="#e9e9e9")
    shown = np.ma.masked_equal(table.numpy(), 0.0)
    image = ax.imshow(shown, cmap=colors, vmin=0.0, vmax=vmax)
    upright = any(len(column) > 3 for column in columns)
    # no math mode: a token may hold a dollar sign
    ax.set_xticks(range(S), columns, rotation=90 if upright else 0, parse_math=False)
    ax.set_yticks(range(T), rows, parse_math=False)
    ax.xaxis.tick_top()
    ax.xaxis.set_label_position("top")
    ax.set_xlabel("key", labelpad=8)
    ax.set_ylabel("query")
    # thin lines between the cells, so that rows of equal cells stay countable
    ax.set_xticks([s - 0.5 for s in range(1, S)], minor=True)
    ax.set_yticks([t - 0.5 for t in range(1, T)], minor=True)
    ax.grid(which="minor", color="white")
    ax.tick_params(which="both", length=0)
    ax.spines[:].set_visible(False)
    return ax, image


def _labels(name: str, labels: Sequence[str] | None, size: int) -> list[str]:
    labels = [str(i) for i in range(size)] if labels is None else [str(label) for label in labels]
    if len(labels) != size:
        raise ValueError(f"{name} must hold {size} labels, got {len(labels)}")
    return labels
