"""Calls beside the battery: queries, keys and values of their own, and a mask for one query."""

from collections.abc import Sequence
from dataclasses import replace

from attn_lib.diagnosis.cases import Draw, key_masks
from attn_lib.diagnosis.findings import Findings, show
from attn_lib.diagnosis.formula import Case, Layer
from attn_lib.diagnosis.reference import compute
from attn_lib.diagnosis.search import equal
from attn_lib.diagnosis.subject import Answer, Subject


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
            "grouped heads; say kv_heads= if they are meant"
        )


def say_lengths(answered: Sequence[tuple[Case, Answer]], found: Findings) -> None:
    """What is right up to some length may be wrong beyond it."""
    longest = max(case.lengths[1] for case, _ in answered)
    found.unchecked.append(f"more than {longest} keys")
