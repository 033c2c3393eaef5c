"""Print the book that was built as one PDF, by Chromium: ``python book/_tools/paper.py``.

One page holds the articles of all, in the order of the contents; what linked from page to page
links inside it. Figures that move stand still, folded code is left out, and solutions are gathered
at the end of their page. Nothing is printed that is not finished: a formula that is not set, a
picture or a chapter's number that is missing, a link to nowhere is an error. At last the front page
gets a link to the file, which no other build has.
"""

import re
import shutil
from pathlib import Path
from typing import NamedTuple

import yaml
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[2]
PDF = "attention-checked.pdf"
LINK = f' · <a href="../{PDF}">the whole book as a PDF</a>'
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

# what is out of sight is loaded late: here it is loaded now
LOADED = """() => Promise.all([...document.images].map(image => {
  image.loading = "eager";
  return image.complete || new Promise(done => { image.onload = image.onerror = done; });
})).then(() => 0)"""
SET = "window.MathJax && MathJax.startup && MathJax.startup.promise.then(() => 0)"

# names of places begin with that of their page, and links follow; solutions go to the page's end
JOIN = """() => document.querySelectorAll("section.page").forEach(page => {
  page.querySelectorAll("[id]").forEach(place => { place.id = `${page.id}--${place.id}`; });
  page.querySelectorAll("a[href]").forEach(link => {
    const [inside, to, at] = /^(?:(\\w+)\\.html)?(?:#(.*))?$/.exec(link.getAttribute("href")) || [];
    if (inside) link.setAttribute("href", `#${to || page.id}${at ? `--${at}` : ""}`);
    else if (/^\\.\\.\\//.test(link.getAttribute("href"))) link.removeAttribute("href");  // a picture, the index
  });
  const solutions = page.querySelectorAll(".cell[class*=tag_solution]");
  if (solutions.length) page.append(Object.assign(document.createElement("h2"), {textContent: "Solutions"}));
  solutions.forEach(solution => {
    solution.querySelectorAll("details").forEach(folded => { folded.open = true; });
    page.append(solution);
  });
})"""
FAULTS = """() => {
  const all = which => [...document.querySelectorAll(`section.page ${which}`)];
  const nowhere = link => !/^https?:/.test(link.getAttribute("href"))
    && !document.getElementById(decodeURIComponent(link.hash.slice(1)));
  return [
    ...all(".math").filter(formula => !formula.querySelector("mjx-container")).map(formula => `not set: ${formula.textContent}`),
    ...all("mjx-merror").map(formula => `an error in a formula: ${formula.textContent}`),
    ...[...document.images].filter(image => !image.naturalWidth).map(image => `no picture: ${image.src}`),
    ...all("a[href]").filter(nowhere).map(link => `leads nowhere: ${link.getAttribute("href")}`),
    ...all("h1").filter(title => !!title.closest(".numbered") !== !!title.querySelector(".section-number"))
      .map(title => `numbered otherwise than in the contents: ${title.textContent}`),
  ];
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
        pages += [
            Page(Path(chapter["file"]).name, caption, "numbered" in part)
            for chapter, caption in zip(part["chapters"], captions, strict=True)
        ]
    return pages


def whole(folder: Path, pages: list[Page]) -> str:
    """One page with the articles of all, in the frame of one that loads MathJax."""
    texts = [(folder / f"{page.name}.html").read_text() for page in pages]
    sections = ""
    for page, text in zip(pages, texts, strict=True):
        article = re.search(r"(?s)<article[^>]*>(.*)</article>", text)[1].replace(LINK, "")
        kind = "page numbered" if page.numbered else "page"
        part = f'<p style="font-size: 1.2rem">{page.part}</p>' * bool(page.part)
        opening = f'<section class="{kind}" id="{page.name}" style="break-before: page">'
        sections += f"{opening}{part}{article}</section>\n"
    frame = next(text for text in texts if "tex-chtml.js" in text)
    frame = re.sub(r'<script[^>]* src="[^"]*/live(_data)?\.js[^>]*></script>', "", frame)
    start, end = re.search(r"(?s)<article[^>]*>(.*)</article>", frame).span(1)
    return frame[:start] + sections + frame[end:]


def write(site: Path, pages: list[Page]) -> Path:
    """Print these pages of a built book.

    Returns:
        The file, beside the front page.

    Raises:
        ValueError: something on the pages is not finished; each such thing is named.
    """
    joined, pdf = site / "book" / "paper.html", site / PDF
    joined.write_text(whole(site / "book", pages))
    with sync_playwright() as playwright:
        found = next(filter(None, map(shutil.which, BROWSERS)))
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(300_000)
        page.goto(joined.as_uri())
        for step in (LOADED, SET, JOIN):
            page.evaluate(step)
        if faults := page.evaluate(FAULTS):
            raise ValueError("not fit to print:\n" + "\n".join(faults))
        page.pdf(path=pdf, format="A4", print_background=True, outline=True, tagged=True)
        browser.close()
    joined.unlink()
    return pdf


def link(index: Path) -> None:
    """Let the front page's first lines lead to the file."""
    text = index.read_text().replace(LINK, "")
    index.write_text(re.sub(r'(<p class="byline">.*?)</p>', rf"\1{LINK}</p>", text, count=1))


if __name__ == "__main__":
    site = ROOT / "_build" / "html"
    print(write(site, contents()))
    link(site / "book" / "index.html")
