"""Answers to the exercises: mistakes that somebody makes, and right answers of unusual kinds.

`answers.json` lists them for each exercise, in Python, which may call what is defined here; with
each mistake stand the words that must come back.
"""

import itertools
import json
import math
from fractions import Fraction  # noqa: F401 - for answers.json
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import attn_lib


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


def _cut(p, mask):
    return p * mask / (p * mask).sum()


def _masked(q, k, v, mask, scale=None):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)


def _masked_late(q, k, v, words, divisor):
    return (q @ k.mT / divisor).softmax(-1) * words[:, None, None] @ v


def _causal(q, k, v, offset):
    return _masked(q, k, v, torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril(offset))


def _headed(q, k, v, H, *, cut=True, merged=True, scale=None):
    B, T, width = q.shape
    q, k, v = (
        x.unflatten(2, (H, -1)).transpose(1, 2) if cut else x.reshape(B, H, T, -1)
        for x in (q, k, v)
    )
    out = _masked(q, k, v, None, scale)
    return (out.transpose(1, 2) if merged else out).reshape(B, T, width)


def _all_steps(tolerance, of=lambda i, j: True, by=1):
    def is_relative(score):
        cells = ((i, j) for i in range(100 - by) for j in range(100 - by) if of(i, j))
        return all(abs(score(i + by, j + by) - score(i, j)) < tolerance for i, j in cells)

    return is_relative


def _size_today(d, H, H_kv, f, *, matrices=3, norms=2):
    return 2 * d * d + 2 * d * (d * H_kv // H) + matrices * d * f + norms * d


def _added_to_the_norm(x, attend, think, first, second):
    y = first(x)
    y = second(y + attend(y))
    return y + think(y)


def _masked_mean(out, lengths, keep):
    real = (torch.arange(out.shape[1]) < lengths[:, None])[..., None]
    return keep(out, real).sum(1) / lengths[:, None]


def _in_company(encode, texts, of=slice(None)):
    """How much the vectors of texts differ from those that each gets alone."""
    alone = torch.cat([encode([text]) for text in texts])
    return float((encode(texts) - alone)[of].abs().max())


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


def _apart(first, second, ddof=1):
    """A difference of shares, and 1.96 of its standard errors."""
    apart = np.subtract(first, second)
    return apart.mean(), 1.96 * apart.std(ddof=ddof) / len(apart) ** 0.5


def _joined(patches, p, channels):
    side = round(patches.shape[1] ** 0.5) * p
    return F.fold(patches.mT, side, p, stride=p)


def _ignores(model, patches, other):
    return torch.allclose(model(other), model(patches))


def _masked_softmax(s, m, dim=-1):
    return s.masked_fill(~m, -1e30).softmax(dim).masked_fill(~m, 0.0)


def _exponents(s, m, total=torch.Tensor.double):
    """A masked softmax without infinities, in float64."""
    top = s.double().masked_fill(~m, -1e300).amax(-1, keepdim=True)
    powers = torch.where(m, s - top.detach(), 0.0).exp() * m
    return powers / total(powers.sum(-1, keepdim=True)).clamp(min=1e-9)


def _written(scores, START, END, longest):
    """Write all, cut at END."""
    tokens = [START]
    for _ in range(longest):
        row = scores(tokens)
        tokens.append(row.index(max(row)))
    return tokens[1 : tokens.index(END)] if END in tokens else tokens[1:]


def _nll(logits, wanted):
    return -logits.log_softmax(-1).gather(-1, wanted[..., None])[..., 0]


def _all_cuts(model, tokens, sizes, close=1e-4):
    """Whether pieces of each of these kinds give what the whole gives."""
    whole = model(tokens)
    for cuts in sizes(tokens.shape[1]):
        cache = attn_lib.Cache()
        pieces = [model(piece, cache=cache) for piece in tokens.tensor_split([*cuts], dim=1)]
        if not (torch.cat(pieces, dim=1) - whole).abs().max() <= close:
            return False
    return True


def _every(n):
    return [c for k in range(n) for c in itertools.combinations(range(1, n), k)]


def _loops(q, k, v):
    """Attention of 64 bits, a row at a time, in numpy."""
    q, k, v = (np.asarray(t, dtype=np.float64) for t in (q, k, v))
    out = np.zeros((*q.shape[:-1], v.shape[-1]))
    for row in np.ndindex(q.shape[:-1]):
        powers = np.exp(k[row[:-1]] @ q[row] / math.sqrt(q.shape[-1]))
        out[row] = powers @ v[row[:-1]] / powers.sum()
    return out


def _prefixes(head, x):
    """Whether a row changes once the rows after it are there."""
    whole = head(x)
    return not all(torch.allclose(head(x[: t + 1])[t], whole[t]) for t in range(len(x)))


def _decoder_by_loops(binary):
    B, S = binary.shape
    mask = np.zeros((B, 1, S, S), dtype=bool)
    for b, t in itertools.product(range(B), range(S)):
        mask[b, 0, t, : t + 1] = binary[b, : t + 1]
    return mask


def _masked_softmax_twice(s, m):
    """An empty row is opened before the softmax, and closed after it."""
    open_rows = m | ~m.any(-1, keepdim=True)
    return torch.where(m, s.masked_fill(~open_rows, -math.inf).softmax(-1), 0.0)


def _slope(attend, d_k):
    """The scale as a derivative, on two keys of many."""
    k = torch.eye(max(d_k, 2), d_k, dtype=torch.float64)
    q = torch.zeros(1, d_k, dtype=torch.float64, requires_grad=True)
    p = attend(q, k)
    (p[0, 0].log() - p[0, 1].log()).backward()
    return q.grad[:, :1]


def _interleaved(W, H):
    """Rows in their new order, by index, in numpy."""
    d = len(W) // H
    order = [h * d + i for h in range(H) for i in (*range(0, d, 2), *range(1, d, 2))]
    return W.numpy()[order]


def _counted(real):
    places = torch.zeros(real.shape, dtype=torch.int32)
    for b, row in enumerate(real.tolist()):
        for s in range(len(row)):
            places[b, s] = sum(row[:s])
    return places.where(real, 0)


def _toeplitz(score):
    """Each diagonal against its first cell, in numpy."""
    table = np.array([[score(i, j) for j in range(100)] for i in range(100)])
    return np.all([np.ptp(table.diagonal(d)) < 1e-9 for d in range(-99, 100)])


def _sampled(score):
    generator = np.random.default_rng(0)
    for i, j in generator.integers(0, 100, (5000, 2)):
        back = generator.integers(0, min(i, j) + 1)
        if not math.isclose(score(i, j), score(i - back, j - back), abs_tol=1e-8):
            return 0
    return 1


def _added_one_by_one(x, attend, think, norm_1, norm_2):
    stream = [x]
    for part, norm in ((attend, norm_1), (think, norm_2)):
        stream.append(part(norm(torch.stack(stream).sum(0))))
    return torch.stack(stream).sum(0)


def _cost_by_hand(z, w, f):
    """A Python number, from loops."""
    costs = [
        math.log(sum(map(math.exp, row))) - row[token]
        for rows, tokens in zip(z.tolist(), w.tolist(), strict=True)
        for row, token in zip(rows, tokens, strict=True)
        if token != f
    ]
    return sum(costs) / len(costs)


def _stepwise(scores, START, END, longest):
    """From an iterator, as an array."""

    def steps():
        text = (START,)
        while True:
            text += (int(np.argmax(scores(list(text)))),)
            yield text[-1]

    new = itertools.takewhile(lambda t: t != END, itertools.islice(steps(), longest))
    return np.fromiter(new, dtype=np.int32)


def _sliced(patches, p, channels):
    """An image of whole numbers, a patch at a time."""
    side = math.isqrt(patches.shape[1])
    image = torch.zeros(len(patches), channels, side * p, side * p, dtype=torch.int64)
    for n, (row, column) in enumerate(itertools.product(range(side), repeat=2)):
        square = patches[:, n].view(-1, channels, p, p)
        image[:, :, row * p : (row + 1) * p, column * p : (column + 1) * p] = square
    return image


def _chained(maps):
    """The last factor first, in numpy."""
    total = None
    for A in reversed(maps):
        step = 0.5 * A.numpy().mean(1) + 0.5 * np.eye(A.shape[-1])
        total = step if total is None else total @ step
    return total


def _shuffles(model, patches):
    """One shuffle of many longer sequences of one's own."""
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(1, 12, 7, generator=generator)
        order = torch.randperm(12, generator=generator)
        if not torch.allclose(model(x[:, order]), model(x), atol=1e-4):
            return False
    return True


def _swaps(model, patches):
    """Each two neighbours, swapped."""
    before = model(patches)
    for i in range(8):
        order = [*range(i), i + 1, i, *range(i + 2, 9)]
        if (model(patches[:, order]) - before).abs().max() > 1e-9:
            return np.False_
    return np.True_


TABLE = json.loads(Path(__file__).with_name("answers.json").read_text())
WRONG = {  # exercise -> mistakes that somebody makes, each with the words that must come back
    number: [(eval(answer), words) for answer, words in answers["wrong"]]  # noqa: S307 - our own
    for number, answers in TABLE.items()
}
RIGHT = {  # exercise -> right answers of kinds that one does not think of first
    number: [eval(answer) for answer in answers["right"]]  # noqa: S307
    for number, answers in TABLE.items()
}
