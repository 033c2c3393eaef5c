"""Half and double precision: the dtype of the output, overflow, and the size of the error."""

import torch
from torch import Tensor

from attn_lib.diagnosis.cases import Draw
from attn_lib.diagnosis.findings import Findings, largest
from attn_lib.diagnosis.formula import Case, Layer, compute
from attn_lib.diagnosis.properties import with_padding
from attn_lib.diagnosis.report import Note
from attn_lib.diagnosis.subject import Subject

_HALF = (torch.float16, torch.bfloat16)


def check_precision(subject: Subject, draw: Draw, layer: Layer | None, found: Findings) -> None:
    """Ask in every dtype, with a mask too; the error in half precision for functions alone."""
    if subject.dtype != torch.float32:
        return
    if subject.module is not None and subject.fresh().module is subject.original:
        found.unchecked.append("other dtypes: the module cannot be copied")
        return
    case, errors = draw.case("half", 24, B=4), []
    if not subject.projects:
        case = Case(**{**vars(case), "tensors": {**case.tensors, "q": 10.0 * case.tensors["q"]}})
    masked = with_padding(draw, case) if subject.takes_mask else None
    for dtype in (*_HALF, torch.float32, torch.float64):
        name = str(dtype).removeprefix("torch.")
        out = _in_dtype(subject, case, dtype, name, found)
        if masked is not None:
            _in_dtype(subject, masked, dtype, f"{name} with a mask", found)
        if out is not None and dtype in _HALF:
            rounded = {r: x.to(dtype).double() for r, x in case.tensors.items()}
            expected = compute(Case(**{**vars(case), "tensors": rounded}), draw.intent, layer).out
            floor = torch.finfo(dtype).eps * expected.abs().max().item()
            errors.append((name, largest(out, expected) / floor))
    if subject.projects:
        return
    if any(error > 2.0 for _, error in errors):
        texts = [f"{error:.2g} rounding steps in {name}" for name, error in errors]
        found.known("not_float32_inside", f"The largest error is {' and '.join(texts)}.")
    elif errors:
        found.holds.append("half precision: the error is at most two rounding steps")


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
            found.unchecked.append(f"{name}: {answer.raised}")
        return None
    got = twin.raw_out.dtype if twin.raw_out is not None else dtype
    text = f"Inputs of {name} give an output of {str(got).removeprefix('torch.')}."
    if got != dtype and dtype not in _HALF:
        found.known("output_dtype", text)
    elif got != dtype and "output_dtype" not in {note.mistake for note in found.notes}:
        found.notes.append(Note("output_dtype", text))
    return answer.out
