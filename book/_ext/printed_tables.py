"""What a cell prints as a table is a table on its page: headed, aligned, and scrolled where wide.

The notebook keeps the text, which nbval compares. A cell with ``"table": true`` in its metadata
prints a table: one line of headings, then the rows, with at least two spaces between columns. An
empty line parts it from whatever else the cell prints, which stays text.
"""

import html
import re
from itertools import pairwise

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging

_ONE = r"[-+−±]?(?:\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?%?|inf|nan|NaN)"
NUMBER = re.compile(rf"{_ONE}(?: ?(?:-|–|to|±) ?{_ONE})?")


def parts(text: str) -> list[str | list[list[str]]]:
    """What is printed between empty lines: the rows of a table, headings first, or plain text."""
    blocks = re.split(r"\n(?:[^\S\n]*\n)+", text.strip("\n"))
    return [columns(block.splitlines()) or block for block in blocks if block]


def columns(lines: list[str]) -> list[list[str]]:
    """The cells of each line, if there are at least two lines, and two columns in all of them."""
    width = max(map(len, lines))
    padded = [line.ljust(width) for line in lines]
    blank = "".join(" " if set(column) == {" "} else "x" for column in zip(*padded, strict=True))
    starts = [found.start() for found in re.finditer("x+(?: x+)*", blank)]
    rows = [[line[a:b].strip() for a, b in pairwise([*starts, width])] for line in padded]
    return rows if len(rows) > 1 and len(starts) > 1 else []


def numeric(column: list[str]) -> bool:
    """Whether numbers stand below a heading, and nothing else but dashes, for what there is not."""
    found = [cell for cell in column[1:] if cell not in ("", "–")]
    return bool(found) and all(map(NUMBER.fullmatch, found))


def faults(text: str) -> list[str]:
    """What keeps a text from being a table, or from being read as the one that is meant."""
    found = [part for part in parts(text) if not isinstance(part, str)]
    wrong = [] if found else ["no line of headings with rows below, two spaces between columns"]
    for heads, *rows in found:
        wrong += [
            f"column {n} has no heading" for n, head in enumerate(heads, 1) if n > 1 and not head
        ]
        for head, *cells in zip(heads, *rows, strict=True):
            counted = {len(cell.split()) for cell in cells}
            several = all(re.fullmatch(rf"{_ONE}(?:\s+{_ONE})+", cell) for cell in cells)
            merged = "  " in head or (several and len(counted) == 1)
            wrong += [f"{head!r}: columns run into each other"] * merged
    return wrong


def markup(rows: list[list[str]], number: int) -> str:
    """A table that scrolls inside its box, which the keyboard reaches and a name tells apart."""
    kinds = [' class="number"' * numeric(column) for column in zip(*rows, strict=True)]
    written = []
    for n, row in enumerate(rows):
        cells = []
        for at, (text, kind) in enumerate(zip(row, kinds, strict=True)):
            scope = "" if not text else ' scope="col"' if n == 0 else ' scope="row"' * (at == 0)
            tag = "th" if scope else "td"
            shown = html.escape(text)
            if scope and len(text) > 10:  # on a phone, a long name has two lines
                shown = shown.replace("_", "_<wbr>")
            cells.append(f"<{tag}{scope}{kind}>{shown}</{tag}>")
        written.append(f"<tr>{''.join(cells)}</tr>")
    name = html.escape(f"Table {number}: {', '.join(filter(None, rows[0]))}")
    return (
        f'<div class="printed-table" role="region" aria-label="{name}" tabindex="0"><table>\n'
        f"<thead>{written[0]}</thead>\n<tbody>\n"
        + "\n".join(written[1:])
        + "\n</tbody></table></div>"
    )


class PrintedTables(SphinxPostTransform):
    """Put tables in the place of what marked cells print."""

    default_priority = 210  # after the cells are folded
    formats = ("html",)

    def run(self, **kwargs: object) -> None:
        """Replace the outputs."""
        number = 0
        for cell in self.document.findall(nodes.container):
            if not cell.get("cell_metadata", {}).get("table"):
                continue
            for block in [
                one for one in cell.findall(nodes.literal_block) if "output" in one["classes"]
            ]:
                for fault in faults(block.astext()):
                    logging.getLogger(__name__).warning("a table: %s", fault, location=cell)
                shown = []
                for part in parts(block.astext()):
                    if isinstance(part, str):
                        shown.append(plain := block.copy())
                        plain.rawsource = part  # or it is not set as code
                        plain += nodes.Text(part)
                    else:
                        number += 1
                        shown.append(nodes.raw("", markup(part, number), format="html"))
                block.parent.replace(block, shown)


def setup(app: Sphinx) -> dict:
    """Register with Sphinx."""
    app.add_post_transform(PrintedTables)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
