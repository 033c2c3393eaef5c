"""``diagnose``: what is wrong with my attention?

``python -m attn_check module:function`` does the same from a shell.
"""

import copy
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from attn_check import calls, rope
from attn_check.audit import Audit, assert_same_answer, audit
from attn_check.examine import investigate
from attn_check.inputs import without_projections
from attn_check.reference import Intent
from attn_check.report import Failure, Note, Report
from attn_check.runs import Finding
from attn_check.subject import Given, module_of, read_subject

__all__ = ["Audit", "Failure", "Finding", "Note", "Report", "assert_attention", "assert_rope"]
__all__ += ["assert_same_answer", "audit", "diagnose", "diagnose_rope"]


def diagnose(
    fn: Callable,
    *,
    arguments: str | None = None,
    options: Mapping[str, Any] | None = None,
    layout: str | None = None,
    mask_means: str | None = None,
    mask_shape: str | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    d_k: int | None = None,
    causal: bool | str | None = None,
    window: int | None = None,
    sinks: Tensor | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    qk_norm: str | None = None,
    rope_base: float | None = None,
    rope_pairing: str = "half",
    rope_dims: int | None = None,
    attn_bias: Callable[[int, int], Tensor] | None = None,
    prenorm: str | None = None,
    projections: Mapping[str, str] | None = None,
    module: nn.Module | None = None,
    step: Callable | None = None,
) -> Report:
    """Say in words what is wrong with somebody's attention.

    The function is called with small chosen inputs and compared with the formula. Where it
    differs, the known mistakes are tried: the one that gives the same numbers everywhere is the
    diagnosis. What you declare (causal, a window, another scale, …) is not reported as a mistake;
    what you leave out is inferred where it can be, and the report lists each inference.

    Pass causal, rope_base and step first, where they apply. For a function that rotates queries
    and keys, :func:`diagnose_rope`. Parameters of a copied module that are all equal, such as
    biases of zero, are replaced by random ones, so that nothing hides behind them.

    Args:
        fn: a function of queries, keys and values, or a module of ``x`` (and ``context``), with
            or without a mask. It returns the output, or a tuple that starts with it; weights that
            follow are checked too (scores in their place, as Whisper returns them, are a warning).
            A module is copied, to the CPU: yours stays as it is. A method of (q, k, v) that uses
            no projection of its module is taken for a function.
        arguments: the roles of what is passed, in order, or as name=role: ``"q, k, v, mask"``,
            ``"x, memory=context, attn_mask=mask"``. Roles: q, k, v, x, context, mask,
            context_mask. Default: from the names of the parameters.
        options: further keyword arguments of every call.
        layout: the axes of the inputs, as letters: ``"BHTd"``, ``"BTHd"``, ``"TBHd"``, ``"HTd"``,
            ``"THd"``, ``"BTd"``, ``"TBd"``, ``"Td"``. Without H there is one head, or there are
            ``heads`` of them side by side. A module of images: ``"BdYX"``, ``"BYXd"``. Default:
            the first that works.
        mask_means: ``"attend"`` (True = may attend), ``"blocked"`` (True = closed) or
            ``"additive"`` (0 and −inf). Default: the first in which closed keys have no influence.
        mask_shape: ``"B1TS"``, ``"BTS"``, ``"BS"``, ``"TS"``, ``"B11S"`` or ``"BHTS"``. Default:
            the first in which closed keys have no influence.
        heads: H, where it is fixed; default: what a module or such a parameter says, or what fits.
        kv_heads: H_kv, of grouped heads; default H, or what a module says.
        d_k: width of a query, where it is fixed. Default: 8 (12 beside 8 heads), once twice that.
        causal: whether queries attend to no later key: True, where the queries are the last of
            the keys' positions; ``"top_left"``, where they are the first; False. Default: found
            out.
        window: number of keys that a causal query may attend to, its own included.
        sinks: (H,) scores of sinks, one more term of each head's softmax. Default: a module's
            parameter named ``sinks``.
        softcap: scores become softcap · tanh(scores / softcap).
        scale: multiplies the scores; default 1/sqrt(d_k), or what a module learns, if it fits.
        qk_norm: ``"rms"``, ``"layer"`` or ``"l2"``: queries and keys are normed over d_k, before
            they are rotated; gains are a module's parameters with ``q_norm`` in their name.
        rope_base: queries and keys are rotated inside, with this base and positions from 0 on.
            Default: not rotated, unless one of the usual bases makes the output right.
        rope_pairing: ``"half"``, channels i and i + d_k/2, or ``"neighbours"``, 2i and 2i + 1.
        rope_dims: how many channels of each head are rotated, the first ones. Default: all.
        attn_bias: ``attn_bias(T, S)`` gives what is added to the scaled scores inside, (T, S) or
            (H, T, S), as ALiBi does; for the last T of S positions. Default: none.
        prenorm: the name of the module's part that norms its input first, as ``"norm"``: then
            what is not normed may be added to the output.
        projections: from roles (q, k, v, out, qkv, kv) to names of a module's parameters, where
            their own names do not say it; the others are found.
        module: the module that ``fn`` calls, if ``fn`` is a function around one.
        step: ``step(x, cache)``, or ``step(q, k, v, cache)``, that returns ``(out, cache)`` for a
            piece of a sequence; ``cache`` is None in the first call of each sequence.

    Returns:
        A :class:`Report`: ``failures``, one for each mistake; ``notes``; ``holds``;
        ``unchecked``; ``assumed``; ``ok``, whether there is no failure: what was not checked, or
        was assumed, leaves it True. Print it, show it in a notebook, or read ``as_dict()``.

    Raises:
        TypeError: a class instead of an instance, or something that cannot be called.
        ValueError: an adapter that does not fit, with what would.

    Example:
        >>> def mine(q, k, v, mask=None):
        ...     scores = q @ k.transpose(-2, -1)
        ...     if mask is not None:
        ...         scores = scores.masked_fill(~mask, float("-inf"))
        ...     return scores.softmax(dim=-1) @ v
        >>> report = diagnose(mine)
        >>> report.mistakes
        ['scale_missing']
        >>> print(report.failures[0].repair)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])

    Source: the formula of Vaswani et al. (2017); the mistakes: ``attn_check.mistakes``.
    """
    passed = dict(locals())  # what the caller says of the function, and of what it is meant to do
    passed["module"] = module_of(fn) if module is None else module
    given = Given(**{name: passed[name] for name in Given.__dataclass_fields__})
    meant = Intent.__dataclass_fields__.keys() & passed.keys()
    intent = Intent(**{name: passed[name] for name in meant})
    _check(fn, given, intent)
    with calls.quietly(), calls.unchanged(given.module):
        subject = read_subject(fn, given)
        if prenorm is not None and subject.module is not None:
            part = copy.deepcopy(subject.module.get_submodule(prenorm)).double()
            grouped = isinstance(part, nn.GroupNorm)  # it norms (B, d, ...)
            intent = replace(intent, prenorm=(lambda x: part(x.mT).mT) if grouped else part)
        if isinstance(fn, types.MethodType) and fn.__name__ != "forward":
            subject = without_projections(subject, intent, layout)
        if intent.sinks is None:
            intent = replace(intent, sinks=subject.sinks)
        elif not subject.projects:
            subject.heads = subject.heads or len(intent.sinks)
        if intent.attn_bias is not None and not subject.projects:
            sizes = intent.attn_bias(2, 2).shape[:-2]
            subject.heads = subject.heads or (sizes[-1] if sizes else None)
        return investigate(subject, intent, given)


def assert_attention(fn: Callable, **adapter: Any) -> None:
    """Raise unless :func:`diagnose` finds no mistake: one line in a test suite.

    What was assumed, or could not be checked, passes: see ``assumed`` and ``unchecked`` of its
    report. For a function that rotates queries and keys, :func:`diagnose_rope`.

    Args:
        fn: as in :func:`diagnose`.
        adapter: as in :func:`diagnose`.

    Raises:
        AssertionError: a mistake was found; the message is the report.

    Example:
        >>> from attn_lib import attention
        >>> assert_attention(attention)

    Source: :func:`diagnose`.
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    report = diagnose(fn, **adapter)
    if not report.ok:
        raise AssertionError(str(report))


def diagnose_rope(
    fn: Callable,
    *,
    rope_base: float = 10_000.0,
    rope_pairing: str | None = "half",
    layout: str | None = None,
    d_k: int | None = None,
) -> Report:
    """Say in words what is wrong with a function that rotates queries and keys.

    Args:
        fn: ``fn(q, k, positions)`` that returns both, or ``fn(x, positions)`` that returns one.
            Positions (T,) or (B, T) may be left out, and are then 0 to T − 1. Parameters named
            ``cos`` and ``sin``, or ``freqs_cis``, get tables of ``rope_base``.
        rope_base: ratio of the slowest to the fastest rotation that is meant.
        rope_pairing: ``"half"``, channels i and i + d/2, or ``"neighbours"``, 2i and 2i + 1;
            None: the one that fits.
        layout: the axes of q and k: ``"BHTd"``, ``"BTHd"``, ``"TBHd"``, ``"BTd"`` or ``"Td"``.
            Default: the first that explains the answers.
        d_k: the width of q and k, where ``fn`` has a fixed one. Default: found out.

    Returns:
        A :class:`Report`: ``.ok`` is True where no mistake was found; ``failures`` holds the
        mistakes, ``unchecked`` what could not be called, ``assumed`` what was found out.

    Raises:
        TypeError: a class instead of an instance, or something that cannot be called.
        ValueError: an unknown pairing or layout; an odd ``d_k``; a parameter that cannot be
            filled in; a function that raises in every call.

    Example:
        >>> from attn_lib.positions import apply_rope
        >>> diagnose_rope(apply_rope, layout="BHTd").ok
        True
        >>> diagnose_rope(lambda x, positions: apply_rope(x, -positions)).mistakes
        ['rope_direction']

    Source: Su et al. (2021), "RoFormer", section 3.4.
    """
    pairings, layouts = (rope_pairing, calls.PAIRINGS), (layout, rope.LAYOUTS)
    _check_choices(fn, rope_pairing=pairings, layout=layouts)
    if d_k is not None and (d_k < 2 or d_k % 2):
        raise ValueError(f"d_k must be even, and 2 or more; got {d_k}")
    with calls.quietly():
        return rope.investigate(fn, rope_base, rope_pairing, layout, d_k)


def assert_rope(fn: Callable, **adapter: Any) -> None:
    """Fail with a report where a rotation of queries and keys is wrong: one line of a test.

    Args:
        fn: as in :func:`diagnose_rope`.
        **adapter: as in :func:`diagnose_rope`.

    Raises:
        AssertionError: the report, where a mistake was found.

    Example:
        >>> from attn_lib.positions import apply_rope
        >>> assert_rope(apply_rope)

    Source: :func:`diagnose_rope`.
    """
    __tracebackhide__ = True
    report = diagnose_rope(fn, **adapter)
    if not report.ok:
        raise AssertionError(str(report))


def _check_choices(fn: Any, **choices: tuple[Any, Collection]) -> None:
    """Something that can be called, and options that are known ones."""
    if isinstance(fn, type) or not callable(fn):
        raise TypeError(f"fn must be a function or an instance, got {fn!r}")
    for name, (value, known) in choices.items():
        if value is not None and value not in known:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}; got {value!r}")


def _check(fn: Any, given: Given, intent: Intent) -> None:
    _check_choices(
        fn,
        layout=(given.layout, (*calls.LAYOUTS, *calls.IMAGES)),
        mask_means=(given.mask_means, calls.POLARITIES),
        mask_shape=(given.mask_shape, calls.SHAPES),
        causal=(given.causal, (True, False, "top_left")),
        qk_norm=(intent.qk_norm, ("rms", "layer", "l2")),
        rope_pairing=(intent.rope_pairing, calls.PAIRINGS),
    )
    window, rope_base, rope_dims = intent.window, intent.rope_base, intent.rope_dims
    if window is not None and (not isinstance(window, int) or window < 1):
        raise ValueError(f"window must be at least 1, got {window}")
    if window is not None and given.causal is False:
        raise ValueError("window= is of causal queries: pass causal=True, or leave causal= out")
    if rope_dims is not None and (type(rope_dims) is not int or rope_dims < 2 or rope_dims % 2):
        raise ValueError(f"rope_dims must be even, and 2 or more; got {rope_dims!r}")
    if intent.attn_bias is not None and not callable(intent.attn_bias):
        kind = type(intent.attn_bias).__name__
        raise TypeError(f"attn_bias must be a function of T and S, got {kind}")
    if rope_dims is not None and rope_base is None:
        raise ValueError("rope_dims= is of a rotation: pass rope_base= with it")
    parts = {} if given.module is None else dict(given.module.named_modules())
    if intent.prenorm is not None and intent.prenorm not in parts:
        names = ", ".join(filter(None, parts)) or "none"
        raise ValueError(f"prenorm must name a part of the module, {names}; got {intent.prenorm!r}")
    if isinstance(rope_base, bool) or (rope_base is not None and not rope_base > 1):
        raise ValueError(f"rope_base must be a number above 1, as 10000.0; got {rope_base!r}")
