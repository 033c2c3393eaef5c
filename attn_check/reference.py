"""The reference: attention in double precision, in named steps.

A step is a function of the run so far and returns what it is named after. A known mistake puts
another step in the place of one or two; nothing else distinguishes it from the reference.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Intent:
    """What the author of the function means it to do."""

    causal: bool | str | None = False
    window: int | None = None
    sinks: Tensor | None = None
    softcap: float | None = None
    scale: float | Tensor | None = None  # (H, 1, 1) of each head
    qk_norm: str | None = None
    rope_base: float | None = None
    rope_pairing: str = "half"
    rope_dims: int | None = None  # how many channels are rotated, the first ones; None: all
    attn_bias: Callable[[int, int], Tensor] | None = None  # what is added to scores, by T and S
    prenorm: Callable[[Tensor], Tensor] | None = None  # norms the input of a module
    polarity: str = "attend"  # of the mask: attend, blocked or additive
    empty: str = "nan"  # what a row without an open cell gives: nan, zeros or uniform


@dataclass(frozen=True, eq=False)
class Layer:
    """The projections of a module, in double precision; ``out`` may be missing."""

    heads: int
    kv_heads: int
    weights: Mapping[str, Tensor]  # role to (outputs, inputs)
    biases: Mapping[str, Tensor | None]
    norms: Mapping[str, Tensor] = field(default_factory=dict)
    order: str = ""  # what is assumed of packed projections, in words
    shared: bool = False  # all heads project by the same matrices


@dataclass(frozen=True, eq=False)
class Case:
    """One chosen call; tensors in the layout (B, H, T, d), a module's in (B, T, d_model)."""

    name: str
    tensors: Mapping[str, Tensor]  # q, k, v, or x and context
    mask: Tensor | None = None  # bool (B, T, S), True = may attend
    training: bool = False
    tolerance: float = 3e-5
    merged: bool = False  # the heads lie side by side in the last axis
    heads: int = 1
    kv_heads: int = 1
    ignored: Tensor | None = None  # (B, T) rows that are not compared
    start: int = 0  # the position of the first key

    @property
    def lengths(self) -> tuple[int, int]:
        """T and S."""
        t = self.tensors
        q = t["q"] if "q" in t else t["x"]
        return q.shape[-2], t.get("k", t.get("context", q)).shape[-2]

    @property
    def batch(self) -> int:
        """B."""
        return next(iter(self.tensors.values())).shape[0]

    @property
    def single(self) -> bool:
        """Whether there is one example, one query, one key or one head of several."""
        return 1 in (self.batch, *self.lengths) or self.name == "one head"

    @property
    def closes(self) -> bool:
        """Whether its mask closes anything."""
        return self.mask is not None and not bool(self.mask.all())

    def with_tensors(self, **tensors: Tensor) -> "Case":
        """The same case with some other tensors."""
        return replace(self, tensors={**self.tensors, **tensors})

    def example(self, b: int = 0) -> "Case":
        """One example alone."""
        tensors = {role: x[b : b + 1] for role, x in self.tensors.items()}
        mask = None if self.mask is None else self.mask[b : b + 1]
        return replace(self, tensors=tensors, mask=mask)


class Run(SimpleNamespace):
    """Everything that is known while the formula is computed for one case.

    From the start: tensors, x, context, intent, layer, H, H_kv, T, S, training, places (positions
    of queries and keys), given (the mask, (B, 1 or H, T, S), True = may attend), reach (T, S), of
    causal mask and window, and parts, the names of what this attention has.
    """

    @property
    def scale(self) -> Any:
        """The scale that is meant."""
        return self.d_k**-0.5 if self.intent.scale is None else self.intent.scale

    @property
    def first(self) -> int:
        """The position of the first query: they are the last T of S, unless said otherwise."""
        return 0 if self.intent.causal == "top_left" else self.S - self.T

    def linear(self, role: str, x: Tensor) -> Tensor:
        """A projection of the module."""
        return F.linear(x, self.layer.weights[role], self.layer.biases.get(role))

    def project(self, roles: str = "qkv", inputs: str = "xcv") -> tuple[Tensor, ...]:
        """Queries, keys and values, by the projection of a role, from x, c(ontext) or v(alues)."""
        if self.layer is None:
            if inputs != "xcv":
                raise NotMeant("a projection")
            return tuple(self.tensors[role] for role in roles)
        sources = {"x": self.x, "c": self.context, "v": self.tensors.get("values", self.context)}
        return tuple(self.linear(role, sources[x]) for role, x in zip(roles, inputs, strict=True))

    def norm(self, roles: str = "qk") -> tuple[Tensor, ...]:
        """Queries and keys, of which some are normed over d_k."""
        pairs = (("q", self.q), ("k", self.k))
        return tuple(self.normed(x, role) if role in roles else x for role, x in pairs)

    def normed(self, x: Tensor, role: str = "", axis: int = -1) -> Tensor:
        """(B, H, T, d_k), each row normed; a gain of H · d_k norms all heads together."""
        gains, kind = self.layer.norms if self.layer else {}, self.intent.qk_norm
        gain = gains.get(role)
        if gain is not None and gain.numel() == x.shape[1] * x.shape[-1] != x.shape[-1]:
            return cut(self.normed(x.transpose(1, 2).flatten(-2), role), x.shape[1])
        eps = gains.get(f"{role}_eps", torch.tensor(1e-5 if kind == "layer" else 1e-6))
        if kind == "l2":
            return self.with_gain(x / x.norm(dim=axis, keepdim=True).clamp(min=1e-12), role)
        x = x - x.mean(dim=axis, keepdim=True) if kind == "layer" else x
        return self.with_gain(x / (x.square().mean(dim=axis, keepdim=True) + eps).sqrt(), role)

    def with_gain(self, x: Tensor, role: str) -> Tensor:
        """Times the gain, plus the bias of the norm, where they have the width of x."""
        gains = self.layer.norms if self.layer else {}
        gain, bias = gains.get(role), gains.get(f"{role}_bias")
        x = x if gain is None or gain.numel() != x.shape[-1] else x * gain.flatten()
        return x if bias is None or bias.numel() != x.shape[-1] else x + bias.flatten()

    def turn(self, x: Tensor, positions: Tensor, width: int = 0, mixed: bool = False) -> Tensor:
        """Pairs of (..., T, d) turned by position / base^(2i/width); mixed: each by another's i."""
        d, half = x.shape[-1], self.pairing == "half"
        powers = torch.arange(0, d, 2).double() / (width or d)
        angles = positions.double()[:, None] / self.base**powers
        angles = angles.repeat_interleave(2, -1) if half == mixed else angles.repeat(1, 2)
        a, b = x.chunk(2, -1) if half else (x[..., 0::2], x[..., 1::2])
        across = torch.cat([-b, a], -1) if half else torch.stack([-b, a], -1).flatten(-2)
        return x * angles.cos() + across * angles.sin()

    def rotate(self, roles: str = "qk", width: int = 0) -> tuple[Tensor, ...]:
        """Queries, keys and values, of which some are rotated."""
        parts, n = [], self.intent.rope_dims
        for role, x, i in (("q", self.q, 0), ("k", self.k, 1), ("v", self.v, 1)):
            angle = self.times[i] * (self.positions[i] + self.shift[i])
            turned, rest = self.turn(x[..., :n], angle, width), x[..., n or x.shape[-1] :]
            parts.append(torch.cat([turned, rest], dim=-1) if role in roles else x)
        return tuple(parts)

    def below(self, extra: int = 0) -> Tensor:
        """(T, S): keys up to the query's position, and some more or fewer."""
        return triangle(self.T, self.S, self.first + extra)

    def near(self, window: int) -> Tensor:
        """Cells less than ``window`` positions back, the token itself counted."""
        return torch.arange(self.T)[:, None] + self.first - torch.arange(self.S) < window

    def capped(self, x: Tensor) -> Tensor:
        """The softcap of any numbers."""
        return self.intent.softcap * (x / self.intent.softcap).tanh()

    def softmax(self) -> Tensor:
        """Over the keys, and the sink where there is one."""
        scores, sinks = self.scores, self.intent.sinks
        if sinks is not None:
            column = sinks.double().view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
            scores = torch.cat([column, scores], dim=-1)
        weights = scores.softmax(dim=-1)[..., -self.S :]
        if self.intent.empty == "zeros":
            weights = weights.masked_fill((self.scores == -math.inf).all(-1, keepdim=True), 0.0)
        return weights


Step = Callable[[Run], Any]
Change = Mapping[str, Step]


class NotMeant(ValueError):
    """The mistake is one of a part that this attention does not have."""


def cut(x: Tensor, H: int) -> Tensor:
    """(B, T, H · d) to (B, H, T, d)."""
    return x.unflatten(-1, (H, -1)).transpose(1, 2)


def repeated(run: Run, x: Tensor) -> Tensor:
    """Keys or values for each query head: head h uses h // (H / H_kv)."""
    times = run.q.shape[1] // x.shape[1]
    return x if times == 1 else x.repeat_interleave(times, dim=1)


def triangle(T: int, S: int, offset: int) -> Tensor:
    """Query i sees the keys up to i + offset."""
    return torch.arange(S) <= torch.arange(T)[:, None] + offset


def both(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Cells that two masks open; None opens all."""
    return b if a is None else a if b is None else a & b


def closed(scores: Tensor, cells: Tensor | None, fill: float = -math.inf) -> Tensor:
    """Scores with a number where cells are not open."""
    return scores if cells is None else scores.masked_fill(~cells, fill)


STEPS: dict[str, tuple[str, Step, str]] = {  # what it gives, how, and the part it belongs to
    "project": ("q k v", Run.project, ""),
    "positions": ("positions", lambda r: r.places, "rope_base"),
    "shift": ("shift", lambda r: (0, 0), "rope_base"),
    "times": ("times", lambda r: (1, 1), "rope_base"),
    "base": ("base", lambda r: r.intent.rope_base, "rope_base"),
    "pairing": ("pairing", lambda r: r.intent.rope_pairing, "rope_base"),
    "split": ("q k v", lambda r: (cut(r.q, r.H), cut(r.k, r.H_kv), cut(r.v, r.H_kv)), "merged"),
    "norm": ("q k", Run.norm, "qk_norm"),
    "rotate": ("q k v", Run.rotate, "rope_base"),
    "group": ("k v", lambda r: (repeated(r, r.k), repeated(r, r.v)), ""),
    "score": ("scores", lambda r: r.q @ r.k.mT, ""),
    "sizes": ("T S d_k", lambda r: (*r.scores.shape[-2:], r.q.shape[-1]), ""),
    "scale": ("factor", lambda r: r.scale, ""),
    "scaled": ("scores", lambda r: r.scores * r.factor, ""),
    "cap": ("scores", lambda r: r.capped(r.scores), "softcap"),
    "bias": ("scores", lambda r: r.scores + r.intent.attn_bias(r.T, r.S), "attn_bias"),
    "mask": ("given", lambda r: r.given, ""),
    "causal": ("reach", lambda r: r.below(), "causal"),
    "window": ("reach", lambda r: both(r.reach, r.near(r.intent.window)), "window"),
    "reach": ("reach", lambda r: r.reach, ""),
    "close": ("scores", lambda r: closed(r.scores, both(r.given, r.reach), r.fill), ""),
    "softmax": ("weights", Run.softmax, ""),
    "mix": ("out", lambda r: r.weights @ r.v, ""),
    "merge": ("out", lambda r: r.out.transpose(1, 2).flatten(-2), "merged"),
    "output": ("out", lambda r: r.linear("out", r.out), "output"),
    "end": ("out", lambda r: r.out, ""),
}
_NAMES = list(STEPS)
_RUNS: WeakKeyDictionary[Case, dict[tuple[Intent, Layer | None], list[Run]]] = WeakKeyDictionary()


def compute(case: Case, intent: Intent, layer: Layer | None, change: Change | None = None) -> Run:
    """The formula for one case, some steps replaced."""
    change = change or {}
    start = min(map(_NAMES.index, change), default=len(STEPS))
    # all hypotheses share the runs of the steps before the first that they replace
    runs = _RUNS.setdefault(case, {}).setdefault((intent, layer), [])
    if not runs:
        t, mask, (T, S) = case.tensors, case.mask, case.lengths
        x = intent.prenorm(t["x"]) if intent.prenorm and "x" in t else t.get("x")
        run = Run(tensors=t, x=x, context=t.get("context", x), T=T, S=S)
        run.intent, run.layer, run.training, run.reach = intent, layer, case.training, None
        run.H, run.H_kv = (layer or case).heads, (layer or case).kv_heads
        run.places = torch.arange(T) + run.first + case.start, torch.arange(S) + case.start
        run.given = mask if mask is None or mask.dim() == 4 else mask[:, None]
        run.fill = -1e9 if intent.empty == "uniform" else -math.inf  # of closed cells
        has = {**vars(intent), "": True, "merged": layer is not None or case.merged}
        has["output"] = layer is not None and "out" in layer.weights
        run.parts = {name for name, x in has.items() if x is not None and x is not False}
        runs.append(run)
    while len(runs) <= start:
        run = Run(**vars(runs[-1]))
        _go_on(run, _NAMES[len(runs) - 1])
        runs.append(run)
    run = Run(**vars(runs[start]))
    for name in _NAMES[start:]:
        _go_on(run, name, change.get(name))
    return run


def _go_on(run: Run, name: str, other: Step | None = None) -> None:
    names, usual, part = STEPS[name]
    if part not in run.parts:
        if other is not None:
            raise NotMeant(f"{name} is not part of this attention")
        return
    result = (other or usual)(run)
    for key, value in zip(names.split(), result if " " in names else (result,), strict=True):
        setattr(run, key, value)
