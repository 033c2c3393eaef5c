"""``diagnose_rope``: for functions that rotate queries and keys."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attn_check.calls import quietly
from attn_check.mistakes import FORMS, MISTAKES
from attn_check.reference import Case, Change, Intent
from attn_check.report import Failure, Report, numbers
from attn_check.rope_calls import ENDS, PAIRINGS, ROPE_LAYOUTS, Guess, Way, answered_ways


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
    _check("rope_pairing", rope_pairing, (*PAIRINGS, None))
    _check("layout", layout, (*ROPE_LAYOUTS, None))
    if d_k is not None and (d_k < 2 or d_k % 2):
        raise ValueError(f"d_k must be even, and 2 or more; got {d_k}")
    pairings = [rope_pairing] if rope_pairing else PAIRINGS
    intents = [Intent(rope_base=rope_base, rope_pairing=pairing) for pairing in pairings]
    with quietly():
        ways = answered_ways(fn, intents[0], layout, d_k)
        way, mistakes = _explained([replace(way, intent=i) for way in ways for i in intents])
        failures = [_unexplained(way)] if mistakes is None else mistakes
    found, pairing, holds = way.found, way.intent.rope_pairing, []
    if not failures:
        first = ", each the first of a copy" if found.failures else ""
        names = ", ".join(case.name for case, _ in way.answers)
        holds = [f"equal to the reference in {len(way.answers)} calls{first}: {names}"]
    unshifted = [] if way.roles.keys() - {"k"} else ["shifted positions: fn takes none"]
    table = ", ".join([*way.table[:-1], ENDS.get(way.table[-1:], "")])
    facts = {
        f"the pairing is {pairing!r}: {PAIRINGS[pairing]}": rope_pairing is None,
        f"the layout is {way.layout!r}": layout is None,
        f"the width is fixed: d_k = {way.width}": d_k != way.width,
        f"tables of shape ({table}": way.table,
    }
    doubt = " (others explain the answers no better)" if mistakes is None else ""
    assumed = [fact + doubt for fact, found_out in facts.items() if found_out]
    name = getattr(fn, "__name__", type(fn).__name__)
    return Report(name, found.failures + failures, [], holds, found.unchecked + unshifted, assumed)


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


def _check(name: str, value: str | None, known: tuple[str | None, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}; got {value!r}")


def _explained(ways: list[Way]) -> tuple[Way, list[Failure] | None]:
    """The way of calling, and the fewest mistakes, at most two, that give all its answers."""
    for n in range(3):
        for way in ways:
            for some in itertools.combinations(_guesses(way), n):
                steps = [step for _, change in some for step in change]
                if len(steps) == len(set(steps)) and not any(way.wrong(some)):
                    return way, [_shown(way, guess, some) for guess in some]
    return ways[0], None


def _shown(way: Way, guess: Guess, together: Sequence[Guess]) -> Failure:
    """With an example of a call that the other mistakes do not explain."""
    others = [other for other in together if other is not guess]
    cases = {case for case, *_ in way.wrong(others)}
    wrong = [answer for answer in way.wrong() if answer[0] in cases]
    return replace(guess[0], example=_example(*wrong[0]) if wrong else "")


def _example(case: Case, name: str, actual: Tensor, expected: Tensor) -> str:
    gap = (actual - expected).abs().nan_to_num(float("inf"))
    b, h, t, c = (int(i) for i in torch.unravel_index(gap.argmax(), gap.shape))
    low = max(min(c, gap.shape[-1] - 4), 0)
    high = min(low + 4, gap.shape[-1])
    return (
        f"{case.name}; {name}, example {b}, head {h}, position {case.start + t}, channels "
        f"{low} to {high - 1} (all counted from 0); channel {c} differs most:\n"
        f"actual    {numbers(actual[b, h, t, low:high], 5)}\n"
        f"expected  {numbers(expected[b, h, t, low:high], 5)}"
    )


def _guess(mistake: str, form: int = 0, **words: Any) -> Guess:
    row = MISTAKES[mistake]
    failure = Failure(mistake, row.name, row.likely, row.look_for, row.repair, "", row.source)
    return replace(failure, **words), FORMS[mistake][form]


def _guesses(way: Way) -> list[Guess]:
    """Those that take queries and keys alike come first: they alone are right without keys."""
    meant = PAIRINGS[way.intent.rope_pairing]
    layout = {"BHTd": "BTHd", "BTHd": "BHTd"}.get(way.layout)
    (turned,) = set(PAIRINGS.values()) - {meant}
    pairing = _guess("rope_pairing", likely=f"RoPE turns {turned}, where {meant} are meant.")
    hint = f"; or pass layout={layout!r}, if that is the order of the axes." if layout else "."
    restart = "The numbers are those of positions 0, 1, ... where 5, 6, ... are passed."
    one_higher = Failure(
        None,
        "the positions are one higher than meant",
        "The numbers are those of positions 1, 2, ... where 0, 1, ... are meant.",
        repair="positions = torch.arange(T)",
    )
    direction = "RoPE turns {}in the other direction.".format
    guesses = [
        pairing,
        _guess("rope_direction", 0, likely=direction("")),
        _guess("rope_positions_restart", 1, likely=restart),
        _guess("rope_missing"),
        _guess("rope_twice"),
        _guess("rope_over_heads", repair=f"Transpose first{hint}"),
        (one_higher, {"shift": lambda run: (1, 1)}),
        _guess("rope_direction", 1, likely=direction("the keys, not the queries, ")),
        _guess("rope_direction", 2, likely=direction("the queries, not the keys, ")),
        _guess("rope_only_queries"),
        _guess("rope_only_keys"),
        _guess("rope_positions_restart", 0),
        _guess("rope_keys_off_by_one", 0),
        _guess("rope_keys_off_by_one", 1),
    ]
    if not way.table:
        guesses += [_mixed(turned, meant, {}), _mixed(meant, turned, pairing[1])]
    bases = _bases(*way.answers[0])
    return guesses + [_of_base(way.intent.rope_base or 1.0, base) for base in bases]


def _mixed(angles: str, channels: str, pairing: Change) -> Guess:
    failure, change = _guess(
        "rope_pairing",
        1,
        name="the rotation is none: angles of one pairing, channels of another",
        likely=f"cos and sin are in the order of {angles}, but the channels are combined as "
        f"{channels}: the two channels of a pair get different angles, so that the lengths of "
        "rows change.",
        repair="torch.cat([angles, angles], dim=-1) with rotate_half, or "
        "angles.repeat_interleave(2, dim=-1) with x[..., ::2] and x[..., 1::2]",
    )
    return failure, {**pairing, **change}


def _of_base(meant: float, base: float) -> Guess:
    likely = f"The numbers are those of base {base:.6g}, where {meant:.6g} is meant."
    if abs(base - meant**0.5) < 1e-3 * base:
        likely += " The exponent i / d instead of 2 i / d gives the same."
    repair = f"position / base ** (2 i / d_k); or pass rope_base={base:.6g}, if that is meant"
    return _guess("rope_base", likely=likely, repair=repair)[0], {"base": lambda run: base}


def _bases(case: Case, outs: dict[str, Tensor]) -> Iterator[float]:
    """Those that the angle of the second pair at position 1 leads to."""
    x, y = case.tensors["q"], outs["q"]
    for pairing, times in itertools.product(PAIRINGS, (1, 2)):
        if x.shape == y.shape and x.shape[-1] > 2:
            angle = abs(_turns(x, y, pairing)[0, 0, 1, 1].angle().item()) / times
            exact = max(angle, 1e-9) ** (-x.shape[-1] / 2.0)
            near = float(f"{exact:.2g}")
            base = near if abs(exact - near) < 2e-3 * near else float(f"{exact:.4g}")
            if 1.0 < base <= 1e9:
                yield base


def _turns(x: Tensor, y: Tensor, pairing: str) -> Tensor:
    """The complex number that each pair of channels is multiplied by."""
    if pairing == "half":
        x, y = (z.unflatten(-1, (2, -1)).mT.flatten(-2) for z in (x, y))
    before, after = (torch.view_as_complex(z.unflatten(-1, (-1, 2))) for z in (x, y))
    return after / before


def _unexplained(way: Way) -> Failure:
    title = "the rotation is not RoPE's"
    text = "No known mistake, and no two of them, gives these numbers."
    wrong = list(way.wrong())
    for _, name, y, x in wrong:
        if y.shape != x.shape:
            text += f" The output {name} has the shape {tuple(y.shape)}, not {tuple(x.shape)}."
            return Failure(None, title, text)
    longer = max((y.norm(dim=-1) / x.norm(dim=-1) - 1.0).abs().max() for *_, y, x in wrong)
    moved = [(y - x)[..., 0, :].abs().max() for case, _, y, x in wrong if not case.start]
    bad = list(dict.fromkeys(case.name for case, *_ in wrong))
    right = [case.name for case, _ in way.answers if case.name not in bad]
    names = {name for _, name, *_ in wrong}
    at_0 = max(moved, default=0.0)
    facts = {
        "Outputs are NaN or infinite.": not all(y.isfinite().all() for *_, y, _ in wrong),
        f"The length of a row changes by up to {100 * longer:.3g} %.": longer > 1e-4,
        f"Position 0 is changed, by up to {at_0:.3g}: its angle should be 0.": at_0 > 1e-4,
        f"Right: {'; '.join(right)}. Wrong: {'; '.join(bad)}.": right,
        f"Only {min(names)} is wrong.": len(names) == 1 and "k" in way.roles,
        _angles(way, *wrong[0]): True,
    }
    texts = [fact for fact, holds in facts.items() if fact and holds]
    texts = texts or ["Position 0 and the lengths of rows stay as they are."]
    title = "the output is not a rotation" if longer > 1e-4 else title
    return Failure(None, title, " ".join([text, *texts]), example=_example(*wrong[0]))


def _angles(way: Way, case: Case, name: str, actual: Tensor, expected: Tensor) -> str:
    """By which angles the pairs turn, where that is so; or which channels are not changed."""
    x, call = case.tensors[name], f"In the call with {case.name}"
    at = int(((actual - expected).abs().amax(dim=(0, 1, 3)) > 2e-4).int().argmax())
    meant = _turns(x, expected, way.intent.rope_pairing)
    for pairing in sorted(PAIRINGS, key=lambda pairing: pairing != way.intent.rope_pairing):
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
