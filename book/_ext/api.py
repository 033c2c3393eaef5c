"""What the pages of the reference show beyond the docstrings, which stay plain text for ``help``.

A module begins with a table of its names. "the page on masks" is a link to that page, by its
title; a name of PyTorch in double backquotes, a link to its documentation; a formula that
``formulas.txt`` holds, set as a formula; parameters "as in" another function share a line.
"""

import inspect
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.ext.autodoc import ALL
from sphinx.util import logging

BOOK = Path(__file__).resolve().parents[1]
_TORCH = re.compile(r"``((?:torch|nn|F)\.[\w.]+\w)``")
_WHOLE = {"torch": "torch", "nn": "torch.nn", "F": "torch.nn.functional"}
# where a name is defined -> what its documentation calls that module
_PRIVATE = {
    r"^torch\.nn\.modules\.\w+\.": "torch.nn.",
    r"^torch\._C\.": "torch.",
    r"^matplotlib\.axes\._axes\.": "matplotlib.axes.",
}
_RETURNS = re.compile(r"(?m)^( *:(?:returns|Yields): )\*?([^*\n]*?)\*? -- ")
_ALIKE = re.compile(r"(\*\*\w+\*\*) -- ([^\n]*)\n *\* ((?:\*\*\w+\*\*(?:, )?)+) -- \2(?=\n|$)")


@cache
def pages_on() -> dict[str, str]:
    """What the docstrings call a page -> its file: 14_encoder_decoder is "encoder decoder"."""
    stems = [path.stem for path in BOOK.glob("*.ipynb")]
    return {re.sub(r"^\d+_", "", stem).replace("_", " "): stem for stem in stems}


@cache
def formulas() -> dict[str, str]:
    """A formula, as docstrings write it -> in TeX, in parts where it is long; the longest first."""
    lines = (BOOK / "_ext" / "formulas.txt").read_text().splitlines()
    found = dict(line.split("  =  ") for line in lines)
    return dict(sorted(found.items(), key=lambda item: -len(item[0])))


def linked(text: str) -> str:
    """A docstring, its pages and the names of PyTorch as links."""
    for words, stem in sorted(pages_on().items(), key=lambda item: -len(item[0])):
        phrase = words.replace(" ", r"(?:\s+and)?\s+")
        named = rf"(?i)\bthe\s+(?:book's\s+)?page\s+on\s+(?:the\s+)?{phrase}\b"
        text = re.sub(named, f":doc:`/book/{stem}`", text)

    def documented(name: re.Match) -> str:
        start, _, rest = name[1].partition(".")
        return f":py:obj:`{name[1]} <{_WHOLE[start]}.{rest}>`"

    return _TORCH.sub(documented, text)


def set_formulas(text: str) -> str:
    """A docstring, its formulas in TeX; what an example prints stays as it is."""
    plain = "|".join(map(re.escape, formulas()))
    formula = re.compile(rf"(?<![\w`])(?:{plain})(?![\w`])")
    lines = text.split("\n")
    for i, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            lines[i] = formula.sub(_in_tex, line)
    return "\n".join(lines)


def _in_tex(found: re.Match) -> str:
    """Between two parts, a line may end."""
    return " ".join(f":math:`{part}`" for part in formulas()[found[0]].split(" | "))


def merged(text: str) -> str:
    """Parameters of which the same is said, such as "as in …", on one line."""
    before = None
    while text != before:
        before, text = text, _ALIKE.sub(r"\1, \3 -- \2", text)
    return text


def public(module: Any, members: Any) -> list[str]:
    """The names that a page documents, in the order of the source."""
    if members is not ALL:
        return list(members)
    own = {n: o for n, o in vars(module).items() if getattr(o, "__module__", "") == module.__name__}
    return [name for name, thing in own.items() if name[0] != "_" and inspect.getdoc(thing)]


def table(names: list[str]) -> str:
    """Each name, with the first line of what is said of it."""
    rows = "\n".join(f"   {name}" for name in names)
    return f"\n.. autosummary::\n   :nosignatures:\n\n{rows}\n"


def _told(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    if re.fullmatch(r"Alias for field number \d+", " ".join(lines).strip()):
        lines.clear()  # of a named tuple; what its fields hold, its class says
    text = set_formulas(linked("\n".join(lines)))
    text = _RETURNS.sub(r"\1\2: ", merged(text))
    if lost := re.search(r"\bpages?\s+on\s+\w+", text):
        logging.getLogger(__name__).warning("%s: no such page: %s", name, lost[0])
    if what == "module" and (members := options.get("members")):
        summary, _, rest = text.partition("\n\n")
        text = f"{summary}\n{table(public(thing, members))}\n{rest}"
    lines[:] = text.split("\n")


def readable(signature: str) -> str:
    """A signature in which the default of a list is an empty one, which Sphinx can read."""
    return re.sub(r"(?<=\] = )<factory>", "[]", signature)


def _readable(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, signature: str, returned: str
) -> tuple[str, str] | None:
    return signature and (readable(signature), returned)


def _named_as_documented(app: Sphinx, env: Any, node: pending_xref, shown: nodes.Element) -> None:
    for private, documented in _PRIVATE.items():
        node["reftarget"] = re.sub(private, documented, node["reftarget"])


def _begin(app: Sphinx) -> None:
    """Every source page is written anew: Sphinx would keep one as long as its module's file."""
    shutil.rmtree(Path(app.outdir) / "_modules", ignore_errors=True)


def setup(app: Sphinx) -> dict:
    """Register with Sphinx."""
    app.connect("builder-inited", _begin)
    app.connect("autodoc-process-docstring", _told, priority=600)  # after napoleon
    app.connect("autodoc-process-signature", _readable)
    app.connect("missing-reference", _named_as_documented, priority=400)  # before intersphinx
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
