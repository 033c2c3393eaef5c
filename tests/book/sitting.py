"""What a reader takes in at one sitting, and what stands by itself: rules of `pages.RULES`."""

import ast
import re

import colab

FOLDED = {"hide-input", "hide-cell"}
UNSEEN = FOLDED | {"remove-input", "remove-cell"}
SITTING = {
    "words": (1400, 3600),
    "sections before the exercises": (1, 6),
    "figures": (4, 12),
    "lines of the longest visible cell": (1, 45),
    "characters of the longest visible line": (1, 72),
    "printed booleans": (0, 6),
    "minutes": (10, 75),
    "minutes that it says, in a hundred of those counted": (70, 130),
    "visible cells before the first picture": (0, 0),
}
# where one looks things up: a table says it better than a fourth picture
APPENDIX = {"words": (600, 3600), "figures": (1, 12), "minutes": (0, 99)}
APPENDIX["sections before the exercises"] = (1, 9)  # each a question that one comes with
APPENDIX["minutes that it says, in a hundred of those counted"] = (0, 999)


def tags(cell) -> set[str]:
    return set(cell.metadata.get("tags", []))


def lesson(notebook) -> list:
    """The cells of code before the exercises."""
    cells = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and re.match(r"## .*xercise", cell.source):
            break
        cells += [cell] if cell.cell_type == "code" else []
    return cells


def visible(notebook) -> list:
    return [cell for cell in lesson(notebook) if not tags(cell) & UNSEEN]


# ---------------------------------------------------------------- the budget


def measured(notebook) -> dict[str, float]:
    """The numbers that the budget bounds."""
    seen, outputs = visible(notebook), []
    for cell in lesson(notebook):
        for output in cell.outputs:
            outputs.append(output.get("text", "") or output.get("data", {}).get("text/plain", ""))
    written = [c for c in notebook.cells if c.cell_type == "markdown" and not colab.is_licence(c)]
    texts = [colab.unnumbered(c.source) for c in written]
    marks = r"\$\$.*?\$\$|\$[^$]*\$|`[^`]*`|\]\([^)]*\)"  # a formula, or code, is one word
    words = [len(re.sub(marks, " x ", text, flags=re.DOTALL).split()) for text in texts]
    of_exercises = re.findall(r"^> \*\*Exercise [\d.]+\*\*.*(?:\n>.*)*", "\n\n".join(texts), re.M)
    lines = [[line for line in cell.source.splitlines() if line.strip()] for cell in seen]
    read = sum(words) - sum(len(text.split()) for text in of_exercises)
    minutes = read / 160 + sum(map(len, lines)) / 6 + 5 * len(of_exercises)
    said = re.search(r"about (?:(\d+) minutes|an hour)", "\n".join(texts[:12]))
    headings = re.findall(r"^## (.+)$", "\n".join(texts), re.MULTILINE)
    others = r"xercise|remember|practice|eferences|heck"
    figures = [n for n, c in enumerate(notebook.cells) if "figure" in c.metadata.get("mystnb", {})]
    early = notebook.cells[: figures[0]] if figures else notebook.cells
    numbers = re.sub(r"tensor\(\[.*?\]\)", "", "\n".join(outputs), flags=re.DOTALL)
    return {
        "words": sum(words),
        "sections before the exercises": sum(not re.search(others, h) for h in headings),
        "figures": len(figures),
        "lines of the longest visible cell": max(map(len, lines)),
        "characters of the longest visible line": max(len(li) for cell in lines for li in cell),
        "printed booleans": len(re.findall(r"\b(?:True|False)\b", numbers)),
        "minutes": minutes,
        "minutes that it says, in a hundred of those counted": 100
        * (int(said[1] or 60) if said else 0)
        / minutes,
        "visible cells before the first picture": sum(cell in seen for cell in early),
    }


def within_one_sitting(notebook) -> list[str]:
    """About an hour for one story, in cells that a screen holds."""
    budget = SITTING | (APPENDIX if notebook.metadata.get("appendix", False) is True else {})
    found = measured(notebook)
    broken = [what for what, (low, high) in budget.items() if not low <= found[what] <= high]
    return [f"{w}: {found[w]:.0f}, not {budget[w][0]} to {budget[w][1]}" for w in broken]


# ---------------------------------------------------------------- what one sees


def functions(tree: ast.Module) -> set[str]:
    """Names of functions and classes that a cell defines."""
    kinds = ast.FunctionDef | ast.ClassDef
    lambdas = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return lambdas | {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def given(tree: ast.AST) -> set[str]:
    """All names that a cell, or a function in it, gives to something."""
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and _stored(n)}
    names |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    aliases = [n for n in ast.walk(tree) if isinstance(n, ast.alias)]
    return names | {(alias.asname or alias.name).split(".")[0] for alias in aliases}


def _stored(name: ast.Name) -> bool:
    return not isinstance(name.ctx, ast.Load)


def without_magic(source: str) -> str:
    return re.sub(r"^(\s*)[%!].*$", r"\1pass", source, flags=re.MULTILINE)


def stands_by_itself(notebook) -> list[str]:
    """No visible cell uses what a folded one defines, but what the set-up loads and imports."""
    cells = lesson(notebook)
    trees = {cell.id: ast.parse(without_magic(cell.source)) for cell in cells}
    shown, folded, faults = given(trees[cells[0].id]), functions(trees[cells[0].id]), []
    shown -= folded
    for cell in cells[1:]:
        tree = trees[cell.id]
        if tags(cell) & UNSEEN:
            folded |= given(tree) | functions(tree)
            continue
        own = given(tree) | functions(tree)
        used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not _stored(n)}
        hidden = sorted((used & folded) - shown - own)
        faults += [f"{cell.id} uses {name}, which only a folded cell defines" for name in hidden]
        shown |= own
    return faults
