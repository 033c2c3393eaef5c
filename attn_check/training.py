"""Returned weights, rows without a key, and what training mode changes."""

from dataclasses import replace

import torch
from torch import Tensor

from attn_check.cases import Exam, with_empty_row
from attn_check.isolate import WithoutDropout
from attn_check.reference import Case, Step, compute
from attn_check.report import largest, numbers, show
from attn_check.search import Hypothesis, open_rows, rows_of

_OF_WEIGHTS = {"close", "softmax", "mask", "causal", "window", "reach"}
_CALLS, _SURE = 400, 7.0  # number of draws, and of standard errors that are no accident
_OWN = "training mode, call by call: it draws random numbers other than by PyTorch's dropout"


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of weights are equal, but for rounding."""
    size = 1.0 + b[b.isfinite()].abs().max().item() if b.isfinite().any() else 1.0
    return a.shape == b.shape and torch.allclose(a, b, atol=1e-4 * size, equal_nan=True)


def _as_scores(x: Tensor, weights: Tensor, d_k: int) -> str:
    """Words for the scores, x or x scaled, whose softmax gives the weights; else none."""
    for words, scores in (("it", x), ("it, times 1/sqrt(d_k),", x * d_k**-0.5)):
        if x.shape == weights.shape:
            opened = scores.masked_fill(weights == 0.0, -torch.inf)
            if any(_same(tried.softmax(dim=-1), weights) for tried in (scores, opened)):
                return words
    return ""


def check_weights(exam: Exam, hypothesis: Hypothesis) -> None:
    """Compare returned weights with those of the formula that gives the output."""
    pairs = [(c, a.weights) for c, a in exam.answered if a.weights is not None and not c.closes]
    for case, weights in pairs:
        run = compute(case, hypothesis.intent, hypothesis.layer, hypothesis.change)
        expected = run.weights
        if open_rows(case, hypothesis.intent) is not None or _same(weights, expected):
            continue  # what an empty row gives is a note, not a mistake
        if _same(weights, expected.mean(dim=1, keepdim=True)):
            exam.found.known("weights_averaged", f"Their shape is {tuple(weights.shape)}.")
            return
        early = _as_scores(weights, expected, run.q.shape[-1])
        gap = (weights - expected).abs().nan_to_num(float("inf"))
        worst = int(gap.amax(dim=-1).flatten().argmax())
        texts = [numbers(w.expand(gap.shape).flatten(0, -2)[worst]) for w in (weights, expected)]
        exam.found.known(
            "weights_before_softmax" if early else "weights_wrong",
            f"{case.name}, one row:\nactual    {texts[0]}\nexpected  {texts[1]}",
        )
        return
    if pairs:
        exam.found.holds.append("returned weights are those that give the output")


def check_dropped_weights(exam: Exam) -> None:
    """In training, returned weights are those before dropout."""
    case, twin = replace(exam.case("training", 5), training=True), exam.subject.fresh(drops=True)
    settled = exam.subject.answer(case).weights
    if exam.subject.module is None or settled is None:
        return
    for weights in [twin.answer(case).weights for _ in range(4)]:
        if weights is not None and not _same(weights, settled):
            sums = weights.sum(dim=-1)
            text = f"Rows of the weights sum to {sums.min():.3g} to {sums.max():.3g}."
            exam.found.known("weights_after_dropout", text)
            return


def note_empty_rows(exam: Exam) -> None:
    """Say what such a query gives; of numbers that nothing explains, only whether it is NaN."""
    case, hypothesis = with_empty_row(exam), exam.hypothesis
    out = exam.out(case)
    if out is None or case.mask is None or out.shape[0] != case.batch:
        return
    rows = ~case.mask.any(dim=-1)  # (B, T)
    actual, words = rows_of(out, rows), ""
    if bool(actual.isnan().all()):
        words = "gives NaN"
    elif hypothesis is not None:
        words = "gives neither zeros, nor NaN, nor the mean of the values"
        change = dict(hypothesis.change)
        if _OF_WEIGHTS & change.keys():  # what else it changes belongs to its weights
            change.pop("mix", None)
        steps: dict[str, Step] = {
            "": lambda run: torch.zeros_like(run.scores),
            "attends to all positions equally": lambda run: torch.full_like(run.scores, 1 / run.S),
        }
        for its, step in steps.items():
            expected = rows_of(exam.expected(case, {**change, "softmax": step}), rows)
            if actual.shape == expected.shape and torch.allclose(actual, expected, 1e-3, 1e-4):
                words = its
    if words:
        exam.note(f"A query that may attend to nothing {words}; in attn_lib it gives zeros.")


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


def check_dropout(exam: Exam, hypothesis: Hypothesis) -> None:
    """Whether dropout receives the scores or the weights."""
    if exam.subject.module is None:
        return
    case = replace(exam.case("dropout", 7), training=True)
    with WithoutDropout() as mode:
        exam.subject.fresh(drops=True, never_drops=False).answer(case)
    run, applied = compute(case, hypothesis.intent, hypothesis.layer, hypothesis.change), False
    square = [x for x in mode.dropped if x.shape[-2:] == run.weights.shape[-2:]]
    for x in square:
        for weights in (run.weights, *run.weights.unbind(1)):
            if x.numel() != weights.numel():
                continue
            x = x.detach().double().view(weights.shape)
            if words := _as_scores(x, weights, run.q.shape[-1]):
                rows = [numbers(rows.flatten(0, -2)[-1]) for rows in (x, weights)]
                text = f"What dropout is given, one row: {rows[0]}. The softmax of {words} over "
                text += f"the open keys gives the weights {rows[1]}."
                exam.found.known("dropout_before_softmax", text)
                return
            applied = applied or _same(x, weights)
    if applied:
        exam.found.holds.append("in training, dropout is applied to the weights")
    elif square:
        exam.found.unchecked.append("dropout in training: not recognised, on weights or on scores")
