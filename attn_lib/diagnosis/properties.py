"""Properties that need no reference for the output: what a call leaves behind, and gradients."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attn_lib.diagnosis.cases import Draw, key_masks
from attn_lib.diagnosis.formula import Case, Layer, compute
from attn_lib.diagnosis.mistakes import MISTAKES
from attn_lib.diagnosis.quiet import WithoutDropout
from attn_lib.diagnosis.report import Failure, Note
from attn_lib.diagnosis.search import equal
from attn_lib.diagnosis.subject import Subject, quoted


@dataclass
class Findings:
    """What has been found so far."""

    failures: list[Failure] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    holds: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)

    def known(self, mistake: str, example: str, *, alike: tuple[str, ...] = ()) -> None:
        """Add a failure, or a note, of the table."""
        row = MISTAKES[mistake]
        if row.note:
            if mistake not in {note.mistake for note in self.notes}:
                self.notes.append(Note(mistake, f"{row.likely} {example}".strip()))
        elif mistake not in {failure.mistake for failure in self.failures}:
            self.failures.append(
                Failure(
                    mistake,
                    row.name,
                    row.likely,
                    row.look_for,
                    row.repair,
                    example,
                    row.source,
                    alike,
                )
            )


def numbers(x: Tensor) -> str:
    """A few numbers, as [0.123, −1.500]."""
    return "[" + ", ".join(f"{v:.4g}" for v in x.flatten()[:4].tolist()) + "]"


def largest(a: Tensor, b: Tensor) -> float:
    """The largest difference."""
    return (a - b).abs().nan_to_num(float("inf")).max().item()


def check_repeats(subject: Subject, draw: Draw, found: Findings) -> None:
    """Equal calls give equal outputs, with another call between them too."""
    case, other = draw.case("repeat", 5), draw.case("between", 7, B=3)
    first, second = subject.answer(case), subject.answer(case)
    subject.answer(other)
    third = subject.answer(case)
    outs = [a.out for a in (first, second, third)]
    if outs[0] is None:
        return
    if outs[1] is None or outs[2] is None:
        raised = second.raised or third.raised
        example = f"The first call of 5 positions gives an output; the same call later: {raised}"
        found.known("state_between_calls", example)
        return
    if equal(outs[0], outs[1], case, draw.intent):
        if equal(outs[1], outs[2], case, draw.intent):
            found.holds.append("equal calls give equal outputs, also with another call between")
        else:
            difference = largest(outs[1], outs[2])
            found.known(
                "state_between_calls",
                f"5 positions, then 7, then the first 5 again: the two outputs of the same 5 "
                f"positions differ by up to {difference:.3g}.",
            )
        return
    watch = WithoutDropout()
    with watch:
        still = [subject.answer(case).out for _ in range(2)]
    settled = still[0] is not None and still[1] is not None
    if settled and torch.equal(still[0], still[1]):  # type: ignore[arg-type]
        subject.always_without_dropout = True
        found.known(
            "dropout_in_evaluation",
            f"Two equal calls in evaluation mode differ by up to {largest(outs[0], outs[1]):.3g}; "
            "with dropout switched off they are equal. Everything else was checked without it.",
        )
    else:
        again = subject.answer(case).out
        if again is not None and outs[2] is not None and torch.equal(outs[2], again):
            found.known("state_between_calls", "The first two of several equal calls differ.")
        else:
            found.known(
                "not_deterministic",
                f"Two equal calls differ by up to {largest(outs[0], outs[1]):.3g}.",
            )


def check_arguments(subject: Subject, draw: Draw, found: Findings) -> None:
    """Tensors and masks that are passed stay as they are."""
    case = draw.case("arguments", 5)
    if subject.takes_mask:
        case = with_padding(draw, case)
    for training in (False, True) if subject.module is not None else (False,):
        case = Case(**{**vars(case), "training": training})
        try:
            tensors, mask = subject.tensors(case), subject.mask_of(case)
            before = {role: x.clone() for role, x in tensors.items()}
            mask_before = None if mask is None else mask.clone()
            with torch.no_grad():
                subject.call(tensors, mask)
        except Exception:  # other checks report what it raises  # noqa: S112
            continue
        for role, x in tensors.items():
            if not torch.equal(x, before[role]):
                example = f"{role} before the call: {numbers(before[role])}; after: {numbers(x)}."
                found.known("inplace_arguments", example)
        if mask is not None and mask_before is not None and not _same(mask, mask_before):
            changed = "its shape" if mask.shape != mask_before.shape else "its values"
            found.known("inplace_mask", f"The mask that was passed has changed {changed}.")
    if not {f.mistake for f in found.failures} & {"inplace_arguments", "inplace_mask"}:
        found.holds.append("arguments are not changed")


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b)


def with_padding(draw: Draw, case: Case) -> Case:
    """The case with a mask that its function can be given."""
    B, (T, S), shape = case.batch, case.lengths, draw.subject.mask_shape
    mask = key_masks(B, S, "right").expand(B, T, S)
    if "B" not in shape:
        mask = mask[:1].expand(B, T, S)
    return Case(**{**vars(case), "mask": mask})


def check_batch(subject: Subject, draw: Draw, found: Findings) -> None:
    """Examples of a batch have no influence on each other."""
    case = draw.case("batch", 5, B=3)
    other = {role: torch.cat([x[:1], -2.0 * x[1:]]) for role, x in case.tensors.items()}
    base, moved = subject.answer(case), subject.answer(Case(**{**vars(case), "tensors": other}))
    if base.out is None or moved.out is None or "B" not in subject.layout:
        return
    one = Case(**{**vars(case), "tensors": {r: x[:1] for r, x in case.tensors.items()}})
    if equal(base.out[:1], moved.out[:1], one, draw.intent):
        found.holds.append("examples of a batch do not influence each other")
        return
    found.known(
        "batch_leak",
        f"Only examples 1 and 2 of a batch were changed; the output of example 0 changed by up to "
        f"{largest(base.out[:1], moved.out[:1]):.3g}.",
    )


def check_strides(subject: Subject, draw: Draw, found: Findings) -> None:
    """Inputs that are stored in another order give the same output."""
    case = draw.case("strides", 5)
    try:
        tensors = subject.tensors(case)
        strided = {r: x.transpose(0, -1).contiguous().transpose(0, -1) for r, x in tensors.items()}
        with torch.no_grad():
            mine = subject.parse(subject.call(tensors, None), case).out
            theirs = subject.parse(subject.call(strided, None), case).out
    except Exception as error:
        found.unchecked.append(f"inputs that are not contiguous: {quoted(error)}")
        return
    if mine is not None and theirs is not None and equal(mine, theirs, case, draw.intent):
        found.holds.append("inputs that are not contiguous give the same output")
    elif mine is not None and theirs is not None:
        example = f"The same values, stored in another order: up to {largest(mine, theirs):.3g}."
        found.known("not_contiguous", example)


Gradients = dict[str, Tensor | None]


def check_gradients(subject: Subject, draw: Draw, layer: Layer | None, found: Findings) -> None:
    """Gradients to each input, and to each projection, are those of the reference."""
    cases = [draw.case("gradients", 5)]
    if subject.crosses:
        cases.append(draw.case("gradients, fewer queries", 4, 6))
    if subject.takes_mask:
        cases.append(with_padding(draw, draw.case("gradients with a mask", 5)))
    checked = False
    for case in cases:
        try:
            mine, theirs = _gradients(subject, case), _expected(case, draw, layer)
        except Exception as error:
            found.unchecked.append(f"{case.name}: {quoted(error)}")
            continue
        checked = True
        if _report_gradients(mine, theirs, case, found):
            return
    if checked:
        names = "the input" if subject.projects else "q, k and v"
        found.holds.append(f"gradients to {names} are those of the reference")


def _gradients(subject: Subject, case: Case) -> Gradients:
    leaves = {role: x.to(subject.dtype).requires_grad_(True) for role, x in case.tensors.items()}
    answer = subject.ask(Case(**{**vars(case), "tensors": leaves}))
    out = subject.raw_out if subject.raw_out is not None else answer.out
    assert out is not None and answer.out is not None  # noqa: S101
    if not answer.out.requires_grad:
        return dict.fromkeys(leaves)
    loss = (answer.out * _weights_of(answer.out)).sum()
    grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return dict(zip(leaves, grads, strict=True))


def _expected(case: Case, draw: Draw, layer: Layer | None) -> Gradients:
    leaves = {r: x.detach().clone().requires_grad_(True) for r, x in case.tensors.items()}
    run = compute(Case(**{**vars(case), "tensors": leaves}), draw.intent, layer)
    loss = (run.out * _weights_of(run.out)).sum()
    return dict(
        zip(
            leaves, torch.autograd.grad(loss, list(leaves.values()), allow_unused=True), strict=True
        )
    )


def _weights_of(out: Tensor) -> Tensor:
    return torch.linspace(-1.0, 1.0, out.numel(), dtype=torch.float64).view(out.shape).sin()


def _report_gradients(mine: Gradients, theirs: Gradients, case: Case, found: Findings) -> bool:
    wrong = []
    for role, expected in theirs.items():
        got = mine[role]
        if expected is None:
            continue
        got = torch.zeros_like(expected) if got is None else got.double()
        size = 1.0 + expected.abs().max().item()
        if not torch.allclose(got, expected, atol=3e-4 * size, rtol=0.0):
            wrong.append((role, got, expected))
    if not wrong:
        return False
    none = [role for role, got, _ in wrong if not got.any()]
    example = "; ".join(
        f"gradient of {role}: {numbers(got)}, expected {numbers(expected)}"
        for role, got, expected in wrong[:2]
    )
    where = f"{case.name}: {example}."
    if set(none) == {"q", "k"}:
        found.known("gradient_detached_weights", where)
    elif none and len(none) == len(wrong):
        for role in none:
            name = f"gradient_detached_{role}"
            found.known(name if name in MISTAKES else "gradient_wrong", where)
    else:
        found.known("gradient_wrong", where)
    return True


def check_half(subject: Subject, draw: Draw, layer: Layer | None, found: Findings) -> None:
    """Half precision, for functions of queries, keys and values."""
    if subject.projects or subject.dtype != torch.float32:
        return
    case = draw.case("half", 6)
    tensors = {**case.tensors, "q": 4.0 * case.tensors["q"]}
    case = Case(**{**vars(case), "tensors": tensors})
    case = with_padding(draw, case) if subject.takes_mask else case
    errors = []
    for dtype in (torch.float16, torch.bfloat16):
        subject.dtype = dtype
        answer = subject.answer(case)
        raw = subject.raw_out
        subject.dtype = torch.float32
        name = str(dtype).removeprefix("torch.")
        if answer.out is None:
            if "overflow" in answer.raised:
                found.known("mask_fill_overflows_half", f"In {name}: {answer.raised}")
            else:
                found.unchecked.append(f"{name}: the call raises {answer.raised}")
            continue
        if raw is not None and raw.dtype != dtype:
            found.known("output_dtype", f"Inputs of {name} give an output of {raw.dtype}.")
        rounded = {r: x.to(dtype).double() for r, x in case.tensors.items()}
        expected = compute(Case(**{**vars(case), "tensors": rounded}), draw.intent, layer).out
        floor = torch.finfo(dtype).eps * expected.abs().max().item()
        errors.append((name, largest(answer.out, expected) / floor))
    if any(error > 2.0 for _, error in errors):
        texts = [f"{error:.2g} rounding steps in {name}" for name, error in errors]
        found.known("not_float32_inside", f"The largest error is {', '.join(texts)}.")
    elif errors:
        found.holds.append("half precision: the error is at most two rounding steps")


def check_training(subject: Subject, draw: Draw, found: Findings) -> None:
    """With dropout switched off, training mode gives what evaluation mode gives."""
    if subject.module is None:
        return
    cases = [draw.case("modes", 5)]
    if subject.takes_mask:
        cases.append(with_padding(draw, draw.case("modes with a mask", 5)))
    for case in cases:
        one = subject.answer(case)
        two = subject.answer(Case(**{**vars(case), "training": True}))
        if one.out is None or two.out is None:
            continue
        if not equal(one.out, two.out, case, draw.intent):
            found.known(
                "train_eval_differ",
                f"{case.name}: with dropout switched off, the outputs differ by up to "
                f"{largest(one.out, two.out):.3g}.",
            )
            return
    found.holds.append("training mode, with dropout switched off, equals evaluation mode")


CHECKS: tuple[Callable[[Subject, Draw, Findings], None], ...] = (
    check_arguments,
    check_batch,
    check_strides,
    check_training,
)
