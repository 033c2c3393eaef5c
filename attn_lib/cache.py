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
        """How many tokens were given so far, those that a window dropped too."""
        return self.dropped + self.filled


class _Context(NamedTuple):
    """(B, H_kv, S, ·) keys and values of a context, and the context itself."""

    k: Tensor
    v: Tensor
    source: Tensor


def new_cache_key() -> str:
    """A key that no other layer has; a copy of the layer keeps it.

    Returns:
        Hexadecimal digits; no random state is touched.

    Example:
        >>> new_cache_key() == new_cache_key()
        False

    Source: the module ``secrets``.
    """
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
        """How many tokens were given so far, those that a window dropped too."""
        return max((entry.length for entry in self._entries.values()), default=0)

    @property
    def in_pass(self) -> bool:
        """Whether a forward pass is under way."""
        return self._calls is not None

    @contextmanager
    def forward_pass(self, module: nn.Module) -> Iterator[None]:
        """All that a module appends in one call is kept, or, if the call raises, nothing of it.

        Args:
            module: the outermost module of the call; inner ones join its pass by
                ``one_pass``.

        Raises:
            ValueError: a layer called by itself, after a copy of it has used this cache.

        Example:
            >>> cache, layer = Cache(), nn.Identity()
            >>> with cache.forward_pass(layer):
            ...     k, v = cache.append(layer, torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2, 5))
            >>> cache.length
            2
        """
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
        """What the layers of a forward pass have in common, computed by the first that asks.

        Args:
            name: what it is.
            compute: makes it.

        Returns:
            What ``compute`` returned the first time in this pass.

        Raises:
            ValueError: no pass is under way.

        Example:
            >>> cache = Cache()
            >>> with cache.forward_pass(nn.Identity()):
            ...     [cache.once("a", lambda: 1), cache.once("a", lambda: 2)]
            [1, 1]
        """
        self._calls_so_far()
        if name not in self._shared:
            self._shared[name] = compute()
        return self._shared[name]

    def seen(self, layer: nn.Module) -> int:
        """How many tokens this layer has been given before.

        Args:
            layer: about to append, within :meth:`forward_pass`.

        Returns:
            0 or more.

        Raises:
            ValueError: the place is taken by a context, or other layers have seen more or less.

        Example:
            >>> cache, layer = Cache(), nn.Identity()
            >>> with cache.forward_pass(layer):
            ...     cache.seen(layer)
            0
        """
        entry = self._entry(self._place(layer))
        return 0 if entry is None else entry.length

    def append(
        self, layer: nn.Module, k: Tensor, v: Tensor, *, window: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Add the keys and values of new tokens.

        Args:
            layer: whose they are, within :meth:`forward_pass`.
            k: (B, H_kv, T, d_k) keys, already rotated.
            v: (B, H_kv, T, d_v) values.
            window: if given, no query attends to more than this number of positions, the last of
                which is its own: what no query can attend to any more is dropped.

        Returns:
            (B, H_kv, S, d_k) and (B, H_kv, S, d_v) of all tokens so far; with a window, of the
            last window − 1 + T at most.

        Raises:
            ValueError: as :meth:`seen`; another batch size, dtype or device than before; a window
                that needs what was dropped.

        Example:
            >>> cache, layer = Cache(), nn.Identity()
            >>> for _ in range(3):
            ...     with cache.forward_pass(layer):
            ...         k, v = cache.append(layer, torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2, 5))
            >>> k.shape, v.shape
            (torch.Size([1, 1, 6, 4]), torch.Size([1, 1, 6, 5]))
        """
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
        """Keys and values of a context, computed in the first call and kept.

        Args:
            layer: whose they are, within :meth:`forward_pass`.
            context: (B, S, d_context), the same in every call.
            compute: makes (B, H_kv, S, d_k) keys and (B, H_kv, S, d_v) values of it.

        Returns:
            What ``compute`` returned in the first call.

        Raises:
            ValueError: another context than in the first call.

        Example:
            >>> cache, layer, context = Cache(), nn.Identity(), torch.ones(1, 2, 4)
            >>> with cache.forward_pass(layer):
            ...     k, v = cache.of_context(layer, context, lambda c: (c[:, None], c[:, None]))
            >>> k.shape
            torch.Size([1, 1, 2, 4])
        """
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
    """:meth:`Cache.forward_pass` where there is a cache, and none is under way.

    Args:
        cache: may be None.
        module: as there.

    Returns:
        A context manager.

    Example:
        >>> with one_pass(None, nn.Identity()):
        ...     pass

    Source: ``contextlib.nullcontext``.
    """
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
