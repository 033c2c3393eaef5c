"""Turn block quotes that open with a bold label into boxes.

In the notebooks a callout is ordinary Markdown, ``> **Note.** …``, so that it reads well in
Colab and on code hosts too; only the HTML shows a coloured box.
"""

import re

from docutils import nodes
from sphinx.application import Sphinx

# label -> the theme's kind of box, and ours
KINDS = {
    "Note": "note",
    "Warning": "warning",
    "Misconception": "warning",
    "Proof": "seealso proof",
    "On paper": "tip paper",
    "Exercise": "exercise",
}
_LABEL = re.compile(rf"^({'|'.join(KINDS)})( [\d.]*\d)?\.$")


def box(quote: nodes.block_quote) -> nodes.admonition | None:
    """The box for a block quote, or None where it opens with no known label."""
    paragraph = quote.children[0] if quote.children else None
    if not isinstance(paragraph, nodes.paragraph):
        return None
    opening = [node for node in paragraph.children if node.astext().strip()][:1]
    if not opening or not isinstance(opening[0], nodes.strong):
        return None
    label = _LABEL.match(opening[0].astext())
    if label is None:
        return None
    paragraph.remove(opening[0])
    title = nodes.title("", label.group(0)[:-1])
    return nodes.admonition("", title, *quote.children, classes=KINDS[label.group(1)].split())


def _replace(app: Sphinx, doctree: nodes.document) -> None:
    for quote in list(doctree.findall(nodes.block_quote)):
        made = box(quote)
        if made is not None:
            quote.replace_self(made)


def setup(app: Sphinx) -> dict:
    """Register with Sphinx."""
    app.connect("doctree-read", _replace)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
