"""What ``diagnose`` says of every planted mistake: ``python tests/library/confusion.py [WORD …]``.

Prints, for each mistake, under which names its plants were reported; then each report that does
not name the mistake alone, and the right ones that were not passed; then the slowest.
"""

import sys
import time
from collections import Counter
from dataclasses import dataclass

import planted
from planted.plants import Plant
from planted.right_modules import RIGHT  # the right ones of both files

from attn_lib import diagnose, diagnose_rope

SILENT, UNNAMED = "nothing", "a property"


@dataclass(frozen=True)
class Verdict:
    """What was said of one plant."""

    name: str
    wanted: str
    said: tuple[str, ...]
    right: bool
    seconds: float
    text: str


def judged(plant: Plant, size: int) -> Verdict:
    """Plant, diagnose, compare: the mistake alone must be named."""
    fn, begin = plant.build(size), time.perf_counter()
    report = (diagnose_rope if plant.rope else diagnose)(fn, **plant.said(fn))
    seconds = time.perf_counter() - begin
    named, wanted = report.failures, {plant.mistake, *plant.also}
    if plant.note:
        found = [note for note in report.notes if note.mistake == plant.mistake]
        right, named = not named and len(found) == 1, named or found
    else:
        right = len(named) == 1 and bool({named[0].mistake, *named[0].alike} & wanted)
    said = tuple(plant.mistake if right else f.mistake or UNNAMED for f in named) or (SILENT,)
    return Verdict(f"{plant.name}-{size}", plant.mistake, said, right, seconds, str(report))


def passed(name: str) -> Verdict:
    """A right attention: nothing may be said."""
    make, intent = RIGHT[name]
    fn, begin = make(), time.perf_counter()
    report = diagnose(fn, **{key: v(fn) if callable(v) else v for key, v in intent.items()})
    seconds = time.perf_counter() - begin
    said = tuple(f.mistake or UNNAMED for f in report.failures) or (SILENT,)
    return Verdict(name, SILENT, said, not report.failures, seconds, str(report))


def verdicts(words: list[str]) -> list[Verdict]:
    """Of all plants, or of those whose names contain one of the words."""
    found = []
    for name, judge in [
        *(
            (f"{p.name}-{size}", lambda p=p, n=size: judged(p, n))
            for p in planted.PLANTS
            for size in (0, 1)
        ),
        *((name, lambda name=name: passed(name)) for name in RIGHT),
    ]:
        if not words or any(word in name for word in words):
            try:
                found.append(judge())
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
                found.append(Verdict(name, "?", (type(error).__name__,), False, 0.0, said))
    return found


def table(found: list[Verdict]) -> str:
    """One row for each mistake, with how often each name was given to it."""
    rows: dict[str, Counter[str]] = {}
    for verdict in found:
        rows.setdefault(verdict.wanted, Counter()).update([" + ".join(verdict.said)])
    width = max(map(len, rows))
    return "\n".join(
        f"{wanted:{width}}  " + ", ".join(f"{name} {n}" for name, n in named.most_common())
        for wanted, named in rows.items()
    )


def main(words: list[str]) -> int:
    found = verdicts(words)
    print(table(found))
    wrong = [verdict for verdict in found if not verdict.right]
    for verdict in wrong:
        print(f"\n--- {verdict.name}: {', '.join(verdict.said)}\n{verdict.text}")
    slow = sorted(found, key=lambda verdict: -verdict.seconds)[:5]
    print(f"\n{len(found) - len(wrong)} of {len(found)} as they should be; the slowest:")
    print("\n".join(f"{verdict.seconds:.2f} s  {verdict.name}" for verdict in slow))
    return len(wrong)


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1:]) else 0)
