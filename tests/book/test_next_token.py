"""The page on the next token: its greedy texts are no toss-up, its template and cache are right.

A text that a model writes greedily is the same on every processor only if the best logit leads by
more than rounding; here that is asserted, for each token of each text on which the page builds.
"""

import functools
import re
import unicodedata

import jinja2
import pages
import pytest
import torch
from tables import for_each

from attn_lib import generate, pretrained

PAGE = pages.BOOK / "08_next_token.ipynb"
LEAD = 0.005  # rounding moves these logits by less than 0.0005
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
ANSWER = (
    "The cat, a curious and adventurous creature, had a fondness for warm milk and spent hours "
    "watching the milkman, a man who was known for his kindness and generosity."
)


CELLS = {cell.id: cell for cell in pages.code_cells(pages.read(PAGE))}
CACHE, STREAM = "ch08-code-84", "ch08-code-88"


def execute(source: str, names: dict) -> None:
    # how tensors are printed is the page's own affair
    source = re.sub(r"(?m)^( *)(?:%|torch.set_printoptions).*", r"\1pass", source)
    exec(compile(source, PAGE, "exec"), names)  # noqa: S102 - the page's own


@functools.cache
def page() -> dict:
    """What the page's visible cells define, up to the one that streams."""
    names = {}
    for name, cell in CELLS.items():
        if "hide-input" not in pages.tags(cell) or not names:
            execute(cell.source, names)
        if name == STREAM:
            return names
    raise AssertionError(STREAM)


@pytest.fixture(scope="module")
def model():
    return pretrained.smollm2().requires_grad_(False)


@pytest.fixture(scope="module")
def tokenizer():
    return pretrained.smollm2_tokenizer()


def chat(question, system=SYSTEM):
    first = f"<|im_start|>system\n{system}<|im_end|>\n"
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
    ids=[
        "plain",
        "plain, started",
        "plain, stopped",
        "chat",
        "Paris",
        "started",
        "stopped",
        "marked",
    ],
)
def test_greedy_texts_are_no_toss_up(text, new, written, count, model, tokenizer):
    ids = torch.tensor([tokenizer.encode(text).ids])
    out = generate(model, ids, max_new_tokens=new, end=2)
    assert tokenizer.decode(out[0, ids.shape[1] :].tolist()) == written
    best = model(out)[0, ids.shape[1] - 1 : -1].topk(2).values
    assert len(best) == count
    assert (best[:, 0] - best[:, 1]).min() > LEAD


def test_a_toss_up_is_seen(model, tokenizer):
    """On "Who are you?" two tokens are nearer to each other than that."""
    ids = torch.tensor([tokenizer.encode(chat("Who are you?")).ids])
    out = generate(model, ids, max_new_tokens=68, end=2)
    best = model(out)[0, ids.shape[1] - 1 : -1].topk(2).values
    assert (best[:, 0] - best[:, 1]).min() < LEAD


def test_the_chat_function_is_the_template_of_the_file():
    template = jinja2.Template(page()["template"])
    for question in (QUESTION, "", "Hi\nthere"):
        messages = [{"role": "user", "content": question}]
        options = {"messages": messages, "add_generation_prompt": True}
        assert page()["chat"](question) == template.render(**options) == chat(question)
    assert page()["chat"]("Hi").replace(">\n<", "><") != template.render(**options)


def test_the_cache_gives_the_logits_of_one_pass_over_the_whole_answer():
    found, new = [], page()["prompt"]

    def noted(logits):
        found.append(logits)
        return page()["greedy"](logits)

    answer = torch.cat([new, *page()["stream"](new, 60, noted)], dim=1)
    whole = page()["model"](answer)[0, new.shape[1] - 1 : -1]
    assert len(whole) == len(found) == 36
    assert (torch.cat(found) - whole).abs().max() < 0.0005
    assert (torch.cat(found[1:]) - whole[:-1]).abs().max() > 1  # of the token before


def streamed(source=CELLS[CACHE].source):
    """Whether the page, with this cell, writes what the library writes."""
    execute(source, page())
    new = [token.item() for token in page()["stream"](page()["prompt"], 12)]
    execute(CELLS[CACHE].source, page())
    expected = generate(page()["model"], page()["prompt"], max_new_tokens=12)[0, -12:].tolist()
    return new == expected


def test_the_cache_of_the_page_writes_what_the_library_writes():
    assert streamed()


@for_each(
    ("torch.arange(past, past + x.shape[1])", "torch.arange(x.shape[1])"),
    ("torch.cat([cache[layer][0], k], dim=2)", "torch.cat([k, cache[layer][0]], dim=2)"),
    ("torch.cat([cache[layer][1], v], dim=2)", "torch.cat([v, cache[layer][1]], dim=2)"),
    ids=["positions", "keys", "values"],
)
def test_a_wrong_cache_is_seen(old, new):
    assert CELLS[CACHE].source.count(old) == 1
    assert not streamed(CELLS[CACHE].source.replace(old, new))


def test_bytes_without_a_token_are_never_written_or_rare():
    """Eight of them occur in control characters (Cc) and unassigned ones (Cn) alone."""
    names = page()
    missing = {n for n in range(256) if names["letter"][n] not in names["table"]["vocab"]}
    points = map(chr, [*range(0xD800), *range(0xE000, 0x110000)])
    kinds = {}  # of each byte, the categories of the characters that hold it
    for point in points:
        for byte in point.encode():
            kinds.setdefault(byte, set()).add(unicodedata.category(point))
    assert len(missing) == 21
    assert len(missing - kinds.keys()) == 13
    assert all(kinds[byte] <= {"Cc", "Cn"} for byte in missing & kinds.keys())
    assert not kinds[0xF0] <= {"Cc", "Cn"}  # nor every byte


def test_the_cut_by_hand_does_not_know_contractions(tokenizer):
    by_hand = page()["by_hand"]
    for text, same in {"it is": True, "it's": False, "I'll": False}.items():
        assert (by_hand(text) == tokenizer.encode(text).ids) is same, text
