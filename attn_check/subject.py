"""The function that is diagnosed, behind one canonical call."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from inspect import Parameter
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn

from attn_check import calls
from attn_check.modules import make_random, misfit, read_layer
from attn_check.reference import Case, Layer


@dataclass(frozen=True)
class Given:
    """What the caller says of the function and its inputs; None: it is found out."""

    arguments: str | None
    options: Mapping[str, Any] | None
    layout: str | None
    mask_means: str | None
    mask_shape: str | None
    heads: int | None
    kv_heads: int | None
    d_k: int | None
    causal: bool | str | None
    window: int | None
    projections: Mapping[str, str] | None
    module: nn.Module | None
    step: Callable | None


@dataclass(eq=False)
class Answer:
    """What one call gave, in the layout of the case."""

    out: Tensor | None = None
    weights: Tensor | None = None
    raised: str = ""
    dtype: torch.dtype | None = None  # of the output as it was returned


@dataclass
class Subject:
    """The callable, and how it is called."""

    fn: Callable
    name: str
    positional: list[str]
    named: dict[str, str]
    others: dict[str, str]
    options: dict[str, Any] = field(default_factory=dict)
    module: nn.Module | None = None
    layers: list[Layer] = field(default_factory=list)  # each way of reading the projections
    layout: str = "BHTd"
    polarity: str = "attend"
    mask_shape: str = "B1TS"
    dtype: torch.dtype = torch.float32
    heads: int | None = None
    kv_heads: int | None = None
    d_k: int | None = None
    step: Callable | None = None
    original: nn.Module | None = None
    projections: Mapping[str, str] | None = None
    unused: tuple[Callable, nn.Module | None] | None = None  # copies that were never called
    always_mask: bool = False  # a call without a mask raises: one that closes nothing is passed
    integer_mask: bool = False  # masks are 0 and 1, as True and False raise
    always_fresh: bool = False  # a call changes later calls: each call has a copy of its own
    never_drops: bool = False  # dropout is switched off in evaluation too
    strided: bool = False  # tensors are stored in another order
    drops: bool = False  # dropout is not switched off in training
    assumed: list[str] = field(default_factory=list)  # before anything is called
    moved: list[str] = field(default_factory=list)  # from where a copy was moved, in words

    @property
    def roles(self) -> set[str]:
        """Roles of all tensors that are passed."""
        return {*self.positional, *self.named.values()}

    @property
    def projects(self) -> bool:
        """Whether queries, keys and values are projected inside."""
        return bool(self.layers)

    @property
    def crosses(self) -> bool:
        """Whether keys may have another input than queries."""
        return not self.projects or bool(self.roles & {"context", "k"})

    @property
    def takes_mask(self) -> bool:
        """Whether a mask can be passed."""
        return "mask" in self.roles

    @property
    def sinks(self) -> Tensor | None:
        """The scores of sinks that the module has."""
        named = {} if self.module is None else dict(self.module.named_parameters())
        found = [p for name, p in named.items() if "sink" in name.rpartition(".")[2]]
        return found[0].detach().double().flatten() if found else None

    def tensors(self, case: Case) -> dict[str, Tensor]:
        """The case's tensors by role, in the layout of the function."""
        given = dict(case.tensors)
        if self.projects and "q" in self.roles:
            context = given.get("context", given["x"])
            given = {"q": given["x"], "k": context, "v": given.get("values", context)}
        if self.projects and self._required("context"):
            given.setdefault("context", given["x"])
        counts = {"q": case.heads, "k": case.kv_heads, "v": case.kv_heads}
        for role in given.keys() & self.roles:
            x = given[role].to(self.dtype, copy=True)
            x = calls.to_layout(x, self.layout, case.merged, counts.get(role, 1))
            given[role] = x.transpose(0, -1).contiguous().transpose(0, -1) if self.strided else x
        return {role: x for role, x in given.items() if role in self.roles}

    def _required(self, role: str) -> bool:
        """Whether every call must have an argument of this role."""
        names = [name for name, its in self.named.items() if its == role]
        required = names and calls.default_of(self.fn, names[0]) is Parameter.empty
        return bool(required) or role in self.positional

    def mask_of(self, case: Case) -> Tensor | None:
        """The case's mask with the polarity and the shape of the function."""
        if case.mask is None and not self.always_mask:
            return None
        opened = torch.ones(case.batch, *case.lengths, dtype=torch.bool)
        mask = calls.shaped(opened if case.mask is None else case.mask, self.mask_shape)
        if "B" not in self.layout and mask.shape[0] == 1 and self.mask_shape != "TS":
            mask = mask[0]
        if self.polarity == "additive":
            return torch.zeros(mask.shape, dtype=self.dtype).masked_fill(~mask, -torch.inf)
        mask = ~mask if self.polarity == "blocked" else mask.clone()
        return mask.long() if self.integer_mask else mask

    def call(self, tensors: Mapping[str, Tensor], mask: Tensor | None) -> Any:
        """The function with arguments in its own layout."""
        values: dict[str, Any] = {**tensors, "nothing": None}
        if mask is not None or ("mask" in self.named.values() and self._required("mask")):
            values["mask"] = mask
        if {"mask", "context"} <= values.keys() and "context_mask" in self.roles:
            values["context_mask"] = values.pop("mask")  # that of the keys
        # as far as there are values: what follows a missing one would stand in its place
        args = [values.pop(role) for role in takewhile(values.__contains__, self.positional)]
        named = {name: values[role] for name, role in self.named.items() if role in values}
        return self.fn(*args, **named, **self.options)

    def quiet_call(self, tensors: Mapping[str, Tensor], mask: Tensor | None) -> Any:
        """As :meth:`call`, with every dropout switched off."""
        with calls.WithoutDropout():
            return self.call(tensors, mask)

    def fresh(self, **changes: Any) -> "Subject":
        """The same subject with a callable that was never called."""
        fn, module = (self.fn, self.module) if self.unused is None else calls.copied(*self.unused)
        if "dtype" in changes and module is not None:
            module.to(changes["dtype"])
        return replace(self, fn=fn, module=module, always_fresh=False, **changes)

    def answer(self, case: Case) -> Answer:
        """The output for one case, without gradients; never raises."""
        if self.always_fresh:
            return self.fresh().answer(case)
        try:
            with torch.no_grad():
                return self.ask(case)
        except Exception as error:  # whatever the function raises is an answer
            return Answer(raised=quoted(error))

    def ask(self, case: Case) -> Answer:
        """The output for one case; a function without a batch axis gets one example at a time."""
        if self.module is not None:
            self.module.train(case.training)
        if "B" not in self.layout and case.batch > 1:
            answers = [self.ask(case.example(b)) for b in range(case.batch)]
            outs = [a.out for a in answers if a.out is not None]
            weights = [a.weights for a in answers if a.weights is not None]
            whole = torch.cat(weights) if len(weights) == len(outs) else None
            return Answer(torch.cat(outs), whole, dtype=answers[0].dtype)
        tensors, mask = self.tensors(case), self.mask_of(case)
        quiet = case.training and not self.drops
        call = self.quiet_call if quiet or self.never_drops else self.call
        return self.parse(call(tensors, mask), case)

    def parse(self, result: Any, case: Case) -> Answer:
        """The output, and the weights if they are returned, in the layout of the case."""
        result = vars(result) if is_dataclass(result) else result
        given = list(result.values()) if isinstance(result, Mapping) else result
        given = [*given] if isinstance(given, tuple | list) else [given]
        if not given or not isinstance(given[0], Tensor):
            kind = type(result).__name__
            raise TypeError(f"fn must return a tensor, or a tuple that starts with one, got {kind}")
        shape = calls.output_shape(case, next(iter(self.layers), None))
        outs = [(x, self._in_order(x, case)) for x in given if isinstance(x, Tensor)]
        # weights may come first
        first = [i for i, (_, x) in enumerate(outs) if x is not None and x.shape == shape]
        raw, out = outs.pop(first[0] if first else 0)
        if out is None:
            raise ValueError(f"an output of shape {tuple(raw.shape)}")
        answer = Answer(out, dtype=raw.dtype)
        for x, _ in outs:
            if x.dim() >= 2 and tuple(x.shape[-2:]) == case.lengths:
                x = x.detach().cpu().double()
                x = x.unflatten(0, (case.batch, -1)) if x.dim() == 3 else x
                answer.weights = x[None, None] if x.dim() == 2 else x
                break
        return answer

    def _in_order(self, x: Tensor, case: Case) -> Tensor | None:
        """An output in the layout of the case; None where it has other axes."""
        try:
            return calls.from_layout(x, self.layout, case, self.projects)
        except (RuntimeError, IndexError):
            return None


def quoted(error: Exception) -> str:
    """The first line of an exception, with its type."""
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def module_of(fn: Callable) -> nn.Module | None:
    """The module itself, or the one that a method belongs to."""
    owner = getattr(fn, "__self__", fn)
    return owner if isinstance(owner, nn.Module) else None


def read_subject(fn: Callable, given: Given) -> Subject:
    """A copy of the function, with what the caller, its signature and its module say."""
    name = getattr(fn, "__name__", type(fn).__name__)
    roles, options = calls.read_arguments(fn, given.arguments), dict(given.options or {})
    fn, module = calls.copied(fn, given.module, to_cpu=True)
    subject = Subject(fn, name, *roles, options, module, original=given.module)
    subject.heads, subject.kv_heads, subject.d_k = given.heads, given.kv_heads, given.d_k
    subject.projections, subject.step = given.projections, given.step
    if module is not None:
        devices = {str(p.device) for p in (given.module or module).parameters()}
        away = sorted(devices - {"cpu", "meta"})
        if away and module is given.module:
            raise ValueError(f"fn is on {away[0]} and cannot be copied: move it to the CPU")
        subject.moved = [f"{x}, where parameters are: a copy on the CPU was judged" for x in away]
        module.eval()  # the caller's mode is restored afterwards
        if module is not given.module:
            make_random(module)
        subject.layers = read_layer(module, given.heads, given.kv_heads, given.projections)
        half = any(p.dtype in (torch.float16, torch.bfloat16) for p in module.parameters())
        if half and module is not given.module:
            module.float()  # a copy: what is wrong is told from what is rounded
        dtypes = {p.dtype for p in module.parameters() if p.is_floating_point()}
        subject.dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
    if "x" in subject.roles and not subject.layers:
        if module is not None and (text := misfit(module, given.heads, given.projections)):
            raise ValueError(text)
        names = [] if module is None else [n for n, _ in module.named_parameters()]
        raise ValueError(
            "fn takes x, but no projections of queries, keys and values are found: pass module= "
            "if fn is a function around a module, or projections= "
            f"(from q, k, v, out or qkv to the names of parameters); found {names}"
        )
    _settle_heads(subject)
    subject.unused = calls.copied(subject.fn, module)
    return subject


def _settle_heads(subject: Subject) -> None:
    """How many heads: a module's, what was passed, a default (which is said), or one that fits."""
    names = [name for name, role in subject.others.items() if role == "heads"]
    default = calls.default_of(subject.fn, names[0] if names else "")
    if not subject.layers:
        given = subject.options.get(names[0], default) if names else default
        if subject.heads is None and type(given) is int:
            subject.heads = given
            subject.assumed.append(f"there are {given} heads: {names[0]}={given}")
        elif subject.heads is None and (subject.kv_heads or default is Parameter.empty):
            subject.heads = 2 * subject.kv_heads if subject.kv_heads else 4
            subject.assumed.append(f"there are {subject.heads} heads, as heads= is not passed")
        if subject.heads and subject.kv_heads and subject.heads % subject.kv_heads:
            raise ValueError(
                f"heads must be a multiple of kv_heads, got {subject.heads} and {subject.kv_heads}"
            )
    heads = subject.layers[0].heads if subject.layers else subject.heads
    for name in names:
        default = calls.default_of(subject.fn, name)
        needed = default is Parameter.empty or not (subject.layers or default == heads)
        if name not in subject.options and heads is not None and needed:
            subject.options[name] = heads
            subject.assumed.append(f"{name}={heads} is passed in each call")
