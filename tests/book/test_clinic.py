"""The clinic: each switch of its recipe is the mistake it is called."""

from functools import partial

import pages
import pytest

from attn_check import diagnose

CELLS = pages.sources(pages.BOOK / "18_clinic.ipynb")
IMPORTS = "import math\nimport torch\nimport torch.nn.functional as F"
PARTS = [CELLS[f"ch18-{name}"] for name in ("code-02", "allowed", "tiled", "code-03", "attend")]
RECIPE = pages.defined_by([IMPORTS, *PARTS])
NAMED = {
    "scale: none": "the scale is missing",
    "scale: d": "divided by d_k instead of its root",
    "scale: √heads": "scaled by the number of heads",
    "mask: no effect": "the mask has no effect",
    "mask: after the softmax": "the mask comes after the softmax",
    "causal: inverted": "the causal mask is reversed",
    "causal: one ahead": "the causal mask sees one key too many",
    "causal: from the first key": "the causal mask is aligned at the first key",
    "softmax: over queries": "softmax over the queries",
    "softmax: no maximum": "the output is not attention's",  # 0, where the usual code has NaN
    "fill: -1e9": "the fill number does not fit in half precision",
    "padding: on queries": "the padding mask closes queries instead of keys",
    "window: one too wide": "the window is one too wide",
    "tiles: not rescaled": "the online softmax does not rescale",
    "heads: no transpose": "heads are merged without a transpose",
}


@pytest.mark.parametrize("wrong", RECIPE["MISTAKES"])
def test_each_switch_is_the_mistake_it_is_called(wrong):
    attend = partial(RECIPE["attend"], wrong=wrong)
    meant = {"causal": True, "window": 4 if "window" in wrong else None}

    def masked(q, k, v, mask=None):
        return attend(q, k, v, mask, meant["window"])

    def alone(q, k, v):
        return attend(q, k, v)

    def merged(q, k, v):
        parts = (x.unflatten(2, (4, -1)).transpose(1, 2) for x in (q, k, v))
        return attend(*parts).transpose(1, 2).flatten(2)

    called = {"softmax: over queries": alone, "heads: no transpose": merged}.get(wrong, masked)
    meant |= {"heads": 4} if called is merged else {}
    meant |= {"mask_means": "attend"} if called is masked else {}
    report = diagnose(called, **meant)
    assert NAMED[wrong] in [found.name for found in report.failures], report
