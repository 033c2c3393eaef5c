"""The built pages for readers who hear them, or who have no mouse: axe-core and the tab key."""

from collections.abc import Iterator

import pages
import pytest
from browsing import contrast, loaded, opened, set_scheme, violations, visit
from tables import for_each

KINDS = ("slides", "exercises", "solutions")
NAMES = [f"book/{path.stem}.html" for path in pages.NOTEBOOKS + pages.TEXTS]
NAMES += ["search.html", "search.html?q=per-head weights", "genindex.html", "404.html"]
NAMES += [f"teach/{path.stem[:2]}-{kind}.html" for path in pages.CHAPTERS for kind in KINDS]
SOME = [f"book/{name}.html" for name in ("index", "02_masks", "bibliography", "attn_lib.masks")]
SOME += ["search.html?q=per-head weights"]
SOME += ["book/teach.html", "teach/01-slides.html", "teach/01-exercises.html"]
SETTINGS = [(1280, "light"), (390, "dark"), (1280, "dark"), (390, "light")]

# where the focus is, whether the eye finds it there, and whether it is on the screen; the colours
# of the ring around it and of what is behind
FOCUS = """() => {
  const at = document.activeElement, box = at.getBoundingClientRect();
  if (at === document.body) return null;
  const parts = at.matches(".live [type=radio]") ? [] : [at];  // which are not seen themselves
  const styles = [...parts, at.nextElementSibling].filter(Boolean).map(e => getComputedStyle(e));
  const outlined = s => s.outlineStyle !== "none" && parseFloat(s.outlineWidth) > 0;
  const out = parseFloat(styles[0].outlineWidth) + parseFloat(styles[0].outlineOffset);
  let around = at.parentElement;  // what hides a ring that stands out of it
  const open = e => e === document.body || getComputedStyle(e).overflowX === "visible";
  while (around !== document.body && open(around)) around = around.parentElement;
  const rim = around.getBoundingClientRect(), past = box.bottom + out > rim.bottom + 1;
  const cut = !open(around) && outlined(styles[0]) && (box.top - out < rim.top - 1 || past);
  const behind = e => getComputedStyle(e).backgroundColor.replace("rgba(0, 0, 0, 0)", "")
    || behind(e.parentElement);
  const ring = styles.find(outlined), clear = [[0, 0, 0], [255, 255, 255]];
  const numbers = colour => colour.match(/[\\d.]+/g).slice(0, 3).map(Number);
  return {
    name: at.tagName + "." + at.className,
    colours: ring ? [ring.outlineColor, behind(at.parentElement)].map(numbers) : clear,
    mark: !cut && styles.some(s => outlined(s) || s.boxShadow !== "none"),
    shown: box.width > 0 && box.top < innerHeight && box.bottom > 0,
  };
}"""


def unseen(page) -> Iterator[str]:
    """What the tab key reaches, from the top to the end, without showing it."""
    page.add_style_tag(content="* { transition: none !important }")  # nothing is still on its way
    for _ in range(1000):
        page.keyboard.press("Tab")
        focus = page.evaluate(FOCUS)
        if focus is None:
            return
        if not (focus["mark"] and focus["shown"] and contrast(*focus["colours"]) >= 3):
            yield focus["name"]
    yield "the end is not reached"


def test_axe_finds_nothing(browser, site, everything):
    """On a few pages of each kind, taking turns with the settings; on all in all weekly."""
    assert set(SOME) < set(NAMES)
    with opened(browser, site.as_uri()) as page:
        for n, name in enumerate(NAMES if everything else SOME):
            for width, scheme in SETTINGS if everything else [SETTINGS[n % len(SETTINGS)]]:
                visit(page, f"{site.as_uri()}/{name}", width, scheme)
                assert violations(page) == [], (name, width, scheme)


def test_axe_finds_nothing_in_what_one_types(browser, site):
    """And it looks there."""
    with loaded(browser, site, "teach") as page:
        page.keyboard.press("Control+k")
        page.keyboard.type("per-head wei")
        page.locator("dialog ul.search a").first.wait_for()
        assert violations(page, "dialog[open]") == []
        page.set_viewport_size({"width": 390, "height": 900})
        set_scheme(page, "dark")
        assert violations(page, "dialog[open]") == []
        page.add_style_tag(content="dialog .page { color: #999 !important; background: #aaa }")
        found = {line.partition(":")[0] for line in violations(page, "dialog[open]")}
        assert found == {"color-contrast"}


def test_axe_finds_what_is_planted(browser, site):
    planted = {
        "image-alt": "<img src='nowhere.png'>",
        "color-contrast": "<pre style='color: #999; background: #aaa'>pale</pre>",
        "label": "<input type='text'>",
        "heading-order": "<h6>too deep</h6>",
    }
    text = (site / "book/teach.html").read_text()
    assert text.count("</article>") == 1
    text = text.replace("</article>", "\n".join([*planted.values(), "</article>"]))
    text = text.replace("access.js", "nowhere.js")  # what the theme leaves unsaid
    (site / "book/unheard.html").write_text(text)
    with loaded(browser, site, "unheard") as page:
        found = {line.partition(":")[0] for line in violations(page)}
    assert found == {*planted, "region"}


@pytest.mark.parametrize(("width", "scheme"), SETTINGS[:2])
def test_the_tab_key_goes_through_a_page_in_sight(browser, site, width, scheme):
    with loaded(browser, site, "03_many_heads", width, scheme) as page:
        assert list(unseen(page)) == []
        hidden = "outline: none !important; box-shadow: none !important"
        page.add_style_tag(content=f"summary:focus-visible {{ {hidden} }}")
        assert "SUMMARY." in unseen(page)  # and no further


def test_the_colours_say_which_they_are(browser, site):
    """By the keyboard: the focus stays; the first press changes what is seen, the next reverses."""
    with loaded(browser, site, "how_checked", 1280, "dark") as page:
        button = page.locator(".theme-switch-button").first
        button.focus()
        said = []
        for _ in range(4):
            theme = page.evaluate("document.documentElement.dataset.theme")
            assert button.get_attribute("title") == button.get_attribute("aria-label")
            said.append((theme, button.get_attribute("title")))
            page.keyboard.press("Enter")
        assert page.locator(".tooltip").count() == 0  # which would say one thing for ever
    auto = ("dark", "Colours: as the system has it, now dark")
    assert said == [auto, ("light", "Colours: light"), ("dark", "Colours: dark"), auto]


HERE = "button => button === document.activeElement"


@for_each((1280, "primary"), (390, "primary"), (390, "secondary"))
def test_a_button_that_is_pressed_keeps_the_focus(width, kind, browser, site):
    """Pressed again, it brings the sidebar back; on a phone the sidebar is closed by Escape."""
    with loaded(browser, site, "how_checked", width) as page:
        button = page.locator(f".{kind}-toggle").first
        link = page.locator(f".bd-sidebar-{kind} nav a").last
        seen = [link.is_visible()]
        button.focus()
        for key in ("Enter", "Enter" if width > 600 else "Escape"):
            page.keyboard.press(key)
            link.wait_for(state="hidden" if seen[-1] else "visible")
            seen.append(link.is_visible())
            assert width < 600 or button.evaluate(HERE)
        assert button.evaluate(HERE)
        assert seen == [width > 600, width < 600, width > 600]
