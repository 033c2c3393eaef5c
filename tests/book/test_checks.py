"""The README's first command, run on copies with a planted mistake: it must turn red."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import changes
import checked
import compare
import live
import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pages
import pytest
from copies import edit, red_cells, run_build, run_nbval
from tables import for_each

from attn_lib import files, plotting

PAGE = "book/01_one_head.ipynb"
LINKING = {"04_scaling.ipynb", "entropy.ipynb"}  # to headings of that page, and of the notation


# ---------------------------------------------------------------- outputs


def test_changed_outputs_turn_the_command_red(checkout):
    """Each in a cell of its own, on one page: these cells turn red, and no others.

    Of one of them the README says what it looks like.
    """
    page = pages.read(checkout / PAGE)
    expected = changes.plant(page)
    words = changes.plant_in_words(page) | changes.plant_at_the_end(page)
    nbformat.write(page, checkout / PAGE)
    read = checkout / live.DATA.relative_to(pages.ROOT)
    text, moving = changes.plant_in_figures(read.read_text(), page)
    read.write_text(text)
    expected |= moving
    assert len(moving) == 2
    run = run_nbval(checkout, PAGE)
    assert run.returncode == 1
    said = red_cells(run.stdout)
    assert said.keys() == {(PAGE, number) for number in expected | words}
    for number, message in [*expected.items(), *words.items()]:
        assert message in said[PAGE, number]
    assert checked.fault(checkout) is not None
    readme = (pages.ROOT / "README.md").read_text()
    shown = re.search(r"command said:\n\n```\n(.*?)\n```", readme, re.DOTALL)[1].splitlines()
    printed = iter(re.sub(r"\x1b\[\d+m", "", run.stdout).splitlines())
    assert len(shown) == 7  # in this order, with others between
    assert [line for line in shown if line not in printed] == []


def drawn(word="cat", tick="2", legend=("queries", "keys")):
    """Curves in the book's style, at half the resolution of its pages."""
    with plt.rc_context():
        plotting.use_style()
        fig, axes = plt.subplots(figsize=(5.8, 2.6), layout="none")  # no label may move another
    axes.plot([0, 1, 2], [0, 1, 2], label=legend[0])
    axes.plot([0, 1, 2], [0, 2, 4], label=legend[1])
    axes.set_xticks([0, 1, 2], ["0", word, tick])
    axes.legend()
    fig.canvas.draw()
    image = np.asarray(fig.canvas.buffer_rgba()) / np.float32(255)
    plt.close(fig)
    return image


def test_a_figure_that_says_something_else_is_seen():
    stored = drawn()
    assert compare.figure_fault([drawn()], [stored]) is None
    for change in ({"tick": "3"}, {"word": "cow"}, {"legend": ("keys", "queries")}):
        assert "pixels differ from" in compare.figure_fault([drawn(**change)], [stored]), change


@for_each((2600, 0.045, False), (8, 1.0, False), (9, 0.055, True))
def test_how_much_of_a_figure_may_differ(pixels, difference, seen):
    """What processors do is a fifth of what is tolerated; no wider, or a small label changes."""
    stored = np.zeros((52, 50, 4), dtype=np.float32)
    now = stored.copy()
    now.reshape(-1, 4)[:pixels, 1] = difference
    assert (compare.figure_fault([now], [stored]) is not None) == seen


STDOUT = nbformat.v4.new_output("stream", name="stdout", text="a\nb\n")
RESULT = nbformat.v4.new_output("execute_result", data={"text/plain": "a"}, execution_count=1)


def test_the_comparison_sees_the_order_of_outputs_and_no_more_than_there_is():
    """Printed lines arrive in pieces; a result has another number in another run."""
    assert compare.output_fault([RESULT, STDOUT], [STDOUT, RESULT]) is not None
    pieces = [nbformat.v4.new_output("stream", text=text) for text in ("a\n", "b\n")]
    later = nbformat.v4.new_output("execute_result", data={"text/plain": "a"}, execution_count=9)
    assert compare.output_fault([*pieces, later], [STDOUT, RESULT]) is None


@for_each(
    {"names": ["wrong"]}, {"sums": [[1.1, 0.9002]]}, {"kinds": {"causal": False}}, {"more": 1}
)
def test_each_change_of_what_a_figure_reads_is_seen(change):
    """Rounding is none."""
    read = {"names": ["right"], "sums": [[1.1, 0.9]], "kinds": {"causal": True}}
    assert live._same(read, {**read, "sums": [[1.1, 0.900001]]})
    assert not live._same({**read, **change}, read)


def test_an_altered_weight_file_turns_the_command_red(checkout, tmp_path):
    cache, altered = tmp_path / "cache", "minilm/model.safetensors"
    for name in files.SOURCES:
        (cache / name).parent.mkdir(parents=True, exist_ok=True)
        place = shutil.copy if name == altered else os.symlink
        place(files.fetch(name), cache / name)
    with (cache / altered).open("r+b") as file:
        file.seek(60_000_000)
        file.write(b"\x01")
    run = run_nbval(checkout, PAGE, ATTN_LIB_CACHE=str(cache))
    assert run.returncode != 0
    assert "model.safetensors is damaged or altered" in run.stdout + run.stderr


@pytest.mark.weekly
def test_only_a_whole_green_run_is_recorded(checkout):
    """Every cell of every page, in one process or in two; and until something changes."""
    for path in checkout.glob("book/*.ipynb"):
        path.unlink()
    for name in ("01_first", "02_second"):
        cells = [nbformat.v4.new_code_cell(f"print({n})", execution_count=n) for n in (1, 2)]
        for cell in cells:
            cell.outputs = [nbformat.v4.new_output("stream", text=f"{cell.execution_count}\n")]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), checkout / "book" / f"{name}.ipynb")
    (checkout / "attn_lib" / "__init__.py").write_text("")  # so that no process loads torch
    page = "book/02_second.ipynb"
    assert run_nbval(checkout, "book").returncode == 0
    assert checked.fault(checkout) is None
    assert run_nbval(checkout, "book", "--deselect", f"{page}::Cell 1").returncode == 0
    assert "not checked" in checked.fault(checkout)
    assert run_nbval(checkout, "book", "-n", "2", "--dist", "loadfile").returncode == 0
    recorded = json.loads((checkout / "_build" / "checked.json").read_text())
    assert recorded == {"sha256": checked.fingerprint(checkout)}
    for name in (page, "attn_lib/masks.py", "attn_check/__init__.py", "requirements.txt"):
        before = (checkout / name).read_bytes()
        (checkout / name).write_bytes(before + b"\n")
        assert "changed since" in checked.fault(checkout)
        (checkout / name).write_bytes(before)
    assert checked.fault(checkout) is None
    assert run_nbval(checkout, page).returncode == 0
    assert "not checked" in checked.fault(checkout)


# ---------------------------------------------------------------- the build

TEXT, ORDER = "book/notation.md", "## The order of operations\n"
UNKNOWN = "Unknown source document 'book/how_checked'"
# file, text as it is, text with the mistake, what the warning names
BROKEN_PAGES = {
    "broken link": ("book/index.md", "(notation.md)", "(notaton.md)", "notaton.md"),
    "moved heading": (PAGE, "## Open a trained head", "## Open one", "open-a-trained-head"),
    "heading of a text": (TEXT, "### In the five posts", "### Posts", "in-the-five-posts"),
    "out of contents": ("_toc.yml", "      - file: book/how_checked\n", "", UNKNOWN),
    "lost picture": (TEXT, ORDER, f"{ORDER}\n![a picture](assets/nowhere.png)\n", "nowhere.png"),
}


@pytest.mark.weekly
def test_broken_pages_turn_the_build_red_each_time(checkout):
    """Each mistake is a warning of its own, an error therefore, in the second run as in the first.

    The first run finds numbers that were never checked, the second a library changed since. Of the
    pages there are those that are broken and two that link to them: all take long.
    """
    kept = {Path(name).name for name, *_ in BROKEN_PAGES.values()} | LINKING | {"how_checked.md"}
    for path in {path.name for path in pages.NOTEBOOKS + pages.TEXTS} - kept:
        (checkout / "book" / path).unlink()
    for name, old, new, _ in BROKEN_PAGES.values():
        edit(checkout, name, old, new)
    for unchecked in ("were not checked", "changed since"):
        run = run_build(checkout)
        assert run.returncode != 0
        lines = (run.stdout + run.stderr).splitlines()
        warnings = [line for line in lines if "WARNING: " in line]
        for message in (unchecked, *(message for *_, message in BROKEN_PAGES.values())):
            assert [line for line in warnings if message in line] != [], message
        checked.write(checkout)
        library = checkout / "attn_lib" / "masks.py"
        library.write_text(library.read_text() + "\n")


def test_a_build_is_used_again_only_if_nothing_has_changed(checkout):
    """The tests open the pages that the first command built: never older ones, nor warned of."""
    subprocess.run(["git", "init", "-q"], cwd=checkout, check=True)
    (checkout / "_build" / "html").mkdir(parents=True)

    def build(warnings=0, error=None):
        app = SimpleNamespace(srcdir=checkout, _warncount=warnings)
        checked._begin(app)
        checked._end(app, error)
        return checked.built(checkout)

    assert not build()  # of what was never checked
    checked.write(checkout)
    assert build()
    assert not build(warnings=1)
    assert not build(error=ValueError())
    assert build()
    (checkout / "book" / "index.md").unlink()
    assert not checked.built(checkout)
    assert build()
    later = (checkout / "_build" / "built.json").stat().st_mtime + 1
    os.utime(checkout / "_build" / "checked.json", (later, later))
    assert not checked.built(checkout)
