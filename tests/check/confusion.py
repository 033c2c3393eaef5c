"""What ``diagnose`` says of every planted mistake: ``python tests/check/confusion.py [WORD …]``.

Prints, for each mistake, under which names its plants were reported; then each report that does
not name the mistake alone, and the right ones that were not passed; then the slowest.
"""

import sys
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial

import planted
from planted import RIGHT, Plant, given

from attn_check import diagnose, diagnose_rope

SILENT, UNNAMED = "nothing", "a property"


@dataclass(frozen=True)
class Verdict:
    """What was reported of one plant."""

    name: str
    expected: str
    reported: tuple[str, ...]
    right: bool
    seconds: float
    text: str


def asked(fn, intent: dict, rope: bool = False):
    """The report, and how long it took."""
    begin = time.perf_counter()
    report = (diagnose_rope if rope else diagnose)(fn, **given(intent, fn))
    return report, time.perf_counter() - begin


def judged(plant: Plant, size: int) -> Verdict:
    """Plant, diagnose, compare: the mistake alone must be named."""
    report, seconds = asked(plant.build(size), plant.intent, plant.rope)
    named = report.failures
    if plant.note:
        found = [note for note in report.notes if note.mistake == plant.mistake]
        right, named = not named and len(found) == 1, named or found
    else:
        right = len(named) == 1 and plant.mistake in (named[0].mistake, *named[0].alike)
    reported = tuple(plant.mistake if right else f.mistake or UNNAMED for f in named) or (SILENT,)
    return Verdict(f"{plant.name}-{size}", plant.mistake, reported, right, seconds, str(report))


def passed(name: str) -> Verdict:
    """A right attention: nothing may be reported."""
    make, intent = RIGHT[name]
    report, seconds = asked(make(), intent)
    reported = tuple(f.mistake or UNNAMED for f in report.failures) or (SILENT,)
    return Verdict(name, SILENT, reported, report.ok, seconds, str(report))


def verdicts(words: list[str]) -> list[Verdict]:
    """Of all plants, or of those whose names contain one of the words."""
    found, judges = [], {name: partial(passed, name) for name in RIGHT}
    for plant in planted.PLANTS:
        judges |= {f"{plant.name}-{size}": partial(judged, plant, size) for size in (0, 1)}
    for name, judge in judges.items():
        if not words or any(word in name for word in words):
            try:
                found.append(judge())
            except Exception as error:
                reported = f"{type(error).__name__}: {error}"
                found.append(Verdict(name, "?", (type(error).__name__,), False, 0.0, reported))
    return found


def table(found: list[Verdict]) -> str:
    """One row for each mistake, with how often each name was given to it."""
    rows: dict[str, Counter[str]] = {}
    for verdict in found:
        rows.setdefault(verdict.expected, Counter()).update([" + ".join(verdict.reported)])
    width = max(map(len, rows))
    return "\n".join(
        f"{expected:{width}}  " + ", ".join(f"{name} {n}" for name, n in named.most_common())
        for expected, named in rows.items()
    )


def main(words: list[str]) -> int:
    found = verdicts(words)
    print(table(found))
    wrong = [verdict for verdict in found if not verdict.right]
    for verdict in wrong:
        print(f"\n--- {verdict.name}: {', '.join(verdict.reported)}\n{verdict.text}")
    slow = sorted(found, key=lambda verdict: -verdict.seconds)[:5]
    print(f"\n{len(found) - len(wrong)} of {len(found)} as they should be; the slowest:")
    print("\n".join(f"{verdict.seconds:.2f} s  {verdict.name}" for verdict in slow))
    return len(wrong)


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1:]) else 0)
