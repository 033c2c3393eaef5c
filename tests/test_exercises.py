"""Each exercise: the stub waits, the folded solution passes, plausible mistakes are named."""

import math
import re

import pages
import pytest
import torch

from attn_lib import exercises, masks


def _shifted(scores, by):
    powers = (scores - by).exp()
    return powers / powers.sum(-1, keepdim=True)


def _decoder(keys):
    size = keys.shape[-1] if isinstance(keys, torch.Tensor) and keys.shape[-1] > 1 else 3
    if isinstance(keys, torch.Tensor) and keys.shape[-1] == 1:
        size = keys.shape[-2]
    return torch.ones(1, 1, size, size).tril().bool() & keys


def _moves(head, x, output, change):
    other = x.clone()
    other[change] += 1.0
    return bool((head(other)[output] != head(x)[output]).any())


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
        ([math.nan, 0.5, 0.5], "finite"),
        (range(10**9), "not 10"),
    ],
    "1.2": [
        (lambda s: s.exp() / s.exp().sum(-1, keepdim=True), "subtract the row's maximum"),
        (lambda s: s.softmax(0), "normalise the last axis"),
        (lambda s: (s - s.max()).exp() / (s - s.max()).exp().sum(-1, keepdim=True), "own maximum"),
        (lambda s: s.exp() / s.exp().sum(), "largest difference"),
        (lambda s: s.sub_(s.amax(-1, keepdim=True)).softmax(-1), "changed its argument"),
        (lambda s: s.softmax(-1).tolist(), "a tensor is wanted, not list"),
        (lambda s: _shifted(s, s.mean(-1, keepdim=True)), "own maximum"),
        (lambda s: _shifted(s, s.amin(-1, keepdim=True)), "own maximum"),
        (lambda s: _shifted(s, s[..., :1]), "own maximum"),
        (lambda s: s.softmax(1), "whatever comes before"),
        (lambda s: s.softmax(-1).to(torch.complex64), "real numbers"),
    ],
    "1.3": [
        (lambda q, k, v: (q @ k.mT).softmax(-1) @ v, "without the scale"),
        (lambda q, k, v: (q @ k.mT * q.shape[-1] ** 0.5).softmax(-1) @ v, "times the scale"),
        (lambda q, k, v: (q @ k.mT / v.shape[-1] ** 0.5).softmax(-1) @ v, "with d_v in the scale"),
        (lambda q, k, v: (q @ k.mT / q.shape[-1] ** 0.5).softmax(-2) @ v, "holds the keys"),
        (lambda q, k, v: (q @ k.T / q.shape[-1] ** 0.5).softmax(-1) @ v, "it raised"),
        (lambda q, k, v: ((q @ k.mT).softmax(-1) @ v, None), "not a pair"),
        (lambda q, k, v: v.zero_().sum() + torch.zeros(5, 3), "changed an argument"),
        (lambda q, k, v: (q @ k.mT / 7**0.5).softmax(-1) @ v, "with 0 leading axes"),
        (lambda q, k, v: (q @ k.mT).softmax(-1), r"the shape is \(5, 4\)"),
    ],
    "1.4": [
        ([0.0, 1.0], "longer arrow"),
        ([5.0, 0.0], "looks hardest at 'cat'"),
        ([0.0, -9.0], "turn the arrow"),
        ([0.0, 8.0, 0.0], "not 3"),
        ([0.0, math.inf], "must be finite"),
    ],
    "2.1": [
        (lambda T, p: torch.ones(T, T).tril().bool(), "this is the causal mask"),
        (lambda T, p: ~(torch.ones(T, T).tril().bool() | (torch.arange(T) < p)), "inverted"),
        (lambda T, p: torch.ones(T, T).tril().bool() & (torch.arange(T) < p), "should be True"),
        (lambda T, p: torch.ones(T, T).tril(p).bool(), "should be False"),
        (lambda T, p: torch.ones(T, T).tril(), "not torch.float32"),
        (lambda T, p: (torch.arange(T) < p)[None], "shape is"),
    ],
    "2.2": [
        (lambda b: b.bool(), r"must be \(B, 1, T, S\)"),
        (lambda b: b.bool() & torch.ones(b.shape[1], b.shape[1]).tril().bool(), "it raised"),
        (lambda b: b.bool()[:, None, None], "shape is"),
        (lambda b: _decoder(b.bool()[:, None, :, None]), "should be"),
        (lambda b: ~_decoder(b.bool()[:, None, None]), "inverted"),
        (lambda b: _decoder(b.bool()[:, None, None]).float(), "not torch.float32"),
        (lambda b: b.bool()[:, None, None] | _decoder(True).expand(len(b), 1, -1, -1), "be False"),
    ],
    "2.3": [
        (lambda head, x: False, "sees everything leaks"),
        (lambda head, x: True, "a causal head does not leak"),
        (lambda head, x: _moves(head, x, 0, -1), "one token too far leaks"),
        (lambda head, x: _moves(head, x, -2, -1) or _moves(head, x, 0, -1), "first output alone"),
        (lambda head, x: head(x).shape != x.shape, "sees everything leaks"),
    ],
    "2.4": [
        (lambda s, m: s.masked_fill(~m, -math.inf).softmax(-1), "gives NaN"),
        (lambda s, m: s.masked_fill(~m, -1e9).softmax(-1), "gives weight to what is closed"),
        (lambda s, m: s.softmax(-1) * m, "must sum to 1"),
        (lambda s, m: (s + m.log()).softmax(-1).nan_to_num(), "gradient has NaN"),
        (lambda s, m: (s.exp() * m) / (s.exp() * m).sum(-1, keepdim=True), "gives NaN"),
        (lambda s, m: s.masked_fill(~m, -50).softmax(-1) * m.any(-1, keepdim=True), "some weight"),
        (lambda s, m: s.tolist(), "not list"),
    ],
    "1.5": [
        (lambda out, order: out[order], "shuffles a second time"),
        (lambda out, order: out, r"row order\[i\]"),
        (lambda out, order: out.flip(0), r"row order\[i\]"),
        (lambda out, order: out.sort(0).values, r"row order\[i\]"),
        (lambda out, order: torch.arange(10.0).view(5, 2), r"row order\[i\]"),
        (lambda out, order: out.tolist(), "not list"),
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
    space = {"torch": torch, "math": math, "exercises": exercises, "masks": masks}
    exec("\n".join([*body, f"verdict = {last}"]), space)  # noqa: S102 - our own cells
    return space["verdict"]


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


def test_right_answers_of_other_kinds_pass():
    assert exercises.check("1.1", torch.tensor([[0.472, 0.472, 0.057]]))
    assert exercises.check("1.4", [0, 1e308])
    assert exercises.check(
        "1.5", lambda out, order: torch.empty_like(out).index_copy(0, order, out)
    )


def test_whatever_an_answer_raises_is_a_verdict():
    class Unspeakable(Exception):
        def __str__(self):
            raise RuntimeError

    def leaves(_):
        raise SystemExit

    def unspeakable(_):
        raise Unspeakable

    def chatters(_):
        raise ValueError("word " * 10**6)

    for answer, message in (
        (leaves, "SystemExit"),
        (unspeakable, "Unspeakable"),
        (chatters, "word"),
    ):
        verdict = exercises.check("1.2", answer)
        assert not verdict
        assert message in verdict.message
        assert len(verdict.message) < 300

    def interrupted(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        exercises.check("1.2", interrupted)


def test_unknown_exercises_are_refused():
    with pytest.raises(ValueError, match=r"'9\.9'"):
        exercises.check("9.9", 1)
