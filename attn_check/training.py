"""What training relies on: modes, weights and their dropout, gradients."""

import copy
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from attn_check.calls import NAMES, WithoutDropout
from attn_check.cases import Exam, with_empty_row, without_padded_rows
from attn_check.inputs import find_empty
from attn_check.reference import Case, Change, Layer, compute, repeated
from attn_check.report import largest, numbers, show
from attn_check.search import Hypothesis, open_rows, rows_of
from attn_check.subject import quoted

Tensors = dict[str, Tensor]
_CALLS, _SURE = 400, 7.0  # number of draws, and of standard errors that are no accident
_OWN = "training mode, call by call: it draws random numbers other than by PyTorch's dropout"
_WORDS = {"q": "queries", "k": "keys", "v": "values", "out": "the output"}


def check_training(exam: Exam) -> None:
    """With dropout switched off, training mode gives what evaluation mode gives."""
    found = exam.found
    if exam.subject.module is None or any(text.startswith(_OWN) for text in found.unchecked):
        return
    for case in (exam.case("5 positions", 5), exam.padded(exam.case("5 positions, a mask", 5))):
        trained = replace(case, training=True)
        one, two, again = (exam.out(c) for c in (case, trained, trained))
        if one is None or two is None or exam.equal(one, two, case):
            continue
        if again is not None and not exam.equal(two, again, case):
            _compare_means(exam, trained, one)
        else:
            gap = f"{largest(one, two):.3g}"
            text = f"{case.name}, PyTorch's dropout switched off: the two differ by up to {gap}."
            found.known("train_eval_differ", text)
        return
    found.holds.append("training mode, with dropout switched off, equals evaluation mode")


def _compare_means(exam: Exam, case: Case, settled: Tensor) -> None:
    """Where random numbers cannot be switched off: is their mean what evaluation mode gives?"""
    torch.manual_seed(0)  # the caller's random state is restored afterwards
    outs = [out for _ in range(_CALLS) if (out := exam.out(case)) is not None]
    hypothesis, text = exam.hypothesis, _OWN
    if hypothesis is not None and len(outs) == _CALLS:
        mean, error = torch.stack(outs).mean(dim=0), torch.stack(outs).std(dim=0)
        gap, allowed = mean - settled, (_SURE * error / _CALLS**0.5).clamp(min=1e-4)
        nothing = {**hypothesis.change, "mix": lambda run: torch.zeros_like(run.weights @ run.v)}
        full = settled - exam.expected(case, nothing)  # without its bias
        share = float((full * gap).sum() / full.square().sum().clamp(min=1e-12))
        kept = bool((gap.abs() <= allowed).all())
        text += f"; the mean of {_CALLS} such calls is "
        text += "that of evaluation mode" if kept else "another than in evaluation mode"
        if not kept and ((gap - share * full).abs() <= allowed).all():
            exam.found.broken(
                "training and evaluation differ on average",
                f"In training mode the mean of {_CALLS} calls is {1.0 + share:.2f} times what "
                "evaluation mode gives, a bias apart: divide what dropout keeps by 1 - p.",
                show(replace(case, name=f"mean of {_CALLS} calls"), mean, settled, exam.intent),
            )
    exam.found.unchecked.append(text)


def _alike(a: Tensor, b: Tensor, tolerance: float = 1e-4) -> bool:
    """Whether two tensors of weights are equal, but for rounding."""
    size = 1.0 + b[b.isfinite()].abs().max().item() if b.isfinite().any() else 1.0
    return a.shape == b.shape and torch.allclose(a, b, atol=tolerance * size, equal_nan=True)


def _as_scores(x: Tensor, weights: Tensor, d_k: int) -> str:
    """Words for the scores, x or x scaled, whose softmax gives the weights; else none."""
    for words, scores in (("it", x), ("it, times 1/sqrt(d_k),", x * d_k**-0.5)):
        if x.shape == weights.shape:
            opened = scores.masked_fill(weights == 0.0, -torch.inf)
            if any(_alike(tried.softmax(dim=-1), weights) for tried in (scores, opened)):
                return words
    return ""


def check_weights(exam: Exam, hypothesis: Hypothesis) -> None:
    """Compare returned weights with those of the formula that gives the output."""
    pairs = [(case, answer.weights) for case, answer in exam.answered if answer.weights is not None]
    if exam.ignores_padded:
        pairs = [(case, weights) for case, weights in pairs if not case.closes]
    for case, weights in pairs:
        run = compute(case, hypothesis.intent, hypothesis.layer, hypothesis.change)
        expected = run.weights
        near = max(1e-4, case.tolerance)  # large scores are rounded coarsely
        if open_rows(case, hypothesis.intent) is not None or _alike(weights, expected, near):
            continue  # what an empty row gives is a note, not a mistake
        if _alike(weights, expected.mean(dim=1, keepdim=True)):
            exam.found.known("weights_averaged", f"Their shape is {tuple(weights.shape)}.")
            return
        early = _as_scores(weights, expected, run.q.shape[-1])
        gap = (weights - expected).abs().nan_to_num(float("inf"))
        worst = int(gap.amax(dim=-1).flatten().argmax())
        texts = [numbers(w.expand(gap.shape).flatten(0, -2)[worst]) for w in (weights, expected)]
        text = f"{case.name}, one row:\nactual    {texts[0]}\nexpected  {texts[1]}"
        exam.found.known(*(("weights_before_softmax", "") if early else ("weights_wrong", text)))
        return
    if pairs:
        exam.found.holds.append("returned weights are those that give the output")


def note_empty_rows(exam: Exam) -> None:
    """Say what a query gives that may attend to nothing: NaN, or what explains its numbers."""
    case, whole = with_empty_row(exam), exam.hypothesis
    out = exam.out(case)
    if out is None or case.mask is None or out.shape[0] != case.batch:
        return
    if bool(rows_of(out, ~case.mask.any(dim=-1)).isnan().all()):
        exam.found.known("empty_row_nan", "")
    elif whole and "mask" not in whole.change and (empty := find_empty(exam, whole)) != "zeros":
        words = NAMES["an empty row"][empty]
        exam.note(f"A query that may attend to nothing{words}; in attn_lib it gives zeros.")


def check_dropped_weights(exam: Exam) -> None:
    """In training, returned weights are those before dropout."""
    case, twin = replace(exam.case("training", 5), training=True), exam.subject.fresh(drops=True)
    settled = exam.subject.answer(case).weights
    if exam.subject.module is None or settled is None:
        return
    for weights in [twin.answer(case).weights for _ in range(4)]:
        if weights is not None and not _alike(weights, settled):
            sums = weights.sum(dim=-1)
            text = f"Rows of the weights sum to {sums.min():.3g} to {sums.max():.3g}."
            exam.found.known("weights_after_dropout", text)


def check_dropout(exam: Exam, hypothesis: Hypothesis) -> None:
    """Whether dropout receives the scores or the weights."""
    if exam.subject.module is None:
        return
    case = replace(exam.case("dropout", 7), training=True)
    with WithoutDropout() as mode:
        exam.subject.fresh(drops=True, never_drops=False).answer(case)
    run = compute(case, hypothesis.intent, hypothesis.layer, hypothesis.change)
    square = [x.detach().double() for x in mode.dropped if x.shape[-2:] == run.weights.shape[-2:]]
    parts = [run.weights, *run.weights.unbind(1)]  # of all heads, or of each alone
    pairs = [(x.view(w.shape), w) for x in square for w in parts if x.numel() == w.numel()]
    for x, weights in pairs:
        if words := _as_scores(x, weights, run.q.shape[-1]):
            rows = [numbers(rows.flatten(0, -2)[-1]) for rows in (x, weights)]
            text = f"What dropout is given, one row: {rows[0]}. The softmax of {words} over "
            text += f"the open keys gives the weights {rows[1]}."
            exam.found.known("dropout_before_softmax", text)
            return
    if any(_alike(x, weights) for x, weights in pairs):
        exam.found.holds.append("in training, dropout is applied to the weights")
        exam.found.unchecked.append("what becomes of the weights after dropout, in training")
    elif square:
        exam.found.unchecked.append("dropout in training: not recognised, on weights or on scores")


def check_gradients(exam: Exam) -> None:
    """Compare gradients to inputs and parameters, without a mask and with one, T = S and T < S."""
    found, B, actual = exam.found, exam.examples(5), Tensors()
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
        right = exam.expected(case)
        if not exam.equal(out, right, case):
            found.broken(
                "the output depends on whether gradients are recorded",
                "Under torch.no_grad() the output is right; with gradients it is another one.",
                exam.shown(case, out, right),
            )
            return
        if texts := _differing(actual, _of_reference(exam, case, exam.added)):
            for mistake in _mistakes(exam, case, actual, texts):
                found.known(mistake, "\n".join([f"{case.name}:", *texts.values()]))
            return
    if actual:
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
    leaves = {r: x.to(twin.dtype, copy=True).requires_grad_() for r, x in case.tensors.items()}
    out = twin.ask(case.with_tensors(**leaves)).out
    assert out is not None  # noqa: S101
    if exam.layer is None or twin.module is None or twin.module is twin.original:
        return out.detach(), _gradients(out, leaves, case)
    weights = {f".{n}": p for n, p in twin.module.named_parameters() if p.requires_grad}
    found = _gradients(out, leaves | weights, case)
    for name, p in weights.items():
        p.data.copy_(found.pop(name))  # to be read as weights are
    return out.detach(), found | _named(exam.read(twin.module))


@torch.enable_grad()
def _of_reference(exam: Exam, case: Case, change: Change) -> Tensors:
    leaves, layer = copy.deepcopy((dict(case.tensors), exam.layer))
    trained = leaves if layer is None else leaves | _named(layer)
    for x in trained.values():
        x.requires_grad_()
    out = compute(case.with_tensors(**leaves), exam.intent, layer, change).out
    return _gradients(out, trained, case)


def _gradients(out: Tensor, leaves: Tensors, case: Case) -> Tensors:
    """Gradients of the output along a fixed direction, in which no row or channel is special."""
    way = torch.linspace(-9.0, 9.0, out.numel(), dtype=torch.float64).view(out.shape).sin()
    if case.ignored is not None and out.dim() == 3:
        way = way.masked_fill(case.ignored[..., None], 0.0)
    if not out.requires_grad:
        return {name: torch.zeros_like(x) for name, x in leaves.items()}
    found = torch.autograd.grad((out * way).sum(), [*leaves.values()], materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


def _named(layer: Layer) -> Tensors:
    """Everything of a layer that can be trained, with a name in words."""
    tensors = {f"the weight of {_WORDS[role]}": w for role, w in layer.weights.items()}
    biases = {role: bias for role, bias in layer.biases.items() if bias is not None}
    tensors |= {f"the bias of {_WORDS[role]}": x for role, x in biases.items() if role in _WORDS}
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


_DETACHED: dict[str, Change] = {  # attention in which no gradient passes through one tensor
    "q": {"score": lambda r: r.q.detach() @ r.k.mT},
    "k": {"group": lambda r: (repeated(r, r.k.detach()), repeated(r, r.v))},
    "v": {"mix": lambda r: r.weights @ r.v.detach()},
    "weights": {"scaled": lambda r: r.scores.detach() * r.factor},
}


def _mistakes(exam: Exam, case: Case, actual: Tensors, texts: dict[str, str]) -> list[str]:
    """The parts that are detached, where the gradients to the inputs differ."""
    if texts.keys().isdisjoint(case.tensors):
        missing = not all(bool(actual[name].any()) for name in texts)
        return ["gradient_missing_projection" if missing else "gradient_wrong"]
    if not any(bool(actual[role].any()) for role in case.tensors):
        return ["gradient_missing"]
    for parts in (["q"], ["k"], ["v"], ["weights"], ["k", "v"], ["q", "v"], ["q", "k", "v"]):
        change = dict(chain.from_iterable(_DETACHED[part].items() for part in parts))
        if not _differing(actual, _of_reference(exam, case, {**exam.added, **change})):
            return [f"gradient_detached_{part}" for part in parts]
    return ["gradient_wrong"]
