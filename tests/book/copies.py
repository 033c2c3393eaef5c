"""Copies of the working tree, and the README's first command run on them."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import checked
import pages


def copy_tree(target: Path) -> Path:
    """The working tree, without what git ignores."""
    for name in checked.tree(pages.ROOT):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(pages.ROOT / name, target / name)
    return target


def run_nbval(root, *arguments, **environment):
    """The pytest part of the command, with the library of that copy."""
    # without the plugin for tests with random inputs, which no page has, and which starts slowly
    plain = ["-p", "no:hypothesispytest"]
    command = [sys.executable, "-m", "pytest", "-q", *plain, "--nbval", *arguments]
    own = {**os.environ, "PYTHONPATH": str(root), **environment}
    return subprocess.run(command, cwd=root, env=own, capture_output=True, text=True)


def red_cells(printed):
    """(Page, number) of each cell that nbval found red -> what it said of it."""
    parts = re.split(r"^_+ (\S+\.ipynb)::Cell (\d+) _+$", printed, flags=re.MULTILINE)
    cells = zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
    return {(page, int(number)): said for page, number, said in cells}


def run_build(root):
    """The build part of the command."""
    jupyter_book = Path(sys.executable).with_name("jupyter-book")
    command = [jupyter_book, "build", ".", "--all", "-W", "-n", "--keep-going"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True)


def edit(root, name, old, new):
    text = (root / name).read_text()
    assert text.count(old) == 1, (name, old, text.count(old))
    (root / name).write_text(text.replace(old, new))
