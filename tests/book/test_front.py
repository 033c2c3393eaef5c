"""The front page: what it repeats stands elsewhere, and its links lead to what they name."""

import contextlib
import datetime
import io
import re

import front
import pages
import pytest
import yaml
from browsing import loaded
from tables import for_each

import attn_lib

CITATION = yaml.safe_load((pages.ROOT / "CITATION.cff").read_text())
CELLS = front.pages(pages.BOOK)
DRAG = "fig-one-head-drag"
GITHUB = "https://github.com/someone/attention-checked"


# ---------------------------------------------------------------- what is read from the pages


@pytest.fixture(scope="module")
def index(browser, site):
    """The front page, for tests that only read it."""
    with loaded(browser, site, "index") as page:
        yield page


def test_a_card_shows_what_its_page_says(index):
    for card, path in zip(index.locator(".front-cards a").all(), pages.CHAPTERS, strict=True):
        cells = CELLS[path.stem]
        shown = card.locator("strong").inner_text()
        assert shown == f"{int(path.stem[:2])}. {front.title(cells)}"
        text = "".join(part for cell in cells for part in cell["source"])
        (need,) = re.findall(r"What you'll need\.\*\* (.*?)(?:\n\n|$)", text, re.DOTALL)
        time, asked = card.locator(".needs").inner_text().split(" · ")
        assert f"about {time}" in need.replace("\n", " ")
        if "](" in need.partition("about")[0]:
            numbers = {int(n) for n in re.findall(r"\((\d\d)_", need.partition("about")[0])}
            assert {int(n) for n in re.findall(r"\d+", asked)} == numbers
        assert card.get_attribute("href") == f"{path.stem}.html"


CRIME, SAID = "fig-masks-crime", "ch02-code-14"


def test_what_the_models_write_is_what_the_page_prints(index):
    """An honest one, and one that peeks."""
    notebook = pages.read(pages.BOOK / "02_masks.ipynb")
    lines = next(cell for cell in notebook.cells if cell.id == SAID).outputs[0].text.splitlines()
    shown = index.locator(f"#{CRIME} dd").all_inner_texts()
    assert [line[:34].strip(" .") for line in (lines[3], lines[6])] == shown
    assert int(lines[3].split()[-2]) > 180  # sentences of 200
    assert int(lines[6].split()[-2]) < 20
    assert index.locator(f"#{CRIME} dt").all_inner_texts() == ["honest", "peeking"]


def test_what_diagnose_says_is_what_the_clinic_prints(index):
    cells = {cell.id: cell for cell in pages.read(pages.BOOK / "18_clinic.ipynb").cells}
    printed = cells["ch18-report"].outputs[0].text.splitlines()
    code = index.locator(".cell_input pre").text_content().splitlines()
    *said, end = index.locator(".cell_output pre").text_content().splitlines()
    sources = [cells[name].source for name in ("ch18-mine", "ch18-report")]
    assert code == ["import math", "", *"\n\n".join(sources).splitlines()]
    with contextlib.redirect_stdout(io.StringIO()) as written:  # it runs as it stands
        exec("\n".join(code), {})  # noqa: S102 - the page's own
    assert written.getvalue().splitlines()[: len(said)] == said == printed[: len(said)]
    assert (said[-1].partition(": ")[0], end) == ("   Repair", "   …")
    (line,) = (line for line in said if line.startswith("   Look for: "))  # which is there, whole
    assert any(f"{line} ".startswith(f"   Look for: {one.strip()} ") for one in code if one.strip())


# ---------------------------------------------------------------- whose, which, when


def test_the_byline_says_whose_which_and_when(index, site, tmp_path):
    seconds = (site.parent / "checked.json").stat().st_mtime
    day = datetime.datetime.fromtimestamp(seconds, datetime.UTC).date()
    assert index.locator(".byline").inner_text().split(" · ") == [
        "The Attention, Checked authors",
        f"version {attn_lib.__version__}",
        f"every output checked on {day.day} {day:%B %Y}",
        "licence, citation",
    ]
    assert "<time>not yet</time>" in front.byline(CITATION, front.checked_on(tmp_path), GITHUB)


@for_each(
    (front.UNSET, [], "file in the download menu of every page, and install"),
    ("https://codeberg.org/someone/book", ["https://codeberg.org/someone/book"], "upload a"),
    (GITHUB, [GITHUB], "button at its top: its first cell installs"),
)
def test_what_is_said_as_soon_as_there_is_an_address(address, leads, opens):
    assert re.findall(r'href="(http.*?)"', front.byline(CITATION, None, address)) == leads
    assert opens in front.colab(address)
    assert re.findall(r"git\+(.*?)\"", front.install(address)) == leads
    assert "pip install -r requirements.txt jupyterlab" in front.install(address)
    cited = front.reference(CITATION, address)
    assert re.findall(r"url = \{(.*)\}", cited) == leads
    told = (CITATION["title"], CITATION["version"], CITATION["date-released"].year)
    assert all(f"{{{one}}}" in cited for one in (CITATION["authors"][0]["name"], *told))


def test_the_page_says_what_its_address_allows(index):
    address = pages.address()
    shown = index.locator("pre", has_text="@software").text_content()
    assert shown.strip() == front.reference(CITATION, address)
    assert index.locator(".byline", has_text="source").count() == (front.UNSET not in address)
    assert index.get_by_text(front.colab(address)).count() == 1
    shown = index.locator("pre", has_text="jupyterlab").text_content()
    assert shown.strip() == front.install(address)


# ---------------------------------------------------------------- what a visitor sees


def test_without_scripts_the_page_is_whole(browser, site):
    with loaded(browser, site, "index", java_script_enabled=False) as page:
        still = page.locator(f"#{DRAG} .drawn svg")
        assert still.is_visible()
        image = front.figure(DRAG, CELLS)["metadata"]["mystnb"]["image"]
        assert still.get_attribute("aria-label") == image["alt"]
        assert page.locator(".front-cards a:visible").count() == len(pages.CHAPTERS)
        assert page.locator(".front-symptoms dd a:visible").count() > 15


def test_the_words_have_the_colours_of_the_figure(index):
    for word in ("query", "key", "values", "output"):
        named = index.locator(f"#{DRAG} strong", has_text=word)
        colour = named.evaluate("e => getComputedStyle(e).textDecorationColor")
        role = word.removesuffix("s")
        dot = index.locator(f"#{DRAG} circle.{role}").first
        assert dot.evaluate("e => getComputedStyle(e).fill") == colour
