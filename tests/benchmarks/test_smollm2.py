"""SmolLM2 as transformers reads the same file: equal logits and texts, other tokens.

That reading takes long and much memory, so it stands here; ``tests/library/test_smollm2.py``
compares with a reading by hand.
"""

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from attn_lib import files, generate, pretrained

PATH = files.fetch("smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
NEW = 60
EQUAL = [
    "The capital of France is",
    "In 1969, 3.14159 and 2²⁰ = 1,048,576.",
    "it's we've they'll I'd I'M 'tis",
    "  two spaces,   three\t tab\n\n\nlines \r\n end  ",
    "日本語のテキスト и мир مرحبا 🙂",
    "<|im_start|>user\nHi 42<|im_end|>\n",
]
OTHER = ["a ² and x ½ y", "Ⅳ Ⅴ", "½ ⅔ ① Ⅳ ٣٤ 二十 3000000"]  # a numeral after a space


@pytest.fixture(scope="module")
def ours():
    return pretrained.smollm2()


@pytest.fixture(scope="module")
def theirs():
    """What ``from_pretrained`` reads, without the package accelerate that it asks for."""
    options = load_gguf_checkpoint(PATH)["config"]
    config = LlamaConfig(**options | {"bos_token_id": None, "eos_token_id": None})
    model = LlamaForCausalLM(config)
    read = load_gguf_checkpoint(PATH, return_tensors=True, model_to_load=model)["tensors"]
    found = model.load_state_dict(read, strict=False)
    assert (found.missing_keys, found.unexpected_keys) == (["lm_head.weight"], [])  # it is tied
    return model.eval()


@pytest.fixture(scope="module")
def tokenizer():
    return pretrained.smollm2_tokenizer()


def written(theirs, tokens):
    options = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    return theirs.generate(tokens, attention_mask=torch.ones_like(tokens), **options)


def test_logits_and_texts_equal_those_of_transformers(ours, theirs, tokenizer):
    for text in EQUAL[:2]:
        tokens = torch.tensor([tokenizer.encode(text).ids])
        with torch.no_grad():
            expected = theirs(tokens).logits
            assert (ours(tokens) - expected).abs().max() < 1e-5 * expected.abs().max()
        assert torch.equal(generate(ours, tokens, max_new_tokens=NEW), written(theirs, tokens))


def test_transformers_leaves_out_that_a_numeral_stands_alone(tokenizer):
    other = AutoTokenizer.from_pretrained(PATH.parent, gguf_file=PATH.name)
    found = {text: other(text).input_ids == tokenizer.encode(text).ids for text in EQUAL + OTHER}
    assert found == {**dict.fromkeys(EQUAL, True), **dict.fromkeys(OTHER, False)}
