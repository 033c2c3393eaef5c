"""Slides and exercise sheets: all that the notebook has, in its order, and mistakes are seen."""

import contextlib
import html
import re

import colab
import front
import pages
import pytest
import teaching
import yaml
from browsing import opened, styled, visit
from tables import for_each

CITATION = yaml.safe_load((pages.ROOT / "CITATION.cff").read_text())
AUTHOR = CITATION["authors"][0]["name"]
FIRST = pages.CHAPTERS[0]


def words(text):
    """What is read of HTML."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", text)).split())


def taken(site, path, what):
    return (site / "teach" / f"{path.stem[:2]}-{what}.html").read_text()


def between(start, end, text):
    return re.findall(f"(?s){start}(.*?){end}", text)


def figures(text):
    """What each figure draws, and what is heard and read of it."""
    found = []
    for figure in between("<figure", "</figure>", text):
        parts = re.findall(r' (?:d|src|alt|aria-label)="(.*?)"', figure)
        read = words(f"<{figure}").removesuffix("#").removesuffix(" Move it")
        found.append((sorted(map(html.unescape, parts)), read.replace(" ", "")))
    return found


def compare_slides(site, path, text):
    """With the notebook of the chapter, and with its page."""
    notebook = pages.read(path)
    page = (site / "book" / f"{path.stem}.html").read_text()
    assert figures(text) == figures(page)
    cells = [cell for cell, _ in pages.figures(notebook)]
    moving = [cell.metadata.mystnb.figure.name for cell in cells if "live" in cell.metadata]
    linked = re.findall(r'<a href="([^"]*)">Move it', text)
    assert linked == [f"{path.stem}.html#{name}" for name in moving]
    under = ["CC BY 4.0", *(cell.metadata.get("licence", "CC BY 4.0") for cell in cells)]
    feet = [words(one) for one in between("<footer>", "</f", text)]
    assert feet == [f"{one} · {at} / {len(under)}" for at, one in enumerate(under, 1)]
    first = between("<section ", "</section>", text)[0]
    needed = [front.title(notebook.cells), AUTHOR, CITATION["title"], "CC BY 4.0", "To cite: "]
    needed += [CITATION["version"], str(CITATION["date-released"].year)]
    assert [one for one in needed if one not in words(first)] == []
    (question,) = between('question">', "</p>", first)
    assert words(question).endswith("?")
    assert words(question) in [words(one) for one in between("<strong>", "</strong>", page)]


def compare_sheets(site, path, asked, solved):
    """With the notebook of the chapter, and with its page."""
    page = (site / "book" / f"{path.stem}.html").read_text()
    notebook = pages.read(path)
    tagged = {tag: cell for cell in pages.code_cells(notebook) for tag in pages.tags(cell)}
    assert re.findall(r"Solution \d|-solutions[.]", asked) == []
    boxes = between('<div class="exercise.*?title">', "</div>", page)
    expected = [(box.partition("</p>")[0], words(box.partition("</p>")[2])) for box in boxes]
    sections = [one.partition("</h2>") for one in between('asked"><h2>', "</section>", asked)]
    read = [(title, words(re.sub(r"(?s)<pre .*?</pre>", "", box))) for title, _, box in sections]
    assert read == expected
    given = between("```python\n", "```", "\n".join(cell.source for cell in notebook.cells))
    for kind, half in (("exercise", asked), ("solution", solved)):
        cells = [cell for tag, cell in tagged.items() if tag.startswith(f"{kind}-")]
        blocks = [html.unescape(block) for block in between(teaching.CODE, "</pre>", half)]
        assert {colab.untitled(cell.source).strip() for cell in cells} <= {*blocks}
        if kind == "exercise":  # nothing of a solution is told
            known = "\n".join([*given, *(cell.source for cell in cells)]).splitlines()
            assert [line for line in "\n".join(blocks).splitlines() if line not in known] == []
        for needed in (AUTHOR, "CC BY 4.0", "MIT", html.escape(front.title(notebook.cells))):
            assert needed in half


def compare(path, site, slides, asked, solved):
    compare_slides(site, path, slides)
    compare_sheets(site, path, asked, solved)


@for_each(*pages.CHAPTERS, ids=lambda path: path.stem)
def test_each_figure_has_its_slide_each_exercise_its_place(path, site):
    compare(path, site, *(taken(site, path, kind) for kind in teaching.KINDS))


@for_each(
    (">cat</text>", ">dog</text>"),
    (">Move it</a>", ">Move</a>"),
    ("from memory", "by heart"),
    ("query = ...", "query = [0.0, 8.0]"),
)
def test_a_mistake_is_seen(old, new, site):
    texts = [taken(site, FIRST, kind) for kind in teaching.KINDS]
    assert any(old in text for text in texts)
    with pytest.raises(AssertionError):
        compare(FIRST, site, *(text.replace(old, new) for text in texts))


# ---------------------------------------------------------------- as they are seen


@contextlib.contextmanager
def projected(browser, site, name="01-slides.html"):
    with opened(browser, site.as_uri()) as page:
        visit(page, f"{site.as_uri()}/teach/{name}")
        yield page


SEEN = """() => [...document.querySelectorAll("section")]
  .filter(slide => Math.abs(slide.getBoundingClientRect().left) < 2).map(slide => slide.id)"""
CUT = """() => [...document.querySelectorAll("img,svg,figcaption,h1,p,footer")].filter(part => {
  const box = part.getBoundingClientRect(), slide = part.closest("section").getBoundingClientRect();
  return box.top < 0 || box.bottom > innerHeight + 1 || box.left < slide.left - 1
    || box.right > slide.left + innerWidth + 1 || box.height < 10
    || part.scrollHeight > box.height + 2;
}).map(part => part.outerHTML.slice(0, 60))"""
# the frames that a page asks for come by the test's own clock; an observer waits for a true one
DRAWN = "new Promise(done => new IntersectionObserver(done).observe(document.body))"


def after(page, key):
    """The slide that is seen after a key, and the one that the address names."""
    page.evaluate(DRAWN)  # a key pressed before the first drawing may be lost
    page.keyboard.press(key)
    page.evaluate(DRAWN)
    return page.evaluate(SEEN), page.url.partition("#")[2]


KEYS = {"ArrowRight": 2, "ArrowDown": 3, "PageDown": 4, "Space": 5, "Shift+Space": 4, "PageUp": 3}
KEYS |= {"End": 8, "ArrowLeft": 7, "ArrowUp": 6, "Home": 1, "Control+ArrowRight": 1}


def test_keys_a_click_and_an_address_go_to_a_slide(browser, site):
    with projected(browser, site) as page:
        for key, slide in KEYS.items():
            assert after(page, key) == ([str(slide)], str(slide)), key
        for x, slide in ((900, "2"), (900, "3"), (100, "2")):
            page.mouse.click(x, 60)
            assert page.evaluate(SEEN) == [slide]
        after(page, "End")
        page.reload()
        assert page.evaluate(SEEN) == ["8"]
        assert (page.errors, page.outside) == ([], [])


def test_each_slide_is_whole_on_a_screen_and_on_a_phone(browser, site):
    with opened(browser, site.as_uri()) as page:
        for path in pages.CHAPTERS:
            visit(page, f"{site.as_uri()}/teach/{path.stem[:2]}-slides.html")
            assert page.evaluate("[...document.images].every(image => image.naturalWidth)")
            for width, height in ((1280, 720), (390, 844)):
                page.set_viewport_size({"width": width, "height": height})
                assert page.evaluate(CUT) == [], (path.stem, width)
        with styled(page, ":is(img, svg) { height: 90vh; flex-shrink: 0 !important }"):
            assert page.evaluate(CUT)


def test_slides_are_dark_in_the_dark_but_not_on_paper(browser, site):
    """Their figures, too."""
    colours = """[getComputedStyle(document.documentElement).backgroundColor,
      getComputedStyle(document.querySelector("svg text")).fill]"""
    with projected(browser, site) as page:
        light = page.evaluate(colours)
        page.emulate_media(color_scheme="dark")
        page.reload()
        dark = page.evaluate(colours)
        page.emulate_media(media="print")
        assert page.evaluate(colours) == light
    assert light[0] == "rgb(255, 255, 255)"
    assert all(one != other for one, other in zip(light, dark, strict=True))


def sheets_of_paper(page):
    file = page.pdf(prefer_css_page_size=True)
    return len(re.findall(rb"/Type /Page\n", file)), re.search(rb"/MediaBox \[(.*?)\]", file)[1]


def test_slides_are_printed_one_a_page(browser, site):
    with projected(browser, site) as page:
        assert sheets_of_paper(page)[0] == page.locator("section").count() == 8
        with styled(page, "section { height: 80mm !important; break-after: auto !important }"):
            assert sheets_of_paper(page)[0] < 8


def test_the_lines_of_code_on_a_sheet_are_whole(browser, site):
    """They scroll in their box, also on a phone; on paper nobody can scroll."""
    style = "getComputedStyle(document.querySelector('pre')).whiteSpace"
    with opened(browser, site.as_uri()) as page:
        for path in pages.CHAPTERS:
            visit(page, f"{site.as_uri()}/teach/{path.stem[:2]}-exercises.html", 390)
            assert page.evaluate("document.documentElement.scrollWidth") == 390, path.stem
        assert page.evaluate(style) == "pre"
        with styled(page, "pre { overflow: visible !important }"):
            assert page.evaluate("document.documentElement.scrollWidth") > 390
        page.emulate_media(media="print")
        assert page.evaluate(style) == "pre-wrap"


@for_each(("exercises", True), ("solutions", False))
def test_a_sheet_is_printed_on_A4_with_room_to_write_where_one_is_asked(kind, room, browser, site):
    with projected(browser, site, f"04-{kind}.html") as page:
        whole, size = sheets_of_paper(page)
        assert [round(float(x)) for x in size.split()] == [0, 0, 595, 842]
        with styled(page, ".asked { padding: 0 !important }"):
            assert (sheets_of_paper(page)[0] < whole) == room
        assert (page.errors, page.outside) == ([], [])


def test_the_page_has_a_row_for_each_chapter(site):
    text = (site / "book/teach.html").read_text()
    _, *rows = between("<tr", "</tr>", between('<table class="table ', "</table>", text)[0])
    for path, row in zip(pages.CHAPTERS, rows, strict=True):
        number, cells = path.stem[:2], pages.read(path).cells
        taken_along = [f"../teach/{number}-{kind}.html" for kind in teaching.KINDS]
        assert re.findall(r'href="([^"]*)"', row) == [f"{path.stem}.html", *taken_along]
        time = front.needs(cells)[0].replace("minutes", "min")
        assert words(row).startswith(f">{int(number)}. {front.title(cells)}{time}slides")
