"""The library as one file on the website, for whoever has neither the book's folder nor an address.

pip builds the wheel of a copy of the packages, without a network, before pages are written; the
same files give the same bytes. The download menu of each page offers it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from sphinx.application import Sphinx

PARTS = ("attn_check", "attn_lib", "LICENSE", "README.md", "pyproject.toml")
DAY = "315532800"  # 1 January 1980, the first that a zip file knows


def build(root: Path, folder: Path) -> Path:
    """Put the wheel of the library into a folder, in place of an earlier one."""
    for earlier in folder.glob("attn_lib-*.whl"):
        earlier.unlink()
    with tempfile.TemporaryDirectory() as copy:
        compiled = shutil.ignore_patterns("__pycache__")
        for name in PARTS:
            if (root / name).is_dir():
                shutil.copytree(root / name, Path(copy, name), ignore=compiled)
            else:
                shutil.copy(root / name, copy)
        for path in Path(copy).rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
        command += ["--disable-pip-version-check", "--no-index", "-w", folder.resolve(), "."]
        own = {**os.environ, "SOURCE_DATE_EPOCH": DAY}
        subprocess.run(command, cwd=copy, env=own, check=True)  # noqa: S603
    (made,) = folder.glob("attn_lib-*.whl")
    return made


def _build(app: Sphinx) -> None:
    if app.builder.format == "html":
        app.offered = build(Path(app.srcdir), Path(app.outdir))


def _offer(app: Sphinx, page: str, template: str, context: dict, doctree: object) -> None:
    for group in context.get("header_buttons", ()):
        if group["label"] == "download-buttons":
            group["buttons"].append(
                {
                    "type": "link",
                    "url": context["pathto"](app.offered.name, 1),
                    "text": f"library (.whl, {app.offered.stat().st_size / 1e6:.0f} MB)",
                    "tooltip": "The library that the notebooks import",
                    "icon": "fas fa-file",
                    "label": "download-library-button",
                }
            )


def setup(app: Sphinx) -> dict:
    """Register with Sphinx."""
    app.connect("builder-inited", _build)
    app.connect("html-page-context", _offer, priority=502)  # after the theme's own
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
