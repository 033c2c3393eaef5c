"""What a function that rotates queries and keys answers, by each way of calling it."""

import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attn_check.calls import copied, to_layout
from attn_check.reference import Case, Change, Intent, compute
from attn_check.report import Failure, Report, numbers
from attn_check.subject import quoted

PAIRINGS = {"half": "halves (i, i + d/2)", "neighbours": "neighbours (2i, 2i + 1)"}
ROPE_LAYOUTS = ("BHTd", "BTHd", "TBHd", "BTd", "Td")
_WIDTHS = (8, 16, 32, 64, 128, 4, 12, 20, 24, 40, 48, 80, 96, 112, 160, 192, 256)
_PARAMETERS = {
    "k": "k key keys xk key_states key_layer",
    "positions": "positions position places pos position_ids p t input_pos idx",
    "start": "start offset start_pos seqlen_offset position_offset",
    "cos": "cos freqs_cos cos_cached",
    "sin": "sin freqs_sin sin_cached",
    "cis": "freqs_cis",
}
_ROLES = {name: role for role, names in _PARAMETERS.items() for name in names.split()}
ENDS = {"c": "d), the angles twice one after the other", "r": "d), each angle twice", "h": "d/2)"}
_TABLES = [axes + end for end in ENDS for axes in ("BT", "T", "11T", "1T1", "T11")]

Guess = tuple[Failure, Change]  # what may be wrong, and what it changes in the reference


@dataclass
class Way:
    """One way of calling the function, and what it answered."""

    fn: Callable
    roles: dict[str, str]  # of the parameters after the first, to their names
    intent: Intent
    layout: str
    width: int | None  # of all calls; None: of several widths
    table: str  # axes of cos and sin, the last as in ENDS; empty where none are passed
    batched: bool  # positions are (B, T) instead of (T,)
    answers: list[tuple[Case, dict[str, Tensor]]] = field(default_factory=list)  # (B, H, T, d)
    found: Report = field(default_factory=lambda: Report(""))

    def answered(self) -> "Way":
        """With the answers of new copies, and what a copy does that is called again."""
        used = copied(self.fn, None)[0]
        for case in self._cases():
            try:
                outs = self._call(copied(self.fn, None)[0], case)
            except Exception as error:  # whatever it raises is an answer
                shape = tuple(to_layout(case.tensors["q"], self.layout, False, 1).shape)
                self.found.unchecked.append(f"{case.name}, shape {shape}: {quoted(error)}")
                if not self.answers:
                    break
                continue
            self.answers.append((case, outs))
            try:
                again = self._call(used, case)
                same = all(_equal(x, again[name], 1e-5) for name, x in outs.items())
                change = "" if same else "gives other numbers than as the first"
            except Exception as error:
                change = f"raises {quoted(error)}. As the first call it does not"
            if change:
                example = f"After other calls, the call with {case.name} {change}."
                self.found.known("state_between_calls", example)
        return self

    def _cases(self) -> Iterator[Case]:
        B = 2 if "B" in self.layout else 1
        H = 3 if "H" in self.layout else 1
        random = torch.Generator().manual_seed(5)
        for T, start, d in [(4, 0, 8), (3, 0, 4), (70, 0, 8), (4, 5, 8)]:
            if not start or self.roles.keys() - {"k"}:  # it takes positions
                name = f"positions from {start} on" if start else f"{T} positions"
                name += " (as many as heads)" if T == H else ""
                shape = (B, H, T, self.width or d)
                q, k = (torch.randn(shape, generator=random, dtype=torch.float64) for _ in "qk")
                yield Case(name, {"q": q, "k": k, "v": k}, heads=H, kv_heads=H, start=start)

    def _call(self, fn: Callable, case: Case) -> dict[str, Tensor]:
        names = "qk" if "k" in self.roles else "q"
        inputs = [to_layout(case.tensors[name].float(), self.layout, False, 1) for name in names]
        before = [x.clone() for x in inputs]
        torch.manual_seed(0)  # what is random is the same in equal calls
        with torch.no_grad():
            result = fn(*inputs, **self._options(case))
        for x, old in zip(inputs, before, strict=True):
            if not torch.equal(x, old):
                example = f"before: {numbers(old)}; after: {numbers(x)}."
                self.found.known("inplace_arguments", example)
        outs = result if isinstance(result, tuple | list) else [result]
        if len(outs) < len(inputs):
            raise ValueError("fn takes q and k, but returns one tensor")
        return {name: _canonical(x, self.layout) for name, x in zip(names, outs, strict=False)}

    def _options(self, case: Case) -> dict[str, Any]:
        places = torch.arange(case.lengths[0]) + case.start
        rows = places.expand(case.batch, -1).clone() if self.batched else places
        options: dict[str, Any] = {"start": case.start}
        if "positions" in self.roles:
            options = {"positions": rows}
        if self.table:
            if "positions" in self.roles:  # the function takes rows of a longer table
                places = torch.arange(128)
            axes, end = self.table[:-1], self.table[-1]
            d, base = case.tensors["q"].shape[-1], self.intent.rope_base or 1.0
            angles = places.double()[:, None] / base ** (torch.arange(0, d, 2).double() / d)
            if end == "c":
                angles = torch.cat([angles, angles], dim=-1)
            elif end == "r":
                angles = angles.repeat_interleave(2, dim=-1)
            angles = angles.view(*(-1 if axis == "T" else 1 for axis in axes), angles.shape[-1])
            angles = angles.repeat_interleave(case.batch if "B" in axes else 1, dim=0).float()
            cis = torch.polar(torch.ones_like(angles), angles)
            options |= {"cos": angles.cos(), "sin": angles.sin(), "cis": cis}
        return {name: options[role] for role, name in self.roles.items() if role in options}

    def wrong(self, guesses: Sequence[Guess] = ()) -> Iterator[tuple[Case, str, Tensor, Tensor]]:
        """What the reference with these mistakes does not give: q or k, actual and expected."""
        changes = {name: step for _, change in guesses for name, step in change.items()}
        for case, outs in self.answers:
            run = compute(case, self.intent, None, changes)
            for name, actual in outs.items():
                if not _equal(actual, getattr(run, name), 2e-4):
                    yield case, name, actual, getattr(run, name)


def answered_ways(fn: Callable, intent: Intent, layout: str | None, d_k: int | None) -> list[Way]:
    """The ways of calling that are answered most, the likely ones first."""
    roles = _roles_of(fn)
    tables = ["Th"] if "cis" in roles else _TABLES if "cos" in roles else [""]
    batched = [False, True] if "positions" in roles else [False]
    ways: list[Way] = []
    for width, axes in itertools.product([d_k] if d_k else [None, *_WIDTHS], (4, 3, 2)):
        layouts = [some for some in ROPE_LAYOUTS if len(some) == axes and layout in (some, None)]
        options = itertools.product(layouts, [width], tables, batched)
        ways += [Way(fn, roles, intent, *chosen).answered() for chosen in options]
        if any(not way.found.unchecked for way in ways):
            break
    best = max(ways, key=lambda way: len(way.answers))
    if not best.answers:
        error = f"every call of fn raises; the first, {ways[0].found.unchecked[0]}"
        raise ValueError(f"{error}; pass layout= or d_k=, if fixed")
    # one call may be too long for a table; one way may only seem to fit
    enough = max(len(best.answers) - 1, 1)
    alike = [w for w in ways if (w.width, len(w.layout)) == (best.width, len(best.layout))]
    alike = [way for way in alike if len(way.answers) >= enough]
    return sorted(alike, key=lambda way: len(way.found.unchecked) + len(way.found.failures))


def _roles_of(fn: Callable) -> dict[str, str]:
    signature = inspect.signature(fn.forward if isinstance(fn, nn.Module) else fn)
    others = list(signature.parameters.values())[1:]
    many = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in others if p.default is p.empty and p.kind not in many]
    roles: dict[str, str] = {}
    for parameter in others:
        roles.setdefault(_ROLES.get(parameter.name.lower().strip("_"), ""), parameter.name)
    roles.pop("", None)  # those that have none
    unknown = ", ".join(name for name in needed if name not in roles.values())
    if unknown or ("cos" in roles) != ("sin" in roles):
        raise ValueError(
            f"fn needs {unknown or 'cos and sin together'}, which diagnose_rope cannot fill in: "
            "wrap it, as in diagnose_rope(lambda q, k, positions: fn(q, k, ...))"
        )
    if {"cos", "cis"} & roles.keys() and roles.get("positions") not in needed:
        roles.pop("positions", None)  # not used beside the tables
    return roles


def _canonical(x: Any, layout: str) -> Tensor:
    if not isinstance(x, Tensor) or x.dim() != len(layout):
        given = f"the shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"fn returns {given} for inputs of {len(layout)} axes")
    for letter in "HB":
        if letter not in layout:
            x, layout = x[None], letter + layout
    return x.detach().double().permute([layout.index(letter) for letter in "BHTd"])


def _equal(x: Tensor, y: Tensor, tolerance: float) -> bool:
    return x.shape == y.shape and torch.allclose(x, y, atol=tolerance, equal_nan=True)
