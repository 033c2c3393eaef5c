"""Figures that are drawn by lines stand in the page as SVGs, with its typeface and its colours.

``book/_tools/vector.py`` wrote them. Each colour of the book's palette becomes a variable whose
fallback is the colour itself: the stylesheet sets them in the dark, and only there. So no caption
calls a colour dark or light. As a file of its own, an SVG is called what its caption begins with.
"""

import functools
import html
import re
from pathlib import Path

from sphinx.application import Sphinx

FIGURES = Path(__file__).resolve().parents[1] / "assets" / "figures"
ROLES = {
    "#0072b2": "blue",
    "#e69f00": "amber",
    "#8a6100": "amber",
    "#009e73": "green",
    "#d55e00": "orange",
    "#cc79a7": "pink",
}
# heat maps, and where their white is -> their hue in the dark, on which white letters can be read
SCALES = {
    ("Blues", 0): "#0072b2",
    ("Oranges", 0): "#b85000",
    ("RdBu", 128): "#0072b2",
    ("RdBu_r", 128): "#b2384a",
}
# with the start of the line under it
FIGURE = re.compile(
    r'(?s)(?P<start><figure [^>]*id="(?P<name>[\w-]+)"[^>]*>\s*)'
    r'<a [^>]*href="(?P<png>[^"]+)"[^>]*><img alt="(?P<alt>[^"]*)"(?:(?!</a>).)*</a>'
    r'(?P<end>(?:(?!</figure>).)*</figure>)(?P<line>\s*<div class="under-figure[^>]*>)'
)
CAPTION = re.compile(
    r'(?s)<figure [^>]*id="([\w-]+)"(?:(?!</figure>).)*class="caption-text">(.*?)</figcaption>'
)
TAG, PAINTED = re.compile(r"(<[^>]*>)"), r'<(?:path|rect)[^>]* fill="#(\w\w)\1\1"'
CELL = re.compile(r'<path stroke="#\w+" d="M\d+ \d+h')  # of a heat map, or of a print in ink
ALIKE = re.compile(r' fill="(#\w+)" stroke="\1" stroke-linejoin="miter"')  # a box without a frame
TWICE = re.compile(r'(class="w" style="[^"]*" )(.*)\1')
_COLOUR = re.compile(r'(fill|stroke|stop-color)="#(\w\w)(\w\w)(\w\w)"')


def in_page(found: re.Match) -> tuple[str, str, str]:
    """A figure of a page as it shall stand there, the address of its picture, and what that is."""
    start, name, png, alt, end, line = found.groups()
    if not (FIGURES / f"{name}.svg").exists():
        return found[0].removesuffix(line), png, "PNG"
    drawn = inlined(name, html.unescape(alt))
    return f"{start}{drawn}{end}", f"../_static/figures/{name}.svg", "SVG"


def inlined(name: str, alt: str) -> str:
    """The SVG of that name for a page, with a description, in the page's colours."""
    text = (FIGURES / f"{name}.svg").read_text()
    view, size, rest = re.match(
        r'(?s)<svg [^>]*?(viewBox="[^"]*") (width="\d+" height="\d+")[^>]*>(.*)', text
    ).groups()
    rest = re.sub(r"(?s)<(title|desc)>.*?</\1>", "", rest)
    rest = re.sub(r'\n<path fill="#ffffff"[^>]*/>', "", rest, count=1)  # the paper
    kept = PAINTED if "<image " in rest else "(?!)"  # on a photograph
    rest = "".join(tag if re.match(kept, tag) else _recoloured(tag) for tag in TAG.split(rest))
    label = html.escape(" ".join(alt.split()))
    return (
        f'<div class="drawn"><svg {view} {size} role="img" '
        f'aria-label="{label}">{rest.strip()}</div>\n'
    )


def _recoloured(tag: str) -> str:
    text = tag.startswith(("<text", "<tspan"))
    cell = CELL.match(tag) is not None
    whole = ALIKE.search(tag) is not None
    recoloured = _COLOUR.sub(
        lambda one: one[0] if text and "#ffffff" in one[0] else _colour(one, cell, whole), tag
    )
    return TWICE.sub(r"\1\2", recoloured)


def _colour(one: re.Match, cell: bool, whole: bool) -> str:
    """A colour as the page has it; that of the edge of a ``whole`` is that of its inside."""
    where, *parts = one.groups()
    colour = f"#{''.join(parts)}"
    if colour in ROLES:
        return f'{where}="var(--{ROLES[colour]},{colour})"'
    if (weight := weight_of(colour)) is not None:
        return f'class="w" style="{weight}" {one[0]}'
    if cell and max(parts) == min(parts):  # of a picture in grey: ink on paper
        return f'class="w" style="--w:{1 - int(parts[0], 16) / 255:.2g};--hue:var(--g0)" {one[0]}'
    if max(parts) == min(parts):
        return f'{where}="var(--g{parts[0][0]},{colour})"'
    light = sum(int(part, 16) for part in parts) / 3
    if light > 110 and ((where == "stroke" and not whole) or light < 150):
        return one[0]
    share, other = ("30%", "sink") if light > 110 else ("55%", "lift")
    return f'{where}="color-mix(in srgb,{colour} {share},var(--{other},{colour}))"'


@functools.cache
def weight_of(colour: str) -> str | None:
    """How much of which hue a colour of the heat maps has in the dark, or None for another."""
    from matplotlib import colormaps
    from numpy import abs, arange

    for (scale, white), hue in SCALES.items():
        scaled = colormaps[scale](arange(white, 256))[:, :3]
        apart = abs(scaled * 255 - [*bytes.fromhex(colour[1:])]).max(axis=1)
        nearest = apart.argmin()
        if apart[nearest] <= 1:
            weight = shade(nearest / (len(apart) - 1))
            return f"--w:{weight:.2g}" + f";--hue:{hue}" * (hue != "#0072b2")
    return None


def shade(weight: float) -> float:
    """How much of its hue a weight gets: small ones more than their share, or they are not seen."""
    return min(2.5 * weight, 0.3 + 0.7 * weight)


# ---------------------------------------------------------------- a file of its own


def alone(svg: str, caption: str) -> str:
    """An SVG that is called as its caption begins, and that finds the letters of the book."""
    words = " ".join(html.unescape(re.sub("<[^>]*>", "", caption)).split())
    begins = re.match(r".*?(?=[.:;?!] |[.#]*$)", words)[0]
    named = f"<title>{html.escape(begins, quote=False)}</title>"
    style = '<style>@import "../fonts.css";</style>'
    return re.sub("<title>.*?</title>", lambda _: named + style, svg, count=1)


def _write(app: Sphinx, exception: Exception | None) -> None:
    if exception or app.builder.format != "html":
        return
    for page in Path(app.outdir, "book").glob("*.html"):
        for name, caption in CAPTION.findall(page.read_text()):
            if (stored := FIGURES / f"{name}.svg").exists():
                path = Path(app.outdir, "_static", "figures", stored.name)
                path.write_text(alone(stored.read_text(), caption))


def setup(app: Sphinx) -> dict:
    """Register with Sphinx."""
    app.connect("build-finished", _write, priority=900)  # when all files are copied
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
