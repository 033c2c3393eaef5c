"""Pictures in the dark: every letter can be read, each colour keeps its hue."""

import colorsys
import re
from itertools import pairwise

import line_figures
import pages
import pytest
from browsing import contrast, gathered, loaded, opened, styled

from attn_lib import plotting

# the name of a figure; and the words in it and below
NAMED = r'<figure [^>]*\bid="([^"]+)"'
WORDS = r"(?s)<text\b.*?</text>|<figcaption\b.*?</figcaption>"
# a sentence about the sun, which is bright in the dark, too
TRUE = ["fig-masks-padding"]
SHADES = r"\b(white|(dark|bright|pale|light)(er|est)?)\b"  # which are others in the dark
# of each text in an SVG: its colour, and what was painted before it where its middle is
LETTERS = """() => {
  const parsed = text => {
    const [r, g, b, a = 1] = text.match(/[\\d.]+(?:e-\\d+)?/g).map(Number);
    return [...[r, g, b].map(x => text.startsWith("color(") ? 255 * x : x), a];
  };
  const over = (under, colour, opacity) =>
    under.map((u, i) => u + (colour[i] - u) * colour[3] * opacity);
  const page = parsed(getComputedStyle(document.body).backgroundColor).slice(0, 3);
  return [...document.querySelectorAll("article .drawn svg")].flatMap(svg => {
    const parts = [...svg.querySelectorAll("path, rect, text")]
      .filter(part => !part.closest("defs, clipPath"));
    const shapes = parts.filter(part => part.tagName !== "text").map(part =>
      [part, getComputedStyle(part), part.getScreenCTM().inverse(), part.getBoundingClientRect()]);
    const near = (box, at) => at.x > box.left - 9 && at.x < box.right + 9  // with its stroke
      && at.y > box.top - 9 && at.y < box.bottom + 9;
    const texts = parts.filter(part => part.tagName === "text" && part.textContent.trim());
    return texts.map(text => {
      const box = text.getBoundingClientRect();
      const middle = new DOMPoint(box.x + box.width / 2, box.y + box.height / 2);
      let under = page;
      shapes.forEach(([part, style, back, reach]) => {
        if (!near(reach, middle)) return;
        if (part.compareDocumentPosition(text) !== Node.DOCUMENT_POSITION_FOLLOWING) return;
        const at = middle.matrixTransform(back);
        for (const [what, inside] of [["fill", "isPointInFill"], ["stroke", "isPointInStroke"]])
          if (/^(rgb|color)/.test(style[what]) && part[inside](at))
            under = over(under, parsed(style[what]), style.opacity * style[`${what}Opacity`]);
      });
      const own = parsed(getComputedStyle(text.querySelector("tspan") || text).fill);
      return [svg.closest("figure").id, text.textContent, over(under, own, 1), under];
    });
  });
}"""


@pytest.fixture(scope="module")
def figures(site) -> list[str]:
    """Those of all pages, with what they show without a script."""
    built = [(site / f"book/{path.stem}.html").read_text() for path in pages.NOTEBOOKS]
    return [one for html in built for one in re.findall("(?s)<figure .*?</figure>", html)]


@pytest.fixture(scope="module")
def dark(browser, site, figures):
    """All of them on one page in the dark."""
    shown = gathered(site, "figures", figures)
    with opened(browser, site.as_uri()) as page:
        page.route("**/*.js*", lambda call: call.abort())
        page.goto(shown.as_uri())
        page.evaluate("document.documentElement.dataset.theme = 'dark'")
        yield page


def faint(page) -> list[str]:
    """The texts of figures that can hardly be told from what is behind them."""
    return [
        f"{name}: {text}"
        for name, text, own, under in page.evaluate(LETTERS)
        if contrast(own, under) < 4.5
    ]


def test_no_words_say_what_the_dark_changes(figures):
    said = [(re.match(NAMED, one)[1], " ".join(re.findall(WORDS, one))) for one in figures]
    words = {name: re.sub("<[^>]*>", "", text) for name, text in said}
    assert len(words) > 60
    assert [name for name, said in words.items() if re.search(SHADES, said)] == TRUE
    assert re.search(SHADES, "a darker column")


# what the cells of maps, drawn and moving, have for the weights 0, 0.1 and 0.2
SMALL = """([drawn, moving]) => [[".drawn .w[stroke]", "stroke", drawn],
  [".live .heads .cell", "fill", moving], [".live .map tbody td", "backgroundColor", moving]]
  .map(([which, what, weights]) => {
    const cell = document.querySelector(`article ${which}`);
    return weights.map(weight => {
      cell.style.setProperty("--w", weight);
      return getComputedStyle(cell)[what].match(/[\\d.]+/g).map(x => 255 * x);
    });
  })"""


def test_small_weights_are_told_apart(browser, site):
    """In the dark, where equal shares would hardly be seen."""
    weights = (0, 0.1, 0.2)

    def steps(shade):
        shown = page.evaluate(SMALL, [list(map(shade, weights)), weights])
        return [contrast(one, other) for each in shown for one, other in pairwise(each)]

    with loaded(browser, site, "03_many_heads", 390, "dark") as page:
        page.locator(".live .map tbody td").first.wait_for(state="attached")
        found = steps(line_figures.shade)
        assert len(found) == 6
        assert min(found) > 1.2, found
        assert max(steps(float)[:2]) < 1.2


def test_every_letter_can_be_read(dark):
    assert faint(dark) == []
    with styled(dark, "html .bd-content .drawn.drawn.drawn svg { --g2: #222222 }"):
        assert len(faint(dark)) > 10


def test_each_colour_keeps_its_hue(dark):
    names = ("orange", "amber", "green", "blue", "pink")  # query, key, value, weight, output
    asked = """names => { const svg = document.querySelector(".drawn svg");
      const style = getComputedStyle(svg), page = getComputedStyle(document.body);
      return [page.backgroundColor, ...names.map(name => style.getPropertyValue(`--${name}`))]; }"""
    ground, *colours = dark.evaluate(asked, names)
    ground = [int(part) for part in re.findall(r"\d+", ground)[:3]]
    assert max(ground) < 40
    for was, now in zip(plotting.ROLES.values(), colours, strict=True):
        both = [[*bytes.fromhex(colour.strip()[1:7])] for colour in (was, now)]
        hue, other = (colorsys.rgb_to_hsv(*rgb)[0] for rgb in both)
        assert min(abs(hue - other), 1 - abs(hue - other)) < 1 / 24, now
        assert contrast(both[1], ground) > 4.5, now
