"""The book's small data sets and their splits, and the recorded runs that its pages compare with.

Everything is read from ``attn_lib/data``, which is packaged: nothing is downloaded.
"""

import csv
import hashlib
import json
from importlib import resources
from typing import NamedTuple

import torch
from torch import Tensor

_DATA = resources.files("attn_lib") / "data"
_SHA256 = {"weather.csv": "f1a66c28a45c5ca61e5cad105e04d3281f9f217e390739d7ed47e1d22fa62bca"}
_WEATHER_YEARS = {"train": ("2012", "2013"), "validation": ("2014",), "test": ("2015",)}


class Weather(NamedTuple):
    """Daily weather: what was measured, when, and which days are for what."""

    values: Tensor
    dates: list[str]
    names: list[str]
    split: dict[str, slice]


def weather() -> Weather:
    """Four years of daily weather in Seattle, 2012 to 2015, without a gap.

    Returns:
        ``values`` (1461, 4) float64: rain and melted snow in mm, highest and lowest temperature
        in °C, mean wind in m/s, named by ``names``; ``dates`` as ``"2012-01-01"``; ``split``, the
        slices of days for training (2012 and 2013), validation (2014) and test (2015).

    Raises:
        FileNotFoundError: the file is missing; the message says what to do.
        ValueError: the file is damaged or altered; the message says what to do.

    Example:
        >>> days = weather()
        >>> days.names, days.values[0].tolist()
        (['rain', 'high', 'low', 'wind'], [0.0, 12.8, 5.0, 4.7])
        >>> days.dates[days.split["test"]][0]
        '2015-01-01'

    Source: NOAA, public domain, by way of vega_datasets. Used in chapter 3.
    """
    lines = _checked("weather.csv").decode().splitlines()
    header, *rows = csv.reader(line for line in lines if not line.startswith("#"))
    dates = [row[0] for row in rows]
    values = torch.tensor([[float(n) for n in row[1:]] for row in rows], dtype=torch.float64)
    split = {}
    for name, years in _WEATHER_YEARS.items():
        days = [i for i, date in enumerate(dates) if date.startswith(years)]
        split[name] = slice(days[0], days[-1] + 1)
    return Weather(values, dates, header[1:], split)


def record(name: str) -> dict:
    """The results of a page's training for several seeds, with which the page compares its own.

    Args:
        name: of the page, such as ``"03_many_heads"``.

    Returns:
        ``"torch"``, the version that ran; ``"seeds"``; and for each result a list with one entry
        a seed.

    Raises:
        FileNotFoundError: there is no such record; the message has the command that makes it.
        ValueError: the file is damaged; the message has the command that makes it anew.

    Example:
        >>> record("03_many_heads")["seeds"]
        [0, 1, 2]

    Source: ``book/_ext/record.py``, which runs the page's own cells.
    """
    path, remedy = _DATA / f"{name}.json", f"python book/_ext/record.py book/{name}.ipynb"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; this makes it: {remedy}")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        sizes = {len(found[key]) for key in found.keys() - {"torch"}}
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({error}); this makes it anew: {remedy}") from error
    if not {"torch", "seeds"} <= found.keys() or len(sizes) != 1:
        raise ValueError(f"{path} is damaged (seeds do not fit); this makes it anew: {remedy}")
    return found


def _checked(name: str) -> bytes:
    """A data file whose hash has just been checked; line ends of any system are accepted."""
    path = _DATA / name
    remedy = "install attn_lib anew, or restore the file from the repository"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: {remedy}")
    content = path.read_bytes().replace(b"\r\n", b"\n")
    digest = hashlib.sha256(content).hexdigest()
    if digest != _SHA256[name]:
        raise ValueError(
            f"{path} is damaged or altered: its sha256 is {digest}, expected {_SHA256[name]}: "
            f"{remedy}"
        )
    return content
