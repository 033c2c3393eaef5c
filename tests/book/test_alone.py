"""Each notebook alone in an empty folder, as in Colab, and as another machine would compute it.

No book around it and no library installed: the first cell must install what the rest needs. The
processor is kept to the instructions of an older one, and to one thread; what comes out must be
what is stored, texts, figures and kinds of output.
"""

import os
import re
import shutil
import subprocess
import sys

import changes
import compare
import copies
import nbformat
import pages
import pytest

PINS = dict(
    re.findall(r"^([\w-]+)==(\S+)$", (pages.ROOT / "requirements.txt").read_text(), re.MULTILINE)
)
# what Colab brings; the rest must come from the notebook's first cell
PRESENT = ("torch", "numpy", "matplotlib", "ipykernel", "nbclient")
PIP = ("python", "-m", "pip")
OLDER = {
    "MKL_CBWR": "COMPATIBLE",
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The working tree as a repository of its own, to be cloned from."""
    root = copies.copy_tree(tmp_path_factory.mktemp("published") / "checkout")
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.invalid"]
    for command in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-qm", "all"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    return root


@pytest.fixture(scope="module")
def colab(tmp_path_factory, published):
    """Variables of a fresh environment without the library; git knows where the address leads."""
    binaries = tmp_path_factory.mktemp("colab") / "venv" / "bin"
    subprocess.run([sys.executable, "-m", "venv", binaries.parent], check=True)
    wanted = [f"{name}=={PINS[name]}" for name in PRESENT]
    install = [binaries / "python", "-m", "pip", "install", "-q", "--no-compile", *wanted]
    subprocess.run(install, check=True, capture_output=True)
    return {
        **{k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")},
        **OLDER,
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{published.as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": pages.address(),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "ATTN_LIB_PROGRESS": "0",
    }


def run(command, cwd, environment):
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


def faults(new: list, stored: list) -> dict[int, str]:
    """Number of each cell that differs between two runs -> how."""
    assert [cell.source for cell in new] == [cell.source for cell in stored]
    pairs = zip(new, stored, strict=True)
    found = {n: compare.output_fault(a.outputs, b.outputs) for n, (a, b) in enumerate(pairs)}
    return {number: fault for number, fault in found.items() if fault}


@pytest.mark.parametrize("path", pages.NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_alone(path, colab, tmp_path):
    shutil.copy(path, tmp_path)
    run([*PIP, "uninstall", "-qy", "attn_lib"], tmp_path, colab)
    missing = run(["python", "-c", "import attn_lib"], tmp_path, colab)
    assert "ModuleNotFoundError" in missing.stderr
    done = run(["jupyter", "execute", "--inplace", path.name], tmp_path, colab)
    assert done.returncode == 0, done.stderr
    alone, stored = (pages.code_cells(pages.read(p)) for p in (tmp_path / path.name, path))
    alone[0].outputs = stored[0].outputs  # the first cell installs, and says so
    assert faults(alone, stored) == {}


def test_the_processor_is_an_older_one(colab, tmp_path):
    """Without this the pages could be computed as in every other run, and nobody would know."""
    script = "import torch; print(torch.backends.cpu.get_cpu_capability(), torch.get_num_threads())"
    shown = run(["python", "-c", script], tmp_path, colab)
    assert shown.stdout.split() == ["DEFAULT", "1"]


def test_the_comparison_sees_each_change():
    """What nbval says of a changed cell, this comparison says too, and of no other cell."""
    changed, stored = pages.read(pages.NOTEBOOKS[0]), pages.read(pages.NOTEBOOKS[0])
    expected = changes.plant(changed)
    found = faults(pages.code_cells(stored), pages.code_cells(changed))
    assert found.keys() == expected.keys()


STDOUT = nbformat.v4.new_output("stream", name="stdout", text="a\nb\n")
STDERR = nbformat.v4.new_output("stream", name="stderr", text="a\nb\n")
SHOWN = nbformat.v4.new_output("display_data", data={"text/plain": "a"})
RESULT = nbformat.v4.new_output("execute_result", data={"text/plain": "a"}, execution_count=1)


@pytest.mark.parametrize(
    ("new", "stored"),
    [([STDERR], [STDOUT]), ([SHOWN], [RESULT]), ([RESULT, STDOUT], [STDOUT, RESULT])],
    ids=["stream", "kind", "order"],
)
def test_the_comparison_sees_what_nbval_does_not(new, stored):
    """Which stream, which kind of output, in which order."""
    assert compare.output_fault(new, stored) is not None


def test_the_comparison_sees_no_more_than_there_is():
    """Printed lines arrive in pieces; a result has another number in another run."""
    pieces = [nbformat.v4.new_output("stream", text=text) for text in ("a\n", "b\n")]
    later = nbformat.v4.new_output("execute_result", data={"text/plain": "a"}, execution_count=9)
    assert compare.output_fault([*pieces, later], [STDOUT, RESULT]) is None
