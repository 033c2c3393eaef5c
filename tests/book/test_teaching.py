"""Slides and exercise sheets: all that the notebook has, in its order, and each mistake is seen."""

import contextlib
import html
import itertools
import re
from types import SimpleNamespace

import colab
import front
import pages
import teaching
import yaml
from browsing import loaded, opened, styled, visit
from tables import for_each

CITATION = yaml.safe_load((pages.ROOT / "CITATION.cff").read_text())
AUTHOR = CITATION["authors"][0]["name"]
WITH_FIRST = for_each(*pages.CHAPTERS, ids=lambda path: path.stem)


def words(text):
    """What is read of HTML."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", text)).split())


def taken(site, path, what):
    return (site / "teach" / f"{path.stem[:2]}-{what}.html").read_text()


def between(start, end, text):
    return re.findall(f"(?s){start}(.*?){end}", text)


def differing(expected, found, what):
    """Where two lists are not the same."""
    pairs = zip(expected, found, strict=False)
    faults = [f"{what}: {one!r} is {other!r}" for one, other in pairs if one != other]
    counted = f"{what}: {len(expected)} are {len(found)}"
    return faults + [counted] * (len(expected) != len(found))


# ---------------------------------------------------------------- slides


def figures(text):
    """What each figure draws, and what is heard and read of it."""
    found = []
    for figure in between("<figure", "</figure>", text):
        parts = re.findall(r' (?:d|src|alt|aria-label)="(.*?)"', figure)
        read = words(f"<{figure}").removesuffix("#").removesuffix(" Move it")
        found.append((sorted(map(html.unescape, parts)), read.replace(" ", "")))
    return found


def slide_faults(site, path, text):
    """What the slides of a chapter have otherwise than its notebook and its page."""
    notebook = pages.read(path)
    page = (site / "book" / f"{path.stem}.html").read_text()
    first = between("<section ", "</section>", text)[0]
    cells = [cell for cell, _ in pages.figures(notebook)]
    live = [cell.metadata.mystnb.figure.name for cell in cells if "live" in cell.metadata]
    moving = [f"{path.stem}.html#{name}" for name in live]
    under = ["CC BY 4.0", *(cell.metadata.get("licence", "CC BY 4.0") for cell in cells)]
    numbers = [f"{licence} · {at} / {len(under)}" for at, licence in enumerate(under, 1)]
    faults = differing(numbers, [words(one) for one in between("<footer>", "</f", text)], "number")
    faults += differing(moving, re.findall(r'<a href="([^"]*)">Move it', text), "moves")
    pairs = itertools.zip_longest(figures(page), figures(text))
    faults += [f"figure {n} is another" for n, (one, other) in enumerate(pairs, 1) if one != other]
    titled = words(first)
    needed = [front.title(notebook.cells), AUTHOR, CITATION["title"], "CC BY 4.0", "To cite: "]
    needed += [CITATION["version"], str(CITATION["date-released"].year)]
    faults += [f"title slide: no {one}" for one in needed if one not in titled]
    question = words(between('question">', "</p>", first)[0])
    bold = [words(one) for one in between("<strong>", "</strong>", page)]
    if question not in bold or question[-1] != "?":
        faults.append(f"title slide: asks {question}")
    return faults


@WITH_FIRST
def test_each_figure_has_its_slide(path, site):
    text = taken(site, path, "slides")
    assert text.count("<section ") > 4
    assert slide_faults(site, path, text) == []


@for_each(
    ("figure 1 is another", ">cat</text>", ">dog</text>"),
    ("moves: 2 are 1", r" <a [^>]*>Move it</a>", ""),
)
def test_each_mistake_in_slides_is_seen(fault, old, new, site):
    text = re.sub(old, new, taken(site, pages.CHAPTERS[0], "slides"), count=1)
    assert [one for one in slide_faults(site, pages.CHAPTERS[0], text) if fault in one] != []


@contextlib.contextmanager
def projected(browser, site, name="01-slides.html", **options):
    with opened(browser, site.as_uri(), **options) as page:
        visit(page, f"{site.as_uri()}/teach/{name}")
        yield page


SEEN = """() => [...document.querySelectorAll("section")]
  .filter(slide => Math.abs(slide.getBoundingClientRect().left) < 2).map(slide => slide.id)"""
PARTS = "img, svg, figcaption, h1, p, footer"
CUT = (
    f"() => [...document.querySelectorAll({PARTS!r})]"
    """.filter(part => {
  const box = part.getBoundingClientRect();
  const left = part.closest("section").getBoundingClientRect().left;
  return box.top < 0 || box.bottom > innerHeight + 1 || box.left < left - 1
    || box.right > left + innerWidth + 1 || box.height < 10 || part.scrollHeight > box.height + 2;
}).map(part => part.outerHTML.slice(0, 60))"""
)

# drawings that fill neither the width nor the height that there is
NARROW = """() => [...document.querySelectorAll("figure > svg, figure > a > svg")].filter(svg => {
  const {width, height} = svg.getBoundingClientRect();
  const figure = svg.closest("figure").getBoundingClientRect();
  const {width: w, height: h} = svg.viewBox.baseVal, scale = Math.min(width / w, height / h);
  const beside = getComputedStyle(svg.closest("figure")).flexDirection === "row";
  const caption = beside ? 0 : svg.closest("figure").lastElementChild.offsetHeight + 24;
  return scale * w < (beside ? 0.6 : 0.95) * figure.width
    && scale * h < 0.95 * (figure.height - caption);
}).map(svg => svg.outerHTML.slice(0, 60))"""


# the frames that a page asks for come by the test's own clock; an observer waits for a true one
DRAWN = "new Promise(done => new IntersectionObserver(done).observe(document.body))"


def after(page, key):
    """The slide that is seen after a key, and the one that the address names."""
    page.evaluate(DRAWN)  # a key pressed before the first drawing may be lost
    page.keyboard.press(key)
    page.evaluate(DRAWN)
    return page.evaluate(SEEN), page.url.partition("#")[2]


KEYS = {"ArrowRight": 2, "ArrowDown": 3, "PageDown": 4, "Space": 5, "Shift+Space": 4, "PageUp": 3}
KEYS |= {"End": 8, "ArrowLeft": 7, "ArrowUp": 6, "Home": 1}


def test_keys_go_on_and_back(browser, site):
    with projected(browser, site) as page:
        for key, slide in KEYS.items():
            assert after(page, key) == ([str(slide)], str(slide)), key
        assert after(page, "ArrowLeft") == after(page, "Home") == (["1"], "1")
        after(page, "Control+ArrowRight")
        assert page.evaluate(SEEN) == ["1"]
        after(page, "End")
        page.reload()
        assert page.evaluate(SEEN) == ["8"]
        assert (page.errors, page.outside) == ([], [])
    with projected(browser, site, java_script_enabled=False) as page:
        assert page.locator("section").count() == 8
        page.keyboard.press("End")
        assert "#" not in page.url


def test_a_click_a_finger_and_an_address_go_to_a_slide(browser, site):
    with projected(browser, site, "01-slides.html#3", has_touch=True) as page:
        assert page.evaluate(SEEN) == ["3"]
        for x, slide in ((900, "4"), (900, "5"), (100, "4")):
            page.mouse.click(x, 60)
            assert page.evaluate(SEEN) == [slide]
        devtools = page.context.new_cdp_session(page)
        for x in (*range(900, 200, -50), None):
            touch = {"touchStart": [{"x": 900, "y": 300}], "touchMove": [{"x": x, "y": 300}]}
            kind = {900: "touchStart", None: "touchEnd"}.get(x, "touchMove")
            event = {"type": kind, "touchPoints": touch.get(kind, [])}
            devtools.send("Input.dispatchTouchEvent", event)
        page.wait_for_function(f"({SEEN})()[0] === '5'")


def test_each_slide_is_whole_on_every_screen(browser, site):
    with opened(browser, site.as_uri()) as page:
        for path in pages.CHAPTERS:
            visit(page, f"{site.as_uri()}/teach/{path.stem[:2]}-slides.html")
            assert page.evaluate("[...document.images].every(image => image.naturalWidth)")
            for width, height in ((1280, 720), (1920, 1080), (390, 844)):
                page.set_viewport_size({"width": width, "height": height})
                found = [page.evaluate(which) for which in (CUT, NARROW)]
                assert found == [[], []], (path.stem, width)
        for style, which in (
            ("svg { width: 200px }", NARROW),
            (":is(img, svg) { height: 90vh; flex-shrink: 0 !important }", CUT),
        ):
            with styled(page, style):
                assert page.evaluate(which), which


def test_slides_are_dark_in_the_dark_but_not_on_paper(browser, site):
    """Their figures, too, with the colours that they have on the page."""
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    letter = "getComputedStyle(document.querySelector('svg text')).fill"
    with projected(browser, site) as page:
        light = [page.evaluate(part) for part in (ground, letter)]
        page.emulate_media(color_scheme="dark")
        page.reload()
        dark = [page.evaluate(part) for part in (ground, letter)]
        page.emulate_media(media="print")
        assert [page.evaluate(part) for part in (ground, letter)] == light
    assert [ground == "rgb(255, 255, 255)" for ground, _ in (light, dark)] == [True, False]
    with loaded(browser, site, pages.CHAPTERS[0].stem, 1280, "dark") as page:
        page.wait_for_function("document.querySelector('svg text')")
        assert [page.evaluate("getComputedStyle(document.body).backgroundColor"), dark[1]] == [
            dark[0],
            page.evaluate(letter),
        ]


def sheets_of_paper(page):
    file = page.pdf(prefer_css_page_size=True)
    return len(re.findall(rb"/Type /Page\n", file)), re.search(rb"/MediaBox \[(.*?)\]", file)[1]


def test_slides_are_printed_one_a_page(browser, site):
    with projected(browser, site) as page:
        assert sheets_of_paper(page)[0] == page.locator("section").count() == 8
        with styled(page, "section { height: 80mm !important; break-after: auto !important }"):
            assert sheets_of_paper(page)[0] < 8


# ---------------------------------------------------------------- exercises


def sheet_faults(site, path, asked, solved):
    """What the two sheets of a chapter have otherwise than its notebook and its page."""
    page = (site / "book" / f"{path.stem}.html").read_text()
    notebook = pages.read(path)
    tagged = {tag: cell for cell in pages.code_cells(notebook) for tag in pages.tags(cell)}
    faults = [f"handed out: {one}" for one in re.findall(r"Solution \d|-solutions[.]", asked)]
    boxes = between('<div class="exercise.*?title">', "</div>", page)
    expected = [(box.partition("</p>")[0], words(box.partition("</p>")[2])) for box in boxes]
    sections = [one.partition("</h2>") for one in between('asked"><h2>', "</section>", asked)]
    found = [(title, words(re.sub(r"(?s)<pre .*?</pre>", "", box))) for title, _, box in sections]
    faults += differing(expected, found, "exercise")
    for kind, half in (("exercise", asked), ("solution", solved)):
        cells = [cell for tag, cell in tagged.items() if tag.startswith(f"{kind}-")]
        blocks = [html.unescape(block) for block in between(teaching.CODE, "</pre>", half)]
        wanted = [colab.untitled(cell.source).strip() for cell in cells]
        faults += [f"{kind}: no {source}" for source in wanted if source not in blocks]
    given = [cell.source for tag, cell in tagged.items() if tag.startswith("exercise-")]
    given += between("```python\n", "```", "\n".join(cell.source for cell in notebook.cells))
    told = html.unescape("\n".join(between(teaching.CODE, "</pre>", asked))).splitlines()
    known = "\n".join(given).splitlines()
    faults += [f"told too early: {line}" for line in told if line not in known]
    needed = (AUTHOR, "CC BY 4.0", "MIT", html.escape(front.title(notebook.cells)))
    faults += [f"no {one}" for one in needed for half in (asked, solved) if one not in half]
    return faults


@WITH_FIRST
def test_each_exercise_is_on_one_sheet_and_its_solution_on_another(path, site):
    sheets = [taken(site, path, kind) for kind in ("exercises", "solutions")]
    assert sheet_faults(site, path, *sheets) == []


@for_each(
    ("exercise: ('Exercise 1.3'", "from memory", "by heart"),
    ("told too early: query =", "query = ...", "query = [0.0, 8.0]"),
    ("handed out: -solutions", "#exercises", "-solutions.html"),
    (f"no {AUTHOR}", AUTHOR, "Somebody"),
)
def test_each_mistake_on_a_sheet_is_seen(fault, old, new, site):
    sheets = [taken(site, pages.CHAPTERS[0], kind) for kind in ("exercises", "solutions")]
    faults = sheet_faults(site, pages.CHAPTERS[0], *(text.replace(old, new) for text in sheets))
    assert [one for one in faults if fault in one] != [], faults


def test_the_lines_of_code_on_a_sheet_are_whole(browser, site):
    """They scroll in their box, also on a phone; on paper nobody can scroll."""
    broken = """() => [...document.querySelectorAll("pre")].filter(block => {
      const lines = block.textContent.split("\\n").length, style = getComputedStyle(block);
      const text = block.clientHeight - 2 * parseFloat(style.paddingTop);
      return text > (lines + 0.5) * parseFloat(style.lineHeight) || style.overflowX !== "auto";
    }).length"""
    with opened(browser, site.as_uri()) as page:
        for path in pages.CHAPTERS:
            for kind in ("exercises", "solutions"):
                visit(page, f"{site.as_uri()}/teach/{path.stem[:2]}-{kind}.html", 390)
                assert page.evaluate(broken) == 0, (path.stem, kind)
                assert page.evaluate("document.documentElement.scrollWidth") == 390
        with styled(page, "pre { white-space: pre-wrap }"):
            assert page.evaluate(broken) > 0
        page.emulate_media(media="print")
        style = "getComputedStyle(document.querySelector('pre')).whiteSpace"
        assert page.evaluate(style) == "pre-wrap"


def test_a_sheet_is_printed_with_room_to_write(browser, site):
    """Of A4, which solutions do not need."""
    for kind in ("exercises", "solutions"):
        with projected(browser, site, f"04-{kind}.html") as page:
            whole, size = sheets_of_paper(page)
            assert [round(float(x)) for x in size.split()] == [0, 0, 595, 842]
            with styled(page, ".asked { padding: 0 !important }"):
                assert (sheets_of_paper(page)[0] < whole) == (kind == "exercises")
            assert (page.errors, page.outside) == ([], [])


# ---------------------------------------------------------------- the page, and the folder


def test_the_page_has_a_row_for_each_chapter(site):
    text = (site / "book/teach.html").read_text()
    _, *rows = between("<tr", "</tr>", between('<table class="table ', "</table>", text)[0])
    for path, row in zip(pages.CHAPTERS, rows, strict=True):
        links = re.findall(r'href="([^"]*)"', row)
        number = path.stem[:2]
        assert links[0] == f"{path.stem}.html"
        assert links[1:] == [f"../teach/{number}-{kind}.html" for kind in teaching.KINDS]
        assert all((site / "book" / link).is_file() for link in links)
        cells = pages.read(path).cells
        time = front.needs(cells)[0].replace("minutes", "min")
        assert words(row).startswith(f">{int(number)}. {front.title(cells)}{time}slides")


def test_what_an_earlier_build_left_is_no_page(tmp_path):
    """The files are as they were written: nobody put the book's style into them."""
    (tmp_path / "teach").mkdir()
    (tmp_path / "teach" / "99-slides.html").touch()
    for _ in range(2):  # there, and not there
        teaching._forget(SimpleNamespace(outdir=tmp_path))
        assert list(tmp_path.iterdir()) == []


def test_the_files_keep_the_style_of_their_frames(site):
    for frame, kind in zip(("slides", "sheet", "sheet"), teaching.KINDS, strict=True):
        (style,) = between("<style>", "</style>", (teaching.HERE / f"{frame}.html").read_text())
        text = taken(site, pages.CHAPTERS[0], kind)
        assert style in text
        sheets = ["fonts", "dark"] if kind == "slides" else ["fonts"]
        assert re.findall('href="../_static/(.*)[.]css"', text) == sheets
        assert "$" not in re.sub(r"#\.\*\|\$", "", text)
