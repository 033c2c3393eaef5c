"""What differs between training and evaluation, and where dropout is applied."""

from dataclasses import replace

import torch
from torch import Tensor

from attn_check.cases import Draw
from attn_check.properties import with_padding
from attn_check.quiet import WithoutDropout
from attn_check.reference import Case, Run, compute
from attn_check.report import Findings, largest, numbers, show
from attn_check.returned import gives_weights, same_weights
from attn_check.search import Hypothesis, equal
from attn_check.subject import Subject

_CALLS, _SURE = 400, 7.0  # number of draws, and of standard errors that are no accident
_OWN = "training mode, call by call: it draws random numbers other than by PyTorch's dropout"


def check_training(subject: Subject, draw: Draw, hypothesis: Hypothesis, found: Findings) -> None:
    """With dropout switched off, training mode gives what evaluation mode gives.

    Dropout that a module draws itself cannot be switched off: then means are compared.
    """
    if subject.module is None or any(text.startswith(_OWN) for text in found.unchecked):
        return
    cases = [draw.case("5 positions", 5)]
    if subject.takes_mask:
        cases.append(with_padding(draw, draw.case("5 positions and a mask", 5)))
    for case in cases:
        trained = replace(case, training=True)
        one, two, again = (subject.answer(c).out for c in (case, trained, trained))
        if one is None or two is None or equal(one, two, case, draw.intent):
            continue
        if again is not None and not equal(two, again, case, draw.intent):
            _random(subject, draw, trained, one, hypothesis, found)
            return
        found.known(
            "train_eval_differ",
            f"{case.name}: the outputs of the two modes differ by up to "
            f"{largest(one, two):.3g}, with PyTorch's dropout switched off in both.",
        )
        return
    found.holds.append("training mode, with dropout switched off, equals evaluation mode")


def _random(
    subject: Subject,
    draw: Draw,
    case: Case,
    settled: Tensor,
    hypothesis: Hypothesis,
    found: Findings,
) -> None:
    """Whether the mean of many calls is what evaluation mode gives."""
    torch.manual_seed(0)  # the caller's random state is restored afterwards
    outs = [out for _ in range(_CALLS) if (out := subject.answer(case).out) is not None]
    if len(outs) < _CALLS or any(out.shape != settled.shape for out in outs):
        found.unchecked.append(_OWN)
        return
    mean, error = torch.stack(outs).mean(dim=0), torch.stack(outs).std(dim=0) / _CALLS**0.5
    error = error.clamp(min=1e-6 * (1.0 + settled.abs().max().item()))
    if ((mean - settled).abs() <= _SURE * error).all():
        found.unchecked.append(
            f"{_OWN}; the mean of {_CALLS} such calls is that of evaluation mode, as far as "
            f"{_CALLS} calls can tell"
        )
        return
    empty = compute(
        case, hypothesis.intent, hypothesis.layer, {**hypothesis.change, "mix": _nothing}
    ).out
    full = settled - empty
    share = ((full * (mean - empty)).sum() / full.square().sum().clamp(min=1e-12)).item()
    if ((mean - empty - share * full).abs() <= _SURE * error).all():
        found.property(
            "training and evaluation differ on average",
            "In training mode it draws random numbers other than by PyTorch's dropout, and the "
            f"mean of {_CALLS} calls is {share:.2f} times what evaluation mode gives, before the "
            "output's bias. Dropout keeps the mean if what is kept is divided by 1 - p.",
            show(replace(case, words=f"the mean of {_CALLS} calls"), mean, settled, draw.intent),
        )
        found.unchecked.append(_OWN)
        return
    found.unchecked.append(
        f"{_OWN}; the mean of {_CALLS} such calls differs from evaluation mode by up to "
        f"{largest(mean, settled):.3g}, as dropout before the softmax may, rightly or not"
    )


def _nothing(run: Run) -> Tensor:
    return torch.zeros_like(run.weights @ run.v)


def check_dropout(subject: Subject, draw: Draw, hypothesis: Hypothesis, found: Findings) -> None:
    """What dropout is given in training: a tensor whose softmax is the weights, or these."""
    if subject.module is None:
        return
    case = draw.case("dropout", 7, training=True)
    twin = subject.fresh()
    if twin.module is None:
        return
    twin.module.train()
    tensors, mask = twin.tensors(case), twin.mask_of(case)
    try:
        with WithoutDropout() as mode, torch.no_grad():
            twin.call(tensors, mask)
    except Exception:  # other checks report what it raises
        return
    finally:
        twin.module.eval()
    run = compute(case, hypothesis.intent, hypothesis.layer, hypothesis.change)
    scale, kinds = run.q.shape[-1] ** -0.5, set()
    for x in mode.dropped:
        for weights in (run.weights, *run.weights.unbind(1)):
            if x.numel() != weights.numel() or x.shape[-2:] != weights.shape[-2:]:
                continue
            x = x.detach().double().view(weights.shape)
            for words, scores in (("it", x), ("it, times 1/sqrt(d_k),", x * scale)):
                if gives_weights(scores, weights):
                    found.known(
                        "dropout_before_softmax",
                        f"What dropout is given, one row: {numbers(x.flatten(0, -2)[-1])}. The "
                        f"softmax of {words} over the open keys gives the weights "
                        f"{numbers(weights.flatten(0, -2)[-1])}.",
                    )
                    return
            if same_weights(x, weights):
                kinds.add("weights")
    square = [x for x in mode.dropped if x.shape[-2:] == run.weights.shape[-2:]]
    if kinds:
        found.holds.append("in training, dropout is applied to the weights")
    elif square:
        found.unchecked.append("dropout in training: not recognised, on weights or on scores")
