"""Answers to the exercises: mistakes that somebody makes, and right answers of unusual kinds."""

import itertools
import math
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

import attn_lib


def _shifted(scores, by, axis=-1):
    powers = (scores - by).exp()
    return powers / powers.sum(axis, keepdim=True)


def _derivatives(head, x, kind):
    reach = torch.einsum(kind, torch.autograd.functional.jacobian(head, x)).abs() > 1e-9
    return bool(reach.view(len(x), len(x), -1).any(dim=-1).triu(diagonal=1).any())


def _documents(ends):
    return torch.repeat_interleave(torch.arange(len(ends) - 1), ends.diff())


def _places(ends):
    return torch.arange(int(ends[-1])) - ends[_documents(ends)]


def _rows(one, other, segments, t):
    return (*(torch.tensor([row]) for row in (one, other, segments)), t)


def _begins(segments):
    first = torch.ones_like(segments[:, :1], dtype=torch.bool)
    return torch.cat([first, segments.diff() != 0], dim=1)[..., None]


def _inside(moved, segments, ends=False):
    begins = _begins(segments)
    return moved.masked_fill(begins.roll(-1, 1) if ends else begins, 0)


def _bringing(S, brings):
    sizes = range(1, S + 1)
    return [c for n in sizes for c in itertools.combinations(range(S), n) if brings([*c])]


def _sets(S, brings):
    found = _bringing(S, brings)
    return [rows for rows in found if len(rows) == len(found[0])]


def _near_mask(T, *closed):
    place = torch.arange(T)
    mask = place <= place[:, None]
    for distance in closed:
        mask &= place != place[:, None] - distance
    return mask


def _less(text, pairs, *distances):
    """The causal mask without those of these pairs that lie so far apart."""
    return _near_mask(len(text)) & ~(pairs & ~_near_mask(len(text), *distances))


def _after(text, word):
    """Rows of the word, and the keys that came after it."""
    return (text == word)[:, None] & torch.cat([torch.zeros(1).bool(), (text == word)[:-1]])


def _on(weights, tokens, back, *, every=False):
    T = len(tokens)
    keys = torch.zeros(T, T).bool()
    for t in range(T):
        for s in range(T):
            if 0 <= s - back < T and (s <= t if back > 0 else s - back < t + (back == 0)):
                keys[t, s] = tokens[s - back] == tokens[t]
    some = keys.any(1) | every
    return (weights * keys).sum(1)[some].mean()


def _followers(text, states, words, *, start=1, whole=False):
    rows = []
    for t in range(1, len(text)):
        counts = torch.full((states,), float(start))
        for s in range(words, len(text) if whole else t + 1):
            if torch.equal(text[s - words : s], text[max(t - words + 1, 0) : t + 1]):
                counts[text[s]] += 1
        rows.append(counts / counts.sum() if counts.any() else torch.full((states,), 1 / states))
    return torch.stack(rows)


def _lower(binary):
    """Causal, for a padding mask's texts."""
    return torch.ones(binary.shape[1], binary.shape[1]).tril().bool()


def _moves(head, x, output, change):
    other = x.clone()
    other[change] += 1.0
    return bool((head(other)[output] != head(x)[output]).any())


def _log_ratio(attend, d_k, size):
    q, k = torch.ones(1, d_k), torch.zeros(2, d_k)
    k[0, 0] = size
    p = attend(q, k)
    return math.log(p[0, 0] / p[0, 1])


def _of_ones(attend, d_k):
    """Ones against ones: their product is d_k, which is forgotten."""
    p = attend(torch.ones(1, d_k), torch.stack([torch.ones(d_k), torch.zeros(d_k)]))
    return math.log(p[0, 0] / p[0, 1])


def _head(packed, h, H):
    """The rows of head h for queries, keys and values, as Linear stores them."""
    d = packed.shape[1]
    return [W[h * (d // H) : (h + 1) * (d // H)] for W in packed.chunk(3)]


def _judged(a, b, years, *, errors=2, days=64, paired=True, spread=None):
    """Years in which a is ahead of b by so many standard errors; sixty-four days a year."""
    found = []
    for year in np.unique(np.asarray(years)).tolist():
        own, other = a[years == year], b[years == year]
        usual = spread if spread is not None else (own - other).std()
        usual = usual if paired else (own.var() + other.var()) ** 0.5
        if (own - other).mean() < -errors * usual / days**0.5:
            found.append(year)
    return found


def _sure(z, t):
    return (z / t).softmax(-1)


def _likelier(p):
    """The probability of all likelier tokens."""
    ordered, order = p.sort(descending=True)
    return torch.zeros_like(p).scatter(0, order, ordered.cumsum(0) - ordered)


def _low(z, t, m):
    """Tokens with less than m times the probability of the best."""
    return z < z.max() + t * math.log(m)


def _cut(z, tokens):
    return z.masked_fill(tokens, -math.inf)


def _real(q, k, v, words, scale=None):
    return F.scaled_dot_product_attention(q, k, v, words[:, None, None], scale=scale)


def _masked_late(q, k, v, words, divisor):
    return (q @ k.mT / divisor).softmax(-1) * words[:, None, None] @ v


def _causal(q, k, v, more=0):
    """With more keys open to each query than there should be."""
    T, S = q.shape[-2], k.shape[-2]
    mask = torch.ones(T, S, dtype=torch.bool).tril(S - T + more)
    return F.scaled_dot_product_attention(q, k, v, mask)


def _headed(q, k, v, H, *, cut=True, merged=True, scale=None):
    B, T, width = q.shape
    q, k, v = (
        x.unflatten(2, (H, -1)).transpose(1, 2) if cut else x.reshape(B, H, T, -1)
        for x in (q, k, v)
    )
    out = F.scaled_dot_product_attention(q, k, v, scale=scale)
    return (out.transpose(1, 2) if merged else out).reshape(B, T, width)


def _yarn(speeds, trained, wanted, *, turn=2 * math.pi, slower=True, swapped=False, reach=None):
    whole = ((reach or trained) - 1) * speeds >= turn
    by = trained / wanted if slower else wanted / trained
    return torch.where(whole ^ swapped, speeds, speeds * by)


def _ntk(speeds, trained, wanted):
    pairs = len(speeds)
    return speeds * (trained / wanted) ** (torch.arange(pairs) / (pairs - 1))


def _sandwich(x, attend, think, norms):
    x = x + norms[1](attend(norms[0](x)))
    return x + norms[3](think(norms[2](x)))


def _added_to_the_norm(x, attend, think, norms):
    y = norms[0](x)
    y = norms[2](y + norms[1](attend(y)))
    return y + norms[3](think(y))


def _size(writes, eps):
    return (writes.sum(0).square().mean() + eps).sqrt()


def _credits(writes, gain, row, eps):
    return writes / _size(writes, eps) * gain @ row


def _mean(out, lengths, keep=torch.mul):
    real = (torch.arange(out.shape[1]) < lengths[:, None])[..., None]
    return keep(out, real).sum(1) / lengths[:, None]


def _run(blocks, x):
    for block in blocks:
        x = block(x)
    return x


def _first_wrong(ours, theirs, x, *, close=1e-5, own=False, hidden=False, first=0):
    """The first block that differs, with a mistake or without."""
    if hidden and torch.allclose(_run(ours, x), _run(theirs, x), atol=close):
        return None
    y = x
    for i, (our, their) in enumerate(zip(ours, theirs, strict=True), start=first):
        y, x = our(y if own else x), their(x)
        if (y - x).abs().max() > close * max(1.0, 0.0 if own else float(x.abs().max())):
            return i
    return None


def _in_company(encode, texts, of=slice(None)):
    """How much the vectors of texts differ from those that each gets alone."""
    alone = torch.cat([encode([text]) for text in texts])
    return float((encode(texts) - alone)[of].abs().max())


def _rolled(maps, step=lambda A, eye: (A.mean(1) + eye) / 2):
    total = torch.eye(maps[0].shape[-1]).to(maps[0])
    for A in maps:
        total = step(A, torch.eye(A.shape[-1]).to(A)) @ total
    return total


def _apart(first, second, by=1.0):
    """A difference of shares, and 1.96 of its standard errors, or more or less."""
    apart = np.subtract(first, second)
    return apart.mean(), by * 1.96 * apart.std(ddof=1) / len(apart) ** 0.5


def _unpaired(first, second):
    """With the errors of two groups that have nothing to do with each other."""
    variances = np.var(first, ddof=1) + np.var(second, ddof=1)
    return np.subtract(first, second).mean(), 1.96 * (variances / len(first)) ** 0.5


def _joined(patches, p, channels):
    side = round(patches.shape[1] ** 0.5) * p
    return F.fold(patches.mT, side, p, stride=p)


def _columnwise(patches, p, channels):
    side = round(patches.shape[1] ** 0.5)
    return _joined(patches.unflatten(1, (side, side)).transpose(1, 2).flatten(1, 2), p, channels)


def _channels_last(patches, p, channels):
    return _joined(patches.unflatten(2, (p * p, channels)).mT.flatten(2), p, channels)


_REFEREE = {"a": "rate", "b": "compute", "c": "test", "d": "fair"}


def _maps(explain, images):
    """Of each image the map that it gets alone."""
    return torch.cat([explain(image[None]) for image in images])


def _same(maps, **close):
    return torch.allclose(maps, maps[:1], **close)


def _ignores(order):
    return lambda model, x: torch.allclose(model(x[:, order]), model(x))


def _written(scores, START, END, longest):
    """Write all, cut at END."""
    tokens = [START]
    for _ in range(longest):
        row = scores(tokens)
        tokens.append(row.index(max(row)))
    return tokens[1 : tokens.index(END)] if END in tokens else tokens[1:]


def _nll(logits, wanted):
    return -logits.log_softmax(-1).gather(-1, wanted[..., None])[..., 0]


def _mean_of_means(logits, wanted, filler):
    real = wanted != filler
    return ((_nll(logits, wanted) * real).sum(1) / real.sum(1)).mean()


def _all_cuts(model, tokens, sizes, close=1e-4):
    """Whether pieces of each of these kinds give what the whole gives."""
    whole = model(tokens)
    for cuts in sizes(tokens.shape[1]):
        cache = attn_lib.Cache()
        pieces = [model(piece, cache=cache) for piece in tokens.tensor_split([*cuts], dim=1)]
        if not (torch.cat(pieces, dim=1) - whole).abs().max() <= close:
            return False
    return True


def _full(model, tokens):
    model(tokens, cache=(cache := attn_lib.Cache()))
    return cache


def _pairs(n):
    return [(a, b) for a in range(1, n) for b in range(a, n)]


def _near(a, b, within=1e-4):
    return torch.allclose(a, b, rtol=0.0, atol=within)


def _in_two(model, tokens):
    cache = attn_lib.Cache()
    return torch.cat([model(piece, cache=cache) for piece in tokens.split([2, 4], dim=1)], dim=1)


def _right_split(split, B, T, H, d, texts=slice(None), heads=slice(None)):
    """Whether these heads get their own numbers of every token, for one set of sizes."""
    x = torch.arange(B * T * H * d).view(B, T, H * d)
    wanted = torch.stack([x[..., h * d : (h + 1) * d] for h in range(H)], dim=1)
    found = split(x, H)
    return found.shape == wanted.shape and torch.equal(
        found[texts][:, heads], wanted[texts][:, heads]
    )


def _right_sums(split):
    """Whether each head gets its own numbers, added up over the tokens."""
    x = torch.arange(48).view(2, 3, 8)
    return torch.equal(split(x, 4).sum(dim=2), x.sum(dim=1).view(2, 4, 2))


def _opened(s, m):
    """An empty row is opened before the softmax, and closed after it."""
    open_rows = m | ~m.any(-1, keepdim=True)
    return torch.where(m, s.masked_fill(~open_rows, -math.inf).softmax(-1), 0.0)


def _streamed(blocks, *, rescale=True, guarded=True):
    """Log-sum-exp of blocks, or what one gets who forgets something."""
    m, total = torch.tensor(-math.inf).double(), torch.tensor(0.0).double()
    for block in blocks:
        new = torch.maximum(m, block.max())
        base = torch.tensor(0.0) if guarded and new == -math.inf else new
        total = total * (torch.exp(m - base) if rescale else 1) + torch.exp(block - base).sum()
        m = new
    return m + total.log()


def _tiles(T, S, block, window, *, late=0, left=True):
    found = set()
    for t in range(T):
        at = t + (S - T if not late else 0)
        for s in range(max(at - window + 1, 0) if left else 0, min(at, S - 1) + 1):
            found.add((t // block, s // block))
    return len(found)


def _by_scores(slopes, change):
    return lambda s, i, j: s - change(slopes[:, None, None], i, j)


def _ends_in(rule, *wrong, begun=1.0):
    """Whether one step of a gated delta rule gives the right state, or one that is wrong."""
    S = torch.tensor([[3.0, 1.0], [0.5, -1.0]]) * begun
    k, v, half = torch.tensor([[0.6, 0.8]]), torch.tensor([[1.0, -2.0]]), torch.tensor([[0.5]])
    last = rule(k, k, v, half, half.log(), S)[1]

    def right(S, write):
        return S / 2 + write(S / 2)

    states = [step(S, lambda S: k.mT @ (0.5 * (v - k @ S))) for step in (right, *wrong)]
    return any(torch.allclose(last, state, atol=1e-4) for state in states)


ASKED = "Which country has {} as its capital?"
MARKED = f"<|im_start|>user\n{ASKED}<|im_end|>\n<|im_start|>assistant\n"
# exercise, a mistake that somebody makes, the words that must come back
WRONG = [
    ("1.1", [0.49, 0.49, 0.02], "lack the scale"),
    ("1.1", [0.45, 0.45, 0.10], "divided by d_k, which is 2"),
    ("1.1", [4.11, 4.11, 0.49], "divide each by their sum"),
    ("1.1", [1.41, 1.41, -0.71], "these are scores"),
    ("1.1", [0.5, 0.4, 0.2], "yours to 1.10"),
    ("1.1", [0.33, 0.33, 0.34], "at least one is off"),
    ("1.1", "half", "not a text"),
    ("1.1", [math.nan, 0.5, 0.5], "finite"),
    ("1.1", range(10**9), "not 10"),
    ("1.2", lambda s: _shifted(s, 0), "subtract the row's maximum"),
    ("1.2", lambda s: _shifted(s, 0, 0), "normalise the last axis"),
    ("1.2", lambda s: F.softmax(s, -1), "calls PyTorch's softmax"),
    ("1.2", lambda s: _shifted(c := s.clamp(-2000, 2000), c.amax(-1, keepdim=True)), "1e30"),
    ("1.2", lambda s: _shifted(s, s.max()), "own maximum"),
    ("1.2", lambda s: _shifted(s.sub_(s.amax(-1, keepdim=True)), 0), "changed its argument"),
    ("1.2", lambda s: _shifted(s, s.amax(1, keepdim=True), 1), "whatever comes before"),
    ("1.3", lambda q, k, v: (q @ k.mT).softmax(-1) @ v, "not scaled: divide"),
    ("1.3", lambda q, k, v: (q @ k.mT / q.shape[-1]).softmax(-1) @ v, "divided by d_k itself"),
    ("1.3", F.scaled_dot_product_attention, "calls PyTorch's scaled_dot_product_attention"),
    ("1.3", lambda q, k, v: (q @ k.mT * q.shape[-1] ** 0.5).softmax(-1) @ v, "are multiplied"),
    ("1.3", lambda q, k, v: (q @ k.mT / v.shape[-1] ** 0.5).softmax(-1) @ v, "scaled by d_v"),
    ("1.3", lambda q, k, v: (q @ k.mT / q.shape[-1] ** 0.5).softmax(-2) @ v, "holds the keys"),
    ("1.3", lambda q, k, v: (q @ k.T / q.shape[-1] ** 0.5).softmax(-1) @ v, "it raised"),
    ("1.3", lambda q, k, v: ((q @ k.mT).softmax(-1) @ v, None), "not a pair"),
    ("1.3", lambda q, k, v: v.zero_().sum() + torch.zeros(5, 3), "changed an argument"),
    ("1.3", lambda q, k, v: (q @ k.mT / 7**0.5).softmax(-1) @ v, "with 0 leading axes"),
    ("1.4", [0.0, 1.0], "longer arrow"),
    ("1.4", [5.0, 0.0], "attends most to 'cat'"),
    ("1.4", [0.0, math.inf], "must be finite"),
    ("1.5", range(9), "every token still attends to the previous one"),
    ("1.5", [16, 14, 12, 10, 8, 6, 4, 2, 0], "must seem to stand just before it"),
    ("1.5", range(0, -9, -1), "from 0 to 511"),
    ("2.1", lambda T, p: torch.ones(T, T).tril().bool(), "this is the causal mask"),
    ("2.1", lambda T, p: ~(torch.ones(T, T).tril().bool() | (torch.arange(T) < p)), "inverted"),
    ("2.1", lambda T, p: torch.ones(T, T).tril().bool() & (torch.arange(T) < p), "should be True"),
    ("2.1", lambda T, p: torch.ones(T, T).tril(), "not torch.float32"),
    ("2.1", lambda T, p: (torch.arange(T) < p)[None], "shape is"),
    ("2.2", lambda b: b.bool(), r"must be \(B, 1, T, S\)"),
    ("2.2", lambda b: _lower(b) & b.bool(), "write out both axes"),
    ("2.2", lambda b: _lower(b) & b.bool()[:, None, :, None], "it closes queries"),
    (
        "2.2",
        lambda b: _lower(b) & (b.cumsum(1) * b.flip(1).cumsum(1).flip(1) > 0)[:, None, None],
        r"the cell \[0, 0, 1, 1\] should be False",
    ),
    ("2.3", lambda head, x: False, "every position: this one leaks"),
    ("2.3", lambda head, x: True, "a causal head: this one does not leak"),
    ("2.3", lambda head, x: _moves(head, x, 0, -1), "one position too far: this one leaks"),
    ("2.3", lambda head, x: _moves(head, x, -2, -1) or _moves(head, x, 0, -1), "only the first"),
    ("2.3", lambda head, x: _derivatives(head, x, "tisj->ts"), "cancels out in a sum"),
    ("2.3", lambda head, x: _derivatives(head, x, "tisi->tsi"), "from one component to another"),
    ("2.3", lambda head, x: _derivatives(head, x, "tisj->tsj"), "with opposite signs"),
    ("2.3", lambda head, x: _moves(head, x, slice(0, 2), 2), "only output 0 leaks, and only"),
    ("2.3", lambda head, x: None, "not NoneType"),
    ("2.4", lambda s, m: s.masked_fill(~m, -math.inf).softmax(-1), "gives NaN"),
    ("2.4", lambda s, m: _opened(s, ~m), "wrong way round"),
    ("2.4", lambda s, m: s.masked_fill(~m, -1e9).softmax(-1), "gives weight to closed cells"),
    ("2.4", lambda s, m: s.softmax(-1) * m, "must sum to 1"),
    ("2.4", lambda s, m: (s + m.log()).softmax(-1).nan_to_num(), "gradient has NaN"),
    ("2.4", lambda s, m: s.masked_fill(~m, -50).softmax(-1) * m.any(-1, keepdim=True), "some"),
    ("2.4", lambda s, m: s.masked_fill_(~m, -1e30).softmax(-1) * m, "changed its argument"),
    ("2.4", lambda s, m: _opened(s.detach(), m), "no gradient"),
    ("2.4", lambda s, m: _opened(s, m).detach() + 0 * s, "not their gradient"),
    ("3.1", 324, "now add the biases"),
    ("3.1", 363, "the output projection has one, too"),
    ("3.1", 108, "that is one head"),
    ("3.1", 168, "d_model / H"),
    ("3.1", 273, "output projection, which joins the heads, is missing"),
    ("3.2", lambda split: _right_split(split, 2, 3, 1, 4), "accepts a wrong split: a view alone"),
    ("3.2", lambda split: _right_sums(split), "accepts a wrong split: tokens in reverse"),
    ("3.2", lambda split: _right_split(split, 1, 3, 4, 2), "accepts a wrong split: texts"),
    ("3.2", lambda split: _right_split(split, 2, 3, 4, 1), "numbers dealt out in turn"),
    ("3.2", lambda split: _right_split(split, 2, 3, 4, 2, heads=[0]), "the last two heads"),
    ("3.2", lambda split: _right_split(split, 2, 3, 4, 2, texts=[0]), "of the last text"),
    ("3.2", lambda split: False, "refuses a right split: view, then"),
    ("3.2", lambda split: not split(torch.ones(1, 3, 8), 4).is_contiguous(), "right split: slices"),
    ("3.3", lambda W, h, H: _head(W, h, H), "must be transposed"),
    ("3.3", lambda W, h, H: [M.chunk(H, 1)[h] for M in W.chunk(3)], "these are columns"),
    ("3.3", lambda W, h, H: [M[h::H].T for M in W.chunk(3)], "head 0 of 3 attends differently"),
    ("3.3", lambda W, h, H: [_head(W, h, H)[i].T for i in (0, 1, 1)], "W_v comes third"),
    (
        "3.3",
        lambda W, h, H: [_head(f * W, h, H)[i].T for i, f in enumerate((2, 0.5, 1))],
        "as they",
    ),
    ("3.3", lambda W, h, H: [M.T for M in W.chunk(3)], r"here \(6, 2\), not \(6, 6\)"),
    ("4.1", [36.0, 2.0], "uses one variance"),
    ("4.1", [18.0, 4.0], "two factors, each squared"),
    ("4.1", [16.0, 4.0], "one term: there are nine"),
    ("4.1", [12.0, 4.0], "its square is the variance"),
    ("4.1", [72.0, 2.83], "adds the two variances"),
    ("4.1", [4.0, 144.0], "the variance comes first"),
    ("4.1", [144.0, 12.0], "divide it by the square root of 9"),
    ("4.1", [144.0, 16.0], "take its root"),
    ("4.1", [144.0, 36.0], "dividing by 9 instead of its root"),
    ("4.2", lambda attend, d_k: d_k**-0.5, "for each function"),
    ("4.2", _of_ones, "one, or d_k"),
    ("4.2", lambda attend, d_k: 1 / _log_ratio(attend, d_k, 1.0), "its inverse, 4.000"),
    ("4.2", lambda attend, d_k: attend(torch.ones(1, d_k), torch.ones(2, d_k)), "not 2"),
    ("4.3", 0.3072, "unrelated words"),
    ("4.3", 0.0768, "falls by its root"),
    ("4.3", 768 * 0.0004 * math.sqrt(3) / 2, "root of 3/4"),
    ("4.3", 0.1536**2, "the variance"),
    ("4.3", 768 * 0.02 / 2, "enters twice"),
    ("4.3", 8 * 0.1536, "not divided"),
    ("4.4", lambda d, s, r, e: (s / d**0.5, r / d**0.5, e * d**0.5), "that is a²"),
    ("4.4", lambda d, s, r, e: (s / d**0.25, r, e), "learning rate stays as it was"),
    ("4.4", lambda d, s, r, e: (s / d**0.25, r / d**0.25, e / d**0.25), "so must eps"),
    ("4.4", lambda d, s, r, e: (s * d**0.25, r * d**0.25, e), "smaller, not larger"),
    ("4.4", lambda d, s, r, e: (s / d**0.25, r / d**0.25, e * d**0.5), "and a is"),
    ("4.4", lambda d, s, r, e: (s / d, r / d, e), "grows by its root"),
    ("5.1", [math.cos(4), math.sin(4), math.cos(0.4), math.sin(0.4)], "this is position 4"),
    ("5.1", [0.999, 0.052, 1.0, 0.005], "radians"),
    ("5.1", [-0.99, 0.141, 1.0, 0.03], "1/10"),
    ("5.1", [-0.99, 0.141, -0.99, 0.141], "a speed of its own"),
    ("5.1", [-0.99, 0.955, 0.141, 0.296], "side by side"),
    ("5.1", [[math.sin(3), math.cos(3)], (math.sin(0.3), math.cos(0.3))], "x is the cosine"),
    ("5.2", lambda W, H: W, "as it was"),
    ("5.2", lambda W, H: torch.cat([W[0::2], W[1::2]]), "within each head"),
    ("5.2", lambda W, H: W.unflatten(0, (2, -1)).transpose(0, 1).flatten(0, 1), "inverse"),
    ("5.2", lambda W, H: W.flip(0), "the even rows come first"),
    ("5.2", lambda W, H: W.copy_(torch.cat([W[0::2], W[1::2]])), "changed its argument"),
    ("5.3", lambda speeds, old, new: speeds, "nothing was slowed down"),
    ("5.3", lambda speeds, old, new: speeds * old / new, "position interpolation"),
    ("5.3", partial(_yarn, slower=False), "became faster"),
    ("5.3", partial(_yarn, swapped=True), "the other way round"),
    ("5.3", partial(_yarn, turn=1.0), "2π radians, not 1"),
    ("5.3", lambda *given: _yarn(*given, reach=given[2]), "must have made its turn in training"),
    ("5.3", _ntk, "NTK-aware scaling"),
    ("5.3", lambda speeds, old, new: speeds.mul_(old / new), "changed its argument"),
    ("6.1", [-1.22, 0.0, 0.0, 1.22], "divides the sum of squares by all four"),
    ("6.1", [-1.0, 0.0, 0.0, 1.0], "take its root first"),
    ("6.1", [-2, 0, 0, 2], "now divide by"),
    ("6.1", [1.41, 2.83, 2.83, 4.24], "subtract the mean"),
    ("6.1", [0.47, 0.94, 0.94, 1.41], "that is RMSNorm"),
    ("6.1", [-0.47, 0.0, 0.0, 0.47], "after the mean is subtracted"),
    ("6.2", lambda x, a, t, n: (y := x + a(n[0](x))) + t(n[2](y)), "this is pre-norm"),
    ("6.2", lambda x, a, t, n: (y := x + n[1](a(x))) + n[3](t(y)), "this is an output norm"),
    ("6.2", lambda x, a, t, n: n[1]((y := n[0](x + a(x))) + t(y)), "this is post-norm"),
    ("6.2", lambda x, a, t, n: (y := x + a(x)) + t(y), "no norm in it"),
    ("6.2", lambda x, a, t, n: (y := n[1](a(n[0](x)))) + n[3](t(n[2](y))), r"\+ x is missing"),
    ("6.2", lambda x, a, t, n: n[3](t(n[2](x + n[1](a(n[0](x)))))), "added to the stream as well"),
    ("6.2", lambda x, a, t, n: n[3](t(n[2](n[1](a(n[0](x)))))), "nothing is added"),
    ("6.2", lambda x, a, t, n: x + n[1](a(n[0](x))) + n[3](t(n[2](x))), "after attention has"),
    ("6.2", lambda x, a, t, n: x + n[3](t(n[2](x + n[1](a(n[0](x)))))), "start from the residual"),
    ("6.2", _added_to_the_norm, "add to x itself"),
    ("6.2", lambda x, a, t, n: _sandwich(x, a, t, [n[0], n[2], n[1], n[3]]), "0 and 1 are"),
    ("6.2", lambda x, a, t, n: _sandwich(x, a, t, [*n[:2], *n[:2]]), "the first two twice"),
    ("6.2", lambda x, a, t, n: _sandwich(x.add_(0.5), a, t, n), "changed its argument"),
    ("6.3", lambda w, g, r, e: w / w.square().mean(1)[:, None].add(e).sqrt() * g @ r, "own size"),
    ("6.3", lambda w, g, r, e: w * g @ r, "divides by the size of the final vector"),
    ("6.3", lambda w, g, r, e: w / _size(w, e) @ r, "has a gain"),
    ("6.3", lambda w, g, r, e: w / _size(w, 0.0) * g @ r, "eps is part"),
    ("6.3", lambda w, g, r, e: w / (w.sum(0) ** 2).sum().add(e).sqrt() * g @ r, "not of the sum"),
    ("6.3", lambda w, g, r, e: w @ w.sum(0) / (w.sum(0) ** 2).sum(), "these are shares"),
    ("6.3", lambda w, g, r, e: (c := _credits(w, g, r, e)) / c.sum(), "add up to 1"),
    ("6.3", lambda w, g, r, e: _credits(w, g, r, e).sum(), "the logit itself"),
    ("6.3", lambda w, g, r, e: _credits(w, g, r, e).mean().expand(len(w)), "that of its own write"),
    ("7.1", lambda ours, theirs, x: None, "first block: 0 is wanted, not None"),
    ("7.1", partial(_first_wrong, close=0.0), "rounding is no mistake"),
    ("7.1", partial(_first_wrong, own=True), "give both blocks the same x"),
    ("7.1", partial(_first_wrong, first=1), "counted from 0"),
    ("7.1", partial(_first_wrong, hidden=True), "the last block hides: 2 is wanted, not None"),
    ("7.1", lambda *given: _first_wrong(*given) is None, "the index of a block"),
    ("7.2", lambda out, n: out.mean(1), "padding included"),
    ("7.2", lambda out, n: _mean(out, n), "padding that holds nan"),
    ("7.2", lambda out, n: _mean(out, n).mul(n[:, None]), "this is the sum over the real tokens"),
    ("7.2", lambda out, n: _mean(out, n + 1) * (n + 1)[:, None] / n[:, None], "not if t <= n"),
    ("7.2", lambda out, n: _mean(out, n - 1), "leaves out the last real token"),
    ("7.2", lambda out, n: F.normalize(_mean(out, n), dim=1), "the mean alone is wanted"),
    ("7.2", lambda out, n: _mean(out, n) * n[:, None] / n.sum(), "tokens of all texts"),
    ("7.2", lambda out, n: _mean(out, n) * n[:, None] / out.shape[1], "divided by T"),
    ("7.2", lambda out, n: out[:, 0], "first token alone"),
    ("7.2", partial(_mean, keep=lambda out, real: out.masked_fill_(~real, 0)), "its argument"),
    ("7.3", lambda encode: False, "without a mask gets the verdict False"),
    ("7.3", lambda encode: True, "that is right gets the verdict True"),
    ("7.3", lambda encode: _in_company(encode, ["a", "b c d"]) > 0.0, "up to rounding gets"),
    ("7.3", lambda encode: _in_company(encode, ["a", "b c d"], of=0) > 1e-5, "cuts each text"),
    ("8.1", [16 / 30, 9 / 30, 4 / 30, 1 / 30], "now cut off the tail"),
    ("8.1", [0.533, 0.3, 0, 0], "rescale what is kept"),
    ("8.1", [0.552, 0.31, 0.138, 0], "that is top-p first"),
    ("8.1", [1, 0, 0, 0], "so the next is kept"),
    ("8.1", [4 / 9, 3 / 9, 2 / 9, 0], "that is top-p alone"),
    ("8.1", [0.36, 0.31, 0.33, 0], "favours the likeliest"),
    ("8.1", [0.7, 0.3, 0, 0], "squares each probability"),
    ("8.1", [0.8, 0.6, 0.4, 0.2], "must sum to 1"),
    ("8.2", lambda z, t, m: _cut(z, _sure(z, t) <= m * _sure(z, t).max()), "on the bound is kept"),
    ("8.2", lambda z, t, m: _cut(z, _sure(z, t) < m), "not min_p itself"),
    ("8.2", lambda z, t, m: _cut(z, _likelier(_sure(z, t)) >= m), "that is top-p"),
    ("8.2", lambda z, t, m: _cut(z, _low(z, 1, m)), "temperature is missing"),
    ("8.2", lambda z, t, m: _cut(z, _low(z, 1 / t, m)), "does not divide"),
    ("8.2", lambda z, t, m: _cut(z, z < m * z.max()), "by a factor"),
    ("8.2", lambda z, t, m: _cut(z, z < z.max() - m), "its logarithm is the difference"),
    ("8.2", lambda z, t, m: _cut(z, ~_low(z, t, m)), "keeps what should be cut"),
    ("8.2", lambda z, t, m: _cut(z, _low(z, t, m)) / t, "keep their logit"),
    ("8.2", lambda z, t, m: _sure(_cut(z, _low(z, t, m)), t), "those are probabilities"),
    ("8.2", lambda z, t, m: z.masked_fill_(_low(z, t, m), -math.inf), "its argument"),
    ("8.2", lambda z, t, m: z[z > 0], "a logit for each of 7"),
    ("8.2", lambda z, t, m: _cut(z, _low(z, t, m)) * ~_low(z, t, m), "there is NaN"),
    ("8.3", [4, 5], "those are bits per token"),
    ("8.3", [0.833, 1], "swapped"),
    ("8.3", [4, 6], "bytes per token"),
    ("8.3", [1200, 1000], "divide by its bytes"),
    ("8.3", [0.693, 0.578], "nats"),
    ("8.3", [4, 5.333], "logarithm of the perplexity first"),
    ("8.4", lambda city: len(city), "must return a text"),
    ("8.4", lambda city: "Paris is the capital of", "does not name Vienna"),
    ("8.4", lambda city: f"{city} is in Austria or Italy. It is in", "names Austria"),
    ("9.1", 600 + 2964, "counts once"),
    ("9.1", 2964 - 12, "the last one"),
    ("9.1", 2964 - 60, "the norms are missing"),
    ("9.1", 2964 + 60, "a gain and no bias"),
    ("9.1", 2964 + 288, "only 2 heads"),
    ("9.1", 2964 - 48, "two norms of each block"),
    ("9.1", 2964 - 144, "keys and values are two matrices"),
    ("9.1", 2964 - 480, "SwiGLU has three matrices"),
    ("9.1", 600 + 1176 + 12, "two blocks"),
    ("9.1", 2364, "the embedding is missing"),
    ("9.2", lambda W, n, H: W.repeat(H // n, 1), "the heads are tiled"),
    ("9.2", lambda W, n, H: W.repeat_interleave(H // n, 0), "repeat whole heads, of 2 rows"),
    ("9.2", lambda W, n, H: W.flip(0).repeat(H // n, 1), "key head h // 3"),
    ("9.2", lambda W, n, H: W.zero_().repeat(H // n, 1), "changed its argument"),
    ("9.3", lambda m, t: True, "accepts a cache that forgets all earlier"),
    ("9.3", lambda m, t: False, "by rounding"),
    ("9.3", lambda m, t: _all_cuts(m, t, lambda n: [range(1, n)]), "pieces of more than one"),
    ("9.3", lambda m, t: _all_cuts(m, t, lambda n: [(3,)]), "pieces of a single token"),
    ("9.3", lambda m, t: _all_cuts(m, t, lambda n: [(2, 5), (2, 3)]), "just after the first token"),
    ("9.3", lambda m, t: _all_cuts(m, t[:, :4], _pairs), "from the fifth token"),
    ("9.3", lambda m, t: _all_cuts(m, t, lambda n: [(1, 2, 4)]), r"2 tokens after 1 other\.$"),
    ("9.3", lambda m, t: m(t, cache=_full(m, t)), "cut with a new cache"),
    ("9.3", lambda m, t: m(t, cache=[]), "must be an attn_lib.Cache"),
    ("9.4", lambda m, r, t: True, "accepts a model that rotates at another speed"),
    ("9.4", lambda m, r, t: torch.equal(m(t), r(t)), "refuses a right model.*rounding"),
    ("9.4", lambda m, r, t: _near(m(t)[:, -1], r(t)[:, -1]), "wrong after the first token alone"),
    ("9.4", lambda m, r, t: _near(m(t), r(t), 0.02), "has another epsilon"),
    ("9.4", lambda m, r, t: _near(m(t), r(t)), "counts its positions anew in each call"),
    ("9.4", lambda m, r, t: r(t, cache=_full(m, t)), "give each model a new cache"),
    ("10.1", [1, 0, 0], "earlier copies of this word"),
    ("10.1", [0, 1 / 3, 2 / 3], "wug followed twice"),
    ("10.1", [0, 0.5, 0.5], "came before the earlier ones"),
    ("10.1", [1 / 3] * 3, "the second word after"),
    ("10.1", [4 / 9, 3 / 9, 2 / 9], "counts all words"),
    ("10.1", [0, 1, 0], "give shares"),
    ("10.1", [0, 2, 1], "shares sum to 1"),
    ("10.1", [0.2, 0.5, 0.3], "mark the dax"),
    ("10.2", lambda x, w: _near_mask(len(x), 1), "for every word"),
    ("10.2", lambda x, w: _near_mask(len(x)), "nothing is closed"),
    ("10.2", lambda x, w: _less(x, x == w, 2), "one too far"),
    ("10.2", lambda x, w: _less(x, x == w, 0), "closes the word to itself"),
    ("10.2", lambda x, w: _less(x, (x == w)[:, None], 1), "what this word reads before it"),
    ("10.2", lambda x, w: _near_mask(len(x)) & ~_after(x, w), "what the second layer looks for"),
    ("10.2", lambda x, w: ~_less(x, x == w, 1), "inverted"),
    ("10.2", lambda x, w: _less(x, x == w, 1) | (x != w), "future"),
    ("10.2", lambda x, w: _less(x, x == w, 1, 2), "more than it has to"),
    ("10.2", lambda x, w: _less(x, x != w, 1), "can still read this one"),
    ("10.3", lambda w, x: w.diagonal(-1).mean(), "previous-token head"),
    ("10.3", lambda w, x: _on(w, x, 0), "attention to the same token"),
    ("10.3", lambda w, x: _on(w, x, 2), "the second token after"),
    ("10.3", lambda w, x: _on(w, x, -1), "the token before"),
    ("10.3", lambda w, x: _on(w, x, 1, every=True), "only over queries whose token"),
    ("10.4", lambda x, n: _followers(x, n, 1), "that is the bigram"),
    ("10.4", lambda x, n: _followers(x, n, 3), "three words, not two"),
    ("10.4", lambda x, n: _followers(x, n, 2, start=0), "start every count at one"),
    ("10.4", lambda x, n: _followers(x, n, 2, whole=True), "and nothing later"),
    ("10.4", lambda x, n: _followers(x, n, 2)[[*range(1, len(x) - 1), -1]], "one word ahead"),
    ("10.4", lambda x, n: F.pad(_followers(x, n, 2)[:-1], (0, 0, 1, 0), value=1 / n), "late"),
    ("10.4", lambda x, n: 2 * _followers(x, n, 2), "sum to 1"),
    ("11.1", [10, 21], "first the row without"),
    ("11.1", [36, 14], "both masks are causal"),
    ("11.1", [21, 14], "still causal: inside"),
    ("11.1", [36, 10], "without segments, the mask is still causal"),
    ("11.1", [15, 4], "may attend to itself"),
    ("11.1", [21, 11], "segment mask closes"),
    ("11.1", [21, 6], "all earlier tokens of its own"),
    ("11.1", [20, 10], "add up 1 to 6"),
    ("11.1", [21, 12], "add up three"),
    ("11.2", lambda e: (torch.arange(int(e[-1])), _documents(e)), "count on"),
    ("11.2", lambda e: (_places(e) + 1, _documents(e)), "is 1 instead of 0"),
    ("11.2", lambda e: (_documents(e), _places(e)), "first the positions"),
    ("11.2", lambda e: (_places(e), torch.bucketize(torch.arange(e[-1]), e[1:])), "the one before"),
    ("11.2", lambda e: (_places(e), torch.zeros_like(_places(e))), "the segments are"),
    ("11.3", _rows([3, 1, 4, 1], [3, 1, 4, 1], [0, 0, 1, 1], 2), "the two rows are equal"),
    ("11.3", _rows([3, 1, 4, 1], [3, 5, 4, 1], [0, 0, 0, 0], 2), "only one document"),
    ("11.3", _rows([3, 1, 4, 1], [3, 5, 4, 1], [0, 0, 1, 1], 1), "inside the document of t"),
    ("11.3", _rows([3, 1, 4, 1], [2, 5, 4, 1], [0, 0, 1, 1], 2), "in 2 tokens"),
    ("11.3", _rows([3, 1, 4, 1], [3, 1, 4, 5], [0, 0, 0, 1], 2), "is not seen"),
    ("11.3", _rows([3, 1, 4, 1], [2, 1, 4, 1], [0, 1, 2, 3], 3), "those of another document"),
    ("11.3", _rows([3, 1, 4, 1], [3, 5, 4, 1], [0, 0, 1, 2], 9), "from 0 to 3"),
    ("11.3", _rows([3, 1, 44, 1], [3, 5, 44, 1], [0, 0, 1, 1], 2), "from 0 to 30"),
    ("11.3", _rows([3, 1, 4, 1], [3, 5, 4, 1], [1, 1, 0, 0], 2), "rise along the row"),
    ("11.3", _rows([3, 1, 4], [3, 5, 4, 1], [0, 0, 1, 1], 2), r"\(1, T\) each"),
    ("11.3", (*[torch.tensor([[0.0, 1.0]])] * 3, 1), "integers"),
    ("11.4", lambda x, s: F.pad(x[:, :-1], (0, 0, 1, 0)), "it still crosses"),
    ("11.4", lambda x, s: x.roll(1, 1), "first token of the row gets the last"),
    ("11.4", lambda x, s: x, "nothing is moved"),
    ("11.4", lambda x, s: x.roll(-1, 1), "the other way"),
    ("11.4", lambda x, s: _inside(F.pad(x[:, :-1], (0, 0, 1, 0)), s, ends=True), "clear what"),
    ("11.4", lambda x, s: torch.where(_begins(s), x, x.roll(1, 1)), "keeps itself"),
    ("12.1", lambda b: torch.cat(b).exp().sum().log(), "it overflows"),
    ("12.1", lambda b: _streamed(b, rescale=False), "the old sum must be multiplied"),
    ("12.1", lambda b: torch.cat(b).clamp(max=700).exp().sum().log(), "scores that fall far"),
    ("12.1", lambda b: _streamed(b, guarded=False), "it gives NaN"),
    ("12.1", lambda b: torch.cat(b).sub(1001).exp().sum().log() + 1001, "it gives −∞"),
    ("12.2", lambda T, S, b, w: _tiles(T, S, b, w, left=False), "closes on the left"),
    ("12.2", lambda T, S, b, w: _tiles(T, S, b, w, late=1), "position t"),
    ("12.2", lambda T, S, b, w: _tiles(T, S, b, w + 1), "counts the token itself"),
    ("12.2", lambda T, S, b, w: math.ceil(T / b) * math.ceil(S / b), "instead of"),
    ("12.3", lambda out, log, sink: out, "the sink changes nothing"),
    ("12.3", lambda out, log, sink: out * torch.sigmoid(sink - log), "the share of the sink"),
    ("12.3", lambda out, log, s: out * log.exp() / (log.exp() + math.exp(min(s, 700))), "NaN"),
    ("12.4", lambda m: _by_scores(m, lambda m, i, j: m * (j - i)), "the sign"),
    ("12.4", lambda m: _by_scores(m, lambda m, i, j: m * (i - i.min() - j + j.min())), "the tile"),
    ("12.4", lambda m: m, "a function that returns a function"),
    ("13.1", [5.0, 10.0], "before the second was written"),
    ("13.1", [5.0, 13.0], "what adding gives"),
    ("13.1", [6.8, 10.6], "not the other way round"),
    ("13.1", [0.0, 5.0], "what the second key reads"),
    ("13.1", [2.0, 9.0], "0.6 of it"),
    ("13.1", [-1.8, -0.6], "add what was there"),
    ("13.2", lambda d, e: math.floor(d * e), "N − 1 others are"),
    ("13.2", lambda d, e: math.floor(d * e * e) + 1, "not its root"),
    ("13.2", lambda d, e: math.floor(math.sqrt(d) * e) + 1, "1/d on average"),
    ("13.2", lambda d, e: d, "right angles"),
    ("13.2", lambda d, e: d * e + 1, "round down"),
    ("13.2", lambda d, e: math.floor(d / (1 - e)), "it raised ZeroDivisionError"),
    ("13.3", lambda a, S, b, R: (a + b, S + R), "must fade by the gates of the second half"),
    ("13.3", lambda a, S, b, R: (a + b, S + a.exp() * R), "the first state that fades"),
    ("13.3", lambda a, S, b, R: (a + b, a.exp() * S + R), "not by its own"),
    ("13.3", lambda a, S, b, R: (a + b, b.exp() * (S + R)), "faded already"),
    ("13.3", lambda a, S, b, R: (a + b, b * S + R), "the factor is e to it"),
    ("13.3", lambda a, S, b, R: ((a + b).exp(), b.exp() * S + R), "the sum of logarithms"),
    ("13.3", lambda a, S, b, R: (a * b, b.exp() * S + R), "their logarithms are added"),
    ("13.4", lambda rule: True, "acts after the write"),
    ("13.4", lambda rule: _ends_in(rule, begun=0.0), "never applied"),
    ("13.4", lambda rule: _ends_in(rule, lambda S, write: S / 2 + write(S / 2) / 2), "also fades"),
    ("13.4", lambda rule: _ends_in(rule, lambda S, write: S / 2 + write(S)), "from before it"),
    ("13.4", lambda rule: _ends_in(rule, lambda S, write: 2 * S + write(2 * S)), "larger"),
    ("14.1", lambda d: 4 * d * d + 4 * d, "norm before cross-attention"),
    ("14.1", lambda d: 4 * d * d + 5 * d, "both a scale and a shift"),
    ("14.1", lambda d: 4 * d * d + 2 * d, "has a bias, too"),
    ("14.1", lambda d: 4 * d * d, "biases and the norm are missing"),
    ("14.1", lambda d: 3 * d * d + 5 * d, "a fourth projection"),
    ("14.1", lambda d: 3 * d * d + 3 * d, "output projection and the norm"),
    ("14.1", lambda d: 16768, "for d_model = 5 it is 130, not 16768"),
    ("14.2", lambda z, w, f: _nll(z, w).mean(), "padding is counted"),
    ("14.2", lambda z, w, f: (_nll(z, w) * (w != f)).mean(), "divided by the number of all"),
    ("14.2", lambda z, w, f: (_nll(z, w) * (w != f)).sum(), "this is the sum"),
    ("14.2", _mean_of_means, "each example is averaged first"),
    ("14.3", lambda f, *given: _written(lambda text: f(text[-1:]), *given), "everything written"),
    ("14.3", lambda f, start, end, n: _written(f, start, end, n + 1), "for a model that"),
    ("14.3", lambda f, start, end, n: _written(f, start, end, 10**9), "for ever"),
    ("14.3", lambda f, start, end, n: _written(f, start, None, n), "do not belong"),
    ("14.4", lambda S, brings: [s for s in range(S) if brings([s])], "also where it has only one"),
    ("14.4", lambda S, brings: [(s,) for s in range(S) if brings([s])], "rows 1 and 4 together"),
    ("14.4", lambda S, brings: _sets(S, brings)[:1], "more than one smallest set"),
    ("14.4", lambda S, brings: _bringing(S, brings), "a larger set is no smallest one"),
    ("14.4", lambda S, brings: 2 * _sets(S, brings), "returned twice"),
    ("14.4", lambda S, brings: brings(3), "takes a list of rows"),
    ("14.4", lambda S, brings: brings([S]), "there are rows 0 to 5, and brings was asked for 6"),
    ("14.4", lambda S, brings: _sets(S, brings) or [()], "no rows bring it"),
    ("15.1", [196, 590592], "the class token is a token too"),
    ("15.1", [225, 590592], "patches in a row"),
    ("15.1", [197, 589824], "biases are missing"),
    ("15.1", [197, 197376], "three colours"),
    ("15.1", [197, 150528], "has a weight for each"),
    ("15.2", lambda x, p, c: x.reshape(_joined(x, p, c).shape), "strips"),
    ("15.2", lambda x, p, c: _joined(x, p, c).mT, "rows and columns"),
    ("15.2", _columnwise, "row by row, not column by column"),
    ("15.2", _channels_last, "the channels come first, not last"),
    ("15.3", lambda model, x: True, "attention with positions: it uses"),
    ("15.3", lambda model, x: False, "attention, then the mean: it ignores"),
    ("15.3", _ignores([*range(9)][::-1]), "neighbours multiplied: it uses"),
    ("15.3", _ignores([8, *range(8)]), "around a circle: it uses"),
    ("15.3", _ignores([8, *range(1, 8), 0]), "the patch in the middle alone: it uses"),
    ("15.3", _ignores([1, 0, *range(2, 9)]), "the last patch alone: it uses"),
    ("15.4", ["rate", "fair", "test", "fair"], "what one image costs"),
    ("15.4", ["test", "compute", "test", "fair"], "'test' is not the answer for a"),
    ("15.4", {**_REFEREE, "b": "time"}, "one of rate, compute, test, fair is wanted, not 'time'"),
    ("16.1", lambda m: _rolled(m[::-1]), "order is reversed"),
    ("16.1", lambda m: _rolled(m, lambda A, eye: A.mean(1)), "the residual stream"),
    ("16.1", lambda m: _rolled(m, lambda A, eye: A.mean(1) + eye), "halve each factor"),
    ("16.1", lambda m: _rolled(m, lambda A, eye: A.sum(1) + eye), "do not add them up"),
    ("16.1", lambda m: _rolled(m[-1:]), "last layer alone"),
    ("16.2", lambda a, b: _apart(b, a), "the second minus the first"),
    ("16.2", lambda a, b: (abs(_apart(a, b)[0]) + 1, 0.1), "not the difference of the shares"),
    ("16.2", partial(_apart, by=1 / 1.96), "multiply it by 1.96"),
    ("16.2", _unpaired, "take the difference of each image"),
    ("16.2", lambda a, b: _apart(a, b, len(a) ** 0.5), "by the root of the"),
    ("16.2", lambda a, b: _apart(a, b, len(a) ** -0.5), "only once"),
    ("16.3", lambda explain, x: True, "a map of each image: it depends"),
    ("16.3", lambda explain, x: False, "one map for all: it ignores"),
    ("16.3", lambda f, x: _same(f(x), atol=1e-5), "the mean map of the batch: it depends"),
    ("16.3", lambda f, x: len(_maps(f, x).flatten(1).argmax(1).unique()) == 1, "made darker"),
    ("16.3", lambda f, x: _same(_maps(f, x), rtol=1e-4, atol=1e-5), "in tiny numbers: it depends"),
    ("17.1", 22, "sum of the squares"),
    ("17.1", 4.4, "five days make four forecasts"),
    ("17.1", 2, "square them first"),
    ("17.1", 1, "the signs cancel"),
    ("17.1", 2.345, "root of the mean"),
    ("17.2", lambda raw, n: (raw - raw.mean(0)) / raw.std(0), "those of all days"),
    ("17.2", lambda raw, n: (raw - raw[:n].mean()) / raw[:n].std(), "of its own"),
    ("17.2", lambda raw, n: raw - raw[:n].mean(0), "now divide"),
    ("17.2", lambda raw, n: (raw - raw[:n].mean(0)) / raw[:n].var(0), "take its root"),
    ("17.2", lambda raw, n: (raw - raw[:n].mean(0)) / raw.std(0), "deviation is that of all days"),
    ("17.2", lambda raw, n: (raw - raw.mean(0)) / raw[:n].std(0), "mean is that of all days"),
    ("17.2", lambda raw, n: (raw - raw[: n + 1].mean(0)) / raw[: n + 1].std(0), "one day more"),
    ("17.2", lambda raw, n: (raw - raw[: n - 1].mean(0)) / raw[: n - 1].std(0), "one day less"),
    ("17.2", lambda raw, n: (raw[:n] - raw[:n].mean(0)) / raw[:n].std(0), "11 days of 3 features"),
    ("17.2", lambda raw, n: raw - raw[:n].mean(1), "over the days, dim=0"),
    ("17.2", lambda raw, n: raw.sub_(raw[:n].mean(0)).div_(raw[:n].std(0)), "changed its argument"),
    ("17.3", lambda z, T, end: z[:end].unfold(0, T + 1, 1), "the days come before"),
    ("17.3", lambda z, T, end: z.unfold(0, T + 1, 1).mT, "ends with day 10"),
    ("17.3", lambda z, T, end: z[: end - 1].unfold(0, T + 1, 1).mT, "there are 4 windows, not 3"),
    ("17.3", lambda z, T, end: z[:end].unfold(0, T + 1, 1).mT.flip(1), r"days \[4, 3, 2, 1"),
    ("17.3", lambda z, T, end: z.mul_(2)[:end].unfold(0, T + 1, 1).mT, "changed its argument"),
    ("17.4", lambda a, b, y: _judged(b, a, y), "where a is worse"),
    ("17.4", lambda a, b, y: sorted({*_judged(a, b, y), *_judged(b, a, y)}), "in either direction"),
    ("17.4", lambda a, b, y: _judged(a, b, y, errors=0), "a smaller mean is not enough"),
    ("17.4", lambda a, b, y: _judged(a, b, y, days=1), "two deviations of a day"),
    ("17.4", lambda a, b, y: _judged(a, b, y, paired=False), "take the daily differences first"),
    ("17.4", lambda a, b, y: _judged(a, b, y, spread=(a - b).std()), "judge each year by its own"),
    ("17.4", lambda a, b, y: _judged(a.sub_(b), 0 * b, y), "changed its argument"),
    ("17.4", lambda a, b, y: 2015, "a list of years is wanted, not int"),
    ("18.1", lambda *given: _real(*given, scale=1 / 4), "by d_k, not by its root"),
    ("18.1", lambda *given: _real(*given, scale=1.0), "not scaled at all"),
    ("18.1", lambda *given: _real(*given, scale=2.0), "are multiplied"),
    ("18.1", lambda *given: _masked_late(*given, 2), "so rows sum to less"),
    ("18.1", lambda *given: _masked_late(*given, 4), "function as it was"),
    ("18.1", lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v), "has no effect"),
    ("18.1", lambda q, k, v, m: _real(q, k, v, ~m), "mask is inverted"),
    ("18.2", partial(F.scaled_dot_product_attention, is_causal=True), "with T=1 and S=4, .* first"),
    ("18.2", partial(_causal, more=1), "one key too many"),
    ("18.2", partial(_causal, more=-1), "its own is closed"),
    ("18.2", partial(_causal, more=99), "nothing is closed"),
    ("18.3", partial(_headed, merged=False), "in another order"),
    ("18.3", partial(_headed, cut=False), "mixes positions and heads"),
    ("18.3", partial(_headed, cut=False, merged=False), "function as it was"),
    ("18.3", lambda q, k, v, H: _headed(q, k, v, H, scale=q.shape[-1] ** -0.5), "not of all"),
]

RIGHT = {  # exercise -> a right answer of a kind that one does not think of first
    "1.1": [[0.472, 0.472, 0.057]],
    "1.2": lambda s: (s - s.logsumexp(-1, keepdim=True)).exp(),
    "1.3": lambda q, k, v: (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v,
    "1.4": [[-5], [20]],
    "1.5": range(300, 291, -1),
    "2.1": lambda T, p: ~torch.ones(T, T).triu(1).bool() | (torch.arange(T).expand(T, T) < p),
    "2.2": lambda b: b[:, None, None] * _lower(b) == 1,
    "2.3": lambda head, x: any(_moves(head, x, slice(0, t), t) for t in range(1, len(x))),
    "2.4": _opened,
    "3.1": [369],
    "3.2": lambda split: _right_split(split, 2, 3, 4, 2),
    "3.3": lambda W, h, H: tuple(M.T for M in _head(W, h, H)),
    "4.1": [144, 4],
    "4.2": lambda attend, d_k: _log_ratio(attend, d_k, 0.5) / 0.5,
    "4.3": 0.154,
    "4.4": lambda d, std, rate, eps: torch.tensor([std, rate, eps * d**0.5]) / d**0.25,
    "5.1": [[-0.99, 0.14], [0.96, 0.3]],
    "5.2": lambda W, H: W.unflatten(0, (H, -1, 2)).transpose(1, 2).flatten(0, 2),
    "5.3": _yarn,
    "6.1": [-1.414, 0, 0, 1.414],
    "6.2": _sandwich,
    "6.3": _credits,
    "7.1": _first_wrong,
    "7.2": lambda out, n: torch.stack([row[:k].mean(0) for row, k in zip(out, n, strict=True)]),
    "7.3": lambda encode: _in_company(encode, ["warm", "milk and honey", "it rains"]) > 1e-4,
    "8.1": [0.64, 0.36, 0.0, 0.0],
    "8.2": lambda z, t, m: _cut(z, _sure(z, t) < m * _sure(z, t).max()),
    "8.3": [1.0, 0.8333],
    "8.4": MARKED.format,
    "9.1": 50 * 12 + 2 * 1176 + 12,
    "9.2": lambda W, n, H: torch.cat([c for c in W.chunk(n) for _ in range(H // n)]),
    "9.3": lambda m, t: _all_cuts(
        m, t, lambda n: [(a, b) for a in range(1, n) for b in range(a, n)]
    ),
    "9.4": lambda m, r, t: _near(_in_two(m, t), _in_two(r, t)),
    "10.1": [0.0, 0.667, 0.333],
    "10.2": lambda x, w: (1 - torch.diag((x[:-1] == w).float(), -1)).tril() > 0,
    "10.3": lambda w, x: _on(w, x, 1),
    "10.4": lambda x, n: _followers(x, n, 2),
    "11.1": [21, 10],
    "11.2": lambda e: (_places(e).double(), _documents(e) + 7),
    "11.3": _rows([7, 1], [8, 1], [2, 5], 1),
    "11.4": lambda x, s: _inside(x.roll(1, 1), s),
    "12.1": _streamed,
    "12.2": _tiles,
    "12.3": lambda out, log, sink: out / (1 + (sink - log).exp()),
    "12.4": lambda m: _by_scores(m, lambda m, i, j: m * (i - j)),
    "13.1": [3.2, 9.4],
    "13.2": lambda d, e: max(n for n in range(1, 999) if (n - 1) / d <= e),
    "13.3": lambda a, S, b, R: ((a.exp() * b.exp()).log(), S * math.exp(b) + R),
    "13.4": _ends_in,
    "14.1": lambda d: 2 * d * (2 * d + 3),
    "14.2": lambda z, w, f: _nll(z, w)[w != f].mean(0, keepdim=True),
    "14.3": _written,
    "14.4": lambda S, brings: _sets(S, brings)[::-1],
    "15.1": [[197, 590592]],
    "15.2": _joined,
    "15.3": _ignores([3, 0, 7, 1, 5, 8, 2, 6, 4]),
    "15.4": "Learning_rate, compute, test, nothing",
    "16.1": _rolled,
    "16.2": _apart,
    "16.3": lambda f, x: (_maps(f, x).std(0) < 1e-6 * _maps(f, x).max()).all(),
    "17.1": 5.5,
    "17.2": lambda raw, n: (raw.float() - raw[:n].float().mean(0)) / raw[:n].float().std(0),
    "17.3": lambda z, T, end: torch.stack([z[s : s + T + 1] for s in range(end - T)]),
    "17.4": _judged,
    "18.1": _real,
    "18.2": _causal,
    "18.3": _headed,
}
