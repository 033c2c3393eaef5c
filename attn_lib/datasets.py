"""The book's small data sets and their splits.

Files are read from ``attn_lib/data``, which is part of the package, and dates are written by the
package babel: nothing is downloaded.
"""

import csv
import datetime
import gzip
import io
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from attn_lib.files import packaged, verify

_WEATHER_YEARS = {"train": ("2012", "2013"), "validation": ("2014",), "test": ("2015",)}

DATE_LOCALES = ("en_US", "en_GB", "de", "fr", "es", "pl", "tr", "ru", "zh", "ja")
"""The locales of :func:`dates`: nine languages, English in two countries, which order a date
differently."""

DATE_LETTERS = (
    " ,./0123456789ACDEFHJKMNOPSTWabcdefghijklmnoprstuvwyzÇáäéûüąğıłńśŞşź"
    "абвгдеийклмнопрстуфцчьюя\u202f一三二五六四土年日星曜月期木水火金"
)
"""The characters that can occur in :func:`dates`: a vocabulary that does not depend on the draw."""

_DATE_FORMATS = ("short", "medium", "long", "full", "yMMMM")
_DAYS: list[datetime.date] = np.arange("1950", "2050", dtype="datetime64[D]").tolist()
_TEST_MONTH = 11  # every eleventh month is for the test, where each month of the year then occurs


FASHION_NAMES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
"""What the labels 0 to 9 of :func:`fashion` mean."""

# sha256 of the unpacked contents of the four original files
_FASHION_SUMS = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
_PHOTOGRAPHS = ("astronaut", "chelsea", "coffee", "rocket")


class Weather(NamedTuple):
    """Daily weather: what was measured, when, and which days belong to which split."""

    values: Tensor
    dates: list[str]
    names: list[str]
    split: dict[str, slice]


def weather() -> Weather:
    """Four years of daily weather in Seattle, 2012 to 2015, without a gap.

    Returns:
        ``values`` (1461, 4) float64: rain and melted snow in mm, highest and lowest temperature
        in °C, mean wind in m/s, named by ``names``; ``dates`` such as ``"2012-01-01"``;
        ``split``, the slices of days for training (2012 and 2013), validation (2014) and test
        (2015).

    Raises:
        FileNotFoundError: the file is missing; the message says what to do.
        ValueError: the file is damaged or altered; the message says what to do.

    Example:
        >>> days = weather()
        >>> days.names, days.values[0].tolist()
        (['rain', 'high', 'low', 'wind'], [0.0, 12.8, 5.0, 4.7])
        >>> days.dates[days.split["test"]][0]
        '2015-01-01'

    Source: NOAA, public domain, from the package vega_datasets.
    """
    lines = packaged("weather.csv").decode().splitlines()
    header, *rows = csv.reader(line for line in lines if not line.startswith("#"))
    dates = [row[0] for row in rows]
    values = torch.tensor([[float(n) for n in row[1:]] for row in rows], dtype=torch.float64)
    split = {}
    for name, years in _WEATHER_YEARS.items():
        days = [i for i, date in enumerate(dates) if date.startswith(years)]
        split[name] = slice(days[0], days[-1] + 1)
    return Weather(values, dates, header[1:], split)


class Dates(NamedTuple):
    """Dates as people write them, what they mean, and the locale of each."""

    texts: list[str]
    iso: list[str]
    locales: list[str]


def dates(
    n: int, *, split: str = "train", seed: int = 0, locales: tuple[str, ...] = DATE_LOCALES
) -> Dates:
    """Random dates of the years 1950 to 2049 in the formats of many locales, and in ISO 8601.

    Each month of each year is either for training or for the test, so that no test date occurs in
    training, in whatever format. Some texts have two readings: 4/3/21 is in April in the United
    States and in March in Spain.

    Args:
        n: number of dates, at least 0.
        split: ``"train"``, the default, or ``"test"``: every eleventh month.
        seed: of the draws; default 0.
        locales: names of locales that babel knows; default ten of them.

    Returns:
        ``texts``; ``iso``, such as ``"2021-04-03"``, or ``"2021-04"`` for a text that names only
        a month; and ``locales``. Each locale is drawn with equal probability, and so is each of
        four full formats and the month alone.

    Raises:
        ValueError: a negative ``n``; an unknown split or locale; no locale.

    Example:
        >>> found = dates(2, locales=("de",))
        >>> found.texts, found.iso
        (['Donnerstag, 11. Juli 1974', 'August 1986'], ['1974-07-11', '1986-08'])
        >>> {(12 * int(iso[:4]) + int(iso[5:7])) % 11 for iso in dates(50, split="test").iso}
        {0}

    Source: Unicode's Common Locale Data Repository (CLDR), from the package babel.
    """
    from babel import Locale, UnknownLocaleError
    from babel.dates import format_date, format_skeleton

    if n < 0:
        raise ValueError(f"n must be at least 0, got {n}")
    if split not in ("train", "test"):
        raise ValueError(f"split must be 'train' or 'test', got {split!r}")
    try:
        parsed = [Locale.parse(name) for name in locales]
    except (UnknownLocaleError, ValueError) as error:  # ValueError: not even the form of a name
        raise ValueError(f"babel does not know every locale of {locales}: {error}") from error
    if not parsed:
        raise ValueError("locales must name at least one locale, got none")
    days = [d for d in _DAYS if ((12 * d.year + d.month) % _TEST_MONTH == 0) == (split == "test")]
    generator = torch.Generator().manual_seed(seed)

    def draw(size: int) -> list[int]:
        return torch.randint(size, (n,), generator=generator).tolist()

    found = Dates([], [], [])
    for d, where, form in zip(
        draw(len(days)), draw(len(parsed)), draw(len(_DATE_FORMATS)), strict=True
    ):
        day, locale, kind = days[d], parsed[where], _DATE_FORMATS[form]
        only_month = kind == "yMMMM"
        text = (
            format_skeleton(kind, day, locale=locale)
            if only_month
            else format_date(day, kind, locale=locale)
        )
        found.texts.append(text)
        found.iso.append(day.isoformat()[: 7 if only_month else None])
        found.locales.append(locales[where])
    return found


class Images(NamedTuple):
    """Images, and which class each belongs to."""

    images: Tensor
    labels: Tensor


def fashion(split: str = "train", *, folder: str | Path | None = None) -> Images:
    """Fashion-MNIST: small grey pictures of clothes, of ten classes named by ``FASHION_NAMES``.

    The library contains all 10,000 test images and the first 10,000 of the 60,000 for training.
    For all 60,000, name the folder of the four original files.

    Args:
        split: ``"train"``, the default, or ``"test"``.
        folder: where ``train-images-idx3-ubyte.gz`` and the other three files are, for example
            ``/usr/share/datasets/fashion-mnist``, where Debian's package dataset-fashion-mnist
            puts them; default: the images in the library.

    Returns:
        ``images`` (n, 28, 28) uint8, 0 is the background; ``labels`` (n,) int64, 0 to 9.

    Raises:
        ValueError: an unknown split; a file is damaged or altered; the message says what to do.
        FileNotFoundError: a file is missing; the message says what to do.

    Example:
        >>> images, labels = fashion("test")
        >>> images.shape, FASHION_NAMES[labels[0]]
        (torch.Size([10000, 28, 28]), 'Ankle boot')

    Source: Xiao, Rasul and Vollgraf (2017), "Fashion-MNIST"; MIT licence, in ``data/fashion.txt``.
    """
    if split not in ("train", "test"):
        raise ValueError(f"split must be 'train' or 'test', got {split!r}")
    if folder is None:
        with np.load(io.BytesIO(packaged("fashion.npz"))) as stored:
            images, labels = stored[f"{split}_images"], stored[f"{split}_labels"]
    else:
        start = "train" if split == "train" else "t10k"
        images = _original(Path(folder), f"{start}-images-idx3-ubyte")[16:].reshape(-1, 28, 28)
        labels = _original(Path(folder), f"{start}-labels-idx1-ubyte")[8:]
    return Images(torch.tensor(images), torch.tensor(labels).long())


def _original(folder: Path, name: str) -> np.ndarray:
    """The unpacked bytes of one of Fashion-MNIST's own files, whose hash has just been checked."""
    path, expected = folder.expanduser() / f"{name}.gz", _FASHION_SUMS[name]
    remedy = (
        "install Debian's package dataset-fashion-mnist and name /usr/share/datasets/"
        "fashion-mnist, or take the file from github.com/zalandoresearch/fashion-mnist"
    )
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: {remedy}")
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({error}): {remedy}") from error
    verify(content, expected, said=f"what {path} holds", remedy=remedy)
    return np.frombuffer(content, np.uint8)


def photographs() -> dict[str, Tensor]:
    """Four photographs: an astronaut, the cat Chelsea, a cup of coffee, a rocket.

    Returns:
        A dict from names to (3, 448, 448) uint8 images: red, green and blue, 0 to 255.

    Raises:
        FileNotFoundError: a file is missing; the message says what to do.
        ValueError: a file is damaged or altered; the message says what to do.

    Example:
        >>> images = photographs()
        >>> list(images), images["coffee"].shape
        (['astronaut', 'chelsea', 'coffee', 'rocket'], torch.Size([3, 448, 448]))
        >>> red, green, blue = images["coffee"].float().mean(dim=(1, 2))
        >>> bool(red > green > blue)  # brown
        True

    Source: CC0 or public domain, as ``data/photographs.txt`` says for each; from scikit-image.
    """
    from PIL import Image

    found = {}
    for name in _PHOTOGRAPHS:
        with Image.open(io.BytesIO(packaged(f"{name}.jpg"))) as image:
            found[name] = torch.tensor(np.asarray(image)).permute(2, 0, 1).contiguous()
    return found
