"""The weather: an error on paper, a scale and windows without the future, years that decide."""

from collections import abc
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attn_lib.exercises._verdict import Wrong, differs, exercise, one_number, tensor_of

_DAMAGED = "it changed its argument, which other code still needs: write to a new tensor"


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
        given = raw.clone()
        try:
            out = answer(given, n)
        except RuntimeError as error:
            if "must match" in str(error):
                raise Wrong(f"{error}: take mean and deviation over the days, dim=0") from None
            raise
        if not torch.equal(given, raw):
            return _DAMAGED
        fault = _scaled_wrongly(out, raw, n)
        if fault:
            return fault
    return None


def _scaled_wrongly(out: Any, raw: Tensor, n: int) -> str | None:
    days, features = raw.shape
    past = raw[:n]
    expected = (raw - past.mean(dim=0)) / past.std(dim=0)
    with_n = (raw - past.mean(dim=0)) / past.std(dim=0, correction=0)  # divided by n, not n - 1
    fault = differs(out, expected)
    if not fault or not differs(out, with_n):
        return None
    if not fault.startswith("the largest"):
        return f"for {days} days of {features} features, {fault}"
    likely = {
        "mean and deviation are those of all days: the later ones leak in": (raw, raw),
        "the deviation is that of all days: the later ones leak in": (past, raw),
        "the mean is that of all days: the later ones leak in": (raw, past),
        "that takes one day more than the first n": (raw[: n + 1], raw[: n + 1]),
        "that takes one day less than the first n": (raw[: n - 1], raw[: n - 1]),
    }
    for words, (for_mean, for_deviation) in likely.items():
        for correction in (0, 1):
            deviation = for_deviation.std(dim=0, correction=correction)
            if not differs(out, (raw - for_mean.mean(dim=0)) / deviation):
                return words
    for correction in (0, 1):
        if not differs(out, (raw - past.mean()) / past.std(correction=correction)):
            return "each feature has a mean and a deviation of its own: reduce over the days alone"
        if not differs(out, (raw - past.mean(dim=0)) / past.var(dim=0, correction=correction)):
            return "that divides by the variance: take its root"
    if not differs(out, raw - past.mean(dim=0)):
        return "the mean is subtracted; now divide by the deviation of the first n days"
    found = tensor_of(out)[0, 0].item()
    return f"the first day's first feature is {found:.4g}, and should be {expected[0, 0]:.4g}"


@exercise("17.3")
def windows_of_the_past(answer: Callable[[Tensor, int, int], Tensor]) -> str | None:
    """All windows of T days and the next, none of which holds a day from ``end`` on."""
    for days, features, T, end in ((11, 3, 4, 8), (9, 2, 2, 9), (7, 5, 5, 6)):
        z = torch.arange(float(days * features)).view(days, features)
        given = z.clone()
        out = answer(given, T, end)
        if not torch.equal(given, z):
            return _DAMAGED
        out = tensor_of(out)
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
        if fault and fault.startswith("the largest"):
            first = [int(day) for day in out[0, :, 0] / features]
            wanted = list(range(T + 1))
            return f"{case}, the first window holds the days {first}, and should hold {wanted}"
        if fault:
            return f"{case}, {fault}"
    return None


# years, and by how many standard errors a is ahead (below zero) in each
_AHEAD = {2010: -6.0, 2011: -12.0, 2012: -3.0, 2013: 12.0, 2014: -1.0, 2015: -25.0}
_DAYS = 64


@exercise("17.4")
def years_that_decide(answer: Callable[[Tensor, Tensor, Tensor], Any]) -> str | None:
    """The years in which a is better than b by two standard errors of the daily differences."""
    generator = torch.Generator().manual_seed(0)
    for ahead in (_AHEAD, {2001: 0.5, 2002: 3.0}, {1999: -5.0}):
        a, b, years = _two_forecasts(ahead, generator)
        given = [a.clone(), b.clone(), years.clone()]
        found = _years(answer(*given))
        if not all(map(torch.equal, given, (a, b, years))):
            return _DAMAGED
        wanted = [year for year, t in ahead.items() if t <= -2]
        if found != wanted:
            return _misjudged(found, wanted, a, b, years)
    return None


def _two_forecasts(ahead: dict[int, float], generator: torch.Generator) -> tuple[Tensor, ...]:
    """Daily errors that have much in common, and the year of each day, in no order."""
    of_a, of_b, years = [], [], []
    for year, t in ahead.items():
        noise = torch.randn(_DAYS, generator=generator, dtype=torch.float64)
        noise = (noise - noise.mean()) / noise.std()
        common = 20 + 3 * torch.randn(_DAYS, generator=generator, dtype=torch.float64)
        of_a.append(common + noise + t / _DAYS**0.5)
        of_b.append(common)
        years.append(torch.full((_DAYS,), year))
    order = torch.randperm(_DAYS * len(ahead), generator=generator)
    return torch.cat(of_a)[order], torch.cat(of_b)[order], torch.cat(years)[order]


def _years(out: Any) -> list[int]:
    if isinstance(out, (Tensor, np.ndarray)):
        out = tensor_of(out).flatten().tolist()
    if isinstance(out, (str, bytes, dict)) or not isinstance(out, abc.Iterable):
        raise Wrong(f"a list of years is wanted, not {type(out).__name__}")
    try:
        return sorted(int(year) for year in out)
    except (TypeError, ValueError, OverflowError):
        raise Wrong("the list should hold years, as whole numbers") from None


def _misjudged(found: list[int], wanted: list[int], a: Tensor, b: Tensor, years: Tensor) -> str:
    own = {int(year): years == year for year in years.unique()}
    mean = {year: float((a - b)[mask].mean()) for year, mask in own.items()}
    spread = {year: float((a - b)[mask].std()) for year, mask in own.items()}
    root = _DAYS**0.5
    apart = {
        year: float((a[mask].var() + b[mask].var()).sqrt()) / root for year, mask in own.items()
    }
    whole = float((a - b).std())
    likely = {
        "that is where a is worse: smaller errors are better": [
            year for year in own if mean[year] > 2 * spread[year] / root
        ],
        "two standard errors in either direction: a should be better": [
            year for year in own if abs(mean[year]) > 2 * spread[year] / root
        ],
        "a smaller mean is not enough: it should be smaller by two standard errors": [
            year for year in own if mean[year] < 0
        ],
        "that takes two deviations of a day: the standard error of a mean is smaller, by the root "
        "of the number of days": [year for year in own if mean[year] < -2 * spread[year]],
        "both met the same days: take the daily differences first, then their deviation": [
            year for year in own if mean[year] < -2 * apart[year]
        ],
        "the deviation is that of all years, or divided by all days: judge each year by its own": [
            year for year in own if mean[year] < -2 * whole / root
        ],
    }
    for words, years_then in likely.items():
        if found == years_then:
            return words
    return f"among the years {list(own)}, it should find {wanted}, and finds {found}"
