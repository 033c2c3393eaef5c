"""What an audit runs: a property has ways of calling, each with cases: two runs to compare."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attn_check.called import REACHED, NotSupportedError, Probe, RefusedError, asking
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
# in words; whether the answer may not change; its cases, or why it is not supported
Ways = Iterator[tuple[str, bool, Cases | str]]


def judged(probe: Probe, f: Finding, cases: Cases | str) -> Finding:
    """A finding, with its verdict on one way of calling."""
    if isinstance(cases, str):
        return replace(f, verdict=MISSING, text=cases)
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
            text = str(error) if isinstance(error, RefusedError) else quoted(error)
            return replace(f, verdict=REFUSES, text=text)
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


def together(
    probe: Probe, words: str, number: Tensor, *roles: str, cached: bool = False, options: Any = None
) -> Cases:
    """Texts in one call, and each of them alone, called in the same way but for ``options``.

    ``number`` (B, T) says to which text a token belongs, and is −1 where there is padding. The
    model is passed these ``roles``; where ``cached``, the last three tokens come one by one.
    """
    earlier = (number[:, :, None] == number[:, None]).tril().sum(dim=-1) - 1
    real, place = number >= 0, earlier.masked_fill(number < 0, 0)
    told = {"mask": real, "positions": place, "segments": number}
    given: dict[str, Any] = {role: told[role] for role in roles} | {"options": options}
    texts = [probe.text(int((number == i).sum()), i) for i in range(int(number.max()) + 1)]
    tokens = torch.full(number.shape, probe.filler)
    for i, text in enumerate(texts):
        tokens[number == i] = text[0]

    def run(tokens: Tensor, **given: Any) -> Tensor:
        pieces = (tokens.shape[1] - 3, 1, 1, 1) if cached else None
        return probe.run(tokens, pieces=pieces, **given)

    def beside(own: Tensor) -> Tensor:
        return run(torch.where(own, tokens, probe.other(tokens)), **given)[own]

    out = run(tokens, **given)
    known = "mask" in roles or bool(real.all())  # else padding is known by its token
    for i, text in enumerate(texts):
        own = number == i
        given_alone = {"positions": place[own][None]} if "positions" in roles else {}
        moved = functools.partial(beside, own) if known else None
        yield Case(words.format(i), out[own], run(text, **given_alone)[0], moved)


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
            yield Case(f"another token {t} in a text of {n}", probe.run(changed)[0, :t], whole[:t])


def batch(probe: Probe) -> Ways:
    """Rows together, and each alone, so that their order cannot matter."""
    for way, cached in probe.called.ways.items():
        yield way, True, _rows(probe, cached)


def _rows(probe: Probe, cached: bool) -> Cases:
    for B, T in ((2, 4), (3, probe.length)):
        number = torch.arange(B)[:, None].expand(B, T)
        yield from together(probe, f"{B} rows of {T} tokens, row {{}}", number, cached=cached)


def padding(probe: Probe, *, left: bool) -> Ways:
    """Rows with padding; with the positions of what is real, where the model takes them."""
    roles = [role for role in ("mask", "positions") if role in probe.called.roles]
    if "mask" not in roles and probe.pad is None:
        yield "", True, "takes no mask; if padding is a token of its own, pass pad="
        return
    ways = {"": roles}
    if "positions" in roles:
        ways = {"mask and positions": roles, "mask alone": roles[:-1]}
    for given, passed in ways.items():
        for way, cached in probe.called.ways.items():
            # with a cache on the right, few go on after padding
            counts = passed == roles and (left or not cached)
            cases = _padded(probe, left, passed, cached)
            yield ", ".join(filter(None, [given, way])), counts, cases


def _padded(probe: Probe, left: bool, roles: Sequence[str], cached: bool) -> Cases:
    """With a cache, the first piece holds the padding, and three tokens follow it."""
    n, tail = probe.length, 3 if cached else 0
    for sizes in [[(tail + 2, 1)], [(n, 3)], *([[(n, 0), (n - 3, 3)]] * probe.apart)]:
        rows = []
        for i, (length, pads) in enumerate(sizes):
            start = 0 if left else length - tail
            rows.append([i] * start + [-1] * pads + [i] * (length - start))
        texts, paddings = (" and ".join(map(str, each)) for each in zip(*sizes, strict=True))
        words = f"padding of {paddings}, text of {texts}" + ", row {}" * (len(sizes) > 1)
        yield from together(probe, words, torch.tensor(rows), *roles, cached=cached)


def packing(probe: Probe) -> Ways:
    """Documents in one row, in each way in which the model can be told where they begin."""
    called, start, packed = probe.called, "restarted positions", functools.partial(_packed, probe)
    if called.of_transformers and "positions" in called.roles:
        yield f"{start}, cache off", True, packed("positions")
        yield f"{start}, the default call", False, packed("positions", options={})
        if "mask" in called.roles:
            yield f"{start}, mask of ones", False, packed("positions", "mask")
            yield "4-D mask", False, packed("positions", "4-D mask")
        if "kwargs" in called.parameters:
            yield "cu_seq_lens", False, packed("positions", "cu_seq_lens")
    elif "segments" in called.roles:
        both = [role for role in ("segments", "positions") if role in called.roles]
        yield " and ".join(both), True, packed(*both)
    elif "positions" in called.roles:
        yield start, False, packed("positions")
    else:
        yield "", True, "takes neither positions nor segments"


def _packed(probe: Probe, *ways: str, options: dict[str, Any] | None = None) -> Cases:
    """Two and three documents in a row; ``options`` are by default that the cache is off."""
    dtype, n = probe.called.weight.dtype, probe.length
    for sizes in ((2, 3), (4, 1, 5), (n, n - 1)):
        number = torch.repeat_interleave(torch.tensor(sizes))[None]
        given = dict(probe.called.off if options is None else options)
        if "4-D mask" in ways:
            closed = ~(number.mT == number).tril()[None, None]
            zeros = torch.zeros(closed.shape, dtype=dtype)
            given["attention_mask"] = zeros.masked_fill(closed, torch.finfo(dtype).min)
        if "cu_seq_lens" in ways:
            limits = torch.tensor([0, *itertools.accumulate(sizes)], dtype=torch.int32)
            given |= {"cu_seq_lens_q": limits, "max_length_q": max(sizes)}
            given |= {"cu_seq_lens_k": limits, "max_length_k": max(sizes)}
        words = f"documents of {', '.join(map(str, sizes))} tokens, document {{}}"
        roles = [way for way in ways if way in probe.called.roles]
        yield from together(probe, words, number, *roles, options=given)


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
    "batch": batch,
    "left padding": functools.partial(padding, left=True),
    "right padding": functools.partial(padding, left=False),
    "packing": packing,
    "cache": functools.partial(_one, cache),
    "chunks": functools.partial(_one, chunks),
}


def measured(probe: Probe) -> Iterator[Finding]:
    """How far another kernel of transformers is, and half precision: numbers, no verdicts."""
    changes: list[tuple[str, str, Callable[[Any], Any]]] = []
    used = str(getattr(getattr(probe.called.module, "config", None), "_attn_implementation", None))
    if other := {"sdpa": "eager", "eager": "sdpa"}.get(used):
        kernel = functools.partial(_set_kernel, name=other)
        changes.append(("kernel", f"{other}, not {used}", kernel))
    for dtype in (torch.bfloat16, torch.float16):
        changes.append(("dtype", str(dtype)[6:], functools.partial(nn.Module.to, dtype=dtype)))
    for name, way, change in changes:
        found = judged(probe, Finding(name, way, MEASURED, counts=False), _changed(probe, change))
        yield found if found.size is None else replace(found, verdict=MEASURED, text="")


def _changed(probe: Probe, change: Callable[[Any], Any]) -> Cases:
    yield Case("", probe.called.changed(change).run(probe.text_of_all)[0], probe.base)


def _set_kernel(model: Any, name: str) -> None:
    with asking(f"asked for the kernel {name}"):
        model.set_attn_implementation(name)
    if model.config._attn_implementation != name:
        raise NotSupportedError("its kernel cannot be chosen")
