"""The formula for one case, whole or with changes, and what is known of its output."""

from collections.abc import Mapping
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from attn_lib.diagnosis.formula import STAGES, Case, Intent, Layer, Run, Stage, recorded, triangle


def compute(
    case: Case, intent: Intent, layer: Layer | None, changes: Mapping[str, Stage] | None = None
) -> Run:
    """The formula for one case, with some stages replaced.

    Args:
        case: tensors in double precision.
        intent: what the function is meant to do.
        layer: a module's projections; None for a function of queries, keys and values.
        changes: stages that replace those of the reference.

    Returns:
        The run, with ``out`` in the layout of the case and ``weights`` (B, H, T, S).

    Example:
        >>> q = torch.zeros(1, 1, 2, 4, dtype=torch.float64)
        >>> v = torch.tensor([[[[1.0], [3.0]]]], dtype=torch.float64)
        >>> compute(Case("equal", {"q": q, "k": q, "v": v}), Intent(), None).out.flatten().tolist()
        [2.0, 2.0]

    Source: Vaswani et al. (2017), section 3.2.
    """
    changes, names = changes or {}, list(STAGES)
    first = next((i for i, name in enumerate(names) if name in changes), len(names))
    run = _begun(case, intent, layer, first)
    for name in names[first:]:
        changes.get(name, STAGES[name])(run)
    return run


def output_shape(case: Case, layer: Layer | None) -> tuple[int, ...]:
    """The shape of the formula's output."""
    T, _ = case.lengths
    if layer is not None:
        rows = layer.weights["v"].shape[0] // layer.kv_heads * layer.heads
        out = layer.weights.get("out")
        return case.batch, T, rows if out is None else out.shape[0]
    d_v = case.tensors["v"].shape[-1]
    if case.merged:
        return case.batch, T, d_v // case.kv_heads * case.heads
    return *case.tensors["q"].shape[:-1], d_v


_Begun = dict[tuple[int, int], tuple[Intent, Layer | None, list[Run]]]
_BEGUN: WeakKeyDictionary[Case, _Begun] = WeakKeyDictionary()
_SMALL = 4000  # cells of scores, up to which the stages of a case are kept


def _begun(case: Case, intent: Intent, layer: Layer | None, stages: int) -> Run:
    """The first stages of the reference: hypotheses that change later ones share them."""
    T, S = case.lengths
    known: _Begun = {}
    if T * S * case.batch < _SMALL and not recorded(case, layer):
        known = _BEGUN.setdefault(case, known)
    key = (id(intent), id(layer))
    if key not in known:
        positions = (torch.arange(S - T, S), torch.arange(S))
        known[key] = intent, layer, [Run(_NO_CASE, intent, layer, positions=positions)]
    runs = known[key][2]
    run = _copy(runs[min(stages, len(runs) - 1)], case)
    for name in list(STAGES)[len(runs) - 1 : stages]:
        STAGES[name](run)
        runs.append(_copy(run, _NO_CASE))  # or the case would never be forgotten
    return run


def _copy(run: Run, case: Case) -> Run:
    twin = object.__new__(Run)
    vars(twin).update(vars(run), case=case, values={})
    return twin


_NO_CASE = Case("none", {})


def open_rows(case: Case, intent: Intent) -> Tensor | None:
    """(B, T) rows that may attend to something; None where all may."""
    known, key = _ROWS.setdefault(case, {}), (intent.causal, intent.window)
    if key not in known:
        known[key] = _open_rows(case, intent)
    return known[key]


_ROWS: WeakKeyDictionary[Case, dict[tuple, Tensor | None]] = WeakKeyDictionary()


def _open_rows(case: Case, intent: Intent) -> Tensor | None:
    T, S = case.lengths
    allowed = torch.ones(case.batch, T, S, dtype=torch.bool) if case.mask is None else case.mask
    allowed = allowed.all(dim=1) if allowed.dim() == 4 else allowed
    if intent.causal:
        allowed = allowed & triangle(T, S, 0 if intent.causal == "top_left" else S - T)
    rows = allowed.any(dim=-1)
    if intent.window is not None:
        first = 0 if intent.causal == "top_left" else S - T
        distance = torch.arange(T)[:, None] + first - torch.arange(S)
        rows = (allowed & (distance < intent.window)).any(dim=-1)
    rows = rows if case.ignored is None else rows & ~case.ignored
    return None if rows.all() else rows


def allowed(case: Case, expected: Tensor) -> float:
    """How far an output may be off from the expected one."""
    finite = expected[expected.isfinite()]
    return case.tolerance * (1.0 + (finite.abs().max().item() if finite.numel() else 0.0))
