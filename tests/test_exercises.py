"""Each exercise: the stub waits, the folded solution passes, plausible mistakes are named."""

import math
import re

import pages
import pytest
import torch

from attn_lib import exercises

# exercise -> {a mistake somebody makes: the words that must come back}
WRONG = {
    "1.1": [
        ([0.49, 0.49, 0.02], "lack the scale"),
        ([4.11, 4.11, 0.49], "divide each by their sum"),
        ([1.41, 1.41, -0.71], "these are scores"),
        ([0.5, 0.4, 0.2], "yours to 1.10"),
        ([0.33, 0.33, 0.34], "at least one is off"),
        ([0.5, 0.5], "not 2"),
        ("half", "could not convert"),
    ],
    "1.2": [
        (lambda s: s.exp() / s.exp().sum(-1, keepdim=True), "subtract the row's maximum"),
        (lambda s: s.softmax(0), "normalise the last axis"),
        (lambda s: (s - s.max()).exp() / (s - s.max()).exp().sum(-1, keepdim=True), "own maximum"),
        (lambda s: s.exp() / s.exp().sum(), "largest difference"),
        (lambda s: s.sub_(s.amax(-1, keepdim=True)).softmax(-1), "changed its argument"),
        (lambda s: s.softmax(-1).tolist(), "not list"),
    ],
    "1.3": [
        (lambda q, k, v: (q @ k.mT).softmax(-1) @ v, "without the scale"),
        (lambda q, k, v: (q @ k.mT * q.shape[-1] ** 0.5).softmax(-1) @ v, "times the scale"),
        (lambda q, k, v: (q @ k.mT / v.shape[-1] ** 0.5).softmax(-1) @ v, "with d_v in the scale"),
        (lambda q, k, v: (q @ k.mT / q.shape[-1] ** 0.5).softmax(-2) @ v, "holds the keys"),
        (lambda q, k, v: (q @ k.T / q.shape[-1] ** 0.5).softmax(-1) @ v, "it raised"),
        (lambda q, k, v: ((q @ k.mT).softmax(-1) @ v, None), "not a pair"),
        (lambda q, k, v: (q @ k.mT).softmax(-1), r"the shape is \(5, 4\)"),
    ],
    "1.4": [
        ([0.0, 1.0], "longer arrow"),
        ([5.0, 0.0], "looks hardest at 'cat'"),
        ([0.0, -9.0], "turn the arrow"),
        ([0.0, 8.0, 0.0], "not 3"),
        ([0.0, math.inf], "must be finite"),
    ],
    "1.5": [
        (lambda out, order: out[order], "shuffles a second time"),
        (lambda out, order: out, r"row order\[i\]"),
        (lambda out, order: out.flip(0), r"row order\[i\]"),
    ],
}


def exercise_cells(kind: str) -> dict[str, str]:
    found = {}
    for path in pages.NOTEBOOKS:
        for cell in pages.code_cells(pages.read(path)):
            for tag in pages.tags(cell):
                if tag.startswith(f"{kind}-"):
                    found[tag.removeprefix(f"{kind}-")] = cell.source
    return found


def run(source: str):
    """The verdict of a cell, run with only what the pages import."""
    *body, last = source.rstrip().splitlines()
    space = {"torch": torch, "math": math, "exercises": exercises}
    exec("\n".join(body), space)  # noqa: S102 - our own cells
    return eval(last, space)  # noqa: S307


def test_every_exercise_has_a_stub_a_solution_and_wrong_answers():
    known = set(exercises._CHECKS)
    assert known == set(exercise_cells("exercise")) == set(exercise_cells("solution")) == set(WRONG)
    assert all(len(wrong) >= 3 for wrong in WRONG.values())
    chapters = {int(path.name[:2]) for path in pages.NOTEBOOKS}
    for chapter in chapters:
        assert sum(number.startswith(f"{chapter}.") for number in known) >= 4


@pytest.mark.parametrize("number", WRONG)
def test_the_stub_waits(number):
    verdict = run(exercise_cells("exercise")[number])
    assert not verdict
    assert "waiting for your answer" in verdict.message


@pytest.mark.parametrize("number", WRONG)
def test_the_solution_passes(number):
    verdict = run(exercise_cells("solution")[number])
    assert verdict, verdict.message
    assert repr(verdict) == f"Exercise {number}: correct."


@pytest.mark.parametrize(
    ("number", "answer", "message"),
    [(n, answer, message) for n, wrong in WRONG.items() for answer, message in wrong],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_answer_is_named(number, answer, message):
    verdict = exercises.check(number, answer)
    assert not verdict.passed
    assert verdict.message.startswith(f"Exercise {number}, not yet: ")
    assert re.search(message, verdict.message), verdict.message


def test_unknown_exercises_are_refused():
    with pytest.raises(ValueError, match=r"'9\.9'"):
        exercises.check("9.9", 1)
