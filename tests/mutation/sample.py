"""Whether the tests of `attn_check` see small changes of its modules.

    python tests/mutation/sample.py --number 200 --seed 0 attn_check/reference.py …

So many small changes (``small.py``), drawn with this seed from the named files, are made one
after the other in a copy of the working tree: at least 85 % must turn a test of `tests/check` red.
Exit status: 0 if so; not 0 if not, or if a test is red without a change.
"""

import argparse
import contextlib
import io
import os
import random
import resource
import signal
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import pytest
from page_runs import ROOT, Failures, forked
from small import small_changes

sys.path[:0] = [str(ROOT / "tests" / "book"), str(ROOT / "book" / "_ext")]
copies = import_module("copies")

LOADED = ("hypothesis", "matplotlib.pyplot", "torch", "transformers")
OPTIONS = ["-x", "-q", "-p", "no:cacheprovider", "-W", "ignore:Module already imported"]
LIBRARY = ("attn_check", "attn_lib", "copies", "pages")  # are those of the copy
CHECKS = ["tests/check"]  # what a sample must turn red
LIMIT, WANTED = 600, 85  # seconds of one change, per cent


def tried(root: str, tests: list[str]) -> tuple[int, list[str], str]:
    """pytest's exit status in a copy, what the first test says that fails, and the whole output."""
    for name in [name for name in sys.modules if name.partition(".")[0] in LIBRARY]:
        del sys.modules[name]
    os.chdir(root)
    sys.path.insert(0, root)
    os.environ["PYTHONPATH"] = root
    sys.dont_write_bytecode = True  # or an edit of the same second could go unread
    failures = Failures()
    with contextlib.redirect_stdout(io.StringIO()) as output:
        status = pytest.main([*OPTIONS, *tests], plugins=[failures])
    return int(status), [text for _, text in failures.found], output.getvalue()


def limited(root: str, tests: list[str]) -> tuple[int, list[str], str]:
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT))
    signal.alarm(10 * LIMIT)  # for what waits, which takes no processor time
    return tried(root, tests)


def caught(root: Path, name: str, text: str, tests: list[str]) -> str:
    """What the first of these tests says of a file with this text, or nothing."""
    path = root / name
    before = path.read_text()
    path.write_text(text)
    found = forked(limited, str(root), tests)
    path.write_text(before)
    if isinstance(found, str):
        return found  # a signal: it went on for ever
    status, texts, _ = found
    return "" if status == pytest.ExitCode.OK else texts[0] if texts else f"exit status {status}"


def sampled(root: Path, names: list[str], number: int, seed: int, tests: list[str]) -> bool:
    """Make this number of small changes in these files; whether enough of them were caught."""
    every = [(name, *c) for name in names for c in small_changes((root / name).read_text())]
    chosen = random.Random(seed).sample(every, min(number, len(every)))  # noqa: S311
    killed = 0
    for name, line, change, text in chosen:
        answer = caught(root, name, text, tests)
        killed += bool(answer)
        print(f"{name}:{line}: {change}: {answer or 'SURVIVED'}", flush=True)
    print(f"\n{killed} of {len(chosen)} small changes turn a test red, {WANTED} % wanted")
    return bool(chosen) and 100 * killed >= WANTED * len(chosen)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    for name in LOADED:
        import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        root = copies.copy_tree(Path(folder, "checkout"))
        status, _, output = forked(tried, str(root), CHECKS)
        if status != 0:
            sys.exit(f"red without a change:\n{output}")
        return int(not sampled(root, given.files, given.number, given.seed, CHECKS))


if __name__ == "__main__":
    sys.exit(main())
