"""Planted mistakes are named, each by its name alone; right attentions are passed in silence.

By default one form and one size of each mistake; ``--everything`` runs all.
"""

from functools import partial
from pathlib import Path

import planted
import pytest
from planted import RIGHT, given
from torch import nn

from attn_check import diagnose, diagnose_rope
from attn_check.mistakes import MISTAKES

pytestmark = pytest.mark.usefixtures("one_thread")

BY_MISTAKE: dict[str, list[planted.Plant]] = {}
for _plant in planted.PLANTS:
    BY_MISTAKE.setdefault(_plant.mistake, []).append(_plant)


def chosen(everything: bool):
    """All plants and sizes, or one of each mistake, the forms in turn."""
    for i, plants in enumerate(BY_MISTAKE.values()):
        some = plants if everything else [plants[i % len(plants)]]
        for plant in some:
            for size in (0, 1) if everything else (i % 2,):
                yield pytest.param(plant, size, id=f"{plant.name}-{size}")


def pytest_generate_tests(metafunc):
    if "plant" in metafunc.fixturenames:
        everything = metafunc.config.getoption("--everything")
        metafunc.parametrize(("plant", "size"), list(chosen(everything)))


def report_of(fn, intent, rope=False):
    return (diagnose_rope if rope else diagnose)(fn, **given(intent, fn))


def test_a_planted_mistake_is_named_alone(plant, size):
    report = report_of(plant.build(size), plant.intent, plant.rope)
    named = [(failure.mistake, *failure.alike) for failure in report.failures]
    if plant.note:
        assert named == [], report
        named = [(note.mistake,) for note in report.notes if note.mistake == plant.mistake]
    assert [plant.mistake in names for names in named] == [True], report


def rights():
    """Right ones, and what plants would be without their mistakes, with one shape of masks."""
    known = set()
    for name, (make, intent) in RIGHT.items():
        yield pytest.param(make, intent, False, None, id=name)
    for plant in planted.PLANTS:
        fn, note = plant.right(0), plant.mistake if plant.note else None
        intent = {name: x for name, x in plant.intent.items() if name != "mask_shape"}
        key = (str(plant.right) if isinstance(fn, nn.Module) else fn, str(intent), note)
        if key not in known:
            known.add(key)
            make = partial(plant.right, 0)
            yield pytest.param(make, plant.intent, plant.rope, note, id=f"right of {plant.name}")


@pytest.mark.parametrize(("make", "intent", "rope", "note"), list(rights()))
def test_a_right_attention_is_passed(make, intent, rope, note):
    report = report_of(make(), intent, rope)
    assert report.ok, report
    assert note not in {found.mistake for found in report.notes if found.mistake}, report


def test_every_known_mistake_is_planted_in_two_forms():
    assert set(BY_MISTAKE) == set(MISTAKES)
    for mistake, plants in BY_MISTAKE.items():
        assert len({plant.form for plant in plants}) >= 2, mistake


def test_what_is_planted_shares_no_code_with_the_library():
    """But for the right ones, of which some are the library's own."""
    files = Path(planted.__file__).parent.glob("*.py")
    texts = {path.name: path.read_text() for path in files}
    ours = {name for name, text in texts.items() if "attn_lib" in text}
    assert ours == {"right.py"}
    assert not any("attn_check" in text for text in texts.values())
