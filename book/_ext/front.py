"""What the front page shows of the other pages, read from where it stands: nothing is typed twice.

``{front-figure}`` shows a figure, which moves if the book's script can move it, and what was
printed beside it, ``{front-cards}`` the chapters with their icons, ``{front-cell}`` the source of
cells and the start of what the last one printed, ``{front-byline}`` and ``{front-cite}`` whose the
book is, ``{front-install}`` how it runs.
"""

import html
import json
import re
from datetime import date
from pathlib import Path

import nbformat
import yaml
from checked import checked_on
from colab import UNSET, for_website
from docutils import nodes
from line_figures import FIGURES, inlined
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROWS, COLUMNS = 5, 8  # of an icon


# ---------------------------------------------------------------- what the pages hold


def pages(book: Path) -> dict[str, list]:
    """The cells of each notebook."""
    stored = {path.stem: nbformat.v4.reads(path.read_text()) for path in book.glob("*.ipynb")}
    return {page: for_website(notebook).cells for page, notebook in stored.items()}


def figure(name: str, cells: dict[str, list]) -> dict:
    """The cell of a figure."""
    for cell in (cell for own in cells.values() for cell in own):
        if cell["metadata"].get("mystnb", {}).get("figure", {}).get("name") == name:
            return cell
    raise ValueError(f"no page has a figure {name}")


def title(cells: list) -> str:
    """The heading of a page, with the apostrophes that it has there."""
    return cells[0]["source"].partition("\n")[0].removeprefix("# ").replace("'", "’")


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
    chapters = set(re.findall(r"\((\d\d)_\w+\.ipynb(?:#[\w-]+)?\)", asked))
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


def icon(rows: list[str]) -> str:
    """A mosaic: q, k, v, o and w are the roles, a to i small to large weights, s is closed."""
    kinds = dict(zip("qkvwo", ("query", "key", "value", "weight", "output"), strict=True))
    tiles = []
    for y, row in enumerate(rows):
        for x, letter in enumerate(row):
            if letter != ".":
                kind = kinds.get(letter, "closed" if letter == "s" else "weight")
                tenths = "abcdefghi".find(letter) + 1
                shade = f' style="--w:.{tenths}"' if tenths else ""
                tiles.append(f'<rect class="{kind}"{shade} x="{x}" y="{y}" width="1" height="1"/>')
    view = f'viewBox="-.1 -.1 {len(rows[0]) + 0.2} {len(rows) + 0.2}"'
    return f'<svg {view} aria-hidden="true">{"".join(tiles)}</svg>'


def card(line: str, cells: dict[str, list]) -> str:
    """A chapter: its icon, number, title, time, needs."""
    page, *rows = line.split()
    if page not in cells or len(rows) != ROWS or {len(row) for row in rows} != {COLUMNS}:
        raise ValueError(f"a page, and {ROWS} rows of {COLUMNS} tiles: {line}")
    time, asked = needs(cells[page])
    return (
        f'<li><a href="{page}.html">{icon(rows)}<span class="card-words">'
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
    """How a chapter is opened in Colab, and what there is for whoever has not the book's folder."""
    if UNSET in address:
        return (
            "Without that folder, take the library, one file in the download menu of every page, "
            "and install that file with pip, or lay it beside a notebook, whose first cell "
            "installs it with all that the pages need. In Colab, upload a notebook, drop the file "
            "into Files, and run the first cell."
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


def colophon(citation: dict) -> str:
    """Whose a page is, and under which licence: at its end, on a screen and on paper."""
    (author,) = [html.escape(one["name"]) for one in citation["authors"]]
    return (
        f'<p class="colophon"><cite>{html.escape(citation["title"])}</cite> {citation["version"]},'
        f" by {author}. Text and figures: CC BY 4.0; code: MIT."
        ' <a href="index.html#about-this-book">Licence, citation</a></p>'
    )


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

    def colours(self) -> str:
        """The colour of each role."""
        script = Path(self.env.srcdir, "book", "assets", "live_data.js").read_text()
        roles = json.loads(re.search(r'"roles": (\{.*?\})', script)[1])
        return "; ".join(f"--{role}: {colour}" for role, colour in roles.items())

    def raw(self, text: str) -> nodes.raw:
        """Text for the page as it is."""
        return nodes.raw("", text, format="html")


class Figure(Front):
    """``{front-figure} NAME``: the figure of that name, lines that a cell printed, a caption.

    ``:said: CELL 1 4`` are its first and fourth line, ``:as: honest, peeking`` who said them.
    """

    required_arguments = 1
    option_spec = {"said": str, "as": str}  # noqa: RUF012 - docutils' own form

    def nodes(self) -> list[nodes.Node]:
        """The picture, what was said, the caption."""
        name, cells = self.arguments[0], self.cells()
        alt = figure(name, cells)["metadata"]["mystnb"]["image"]["alt"]
        self.env.note_dependency(str(FIGURES / f"{name}.svg"))
        image = inlined(name, alt)
        opening = f'<figure id="{name}" class="front-figure" style="{self.colours()}">'
        start = self.raw(f"{opening}{image}{self.said(cells)}<figcaption>")
        caption = nodes.container()
        self.state.nested_parse(self.content, self.content_offset, caption)
        return [start, *caption.children, self.raw("</figcaption></figure>")]

    def said(self, cells: dict[str, list]) -> str:
        """Lines that a cell printed, up to the first two spaces."""
        if "said" not in self.options:
            return ""
        name, *numbers = self.options["said"].split()
        printed = quoted([name], None, cells)[1].splitlines()
        said = [printed[int(number) - 1].partition("  ")[0].strip(" .") for number in numbers]
        rows = zip(self.options["as"].split(", "), said, strict=True)
        lines = (f"<dt>{who}</dt><dd>{html.escape(what)}</dd>" for who, what in rows)
        return f"<dl>{''.join(lines)}</dl>"


class Cards(Front):
    """``{front-cards}``: on each line a page, and the rows of its icon."""

    def nodes(self) -> list[nodes.Node]:
        """A list of links."""
        cells = self.cells()
        cards = "\n".join(card(line, cells) for line in self.content if line.strip())
        return [self.raw(f'<ul class="front-cards" style="{self.colours()}">\n{cards}\n</ul>')]


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


_REPORT = re.compile(r'(?s)(?<=cell_output docutils container">\n)<div class="output.*?</pre>')
_CALL = re.compile(r"[\w.]+\([^()<>]*\)")


def unbroken(body: str) -> str:
    """The front page, on which a phone breaks the lines of a report, but no call in them."""

    def report(found: re.Match) -> str:
        parts = re.split(r"(<[^>]*>)", found[0])  # text, tag, text
        parts[::2] = [
            _CALL.sub(r'<span class="together">\g<0></span>', part) for part in parts[::2]
        ]
        return "".join(parts)

    return _REPORT.sub(report, body)


def _sign(app: Sphinx, page: str, template: str, context: dict, doctree: object) -> None:
    if page == "book/index":
        context["body"] = unbroken(context["body"])
    citation = yaml.safe_load((Path(app.srcdir) / "CITATION.cff").read_text())
    if page.startswith("book/"):
        context["body"] += colophon(citation)


def setup(app: Sphinx) -> dict:
    """Register with Sphinx."""
    for directive in (Figure, Cards, Cell, Byline, Install, Cite):
        app.add_directive(f"front-{directive.__name__.lower()}", directive)
    app.connect("html-page-context", _sign)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
