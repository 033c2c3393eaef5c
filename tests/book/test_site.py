"""The built pages, opened in a browser that has no network."""

import re

import pages
import pytest
from browsing import loaded, opened, visit

NAMES = [f"book/{path.stem}.html" for path in pages.NOTEBOOKS + pages.TEXTS]

TEX = r"\\\(|\$\S[^$\n]*[\^_\\][^$\n]*\$"  # also in the title of a cited work
# formulas cut off on the left, or wider than the page without a scroll bar
CUT_OFF = """() => [...document.querySelectorAll("math")].filter(formula => {
  const glyphs = [...formula.querySelectorAll("*")].map(c => c.getBoundingClientRect());
  const first = Math.min(...glyphs.map(g => g.left));
  const last = Math.max(...glyphs.map(g => g.right));
  const box = formula.closest(".pst-scrollable-table-container, div.math");
  const scrolls = box && getComputedStyle(box).overflowX === "auto";
  const left = scrolls ? box.getBoundingClientRect().left : 0;
  return first < left - 1 || (!scrolls && last > innerWidth);
}).map(formula => formula.closest("p, div").textContent.slice(0, 60))"""

SEEN = """() => ({
  formulas: document.querySelectorAll(".math").length,
  set: document.querySelectorAll(".math math").length,
  text: document.querySelector("article").innerText,
  width: document.documentElement.scrollWidth,
  missing: [...document.images].filter(i => !(i.complete && i.naturalWidth)).map(i => i.src),
})"""

# the figures of which a reader does not see one picture and one caption: not what moves and its
# still besides
VISIBLE = """() => [...document.querySelectorAll("article figure[id]:not(.front-figure)")]
  .map(figure => {
    const seen = which => [...figure.querySelectorAll(which)].filter(e => e.offsetHeight).length;
    const pictures = seen(":scope > .live, :scope > a img, :scope > .drawn");
    return [figure.id, pictures, seen(".caption-text")];
  }).filter(([, pictures, captions]) => pictures !== 1 || captions !== 1)"""
# of figures that move: tables laid out as something else, shapes that got no colour
STRAY = """() => {
  const tables = [...document.querySelectorAll(".live table")].filter(one => one.offsetHeight);
  return {
    "tables in disorder": tables.filter(one => getComputedStyle(one).display !== "table").length,
    "shapes without a colour":
      [...document.querySelectorAll(".live svg :is(circle, rect, polygon)")]
      .filter(shape => getComputedStyle(shape).fill === "rgb(0, 0, 0)").length,
  };
}"""
# the page's own script follows the reader's scheme a little later
THEME = """scheme => new Promise(done => {
  const end = performance.now() + 3000
  const look = () => {
    const theme = document.documentElement.dataset.theme
    if (theme === scheme || performance.now() > end) done(theme)
    else setTimeout(look, 20)
  }
  look()
})"""


def faults(page, width, scheme) -> list[str]:
    """What a reader at this width and in this colour scheme would find broken."""
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    seen = page.evaluate(SEEN)
    found = {
        "formulas not set": seen["formulas"] - seen["set"],
        "formulas left as text": len(re.findall(TEX, seen["text"])),
        "wider than the screen": seen["width"] > width,
        "formulas cut off": page.evaluate(CUT_OFF),
        "pictures missing": seen["missing"],
        "figures with other than a picture and a caption": page.evaluate(VISIBLE),
        **page.evaluate(STRAY),
        "another scheme": page.evaluate(THEME, scheme) != scheme,
        "errors": page.errors,
        "asks another server": sorted(set(page.outside)),  # last, as it is told of a little later
    }
    return [f"{width} {scheme}, {what}: {value}" for what, value in found.items() if value]


def all_faults(browser, own, name) -> list[str]:
    """A page on a wide screen in the light, then on a narrow one in the dark."""
    found = []
    with opened(browser, own) as page:
        visit(page, f"{own}/{name}")
        for width, scheme in ((1280, "light"), (390, "dark")):
            found += faults(page, width, scheme)
    return found


def test_the_front_page_leads_to_the_book(browser, site):
    with opened(browser, site.as_uri()) as page:
        page.goto((site / "index.html").as_uri())
        page.wait_for_url("**/book/index.html")
        assert page.title().startswith("Attention, Checked")


@pytest.mark.parametrize("name", NAMES)
def test_a_page_stands_alone(browser, site, name):
    assert all_faults(browser, site.as_uri(), name) == []


def test_a_page_from_a_server_stands_alone(browser, served):
    assert all_faults(browser, served, NAMES[0]) == []


LATE = "https://cdn.invalid/late"
# what is put into a page -> the fault
BROKEN = {
    '<script src="https://cdn.invalid/a.js"></script>': "cdn.invalid/a.js",
    '<img src="https://cdn.invalid/b.png">': "cdn.invalid/b.png",
    '<style>@import url("https://cdn.invalid/c.css");</style>': "cdn.invalid/c.css",
    f"<script>setTimeout(() => fetch({LATE!r}), 5000)</script>": LATE[8:],
    "<script>undefined.planted</script>": "reading 'planted'",
    '<img src="nowhere.png">': "nowhere.png",
    '<p class="math">no formula</p>': "formulas not set: 1",
    "<p>\\&#40; x $O(n^2)$</p>": "formulas left as text: 2",
    '<p class="math" style="margin-left: -3000px"><math><mi>x</mi></math></p>'
    '<div class="math" style="overflow: clip"><math><mspace width="90em"/><mi>y</mi></math>'
    "</div>": "cut off: ['x', 'y']",
    '<figure id="twice"><div class="drawn">a</div><div class="drawn">a</div>'
    '<span class="caption-text">b</span></figure>': "'twice', 2, 1",
    '<figure id="mute"><div class="live">a</div></figure>': "'mute', 1, 0",
    '<div class="live"><table style="display: grid"><tr><td>1</td></tr></table></div>': (
        "tables in disorder: 1"
    ),
    '<div class="live"><svg><circle r="9"></circle></svg></div>': "shapes without a colour: 1",
    '<div style="min-width: 600px">a table</div>': "wider than the screen",
    "<script>const root = document.documentElement; new MutationObserver(() => "
    '{ if (root.dataset.theme !== "light") root.dataset.theme = "light" }).observe('
    'root, {attributes: true}); root.dataset.theme = "light"</script>': "another scheme",
}
ON_THE_PHONE = ["wider than the screen", "another scheme"]  # alone, where it is dark


def test_each_fault_of_a_page_is_seen(browser, site):
    """All at once, in a page of the book: each fault where it shows."""
    page = (site / "book/notation.html").read_text()
    assert page.count("</article>") == 1
    planted = page.replace("</article>", "\n".join([*BROKEN, "</article>"]))
    (site / "book/broken.html").write_text(planted)
    found = all_faults(browser, site.as_uri(), "book/broken.html")
    for fault in BROKEN.values():
        seen = [line.partition(",")[0] for line in found if fault in line]
        there = ["390 dark"] if fault in ON_THE_PHONE else ["1280 light", "390 dark"]
        assert list(dict.fromkeys(seen)) == there, fault


def test_callouts_become_boxes_and_solutions_are_folded(browser, site):
    with loaded(browser, site, "01_one_head") as page:
        assert page.locator(".admonition.exercise").count() == 5
        assert page.locator(".admonition.tip").count() == 1
        assert page.locator("blockquote").count() == 0
        folded = page.locator("details", has_text="Solution 1.1")
        assert folded.get_attribute("open") is None
        assert not page.get_by_text("weights_by_hand = [0.47").is_visible()


def test_launch_buttons_are_off_until_there_is_an_address(site):
    """Without an address of its own, Jupyter Book's buttons would point at Jupyter Book."""
    words = ["colab.research", "mybinder", "executablebooks/jupyter-book"]
    words += ["dropdown-launch-buttons", "dropdown-source-buttons"]
    for name in NAMES:
        text = (site / name).read_text()
        assert [word for word in words if word in text] == [], name
