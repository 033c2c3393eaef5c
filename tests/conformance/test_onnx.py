"""The 93 cases that ONNX publishes for its `Attention` operator, through public functions only.

The `onnx` package makes the cases, inputs and expected outputs, with a reference in NumPy. What
the operator does around attention (splitting heads, repeating shared keys, joining a cache) is
the adapter's; everything about scores and masks is the library's. Where a case also publishes
raw scores, which `attention` does not offer, its other outputs are compared: "output only".

A table for the README: ``python tests/conformance/test_onnx.py``.
"""

import warnings

import numpy as np
import onnx
import pytest
import torch
from onnx.backend.test.case.node import collect_testcases

from attn_lib import attention, causal_mask, padding_mask, window_mask

SCORES_AFTER_SOFTMAX = 3  # qk_matmul_output_mode


def published_cases() -> list:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporters overflow on purpose
        cases = collect_testcases("Attention")
    return [case for case in cases if [n.op_type for n in case.model.graph.node] == ["Attention"]]


CASES = published_cases()


def tensor(array: np.ndarray) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def run(case) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Name of each comparable output -> (ours, published)."""
    node = case.model.graph.node[0]
    options = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    arrays, expected = case.data_sets[0]
    given = dict(zip([i for i in node.input if i], map(tensor, arrays), strict=True))
    slots = dict(zip(("q", "k", "v", "mask", "past_k", "past_v", "real"), node.input, strict=False))
    q, k, v, mask, past_k, past_v, real = (
        given.get(slots.get(name)) for name in ("q", "k", "v", "mask", "past_k", "past_v", "real")
    )
    flat = q.dim() == 3
    if flat:
        q, k, v = (
            x.unflatten(-1, (options[f"{kind}_num_heads"], -1)).transpose(1, 2)
            for x, kind in ((q, "q"), (k, "kv"), (v, "kv"))
        )
    if past_k is not None:
        k, v = torch.cat([past_k, k], dim=2), torch.cat([past_v, v], dim=2)
    present = (k, v)
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))

    T, S = q.shape[2], k.shape[2]
    offset = 0 if past_k is None else past_k.shape[2]
    allowed = torch.ones(T, S, dtype=torch.bool)
    if real is not None:
        offset = real - T
        allowed = allowed & padding_mask(real, S)
    if options.get("is_causal"):
        allowed = allowed & causal_mask(T, S, offset=offset)
    left, right = (options.get(f"{side}_window_size", -1) for side in ("left", "right"))
    if (left, right) != (-1, -1):
        wide = 10 * (T + S)
        allowed = allowed & window_mask(
            T, wide if left < 0 else left, wide if right < 0 else right, S, offset=offset
        )
    bias = None
    if mask is not None:
        if mask.shape[-1] < S:  # a shorter mask closes the keys that it does not name
            closed = False if mask.dtype == torch.bool else -torch.inf
            mask = torch.nn.functional.pad(mask, (0, S - mask.shape[-1]), value=closed)
        mask = mask[(None,) * (4 - mask.dim())]
        if mask.dtype == torch.bool:
            allowed = allowed & mask
        else:
            bias = mask
    if allowed.dim() == 2 and bool(allowed.all()):
        allowed = None
    out, weights = attention(
        q,
        k,
        v,
        mask=allowed,
        bias=bias,
        scale=options.get("scale"),
        softcap=options.get("softcap") or None,
    )
    if flat:
        out = out.transpose(1, 2).flatten(2)

    made = dict(zip(("Y", "present_key", "present_value", "scores"), node.output, strict=False))
    ours = {"Y": out, "present_key": present[0], "present_value": present[1]}
    if options.get("qk_matmul_output_mode") == SCORES_AFTER_SOFTMAX:
        ours["scores"] = weights
    published = dict(zip([o for o in node.output if o], map(tensor, expected), strict=True))
    return {n: (ours[n], published[o]) for n, o in made.items() if o and n in ours}


def error_in_steps(ours: torch.Tensor, published: torch.Tensor) -> float:
    """Largest error: in units of 2e-6 for float32, of one rounding step for half precision."""
    assert ours.shape == published.shape
    assert ours.dtype == published.dtype
    difference = (ours.double() - published.double()).abs()
    if ours.dtype == torch.float32:
        return float((difference / 2e-6).max())
    exponent = published.double().abs().clamp(min=torch.finfo(ours.dtype).tiny).log2().floor()
    return float((difference / (torch.finfo(ours.dtype).eps * 2.0**exponent)).max())


LIMIT = {torch.float32: 1.0, torch.float16: 1.0, torch.bfloat16: 2.0}


def test_all_cases_are_there():
    assert len(CASES) == 93
    assert len({case.name for case in CASES}) == 93


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case):
    compared = run(case)
    assert "Y" in compared
    for name, (ours, published) in compared.items():
        assert error_in_steps(ours, published) <= LIMIT[ours.dtype], name


def test_a_wrong_answer_would_be_seen():
    """The tolerance is tight: one part in ten thousand is too much."""
    ours, published = run(CASES[0])["Y"]
    assert error_in_steps(ours * 1.0001, published) > 1.0


if __name__ == "__main__":
    only = [c for c in CASES if len(run(c)) < sum(bool(o) for o in c.model.graph.node[0].output)]
    passed = sum(
        all(error_in_steps(*pair) <= LIMIT[pair[0].dtype] for pair in run(case).values())
        for case in CASES
    )
    print(f"attn_lib: {passed} of {len(CASES)}, {len(only)} of them output only")
