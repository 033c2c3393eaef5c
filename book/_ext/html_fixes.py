"""What is rewritten in the HTML of a page, by regular expressions, and nowhere else.

:func:`fix_text` is for the text of a page: a figure is drawn by lines, and the line under it says
how it may be used again; a formula keeps the bracket before it and the comma behind it; Chinese
words say that they are Chinese; a long address or name is broken between its parts, short code
nowhere; the cells of a wide table know their headings, for a phone; a screen reader is told rightly
what the theme shows; and under its title a page says when its outputs were compared.
:func:`fix_page` is for a page as it is stored: the reader's colours before anything is painted,
scripts that it needs, at its end, and pictures with their sizes, large ones stored again without
loss; :func:`fix_script` silences the theme's scripts, :func:`fix_styles` leaves one stylesheet.
"""

import itertools
import json
import re
from datetime import date
from html import unescape
from pathlib import Path

from checked import checked_on
from docutils import nodes
from line_figures import FIGURE, in_page
from mathml import as_text
from PIL import Image
from sphinx.application import Sphinx

# ---------------------------------------------------------------- the text of a page

_HAN = re.compile(
    r"[\u3400-\u9fff\uf900-\ufaff][\u3000-\u303f\u3400-\u9fff\uf900-\ufaff\uff00-\uff60]*"
)
_FORMULA = r'<span class="math[^>]*>(?:(?!</span>).)*</span>'
_BEHIND = r"(?:[.,;:!?)\]’”]|-\w+)"  # also "n-th"
_ADDRESS = re.compile(r"(?<=>)(?=[^<>\s]{34})[^<>\s]+/[^<>\s]+(?=</a>)")
_NAME = re.compile(r'(?<=<span class="pre">)[^<>\s]{30,}(?=</span>)')
_TOGETHER = re.compile(rf"(\({_FORMULA}{_BEHIND}*|{_FORMULA}{_BEHIND}+)")
_CODE = re.compile(r'(?s)(?<=<code class=")[^"]*">(.*?)</code>')
_SHORT = 20  # letters, which no line breaks
_HEAD = re.compile(r"(?s)<th\b[^>]*>(.*?)</th>")
_TABLE = re.compile(r'(?s)<table class="table">.*?</table>')
_CITED = re.compile(r'(?s)<div class="citation".*?</div>')
# what the theme writes -> what it should have written: the label of a folded block hid its title,
# the bibliography's roles are no longer roles, and a signature is no list of definitions
_THEME = {
    r'(<summary) aria-label="Toggle hidden content"': r"\1",
    r'(<div class="citation" id="[\w-]+") role="doc-biblioentry"': r"\1",
    r'<div role="list" (class="citation-list">)': r"<div \1",
    r'<dl>(?=\n<dd><em class="sig-param")': '<div class="parameters">',
    r'<dd>(<em class="sig-param">.*)</dd>': r"<div>\1</div>",
    r'</dl>(?=\n+<span class="sig-paren">)': "</div>",
}

ABOUT = 'href="index.html#about-this-book"'
REUSE = (
    '<span class="reuse"><a href="{picture}">{kind}</a> · '
    f"<a {ABOUT}>{{licence}}</a> · <a {ABOUT}>cite</a></span>"
)


def fix_text(html: str, licences: dict[str, str] | None = None) -> str:
    """The text of a page, with formulas, Chinese and the theme's labels put right.

    ``licences`` are those of figures, by their names, that are not under CC BY 4.0.
    """

    def pictured(found: re.Match) -> str:
        figure, picture, kind = in_page(found)
        licence = (licences or {}).get(found["name"], "CC BY 4.0")
        return figure + found["line"] + REUSE.format(picture=picture, kind=kind, licence=licence)

    for written, meant in _THEME.items():
        html = re.sub(written, meant, html)
    html = _TOGETHER.sub(r'<span class="together">\1</span>', html)
    html = re.sub(r">[^<]+<", _chinese, html)
    html = _CITED.sub(_typed, html)
    html = _TABLE.sub(_headed, html)
    html = _CODE.sub(_whole, html)
    html = _NAME.sub(lambda name: re.sub(r"(?<=\w[\w)])(?=[./])", "<wbr>", name[0]), html)
    html = _ADDRESS.sub(lambda text: re.sub(r"(?<=\w)(?=[./?_#])", "<wbr>", text[0]), html)
    return FIGURE.sub(pictured, html)


def _typed(work: re.Match) -> str:
    """A cited work without its label, with the formula in its title as one would type it.

    A short address stays whole, and the full stop stays with it.
    """
    text = re.sub(r'(?s)<span class="label">.*?</span>\n|(?<=\. )URL: ', "", work[0])
    text = re.sub(r"(<a [^>]*>[^<]{,33}</a>\.)", r'<span class="together">\1</span>', text)
    return re.sub(r"\$([^$<>]+)\$", lambda tex: as_text(tex[1]), text)


def _whole(code: re.Match) -> str:
    """Code that is not broken if it is short, not even at a space."""
    letters = unescape(re.sub("<[^>]*>", "", code[1]))
    return "short " * (len(letters) <= _SHORT) + code[0]


def _headed(table: re.Match) -> str:
    """A table of four columns and more, in whose cells but the first the heading stands."""
    heads = [re.sub("<[^>]*>", "", head).strip() for head in _HEAD.findall(table[0])]
    if len(heads) < 4:
        return table[0]
    names = itertools.cycle(["", *(f' data-head="{head}"' for head in heads[1:])])
    text = re.sub("<td(?=[ >])", lambda cell: cell[0] + next(names), table[0])
    return text.replace('class="table"', 'class="table stacked"', 1)


def _chinese(text: re.Match) -> str:
    return _HAN.sub(r'<span lang="zh">\g<0></span>', text[0])


# ---------------------------------------------------------------- a page as it is stored

# a script of the theme -> what a page must hold to need it; None: no page does
NEEDED = {
    "fontawesome.js": None,
    "design-tabs.js": "sd-tab",
    "live_data.js": 'id="fig-',
    "dates.js": 'id="fig-encoder-decoder-read"',
    "dates_figure.js": 'id="fig-encoder-decoder-read"',
    "live.js": 'id="fig-',
    "copybutton.js": "highlight",
    "clipboard.min.js": "highlight",
    "togglebutton.js": None,
    "searchtools.js": "search-results",
    "language_data.js": "search-results",
    "searchindex.js": "search-results",
}
LARGE = 100_000  # bytes; a smaller picture gains little
_SCRIPT = (
    r' *<script(?:([^>]*) src="([^"]*)"([^>]*)>|>(?=DOCUMENTATION_OPTIONS))([^<]*)</script>\n?'
)
STYLE = r'<link [^>]*href="(?:\.\./)*([^"?]*\.css)[^"]*"[^>]*>\n?'
_COLOURS = re.compile(r"(?s)<script data-cfasync.*?</script>")
# before anything is painted: what was chosen here before, or what the reader's system has
CHOSEN = """<script>
    (({dataset}) => {
      const mode = localStorage.getItem("mode"), dark = matchMedia("(prefers-color-scheme: dark)");
      dataset.mode = ["light", "dark"].includes(mode) ? mode : "auto";
      dataset.theme = dataset.mode === "auto" ? (dark.matches ? "dark" : "light") : mode;
    })(document.documentElement);
  </script>"""
_EARLY = """<script>
    (({documentElement: root, head, fonts}) => {
      const made = (name, rest) => Object.assign(document.createElement(name), rest);
      const disk = location.protocol === "file:", faces = FACES.map(kind => `${kind}1em Inter`);
      if (!disk) for (const href of ADDRESSES) {
        const link = {rel: "preload", as: "font", type: "font/woff2", crossOrigin: "", href};
        head.append(made("link", link));
      }
      // nothing is seen before its typeface is there, or it would jump when that comes
      const held = made("style", {textContent: "body { opacity: 0 }"});
      head.append(held);
      const wanted = [...faces, ...OTHERS].map(face => fonts.load(face));
      Promise.allSettled(wanted).then(() => held.remove());
      // who has waited for long enough keeps the stand-ins on this page
      setTimeout(() => {
        if (!disk && !faces.every(face => fonts.check(face)))
          root.style.setProperty("--pst-font-family-base", "var(--stand-ins)");
        held.remove();
      }, Math.max(100, (disk ? 3000 : 700) - performance.now()));
    })(document);
  </script>
"""
_CHEVRON = '<summary><span class="toctree-toggle"'  # in the contents
_PRELOAD = re.compile(r'<link rel="preload" as="script"[^>]*>\n?')
_IMAGE = re.compile(r'<img ([^>]*?)src="([^":]*)"([^>]*?) ?/?>')


def fix_page(html: str, folder: Path) -> str:
    """A page with the scripts that it needs, at its end, and with the sizes of its pictures."""
    late = []

    def script(found: re.Match) -> str:
        wanted = _needed(found, html[html.find("<body") :])
        late.extend([wanted] if wanted else [])
        return ""

    html = html.replace(_CHEVRON, f'{_CHEVRON[:8]} aria-label="its pages"{_CHEVRON[8:]}')
    html = re.sub(r"(?s)<script>.*?</script>", lambda found: fix_script(found[0]), html)
    html = re.sub(_SCRIPT, script, _PRELOAD.sub("", _COLOURS.sub(CHOSEN, html)))
    html = html.replace("</body>", "\n".join([*late, "</body>"]))
    return _IMAGE.sub(lambda found: _sized(found, folder), html)


def fix_script(script: str) -> str:
    """A script of the theme that keeps its diary to itself."""
    return re.sub(r"console\.(?:log|info|debug)\(", "void(", script)


def fix_styles(html: str, address: str) -> str:
    """A page with one stylesheet in place of all, and its fonts fetched beside it, not after it.

    A page that is read from disk may not ask for them so early, and need not.
    """
    link = f'<link rel="stylesheet" href="{address}" />\n'
    others = ["formulas"] if "<math " in html else []
    fonts = ["inter-regular", *others]
    filled = {
        "ADDRESSES": [f"{address.partition('styles/')[0]}fonts/{name}.woff2" for name in fonts],
        "FACES": ["", "600 ", *(["italic "] if "<em" in html else [])],
        "OTHERS": [f"1em {name}" for name in others],
    }
    link += re.sub("|".join(filled), lambda part: json.dumps(filled[part[0]]), _EARLY)
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


# ---------------------------------------------------------------- when it was checked


def _checked(html: str, day: date | None) -> str:
    """A page of outputs with the day on which they were compared, in a line below its title."""
    when = f"{day.day} {day:%B %Y}" if day else "a day to come"
    line = (
        '<p class="byline">Every output on this page was '
        f'<a href="how_checked.html">run again and compared</a> on <time>{when}</time>.</p>'
    )
    return html.replace("</h1>", f"</h1>\n{line}", 1)


def _licences(doctree: nodes.document | None) -> dict[str, str]:
    """The licences that cells name for their figures, such as that of a photograph."""
    cells = doctree.findall(nodes.container) if doctree else []
    told = [cell.get("cell_metadata", {}) for cell in cells]
    return {one["mystnb"]["figure"]["name"]: one["licence"] for one in told if "licence" in one}


def _write(app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document) -> None:
    if "body" in context:
        context["body"] = fix_text(context["body"], _licences(doctree))
        if app.env.doc2path(page).endswith(".ipynb"):
            context["body"] = _checked(context["body"], checked_on(Path(app.srcdir)))


def setup(app: Sphinx) -> dict:
    """Register with Sphinx."""
    app.connect("html-page-context", _write)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
