"""The page on encoder and decoder: its exchange of rows, and a leak that it must notice.

All functions are taken from the page's own cells, which compare the model with the library's.
"""

import re

import pages
import pytest
import record

PAGE = pages.BOOK / "14_encoder_decoder.ipynb"
SOURCES = pages.sources(PAGE)
FEWER = "datasets.dates(40_000)", "datasets.dates(400)"  # for training, of which there is none here


def run(*changes):
    """What the page defines up to its check that nobody reads ahead, and all that is recorded."""
    texts = [source for source in record.plan(PAGE)[1] if "find_spec" not in source]
    imports = [line for line in SOURCES["ch14-code-02"].splitlines() if not line.startswith(" ")]
    imports = [line for line in imports if re.match(r"(import|from) ", line)]
    load = SOURCES["ch14-code-73"].partition("print(")[0]
    parts = ["\n".join(imports), *texts, load, SOURCES["ch14-code-15"]]
    return pages.defined_by(parts, FEWER, *changes)


TEXTS = ["23 October 2025", "4 Kasım 1969", "2029/11/21"]
COPIES = ["23 October 1987", "4 Kasım 1987", "1987/11/21"]


def test_no_rows_change_nothing_and_all_rows_everything():
    page = run()
    model, exchange, read = page["model"], page["exchange"], page["read"]
    rows = page["year_digits"](TEXTS)
    for after in range(3):
        assert exchange(model, TEXTS, COPIES, rows & False, after) == read(model, TEXTS)
        assert exchange(model, TEXTS, COPIES, rows | True, after) == read(model, COPIES)
    assert read(model, TEXTS) != read(model, COPIES)


def test_a_decoder_that_sees_later_characters_turns_its_cell_red():
    with pytest.raises(AssertionError) as seen:
        run(("self.attention_norm(y), causal=True)", "self.attention_norm(y))"))
    assert "a page" in {str(entry.path) for entry in seen.traceback}
