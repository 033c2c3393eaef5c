"""Pages run in this process, cell by cell, and in forks of it; and what they use of the library."""

import dis
import gc
import io
import json
import os
import re
import signal
import sys
import time
import traceback
from importlib import import_module
from inspect import CO_OPTIMIZED
from pathlib import Path

import matplotlib
import nbformat
from gross import can_be_wrong, is_itself_wrong
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from nbformat.v4 import new_output

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "attn_lib"
LIMIT = 120  # seconds of a cell, as for nbval

sys.path[:0] = [str(ROOT), str(ROOT / "book" / "_tools")]
compare = import_module("compare")


def code_cells(path: Path) -> list:
    return [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]


class _Hook(DisplayHook):
    outputs: list

    def write_output_prompt(self):
        pass

    def write_format_data(self, format_dict, md_dict=None):
        self.outputs.append(new_output("execute_result", data=format_dict))

    def finish_displayhook(self):
        self._is_active = False


class _Publisher(DisplayPublisher):
    outputs: list

    def publish(self, data, **_):
        self.outputs.append(new_output("display_data", data=data))


class _Stream(io.TextIOBase):
    def __init__(self, name: str, outputs: list):
        self.name, self.outputs = name, outputs

    def write(self, text: str) -> int:
        self.outputs.append(new_output("stream", name=self.name, text=text))
        return len(text)


class Page:
    """A page in a shell of this process; the outputs are those of a notebook's kernel."""

    def __init__(self, path: Path):
        self.cells = code_cells(path)
        os.chdir(path.parent)
        InteractiveShell.displayhook_class, InteractiveShell.display_pub_class = _Hook, _Publisher
        self.shell = InteractiveShell.instance()
        self.shell.history_manager.enabled = False
        matplotlib.use("module://matplotlib_inline.backend_inline")
        self.shell._showtraceback = lambda *_: None

    def run(self, number: int, source: str | None = None) -> list:
        """The outputs of a cell."""
        outputs = self.shell.displayhook.outputs = self.shell.display_pub.outputs = []
        streams = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = _Stream("stdout", outputs), _Stream("stderr", outputs)
        try:
            done = self.shell.run_cell(source or self.cells[number].source, store_history=True)
        finally:
            sys.stdout, sys.stderr = streams
        error = done.error_before_exec or done.error_in_exec
        if error:
            outputs.append(new_output("error", ename=type(error).__name__, evalue=str(error)))
        return outputs

    def red(self, number: int, source: str | None = None) -> str | None:
        """What is red in a cell, which runs, or None."""
        signal.setitimer(signal.ITIMER_PROF, LIMIT)  # the process ends when it is over
        return compare.output_fault(self.run(number, source), self.cells[number].outputs)


def forked(work, *given):
    """What ``work(*given)`` returns in a fork of this process, or the signal that ended it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        gc.freeze()  # or it goes through, and copies, all that was there before it
        try:
            with open(writing, "w") as file:
                json.dump(work(*given), file)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(writing)
    with open(reading) as file:
        text = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status > 0:
        raise ChildProcessError("a mutant ended without a verdict: see above")
    return json.loads(text) if status == 0 else f"ended by {signal.Signals(-status).name}"


class Failures:
    """A plugin of pytest: the tests that fail, and what each says."""

    def __init__(self):
        self.found: list[tuple[str, str]] = []

    def pytest_runtest_logreport(self, report):
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            text = crash.message if crash and report.when == "call" else f"BROKEN {report.when}"
            self.found.append((report.nodeid, " ".join(text.split())[:150]))


# ---------------------------------------------------------------- what pages use


class Used:
    """The first cell of a page that runs each line of the library, each function that returns."""

    def __init__(self, path: Path, wanted: set[str]):
        self.lines, self.functions, self.whole = {}, {}, not wanted
        start, page = time.process_time(), Page(path)
        for self.cell in range(len(page.cells)):
            sys.settrace(self._call)
            self.red = page.red(self.cell)
            sys.settrace(None)
            if self.red or (wanted and wanted <= self.functions.keys()):
                break
        self.seconds = time.process_time() - start

    def _call(self, frame, event, arg):
        code = frame.f_code
        if not code.co_filename.startswith(f"{LIBRARY}/") or not code.co_flags & CO_OPTIMIZED:
            return None  # a module or the body of a class
        file = code.co_filename.removeprefix(f"{LIBRARY}/")
        name = f"{file[:-3].replace('/', '.')}.{code.co_qualname}"
        public = not re.search(r"(^|\.)_|<", code.co_qualname)

        def local(frame, event, arg):
            if event == "line":
                self.lines.setdefault(f"{file}:{frame.f_lineno}", self.cell)
            elif event == "return" and public and can_be_wrong(arg):
                if is_itself_wrong(arg) or is_read(frame):
                    self.functions.setdefault(name, self.cell)
            return local

        frame.f_trace_lines = self.whole  # of functions that are named, no lines are asked for
        return local


def is_read(frame) -> bool:
    """Whether the caller does something with what it gets: its next step is not to drop it."""
    caller = frame.f_back
    steps = caller.f_code.co_code[caller.f_lasti :: 2]
    following = next(step for step in steps[1:] if dis.opname[step] != "CACHE")
    return dis.opname[following] != "POP_TOP"


def used(path: Path, wanted: set[str]) -> dict:
    """What a :class:`Used` holds."""
    return vars(Used(path, wanted))
