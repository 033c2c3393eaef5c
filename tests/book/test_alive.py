"""What keeps the book alive: workflows that may do little, scripts that say what drifted, names.

A licence for every file of data and every weight; a changelog that knows the version.
"""

import os
import re
import subprocess

import pages
import pytest
import yaml
from tables import for_each

import attn_lib
from attn_lib import files

FOLDER = pages.ROOT / ".github" / "workflows"
WORKFLOWS = {path.name: path.read_text() for path in sorted(FOLDER.glob("*.yml"))}
PUBLISHING = {"contents": "read", "pages": "write", "id-token": "write"}
# what a job may do beyond reading
MAY = {"publish": PUBLISHING, "report": {"issues": "write"}}
MAY["deploy"] = {"pages": "write", "id-token": "write"}
KEEPS_NOTHING = {"persist-credentials": False}
OWN = r"actions/(checkout|setup-python|upload-pages-artifact|deploy-pages)"
RUNS = r"bash \.ci/(run|publish|versions|\$\{\{ matrix\.script }})( \$\{\{ matrix\.which }})?"
RUNS += r'|gh issue create --repo "\$GITHUB_REPOSITORY" ((?!\$\{\{).)*'


def loose(text: str) -> list[str]:
    """What a workflow leaves open."""
    flow, found = yaml.safe_load(text), []
    if flow.get("permissions") != {"contents": "read"}:
        found.append("may do more than read")
    for line in re.findall(r"uses: *(.*)", text):
        own = re.fullmatch(OWN + r"@[0-9a-f]{40}  # v\d+\.\d+\.\d+", line)
        if not own and not (line.startswith("$/.github/") and (pages.ROOT / line[2:]).exists()):
            found.append(f"{line} is not an action of GitHub's own, by its commit")
    for name, job in flow["jobs"].items():
        if job.get("permissions", MAY.get(name)) != MAY.get(name):
            found.append(f"{name} may do {job['permissions']}")
        if "steps" in job and not ("timeout-minutes" in job and job["runs-on"] == "ubuntu-24.04"):
            found.append(f"{name} may take any time, or any machine")
        for step in job.get("steps", ()):
            if "checkout@" in step.get("uses", "") and step.get("with") != KEEPS_NOTHING:
                found.append(f"{name} keeps its credentials")
            if not re.fullmatch(RUNS, step.get("run", "bash .ci/run")):
                found.append(f"{name} runs {step['run']}")
    outside = r"pull_request_target|secrets\.|https?:|\b[\w-]+\.(?:org|com|io)\b"
    if said := re.findall(outside, text):
        found.append(f"names {said}")
    return found


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_may_do_little(name):
    assert loose(WORKFLOWS[name]) == []


@for_each(
    ("check.yml", "permissions:\n  contents: read\n\n", "", "more than read"),
    ("check.yml", "actions/checkout", "somebody/checkout", "by its commit"),
    ("check.yml", "persist-credentials: false", "fetch-depth: 0", "credentials"),
    ("publish.yml", "      pages: write\n", "      contents: write\n", "deploy may do"),
    ("weekly.yml", '"\\$SAID"', '"${{ github.event.issue.title }}"', "runs gh"),
)
def test_what_a_workflow_leaves_open_is_seen(name, old, new, said):
    planted = re.sub(old, new, WORKFLOWS[name], count=1)
    assert [line for line in loose(planted) if said in line] != []


def test_only_what_is_green_is_published():
    """And nothing at all before somebody has said so."""
    flows = {name: yaml.safe_load(text)["jobs"] for name, text in WORKFLOWS.items()}
    for name, checks in (("check.yml", "check"), ("weekly.yml", "weekly")):
        publish = flows[name]["publish"]
        assert publish["needs"] == checks
        assert publish["if"].startswith("vars.PAGES == 'on'")
    assert "refs/heads/main" in flows["check.yml"]["publish"]["if"]
    assert flows["check.yml"]["check"]["steps"][-1] == {"run": "bash .ci/run"}
    assert flows["weekly.yml"]["weekly"]["strategy"]["matrix"] == {"script": ["run", "weekly"]}
    *_, build, upload = flows["publish.yml"]["build"]["steps"]
    assert (build["run"], upload["with"]) == ("bash .ci/publish", {"path": "_build/html"})
    assert flows["publish.yml"]["deploy"]["needs"] == "build"


# ---------------------------------------------------------------- what drifts

STUBS = {
    "python3": 'mkdir -p "$3/bin" && touch "$3/bin/activate"',
    "pip": '[ "$1" = list ] && echo "torch 9.9" || cp "$3" "$SEEN"',
    "pytest": 'echo "$@" >>"$SEEN"; echo "FAILED a.ipynb::Cell 5"; echo "= 1 failed in 2s"; exit 3',
}


@pytest.mark.parametrize("which", ["newest", "oldest"])
def test_what_drifts_is_said(which, tmp_path):
    """With stand-ins for what installs and what tests: the versions, what is red, the status."""
    for name, does in STUBS.items():
        stub = tmp_path / name
        stub.write_text(f"#!/usr/bin/env bash\n{does}\n")
        stub.chmod(0o755)
    own = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    own |= {"SEEN": str(tmp_path / "seen"), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary")}
    command = ["bash", pages.ROOT / ".ci" / "versions", which]
    run = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True)
    assert run.returncode == 3, run.stderr
    summary = (tmp_path / "summary").read_text().splitlines()
    assert summary == ["torch 9.9", "FAILED a.ipynb::Cell 5", "= 1 failed in 2s"]
    *wanted, tested = (tmp_path / "seen").read_text().splitlines()
    assert {"jupyter-book==1.0.4.post1", "sphinx-book-theme==1.3.0", "numpy", "-e ."} <= {*wanted}
    if which == "newest":
        assert tested == "--nbval book"
        assert {"torch", "matplotlib", "sympy"} <= {*wanted}
    else:
        assert tested == "tests/library tests/check attn_lib attn_check"
        project = (pages.ROOT / "pyproject.toml").read_text()
        floor = re.search(r"torch>=([\d.]+)", project)[1]
        assert {f"torch=={floor}.*", "transformers"} <= {*wanted}


# ---------------------------------------------------------------- whose it is, what changed

LICENCE = (pages.ROOT / "LICENSE").read_text()
DATA = sorted({path.name for path in files.DATA.iterdir()} - {"SHA256SUMS"})
CARRIERS = re.findall(r"(?m)^([\w-]+)==([\d.]+) --hash", (files.DATA / "weights.txt").read_text())


def unnamed(data: list[str]) -> list[str]:
    """Files of data, and packages that carry weights, without a word in the licence."""
    names = data + [" ".join(one) for one in CARRIERS]
    return [name for name in names if not re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", LICENCE)]


def test_the_licence_names_all_data_and_weights():
    assert {source.package for source in files.SOURCES.values()} == {name for name, _ in CARRIERS}
    assert {"fashion.txt", "photographs.txt"} <= {*DATA}  # stand beside what they speak of
    assert unnamed(DATA) == []
    assert unnamed([*DATA, "planted.csv", "on.npz"]) == ["planted.csv", "on.npz"]


def test_the_changelog_knows_the_version():
    text = (pages.ROOT / "CHANGELOG.md").read_text()
    citation = yaml.safe_load((pages.ROOT / "CITATION.cff").read_text())
    headings = re.findall(r"(?m)^## (.*)$", text)
    newest = next(line for line in headings if line != "Unreleased")
    assert citation["version"] == attn_lib.__version__
    assert newest == f"{citation['version']}, {citation['date-released']}"
    assert "Unreleased" not in headings[1:]
