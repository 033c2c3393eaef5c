"""Gradients, to the inputs and to a module's parameters, and rounding in half precision."""

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from attn_check.cases import Exam, without_padded_rows
from attn_check.reference import Case, Change, Layer, Run, compute, repeated
from attn_check.report import numbers
from attn_check.search import compared
from attn_check.subject import quoted

Tensors = dict[str, Tensor]
_HALF = (torch.float16, torch.bfloat16)
_WORDS = {"q": "queries", "k": "keys", "v": "values", "out": "the output"}


def check_gradients(exam: Exam) -> None:
    """Compare gradients to inputs and parameters, without a mask and with one, T = S and T < S."""
    found, B, checked = exam.found, exam.examples(5), False
    cases = [exam.case("5 positions", 5, B=B)]
    if exam.subject.crosses:
        cases.append(exam.case("4 queries and 6 keys", 4, 6))
    if exam.subject.takes_mask:
        cases.append(exam.padded(exam.case("5 positions and a mask", 5, B=B)))
    for case in map(without_padded_rows, cases) if exam.ignores_padded else cases:
        try:
            out, actual = _of_subject(exam, case)
        except Exception as error:  # whatever backward raises is an answer
            found.unchecked.append(f"gradients, {case.name}: {quoted(error)}")
            continue
        checked, right = True, exam.expected(case)
        if not exam.equal(out, right, case):
            found.broken(
                "the output depends on whether gradients are recorded",
                "Under torch.no_grad() the output is right; with gradients it is another one.",
                exam.shown(case, out, right),
            )
            return
        texts = _differing(actual, _of_reference(exam, case))
        if texts:
            for mistake in _mistakes(exam, case, actual, texts):
                found.known(mistake, "\n".join([f"{case.name}:", *texts.values()]))
            return
    if checked:
        names = "the input" if exam.subject.projects else "q, k and v"
        also = ", with a mask too" if exam.subject.takes_mask else ""
        found.holds.append(f"gradients to {names} are those of the reference{also}")
        if len(actual) > len(case.tensors):
            found.holds.append("gradients to the projections are those of the reference")
        elif exam.layer is not None:
            found.unchecked.append("gradients to the projections: the module cannot be copied")


@torch.enable_grad()
def _of_subject(exam: Exam, case: Case) -> tuple[Tensor, Tensors]:
    """The output, and its gradients to the inputs and, where there is a copy, to its weights."""
    twin = exam.subject.fresh()
    leaves = _leaves({role: x.to(twin.dtype) for role, x in case.tensors.items()})
    out = twin.ask(case.with_tensors(**leaves)).out
    assert out is not None  # noqa: S101
    found = _gradients(out, leaves, case)
    if exam.layer is not None and twin.module is not None and twin.module is not twin.original:
        parameters = dict(twin.module.named_parameters())
        for name, gradient in _gradients(out, parameters, case).items():
            parameters[name].data.copy_(gradient)  # to be read as weights are
        found |= _named(exam.read(twin.module))
    return out.detach(), found


@torch.enable_grad()
def _of_reference(exam: Exam, case: Case, change: Change | None = None) -> Tensors:
    leaves, layer = _leaves(case.tensors), exam.layer
    if layer is not None:
        weights, biases, norms = map(_leaves, (layer.weights, layer.biases, layer.norms))
        layer = replace(layer, weights=weights, biases=biases, norms=norms)
    out = compute(case.with_tensors(**leaves), exam.intent, layer, change).out
    return _gradients(out, leaves if layer is None else {**leaves, **_named(layer)}, case)


def _leaves(tensors: Mapping[str, Tensor | None]) -> Tensors:
    return {n: x.detach().clone().requires_grad_(True) for n, x in tensors.items() if x is not None}


def _gradients(out: Tensor, leaves: Mapping[str, Tensor], case: Case) -> Tensors:
    """Gradients of the output along a fixed direction, in which no row or channel is special."""
    way = torch.linspace(-9.0, 9.0, out.numel(), dtype=torch.float64).view(out.shape).sin()
    if case.ignored is not None and out.dim() == 3:
        way = way.masked_fill(case.ignored[..., None], 0.0)
    wanted = [x for x in leaves.values() if x.requires_grad]
    if out.requires_grad and wanted:
        (out * way).sum().backward(inputs=wanted, retain_graph=True)
    return {name: torch.zeros_like(x) if x.grad is None else x.grad for name, x in leaves.items()}


def _named(layer: Layer) -> Tensors:
    """Everything of a layer that can be trained, with a name in words."""
    tensors = {f"the weight of {_WORDS[role]}": w for role, w in layer.weights.items()}
    biases = {_WORDS.get(role): bias for role, bias in layer.biases.items() if bias is not None}
    tensors |= {f"the bias of {name}": bias for name, bias in biases.items() if name}
    for name, x in layer.norms.items():
        role, _, kind = name.partition("_")
        if kind != "eps":
            tensors[f"the {kind or 'gain'} of the norm of {_WORDS[role]}"] = x
    return tensors


def _differing(actual: Tensors, expected: Tensors) -> dict[str, str]:
    texts = {}
    for name, gradient in actual.items():
        given, x = gradient.double(), expected[name]
        if not torch.allclose(given, x, atol=3e-4 * (1.0 + x.abs().max().item()), rtol=0.0):
            shown = numbers(given) if bool(given.any()) else "none"
            texts[name] = f"gradient to {name}: {shown}, expected {numbers(x)}"
    return texts


_DETACHED = {
    "q": "gradient_detached_q",
    "k": "gradient_detached_k",
    "v": "gradient_detached_v",
    "weights": "gradient_detached_weights",
}


def _mistakes(exam: Exam, case: Case, actual: Tensors, texts: dict[str, str]) -> list[str]:
    """The parts that are detached, where the gradients to the inputs differ."""
    if texts.keys().isdisjoint(case.tensors):
        missing = not all(bool(actual[name].any()) for name in texts)
        return ["gradient_missing_projection" if missing else "gradient_wrong"]
    if not any(bool(actual[role].any()) for role in case.tensors):
        return ["gradient_missing"]
    for parts in ("q", "k", "v", "weights", "k v", "q v", "q k v"):
        if not _differing(actual, _of_reference(exam, case, _without(parts.split()))):
            return [_DETACHED[part] for part in parts.split()]
    return ["gradient_wrong"]


def _without(parts: list[str]) -> Change:
    """Attention in which no gradient passes through some of its tensors."""

    def part(run: Run, name: str) -> Tensor:
        return getattr(run, name).detach() if name in parts else getattr(run, name)

    return {
        "group": lambda r: [repeated(r, part(r, name)) for name in "kv"],
        "score": lambda r: part(r, "q") @ r.k.mT,
        "mix": lambda r: part(r, "weights") @ r.v,
    }


def check_precision(exam: Exam) -> None:
    """Ask in every dtype, with a mask too, and measure the errors in half precision."""
    subject, found = exam.subject, exam.found
    if subject.dtype != torch.float32:
        stored = str(subject.dtype).removeprefix("torch.")
        found.unchecked.append(f"half precision: the parameters are {stored}")
        return
    if subject.module is not None and subject.fresh().module is subject.original:
        found.unchecked.append("half precision, other dtypes: the module cannot be copied")
        return
    case = exam.case("half", 24, B=4)
    if not subject.projects:
        case = case.with_tensors(q=10.0 * case.tensors["q"])
    cases = [("", case)] + ([(" with a mask", exam.padded(case))] if subject.takes_mask else [])
    errors: list[tuple[str, float, float]] = []
    for dtype, (words, one) in product((*_HALF, torch.float32, torch.float64), cases):
        name = f"{str(dtype).removeprefix('torch.')}{words}"
        out = _in_dtype(exam, one, dtype, name)
        if out is not None and dtype in _HALF:
            errors.append((name, *_rounding(exam, out, one, dtype)))
    if errors:
        _judge(exam, errors)


def _judge(exam: Exam, errors: list[tuple[str, float, float]]) -> None:
    found, projects = exam.found, exam.subject.projects  # a module rounds in its projections too
    lost = [name for name, error, _ in errors if not math.isfinite(error)]
    coarse = [one for one in errors if not one[1] <= one[2]]
    if lost:
        text = "some rows that may attend to something are NaN or infinite."
        found.broken("NaN or infinity in half precision", f"In {' and '.join(lost)} {text}")
    elif not coarse:
        limits = "two rounding steps", "twice that of attention rounded after each step"
        found.holds.append(f"half precision: the error is at most {limits[projects]}")
    elif not projects:
        texts = [f"{error:.2g} rounding steps in {name}" for name, error, _ in errors]
        found.known("not_float32_inside", f"The largest error is {', '.join(texts)}.")
    else:
        for name, error, most in coarse:
            exam.note(
                f"In {name} the largest error is {error:.2g} rounding steps; that of attention "
                f"whose every step is rounded to it is {most / 2:.2g}."
            )


def _rounding(exam: Exam, out: Tensor, case: Case, dtype: torch.dtype) -> tuple[float, float]:
    """The error in rounding steps, and its limit: twice that of the formula rounded as it goes."""

    def rounded(tensors: Mapping[str, Tensor | None]) -> Tensors:
        return {name: x.to(dtype).double() for name, x in tensors.items() if x is not None}

    case, layer = replace(case, tensors=rounded(case.tensors)), exam.layer
    if layer is not None:
        layer = replace(layer, weights=rounded(layer.weights), biases=rounded(layer.biases))
    expected = compared(compute(case, exam.intent, layer).out, case, exam.intent)
    step = torch.finfo(dtype).eps * expected.abs().max().item()
    usual = compute(case, exam.intent, layer, dtype=dtype).out
    gaps = [(compared(x, case, exam.intent) - expected).abs() for x in (out, usual)]
    error, least = (gap.nan_to_num(float("inf")).max().item() / step for gap in gaps)
    return error, 2.0 if layer is None else 2.0 * max(least, 2.0)


def _in_dtype(exam: Exam, case: Case, dtype: torch.dtype, name: str) -> Tensor | None:
    """The output in another dtype, and what is wrong with it apart from its numbers."""
    twin, found = exam.subject.fresh(dtype=dtype), exam.found
    if twin.module is not None:
        twin.module.to(dtype)
    answer, half = twin.answer(case), dtype in _HALF
    if answer.out is None and half and "overflow" in answer.raised:
        found.known("mask_fill_overflows_half", f"In {name}: {answer.raised}")
    elif answer.out is None:
        found.unchecked.append(f"{'half precision, ' if half else ''}{name}: {answer.raised}")
    elif answer.dtype != dtype:
        text = f"Inputs of {name} give an output of {str(answer.dtype).removeprefix('torch.')}."
        if not half:
            found.known("output_dtype", text)
        elif "output_dtype" not in {note.mistake for note in found.notes}:
            exam.note(text, "output_dtype")
    return answer.out
