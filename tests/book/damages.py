"""Damage a copy of the repository in each way that `damages.csv` lists, and see what is caught.

    python tests/book/damages.py [--at REVISION] [KIND ...]

By hand: it takes half an hour on an idle machine. Each damage is planted by itself, in a fresh copy
of what is committed (or of REVISION), by replacing an expression that is there once; the lines of
one name are one damage. Then those parts of the README's two commands are run that would see it, in
continuous integration: a page's rules, its cells, a file of tests, what is collected, the build.
They must be green before. Printed are the damages that go unseen, those whose text is not there,
and a table.
"""

import argparse
import csv
import hashlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import contextmanager
from functools import cache
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = "attn_lib/data"
PYTEST = [sys.executable, "-m", "pytest", "-q", "-x"]
RULES = ["tests/book/test_book.py", "tests/book/test_numbers.py", "-k"]
WORDS = {"number in a sentence", "caption, alt text, prompt", "conclusion", "text"}  # no cells
WHOLE = "contents or unique or shrinks or every_reference"  # rules of no single page


@contextmanager
def checkout(revision: str):
    """A fresh copy of a revision, taken away afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "checkout")
        git("worktree", "add", "--detach", root, revision)
        try:
            yield root
        finally:
            git("worktree", "remove", "--force", root)


def git(*arguments) -> None:
    subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True)


def plant(root: Path, edits: list[dict]) -> bool:
    """Make the edits; whether each expression is there once."""
    for edit in edits:
        path = root / edit["file"]
        if not edit["old"]:
            path.unlink()
            continue
        text, found = re.subn(edit["old"], edit["new"], path.read_text() if path.exists() else "")
        if found != 1:
            return False
        path.write_text(text)
        if path.parent == root / DATA:  # with its sum
            sums = path.with_name("SHA256SUMS")
            now = hashlib.sha256(path.read_bytes()).hexdigest()
            sums.write_text(re.sub(rf"\w+(?=  {path.name})", now, sums.read_text()))
    return True


def commands(look: str) -> list[list[str]]:
    """Where to look: "build", "suite" for what is collected, "rules of" a page, or files."""
    if look == "build":
        write = "import checked; checked.write()"  # the outputs are not what is damaged
        wrote = [sys.executable, "-c", f"import sys; sys.path.append('book/_ext'); {write}"]
        book = Path(sys.executable).with_name("jupyter-book")
        return [wrote, [book, "build", ".", "--all", "-W", "-n", "--keep-going"]]
    if look == "suite":
        return [[*PYTEST, "--co"]]
    if look.startswith("rules of "):
        return [[*PYTEST, *RULES, f"({look.removeprefix('rules of ')} and not honest) or {WHOLE}"]]
    if look.endswith(".ipynb"):
        return [*commands(f"rules of {Path(look).stem}"), [*PYTEST, "--nbval", look]]
    return [[*PYTEST, *shlex.split(look)]]


def usual(kind: str, file: str) -> str:
    """Where a damage is looked for, if its line does not say."""
    if kind in WORDS and file.endswith((".ipynb", ".md")):
        return f"rules of {Path(file).stem}"
    if file.startswith("attn_lib/exercises/"):
        return "tests/book/test_exercises.py"
    return file if file.endswith(".ipynb") else "suite"


def red(root: Path, looks: str) -> bool:
    """Whether something is red where one looks; a file that an older revision lacks is not."""
    environment = {**os.environ, "PYTHONPATH": str(root), "CI": "true"}
    for command in (command for look in looks.split(";") for command in commands(look)):
        tests = [str(part) for part in command if str(part).startswith("tests/")]
        there = [part for part in tests if (root / part).exists()]
        if tests and not there:
            continue
        command = [part for part in command if part in there or part not in tests]
        run = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
        if run.returncode not in (0, 5):  # 5: there is no such test yet
            return True
    return False


@cache
def green(revision: str, looks: str) -> bool:
    with checkout(revision) as root:
        return not red(root, looks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND")
    parser.add_argument("--at", default="HEAD", metavar="REVISION")
    chosen = parser.parse_args()
    with Path(__file__).with_suffix(".csv").open() as file:
        rows = [r for r in csv.DictReader(file) if r["kind"] in (chosen.kinds or [r["kind"]])]
    planted, caught = Counter(), Counter()
    for (kind, name), edits in groupby(rows, lambda row: (row["kind"], row["damage"])):
        edits = list(edits)
        looks = edits[0]["look"] or usual(kind, edits[0]["file"])
        with checkout(chosen.at) as root:
            if not plant(root, edits):
                print(f"not there: {kind}: {name}", flush=True)
                continue
            if not green(chosen.at, looks):
                sys.exit(f"{looks} is red without a damage")
            planted[kind] += 1
            caught[kind] += (seen := red(root, looks))
            if not seen:
                print(f"UNSEEN: {kind}: {name}", flush=True)
    for kind in planted:
        print(f"{kind:28} {caught[kind]:3} of {planted[kind]:3}")
    print(f"{'all':28} {caught.total():3} of {planted.total():3}")


if __name__ == "__main__":
    main()
