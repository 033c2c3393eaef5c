"""The page on the weather: its functions beside others that do the same, and what it recorded."""

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
CELLS = ("06", "08", "10", "13", "15", "60", "61", "55", "79", "80")
DAYS = datasets.weather()


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


def test_the_scale_is_that_of_the_first_two_years():
    log = DAYS.values.clone()
    log[:, 0] = torch.log(1 + log[:, 0])
    past = log[:731]
    assert torch.allclose(OWN["z"] * past.std(0) + past.mean(0), log)
    assert all(torch.equal(OWN["windows"][i], OWN["z"][i : i + 51]) for i in (0, 680, 1410))


def check_the_year_is_a_circle(page):
    told = page["seasonal_mean"](slice(-365, None))
    at = 5  # of 2015: some of the days near it are in a December
    apart = [(i - 1096 - at) % 365.25 for i in range(731)]
    near = [i for i, gap in enumerate(apart) if min(gap, 365.25 - gap) <= 30]
    assert torch.allclose(told[at], page["z"][near].mean(dim=0))


def by_least_squares(learn, part, days):
    """The formula of these days, from rows that stand for its penalty."""
    X, aim = learn[:, 50 - days : 50].flatten(1).numpy(), learn[:, -1].numpy()
    middle, height = X.mean(axis=0), aim.mean(axis=0)
    rows = np.vstack([X - middle, 10**0.5 * np.eye(X.shape[1])])
    wanted = np.vstack([aim - height, np.zeros((X.shape[1], aim.shape[1]))])
    W = np.linalg.lstsq(rows, wanted, rcond=None)[0]
    return (part[:, 50 - days : 50].flatten(1).numpy() - middle) @ W + height


@for_each(("by_year", "windows"), ("by_year_dated", "with_date"))
def test_what_three_days_change(name, windows):
    """Without the date and with it: of the four features alone."""
    for year, found in zip((2012, 2013, 2014, 2015), OWN[name], strict=True):
        others, own = OWN["keep_out"](year, OWN[windows])
        missed = [by_least_squares(others, own, days) - own[:, -1].numpy() for days in (3, 1)]
        wanted = (missed[0] ** 2 - missed[1] ** 2)[:, :4]
        assert np.allclose(found.numpy(), wanted)


def check_kept_out(page):
    """No day of the year is in any window of the others; each of its days is forecast."""
    at = torch.arange(1461.0).unfold(0, 51, 1)  # which days each window holds
    for year in range(2012, 2016):
        others, own = page["keep_out"](year, at)
        within = torch.tensor([date.startswith(str(year)) for date in DAYS.dates])
        wanted = set(within.nonzero()[:, 0].tolist()) - set(range(50))
        assert set(own[:, -1].long().tolist()) == wanted
        assert not within[others.long()].any()


def test_switched_off_is_a_head_that_brings_its_mean():
    torch.manual_seed(1)
    model, learn = OWN["Forecaster"](4), OWN["learn"][:60]
    brought = []
    hook = model.attend.register_forward_hook(lambda m, i, o: brought.append(o.detach()))
    OWN["forecast"](model, learn)
    hook.remove()
    usual = brought[0].mean(dim=0)
    hook = model.attend.register_forward_hook(lambda m, i, o: usual.expand_as(o))
    wanted = OWN["forecast"](model, OWN["test"])
    hook.remove()
    quiet = OWN["switched_off"](model, learn)
    assert torch.allclose(OWN["forecast"](quiet, OWN["test"]), wanted)


def test_weights_are_correlated_with_the_rain(monkeypatch):
    torch.manual_seed(2)
    model, test = OWN["Forecaster"](4), OWN["test"][:40]
    monkeypatch.setitem(OWN, "test", test)
    told = OWN["with_rain"](model)
    x = model.read(test[:, :-1]) + model.positions
    q, k = (
        part(x).unflatten(-1, (4, 2)).transpose(1, 2)
        for part in (model.attend.q_proj, model.attend.k_proj)
    )
    weights = (q[:, :, -1:] @ k.mT / 2**0.5).softmax(dim=-1)[:, :, 0].detach()
    wanted = [
        np.corrcoef(weights[:, h].flatten(), test[:, :-1, 0].flatten())[0, 1] for h in range(4)
    ]
    assert np.allclose(told.numpy(), wanted)


@for_each(
    (check_the_year_is_a_circle, "torch.minimum(apart, 365.25 - apart)", "apart"),
    (check_kept_out, "max(days[0] - 50, 0)", "max(days[0] - 49, 0)"),
)
def test_a_year_and_its_days_are_found_and_a_mistake_is_seen(check, old, new):
    check(OWN)
    with pytest.raises(AssertionError):
        check(run((old, new)))


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
