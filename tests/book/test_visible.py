"""What one sees of a page runs by itself: the set-up and the visible cells, in a fresh kernel.

A folded cell may define a name, draw from a generator or change a tensor in place: whether a
visible cell needs that shows when it is left out.
"""

import nbformat
import pages
import sitting
from copies import red_cells, run_nbval
from nbformat.v4 import new_code_cell, new_output

FOLDED = new_code_cell("hidden = torch.hidden = 1", metadata={"tags": ["hide-input"]})
# each is stored with the output 1 -> what must be said
PLANTED = {
    "hidden": "name 'hidden' is not defined",
    "torch.hidden": "module 'torch' has no attribute 'hidden'",
    "2": "mismatch 'text/plain'",
}


def plant(notebook):
    """After the set-up: a folded cell, two that need it, and one that prints something else."""
    output = new_output("execute_result", data={"text/plain": "1"}, execution_count=1)
    stored = {"outputs": [output], "execution_count": 1}
    cells = [new_code_cell(source, **stored) for source in PLANTED]
    after = notebook.cells.index(sitting.lesson(notebook)[0]) + 1
    notebook.cells[after:after] = [FOLDED, *cells]


def test_what_one_sees_runs_by_itself(checkout, everything):
    """Of one page on every change, of all weekly: what is planted is red, and nothing else."""
    names = [path.name for path in pages.NOTEBOOKS]
    chosen = [f"book/{name}" for name in (names if everything else names[:1])]
    for name in chosen:
        page = pages.read(checkout / name)
        plant(page)
        page.cells = [sitting.lesson(page)[0], *sitting.visible(page)]
        nbformat.write(page, checkout / name)
    run = run_nbval(checkout, *chosen)
    assert run.returncode == 1
    said = red_cells(run.stdout)
    numbered = [*enumerate(PLANTED.values(), start=1)]  # the set-up is cell 0
    expected = {(name, number): words for name in chosen for number, words in numbered}
    assert said.keys() == expected.keys(), said
    assert [place for place, words in expected.items() if words not in said[place]] == []
