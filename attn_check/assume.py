"""What is not given is found out, each assumption is reported, and a wrong one is dropped."""

from dataclasses import dataclass, replace

import torch

from attn_check import explore, properties
from attn_check.cases import Draw, key_masks, matrix_mask, opened
from attn_check.conventions import POLARITIES, never_passed
from attn_check.reference import Case, Intent, Layer
from attn_check.report import Findings, Note, grouped
from attn_check.search import explain
from attn_check.subject import Answer, Subject
from attn_check.verdict import PROPERTIES, examine

Accepted = dict[tuple[str, str], tuple[Case, Answer]]


@dataclass(frozen=True)
class Given:
    """What the caller says of the inputs; None: it is found out."""

    layout: str | None = None
    mask: str | None = None
    mask_shape: str | None = None
    causal: bool | str | None = None
    window: int | None = None


def investigate(subject: Subject, intent: Intent, given: Given) -> Findings:
    """The findings of the first layout that is accepted, unless another alone explains all."""
    flag = next((name for name, role in subject.others.items() if role == "causal"), None)
    if given.causal and flag is not None and flag not in subject.options:
        subject.options[flag] = True
        subject.assumed.append(f"{flag}=True is passed in each call")
    never = _never_passed(subject)
    layout = given.layout
    if layout is None and getattr(subject.module, "batch_first", True) is False:
        layout = "TBd"
    subject.mask_shape = given.mask_shape or subject.mask_shape
    first: Findings | None = None
    for candidate in explore.find_layouts(subject, intent, layout):
        twin, found = replace(subject.fresh(), layout=candidate), Findings()
        found.assumed += subject.assumed
        found.unchecked += never
        if first is not None:
            found.seconds = 0.0  # for pairs of mistakes
        usual = subject.projects and candidate == "BTd"
        if layout is None and not usual:
            found.assumed.append(f"the layout is {candidate}")
        examine(twin, _assume(twin, intent, given, found), found)
        found.unchecked = grouped(found.unchecked)
        if {failure.mistake for failure in found.failures}.isdisjoint({None, *PROPERTIES}):
            return found
        first = found if first is None else first
    assert first is not None  # noqa: S101
    return first


def _never_passed(subject: Subject) -> list[str]:
    """Parameters that no call is given; a number of heads is reported among what is assumed."""
    heads = [name for name, role in subject.others.items() if role == "heads"]
    known, steps = (*subject.options, *heads), subject.step is not None
    return never_passed(subject.fn, subject.positional, subject.named, *known, steps=steps)


def _assume(subject: Subject, intent: Intent, given: Given, found: Findings) -> Intent:
    if subject.always_mask:  # before anything is called without one
        known = find_mask(subject, intent, polarity=given.mask, shape=given.mask_shape)
        other = (given.mask or "attend", given.mask_shape or "B1TS")
        subject.polarity, subject.mask_shape = known or other
        found.assumed.append("fn needs a mask: where none is meant, one that closes nothing")
    draw = Draw(subject, intent)
    properties.check_repeats(subject, draw, found)
    state = None if subject.random else properties.check_state(subject, draw, found)
    intent = _assume_causal(subject, intent, given, found)
    if state is not None:
        named = state if intent.causal else "state_between_calls"
        found.known(named, found.state_example)
    intent, inside = explore.find_inside(subject, intent)
    if inside:
        found.assumed.append(f"it is meant to have {inside}")
    return _assume_mask(subject, intent, found, given) if subject.takes_mask else intent


def _assume_causal(subject: Subject, intent: Intent, given: Given, found: Findings) -> Intent:
    if given.window is not None and given.causal is None:
        return replace(intent, causal=True)
    if given.causal is False or given.window is not None:
        return intent
    if given.causal:
        width = explore.find_window(subject, Draw(subject, intent))
        if width is not None:
            intent = replace(intent, window=width)
            found.guessed += ["", f"it is meant to have a window of {width}"]
            found.assumed.append(found.guessed[1])
        return intent
    if not explore.find_causal(subject, Draw(subject, intent)):
        return intent
    intent = replace(intent, causal=True)
    found.guessed.append("it is meant to be causal: some keys have no influence")
    found.later_keys = explore.later_keys(subject, Draw(subject, intent))
    width = explore.find_window(subject, Draw(subject, intent))
    if width is not None:
        intent = replace(intent, window=width)
        found.guessed.append(f"it is meant to have a window of {width}")
    found.assumed += found.guessed
    return intent


def _assume_mask(subject: Subject, intent: Intent, found: Findings, given: Given) -> Intent:
    mask, mask_shape = given.mask, given.mask_shape
    known = find_mask(subject, intent, polarity=mask, shape=mask_shape)
    if known is None and mask is not None and mask_shape is not None:
        return _refused(subject, intent, mask, mask_shape)
    if known is None:
        found.unchecked.append("masks: no mask of a known shape and polarity is accepted")
        subject.positional = [r for r in subject.positional if r != "mask"]
        subject.named = {n: r for n, r in subject.named.items() if r != "mask"}
        return intent
    subject.polarity, subject.mask_shape = known
    if mask is None:
        words = {
            "attend": "True = may attend; if not, pass mask_means='blocked'",
            "blocked": "True = closed; if not, pass mask_means='attend'",
            "additive": "it is added, 0 or −inf",
        }
        found.assumed.append(f"what the mask means: {words[subject.polarity]}")
    if mask_shape is None:
        found.assumed.append(f"the mask's shape: {subject.mask_shape}")
    if subject.wider_mask:
        text = (
            f"Masks of the shape {subject.wider_mask} are accepted too, but then closed keys have "
            f"an influence: if such masks are meant, pass mask_shape={subject.wider_mask!r}."
        )
        found.notes.append(Note(None, text))
    intent = replace(intent, polarity=subject.polarity)
    empty = explore.find_empty(subject, Draw(subject, intent))
    return replace(intent, empty=empty if empty in ("nan", "zeros", "uniform") else "nan")


def _refused(subject: Subject, intent: Intent, mask: str, mask_shape: str) -> Intent:
    """A mask that the caller describes, and that raises: perhaps not where sizes are equal."""
    subject.polarity, subject.mask_shape = mask, mask_shape
    draw = Draw(subject, intent)
    answer = subject.answer(properties.with_padding(draw, draw.case("mask", 5)))
    subject.mask_refused = answer.raised or "the output has another shape"
    return replace(intent, polarity=mask)


def find_mask(
    subject: Subject, intent: Intent, *, polarity: str | None, shape: str | None
) -> tuple[str, str] | None:
    """Polarity and shape of the mask: the first ones with which closed keys have no influence.

    Where there are none, those with which a known mistake gives the output, or else those with
    which closed keys have the least influence. Of masks for all queries alike, examples may be
    confused: those that are right in a batch come first.
    """
    before = (subject.polarity, subject.mask_shape)
    accepted: Accepted = {}
    alone: list[tuple[str, str]] = []
    options = [polarity] if polarity else list(POLARITIES)
    sizes = [(4, 7), (5, 5)] if subject.crosses and not intent.causal else [(5, 5)]
    try:
        for T, S in sizes:
            for candidate in list(explore.mask_options(subject, shape)):
                for meaning in options:
                    subject.mask_shape, subject.polarity = candidate, meaning
                    case = _probe(Draw(subject, intent), T, S, candidate)
                    answer = subject.answer(case)
                    if answer.out is None or not explore.fits(answer.out, case, subject):
                        continue
                    if meaning == "additive" and not polarity and not _added(subject, case):
                        continue
                    accepted.setdefault((meaning, candidate), (case, answer))
                    if polarity and shape:
                        return polarity, shape
                    if not _closes(subject, _first(case)):
                        continue
                    if "T" in candidate or _closes(subject, case):
                        if "T" not in candidate:
                            wider = [s for m, s in accepted if m == meaning and "T" in s]
                            subject.wider_mask = wider[0] if wider else ""
                        return meaning, candidate
                    alone.append((meaning, candidate))
        return alone[0] if alone else _likeliest(subject, intent, accepted)
    finally:
        subject.polarity, subject.mask_shape = before


def _likeliest(subject: Subject, intent: Intent, accepted: Accepted) -> tuple[str, str] | None:
    layers: list[Layer | None] = list(subject.layers) or [None]
    for (meaning, shape), pair in accepted.items():
        if explain([pair], replace(intent, polarity=meaning), layers, depth=1):
            return meaning, shape
    shares = {}
    for (meaning, shape), (case, _) in accepted.items():
        subject.polarity, subject.mask_shape = meaning, shape
        shares[meaning, shape] = _share(subject, case)
    best = min(shares, key=lambda key: shares[key], default=None)
    return best if best is not None and shares[best] < 0.05 else next(iter(accepted), None)


def _share(subject: Subject, case: Case) -> float:
    """The influence of closed keys on the first example, as a share of that of open ones."""
    one = _first(case)
    assert one.mask is not None  # noqa: S101
    reached, cells = explore.changes(subject, one), one.mask[0]
    off = ~torch.eye(*cells.shape, dtype=torch.bool)
    off = off if subject.projects and "context" not in case.tensors else torch.ones_like(off)
    if not (~cells & off).any() or not (cells & off).any():
        return 1.0
    return (reached[~cells & off].max() / reached[cells & off].max().clamp(min=1e-9)).item()


def _first(case: Case) -> Case:
    """The first example alone."""
    assert case.mask is not None  # noqa: S101
    alone = {role: x[:1] for role, x in case.tensors.items()}
    return replace(case, tensors=alone, mask=case.mask[:1])


def _probe(draw: Draw, T: int, S: int, shape: str) -> Case:
    if shape in ("BS", "B11S"):
        mask = key_masks(2, S, "right").expand(2, T, S)
    else:
        mask = matrix_mask(draw, 2 if "B" in shape else 1, T, S).expand(2, T, S)
        mask = mask & (torch.arange(S) != 1)
        mask[..., 0] = True
    case = draw.case("mask", T, S)
    return Case(**{**vars(case), "mask": mask})


def _added(subject: Subject, case: Case) -> bool:
    """Whether finite numbers in a mask have an influence, or else True and False have none.

    Integers made of 0 and -inf, or a comparison, may close what -inf closes and add nothing.
    """
    one = _first(case)
    zeros, mask, tensors = subject.answer(one).out, subject.mask_of(one), subject.tensors(one)
    assert mask is not None  # noqa: S101
    cells = torch.arange(mask.shape[-1]) % 2 == 0  # in every row some have another number
    try:
        with torch.no_grad():
            called = subject.quiet_call(tensors, mask.where(~cells | mask.isinf(), -0.7))
        numbers = subject.parse(called, one).out
    except Exception:  # 0 and -inf were accepted: it looks at values
        return True
    if numbers is None or zeros is None or not torch.equal(numbers, zeros):
        return True
    subject.polarity = "attend"
    masked, bare = (subject.answer(c).out for c in (one, opened(one)))
    subject.polarity = "additive"
    return masked is None or bare is None or torch.allclose(masked, bare, equal_nan=True)


def _closes(subject: Subject, case: Case) -> bool:
    """Whether closed keys have no influence, in any example of a batch, and some others have."""
    assert case.mask is not None  # noqa: S101
    reached, cells = explore.changes_of_each(subject, case) > 1e-6, case.mask
    if cells[0].all() or not (reached & cells).any():
        return False
    if subject.projects and "context" not in case.tensors:
        reached = reached & ~torch.eye(
            len(reached[0]), dtype=torch.bool
        )  # x is the query's input too
    return not (reached & ~cells).any()
