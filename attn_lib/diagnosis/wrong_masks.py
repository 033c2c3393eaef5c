"""Executable variants: mistakes in masks, causal masks and windows."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from attn_lib.diagnosis.formula import (
    Run,
    Stage,
    look_near,
    mix,
    nearby,
    read_mask,
    see_past,
    triangle,
)
from attn_lib.diagnosis.wrong_scores import Change, skip


def meaning(change: Callable[[Run, Tensor], Tensor | None]) -> Change:
    """Another reading of the mask that was given."""

    def stage(run: Run) -> None:
        read_mask(run)
        if run.given is not None:
            run.given = change(run, run.given)

    return {"read_mask": stage}


def passed(run: Run) -> Tensor:
    """The mask as the numbers 0 and 1 that were passed."""
    assert run.given is not None  # noqa: S101
    given = run.given if run.intent.polarity != "blocked" else ~run.given
    return given.double()


def _reach_only(run: Run) -> None:
    if run.reach is not None:
        run.scores = run.scores.masked_fill(~run.reach, -math.inf)


def closing(change: Callable[[Run], None], *, given_only: bool) -> Change:
    """Another way of closing cells, of the given mask alone or of all."""

    def stage(run: Run) -> None:
        if given_only:
            if run.given is not None:
                change(run)
            _reach_only(run)
        elif run.open is not None:
            change(run)

    return {"close": stage}


def _add_01(run: Run) -> None:
    run.scores = run.scores + passed(run)


def _multiply(run: Run) -> None:
    run.scores = run.scores * passed(run)


def _fill(value: float, given_only: bool) -> Change:
    def change(run: Run) -> None:
        cells = run.given if given_only else run.open
        assert cells is not None  # noqa: S101
        run.scores = run.scores.masked_fill(~cells, value)

    return closing(change, given_only=given_only)


def _add(value: float, given_only: bool) -> Change:
    def change(run: Run) -> None:
        cells = run.given if given_only else run.open
        assert cells is not None  # noqa: S101
        run.scores = run.scores + (~cells) * value

    return closing(change, given_only=given_only)


def _same_lengths(run: Run, given: Tensor) -> Tensor:
    if run.scores.shape[-1] != run.scores.shape[-2]:
        raise ValueError("only for T = S")
    return given.mT


def _on_queries(run: Run, given: Tensor) -> Tensor:
    T, S = run.scores.shape[-2:]
    if T != S:
        raise ValueError("only for T = S")
    return given.any(dim=-2, keepdim=True).mT.expand(*given.shape[:-2], T, S)


def _by_both(run: Run, given: Tensor) -> Tensor:
    return given & _same_lengths(run, given)


MASK_INVERTED = (meaning(lambda run, given: ~given),)
MASK_ADDED_AS_01 = (closing(_add_01, given_only=True),)
MASK_MULTIPLIED = (closing(_multiply, given_only=True),)
MASK_IGNORED = (meaning(lambda run, given: None),)
MASK_ON_QUERIES = (meaning(_on_queries),)
MASK_TRANSPOSED = (meaning(_same_lengths),)
MASK_FIRST_EXAMPLE = (meaning(lambda run, given: given[:1]), meaning(lambda run, given: given[-1:]))
MASK_FIRST_HEAD = (meaning(lambda run, given: given[:, :1]),)
MASK_SMALL_FILL = tuple(
    make(-float(value), given_only)
    for given_only in (False, True)
    for make in (_fill, _add)
    for value in (1, 2, 5, 8, 10, 20, 50, 100, 1000)
)
MASK_ZEROES_SCORES = tuple(
    _fill(value, given_only) for given_only in (False, True) for value in (0.0, 1.0)
)


def _zeroed(run: Run) -> None:
    if run.given is not None:
        run.scores = run.scores.masked_fill(~run.given, 0.0)
    _reach_only(run)


def _zeroed_mix(run: Run) -> None:
    if run.given is not None:
        run.weights = run.weights.masked_fill(~run.given, 0.0)
    mix(run)


PADDING_ZEROED: tuple[Change, ...] = ({"close": _zeroed, "mix": _zeroed_mix},)


def _any_for_all(run: Run, given: Tensor) -> Tensor:
    return given.any(dim=0, keepdim=True)


MASK_OF_THE_BATCH = (
    meaning(_any_for_all),
    meaning(lambda run, given: given.all(dim=0, keepdim=True)),
    meaning(lambda run, given: given.any(dim=-2, keepdim=True)),
    meaning(lambda run, given: given.all(dim=-2, keepdim=True)),
)


def _or_with_causal(run: Run) -> None:
    if run.open is not None:
        either = run.open
        if run.given is not None and run.reach is not None:
            either = run.given | run.reach
        run.scores = run.scores.masked_fill(~either, -math.inf)


def _mask_replaces_causal(run: Run) -> None:
    cells = run.given if run.given is not None else run.reach
    if cells is not None:
        run.scores = run.scores.masked_fill(~cells, -math.inf)


def _causal_replaces_mask(run: Run) -> None:
    cells = run.reach if run.reach is not None else run.given
    if cells is not None:
        run.scores = run.scores.masked_fill(~cells, -math.inf)


MASK_OR_CAUSAL: tuple[Change, ...] = (
    {"close": _or_with_causal},
    {"close": _mask_replaces_causal},
    {"close": _causal_replaces_mask},
)


def _collide(change: Callable[[Tensor, int, int, int], Tensor | None]) -> Change:
    """Another axis than the one that is meant, where two sizes are equal."""

    def stage(run: Run, given: Tensor) -> Tensor:
        B, H, T, _ = run.scores.shape
        other = change(given, B, H, T)
        return given if other is None else other

    return meaning(stage)


def _padding_by_head(given: Tensor, B: int, H: int, T: int) -> Tensor | None:
    return given[:, 0, 0][None, :, None] if B == H else None


def _matrix_by_head(given: Tensor, B: int, H: int, T: int) -> Tensor | None:
    return given[:, 0][None] if B == H else None


def _padding_by_query(given: Tensor, B: int, H: int, T: int) -> Tensor | None:
    return given[:, 0, 0][None, None] if B == T else None


def _causal_by_example(given: Tensor, B: int, H: int, T: int) -> Tensor | None:
    return given[0, 0][:, None, None] if B == T else None


def _causal_by_head(given: Tensor, B: int, H: int, T: int) -> Tensor | None:
    return given[0, 0][None, :, None] if H == T else None


MASK_GUESSED_BY_RANK = tuple(
    _collide(change)
    for change in (
        _padding_by_head,
        _matrix_by_head,
        _padding_by_query,
        _causal_by_example,
        _causal_by_head,
    )
)


def reaching(reach: Callable[[Run, int, int], Tensor | None]) -> Change:
    """Another causal mask than the one that is meant."""

    def stage(run: Run) -> None:
        if not run.intent.causal:
            raise ValueError("no causal mask is meant")
        run.reach = reach(run, *run.scores.shape[-2:])

    return {"see_past": stage}


def _offset(run: Run, T: int, S: int) -> int:
    return 0 if run.intent.causal == "top_left" else S - T


def _future(run: Run, T: int, S: int, extra: int) -> Tensor:
    return torch.arange(S) >= torch.arange(T)[:, None] + _offset(run, T, S) + extra


def _bottom_right(run: Run, T: int, S: int) -> Tensor:
    if run.intent.causal != "top_left":
        raise ValueError("the bottom right is meant")
    return triangle(T, S, S - T)


def _only_in_training(run: Run) -> None:
    see_past(run)
    if not run.case.training:
        run.reach = None


def _only_in_evaluation(run: Run) -> None:
    see_past(run)
    if run.case.training:
        run.reach = None


CAUSAL_MISSING = (reaching(lambda run, T, S: None),)
CAUSAL_SEES_ONE_AHEAD = (reaching(lambda run, T, S: triangle(T, S, _offset(run, T, S) + 1)),)
CAUSAL_EXCLUDES_SELF = (reaching(lambda run, T, S: triangle(T, S, _offset(run, T, S) - 1)),)
CAUSAL_REVERSED = (
    reaching(lambda run, T, S: _future(run, T, S, 0)),
    reaching(lambda run, T, S: _future(run, T, S, 1)),
)
CAUSAL_TOP_LEFT = (reaching(lambda run, T, S: triangle(T, S, 0)),)
CAUSAL_BOTTOM_RIGHT = (reaching(_bottom_right),)


def _kept_length(n: int) -> Change:
    """Later keys are closed within the first n positions alone."""

    def reach(run: Run, T: int, S: int) -> Tensor:
        inside = (torch.arange(T)[:, None] + _offset(run, T, S) < n) & (torch.arange(S) < n)
        return triangle(T, S, _offset(run, T, S)) | ~inside

    return reaching(reach)


CAUSAL_CACHED_LENGTH = tuple(_kept_length(n) for n in (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 32, 64))
CAUSAL_ONLY_IN_TRAINING: tuple[Change, ...] = (
    {"see_past": _only_in_training},
    {"see_past": _only_in_evaluation},
)


def _window(extra: int) -> Stage:
    def stage(run: Run) -> None:
        near = nearby(run, _meant_window(run) + extra)
        run.reach = near if run.reach is None else run.reach & near

    return stage


def _meant_window(run: Run) -> int:
    if run.intent.window is None:
        raise ValueError("no window is meant")
    return run.intent.window


def _both_sides(run: Run) -> None:
    T, S = run.scores.shape[-2:]
    distance = torch.arange(T)[:, None] + (S - T) - torch.arange(S)
    run.reach = distance.abs() < _meant_window(run)


def _no_window(run: Run) -> None:
    _meant_window(run)


WINDOW_ONE_MORE: tuple[Change, ...] = ({"look_near": _window(1)},)
WINDOW_ONE_LESS: tuple[Change, ...] = ({"look_near": _window(-1)},)
WINDOW_NOT_CAUSAL: tuple[Change, ...] = (
    {"see_past": skip, "look_near": _both_sides},
    {"see_past": skip, "look_near": _window(0)},
)
WINDOW_IGNORED: tuple[Change, ...] = ({"look_near": _no_window},)


def _triangle_unasked(offset: str) -> Stage:
    def stage(run: Run) -> None:
        if run.intent.causal:
            raise ValueError("a causal mask is meant")
        T, S = run.scores.shape[-2:]
        run.reach = triangle(T, S, S - T if offset == "last" else 0)

    return stage


CAUSAL_NOT_MEANT: tuple[Change, ...] = (
    {"see_past": _triangle_unasked("last")},
    {"see_past": _triangle_unasked("first")},
)


def _whole_blocks(block: int, axis: str, left: float) -> Change:
    def keys(run: Run) -> None:
        look_near(run)
        T, S = run.scores.shape[-2:]
        if S >= block:
            kept = (torch.arange(S) < S - S % block).expand(T, S)
            run.reach = kept if run.reach is None else run.reach & kept

    def queries(run: Run) -> None:
        mix(run)
        T = run.out.shape[-2]
        if T >= block:
            lost = torch.arange(T) >= T - T % block
            run.out = run.out.masked_fill(lost[:, None], left)

    return {"look_near": keys} if axis == "keys" else {"mix": queries}


BLOCK_REMAINDER = tuple(
    _whole_blocks(block, axis, left)
    for block in (2, 4, 8, 16, 32, 64, 128)
    for axis, left in (("keys", 0.0), ("queries", 0.0), ("queries", math.nan))
)
