"""What the caller does not say is found out from outside, and each assumption is reported."""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from attn_check import properties
from attn_check.calls import PAIRINGS
from attn_check.cases import Exam, opened
from attn_check.inputs import assume_mask, find_mask
from attn_check.modules import numbers_of, part_of
from attn_check.reference import Case, Intent
from attn_check.search import Pair, agrees, right
from attn_check.subject import Given

ROPE_BASES = (1e4, 5e5, 1e6, 1e5, 1.5e5, 1.6e5, 5e6, 8e6, 1e7, 1e3, 1e2)  # of published models
_SCALE = re.compile(r"(scale|temp|tau)[^.]*$")  # a parameter that says, for one or all heads, how
_WAYS = (lambda x: x, lambda x: 1.0 / x, Tensor.exp, lambda x: x.clamp(max=math.log(100.0)).exp())


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


def _assume_causal(exam: Exam, given: Given) -> None:
    """Whether keys on one side have no influence, and of the others only the nearest have."""
    if given.window is not None and given.causal is None:
        exam.intent = replace(exam.intent, causal=True)
    if given.causal is False or given.window is not None:
        return
    if given.causal:
        exam.guessed.append("")
    else:
        reached = exam.influence(exam.anew().case("influence", 6))
        ahead = torch.arange(6) - torch.arange(6)[:, None]
        if not any(
            not reached[side * ahead > 1].any() and bool(reached[side * ahead < 0].any())
            for side in (1, -1)
        ):
            return
        exam.intent = replace(exam.intent, causal=True)
        exam.guessed.append("it is meant to be causal: some keys have no influence")
    reached = exam.influence(exam.anew().case("window", 24))
    width = int(reached.sum(dim=-1).max())
    back = torch.arange(24)[:, None] - torch.arange(24)
    if 1 < width < 20 and torch.equal(reached, (back >= 0) & (back < width)):
        exam.intent = replace(exam.intent, window=width)
        exam.guessed.append(f"it is meant to have a window of {width}")
    elif given.causal:
        exam.guessed.clear()
    exam.found.assumed += filter(None, exam.guessed)


def _find_inside(exam: Exam) -> Intent:
    """The intent with norms of queries and keys, and RoPE, if exactly they give the output."""
    intent, subject = exam.intent, exam.subject
    cases = [exam.anew().case("inside", T) for T in (24, 5)]  # the longer tells bases apart
    pairs = [(case, answer) for case in cases if (answer := subject.answer(case)).out is not None]
    norms = [intent.qk_norm]
    if intent.qk_norm is None and subject.projects and "q" in subject.layers[0].norms:
        norms = [None, "rms", "layer"]
    scales = [intent.scale]
    if intent.scale is None and subject.projects and subject.module is not None:
        first, named = subject.layers[0], subject.module.named_parameters()
        own = [p.detach().double().view(-1, 1, 1) for n, p in named if _SCALE.search(n)]
        usual = (len(first.weights["q"]) / first.heads) ** -0.5
        fitting = [p for p in own if p.numel() in (1, first.heads)]
        scales += [n * way(p) for p in fitting for n in (1.0, usual) for way in _WAYS]
        norms += ["l2"] if fitting and intent.qk_norm is None else []
    said = numbers_of(subject.module if subject.projects else None).items()
    caps = [intent.softcap, *(x for n, x in said if part_of(n) == "softcap" and not intent.softcap)]
    ropes = [(intent.rope_base, intent.rope_pairing, intent.rope_dims)]
    if intent.rope_base is None:
        some = [int(x) for n, x in said if part_of(n) == "rope_dims" and x >= 2 and x % 2 == 0]
        ropes += product(ROPE_BASES, PAIRINGS, [None, *some])
    every = product(ropes, caps, norms, scales, exam.layers)
    for (base, pairing, dims), cap, kind, scale, layer in every:
        meant = replace(intent, rope_base=base, rope_pairing=pairing, rope_dims=dims)
        meant = replace(meant, qk_norm=kind, scale=scale, softcap=cap)
        if pairs and agrees(pairs[0], right(meant, layer), meant):
            return meant
    return intent


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
        case, order = exam.anew().case("order", 6), torch.tensor([3, 0, 4, 1, 2, 5])
        moved = {r: x if r == "q" else x[..., order, :] for r, x in case.tensors.items()}
        before, after = exam.out(case), exam.out(replace(case, tensors=moved))
        if before is None or after is None or before.shape != after.shape:
            return
        # only where the order of earlier inputs matters to the last query
        if not torch.allclose(before[..., -1, :], after[..., -1, :], atol=1e-4):
            for base, pairing in product(ROPE_BASES[:3], PAIRINGS):
                yield replace(intent, rope_base=base, rope_pairing=pairing)


def settle(exam: Exam, meant: Intent) -> None:
    """Take this for what is meant: what was assumed beside it is dropped."""
    gone = (meant.causal != exam.intent.causal, meant.window != exam.intent.window)
    dropped = {text for text, lost in zip(exam.guessed, gone, strict=False) if lost}
    exam.found.assumed = [text for text in exam.found.assumed if text not in dropped]
    inside = []
    if meant.rope_base != exam.intent.rope_base:
        pairs = "halves" if meant.rope_pairing == "half" else "neighbours"
        some = f", of {meant.rope_dims} channels" if meant.rope_dims else ""
        inside.append(f"RoPE inside, with base {meant.rope_base:.0f}, pairing {pairs}{some}")
    if meant.softcap != exam.intent.softcap:
        inside.append(f"a softcap of {meant.softcap:.6g}")
    if meant.qk_norm != exam.intent.qk_norm:
        inside.append(f"norms of queries and keys ({meant.qk_norm})")
    if meant.scale is not exam.intent.scale:
        inside.append("a scale of its own, which a parameter gives")
    if inside:
        exam.found.assumed.append(f"it is meant to have {' and '.join(inside)}")
    exam.intent = meant


def find_limits(exam: Exam, raised: list[Pair], accepted: list[Case]) -> None:
    """Whole kinds of inputs that are refused are limits; sizes of 1 alone are a mistake."""

    def refused(n: int) -> bool:
        case = exam.anew().case("limit", n)
        return exam.out(opened(case) if exam.subject.always_mask else case) is None

    longest = max(max(case.lengths) for case in accepted)
    top = min((n for case, _ in raised if (n := max(case.lengths)) > longest), default=0)
    if top and refused(top):
        while top - longest > 1:
            middle = (longest + top) // 2
            longest, top = (longest, middle) if refused(middle) else (middle, top)
        exam.found.limits.append(f"more than {longest} positions")

    def kind(case: Case) -> tuple[bool, bool, bool]:
        return case.lengths[0] == case.lengths[1], case.closes, case.training

    if exam.refuses_cross and all(kind(case)[0] for case in accepted):
        exam.found.limits.append("queries and keys of different lengths")
    several = {kind(case): case.name for case in accepted if not case.single}
    for case, answer in raised:
        if case.single and kind(case) in several:
            text = f"With {case.name} it raises {answer.raised}. "
            exam.found.known("size_of_one", f"{text}With {several[kind(case)]} it does not.")
