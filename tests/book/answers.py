"""Answers to the exercises: mistakes that somebody makes, and right answers of unusual kinds."""

import itertools
import math
from fractions import Fraction

import numpy as np
import torch
import torch.nn.functional as F

import attn_lib


def _shifted(scores, by):
    powers = (scores - by).exp()
    return powers / powers.sum(-1, keepdim=True)


def _over_the_second_axis(scores):
    powers = (scores - scores.amax(1, keepdim=True)).exp()
    return powers / powers.sum(1, keepdim=True)


def _summed_derivatives(head, x):
    reach = torch.autograd.functional.jacobian(head, x).sum(dim=(1, 3)).abs() > 1e-9
    return bool(reach.triu(diagonal=1).any())


def _some_derivatives(head, x, kind):
    reach = torch.einsum(kind, torch.autograd.functional.jacobian(head, x)).abs() > 1e-9
    return bool(reach.any(dim=-1).triu(diagonal=1).any())


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


def _rescaled(parts):
    q, k, v = parts
    return [2 * q.T, k.T / 2, v.T]


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


def _cut_where(z, cut):
    return z.masked_fill(cut, -math.inf)


_asked = "Which country has {} as its capital?".format


def _marked(question):
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


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


def _yarn(
    by=lambda trained, wanted: trained / wanted,
    swapped=False,
    turn=2 * math.pi,
    reach=lambda trained, wanted: trained - 1,
):
    def slowed(speeds, trained, wanted):
        whole = reach(trained, wanted) * speeds >= turn
        return torch.where(whole ^ swapped, speeds, speeds * by(trained, wanted))

    return slowed


def _ntk(speeds, trained, wanted):
    pairs = len(speeds)
    base = float(1 / speeds[1]) ** pairs
    base *= (wanted / trained) ** (pairs / (pairs - 1))
    return base ** (-torch.arange(pairs, dtype=torch.float64) / pairs)


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


def _first_wrong(ours, theirs, x, close=1e-5, *, own=False, only_if_ends_differ=False):
    """The first block that differs, with a mistake or without."""
    if only_if_ends_differ and torch.allclose(_run(ours, x), _run(theirs, x), atol=close):
        return None
    y = x
    for i, (our, their) in enumerate(zip(ours, theirs, strict=True)):
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


def _apart(first, second, ddof=1):
    """A difference of shares, and 1.96 of its standard errors."""
    apart = np.subtract(first, second)
    return apart.mean(), 1.96 * apart.std(ddof=ddof) / len(apart) ** 0.5


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


def _every(n):
    return [c for k in range(n) for c in itertools.combinations(range(1, n), k)]


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


def _prefixes(head, x):
    """Whether a row changes once the rows after it are there."""
    whole = head(x)
    return not all(torch.allclose(head(x[: t + 1])[t], whole[t]) for t in range(len(x)))


def _masked_softmax_twice(s, m):
    """An empty row is opened before the softmax, and closed after it."""
    open_rows = m | ~m.any(-1, keepdim=True)
    return torch.where(m, s.masked_fill(~open_rows, -math.inf).softmax(-1), 0.0)


def _shuffles(model, patches):
    """One shuffle of many longer sequences of one's own."""
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(1, 12, 7, generator=generator)
        order = torch.randperm(12, generator=generator)
        if not torch.allclose(model(x[:, order]), model(x), atol=1e-4):
            return False
    return True


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


def _judges_rule(rule, *, beta=0.5, gate=0.5, start=None, by="state", T=1):
    """Whether a gated delta rule gives what one step gives, by its state, output or both."""
    k = F.normalize(torch.tensor([[0.6, 0.8], [1.0, 0.0]]), dim=-1)[:T]
    v = torch.tensor([[1.0, -2.0], [0.5, 3.0]])[:T]
    S = torch.tensor([[3.0, 1.0], [0.5, -1.0]]) if start is None else torch.full((2, 2), start)
    betas, gates = torch.full((T, 1), beta), torch.full((T, 1), gate)
    out, last = rule(k, k, v, betas, gates.log(), S)
    for t in range(T):
        S = gate * S
        S = S + k[t, :, None] * (beta * (v[t] - k[t] @ S))
        if by == "output" and not torch.allclose(out[t], k[t] @ S, atol=1e-4):
            return False
    return by == "output" or torch.allclose(last, S, atol=1e-4)


def _lets_pass(rule, wrong):
    """A test of a gated delta rule that takes one wrong state beside the right one."""
    k, v, half = torch.tensor([[0.6, 0.8]]), torch.tensor([[1.0, -2.0]]), torch.tensor([[0.5]])
    S = torch.tensor([[3.0, 1.0], [0.5, -1.0]])
    last = rule(k, k, v, half, half.log(), S)[1]

    def write(S):
        return k.mT @ (0.5 * (v - k @ S))

    states = {
        "right": S / 2 + write(S / 2),
        "write faded": S / 2 + write(S / 2) / 2,
        "read before": S / 2 + write(S),
        "larger": 2 * S + write(2 * S),
    }
    return any(torch.allclose(last, states[name], atol=1e-4) for name in ("right", wrong))


def _kinds(right):
    """A right function in single precision; in double precision, as a NumPy array."""
    return [lambda *given: right(*given).float(), lambda *given: right(*given).double().numpy()]


WRONG = {  # exercise -> mistakes that somebody makes, each with the words that must come back
    "1.1": [
        ([0.49, 0.49, 0.02], "lack the scale"),
        ([0.45, 0.45, 0.10], "divided by d_k, which is 2"),
        ([4.11, 4.11, 0.49], "divide each by their sum"),
        ([1.41, 1.41, -0.71], "these are scores"),
        ([0.5, 0.4, 0.2], "yours to 1.10"),
        ([0.33, 0.33, 0.34], "at least one is off"),
        ("half", "not a text"),
        ([[0.5], [0.5], None], "not list"),
        ([math.nan, 0.5, 0.5], "finite"),
        (range(10**9), "not 10"),
    ],
    "1.2": [
        (lambda s: s.exp() / s.exp().sum(-1, keepdim=True), "subtract the row's maximum"),
        (lambda s: s.exp() / s.exp().sum(0), "normalise the last axis"),
        (lambda s: F.softmax(s, -1), "calls PyTorch's softmax"),
        (lambda s: _masked(s, torch.eye(s.shape[-1]), torch.eye(s.shape[-1]), None), "attention"),
        (
            lambda s: _shifted(s.clamp(-2000, 2000), s.amax(-1, keepdim=True).clamp(max=2000)),
            "1e30",
        ),
        (lambda s: (s - s.max()).exp() / (s - s.max()).exp().sum(-1, keepdim=True), "own maximum"),
        (lambda s: _shifted(s.sub_(s.amax(-1, keepdim=True)), 0), "changed its argument"),
        (lambda s: _shifted(s, 0).tolist(), "a tensor is wanted, not list"),
        (_over_the_second_axis, "whatever comes before"),
        (lambda s: _shifted(s, 0).to(torch.complex64), "real numbers"),
    ],
    "1.3": [
        (lambda q, k, v: (q @ k.mT).softmax(-1) @ v, "not scaled: divide"),
        (lambda q, k, v: (q @ k.mT / q.shape[-1]).softmax(-1) @ v, "divided by d_k itself"),
        (F.scaled_dot_product_attention, "calls PyTorch's scaled_dot_product_attention"),
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
        ([0.0, math.inf], "must be finite"),
    ],
    "1.5": [
        (range(9), "every token still attends to the previous one"),
        ([16, 14, 12, 10, 8, 6, 4, 2, 0], "must seem to stand just before it"),
        (range(0, -9, -1), "from 0 to 511"),
        ([1.5] * 9, "whole number"),
    ],
    "2.1": [
        (lambda T, p: torch.ones(T, T).tril().bool(), "this is the causal mask"),
        (lambda T, p: ~(torch.ones(T, T).tril().bool() | (torch.arange(T) < p)), "inverted"),
        (lambda T, p: torch.ones(T, T).tril().bool() & (torch.arange(T) < p), "should be True"),
        (lambda T, p: torch.ones(T, T).tril(), "not torch.float32"),
        (lambda T, p: (torch.arange(T) < p)[None], "shape is"),
        (
            lambda T, p: torch.ones(T, T).tril().triu(-5).bool() | (torch.arange(T) < p),
            "for T=11, prefix=4 .* should be True",
        ),
    ],
    "2.2": [
        (lambda b: b.bool(), r"must be \(B, 1, T, S\)"),
        (lambda b: _lower(b) & b.bool(), "write out both axes"),
        (lambda b: _lower(b) & b.bool()[:, None, :, None], "it closes queries"),
        (
            lambda b: _lower(b) & (b.cumsum(1) * b.flip(1).cumsum(1).flip(1) > 0)[:, None, None],
            r"the cell \[0, 0, 1, 1\] should be False",  # from the first real token to the last
        ),
    ],
    "2.3": [
        (lambda head, x: False, "every position: this one leaks"),
        (lambda head, x: True, "a causal head: this one does not leak"),
        (lambda head, x: _moves(head, x, 0, -1), "one position too far: this one leaks"),
        (lambda head, x: _moves(head, x, -2, -1) or _moves(head, x, 0, -1), "only the first"),
        (_summed_derivatives, "cancels out in a sum"),
        (lambda head, x: _some_derivatives(head, x, "tisi->tsi"), "from one component to another"),
        (lambda head, x: _some_derivatives(head, x, "tisj->tsj"), "with opposite signs"),
        (
            lambda head, x: _moves(head, x, slice(0, 2), 2),
            "only output 0 leaks, and only token 1: this",
        ),
        (lambda head, x: None, "not NoneType"),
    ],
    "2.4": [
        (lambda s, m: s.masked_fill(~m, -math.inf).softmax(-1), "gives NaN"),
        (lambda s, m: _masked_softmax_twice(s, ~m), "wrong way round"),
        (lambda s, m: s.masked_fill(~m, -1e9).softmax(-1), "gives weight to closed cells"),
        (lambda s, m: s.softmax(-1) * m, "must sum to 1"),
        (lambda s, m: (s + m.log()).softmax(-1).nan_to_num(), "gradient has NaN"),
        (lambda s, m: s.masked_fill(~m, -50).softmax(-1) * m.any(-1, keepdim=True), "some weight"),
        (lambda s, m: s.masked_fill_(~m, -1e30).softmax(-1) * m, "changed its argument"),
        (lambda s, m: _masked_softmax_twice(s.detach(), m), "no gradient"),
        (lambda s, m: _exponents(s, m, torch.Tensor.detach), "not their gradient"),
    ],
    "3.1": [
        (324, "now add the biases"),
        (363, "the output projection has one, too"),
        (108, "that is one head"),
        (168, "d_model / H"),
        (273, "output projection, which joins the heads, is missing"),
    ],
    "3.2": [
        (lambda split: _right_split(split, 2, 3, 1, 4), "accepts a wrong split: a view alone"),
        (lambda split: _right_sums(split), "accepts a wrong split: tokens in reverse"),
        (lambda split: _right_split(split, 1, 3, 4, 2), "accepts a wrong split: texts"),
        (lambda split: _right_split(split, 2, 3, 4, 1), "numbers dealt out in turn"),
        (lambda split: _right_split(split, 2, 3, 4, 2, heads=[0]), "the last two heads exchanged"),
        (lambda split: _right_split(split, 2, 3, 4, 2, texts=[0]), "of the last text in reverse"),
        (lambda split: False, "refuses a right split: view, then"),
        (lambda split: not split(torch.ones(1, 3, 8), 4).is_contiguous(), "right split: slices"),
    ],
    "3.3": [
        (lambda W, h, H: _head(W, h, H), "must be transposed"),
        (lambda W, h, H: [M.chunk(H, 1)[h] for M in W.chunk(3)], "these are columns"),
        (lambda W, h, H: [M.chunk(H, 1)[h].T for M in W.chunk(3)], "these are columns"),
        (lambda W, h, H: [M[h::H].T for M in W.chunk(3)], "head 0 of 3 attends differently"),
        (lambda W, h, H: [_head(W, h, H)[i].T for i in (0, 1, 1)], "W_v comes third"),
        (lambda W, h, H: _rescaled(_head(W, h, H)), "rows as they are"),
        (lambda W, h, H: [M.T for M in W.chunk(3)], r"here \(6, 2\), not \(6, 6\)"),
    ],
    "4.1": [
        ([36.0, 2.0], "uses one variance"),
        ([18.0, 4.0], "two factors, each squared"),
        ([16.0, 4.0], "one term: there are nine"),
        ([12.0, 4.0], "its square is the variance"),
        ([72.0, 2.83], "adds the two variances"),
        ([4.0, 144.0], "the variance comes first"),
        ([144.0, 12.0], "divide it by the square root of 9"),
        ([144.0, 16.0], "take its root"),
        ([144.0, 36.0], "dividing by 9 instead of its root"),
        ([144.0, math.nan], "deviation of a score"),
    ],
    "4.2": [
        (lambda attend, d_k: d_k**-0.5, "for each function"),
        (_of_ones, "one, or d_k"),
        (lambda attend, d_k: 1 / _log_ratio(attend, d_k, 1.0), "its inverse, 4.000"),
        (lambda attend, d_k: attend(torch.ones(1, d_k), torch.ones(2, d_k)), "not 2"),
        (lambda attend, d_k: math.nan, "but you say nan"),
    ],
    "4.3": [
        (0.3072, "unrelated words"),
        (0.0768, "falls by its root"),
        (768 * 0.0004 * math.sqrt(3) / 2, "root of 3/4"),
        (0.1536**2, "the variance"),
        (768 * 0.02 / 2, "enters twice"),
        (8 * 0.1536, "not divided"),
    ],
    "4.4": [
        (lambda d, std, rate, eps: (std / d**0.5, rate / d**0.5, eps * d**0.5), "that is a²"),
        (lambda d, std, rate, eps: (std / d**0.25, rate, eps), "learning rate stays as it was"),
        (lambda d, std, rate, eps: (std / d**0.25, rate / d**0.25, eps / d**0.25), "so must eps"),
        (lambda d, std, rate, eps: (std * d**0.25, rate * d**0.25, eps), "smaller, not larger"),
        (lambda d, std, rate, eps: (std / d**0.25, rate / d**0.25, eps * d**0.5), "and a is"),
        (lambda d, std, rate, eps: (std / d, rate / d, eps), "grows by its root"),
        (lambda d, std, rate, eps: (std / 3, rate, eps), "must be 0.01, not 0.006667"),
    ],
    "5.1": [
        ([math.cos(4), math.sin(4), math.cos(0.4), math.sin(0.4)], "this is position 4"),
        ([0.999, 0.052, 1.0, 0.005], "radians"),
        ([-0.99, 0.141, 1.0, 0.03], "1/10"),
        ([-0.99, 0.141, -0.99, 0.141], "a speed of its own"),
        ([-0.99, 0.955, 0.141, 0.296], "side by side"),
        ([math.nan] * 4, "finite"),
        ([[math.sin(3), math.cos(3)], (math.sin(0.3), math.cos(0.3))], "x is the cosine"),
    ],
    "5.2": [
        (lambda W, H: W, "as it was"),
        (lambda W, H: torch.cat([W[0::2], W[1::2]]), "within each head"),
        (lambda W, H: W.unflatten(0, (2, -1)).transpose(0, 1).flatten(0, 1), "this is the inverse"),
        (lambda W, H: W.flip(0), "the even rows come first"),
        (lambda W, H: W.copy_(torch.cat([W[0::2], W[1::2]])), "changed its argument"),
    ],
    "5.3": [
        (lambda speeds, trained, wanted: speeds, "nothing was slowed down"),
        (lambda speeds, trained, wanted: speeds * trained / wanted, "position interpolation"),
        (_yarn(by=lambda trained, wanted: wanted / trained), "became faster"),
        (_yarn(swapped=True), "the other way round"),
        (_yarn(turn=1.0), "2π radians, not 1"),
        (_yarn(reach=lambda trained, wanted: wanted - 1), "must have made its turn in training"),
        (_ntk, "NTK-aware scaling"),
        (lambda *given: _yarn()(*given) + 0.001, "the largest difference from the rule"),
        (lambda speeds, trained, wanted: speeds.mul_(trained / wanted), "changed its argument"),
    ],
    "6.1": [
        ([-1.22, 0.0, 0.0, 1.22], "divides the sum of squares by all four"),
        ([-1.0, 0.0, 0.0, 1.0], "take its root first"),
        ([-2, 0, 0, 2], "now divide by"),
        ([1.41, 2.83, 2.83, 4.24], "subtract the mean"),
        ([0.47, 0.94, 0.94, 1.41], "that is RMSNorm"),
        ([-0.47, 0.0, 0.0, 0.47], "after the mean is subtracted"),
    ],
    "6.2": [
        (lambda x, a, t, n: (y := x + a(n[0](x))) + t(n[2](y)), "this is pre-norm"),
        (lambda x, a, t, n: (y := x + a(n[0](x))) + t(n[1](y)), "this is pre-norm"),
        (lambda x, a, t, n: (y := x + n[1](a(x))) + n[3](t(y)), "this is an output norm"),
        (lambda x, a, t, n: (y := x + n[0](a(x))) + n[1](t(y)), "this is an output norm"),
        (lambda x, a, t, n: n[1]((y := n[0](x + a(x))) + t(y)), "this is post-norm"),
        (lambda x, a, t, n: (y := x + a(x)) + t(y), "no norm in it"),
        (lambda x, a, t, n: (y := n[1](a(n[0](x)))) + n[3](t(n[2](y))), r"\+ x is missing"),
        (lambda x, a, t, n: n[3](t(n[2](x + n[1](a(n[0](x)))))), "added to the stream as well"),
        (lambda x, a, t, n: n[3](t(n[2](n[1](a(n[0](x)))))), "nothing is added"),
        (lambda x, a, t, n: x + n[1](a(n[0](x))) + n[3](t(n[2](x))), "after attention has written"),
        (lambda x, a, t, n: x + n[3](t(n[2](x + n[1](a(n[0](x)))))), "start from the residual"),
        (lambda x, a, t, n: _added_to_the_norm(x, a, t, n), "add to x itself"),
        (
            lambda x, a, t, n: _sandwich(x, a, t, [n[0], n[2], n[1], n[3]]),
            "0 and 1 are attention's",
        ),
        (
            lambda x, a, t, n: _sandwich(x, a, t, [n[1], n[0], n[3], n[2]]),
            "0 and 1 are attention's",
        ),
        (lambda x, a, t, n: _sandwich(x, a, t, [*n[:2], *n[:2]]), "the first two twice"),
        (lambda x, a, t, n: _sandwich(x.add_(0.5), a, t, n), "changed its argument"),
    ],
    "6.3": [
        (lambda w, g, r, e: w / (w**2).mean(1, keepdim=True).add(e).sqrt() * g @ r, "its own size"),
        (lambda w, g, r, e: w * g @ r, "divides by the size of the final vector"),
        (lambda w, g, r, e: w / _size(w, e) @ r, "has a gain"),
        (lambda w, g, r, e: w / _size(w, 0.0) * g @ r, "eps is part"),
        (lambda w, g, r, e: w / (w.sum(0) ** 2).sum().add(e).sqrt() * g @ r, "not of the sum"),
        (lambda w, g, r, e: w @ w.sum(0) / (w.sum(0) ** 2).sum(), "these are shares"),
        (lambda w, g, r, e: (c := _credits(w, g, r, e)) / c.sum(), "add up to 1"),
        (lambda w, g, r, e: _credits(w, g, r, e).sum(), "the logit itself"),
        (lambda w, g, r, e: _credits(w, g, r, e).mean().expand(len(w)), "that of its own write"),
        (lambda w, g, r, e: -_credits(w, g, r, e), "from the right numbers is"),
    ],
    "7.1": [
        (lambda ours, theirs, x: None, "first block: 0 is wanted, not None"),
        (lambda ours, theirs, x: _first_wrong(ours, theirs, x, 0.0), "rounding is no mistake"),
        (
            lambda ours, theirs, x: _first_wrong(ours, theirs, x, own=True),
            "give both blocks the same x",
        ),
        (
            lambda ours, theirs, x: None if (i := _first_wrong(ours, theirs, x)) is None else i + 1,
            "counted from 0",
        ),
        (
            lambda ours, theirs, x: _first_wrong(ours, theirs, x, only_if_ends_differ=True),
            "the last block hides: 2 is wanted, not None",
        ),
        (lambda ours, theirs, x: _first_wrong(ours, theirs, x) is None, "the index of a block"),
    ],
    "7.2": [
        (lambda out, n: out.mean(1), "padding included"),
        (lambda out, n: _mean(out, n), "padding that holds nan"),
        (lambda out, n: _mean(out.nan_to_num(0.0, math.inf), n), "padding that holds inf"),
        (lambda out, n: _mean(out, n).mul(n[:, None]), "this is the sum over the real tokens"),
        (lambda out, n: _mean(out, n + 1) * (n + 1)[:, None] / n[:, None], "not if t <= n"),
        (
            lambda out, n: (
                _mean(out, n + 1, lambda o, r: o.masked_fill(~r, 0))
                * (n + 1)[:, None]
                / (torch.arange(out.shape[1]) <= n[:, None]).sum(1, keepdim=True)
            ),
            "not if t <= n",
        ),
        (lambda out, n: _mean(out, n - 1), "leaves out the last real token"),
        (lambda out, n: _mean(out, n - 1) * (n - 1)[:, None] / n[:, None], "whose index is n - 1"),
        (lambda out, n: F.normalize(_mean(out, n), dim=1), "the mean alone is wanted"),
        (lambda out, n: _mean(out, n) * n[:, None] / n.sum(), "tokens of all texts"),
        (lambda out, n: _mean(out, n) * n[:, None] / out.shape[1], "divided by T"),
        (lambda out, n: out[:, 0], "first token alone"),
        (lambda out, n: _mean(out, n, lambda o, r: o.masked_fill_(~r, 0)), "changed its argument"),
    ],
    "7.3": [
        (lambda encode: False, "without a mask gets the verdict False"),
        (lambda encode: True, "that is right gets the verdict True"),
        (
            lambda encode: bool((encode(["a", "b c d"])[0] != encode(["a"])[0]).any()),
            "right up to rounding gets the verdict True",
        ),
        (
            lambda encode: _in_company(encode, ["a", "b c d"], of=slice(1)) > 1e-5,
            "cuts each text to the shortest gets the verdict False",
        ),
    ],
    "10.1": [
        ([1, 0, 0], "earlier copies of this word"),
        ([0, 1 / 3, 2 / 3], "wug followed twice"),
        ([0, 0.5, 0.5], "came before the earlier ones"),
        ([1 / 3] * 3, "the second word after"),
        ([4 / 9, 3 / 9, 2 / 9], "counts all words"),
        ([0, 1, 0], "give shares"),
        ([0, 2, 1], "shares sum to 1"),
        ([0.2, 0.5, 0.3], "mark the dax"),
    ],
    "11.1": [
        ([10, 21], "first the row without"),
        ([36, 14], "both masks are causal"),
        ([21, 14], "still causal: inside"),
        ([36, 10], "without segments, the mask is still causal"),
        ([15, 4], "may attend to itself"),
        ([21, 11], "segment mask closes"),
        ([21, 6], "all earlier tokens of its own"),
        ([20, 10], "add up 1 to 6"),
        ([21, 12], "add up three"),
    ],
    "11.2": [
        (lambda e: (torch.arange(int(e[-1])), _documents(e)), "count on"),
        (lambda e: (_places(e) + 1, _documents(e)), "is 1 instead of 0"),
        (lambda e: (_documents(e), _places(e)), "first the positions"),
        (
            lambda e: (_places(e), torch.bucketize(torch.arange(int(e[-1])), e[1:])),
            "still belongs to the one before",
        ),
        (lambda e: (_places(e), torch.zeros_like(_places(e))), "the segments are"),
        (lambda e: (_places(e).flip(0), _documents(e)), "the positions are"),
        (lambda e: (_places(e)[None], _documents(e)), "the shape"),
    ],
    "11.3": [
        (_rows([3, 1, 4, 1], [3, 1, 4, 1], [0, 0, 1, 1], 2), "the two rows are equal"),
        (_rows([3, 1, 4, 1], [3, 5, 4, 1], [0, 0, 0, 0], 2), "only one document"),
        (_rows([3, 1, 4, 1], [3, 5, 4, 1], [0, 0, 1, 1], 1), "inside the document of t"),
        (_rows([3, 1, 4, 1], [2, 5, 4, 1], [0, 0, 1, 1], 2), "in 2 tokens"),
        (_rows([3, 1, 4, 1], [3, 1, 4, 5], [0, 0, 0, 1], 2), "is not seen"),
        (_rows([3, 1, 4, 1], [2, 1, 4, 1], [0, 1, 2, 3], 3), "those of another document"),
        (_rows([3, 1, 4, 1], [3, 5, 4, 1], [0, 0, 1, 2], 9), "from 0 to 3"),
        (_rows([3, 1, 44, 1], [3, 5, 44, 1], [0, 0, 1, 1], 2), "from 0 to 30"),
        (_rows([3, 1, 4, 1], [3, 5, 4, 1], [1, 1, 0, 0], 2), "rise along the row"),
        (_rows([3, 1, 4], [3, 5, 4, 1], [0, 0, 1, 1], 2), r"\(1, T\) each"),
        ((*[torch.tensor([[0.0, 1.0]])] * 3, 1), "integers"),
    ],
    "11.4": [
        (lambda x, s: F.pad(x[:, :-1], (0, 0, 1, 0)), "it still crosses"),
        (lambda x, s: x.roll(1, 1), "first token of the row gets the last"),
        (
            lambda x, s: x.roll(1, 1) * (s == s.roll(1, 1))[..., None],
            "first token of the row gets the last",
        ),
        (lambda x, s: x, "nothing is moved"),
        (lambda x, s: x.roll(-1, 1), "the other way"),
        (lambda x, s: _inside(x.roll(1, 1), s.flip(1)), "for the segments"),
        (lambda x, s: _inside(F.pad(x[:, :-1], (0, 0, 1, 0)), s, ends=True), "clear what"),
        (lambda x, s: torch.where(_begins(s), x, x.roll(1, 1)), "keeps itself"),
    ],
    "12.1": [
        (lambda b: torch.cat(b).exp().sum().log(), "it overflows"),
        (lambda b: _streamed(b, rescale=False), "the old sum must be multiplied"),
        (lambda b: torch.cat(b).clamp(max=700).exp().sum().log(), "scores that fall far"),
        (lambda b: _streamed(b, guarded=False), "it gives NaN"),
        (lambda b: max(x.max() for x in b), "instead of"),
        (lambda b: torch.cat(b).sub(1001).exp().sum().log() + 1001, "it gives −∞"),
    ],
    "12.2": [
        (lambda T, S, b, w: _tiles(T, S, b, w, left=False), "closes on the left"),
        (lambda T, S, b, w: _tiles(T, S, b, w, late=1), "position t"),
        (lambda T, S, b, w: _tiles(T, S, b, w + 1), "counts the token itself"),
        (lambda T, S, b, w: math.ceil(T / b) * math.ceil(S / b), "instead of"),
    ],
    "12.3": [
        (lambda out, log, sink: out, "the sink changes nothing"),
        (lambda out, log, sink: out * torch.sigmoid(sink - log), "the share of the sink"),
        (lambda out, log, sink: out * log.exp() / (log.exp() + math.exp(min(sink, 700))), "NaN"),
    ],
    "13.1": [
        ([5.0, 10.0], "before the second was written"),
        ([5.0, 13.0], "what adding gives"),
        ([6.8, 10.6], "not the other way round"),
        ([0.0, 5.0], "what the second key reads"),
        ([2.0, 9.0], "0.6 of it"),
        ([-1.8, -0.6], "add what was there"),
    ],
    "13.2": [
        (lambda d, e: math.floor(d * e), "N − 1 others are"),
        (lambda d, e: math.floor(d * e * e) + 1, "not its root"),
        (lambda d, e: math.floor(math.sqrt(d) * e) + 1, "1/d on average"),
        (lambda d, e: d, "right angles"),
        (lambda d, e: d * e + 1, "round down"),
        (lambda d, e: math.floor(d / (1 - e)), "it raised ZeroDivisionError"),
    ],
    "13.3": [
        (lambda a, S, b, R: (a + b, S + R), "must fade by the gates of the second half"),
        (lambda a, S, b, R: (a + b, S + a.exp() * R), "the first state that fades"),
        (lambda a, S, b, R: (a + b, a.exp() * S + R), "not by its own"),
        (lambda a, S, b, R: (a + b, b.exp() * (S + R)), "faded already"),
        (lambda a, S, b, R: (a + b, b * S + R), "the factor is e to it"),
        (lambda a, S, b, R: ((a + b).exp(), b.exp() * S + R), "the sum of logarithms"),
        (lambda a, S, b, R: (a * b, b.exp() * S + R), "their logarithms are added"),
        (lambda a, S, b, R: (b, b.exp() * S + R), "the sum: the largest difference"),
    ],
    "13.4": [
        (lambda rule: True, "acts after the write"),
        (lambda rule: _judges_rule(rule, start=0.0), "never applied"),
        (lambda rule: _lets_pass(rule, "write faded"), "also fades what the token writes"),
        (lambda rule: _lets_pass(rule, "read before"), "reads the state from before it"),
        (lambda rule: _lets_pass(rule, "larger"), "makes the state larger"),
    ],
    "12.4": [
        (lambda m: _by_scores(m, lambda m, i, j: m * (j - i)), "the sign"),
        (
            lambda m: _by_scores(
                m, lambda m, i, j: m * (torch.arange(len(i))[:, None] - torch.arange(len(j)))
            ),
            "not in the tile",
        ),
        (lambda m: _by_scores(m, lambda m, i, j: m.mean() * (i - j)), "difference"),
        (lambda m: m, "a function that returns a function"),
    ],
    "10.2": [
        (lambda x, w: _near_mask(len(x), 1), "for every word"),
        (lambda x, w: _near_mask(len(x)), "nothing is closed"),
        (lambda x, w: _less(x, x == w, 2), "one too far"),
        (lambda x, w: _less(x, x == w, 0), "closes the word to itself"),
        (lambda x, w: _less(x, (x == w)[:, None], 1), "what this word reads before it"),
        (lambda x, w: _near_mask(len(x)) & ~_after(x, w), "what the second layer looks for"),
        (lambda x, w: ~_less(x, x == w, 1), "inverted"),
        (lambda x, w: _less(x, x == w, 1) | (x != w), "future"),
        (lambda x, w: _less(x, x == w, 1, 2), "more than it has to"),
        (lambda x, w: _less(x, x != w, 1), "can still read this one"),
        (lambda x, w: _less(x, x == w, 1).float(), "a bool tensor"),
        (lambda x, w: _less(x, x == w, 1)[1:], r"the shape is \(7, 8\)"),
    ],
    "10.3": [
        (lambda w, x: w.diagonal(-1).mean(), "previous-token head"),
        (lambda w, x: _on(w, x, 0), "attention to the same token"),
        (lambda w, x: _on(w, x, 2), "the second token after"),
        (lambda w, x: _on(w, x, -1), "the token before"),
        (lambda w, x: _on(w, x, 1, every=True), "only over queries whose token"),
    ],
    "10.4": [
        (lambda x, n: _followers(x, n, 1), "that is the bigram"),
        (lambda x, n: _followers(x, n, 3), "three words, not two"),
        (lambda x, n: _followers(x, n, 2, start=0), "start every count at one"),
        (lambda x, n: _followers(x, n, 2, start=0.5), "start every count at one"),
        (lambda x, n: _followers(x, n, 2).roll(-1, 0), "row"),
        (lambda x, n: _followers(x, n, 2)[[*range(1, len(x) - 1), -1]], "one word ahead"),
        (
            lambda x, n: torch.cat([torch.ones(1, n) / n, _followers(x, n, 2)[:-1]]),
            "one word late",
        ),
        (lambda x, n: 2 * _followers(x, n, 2), "sum to 1"),
    ],
    "9.1": [
        (600 + 2964, "counts once"),
        (2964 - 12, "the last one"),
        (2964 - 60, "the norms are missing"),
        (2964 + 60, "a gain and no bias"),
        (2964 + 288, "only 2 heads"),
        (2964 - 48, "two norms of each block"),
        (2964 - 144, "keys and values are two matrices"),
        (2964 - 480, "SwiGLU has three matrices"),
        (600 + 1176 + 12, "two blocks"),
        (2364, "the embedding is missing"),
    ],
    "9.2": [
        (lambda W, n, H: W.repeat(H // n, 1), "the heads are tiled"),
        (lambda W, n, H: W.repeat_interleave(H // n, 0), "repeat whole heads, of 2 rows"),
        (lambda W, n, H: W, r"the shape is \(6, 5\) instead of \(18, 5\)"),
        (lambda W, n, H: W.flip(0).repeat(H // n, 1), "key head h // 3"),
        (lambda W, n, H: W.zero_().repeat(H // n, 1), "changed its argument"),
    ],
    "9.3": [
        (lambda m, t: True, "accepts a cache that forgets all earlier"),
        (lambda m, t: False, "by rounding"),
        (lambda m, t: _all_cuts(m, t, lambda n: [range(1, n)]), "pieces of more than one"),
        (lambda m, t: _all_cuts(m, t, lambda n: [(3,)]), "pieces of a single token"),
        (lambda m, t: _all_cuts(m, t, lambda n: [(2, 5), (2, 3)]), "just after the first token"),
        (lambda m, t: _all_cuts(m, t[:, :4], _every), "from the fifth token"),
        (
            lambda m, t: _all_cuts(m, t, lambda n: [(1, 2, 4)]),
            r"piece of 2 tokens after 1 other\.$",
        ),
        (lambda m, t: [m(t, cache=c) for c in [attn_lib.Cache()] * 2], "cut with a new cache"),
        (lambda m, t: m(t, cache=[]), "must be an attn_lib.Cache"),
    ],
    "9.4": [
        (lambda m, r, t: True, "accepts a model that rotates at another speed"),
        (lambda m, r, t: torch.equal(m(t), r(t)), "refuses a right model.*rounding"),
        (lambda m, r, t: _near(m(t)[:, -1], r(t)[:, -1]), "wrong after the first token alone"),
        (lambda m, r, t: _near(m(t), r(t), 0.02), "has another epsilon"),
        (lambda m, r, t: _near(m(t), r(t)), "counts its positions anew in each call"),
        (
            lambda m, r, t: [f(t, cache=c) for c in [attn_lib.Cache()] for f in (m, r)],
            "give each model a new cache",
        ),
        (lambda m, r, t: m(t, cache=[]), "must be an attn_lib.Cache"),
    ],
    "8.1": [
        ([16 / 30, 9 / 30, 4 / 30, 1 / 30], "now cut off the tail"),
        ([0.533, 0.3, 0, 0], "rescale what is kept"),
        ([0.552, 0.31, 0.138, 0], "that is top-p first"),
        ([1, 0, 0, 0], "so the next is kept"),
        ([4 / 9, 3 / 9, 2 / 9, 0], "that is top-p alone"),
        ([0.36, 0.31, 0.33, 0], "favours the likeliest"),
        ([0.7, 0.3, 0, 0], "squares each probability"),
        ([0.8, 0.6, 0.4, 0.2], "must sum to 1"),
    ],
    "8.2": [
        (
            lambda z, t, m: _cut_where(z, _sure(z, t) <= m * _sure(z, t).max()),
            "on the bound is kept",
        ),
        (lambda z, t, m: _cut_where(z, _sure(z, t) < m), "not min_p itself"),
        (lambda z, t, m: _cut_where(z, _likelier(_sure(z, t)) >= m), "that is top-p"),
        (lambda z, t, m: _cut_where(z, z < z.max() + math.log(m)), "temperature is missing"),
        (lambda z, t, m: _cut_where(z, z < z.max() + math.log(m) / t), "does not divide"),
        (lambda z, t, m: _cut_where(z, z < m * z.max()), "by a factor"),
        (lambda z, t, m: _cut_where(z, z < z.max() - m), "its logarithm is the difference"),
        (lambda z, t, m: _cut_where(z, z >= z.max() + t * math.log(m)), "keeps what should be cut"),
        (lambda z, t, m: _cut_where(z, z < z.max() + t * math.log(m)) / t, "keep their logit"),
        (
            lambda z, t, m: _sure(_cut_where(z, z < z.max() + t * math.log(m)), t),
            "those are probabilities",
        ),
        (lambda z, t, m: _cut_where(z, z < z.max() - 2), "tokens are kept"),
        (lambda z, t, m: z.masked_fill_(z < z.max() + t * math.log(m), -math.inf), "its argument"),
        (lambda z, t, m: z[z > 0], "a logit for each of 7"),
        (lambda z, t, m: z + (z >= z.max() + t * math.log(m)).log() * 0, "there is NaN"),
    ],
    "8.3": [
        ([4, 5], "those are bits per token"),
        ([0.833, 1], "swapped"),
        ([4, 6], "bytes per token"),
        ([1200, 1000], "divide by its bytes"),
        ([0.693, 0.578], "nats"),
        ([4, 5.333], "logarithm of the perplexity first"),
    ],
    "8.4": [
        (_asked, "of 1 of 24, .* add the markers"),
        (lambda city: _marked(f"{city} is the capital of"), "of 1 of 24, .* put a question there"),
        (lambda city: len(city), "must return a text"),
        (lambda city: "Paris is the capital of", "does not name Vienna"),
        (lambda city: f"{city} is in Austria or Italy. It is in", "names Austria"),
    ],
    "14.1": [
        (lambda d: 4 * d * d + 4 * d, "norm before cross-attention"),
        (lambda d: 4 * d * d + 5 * d, "both a scale and a shift"),
        (lambda d: 4 * d * d + 2 * d, "has a bias, too"),
        (lambda d: 4 * d * d, "biases and the norm are missing"),
        (lambda d: 3 * d * d + 5 * d, "a fourth projection"),
        (lambda d: 3 * d * d + 3 * d, "output projection and the norm"),
        (lambda d: 16768, "for d_model = 5 it is 130, not 16768"),
    ],
    "14.2": [
        (lambda z, w, f: _nll(z, w).mean(), "padding is counted"),
        (lambda z, w, f: (_nll(z, w) * (w != f)).mean(), "divided by the number of all"),
        (lambda z, w, f: (_nll(z, w) * (w != f)).sum(), "this is the sum"),
        (_mean_of_means, "each example is averaged first"),
    ],
    "14.3": [
        (
            lambda f, *given: _written(lambda text: f(text[-1:]), *given),
            "everything written so far",
        ),
        (lambda f, START, END, longest: _written(f, START, END, longest + 1), "for a model that"),
        (lambda scores, START, END, longest: [3, 1, 4][:longest], "never ends"),
        (lambda scores, START, END, longest: _written(scores, START, END, 10**9), "for ever"),
        (lambda f, START, END, longest: _written(f, START, None, longest), "do not belong"),
    ],
    "14.4": [
        (lambda S, brings: [s for s in range(S) if brings([s])], "also where it has only one"),
        (
            lambda S, brings: [(s,) for s in range(S) if brings([s])],
            r"rows 1 and 4 .* \[\(1, 4\)\]",
        ),
        (lambda S, brings: _sets(S, brings)[:1], "more than one smallest set"),
        (lambda S, brings: _bringing(S, brings), "a larger set is no smallest one"),
        (lambda S, brings: 2 * _sets(S, brings), "returned twice"),
        (lambda S, brings: brings(3), "takes a list of rows"),
        (lambda S, brings: brings([S]), "there are rows 0 to 5, and brings was asked for 6"),
        (lambda S, brings: _sets(S, brings) or [()], "no rows bring it"),
    ],
    "15.1": [
        ([196, 590592], "the class token is a token too"),
        ([225, 590592], "patches in a row"),
        ([197, 589824], "biases are missing"),
        ([197, 197376], "three colours"),
        ([197, 150528], "has a weight for each"),
    ],
    "15.2": [
        (lambda x, p, c: x.reshape(_joined(x, p, c).shape), "strips"),
        (lambda x, p, c: _joined(x, p, c).mT, "rows and columns"),
        (_columnwise, "row by row, not column by column"),
        (_channels_last, "the channels come first, not last"),
    ],
    "15.3": [
        (lambda model, x: True, "attention with positions: it uses"),
        (lambda model, x: False, "attention, then the mean: it ignores"),
        (_ignores([*range(9)][::-1]), "neighbours multiplied: it uses"),
        (_ignores([8, *range(8)]), "around a circle: it uses"),
        (_ignores([8, *range(1, 8), 0]), "the patch in the middle alone: it uses"),
        (_ignores([1, 0, *range(2, 9)]), "the last patch alone: it uses"),
    ],
    "15.4": [
        (["rate", "fair", "test", "fair"], "what one image costs"),
        (["test", "compute", "test", "fair"], "'test' is not the answer for a"),
        ({**_REFEREE, "b": "time"}, "one of rate, compute, test, fair is wanted, not 'time'"),
    ],
    "16.1": [
        (lambda m: _rolled(m[::-1]), "order is reversed"),
        (lambda m: _rolled(m, lambda A, eye: A.mean(1)), "the residual stream"),
        (lambda m: _rolled(m, lambda A, eye: A.mean(1) + eye), "halve each factor"),
        (lambda m: _rolled(m, lambda A, eye: A.sum(1) + eye), "do not add them up"),
        (lambda m: _rolled(m[-1:]), "last layer alone"),
    ],
    "16.2": [
        (lambda a, b: _apart(b, a), "the second minus the first"),
        (lambda a, b: (abs(_apart(a, b)[0]) + 1, 0.1), "not the difference of the shares"),
        (lambda a, b: (_apart(a, b)[0], _apart(a, b)[1] / 1.96), "multiply it by 1.96"),
        (_unpaired, "take the difference of each image"),
        (lambda a, b: (_apart(a, b)[0], _apart(a, b)[1] * len(a) ** 0.5), "by the root of the"),
        (lambda a, b: (_apart(a, b)[0], _apart(a, b)[1] / len(a) ** 0.5), "only once"),
        (lambda a, b: (_apart(a, b)[0], 0.5), "is not 1.96 standard errors"),
    ],
    "16.3": [
        (lambda explain, x: True, "a map of each image: it depends"),
        (lambda explain, x: False, "one map for all: it ignores"),
        (lambda f, x: _same(f(x), atol=1e-5), "the mean map of the batch: it depends"),
        (
            lambda f, x: len(_maps(f, x).flatten(1).argmax(1).unique()) == 1,
            "made darker by the image: it depends",
        ),
        (lambda f, x: _same(_maps(f, x), rtol=1e-4, atol=1e-5), "in tiny numbers: it depends"),
    ],
    "17.1": [
        (22, "sum of the squares"),
        (4.4, "five days make four forecasts"),
        (2, "square them first"),
        (1, "the signs cancel"),
        (2.345, "root of the mean"),
    ],
    "17.2": [
        (lambda raw, n: (raw - raw.mean(0)) / raw.std(0), "those of all days"),
        (lambda raw, n: (raw - raw[:n].mean()) / raw[:n].std(), "of its own"),
        (lambda raw, n: raw - raw[:n].mean(0), "now divide"),
        (lambda raw, n: (raw - raw[:n].mean(0)) / raw[:n].var(0), "take its root"),
        (lambda raw, n: (raw - raw[:n].mean(0)) / raw.std(0), "deviation is that of all days"),
        (lambda raw, n: (raw - raw.mean(0)) / raw[:n].std(0), "mean is that of all days"),
        (lambda raw, n: (raw - raw[: n + 1].mean(0)) / raw[: n + 1].std(0), "one day more"),
        (lambda raw, n: (raw - raw[: n - 1].mean(0)) / raw[: n - 1].std(0), "one day less"),
        (lambda raw, n: (raw[:n] - raw[:n].mean(0)) / raw[:n].std(0), "11 days of 3 features"),
        (lambda raw, n: (raw - raw[:n].mean(0)) / raw[:n].std(0) + 1, "first day's first feature"),
        (lambda raw, n: raw - raw[:n].mean(1), "over the days, dim=0"),
        (lambda raw, n: raw.sub_(raw[:n].mean(0)).div_(raw[:n].std(0)), "changed its argument"),
    ],
    "17.3": [
        (lambda z, T, end: z[:end].unfold(0, T + 1, 1), "the days come before"),
        (lambda z, T, end: z.unfold(0, T + 1, 1).mT, "ends with day 10"),
        (lambda z, T, end: z[: end - 1].unfold(0, T + 1, 1).mT, "there are 4 windows, not 3"),
        (lambda z, T, end: z[:end].unfold(0, T + 1, 1).mT.flip(1), r"holds the days \[4, 3, 2, 1"),
        (lambda z, T, end: z.mul_(2)[:end].unfold(0, T + 1, 1).mT, "changed its argument"),
    ],
    "17.4": [
        (lambda a, b, y: _judged(b, a, y), "where a is worse"),
        (lambda a, b, y: sorted({*_judged(a, b, y), *_judged(b, a, y)}), "in either direction"),
        (lambda a, b, y: _judged(a, b, y, errors=0), "a smaller mean is not enough"),
        (lambda a, b, y: _judged(a, b, y, days=1), "two deviations of a day"),
        (lambda a, b, y: _judged(a, b, y, paired=False), "take the daily differences first"),
        (lambda a, b, y: _judged(a, b, y, spread=(a - b).std()), "judge each year by its own"),
        (lambda a, b, y: _judged(a.sub_(b), 0 * b, y), "changed its argument"),
        (lambda a, b, y: 2015, "a list of years is wanted, not int"),
        (lambda a, b, y: "2015", "not str"),
    ],
    "18.1": [
        (lambda q, k, v, m: _masked(q, k, v, m[:, None, None], 1 / 4), "by d_k, not by its root"),
        (lambda q, k, v, m: _masked(q, k, v, m[:, None, None], 1.0), "not scaled at all"),
        (lambda q, k, v, m: _masked(q, k, v, m[:, None, None], 2.0), "are multiplied"),
        (lambda q, k, v, m: _masked_late(q, k, v, m, 2), "so rows sum to less"),
        (lambda q, k, v, m: _masked_late(q, k, v, m, 4), "function as it was"),
        (lambda q, k, v, m: _masked(q, k, v, None), "has no effect"),
        (lambda q, k, v, m: _masked(q, k, v, ~m[:, None, None]), "mask is inverted"),
    ],
    "18.2": [
        (lambda q, k, v: _causal(q, k, v, 0), "with T=1 and S=4, .* first positions"),
        (lambda q, k, v: _causal(q, k, v, k.shape[-2] - q.shape[-2] + 1), "one key too many"),
        (lambda q, k, v: _causal(q, k, v, k.shape[-2] - q.shape[-2] - 1), "its own is closed"),
        (lambda q, k, v: _causal(q, k, v, 99), "nothing is closed"),
    ],
    "18.3": [
        (lambda q, k, v, H: _headed(q, k, v, H, merged=False), "in another order"),
        (lambda q, k, v, H: _headed(q, k, v, H, cut=False), "mixes positions and heads"),
        (lambda q, k, v, H: _headed(q, k, v, H, cut=False, merged=False), "function as it was"),
        (lambda q, k, v, H: _headed(q, k, v, H, scale=q.shape[-1] ** -0.5), "not of all"),
        (lambda q, k, v, H: _headed(q, k, v, 1), "for B=2, T=5 and 3 heads of 4, the largest"),
    ],
}
RIGHT = {  # exercise -> right answers of kinds that one does not think of first
    "1.1": [torch.tensor([[0.472, 0.472, 0.057]]), (p for p in (Fraction(47, 100), 0.47, 0.06))],
    "1.2": _kinds(lambda s: (s - s.logsumexp(-1, keepdim=True)).exp()),
    "1.3": _kinds(lambda q, k, v: (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v),
    "1.4": [[0, 1e308], np.array([[-5], [20]])],
    "1.5": [torch.arange(8, -1, -1), range(300, 291, -1)],
    "2.1": [
        lambda T, p: np.fromfunction(lambda t, s: (s <= t) | (s < p), (T, T)),
        lambda T, p: ~torch.ones(T, T).triu(1).bool() | (torch.arange(T)[None].expand(T, T) < p),
    ],
    "2.2": [
        lambda b: np.tril(np.repeat(b.numpy()[:, None, None], b.shape[1], axis=2)) > 0,
        lambda b: b[:, None, None] * _lower(b) == 1,
    ],
    "2.3": [
        _prefixes,
        lambda head, x: any(_moves(head, x, slice(0, t), t) for t in range(1, len(x))),
    ],
    "2.4": [_exponents, _masked_softmax_twice],
    "3.1": [np.array([369]), torch.tensor(369.0)],
    "3.2": [
        lambda split: _right_split(split, 2, 3, 4, 2),
        lambda split: np.bool_(_right_split(split, 3, 5, 4, 3)),
    ],
    "3.3": [
        lambda W, h, H: torch.stack([M.T for M in _head(W.float(), h, H)]),
        lambda W, h, H: (M.T.numpy() for M in _head(W.double(), h, H)),
    ],
    "4.1": [torch.tensor([144, 4]), (Fraction(144), 12 / 3)],
    "4.2": [
        lambda attend, d_k: torch.tensor([[_log_ratio(attend, d_k, 1.0)]]),
        lambda attend, d_k: np.float32(_log_ratio(attend, d_k, 0.5) / 0.5),
    ],
    "4.3": [np.array([0.154]), torch.tensor(0.1536, requires_grad=True)],
    "4.4": _kinds(lambda d, std, rate, eps: torch.tensor([std, rate, eps * d**0.5]) / d**0.25),
    "5.1": [
        np.array([[-0.99, 0.14], [0.96, 0.3]]),
        [[math.cos(3), math.sin(3)], [math.cos(0.3), math.sin(0.3)]],
    ],
    "5.2": _kinds(lambda W, H: W.unflatten(0, (H, -1, 2)).transpose(1, 2).flatten(0, 2)),
    "5.3": _kinds(_yarn()),
    "6.1": [np.array([-1.414, 0, 0, 1.414]), F.layer_norm(torch.tensor([2.0, 4, 4, 6]), (4,))],
    "6.2": _kinds(_sandwich),
    "6.3": _kinds(_credits),
    "7.1": [
        lambda *given: None if (i := _first_wrong(*given)) is None else np.int64(i),
        lambda *given: None if (i := _first_wrong(*given)) is None else torch.tensor(i),
    ],
    "7.2": [
        lambda out, n: np.stack([row[:k].mean(0) for row, k in zip(out.numpy(), n, strict=True)]),
        lambda out, n: _mean(out.double(), n, lambda o, real: o.masked_fill(~real, 0)),
    ],
    "7.3": [
        lambda encode: np.bool_(_in_company(encode, ["a b c", "d", "e f"]) > 1e-5),
        lambda encode: _in_company(encode, ["warm", "milk and honey", "it rains"]) > 1e-4,
    ],
    "10.1": [np.array([0.0, 0.667, 0.333]), (Fraction(n, 3) for n in (0, 2, 1))],
    "11.1": [torch.tensor([21, 10]), (np.float64(21), Fraction(10))],
    "11.2": [
        lambda e: (_places(e).double(), _documents(e) + 7),
        lambda e: [_places(e).numpy(), np.repeat(e[:-1].numpy(), np.diff(e.numpy()))],
    ],
    "11.3": [
        _rows([3, 1, 4, 1, 5], [3, 1, 9, 1, 5], [0, 0, 0, 1, 1], 4),
        _rows([7, 1], [8, 1], [2, 5], 1),
    ],
    "11.4": _kinds(lambda x, s: _inside(x.roll(1, 1), s)),
    "12.1": [
        _streamed,
        lambda b: np.logaddexp.reduce([x.logsumexp(0).item() for x in b]),
    ],
    "12.2": [_tiles, lambda T, S, b, w: torch.tensor(_tiles(T, S, b, w))],
    "12.3": [
        lambda out, log, sink: (out / (1 + (sink - log).exp())).numpy(),
        lambda out, log, sink: out * (log - torch.logaddexp(log, torch.full_like(log, sink))).exp(),
    ],
    "13.1": [torch.tensor([3.2, 9.4]), (Fraction(16, 5), Fraction(47, 5))],
    "13.2": [
        lambda d, e: 1 + int(d * e),
        lambda d, e: torch.tensor(max(n for n in range(1, 999) if (n - 1) / d <= e)),
    ],
    "13.3": [
        lambda a, S, b, R: [(a.exp() * b.exp()).log(), S * math.exp(b) + R],
        lambda a, S, b, R: (float(a + b), (R + torch.exp(b) * S).numpy()),
    ],
    "13.4": [
        lambda rule: _judges_rule(rule, by="output", T=2),
        lambda rule: np.bool_(_judges_rule(rule, T=2, beta=0.9, gate=0.3)),
    ],
    "12.4": [
        lambda m: _by_scores(m, lambda m, i, j: m * (i - j)),
        lambda m: lambda s, i, j: (s + m[:, None, None] * (j - i)).numpy(),
    ],
    "10.2": [
        lambda x, w: (
            (torch.ones(len(x), len(x)) - torch.diag((x[:-1] == w).float(), -1)).tril() > 0
        ),
        lambda x, w: np.tril(np.ones((len(x),) * 2, bool)) & ~np.diag(x[:-1].numpy() == w, -1),
    ],
    "10.3": [
        lambda w, x: _on(w, x, 1).item(),
        lambda w, x: np.float64(_on(w.double(), x, 1)),
    ],
    "10.4": _kinds(lambda x, n: _followers(x, n, 2)),
    "9.1": [torch.tensor(2964), np.float64(50 * 12 + 2 * 1176 + 12)],
    "9.2": _kinds(lambda W, n, H: torch.cat([c for c in W.chunk(n) for _ in range(H // n)])),
    "9.3": [
        lambda m, t: _all_cuts(m, t, _every),
        lambda m, t: torch.tensor(
            _all_cuts(m, t, lambda n: itertools.combinations_with_replacement(range(1, n), 2))
        ),
    ],
    "9.4": [
        lambda m, r, t: np.allclose(_in_two(m, t).numpy(), r(t).numpy(), atol=1e-5),
        lambda m, r, t: bool((_in_two(m, t) - _in_two(r, t)).abs().max() < 1e-4),
    ],
    "8.1": [np.array([0.64, 0.36, 0.0, 0.0]), (Fraction(n, 25) for n in (16, 9, 0, 0))],
    "8.2": _kinds(lambda z, t, m: _cut_where(z, _sure(z, t) < m * _sure(z, t).max())),
    "8.3": [torch.tensor([1.0, 0.8333]), (Fraction(n, 6) for n in (6, 5))],
    "8.4": [
        lambda city: _marked(_asked(city)),
        (
            "Oslo is the capital of Norway.\nBern is the capital of Switzerland.\n"
            "{} is the capital of"
        ).format,
    ],
    "14.1": [
        lambda d: torch.tensor(4.0 * d * d + 6 * d),
        lambda d: Fraction(2 * d * (2 * d + 3)),
    ],
    "14.2": [
        lambda z, w, f: _nll(z, w)[w != f].mean().item(),
        lambda z, w, f: _nll(z, w)[w != f].mean(0, keepdim=True),
    ],
    "14.3": [_written, lambda *given: np.array(_written(*given))],
    "14.4": [
        lambda S, brings: {frozenset(rows) for rows in _sets(S, brings)},
        lambda S, brings: np.array(_sets(S, brings)[::-1]),
    ],
    "15.1": [torch.tensor([[197.0, 590592.0]]), ("197", "590592")],
    "15.2": _kinds(_joined),
    "15.3": [_shuffles, lambda *given: np.bool_(_ignores([3, 0, 7, 1, 5, 8, 2, 6, 4])(*given))],
    "15.4": ["rate, compute, test, fair", {**_REFEREE, "a": "Learning_rate", "d": "nothing"}],
    "16.1": _kinds(_rolled),
    "16.2": [_apart, lambda a, b: np.array(_apart(np.array(a), np.array(b), ddof=0))],
    "16.3": [
        lambda f, x: np.bool_(np.ptp(m := _maps(f, x).numpy(), axis=0).max() < 1e-6 * m.max()),
        lambda f, x: bool((_maps(f, x).std(0) < 1e-6 * _maps(f, x).max()).all()),
    ],
    "17.1": [Fraction(11, 2), np.array([5.5])],
    "17.2": [
        lambda raw, n: (raw.float() - raw[:n].float().mean(0)) / raw[:n].float().std(0),
        lambda raw, n: (raw.numpy() - raw[:n].numpy().mean(0)) / raw[:n].numpy().std(0),
    ],
    "17.3": [
        lambda z, T, end: torch.stack([z[s : s + T + 1] for s in range(end - T)]).int(),
        lambda z, T, end: np.stack([z.numpy()[e - T - 1 : e] for e in range(T + 1, end + 1)]),
    ],
    "17.4": [
        lambda a, b, y: torch.tensor(_judged(a, b, y)),
        lambda a, b, y: (year for year in _judged(a, b, y)),
    ],
    "18.1": _kinds(lambda q, k, v, m: _masked(q, k, v, m[:, None, None])),
    "18.2": _kinds(lambda q, k, v: _causal(q, k, v, k.shape[-2] - q.shape[-2])),
    "18.3": _kinds(_headed),
}
