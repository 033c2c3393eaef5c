"""What the library's model makes of a date: for the figure that reads them in a browser."""

import functools

import torch

from attn_lib import record_attention
from attn_lib.datasets import DATE_LETTERS
from attn_lib.models import Transformer
from attn_lib.records import shipped_tensors

SIGNS, START, END, LONGEST = "0123456789-", 11, 12, 40


@functools.cache
def model() -> Transformer:
    """The one that the page ships, in double precision."""
    sizes = {"d_model": 64, "num_heads": 4, "d_ff": 256, "num_layers": 2, "max_len": LONGEST}
    vocabularies = {"source_vocab_size": len(DATE_LETTERS) + 2, "target_vocab_size": 14}
    found = Transformer(**sizes, **vocabularies)
    found.load_state_dict(shipped_tensors("14_encoder_decoder"))
    return found.double().eval()


@torch.no_grad()
def context(text: str) -> torch.Tensor:
    """(1, S, 64): a row for each character."""
    return model().encode(torch.tensor([[DATE_LETTERS.index(letter) + 2 for letter in text]]))


@torch.no_grad()
def written(context: torch.Tensor) -> tuple[str, torch.Tensor]:
    """The answer, without a cache; and the weights of what wrote it, (T, layers, heads, S)."""
    tokens = [START]
    while len(tokens) < 12:
        tokens.append(int(model().decode(torch.tensor([tokens]), context)[0, -1].argmax()))
        if tokens[-1] == END:
            break
    answer = "".join(SIGNS[i] for i in tokens if i < START)
    with record_attention(model()) as maps:
        model().decode(torch.tensor([tokens[:-1]]), context)
    layers = [weights[0] for name, weights in maps.items() if name.endswith("cross")]
    return answer, torch.stack(layers).permute(2, 0, 1, 3)[: len(answer)]


@functools.cache
def read(text: str, other: str = "", *chosen: int) -> tuple[str, torch.Tensor]:
    """What is written of a text, with the chosen rows of another's."""
    mixed, away = context(text), context(other or text)
    for s in chosen:
        mixed[:, s] = away[:, s]
    return written(mixed)
