"""How the built pages look and what they weigh: fast tests, each of which sees what is planted.

Three pages in a browser, all with ``--everything``; what the text of a page tells, of all of them.
"""

import colorsys
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
from browsing import loaded, opened, styled, visit
from PIL import Image, ImageStat
from tables import for_each

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
  const left = box => box.getBoundingClientRect().left;
  const headings = all(":is(h1, h2, h3, h4)"), before = headings.map(one => one.offsetHeight);
  const links = headings.flatMap(one => [...one.querySelectorAll(".headerlink")]);
  links.forEach(link => link.style.setProperty("display", "none", "important"));
  const after = headings.map(one => one.offsetHeight);
  links.forEach(link => link.style.removeProperty("display"));
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
    letters: innerWidth > 600 ? letters() : 70,
    broken: all("table code .pre").filter(name => lines(name.firstChild) > 1)
      .map(name => name.textContent),
    orphans: all("math:not([display])").filter(orphaned).length,
    apart: all(":is(h1, h2, h3) code").filter(code => {
      const {nextSibling: next} = code, below = code.getBoundingClientRect().bottom - 1;
      return /^[.,;:!?)]/.test(next?.data) && part(next, 0, 1).getBoundingClientRect().top > below;
    }).length,
    split: [...document.querySelectorAll(".prev-next-area code .pre")]
      .filter(name => [...name.childNodes].some(one => one.data && lines(one) > 1))
      .map(name => name.textContent),
    unseen: all(".printed-table, .pst-scrollable-table-container")
      .filter(box => box.scrollWidth > box.clientWidth + 1).length,
    torn: all(":is(p, li) code").filter(({firstChild, lastChild, textContent}) => {
      const [first, last] = [firstChild, lastChild].map(one => one.getBoundingClientRect?.());
      return textContent.length < 20 && first && last && last.bottom > first.bottom + 5;
    }).length,
    unheaded: innerWidth > 600 ? 0 : all(".stacked td[data-head]").filter(cell => {
      const head = getComputedStyle(cell, "::before");
      return cell.offsetWidth && (head.display === "none" || head.visibility === "hidden"
        || head.content.replace(/^"|"$/g, "").trim() !== cell.dataset.head);
    }).length,
    unproved: all(".proof").map(box => [...box.querySelectorAll("p")].at(-1))
      .filter(end => !getComputedStyle(end, "::after").content.includes("∎")).length,
    jumped: all("details[open] > summary > .expanded")
      .filter(title => left(title) > left(title.parentElement) + 1).length,
    higher: before.filter((height, n) => after[n] < height).length,  // by a link that nobody sees
    blank: all("p:empty").filter(text => text.getClientRects().length).length,
    veiled: all(".pst-scrollable-table-container tr")  // no shade would be seen through them
      .filter(row => getComputedStyle(row).backgroundColor.startsWith("rgb(")).length,
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
# the boxes that scroll sideways; and how far the shade at their ends is from what it lies on
SCROLLING = ", ".join(
    f"article {which}"
    for which in ("pre", ".printed-table", ".pst-scrollable-table-container", "div.math")
)
COVERED = f"""() => {{
  document.querySelectorAll("article details").forEach(folded => {{ folded.open = true; }});
  const clear = "rgba(0, 0, 0, 0)", colour = e => getComputedStyle(e).backgroundColor;
  const boxes = [...document.querySelectorAll({SCROLLING!r})].filter(box => box.clientWidth);
  const grounds = boxes.map(box => {{
    while (colour(box) === clear) box = box.parentElement;
    return colour(box);
  }});
  const probes = boxes.map(box => document.createElement("i"));
  probes.forEach(probe => {{ probe.style.background = "var(--under)"; }});
  boxes.forEach((box, n) => box.append(probes[n]));  // all at once: the page is styled once
  const covers = probes.map(colour);
  probes.forEach(probe => probe.remove());
  return boxes.filter((box, n) => covers[n] !== grounds[n])
    .map(box => box.textContent.slice(0, 40));
}}"""
FITS = {"cut": [], "wrapped": 0, "unsaid": 0, "sizes": [], "broken": [], "orphans": 0}
FITS |= {"unseen": 0, "torn": 0, "unheaded": 0, "unproved": 0, "jumped": 0}
FITS |= {"apart": 0, "split": [], "higher": 0, "blank": 0, "veiled": 0, "narrow": [], "edged": []}
LETTERS = range(60, 78)
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
    "apart": ".bd-article h1 code[class] { display: inline-block !important; width: 95% }",
    "split": ".prev-next-area code[class] { font-size: 2rem !important }",
    "unseen": ".bd-article .pst-scrollable-table-container[class] td { padding: 6rem !important }",
    "torn": ".bd-article p code[class] :is(*, .pre) { white-space: normal !important }"
    ".bd-article p code[class] { letter-spacing: 2rem; white-space: normal !important }",
    "unheaded": ".bd-article .stacked td[data-head]::before { content: none !important }",
    "unproved": "article .proof[class] li > p::after { content: none !important }",
    "jumped": "article details summary > .expanded { margin-left: 22px !important }",
    "higher": "article .headerlink { display: block !important; position: static !important }",
    "blank": "article p:empty { display: block !important }",
    "veiled": ".bd-article .pst-scrollable-table-container[class] tr[class]"
    "{ background: #777 !important }",
    "narrow": "figure > .drawn.drawn { margin-inline: 0 !important; width: auto !important }",
    "edged": ".drawn.drawn { translate: -9px }",
}


def test_what_matters_fits(browser, site, everything):
    """Code and outputs have one size, are never broken, and scroll inside their box.

    What an exercise says is a sentence, and is broken as such.
    Lines of text are read with ease, and a figure has the width with which
    `pages.figures_legible` reckons, in the dark too; the cover of a shade is not seen. On every
    change pages take turns with the schemes.
    """
    seen, schemes = dict.fromkeys(UNFIT, False), ("dark", "light")
    with opened(browser, site.as_uri()) as page:
        shown = [*itertools.product(NAMES, schemes)]
        for name, scheme in shown if everything else zip(SOME, schemes * 2, strict=True):
            visit(page, f"{site.as_uri()}/{name}", 390, scheme)
            assert page.evaluate(COVERED) == [], (name, scheme)
            if page.locator("article pre").count():
                with styled(page, "article pre { --under: #777 }"):
                    assert page.evaluate(COVERED) != [], (name, scheme)
            for width in (390, 1280):
                page.set_viewport_size({"width": width, "height": 900})
                assert unfit(page) == [], (name, width, scheme)
                for what in [what for what in UNFIT if not seen[what]]:
                    with styled(page, UNFIT[what]):
                        seen[what] = what in unfit(page)
    assert all(seen.values()), seen  # each mistake was seen on some page


def unfit(page) -> list[str]:
    """What does not fit, as the page is shown now."""
    found = page.evaluate(CUT, pages.PHONE)
    wide = [] if found.pop("letters") in LETTERS else ["letters"]
    return wide + [what for what, value in found.items() if value != FITS[what]]


def shaded(page, box) -> list[bool]:
    """Whether the left and the right edge of a box differ from its middle, where nothing stands."""
    box.scroll_into_view_if_needed()
    at = box.bounding_box()
    border = box.evaluate("box => box.clientLeft")
    clip = {"x": at["x"] + border, "y": at["y"] + 2, "width": at["width"] - border - 1, "height": 1}
    line = Image.open(io.BytesIO(page.screenshot(clip=clip))).convert("L")
    left, middle, right = (line.getpixel((x, 0)) for x in (1, line.width // 2, line.width - 2))
    return [abs(left - middle) > 20, abs(right - middle) > 20]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_box_shows_where_it_goes_on(browser, site, scheme):
    """At the end that is out of sight, and there alone."""
    with loaded(browser, site, "08_next_token", 390, scheme) as page:
        found = page.locator("article > section .cell_input pre:visible").all()
        wide = [box for box in found if box.evaluate("b => b.scrollWidth > b.clientWidth + 60")]
        narrow = [box for box in found if box.evaluate("b => b.scrollWidth <= b.clientWidth")]
        seen = []
        for box, x in ((wide[0], 0), (wide[0], 30), (wide[0], 9999), (narrow[-1], 0)):
            box.evaluate("(box, x) => box.scrollTo(x, 0)", x)
            seen.append(shaded(page, box))
        assert seen == [[False, True], [True, True], [True, False], [False, False]]
        with styled(page, "article pre:not(#_) { background-image: none !important }"):
            wide[0].evaluate("box => box.scrollTo(0, 0)")
            assert shaded(page, wide[0]) == [False, False]


def test_nothing_lies_on_what_one_reads(browser, site):
    """The theme has a button that comes when one scrolls up."""
    with loaded(browser, site, "04_scaling", 390) as page:
        button = page.locator("#pst-back-to-top")
        for y in (3000, 2500):
            page.evaluate(f"scrollTo(0, {y})")
            page.wait_for_function(f"scrollY === {y}")
        assert button.count() == 1
        assert not button.is_visible()


def test_the_contents_of_a_page_close_when_an_entry_is_chosen(browser, site):
    with loaded(browser, site, "05_positions", 390) as page:
        for entry in (2, 4):
            page.click("button.secondary-toggle")
            link = page.locator("#pst-secondary-sidebar-modal nav a").nth(entry)
            heading = page.locator(link.get_attribute("href")).locator("h2, h3").first
            link.click()
            assert not page.locator("dialog[open]").count()
            assert 0 <= heading.bounding_box()["y"] < 300


# addresses and names broken between two letters; rows whose cells do not begin on one line
TORN = """() => [...document.querySelectorAll("article :is(a, code .pre)")].filter(link => {
  const top = (text, i) => {
    const range = document.createRange();
    range.setStart(text, i);
    range.setEnd(text, i + 1);
    return range.getBoundingClientRect().top;
  };
  const torn = text => [...text.data].some((letter, i) =>
    /[a-z]{2}/i.test(text.data.slice(i, i + 2)) && top(text, i + 1) > top(text, i) + 5);
  const texts = [...link.childNodes].filter(part => part.nodeType === 3);
  return /^\\S+[/.]\\S+$/.test(link.textContent) && texts.some(torn);
}).map(link => link.textContent)"""
UNEVEN = """() => [...document.querySelectorAll(".printed-table tbody tr")].filter(row => {
  const tops = [...row.cells].filter(cell => cell.innerText.trim()).map(cell => {
    const range = document.createRange();
    range.selectNodeContents(cell);
    return range.getClientRects()[0].top;
  });
  return Math.max(...tops) > Math.min(...tops) + 5;
}).map(row => row.innerText)"""


def test_addresses_and_names_are_broken_between_their_parts(browser, site):
    for name in ("known_mistakes", "bibliography", "notation", "attn_lib.models"):
        with loaded(browser, site, name, 390) as page:
            assert page.evaluate(TORN) == [], name
            page.evaluate("document.querySelectorAll('article wbr').forEach(one => one.remove())")
            page.evaluate("document.querySelector('article').normalize()")
            assert page.evaluate(TORN) != [], name


def test_the_cells_of_a_row_begin_on_one_line(browser, site):
    """Beside a name that takes two."""
    with loaded(browser, site, "scoreboard", 390) as page:
        assert page.evaluate(UNEVEN) == []
        with styled(page, ".printed-table tbody td { vertical-align: bottom !important }"):
            assert page.evaluate(UNEVEN) != []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_link_in_a_table_looks_like_a_link(browser, site, scheme):
    """It has the hue of the others, a little nearer to the text where a row has a shade."""
    hues = """() => ["p a", "td a"].map(which => {
      const link = document.querySelector(`article ${which}`), canvas = new OffscreenCanvas(1, 1);
      const brush = canvas.getContext("2d");
      brush.fillStyle = getComputedStyle(link).color;
      brush.fillRect(0, 0, 1, 1);
      return [...brush.getImageData(0, 0, 1, 1).data.slice(0, 3)];
    }).map(rgb => rgb.map(value => value / 255))"""
    with loaded(browser, site, "teach", 1280, scheme) as page:

        def apart():
            (one, _, _), (other, _, _) = (colorsys.rgb_to_hls(*rgb) for rgb in page.evaluate(hues))
            return abs(one - other)

        assert apart() < 0.03
        with styled(page, "td a { color: var(--pst-color-link-higher-contrast) !important }"):
            assert apart() > 0.05


def test_the_title_of_a_search_looks_like_others(browser, site):
    title = """() => {
      const heading = [...document.querySelectorAll("h1")].find(one => one.offsetHeight);
      const {fontSize, fontWeight, lineHeight} = getComputedStyle(heading);
      return [fontSize, fontWeight, lineHeight, heading.getBoundingClientRect().left];
    }"""
    for width in (390, 1280):
        with opened(browser, site.as_uri()) as page:
            found = []
            for name in ("search.html", "book/teach.html"):
                visit(page, f"{site.as_uri()}/{name}", width)
                found.append(page.evaluate(title))
            assert found[0] == found[1], width
            with styled(page, "h1 { font-weight: 500 !important }"):
                assert page.evaluate(title) != found[0]


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


@for_each(
    ("</h1>", "</h1><details></details>", "before the picture"),
    ('<div class="under-figure', '<div class="under', "without its line"),
    (">set-up<", "><", "no set-up"),
    (">code<", "><", "code that is not"),
    ('.svg">SVG', '.jpg">SVG', "a picture that"),
    ('.svg">SVG', '.svg">PNG', "a picture that"),
    (html_fixes.ABOUT, "", "no licence"),
)
def test_what_is_wrong_around_a_picture_is_seen(old, new, what, site):
    html = (site / SOME[0]).read_text()
    assert old in html
    folded = with_folded_code(next(path for path in pages.NOTEBOOKS if path.stem in SOME[0]))
    assert framed(html, site / "book", folded) == []
    faults = framed(html.replace(old, new), site / "book", folded)
    assert any(what in fault for fault in faults), faults


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


WEBSITE = r"\b(website|built page)\b"


def test_no_page_of_the_website_speaks_of_a_website(site):
    """What moves there has a caption that says so."""
    stray = {name: re.findall(WEBSITE, (site / name).read_text()) for name in NOTEBOOKS}
    assert {name: words for name, words in stray.items() if words} == {}
    assert re.findall(WEBSITE, "On the website, move it.") == ["website"]


ASKEW = """() => [...document.querySelectorAll(".live .pair")].flatMap(pair => {
  const [left, right] = [...pair.querySelectorAll("table")].map(table =>
    [...table.tBodies[0].rows].reverse().map(row => row.getBoundingClientRect()));
  const middle = row => (row.top + row.bottom) / 2;
  return right.filter((row, i) => Math.abs(middle(row) - middle(left[i])) > 3);
}).length"""


def test_the_rows_of_two_tables_stand_beside_each_other(browser, site):
    with loaded(browser, site, "12_without_matrix", 1280) as page:
        page.locator(".live .pair").wait_for(state="attached")
        assert page.evaluate(ASKEW) == 0
        with styled(page, ".live .pair.pair { align-items: normal !important }"):
            assert page.evaluate(ASKEW)


def test_a_formula_keeps_what_clings_to_it():
    formula = '<span class="math notranslate nohighlight"><math><mi>d</mi></math></span>'
    for text in (f"({formula}", f"{formula},", f"({formula}).", f"{formula}-th"):
        assert html_fixes.fix_text(text) == f'<span class="together">{text}</span>'
    for text in (formula, f"( {formula} )", f"a {formula} b"):
        assert html_fixes.fix_text(text) == text


def test_a_formula_in_a_caption_has_small_scripts(browser, site):
    same = """() => [...document.querySelectorAll("figcaption :is(msup, msub)")].map(one =>
      [...one.children].map(part => parseFloat(getComputedStyle(part).fontSize)))
      .filter(([base, script]) => script > 0.9 * base).length"""
    with loaded(browser, site, "03_many_heads", 1280) as page:
        assert page.evaluate(same) == 0
        with styled(page, "figcaption math * { font-size: .9rem !important }"):
            assert page.evaluate(same)


def test_code_is_broken_where_it_may_be():
    def code(text):
        parts = "".join(f'<span class="pre">{part}</span> ' for part in text.split())
        return f'<code class="docutils">{parts.strip()}</code>'

    shown = html_fixes.fix_text(code("F.scaled_dot_product_attention"))
    assert shown == code("F.scaled_dot_product_attention")  # no F has a line of its own
    assert "torch<wbr>.nn<wbr>.functional<wbr>.scaled" in html_fixes.fix_text(
        code("torch.nn.functional.scaled_dot_product_attention")
    )
    for text, short in (
        ("trained - 1", True),
        ("a &lt; 20 * letters", True),
        ("out = weights &#64; k", True),
        ("b " * 11, False),
    ):
        assert ('class="short ' in html_fixes.fix_text(code(text))) is short, text


def test_a_cited_work_is_text_and_its_address():
    label = '<span class="label"><span class="fn-bracket">[</span>AB26</span>\n'
    link = '<a href="x">{}</a>.'
    for address, whole in (
        ("project#4663", True),
        ("https://example.org/a/long/address/of/it", False),
    ):
        work = '<div class="citation" id="id1">\n{}<p>A. B. 2026. {}{}</p>\n</div>'
        shown = html_fixes.fix_text(work.format(label, "URL: ", link.format(address)))
        own = re.sub("<wbr>", "", shown)
        kept = f'<span class="together">{link.format(address)}</span>'
        assert own == work.format("", "", kept if whole else link.format(address))


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
# where each block of a page begins, in screens
TOPS = """() => [...document.querySelectorAll("main :is(h1, h2, h3, p, li, figure, table)")].map(
  block => block.getBoundingClientRect().top / innerHeight)"""
PAINTED = "() => new Promise(go => requestAnimationFrame(() => requestAnimationFrame(() => go())))"


# a page that waits for nothing; one on which the typeface comes whenever it comes; one whose
# stand-ins are no longer as wide
UNHELD = ("fonts.load(face)", "0")
SWAPPED = ("root.style.setProperty(", "void (")
OTHERS = ("local(", "local(no-")
MOVABLE = ["book/how_checked.html", "book/06_block.html", "book/attn_lib.functional.html"]


def moved(browser, own, name, *changes, late=0) -> float:
    """How far a block moves, in screens, when its typeface comes late by milliseconds.

    Where blocks are is asked, not the browser's score: which frames it paints is chance.
    """
    with opened(browser, own, viewport={"width": 390, "height": 844}) as page:
        waiting = []
        page.route("**/*.woff2", lambda call: waiting.append(call))

        def changed(call):
            text, kind = call.fetch().text(), re.search(r"\.(css|html)\b", call.request.url)[1]
            for old, new in changes:
                text = text.replace(old, new)
            call.fulfill(body=text, content_type=f"text/{kind}")

        page.route(re.compile(r"\.(css|html)\b"), changed)
        page.goto(f"{own}/{name}", wait_until="domcontentloaded")
        page.clock.fast_forward(late)
        seen = page.evaluate("getComputedStyle(document.body).opacity") == "1"
        before = page.evaluate(TOPS)
        page.unroute("**/*.woff2")
        for call in waiting:
            call.continue_()
        page.evaluate("document.fonts.ready.then(() => 0)")
        assert waiting
        assert page.evaluate("getComputedStyle(document.body).opacity") == "1"
        after = page.evaluate(TOPS)
        return seen * max(abs(a - b) for a, b in zip(after, before, strict=True))


def moved_at_once(page, address, width) -> float:
    """How far a page moves while it is loaded, with its typeface as soon as it can be there."""
    page.set_viewport_size({"width": width, "height": 844})
    page.goto(address)
    page.evaluate("document.fonts.ready.then(() => 0)")
    for _ in range(3):
        page.evaluate(PAINTED)
    return page.evaluate("window.moved || 0")


@pytest.mark.parametrize("disk", [True, False])
def test_no_page_moves_while_it_is_loaded(browser, site, served, disk, request, everything):
    """Each time in a browser that has none of its files.

    On every change on one screen from disk, on the other from a server; every week on both.
    """
    own = site.as_uri() if disk else served
    names = {*chosen(request), *MOVABLE, "book/index.html", "search.html", "genindex.html"}
    for n, name in enumerate(sorted(names)):
        for width in (390, 1280) if everything else [(390, 1280)[(n + disk) % 2]]:
            with opened(browser, own) as page:
                page.add_init_script(MOVED)
                assert moved_at_once(page, f"{own}/{name}", width) < 0.05, (name, width)
    shown = (site / MOVABLE[0]).read_text()
    for old, new in (UNHELD, SWAPPED):
        assert shown.count(old) == 1
        shown = shown.replace(old, new)
    (site / "book/unheld.html").write_text(shown)
    for _ in range(12):  # from disk, the typeface sometimes comes before the text is painted
        with opened(browser, own) as page:
            page.add_init_script(MOVED)
            if moved_at_once(page, f"{own}/book/unheld.html", 390) > 0.06:
                break
    else:
        pytest.fail("a page that moves is not seen to move")


# from the first screen to the last, and back
SCROLLED = f"""async () => {{
  const wait = {PAINTED}, end = document.documentElement.scrollHeight;
  window.moved = 0;
  for (let top = 0; top < end; top += innerHeight) {{ scrollTo(0, top); await wait(); }}
  scrollTo(0, 0);
  await wait();
  return window.moved || 0;
}}"""
UNFOLDING = ".page-toc ul ul.nav { display: none !important } .page-toc .active > ul.nav.nav"
UNFOLDING += " { display: block !important }"


def test_nothing_moves_while_one_reads(browser, site, request, everything):
    """Once a page is there, nothing that comes late, and no list that unfolds, pushes it away."""
    known = "book/known_mistakes.html"
    with opened(browser, site.as_uri()) as page:
        page.add_init_script(MOVED)
        for n, name in enumerate(sorted({*chosen(request), known, "book/index.html"})):
            for width in (390, 1280) if everything else [(390, 1280)[n % 2]]:
                visit(page, f"{site.as_uri()}/{name}", width)
                assert page.evaluate(SCROLLED) < 0.05, (name, width)
        visit(page, f"{site.as_uri()}/{known}")
        with styled(page, UNFOLDING):
            assert page.evaluate(SCROLLED) > 0.1


def test_text_does_not_move_when_its_typeface_comes(browser, served):
    """Neither soon, for it was waited for, nor late, for it is not used on this page any more."""
    for late in (0, 1000):
        for name in MOVABLE:
            assert moved(browser, served, name, late=late) < 0.1, (name, late)
    assert moved(browser, served, MOVABLE[0], UNHELD, SWAPPED, OTHERS) > 0.3
    assert moved(browser, served, MOVABLE[0], SWAPPED, OTHERS, late=1000) > 0.3


def test_stand_ins_are_as_wide_as_the_typeface(browser, served):
    """For a page on which nothing waits."""
    name = "book/03_many_heads.html"
    assert moved(browser, served, name, UNHELD, SWAPPED) < 0.25
    assert moved(browser, served, name, UNHELD, SWAPPED, OTHERS) > 1


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


@for_each(
    ("</h1>", '</h1><img src="../_static/minus.png" loading="lazy">', "without a size"),
    ("</h1>", '</h1><img src="../_static/minus.png" width="9" height="9">', "before the text"),
    (" defer src=", " src=", "waits for"),
    ("formulas.woff2", "lost.woff2", "formulas"),
    ("<math ", "<other ", "formulas"),
    ("</body>", "x" * 1_000_000 + "</body>", "bytes"),
    ("<h1", "x" * 200_000 + "<h1", "before"),
)
def test_what_makes_a_page_heavy_is_seen(old, new, what, site):
    html = (site / "book/15_vision.html").read_text()
    assert old in html
    assert any(what in line for line in heavy(html.replace(old, new), site / "book"))


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
