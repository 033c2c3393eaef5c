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


def _outer(p):
    return p[..., :, None] * p[..., None, :]


def _log_ratio(attend, d_k, size):
    q, k = torch.ones(1, d_k), torch.zeros(2, d_k)
    k[0, 0] = size
    p = attend(q, k)
    return math.log(p[0, 0] / p[0, 1])


def _head(packed, h, H):
    """The rows of head h for queries, keys and values, as Linear stores them."""
    d = packed.shape[1]
    return [W[h * (d // H) : (h + 1) * (d // H)] for W in packed.chunk(3)]


def _zeroed(W, *where):
    W = W.clone()
    W[where] = 0.0
    return W


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
    "3.1": [
        (324, "now add the constants"),
        (108, "that is one head"),
        (127, "that is one head"),
        (168, "d_model / H"),
        (273, "joins the heads is missing"),
        (400, "add up"),
        ("many", "could not convert"),
    ],
    "3.2": [
        (lambda x, H: x.reshape(len(x), H, x.shape[1], -1), "memory was only renamed"),
        (lambda x, H: x.unflatten(-1, (-1, H)).permute(0, 3, 1, 2), r"numbers h \* d"),
        (lambda x, H: x.unflatten(-1, (H, -1)), r"the shape is \(2, 3, 5, 7\)"),
        (lambda x, H: torch.stack(x.chunk(H, -1)), r"the shape is \(5, 2, 3, 7\)"),
        (lambda x, H: x.unflatten(-1, (H, -1)).transpose(1, 2).tolist(), "not list"),
        (lambda x, H: x.flip(-1).unflatten(-1, (H, -1)).transpose(1, 2), r"numbers h \* d"),
    ],
    "3.3": [
        (lambda W, h, H: _head(W, h, H), "must be transposed"),
        (lambda W, h, H: [M.T for M in _head(W, 0, H)], "head 1 of 3 looks elsewhere"),
        (lambda W, h, H: [M[h::H].T for M in W.chunk(3)], "head 0 of 3 looks elsewhere"),
        (lambda W, h, H: [_head(W, h, H)[i].T for i in (0, 1, 1)], "W_v comes third"),
        (lambda W, h, H: [_head(W, h, H)[i].T for i in (2, 1, 0)], "looks elsewhere"),
        (lambda W, h, H: _head(W, h, H)[0].T, "three matrices"),
        (lambda W, h, H: [M.T for M in W.chunk(3)], r"here \(6, 2\), not \(6, 6\)"),
    ],
    "3.4": [
        (lambda W, h, H: _zeroed(W, slice(h * 2, h * 2 + 2)), "rows are output numbers"),
        (lambda W, h, H: W.unflatten(1, (H, -1))[:, h].zero_(), "changed its argument"),
        (lambda W, h, H: W, "can still be heard"),
        (lambda W, h, H: _zeroed(W, slice(None), slice(h * 2, h * 2 + 2)), "of 2 can still"),
        (lambda W, h, H: torch.zeros(5, 3), "the shape is"),
        (lambda W, h, H: _zeroed(W, slice(None), slice(h, None, H)), "another has gone silent"),
    ],
    "1.5": [
        (lambda out, order: out[order], "shuffles a second time"),
        (lambda out, order: out, r"row order\[i\]"),
        (lambda out, order: out.flip(0), r"row order\[i\]"),
        (lambda out, order: out.sort(0).values, r"row order\[i\]"),
        (lambda out, order: torch.arange(10.0).view(5, 2), r"row order\[i\]"),
        (lambda out, order: out.tolist(), "not list"),
    ],
    "4.1": [
        ([36.0, 2.0], "takes one variance"),
        ([18.0, 4.0], "fourth power"),
        ([16.0, 4.0], "one term: there are nine"),
        ([12.0, 4.0], "its square is the variance"),
        ([100.0, 4.0], "d_k times the fourth power"),
        ([144.0, 12.0], "divide it by the square root of 9"),
        ([144.0, 16.0], "take its root"),
        ([144.0, 1.0], "divided by the square root of 9"),
        ([144.0], "not 1"),
        ([math.nan, 4.0], "variance of a product"),
        ([144.0, math.nan], "deviation of a score"),
    ],
    "4.2": [
        (lambda s: -_outer(s.softmax(-1)), "the diagonal is missing"),
        (lambda s: torch.diag_embed(s.softmax(-1)), "must give way"),
        (lambda s: torch.diag_embed(s.softmax(-1)) + _outer(s.softmax(-1)), "a sign is wrong"),
        (lambda s: _outer(s.softmax(-1)) - torch.diag_embed(s.softmax(-1)), "turned round"),
        (lambda s: torch.diag(s.softmax(-1)) - _outer(s.softmax(-1)), "it raised"),
        (lambda s: torch.diag_embed(s.softmax(0)) - _outer(s.softmax(0)), "largest difference"),
        (lambda s: s.softmax(-1) * (1 - s.softmax(-1)), "shape is"),
        (lambda s: torch.diag_embed(s) - _outer(s), "largest difference"),
        (lambda s: s.mul_(2.0), "changed its argument"),
        (lambda s: s.tolist(), "not list"),
    ],
    "4.3": [
        (lambda attend, d_k: d_k**-0.5, "has scale 1.000, and you say 0.250"),
        (lambda attend, d_k: d_k**0.5, "its inverse"),
        (lambda attend, d_k: 1.0, "has scale 0.250, and you say 1.000"),
        (lambda attend, d_k: _log_ratio(attend, d_k, 1.0) / d_k, "and you say"),
        (lambda attend, d_k: -_log_ratio(attend, d_k, 1.0), "and you say -0.250"),
        (lambda attend, d_k: 0.5 * _log_ratio(attend, d_k, 1.0), "and you say 0.125"),
        (lambda attend, d_k: attend(torch.ones(1, d_k), torch.ones(2, d_k)), "it raised"),
        (lambda attend, d_k: math.nan, "and you say nan"),
    ],
    "4.4": [
        (math.sqrt(2 * math.log(64)), "spread of the scores"),
        (math.sqrt(2 * math.log(64)) / 64, "not by d_k"),
        (math.sqrt(math.log(64)) / 8, "one half"),
        (-math.sqrt(2 * math.log(64)) / 8, "fits worst"),
        (0.125, "2.48e\\+03 keys"),
        (math.inf, "finite"),
        (math.nan, "finite"),
        ([1.0], "one number"),
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
