"""The README's first command, run on copies with a planted mistake: it must turn red.

And what ``book/_tools/record.py`` records is what the library reads back.
"""

import base64
import io
import json
import subprocess

import checked
import nbformat
import numpy as np
import pages
import pytest
import record
import torch
from copies import edit, run_build, run_nbval
from matplotlib.image import imread, imsave

from attn_lib import files, records

PAGE, MASK_PAGE = "book/01_one_head.ipynb", "book/02_masks.ipynb"


def edit_page(root, change):
    notebook = pages.read(root / PAGE)
    change(notebook)
    nbformat.write(notebook, root / PAGE)


def last_output(notebook, key):
    for cell in reversed(pages.code_cells(notebook)):
        for output in cell.outputs:
            if key in output.get("data", {}):
                return output.data
    raise AssertionError(key)


# ---------------------------------------------------------------- outputs


def one_digit(notebook):
    for cell in pages.code_cells(notebook):
        for output in cell.outputs:
            if "0.601" in output.get("text", ""):
                output.text = output.text.replace("0.601", "0.602")
                return
    raise AssertionError("no such output")


def painted_block(notebook):
    data = last_output(notebook, "image/png")
    image = imread(io.BytesIO(base64.b64decode(data["image/png"])), format="png").copy()
    height, width = image.shape[:2]
    # a block of half a hundredth of the picture
    image[height // 2 : height // 2 + height // 14, width // 2 : width // 2 + width // 14, :3] = 0.0
    data["image/png"] = _png(image)


def shrunk_figure(notebook):
    data = last_output(notebook, "image/png")
    image = imread(io.BytesIO(base64.b64decode(data["image/png"])), format="png")
    data["image/png"] = _png(np.ascontiguousarray(image[:-2]))


def second_figure(notebook):
    for cell in pages.code_cells(notebook):
        for output in list(cell.outputs):
            if "image/png" in output.get("data", {}):
                # the text beside a figure is compared by nbval itself; leave only the picture
                data = {"image/png": output.data["image/png"]}
                cell.outputs.append(nbformat.v4.new_output("display_data", data=data))
                return
    raise AssertionError("no figure")


def cleared_output(notebook):
    next(cell for cell in pages.code_cells(notebook) if cell.outputs).outputs = []


def _png(image):
    buffer = io.BytesIO()
    imsave(buffer, image, format="png")
    return base64.b64encode(buffer.getvalue()).decode()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (one_digit, "mismatch 'stdout'"),
        (painted_block, "of the pixels differ"),
        (shrunk_figure, "pixels, stored"),
        (second_figure, "1 figures drawn, 2 stored"),
        (cleared_output, "Unexpected output fields"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_changed_output_turns_the_command_red(checkout, change, message):
    edit_page(checkout, change)
    run = run_nbval(checkout, pages=PAGE)
    assert run.returncode == 1
    assert message in run.stdout
    assert checked.fault(checkout) is not None


FORMULA, MASKS = "attn_lib/functional.py", "attn_lib/masks.py"
# mistake -> (page that must see it, file, text as it is, text with the mistake)
BROKEN_LIBRARY = {
    "softmax over the wrong axis": (
        PAGE,
        FORMULA,
        "return torch.softmax(scores, dim=-1), None",
        "return torch.softmax(scores, dim=-2), None",
    ),
    "dropped scale": (PAGE, FORMULA, "q @ k.mT * _scale(scale, q)", "q @ k.mT"),
    "inverted polarity": (MASK_PAGE, FORMULA, "parts.append(~mask)", "parts.append(mask)"),
    "causal off by one": (MASK_PAGE, MASKS, "return distance <= 0", "return distance <= 1"),
    "aligned to the start": (MASK_PAGE, MASKS, "offset = S - T", "offset = 0"),
    "padding on queries": (
        MASK_PAGE,
        MASKS,
        "[:, None, None, :]\n\n\ndef seg",
        "[:, None, :, None]\n\n\ndef seg",
    ),
    "or for and": (MASK_PAGE, FORMULA, "closed = closed | part", "closed = closed & part"),
    "or for and in a window": (MASK_PAGE, MASKS, ">= -left) & (", ">= -left) | ("),
    "two axes guessed to be padding": (
        MASK_PAGE,
        FORMULA,
        "        parts.append(~mask)\n",
        "        guess = mask.dim() == 2 and len(shape) == 4 and mask.shape[0] == shape[0]\n"
        "        parts.append(~mask[:, None, None] if guess else ~mask)\n",
    ),
    "any rank is taken": (MASK_PAGE, FORMULA, "if x.dim() not in (2, len(shape)):", "if False:"),
    "no guard": (
        MASK_PAGE,
        FORMULA,
        """.masked_fill(empty, 0.0)
    return torch.softmax(scores, dim=-1).masked_fill(closed, 0.0), closed""",
        """
    return torch.softmax(scores, dim=-1), closed""",
    ),
    "filler not cleared": (MASK_PAGE, FORMULA, "used @ v.masked_fill(", "used @ v  # ("),
}


@pytest.mark.parametrize("mistake", BROKEN_LIBRARY)
def test_a_broken_library_turns_the_command_red(checkout, mistake):
    page, file, old, new = BROKEN_LIBRARY[mistake]
    edit(checkout, file, old, new)
    run = run_nbval(checkout, pages=page)
    assert run.returncode == 1
    assert "Cell outputs differ" in run.stdout or "caused an exception" in run.stdout


def test_an_altered_weight_file_turns_the_command_red(checkout, tmp_path):
    cache = tmp_path / "cache"
    for name in files.SOURCES:
        (cache / name).parent.mkdir(parents=True, exist_ok=True)
        (cache / name).write_bytes(files.fetch(name).read_bytes())
    with (cache / "minilm/model.safetensors").open("r+b") as file:
        file.seek(60_000_000)
        file.write(b"\x01")
    run = run_nbval(checkout, ATTN_LIB_CACHE=str(cache))
    assert run.returncode != 0
    assert "model.safetensors is damaged or altered" in run.stdout + run.stderr


def test_only_a_whole_green_run_is_recorded(checkout):
    assert run_nbval(checkout, "--deselect", f"{PAGE}::Cell 3").returncode == 0
    assert "not checked" in checked.fault(checkout)
    assert run_nbval(checkout).returncode == 0
    assert checked.fault(checkout) is None
    recorded = json.loads((checkout / "_build" / "checked.json").read_text())
    assert recorded == {"sha256": checked.fingerprint(checkout)}
    for name in (PAGE, "attn_lib/masks.py", "requirements.txt"):
        before = (checkout / name).read_bytes()
        (checkout / name).write_bytes(before + b"\n")
        assert "changed since" in checked.fault(checkout)
        (checkout / name).write_bytes(before)
    assert checked.fault(checkout) is None


# ---------------------------------------------------------------- the build


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("book/index.md", "(notation.md)", "(notaton.md)", "notaton.md"),
        (PAGE, "## In practice", "## In use", "in-practice"),
        ("book/notation.md", "### In the five posts", "### Posts", "in-the-five-posts"),
        ("_toc.yml", "      - file: book/how_checked\n", "", "how_checked"),
        ("attn_lib/masks.py", "S: number of keys", "S : number of keys", "changed since"),
    ],
    ids=[
        "broken link",
        "moved heading",
        "heading of a text",
        "out of contents",
        "unchecked change",
    ],
)
def test_a_broken_page_turns_the_build_red_each_time(checkout, name, old, new, message):
    if name != "attn_lib/masks.py":
        edit(checkout, name, old, new)
    checked.write(checkout)
    if name == "attn_lib/masks.py":
        (checkout / name).write_text((checkout / name).read_text() + "\n")
    for _ in range(2):  # the second run is as strict as the first
        run = run_build(checkout)
        assert run.returncode != 0
        assert message in run.stdout + run.stderr


def test_unchecked_numbers_are_not_published(checkout):
    run = run_build(checkout)
    assert run.returncode != 0
    assert "were not checked" in run.stdout + run.stderr


# ---------------------------------------------------------------- recorded runs

EXPERIMENT = """
import torch

def run(seed):
    found = {"error": seed / 3, "curve": torch.tensor([seed, 0.5]), "parts": {"a": (1, seed)}}
    return {**found, "weights": {"w": torch.arange(6.0).view(2, 3).T + seed}}
"""


@pytest.fixture
def recorded_page(tmp_path, monkeypatch):
    """A page with an experiment, and an own data folder for what it records."""
    monkeypatch.setattr(record, "DATA", tmp_path / "data")
    monkeypatch.setattr(files, "DATA", tmp_path / "data")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "other.csv").write_bytes(b"a,b\n")
    record.checksums(tmp_path / "data")  # an older list, which does not list itself
    page = nbformat.v4.new_notebook(metadata={"record": {"seeds": [5, 2]}})
    page.metadata.kernelspec = {"name": "python3", "display_name": "python3"}
    page.cells = [
        nbformat.v4.new_code_cell("raise SystemExit('no part of the experiment')"),
        nbformat.v4.new_code_cell(EXPERIMENT, metadata={"tags": ["experiment"]}),
    ]
    nbformat.write(page, tmp_path / "99_test.ipynb")
    return tmp_path / "99_test.ipynb"


def test_a_recorded_page_is_read_back_and_every_file_is_listed(recorded_page):
    """Numbers of every seed, the first seed's weights, and hashes as sha256sum checks them."""
    data = record.DATA
    assert record.write(recorded_page) == [data / "99_test.json", data / "99_test.safetensors"]
    found = records.record("99_test")
    assert found.pop("torch") == torch.__version__.split("+")[0]
    assert found == {
        "seeds": [5, 2],
        "error": [1.66667, 0.666667],
        "curve": [[5.0, 0.5], [2.0, 0.5]],
        "parts": [{"a": [1, 5]}, {"a": [1, 2]}],
    }
    weights = records.shipped_tensors("99_test")
    assert weights.keys() == {"w"}
    assert torch.equal(weights["w"], torch.arange(6.0).view(2, 3).T + 5)
    listed = (data / "SHA256SUMS").read_text()
    assert [line[66:] for line in listed.splitlines()] == [
        "99_test.json",
        "99_test.safetensors",
        "other.csv",
    ]
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    subprocess.run(check, cwd=data, check=True, capture_output=True)


def test_a_page_without_weights_records_numbers_alone(recorded_page, monkeypatch):
    monkeypatch.setattr(record, "record", lambda path: ({"torch": "2.13.0", "seeds": [0]}, b""))
    assert record.write(recorded_page) == [record.DATA / "99_test.json"]
    assert records.record("99_test") == {"torch": "2.13.0", "seeds": [0]}
    with pytest.raises(FileNotFoundError, match=r"99_test\.safetensors is missing"):
        records.shipped_tensors("99_test")


@pytest.mark.parametrize("missing", ["seeds", "cells"])
def test_a_page_that_cannot_be_recorded_is_named(recorded_page, missing):
    page = nbformat.read(recorded_page, as_version=4)
    if missing == "seeds":
        page.metadata.pop("record")
    else:
        page.cells.pop()
    nbformat.write(page, recorded_page)
    with pytest.raises(ValueError, match=r"99_test\.ipynb needs cells tagged `experiment`"):
        record.write(recorded_page)
    assert not (record.DATA / "99_test.json").exists()
