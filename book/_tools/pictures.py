"""What captions and descriptions say of a picture, held against what was drawn.

A figure's cell has in its metadata, under ``drawn``, lines such as ``honest models (blue) <-
colour("honest") == "blue"``: words of its caption or description, and Python that must hold then.
nbval evaluates it in the page's own kernel just after the cell, where the names of the page, and
those that :func:`vocabulary` adds, are known.
"""

import ast
import colorsys
import json
import re
from collections.abc import Callable, Iterable

ARROW = " <- "
# what the Python of a line may name, beside the names of its page
NAMES = "panels panel texts_in x_of y_of mark colour style curve shows".split()
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
    words, faults = said(cell, caption), []
    for line in cell.metadata.get("drawn", []):
        about, _, holds = line.partition(ARROW)
        if words.count(about) != 1:
            faults.append(f"{cell.id}: {about!r} is said {words.count(about)} times")
        if not any(isinstance(node, ast.Name) for node in ast.walk(ast.parse(holds, mode="eval"))):
            faults.append(f"{cell.id}: {holds!r} looks at nothing")
    return faults


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
    lines = cell.metadata.get("drawn", [])
    pairs = ", ".join(f"({line!r}, lambda: ({line.partition(ARROW)[2]}))" for line in lines)
    claims = f"lambda {', '.join(NAMES)}: [{pairs}]"
    return f'__import__("runpy").run_path({__file__!r})["report"]({claims})'


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
    """Print those of the lines that do not hold of the figure that was kept."""
    from matplotlib import pyplot as plt

    figures, plt.close = plt.close.figures, plt.close.usual
    print(json.dumps(untrue(claims(**vocabulary(figures)))))


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
        named = [axes.get_legend_handles_labels() for axes in figure.axes]
        named = {label: handle for pair in named for handle, label in zip(*pair, strict=True)}
        return named.get(words) or texts(figure)[words]

    def look(what):
        return colour(mark(what) if isinstance(what, str) else what)

    def shows(axes, values):
        drawn = np.ma.filled(axes.images[0].get_array().astype(float), np.nan)
        return np.allclose(np.nan_to_num(drawn), np.nan_to_num(np.asarray(values)), atol=1e-5)

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


def fault(printed: str) -> str | None:
    """What the kernel's answer says against the words, or None."""
    found = json.loads(printed)
    return "not as it was drawn: " + "; ".join(found) if found else None
