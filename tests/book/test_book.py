"""The pages keep their rules, and each rule is shown able to fail."""

import ast
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
import tomllib
import yaml
from packaging.specifiers import SpecifierSet
from tables import for_each

COUNTS = json.loads((pages.ROOT / "tests" / "counts.json").read_text())
README = (pages.ROOT / "README.md").read_text()


@pytest.mark.parametrize("path", pages.NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_keep_the_rules(path):
    notebook = pages.read(path)
    assert {rule.__name__: found for rule in pages.RULES if (found := rule(notebook))} == {}


@pytest.mark.parametrize("path", pages.TEXTS, ids=lambda path: path.stem)
def test_text_pages_keep_the_rules(path):
    text = path.read_text()
    assert pages.safe_markdown(text) == []
    assert pages.unlisted_links(text) == []


# ---------------------------------------------------------------- planted mistakes


def first(page):
    return page.cells[0]


def set_up(page):
    return pages.code_cells(page)[0]


def third(page):
    return pages.code_cells(page)[2]


def drawing(page):
    return next(c for c in pages.code_cells(page) if "figure" in c.metadata.get("mystnb", {}))


def caption(page):
    return page.cells[page.cells.index(drawing(page)) + 1]


def has(of, **changes):
    return lambda page: of(page).update(changes)


def notes(of, **changes):
    return lambda page: of(page).metadata.update(changes)


def says(text, of=first):
    """More text, or more code."""
    return lambda page: of(page).update(source=of(page).source + text)


def stores(kind="stream", **content):
    """Another output."""
    return lambda page: third(page).outputs.append(nbformat.v4.new_output(kind, **content))


def of_another_year(page):
    (cell,) = (cell for cell in page.cells if "Vaswani et al. (2017)" in cell.source)
    cell.source = cell.source.replace("Vaswani et al. (2017)", "Vaswani et al. (2015)")


def misnamed_solution(page):
    (cell,) = (cell for cell in page.cells if "solution-1.4" in pages.tags(cell))
    cell.metadata["mystnb"].update(code_prompt_show="Solution 1.3")


def small_letters(page):
    cells = [c for c in pages.code_cells(page) if "figure" in c.metadata.get("mystnb", {})]
    still = next(cell for cell in cells if "live" not in cell.metadata)
    still.source += "\nplt.legend(fontsize=5)"


def uses_the_set_up(page):
    set_up(page).source += "\ndef hidden(): ..."
    page.cells.insert(9, nbformat.v4.new_code_cell("hidden()"))


SCRIPT = '<script src="https://cdn.invalid/a.js"></script>'
PLANTED = [
    (pages.stored_as_it_ran, has(third, execution_count=None)),
    (pages.no_stray_output, stores(name="stderr", text="a warning")),
    (pages.no_stray_output, stores(text="<object object at 0x7f51c2a3b4c0>")),
    (pages.unusual_with_reason, notes(third, tags=["nbval-skip"])),
    (pages.unusual_with_reason, says("\n# NBVAL_IGNORE_OUTPUT\nx", third)),
    (pages.clean_metadata, notes(third, execution={"iopub.execute_input": "now"})),
    (pages.safe_outputs, stores("display_data", data={"text/html": SCRIPT})),
    (pages.safe_source, says(f"\n{SCRIPT}")),
    (pages.safe_source, says("\n![a picture](https://cdn.invalid/a.png)")),
    (pages.safe_source, says("\n!ls", third)),
    (pages.safe_source, says('\ntorch.load("x.pt")', third)),
    (pages.exercises_named, misnamed_solution),
    (pages.folds_named, lambda page: set_up(page).metadata["mystnb"].pop("code_prompt_show")),
    (pages.figures_described, lambda page: drawing(page).metadata["mystnb"]["image"].pop("alt")),
    (pages.figures_described, lambda page: page.cells.remove(caption(page))),
    (
        pages.pictures_bound,
        lambda page: drawing(page).metadata["drawn"].append("weights <- 1 == 1"),
    ),
    (
        pages.pictures_bound,
        lambda page: page.cells[-1].metadata.update(held=["no such <- weights"]),
    ),
    (pages.figures_legible, small_letters),
    (pages.tables_marked, notes(third, table=True)),
    (pages.tables_marked, stores(text="word  weight\n cat   0.676\n")),
    (pages.numbers_bound, says(" It keeps 0.16729 of it.")),
    (pages.within_one_sitting, says(" word" * 4000)),
    (pages.stands_by_itself, uses_the_set_up),
    (pages.links_listed, says("\n[a source](https://example.org/paper)")),
    (pages.links_listed, of_another_year),
    (pages.starts_with_bootstrap, has(set_up, source="import attn_lib")),
]


@for_each(*PLANTED, ids=lambda part: part.__name__)
def test_a_planted_mistake_is_found(rule, plant):
    notebook = pages.read(pages.NOTEBOOKS[0])
    plant(notebook)
    assert rule(notebook) != []


def test_an_appendix_has_no_number_no_exercises_and_may_have_fewer_figures():
    appendices = [path for path in pages.NOTEBOOKS if pages.appendix(pages.read(path))]
    assert appendices == [path for path in pages.NOTEBOOKS if path not in pages.CHAPTERS]
    cells = [cell for path in appendices for cell in pages.read(path).cells]
    assert not any("exercise" in tag for cell in cells for tag in pages.tags(cell))
    notebook = pages.read(pages.NOTEBOOKS[0])
    for cell in pages.code_cells(notebook)[2:]:
        cell.metadata.pop("mystnb", None)
    assert pages.within_one_sitting(notebook) == ["figures: 1, not 4 to 12"]
    notebook.metadata["appendix"] = True
    assert pages.within_one_sitting(notebook) == []


def test_every_rule_is_shown_able_to_fail():
    elsewhere = {pages.can_fail, pages.conclusions_shown}
    assert {rule for rule, _ in PLANTED} | elsewhere == {*pages.RULES}


WEAK = [
    "torch.allclose(out, other, atol=1e9)",
    "out.allclose(other, 0.1)",
    "torch.isclose(out, other, **options)",
    "print('largest error', 0.123)",
    "x.shape, True",
]
IDLE = [
    "torch.equal(out, other=out.clone())",
    "three = out[2:3]; torch.allclose(out[2:3], three)",
    "(out - out).abs().max() < 1e-9",
    "assert 1 < 2",
    "assert (out == other, 'they differ')",
    "print(torch.equal(out, other) or True)",
]
STRONG = [
    "out.allclose(other, atol=1e-3)",
    "print('largest error:', (out - other).abs().max())",
    "assert out.shape == (2, 3), 'two rows'",
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


# ---------------------------------------------------------------- the book as a whole

CONTENTS = yaml.safe_load((pages.ROOT / "_toc.yml").read_text())
PRESENT = [f"book/{path.stem}" for path in pages.NOTEBOOKS + pages.TEXTS]


def test_contents_and_pages_are_the_same():
    assert pages.not_in_contents(CONTENTS, PRESENT) == []
    assert pages.not_in_contents(CONTENTS, [*PRESENT, "book/99_lost"]) == ["book/99_lost"]


def test_nothing_shrinks_in_silence():
    notebooks = [pages.read(path) for path in pages.NOTEBOOKS]
    cells = [cell for notebook in notebooks for cell in pages.code_cells(notebook)]
    lines = [line for cell in cells for line in pages.lines(cell)]
    found = {
        "notebooks": len(notebooks),
        "cells": len(cells),
        "assertions": sum(line.lstrip().startswith("assert ") for line in lines),
        "lines about text": sum(
            len(c.metadata.get("held", ())) for n in notebooks for c in n.cells
        ),
    }
    assert found == {name: COUNTS[name] for name in found}, "if so meant: tests/counts.json"


def test_cell_ids_are_unique_across_the_book():
    ids = [cell.id for path in pages.NOTEBOOKS for cell in pages.read(path).cells]
    assert len(ids) == len({*ids})


def test_pins_are_exact():
    lines = (pages.ROOT / "requirements.txt").read_text().splitlines()
    lines = [line for line in lines if not line.startswith("#")]
    assert lines[-1] == "-e ."
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines[:-1])
    assert len({line.partition("==")[0] for line in lines}) == len(lines)
    assert {"jupyter-book==1.0.4.post1", "torch==2.13.0", "nbval==0.11.0"} <= set(lines)


def test_every_python_that_the_readme_names_can_install_the_pins():
    minor = re.search(r"a fresh environment of Python (3\.\d+)", README).group(1)
    lines = (pages.ROOT / "requirements.txt").read_text().splitlines()
    names = re.findall(r"^([\w.-]+)==", "\n".join(lines), re.MULTILINE)
    asked = {name: SpecifierSet(metadata(name).get("Requires-Python", "")) for name in names}
    assert [name for name, versions in asked.items() if f"{minor}.0" not in versions] == []


BROUGHT = {"PIL", "IPython", "matplotlib_inline"}  # by matplotlib, or by a running notebook


def of_others(source: str) -> set[str]:
    """Packages of others that a code imports."""
    own = {"attn_lib", "attn_check", *BROUGHT, *sys.stdlib_module_names}
    return {name.partition(".")[0] for name in pages.imported(source)} - own


def test_what_is_imported_is_installed():
    """With the extra that the first cell of a page asks for, and nothing else."""
    project = tomllib.loads((pages.ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["book"]]
    texts = [path.read_text() for path in pages.ROOT.glob("attn_*/**/*.py")]
    cells = [cell for path in pages.NOTEBOOKS for cell in pages.code_cells(pages.read(path))]
    used = set().union(*map(of_others, [*texts, *(cell.source for cell in cells)]))
    assert {re.match(r"[\w-]+", name)[0] for name in asked} == used
    late = "import math, numpy.linalg\ndef f():\n    %pip install x\n    from babel.dates import g"
    assert of_others(late) == {"numpy", "babel"}


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


def test_readme_leads_to_what_it_names():
    assert pages.readme_faults(README) == []
    for old, new in (("(LICENSE)", "(LICENCE)"), ("[2. ", "[3. ")):
        assert len(pages.readme_faults(README.replace(old, new))) == 1


# ---------------------------------------------------------------- the public address


def test_one_address_everywhere():
    """`_config.yml` holds it; first cells, README and metadata repeat it, once it is set."""
    published = not pages.address().startswith("https://attention-checked.invalid/")
    project = tomllib.loads((pages.ROOT / "pyproject.toml").read_text())["project"]
    texts = [pages.code_cells(pages.read(path))[0].source for path in pages.NOTEBOOKS]
    texts += [re.sub("<!--.*?-->", "", README), project["urls"].get("Source", "")]
    assert {pages.address() in text for text in texts} == {published}
    assert bool(pages.config()["launch_buttons"]["colab_url"]) == published


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


def in_its_place(where):
    """Whether a test, `tests/…::test_name`, or a heading, `page#heading`, is there."""
    path, _, test = where.partition("::")
    page, _, heading = path.partition("#")
    return test in pages.tests_in(path) if test else heading in anchors(pages.ROOT / page)


def test_every_row_of_the_five_posts_has_its_place():
    """234 features and defects of the posts: each stands somewhere, or is still open."""
    with (pages.ROOT / "tests" / "book" / "seed_rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len({row["id"] for row in rows}) == 234
    places = [row["where"] for row in rows if row["where"] != "open"]
    assert len(rows) - len(places) == COUNTS["open rows"]
    assert [place for place in places if not in_its_place(place)] == []
    assert not in_its_place(f"{places[0]}-nowhere")


@for_each(("known_bugs", 60, "2.41"), ("attack", 29, "D14"))
def test_every_bug_that_was_reported_is_answered(name, rows, last):
    """Reports of attention gone wrong elsewhere, and what an attack on this library found."""
    with (pages.ROOT / f"tests/library/{name}.csv").open() as file:
        listed = list(csv.DictReader(file))
    assert len(listed) >= rows
    assert last in {row["id"] for row in listed}
    assert [row["where"] for row in listed if not in_its_place(row["where"])] == []


def test_nothing_private_in_the_repository():
    """No path of somebody's machine, and no host of a package registry, in any file."""
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    files = subprocess.check_output(command, cwd=pages.ROOT, text=True).splitlines()
    hosts = ("pypi" + ".org", "pythonhosted" + ".org", "npmjs" + ".org", "deb.debian" + ".org")
    words = [*hosts, "/".join(["", "work", ""]), "/".join(["", "root", ""])]
    for name, word in itertools.product(files, words):
        path = pages.ROOT / name
        if not path.exists():
            continue
        assert word.encode() not in path.read_bytes(), (name, word)


# ---------------------------------------------------------------- size

CORE = ("functional", "fused", "masks", "positions", "layers", "transformer", "models")
CORE += ("generation", "vision")


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
        told = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if told and ast.get_docstring(node):
            lines -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)


def test_the_library_can_be_read_in_an_evening():
    paths = {path.relative_to(pages.ROOT): path for path in pages.ROOT.glob("attn_*/**/*.py")}
    sizes = {n.with_suffix("").as_posix(): code_lines(p.read_text()) for n, p in paths.items()}
    assert sum(sizes[f"attn_lib/{name}"] for name in CORE) <= 1200
    assert {n: s for n, s in sizes.items() if s > 250 and not n.endswith("/mistakes")} == {}
