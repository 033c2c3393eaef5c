"""Formulas in the built pages: all of them, as MathML, by another converter's word the same."""

import hashlib
import html
import re
import unicodedata
from collections import Counter
from itertools import chain
from xml.etree import ElementTree

import mathml
import pages
import pytest
from docutils.utils.math.latex2mathml import tex2mathml
from fontTools.ttLib import TTFont
from markdown_it import MarkdownIt
from mdit_py_plugins.amsmath import amsmath_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin
from tables import raises_for_each

MARKDOWN = MarkdownIt().enable("table").use(dollarmath_plugin).use(amsmath_plugin)
SOURCES = {path.stem: path for path in [*pages.NOTEBOOKS, *pages.TEXTS]}
ASSETS = pages.BOOK / "assets/fonts"


def formulas(text: str) -> list[str]:
    """The TeX of a text, that inside directives too."""
    found = []
    for token in MARKDOWN.parse(text):
        for part in [token, *(token.children or [])]:
            if part.type.startswith(("math_", "amsmath")):
                found.append(part.content)
            elif part.type == "fence" and part.info.startswith("{"):
                found += formulas(part.content)
    return found


def written(name: str) -> list[str]:
    path = SOURCES[name]
    if path.suffix == ".md":
        return formulas(path.read_text())
    cells = (cell for cell in pages.read(path).cells if cell.cell_type == "markdown")
    return [tex for cell in cells for tex in formulas(cell.source)]


def bare(tex: str) -> str:
    """A formula without its number and its box, which are no MathML."""
    tex = " ".join(re.sub(r"\\tag\{.*?\}", "", tex).split())
    return re.sub(r"^\\boxed\{(.*)\}$", r"\1", tex)


def missing(tex: list[str], page: str) -> list[str]:
    """The formulas that a built page lacks, and those that nobody wrote."""
    article = re.search(r"(?s)<article.*</article>", page)[0]
    assert article.count("<math ") == article.count("</math>")
    shown = Counter(map(html.unescape, re.findall(r'<math alttext="([^"]*)"', article)))
    wanted = Counter(map(bare, tex))
    return [*(wanted - shown), *(shown - wanted)]


@pytest.mark.parametrize("name", SOURCES)
def test_every_formula_of_a_page_is_mathml(site, name):
    page, tex = (site / f"book/{name}.html").read_text(), written(name)
    if not name.startswith("attn_"):  # what docstrings hold, test_reference compares
        assert missing(tex, page) == []
    assert "mathjax" not in page.lower()
    shown = re.sub(r'(?s)<pre.*?</pre>|alttext="[^"]*"', "", page)
    assert re.findall(r"\\\(|\\\[|\$\$", shown) == []
    numbers = re.findall(r"\\tag\{(.*?)\}", " ".join(tex))
    number = r'<div class="math[^"]*" id="formula-(.*?)">(?:(?!</div>).)*\((.*?)\)</span></div>'
    assert re.findall(number, page) == [(n, n) for n in numbers]
    if name == "04_scaling":  # one that is dropped, or changed
        assert missing(tex, re.sub(r"<math .*?</math>", "", page, count=1)) == [bare(tex[0])]
        assert len(missing([*tex[1:], tex[0] + "^2"], page)) == 2


# ---------------------------------------------------------------- what a formula says

SAME = str.maketrans("ˉ_", "‾‾")  # drawn alike
# what docutils cannot read, or reads as something else
FOR_DOCUTILS = {
    r"\\(t?frac)(\d)(\d)": r"\\\1{\2}{\3}",
    r"\\dots(?= \+)": r"\\cdots",
    r"\\dots": r"\\ldots",
    r"(\w)'": r"\1^\\prime ",
}


def leaves(part: ElementTree.Element) -> list:
    """What is said: signs in rows, and which of them stand above, below or in the root of which."""
    inside = [leaves(child) for child in part]
    row = [*chain.from_iterable(inside)]
    kind = part.tag.rpartition("}")[2].replace("munder", "msub").replace("mover", "msup")
    kind = kind.replace("msubover", "msubsup")
    if part.get("class") == "overline":
        return [("msup", tuple(row), ("‾",))]
    if kind in ("math", "mrow", "mstyle", "mpadded"):
        return primed(row)
    if kind in ("mtd", "msqrt"):
        return [(kind, *row)]
    if kind == "msub" and inside[0][0][0] == "msup":  # what is above and below, in one step
        (_, base, above), below = inside[0][0], inside[1]
        return [("msubsup", base, tuple(below), above)]
    if inside:
        return [(kind, *map(tuple, inside))]
    text = (part.text or "").replace("\u2061", "").replace("\xa0", " ").translate(SAME)
    return [text] if text.strip() else []


def primed(row: list) -> list:
    """A prime stands above what is before it."""
    made: list = []
    for sign in row:
        made.append(("msup", (made.pop(),), ("′",)) if sign == "′" and made else sign)
    return made


def by_docutils(tex: str) -> str:
    for pattern, instead in FOR_DOCUTILS.items():
        tex = re.sub(pattern, instead, tex)
    return html.unescape(tex2mathml(tex).replace("&lt;", "&amp;lt;").replace("&gt;", "&amp;gt;"))


ALL = sorted({bare(tex) for name in SOURCES for tex in written(name)})


def both(tex: str, other: str) -> tuple[list, list]:
    parsed = (ElementTree.fromstring(one) for one in (mathml.to_mathml(tex), by_docutils(other)))  # noqa: S314
    return tuple(map(leaves, parsed))


def test_every_formula_says_the_same_by_another_converter():
    assert len(ALL) > 350
    found = {tex: both(tex, tex) for tex in ALL}
    assert {tex: pair for tex, pair in found.items() if pair[0] != pair[1]} == {}
    one, other = both(r"\sqrt{d_k}", r"\sqrt{d}_k")
    assert one != other


@raises_for_each(
    (r"\alhpa x", ValueError, r"\\alhpa, which book/_ext/mathml.py lacks"),
    (r"\mathrm{y}", ValueError, r"has \\mathrm"),
    (r"a + \boxed{x}", ValueError, r"has \\boxed"),
    (r"\frac{1}", ValueError, "is not finished"),
    (r"\sqrt", ValueError, "cannot be read"),
    (r"{x", ValueError, "the braces of"),
)
def test_what_cannot_be_set_is_refused(tex):
    """So the strict build stops, or a page lacks the formula."""
    mathml.displayed(tex)


# ---------------------------------------------------------------- how it is shown


def italic(letter: str) -> str:
    """The letter as a browser draws it, alone in an ``mi``."""
    name = re.sub("^(LATIN|GREEK)(.*) LETTER", r"MATHEMATICAL ITALIC\2", unicodedata.name(letter))
    try:
        return "ℎ" if letter == "h" else unicodedata.lookup(name)
    except KeyError:
        return letter


def lacking(font: TTFont, all_mathml: list[str]) -> set[str]:
    """The characters of formulas that a font does not have."""
    letters = set()
    for part in (part for one in all_mathml for part in ElementTree.fromstring(one).iter()):  # noqa: S314
        text = part.text or ""
        letters.update([italic(text)] if part.tag == "mi" and len(text) == 1 else text)
    return {letter for letter in letters if ord(letter) not in font.getBestCmap()}


def test_the_font_has_every_character_and_is_what_its_note_says():
    content = (ASSETS / "formulas.woff2").read_bytes()
    note = (ASSETS / "formulas.txt").read_text()
    assert note.splitlines()[1] == hashlib.sha256(content).hexdigest()
    with TTFont(ASSETS / "formulas.woff2") as font:
        assert "MATH" in font
        assert lacking(font, [mathml.to_mathml(tex) for tex in ALL]) == set()
        assert lacking(font, ["<math><mi>x</mi><mo>∮</mo></math>"]) == {"∮"}


# ---------------------------------------------------------------- as text, as in a search

TYPED = {
    r"QK^\top / \sqrt{d_k}": "QKᵀ / √d_k",
    r"e^{-\infty} = 0": "e^−∞ = 0",
    r"\omega_m = b^{-2m/d}": "ω_m = b^(−2m/d)",
    r"q_1 k_1 + \dots + q_{d_k} k_{d_k}": "q₁ k₁ + … + q_(d_k) k_(d_k)",
    r"\sqrt[4]{64} \approx 10{,}000\; \frac{5}{11} \log 8": "⁴√64 ≈ 10,000 5/11 log 8",
}


def test_a_formula_is_typed_as_one_would():
    assert {tex: mathml.as_text(tex) for tex in TYPED} == TYPED
