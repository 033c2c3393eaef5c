"""``{scoreboard} PART``: what the record of all causal models says, as tables and lists.

The record is written by ``book/_tools/scoreboard.py``; what explains a row, by hand, in
``scoreboard_notes.json``.
"""

import json
from pathlib import Path
from typing import Any

from docutils import nodes
from printed_tables import markup
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

RECORD = Path(__file__).parents[2] / "attn_lib" / "data" / "scoreboard.json"
NOTES = Path(__file__).with_name("scoreboard_notes.json")
START = "packing: restarted positions"


def _padding(side: str) -> dict[str, list[str]]:
    found = {}
    for words, ways in (
        ("with positions", ["mask and positions"]),
        ("mask alone", ["mask alone", ""]),
    ):
        for cached in ("off", "on"):
            ends = [", ".join(filter(None, [way, f"cache {cached}"])) for way in ways]
            titles = [f"{side} padding: {end}" for end in ends]
            if cached == "off":  # of a model that has no cache
                titles += [f"{side} padding: {way}".removesuffix(": ") for way in ways]
            found[f"{side}, {words}{', cache' * (cached == 'on')}"] = titles
    return found


# of each table the columns: a heading, and the names that this way of calling has in the record
TABLES: dict[str, dict[str, list[str]]] = {
    "packing": {
        "cache off": [f"{START}, cache off", START],
        "default call": [f"{START}, the default call"],
        "mask of ones": [f"{START}, mask of ones"],
        "4-D mask": ["packing: 4-D mask"],
        "cu_seq_lens": ["packing: cu_seq_lens"],
    },
    "left": _padding("left"),
    "right": _padding("right"),
    "cache": {
        "cache": ["cache"],
        "chunks": ["chunks"],
        "causal": ["causal"],
        "repeat": ["repeat"],
    },
    "rows": {
        "rows": ["batch: cache off", "batch"],
        "rows, cache": ["batch: cache on"],
        "other kernel": ["kernel: eager, not sdpa", "kernel: sdpa, not eager"],
        "bfloat16": ["dtype: bfloat16"],
        "float16": ["dtype: float16"],
    },
}
SHORT = {"holds": "same", "refuses": "refuses", "not checked": "unchecked"}


def judged(board: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """From types to their cells, by way of calling."""
    return {
        name: dict(zip(board["ways"], row["cells"], strict=True))
        for name, row in board["types"].items()
        if "cells" in row
    }


def cell(row: dict[str, Any], titles: list[str]) -> Any:
    """What is recorded of the first of these ways; None where there is none."""
    return next((row[title] for title in titles if row.get(title) is not None), None)


def shown(found: Any) -> str:
    """A cell as the page has it: (2.1) where what is beside the text was tried, and not seen."""
    if not isinstance(found, list):
        return SHORT.get(found, "–")
    size = f"{found[0]:.2g}"
    return f"({size})" if found[2] is False else size


def table(board: dict[str, Any], part: str) -> list[list[str]]:
    """Headings, and a row for each type."""
    columns = TABLES[part]
    rows = judged(board).items()
    return [
        ["type", *columns],
        *([name, *(shown(cell(row, titles)) for titles in columns.values())] for name, row in rows),
    ]


def counts(board: dict[str, Any]) -> list[list[str]]:
    """Of each way of calling, how many types give the same, and how many do not."""
    rows = [["way of calling", "same", "changes", "of these seen", "refuses", "–"]]
    for part, columns in TABLES.items():
        for heading, titles in columns.items():
            found = [cell(row, titles) for row in judged(board).values()]
            if heading in ("other kernel", "bfloat16", "float16"):
                continue
            changes = [one for one in found if isinstance(one, list)]
            numbers = [
                found.count("holds"),
                len(changes),
                sum(one[2] is True for one in changes),
                found.count("refuses"),
            ]
            name = f"packed: {heading}" if part == "packing" else heading
            rows.append([name, *map(str, [*numbers, len(found) - sum(numbers) + numbers[2]])])
    return rows


def leaking(board: dict[str, Any]) -> dict[str, list]:
    """The types whose packed documents see each other although positions restart, cache off."""
    found = {name: cell(row, TABLES["packing"]["cache off"]) for name, row in judged(board).items()}
    return {name: one for name, one in found.items() if isinstance(one, list) and one[2]}


def reasons(board: dict[str, Any]) -> dict[str, list[str]]:
    """From the reason why a type could not be judged to the types."""
    found: dict[str, list[str]] = {}
    for name, row in board["types"].items():
        if "reason" in row:
            found.setdefault(row["reason"], []).append(name)
    return found


def refusals(board: dict[str, Any]) -> dict[tuple[str, str], list[str]]:
    """From the ways of calling that types refuse, and what they say, to the types.

    Without kernels and half precision, of which there are no verdicts.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for name, row in board["types"].items():
        said: dict[str, list[str]] = {}
        for way, text in row.get("words", {}).items():
            if not way.startswith(("kernel", "dtype")):
                said.setdefault(text, []).append(way)
        for text, ways in said.items():
            found.setdefault((" and ".join(ways), text), []).append(name)
    return found


def _quoted(text: str) -> nodes.Node:
    """Words of a model, whose quotation marks stay as they are."""
    return nodes.inline(text, text, support_smartquotes=False)


def _code(names: list[str]) -> list[nodes.Node]:
    parts = [[nodes.Text(", "), nodes.literal(name, name)] for name in names]
    return [node for part in parts for node in part][1:]


def _items(lines: list[list[nodes.Node]]) -> list[nodes.Node]:
    items = (nodes.list_item("", nodes.paragraph("", "", *line)) for line in lines)
    return [nodes.bullet_list("", *items)]


def described(board: dict[str, Any], notes: dict[str, dict], part: str) -> list[nodes.Node]:
    """The nodes of a part of the page."""
    if part in (*TABLES, "counts"):
        rows = counts(board) if part == "counts" else table(board, part)
        return [nodes.raw("", markup(rows, 1 + ["counts", *TABLES].index(part)), format="html")]
    if part == "leaks":
        found = leaking(board)
        return [node for note in notes["leaks"] for node in _cause(note, found)]
    if part == "notes":
        lines = [[*_code(note["types"]), nodes.Text(": "), *_said(note)] for note in notes["cache"]]
        return _items(lines)
    if part == "reasons":
        found = sorted(reasons(board).items(), key=lambda pair: -len(pair[1]))
        lines = []
        for reason, names in found:
            lines.append([*_code(names), nodes.Text(": "), _quoted(reason)])
        return _items(lines)
    if part == "refusals":
        lines = []
        for (ways, text), names in refusals(board).items():
            lines.append([*_code(names), nodes.Text(f" ({ways}): "), _quoted(text)])
        return _items(lines)
    if part == "made":
        words = (
            f"Made on {board['date']} with transformers {board['transformers']} and torch "
            f"{board['torch']}: of {len(board['types'])} types {len(judged(board))} are judged. "
            "The command is "
        )
        return [nodes.paragraph("", words, nodes.literal("", board["command"]), nodes.Text("."))]
    raise ValueError(f"the scoreboard has no part {part!r}")


def _cause(note: dict[str, Any], found: dict[str, list]) -> list[nodes.Node]:
    """Why documents see each other, and in which types how far."""
    types: list[nodes.Node] = []
    for name, (size, flips, _) in found.items():
        if name in note["types"]:
            comma = nodes.Text(", " if types else "")
            types += [comma, nodes.literal(name, name), nodes.Text(f" {size:.2g} ({flips:.0%})")]
    told = nodes.paragraph("", "", nodes.strong("", note["title"]), nodes.Text(" "), *_said(note))
    return [told, nodes.paragraph("", "", *types, nodes.Text("."))]


def _said(note: dict[str, Any]) -> list[nodes.Node]:
    if not note["source"]:
        return [nodes.Text(note["text"])]
    link = nodes.reference("", note["name"], refuri=note["source"])
    return [nodes.Text(f"{note['text']} ("), link, nodes.Text(")")]


class Scoreboard(SphinxDirective):
    """``{scoreboard} PART``: counts, leaks, a table, notes, reasons, refusals or made."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Nodes; a part that is unknown is an error of the build."""
        for path in (RECORD, NOTES):
            self.env.note_dependency(str(path))
        board, notes = (json.loads(path.read_text()) for path in (RECORD, NOTES))
        try:
            return described(board, notes, self.arguments[0])
        except ValueError as fault:
            raise self.error(str(fault)) from None


def setup(app: Sphinx) -> dict:
    """Register with Sphinx."""
    app.add_directive("scoreboard", Scoreboard)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
