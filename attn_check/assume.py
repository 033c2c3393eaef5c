"""What the caller does not say is found out from outside, and each assumption is reported."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from attn_check import properties
from attn_check.cases import Exam
from attn_check.inputs import assume_mask, find_mask
from attn_check.reference import Intent, triangle
from attn_check.search import agrees, right
from attn_check.subject import Given

ROPE_BASES = (1e4, 5e5, 1e6, 1e5, 1.5e5, 1.6e5, 5e6, 8e6, 1e7, 1e3, 1e2)  # of published models
PAIRINGS = ("half", "neighbours")


def assume(exam: Exam, given: Given) -> None:
    """Settle what is meant, and check that equal calls are equal on the way."""
    subject, found = exam.subject, exam.found
    if subject.always_mask:  # before anything is called without one
        other = (given.mask_means or "attend", given.mask_shape or "B1TS")
        subject.polarity, subject.mask_shape = find_mask(exam, given) or other
        found.assumed.append("fn needs a mask: where none is meant, one that closes nothing")
    probe = exam.anew()
    properties.check_repeats(exam, probe)
    state = None if exam.random else properties.check_state(exam, probe)
    _assume_causal(exam, given)
    if state is not None:
        found.known(state if exam.intent.causal else "state_between_calls", exam.state_example)
    settle(exam, _find_inside(exam))
    if subject.takes_mask:
        assume_mask(exam, given)


# ---------------------------------------------------------------- causal, window, RoPE, norms


def _assume_causal(exam: Exam, given: Given) -> None:
    if given.window is not None and given.causal is None:
        exam.intent = replace(exam.intent, causal=True)
    if given.causal is False or given.window is not None:
        return
    if given.causal:
        exam.guessed.append("")
    elif _is_causal(exam):
        exam.intent = replace(exam.intent, causal=True)
        exam.guessed.append("it is meant to be causal: some keys have no influence")
        exam.later_keys = _later_keys(exam)
    else:
        return
    width = _find_window(exam)
    if width is not None:
        exam.intent = replace(exam.intent, window=width)
        exam.guessed.append(f"it is meant to have a window of {width}")
    elif given.causal:
        exam.guessed.clear()
    exam.found.assumed += filter(None, exam.guessed)


def _is_causal(exam: Exam) -> bool:
    """Whether keys on one side of the query have no influence on it."""
    reached = exam.influence(exam.anew().case("influence", 6))
    distance = torch.arange(6) - torch.arange(6)[:, None]
    return any(
        not reached[side * distance > 1].any() and bool(reached[side * distance < 0].any())
        for side in (1, -1)
    )


def _later_keys(exam: Exam) -> str:
    """To which later keys queries attend, where T and S are equal and where they are not."""
    texts, probe = [], exam.anew()
    for T, S in [(6, 6), (4, 7)] if exam.subject.crosses else [(6, 6)]:
        later = ~triangle(T, S, S - T)
        reached = exam.influence(probe.case("later keys", T, S)) & later
        which = "no later key" if not reached.any() else "all later keys"
        if reached.any() and not reached[later].all():
            t, s = reached.nonzero()[0].tolist()
            which = (
                f"{int(reached.sum())} of {int(later.sum())} later keys, query {t} to key {s} first"
            )
        texts.append(f"with {T} queries and {S} keys, queries attend to {which}")
    return f"Seen: {'; '.join(texts)}. As causal= is not passed, it is taken for causal."


def _find_window(exam: Exam) -> int | None:
    """The window of a causal function, if it has one."""
    reached = exam.influence(exam.anew().case("window", 24))
    width = int(reached.sum(dim=-1).max())
    back = torch.arange(24)[:, None] - torch.arange(24)
    band = (back >= 0) & (back < width)
    return width if 1 < width < 20 and torch.equal(reached, band) else None


def _find_inside(exam: Exam) -> Intent:
    """The intent with norms of queries and keys, and RoPE, if exactly they give the output."""
    intent, subject = exam.intent, exam.subject
    cases = [exam.anew().case("inside", T) for T in (24, 5)]  # the longer tells bases apart
    pairs = [(case, answer) for case in cases if (answer := subject.answer(case)).out is not None]
    norms = [intent.qk_norm]
    if intent.qk_norm is None and subject.projects and "q" in subject.layers[0].norms:
        norms = [None, "rms", "layer"]
    ropes = [(intent.rope_base, intent.rope_pairing)]
    if intent.rope_base is None:
        ropes += [(base, pairing) for base in ROPE_BASES for pairing in PAIRINGS]
    for base, pairing in ropes:
        for kind in norms:
            meant = replace(intent, rope_base=base, rope_pairing=pairing, qk_norm=kind)
            for layer in exam.layers:
                if pairs and agrees(pairs[0], right(meant, layer), meant):
                    return meant
    return intent


def _inside(before: Intent, after: Intent) -> str:
    """What a module has inside, in words."""
    texts = []
    if after.rope_base != before.rope_base:
        pairs = "halves" if after.rope_pairing == "half" else "neighbours"
        texts.append(f"RoPE inside, with base {after.rope_base:.0f}, pairing {pairs}")
    if after.qk_norm != before.qk_norm:
        texts.append(f"norms of queries and keys ({after.qk_norm})")
    return " and ".join(texts)


def intents(exam: Exam) -> Iterator[Intent]:
    """What may be meant: as assumed, with less of it, or, of a module, with RoPE inside."""
    intent = exam.intent
    if exam.guessed:
        yield intent
        yield replace(intent, window=None)
        if exam.guessed[0]:  # else causal is given
            yield replace(intent, causal=False, window=None)
    if intent.rope_base is None and exam.subject.projects and not exam.drifts:
        if not exam.guessed:
            yield intent
        if _is_positional(exam):
            for base in ROPE_BASES[:3]:
                for pairing in PAIRINGS:
                    yield replace(intent, rope_base=base, rope_pairing=pairing)


def settle(exam: Exam, meant: Intent) -> None:
    """Take this for what is meant: what was assumed beside it is dropped."""
    gone = (meant.causal != exam.intent.causal, meant.window != exam.intent.window)
    dropped = {text for text, lost in zip(exam.guessed, gone, strict=False) if lost}
    exam.found.assumed = [text for text in exam.found.assumed if text not in dropped]
    exam.later_keys = exam.later_keys if meant.causal else ""
    if words := _inside(exam.intent, meant):
        exam.found.assumed.append(f"it is meant to have {words}")
    exam.intent = meant


def _is_positional(exam: Exam) -> bool:
    """Whether the order of earlier inputs matters to the last query."""
    case = exam.anew().case("order", 6)
    order = torch.tensor([3, 0, 4, 1, 2, 5])
    moved = {r: x if r == "q" else x[..., order, :] for r, x in case.tensors.items()}
    before, after = exam.out(case), exam.out(replace(case, tensors=moved))
    if before is None or after is None or before.shape != after.shape:
        return False
    return not torch.allclose(before[..., -1, :], after[..., -1, :], atol=1e-4)
