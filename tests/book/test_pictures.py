"""What captions and descriptions say of pictures is held against what was drawn."""

import copy

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
    "04_scaling": 5,
    "05_positions": 3,
    "06_block": 6,
    "07_real_encoder": 3,
    "08_language_model": 1,
    "10_encoder_decoder": 2,
    "11_vision": 4,
    "12_large_vision": 4,
    "13_weather": 5,
    "conventions": 1,
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


def names(weights=((0.9, 0.1), (0.4, 0.6)), swapped=False):
    """What the lines know of: a map on the left, two curves on the right."""
    figure, axes = plt.subplots(1, 2)
    plotting.plot_weights(torch.tensor(weights), ax=axes[1 if swapped else 0])
    colors = ("red", "blue") if swapped else ("blue", "red")
    for name, color, line in zip(("honest", "peeking"), colors, (":", "--"), strict=True):
        other = {":": "--", "--": ":"}[line] if swapped else line
        plot = axes[0 if swapped else 1].plot
        plot([1, 2, 3], color=plotting.COLORS[color], linestyle=other, label=name)
    axes[0 if swapped else 1].set(ylabel="loss", title="curves")
    axes[0 if swapped else 1].legend()
    figure.canvas.draw()
    plt.close(figure)
    return {**pictures.vocabulary([figure]), "weights": torch.tensor(weights)}


@for_each(
    'colour("honest") == "blue"',
    'colour("peeking") == "red" == colour(mark("peeking"))',
    'style("honest") == "dotted" and style("peeking") == "dashed"',
    'shows(panel("left"), weights)',
    '"curves" in texts_in("right")',
    'x_of("query") < x_of("loss")',
    'len(panels) == 2 and panel("right").get_ylabel() == "loss" and not panels[0].lines',
)
def test_a_line_holds_of_its_picture_alone(holds):
    line = f"words <- {holds}"
    assert pictures.untrue([line], names()) == []
    assert pictures.untrue([line], names(swapped=True)) != []


def test_other_numbers_and_unknown_names_are_seen():
    line = 'words <- shows(panel("left"), ((0.9, 0.1), (0.4, 0.6)))'
    assert pictures.untrue([line], names()) == []
    assert pictures.untrue([line], names(((0.9, 0.1), (0.6, 0.4)))) == [line]
    (unknown,) = pictures.untrue(["words <- nothing_of_this_name == 1"], names())
    assert "NameError" in unknown
    assert pictures.fault("[]") is None
    assert pictures.fault('["left <- x"]') == "not as it was drawn: left <- x"


@pytest.mark.parametrize("usual", [plt.close])
def test_figures_are_kept_until_they_are_asked_for(usual, capsys):
    pictures.watch()
    try:
        plt.subplots(1, 3)
        plt.close("all")
        pictures.report(["three <- len(panels) == n", "two <- len(panels) == 2"], {"n": 3})
        assert plt.close is usual
    finally:
        plt.close = usual
    assert capsys.readouterr().out == '["two <- len(panels) == 2"]\n'


@for_each(
    ("Left: the keys. Right: the values.", "Left Right"),
    ("The right answers of two blue curves", "two blue"),
    ("Dotted: with the mask", "Dotted"),
    ("no word that decides", ""),
)
def test_which_words_decide(words, found):
    assert " ".join(match[0] for match in pictures.DECIDING.finditer(words)) == found
