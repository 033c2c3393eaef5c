"""SmolLM2 beside a second reading of its file, by hand, and transformers' Llama."""

from types import SimpleNamespace

import gguf_by_hand
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from attn_lib import files, generate, pretrained

FILE = "smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
TEXTS = [
    "The capital of France is",
    "the cat drank the warm milk",
    "In 1969, 3.14159 and 2²⁰ = 1,048,576.",
    "x1=y22;z333",
    "½ ⅔ ① Ⅳ ٣٤ 二十 3000000",
    "it's we've they'll I'd I'M 'tis",
    "  two spaces,   three\t tab\n\n\nlines \r\n end  ",
    "",
    " ",
    "\n",
    "naïve café — “quotes” … €",
    "日本語のテキスト",
    "Привет, мир! مرحبا",
    "🙂👩‍👩‍👧 e\u0301",
    "<|im_start|>user\nHi 42<|im_end|>\n",
    "<|im_start |> <|endoftext|><|endoftext|>",
    "def f(x):\n    return x**2  # 4 spaces",
    "aaaaaaaaaaaaaaaaaaaa!!!!!!??",
    "\u00a0\u2003 odd\u200bspaces\x00\x7f",
    "a ² and x ½ y",
    "Ⅳ Ⅴ",
]
ASKED = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n<|im_start|>user\nWrite two sentences about a cat that drank warm milk."
    "<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.fixture(scope="module")
def by_hand():
    return gguf_by_hand.read(files.fetch(FILE))


@pytest.fixture(scope="module")
def llama(by_hand):
    """Llama with the weights that were read by hand, its rows put in order one by one."""
    fields, tensors = by_hand
    names = {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attn_output": "self_attn.o_proj",
        **{f"attn_{x}": f"self_attn.{x}_proj" for x in "qkv"},
        **{f"ffn_{x}": f"mlp.{x}_proj" for x in ("gate", "up", "down")},
    }
    sizes = {name.removeprefix("llama."): value for name, value in fields.items()}
    d_k, state = sizes["rope.dimension_count"], {}
    # channel i of a head stands at 2i, channel i + d_k/2 at 2i + 1
    order = [2 * (i % (d_k // 2)) + i // (d_k // 2) for i in range(d_k)]
    for name, tensor in tensors.items():
        *block, part, _ = name.split(".")
        if part in ("attn_q", "attn_k"):
            rows = [head * d_k + i for head in range(len(tensor) // d_k) for i in order]
            tensor = tensor[rows]
        prefix = f"model.layers.{block[1]}." if block else ""
        state[f"{prefix}{names[part]}.weight"] = tensor
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    config = LlamaConfig(
        vocab_size=sizes["vocab_size"],
        hidden_size=sizes["embedding_length"],
        intermediate_size=sizes["feed_forward_length"],
        num_hidden_layers=sizes["block_count"],
        num_attention_heads=sizes["attention.head_count"],
        num_key_value_heads=sizes["attention.head_count_kv"],
        rms_norm_eps=sizes["attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": sizes["rope.freq_base"]},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.load_state_dict(state, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its angles are no weights
    return model.eval()


def test_smollm2_is_what_was_read_by_hand_and_writes_as_transformers_does(llama, by_hand):
    """It is loaded here and in no fixture, so that mutation sees which test reads it."""
    model = pretrained.smollm2()
    assert by_hand[0]["general.license"] == "apache-2.0"
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert not any(m.training for m in model.modules())
    words = gguf_by_hand.Words(by_hand[0])
    tokens = torch.tensor([words.encode(ASKED)])  # by the page on the next token
    written, start = generate(model, tokens, max_new_tokens=8), tokens.shape[1]
    with torch.no_grad():
        expected = llama(written).logits
        assert (model(written) - expected).abs().max() < 1e-5 * expected.abs().max()
    assert torch.equal(expected[:, start - 1 : -1].argmax(dim=-1), written[:, start:])


def test_texts_become_the_tokens_that_the_file_says(by_hand):
    """And back."""
    tokenizer, words = pretrained.smollm2_tokenizer(), gguf_by_hand.Words(by_hand[0])
    ids = [tokenizer.encode(text).ids for text in TEXTS]
    assert ids == [words.encode(text) for text in TEXTS]
    assert [tokenizer.decode(each, skip_special_tokens=False) for each in ids] == TEXTS
    assert tokenizer.get_vocab_size() == 49_152
    assert tokenizer.decode(ids[14]) == "user\nHi 42\n"


def test_a_tensor_without_a_counterpart_is_named(monkeypatch):
    """In a file of another build, if its sha256 were taken over here."""
    tensor = SimpleNamespace(name="rope_freqs.weight", data=np.ones(2, np.float32), tensor_type=0)
    monkeypatch.setattr(pretrained, "_gguf", lambda _: SimpleNamespace(tensors=[tensor]))
    with pytest.raises(ValueError, match=r"^rope_freqs\.weight has no counterpart in DecoderLM$"):
        pretrained.smollm2()
