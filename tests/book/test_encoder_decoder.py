"""The page on encoder and decoder: its model, and its exchange of rows.

All functions are taken from the page's own cells; the cells of "What to remember" are run again
with a mistake planted, and must notice it.
"""

import re

import matplotlib.pyplot as plt
import pages
import pytest
import record
import torch

from attn_lib.models import Transformer

PAGE = pages.BOOK / "14_encoder_decoder.ipynb"
SOURCES = pages.sources(PAGE)
FEWER = "datasets.dates(40_000)", "datasets.dates(400)"  # for training, of which there is none here
WHERE = "ch14-code-77", "ch14-code-78", "ch14-code-79"  # the tables of the last section


def run(*ids, changes=()):
    """What these cells define, after the set-up and all that is recorded."""
    texts = [source for source in record.plan(PAGE)[1] if "find_spec" not in source]
    imports = [line for line in SOURCES["ch14-code-02"].splitlines() if not line.startswith(" ")]
    imports = [line for line in imports if re.match(r"(import|from) ", line)]
    begin = ["\n".join(imports), *texts, 'log = records.record("14_encoder_decoder")']
    load = SOURCES["ch14-code-73"].partition("print(")[0]
    return pages.defined_by([*begin, load, *(SOURCES[i] for i in ids)], FEWER, *changes)


@pytest.fixture(scope="module")
def chapter():
    return run()


# ---------------------------------------------------------------- the model


@pytest.mark.parametrize(
    ("seed", "d_model", "num_heads", "d_ff", "num_layers"),
    [(0, 64, 4, 256, 2), (3, 6, 3, 10, 1), (5, 10, 2, 7, 3)],
)
def test_the_page_has_the_library_s_model(chapter, seed, d_model, num_heads, d_ff, num_layers):
    """The same initial numbers, the same logits, for other sizes too."""
    sizes = {"d_model": d_model, "num_heads": num_heads, "d_ff": d_ff, "num_layers": num_layers}
    torch.manual_seed(seed)
    own = chapter["EncoderDecoder"](23, 14, **sizes)
    torch.manual_seed(seed)
    library = Transformer(source_vocab_size=23, target_vocab_size=14, max_len=40, **sizes)
    theirs = library.state_dict()
    assert {n: v.shape for n, v in own.state_dict().items()} == {
        n: v.shape for n, v in theirs.items()
    }
    assert all(torch.equal(value, theirs[name]) for name, value in own.state_dict().items())
    source, mask = chapter["to_read"](["3. Mai", "4. Juni 21", "5"])
    source, target = source % 23, chapter["to_write"](["2021-05", "19", ""])
    out = library(source, target, source_mask=mask)
    torch.testing.assert_close(own(source, target, mask), out)


# ---------------------------------------------------------------- exchange

TEXTS = ["23 October 2025", "4 Kasım 1969", "2029/11/21"]
COPIES = ["23 October 1987", "4 Kasım 1987", "1987/11/21"]


@pytest.mark.parametrize("after", range(3))
def test_no_rows_change_nothing_and_all_rows_everything(chapter, after):
    rows = chapter["year_digits"](TEXTS)
    own = chapter["read"](chapter["model"], TEXTS)
    exchange = chapter["exchange"]
    assert exchange(chapter["model"], TEXTS, COPIES, rows & False, after) == own
    copies = chapter["read"](chapter["model"], COPIES)
    assert exchange(chapter["model"], TEXTS, COPIES, rows | True, after) == copies
    assert own != copies


def test_the_year_s_rows_are_its_digits(chapter):
    rows = chapter["year_digits"](TEXTS)
    found = [
        "".join(c for c, r in zip(t, row, strict=False) if r)
        for t, row in zip(TEXTS, rows, strict=True)
    ]
    assert found == ["2025", "1969", "2029"]
    assert [chapter["with_year"](text, 1987) for text in TEXTS] == COPIES


def test_copies_have_another_year(chapter):
    copies, years = chapter["with_other_years"](200 * TEXTS)
    for text, copy, year in zip(200 * TEXTS, copies, years, strict=True):
        assert copy == chapter["with_year"](text, year) != text
        assert 1950 <= int(year) <= 2049
    assert len(set(years)) > 90


def test_forms_are_as_long_as_their_examples(chapter):
    for form in chapter["FORMS"]:
        texts, dates = chapter["dates_like"](form)
        assert {len(text) for text in texts} == {len(form)}
        assert len(set(texts)) == len(texts) == len(dates) > 30
        assert chapter["read"](chapter["model"], texts[:5]) == dates[:5]


# ---------------------------------------------------------------- mistakes, planted

PLANTED = {
    "the exchange comes a block too early": (
        WHERE[1], "blocks[:after]:", "blocks[: max(after - 1, 0)]:"),
    "rows that are exchanged too late": (
        WHERE[1], "for block in model.encoder.blocks[after:]:\n        x =",
        "for block in model.encoder.blocks[after:]:\n        _ ="),
    "the road is closed in the other block": (WHERE[2], "if n == closed_in", "if n != closed_in"),
    "the digits cannot read the gaps": (
        WHERE[2], '["gaps"][:, None, :, None] & parts[group][:, None, None, :]',
        '["gaps"][:, None, None, :] & parts[group][:, None, :, None]'),
    "self-attention sees later characters": (
        "ch14-code-73", "self.attention_norm(y), causal=True)", "self.attention_norm(y))"),
    "cross-attention reads padding": (
        "ch14-code-73", "context, mask=mask)", "context)"),
    "each row is given what it is asked for": (
        "ch14-code-15", "self.attention_norm(y), causal=True)", "self.attention_norm(y))"),
}  # fmt: skip


@pytest.fixture
def unseen(monkeypatch):
    monkeypatch.setattr(plt, "show", plt.close)


@pytest.mark.weekly
@pytest.mark.usefixtures("unseen")
def test_without_a_mistake_no_cell_is_red():
    found = run("ch14-code-73", "ch14-code-15", *WHERE)
    assert found["here"].keys() == found["ROADS"].keys()


@pytest.mark.usefixtures("unseen")
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_turns_its_cell_red(name):
    cell, old, new = PLANTED[name]
    with pytest.raises(AssertionError) as seen:
        run(cell, changes=[(old, new)])
    assert "a page" in {str(entry.path) for entry in seen.traceback}
