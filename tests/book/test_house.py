"""The house in order: every check that readers are told of is run; what a guide names is there."""

import os
import re
import subprocess
from itertools import pairwise

import pages
from tables import for_each

# ---------------------------------------------------------------- what runs when

SCRIPTS = ("run", "weekly", "publish", "versions")
CI = {name: (pages.ROOT / ".ci" / name).read_text() for name in SCRIPTS}


def printed_commands() -> list[str]:
    """What "How this book is checked" prints to be run; not what writes pages or records."""
    text = (pages.BOOK / "how_checked.md").read_text()
    blocks = re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    found = [part for block in blocks for part in re.split(r" && |\n", block) if part]
    return [c for c in found if not re.search(r"execute\.py|record\.py book", c)]


def test_every_check_that_readers_are_told_of_is_run():
    """In no comment of the two scripts."""
    assert len(printed_commands()) > 10
    scripts = re.sub(r"(?m)^\s*#.*", "", CI["run"] + CI["weekly"])
    assert [command for command in printed_commands() if command not in scripts] == []


def unheeded(script: str) -> list[str]:
    """Lines of several commands of which only the last would end the script, if it fails."""
    lines = [line for line in script.split("\n") if line.strip() and line.strip()[0] != "#"]
    return [
        line
        for line, after in pairwise([*lines, ""])
        if " && " in line and after != "} || exit" and not line.rstrip().endswith(("} ||", "\\"))
    ]


def test_no_failure_is_passed_over():
    """In ``a && b``, bash heeds ``set -e`` for b alone."""
    assert [line for script in CI.values() for line in unheeded(script)] == []
    assert unheeded("false && true\ntrue") == ["false && true"]


@for_each(
    ("run", "{\nfalse && true\n} || exit\ntrue", 1),
    ("run", "sleep 60 & false", 1),  # it would be waited for
    *[(name, "exit 3", 3) for name in CI],
    *[(name, "true", 0) for name in CI],
)
def test_a_script_ends_as_its_last_command_does_and_leaves_nothing(name, last, status, tmp_path):
    """What it takes away at its end must not make a green run red, or a red one green."""
    start = re.findall(r"^(?:set -euo|work=|trap ).*$", CI[name], re.MULTILINE)
    assert len(start) == 3
    assert "\nexport CI=true " in CI[name]
    command, own = ["bash", "-c", "\n".join([*start, last])], {"TMPDIR": str(tmp_path)}
    run = subprocess.run(command, env={**os.environ, **own}, capture_output=True, timeout=30)
    assert run.returncode == status
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- what a contributor is told

GUIDE = (pages.ROOT / "CONTRIBUTING.md").read_text()


def named_files(text: str) -> list[str]:
    """The paths of the repository, in backquotes or links or behind a command."""
    places = r"`((?:book|attn_lib|tests|\.ci)/[\w./]*\w/?)`|\]\((\.github/[\w./]+)\)"
    found = re.findall(places + r"|(?:python|bash) ((?:book|\.ci)/\w[\w/.]*)", text)
    return ["".join(name) for name in found]


def test_every_file_and_folder_of_the_guide_is_there():
    files = [name for name in named_files(GUIDE) if "NN_" not in name and "/name.py" not in name]
    assert len(files) > 20
    assert [name for name in files if not (pages.ROOT / name).exists()] == []
    assert named_files("`tests/gone.py`") == ["tests/gone.py"]
    folders = {f"tests/{path.parent.name}/" for path in (pages.ROOT / "tests").glob("*/test_*.py")}
    assert folders <= set(files) | {f"{name.rstrip('/')}/" for name in files}
