"""What ``diagnose`` promises beside the names: it disturbs nothing, and its report is whole."""

import copy
import json
import random
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from subjects import sdpa, torch_layer
from torch import nn

from attn_lib import assert_attention, diagnose, diagnose_rope
from attn_lib.diagnosis.mistakes import MISTAKES

pytestmark = pytest.mark.usefixtures("one_thread")


def unscaled(q, k, v):
    return (q @ k.mT).softmax(-1) @ v


# ---------------------------------------------------------------- it disturbs nothing


def test_a_module_stays_as_it_is():
    layer = torch_layer(dropout=0.1)
    layer.out_proj.eval()  # a mode of its own within a module in training
    layer.in_proj_bias.requires_grad_(False)
    before = copy.deepcopy(layer.state_dict())
    diagnose(layer)
    modes = {name: part.training for name, part in layer.named_modules()}
    assert modes == {"": True, "out_proj": False}
    assert all(torch.equal(layer.state_dict()[name], value) for name, value in before.items())
    assert all(p.grad is None for p in layer.parameters())
    assert not layer.in_proj_bias.requires_grad
    assert layer.dropout == 0.1


def test_tensors_that_a_function_holds_stay_as_they_are():
    gain, layer = torch.ones(1), nn.Linear(8, 8)
    before = layer.weight.clone()

    def mine(q, k, v):
        return F.scaled_dot_product_attention(q * gain, k, v)

    diagnose(mine)
    assert torch.equal(gain, torch.ones(1))
    assert torch.equal(layer.weight, before)


@pytest.mark.parametrize("make", [lambda: unscaled, torch_layer], ids=["function", "module"])
def test_random_state_modes_and_output_stay_as_they_are(make, capsys):
    fn, states = make(), []
    for _ in range(2):
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        if states:
            diagnose(fn)
        states.append((torch.rand(2).tolist(), random.random(), np.random.rand()))  # noqa: S311
    assert states[0] == states[1]
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32
    assert capsys.readouterr() == ("", "")


def test_it_works_without_gradients_and_with_another_default_dtype():
    with torch.no_grad():
        assert diagnose(unscaled).mistakes == ["scale_missing"]
        assert not torch.is_grad_enabled()
    torch.set_default_dtype(torch.float64)
    try:
        assert diagnose(sdpa).ok
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_report_is_the_same_each_time():
    reports = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        reports.append(str(diagnose(unscaled)))
    assert reports[0] == reports[1]


def test_a_report_asks_about_a_hundred_questions():
    """So that it stays short: each is one call of the module (107 today, under a second)."""
    calls = []
    hook = nn.modules.module.register_module_forward_pre_hook(
        lambda module, _: (
            calls.append(type(module)) if isinstance(module, nn.MultiheadAttention) else None
        )
    )
    with hook:
        assert diagnose(torch_layer()).ok
    assert 50 < len(calls) < 150


def test_the_package_is_imported_without_it():
    script = "import sys, attn_lib; print('attn_lib.diagnosis' in sys.modules); attn_lib.diagnose"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


# ---------------------------------------------------------------- what cannot be


class NoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(12, 12) for _ in range(3))

    def forward(self, x):
        return (self.q_proj(x) @ self.k_proj(x).mT / 12**0.5).softmax(-1) @ self.v_proj(x)


def broken(q, k, v):
    raise RuntimeError("shape of nothing")


WRONG = {
    "a class": (nn.MultiheadAttention, {}, TypeError, "instance.*MultiheadAttention"),
    "a number": (3, {}, TypeError, "callable"),
    "layout": (sdpa, {"layout": "BHSD"}, ValueError, "BHTd.*BTHd.*'BHSD'"),
    "mask": (sdpa, {"mask": "true"}, ValueError, "attend.*blocked.*additive.*'true'"),
    "mask shape": (sdpa, {"mask_shape": "BLS"}, ValueError, "B1TS.*'BLS'"),
    "window": (sdpa, {"window": 0}, ValueError, "window must be at least 1, got 0"),
    "causal": (sdpa, {"causal": "yes"}, ValueError, "top_left.*'yes'"),
    "norm": (sdpa, {"qk_norm": "batch"}, ValueError, "rms.*'batch'"),
    "heads are contradicted": (torch_layer(), {"heads": 4}, ValueError, "heads"),
    "heads are not said": (NoHeads(), {}, ValueError, "heads="),
    "it raises": (broken, {}, ValueError, "RuntimeError: shape of nothing"),
    "an unknown role": (sdpa, {"arguments": "q, k, w"}, ValueError, "w"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_is_said(name):
    fn, adapter, error, message = WRONG[name]
    with pytest.raises(error, match=message):
        diagnose(fn, **adapter)


def test_one_wide_head_is_right_where_it_is_meant():
    assert diagnose(NoHeads(), heads=1).ok


# ---------------------------------------------------------------- the report


def test_the_report_can_be_read_shown_and_stored():
    report = diagnose(unscaled)
    (failure,) = report.failures
    text, page = str(report), report._repr_markdown_()
    for part in (failure.likely, failure.look_for, failure.repair, failure.source):
        assert part
        assert part in text
        assert part in page
    assert text.startswith("unscaled: one mistake found.")
    numbers = re.findall(r"(?m)^ *(actual|expected)  +\[", text)
    assert numbers == ["actual", "expected"] == re.findall(r"(?m)^ *(actual|expected)  +\[", page)
    assert json.loads(json.dumps(report.as_dict()))["failures"][0]["mistake"] == "scale_missing"
    assert (report.ok, report.mistakes) == (False, ["scale_missing"])


def test_the_numbers_of_the_example_are_those_of_the_function():
    report = diagnose(unscaled)
    rows = re.findall(r"(actual|expected) +\[(.*?)\]", report.failures[0].example)
    (_, actual), (_, expected) = rows
    assert actual != expected
    assert all(abs(float(x)) < 10 for row in (actual, expected) for x in row.split(","))


def test_two_mistakes_are_two_failures():
    def mine(q, k, v):
        return (q @ k.mT).softmax(-2) @ v

    assert set(diagnose(mine).mistakes) == {"scale_missing", "softmax_over_queries"}


def test_what_nobody_knows_is_no_guess():
    def mine(q, k, v):
        return sdpa(q, k, v) + 0.01 * q.sum() * v.mean(-2, keepdim=True)

    (failure,) = diagnose(mine).failures
    assert failure.mistake in (None, "batch_leak")  # both are true of it
    assert "No known mistake" in failure.likely or failure.mistake


def test_asserting_is_one_line():
    assert assert_attention(sdpa) is None
    with pytest.raises(AssertionError, match=r"(?s)scale is missing.*Repair"):
        assert_attention(unscaled)


def test_rope_has_a_diagnosis_of_its_own():
    from attn_lib.positions import apply_rope

    def rotate(q, k, positions):
        return apply_rope(q, positions), apply_rope(k, positions)

    assert diagnose_rope(rotate).ok
    assert diagnose_rope(lambda x, positions: apply_rope(x, positions)).ok
    assert diagnose_rope(lambda x, positions: apply_rope(x, -positions)).mistakes == [
        "rope_direction"
    ]


# ---------------------------------------------------------------- the table


@pytest.mark.parametrize("name", MISTAKES)
def test_each_row_of_the_table_is_whole(name):
    row = MISTAKES[name]
    assert row.id == name
    assert row.likely[0].isupper()
    assert row.likely.endswith(".")
    assert row.name
    assert row.look_for
    assert row.repair
    assert row.source.startswith("https://")


def test_the_table_is_long_enough():
    assert len(MISTAKES) >= 100
    texts = [row.likely for row in MISTAKES.values()]
    assert len(texts) == len(set(texts))
