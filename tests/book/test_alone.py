"""Each notebook alone in an empty folder, as in Colab, and as another machine would compute it.

No book around it, and no library but the one that the first cell installs: once, since it is the
same in every notebook (`pages.starts_with_bootstrap`). The processor is kept to the instructions of
an older one, and to one thread; what comes out must be what is stored, texts, figures and kinds of
output.
"""

import copy
import os
import subprocess
import sys
from importlib.metadata import distribution

import changes
import compare
import copies
import live
import nbformat
import pages
import pytest
import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# what Colab brings, with all that it requires; the rest must come from the first cell
PRESENT = ("pip", "torch", "numpy", "matplotlib", "ipykernel", "nbclient")
PROJECT = tomllib.loads((pages.ROOT / "pyproject.toml").read_text())["project"]
NEEDED = ["attn_lib", *PROJECT["optional-dependencies"]["book"]]
EXECUTE = ("python", "-c", "from nbclient.cli import main; main()", "--inplace")
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


def present():
    """Files and folders of the distributions that Colab brings, as they are installed here."""
    wanted, found = list(PRESENT), {}
    while wanted:
        name = canonicalize_name(wanted.pop())
        if name not in found:
            found[name] = distribution(name)
            required = map(Requirement, found[name].requires or [])
            chosen = [r for r in required if not r.marker or r.marker.evaluate({"extra": ""})]
            wanted += [r.name for r in chosen]
    parts = {part.locate_file(p.parts[0]) for part in found.values() for p in part.files}
    return [path for path in parts if path.name not in ("..", "__pycache__")]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory, published):
    """A folder with a fresh environment, and its variables; git knows where the address leads."""
    root = tmp_path_factory.mktemp("colab")
    venv, brought = root / "venv", root / "brought"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    brought.mkdir()
    for path in present():  # outside the environment, where pip changes nothing
        (brought / path.name).symlink_to(path)
    (packages,) = venv.glob("lib/*/site-packages")
    (packages / "brought.pth").write_text(f"{brought}\n")
    environment = {
        **{k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")},
        **OLDER,
        "PATH": f"{venv / 'bin'}:{os.environ['PATH']}",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{published.as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": pages.address(),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "ATTN_LIB_PROGRESS": "0",
    }
    kernel = run(["python", "-m", "ipykernel", "install", "--sys-prefix"], root, environment)
    assert kernel.returncode == 0, kernel.stderr
    return root, environment


@pytest.fixture(scope="module")
def colab(fresh):
    """The variables, after the first cell of every page has installed what Colab lacks."""
    root, environment = fresh
    assert importable(root, environment) == []
    data = {name for path in pages.NOTEBOOKS for name in pages.fetched(pages.read(path))}
    first = nbformat.v4.new_code_cell(pages.bootstrap(sorted(data), pages.address()))
    nbformat.write(nbformat.v4.new_notebook(cells=[first]), root / "first.ipynb")
    done = run([*EXECUTE, "first.ipynb"], root, environment)
    assert done.returncode == 0, done.stderr
    assert importable(root, environment) == NEEDED
    (packages,) = root.glob("venv/lib/*/site-packages")
    twice = {path.name for path in packages.iterdir()} & set(os.listdir(root / "brought"))
    assert twice == set()  # what Colab has must do
    return environment


def run(command, cwd, environment):
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


def importable(root, environment):
    """Which of the modules that a page needs there are."""
    script = f"from importlib.util import find_spec; print(*filter(find_spec, {NEEDED}))"
    return run(["python", "-c", script], root, environment).stdout.split()


def faults(new: list, stored: list) -> dict[int, str]:
    """Number of each cell that differs between two runs -> how."""
    assert [cell.source for cell in new] == [cell.source for cell in stored]
    pairs = zip(new, stored, strict=True)
    found = {n: compare.output_fault(a.outputs, b.outputs) for n, (a, b) in enumerate(pairs)}
    return {number: fault for number, fault in found.items() if fault}


def other_figures(now: dict, cells: list) -> list[tuple[str, str]]:
    """Each figure that moves, and of what it reads, that is not what its page computes."""
    names = [cell.metadata.mystnb.figure.name for cell in cells]
    read = {name: live.stored()["figures"].get(name, {}) for name in names}
    assert {name: [*each] for name, each in now.items()} == {n: [*each] for n, each in read.items()}
    pairs = [(name, key, now[name][key], read[name][key]) for name in names for key in read[name]]
    return [(name, key) for name, key, new, old in pairs if not same(new, old)]


def same(new, old) -> bool:
    """Whether two trees of numbers and texts differ by rounding alone."""
    if isinstance(old, dict):
        return new.keys() == old.keys() and all(same(new[key], old[key]) for key in old)
    if isinstance(old, list):
        return len(new) == len(old) and all(map(same, new, old))
    return abs(new - old) < 1e-4 if isinstance(old, float) else new == old


def test_each_change_of_what_a_figure_reads_is_seen():
    path = pages.NOTEBOOKS[0]
    cells = live.moving(pages.read(path))
    stored = live.stored()["figures"]
    read = {cell.metadata.mystnb.figure.name: None for cell in cells}
    now = {name: copy.deepcopy(stored[name]) for name in read}
    assert len(now) == 2
    assert other_figures(now, cells) == []
    for name in now:
        for key in now[name]:
            before = now[name][key]
            now[name][key] = spoilt(before)
            assert other_figures(now, cells) == [(name, key)]
            now[name][key] = before


def spoilt(value):
    """The same with its last number or text changed."""
    if isinstance(value, list):
        return [*value[:-1], spoilt(value[-1])]
    return value + ("s" if isinstance(value, str) else 2e-4)


@pytest.mark.parametrize("path", pages.NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_alone(path, colab, tmp_path):
    """But for the cells that take long: those are computed so once a week (.ci/weekly).

    What the figures that move read is computed, too.
    """
    stored = pages.read(path)
    stored.cells = [cell for cell in stored.cells if "long" not in pages.tags(cell)]
    asking = copy.deepcopy(stored)
    live.ask(asking)
    nbformat.write(asking, tmp_path / path.name)
    done = run([*EXECUTE, path.name], tmp_path, colab)
    assert done.returncode == 0, done.stderr
    alone = pages.read(tmp_path / path.name)
    assert other_figures(live.answers(alone), live.moving(stored)) == []
    assert faults(pages.code_cells(alone), pages.code_cells(stored)) == {}


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
