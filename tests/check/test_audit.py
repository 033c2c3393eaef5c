"""The audit names planted leaks under the right property, and passes right models."""

import copy
import json
import random

import numpy as np
import pytest
import right_models
import torch
from planted.plants import edited
from right_models import VOCABULARY, Convolution, Decoder, Experts, Recurrent
from tables import for_each, raises_for_each
from torch import nn

import attn_lib
from attn_check import Audit, Finding, assert_same_answer, audit
from attn_check.__main__ import main
from attn_check.runs import PROPERTIES
from attn_lib import DecoderLM
from attn_lib.positions import apply_rope

pytestmark = pytest.mark.usefixtures("one_thread")

RIGHT = {
    "rope": (Decoder, {}),
    "table": (Decoder, {"positions_by": "table"}),
    "ALiBi": (Decoder, {"positions_by": "alibi"}),
    "no positions": (Decoder, {"positions_by": "nothing"}),
    "window": (Decoder, {"window": 3}),
    "sinks and a window": (Decoder, {"sinks": True, "window": 5}),
    "grouped heads": (Decoder, {"kv_heads": 1}),
    "recurrent": (Recurrent, {}),
    "convolution": (Convolution, {}),
    "experts": (Experts, {}),
}


def built(kind, *edits, **more):
    right, options = RIGHT[kind]
    torch.manual_seed(0)
    return (edited(right, edits) if edits else right)(**{**options, **more}).eval()


def judged(model, **adapter):
    given = {"length": 8, "properties": [*PROPERTIES], **adapter}
    return audit(model, step=getattr(model, "step", None), **given)


def wrong(report):
    """The properties that may not break and do."""
    return " ".join(dict.fromkeys(f.name.replace(" ", "-") for f in report.broken if f.counts))


# ---------------------------------------------------------------- planted leaks

MAY = "may = keys <= at[:, None]"
MASKED = "may = may & mask[:, None, None, :].bool()"
SAME = "segments[:, None, :, None] == segments[:, None, None, :]"
FIRST = "x = self.embedding(tokens)\n"
LAST = "        return self.norm(x) @"
JOINED = "k, v = torch.cat([old[0], k], dim=2), torch.cat([old[1], v], dim=2)"
SCORES = "scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])"
CALLED = "y, new = self.attend(block, block.norm(x), old, positions, may, at[:, None] - keys)"
REAL = "real = mask[:, -T:, None].to(x)"
GIVEN = "            positions = at.expand(B, T)\n"
BOTH = "left-padding right-padding"


EARLIER = "earlier = longer[:, 2 - back : 2 - back + T]"
ROTATED = "rotated(q, positions), rotated(k, positions)"
SHORT = "(k[:, :, -self.window + 1 :], v[:, :, -self.window + 1 :], seen)"
IN_WINDOW = "may & (keys > at[:, None] - self.window)"
ALL = "left-padding right-padding"

# a kind, what is edited, the properties that break
LEAKS = {
    "one token ahead": ("rope", (MAY, f"{MAY} + 1"), "causal cache chunks"),
    "no causal mask": ("rope", (MAY, f"{MAY} + T"), "causal cache chunks"),
    "causal only in the first layer": (
        "rope",
        (CALLED, CALLED.replace("may,", "may | (i > 0),")),
        "causal left-padding right-padding packing cache chunks",
    ),
    "a mean over the text": (
        "rope",
        (LAST, f"        x = x - x.mean(1, keepdim=True)\n{LAST}"),
        "causal left-padding right-padding packing cache chunks",
    ),
    "a soft closing": (
        "rope",
        ("torch.finfo(scores.dtype).min)", "-4.0)"),
        "causal left-padding right-padding packing cache chunks",
    ),
    "a convolution that wraps": (
        "convolution",
        (EARLIER, "earlier = x.roll(back, 1)"),
        "causal left-padding right-padding packing cache chunks",
    ),
    "statistics of the batch": ("rope", (LAST, f"        x = x - x.mean(0)\n{LAST}"), "batch"),
    "one scale for all rows": (
        "rope",
        (LAST, f"        x = x / x.abs().amax()\n{LAST}"),
        "causal batch packing cache chunks",
    ),
    "the next row, a little": (
        "rope",
        (LAST, f"        x = x + 0.01 * x.roll(1, 0)\n{LAST}"),
        "batch",
    ),
    "a cache shared by rows": (
        "rope",
        (JOINED, JOINED.replace("old[0]", "old[0][:1].expand(len(k), -1, -1, -1)")),
        "batch",
    ),
    "a state shared by rows": (
        "recurrent",
        (
            "return self.out(torch.stack(outs, dim=1)), state",
            "return self.out(torch.stack(outs, dim=1)), state[:1].expand_as(state)",
        ),
        "batch",
    ),
    "padding mask dropped": ("rope", (MASKED, "pass"), "left-padding"),
    "padding mask dropped beside a cache": (
        "rope",
        (MASKED, f"{MASKED} | (past is not None)"),
        "left-padding",
    ),
    "padding mask dropped in the second layer": (
        "rope",
        (CALLED, CALLED.replace("may,", "may if i == 0 else (keys <= at[:, None])[None, None],")),
        "left-padding packing",
    ),
    "padding mask shifted": (
        "rope",
        (MASKED, MASKED.replace("mask[", "mask.roll(1, 1)[")),
        "left-padding right-padding",
    ),
    "padding mask of the first row": (
        "rope",
        (MASKED, MASKED.replace("mask[", "mask[:1][")),
        "left-padding",
    ),
    "padding mask of the new tokens": (
        "table",
        (MASKED, f"mask = F.pad(mask[:, -T:], (seen, 0), value=1)\n            {MASKED}"),
        "left-padding",
    ),
    "positions ignored": (
        "table",
        ("self.table(positions)", "self.table(at)"),
        "left-padding packing",
    ),
    "positions of the first row": (
        "table",
        ("self.table(positions)", "self.table(positions[:1])"),
        "left-padding",
    ),
    "positions count padding": (
        "table",
        ("if positions is None:", "if mask is not None or positions is None:"),
        "left-padding",
    ),
    "a state fed by padding": (
        "recurrent",
        ("k * real, gate * real", "k, gate * real"),
        "left-padding",
    ),
    "a convolution fed by padding": (
        "convolution",
        ("x = x * mask[:, -T:, None]", "pass"),
        "left-padding",
    ),
    "segments ignored": ("rope", (SAME, "segments[:, None, None, :] >= 0"), "packing"),
    "segments compared by order": ("rope", (SAME, SAME.replace("==", ">=")), "packing"),
    "segments in the first layer": (
        "rope",
        (
            CALLED,
            CALLED.replace(
                "may,", "may if i == 0 or segments is None else (keys <= at[:, None])[None, None],"
            ),
        ),
        "packing",
    ),
    "segments one token late": (
        "rope",
        (SAME, SAME.replace("segments[:", "segments.roll(1, 1)[:", 1)),
        "packing",
    ),
    "a state goes through documents": (
        "recurrent",
        ("state = state * same[:, None, None]", "pass"),
        "packing",
    ),
    "a convolution goes through documents": (
        "convolution",
        ("earlier = earlier * same[..., None]", "pass"),
        "packing",
    ),
    "positions restart with the cache": (
        "rope",
        (GIVEN, "            positions = torch.arange(T).expand(B, T)\n"),
        "cache chunks",
    ),
    "positions off by one with the cache": (
        "table",
        (GIVEN, "            positions = (at - int(seen > 0)).expand(B, T)\n"),
        "cache chunks",
    ),
    "the cache in the wrong order": (
        "rope",
        (
            JOINED,
            JOINED.replace("[old[0], k]", "[k, old[0]]").replace("[old[1], v]", "[v, old[1]]"),
        ),
        "left-padding chunks",
    ),
    "new values are lost": (
        "rope",
        (JOINED, JOINED.replace("old[1], v", "old[1], v * 0")),
        "cache chunks",
    ),
    "the cache of the first layer for all": ("rope", ("past[i]", "past[0]"), "cache chunks"),
    "keys turned anew in the cache": (
        "rope",
        (ROTATED, "rotated(q, positions), rotated(k, positions + (old is not None))"),
        "cache chunks",
    ),
    "a window one too short in the cache": (
        "window",
        (SHORT, SHORT.replace("+ 1 :", "+ 2 :")),
        "cache chunks",
    ),
    "no window beside a cache": (
        "window",
        (
            "if self.window is not None:\n            may",
            "if self.window is not None and past is None:\n            may",
        ),
        "chunks",
    ),
    "a chunk's mask at the top left": (
        "rope",
        (MAY, "may = keys <= torch.arange(T)[:, None] + (seen if T == 1 else 0)"),
        "chunks",
    ),
    "a chunk without a mask": ("rope", (MAY, f"{MAY} + T * (seen > 0)"), "chunks"),
    "a chunk begins a new state": (
        "recurrent",
        ("if state is None else state", "if state is None or T > 1 else state"),
        "chunks",
    ),
    "a chunk's last key hidden": (
        "rope",
        (MAY, "may = keys <= at[:, None] - int(seen > 0 and T > 2)"),
        "chunks",
    ),
    "a chunk's positions all the same": (
        "rope",
        (GIVEN, "            positions = (at if seen == 0 else at[:1]).expand(B, T)\n"),
        "chunks",
    ),
    "a memory of the last call": (
        "rope",
        (
            FIRST,
            FIRST
            + "        x = x + getattr(self, 'before', 0.0)\n        self.before = 0.1 * x[:1, :1]\n",
        ),
        "repeat",
    ),
    "dropout that is always on": (
        "rope",
        (FIRST, FIRST + "        x = F.dropout(x, 0.1, True)\n"),
        "repeat",
    ),
}


@pytest.mark.parametrize("name", LEAKS)
def test_a_planted_leak_is_named(name):
    kind, edit, expected = LEAKS[name]
    report = judged(built(kind, edit))
    assert wrong(report) == expected, report
