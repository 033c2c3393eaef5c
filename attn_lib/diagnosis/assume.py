"""What is not said is found out, each assumption is said, and a wrong one is dropped."""

from dataclasses import dataclass, replace

from attn_lib.diagnosis import explore, properties
from attn_lib.diagnosis.arguments import never_passed
from attn_lib.diagnosis.cases import Draw
from attn_lib.diagnosis.findings import Findings, grouped
from attn_lib.diagnosis.formula import Intent
from attn_lib.diagnosis.masks_read import find_mask
from attn_lib.diagnosis.report import Note
from attn_lib.diagnosis.subject import Subject
from attn_lib.diagnosis.verdict import PROPERTIES, examine


@dataclass(frozen=True)
class Said:
    """What the caller says of the inputs, and what may be found out instead."""

    layout: str | None = None
    mask: str | None = None
    mask_shape: str | None = None
    causal: bool | str | None = None
    window: int | None = None


def investigate(subject: Subject, intent: Intent, said: Said) -> Findings:
    """Examine the function in the first layout that it accepts, and explains what it does.

    Args:
        subject: what is called.
        intent: what is meant.
        said: what need not be found out.

    Returns:
        Findings: those of the first layout, unless only another one explains the answers.

    Raises:
        ValueError: a function that accepts no input.

    Example:
        >>> from attn_lib import attention
        >>> mine = Subject(attention, "mine", ["q", "k", "v"], {}, {})
        >>> investigate(mine, Intent(), Said()).assumed
        ['the layout is BHTd']

    Source: :func:`attn_lib.diagnosis.diagnose`.
    """
    flag = next((name for name, role in subject.others.items() if role == "causal"), None)
    if said.causal and flag is not None and flag not in subject.options:
        subject.options[flag] = True
        subject.assumed.append(f"{flag}=True is passed in each call")
    never = _never_passed(subject)
    layout = said.layout
    if layout is None and getattr(subject.module, "batch_first", True) is False:
        layout = "TBd"
    subject.mask_shape = said.mask_shape or subject.mask_shape
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
        examine(twin, _assume(twin, intent, said, found), found)
        found.unchecked = grouped(found.unchecked)
        if {failure.mistake for failure in found.failures}.isdisjoint({None, *PROPERTIES}):
            return found
        first = found if first is None else first
    assert first is not None  # noqa: S101
    return first


def _never_passed(subject: Subject) -> list[str]:
    """Parameters that no call is given; a number of heads is said under what is assumed."""
    heads = [name for name, role in subject.others.items() if role == "heads"]
    known, steps = (*subject.options, *heads), subject.step is not None
    return never_passed(subject.fn, subject.positional, subject.named, *known, steps=steps)


def _assume(subject: Subject, intent: Intent, said: Said, found: Findings) -> Intent:
    if subject.always_mask:  # before anything is called without one
        known = find_mask(subject, intent, polarity=said.mask, shape=said.mask_shape)
        other = (said.mask or "attend", said.mask_shape or "B1TS")
        subject.polarity, subject.mask_shape = known or other
        found.assumed.append("fn needs a mask: where none is meant, one that closes nothing")
    draw = Draw(subject, intent)
    properties.check_repeats(subject, draw, found)
    state = None if subject.random else properties.check_state(subject, draw, found)
    intent = _assume_causal(subject, intent, said, found)
    if state is not None:
        named = state if intent.causal else "state_between_calls"
        found.known(named, found.state_example)
    intent, inside = explore.find_inside(subject, intent)
    if inside:
        found.assumed.append(f"it is meant to have {inside}")
    return _assume_mask(subject, intent, found, said) if subject.takes_mask else intent


def _assume_causal(subject: Subject, intent: Intent, said: Said, found: Findings) -> Intent:
    if said.window is not None and said.causal is None:
        return replace(intent, causal=True)
    if said.causal is False or said.window is not None:
        return intent
    if said.causal:
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
    found.seen = explore.later_keys(subject, Draw(subject, intent))
    width = explore.find_window(subject, Draw(subject, intent))
    if width is not None:
        intent = replace(intent, window=width)
        found.guessed.append(f"it is meant to have a window of {width}")
    found.assumed += found.guessed
    return intent


def _assume_mask(subject: Subject, intent: Intent, found: Findings, said: Said) -> Intent:
    mask, mask_shape = said.mask, said.mask_shape
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
            "attend": "True = may attend; if not, say mask='blocked'",
            "blocked": "True = closed; if not, say mask='attend'",
            "additive": "it is added, 0 or −inf",
        }
        found.assumed.append(f"what the mask means: {words[subject.polarity]}")
    if mask_shape is None:
        found.assumed.append(f"the mask's shape: {subject.mask_shape}")
    if subject.wider_mask:
        text = (
            f"Masks of the shape {subject.wider_mask} are accepted too, but then closed keys have "
            f"an influence: if such masks are meant, say mask_shape={subject.wider_mask!r}."
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
