"""What a mask means and which shape it has, where the caller does not say it."""

from dataclasses import replace

import torch

from attn_lib.diagnosis.cases import Draw, key_masks, matrix_mask, opened
from attn_lib.diagnosis.explore import changes, changes_of_each, fits, mask_options
from attn_lib.diagnosis.formula import Case, Intent, Layer
from attn_lib.diagnosis.layouts import POLARITIES
from attn_lib.diagnosis.search import explain
from attn_lib.diagnosis.subject import Answer, Subject

Accepted = dict[tuple[str, str], tuple[Case, Answer]]


def find_mask(
    subject: Subject, intent: Intent, *, polarity: str | None, shape: str | None
) -> tuple[str, str] | None:
    """Polarity and shape of the mask: the first ones with which closed keys have no influence.

    Where there are none, those with which a known mistake gives the output, or else those with
    which closed keys have the least influence. Of masks for all queries alike, examples may be
    confused: those that are right in a batch come first.

    Args:
        subject: what is called.
        intent: what is meant.
        polarity: what the caller said.
        shape: what the caller said.

    Returns:
        ``(polarity, shape)``, or None where no mask is accepted.

    Example:
        >>> from attn_lib import attention
        >>> mine = Subject(attention, "mine", ["q", "k", "v"], {"mask": "mask"}, {})
        >>> find_mask(mine, Intent(), polarity=None, shape=None)
        ('attend', 'B1TS')

    Source: the conventions of PyTorch, transformers and ONNX.
    """
    before = (subject.polarity, subject.mask_shape)
    accepted: Accepted = {}
    alone: list[tuple[str, str]] = []
    options = [polarity] if polarity else list(POLARITIES)
    sizes = [(4, 7), (5, 5)] if subject.crosses and not intent.causal else [(5, 5)]
    try:
        for T, S in sizes:
            for candidate in list(mask_options(subject, shape)):
                for meaning in options:
                    subject.mask_shape, subject.polarity = candidate, meaning
                    case = _probe(Draw(subject, intent), T, S, candidate)
                    answer = subject.answer(case)
                    if answer.out is None or not fits(answer.out, case, subject, intent):
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
    seen, cells = changes(subject, one), one.mask[0]
    off = ~torch.eye(*cells.shape, dtype=torch.bool)
    off = off if subject.projects and "context" not in case.tensors else torch.ones_like(off)
    if not (~cells & off).any() or not (cells & off).any():
        return 1.0
    return (seen[~cells & off].max() / seen[cells & off].max().clamp(min=1e-9)).item()


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
    seen, cells = changes_of_each(subject, case) > 1e-6, case.mask
    if cells[0].all() or not (seen & cells).any():
        return False
    if subject.projects and "context" not in case.tensors:
        seen = seen & ~torch.eye(len(seen[0]), dtype=torch.bool)  # x is the query's input too
    return not (seen & ~cells).any()
