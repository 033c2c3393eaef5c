"""Properties that need no reference for the output: what a call leaves behind, and gradients."""

import torch
from torch import Tensor

from attn_check.cases import Draw, far_below, key_masks, with_empty_row
from attn_check.explore import influence, with_other_key
from attn_check.reference import Case, Intent, Layer, compute
from attn_check.report import Findings, largest, numbers, show
from attn_check.search import equal, reachable
from attn_check.subject import Answer, Subject, quoted

_INDEPENDENT = "a call does not depend on earlier ones"


def check_repeats(subject: Subject, draw: Draw, found: Findings) -> None:
    """Equal calls of fresh copies are equal; if they are not, with dropout switched off."""
    case = draw.case("repeat", 5)
    first, second = subject.fresh().answer(case).out, subject.fresh().answer(case).out
    if first is None or second is None or _same(first, second):
        return
    subject.always_without_dropout = True
    still = [subject.fresh().answer(case).out for _ in range(2)]
    if still[0] is not None and still[1] is not None and _same(still[0], still[1]):
        found.known(
            "dropout_in_evaluation",
            f"Two equal calls in evaluation mode differ by up to {largest(first, second):.3g}; "
            "with dropout switched off they are equal. Everything else was checked without it.",
        )
        return
    subject.always_without_dropout, subject.random = False, True
    found.known(
        "not_deterministic", f"Two equal calls differ by up to {largest(first, second):.3g}."
    )


def check_state(subject: Subject, draw: Draw, found: Findings) -> str | None:
    """A call does not depend on earlier ones: compared with copies that were never called."""
    case, same_length = draw.case("first", 5), draw.case("same length", 5)
    other, more = draw.case("another length", 7), draw.case("more examples", 5, B=5)
    used = subject.fresh()
    for name, now in (
        ("5 positions", case),
        ("5 positions of other values", same_length),
        ("7 positions", other),
        ("the first 5 positions again", case),
        ("5 positions of 5 examples", more),
    ):
        alone, after = subject.fresh().answer(now), used.answer(now)
        if alone.out is None or (after.out is not None and _same(alone.out, after.out)):
            continue
        subject.always_fresh = True
        if after.out is None:
            example = f"A call with {name} raises after earlier calls: {after.raised}"
        else:
            example = (
                f"A call with {name} differs by up to {largest(alone.out, after.out):.3g} after "
                "earlier calls from what it gives as the first call."
            )
        found.state_example = example
        return "causal_cached_length" if name == "7 positions" else "state_between_calls"
    found.holds.append(_INDEPENDENT)
    return None


def check_again(
    subject: Subject, case: Case, answer: Answer, intent: Intent, found: Findings
) -> None:
    """The first call again, some times, after all others: else it depends on these."""
    if subject.always_fresh or subject.drifts or answer.out is None:
        return
    for _ in range(6):
        again = subject.answer(case)
        if again.out is not None and equal(again.out, answer.out, case, intent):
            continue
        subject.drifts = True
        found.holds = [text for text in found.holds if text != _INDEPENDENT]
        if again.out is None:
            example = f"A call that was answered raises when it is repeated: {again.raised}"
        else:
            example = (
                f"The same call ({case.words or case.name}), repeated after others, differs by up "
                f"to {largest(again.out, answer.out):.3g}."
            )
        found.known("state_between_calls", example)
        return


def check_arguments(subject: Subject, draw: Draw, found: Findings) -> None:
    """Tensors and masks that are passed stay as they are."""
    case = draw.case("arguments", 5)
    if subject.takes_mask:
        case = with_padding(draw, case)
    for training in (False, True) if subject.module is not None else (False,):
        case = Case(**{**vars(case), "training": training})
        try:
            tensors, mask = subject.tensors(case), subject.mask_of(case)
            before = {role: x.clone() for role, x in tensors.items()}
            mask_before = None if mask is None else mask.clone()
            with torch.no_grad():
                subject.quiet_call(tensors, mask)
        except Exception:  # other checks report what it raises  # noqa: S112
            continue
        for role, x in tensors.items():
            if not torch.equal(x, before[role]):
                example = f"{role} before the call: {numbers(before[role])}; after: {numbers(x)}."
                found.known("inplace_arguments", example)
        if mask is not None and mask_before is not None and not _same(mask, mask_before):
            changed = "its shape" if mask.shape != mask_before.shape else "its values"
            found.known("inplace_mask", f"The mask that was passed has changed {changed}.")
    if not {f.mistake for f in found.failures} & {"inplace_arguments", "inplace_mask"}:
        found.holds.append("arguments are not changed")


def _same(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return (
        torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))
        if a.is_floating_point()
        else torch.equal(a, b)
    )


def with_padding(draw: Draw, case: Case) -> Case:
    """The case with a mask that its function can be given."""
    B, (T, S), shape = case.batch, case.lengths, draw.subject.mask_shape
    mask = key_masks(B, S, "right").expand(B, T, S)
    if "B" not in shape:
        mask = mask[:1].expand(B, T, S)
    return Case(**{**vars(case), "mask": mask})


def check_batch(subject: Subject, draw: Draw, found: Findings) -> None:
    """Examples of a batch have no influence on each other."""
    case = draw.case("batch", 5, B=3)
    other = {role: torch.cat([x[:1], -2.0 * x[1:]]) for role, x in case.tensors.items()}
    base, moved = subject.answer(case), subject.answer(Case(**{**vars(case), "tensors": other}))
    if base.out is None or moved.out is None or "B" not in subject.layout:
        return
    again = subject.answer(case)
    if again.out is None or not _same(base.out, again.out):
        found.known(
            "state_between_calls", "The same call, with another between, gives two outputs."
        )
        return
    one = Case(**{**vars(case), "tensors": {r: x[:1] for r, x in case.tensors.items()}})
    if equal(base.out[:1], moved.out[:1], one, draw.intent):
        found.holds.append("examples of a batch do not influence each other")
        return
    found.known(
        "batch_leak",
        f"Only examples 1 and 2 of a batch were changed; the output of example 0 changed by up to "
        f"{largest(base.out[:1], moved.out[:1]):.3g}.",
    )


def check_strides(subject: Subject, draw: Draw, found: Findings) -> None:
    """Inputs that are stored in another order give the same output."""
    case = draw.case("strides", 5)
    try:
        tensors = subject.tensors(case)
        strided = {r: x.transpose(0, -1).contiguous().transpose(0, -1) for r, x in tensors.items()}
        with torch.no_grad():
            mask = subject.mask_of(case)
            mine = subject.parse(subject.quiet_call(tensors, mask), case).out
            theirs = subject.parse(subject.quiet_call(strided, mask), case).out
    except Exception as error:
        found.unchecked.append(f"inputs that are not contiguous: {quoted(error)}")
        return
    if mine is not None and theirs is not None and equal(mine, theirs, case, draw.intent):
        found.holds.append("inputs that are not contiguous give the same output")
    elif mine is not None and theirs is not None:
        example = f"The same values, stored in another order: up to {largest(mine, theirs):.3g}."
        found.known("not_contiguous", example)


def check_empty_row(subject: Subject, draw: Draw, layer: Layer | None, found: Findings) -> None:
    """A query that may attend to nothing changes no other query's output."""
    try:
        case = with_empty_row(draw)
        answer = subject.answer(case)
    except ValueError:
        return
    if answer.out is None:
        return
    expected = compute(case, draw.intent, layer).out
    if equal(answer.out, expected, case, draw.intent):
        found.holds.append("a query that may attend to nothing changes no other query")
    else:
        found.known("empty_row_spreads", show(case, answer.out, expected, draw.intent))


def check_closed_keys(subject: Subject, draw: Draw, found: Findings) -> bool:
    """Whether keys that are closed to a query have no influence on it; else a failure."""
    cases = [draw.case("closed", 5, words="5 positions"), far_below(draw)]
    for case in [with_padding(draw, c) if subject.takes_mask else c for c in cases]:
        tensors = {role: x[:1] for role, x in case.tensors.items()}
        mask = None if case.mask is None else case.mask[:1]
        one = Case(**{**vars(case), "tensors": tensors, "mask": mask})
        closed = ~reachable(draw.intent, 5, 5)
        closed = closed if mask is None else closed | ~mask[0]
        seen = influence(subject, one) & closed
        if subject.projects:
            seen = seen & ~torch.eye(len(seen), dtype=torch.bool)
        if seen.any():
            t, s = (int(i) for i in seen.nonzero()[0])
            before, after = (subject.answer(c).out for c in (one, with_other_key(one, s)))
            if before is None or after is None:  # it raises, which others report
                continue
            where = f"{one.words}: key {s} is closed to query {t}, counted from 0"
            shown = _leak(before[0, ..., t, :], after[0, ..., t, :])
            found.known("closed_key_reaches_output", f"{where}; the output of query {t}:\n{shown}")
            return False
    return True


def _leak(before: Tensor, after: Tensor) -> str:
    """Two outputs of one query, (H, d_v) or (d_model), around what differs most."""
    one, two = (out.reshape(-1, out.shape[-1]) for out in (before, after))
    gap = (one - two).abs().nan_to_num(float("inf"))
    head = int(gap.amax(dim=-1).argmax())
    first = max(min(int(gap[head].argmax()), one.shape[-1] - 4), 0)
    texts = [numbers(x[head, first:], digits=6) for x in (one, two)]
    return f"before the key is changed  {texts[0]}\nafter the key is changed   {texts[1]}"


def check_clones(subject: Subject, found: Findings) -> None:
    """The projections of queries and keys start with different weights."""
    if not subject.projects:
        return
    weights = subject.layers[0].weights
    for one, two in (("q", "k"), ("q", "v"), ("k", "v")):
        if weights[one].shape == weights[two].shape and torch.equal(weights[one], weights[two]):
            found.known("projections_cloned", f"The weights of {one} and {two} are equal.")
            return
    found.holds.append("queries, keys and values have weights of their own")
