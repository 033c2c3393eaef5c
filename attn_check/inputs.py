"""How inputs are passed: the layout and the kind of mask, found out from outside."""

from dataclasses import replace
from itertools import product

import torch

from attn_check.calls import IMAGES, LAYOUTS, NAMES, POLARITIES, SHAPES, output_shape
from attn_check.cases import Exam, opened, with_empty_row
from attn_check.modules import read_names
from attn_check.reference import Case, Intent
from attn_check.search import Hypothesis, Pair, explain, outcome, right, rows_of
from attn_check.subject import Answer, Given, Subject


def find_layouts(subject: Subject, intent: Intent, given: str | None = None) -> list[str]:
    """The layouts that accept queries and keys of different lengths, the likeliest first."""
    options: tuple[str, ...] = ("BTd", "TBd", *IMAGES) if subject.projects else LAYOUTS
    if not subject.projects and subject.heads and subject.heads > 1:
        options = tuple(o for o in LAYOUTS if o not in ("Td", "HTd", "THd"))
    options = options if given is None else (given,)
    raised, found = "", list[str]()
    shapes: list[str | None] = [None, *(_mask_options(subject) if subject.takes_mask else ())]
    for shape in shapes:  # without a mask first, then with one that closes nothing
        for sizes in ((4, 7), (5, 5)) if subject.crosses else ((5, 5),):
            for layout in options:
                twin = subject.fresh(layout=layout, always_mask=shape is not None)
                twin.mask_shape = shape or subject.mask_shape
                exam = Exam(twin, intent)
                case = exam.case("layout", *sizes)
                answer = Answer() if found and "Y" in layout else twin.answer(case)
                if answer.out is None:
                    raised = raised or answer.raised
                elif answer.out.shape == output_shape(case, exam.layer):
                    found.append(layout)
                else:
                    raised = raised or f"an output of shape {tuple(answer.out.shape)}"
            if found:
                subject.always_mask = shape is not None
                full = [layout for layout in found if len(layout) == 4]
                return full or found  # of fewer axes only where four are refused
    if raised.startswith(("NameError", "UnboundLocalError", "ImportError", "ModuleNotFoundError")):
        raise ValueError(f"fn fails whatever it is given, mend that first: {raised}")
    masked = ", with a mask or without one" if subject.takes_mask else ""
    raise ValueError(
        f"fn accepts no inputs in any of the layouts {', '.join(options)}{masked}: "
        f"pass layout=, mask_means= or mask_shape= if they are known; the first call gave: {raised}"
    )


def without_projections(subject: Subject, intent: Intent, layout: str | None) -> Subject:
    """A method as a function of projected q, k and v, if it does not use the projections."""
    if not subject.projects or not {"q", "k", "v"} <= subject.roles:
        return subject
    layer = subject.layers[0]
    bare = subject.fresh(layers=[], heads=layer.heads, kv_heads=layer.kv_heads)
    bare.d_k = subject.d_k or layer.weights["q"].shape[0] // layer.heads
    try:
        bare.layout = find_layouts(bare, intent, layout)[0]
    except ValueError:
        return subject
    case, twin = Exam(bare, intent).case("projections", 5), bare.fresh()
    before = bare.answer(case).out
    if twin.module is None or twin.module is subject.original or before is None:
        return subject
    _, by_role = read_names(twin.module, subject.projections, aliases=False)
    first = [name for role, names in by_role.items() if role != "out" for name in names]
    for names in (first, by_role.get("out", [])):
        with torch.no_grad():
            for name in names:
                twin.module.get_parameter(name).add_(1.0)
        after = twin.answer(case).out
        if after is None or not torch.allclose(before, after, equal_nan=True):
            if names is first:
                return subject
            raise ValueError(
                f"{subject.name} applies the module's output projection, but not those of "
                "queries, keys and values: pass the module, or a function without any of them"
            )
    bare.assumed.append(
        f"{subject.name} does not use the module's projections: its q, k and v are projected ones"
    )
    return bare


def assume_mask(exam: Exam, given: Given) -> None:
    """Settle what the mask means, its shape, and what a row that it closes gives."""
    subject, found = exam.subject, exam.found
    known = find_mask(exam, given)
    if known is None or (known[0] == "additive" and given.mask_means is None):
        subject.integer_mask = True  # it may compute with the numbers 0 and 1
        other = find_mask(exam, given)
        subject.integer_mask = other is not None and other[0] != "additive"
        known = other if subject.integer_mask else known
    if known is None and given.mask_means and given.mask_shape:
        # the caller describes a mask that raises: perhaps not where sizes are equal
        subject.polarity, subject.mask_shape = given.mask_means, given.mask_shape
        exam.intent = replace(exam.intent, polarity=given.mask_means)
        probe = exam.anew()
        answer = subject.answer(probe.padded(probe.case("mask", 5)))
        exam.mask_refused = answer.raised or "the output has another shape"
        return
    subject.polarity, subject.mask_shape = known or (subject.polarity, subject.mask_shape)
    unused = known is not None and _is_unused(exam)
    if unused:
        found.known("mask_ignored", "Whatever the mask closes, the output is the same.")
    found.unchecked += [] if known else ["masks: no mask of a known shape and polarity is accepted"]
    if known is None or (unused and not subject.always_mask):  # None is passed from now on
        subject.positional = ["nothing" if r == "mask" else r for r in subject.positional]
        subject.named = {n: "nothing" if r == "mask" else r for n, r in subject.named.items()}
        return
    if given.mask_means is None:
        found.assumed.append(f"what the mask means: {NAMES['masks'][subject.polarity]}")
    if given.mask_shape is None:
        found.assumed.append(f"the mask's shape: {subject.mask_shape}")
    if exam.wider_mask:
        exam.note(
            f"Masks of the shape {exam.wider_mask} are accepted too, but then closed keys have "
            f"an influence: if such masks are meant, pass mask_shape={exam.wider_mask!r}."
        )
    exam.intent = replace(exam.intent, polarity=subject.polarity, empty=find_empty(exam))


def _is_unused(exam: Exam) -> bool:
    """Whether masks that close much, inverted or not, change nothing."""
    twin = exam.anew()
    case, mask = twin.case("mask", 5), twin.allowed_mask(2, 5, 5)
    outs = [exam.out(replace(case, mask=m)) for m in (torch.ones_like(mask), mask, ~mask)]
    return all(x is not None and outs[0] is not None and torch.equal(x, outs[0]) for x in outs)


def _mask_options(subject: Subject) -> tuple[str, ...]:
    """Shapes that a mask may have, the likeliest first."""
    if subject.projects:
        name = next((n for n, role in subject.named.items() if role == "mask"), "")
        if "pad" in name or "attention_mask" in name:
            return ("BS", "B11S", "B1TS", "BTS", "TS", "BHTS")
        return ("B1TS", "BTS", "TS", "BS", "B11S", "BHTS")
    if "H" not in subject.layout and (subject.heads or 1) == 1:
        return ("BTS", "TS", "BS", "B1TS") if "B" in subject.layout else ("TS", "BS")
    return SHAPES


def find_mask(exam: Exam, given: Given) -> tuple[str, str] | None:
    """Polarity and shape of the mask: the first ones with which closed keys have no influence.

    Where there are none, those with which a known mistake gives the output, or else those with
    which closed keys have the least influence. Of masks for all queries alike, examples may be
    confused: those that are right in a batch come first.
    """
    pairs: dict[tuple[str, str], Pair] = {}
    leaks: dict[tuple[str, str], float] = {}
    for (T, S), shape, meaning in product(
        [(4, 7), (5, 5)] if exam.subject.crosses and not exam.intent.causal else [(5, 5)],
        [given.mask_shape] if given.mask_shape else _mask_options(exam.subject),
        [given.mask_means] if given.mask_means else POLARITIES,
    ):
        probe, key = exam.anew(mask_shape=shape, polarity=meaning), (meaning, shape)
        mask = probe.allowed_mask(2, T, S)
        if "T" in shape:  # in every row, one is closed and one is open
            mask = (mask & (torch.arange(S) != 1)) | (torch.arange(S) == 0)
        case = replace(probe.case("mask", T, S), mask=mask)
        answer = probe.subject.answer(case)
        if answer.out is None or answer.out.shape != output_shape(case, probe.layer):
            continue
        if meaning == "additive" and not given.mask_means and not _is_added(probe, case):
            continue
        if given.mask_means and given.mask_shape:
            return key
        pairs.setdefault(key, (case, answer))
        leak = _leak(probe, case.example())
        leaks[key] = min(leak, leaks.get(key, leak))
        if leak == 0.0 and ("T" in shape or _leak(probe, case) == 0.0):
            wider = [s for m, s in pairs if m == meaning and "T" in s]
            exam.wider_mask = wider[0] if wider and "T" not in shape else ""
            return key
    best = min(leaks, key=lambda key: leaks[key], default=None)
    if best is None:
        return None
    for key, pair in pairs.items():
        if explain([pair], replace(exam.intent, polarity=key[0]), exam.layers, depth=1):
            return key
    return best if leaks[best] < 0.05 else next(iter(pairs))


def _leak(exam: Exam, case: Case) -> float:
    """The influence of closed keys as a share of that of open ones; 1 where it cannot be told."""
    assert case.mask is not None  # noqa: S101
    reached, cells = exam.changes(case), case.mask
    if exam.subject.projects and "context" not in case.tensors:  # a key is the query's input too
        apart = ~torch.eye(*case.lengths, dtype=torch.bool)
        reached, cells = reached[:, apart], cells[:, apart]
    closed, opened = reached[~cells], reached[cells]
    if not len(closed) or not len(opened) or opened.max() <= 1e-6:
        return 1.0
    return (closed.max() / opened.max()).item() if closed.max() > 1e-6 else 0.0


def _is_added(exam: Exam, case: Case) -> bool:
    """Whether finite numbers in a mask have an influence, or else True and False have none.

    Integers made of 0 and -inf, or a comparison, may close what -inf closes and add nothing.
    """
    subject, one = exam.subject, case.example()
    zeros, mask = exam.out(one), subject.mask_of(one)
    assert mask is not None  # noqa: S101
    cells = torch.arange(mask.shape[-1]) % 2 == 0  # in every row some have another number
    try:
        with torch.no_grad():
            numbers = mask.where(~cells | mask.isinf(), -0.7)
            out = subject.parse(subject.quiet_call(subject.tensors(one), numbers), one).out
    except Exception:  # 0 and -inf were accepted: it looks at values
        return True
    if out is None or zeros is None or not torch.equal(out, zeros):
        return True
    boolean = exam.anew(polarity="attend")
    masked, bare = boolean.out(one), boolean.out(opened(one))
    return masked is None or bare is None or torch.allclose(masked, bare, equal_nan=True)


def find_empty(exam: Exam, whole: Hypothesis | None = None) -> str:
    """What a row without any open cell gives: nan (also where it is something else), zeros, ..."""
    case = with_empty_row(exam.anew())
    out = exam.out(case)
    if out is None or case.mask is None:
        return "nan"
    rows = ~case.mask.any(dim=-1)  # (B, T)
    for empty, layer in product(("nan", "zeros", "uniform"), exam.layers):
        one = whole or right(replace(exam.intent, causal=False, window=None), layer)
        given = outcome(case, replace(one, intent=replace(one.intent, empty=empty)))
        if given is None or given.shape != out.shape:
            continue
        if torch.allclose(rows_of(out, rows), rows_of(given, rows), 1e-3, 1e-4, equal_nan=True):
            return empty
    return "nan"
