"""What a call returns: weights, one query alone, rows that may attend to nothing."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from attn_check.cases import Draw, key_masks, with_empty_row
from attn_check.reference import Case, Layer, Run, compute
from attn_check.report import Findings, Note, numbers, show
from attn_check.search import Hypothesis, equal, open_rows
from attn_check.subject import Answer, Subject

_RATES = ("dropout", "dropout_p", "attn_dropout", "attention_dropout", "p", "drop", "attn_drop")


def check_weights(
    answered: Sequence[tuple[Case, Answer]], hypothesis: Hypothesis, found: Findings
) -> None:
    """Compare returned weights with those of the formula that gives the output.

    Scores before the scale are among what is called before the softmax.
    """
    returned = [(c, a.weights) for c, a in answered if a.weights is not None and not c.closes]
    for case, weights in returned:
        run = compute(case, hypothesis.intent, hypothesis.layer, hypothesis.change)
        rows = open_rows(case, hypothesis.intent)
        if rows is not None:  # what an empty row gives is a note, not a mistake
            closed = ~rows[:, None, :, None]
            run.weights, weights = (w.masked_fill(closed, 0.0) for w in (run.weights, weights))
        if same_weights(weights, run.weights):
            continue
        averaged = run.weights.mean(dim=1, keepdim=True)
        if weights.shape[1] == 1 < run.weights.shape[1] and same_weights(weights, averaged):
            found.known("weights_averaged", f"Their shape is {tuple(weights.shape)}.")
            return
        scaled = weights * run.q.shape[-1] ** -0.5
        early = gives_weights(weights, run.weights) or gives_weights(scaled, run.weights)
        name = "weights_before_softmax" if early else "weights_wrong"
        gap = (weights - run.weights).abs().nan_to_num(float("inf"))
        worst = int(gap.amax(dim=-1).flatten().argmax())
        row, expected = (
            w.expand(run.weights.shape).flatten(0, -2)[worst] for w in (weights, run.weights)
        )
        found.known(
            name,
            f"{case.words or case.name}, one row:\nactual    {numbers(row)}\n"
            f"expected  {numbers(expected)}",
        )
        return
    if returned:
        found.holds.append("returned weights are those that give the output")


def gives_weights(returned: Tensor, weights: Tensor) -> bool:
    """Whether the softmax of what is returned gives the weights."""
    if returned.shape != weights.shape:
        return False
    opened = returned.masked_fill(weights == 0.0, -torch.inf)
    return any(same_weights(scores.softmax(dim=-1), weights) for scores in (returned, opened))


def same_weights(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of weights are equal, but for rounding."""
    if a.shape != b.shape:
        return False
    size = 1.0 + b[b.isfinite()].abs().max().item() if b.isfinite().any() else 1.0
    return torch.allclose(a, b, atol=1e-4 * size, equal_nan=True)


def check_dropped_weights(subject: Subject, draw: Draw, found: Findings) -> None:
    """In training, returned weights are those before dropout."""
    if subject.module is None or not _drops(subject.module):
        return
    case = draw.case("training", 5, training=True)
    twin = subject.fresh()
    twin.with_dropout = True
    settled = subject.answer(case).weights
    weights = [twin.answer(case).weights for _ in range(4)]
    dropped = [w for w in weights if w is not None and settled is not None]
    dropped = [w for w in dropped if settled is not None and not same_weights(w, settled)]
    if dropped:
        sums = dropped[0].sum(dim=-1).flatten()
        found.known(
            "weights_after_dropout",
            f"Rows of the weights sum to {sums.min().item():.3g} to {sums.max().item():.3g}.",
        )


def _drops(module: nn.Module) -> bool:
    for part in module.modules():
        for name in _RATES:
            value = getattr(part, name, None)
            if isinstance(value, float) and 0.0 < value < 1.0:
                return True
    return False


def check_three_inputs(subject: Subject, draw: Draw, layer: Layer | None, found: Findings) -> None:
    """A module of (q, k, v), where all three differ."""
    if layer is None or not {"q", "k", "v"} <= subject.roles:
        return
    case = draw.cross(draw.case("three inputs", 5))
    values = draw.size * draw.normal(2, 5, layer.weights["v"].shape[1])
    case = replace(case, tensors={**case.tensors, "values": values}, words="three different inputs")
    answer = subject.answer(case)
    if answer.out is None:
        found.unchecked.append(f"keys that are not also the values: {answer.raised}")
        return
    expected = compute(case, draw.intent, layer).out
    if equal(answer.out, expected, case, draw.intent):
        found.holds.append("keys and values are each read from their own input")
        return
    ignored = []
    for role, name in (("context", "key"), ("values", "value")):
        moved = replace(case, tensors={**case.tensors, role: -2.0 * case.tensors[role] + 1.0})
        out = subject.answer(moved).out
        if out is not None and equal(out, answer.out, case, draw.intent):
            ignored.append(f"Another {name} gives the same output.")
    found.property(
        "keys and values are not read from their own inputs",
        " ".join(["Right where the same tensor is passed as both, wrong otherwise.", *ignored]),
        show(case, answer.out, expected, draw.intent),
    )


def check_one_query(subject: Subject, draw: Draw, layer: Layer | None, found: Findings) -> None:
    """A mask in a step of decoding: one query, several keys."""
    if not subject.takes_mask or subject.mask_refused or not subject.crosses:
        return
    if subject.broadcasts(draw.intent):
        return
    B = 2 if "B" in subject.mask_shape else 1
    mask = key_masks(B, 6, "left").expand(2, 1, 6)
    case = replace(draw.case("one query", 1, 6), mask=mask, words="1 query, 6 keys and a mask")
    answer = subject.answer(case)
    if answer.out is None:
        return
    expected = compute(case, draw.intent, layer).out
    if equal(answer.out, expected, case, draw.intent):
        return
    bare = compute(replace(case, mask=None), draw.intent, layer).out
    if equal(answer.out, bare, case, draw.intent):
        text = "With 1 query and 6 keys the output is that without a mask, although one is passed."
    else:
        text = "With a mask, 1 query and 6 keys the output is not attention's."
    found.property(
        "a mask for a single query is not respected",
        text,
        show(case, answer.out, expected, draw.intent),
    )


def check_fewer_key_heads(subject: Subject, draw: Draw, found: Findings) -> None:
    """Grouped heads that nobody mentioned: whether they are accepted, and what they give."""
    if subject.projects or subject.kv_heads or not (subject.heads or "H" in subject.layout):
        return
    H = subject.heads or 4
    if H % 2 or subject.random or subject.drifts:
        return
    twin = replace(subject.fresh(), heads=H, kv_heads=H // 2)
    case = Draw(twin, draw.intent).case("fewer key heads", 5, words=f"{H} heads, {H // 2} of keys")
    answer = twin.answer(case)
    expected = compute(case, draw.intent, None).out
    if answer.out is None or answer.out.shape != expected.shape:
        return
    if equal(answer.out, expected, case, draw.intent):
        found.holds.append(f"equal to the reference with {H} query heads and {H // 2} key heads")
    else:
        found.unchecked.append(
            "fewer key heads than query heads: they are accepted, and the output is not that of "
            "grouped heads; pass kv_heads= if they are meant"
        )


def say_lengths(answered: Sequence[tuple[Case, Answer]], found: Findings) -> None:
    """What is right up to some length may be wrong beyond it."""
    longest = max(case.lengths[1] for case, _ in answered)
    found.unchecked.append(f"more than {longest} keys")


_OF_WEIGHTS = {"close", "softmax", "mask", "causal", "window", "reach"}


def note_empty_rows(
    subject: Subject, draw: Draw, hypothesis: Hypothesis | None, found: Findings
) -> None:
    """Say what such a query gives; of numbers that nothing explains, only whether it is NaN."""
    try:
        case = with_empty_row(draw)
    except ValueError:
        return
    out = subject.answer(case).out
    if out is None or case.mask is None or out.shape[0] != case.batch:
        return
    rows = ~case.mask.any(dim=-1)  # (B, T)
    mine = out[rows] if out.dim() == 3 else out.transpose(1, 2)[rows]
    words = "gives NaN" if bool(mine.isnan().all()) else ""
    if not words and hypothesis is not None:
        words = "gives neither zeros, nor NaN, nor the mean of the values"
        for share, others in ((0.0, ""), (1.0, "attends to all positions equally")):
            expected = _with_weights(case, hypothesis, share)
            theirs = expected[rows] if out.dim() == 3 else expected.transpose(1, 2)[rows]
            if mine.shape == theirs.shape and torch.allclose(mine, theirs, atol=1e-4, rtol=1e-3):
                words = others
    if words:
        text = f"A query that may attend to nothing {words}; in attn_lib it gives zeros."
        found.notes.append(Note(None, text))


def _with_weights(case: Case, hypothesis: Hypothesis, share: float) -> Tensor:
    """The output if all weights were ``share`` / S, and all else as it was found to be."""

    def weights(run: Run) -> Tensor:
        return torch.full_like(run.scores, share / run.scores.shape[-1])

    change = hypothesis.change
    if _OF_WEIGHTS & change.keys():  # what else it changes belongs to its weights
        change = {name: stage for name, stage in change.items() if name != "mix"}
    stages = {**change, "softmax": weights}
    return compute(case, hypothesis.intent, hypothesis.layer, stages).out
