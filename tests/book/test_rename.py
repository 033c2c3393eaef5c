"""``book/_tools/rename.py`` moves a page: all that follows from its name, and no output."""

import json
import os
import re
import shutil
import subprocess
import sys

import pages
import pytest
import record
import rename
import yaml
from copies import copy_tree
from tables import for_each

# the book's last two pages, and two numbers that are free
OLD = [path.stem for path in pages.CHAPTERS if "tag{" in path.read_text()][-2:]
LAST = int(pages.CHAPTERS[-1].stem[:2])
NEW = [f"{LAST + 2}{OLD[0][2:]}", f"{LAST + 3}{OLD[1][2:]}"]
MOVED = dict(zip(OLD, NEW, strict=True))


def number(page):
    return str(int(page[:2]))


def contents(root):
    """Every file of a tree, but what Python compiled."""
    files = (path for path in root.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def python(root, *arguments):
    """Python in a copy, with that copy's library."""
    command, own = [sys.executable, *arguments], {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.run(command, cwd=root, env=own, capture_output=True, text=True)


def outputs(root, page):
    return [cell.get("outputs") for cell in pages.read(root / "book" / f"{page}.ipynb").cells]


@pytest.fixture(scope="module")
def renamed(tmp_path_factory):
    """A copy in which two pages have moved, to be read."""
    root = copy_tree(tmp_path_factory.mktemp("renamed") / "checkout")
    for old, new in MOVED.items():
        rename.rename(old, new, root)
    return root


def test_everything_that_follows_from_a_name_has_moved(renamed):
    """The contents, the links and the ids hold; of the old names nothing is left."""
    book = renamed / "book"
    present = [f"book/{path.stem}" for path in [*book.glob("*.ipynb"), *book.glob("*.md")]]
    assert {f"book/{new}" for new in NEW} < set(present)
    listed = yaml.safe_load((renamed / "_toc.yml").read_text())
    assert pages.not_in_contents(listed, present) == []
    notebooks = {path.stem: pages.read(path) for path in (renamed / "book").glob("*.ipynb")}
    assert pages.repeated_ids(list(notebooks.values())) == []
    for stem, notebook in notebooks.items():
        own = f"ch{stem[:2]}-" if stem[:2].isdigit() else f"{stem}-"
        assert all(cell.id.startswith(own) for cell in notebook.cells)
        for name in re.findall(r"\]\((\d\d_\w+)\.ipynb", json.dumps(notebook)):
            assert name in notebooks
    for name, content in contents(renamed).items():
        assert not any(old in name or old.encode() in content for old in OLD), name


def test_records_are_found_under_the_new_name_with_their_sums(renamed):
    data = renamed / "attn_lib" / "data"
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    subprocess.run(check, cwd=data, check=True, capture_output=True)
    sums = (data / "SHA256SUMS").read_text()
    record.checksums(data)
    assert (data / "SHA256SUMS").read_text() == sums  # also in the order that record.py writes
    names = [name for name in NEW if f"{name}.json" in sums]
    code = f"from attn_lib.records import record; print(*[record(n)['seeds'] for n in {names}])"
    assert python(renamed, "-c", code).stdout.count("[") == len(names) >= 1
    code = f"from attn_lib.records import record; record({OLD[0]!r})"
    assert f"{OLD[0]}.json is missing" in python(renamed, "-c", code).stderr


def test_exercises_carry_the_new_number(renamed):
    code = "from attn_lib import exercises; print(*exercises.known())"
    known = python(renamed, "-c", code).stdout.split()
    for old, new in MOVED.items():
        assert f"{number(new)}.1" in known
        assert not any(name.startswith(f"{number(old)}.") for name in known)
        text = (renamed / "book" / f"{new}.ipynb").read_text()
        assert f"Exercise {number(new)}.1: correct." in text
        assert f"tag{{{number(new)}.1}}" in text
        named = rf"(?i)(exercise|solution|check\(|tag|formula)\W*{number(old)}\.\d"
        assert not re.search(named, text)
        formulas = re.findall(rf"tag\{{{number(new)}\.(\d+)\}}", text)
        assert formulas
        assert not any(f" ({number(old)}.{formula})" in text for formula in formulas)


def test_the_copy_passes_its_own_tests(renamed, tmp_path):
    """Stubs and solutions; the pages' rules; every place that the tests name; but for a mistake."""
    own = shutil.copytree(renamed, tmp_path / "own")
    path = own / "book" / f"{NEW[0]}.ipynb"
    path.write_text(path.read_text().replace(f"exercise-{number(NEW[0])}.1", "exercise-8.1"))
    numbers = " or ".join(f"{number(new)}." for new in NEW)
    exercises = f"every_exercise or each_page or ((stub or solution) and ({numbers}))"
    chosen = f"{exercises} or contents or unique or has_its_place"
    chosen += f" or (rules and ({' or '.join(NEW)}))"
    files = [f"tests/book/test_{name}.py" for name in ("exercises", "book")]
    run = python(own, "-m", "pytest", "-q", *files, "-k", chosen)
    red = re.findall(r"^FAILED \S+::(\w+)", run.stdout, re.MULTILINE)
    assert set(red) == {
        "test_notebooks_keep_the_rules",
        "test_every_exercise_has_a_stub_a_solution_and_wrong_answers",
        "test_the_stub_waits",
    }, run.stdout[-2000:]
    assert re.search(r"3 failed, \d\d+ passed", run.stdout)


def test_outputs_stay_but_for_the_exercises_numbers(renamed):
    for path in pages.NOTEBOOKS:
        old, new = path.stem, MOVED.get(path.stem, path.stem)
        before, after = json.dumps(outputs(pages.ROOT, old)), outputs(renamed, new)
        moved = before
        if old != new:
            moved = re.sub(rf"Exercise {number(old)}\.(?=\d)", f"Exercise {number(new)}.", before)
        assert json.loads(moved) == after
        assert (before != moved) == (old != new)  # the number has followed


def test_there_and_back_is_byte_for_byte_the_same(checkout):
    """The first page, one with a record, the last: to another number, or name too, and back."""
    before = contents(checkout)
    first, recorded, last = pages.NOTEBOOKS[0].stem, OLD[0], pages.CHAPTERS[-1].stem
    ends = {first: "", recorded: "_anew", last: ""}
    moved = {stem: f"{int(stem[:2]) + 40}{stem[2:]}{end}" for stem, end in ends.items()}
    for old, new in moved.items():
        rename.rename(old, new, checkout)
    assert not any(f"book/{old}.ipynb" in contents(checkout) for old in moved)
    for old, new in moved.items():
        rename.rename(new, old, checkout)
    assert contents(checkout) == before


def test_what_a_person_must_look_at_is_listed(checkout):
    """Each line that a rule cannot decide, with its place; none that means something else."""
    old, new = OLD[0], f"{LAST + 2}_quite_another"
    n, m = number(old), number(new)
    index = checkout / "book" / "index.md"
    start = len(index.read_text().splitlines())
    asked = [
        f"In chapter {n} we saw this.",
        f"Chapters 1, 2 and {n}: all of them.",
        f"chapters {n}–12",
        f"Exercises 1.1 and {n}.2",
        f"Solutions 1.1 to {n}.2",
        f"by formula {n}.1",
        f"It follows from ({n}.1).",
        f"see figure {n}.1",
    ]
    decided = [
        f"chapter {n}{n}, chapter 1.{n}; {n} chapters, in {n} of them",
        f"sizes ({n}.1, 2), ({n}.77), f({n}.1), a figure {n} in a paper",
        f"[chapter {n}, the page]({old}.ipynb), [{n}. The page]({old}.ipynb#a-heading)",
        f'**Exercise {n}.1.** Use formula ({n}.1), Fig. {n}.2 and `check("{n}.3", x)`.',
        f"fig-{old[3:].replace('_', '-')}-first, attn_lib/exercises/{old[3:]}.py",
    ]
    kept = checkout / "attn_lib" / "data" / "weights.txt"  # listed, but its sum is written down
    kept.write_text(f"{kept.read_text()}Made by {old}.\n")
    with index.open("a") as file:
        file.write("\n".join([*asked, *decided]) + "\n")
    notes = rename.rename(old, new, checkout)
    places = [f"book/index.md:{start + 1 + i}: {line}" for i, line in enumerate(asked)]
    assert [note for note in notes if note.startswith("book/index.md")] == places
    assert any(re.fullmatch(rf"attn_lib/data/weights.txt:\d+: Made by {old}.", n) for n in notes)
    assert kept.read_text().endswith(f"Made by {old}.\n")
    assert any(note.startswith("_toc.yml:") and "stands before" in note for note in notes)
    assert index.read_text().splitlines()[start:] == [
        *asked,
        *decided[:2],
        f"[chapter {m}, the page]({new}.ipynb), [{m}. The page]({new}.ipynb#a-heading)",
        f'**Exercise {m}.1.** Use formula ({m}.1), Fig. {m}.2 and `check("{m}.3", x)`.',
        "fig-quite-another-first, attn_lib/exercises/quite_another.py",
    ]


def test_a_figure_that_may_show_a_number_is_listed(checkout):
    """The picture cannot be renamed: its page has to be run anew."""
    page = pages.read(pages.BOOK / f"{OLD[0]}.ipynb")
    cell = next(c for c in pages.code_cells(page) if "image/png" in json.dumps(c.outputs))
    path = checkout / "book" / f"{OLD[0]}.ipynb"
    line = json.dumps(cell.source.splitlines(keepends=True)[1])  # below its name
    assert path.read_text().count(line) == 1
    labelled = line.replace("\\n", f"  # formula ({number(OLD[0])}.1)\\n")
    path.write_text(path.read_text().replace(line, labelled))
    notes = rename.rename(OLD[0], NEW[0], checkout)
    assert any(note.startswith(f"book/{NEW[0]}.ipynb:") and "figure" in note for note in notes)


@for_each(
    ("98_lost", NEW[0], "there is no page book/98_lost.ipynb"),
    (OLD[0], OLD[1], f"{OLD[1]} is taken: there is book/{OLD[1]}.ipynb"),
    (OLD[0], OLD[0], f"{OLD[0]} is taken: there is book/{OLD[0]}.ipynb"),
    (OLD[0], f"{OLD[1][:2]}_free", f"there is book/{OLD[1]}.ipynb"),
    (OLD[0], f"{LAST + 2}{OLD[1][2:]}", f"there is attn_lib/exercises/{OLD[1][3:]}.py"),
    (OLD[0], "10-name", "a page is called NN_name, digits and small letters, not '10-name'"),
    (OLD[0], "7_name", "not '7_name'"),
    (OLD[0], "10_../name", "not '10_../name'"),
    (f"{OLD[0]}.ipynb", NEW[0], f"not '{OLD[0]}.ipynb'"),
)
def test_a_name_that_cannot_be_is_refused_and_nothing_changes(old, new, message, checkout):
    before = contents(checkout)
    run = python(checkout, "book/_tools/rename.py", old, new)
    assert run.returncode == 1
    assert message in run.stderr
    assert "Traceback" not in run.stderr
    assert contents(checkout) == before


def test_the_command_works_in_any_checkout(checkout):
    """From elsewhere, with the checkout named; it prints what it returns."""
    run = python("/", rename.__file__, OLD[0], NEW[0], str(checkout))
    assert run.returncode == 0, run.stderr
    assert re.search(r"^_toc\.yml:\d+: ", run.stdout, re.MULTILINE)
    assert (checkout / "book" / f"{NEW[0]}.ipynb").exists()
