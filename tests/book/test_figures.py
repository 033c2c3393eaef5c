"""The figures that move, in a browser: each control, and every number that it shows.

What a figure computes is compared with `attn_lib`; what it only looks up, with the numbers that the
cells of its page compute, as nbval finds them.
"""

import contextlib
import functools
import itertools
import math
import re
from collections.abc import Callable
from typing import NamedTuple

import date_model
import live
import pytest
import torch
from browsing import only, opened, visit

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

    names: list[list[str]]  # the words at each setting of each control, in their order
    start: tuple[int, ...]
    rest: Callable  # the settings -> what all else is, as `READ` asks for it
    follow: Callable = lambda settings, n, value: (*settings[:n], value, *settings[n + 1 :])
    more: Callable = lambda moving: None  # what else moves it, and is compared


# what moves a figure: radio buttons, sliders, rows of a map; and the words where each stands
CONTROL = "fieldset, .slide input, .map tbody:has(button)"
WORDS = "fieldset label:has(:checked) span:first-of-type, .slide output, .map .chosen "
WORDS += "button[aria-pressed=true]"
# each kind -> the parts of it, what of them is focused, the keys back and on
KINDS = {
    "FIELDSET": ("label", "input", "ArrowLeft", "ArrowRight"),
    "INPUT": (None, None, "ArrowLeft", "ArrowRight"),
    "TBODY": ("tr", "button", "ArrowUp", "ArrowDown"),
}
# of the parts that a selector names, the words that are seen; or, behind an @, what else they have,
# and behind @. which of them, counted from 0, have a class
READ = """([figure], questions) => questions.map(question => {
  const [which, what] = question.split(" @"), parts = [...figure.querySelectorAll(which)];
  if (what?.startsWith(".")) return [...parts.keys()].filter(i => parts[i].matches(what));
  return parts.map(part => what === undefined ? part.innerText
    : what === "text" ? part.textContent
    : what.startsWith("--") ? part.style.getPropertyValue(what)
    : what === "value" ? part.value : part.getAttribute(what));
})"""
NUMBER = re.compile(r"(-?\d*\.\d+)")


def formatted(numbers, digits):
    """Numbers as texts for `alike`, of a figure that shows so many digits."""
    return [f"{number:.{digits + 3}f}" for number in torch.as_tensor(numbers).flatten().tolist()]


def vector(numbers, digits):
    return f"({', '.join(formatted(numbers, digits))})"


def alike(found, expected):
    """Whether texts have the same words, and numbers that are rounded to three digits less."""
    parts = (NUMBER.split(str(text).replace("−", "-")) for text in (found, expected))
    for n, (one, other) in enumerate(itertools.zip_longest(*parts, fillvalue="")):
        digits = len(one.partition(".")[2])
        if n % 2 == 0 and one != other:
            return False
        if n % 2 and len(other.partition(".")[2]) != digits + 3:
            return False
        if n % 2 and abs(float(one) - float(other)) > 0.51 * 10**-digits:
            return False
    return True


def test_each_digit_of_a_text_is_compared():
    shown = "the cat puts 0.123400 on (-0.5000, 0.57000)"
    assert alike("the cat puts 0.123 on (−0.5, .57)", shown)
    for wrong in ("0.124 on (−0.5, .57)", "0.12 on (−0.5, .57)", "0.123 at (−0.5, .57)"):
        assert not alike(f"the cat puts {wrong}", shown)


def near(numbers, within=1e-6):
    """Numbers from which those of a figure may differ by so much."""
    return pytest.approx(torch.as_tensor(numbers).flatten().tolist(), abs=within)


def same(found, expected):
    """Whether parts of a figure are what they should be: texts, or numbers that are `near`."""
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(alike, found, expected))
    numbers = [number for text in found for number in NUMBER.findall(text) or [text]]
    return list(map(float, numbers)) == expected


class Moving:
    """A figure on its page, and what moves it: keys, and a mouse or a finger."""

    def __init__(self, page, drawn, finger, shown):
        self.page, self.drawn, self.finger, self.shown = page, drawn, finger, shown
        self.settings = shown.start
        parts = drawn.locator(CONTROL).all()
        self.controls = [(part, *KINDS[part.evaluate("part => part.tagName")]) for part in parts]

    def press(self, part, **at):
        part.tap(**at) if self.finger else part.click(**at)

    def point(self, part):
        part.tap() if self.finger else part.hover()

    def keys(self, *names):
        for name in names:
            self.page.keyboard.press(name)

    def check(self, **more):
        """Settings and all the rest are those of the library."""
        at = [*zip(self.settings, self.shown.names, self.controls, strict=True)]
        sliders = [value for value, _, (_, parts, *_) in at if parts is None]
        words = [NUMBER.sub(r"\g<0>000", names[value]) for value, names, _ in at]  # each exact
        rest = self.shown.rest(*self.settings, **more)
        self.shows({WORDS: words, ".slide input @value": sliders, **rest})

    def shows(self, rest):
        """The parts that these questions ask for are what stands beside them."""
        found = zip(self.drawn.evaluate_all(READ, [*rest]), rest.items(), strict=True)
        wrong = {asked: (is_, should) for is_, (asked, should) in found if not same(is_, should)}
        assert wrong == {}

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

    def drag(self, handle, by):
        """With the mouse, or with a finger; the page must not move along."""
        box = handle.bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        start, *steps = [(x + by[0] * part / 4, y + by[1] * part / 4) for part in range(5)]
        before = self.page.evaluate("scrollY")
        if self.finger:
            session = self.page.context.new_cdp_session(self.page)
            for kind, at in [("touchStart", start), *(("touchMove", step) for step in steps)]:
                points = [{"x": at[0], "y": at[1]}]
                session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
            session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
        else:
            self.page.mouse.move(*start)
            self.page.mouse.down()
            for step in steps:
                self.page.mouse.move(*step)
            self.page.mouse.up()
        assert self.page.evaluate("scrollY") == before


@contextlib.contextmanager
def figure(browser, site, name, page_name, width, scheme):
    """A figure on its page, from disk; on the narrow screen fingers touch it."""
    what, *_ = FIGURES[name]
    with opened(browser, site.as_uri(), has_touch=width < 500) as page:
        visit(page, (site / f"book/{page_name}.html").as_uri(), width, scheme)
        drawn = page.locator(f"#{name}")
        only(drawn)
        drawn.scroll_into_view_if_needed()
        yield Moving(page, drawn, width < 500, what())
        assert page.outside == page.errors == []


def listed(names):
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


@functools.cache
def stored(name):
    return live.stored()["figures"][name]


def arrows(role, ends):
    """Where arrows end, on each plane: their lines, and their tips."""
    places = {"line": ("x2", "y2"), "circle.tip": ("cx", "cy")}
    return {
        f"{part}.{role} @{name}": near([end[i] for end in ends], 0.01)
        for part, names in places.items()
        for i, name in enumerate(names)
    }


# ---------------------------------------------------------------- one head, its query moved

HEAD = "fig-one-head-drag"


def one_head():
    """Token and temperature, or a query that was moved by hand: what attention makes of them."""
    tokens, q, k, v = (stored(HEAD)[name] for name in ("tokens", *"qkv"))
    k, v = torch.tensor(k), torch.tensor(v)

    def rest(asking, step, query=None):
        temperature, point = 2 ** (step / 4 - 2), query or q[asking]
        out, weights = attention(torch.tensor([point]), k, v, scale=2**-0.5 / temperature)
        whose = f"The query {vector(point, 1)}"
        if query is None:
            whose = f"With the query {vector(point, 1)}, {tokens[asking]}"
        most = f"{weights.max():.6f} on {tokens[int(weights.argmax())]}"
        flat = weights.max() - weights.min() < 5e-4
        puts = "the same weight on every token" if flat else most
        sizes = near(3 + 14 * weights.sqrt(), 0.05)
        planes = ("query", point, -1.5, 6.0), ("output", out[0].tolist(), -0.4, 3.3)
        ends = [
            arrows(role, [((x - low) * 240 / span, 240 - (y - low) * 240 / span)])
            for role, (x, y), low, span in planes
        ]
        return {
            ".slide input @value": near([step / 4 - 2]),
            ".handle @aria-valuetext": [vector(point, 1)],
            "fieldset @.left": [] if query is None else [0],
            "td .vector": [f"({x:.0f}, {y:.0f})" for x, y in [*k.tolist(), *v.tolist()]],
            "td.score": formatted(torch.tensor(point) @ k.mT / 2**0.5, 2),
            "td.weight": formatted(weights, 3),
            ".say": [f"{whose} puts {puts} and gets {vector(out, 3)}."],
            "circle.key @r": sizes,
            "circle.value @r": sizes,
            **ends[0],
            **ends[1],
        }

    temperatures = [f"{2 ** (step / 4 - 2):.2f}" for step in range(21)]
    return Shown([tokens, temperatures], (1, 8), rest, more=move_the_query)


def move_the_query(moving):
    """By keys, by dragging its end, by one click or touch; a drag from elsewhere moves nothing."""
    handle, plane = moving.drawn.locator(".handle"), moving.drawn.locator("svg").first
    unit = plane.bounding_box()["width"] / 6.0  # from -1.5 to 4.5
    ring = "e => { const s = getComputedStyle(e); return [s.outlineStyle, s.stroke].join(); }"

    def query():
        text = handle.get_attribute("aria-valuetext").replace("−", "-")
        point = [float(number) for number in NUMBER.findall(text)]
        moving.check(query=point)
        return point

    moving.drawn.get_by_role("slider", name="query").focus()
    moving.keys("ArrowRight", "ArrowRight", "Shift+ArrowDown", "ArrowUp", "Shift+ArrowLeft")
    assert query() == [-0.3, 1.6]
    assert handle.evaluate(ring) != "none,none"
    moving.again()
    moving.drag(handle, (1.5 * unit, 3 * unit))
    assert query() == pytest.approx([1.5, -1.0], abs=0.11)
    assert handle.evaluate(ring) == "none,none"  # which is for the keyboard
    moving.drag(handle, (-900, 0))  # beyond the frame
    assert query() == pytest.approx([-1.3, -1.0], abs=0.11)
    moving.press(plane, position={"x": 4.5 * unit, "y": 4.0 * unit})
    assert query() == pytest.approx([3.0, 0.5], abs=0.11)
    moving.set(0, 0, by_hand=True)  # the: a query of zeros
    if not moving.finger:
        moving.drag(plane.locator("text").nth(3), (80, -16))  # over names
        moving.check()
        assert moving.page.evaluate("String(getSelection())") == ""


# ---------------------------------------------------------------- maps of trained heads

ONE, HEADS, SINK = "fig-one-head-map", "fig-many-heads-twelve", "fig-real-encoder-sink"


def row_of(weights, t):
    """The numbers of the chosen row of a map, which alone are seen."""
    shown = [[""] * len(line) for line in weights]
    shown[t] = formatted(weights[t], 2)
    return {".map td span": [text for line in shown for text in line]}


def row_of_a_map(tokens, weights, t, where=""):
    """The numbers of the chosen row, and the sentence."""
    best, most = tokens[int(weights[t].argmax())], weights[t].max()
    said = f"{where}{tokens[t]} puts {most:.6f} of its attention on {best}."
    return {**row_of(weights, t), ".say": [said]}


def trained_map():
    """Each row of one head."""
    tokens, weights = stored(ONE)["tokens"], torch.tensor(stored(ONE)["weights"])
    return Shown([tokens], (6,), lambda t: row_of_a_map(tokens, weights, t))


def heads():
    """Each head, the row staying: the large map is its own, the small ones show all weights."""
    tokens, maps = stored(HEADS)["tokens"], torch.tensor(stored(HEADS)["weights"])
    n = len(tokens)
    places = torch.cartesian_prod(torch.arange(n), torch.arange(n)).repeat(len(maps), 1)

    def rest(h, t):
        best = maps[:, t].max(dim=-1)
        pairs = zip(best.indices, formatted(best.values, 2), strict=True)
        return {
            **row_of_a_map(tokens, maps[h], t, f"In head {h}, "),
            ".heads svg .mark @y": [t] * len(maps),
            ".most": [f"{tokens[s]} {weight}" for s, weight in pairs],
            ".heads .cell @--w": near(maps),
            ".heads .cell @y": places[:, 0].tolist(),
            ".heads .cell @x": places[:, 1].tolist(),
        }

    return Shown([[f"head {h}" for h in range(12)], tokens], (4, 3), rest)


def crossed():
    """Each sentence and layer: the mean of the heads in four cases, and the first column."""
    data = stored(SINK)

    def rest(which, layer):
        now = [torch.tensor(layers[layer]) for layers in data["maps"][which]]
        shares = [weights[:, 0].mean() for weights in now]
        firsts = [data["tokens"][which][cut] for cut in data["without"]]
        said = [f"{s:.6f} ({name})" for s, name in zip(shares, data["corners"], strict=True)]
        words = f"Layer {layer}, {data['texts'][which]} The first token gets {listed(said)}."
        maps = zip(data["corners"], now, strict=True)
        return {
            ".heads .most": [f"{t} {s:.5f}" for t, s in zip(firsts, shares, strict=True)],
            ".say": [words],
            ".heads svg @aria-label": [f"{name}: a map of {len(w)} tokens" for name, w in maps],
            ".heads .cell @--w": near(torch.cat([weights.flatten() for weights in now]), 1e-4),
        }

    return Shown([data["names"], list(map(str, range(6)))], (0, 3), rest)


# ---------------------------------------------------------------- masks

MASK = "fig-masks-playground"
MASKS = {
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

    def rest(kind, reading, length):
        given = MASKS[kinds[kind]] & (torch.arange(6) < length)
        mask = ~given if reading else given
        is_open = mask.flatten().tolist()
        weights = formatted(attention_weights(q, k, mask=mask), 2)
        empty = [tokens[t] for t in range(6) if not mask[t].any()]
        end = f"Nothing is open to {listed(empty)}: zeros." if empty else "Every row sums to 1."
        return {
            "table.given tbody td": ["T" if cell else "F" for cell in given.flatten()],
            ".weighed tbody td": [weights[i] if is_open[i] else "" for i in range(36)],
            ".weighed tbody td @.closed": [i for i in range(36) if not is_open[i]],
            ".say": [f"{sum(is_open)} of 36 pairs are open. {end}"],
        }

    lengths = [f"{length} of 6" for length in range(7)]
    return Shown([kinds, ["may attend", "blocked"], lengths], (0, 0, 6), rest)


# ---------------------------------------------------------------- scale, positions, next token

ROW, DIAL, SAMPLE = "fig-scaling-row", "fig-positions-dial", "fig-next-token-knobs"


def random_row():
    """Scale, width and head: the weights of cat, and the gradients of all heads."""
    products, gradients = (torch.tensor(stored(ROW)[name]) for name in ("products", "gradient"))
    widths, first = stored(ROW)["widths"], stored(ROW)["head"]

    def rest(kind, i, h):
        weights = ((1.0, widths[i] ** -0.5, 1 / widths[i])[kind] * products[i, h]).softmax(dim=0)
        sizes, top = gradients[i, :, kind], gradients[i].max()
        low, median, high = (sizes.sort().values[n] for n in (0, 11, -1))
        said = (
            f"Head {h + 1} puts {weights.max():.5f} on one word, and its gradient is "
            f"{sizes[h]:.6f}. Of all 24 heads, the median is {median:.6f}, the mean "
            f"{sizes.mean():.6f} and the largest {high:.6f}."
        )
        label = f"the gradients of 24 heads, from {low:.6f} to {high:.6f}"
        return {
            "td.weight": formatted(weights, 2),
            ".say": [said],
            ".bar @height": near(90 * sizes / top, 0.02),
            ".bar @.chosen": [h],
            "svg.losses @aria-label": [label],
        }

    names = [["1", "1/√dₖ", "1/dₖ"], list(map(str, widths)), [f"{h + 1} of 24" for h in range(24)]]
    return Shown(names, (0, 3, first), rest)


def dial():
    """Each position, and both together: rotated pairs, products, score, angles, what is shaded."""
    pairs = {role: torch.tensor(stored(DIAL)[role[0]]).double() for role in ("query", "key")}
    pixels = torch.tensor([100.0, -100.0], dtype=torch.float64)

    def rest(i, j, low):
        shown, rotated = {}, {}
        for role, p in (("query", i), ("key", j)):
            # the speeds 1 and 1/10 are those of four numbers with base 100; halves are pairs
            turned = apply_rope(pairs[role].T.reshape(1, 4), torch.tensor([p]), base=100.0)
            rotated[role] = turned.view(2, 2).T  # a row is a pair
            shown[f"td.{role}"] = [vector(pair, 3) for pair in rotated[role]]
            shown |= arrows(role, (120 + rotated[role] * pixels).tolist())  # on both planes
        products = (rotated["query"] * rotated["key"]).sum(dim=-1)
        new = ", new" if not 0 <= i - j <= 15 else ""  # pair 2's; pair 1 went round
        corners = []
        for speed, reach in ((1.0, math.tau), (0.1, 1.5)):
            turns = speed * j + reach * torch.tensor([0.0, 0.5, 1.0])
            corners.append(120 + torch.stack([turns.cos(), turns.sin()], dim=1) * pixels)
        score = f"score {products.sum():.6f}."
        return {
            **shown,
            "td.product": formatted(products, 3),
            ".say": [f"Query at {i}, key at {j}: distance {i - j}, {score}"],
            "td.angle": [f"{i - j:.4f}", f"{(i - j) / 10:.4f}{new}"],
            ".covered @d": near(torch.stack(corners), 0.01),
        }

    def follow(settings, n, value):
        i, j, low = settings
        by = min(value, 63 - abs(i - j)) - low  # both stop where one is at the end
        i, j = ((value, j), (i, value), (i + by, j + by))[n]
        return i, j, min(i, j)

    at = [str(n) for n in range(64)]
    return Shown([at, at, at], (24, 4, 4), rest, follow, drag_the_hands)


def drag_the_hands(moving):
    """By mouse or finger, on either plane; to the nearest position; not beyond the ends."""
    planes = moving.drawn.locator(".planes svg")
    unit = planes.first.bounding_box()["width"] / 240 * 100  # a hand's length
    for plane, role, angle, i, j in (
        (1, "query", 2.31, 23, 4),
        (1, "key", 0.88, 23, 9),
        (0, "query", 23 + 1.05, 24, 9),
        (1, "query", 2.4 + 3.0, 54, 9),
        (1, "key", -0.7, 54, 0),  # not below 0
        (1, "query", 5.4 + 1.6, 63, 0),  # nor beyond the last
    ):
        box = planes.nth(plane).bounding_box()
        tip = planes.nth(plane).locator(f".{role}-tip")
        here = tip.bounding_box()
        x, y = (here[a] + here[b] / 2 for a, b in (("x", "width"), ("y", "height")))
        to_x = box["x"] + box["width"] / 2 + unit * math.cos(angle)
        to_y = box["y"] + box["height"] / 2 - unit * math.sin(angle)
        moving.drag(tip, (to_x - x, to_y - y))
        moving.settings = i, j, min(i, j)
        moving.check()


def next_token():
    """A temperature and a cut: the shares of the likeliest tokens, and three texts drawn so."""
    tokens, cuts, heats = (stored(SAMPLE)[name] for name in ("tokens", "cuts", "temperatures"))

    def rest(c, t):
        shares, count, texts = (stored(SAMPLE)[name][t][c] for name in ("shares", "kept", "texts"))
        numbers = formatted([*shares, max(0.0, 1 - sum(shares))], 3)
        others = f", and others, with {numbers[-1]} together."
        others = others if count > 20 else ", and no other."
        return {
            "tbody th": [*tokens, "all others"],
            "td.share": numbers[:count] + ["cut off"] * (21 - count),
            "tbody tr @.cut": list(range(min(count, 21), 21)),
            ".say": [f"{min(count, 20)} of these 20 tokens can come next{others}"],
            ".texts li @text": [f"… the warm{text}" for text in texts],
        }

    return Shown([cuts, [f"{heat:.2f}" for heat in heats]], (0, 3), rest)


LENS = "fig-block-lens"


def lens():
    """Each prompt after each number of blocks: the best tokens of a model that stops there."""

    def rest(which, k):
        best, own, names = (stored(LENS)[name][which][k] for name in ("chances", "own", "guesses"))
        answer = stored(LENS)["answers"][which]
        said = f"If SmolLM2 stopped after {k} of 30 blocks, it would say {names[0]}, with "
        end = f" In the end it says {answer}, which has {own:.6f} here."
        if k == 30:
            said, end = f"After all 30 blocks SmolLM2 says {names[0]}, with ", ""
        return {
            "tbody th": names,
            "td.share": formatted(best, 3),
            "td.share @--w": near(best),
            ".say": [f"{said}{best[0]:.6f}.{end}"],
        }

    return Shown([stored(LENS)["prompts"], [f"{k} of 30" for k in range(31)]], (0, 28), rest)


GUESS = "fig-language-model-guess"


def guess():
    """Each question, each text, each guess: whose it is, and what three tests say of the model."""
    data = stored(GUESS)
    assert all(sorted(places) == list(range(9)) for places in data["order"])
    kinds = ["none yet", "the right model", "one with an error"]

    def rest(question, letter, told):
        who = data["order"][question][letter]
        error = f"a model with the error {data['names'][who]}."
        whose = error if who else "this is the right model."
        is_right = (told == 1) == (who == 0)
        said = f"{'Yes' if is_right else 'No'}: {whose}" if told else "Who wrote this?"
        measures = data["measures"].values()
        return {
            ".written @text": [data["texts"][question][who]],
            ".say": [said],
            ".ends td": [f"{numbers[who]}000" if told else "?" for numbers in measures],
        }

    def follow(settings, n, value):
        question, letter, _ = (*settings[:n], value, *settings[n + 1 :])
        return question, letter, value if n == 2 else 0

    return Shown([data["questions"], list("ABCDEFGHI"), kinds], (2, 0, 0), rest, follow)


# ---------------------------------------------------------------- dates

READER = "fig-encoder-decoder-read"


def of_dates(t, text="23 October 2025", other="14 January 1987", chosen=()):
    """What two dates give, with the chosen vectors of the other one, as its character t is told."""
    (plain, _), (theirs, _) = date_model.read(text), date_model.read(other)
    answer, weights = date_model.read(text, other, *chosen)
    mean = weights.mean(dim=(1, 2))
    best = int(mean[t].argmax())
    on = "the gap" if text[best] in " \u202f" else text[best]
    said = f"Writing {answer[t]}, character {t + 1}, it puts {mean[t, best]:.5f}"
    said += f" of its attention on {on}, character {best + 1}."
    if chosen:
        parts = {"year": slice(0, 4), "month": slice(5, 7), "day": slice(8, 10)}
        changes = [
            f"the {name} is {answer[at]}{', that of the other date' * (answer[at] == theirs[at])}"
            for name, at in parts.items()
            if answer[at] != plain[at]
        ]
        count = "1 vector" if len(chosen) == 1 else f"{len(chosen)} vectors"
        said = f"{count} exchanged: {'; '.join(changes) or 'the answer stays'}."
    signs = [re.sub("[ \u202f]", "␣", one) for one in (text, other)]
    rows = [f".keys tr[data-t='{i}']" for i in range(len(mean))]  # in all tables
    return {
        ".iso": [answer],
        ".iso span @.follows": [i for i, sign in enumerate(answer) if plain[i : i + 1] != sign],
        ".say": [said],
        "[data-s] b @text": [*signs[0]],
        "[data-s] small @text": [*signs[1]],
        "[data-s] @aria-pressed": [str(s in chosen).lower() for s in range(len(text))],
        **{f"{row} td @--w": near(line, 1e-4) for row, line in zip(rows, mean, strict=True)},
        **{f"{row} td @text": formatted(line, 2) for row, line in zip(rows, mean, strict=True)},
        ".keys .chosen td span": formatted(mean[t], 2),  # which alone are seen
        ".keys tbody tr:not(.chosen) td span": [""] * (len(mean) - 1) * len(text),
    }


def read_date():
    """As it begins: a date, its answer, the map. All else: ``test_date_reader.py``."""
    return Shown([[*"2025-10-23"]], (2,), of_dates)


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

    def rest(which, pair=(), first=None):
        picture = exchanged(pictures[which], pair)
        n = 1 + PAIRS.index(tuple(sorted(pair))) if pair else 0
        shares = torch.tensor(stored(SWAP)["chances"][which][n])
        start = "The whole picture"
        if pair:
            start = f"Patches {min(pair) + 1} and {max(pair) + 1} exchanged"
        elif first is not None:
            start = f"Patch {first + 1}, and which other one? The whole picture"
        best = names[int(shares.argmax())]
        return {
            ".tiles button @aria-pressed": [str(i in (*pair, first)).lower() for i in range(16)],
            ".next tbody th": names,
            "td.share": formatted(shares, 3),
            ".tiles rect @--w": near(picture.view(4, 7, 4, 7).transpose(1, 2) / 255, 1e-4),
            ".say": [f"{start}: the model says {best}, with {shares.max():.6f}."],
        }

    return Shown([stored(SWAP)["names"]], (0,), rest, more=exchange_patches)


def exchange_patches(moving):
    """Of each picture, by mouse or finger and by keyboard; and the pair that misleads most."""
    buttons = moving.drawn.locator(".tiles button").all()
    for which, (a, b) in enumerate(((0, 15), (9, 6), (1, 4))):
        moving.set(0, which, by_hand=True)
        moving.press(buttons[a])
        moving.check(first=a)
        moving.press(buttons[b])
        moving.check(pair=(a, b))
        moving.press(moving.drawn.get_by_text("worst pair"))
        right = stored(SWAP)["classes"].index(stored(SWAP)["names"][which])
        _, *shares = torch.tensor(stored(SWAP)["chances"][which])[:, right]
        moving.check(pair=PAIRS[torch.stack(shares).argmin()])
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
    letters = [[*map(ord, text[1:])] for text in stored(PATCHES)["weights"]]
    steps = torch.tensor(letters).view(3, 145, 145)
    roots = (steps - 35 - (steps > 92).int()) / 90.0  # a backslash is left out
    torch.testing.assert_close(roots, torch.stack(maps).float().sqrt(), rtol=0.0, atol=0.0065)

    def rest(head, asked=52):
        shares = roots[head, asked].double() ** 2
        most = sorted(range(145), key=lambda s: (-shares[s], s))[:4]
        asking = f"The patch in {places[asked]}" if asked else "The class token"
        whom = f"the patch in {places[most[0]]}" if most[0] else places[0]
        whom = "itself" if most[0] == asked else whom
        labels = list(map("{}: {}".format, places, formatted(shares, 2)))
        return {
            ".patches button @aria-pressed": [str(i == asked).lower() for i in range(1, 145)],
            ".patches button @aria-label": labels[1:],
            ".patches td @.chosen": [asked - 1] if asked else [],
            ".patches td @--w": near(roots[head, asked, 1:], 0.0006),
            ".most tbody th": [places[s] for s in most],
            ".most tbody td": formatted(shares[most], 2),
            ".say": [f"{asking} puts {shares[most[0]]:.5f} of its attention on {whom}."],
        }

    names = ["near (layer 1)", "sink (layer 0)", "alike (layer 11)"]
    return Shown([names], (2,), rest, more=ask_patches)


def ask_patches(moving):
    """Patches, and the class token; by keyboard, and by mouse or finger; with each head."""
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

    def rest(i, row):
        losses, (whole, alone) = curves[i], stored(CLINIC)["sums"][i]
        leaks = "differs. It leaks." if alone - whole > 0.001 else "is the same. Nothing leaks."
        heights = 100 * (1 - losses / curves.max())
        curve = torch.stack([torch.arange(50) * 240 / 49, heights], dim=1)
        falls = f"falls from {losses[0]:.5f} to {losses[-1]:.5f}"
        scale = [f"{curves.max():.4f}", "0", "floor", "loss during 200 steps of training"]
        return {
            ".map thead th": tokens,
            **row_of(maps[i], row),
            ".say": [sentence(maps[i, row], row), f"{names[i]}: word by word the loss {leaks}"],
            "svg.losses text @text": scale,
            ".ends td": formatted([whole, alone, floor], 3),
            "path.curve @d": near(curve, 0.051),
            "svg.losses @aria-label": [f"the loss of {names[i]} {falls}"],
        }

    return Shown([names, tokens], (0, 6), rest)


GROWN = "fig-circuit-grow"


def grown():
    """A model of two layers at each step that was watched: maps, masses, loss and next word."""
    data = stored(GROWN)
    steps, tokens, words = (data[name] for name in ("steps", "tokens", "words"))

    def rest(n):
        before, followed, loss = (data[name][n] for name in ("before", "followed", "losses"))
        chances = torch.tensor(data["chances"][n])
        best = words[int(chances.argmax())]
        said = (
            f"After {steps[n]} steps the loss is {loss:.6f} nats. Next, after {tokens[-1]}, "
            f"the model expects {best}, with {chances.max():.5f}."
        )
        size = f"a map of {len(tokens)} words"
        weights = [weight for table in data["maps"][n] for line in table for weight in line]
        return {
            ".heads svg @aria-label": [f"{layer}: {size}" for layer in data["layers"]],
            ".heads .most": [f"word before {before:.5f}", f"what followed {followed:.5f}"],
            ".say": [said],
            ".next td.share": formatted(
                torch.stack([chances, torch.tensor(data["rule"])], dim=1), 2
            ),
            ".heads .cell @--w": near(weights),
            ".losses @aria-label": [f"the loss is {loss:.6f} after {steps[n]} steps"],
        }

    return Shown([list(map(str, steps))], (11,), rest)


# ---------------------------------------------------------------- documents in one row

PACK = "fig-same-answer-pack"


def packed():
    """One head on three documents in one row: each mask, each way to count positions, each row."""
    names, document, counts = (stored(PACK)[name] for name in ("tokens", "documents", "positions"))
    maps = torch.tensor(stored(PACK)["weights"])

    def rest(mask, place, t):
        weights = maps[mask][place]
        across = weights[t, torch.tensor(document) != document[t]].sum()
        whose = f"{names[t]}, of document {document[t] + 1}, puts {across:.6f}"
        return {
            **row_of(weights, t),
            ".ends tbody td": counts[place],
            ".say": [f"{whose} of its attention on other documents."],
        }

    kinds = [["causal", "causal and segment"], ["count on", "restart"], names]
    return Shown(kinds, (0, 0, 4), rest)


# ---------------------------------------------------------------- without a matrix, or with one

IN_TILES, IN_STATE = "fig-without-matrix-tiles", "fig-one-state-notes"


def in_tiles():
    """Tiles, computed one by one; what is kept for each query is what `attention` gives so far."""
    data = stored(IN_TILES)
    tokens, (q, k, v) = data["tokens"], (torch.tensor(data[name]) for name in "qkv")
    n, scores = len(tokens), q @ k.mT / 2**0.5
    sizes = [1, 2, 3, 4]

    def order(size, causal):
        """The queries and the keys of each tile."""
        groups = torch.arange(n).split(sizes[size])
        pairs = itertools.product(groups, groups)
        return [(rows, keys) for rows, keys in pairs if not causal or keys[0] <= rows[-1]]

    def follow(settings, which, value):
        settings = (*settings[:which], value, *settings[which + 1 :])
        return (*settings[:2], min(settings[2], len(order(*settings[:2]))))

    def kept(met):
        """Largest score and sum, and the output, of each query with the keys that it met."""
        top = scores.masked_fill(~met, -math.inf).amax(dim=1)
        total = ((scores - top[:, None]).exp() * met).sum(dim=1)
        return top, total, attention(q, k, v, mask=met)[0]

    def rest(size, causal, done):
        tiles = order(size, causal)
        allowed = torch.ones(n, n).tril().bool() if causal else torch.ones(n, n).bool()
        reached = torch.full((n, n), len(tiles))  # by which tile
        for at, (rows, keys) in enumerate(tiles):
            reached[rows[:, None], keys] = at
        pairs = zip(reached.flatten(), allowed.flatten(), formatted(scores, 1), strict=True)
        texts = ["" if at >= done else text if is_open else "−∞" for at, is_open, text in pairs]
        closed, late = (
            [i for i, at in enumerate(reached.flatten()) if at >= first]
            for first in (len(tiles), done)
        )
        met, before = (allowed & (reached < end) for end in (done, done - 1))
        top, total, out = kept(met)
        was, *_ = kept(before)
        rows = [
            [f"{top[t]:.5f}", f"{total[t]:.5f}", vector(out[t], 2)] if met[t].any() else [""] * 3
            for t in range(n)
        ]
        rose = [
            f"{tokens[t]} by {(was[t] - top[t]).exp():.6f}"
            for t in range(n)
            if -math.inf < was[t] < top[t]
        ]
        said = "No maximum that was there has risen." if done else "Nothing is kept yet."
        if rose:
            said = f"A maximum rose; sum and output were multiplied: {', '.join(rose)}."
        end = " Every output is that of softmax." if done == len(tiles) else ""
        return {
            ".tiles tbody td": texts,
            ".tiles tbody td @.closed": closed,
            ".tiles tbody td @.true": [i for i in range(n * n) if i not in late],
            ".tiles tbody td @.now": [
                i for i, at in enumerate(reached.flatten()) if at == done - 1
            ],
            ".ends tbody td": [text for row in rows for text in row],
            ".say": [f"{done} of {len(tiles)} tiles. {said}{end}"],
        }

    counts = ["1 tile" if m == 1 else f"{m} tiles" for m in range(n * n + 1)]
    return Shown([list(map(str, sizes)), ["none", "causal"], counts], (1, 0, 3), rest, follow)


def in_state():
    """Pairs written one by one, added or by the delta rule: what the library's state gives back."""
    data = stored(IN_STATE)
    names, foods, writes = data["names"], data["foods"], data["writes"]
    k, v = (torch.tensor(data[name], dtype=torch.float64) for name in "kv")

    def rest(rule, done, asked):
        keys, values = (
            x[[pair[i] for pair in writes[:done]]][None, None] for i, x in enumerate((k, v))
        )
        ones = torch.ones(1, 1, done, dtype=torch.float64)
        pair = (keys, keys, values)
        _, S = gated_delta_rule(*pair, ones) if rule else linear_attention(*pair)
        read, held = k @ S[0, 0], dict(writes[:done])
        nearest = torch.cdist(read, v).argmin(dim=1).tolist()
        errors = {
            a: float((read[a] - v[b]).square().sum() / v[b].square().sum()) for a, b in held.items()
        }
        rows = [
            (foods[held[a]], f"{errors[a]:.5f}", foods[nearest[a]]) if a in held else ("", "", "")
            for a in range(len(names))
        ]
        said = "Nothing is written. "
        if done:
            a, b = writes[done - 1]
            mean = sum(errors.values()) / len(errors)
            said = f"Last: {names[a]} with {foods[b]}. Mean error {mean:.5f}. "
        if asked in held:
            right, closest = foods[held[asked]], foods[nearest[asked]]
            end = "and that is closest." if right == closest else f"but {closest} is closer."
            said += f"{names[asked]} should read {right}, {end}"
        else:
            said += f"Nobody wrote {names[asked]}."
        wanted = formatted(v[held[asked]], 2) if asked in held else [""] * 4
        return {
            ".given tbody td": formatted(S, 2),
            ".reads tbody td": [*wanted, *formatted(read[asked], 2)],
            ".notes tbody td": [text for row in rows for text in row],
            ".notes tbody tr @.chosen": [asked],
            ".notes tbody td:last-child @.away": sorted(a for a in held if nearest[a] != held[a]),
            ".say": [said],
        }

    counts = ["1 pair" if m == 1 else f"{m} pairs" for m in range(len(writes) + 1)]
    return Shown([["added", "delta rule"], counts, names], (0, 8, 0), rest)


# ---------------------------------------------------------------- all of them

FIGURES = {  # what each has to show, and the pages where it stands
    ONE: (trained_map, "01_one_head"),
    HEAD: (one_head, "01_one_head", "index"),
    MASK: (playground, "02_masks"),
    HEADS: (heads, "03_many_heads"),
    ROW: (random_row, "04_scaling"),
    DIAL: (dial, "05_positions"),
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
def test_whatever_moves_a_figure_it_shows_the_numbers_of_the_library(
    browser, site, name, page, width, scheme, everything
):
    """By mouse or finger, and by keyboard; in all combinations, where they are not too many.

    On the second screen the same script computes the same numbers: there fingers move each control
    to a few of its values. The rest is left to ``--everything``.
    """
    whole = everything or (width, scheme) == SCREENS[0]
    many, values = (MANY, 999) if everything else (NOW, VALUES[0] if whole else VALUES[1])
    with figure(browser, site, name, page, width, scheme) as moving:
        moving.check()
        counts = list(map(len, moving.shown.names))
        by_hand = [parts is not None for _, parts, *_ in moving.controls]  # sliders: by keys
        if whole and math.prod(counts) <= many:
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
            if not by_hand[n]:
                back = count - 1, 0
            else:
                back = range(moving.settings[n])[::-1] if whole else ()
            for value in back:
                moving.set(n, value, by_hand=not by_hand[n])
        moving.again()
        moving.shown.more(moving)


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
