"""Give a page another number or name: ``python book/_tools/rename.py OLD NEW [ROOT]``.

Each is ``NN_name``. What follows from a page's name changes wherever it stands: notebook, exercise
checks and recorded data; links; ids of cells, names of figures; numbers of exercises and formulas,
in stored outputs too. What no rule can tell, such as "chapter N" in a sentence, is left as it is
and printed, ``path:line: text``. Its place in the contents is left to you, too.
"""

import itertools
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("book", "attn_lib", "tests", ".ci", ".github")
ENDINGS = set(".bib .cff .csv .css .ipynb .js .json .md .py .svg .toml .txt .yml".split())
PLAIN = {"LICENSE", "SHA256SUMS", "publish", "run", "versions", "weekly"}
PICTURE = re.compile(r'("image/png": "[^"]*")')


def rename(old: str, new: str, root: Path = ROOT) -> list[str]:
    """Rename the page ``old`` of a checkout to ``new``; return what a person must look at.

    Raises:
        ValueError: a malformed name, no such page, or a name that is taken. Nothing is changed.
    """
    _refuse(old, new, root)
    own = _files(root, old)
    before = own[0].read_text()
    formulas = re.findall(rf"tag\{{{int(old[:2])}\.(\d+)\}}", before)
    for path in _texts(root):
        text = path.read_text()
        # only on the page itself is a bare (N.1) surely its formula
        moved = _moved(text, old, new, formulas if path in own else [])
        if path.name == "SHA256SUMS":
            moved = "".join(sorted(moved.splitlines(keepends=True), key=lambda line: line[66:]))
        elif path.parent == root / "attn_lib" / "data":
            continue  # data keep their sums
        if moved != text:
            path.write_text(moved)
    figures = _figures(before, own[0].read_text(), f"book/{new}.ipynb")
    for path in own:
        was, now = (old, new) if path.name.startswith(old) else (old[3:], new[3:])
        if path.suffix == ".svg":
            was, now = was.replace("_", "-"), now.replace("_", "-")
        path.rename(path.with_name(path.name.replace(was, now, 1)))
    return figures + _out_of_order(root) + _left(root, old, formulas)


def _refuse(old: str, new: str, root: Path) -> None:
    for name in (old, new):
        if not re.fullmatch(r"\d\d_[a-z][a-z0-9_]*", name):
            raise ValueError(f"a page is called NN_name, digits and small letters, not {name!r}")
    if not (root / "book" / f"{old}.ipynb").exists():
        raise ValueError(f"there is no page book/{old}.ipynb")
    for path in [*(root / "book").glob(f"{new[:2]}_*"), *_files(root, new)]:
        if path not in _files(root, old) or old == new:
            raise ValueError(f"{new} is taken: there is {path.relative_to(root).as_posix()}")


def _moved(text: str, old: str, new: str, formulas: list[str]) -> str:
    """The text after the renaming; ``formulas`` are those that it names by number alone."""
    n, m = int(old[:2]), int(new[:2])
    rules = [
        (rf"(?<!\w){old}(?!\w)", new),
        (rf"\bch{old[:2]}-", f"ch{new[:2]}-"),
        (rf"\bfig-{old[3:].replace('_', '-')}-", f"fig-{new[3:].replace('_', '-')}-"),
        (rf"\b(exercises[/.]){old[3:]}\b", rf"\g<1>{new[3:]}"),
        # [chapter N, one head](NN_one_head.ipynb), [N. One head](book/NN_one_head.ipynb)
        (rf"\[((?:[Cc]hapter )?){n}\b(?=[^]\n]*\]\([\w./]*{new}\.)", rf"[\g<1>{m}"),
        # Exercise N.1, solution-N.1, check("N.1", @exercise("N.1"), Fig. N.1
        (rf'(?i)\b((?:exercise|solution|check|fig\.)(?:s? |-|\(\\?")){n}\.(?=\d)', rf"\g<1>{m}."),
        (rf'(?m)^    "{n}\.(?=\d+": \[)', f'    "{m}.'),  # the tests' tables of answers
        (rf"(?i)(\btag\{{|\bformulas? \(){n}\.(?=\d+[)}}])", rf"\g<1>{m}."),
        *((rf"(?<![\w)])\({n}\.{k}\)", f"({m}.{k})") for k in formulas),
    ]
    parts = PICTURE.split(text)  # every second one is a picture
    for pattern, replacement in rules:
        parts[::2] = [re.sub(pattern, replacement, part) for part in parts[::2]]
    return "".join(parts)


def _figures(before: str, after: str, name: str) -> list[str]:
    """Cells whose code names a number that moved, and may have drawn it."""
    cells = zip(json.loads(before)["cells"], json.loads(after)["cells"], strict=True)
    why = "the code of this figure changed; if it shows a number, run the page anew"
    return [
        _note(name, after, after.index(json.dumps(now["id"])), why)
        for was, now in cells
        if was["source"] != now["source"] and "image/" in json.dumps(now.get("outputs"))
    ]


def _out_of_order(root: Path) -> list[str]:
    """Pages that stand in the contents before one with a smaller number."""
    text = (root / "_toc.yml").read_text()
    found = re.finditer(r"(?m)^ *- file: book/(\d\d_\w+)$", text)
    return [
        _note("_toc.yml", text, a.start(), f"{a[1]} stands before {b[1]}; in README and index too?")
        for a, b in itertools.pairwise(found)
        if a[1] > b[1]
    ]


def _left(root: Path, old: str, formulas: list[str]) -> list[str]:
    """Where the old name or number may still be meant."""
    n, gap = int(old[:2]), r'(?:\s|\\n",\s*")+'  # in a notebook a line may end between two words
    others = r"(?:[\d.()]+(?:,|–|-| and| to)+ ?)*"
    patterns = [
        rf"(?<!\w){old}(?!\w)",
        rf"\bchapters?{gap}{others}{n}(?!\d)",
        rf"\b(?:exercise|solution|formula)s?{gap}{others}\(?{n}\.\d",
        rf"\bfigures? {n}\.\d",
        *(rf"(?<![\w)])\({n}\.{k}\)" for k in formulas),
    ]
    # what each begins with, said first: five times as fast
    pattern = re.compile(rf"(?=[{old[0]}cefs(])(?:{'|'.join(patterns)})", re.IGNORECASE)
    notes = []
    for path in _texts(root):
        text, name = PICTURE.sub("", path.read_text()), path.relative_to(root).as_posix()
        for match in pattern.finditer(text):
            start = max(match.start() - 50, text.rfind("\n", 0, match.start()) + 1)
            near = text[start : match.end()] + text[match.end() :][:30].split("\n")[0]
            notes.append(_note(name, text, match.start(), near))
    return notes


def _note(name: str, text: str, place: int, note: str) -> str:
    line = text.count("\n", 0, place) + 1
    return f"{name}:{line}: {' '.join(note.split())}"


def _texts(root: Path) -> list[Path]:
    """The files that may name a page."""
    inner = (path for folder in FOLDERS for path in (root / folder).rglob("*"))
    files = [*root.iterdir(), *inner]
    return sorted(path for path in files if path.suffix in ENDINGS or path.name in PLAIN)


def _files(root: Path, page: str) -> list[Path]:
    """The notebook, first, its exercise checks, its data and its figures."""
    stems = {"book": page, "attn_lib/exercises": page[3:], "attn_lib/data": page}
    stems["book/assets/figures"] = f"fig-{page[3:].replace('_', '-')}-*"
    return [path for folder, stem in stems.items() for path in (root / folder).glob(f"{stem}.*")]


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__)
    try:
        print(*rename(*sys.argv[1:3], *map(Path, sys.argv[3:])), sep="\n")
    except ValueError as error:
        raise SystemExit(str(error)) from None
