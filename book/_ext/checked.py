"""No strict build publishes numbers that were not checked just before.

A green nbval run over every cell of every notebook writes ``_build/checked.json``, a hash of
what it checked; the build warns where that file is missing or says something else. Under ``-W``
the warning is an error. A build without a warning writes ``_build/built.json``, a hash of all
that the book is made of, so that the tests need not build it once more.
"""

import hashlib
import json
import subprocess
from collections.abc import Iterable
from datetime import UTC, date, datetime
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util import logging

ROOT = Path(__file__).resolve().parents[2]


def fingerprint(root: Path = ROOT) -> str:
    """sha256 over the notebooks, both packages and the pins: all that an output depends on."""
    patterns = ("book/*.ipynb", "attn_lib/**/*", "attn_check/**/*", "requirements.txt")
    return _hash(
        root,
        (
            path
            for pattern in patterns
            for path in root.glob(pattern)
            if path.is_file() and path.suffix != ".pyc"
        ),
    )


def _hash(root: Path, files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(files):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def tree(root: Path = ROOT) -> list[str]:
    """The files of the working tree, without what git ignores."""
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    names = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)  # noqa: S603
    return [name for name in names.stdout.splitlines() if (root / name).is_file()]


def built(root: Path = ROOT) -> bool:
    """Whether ``_build/html`` was built, without a warning, of today's tree and its last check."""
    path, before = root / "_build" / "built.json", root / "_build" / "checked.json"
    if not path.exists() or not before.exists() or path.stat().st_mtime < before.stat().st_mtime:
        return False
    return json.loads(path.read_text())["sha256"] == _hash(root, map(root.joinpath, tree(root)))


def write(root: Path = ROOT) -> None:
    """Record that everything, as it is now, has just been checked."""
    path = root / "_build" / "checked.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"sha256": fingerprint(root)}) + "\n")


def checked_on(root: Path = ROOT) -> date | None:
    """The day on which every cell was last compared."""
    path = root / "_build" / "checked.json"
    return datetime.fromtimestamp(path.stat().st_mtime, UTC).date() if path.exists() else None


def forget(root: Path = ROOT) -> None:
    """Take back an earlier record."""
    (root / "_build" / "checked.json").unlink(missing_ok=True)


def fault(root: Path = ROOT) -> str | None:
    """Why the stored outputs may not be published, or None."""
    path = root / "_build" / "checked.json"
    if not path.exists():
        return "the stored outputs were not checked: run `pytest --nbval book` first"
    if json.loads(path.read_text())["sha256"] != fingerprint(root):
        return (
            "notebooks, attn_lib or pins changed since the outputs were checked: "
            "run `pytest --nbval book` again"
        )
    return None


def _warn(app: Sphinx) -> None:
    message = fault(Path(app.srcdir))
    if message:
        logging.getLogger(__name__).warning(message, type="checked")


def _begin(app: Sphinx) -> None:
    root = Path(app.srcdir)
    (root / "_build" / "built.json").unlink(missing_ok=True)
    if (root / ".git").exists():
        app.tree_when_begun = _hash(root, map(root.joinpath, tree(root)))


def _end(app: Sphinx, exception: Exception | None) -> None:
    if hasattr(app, "tree_when_begun") and exception is None and app._warncount == 0:
        path = Path(app.srcdir) / "_build" / "built.json"
        path.write_text(json.dumps({"sha256": app.tree_when_begun}) + "\n")


def setup(app: Sphinx) -> dict:
    """Register with Sphinx."""
    app.connect("builder-inited", _begin)
    app.connect("builder-inited", _warn)
    app.connect("build-finished", _end)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
