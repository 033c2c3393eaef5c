"""The page on the next token: its greedy texts are no toss-up, its template is that of the file.

A text that a model writes greedily is the same on every processor only if the best logit leads by
more than rounding; here that is asserted, for each token of each text on which the page builds.
"""

import jinja2
import pages
import pytest
import torch
from tables import for_each

from attn_lib import files, generate, pretrained

PAGE = pages.BOOK / "08_next_token.ipynb"
LEAD = 0.005  # rounding moves these logits by less than 0.0005
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
ANSWER = (
    "The cat, a curious and adventurous creature, had a fondness for warm milk and spent hours "
    "watching the milkman, a man who was known for his kindness and generosity."
)


@pytest.fixture(scope="module")
def model():
    return pretrained.smollm2().requires_grad_(False)


@pytest.fixture(scope="module")
def tokenizer():
    return pretrained.smollm2_tokenizer()


def chat(question):
    first = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n"
    return f"{first}<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


QUESTION = "Write two sentences about a cat that drank warm milk."


@for_each(
    (QUESTION, 60, "", 1),
    ("<|endoftext|>" + QUESTION, 60, "", 1),
    ("." + QUESTION, 60, "", 1),
    (chat(QUESTION), 60, ANSWER, 36),
    ("Paris is the capital of", 4, " the United States.", 4),
    ("<|endoftext|>Paris is the capital of", 2, " France and", 2),
    (".Paris is the capital of", 2, " France and", 2),
    ("<|im_start|>Paris is the capital of", 4, " the United States.", 4),
)
def test_greedy_texts_are_no_toss_up(text, new, written, count, model, tokenizer):
    ids = torch.tensor([tokenizer.encode(text).ids])
    out = generate(model, ids, max_new_tokens=new, end=2)
    assert tokenizer.decode(out[0, ids.shape[1] :].tolist()) == written
    best = model(out)[0, ids.shape[1] - 1 : -1].topk(2).values
    assert len(best) == count
    assert (best[:, 0] - best[:, 1]).min() > LEAD


def test_the_chat_function_is_the_template_of_the_file(tokenizer):
    file = files.cache_folder() / pretrained._SMOLLM2
    text = pretrained._gguf(file).fields["tokenizer.chat_template"].contents()
    parts = ["import torch", pages.sources(PAGE)["ch08-code-72"]]
    page = pages.defined_by(parts, template=text, tokenizer=tokenizer)
    template = jinja2.Template(text)
    for question in (QUESTION, "", "Hi\nthere"):
        messages = [{"role": "user", "content": question}]
        options = {"messages": messages, "add_generation_prompt": True}
        assert page["chat"](question) == template.render(**options) == chat(question)
    assert page["chat"]("Hi").replace(">\n<", "><") != template.render(**options)
