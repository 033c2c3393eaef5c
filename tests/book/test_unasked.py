"""What the own outputs of a page do not ask of its functions."""

import jinja2
import pages
import pytest
import torch
import torch.nn.functional as F
from tables import for_each

from attn_lib import files, pretrained


def source(page, cell):
    return pages.sources(pages.BOOK / f"{page}.ipynb")[cell]


def test_the_chat_function_is_the_template_of_the_file():
    file = files.cache_folder() / pretrained._SMOLLM2
    text = pretrained._gguf(file).fields["tokenizer.chat_template"].contents()
    code = source("08_next_token", "ch08-code-72").partition("def ids_of")[0]
    chat = pages.defined_by([code], template=text)["chat"]
    template = jinja2.Template(text)
    for question in ("Write two sentences about a cat.", "", "Hi\nthere"):
        messages = [{"role": "user", "content": question}]
        assert chat(question) == template.render(messages=messages, add_generation_prompt=True)


def test_a_text_of_the_task_of_one_state_asks_for_each_pair_once():
    page = pages.defined_by(["import torch", source("13_one_state", "ch13-code-42")])
    torch.manual_seed(0)
    keys, values, answers = page["write_texts"](50)
    n, blank = page["PAIRS"], page["NAMES"]
    assert keys.shape == values.shape == (50, 2 * n)
    for row, said, wanted in zip(keys.tolist(), values.tolist(), answers.tolist(), strict=True):
        assert len(set(row[:n])) == n
        assert sorted(row[:n]) == sorted(row[n:])
        known = dict(zip(row[:n], said[:n], strict=True))
        assert [known[name] for name in row[n:]] == wanted
        assert said[n:] == [blank] * n


@pytest.mark.usefixtures("double")
def test_chunks_of_one_state_bear_gates_whose_inverse_overflows():
    """Outputs, states and gradients are those of the loop."""
    cells = [source("13_one_state", f"ch13-code-{n}") for n in (25, 30)]
    page = pages.defined_by(["import math\nimport torch", *cells])
    torch.manual_seed(0)
    q, k = F.normalize(torch.randn(2, 2, 40, 5), dim=-1)
    v, beta, log_gate = torch.randn(2, 40, 3), torch.rand(2, 40, 1), -60 * torch.rand(2, 40, 1)
    given = [x.requires_grad_() for x in (q, k, v, beta, log_gate, torch.randn(2, 5, 3))]
    assert (-log_gate.sum(dim=1)).exp().isinf().all()
    found = []
    for outs in (page["in_chunks"](*given, 40), page["one_state"](*given)):
        total = sum(out.sin().sum() for out in outs)
        found.append([*outs, *torch.autograd.grad(total, given)])
    for chunks, loop in zip(*found, strict=True):
        torch.testing.assert_close(chunks, loop, atol=1e-11, rtol=0)


@for_each((1, 4, 6, 2), (3, 10, 15, 5))
def test_patches_are_those_of_unfold(channels, height, width, p):
    """Of images with several channels, too, which the page on vision has none of."""
    code = source("15_vision", "ch15-code-06").partition("\n\ntiny = ")[0]
    images = torch.randn(2, channels, height, width)
    assert torch.equal(pages.defined_by([code])["cut"](images, p), F.unfold(images, p, stride=p).mT)
