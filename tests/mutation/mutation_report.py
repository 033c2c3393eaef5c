"""What a mutation run of the library has shown.

    python tests/mutation/run_mutants.py; python tests/mutation/mutation_report.py

Survivors that no test can see are declared in ``equivalent_mutants.csv``, each with the reason why:
the function, the line before and after. The others are printed: each is a hole, or a row that is
missing there. Exit status 0 if at least 90 % of all mutants were killed, the declared ones counted
as survivors; if there is no timeout; and if each declaration has a reason and its survivor.
"""

import csv
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WANTED = 90.0
# pytest: passed, failed, internal error; 33 is mutmut's, where no test calls the function
VERDICTS = {0: "survived", 33: "survived", 1: "killed", 3: "killed"}


def verdicts(folder: Path) -> dict[str, str]:
    """Name of each mutant -> killed, survived, or another exit status."""
    found = {}
    for path in sorted(folder.rglob("*.meta")):
        found |= json.loads(path.read_text())["exit_code_by_key"]
    return {name: VERDICTS.get(status, f"exit status {status}") for name, status in found.items()}


def change(name: str) -> tuple[str, str, str]:
    """The function, the lines taken out and the lines put in."""
    command = [sys.executable, "-m", "mutmut", "show", name]
    shown = subprocess.check_output(command, cwd=ROOT, text=True, stderr=subprocess.PIPE)
    hunk = [line for line in shown.splitlines() if not line.startswith(("---", "+++"))]
    parts = (" ".join(x[1:].strip() for x in hunk if x.startswith(sign)) for sign in "-+")
    function = re.sub(r"\.x[_ǁ]", ".", name.rpartition("__mutmut_")[0]).replace("ǁ", ".")
    return (function, *parts)


def report(found: dict[str, str], declared: dict[tuple, str], changes: dict[str, tuple]) -> list:
    """Everything that is not as it should be, in sentences."""
    counts, total = Counter(found.values()), len(found)
    seen = set(changes.values())
    wrong = [f"{n} mutants: {kind}" for kind, n in counts.items() if kind.startswith("exit")]
    wrong += [f"declared, but not among the survivors: {c}" for c in sorted(declared.keys() - seen)]
    wrong += [f"declared without a reason: {c}" for c, reason in declared.items() if not reason]
    if not total or 100 * counts["killed"] < WANTED * total:
        wrong.append(f"killed {counts['killed']} of {total}: fewer than {WANTED:.0f} %")
    return wrong


def main() -> int:
    found = verdicts(ROOT / "mutants")
    changes = {name: change(name) for name, verdict in found.items() if verdict == "survived"}
    with Path(__file__).with_name("equivalent_mutants.csv").open() as file:
        rows = list(csv.DictReader(file))
    declared = {(r["function"], r["before"], r["after"]): r["reason"] for r in rows}
    killed = sum(verdict == "killed" for verdict in found.values())
    print(f"killed {killed} of {len(found)}, {100 * killed / max(1, len(found)):.1f} %")
    undeclared = sorted(set(changes.values()) - declared.keys())
    print(*(f"survived, not declared: {c}" for c in undeclared), sep="\n")
    wrong = report(found, declared, changes)
    print(f"declared equivalent: {len(declared)}", *wrong, sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
