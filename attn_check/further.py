"""Properties beside the numbers; most of them only where the numbers are right."""

from attn_check import properties, returned, stepwise
from attn_check.cases import Draw
from attn_check.gradients import check_gradients, check_parameters
from attn_check.modes import check_dropout, check_training
from attn_check.precision import check_precision
from attn_check.reference import Layer
from attn_check.report import Findings
from attn_check.returned import note_empty_rows
from attn_check.search import Hypothesis
from attn_check.subject import Subject
from attn_check.unknown import Answered

_APART = {"dropout_in_evaluation", "mask_fill_overflows_half", "output_dtype"}
_APART |= {"dropout_before_softmax"}
_LEAK = "examples of a batch do not influence each other"


def further(
    subject: Subject,
    draw: Draw,
    answered: Answered,
    hypothesis: Hypothesis | None,
    layer: Layer | None,
    found: Findings,
) -> None:
    """Whatever is not checked is said."""
    properties.check_arguments(subject, draw, found)
    if subject.takes_mask and not subject.mask_refused:
        note_empty_rows(subject, draw, hypothesis, found)
    if hypothesis is not None:
        returned.check_weights(answered, hypothesis, found)
        returned.check_dropped_weights(subject, draw, found)
        check_dropout(subject, draw, hypothesis, found)
    steps = " and steps" if subject.step is not None else ""
    if hypothesis is None or hypothesis.mistakes:
        found.holds = [text for text in found.holds if text != _LEAK]
        found.unchecked.append(
            f"batch, strides, modes, gradients, half precision{steps}: once the output is right"
        )
        return
    layer = hypothesis.layer
    subject.reading = next((i for i, one in enumerate(subject.layers) if one is layer), 0)
    if {failure.mistake for failure in found.failures} - _APART:
        found.unchecked.append(
            f"batch, strides, modes, gradients, half precision{steps}: once this is repaired"
        )
        return
    if subject.takes_mask and not subject.mask_refused:
        properties.check_empty_row(subject, draw, layer, found)
    returned.check_three_inputs(subject, draw, layer, found)
    returned.check_one_query(subject, draw, layer, found)
    properties.check_batch(subject, draw, found)
    properties.check_strides(subject, draw, found)
    check_training(subject, draw, hypothesis, found)
    properties.check_clones(subject, found)
    check_precision(subject, draw, layer, found)
    if {failure.mistake for failure in found.failures} - _APART:
        found.unchecked.append("gradients: once this is repaired")
    else:
        check_gradients(subject, draw, layer, found)
    if not {failure.mistake for failure in found.failures} - _APART:
        check_parameters(subject, draw, layer, found)
    elif layer is not None:
        found.unchecked.append("gradients to the projections: once this is repaired")
    stepwise.check_steps(subject, draw, found)
    returned.check_fewer_key_heads(subject, draw, found)
    returned.say_lengths(answered, found)
