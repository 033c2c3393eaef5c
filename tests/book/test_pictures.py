"""What captions and descriptions say of pictures is held against what was drawn."""

import io
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pages
import pictures
import torch

from attn_lib import plotting


def test_deciding_words_are_bound():
    """How many stand in no line yet, of each page: the numbers only get smaller."""
    figures = {path.stem: [*pages.figures(pages.read(path))] for path in pages.NOTEBOOKS}
    counts = {name: sum(len(pictures.unbound(*one)) for one in of) for name, of in figures.items()}
    assert {name: n for name, n in counts.items() if n} == {"01_one_head": 2}


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


def test_a_line_holds_of_its_picture_alone():
    """And not where panels, colours and kinds of line have changed places, or of other numbers."""
    lines = {
        "honest blue": lambda: it.colour("honest") == "blue",
        "peeking orange": lambda: it.colour("peeking") == "orange" == it.colour(it.mark("peeking")),
        "styles": lambda: it.style("honest") == "dotted" and it.style("peeking") == "dashed",
        "map": lambda: it.shows(it.panel("left"), HONEST),
        "title": lambda: "curves" in it.texts_in("right"),
        "places": lambda: it.x_of("query") < it.x_of("loss"),
        "panels": lambda: len(it.panels) == 2 and it.panel("right").get_ylabel() == "loss",
    }
    it = names()
    assert pictures.untrue(lines.items()) == []
    it = names(((0.9, 0.1), (0.6, 0.4)))
    assert pictures.untrue(lines.items()) == ["map"]
    it = names(swapped=True)
    found = pictures.untrue(lines.items())
    assert [line.partition(":")[0] for line in found] == [*lines]


def complete():
    """Two panels with everything that is exchanged or displaced."""
    figure, (left, right) = plt.subplots(1, 2)
    left.plot([1, 2], label="ours")
    left.plot([2, 1], label="theirs")
    left.legend()
    left.axhline(1.5)
    left.axvline(0.5)
    left.fill_between([0, 1], [1, 1], [2, 2])
    right.axvspan(0.2, 0.4)
    right.vlines([0.1, 0.2], 0, 1)
    (dots,) = right.plot([0, 1], "o")
    right.legend([dots, right.lines[0]], ["a dot", "another dot"])
    left.set(title="one", xlabel="step", ylabel="loss")
    right.set(title="two", xlabel="time", ylabel="error")
    figure.canvas.draw()
    plt.close(figure)
    return figure


ALL = {
    "'one' and 'two'": lambda it: it.panels[0].get_title() == "one",
    "'step' and 'time'": lambda it: it.panels[0].get_xlabel() != "time",
    "'loss' and 'error'": lambda it: it.panels[0].get_ylabel() != "error",
    "'step' and 'loss'": lambda it: it.panels[0].get_xlabel() != "loss",
    "'time' and 'error'": lambda it: it.panels[1].get_xlabel() != "error",
    "'ours' and 'theirs'": lambda it: it.curve("ours")[0] == 1,
    "'a dot' and 'another dot'": (
        lambda it: it.panels[1].get_legend().get_texts()[0].get_text() == "a dot"
    ),
    "a line at x = 0.5": lambda it: it.panels[0].lines[3].get_xdata()[0] == 0.5,
    "a line at y = 1.5": lambda it: it.panels[0].lines[2].get_ydata()[0] == 1.5,
    "a span": lambda it: it.panels[1].patches[0].get_width() == 0.2,
    "bars or a band": lambda it: (
        it.panels[0].collections[0].get_paths()[0].vertices[:, 1].max() == 2
        and it.panels[1].collections[0].get_segments()[0][:, 1].max() == 1
    ),
}


def test_what_no_line_sees_is_said():
    """Without the line for it, and nothing with a line for each; all is put back as it was."""

    def claims(*lines):
        return lambda **known: [
            (name, lambda holds=ALL[name]: holds(SimpleNamespace(**known))) for name in lines
        ]

    def picture():
        file = io.BytesIO()
        figure.savefig(file, format="raw")
        return file.getvalue()

    figure = complete()
    before = picture()
    assert pictures.unseen(claims(*ALL), [figure]) == []
    unseen = [line.removeprefix("no line sees ") for line in pictures.unseen(claims(), [figure])]
    assert len(unseen) == len(ALL) + 1  # bars, and a band
    assert all(any(line.startswith(what) for line in unseen) for what in ALL)
    assert picture() == before
    assert pictures.untrue(claims(*ALL)(**pictures.vocabulary([figure]))) == []
