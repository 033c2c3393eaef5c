"""The page on the weather: its functions beside others that do the same, and what it recorded."""

import datetime

import numpy as np
import pages
import pytest
import torch
from tables import for_each

from attn_lib import datasets, records

PAGE = pages.BOOK / "17_weather.ipynb"
IMPORTS = """import attn_lib
import torch
from torch import nn
from attn_lib import datasets
weather = datasets.weather()
"""
CELLS = ("06", "08", "10", "13", "15", "29", "60", "61", "55", "79", "80")


pytestmark = pytest.mark.usefixtures("double")


def run(*changes: tuple[str, str]) -> dict:
    """What these cells define, without the table that the first prints."""
    parts = [pages.sources(PAGE)[f"ch17-code-{name}"].partition('\n\nprint("')[0] for name in CELLS]
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    found = pages.defined_by([IMPORTS, *parts], *changes)
    torch.set_default_dtype(before)
    return found


OWN = run()


# ---------------------------------------------------------------- the functions, and others


def faults(page: dict) -> list[str]:
    """Where a function of the page gives something else than its description says."""
    z, windows, past = page["z"], page["windows"], page["past"]
    days = datasets.weather()
    found = []
    log = days.values[:731].clone()
    log[:, 0] = torch.log(1 + log[:, 0])
    if past.shape != log.shape or not (torch.allclose(past, log) and abs(z[:731].mean()) < 1e-12):
        found.append("scale")
    if not all(torch.equal(windows[i], z[i : i + 51]) for i in (0, 680, 1410)):
        found.append("windows")
    found += ["seasonal mean"] * (not _seasonal(page, days))
    found += ["three or one"] * (not _three_or_one(page))
    found += ["date"] * (not _dated(page, days))
    found += ["weeks"] * (not _weeks(page))
    found += [f"{year}" for year in range(2012, 2016) if not _kept_out(page, days, year)]
    found += ["switched off"] * (not _by_hook(page))
    return found + ["with rain"] * (not _correlated(page))


def _seasonal(page, days):
    told = page["seasonal_mean"](slice(-365, None))
    at = 5  # of 2015: some of the days near it are in a December
    near = [i for i in range(731) if abs((i - 1096 - at) % 365.25) <= 30]
    near += [i for i in range(731) if abs((i - 1096 - at) % 365.25 - 365.25) <= 30]
    return torch.allclose(told[at], page["z"][near].mean(dim=0))


def _by_least_squares(learn, part, days):
    """The formula of these days, from rows that stand for its penalty."""
    X, aim = learn[:, 50 - days : 50].flatten(1).numpy(), learn[:, -1].numpy()
    middle, height = X.mean(axis=0), aim.mean(axis=0)
    rows = np.vstack([X - middle, 10**0.5 * np.eye(X.shape[1])])
    wanted = np.vstack([aim - height, np.zeros((X.shape[1], aim.shape[1]))])
    W = np.linalg.lstsq(rows, wanted, rcond=None)[0]
    return (part[:, 50 - days : 50].flatten(1).numpy() - middle) @ W + height


def _three_or_one(page):
    """What three days change, without the date and with it: of the four features alone."""
    for name, windows in (("by_year", "windows"), ("by_year_dated", "with_date")):
        for year, found in zip((2012, 2013, 2014, 2015), page[name], strict=True):
            others, own = page["keep_out"](year, page[windows])
            missed = [_by_least_squares(others, own, days) - own[:, -1].numpy() for days in (3, 1)]
            wanted = (missed[0] ** 2 - missed[1] ** 2)[:, :4]
            if found.shape != wanted.shape or not np.allclose(found.numpy(), wanted):
                return False
    return True


def _dated(page, days):
    """The last two features of a day are its place in the year, by its date."""
    for at in (0, 59, 365, 800, 1410):
        year, month, day = (int(part) for part in days.dates[at].split("-"))
        gone = (datetime.date(year, month, day) - datetime.date(2012, 1, 1)).days
        turn = np.exp(2j * np.pi * gone / 365.25)
        wanted = torch.tensor([turn.imag, turn.real])
        if not torch.allclose(page["with_date"][at, 0, 4:], wanted):
            return False
    return True


def _weeks(page):
    return page["by_weeks"](torch.arange(23.0)).tolist() == [3, 10, 17]


def _kept_out(page, days, year):
    """No day of the year is in any window of the others; each of its days is forecast."""
    at = torch.arange(1461.0).unfold(0, 51, 1)  # which days each window holds
    others, own = page["keep_out"](year, at)
    within = torch.tensor([date.startswith(str(year)) for date in days.dates])
    forecast = set(own[:, -1].long().tolist())
    wanted = set(within.nonzero()[:, 0].tolist()) - set(range(50))
    return forecast == wanted and not within[others.long()].any()


def _by_hook(page):
    """Switched off: the same as heads whose output is replaced by its mean."""
    torch.manual_seed(1)
    model, learn = page["Forecaster"](4), page["learn"][:60]
    brought = []
    hook = model.attend.register_forward_hook(lambda m, i, o: brought.append(o.detach()))
    page["forecast"](model, learn)
    hook.remove()
    usual = brought[0].mean(dim=0)
    hook = model.attend.register_forward_hook(lambda m, i, o: usual.expand_as(o))
    wanted = page["forecast"](model, page["test"])
    hook.remove()
    quiet = page["switched_off"](model, learn)
    return torch.allclose(page["forecast"](quiet, page["test"]), wanted)


def _correlated(page):
    torch.manual_seed(2)
    model, test = page["Forecaster"](4), page["test"][:40]
    page = page["with_rain"].__globals__
    whole, page["test"] = page["test"], test
    told = page["with_rain"](model)
    page["test"] = whole
    x = model.read(test[:, :-1]) + model.positions
    q, k = (
        part(x).unflatten(-1, (4, 2)).transpose(1, 2)
        for part in (model.attend.q_proj, model.attend.k_proj)
    )
    weights = (q[:, :, -1:] @ k.mT / 2**0.5).softmax(dim=-1)[:, :, 0].detach()
    wanted = [
        np.corrcoef(weights[:, h].flatten(), test[:, :-1, 0].flatten())[0, 1] for h in range(4)
    ]
    return np.allclose(told.numpy(), wanted)


def test_each_function_does_what_it_says():
    assert faults(OWN) == []


@for_each(
    (('raw[weather.split["train"]]', "raw"), "scale"),
    (("z.unfold(0, 51, 1).mT", "z.unfold(0, 51, 1).mT.flip(1)"), "windows"),
    (("torch.minimum(apart, 365.25 - apart)", "apart"), "seasonal mean"),
    (("days=3)", "days=2)"), "three or one"),
    (("three_or_one(year, with_date)", "three_or_one(year, windows)"), "three or one"),
    (("[angle.sin(), angle.cos()]", "[angle.sin(), angle.sin()]"), "date"),
    (("len(daily) // 7 * 7", "len(daily) // 7 * 7 - 7"), "weeks"),
    (("max(days[0] - 50, 0)", "max(days[0] - 49, 0)"), "2014"),
    (("quiet.positions.data += usual", "pass"), "switched off"),
    (('maps["attend"][:, :, -1]', 'maps["attend"][:, :, 0]'), "with rain"),
)
def test_a_planted_mistake_is_seen(change, seen):
    assert seen in faults(run(change))


# ---------------------------------------------------------------- what the record says


LOG = records.record("17_weather")


def test_the_forecasts_of_16_march_are_those_of_the_rivals():
    at = datasets.weather().dates.index("2015-03-16") - 1461
    learn, test = OWN["learn"], OWN["test"]
    own = {
        "what came": OWN["z"][at],
        "same as today": OWN["z"][at - 1],
        "seasonal mean": OWN["seasonal_mean"](slice(-365, None))[at],
        "formula, 1 day": OWN["ridge"](learn, test, 1)[at],
        "formula, 3 days": OWN["ridge"](learn, test, 3)[at],
    }
    for told in LOG["16 March"]:
        assert set(told) - set(own) == {"no heads", "four heads"}
        for name, numbers in own.items():
            assert torch.allclose(torch.tensor(told[name]), numbers, atol=1e-5), name


def test_a_kept_year_once_more():
    """Trained anew for one seed: the gap, and the distance from the formula of three days."""
    others, own = OWN["keep_out"](2013, OWN["windows"])
    fit, forecast, error = OWN["fit"], OWN["forecast"], OWN["daily_error"]
    four, none = (error(forecast(fit(3, H, others), own), own) for H in (4, 0))
    formula = error(OWN["ridge"](others, own, 3), own)
    for name, rival in (("kept out", none), ("behind the formula", formula)):
        found = torch.tensor(LOG[name][3][1])
        assert torch.allclose(torch.stack(OWN["compare"](four, rival)), found, atol=0.002), name
