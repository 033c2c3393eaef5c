"""Figures that are drawn by lines stand in the page as SVGs, with its typeface and its colours.

``book/_tools/vector.py`` wrote them. Each colour of the book's palette becomes a variable whose
fallback is the colour itself: the stylesheet sets them in the dark, and only there. What a caption
calls dark or light stays as it was drawn.
"""

import functools
import html
import re
from pathlib import Path

FIGURES = Path(__file__).resolve().parents[1] / "assets" / "figures"
ROLES = {
    "#0072b2": "blue",
    "#e69f00": "amber",
    "#8a6100": "amber",
    "#009e73": "green",
    "#d55e00": "orange",
    "#cc79a7": "pink",
}
SHADES = r"\b(black|white|(dark|bright|pale|light)(er|est)?)\b"
# with the start of the line under it
FIGURE = re.compile(
    r'(?s)(?P<start><figure [^>]*id="(?P<name>[\w-]+)"[^>]*>\s*)'
    r'<a [^>]*href="(?P<png>[^"]+)"[^>]*><img alt="(?P<alt>[^"]*)"(?:(?!</a>).)*</a>'
    r'(?P<end>(?:(?!</figure>).)*</figure>)(?P<line>\s*<div class="under-figure[^>]*>)'
)
_COLOUR = re.compile(r'(fill|stroke|stop-color)="#(\w\w)(\w\w)(\w\w)"')


def in_page(found: re.Match) -> tuple[str, str, str]:
    """A figure of a page as it shall stand there, the address of its picture, and what that is."""
    start, name, png, alt, end, line = found.groups()
    if not (FIGURES / f"{name}.svg").exists():
        return found[0].removesuffix(line), png, "PNG"
    words = re.sub("<[^>]*>", "", end)
    drawn = inlined(name, html.unescape(alt), words)
    return f"{start}{drawn}{end}", f"../_static/figures/{name}.svg", "SVG"


def inlined(name: str, alt: str, words: str = "") -> str:
    """The SVG of that name for a page, with a description, in the page's colours.

    Those stay that its caption's words name, or that are between two hues.
    """
    text = (FIGURES / f"{name}.svg").read_text()
    between = any(weight_of(colour) is None for colour in re.findall('stop-color="(.*?)"', text))
    as_drawn = between or re.search(SHADES, words) is not None
    view, size, rest = re.match(
        r'(?s)<svg [^>]*?(viewBox="[^"]*") (width="\d+" height="\d+")[^>]*>(.*)', text
    ).groups()
    rest = re.sub(r"(?s)<(title|desc)>.*?</\1>", "", rest)
    rest = re.sub(r'\n<path fill="#ffffff"[^>]*/>', "", rest, count=1)  # the paper
    rest = "".join(map(_recoloured, re.split(r"(<[^>]*>)", rest)))
    label = html.escape(" ".join(alt.split()))
    return (
        f'<div class="drawn{" as-drawn" * as_drawn}"><svg {view} {size} role="img" '
        f'aria-label="{label}">{rest.strip()}</div>\n'
    )


def _recoloured(tag: str) -> str:
    text = tag.startswith(("<text", "<tspan"))
    return _COLOUR.sub(lambda one: one[0] if text and "#ffffff" in one[0] else _colour(one), tag)


def _colour(one: re.Match) -> str:
    where, *parts = one.groups()
    colour = f"#{''.join(parts)}"
    if colour in ROLES:
        return f'{where}="var(--{ROLES[colour]},{colour})"'
    if (weight := weight_of(colour)) is not None:
        return f'class="w" style="--w:{weight:.2g}" {one[0]}'
    if max(parts) == min(parts):
        return f'{where}="var(--g{parts[0][0]},{colour})"'
    light = sum(int(part, 16) for part in parts) / 3
    if light > 110 and (where == "stroke" or light < 150):
        return one[0]
    share, other = ("30%", "sink") if light > 110 else ("55%", "lift")
    return f'{where}="color-mix(in srgb,{colour} {share},var(--{other},{colour}))"'


@functools.cache
def weight_of(colour: str) -> float | None:
    """Which weight a blue of the heat maps means, or None for another colour."""
    from matplotlib import colormaps
    from numpy import abs, arange

    apart = abs(colormaps["Blues"](arange(256))[:, :3] * 255 - [*bytes.fromhex(colour[1:])])
    nearest = apart.max(axis=1).argmin()
    return nearest / 255 if apart[nearest].max() <= 1 else None
