"""The function that is diagnosed, behind one canonical call."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from attn_check.conventions import from_layout, shaped, to_layout
from attn_check.quiet import WithoutDropout, copied
from attn_check.reference import Case, Intent, Layer


@dataclass(eq=False)
class Answer:
    """What one call gave, in the layout of the case."""

    out: Tensor | None = None
    weights: Tensor | None = None
    raised: str = ""


@dataclass
class Subject:
    """The callable, its adapter and what was found out about it."""

    fn: Callable
    name: str
    positional: list[str]
    named: dict[str, str]
    others: dict[str, str]
    options: dict[str, Any] = field(default_factory=dict)
    module: nn.Module | None = None
    layers: list[Layer] = field(default_factory=list)
    layout: str = "BHTd"
    polarity: str = "attend"
    mask_shape: str = "B1TS"
    dtype: torch.dtype = torch.float32
    heads: int | None = None
    kv_heads: int | None = None
    d_k: int | None = None
    always_without_dropout: bool = False
    raw_out: Tensor | None = None  # the last output as it was returned
    unused: tuple[Callable, nn.Module | None] | None = None  # copies that were never called
    original: nn.Module | None = None
    projections: Mapping[str, str] | None = None
    reading: int = 0  # which way of reading the projections fits
    step: Callable | None = None
    wider_mask: str = ""  # a shape with T that is accepted, though closed keys have an influence
    mask_refused: str = ""  # what a mask of the usual sizes raises
    refuses_cross: bool = False  # queries and keys of different lengths raise
    ignores_padded: bool = False  # outputs at padded positions are not compared
    always_mask: bool = False  # a call without a mask raises: one that closes nothing is passed
    random: bool = False
    drifts: bool = False  # equal calls, with others between, give different outputs
    with_dropout: bool = False
    assumed: list[str] = field(default_factory=list)  # before anything is called
    always_fresh: bool = False  # a call changes later calls: each call has a copy of its own

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

    def broadcasts(self, intent: Intent) -> bool:
        """Whether one query says nothing of where a mask begins: its (1, 1) mask broadcasts."""
        return self.refuses_cross and intent.causal == "top_left"

    @property
    def takes_mask(self) -> bool:
        """Whether a mask can be passed."""
        return "mask" in self.roles

    def tensors(self, case: Case) -> dict[str, Tensor]:
        """The case's tensors by role, in the layout of the function."""
        given = dict(case.tensors)
        if self.projects and "q" in self.roles:
            context = given.get("context", given["x"])
            given = {"q": given["x"], "k": context, "v": given.get("values", context)}
        if self.projects and "context" in self.roles and "context" not in given:
            given |= {"context": given["x"]} if self._required("context") else {}
        counts = {"q": case.heads, "k": case.kv_heads, "v": case.kv_heads}
        return {
            role: to_layout(
                x.to(self.dtype, copy=True), self.layout, case.merged, counts.get(role, 1)
            )
            for role, x in given.items()
            if role in self.roles
        }

    def _required(self, role: str) -> bool:
        name = next((n for n, r in self.named.items() if r == role), None)
        if name is None:
            return True
        called = self.fn.forward if isinstance(self.fn, nn.Module) else self.fn
        try:
            parameter = inspect.signature(called).parameters.get(name)
        except (TypeError, ValueError):
            return False
        return parameter is not None and parameter.default is inspect.Parameter.empty

    def mask_of(self, case: Case) -> Tensor | None:
        """The case's mask with the polarity and the shape of the function."""
        if case.mask is None and not self.always_mask:
            return None
        opened = torch.ones(case.batch, *case.lengths, dtype=torch.bool)
        mask = shaped(opened if case.mask is None else case.mask, self.mask_shape)
        if "B" not in self.layout and mask.shape[0] == 1 and self.mask_shape != "TS":
            mask = mask[0]
        if self.polarity == "additive":
            return torch.zeros(mask.shape, dtype=self.dtype).masked_fill(~mask, -torch.inf)
        return ~mask if self.polarity == "blocked" else mask.clone()

    def call(self, tensors: Mapping[str, Tensor], mask: Tensor | None) -> Any:
        """The function with arguments in its own layout."""
        values = dict(tensors) if mask is None else {**tensors, "mask": mask}
        args: list[Tensor] = []
        for role in self.positional:
            if role not in values:
                break
            args.append(values.pop(role))
        named = {name: values[role] for name, role in self.named.items() if role in values}
        if mask is None and "mask" in self.named.values() and self._required("mask"):
            nothing = {name: None for name, role in self.named.items() if role == "mask"}
            return self.fn(*args, **named, **nothing, **self.options)
        return self.fn(*args, **named, **self.options)

    def fresh(self) -> "Subject":
        """The same subject with a callable that was never called."""
        if self.unused is None:
            return replace(self, always_fresh=False)
        fn, module = copied(*self.unused)
        return replace(self, fn=fn, module=module, always_fresh=False)

    def answer(self, case: Case) -> Answer:
        """The output for one case, without gradients; never raises."""
        if self.always_fresh:
            twin = self.fresh()
            answer = twin.answer(case)
            self.raw_out = twin.raw_out
            return answer
        try:
            with torch.no_grad():
                return self.ask(case)
        except Exception as error:  # whatever the function raises is an answer
            return Answer(raised=quoted(error))

    def ask(self, case: Case) -> Answer:
        """The output for one case."""
        if self.module is not None:
            self.module.train(case.training)
        if "B" not in self.layout and case.batch > 1:
            return self._one_by_one(case)
        tensors, mask = self.tensors(case), self.mask_of(case)
        quiet = case.training and not self.with_dropout
        call = self.quiet_call if quiet or self.always_without_dropout else self.call
        return self.parse(call(tensors, mask), case)

    def quiet_call(self, tensors: Mapping[str, Tensor], mask: Tensor | None) -> Any:
        """As :meth:`call`, with every dropout switched off."""
        with WithoutDropout():
            return self.call(tensors, mask)

    def _one_by_one(self, case: Case) -> Answer:
        """A function without a batch axis, example by example."""
        answers = []
        for b in range(case.batch):
            tensors = {role: x[b : b + 1] for role, x in case.tensors.items()}
            mask = None if case.mask is None else case.mask[b : b + 1]
            answers.append(self.ask(Case(**{**vars(case), "tensors": tensors, "mask": mask})))
        weights = [a.weights for a in answers if a.weights is not None]
        outs = [a.out for a in answers if a.out is not None]
        return Answer(torch.cat(outs), torch.cat(weights) if len(weights) == case.batch else None)

    def parse(self, result: Any, case: Case) -> Answer:
        """The output, and the weights if they are returned, in the layout of the case."""
        out, rest = first_tensor(result)
        self.raw_out = out
        T, S = case.lengths
        canonical = from_layout(out, self.layout, case, self.projects)
        weights = next(
            (
                w
                for w in rest
                if isinstance(w, Tensor) and w.dim() >= 2 and tuple(w.shape[-2:]) == (T, S)
            ),
            None,
        )
        if weights is not None:
            weights = weights.detach().double()
            weights = weights.unflatten(0, (case.batch, -1)) if weights.dim() == 3 else weights
            weights = weights[None, None] if weights.dim() == 2 else weights
        return Answer(canonical, weights)


def quoted(error: Exception) -> str:
    """The first line of an exception, with its type."""
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def first_tensor(result: Any) -> tuple[Tensor, list[Any]]:
    """The output and what else is returned."""
    if isinstance(result, Tensor):
        return result, []
    if isinstance(result, Mapping):
        result = list(result.values())
    if isinstance(result, tuple | list) and result and isinstance(result[0], Tensor):
        return result[0], list(result[1:])
    raise TypeError(
        f"fn must return a tensor, or a tuple that starts with one, got {type(result).__name__}"
    )
