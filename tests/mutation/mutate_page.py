"""How many mistakes in what it teaches a page would notice.

    pip install mutmut==3.8.1
    python tests/mutation/mutate_page.py book/02_masks.ipynb [--mutants 20] [--seed 0]

mutmut lists every small change of the functions that the notebook's metadata names under
``teaches``. A sample of them is made, one at a time, in a copy of the repository, and the page
is run there under strict nbval, up to the first cell that turns red: the mutant is killed. A
page that stays green, because it shows shapes or compares nothing, lets it survive.

A name, ``masks.causal_mask`` or a class, stands for that function or for the class's methods
and for nothing else: helpers that do part of its computation are named too. Two kinds of
mutants are set aside, and counted, because a page teaches what is computed, not how the library
refuses: those in the body of an ``if`` that ends in ``raise``, which is a message and its
parts, and those in a call of a ``_check_…`` helper. The conditions before a ``raise`` count.
Mutants that ``equivalent_mutants.csv`` declares are passed over: nothing can see them.
Cells tagged ``training`` are skipped, and so must be those that need their results.

Exit status: 0 if at least 80 % are killed; 1 if not, or if any run ended in another way than
green or red; 2 if the page is not green without a mutant, or a name does not exist.
"""

import argparse
import csv
import difflib
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from importlib import import_module, metadata
from pathlib import Path

import nbformat
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
MUTMUT, WANTED = "3.8.1", 80


def unknown(names: list[str]) -> list[str]:
    """The names that are no function or class of that module of the library."""
    return [name for name in names if not _exists(*name.split("."))]


def _exists(module: str, *path: str) -> bool:
    try:
        found = import_module(f"attn_lib.{module}")
    except ModuleNotFoundError:
        return False
    for part in path:
        found = getattr(found, part, None)
    return callable(found) and found.__module__ == f"attn_lib.{module}"


def copied(root: Path) -> Path:
    for name in ("attn_lib", "book"):
        shutil.copytree(ROOT / name, root / name)
    for name in ("pyproject.toml", "requirements.txt"):
        shutil.copy(ROOT / name, root)
    return root


def without_training(notebook) -> None:
    for cell in notebook.cells:
        if "training" in cell.metadata.get("tags", []):
            cell.metadata["tags"].append("nbval-skip")


def mutants(root: Path, names: list[str]) -> tuple[list, int]:
    """(path, parsed file, mutation) for each mutant of these names, and how many are set aside."""
    # not at the top: mutmut is not pinned, and only this needs it
    from mutmut.mutation.file_mutation import create_mutations

    found, aside = [], 0
    for module in sorted({name.partition(".")[0] for name in names}):
        path = Path("attn_lib", f"{module}.py")
        tree, mutations, *_ = create_mutations(str(path), (root / path).read_text())
        owners, refusals = _functions(tree, module), _refusals(tree)
        for mutation in mutations:
            owner = owners.get(mutation.contained_by_top_level_function, "")
            if any(f"{owner}.".startswith(f"{name}.") for name in names):
                if mutation.original_node in refusals:
                    aside += 1
                else:
                    found.append((path, tree, mutation))
    return found, aside


def _functions(tree, module: str) -> dict:
    """The nodes of functions and methods, with their names."""
    import libcst as cst

    owners = {}
    for node in tree.body:
        if isinstance(node, cst.FunctionDef):
            owners[node] = f"{module}.{node.name.value}"
        elif isinstance(node, cst.ClassDef):
            for method in node.body.body:
                if isinstance(method, cst.FunctionDef):
                    owners[method] = f"{module}.{node.name.value}.{method.name.value}"
    return owners


def _refusals(tree) -> set:
    """All nodes of bodies that end in a raise, and of calls of ``_check_…``."""
    import libcst.matchers as m

    ends = m.IndentedBlock(body=[m.ZeroOrMore(), m.SimpleStatementLine(body=[m.Raise()])])
    roots = [branch.body for branch in m.findall(tree, m.If(body=ends))]
    name = m.Name(value=m.MatchIfTrue(lambda value: value.startswith("_check_")))
    roots += m.findall(tree, m.Call(func=name))
    return {node for root in roots for node in _walk(root)}


def _walk(node):
    yield node
    for child in node.children:
        yield from _walk(child)


def mutated(tree, mutation) -> str:
    from mutmut.mutation.file_mutation import deep_replace

    return deep_replace(tree, mutation.original_node, mutation.mutated_node).code


def changed(tree, mutation) -> tuple[str, str]:
    """The lines taken out and the lines put in, as ``equivalent_mutants.csv`` has them."""
    lines = difflib.ndiff(tree.code.splitlines(), mutated(tree, mutation).splitlines())
    parts = [line for line in lines if line[0] in "-+"]
    return tuple(" ".join(x[2:].strip() for x in parts if x[0] == sign) for sign in "-+")


def verdict(root: Path, page: str, timeout: float | None = None) -> str:
    """'survived', 'killed by Cell N', 'timeout', or what pytest said when it said neither."""
    # a changed file of the same size and second would be read from its old bytecode
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--nbval", page]
    command += ["--nbval-cell-timeout=100000"]  # a slow cell must not look like a red one
    try:
        run = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        return "timeout"
    return outcome(run.returncode, run.stdout + run.stderr)


def outcome(status: int, printed: str) -> str:
    """Red means a cell that printed something else or raised; any other failure is no verdict."""
    cell = re.search(r"^FAILED .*::(Cell \d+)", printed, re.MULTILINE)
    seen = "Cell outputs differ" in printed or "Cell execution caused an exception" in printed
    if status == 0:
        return "survived"
    return f"killed by {cell.group(1)}" if status == 1 and cell and seen else printed


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("page", type=Path)
    parser.add_argument("--mutants", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    page = chosen.page.resolve().relative_to(ROOT).as_posix()
    notebook = nbformat.read(chosen.page, as_version=4)
    names = notebook.metadata.get("teaches", [])
    os.chdir(ROOT)  # where mutmut looks for its configuration
    if metadata.version("mutmut") != MUTMUT:
        parser.error(f"the mutants are those of mutmut=={MUTMUT}")
    if not names or unknown(names):
        parser.error(f"{page} must say what it `teaches`; not in attn_lib: {unknown(names)}")
    with tempfile.TemporaryDirectory() as folder:
        root = copied(Path(folder))
        without_training(notebook)
        nbformat.write(notebook, root / page)
        start = time.monotonic()
        found = verdict(root, page)
        if found != "survived":
            parser.error(f"{page} is not green without a mutant: {found}")
        return sample(root, page, names, chosen, 60 + 5 * (time.monotonic() - start))


def sample(root: Path, page: str, names: list[str], chosen, timeout: float) -> int:
    everything, aside = mutants(root, names)
    order = np.random.default_rng(chosen.seed).permutation(len(everything))
    with Path(__file__).with_name("equivalent_mutants.csv").open() as file:
        declared = {(row["before"], row["after"]) for row in csv.DictReader(file)}
    seen = (n for n in order if changed(*everything[n][1:]) not in declared)
    drawn = list(itertools.islice(seen, chosen.mutants))
    print(f"{page}: {len(drawn)} of {len(everything)} mutants; {aside} of refusals set aside")
    found = []
    for number in sorted(drawn):
        path, tree, mutation = everything[number]
        original, text = tree.code, mutated(tree, mutation)
        (root / path).write_text(text)
        found.append(verdict(root, page, timeout))
        (root / path).write_text(original)
        lines = difflib.unified_diff(original.splitlines(), text.splitlines(), lineterm="", n=0)
        print(f"\n{path} {found[-1]}", *list(lines)[2:], sep="\n", flush=True)
    killed = sum(result.startswith("killed") for result in found)
    unclear = len(found) - killed - found.count("survived")
    score = 100 * killed / len(found)
    print(f"\n{page}: killed {killed} of {len(found)}, {score:.0f} %; without a verdict {unclear}")
    return int(score < WANTED or unclear > 0)


if __name__ == "__main__":
    sys.exit(main())
