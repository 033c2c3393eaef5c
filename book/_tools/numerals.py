"""The numbers that a reader sees in a text, in reading order, each in one spelling.

`1,000` and `1_000` are ``1000``, `−0.5` is ``-0.5``, `10⁻³` and `$10^{-3}$` are ``1e-3``, ⅞ is
``0.875``, `2 million` is ``2e6``, `57 %` is ``57%`` and means 57 hundredths.
"""

import html
import re
import unicodedata
from decimal import Decimal

_NUMBER = re.compile(
    r"(?:(?<![\w.)\]}])-|(?<![\w.]))"  # a sign belongs to the number, a minus between two does not
    r"((?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(\s?(?:%|per ?cent\b))?"
    r"(?!\.?\d)"  # not a part of a version, 2.13.0
)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_POWER = re.compile(
    r"(?:(\d[\d.]*)\s*(?:·|×|\\cdot|\\times)\s*)?(?<![\w.])10(?:\^\{?(-?\d+)\}?|(⁻?[⁰¹²³⁴-⁹]+))"
)
# what names a place or a model: chapter 3, formula (1.1), Figure 2, Python 3.11; ViT-S/14
_PLACE = re.compile(
    r"\b(?:chapter|formula|section|figure|fig\.|exercise|solution|python)s?"
    r"\s+\(?[1-9]\d?(?:\.\d\d?)?\b\)?(?!\.?\d)",
    re.IGNORECASE,
)
_NAME = re.compile(r"\b(?=[\w/‑-]*[A-Z])[A-Za-z]\w*(?:[-‑/]\w+)+\b(?!\.\d)")  # ‑ does not break
_LARGE = {"thousand": "e3", "million": "e6", "billion": "e9"}
_MARKED = re.compile(r"(^```.*?^```|`[^`]+`|\$\$.*?\$\$|\$[^$]+\$)", re.MULTILINE | re.DOTALL)

_SMALL = "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
_PARTS = "third|quarter|fifth|sixth|seventh|eighth|ninth|tenth|twentieth|hundredth|thousandth"
_IN_WORDS = re.compile(
    r"\b(?:(?:thir|four|fif|six|seven|eigh|nine)teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty"
    rf"|(?<!\d\s)(?:hundred|[mb]illion|thousand)|(?:{_SMALL}|a|an)[\s-](?:{_PARTS})(?:s|(?=\sof))"
    rf"|(?:{_SMALL})\s(?:per ?cent|times\s(?=as\b|more\b|less\b|\w+er\b))"
    rf"|(?:zero|nought|{_SMALL})\spoint)\b",
    re.IGNORECASE,
)


def numbers(text: str) -> list[str]:
    """The numbers of a line that was printed, or of any text without markup."""
    text = re.sub("[−–]", "-", text.replace("{,}", ",").replace("\\%", "%"))
    text = _POWER.sub(lambda m: f"{m[1] or 1}e{int(m[2] or m[3].translate(_SUPERSCRIPTS))}", text)
    text = re.sub(r"(\d*)([¼-¾⅐-⅞])", _fraction, text)
    # thousands, 1,000 or 10_000 or with a narrow space, and 7x7
    text = re.sub(r"(?<=\d)[,_\u00a0\u2009\u202f](?=\d{3}(?!\d))", "", text)
    text = re.sub(r"(?<=\d)x(?=\d)", "×", text)
    text = re.sub(r"(?<=\d)\s(thousand|million|billion)\b", lambda m: _LARGE[m[1]], text)
    return [
        m[0].removesuffix(m[2] or "").rstrip(".") + "%" * bool(m[2]) for m in _NUMBER.finditer(text)
    ]


def _fraction(match: re.Match) -> str:
    return f"{int(match[1] or 0) + unicodedata.numeric(match[2]):g}"


def value(number: str) -> Decimal:
    """What a number of `numbers` is worth: with its sign, and 57 % as 0.57."""
    return Decimal(number.removesuffix("%")) / (100 if number.endswith("%") else 1)


def same(number: str, there: str) -> bool:
    """Whether a number in a text is what is printed: 57 % where there is 57 %, 0.57 or 57."""
    bare = number.removesuffix("%")
    percent = number != bare and "%" not in there and value(bare) == value(there)
    return (percent and abs(value(bare)) >= 1) or value(number) == value(there)


def numbers_in_markdown(text: str) -> list[str]:
    """The numbers that a Markdown text states: emphasised, in code, in formulas, in headings too.

    Left out are addresses, the year in a link such as `[Ba (2016)](…)`, numbers of a link's text
    that stand in its address, places such as `chapter 3`, names such as `ViT-S/14`, versions; and
    one digit in code or a formula that holds letters, where it is algebra.
    """
    return [number for part, marked in _parts(text) for number in _stated(part, marked)]


def in_words(text: str) -> list[str]:
    """Results that a Markdown text writes as words; up to twelve may be a plain count."""
    return [m[0] for part, marked in _parts(text) if not marked for m in _IN_WORDS.finditer(part)]


def _parts(text: str) -> list[tuple[str, bool]]:
    """The text, cut where code and formulas begin and end; True for these."""
    text = re.sub(r"\[([^]]*)\]\(([^)\s]*)\)", _link, html.unescape(text))
    text = re.sub(r"https?://[^\s`]+|\[\^\w+\]|\\tag\{[^}]*\}|\b\d\d_[a-z]\w*", " ", text)
    text = re.sub(r"^\s*(?:> ?)*\d+[.)] ", " ", text, flags=re.MULTILINE)  # a numbered list
    return [(part, bool(n % 2)) for n, part in enumerate(_MARKED.split(text))]


def _link(match: re.Match) -> str:
    text, address = match.groups()
    if "://" in address:
        text = re.sub(r"\(\d{4}[a-z]?\)", " ", text)
    named = {int(number) for number in re.findall(r"\d+", address)}
    return re.sub(
        r"(?<![\w.-])\d+(?![\w%]|\.\d)", lambda m: "" if int(m[0]) in named else m[0], text
    )


def _stated(part: str, marked: bool) -> list[str]:
    if not marked:
        part = re.sub(r"(?<!\d)\*+|\*+(?!\d)|(?<!\w)_+|_+(?!\w)", "", part)  # emphasis
        return numbers(_NAME.sub(" ", _PLACE.sub(" ", part)))
    if part.startswith("$"):
        part = re.sub(r"(?<!10)[\^_]\{?-?\d+\}?", " ", part)  # exponents, indices
    found = numbers(part.strip("`$"))
    algebra = re.search(r"[A-Za-z=\\]", re.sub(r"10\^|\\(cdot|times|%)", "", part))
    return [number for number in found if len(number.strip("-%")) > 1 or not algebra]
