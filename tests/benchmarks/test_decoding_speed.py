"""How fast a model writes, beside the least work it could be and another library.

Whole texts, greedy and one at a time: ``attn_lib.generate`` against a bare loop, functional calls
on the model's weights over memory that is there before the first step, and against Hugging Face's
``generate``. All have the same weights and write the same tokens.
"""

import torch
import torch.nn.functional as F
from rounds import ROUNDS, race
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from attn_lib import DecoderLM, MultiHeadAttention, generate

VOCABULARY, PROMPT, NEW = 1000, 8, 240
SIZES = {"d_model": 256, "num_heads": 8, "d_ff": 1024, "num_layers": 4}


def pair(part: nn.Module) -> tuple[Tensor, Tensor]:
    return part.weight.detach(), part.bias.detach()


def projections(layer: MultiHeadAttention) -> list[tuple[Tensor, Tensor]]:
    return [pair(part) for part in (layer.q_proj, layer.k_proj, layer.v_proj)]


def packed(layer: MultiHeadAttention) -> tuple[Tensor, ...]:
    """Weight and bias of one product that gives queries, keys and values, as GPT-2 has it."""
    return tuple(torch.cat(parts) for parts in zip(*projections(layer), strict=True))


class Floor:
    """The least work: no module, no check, no option, and a place for everything that is kept."""

    def __init__(self, model: DecoderLM, max_len: int):
        self.vectors = model.embedding.vectors.weight.detach()
        self.places = model.embedding.positions.table.detach()
        self.norm, self.output = pair(model.decoder.norm), pair(model.output)
        self.blocks = [
            (
                pair(block.attention_norm),
                projections(block.attention),
                pair(block.attention.out_proj),
                pair(block.feed_forward_norm),
                pair(block.feed_forward.up),
                pair(block.feed_forward.down),
            )
            for block in model.decoder.blocks
        ]
        first = model.decoder.blocks[0].attention
        self.heads, self.widths = first.num_heads, (self.vectors.shape[1],)
        self.cache = torch.empty(len(self.blocks), 2, 1, self.heads, max_len, first.d_k)
        self.tokens = torch.empty(1, max_len, dtype=torch.int64)

    def step(self, tokens: Tensor, start: int) -> Tensor:
        """Logits (1, vocabulary) after (1, T) tokens, the first of which stands at ``start``."""
        T, widths = tokens.shape[1], self.widths
        end = start + T
        x = F.embedding(tokens, self.vectors) + self.places[start:end]
        for (norm, qkv, out, norm_2, up, down), (keys, values) in zip(
            self.blocks, self.cache, strict=True
        ):
            y = F.layer_norm(x, widths, *norm)
            q, k, v = (F.linear(y, *p).view(1, T, self.heads, -1).transpose(1, 2) for p in qkv)
            keys[:, :, start:end], values[:, :, start:end] = k, v
            seen = keys[:, :, :end], values[:, :, :end]
            y = F.scaled_dot_product_attention(q, *seen, is_causal=T > 1)
            x = x + F.linear(y.transpose(1, 2).reshape(1, T, -1), *out)
            y = F.gelu(F.linear(F.layer_norm(x, widths, *norm_2), *up))
            x = x + F.linear(y, *down)
        return F.linear(F.layer_norm(x[:, -1], widths, *self.norm), *self.output)

    @torch.no_grad()
    def generate(self, prompt: Tensor, max_new_tokens: int) -> Tensor:
        T, tokens = prompt.shape[1], self.tokens
        tokens[:, :T] = prompt
        tokens[:, T] = self.step(prompt, 0).argmax(dim=-1)
        for place in range(T, T + max_new_tokens - 1):
            tokens[:, place + 1] = self.step(tokens[:, place : place + 1], place).argmax(dim=-1)
        return tokens[:, : T + max_new_tokens].clone()


@torch.no_grad()
def to_transformers(model: DecoderLM, max_len: int) -> GPT2LMHeadModel:
    """The same weights, but for the output's bias, as a GPT-2 that no token can end."""
    sizes = dict(zip(("n_embd", "n_head", "n_inner", "n_layer"), SIZES.values(), strict=True))
    sizes |= {"vocab_size": VOCABULARY, "n_positions": max_len}
    tokens = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    kind = {"activation_function": "gelu", "tie_word_embeddings": False}
    theirs = GPT2LMHeadModel(GPT2Config(**sizes, **tokens, **kind)).eval()
    theirs.transformer.wte.weight.copy_(model.embedding.vectors.weight)
    theirs.transformer.wpe.weight.copy_(model.embedding.positions.table)
    theirs.lm_head.weight.copy_(model.output.weight)
    copies = [(theirs.transformer.ln_f, pair(model.decoder.norm))]
    for other, block in zip(theirs.transformer.h, model.decoder.blocks, strict=True):
        copies += [(other.ln_1, pair(block.attention_norm))]
        copies += [(other.ln_2, pair(block.feed_forward_norm))]
        for turned, (weight, bias) in (  # their matrices stand the other way round
            (other.attn.c_attn, packed(block.attention)),
            (other.attn.c_proj, pair(block.attention.out_proj)),
            (other.mlp.c_fc, pair(block.feed_forward.up)),
            (other.mlp.c_proj, pair(block.feed_forward.down)),
        ):
            copies += [(turned, (weight.T, bias))]
    for part, (weight, bias) in copies:
        part.weight.copy_(weight)
        part.bias.copy_(bias)
    return theirs


def test_speed_of_writing(benchmark, capsys):
    torch.manual_seed(0)
    max_len = PROMPT + NEW
    model = DecoderLM(vocab_size=VOCABULARY, max_len=max_len, **SIZES).eval()
    nn.init.zeros_(model.output.bias)  # GPT-2 has none
    nn.init.normal_(model.embedding.vectors.weight)  # large, so that a text does not run in circles
    nn.init.normal_(model.embedding.positions.table)
    floor = Floor(model, max_len)
    theirs = to_transformers(model, max_len)
    prompt = torch.randint(VOCABULARY, (1, PROMPT))
    real = torch.ones_like(prompt)
    writers = {
        "bare loop": lambda: floor.generate(prompt, NEW),
        "attn_lib": lambda: generate(model, prompt, max_new_tokens=NEW),
        "GPT2LMHeadModel.generate": lambda: theirs.generate(
            prompt, attention_mask=real, max_new_tokens=NEW, do_sample=False, use_cache=True
        ),
    }
    written = {name: write() for name, write in writers.items()}
    for tokens in written.values():  # the same work
        torch.testing.assert_close(tokens, written["attn_lib"])
    text = written["attn_lib"]
    assert text.shape == (1, max_len)
    assert len(text.unique()) > NEW // 2
    with torch.no_grad():
        logits = model(text)[0]  # of the whole text at once, without a cache
        for place in range(max_len):
            step = floor.step(text[:, place : place + 1], place)
            torch.testing.assert_close(step[0], logits[place], atol=1e-4, rtol=1e-4)
    sizes = ", ".join(f"{name} {size}" for name, size in SIZES.items())
    title = f"{NEW} tokens after {PROMPT}, greedy, batch 1; {sizes}"
    race(title, writers, benchmark, capsys, rounds=max(3, ROUNDS // 5))
