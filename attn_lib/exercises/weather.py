"""The weather: an error on paper, a scale and windows without the future, one head removed."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attn_lib.exercises._verdict import differs, exercise, one_number, tensor_of


@exercise("17.1")
def persistence_on_paper(answer: Any) -> str | None:
    """Mean squared error of "tomorrow is like today" on 10, 12, 11, 15, 14."""
    given = one_number(answer)
    if abs(given - 5.5) < 0.01:
        return None
    said = {
        22.0: "that is the sum of the squares: divide by the number of forecasts",
        4.4: "five days make four forecasts: the first day has no day before it",
        2.0: "that is the mean of the differences: square them first",
        1.0: "the signs cancel: square each difference before you take the mean",
        2.35: "that is the root of the mean squared error",
    }
    return said.get(round(given, 2), "subtract each day from the next, square, take the mean")


@exercise("17.2")
def scale_without_the_future(answer: Callable[[Tensor, int], Tensor]) -> str | None:
    """Standard deviations from the mean of the first n days, feature by feature."""
    generator = torch.Generator().manual_seed(0)
    for days, features, n in ((11, 3, 7), (5, 2, 3), (13, 4, 13)):
        raw = 5.0 + 3.0 * torch.randn(days, features, generator=generator, dtype=torch.float64)
        out = answer(raw.clone(), n)
        past = raw[:n]
        fault = differs(out, (raw - past.mean(dim=0)) / past.std(dim=0))
        if not fault:
            continue
        if not fault.startswith("the largest"):
            return f"for {days} days of {features} features, {fault}"
        if not differs(out, (raw - raw.mean(dim=0)) / raw.std(dim=0)):
            return "mean and deviation are those of all days: the later ones leak in"
        if not differs(out, (raw - past.mean()) / past.std()):
            return "each feature has a mean and a deviation of its own: reduce over the days alone"
        if not differs(out, raw - past.mean(dim=0)):
            return "the mean is subtracted; now divide by the deviation of the first n days"
        if not differs(out, (raw - past.mean(dim=0)) / past.var(dim=0)):
            return "that divides by the variance: take its root"
        return fault
    return None


@exercise("17.3")
def windows_of_the_past(answer: Callable[[Tensor, int, int], Tensor]) -> str | None:
    """All windows of T days and the next, none of which holds a day from ``end`` on."""
    for days, features, T, end in ((11, 3, 4, 8), (9, 2, 2, 9), (7, 5, 5, 6)):
        z = torch.arange(float(days * features)).view(days, features)
        out = tensor_of(answer(z.clone(), T, end))
        expected = torch.stack([z[s : s + T + 1] for s in range(end - T)])
        case = f"for {days} days, T={T} and end={end}"
        if out.shape == expected.mT.shape and not differs(out, expected.mT):
            return "the days come before the features: (windows, T + 1, features)"
        if out.dim() == 3 and out.shape[1:] == expected.shape[1:]:
            last = out[-1, -1, 0] / features if len(out) else torch.tensor(-1.0)
            if last >= end:
                return f"{case}, the last window ends with day {int(last)}, which is not the past"
            if len(out) < len(expected):
                return f"{case}, there are {len(expected)} windows, not {len(out)}"
        fault = differs(out, expected)
        if fault:
            return f"{case}, {fault}"
    return None


@exercise("17.4")
def silence(answer: Callable[[Tensor, int, int], Tensor]) -> str | None:
    """The output projection, (out, in) as Linear stores it, without one head."""
    generator = torch.Generator().manual_seed(0)
    for d_model, H, d_v in ((7, 3, 2), (6, 2, 3)):
        W_out = torch.randn(d_model, H * d_v, generator=generator)
        heads = torch.randn(5, H, d_v, generator=generator)
        for h in range(H):
            before = W_out.clone()
            out = answer(W_out, h, H)
            if not torch.equal(W_out, before):
                return "it changed its argument: the layer would be damaged for good; use clone()"
            quiet = heads.clone()
            quiet[:, h] = 0.0
            fault = differs(out, W_out)
            if fault and not fault.startswith("the largest"):
                return fault
            out = tensor_of(out).to(W_out)
            if differs(F.linear(heads.flatten(1), out), F.linear(quiet.flatten(1), W_out)):
                if bool((out == 0).all(dim=1).any()):
                    return "the rows are outputs; the head has columns h * d_v to (h + 1) * d_v"
                return f"head {h} of {H} still contributes, or another head no longer does"
    return None
