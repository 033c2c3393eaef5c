"""``diagnose_rope``: for functions that rotate queries and keys."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from attn_check.mistakes import MISTAKES
from attn_check.quiet import quietly
from attn_check.reference import Change, Intent, NotMeant, compute
from attn_check.report import Failure, Findings, Report, largest
from attn_check.rope_calls import PAIRINGS, ROPE_LAYOUTS, WORDS, RopeAnswer, Rotator, Trial
from attn_check.rope_guesses import Guess, guesses_of

_TOLERANCE = 2e-4


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
        >>> def mine(x, positions):  # the other way round
        ...     return apply_rope(x, -positions)
        >>> report = diagnose_rope(mine)
        >>> report.mistakes
        ['rope_direction']
        >>> print(report.failures[0].repair)
        x * cos + rotate_half(x) * sin with rotate_half = cat(-second, first)

    Source: Su et al. (2021), "RoFormer", section 3.4.
    """
    _check(fn, rope_pairing, layout, d_k)
    with quietly():
        rotator = Rotator(fn, rope_base, layout, d_k)
        pairings = PAIRINGS if rope_pairing is None else (rope_pairing,)
        intents = [Intent(rope_base=rope_base, rope_pairing=pairing) for pairing in pairings]
        trial, intent, guesses = _explained(rotator.trials(), intents, rotator)
        found = _findings(trial, intent, rotator, rope_pairing)
        if guesses is None:
            found.assumed[:] = [
                f"{text} (others explain the answers no better)" for text in found.assumed
            ]
            _unexplained(trial, intent, found)
        elif guesses:
            _name(trial, intent, guesses, found)
        else:
            names = ", ".join(a.call.name for a in trial.answers)
            first = ", each the first of a copy" if found.failures else ""
            calls = f"{len(trial.answers)} calls{first}: {names}"
            found.holds.append(f"equal to the reference in {calls}")
    name = getattr(fn, "__name__", type(fn).__name__)
    return Report(name, found.failures, found.notes, found.holds, found.unchecked, found.assumed)


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


def _check(fn: Callable, pairing: str | None, layout: str | None, d_k: int | None) -> None:
    if isinstance(fn, type) or not callable(fn):
        raise TypeError(f"fn must be a function or an instance, got {fn!r}")
    for name, value, known in (
        ("rope_pairing", pairing, (*PAIRINGS, None)),
        ("layout", layout, (*ROPE_LAYOUTS, None)),
    ):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}; got {value!r}")
    if d_k is not None and (d_k < 2 or d_k % 2):
        raise ValueError(f"d_k must be even, and 2 or more; got {d_k}")


def _findings(trial: Trial, intent: Intent, rotator: Rotator, pairing: str | None) -> Findings:
    found, way = trial.found, trial.way
    if pairing is None:
        meant = intent.rope_pairing
        found.assumed.append(f"the pairing is {meant!r}: {WORDS[meant]}")
    if rotator.layout is None:
        found.assumed.append(f"the layout is {way.layout!r}")
    if rotator.width is None and way.width is not None:
        found.assumed.append(f"the width is fixed: d_k = {way.width}")
    if way.table:
        shape = {"c": "d", "r": "d", "h": "d/2"}[way.table[-1]]
        axes = ", ".join([*way.table.rstrip("dcrh"), shape])
        twice = {"c": ", the angles twice one after the other", "r": ", each angle twice"}
        found.assumed.append(f"tables of shape ({axes}){twice.get(way.table[-1], '')}")
    found.unchecked += trial.raised
    if not rotator.takes_positions:
        found.unchecked.append("shifted positions: fn takes none")
    return found


def _explained(
    trials: list[Trial], intents: list[Intent], rotator: Rotator
) -> tuple[Trial, Intent, list[Guess] | None]:
    """The way, the intent and the fewest mistakes that give all answers."""
    with_tables = bool(rotator.roles.keys() & {"cos", "cis"})
    tries = [(t, i, guesses_of(t, i, with_tables)) for t, i in itertools.product(trials, intents)]
    for n in range(3):
        for trial, intent, guesses in tries:
            sets = itertools.combinations(guesses, n)
            fitting = [list(some) for some in sets if _fits(trial, intent, some)]
            if fitting:  # a row of the table before a sentence
                known = [some for some in fitting if n == 1 and some[0].mistake]
                return trial, intent, (known or fitting)[0]
    return trials[0], intents[0], None


def _fits(trial: Trial, intent: Intent, guesses: Sequence[Guess]) -> bool:
    """Whether these mistakes together give every answer."""
    change = {step: way for guess in guesses for step, way in guess.change.items()}
    if len(change) < sum(len(guess.change) for guess in guesses):
        return False  # two of the same step
    return all(not _wrong_in(answer, intent, change) for answer in trial.answers)


def _wrong_in(
    answer: RopeAnswer, intent: Intent, change: Change | None = None
) -> list[tuple[str, Tensor, Tensor]]:
    """Name, actual and expected of each tensor that differs."""
    try:
        run = compute(answer.call, intent, None, change)
    except NotMeant:
        return [(name, x, answer.call.tensors[name]) for name, x in answer.outs.items()]
    pairs = [(name, x, getattr(run, name)) for name, x in answer.outs.items()]
    return [
        (name, actual, expected)
        for name, actual, expected in pairs
        if actual.shape != expected.shape or not torch.allclose(actual, expected, atol=_TOLERANCE)
    ]


def _name(trial: Trial, intent: Intent, guesses: list[Guess], found: Findings) -> None:
    for i, guess in enumerate(guesses):
        rest = guesses[:i] + guesses[i + 1 :]
        others = {step: way for other in rest for step, way in other.change.items()}
        example = _example(trial, intent, others)
        if guess.mistake is None:
            found.failures.append(
                Failure(None, guess.name, guess.likely, repair=guess.repair, example=example)
            )
            continue
        row = MISTAKES[guess.mistake]
        likely = guess.likely or row.likely
        if guess.mistake == "rope_pairing" and not guess.likely:
            (turned,) = (WORDS[p] for p in PAIRINGS if p != intent.rope_pairing)
            likely = f"RoPE turns {turned}, where {WORDS[intent.rope_pairing]} are meant."
        name, repair = guess.name or row.name, guess.repair or row.repair
        found.failures.append(
            Failure(guess.mistake, name, likely, row.look_for, repair, example, row.source)
        )


def _unexplained(trial: Trial, intent: Intent, found: Findings) -> None:
    texts = _broken(trial, intent)
    none = any("length of a row" in text for text in texts)
    found.property(
        "the output is not a rotation" if none else "the rotation is not RoPE's",
        " ".join(["No known mistake, and no two of them, gives these numbers.", *texts]),
        _example(trial, intent),
    )


def _example(trial: Trial, intent: Intent, others: Change | None = None) -> str:
    """The entry that differs most, in the first call that differs, and three beside it.

    It is a call that the other mistakes alone do not explain.
    """
    for answer in trial.answers:
        if others is not None and not _wrong_in(answer, intent, others):
            continue
        for name, actual, expected in _wrong_in(answer, intent):
            if actual.shape != expected.shape:
                return (
                    f"{name} has the shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
                )
            differs = (actual - expected).abs().nan_to_num(float("inf"))
            b, h, t, c = torch.unravel_index(differs.argmax(), differs.shape)
            low = min(int(c), actual.shape[-1] - min(4, actual.shape[-1]))
            position = int(answer.positions[t])
            rows = [
                "[" + ", ".join(f"{v:.5g}" for v in x[b, h, t, low : low + 4].tolist()) + "]"
                for x in (actual, expected)
            ]
            return (
                f"{answer.call.name}; {name}, example {int(b)}, head {int(h)}, position "
                f"{position}, channels {low} to {min(low + 4, actual.shape[-1]) - 1} (all counted "
                f"from 0); channel {int(c)} differs most:\n"
                f"actual    {rows[0]}\nexpected  {rows[1]}"
            )
    return ""


def _broken(trial: Trial, intent: Intent) -> list[str]:
    """Properties of every rotation that do not hold, each with its number."""
    texts, lengths, zero, odd = [], 0.0, 0.0, False
    for answer in trial.answers:
        for name, y in answer.outs.items():
            x = answer.call.tensors[name]
            if y.shape != x.shape:
                return [f"The output {name} has the shape {tuple(y.shape)}, not {tuple(x.shape)}."]
            odd = odd or not bool(y.isfinite().all())
            lengths = max(lengths, (y.norm(dim=-1) / x.norm(dim=-1) - 1.0).abs().max().item())
            start = answer.positions == 0
            if bool(start.any()):
                zero = max(zero, largest(y[..., start, :], x[..., start, :]))
    if odd:
        return ["Outputs are NaN or infinite."]
    if lengths > 1e-4:
        texts.append(f"The length of a row changes by up to {100 * lengths:.3g} %.")
    if zero > 1e-4:
        texts.append(f"Position 0 is changed, by up to {zero:.3g}: its angle should be 0.")
    wrong = {a.call.name: _wrong_in(a, intent) for a in trial.answers}
    right = [name for name, tensors in wrong.items() if not tensors]
    if right:
        bad = [name for name in wrong if name not in right]
        texts.append(f"Right: {'; '.join(right)}. Wrong: {'; '.join(bad)}.")
    tensors = {name for found in wrong.values() for name, _, _ in found}
    if len(tensors) == 1 and any("k" in a.outs for a in trial.answers):
        texts.append(f"Only {tensors.pop()} is wrong.")
    found = [*texts, *_angles(trial, intent, lengths <= 1e-4)]
    return found or ["Position 0 and the lengths of rows stay as they are."]


def _angles(trial: Trial, intent: Intent, rotates: bool) -> list[str]:
    """By which angles the pairs turn, where that is so; or which channels are not changed."""
    answer = next(a for a in trial.answers if _wrong_in(a, intent))
    name, actual, expected = _wrong_in(answer, intent)[0]
    x = answer.call.tensors[name]
    far = (actual - expected).abs().amax(dim=(0, 1, 3)) > _TOLERANCE
    at, d = int(far.int().argmax()), x.shape[-1]
    for pairing in (intent.rope_pairing, *PAIRINGS) if rotates else ():
        angles = _by_pairs(x, actual, pairing)
        if angles is None or largest(angles[..., at, :], angles[:1, :1, at]) > 1e-3:
            continue
        position = int(answer.positions[at])
        meant = position / (intent.rope_base or 1.0) ** (torch.arange(0, d, 2).double() / d)
        meant = torch.polar(torch.ones_like(meant), meant).angle()
        shown = [", ".join(f"{v:.4g}" for v in a[:4].tolist()) for a in (angles[0, 0, at], meant)]
        return [
            f"In the call with {answer.call.name}, pairs of {WORDS[pairing]} of {name} turn at "
            f"position {position} by the angles {shown[0]}, where {shown[1]} are meant (up to "
            "whole turns)."
        ]
    same = [i for i in range(d) if largest(actual[..., i], x[..., i]) < 1e-5]
    channels = ", ".join(map(str, same))
    return [
        f"In the call with {answer.call.name}, channels {channels} of {name} are not changed."
    ] * bool(same)


def _by_pairs(x: Tensor, y: Tensor, pairing: str) -> Tensor | None:
    """Angles by which pairs of channels turn, or None where their lengths change."""
    pairs = [
        v.unflatten(-1, (2, -1)).mT if pairing == "half" else v.unflatten(-1, (-1, 2))
        for v in (x, y)
    ]
    before, after = (torch.view_as_complex(v.contiguous()) for v in pairs)
    return None if largest(before.abs(), after.abs()) > 1e-4 else (after / before).angle()
