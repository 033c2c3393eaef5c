"""What a planted mistake is, and how it is planted: a right attention in which a text is another.

A plant shares no code with the library. Each is told apart by the mistake that must be named, the
form in which it is written, and its size, 0 or 1.
"""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

Attention = Callable[..., Any]
Edit = tuple[str, str]  # a text that stands in the source once, and what is put in its place
SIZES = ((12, 3), (40, 5))  # of a layer that has no others: the width, the number of heads
PLANTS: list["Plant"] = []
# from a name to what makes a right attention, and to what its author would say of it
RIGHT: dict[str, tuple[Callable[[], Attention], dict[str, Any]]] = {}
# what real libraries do so too: it is named in the notes
NOTES = ("weights_after_dropout", "weights_averaged", "weights_before_softmax", "empty_row_nan")


@dataclass(frozen=True)
class Plant:
    """One wrong attention: ``build(size)`` makes it, ``right(size)`` the same without its mistake.

    ``intent`` is what its author says: causal, a window, the layout, the kind of mask.
    """

    mistake: str
    form: str
    build: Callable[[int], Attention]
    right: Callable[[int], Attention]
    intent: dict[str, Any] = field(default_factory=dict)
    rope: bool = False  # for diagnose_rope

    @property
    def name(self) -> str:
        return f"{self.mistake}-{self.form}"

    @property
    def note(self) -> bool:
        return self.mistake in NOTES


def given(intent: dict[str, Any], fn: Attention) -> dict[str, Any]:
    """The intent, with what only the attention that was built knows."""
    return {name: value(fn) if callable(value) else value for name, value in intent.items()}


def edit(
    right: Attention | type[nn.Module],
    form: str,
    mistakes: dict[str, Edit | list[Edit]],
    options: dict[str, Any] | None = None,
    before: tuple[Edit, ...] = (),
    **intent: Any,
) -> None:
    """Plant a right function or layer once for each mistake, which edits its source.

    A layer is made of its SIZES and of the options. Edits ``before`` are no mistakes.
    """
    make = partial(built, right, options or {})
    for mistake, edits in mistakes.items():
        wrong = [*before, *(edits if isinstance(edits, list) else [edits])]
        PLANTS.append(Plant(mistake, form, partial(make, wrong), partial(make, [*before]), intent))


def built(
    right: Attention | type[nn.Module], options: dict[str, Any], edits: list[Edit], size: int
) -> Attention:
    """A layer, or a function, with these edits, made anew: nothing is remembered between two."""
    made = edited(right, edits) if edits else right
    if not isinstance(made, type):
        return made
    torch.manual_seed(7 + size)
    return made(*getattr(made, "SIZES", SIZES)[size], **options).eval()


def edited(right: Any, edits: list[Edit]) -> Any:
    source, names = inspect.getsource(right), dict(vars(sys.modules[right.__module__]))
    for old, new in edits:
        assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {source}"
        source = source.replace(old, new)
    exec(compile(source, f"<{right.__name__}>", "exec"), names)  # noqa: S102
    return names[right.__name__]
