"""The page on DINOv2: how it takes patches away, and its rivals.

The functions are taken from the page's own cells.
"""

import pages
import pytest
import torch
from tables import for_each

import attn_lib
from attn_lib import vision

PAGE = pages.BOOK / "16_large_vision.ipynb"
IMPORTS = """import math
import torch
import torch.nn.functional as F
import attn_lib
from attn_lib import vision
"""
# maps_of, two_maps, the rivals, without, still_right and its neighbours, one_by_one
CELLS = [f"ch16-code-{n}" for n in (11, 32, 34, 36, 37, 44)]


def run(*changes: tuple[str, str]) -> dict:
    """What these cells of the page define."""
    parts = [pages.sources(PAGE)[name] for name in CELLS]
    return pages.defined_by([IMPORTS, *parts], *changes)


def tiny():
    torch.manual_seed(0)
    sizes = {"d_model": 16, "num_heads": 2, "d_ff": 24, "num_layers": 3, "num_classes": 10}
    model = vision.VisionTransformer(image_size=28, patch_size=7, in_channels=1, **sizes)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model.eval().requires_grad_(False)


def pictures():
    return torch.randn(7, 1, 28, 28, generator=torch.Generator().manual_seed(1))


def left_out(model, image, gone):
    """The tokens that stay, each with its own position, one image at a time."""
    x = model.patches(image[None])[0] + model.positions.table[1:]
    first = model.class_token + model.positions.table[:1]
    rows = [first, *(x[n : n + 1] for n in range(16) if n not in gone)]
    return model.head(model.encoder(torch.cat(rows)[None])[:, 0])[0]


def painted(model, image, gone, value):
    image = image.clone()
    for n in gone:
        y, x = divmod(n, 4)
        image[:, 7 * y : 7 * y + 7, 7 * x : 7 * x + 7] = value
    return model(image[None])[0]


def check_patches_taken_away(page):
    model, images = tiny(), pictures()
    chosen = torch.stack([torch.randperm(16)[:3] for _ in images])
    pairs = [*zip(images, chosen.tolist(), strict=True)]
    wanted = {
        "left out": [left_out(model, *pair) for pair in pairs],
        "black": [painted(model, *pair, images.amin()) for pair in pairs],
        "grey": [painted(model, *pair, 0.0) for pair in pairs],
    }
    for how, rows in wanted.items():
        made = page["without"](model, images, chosen, how)
        assert torch.allclose(made, torch.stack(rows), atol=1e-4), how
    falls = page["one_by_one"](model, images)
    for image, fall in zip(images, falls, strict=True):
        before = model(image[None])[0].softmax(0)
        after = torch.stack([left_out(model, image, [n]).softmax(0) for n in range(16)])
        assert torch.allclose(fall, before.max() - after[:, before.argmax()], atol=1e-4)


def check_rivals(page):
    labels = torch.tensor([*range(10), 3])
    maps = torch.rand(11, 16, generator=torch.Generator().manual_seed(2))
    means = page["class_means"](maps, labels)
    of_three = [row for row, label in zip(maps, labels.tolist(), strict=True) if label == 3]
    assert torch.allclose(means[3], sum(of_three) / 2)
    assert torch.allclose(means[5], maps[5])
    page |= {"labels": torch.cat([labels, labels.flip(0)])}
    page |= {"tried": slice(0, 11), "others": slice(11, 22)}
    peers = page["of_its_class"](maps)
    for label, peer in zip(labels, peers, strict=True):
        assert peer.tolist() in maps[labels.flip(0) == label].tolist()


def check_maps(page):
    model, images = tiny(), pictures()
    with attn_lib.record_attention(model) as maps:
        model(images)
    means, total = [A.mean(dim=1) for A in maps.values()], torch.eye(17)
    for A in means:
        total = (A + torch.eye(17)) / 2 @ total
    for made, whole in zip(page["two_maps"](model, images), (means[-1], total), strict=True):
        share = whole[:, 0, 1:] / whole[:, 0, 1:].sum(1, keepdim=True)
        assert torch.allclose(made, share, atol=1e-4)


def check_a_difference(page):
    right, own = torch.tensor([[1.0, 0, 1, 1], [1, 1, 0, 1]], dtype=torch.float64)
    more, half = page["beside"](right, own)
    assert abs(more) < 1e-9
    assert abs(half - 1.96 * (2 / 3 / 4) ** 0.5) < 1e-9  # apart by 0, −1, 1, 0


CHECKS = check_patches_taken_away, check_rivals, check_maps, check_a_difference


@for_each(*CHECKS)
def test_the_pages_functions_are_those_of_another_program(check):
    check(run())


@for_each(
    ("(1, 0), value=1.0) > 0", "(0, 1), value=1.0) > 0", check_patches_taken_away),
    ("rolled.append(rollout[:, 0, 1:])", "rolled.append(rollout[:, 1:, 0])", check_maps),
)
def test_a_planted_mistake_is_seen(old, new, check):
    with pytest.raises(AssertionError):
        check(run((old, new)))
