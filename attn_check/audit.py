"""Does a language model's answer stay the same, however it is run?

Each property is a small function that yields cases: what one way of running gives, and what it
has to be equal to. One object, :class:`Called`, knows how the model is called.
"""

import contextlib
import copy
import functools
import inspect
import itertools
import json
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attn_check import calls
from attn_check.report import wrapped
from attn_check.subject import module_of, quoted

HOLDS, BREAKS, REFUSES = "holds", "does not hold", "refuses"
MISSING, UNCHECKED, MEASURED = "not supported", "not checked", "measured"
# from each property to what it says, and how to look further where it does not hold
PROPERTIES: dict[str, dict[str, str]] = json.loads(
    Path(__file__).with_name("audit.json").read_text(encoding="utf-8")
)
UNKNOWN = (
    "Whether a way of calling was ever promised: what is by design does not hold here either.",
    "Options that were not on, other kernels and devices, training, and texts longer than these.",
)
_ROLES = {
    "mask": ("mask", "attention_mask", "padding_mask"),
    "positions": ("positions", "position_ids"),
    "segments": ("segments", "segment_ids", "document_ids"),
}
_CACHES = ("past_key_values", "cache_params", "state")
_WINDOWS = ("sliding_window", "window", "window_size", "attention_chunk_size")
_LONGEST = 128  # a window up to this is reached by texts that are longer


@dataclass(frozen=True)
class Finding:
    """What one property came to in one way of calling.

    Args:
        name: the property.
        way: the way of calling, or empty where there is only one.
        verdict: holds, does not hold, refuses, not supported, not checked, or measured.
        size: the largest difference, in standard deviations of the model's logits.
        flips: the share of compared positions at which another token is the likeliest.
        example: the smallest example that shows it, or why there is no verdict.
        counts: whether the answer may not change here; else it is one of several ways of calling.
    """

    name: str
    way: str
    verdict: str
    size: float | None = None
    flips: float | None = None
    example: str = ""
    counts: bool = True

    @property
    def title(self) -> str:
        """The property and the way of calling."""
        return f"{self.name}: {self.way}" if self.way else self.name

    def numbers(self) -> str:
        """The size and the flips, in words."""
        if self.size is None or self.flips is None:
            return ""
        flips = f"; {self.flips:.0%} of the argmaxes flip" if self.flips else ""
        return f"{self.size:.2g} standard deviations of the logits{flips}"


@dataclass
class Audit:
    """The result of :func:`attn_check.audit`.

    Args:
        subject: the name of what was called.
        findings: one for each property and way of calling.
        limit: differences up to this, in standard deviations of the logits, are rounding.
        unknown: what the audit cannot know.

    Example:
        >>> report = Audit("Mine", [Finding("causal", "", HOLDS, 0.0, 0.0)], limit=1e-5)
        >>> report.ok, report["causal"].verdict
        (True, 'holds')

    Source: :func:`attn_check.audit`.
    """

    subject: str
    findings: list[Finding] = field(default_factory=list)
    limit: float = 0.0
    unknown: list[str] = field(default_factory=lambda: list(UNKNOWN))

    @property
    def ok(self) -> bool:
        """Whether nothing changes an answer that may not change."""
        return not any(f.counts for f in self.broken)

    @property
    def broken(self) -> list[Finding]:
        """The findings that do not hold."""
        return [f for f in self.findings if f.verdict == BREAKS]

    def __getitem__(self, title: str) -> Finding:
        """The finding of a property, or of "property: way"; the first way, if none is named."""
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
        wrong = list(dict.fromkeys(f.name for f in self.broken if f.counts))
        others = [f for f in self.broken if not f.counts]
        text = f"the answer changes: {', '.join(wrong)}" if wrong else "the answer stays the same"
        if others:
            ways = "one other way" if len(others) == 1 else f"{len(others)} other ways"
            text += f"; in {ways} of calling it changes{' too' if wrong else ''}"
        return f"{self.subject}: {text}."

    def _lines(self, *, markdown: bool) -> list[str]:
        bold, bullet = ("**", "- ") if markdown else ("", "  - ")
        lines = [f"{bold}{self._headline()}{bold}"]
        for i, f in enumerate(sorted(self.broken, key=lambda f: not f.counts), start=1):
            says, look = PROPERTIES[f.name].values()
            title = f"{f.title[:1].upper()}{f.title[1:]}"
            lines += ["", f"{i}. {bold}{title}: {f.verdict}{bold} ({says})."]
            parts = {"Size": f.numbers(), "Example": f.example, "Look further": look}
            start = "   - " if markdown else "   "
            lines += [f"{start}{label}: {text}" for label, text in parts.items()]
        for verdict in (HOLDS, REFUSES, MISSING, UNCHECKED, MEASURED):
            found = [f for f in self.findings if f.verdict == verdict]
            if found:
                lines += ["", f"{bold}{verdict.capitalize()}{bold}", *([""] if markdown else [])]
            for f in found:
                text = f.example if f.verdict != HOLDS else PROPERTIES[f.name]["says"]
                numbers = f" ({f.numbers()})" if f.verdict == MEASURED else ""
                lines.append(f"{bullet}{f.title}: {text}{numbers}" if text else f"{bullet}{f.title}{numbers}")
        lines += ["", f"{bold}It cannot know{bold}", *([""] if markdown else [])]
        rounding = f"Differences up to {self.limit:.1g} standard deviations are taken for rounding."
        return lines + [bullet + text for text in (rounding, *self.unknown)]


# ---------------------------------------------------------------- how a model is called


class NotSupported(Exception):
    """The model takes, or returns, nothing for it."""


def _whole(mask: Tensor) -> Tensor:
    return mask


# (B, S), True = a real token, in the forms that models take
_FORMS: tuple[Callable[[Tensor], Tensor], ...] = (
    _whole,
    Tensor.long,
    lambda mask: mask[:, None, None],
)


class Called:
    """A model, and how it is called: tokens to logits, whole or in pieces, in any of its ways."""

    def __init__(self, fn: Callable, arguments: str | None, step: Callable | None) -> None:
        self.fn, self.module, self.own_step = fn, module_of(fn), step
        self.form: Callable[[Tensor], Tensor] = _whole
        target = fn.forward if isinstance(fn, nn.Module) else fn
        self.parameters = dict(inspect.signature(target).parameters)
        self.of_transformers = {"input_ids", "attention_mask"} & {*self.parameters} and hasattr(
            fn, "config"
        )
        self.roles = self._read(self.parameters, arguments)
        self.step_roles = self.roles if step is None else self._read(_names(step), arguments)
        self.cache = next((name for name in _CACHES if name in self.parameters), None)
        self.new_cache = _class_of_cache(target) if "cache" in self.parameters else None
        if self.of_transformers:
            self.form = Tensor.long

    @staticmethod
    def _read(parameters: Iterable[str], arguments: str | None) -> dict[str, str]:
        """From roles to the names of parameters."""
        said = dict(item.split("=")[::-1] for item in (arguments or "").replace(",", " ").split())
        found = {role: [n for n in names if n in parameters] for role, names in _ROLES.items()}
        return {role: names[0] for role, names in found.items() if names} | said

    @property
    def caches(self) -> bool:
        """Whether a text can be given in pieces."""
        return bool(self.own_step or self.new_cache or (self.of_transformers and self.cache))

    def device(self) -> torch.device:
        """Where the tokens have to be."""
        weights = None if self.module is None else next(self.module.parameters(), None)
        return torch.device("cpu") if weights is None else weights.device

    def run(
        self,
        tokens: Tensor,
        *,
        pieces: Sequence[int] | None = None,
        options: dict[str, Any] | None = None,
        **given: Tensor | None,
    ) -> Tensor:
        """(B, T, V) logits of (B, T) tokens, in one call, or in pieces of these lengths."""
        tokens = tokens.to(self.device())
        if pieces is None:
            plain = {"use_cache": False} if self.of_transformers and self.cache else {}
            named = self._named(self.roles, given, 0, tokens.shape[1])
            return self._call(tokens, **named, **(plain if options is None else options))[0]
        outs, cache, start = [], None, 0
        for length in pieces:
            stop = start + length
            named = self._named(self.step_roles, given, start, stop)
            out, cache = self._step(tokens[:, start:stop], cache, named)
            outs.append(out)
            start = stop
        return torch.cat(outs, dim=1)

    def _named(self, roles: dict, given: dict, start: int, stop: int) -> dict[str, Tensor]:
        known = {role: x for role, x in given.items() if x is not None}
        if missing := [role for role in known if role not in roles]:
            raise NotSupported(f"takes no {missing[0]}")
        cut = {r: self.form(x[:, :stop]) if r == "mask" else x[:, start:stop] for r, x in known.items()}
        return {roles[role]: x.to(self.device()) for role, x in cut.items()}

    def _call(self, tokens: Tensor, **named: Any) -> tuple[Tensor, Any]:
        with torch.no_grad():
            out = self.fn(input_ids=tokens, **named) if self.of_transformers else self.fn(tokens, **named)
        return _logits(out, tokens), out

    def _step(self, tokens: Tensor, cache: Any, named: dict) -> tuple[Tensor, Any]:
        if self.own_step is not None:
            with torch.no_grad():
                out, cache = self.own_step(tokens, cache, **named)
            return _logits(out, tokens), cache
        if self.new_cache is not None:
            cache = self.new_cache() if cache is None else cache
            return self._call(tokens, cache=cache, **named)[0], cache
        assert self.cache is not None  # noqa: S101
        past = {} if cache is None else {self.cache: cache}
        logits, out = self._call(tokens, use_cache=True, **past, **named)
        if getattr(out, self.cache, None) is None:
            raise NotSupported("returns no cache")
        return logits, getattr(out, self.cache)


def _logits(out: Any, tokens: Tensor) -> Tensor:
    """Of an output, in double precision: a tensor, the first of a tuple, or ``.logits``."""
    out = getattr(out, "logits", out)
    out = out[0] if isinstance(out, (tuple, list)) else out
    if not isinstance(out, Tensor) or out.dim() != 3 or out.shape[:2] != tokens.shape:
        shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ValueError(f"logits of tokens {tuple(tokens.shape)} must be (B, T, V), got {shape}")
    return out.detach().double().cpu()


def _class_of_cache(fn: Callable) -> Callable[[], Any] | None:
    """The class that the annotation of a parameter ``cache`` names, if there is one."""
    hint = typing.get_type_hints(fn).get("cache")
    kinds = [kind for kind in typing.get_args(hint) or (hint,) if isinstance(kind, type)]
    return next((kind for kind in kinds if kind.__module__ != "builtins"), None)


# ---------------------------------------------------------------- what is compared


class Case(NamedTuple):
    """Two runs of the same (T, V) rows, and a third, in which only what is beside them differs."""

    words: str
    now: Tensor
    alone: Tensor
    moved: Callable[[], Tensor] | None = None


Ways = Iterator[tuple[str, bool, Iterable[Case]]]  # the way, whether it counts, its cases


class Probe:
    """Texts for a model, and what of the differences between its logits is rounding."""

    def __init__(self, called: Called, length: int, pad: int | None) -> None:
        self.called, self.length, self.pad, self.apart = called, length, pad, True
        config = getattr(called.module, "config", None)
        names = ("pad_token_id", "bos_token_id", "eos_token_id")
        special = [getattr(config, name, None) for name in names]
        V = called.run(torch.zeros(1, 2, dtype=torch.long)).shape[-1]
        V = min(V, getattr(config, "vocab_size", None) or V)
        taken = {pad, *(x for one in special for x in (one if isinstance(one, list) else [one]))}
        order = torch.randperm(V, generator=torch.Generator().manual_seed(0)).tolist()
        self.known = torch.tensor([token for token in order if token not in taken])
        self.filler = next((x for x in (pad, special[0]) if x is not None), order[0])
        self.base = self.run(self.text(length))
        finite = self.base[self.base.isfinite()]
        self.unit = finite.std().item() or 1.0
        self.limit = 16.0 * max(self._rounding(), 4e-7 * finite.abs().max().item() / self.unit)

    def run(self, tokens: Tensor, **given: Any) -> Tensor:
        """Logits, (B, T, V)."""
        return self.called.run(tokens, **given)

    def text(self, length: int, number: int = 0) -> Tensor:
        """(1, length) tokens, others for each number."""
        at = torch.arange(length) + 5 * number
        return self.known[at % len(self.known)][None]

    def other(self, tokens: Tensor) -> Tensor:
        """Other tokens everywhere."""
        shifted = {old: new for old, new in zip(self.known.tolist(), self.known.roll(3).tolist())}
        return tokens.clone().apply_(lambda token: shifted.get(token, self.known[0].item()))

    def gap(self, a: Tensor, b: Tensor) -> Tensor:
        """Differences in standard deviations of the logits."""
        gap = (a - b).abs().masked_fill(a == b, 0.0)
        return gap.nan_to_num(float("inf"), float("inf")) / self.unit

    def _rounding(self) -> float:
        """How far the same text is from a copy in another precision; where none runs, 1e-5."""
        module, double = self.called.module, torch.float64
        try:
            assert module is not None  # noqa: S101
            has = {p.dtype for p in module.parameters() if p.is_floating_point()}
            twin = copy.copy(self.called)
            twin.fn = twin.module = copy.deepcopy(module).to(torch.float32 if has == {double} else double)
            return self.gap(twin.run(self.text(self.length)), self.base).max().item()
        except Exception:  # whatever a part of it raises
            return 1e-5

    def judged(self, name: str, way: str, counts: bool, cases: Iterable[Case]) -> Finding:
        """The verdict on one way of calling."""
        size, flips, rows, example, refused = 0.0, 0, 0, "", None
        try:
            for case in cases:
                gap = self.gap(case.now, case.alone)
                if gap.max() > self.limit and not example:
                    example = self._shown(case, gap)
                size, rows = max(size, gap.max().item()), rows + len(gap)
                flips += int((case.now.argmax(-1) != case.alone.argmax(-1)).sum())
        except NotSupported as missing:
            return Finding(name, way, MISSING, example=str(missing), counts=counts)
        except Exception as error:  # whatever the model raises
            refused = quoted(error)
        if example:
            return Finding(name, way, BREAKS, size, flips / rows, example, counts)
        if refused:
            return Finding(name, way, REFUSES, example=refused, counts=counts)
        return Finding(name, way, HOLDS, size, flips / max(rows, 1), counts=counts)

    def _shown(self, case: Case, gap: Tensor) -> str:
        row, token = divmod(int(gap.argmax()), gap.shape[1])
        values = f"{case.now[row, token]:.4g} instead of {case.alone[row, token]:.4g}"
        text = f"{case.words}; at its token {row} (from 0) a logit is {values}"
        if case.moved is None:
            return f"{text}."
        moved = self.gap(case.moved(), case.now).max().item()
        if moved > self.limit:
            return f"{text}. With other tokens beside it, it moves by {moved:.2g}: they are seen."
        return f"{text}. Other tokens beside it change nothing: it is the positions, or the scale."


def tokens_of(n: int) -> str:
    """A number of tokens, in words."""
    return "1 token" if n == 1 else f"{n} tokens"


# ---------------------------------------------------------------- the properties


def repeat(probe: Probe) -> Ways:
    """The same call again, after other calls."""

    def cases() -> Iterator[Case]:
        text = probe.text(probe.length)
        yield Case("the same call at once", probe.run(text)[0], probe.base[0])
        probe.run(probe.text(probe.length, 3))
        probe.run(torch.cat([probe.text(3, 1), probe.text(3, 2)]))
        yield Case("the same call after other texts", probe.run(text)[0], probe.base[0])
        if probe.called.caches:
            with contextlib.suppress(Exception):  # others report what it raises
                probe.run(probe.text(4, 1), pieces=(2, 1, 1))
            yield Case("the same call after a cache", probe.run(text)[0], probe.base[0])

    yield "", True, cases()


def causal(probe: Probe) -> Ways:
    """With another token at each place, in turn, nothing before it changes."""

    def cases() -> Iterator[Case]:
        for n in (2, probe.length):
            text = probe.text(n)
            whole = probe.run(text)[0]
            for t in range(1, n):
                changed = text.clone()
                changed[:, t] = probe.other(text[:, t])
                words = f"another token {t} in a text of {n}"
                yield Case(words, probe.run(changed)[0, :t], whole[:t])

    yield "", True, cases()


def padding(probe: Probe, side: str) -> Ways:
    """Rows with padding, alone and beside another row; with the positions given and without."""
    roles = probe.called.roles
    if "mask" not in roles and probe.pad is None:
        yield "", True, _missing("takes no mask; if padding is a token of its own, pass pad=")
        return
    given = [True, False] if "positions" in roles else [False]
    for positions, cached in itertools.product(given, [False, True]):
        ways = ["mask and positions" if positions else "mask alone"] * (len(given) > 1)
        ways += ["cache on" if cached else "cache off"] * probe.called.caches
        if probe.called.caches or not cached:
            counts = positions or len(given) == 1
            yield ", ".join(ways), counts, _padded(probe, side, positions, cached)


def _padded(probe: Probe, side: str, positions: bool, cached: bool) -> Iterator[Case]:
    """In pieces, the first holds the padding, and the others follow it."""
    n, tail = probe.length, 3 if cached else 0
    rows = [[(tail + 2, 1)], [(n, 3)], *([[(n, 0), (n - 3, 3)]] if probe.apart else [])]
    for sizes in rows:
        texts = [probe.text(real, i) for i, (real, _) in enumerate(sizes)]
        total = sum(sizes[0])
        real = torch.ones(len(sizes), total, dtype=torch.bool)
        for i, (length, pads) in enumerate(sizes):
            start = 0 if side == "left" else length - tail
            real[i, start : start + pads] = False
        options: dict[str, Any] = {}
        if "mask" in probe.called.roles:
            options["mask"] = real
        if positions:
            options["positions"] = (real.cumsum(1) - 1).clamp(min=0)
        options |= {"pieces": (total - 3, 1, 2)} if cached else {}
        tokens = torch.full(real.shape, probe.filler)
        tokens[real] = torch.cat(texts, dim=1)[0]
        moved = tokens.masked_scatter(~real, probe.other(tokens[~real]))
        out = probe.run(tokens, **options)
        for i, (length, pads) in enumerate(sizes):
            alone = probe.run(texts[i], pieces=(length - 3, 1, 2) if cached else None)[0]
            words = f"{tokens_of(pads)} of padding and {tokens_of(length)} of text"
            words += f", row {i} of 2" if len(sizes) > 1 else ""

            def again(i: int = i, moved: Tensor = moved, options: dict = options, real: Tensor = real) -> Tensor:
                return probe.run(moved, **options)[i, real[i]]

            yield Case(words, out[i, real[i]], alone, again if pads and "mask" in options else None)


def packing(probe: Probe) -> Ways:
    """Documents in one row, told apart in each way that the model takes."""
    called = probe.called
    off = {"use_cache": False} if called.cache else {}
    if called.of_transformers and "positions" in called.roles:
        start = "restarted positions"
        yield f"{start}, cache off", True, _packed(probe, off, "positions")
        yield f"{start}, the default call", False, _packed(probe, {}, "positions")
        if "mask" in called.roles:
            yield f"{start} and a mask of ones", False, _packed(probe, off, "positions", "mask")
            yield "4-D mask", False, _packed(probe, off, "positions", "4-D mask")
        if "kwargs" in called.parameters:
            yield "cu_seq_lens", False, _packed(probe, off, "positions", "cu_seq_lens")
    elif "segments" in called.roles:
        both = [role for role in ("segments", "positions") if role in called.roles]
        yield " and ".join(both), True, _packed(probe, {}, *both)
    elif "positions" in called.roles:
        yield "restarted positions", False, _packed(probe, {}, "positions")
    else:
        yield "", True, _missing("takes neither positions nor segments")


def _packed(probe: Probe, options: dict[str, Any], *ways: str) -> Iterator[Case]:
    n, V = probe.length, torch.finfo(probe.dtype).min
    for sizes in ((2, 3), (4, 1, 5), (n, n - 1)):
        texts = [probe.text(size, i) for i, size in enumerate(sizes)]
        segments = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))[None]
        positions = torch.cat([torch.arange(size) for size in sizes])[None]
        same = (segments[0][:, None] == segments[0]).tril()[None, None]
        ends = torch.tensor([0, *itertools.accumulate(sizes)], dtype=torch.int32)
        most = max(sizes)
        further: dict[str, Any] = {
            "4-D mask": {"attention_mask": torch.zeros(same.shape, dtype=probe.dtype).masked_fill(~same, V)},
            "cu_seq_lens": {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": most, "max_length_k": most},
        }
        passed = {"segments": segments, "positions": positions, "mask": torch.ones_like(segments) > 0}
        given = {way: x for way, x in passed.items() if way in ways}
        given["options"] = options | {k: v for way in ways for k, v in further.get(way, {}).items()}
        tokens = torch.cat(texts, dim=1)
        out = probe.run(tokens, **given)[0]
        for i, text in enumerate(texts):
            own = segments[0] == i
            moved = torch.where(own, tokens, probe.other(tokens))
            words = f"documents of {', '.join(map(str, sizes))} tokens, the one at {i}"
            again = functools.partial(_rows, probe, moved, own, given)
            yield Case(words, out[own], probe.run(text)[0], again)


def cache(probe: Probe) -> Ways:
    """One token at a time."""
    yield "", True, _split(probe, [(1,) * n for n in (2, 3, probe.length)])


def chunks(probe: Probe) -> Ways:
    """Every split of 5 tokens, and longer pieces of a longer text."""
    n = probe.length
    cuts = [[i for i in range(1, 5) if bits >> i & 1] for bits in range(2, 32, 2)]
    short = [tuple(b - a for a, b in itertools.pairwise([0, *at, 5])) for at in cuts]
    long = [(i, n - i) for i in range(1, n)] + [(3,) * (n // 3) + (n % 3,) * (n % 3 > 0)]
    yield "", True, _split(probe, sorted(short, key=len) + long)


def _split(probe: Probe, splits: list[tuple[int, ...]]) -> Iterator[Case]:
    if not probe.called.caches:
        raise NotSupported("takes no cache; if it has one, pass step=")
    for pieces in splits:
        text = probe.text(sum(pieces))
        words = f"a text in pieces of {', '.join(map(str, pieces))}"
        yield Case(words, probe.run(text, pieces=pieces)[0], probe.run(text)[0])


def batch(probe: Probe) -> Ways:
    """Three rows together and each alone; with a cache, in the same pieces."""
    for cached in [False, True][: 1 + probe.called.caches]:
        way = ("cache on" if cached else "cache off") if probe.called.caches else ""
        yield way, True, _rows_together(probe, cached)


def _rows_together(probe: Probe, cached: bool) -> Iterator[Case]:
    for n, B in ((4, 2), (probe.length, 3)):
        pieces = (n - 3, 1, 2) if cached else None
        texts = torch.cat([probe.text(n, i) for i in range(B)])
        out = probe.run(texts, pieces=pieces)
        for i in range(B):
            moved = probe.other(texts)
            moved[i] = texts[i]
            again = functools.partial(_rows, probe, moved, i, {"pieces": pieces})
            words = f"row {i} of {B} rows of {n} tokens"
            yield Case(words, out[i], probe.run(texts[i : i + 1], pieces=pieces)[0], again)
        turned = probe.run(texts.flip(0), pieces=pieces).flip(0)
        yield Case(f"{B} rows of {n} tokens in the other order", turned.flatten(0, 1), out.flatten(0, 1))


def _rows(probe: Probe, tokens: Tensor, rows: Any, given: dict[str, Any]) -> Tensor:
    out = probe.run(tokens, **given)
    return out[rows] if isinstance(rows, int) or rows.dim() == 2 else out[0, rows]


def _missing(reason: str) -> Iterator[Case]:
    raise NotSupported(reason)
    yield


def measured(probe: Probe) -> Iterator[Finding]:
    """Other kernels and half precision, as numbers."""
    module = probe.called.module
    if module is None:
        return
    text = probe.text(probe.length)
    def far(name: str, way: str, change: Callable[[nn.Module], Any]) -> Finding:
        try:
            now = probe.called.changed(change).run(text)[0]
        except Exception as error:
            return Finding(name, way, REFUSES, example=quoted(error), counts=False)
        flips = (now.argmax(-1) != probe.base[0].argmax(-1)).double().mean().item()
        return Finding(name, way, MEASURED, probe.gap(now, probe.base[0]).max().item(), flips, counts=False)
    used = getattr(getattr(module, "config", None), "_attn_implementation", None)
    for kernel in ("eager", "sdpa"):
        if probe.called.of_transformers and kernel != used:
            yield far("kernel", f"{kernel} for {used}", lambda m: m.set_attn_implementation(kernel))
    for dtype in (torch.bfloat16, torch.float16):
        yield far("dtype", str(dtype).removeprefix("torch."), lambda m: m.to(dtype))


_PROPERTIES: dict[str, Callable[[Probe], Ways]] = {
    "repeat": repeat,
    "causal": causal,
    "batch": batch,
    "left padding": functools.partial(padding, side="left"),
    "right padding": functools.partial(padding, side="right"),
    "packing": packing,
    "cache": cache,
    "chunks": chunks,
}


def audit(
    model: Callable,
    *,
    properties: Sequence[str] | None = None,
    arguments: str | None = None,
    step: Callable | None = None,
    pad: int | None = None,
    length: int = 12,
) -> Audit:
    """Say whether a language model's answer stays the same, however it is run."""
    with calls.quietly():
        name = getattr(model, "__name__", type(model).__name__)
        fn, module = calls.copied(model, module_of(model))
        if module is not None:
            module.eval()
        called = Called(fn, arguments, step)
        probe = Probe(called, length, pad)
        report = Audit(name, limit=probe.limit)
        for prop, function in _PROPERTIES.items():
            for way, counts, cases in function(probe):
                report.findings.append(probe.judged(prop, way, counts, cases))
        report.findings += measured(probe)
        return report
