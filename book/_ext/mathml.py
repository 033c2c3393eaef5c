"""Formulas as MathML, written at build: they are there with the text, before any script.

``latex2mathml`` reads the TeX. What it writes is put right for MathML Core, which browsers set:
operators that it takes for letters, the space around the name of a function, named spaces, boxes.
Only words whose setting was looked at are known, those of ``WORDS`` and ``ENVIRONMENTS``: any other
is an error of the strict build, and so is what is unfinished, such as a fraction of one part.
"""

import html
import re
import unicodedata
from collections.abc import Iterator
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from docutils import nodes
from latex2mathml.converter import convert_to_element
from latex2mathml.symbols_parser import convert_symbol
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

GREEK = """alpha beta gamma delta epsilon varepsilon zeta eta theta kappa lambda mu nu xi pi rho
sigma tau phi varphi chi psi omega Gamma Delta Theta Lambda Pi Sigma Phi Psi Omega"""
WORDS = {
    *GREEK.split(),
    *"text operatorname sqrt frac tfrac overline bar tilde hat left right big bigl bigr".split(),
    *"cos sin tanh log ln exp max min sum prod partial infty ell top nabla mathbb".split(),
    *"cdot pm times odot approx sim mid ne le ge in to leftarrow lVert rVert lfloor rfloor".split(),
    *"dots ldots cdots quad qquad begin end cr".split(),
    *", ; ! \\ { }".split(),
}
ENVIRONMENTS = {"align*", "cases", "pmatrix"}
INSIDE = {"align": "align*", "aligned": "align*"}  # the same without numbers
SCRIPTS = dict.fromkeys(("msub", "msup", "munder", "mover"), 2) | {"msubsup": 3, "munderover": 3}
PARTS = SCRIPTS | {"mfrac": 2}
ORDINARY = set("∂∞⊤∇…⋯ℓ%")
PRIMES = ("′", "″")  # set like letters
INSTEAD = {"·": "⋅", "~": "∼"}
PAIRS = {"⌊": "prefix", "⌋": "postfix"}
THIN = "0.1667em"
SIGNS, CLOSE = ("−", "+", "±"), (")", "]", "}", "⌋")
SPACES = {"thinmathspace": THIN, "negativethinmathspace": f"-{THIN}", "thickmathspace": "0.2778em"}
ROWS = {"math", "mrow", "mtd", "msqrt", "mstyle"}
_TAG = re.compile(r"\\tag\{([^{}]*)\}")
_BOXED = re.compile(r"(?s)\\boxed\{(.*)\}")
_WORD = re.compile(r"\\(?:([A-Za-z]+)|(.))")
_ENVIRONMENT = re.compile(r"\\(begin|end)\{([^{}]*)\}")
_DOTS = re.compile(r"\\dots(?=\s*[-+=<>])")  # between operators they are raised, as in amsmath


def to_mathml(tex: str, *, display: bool = False) -> str:
    """A formula without tag and box as MathML.

    Raises:
        ValueError: a word or an environment that is not known, or a formula that is not finished.
    """
    source = " ".join(tex.split())
    inner = _ENVIRONMENT.sub(lambda m: rf"\{m[1]}{{{INSIDE.get(m[2], m[2])}}}", source)
    inner = _DOTS.sub(r"\\cdots", inner)
    _refuse(inner)
    how = "block" if display else "inline"
    try:
        math = convert_to_element(inner, display=how)
    except Exception as error:
        raise ValueError(f"{source!r} cannot be read: {error!r}") from error
    for part in math.iter():
        _put_right(part)
        if len(part) != PARTS.get(part.tag, len(part)) or re.search(r"[\\{}&$]", _loose(part)):
            raise ValueError(f"{source!r} is not finished")
    for part in [*math.iter()]:
        _lay_out(part)
    for row in [part for part in math.iter() if part.tag in ROWS]:
        _space(row)
    for whole in [part for part in math.iter() if part.tag in SCRIPTS]:
        for operator in [one for script in whole[1:] for one in script.iter("mo")]:
            operator.attrib |= {"lspace": "0", "rspace": "0"}  # as TeX does in small type
    math.attrib = {"alttext": source} | ({"display": how} if display else {})
    math[:] = list(math[0])  # the one row in which all stands
    return ElementTree.tostring(math, "unicode", short_empty_elements=False)


def _refuse(tex: str) -> None:
    """Say what is not known, and a brace too many or too few."""
    words = [word or sign for word, sign in _WORD.findall(tex)]
    unknown = [f"\\{word}" for word in words if word not in WORDS and word.strip()]
    unknown += [name for _, name in _ENVIRONMENT.findall(tex) if name not in ENVIRONMENTS]
    if unknown:
        raise ValueError(f"{tex!r} has {', '.join(unknown)}, which book/_ext/mathml.py lacks")
    bare = re.sub(r"\\.", "", tex)
    if bare.count("{") != bare.count("}"):
        raise ValueError(f"the braces of {tex!r} do not match")


def _loose(part: Element) -> str:
    """The text of a part, unless it may hold anything."""
    fence = part.tag == "mo" and part.text in ("{", "}")
    return "" if fence or part.tag == "mtext" else part.text or ""


def _put_right(part: Element) -> None:
    """What stands in a part, as MathML Core has it."""
    text = part.text = html.unescape(part.text or "") or None
    part.attrib = {key: SPACES.get(value, value) for key, value in part.items()}
    if part.tag not in ("mi", "mo") or not text:
        return
    part.text = INSTEAD.get(text, text)
    if text == "/":
        part.attrib = {"lspace": "0", "rspace": "0"}
    if len(text) > 1 and text.isalpha():
        part.tag, part.attrib = "mi", {}  # a function
    elif text in ORDINARY:
        part.tag, part.attrib = "mi", {}
    elif unicodedata.category(text)[0] in "PS":
        part.tag = "mo"
        part.attrib |= {"form": PAIRS[text], "stretchy": "false"} if text in PAIRS else {}


def _lay_out(part: Element) -> None:
    """A prime as large as fonts draw it, and a bar as long as what is below it."""
    if part.tag in ("msup", "msubsup") and part[-1].text in PRIMES:
        primed = Element("mrow")
        primed.extend([part[0], Element("mo", lspace="0", rspace="0")])
        primed[1].text = part[-1].text
        part.tag, part[:] = ("msub", [primed, part[1]]) if len(part) == 3 else ("mrow", primed)
    elif part.tag == "mover" and part[1].text in ("―", "¯"):
        part.tag, part[:] = "mrow", [part[0]]
        part.set("class", "overline")
    elif part.tag == "mover" and part[1].text == "∼":
        part[1].text = "~"


def _function(part: Element) -> bool:
    """Whether it is the name of a function, with what stands at its corners."""
    while part.tag in ("msub", "msup", "msubsup", "munder"):
        part = part[0]
    return part.tag == "mi" and len(part.text or "") > 1


def _space(row: Element) -> None:
    """Set functions apart, signs not; and tell the bars that open from those that close."""
    parts, opened = list(row), False
    for bar in [part for part in parts if part.tag == "mo" and part.text in ("‖", "|")]:
        bar.attrib = {"form": "postfix" if opened else "prefix", "stretchy": "false"}
        opened = not opened
    for at, part in reversed([*enumerate(parts)]):
        before, after = parts[:at][-1:], parts[at + 1 :][:1]
        if part.text in SIGNS and before and before[0].tag == "mo" and before[0].text not in CLOSE:
            part.set("form", "prefix")  # of a number, between nothing
        if _function(part):
            if after and after[0].tag not in ("mo", "mspace"):
                row.insert(at + 1, Element("mspace", width=THIN))
            if before and before[0].tag not in ("mo", "mspace") and not _function(before[0]):
                row.insert(at, Element("mspace", width=THIN))


# ---------------------------------------------------------------- the same as text

_TOKEN = re.compile(r"(?s)\\[A-Za-z]+|\\.|.")
_BLANK = dict.fromkeys(("left", "right", "big", "bigl", "bigr", "!"), "")
_BLANK |= dict.fromkeys((",", ";", "quad", "qquad"), " ")
_CORNERS = {
    "^": str.maketrans("0123456789⊤", "⁰¹²³⁴⁵⁶⁷⁸⁹ᵀ"),
    "_": str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"),
}
_ABOVE = {"overline": "\u0304", "bar": "\u0304", "tilde": "\u0303", "hat": "\u0302"}


def as_text(tex: str) -> str:
    """A formula of one line as one would type it, for where no formula can be set."""
    return " ".join(_typed(iter(_TOKEN.findall(tex)), "").split())


def _typed(tokens: Iterator[str], end: str) -> str:
    """What is typed for the tokens up to the one that ends them."""
    text = ""
    for sign in tokens:
        if sign == end:
            break
        text += _one(sign, tokens)
    return text


def _one(sign: str, tokens: Iterator[str]) -> str:
    """What is typed for a sign and the arguments that it takes."""
    word = sign.removeprefix("\\")
    if sign == "{":
        return _typed(tokens, "}")
    if sign in _CORNERS:
        inside = _argument(tokens)
        small = inside.translate(_CORNERS[sign])
        return sign + _whole(inside, r"[^\W_]") if set(inside) & set(small) else small
    if word in ("text", "operatorname"):
        return _argument(tokens)
    if word in ("frac", "tfrac"):
        return f"{_whole(_argument(tokens))}/{_whole(_argument(tokens))}"
    if word == "sqrt":
        first = _argument(tokens)
        root = _typed(tokens, "]").translate(_CORNERS["^"]) if first == "[" else ""
        return f"{root}√{_whole(_argument(tokens) if root else first)}"
    if word in _ABOVE:
        return _argument(tokens) + _ABOVE[word]
    if word == sign:
        return sign.replace("-", "−")
    code = convert_symbol(sign)
    return _BLANK.get(word, chr(int(code, 16)) if code else word)  # such as a function


def _argument(tokens: Iterator[str]) -> str:
    return _one(next(sign for sign in tokens if sign.strip()), tokens)


def _whole(text: str, letter: str = r"\w") -> str:
    """In parentheses, unless it is read as one thing without."""
    return (
        text
        if len(text) == 1 or re.fullmatch(f"−?({letter}|[∞⊤\u0302-\u0304])+", text)
        else f"({text})"
    )


# ---------------------------------------------------------------- the renderer


def displayed(tex: str) -> str:
    """A formula on lines of its own, with its box, and its number at the right."""
    number = _TAG.search(tex)
    tex = _TAG.sub("", tex).strip()
    boxed = _BOXED.fullmatch(tex)
    text = to_mathml(boxed[1] if boxed else tex, display=True)
    text = f'<span class="boxed">{text}</span>' if boxed else text
    if number is None:
        return f'<div class="math notranslate">{text}</div>\n'
    beside = f'<span class="eqno">({number[1]})</span>'
    return f'<div class="math notranslate" id="formula-{number[1]}">{text}{beside}</div>\n'


def _set(self: HTML5Translator, node: nodes.math | nodes.math_block) -> None:
    """A formula; one that cannot be set is an error, and shown as code."""
    tex, display = node.astext(), isinstance(node, nodes.math_block)
    try:
        text = (
            displayed(tex) if display else f'<span class="math notranslate">{to_mathml(tex)}</span>'
        )
    except ValueError as error:
        logging.getLogger(__name__).warning("%s", error, location=node)
        text = f'<span class="math"><code>{html.escape(tex)}</code></span>'
    self.body.append(text)
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict:
    """Register with Sphinx."""
    app.add_html_math_renderer("mathml", (_set, None), (_set, None))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
