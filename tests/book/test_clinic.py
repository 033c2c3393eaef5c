"""The clinic: each switch of its recipe is the mistake it is called; its conclusions can fail."""

import math
import re
from functools import partial

import pages
import pytest
import torch
from torch import nn

from attn_check import diagnose

CELLS = pages.sources(pages.BOOK / "18_clinic.ipynb")
GIVEN = {"math": math, "torch": torch, "F": nn.functional, "nn": nn, "partial": partial}
GIVEN |= {"__name__": "clinic", "print": lambda *_: None}


def run(names, *changes):
    """What these cells of the page define, with some of their text changed."""
    with torch.random.fork_rng(devices=[]):
        return pages.defined_by(
            [CELLS[f"ch18-{name}"] for name in names.split()], *changes, **GIVEN
        )


RECIPE = run("code-02 allowed tiled code-03 attend")
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


def test_each_bar_has_its_section_in_its_order():
    """Each longer word of a bar stands in the heading."""
    (threads,) = re.findall(r"(?s)threads = {.*?\n}", CELLS["ch18-threads"])
    labels = [label.replace(",", "") for label in re.findall(r'    "([^"]+)": \(', threads)]
    cells = pages.read(pages.BOOK / "18_clinic.ipynb").cells
    headings = [c.source.splitlines()[0].lower() for c in cells if c.source.startswith("### ")]
    for label, heading in zip(labels, headings, strict=True):
        assert all(word in heading for word in label.split() if len(word) > 3), heading


FEW = [("steps=200", "steps=50"), ("(0, 4, 13)", "(4,)"), ("echoes(500)", "echoes(50)")]
FEW += [("*MISTAKES[2:9]", 'MISTAKES[2], "causal: one ahead"')]


def losses(*changes):
    run("code-02 allowed tiled code-03 attend echo train losses", *FEW, *changes)


def test_what_training_shows_can_fail():
    """A leak that is none."""
    losses()
    with pytest.raises(AssertionError):
        losses(("mask = s <= t + 1", "mask = s <= t"))
