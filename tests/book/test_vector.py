"""Figures drawn by lines: each is the picture that its notebook holds, and nothing but shapes."""

import base64
import io
import re
from xml.etree import ElementTree

import line_figures
import matplotlib.pyplot as plt
import numpy as np
import pages
import pytest
import vector
from browsing import opened, visit
from PIL import Image, ImageChops

from attn_lib import plotting

NOTEBOOKS = {path.stem: pages.read(path) for path in pages.NOTEBOOKS}
PNGS = {name: png for page in NOTEBOOKS.values() for name, png in vector.pngs(page).items()}
SVGS = {path.stem: path.read_text() for path in vector.FOLDER.iterdir()}

# ---------------------------------------------------------------- without a browser


def stale(svgs: dict[str, str]) -> list[str]:
    """The figures whose SVG is not there, or was not drawn with the PNG that the notebook holds."""
    found = {name: re.search('data-png="(.*?)"', text)[1] for name, text in svgs.items()}
    return sorted({name for name, _ in PNGS.items() ^ found.items()})


def test_each_figure_has_its_svg():
    """If one is stale, the page was not run by ``book/_tools/execute.py``."""
    assert len(PNGS) > 60
    assert stale(SVGS) == []
    one, other = sorted(SVGS)[:2]
    assert stale({**SVGS, one: SVGS[other], other: SVGS[one]}) == [one, other]


def test_no_svg_was_edited():
    """A browser sees another picture; two words of a legend that are exchanged look alike to it."""
    assert [name for name, text in SVGS.items() if vector.sealed(text) != text] == []
    text = SVGS["fig-masks-crime"]
    exchanged = re.sub(">(honest)(.*?)>(peeking)<", r">\3\2>\1<", text, flags=re.DOTALL)
    assert vector.sealed(exchanged) != exchanged


KINDS = vector.KEPT - {"a"} | {"svg", "title", "desc", "linearGradient", "stop"}
PICTURE = "data:image/(png|jpeg);base64,[A-Za-z0-9+/=]+"  # of a photograph


def unsafe(name: str, text: str) -> list[str]:
    """What is more than shapes and texts, leads elsewhere, or might be another figure's."""
    found = []
    for part in ElementTree.fromstring(text).iter():  # noqa: S314 - our own
        kind = part.tag.removeprefix(vector.SVG)
        ids = [part.get("id", ""), *re.findall(r"#([^)]*)", part.get("clip-path", ""))]
        foreign = [one for one in ids if one and not one.startswith(f"{name}-")]
        found += [kind] * (kind not in KINDS) + foreign
        for key, value in part.attrib.items():
            if kind == "image" and key == "href" and re.fullmatch(PICTURE, value):
                continue
            if key.startswith(("on", "style", "class")) or "//" in value or "data:" in value:
                found.append(f"{key}={value[:20]}")
            if key.endswith("href") and not value.startswith(f"#{name}-"):
                found.append(value)
    return found + ["heavy"] * (len(text.encode()) > vector.HEAVY)


def test_they_are_shapes_and_texts():
    assert {name: unsafe(name, text) for name, text in SVGS.items() if unsafe(name, text)} == {}
    name = "fig-one-head-weights"
    more = '<script/><image href="data:image/svg+xml;base64,AA"/><text onclick="f()" '
    found = unsafe(name, SVGS[name].replace("<text ", more, 1))
    assert found[:2] == ["script", "href=data:image/svg+xml;b"]
    assert "onclick=f()" in found


def small(cmap="Blues", size=2):
    plotting.use_style()
    figure, axes = plt.subplots(1, 2, num=1, clear=True)
    axes[0].imshow(np.linspace(0.1, 1, size**2).reshape(size, size), cmap=cmap, vmin=0, vmax=1)
    axes[1].plot([1, 2], label="two  words")
    axes[1].legend()
    figure.canvas.draw()
    drawn = vector.drawn(figure)
    plt.close(figure)
    return drawn


def test_the_same_figure_gives_the_same_bytes():
    one, other = small(), small()
    text = vector.lean(one, "fig-small", "0")
    assert text == vector.lean(other, "fig-small", "0")
    assert unsafe("fig-small", text) == []
    assert text.count("h1") == 4  # cells, each drawn by itself
    assert "two\u00a0\u00a0words" in text
    assert "data:image/png" in vector.lean(small("gray", 9), "fig-small", "0")  # a photograph


# ---------------------------------------------------------------- as a browser draws it

TILE = 16  # pixels of a PNG, which are half as large as those of a page
APART = 55  # of 255; two ways to smooth and to set letters differ by less


def tiles(image) -> np.ndarray:
    size = (image.width // TILE, image.height // TILE)
    return np.asarray(image.resize(size, Image.Resampling.BOX)).astype(float)


def alike(one, other) -> bool:
    """Whether two pictures differ little everywhere, laid on each other at best."""
    steps = [(x, y) for x in (0, -1, 1) for y in (0, -1, 1)]
    moved = (tiles(ImageChops.offset(one, *step)) for step in steps)
    wanted = tiles(other)
    return any(np.abs(each - wanted).max() <= APART for each in moved)


DRAW = """svg => {
  paper.innerHTML = svg;
  paper.firstChild.style = "text-align: left";
  return document.fonts.load("italic 10px Inter").then(() => document.fonts.ready);
}"""


@pytest.fixture(scope="module")
def drawn(browser, site):
    """What the browser makes of an SVG, in the typeface of the pages."""
    with opened(browser, site.as_uri(), device_scale_factor=2) as page:
        visit(page, f"{site.as_uri()}/book/notation.html", 1000)
        page.set_viewport_size({"width": 1000, "height": 1040})  # as large as the largest
        page.evaluate("""() => { document.body.innerHTML = `<div class="bd-content" id="paper"
          style="position: absolute; inset: 0; background: #fff"></div>`; }""")

        def draw(svg, size):
            page.evaluate(DRAW, svg)
            clip = {"x": 0, "y": 0, "width": (size[0] + 1) // 2, "height": (size[1] + 1) // 2}
            shot = page.screenshot(clip=clip, type="jpeg", quality=95)  # read quicker than a PNG
            return Image.open(io.BytesIO(shot)).crop((0, 0, *size))

        yield draw


def stored():
    """The PNGs of the notebooks."""
    for page in NOTEBOOKS.values():
        for cell, _ in pages.figures(page):
            (png,) = [o.data["image/png"] for o in cell.outputs if "image/png" in o.get("data", {})]
            name = cell.metadata.mystnb.figure.name
            if name in SVGS:
                yield name, Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")


def test_each_svg_shows_what_the_png_shows(drawn):
    found = {
        name: alike(png, drawn(line_figures.inlined(name, ""), png.size)) for name, png in stored()
    }
    assert found == dict.fromkeys(SVGS, True)


MISTAKES = {
    "a label elsewhere": lambda text: re.sub(
        r'x="([\d.]+)"(?=[^>]*>cat<)', lambda x: f'x="{float(x[1]) + 12}"', text, count=1
    ),
    "another colour": lambda text: re.sub(r'"#(08|6[0-9a-f])\w{4}"', '"#d55e00"', text),
    "a cell that is lost": lambda text: re.sub(r'd="M1 5h1"', 'd=""', text),
}


def test_another_picture_is_seen(drawn):
    name = "fig-one-head-weights"
    png = next(png for drawn_as, png in stored() if drawn_as == name)
    text = line_figures.inlined(name, "")
    for mistake, change in MISTAKES.items():
        assert not alike(png, drawn(change(text), png.size)), mistake
