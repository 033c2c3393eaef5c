"""What search engines, and who passes an address on, are told of each page; and what they find.

A page is described by what you do on it, or by its opening sentences. As soon as the book has an
address of its own, ``html.baseurl`` in ``_config.yml``, pages name theirs and a picture, and
``sitemap.xml`` lists them. ``404.html`` is what a server shows at an address that leads nowhere.
"""

import html
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from page_size import plain
from sphinx.application import Sphinx

LONGEST = 160  # characters of a description
LOST = "404"


def subject(doctree: nodes.document) -> str:
    """What a page is about."""
    texts = [plain(paragraph) for paragraph in doctree.findall(nodes.paragraph)]
    begin = "What you’ll do. "
    return next((text.removeprefix(begin) for text in texts if text.startswith(begin)), texts[0])


def description(text: str) -> str:
    """As much of a text as is shown, in whole sentences or parts of one, if they fit."""
    if len(text) <= LONGEST:
        return text
    whole = re.match(rf"(.{{60,{LONGEST - 1}}})(?:[.;]|([?!])) ", text)
    return (
        f"{whole[1]}{whole[2] or '.'}"
        if whole
        else textwrap.shorten(text, LONGEST, placeholder=" …")
    )


def tags(title: str, text: str, kind: str, base: str | None, address: str | None) -> str:
    """The tags of a page; ``base`` and ``address`` are those of book and page, if they have one."""
    told = {"type": kind, "title": title, "description": description(text)}
    if base:
        told |= {"url": address, "image": f"{base}_static/page.png"}
    card = "summary_large_image" if base else "summary"
    lines = [f'<meta name="description" content="{html.escape(told["description"])}">']
    lines += [f'<meta property="og:{key}" content="{html.escape(told[key])}">' for key in told]
    return "\n".join(["", *lines, f'<meta name="twitter:card" content="{card}">'])


def sitemap(addresses: list[str]) -> str:
    """The addresses of all pages, as search engines read them."""
    listed = "\n".join(f"<url><loc>{html.escape(one)}</loc></url>" for one in addresses)
    space = "http://www.sitemaps.org/schemas/sitemap/0.9"
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="{space}">\n{listed}\n</urlset>\n'
    )


def _lost(app: Sphinx) -> Iterator[tuple[str, dict, str]]:
    """The page for what is not there: a search, and where to begin."""
    front = app.config.root_doc
    first = [front, *app.env.toctree_includes.get(front, [])]
    links = "".join(
        f'<li><a href="{app.builder.get_target_uri(name)}">'
        f"{html.escape(app.env.titles[name].astext())}</a></li>"
        for name in first
    )
    body = (
        "<h1>There is no such page</h1>\n<p>It may have another name now. Search for it:</p>\n"
        '<form class="mb-3" action="search.html" role="search">'
        '<input type="search" class="form-control" name="q" aria-label="Search this book">'
        f"</form>\n<p>Or go on from here:</p>\n<ul>{links}</ul>"
    )
    yield LOST, {"title": "There is no such page", "body": body}, "page.html"


def _describe(app: Sphinx, page: str, template: str, context: dict, doctree: object) -> None:
    base, front = app.config.html_baseurl, page == app.config.root_doc
    if isinstance(doctree, nodes.document):
        told = app.env.titles[page].astext(), subject(doctree), "book" if front else "article"
        meant = tags(*told, base, context["pageurl"])
    else:
        context["pageurl"] = None
        meant = '\n<meta name="robots" content="noindex">'
        if page == LOST and base:  # it is shown at any depth
            meant += f'\n<base href="{base}{LOST}.html">'
    context["metatags"] = context.get("metatags", "") + meant


def _finish(app: Sphinx, exception: Exception | None) -> None:
    if exception is not None or app.builder.format != "html":
        return
    front = Path(
        app.outdir, app.builder.get_target_uri(app.config.root_doc)
    )  # the book's name once
    once = re.sub(r"<title>(.*) &#8212; \1</title>", r"<title>\1</title>", front.read_text())
    front.write_text(once)
    if base := app.config.html_baseurl:
        found = [base + app.builder.get_target_uri(name) for name in sorted(app.env.found_docs)]
        Path(app.outdir, "sitemap.xml").write_text(sitemap(found))


def setup(app: Sphinx) -> dict:
    """Register with Sphinx."""
    app.connect("html-collect-pages", _lost)
    app.connect("html-page-context", _describe)
    app.connect("build-finished", _finish)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
