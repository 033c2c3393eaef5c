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
def test_numbers_are_white_where_cells_are_dark_and_the_colour_bar_shows_the_scale(vmax):
    weights = torch.tensor([[0.1, 0.5, 0.51, 0.9]]).double() * vmax
    ax = plotting.plot_weights(weights, vmax=vmax)
    assert [text.get_color() for text in ax.texts] == ["#222222", "#222222", "white", "white"]
    assert ax.images[0].get_clim() == (0.0, vmax)
    bar = ax.images[0].colorbar
    assert bar.ax.get_yticks().tolist() == pytest.approx([0.0, vmax / 2, vmax])


@for_each(
    (lambda: plotting.plot_weights(torch.full((3, 5), 0.2)), 0.46),
    (lambda: plotting.plot_weights(torch.full((11, 7), 0.1)), 0.33),
    (lambda: plotting.plot_mask(torch.ones(3, 5).bool()), 0.30),
)
def test_a_cell_has_one_size_however_many_there_are(ax, cell):
    ax = ax()
    T, S = ax.images[0].get_array().shape
    assert ax.figure.get_size_inches().tolist() == pytest.approx([1.9 + cell * S, 1.3 + cell * T])


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
    (
        plotting.plot_diagram,
        [{"x": (0, 0, "x", None)}, [("x", "k", "")]],
        ValueError,
        "joins boxes.*'x' to 'k'",
    ),
    (plotting.plot_diagram, [{"a": (0, 0, "a", "asker")}, []], ValueError, "'asker'"),
)
def test_bad_input_is_named(draw, args):
    draw(*args)
