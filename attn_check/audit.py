"""``audit``: does a language model give the same answer, however it is run?"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attn_check import calls, runs
from attn_check.called import Called, Probe
from attn_check.report import Shown
from attn_check.runs import PROPERTIES, Finding
from attn_check.subject import module_of

# from each property to what it says, and how to look further where it does not hold
WORDS: dict[str, dict[str, str]] = json.loads(
    Path(__file__).with_name("audit.json").read_text(encoding="utf-8")
)


@dataclass(repr=False)
class Audit(Shown):
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
        return sorted(self.of(runs.BREAKS), key=lambda f: not f.counts)

    def of(self, verdict: str) -> list[Finding]:
        """The findings with this verdict."""
        return [f for f in self.findings if f.verdict == verdict]

    def __getitem__(self, title: str) -> Finding:
        """The finding of "property: way", or the first one of a property."""
        for f in self.findings:
            if title in (f.title, f.name):
                return f
        raise KeyError(title)

    def as_dict(self) -> dict[str, Any]:
        """Plain lists, strings and dictionaries, for programs."""
        return {**super().as_dict(), "ok": self.ok}

    def _headline(self) -> str:
        wrong = ", ".join(dict.fromkeys(f.name for f in self.broken if f.counts))
        text = f"the answer changes ({wrong})" if wrong else "the answer stays the same"
        if ways := sum(not f.counts for f in self.broken):
            also = " too" if wrong else ""
            text += f"; it changes{also} in {ways} other way{'s' * (ways > 1)} of calling"
        if refused := ", ".join(dict.fromkeys(f.name for f in self.of(runs.REFUSES) if f.counts)):
            text += f"; refused: {refused}"
        return f"{self.subject}: {text}."

    def _parts(self) -> tuple[str, list[tuple[str, dict[str, str]]], dict[str, list[str]]]:
        wrong, ways = list[tuple[str, dict[str, str]]](), dict[str, list[str]]()
        for f in self.broken:
            parts = {"Size": f.numbers, "Example": f.text}
            if f.name not in {title.partition(":")[0] for title, _ in wrong}:  # it is said once
                says, look = WORDS[f.name].values()
                parts = {"Meant": says, **parts, "Look further": look}
            wrong.append((f"{f.title}: {f.verdict}", parts))
        for f in self.of(runs.HOLDS):
            ways.setdefault(f"{f.name}: {WORDS[f.name]['says']}", []).append(f.way)
        held = [says + f" ({'; '.join(own)})" * any(own) for says, own in ways.items()]
        rounding = f"Differences up to {self.limit:.1g} standard deviations: they may be rounding."
        others = {
            verdict.capitalize(): [f"{f.title}: {f.numbers or f.text}" for f in self.of(verdict)]
            for verdict in (runs.REFUSES, runs.MISSING, runs.UNCHECKED, runs.MEASURED)
        }
        lists = {"Holds": held, **others, "Not known": [rounding, *self.unknown]}
        return self._headline(), wrong, lists


def audit(
    model: Callable,
    *,
    properties: Sequence[str] | None = None,
    arguments: str | None = None,
    step: Callable | None = None,
    pad: int | None = None,
    length: int = 12,
) -> Audit:
    """Say whether a language model gives the same answer, however it is run.

    Later, with other tokens after it, beside other rows, with padding, packed with other documents,
    token by token with a cache, in every split: a text has to give what it gives alone. Ways of
    calling are judged apart; ``counts`` says whether the answer may not change there. A copy is
    judged, in evaluation mode, half precision as float32; your model stays as it is.

    Args:
        model: a causal language model: one of transformers, another module, or a function from
            tokens (B, T) to logits (B, T, V). Parameters named as mask, attention_mask,
            positions, position_ids, segments or segment_ids are passed; so is ``cache``, where
            its annotation names a class that is made without arguments.
        properties: which ones, by their names in the report; a name with its way of calling, as
            ``"packing: 4-D mask"``, makes that way count. Default: all.
        arguments: other names of parameters and their roles, as ``"keep=mask, at=positions"``.
            Masks are (B, S), True = a real token, or else 0 and 1, or else (B, 1, 1, S).
        step: ``step(tokens, cache)`` that returns ``(logits, cache)``; ``cache`` is None in the
            first call; it is passed what it takes of mask (B, all tokens so far) and positions.
        pad: the token of padding, for a model that takes no mask and knows padding by it.
        length: of the longer texts; raised where a window up to 64 would not be reached.

    Returns:
        An :class:`Audit`. Print it, show it in a notebook, or read ``as_dict()``.

    Raises:
        TypeError: a class instead of an instance, or something that cannot be called.
        ValueError: an unknown property or role; a model that raises, or gives no logits (B, T, V).

    Example:
        >>> from attn_lib import DecoderLM
        >>> sizes = {"d_model": 12, "num_heads": 3, "d_ff": 24, "num_layers": 2}
        >>> model = DecoderLM(vocab_size=31, max_len=40, **sizes)
        >>> report = audit(model)
        >>> report.ok, report["left padding: cache on"].verdict, report["packing"].verdict
        (True, 'holds', 'not supported')

    Source: transformers#39997 (packing), #26072 (left padding), #37574 (a window with a cache).
    """
    if isinstance(model, type) or not callable(model):
        raise TypeError(f"model must be a module or a function, got {model!r}")
    if unknown := [name for name in properties or () if name.partition(":")[0] not in PROPERTIES]:
        raise ValueError(f"properties are {', '.join(PROPERTIES)}; got {unknown[0]!r}")
    original = module_of(model)
    with calls.quietly(), calls.unchanged(original):  # where it cannot be copied
        probe = Probe(Called(model, arguments, step), length, pad)
        report = Audit(getattr(model, "__name__", type(model).__name__), limit=probe.limit)
        for name in PROPERTIES:
            report.findings += _judged(probe, name, properties, report)
        report.findings += [] if properties is not None else runs.measured(probe)
    titles = {name for f in report.findings for name in (f.name, f.title)}
    if absent := set(properties or ()) - titles:
        raise ValueError(f"no way of calling: {', '.join(absent)}; got {', '.join(titles)}")
    report.unknown = [
        "Whether a way of calling was ever promised: what is by design is reported too.",
        "Other devices, training, options that were not on.",
        f"Texts of more than {probe.length} tokens.",
        *probe.called.unknown,
        *(f"A window of {w}: pass length=." for w in probe.windows if w >= probe.length),
    ]
    return report


def _judged(
    probe: Probe, name: str, asked: Sequence[str] | None, report: Audit
) -> Iterator[Finding]:
    """The findings on one property, if it is asked for."""
    broken = {f.name for f in report.broken}
    probe.apart = "batch" not in broken
    reason = "two equal calls differ" if "repeat" in broken else ""
    if name not in ("repeat", "causal", "batch") and probe.deaf:
        reason = "no token changes the logits of a later one: nothing can leak"
    ways = [*PROPERTIES[name](probe)]
    none = asked is not None and not any(counts for _, counts, _ in ways)
    for way, counts, cases in ways:
        f = Finding(name, way, runs.UNCHECKED, text=reason)
        if asked is None or {f.title, name} & {*asked}:
            f = replace(f, counts=counts or none or f.title in (asked or ()))
            yield f if reason else runs.judged(probe, f, cases)


def assert_same_answer(
    model: Callable, *, properties: Sequence[str] | None = None, **adapter: Any
) -> None:
    """Raise unless :func:`audit` finds no answer that changes: one line in a test suite.

    What is named in ``properties`` has to hold; without them, what could not be judged passes, and
    so does a way of calling that fails where the audit knows another one that holds. So name the
    way in which you call, as ``"packing: restarted positions, the default call"``.

    Args:
        model: as in :func:`audit`.
        properties: as in :func:`audit`.
        adapter: as in :func:`audit`.

    Raises:
        AssertionError: an answer changes; or a property that is named is refused, not supported
            or not checked. The message is the report.

    Example:
        >>> from attn_lib import DecoderLM
        >>> sizes = {"d_model": 12, "num_heads": 3, "d_ff": 24, "num_layers": 2}
        >>> model = DecoderLM(vocab_size=31, max_len=40, **sizes)
        >>> assert_same_answer(model, properties=["left padding", "cache"])

    Source: :func:`audit`.
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    report = audit(model, properties=properties, **adapter)
    asked = [f for f in report.findings if f.counts and properties is not None]
    if not report.ok or any(f.verdict != runs.HOLDS for f in asked):
        raise AssertionError(str(report))
