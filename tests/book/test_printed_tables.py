"""Printed tables as tables: no word is lost or under another heading, and a phone shows them."""

import itertools
import re

import pages
import printed_tables
from browsing import loaded, opened, styled, visit
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
    ("  dog  ", "       ", "column 2 has no heading"),
    ("   dog  change", " dog change   ", "no line of headings"),
)
def test_what_is_no_table_is_said(old, new, said):
    assert old in TEXT
    assert [one for one in printed_tables.faults(TEXT.replace(old, new, 1)) if said in one] != []


def test_columns_that_run_into_each_other_are_seen():
    merged = "layer weight    v  W_O\n    0   0.23 0.06  0.07\n    1   0.57 0.06  0.07"
    assert printed_tables.faults(merged) == ["'layer weight    v': columns run into each other"]


@for_each(
    *[(n, True) for n in ("-0.5", "1,024", "21.0%", "4.5e+05", "nan", "0.1 - 0.2", "1 ± 2", "–")],
    *[(n, False) for n in ("", "off 0.3", "0 0 1 1", "True", "a - b", "1 of 8")],
)
def test_what_a_number_is(cell, number):
    """A dash among numbers is a number that there is not."""
    assert printed_tables.numeric(["head", cell, cell if cell != "–" else "3"]) is number
    assert not printed_tables.numeric(["head", cell, "words"])


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
    ("a heading is none", ' scope="col"', ""),
    ("a cell stands in another", r"<thead><tr><td></td>(.*?)</tr>", r"<thead><tr>\1<td></td></tr>"),
)
def test_each_mistake_in_a_table_is_seen(fault, old, new, site):
    path = pages.BOOK / "conventions.ipynb"
    stored, built = pages.printed(marked(path)[0]), outputs(site, path)[0]
    planted = re.sub(old, new, built)
    assert planted != built
    assert [one for one in differing(stored, planted) if fault in one] != []


# ---------------------------------------------------------------- as it is seen

HIDDEN = """() => [...document.querySelectorAll(".printed-table")].filter(box => {
  return box.scrollWidth > box.clientWidth || box.getBoundingClientRect().right > innerWidth;
}).map(box => box.ariaLabel)"""
UNEVEN = """() => [...document.querySelectorAll(".printed-table td.number")].filter(cell => {
  const style = getComputedStyle(cell);
  return style.textAlign !== "right" || style.fontVariantNumeric !== "tabular-nums";
}).length"""
REACH = """box => {
  box.focus();
  box.scrollLeft = 1000;
  const [first, last] = [box.querySelector("tbody th"), box.querySelector("tbody tr").lastChild];
  const [left, right] = [first.getBoundingClientRect(), last.getBoundingClientRect()];
  return [document.activeElement === box, box.scrollLeft > 0,
    Math.abs(left.left - box.getBoundingClientRect().left - box.clientLeft) < 1,
    right.right <= box.getBoundingClientRect().right + 1];
}"""


def test_every_table_is_whole_on_a_phone_its_numbers_in_columns(browser, site, everything):
    with opened(browser, site.as_uri()) as page:
        names = [path.stem for path in WITH_TABLES][:: 1 if everything else 3]
        for name in [*names, "scoreboard"]:
            visit(page, f"{site.as_uri()}/book/{name}.html", 390)
            page.evaluate(
                "document.querySelectorAll('details').forEach(one => { one.open = true })"
            )
            assert page.evaluate(HIDDEN) == [], name
            assert page.evaluate(UNEVEN) == 0
    with loaded(browser, site, "16_large_vision", 390) as page:
        with styled(page, ".printed-table td { text-align: left !important }"):
            assert page.locator("td.number").count() == page.evaluate(UNEVEN) > 0
        with styled(page, ".printed-table :is(th, td) { padding: 6rem !important }"):
            assert page.locator(".printed-table").count() == len(page.evaluate(HIDDEN)) > 0


HEADED = """box => {
  box.scrollTop = 500;
  const head = box.querySelector("thead th").getBoundingClientRect();
  return [box.scrollTop, Math.abs(head.top - box.getBoundingClientRect().top) < 2];
}"""


def test_a_long_table_keeps_its_headings(browser, site):
    with loaded(browser, site, "scoreboard", 390) as page:
        table = page.locator(".printed-table").nth(1)
        assert table.evaluate(HEADED) == [500, True]
        with styled(page, ".printed-table * { position: static !important }"):
            assert table.evaluate(HEADED) == [500, False]


def test_a_wide_table_scrolls_beside_its_names(browser, site):
    with loaded(browser, site, "16_large_vision", 390) as page:
        table = page.locator(".printed-table").first
        wide = ".printed-table td { padding: 5rem !important }"
        with styled(page, wide):
            assert table.evaluate(REACH) == [True, True, True, True]
            with styled(page, ".printed-table * { position: static !important }"):
                assert table.evaluate(REACH) == [True, True, False, True]
