"""The page on one state: its task. Its functions, the page itself compares with other programs."""

import pages
import torch

CELL = pages.sources(pages.BOOK / "13_one_state.ipynb")["ch13-code-42"]


def test_a_text_of_the_task_asks_for_each_pair_once():
    page = pages.defined_by(["import torch", CELL])
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
