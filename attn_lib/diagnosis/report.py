"""What a diagnosis found: text in a terminal, Markdown in a notebook, data for programs."""

import textwrap
from dataclasses import asdict, dataclass, field
from typing import Any

from attn_lib.diagnosis.mistakes import MISTAKES

MEANT = ("what the mask means", "it is meant")  # assumptions that only the author can confirm


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


@dataclass(frozen=True)
class Note:
    """Behaviour that differs from this library's conventions and that real libraries have."""

    mistake: str | None
    text: str


@dataclass(frozen=True)
class Report:
    """The result of :func:`attn_lib.diagnosis.diagnose`.

    Args:
        subject: the name of what was called.
        failures: one for each mistake; empty if none was found.
        notes: behaviour at the edges that is no mistake.
        holds: what was checked and is right.
        unchecked: what could not be checked, and why.
        assumed: what was not said and was found out.

    Example:
        >>> report = Report("mine", failures=[], holds=["equal to the reference: 3 inputs"])
        >>> report.ok
        True
        >>> print(report)
        mine: no mistake found.
        <BLANKLINE>
        Holds
          - equal to the reference: 3 inputs

    Source: :func:`attn_lib.diagnosis.diagnose`.
    """

    subject: str
    failures: list[Failure] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    holds: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether no failure was found."""
        return not self.failures

    @property
    def mistakes(self) -> list[str | None]:
        """The ids of the failures, None where no known mistake matches."""
        return [failure.mistake for failure in self.failures]

    def as_dict(self) -> dict[str, Any]:
        """Plain lists, strings and dictionaries, for programs."""
        return asdict(self)

    def __str__(self) -> str:
        """Text for a terminal, or a page, of 79 characters."""
        return "\n".join(map(_wrapped, self._lines("{}. {}", "   {}: {}", "  - {}", "{}")))

    def __repr__(self) -> str:
        """As :meth:`__str__`."""
        return str(self)

    def _repr_markdown_(self) -> str:
        """Markdown for a notebook."""
        return "\n".join(self._lines("{}. **{}**", "   - *{}:* {}", "- {}", "**{}**\n"))

    def _headline(self) -> str:
        n = len(self.failures)
        counted = {0: "no mistake found", 1: "one mistake found"}.get(n, f"{n} mistakes found")
        if self.ok and any(text.startswith(MEANT) for text in self.assumed):
            counted += ", if you mean what is assumed below"
        return f"{self.subject}: {counted}."

    def _lines(self, head: str, part: str, item: str, title: str) -> list[str]:
        markdown = title != "{}"
        lines = [f"**{self._headline()}**" if markdown else self._headline()]
        for i, failure in enumerate(self.failures, start=1):
            lines += ["", head.format(i, f"{failure.name[:1].upper()}{failure.name[1:]}.")]
            for label, text in _parts(failure):
                if "\n" in text:
                    lines.append(part.format(label, "").rstrip())
                    lines += _block(text, markdown)
                else:
                    code = markdown and label in ("Look for", "Repair")
                    lines.append(part.format(label, f"`{text}`" if code else text))
        sections = {
            "Notes": [note.text for note in self.notes],
            "Holds": self.holds,
            "Not checked": self.unchecked,
            "Assumed": self.assumed,
        }
        for name, texts in sections.items():
            if texts:
                lines += ["", title.format(name), *(item.format(text) for text in texts)]
        return lines


def _parts(failure: Failure) -> list[tuple[str, str]]:
    found = [
        ("Likely", failure.likely),
        ("Look for", failure.look_for),
        ("Repair", failure.repair),
        ("Example", failure.example),
        ("The same numbers here", "; ".join(_in_words(name) for name in failure.alike)),
        ("Source", failure.source),
    ]
    return [(label, text) for label, text in found if text]


def _wrapped(line: str) -> str:
    """The line, or several that are indented a little more; no word is cut."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.fill(
        line, 79, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _in_words(mistake: str) -> str:
    return f"{MISTAKES[mistake].name} ({mistake})"


def _block(text: str, markdown: bool) -> list[str]:
    body = [f"     {line}" for line in text.splitlines()]
    return ["     ```text", *body, "     ```"] if markdown else body
