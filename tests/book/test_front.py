"""The front page: what it repeats stands elsewhere, and its links lead to what they name."""

import contextlib
import datetime
import io
import re

import front
import live
import pages
import pytest
import yaml
from browsing import loaded, opened, visit
from PIL import Image, ImageChops
from tables import for_each

import attn_lib

INDEX = (pages.BOOK / "index.md").read_text()
CITATION = yaml.safe_load((pages.ROOT / "CITATION.cff").read_text())
CELLS = front.pages(pages.BOOK)
DRAG = "fig-one-head-drag"
GITHUB = "https://github.com/someone/attention-checked"
PICTURE = pages.BOOK / "assets" / "page.png"


def icons(text):
    """The icons of the chapters, as the page lists them: a page, and its rows."""
    lines = re.search(r"```\{front-cards\}\n(.*?)\n```", text, re.DOTALL)[1].splitlines()
    return {page: rows for page, *rows in map(str.split, lines)}


def numbered():
    """The chapters, in the order of the contents."""
    contents = yaml.safe_load((pages.ROOT / "_toc.yml").read_text())["parts"]
    files = [one["file"] for part in contents if "numbered" in part for one in part["chapters"]]
    return [name.removeprefix("book/") for name in files]


# ---------------------------------------------------------------- what is read from the pages


def test_each_chapter_has_its_card_in_its_order_and_an_icon_of_its_own():
    found = icons(INDEX)
    assert [*found] == numbered() == [path.stem for path in pages.CHAPTERS]
    assert len({*map(tuple, found.values())}) == len(found)
    first = next(line for line in INDEX.splitlines() if line.startswith("01_one_head "))
    swapped = INDEX.replace("02_masks  ", "03_many_heads  ")
    for planted in (INDEX.replace(f"{first}\n", ""), swapped):
        assert [*icons(planted)] != numbered()


def test_an_icon_is_what_its_rows_say():
    drawn = front.icon(["q.g", "s.o"])
    assert re.findall(r'class="(\w+)"(?: style="--w:(\.\d)")? x="(\d)" y="(\d)"', drawn) == [
        ("query", "", "0", "0"),
        ("weight", ".7", "2", "0"),
        ("closed", "", "0", "1"),
        ("output", "", "2", "1"),
    ]
    rows = " ".join(5 * ["q......."])
    assert "<rect" in front.card(f"01_one_head {rows}", CELLS)
    for planted in (f"01_one_hat {rows}", f"01_one_head {rows}.", f"01_one_head {rows[:-9]}"):
        with pytest.raises(ValueError, match="a page, and 5 rows of 8 tiles"):
            front.card(planted, CELLS)


@for_each(
    (
        "One head ([chapter 1](01_a.ipynb)), and about 30 minutes.",
        ("30 minutes", "needs chapter 1"),
    ),
    (
        "[A](12_a.ipynb), [b](03_b.ipynb), [c](07_c.ipynb), about 5 minutes.",
        ("5 minutes", "needs chapters 3, 7 and 12"),
    ),
    ("A pencil, and about 20 minutes. Later.", ("20 minutes", "needs a pencil")),
)
def test_what_a_page_needs(need, read):
    cells = [{"source": f"# A page\n\n**What you'll do.** This.\n\n**What you'll need.** {need}"}]
    assert front.needs(cells) == read
    cells[0]["source"] = cells[0]["source"].replace("about ", "some ")
    with pytest.raises(ValueError, match="how long"):
        front.needs(cells)


def test_a_card_shows_what_its_page_says(browser, site):
    with loaded(browser, site, "index") as page:
        cards = page.locator(".front-cards a").all()
        for card, path in zip(cards, pages.CHAPTERS, strict=True):
            cells = CELLS[path.stem]
            heading = front.title(cells)
            shown = card.locator("strong").inner_text()
            assert shown == f"{int(path.stem[:2])}. {heading}"
            text = "".join(part for cell in cells for part in cell["source"])
            (need,) = re.findall(r"What you'll need\.\*\* (.*?)(?:\n\n|$)", text, re.DOTALL)
            time, asked = card.locator(".needs").inner_text().split(" · ")
            assert f"about {time}" in need.replace("\n", " ")
            if "](" in need.partition("about")[0]:
                numbers = {int(n) for n in re.findall(r"\((\d\d)_", need.partition("about")[0])}
                assert {int(n) for n in re.findall(r"\d+", asked)} == numbers
            tiles = "".join(icons(INDEX)[path.stem]).replace(".", "")
            assert card.locator("rect").count() == len(tiles)
            assert card.get_attribute("href") == f"{path.stem}.html"


CRIME, SAID = "fig-masks-crime", "ch02-code-14"


def test_what_the_models_write_is_what_the_page_prints(browser, site):
    """An honest one, and one that peeks: the same that the figure beside it shows."""
    notebook = pages.read(pages.BOOK / "02_masks.ipynb")
    lines = next(cell for cell in notebook.cells if cell.id == SAID).outputs[0].text.splitlines()
    with loaded(browser, site, "index") as page:
        shown = page.locator(f"#{CRIME} dd").all_inner_texts()
        named = page.locator(f"#{CRIME} dt").all_inner_texts()
        drawn = page.locator(f"#{CRIME} .drawn svg").evaluate("svg => svg.outerHTML")
        page.goto(f"{site.as_uri()}/book/02_masks.html")
        assert page.locator(f"#{CRIME} .drawn svg").evaluate("svg => svg.outerHTML") == drawn
    assert [line[:34].strip(" .") for line in (lines[3], lines[6])] == shown
    assert int(lines[3].split()[-2]) > 180  # sentences of 200
    assert int(lines[6].split()[-2]) < 20
    assert named == ["honest", "peeking"]
    with pytest.raises(ValueError, match="no page has a figure fig-nowhere"):
        front.figure("fig-nowhere", CELLS)


def named_whole(code, said):
    """The lines of the code that the report tells to look for."""
    (start,) = [line for line in said if line.startswith("   Look for: ")]
    lines = [line.strip() for line in code if line.strip()]
    return [line for line in lines if f"{start} ".startswith(f"   Look for: {line} ")]


def test_what_diagnose_says_is_what_the_clinic_prints(browser, site):
    notebook = pages.read(pages.BOOK / "18_clinic.ipynb")
    cells = {cell.id: cell for cell in notebook.cells}
    printed = cells["ch18-report"].outputs[0].text.splitlines()
    with loaded(browser, site, "index") as page:
        code = page.locator(".cell_input pre").text_content().splitlines()
        said = page.locator(".cell_output pre").text_content().splitlines()
    sources = [cells[name].source for name in ("ch18-mine", "ch18-report")]
    start = ["import math", ""]
    assert code == [*start, *"\n\n".join(sources).splitlines()]
    written = io.StringIO()
    with contextlib.redirect_stdout(written):  # it runs as it stands, and no line too many
        exec("\n".join(code), {})  # noqa: S102 - the page's own
        with pytest.raises(ValueError, match="NameError: name 'math' is not defined"):
            exec("\n".join(code[1:]), {})  # noqa: S102
    assert written.getvalue().splitlines()[: len(said) - 1] == said[:-1]
    assert said[:-1] == printed[: len(said) - 1]
    assert said[-2].startswith("   Repair: ")
    assert said[-1] == "   …"
    assert named_whole(code, said) == ["scores.masked_fill(~mask, -math.inf)"]
    assert named_whole([line.replace("math.inf", "torch.inf") for line in code], said) == []
    assert named_whole(code, [line.replace("math.inf", "math…") for line in said]) == []
    for lost in (["ch18-lost"], ["ch18-mine", "ch18-lost"]):
        with pytest.raises(ValueError, match="no page has a cell ch18-lost"):
            front.quoted(lost, None, CELLS)
    with pytest.raises(ValueError, match="prints no line 'Nothing'"):
        front.quoted(["ch18-report"], "Nothing", CELLS)


# ---------------------------------------------------------------- whose, which, when


def test_the_byline_says_whose_which_and_when(browser, site):
    seconds = (site.parent / "checked.json").stat().st_mtime
    day = datetime.datetime.fromtimestamp(seconds, datetime.UTC).date()
    with loaded(browser, site, "index") as page:
        said = page.locator(".byline").inner_text()
    assert said.split(" · ") == [
        "The Attention, Checked authors",
        f"version {attn_lib.__version__}",
        f"every output checked on {day.day} {day:%B %Y}",
        "licence, citation",
    ]


def test_the_day_is_that_of_the_check(tmp_path):
    assert front.checked_on(tmp_path) is None
    assert "<time>not yet</time>" in front.byline(CITATION, None, GITHUB)
    (tmp_path / "_build").mkdir()
    (tmp_path / "_build" / "checked.json").write_text("{}")
    today = datetime.datetime.now(datetime.UTC).date()
    assert (today - front.checked_on(tmp_path)).days in (0, 1)  # or it is midnight
    told = front.byline(CITATION, datetime.date(2020, 2, 29), GITHUB)
    assert "<time>29 February 2020</time>" in told


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
    for field in ("name", "title", "version"):
        said = CITATION["authors"][0]["name"] if field == "name" else CITATION[field]
        assert f"{{{said}}}" in cited
    assert f"year = {{{CITATION['date-released'].year}}}" in cited


def test_the_page_says_what_its_address_allows(browser, site):
    address = pages.address()
    with loaded(browser, site, "index") as page:
        shown = page.locator("pre", has_text="@software").text_content()
        assert shown.strip() == front.reference(CITATION, address)
        assert page.locator(".byline", has_text="source").count() == (front.UNSET not in address)
        assert page.get_by_text(front.colab(address)).count() == 1
        shown = page.locator("pre", has_text="jupyterlab").text_content()
        assert shown.strip() == front.install(address)


def test_the_icon_has_the_colour_of_weights():
    colours = set(re.findall(r"#\w{3,6}", (PICTURE.parent / "favicon.svg").read_text()))
    assert colours == {"#fff", live.stored()["roles"]["weight"]}


# ---------------------------------------------------------------- what a visitor sees


def test_one_screen_and_one_order(browser, site):
    """What a visitor can do comes first, whole on a phone's first screen; then what there is."""
    parts = ["article h1", ".byline", ".front-first > p", ".front-actions"]
    parts += [f"#{CRIME}", f"#{DRAG} .live", ".front-cards"]
    with opened(browser, site.as_uri()) as page:
        for width, height in ((1280, 900), (390, 844)):
            visit(page, f"{site.as_uri()}/book/index.html", width)
            boxes = [page.locator(part).first.bounding_box() for part in parts]
            tops, lefts = ([box[key] for box in boxes] for key in ("y", "x"))
            assert boxes[3]["y"] + boxes[3]["height"] < height
            assert page.locator(".front-actions a").count() == 3
            if width == 1280:  # the two figures side by side
                assert max(tops[4:6]) < height / 2
                assert lefts[5] > lefts[4] + boxes[4]["width"]
            else:
                assert tops == sorted(tops)
                assert tops[4] < height  # the figure begins on the first screen


def broken_calls(page) -> list[str]:
    """The calls in the report that stand on more than one line."""
    shown = page.locator(".front-check .cell_output .together").all()
    lines = "e => new Set([...e.getClientRects()].map(box => Math.round(box.top))).size"
    assert len(shown) > 1
    return [call.inner_text() for call in shown if call.evaluate(lines) > 1]


def test_a_phone_shows_the_faulty_line_whole(browser, site):
    with opened(browser, site.as_uri()) as page:
        for width in (360, 390):
            visit(page, f"{site.as_uri()}/book/index.html", width)
            assert broken_calls(page) == []
            report = page.locator(".front-check .cell_output pre")
            assert report.evaluate("e => e.scrollWidth <= e.clientWidth")
        page.add_style_tag(content=".together { white-space: normal !important }")
        assert broken_calls(page) != []


def test_without_scripts_the_page_is_whole(browser, site):
    with loaded(browser, site, "index", java_script_enabled=False) as page:
        still = page.locator(f"#{DRAG} .drawn svg")
        assert still.is_visible()
        image = front.figure(DRAG, CELLS)["metadata"]["mystnb"]["image"]
        assert still.get_attribute("aria-label") == image["alt"]
        assert page.locator(".front-cards a:visible").count() == len(pages.CHAPTERS)
        assert page.locator(".front-symptoms dd a:visible").count() > 15


def test_the_words_have_the_colours_of_the_figure(browser, site):
    with loaded(browser, site, "index") as page:
        for word in ("query", "key", "values", "output"):
            named = page.locator(f"#{DRAG} strong", has_text=word)
            colour = named.evaluate("e => getComputedStyle(e).textDecorationColor")
            role = word.removesuffix("s")
            drawn = page.locator(f"#{DRAG} circle.{role}").first
            assert drawn.evaluate("e => getComputedStyle(e).fill") == colour


def test_every_symptom_leads_somewhere(browser, site):
    """Whether that heading is there, the strict build has seen."""
    with loaded(browser, site, "index") as page:
        rows = page.locator(".front-symptoms dd").all()
        assert len(rows) == page.locator(".front-symptoms dt").count() > 12
        assert all(row.locator("a").count() for row in rows)
        leads = page.locator(".front-symptoms a, .front-actions a")
        assert leads.count() > len(rows) + 5


ASKED = "NaN|too good|does nothing|opposite|weights of each head|RoPE|√d_k|cache".split("|")


@pytest.mark.parametrize("asked", ASKED)
def test_what_readers_search_for_is_a_symptom(asked):
    table = INDEX.partition("## Look up a symptom")[2]
    assert [line for line in re.findall(r"^(.+)\n: ", table, re.MULTILINE) if asked in line] != []


def test_after_the_front_page_comes_chapter_1(browser, site):
    with loaded(browser, site, "index", java_script_enabled=False) as page:
        page.locator("a.right-next").click()
        assert page.url.endswith("/book/01_one_head.html")


# ---------------------------------------------------------------- the README


BLOCK = 20  # pixels; a word is as high


def differing(one, other) -> int:
    """In how many blocks two pictures differ by more than how edges are smoothed."""
    apart = ImageChops.difference(one.convert("L"), other.convert("L"))
    small = apart.resize((one.width // BLOCK, one.height // BLOCK), Image.Resampling.BOX)
    return sum(count for value, count in enumerate(small.histogram()) if value > 12)


def test_the_readme_shows_today_s_page(browser, site, tmp_path):
    """If it is meant, the picture that this test leaves is the new one."""
    taken = {}
    with opened(browser, site.as_uri()) as page:
        page.set_viewport_size({"width": 1280, "height": 800})
        visit(page, f"{site.as_uri()}/book/index.html")
        page.set_viewport_size({"width": 1280, "height": 800})
        page.evaluate(OTHERWISE)
        for name, change in (("index", "0"), ("planted", PLANTED)):
            page.evaluate(change)
            shot = page.screenshot(path=tmp_path / f"{name}.png")
            taken[name] = Image.open(io.BytesIO(shot))
    stored = Image.open(io.BytesIO(PICTURE.read_bytes()))
    assert stored.size == (1280, 800)
    apart = differing(taken["index"], stored)
    assert apart == 0, f"book/assets/page.png is not {tmp_path / 'index.png'}"
    assert differing(taken["planted"], stored) > 0


# the day, which is another every day, is that of the version; and a word that is another
OTHERWISE = f"document.querySelector('time').textContent = '{CITATION['date-released']}'"
PLANTED = "document.querySelector('.front-actions strong').textContent = 'Begin'"
