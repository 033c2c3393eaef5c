"""What `mutate_page.py` needs of the pages, and the verdicts it gives; it runs without mutmut."""

import mutate_page
import pages
import pytest


def taught(notebook):
    return notebook.metadata.get("teaches", [])


@pytest.mark.parametrize("path", pages.NOTEBOOKS, ids=lambda path: path.stem)
def test_a_page_says_which_functions_it_teaches(path):
    names = taught(pages.read(path))
    assert len(names) == len(set(names)) > 0
    assert mutate_page.unknown(names) == []


def test_names_that_are_nowhere_are_found():
    wrong = [
        "functional.atention",
        "functionals.attention",
        "functional",
        "functional._INF",
        "layers.MultiHeadAttention.forwards",
        "functional.causal_mask",  # only imported there
    ]
    right = ["functional._weights", "layers.MultiHeadAttention", "layers.FeedForward.forward"]
    assert mutate_page.unknown([*right, *wrong]) == wrong


def test_training_cells_are_skipped_and_no_others():
    notebook = pages.read(pages.NOTEBOOKS[0])
    cells = pages.code_cells(notebook)
    cells[3].metadata["tags"] = ["hide-input", "training"]
    mutate_page.without_training(notebook)
    skipped = [number for number, cell in enumerate(cells) if "nbval-skip" in pages.tags(cell)]
    assert skipped == [3]


@pytest.mark.parametrize(
    ("status", "printed", "found"),
    [
        (0, "41 passed", "survived"),
        (1, "Cell outputs differ\nFAILED book/a.ipynb::Cell 3", "killed by Cell 3"),
        (1, "Cell execution caused an exception\nFAILED a.ipynb::Cell 12", "killed by Cell 12"),
        (1, "Timeout of 120 seconds exceeded\nFAILED a.ipynb::Cell 3", None),
        (1, "Kernel died\nFAILED a.ipynb::Cell 3", None),
        (2, "Cell outputs differ\nFAILED a.ipynb::Cell 3", None),
        (4, "ImportError while loading conftest", None),
    ],
)
def test_only_a_cell_that_differs_or_raises_is_a_kill(status, printed, found):
    assert mutate_page.outcome(status, printed) == (found or printed)
