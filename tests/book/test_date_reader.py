"""The model that reads dates in its page: its script against the library, and its figure."""

import base64
import datetime
import random

import date_model
import dates_model
import live
import numpy as np
import pages
import pytest
from babel.dates import format_date
from browsing import opened, violations, visit
from test_figures import READER, SCREENS, Moving, figure, of_dates, read_date

from attn_lib import datasets
from attn_lib.records import shipped_tensors

PAGE = "14_encoder_decoder"
ENGINE = pages.BOOK / "assets" / "dates.js"
OWN = ["dates.js", "dates_figure.js", "dates_model.js"]


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


def agreeing(browser, cases, **mistake) -> list[bool]:
    """Of each case, whether the engine has the answers and all weights of the library."""
    same = []
    found = in_browser(browser, READ, [*map(list, zip(*cases, strict=True))], **mistake)
    for one, (text, other, chosen) in zip(found, cases, strict=True):
        answer, weights = date_model.read(text)
        mixed, _ = date_model.read(text, other, *chosen)
        near = np.shape(one["weights"]) == weights.shape
        near = near and np.abs(np.array(one["weights"]) - weights.numpy()).max() < 1e-4
        same.append(near and (one["answer"], one["exchanged"]) == (answer, mixed))
    return same


def test_the_engine_agrees_with_the_library(browser):
    """On 20 dates of all locales, each with rows of another one that is at least as long."""
    found, draw = datasets.dates(1000, split="test", seed=14), random.Random(14)  # noqa: S311
    assert {*found.locales[:20]} == {*datasets.DATE_LOCALES}
    cases = []
    for text, iso in zip(found.texts[:20], found.iso, strict=False):
        other = draw.choice([one for one in found.texts if len(one) >= len(text)])
        cases.append((text, other, draw.sample(range(len(text)), draw.randint(1, len(text)))))
        assert date_model.read(text)[0] == iso  # it is the trained model
    assert all(agreeing(browser, cases))
    scale = {"old": "key[i] / Math.sqrt(d_k)", "new": "key[i] / Math.sqrt(d)"}
    assert not any(agreeing(browser, cases[:5], **scale))


# ---------------------------------------------------------------- the figure


@pytest.fixture(
    scope="module",
    params=[pytest.param(SCREENS[0], marks=pytest.mark.weekly), SCREENS[1]],
    ids=lambda screen: str(screen[0]),
)
def loaded_reader(request, browser, site):
    """On a phone, every week on both; nothing is said to the console or asked for outside."""
    with figure(browser, site, READER, PAGE, *request.param) as moving:
        moving.drawn.locator("[data-ready]").wait_for()
        yield moving
        width = moving.page.evaluate("document.documentElement.scrollWidth")
        assert width <= request.param[0]


@pytest.fixture
def reader(loaded_reader):
    loaded_reader.press(loaded_reader.drawn.get_by_role("button", name="start again"))
    return loaded_reader


def field(reader, name):
    return reader.drawn.locator(f"input.{name}")


def key(reader, s):
    return reader.drawn.locator(f"[data-s='{s}']")


def check(reader, *case):
    """All that is shown is what the library makes of a date, another one, and what is exchanged."""
    t = reader.drawn.locator(".keys tr.chosen").first.get_attribute("data-t")
    reader.shows(of_dates(int(t), *case))


FORMS = "short", "medium", "long", "full"
EXAMPLES = live.stored()["figures"][READER]["examples"]


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
        assert field(reader, "text").input_value() == text
        assert field(reader, "other").input_value() == other
        check(reader, text, other)
        reader.press(key(reader, 1))
        reader.press(key(reader, 4))
        check(reader, text, other, [1, 4])
        reader.press(key(reader, 1))
        check(reader, text, other, [4])
    reader.press(reader.drawn.get_by_role("button", name="start again"))
    reader.shows(of_dates(2, *EXAMPLES[0][1:]))


def test_a_date_is_typed_and_its_gap_pressed_by_keyboard(reader):
    """The other date gets another year, until it is typed, too."""
    keyboard = reader.page.keyboard
    field(reader, "text").focus()
    keyboard.press("ControlOrMeta+A")
    keyboard.type("3 November 1962")
    check(reader, "3 November 1962", "3 November 1987")
    key(reader, 0).focus()
    for _ in range(10):
        keyboard.press("ArrowRight")
    keyboard.press("Enter")
    check(reader, "3 November 1962", "3 November 1987", [10])
    reader.shows({".iso": ["1987-11-03"]})
    assert reader.page.evaluate("document.activeElement.dataset.s") == "10"
    field(reader, "other").focus()
    keyboard.press("ControlOrMeta+A")
    keyboard.type("8 December 1987")
    check(reader, "3 November 1962", "8 December 1987", [10])
    key(reader, 10).focus()
    keyboard.press("Space")
    keyboard.press("Home")
    key(reader, 0).focus()
    keyboard.press("Space")
    check(reader, "3 November 1962", "8 December 1987", [0])
    reader.shows({".iso": ["1962-12-03"]})
    field(reader, "text").fill("4 November 1962")
    assert field(reader, "other").input_value() == "8 December 1987"
    check(reader, "4 November 1962", "8 December 1987")
    field(reader, "text").fill(
        "20\u00a0fe\u0301vrier 1989"
    )  # a space that does not break, an accent apart
    check(reader, "20 février 1989", "8 December 1987")


def test_the_other_date_has_another_year(reader):
    for text, other in (
        ("8 December 1987", "8 December 2031"),
        ("9/25/82", "9/25/87"),
        ("2039年7月4日", "1985年5月8日"),  # an example has one of its own
        ("May", "May"),
    ):
        field(reader, "text").fill(text)
        assert field(reader, "other").input_value() == other
        check(reader, text, other)


def test_what_cannot_be_read_is_refused_in_words(reader):
    """The date, and the other one, which then gives no vectors; nothing is shown in its place."""
    for text, said in (
        ("3-Q-1962", "The model cannot read the date: no text of its training has -, Q."),
        ("5 May 1962" * 4 + "1", "The model reads at most 40 characters; the date has 41."),
        ("  ", "Type the date."),
    ):
        field(reader, "text").fill(text)
        refused = {".say": [said], ".iso": ["?"], ".keys": [], "input.text @aria-invalid": ["true"]}
        reader.shows(refused)
    field(reader, "text").fill("3 May 1962")
    reader.press(key(reader, 5))
    reader.shows({"input.text @aria-invalid": ["false"]})
    for other, said in (
        ("3 May 1987!", "The model cannot read the other date: no text of its training has !."),
        ("", "Type the other date."),
    ):
        field(reader, "other").fill(other)
        reader.shows({".say": [said], ".iso": ["1962-05-03"], "[data-s]:enabled": []})
        field(reader, "other").fill("3 May 1987")
        check(reader, "3 May 1962", "3 May 1987", [5])
    field(reader, "other").fill("3 May")
    (said,) = reader.drawn.locator(".say").all_inner_texts()
    assert said.startswith("Writing 1, character 1, it puts 0.")
    assert reader.drawn.locator("[data-s]:enabled").count() == len("3 May")
    name = key(reader, 7).get_attribute("aria-label")
    assert name == "9, character 8: the other date is shorter"


def test_the_longest_text_fits_on_the_screen(reader):
    """In several tables, where it must; keys are wide enough to be touched."""
    text, other = (
        "poniedziałek, 23 października 2028 00000",
        "poniedziałek, 23 października 1987 00000",
    )
    assert len(text) == date_model.LONGEST
    field(reader, "text").fill(text)
    check(reader, text, other)
    for s in (0, 21, 39):
        box = key(reader, s).bounding_box()
        assert box["width"] >= 20
        assert box["height"] >= 40
    reader.press(key(reader, 31))
    check(reader, text, other, [31])


def test_axe_finds_nothing_in_it(reader):
    """With a vector exchanged, and with a text that is refused."""
    reader.press(key(reader, 10))
    assert violations(reader.page) == []
    field(reader, "text").fill("3-Q-1962")
    assert violations(reader.page) == []


# ---------------------------------------------------------------- what is loaded, and when


def test_the_model_is_asked_for_when_the_page_is_there(browser, site):
    """By this page alone; what comes before it is kept; and without it one date is shown."""
    asked, typed = [], ("3 November 1962", "8 December 1987")
    with opened(browser, site.as_uri()) as page:
        page.add_init_script("addEventListener('load', () => { window.there = true; })")
        reader = Moving(page, page.locator(f"#{READER}"), False, read_date())

        def late(call):
            asked.append(page.evaluate("Boolean(window.there)"))
            for name, text in zip(("text", "other"), typed, strict=True):
                field(reader, name).fill(text)
            call.continue_()

        page.route("**/dates_model.js", late)
        visit(page, f"{site.as_uri()}/book/{PAGE}.html")
        reader.drawn.locator("[data-ready]").wait_for()
        assert asked == [True]
        check(reader, *typed)
        page.unroute("**/dates_model.js")
        page.route("**/dates_model.js", lambda call: call.abort())
        page.reload()
        reader.drawn.locator(".say", has_text="The model did not come").wait_for()
        field(reader, "text").fill(typed[0])
        shown = of_dates(2)
        shown[".say"] = ["The model did not come; only this date can be shown."]
        reader.shows(shown)
        assert page.errors == []


def test_no_other_page_loads_them(site):
    for path in sorted(site.rglob("*.html")):
        loads = [name for name in OWN if name in path.read_text()]
        own = path.relative_to(site).as_posix() == f"book/{PAGE}.html"
        assert loads == (["dates.js", "dates_figure.js"] if own else []), path
