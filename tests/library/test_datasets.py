"""The data are what their source says, splits do not touch, and damage is named."""

import datetime
import gzip
import hashlib
import json
import re
import shutil

import numpy as np
import pytest
import torch
from record import checksums
from safetensors.torch import save_file
from tables import for_each

from attn_lib import datasets, files, records


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A copy of the data folder that may be damaged, with weights of its own."""
    copy = shutil.copytree(files.DATA, tmp_path / "data")
    tensors = {"a": torch.arange(7.0) / 3, "b.weight": torch.tensor([13, 10, 13, 10]).byte()}
    tensors["half"] = tensors["a"].half()
    save_file(tensors, copy / "99_test.safetensors")
    checksums(copy)
    monkeypatch.setattr(files, "DATA", copy)
    return copy


def test_the_weather_is_whole_and_its_years_are_split_in_order():
    days = datasets.weather()
    first, last = (datetime.date.fromisoformat(date) for date in ("2012-01-01", "2015-12-31"))
    every = [first + datetime.timedelta(days=n) for n in range((last - first).days + 1)]
    assert [*days.dates] == [day.isoformat() for day in every]
    assert (tuple(days.values.shape), days.values.dtype) == ((1461, 4), torch.float64)
    by_name = dict(zip(days.names, days.values.T, strict=True))
    assert (by_name["high"] >= by_name["low"]).all()
    assert by_name["wind"].min() == 0.4
    wettest = by_name["rain"].argmax()
    assert (days.dates[wettest], by_name["rain"][wettest]) == ("2015-03-15", 55.9)
    years = {name: {date[:4] for date in days.dates[part]} for name, part in days.split.items()}
    assert years == {"train": {"2012", "2013"}, "validation": {"2014"}, "test": {"2015"}}
    indices = [i for part in days.split.values() for i in range(part.start, part.stop)]
    assert indices == list(range(1461))


AGAIN = "reinstall attn_lib, or restore the file from the repository"
MAKE = f"{AGAIN}, or make it again: python book/_tools/record.py book/"
READERS = {  # file: what reads it, and what to do when it cannot
    "weather.csv": (datasets.weather, AGAIN),
    "fashion.npz": (datasets.fashion, AGAIN),
    "astronaut.jpg": (datasets.photographs, AGAIN),
    "17_weather.json": (lambda: records.record("17_weather"), f"{MAKE}17_weather.ipynb"),
    "99_test.safetensors": (lambda: records.shipped_tensors("99_test"), f"{MAKE}99_test.ipynb"),
}


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_or_missing_file_is_named_with_the_remedy(data, name):
    path, (read, remedy) = data / name, READERS[name]
    listed, content = sha256(path), path.read_bytes()
    path.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])
    message = f"{path} is damaged or altered: its sha256 is {sha256(path)}, expected {listed}: "
    with pytest.raises(ValueError, match=f"^{re.escape(message + remedy)}$"):
        read()
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"^{re.escape(f'{path} is missing: {remedy}')}$"):
        read()


@for_each(b"", b"once ", b"\xff")
def test_a_file_that_the_list_no_longer_names_is_refused(begin, data):
    path = data / "SHA256SUMS"
    (line,) = [row for row in path.read_bytes().splitlines() if row.endswith(b"  weather.csv")]
    path.write_bytes(begin + line[1:])
    message = f"{data / 'weather.csv'} is not listed in SHA256SUMS beside it: {AGAIN}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        datasets.weather()
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"^{re.escape(f'{path} is missing: {AGAIN}')}$"):
        datasets.weather()


def test_every_data_file_is_listed_with_its_hash_and_nothing_else():
    """Read by another parser than the library's, as sha256sum writes it: hash, two spaces, name."""
    rows = [line.split("  ") for line in (files.DATA / "SHA256SUMS").read_text().splitlines()]
    listed = sorted(path for path in files.DATA.iterdir() if path.name != "SHA256SUMS")
    assert len(listed) >= 6
    assert rows == [[sha256(path), path.name] for path in listed]


@for_each("weather.csv", "17_weather.json")
def test_line_ends_of_another_system_are_no_damage(name, data):
    def whole():
        return json.dumps(READERS[name][0](), default=lambda x: getattr(x, "tolist", x.__repr__)())

    before, path = whole(), data / name
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert whole() == before


def test_shipped_weights_come_back_as_written(data):
    """Halves as float32; line ends in them are none."""
    path, thirds = data / "99_test.safetensors", torch.arange(7.0) / 3
    expected = {"a": thirds, "b.weight": torch.tensor([13, 10, 13, 10]).byte()}
    expected["half"] = thirds.half().float()
    torch.testing.assert_close(records.shipped_tensors("99_test"), expected, rtol=0, atol=0)
    content = path.read_bytes()
    assert content.count(b"\r\n") == 2
    path.write_bytes(content.replace(b"\r\n", b"\n"))
    with pytest.raises(ValueError, match=r"99_test\.safetensors is damaged"):
        records.shipped_tensors("99_test")


# trainings; two records are of another kind: test_scoreboard.py and page 12 hold what they say
OTHERS = {files.DATA / f"{name}.json" for name in ("scoreboard", "flash_on_gpu")}
TRAININGS = sorted({*files.DATA.glob("*.json")} - OTHERS)


@pytest.mark.parametrize("path", TRAININGS, ids=str)
def test_every_record_has_as_many_results_as_seeds(path):
    found = records.record(path.stem)
    assert found["seeds"]
    assert {len(found[name]) for name in found if name != "torch"} == {len(found["seeds"])}


# ---------------------------------------------------------------- dates

MONTHS = {  # how the months begin, in dates and alone; read without babel
    "en": "jan feb mar apr may jun jul aug sep oct nov dec",
    "de": "jan feb mär apr mai jun jul aug sep okt nov dez",
    "fr": "janv févr mars avr mai juin juil août sept oct nov déc",
    "es": "ene feb mar(?!t) abr may jun jul ago sep oct nov dic",
    "pl": "sty lut mar kwi maj cze lip sie wrz paź lis gru",
    "tr": "oca şub mar nis may haz tem ağu eyl eki kas ara",
    "ru": "янв фев мар апр ма[яй] июн июл авг сен окт ноя дек",
}


def read(text, locale):
    """ISO 8601 of a date as people of that locale would read it."""
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    if locale in ("zh", "ja"):
        order = "ymd"[: len(numbers)]
    elif re.fullmatch(r"\d+([./])\d+\1\d+", text):
        order = "mdy" if locale == "en_US" else "dmy"
    else:
        words = MONTHS[locale[:2]].split()
        (month,) = [i for i, word in enumerate(words) if re.search(rf"\b{word}", text.lower())]
        numbers, order = [month + 1, *numbers], "mdy" if len(numbers) == 2 else "my"
    found = dict(zip(order, numbers, strict=True))
    if found["y"] < 100:
        found["y"] += 1900 if found["y"] >= 50 else 2000
    day = datetime.date(found["y"], found["m"], found.get("d", 1))
    return day.isoformat()[: 10 if "d" in found else 7]


@pytest.fixture(scope="module")
def train_dates():
    return datasets.dates(12_000)


@pytest.fixture(scope="module")
def held_out():
    return datasets.dates(2_000, split="test")


def test_every_date_means_what_its_iso_says(train_dates, held_out):
    for found in (train_dates, held_out):
        assert [read(*row) for row in zip(found.texts, found.locales, strict=True)] == found.iso


def test_the_letters_of_dates_are_those_that_occur(train_dates, held_out):
    letters = datasets.DATE_LETTERS
    assert len(set(letters)) == len(letters)
    assert set("".join(train_dates.texts)) == set(letters)
    assert set("".join(held_out.texts)) <= set(letters)


def test_locales_and_formats_are_equally_likely(train_dates):
    """Each count within four standard errors: a tenth a locale, a fifth a format."""

    def check(count, n, share):
        assert abs(count - n * share) < 4 * (n * share * (1 - share)) ** 0.5

    for name in datasets.DATE_LOCALES:
        check(train_dates.locales.count(name), 12_000, 0.1)
    german = datasets.dates(2000, locales=("de",)).texts
    for shape in (r"(\d\d\.){2}\d\d", r"(\d\d\.){2}\d{4}", r"\d+\. .*", r"\w+, .*", r"\w+ \d{4}"):
        check(sum(bool(re.fullmatch(shape, text)) for text in german), 2000, 0.2)


def test_no_month_of_a_year_is_in_both_splits(train_dates, held_out):
    """All 1200 months are in one of them, and each month of the year is in both."""
    for split in ("train", "test"):
        isos = datasets.dates(97, split=split).iso
        held = {(12 * int(iso[:4]) + int(iso[5:7])) % 11 == 0 for iso in isos}
        assert held == {split == "test"}
    train, test = ({iso[:7] for iso in found.iso} for found in (train_dates, held_out))
    assert not train & test
    assert train | test == {f"{y}-{m:02}" for y in range(1950, 2050) for m in range(1, 13)}
    assert len(test) == 109
    for months in (train, test):
        assert {month[5:] for month in months} == {f"{m:02}" for m in range(1, 13)}


def test_the_same_seed_gives_the_same_dates():
    state, first = torch.get_rng_state(), datasets.dates(31)
    assert first == datasets.dates(31, seed=0) != datasets.dates(31, seed=6)
    assert torch.equal(torch.get_rng_state(), state)
    assert datasets.dates(0) == ([], [], [])
    assert set(datasets.dates(31, locales=("tr",)).locales) == {"tr"}


@for_each(
    (-1, {}, "^n must be at least 0, got -1$"),
    (1, {"split": "validation"}, "^split must be 'train' or 'test', got 'validation'$"),
    (1, {"locales": ()}, "^locales must name at least one locale, got none$"),
    (1, {"locales": ("de", "xx")}, r"every locale of \('de', 'xx'\): unknown locale 'xx'$"),
    (1, {"locales": ("not a locale",)}, r"every locale of \('not a locale',\): expected only"),
)
def test_dates_that_cannot_be_drawn_are_named(n, options, message):
    with pytest.raises(ValueError, match=message):
        datasets.dates(n, **options)


# ---------------------------------------------------------------- clothes


@for_each(
    ("train", [942, 1027, 1016, 1019, 974, 989, 1021, 1022, 990, 1000]), ("test", [1000] * 10)
)
def test_the_clothes_are_whole(split, numbers):
    images, labels = datasets.fashion(split)
    assert (tuple(images.shape), images.dtype) == ((10_000, 28, 28), torch.uint8)
    assert (tuple(labels.shape), labels.dtype) == ((10_000,), torch.int64)
    assert labels.bincount().tolist() == numbers
    assert len(datasets.FASHION_NAMES) == 10


def test_names_and_classes_belong_together():
    """Trousers have a gap between their legs; a boot reaches higher than a sandal."""
    images, labels = datasets.fashion("test")
    classes = [datasets.FASHION_NAMES.index(n) for n in ("Trouser", "Ankle boot", "Sandal")]
    trouser, boot, sandal = (images[labels == c].float().mean(0) for c in classes)
    assert trouser[24, 14] < trouser[24, [10, 17]].min() / 2
    assert boot[:8].sum() > 3 * sandal[:8].sum()


def write_original(folder, name, values, *, sizes=()):
    """One of Fashion-MNIST's own files: a header of counts, then the numbers."""
    kind = 8 * 256 + 1 + len(sizes)
    header = np.array([kind, len(values), *sizes], ">u4").tobytes()
    content = header + values.to(torch.uint8).numpy().tobytes()
    (folder / f"{name}.gz").write_bytes(gzip.compress(content, 1))
    return hashlib.sha256(content).hexdigest()


def test_the_test_images_are_those_of_the_original_files(tmp_path):
    """The hash of the originals is known, so this tells that no committed number differs."""
    stored = datasets.fashion("test")
    write_original(tmp_path, "t10k-images-idx3-ubyte", stored.images, sizes=(28, 28))
    write_original(tmp_path, "t10k-labels-idx1-ubyte", stored.labels)
    read = datasets.fashion("test", folder=str(tmp_path))
    assert torch.equal(stored.images, read.images)
    assert torch.equal(stored.labels, read.labels)
    assert (read.images.dtype, read.labels.dtype) == (torch.uint8, torch.int64)


REMEDY = "install Debian's package dataset-fashion-mnist and name /usr/share/datasets/"
REMEDY += "fashion-mnist, or take the file from github.com/zalandoresearch/fashion-mnist"


ALTERED = gzip.compress(b"another file")


@for_each(ALTERED, ALTERED[:-9], b"", b"no gzip", ids=["altered", "cut", "empty", "no gzip"])
def test_a_damaged_original_is_named_with_the_remedy(content, tmp_path):
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(content)
    message = rf"{re.escape(str(path))} (holds )?is damaged.*{re.escape(REMEDY)}$"
    with pytest.raises(ValueError, match=message):
        datasets.fashion("test", folder=tmp_path)
    message = f"{tmp_path / 'train-images-idx3-ubyte.gz'} is missing: {REMEDY}"
    with pytest.raises(FileNotFoundError, match=f"^{re.escape(message)}$"):
        datasets.fashion("train", folder=tmp_path)


def test_an_unknown_split_is_named():
    with pytest.raises(ValueError, match="'train' or 'test', got 'validation'"):
        datasets.fashion("validation")
