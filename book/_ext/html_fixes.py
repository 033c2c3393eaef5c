"""What is rewritten in the HTML of a page, by regular expressions, and nowhere else.

:func:`fix_text` is for the text of a page: every line of code and output becomes an element, so
that a phone may continue it on the next with a mark; a formula keeps the comma behind it; Chinese
words say that they are Chinese; and a screen reader is told rightly what the theme shows.
:func:`fix_page` is for a page as it is stored: scripts that it needs, at its end, and pictures with
their sizes, large ones stored again without loss; :func:`fix_styles` leaves it one stylesheet. And
a ✓ stands at the output of a cell that compares something.
"""

import ast
import re
from html import unescape
from pathlib import Path

from docutils import nodes
from PIL import Image
from sphinx.application import Sphinx

# ---------------------------------------------------------------- the text of a page

_BLOCK = re.compile(r"(?s)<pre>(?:<span></span>)?(.*?)\n?</pre>")
_HAN = re.compile(
    r"[\u3400-\u9fff\uf900-\ufaff][\u3000-\u303f\u3400-\u9fff\uf900-\ufaff\uff00-\uff60]*"
)
_TOGETHER = re.compile(
    r'(\(?<span class="math[^>]*>(?:(?!</span>).)*</span>(?:[.,;:!?)\]’”]|-\w+)+)'  # also "n-th"
)
# what the theme writes -> what it should have written: the label of a folded block hid its title,
# and the bibliography's roles are no longer roles
_THEME = {
    r'(<summary) aria-label="Toggle hidden content"': r"\1",
    r'(<div class="citation" id="[\w-]+") role="doc-biblioentry"': r"\1",
    r'<div role="list" (class="citation-list">)': r"<div \1",
}
PHONE = 53  # columns that a phone shows at 10.5 px


def fix_text(html: str) -> str:
    """The text of a page, with lines, formulas, Chinese and the theme's labels put right."""
    for written, meant in _THEME.items():
        html = re.sub(written, meant, html)
    html = _BLOCK.sub(_lines, html)
    html = _TOGETHER.sub(r'<span class="together">\1</span>', html)
    return re.sub(r">[^<]+<", _chinese, html)


def _chinese(text: re.Match) -> str:
    return _HAN.sub(r'<span lang="zh">\g<0></span>', text[0])


def _lines(found: re.Match) -> str:
    written = found[1].split("\n")
    plain = [unescape(re.sub(r"<[^>]*>", "", line)) for line in written]
    longest = max(map(len, plain))
    code = "<span" in found[1]  # whose words have colours
    kind = " table" if longest > PHONE and not code and _aligned(plain) else ""
    lines = "".join(
        f'<span class="line"{_hang(text)}>{line}\n</span>'
        for line, text in zip(written, plain, strict=True)
    )
    return f'<pre class="lines{kind}" style="--columns:{longest}">{lines}</pre>'


def _hang(text: str) -> str:
    """How far a line that is continued is indented."""
    indent = len(text) - len(text.lstrip())
    return f' style="--in:{indent}"' if indent and len(text) > PHONE else ""


def _aligned(lines: list[str]) -> bool:
    """Whether most lines are rows: columns with two spaces between, or numbers in brackets."""
    rows = [line for line in lines if re.search(r"\S {2,}\S|^ *\[*\[ ?-?\d", line)]
    return len(rows) > 1 and 2 * len(rows) > len(lines)


# ---------------------------------------------------------------- a page as it is stored

# a script of the theme -> what a page must hold to need it; None: no page does
NEEDED = {
    "fontawesome.js": None,
    "design-tabs.js": "sd-tab",
    "live_data.js": 'id="fig-',
    "live.js": 'id="fig-',
    "copybutton.js": "highlight",
    "clipboard.min.js": "highlight",
    "togglebutton.js": "toggle",
    "searchtools.js": "search-results",
    "language_data.js": "search-results",
    "searchindex.js": "search-results",
}
LARGE = 100_000  # bytes; a smaller picture gains little
_SCRIPT = (
    r' *<script(?:([^>]*) src="([^"]*)"([^>]*)>|>(?=DOCUMENTATION_OPTIONS))([^<]*)</script>\n?'
)
STYLE = r'<link [^>]*href="(?:\.\./)?([^"?]*\.css)[^"]*"[^>]*>\n?'
_PRELOAD = re.compile(r'<link rel="preload" as="script"[^>]*>\n?')
_IMAGE = re.compile(r'<img ([^>]*?)src="([^":]*)"([^>]*?) ?/?>')


def fix_page(html: str, folder: Path) -> str:
    """A page with the scripts that it needs, at its end, and with the sizes of its pictures."""
    late = []

    def script(found: re.Match) -> str:
        wanted = _needed(found, html[html.find("<body") :])
        late.extend([wanted] if wanted else [])
        return ""

    html = re.sub(_SCRIPT, script, _PRELOAD.sub("", html))
    html = html.replace("</body>", "\n".join([*late, "</body>"]))
    return _IMAGE.sub(lambda found: _sized(found, folder), html)


def fix_styles(html: str, address: str) -> str:
    """A page with one stylesheet in place of all."""
    link = f'<link rel="stylesheet" href="{address}" />\n'
    return re.sub(STYLE, "", html).replace("</head>", f"{link}</head>", 1)


def _needed(found: re.Match, body: str) -> str:
    """A script that is told to wait, if anything in the body but itself asks for it."""
    before, source, after, content = found.groups()
    need = NEEDED.get((source or "").rpartition("/")[2].partition("?")[0], "")
    if need is None or need not in body.replace(found.group(), ""):
        return ""
    if source is None:  # it sets an option of a script before it
        return f'<script type="module">{content}</script>'
    rest = re.sub(r' (?:defer|async)(?:="\w*")?', "", before + after)
    return f'<script{rest} defer src="{source}"></script>'


def _sized(found: re.Match, folder: Path) -> str:
    before, source, after = found.groups()
    path = folder / source
    if "height=" in before + after or not path.is_file():
        return found.group()
    if path.suffix == ".png" and path.stat().st_size > LARGE:
        path, source = _small(path), source.replace(".png", ".webp")
    with Image.open(path) as picture:
        width, height = picture.size
    size = f'width="{width}" height="{height}" loading="lazy"'
    return f'<img {before}src="{source}"{after} {size} />'


def _small(path: Path) -> Path:
    """The same pixels in a smaller file."""
    made = path.with_suffix(".webp")
    if not made.exists():
        with Image.open(path) as picture:
            picture.save(made, lossless=True, method=4)
    return made


# ---------------------------------------------------------------- marks

COMPARING = {"allclose", "isclose", "equal", "array_equal"}
MEANING = (
    "The code above asserts, or content whether two results agree. "
    "It was run again before this page was built."
)
_MARK = f'<p class="compared"><span title="{MEANING}">✓ compared</span></p>'


def compares(source: str) -> bool:
    """Whether the code of a cell asserts or compares, an exercise's check being answered."""
    tree = ast.parse(re.sub(r"(?m)^(\s*)%.*", r"\1pass", source))
    found = list(ast.walk(tree))
    given = [getattr(node.value, "value", None) for node in found if isinstance(node, ast.Assign)]
    if ... in given:  # still to be answered
        return False
    calls = [ast.unparse(node.func) for node in found if isinstance(node, ast.Call)]
    return (
        any(isinstance(node, ast.Assert) for node in found)
        or "exercises.check" in calls
        or any(call.rpartition(".")[2] in COMPARING for call in calls)
    )


def _mark(app: Sphinx, doctree: nodes.document) -> None:
    for cell in doctree.findall(nodes.container):
        if cell.get("nb_element") != "cell_code":
            continue
        parts = {part.get("nb_element"): part for part in cell.findall(nodes.container)}
        source = parts.get("cell_code_source")
        output = parts.get("cell_code_output")
        if source and output and compares(source.astext()):
            output.append(nodes.raw("", _MARK, format="html"))


def _write(app: Sphinx, page: str, template: str, context: dict, doctree: object) -> None:
    if "body" in context:
        context["body"] = fix_text(context["body"])


def setup(app: Sphinx) -> dict:
    """Register with Sphinx."""
    app.connect("doctree-read", _mark)
    app.connect("html-page-context", _write)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
