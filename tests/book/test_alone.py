"""A notebook alone in an empty folder, as in Colab: no book around it, no library installed."""

import os
import re
import shutil
import subprocess
import sys

import pages
import pytest

PINS = dict(
    re.findall(r"^([\w-]+)==(\S+)$", (pages.ROOT / "requirements.txt").read_text(), re.MULTILINE)
)
# what Colab brings; the rest must come from the notebook's first cell
PRESENT = ("torch", "numpy", "matplotlib", "ipykernel", "nbclient")


@pytest.fixture(scope="module")
def colab(tmp_path_factory):
    """A fresh environment without the library, and git told where the address leads."""
    folder = tmp_path_factory.mktemp("colab")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    binaries = folder / "venv" / "bin"
    wanted = [f"{name}=={PINS[name]}" for name in PRESENT]
    install = [binaries / "python", "-m", "pip", "install", "-q", "--no-compile", *wanted]
    subprocess.run(install, check=True, capture_output=True)
    return binaries


@pytest.fixture
def published(checkout):
    """The working tree as a repository of its own, to be cloned from."""
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.invalid"]
    for command in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-qm", "all"]):
        subprocess.run(["git", *command], cwd=checkout, check=True)
    return checkout


@pytest.mark.parametrize("path", pages.NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_alone(path, colab, published, tmp_path):
    binaries = colab
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(path, alone)
    environment = {
        **{k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")},
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{published.as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": pages.address(),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "ATTN_LIB_PROGRESS": "0",
    }
    uninstall = [binaries / "python", "-m", "pip", "uninstall", "-qy", "attn_lib"]
    subprocess.run(uninstall, check=True, capture_output=True)
    missing = subprocess.run(
        [binaries / "python", "-c", "import attn_lib"], cwd=alone, capture_output=True
    )
    assert b"ModuleNotFoundError" in missing.stderr
    command = [binaries / "jupyter", "execute", "--inplace", path.name]
    run = subprocess.run(command, cwd=alone, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    here, there = (
        pages.code_cells(pages.read(path)),
        pages.code_cells(pages.read(alone / path.name)),
    )
    assert len(here) == len(there)
    for ours, theirs in zip(here[1:], there[1:], strict=True):  # the first cell installs
        assert pages.printed(theirs) == pages.printed(ours), ours.source
