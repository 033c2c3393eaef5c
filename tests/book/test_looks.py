"""How the built pages look and what they weigh: fast tests, each of which sees what is planted.

Three pages in a browser, all with ``--everything``; what the text of a page tells, of all of them.
"""

import gzip
import io
import itertools
import re
from hashlib import sha256

import checked
import front
import html_fixes
import page_size
import pages
import pytest
import yaml
from browsing import loaded, opened, set_scheme, styled, visit
from PIL import Image, ImageStat

NAMES = [f"book/{path.stem}.html" for path in pages.NOTEBOOKS + pages.TEXTS]
SOME = ["book/04_scaling.html", "book/notation.html", "book/five_posts.html"]
SOME += ["book/attn_check.html"]
SECOND = 1_600_000 // 8  # bytes, on a slow line
# what cannot be zipped: a second of the line
NOISE = "".join(sha256(str(n).encode()).hexdigest() for n in range(SECOND // 32))
SIZE = r' width="\d+" height="\d'  # of a picture


def chosen(request) -> list[str]:
    return NAMES if request.config.getoption("--everything") else SOME


# ---------------------------------------------------------------- what fits

# blocks that are cut, whatever folds them; names of code that are broken; orphaned punctuation
CUT = """phone => {
  document.querySelectorAll("article details").forEach(folded => { folded.open = true; });
  const all = which => [...document.querySelectorAll(`article ${which}`)];
  const part = (text, from, to) => {
    const range = document.createRange();
    range.setStart(text, from);
    range.setEnd(text, to);
    return range;
  };
  const lines = text => {
    const boxes = part(text, 0, text.length).getClientRects();
    return new Set([...boxes].map(box => Math.round(box.top))).size;
  };
  const letters = () => {  // in a line of text, on the average of the long paragraphs
    const long = all("section > p").filter(p => p.innerText.length > 300);
    const rows = long.map(p => p.offsetHeight / parseFloat(getComputedStyle(p).lineHeight));
    const sum = numbers => numbers.reduce((a, b) => a + b, 0);
    return long.length ? Math.round(sum(long.map(p => p.innerText.length)) / sum(rows)) : 70;
  };
  const drawn = image => {
    const style = getComputedStyle(image);
    return image.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  };
  const orphaned = formula => {
    const {previousSibling: last, nextSibling: next} = formula.closest("span.math");
    const box = formula.getBoundingClientRect(), text = node => node && node.nodeType === 3;
    const at = (node, i) => part(node, i, i + 1).getBoundingClientRect();
    if (text(last) && last.data.endsWith("(") && at(last, last.length - 1).bottom < box.top)
      return true;
    return text(next) && /^[.,;:!?)]/.test(next.data) && at(next, 0).top > box.bottom;
  };
  const blocks = all("pre").filter(block => block.clientWidth);
  return {
    cut: blocks.filter(block => block.scrollWidth > block.clientWidth + 1)
      .filter(block => getComputedStyle(block).overflowX !== "auto")
      .map(block => block.innerText.slice(0, 60)),
    wrapped: blocks.filter(block => getComputedStyle(block).whiteSpace !== "pre")
      .filter(block => !block.closest(".output, .front-check")).length,
    unsaid: all(".output pre")
      .filter(block => block.scrollWidth > block.clientWidth).length,
    sizes: [...new Set(blocks.map(block => getComputedStyle(block).fontSize))]
      .filter(size => size !== "13px"),
    letters: innerWidth > 600 && (letters() < 60 || letters() > 77),
    broken: all("table code .pre").filter(name => lines(name.firstChild) > 1)
      .map(name => name.textContent),
    orphans: all("math:not([display])").filter(orphaned).length,
    unseen: all(".printed-table, .pst-scrollable-table-container")
      .filter(box => box.scrollWidth > box.clientWidth + 1).length,
    unheaded: innerWidth > 600 ? 0 : all(".stacked td[data-head]").filter(cell => {
      const head = getComputedStyle(cell, "::before");
      return cell.offsetWidth && (head.display === "none" || head.visibility === "hidden"
        || head.content.replace(/^"|"$/g, "").trim() !== cell.dataset.head);
    }).length,
    narrow: all("figure:not(.front-figure) :is(img, .drawn svg)").filter(image => innerWidth < 600)
      .filter(image => image.clientWidth && drawn(image) < Math.min(phone,
        parseFloat(image.style.width || image.getAttribute("width"))))
      .map(image => image.closest("figure").id),
    edged: all("figure .drawn svg text").filter(text => {
      const box = text.getBoundingClientRect();
      return innerWidth < 600 && box.width && (box.left < 3 || box.right > innerWidth - 3);
    }).map(text => text.textContent),
  };
}"""
UNFIT = {
    "cut": ".bd-article pre.pre, .bd-article pre { overflow-x: hidden !important }",
    "wrapped": ".bd-article pre { white-space: pre-wrap !important }",
    "unsaid": ".bd-article .cell[class] .output pre { white-space: pre !important }",
    "sizes": ".bd-article .cell_output pre { font-size: 12px !important }",
    "letters": ".bd-article p { max-width: none !important; font-size: 13px !important }",
    "broken": ".bd-article table code .pre.pre { white-space: normal !important;"
    "word-break: break-all !important } .bd-article table { width: 80px !important;"
    "table-layout: fixed }",
    "orphans": "span.math { margin-right: 90vw !important }"
    ".together { white-space: normal !important }",
    "unseen": ".bd-article .pst-scrollable-table-container[class] td { padding: 6rem !important }",
    "unheaded": ".bd-article .stacked td[data-head]::before { content: none !important }",
    "narrow": "figure > .drawn.drawn { margin-inline: 0 !important; width: auto !important }",
    "edged": ".drawn.drawn { translate: -9px }",
}


def test_what_matters_fits(browser, site, everything):
    """Code and outputs have one size, are never broken, and scroll inside their box.

    What an exercise says is a sentence, and is broken as such. Lines of text are read with ease,
    and a figure has the width with which `pages.figures_legible` reckons.
    """
    seen = dict.fromkeys(UNFIT, False)
    with opened(browser, site.as_uri()) as page:
        for name in NAMES if everything else SOME:
            visit(page, f"{site.as_uri()}/{name}")
            for width in (390, 1280):
                page.set_viewport_size({"width": width, "height": 900})
                assert unfit(page) == [], (name, width)
                for what in [what for what in UNFIT if not seen[what]]:
                    with styled(page, UNFIT[what]):
                        seen[what] = what in unfit(page)
    assert all(seen.values()), seen  # each mistake was seen on some page


def unfit(page) -> list[str]:
    """What does not fit, as the page is shown now."""
    found = page.evaluate(CUT, pages.PHONE)
    return [what for what, faults in found.items() if faults]


def shaded(page, box) -> list[bool]:
    """Whether the left and the right edge of a box differ from its middle, where nothing stands."""
    box.scroll_into_view_if_needed()
    at = box.bounding_box()
    border = box.evaluate("box => box.clientLeft")
    clip = {"x": at["x"] + border, "y": at["y"] + 2, "width": at["width"] - border - 1, "height": 1}
    line = Image.open(io.BytesIO(page.screenshot(clip=clip))).convert("L")
    left, middle, right = (line.getpixel((x, 0)) for x in (1, line.width // 2, line.width - 2))
    return [abs(left - middle) > 20, abs(right - middle) > 20]


def test_a_box_shows_where_it_goes_on(browser, site):
    """At the end that is out of sight, and there alone."""
    with loaded(browser, site, "04_scaling", 390) as page:
        found = page.locator("article > section .cell_input pre:visible").all()
        wide = [box for box in found if box.evaluate("b => b.scrollWidth > b.clientWidth + 60")]
        narrow = [box for box in found if box.evaluate("b => b.scrollWidth <= b.clientWidth")]
        places = (wide[0], 0), (wide[0], 30), (wide[0], 9999), (narrow[-1], 0)

        def edges():
            for box, x in places:
                box.evaluate("(box, x) => box.scrollTo(x, 0)", x)
                yield shaded(page, box)

        for scheme in ("light", "dark"):
            set_scheme(page, scheme)
            assert [*edges()] == [[False, True], [True, True], [True, False], [False, False]]
        with styled(page, "article pre:not(#_) { background-image: none !important }"):
            assert [*edges()] == 4 * [[False, False]]


def test_the_contents_of_a_page_close_when_an_entry_is_chosen(browser, site):
    with loaded(browser, site, "05_positions", 390) as page:
        for entry in (2, 4):
            page.click("button.secondary-toggle")
            link = page.locator("#pst-secondary-sidebar-modal nav a").nth(entry)
            heading = page.locator(link.get_attribute("href")).locator("h2, h3").first
            link.click()
            assert not page.locator("dialog[open]").count()
            assert 0 <= heading.bounding_box()["y"] < 300


# ---------------------------------------------------------------- around the pictures

NOTEBOOKS = [f"book/{path.stem}.html" for path in pages.NOTEBOOKS]
LINE = re.compile(r'(?s)</figure>\s*<div class="under-figure.*?(?=<figure|\Z)')


def framed(html: str, folder, folded: int) -> list[str]:
    """What is wrong around the pictures of a page: above the first, and in the line under each."""
    article = html[html.index("</h1>") : html.index('<p class="colophon"')]
    lines = LINE.findall(article)
    linked = [re.search(r'href="([^"]+)">(SVG|PNG)</a>', line) for line in lines]
    found = {
        "something before the picture": re.search(
            'cell_input|<details|class="under', article.partition("<figure")[0]
        ),
        "a figure without its line": len(lines) != article.count("<figure"),
        "no set-up under the first": ">set-up<" not in "".join(lines[:1]),
        "code that is not there": article.count(">code<") != 2 * folded,
        "a picture that is not there": not all(
            link and link[1].endswith(link[2].lower()) and (folder / link[1]).is_file()
            for link in linked
        ),
        "no licence, or no citation": any(line.count(html_fixes.ABOUT) != 2 for line in lines),
    }
    return [what for what, wrong in found.items() if wrong]


def with_folded_code(path) -> int:
    """How many figures of a page have their code folded."""
    cells = pages.code_cells(pages.read(path))
    drawn = [cell for cell in cells if "figure" in cell.metadata.get("mystnb", {})]
    return sum("hide-input" in cell.metadata.get("tags", []) for cell in drawn)


def test_nothing_stands_before_the_picture_and_a_line_under_each(site):
    found = {
        path.stem: framed(
            (site / f"book/{path.stem}.html").read_text(), site / "book", with_folded_code(path)
        )
        for path in pages.NOTEBOOKS
    }
    assert {name: faults for name, faults in found.items() if faults} == {}
    assert 'id="about-this-book"' in (site / "book/index.html").read_text()


def test_what_is_wrong_around_a_picture_is_seen(site):
    html = (site / SOME[0]).read_text()
    for old, new in (
        ("</h1>", "</h1><details></details>"),
        (">code<", "><"),
        ('.svg">SVG', '.svg">PNG'),
        (html_fixes.ABOUT, ""),
    ):
        assert old in html
        html = html.replace(old, new)
    html = html.replace('<div class="under-figure', '<div class="under', 1)
    assert len(framed(html, site / "book", 1)) == 6


def test_a_page_says_when_its_outputs_were_compared(site):
    """The day on which that was recorded; a page without outputs says nothing."""
    day = checked.checked_on(site.parents[1])
    line = f"compared</a> on <time>{day.day} {day:%B %Y}</time>.</p>"
    said = {name: (site / name).read_text().count(line) for name in NAMES}
    assert said == {name: int(name in NOTEBOOKS) for name in NAMES}
    assert line not in html_fixes._checked("<h1>A</h1>", None)
    assert line in html_fixes._checked("<h1>A</h1>", day)


def test_each_page_ends_with_whose_it_is_and_under_which_licence(site):
    citation = yaml.safe_load((pages.ROOT / "CITATION.cff").read_text())
    said = front.colophon(citation)
    assert [citation[name] in said for name in ("title", "version")] == [True, True]
    for licence in citation["license"]:  # MIT, CC-BY-4.0
        assert licence.replace("CC-BY-", "CC BY ") in said
    assert {name: (site / name).read_text().count(said) for name in NAMES} == dict.fromkeys(
        NAMES, 1
    )
    assert said != front.colophon({**citation, "version": "0.0"})


def test_cells_of_wide_tables_know_their_headings():
    def table(n):
        heads, cells = ("".join(f"<{tag}>{i}</{tag}>" for i in range(n)) for tag in ("th", "td"))
        return f'<table class="table"><tr>{heads}</tr><tr>{cells}</tr><tr>{cells}</tr></table>'

    assert html_fixes.fix_text(table(3)) == table(3)
    shown = html_fixes.fix_text(table(4))
    assert shown.count('<td>0</td><td data-head="1">1</td><td data-head="2">2</td>') == 2
    assert 'class="table stacked"' in shown


# ---------------------------------------------------------------- what is said


def unsaid(html: str) -> list[str]:
    """Chinese words in the text of a page that do not say so."""
    said = re.sub(r'<span lang="zh">[^<]*</span>', "", html[html.find("<body") :])
    return re.findall("[\u3400-\u9fff]+", re.sub(r"<[^>]*>", " ", said))


def test_chinese_words_say_so(site):
    assert [name for name in NAMES if unsaid((site / name).read_text())] == []
    assert (site / "book/notation.html").read_text().count('lang="zh"') > 40
    assert unsaid("<body><p>a mask, 掩码</p>") == ["掩码"]


def painted(page) -> int:
    """How bright the background is: the median of what is on the screen."""
    return ImageStat.Stat(Image.open(io.BytesIO(page.screenshot())).convert("L")).median[0]


@pytest.mark.parametrize(
    ("system", "stored", "dark"),
    [("dark", "", True), ("light", "", False), ("light", "dark", True), ("dark", "light", False)],
)
def test_the_first_thing_painted_has_the_colours_of_the_reader(browser, site, system, stored, dark):
    """Before any script of the theme runs, or there is a white flash in the dark."""
    with opened(browser, site.as_uri(), color_scheme=system) as page:
        page.route("**/*.js*", lambda call: call.abort())
        if stored:
            page.add_init_script(f"localStorage.setItem('mode', '{stored}')")
        page.goto(f"{site.as_uri()}/{SOME[0]}")
        assert (painted(page) < 40) == dark
        mode = page.evaluate("document.documentElement.dataset.mode")
        assert mode == (stored or "auto")
        page.evaluate("document.documentElement.dataset.theme = ''")  # as the theme leaves it
        assert painted(page) > 200


# ---------------------------------------------------------------- what a page weighs

MOVED = """new PerformanceObserver(list => list.getEntries().forEach(
  ({value}) => { window.moved = (window.moved || 0) + value; })).observe({type: "layout-shift"})"""
PAINTED = "() => new Promise(go => requestAnimationFrame(() => requestAnimationFrame(() => go())))"
# of a page that waits for nothing, and whose typeface comes whenever it comes
UNHELD = ("fonts.load(face)", "0")
SWAPPED = ("root.style.setProperty(", "void (")
MOVABLE = ["book/how_checked.html", "book/06_block.html", "book/attn_lib.functional.html"]


def moved(page, address, width) -> float:
    """How far a page moves while it is loaded, with its typeface as soon as it can be there."""
    page.set_viewport_size({"width": width, "height": 844})
    page.goto(address)
    page.evaluate("document.fonts.ready.then(() => 0)")
    for _ in range(3):
        page.evaluate(PAINTED)
    return page.evaluate("window.moved || 0")


def test_no_page_moves_while_it_is_loaded(browser, site, served, request, everything):
    """In a browser that has none of its files.

    On every change pages take turns with disk and server, and with two screens.
    """
    ways = [*itertools.product((site.as_uri(), served), (390, 1280))]
    names = {*chosen(request), *MOVABLE, "book/index.html", "search.html", "genindex.html"}
    for n, name in enumerate(sorted(names)):
        for own, width in ways if everything else [ways[n % len(ways)]]:
            with opened(browser, own) as page:
                page.add_init_script(MOVED)
                assert moved(page, f"{own}/{name}", width) < 0.05, (name, own, width)


def test_a_page_that_moves_is_seen_to_move(browser, site):
    shown = (site / MOVABLE[0]).read_text()
    for old, new in (UNHELD, SWAPPED):
        assert shown.count(old) == 1
        shown = shown.replace(old, new)
    (site / "book/unheld.html").write_text(shown)
    for _ in range(12):  # from disk, the typeface sometimes comes before the text is painted
        with opened(browser, site.as_uri()) as page:
            page.add_init_script(MOVED)
            if moved(page, f"{site.as_uri()}/book/unheld.html", 390) > 0.06:
                break
    else:
        pytest.fail("a page that moves is not seen to move")


LATE_FACE = ("700) - performance.now()", "3000) - performance.now()")


def soon(browser, own, site, name) -> bool:
    """Whether text comes in 1.2 s and formulas in 2.2 s, at 1.6 Mbit/s with a delay of 150 ms.

    Counted, not timed, as a busy machine is slow too: a delay each for the page and for what it
    names at its head, and their bytes. Scripts come empty, pictures and typefaces never, and the
    page's clock stands until it is turned by hand.
    """
    asked, held = [], []
    with opened(browser, own, viewport={"width": 390, "height": 844}) as page:

        def answer(call):
            asked.append(call.request.url.removeprefix(f"{own}/").split("?")[0])
            if asked[-1].endswith((".html", ".css")):
                call.continue_()
            elif asked[-1].endswith(".js"):
                call.fulfill(body="")
            else:
                held.append(call)

        page.route(f"{own}/**", answer)
        page.clock.pause_at("2100-01-01")
        page.goto(f"{own}/{name}", wait_until="domcontentloaded")
        page.clock.run_for(1200)
        shown = page.evaluate("getComputedStyle(document.body).opacity") == "1"
        for call in held:
            call.abort()
    html = (site / name).read_bytes()
    styles = [(site / path).read_bytes() for path in asked if path.endswith(".css")]
    faces = [(site / path).stat().st_size for path in asked if path.endswith(".woff2")]
    first, whole = (
        0.3 + sum(len(gzip.compress(text)) for text in [part, *styles]) / SECOND
        for part in (html[: html.find(b"<h1")], html)
    )
    return shown and first <= 1.2 and whole + sum(faces) / SECOND <= 2.2


def test_text_and_formulas_come_soon_on_a_slow_line(browser, site, served, request):
    assert [name for name in chosen(request) if not soon(browser, served, site, name)] == []
    shown = (site / SOME[0]).read_text()
    late = {
        "face": LATE_FACE,
        "text": ("<body", f"<!--{NOISE}--><body"),
        "formulas": ("</body>", f"<!--{NOISE}--></body>"),
    }
    for what, (old, new) in late.items():
        assert old in shown
        (site / f"book/late_{what}.html").write_text(shown.replace(old, new))
        assert not soon(browser, served, site, f"book/late_{what}.html"), what


def heavy(html: str, folder) -> list[str]:
    """What makes a page slow: bytes of its own, or before its first text; what is not reserved."""
    images = re.findall(r"<img [^>]*>", html)
    own = {re.search(r'src="([^"]*)"', image)[1] for image in images}
    size = len(html.encode()) + sum((folder / name).stat().st_size for name in own)
    scripts = re.findall(r"<script([^>]*) src=", html.replace(' defer src="', ' src="'))
    waiting = re.findall(r'<script(?![^>]*\bdefer\b)[^>]* src="([^"]*)"', html)
    styles = re.findall(r'<link rel="stylesheet" href="([^"?]*)', html)
    first = html.find("<h1") + sum((folder / name).stat().st_size for name in styles)
    math, linked = html.count("<math "), html.count("formulas.woff2")
    found = {
        f"{size} bytes": size > 1_000_000,
        f"{first} bytes before the first text": first > SECOND,
        f"waits for {waiting}": waiting,
        "pictures without a size": not all(map(re.compile(SIZE).search, images)),
        "pictures that come before the text": [i for i in images if ' loading="lazy"' not in i],
        "formulas without their font, or the reverse": linked != bool(math),
        "links of stylesheets": len(styles) != 1,
        "no scripts": not scripts,
    }
    return [what for what, wrong in found.items() if wrong]


def test_pages_are_light(site):
    found = {name: heavy((site / name).read_text(), site / "book") for name in NAMES}
    assert {name: why for name, why in found.items() if why} == {}


def test_what_makes_a_page_heavy_is_seen(site):
    html = (site / "book/15_vision.html").read_text()
    for old, new in (
        ("</h1>", '</h1><img src="../_static/minus.png">'),
        (" defer src=", " src="),
        ("formulas.woff2", "lost.woff2"),
        ("</body>", "x" * 1_000_000 + "</body>"),
        ("<h1", "x" * 200_000 + "<h1"),
    ):
        assert old in html
        html = html.replace(old, new)
    assert len(heavy(html, site / "book")) == 6


LINKED = "styles/theme.css styles/pydata-sphinx-theme.css pygments.css "
LINKED += "styles/sphinx-book-theme.css togglebutton.css copybutton.css mystnb.*.css "
LINKED += "sphinx-design.min.css fonts.css book.css dark.css live.css"
# how the first element of each kind looks, its icon included
LOOK = """() => {
  const kinds = new Map();
  document.querySelectorAll("body *").forEach(e => {
    const kind = `${e.tagName} ${e.getAttribute("class")} ${e.parentElement.className}`;
    if (!kinds.has(kind)) kinds.set(kind, e);
  });
  return [...kinds].map(([kind, e]) => {
    const s = getComputedStyle(e), icon = getComputedStyle(e, "::before");
    const box = e.getBoundingClientRect();
    return [kind, s.color, s.backgroundColor, s.font, s.display, s.opacity, s.borderLeft,
      icon.content, icon.fontFamily, box.width, box.height].join(" | ");
  });
}"""


# others where it was: behind the page's own they would overrule it
INSTEAD = """styles => {
  const own = document.querySelector("link[rel=stylesheet]");
  const loaded = styles.map(href => new Promise(done => {
    const link = Object.assign(document.createElement("link"), {rel: "stylesheet", href});
    link.onload = done;
    own.before(link);
  }));
  own.remove();
  return Promise.all(loaded).then(() => 0);
}"""


def looks(page, site, name, *styles):
    """What a page shows with its own stylesheet, or with others in its place."""
    visit(page, f"{site.as_uri()}/{name}", scheme="dark")
    if styles:
        page.evaluate(INSTEAD, styles)
    page.add_style_tag(content="* { transition: none !important; }")  # or a colour is on its way
    page.evaluate("document.fonts.ready.then(() => 0)")
    return page.evaluate(LOOK)


def test_no_rule_of_the_theme_is_missed(browser, site, request):
    static = site / "_static"
    found = [next(static.glob(name)).as_uri() for name in LINKED.split()]
    with opened(browser, site.as_uri()) as page:
        for name in [*chosen(request)[:1], "search.html"]:
            assert looks(page, site, name) == looks(page, site, name, *found)
        less = static / "less.css"
        whole = (static / "styles" / page_size.ONE).read_text()
        less.write_text(page_size.lean(whole, {"bd-article"}))
        assert looks(page, site, "search.html") != looks(page, site, "search.html", less.as_uri())
