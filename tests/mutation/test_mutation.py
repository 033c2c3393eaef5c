"""What the commands of this folder find; what needs mutmut is left out."""

import csv
import re
import subprocess
import sys
from types import SimpleNamespace

import gross
import mutate_book
import nbformat
import page_runs
import pages
import pytest
import repairs
import torch
from copies import edit
from torch import nn

from attn_lib import masks
from attn_lib.datasets import Images

# ---------------------------------------------------------------- grossly wrong


def test_each_kind_becomes_wrong_and_stays_of_its_kind():
    numbers = ([[1.0, 2.0, 4.0]], [0.0, -torch.inf], 2.0, [5, 6, 7], 5, [True, True])
    values = [True, 3, 0.0, "abc", b"abc", [1, "abc"], (1.5, None), *map(torch.tensor, numbers)]
    values.append(Images(torch.tensor([[1.0, 2.0]]), torch.tensor([1, 2])))
    for value in values:
        spoilt = gross.wrong(value)
        assert gross.can_be_wrong(value)
        assert type(spoilt) is type(value)
        assert str(spoilt) != str(value)
    assert not gross.can_be_wrong(None)


def test_what_others_hold_too_becomes_wrong_itself():
    layer, turned, later = nn.Linear(2, 3), [], {}
    before = layer.weight.clone()
    assert gross.wrong(layer) is layer
    assert not torch.isclose(layer.weight, before).any()
    plot = SimpleNamespace(invert_xaxis=lambda: turned.append(True))
    assert gross.wrong(plot) is plot
    assert turned == [True]
    view = gross.wrong(later)
    later["x"] = 1
    assert dict(view) == {"x": 2}
    assert [gross.is_itself_wrong(x) for x in (layer, plot, later, 3)] == [True, True, False, False]
    assert gross.can_be_wrong(layer)
    assert not gross.can_be_wrong(layer.to("meta"))  # it has no numbers


def test_a_result_that_is_dropped_is_no_result():
    seen = []

    def made():
        seen.append(page_runs.is_read(sys._getframe()))
        return 3

    made()
    kept = made()
    str(made())
    assert (lambda: made())() == kept
    assert seen == [False, True, True, True]


def test_declared_changes_of_pages_are_of_lines_that_stand_there():
    cells = [cell for path in pages.NOTEBOOKS for cell in pages.code_cells(pages.read(path))]
    sources = {cell.id: cell.source for cell in cells}
    rows = [row for row in mutate_book.equivalent() if not row[0].startswith("attn_lib.")]
    assert [row for row in rows if row[1] not in sources[row[0]] or row[2] in sources[row[0]]] == []


# ---------------------------------------------------------------- mutants of a small book

SHOWN, SHAPED = "masks.causal_mask", "masks.segment_mask"


def run(root, script, *arguments):
    command = [sys.executable, f"tests/mutation/{script}.py", *arguments]
    return subprocess.run(command, cwd=root, capture_output=True, text=True)


@pytest.mark.weekly
def test_a_page_that_prints_a_mask_sees_what_one_that_prints_a_shape_does_not(checkout):
    for path in checkout.glob("book/*.ipynb"):
        path.unlink()
    for name, source, printed in (
        ("01_shown", "print(masks.causal_mask(3))", masks.causal_mask(3)),
        ("02_shaped", "print(masks.segment_mask(torch.arange(5)[None]).dim())", 4),
    ):
        sources = "import torch\nfrom attn_lib import masks", source
        cells = [nbformat.v4.new_code_cell(x, id=f"{name}-{n}") for n, x in enumerate(sources)]
        cells[1].outputs = [nbformat.v4.new_output("stream", text=f"{printed}\n")]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), checkout / "book" / f"{name}.ipynb")
    same = "segments[:, :, None] == segments[:, None, :]"
    rows = [
        ["mistake", "cell", "file", "function", "before", "after"],
        ["seen", "01_shown-1", "masks.py", "causal_mask", "distance <= 0", "distance <= 1"],
        ["unseen", "02_shaped-1", "masks.py", "segment_mask", same, same.replace("==", "!=")],
    ]
    with (checkout / "tests" / "mutation" / "mistakes.csv").open("w") as file:
        csv.writer(file).writerows(rows)
    found = run(checkout, "mutate_book", "--mistakes", SHOWN, SHAPED)
    assert found.stdout.split("\n\n") == [
        f"{SHOWN} grossly wrong\n    01_shown.ipynb, cell 1\n{SHAPED} grossly wrong\n    SURVIVED",
        "grossly wrong functions: 1 of 2 turn a page red, 100 % wanted",
        "seen\n    01_shown.ipynb, cell 1\nunseen\n    SURVIVED",
        "mistakes: 1 of 2 turn a page red, 100 % wanted",
        "",
    ]
    assert found.returncode == 1
    edit(checkout, "book/01_shown.ipynb", "causal_mask(3)", "causal_mask(4)")
    found = run(checkout, "mutate_book", SHOWN)
    assert "01_shown.ipynb is red without a mutant, cell 1" in found.stderr
    assert (found.stdout, found.returncode) == ("", 1)


# ---------------------------------------------------------------- repairs, taken back


def misplaced(rows) -> list[str]:
    """The defects whose text does not stand once, or that have lost a test."""
    found = []
    for row in rows:
        named = [test.partition("[")[0].split("::") for test in row["test"]]
        there = [test in pages.tests_in(name) for name, test in named]
        text = (pages.ROOT / row["file"]).read_text()
        if text.count(row["old"]) != 1 or not there or not all(there):
            found.append(row["defect"])
    return found


def test_every_repair_has_its_place_and_its_tests():
    rows = repairs.rows()
    assert len({row["defect"] for row in rows}) == len(rows) > 70
    assert misplaced(rows) == []
    assert misplaced([{**rows[0], "old": "nowhere"}]) == [rows[0]["defect"]]


@pytest.mark.weekly
def test_a_repair_that_no_test_misses_is_named(checkout):
    subprocess.run(["git", "init", "-q"], cwd=checkout, check=True)
    tests, clamp = "tests/library/test_masks.py", "offset.long().clamp(-_FAR, _FAR)"
    far, causal = f"{tests}::test_far_offsets_do_not_wrap_around", f"{tests}::test_causal"
    rows = [
        ["a seen one", "offset.long()", far],
        ["an unseen one", "offset.long()", causal],
        ["no old behaviour", "ofset", far],
        ["not even collected", "(", far],
    ]
    with (checkout / "tests" / "mutation" / "repairs.csv").open("w") as file:
        lines = [[name, "attn_lib/masks.py", clamp, new, test] for name, new, test in rows]
        csv.writer(file).writerows([["defect", "file", "old", "new", "test"], *lines])
    found = run(checkout, "repairs")
    lines = found.stdout.splitlines()
    assert lines[0].startswith("a seen one: assert False"), found.stdout + found.stderr
    assert lines[1] == f"an unseen one: {causal}: UNSEEN"
    assert lines[2] == f"no old behaviour: {far}: NameError: name 'ofset' is not defined"
    assert lines[3].startswith(f"not even collected: {far}: ")
    assert lines[-1] == "4 repairs taken back, 3 times unseen"
    assert found.returncode == 1


# ---------------------------------------------------------------- a sample of small changes


@pytest.mark.weekly
def test_a_sample_lists_what_survives(tmp_path, capsys):
    used = "def used(x: int | None = 1) -> int | None:\n    return x + 1\n"
    (tmp_path / "tiny.py").write_text(f"{used}def unused(x):\n    return x < 2\n")
    test = "import tiny\n\n\ndef test_it():\n    assert (tiny.used(2), tiny.used()) == (3, 2)\n"
    (tmp_path / "test_tiny.py").write_text(test)
    assert not repairs.sampled(tmp_path, ["tiny.py"], 9, 0, ["test_tiny.py"])
    printed = capsys.readouterr().out
    assert re.findall(r"(?m)^tiny.py:4: (.*): SURVIVED$", printed)
    assert "4 of 7 small changes turn a test red, 85 % wanted" in printed
    (tmp_path / "tiny.py").write_text(used)
    assert repairs.sampled(tmp_path, ["tiny.py"], 2, 0, ["test_tiny.py"])
