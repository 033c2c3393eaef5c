"""What captions and descriptions say of a picture, held against what was drawn.

A figure's cell has in its metadata, under ``drawn``, lines such as ``honest models (blue) <-
colour("honest") == "blue"``: words of its caption or description, and Python that must hold then.
nbval evaluates it in the page's own kernel just after the cell, where the names of the page, and
those that :func:`vocabulary` adds, are known. Then names of the figure are exchanged, and its
straight lines and bands displaced: a line must say so of each.

Text may have such lines too, under ``held``, with words of its own and names of its page alone;
they are evaluated after the code above it. So may the caption of a figure that moves, as the
website has it.
"""

import ast
import builtins
import colorsys
import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise, product
from typing import Any

ARROW = " <- "
# what the Python of a line may name, beside the names of its page
NAMES = "panels panel texts_in x_of y_of mark colour style curve shows".split()
NAMES += "words_of lines_at bars_of equals".split()
# words of which one is easily written for another, and that no rule of language can judge
DECIDING = re.compile(
    r"\b(left|right(?=[.,:;)]| (?:one|of|panel|column|end|edge|cut|circle)|$)"
    r"|above|below|upper|lower"
    r"|pink|blue|green|amber|orange|red|yellow|black|dotted|dashed|solid|hollow|filled"
    r"|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
    r"|clear(?:er)?|hidden|veiled|covered|open|closed|(?:anti|counter)?clockwise"
    r"|vertical|horizontal|thick|thin|wider|narrower|longer|shorter|larger|smaller"
    r"|most|none|all|only|largest|smallest|longest|shortest|darkest|lightest|highest|lowest"
    r"|tallest)\b",
    re.IGNORECASE,
)
HUES = {327: "pink", 202: "blue", 164: "green", 41: "amber", 26: "orange", 355: "red"}
STYLES = {":": "dotted", "--": "dashed", "-": "solid"}


# ---------------------------------------------------------------- read without running


def said(cell, caption: str) -> str:
    """All words of a figure, its description first."""
    return " ".join(f"{cell.metadata.mystnb.image.alt}\n{caption}".split())


def line_faults(cell, caption: str) -> list[str]:
    """Lines whose words the figure does not say once, and those that hold whatever was drawn."""
    return _faults(cell, said(cell, caption), cell.metadata.get("drawn", []))


def _faults(cell, words: str, lines: Iterable[str]) -> list[str]:
    faults = []
    for line in lines:
        about, _, holds = line.partition(ARROW)
        if words.count(about) != 1:
            faults.append(f"{cell.id}: {about!r} is said {words.count(about)} times")
        if not _looked_at(holds):
            faults.append(f"{cell.id}: {holds!r} looks at nothing")
    return faults


def _looked_at(holds: str) -> set[str]:
    """Names that an expression neither gives itself nor has of Python."""
    nodes = list(ast.walk(ast.parse(holds, mode="eval")))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    given = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    given |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    given |= {*dir(builtins)} - {"__import__"}
    return {node.id for node in names} - given


def text_faults(cell) -> list[str]:
    """Lines of a text whose words it does not say once, and those that look at nothing.

    The text of a cell of code is the caption of its figure that moves.
    """
    text = cell.source if cell.cell_type == "markdown" else cell.metadata.live.caption
    return _faults(cell, " ".join(text.split()), cell.metadata.get("held", []))


def unbound(cell, caption: str) -> list[str]:
    """The deciding words that stand in no line, and in no address."""
    words = said(cell, caption)
    for line in cell.metadata.get("drawn", []):
        words = words.replace(line.partition(ARROW)[0], "·")
    words = re.sub(r"\]\([^)]*\)", "]", words)
    return [found[0] for found in DECIDING.finditer(words)]


# ---------------------------------------------------------------- in the page's kernel


def before() -> str:
    """Code that keeps the figures of the cell that comes."""
    return f'__import__("runpy").run_path({__file__!r})["watch"]()'


def after(cell) -> str:
    """Code that prints which of the lines do not hold."""
    claims = f"lambda {', '.join(NAMES)}: {_pairs(cell.metadata.get('drawn', []))}"
    return f'__import__("runpy").run_path({__file__!r})["report"]({claims})'


def after_text(cells) -> str:
    """Code that prints which of the lines of text do not hold."""
    pairs = _pairs(line for cell in cells for line in cell.metadata.get("held", []))
    return f'__import__("runpy").run_path({__file__!r})["tell"]({pairs})'


def _pairs(lines: Iterable[str]) -> str:
    """Each line, and a function of what it says."""
    return f"[{', '.join(f'({line!r}, lambda: ({line.partition(ARROW)[2]}))' for line in lines)}]"


def watch() -> None:
    """Have the figures that come kept, where they are closed as soon as they are shown."""
    from matplotlib import pyplot as plt

    close = getattr(plt.close, "usual", plt.close)

    def keeping(which=None):
        keeping.figures += [plt.figure(number) for number in plt.get_fignums()]
        close(which)

    keeping.usual, keeping.figures = close, []
    plt.close = keeping


def report(claims: Callable) -> None:
    """Print those of the lines that do not hold of the figure that was kept, or what none sees."""
    from matplotlib import pyplot as plt

    figures, plt.close = plt.close.figures, plt.close.usual
    print(json.dumps(untrue(claims(**vocabulary(figures))) or unseen(claims, figures)))


def tell(claims: list) -> None:
    """Print those of the lines that do not hold."""
    print(json.dumps(untrue(claims)))


def untrue(claims: Iterable[tuple[str, Callable[[], bool]]]) -> list[str]:
    """The lines that do not hold."""
    faults = []
    for line, holds in claims:
        try:
            if not holds():
                faults.append(line)
        except Exception as error:
            faults.append(f"{line}: {error!r}")
    return faults


def unseen(claims: Callable, figures: list) -> list[str]:
    """What could have been drawn otherwise, and every line would hold."""
    found = []
    for what, put, otherwise, usual in changes(*figures):
        put(otherwise)
        seen = untrue(claims(**vocabulary(figures)))
        put(usual)
        found += [] if seen else [f"no line sees {what}"]
    return found


def changes(figure) -> Iterator[tuple[str, Callable, Any, Any]]:
    """What is changed, how it is put, what another would be, and what it is."""
    import numpy as np
    from matplotlib.patches import Rectangle

    panels = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
    marks = named(figure)
    labels = [axes.xaxis.label for axes in panels], [axes.yaxis.label for axes in panels]
    groups = [[axes.title for axes in panels], *labels, *zip(*labels, strict=True)]
    groups += [legend.get_texts() for legend in legends(figure)]
    for kind, group in [("label", marks.values()), *(("text", group) for group in groups)]:
        words = {getattr(it, f"get_{kind}")(): it for it in group}
        words = {word: it for word, it in words.items() if re.search(r"[^\W\d_]", word)}
        for one, other in pairwise(words):
            if kind == "text" and {one, other} & {*marks}:
                continue

            def put(names, group=(words[one], words[other]), kind=kind):
                for mark, name in zip(group, names, strict=True):
                    getattr(mark, f"set_{kind}")(name)

            yield f"{one!r} and {other!r} exchanged", put, (other, one), (one, other)

    for axes in panels:
        for line, way, at in straight(axes):
            away = at + np.ptp(axes.get_xlim() if way == "x" else axes.get_ylim()) / 7
            put = line.set_xdata if way == "x" else line.set_ydata
            yield f"a line at {way} = {at[0]:.3g} elsewhere", put, away, at
        for bars in lengthy(axes):

            def put(corners, bars=bars):
                for path, places in zip(bars.get_paths(), corners, strict=True):
                    path.vertices = places

            corners = [path.vertices for path in bars.get_paths()]
            half = [(places + places.mean(axis=0)) / 2 for places in corners]
            if any(low < high for low, high in ends(bars)):
                yield "bars or a band half as long", put, half, corners
        for span in axes.patches:
            across = axes.get_xaxis_transform(which="grid"), axes.get_yaxis_transform(which="grid")
            if isinstance(span, Rectangle) and span.get_data_transform() in across:
                x, y, width, height = whole = span.get_bbox().bounds
                half = (x + width / 4, y + height / 4, width / 2, height / 2)
                yield "a span half as wide", lambda box, it=span: it.set_bounds(*box), half, whole


def straight(axes) -> list:
    """The lines that cross a whole panel, each with its axis, x or y, and its place there twice."""
    across = axes.get_xaxis_transform(which="grid"), axes.get_yaxis_transform(which="grid")
    pairs = product(axes.lines, enumerate(across))
    ends = [(line, n, line.get_data()[n]) for line, (n, a) in pairs if line.get_transform() == a]
    return [(line, "xy"[n], at) for line, n, at in ends if len(at) == 2 and at[0] == at[1]]


def lengthy(axes) -> list:
    """The bars of a panel's errors, the lines beside them, and the bands."""
    from matplotlib.collections import FillBetweenPolyCollection, LineCollection

    kinds = FillBetweenPolyCollection, LineCollection
    return [drawn for drawn in axes.collections if isinstance(drawn, kinds)]


def ends(bars) -> list:
    """The lowest and the highest of each bar, or of a band at each of its places."""
    found = []
    for corners in (path.vertices for path in bars.get_paths()):
        band = len(corners) > 2
        for place in dict.fromkeys(corners[:, 0]) if band else [None]:
            here = corners[corners[:, 0] == place] if band else corners
            way = here[:, int(band or here[0, 0] == here[1, 0])]
            found.append((way.min(), way.max()))
    return found


def legends(figure) -> list:
    """Those of the figure and of its panels."""
    return [*figure.legends, *filter(None, (axes.get_legend() for axes in figure.axes))]


def named(figure) -> dict:
    """What has a label that a legend shows or could show, the first of each."""
    pairs = [axes.get_legend_handles_labels() for axes in figure.axes[::-1]]
    return {label: mark for pair in pairs for mark, label in zip(*pair, strict=True)}


def vocabulary(figures: list) -> dict:
    """Names for what was drawn: where it stands, how it looks, what it is called."""
    import numpy as np
    from matplotlib.text import Text

    (figure,) = figures
    panels = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]

    def panel(side):
        """The one farthest to the left, right, upper or lower side."""
        at, sign = {
            "left": ("x0", -1),
            "right": ("x0", 1),
            "lower": ("y0", -1),
            "upper": ("y0", 1),
        }[side]
        return max(panels, key=lambda axes: sign * getattr(axes.get_position(), at))

    def texts(part):
        found = [t for t in part.findobj(Text) if t.get_text() and t.get_visible()]
        return {" ".join(t.get_text().split()): t for t in reversed(found)}

    def middle(words):
        found = texts(figure)
        part = next((t for text, t in found.items() if words in text), None)
        box = found.get(words, part).get_window_extent()
        return (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2

    def mark(words):
        """What a legend calls so, or else the text itself."""
        shown = [zip(it.get_texts(), it.legend_handles, strict=True) for it in legends(figure)]
        shown = {text.get_text(): handle for pairs in shown for text, handle in pairs}
        return (shown | named(figure)).get(words) or texts(figure)[words]

    def look(what):
        return colour(mark(what) if isinstance(what, str) else what)

    def shows(axes, values):
        drawn = np.ma.filled(axes.images[0].get_array().astype(float), np.nan)
        return np.allclose(np.nan_to_num(drawn), np.nan_to_num(np.asarray(values)), atol=1e-5)

    def words_of(axes):
        """The title of a panel, and what its two axes are called."""
        labels = axes.title, axes.xaxis.label, axes.yaxis.label
        return tuple(" ".join(label.get_text().split()) for label in labels)

    def lines_at(axes, way):
        """Where straight lines cross the whole panel."""
        return [float(at[0]) for _, axis, at in straight(axes) if axis == way]

    def bars_of(axes):
        """Both ends of each bar and of each place of a band, in the order of drawing."""
        return np.array([pair for bars in lengthy(axes) for pair in ends(bars)])

    def equals(drawn, values):
        drawn, values = np.asarray(drawn, dtype=float), np.asarray(values, dtype=float)
        return drawn.shape == values.shape and np.allclose(drawn, values, rtol=1e-5, atol=1e-9)

    known = (
        panels,
        panel,
        lambda side: set(texts(panel(side))),
        lambda words: middle(words)[0],
        lambda words: middle(words)[1],
        mark,
        look,
        lambda words: STYLES[mark(words).get_linestyle()],
        lambda words: np.asarray(mark(words).get_ydata()),
        shows,
        words_of,
        lines_at,
        bars_of,
        equals,
    )
    return dict(zip(NAMES, known, strict=True))


def colour(mark) -> str:
    """The name of the colour of something drawn; grey and black are grey."""
    from matplotlib.colors import to_rgba_array
    from matplotlib.container import Container

    mark = mark[0] if isinstance(mark, Container) else mark
    hollow = hasattr(mark, "get_fill") and not mark.get_fill()
    for of in ("get_color", "get_edgecolor" if hollow else "get_facecolor"):
        mark = getattr(mark, of)() if hasattr(mark, of) else mark
    hue, _, vivid = colorsys.rgb_to_hls(*to_rgba_array(mark)[0][:3])
    apart = {degrees: abs(hue * 360 - degrees) for degrees in HUES}
    nearest = min(apart, key=lambda degrees: min(apart[degrees], 360 - apart[degrees]))
    return "grey" if vivid < 0.25 else HUES[nearest]


def fault(printed: str, where="as it was drawn") -> str | None:
    """What the kernel's answer says against the words, or None."""
    found = json.loads(printed)
    return f"not {where}: " + "; ".join(found) if found else None
