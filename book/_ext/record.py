"""Repeat a page's training for several seeds: ``python book/_ext/record.py book/NN_name.ipynb``.

The cells tagged `experiment` are run in order and define ``run(seed)``, which returns a dict of
numbers; the seeds stand in the notebook's metadata, ``{"record": {"seeds": [0, 1, 2]}}``. The page
runs the very same cells, so the recorded runs and the live one are one program. Each number goes
to ``attn_lib/data/NN_name.json`` with six significant digits, as a list with one entry a seed.
"""

import json
import os
import sys
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
print(_json.dumps([_torch.__version__.split("+")[0], _plain(run(SEED))]))
"""


def record(path: Path) -> dict:
    """Run ``run(seed)`` of a page for each of its seeds; lists by seed, and the torch version."""
    page = nbformat.read(path, as_version=4)
    seeds = page.metadata.get("record", {}).get("seeds")
    sources = [c.source for c in page.cells if "experiment" in c.metadata.get("tags", [])]
    if not seeds or not sources:
        raise ValueError(f'{path} needs cells tagged `experiment` and metadata "record" with seeds')
    sources += [CALL.replace("SEED", str(seed)) for seed in seeds]
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    notebook = nbformat.v4.new_notebook(
        cells=cells, metadata={"kernelspec": page.metadata.kernelspec}
    )
    folder = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=None, resources=folder).execute()
    printed = ["".join(o.get("text", "") for o in c.outputs) for c in cells[-len(seeds) :]]
    runs = [json.loads(text) for text in printed]
    results = {name: [run[name] for _, run in runs] for name in runs[0][1]}
    return {"torch": runs[0][0], "seeds": seeds, **results}


def write(path: Path) -> Path:
    """Store what :func:`record` returns beside the library's other data, one name a line."""
    lines = (f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in record(path).items())
    target = DATA / f"{path.stem}.json"
    target.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return target


if __name__ == "__main__":
    os.environ["ATTN_LIB_PROGRESS"] = "0"
    for name in sys.argv[1:]:
        print(write(Path(name)))
