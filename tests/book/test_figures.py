"""The figures that move, in a browser: each control, and every number that it shows.

What a figure computes is compared with `attn_lib`; what it only looks up, with the numbers that the
cells of its page compute, as nbval finds them.
"""

import contextlib
import functools
import itertools
import math
import re
from typing import NamedTuple

import date_model
import live
import pytest
import torch
from browsing import luminance, only, opened, set_scheme, visit
from tables import for_each

from attn_lib import (
    attention,
    attention_weights,
    datasets,
    masks,
    pretrained,
    record_attention,
)
from attn_lib.plotting import ROLES
from attn_lib.positions import apply_rope
from attn_lib.recurrent import gated_delta_rule, linear_attention

SCREENS = [(1280, "light"), (390, "dark")]
# settings: with more of them, one control is moved after the other
MANY, NOW = 100, 30  # every week, on every change
VALUES = 16, 3  # of each control that are compared on every change, on either screen


class Shown(NamedTuple):
    """What a figure has to show."""

    names: list[list[str]]  # the words at each setting of each control, as `SETTINGS` reads them
    start: tuple[int, ...]
    compare: object  # what looks at all the rest, given a `Moving` and the settings
    follow: object = lambda settings, n, value: (*settings[:n], value, *settings[n + 1 :])


# of each control where it stands, the words there, and of how many: radio buttons, sliders, rows
SETTINGS = """([figure]) => {
  const all = which => [...figure.querySelectorAll(which)];
  const first = (parts, is, word) => {
    const at = parts.findIndex(is);
    return [at, parts[at].querySelector(word).innerText, parts.length];
  };
  return [
    ...all("fieldset").map(row => first([...row.querySelectorAll("label")],
      label => label.querySelector("input").checked, "span")),
    ...all(".slide").map(label => {
      const {value, min, step} = label.querySelector("input");
      return [(value - min) / (step || 1), label.querySelector("output").innerText, null];
    }),
    ...all(".map tbody:has(button)").map(table => first([...table.rows],
      row => row.classList.contains("chosen"), "button[aria-pressed=true]")),
  ];
}"""
# the same controls -> the parts of each, what of them is focused, the keys back and on
CONTROLS = {
    "fieldset": ("label", "input", "ArrowLeft", "ArrowRight"),
    ".slide input": (None, None, "ArrowLeft", "ArrowRight"),
    ".map tbody:has(button)": ("tr", "button", "ArrowUp", "ArrowDown"),
}
READ = """([figure], questions) => questions.map(question => {
  const [parts, what] = question.split(" @");
  return [...figure.querySelectorAll(parts)].map(part => what === undefined ? part.innerText
    : what === "text" ? part.textContent
    : what.startsWith("--") ? part.style.getPropertyValue(what)
    : part.getAttribute(what));
})"""


class Moving:
    """A figure on its page, and what moves it: keys, and a mouse or a finger."""

    def __init__(self, page, drawn, finger, shown):
        self.page, self.drawn, self.finger, self.shown = page, drawn, finger, shown
        self.settings = shown.start
        parts = {kind: drawn.locator(kind).all() for kind in CONTROLS}
        self.controls = [(part, *CONTROLS[kind]) for kind in CONTROLS for part in parts[kind]]

    def read(self, *questions):
        """The texts of the parts that a selector names, or, behind an @, what else they have.

        All in one question to the browser: each costs as much as many.
        """
        return self.drawn.evaluate_all(READ, questions)

    def press(self, part, **at):
        part.tap(**at) if self.finger else part.click(**at)

    def point(self, part):
        part.tap() if self.finger else part.hover()

    def keys(self, *names):
        for name in names:
            self.page.keyboard.press(name)

    def check(self, **more):
        """Settings and all the rest are those of the library."""
        controls = zip(self.settings, self.shown.names, self.controls, strict=True)
        expected = [
            [value, names[value], None if parts is None else len(names)]
            for value, names, (_, parts, *_) in controls
        ]
        assert self.drawn.evaluate_all(SETTINGS) == expected
        self.shown.compare(self, *self.settings, **more)

    def set(self, n, value, *, by_hand, **more):
        """Move a control to this place, and look; a slider by hand, to one of its ends."""
        control, parts, focused, back, on = self.controls[n]
        here = self.settings[n]
        if not by_hand:
            (control.locator(focused).nth(here) if parts else control).focus()
            self.keys(*[on if value > here else back] * abs(value - here))
        elif parts == "label":
            self.press(control.locator(parts).nth(value))
        elif parts:
            self.point(control.locator(parts).nth(value).locator("td").nth(3))
        else:
            box = control.bounding_box()
            x = box["width"] - 2 if value else 2
            self.press(control, position={"x": x, "y": box["height"] / 2})
        self.settings = self.shown.follow(self.settings, n, value)
        self.check(**more)

    def again(self):
        """Press the button that takes all back, if there is one."""
        button = self.drawn.get_by_role("button", name="start again")
        if button.count():
            self.press(button)
            self.settings = self.shown.start
            self.check()


@contextlib.contextmanager
def figure(browser, site, name, width=1280, scheme="light", where=None):
    """A figure on its page, from disk; on the narrow screen fingers touch it.

    What it shows at the end must be the same in the other scheme.
    """
    what, first, *_ = FIGURES[name]
    with opened(browser, site.as_uri(), has_touch=width < 500) as page:
        visit(page, (site / f"book/{where or first}.html").as_uri(), width, scheme)
        drawn = page.locator(f"#{name}")
        only(drawn)
        drawn.scroll_into_view_if_needed()
        yield Moving(page, drawn, width < 500, what())
        at_the_end = drawn.inner_text()
        set_scheme(page, "dark" if scheme == "light" else "light")
        assert drawn.inner_text() == at_the_end
        assert page.outside == page.errors == []


# ---------------------------------------------------------------- what is compared

NUMBER = re.compile(r"(-?\d*\.\d+)")


def formatted(numbers, digits):
    """Numbers as texts for `compare`, of a figure that shows so many digits."""
    return [f"{number:.{digits + 3}f}" for number in torch.as_tensor(numbers).flatten().tolist()]


def vector(numbers, digits):
    return f"({', '.join(formatted(numbers, digits))})"


def alike(found, expected):
    """Whether texts have the same words, and numbers that are rounded to three digits less."""
    parts = (NUMBER.split(text.replace("−", "-")) for text in (found, expected))
    for n, (one, other) in enumerate(itertools.zip_longest(*parts, fillvalue="")):
        digits = len(one.partition(".")[2])
        if n % 2 == 0 and one != other:
            return False
        if n % 2 and len(other.partition(".")[2]) != digits + 3:
            return False
        if n % 2 and abs(float(one) - float(other)) > 0.51 * 10**-digits:
            return False
    return True


def compare(found, expected):
    """Texts of a figure with those that it should show."""
    pairs = zip(found, expected, strict=True)
    assert [pair for pair in pairs if not alike(*pair)] == []


@for_each(
    ("the cat puts 0.123 on (−0.5, .57)", True),
    ("the cat puts 0.124 on (−0.5, .57)", False),
    ("the cat puts 0.12 on (−0.5, .57)", False),
    ("the dog puts 0.123 on (−0.5, .57)", False),
)
def test_each_digit_of_a_text_is_compared(found, same):
    assert alike(found, "the cat puts 0.123400 on (-0.5000, 0.57000)") == same


def floats(texts):
    return [float(text) for text in texts]


def holding(name, classes):
    """The numbers of the parts that have this class."""
    return [i for i, names in enumerate(classes) if name in (names or "").split()]


def listed(names):
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


@functools.cache
def stored(name):
    return live.stored()["figures"][name]


# ---------------------------------------------------------------- one head, its query moved

HEAD = "fig-one-head-drag"
# where an arrow ends: its line, and its tip
ENDS = [("line", "x2"), ("line", "y2"), ("circle.tip", "cx"), ("circle.tip", "cy")]


def one_head():
    """Token and temperature, or a query that was moved by hand: what attention makes of them."""
    tokens, q, k, v = (stored(HEAD)[name] for name in ("tokens", *"qkv"))
    k, v = torch.tensor(k), torch.tensor(v)

    def check(moving, asking, step, query=None):
        temperature, point = 2 ** (step / 4 - 2), query or q[asking]
        out, weights = attention(torch.tensor([point]), k, v, scale=2**-0.5 / temperature)
        handle, tokens_of, cards, scores, shares, sentence, keys, dots, *arrows = moving.read(
            *(
                ".handle @aria-valuetext",
                "fieldset @class",
                "td .vector",
                "td.score",
                "td.weight",
                ".say",
            ),
            *("circle.key @r", "circle.value @r"),
            *(f"{part}.{role} @{end}" for role in ("query", "output") for part, end in ENDS),
        )
        compare(handle, [vector(point, 1)])
        assert ("left" in (tokens_of[0] or "")) == (query is not None)
        assert cards == [f"({x:.0f}, {y:.0f})" for x, y in [*k.tolist(), *v.tolist()]]
        compare(scores, formatted(torch.tensor(point) @ k.mT / 2**0.5, 2))
        compare(shares, formatted(weights, 3))
        whose = f"The query {vector(point, 1)}"
        if query is None:
            whose = f"With the query {vector(point, 1)}, {tokens[asking]}"
        most = f"{weights.max():.6f} on {tokens[int(weights.argmax())]}"
        flat = weights.max() - weights.min() < 5e-4
        puts = "the same weight on every token" if flat else most
        compare(sentence, [f"{whose} puts {puts} and gets {vector(out, 3)}."])
        ends = [float(end) for (end,) in arrows]
        planes = (point, -1.5, 6.0, ends[:4]), (out[0].tolist(), -0.4, 3.3, ends[4:])
        for to, low, span, at in planes:
            x, y = ((a - low) * 240 / span for a in to)
            assert at == pytest.approx(2 * [x, 240 - y], abs=0.1)
        for sizes in (keys, dots):
            assert floats(sizes) == pytest.approx((3 + 14 * weights[0].sqrt()).tolist(), abs=0.05)

    temperatures = [f"{2 ** (step / 4 - 2):.2f}" for step in range(21)]
    return Shown([tokens, temperatures], (1, 8), check)


def drag(moving, by, handle=None):
    """The end of the query, with the mouse, or with a finger; the page must not move along."""
    page = moving.page
    box = (handle or moving.drawn.locator(".handle")).bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    start, *steps = [(x + by[0] * part / 4, y + by[1] * part / 4) for part in range(5)]
    before = page.evaluate("scrollY")
    if moving.finger:
        session = page.context.new_cdp_session(page)
        for kind, at in [("touchStart", start), *(("touchMove", step) for step in steps)]:
            points = [{"x": at[0], "y": at[1]}]
            session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
        session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    else:
        page.mouse.move(*start)
        page.mouse.down()
        for step in steps:
            page.mouse.move(*step)
        page.mouse.up()
    assert page.evaluate("scrollY") == before


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_the_query_can_be_moved_freely(browser, site, width, scheme):
    """By keys, by dragging its end, by one click or touch; and start again takes it back."""
    with figure(browser, site, HEAD, width, scheme) as moving:

        def query():
            (text,) = moving.read(".handle @aria-valuetext")[0]
            point = floats(NUMBER.findall(text.replace("−", "-")))
            moving.check(query=point)
            return point

        moving.drawn.get_by_role("slider", name="query").focus()
        moving.keys("ArrowRight", "ArrowRight", "Shift+ArrowDown", "ArrowUp", "Shift+ArrowLeft")
        assert query() == [-0.3, 1.6]
        moving.again()
        plane = moving.drawn.locator("svg").first
        unit = plane.bounding_box()["width"] / 6.0  # from -1.5 to 4.5
        drag(moving, (1.5 * unit, 3 * unit))
        assert query() == pytest.approx([1.5, -1.0], abs=0.11)
        drag(moving, (-900, 0))  # beyond the frame
        assert query() == pytest.approx([-1.3, -1.0], abs=0.11)
        moving.press(plane, position={"x": 4.5 * unit, "y": 4.0 * unit})
        assert query() == pytest.approx([3.0, 0.5], abs=0.11)
        moving.set(0, 0, by_hand=True)  # the: a query of zeros


def test_a_drag_from_elsewhere_moves_nothing(browser, site):
    """The mouse leaves no ring behind, and selects no names; the keyboard shows where it is."""
    with figure(browser, site, HEAD, 1280, "dark") as moving:
        page, drawn, handle = moving.page, moving.drawn, moving.drawn.locator(".handle")
        ring = "e => { const s = getComputedStyle(e); return [s.outlineStyle, s.stroke].join(); }"
        moving.set(0, 5, by_hand=True)
        before = drawn.inner_text()
        frame = drawn.locator("svg").first.bounding_box()
        for x, y in ((0.25, 0.4), (0.3, 0.7)):  # over names
            start = (frame["x"] + x * frame["width"], frame["y"] + y * frame["height"])
            page.mouse.move(*start)
            page.mouse.down()
            page.mouse.move(start[0] + 50, start[1] + 44, steps=4)
            page.mouse.move(start[0] + 80, start[1] - 16, steps=4)
            page.mouse.up()
            assert drawn.inner_text() == before
            assert page.evaluate("String(getSelection())") == ""
        drag(moving, (-40, -40))
        assert drawn.inner_text() != before
        assert handle.evaluate(ring) == "none,none"
        moving.keys("ArrowUp")
        assert handle.evaluate(ring) != "none,none"


# ---------------------------------------------------------------- maps of trained heads

ONE, HEADS, SINK = "fig-one-head-map", "fig-many-heads-twelve", "fig-real-encoder-sink"


def chosen_row(moving, weights, t):
    """The numbers of the chosen row of a map, which alone are seen."""
    read = "all => all.map(one => [one.innerText, one.closest('tr').className])"
    numbers = moving.drawn.locator(".map td span:visible").evaluate_all(read)
    (marks,) = moving.read(".map tbody tr @class")
    assert holding("chosen", marks) == [t]
    assert {row for _, row in numbers} == {marks[t]}
    compare([text for text, _ in numbers], formatted(weights, 2))


def row_of_a_map(moving, tokens, weights, t, where=""):
    """The numbers of the chosen row, and the sentence."""
    chosen_row(moving, weights[t], t)
    (sentence,) = moving.read(".say")
    best, most = tokens[int(weights[t].argmax())], weights[t].max()
    compare(sentence, [f"{where}{tokens[t]} puts {most:.6f} of its attention on {best}."])


def trained_map():
    """Each row of one head."""
    tokens, weights = stored(ONE)["tokens"], torch.tensor(stored(ONE)["weights"])
    return Shown([tokens], (6,), lambda moving, t: row_of_a_map(moving, tokens, weights, t))


def heads():
    """Each head, the row staying: the large map is its own, and each small one names its best."""
    tokens, maps = stored(HEADS)["tokens"], torch.tensor(stored(HEADS)["weights"])

    def check(moving, h, t):
        row_of_a_map(moving, tokens, maps[h], t, f"In head {h}, ")
        marks, most = moving.read(".heads svg .mark @y", ".most")
        assert marks == [str(t)] * len(maps)
        best = maps[:, t].max(dim=-1)
        pairs = zip(best.indices, formatted(best.values, 2), strict=True)
        compare(most, [f"{tokens[s]} {weight}" for s, weight in pairs])

    return Shown([[f"head {h}" for h in range(12)], tokens], (4, 3), check)


def test_small_maps_show_all_weights_of_their_heads(browser, site):
    weights = torch.tensor(stored(HEADS)["weights"])
    with figure(browser, site, HEADS) as moving:
        cells = moving.read(*(f".heads .cell @{what}" for what in ("--w", "x", "y")))
    small = torch.tensor(list(map(floats, cells))).T.reshape(*weights.shape, 3)
    assert torch.equal(small[..., 0], weights)
    places = torch.cartesian_prod(*map(torch.arange, weights.shape[1:])).flip(-1)
    assert torch.equal(small[..., 1:].flatten(1, 2), places.float().expand(len(weights), -1, -1))


def crossed():
    """Each sentence and layer: the mean of the heads in four cases, and the first column."""
    data = stored(SINK)

    def check(moving, which, layer):
        now = [torch.tensor(layers[layer]) for layers in data["maps"][which]]
        shares = torch.stack([weights[:, 0].mean() for weights in now])
        cells, sentence, labels, drawn = moving.read(
            ".heads .most", ".say", ".heads svg @aria-label", ".heads .cell @--w"
        )
        firsts = [data["tokens"][which][cut] for cut in data["without"]]
        compare(cells, [f"{t} {s:.5f}" for t, s in zip(firsts, shares, strict=True)])
        said = [f"{s:.6f} ({name})" for s, name in zip(shares, data["corners"], strict=True)]
        gets = f"{said[0]}, {said[1]}, {said[2]} and {said[3]}"
        words = f"Layer {layer}, {data['texts'][which]} The first token gets {gets}."
        compare(sentence, [words])
        assert labels == [
            f"{name}: a map of {len(w)} tokens"
            for name, w in zip(data["corners"], now, strict=True)
        ]
        flat = torch.cat([weights.flatten() for weights in now])
        assert floats(drawn) == pytest.approx(flat.tolist(), abs=1e-4)

    return Shown([data["names"], list(map(str, range(6)))], (0, 3), check)


# how the ring around a part is drawn, its colour, and that of the page behind it
RING = """part => {
  const style = getComputedStyle(part), page = getComputedStyle(document.body).backgroundColor;
  return [style.outlineStyle, style.zIndex, style.outlineColor, page];
}"""


def test_the_ring_in_a_figure_can_be_seen(browser, site):
    """As well as text can be read, light and dark, and above the frame of the row."""
    rings = {"input:checked": "input:checked + *", ".chosen button": ".chosen button"}
    with figure(browser, site, HEADS) as moving:
        for at, ringed in rings.items():
            moving.drawn.locator(at).first.focus()
            moving.keys("ArrowDown")
            for scheme in ("dark", "light"):
                set_scheme(moving.page, scheme)
                drawn, above, *colours = moving.drawn.locator(ringed).first.evaluate(RING)
                lights = (luminance(floats(re.findall(r"[\d.]+", c)[:3])) for c in colours)
                low, high = sorted(lights)
                assert drawn != "none"
                assert high / low >= 4.5
        assert above == "1"


# ---------------------------------------------------------------- masks

MASK = "fig-masks-playground"
KINDS = {
    "causal": masks.causal_mask(6),
    "window": masks.window_mask(6, window=3),
    "two texts": masks.segment_mask(torch.tensor([[0, 0, 0, 1, 1, 1]]))[0, 0],
    "off by one": masks.causal_mask(6, offset=1),
    "no mask": torch.ones(6, 6, dtype=torch.bool),
}


def playground():
    """Each type, each reading of True, each length: the mask, and the weights."""
    tokens, q, k = (stored(MASK)[name] for name in ("tokens", *"qk"))
    q, k, kinds = torch.tensor(q), torch.tensor(k), list(stored(MASK)["kinds"])

    def check(moving, kind, reading, length):
        parts = "table.given td", ".weighed tbody td", ".weighed tbody td @class", ".say"
        (_, *signs), cells, classes, sentence = moving.read(*parts)
        given = KINDS[kinds[kind]] & (torch.arange(6) < length)
        mask = ~given if reading else given
        opened = mask.flatten().tolist()
        assert signs == ["T" if cell else "F" for cell in given.flatten()]
        weights = formatted(attention_weights(q, k, mask=mask), 2)
        pairs = zip(weights, opened, strict=True)
        compare(cells, [weight if is_open else "" for weight, is_open in pairs])
        assert holding("closed", classes) == [i for i, is_open in enumerate(opened) if not is_open]
        empty = [tokens[t] for t in range(6) if not mask[t].any()]
        rest = f"Nothing is open to {listed(empty)}: zeros." if empty else "Every row sums to 1."
        assert sentence == [f"{sum(opened)} of 36 pairs are open. {rest}"]

    lengths = [f"{length} of 6" for length in range(7)]
    return Shown([kinds, ["may attend", "blocked"], lengths], (0, 0, 6), check)


# ---------------------------------------------------------------- scale, positions, next token

ROW, SAMPLE = "fig-scaling-row", "fig-next-token-knobs"


def random_row():
    """Scale, width and head: the weights of cat, and the gradients of all heads."""
    products, gradients = (torch.tensor(stored(ROW)[name]) for name in ("products", "gradient"))
    widths, first = stored(ROW)["widths"], stored(ROW)["head"]

    def check(moving, kind, i, h):
        scale = (1.0, widths[i] ** -0.5, 1 / widths[i])[kind]
        weights = (scale * products[i, h]).softmax(dim=0)
        sizes, top = gradients[i, :, kind], gradients[i].max()
        ordered = sizes.sort().values
        cells, sentence, heights, classes, label = moving.read(
            *("td.weight", ".say", ".bar @height", ".bar @class", "svg.losses @aria-label")
        )
        compare(cells, formatted(weights, 2))
        words = (
            f"Head {h + 1} puts {weights.max():.5f} on one word, and its gradient is "
            f"{sizes[h]:.6f}. Of all 24 heads, the median is {ordered[11]:.6f}, the mean "
            f"{sizes.mean():.6f} and the largest {ordered[-1]:.6f}."
        )
        compare(sentence, [words])
        assert floats(heights) == pytest.approx((90 * sizes / top).tolist(), abs=0.02)
        assert holding("chosen", classes) == [h]
        ends = f"from {ordered[0]:.6f} to {ordered[-1]:.6f}"
        compare(label, [f"the gradients of 24 heads, {ends}"])

    names = [["1", "1/√dₖ", "1/dₖ"], list(map(str, widths)), [f"{h + 1} of 24" for h in range(24)]]
    return Shown(names, (0, 3, first), check)


def dial():
    """Each position, and both together: rotated pairs, products, score, angles, what is shaded."""
    pairs = {role: torch.tensor(stored("fig-positions-dial")[role[0]]) for role in ("query", "key")}

    def check(moving, i, j, low):
        found, sentence, angles, shaded, *others = moving.read(
            *("td.product", ".say", "td.angle", ".covered @d"),
            *(f"td.{role}" for role in pairs),
            *(f"svg {part}.{role} @{end}" for role in pairs for part, end in ENDS),
        )
        rotated = {}
        for n, (role, p) in enumerate((("query", i), ("key", j))):
            # the speeds 1 and 1/10 are those of four numbers with base 100; halves are pairs
            numbers = pairs[role].T.reshape(1, 4).double()
            turned = apply_rope(numbers, torch.tensor([p]), base=100.0)
            rotated[role] = turned.view(2, 2).T  # a row is a pair
            compare(others[n], [vector(pair, 3) for pair in rotated[role]])
            at = 120 + 100 * rotated[role] * torch.tensor([1.0, -1.0])
            ends = torch.tensor(list(map(floats, others[2 + 4 * n : 6 + 4 * n])))  # of both planes
            torch.testing.assert_close(ends.double(), at.T.repeat(2, 1), rtol=0.0, atol=0.01)
        products = (rotated["query"] * rotated["key"]).sum(dim=-1)
        compare(found, formatted(products, 3))
        score = f"score {products.sum():.6f}."
        compare(sentence, [f"Query at {i}, key at {j}: distance {i - j}, {score}"])
        new = ", new" if not 0 <= i - j <= 15 else ""  # pair 2's; pair 1 went round
        compare(angles, [f"{i - j:.4f}", f"{(i - j) / 10:.4f}{new}"])
        for path, speed, reach in zip(shaded, (1.0, 0.1), (math.tau, 1.5), strict=True):
            ends = torch.tensor(floats(re.findall(r"-?\d+\.\d+", path))).view(3, 2)
            turns = speed * j + reach * torch.tensor([0.0, 0.5, 1.0])
            corners = 120 + 100 * torch.stack([turns.cos(), -turns.sin()], dim=1)
            torch.testing.assert_close(ends, corners, rtol=0.0, atol=0.01)

    def follow(settings, n, value):
        i, j, low = settings
        by = min(value, 63 - abs(i - j)) - low  # both stop where one is at the end
        i, j = ((value, j), (i, value), (i + by, j + by))[n]
        return i, j, min(i, j)

    at = [str(n) for n in range(64)]
    return Shown([at, at, at], (24, 4, 4), check, follow)


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_the_hands_of_the_dial_can_be_dragged(browser, site, width, scheme):
    """By mouse or finger, on either plane; to the nearest position; not beyond the ends."""
    with figure(browser, site, "fig-positions-dial", width, scheme) as moving:
        moving.check()
        planes = moving.drawn.locator(".planes svg")
        unit = planes.first.bounding_box()["width"] / 240 * 100  # a hand's length

        def drag_to(plane, role, angle, i, j):
            box = planes.nth(plane).bounding_box()
            tip = planes.nth(plane).locator(f".{role}-tip")
            here = tip.bounding_box()
            x, y = (here[a] + here[b] / 2 for a, b in (("x", "width"), ("y", "height")))
            to_x = box["x"] + box["width"] / 2 + unit * math.cos(angle)
            to_y = box["y"] + box["height"] / 2 - unit * math.sin(angle)
            drag(moving, (to_x - x, to_y - y), tip)
            moving.settings = i, j, min(i, j)
            moving.check()

        drag_to(1, "query", 2.31, 23, 4)
        drag_to(1, "key", 0.88, 23, 9)
        drag_to(0, "query", 23 + 1.05, 24, 9)
        drag_to(1, "query", 2.4 + 3.0, 54, 9)
        drag_to(1, "key", -0.7, 54, 0)  # not below 0
        drag_to(1, "query", 5.4 + 1.6, 63, 0)  # nor beyond the last
        moving.again()


def next_token():
    """A temperature and a cut: the shares of the likeliest tokens, and three texts drawn so."""
    tokens, cuts, heats = (stored(SAMPLE)[name] for name in ("tokens", "cuts", "temperatures"))

    def check(moving, c, t):
        shares, count, texts = (stored(SAMPLE)[name][t][c] for name in ("shares", "kept", "texts"))
        *numbers, others = formatted([*shares, max(0.0, 1 - sum(shares))], 3)
        parts = "tbody th", "td.share", "tbody tr @class", ".say", ".texts li"
        names, cells, classes, sentence, lines = moving.read(*parts)
        assert names == [*tokens, "all others"]
        assert holding("cut", classes) == list(range(min(count, 21), 21))
        compare(cells, [*numbers, others][:count] + ["cut off"] * (21 - count))
        rest = f", and others, with {others} together." if count > 20 else ", and no other."
        compare(sentence, [f"{min(count, 20)} of these 20 tokens can come next{rest}"])
        assert [line.split() for line in lines] == [f"… the warm{text}".split() for text in texts]

    return Shown([cuts, [f"{heat:.2f}" for heat in heats]], (0, 3), check)


LENS = "fig-block-lens"


def lens():
    """Each prompt after each number of blocks: the best tokens of a model that stops there."""

    def check(moving, which, k):
        names, cells, widths, sentence = moving.read(
            *("tbody th", "td.share", "td.share @--w", ".say")
        )
        best, own = (stored(LENS)[name][which][k] for name in ("chances", "own"))
        assert names == stored(LENS)["guesses"][which][k]
        compare(cells, formatted(best, 3))
        assert floats(widths) == best
        words = f"If SmolLM2 stopped after {k} of 30 blocks, it would say {names[0]}, with "
        rest = f" In the end it says {stored(LENS)['answers'][which]}, which has {own:.6f} here."
        if k == 30:
            words, rest = f"After all 30 blocks SmolLM2 says {names[0]}, with ", ""
        compare(sentence, [f"{words}{best[0]:.6f}.{rest}"])

    return Shown([stored(LENS)["prompts"], [f"{k} of 30" for k in range(31)]], (0, 28), check)


GUESS = "fig-language-model-guess"


def guess():
    """Each question, each text, each guess: whose it is, and what three tests say of the model."""
    data = stored(GUESS)
    assert all(sorted(places) == list(range(9)) for places in data["order"])
    kinds = ["none yet", "the right model", "one with an error"]

    def check(moving, question, letter, told):
        who = data["order"][question][letter]
        (written,), (sentence,), cells = moving.read(".written @text", ".say", ".ends td")
        assert written == data["texts"][question][who]
        if not told:
            assert sentence == "Who wrote this?"
            assert cells == ["?"] * 3
            return
        is_right = (told == 1) == (who == 0)
        error = data["names"][who]
        whose = f"a model with the error {error}." if who else "this is the right model."
        assert sentence == f"{'Yes' if is_right else 'No'}: {whose}"
        assert cells == [numbers[who] for numbers in data["measures"].values()]

    def follow(settings, n, value):
        question, letter, _ = (*settings[:n], value, *settings[n + 1 :])
        return question, letter, value if n == 2 else 0

    return Shown([data["questions"], list("ABCDEFGHI"), kinds], (2, 0, 0), check, follow)


# ---------------------------------------------------------------- dates

READER = "fig-encoder-decoder-read"


def read_date():
    """As it begins: a date, its answer, the map. All else: ``test_date_reader.py``."""
    first, answer = "23 October 2025", "2025-10-23"
    written, weights = date_model.written(date_model.context(first))
    assert written == answer
    mean = weights.mean(dim=(1, 2))

    def check(moving, t):
        words, sentence, numbers, keys = moving.read(
            ".iso", ".say", "tbody td @text", "[data-s] b @text"
        )
        best = int(mean[t].argmax())
        on = first[best].replace(" ", "the gap")
        said = f"Writing {answer[t]}, character {t + 1}, it puts {mean[t, best]:.5f}"
        compare(sentence, [f"{said} of its attention on {on}, character {best + 1}."])
        compare([f"0{number}" for number in numbers], formatted(mean, 2))
        assert (words, "".join(keys)) == ([answer], first.replace(" ", "␣"))

    return Shown([[*answer]], (2,), check)


# ---------------------------------------------------------------- pictures

SWAP, PATCHES = "fig-vision-exchange", "fig-large-vision-hover"
PAIRS = list(itertools.combinations(range(16), 2))


def exchanged(picture, pair):
    """A picture with two of its 16 patches in each other's place."""
    spots = [(slice(i // 4 * 7, i // 4 * 7 + 7), slice(i % 4 * 7, i % 4 * 7 + 7)) for i in pair]
    mixed = picture.clone()
    for spot, other in zip(spots, spots[::-1], strict=True):
        mixed[spot] = picture[other]
    return mixed


def tiles():
    """Any two patches of a picture, exchanged: what the trained model says of it."""
    names, pictures = stored(SWAP)["classes"], torch.tensor(stored(SWAP)["pictures"])

    def check(moving, which, pair=(), first=None):
        picture = exchanged(pictures[which], pair)
        n = 1 + PAIRS.index(tuple(sorted(pair))) if pair else 0
        shares = torch.tensor(stored(SWAP)["chances"][which][n])
        pressed, classes, cells, greys, sentence = moving.read(
            *(".tiles button @aria-pressed", ".next tbody th", "td.share"),
            *(".tiles rect @--w", ".say"),
        )
        assert pressed == [str(i in pair or i == first).lower() for i in range(16)]
        assert classes == names
        compare(cells, formatted(shares, 3))
        shown = 255 * torch.tensor(floats(greys)).view(4, 4, 7, 7).transpose(1, 2).reshape(28, 28)
        torch.testing.assert_close(shown, picture.float(), rtol=0.0, atol=0.01)
        start = "The whole picture"
        if pair:
            start = f"Patches {min(pair) + 1} and {max(pair) + 1} exchanged"
        elif first is not None:
            start = f"Patch {first + 1}, and which other one? The whole picture"
        says = f"{start}: the model says {names[int(shares.argmax())]}, with {shares.max():.6f}."
        compare(sentence, [says])

    return Shown([stored(SWAP)["names"]], (0,), check)


def worst_pair(which):
    """Of all pairs, the one whose exchange leaves the right class the smallest probability."""
    right = stored(SWAP)["classes"].index(stored(SWAP)["names"][which])
    _, *shares = torch.tensor(stored(SWAP)["chances"][which])[:, right]
    return PAIRS[torch.stack(shares).argmin()]


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_two_patches_can_be_exchanged(browser, site, width, scheme):
    """Of each picture, by mouse or finger and by keyboard."""
    with figure(browser, site, SWAP, width, scheme) as moving:
        buttons = moving.drawn.locator(".tiles button").all()
        for which, (a, b) in enumerate(((0, 15), (9, 6), (1, 4))):
            moving.set(0, which, by_hand=True)
            moving.press(buttons[a])
            moving.check(first=a)
            moving.press(buttons[b])
            moving.check(pair=(a, b))
            moving.press(moving.drawn.get_by_text("worst pair"))
            moving.check(pair=worst_pair(which))
        moving.press(buttons[3])
        moving.press(buttons[3])  # chosen, and given back
        moving.check()
        moving.set(0, 0, by_hand=False)
        buttons[5].focus()
        moving.keys("Enter", *["Tab"] * 4, "Space")
        moving.check(pair=(5, 9))
        moving.again()


@functools.cache
def patches():
    """A patch, or the class token, and a head: its weights on the cat's photograph, found anew."""
    cat = datasets.photographs()["chelsea"][None].float()
    cat = torch.nn.functional.interpolate(cat, size=168, mode="bilinear", antialias=True)
    model = pretrained.dinov2(168)
    with record_attention(model) as found, torch.no_grad():
        model(pretrained.dinov2_inputs(cat.round().byte()))
    layers = list(found.values())
    maps = [layers[layer][0, head].double() for layer, head in ((1, 1), (0, 5), (11, 0))]
    places = ["the class token"]
    places += [f"row {y}, column {x}" for y in range(1, 13) for x in range(1, 13)]

    def near(shown, weight):  # steps of a 90th of the root, then two digits
        return abs(float(shown) - weight) <= max(weight, 0.001) ** 0.5 / 90 + 0.0051

    def check(moving, head, asked=52):
        weights = maps[head][asked].tolist()
        pressed, labels, marked, veils, rows, (sentence,) = moving.read(
            *(f".patches button @aria-{what}" for what in ("pressed", "label")),
            *(".patches td @class", ".patches td @--w", ".most tbody tr", ".say"),
        )
        assert pressed == [str(i == asked).lower() for i in range(1, 145)]
        assert holding("chosen", marked) == [asked - 1] * (asked > 0)
        names, shares = zip(*(label.split(": ") for label in labels), strict=True)
        assert list(names) == places[1:]
        assert all(map(near, shares, weights[1:]))
        roots = [weight**0.5 for weight in weights[1:]]
        assert floats(veils) == pytest.approx(roots, abs=0.0065)
        names, shares = zip(*(row.split("\t") for row in rows), strict=True)
        assert all(map(near, shares, [weights[places.index(name)] for name in names]))
        assert all(map(near, shares, sorted(weights)[:-5:-1]))
        asking = f"The patch in {places[asked]}" if asked else "The class token"
        whom = names[0] if names[0] == places[0] else f"the patch in {names[0]}"
        whom = "itself" if names[0] == places[asked] else whom
        assert sentence == f"{asking} puts {shares[0]} of its attention on {whom}."

    return Shown([["near (layer 1)", "sink (layer 0)", "alike (layer 11)"]], (2,), check)


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_each_patch_shows_whom_it_attends_to(browser, site, width, scheme):
    """Patches, and the class token; by keyboard, and by mouse or finger; with each head."""
    with figure(browser, site, PATCHES, width, scheme) as moving:
        at = moving.drawn.locator(".patches button")
        for head, asked in enumerate((1, 40, 144)):
            moving.again()
            moving.set(0, head, by_hand=True)
            moving.point(at.nth(asked - 1))
            moving.check(asked=asked)
        at.nth(51).focus()
        moving.check()
        for key, asked in (("Up", 40), ("Left", 39), ("Down", 51), ("Right", 52)):
            moving.keys(f"Arrow{key}")
            moving.check(asked=asked)
        at.nth(0).focus()
        moving.keys("ArrowLeft")  # the edge holds
        moving.check(asked=1)
        moving.press(moving.drawn.get_by_role("button", name="ask the class token"))
        moving.check(asked=0)
        moving.set(0, 1, by_hand=False, asked=0)  # the same, of another head
        moving.again()


# ---------------------------------------------------------------- what was trained

CLINIC = "fig-clinic-training"


def clinic():
    """Each of the layers that were trained: every weight, the curve, both losses."""
    names, tokens, floor = (stored(CLINIC)[name] for name in ("names", "tokens", "floor"))
    maps, curves = torch.tensor(stored(CLINIC)["weights"]), torch.tensor(stored(CLINIC)["losses"])

    def sentence(weights, row):
        """Where most of a row's attention is, before or later, and whether it sums to 1."""
        best, total, most = int(weights.argmax()), float(weights.sum()), float(weights.max())
        far = abs(best - row)
        where = f"{far} word{'s' * (far > 1)} {'later' if best > row else 'before'}"
        on = "itself" if best == row else f"{tokens[best]}, {where}"
        if total < 0.005:
            return f"The row of {tokens[row]} sums to 0.00000, not 1: it attends to nothing."
        if abs(total - 1) < 0.005:
            return f"{tokens[row]} puts {most:.6f} of its attention on {on}."
        start = f"The row of {tokens[row]} sums to {total:.5f}, not 1"
        return f"{start}; its largest weight, {most:.6f}, is on {on}."

    def check(moving, i, row):
        weights, losses, (whole, alone) = maps[i], curves[i], stored(CLINIC)["sums"][i]
        heading, spans, marked, sentences, axes, ends, (curve,), label = moving.read(
            *(".map thead th", ".map td span @text", ".map tbody tr @class", ".say"),
            *("svg.losses @text", ".ends td", "path.curve @d", "svg.losses @aria-label"),
        )
        assert heading == tokens
        assert holding("chosen", marked) == [row]
        compare(spans, formatted(weights, 2))
        leaks = "differs. It leaks." if alone - whole > 0.001 else "is the same. Nothing leaks."
        words = f"{names[i]}: word by word the loss {leaks}"
        compare(sentences, [sentence(weights[row], row), words])
        assert ["200 steps" in text for text in axes] == [True]
        compare(ends, formatted([whole, alone, floor], 3))
        points = floats(re.findall(r"-?\d+\.\d", curve))
        heights = 100 * (1 - losses / curves.max())
        assert points[1::2] == pytest.approx(heights.tolist(), abs=0.051)
        assert points[::2] == pytest.approx([n * 240 / 49 for n in range(50)], abs=0.051)
        falls = f"falls from {losses[0]:.5f} to {losses[-1]:.5f}"
        compare(label, [f"the loss of {names[i]} {falls}"])

    return Shown([names, tokens], (0, 6), check)


GROWN = "fig-circuit-grow"


def grown():
    """A model of two layers at each step that was watched: maps, masses, loss and next word."""
    data = stored(GROWN)
    steps, tokens, words = (data[name] for name in ("steps", "tokens", "words"))

    def check(moving, n):
        labels, most, sentence, cells, drawn, bar = moving.read(
            ".heads svg @aria-label",
            ".heads .most",
            ".say",
            ".next td.share",
            ".heads .cell @--w",
            ".losses @aria-label",
        )
        assert labels == [f"{layer}: a map of {len(tokens)} words" for layer in data["layers"]]
        before, followed, loss = (data[name][n] for name in ("before", "followed", "losses"))
        compare(most, [f"word before {before:.5f}", f"what followed {followed:.5f}"])
        chances = torch.tensor(data["chances"][n])
        compare(cells, formatted(torch.stack([chances, torch.tensor(data["rule"])], dim=1), 2))
        best = words[int(chances.argmax())]
        compare(
            sentence,
            [
                f"After {steps[n]} steps the loss is {loss:.6f} nats. Next, after {tokens[-1]}, "
                f"the model expects {best}, with {chances.max():.5f}."
            ],
        )
        compare(bar, [f"the loss is {loss:.6f} after {steps[n]} steps"])
        assert floats(drawn) == [w for weights in data["maps"][n] for row in weights for w in row]

    return Shown([list(map(str, steps))], (11,), check)


# ---------------------------------------------------------------- documents in one row

PACK = "fig-same-answer-pack"


def packed():
    """One head on three documents in one row: each mask, each way to count positions, each row."""
    names, document, counts = (stored(PACK)[name] for name in ("tokens", "documents", "positions"))
    maps = torch.tensor(stored(PACK)["weights"])

    def check(moving, mask, place, t):
        positions, sentence = moving.read(".ends tbody td", ".say")
        line = maps[mask][place][t]
        chosen_row(moving, line, t)
        assert positions == list(map(str, counts[place]))
        across = line[torch.tensor(document) != document[t]].sum()
        whose = f"{names[t]}, of document {document[t] + 1}, puts {across:.6f}"
        compare(sentence, [f"{whose} of its attention on other documents."])

    kinds = [["causal", "causal and segment"], ["count on", "restart"], names]
    return Shown(kinds, (0, 0, 4), check)


# ---------------------------------------------------------------- all of them

IN_TILES = "fig-without-matrix-tiles"


def in_tiles():
    """Tiles, computed one by one; what is kept for each query is what `attention` gives so far."""
    data = stored(IN_TILES)
    tokens, (q, k, v) = data["tokens"], (torch.tensor(data[name]) for name in "qkv")
    n, scores = len(tokens), q @ k.mT / 2**0.5
    sizes, kinds = [1, 2, 3, 4], ["none", "causal"]

    def tiles(size, causal):
        """Rows and columns of each tile, in order."""
        starts = range(0, n, sizes[size])
        ends = [(top, min(top + sizes[size], n)) for top in starts]
        pairs = itertools.product(ends, ends)
        return [(rows, cols) for rows, cols in pairs if not causal or cols[0] < rows[1]]

    def follow(settings, which, value):
        settings = (*settings[:which], value, *settings[which + 1 :])
        return (*settings[:2], min(settings[2], len(tiles(*settings[:2]))))

    def check(moving, size, causal, done):
        cells, classes, kept, sentence = moving.read(
            ".tiles tbody td", ".tiles tbody td @class", ".ends tbody td", ".say"
        )
        order = tiles(size, causal)
        allowed = torch.ones(n, n).tril().bool() if causal else torch.ones(n, n).bool()
        texts, looks = n * n * [""], n * n * ["closed"]
        met, before = torch.zeros(2, n, n).bool()
        for at, ((top, low), (left, right)) in enumerate(order):
            for t, s in itertools.product(range(top, low), range(left, right)):
                looks[n * t + s] = "" if at >= done else "true now" if at == done - 1 else "true"
                if at < done:
                    met[t, s] = allowed[t, s]
                    before[t, s] = allowed[t, s] and at < done - 1
                    texts[n * t + s] = f"{scores[t, s]:.4f}" if allowed[t, s] else "−∞"
        compare(cells, texts)
        assert [look or "" for look in classes] == looks
        rows, raised = [], []
        for t in range(n):
            if not met[t].any():
                rows += ["", "", ""]
                continue
            now = scores[t, met[t]]
            out, _ = attention(q[t : t + 1], k, v, mask=met[t : t + 1])
            rows += [f"{now.max():.5f}", f"{(now - now.max()).exp().sum():.5f}", vector(out, 2)]
            if before[t].any() and scores[t, before[t]].max() < now.max():
                factor = (scores[t, before[t]].max() - now.max()).exp()
                raised.append(f"{tokens[t]} by {factor:.6f}")
        compare(kept, rows)
        words = "No maximum that was there has risen." if done else "Nothing is kept yet."
        if raised:
            words = f"A maximum rose; sum and output were multiplied: {', '.join(raised)}."
        end = " Every output is that of softmax." if done == len(order) else ""
        compare(sentence, [f"{done} of {len(order)} tiles. {words}{end}"])
        if end:
            whole, _ = attention(q, k, v, causal=bool(causal))
            compare(kept[2::3], [vector(out, 2) for out in whole])

    counts = ["1 tile" if m == 1 else f"{m} tiles" for m in range(n * n + 1)]
    return Shown([list(map(str, sizes)), kinds, counts], (1, 0, 3), check, follow)


IN_STATE = "fig-one-state-notes"


def in_state():
    """Pairs written one by one, added or by the delta rule: what the library's state gives back."""
    data = stored(IN_STATE)
    names, foods, writes = data["names"], data["foods"], data["writes"]
    k, v = (torch.tensor(data[name], dtype=torch.float64) for name in "kv")
    rules = ["added", "delta rule"]

    def check(moving, rule, asked, done):
        cells, reads, notes, chosen, away, (sentence,) = moving.read(
            ".given td:not(thead td)", ".reads tbody td", ".notes tbody td",
            ".notes tbody tr @class", ".notes tbody td:last-child @class", ".say",
        )  # fmt: skip
        keys, values = (
            x[[pair[i] for pair in writes[:done]]][None, None] for i, x in enumerate((k, v))
        )
        ones = torch.ones(1, 1, done, dtype=torch.float64)
        pair = (keys, keys, values)
        _, S = gated_delta_rule(*pair, ones) if rule else linear_attention(*pair)
        S, held = S[0, 0], dict(writes[:done])
        read = k @ S
        compare(cells, formatted(S, 2))
        wanted = formatted(v[held[asked]], 2) if asked in held else [""] * 4
        compare(reads, [*wanted, *formatted(read[asked], 2)])
        nearest = torch.cdist(read, v).argmin(dim=1).tolist()
        errors = {
            a: float((read[a] - v[b]).square().sum() / v[b].square().sum()) for a, b in held.items()
        }
        rows = [
            (foods[held[a]], f"{errors[a]:.5f}", foods[nearest[a]]) if a in held else ("", "", "")
            for a in range(len(names))
        ]
        compare(notes, [words for row in rows for words in row])
        assert [look or "" for look in chosen] == [
            "chosen" if a == asked else "" for a in range(len(names))
        ]
        wrong = [a for a in held if nearest[a] != held[a]]
        assert holding("away", [look or "" for look in away]) == sorted(wrong)
        words = "Nothing is written. "
        if done:
            a, b = writes[done - 1]
            mean = sum(errors.values()) / len(errors)
            words = f"Last: {names[a]} with {foods[b]}. Mean error {mean:.5f}. "
        if asked not in held:
            words += f"Nobody wrote {names[asked]}."
        else:
            right, near = foods[held[asked]], foods[nearest[asked]]
            end = "and that is closest." if right == near else f"but {near} is closer."
            words += f"{names[asked]} should read {right}, {end}"
        compare([sentence], [words])

    counts = ["1 pair" if m == 1 else f"{m} pairs" for m in range(len(writes) + 1)]
    return Shown([rules, names, counts], (0, 0, 8), check)


FIGURES = {  # what each has to show, and the pages where it stands
    ONE: (trained_map, "01_one_head"),
    HEAD: (one_head, "01_one_head", "index"),
    MASK: (playground, "02_masks"),
    HEADS: (heads, "03_many_heads"),
    ROW: (random_row, "04_scaling"),
    "fig-positions-dial": (dial, "05_positions"),
    LENS: (lens, "06_block"),
    SINK: (crossed, "07_real_encoder"),
    SAMPLE: (next_token, "08_next_token"),
    GUESS: (guess, "09_language_model"),
    GROWN: (grown, "10_circuit"),
    PACK: (packed, "11_same_answer"),
    IN_TILES: (in_tiles, "12_without_matrix"),
    IN_STATE: (in_state, "13_one_state"),
    READER: (read_date, "14_encoder_decoder"),
    SWAP: (tiles, "15_vision"),
    PATCHES: (patches, "16_large_vision"),
    CLINIC: (clinic, "18_clinic"),
}
PLACES = [(name, page) for name, (_, *places) in FIGURES.items() for page in places]


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
@pytest.mark.parametrize(("name", "page"), PLACES)
def test_every_setting_shows_the_numbers_of_the_library(
    browser, site, name, page, width, scheme, everything
):
    """By mouse or finger, and by keyboard; in all combinations, where they are not too many.

    On the second screen the same script computes the same numbers: there fingers move each control
    to a few of its values. The rest is left to ``--everything``.
    """
    first = (width, scheme) == SCREENS[0]
    many, values = (MANY, 999) if everything else (NOW, VALUES[0] if first else VALUES[1])
    with figure(browser, site, name, width, scheme, page) as moving:
        moving.check()
        counts = list(map(len, moving.shown.names))
        by_hand = [parts is not None for _, parts, *_ in moving.controls]  # sliders: by keys
        if (everything or first) and math.prod(counts) <= many:
            for settings in itertools.product(*map(range, counts)):
                for n, value in enumerate(settings):
                    if value != moving.settings[n]:
                        moving.set(n, value, by_hand=by_hand[n])
        else:
            for n, count in enumerate(counts):
                moving.again()
                for value in range(0, count, -(-count // values)):
                    moving.set(n, value, by_hand=by_hand[n])
        for n, count in enumerate(counts):  # the other way
            if by_hand[n]:
                back = range(moving.settings[n])[::-1] if everything or first else ()
            else:
                back = count - 1, 0
            for value in back:
                moving.set(n, value, by_hand=not by_hand[n])
        moving.again()


def test_figures_that_move_have_the_colours_of_the_others():
    assert live.stored()["roles"] == ROLES


def test_without_scripts_the_figures_stand_still(site):
    """How one looks then, the front page's test sees."""
    assert FIGURES.keys() == live.stored()["figures"].keys()
    for name, where in PLACES:
        _, _, rest = (site / f"book/{where}.html").read_text().partition(f'id="{name}"')
        figure = rest.partition("</figure>")[0]
        assert len(re.findall(r'<img |<div class="drawn', figure)) == 1
        assert 'class="live' not in figure
