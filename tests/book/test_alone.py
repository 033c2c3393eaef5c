"""A notebook in Colab: no book around it, and no library but the one its first cell installs.

That cell is the same in every notebook (`pages.starts_with_bootstrap`), so once a week one of them
runs here whole, on one thread of an older processor. Of the others what they import must be there:
nbval runs each in an empty folder, and once a week on other processors (.ci/weekly).
"""

import os
import re
import subprocess
import sys
import zipfile
from importlib.metadata import distribution

import compare
import copies
import nbformat
import offered
import pages
import pytest
import tomllib
from colab import UNSET, bootstrap
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import attn_lib

# what Colab brings, with all that it requires; the rest must come from the first cell
PRESENT = ("pip", "torch", "numpy", "matplotlib", "transformers", "ipykernel", "nbclient")
PROJECT = tomllib.loads((pages.ROOT / "pyproject.toml").read_text())["project"]
NEEDED = ["attn_lib"]
NEEDED += [Requirement(asked).name for asked in PROJECT["optional-dependencies"]["book"]]
BROUGHT = ["safetensors", "tokenizers", "transformers"]  # of these
EXECUTE = ("python", "-c", "from nbclient.cli import main; main()", "--inplace")
PUBLISHED = "https://github.com/someone/attention-checked"
WHOLE = "03_many_heads"  # it is short, draws, and reads trained weights
OLDER = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
OLDER |= {"MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


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
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment = kept | OLDER | {"PATH": f"{venv / 'bin'}:{os.environ['PATH']}"}
    environment |= {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_VALUE_0": PUBLISHED}
    environment["GIT_CONFIG_KEY_0"] = f"url.{published.as_uri()}.insteadOf"
    environment |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "ATTN_LIB_PROGRESS": "0"}
    kernel = run(["python", "-m", "ipykernel", "install", "--sys-prefix"], root, environment)
    assert kernel.returncode == 0, kernel.stderr
    return root, environment


RUN = """
import sys
from IPython.core.interactiveshell import InteractiveShell
done = InteractiveShell().run_cell(sys.stdin.read())
import attn_lib
print(getattr(attn_lib, "__version__", "older"), attn_lib.__file__)
"""


def first_cell(folder, environment, planted=""):
    """What it raised in a notebook of this folder, if it did, and which library was there then."""
    cell = bootstrap([], f"https://{UNSET}")
    assert planted in cell
    done = run(["python", "-c", RUN], folder, environment, input=cell.replace(planted, ""))
    raised = re.findall(r"(?m)^(?:\w+Error): .*", re.sub(r"\x1b\[[\d;]*m", "", done.stdout))
    (found,) = re.findall(r"(?m)^(older|[\w.]+) /", done.stdout) or ["none"]
    return "".join(raised[:1]), found


def older_wheel(folder):
    """One of an edition that did not yet know its version."""
    info = "attn_lib-0.2.0.dist-info"
    texts = {f"{info}/METADATA": "Metadata-Version: 2.1\nName: attn_lib\nVersion: 0.2.0\n"}
    texts[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    texts["attn_lib/__init__.py"] = ""
    texts[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in texts)
    path = folder / "attn_lib-0.2.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in texts.items():
            wheel.writestr(name, text)
    return path


UNREAD = """ or f'"{version}"' not in Path(found.origin).read_text()"""


@pytest.fixture(scope="module")
def ways(fresh, published):
    """What the first cell does without an address, after each step that a reader may take."""
    root, environment = fresh
    environment = environment | {"PIP_NO_DEPS": "1"}  # these the next fixture installs
    alone, empty, inside = root / "alone", root / "empty", published / "book"
    alone.mkdir()
    empty.mkdir()

    def pip(*arguments):
        done = run(["python", "-m", "pip", *arguments], alone, environment)
        assert done.returncode == 0, done.stderr

    older = older_wheel(alone)
    done = {"an older wheel beside it": first_cell(alone, environment)}
    pip("install", older.name)
    done["an older library"] = first_cell(empty, environment)
    done["planted: any library"] = first_cell(empty, environment, UNREAD)
    made = offered.build(pages.ROOT, alone)
    done["its own wheel, for an older library"] = first_cell(alone, environment)
    pip("uninstall", "-y", "attn_lib")
    made.unlink()
    done["the folder above"] = first_cell(inside, environment)
    pip("uninstall", "-y", "attn_lib")
    return done


@pytest.fixture(scope="module")
def colab(fresh, ways):
    """The variables, after the first cell of every page has installed what Colab lacks."""
    root, environment = fresh
    assert importable(root, environment) == BROUGHT
    data = {name for path in pages.NOTEBOOKS for name in pages.fetched(pages.read(path))}
    first = nbformat.v4.new_code_cell(bootstrap(sorted(data), PUBLISHED))
    nbformat.write(nbformat.v4.new_notebook(cells=[first]), root / "first.ipynb")
    done = run([*EXECUTE, "first.ipynb"], root, environment)
    assert done.returncode == 0, done.stderr
    assert importable(root, environment) == NEEDED
    (packages,) = root.glob("venv/lib/*/site-packages")
    twice = {path.name for path in packages.iterdir()} & set(os.listdir(root / "brought"))
    assert twice <= {"__pycache__"}  # what Colab has must do
    return environment


def run(command, cwd, environment, **given):
    how = {"cwd": cwd, "env": environment, "capture_output": True, "text": True}
    return subprocess.run(command, **how, **given)


def importable(root, environment):
    """Which of the modules that a page needs there are."""
    script = f"from importlib.util import find_spec; print(*filter(find_spec, {NEEDED}))"
    return run(["python", "-c", script], root, environment).stdout.split()


@pytest.mark.weekly
def test_without_an_address_a_page_finds_its_own_library_or_says_three_steps(ways):
    """In silence it takes none that is older; what is planted is found by what it does instead."""
    version = attn_lib.__version__
    steps = f"download attn_lib-{version}-py3-none-any.whl from any page's menu, drop it into "
    steps += "Files (Jupyter: beside this notebook), run this cell again"
    steps = f"ImportError: {steps}"
    assert ways == {
        "an older wheel beside it": (steps, "none"),
        "an older library": (steps, "older"),
        "its own wheel, for an older library": ("", version),
        "the folder above": ("", version),
        "planted: any library": ("", "older"),
    }


@pytest.mark.weekly
def test_what_the_pages_import_is_there(colab, tmp_path):
    """And what the book's tests have beside it is not."""
    cells = [cell for path in pages.NOTEBOOKS for cell in pages.code_cells(pages.read(path))]
    wanted = sorted(set.union(*(pages.imported(cell.source) for cell in cells)))
    assert {"attn_lib.plotting", "torch.nn.functional"} & set(wanted)
    for names, status in ((wanted, 0), (["x_transformers"], 1)):
        script = "\n".join(f"import {name}" for name in names)
        done = run(["python", "-c", script], tmp_path, colab)
        assert done.returncode == status, done.stderr


@pytest.mark.weekly
def test_the_processor_is_an_older_one(colab, tmp_path):
    """Without this the page could be computed as in every other run, and nobody would know."""
    script = "import torch; print(torch.backends.cpu.get_cpu_capability(), torch.get_num_threads())"
    shown = run(["python", "-c", script], tmp_path, colab)
    assert shown.stdout.split() == ["DEFAULT", "1"]


@pytest.mark.weekly
def test_a_notebook_runs_alone(colab, tmp_path):
    (path,) = [path for path in pages.NOTEBOOKS if path.stem == WHOLE]
    stored = pages.code_cells(pages.read(path))
    nbformat.write(pages.read(path), tmp_path / path.name)
    done = run([*EXECUTE, path.name], tmp_path, colab)
    assert done.returncode == 0, done.stderr
    pairs = zip(pages.code_cells(pages.read(tmp_path / path.name)), stored, strict=True)
    assert [f for new, old in pairs if (f := compare.output_fault(new.outputs, old.outputs))] == []
