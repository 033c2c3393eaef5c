"""Print the book that was built as one PDF, by Chromium: ``python book/_tools/pdf.py``.

A title page comes first, and the file tells programs the same, both from ``CITATION.cff``. One page
holds the articles of all, in the order of the contents; what linked from page to page links inside
it. Figures that move stand still, folded code is left out, and solutions are gathered at the end of
their page. Nothing is printed that is not finished: a formula that is not set, a picture or a
chapter's number that is missing, a link to nowhere is an error. At last the front page gets a link
to the file, which no other build has.
"""

import re
import shutil
from pathlib import Path
from typing import NamedTuple

import yaml
from playwright.sync_api import Page as Tab
from playwright.sync_api import sync_playwright
from pypdf import PdfWriter

ROOT = Path(__file__).resolve().parents[2]
PDF = "attention-checked.pdf"
LINK = f' · <a href="../{PDF}">the whole book as a PDF</a>'
FORM = {"format": "A4", "print_background": True, "outline": True, "tagged": True}
# the first opens a page in half the time of the second, and draws the same
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")

# what is out of sight is loaded late: here it is loaded now
LOADED = """() => Promise.all([...document.images].map(image => {
  image.loading = "eager";
  return image.complete || new Promise(done => { image.onload = image.onerror = done; });
})).then(() => 0)"""
SET = "document.fonts.ready.then(() => 0)"

# names of places begin with that of their page, and links follow; solutions go to the page's end
JOIN = """() => document.querySelectorAll("section.page").forEach(page => {
  page.querySelectorAll("[id]:not(svg *)").forEach(place => {
    place.id = `${page.id}--${place.id}`;
  });
  page.querySelectorAll("a[href]").forEach(link => {
    const href = link.getAttribute("href");
    const [inside, to = page.id, at] = /^(?:(\\w+)\\.html)?(?:#(.*))?$/.exec(href) || [];
    if (inside && document.getElementById(to)) link.href = `#${to}${at ? `--${at}` : ""}`;
    else if (!href.startsWith("http")) link.removeAttribute("href");  // a picture, the index
  });
  const solutions = page.querySelectorAll(".cell[class*=tag_solution]");
  if (solutions.length) page.append(document.createElement("h2"));
  if (solutions.length) page.lastChild.append("Solutions");
  solutions.forEach(solution => {
    solution.querySelectorAll("details").forEach(folded => { folded.open = true; });
    page.append(solution);
  });
})"""
FAULTS = """() => {
  const all = which => [...document.querySelectorAll(`section.page ${which}`)];
  const nowhere = link => !/^https?:/.test(link.getAttribute("href"))
    && !document.getElementById(decodeURIComponent(link.hash.slice(1)));
  const drawn = letter => {
    const paper = document.createElement("canvas");
    Object.assign(paper.getContext("2d"), {font: "50px sans-serif"}).fillText(letter, 0, 60);
    return paper.toDataURL();
  };
  const letters = [...new Set(all("[lang=zh]").map(word => word.textContent).join(""))];
  const unknown = letters.filter(letter => drawn(letter) === drawn("\ue000"));
  const numbered = title => Boolean(title.querySelector(".section-number"));
  const text = part => part.data || part.getAttribute("href") || part.getAttribute("src")
    || part.textContent;
  return Object.entries({
    "no font, such as Debian's fonts-wqy-microhei, has": unknown.length
      ? [new Text(unknown.join(""))] : [],
    "not set": all(".math").filter(formula => !formula.querySelector("math")),
    "no picture": all("img").filter(image => !image.naturalWidth)
      .concat(all(".drawn svg").filter(svg => !svg.querySelector("path, image"))),
    "leads nowhere": all("a[href]").filter(nowhere),
    "numbered otherwise than in the contents": all("h1")
      .filter(title => numbered(title) !== Boolean(title.closest(".numbered"))),
  }).flatMap(([what, parts]) => parts.map(part => `${what}: ${text(part)}`));
}"""


class Page(NamedTuple):
    """A page of the book: its name, the part that begins with it, if one does, and its kind."""

    name: str
    part: str = ""
    numbered: bool = False


def contents(root: Path = ROOT) -> list[Page]:
    """The pages in their order."""
    toc = yaml.safe_load((root / "_toc.yml").read_text())
    pages = [Page(Path(toc["root"]).name)]
    for part in toc["parts"]:
        captions = [part["caption"], *[""] * (len(part["chapters"]) - 1)]
        for chapter, caption in zip(part["chapters"], captions, strict=True):
            pages.append(Page(Path(chapter["file"]).name, caption, "numbered" in part))
            pages += [Page(Path(one["file"]).name) for one in chapter.get("sections", [])]
    return pages


def cited(root: Path = ROOT) -> dict:
    """How the book is cited."""
    return yaml.safe_load((root / "CITATION.cff").read_text())


def metadata(citation: dict) -> dict[str, str]:
    """What the file says of itself."""
    return {
        "/Title": citation["title"],
        "/Author": ", ".join(author["name"] for author in citation["authors"]),
        "/Subject": citation["abstract"],
        "/Keywords": ", ".join(citation["keywords"]),
    }


def title_page(citation: dict, about: str) -> str:
    """The first page: title, subtitle, authors, version, date, licence."""
    told, day = metadata(citation), citation["date-released"]
    lines = [
        f'<p style="font-size: 3rem; font-weight: 600; line-height: 1.2">{told["/Title"]}</p>',
        f'<p style="font-size: 1.3rem; margin-bottom: 30vh">{about}</p>',
        f'<p style="font-size: 1.3rem">{told["/Author"]}</p>',
        f"<p>Version {citation['version']}, {day.day} {day:%B %Y}</p>",
        "<p>Text and figures: CC BY 4.0. Code: MIT.</p>",
    ]
    own = "<style>@page title { @bottom-center { content: none } }</style>"  # no number
    style = "page: title; padding-top: 25vh; text-align: center"
    return f'{own}<section id="title-page" style="{style}">{"".join(lines)}</section>\n'


def whole(folder: Path, pages: list[Page]) -> str:
    """One page with the articles of all, in the frame of one that loads the font of formulas."""
    texts = [(folder / f"{page.name}.html").read_text() for page in pages]
    front = (folder / "index.html").read_text()
    about = re.search(r'(?s)class="front-first[^>]*>\s*<p>(.*?)</p>', front)[1]
    sections = title_page(cited(), about)
    for page, text in zip(pages, texts, strict=True):
        article = re.search(r"(?s)<article[^>]*>(.*)</article>", text)[1].replace(LINK, "")
        kind = "page numbered" if page.numbered else "page"
        part = f'<p style="font-size: 1.2rem">{page.part}</p>' * bool(page.part)
        opening = f'<section class="{kind}" id="{page.name}" style="break-before: page">'
        sections += f"{opening}{part}{article}</section>\n"
    frame = next(text for text in texts if "formulas.woff2" in text)
    frame = re.sub(r'<script[^>]* src="[^"]*/live(_data)?\.js[^>]*></script>', "", frame)
    start, end = re.search(r"(?s)<article[^>]*>(.*)</article>", frame).span(1)
    return frame[:start] + sections + frame[end:]


def prepare(tab: Tab, folder: Path, pages: list[Page]) -> None:
    """Load these pages of a built book, as one, into a tab of a browser.

    Raises:
        ValueError: something on them is not finished; each such thing is named.
    """
    joined = folder / "whole.html"
    joined.write_text(whole(folder, pages))
    tab.goto(joined.as_uri())
    for step in (LOADED, SET, JOIN):
        tab.evaluate(step)
    joined.unlink()
    if faults := tab.evaluate(FAULTS):
        raise ValueError("not fit to print:\n" + "\n".join(faults))


def write(site: Path, pages: list[Page]) -> Path:
    """Print these pages of a built book into a file beside its front page."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        raise SystemExit(f"one of these browsers is needed: {', '.join(BROWSERS)}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        tab = browser.new_page()
        tab.set_default_timeout(300_000)
        prepare(tab, site / "book", pages)
        tab.pdf(path=site / PDF, **FORM)
        browser.close()
    sign(site / PDF)
    return site / PDF


def sign(path: Path) -> None:
    """Let a file say whose it is."""
    writer = PdfWriter(path, incremental=True)  # what is there stays
    writer.add_metadata(metadata(cited()))
    writer.write(path)


def link(index: Path) -> None:
    """Let the front page's first lines lead to the file, which is then not as it was built."""
    (index.parent.parent / "built.json").unlink(missing_ok=True)
    text = index.read_text().replace(LINK, "")
    index.write_text(re.sub(r'(<p class="byline">.*?)</p>', rf"\1{LINK}</p>", text, count=1))


if __name__ == "__main__":
    site = ROOT / "_build" / "html"
    print(write(site, contents()))
    link(site / "book" / "index.html")
