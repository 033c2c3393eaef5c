"""What the front page shows of the other pages, read from where it stands: nothing is typed twice.

``{front-moving}`` shows a figure that moves, ``{front-cards}`` a chapter for each figure that it
names, ``{front-cell}`` the source of cells and the start of what the last one printed,
``{front-byline}`` and ``{front-cite}`` whose the book is, ``{front-install}`` how it runs.
"""

import base64
import html
import io
import json
import re
from datetime import date
from pathlib import Path

import nbformat
import yaml
from checked import checked_on
from colab import UNSET, for_website
from docutils import nodes
from PIL import Image
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

SIZE = 480, 300  # of a picture on a card, twice what is shown


# ---------------------------------------------------------------- what the pages hold


def pages(book: Path) -> dict[str, list]:
    """The cells of each notebook."""
    stored = {path.stem: nbformat.v4.reads(path.read_text()) for path in book.glob("*.ipynb")}
    return {page: for_website(notebook).cells for page, notebook in stored.items()}


def figure(name: str, cells: dict[str, list]) -> tuple[str, dict, bytes]:
    """The page of a figure, its cell, and the picture that is stored there."""
    for page, own in cells.items():
        for cell in own:
            if cell["metadata"].get("mystnb", {}).get("figure", {}).get("name") == name:
                (png,) = [
                    output["data"]["image/png"]
                    for output in cell["outputs"]
                    if "image/png" in output.get("data", {})
                ]
                return page, cell, base64.b64decode(png)
    raise ValueError(f"no page has a figure {name}")


def title(cells: list) -> str:
    """The heading of a page."""
    return cells[0]["source"].partition("\n")[0].removeprefix("# ")


def needs(cells: list) -> tuple[str, str]:
    """The time that a page takes, and what it asks for: its chapters, or all if it names none."""
    (line,) = [
        line
        for cell in cells
        for line in cell["source"].split("\n\n")
        if line.startswith("**What you'll need.** ")
    ]
    line = " ".join(line.removeprefix("**What you'll need.** ").split())
    found = re.match(r"(.*?)[,;]? (?:and )?about (an hour|\d+ minutes)\.", line)
    if found is None:
        raise ValueError(f"{title(cells)}: how long does it take? {line}")
    asked, time = found.groups()
    chapters = set(re.findall(r"\((\d\d)_\w+\.ipynb\)", asked))
    numbers = [str(int(chapter)) for chapter in sorted(chapters)]
    if not numbers:
        return time, f"needs {asked[:1].lower()}{asked[1:]}"
    listed = " and ".join(filter(None, [", ".join(numbers[:-1]), numbers[-1]]))
    return time, f"needs chapter{'s' * (len(numbers) > 1)} {listed}"


def quoted(names: list[str], until: str | None, cells: dict[str, list]) -> tuple[str, str]:
    """The source of cells, and what the last one printed, as far as a line that begins so."""
    known = {cell.get("id"): cell for own in cells.values() for cell in own}
    if lost := [name for name in names if name not in known]:
        raise ValueError(f"no page has a cell {lost[0]}")
    chosen = [known[name] for name in names]
    printed = "".join(output.get("text", "") for output in chosen[-1]["outputs"])
    if until is not None:
        printed, cut, _ = printed.partition(f"\n   {until}")
        if not cut:
            raise ValueError(f"{names[-1]} prints no line {until!r}")
        printed += "\n   …"
    return "\n\n".join(cell["source"] for cell in chosen), printed


# ---------------------------------------------------------------- what is made of it


def small(png: bytes) -> bytes:
    """A stored figure as a card shows it: whole, without its margins, on white."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    inked = picture.convert("L").point(lambda grey: 255 * (grey < 250)).getbbox()
    picture = picture.crop(inked)
    picture.thumbnail((SIZE[0] - 24, SIZE[1] - 24), Image.Resampling.LANCZOS)
    card = Image.new("RGB", SIZE, "white")
    card.paste(picture, [(all_ - own) // 2 for all_, own in zip(SIZE, picture.size, strict=True)])
    made = io.BytesIO()
    card.quantize(96).save(made, "png", optimize=True)
    return made.getvalue()


def card(name: str, cells: dict[str, list]) -> str:
    """The chapter of a figure: picture, number, title, time, needs."""
    page = figure(name, cells)[0]
    time, asked = needs(cells[page])
    return (
        f'<li><a href="{page}.html"><img src="../_images/front-{name}.png" alt=""'
        f' width="{SIZE[0] // 2}" height="{SIZE[1] // 2}" loading="lazy">'
        '<span class="card-words">'
        f"<strong>{int(page[:2])}. {html.escape(title(cells[page]))}</strong>"
        f'<span class="needs">{time} · {html.escape(asked)}</span></span></a></li>'
    )


def byline(citation: dict, day: date | None, address: str) -> str:
    """Whose the book is, which version, when it was last checked, and where its source is."""
    (author,) = [one["name"] for one in citation["authors"]]
    when = f"{day.day} {day:%B %Y}" if day else "not yet"
    parts = [
        html.escape(author),
        f"version {citation['version']}",
        f'<a href="how_checked.html">every output checked</a> on <time>{when}</time>',
        '<a href="#about-this-book">licence, citation</a>',
    ]
    if UNSET not in address:
        parts.append(f'<a href="{html.escape(address)}">source</a>')
    return f'<p class="byline">{" · ".join(parts)}</p>'


def install(address: str) -> str:
    """How the library is installed and the notebooks are opened: the rest needs an address."""
    commands = [
        "pip install .                                # the library alone",
        "pip install -r requirements.txt jupyterlab   # all that the book needs",
        "jupyter lab book",
    ]
    if UNSET not in address:
        commands = [
            f'pip install "git+{address}"   # the library alone',
            f"git clone {address} attention-checked && cd attention-checked",
            *commands[1:],
        ]
    return "\n".join(commands)


def colab(address: str) -> str:
    """How a chapter is opened in Colab."""
    if UNSET in address:
        return (
            "Colab has to install the library from a public address, which this copy has not yet."
        )
    at_top = "https://github.com/" in address
    opened = "open a chapter with the button at its top" if at_top else "upload a notebook"
    return f"In Colab, {opened}: its first cell installs what it needs."


def reference(citation: dict, address: str) -> str:
    """How to cite the book, in BibTeX."""
    (author,) = [one["name"] for one in citation["authors"]]
    fields = {
        "author": f"{{{author}}}",
        "title": f"{{{citation['title']}}}",
        "year": citation["date-released"].year,
        "version": citation["version"],
    }
    if UNSET not in address:
        fields["url"] = address
    inside = ",\n".join(f"  {name} = {{{value}}}" for name, value in fields.items())
    return f"@software{{attention_checked,\n{inside}\n}}"


# ---------------------------------------------------------------- the directives


class Front(SphinxDirective):
    """What they share."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """The nodes of the directive; what is not there is an error of the build."""
        try:
            return self.nodes()
        except ValueError as fault:
            raise self.error(str(fault)) from None

    def cells(self) -> dict[str, list]:
        """All notebooks, on which the page depends from now on."""
        book = Path(self.env.srcdir) / "book"
        for path in book.glob("*.ipynb"):
            self.env.note_dependency(str(path))
        return pages(book)

    def citation(self) -> dict:
        """How the book is cited."""
        return yaml.safe_load((Path(self.env.srcdir) / "CITATION.cff").read_text())

    def address(self) -> str:
        """Where the source of the book is."""
        return self.config.html_theme_options["repository_url"]

    def picture(self, name: str, png: bytes) -> None:
        """Put a picture beside those of the pages."""
        path = Path(self.env.app.outdir) / "_images" / f"front-{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png)

    def raw(self, text: str) -> nodes.raw:
        """Text for the page as it is."""
        return nodes.raw("", text, format="html")


class Moving(Front):
    """``{front-moving} NAME``: the figure of that name, which the book's script lets you move."""

    required_arguments = 1

    def nodes(self) -> list[nodes.Node]:
        """The still picture, over the caption."""
        name = self.arguments[0]
        _, cell, png = figure(name, self.cells())
        self.picture(name, png)
        width, height = Image.open(io.BytesIO(png)).size
        alt = html.escape(cell["metadata"]["mystnb"]["image"]["alt"])
        image = f'<img src="../_images/front-{name}.png" alt="{alt}"'
        image += f' width="{width // 2}" height="{height // 2}" loading="lazy">'
        script = Path(self.env.srcdir, "book", "assets", "live_data.js").read_text()
        roles = json.loads(re.search(r'"roles": (\{.*?\})', script)[1])
        colours = "; ".join(f"--{role}: {colour}" for role, colour in roles.items())
        opening = f'<figure id="{name}" class="front-figure" style="{colours}">'
        start = self.raw(f"{opening}{image}<figcaption>")
        caption = nodes.container()
        self.state.nested_parse(self.content, self.content_offset, caption)
        return [start, *caption.children, self.raw("</figcaption></figure>")]


class Cards(Front):
    """``{front-cards}``: on each line a figure, the picture of its chapter."""

    def nodes(self) -> list[nodes.Node]:
        """A list of links."""
        cells, names = self.cells(), [line for line in self.content if line.strip()]
        for name in names:
            self.picture(name, small(figure(name, cells)[2]))
        cards = "\n".join(card(name, cells) for name in names)
        return [self.raw(f'<ul class="front-cards">\n{cards}\n</ul>')]


class Cell(Front):
    """``{front-cell} ID …``: modules, the source of cells, what the last printed, until a line."""

    required_arguments, final_argument_whitespace = 1, True
    option_spec = {"start": str, "until": str}  # noqa: RUF012 - docutils' own form

    def nodes(self) -> list[nodes.Node]:
        """Code, and output."""
        names, cells = self.arguments[0].split(), self.cells()
        code, printed = quoted(names, self.options.get("until"), cells)
        start = "".join(f"import {name.strip()}\n" for name in self.options["start"].split(","))
        parts = (("cell_input", f"{start}\n{code}", "python"), ("cell_output", printed, "none"))
        shown = nodes.container(classes=["cell", "front-check"])  # as a cell of a page looks
        for kind, text, language in parts:
            block = nodes.literal_block(text, text, language=language, classes=["output"])
            shown += nodes.container("", block, classes=[kind])
        return [shown]


class Byline(Front):
    """``{front-byline}``: author, version, the day of the last check, and where to go for more."""

    def nodes(self) -> list[nodes.Node]:
        """One line."""
        day = checked_on(Path(self.env.srcdir))
        return [self.raw(byline(self.citation(), day, self.address()))]


class Install(Front):
    """``{front-install}``: how to install the library, and to open the notebooks anywhere."""

    def nodes(self) -> list[nodes.Node]:
        """Sentences around commands."""
        address = self.address()
        folder = "In the book's folder, with Python 3.11 and without a GPU:"
        code = install(address)
        return [
            nodes.paragraph("", folder),
            nodes.literal_block(code, code, language="bash"),
            nodes.paragraph("", colab(address)),
        ]


class Cite(Front):
    """``{front-cite}``: how to cite the book."""

    def nodes(self) -> list[nodes.Node]:
        """BibTeX."""
        text = reference(self.citation(), self.address())
        return [nodes.literal_block(text, text, language="bibtex")]


def setup(app: Sphinx) -> dict:
    """Register with Sphinx."""
    for directive in (Moving, Cards, Cell, Byline, Install, Cite):
        app.add_directive(f"front-{directive.__name__.lower()}", directive)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
