"""Numbers that a reader sees come from where they are bound to; conclusions name their cells."""

import copy
import json

import nbformat
import number_sources
import numerals
import pages
from tables import for_each

from attn_lib import files

# ---------------------------------------------------------------- which numbers are seen


def test_numbers_are_seen_as_they_are_read():
    """In the ways that no page of today has; another reading of the others turns pages red."""
    text = "**0.123** 0.**12**3 &frac14; &minus;2 _0.5_–0.7 $8\\%$ 7x7 10_000 `f(x, 3)[0.5]` 2.13.0"
    read = "0.123 0.123 0.25 -2 0.5 0.7 8% 7 7 10000 0.5".split()
    assert numerals.numbers_in_markdown(text) == read


def test_a_percentage_is_a_share():
    assert all(numerals.same("57%", there) for there in ("57%", "0.57", "57"))
    assert not any(numerals.same(*pair) for pair in (("57", "57%"), ("57%", "5.7")))


def test_results_in_words():
    results = "sixteen of eighty, a hundred, a tenth\nof it, two-thirds, nine per cent"
    results += ", three times as fast, four times better, zero point five"
    assert len(numerals.in_words(results)) == 9
    others = "two axes, one head, twelve layers, a third model, half, three times in a row"
    assert numerals.in_words(others) == []


# ---------------------------------------------------------------- a page, bound and damaged

TEXT = """## Look

The cat looks at milk with **0.935** and back with 0.601; the change is `−0.334`, or ⅛ of the 2,672
that step 250 had. It takes 57 % of the time, to $10^{-6}$; see [Ba (2016)](https://a.invalid)."""
PRINTED = "cat   0.935  0.601  -0.334\nmilk  0.125  2672\nshare 57 %\n"


def small_page():
    """A small page, not yet bound."""
    new = nbformat.v4
    alt = {"image": {"alt": "A curve that falls to -0.334 at 0.601."}}
    page = new.new_notebook()
    page.cells = [
        new.new_markdown_cell("# A page\n\nNo number here.", id="t1"),
        new.new_code_cell("steps, tolerance = 250, 1e-6  # not 99\nassert steps > 0", id="c2"),
        new.new_markdown_cell(TEXT, id="t3"),
        new.new_code_cell(f"print({PRINTED!r}, end='')", id="c4"),
        new.new_code_cell("draw()", id="c5", metadata={"mystnb": alt}),
        new.new_markdown_cell("**Fig. 1.** Twelve heads after 250 steps.", id="t5"),
        new.new_markdown_cell("> **Exercise 1.2.** Take 250 steps. What is 0.935?", id="t6"),
    ]
    page.cells[3].outputs = [new.new_output("stream", text=PRINTED)]
    return page


def bound(page):
    """As the command leaves it."""
    page = copy.deepcopy(page)
    whole = number_sources.Page(page.cells)
    for cell, lines in zip(page.cells, map(whole.bound, range(len(page.cells))), strict=True):
        cell.metadata["numbers"] = lines
    return page


def cell(page, name):
    return next(cell for cell in page.cells if cell.id == name)


def test_the_command_binds_each_number_to_what_is_nearest():
    page = bound(small_page())
    assert pages.numbers_bound(page) == []
    assert cell(page, "t3").metadata["numbers"] == [
        "0.935 <- c4 out 1:1",
        "0.601 <- c4 out 1:2",
        "-0.334 <- c4 out 1:3",
        "0.125 <- c4 out 2:1",
        "2672 <- c4 out 2:2",
        "250 <- c2 src 1:1",
        "57% <- c4 out 3:1",
        "1e-6 <- c2 src 1:2",
    ]
    assert cell(page, "c5").metadata["numbers"] == ["-0.334 <- c4 out 1:3", "0.601 <- c4 out 1:2"]
    assert cell(page, "t5").metadata["numbers"] == ["250 <- c2 src 1:1"]


def damage(part, old, new):
    """Replace a piece of a cell, wherever it stands, but in its lines."""
    lines = part.metadata.pop("numbers")
    text = json.dumps(part, ensure_ascii=False)
    assert old in text
    part.update(nbformat.from_dict(json.loads(text.replace(old, new))))
    part.metadata["numbers"] = lines


@for_each(
    ("t3", "**0.935** and back with 0.601", "**0.601** and back with 0.935"),
    ("t3", "−0.334", "0.334"),
    ("t3", " at milk", " at milk, number 0.123,"),
    ("c5", "-0.334", "0.334"),
    ("c4", "0.601", "0.602"),
)
def test_a_damaged_number_is_seen(name, old, new):
    page = bound(small_page())
    damage(cell(page, name), old, new)
    assert pages.numbers_bound(page) != []


def test_what_is_true_is_kept_and_what_is_gone_is_asked():
    page = small_page()
    by_hand = "0.935 <- given: definition, set by hand"
    cell(page, "t3").metadata["numbers"] = [by_hand]
    page = bound(page)
    assert cell(page, "t3").metadata["numbers"][0] == by_hand
    assert bound(page) == page
    # the cell prints another number now: the same elsewhere is no reason to be content
    damage(cell(page, "c4"), "0.935", "0.936")
    cell(page, "c2").source += "\nother = 0.935"
    again = bound(page)
    assert cell(again, "t6").metadata["numbers"] == ["250 <- c2 src 1:1", "0.935 <- ? c4 out 1:1"]
    assert pages.numbers_bound(again) == [
        "t6: 0.935 comes from ? c4 out 1:1, where there is no number"
    ]


@for_each(
    ("given: definition, the size of a toy", True),
    ("given: year", True),
    ("given: the paper, https://nowhere.invalid/paper", False),
    ("given: definition", False),
    ("", False),
)
def test_what_may_be_given(source, right):
    page = small_page()
    page.cells = page.cells[:1]
    page.cells[0].source = "It was 2017."
    page.cells[0].metadata["numbers"] = [f"2017 <- {source}"]
    assert (pages.numbers_bound(page) == []) == right
    assert number_sources.fault("2017.5 <- given: year", {}) == "2017.5 is not a year"


# ---------------------------------------------------------------- conclusions


def test_each_bullet_names_a_cell_that_compares():
    page = small_page()
    page.cells.append(nbformat.v4.new_markdown_cell("## What to remember\n\n* This.\n* And that."))
    for shown, right in ((["c2", "c2"], True), (["c2"], False), (["c2", "c4"], False)):
        page.cells[-1].metadata["shown"] = shown
        assert (pages.conclusions_shown(page) == []) == right, shown


# ---------------------------------------------------------------- texts, and the pages as they are


@for_each(*pages.TEXTS, pages.ROOT / "README.md", ids=lambda path: path.stem)
def test_the_numbers_of_texts_are_bound(path):
    assert pages.numbers_bound(number_sources.load(path)) == []


def test_what_the_first_run_fetches():
    size = sum(files.fetch(name).stat().st_size for name in files.SOURCES)
    counts = json.loads((pages.ROOT / "tests" / "counts.json").read_text())
    assert round(size / 1e6, -1) == counts["fetched MB"]
