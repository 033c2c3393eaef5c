"""A real language model: its parameters, its key heads, its cache, and whether it is right."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attn_lib.cache import Cache
from attn_lib.exercises._verdict import (
    Wrong,
    exercise,
    one_number,
    tensor_of,
    yes_or_no,
)
from attn_lib.models import DecoderLM
from attn_lib.positions import apply_rope
from attn_lib.transformer import TransformerDecoder, TransformerEncoder


@exercise("9.1")
def count_parameters(answer: Any) -> str | None:
    """Vocabulary 50, d_model 12, 4 query and 2 key heads of 3, d_ff 20, 2 blocks, tied."""
    given = one_number(answer)
    embedding, shared, network, norms = 50 * 12, 2 * 12 * 2 * 3, 3 * 12 * 20, 2 * 12
    block = 2 * 12 * 4 * 3 + shared + network + norms
    right = embedding + 2 * block + 12
    if given == right:
        return None
    slips = {
        right + embedding: "the output is tied: the embedding's matrix counts once",
        right - 12: "one norm is missing, the last one",
        right - 2 * norms - 12: "the norms are missing: each has a gain for every channel",
        right - 2 * norms: "two norms of each block are missing",
        right + 2 * norms + 12: "an RMSNorm has a gain and no bias",
        right + 2 * shared: "only 2 heads have keys and values of their own",
        right - 2 * shared // 2: "keys and values are two matrices",
        right - 2 * 12 * 20: "SwiGLU has three matrices: gate, up and down",
        embedding + block + 12: "there are two blocks",
        right - embedding: "the embedding is missing",
    }
    return slips.get(
        int(given) if given == given and abs(given) < 1e9 else 0,
        "add up the embedding, then for each block four projections, SwiGLU and two norms, and "
        "the last norm",
    )


@exercise("9.2")
def key_heads_for_all(answer: Callable[[Tensor, int, int], Tensor]) -> str | None:
    """(H_kv · d_k, d_model) to (H · d_k, d_model): a key head for each query head."""
    for H_kv, H, d_k, d_model in ((3, 9, 2, 5), (2, 8, 3, 7), (1, 4, 5, 3), (4, 4, 2, 3)):
        W = torch.arange(float(H_kv * d_k * d_model)).view(H_kv * d_k, d_model)
        given = W.clone()
        out = tensor_of(answer(given, H_kv, H))
        if not torch.equal(given, W):
            return "it changed its argument; work on a new tensor"
        case = f"for H_kv={H_kv}, H={H}, d_k={d_k}"
        if out.shape != (H * d_k, d_model):
            return f"{case} the shape is {tuple(out.shape)} instead of {(H * d_k, d_model)}"
        if out.is_complex() or not torch.equal(out.double(), _for_all(W, H_kv, H).double()):
            if torch.equal(out, W.repeat(H // H_kv, 1)):
                return f"{case} the heads are tiled: query head 1 would use key head 1 instead of 0"
            if torch.equal(out, W.repeat_interleave(H // H_kv, dim=0)):
                return f"{case} each row is repeated; repeat whole heads, of {d_k} rows"
            return f"{case} query head h does not find the rows of key head h // {H // H_kv}"
    return None


def _for_all(W: Tensor, H_kv: int, H: int) -> Tensor:
    heads = W.chunk(H_kv)
    return torch.cat([heads[h // (H // H_kv)] for h in range(H)])


@exercise("9.3")
def tells_a_wrong_cache(answer: Callable[[Callable[..., Tensor], Tensor], Any]) -> str | None:
    """Whether logits are the same however the text is cut: tried on many caches."""
    model = _small()
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9]])
    for name, wrong in _CACHES.items():
        seen = yes_or_no(answer(partial(_cached, model, wrong), tokens.clone()))
        if name == "right" and not seen:
            return (
                "it refuses a cache that is right: logits of pieces differ from those of the whole "
                "by rounding, about 1e-7 here"
            )
        if name != "right" and seen:
            return f"it accepts a cache that {name}"
    return None


# what goes wrong: whether it does, for a piece of T tokens after n others
_CACHES: dict[str, Callable[[int, int], bool]] = {
    "right": lambda n, T: False,
    "forgets all earlier tokens": lambda n, T: n > 0,
    "forgets in pieces of more than one token": lambda n, T: n > 0 and T > 1,
    "forgets in pieces of a single token": lambda n, T: n > 0 and T == 1,
    "forgets from the fifth token on": lambda n, T: n >= 4,
    "forgets just after the first token": lambda n, T: n == 1,
}


def _counted(n: int, thing: str) -> str:
    return f"{n} {thing}{'s' * (n > 1)}"


def _only(n: int, T: int) -> Callable[[int, int], bool]:
    return lambda before, length: (before, length) == (n, T)


# a piece of every length at every place: a test that leaves one out accepts one of these
_CACHES |= {
    f"forgets only in a piece of {_counted(T, 'token')} after {_counted(n, 'other')}": _only(n, T)
    for n in range(1, 6)
    for T in range(1, 7 - n)
}


@torch.no_grad()
def _cached(
    model: DecoderLM, wrong: Callable[[int, int], bool], tokens: Tensor, *, cache: Any = None
) -> Tensor:
    if cache is not None and not isinstance(cache, Cache):
        raise Wrong(f"cache must be an attn_lib.Cache, not {type(cache).__name__}")
    before = 0 if cache is None else cache.length
    if before + tokens.shape[1] > 6:
        raise Wrong(
            f"a cache that holds {_counted(before, 'token')} gets {tokens.shape[1]} more, of a "
            "text of 6: start each cut with a new cache"
        )
    logits = model(tokens, cache=cache)
    return model(tokens) if wrong(before, tokens.shape[1]) else logits


@exercise("9.4")
def tells_the_right_model(answer: Callable[..., Any]) -> str | None:
    """Whether a model is the reference: tried on a right one and on five with an error each."""
    reference = partial(_asked, _small())
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9]])
    for name, model in _models().items():
        seen = yes_or_no(answer(partial(_asked, model), reference, tokens.clone()))
        if name == "right" and not seen:
            return (
                "it refuses a right model: its logits differ from those of the reference by "
                "rounding, about 1e-7 here"
            )
        if name != "right" and seen:
            return f"it accepts a model that {name}"
    return None


class _Peeking(TransformerDecoder):
    """Each token sees one token too far."""

    def forward(self, x: Tensor, context: Tensor | None = None, **options: Any) -> Tensor:
        cache = options["cache"]
        past, T = 0 if cache is None else cache.length, x.shape[1]
        options["mask"] = torch.ones(T, past + T).tril(past + 1).bool()
        return TransformerEncoder.forward(self, x, causal=False, **options)


def _small(epsilon: float = 1e-5, base: float = 100.0, restarts: bool = False) -> DecoderLM:
    """A decoder whose weights are always the same."""

    def rotate(x: Tensor, positions: Tensor) -> Tensor:
        return apply_rope(x, positions - positions[0] if restarts else positions, base=base)

    options: dict[str, Any] = {"num_heads": 2, "d_ff": 16, "num_layers": 2, "d_model": 8}
    options["norm"] = partial(nn.RMSNorm, eps=epsilon)
    with torch.random.fork_rng(devices=[]):  # leaves the reader's random state as it was
        torch.manual_seed(0)
        model = DecoderLM(vocab_size=11, max_len=None, attention={"rotate": rotate}, **options)
    for name, weight in model.named_parameters():  # with small ones the positions hardly count
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            weight.data *= 4.0
    return model.eval()


class _WrongAtFirst(DecoderLM):
    """The first token of a text gets logits that are a little off."""

    def forward(self, tokens: Tensor, *, mask: Tensor | None = None, cache: Any = None) -> Tensor:
        first = cache is None or cache.length == 0
        logits = super().forward(tokens, mask=mask, cache=cache).clone()
        logits[:, 0] += 0.01 * first * torch.arange(11)
        return logits


def _models() -> dict[str, DecoderLM]:
    peeking, first = _small(), _small()
    peeking.decoder.__class__, first.__class__ = _Peeking, _WrongAtFirst
    return {
        "right": _small().double(),
        "rotates at another speed": _small(base=10.0),
        "sees one token too far": peeking,
        "is wrong after the first token alone": first,
        "has another epsilon": _small(epsilon=2e-5),
        "counts its positions anew in each call with a cache": _small(restarts=True),
    }


@torch.no_grad()
def _asked(model: DecoderLM, tokens: Tensor, *, cache: Any = None) -> Tensor:
    if cache is not None and not isinstance(cache, Cache):
        raise Wrong(f"cache must be an attn_lib.Cache, not {type(cache).__name__}")
    before = 0 if cache is None else cache.length
    if before + tokens.shape[1] > 6:
        raise Wrong(
            f"a cache that holds {_counted(before, 'token')} gets {tokens.shape[1]} more, of a "
            "text of 6: give each model a new cache"
        )
    return model(tokens, cache=cache).float()
