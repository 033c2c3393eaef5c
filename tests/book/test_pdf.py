"""What is printed, one page or the whole book: light, the article alone, finished, and not cut."""

import io
import re

import pages
import pdf
import pypdf
import pytest
import yaml
from browsing import loaded, opened, styled, visit

NAME = "04_scaling"  # formulas, proofs, figures, folded code, exercises
SOME = [pdf.Page("index"), pdf.Page(NAME, "Foundations", True), pdf.Page("how_checked")]
WIDTH, HEIGHT = (round(mm * 96 / 25.4) for mm in (210 - 2 * 17, 297 - 17 - 19))  # as @page says

# what a reader of the paper would miss or could not use
UNFIT = """() => {
  const article = document.querySelector("article"), right = article.getBoundingClientRect().right;
  const all = which => [...article.querySelectorAll(which)].filter(part => part.checkVisibility());
  const seen = part => part.checkVisibility() && part.getBoundingClientRect().height > 1;
  const image = part => [...part.querySelectorAll("img, .drawn")].some(seen);
  const scrolls = part => part.matches("pre") && part.scrollWidth > part.clientWidth + 1;
  return Object.entries({
    "beside the article": [...document.querySelectorAll("body *")]
      .filter(part => seen(part) && !part.contains(article) && !article.contains(part)),
    "for a mouse": all("button, input, .headerlink, .live, details:not([open])"),
    "an empty frame": all("figure, .cell, .cell_output, pre")
      .filter(block => !image(block) && (block.matches("figure") || !block.textContent.trim())),
    "cut at the right": all("pre, table, img, .drawn svg, math, .admonition")
      .filter(part => part.getBoundingClientRect().right > right + 1 || scrolls(part)),
  }).flatMap(([what, parts]) => parts.map(part => `${what}: ${part.textContent}`));
}"""


def unfit(page) -> list[str]:
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    page.emulate_media(media="print", color_scheme="light")
    return page.evaluate(UNFIT)


def test_one_page_on_paper(browser, site):
    """As a reader prints it; and each thing that is wrong on paper is seen."""
    planted = {
        "beside the article": "#pst-primary-sidebar { display: block !important }",
        "for a mouse": "article .headerlink { display: inline !important }",
        "an empty frame": ".still { display: none !important }",
        "cut at the right": ".bd-article pre { white-space: pre !important; font-size: 2em }",
    }
    with loaded(browser, site, NAME) as page:
        assert unfit(page) == []
        for what, style in planted.items():
            with styled(page, style):
                assert any(line.startswith(what) for line in unfit(page)), what


# ---------------------------------------------------------------- the file, as it is

# a link at the start and at the end of each block that fits on a page: the file says on which it is
MARK = """height => {
  let n = 0;
  const mark = name => {
    const link = document.createElement("a");
    link.append(".");
    link.href = `https://mark.invalid/${name}`;
    link.style = "display: block; height: 1px; margin-bottom: -1px; font-size: 1px; min-width: 2px";
    return link;
  };
  const kinds = ".cell_input, .cell_output, figure, .admonition:not(details), table, div.math";
  const fits = block => block.checkVisibility()
    && block.getBoundingClientRect().height < 0.97 * height;
  [...document.querySelectorAll(kinds)].filter(fits).forEach(block => {
    const cells = block.matches("table") ? block.querySelectorAll("td") : [block];
    if (!cells.length) return;
    cells[0].prepend(mark(`${n}/start`));
    cells[cells.length - 1].append(mark(`${n}/end/${block.className || block.id}`));
    n += 1;
  });
  return n;
}"""


def printed(page) -> pypdf.PdfReader:
    return pypdf.PdfReader(io.BytesIO(page.pdf(**pdf.FORM)))


def links_of(file: pypdf.PdfReader) -> list[list[str]]:
    """The addresses that each page of a file leads to."""
    notes = [[note.get_object() for note in page.annotations or []] for page in file.pages]
    return [[one["/A"]["/URI"] for one in own if "/URI" in one.get("/A", {})] for own in notes]


def cut(page) -> list[str]:
    """The blocks that begin on one page and end on another, of those that fit on one."""
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    page.emulate_media(media="print")
    n = page.evaluate(MARK, HEIGHT)
    places: dict[str, list[int]] = {}
    for number, links in enumerate(links_of(printed(page))):
        for link in links:
            if link.startswith("https://mark.invalid/"):
                places.setdefault(link.split("/")[3], []).append(number)
    assert len(places) == n > 0
    assert all(len(where) > 1 for where in places.values())
    return [f"{block}: {where}" for block, where in places.items() if len(set(where)) > 1]


@pytest.fixture(scope="module")
def joined(browser, site):
    """Some pages as one, finished, in a tab; and the tab."""
    with opened(browser, site.as_uri()) as page:
        pdf.prepare(page, site / "book", SOME)
        yield page


@pytest.fixture(scope="module")
def whole(joined):
    """The file that is printed of them."""
    return printed(joined)


def titles(outline) -> list[str]:
    """Those of an outline, whose parts below a heading are lists."""
    return [t for one in outline for t in (titles(one) if isinstance(one, list) else [one.title])]


def test_the_file_has_its_pages_numbers_and_links(whole, site):
    said = titles(whole.outline)
    heading = re.match("# (.*)", pages.read(pages.BOOK / f"{NAME}.ipynb").cells[0].source)[1]
    assert f"4. {heading}".replace("$", "") in said, said
    assert {"Attention, Checked", "How this book is checked", "Solutions"} <= set(said)
    assert any(text.startswith("4.1. ") for text in said)
    outside = {link for links in links_of(whole) for link in links}
    assert len(outside) > 5
    assert all(link.startswith("http") for link in outside)
    assert f"/{NAME}" in whole.named_destinations
    assert not (site / "book" / "whole.html").exists()


def test_the_file_says_whose_it_is(whole, tmp_path):
    """On its first page, and to programs."""
    path = tmp_path / "file.pdf"
    path.write_bytes(whole.stream.getvalue())
    pdf.sign(path)
    signed = pypdf.PdfReader(path)
    book = yaml.safe_load((pages.ROOT / "CITATION.cff").read_text())
    (author,) = book["authors"]
    told = {"/Title": book["title"], "/Author": author["name"]}
    assert {name: signed.metadata[name] for name in told} == told
    version = f"Version {book['version']}, {book['date-released']:%-d %B %Y}"
    first = " ".join(signed.pages[0].extract_text().split())
    assert f"{version} Text and figures: CC BY 4.0. Code: MIT." in first
    assert len(signed.pages) == len(whole.pages)
    assert titles(signed.outline) == titles(whole.outline)


def test_solutions_stand_at_the_end_and_all_else_folded_is_left_out(joined):
    own = joined.locator(f"[id='{NAME}']")
    cells = pages.code_cells(pages.read(pages.BOOK / f"{NAME}.ipynb"))
    solutions = [cell for cell in cells if "hide-cell" in pages.tags(cell)]
    joined.emulate_media(media="print")
    shown = own.locator(":scope > h2 ~ .cell details .collapsed:visible")
    assert shown.all_inner_texts() == [f"Solution 4.{n + 1}" for n in range(len(solutions))]
    assert own.locator("summary:visible").count() == len(solutions)
    assert own.locator("details:not([open]) >> visible=true").count() == 0


def test_no_block_is_cut_that_fits_on_a_page(joined):
    assert cut(joined) == []
    joined.add_style_tag(content="article * { break-inside: auto !important }")
    assert len(cut(joined)) > 3


# a piece of a built page -> what stands in its place, and what is said of it
UNFINISHED = {
    'class="section-number">4. </span>Why': ('class="other">4. </span>Why', "numbered otherwise"),
    'href="#exercises"': ('href="#nowhere"', "leads nowhere: #planted--nowhere"),
    '<div class="drawn">': ('<div class="drawn"><img src="../lost.png" alt="">', "no picture: .."),
    "<h2>": ('<h2 lang="zh">\ue001', "no font, such as"),
    "</h1>": ('</h1><p class="math">x</p>', "not set: x"),
}


def test_nothing_unfinished_is_printed(browser, site):
    text = (site / "book" / f"{NAME}.html").read_text()
    for piece, (instead, _) in UNFINISHED.items():
        assert piece in text
        text = text.replace(piece, instead)
    (site / "book" / "planted.html").write_text(text)
    with opened(browser, site.as_uri()) as page, pytest.raises(ValueError, match="not fit") as no:
        pdf.prepare(page, site / "book", [pdf.Page("planted", "", True)])
    assert [said for _, said in UNFINISHED.values() if said not in str(no.value)] == []


@pytest.mark.weekly
def test_the_whole_book_is_finished(browser, site):
    """But for Chinese letters: `.ci/publish` brings a font that has them."""
    faults = ""
    with opened(browser, site.as_uri()) as page:
        try:
            pdf.prepare(page, site / "book", pdf.contents())
        except ValueError as error:
            faults = str(error)
    assert [line for line in faults.splitlines()[1:] if not line.startswith("no font")] == []


def drawing(page, address, scheme) -> list[bytes]:
    """What a page draws on paper, in a theme."""
    visit(page, address, scheme=scheme)
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    return [sheet.get_contents().get_data() for sheet in printed(page).pages]


def test_paper_is_light_whatever_the_theme(browser, site):
    address = f"{site.as_uri()}/book/how_checked.html"
    with opened(browser, site.as_uri()) as page:
        light = drawing(page, address, "light")
        assert len(light) > 3
        assert drawing(page, address, "dark") == light
        page.add_init_script("addEventListener('beforeprint', e => e.stopImmediatePropagation())")
        assert drawing(page, address, "dark") != light


# ---------------------------------------------------------------- order, and the way to it


def test_the_pages_come_in_the_order_of_the_contents():
    found = pdf.contents()
    text = (pages.ROOT / "_toc.yml").read_text()
    assert [f"book/{page.name}" for page in found] == re.findall(r"(?:root|file): (\S+)", text)
    assert [page.part for page in found if page.part] == re.findall(r"caption: (.*)", text)
    assert {page.name for page in found if page.numbered} == {path.stem for path in pages.CHAPTERS}


def test_only_a_front_page_whose_book_was_printed_leads_to_the_file(site, tmp_path):
    index = tmp_path / "index.html"
    built = (site / "book" / "index.html").read_text()
    assert pdf.PDF not in built
    index.write_text(built)
    for _ in range(2):
        pdf.link(index)
        assert index.read_text().count(pdf.PDF) == 1
