"""The built pages, opened in a browser that has no network."""

import contextlib
import math
import re

import live
import pages
import pytest
import record
import torch
from browsing import opened, visit

from attn_lib import (
    attention,
    attention_weights,
    datasets,
    masks,
    plotting,
    positions,
    pretrained,
    record_attention,
    records,
    vision,
)

NAMES = [f"book/{path.stem}.html" for path in pages.NOTEBOOKS + pages.TEXTS]

# formulas cut off on the left, or wider than the page without a scroll bar
CUT_OFF = """() => [...document.querySelectorAll("mjx-container")].filter(formula => {
  const glyphs = [...formula.querySelectorAll("mjx-c")].map(c => c.getBoundingClientRect());
  const inside = {
    left: Math.min(...glyphs.map(g => g.left)),
    right: Math.max(...glyphs.map(g => g.right)),
  };
  const scrolls = formula.closest(".pst-scrollable-table-container, div.math");
  const left = scrolls ? scrolls.getBoundingClientRect().left : 0;
  return inside.left < left - 1 || (!scrolls && inside.right > innerWidth);
}).map(formula => formula.closest("p, div").textContent.slice(0, 60))"""

SEEN = """() => ({
  formulas: document.querySelectorAll(".math").length,
  set: document.querySelectorAll("mjx-container").length,
  wrong: document.querySelectorAll("mjx-merror").length,
  text: document.querySelector("article").innerText,
  width: document.documentElement.scrollWidth,
  missing: [...document.images].filter(i => !(i.complete && i.naturalWidth)).map(i => i.src),
})"""


def faults(page, width, scheme) -> list[str]:
    """What a reader at this width and in this colour scheme would find broken."""
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    seen = page.evaluate(SEEN)
    found = {
        "asks another server": sorted(set(page.outside)),
        "errors": page.errors,
        "formulas not set": seen["formulas"] - seen["set"],
        "formulas with an error": seen["wrong"],
        "formulas left as text": seen["text"].count("\\("),
        "wider than the screen": seen["width"] > width,
        "formulas cut off": page.evaluate(CUT_OFF),
        "pictures missing": seen["missing"],
        "another scheme": page.evaluate("document.documentElement.dataset.theme") != scheme,
    }
    return [f"{width} {scheme}, {what}: {value}" for what, value in found.items() if value]


def all_faults(browser, own, name) -> list[str]:
    """A page on a wide screen, then on a narrow one, each light and dark."""
    found = []
    with opened(browser, own) as page:
        visit(page, f"{own}/{name}")
        for width, scheme in ((1280, "light"), (1280, "dark"), (390, "dark"), (390, "light")):
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


EVERYWHERE = ["1280 light", "1280 dark", "390 dark", "390 light"]
PHONE, DARK = EVERYWHERE[2:], EVERYWHERE[1:3]
# what is put into a page -> the fault, and where it must be seen
BROKEN = {
    '<script src="https://cdn.invalid/a.js"></script>': ("cdn.invalid/a.js", EVERYWHERE),
    '<img src="https://cdn.invalid/b.png">': ("cdn.invalid/b.png", EVERYWHERE),
    '<style>@import url("https://cdn.invalid/c.css");</style>': ("cdn.invalid/c.css", EVERYWHERE),
    '<script>setTimeout(() => fetch("https://cdn.invalid/late"), 5000)</script>': (
        "cdn.invalid/late",
        EVERYWHERE,
    ),
    "<script>undefined.planted</script>": ("reading 'planted'", EVERYWHERE),
    '<img src="nowhere.png">': ("nowhere.png", EVERYWHERE),
    '<p class="math">no formula</p>': ("formulas not set: 1", EVERYWHERE),
    '<p class="math">\\(\\frac{1}\\)</p>': ("formulas with an error: 1", EVERYWHERE),
    "<p>\\&#40; x</p>": ("formulas left as text: 1", EVERYWHERE),
    '<p class="math" style="margin-left: -3000px">\\(x\\)</p>': ("cut off: ['x']", EVERYWHERE),
    '<div style="min-width: 600px">a table</div>': ("wider than the screen", PHONE),
    "<script>const root = document.documentElement; new MutationObserver(() => "
    '{ if (root.dataset.theme !== "light") root.dataset.theme = "light" }).observe('
    'root, {attributes: true}); root.dataset.theme = "light"</script>': ("another scheme", DARK),
}


def test_each_fault_of_a_page_is_seen(browser, site):
    """All at once, in a page of the book: each fault where it shows, and nowhere else."""
    page = (site / "book/notation.html").read_text()
    assert page.count("</article>") == 1
    planted = page.replace("</article>", "\n".join([*BROKEN, "</article>"]))
    (site / "book/broken.html").write_text(planted)
    found = all_faults(browser, site.as_uri(), "book/broken.html")
    for fault, states in BROKEN.values():
        seen = [line.partition(",")[0] for line in found if fault in line]
        assert list(dict.fromkeys(seen)) == states, fault


def test_callouts_become_boxes_and_solutions_are_folded(browser, site):
    with opened(browser, site.as_uri()) as page:
        visit(page, (site / "book/01_one_head.html").as_uri())
        assert page.locator(".admonition.exercise").count() == 4
        assert page.locator(".admonition.tip").count() == 1
        assert page.locator("blockquote").count() == 0
        folded = page.locator("details", has_text="Solution 1.1")
        assert folded.get_attribute("open") is None
        assert not page.get_by_text("weights_by_hand = [0.47").is_visible()


def test_launch_buttons_are_off_until_there_is_an_address(site):
    """Without an address of its own, Jupyter Book's buttons would point at Jupyter Book."""
    for name in NAMES:
        text = (site / name).read_text()
        for word in (
            "colab.research",
            "mybinder",
            "executablebooks/jupyter-book",
            "dropdown-launch-buttons",
            "dropdown-source-buttons",
        ):
            assert word not in text, (name, word)


# ---------------------------------------------------------------- figures that move

STATES = [(1280, "light"), (390, "dark")]
HEAD, MAP, HEADS = "fig-one-head-drag", "fig-one-head-map", "fig-many-heads-twelve"
LEAK, MASK, ROW = "fig-masks-swap", "fig-masks-playground", "fig-scaling-row"
DIAL, SINK, SAMPLE = "fig-positions-dial", "fig-real-encoder-sink", "fig-next-token-knobs"
EXCHANGE = "fig-encoder-decoder-exchange"
PAGE_OF = {HEAD: "01_one_head", MAP: "01_one_head", LEAK: "02_masks", MASK: "02_masks"}
PAGE_OF |= {HEADS: "03_many_heads", ROW: "04_scaling", DIAL: "05_positions"}
PAGE_OF |= {SINK: "07_real_encoder", SAMPLE: "09_next_token", EXCHANGE: "10_encoder_decoder"}
SWAP, PATCHES = "fig-vision-exchange", "fig-large-vision-hover"
CLINIC = "fig-clinic-training"
PAGE_OF |= {SWAP: "11_vision", PATCHES: "12_large_vision", CLINIC: "14_clinic"}


@contextlib.contextmanager
def figure(browser, site, name, width, scheme):
    """A figure on its page, from disk; on the narrow screen fingers touch it.

    What it shows at the end must be the same in the other scheme.
    """
    with opened(browser, site.as_uri(), has_touch=width < 500) as page:
        page.route("**/mathjax/**", lambda call: call.abort())  # formulas take longer than figures
        visit(page, (site / f"book/{PAGE_OF[name]}.html").as_uri(), width, scheme)
        page.locator(f"#{name}").scroll_into_view_if_needed()
        drawn = page.locator(f"#{name}")
        yield page, drawn
        shown = drawn.inner_text()
        other = "dark" if scheme == "light" else "light"
        page.emulate_media(color_scheme=other)
        page.wait_for_selector(f"html[data-theme={other}]")
        assert drawn.inner_text() == shown
        assert page.outside == []
        assert page.errors == []


def test_figures_that_move_have_the_colours_of_the_others():
    assert live.stored()["roles"] == plotting.ROLES


ASKED = """([figure], questions) => questions.map(question => {
  const [parts, what] = question.split(" @");
  return [...figure.querySelectorAll(parts)].map(part => what === undefined ? part.innerText
    : what === "value" ? part.value
    : what === "text" ? part.textContent
    : what.startsWith("--") ? part.style.getPropertyValue(what)
    : part.getAttribute(what));
})"""


def read(drawn, *questions):
    """The texts of the parts that a selector names, or, behind an @, what else they have.

    All in one question to the browser: each costs as much as many.
    """
    return drawn.evaluate_all(ASKED, questions)


def values(texts):
    return [float(text.replace("−", "-")) for text in re.findall(r"[-−]?\d*\.\d+", " ".join(texts))]


# where an arrow ends: its line, and its tip
ENDS = [("line", "x2"), ("line", "y2"), ("circle.tip", "cx"), ("circle.tip", "cy")]


def seen(drawn, asking=None):
    """The query and the temperature as the figure of one head shows them, after comparing the rest.

    ``asking`` is the token whose query it is, None if it was moved by hand. Scores, weights, output
    and the sentence must be what `attn_lib` makes of these two.
    """
    numbers = live.stored()["figures"][HEAD]
    k, v = (torch.tensor(numbers[name]) for name in "kv")
    at, temperature, (said,), scores, shares, *drawn_at = read(
        *(drawn, ".handle @aria-valuetext", "output", ".say", "td.score", "td.weight"),
        *(f"{part}.{role} @{end}" for role in ("query", "output") for part, end in ENDS),
        *("circle.key @r", "circle.value @r"),
    )
    query, (temperature,) = values(at), values(temperature)
    out, weights = attention(torch.tensor([query]), k, v, scale=2**-0.5 / temperature)
    for texts, wanted, digits in (
        (scores, torch.tensor(query) @ k.mT / 2**0.5, 2),
        (shares, weights[0], 3),
        ([said.rpartition("gets")[2]], out[0], 3),
        ([said.partition(")")[0]], torch.tensor(query), 1),
    ):
        shown = torch.tensor(values(texts))
        torch.testing.assert_close(shown, wanted, rtol=0.0, atol=0.51 * 10**-digits)
    best = numbers["tokens"][int(weights.argmax())]
    flat = bool(weights.max() - weights.min() < 5e-4)
    start, _, puts = said.partition(" puts ")
    assert start.rpartition(")")[2] == (f", {asking}" if asking else "")
    assert start.startswith("With the query" if asking else "The query")
    assert puts.startswith("the same weight" if flat else f"{weights.max():.3f} on {best} ")
    *tips, keys, worth = ([float(number) for number in numbers] for numbers in drawn_at)
    for point, low, span, at in ((query, -1.5, 6.0, tips[:4]), (out[0], -0.4, 3.3, tips[4:])):
        x, y = ((float(a) - low) * 240 / span for a in point)
        wanted = [[x], [240 - y], [x], [240 - y]]
        assert at == [pytest.approx(number, abs=0.1) for number in wanted]
    for sizes in (keys, worth):
        assert sizes == pytest.approx((3 + 14 * weights[0].sqrt()).tolist(), abs=0.05)
    return query, temperature


# the contrast of the ring around a part with the page behind it
RING = """part => {
  const light = color => {
    const parts = color.match(/[\\d.]+/g).slice(0, 3).map(a => a / 255);
    const [r, g, b] = parts.map(a => a > 0.04045 ? ((a + 0.055) / 1.055) ** 2.4 : a / 12.92);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  };
  const style = getComputedStyle(part);
  if (style.outlineStyle === "none") return 0;
  const both = [light(style.outlineColor), light(getComputedStyle(document.body).backgroundColor)];
  return Math.max(...both) / Math.min(...both);
}"""


def drag(page, handle, by, finger):
    """With the mouse, or with a finger; where the page must not move along."""
    box = handle.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    steps = [(x + by[0] * part / 4, y + by[1] * part / 4) for part in range(5)]
    before = page.evaluate("scrollY")
    if finger:
        session = page.context.new_cdp_session(page)
        for kind, at in [("touchStart", steps[0]), *(("touchMove", step) for step in steps[1:])]:
            points = [{"x": at[0], "y": at[1]}]
            session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
        session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    else:
        page.mouse.move(*steps[0])
        page.mouse.down()
        for step in steps[1:]:
            page.mouse.move(*step)
        page.mouse.up()
    assert page.evaluate("scrollY") == before


@pytest.mark.parametrize(("width", "scheme"), STATES)
def test_one_head_moves_as_attention_does(browser, site, width, scheme):
    """Each control, by keyboard, and by mouse or finger: the numbers are those of `attn_lib`."""
    finger = width < 500
    with figure(browser, site, HEAD, width, scheme) as (page, drawn):
        press = (lambda at: at.tap()) if finger else (lambda at: at.click())
        handle = drawn.get_by_role("slider", name="query")
        slider = drawn.get_by_role("slider", name="temperature")
        again = drawn.get_by_role("button", name="start again")
        assert seen(drawn, "cat") == ([0.0, 2.0], 1.0)
        # another token
        press(drawn.locator("fieldset span", has_text="milk"))
        assert seen(drawn, "milk") == ([4.0, 0.0], 1.0)
        page.keyboard.press("ArrowLeft")
        assert seen(drawn, "warm") == ([2.0, 0.0], 1.0)  # warm
        # another temperature
        slider.focus()
        for _ in range(4):
            page.keyboard.press("ArrowRight")
        assert seen(drawn, "warm") == ([2.0, 0.0], 2.0)
        frame = slider.bounding_box()
        at = {"x": frame["width"] - 2, "y": frame["height"] / 2}
        slider.tap(position=at) if finger else slider.click(position=at)
        assert seen(drawn, "warm") == ([2.0, 0.0], 8.0)
        press(again)
        assert seen(drawn, "cat") == ([0.0, 2.0], 1.0)
        # another query
        handle.focus()
        for key in ("ArrowRight", "ArrowRight", "Shift+ArrowDown", "ArrowUp", "Shift+ArrowLeft"):
            page.keyboard.press(key)
        assert seen(drawn) == ([-0.3, 1.6], 1.0)
        press(again)
        unit = drawn.locator("svg").first.bounding_box()["width"] / 6.0  # from -1.5 to 4.5
        drag(page, handle, (1.5 * unit, 3 * unit), finger)
        (x, y), _ = seen(drawn)
        assert (x, y) == pytest.approx((1.5, -1.0), abs=0.11)
        drag(page, handle, (-900, 0), finger)  # beyond the frame
        assert seen(drawn)[0] == [-1.3, y]
        plane = drawn.locator("svg").first
        at = {"x": 4.5 * unit, "y": 4.0 * unit}
        plane.tap(position=at) if finger else plane.click(position=at)
        (x, y), _ = seen(drawn)
        assert (x, y) == pytest.approx((3.0, 0.5), abs=0.11)
        press(drawn.locator("fieldset span").first)  # the: a query of zeros
        assert seen(drawn, "the") == ([0.0, 0.0], 1.0)


def test_a_drag_from_elsewhere_moves_nothing(browser, site):
    """The mouse leaves no ring behind, and selects no names; the keyboard shows where it is."""
    with figure(browser, site, HEAD, 1280, "dark") as (page, drawn):
        handle, plane = drawn.locator(".handle"), drawn.locator("svg").first
        ring = "e => { const s = getComputedStyle(e); return [s.outlineStyle, s.stroke].join(); }"
        drawn.locator("fieldset span", has_text="milk").click()
        before = drawn.inner_text()
        frame = plane.bounding_box()
        for x, y in ((0.25, 0.4), (0.3, 0.7)):  # over names
            start = (frame["x"] + x * frame["width"], frame["y"] + y * frame["height"])
            page.mouse.move(*start)
            page.mouse.down()
            page.mouse.move(start[0] + 50, start[1] + 44, steps=4)
            page.mouse.move(start[0] + 80, start[1] - 16, steps=4)
            page.mouse.up()
            assert drawn.inner_text() == before
            assert page.evaluate("String(getSelection())") == ""
        drag(page, handle, (-40, -40), False)
        assert drawn.inner_text() != before
        assert handle.evaluate(ring) == "none,none"
        page.keyboard.press("ArrowUp")
        assert handle.evaluate(ring) != "none,none"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_ring_in_a_figure_can_be_seen(browser, site, scheme):
    """As well as text can be read, and above the frame of the row."""
    with figure(browser, site, HEADS, 1280, scheme) as (page, drawn):
        for at, ringed in (
            ("input:checked", "input:checked + *"),
            (".chosen button", ".chosen button"),
        ):
            drawn.locator(at).first.focus()
            page.keyboard.press("ArrowDown")
            ring = drawn.locator(ringed).first
            assert ring.evaluate(RING) >= 4.5
        assert ring.evaluate("e => getComputedStyle(e).zIndex") == "1"


@pytest.fixture(scope="module")
def trained():
    """Tokens and weights of the heads of MiniLM's first two layers, from the whole model."""
    model = pretrained.minilm()
    pieces = model.tokenizer.encode("The cat drank the warm milk.")
    with torch.no_grad(), record_attention(model) as maps:
        model(torch.tensor([pieces.ids]))
    layers = [maps[f"encoder.blocks.{i}.attention"][0] for i in (0, 1)]  # (12, 9, 9)
    return pieces.tokens, layers


def chosen(drawn, tokens, weights, where=""):
    """The chosen row of a large map, after comparing its numbers and the sentence."""
    marks, pressed, (said,) = read(
        drawn, "tbody tr @class", "tr.chosen button[aria-pressed=true]", ".say"
    )
    (t,) = holding("chosen", marks)
    # no other number is to be seen than those of this row
    numbers = drawn.locator("td span:visible").evaluate_all(
        "all => all.map(one => [one.innerText, one.closest('tr').className])"
    )
    assert {row for _, row in numbers} == {marks[t]}
    shown = torch.tensor(values([text for text, _ in numbers]))
    torch.testing.assert_close(shown, weights[t], rtol=0.0, atol=0.0051)
    assert pressed == [tokens[t]]
    best = int(weights[t].argmax())
    wanted = f"{where}{tokens[t]} puts {weights[t, best]:.3f} of its attention on {tokens[best]}."
    assert said == wanted
    return t


@pytest.mark.parametrize(("width", "scheme"), STATES)
def test_the_rows_of_the_trained_map_can_be_chosen(browser, site, trained, width, scheme):
    tokens, weights = trained[0], trained[1][0][2]
    with figure(browser, site, MAP, width, scheme) as (page, drawn):
        assert drawn.locator("thead th").all_inner_texts() == tokens
        rows = drawn.locator("tbody tr").all()
        assert chosen(drawn, tokens, weights) == tokens.index("milk")
        for t, row in enumerate(rows):
            at = row.locator("td").nth(3)
            at.tap() if width < 500 else at.hover()
            assert chosen(drawn, tokens, weights) == t
        row.get_by_role("button").focus()
        for t in range(len(tokens) - 2, -1, -1):
            page.keyboard.press("ArrowUp")
            assert chosen(drawn, tokens, weights) == t
        page.keyboard.press("ArrowUp")
        page.keyboard.press("ArrowDown")
        assert chosen(drawn, tokens, weights) == 1


@pytest.mark.parametrize(("name", "layer", "head"), [(HEADS, 0, 4), (SINK, 1, 1)])
@pytest.mark.parametrize(("width", "scheme"), STATES)
def test_heads_can_be_switched(browser, site, trained, width, scheme, name, layer, head):
    """The large map is the head's, the row stays, and each small one shows where it goes most."""
    tokens, maps = trained[0], trained[1][layer]

    def seen():
        (h,), marks, most = read(drawn, "input:checked @value", ".heads svg .mark @y", ".most")
        h = int(h)
        t = chosen(drawn, tokens, maps[h], f"In head {h}, ")
        assert marks == [str(t)] * len(maps)
        best = maps[:, t].max(dim=-1)
        assert [text.split(" ")[0] for text in most] == [tokens[s] for s in best.indices]
        shown = torch.tensor([float(text.split(" ")[1]) for text in most])
        torch.testing.assert_close(shown, best.values, rtol=0.0, atol=0.0051)
        return h, t

    with figure(browser, site, name, width, scheme) as (page, drawn):
        press = (lambda at: at.tap()) if width < 500 else (lambda at: at.click())
        cells = read(drawn, *(f".heads .cell @{what}" for what in ("--w", "x", "y")))
        small = torch.tensor([[float(n) for n in numbers] for numbers in cells])
        small = small.T.reshape(*maps.shape, 3)
        torch.testing.assert_close(small[..., 0], maps, rtol=0.0, atol=1e-4)
        places = torch.cartesian_prod(*map(torch.arange, maps.shape[1:])).flip(-1)
        assert torch.equal(small[..., 1:].flatten(1, 2), places.float().expand(len(maps), -1, -1))
        assert seen() == (head, tokens.index("drank"))
        for h, label in enumerate(drawn.locator(".heads label").all()):
            assert f"head {h}\n" in label.inner_text()
            press(label)
            assert seen() == (h, 3)
        page.keyboard.press("ArrowRight")  # from the last to the first
        assert seen() == (0, 3)
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowUp")
        assert seen() == (10, 3)
        at = drawn.locator("tbody tr").nth(6).locator("td").nth(2)
        at.tap() if width < 500 else at.hover()
        assert seen() == (10, tokens.index("milk"))
        press(drawn.locator(".heads label").nth(2))
        assert seen() == (2, 6)
        drawn.get_by_role("button", name="milk").focus()
        page.keyboard.press("ArrowUp")
        assert seen() == (2, 5)


PICKED = "input:checked + span"  # what is chosen in each row of buttons


def holding(name, classes):
    """The numbers of the parts that have this class."""
    return [i for i, names in enumerate(classes) if name in (names or "").split()]


def listed(names):
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


KINDS = {
    "causal": masks.causal_mask(6),
    "window": masks.window_mask(6, window=3),
    "two texts": masks.segment_mask(torch.tensor([[0, 0, 0, 1, 1, 1]]))[0, 0],
    "off by one": masks.causal_mask(6, offset=1),
    "none": torch.ones(6, 6, dtype=torch.bool),
}


@pytest.mark.parametrize(("width", "scheme"), STATES)
def test_outputs_move_as_those_of_attention_do(browser, site, width, scheme):
    """Each mask, and a dog in each place: what moves, and what of it is a leak."""
    tokens, *qkv = (live.stored()["figures"][HEAD][name] for name in ("tokens", *"qkv"))
    before = list(map(torch.tensor, qkv))

    def moved(mask, s):
        after = [part.clone() for part in before]
        for part, dog in zip(after, ([0.0, 3.0], [3.0, 0.0], [3.0, 0.0]), strict=True):
            part[s] = torch.tensor(dog)
        now, then = (attention(*parts, mask=mask)[0] for parts in (after, before))
        return (now - then).abs().amax(dim=-1)

    def seen(kind, s):
        picked, cells, classes, (said,) = read(drawn, PICKED, "td.moved", "td.moved @class", ".say")
        assert picked == [kind, tokens[s]]
        wanted = moved(KINDS[kind], s)
        torch.testing.assert_close(torch.tensor(values(cells)), wanted, rtol=0.0, atol=0.00051)
        early = [t for t in range(s) if wanted[t] > 0]
        assert holding("leak", classes) == early
        assert ("a leak" in said) == bool(early)
        assert (f" of {listed([tokens[t] for t in early])}, before" in said) == bool(early)

    with figure(browser, site, LEAK, width, scheme) as (page, drawn):
        press = (lambda at: at.tap()) if width < 500 else (lambda at: at.click())
        kinds, words = (drawn.locator("fieldset").nth(n).locator("span") for n in (0, 1))
        assert words.all_inner_texts() == tokens
        seen("causal", 5)
        for kind, button in zip(kinds.all_inner_texts(), kinds.all(), strict=True):
            press(button)
            for s, word in enumerate(words.all()):
                press(word)
                seen(kind, s)
        assert kind == "none"
        page.keyboard.press("ArrowLeft")
        seen("none", 4)
        drawn.get_by_role("radio", name="off by one").focus()
        page.keyboard.press("ArrowUp")
        seen("causal", 4)


@pytest.mark.parametrize(("width", "scheme"), STATES)
def test_masks_and_weights_follow_the_playground(browser, site, width, scheme):
    """Each type, each reading of True, each length: the weights are those of `attn_lib`."""
    numbers = live.stored()["figures"][MASK]
    q, k, tokens = torch.tensor(numbers["q"]), torch.tensor(numbers["k"]), numbers["tokens"]

    def seen(kind, reading, length):
        cells = "table.weighed tbody td"
        picked, reads, (_, *signs), texts, classes, (said,) = read(
            drawn, PICKED, "output", "table.given td", cells, f"{cells} @class", ".say"
        )
        assert picked == [kind, reading]
        assert reads == [f"{length} of 6"]
        given = KINDS[kind] & (torch.arange(6) < length)
        mask = given if reading == "may attend" else ~given
        assert signs == ["T" if cell else "F" for cell in given.flatten()]
        weights = attention_weights(q, k, mask=mask)
        assert [text != "" for text in texts] == mask.flatten().tolist()
        shown = torch.tensor([float(text or 0) for text in texts])
        torch.testing.assert_close(shown, weights.flatten(), rtol=0.0, atol=0.0051)
        assert holding("closed", classes) == (~mask).flatten().nonzero().flatten().tolist()
        empty = [tokens[t] for t in range(6) if not mask[t].any()]
        rest = f"Nothing is open to {listed(empty)}: zeros." if empty else "Every row sums to 1."
        assert said == f"{int(mask.sum())} of 36 pairs are open. {rest}"

    with figure(browser, site, MASK, width, scheme) as (page, drawn):
        finger = width < 500
        press = (lambda at: at.tap()) if finger else (lambda at: at.click())
        kinds, readings = (drawn.locator("fieldset").nth(n).locator("span") for n in (0, 1))
        slider = drawn.get_by_role("slider", name="real tokens")
        seen("causal", "may attend", 6)
        for kind, button in zip(kinds.all_inner_texts(), kinds.all(), strict=True):
            press(button)
            for reading, other in zip(readings.all_inner_texts(), readings.all(), strict=True):
                press(other)
                slider.focus()
                page.keyboard.press("Home")
                for length in range(7 if reading == "may attend" else 3):
                    seen(kind, reading, length)
                    page.keyboard.press("ArrowRight")
        frame = slider.bounding_box()
        at = {"x": 2, "y": frame["height"] / 2}
        slider.tap(position=at) if finger else slider.click(position=at)
        seen("none", "blocked", 0)
        drawn.get_by_role("radio", name="blocked").focus()
        page.keyboard.press("ArrowUp")
        seen("none", "may attend", 0)


@pytest.fixture(scope="module")
def expected():
    """The logits after a prompt, from the whole model, and the names of the likeliest tokens."""
    tokenizer = pretrained.smollm2_tokenizer()
    ids = torch.tensor([tokenizer.encode("The cat drank the warm").ids])
    with torch.no_grad():
        logits = pretrained.smollm2()(ids)[0, -1].double()
    best = logits.topk(20).indices
    return logits, best, [tokenizer.decode([i]).replace(" ", "␣") for i in best.tolist()]


def nucleus(logits, temperature, top_p):
    """What each token gets when the fewest that have `top_p` are kept, one by one."""
    weights = (logits / temperature).softmax(dim=-1)
    order = weights.argsort(descending=True)
    enough = (weights[order].cumsum(dim=-1) >= top_p - 1e-9).nonzero()
    kept = order[: int(enough[0]) + 1 if len(enough) else None]
    return torch.zeros_like(weights).index_put((kept,), weights[kept] / weights[kept].sum())


@pytest.mark.parametrize(("width", "scheme"), STATES)
def test_the_next_token_follows_temperature_and_top_p(browser, site, expected, width, scheme):
    """Both sliders, by keyboard, and by mouse or finger: shares as PyTorch computes them."""
    logits, best, tokens = expected

    def seen(temperature, top_p):
        outputs, texts, named, classes, (said,) = read(
            drawn, "output", "td.share", "tbody th", "tbody tr @class", ".say"
        )
        assert outputs == [f"{temperature:.2f}", f"{top_p:.1f}"]
        shares = nucleus(logits, temperature, top_p)
        wanted = torch.cat([shares[best], (1 - shares[best].sum())[None].clamp(min=0.0)])
        shown = torch.tensor([0.0 if text == "cut off" else float(text) for text in texts])
        torch.testing.assert_close(shown.double(), wanted, rtol=0.0, atol=0.00061)
        assert named == [*tokens, "all others"]
        cut = [text == "cut off" for text in texts]
        assert cut == [*(shares[best] == 0).tolist(), int((shares > 0).sum()) <= 20]
        assert holding("cut", classes) == [i for i, is_cut in enumerate(cut) if is_cut]
        rest = ", and no other." if cut[-1] else f", and others, with {texts[-1]} together."
        assert said == f"{20 - sum(cut[:-1])} of these 20 tokens can come next{rest}"

    with figure(browser, site, SAMPLE, width, scheme) as (page, drawn):
        finger = width < 500
        heat = drawn.get_by_role("slider", name="temperature")
        cut = drawn.get_by_role("slider", name="top-p")
        seen(1.0, 1.0)
        cut.focus()
        for n in range(9, 0, -1):
            page.keyboard.press("ArrowLeft")
            seen(1.0, n / 10)
        for n, top_p in ((1, 0.1), (8, 0.1), (8, 0.8), (3, 0.8), (3, 0.9)):
            heat.focus()
            page.keyboard.press("Home")
            for _ in range(n - 1):
                page.keyboard.press("ArrowRight")
            cut.focus()
            page.keyboard.press("Home")
            for _ in range(round(10 * top_p) - 1):
                page.keyboard.press("ArrowRight")
            seen(n / 4, top_p)
        for slider in (heat, cut):  # at its right end
            frame = slider.bounding_box()
            at = {"x": frame["width"] - 2, "y": frame["height"] / 2}
            slider.tap(position=at) if finger else slider.click(position=at)
        seen(2.0, 1.0)
        heat.focus()
        for n in range(7, 0, -1):
            page.keyboard.press("ArrowLeft")
            seen(n / 4, 1.0)
        again = drawn.get_by_role("button", name="start again")
        again.tap() if finger else again.click()
        seen(1.0, 1.0)


@pytest.mark.parametrize(("width", "scheme"), STATES)
def test_the_dial_turns_as_rotary_positions_do(browser, site, width, scheme):
    """Each position, and both together, by keyboard, and by mouse or finger; the product stays."""
    pairs = {
        role: torch.tensor(live.stored()["figures"][DIAL][role[0]]) for role in ("query", "key")
    }
    name_of = "query at", "key at", "both from"

    def seen(i, j):
        sliders, outputs, texts, (said,), *drawn_at = read(
            *(drawn, "input @value", "output", "td.product", ".say"),
            *(f"td.{role}" for role in pairs),
            *(f"svg {part}.{role} @{end}" for role in pairs for part, end in ENDS),
        )
        assert sliders == [str(i), str(j), str(min(i, j))]
        assert outputs == [str(i), str(j), f"{min(i, j)} on"]
        rotated, at = {}, iter(drawn_at)
        cells = {role: next(at) for role in pairs}
        for role, p in (("query", i), ("key", j)):
            # the speeds 1 and 1/10 are those of four numbers with base 100; halves are pairs
            numbers = pairs[role].T.reshape(1, 4).double()
            turned = positions.apply_rope(numbers, torch.tensor([p]), base=100.0)
            rotated[role] = turned.view(2, 2).T  # a row is a pair
            found = torch.tensor([values([text]) for text in cells[role]]).double()
            torch.testing.assert_close(found, rotated[role], rtol=0.0, atol=0.00051)
            wanted = 120 + 100 * rotated[role] * torch.tensor([1.0, -1.0])
            for ats in 2 * wanted.T.tolist():  # of both planes
                assert [float(number) for number in next(at)] == pytest.approx(ats, abs=0.01)
        products = (rotated["query"] * rotated["key"]).sum(dim=-1)
        found = torch.tensor(values(texts)).double()
        torch.testing.assert_close(found, products, rtol=0.0, atol=0.00051)
        head, _, score = said.replace("−", "-").removesuffix(".").rpartition(" ")
        assert head == f"Query at {i}, key at {j}: distance {i - j}, score"
        assert float(score) == pytest.approx(float(products.sum()), abs=0.00051)
        return score

    with figure(browser, site, DIAL, width, scheme) as (page, drawn):
        finger = width < 500
        query, key, both = (drawn.get_by_role("slider", name=name) for name in name_of)
        again = drawn.get_by_role("button", name="start again")
        score = seen(2, 1)
        both.focus()
        for low in range(2, 30):  # the product stays, up to the end
            page.keyboard.press("ArrowRight")
            assert seen(low + 1, low) == score
        page.keyboard.press("ArrowRight")
        assert seen(30, 29) == score
        again.tap() if finger else again.click()
        seen(2, 1)
        query.focus()
        for i in (3, 4, 5):
            page.keyboard.press("ArrowRight")
            assert seen(i, 1) != score
        key.focus()
        page.keyboard.press("End")
        seen(5, 30)
        both.focus()
        page.keyboard.press("Home")
        seen(0, 25)
        for knob, (i, j) in ((key, (0, 30)), (query, (30, 30))):  # at its right end
            frame = knob.bounding_box()
            at = {"x": frame["width"] - 2, "y": frame["height"] / 2}
            knob.tap(position=at) if finger else knob.click(position=at)
            seen(i, j)


@pytest.fixture(scope="module")
def knob():
    """The random query, keys and values of the chapter on the scale, drawn anew."""
    generator = torch.Generator().manual_seed(14)
    sizes = ((1, 1024), (64, 1024), (64, 8))
    return [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]


@pytest.mark.parametrize(("width", "scheme"), STATES)
def test_a_row_follows_width_number_of_keys_and_scale(browser, site, knob, width, scheme):
    """Both sliders and the scales: weights, entropy and gradient are those of `attn_lib`."""
    numbers = live.stored()["figures"][ROW]
    names = ["1", "1/√dₖ", "1/dₖ"]

    def seen(d, S, kind):
        outputs, picked, texts, (said,) = read(drawn, "output", PICKED, "td.weight", ".say")
        assert outputs == [str(d), str(S)]
        assert picked == [names[kind]]
        scale, (q, k, v) = [1.0, d**-0.5, 1 / d][kind], knob
        q, k, v = q[:, :d], k[:S, :d], v[:S]
        weights = attention_weights(q, k, scale=scale)[0]
        assert [text.strip() == "" for text in texts] == [s >= S for s in range(64)]
        shown = torch.tensor([float(text) for text in texts[:S]], dtype=torch.float64)
        torch.testing.assert_close(shown, weights, rtol=0.0, atol=0.0051)
        slope = torch.autograd.functional.jacobian(lambda q: attention(q, k, v, scale=scale)[0], q)
        i, j = numbers["widths"].index(d), numbers["stops"].index(S)
        wanted = [
            scale,
            float(torch.special.entr(weights).sum().exp()),
            float(slope.norm()) / 8**0.5,
            numbers["half"][i][j][kind],
        ]
        found = values([said])
        assert found == pytest.approx(wanted, abs=0.0051)
        assert [found[0], *found[2:]] == pytest.approx([wanted[0], *wanted[2:]], abs=0.00051)
        assert f" of {S} keys are heard" in said

    with figure(browser, site, ROW, width, scheme) as (page, drawn):
        finger = width < 500
        press = (lambda at: at.tap()) if finger else (lambda at: at.click())
        wide = drawn.get_by_role("slider", name="width")
        many = drawn.get_by_role("slider", name="number of keys")
        scales = drawn.locator("fieldset span")
        assert scales.all_inner_texts() == names
        seen(64, 16, 0)
        for kind, button in enumerate(scales.all()):
            press(button)
            wide.focus()
            page.keyboard.press("Home")
            for i, d in enumerate(numbers["widths"]):
                wide.focus()
                page.keyboard.press("ArrowRight" if i else "Home")
                many.focus()
                page.keyboard.press("Home")
                for S in numbers["stops"]:
                    seen(d, S, kind)
                    page.keyboard.press("ArrowRight")
        for slider in (wide, many):  # at its left end
            at = {"x": 2, "y": slider.bounding_box()["height"] / 2}
            slider.tap(position=at) if finger else slider.click(position=at)
        seen(4, 2, 2)
        drawn.get_by_role("radio", name="1/dₖ").focus()
        page.keyboard.press("ArrowUp")
        seen(4, 2, 1)
        press(drawn.get_by_role("button", name="start again"))
        seen(64, 16, 0)


READ, OTHER = "23 October 2025", "14 January 1987"
GROUPS = {"day": "23", "month": "October", "year": "2025", "both spaces": "  "}


@pytest.fixture(scope="module")
def written():
    """What the model writes for two dates, and for mixtures of what its encoder made of them."""
    with record.experiment(pages.BOOK / "10_encoder_decoder.ipynb") as page:
        model = page["new_model"](0)
        model.load_state_dict(records.shipped_tensors("10_encoder_decoder"))
        model = model.double().eval()
        places = {name: READ.index(part) for name, part in GROUPS.items() if part != "  "}
        rows = [range(at, at + len(GROUPS[name])) for name, at in places.items()]
        spaces = [s for s, sign in enumerate(READ) if sign == " "]
        rows = [[s] for s in range(15)] + [*rows, spaces, [s for s in range(15) if s not in spaces]]
        chosen = torch.tensor([[s in taken for s in range(15)] for taken in rows])
        answers = page["mixed"](model, len(rows) * [READ], len(rows) * [OTHER], chosen)
        return rows, answers, *page["write"](model, [READ, OTHER])


@pytest.mark.parametrize(("width", "scheme"), STATES)
def test_rows_of_a_context_can_be_exchanged(browser, site, written, width, scheme):
    """Each row and each group: what the decoder is given, what it writes, and what follows."""
    rows, answers, own, theirs = written

    def seen(i):
        # the fifteen signs that are read, and the ten that are written
        signs, classes, (text,) = read(drawn, ".signs td", ".signs td @class", ".say")
        given = [(OTHER if s in rows[i] else READ)[s].replace(" ", "␣") for s in range(15)]
        assert signs[:15] == given
        assert holding("away", classes) == list(rows[i])
        assert "".join(signs[15:]) == answers[i]
        follow = [15 + t for t in range(10) if answers[i][t] != own[t]]
        assert holding("follows", classes) == follow
        parts = []
        for name, at in (("year", slice(0, 4)), ("month", slice(5, 7)), ("day", slice(8, 10))):
            now = answers[i][at]
            whose = ", that of the other date" if now == theirs[at] else ""
            parts += [f"the {name} is {now}{whose}"] if now != own[at] else []
        said = "; ".join(parts) or "nothing changed"
        assert text == f"{answers[i]}: {said}."

    with figure(browser, site, EXCHANGE, width, scheme) as (page, drawn):
        press = (lambda at: at.tap()) if width < 500 else (lambda at: at.click())
        buttons = drawn.locator("fieldset span")
        names = [sign.replace(" ", "␣") for sign in READ]
        assert buttons.all_inner_texts() == [*names, *GROUPS, "all but both"]
        seen(10)
        for i, button in enumerate(buttons.all()):
            press(button)
            seen(i)
        for i in range(len(rows) - 2, -1, -1):
            page.keyboard.press("ArrowLeft")
            seen(i)


@pytest.fixture(scope="module")
def looks():
    """The weights of the figure's three heads on the cat's photograph, recorded anew."""
    cat = datasets.photographs()["chelsea"][None].float()
    cat = torch.nn.functional.interpolate(cat, size=168, mode="bilinear", antialias=True)
    model = pretrained.dinov2(168)
    with record_attention(model) as maps, torch.no_grad():
        model(pretrained.dinov2_inputs(cat.round().byte()))
    layers = list(maps.values())
    return [layers[layer][0, head].double() for layer, head in ((1, 1), (0, 5), (11, 0))]


@pytest.mark.parametrize(("width", "scheme"), STATES)
def test_each_patch_shows_whom_it_attends_to(browser, site, looks, width, scheme):
    """Patches, heads, the class token; by keyboard, and by mouse or finger."""
    names = ["near (layer 1)", "sink (layer 0)", "alike (layer 11)"]

    def place(i):
        return f"row {(i - 1) // 12 + 1}, column {(i - 1) % 12 + 1}" if i else "the class token"

    def near(shown, wanted):  # steps of a 90th of the root, then two digits
        return abs(shown - wanted) <= max(wanted, 0.001) ** 0.5 / 90 + 0.0051

    def seen(asked, head):
        weights = looks[head][asked]
        buttons, cells = ".patches button", ".patches td"
        picked, pressed, labels, marked, veils, rows, (said,) = read(
            *(drawn, PICKED, f"{buttons} @aria-pressed", f"{buttons} @aria-label"),
            *(f"{cells} @class", f"{cells} @--w", ".most tbody tr", ".say"),
        )
        assert picked == [names[head]]
        assert pressed == [str(i == asked).lower() for i in range(1, 145)]
        assert holding("chosen", marked) == [asked - 1] * (asked > 0)
        for i, (label, veil) in enumerate(zip(labels, veils, strict=True), start=1):
            named, _, number = label.partition(": ")
            assert named == place(i)
            assert near(float(number), float(weights[i]))
            assert abs(float(veil) - float(weights[i]) ** 0.5) <= 0.0065
        best = weights.sort(descending=True).values[:4].tolist()
        for text, wanted in zip(rows, best, strict=True):
            name, number = text.split("\t")
            i = next(i for i in range(145) if place(i) == name)
            assert near(float(number), float(weights[i]))
            assert near(float(number), wanted)
        first, number = rows[0].split("\t")
        asking = f"The patch in {place(asked)}" if asked else "The class token"
        whom = first if first == "the class token" else f"the patch in {first}"
        whom = "itself" if first == place(asked) else whom
        assert said == f"{asking} puts {number} of its attention on {whom}."

    with figure(browser, site, PATCHES, width, scheme) as (page, drawn):
        finger = width < 500
        press = (lambda at: at.tap()) if finger else (lambda at: at.click())
        at = drawn.locator(".patches button")
        seen(52, 2)
        for head, button in enumerate(drawn.locator("fieldset span").all()):
            press(button)
            seen(52, head)
            for asked in (1, 40, 144):
                at.nth(asked - 1).tap() if finger else at.nth(asked - 1).hover()
                seen(asked, head)
            at.nth(51).focus()
            seen(52, head)
            for key, asked in (("ArrowUp", 40), ("ArrowLeft", 39), ("ArrowDown", 51)):
                page.keyboard.press(key)
                seen(asked, head)
            page.keyboard.press("ArrowRight")
        at.nth(0).focus()
        page.keyboard.press("ArrowLeft")  # the edge holds
        seen(1, 2)
        press(drawn.get_by_role("button", name="ask the class token"))
        seen(0, 2)
        drawn.get_by_role("radio", name="alike").focus()
        page.keyboard.press("ArrowUp")
        seen(0, 1)
        press(drawn.get_by_role("button", name="start again"))
        seen(52, 2)


@pytest.fixture(scope="module")
def shipped():
    """The shipped Vision Transformer: what it says of a test picture with two patches exchanged."""
    sizes = {"d_model": 64, "num_heads": 4, "d_ff": 128, "num_layers": 4, "num_classes": 10}
    model = vision.VisionTransformer(image_size=28, patch_size=7, in_channels=1, **sizes).eval()
    stored = records.shipped_tensors("11_vision")
    model.load_state_dict({n[4:]: w for n, w in stored.items() if n.startswith("vit.")})
    images = datasets.fashion("test").images[[0, 2, 1]]

    @torch.no_grad()
    def says(which, pair=()):
        picture = images[which].clone()
        spots = [(slice(i // 4 * 7, i // 4 * 7 + 7), slice(i % 4 * 7, i % 4 * 7 + 7)) for i in pair]
        for spot, other in zip(spots, spots[::-1], strict=True):
            picture[spot] = images[which][other]
        return picture, model((picture[None, None] / 255 - 0.286) / 0.353)[0].softmax(dim=-1)

    return says


@pytest.mark.parametrize(("width", "scheme"), STATES)
def test_two_patches_can_be_exchanged(browser, site, shipped, width, scheme):
    """Any two, of each picture, by mouse or finger and by keyboard: picture and probabilities."""
    names = [datasets.FASHION_NAMES[i] for i in datasets.fashion("test").labels[[0, 2, 1]]]

    def seen(which, pair=(), first=None):
        picked, pressed, texts, greys, (said,) = read(
            *(drawn, PICKED, ".tiles button @aria-pressed", "td.share", ".tiles rect @--w", ".say")
        )
        assert picked == [names[which]]
        assert pressed == [str(i in pair or i == first).lower() for i in range(16)]
        picture, wanted = shipped(which, pair)
        torch.testing.assert_close(torch.tensor(values(texts)), wanted, rtol=0.0, atol=0.0007)
        shown = 255 * torch.tensor([float(grey) for grey in greys])
        shown = shown.view(4, 4, 7, 7).transpose(1, 2).reshape(28, 28)
        torch.testing.assert_close(shown, picture.float(), rtol=0.0, atol=0.01)
        best = int(wanted.argmax())
        start = "The whole picture"
        if pair:
            start = f"Patches {min(pair) + 1} and {max(pair) + 1} exchanged"
        elif first is not None:
            start = f"Patch {first + 1}, and which other one? The whole picture"
        assert said.startswith(f"{start}: the model says {datasets.FASHION_NAMES[best]}, with ")
        assert values([said.rpartition("with")[2]]) == pytest.approx(
            [float(wanted[best])], abs=7e-4
        )

    with figure(browser, site, SWAP, width, scheme) as (page, drawn):
        press = (lambda at: at.tap()) if width < 500 else (lambda at: at.click())
        tiles = drawn.locator(".tiles button").all()
        assert drawn.locator("fieldset span").all_inner_texts() == names
        assert drawn.locator(".next tbody th").all_inner_texts() == list(datasets.FASHION_NAMES)
        seen(0)
        for which, pictured in enumerate(drawn.locator("fieldset span").all()):
            press(pictured)
            seen(which)
            for a, b in ((0, 15), (9, 6), (1, 4)):
                press(tiles[a])
                seen(which, first=a)
                press(tiles[b])
                seen(which, (a, b))
        press(tiles[3])
        press(tiles[3])  # chosen, and given back
        seen(2)
        tiles[5].focus()
        page.keyboard.press("Enter")
        for _ in range(4):
            page.keyboard.press("Tab")
        page.keyboard.press("Space")
        seen(2, (5, 9))
        press(drawn.get_by_role("button", name="start again"))
        seen(0)


@pytest.fixture(scope="module")
def echoes():
    """The clinic's eight small models, trained anew by its cells: map, losses and sums of each."""
    cells = {c.id: c.source for c in pages.code_cells(pages.read(pages.BOOK / "14_clinic.ipynb"))}
    space = {"math": math, "torch": torch, "F": torch.nn.functional, "nn": torch.nn}
    sdpa, late = torch.nn.functional.scaled_dot_product_attention, ~masks.causal_mask(12)
    space["future"] = lambda q, k, v: sdpa(q, k, v, late[: q.shape[-2], : q.shape[-2]])
    with torch.random.fork_rng(devices=[]):
        for name in ("mine", "echo", "train", "losses"):
            exec(cells[f"ch14-{name}"], space)  # noqa: S102 - the page's own
    said, causal = torch.tensor([[0, 1, 2, 0, 3, 4, 0, 1, 2, 0, 3]]), masks.causal_mask(11)
    meant = {"right": {"mask": causal}, "closes nothing": {}, "inverted": {"mask": ~causal}}
    meant |= {
        "divided by d": {"mask": causal, "scale": 1 / 8},
        "by √heads": {"mask": causal, "scale": 2**-0.5},
    }
    meant["one ahead"] = {"mask": torch.ones(11, 11).tril(1).bool()}
    found = {}
    for name, (model, losses) in space["trained"].items():
        with torch.no_grad():
            q, k, _ = model.project(model.embed(said))
            eye = torch.eye(11, dtype=q.dtype).expand(1, 2, 11, 11)
            weights = model.attend(q, k, eye)[0, 0]
            if name in meant:  # what it does is attention under some mask, with some scale
                ours = attention_weights(q, k, **meant[name])[0, 0]
                torch.testing.assert_close(weights, ours)
            sums = [float(space[kind](model, space["new"])) for kind in ("loss", "alone")]
        found[name] = weights.float(), losses.view(50, 4).mean(dim=1), sums
    return found


@pytest.mark.parametrize(("width", "scheme"), STATES)
def test_a_mistake_shows_its_map_and_its_losses(browser, site, echoes, width, scheme):
    """Each attention by mouse or finger, and by keyboard: every weight, the curve, both losses."""
    names, floor = list(echoes), 5 / 11 * math.log(8)
    tokens = (2 * ["the", "cat", "drank", "the", "warm", "milk"])[:11]

    def sentence(weights, row):
        """Where most of a row's attention is, before or later, and whether it sums to 1."""
        best, total = int(weights.argmax()), float(weights.sum())
        far = f"{(n := abs(best - row))} word{'s' * (n > 1)} {'later' if best > row else 'before'}"
        on = "itself" if best == row else f"{tokens[best]}, {far}"
        most = float(weights.max())
        if total < 0.005:
            return f"The row of {tokens[row]} sums to #, not 1: it attends to nothing.", [0.0]
        if abs(total - 1) < 0.005:
            return f"{tokens[row]} puts # of its attention on {on}.", [most]
        words = f"The row of {tokens[row]} sums to #, not 1; its largest weight, #, is on {on}."
        return words, [total, most]

    def seen(name, row):
        weights, losses, (whole, alone) = echoes[name]
        picked, head, spans, marked, said, axes, ends, (curve,), (label,) = read(
            *(drawn, PICKED, ".map thead th", ".map td span @text", ".map tbody tr @class"),
            *(".say", "svg.losses @text", ".ends td", "path.curve @d", "svg.losses @aria-label"),
        )
        assert picked == [name]
        assert head == tokens
        shown = torch.tensor(values(spans)).view(11, 11)
        torch.testing.assert_close(shown, weights, rtol=0.0, atol=0.0051)
        assert holding("chosen", marked) == [row]
        words, wanted = sentence(weights[row], row)
        assert re.sub(r"\d\.\d+", "#", said[0]) == words
        assert values(said[:1]) == pytest.approx(wanted, abs=0.0051)
        assert values(said[:1])[-1] == pytest.approx(wanted[-1], abs=0.00051)
        leaks = "differs. It leaks." if alone - whole > 0.001 else "is the same. Nothing leaks."
        assert said[1] == f"{name}: word by word the loss {leaks}"
        assert ["200 steps" in text for text in axes] == [True]
        assert values(ends) == pytest.approx([whole, alone, floor], abs=0.00051)
        points = [float(n) for n in re.findall(r"-?\d+\.\d", curve)]
        top = max(float(each.max()) for _, each, _ in echoes.values())
        wanted = [100 * (1 - float(loss) / top) for loss in losses]
        assert points[1::2] == pytest.approx(wanted, abs=0.051)
        assert points[::2] == pytest.approx([n * 240 / 49 for n in range(50)], abs=0.051)
        assert values([label]) == pytest.approx([float(losses[0]), float(losses[-1])], abs=0.0051)

    with figure(browser, site, CLINIC, width, scheme) as (page, drawn):
        press = (lambda at: at.tap()) if width < 500 else (lambda at: at.click())
        buttons = drawn.locator("fieldset span")
        assert buttons.all_inner_texts() == names
        seen("right", 6)
        for name, button in zip(names, buttons.all(), strict=True):
            press(button)
            seen(name, 6)
        for row in (2, 10):  # in some attentions these rows do not sum to 1
            press(drawn.locator(".map tbody tr").nth(row).locator("td").nth(2))
            seen(names[-1], row)
        drawn.locator("fieldset input").last.focus()
        for name in names[-2::-1]:
            page.keyboard.press("ArrowLeft")
            seen(name, 10)
        press(drawn.locator(".map tbody tr").nth(9).locator("td").nth(2))
        seen("right", 9)
        press(buttons.nth(3))  # the row stays
        seen(names[3], 9)
        drawn.locator(".map button").nth(9).focus()
        page.keyboard.press("ArrowUp")
        seen(names[3], 8)


def test_without_scripts_the_figures_stand_still(browser, site):
    with opened(browser, site.as_uri(), java_script_enabled=False) as page:
        assert PAGE_OF.keys() == live.stored()["figures"].keys()
        for name in PAGE_OF:
            page.goto((site / f"book/{PAGE_OF[name]}.html").as_uri())
            assert page.locator(f"#{name} img").is_visible()
            assert page.locator(f"#{name} .live").count() == 0
