"""Recorded runs: what ``book/_tools/record.py`` stores is what today's cells find."""

import json
import re
import subprocess

import nbformat
import pages
import pytest
import record
import torch
from safetensors.torch import load_file, save_file
from tables import for_each

from attn_lib import files, records

EXPERIMENT = """
try:
    import time
except ModuleNotFoundError:  # as the first cell of a page has it
    %pip install -q time
import torch
from torch import nn
from attn_lib.training import train

def pace():  # another one each time
    train(nn.Linear(1, 1), lambda model, generator: model.weight.sum(), steps=3, lr=0.1)
    return time.perf_counter() % 1 / 100 + 0.01

def loss(model, generator):
    x = torch.randn(32, 4, generator=generator)
    return nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], (x[:, 0] > 0).float())

def accuracy(model):
    x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    return ((model(x)[:, 0] > 0) == (x[:, 0] > 0)).double().mean()

def by_hand(seed):
    torch.manual_seed(seed)
    model, losses = nn.Linear(4, 1), []
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(25):
        losses.append(loss(model, torch.Generator().manual_seed(step)))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    return torch.stack(losses).detach()

def run(seed):
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(seed)
    model, steps = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)), int(2 / pace())
    train(model, loss, steps=steps, lr=lambda n: 0.1 * (n + 1) / steps, seed=seed)
    found = {"error": seed / 3, "pair": torch.tensor([seed, 0.5]), "parts": {"a": (1, seed)}}
    found |= {"accuracy": accuracy(model), "curve": by_hand(seed), "steps": steps}
    return {**found, "weights": {"w": torch.arange(6.0).view(2, 3).T + seed}}
"""
RECORDED = [path for path in pages.NOTEBOOKS if "record" in pages.read(path).metadata]


def write_page(path, source=EXPERIMENT, **plan):
    plan = {"seeds": [5, 2], "clocks": ["pace"], "measures": ["accuracy"], **plan}
    page = nbformat.v4.new_notebook(metadata={"record": plan})
    page.cells = [
        nbformat.v4.new_code_cell("raise SystemExit('no part of the experiment')"),
        nbformat.v4.new_code_cell(source, metadata={"tags": ["experiment"]}),
    ]
    nbformat.write(page, path)


def runs(path, *each):
    """As the command does it, but in this process."""
    return [record._run(path, *one) for one in zip(*each, strict=True)]


@pytest.fixture
def recorded_page(tmp_path, monkeypatch):
    """A page with an experiment, whose record stands beside other data, where it is looked for."""
    path, data = tmp_path / "99_test.ipynb", tmp_path / "data"
    for module in (record, files):
        monkeypatch.setattr(module, "DATA", data)
    monkeypatch.setattr(record, "_runs", runs)
    data.mkdir()
    (data / "other.csv").write_bytes(b"a,b\n")
    record.checksums(data)  # an older list, which does not list itself
    write_page(path)
    written = record.write(path)
    assert written == [data / f"99_test.{kind}" for kind in ("json", "safetensors")]
    return path


def stored() -> dict:
    return json.loads((record.DATA / "99_test.json").read_text())


def test_a_recorded_page_is_read_back_and_every_file_is_listed(recorded_page):
    """Numbers of every seed, the first seed's weights, and hashes as sha256sum checks them."""
    found = records.record("99_test")
    assert found.pop("torch") == torch.__version__.split("+")[0]
    assert all(50 < steps < 300 for steps in found.pop("steps"))
    assert [len(losses) for losses in found.pop("curve")] == [25, 25]
    assert all(0.8 < accuracy <= 1.0 for accuracy in found.pop("accuracy"))
    pairs, parts = [[5.0, 0.5], [2.0, 0.5]], [{"a": [1, 5]}, {"a": [1, 2]}]
    errors = [1.66667, 0.666667]
    assert found == {"seeds": [5, 2], "error": errors, "pair": pairs, "parts": parts}
    weights = records.shipped_tensors("99_test")
    assert weights.keys() == {"w"}
    assert torch.equal(weights["w"], torch.arange(6.0).view(2, 3).T + 5)
    listed = (record.DATA / "SHA256SUMS").read_text()
    names = [line[66:] for line in listed.splitlines()]
    assert names == ["99_test.json", "99_test.safetensors", "other.csv"]
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    subprocess.run(check, cwd=record.DATA, check=True, capture_output=True)


@for_each((0.5, torch.float16), (0.1, torch.float32))  # float16 has no 0.1
def test_weights_are_stored_as_float16_where_it_holds_them(value, kind, tmp_path, monkeypatch):
    """And are read as they were, into float32; whole numbers stay as they are."""
    monkeypatch.setattr(files, "DATA", tmp_path)
    weights = {"w": torch.tensor([[value, 3.0], [value, 3.0]]).T, "steps": torch.tensor(2049)}
    save_file(record.compact(weights), tmp_path / "99_test.safetensors")
    record.checksums(tmp_path)
    kept = load_file(tmp_path / "99_test.safetensors")
    again = records.shipped_tensors("99_test")
    assert [kept["w"].dtype, kept["steps"].dtype] == [kind, torch.int64]
    assert all(torch.equal(again[name], weights[name]) for name in weights)
    assert all(again[name].dtype == weights[name].dtype for name in weights)


def test_a_page_that_cannot_be_recorded_is_named(tmp_path):
    page = tmp_path / "99_test.ipynb"
    write_page(page, seeds=[])
    with pytest.raises(ValueError, match=r"99_test\.ipynb needs cells tagged `experiment`"):
        record.write(page)


# ---------------------------------------------------------------- done again


def test_what_was_recorded_is_found_again(recorded_page):
    """By another clock, in whole and in its first steps; the trial of the clock is no model."""
    assert [list(map(len, losses)) for losses in stored()["first losses"]] == [[20, 20]] * 2
    assert stored()["clocks"][0] != stored()["clocks"][1]
    before = torch.get_default_dtype(), torch.get_num_threads(), torch.get_rng_state()
    assert record.differences(recorded_page, first=record.STEPS) == []
    assert record.main(["--check", str(recorded_page)]) == 0
    after = torch.get_default_dtype(), torch.get_num_threads(), torch.get_rng_state()
    assert after[:2] == before[:2]
    assert torch.equal(after[2], before[2])


@for_each(
    ("0.1 * (n + 1)", "0.2 * (n + 1)", "seed 2, training 1: loss .* at step [1-9]"),
    ('"curve": by_hand(seed), ', "", "seed 2: 1 models are trained, 2 recorded"),
    ids=["another rate", "a model less"],
)
def test_a_changed_cell_is_seen_in_its_first_steps(old, new, said, recorded_page):
    assert EXPERIMENT.count(old) == 1
    write_page(recorded_page, EXPERIMENT.replace(old, new))
    (difference,) = record.differences(recorded_page, first=record.STEPS)
    assert re.match(said, difference), difference


@for_each(
    ({"seeds": [5, 3]}, "the page has seeds [5, 2], its record [5, 3]"),
    ({"accuracy": [0.5, 0.5]}, "seed 5, accuracy: "),
)
def test_a_changed_record_is_seen(change, said, recorded_page, capsys):
    (record.DATA / "99_test.json").write_text(json.dumps(stored() | change))
    assert record.main(["--check", str(recorded_page)]) == 1
    assert said in capsys.readouterr().out


@for_each(
    ([[0.2, 0.6, 0.9]], []),
    ([[0.1, 0.3, 0.9]], ["clock 2: 0.9, recorded is 0.3, and all are 1 times"]),
    ([[0.1, 0.3, 0.3], [9.0, 9.0, 0.1]], ["clock 2: 0.1, recorded is 0.3, and all are 1 times"]),
    ids=["all slower", "one slower", "the least of all seeds"],
)
def test_a_clock_that_stands_out_is_seen(found, said):
    """Of two recorded seeds; a machine that is slower in everything differs in nothing."""
    recorded = [[[0.1], [0.3, 0.4]], [[0.2], [0.5, 0.3]]]
    lines = record._out_of_step(recorded, found)
    assert [line.removesuffix(" as long") for line in lines] == said


# ---------------------------------------------------------------- the book's records


# where nothing is trained a seed takes long: what the runs of such a page loop over
UNTRAINED = {"09_language_model": "errors", "smollm2": "ROUNDINGS"}


def of(stem):
    return pages.ROOT / "book" / f"{stem}.ipynb"


@for_each(*sorted({path.stem for path in RECORDED} - set(UNTRAINED)))
def test_todays_cells_start_as_recorded(stem):
    """Of the last seed, few steps; a week has time for all of all seeds."""
    assert record.differences(of(stem), first=5) == []


def within(recorded, found):
    """The part of a record that has the names of what is found."""
    if not isinstance(found, dict):
        return recorded
    return {name: within(recorded[name], found[name]) for name in found}


@for_each(*UNTRAINED)
def test_todays_cells_find_a_part_of_what_is_recorded(stem):
    """Of the last seed, with every twelfth of them; a week has time for all."""
    kept = {name: runs[-1] for name, runs in records.record(stem).items() if name != "torch"}
    with record.experiment(of(stem)) as page, torch.no_grad():
        ways = page[UNTRAINED[stem]]
        for name in {*ways} - {*[*ways][::12]}:
            del ways[name]
        found = {"seeds": kept["seeds"], **page["run"](kept["seeds"])}
    assert found.keys() == kept.keys()
    assert record._unlike(within(kept, found), record._plain(found), "results") == []


def test_accuracies_are_those_of_the_shipped_weights():
    with record.experiment(of("14_encoder_decoder")) as page:
        model = page["new_model"](0)
        model.load_state_dict(records.shipped_tensors("14_encoder_decoder"))
        right = page["right_by_readings"](model.eval())
    stored = records.record("14_encoder_decoder")["readings"][0]
    assert right["one reading"] == pytest.approx(stored["one reading"], abs=0.002)
    # its page prints what its weights find today, or nbval is red
    long = records.record("15_vision")["large"][0]
    text = "\n".join(map(pages.printed, pages.code_cells(pages.read(of("15_vision")))))
    found = dict(re.findall(r"(?m)^(ViT-7|wide CNN) +([\d.]+)  0\.\d$", text))
    assert found == {name: f"{100 * long[name]['accuracy']:.1f}" for name in ("ViT-7", "wide CNN")}


def test_paces_grow_with_the_work():
    """Of two models of a kind, the one that does more work takes longer for a step."""
    paces = json.loads((record.DATA / "15_vision.json").read_text())["paces"][0]
    for slow, quick in (("ViT-7", "ViT-14"), ("wide CNN", "CNN"), ("MLP", "logistic")):
        assert 1 < paces[slow] / paces[quick] < (25 if quick == "logistic" else 5), slow


def test_seeds_agree():
    """No accuracy of one seed is far from another's."""
    log = records.record("15_vision")
    last = [{name: runs[-1] for name, runs in seed.items()} for seed in log["race"]]
    rows = [changed | race for changed, race in zip(log["changed"], last, strict=True)]
    for name in rows[0]:
        found = [row[name] for row in rows]
        assert max(found) - min(found) < 0.03, name


def test_the_weathers_gaps_are_those_of_its_errors():
    """With four heads less without, in each part of the years, of each seed."""
    log = records.record("17_weather")
    kinds = [[seed["0.01"] for seed in log[kind]] for kind in ("four heads", "no heads")]
    four, none = (torch.tensor(errors).mean(dim=2) for errors in kinds)
    assert torch.allclose(torch.tensor(log["gap"])[..., 0], four - none, atol=1e-5)
