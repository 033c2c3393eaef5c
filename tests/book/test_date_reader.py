"""The model that reads dates in its page: its script against the library, and its figure."""

import base64
import datetime
import itertools
import random

import date_model
import dates_model
import live
import numpy as np
import pages
import pytest
from babel.dates import format_date
from browsing import loaded, only, opened, violations, visit

from attn_lib import datasets
from attn_lib.records import shipped_tensors

PAGE, FIGURE = "14_encoder_decoder", "fig-encoder-decoder-read"
ENGINE = pages.BOOK / "assets" / "dates.js"
OWN = ["dates.js", "dates_figure.js", "dates_model.js"]
SCREENS = [(1280, "light"), (390, "dark")]


def test_the_script_of_the_weights_is_that_of_the_command():
    """No heavier than it must be; each number is compared below, as the engine reads it."""
    text = dates_model.SCRIPT.read_text(encoding="utf-8")
    assert text == dates_model.script()
    assert len(text.encode()) < 670_000


READ = """([texts, others, chosen]) => {
  const reader = dateReader(DATES_MODEL);
  return texts.map((text, n) => {
    const own = reader.encode(text), away = reader.encode(others[n]);
    const {answer, weights} = reader.write(own);
    const mixed = own.map((row, s) => chosen[n].includes(s) ? away[s] : row);
    const listed = weights.map(layers => layers.map(heads => heads.map(row => [...row])));
    return {answer, weights: listed, exchanged: reader.write(mixed).answer};
  });
}"""


@pytest.fixture(scope="module")
def asked():
    """50 dates of the test, rows of each, another date at least as long; and the truth."""
    found, draw = datasets.dates(1000, split="test", seed=14), random.Random(14)  # noqa: S311
    texts = found.texts[:50]
    assert {*found.locales[:50]} == {*datasets.DATE_LOCALES}
    cases, truth = [], []
    for text in texts:
        other = draw.choice([one for one in found.texts if len(one) >= len(text)])
        chosen = draw.sample(range(len(text)), draw.randint(1, len(text)))
        cases.append((text, other, chosen))
        truth.append((*date_model.read(text), date_model.read(text, other, *chosen)[0]))
    right = [answer == iso for (answer, *_), iso in zip(truth, found.iso, strict=False)]
    assert sum(right) >= 47  # it is the trained model
    return cases, truth


EXACT = """() => Object.entries(dateReader(DATES_MODEL).tensors).map(([name, values]) => {
  const bytes = new Uint8Array(values.slice().buffer);
  return [name, btoa(Array.from(bytes, byte => String.fromCharCode(byte)).join(""))];
})"""


def in_browser(browser, script: str, *given, old="", new=""):
    """What a script says on a page with the engine, perhaps with a mistake, and the weights."""
    engine = ENGINE.read_text()
    assert not old or engine.count(old) == 1
    page = browser.new_page()
    page.add_script_tag(content=engine.replace(old, new))
    page.add_script_tag(path=dates_model.SCRIPT)
    found = page.evaluate(script, *given)
    page.close()
    return found


def test_float16_is_read_exactly(browser):
    """A wrong reading of the smallest numbers is seen here alone."""
    numbers = {name: tensor.numpy().tobytes() for name, tensor in shipped_tensors(PAGE).items()}
    wanted = {name: base64.b64encode(text).decode() for name, text in numbers.items()}
    assert dict(in_browser(browser, EXACT)) == wanted
    mistake = {"old": "fraction * 2 ** -14", "new": "fraction * 2 ** -15"}
    assert dict(in_browser(browser, EXACT, **mistake)) != wanted


def differences(browser, asked, count, **mistake) -> dict[str, int]:
    """Of so many dates, how often the engine has other answers or weights than the library."""
    cases, truth = (part[:count] for part in asked)
    found = in_browser(browser, READ, [*map(list, zip(*cases, strict=True))], **mistake)
    off = {"answers": 0, "exchanged": 0, "weights": 0}
    for one, (answer, weights, mixed) in zip(found, truth, strict=True):
        off["answers"] += one["answer"] != answer
        off["exchanged"] += one["exchanged"] != mixed
        same = np.shape(one["weights"]) == weights.shape
        near = same and np.abs(np.array(one["weights"]) - weights.numpy()).max() < 1e-4
        off["weights"] += not near
    return off


def test_the_engine_agrees_with_the_library(browser, asked):
    """On 50 dates of all locales: answers, each weight, and answers after an exchange of rows."""
    assert {*differences(browser, asked, 50).values()} == {0}
    scale = {"old": "key[i] / Math.sqrt(d_k)", "new": "key[i] / Math.sqrt(d)"}
    assert differences(browser, asked, 5, **scale)["weights"] == 5


# ---------------------------------------------------------------- the figure


# the answer, its marked characters, the sentence, the keys, the rows and numbers of all tables
SHOWN = """([figure]) => {
  const all = which => [...figure.querySelectorAll(which)], one = which => all(which)[0].innerText;
  const numbers = row => [...row.cells].slice(1).map(
    cell => [Number(cell.style.getPropertyValue("--w")), Number(cell.textContent)]);
  return {
    answer: one(".iso"),
    marked: all(".iso span").map(span => span.className === "follows"),
    said: one(".say"),
    keys: all("[data-s]").map(
      key => [...key.innerText.split(/\\s+/), key.getAttribute("aria-pressed") === "true"]),
    chosen: all(".keys tr.chosen").map(row => row.rowIndex - 1),
    tables: all(".keys tbody").map(table => [...table.rows].map(numbers)),
  };
}"""


class Reader:
    """The figure on its page."""

    def __init__(self, page, width):
        self.page, self.drawn, self.finger = page, page.locator(f"#{FIGURE}"), width < 500
        self.text, self.other = (self.drawn.locator(f"input.{name}") for name in ("text", "other"))
        self.again = self.drawn.get_by_role("button", name="start again")

    def ready(self):
        self.drawn.locator("[data-ready]").wait_for()

    def shown(self):
        return self.drawn.evaluate_all(SHOWN)

    def key(self, s):
        return self.drawn.locator(f"[data-s='{s}']")

    def press(self, part):
        part.tap() if self.finger else part.click()

    def check(self, text, other, chosen=()):
        """Answer, sentence, keys and every number are those of the library."""
        (plain, _), (theirs, _) = date_model.read(text), date_model.read(other)
        answer, weights = date_model.read(text, other, *chosen)
        mean, shown = weights.mean(dim=(1, 2)), self.shown()
        t = shown["chosen"][0]
        best = int(mean[t].argmax())
        on = "the gap" if text[best] in " \u202f" else text[best]
        said = (
            f"Writing {answer[t]}, character {t + 1}, it puts {mean[t, best]:.2f} of its attention"
        )
        said += f" on {on}, character {best + 1}."
        if chosen:
            count = "1 vector" if len(chosen) == 1 else f"{len(chosen)} vectors"
            said = f"{count} exchanged: {date_model.changes(answer, plain, theirs)}."
        assert (shown["answer"], shown["said"]) == (answer, said)
        assert shown["chosen"] == [t] * len(shown["tables"])
        same = itertools.zip_longest(answer, plain[: len(answer)])
        assert shown["marked"] == [now != before for now, before in same]
        signs = [one.replace(" ", "␣").replace("\u202f", "␣") for one in (text, other)]
        pairs = zip(*signs, strict=True)
        assert shown["keys"] == [[*pair, s in chosen] for s, pair in enumerate(pairs)]
        found = np.concatenate(shown["tables"], axis=1)  # (T, S, 2)
        assert found.shape == (*mean.shape, 2)
        assert np.abs(found[..., 0] - mean.numpy()).max() < 1e-4
        assert np.abs(found[..., 1] - mean.numpy()).max() < 0.0051


@pytest.fixture(
    scope="module",
    params=[pytest.param(SCREENS[0], marks=pytest.mark.weekly), SCREENS[1]],
    ids=lambda screen: str(screen[0]),
)
def loaded_reader(request, browser, site):
    """On a phone, every week on both; nothing is said to the console or asked for outside."""
    width, scheme = request.param
    with loaded(browser, site, PAGE, width, scheme, has_touch=width < 500) as page:
        found = Reader(page, width)
        found.ready()
        only(found.drawn)
        yield found
        assert page.outside == page.errors == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.fixture
def reader(loaded_reader):
    loaded_reader.press(loaded_reader.again)
    return loaded_reader


FORMS = "short", "medium", "long", "full"
EXAMPLES = live.stored()["figures"].get(FIGURE, {}).get("examples", [])


def test_examples_are_dates_that_it_has_not_seen():
    """One of each locale, as CLDR writes it; the other has digits where it has; both are read."""
    locales = [lang.replace("-", "_") for lang, *_ in EXAMPLES]
    assert sorted(locales) == sorted(datasets.DATE_LOCALES)
    for locale, (_, *texts) in zip(locales, EXAMPLES, strict=True):
        found = []
        for text in texts:
            found.append(datetime.date.fromisoformat(date_model.read(text)[0]))
            forms = [format_date(found[-1], form, locale=locale) for form in FORMS]
            assert text in forms
        assert (12 * found[0].year + found[0].month) % 11 == 0  # a month of the test
        assert found[0].year != found[1].year
        digits, others = ([letter.isdigit() for letter in text] for text in texts)
        assert digits == others


def test_an_example_is_read_and_vectors_exchanged(reader):
    """By mouse or finger, two together; a second press takes one back."""
    for n, (_, text, other) in enumerate(EXAMPLES):
        reader.press(reader.drawn.locator(".examples button").nth(n))
        assert reader.text.input_value() == text
        assert reader.other.input_value() == other
        reader.check(text, other)
        reader.press(reader.key(1))
        reader.press(reader.key(4))
        reader.check(text, other, [1, 4])
        reader.press(reader.key(1))
        reader.check(text, other, [4])
    reader.press(reader.again)
    reader.check(EXAMPLES[0][1], EXAMPLES[0][2])
    assert reader.shown()["chosen"] == [2]


def test_a_date_is_typed_and_its_gap_pressed_by_keyboard(reader):
    """The other date gets another year, until it is typed, too."""
    keyboard = reader.page.keyboard
    reader.text.focus()
    keyboard.press("ControlOrMeta+A")
    keyboard.type("3 November 1962")
    reader.check("3 November 1962", "3 November 1987")
    reader.key(0).focus()
    for _ in range(10):
        keyboard.press("ArrowRight")
    keyboard.press("Enter")
    reader.check("3 November 1962", "3 November 1987", [10])
    assert reader.shown()["answer"] == "1987-11-03"
    assert reader.page.evaluate("document.activeElement.dataset.s") == "10"
    reader.other.focus()
    keyboard.press("ControlOrMeta+A")
    keyboard.type("8 December 1987")
    reader.check("3 November 1962", "8 December 1987", [10])
    reader.key(10).focus()
    keyboard.press("Space")
    keyboard.press("Home")
    reader.key(0).focus()
    keyboard.press("Space")
    reader.check("3 November 1962", "8 December 1987", [0])
    assert reader.shown()["answer"] == "1962-12-03"
    reader.text.fill("4 November 1962")
    assert reader.other.input_value() == "8 December 1987"
    reader.check("4 November 1962", "8 December 1987")
    reader.text.fill("20\u00a0fe\u0301vrier 1989")  # a space that does not break, an accent apart
    reader.check("20 février 1989", "8 December 1987")


def test_the_other_date_has_another_year(reader):
    for text, other in (
        ("8 December 1987", "8 December 2031"),
        ("9/25/82", "9/25/87"),
        ("2039年7月4日", "1985年5月8日"),  # an example has one of its own
        ("May", "May"),
    ):
        reader.text.fill(text)
        assert reader.other.input_value() == other
        reader.check(text, other)


def test_what_cannot_be_read_is_refused_in_words(reader):
    """The date, and the other one, which then gives no vectors; nothing is shown in its place."""
    for text, said in (
        ("3-Q-1962", "The model cannot read the date: no text of its training has -, Q."),
        ("5 May 1962" * 4 + "1", "The model reads at most 40 characters; the date has 41."),
        ("  ", "Type the date."),
    ):
        reader.text.fill(text)
        assert reader.shown()["said"] == said
        assert reader.shown()["answer"] == "?"
        assert reader.drawn.locator(".keys").count() == 0
        assert reader.text.get_attribute("aria-invalid") == "true"
    reader.text.fill("3 May 1962")
    reader.press(reader.key(5))
    assert reader.text.get_attribute("aria-invalid") == "false"
    for other, said in (
        ("3 May 1987!", "The model cannot read the other date: no text of its training has !."),
        ("", "Type the other date."),
    ):
        reader.other.fill(other)
        assert reader.shown()["said"] == said
        assert reader.shown()["answer"] == "1962-05-03"
        assert reader.drawn.locator("[data-s]:enabled").count() == 0
        reader.other.fill("3 May 1987")
        reader.check("3 May 1962", "3 May 1987", [5])
    reader.other.fill("3 May")
    assert reader.shown()["said"].startswith("Writing 1, character 1, it puts 0.")
    assert reader.drawn.locator("[data-s]:enabled").count() == len("3 May")
    name = reader.key(7).get_attribute("aria-label")
    assert name == "9, character 8: the other date is shorter"


def test_the_longest_text_fits_on_the_screen(reader):
    """In several tables, where it must; keys are wide enough to be touched."""
    text, other = (
        "poniedziałek, 23 października 2028 00000",
        "poniedziałek, 23 października 1987 00000",
    )
    assert len(text) == date_model.LONGEST
    reader.text.fill(text)
    reader.check(text, other)
    for s in (0, 21, 39):
        box = reader.key(s).bounding_box()
        assert box["width"] >= 20
        assert box["height"] >= 40
    reader.press(reader.key(31))
    reader.check(text, other, [31])


def test_a_row_of_the_map_is_told(reader):
    """By mouse or finger, and by keyboard: in words, and with its numbers."""
    rows = reader.drawn.locator(".keys tbody tr")

    def check(t):
        reader.check("23 October 2025", "14 January 1987")
        assert reader.shown()["chosen"] == [t]
        seen = [rows.nth(i).locator("td span").first.is_visible() for i in range(10)]
        assert seen == [i == t for i in range(10)]

    check(2)
    for t in (5, 8, 0):
        cell = rows.nth(t).locator("td").nth(4)
        cell.tap() if reader.finger else cell.hover()
        check(t)
    rows.nth(0).locator("button").focus()
    for key, t in (("ArrowDown", 1), ("ArrowDown", 2), ("ArrowUp", 1)):
        reader.page.keyboard.press(key)
        check(t)


def test_axe_finds_nothing_in_it(browser, site):
    """With a vector exchanged, and with a text that is refused."""
    with loaded(browser, site, PAGE, 390, "dark", has_touch=True) as page:
        reader = Reader(page, 390)
        reader.ready()
        only(reader.drawn)
        reader.press(reader.key(10))
        reader.check("23 October 2025", "14 January 1987", [10])
        assert violations(page) == []
        reader.text.fill("3-Q-1962")
        assert violations(page) == []
        reader.text.evaluate("input => input.parentNode.replaceWith(input)")
        assert "label" in {line.partition(":")[0] for line in violations(page)}


# ---------------------------------------------------------------- what is loaded, and when


def test_the_model_is_asked_for_when_the_page_is_there(browser, site):
    """By this page alone; what comes before it is kept; and without it one date is shown."""
    address = (site / f"book/{PAGE}.html").as_uri()
    with opened(browser, site.as_uri()) as page:
        page.add_init_script("addEventListener('load', () => { window.there = true; })")
        asked = []

        def late(call):
            asked.append(page.evaluate("Boolean(window.there)"))
            page.locator(f"#{FIGURE} input.text").fill("3 November 1962")
            page.locator(f"#{FIGURE} input.other").fill("8 December 1987")
            call.continue_()

        page.route("**/dates_model.js", late)
        visit(page, address)
        reader = Reader(page, 1280)
        reader.ready()
        assert asked == [True]
        reader.check("3 November 1962", "8 December 1987")
    with opened(browser, site.as_uri()) as page:
        page.route("**/dates_model.js", lambda call: call.abort())
        visit(page, address)
        page.locator(f"#{FIGURE} .say", has_text="The model did not come").wait_for()
        reader = Reader(page, 1280)
        reader.text.fill("3 November 1962")
        assert reader.shown()["answer"] == "2025-10-23"
        assert np.shape(reader.shown()["tables"]) == (1, 10, 15, 2)
        assert page.errors == []


def test_no_other_page_loads_them(site):
    for path in sorted(site.rglob("*.html")):
        loads = [name for name in OWN if f"{name}" in path.read_text()]
        own = path.relative_to(site).as_posix() == f"book/{PAGE}.html"
        assert loads == (["dates.js", "dates_figure.js"] if own else []), path
