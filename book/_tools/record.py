"""Repeat a page's training for several seeds: ``python book/_tools/record.py book/NN_name.ipynb``.

The cells tagged `experiment` are run in order and define ``run(seed)``, which returns a dict of
numbers; the seeds stand in the notebook's metadata, ``{"record": {"seeds": [0, 1, 2]}}``. The page
runs the very same cells, so the recorded runs and the live one are one program. Each number goes
to ``attn_lib/data/NN_name.json`` with six significant digits, as a list with one entry a seed.
Where the dict has ``"weights"``, name to tensor, those of the first seed go to
``attn_lib/data/NN_name.safetensors``, in half as many bytes where float16 holds each of them
exactly: a page that rounds its model so before it measures anything records what it ships.
``SHA256SUMS`` beside them follows.

Each record keeps the first 20 losses of every model that was trained, in order. ``--check`` before
pages does all of it again and says where today's cells or today's library find something else; a
test does only those steps again, of the last seed; where nothing is trained, it does the whole of
that seed again. For that the metadata names functions:
``"clocks"`` answer as the machine has it, so that a repetition is given the recorded answers, and
``--check`` asks whether one of them stands out among all by more than a factor of two;
``"measures"`` take long on a trained model, and the test leaves them out; what runs ``"once"``
needs more than the repository holds, and no repetition calls it.
"""

import functools
import hashlib
import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from pathlib import Path
from types import FunctionType
from typing import Any
from unittest.mock import patch

import matplotlib as mpl
import nbformat
import torch
from safetensors.torch import save_file
from torch import nn

from attn_lib import training

DATA = Path(__file__).parents[2] / "attn_lib" / "data"
STEPS = 20  # of each training, whose losses are kept
LOSS, NUMBER = 0.01, 0.03  # what a loss may differ by, relatively; and any other result
CLOCK = 2  # the factor by which one of many clocks may differ, where all are faster or slower


class _Enough(Exception):
    """The first steps of a training are done, and no more are wanted."""


class _Run:
    """Hears the losses of every training of a run, and what its clocks say."""

    def __init__(self, clocks: list | None, first: int | None) -> None:
        self.losses: list[list[float]] = []
        self.clocks: list[float] = []
        self.given = None if clocks is None else iter(clocks)
        self.first, self.aside = first, False

    def listening(self) -> ExitStack:
        begin, backward = torch.optim.Optimizer.__init__, torch.Tensor.backward

        def __init__(optimizer, *args, **kwargs):
            self.losses += [] if self.aside else [[]]
            begin(optimizer, *args, **kwargs)

        def note(loss, *args, **kwargs):
            if self.losses and not self.aside:
                if len(self.losses[-1]) == self.first:
                    raise _Enough
                self.losses[-1] += [loss.item()] if len(self.losses[-1]) < STEPS else []
            backward(loss, *args, **kwargs)

        stack = ExitStack()
        stack.enter_context(patch.object(torch.optim.Optimizer, "__init__", __init__))
        stack.enter_context(patch.object(torch.Tensor, "backward", note))
        stack.enter_context(patch.object(training, "train", self.ended(training.train)))
        return stack

    def ended(self, function: Callable) -> Callable:
        """The innermost function of the page, or ``train``, in which a training is ended early."""

        @functools.wraps(function)
        def call(*args, **kwargs):
            try:
                return function(*args, **kwargs)
            except _Enough:
                losses = torch.tensor(self.losses[-1])  # as long as asked for
                missing = kwargs.get("steps", len(losses)) - len(losses)
                return nn.functional.pad(losses, (0, missing), value=math.nan)

        return call

    def apart(self, kind: str, function: Callable) -> Callable:
        """A function of which no repetition hears the same, or not in time."""

        def call(*args, **kwargs):
            again = self.given is not None
            if (kind == "once" and again) or (kind == "measures" and self.first):
                return None
            before, self.aside = self.aside, True  # what is trained in here is no recorded model
            recorded = next(self.given) if kind == "clocks" and again else None
            given = recorded is not None
            answer = recorded if given and self.first else function(*args, **kwargs)
            self.aside = before
            if kind == "clocks":
                answer = _plain(answer)
                self.clocks.append(answer)
            return recorded if given else answer

        return call


def plan(path: Path) -> tuple[dict[str, list], list[str]]:
    """What a page's metadata says about its record, and the cells of its experiment."""
    page = nbformat.read(path, as_version=4)
    settings = page.metadata.get("record", {})
    cells = (c.source for c in page.cells if "experiment" in c.metadata.get("tags", []))
    sources = [re.sub(r"(?m)^( *)%.*", r"\1pass", cell) for cell in cells]  # as in the set-up
    if not settings.get("seeds") or not sources:
        raise ValueError(f'{path} needs cells tagged `experiment` and metadata "record" with seeds')
    return settings, sources


@contextmanager
def experiment(path: Path) -> Iterator[dict[str, Any]]:
    """The names that a page's experiment defines; what it sets for itself is set back."""
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    gradients = torch.is_grad_enabled()
    quiet, space = {"ATTN_LIB_PROGRESS": "0"}, {"__name__": "__main__"}
    try:
        with torch.random.fork_rng(devices=[]), mpl.rc_context(), patch.dict(os.environ, quiet):
            for source in plan(path)[1]:
                exec(compile(source, path.name, "exec"), space)  # noqa: S102 - the page's own
            yield space
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)
        torch.set_grad_enabled(gradients)
        torch.set_printoptions(profile="default")


def repeat(path: Path, seed: int, *, clocks: list | None = None, first: int | None = None) -> dict:
    """What ``run(seed)`` of a page finds, with ``"first losses"`` and ``"clocks"``.

    With ``clocks``, what the page's clocks said before is given back; with ``first``, every
    training ends after so many steps, and the measures are left out.
    """
    settings, run = plan(path)[0], _Run(clocks, first)
    with run.listening(), experiment(path) as space:
        for name, value in space.items():
            if first and isinstance(value, FunctionType) and value.__globals__ is space:
                space[name] = run.ended(value)
        for kind in ("clocks", "measures", "once"):
            space |= {name: run.apart(kind, space[name]) for name in settings.get(kind, ())}
        found = space["run"](seed)
    return {"first losses": run.losses, "clocks": run.clocks, **found}


def _plain(value: Any) -> Any:
    """With six significant digits, as JSON holds it."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _run(path: Path, seed: int, file: Path | None, clocks: list | None = None) -> dict:
    found = repeat(path, seed, clocks=clocks)
    weights = found.pop("weights", None)
    if weights and file:
        save_file(compact(weights), file)
    return _plain(found)


def compact(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights as they are stored: float16 where it holds every one of them exactly."""
    half = {n: w.half() if w.is_floating_point() else w for n, w in weights.items()}
    exact = all(torch.equal(half[name].to(value.dtype), value) for name, value in weights.items())
    return {name: value.contiguous() for name, value in (half if exact else weights).items()}


def _runs(path: Path, seeds: list[int], *rest: list) -> list[dict]:
    """Of each seed, in a process of its own, as many at once as there are processors."""
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        return list(pool.map(_run, [path] * len(seeds), seeds, *rest))


def record(path: Path) -> tuple[dict, bytes]:
    """Run ``run(seed)`` of a page for each of its seeds.

    Returns:
        Lists by seed, with the torch version; and the file of the first seed's weights, empty
        where the page ships none.
    """
    seeds = plan(path)[0]["seeds"]
    with tempfile.TemporaryDirectory() as scratch:
        weights = Path(scratch) / "weights"
        runs = _runs(path, seeds, [weights, *[None] * (len(seeds) - 1)])
        found = weights.read_bytes() if weights.is_file() else b""
    results = {name: [run[name] for run in runs] for name in runs[0]}
    return {"torch": torch.__version__.split("+")[0], "seeds": seeds, **results}, found


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


def differences(path: Path, *, first: int | None = None) -> list[str]:
    """Where a record is not what today's cells and library find: sentences."""
    stored, seeds = json.loads((DATA / f"{path.stem}.json").read_text()), plan(path)[0]["seeds"]
    if seeds != stored["seeds"]:
        return [f"the page has seeds {seeds}, its record {stored['seeds']}"]
    if first:
        runs = [repeat(path, seeds[-1], clocks=stored["clocks"][-1], first=first)]
        stored, seeds = {name: value[-1:] for name, value in stored.items()}, seeds[-1:]
    else:
        runs = _runs(path, seeds, [None] * len(seeds), stored["clocks"])
    found = []
    for i, (seed, run) in enumerate(zip(seeds, runs, strict=True)):
        trained = [losses[:first] for losses in stored["first losses"][i]]
        again = run["first losses"]
        if list(map(len, trained)) != list(map(len, again)):
            found.append(f"seed {seed}: {len(again)} models are trained, {len(trained)} recorded")
        for model, losses in enumerate(zip(trained, again, strict=False), start=1):
            for step, (old, new) in enumerate(zip(*losses, strict=False)):
                if not math.isclose(old, new, rel_tol=LOSS):
                    difference = f"loss {new:.4g} at step {step}, recorded is {old:.4g}"
                    found.append(f"seed {seed}, training {model}: {difference}")
                    break
        if not first or not again:
            aside = ("torch", "seeds", "first losses", "clocks")
            old = {name: stored[name][i] for name in stored if name not in aside}
            new = {name: value for name, value in run.items() if name not in aside}
            found += [f"seed {seed}, {difference}" for difference in _unlike(old, new, "results")]
    return found if first else found + _out_of_step(stored["clocks"], [r["clocks"] for r in runs])


def _out_of_step(old: list, new: list) -> list[str]:
    """Clocks, the least of all seeds each, that today's machine has not as it has the others."""
    least = [torch.tensor([_numbers(seed) for seed in clocks]).amin(dim=0) for clocks in (old, new)]
    if not least[0].numel():
        return []
    both = (least[0] > 0) & (least[1] > 0)
    pace = (least[1] / least[0])[both].median() if both.any() else 1.0
    apart = (least[1] / (least[0] * pace)).log().abs() > math.log(CLOCK)
    wrong = torch.where(both, apart, least[0] != least[1])
    return [
        f"clock {i}: {new:.3g}, recorded is {old:.3g}, and all are {pace:.2g} times as long"
        for i, (old, new) in enumerate(zip(*least, strict=True))
        if wrong[i]
    ]


def _numbers(value: Any) -> list[float]:
    """All of them, one after the other."""
    return [n for part in value for n in _numbers(part)] if isinstance(value, list) else [value]


def _unlike(old: Any, new: Any, name: str) -> list[str]:
    """Numbers that are not near; curves are left to their first losses, as they may be chaotic."""
    curve = isinstance(old, list) and len(old) > STEPS and isinstance(old[0], float)
    if new is None or curve:
        return []
    if isinstance(old, dict):
        if old.keys() != new.keys():
            return [f"{name}: {sorted(new)} instead of {sorted(old)}"]
        return [difference for part in old for difference in _unlike(old[part], new[part], part)]
    if isinstance(old, list):
        pairs = zip(old, new, strict=True)
        return [difference for pair in pairs for difference in _unlike(*pair, name)]
    return [] if old == new or abs(old - new) <= NUMBER else [f"{name}: {new}, recorded is {old}"]


def main(arguments: list[str]) -> int:
    """The exit status: 1 where a record differs from what is found today."""
    check, differing = arguments[0] == "--check", False
    for path in map(Path, arguments[check:]):
        lines = differences(path) if check else write(path)
        print(path, *(lines or ["as recorded"]), sep="\n  ", flush=True)
        differing |= check and bool(lines)
    return int(differing)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
