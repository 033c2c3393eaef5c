"""What was found: gathered while a function is examined, and the report that says it."""

import textwrap
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from attn_check.mistakes import MISTAKES
from attn_check.reference import Case, Intent
from attn_check.search import allowed, open_rows

NOT_JUDGED = "not judged"  # begins the name of a failure: none of what is passed explains it
# assumptions that only the author can confirm
MEANT = ("what the mask means", "it is meant", "the layout is TB")


@dataclass(frozen=True)
class Failure:
    """One mistake, or one property that breaks, with the smallest example that shows it."""

    mistake: str | None  # id in the table, or None where none matches
    name: str
    likely: str
    look_for: str = ""
    repair: str = ""
    example: str = ""
    source: str = ""
    alike: tuple[str, ...] = ()  # mistakes that give the same numbers

    def parts(self) -> dict[str, str]:
        """What is said of it, by labels."""
        return {
            "Likely": self.likely,
            "Look for": self.look_for,
            "Repair": self.repair,
            "Example": self.example,
            "Or": "\n".join(f"{MISTAKES[a].likely} ({a})" for a in self.alike),
            "See": self.source,
        }


@dataclass(frozen=True)
class Note:
    """Behaviour that differs from this library's conventions and that real libraries have."""

    mistake: str | None
    text: str


@dataclass(repr=False)
class Shown:
    """A report as text, as Markdown and as data: a headline, what is wrong, lists of the rest."""

    def _parts(self) -> tuple[str, list[tuple[str, dict[str, str]]], dict[str, list[str]]]:
        raise NotImplementedError  # of what is wrong: titles, and texts by labels

    def as_dict(self) -> dict[str, Any]:
        """Plain lists, strings and dictionaries, for programs."""
        return asdict(self)

    def __str__(self) -> str:
        """Text of 79 characters a line; what is longer goes on a little more indented."""
        wrapper = textwrap.TextWrapper(79, break_long_words=False, break_on_hyphens=False)
        filled = []
        for line in "\n".join(self._lines(markdown=False)).split("\n"):
            wrapper.subsequent_indent = " " * (len(line) - len(line.lstrip()) + 2)
            filled.append(wrapper.fill(line))
        return "\n".join(filled)

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        """Markdown for a notebook."""
        return "\n".join(self._lines(markdown=True))

    def _lines(self, *, markdown: bool) -> list[str]:
        bold, slanted, bullet = ("**", "*", "- ") if markdown else ("", "", "  - ")
        headline, wrong, lists = self._parts()
        lines = [f"{bold}{headline}{bold}"]
        for i, (title, parts) in enumerate(wrong, start=1):
            lines += ["", f"{i}. {bold}{title[:1].upper()}{title[1:]}.{bold}"]
            for label, text in parts.items():
                start = f"   {bullet if markdown else ''}{slanted}{label}:{slanted}"
                if "\n" in text:
                    body = ["```text", *text.splitlines(), "```"] if markdown else text.splitlines()
                    lines += [start, *(f"     {line}" for line in body)]
                elif text:
                    code = "`" if markdown and label in ("Look for", "Repair") else ""
                    lines.append(f"{start} {code}{text}{code}")
        further = "\n  - " if markdown else "\n    "
        for title, texts in lists.items():
            if texts:
                lines += ["", f"{bold}{title}{bold}", *([""] if markdown else [])]
                lines += [bullet + text.replace("\n", further) for text in texts]
        return lines


@dataclass(repr=False)
class Report(Shown):
    """The result of :func:`attn_check.diagnose`.

    Args:
        subject: the name of what was called.
        failures: one for each mistake; empty if none was found.
        notes: behaviour at the edges that is no mistake.
        holds: what was checked and is right.
        unchecked: what could not be checked, and why.
        assumed: what was not said and was found out.
        limits: kinds of inputs that are refused, as a whole: no mistake, but good to know.

    Example:
        >>> report = Report("mine", failures=[], holds=["equal to the reference: 3 inputs"])
        >>> report.ok
        True
        >>> print(report)
        mine: no mistake found.
        <BLANKLINE>
        Holds
          - equal to the reference: 3 inputs

    Source: :func:`attn_check.diagnose`.
    """

    subject: str
    failures: list[Failure] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    holds: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    limits: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether no failure was found."""
        return not self.failures

    @property
    def mistakes(self) -> list[str | None]:
        """The ids of the failures, None where no known mistake matches."""
        return [failure.mistake for failure in self.failures]

    def _parts(self) -> tuple[str, list[tuple[str, dict[str, str]]], dict[str, list[str]]]:
        unjudged = [f.name for f in self.failures if f.name.startswith(NOT_JUDGED)]
        n = len(self.failures) - len(unjudged)
        counted = {0: "no mistake found", 1: "one mistake found"}.get(n, f"{n} mistakes found")
        counted = "; ".join([*([counted] if n or not unjudged else []), *unjudged])
        if self.ok and any(text.startswith(MEANT) for text in self.assumed):
            counted += ", if you mean what is assumed below"
        rows = [MISTAKES[note.mistake] for note in self.notes if note.mistake]
        if warned := [row.name for row in rows if row.warns]:
            counted += f", {len(warned)} warning{'s' * (len(warned) > 1)}: {', '.join(warned)}"
        if self.limits:
            counted += f"; refused: {', '.join(self.limits)}"
        wrong = []
        for failure in self.failures:
            name = ", or ".join([failure.name, *(MISTAKES[twin].name for twin in failure.alike)])
            name = f"either {name}: the numbers are the same" if failure.alike else name
            name = NOT_JUDGED if name in unjudged else name  # the first line says it
            wrong.append((name, failure.parts()))
        lists = {"Notes": [note.text for note in self.notes], "Holds": self.holds}
        lists |= {"Not checked": self.unchecked, "Assumed": self.assumed}
        return f"{self.subject}: {counted}.", wrong, lists

    def known(
        self, mistake: str, example: str, *, alike: tuple[str, ...] = (), form: int = 0
    ) -> None:
        """Add a failure, or a note, of the table; ``form`` is the number of its form."""
        row = MISTAKES[mistake]
        row = replace(row, **row.words.get(str(form), {}))
        if row.note:
            more = {"Look for": row.look_for, "Repair": row.repair, "See": row.source}
            texts = [f"{row.likely} {example}".strip()]
            texts += [f"{label}: {text}" for label, text in more.items() if row.warns]
            if mistake not in {note.mistake for note in self.notes}:
                self.notes.append(Note(mistake, "\n".join(texts)))
        elif mistake not in self.mistakes:
            rest = (row.look_for, row.repair, example, row.source, alike)
            self.failures.append(Failure(mistake, row.name, row.likely, *rest))

    def settle(self, right: bool, text: str, mistake: str, example: str) -> None:
        """Say that it holds, where it is right, or else add the known mistake."""
        if right:
            self.holds.append(text)
        else:
            self.known(mistake, example)

    def broken(self, name: str, likely: str, example: str = "") -> None:
        """Add a failure that is not in the table."""
        self.failures.append(Failure(None, name, likely, example=example))


def grouped(texts: list[str]) -> list[str]:
    """Texts "case: message", with the cases of one message together."""
    cases: dict[str, list[str]] = {}
    for text in texts:
        case, _, message = text.partition(": ")
        cases.setdefault(message, []).append(case)
    return [f"{'; '.join(names)}: {text}" if text else names[0] for text, names in cases.items()]


def numbers(x: Tensor, digits: int = 4) -> str:
    """A few numbers, as [0.123, −1.500]."""
    return "[" + ", ".join(f"{v:.{digits}g}" for v in x.flatten()[:4].tolist()) + "]"


def largest(a: Tensor, b: Tensor) -> float:
    """The largest difference."""
    return (a - b).abs().nan_to_num(float("inf")).max().item()


def show(case: Case, mine: Tensor, expected: Tensor, intent: Intent) -> str:
    """The first row that differs, around its entry that differs most, in words and numbers."""
    gap = (mine - expected).abs().nan_to_num(float("inf"))
    gap = gap.masked_fill((mine == expected) | (mine.isnan() & expected.isnan()), 0.0)
    rows = open_rows(case, intent)
    if rows is not None:
        closed = ~rows if gap.dim() == 3 else ~rows[:, None].expand(gap.shape[:-1])
        gap = gap.masked_fill(closed[..., None], 0.0)
    worst = gap.amax(dim=-1)  # of each row
    off = (worst > allowed(case, expected)).flatten()
    index = off.int().argmax() if off.any() else worst.argmax()
    at = tuple(map(int, np.unravel_index(int(index), worst.shape)))
    channel = int(gap[at].argmax())
    names = ("example", "head", "position") if len(at) == 3 else ("example", "position")
    where = ", ".join(f"{name} {i}" for name, i in zip(names, at, strict=True))
    first = max(min(channel, gap.shape[-1] - 4), 0)
    shown = slice(first, first + 4)
    if gap.shape[-1] > 4:
        where += f", channels {first}-{first + 3}"
    lines = [f"{case.name}; {where} (from 0):"]
    if case.mask is not None:
        row = case.mask[at[0], at[-1]] if case.mask.dim() == 3 else case.mask[at[0], 0, at[-1]]
        lines.append(f"open keys {''.join('1' if cell else '0' for cell in row.tolist())}")
    pair = mine[at][shown], expected[at][shown]
    texts = [(numbers(pair[0], digits), numbers(pair[1], digits)) for digits in range(4, 17)]
    one, two = next((both for both in texts if both[0] != both[1]), texts[-1])
    return "\n".join([*lines, f"actual    {one}", f"expected  {two}"])
