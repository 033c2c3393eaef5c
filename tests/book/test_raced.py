"""The page on vision: its patches, of images with several channels, of which it has none.

Its model, the page itself compares with the library's, and ``test_formulas.py`` with its formulas.
"""

import pages
import torch
import torch.nn.functional as F
from tables import for_each

CELL = pages.sources(pages.BOOK / "15_vision.ipynb")["ch15-code-06"].partition("\n\ntiny = ")[0]


@for_each((1, 4, 6, 2), (3, 10, 15, 5))
def test_patches_are_those_of_unfold(channels, height, width, p):
    images = torch.randn(2, channels, height, width)
    cut = pages.defined_by([CELL])["cut"]
    assert torch.equal(cut(images, p), F.unfold(images, p, stride=p).mT)
