"""The page on vision: its classes at other sizes, its rivals' sizes by hand, its planted mistakes.

`cut`, `ViT`, the rivals, `Shuffled` and `library_names` are taken from the page's own cells.
"""

import pages
import pytest
import torch
import torch.nn.functional as F
from tables import for_each

from attn_lib.vision import VisionTransformer

PAGE = pages.BOOK / "15_vision.ipynb"
IMPORTS = """import math, os, time
from functools import partial
import torch
import torch.nn.functional as F
from torch import nn
from attn_lib import datasets
"""
CELLS = ("ch15-code-06", "ch15-code-60", "ch15-code-20", "ch15-code-64", "ch15-code-39")
PRINTS = ("\n\ntiny = ", "\n\nshoe = ")  # what the cells show is left out


def run(*changes: tuple[str, str]) -> dict:
    parts = [pages.sources(PAGE)[name] for name in CELLS]
    for end in PRINTS:
        parts = [part.partition(end)[0] for part in parts]
    return pages.defined_by([IMPORTS, *parts], *changes)


OWN = run()


pytestmark = pytest.mark.usefixtures("double")


def apart(page, patch, side, d, heads, layers) -> float:
    """Of the page's model and the library's, with random weights everywhere, norms included."""
    ours = page["ViT"](patch, side, d, heads, layers)
    generator = torch.Generator().manual_seed(patch)
    with torch.no_grad():
        for weight in ours.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator))
    library = VisionTransformer(
        image_size=side, patch_size=patch, in_channels=1, num_classes=10,
        d_model=d, num_heads=heads, d_ff=2 * d, num_layers=layers,
    )  # fmt: skip
    library.load_state_dict(page["library_names"](ours.state_dict()))
    images = torch.randn(3, 1, side, side, generator=generator)
    return (ours(images) - library(images)).abs().max().item()


@for_each((7, 28, 64, 4, 4), (5, 15, 12, 3, 2))
def test_the_model_is_the_librarys(patch, side, d, heads, layers):
    assert apart(OWN, patch, side, d, heads, layers) < 1e-9


def test_a_wrong_model_is_seen():
    wrong = run(("permute(0, 2, 4, 1, 3, 5)", "permute(0, 2, 4, 1, 5, 3)"))
    assert apart(wrong, 2, 6, 10, 5, 1) > 1e-3


@for_each((1, 4, 6, 2), (3, 10, 15, 5))
def test_patches_are_those_of_unfold(channels, height, width, p):
    """Of images with several channels, too, which the page has none of."""
    images = torch.randn(2, channels, height, width)
    assert torch.equal(OWN["cut"](images, p), F.unfold(images, p, stride=p).mT)


@for_each(4, 7)
def test_squares_change_places_and_nothing_else(p):
    images = torch.arange(2 * 784.0).view(2, 1, 28, 28)
    moved = [OWN["Shuffled"](torch.nn.Identity(), p, seed)(images) for seed in range(2)]
    for found in moved:
        assert torch.equal(found[1] - found[0], images[1] - images[0])  # one order for all
        squares = F.unfold(found, p, stride=p)[0].T.tolist()
        assert sorted(squares) == sorted(F.unfold(images, p, stride=p)[0].T.tolist())
    assert not torch.equal(*moved)


def test_the_cnn_has_the_parameters_and_the_work_of_the_vit():
    def multiply_adds(d=64, tokens=17, pixels=49):
        block = tokens * (4 * d * d + 2 * d * 2 * d) + 2 * tokens**2 * d
        return 4 * block + (tokens - 1) * pixels * d + 10 * d

    def convolutions(*widths):
        work, before, side = 10 * widths[-1], 1, 28
        for width in widths:
            work, before, side = work + side**2 * 9 * before * width, width, side // 2
        return work

    size = {
        name: sum(p.numel() for p in make().parameters()) for name, make in OWN["RIVALS"].items()
    }
    (cell,) = (cell for cell in pages.code_cells(pages.read(PAGE)) if cell.id == "ch15-code-66")
    printed = {}
    for line in pages.printed(cell).splitlines()[1:]:
        *name, parameters, work = line.split()
        printed[" ".join(name)] = int(parameters.replace(",", "")), float(work)
    assert {name: parameters for name, (parameters, _) in printed.items()} == size
    for name, work in (
        ("ViT-7", multiply_adds()), ("ViT-14", multiply_adds(tokens=5, pixels=196)),
        ("CNN", convolutions(8, 27, 80, 160)), ("wide CNN", convolutions(16, 64, 220)),
        ("MLP", 784 * 147 + 147**2 + 1470), ("logistic", 7840),
    ):  # fmt: skip
        assert printed[name][1] == pytest.approx(work / 1e6, abs=0.0051)
    assert size["CNN"] == pytest.approx(size["ViT-7"], rel=0.002)
    assert convolutions(8, 27, 80, 160) == pytest.approx(multiply_adds(), rel=0.001)
