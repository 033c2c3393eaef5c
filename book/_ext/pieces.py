"""Small things that HTML needs and Markdown cannot say: lines that may be continued, and marks.

Every line of code and output becomes an element, so that a phone may continue it on the next with
a mark, as a stylesheet decides by its length; a formula keeps the comma behind it; Chinese words
say that they are Chinese; and a ✓ stands at the output of a cell that compares something.
"""

import ast
import re
from html import unescape

from docutils import nodes
from sphinx.application import Sphinx

COMPARING = {"allclose", "isclose", "equal", "array_equal"}
MEANING = (
    "The code above asserts, or says whether two results agree. "
    "It was run again before this page was built."
)
_MARK = f'<p class="compared"><span title="{MEANING}">✓ compared</span></p>'
_BLOCK = re.compile(r"(?s)<pre>(?:<span></span>)?(.*?)\n?</pre>")
_HAN = re.compile(
    r"[\u3400-\u9fff\uf900-\ufaff][\u3000-\u303f\u3400-\u9fff\uf900-\ufaff\uff00-\uff60]*"
)
_TOGETHER = re.compile(
    r'(\(?<span class="math[^>]*>[^<]*</span>(?:[.,;:!?)\]’”]|-\w+)+)'  # also "n-th"
)
PHONE = 53  # columns that a phone shows at 10.5 px


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


def body(html: str) -> str:
    """The text of a page with all of these."""
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
        context["body"] = body(context["body"])


def setup(app: Sphinx) -> dict:
    """Register with Sphinx."""
    app.connect("doctree-read", _mark)
    app.connect("html-page-context", _write)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
