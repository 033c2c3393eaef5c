"""Each figure that is drawn by lines as an SVG: ``book/assets/figures/NAME.svg``.

The notebooks hold compared PNGs. While ``execute.py`` runs one, the kernel writes the SVG of each
figure that it shows, under the sha256 of the PNG; what is kept of it is built anew here from a few
kinds of elements, and sealed, for nobody edits it by hand. A figure stays a PNG alone if it would
be heavy.
"""

import base64
import hashlib
import io
import itertools
import re
from pathlib import Path
from xml.etree import ElementTree

FOLDER = Path(__file__).resolve().parents[1] / "assets" / "figures"
HEAVY = 120_000  # bytes
SCALE = 100 / 72  # pixels of the page a point
BAR = 64  # rows: what has more, all in one colour, is the bar that explains the colours
FONT = "Inter, 'Inter Book', 'DejaVu Sans', sans-serif"
SVG, XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
KEPT = {"g", "path", "use", "text", "tspan", "defs", "clipPath", "rect", "image", "pattern", "a"}
OWN = "d x y width height transform clip-path id href patternUnits fill".split()
ROOT = {"font-family": FONT, "stroke-linejoin": "round"}

# ---------------------------------------------------------------- in the page's kernel


def watching(folder: str) -> str:
    """The option that makes a kernel write its figures there."""
    line = f'__import__("runpy").run_path({__file__!r})["watch"]({folder!r})'
    return f"--IPKernelApp.exec_lines={line}"


def watch(folder: str) -> None:
    """Write what this kernel shows from now on."""
    from IPython.core import pylabtools

    show = pylabtools.print_figure

    def both(figure, fmt="png", **options):
        png = show(figure, fmt, **options)
        if isinstance(png, bytes):
            Path(folder, f"{sha(png)}.svg").write_text(drawn(figure))
        return png

    pylabtools.print_figure = both


def drawn(figure) -> str:
    """The SVG of a figure as it was just laid out; each photograph is marked as one by a link."""
    from matplotlib import rc_context, rcParams
    from matplotlib.image import AxesImage

    images = figure.findobj(AxesImage)
    photographs = [
        i for i in images if i.get_array().shape[2:] == (3,) or i.get_cmap().name == "gray"
    ]  # what has a fourth colour is a veil
    grounds = [axes.patch for axes in figure.axes if photographs and axes.patch.get_visible()]
    layout, resolution = figure.get_layout_engine(), figure.dpi
    ways = [image.get_interpolation() for image in images]
    figure.dpi = 2 * resolution  # as the PNG
    box = figure.get_tightbbox(figure.canvas.get_renderer())
    figure.dpi = resolution
    box = box.padded(rcParams["savefig.pad_inches"])
    figure.set_layout_engine("none")
    for image in images:
        image.set_interpolation("none")  # a pixel a cell
        image.set_url("photograph" if image in photographs else None)
    for ground in grounds:  # whose white the paper has
        ground.set_visible(False)
    options = {"svg.fonttype": "none", "svg.hashsalt": "book", "image.composite_image": False}
    with rc_context(options):
        figure.savefig(svg := io.StringIO(), format="svg", bbox_inches=box, metadata={"Date": None})
    for image, way in zip(images, ways, strict=True):
        image.set_interpolation(way)
    for ground in grounds:
        ground.set_visible(True)
    figure.set_layout_engine(layout)
    return svg.getvalue()


# ---------------------------------------------------------------- what is kept of it


def sha(picture: bytes) -> str:
    """By which a picture is known."""
    return hashlib.sha256(picture).hexdigest()


def lean(svg: str, name: str, png: str) -> str:
    """An SVG with nothing but shapes and texts, and the sha256 of the picture beside it."""
    root = ElementTree.fromstring(svg)  # noqa: S314 - what matplotlib wrote
    width, height = map(float, root.get("viewBox").split()[2:])
    size = {"width": f"{width * SCALE:.0f}", "height": f"{height * SCALE:.0f}"}
    view = {"viewBox": f"0 0 {_short(str(width))} {_short(str(height))}"}
    made = ElementTree.Element("svg", {"xmlns": SVG[1:-1], **view, **size, **ROOT, "data-png": png})
    ElementTree.SubElement(made, "title").text = name
    ElementTree.SubElement(made, "desc").text = "Attention, Checked. CC BY 4.0"
    made.extend(part for child in root for part in _parts(child))
    text = ElementTree.tostring(made, encoding="unicode")
    for number, old in enumerate(dict.fromkeys(re.findall(r"#([a-z]\w{10,})", text))):
        text = re.sub(rf"\b{old}\b", f"{name}-{number}", text)
    used = set(re.findall(r"#([\w-]+)", text))
    text = re.sub(r' id="([\w-]+)"', lambda one: one[0] * (one[1] in used), text)
    return sealed(re.sub(r"<(?=path|text|use|g|clipPath|rect|linear)", "\n<", text) + "\n")


def sealed(text: str) -> str:
    """An SVG that names the sha256 of all else that stands in it."""
    text = re.sub(' data-own="[^"]*"', "", text)
    return text.replace(" data-png=", f' data-own="{sha(text.encode())}" data-png=', 1)


def keep(page: str, notebook, folder: Path) -> None:
    """Store the figures of a page as it ran just now, and no others of that page."""
    for old in FOLDER.glob(f"{prefix(page)}*.svg"):
        old.unlink()
    FOLDER.mkdir(exist_ok=True)
    for name, png in pngs(notebook).items():
        if (written := folder / f"{png}.svg").exists():
            text = lean(written.read_text(), name, png)
            if len(text.encode()) <= HEAVY:
                (FOLDER / f"{name}.svg").write_text(text)


def prefix(page: str) -> str:
    """How the names of its figures begin."""
    return f"fig-{re.sub(r'^[0-9]+_', '', page).replace('_', '-')}-"


def pngs(notebook) -> dict[str, str]:
    """The figures of a page, each with the sha256 of its picture."""
    return {
        cell.metadata.mystnb.figure.name: sha(base64.b64decode(output.data["image/png"]))
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    }


def _short(numbers: str) -> str:
    """A hundredth of a point is enough."""
    return re.sub(r"-?\d+\.\d+", lambda one: f"{round(float(one[0]), 2):g}", numbers)


def _attributes(part: ElementTree.Element) -> dict[str, str]:
    style = [one.split(":", 1) for one in part.get("style", "").split(";") if ":" in one]
    found = {key.strip(): value.strip() for key, value in style}
    if "Inter" in found.get("font-family", ""):
        del found["font-family"]
    found |= {key: part.get(key) for key in OWN if part.get(key)}
    found |= {"href": part.get(XLINK)} if part.get(XLINK) else {}
    found.pop("transform" if found.get("transform", "").startswith("rotate(-0 ") else "", "")
    if "d" in found:
        found["d"] = re.sub(r"\s*([A-Za-z])\s*", r"\1", found["d"].strip())
    whole = ("id", "href", "clip-path")
    return {key: value if key in whole else _short(value) for key, value in found.items()}


def _parts(part: ElementTree.Element) -> list[ElementTree.Element]:
    """An element as it is kept: without what is no shape, in as few groups as will do."""
    kind, attributes = part.tag.removeprefix(SVG), _attributes(part)
    if kind not in KEPT:
        return []
    if kind == "image":
        return _cells(attributes)
    if kind == "a":
        return [_photograph(part[0])]
    inside = [one for child in part for one in _parts(child)]
    if kind == "g" and not (set(attributes) - {"id"}):
        return inside
    if kind in ("g", "defs") and not inside:
        return []
    made = ElementTree.Element(kind, attributes)
    if kind == "tspan" or (kind == "text" and not inside):
        made.text = re.sub("  +" if kind == "text" else " ", _hard, part.text or "")
    made.extend(_joined(inside) if kind == "text" else inside)
    return [made]


def _hard(spaces: re.Match) -> str:
    return "\u00a0" * len(spaces[0])


def _joined(letters: list[ElementTree.Element]) -> list[ElementTree.Element]:
    """The letters of a formula, those of one line and one kind together, each with its place."""
    lines = []
    for letter in letters:
        if lines and {**lines[-1].attrib, "x": ""} == {**letter.attrib, "x": ""}:
            lines[-1].set("x", f"{lines[-1].get('x')} {letter.get('x')}")
            lines[-1].text += letter.text
        else:
            lines.append(letter)
    return lines


def _photograph(image: ElementTree.Element) -> ElementTree.Element:
    """A picture whose colours are its own: a small one pixel by pixel, a large one as a JPEG."""
    from PIL import Image

    png = base64.b64decode(image.get(XLINK).partition(",")[2])
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    small = picture.width <= BAR
    picture.save(made := io.BytesIO(), kind := "png" if small else "jpeg", quality=85)
    place = {key: image.get(key) for key in ("width", "height", "transform")}
    look = {"image-rendering": "pixelated" if small else "auto", "preserveAspectRatio": "none"}
    href = f"data:image/{kind};base64,{base64.b64encode(made.getvalue()).decode()}"
    return ElementTree.Element("image", {**place, **look, "href": href})


def _cells(image: dict[str, str]) -> list[ElementTree.Element]:
    """The cells of a heat map as rectangles; its bar of colours as a gradient."""
    from numpy import asarray
    from PIL import Image

    png = base64.b64decode(image["href"].partition(",")[2])
    cells = asarray(Image.open(io.BytesIO(png)).convert("RGBA"))
    rows, columns = cells.shape[:2]
    wide, high = float(image["width"]) / columns, float(image["height"]) / rows
    place = f"{image.get('transform', '')} translate({image.get('x', 0)} {image.get('y', 0)})"
    for line, end in ((cells[:, :1], {"x2": "0", "y2": "1"}), (cells[:1], {})):
        if len(colours := line.reshape(-1, 4)) > BAR and (cells == line).all():
            bar = ElementTree.Element("linearGradient", {"id": f"bar{sha(png)[:9]}", **end})
            for at in range(17):
                colour = _hex(colours[round(at / 16 * (len(colours) - 1))])
                stop = {"offset": f"{at / 16:g}", "stop-color": colour}
                ElementTree.SubElement(bar, "stop", stop)
            box = {"width": image["width"], "height": image["height"], "transform": place.strip()}
            return [bar, ElementTree.Element("rect", {**box, "fill": f"url(#{bar.get('id')})"})]
    paths = {}
    for y, row in enumerate(cells):
        x = 0
        for colour, run in itertools.groupby(map(tuple, row)):
            long = len(list(run))
            if colour[3]:
                paths.setdefault(colour, []).append(f"M{x} {y}h{long}")
            x += long
    place += f" scale({wide:g} {high:g}) translate(0 .5)"  # lines as thick as a cell is high
    group = ElementTree.Element("g", {"transform": place.strip(), "shape-rendering": "crispEdges"})
    group.extend(
        ElementTree.Element("path", {**_paint(colour), "d": "".join(path)})
        for colour, path in paths.items()
    )
    return [group]


def _paint(colour) -> dict[str, str]:
    """A veil is one through which one sees."""
    thin = {"stroke-opacity": f"{colour[3] / 255:.3g}"} if colour[3] < 255 else {}
    return {"stroke": _hex(colour), **thin}


def _hex(colour) -> str:
    return "#" + "".join(f"{int(part):02x}" for part in colour[:3])
