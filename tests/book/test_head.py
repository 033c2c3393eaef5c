"""What is said of each page in its head, and what a server shows where there is no page."""

import html
import os
import re
import subprocess
import sys

import head
import pages
import pytest
import yaml
from browsing import opened, visit
from tables import for_each

NAMES = sorted(path.stem for path in pages.NOTEBOOKS + pages.TEXTS)
BASE = pages.config()["html"]["baseurl"]
TITLE = yaml.safe_load((pages.ROOT / "CITATION.cff").read_text())["title"]


def told(text: str) -> dict[str, list[str]]:
    """What the head of a page says, by what it says it of."""
    text = text.partition("</head>")[0]
    found = re.findall(r'<meta (?:name|property)="([\w:]+)" content="([^"]*)"', text)
    found += re.findall(r'<(?:link|base)(?: rel="(canonical|icon)")? href="([^"]*)"', text)
    found += [("<title>", title) for title in re.findall("<title>(.*?)</title>", text)]
    said = {}
    for of, words in found:
        said.setdefault(of or "base", []).append(html.unescape(words))
    return said


def faults(heads: dict[str, str], base: str) -> list[str]:
    """What a search engine would miss in pages, and what a link that is passed on would."""
    found, seen = [], {}
    for name, text in heads.items():
        said = told(text)
        get = lambda of, said=said: (said.get(of) or [""])[0]  # noqa: E731
        words, address = get("description"), f"{base}book/{name}.html"
        wanted = {
            "described": 30 < len(words) <= head.LONGEST,
            "described once": len(said.get("description", [])) == 1,
            "described as no other": seen.setdefault(words, name) == name,
            "passed on with it": get("og:description") == words,
            "called so": get("og:title") in get("<title>") and get("og:title"),
            "of a kind": get("og:type") == ("book" if name == "index" else "article"),
            "a card": get("twitter:card") == ("summary_large_image" if base else "summary"),
            "found": "robots" not in said,
            "at its address": get("canonical") == get("og:url") == (address if base else ""),
            "with a picture": get("og:image") == (f"{base}_static/page.png" if base else ""),
            "called once": get("<title>").count(TITLE) == 1,
        }
        found += [f"{name}: not {what}" for what, holds in wanted.items() if not holds]
    return found


@pytest.fixture(scope="module")
def heads(site):
    return {name: (site / f"book/{name}.html").read_text() for name in NAMES}


def test_each_page_says_what_it_is_about(heads, site):
    assert faults(heads, BASE) == []
    planted = re.sub('(?<=og:title" content=")', "A page: ", heads["02_masks"])
    assert faults({"02_masks": planted}, BASE) == ["02_masks: not called so"]
    for name in ("search", "genindex", "404"):
        said = told((site / f"{name}.html").read_text())
        assert said["robots"] == ["noindex"]
        assert not said.keys() & {"description", "canonical"}
    assert (site / "sitemap.xml").exists() == bool(BASE)


@for_each(
    (f"{'a ' * 40}end; then {'b ' * 90}", f"{'a ' * 40}end."),
    (f"{'a ' * 40}end? {'b ' * 20}", f"{'a ' * 40}end? {'b ' * 20}"),
    (f"{'a ' * 40}end? {'b ' * 90}", f"{'a ' * 40}end?"),
    ("word " * 40, f"{'word ' * 31}…"),
)
def test_a_description_ends_where_a_sentence_does(text, kept):
    assert head.description(text) == kept


# ---------------------------------------------------------------- once there is an address


PUBLIC = "https://someone.github.io/book/"


def test_pages_name_their_addresses(tmp_path):
    """Two pages, built by Sphinx with an address."""
    (tmp_path / "book").mkdir()
    (tmp_path / "conf.py").write_text(
        f"extensions, root_doc, project = ['head'], 'book/index', {TITLE!r}\n"
        f"html_title, html_baseurl, html_theme = project, {PUBLIC!r}, 'basic'\n"
        "smartquotes = False\n"
    )
    first = f'{TITLE}\n{"=" * 60}\n\nOf "one" & all.\n\n.. toctree::\n\n   one'
    (tmp_path / "book/index.rst").write_text(first)
    (tmp_path / "book/one.rst").write_text("One page\n========\n\nThe first page.\n")
    extensions = f"{pages.BOOK / '_ext'}{os.pathsep}{pages.BOOK / '_tools'}"
    command = [sys.executable, "-m", "sphinx", "-qW", tmp_path, tmp_path / "out"]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": extensions})
    built = tmp_path / "out"
    heads = {name: (built / f"book/{name}.html").read_text() for name in ("index", "one")}
    of_length = [f"{name}: not described" for name in heads]
    assert faults(heads, PUBLIC) == of_length
    assert faults(heads, "https://elsewhere.invalid/") != of_length
    assert told(heads["index"])["description"] == ['Of "one" & all.']
    assert told(heads["one"])["canonical"] == [f"{PUBLIC}book/one.html"]
    listed = re.findall("<loc>(.*?)</loc>", (built / "sitemap.xml").read_text())
    assert listed == [f"{PUBLIC}book/index.html", f"{PUBLIC}book/one.html"]
    lost = (built / "404.html").read_text()
    assert told(lost)["base"] == [f"{PUBLIC}404.html"]
    assert lost.index("<base ") < min(lost.index("<link "), lost.index("<script "))
    assert "canonical" not in told(lost)
    assert "base" not in told(heads["one"])


# ---------------------------------------------------------------- where there is no page


def test_no_page_leads_to_all(browser, site):
    """And from it one can search, in its field and in that of every page."""
    text = (site / "404.html").read_text()
    article = re.search(r"(?s)<article.*?</article>", text)[0]
    links = [href for href in re.findall(r'href="([^"#]+)"', article) if "://" not in href]
    assert {f"book/{path.stem}.html" for path in pages.CHAPTERS} <= set(links)
    assert [link for link in links if not (site / link).is_file()] == []
    lost = re.sub("<base [^>]*>", "", text)
    (site / "lost.html").write_text(lost)  # from disk, whatever the address
    with opened(browser, site.as_uri()) as page:
        visit(page, f"{site.as_uri()}/lost.html", 390)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.locator("article input[type=search]").fill("RoPE")
        page.keyboard.press("Enter")
        page.wait_for_url("**/search.html?q=RoPE")
        page.locator("ul.search a").first.wait_for()
        visit(page, f"{site.as_uri()}/lost.html")
        page.keyboard.press("Control+k")
        page.keyboard.type("RoPE")
        page.locator("dialog ul.search a").first.click()
        page.wait_for_url("**/book/05_positions.html*")
        assert page.errors + page.outside == []


def test_the_picture_and_the_icon_are_those_of_the_book(site):
    assets = pages.BOOK / "assets"
    (icon,) = told((site / "book/index.html").read_text())["icon"]
    assert (site / "book" / icon).read_text() == (assets / "favicon.svg").read_text()
    assert (site / "_static/page.png").read_bytes() == (assets / "page.png").read_bytes()
