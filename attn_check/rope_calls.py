"""What a function that rotates queries and keys answers, by each way of calling it."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from attn_check.calls import copied, to_layout
from attn_check.reference import Case, Change, Intent, compute
from attn_check.report import Failure, Report, numbers, show
from attn_check.search import equal
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
# the last axis of cos and sin: what is said of it, and how it follows from the d/2 angles
ENDS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "c": ("d), the angles twice one after the other", lambda x: torch.cat([x, x], dim=-1)),
    "r": ("d), each angle twice", lambda x: x.repeat_interleave(2, dim=-1)),
    "h": ("d/2)", lambda x: x),
}
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
            outs, raised = self._ask(copied(self.fn, None)[0], case)
            if raised:
                shape = tuple(to_layout(case.tensors["q"], self.layout, False, 1).shape)
                self.found.unchecked.append(f"{case.name}, shape {shape}: {raised}")
                if not self.answers:
                    break
                continue
            self.answers.append((case, outs))
            again, raised = self._ask(used, case)
            same = [equal(again[name], outs[name], case, self.intent) for name in again]
            if raised or not all(same):
                change = f"raises {raised}" if raised else "gives other numbers"
                example = f"The call with {case.name} {change} after others, not as the first."
                self.found.known("state_between_calls", example)
        return self

    def _cases(self) -> Iterator[Case]:
        B, H = 2 if "B" in self.layout else 1, 3 if "H" in self.layout else 1
        random = torch.Generator().manual_seed(5)
        for T, start, d in [(4, 0, 8), (3, 0, 4), (70, 0, 8), (4, 5, 8)]:
            if not start or self.roles.keys() - {"k"}:  # it takes positions
                name = f"positions from {start} on" if start else f"{T} positions"
                name += " (as many as heads)" if T == H else ""
                shape = (B, H, T, self.width or d)
                q, k = (torch.randn(shape, generator=random, dtype=torch.float64) for _ in "qk")
                yield Case(name, {"q": q, "k": k, "v": k}, tolerance=5e-5, heads=H, start=start)

    def _ask(self, fn: Callable, case: Case) -> tuple[dict[str, Tensor], str]:
        """Queries, and keys where it takes them, as they are returned; or what it raises."""
        names = "qk" if "k" in self.roles else "q"
        inputs = [to_layout(case.tensors[name].float(), self.layout, False, 1) for name in names]
        before, options = [x.clone() for x in inputs], self._options(case)
        torch.manual_seed(0)  # what is random is the same in equal calls
        try:
            with torch.no_grad():
                result = fn(*inputs, **options)
            outs = result if isinstance(result, tuple | list) else [result]
            if len(outs) < len(names):
                raise ValueError("fn takes q and k, but returns one tensor")
            outs = [_canonical(x, self.layout) for x in outs[: len(names)]]
        except Exception as error:  # whatever it raises is an answer
            return {}, quoted(error)
        for x, old in zip(inputs, before, strict=True):
            if not torch.equal(x, old):
                example = f"before: {numbers(old)}; after: {numbers(x)}."
                self.found.known("inplace_arguments", example)
        return dict(zip(names, outs, strict=True)), ""

    def _options(self, case: Case) -> dict[str, Any]:
        """What is passed after queries and keys."""
        places = torch.arange(case.lengths[0]) + case.start
        rows = places.expand(case.batch, -1).clone() if self.batched else places
        options: dict[str, Any] = {"positions": rows, "start": case.start}
        if self.table:
            if "positions" in self.roles:  # the function takes rows of a longer table
                places = torch.arange(128)
            d, base = case.tensors["q"].shape[-1], self.intent.rope_base or 1.0
            angles = places.double()[:, None] / base ** (torch.arange(0, d, 2).double() / d)
            angles = ENDS[self.table[-1]][1](angles).float()
            angles = angles.unflatten(0, [-1 if axis == "T" else 1 for axis in self.table[:-1]])
            angles = angles.repeat_interleave(case.batch if "B" in self.table else 1, dim=0)
            options |= {"cos": angles.cos(), "sin": angles.sin(), "cis": (1j * angles).exp()}
        return {name: options[role] for role, name in self.roles.items() if role in options}

    def wrong(self, guesses: Sequence[Guess] = ()) -> Iterator[tuple[Case, str, Tensor, Tensor]]:
        """What the reference with these mistakes does not give: q or k, actual and expected."""
        changes = {name: step for _, change in guesses for name, step in change.items()}
        for case, outs in self.answers:
            run = compute(case, self.intent, None, changes)
            for name, actual in outs.items():
                expected = getattr(run, name)
                if not equal(actual, expected, case, self.intent):
                    yield case, name, actual, expected

    def example(self, case: Case, name: str, actual: Tensor, expected: Tensor) -> str:
        """The first row that differs."""
        return show(replace(case, name=f"{case.name}; {name}"), actual, expected, self.intent)


def answered_ways(fn: Callable, intent: Intent, layout: str | None, d_k: int | None) -> list[Way]:
    """The ways of calling that are answered most, the likely ones first."""
    roles = _roles_of(fn)
    tables = ["Th"] if "cis" in roles else _TABLES if "cos" in roles else [""]
    batched = [False, True] if "positions" in roles else [False]
    ways: list[Way] = []
    for width, axes in product([d_k] if d_k else [None, *_WIDTHS], (4, 3, 2)):
        layouts = [some for some in ROPE_LAYOUTS if len(some) == axes and layout in (some, None)]
        options = product(layouts, [width], tables, batched)
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
    """The parameters that are passed, by what they mean."""
    signature = inspect.signature(fn.forward if isinstance(fn, nn.Module) else fn)
    further = list(signature.parameters.values())[1:]
    others = [p for p in further if not p.kind.name.startswith("VAR_")]
    needed = [p.name for p in others if p.default is p.empty]
    roles: dict[str, str] = {}
    for p in others:
        roles.setdefault(_ROLES.get(p.name.lower().strip("_"), ""), p.name)
    roles.pop("", None)  # those that have none
    unknown = ", ".join(name for name in needed if name not in roles.values())
    if unknown or ("cos" in roles) != ("sin" in roles):
        raise ValueError(
            f"fn needs {unknown or 'cos and sin together'}, which diagnose_rope cannot fill in: "
            "wrap it, as in diagnose_rope(lambda q, k, positions: fn(q, k, ...))"
        )
    if {"cos", "cis"} & roles.keys() and roles.get("positions") not in needed:
        roles.pop("positions", None)  # not used beside the tables
    if "positions" in roles:
        roles.pop("start", None)  # it would count twice
    return roles


def _canonical(x: Any, layout: str) -> Tensor:
    if not isinstance(x, Tensor) or x.dim() != len(layout):
        given = f"the shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"fn returns {given} for inputs of {len(layout)} axes")
    layout = "".join(letter for letter in "BH" if letter not in layout) + layout
    x = x[(None,) * (4 - x.dim())]
    return x.detach().double().permute([layout.index(letter) for letter in "BHTd"])
