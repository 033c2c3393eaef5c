"""Repeat a page's training for several seeds: ``python book/_tools/record.py book/NN_name.ipynb``.

The cells tagged `experiment` are run in order and define ``run(seed)``, which returns a dict of
numbers; the seeds stand in the notebook's metadata, ``{"record": {"seeds": [0, 1, 2]}}``. The page
runs the very same cells, so the recorded runs and the live one are one program. Each number goes
to ``attn_lib/data/NN_name.json`` with six significant digits, as a list with one entry a seed.
Where the dict has ``"weights"``, name to tensor, those of the first seed go to
``attn_lib/data/NN_name.safetensors``. ``SHA256SUMS`` beside them follows.
"""

import asyncio
import hashlib
import json
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
from nbclient import NotebookClient

DATA = Path(__file__).parents[2] / "attn_lib" / "data"
CALL = """
import json as _json, torch as _torch
def _plain(value):
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return float(f"{value:.6g}") if isinstance(value, float) else value
_found = run(SEED)
_weights = _found.pop("weights", None)
if _weights is not None and FILE:
    from safetensors.torch import save_file as _save
    _save({name: value.contiguous() for name, value in _weights.items()}, FILE)
print(_json.dumps([_torch.__version__.split("+")[0], _plain(_found)]))
"""


def record(path: Path) -> tuple[dict, bytes]:
    """Run ``run(seed)`` of a page for each of its seeds, as many at once as there are processors.

    Returns:
        Lists by seed, with the torch version; and the file of the first seed's weights, empty
        where the page ships none.
    """
    page = nbformat.read(path, as_version=4)
    seeds = page.metadata.get("record", {}).get("seeds")
    sources = [c.source for c in page.cells if "experiment" in c.metadata.get("tags", [])]
    if not seeds or not sources:
        raise ValueError(f'{path} needs cells tagged `experiment` and metadata "record" with seeds')
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(os.cpu_count()) as pool:
        weights = Path(scratch) / "weights"
        files = [str(weights), *[""] * (len(seeds) - 1)]
        runs = list(pool.map(lambda *call: _run(path, page, sources, *call), seeds, files))
        found = weights.read_bytes() if weights.is_file() else b""
    results = {name: [run[name] for _, run in runs] for name in runs[0][1]}
    return {"torch": runs[0][0], "seeds": seeds, **results}, found


def _run(path: Path, page, sources: list[str], seed: int, file: str) -> list:
    """The torch version, and what ``run(seed)`` found, from a kernel of its own."""
    call = CALL.replace("SEED", str(seed)).replace("FILE", repr(file))
    cells = [nbformat.v4.new_code_cell(source) for source in [*sources, call]]
    notebook = nbformat.v4.new_notebook(
        cells=cells, metadata={"kernelspec": page.metadata.kernelspec}
    )
    folder = {"metadata": {"path": str(path.parent)}}
    # its own event loop, closed at the end: `execute` would leave one behind in each thread
    asyncio.run(NotebookClient(notebook, timeout=None, resources=folder).async_execute())
    return json.loads("".join(output.get("text", "") for output in cells[-1].outputs))


def write(path: Path) -> list[Path]:
    """Store what :func:`record` returns beside the library's other data, one name a line."""
    results, weights = record(path)
    lines = (f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in results.items())
    content = {".json": ("{\n" + ",\n".join(lines) + "\n}\n").encode()}
    if weights:
        content[".safetensors"] = weights
    targets = [DATA / f"{path.stem}{ending}" for ending in content]
    for target, value in zip(targets, content.values(), strict=True):
        target.write_bytes(value)
    checksums(DATA)
    return targets


def checksums(data: Path) -> None:
    """Write down the sha256 of every data file, as ``sha256sum *`` would."""
    files = sorted(p for p in data.iterdir() if p.name != "SHA256SUMS")
    lines = (f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}\n" for p in files)
    (data / "SHA256SUMS").write_text("".join(lines))


if __name__ == "__main__":
    os.environ["ATTN_LIB_PROGRESS"] = "0"
    for name in sys.argv[1:]:
        print(*write(Path(name)), sep="\n")
