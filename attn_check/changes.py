"""What mistakes are made of: other ways of taking one or two steps of the reference."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attn_check.reference import (
    Change,
    NotMeant,
    Run,
    Step,
    both,
    closed,
    cut,
    first,
    linear,
    norm,
    normed,
    project,
    repeated,
    rotate,
    triangle,
    turn,
    with_gain,
)

Forms = list[Change]


def of(step: str, *ways: Step) -> Forms:
    """Forms that all change one step."""
    return [{step: way} for way in ways]


def meant(value: Any) -> Any:
    """A part of the intent, or of the layer, without which there is no such mistake."""
    if value is None or value is False:
        raise NotMeant("this part is not meant to be there")
    return value


# ------------------------------------------------------------------ softmax and masks


def weights(*functions: Callable[[Tensor], Tensor]) -> Forms:
    """Weights made of the scores by something else than the softmax over the keys."""
    return of("softmax", *(lambda r, f=f: f(r.scores) for f in functions))


def jointly(scores: Tensor, axis: int) -> Tensor:
    """One softmax over an axis and all that follow."""
    return scores.flatten(axis).softmax(dim=-1).view_as(scores)


def normalised(powers: Tensor) -> Tensor:
    """Divided by the sum of each row."""
    return (powers / powers.sum(dim=-1, keepdim=True)).double()


def finite(scores: Tensor) -> Tensor:
    """With 0 where cells are closed."""
    return scores.masked_fill(scores == -math.inf, 0.0)


def rounded(dtype: torch.dtype) -> list[Callable[[Tensor], Tensor]]:
    """The softmax of rounded scores, and the rounded softmax."""
    return [
        lambda s: s.float().to(dtype).softmax(dim=-1).double(),
        lambda s: s.float().softmax(dim=-1).to(dtype).double(),
    ]


def times(x: Tensor, cells: Tensor | None) -> Tensor:
    """Zeros where cells are closed."""
    return x if cells is None else x * cells


def mask(*readings: Callable[[Tensor], Tensor | None]) -> Forms:
    """Other readings of the mask that is given, (B, 1 or H, T, S)."""
    return of("mask", *(lambda r, f=f: None if r.given is None else f(r.given) for f in readings))


def square(cells: Tensor) -> Tensor:
    """The mask, where T = S."""
    if cells.shape[-1] != cells.shape[-2]:
        raise NotMeant("only for T = S")
    return cells


def by_rank(pick: Callable[[Tensor], Tensor], *sizes: str) -> Change:
    """The mask on another axis than its own, where two sizes are equal."""

    def other(run: Run) -> Tensor | None:
        B, H = run.scores.shape[:2]
        equal = len({{"B": B, "H": H, "T": run.T}[name] for name in sizes}) == 1
        return run.given if run.given is None or not equal else pick(run.given)

    return {"mask": other}


def passed(run: Run) -> Tensor:
    """The mask as the numbers 0 and 1 that were passed."""
    return (~run.given if run.intent.polarity == "blocked" else run.given).double()


def closing(way: Step) -> Change:
    """Another way of closing what the mask closes; the causal mask closes as it should."""
    return {"close": lambda r: closed(way(r) if r.given is not None else r.scores, r.reach)}


def filled(value: float, *, given_only: bool, add: bool = False) -> Change:
    """A number for closed cells of all masks, or of the given one alone."""

    def put(run: Run, cells: Tensor | None) -> Tensor:
        if cells is None or not add:
            return closed(run.scores, cells, value)
        return run.scores + (~cells) * value

    if given_only:
        return closing(lambda r: put(r, r.given))
    return {"close": lambda r: put(r, both(r.given, r.reach))}


def below(run: Run, extra: int = 0) -> Tensor:
    """Keys up to the query's position, and some more or fewer."""
    return triangle(run.T, run.S, first(run) + extra)


def unasked(offset: Callable[[Run], int]) -> Change:
    """A causal mask where none is meant."""

    def reach(run: Run) -> Tensor | None:
        if run.intent.causal:
            raise NotMeant("a causal mask is meant")
        return both(run.reach, triangle(run.T, run.S, offset(run)))

    return {"reach": reach}


def within(n: int) -> Change:
    """Later keys are closed within the first n positions alone."""

    def reach(run: Run) -> Tensor:
        rows = torch.arange(run.T)[:, None] + first(run) < n
        return below(run) | ~(rows & (torch.arange(run.S) < n))

    return {"causal": reach}


def around(run: Run) -> Tensor:
    """Keys less than the window away, on both sides."""
    distance = torch.arange(run.T)[:, None] + (run.S - run.T) - torch.arange(run.S)
    return distance.abs() < run.intent.window


def blocks(size: int) -> Forms:
    """The keys, or the queries, of a last block that is not whole are left out."""

    def keys(run: Run) -> Tensor | None:
        whole = (torch.arange(run.S) < run.S - run.S % size).expand(run.T, run.S)
        return both(run.reach, whole) if run.S >= size else run.reach

    def queries(left: float) -> Step:
        def mix(run: Run) -> Tensor:
            out = run.weights @ run.v
            lost = torch.arange(run.T) >= run.T - run.T % size
            return out.masked_fill(lost[:, None], left) if run.T >= size else out

        return mix

    return [{"reach": keys}, *of("mix", queries(0.0), queries(math.nan))]


# ------------------------------------------------------------------ heads and projections


def each(split: Callable[[Tensor, int], Tensor]) -> Step:
    """A way of splitting heads, for queries, keys and values."""
    return lambda r: (split(r.q, r.H), split(r.k, r.H_kv), split(r.v, r.H_kv))


def viewed(x: Tensor, H: int) -> Tensor:
    """Heads by a view alone."""
    return x.reshape(x.shape[0], H, x.shape[1], -1)


def dealt(x: Tensor, H: int) -> Tensor:
    """Channels dealt to the heads in turn."""
    return x.unflatten(-1, (-1, H)).permute(0, 3, 1, 2)


def spread(x: Tensor, run: Run) -> Tensor:
    """One head for all."""
    return x.expand(-1, run.q.shape[1], -1, -1)


def tiled(roles: str) -> Change:
    """Keys, values or both: query head h uses head h % H_kv."""

    def group(run: Run) -> list[Tensor]:
        meant(run.q.shape[1] != run.k.shape[1])
        n = run.q.shape[1] // run.k.shape[1]
        parts = {"k": run.k, "v": run.v}
        return [x.repeat(1, n, 1, 1) if m in roles else repeated(run, x) for m, x in parts.items()]

    return {"group": group}


def wide(width: Step) -> Change:
    """The heads are not split."""
    return {
        "split": lambda r: (r.q[:, None], r.k[:, None], r.v[:, None]),
        "group": lambda r: (r.k, r.v),
        "scale": lambda r: r.intent.scale or width(r) ** -0.5,
    }


def shared(*triples: str) -> Forms:
    """Queries, keys and values by other projections."""
    return of("project", *(lambda r, t=t: project(r, t) for t in triples))


def sources(*triples: str) -> Forms:
    """Queries, keys and values of other inputs: x or c(ontext)."""
    return of("project", *(lambda r, t=t: project(r, "qkv", t) for t in triples))


def chained(key: str, value: str) -> Change:
    """Keys and values, each projected from c(ontext), or from queries or keys."""

    def step(run: Run) -> tuple[Tensor, ...]:
        q, k, _ = project(run)
        meant(run.layer)
        k = linear(run, "k", {"c": run.context, "q": q}[key])
        return q, k, linear(run, "v", {"c": run.context, "q": q, "k": k}[value])

    return {"project": step}


def without_bias(roles: str) -> Change:
    """Projections of which some have no bias."""

    def step(run: Run) -> tuple[Tensor, ...]:
        biases = {n: meant(run.layer).biases.get(n) if n in roles else None for n in "qkv"}
        parts = zip(biases.values(), project(run), strict=True)
        return tuple(x if bias is None else x - bias for bias, x in parts)

    return {"project": step}


def output_bias(run: Run) -> Tensor:
    """The bias of the output projection."""
    return meant(meant(run.layer).biases.get("out"))


def transposed_output(run: Run) -> Tensor:
    """The product with the transpose of the output projection."""
    bias = run.layer.biases.get("out")
    return run.out @ run.layer.weights["out"] + (0.0 if bias is None else bias)


# ------------------------------------------------------------------ RoPE and norms


def rope(step: str, *pairs: tuple[int, int]) -> Forms:
    """Other numbers for queries and keys: what is added to positions, or how often they turn."""
    return of(step, *(lambda r, p=p: p for p in pairs))


def other_pairing(run: Run) -> str:
    """The one that is not meant."""
    return "neighbours" if run.intent.rope_pairing == "half" else "half"


def mixed_pairing(run: Run) -> tuple[Tensor, ...]:
    """Channels as in the pairing that is meant, angles in the order of the other."""

    def one(x: Tensor, positions: Tensor) -> Tensor:
        steps = torch.arange(0, x.shape[-1], 2).double() / x.shape[-1]
        angles = positions.double()[:, None] / run.base**steps
        if run.pairing == "half":
            angles, (a, b) = angles.repeat_interleave(2, dim=-1), x.chunk(2, dim=-1)
            across = torch.cat([-b, a], dim=-1)
        else:
            angles = torch.cat([angles, angles], dim=-1)
            across = torch.stack([-x[..., 1::2], x[..., 0::2]], dim=-1).flatten(-2)
        return x * angles.cos() + across * angles.sin()

    return one(run.q, run.positions[0]), one(run.k, run.positions[1]), run.v


def with_base(base: float) -> Step:
    """Another base than the one that is meant."""
    return lambda r: base if meant(base != r.intent.rope_base) else None


def over_heads(run: Run) -> tuple[Tensor, ...]:
    """A rotation by the index of the head."""

    def one(x: Tensor) -> Tensor:
        x = turn(x.transpose(1, 2), torch.arange(x.shape[1]), run.base, run.pairing)
        return x.transpose(1, 2)

    return one(run.q), one(run.k), run.v


def rotated_whole(run: Run) -> tuple[Tensor, ...]:
    """The heads, split after the rotation."""
    meant(run.intent.rope_base)
    q, k, v = rotate(run)
    return cut(q, run.H), cut(k, run.H_kv), cut(v, run.H_kv)


def normed_along(axis: int) -> Step:
    """Norms over another axis."""

    def step(run: Run) -> list[Tensor]:
        gains, kind = run.layer.norms if run.layer else {}, run.intent.qk_norm
        parts = {"q": run.q, "k": run.k}
        return [with_gain(normed(x, kind, {}, n, axis), gains, n) for n, x in parts.items()]

    return step


def normed_together(run: Run) -> list[Tensor]:
    """One norm for all heads."""
    gains, kind = run.layer.norms if run.layer else {}, run.intent.qk_norm

    def one(x: Tensor, role: str) -> Tensor:
        flat = normed(x.transpose(1, 2).flatten(-2), kind, {}, role)
        return with_gain(cut(flat, x.shape[1]), gains, role)

    return [one(run.q, "q"), one(run.k, "k")]


def normed_last(run: Run) -> tuple[Tensor, ...]:
    """Norms of what was rotated, or is not to be."""
    meant(run.intent.qk_norm)
    q, k, v = rotate(run)
    return (*norm(Run(**{**vars(run), "q": q, "k": k})), v)
