"""Printed tables as tables: no word is lost or under another heading, and a phone shows them."""

import itertools
import re

import pages
import printed_tables
import pytest
from browsing import gathered, loaded, styled
from bs4 import BeautifulSoup
from tables import for_each

TEXT = """\
two lines, and
an empty one

  mistake   dog  change
  no mask  0.70    12 %
two heads  0.84  nan

the end"""


def test_a_table_is_what_stands_between_empty_lines():
    first, rows, last = printed_tables.parts(TEXT)
    assert (first, last) == ("two lines, and\nan empty one", "the end")
    assert rows[0] == ["mistake", "dog", "change"]
    assert rows[1:] == [["no mask", "0.70", "12 %"], ["two heads", "0.84", "nan"]]
    assert printed_tables.faults(TEXT) == []


@for_each(
    (TEXT.replace("  dog  ", "       "), "column 2 has no heading"),
    (TEXT.replace("   dog  change", " dog change   "), "no line of headings"),
    ("layer weight    v  W_O\n    0   0.23 0.06  0.07\n    1   0.57 0.06  0.07", "run into each"),
)
def test_what_is_no_table_is_said(text, said):
    assert said in printed_tables.faults(text)[0]


def test_what_a_number_is():
    """A dash among numbers is a number that there is not."""
    numbers = ("-0.5", "1,024", "21.0%", "4.5e+05", "nan", "0.1 - 0.2", "1 ± 2", "–")
    for cell in numbers:
        assert printed_tables.numeric(["head", cell, "3"]), cell
        assert not printed_tables.numeric(["head", cell, "words"])
    for cell in ("off 0.3", "0 0 1 1", "True", "a - b", "1 of 8"):
        assert not printed_tables.numeric(["head", cell, "3"]), cell
    assert not printed_tables.numeric(["head", ""])


# ---------------------------------------------------------------- built, and stored


def spans(line, cells):
    """Where the cells of a line begin and end in it, as they come."""
    found, at = [], 0
    for cell in cells:
        begin = line.index(cell, at) if cell else None
        at = begin + len(cell) if cell else at
        found.append((begin, at) if cell else None)
    return found


def differing(stored, html):
    """What a built output has otherwise than the text that the cell stores."""
    own_tongue = r'<span lang="\w+">(.*?)</span>'  # a Chinese word in a cell
    html = re.sub(own_tongue, r"\1", re.sub("<wbr/?>", "", html))
    soup = BeautifulSoup(html, "html.parser")
    words = re.sub(r"(?m)^<Figure.*", "", stored).split()
    faults = [] if soup.get_text(" ").split() == words else ["other words, or in another order"]
    lines = iter(stored.splitlines())
    for table in soup.find_all("table"):
        rows = [[cell.get_text() for cell in row(("td", "th"))] for row in table("tr")]
        if any(cell.get("scope") != "col" for cell in table.tr(("td", "th")) if cell.text):
            faults.append("a heading is none")
        if [row.find(True).get("scope") for row in table("tr")[1:]] != ["row"] * (len(rows) - 1):
            faults.append("a row has no name")
        if len({*map(len, rows)}) != 1:
            return [*faults, "rows of several lengths"]
        own = ["".join(row).replace(" ", "") for row in rows]
        found = [next((x for x in lines if x.replace(" ", "") == row), "") for row in own]
        if "" in found:
            return [*faults, "no such line"]
        places = list(zip(*map(spans, found, rows), strict=True))
        columns = [[span for span in column if span] for column in places]
        for left, right in itertools.pairwise(columns):
            if max(end for _, end in left) >= min(begin for begin, _ in right):
                faults.append("a cell stands in another column")
    return faults


def marked(path):
    return [cell for cell in pages.code_cells(pages.read(path)) if "table" in cell.metadata]


def outputs(site, path):
    """The built outputs in which tables are."""
    start, found = '<div class="cell_output', []
    for part in (site / "book" / f"{path.stem}.html").read_text().split(start)[1:]:
        depth = 1
        for tag in re.finditer(r"<(/?)div\b", part):
            depth += -1 if tag[1] else 1
            if not depth:
                break
        found.append(f"{start}{part[: tag.start()]}</div>")
    return [html for html in found if "printed-table" in html]


WITH_TABLES = [path for path in pages.NOTEBOOKS if marked(path)]


def test_every_table_says_what_its_cell_printed(site):
    assert len(WITH_TABLES) > 3
    for path in pages.NOTEBOOKS:
        built = outputs(site, path)
        for cell, html in zip(marked(path), built, strict=True):
            assert differing(pages.printed(cell), html) == [], cell.id


@for_each(
    ("other words", r"(<tr>.*?)<td[^>]*>[^<]*</td>(</tr>)", r"\1\2"),
    ("a cell stands in another", r"<thead><tr><td></td>(.*?)</tr>", r"<thead><tr>\1<td></td></tr>"),
)
def test_each_mistake_in_a_table_is_seen(fault, old, new, site):
    path = pages.BOOK / "conventions.ipynb"
    stored, built = pages.printed(marked(path)[0]), outputs(site, path)[0]
    assert any(fault in one for one in differing(stored, re.sub(old, new, built)))


# ---------------------------------------------------------------- as it is seen

HIDDEN = """() => [...document.querySelectorAll(".printed-table")].filter(box => {
  return box.scrollWidth > box.clientWidth || box.getBoundingClientRect().right > innerWidth;
}).map(box => box.ariaLabel)"""
UNEVEN = """() => [...document.querySelectorAll(".printed-table td.number")].filter(cell => {
  const style = getComputedStyle(cell);
  return style.textAlign !== "right" || style.fontVariantNumeric !== "tabular-nums";
}).length"""
# scrolled to the right the names of the rows stay in sight, and scrolled down the headings
REACH = """box => {
  box.focus();
  box.scrollTo(9999, 500);
  const edge = part => part.getBoundingClientRect(), around = edge(box);
  const [head, name] = [box.querySelector("thead th"), box.querySelector("tbody th")];
  return [document.activeElement === box, box.scrollLeft > 0, box.scrollTop > 0,
    edge(box.querySelector("tbody tr").lastChild).right <= around.right + 1,
    Math.abs(edge(name).left - around.left - box.clientLeft) < 1,
    Math.abs(edge(head).top - around.top) < 2];
}"""


@pytest.fixture(scope="module")
def phone(browser, site):
    """All tables on one page, on a phone."""
    texts = {path.stem: outputs(site, path) for path in WITH_TABLES}
    boxes = [f'<div class="cell">{html}</div>' for built in texts.values() for html in built]
    board = (site / "book/scoreboard.html").read_text()
    boxes += re.findall(r'(?s)<div class="printed-table".*?</table></div>', board)
    gathered(site, "tables", boxes)
    with loaded(browser, site, "tables", 390) as page:
        yield page


def test_every_table_is_whole_on_a_phone_its_numbers_in_columns(phone):
    tables, numbers = (phone.locator(which).count() for which in (".printed-table", "td.number"))
    assert tables > len(WITH_TABLES)
    assert phone.evaluate(HIDDEN) == []
    assert phone.evaluate(UNEVEN) == 0
    with styled(phone, ".printed-table td { text-align: left !important }"):
        assert phone.evaluate(UNEVEN) == numbers > 0
    with styled(phone, ".printed-table :is(th, td) { padding: 6rem !important }"):
        assert len(phone.evaluate(HIDDEN)) == tables


def test_a_table_scrolls_beside_its_names_and_under_its_headings(phone):
    table = phone.locator(".printed-table").last
    table.evaluate("box => { box.id = 'wide' }")
    with styled(phone, "#wide :is(th, td) { padding: 6rem !important }"):
        assert table.evaluate(REACH) == [True] * 6
        with styled(phone, "#wide * { position: static !important }"):
            assert table.evaluate(REACH) == [True] * 4 + [False] * 2
