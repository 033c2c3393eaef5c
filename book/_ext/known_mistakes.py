"""``{known-mistakes}``: each mistake that ``attn_check`` knows, written from the words it reports.

A directive for each part of the page names the mistakes that begin it: the part runs as far as
the mistake where the next one begins, so that a new row of the table is on the page by itself.
"""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

WORDS = Path(__file__).parents[2] / "attn_check" / "mistakes.json"
# code in a text: words with signs, names, what an operator joins, a whole statement
SIGN = re.compile(r"[()\[\]_=@~|&<>…]|\w\.\w|^\.\w|^\.\.\.$|^-\w")
JOINERS = {"before", "without"}
NAMES = {"None", "clamp", "def", "detach", "flip", "k", "q", "tanh", "tril", "triu", "v"}
OPERATOR = re.compile(r"[-=/*@+<>&|!%−]+")
STATEMENT = re.compile(r"(?:if|for|return|def|(?:\w, )+\w) .*?(?=, or | before |; |$)|(?:\w, )+\w$")
LABELS = {"look_for": "Look for", "repair": "Repair"}


def between(words: dict[str, dict], first: str, until: str | None) -> dict[str, dict]:
    """The rows from one mistake up to another, or to the end of the table."""
    ids = list(words)
    for name in (first, until):
        if name is not None and name not in words:
            raise ValueError(f"no mistake is called {name!r}")
    chosen = ids[ids.index(first) : None if until is None else ids.index(until)]
    if not chosen:
        raise ValueError(f"{until!r} stands before {first!r} in the table")
    return {name: words[name] for name in chosen}


def described(row: dict[str, str]) -> list[nodes.Node]:
    """What is likely, the line to look for and its repair."""
    body = [nodes.paragraph("", row["likely"])]
    for key, label in LABELS.items():
        body.append(nodes.paragraph("", "", nodes.strong("", f"{label}: "), *marked(row[key])))
    return body


def marked(words: str) -> list[nodes.Node]:
    """Words and code, each set as what it is."""
    return [nodes.literal(part, part) if code else nodes.Text(part) for part, code in pieces(words)]


def pieces(words: str) -> list[tuple[str, bool]]:
    """Parts of a text, and whether they are code: as they say, or by the signs in their words."""
    if "`" in words:
        return [(part, n % 2 == 1) for n, part in enumerate(words.split("`")) if part]
    first, semicolon, rest = words.partition("; ")
    if semicolon:
        return [*pieces(first), (semicolon, False), *pieces(rest)]
    whole = STATEMENT.match(words)
    found = [(whole[0], True)] if whole else []
    for bare, end, code in _words(words[whole.end() if whole else 0 :]):
        joined = found and found[-1][1] and code
        found += [(" ", False)] if found and bare and not joined else []
        found.append((f"{found.pop()[0]} {bare}" if joined else bare, code))
        found += [(end, False)] if end else []
    return [
        ("".join(part for part, _ in group), code)
        for code, group in itertools.groupby(found, key=lambda one: one[1])
    ]


def _words(text: str) -> Iterator[tuple[str, str, bool]]:
    """Each word, or what stands in brackets; the sign behind it; whether it is code."""
    depth, found = 0, [""]
    for letter in text.strip():
        depth += (letter in "([{") - (letter in ")]}")
        found += [""] if letter == " " and not depth else []
        found[-1] += letter.strip() or " " * bool(depth)
    parts = [re.fullmatch(r"(.*?(?:\.\.\.)?)([.,;:]?)", word).groups() for word in found]
    joins = [False, *(OPERATOR.fullmatch(word) is not None for word, _ in parts), False]
    for n, (word, end) in enumerate(parts):
        joined = joins[n] or joins[n + 1] or (joins[n + 2] and not end and word not in JOINERS)
        yield word, end, bool(joined or word in NAMES or SIGN.search(word))


def section(name: str, row: dict) -> nodes.section:
    """One mistake: its title, its words, those of its further forms, and who reported it."""
    title = row["name"][0].upper() + row["name"][1:]
    found = nodes.section("", nodes.title("", title), ids=[name.replace("_", "-")], names=[name])
    found += described(row)
    further = {form["name"]: {**row, **form} for form in row.get("words", {}).values()}
    for other, form in further.items():
        found += [nodes.paragraph("", "", nodes.emphasis("", f"Or {other}.")), *described(form)]
    link = nodes.reference("", row["source"].partition("://")[2], refuri=row["source"])
    reported = nodes.literal(name, name)
    found += nodes.paragraph("", "", reported, nodes.Text(" · reported or explained at "), link)
    return found


class KnownMistakes(SphinxDirective):
    """``{known-mistakes} FIRST [UNTIL]``: a section for each mistake from FIRST up to UNTIL."""

    required_arguments, optional_arguments = 1, 1

    def run(self) -> list[nodes.Node]:
        """Sections; a mistake that is not in the table is an error of the build."""
        self.env.note_dependency(str(WORDS))
        try:
            rows = between(json.loads(WORDS.read_text()), *[*self.arguments, None][:2])
        except ValueError as fault:
            raise self.error(str(fault)) from None
        return [section(name, row) for name, row in rows.items()]


def setup(app: Sphinx) -> dict:
    """Register with Sphinx."""
    app.add_directive("known-mistakes", KnownMistakes)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
