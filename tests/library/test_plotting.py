"""Scales, labels, letters and errors; how figures look is seen on the pages, pixel by pixel."""

import shutil

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib import font_manager
from tables import raises_for_each

from attn_lib import files, plotting

mpl.use("Agg")


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


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
    weights = torch.tensor([[0.1, 0.2, 0.7], [0.0, 0.5, 0.5]], requires_grad=True)
    ax = plotting.plot_weights(weights, **TOKENS)
    assert torch.allclose(torch.tensor(ax.images[0].get_array().filled(0.0)).float(), weights)
    assert ax.images[0].get_clim() == (0.0, 1.0)
    check_labels(ax, **TOKENS)
    written = {text.get_position(): text.get_text() for text in ax.texts}
    assert written[(2, 0)] == "0.70"  # column of the key, row of the query
    assert set(written) == {(0, 0), (1, 0), (2, 0), (1, 1), (2, 1)}  # zero is closed: no number
    assert ax.images[0].get_array().mask.tolist() == [[False] * 3, [True, False, False]]
    assert plotting.plot_weights(weights / 4, vmax=0.25).images[0].get_clim() == (0.0, 0.25)
    above = torch.tensor([[1.01]], dtype=torch.float64)  # by a rounding step
    assert plotting.plot_weights(above).texts


def test_labels_are_shown_as_they_are():
    ax = plotting.plot_weights(torch.eye(2), queries=[0, "$$"], keys=["$x^$", "_"])
    ax.figure.canvas.draw()
    check_labels(ax, ["0", "$$"], ["$x^$", "_"])
    for label in [*ax.get_xticklabels(), *ax.get_yticklabels()]:
        assert label.get_parse_math() is False


@raises_for_each(
    (torch.ones(2, 2, 2), {}, ValueError, r"\(2, 2, 2\)"),
    (torch.tensor([[1.02]]), {}, ValueError, r"^weights .* \[0, 1\.0\], got 1\.02 to 1\.02$"),
    (torch.tensor([[-0.1]]), {}, ValueError, "-0.1"),
    (torch.tensor([[float("nan")]]), {}, ValueError, "nan"),
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
