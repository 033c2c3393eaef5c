"""Whether gradients are those of the formula, for the inputs and for a module's parameters."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from attn_check.cases import Draw, without_padded_rows
from attn_check.projections import read_layer
from attn_check.properties import with_padding
from attn_check.reference import Case, Change, Layer, Run, compute, repeated
from attn_check.report import Findings, numbers, show
from attn_check.search import equal
from attn_check.subject import Subject, quoted

Gradients = dict[str, Tensor | None]


def check_gradients(subject: Subject, draw: Draw, layer: Layer | None, found: Findings) -> None:
    """Compare gradients to the inputs, without a mask and with one, T = S and T < S."""
    B = draw.examples(5)
    cases = [draw.case("5 positions", 5, B=B)]
    if subject.crosses:
        cases.append(draw.case("4 queries and 6 keys", 4, 6))
    if subject.takes_mask:
        cases.append(with_padding(draw, draw.case("5 positions and a mask", 5, B=B)))
    if subject.ignores_padded:
        cases = [without_padded_rows(case) for case in cases]
    checked = 0
    for case in cases:
        try:
            with torch.enable_grad():
                mine, out = _gradients(subject, case)
                theirs = _expected(case, draw, layer, {})
        except Exception as error:  # whatever backward raises is an answer
            found.unchecked.append(f"gradients, {case.name}: {quoted(error)}")
            continue
        checked += 1
        expected = compute(case, draw.intent, layer).out
        if out is not None and not equal(out.detach(), expected, case, draw.intent):
            found.property(
                "the output depends on whether gradients are recorded",
                "Under torch.no_grad() the output is right; with gradients it is another one.",
                show(case, out.detach(), expected, draw.intent),
            )
            return
        if not _equal(mine, theirs):
            _report(mine, theirs, case, draw, layer, found)
            return
    if checked:
        names = "the input" if subject.projects else "q, k and v"
        also = ", with a mask too" if subject.takes_mask else ""
        found.holds.append(f"gradients to {names} are those of the reference{also}")


def _gradients(subject: Subject, case: Case) -> tuple[Gradients, Tensor | None]:
    leaves = {role: x.to(subject.dtype).requires_grad_(True) for role, x in case.tensors.items()}
    answer = subject.fresh().ask(Case(**{**vars(case), "tensors": leaves}))
    if answer.out is None or not answer.out.requires_grad:
        return dict.fromkeys(leaves), answer.out
    loss = (answer.out * direction(answer.out, case)).sum()
    grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return dict(zip(leaves, grads, strict=True)), answer.out


def _expected(case: Case, draw: Draw, layer: Layer | None, change: Change) -> Gradients:
    leaves = {r: x.detach().clone().requires_grad_(True) for r, x in case.tensors.items()}
    out = compute(Case(**{**vars(case), "tensors": leaves}), draw.intent, layer, change).out
    if not out.requires_grad:
        return dict.fromkeys(leaves)
    grads = torch.autograd.grad(
        (out * direction(out, case)).sum(), list(leaves.values()), allow_unused=True
    )
    return dict(zip(leaves, grads, strict=True))


def direction(out: Tensor, case: Case) -> Tensor:
    """A fixed direction of the output, in which no row and no channel is special."""
    direction = torch.linspace(-9.0, 9.0, out.numel(), dtype=torch.float64).view(out.shape).sin()
    if case.ignored is None or out.dim() != 3:
        return direction
    return direction.masked_fill(case.ignored[..., None], 0.0)


def _equal(mine: Gradients, theirs: Gradients) -> bool:
    for role, expected in theirs.items():
        got = mine[role]
        if expected is None or got is None:
            other = got if expected is None else expected
            if other is not None and bool(other.any()):
                return False
            continue
        size = 1.0 + expected.abs().max().item()
        if not torch.allclose(got.double(), expected, atol=3e-4 * size, rtol=0.0):
            return False
    return True


def _detached(*roles: str) -> Change:
    def group(run: Run) -> list[Tensor]:
        k, v = repeated(run, run.k), repeated(run, run.v)
        return [k.detach() if "k" in roles else k, v.detach() if "v" in roles else v]

    def score(run: Run) -> Tensor:
        return (run.q.detach() if "q" in roles else run.q) @ run.k.mT

    return {"group": group, "score": score}


DETACHED: dict[tuple[str, ...], Change] = {
    ("gradient_detached_q",): _detached("q"),
    ("gradient_detached_k",): _detached("k"),
    ("gradient_detached_v",): _detached("v"),
    ("gradient_detached_weights",): {"mix": lambda run: run.weights.detach() @ run.v},
    ("gradient_detached_k", "gradient_detached_v"): _detached("k", "v"),
    ("gradient_detached_q", "gradient_detached_v"): _detached("q", "v"),
    ("gradient_detached_q", "gradient_detached_k", "gradient_detached_v"): _detached("q", "k", "v"),
}


def _report(
    mine: Gradients,
    theirs: Gradients,
    case: Case,
    draw: Draw,
    layer: Layer | None,
    found: Findings,
) -> None:
    texts = []
    for role, expected in theirs.items():
        got = mine[role]
        if expected is None or (got is not None and torch.allclose(got.double(), expected, 1e-3)):
            continue
        shown = "none" if got is None else numbers(got.double())
        texts.append(f"gradient of {role}: {shown}, expected {numbers(expected)}")
    example = "\n".join([f"{case.name}:", *texts])
    if all(gradient is None for gradient in mine.values()):
        found.known("gradient_missing", example)
        return
    for names, change in DETACHED.items():
        if _equal(mine, _expected(case, draw, layer, change)):
            for name in names:
                found.known(name, example)
            return
    found.known("gradient_wrong", example)


_WORDS = {"q": "queries", "k": "keys", "v": "values", "out": "the output"}


def check_parameters(subject: Subject, draw: Draw, layer: Layer | None, found: Findings) -> None:
    """Compare gradients to the weights and biases of the projections, and gains of norms."""
    if layer is None:
        return
    twin = subject.fresh()
    if twin.module is None or twin.module is subject.original:
        found.unchecked.append("gradients to the projections: the module cannot be copied")
        return
    case = draw.case("5 positions", 5)
    try:
        mine, theirs = _of_module(twin, twin.module, case), _of_reference(case, draw, layer)
    except Exception as error:  # whatever backward raises is an answer
        found.unchecked.append(f"gradients to the projections: {quoted(error)}")
        return
    largest = max(gradient.abs().max().item() for gradient in theirs.values())
    missing: list[str] = []
    wrong: list[str] = []
    for name, expected in theirs.items():
        got = mine.get(name, torch.zeros_like(expected))
        if torch.allclose(got, expected, rtol=0.0, atol=3e-4 * largest):
            continue
        shown = f"gradient to {name}: {numbers(got)}, expected {numbers(expected)}"
        (wrong if bool(got.any()) else missing).append(shown)
    if missing:
        found.known("gradient_missing_projection", "\n".join([f"{case.name}:", *missing]))
    if wrong:
        found.known("gradient_wrong", "\n".join([f"{case.name}:", *wrong]))
    if not missing + wrong:
        found.holds.append("gradients to the projections are those of the reference")


def _named(layer: Layer) -> dict[str, Tensor]:
    """Everything of a layer that can be trained, with a name in words."""
    tensors = {f"the weight of {_WORDS[role]}": w for role, w in layer.weights.items()}
    for role, bias in layer.biases.items():
        if bias is not None and role in _WORDS:
            tensors[f"the bias of {_WORDS[role]}"] = bias
    for name, x in layer.norms.items():
        role, _, kind = name.partition("_")
        if kind != "eps":
            tensors[f"the {kind or 'gain'} of the norm of {_WORDS[role]}"] = x
    return tensors


def _of_module(twin: Subject, module: nn.Module, case: Case) -> dict[str, Tensor]:
    """Gradients of a copy, read as its weights are read."""
    parameters = dict(module.named_parameters())
    with torch.enable_grad():
        out = twin.ask(case).out
        assert out is not None  # noqa: S101
        loss = (out * direction(out, case)).sum()
        found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    with torch.no_grad():
        for parameter, gradient in zip(parameters.values(), found, strict=True):
            parameter.copy_(torch.zeros_like(parameter) if gradient is None else gradient)
    layers = read_layer(
        module, heads=twin.heads, kv_heads=twin.kv_heads, projections=twin.projections
    )
    return _named(layers[twin.reading])


def _of_reference(case: Case, draw: Draw, layer: Layer) -> dict[str, Tensor]:
    leaves = replace(
        layer,
        weights={role: _leaf(w) for role, w in layer.weights.items()},
        biases={role: None if b is None else _leaf(b) for role, b in layer.biases.items()},
        norms={name: x if "eps" in name else _leaf(x) for name, x in layer.norms.items()},
    )
    named = _named(leaves)
    with torch.enable_grad():
        out = compute(case, draw.intent, leaves).out
        loss = (out * direction(out, case)).sum()
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    pairs = zip(named.items(), found, strict=True)
    return {name: torch.zeros_like(x) if g is None else g for (name, x), g in pairs}


def _leaf(x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_(True)
