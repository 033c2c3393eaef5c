"""How the built pages come and what they weigh: fast tests, each of which sees what is planted.

What the text of a page tells, of all of them; in a browser some, all with ``--everything``.
"""

import gzip
import io
import itertools
import random
import re

import checked
import front
import html_fixes
import page_size
import pages
import pytest
import yaml
from browsing import loaded, opened, visit
from PIL import Image, ImageStat

NOTEBOOKS = {f"book/{path.stem}.html": path for path in pages.NOTEBOOKS}
NAMES = [*NOTEBOOKS, *(f"book/{path.stem}.html" for path in pages.TEXTS)]
SOME = ["book/04_scaling.html", "book/06_block.html", "book/attn_lib.functional.html"]
SOME += ["book/how_checked.html", "book/index.html", "search.html", "genindex.html"]
SECOND = 1_600_000 // 8  # bytes, on a slow line
CITATION = yaml.safe_load((pages.ROOT / "CITATION.cff").read_text())

# ---------------------------------------------------------------- what the text of a page tells

# without an address of its own, Jupyter Book's buttons would point at Jupyter Book
LAUNCHING = ["colab.research", "mybinder", "executablebooks/jupyter-book"]
LAUNCHING += ["dropdown-launch-buttons", "dropdown-source-buttons"]
LINE = re.compile(r'(?s)</figure>\s*<div class="under-figure.*?(?=<figure|\Z)')


def wrong(site, name, html) -> dict:
    """What is wrong with a page: of all that it weighs, its order, and what it says of itself."""
    folder = site / "book"
    images = re.findall(r"<img [^>]*>", html)
    own = {re.search(r'src="([^"]*)"', image)[1] for image in images}
    styles = re.findall(r'<link rel="stylesheet" href="([^"?]*)', html)
    faces = re.findall(r'"([^"]+\.woff2)"', html)
    size = {path: (folder / path).stat().st_size for path in [*own, *styles, *faces]}
    sent = [html.encode(), *((folder / path).read_bytes() for path in styles)]
    zipped = sum(len(gzip.compress(text, 6)) for text in sent)
    said = re.sub(r'<span lang="zh">[^<]*</span>', "", html[html.find("<body") :])
    day = checked.checked_on(site.parents[1])
    compared = f"compared</a> on <time>{day.day} {day:%B %Y}</time>.</p>"
    found = {
        "bytes": len(html.encode()) + sum(map(size.get, own)) > 1_000_000,
        "bytes before the first text": html.find("<h1") + sum(map(size.get, styles)) > SECOND,
        "late on a slow line": 0.3 + (zipped + sum(map(size.get, faces))) / SECOND > 2.2,  # seconds
        "waits for a script": re.search(r'<script(?![^>]*\bdefer\b)[^>]* src="', html),
        "no scripts": " defer src=" not in html,
        "other than one stylesheet": len(styles) != 1,
        "pictures that have no size, or come before the text": not all(
            re.search(r' width="\d+" height="\d+" loading="lazy"', image) for image in images
        ),
        "formulas without their font, or the reverse": (
            ("<math " in html) != any("formulas" in face for face in faces)
        ),
        "Chinese that does not say so": re.search("[\u3400-\u9fff]", re.sub("<[^>]*>", "", said)),
        "a button that launches": [word for word in LAUNCHING if word in html],
        "no day of comparison, or one without outputs": (
            html.count(compared) != int(name in NOTEBOOKS)
        ),
        "not whose it is": html.count(front.colophon(CITATION)) != 1,
    }
    if name in NOTEBOOKS:
        found |= around_pictures(html, folder, NOTEBOOKS[name])
    return found


def around_pictures(html, folder, path) -> dict:
    """What is wrong above the first picture, and in the line under each."""
    article = html[html.index("</h1>") : html.index('<p class="colophon"')]
    lines = LINE.findall(article)
    linked = [re.search(r'href="([^"]+)">(SVG|PNG)</a>', line) for line in lines]
    drawn = [cell for cell, _ in pages.figures(pages.read(path))]
    folded = sum("hide-input" in cell.metadata.get("tags", []) for cell in drawn)
    return {
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


def test_each_page_is_light_and_says_what_it_must(site):
    for licence in CITATION["license"]:  # MIT, CC-BY-4.0
        assert licence.replace("CC-BY-", "CC BY ") in front.colophon(CITATION)
    for name in NAMES:
        found = wrong(site, name, (site / name).read_text())
        assert [what for what, is_so in found.items() if is_so] == [], name


def test_what_is_wrong_with_a_page_is_seen(site):
    html = (site / SOME[0]).read_text()
    html = html.replace('<div class="under-figure', '<div class="under', 1)
    for old, new in (
        ("</h1>", '</h1><details></details>mybinder 掩码<img src="../_static/minus.png">'),
        ("<h1", random.Random(0).randbytes(600_000).hex() + "<h1"),  # noqa: S311
        (" defer src=", " src="),
        ("</head>", '<link rel="stylesheet" href="../_static/fonts.css"></head>'),
        ("<math ", "<span "),
        ("compared</a>", "</a>"),
        ("Licence, citation", ""),
        (">code<", "><"),
        ('.svg">SVG', '.svg">PNG'),
        (html_fixes.ABOUT, ""),
    ):
        assert old in html
        html = html.replace(old, new)
    found = wrong(site, SOME[0], html)
    assert [what for what, is_so in found.items() if not is_so] == []


def test_cells_of_wide_tables_know_their_headings():
    def table(n):
        heads, cells = ("".join(f"<{tag}>{i}</{tag}>" for i in range(n)) for tag in ("th", "td"))
        return f'<table class="table"><tr>{heads}</tr><tr>{cells}</tr><tr>{cells}</tr></table>'

    assert html_fixes.fix_text(table(3)) == table(3)
    shown = html_fixes.fix_text(table(4))
    assert shown.count('<td>0</td><td data-head="1">1</td><td data-head="2">2</td>') == 2
    assert 'class="table stacked"' in shown


# ---------------------------------------------------------------- how it comes


def painted(page) -> int:
    """How bright the background is: the median of what is on the screen."""
    return ImageStat.Stat(Image.open(io.BytesIO(page.screenshot())).convert("L")).median[0]


@pytest.mark.parametrize(
    ("system", "stored", "dark"),
    [("dark", "", True), ("light", "dark", True), ("dark", "light", False)],
)
def test_the_first_thing_painted_has_the_colours_of_the_reader(browser, site, system, stored, dark):
    """Before any script of the theme runs, or there is a white flash in the dark."""
    with opened(browser, site.as_uri(), color_scheme=system) as page:
        page.route("**/*.js*", lambda call: call.abort())
        if stored:
            page.add_init_script(f"localStorage.setItem('mode', '{stored}')")
        page.goto(f"{site.as_uri()}/{SOME[3]}")
        assert (painted(page) < 40) == dark
        mode = page.evaluate("document.documentElement.dataset.mode")
        assert mode == (stored or "auto")
        page.evaluate("document.documentElement.dataset.theme = ''")  # as the theme leaves it
        assert painted(page) > 200


def test_the_contents_of_a_page_close_when_an_entry_is_chosen(browser, site):
    with loaded(browser, site, "how_checked", 390) as page:
        for entry in (1, 3):
            page.click("button.secondary-toggle")
            link = page.locator("#pst-secondary-sidebar-modal nav a").nth(entry)
            heading = page.locator(link.get_attribute("href")).locator("h2").first
            link.click()
            assert not page.locator("dialog[open]").count()
            assert 0 <= heading.bounding_box()["y"] < 300


MOVED = """new PerformanceObserver(list => list.getEntries().forEach(
  ({value}) => { window.moved = (window.moved || 0) + value; })).observe({type: "layout-shift"})"""
PAINTED = "() => new Promise(go => requestAnimationFrame(() => requestAnimationFrame(() => go())))"


def moved(browser, own, name, width) -> float:
    """How far a page moves while it is loaded, with its typeface as soon as it can be there."""
    viewport = {"width": width, "height": 844}
    with opened(browser, own, viewport=viewport) as page:
        page.add_init_script(MOVED)
        page.goto(f"{own}/{name}")
        page.evaluate("document.fonts.ready.then(() => 0)")
        for _ in range(3):
            page.evaluate(PAINTED)
        return page.evaluate("window.moved || 0")


def test_no_page_moves_while_it_is_loaded(browser, site, served, everything):
    """In a browser that has none of its files; pages take turns with disk and server, and screens.

    The typeface of a page that is planted comes whenever it comes: after the text, at last.
    """
    ways = [*itertools.product((site.as_uri(), served), (390, 1280))]
    for n, name in enumerate({*NAMES, *SOME} if everything else SOME):
        for own, width in ways if everything else [ways[n % len(ways)]]:
            assert moved(browser, own, name, width) < 0.05, (name, own, width)
    shown = (site / SOME[3]).read_text()
    for old, new in (("fonts.load(face)", "0"), ("root.style.setProperty(", "void (")):
        assert shown.count(old) == 1
        shown = shown.replace(old, new)
    (site / "book/unheld.html").write_text(shown)
    again = (moved(browser, site.as_uri(), "book/unheld.html", 390) for _ in range(12))
    assert any(far > 0.06 for far in again)  # from disk, a typeface may come before the text


def soon(browser, own, name) -> bool:
    """Whether text is seen after 1.2 s, without a script or a typeface; its clock is turned."""
    held = []
    with opened(browser, own, viewport={"width": 390, "height": 844}) as page:
        page.route("**/*.js*", lambda call: call.fulfill(body=""))
        page.route("**/*.woff2", lambda call: held.append(call))
        page.clock.pause_at("2100-01-01")
        page.goto(f"{own}/{name}", wait_until="domcontentloaded")
        page.clock.run_for(1200)
        shown = page.evaluate("getComputedStyle(document.body).opacity")
        for call in held:
            call.abort()
    assert held
    return shown == "1"


def test_text_does_not_wait_for_a_slow_typeface(browser, site, served):
    assert soon(browser, served, SOME[0])
    late = (site / SOME[0]).read_text().replace("700) - performance.now()", "3000)")
    (site / "book/late.html").write_text(late)
    assert not soon(browser, served, "book/late.html")


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


def test_no_rule_of_the_theme_is_missed(browser, site):
    static = site / "_static"
    found = [next(static.glob(name)).as_uri() for name in LINKED.split()]
    with opened(browser, site.as_uri()) as page:
        for name in (SOME[0], "search.html"):
            assert looks(page, site, name) == looks(page, site, name, *found)
        less = static / "less.css"
        whole = (static / "styles" / page_size.ONE).read_text()
        less.write_text(page_size.lean(whole, {"bd-article"}))
        assert looks(page, site, "search.html") != looks(page, site, "search.html", less.as_uri())
