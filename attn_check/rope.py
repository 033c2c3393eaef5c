"""For functions that rotate queries and keys: each way of calling them, and what explains it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations, product
from typing import Any

import torch
from torch import Tensor

from attn_check.calls import NAMES, PAIRINGS, copied, parameters_of, roles_of, to_layout
from attn_check.facts import of_rotation, turns
from attn_check.mistakes import FORMS, MISTAKES
from attn_check.reference import Case, Change, Intent, Step, compute
from attn_check.report import Failure, Report, numbers, show
from attn_check.search import equal
from attn_check.subject import quoted

LAYOUTS = ("BHTd", "BTHd", "TBHd", "BTd", "Td")
_WIDTHS = (8, 16, 32, 64, 128, 4, 12, 20, 24, 40, 48, 80, 96, 112, 160, 192, 256)
_ROLES = roles_of("arguments of a rotation")
# the last axis of cos and sin: what is said of it, and how it follows from the d/2 angles
_ENDS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "c": ("d), the angles twice one after the other", lambda x: torch.cat([x, x], dim=-1)),
    "r": ("d), each angle twice", lambda x: x.repeat_interleave(2, dim=-1)),
    "h": ("d/2)", lambda x: x),
}
_TABLES = [axes + end for end in _ENDS for axes in ("BT", "T", "11T", "1T1", "T11")]

Guess = tuple[Failure, Change]  # what may be wrong, and what it changes in the reference


def investigate(
    fn: Callable, base: float, pairing: str | None, layout: str | None, d_k: int | None
) -> Report:
    """What is wrong with a function that rotates; the arguments are those of ``diagnose_rope``."""
    intents = [Intent(rope_base=base, rope_pairing=p) for p in ([pairing] if pairing else PAIRINGS)]
    ways = answered_ways(fn, intents[0], layout, d_k)
    way, mistakes = _explained([replace(way, intent=i) for way in ways for i in intents])
    report, found = way.found, way.intent.rope_pairing
    report.subject = getattr(fn, "__name__", type(fn).__name__)
    if mistakes == []:
        first = ", each the first of a copy" if report.failures else ""
        names = ", ".join(case.name for case, _ in way.answers)
        report.holds.append(f"equal to the reference in {len(way.answers)} calls{first}: {names}")
    doubt = "" if mistakes is not None else " (others explain the answers no better)"
    if mistakes is None:
        wrong = list(way.wrong())
        title, text = of_rotation(wrong, [case for case, _ in way.answers])
        example = way.example(*wrong[0]) if all(y.shape == x.shape for *_, y, x in wrong) else ""
        mistakes = [Failure(None, title, text, example=example)]
    report.failures += mistakes
    if not way.roles.keys() - {"k"}:
        report.unchecked.append("shifted positions: fn takes none")
    facts = {
        f"the pairing is {found!r}: {PAIRINGS[found]}": pairing is None,
        f"the layout is {way.layout!r}": layout is None,
        f"the width is fixed: d_k = {way.width}": d_k != way.width,
    }
    if way.table:
        facts[f"tables of shape ({', '.join([*way.table[:-1], _ENDS[way.table[-1]][0]])}"] = True
    report.assumed = [fact + doubt for fact, found_out in facts.items() if found_out]
    return report


@dataclass
class Way:
    """One way of calling the function, and what it answered."""

    fn: Callable
    roles: dict[str, str]  # of the parameters after the first, to their names
    intent: Intent
    layout: str
    width: int | None  # of all calls; None: of several widths
    table: str  # axes of cos and sin, the last as in _ENDS; empty where none are passed
    batched: bool  # positions are (B, T) instead of (T,)
    answers: list[tuple[Case, dict[str, Tensor]]] = field(default_factory=list)  # (B, H, T, d)
    found: Report = field(default_factory=lambda: Report(""))

    def answered(self) -> "Way":
        """With the answers of new copies, and what a copy does that is called again."""
        used = copied(self.fn, None, to_cpu=True)[0]
        for case in self._cases():
            outs, raised = self._ask(copied(self.fn, None, to_cpu=True)[0], case)
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
            angles = _ENDS[self.table[-1]][1](angles).float()
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
    roles = _passed(fn)
    tables = ["Th"] if "cis" in roles else _TABLES if "cos" in roles else [""]
    batched = [False, True] if "positions" in roles else [False]
    ways: list[Way] = []
    for width, axes in product([d_k] if d_k else [None, *_WIDTHS], (4, 3, 2)):
        layouts = [some for some in LAYOUTS if len(some) == axes and layout in (some, None)]
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


def _passed(fn: Callable) -> dict[str, str]:
    """The parameters that are passed, by what they mean."""
    others = (parameters_of(fn) or [])[1:]
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
    return x[(None,) * (4 - x.dim())].detach().cpu().double().permute(*map(layout.index, "BHTd"))


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
    # a mistake, its forms at once, and what is said of it where its row says less; what takes
    # queries and keys alike comes first: it alone is right where there are no keys
    own = [] if way.table else NAMES["tried of a rotation that makes cos and sin itself"]
    for mistake, forms, likely in NAMES["tried of a rotation"] + own:
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
        angle = abs(turns(x, y, pairing)[0, 0, 1, 1].angle().item()) / times
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
