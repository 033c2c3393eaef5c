"""What a function that rotates queries and keys answers, in one canonical layout."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from attn_check.conventions import to_layout
from attn_check.quiet import copied
from attn_check.reference import Case
from attn_check.report import Findings, largest, numbers
from attn_check.subject import quoted

PAIRINGS = ("half", "neighbours")
WORDS = {"half": "halves (i, i + d/2)", "neighbours": "neighbours (2i, 2i + 1)"}
ROPE_LAYOUTS = ("BHTd", "BTHd", "TBHd", "BTd", "Td")
_WIDTHS = (8, 16, 32, 64, 128, 4, 12, 20, 24, 40, 48, 80, 96, 112, 160, 192, 256)
_NAMES = {
    "k": {"k", "key", "keys", "xk", "key_states", "key_layer"},
    "positions": {
        "positions",
        "position",
        "places",
        "pos",
        "position_ids",
        "p",
        "t",
        "input_pos",
        "idx",
    },
    "start": {"start", "offset", "start_pos", "seqlen_offset", "position_offset"},
    "cos": {"cos", "freqs_cos", "cos_cached"},
    "sin": {"sin", "freqs_sin", "sin_cached"},
    "cis": {"freqs_cis"},
}
# axes of tables of cosines; the last is d, or h for d / 2; c: angles once, then again; r: by twos
_TABLES = tuple(
    axes + last for last in ("dc", "dr", "h") for axes in ("BT", "T", "11T", "1T1", "T11")
)


@dataclass(frozen=True)
class RopeAnswer:
    """What one call gave, as (B, H, T, d); without k where fn takes one tensor."""

    call: Case
    outs: dict[str, Tensor]

    @property
    def positions(self) -> Tensor:
        """(T,) positions that were passed."""
        return torch.arange(self.call.lengths[0]) + self.call.start


@dataclass(frozen=True)
class Way:
    """How a function is called."""

    layout: str
    width: int | None = None  # of all calls; None: of several widths
    batched: bool = False  # positions are (B, T) instead of (T,)
    table: str = ""  # axes of cos and sin, if they are passed


@dataclass
class Trial:
    """The answers to one way of calling."""

    way: Way
    answers: list[RopeAnswer] = field(default_factory=list)
    raised: list[str] = field(default_factory=list)
    found: Findings = field(default_factory=Findings)


@dataclass
class Rotator:
    """The function, and what its caller says of it."""

    fn: Callable
    base: float
    layout: str | None = None
    width: int | None = None
    roles: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read the roles from the names of the parameters."""
        self.roles = _roles(self.fn)

    @property
    def takes_positions(self) -> bool:
        """Whether other positions than 0 to T − 1 can be passed."""
        return bool({"positions", "start", "cos", "cis"} & set(self.roles))

    def trials(self) -> list[Trial]:
        """The ways of calling that are answered most, the likely ones first."""
        first, best = "", list[Trial]()
        for width in [self.width] if self.width else [None, *_WIDTHS]:
            for size in (4, 3, 2):
                tried = [self._try(way) for way in self._ways(size, width)]
                first = first or next((t.raised[0] for t in tried if t.raised), "")
                most = max((len(t.answers) for t in tried), default=0)
                # one call may be too long for a table; one way may only seem to fit
                tried = [t for t in tried if t.answers and len(t.answers) >= most - 1]
                if any(not t.raised and not t.found.failures for t in tried):
                    return sorted(tried, key=_unclean)
                if most > max((len(t.answers) for t in best), default=0):
                    best = sorted(tried, key=_unclean)
        if not best:
            raise ValueError(
                f"every call of fn raises; the first, {first}; pass layout= or d_k=, if fixed"
            )
        return best

    def _ways(self, size: int, width: int | None) -> Iterator[Way]:
        layouts = [self.layout] if self.layout else ROPE_LAYOUTS
        tables = [""]
        if "cis" in self.roles:
            tables = ["Th"]
        elif "cos" in self.roles:
            tables = list(_TABLES)
        for layout in layouts:
            for table in tables:
                for batched in (False, True) if self.roles.get("positions") else (False,):
                    if len(layout) == size:
                        yield Way(layout, width, batched, table)

    def _try(self, way: Way) -> Trial:
        trial, used = Trial(way), copied(self.fn, None)[0]
        for i, call in enumerate(self._calls(way)):
            try:
                alone = self._ask(copied(self.fn, None)[0], call, way, trial.found)
            except Exception as error:  # whatever it raises is an answer
                shape = tuple(to_layout(call.tensors["q"], way.layout, False, 1).shape)
                trial.raised.append(f"{call.name}, shape {shape}: {quoted(error)}")
                if i == 0:  # not this way, nor this width
                    break
                continue
            trial.answers.append(alone)
            try:
                text = _change(alone, self._ask(used, call, way, trial.found))
            except Exception as error:
                text = f"raises {quoted(error)}"
            if text:
                first = " As the first call it does not." if text.startswith("raises") else ""
                example = f"After other calls, the call with {call.name} {text}.{first}"
                _add_state(trial.found, example)
        return trial

    def _calls(self, way: Way) -> list[Case]:
        random, calls = torch.Generator().manual_seed(5), []
        B, H = (2 if "B" in way.layout else 1), (3 if "H" in way.layout else 1)
        for name, T, start, d in (
            ("4 positions", 4, 0, 8),
            ("3 positions" + " (as many as heads)" * (H > 1), 3, 0, 4),
            ("70 positions", 70, 0, 8),
            ("positions from 5 on", 4, 5, 8),
        ):
            if not start or self.takes_positions:
                shape = (B, H, T, way.width or d)
                q, k = (torch.randn(shape, generator=random, dtype=torch.float64) for _ in "qk")
                tensors = {"q": q, "k": k, "v": k}
                calls.append(Case(name, tensors, heads=H, kv_heads=H, start=start))
        return calls

    def _ask(self, fn: Callable, call: Case, way: Way, found: Findings) -> RopeAnswer:
        names = "qk" if "k" in self.roles else "q"
        inputs = [to_layout(call.tensors[n].float(), way.layout, False, 1) for n in names]
        before = [x.clone() for x in inputs]
        extra, options = self._positions(call, way)
        torch.manual_seed(0)  # what is random is the same in equal calls
        with torch.no_grad():
            result = fn(*inputs, *extra, **options)
        for x, old in zip(inputs, before, strict=True):
            if not torch.equal(x, old):
                found.known("inplace_arguments", f"before: {numbers(old)}; after: {numbers(x)}.")
        outs = list(result) if isinstance(result, tuple | list) else [result]
        if len(outs) < len(inputs):
            raise ValueError("fn takes q and k, but returns one tensor")
        named = zip(names, outs, strict=False)
        return RopeAnswer(call, {n: _canonical(x, way.layout) for n, x in named})

    def _positions(self, call: Case, way: Way) -> tuple[list[Tensor], dict[str, Any]]:
        positions = torch.arange(call.lengths[0]) + call.start
        options: dict[str, Any] = {}
        if way.batched:
            positions = positions.expand(call.batch, -1).clone()
        if self.roles.get("positions"):
            options[self.roles["positions"]] = positions
        elif "start" in self.roles:
            options[self.roles["start"]] = call.start
        if "cos" in self.roles:
            angles = self._angles(call, way)
            options |= {self.roles["cos"]: angles.cos(), self.roles["sin"]: angles.sin()}
        if "cis" in self.roles:
            angles = self._angles(call, way)
            options[self.roles["cis"]] = torch.polar(torch.ones_like(angles), angles)
        return [positions] if self.roles.get("positions") == "" else [], options

    def _angles(self, call: Case, way: Way) -> Tensor:
        d = call.tensors["q"].shape[-1]
        at = torch.arange(call.lengths[0]) + call.start
        if self.roles.get("positions"):  # the function takes rows of a longer table
            at = torch.arange(128)
        angles = at.double()[:, None] / self.base ** (torch.arange(0, d, 2).double() / d)
        if way.table.endswith("dc"):
            angles = torch.cat([angles, angles], dim=-1)
        elif way.table.endswith("dr"):
            angles = angles.repeat_interleave(2, dim=-1)
        sizes = {"B": call.batch, "T": len(at), "1": 1}
        axes = way.table.rstrip("dcrh")
        shape = [len(at) if letter == "T" else 1 for letter in axes]
        angles = angles.view(*shape, angles.shape[-1])
        return angles.expand(*(sizes[letter] for letter in axes), -1).float().contiguous()


def _roles(fn: Callable) -> dict[str, str]:
    """Roles of the parameters to their names."""
    try:
        called = fn.forward if isinstance(fn, nn.Module) else fn
        parameters = list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):
        return {"positions": ""}
    roles: dict[str, str] = {}
    unknown, needed = [], set()
    for parameter in parameters[1:]:
        plain = parameter.name.lower().strip("_")
        role = next((role for role, names in _NAMES.items() if plain in names), None)
        must = parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        )
        if role is not None and role not in roles:
            roles[role] = parameter.name
            needed |= {role} if must else set()
        elif must:
            unknown.append(parameter.name)
    if unknown or ("cos" in roles) != ("sin" in roles):
        names = ", ".join(unknown) or "cos and sin together"
        raise ValueError(
            f"fn needs {names}, which diagnose_rope cannot fill in: wrap it, as in "
            "diagnose_rope(lambda q, k, positions: fn(q, k, ...))"
        )
    if {"cos", "cis"} & set(roles) and "positions" not in needed:
        roles.pop("positions", None)  # not used beside the tables
    return roles


def _canonical(x: Any, layout: str) -> Tensor:
    if not isinstance(x, Tensor):
        raise TypeError(f"fn returns {type(x).__name__}, not a tensor")
    if x.dim() != len(layout):
        raise ValueError(f"fn returns the shape {tuple(x.shape)} for inputs of {len(layout)} axes")
    letters = layout
    for letter in "HB":
        if letter not in letters:
            x, letters = x[None], letter + letters
    return x.detach().double().permute([letters.index(letter) for letter in "BHTd"])


def _unclean(trial: Trial) -> int:
    return len(trial.found.failures) + len(trial.raised)


def _add_state(found: Findings, example: str) -> None:
    if "state_between_calls" not in {failure.mistake for failure in found.failures}:
        found.known("state_between_calls", example)
        likely = "A call gives something else, or raises, after other calls: something is kept."
        found.failures[-1] = replace(found.failures[-1], likely=likely)


def _change(alone: RopeAnswer, again: RopeAnswer) -> str:
    for a, b in zip(alone.outs.values(), again.outs.values(), strict=True):
        if a.shape != b.shape:
            return f"gives the shape {tuple(b.shape)}, and as the first {tuple(a.shape)}"
        if not torch.allclose(a, b, atol=1e-5, equal_nan=True):
            return f"differs by up to {largest(a, b):.3g} from what it gives as the first"
    return ""
