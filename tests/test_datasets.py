"""The data are what their source says, splits do not touch, and damage is named."""

import datetime
import itertools
import json
import shutil
from pathlib import Path

import pytest
import torch

from attn_lib import datasets


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A copy of the data folder that may be damaged."""
    copy = shutil.copytree(Path(str(datasets._DATA)), tmp_path / "data")
    monkeypatch.setattr(datasets, "_DATA", copy)
    return copy


def test_the_weather_is_whole():
    values, dates, names, _ = datasets.weather()
    days = [datetime.date.fromisoformat(date) for date in dates]
    steps = {(later - day).days for day, later in itertools.pairwise(days)}
    assert (days[0].isoformat(), days[-1].isoformat(), steps) == ("2012-01-01", "2015-12-31", {1})
    assert (tuple(values.shape), values.dtype) == ((1461, 4), torch.float64)
    by_name = dict(zip(names, values.T, strict=True))
    assert (by_name["high"] >= by_name["low"]).all()
    assert (by_name["rain"] >= 0).all()
    assert by_name["wind"].min() == 0.4
    wettest = by_name["rain"].argmax()
    assert (dates[wettest], by_name["rain"][wettest]) == ("2015-03-15", 55.9)


def test_the_years_are_split_in_order_and_without_overlap():
    days = datasets.weather()
    assert list(days.split) == ["train", "validation", "test"]
    years = {name: {date[:4] for date in days.dates[part]} for name, part in days.split.items()}
    assert years == {"train": {"2012", "2013"}, "validation": {"2014"}, "test": {"2015"}}
    indices = [i for part in days.split.values() for i in range(part.start, part.stop)]
    assert indices == list(range(1461))


@pytest.mark.parametrize("damage", ["altered", "cut", "empty"])
def test_a_damaged_file_is_named_with_the_remedy(data, damage):
    path = data / "weather.csv"
    content = path.read_bytes()
    altered = content.replace(b"12.8", b"12.9", 1)
    path.write_bytes({"altered": altered, "cut": content[:-1], "empty": b""}[damage])
    with pytest.raises(ValueError, match=r"weather\.csv is damaged.*restore the file") as caught:
        datasets.weather()
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named_with_the_remedy(data):
    (data / "weather.csv").unlink()
    with pytest.raises(FileNotFoundError, match=r"weather\.csv is missing: install attn_lib anew"):
        datasets.weather()


def test_line_ends_of_another_system_are_no_damage(data):
    before = datasets.weather()
    path = data / "weather.csv"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    after = datasets.weather()
    assert torch.equal(before.values, after.values)
    assert before[1:] == after[1:]


def test_a_record_comes_back_as_written(data):
    written = {"torch": "2.13.0", "seeds": [0, 1, 2], "error": [0.5, 0.25, 0.125]}
    (data / "99_test.json").write_text(json.dumps(written))
    assert datasets.record("99_test") == written


@pytest.mark.parametrize(
    "text",
    [
        '{"torch": "2.13.0", "seeds": [0, 1], "error": [0.5',
        "",
        "[1, 2]",
        '{"seeds": [0, 1], "error": [0.5, 0.5]}',
        '{"torch": "2.13.0", "seeds": [0, 1], "error": [0.5]}',
        '{"torch": "2.13.0", "seeds": [0, 1], "error": 0.5}',
    ],
)
def test_a_damaged_record_is_named_with_the_command_that_makes_it(data, text):
    (data / "99_test.json").write_text(text)
    with pytest.raises(ValueError, match=r"99_test\.json is damaged .*book/99_test\.ipynb"):
        datasets.record("99_test")


def test_a_missing_record_is_named_with_the_command_that_makes_it():
    with pytest.raises(FileNotFoundError, match=r"record\.py book/99_test\.ipynb"):
        datasets.record("99_test")
