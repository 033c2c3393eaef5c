"""What captions and descriptions say of pictures is held against what was drawn."""

import copy
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pages
import pictures
import pytest
import torch
from tables import for_each

from attn_lib import plotting

# deciding words that no line holds yet, of each page. The numbers only get smaller.
UNBOUND = {
    "01_one_head": 2,
}


def unbound(path):
    return [
        w for cell, said in pages.figures(pages.read(path)) for w in pictures.unbound(cell, said)
    ]


def test_deciding_words_are_bound():
    counts = {path.stem: len(unbound(path)) for path in pages.NOTEBOOKS}
    assert {name: n for name, n in counts.items() if n} == UNBOUND


def test_every_line_names_words_whose_change_is_seen():
    found = [pair for path in pages.NOTEBOOKS for pair in pages.figures(pages.read(path))]
    lines = [
        (cell, words, line) for cell, words in found for line in cell.metadata.get("drawn", [])
    ]
    assert len(lines) > 200
    for cell, words, line in lines:
        about = line.partition(pictures.ARROW)[0]
        changed = copy.deepcopy(cell)
        image = changed.metadata.mystnb.image
        image.alt = image.alt.replace(about, "another thing")
        words = " ".join(words.split()).replace(about, "another thing")
        assert pictures.line_faults(changed, words) != []


# ---------------------------------------------------------------- a small picture

HONEST = ((0.9, 0.1), (0.4, 0.6))


def names(weights=HONEST, swapped=False):
    """What the lines know of: a map on the left, two curves on the right."""
    figure, axes = plt.subplots(1, 2)
    plotting.plot_weights(torch.tensor(weights), ax=axes[1 if swapped else 0])
    colors = ("orange", "blue") if swapped else ("blue", "orange")
    for name, color, line in zip(("honest", "peeking"), colors, (":", "--"), strict=True):
        other = {":": "--", "--": ":"}[line] if swapped else line
        plot = axes[0 if swapped else 1].plot
        plot([1, 2, 3], color=plotting.COLORS[color], linestyle=other, label=name)
    axes[0 if swapped else 1].set(ylabel="loss", title="curves")
    axes[0 if swapped else 1].legend()
    figure.canvas.draw()
    plt.close(figure)
    return SimpleNamespace(**pictures.vocabulary([figure]))


@for_each(
    lambda it: it.colour("honest") == "blue",
    lambda it: it.colour("peeking") == "orange" == it.colour(it.mark("peeking")),
    lambda it: it.style("honest") == "dotted" and it.style("peeking") == "dashed",
    lambda it: it.shows(it.panel("left"), HONEST),
    lambda it: "curves" in it.texts_in("right"),
    lambda it: it.x_of("query") < it.x_of("loss"),
    lambda it: len(it.panels) == 2 and it.panel("right").get_ylabel() == "loss",
)
def test_a_line_holds_of_its_picture_alone(holds):
    assert pictures.untrue([("line", lambda: holds(names()))]) == []
    assert pictures.untrue([("line", lambda: holds(names(swapped=True)))]) != []


def test_other_numbers_and_unknown_names_are_seen():
    def drawn(weights):
        it = names(weights)
        return pictures.untrue([("line", lambda: it.shows(it.panel("left"), HONEST))])

    assert drawn(HONEST) == []
    assert drawn(((0.9, 0.1), (0.6, 0.4))) == ["line"]
    (unknown,) = pictures.untrue([("line", lambda: names().nothing_of_this_name)])
    assert "AttributeError" in unknown
    assert pictures.fault("[]") is None
    assert pictures.fault('["left <- x"]') == "not as it was drawn: left <- x"


@pytest.mark.parametrize("usual", [plt.close])
def test_figures_are_kept_until_they_are_asked_for(usual, capsys):
    pictures.watch()
    try:
        plt.subplots(1, 3)
        plt.close("all")
        lines = ["three <- len(panels) == n", "two <- len(panels) == 2"]
        asking = pictures.after(SimpleNamespace(metadata={"drawn": lines}))
        exec(asking, {"n": 3})  # noqa: S102 - as the kernel of a page does
        assert plt.close is usual
    finally:
        plt.close = usual
    assert capsys.readouterr().out == '["two <- len(panels) == 2"]\n'


@for_each(
    ("Left: the keys. Right: the values.", "Left Right"),
    ("The right answers of two blue curves", "two blue"),
    ("Dotted: with the mask", "Dotted"),
    ("Clear are the patches; their hands turn anticlockwise", "Clear anticlockwise"),
    ("no word that decides", ""),
)
def test_which_words_decide(words, found):
    assert " ".join(match[0] for match in pictures.DECIDING.finditer(words)) == found
