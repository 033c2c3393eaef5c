"""How the built pages look and what they weigh: fast tests, each of which sees what is planted.

Three pages in a browser, all with ``--everything``; what the text of a page tells, of all of them.
"""

import colorsys
import re

import html_fixes
import page_size
import pages
import pytest
from browsing import loaded, luminance, opened, styled, visit
from tables import for_each

from attn_lib import plotting

NAMES = [f"book/{path.stem}.html" for path in pages.NOTEBOOKS + pages.TEXTS]
SOME = ["book/04_scaling.html", "book/notation.html", "book/five_posts.html"]
SECOND = 1_600_000 // 8  # bytes, on a slow line
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
  const lines = name => {
    const boxes = part(name.firstChild, 0, name.textContent.length).getClientRects();
    return new Set([...boxes].map(box => Math.round(box.top))).size;
  };
  const drawn = image => {
    const style = getComputedStyle(image);
    return image.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  };
  const orphaned = formula => {
    const next = formula.closest("span.math").nextSibling;
    if (!next || next.nodeType !== 3 || !/^[.,;:!?)]/.test(next.data)) return false;
    return part(next, 0, 1).getBoundingClientRect().top > formula.getBoundingClientRect().bottom;
  };
  const blocks = all("pre").filter(block => block.clientWidth);
  return {
    cut: blocks.filter(block => block.scrollWidth > block.clientWidth + 1)
      .filter(block => innerWidth > 600 || !block.matches(".table"))
      .map(block => block.innerText.slice(0, 60)),
    small: blocks.filter(block => parseFloat(getComputedStyle(block).fontSize) < 9.4).length,
    broken: all("table code .pre").filter(name => lines(name) > 1).map(name => name.textContent),
    orphans: all("math:not([display])").filter(orphaned).length,
    narrow: all("figure img").filter(image => innerWidth < 600 && image.clientWidth)
      .filter(image => drawn(image) < Math.min(phone, parseFloat(image.style.width) || phone))
      .map(image => image.closest("figure").id),
  };
}"""
FITS = {"cut": [], "small": 0, "broken": [], "orphans": 0, "narrow": []}
UNFIT = {
    "cut": "pre.lines { white-space: pre !important; font-size: 14px !important }",
    "small": "pre.lines { font-size: 9px !important }",
    "broken": ".bd-article table code .pre.pre { white-space: normal !important;"
    "word-break: break-all !important } .bd-article table { width: 80px !important;"
    "table-layout: fixed }",
    "orphans": "span.math { margin-right: 90vw !important }"
    ".together { white-space: normal !important }",
    "narrow": ".cell_output figure > a { margin-inline: 0 !important }",
}


def test_what_matters_fits(browser, site, request):
    """On a phone only a table of columns may scroll, inside its box; on a wide screen nothing.

    And a figure has the width with which `pages.figures_legible` reckons, in the dark too.
    """
    seen = dict.fromkeys(UNFIT, False)
    with opened(browser, site.as_uri()) as page:
        for name in chosen(request):
            visit(page, f"{site.as_uri()}/{name}", 390, "dark")
            assert page.evaluate(CUT, pages.PHONE) == FITS, name
            page.set_viewport_size({"width": 1280, "height": 900})
            assert page.evaluate(CUT, pages.PHONE) == FITS, name
            page.set_viewport_size({"width": 390, "height": 900})
            for what, style in UNFIT.items():
                with styled(page, style):
                    seen[what] |= bool(page.evaluate(CUT, pages.PHONE)[what])
    assert all(seen.values()), seen  # each mistake was seen on some page


MARKS = """pre => [...pre.querySelectorAll(".line")].map(line =>
  [line.offsetHeight, parseFloat(getComputedStyle(line, "::before").height)])"""


def test_a_line_that_is_continued_has_a_mark_and_is_copied_whole(browser, site):
    path = next(path for path in pages.NOTEBOOKS if path.stem == "02_masks")
    source = next(c.source for c in pages.code_cells(pages.read(path)) if "class Tiny" in c.source)
    with loaded(browser, site, "02_masks", 390) as page:
        block = page.locator("pre.lines", has_text="class TinyLM").first
        assert block.evaluate("pre => pre.textContent") == f"{source}\n"
        heights, marks = zip(*block.evaluate(MARKS), strict=True)
        rows = [round(height / min(heights)) for height in heights]
        assert max(rows) > 1
        assert [round(mark / min(heights)) for mark in marks] == [row - 1 for row in rows]


# ---------------------------------------------------------------- what is marked

MARKED = rf"\bassert\b|\b({'|'.join(pages.COMPARING)}|exercises\.check)\("


@pytest.mark.parametrize("path", pages.NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_compared_is_marked(site, path):
    cells = [
        re.search(MARKED, cell.source) is not None
        for cell in pages.code_cells(pages.read(path))
        if cell.outputs and not re.search(r"(?m)^\w+ = \.\.\.", cell.source)
    ]
    assert 0 < sum(cells) < len(cells)
    assert (site / f"book/{path.stem}.html").read_text().count('class="compared"') == sum(cells)


@for_each(
    ("print(torch.equal(a, b))", True),
    ("assert (a == b).all()", True),
    ('exercises.check("2.1", answer)', True),
    ('answer = ...  # a mask\nexercises.check("2.1", answer)', False),
    ("weights[..., 0]\nprint(weights)", False),
    ("equal = a + b\nprint('assert')", False),
    ("try:\n    %pip install x\nfinally:\n    pass", False),
)
def test_a_mark_can_be_absent(source, marked):
    assert html_fixes.compares(source) == marked


def unsaid(html: str) -> list[str]:
    """Chinese words in the text of a page that do not say so."""
    said = re.sub(r'<span lang="zh">[^<]*</span>', "", html[html.find("<body") :])
    return re.findall("[\u3400-\u9fff]+", re.sub(r"<[^>]*>", " ", said))


def test_chinese_words_say_so(site):
    assert [name for name in NAMES if unsaid((site / name).read_text())] == []
    assert (site / "book/notation.html").read_text().count('lang="zh"') > 40
    assert unsaid("<body><p>a mask, 掩码</p>") == ["掩码"]


# the parts that must differ at a glance, as a reader sees them
SEEN = """which => { const e = document.querySelector(`article ${which}`), s = getComputedStyle(e);
  return [s.backgroundColor, s.borderTopStyle, s.borderTopColor, s.borderLeftColor].join(); }"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_parts_differ_at_a_glance(browser, site, scheme):
    with loaded(browser, site, "04_scaling", 1280, scheme) as page:
        boxes = ["div.exercise", "div.proof", "div.paper", "div.note"]
        for kinds in (boxes, ["div.cell_input", "div.cell_output pre"]):
            kinds = [kind for kind in kinds if page.locator(f"article {kind}").count()]
            seen = [page.evaluate(SEEN, kind) for kind in kinds]
            assert len(kinds) > 1
            assert len(set(seen)) == len(kinds), seen
        page.evaluate("document.querySelector('link[rel=stylesheet]').remove()")
        assert page.evaluate(SEEN, "div.exercise") == page.evaluate(SEEN, "div.cell_input")


# the pictures of a page: whether light and dark change places, and the words below
PICTURES = """() => [...document.querySelectorAll("article figure[id]")].map(figure => [figure.id,
  /invert/.test(getComputedStyle(figure.querySelector("img")).filter),
  figure.querySelector("figcaption").textContent])"""
# what the filter of the pictures makes of colours
FILTERED = """colours => {
  const pen = document.createElement("canvas").getContext("2d");
  pen.filter = getComputedStyle(document.querySelector("article figure img")).filter;
  return colours.map(colour => {
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 9, 9);
    return [...pen.getImageData(4, 4, 1, 1).data].slice(0, 3);
  });
}"""
# photographs, parts that are painted black, a red that would be pink
STAY = {f"fig-large-vision-{name}" for name in ("hover", "sinks", "nearest", "taken")}
STAY |= {"fig-scaling-map"}
SHADES = r"\b(black|white|(dark|bright|pale|light)(er|est)?)\b"


def test_pictures_do_not_glare_in_the_dark(browser, site):
    """Dark where they were white, each colour in its hue; not where the words speak of shades."""
    found = {}
    with opened(browser, site.as_uri()) as page:
        page.route("**/*.js*", lambda call: call.abort())  # the stills, also of figures that move
        for path in pages.NOTEBOOKS:
            page.goto(f"{site.as_uri()}/book/{path.stem}.html")
            page.evaluate("document.documentElement.dataset.theme = 'dark'")
            found |= {name: (turned, said) for name, turned, said in page.evaluate(PICTURES)}
        page.goto(f"{site.as_uri()}/{SOME[0]}")
        page.evaluate("document.documentElement.dataset.theme = 'dark'")
        white, *colours = page.evaluate(FILTERED, ["#ffffff", *plotting.ROLES.values()])
    assert len(found) > 60
    for name, (turned, said) in found.items():
        shades = re.search(SHADES, said)
        assert turned == (name not in STAY and shades is None), (name, shades)
    assert max(white) < 25
    for name, colour, now in zip(plotting.ROLES, plotting.ROLES.values(), colours, strict=True):
        was = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        hues = [colorsys.rgb_to_hsv(*rgb)[0] for rgb in (was, now)]
        assert min(abs(hues[0] - hues[1]), 1 - abs(hues[0] - hues[1])) < 1 / 24, name
        assert luminance(now) / luminance(white) > 3, name


# ---------------------------------------------------------------- what a page weighs


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
        f"{size} bytes": size > 1_500_000,
        f"{first} bytes before the first text": first > SECOND,
        f"waits for {waiting}": waiting,
        "pictures without a size": not all(map(re.compile(SIZE).search, images)),
        "pictures that come before the text": [i for i in images if ' loading="lazy"' not in i],
        "formulas without their font, or the reverse": linked != (2 if math else 0),
        "links of stylesheets": len(styles) != 1,
        "no scripts": not scripts,
    }
    return [what for what, wrong in found.items() if wrong]


def test_pages_are_light(site):
    found = {name: heavy((site / name).read_text(), site / "book") for name in NAMES}
    assert {name: why for name, why in found.items() if why} == {}


@for_each(
    (' height="', ' data-height="', "without a size"),
    (' loading="lazy"', "", "come before the text"),
    (" defer src=", " src=", "waits for"),
    ("formulas.woff2", "lost.woff2", "formulas"),
    ("<math ", "<other ", "formulas"),
    ("</body>", "x" * 1_500_000 + "</body>", "bytes"),
    ("<h1", "x" * 200_000 + "<h1", "before"),
)
def test_what_makes_a_page_heavy_is_seen(old, new, what, site):
    html = (site / SOME[0]).read_text()
    assert old in html
    assert any(what in line for line in heavy(html.replace(old, new), site / "book"))


LINKED = "styles/theme.css styles/pydata-sphinx-theme.css pygments.css "
LINKED += "styles/sphinx-book-theme.css togglebutton.css copybutton.css mystnb.*.css "
LINKED += "sphinx-design.min.css book.css live.css"
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
