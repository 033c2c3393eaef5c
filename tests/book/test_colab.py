"""A notebook in Colab and in JupyterLab: folds, captions, links.

What a reader needs there is said here once more, of the stored files, without the command that
writes it; `test_alone.py` runs what Colab would run.
"""

import re
import subprocess
import sys

import address
import colab
import copies
import nbformat
import pages
import pytest
import tomllib
import yaml
from tables import for_each

PUBLISHED = "https://github.com/someone/attention-checked"
CAPTION = re.compile(r"\*\*(Fig\. (?:\d+|A)\.\d+)\.\*\* \S")


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The book with an address."""
    root = copies.copy_tree(tmp_path_factory.mktemp("published") / "checkout")
    command = [sys.executable, "book/_tools/address.py", PUBLISHED]
    subprocess.run(command, cwd=root, check=True)
    return root


@for_each("http://insecure.invalid/x", 'https://a.invalid/"')
def test_an_unfit_address_is_refused(url, tmp_path):
    with pytest.raises(ValueError, match="an https address of a git repository is wanted"):
        address.set_address(url, root=tmp_path)


def test_a_reader_finds_folds_and_whose_the_page_is():
    """On the first page; the others are as the command writes them, or another test is red."""
    cells = pages.read(pages.NOTEBOOKS[0]).cells
    code, whole = (
        next(c for c in cells if f"hide-{fold}" in pages.tags(c)) for fold in ("input", "cell")
    )
    for cell, hidden in ((code, ["source"]), (whole, ["source", "outputs"])):
        assert cell.source.startswith(f"# @title {cell.metadata.mystnb.code_prompt_show}\n")
        assert cell.metadata.cellView == "form"  # in Colab
        assert cell.metadata.jupyter == {f"{what}_hidden": True for what in hidden}
    assert "collapsed" not in code.metadata
    assert whole.metadata.collapsed is True
    kept = r'(?m)^(?:title: "|  - name: |version: |date-released: )([^"\n-]+)'
    wanted = [*re.findall(kept, (pages.ROOT / "CITATION.cff").read_text()), "CC BY 4.0", "MIT"]
    assert [one for one in wanted if one not in cells[-1].source] == []


@for_each(*pages.NOTEBOOKS, ids=lambda path: path.stem)
def test_links_lead_somewhere_once_there_is_an_address(path, published):
    """And the page, as the website reads it, is the same."""
    notebook = pages.read(published / "book" / path.name)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert re.findall(r"\]\((?!https?://|#)([^)]*)", text) == []
    assert pages.links_listed(notebook) == []
    again, before = map(colab.for_website, (notebook, pages.read(path)))
    assert f"git+{PUBLISHED}" in pages.code_cells(again)[0].source
    assert "raise ImportError" in pages.code_cells(before)[0].source
    assert "raise ImportError" not in pages.code_cells(again)[0].source
    pages.code_cells(again)[0].source = pages.code_cells(before)[0].source
    assert again == before


def test_the_address_is_set_everywhere(published):
    """In the library's metadata and in the README, too; and the buttons for Colab are on."""
    assert pages.config()["repository"]["url"] != PUBLISHED
    config = yaml.safe_load((published / "_config.yml").read_text())
    assert config["repository"]["url"] == PUBLISHED
    assert config["launch_buttons"]["colab_url"] == "https://colab.research.google.com"
    places = [published / "README.md", published / "_config.yml", *published.glob("book/**/*.*")]
    left = [path.name for path in places if b"attention-checked.invalid" in path.read_bytes()]
    assert left == ["address.py"]
    project = tomllib.loads((published / "pyproject.toml").read_text())["project"]
    assert project["urls"] == {"Source": PUBLISHED}
    readme = (published / "README.md").read_text()
    assert re.findall(r"(?m)^Or from anywhere: .*git\+(.*)\"`\.$", readme) == [PUBLISHED]


def test_links_to_pages_are_not_lost(published):
    """To a notebook in Colab, to a text where the source is."""
    notebook = pages.read(published / "book" / "01_one_head.ipynb")
    text = "\n".join(cell.source for cell in notebook.cells)
    colab = "https://colab.research.google.com/github/someone/attention-checked/blob/main/book"
    assert f"[Hide the future, and prove it]({colab}/02_masks.ipynb)" in text
    assert f"[notation page]({PUBLISHED}/blob/main/book/notation.md)" in text


def test_an_address_can_be_taken_back(published, tmp_path):
    names = ["_config.yml", "_toc.yml", "README.md", "pyproject.toml"]
    names += [f"book/{path.name}" for path in pages.NOTEBOOKS]
    (tmp_path / "book").mkdir()
    for name in names:
        (tmp_path / name).write_text((published / name).read_text())
    address.set_address(pages.address(), root=tmp_path)
    for name in names:
        assert (tmp_path / name).read_text() == (pages.ROOT / name).read_text(), name


# ---------------------------------------------------------------- the command


def test_what_is_no_longer_so_is_repaired(published):
    path = published / "book" / "01_one_head.ipynb"
    notebook = pages.read(path)
    titled = next(cell for cell in notebook.cells if cell.source.startswith("# @title "))
    titled.source = titled.source.replace("\n", " too\n", 1)
    del next(c for c in notebook.cells if "hide-cell" in pages.tags(c)).metadata["jupyter"]
    for cell in notebook.cells:
        cell.source = re.sub(r"https://[^)]*(?=02_masks)", "", cell.source)
    notebook.cells[-1].source = re.sub(r"version [\d.]+", "version 0.1", notebook.cells[-1].source)
    repaired = colab.prepare(notebook, (f"1.{n}" for n in range(1, 99)), PUBLISHED)
    assert nbformat.writes(repaired) + "\n" == path.read_text()


def test_a_folded_cell_without_a_name_keeps_what_it_has():
    """The command takes no title away: it says where the name belongs."""
    notebook = pages.read(pages.NOTEBOOKS[0])
    for cell in notebook.cells:
        cell.metadata.get("mystnb", {}).pop("code_prompt_show", None)
    with pytest.raises(ValueError, match=r"is folded: .* mystnb\.code_prompt_show"):
        colab.prepare(notebook, (f"1.{n}" for n in range(1, 99)), PUBLISHED)


# ---------------------------------------------------------------- what else is shown


def test_figures_have_the_numbers_and_captions_of_the_website(site):
    """And the website shows nothing of what is meant for elsewhere: it says once whose it is."""
    for path in pages.NOTEBOOKS:
        html = (site / "book" / f"{path.stem}.html").read_text()
        assert (html.count('class="colophon"'), html.count("To cite:")) == (1, 0)
        numbers = re.findall(r'class="caption-number">(Fig\. [\dA.]+) <', html)
        captions = [CAPTION.match(cell.source) for cell in pages.read(path).cells]
        assert numbers == [found[1] for found in captions if found]
        assert "@title" not in html
        assert "**Fig." not in html
        assert not re.search(r"<(p|strong)>Fig\. [\dA]", html)


def test_the_website_takes_no_caption_from_far_below():
    notebook = pages.read(pages.NOTEBOOKS[0])
    caption = next(cell for cell in notebook.cells if colab.is_caption(cell))
    notebook.cells.append(notebook.cells.pop(notebook.cells.index(caption)))
    with pytest.raises(ValueError, match="ch01-code-75-caption: a caption stands right below"):
        colab.for_website(notebook)
