"""``diagnose``: the battery, the hypotheses and the report."""

import types
from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import Parameter
from typing import Any

import torch
from torch import Tensor, nn

from attn_check import explore
from attn_check.assume import Given, investigate
from attn_check.conventions import LAYOUTS, POLARITIES, SHAPES, default_of, read_arguments
from attn_check.projections import misfit, read_layer
from attn_check.quiet import copied, make_random, quietly, unchanged
from attn_check.reference import Intent
from attn_check.report import Report
from attn_check.subject import Subject


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
            follow are checked too. A module is copied: yours stays as it is. A method of (q, k, v)
            that uses no projection of its module is taken for a function.
        arguments: the roles of what is passed, in order, or as name=role: ``"q, k, v, mask"``,
            ``"x, memory=context, attn_mask=mask"``. Roles: q, k, v, x, context, mask. Default:
            from the names of the parameters.
        options: further keyword arguments of every call.
        layout: the axes of the inputs, as letters: ``"BHTd"``, ``"BTHd"``, ``"TBHd"``, ``"HTd"``,
            ``"THd"``, ``"BTd"``, ``"TBd"``, ``"Td"``. Without H there is one head, or there are
            ``heads`` of them side by side. Default: the first that works.
        mask_means: ``"attend"`` (True = may attend), ``"blocked"`` (True = closed) or
            ``"additive"`` (0 and −inf). Default: the first in which closed keys have no influence.
        mask_shape: ``"B1TS"``, ``"BTS"``, ``"BS"``, ``"TS"``, ``"B11S"`` or ``"BHTS"``. Default:
            the first in which closed keys have no influence.
        heads: H, where it is fixed and neither a module nor a parameter of that name says it.
        kv_heads: H_kv, of grouped heads; default H, or what a module says.
        d_k: width of a query, where it is fixed; default 8.
        causal: whether queries attend to no later key: True, where the queries are the last of
            the keys' positions; ``"top_left"``, where they are the first; False. Default: found
            out.
        window: number of keys that a causal query may attend to, its own included.
        sinks: (H,) scores of sinks, one more term of each head's softmax. Default: a module's
            parameter named ``sinks``.
        softcap: scores become softcap · tanh(scores / softcap).
        scale: multiplies the scores; default 1/sqrt(d_k).
        qk_norm: ``"rms"``, ``"layer"`` or ``"l2"``: queries and keys are normed over d_k, before
            they are rotated; gains are a module's parameters with ``q_norm`` in their name.
        rope_base: queries and keys are rotated inside, with this base and positions from 0 on.
            Default: not rotated, unless one of the usual bases makes the output right.
        rope_pairing: ``"half"``, channels i and i + d_k/2, or ``"neighbours"``, 2i and 2i + 1.
        projections: from roles (q, k, v, out, qkv, kv) to names of a module's parameters, where
            their own names do not say it.
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

        A module, whose projections are found by their names:

        >>> diagnose(nn.MultiheadAttention(12, 3, batch_first=True)).ok
        True

        Step by step, with a cache:

        >>> from attn_lib import Cache, MultiHeadAttention
        >>> layer = MultiHeadAttention(12, 3).eval()
        >>> def step(x, cache):
        ...     cache = Cache() if cache is None else cache
        ...     return layer(x, causal=True, cache=cache), cache
        >>> diagnose(layer, options={"causal": True}, causal=True, step=step).ok
        True

        Grouped heads and RoPE, step by step:

        >>> from attn_lib.positions import apply_rope
        >>> layer = MultiHeadAttention(16, 4, num_kv_heads=2, rotate=apply_rope).eval()
        >>> options = {"causal": True}
        >>> diagnose(layer, options=options, causal=True, rope_base=10_000.0, step=step).ok
        True

    Source: the formula of Vaswani et al. (2017); the mistakes: ``attn_check.mistakes``.
    """
    _check(fn, layout, mask_means, mask_shape, causal, qk_norm, rope_pairing, window, rope_base)
    intent = Intent(
        causal=causal or False,
        window=window,
        sinks=sinks,
        softcap=softcap,
        scale=scale,
        qk_norm=qk_norm,
        rope_base=rope_base,
        rope_pairing=rope_pairing,
    )
    with quietly(), unchanged(_module_of(fn) if module is None else module):
        subject = _subject(fn, arguments, options, module, heads, kv_heads, projections)
        subject.d_k, subject.step = d_k, step
        if isinstance(fn, types.MethodType) and fn.__name__ != "forward":
            subject = explore.without_projections(subject, intent, layout)
        if intent.sinks is None:
            intent = replace(intent, sinks=_sinks(subject))
        elif not subject.projects:
            subject.heads = subject.heads or len(intent.sinks)
        found = investigate(subject, intent, Given(layout, mask_means, mask_shape, causal, window))
    return Report(
        subject.name, found.failures, found.notes, found.holds, found.unchecked, found.assumed
    )


def _check(
    fn: Any,
    layout: str | None,
    mask_means: str | None,
    mask_shape: str | None,
    causal: bool | str | None,
    qk_norm: str | None,
    rope_pairing: str,
    window: int | None,
    rope_base: float | None,
) -> None:
    if isinstance(fn, type):
        raise TypeError(f"fn must be an instance or a function, got the class {fn.__name__}")
    if not callable(fn):
        raise TypeError(f"fn must be callable, got {type(fn).__name__}")
    for name, value, known in (
        ("layout", layout, LAYOUTS),
        ("mask_means", mask_means, POLARITIES),
        ("mask_shape", mask_shape, SHAPES),
        ("causal", causal, (True, False, "top_left")),
        ("qk_norm", qk_norm, ("rms", "layer", "l2")),
        ("rope_pairing", rope_pairing, ("half", "neighbours")),
    ):
        if value is not None and value not in known:
            listed = ", ".join(map(repr, known))
            raise ValueError(f"{name} must be one of {listed}; got {value!r}")
    if window is not None and (not isinstance(window, int) or window < 1):
        raise ValueError(f"window must be at least 1, got {window}")
    if window is not None and causal is False:
        raise ValueError("window= is of causal queries: pass causal=True, or leave causal= out")
    if isinstance(rope_base, bool) or (rope_base is not None and not rope_base > 1):
        raise ValueError(f"rope_base must be a number above 1, as 10000.0; got {rope_base!r}")


def _subject(
    fn: Callable,
    arguments: str | None,
    options: Mapping[str, Any] | None,
    module: nn.Module | None,
    heads: int | None,
    kv_heads: int | None,
    projections: Mapping[str, str] | None,
) -> Subject:
    positional, named, others = read_arguments(fn, arguments)
    subject = Subject(fn, _name(fn), positional, named, others, dict(options or {}))
    subject.heads, subject.kv_heads = heads, kv_heads
    original = _module_of(fn) if module is None else module
    subject.original, subject.projections = original, projections
    subject.fn, subject.module = copied(fn, original)
    if subject.module is not None:
        subject.module.eval()  # the caller's mode is restored afterwards
        if subject.module is not original:
            make_random(subject.module)
        subject.layers = read_layer(
            subject.module, heads=heads, kv_heads=kv_heads, projections=projections
        )
        half = any(p.dtype in (torch.float16, torch.bfloat16) for p in subject.module.parameters())
        if half and subject.module is not original:
            subject.module.float()  # a copy: what is wrong is told from what is rounded
        dtypes = {p.dtype for p in subject.module.parameters() if p.is_floating_point()}
        subject.dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
    if "x" in subject.roles and not subject.layers:
        if subject.module is not None and (text := misfit(subject.module, heads, projections)):
            raise ValueError(text)
        names = [] if subject.module is None else [n for n, _ in subject.module.named_parameters()]
        raise ValueError(
            "fn takes x, but no projections of queries, keys and values are found: pass module= "
            "if fn is a function around a module, or projections= "
            f"(from q, k, v, out or qkv to the names of parameters); found {names}"
        )
    if not subject.layers:
        _find_heads(subject)
    _pass_heads(subject)
    subject.unused = copied(subject.fn, subject.module)
    return subject


def _find_heads(subject: Subject) -> None:
    """The number of heads of a function: said, a default of its own, or one that fits."""
    name = next((name for name, role in subject.others.items() if role == "heads"), "")
    default = default_of(subject.fn, name)
    given = subject.options.get(name, default)
    if subject.heads is None and type(given) is int:
        subject.heads = given
        subject.assumed.append(f"there are {given} heads: {name}={given}")
    elif subject.heads is None and (subject.kv_heads or (name and default is Parameter.empty)):
        subject.heads = 2 * subject.kv_heads if subject.kv_heads else 4
        subject.assumed.append(f"there are {subject.heads} heads, as heads= is not passed")
    if subject.heads and subject.kv_heads and subject.heads % subject.kv_heads:
        raise ValueError(
            f"heads must be a multiple of kv_heads, got {subject.heads} and {subject.kv_heads}"
        )


def _pass_heads(subject: Subject) -> None:
    """A parameter for the number of heads is given it where it is required, or else is said."""
    heads = subject.layers[0].heads if subject.layers else subject.heads
    for name, role in subject.others.items():
        default = default_of(subject.fn, name)
        needed = default is Parameter.empty or not (subject.layers or default == heads)
        if role == "heads" and name not in subject.options and heads is not None and needed:
            subject.options[name] = heads
            subject.assumed.append(f"{name}={heads} is passed in each call")


def _module_of(fn: Callable) -> nn.Module | None:
    """The module itself, or the one that a method belongs to."""
    owner = getattr(fn, "__self__", fn)
    return owner if isinstance(owner, nn.Module) else None


def _name(fn: Callable) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


def _sinks(subject: Subject) -> Tensor | None:
    if subject.module is None:
        return None
    named = dict(subject.module.named_parameters())
    found = [p for n, p in named.items() if "sink" in n.rpartition(".")[2]]
    return found[0].detach().double().flatten() if found else None


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
