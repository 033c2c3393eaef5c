"""Keys and values of the tokens so far, so that each step computes those of the new ones alone.

A cache knows a layer by its index in the model. The outermost module that is called with it hands
a draft to the layers, and commits the draft when it has its output; so a call that raises leaves
the cache as it was.
"""

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn

from attn_lib.positions import counted

_Forward = TypeVar("_Forward", bound=Callable[..., Any])
_OTHER_CONTEXT = "the cache was filled with another context: start with an empty one"


class _Entry(NamedTuple):
    """(B, H_kv, capacity, ·) keys and values; ``filled`` positions are, after ``dropped`` others.

    Memory is written behind ``filled`` only, so that an entry stays what it is when one is made
    from it that is longer.
    """

    k: Tensor
    v: Tensor
    filled: int
    dropped: int

    @property
    def length(self) -> int:
        """Tokens seen so far, including those outside the window."""
        return self.dropped + self.filled


class _Context(NamedTuple):
    """(B, H_kv, S, ·) keys and values of a context, the context itself, and its changes so far."""

    k: Tensor
    v: Tensor
    source: Tensor
    version: int | None  # None where they are not counted


class Cache:
    """Rotated keys, and values, of sequences that are given piece by piece.

    Pass one cache in every call. Memory is allocated ahead, so that a step writes what is new and
    copies nothing; where gradients are recorded the pieces are concatenated instead, because the
    backward pass needs what writing in place would destroy. A call that raises leaves the cache
    as it was. A copy has memory of its own.

    Example:
        >>> from attn_lib import MultiHeadAttention
        >>> layer, x = MultiHeadAttention(4, 2, window=2), torch.randn(1, 3, 4)
        >>> full, cache = layer(x, causal=True), Cache()
        >>> pieces = [layer(piece, causal=True, cache=cache) for piece in x.split([2, 1], dim=1)]
        >>> cache.length, torch.allclose(torch.cat(pieces, dim=1), full, atol=1e-6)
        (3, True)

    Source: Shazeer (2019), "Fast Transformer Decoding: One Write-Head is All You Need", section 2.
    Used in the page on the language model.
    """

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}  # by the index of the layer
        self._contexts: dict[int, _Context] = {}
        self._owners: dict[tuple[int, bool], nn.Module] = {}  # of each entry, and of each context
        self._length = 0
        # of a draft: whether one layer or block is called alone; the positions of the new tokens
        self._alone: bool | None = None
        self._positions: dict[tuple[int, torch.device], Tensor] = {}

    @property
    def length(self) -> int:
        """Tokens seen before this call, including those outside the window."""
        return self._length

    def append(
        self, layer: int, k: Tensor, v: Tensor, *, owner: nn.Module, window: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Add (B, H_kv, T, ·) keys and values; all so far that the window leaves in reach."""
        T, old = k.shape[2], self._entries.get(layer)
        if old is None:
            old = _Entry(k[:, :, :0], v[:, :, :0], filled=0, dropped=0)
        if old.length != self._length:
            raise ValueError(
                f"the cache holds {old.length} tokens of this layer and {self._length} of others: "
                "start with an empty one"
            )
        _check_fits(k, old.k)
        self._claim((layer, False), owner)
        first = 0 if window is None else max(old.filled - window + 1, 0)
        if old.dropped and (window is None or old.filled < window - 1):
            raise ValueError(f"window={window} needs keys that a smaller window has dropped")
        reach = old.filled - first + T
        if torch.is_grad_enabled():
            k = torch.cat([old.k[:, :, first : old.filled], k], dim=2)
            v = torch.cat([old.v[:, :, first : old.filled], v], dim=2)
            self._entries[layer] = _Entry(k, v, reach, old.dropped + first)
            return k, v
        entry = self._entries[layer] = _with_room(old, k, v, first)
        entry.k.narrow(2, entry.filled - T, T).copy_(k)
        entry.v.narrow(2, entry.filled - T, T).copy_(v)
        start = entry.filled - reach
        return entry.k.narrow(2, start, reach), entry.v.narrow(2, start, reach)

    def _of_context(
        self,
        layer: int,
        context: Tensor,
        compute: Callable[[Tensor], tuple[Tensor, Tensor]],
        owner: nn.Module,
    ) -> tuple[Tensor, Tensor]:
        """(B, H_kv, S, ·) keys and values of a context, computed in the first call alone."""
        self._claim((layer, True), owner)
        if layer not in self._contexts:
            self._contexts[layer] = _Context(*compute(context), context, _version_of(context))
        k, v, kept, version = self._contexts[layer]
        now = _version_of(kept)
        changed = version != now and None not in (version, now)  # in place
        # a stored cache holds a copy of the context
        if changed or (kept is not context and not _same(kept, context)):
            raise ValueError(_OTHER_CONTEXT)
        return k, v

    def _counted(self, stop: int, device: torch.device) -> Tensor:
        """Positions of the new tokens: one tensor, and one table of angles, for all layers."""
        kept = self._positions.get((stop, device))
        if kept is None or kept._version:  # a layer may write into them
            kept = self._positions[stop, device] = counted(self._length, stop, device)
        return kept

    def _claim(self, place: tuple[int, bool], layer: nn.Module) -> None:
        """Refuse what another layer has filled, unless a model continues what its copy began."""
        owner = self._owners.get(place)
        if owner is layer:
            return
        if self._owners.get((place[0], not place[1])) is layer:
            raise ValueError(_OTHER_CONTEXT)
        if owner is not None and (self._alone or not _same_weights(owner, layer)):
            raise ValueError(
                "another layer has filled this place of the cache: give each layer a cache of "
                "its own, or in a stack of your own its index, layer=0, 1, …"
            )
        self._owners[place] = layer

    def _draft(self, layer: int, alone: bool) -> "Cache":
        """What the layers of one call work on, from this one on; it shares the memory."""
        draft, first = object.__new__(type(self)), self._entries.get(layer)
        draft.__dict__ |= self.__dict__
        draft._entries, draft._contexts = dict(self._entries), dict(self._contexts)
        draft._owners, draft._alone, draft._positions = dict(self._owners), alone, {}
        draft._length = 0 if first is None else first.length
        return draft

    def _commit(self, draft: "Cache") -> None:
        self.__dict__ |= draft.__dict__ | {"_alone": None, "_positions": {}}
        self._length = max([0, *(entry.length for entry in self._entries.values())])

    def __deepcopy__(self, memo: dict[int, Any]) -> "Cache":
        """A cache of its own, as beam search needs; gradients flow through the copy."""
        other = object.__new__(type(self))
        other.__dict__ |= self.__getstate__() | {"_entries": {}, "_contexts": self._contexts}
        for layer, (k, v, filled, dropped) in self._entries.items():
            k, v = k[..., :filled, :].clone(), v[..., :filled, :].clone()
            other._entries[layer] = _Entry(k, v, filled, dropped)
        return other

    def __copy__(self) -> "Cache":
        """The same: two caches that write into one memory would destroy each other's."""
        return copy.deepcopy(self)

    def __getstate__(self) -> dict[str, Any]:
        """What was seen, for layers that are not yet known: a copied or stored model has others."""
        contexts = {layer: one._replace(version=None) for layer, one in self._contexts.items()}
        others = {"_contexts": contexts, "_owners": {}, "_alone": None, "_positions": {}}
        return self.__dict__ | others


def one_pass(forward: _Forward) -> _Forward:
    """Let the outermost of nested calls commit what its layers have appended to the cache."""
    alone = "layer" in inspect.signature(forward).parameters  # else: a whole stack, or a model

    @functools.wraps(forward)
    def call(self: nn.Module, *args: Any, **options: Any) -> Any:
        cache = options.get("cache")
        if cache is not None and not isinstance(cache, Cache):
            raise TypeError(f"cache must be an attn_lib.Cache, got {type(cache).__name__}")
        if cache is None or cache._alone is not None:
            return forward(self, *args, **options)
        draft = cache._draft(options.get("layer", 0), alone)
        out = forward(self, *args, **{**options, "cache": draft})
        cache._commit(draft)
        return out

    return cast(_Forward, call)


def _version_of(x: Tensor) -> int | None:
    """How often a tensor was changed in place; None where that is not counted."""
    return None if x.is_inference() or torch.compiler.is_compiling() else x._version


def _same(one: Tensor, other: Tensor) -> bool:
    """NaN is NaN: what a mask closes may hold anything."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True)


def _same_weights(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=False)
    return type(one) is type(other) and all(torch.equal(a, b) for a, b in pairs)


def _check_fits(new: Tensor, old: Tensor) -> None:
    if new.shape[0] != old.shape[0]:
        raise ValueError(
            f"x and cache must have the same batch size, got {new.shape[0]} and {old.shape[0]}"
        )
    if new.dtype != old.dtype or new.device != old.device:
        raise ValueError(
            f"x and cache must have the same dtype and device, got {new.dtype} on {new.device} and "
            f"{old.dtype} on {old.device}"
        )


def _with_room(old: _Entry, k: Tensor, v: Tensor, first: int) -> _Entry:
    """Memory for the old positions from ``first`` on and the new ones, and for as many again."""
    T = k.shape[2]
    if old.filled + T <= old.k.shape[2] and not old.k.requires_grad:
        if old.k.is_inference() == torch.is_inference_mode_enabled():
            return _Entry(old.k, old.v, old.filled + T, old.dropped)
    reach = old.filled - first
    memory = [x.new_empty(*x.shape[:2], 2 * (reach + T), x.shape[-1]) for x in (k, v)]
    for new, before in zip(memory, (old.k, old.v), strict=True):
        new[:, :, :reach] = before[:, :, first : old.filled]
    return _Entry(memory[0], memory[1], reach + T, old.dropped + first)
