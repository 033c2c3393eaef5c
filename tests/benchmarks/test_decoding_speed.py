"""How fast a model writes, beside the least work it could be and another library.

Whole texts, greedy and one at a time: ``attn_lib.generate`` against a bare loop, functional calls
on the model's weights over memory that is there before the first step, and against Hugging Face's
``generate``. All have the same weights, those of a small Llama, and write the same tokens.
"""

import torch
import torch.nn.functional as F
from rounds import ROUNDS, race
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from attn_lib import generate
from attn_lib.interop import from_transformers

VOCABULARY, PROMPT, NEW = 1000, 8, 240
SIZES = {"hidden_size": 256, "num_attention_heads": 8, "intermediate_size": 683}
SIZES |= {"num_hidden_layers": 4}
TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}  # no token ends a text


class Floor:
    """The least work: no module, no check, no option, and a place for everything that is kept."""

    def __init__(self, model: LlamaForCausalLM, max_len: int):
        weights = {name: weight.detach() for name, weight in model.state_dict().items()}
        self.vectors, *inner, self.norm, self.output = weights.values()
        self.blocks = [inner[n : n + 9] for n in range(0, len(inner), 9)]
        self.heads, self.widths = SIZES["num_attention_heads"], (SIZES["hidden_size"],)
        cos, sin = model.model.rotary_emb(self.vectors, torch.arange(max_len)[None])
        self.cos, self.sin = cos[0], sin[0]
        shape = len(self.blocks), 2, 1, self.heads, max_len, self.cos.shape[1]
        self.cache, self.tokens = torch.empty(shape), torch.empty(1, max_len, dtype=torch.int64)

    def step(self, tokens: Tensor, start: int) -> Tensor:
        """Logits (1, vocabulary) after (1, T) tokens, the first of which stands at ``start``."""
        T = tokens.shape[1]
        end = start + T
        cos, sin = self.cos[start:end], self.sin[start:end]
        x = F.embedding(tokens, self.vectors)
        for block, (keys, values) in zip(self.blocks, self.cache, strict=True):
            *qkv, out, gate, up, down, norm, norm_2 = block
            y = F.rms_norm(x, self.widths, norm, 1e-6)
            q, k, v = (F.linear(y, w).view(1, T, self.heads, -1).transpose(1, 2) for w in qkv)
            q, k = (z * cos + torch.cat([-z[..., 16:], z[..., :16]], dim=-1) * sin for z in (q, k))
            keys[:, :, start:end], values[:, :, start:end] = k, v
            seen = keys[:, :, :end], values[:, :, :end]
            y = F.scaled_dot_product_attention(q, *seen, is_causal=T > 1)
            x = x + F.linear(y.transpose(1, 2).reshape(1, T, -1), out)
            y = F.rms_norm(x, self.widths, norm_2, 1e-6)
            x = x + F.linear(F.silu(F.linear(y, gate)) * F.linear(y, up), down)
        return F.linear(F.rms_norm(x[:, -1], self.widths, self.norm, 1e-6), self.output)

    @torch.no_grad()
    def generate(self, prompt: Tensor, max_new_tokens: int) -> Tensor:
        T, tokens = prompt.shape[1], self.tokens
        tokens[:, :T] = prompt
        tokens[:, T] = self.step(prompt, 0).argmax(dim=-1)
        for place in range(T, T + max_new_tokens - 1):
            tokens[:, place + 1] = self.step(tokens[:, place : place + 1], place).argmax(dim=-1)
        return tokens[:, : T + max_new_tokens].clone()


def test_speed_of_writing(benchmark, capsys):
    torch.manual_seed(0)
    max_len = PROMPT + NEW
    config = LlamaConfig(**SIZES, **TOKENS, vocab_size=VOCABULARY, max_position_embeddings=max_len)
    theirs = LlamaForCausalLM(config).eval()
    for part in theirs.parameters():
        if part.dim() == 2:
            nn.init.normal_(part, std=0.1)  # large, so that a text does not run in circles
    model, floor = from_transformers(theirs), Floor(theirs, max_len)
    prompt = torch.randint(VOCABULARY, (1, PROMPT))
    real = torch.ones_like(prompt)
    writers = {
        "bare loop": lambda: floor.generate(prompt, NEW),
        "attn_lib": lambda: generate(model, prompt, max_new_tokens=NEW),
        "LlamaForCausalLM.generate": lambda: theirs.generate(
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
