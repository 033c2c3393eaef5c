import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
import torch

from attn_lib import plotting

mpl.use("Agg")


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def test_the_drawn_numbers_are_the_weights_on_a_fixed_scale():
    weights = torch.tensor([[0.1, 0.2, 0.7], [0.0, 0.5, 0.5]])
    ax = plotting.plot_weights(weights, queries=["a", "b"], keys=["x", "y", "z"])
    assert torch.allclose(torch.tensor(ax.images[0].get_array().filled(0.0)).float(), weights)
    assert ax.images[0].get_clim() == (0.0, 1.0)
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["x", "y", "z"]
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["a", "b"]
    written = {text.get_position(): text.get_text() for text in ax.texts}
    assert written[(2, 0)] == "0.70"  # column of the key, row of the query
    assert (0, 1) not in written  # exactly zero is closed: grey, without a number
    assert ax.images[0].get_array().mask.tolist() == [[False] * 3, [True, False, False]]
    assert not ax.get_title()


def test_it_draws_on_the_axes_it_is_given_and_keeps_nothing():
    _, axes = plt.subplots(1, 2)
    weights = torch.eye(2, requires_grad=True)
    assert plotting.plot_weights(weights, ax=axes[1]) is axes[1]
    assert not axes[0].images


def test_labels_are_shown_as_they_are():
    ax = plotting.plot_weights(torch.eye(2), queries=[0, "$$"], keys=["$x^$", "_"])
    ax.figure.canvas.draw()
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["0", "$$"]


def test_an_array_is_no_tensor():
    with pytest.raises(TypeError, match="got ndarray"):
        plotting.plot_weights(torch.eye(2).numpy())


def test_large_tables_show_no_numbers():
    assert not plotting.plot_weights(torch.full((9, 8), 1 / 8)).texts


def test_a_mask_is_drawn_as_it_is():
    mask = torch.tensor([[True, False, True], [False, True, True]])
    ax = plotting.plot_mask(mask, queries=["a", "b"], keys=["x", "y", "z"])
    assert ax.images[0].get_array().filled(0.0).tolist() == mask.double().tolist()
    assert ax.images[0].get_clim() == (0.0, 1.0)
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["a", "b"]


BOXES = {
    "x": (0.5, 0, "tokens", None),
    "q": (0, 1, "queries", "query"),
    "v": (1, 1, "values", "value"),
}


def test_a_diagram_joins_its_boxes_in_the_colours_of_the_book():
    ax = plotting.plot_diagram(BOXES, [("x", "q", "(T, 2)"), ("x", "v", "")])
    where = {text.get_text(): text.get_position() for text in ax.texts}
    assert where["queries"][0] < where["tokens"][0] < where["values"][0]
    assert where["tokens"][1] > where["queries"][1] == where["values"][1]  # row 0 is the top
    boxes = [p for p in ax.patches if isinstance(p, mpl.patches.FancyBboxPatch)]
    colors = [mpl.colors.to_hex(box.get_edgecolor()).upper() for box in boxes]
    assert colors == ["#888888", plotting.ROLES["query"], plotting.ROLES["value"]]
    arrows = [p for p in ax.patches if isinstance(p, mpl.patches.FancyArrowPatch)]
    assert [a._posA_posB for a in arrows] == [
        [where["tokens"], where["queries"]],
        [where["tokens"], where["values"]],
    ]
    middle = [sum(axis) / 2 for axis in zip(where["tokens"], where["queries"], strict=True)]
    assert where["(T, 2)"] == pytest.approx(middle)


def test_every_role_has_a_colour_of_its_own():
    assert len(set(plotting.ROLES.values())) == len(plotting.ROLES) == 5


@pytest.mark.parametrize(
    ("boxes", "arrow", "message"),
    [
        (BOXES, ("x", "k", ""), "joins boxes.*'x' to 'k'"),
        ({"a": (0, 0, "a", "asker")}, ("a", "a", ""), "'asker'"),
    ],
)
def test_a_wrong_diagram_is_named(boxes, arrow, message):
    with pytest.raises(ValueError, match=message):
        plotting.plot_diagram(boxes, [arrow])


@pytest.mark.parametrize(
    ("mask", "error"),
    [(torch.eye(2), TypeError), (torch.ones(2, 2, 2, dtype=torch.bool), ValueError)],
)
def test_what_is_no_mask_is_refused(mask, error):
    with pytest.raises(error, match="mask must be"):
        plotting.plot_mask(mask)


@pytest.mark.parametrize(
    ("weights", "options", "message"),
    [
        (torch.ones(2, 2, 2), {}, r"\(2, 2, 2\)"),
        (torch.tensor([[1.2]]), {}, "1.2"),
        (torch.tensor([[-0.1]]), {}, "-0.1"),
        (torch.tensor([[float("nan")]]), {}, "nan"),
        (torch.tensor([[0.5]]), {"vmax": 0.3}, r"\[0, 0.3\]"),
        (torch.tensor([[0.5]]), {"vmax": 2.0}, "vmax"),
        (torch.eye(2), {"queries": ["a"]}, "queries must hold 2 labels, got 1"),
        (torch.eye(2), {"keys": ["a", "b", "c"]}, "keys must hold 2 labels, got 3"),
    ],
)
def test_bad_input_is_named(weights, options, message):
    with pytest.raises(ValueError, match=message):
        plotting.plot_weights(weights, **options)
