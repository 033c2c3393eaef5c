"""The pages keep their rules, and each rule is shown able to fail."""

import ast
import copy
import csv
import io
import itertools
import json
import re
import subprocess
import sys
import tokenize
from importlib.metadata import metadata

import nbformat
import pages
import pytest
import yaml
from packaging.specifiers import SpecifierSet

COUNTS = json.loads((pages.ROOT / "tests" / "counts.json").read_text())
README = (pages.ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    ("path", "rule"),
    [(path, rule) for path in pages.NOTEBOOKS for rule in pages.RULES],
    ids=lambda part: part.stem if hasattr(part, "stem") else part.__name__,
)
def test_notebooks_keep_the_rules(path, rule):
    assert rule(pages.read(path)) == []


@pytest.mark.parametrize("path", pages.TEXTS, ids=lambda path: path.stem)
def test_text_pages_keep_the_rules(path):
    text = path.read_text()
    assert pages.safe_markdown(text) == []
    assert pages.unlisted_links(text) == []
    if path.stem in pages.FIRST_EDITION:
        assert pages.numbers_not_given(text) == []


# ---------------------------------------------------------------- planted mistakes


def figure_cell(notebook):
    return next(
        cell for cell in pages.code_cells(notebook) if "figure" in cell.metadata.get("mystnb", {})
    )


def still_cell(notebook):
    cells = pages.code_cells(notebook)
    return next(
        c for c in cells if "figure" in c.metadata.get("mystnb", {}) and "live" not in c.metadata
    )


def never_run(notebook):
    pages.code_cells(notebook)[3].execution_count = None


def run_out_of_order(notebook):
    pages.code_cells(notebook)[3].execution_count = 99


def stderr_stored(notebook):
    output = nbformat.v4.new_output("stream", name="stderr", text="a warning")
    pages.code_cells(notebook)[2].outputs.append(output)


def address_stored(notebook):
    output = nbformat.v4.new_output("stream", text="<object object at 0x7f51c2a3b4c0>")
    pages.code_cells(notebook)[2].outputs.append(output)


def minus_zero_stored(notebook):
    output = nbformat.v4.new_output("stream", text="tensor([-0.000])")
    pages.code_cells(notebook)[2].outputs.append(output)


def skip_mark(notebook):
    pages.code_cells(notebook)[2].metadata["tags"] = ["nbval-skip"]


def skip_comment(notebook):
    pages.code_cells(notebook)[2].source = "# NBVAL_IGNORE_OUTPUT\nx"


def output_removed(notebook):
    pages.code_cells(notebook)[2].metadata["tags"] = ["hide-input", "remove-output"]


def text_removed(notebook):
    notebook.cells[0].metadata["tags"] = ["remove-cell"]


def exception_expected(notebook):
    pages.code_cells(notebook)[2].metadata["tags"] = ["raises-exception"]
    pages.code_cells(notebook)[2].metadata["reason"] = "none"


def output_removed_by_the_builder(notebook):
    figure_cell(notebook).metadata["mystnb"]["remove_code_outputs"] = True


def outputs_removed_from_the_page(notebook):
    notebook.metadata["mystnb"] = {"remove_code_outputs": True}


def timing_stored(notebook):
    pages.code_cells(notebook)[2].metadata["execution"] = {"iopub.execute_input": "now"}


def script_in_an_output(notebook):
    data = {"text/html": '<script src="https://cdn.invalid/a.js"></script>'}
    output = nbformat.v4.new_output("display_data", data=data)
    pages.code_cells(notebook)[2].outputs.append(output)


def script_in_the_text(notebook):
    notebook.cells[0].source += '\n<script src="https://cdn.invalid/a.js"></script>'


def picture_from_outside(notebook):
    notebook.cells[0].source += "\n![a picture](https://cdn.invalid/a.png)"


def shell_line(notebook):
    pages.code_cells(notebook)[2].source += "\n!ls"


def pickle_loaded(notebook):
    pages.code_cells(notebook)[2].source += '\ntorch.load("x.pt")'


def no_alt_text(notebook):
    del figure_cell(notebook).metadata["mystnb"]["image"]["alt"]


def no_caption(notebook):
    del figure_cell(notebook).metadata["mystnb"]["figure"]["caption"]


def figure_too_wide(notebook):
    still_cell(notebook).outputs[0].metadata["image/png"]["width"] *= 2


def letters_too_small(notebook):
    still_cell(notebook).source += "\nplt.legend(fontsize=5)"


def title_on_a_figure(notebook):
    figure_cell(notebook).source += '\nax.set_title("Weights")'


def another_solution(notebook):
    shown = next(c.metadata for c in notebook.cells if "solution-1.4" in pages.tags(c))["mystnb"]
    shown["code_prompt_show"] = "Solution 1.3"


def no_name(notebook):
    del pages.code_cells(notebook)[0].metadata["mystnb"]["code_prompt_show"]


def any_name(notebook):
    figure_cell(notebook).metadata["mystnb"]["code_prompt_show"] = "Show the code"


def digit_in_the_text(notebook):
    notebook.cells[0].source += " It keeps 0.16729 of its attention."


def digit_in_a_formula(notebook):
    notebook.cells[0].source += " That is $w = 0.16729$."


def open_cells(notebook):
    return [cell for cell in pages.code_cells(notebook) if not pages.tags(cell) & pages.FOLDED]


def long_cell(notebook):
    open_cells(notebook)[0].source += "\n1" * 20


def long_cells(notebook):
    for cell in open_cells(notebook)[:12]:
        cell.source += "\n1" * 5


def wide_line(notebook):
    open_cells(notebook)[0].source += "\n" + "x = 1  #" + "-" * 80


def chatter(notebook):
    notebook.cells[0].source += " word" * 4000


def long_caption(notebook):
    figure_cell(notebook).metadata["mystnb"]["figure"]["caption"] += " word" * 1000


def many_cells(notebook):
    notebook.cells[20:20] = [nbformat.v4.new_code_cell("1")] * 10


def no_figures(notebook):
    for cell in pages.code_cells(notebook)[3:]:
        cell.metadata.pop("mystnb", None)


def code_first(notebook):
    notebook.cells.insert(0, nbformat.v4.new_code_cell("1"))


def folded_in_a_row(notebook):
    notebook.cells[9:9] = copy.deepcopy([pages.code_cells(notebook)[0]] * 3)


def unlisted_source(notebook):
    notebook.cells[0].source += "\n[a source](https://example.org/paper)"


def cell_with(notebook, text):
    (cell,) = (cell for cell in notebook.cells if text in cell.source)
    return cell


def another_year(notebook):
    cell = cell_with(notebook, "Vaswani et al. (2017)")
    cell.source = cell.source.replace("(2017)", "(2015)")


def another_author(notebook):
    cell = cell_with(notebook, "Vaswani et al. (2017)")
    cell.source = cell.source.replace("Vaswani", "Bahdanau")


def another_bootstrap(notebook):
    pages.code_cells(notebook)[0].source = "import attn_lib"


def forgotten_comparison(notebook):
    pages.code_cells(notebook)[2].source = "1 == 2\n3"


PLANTED = [
    (never_run, pages.stored_as_it_ran),
    (run_out_of_order, pages.stored_as_it_ran),
    (stderr_stored, pages.no_stray_output),
    (address_stored, pages.no_stray_output),
    (minus_zero_stored, pages.no_stray_output),
    (skip_mark, pages.unusual_with_reason),
    (skip_comment, pages.unusual_with_reason),
    (output_removed, pages.unusual_with_reason),
    (text_removed, pages.unusual_with_reason),
    (exception_expected, pages.unusual_with_reason),
    (output_removed_by_the_builder, pages.unusual_with_reason),
    (outputs_removed_from_the_page, pages.clean_metadata),
    (timing_stored, pages.clean_metadata),
    (script_in_an_output, pages.safe_outputs),
    (script_in_the_text, pages.safe_source),
    (picture_from_outside, pages.safe_source),
    (shell_line, pages.safe_source),
    (pickle_loaded, pages.safe_source),
    (another_solution, pages.exercises_named),
    (no_name, pages.folds_named),
    (any_name, pages.folds_named),
    (no_alt_text, pages.figures_described),
    (no_caption, pages.figures_described),
    (title_on_a_figure, pages.figures_described),
    (figure_too_wide, pages.figures_legible),
    (letters_too_small, pages.figures_legible),
    (digit_in_the_text, pages.numbers_bound),
    (digit_in_a_formula, pages.numbers_bound),
    (long_cell, pages.within_one_sitting),
    (long_cells, pages.within_one_sitting),
    (wide_line, pages.within_one_sitting),
    (chatter, pages.within_one_sitting),
    (long_caption, pages.within_one_sitting),
    (many_cells, pages.within_one_sitting),
    (no_figures, pages.within_one_sitting),
    (code_first, pages.within_one_sitting),
    (folded_in_a_row, pages.within_one_sitting),
    (unlisted_source, pages.links_listed),
    (another_year, pages.links_listed),
    (another_author, pages.links_listed),
    (another_bootstrap, pages.starts_with_bootstrap),
    (forgotten_comparison, pages.valid_python),
]


@pytest.mark.parametrize(("plant", "rule"), PLANTED, ids=lambda f: f.__name__)
def test_a_planted_mistake_is_found(plant, rule):
    notebook = pages.read(pages.NOTEBOOKS[0])
    assert rule(notebook) == []
    plant(notebook)
    assert rule(notebook) != []


def test_an_appendix_has_no_number_no_exercises_and_may_have_fewer_figures():
    """Which pages these are is said in two places; and nothing else is excused."""
    said = [path for path in pages.NOTEBOOKS if pages.appendix(pages.read(path))]
    assert said == [path for path in pages.NOTEBOOKS if path not in pages.CHAPTERS]
    cells = [cell for path in said for cell in pages.read(path).cells]
    assert not any("exercise" in tag for cell in cells for tag in pages.tags(cell))
    assert pages.APPENDIX.keys() == {"figures"} < pages.SITTING.keys()
    notebook = pages.read(pages.NOTEBOOKS[0])
    for cell in pages.code_cells(notebook)[2:]:
        cell.metadata.pop("mystnb", None)
    for mark, fault in (("yes", ["figures: 1, not 4 to 8"]), (True, [])):
        notebook.metadata["appendix"] = mark
        assert pages.within_one_sitting(notebook) == fault
    figure_cell(notebook).metadata.pop("mystnb")
    assert pages.within_one_sitting(notebook) != []


def test_every_rule_is_shown_able_to_fail():
    elsewhere = {pages.can_fail, pages.conclusions_shown}
    planted = {rule for _, rule in PLANTED} | elsewhere
    assert planted == {*pages.RULES}


WEAK = [
    "torch.allclose(out, other, atol=1e9)",
    "torch.allclose(out, other, 0.1)",
    "out.allclose(other, 0.1)",
    "np.testing.assert_allclose(out, other, rtol=10**9)",
    "map(partial(torch.allclose, atol=wide), pairs)",
    "torch.isclose(out, other, **options)",
    "print('True')",
    "print('largest error 0.123')",
    "print('largest error', 0.123)",
    "print('largest error', '0.123')",
    "print(f'{0.123} off')",
    "print(x.shape, True)",
    "-0.123",
    "x.shape, True",
]
IDLE = [
    "torch.allclose(other, other)",
    "out.equal(out)",
    "torch.equal(out, other=out.clone())",
    "torch.testing.assert_close(x[0], x[0].detach())",
    "[torch.equal(*pair) for pair in zip(out, out)]",
    "out == out",
    "three = out[2:3]; torch.allclose(out[2:3], three)",
    "same = out\ntorch.equal(same, out)",
    "(out - out).abs().max() < 1e-9",
    "assert True",
    "assert 1 < 2",
    "assert (out == other, 'they differ')",
    "print(torch.equal(out, other) or True)",
]
STRONG = [
    "torch.allclose(out, other, 1e-3, 1e-6)",
    "out.allclose(other, atol=1e-3)",
    "np.testing.assert_array_equal(out, other)",
    "print('largest error:', (out - other).abs().max())",
    "print('all rows are equal')",
    "print('lines 16 and 33:', *angles)",
    "assert out.shape == (2, 3), 'two rows'",
    "print('shared', 3 * 64)",
    "print(name or 'none')",
]


@pytest.mark.parametrize("source", [*WEAK, *IDLE, *STRONG])
def test_a_comparison_that_shows_nothing_is_found(source):
    """A reason excuses a wide tolerance or a written number, never what always holds."""
    notebook = pages.read(pages.NOTEBOOKS[0])
    cell = pages.code_cells(notebook)[2]
    cell.source = f"x = 1\n{source}"
    assert (pages.unusual_with_reason(notebook) != []) == (source in WEAK)
    cell.metadata["reason"] = "two processors round it differently"
    assert pages.unusual_with_reason(notebook) == []
    assert (pages.can_fail(notebook) != []) == (source in IDLE)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("It grows by 0.25, from 12 to 15.", ["0.25", "12", "15"]),
        ("$x = 0.5$ and $d_k = 64$ but $x^2$", ["0.5", "64"]),
        ("See chapter 3, formula (1.1) and step 2.", []),
        ("`x[3]`, [Ba (2016)](https://a.invalid/16)", []),
        ("## Title 7\n\n```\n9\n```\n1. first", []),
        ("> **Exercise 1.2.** Take 5.", ["5"]),
        ("at 57 % or 1.5 times", ["57", "1.5"]),
    ],
)
def test_which_numbers_count(text, numbers):
    assert sorted(pages.numbers_in_text(text)) == sorted(numbers)


# ---------------------------------------------------------------- the book as a whole


CONTENTS = yaml.safe_load((pages.ROOT / "_toc.yml").read_text())
PRESENT = [f"book/{path.stem}" for path in pages.NOTEBOOKS + pages.TEXTS]


def test_contents_and_pages_are_the_same():
    assert pages.not_in_contents(CONTENTS, PRESENT) == []


def test_a_missing_and_a_surplus_entry_are_found():
    assert pages.not_in_contents(CONTENTS, [*PRESENT, "book/99_lost"]) == ["book/99_lost"]
    shorter = copy.deepcopy(CONTENTS)
    gone = shorter["parts"][1]["chapters"].pop()["file"]
    assert pages.not_in_contents(shorter, PRESENT) == [gone]
    assert pages.not_in_contents(CONTENTS, PRESENT[1:]) == PRESENT[:1]


def test_nothing_shrinks_in_silence():
    cells = sum(len(pages.code_cells(pages.read(path))) for path in pages.NOTEBOOKS)
    assert {"notebooks": len(pages.NOTEBOOKS), "cells": cells} == {
        name: COUNTS[name] for name in ("notebooks", "cells")
    }


def test_cell_ids_are_unique_across_the_book():
    notebooks = [pages.read(path) for path in pages.NOTEBOOKS]
    assert pages.repeated_ids(notebooks) == []
    assert pages.repeated_ids([notebooks[0], notebooks[0]]) != []


def test_every_reference_is_an_entry_once():
    keys = re.findall(r"^@\w+\{([^,]+),", (pages.BOOK / "references.bib").read_text(), re.MULTILINE)
    assert len(keys) == len(set(keys)) >= 10


def test_every_entry_is_cited():
    """By its address on a page, or in the library by whose it is."""
    entries = (pages.BOOK / "references.bib").read_text().split("\n@")
    book = "".join(p.read_text() for p in [*pages.BOOK.glob("*.ipynb"), *pages.BOOK.glob("*.md")])
    library = "".join(path.read_text() for path in (pages.ROOT / "attn_lib").glob("*.py"))

    def uncited(entries):
        named = [(pages.field(e, "url"), pages.field(e, "author")) for e in entries]
        named = [(url, author.partition(",")[0]) for url, author in named]
        return [who for url, who in named if not (url and url in book) and who not in library]

    assert uncited(entries) == []
    planted = "  author = {Nobody, N.},\n  url = {https://nowhere.invalid}"
    assert uncited([*entries, planted]) == ["Nobody"]


def test_pins_are_exact():
    lines = [
        line
        for line in (pages.ROOT / "requirements.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert lines[-1] == "-e ."
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines[:-1])
    assert len({line.partition("==")[0] for line in lines}) == len(lines)
    assert {"jupyter-book==1.0.4.post1", "torch==2.13.0", "nbval==0.11.0"} <= set(lines)


def test_every_python_that_the_readme_names_can_install_the_pins():
    minor = re.search(r"a fresh environment of Python (3\.\d+)", README).group(1)
    lines = (pages.ROOT / "requirements.txt").read_text().splitlines()
    asked = {
        name: metadata(name)["Requires-Python"] or ""
        for name in re.findall(r"^([\w.-]+)==", "\n".join(lines), re.MULTILINE)
    }

    def refused(asked: dict[str, str]) -> list[str]:
        return [n for n, versions in asked.items() if f"{minor}.0" not in SpecifierSet(versions)]

    assert refused(asked) == []
    assert refused(asked | {"soupsieve": ">=3.11.5"}) == ["soupsieve"]


def test_every_package_of_the_library_is_shipped():
    settings = (pages.ROOT / "pyproject.toml").read_text()
    listed = json.loads(re.search(r"^packages = (\[.*\])$", settings, re.MULTILINE).group(1))
    packages = (pages.ROOT / "attn_lib").rglob("__init__.py")
    names = {".".join(path.relative_to(pages.ROOT).parent.parts) for path in packages}
    assert set(listed) == names >= {"attn_lib.exercises"}
    data = json.loads(re.search(r"^attn_lib = (\[.*\])$", settings, re.MULTILINE).group(1))
    assert data == ["data/*", "py.typed"]
    assert (pages.ROOT / "attn_lib" / "py.typed").exists()


def test_readme_and_ci_run_the_same_two_commands():
    commands = re.findall(r"^pip install -r requirements.txt && .*$", README, re.MULTILINE)
    assert len(commands) == 2
    assert "pytest --nbval book && jupyter-book build . --all -W -n --keep-going" in commands[0]
    script = (pages.ROOT / ".ci" / "run").read_text()
    assert all(f"\n{command}\n" in script for command in commands)
    assert "set -euo pipefail" in script
    checked = (pages.BOOK / "how_checked.md").read_text()
    assert all(command in checked for command in commands)
    assert len(README.splitlines()) < 120


@pytest.mark.parametrize(
    ("old", "new"),
    [("(LICENSE)", "(LICENCE)"), ("[4. Why divide", "[4. Why multiply"), ("[2. ", "[3. ")],
)
def test_readme_leads_to_what_it_names(old, new):
    assert pages.readme_faults(README) == []
    assert README.count(old) == 1
    assert len(pages.readme_faults(README.replace(old, new))) == 1


# ---------------------------------------------------------------- the public address


def test_one_address_everywhere():
    """`_config.yml` holds it; the README's links and each notebook's first cell repeat it."""
    assert f"git+{pages.address()}" in README
    for path in pages.NOTEBOOKS:
        assert f'"git+{pages.address()}"' in pages.code_cells(pages.read(path))[0].source
    published = not pages.address().startswith("https://attention-checked.invalid/")
    assert bool(pages.config()["launch_buttons"]["colab_url"]) == published


def test_the_address_command_sets_it_everywhere(checkout):
    url = "https://github.com/someone/attention-checked"
    command = [sys.executable, "book/_tools/address.py"]
    subprocess.run([*command, url], cwd=checkout, check=True)
    config = yaml.safe_load((checkout / "_config.yml").read_text())
    assert config["repository"]["url"] == url
    assert config["launch_buttons"]["colab_url"] == "https://colab.research.google.com"
    left = subprocess.run(
        ["grep", "-rl", "attention-checked.invalid", "README.md", "book", "_config.yml"],
        cwd=checkout,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert left == ["book/_tools/address.py"]
    for path in (checkout / "book").glob("*.ipynb"):
        assert f'"git+{url}"' in pages.code_cells(pages.read(path))[0].source
        before = pages.read(pages.BOOK / path.name)
        assert [c.get("outputs") for c in pages.read(path).cells] == [
            c.get("outputs") for c in before.cells
        ]
    for refused in ("http://insecure.invalid/x", "https://a.invalid/x y", 'https://a.invalid/"'):
        assert subprocess.run([*command, refused], cwd=checkout, capture_output=True).returncode


# ---------------------------------------------------------------- what the five posts hold


def anchors(path):
    if path.suffix == ".ipynb":
        cells = pages.read(path).cells
        text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    else:
        text = path.read_text()
    headings = re.findall(r"^#{1,3} (.+)$", text, re.MULTILINE)
    slugs = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {slug.strip().replace(" ", "-") for slug in slugs}


def names_of_tests_in(path):
    return set(re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE))


def test_every_row_of_the_five_posts_has_its_place():
    """234 features and defects of the posts: each stands somewhere, or is still open."""
    numbers = {"F000": 27, "F001": 27, "F002": 30, "F003": 24, "F004": 19}
    ids = {f"{post}-{n:02}" for post, last in numbers.items() for n in range(1, last + 1)}
    letters = {"A": 17, "B": 21, "C": 21, "D": 23, "E": 20, "X": 4}
    ids |= {f"{letter}{n:02}" for letter, last in letters.items() for n in range(1, last + 1)}
    ids.add("B02b")
    with (pages.ROOT / "tests" / "book" / "seed_rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(ids) == 234
    assert {row["id"] for row in rows} == ids
    for row in rows:
        place, _, name = row["where"].partition("::")
        if row["where"] == "open":
            continue
        if name:
            assert name in names_of_tests_in(pages.ROOT / place), row
        else:
            page, _, anchor = place.partition("#")
            assert anchor in anchors(pages.ROOT / page), row
    assert sum(row["where"] == "open" for row in rows) == COUNTS["open rows"]


def test_nothing_private_in_the_repository():
    """No path of somebody's machine, and no host of a package registry, in any file."""
    files = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=pages.ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    hosts = ("pypi" + ".org", "pythonhosted" + ".org", "npmjs" + ".org", "deb.debian" + ".org")
    words = [*hosts, "/".join(["", "work", ""]), "/".join(["", "root", ""])]
    ours = [f for f in files if not f.startswith("book/assets/mathjax/")]
    for name, word in itertools.product(ours, words):
        path = pages.ROOT / name
        if not path.exists():
            continue
        if name == "tests/book/pages.py" and word == words[-1]:
            continue  # the rule itself
        assert word.encode() not in path.read_bytes(), (name, word)


# ---------------------------------------------------------------- size

CORE = ("functional", "masks", "positions", "layers", "transformer", "models", "vision")


def code_lines(source: str) -> int:
    """Lines that hold code: no docstring, comment or blank."""
    blank = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in (*blank, tokenize.ENDMARKER)
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            lines -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)


def test_the_library_can_be_read_in_an_evening():
    library = pages.ROOT / "attn_lib"
    sizes = {
        path.relative_to(library).with_suffix("").as_posix(): code_lines(path.read_text())
        for path in library.rglob("*.py")
    }
    assert sum(sizes.get(name, 0) for name in CORE) <= 1200
    assert {n: s for n, s in sizes.items() if s > 250 and not n.endswith("/mistakes")} == {}


def test_lines_are_counted_as_they_should_be():
    assert code_lines('"""Text."""\n\n# why\nx = [\n    1,\n]\n') == 3
    assert code_lines('def f():\n    """Text\n    more."""\n    return """a\n    b"""\n') == 3
