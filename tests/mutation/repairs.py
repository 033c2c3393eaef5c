"""Take back each repair that `repairs.csv` lists, and see the tests turn red that are named there.

    python tests/mutation/repairs.py [WORD ...]

Each row is a misuse that once ran in silence, or a defect that an attack found; `new`, put in place
of `old`, brings it back into a copy of the working tree. Without it the tests there are green; with
it each of them must fail, and neither while it is collected nor for want of a name. With words,
only defects are brought back whose descriptions hold one of them.

Printed is what each test says then, or UNSEEN. Exit status: 0 if all are red; not 0 if one is not,
or if a test is red without a change. A test runs in a fork of this process, which has loaded what
takes long.
"""

import argparse
import contextlib
import csv
import gc
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from page_runs import ROOT, forked

sys.path[:0] = [str(ROOT / "tests" / "book"), str(ROOT / "book" / "_ext")]
copies = import_module("copies")

LOADED = ("hypothesis", "matplotlib.pyplot", "torch", "transformers")
OPTIONS = ["-x", "-q", "-p", "no:cacheprovider", "-W", "ignore:Module already imported"]
LIBRARY = ("attn_lib", "copies", "pages")  # are those of the copy
BROKEN = ("NameError", "UnboundLocalError", "ImportError", "SyntaxError")  # of no old behaviour


def rows() -> list[dict]:
    """What `repairs.csv` lists; the tests as a list."""
    with Path(__file__).with_suffix(".csv").open() as file:
        return [{**row, "test": row["test"].split(";")} for row in csv.DictReader(file)]


class Heard:
    """What tests say that fail."""

    def __init__(self):
        self.said = []

    def pytest_runtest_logreport(self, report):
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            text = crash.message if crash and report.when == "call" else f"BROKEN {report.when}"
            self.said.append(" ".join(text.split())[:150])


def tried(root: str, tests: list[str]) -> tuple[int, list[str], str]:
    """pytest's exit status in a copy, what the first test says that fails, and the whole output."""
    for name in [name for name in sys.modules if name.partition(".")[0] in LIBRARY]:
        del sys.modules[name]
    os.chdir(root)
    sys.path.insert(0, root)
    os.environ["PYTHONPATH"] = root
    sys.dont_write_bytecode = True  # or an edit of the same second could go unread
    heard = Heard()
    with contextlib.redirect_stdout(io.StringIO()) as output:
        status = pytest.main([*OPTIONS, *tests], plugins=[heard])
    return int(status), heard.said, output.getvalue()


def taken_back(root: Path, row: dict) -> Iterator[str]:
    """What each test says in a copy without the repair, which is then put back."""
    path = root / row["file"]
    before = path.read_text()
    copies.edit(root, row["file"], row["old"], row["new"])
    for test in row["test"]:
        status, said, _ = forked(tried, str(root), [test])
        yield said[0] if status == pytest.ExitCode.TESTS_FAILED else f"UNSEEN: exit status {status}"
    path.write_text(before)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("words", nargs="*", metavar="WORD")
    words = parser.parse_args().words
    chosen = [row for row in rows() if not words or any(word in row["defect"] for word in words)]
    unseen = 0
    for name in LOADED:
        import_module(name)
    gc.freeze()  # or every fork goes through all of it
    with tempfile.TemporaryDirectory() as folder:
        root = copies.copy_tree(Path(folder, "checkout"))
        tests = sorted({test for row in chosen for test in row["test"]})
        status, _, output = forked(tried, str(root), tests)
        if status != 0:
            sys.exit(f"red without a change:\n{output}")
        for row in chosen:
            for test, said in zip(row["test"], taken_back(root, row), strict=True):
                unseen += (not_seen := said.startswith(("UNSEEN", "BROKEN", *BROKEN)))
                print(row["defect"], *([test] if not_seen else []), said, sep=": ", flush=True)
    print(f"\n{len(chosen)} repairs taken back, {unseen} times unseen")
    return int(unseen > 0 or not chosen)


if __name__ == "__main__":
    sys.exit(main())
