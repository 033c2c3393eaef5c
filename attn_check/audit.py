"""``audit``: does a language model give the same answer, however it is run?"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from attn_check import calls
from attn_check.called import Called
from attn_check.report import wrapped
from attn_check.runs import (
    BREAKS,
    HOLDS,
    MEASURED,
    MISSING,
    PROPERTIES,
    REFUSES,
    UNCHECKED,
    Finding,
    Probe,
    measured,
)

# from each property to what it says, and how to look further where it does not hold
WORDS: dict[str, dict[str, str]] = json.loads(
    Path(__file__).with_name("audit.json").read_text(encoding="utf-8")
)


@dataclass
class Audit:
    """The result of :func:`attn_check.audit`.

    Args:
        subject: the name of what was called.
        findings: one for each property and way of calling.
        limit: differences up to this, in standard deviations of the logits, are rounding.
        unknown: what the audit cannot know.

    Example:
        >>> report = Audit("Mine", [Finding("causal", "", "holds", 0.0, 0.0)])
        >>> report.ok, report["causal"].verdict
        (True, 'holds')

    Source: :func:`attn_check.audit`.
    """

    subject: str
    findings: list[Finding] = field(default_factory=list)
    limit: float = 0.0
    unknown: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether no answer changes that may not change."""
        return not any(f.counts for f in self.broken)

    @property
    def broken(self) -> list[Finding]:
        """What does not hold; first what may not change."""
        return sorted(self.of(BREAKS), key=lambda f: not f.counts)

    def of(self, verdict: str) -> list[Finding]:
        """The findings with this verdict."""
        return [f for f in self.findings if f.verdict == verdict]

    def __getitem__(self, title: str) -> Finding:
        """The finding of "property: way", or the first one of a property."""
        return next(f for f in self.findings if title in (f.title, f.name))

    def as_dict(self) -> dict[str, Any]:
        """Plain lists, strings and dictionaries, for programs."""
        return {**asdict(self), "ok": self.ok}

    def __str__(self) -> str:
        """Text for a terminal, or a page, of 79 characters."""
        return wrapped(self._lines(markdown=False))

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        """Markdown for a notebook."""
        return "\n".join(self._lines(markdown=True))

    def _headline(self) -> str:
        wrong = ", ".join(dict.fromkeys(f.name for f in self.broken if f.counts))
        text = f"the answer changes ({wrong})" if wrong else "the answer stays the same"
        if ways := sum(not f.counts for f in self.broken):
            also = " too" if wrong else ""
            text += f"; it changes{also} in {ways} other way{'s' * (ways > 1)} of calling"
        return f"{self.subject}: {text}."

    def _lines(self, *, markdown: bool) -> list[str]:
        bold, bullet, gap = ("**", "- ", [""]) if markdown else ("", "  - ", [])
        lines = [f"{bold}{self._headline()}{bold}"]
        for i, f in enumerate(self.broken, start=1):
            title = f"{f.title[:1].upper()}{f.title[1:]}: {f.verdict}."
            lines += ["", f"{i}. {bold}{title}{bold}"]
            says, look = WORDS[f.name].values()
            parts = {"Meant": says, "Size": f.numbers, "Example": f.text, "Look further": look}
            start, slanted = ("   - ", "*") if markdown else ("   ", "")
            lines += [f"{start}{slanted}{label}:{slanted} {text}" for label, text in parts.items()]
        held = [
            f"{name}: {words['says']}{f' ({ways})' if ways else ''}"
            for name, words in WORDS.items()
            if (found := [f for f in self.of(HOLDS) if f.name == name])
            for ways in ["; ".join(f.way for f in found)]
        ]
        rounding = f"Differences up to {self.limit:.1g} standard deviations: they may be rounding."
        sections = {"Holds": held}
        for verdict in (REFUSES, MISSING, UNCHECKED, MEASURED):
            sections[verdict.capitalize()] = [
                f"{f.title}: {f.numbers or f.text}" for f in self.of(verdict)
            ]
        for title, texts in {**sections, "Not known": [rounding, *self.unknown]}.items():
            if texts:
                lines += ["", f"{bold}{title}{bold}", *gap, *(bullet + text for text in texts)]
        return lines


def audit(
    model: Callable,
    *,
    properties: Sequence[str] | None = None,
    arguments: str | None = None,
    step: Callable | None = None,
    pad: int | None = None,
    length: int = 12,
) -> Audit:
    """Say whether a language model gives the same answer, however it is run."""
    with calls.quietly():
        probe = Probe(Called(model, arguments, step), length, pad)
        report = Audit(getattr(model, "__name__", type(model).__name__), limit=probe.limit)
        for name, function in PROPERTIES.items():
            for way, counts, cases in function(probe):
                report.findings.append(probe.judged(name, way, counts, cases))
        report.findings += measured(probe)
        return report
