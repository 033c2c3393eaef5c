"""The scoreboard: the page says what its record holds, and the record what an audit finds."""

import ast
import copy
import itertools
import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import scoreboard
import scored
import torch
import transformers
from bs4 import BeautifulSoup

pytestmark = pytest.mark.usefixtures("one_thread")

BOARD = json.loads(scoreboard.RECORD.read_text())
NOTES = json.loads(scored.NOTES.read_text())
# learned positions, a state, an encoder as a decoder; test_audit.py asks Llama, and GptOss' windows
THREE = "gpt2 qwen3_next bert".split()


def test_every_causal_type_is_judged_or_has_a_reason():
    types = BOARD["types"]
    assert types.keys() == scoreboard.CLASSES.keys()
    assert BOARD["transformers"] == transformers.__version__
    judged = [name for name, row in types.items() if "cells" in row]
    assert len(judged) >= 110
    assert all(len(types[name]["cells"]) == len(BOARD["ways"]) for name in judged)
    assert all(types[name]["reason"] for name in types.keys() - {*judged})
    assert scoreboard.RECORD.stat().st_size < 150_000


@pytest.mark.parametrize("name", THREE)
def test_three_types_are_as_recorded(name):
    assert scoreboard.differences(BOARD, name, scoreboard.judged(name)) == []


def test_a_changed_verdict_is_seen():
    now, board = scoreboard.named(BOARD, "gpt_oss"), copy.deepcopy(BOARD)
    board["types"]["gpt_oss"]["cells"][BOARD["ways"].index(f"{START}cache off")][0] *= 1.2
    (difference,) = scoreboard.differences(board, "gpt_oss", now)
    assert "recorded: [" in difference


# ---------------------------------------------------------------- the page

START = "packing: restarted positions, "
OFF, ON = ", cache off", ", cache on"
WAYS = {  # from the headings of a column to what may stand in the record
    "cache off": [f"{START}cache off", START[:-2]],
    "default call": [f"{START}the default call"],
    "mask of ones": [f"{START}mask of ones"],
    "4-D mask": ["packing: 4-D mask"],
    "cu_seq_lens": ["packing: cu_seq_lens"],
    "rows": ["batch: cache off", "batch"],
    "rows, cache": ["batch: cache on"],
    "other kernel": ["kernel: eager, not sdpa", "kernel: sdpa, not eager"],
    "bfloat16": ["dtype: bfloat16"],
    "float16": ["dtype: float16"],
    **{name: [name] for name in ("cache", "chunks", "causal", "repeat")},
}
for side in ("left", "right"):
    both, alone = (f"{side} padding: {given}" for given in ("mask and positions", "mask alone"))
    bare = f"{side} padding"
    WAYS[f"{side}, with positions"] = [both, both + OFF]
    WAYS[f"{side}, with positions, cache"] = [both + ON]
    WAYS[f"{side}, mask alone"] = [alone, alone + OFF, f"{bare}: cache off", bare]
    WAYS[f"{side}, mask alone, cache"] = [alone + ON, f"{bare}: cache on"]
WORDS = {"holds": "same", "refuses": "refuses", "not checked": "unchecked"}


def expected(name: str, heading: str) -> str:
    cells = scoreboard.named(BOARD, name)["cells"]
    found = [cells[way] for way in WAYS[heading] if way in cells]
    assert len(found) <= 1
    if not found or isinstance(found[0], str):
        return WORDS.get(found[0], "–") if found else "–"
    size, _, seen = found[0]
    return f"({size:.2g})" if seen is False else f"{size:.2g}"


def tables(text: str) -> list[list[list[str]]]:
    """The cells of each printed table."""
    found = BeautifulSoup(text, "html.parser").select(".printed-table table")
    return [[[one.text for one in row(("th", "td"))] for row in table("tr")] for table in found]


def wrong(printed: list[list[list[str]]]) -> list[str]:
    """Rows of the page that are not the record's."""
    judged = [name for name, row in BOARD["types"].items() if "cells" in row]
    found = []
    for (_, *heads), *rows in printed[1:]:
        found += [] if [row[0] for row in rows] == judged else ["other types"]
        for name, *cells in rows:
            if name in judged and cells != [expected(name, head) for head in heads]:
                found.append(f"{name}: {heads[0]}")
    return found


def test_the_built_page_says_what_the_record_holds(site):
    printed = tables((site / "book" / "scoreboard.html").read_text())
    assert wrong(printed) == []
    assert len(printed) == 1 + len(scored.TABLES)
    heads = [head for table in printed[1:] for head in table[0][1:]]
    assert heads == list(dict.fromkeys(heads))
    assert {*heads} == {*WAYS}
    unseen = {**scored.TABLES["cache"], **scored.TABLES["rows"]}  # there is nothing beside the text
    for (_, *counted), name in zip(printed[0][1:], heads, strict=False):
        cells = [expected(n, name) for n, row in BOARD["types"].items() if "cells" in row]
        sizes = [cell for cell in cells if re.search(r"\d|inf", cell)]
        plain = [cell for cell in sizes if "(" not in cell]
        same, changes, _, refuses, none = map(int, counted)
        assert [same, changes, refuses] == [cells.count("same"), len(sizes), cells.count("refuses")]
        assert none == cells.count("–") + cells.count("unchecked")
        assert int(counted[2]) == (0 if name in unseen else len(plain))
    row = next(row for row in printed[1] if row[0] == "gpt_oss")
    row[1] += "1"
    assert wrong(printed) == ["gpt_oss: cache off"]


def leaking() -> dict[str, list]:
    cells = {name: scoreboard.named(BOARD, name)["cells"] for name in BOARD["types"]}
    found = {name: row.get(f"{START}cache off") for name, row in cells.items()}
    return {name: cell for name, cell in found.items() if isinstance(cell, list) and cell[2]}


def test_what_leaks_and_what_could_not_be_judged_is_listed(site):
    text = (site / "book" / "scoreboard.html").read_text()
    shown = " ".join(BeautifulSoup(text, "html.parser").text.split())
    for name, (size, flips, _) in leaking().items():
        assert f" {name} {size:.2g} ({flips:.0%})" in shown
    assert len(re.findall(r"\(\d+%\)", shown)) == len(leaking())
    for row in BOARD["types"].values():
        assert row.get("reason", "") in shown
        for way, text in row.get("words", {}).items():
            assert (text in shown) is not way.startswith(("kernel", "dtype")), text
    assert BOARD["command"] in shown
    assert f"Made on {BOARD['date']}" in shown


def source(name: str) -> str:
    """The file of transformers in which a type is written."""
    module = transformers._class_to_module[scoreboard.CLASSES[name]]
    return Path(find_spec(f"transformers.{module}").origin).read_text()


def given_positions(text: str) -> bool:
    """Whether a function that makes a causal mask is given the positions, or may be."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    masks = [call for call in calls if "causal_mask" in getattr(call.func, "id", "")]
    named = any(word.arg == "position_ids" for call in masks for word in call.keywords)
    return named or '"position_ids": ' in text


def test_each_leak_has_one_cause_which_its_file_shows():
    caused = [name for note in NOTES["leaks"] for name in note["types"]]
    assert sorted(caused) == sorted(leaking())
    state, mask, block = NOTES["leaks"]
    kept = re.compile(r"nn\.Conv1d\(|LightningAttention")
    assert [name for name in state["types"] if not kept.search(source(name))] == []
    assert [name for name in mask["types"] if given_positions(source(name))] == []
    assert all("compress_rate" in source(name) for name in block["types"])
    assert given_positions(source("llama"))
    assert given_positions(source("qwen3_next"))
    assert not kept.search(source("llama"))


def test_a_note_explains_something_that_changes():
    for note in NOTES["cache"]:
        for name in note["types"]:
            cells = scoreboard.named(BOARD, name)["cells"]
            kinds = ("cache", "chunks", "causal")
            assert any(isinstance(cells.get(kind), list) for kind in kinds), name


def pieces(model, tokens, *lengths, **given):
    """Logits of pieces with a cache, in standard deviations beside the whole text's."""
    outs, past = [], None
    with torch.no_grad():
        whole = model(tokens, use_cache=False).logits
        for at, length in zip([0, *itertools.accumulate(lengths)], lengths, strict=False):
            own = {name: x[:, at : at + length] for name, x in given.items()}
            out = model(tokens[:, at : at + length], use_cache=True, past_key_values=past, **own)
            past = out.past_key_values
            outs.append(out.logits)
    return ((torch.cat(outs, dim=1) - whole).abs().amax(-1)[0] / whole.std()).tolist()


def test_what_is_said_of_cached_pieces():
    """Bamba needs positions; Jamba takes a state up by single tokens; Moshi's window closes."""
    tokens, at = torch.arange(4, 13)[None], torch.arange(9)[None]
    bamba, jamba, moshi = map(scoreboard.built, ("bamba", "jamba", "moshi"))
    assert pieces(bamba, tokens, 4, 5)[4] > 0.01
    assert max(pieces(bamba, tokens, 4, 5, position_ids=at)) < 1e-5
    assert pieces(jamba, tokens, 4, 5)[4] > 0.01
    assert max(pieces(jamba, tokens, 4, 1, 1, 1, 1, 1)) < 1e-5
    assert max(pieces(moshi, tokens, 8, 1)[:8]) < 1e-5 < pieces(moshi, tokens, 8, 1)[8]
