"""Keys and values of the tokens so far, so that each step computes those of the new ones alone.

A cache knows a layer by its ``cache_key``, which a copy of the layer shares, and by how often the
layer was called before in the same forward pass. So a cache can be copied and stored, with its
model or without, and a layer that stands in a stack twice has two places in it.
"""

import copy
import secrets
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_Place = tuple[str, int]  # the layer's key, and its earlier calls within the pass
_NOTHING = nullcontext()
_OTHER_CONTEXT = "the cache was filled with another context: start with an empty one"


class _Entry(NamedTuple):
    """(B, H_kv, capacity, ·) keys and values; ``filled`` positions are, after ``dropped`` others.

    Memory is written behind ``filled`` only, so that an older entry stays as it was: to undo an
    append it is enough to have kept the entry before it.
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
    """(B, H_kv, S, ·) keys and values of a context, and the context itself."""

    k: Tensor
    v: Tensor
    source: Tensor


def new_cache_key() -> str:
    """A key that no other layer has; a copy of the layer keeps it. No random state is touched."""
    return secrets.token_hex()


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
    """

    def __init__(self) -> None:
        self._entries: dict[_Place, _Entry] = {}
        self._contexts: dict[_Place, _Context] = {}
        self._owners: dict[str, weakref.ref[nn.Module]] = {}  # of layers called by themselves
        self._calls: dict[str, int] | None = None  # of each layer, in the pass that is under way
        self._start: int | None = None  # length before that pass, if it is one of several layers
        self._shared: dict[Hashable, Any] = {}  # what the layers of that pass compute once

    @property
    def length(self) -> int:
        """Tokens seen so far, including those outside the window."""
        return max((entry.length for entry in self._entries.values()), default=0)

    @property
    def in_pass(self) -> bool:
        """Whether a forward pass is under way."""
        return self._calls is not None

    @contextmanager
    def forward_pass(self, module: nn.Module) -> Iterator[None]:
        """Commit everything appended during the call of this module, or nothing if it raises."""
        key = _key(module)
        if key in self._owners and self._owners[key]() not in (None, module):
            raise ValueError(
                "a layer and its copy would share one place in the cache: give each a cache of "
                "its own, or call both through one stack"
            )
        before = dict(self._entries), dict(self._contexts)
        self._calls = {}
        self._start = None if hasattr(module, "cache_key") else self.length
        try:
            yield
        except BaseException:
            self._entries, self._contexts = before
            raise
        finally:
            self._calls, self._shared = None, {}
        if hasattr(module, "cache_key"):
            self._owners[key] = weakref.ref(module)

    def once(self, name: Hashable, compute: Callable[[], Any]) -> Any:
        """What the layers of a forward pass have in common, computed by the first that asks."""
        self._calls_so_far()
        if name not in self._shared:
            self._shared[name] = compute()
        return self._shared[name]

    def seen(self, layer: nn.Module) -> int:
        """Tokens that this layer has been given before; it is about to append."""
        entry = self._entry(self._place(layer))
        return 0 if entry is None else entry.length

    def append(
        self, layer: nn.Module, k: Tensor, v: Tensor, *, window: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Add (B, H_kv, T, ·) keys and values; all so far that the window leaves in reach."""
        place, T = self._place(layer), k.shape[2]
        old = self._entry(place)
        first = start = 0
        if old is not None:
            _check_fits(k, old.k)
            start = old.filled
            first = 0 if window is None else max(start - window + 1, 0)
            if old.dropped and (window is None or start < window - 1):
                raise ValueError(f"window={window} needs keys that a smaller window has dropped")
        if torch.is_grad_enabled():
            if old is not None:
                k = torch.cat([old.k[:, :, first:start], k], dim=2)
                v = torch.cat([old.v[:, :, first:start], v], dim=2)
            entry = _Entry(k, v, k.shape[2], first + (0 if old is None else old.dropped))
        else:
            entry = _with_room(old, k, v, first)
            new = slice(entry.filled - T, entry.filled)
            entry.k[:, :, new] = k
            entry.v[:, :, new] = v
        self._entries[place] = entry
        self._count(place)
        seen = slice(entry.filled - T - (start - first), entry.filled)
        return entry.k[:, :, seen], entry.v[:, :, seen]

    def of_context(
        self,
        layer: nn.Module,
        context: Tensor,
        compute: Callable[[Tensor], tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, Tensor]:
        """(B, H_kv, S, ·) keys and values of a context, computed in the first call alone."""
        place = self._place(layer)
        if place in self._entries:
            raise ValueError(_OTHER_CONTEXT)
        if place not in self._contexts:
            self._contexts[place] = _Context(*compute(context), context)
        k, v, kept = self._contexts[place]
        # a copied or stored cache holds a copy of the context
        if kept is not context and not (kept.shape == context.shape and kept.equal(context)):
            raise ValueError(_OTHER_CONTEXT)
        self._count(place)
        return k, v

    def _place(self, layer: nn.Module) -> _Place:
        key = _key(layer)
        return key, self._calls_so_far().get(key, 0)

    def _calls_so_far(self) -> dict[str, int]:
        if self._calls is None:
            raise ValueError("a cache is used within its forward_pass")
        return self._calls

    def _entry(self, place: _Place) -> _Entry | None:
        """What a layer that is about to append has appended before."""
        if place in self._contexts:
            raise ValueError(_OTHER_CONTEXT)
        entry = self._entries.get(place)
        length = 0 if entry is None else entry.length
        if self._start is not None and length != self._start:
            raise ValueError(
                f"the cache holds {length} tokens of this layer and {self._start} of others: "
                "start with an empty one"
            )
        return entry

    def _count(self, place: _Place) -> None:
        """The layer's next call in this pass has another place."""
        self._calls_so_far()[place[0]] = place[1] + 1

    def __deepcopy__(self, memo: dict[int, Any]) -> "Cache":
        """A cache of its own, as beam search needs; gradients flow through the copy."""
        other = Cache()
        for place, (k, v, filled, dropped) in self._entries.items():
            k, v = k[..., :filled, :].clone(), v[..., :filled, :].clone()
            other._entries[place] = _Entry(k, v, filled, dropped)
        other._contexts = dict(self._contexts)  # never written to
        return other

    def __copy__(self) -> "Cache":
        """The same: two caches that write into one memory would destroy each other's."""
        return copy.deepcopy(self)

    def __getstate__(self) -> dict[str, Any]:
        """What was seen; the layers themselves are of this process only."""
        return {**self.__dict__, "_owners": {}, "_calls": None, "_shared": {}}


def one_pass(cache: Cache | None, module: nn.Module) -> AbstractContextManager[None]:
    """Open a forward pass, unless there is no cache or one is already open."""
    return _NOTHING if cache is None or cache.in_pass else cache.forward_pass(module)


def _key(module: nn.Module) -> str:
    """Modules without a key of their own are told apart by where they are."""
    return module.__dict__.get("cache_key") or f"{id(module):x}"


def _check_fits(new: Tensor, old: Tensor) -> None:
    if new.shape[0] != old.shape[0]:
        raise ValueError(
            f"x and cache must have the same batch size, got {new.shape[0]} and {old.shape[0]}"
        )
    if (new.dtype, new.device) != (old.dtype, old.device):
        raise ValueError(
            f"x and cache must have the same dtype and device, got {new.dtype} on {new.device} and "
            f"{old.dtype} on {old.device}"
        )


def _with_room(old: _Entry | None, k: Tensor, v: Tensor, first: int) -> _Entry:
    """Memory for the old positions from ``first`` on and the new ones, and for as many again."""
    T = k.shape[2]
    if old is not None and old.filled + T <= old.k.shape[2] and not old.k.requires_grad:
        if old.k.is_inference() == torch.is_inference_mode_enabled():
            return _Entry(old.k, old.v, old.filled + T, old.dropped)
    reach, dropped = (0, 0) if old is None else (old.filled - first, old.dropped + first)
    memory = [x.new_empty(*x.shape[:2], 2 * (reach + T), x.shape[-1]) for x in (k, v)]
    if old is not None:
        for new, before in zip(memory, (old.k, old.v), strict=True):
            new[:, :, :reach] = before[:, :, first : old.filled]
    return _Entry(memory[0], memory[1], reach + T, dropped)
