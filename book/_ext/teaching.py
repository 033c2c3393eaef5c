"""What a teacher takes along: each chapter's figures as slides, its exercises as a sheet.

Their solutions are a sheet of their own. ``{teach-table}`` lists the chapters with all three. They
are plain pages in the folder ``teach`` of the site, cut out of the pages when these are as they are
stored: ``slides.html`` and ``sheet.html`` beside this file are their frames. Their links begin
where those of the pages do.
"""

import html
import shutil
from pathlib import Path
from string import Template

import yaml
from bs4 import BeautifulSoup, Tag
from colab import UNSET
from docutils import nodes
from front import Front, needs, pages, title
from html_fixes import CHOSEN
from sphinx.application import Sphinx

FOLDER = "teach"
KINDS = ("slides", "exercises", "solutions")
# what stands above the exercises, and above their solutions
LEADS = {
    "exercises": "Each <code>...</code> is yours to replace, on paper or in the "
    '<a href="$page#exercises">notebook of the chapter</a>, where a check says what is wrong.',
    "solutions": 'For <a href="../teach/$nn-exercises.html">these exercises</a>. '
    "There are other right answers; the notebook of the chapter checks them.",
}
CODE = '<pre tabindex="0">'  # for who scrolls it by keyboard
HERE = Path(__file__).parent


class Table(Front):
    """``{teach-table}``: each chapter, its time, its slides, its exercises, their solutions."""

    has_content = False

    def nodes(self) -> list[nodes.Node]:
        """A table of links."""
        rows = []
        for page, cells in chapters(self.cells()):
            number = int(page[:2])
            links = [
                f'<td><a href="../{FOLDER}/{page[:2]}-{what}.html" '
                f'aria-label="{what} of chapter {number}">{what}</a></td>'
                for what in KINDS
            ]
            named = f'<a href="{page}.html">{number}. {html.escape(title(cells))}</a>'
            time = needs(cells)[0].replace(" minutes", "&nbsp;min")
            rows.append(f"<tr><td>{named}</td><td>{time}</td>{''.join(links)}</tr>")
        heads = "".join(f"<th>{head}</th>" for head in ("Chapter", "Time", *map(str.title, KINDS)))
        table = f'<table class="table teach-table"><thead><tr>{heads}</tr></thead>'
        table += f"<tbody>{''.join(rows)}</tbody></table>"
        return [self.raw(f'<div class="pst-scrollable-table-container">{table}</div>')]


def chapters(cells: dict[str, list]) -> list[tuple[str, list]]:
    """The chapters among the notebooks, in their order."""
    return sorted((page, own) for page, own in cells.items() if page[:2].isdigit())


# ---------------------------------------------------------------- what is cut out of a page


def inside(part: Tag, page: str) -> str:
    """The HTML in a part, whose links into its own page go there from elsewhere, too."""
    for mark in part.select(".headerlink"):
        mark.decompose()
    for link in part.select('a[href^="#"]'):
        link["href"] = f"{page}.html{link['href']}"
    return part.decode_contents().strip()


def code(part: Tag) -> str:
    """Code, in one colour."""
    return f"{CODE}{html.escape(part.select_one('pre').get_text().strip())}</pre>"


def question(article: Tag) -> Tag:
    """What the chapter asks in its opening: its first words in bold that end so."""
    return next(bold for bold in article.select("p strong") if bold.text.endswith("?"))


def slides(article: Tag, page: str, moving: set[str]) -> str:
    """Each figure on a slide of its own, linked to where it moves if it does."""
    figures = article.select('figure[id^="fig-"]')
    written = []
    for at, figure in enumerate(figures, start=2):
        image, name = figure.select_one("img, .drawn svg"), figure["id"]
        for lost in {"style", "loading"} & set(image.attrs):
            del image[lost]
        number = figure.select_one(".caption-number").text.strip()
        words = inside(figure.select_one(".caption-text"), page)
        more = f' <a href="{page}.html#{name}">Move it</a>' if name in moving else ""
        licence = figure.find_next(class_="reuse")("a")[1].text  # as the page has it
        shape = "tall" if int(image["width"]) < 1.25 * int(image["height"]) else "wide"
        written.append(
            f'<section id="{at}" aria-label="{number}" class="{shape}"><figure class="drawn">'
            f"{image}<figcaption><b>{number}</b> <span>{words}</span>{more}</figcaption></figure>"
            f"<footer>{licence} · {at} / {len(figures) + 1}</footer></section>"
        )
    return "\n".join(written)


def sheet(article: Tag, page: str) -> tuple[str, str]:
    """The exercises, each with all that stands above its solution, and the solutions."""
    asked, solved = "", ""
    for box in article.select(".exercise.admonition"):
        heading = box.select_one(".admonition-title").extract().text
        number = heading.removeprefix("Exercise ")
        parts, own = inside(box, page), f"tag_exercise-{number}"
        for below in box.find_next_siblings("div"):
            parts += code(below)
            if own in below.get("class", []):
                break
        asked += f'<section class="asked"><h2>{heading}</h2>{parts}</section>\n'
        (solution,) = article.find_all("div", class_=f"tag_solution-{number}")
        solved += f"<section><h2>Solution {number}</h2>{code(solution)}</section>\n"
    return asked, solved


# ---------------------------------------------------------------- the files


def _forget(app: Sphinx) -> None:
    """The files of an earlier build, which are no pages of the book."""
    shutil.rmtree(Path(app.outdir, FOLDER), ignore_errors=True)


def _write(app: Sphinx, exception: Exception | None) -> None:
    if exception or app.builder.format != "html":
        return
    out = Path(app.outdir)
    (out / FOLDER).mkdir()
    citation = yaml.safe_load((Path(app.srcdir) / "CITATION.cff").read_text())
    address = app.config.html_theme_options["repository_url"]
    for page, cells in chapters(pages(Path(app.srcdir) / "book")):
        article = BeautifulSoup((out / "book" / f"{page}.html").read_text(), "html.parser").article
        moving = {c["metadata"]["mystnb"]["figure"]["name"] for c in cells if "live" in c.metadata}
        asked, solved = sheet(article, page)
        shown = slides(article, page, moving)
        filled = {
            "chosen": CHOSEN,
            "title": html.escape(title(cells)),
            "number": int(page[:2]),
            "nn": page[:2],
            "page": f"{page}.html",
            "question": inside(question(article), page),
            "book": html.escape(citation["title"]),
            "author": html.escape(citation["authors"][0]["name"]),
            "year": citation["date-released"].year,
            "version": citation["version"],
            "address": "" if UNSET in address else f" {html.escape(address)}",
            "slides": shown,
            "count": shown.count("<section ") + 1,
        }
        frames = {"slides": filled}
        for what, parts in (("exercises", asked), ("solutions", solved)):
            lead = Template(LEADS[what]).substitute(filled)
            frames[what] = filled | {"what": what.title(), "lead": lead, "parts": parts}
        for what, parts in frames.items():
            frame = HERE / ("slides.html" if what == "slides" else "sheet.html")
            text = Template(frame.read_text()).substitute(parts)
            (out / FOLDER / f"{page[:2]}-{what}.html").write_text(text)


def setup(app: Sphinx) -> dict:
    """Register with Sphinx."""
    app.add_directive("teach-table", Table)
    app.connect("builder-inited", _forget)
    app.connect("build-finished", _write, priority=950)  # after page_size, which rewrites pages
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
