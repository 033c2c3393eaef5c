"""The library as one file on the website: what it holds, what it says of itself, where it is."""

import email
import re
import zipfile

import copies
import offered
import pages
import pytest

import attn_lib
from attn_lib import files

NAME = f"attn_lib-{attn_lib.__version__}-py3-none-any.whl"
INFO = f"attn_lib-{attn_lib.__version__}.dist-info"
NOTES = ["LICENSE", *(f"attn_lib/data/{path.name}" for path in files.DATA.glob("*.txt"))]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """That of a copy of the tree, with what must not come along, in place of an earlier one."""
    root = copies.copy_tree(tmp_path_factory.mktemp("offered") / "checkout")
    (root / "attn_lib" / "__pycache__").mkdir()
    (root / "attn_lib" / "__pycache__" / "old.pyc").touch()
    (root / "attn_lib" / "masks.py").chmod(0o600)
    folder = root / "made"
    folder.mkdir()
    (folder / "attn_lib-0.1.0-py3-none-any.whl").touch()
    made = offered.build(root, folder)
    assert [path.name for path in folder.iterdir()] == [made.name] == [NAME]
    return made


def test_it_holds_both_packages_and_every_licence(wheel):
    """And nothing else."""
    wanted = {f"{INFO}/licenses/{name}" for name in NOTES}
    wanted |= {f"{INFO}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "top_level.txt")}
    wanted |= {name for name in copies.checked.tree(pages.ROOT) if name.startswith("attn_")}
    assert set(zipfile.ZipFile(wheel).namelist()) == wanted
    assert {"attn_lib/py.typed", "attn_check/mistakes.json", "attn_lib/data/fashion.npz"} < wanted


def test_it_says_what_it_is(wheel):
    said = email.message_from_bytes(zipfile.ZipFile(wheel).read(f"{INFO}/METADATA"))
    assert said.get_payload(decode=True) == (pages.ROOT / "README.md").read_bytes()
    assert said["License-Expression"] == "MIT"
    assert "Typing :: Typed" in said.get_all("Classifier")
    published = "attention-checked.invalid" not in pages.address()
    assert (said["Project-URL"] is not None) == published


def test_each_page_offers_it_and_the_same_files_give_the_same_bytes(site, wheel):
    """Built at another time, of files with other rights."""
    assert (site / NAME).read_bytes() == wheel.read_bytes()
    size = f"library (.whl, {wheel.stat().st_size / 1e6:.0f} MB)"
    for path in [*pages.NOTEBOOKS, *pages.TEXTS]:
        html = (site / "book" / f"{path.stem}.html").read_text()
        (link,) = re.findall(r'<a href="([^"]*\.whl)"', html)
        assert (site / "book" / link).resolve() == (site / NAME).resolve()
        assert size in html
