"""What the commands of this folder find; what needs mutmut is left out."""

import csv
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import sample
from copies import edit

from attn_lib import masks

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


# ---------------------------------------------------------------- a sample of small changes


@pytest.mark.weekly
def test_a_sample_lists_what_survives(tmp_path, capsys):
    (tmp_path / "tiny.py").write_text("used = lambda x: x + 1\nunused = lambda x: x < 2\n")
    test = "import tiny\n\n\ndef test_it():\n    assert tiny.used(2) == 3\n"
    (tmp_path / "test_tiny.py").write_text(test)
    assert not sample.sampled(tmp_path, ["tiny.py"], 9, 0, ["test_tiny.py"])
    printed = capsys.readouterr().out
    assert len(re.findall(r"(?m)^tiny.py:2: .*: SURVIVED$", printed)) == 2
    assert "2 of 4 small changes turn a test red, 85 % wanted" in printed


def test_each_declared_mutant_is_of_a_line_that_is_there():
    with Path(__file__).with_name("equivalent_mutants.csv").open() as file:
        rows = list(csv.reader(file))[1:]
    assert [row for row in rows if len(row) != 4 or not all(row)] == []
    for function, before, *_ in rows:
        module = Path(masks.__file__).with_name(f"{function.split('.')[1]}.py")
        assert " ".join(before.split()) in " ".join(module.read_text().split()), function
