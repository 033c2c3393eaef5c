"""The page on DINOv2: how it takes patches away, and its rivals.

The functions are taken from the page's own cells.
"""

import pages
import torch
from tables import for_each

from attn_lib import vision

PAGE = pages.BOOK / "16_large_vision.ipynb"
IMPORTS = """import math
import torch
import torch.nn.functional as F
import attn_lib
from attn_lib import vision
"""
# maps_of, two_maps, the rivals, without, still_right and its neighbours, one_by_one
CELLS = (
    "ch16-code-11",
    "ch16-code-32",
    "ch16-code-34",
    "ch16-code-36",
    "ch16-code-37",
    "ch16-code-44",
)


def run(*changes: tuple[str, str]) -> dict:
    """What these cells of the page define."""
    parts = [pages.sources(PAGE)[name] for name in CELLS]
    return pages.defined_by([IMPORTS, *parts], *changes)


def tiny(seed=0):
    torch.manual_seed(seed)
    sizes = {"d_model": 16, "num_heads": 2, "d_ff": 24, "num_layers": 3, "num_classes": 10}
    model = vision.VisionTransformer(image_size=28, patch_size=7, in_channels=1, **sizes)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model.eval().requires_grad_(False)


def pictures(seed=1, count=7):
    return torch.randn(count, 1, 28, 28, generator=torch.Generator().manual_seed(seed))


# ---------------------------------------------------------------- taken away by another program


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


def mean_of_class(maps, labels, wanted):
    rows = [row for row, label in zip(maps, labels.tolist(), strict=True) if label == wanted]
    return sum(rows) / len(rows)


def faults(space: dict) -> list[str]:
    """Which of the page's functions are not what another program finds."""
    model, images = tiny(), pictures()
    chosen = torch.stack([torch.randperm(16)[:3] for _ in images])
    found = []
    for how in ("left out", "black", "grey"):
        made = space["without"](model, images, chosen, how)
        value = {"black": images.amin(), "grey": 0.0}.get(how)
        wanted = [
            left_out(model, x, c) if value is None else painted(model, x, c, value)
            for x, c in zip(images, chosen.tolist(), strict=True)
        ]
        found += [how] * (not torch.allclose(made, torch.stack(wanted), atol=1e-4))
    # (11, 16) maps of classes 0 to 9
    labels = torch.tensor([*range(10), 3])
    maps = torch.rand(11, 16, generator=torch.Generator().manual_seed(2))
    means = space["class_means"](maps, labels)
    wanted = torch.stack([mean_of_class(maps, labels, c) for c in range(10)])
    found += ["class means"] * (not torch.allclose(means, wanted, atol=1e-6))
    space |= {"labels": torch.cat([labels, labels.flip(0)])}
    space |= {"tried": slice(0, 11), "others": slice(11, 22)}
    peers = space["of_its_class"](maps)
    of = [
        [row.tolist() for row, c in zip(maps, labels.flip(0), strict=True) if c == y]
        for y in labels
    ]
    found += ["peers"] * any(p.tolist() not in own for p, own in zip(peers, of, strict=True))
    falls = space["one_by_one"](model, images)
    for i, image in enumerate(images):
        before = model(image[None])[0].softmax(0)
        for n in range(16):
            fall = before.max() - left_out(model, image, [n]).softmax(0)[before.argmax()]
            found += ["one by one"] * (abs(fall - falls[i, n]) > 1e-4)
    right, own = torch.tensor([1.0, 0, 1, 1]), torch.tensor([1.0, 1, 0, 1])
    more, half = space["beside"](right.double(), own.double())
    apart = (right - own).double()
    found += ["beside"] * (
        abs(more - apart.mean()) > 1e-9 or abs(half - 1.96 * apart.var().div(4).sqrt()) > 1e-9
    )
    last, rolled = space["two_maps"](model, images)
    with torch.no_grad():
        x = model.positions(
            torch.cat([model.class_token.expand(7, 1, -1), model.patches(images)], 1)
        )
        total, maps_by_hand = torch.eye(17), []
        for block in model.encoder.blocks:
            layer, y = block.attention, block.attention_norm(x)
            q, k = (p(y).unflatten(2, (2, 8)).transpose(1, 2) for p in (layer.q_proj, layer.k_proj))
            maps_by_hand.append((q @ k.mT / 8**0.5).softmax(-1).mean(1))
            x = block(x)
        for A in maps_by_hand:
            total = (A + torch.eye(17)) / 2 @ total
    for made, hand in ((last, maps_by_hand[-1]), (rolled, total)):
        share = hand[:, 0, 1:] / hand[:, 0, 1:].sum(1, keepdim=True)
        found += ["maps"] * (not torch.allclose(made, share, atol=1e-4))
    return sorted(set(found))


def test_the_pages_functions_are_those_of_another_program():
    assert faults(run()) == []


@for_each(
    ("(1, 0), value=1.0) > 0", "(0, 1), value=1.0) > 0", "left out"),
    ('paint = images.amin() if how == "black" else 0.0', "paint = 0.0", "black"),
    ("maps[classes == c].mean(dim=0)", "maps[classes >= c].mean(dim=0)", "class means"),
    ("maps[labels[others] == c]", "maps[labels[tried] == c]", "peers"),
    ("sure - after", "before.mean() - after", "one by one"),
    ("more.shape[-1] ** 0.5", "more.shape[-1]", "beside"),
    ("rolled.append(rollout[:, 0, 1:])", "rolled.append(rollout[:, 1:, 0])", "maps"),
)
def test_a_planted_mistake_is_seen(old, new, what):
    assert what in faults(run((old, new)))
