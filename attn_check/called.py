"""A language model, however it is called: from tokens to logits, whole or in pieces."""

import contextlib
import copy
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attn_check import calls
from attn_check.subject import module_of, quoted

_ROLES = {
    "mask": ("mask", "attention_mask", "padding_mask"),
    "positions": ("positions", "position_ids"),
    "segments": ("segments", "segment_ids", "document_ids"),
}
_CACHES = ("past_key_values", "cache_params", "state")  # names in transformers
_WINDOWS = ("sliding_window", "window", "window_size", "attention_chunk_size")
REACHED = 64  # windows up to this are shorter than the texts
_FORMS: tuple[Callable[[Tensor], Tensor], ...]  # of a mask (B, S), True = a real token
_FORMS = (Tensor.bool, Tensor.long, lambda mask: mask[:, None, None])


class NotSupportedError(Exception):
    """The model takes, or returns, nothing for it."""


class RefusedError(ValueError):
    """A sentence: what the model was asked, and what it raises, or gives, instead of logits."""


@contextlib.contextmanager
def asking(words: str) -> Iterator[None]:
    """What the model raises inside becomes a sentence that begins with these words."""
    try:
        yield
    except NotSupportedError:
        raise
    except Exception as error:  # whatever it is
        raise RefusedError(f"{words}, it raises {quoted(error)}") from error


class Called:
    """A copy of a model, in evaluation mode; half precision becomes float32."""

    def __init__(self, fn: Callable, arguments: str | None, step: Callable | None) -> None:
        copies = [(f, *calls.copied(f, module_of(f))) for f in (fn, step) if f is not None]
        _, self.fn, self.module = copies[0]
        modules = [module for _, _, module in copies if module is not None]
        weights = [] if self.module is None else self.module.parameters()
        self.weight = next((p for p in weights if p.is_floating_point()), torch.zeros(()))
        self.unknown = list[str]()
        kept = str(self.weight.dtype).removeprefix("torch.")
        for module in modules:
            module.eval()  # the caller's mode is restored, where it cannot be copied
        if any(module is module_of(f) for f, _, module in copies if module is not None):
            self.unknown.append("What it remembers: it cannot be copied, so it was judged itself.")
        elif kept in ("float16", "bfloat16") and len(modules) == len(copies):
            self.unknown.append(f"What rounding to {kept} hides: a copy in float32 was judged.")
            for module in modules:
                module.float()
        target = self.fn.forward if isinstance(self.fn, nn.Module) else self.fn
        self.parameters = inspect.signature(target).parameters
        stepped = inspect.signature(step).parameters if step else self.parameters
        self.roles, self.step_roles = _read(self.parameters, arguments), _read(stepped, arguments)
        named = "input_ids" in self.parameters and "decoder_input_ids" not in self.parameters
        self.of_transformers = named and hasattr(self.module, "config")
        cache = next((name for name in _CACHES if name in self.parameters), "")
        own = cache if self.of_transformers else ""
        self.off = {"use_cache": False} if own else {}
        self.step = copies[1][1] if step else _step_of(self.fn, _class_of_cache(target), own)
        # whether a cache is used, in words: with one, a text is given in pieces
        self.ways = {"cache off": False, "cache on": True} if self.step else {"": False}
        self.form = Tensor.long if self.of_transformers else self._form()

    def changed(self, change: Callable[[nn.Module], Any]) -> "Called":
        """The same, whole texts alone, of a copy that is changed."""
        other = copy.copy(self)
        other.fn, other.module = calls.copied(self.fn, self.module)
        if other.module is None or other.module is self.module:
            raise NotSupportedError("it is no module that can be copied")
        change(other.module)
        return other

    @torch.no_grad()
    def run(
        self,
        tokens: Tensor,
        *,
        pieces: Sequence[int] | None = None,
        options: Mapping[str, Any] | None = None,
        **given: Tensor,
    ) -> Tensor:
        """(B, T, V) logits of tokens (B, T), in double precision: of one call, or of pieces.

        ``pieces`` are lengths, given one after the other with a cache; ``options``, of one call,
        are by default that the cache is off; ``given`` are mask (B, T), True = a real token,
        positions (B, T) and segments (B, T).
        """
        if pieces is None:
            named = self._named(self.roles, given, 0, tokens.shape[1])
            named |= self.off if options is None else options
            return _logits(self._call(self.fn, tokens, **named), tokens)
        if self.step is None:
            raise NotSupportedError("takes no cache; if it has one, pass step=")
        outs, cache, start = list[Tensor](), None, 0
        for stop in torch.tensor(pieces).cumsum(0).tolist():
            named = self._named(self.step_roles, given, start, stop)
            piece, start = tokens[:, start:stop], stop
            out, cache = self._call(self.step, piece, cache, **named)
            outs.append(_logits(out, piece))
        return torch.cat(outs, dim=1)

    def _named(
        self, roles: Mapping[str, str], given: Mapping[str, Tensor], start: int, stop: int
    ) -> dict[str, Any]:
        """By the names of the parameters: of a mask all so far, of others what is new."""
        if missing := [role for role in given if role not in roles]:
            raise NotSupportedError(f"takes no {missing[0]}")
        cut = {role: x[:, start:stop] for role, x in given.items()}
        if "mask" in given:
            cut["mask"] = self.form(given["mask"][:, :stop])
        return {roles[role]: x.to(self.weight.device) for role, x in cut.items()}

    def _call(self, fn: Callable, tokens: Tensor, *cache: Any, **named: Any) -> Any:
        given = [f"tokens {tuple(tokens.shape)}", *("a cache" for one in cache if one is not None)]
        given += [name if isinstance(x, Tensor) else f"{name}={x}" for name, x in named.items()]
        *first, last = given
        with asking(f"given {' and '.join([', '.join(first), last] if first else given)}"):
            return fn(tokens.to(self.weight.device), *cache, **named)

    def _form(self) -> Callable[[Tensor], Tensor]:
        """The first form of a mask that the model takes."""
        tokens = torch.zeros(2, 3, dtype=torch.long)
        mask = torch.tensor([[False, True, True], [True, True, True]])
        for form in _FORMS if "mask" in self.roles else ():
            self.form = form
            with contextlib.suppress(Exception):
                self.run(tokens, mask=mask)
                return form
        return _FORMS[0]


def _read(parameters: Iterable[str], arguments: str | None) -> dict[str, str]:
    """From roles to the names of parameters."""
    names = set(parameters)
    found = {role: name for role, usual in _ROLES.items() for name in usual if name in names}
    for item in (arguments or "").replace(",", " ").split():
        name, _, role = item.partition("=")
        if role not in _ROLES:
            known = ", ".join(_ROLES)
            raise ValueError(f"arguments must name the roles {known}, as keep=mask; got {item!r}")
        found |= {role: name} if name in names else {}
    return found


def _logits(out: Any, tokens: Tensor) -> Tensor:
    """Of an output, in double precision: a tensor, the first of a tuple, or ``.logits``."""
    out = getattr(out, "logits", out)
    out = out[0] if isinstance(out, tuple | list) else out
    if not isinstance(out, Tensor) or out.dim() != 3 or out.shape[:2] != tokens.shape:
        came = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise RefusedError(f"tokens {tuple(tokens.shape)} must give logits (B, T, V), got {came}")
    return out.detach().double().cpu()


def _class_of_cache(fn: Callable) -> Callable[[], Any] | None:
    """The class that the annotation of a parameter ``cache`` names, if there is one."""
    try:
        hint = typing.get_type_hints(fn).get("cache")
    except Exception:  # names that are there for type checkers alone
        return None
    kinds = [kind for kind in typing.get_args(hint) or (hint,) if isinstance(kind, type)]
    return next((kind for kind in kinds if kind.__module__ != "builtins"), None)


def _step_of(fn: Callable, kind: Callable[[], Any] | None, own: str) -> Callable | None:
    """``step(tokens, cache)``, as users write it, of a model with a cache of this class or name."""

    def with_class(tokens: Tensor, cache: Any, **named: Any) -> tuple[Any, Any]:
        cache = kind() if cache is None and kind is not None else cache
        return fn(tokens, cache=cache, **named), cache

    def with_name(tokens: Tensor, cache: Any, **named: Any) -> tuple[Any, Any]:
        past = {} if cache is None else {own: cache}
        out = fn(tokens, use_cache=True, **past, **named)
        if (cache := getattr(out, own, None)) is None:
            raise NotSupportedError("returns no cache")
        return out, cache

    return with_class if kind else with_name if own else None


class Probe:
    """Texts for a model, and what of the differences between its logits is rounding."""

    def __init__(self, called: Called, length: int, pad: int | None) -> None:
        self.called, self.run, self.pad, self.apart = called, called.run, pad, True
        config = getattr(called.module, "config", None)
        config = getattr(config, "get_text_config", lambda: config)()
        special = {n: x for n, x in getattr(config, "__dict__", {}).items() if "token_i" in n}
        taken = [x for one in special.values() for x in (one if isinstance(one, list) else [one])]
        V = called.run(torch.zeros(1, 2, dtype=torch.long)).shape[-1]
        V = min(V, getattr(config, "vocab_size", None) or V)
        order = torch.randperm(V, generator=torch.Generator().manual_seed(0)).tolist()
        self.known = torch.tensor([t for t in order if t not in (pad, *taken)] or order)
        pads = (pad, special.get("pad_token_id"), order[0])
        self.filler = next(x for x in pads if x is not None)
        owners = [config, *(() if called.module is None else called.module.modules())]
        found = {getattr(owner, name, None) for owner in owners for name in _WINDOWS}
        self.windows = sorted(w for w in found if isinstance(w, int) and w > 0)
        self.length = max([length, *(w + 4 for w in self.windows if w <= REACHED)])
        self.text_of_all = self.text(self.length)
        self.base = called.run(self.text_of_all)[0]
        if self.base.isnan().any():
            raise ValueError("the logits of a text hold NaN")
        finite = self.base[self.base.isfinite()]
        self.unit = finite.std().item() or 1.0
        eps = max(torch.finfo(dtype).eps for dtype in (torch.float32, called.weight.dtype))
        step = eps * finite.abs().max().item() / self.unit
        # double precision would be no measure: a norm's ε may depend on the dtype
        self.limit = 16 * max(4 * step, self._rounding())
        ahead = torch.cat([self.other(self.text_of_all[:, :-1]), self.text_of_all[:, -1:]], dim=1)
        moved = self.gap(called.run(ahead)[0, -1], self.base[-1]).max().item()
        self.deaf = moved <= self.limit  # no token changes the logits of a later one

    def text(self, length: int, number: int = 0) -> Tensor:
        """(1, length) tokens, others for each number."""
        return self.known[(torch.arange(length) + 5 * number) % len(self.known)][None]

    def other(self, tokens: Tensor) -> Tensor:
        """Another token everywhere."""
        same = tokens[..., None] == self.known
        return self.known[(same.int().argmax(dim=-1) + 3) % len(self.known)]

    def gap(self, a: Tensor, b: Tensor) -> Tensor:
        """Differences in standard deviations of the logits."""
        gap = (a - b).abs().masked_fill(a == b, 0.0) / self.unit
        return gap.nan_to_num(float("inf"), float("inf"))

    def _rounding(self) -> float:
        """How far the logits move when each weight moves by one rounding step; else 1e-5."""

        def nudge(module: nn.Module) -> None:
            draw = torch.Generator().manual_seed(0)
            for p in module.parameters():
                step = torch.randint(-1, 2, p.shape, generator=draw).to(p)
                if p.is_floating_point():
                    p.data = p.data * (1 + torch.finfo(p.dtype).eps * step)

        def drawn(called: Called) -> Tensor:  # what is drawn at random is drawn alike
            torch.manual_seed(0)
            return called.run(self.text_of_all)

        try:
            return self.gap(drawn(self.called.changed(nudge)), drawn(self.called)).max().item()
        except Exception:  # whatever a part of it raises
            self.called.unknown.append("Its rounding, which is taken for 1e-5.")
            return 1e-5
