"""Set the book's public address everywhere: ``python book/_tools/address.py URL [PAGES]``.

``_config.yml``'s ``repository.url`` is the single source; the README repeats it, the library's own
metadata, and each notebook, in its first cell and in links (`colab.py`). With an address set, the
launch buttons for Colab are switched on. ``PAGES`` is where the pages are read, in
``html.baseurl``; for a repository on GitHub it is that of GitHub Pages.
"""

import re
import sys
from pathlib import Path

import colab

ROOT = Path(__file__).resolve().parents[2]
UNSET = "https://attention-checked.invalid/book"
COLAB = "https://colab.research.google.com"


def set_address(url: str, pages: str = "", root: Path = ROOT) -> None:
    """Replace the present address by ``url``, an https address of a git repository."""
    if not re.fullmatch(r"https://[\w.-]+(/[\w.-]+)+", url):
        raise ValueError(f"an https address of a git repository is wanted, got {url!r}")
    if not re.fullmatch(r"(https://[\w.-]+(/[\w.-]+)*/?)?", pages):
        raise ValueError(f"an https address of the pages is wanted, got {pages!r}")
    if github := re.fullmatch(r"https://github\.com/([^/]+)/([^/]+?)(\.git)?", url):
        pages = pages or f"https://{github[1].lower()}.github.io/{github[2]}"
    pages = pages and f"{pages.rstrip('/')}/"
    config = root / "_config.yml"
    old = re.search(r"^repository:\n  url: (\S+)$", config.read_text(), re.MULTILINE).group(1)
    readme = root / "README.md"
    for path in (config, readme):
        path.write_text(path.read_text().replace(old, url))
    shown = r"<!-- \1 -->" if url == UNSET else r"\1"
    line = r"(?m)^(?:<!-- )?(Or from anywhere: .*?)(?: -->)?$"
    readme.write_text(re.sub(line, shown, readme.read_text()))
    button = COLAB if url != UNSET else ""
    text = re.sub(r'colab_url: "[^"]*"', f'colab_url: "{button}"', config.read_text())
    config.write_text(re.sub(r'baseurl: "[^"]*"', f'baseurl: "{pages}"', text))
    project, urls = root / "pyproject.toml", f'{{ Source = "{url}" }}' if url != UNSET else "{}"
    project.write_text(re.sub(r"(?m)^urls = \{.*?\}", f"urls = {urls}", project.read_text()))
    colab.write(root)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    set_address(*sys.argv[1:])
