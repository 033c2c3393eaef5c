import shutil
import sys
from types import SimpleNamespace

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib import font_manager
from tables import for_each, raises_for_each

from attn_lib import files, plotting

mpl.use("Agg")


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


@pytest.mark.parametrize(("shell", "formats"), [(None, []), (object(), ["retina"])])
def test_the_style_is_set_and_in_a_notebook_at_double_resolution(monkeypatch, shell, formats):
    asked = []
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    inline = SimpleNamespace(set_matplotlib_formats=asked.append)
    monkeypatch.setitem(sys.modules, "matplotlib_inline.backend_inline", inline)
    with mpl.rc_context():
        plotting.use_style()
        style = {**plotting._STYLE, "figure.figsize": [5.0, 3.6]}
        assert {name: mpl.rcParams[name] for name in style} == style
        assert mpl.rcParams["axes.prop_cycle"].by_key()["color"][0] == plotting.COLORS["blue"]
    assert asked == formats


TOKENS = {"queries": ["a", "b"], "keys": ["x", "y", "z"]}


def check_labels(ax, queries, keys):
    for labels, expected in ((ax.get_yticklabels(), queries), (ax.get_xticklabels(), keys)):
        assert [label.get_text() for label in labels] == expected


def test_letters_are_those_of_the_pages_whatever_a_machine_has_installed():
    """In texts and in formulas; what Inter lacks comes from matplotlib's own."""
    with mpl.rc_context():
        plotting.use_style()
        plotting.use_style()
        faces = [{}, {"style": "italic"}, {"weight": "bold"}]
        found = [
            font_manager.findfont(
                font_manager.FontProperties(family=mpl.rcParams["font.family"][:1], **face)
            )
            for face in faces
        ]
        fig = plt.figure()
        fig.text(0, 0, r"$\sqrt{d_k}$ ⊤ dₖ → ✓").get_window_extent(fig.canvas.get_renderer())
        assert found == [str(files.DATA / name) for name in plotting.FACES]
        listed = [font.fname for font in font_manager.fontManager.ttflist]
        assert [listed.count(face) for face in found] == [1, 1, 1]
        assert mpl.rcParams["mathtext.rm"] == mpl.rcParams["font.family"][0]


def test_a_damaged_typeface_is_noticed(monkeypatch, tmp_path):
    shutil.copytree(files.DATA, tmp_path / "data")
    monkeypatch.setattr(files, "DATA", tmp_path / "data")
    face = tmp_path / "data" / plotting.FACES[0]
    face.write_bytes(face.read_bytes()[:-1])
    with mpl.rc_context(), pytest.raises(ValueError, match="inter-regular"):
        plotting.use_style()


def test_the_drawn_numbers_are_the_weights_on_a_fixed_scale():
    weights = torch.tensor([[0.1, 0.2, 0.7], [0.0, 0.5, 0.5]])
    ax = plotting.plot_weights(weights, **TOKENS)
    assert torch.allclose(torch.tensor(ax.images[0].get_array().filled(0.0)).float(), weights)
    assert ax.images[0].get_clim() == (0.0, 1.0)
    check_labels(ax, **TOKENS)
    written = {text.get_position(): text.get_text() for text in ax.texts}
    assert written[(2, 0)] == "0.70"  # column of the key, row of the query
    assert set(written) == {(0, 0), (1, 0), (2, 0), (1, 1), (2, 1)}  # zero is closed: no number
    assert ax.images[0].get_array().mask.tolist() == [[False] * 3, [True, False, False]]
    assert not ax.get_title()


@pytest.mark.parametrize("vmax", [1.0, 0.25])
def test_numbers_stand_in_the_middle_of_cells_in_white_where_these_are_dark(vmax):
    weights = torch.tensor([[0.1, 0.5, 0.51, 0.9]]).double() * vmax
    texts = plotting.plot_weights(weights, vmax=vmax).texts
    assert [text.get_color() for text in texts] == ["#222222", "#222222", "white", "white"]
    styles = {(text.get_ha(), text.get_va(), text.get_fontsize()) for text in texts}
    assert styles == {("center", "center", 9.0)}


@pytest.mark.parametrize("vmax", [1.0, 0.3])
def test_a_colour_bar_beside_the_table_shows_the_scale(vmax):
    ax = plotting.plot_weights(torch.eye(3) * vmax, vmax=vmax)
    bar = ax.images[0].colorbar
    assert bar.ax.get_yticks().tolist() == pytest.approx([0.0, vmax / 2, vmax])
    assert bar.ax.get_ylabel() == "weight"
    assert bar.outline.get_visible() is False
    table, beside = (axes.get_position(original=True) for axes in (ax, bar.ax))
    assert 0.85 < beside.height / table.height < 0.95
    assert 0.0 < beside.x0 - table.x1 < 0.03


def test_closed_cells_are_grey_and_open_ones_blue():
    image = plotting.plot_mask(torch.tensor([[True, False]])).images[0]
    blue, grey = image.to_rgba(image.get_array())[0].tolist()
    assert blue == list(mpl.colormaps["Blues"](1.0))
    assert grey == list(mpl.colors.to_rgba("#e9e9e9"))
    assert plotting.plot_mask(torch.zeros(2, 3).bool()).images[0].get_clim() == (0.0, 1.0)


@for_each(
    (lambda: plotting.plot_weights(torch.full((3, 5), 0.2)), 0.46),
    (lambda: plotting.plot_weights(torch.full((11, 7), 0.1)), 0.33),
    (lambda: plotting.plot_mask(torch.ones(3, 5).bool()), 0.30),
)
def test_a_cell_has_one_size_however_many_there_are(ax, cell):
    ax = ax()
    T, S = ax.images[0].get_array().shape
    assert ax.figure.get_size_inches().tolist() == pytest.approx([1.9 + cell * S, 1.3 + cell * T])


def test_white_lines_run_between_the_cells_and_nothing_else_does():
    ax = plotting.plot_mask(torch.ones(3, 4).bool())
    ax.figure.canvas.draw()
    assert ax.get_xticks(minor=True).tolist() == [0.5, 1.5, 2.5]
    assert ax.get_yticks(minor=True).tolist() == [0.5, 1.5]
    for axis in (ax.xaxis, ax.yaxis):
        ticks, between = axis.get_major_ticks(), axis.get_minor_ticks()
        assert {tick.gridline.get_visible() for tick in ticks} == {False}
        lines = [tick.gridline for tick in between]
        styles = {(a.get_visible(), a.get_color(), a.get_linewidth()) for a in lines}
        assert styles == {(True, "white", 0.8)}
        assert {tick.tick1line.get_markersize() for tick in [*ticks, *between]} == {0.0}
    assert {spine.get_visible() for spine in ax.spines.values()} == {False}


def test_keys_stand_above_and_queries_beside():
    ax = plotting.plot_mask(torch.ones(2, 3).bool())
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("key", "query")
    assert (ax.xaxis.get_ticks_position(), ax.xaxis.get_label_position()) == ("top", "top")
    assert ax.xaxis.labelpad == 8
    check_labels(ax, ["0", "1"], ["0", "1", "2"])


@pytest.mark.parametrize(("key", "angle"), [("the", 0.0), ("then", 90.0)])
def test_long_keys_stand_upright(key, angle):
    ax = plotting.plot_mask(torch.ones(1, 2).bool(), keys=["a", key])
    assert {label.get_rotation() for label in ax.get_xticklabels()} == {angle}
    assert {label.get_rotation() for label in ax.get_yticklabels()} == {0.0}


def test_it_draws_on_the_axes_it_is_given_and_keeps_nothing():
    _, axes = plt.subplots(1, 2)
    weights = torch.eye(2, requires_grad=True)
    assert plotting.plot_weights(weights, ax=axes[1]) is axes[1]
    assert not axes[0].images
    assert plotting.plot_mask(torch.eye(2).bool(), ax=axes[0]) is axes[0]


def test_labels_are_shown_as_they_are():
    ax = plotting.plot_weights(torch.eye(2), queries=[0, "$$"], keys=["$x^$", "_"])
    ax.figure.canvas.draw()
    check_labels(ax, ["0", "$$"], ["$x^$", "_"])
    for label in [*ax.get_xticklabels(), *ax.get_yticklabels()]:
        assert label.get_parse_math() is False


def test_large_tables_show_no_numbers():
    assert not plotting.plot_weights(torch.full((5, 13), 1 / 13)).texts
    assert len(plotting.plot_weights(torch.full((8, 8), 1 / 8)).texts) == 64


def test_a_rounding_step_above_the_scale_is_no_error():
    assert plotting.plot_weights(torch.tensor([[1.01]], dtype=torch.float64)).texts
    with pytest.raises(ValueError, match=r"^weights must be in \[0, 1\.0\], got 1\.02 to 1\.02$"):
        plotting.plot_weights(torch.tensor([[1.02]]))


def test_a_mask_is_drawn_as_it_is():
    mask = torch.tensor([[True, False, True], [False, True, True]])
    ax = plotting.plot_mask(mask, **TOKENS)
    assert ax.images[0].get_array().filled(0.0).tolist() == mask.double().tolist()
    assert ax.images[0].get_clim() == (0.0, 1.0)
    check_labels(ax, **TOKENS)


BOXES = {"x": (0.5, 0, "tokens", None), "q": (0, 1, "queries", "query")}
BOXES["v"] = (1, 1, "values", "value")


def test_a_diagram_joins_its_boxes_in_the_colours_of_the_book():
    ax = plotting.plot_diagram(BOXES, [("x", "q", "(T, 2)"), ("x", "v", "(T, 3)")])
    where = {text.get_text(): text.get_position() for text in ax.texts}
    assert where["queries"][0] < where["tokens"][0] < where["values"][0]
    assert where["tokens"][1] > where["queries"][1] == where["values"][1]  # row 0 is the top
    assert len(set(plotting.ROLES.values())) == len(plotting.ROLES) == 5
    boxes = [p for p in ax.patches if isinstance(p, mpl.patches.FancyBboxPatch)]
    colors = [mpl.colors.to_hex(box.get_edgecolor()).upper() for box in boxes]
    assert colors == ["#888888", plotting.ROLES["query"], plotting.ROLES["value"]]
    arrows = [p for p in ax.patches if isinstance(p, mpl.patches.FancyArrowPatch)]
    ends = [[where["tokens"], where[end]] for end in ("queries", "values")]
    assert [arrow._posA_posB for arrow in arrows] == ends
    for label, end in (("(T, 2)", "queries"), ("(T, 3)", "values")):
        middle = [sum(axis) / 2 for axis in zip(where["tokens"], where[end], strict=True)]
        assert where[label] == pytest.approx(middle)


def test_the_boxes_of_a_diagram_are_of_one_size_and_fill_their_figure():
    ax = plotting.plot_diagram(BOXES, [("x", "q", "(T, 2)")])
    boxes = [p for p in ax.patches if isinstance(p, mpl.patches.FancyBboxPatch)]
    for box, (column, row, *_) in zip(boxes, BOXES.values(), strict=True):
        corner = 1.45 * column - 0.6, -1.05 * row - 0.26
        assert box.get_bbox().bounds == pytest.approx([*corner, 1.2, 0.52])
        assert box.get_boxstyle().pad == 0.04
        assert (box.get_facecolor()[:3], box.get_facecolor()[3]) == (box.get_edgecolor()[:3], 0.15)
        assert box.get_linewidth() == 2.0
    limits = [*ax.get_xlim(), *ax.get_ylim()]
    assert limits == pytest.approx([-0.7, 1.45 + 0.7, -1.05 - 0.4, 0.4])
    assert ax.figure.get_size_inches() == pytest.approx([1.45 + 1.4, 1.05 + 0.8])
    assert (ax.get_aspect(), ax.axison) == (1.0, False)
    ax.figure.canvas.draw()
    for box, text in zip(boxes, ax.texts, strict=False):
        inside, around = text.get_window_extent(), box.get_window_extent()
        assert around.contains(*inside.min), text
        assert around.contains(*inside.max), text


def test_arrows_run_from_edge_to_edge_and_labels_are_read_on_white():
    ax = plotting.plot_diagram(BOXES, [("x", "q", "(T, 2)")])
    start, end, _, arrow = ax.patches
    ax.figure.canvas.draw()
    middle, top, bottom = (patch.get_window_extent() for patch in (arrow, start, end))
    assert bottom.y1 < middle.y0 < bottom.y1 + 5 < top.y0 - 5 < middle.y1 < top.y0
    assert type(arrow.get_arrowstyle()).__name__ == "CurveFilledB"
    assert arrow.get_mutation_scale() == 12
    assert mpl.colors.to_hex(arrow.get_edgecolor()) == mpl.colors.to_hex(arrow.get_facecolor())
    assert mpl.colors.to_hex(arrow.get_edgecolor()) == "#555555"
    *texts, label = ax.texts
    behind = label.get_bbox_patch()
    assert behind.get_facecolor() == (1.0, 1.0, 1.0, 1.0)
    assert behind.get_edgecolor()[3] == 0.0
    assert behind.get_boxstyle().pad * label.get_fontsize() == pytest.approx(1.0, abs=0.1)
    assert (label.get_fontsize(), {text.get_fontsize() for text in texts}) == (9, {10})
    for text in (*texts, label):
        assert (text.get_ha(), text.get_va()) == ("center", "center")
    assert {text._linespacing for text in texts} == {1.4}


@raises_for_each(
    (torch.ones(2, 2, 2), {}, ValueError, r"\(2, 2, 2\)"),
    (torch.tensor([[1.2]]), {}, ValueError, "1.2"),
    (torch.tensor([[-0.1]]), {}, ValueError, "-0.1"),
    (torch.tensor([[float("nan")]]), {}, ValueError, "nan"),
    (torch.tensor([[0.5]]), {"vmax": 0.3}, ValueError, r"\[0, 0.3\]"),
    (torch.tensor([[0.5]]), {"vmax": 2.0}, ValueError, "vmax"),
    (torch.tensor([[0.0]]), {"vmax": 0.0}, ValueError, "vmax"),
    (torch.eye(2), {"queries": ["a"]}, ValueError, "queries must hold 2 labels, got 1"),
    (torch.eye(2), {"keys": ["a", "b", "c"]}, ValueError, "keys must hold 2 labels, got 3"),
)
def test_bad_weights_are_named(weights, options):
    plotting.plot_weights(weights, **options)


@raises_for_each(
    (plotting.plot_weights, [torch.eye(2).numpy()], TypeError, "got ndarray"),
    (plotting.plot_mask, [torch.eye(2)], TypeError, "mask must be"),
    (plotting.plot_mask, [torch.ones(2, 2, 2).bool()], ValueError, "mask must be"),
    (plotting.plot_diagram, [BOXES, [("x", "k", "")]], ValueError, "joins boxes.*'x' to 'k'"),
    (plotting.plot_diagram, [{"a": (0, 0, "a", "asker")}, []], ValueError, "'asker'"),
)
def test_bad_input_is_named(draw, args):
    draw(*args)
