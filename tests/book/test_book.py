"""The pages keep their rules, and each rule is shown able to fail."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pages
import pytest
import tomllib
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


def third(page):
    return pages.code_cells(page)[2]


def drawing(page):
    return next(cell for cell, _ in pages.figures(page))


def says(text, of=lambda page: page.cells[0]):
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
    still = next(cell for cell, _ in pages.figures(page) if "live" not in cell.metadata)
    still.source += "\nplt.legend(fontsize=5)"


PLANTED = [
    (pages.stored_as_it_ran, lambda page: third(page).update(execution_count=None)),
    (pages.no_stray_output, stores(text="<object object at 0x7f51c2a3b4c0>")),
    (pages.unusual_with_reason, lambda page: third(page).metadata.update(tags=["nbval-skip"])),
    (pages.unusual_with_reason, says("\ntorch.allclose(out, other, atol=1e9)", third)),
    (pages.unusual_with_reason, says("\nprint('largest error', 0.123)", third)),
    (pages.can_fail, says("\ntorch.equal(out, other=out.clone())", third)),
    (pages.clean_metadata, lambda page: third(page).metadata.update(execution={})),
    (pages.safe_outputs, stores("display_data", data={"text/html": "<b>a page</b>"})),
    (pages.safe_source, says('\n<script src="https://cdn.invalid/a.js"></script>')),
    (pages.safe_source, says("\n![a picture](https://cdn.invalid/a.png)")),
    (pages.safe_source, says("\n!ls", third)),
    (pages.safe_source, says('\ntorch.load("x.pt")', third)),
    (pages.exercises_named, misnamed_solution),
    (pages.figures_described, lambda page: drawing(page).metadata["mystnb"].pop("image")),
    (pages.figures_legible, small_letters),
    (pages.pictures_bound, lambda page: drawing(page).metadata["drawn"].append("no such <- 1")),
    (pages.numbers_bound, says(" It keeps 0.16729 of it.")),
    (pages.minutes_said, says(" word" * 4000)),
    (pages.links_listed, says("\n[a source](https://example.org/paper)")),
    (pages.links_listed, of_another_year),
    (pages.starts_with_bootstrap, lambda page: pages.code_cells(page)[0].update(source="1")),
    (pages.conclusions_shown, lambda page: page.cells.clear()),
]


@for_each(*PLANTED)
def test_a_planted_mistake_is_found(rule, plant):
    notebook = pages.read(pages.NOTEBOOKS[0])
    plant(notebook)
    assert rule(notebook) != []


def test_every_rule_is_shown_able_to_fail():
    assert {rule for rule, _ in PLANTED} == {*pages.RULES}


# ---------------------------------------------------------------- the book as a whole


def test_contents_and_pages_are_the_same():
    listed = re.findall(r"(?:root|file): (\S+)", (pages.ROOT / "_toc.yml").read_text())
    assert sorted(listed) == sorted(f"book/{path.stem}" for path in pages.NOTEBOOKS + pages.TEXTS)


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
    *pins, own = re.findall(r"(?m)^[^#\n].*", (pages.ROOT / "requirements.txt").read_text())
    assert own == "-e ."
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in pins)
    assert len({line.partition("==")[0] for line in pins}) == len(pins)


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


def test_readme_and_ci_run_the_same_two_commands():
    commands = re.findall(r"^pip install -r requirements.txt && .*$", README, re.MULTILINE)
    assert len(commands) == 2
    assert "pytest --nbval book && jupyter-book build . --all -W -n --keep-going" in commands[0]
    script = (pages.ROOT / ".ci" / "run").read_text()
    assert all(f"\n{command}\n" in script for command in commands)


def test_readme_leads_to_what_it_names():
    assert pages.readme_faults(README) == []
    for old, new in (("(LICENSE)", "(LICENCE)"), ("[2. ", "[3. ")):
        assert len(pages.readme_faults(README.replace(old, new))) == 1


# ---------------------------------------------------------------- rows, each in its place


def in_its_place(where):
    """Whether a test, `tests/…::test_name`, or a heading, `page#heading`, is there."""
    path, _, test = where.partition("::")
    if test:
        return test in pages.tests_in(path)
    page, _, heading = path.partition("#")
    headings = re.findall(r"^#{1,3} (.+)$", pages.written()[Path(page).name], re.MULTILINE)
    slugs = (re.sub(r"[^\w\- ]", "", text.lower()).strip() for text in headings)
    return heading in {slug.replace(" ", "-") for slug in slugs}


@for_each(("book/seed_rows", 234), ("library/known_bugs", 60), ("library/attack", 29))
def test_every_row_has_its_place(name, rows):
    """What the five posts hold, reports of attention gone wrong, what an attack here found."""
    with (pages.ROOT / f"tests/{name}.csv").open() as file:
        places = [row["where"] for row in csv.DictReader(file)]
    assert len(places) >= rows
    assert [place for place in places if not in_its_place(place)] == []
    assert not in_its_place(f"{places[0]}-nowhere")


def test_nothing_private_in_the_repository():
    """No path of somebody's machine, and no host of a package registry, in any file."""
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    files = subprocess.check_output(command, cwd=pages.ROOT, text=True).splitlines()
    hosts = ("pypi" + ".org", "pythonhosted" + ".org", "npmjs" + ".org", "deb.debian" + ".org")
    words = [*hosts, "/".join(["", "work", ""]), "/".join(["", "root", ""])]
    for path in filter(Path.exists, map(pages.ROOT.joinpath, files)):
        text = path.read_bytes()
        assert [word for word in words if word.encode() in text] == [], path
