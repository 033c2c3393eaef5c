"""The page on circuits: more draws than it has time for."""

import functools
import re
from itertools import pairwise

import pages
import pytest
import torch
from tables import for_each

from attn_lib import records

PAGE = pages.BOOK / "10_circuit.ipynb"
SMOLLM2 = tuple(f"ch10-code-{n}" for n in (33, 35, 69, 37))
KEPT = records.record("10_circuit")


@functools.cache
def run(*cells: str) -> dict:
    """What the set-up and these cells of the page define."""
    names = {}
    for cell in pages.code_cells(pages.read(PAGE)):
        # how tensors are printed is the page's own affair
        source = re.sub(r"(?m)^( *)(?:%|torch.set_printoptions).*", r"\1pass", cell.source)
        if cell.id in ("ch10-code-02", *cells):
            exec(compile(source, cell.id, "exec"), names)  # noqa: S102 - the page's own
    return names


def test_the_rivals_are_counts_made_by_hand():
    """The page's, by masks, against plain loops, at each word of a text; and one that forgets."""
    page = run("ch10-code-07", "ch10-code-09")
    exam, counted, usual = page["exam"], page["counted"], page["usual"]
    for text in exam[:3]:
        unigram = counted(text[None], usual)[0]
        bigram = counted(text[None], page["followed"](text[None]))[0]
        for t in range(len(text)):
            past = text[: t + 1].tolist()
            after = [b for a, b in pairwise(past) if a == past[-1]]
            for found, seen in ((unigram, past), (bigram, after)):
                expected = [(1 + seen.count(word)) / (3 + len(seen)) for word in range(3)]
                assert found[t].tolist() == pytest.approx(expected)
    # no pairs, and yet a little below the unigram: so no model near it is said to use pairs
    place = torch.arange(64)
    fading = usual * 0.98 ** (place[:, None] - place).double()
    loss = page["nats"](counted(exam, fading), exam)
    assert page["rivals"]["unigram"] - 0.01 < loss < page["rivals"]["unigram"]
    assert min(found["loss"][-1] for found in KEPT["one layer, four heads"]) > loss - 0.005


def test_the_maps_of_the_tiny_model_are_what_its_matrices_give():
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        page = run("ch10-code-07", "ch10-code-09", "ch10-code-11", "ch10-code-22")
        model, texts = page["Tiny"](2), page["exam"][:2]
        x = model.words(texts) + model.positions.weight
        scores = model.layers[0].q_proj(x) @ model.layers[0].k_proj(x).mT / 4
        expected = scores.masked_fill(~page["usual"], -torch.inf).softmax(dim=-1)
        assert torch.allclose(page["maps_of"](model, texts)[0], expected)


@pytest.mark.weekly
def test_keys_put_back_in_other_texts():
    """About half of the loss comes back with the keys after a changed token, and with no other."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        page = dict(run(*SMOLLM2))
        for cell in pages.code_cells(pages.read(PAGE)):
            if cell.id in ("ch10-code-39", "ch10-code-40"):
                source = cell.source.replace("twice(seed=3", "twice(seed=7")
                source = source.replace("draw(5,", "draw(9,")
                exec(compile(source, cell.id, "exec"), page)  # noqa: S102 - the page's own
    back = page["back"]  # of the controls: the cell has taken the other one out
    put_back = page["patched"]("k_proj", page["groups"], page["at_b"])
    assert 0.4 < (page["lost"][2:].mean() - put_back) / page["cost"] < 0.65
    assert len(back) == 3
    assert max(back.values()) < 0.06


@pytest.mark.weekly
@for_each(1, 2)
def test_the_cut_of_other_seeds(seed):
    """The one cell matters there, too, and two other words do as little as on the page."""
    cells = [f"ch10-code-{n}" for n in ("07", "09", "11", "12", "22")]
    with torch.random.fork_rng(devices=[]):
        page = run(*cells)
        model = page["train"](2, seed)[1000]
    loss, place = page["loss_of"], torch.arange(64)
    usual = place <= place[:, None]
    without = [usual & (place != place[:, None] - d) for d in range(4)]
    kept = loss(model)
    assert loss(model, masks=[without[1], usual]) > page["rivals"]["unigram"]
    for d in (0, 2, 3):
        assert abs(loss(model, masks=[without[d], usual]) - kept) < 0.01
    assert abs(loss(model, masks=[usual, without[1]]) - kept) < 0.01
    first, second = page["maps_of"](model, page["exam"])
    mass, late = page["mass"], slice(48, 64)
    assert mass(first, page["before"], page["EARLY"]) > 0.9
    assert mass(first, page["before"], late) < 0.5
    assert mass(second, page["followed"](page["exam"]), page["LATE"]) > 0.8
