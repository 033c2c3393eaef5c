"""Make the built pages light: nothing is loaded that no page uses, and nothing waits for scripts.

What the theme ships is large: rules for a hundred components, 2,000 icons as a script, the search
index on every page. When all pages are written, stylesheets lose the rules that name a class which
no page and no script names, the icons that are left travel inside the stylesheet as a font of a few
kilobytes, and pages are rewritten as `html_fixes.fix_page` says.
The search index holds how each section begins, so that the search fetches no page to show it.
"""

import base64
import hashlib
import io
import json
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

from docutils import nodes
from fontTools import subset, ttLib
from html_fixes import STYLE, fix_page, fix_script, fix_styles
from mathml import as_text
from sphinx.application import Sphinx
from sphinx.config import Config

EXCERPT = 240  # characters
INDEX, SET = "searchindex.js", "Search.setIndex("
BOOTSTRAP = {"fade", "show", "tooltip", "tooltip-inner", "tooltip-arrow", "bs-tooltip-auto"}
ONE, WEIGHTS = "book-and-theme.css", "dates_model.js"
_FONT = r"url\([^)]*fa-solid-900\.woff2\) format\(\"woff2\"\),url\([^)]*\) format\(\"truetype\"\)"
# a property of one's own; an address in quotation marks may hold whatever ends another value
_PROPERTY = r'(?<=[{;])\s*(--[\w-]+):(?:"[^"]*"|[^;{}"])*;?'
_ANY = re.compile(r"\[[^\]]*\]|:(?:not|is|where|has)\([^()]*(?:\([^()]*\)[^()]*)*\)")


def lean(css: str, used: set[str]) -> str:
    """A stylesheet without the rules for classes that nobody uses."""
    rules, at = [], 0
    while (brace := css.find("{", at)) >= 0:
        depth, end = 1, brace
        while depth:
            end = next(i for i in range(end + 1, len(css)) if css[i] in "{}")
            depth += 1 if css[end] == "{" else -1
        names, body, at = css[at:brace], css[brace + 1 : end], end + 1
        if re.match(r"\s*@(media|supports|layer)", names):
            body = lean(body, used)
        elif "@" not in names:
            names = ",".join(one for one in _selectors(names) if _may_match(one, used))
        if names.strip() and body.strip():
            rules.append(f"{names.strip()}{{{body}}}")
    return "\n".join(rules)


def _selectors(names: str) -> list[str]:
    """Split at the commas that stand in no parentheses."""
    return re.findall(r"(?:[^,()]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))+", names)


def _may_match(selector: str, used: set[str]) -> bool:
    classes = re.findall(r"\.(-?[A-Za-z_][\w-]*)(?![\w\\-])", _ANY.sub("", selector))
    return all(name in used for name in classes)


def icons(css: str, font: Path) -> str:
    """The characters of the icon font that stylesheets name, as a font inside an address."""
    named = {int(code, 16) for code in re.findall(r"\\(f[0-9a-f]{3})\b", css)}
    named |= {ord(character) for character in re.findall("[\uf000-\uf8ff]", css)}
    options = subset.Options(flavor="woff", recalc_timestamp=False)
    subsetter = subset.Subsetter(options)
    subsetter.populate(unicodes=named)
    with ttLib.TTFont(font, recalcTimestamp=False) as loaded:
        subsetter.subset(loaded)
        loaded.flavor = "woff"
        loaded.save(made := io.BytesIO())
    return f"url(data:font/woff;base64,{base64.b64encode(made.getvalue()).decode()})"


def excerpts(doctree: nodes.document) -> dict[str, str | list[str]]:
    """How each section of a page begins, by its names, or its table's rows; the page has none."""
    found = {}
    for section in doctree.findall(nodes.section):
        paragraph = next(section.findall(nodes.paragraph), None)
        if paragraph is not None:
            begins = rows(paragraph) or _short(plain(paragraph))
            found |= dict.fromkeys([*([] if found else [""]), *section["ids"]], begins)
    return found


def rows(paragraph: nodes.paragraph) -> list[str]:
    """The rows of the table in which a paragraph stands: first its head."""
    table = paragraph
    while table and not isinstance(table, nodes.table):
        table = table.parent
    cells = [row.findall(nodes.paragraph) for row in table.findall(nodes.row)] if table else []
    return [_short(" · ".join(map(plain, row))) for row in cells]


def _short(text: str) -> str:
    return textwrap.shorten(text, EXCERPT, placeholder=" …")


def plain(paragraph: nodes.paragraph) -> str:
    """The words of a paragraph."""
    return " ".join("".join(map(_words, paragraph.findall(nodes.Text))).split())


def _words(text: nodes.Text) -> str:
    """A text, or a formula as one would type it."""
    return as_text(text.astext()) if isinstance(text.parent, nodes.math) else text.astext()


def _finish(app: Sphinx, exception: Exception | None) -> None:
    if exception or app.builder.format != "html":
        return
    out = Path(app.outdir)
    index = json.loads((out / INDEX).read_text().removeprefix(SET).removesuffix(")"))
    index["excerpts"] = {name: excerpts(app.env.get_doctree(name)) for name in index["docnames"]}
    (out / INDEX).write_text(f"{SET}{json.dumps(index, sort_keys=True)})")
    pages = sorted(out.rglob("*.html"))
    written = {path: fix_page(path.read_text(), path.parent) for path in pages}
    name = f"_static/styles/{ONE}"
    linked = re.findall(STYLE, written[out / "search.html"])
    names = used(written.values(), out / "_static")
    css = _merged([out / link for link in linked], names)
    meant = names.union(re.findall(r"var\((--[\w-]+)", css + "".join(written.values())))
    solid = out / "_static/vendor/fontawesome/webfonts/fa-solid-900.ttf"
    css = re.sub(_PROPERTY, lambda one: one[0] * (one[1] in meant), css)
    css = re.sub(_FONT, lambda _: icons(css, solid), css)
    (out / name).write_text(css)
    version = hashlib.sha256(css.encode()).hexdigest()[:8]
    for path in (out / "_static/searchtools.js", *(out / "_static").glob("scripts/[ps]*.js")):
        path.write_text(fix_script(path.read_text()))
    for path, html in written.items():
        up = "../" * len(path.relative_to(out).parts[1:])
        path.write_text(fix_styles(html, f"{up}{name}?v={version}"))


def used(pages: Iterable[str], static: Path) -> set[str]:
    """The classes of all pages, and whatever a script may mean by a word."""
    scripts = [*static.glob("*.js"), *static.glob("scripts/[ps]*.js")]
    scripts = [path for path in scripts if path.name != WEIGHTS]  # which hold any word by chance
    names = set(re.findall(r"[\w-]+", " ".join(path.read_text() for path in scripts)))
    for html in pages:
        names.update(" ".join(re.findall(r'class="([^"]*)"', html)).split())
    return names | BOOTSTRAP


def _merged(styles: list[Path], names: set[str]) -> str:
    """All stylesheets in one: licences, what is imported, then what is used of each."""
    texts = []
    for path in filter(Path.is_file, styles):  # the theme links one that is not there
        text = path.read_text()
        imported = re.findall(r'@import "([^"]*)";', text)
        texts += [(path.parent / name).read_text() for name in imported] + [text]
    texts = [text.replace("url(fonts/", "url(../fonts/") for text in texts]  # one folder deeper
    licences = [one for text in texts for one in re.findall(r"(?s)/\*!.*?\*/", text)]
    plain = [re.sub(r'(?s)/\*.*?\*/|@(?:charset|import) "[^"]*";', "", text) for text in texts]
    return "\n".join(licences + [lean(text, names) for text in plain])


def _without_thebe(app: Sphinx, config: Config) -> None:
    """Leave out sphinx-thebe, which would run code by a server: it declares one constant twice."""
    for listeners in app.events.listeners.values():
        listeners[:] = [one for one in listeners if one.handler.__module__ != "sphinx_thebe"]


def setup(app: Sphinx) -> dict:
    """Register with Sphinx."""
    app.connect("config-inited", _without_thebe)
    app.connect("build-finished", _finish, priority=900)  # the theme writes until then
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
