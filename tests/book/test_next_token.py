"""The page on the next token: its template is that of the model's file."""

import jinja2
import pages

from attn_lib import files, pretrained

CELL = pages.sources(pages.BOOK / "08_next_token.ipynb")["ch08-code-72"]


def test_the_chat_function_is_the_template_of_the_file():
    file = files.cache_folder() / pretrained._SMOLLM2
    text = pretrained._gguf(file).fields["tokenizer.chat_template"].contents()
    chat = pages.defined_by([CELL.partition("def ids_of")[0]], template=text)["chat"]
    template = jinja2.Template(text)
    for question in ("Write two sentences about a cat.", "", "Hi\nthere"):
        messages = [{"role": "user", "content": question}]
        assert chat(question) == template.render(messages=messages, add_generation_prompt=True)
