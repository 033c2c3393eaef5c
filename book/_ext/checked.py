"""No strict build publishes numbers that were not checked just before.

A green nbval run over every cell of every notebook writes ``_build/checked.json``, a hash of
what it checked; the build warns where that file is missing or says something else. Under ``-W``
the warning is an error.
"""

import hashlib
import json
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util import logging

ROOT = Path(__file__).resolve().parents[2]


def fingerprint(root: Path = ROOT) -> str:
    """sha256 over the notebooks, ``attn_lib`` and the pins: all that an output depends on."""
    patterns = ("book/*.ipynb", "attn_lib/**/*", "requirements.txt")
    files = sorted(
        path
        for pattern in patterns
        for path in root.glob(pattern)
        if path.is_file() and path.suffix != ".pyc"
    )
    digest = hashlib.sha256()
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def write(root: Path = ROOT) -> None:
    """Record that everything, as it is now, has just been checked."""
    path = root / "_build" / "checked.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"sha256": fingerprint(root)}) + "\n")


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


def setup(app: Sphinx) -> dict:
    """Register with Sphinx."""
    app.connect("builder-inited", _warn)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
