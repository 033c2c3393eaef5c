"""What an audit runs: a property yields ways of calling; each has cases, two runs to compare."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attn_check.called import REACHED, NotSupportedError, Probe
from attn_check.subject import quoted

HOLDS, BREAKS, REFUSES = "holds", "does not hold", "refuses"
MISSING, UNCHECKED, MEASURED = "not supported", "not checked", "measured"


@dataclass(frozen=True)
class Finding:
    """What one property came to, in one way of calling.

    Args:
        name: the property.
        way: the way of calling; empty where there is only one.
        verdict: holds, does not hold, refuses, not supported, not checked or measured.
        size: the largest difference, in standard deviations of the model's logits.
        flips: the share of the compared positions at which another token is the likeliest.
        text: the smallest example that shows it, or why there is no verdict.
        counts: whether the answer may not change here; else it is one of several ways of calling.
    """

    name: str
    way: str
    verdict: str
    size: float | None = None
    flips: float | None = None
    text: str = ""
    counts: bool = True

    @property
    def title(self) -> str:
        """The property and the way of calling."""
        return f"{self.name}: {self.way}" if self.way else self.name

    @property
    def numbers(self) -> str:
        """Size and flips, in words."""
        if self.size is None or self.flips is None:
            return ""
        flips = f"{self.flips:.0%} of the argmaxes flip" if self.flips else "no argmax flips"
        return f"{self.size:.2g} standard deviations of the logits; {flips}"


class Case(NamedTuple):
    """Two runs of the same (T, V) rows, and a third, of which only what is beside them differs."""

    words: str
    now: Tensor
    alone: Tensor
    moved: Callable[[], Tensor] | None = None


Cases = Iterator[Case]
Ways = Iterator[tuple[str, bool, Cases]]  # the way, whether it counts, its cases


def judged(probe: Probe, f: Finding, cases: Cases) -> Finding:
    """A finding, with its verdict on one way of calling."""
    size, flips, rows, example = 0.0, 0, 0, ""
    try:
        for case in cases:
            gap = probe.gap(case.now, case.alone)
            size, rows = max(size, gap.max().item()), rows + len(gap)
            flips += int((case.now.argmax(-1) != case.alone.argmax(-1)).sum())
            if gap.max() > probe.limit and not example:
                example = _shown(probe, case, gap)
    except NotSupportedError as missing:
        return replace(f, verdict=MISSING, text=str(missing))
    except Exception as error:  # whatever the model raises
        if not example:
            return replace(f, verdict=REFUSES, text=quoted(error))
    verdict = BREAKS if example else HOLDS
    return replace(f, verdict=verdict, size=size, flips=flips / max(rows, 1), text=example)


def _shown(probe: Probe, case: Case, gap: Tensor) -> str:
    at = divmod(int(gap.argmax()), gap.shape[1])
    now, alone = case.now[at], case.alone[at]
    text = f"{case.words}, token {at[0]} (from 0): a logit is {now:.4g} instead of {alone:.4g}."
    if case.moved is None:
        return text
    moved = probe.gap(case.moved(), case.now).max().item()
    if moved > probe.limit:
        return f"{text} Other tokens beside it move it by {moved:.2g}: they are seen."
    return f"{text} Other tokens beside it change nothing: they are not seen."


def _beside(probe: Probe, tokens: Tensor, own: Tensor, **given: Any) -> Callable[[], Tensor]:
    """The rows of its own tokens (B, T), True = own, with all others changed."""
    return lambda: probe.run(torch.where(own, tokens, probe.other(tokens)), **given)[own]


# ---------------------------------------------------------------- the properties


def repeat(probe: Probe) -> Cases:
    """The same call again, after other calls."""
    text = probe.text_of_all
    yield Case("the same call again", probe.run(text)[0], probe.base)
    probe.run(probe.text(probe.length, 3))
    probe.run(torch.cat([probe.text(3, 1), probe.text(3, 2)]))
    yield Case("the same call after others", probe.run(text)[0], probe.base)
    with contextlib.suppress(Exception):  # "cache" reports what it raises
        probe.run(probe.text(4, 1), pieces=(2, 1, 1))
    yield Case("the same call after others with a cache", probe.run(text)[0], probe.base)


def causal(probe: Probe) -> Cases:
    """With another token in each place, in turn, nothing before it changes."""
    for n in (2, probe.length):
        text = probe.text(n)
        whole = probe.run(text)[0]
        for t in range(1, n):
            changed = text.clone()
            changed[:, t] = probe.other(text[:, t])
            words = f"another token {t} in a text of {n}"
            yield Case(words, probe.run(changed)[0, :t], whole[:t])


def rows(probe: Probe, cached: bool) -> Cases:
    """Rows together, and each alone, so that their order cannot matter; with a cache, in pieces."""
    for n, B in ((4, 2), (probe.length, 3)):
        pieces = (n - 3, 1, 1, 1) if cached else None
        texts = torch.cat([probe.text(n, i) for i in range(B)])
        out = probe.run(texts, pieces=pieces)
        for i in range(B):
            own = (torch.arange(B) == i)[:, None].expand(B, n)
            alone = probe.run(texts[i : i + 1], pieces=pieces)[0]
            moved = _beside(probe, texts, own, pieces=pieces)
            yield Case(f"{B} rows of {n} tokens, row {i}", out[i], alone, moved)


def _with_cache(probe: Probe, counts: tuple[bool, bool], cases: Callable, *ways: str) -> Ways:
    """The cases of a way without a cache, and with one."""
    yield ", ".join([*ways, *["cache off"] * probe.called.caches]), counts[0], cases(False)
    if probe.called.caches:
        yield ", ".join([*ways, "cache on"]), counts[1], cases(True)


def padding(probe: Probe, *, left: bool) -> Ways:
    """Rows with padding; with the positions of what is real, where the model takes them."""
    if "mask" not in probe.called.roles and probe.pad is None:
        yield "", True, _missing("takes no mask; if padding is a token of its own, pass pad=")
        return
    placed = "positions" in probe.called.roles
    for given, way in ((True, "mask and positions"), (False, "mask alone"))[not placed :]:
        counts = given or not placed  # with a cache on the right, few go on after padding
        cases = functools.partial(_padded, probe, left, given)
        yield from _with_cache(probe, (counts, counts and left), cases, *[way] * placed)


def _missing(reason: str) -> Cases:
    raise NotSupportedError(reason)
    yield


def _padded(probe: Probe, left: bool, positions: bool, cached: bool) -> Cases:
    """With a cache, the first piece holds the padding, and three tokens follow it."""
    n, tail = probe.length, 3 if cached else 0
    for sizes in [[(tail + 2, 1)], [(n, 3)], *([[(n, 0), (n - 3, 3)]] * probe.apart)]:
        texts = [probe.text(length, i) for i, (length, _) in enumerate(sizes)]
        real = torch.ones(len(sizes), sum(sizes[0]), dtype=torch.bool)
        for row, (length, pads) in zip(real, sizes, strict=True):
            start = 0 if left else length - tail
            row[start : start + pads] = False
        given: dict[str, Any] = {"mask": real} if "mask" in probe.called.roles else {}
        given |= {"positions": (real.cumsum(1) - 1).clamp(min=0)} if positions else {}
        given |= {"pieces": (real.shape[1] - 3, 1, 1, 1)} if cached else {}
        tokens = torch.full(real.shape, probe.filler)
        tokens[real] = torch.cat(texts, dim=1)[0]
        out = probe.run(tokens, **given)
        for i, (length, pads) in enumerate(sizes):
            own: dict[str, Any] = {"positions": torch.arange(length)[None]} if positions else {}
            own |= {"pieces": (length - 3, 1, 1, 1)} if cached else {}
            alone = probe.run(texts[i], **own)[0]
            words = f"padding of {pads}, text of {length}" + f", row {i} of 2" * (len(sizes) > 1)
            row = real & (torch.arange(len(sizes)) == i)[:, None]
            seen = _beside(probe, tokens, row, **given) if pads and "mask" in given else None
            yield Case(words, out[row], alone, seen)


def packing(probe: Probe) -> Ways:
    """Documents in one row, in each way in which the model can be told where they begin."""
    called, start, packed = probe.called, "restarted positions", functools.partial(_packed, probe)
    if called.of_transformers and "positions" in called.roles:
        yield f"{start}, cache off", True, packed(called.off, "positions")
        yield f"{start}, the default call", False, packed({}, "positions")
        if "mask" in called.roles:
            yield f"{start}, mask of ones", False, packed(called.off, "positions", "mask")
            yield "4-D mask", False, packed(called.off, "positions", "4-D mask")
        if "kwargs" in called.parameters:
            yield "cu_seq_lens", False, packed(called.off, "positions", "cu_seq_lens")
    elif "segments" in called.roles:
        both = [role for role in ("segments", "positions") if role in called.roles]
        yield " and ".join(both), True, packed({}, *both)
    elif "positions" in called.roles:
        yield start, False, packed({}, "positions")
    else:
        yield "", True, _missing("takes neither positions nor segments")


def _packed(probe: Probe, options: dict[str, Any], *ways: str) -> Cases:
    n, dtype = probe.length, probe.called.weight.dtype
    for sizes in ((2, 3), (4, 1, 5), (n, n - 1)):
        texts = [probe.text(size, i) for i, size in enumerate(sizes)]
        tokens, ends = torch.cat(texts, dim=1), [0, *itertools.accumulate(sizes)]
        document = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))[None]
        positions = torch.cat([torch.arange(size) for size in sizes])[None]
        roles = {"segments": document, "positions": positions, "mask": document >= 0}
        given: dict[str, Any] = {role: x for role, x in roles.items() if role in ways}
        given["options"] = dict(options)
        if "4-D mask" in ways:
            closed = ~(document.mT == document).tril()[None, None]
            zeros = torch.zeros(closed.shape, dtype=dtype)
            given["options"]["attention_mask"] = zeros.masked_fill(closed, torch.finfo(dtype).min)
        if "cu_seq_lens" in ways:
            at = torch.tensor(ends, dtype=torch.int32)
            given["options"] |= {f"cu_seq_lens_{x}": at for x in "qk"}
            given["options"] |= {f"max_length_{x}": max(sizes) for x in "qk"}
        out = probe.run(tokens, **given)
        for i, text in enumerate(texts):
            moved = _beside(probe, tokens, document == i, **given)
            words = f"documents of {', '.join(map(str, sizes))} tokens, document {i}"
            yield Case(words, out[document == i], probe.run(text)[0], moved)


def cache(probe: Probe) -> Cases:
    """One token at a time; where there is a window, until its memory is written a third time."""
    twice = max([probe.length, *(2 * w + 3 for w in probe.windows if w <= REACHED)])
    return _split(probe, [(1,) * n for n in (2, 3, twice)])


def chunks(probe: Probe) -> Cases:
    """Every split of 5 tokens but that of one at a time; a longer text in two, and in threes."""
    n = probe.length
    cuts = [[i for i in range(1, 5) if bits >> i & 1] for bits in range(2, 30, 2)]
    short = [tuple(b - a for a, b in itertools.pairwise([0, *at, 5])) for at in cuts]
    long = [*((i, n - i) for i in range(1, n)), (3,) * (n // 3) + (n % 3,) * (n % 3 > 0)]
    return _split(probe, sorted(short, key=len) + long)


def _split(probe: Probe, splits: list[tuple[int, ...]]) -> Cases:
    for pieces in splits:
        text, words = probe.text(sum(pieces)), f"pieces of {', '.join(map(str, pieces))} tokens"
        yield Case(words, probe.run(text, pieces=pieces)[0], probe.run(text)[0])


def _one(cases: Callable[[Probe], Cases], probe: Probe) -> Ways:
    yield "", True, cases(probe)


PROPERTIES: dict[str, Callable[[Probe], Ways]] = {
    "repeat": functools.partial(_one, repeat),
    "causal": functools.partial(_one, causal),
    "batch": lambda probe: _with_cache(probe, (True, True), functools.partial(rows, probe)),
    "left padding": functools.partial(padding, left=True),
    "right padding": functools.partial(padding, left=False),
    "packing": packing,
    "cache": functools.partial(_one, cache),
    "chunks": functools.partial(_one, chunks),
}


def measured(probe: Probe) -> Iterator[Finding]:
    """How far another kernel of transformers is, and half precision: numbers, no verdicts."""
    used = str(getattr(getattr(probe.called.module, "config", None), "_attn_implementation", None))
    other = {"sdpa": "eager", "eager": "sdpa"}.get(used)
    changes: dict[str, Callable[[Any], Any]] = {}
    if other is not None:
        changes[f"kernel: {other}, not {used}"] = functools.partial(_set_kernel, name=other)
    for dtype in (torch.bfloat16, torch.float16):
        changes[f"dtype: {str(dtype)[6:]}"] = functools.partial(nn.Module.to, dtype=dtype)
    for title, change in changes.items():
        name, _, way = title.partition(": ")
        asked = Finding(name, way, MEASURED, counts=False)
        found = judged(probe, asked, _changed(probe, change))
        yield found if found.size is None else replace(found, verdict=MEASURED, text="")


def _changed(probe: Probe, change: Callable[[Any], Any]) -> Cases:
    yield Case("", probe.called.changed(change).run(probe.text_of_all)[0], probe.base)


def _set_kernel(model: Any, name: str) -> None:
    model.set_attn_implementation(name)
    if model.config._attn_implementation != name:
        raise NotSupportedError("its kernel cannot be chosen")
