"""What `mutate_book.py` finds in a small book; its small changes need mutmut and are left out."""

import ast
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
import small
import torch
from copies import edit
from tables import for_each
from torch import nn

from attn_lib import masks
from attn_lib.datasets import Images

# ---------------------------------------------------------------- grossly wrong


@pytest.mark.parametrize(
    "value",
    [
        *(True, 3, 0.0, "abc", b"abc", [1, "abc"], (1.5, None)),
        *map(torch.tensor, ([[1.0, 2.0, 4.0]], [0.0, -torch.inf], 2.0, [5, 6, 7], 5, [True, True])),
        Images(torch.tensor([[1.0, 2.0]]), torch.tensor([1, 2])),
    ],
    ids=str,
)
def test_each_kind_becomes_wrong_and_stays_of_its_kind(value):
    spoilt = gross.wrong(value)
    assert gross.can_be_wrong(value)
    assert type(spoilt) is type(value)
    assert str(spoilt) != str(value)


def test_modules_plots_and_what_a_dict_will_hold_become_wrong():
    layer = nn.Linear(2, 3)
    before = layer.weight.clone()
    assert gross.wrong(layer) is layer
    assert not torch.isclose(layer.weight, before).any()
    turned = []
    plot = SimpleNamespace(invert_xaxis=lambda: turned.append(True))
    assert gross.wrong(plot) is plot
    assert turned == [True]
    later = {}
    view = gross.wrong(later)
    later["x"] = 1
    assert dict(view) == {"x": 2}
    assert gross.can_be_wrong(layer)
    assert not gross.can_be_wrong(layer.to("meta"))  # it has no numbers
    assert not gross.can_be_wrong(None)
    # whoever holds these sees it, also where what is returned is dropped
    assert [gross.is_itself_wrong(x) for x in (layer, plot, later, 3)] == [True, True, False, False]


@for_each(
    "functional.attention",
    "interop.to_torch",  # the last of its overloads
    "recording.record_attention",  # yields
    "exercises._verdict.check",
)
def test_what_a_function_returns_is_made_wrong_and_no_other(name):
    mutant = mutate_book.replaced(name)
    tree = ast.parse(mutant.text)
    calls = [node for node in ast.walk(tree) if getattr(node, "id", "") == "_wrong"]
    place = mutate_book.function_at
    assert {place(tree, call.lineno) for call in calls} == {mutant.place}
    assert "_wrong" in mutant.code().co_names


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


def test_what_a_change_changes():
    function = "def f():\n    g(\n        1,\n        2,\n    )\n"
    before = f"{function}\n\nclass A:\n    def h(self):\n        pass\n"
    after = before.replace("        1,\n", "        3,\n")
    assert mutate_book.difference(before, after) == (3, "1,", "3,")
    gone = before.replace("        1,\n", "")
    assert mutate_book.difference(before, gone) == (3, "1, 2,", "2,")
    assert mutate_book.function_at(ast.parse(before), 3) == "f"
    assert mutate_book.function_at(ast.parse(before), 10) == "A.h"


def test_declared_changes_of_pages_are_of_lines_that_stand_there():
    cells = [cell for path in pages.NOTEBOOKS for cell in pages.code_cells(pages.read(path))]
    sources = {cell.id: cell.source for cell in cells}

    def outgrown(rows):
        return [row for row in rows if row[1] not in sources[row[0]] or row[2] in sources[row[0]]]

    assert outgrown(r for r in mutate_book.equivalent() if not r[0].startswith("attn_lib.")) == []
    name, line = cells[1].id, cells[1].source.splitlines()[0]
    planted = [(name, "nowhere", "another line"), (name, line, line)]
    assert outgrown([(name, line, "another line"), *planted]) == planted


# ---------------------------------------------------------------- the command

SHOWN, SHAPED = "masks.causal_mask", "masks.segment_mask"


@pytest.fixture
def book(checkout):
    """A book of two small pages: one prints what a function returns, one only its shape."""
    for path in checkout.glob("book/*.ipynb"):
        path.unlink()
    small = {
        "01_shown": ("print(masks.causal_mask(3))", masks.causal_mask(3)),
        "02_shaped": ("print(masks.segment_mask(torch.arange(5)[None]).dim())", 4),
    }
    for name, (source, printed) in small.items():
        sources = "import torch\nfrom attn_lib import masks", source
        cells = [nbformat.v4.new_code_cell(source) for source in sources]
        cells[1].outputs = [nbformat.v4.new_output("stream", text=f"{printed}\n")]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), checkout / "book" / f"{name}.ipynb")
    return checkout


def run(root, *arguments, script="mutate_book"):
    command = [sys.executable, f"tests/mutation/{script}.py", *arguments]
    return subprocess.run(command, cwd=root, capture_output=True, text=True)


def verdicts(found):
    assert "turn a page red" in found.stdout, found.stderr
    return dict(re.findall(r"^(\S+) grossly wrong\n    (.*)", found.stdout, re.MULTILINE))


@pytest.mark.weekly
def test_a_page_that_is_red_without_a_mutant_proves_nothing(book):
    edit(book, "book/01_shown.ipynb", "causal_mask(3)", "causal_mask(4)")
    found = run(book, SHOWN, SHAPED)
    assert "01_shown.ipynb is red without a mutant, cell 1" in found.stderr
    assert (found.stdout, found.returncode) == ("", 1)


@pytest.mark.weekly
def test_mistakes_that_are_listed_are_planted_beside_wrong_functions(book):
    """The page that prints a mask sees what is wrong; the one that prints a shape does not."""
    paths = sorted(book.glob("book/*.ipynb"))
    shown, shaped = (pages.code_cells(pages.read(path))[1] for path in paths)
    same = "segments[:, :, None] == segments[:, None, :]"
    rows = [
        ["mistake", "cell", "file", "function", "before", "after"],
        ["seen", shown.id, "masks.py", "causal_mask", "distance <= 0", "distance <= 1"],
        ["unseen", shaped.id, "masks.py", "segment_mask", same, same.replace("==", "!=")],
    ]
    with (book / "tests" / "mutation" / "mistakes.csv").open("w") as file:
        csv.writer(file).writerows(rows)
    found = run(book, "--mistakes", SHOWN, SHAPED)
    assert verdicts(found) == {SHOWN: "01_shown.ipynb, cell 1", SHAPED: "SURVIVED"}
    assert "functions: 1 of 2 turn a page red, 100 % wanted" in found.stdout
    assert "\nseen\n    01_shown.ipynb, cell 1\nunseen\n    SURVIVED\n" in found.stdout
    assert "mistakes: 1 of 2 turn a page red, 100 % wanted" in found.stdout
    assert found.returncode == 1


@pytest.mark.parametrize(("red", "enough"), [(17, True), (16, False), (0, False)])
def test_more_than_the_wanted_share_is_enough(red, enough, capsys):
    planned = [(mutate_book.Mutant("", "", "", f"change {n}"), {}) for n in range(20)]
    found = ["a page"] * red + [None] * (20 - red)
    assert mutate_book.report("changes", planned, found, 85) == enough
    assert capsys.readouterr().out.count("SURVIVED") == 20 - red


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
    gone = [rows[0]["test"][0].replace("::test_", "::test_no_")]
    for change in ({"old": "nowhere"}, {"old": "("}, {"test": gone}):
        assert misplaced([{**rows[0], **change}]) == [rows[0]["defect"]]


MASKS, CLAMP = "tests/library/test_masks.py", "offset.long().clamp(-_FAR, _FAR)"
CAUSAL = f"{MASKS}::test_causal"


@pytest.fixture
def taken_back(checkout):
    """The command with rows of its own, in a checkout that git knows."""
    subprocess.run(["git", "init", "-q"], cwd=checkout, check=True)

    def of(*rows):
        with (checkout / "tests" / "mutation" / "repairs.csv").open("w") as file:
            csv.writer(file).writerows([["defect", "file", "old", "new", "test"], *rows])
        return run(checkout, script="repairs")

    return of


@pytest.mark.weekly
def test_a_repair_that_no_test_misses_is_named(taken_back):
    file, far = "attn_lib/masks.py", f"{MASKS}::test_far_offsets_do_not_wrap_around"
    found = taken_back(
        ["a seen one", file, CLAMP, "offset.long()", far],
        ["an unseen one", file, CLAMP, "offset.long()", CAUSAL],
        ["no old behaviour", file, CLAMP, "ofset", far],
        ["not even collected", file, CLAMP, "(", far],
    )
    lines = found.stdout.splitlines()
    assert lines[0].startswith("a seen one: assert False"), found.stdout + found.stderr
    assert lines[1] == f"an unseen one: {CAUSAL}: UNSEEN: exit status 0"
    assert lines[2] == f"no old behaviour: {far}: NameError: name 'ofset' is not defined"
    assert lines[3].startswith(f"not even collected: {far}: ")
    assert lines[-1] == "4 repairs taken back, 3 times unseen"
    assert found.returncode == 1


@pytest.mark.weekly
def test_a_test_that_is_red_anyway_proves_nothing(checkout, taken_back):
    edit(checkout, "attn_lib/masks.py", "return distance <= 0", "return distance <= 1")
    found = taken_back(["far", "attn_lib/masks.py", CLAMP, "offset.long()", CAUSAL])
    assert "red without a change" in found.stderr
    assert (found.stdout, found.returncode) == ("", 1)


# ---------------------------------------------------------------- a sample of small changes


def test_small_changes_are_of_what_is_computed_and_never_of_a_type():
    source = "def f(x: int | None = 1) -> int | None:\n    return -x if x > 2 else True\n"
    found = [text for _, text, _ in small.small_changes(source)]
    assert set(found) == {
        *("1 -> 2", "2 -> 3", "True -> False", "x > 2 -> x >= 2"),
        "-x if x > 2 else True -> -x if not x > 2 else True",
        "return -x if x > 2 else True -> return None",
    }
    texts = [text for *_, text in small.small_changes(source)]
    assert len({*texts, ast.unparse(ast.parse(source))}) == 1 + len(texts)


@pytest.mark.weekly
def test_a_sample_lists_what_survives(tmp_path, capsys):
    used, unused = "def used(x):\n    return x + 1\n", "def unused(x):\n    return x < 2\n"
    (tmp_path / "tiny.py").write_text(used + unused)
    test = "import tiny\n\n\ndef test_it():\n    assert tiny.used(2) == 3\n"
    (tmp_path / "test_tiny.py").write_text(test)
    assert not repairs.sampled(tmp_path, ["tiny.py"], 9, 0, ["test_tiny.py"])
    printed = capsys.readouterr().out
    assert sorted(re.findall(r"(?m)^tiny.py:(\d): .*: SURVIVED$", printed)) == ["4", "4", "4"]
    assert "3 of 6 small changes turn a test red, 85 % wanted" in printed
    assert (tmp_path / "tiny.py").read_text() == used + unused
    (tmp_path / "tiny.py").write_text(used)
    assert repairs.sampled(tmp_path, ["tiny.py"], 2, 0, ["test_tiny.py"])
