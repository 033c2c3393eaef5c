"""What stands in the line under a figure: its code, for the first also the set-up, and its reuse.

A notebook has the code of a figure above it, because it runs first. A reader of the page came for
the picture: here nothing stands between the opening and it, and code is a small grey word below.
"""

from docutils import nodes
from myst_nb.sphinx_ import HideCodeCellNode
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

SET_UP = "Set-up"  # the name of the folded cell that comes first


class UnderFigures(SphinxPostTransform):
    """Put the folded code of each figure, and before the first one the set-up, below it."""

    default_priority = 200  # right after the cells are folded
    formats = ("html",)

    def run(self, **kwargs: object) -> None:
        """Move what is folded."""
        set_up = None
        for cell in list(self.document.findall(nodes.container)):
            if cell.get("nb_element") != "cell_code":
                continue
            folded = next(iter(cell.findall(HideCodeCellNode)), None)
            if (figure := next(iter(cell.findall(nodes.figure)), None)) is not None:
                line = nodes.container(classes=["under-figure"])
                if folded is not None:
                    folded["prompt_show"] = folded["prompt_hide"] = "code"
                    cell.remove(folded)
                    line += folded
                if set_up is not None:
                    line.insert(0, set_up.children[0])
                    set_up.parent.remove(set_up)
                figure.parent.insert(figure.parent.index(figure) + 1, line)
            set_up = cell if folded is not None and folded["prompt_show"] == SET_UP else None
            if set_up is not None:
                folded["prompt_show"] = folded["prompt_hide"] = SET_UP.lower()


def setup(app: Sphinx) -> dict:
    """Register with Sphinx."""
    app.add_post_transform(UnderFigures)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
