"""Each exercise: the stub waits, the folded solution passes, plausible mistakes are named."""

import math
import re

import pages
import pytest
import torch

from attn_lib import exercises, masks
from attn_lib.exercises import _verdict


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


def _all_steps(tolerance):
    def is_relative(score):
        steps = (score(i + 1, j + 1) - score(i, j) for i in range(99) for j in range(99))
        return all(abs(step) < tolerance for step in steps)

    return is_relative


def _block_numbers(d, f, *, join=True, constants=True, norms=2):
    matrices = (3 + join) * d * d + 2 * d * f
    return matrices + ((3 + join) * d + f + d if constants else 0) + norms * 2 * d


def _added_to_the_norm(x, attend, think, first, second):
    y = first(x)
    y = second(y + attend(y))
    return y + think(y)


def _masked_mean(out, lengths, keep):
    real = (torch.arange(out.shape[1]) < lengths[:, None])[..., None]
    return keep(out, real).sum(1) / lengths[:, None]


def _writer(*, start=False, end=False, forget=False, over=0):
    """A greedy writer with a mistake."""

    def write(scores, START, END, longest):
        tokens = [START]
        while len(tokens) <= longest + over:
            row = scores(tokens[-1:] if forget else tokens)
            tokens.append(row.index(max(row)))
            if tokens[-1] == END:
                break
        return [t for t in tokens if (start or t != START) and (end or t != END)]

    return write


def _rolled(maps, step, layers=slice(None)):
    total = torch.eye(maps[0].shape[-1]).to(maps[0])
    for A in maps[layers]:
        total = step(A, torch.eye(A.shape[-1]).to(A)) @ total
    return total


def _joined(patches, p, channels):
    side = round(patches.shape[1] ** 0.5) * p
    return torch.nn.functional.fold(patches.mT, side, p, stride=p)


def _turned_about(model, patches):
    return torch.allclose(model(patches.flip(1)), model(patches))


def _nll(logits, wanted):
    return -logits.log_softmax(-1).gather(-1, wanted[..., None])[..., 0]


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
        (lambda q, k, v: (q @ k.mT).softmax(-1) @ v, "not scaled: divide"),
        (lambda q, k, v: (q @ k.mT * q.shape[-1] ** 0.5).softmax(-1) @ v, "are multiplied: divide"),
        (lambda q, k, v: (q @ k.mT / v.shape[-1] ** 0.5).softmax(-1) @ v, "scaled by d_v: divide"),
        (lambda q, k, v: (q @ k.mT / q.shape[-1] ** 0.5).softmax(-2) @ v, "holds the keys"),
        (lambda q, k, v: (q @ k.T / q.shape[-1] ** 0.5).softmax(-1) @ v, "it raised"),
        (lambda q, k, v: ((q @ k.mT).softmax(-1) @ v, None), "not a pair"),
        (lambda q, k, v: v.zero_().sum() + torch.zeros(5, 3), "changed an argument"),
        (lambda q, k, v: (q @ k.mT / 7**0.5).softmax(-1) @ v, "with 0 leading axes"),
        (lambda q, k, v: (q @ k.mT).softmax(-1), r"the shape is \(5, 4\)"),
    ],
    "1.4": [
        ([0.0, 1.0], "longer arrow"),
        ([5.0, 0.0], "attends most to 'cat'"),
        ([0.0, -9.0], "rotate the arrow"),
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
        (lambda head, x: False, "every position leaks"),
        (lambda head, x: True, "a causal head does not leak"),
        (lambda head, x: _moves(head, x, 0, -1), "one position too far leaks"),
        (lambda head, x: _moves(head, x, -2, -1) or _moves(head, x, 0, -1), "only the first"),
        (lambda head, x: head(x).shape != x.shape, "every position leaks"),
    ],
    "2.4": [
        (lambda s, m: s.masked_fill(~m, -math.inf).softmax(-1), "gives NaN"),
        (lambda s, m: s.masked_fill(~m, -1e9).softmax(-1), "gives weight to closed cells"),
        (lambda s, m: s.softmax(-1) * m, "must sum to 1"),
        (lambda s, m: (s + m.log()).softmax(-1).nan_to_num(), "gradient has NaN"),
        (lambda s, m: (s.exp() * m) / (s.exp() * m).sum(-1, keepdim=True), "gives NaN"),
        (lambda s, m: s.masked_fill(~m, -50).softmax(-1) * m.any(-1, keepdim=True), "some weight"),
        (lambda s, m: s.tolist(), "not list"),
    ],
    "3.1": [
        (324, "now add the biases"),
        (108, "that is one head"),
        (127, "that is one head"),
        (168, "d_model / H"),
        (273, "output projection, which joins the heads, is missing"),
        (400, "add up"),
        ("many", "could not convert"),
    ],
    "3.2": [
        (lambda x, H: x.reshape(len(x), H, x.shape[1], -1), "by a reshape alone"),
        (lambda x, H: x.unflatten(-1, (-1, H)).permute(0, 3, 1, 2), r"numbers h \* d"),
        (lambda x, H: x.unflatten(-1, (H, -1)), r"the shape is \(2, 3, 5, 7\)"),
        (lambda x, H: torch.stack(x.chunk(H, -1)), r"the shape is \(5, 2, 3, 7\)"),
        (lambda x, H: x.unflatten(-1, (H, -1)).transpose(1, 2).tolist(), "not list"),
        (lambda x, H: x.flip(-1).unflatten(-1, (H, -1)).transpose(1, 2), r"numbers h \* d"),
    ],
    "3.3": [
        (lambda W, h, H: _head(W, h, H), "must be transposed"),
        (lambda W, h, H: [M.T for M in _head(W, 0, H)], "head 1 of 3 attends differently"),
        (lambda W, h, H: [M[h::H].T for M in W.chunk(3)], "head 0 of 3 attends differently"),
        (lambda W, h, H: [_head(W, h, H)[i].T for i in (0, 1, 1)], "W_v comes third"),
        (lambda W, h, H: [_head(W, h, H)[i].T for i in (2, 1, 0)], "attends differently"),
        (lambda W, h, H: _head(W, h, H)[0].T, "three matrices"),
        (lambda W, h, H: [M.T for M in W.chunk(3)], r"here \(6, 2\), not \(6, 6\)"),
    ],
    "3.4": [
        (lambda W, h, H: _zeroed(W, slice(h * 2, h * 2 + 2)), "rows are outputs"),
        (lambda W, h, H: W.unflatten(1, (H, -1))[:, h].zero_(), "changed its argument"),
        (lambda W, h, H: W, "still contributes"),
        (lambda W, h, H: _zeroed(W, slice(None), slice(h * 2, h * 2 + 2)), "of 2 still"),
        (lambda W, h, H: torch.zeros(5, 3), "the shape is"),
        (lambda W, h, H: _zeroed(W, slice(None), slice(h, None, H)), "another head no longer does"),
    ],
    "7.1": [
        ([0.8, 0.05], "the right one included"),
        ([0.8, 0.2], "yours to 1.60"),
        ([0.9, 0.025], "a fifth of the smoothing"),
        ([0.84], "not 1"),
        ([math.nan, 0.04], "must sum to 1"),
    ],
    "7.2": [
        (lambda P, n: (P + n - 1, n * P + n * (n - 1) // 2), "swapped: with a cache"),
        (lambda P, n: (n * P + n * (n - 1) // 2, P + n), "never read"),
        (lambda P, n: (n * P + n * (n - 1) // 2, n), "the prompt has to be read"),
        (lambda P, n: (n * P + n * (n + 1) // 2, P + n - 1), "only the prompt's 2 rows"),
        (lambda P, n: (n * P, P + n - 1), "computed again, too"),
        (lambda P, n: (n * n, P + n - 1), "it is 65 without a cache and 11 with one"),
        (lambda P, n: (66,), "not 1"),
    ],
    "7.3": [
        (lambda z, w, f: _nll(z, w).mean(), "padding is counted"),
        (lambda z, w, f: (_nll(z, w) * (w != f)).mean(), "divided by the number of all"),
        (lambda z, w, f: (_nll(z, w) * (w != f)).sum(), "this is the sum"),
        (
            lambda z, w, f: ((_nll(z, w) * (w != f)).sum(1) / (w != f).sum(1)).mean(),
            "each example is averaged first",
        ),
        (lambda z, w, f: -_nll(z, w)[w != f].mean(), "largest difference"),
        (lambda z, w, f: _nll(z, w)[w != f], "the shape is"),
        (lambda z, w, f: 0.5, "not float"),
    ],
    "7.4": [
        (_writer(start=True), "START and END do not belong"),
        (_writer(end=True), "START and END do not belong"),
        (_writer(forget=True), "everything written so far"),
        (_writer(over=1), "for a model that"),
        (lambda scores, START, END, longest: [3, 1, 4][:longest], "never ends"),
        (lambda scores, START, END, longest: [], r"\[3, 1, 4\] is wanted"),
    ],
    "8.1": [
        ([196, 590_592], "the class token is a token too"),
        ([225, 590_592], "patches in a row"),
        ([197, 589_824], "biases are missing"),
        ([197, 197_376], "three colours"),
        ([197, 150_528], "has a weight for each"),
        ([197], "not 1"),
    ],
    "8.2": [
        (
            lambda x, p, c: x.reshape(len(x), c, -1, round((x.numel() / len(x) / c) ** 0.5)),
            "strips",
        ),
        (lambda x, p, c: _joined(x, p, c).mT, "rows and columns"),
        (lambda x, p, c: _joined(x, p, c)[:, :, :-1], "the shape is"),
        (lambda x, p, c: _joined(x, p, c).flip(-1), "largest difference"),
        (lambda x, p, c: x.tolist(), "not list"),
    ],
    "8.3": [
        (lambda m: _rolled(m[::-1], lambda A, eye: (A.mean(1) + eye) / 2), "order is reversed"),
        (lambda m: _rolled(m, lambda A, eye: A.mean(1)), "the residual stream"),
        (lambda m: _rolled(m, lambda A, eye: A.mean(1) + eye), "halve each factor"),
        (lambda m: _rolled(m, lambda A, eye: A.sum(1) + eye), "do not add them up"),
        (
            lambda m: _rolled(m, lambda A, eye: (A.mean(1) + eye) / 2, slice(-1, None)),
            "last layer alone",
        ),
        (lambda m: _rolled(m, lambda A, eye: (A[:, 0] + eye) / 2), "largest difference"),
    ],
    "8.4": [
        (lambda model, x: True, "attention with positions: it uses"),
        (lambda model, x: False, "attention, then the mean: it ignores"),
        (lambda model, x: _turned_about(model, x), "neighbours multiplied: it uses"),
        (lambda model, x: model(x).shape == model(x.flip(1)).shape, "with positions: it uses"),
        (
            lambda model, x: torch.allclose(model(x[:, [1, 0, *range(2, 9)]]), model(x)),
            "the last patch alone: it uses",
        ),
    ],
    "6.1": [
        ([-1.22, 0.0, 0.0, 1.22], "divides the sum of squares by all four"),
        ([-1.0, 0.0, 0.0, 1.0], "take its root first"),
        ([-2, 0, 0, 2], "now divide by"),
        ([1.41, 2.83, 2.83, 4.24], "subtract the mean"),
        ([-1.5, 0, 0, 1.5], "at least one"),
        ([math.nan] * 4, "at least one"),
        ([1.0, 2.0], "not 2"),
    ],
    "6.2": [
        (lambda d, f: _block_numbers(d, f, constants=False, norms=0), "it is .* you say"),
        (lambda d, f: _block_numbers(d, f, constants=False), "biases of the Linear layers"),
        (lambda d, f: _block_numbers(d, f, norms=0), "gains and biases of the norms"),
        (lambda d, f: _block_numbers(d, f, norms=1), "one of the norms"),
        (lambda d, f: _block_numbers(d, f, join=False), "joins the heads"),
        (lambda d, f: _block_numbers(d, f) - f - d, "biases of the feed-forward network"),
        (lambda d, f: _block_numbers(d, 4 * d), "for d_model=6, d_ff=10"),
    ],
    "6.3": [
        (lambda x, a, t, n, m: m(n(x + a(x)) + t(n(x + a(x)))), "this is post-norm"),
        (lambda x, a, t, n, m: x + a(n(x)) + t(m(x)), "after attention has written"),
        (lambda x, a, t, n, m: x + t(m(x + a(n(x)))), "start from the residual stream"),
        (lambda x, a, t, n, m: _added_to_the_norm(x, a, t, n, m), "add to x itself"),
        (lambda x, a, t, n, m: (y := x + a(n(x))) + t(n(y)), "used the first twice"),
        (lambda x, a, t, n, m: (y := x + a(m(x))) + t(n(y)), "swapped"),
        (lambda x, a, t, n, m: m((y := x + a(n(x))) + t(m(y))), "is not normalised"),
        (lambda x, a, t, n, m: t(m(x + a(n(x)))), "the output of each sublayer is added"),
        (lambda x, a, t, n, m: x.add_(a(n(x))) + t(m(x)), "changed its argument"),
        (lambda x, a, t, n, m: x + a(x) + t(x), "largest difference"),
    ],
    "6.4": [
        (lambda out, n: out.mean(1), "padding included"),
        (lambda out, n: _masked_mean(out, n, torch.mul), "padding that holds nan"),
        (
            lambda out, n: _masked_mean(out.nan_to_num(0.0, math.inf), n, torch.mul),
            "padding that holds inf",
        ),
        (lambda out, n: _masked_mean(out, n, lambda o, r: o * r).mul(n[:, None]), "difference"),
        (
            lambda out, n: _masked_mean(out, n, torch.mul) * n[:, None] / out.shape[1],
            "divided by T",
        ),
        (lambda out, n: out[:, 0], "largest difference"),
        (lambda out, n: [row[:k].mean(0) for row, k in zip(out, n, strict=True)], "not list"),
        (
            lambda out, n: _masked_mean(out, n, lambda o, r: o.masked_fill_(~r, 0.0)),
            "changed its argument",
        ),
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
        ([36.0, 2.0], "uses one variance"),
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
        (lambda s: torch.diag_embed(s.softmax(-1)), "weights must fall"),
        (lambda s: torch.diag_embed(s.softmax(-1)) + _outer(s.softmax(-1)), "a sign is wrong"),
        (lambda s: _outer(s.softmax(-1)) - torch.diag_embed(s.softmax(-1)), "sign is reversed"),
        (lambda s: torch.diag(s.softmax(-1)) - _outer(s.softmax(-1)), "it raised"),
        (lambda s: torch.diag_embed(s.softmax(0)) - _outer(s.softmax(0)), "largest difference"),
        (lambda s: s.softmax(-1) * (1 - s.softmax(-1)), "shape is"),
        (lambda s: torch.diag_embed(s) - _outer(s), "largest difference"),
        (lambda s: s.mul_(2.0), "changed its argument"),
        (lambda s: s.tolist(), "not list"),
    ],
    "4.3": [
        (lambda attend, d_k: d_k**-0.5, "has scale 1.000, but you say 0.250"),
        (lambda attend, d_k: d_k**0.5, "its inverse"),
        (lambda attend, d_k: 1.0, "has scale 0.250, but you say 1.000"),
        (lambda attend, d_k: _log_ratio(attend, d_k, 1.0) / d_k, "but you say"),
        (lambda attend, d_k: -_log_ratio(attend, d_k, 1.0), "but you say -0.250"),
        (lambda attend, d_k: 0.5 * _log_ratio(attend, d_k, 1.0), "but you say 0.125"),
        (lambda attend, d_k: attend(torch.ones(1, d_k), torch.ones(2, d_k)), "it raised"),
        (lambda attend, d_k: math.nan, "but you say nan"),
    ],
    "4.4": [
        (math.sqrt(2 * math.log(64)), "spread of the scaled scores"),
        (math.sqrt(2 * math.log(64)) / 64, "not of d_k"),
        (math.sqrt(math.log(64)) / 8, "one half"),
        (-math.sqrt(2 * math.log(64)) / 8, "fits worst"),
        (0.125, "2.48e\\+03 keys"),
        (math.inf, "finite"),
        (math.nan, "finite"),
        ([1.0], "one number"),
    ],
    "5.1": [
        ([math.sin(4), math.cos(4), math.sin(0.4), math.cos(0.4)], "this is position 4"),
        ([0.052, 0.999, 0.005, 1.0], "radians"),
        ([0.141, -0.990, 0.030, 1.0], "1/10"),
        ([0.141, -0.990, 0.141, -0.990], "a speed of its own"),
        ([0.141, 0.296, -0.990, 0.955], "side by side"),
        ([-0.990, 0.141, 0.955, 0.296], "the sine comes first"),
        ([0.141, 0.990, 0.296, 0.955], "at least one is off"),
        ([0.141, -0.990], "not 2"),
        ([math.nan] * 4, "finite"),
    ],
    "5.2": [
        (lambda W, H: W, "as it was"),
        (lambda W, H: torch.cat([W[0::2], W[1::2]]), "within each head"),
        (lambda W, H: W.unflatten(0, (2, -1)).transpose(0, 1).flatten(0, 1), "this is the inverse"),
        (lambda W, H: W.flip(0), "the even rows come first"),
        (lambda W, H: W[0::2], "shape is"),
        (lambda W, H: W.tolist(), "not list"),
        (lambda W, H: W.copy_(torch.cat([W[0::2], W[1::2]])), "changed its argument"),
    ],
    "5.3": [
        (lambda real: torch.arange(real.shape[1]).expand_as(real), "you say"),
        (lambda real: real.cumsum(-1), r"for \[1, 1, 1, 1\] real tokens have positions 0"),
        (lambda real: real.cumsum(-1) - 1, "has position -1"),
        (lambda real: (real.cumsum(-1) - 1).masked_fill(~real, 99), "has position 99"),
        (lambda real: (real.cumsum(-1) - 1.0).clamp(min=0), "not torch.float"),
        (lambda real: (real.cumsum(-1) - 1)[0], "shape is"),
        (lambda real: (real.cumsum(0) - 1).clamp(min=0), "you say"),
    ],
    "5.4": [
        (lambda score: True, "a learned table does not depend"),
        (lambda score: False, "RoPE depends"),
        (lambda score: score(1, 0) == score(50, 49), "RoPE depends|sines depends"),
        (lambda score: abs(score(3, 1) - score(4, 2)) < 1e-9, "near the end"),
        (lambda score: abs(score(2, 1) - score(1, 2)) < 1e-9, "RoPE depends"),
        (lambda score: abs(score(95, 91) - score(90, 86)) < 1e-9, "does not depend|repeats"),
        (_all_steps(1e-3), "faint bend"),
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
    known = set(exercises.known())
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
    listed = re.escape(", ".join(exercises.known()))
    with pytest.raises(ValueError, match=rf"'99\.9'; known: {listed}$"):
        exercises.check("99.9", 1)


def test_an_exercise_is_registered_once(monkeypatch):
    monkeypatch.setattr(_verdict, "_CHECKS", dict(_verdict._CHECKS))
    first, *_ = before = exercises.known()
    exercises.exercise("100.1")(lambda answer: None)
    assert exercises.check("100.1", 1)
    assert exercises.known() == [*before, "100.1"]  # a number, not a word: after 2.1
    with pytest.raises(ValueError, match=f"exercise {re.escape(first)} has a check already"):
        exercises.exercise(first)(lambda answer: None)


def test_each_page_has_its_file():
    """Its exercises stand under its number, in a file of its name."""
    for path in pages.NOTEBOOKS:
        number, _, name = path.stem.partition("_")
        source = (pages.ROOT / "attn_lib" / "exercises" / f"{name}.py").read_text()
        registered = re.findall(r'^@exercise\("(\d+)\.\d+"\)$', source, re.MULTILINE)
        assert set(registered) == {str(int(number))}
