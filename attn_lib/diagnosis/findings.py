"""What has been found so far, and how numbers are shown."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from attn_lib.diagnosis.forms import FORMS
from attn_lib.diagnosis.formula import Case, Intent
from attn_lib.diagnosis.mistakes import MISTAKES
from attn_lib.diagnosis.reference import allowed, open_rows
from attn_lib.diagnosis.report import Failure, Note


@dataclass
class Findings:
    """What has been found so far."""

    failures: list[Failure] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    holds: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    state_example: str = ""
    seconds: float = 0.7  # to look for pairs of mistakes
    guessed: list[str] = field(default_factory=list)  # what is assumed of causal and window
    seen: str = ""  # which later keys have an influence, where causal is assumed

    def known(
        self, mistake: str, example: str, *, alike: tuple[str, ...] = (), form: int = 0
    ) -> None:
        """Add a failure, or a note, of the table; ``form`` is which of its variants it is."""
        row = MISTAKES[mistake]
        if row.note:
            if mistake not in {note.mistake for note in self.notes}:
                self.notes.append(Note(mistake, f"{row.likely} {example}".strip()))
        elif mistake not in {failure.mistake for failure in self.failures}:
            name, likely, look_for, repair = FORMS.get(
                (mistake, form), (row.name, row.likely, row.look_for, row.repair)
            )
            if mistake == "closed_key_reaches_output" and self.seen:
                likely = f"{self.seen} {likely}"
            if alike:
                others = "the one named below, which gives"
                if len(alike) > 1:
                    others = "one of those named below, which give"
                likely += f" Or it is {others} the same numbers here."
            self.failures.append(
                Failure(mistake, name, likely, look_for, repair, example, row.source, alike)
            )

    def property(self, name: str, likely: str, example: str = "") -> None:
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
    at = _first_row(gap.amax(dim=-1), case, expected)
    channel = int(gap[at].argmax())
    names = ("example", "head", "position") if len(at) == 3 else ("example", "position")
    where = ", ".join(f"{name} {i}" for name, i in zip(names, at, strict=True))
    first = max(min(channel, gap.shape[-1] - 4), 0)
    shown = slice(first, first + 4)
    if gap.shape[-1] > 4:
        where += f", channels {first}-{first + 3}"
    lines = [f"{case.words or case.name}; {where} (from 0):"]
    if case.mask is not None:
        row = case.mask[at[0], at[-1]] if case.mask.dim() == 3 else case.mask[at[0], 0, at[-1]]
        lines.append(f"open keys {''.join('1' if cell else '0' for cell in row.tolist())}")
    pair = mine[at][shown], expected[at][shown]
    texts = [(numbers(pair[0], digits), numbers(pair[1], digits)) for digits in range(4, 17)]
    one, two = next((both for both in texts if both[0] != both[1]), texts[-1])
    return "\n".join([*lines, f"actual    {one}", f"expected  {two}"])


def _first_row(gap: Tensor, case: Case, expected: Tensor) -> tuple[int, ...]:
    """The first row, (example, head, position), off by more than is allowed, or the worst."""
    off = (gap > allowed(case, expected)).flatten()
    index = off.int().argmax() if off.any() else gap.flatten().argmax()
    return tuple(int(i) for i in torch.unravel_index(index, gap.shape))
