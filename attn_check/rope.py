"""``diagnose_rope``: for functions that rotate queries and keys."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, product
from typing import Any

import torch
from torch import Tensor

from attn_check.calls import quietly
from attn_check.mistakes import FORMS, MISTAKES
from attn_check.reference import Case, Intent, Step
from attn_check.report import Failure, Report, numbers
from attn_check.rope_calls import ENDS, PAIRINGS, ROPE_LAYOUTS, Guess, Way, answered_ways
from attn_check.search import allowed

# a mistake, its forms at once, and what is said of it where the table of mistakes says less; what
# takes queries and keys alike comes first: it alone is right where there are no keys
_TRIED = [
    ("rope_pairing", [0], "RoPE turns {other}, where {meant} are meant."),
    ("rope_direction", [0], "RoPE turns in the other direction."),
    ("rope_direction", [1], "RoPE turns the keys, not the queries, in the other direction."),
    ("rope_direction", [2], "RoPE turns the queries, not the keys, in the other direction."),
    ("rope_positions_restart", [1], "Positions are 0, 1, ... where 5, 6, ... are passed."),
    ("rope_positions_restart", [0], ""),
    ("rope_missing", [0], ""),
    ("rope_twice", [0], ""),
    ("rope_over_heads", [0], ""),
    ("rope_only_queries", [0], ""),
    ("rope_only_keys", [0], ""),
    ("rope_keys_off_by_one", [0], ""),
    ("rope_keys_off_by_one", [1], ""),
]
_MIXED = [  # where the function makes cos and sin itself
    ("rope_pairing", [1], "cos and sin are in the order of {other}, the channels of {meant}."),
    ("rope_pairing", [0, 1], "cos and sin are in the order of {meant}, the channels of {other}."),
]


def diagnose_rope(
    fn: Callable,
    *,
    rope_base: float = 10_000.0,
    rope_pairing: str | None = "half",
    layout: str | None = None,
    d_k: int | None = None,
) -> Report:
    """Say in words what is wrong with a function that rotates queries and keys.

    Args:
        fn: ``fn(q, k, positions)`` that returns both, or ``fn(x, positions)`` that returns one.
            Positions (T,) or (B, T) may be left out, and are then 0 to T − 1. Parameters named
            ``cos`` and ``sin``, or ``freqs_cis``, get tables of ``rope_base``.
        rope_base: ratio of the slowest to the fastest rotation that is meant.
        rope_pairing: ``"half"``, channels i and i + d/2, or ``"neighbours"``, 2i and 2i + 1;
            None: the one that fits.
        layout: the axes of q and k: ``"BHTd"``, ``"BTHd"``, ``"TBHd"``, ``"BTd"`` or ``"Td"``.
            Default: the first that explains the answers.
        d_k: the width of q and k, where ``fn`` has a fixed one. Default: found out.

    Returns:
        A :class:`Report`: ``.ok`` is True where no mistake was found; ``failures`` holds the
        mistakes, ``unchecked`` what could not be called, ``assumed`` what was found out.

    Raises:
        TypeError: a class instead of an instance, or something that cannot be called.
        ValueError: an unknown pairing or layout; an odd ``d_k``; a parameter that cannot be
            filled in; a function that raises in every call.

    Example:
        >>> from attn_lib.positions import apply_rope
        >>> diagnose_rope(apply_rope, layout="BHTd").ok
        True
        >>> diagnose_rope(lambda x, positions: apply_rope(x, -positions)).mistakes
        ['rope_direction']

    Source: Su et al. (2021), "RoFormer", section 3.4.
    """
    if isinstance(fn, type) or not callable(fn):
        raise TypeError(f"fn must be a function or an instance, got {fn!r}")
    given = {"rope_pairing": (rope_pairing, PAIRINGS), "layout": (layout, ROPE_LAYOUTS)}
    for name, (value, known) in given.items():
        if value is not None and value not in known:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}; got {value!r}")
    if d_k is not None and (d_k < 2 or d_k % 2):
        raise ValueError(f"d_k must be even, and 2 or more; got {d_k}")
    pairings = [rope_pairing] if rope_pairing else PAIRINGS
    intents = [Intent(rope_base=rope_base, rope_pairing=pairing) for pairing in pairings]
    with quietly():
        ways = answered_ways(fn, intents[0], layout, d_k)
        way, mistakes = _explained([replace(way, intent=i) for way in ways for i in intents])
        failures = [_unexplained(way)] if mistakes is None else mistakes
    report, pairing = way.found, way.intent.rope_pairing
    report.subject = getattr(fn, "__name__", type(fn).__name__)
    if not failures:
        first = ", each the first of a copy" if report.failures else ""
        names = ", ".join(case.name for case, _ in way.answers)
        report.holds.append(f"equal to the reference in {len(way.answers)} calls{first}: {names}")
    report.failures += failures
    if not way.roles.keys() - {"k"}:
        report.unchecked.append("shifted positions: fn takes none")
    facts = {
        f"the pairing is {pairing!r}: {PAIRINGS[pairing]}": rope_pairing is None,
        f"the layout is {way.layout!r}": layout is None,
        f"the width is fixed: d_k = {way.width}": d_k != way.width,
    }
    if way.table:
        facts[f"tables of shape ({', '.join([*way.table[:-1], ENDS[way.table[-1]][0]])}"] = True
    doubt = " (others explain the answers no better)" if mistakes is None else ""
    report.assumed = [fact + doubt for fact, found_out in facts.items() if found_out]
    return report


def assert_rope(fn: Callable, **adapter: Any) -> None:
    """Fail with a report where a rotation of queries and keys is wrong: one line of a test.

    Args:
        fn: as in :func:`diagnose_rope`.
        **adapter: as in :func:`diagnose_rope`.

    Raises:
        AssertionError: the report, where a mistake was found.

    Example:
        >>> from attn_lib.positions import apply_rope
        >>> assert_rope(apply_rope)

    Source: :func:`diagnose_rope`.
    """
    __tracebackhide__ = True
    report = diagnose_rope(fn, **adapter)
    if not report.ok:
        raise AssertionError(str(report))


# ---------------------------------------------------------------- what may be wrong


def _explained(ways: list[Way]) -> tuple[Way, list[Failure] | None]:
    """The way of calling, and the fewest mistakes, at most two, that give all its answers."""
    for n, way in product(range(3), ways):
        for some in combinations(_guesses(way), n):
            steps = [step for _, change in some for step in change]
            if len(steps) == len(set(steps)) and not any(way.wrong(some)):
                return way, [_shown(way, guess, some) for guess in some]
    return ways[0], None


def _shown(way: Way, guess: Guess, together: Sequence[Guess]) -> Failure:
    """With an example of a call that the other mistakes do not explain."""
    cases = {case for case, *_ in way.wrong([other for other in together if other is not guess])}
    examples = (way.example(*answer) for answer in way.wrong() if answer[0] in cases)
    return replace(guess[0], example=next(examples, ""))


def _guesses(way: Way) -> list[Guess]:
    """The known mistakes, and those that the answers lead to."""
    meant = PAIRINGS[way.intent.rope_pairing]
    (other,) = set(PAIRINGS.values()) - {meant}
    name = "the positions are one higher than meant"
    text = "The numbers are those of positions 1, 2, ... where 0, 1, ... are meant."
    one_higher = Failure(None, name, text, repair="positions = torch.arange(T)")
    guesses: list[Guess] = [(one_higher, {"shift": lambda run: (1, 1)})]
    for mistake, forms, likely in _TRIED if way.table else _TRIED + _MIXED:
        failure = _failure(mistake, likely.format(meant=meant, other=other))
        if mistake == "rope_over_heads" and way.layout in ("BHTd", "BTHd"):
            layout = "BTHd" if way.layout == "BHTd" else "BHTd"
            hint = f"or pass layout={layout!r}, if that is the order of the axes."
            failure = replace(failure, repair=f"Transpose first; {hint}")
        change = {name: step for form in forms for name, step in FORMS[mistake][form].items()}
        guesses.append((failure, change))
    return guesses + list(_other_bases(way))


def _failure(mistake: str, likely: str) -> Failure:
    row = MISTAKES[mistake]
    words = (row.name, likely or row.likely, row.look_for, row.repair, "", row.source)
    return Failure(mistake, *words)


def _other_bases(way: Way) -> Iterator[Guess]:
    """Those that the angle of the second pair at position 1 leads to."""
    case, outs = way.answers[0]
    x, y, meant = case.tensors["q"], outs["q"], way.intent.rope_base or 1.0
    if x.shape != y.shape or x.shape[-1] < 4:
        return
    for pairing, times in product(PAIRINGS, (1, 2)):
        angle = abs(_turns(x, y, pairing)[0, 0, 1, 1].angle().item()) / times
        exact = max(angle, 1e-9) ** (-x.shape[-1] / 2.0)
        near = float(f"{exact:.2g}")
        base = near if abs(exact - near) < 2e-3 * near else float(f"{exact:.4g}")
        likely = f"The numbers are those of base {base:.6g}, where {meant:.6g} is meant."
        if abs(base - meant**0.5) < 1e-3 * base:
            likely += " The exponent i / d instead of 2 i / d gives the same."
        if 1.0 < base <= 1e9:
            failure = _failure("rope_base", likely)
            repair = f"{failure.repair}; or pass rope_base={base:.6g}, if that is meant"
            step: Step = partial(lambda base, run: base, base)
            yield replace(failure, repair=repair), {"base": step}


def _turns(x: Tensor, y: Tensor, pairing: str) -> Tensor:
    """The complex number that each pair of channels is multiplied by."""
    if pairing == "half":
        x, y = (z.unflatten(-1, (2, -1)).mT.flatten(-2) for z in (x, y))
    before, after = (torch.view_as_complex(z.unflatten(-1, (-1, 2))) for z in (x, y))
    return after / before


# ---------------------------------------------------------------- what nothing explains


def _unexplained(way: Way) -> Failure:
    text = "No known mistake, and no two of them, gives these numbers."
    title, wrong = "the rotation is not RoPE's", list(way.wrong())
    for _, name, y, x in wrong:
        if y.shape != x.shape:
            text += f" The output {name} has the shape {tuple(y.shape)}, not {tuple(x.shape)}."
            return Failure(None, title, text)
    longer = max((y.norm(dim=-1) / x.norm(dim=-1) - 1.0).abs().max() for *_, y, x in wrong)
    moved = [(y - x)[..., 0, :].abs().max() for case, _, y, x in wrong if not case.start]
    at_0 = max(moved, default=0.0)
    bad = list(dict.fromkeys(case.name for case, *_ in wrong))
    right = [case.name for case, _ in way.answers if case.name not in bad]
    names = {name for _, name, *_ in wrong}
    facts = {
        "Outputs are NaN or infinite.": not all(y.isfinite().all() for *_, y, _ in wrong),
        f"The length of a row changes by up to {100 * longer:.3g} %.": longer > 1e-4,
        f"Position 0 is changed, by up to {at_0:.3g}: its angle should be 0.": at_0 > 1e-4,
        f"Right: {'; '.join(right)}. Wrong: {'; '.join(bad)}.": right,
        f"Only {min(names)} is wrong.": len(names) == 1 and "k" in way.roles,
        _angles(way, *wrong[0]): True,
    }
    texts = [text, *(fact for fact, holds in facts.items() if fact and holds)]
    title = "the output is not a rotation" if longer > 1e-4 else title
    return Failure(None, title, " ".join(texts), example=way.example(*wrong[0]))


def _angles(way: Way, case: Case, name: str, actual: Tensor, expected: Tensor) -> str:
    """By which angles the pairs turn, where that is so; or which channels are not changed."""
    x, call = case.tensors[name], f"In the call with {case.name}"
    off = (actual - expected).abs().amax(dim=(0, 1, 3)) > allowed(case, expected)
    at, pairings = int(off.int().argmax()), [way.intent.rope_pairing, *PAIRINGS]
    meant = _turns(x, expected, pairings[0])
    for pairing in pairings:
        turns = _turns(x, actual, pairing)
        apart = (turns[..., at, :] - turns[:1, :1, at]).abs().max()
        if apart < 1e-3 and (turns.abs() - 1.0).abs().max() < 1e-4:
            rows = [z[0, 0, at].angle().round(decimals=12) + 0.0 for z in (turns, meant)]
            angles = ", where ".join(numbers(row)[1:-1] for row in rows)
            return (
                f"{call}, pairs of {PAIRINGS[pairing]} of {name} turn at position "
                f"{case.start + at} by the angles {angles} are meant (up to whole turns)."
            )
    same = ((actual - x).abs().amax(dim=(0, 1, 2)) < 1e-5).nonzero().flatten().tolist()
    return f"{call}, channels {str(same)[1:-1]} of {name} are not changed." if same else ""
