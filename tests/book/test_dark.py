"""Pictures in the dark: nothing glares, every letter can be read, each colour keeps its hue."""

import colorsys
import re

import pages
import pytest
from browsing import luminance, opened, styled

from attn_lib import plotting

# what a picture is, whether it is turned upside down, and the words below
PICTURES = """() => [...document.querySelectorAll("article figure[id]")].map(figure => {
  const shown = figure.querySelector("img, .drawn svg"), style = getComputedStyle(shown);
  const kind = shown.matches("img") ? "photograph"
    : shown.closest(".as-drawn") ? "as drawn" : "of the page";
  return [figure.id, kind, style.filter, style.backgroundColor,
    figure.querySelector("figcaption").textContent];
})"""
BETWEEN_TWO_HUES = {"fig-scaling-map"}
SHADES = r"\b(black|white|(dark|bright|pale|light)(er|est)?)\b"
# of each text in an SVG: its colour, and what was painted before it where its middle is
LETTERS = """() => {
  const parsed = text => {
    const [r, g, b, a = 1] = text.match(/[\\d.]+(?:e-\\d+)?/g).map(Number);
    return [...[r, g, b].map(x => text.startsWith("color(") ? 255 * x : x), a];
  };
  const over = (under, colour, opacity) =>
    under.map((u, i) => u + (colour[i] - u) * colour[3] * opacity);
  const page = parsed(getComputedStyle(document.body).backgroundColor).slice(0, 3);
  return [...document.querySelectorAll("article .drawn:not(.as-drawn) svg")].flatMap(svg => {
    const parts = [...svg.querySelectorAll("path, rect, text")]
      .filter(part => !part.closest("defs, clipPath"));
    const shapes = parts.filter(part => part.tagName !== "text")
      .map(part => [part, getComputedStyle(part), part.getScreenCTM().inverse()]);
    const texts = parts.filter(part => part.tagName === "text" && part.textContent.trim());
    return texts.map(text => {
      const box = text.getBoundingClientRect();
      const middle = new DOMPoint(box.x + box.width / 2, box.y + box.height / 2);
      let under = page;
      shapes.forEach(([part, style, back]) => {
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
def dark(browser, site):
    """A page of the book in the dark, with the stills of figures that move."""
    with opened(browser, site.as_uri()) as page:
        page.route("**/*.js*", lambda call: call.abort())

        def load(name):
            page.goto(f"{site.as_uri()}/book/{name}.html")
            page.evaluate("document.documentElement.dataset.theme = 'dark'")
            return page

        yield load


def contrast(one, other) -> float:
    lights = sorted(map(luminance, (one, other)))
    return lights[1] / lights[0]


def faint(page) -> list[str]:
    """The texts of figures that can hardly be told from what is behind them."""
    return [
        f"{name}: {text}"
        for name, text, own, under in page.evaluate(LETTERS)
        if contrast(own, under) < 4.5
    ]


def test_pictures_do_not_glare(dark):
    """Lines in the page's colours; photographs, and what words call dark or light, on a card."""
    found = {}
    for path in pages.NOTEBOOKS:
        found |= {name: rest for name, *rest in dark(path.stem).evaluate(PICTURES)}
    assert len(found) > 60
    for name, (kind, filtered, ground, said) in found.items():
        assert filtered == ("none" if kind == "of the page" else "brightness(0.72)"), name
        assert (ground == "rgba(0, 0, 0, 0)") == (kind == "of the page"), name
        if kind != "photograph":
            shades = name in BETWEEN_TWO_HUES or re.search(SHADES, said)
            assert bool(shades) == (kind == "as drawn"), name
    assert {kind for kind, *_ in found.values()} == {"photograph", "as drawn", "of the page"}


def test_every_letter_can_be_read(dark):
    found = [line for path in pages.NOTEBOOKS for line in faint(dark(path.stem))]
    assert found == []
    page = dark("01_one_head")
    for planted in ("--g2: #222222", "--gf: #ffffff"):
        with styled(page, f"html .bd-content .drawn.drawn.drawn svg {{ {planted} }}"):
            assert len(faint(page)) > 10, planted


def test_each_colour_keeps_its_hue(dark):
    names = ("orange", "amber", "green", "blue", "pink")  # query, key, value, weight, output
    asked = """names => { const svg = document.querySelector(".drawn:not(.as-drawn) svg");
      const style = getComputedStyle(svg), page = getComputedStyle(document.body);
      return [...names.map(name => style.getPropertyValue(`--${name}`)), page.backgroundColor]; }"""
    *colours, ground = dark("01_one_head").evaluate(asked, names)
    ground = [int(part) for part in re.findall(r"\d+", ground)[:3]]
    assert max(ground) < 40
    for was, now in zip(plotting.ROLES.values(), colours, strict=True):
        was, now = (
            [int(colour.strip()[i : i + 2], 16) for i in (1, 3, 5)] for colour in (was, now)
        )
        hues = [colorsys.rgb_to_hsv(*rgb)[0] for rgb in (was, now)]
        assert min(abs(hues[0] - hues[1]), 1 - abs(hues[0] - hues[1])) < 1 / 24, now
        assert contrast(now, ground) > 4.5, now
