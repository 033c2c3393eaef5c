"""The book's small data sets and their splits, and the recorded runs that its pages compare with.

Files are read from ``attn_lib/data``, which is packaged, and dates are written by the package
babel: nothing is downloaded.
"""

import csv
import datetime
import gzip
import hashlib
import io
import json
import re
import zlib
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

_DATA = resources.files("attn_lib") / "data"
_WEATHER_YEARS = {"train": ("2012", "2013"), "validation": ("2014",), "test": ("2015",)}

DATE_LOCALES = ("en_US", "en_GB", "de", "fr", "es", "pl", "tr", "ru", "zh", "ja")
"""The locales of :func:`dates`: languages, and two countries that order a date differently."""

DATE_LETTERS = (
    " ,./0123456789ACDEFHJKMNOPSTWabcdefghijklmnoprstuvwyzÇáäéûüąğıłńśŞşź"
    "абвгдеийклмнопрстуфцчьюя\u202f一三二五六四土年日星曜月期木水火金"
)
"""The characters that occur in :func:`dates`: a vocabulary that no draw changes."""

_DATE_FORMATS = ("short", "medium", "long", "full", "yMMMM")
_DATE_YEARS = range(1950, 2050)
_TEST_MONTH = 11  # every eleventh month is for the test; 11 and 12 share no divisor


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

# sha256 of what the four original files hold, however they are packed
_FASHION_SUMS = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
_PHOTOGRAPHS = ("astronaut", "chelsea", "coffee", "rocket")


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


class Dates(NamedTuple):
    """Dates as people write them, what they mean, and whose way of writing it is."""

    texts: list[str]
    iso: list[str]
    locales: list[str]


def dates(
    n: int, *, split: str = "train", seed: int = 0, locales: tuple[str, ...] = DATE_LOCALES
) -> Dates:
    """Random dates of the years 1950 to 2049 in the formats of many locales, and in ISO 8601.

    A month of a year is either for training or for the test, so that no test date was ever seen
    in training, in whatever format. Some texts have two readings: 4/3/21 is April in the United
    States and March in Spain.

    Args:
        n: how many, at least 0.
        split: ``"train"`` or ``"test"``, every eleventh month.
        seed: of the draws.
        locales: names that babel knows.

    Returns:
        ``texts``; ``iso``, such as ``"2021-04-03"``, or ``"2021-04"`` for a text that names only
        a month; and ``locales``, each drawn with equal probability, as is one of four full
        formats or the month alone.

    Raises:
        ValueError: a negative ``n``; an unknown split or locale; no locale.

    Example:
        >>> dates(2, split="test")
        Dates(texts=[...], iso=[...], locales=[...])

    Source: Unicode's Common Locale Data Repository, by way of babel. Used in chapter 7.
    """
    from babel import Locale, UnknownLocaleError
    from babel.dates import format_date, format_skeleton

    if n < 0:
        raise ValueError(f"n must be at least 0, got {n}")
    if split not in ("train", "test"):
        raise ValueError(f"split must be 'train' or 'test', got {split!r}")
    try:
        parsed = [Locale.parse(name) for name in locales]
    except (UnknownLocaleError, ValueError) as error:  # the other: no name at all
        raise ValueError(f"babel does not know every locale of {locales}: {error}") from error
    if not parsed:
        raise ValueError("locales must name at least one locale, got none")
    first, last = (datetime.date(year, 1, 1) for year in (_DATE_YEARS[0], _DATE_YEARS[-1] + 1))
    days = [datetime.date.fromordinal(d) for d in range(first.toordinal(), last.toordinal())]
    days = [d for d in days if ((12 * d.year + d.month) % _TEST_MONTH == 0) == (split == "test")]
    generator = torch.Generator().manual_seed(seed)

    def draw(size: int) -> list[int]:
        return torch.randint(size, (n,), generator=generator).tolist()

    found = Dates([], [], [])
    for d, place, form in zip(
        draw(len(days)), draw(len(parsed)), draw(len(_DATE_FORMATS)), strict=True
    ):
        day, locale, kind = days[d], parsed[place], _DATE_FORMATS[form]
        only_month = kind == "yMMMM"
        text = (
            format_skeleton(kind, day, locale=locale)
            if only_month
            else format_date(day, kind, locale=locale)
        )
        found.texts.append(text)
        found.iso.append(day.isoformat()[: 7 if only_month else None])
        found.locales.append(locales[place])
    return found


class Images(NamedTuple):
    """Images, and which class each belongs to."""

    images: Tensor
    labels: Tensor


def fashion(split: str = "train", *, folder: str | Path | None = None) -> Images:
    """Fashion-MNIST: small grey pictures of clothes, of ten classes named by ``FASHION_NAMES``.

    The library brings all 10,000 test images and the first 10,000 of 60,000 for training. For
    all 60,000, name the folder of the four original files.

    Args:
        split: ``"train"`` or ``"test"``.
        folder: where ``train-images-idx3-ubyte.gz`` and the other three files are, for example
            ``/usr/share/datasets/fashion-mnist``, where Debian's package dataset-fashion-mnist
            puts them; default: what the library brings.

    Returns:
        ``images`` (n, 28, 28) uint8, 0 is the background; ``labels`` (n,) int64, 0 to 9.

    Raises:
        ValueError: an unknown split; a file is damaged or altered; the message says what to do.
        FileNotFoundError: a file is missing; the message says what to do.

    Example:
        >>> images, labels = fashion("test")
        >>> images.shape, FASHION_NAMES[labels[0]]
        (torch.Size([10000, 28, 28]), 'Ankle boot')

    Source: Xiao, Rasul and Vollgraf (2017), MIT licence, in ``data/fashion.txt``. Used in
    chapter 8.
    """
    if split not in ("train", "test"):
        raise ValueError(f"split must be 'train' or 'test', got {split!r}")
    if folder is None:
        with np.load(io.BytesIO(_checked("fashion.npz"))) as stored:
            images, labels = stored[f"{split}_images"], stored[f"{split}_labels"]
    else:
        start = "train" if split == "train" else "t10k"
        images = _original(Path(folder), f"{start}-images-idx3-ubyte")[16:].reshape(-1, 28, 28)
        labels = _original(Path(folder), f"{start}-labels-idx1-ubyte")[8:]
    return Images(torch.tensor(images), torch.tensor(labels).long())


def _original(folder: Path, name: str) -> np.ndarray:
    """The bytes of one of Fashion-MNIST's own files, unpacked, whose hash has just been checked."""
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
    digest = hashlib.sha256(content).hexdigest()
    if digest != expected:
        raise ValueError(
            f"{path} is damaged or altered: what it holds has the sha256 {digest}, expected "
            f"{expected}: {remedy}"
        )
    return np.frombuffer(content, np.uint8)


def photographs() -> dict[str, Tensor]:
    """Four photographs: an astronaut, the cat Chelsea, a cup of coffee, a rocket.

    Returns:
        Name to (3, 448, 448) uint8, red, green and blue.

    Raises:
        FileNotFoundError: a file is missing; the message says what to do.
        ValueError: a file is damaged or altered; the message says what to do.

    Example:
        >>> list(photographs())
        ['astronaut', 'chelsea', 'coffee', 'rocket']

    Source: CC0 or public domain, as ``data/photographs.txt`` says one by one; by way of
    scikit-image. Used in chapter 8.
    """
    from PIL import Image

    found = {}
    for name in _PHOTOGRAPHS:
        with Image.open(io.BytesIO(_checked(f"{name}.jpg"))) as image:
            found[name] = torch.tensor(np.asarray(image)).permute(2, 0, 1).contiguous()
    return found


def record(name: str) -> dict:
    """The results of a page's training for its seeds, with which the page compares its own.

    Args:
        name: of the page, such as ``"03_many_heads"``.

    Returns:
        ``"torch"``, the version that ran; ``"seeds"``; and for each result a list with one entry
        a seed.

    Raises:
        FileNotFoundError: there is no such record; the message says what to do.
        ValueError: the file is damaged or altered; the message says what to do.

    Example:
        >>> record("03_many_heads")["seeds"]
        [0, 1, 2]

    Source: ``book/_tools/record.py``, which runs the page's own cells.
    """
    return json.loads(_checked(f"{name}.json"))


def _checked(name: str) -> bytes:
    """A data file whose hash has just been checked; text may have line ends of any system."""
    path = _DATA / name
    remedy = "install attn_lib anew, or restore the file from the repository"
    if name[:2].isdigit():  # of a page, which can make it
        page = name.partition(".")[0]
        remedy += f", or make it anew: python book/_tools/record.py book/{page}.ipynb"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: {remedy}")
    content = path.read_bytes()
    if name.endswith((".csv", ".json")):
        content = content.replace(b"\r\n", b"\n")
    digest, expected = hashlib.sha256(content).hexdigest(), _sums().get(name)
    if expected is None:
        raise ValueError(f"{path} is not listed in SHA256SUMS beside it: {remedy}")
    if digest != expected:
        raise ValueError(
            f"{path} is damaged or altered: its sha256 is {digest}, expected {expected}: {remedy}"
        )
    return content


def _sums() -> dict[str, str]:
    """Name to sha256, from the file that ``sha256sum --check`` reads."""
    path = _DATA / "SHA256SUMS"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing: install attn_lib anew, or restore the file from the repository"
        )
    text = path.read_text(encoding="utf-8", errors="replace")  # a damaged line lists nothing
    return {name: digest for digest, name in re.findall(r"(?m)^([0-9a-f]{64})  (\S+)$", text)}
