"""Each exercise: the stub waits, the folded solution passes, plausible mistakes are named."""

import itertools
import math
import re
from collections import Counter

import answers
import numpy as np
import pages
import pytest
import torch
from tables import for_each

from attn_lib import exercises
from attn_lib.exercises import next_token


def verdicts(kind: str) -> dict[str, str]:
    """The last line of each stub, or solution, in its page, where nbval runs it again."""
    return {
        tag.removeprefix(f"{kind}-"): pages.printed(cell).splitlines()[-1]
        for path in pages.NOTEBOOKS
        for cell in pages.code_cells(pages.read(path))
        for tag in pages.tags(cell)
        if tag.startswith(f"{kind}-")
    }


def test_every_exercise_has_a_stub_a_solution_and_wrong_answers():
    known = set(exercises.known())
    waits = "Exercise {} is waiting for your answer: replace the ... above."
    assert verdicts("exercise") == {number: waits.format(number) for number in known}
    assert verdicts("solution") == {number: f"Exercise {number}: correct." for number in known}
    wrong = Counter(number for number, *_ in answers.WRONG)
    assert known == set(wrong) == set(answers.RIGHT)
    assert min(wrong.values()) >= 3
    chapters = {int(path.name[:2]) for path in pages.CHAPTERS}
    for chapter in chapters:
        assert sum(number.startswith(f"{chapter}.") for number in known) >= 3


def spoken(value):
    return value if isinstance(value, str) else ""


@for_each(*answers.WRONG, ids=spoken)
def test_a_wrong_answer_is_named(number, answer, message):
    verdict = exercises.check(number, answer)
    assert not verdict.passed
    assert verdict.message.startswith(f"Exercise {number}, not yet: ")
    assert re.search(message, verdict.message), verdict.message


def given_as(dtype, value):
    """An answer, or all that it returns: in single precision, or in double as NumPy's arrays."""
    if callable(value):
        return lambda *given: given_as(dtype, value(*given))
    if isinstance(value, tuple):
        return tuple(given_as(dtype, part) for part in value)
    if value is None or isinstance(value, str):
        return value
    x = torch.as_tensor(value)
    x = x.to(dtype) if x.is_floating_point() else x
    return x if dtype is torch.float32 or x.requires_grad else x.numpy()[()]


@for_each(*itertools.product(answers.RIGHT, (torch.float32, torch.float64)), ids=str)
def test_a_right_answer_of_another_kind_passes(number, dtype):
    verdict = exercises.check(number, given_as(dtype, answers.RIGHT[number]))
    assert verdict, verdict.message


STATED = "{} is the capital of"


@pytest.mark.weekly
@for_each(
    (answers.ASKED, 1),
    (answers.MARKED.replace(answers.ASKED, STATED), 1),
    (answers.MARKED, 16),
    (f"Oslo is the capital of Norway.\nBern is the capital of Switzerland.\n{STATED}", 19),
)
def test_the_counts_that_the_solution_of_8_4_names(prompt, count):
    texts = next_token._written(tuple(map(prompt.format, next_token._FACTS)))
    found = sum(map(str.__contains__, texts, next_token._FACTS.values()))
    assert abs(found - count) <= 1  # one may be a toss-up elsewhere


@for_each(
    ("{}?", "add the markers"),
    ("{} is the capital of", "by examples"),
    ("<|im_start|>assistant: {}", "put a question there"),
    ("<|im_start|>assistant: {}?", "without a system message"),
)
def test_whoever_asks_in_vain_gets_a_hint(prompt, hint, monkeypatch):
    """The model is not run: it names no country."""
    monkeypatch.setattr(next_token, "_written", lambda prompts: [""] * len(prompts))
    message = exercises.check("8.4", prompt.format).message
    assert re.search(f"of 0 of 24, .* {hint}", message)


GARBAGE = [
    *(None, 0, -1, 2.5, math.nan, math.inf, 10**400, 1j, True, "no", b"", object(), {}, {"a": 1}),
    *((), [], [None], [[1.0], [2.0, 3.0]], [[]], ["a", "b"], {1, 2}, (None,) * 3),
    *(torch.ones(0), torch.ones(5, 5), torch.full((3, 4), math.inf), torch.ones(3, 3).to_sparse()),
    *(torch.tensor(math.nan), torch.ones(2, 3, dtype=torch.cfloat), torch.ones(2, device="meta")),
    *(np.array("no"), np.array([None]), np.ones((2, 2))[::-1], np.zeros(7, dtype="datetime64[s]")),
    *(int, torch.nn.Linear(2, 2), [torch.ones(2)] * 3),
]


@pytest.mark.parametrize("number", answers.RIGHT)
def test_a_check_has_words_for_anything(number):
    """Nothing is raised but by the reader's own code: here there is none, or it does not raise."""
    for garbage in GARBAGE:
        for answer in ([garbage] if callable(garbage) else garbage, lambda *_, g=garbage: g):
            verdict = exercises.check(number, answer)
            assert not verdict.passed, garbage
            assert "it raised" not in verdict.message, (garbage, verdict.message)


def raises(error):
    def answer(_):
        raise error

    return answer


def test_whatever_an_answer_raises_is_a_verdict():
    class Unspeakable(Exception):
        def __str__(self):
            raise RuntimeError

    long = ValueError("word " * 10**6)
    for error, message in (
        (SystemExit(), "SystemExit"),
        (Unspeakable(), "Unspeakable"),
        (long, "word"),
    ):
        verdict = exercises.check("1.2", raises(error))
        assert not verdict
        assert message in verdict.message
        assert len(verdict.message) < 300
    with pytest.raises(KeyboardInterrupt):
        exercises.check("1.2", raises(KeyboardInterrupt()))


def test_unknown_exercises_are_refused():
    listed = re.escape(", ".join(exercises.known()))
    with pytest.raises(ValueError, match=rf"'99\.9'; known: {listed}$"):
        exercises.check("99.9", 1)


def test_exercises_are_known_in_the_order_of_the_book():
    numbers = [tuple(map(int, number.split("."))) for number in exercises.known()]
    assert numbers == sorted(numbers)
