"""Run the mutants of the library that mutmut makes, each in a fork of one collected session.

    pip install mutmut==3.8.1
    python tests/mutation/run_mutants.py ["attn_lib.masks.*" ...]
    python tests/mutation/mutation_report.py

mutmut itself makes the mutants, notes which tests call each function, and keeps the verdicts that
are not older than a change; but it would collect all tests anew for each mutant. Here they are
collected once, and run once without a mutant, all green. Then each mutant that is not killed yet,
or that fits one of the names, is chosen in a fork, where the tests of its function run up to one
that fails, first those that cost least time for each mutant of that function that they have killed.
"""

import gc
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from fnmatch import fnmatch
from importlib import import_module

import pytest
import tomllib
from page_runs import ROOT, Failures, forked

MUTANTS = ROOT / "mutants"
ONE = "attn_lib.masks.x_causal_mask__mutmut_1"  # with no name, mutmut would run all
OPTIONS = ["-q", "-s", "--rootdir=.", "-W", "ignore:Module already imported"]
OPTIONS += [f"-pno:{name}" for name in ("cacheprovider", "xdist", "benchmark")]
LIMIT = 150  # seconds of processor time for the tests of one mutant
GREEN, RED, NO_TEST, TIMEOUT = 0, 1, 33, 36  # as mutmut writes them

items: dict[str, pytest.Item] = {}
stats: dict[str, dict] = {}
kills: Counter[tuple[str, str]] = Counter()  # of a function's mutants, by a test, in this process
failures = Failures()


def first_red(names: list[str]) -> tuple[str, str] | None:
    """The first of these tests that fails, in this process, which prints no more; what it says."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.__stdout__.fileno())
    for name, following in zip(names, [*names[1:], ""], strict=True):
        hook = items[name].config.hook  # all that surrounds a test, such as filters of warnings
        hook.pytest_runtest_protocol(item=items[name], nextitem=items.get(following))
        if failures.found:
            return failures.found[0]
    return None


def without_a_mutant() -> tuple[tuple[str, str] | None, list[str]]:
    """The first test that fails, and the modules that the tests load."""
    return first_red(list(items)), [name for name in sys.modules if "." in name]


def status(mutant: str, names: list[str]) -> tuple[int, str]:
    """How these tests end in this process, and the one that fails."""
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT))  # then a signal ends it
    signal.alarm(10 * LIMIT)  # as it ends what waits for ever, which takes no processor time
    import_module("mutmut.mutation.trampoline").set_mutant_under_test(mutant)
    red = first_red(names)
    return (RED, red[0]) if red else (GREEN if names else NO_TEST, "")


def verdict(mutant: str) -> tuple[str, int]:
    """The mutant, and how the tests of its function end in a fork."""
    function, seconds = mutant.rpartition("__mutmut_")[0], stats["duration_by_test"]
    named = items.keys() & stats["tests_by_mangled_function_name"].get(function, [])
    names = sorted(named, key=lambda name: seconds[name] / (kills[function, name] + 0.02))
    found = forked(status, mutant, names)
    ended, killer = (TIMEOUT, "") if isinstance(found, str) else found
    kills[function, killer] += 1
    return mutant, ended


class Runner:
    """Takes the place of pytest's loop over the collected tests."""

    def __init__(self, chosen: list[str]):
        self.chosen = chosen

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items.update({item.nodeid: item for item in session.items})
        stats.update(json.loads((MUTANTS / "mutmut-stats.json").read_text()))
        red, modules = forked(without_a_mutant)
        if red:
            pytest.exit(f"red without a mutant: {': '.join(red)}", returncode=1)
        for name in modules:  # once, and not in each fork
            if not name.startswith("attn_lib"):
                with suppress(Exception):
                    import_module(name)
        gc.freeze()  # or each fork would copy what it only reads
        files = {path: json.loads(path.read_text()) for path in sorted(MUTANTS.rglob("*.meta"))}
        found = {path: file["exit_code_by_key"] for path, file in files.items()}
        places = {mutant: path for path, ended in found.items() for mutant in ended}
        left = [mutant for mutant, path in places.items() if self.wanted(mutant, found[path])]
        # what survived before takes longest, and comes last
        left.sort(key=lambda mutant: found[places[mutant]][mutant] is not None)
        with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
            for number, (mutant, ended) in enumerate(pool.imap_unordered(verdict, left), 1):
                path = places[mutant]
                found[path][mutant] = ended
                path.write_text(json.dumps(files[path], indent=4))  # at once: it may take hours
                if ended != RED or number == len(left):
                    print(f"{number}/{len(left)}", ended, mutant, flush=True)
        return True

    def wanted(self, mutant: str, ended: dict[str, int | None]) -> bool:
        if self.chosen:
            return any(fnmatch(mutant, pattern) for pattern in self.chosen)
        return ended[mutant] != RED


def main() -> int:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mutmut"]
    subprocess.run(["mutmut", "run", ONE], cwd=ROOT, check=True)
    os.chdir(MUTANTS)
    sys.path.insert(0, str(MUTANTS))  # the library with its mutants, and its tests
    os.environ |= {"PYTHONPATH": str(MUTANTS), "MUTANT_UNDER_TEST": ""}
    tests = settings["pytest_add_cli_args_test_selection"]
    return pytest.main([*OPTIONS, *tests], plugins=[Runner(sys.argv[1:]), failures])


if __name__ == "__main__":
    sys.exit(main())
