"""Half and double precision: the dtype of the output, overflow, and the size of the error."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from attn_check.cases import Draw
from attn_check.properties import with_padding
from attn_check.reference import Case, Layer, compute
from attn_check.report import Findings, Note
from attn_check.search import compared
from attn_check.subject import Subject

_HALF = (torch.float16, torch.bfloat16)


def check_precision(subject: Subject, draw: Draw, layer: Layer | None, found: Findings) -> None:
    """Ask in every dtype, with a mask too, and measure the errors in half precision."""
    if subject.dtype != torch.float32:
        stored = str(subject.dtype).removeprefix("torch.")
        found.unchecked.append(f"half precision: the parameters are {stored}")
        return
    if subject.module is not None and subject.fresh().module is subject.original:
        found.unchecked.append("half precision, other dtypes: the module cannot be copied")
        return
    case, errors = draw.case("half", 24, B=4), []
    if not subject.projects:
        case = replace(case, tensors={**case.tensors, "q": 10.0 * case.tensors["q"]})
    cases = [("", case)]
    if subject.takes_mask:
        cases.append((" with a mask", with_padding(draw, case)))
    for dtype in (*_HALF, torch.float32, torch.float64):
        for words, one in cases:
            name = f"{str(dtype).removeprefix('torch.')}{words}"
            out = _in_dtype(subject, one, dtype, name, found)
            if out is not None and dtype in _HALF:
                errors.append((name, *_errors(out, one, draw, layer, dtype)))
    lost = [name for name, error, _ in errors if not math.isfinite(error)]
    if lost:
        found.property(
            "NaN or infinity in half precision",
            f"In {_and(lost)} some rows that may attend to something are NaN or infinite.",
        )
    elif subject.projects:
        _of_module(errors, found)
    elif any(error > 2.0 for _, error, _ in errors):
        texts = [f"{error:.2g} rounding steps in {name}" for name, error, _ in errors]
        found.known("not_float32_inside", f"The largest error is {_and(texts)}.")
    elif errors:
        found.holds.append("half precision: the error is at most two rounding steps")


def _and(texts: list[str]) -> str:
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def _of_module(errors: list[tuple[str, float, float]], found: Findings) -> None:
    """A module rounds in its projections too: compared with rounding after each step."""
    large = [(name, error, usual) for name, error, usual in errors if not error <= 2.0 * usual]
    for name, error, usual in large:
        found.notes.append(
            Note(
                None,
                f"In {name} the largest error is {error:.2g} rounding steps; that of attention "
                f"whose every step is rounded to it is {usual:.2g}.",
            )
        )
    if errors and not large:
        found.holds.append(
            "half precision: the error is at most twice that of attention rounded after each step"
        )


def _errors(
    out: Tensor, case: Case, draw: Draw, layer: Layer | None, dtype: torch.dtype
) -> tuple[float, float]:
    """The error in rounding steps, and that of the formula rounded after each of its steps."""
    case = replace(case, tensors={r: x.to(dtype).double() for r, x in case.tensors.items()})
    if layer is not None:
        biases = {r: None if b is None else b.to(dtype).double() for r, b in layer.biases.items()}
        weights = {r: w.to(dtype).double() for r, w in layer.weights.items()}
        layer = replace(layer, weights=weights, biases=biases)
    expected = compute(case, draw.intent, layer).out
    usual = compute(case, draw.intent, layer, dtype=dtype).out
    out, usual, expected = (compared(x, case, draw.intent) for x in (out, usual, expected))
    floor = torch.finfo(dtype).eps * expected.abs().max().item()
    gaps = ((x - expected).abs().nan_to_num(float("inf")).max().item() for x in (out, usual))
    mine, theirs = (gap / floor for gap in gaps)
    return mine, max(theirs, 2.0)


def _in_dtype(
    subject: Subject, case: Case, dtype: torch.dtype, name: str, found: Findings
) -> Tensor | None:
    """The output in another dtype, and what is wrong with it apart from its numbers."""
    twin = subject.fresh()
    twin.dtype = dtype
    if twin.module is not None:
        twin.module.to(dtype)
    answer = twin.answer(case)
    if answer.out is None:
        if "overflow" in answer.raised and dtype in _HALF:
            found.known("mask_fill_overflows_half", f"In {name}: {answer.raised}")
        else:
            kind = "half precision, " if dtype in _HALF else ""
            found.unchecked.append(f"{kind}{name}: {answer.raised}")
        return None
    got = twin.raw_out.dtype if twin.raw_out is not None else dtype
    text = f"Inputs of {name} give an output of {str(got).removeprefix('torch.')}."
    if got != dtype and dtype not in _HALF:
        found.known("output_dtype", text)
    elif got != dtype and "output_dtype" not in {note.mistake for note in found.notes}:
        found.notes.append(Note("output_dtype", text))
    return answer.out
