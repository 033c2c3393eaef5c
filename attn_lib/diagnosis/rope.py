"""``diagnose_rope``: for functions that rotate queries and keys."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attn_lib.diagnosis.formula import Case, Intent, Run, rotate
from attn_lib.diagnosis.layouts import to_layout
from attn_lib.diagnosis.mistakes import MISTAKES
from attn_lib.diagnosis.properties import Findings, largest, numbers
from attn_lib.diagnosis.quiet import quietly
from attn_lib.diagnosis.report import Failure, Report
from attn_lib.diagnosis.subject import quoted
from attn_lib.diagnosis.wrong_scores import Change

_PAIRINGS = ("half", "neighbours")
_LAYOUTS = ("BHTd", "BTHd", "TBHd", "BTd", "Td")
_POSITIONS = {"positions", "position", "pos", "position_ids", "p", "t", "input_pos", "idx"}
_START = {"start", "offset", "start_pos", "seqlen_offset", "position_offset"}


@dataclass(frozen=True)
class _Call:
    """One call: q and k are (B, H, T, d), the positions (T,)."""

    name: str
    q: Tensor
    k: Tensor
    positions: Tensor


def diagnose_rope(
    fn: Callable,
    *,
    base: float = 10_000.0,
    pairing: str | None = "half",
    layout: str = "BHTd",
) -> Report:
    """Say in words what is wrong with a function that rotates queries and keys.

    Args:
        fn: ``fn(q, k, positions)`` that returns both, or ``fn(x, positions)`` that returns one;
            positions (T,) may be left out, and are then 0 to T − 1.
        base: ratio of the slowest to the fastest rotation that is meant.
        pairing: ``"half"``, channels i and i + d/2, or ``"neighbours"``, 2i and 2i + 1; None: the
            one that fits.
        layout: the axes of q and k: ``"BHTd"``, ``"BTHd"``, ``"TBHd"``, ``"BTd"`` or ``"Td"``.

    Returns:
        A :class:`Report`.

    Raises:
        TypeError: a class instead of an instance, or something that cannot be called.
        ValueError: an unknown pairing or layout; a function that raises in every call.

    Example:
        >>> from attn_lib.positions import apply_rope
        >>> diagnose_rope(apply_rope).ok
        True
        >>> diagnose_rope(lambda x, positions: apply_rope(x, -positions)).mistakes
        ['rope_direction']

    Source: Su et al. (2021), "RoFormer", section 3.4.
    """
    if isinstance(fn, type) or not callable(fn):
        raise TypeError(f"fn must be a function or an instance, got {fn!r}")
    for name, value, known in (
        ("pairing", pairing, (*_PAIRINGS, None)),
        ("layout", layout, _LAYOUTS),
    ):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}; got {value!r}")
    found = Findings()
    with quietly():
        answers = _answers(fn, layout, found)
        pairings = _PAIRINGS if pairing is None else (pairing,)
        intents = [Intent(rope_base=base, rope_pairing=p) for p in pairings]
        fitting = [i for i in intents if _fits(answers, i, {})]
        if fitting:
            found.holds.append(f"equal to the reference in {len(answers)} calls")
            if pairing is None:
                found.assumed.append(f"the pairing is {fitting[0].rope_pairing!r}")
        else:
            _explain(answers, intents, found)
    name = getattr(fn, "__name__", type(fn).__name__)
    return Report(name, found.failures, found.notes, found.holds, found.unchecked, found.assumed)


def _answers(
    fn: Callable, layout: str, found: Findings
) -> list[tuple[_Call, Tensor, Tensor | None]]:
    random = torch.Generator().manual_seed(5)
    takes = _takes(fn)
    calls = []
    B, H = (2 if "B" in layout else 1), (3 if "H" in layout else 1)
    for name, T, start, d in (
        ("4 positions", 4, 0, 8),
        ("3 positions, as many as heads", 3, 0, 4),
        ("70 positions", 70, 0, 8),
        ("positions from 5 on", 4, 5, 8),
    ):
        if start and "positions" not in takes and "start" not in takes:
            found.unchecked.append("shifted positions: fn takes none")
            continue
        q, k = (torch.randn((B, H, T, d), generator=random, dtype=torch.float64) for _ in "qk")
        calls.append(_Call(name, q, k, torch.arange(start, start + T)))
    answers = []
    for call in calls:
        try:
            q_out, k_out = _ask(fn, call, layout, takes, found)
            answers.append((call, q_out, k_out))
        except Exception as error:  # whatever it raises is an answer
            found.unchecked.append(f"{call.name}: {quoted(error)}")
    if not answers:
        raise ValueError(f"every call of fn raises; the first: {found.unchecked[0]}")
    return answers


def _takes(fn: Callable) -> dict[str, str]:
    """Roles of the parameters to their names."""
    try:
        called = fn.forward if isinstance(fn, nn.Module) else fn
        names = list(inspect.signature(called).parameters)
    except (TypeError, ValueError):
        return {"positions": ""}
    takes = {}
    for name in names[1:]:
        plain = name.lower().strip("_")
        if plain in {"k", "key", "keys", "xk"}:
            takes["k"] = name
        elif plain in _POSITIONS:
            takes["positions"] = name
        elif plain in _START:
            takes["start"] = name
    return takes


def _ask(
    fn: Callable, call: _Call, layout: str, takes: dict[str, str], found: Findings
) -> tuple[Tensor, Tensor | None]:
    inputs = [to_layout(x.float(), layout, False, 1) for x in (call.q, call.k)]
    inputs = inputs if "k" in takes else inputs[:1]
    before = [x.clone() for x in inputs]
    options: dict[str, Any] = {}
    if takes.get("positions"):
        options[takes["positions"]] = call.positions.clone()
    elif "start" in takes:
        options[takes["start"]] = int(call.positions[0])
    extra = [call.positions.clone()] if takes.get("positions") == "" else []
    result = fn(*inputs, *extra, **options)
    for x, old in zip(inputs, before, strict=True):
        if not torch.equal(x, old):
            found.known("inplace_arguments", f"before: {numbers(old)}; after: {numbers(x)}.")
    outs = list(result) if isinstance(result, tuple | list) else [result]
    outs = [_canonical(x, layout) for x in outs[:2]]
    return outs[0], outs[1] if len(outs) > 1 and len(inputs) > 1 else None


def _canonical(x: Tensor, layout: str) -> Tensor:
    letters = layout
    for letter in "HB":
        if letter not in letters:
            x, letters = x[None], letter + letters
    return x.detach().double().permute([letters.index(letter) for letter in "BHTd"])


def _run(call: _Call, intent: Intent, change: Change) -> tuple[Tensor, Tensor]:
    case = Case(call.name, {"q": call.q, "k": call.k, "v": call.k}, heads=call.q.shape[1])
    run = Run(case, intent, None, q=call.q, k=call.k, v=call.k)
    run.positions = (call.positions, call.positions)
    change.get("rotate", rotate)(run)
    return run.q, run.k


def _fits(
    answers: list[tuple[_Call, Tensor, Tensor | None]], intent: Intent, change: Change
) -> bool:
    return all(_equal(*_run(call, intent, change), q, k) for call, q, k in answers)


def _equal(q: Tensor, k: Tensor, q_out: Tensor, k_out: Tensor | None) -> bool:
    pairs = [(q, q_out)] if k_out is None else [(q, q_out), (k, k_out)]
    return all(a.shape == b.shape and torch.allclose(a, b, atol=2e-4) for a, b in pairs)


def _explain(
    answers: list[tuple[_Call, Tensor, Tensor | None]], intents: list[Intent], found: Findings
) -> None:
    for intent in intents:
        names = []
        for mistake in MISTAKES.values():
            for change in mistake.variants:
                if change.keys() == {"rotate"} and mistake.id.startswith("rope_"):
                    try:
                        fits = _fits(answers, intent, change)
                    except (ValueError, RuntimeError):
                        continue
                    if fits and mistake.id not in names:
                        names.append(mistake.id)
        if names:
            found.known(names[0], _example(answers, intent), alike=tuple(names[1:]))
            return
    found.failures.append(
        Failure(
            None,
            "the rotation is not RoPE's",
            "No known mistake gives these numbers. " + " ".join(_broken(answers, intents[0])),
            example=_example(answers, intents[0]),
        )
    )


def _example(answers: list[tuple[_Call, Tensor, Tensor | None]], intent: Intent) -> str:
    for call, q, k in answers:
        expected = _run(call, intent, {})
        for name, mine, theirs in (("q", q, expected[0]), ("k", k, expected[1])):
            if mine is None:
                continue
            if mine.shape != theirs.shape:
                return f"{name} has the shape {tuple(mine.shape)}, expected {tuple(theirs.shape)}"
            if not torch.allclose(mine, theirs, atol=2e-4):
                rows = (mine - theirs).abs().amax(dim=(0, 1, 3))
                at = int((rows > 2e-4).int().argmax())
                return (
                    f"{call.name}; {name} at position {int(call.positions[at])}:\n"
                    f"actual    {numbers(mine[0, 0, at])}\nexpected  {numbers(theirs[0, 0, at])}"
                )
    return ""


def _broken(answers: list[tuple[_Call, Tensor, Tensor | None]], intent: Intent) -> list[str]:
    """Properties of every rotation that do not hold, each with its number."""
    call, q, _ = answers[0]
    texts = []
    if q.shape != call.q.shape:
        return [f"The output has the shape {tuple(q.shape)}, the input {tuple(call.q.shape)}."]
    if int(call.positions[0]) == 0 and largest(q[..., 0, :], call.q[..., 0, :]) > 1e-4:
        difference = largest(q[..., 0, :], call.q[..., 0, :])
        texts.append(f"Position 0 is changed, by up to {difference:.3g}: its angle should be 0.")
    stretch = (q.norm(dim=-1) / call.q.norm(dim=-1) - 1.0).abs().max().item()
    if stretch > 1e-4:
        texts.append(f"The length of a row changes by up to {100 * stretch:.3g} %.")
    expected = _run(call, intent, {})[0]
    good = [(q[..., i] - expected[..., i]).abs().max() < 2e-4 for i in range(q.shape[-1])]
    if any(good):
        texts.append(f"{sum(map(bool, good))} of {len(good)} channels are right.")
    return texts
