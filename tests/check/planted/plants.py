"""What a planted mistake is: a wrong attention, what its author would say of it, and its name.

A plant shares no code with the library. Each is told apart by the mistake that must be named, the
form in which it is written, and its size, 0 or 1.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

PLANTS: list["Plant"] = []
# from a name to what makes a right attention, and to what its author would say of it
RIGHT: dict[str, tuple[Callable[[], Callable[..., Any]], dict[str, Any]]] = {}


@dataclass(frozen=True)
class Plant:
    """One wrong attention: ``build(size)`` makes it, ``right(size)`` the same without its mistake.

    ``intent`` is what its author says: causal, a window, the layout, the kind of mask. ``also``
    are other names that would be as true of it.
    """

    mistake: str
    form: str
    build: Callable[[int], Callable[..., Any]]
    right: Callable[[int], Callable[..., Any]]
    intent: dict[str, Any] = field(default_factory=dict)
    also: tuple[str, ...] = ()
    rope: bool = False  # for diagnose_rope

    @property
    def name(self) -> str:
        return f"{self.mistake}-{self.form}"

    @property
    def note(self) -> bool:
        """Whether real libraries do so too: then it is named in the notes."""
        return self.mistake in NOTES

    def given(self, fn: Callable[..., Any]) -> dict[str, Any]:
        """The intent, with what only the function that was built knows."""
        return {
            name: value(fn) if callable(value) else value for name, value in self.intent.items()
        }


NOTES = ("weights_after_dropout", "weights_averaged", "not_float32_inside")


def planted(mistake: str, form: str, right: Callable[..., Any], *, also=(), **intent: Any):
    """Plant a function as it stands: it has no sizes of its own."""

    def plant(fn: Callable[..., Any]) -> Callable[..., Any]:
        PLANTS.append(Plant(mistake, form, lambda _: fn, lambda _: right, intent, tuple(also)))
        return fn

    return plant


def planted_maker(mistake: str, form: str, right: Callable[..., Any], *, also=(), **intent: Any):
    """Plant what a function makes, anew for each use, so that nothing is remembered between two."""

    def plant(make: Callable[..., Any]) -> Callable[..., Any]:
        PLANTS.append(Plant(mistake, form, lambda _: make(), lambda _: right, intent, tuple(also)))
        return make

    return plant
