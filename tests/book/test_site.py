"""The built pages, opened in a browser that has no network: nothing is broken, and all fits.

Code and outputs have one size, are never broken, and scroll inside their box; what an exercise says
is a sentence, and is broken as such. Lines of text are read with ease, and a figure has the width
with which `pages.figures_legible` reckons.
"""

import contextlib

import pages
import pytest
from browsing import loaded, opened, visit
from playwright.sync_api import TimeoutError as TooLate

NAMES = [f"book/{path.stem}.html" for path in pages.NOTEBOOKS + pages.TEXTS]
SCREENS = [(1280, "light"), (390, "dark")]
# what is wrong, and where, as the page is shown now, whatever it folds
FAULTS = r"""phone => {
  const all = which => [...document.querySelectorAll(`article ${which}`)];
  all("details").forEach(folded => { folded.open = false; });
  const text = document.querySelector("article").innerText;
  all("details").forEach(folded => { folded.open = true; });
  const narrow = innerWidth < 600, style = e => getComputedStyle(e);
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
    const rows = long.map(p => p.offsetHeight / parseFloat(style(p).lineHeight));
    const sum = numbers => numbers.reduce((a, b) => a + b, 0);
    return long.length ? Math.round(sum(long.map(p => p.innerText.length)) / sum(rows)) : 70;
  };
  const cutOff = formula => {  // on the left, or wider than the page without a scroll bar
    const glyphs = [...formula.querySelectorAll("*")].map(c => c.getBoundingClientRect());
    const box = formula.closest(".pst-scrollable-table-container, div.math");
    const scrolls = box && style(box).overflowX === "auto";
    const left = scrolls ? box.getBoundingClientRect().left : 0;
    return Math.min(...glyphs.map(g => g.left)) < left - 1
      || (!scrolls && Math.max(...glyphs.map(g => g.right)) > innerWidth);
  };
  const orphaned = formula => {  // from a bracket before it, or from a comma behind it
    const {previousSibling: last, nextSibling: next} = formula.closest("span.math");
    const box = formula.getBoundingClientRect(), text = node => node && node.nodeType === 3;
    const at = (node, i) => part(node, i, i + 1).getBoundingClientRect();
    if (text(last) && last.data.endsWith("(") && at(last, last.length - 1).bottom < box.top)
      return true;
    return text(next) && /^[.,;:!?)]/.test(next.data) && at(next, 0).top > box.bottom;
  };
  const seen = (figure, which) =>
    [...figure.querySelectorAll(which)].filter(e => e.offsetHeight).length;
  const drawn = image => image.clientWidth
    - parseFloat(style(image).paddingLeft) - parseFloat(style(image).paddingRight);
  const unheaded = cell => {
    const head = getComputedStyle(cell, "::before");
    return cell.offsetWidth && (head.display === "none" || head.visibility === "hidden"
      || head.content.replace(/^"|"$/g, "").trim() !== cell.dataset.head);
  };
  const edged = text => {
    const box = text.getBoundingClientRect();
    return box.width && (box.left < 3 || box.right > innerWidth - 3);
  };
  const blocks = all("pre").filter(block => block.clientWidth);
  const wide = (box, by) => box.scrollWidth > box.clientWidth + by;
  const found = {
    "formulas not set": all(".math:not(:has(math))"),
    "formulas cut off": all("math").filter(cutOff),
    "punctuation left alone": all("span.math math:not([display])").filter(orphaned),
    "pictures missing": [...document.images].filter(i => !(i.complete && i.naturalWidth)),
    // not what moves and its still besides
    "figures without one picture and one caption": all("figure[id]:not(.front-figure)").filter(
      figure => seen(figure, ":scope > .live, :scope > a img, :scope > .drawn") !== 1
        || seen(figure, ".caption-text") !== 1),
    "figures too narrow": all("figure:not(.front-figure) :is(img, .drawn svg)").filter(
      image => narrow && image.clientWidth && drawn(image)
        < Math.min(phone, parseFloat(image.style.width || image.getAttribute("width")))),
    "words at the edge": all("figure .drawn svg text").filter(text => narrow && edged(text)),
    "moving tables in disorder": all(".live table").filter(
      one => one.offsetHeight && style(one).display !== "table"),
    "shapes without a colour": all(".live svg :is(circle, rect, polygon)").filter(
      shape => style(shape).fill === "rgb(0, 0, 0)"),
    "blocks cut": blocks.filter(block => wide(block, 1) && style(block).overflowX !== "auto"),
    "no shade where a block goes on": blocks.filter(
      block => wide(block, 1) && style(block).backgroundImage === "none"),
    "code broken": blocks.filter(block => style(block).whiteSpace !== "pre"
      && !block.closest(".output, .front-check")),
    "outputs not broken": all(".output pre").filter(block => wide(block, 0)),
    "blocks of another size": blocks.filter(block => style(block).fontSize !== "13px"),
    "names broken": all("table code .pre").filter(name => lines(name.firstChild) > 1),
    "tables that scroll": all(".printed-table, .pst-scrollable-table-container").filter(
      box => wide(box, 1)),
    "cells without a heading": all(".stacked td[data-head]").filter(
      cell => narrow && unheaded(cell)),
  };
  const where = e =>
    e.closest("figure")?.id || e.src || e.closest("p, td, div, pre").textContent.slice(0, 60);
  const told = Object.entries(found).filter(([, parts]) => parts.length);
  const tex = /\\\(|\$\S[^$\n]*[\^_\\][^$\n]*\$/g;  // also in the title of a cited work
  const left = text.match(tex), width = document.documentElement.scrollWidth;
  const line = narrow ? 70 : letters();
  return [
    ...told.map(([what, parts]) => `${what}: ${parts.map(where).join(" | ")}`),
    ...(left ? [`formulas left as text: ${left.join(" | ")}`] : []),
    ...(width > innerWidth ? [`wider than the screen: ${width}`] : []),
    ...(line < 60 || line > 77 ? [`letters in a line: ${line}`] : []),
  ];
}"""


def all_faults(browser, own, name) -> list[str]:
    """What is broken on a wide screen in the light, then on a phone in the dark."""
    found = []
    with opened(browser, own) as page:
        visit(page, f"{own}/{name}")
        for width, scheme in SCREENS:
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            with contextlib.suppress(TooLate):  # the page's own script follows a little later
                page.wait_for_selector(f"html[data-theme={scheme}]", timeout=3000)
            found += [f"{width}: {fault}" for fault in page.evaluate(FAULTS, pages.PHONE)]
            theme = page.evaluate("document.documentElement.dataset.theme")
            found += [f"{width}: {theme} is another scheme"] if theme != scheme else []
        found += page.errors
        found += [f"asks another server: {address}" for address in page.outside]
    return found


def test_the_front_page_leads_to_the_book(browser, site):
    with opened(browser, site.as_uri()) as page:
        page.goto((site / "index.html").as_uri())
        page.wait_for_url("**/book/index.html")
        assert page.title().startswith("Attention, Checked")


@pytest.mark.parametrize("name", NAMES)
def test_a_page_stands_alone_and_fits(browser, site, name):
    assert all_faults(browser, site.as_uri(), name) == []


def test_a_page_from_a_server_stands_alone(browser, served):
    assert all_faults(browser, served, NAMES[0]) == []


LATE = "https://cdn.invalid/late"
LONG = "a line of code that is too long "
# what is put into a page -> the fault
BROKEN = {
    '<script src="https://cdn.invalid/a.js"></script>': "cdn.invalid/a.js",
    '<img src="https://cdn.invalid/b.png">': "cdn.invalid/b.png",
    '<style>@import url("https://cdn.invalid/c.css");</style>': "cdn.invalid/c.css",
    f"<script>setTimeout(() => fetch({LATE!r}), 5000)</script>": LATE[8:],
    "<script>undefined.planted</script>": "reading 'planted'",
    '<img src="nowhere.png">': "nowhere.png",
    '<p class="math">no formula</p>': "formulas not set: no formula",
    "<p>\\&#40; x $O(n^2)$</p>": "formulas left as text: \\( | $O(n^2)$",
    '<p class="math" style="margin-left: -3000px"><math><mi>x</mi></math></p>': "cut off: x",
    '<p style="width: 1px">(<span class="math"><math><mi>z</mi></math></span>,</p>': "alone: (z,",
    '<figure id="twice"><div class="drawn">a</div><div class="drawn">a</div>'
    '<span class="caption-text">b</span></figure>': "one caption: twice",
    '<figure id="small"><img src="../_static/minus.png" width="300" style="max-width: 80px">'
    "</figure>": "too narrow: small",
    '<figure id="edge"><div class="drawn" style="margin-left: -99px"><svg><text y="9">a</text>'
    "</svg></div></figure>": "at the edge: edge",
    '<div class="live"><table style="display: grid"><tr><td>grid</td></tr></table></div>': (
        "in disorder: grid"
    ),
    '<div class="live">black<svg><circle r="9"></circle></svg></div>': "a colour: black",
    f'<pre style="width: 90px; overflow: hidden">{LONG}</pre>': f"cut: {LONG}",
    f'<pre style="width: 90px; background-image: none !important">{LONG}</pre>': (
        f"goes on: {LONG}"
    ),
    '<pre style="white-space: pre-wrap">in two</pre>': "code broken: in two",
    f'<div class="output"><pre style="width: 90px; white-space: pre">{LONG}</pre></div>': (
        f"not broken: {LONG}"
    ),
    '<pre style="font-size: 12px">less</pre>': "size: less",
    '<table><tr><td><code><span class="pre" style="display: block; width: 1px; white-space: normal'
    ' !important">so long</span></code></td></tr></table>': "broken: so long",
    '<div class="printed-table" style="width: 9px">wide</div>': "scroll: wide",
    '<style>#bare::before { display: none }</style><table class="stacked"><tr>'
    '<td id="bare" data-head="a">bare</td></tr></table>': "heading: bare",
    f'<section><p style="width: 99px">{"word " * 9999}</p></section>': "letters in a line",
    '<div style="min-width: 600px">a table</div>': "390: wider than the screen",
    "<script>const root = document.documentElement; new MutationObserver(() => "
    '{ if (root.dataset.theme !== "light") root.dataset.theme = "light" }).observe('
    'root, {attributes: true}); root.dataset.theme = "light"</script>': "390: light is another",
}


def test_each_fault_of_a_page_is_seen(browser, site):
    """All at once, in a page of the book."""
    page = (site / "book/notation.html").read_text()
    assert page.count("</article>") == 1
    planted = page.replace("</article>", "\n".join([*BROKEN, "</article>"]))
    (site / "book/broken.html").write_text(planted)
    found = "\n".join(all_faults(browser, site.as_uri(), "book/broken.html"))
    assert [fault for fault in BROKEN.values() if fault not in found] == [], found


def test_callouts_become_boxes_solutions_are_folded_and_copy_buttons_have_names(browser, site):
    with loaded(browser, site, "01_one_head") as page:
        buttons = page.locator("button.copybtn")
        names = buttons.evaluate_all("all => all.map(one => one.getAttribute('aria-label'))")
        assert names == [f"Copy block {i + 1}" for i in range(buttons.count())]
        assert len(names) > 20
        assert page.locator(".admonition.exercise").count() == 5
        assert page.locator(".admonition.tip").count() == 1
        assert page.locator("blockquote").count() == 0
        folded = page.locator("details", has_text="Solution 1.1")
        assert folded.get_attribute("open") is None
        assert not page.get_by_text("weights_by_hand = [0.47").is_visible()
