"""Executable variants: mistakes in scale, softmax, softcap and sinks."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from attn_lib.diagnosis.formula import Run, Stage, cap, close, scale, scale_of

Change = dict[str, Stage]


def skip(run: Run) -> None:
    """A stage that was left out."""


def scaled_by(factor: Callable[[Run], float]) -> Change:
    """Another scale than the one that is meant."""

    def change(run: Run) -> None:
        run.scores = run.scores * factor(run)

    return {"scale": change}


def d_k(run: Run) -> int:
    """Width of a query."""
    return run.q.shape[-1]


SCALE_MISSING = (scaled_by(lambda run: 1.0),)
SCALE_TWICE = (scaled_by(lambda run: scale_of(run) ** 2),)
SCALE_MULTIPLIED = (scaled_by(lambda run: 1.0 / scale_of(run)),)
SCALE_BY_D_K = (scaled_by(lambda run: 1.0 / d_k(run)),)
SCALE_BY_MODEL_WIDTH = (scaled_by(lambda run: (d_k(run) * run.heads) ** -0.5),)
SCALE_BY_NUM_HEADS = (
    scaled_by(lambda run: run.heads**-0.5),
    scaled_by(lambda run: 1.0 / run.heads),
)
SCALE_BY_VALUE_WIDTH = (scaled_by(lambda run: run.v.shape[-1] ** -0.5),)
SCALE_BY_LENGTH = (scaled_by(lambda run: run.scores.shape[-1] ** -0.5),)


def _default_scale(run: Run) -> float:
    if run.intent.scale is None:
        raise ValueError("no other scale is meant")
    return d_k(run) ** -0.5


SCALE_IGNORED = (scaled_by(_default_scale),)


def softmax_by(function: Callable[[Tensor], Tensor]) -> Change:
    """Other weights than the softmax over the keys."""

    def change(run: Run) -> None:
        run.weights = function(run.scores)

    return {"softmax": change}


def _flattened(scores: Tensor) -> Tensor:
    return scores.flatten(-2).softmax(dim=-1).view_as(scores)


def _low(dtype: torch.dtype) -> tuple[Change, ...]:
    def softmax(scores: Tensor) -> Tensor:
        return scores.float().to(dtype).softmax(dim=-1).double()

    def rounded(scores: Tensor) -> Tensor:
        return scores.float().softmax(dim=-1).to(dtype).double()

    return softmax_by(softmax), softmax_by(rounded)


def _no_maximum(scores: Tensor) -> Tensor:
    powers = scores.float().exp()
    return (powers / powers.sum(dim=-1, keepdim=True)).double()


def _one_maximum(scores: Tensor) -> Tensor:
    powers = (scores - scores.max()).float().exp()
    return (powers / powers.sum(dim=-1, keepdim=True)).double()


def _relu(scores: Tensor) -> Tensor:
    positive = scores.clamp(min=0.0)
    return positive / positive.sum(dim=-1, keepdim=True)


SOFTMAX_OVER_QUERIES = (softmax_by(lambda s: s.softmax(dim=-2)),)
SOFTMAX_OVER_HEADS = (softmax_by(lambda s: s.softmax(dim=1)),)
SOFTMAX_OVER_BATCH = (softmax_by(lambda s: s.softmax(dim=0)),)
SOFTMAX_FLATTENED = (
    softmax_by(_flattened),
    softmax_by(lambda s: s.flatten(1).softmax(dim=-1).view_as(s)),
    softmax_by(lambda s: s.flatten(0).softmax(dim=-1).view_as(s)),
    softmax_by(
        lambda s: (
            s.transpose(1, 2)
            .flatten(2)
            .softmax(dim=-1)
            .unflatten(-1, (s.shape[1], -1))
            .transpose(1, 2)
        )
    ),
)
SOFTMAX_LOW_PRECISION = (*_low(torch.bfloat16), *_low(torch.float16))
SOFTMAX_NO_MAXIMUM = (softmax_by(_no_maximum), softmax_by(_one_maximum))
SOFTMAX_TWICE = (softmax_by(lambda s: s.softmax(dim=-1).softmax(dim=-1)),)
SOFTMAX_SIGMOID = (softmax_by(torch.sigmoid),)
SOFTMAX_RELU = (
    softmax_by(_relu),
    softmax_by(lambda s: s.clamp(min=0.0) / (s.clamp(min=0.0).sum(-1, keepdim=True) + 1e-6)),
    softmax_by(lambda s: s.relu() / s.relu().sum(-1, keepdim=True).clamp(min=1e-9)),
    softmax_by(F.relu),
)
SOFTMAX_MISSING = (
    softmax_by(lambda s: s),
    softmax_by(lambda s: s.masked_fill(s == -math.inf, 0.0)),
    softmax_by(lambda s: s / s.masked_fill(s == -math.inf, 0.0).sum(dim=-1, keepdim=True)),
)
SOFTMAX_LOG = (softmax_by(lambda s: s.log_softmax(dim=-1)),)


def _softmax_then_zeros(run: Run) -> None:
    weights = run.scores.softmax(dim=-1)
    run.weights = weights if run.open is None else weights * run.open


def _given_after_softmax(run: Run) -> None:
    scores = run.scores if run.reach is None else run.scores.masked_fill(~run.reach, -math.inf)
    weights = scores.softmax(dim=-1)
    run.weights = weights if run.given is None else weights * run.given


SOFTMAX_BEFORE_MASK: tuple[Change, ...] = (
    {"close": skip, "softmax": _softmax_then_zeros},
    {"close": skip, "softmax": _given_after_softmax},
)


def _without_sink(run: Run) -> None:
    _needs(run.intent.sinks is not None)
    run.weights = run.scores.softmax(dim=-1)


def _needs(condition: bool) -> None:
    if not condition:
        raise ValueError("this part is not meant to be there")


def _capped(run: Run, scores: Tensor) -> Tensor:
    _needs(run.intent.softcap is not None)
    bound = run.intent.softcap or 1.0
    return bound * (scores / bound).tanh()


def _no_cap(run: Run) -> None:
    _needs(run.intent.softcap is not None)


def _close_then_cap(run: Run) -> None:
    close(run)
    run.scores = _capped(run, run.scores)


def _cap_weights(run: Run) -> None:
    run.weights = _capped(run, run.scores.softmax(dim=-1))


def _cap_then_scale(run: Run) -> None:
    run.scores = _capped(run, run.scores)
    scale(run)


def _cap_by_clamp(run: Run) -> None:
    _capped(run, run.scores)
    run.scores = run.scores.clamp(-(run.intent.softcap or 1.0), run.intent.softcap)


def _not_multiplied_back(run: Run) -> None:
    cap(run)
    run.scores = _capped(run, run.scores) if run.intent.softcap is None else run.scores
    run.scores = run.scores / (run.intent.softcap or 1.0)


SINKS_DROPPED: tuple[Change, ...] = ({"softmax": _without_sink},)
SOFTCAP_MISSING: tuple[Change, ...] = ({"cap": _no_cap},)
SOFTCAP_AFTER_MASK: tuple[Change, ...] = ({"cap": skip, "close": _close_then_cap},)
SOFTCAP_AFTER_SOFTMAX: tuple[Change, ...] = ({"cap": skip, "softmax": _cap_weights},)
SOFTCAP_BEFORE_SCALE: tuple[Change, ...] = ({"cap": skip, "scale": _cap_then_scale},)
SOFTCAP_CLAMPED: tuple[Change, ...] = ({"cap": _cap_by_clamp}, {"cap": _not_multiplied_back})
