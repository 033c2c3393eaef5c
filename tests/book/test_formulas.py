"""Numbered formulas: what is printed, what it means, and what the page computes, three times.

A row holds a formula's TeX as it stands on the page, an expression that is typed here from it, and
what the page defines or a cell of it assigns, or the library, both evaluated on random numbers. A
page that is rewritten brings its rows: no displayed formula may be without one.
"""

import ast
import math
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from types import SimpleNamespace

import nbformat
import pages
import pytest
import torch
import torch.nn.functional as F
from tables import for_each
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import attn_lib
from attn_lib import positions

DISPLAYED = re.compile(r"\$\$\s*(.*?)\s*(?:\\tag\{([A\d.]+)\}\s*)?\$\$", re.DOTALL)
STEP = re.compile(r"^\| (\d\. [^|]+) \| ([^|]+) \|", re.MULTILINE)  # of the notation's table


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def formulas(notebook) -> dict[str, str]:
    """From numbers to TeX; one that has no number stands before another, or last."""
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    displayed, found = DISPLAYED.findall(text), dict(STEP.findall(text))
    assert sum(number != "" for _, number in displayed) == text.count(r"\tag{")
    for (tex, number), (_, following) in pairwise([*displayed, ("", "")]):
        name = number or (f"before {following}" if following else "last")
        assert name not in found
        found[name] = tex
    return found


def execute(parts: list[ast.stmt], cell, names: dict) -> None:
    module = ast.Module(body=parts, type_ignores=[])
    exec(compile(module, cell.id, "exec"), names)  # noqa: S102 - the book's own code


def defined(notebook) -> dict:
    """The functions and classes that the page's cells define, without running anything else."""
    names = {"torch": torch, "nn": nn, "F": F, "math": math, "partial": partial}
    names |= {"attn_lib": attn_lib, "jacobian": torch.autograd.functional.jacobian}
    names["assigned"] = partial(assigned, notebook, names)
    for cell in pages.code_cells(notebook):
        try:
            tree = ast.parse(cell.source)
        except SyntaxError:  # the cell that installs
            continue
        for part in tree.body:
            if isinstance(part, ast.FunctionDef | ast.ClassDef):
                with suppress(NameError):  # a default that the page has assigned
                    execute([part], cell, names)
    return names


def assigned(notebook, names: dict, mark: str, **given) -> dict:
    """What one cell assigns, in loops too, up to the line with the mark; what is given stays."""
    (cell,) = (cell for cell in pages.code_cells(notebook) if mark in cell.source)
    (end,) = (n for n, line in enumerate(cell.source.splitlines(), 1) if mark in line)
    tops = ast.parse(cell.source).body
    parts = [n for top in tops for n in (top.body if isinstance(top, ast.For) else [top])]
    parts = [n for n in parts if isinstance(n, ast.Assign) and n.lineno <= end]
    for part in parts.copy():
        targets = {n.id for t in part.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        if targets & given.keys():
            parts.remove(part)
    found = {**names, **given}
    execute(parts, cell, found)
    return found


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


# ---------------------------------------------------------------- what each formula says


def one_head(page):
    Q, K, V = draw(4, 3), draw(5, 3, seed=1), draw(5, 2, seed=2)
    powers = (Q @ K.T / math.sqrt(3)).exp()
    expected = powers / powers.sum(dim=1, keepdim=True) @ V
    yield page["one_head"](Q, K, V)[0], expected
    yield page["from_memory"](Q, K, V), expected


def sum_of_heads(page):
    heads, W_O = draw(1, 3, 4, 2), draw(6, 5, seed=1)  # (B, H, T, d_v), (H · d_v, d_model)
    expected = sum(heads[0, h] @ W_O[2 * h : 2 * h + 2] for h in range(3))
    yield page["MultiHeadAttention"].merge(None, heads)[0] @ W_O, expected


def number_of_operations(page):
    T, d_model = 5, 12
    layer = page["MultiHeadAttention"](d_model, 3).requires_grad_(False)
    with FlopCounterMode(display=False) as counter:
        layer(torch.zeros(1, T, d_model))
    yield counter.get_total_flops(), 8 * T * d_model**2 + 4 * T**2 * d_model


def seen_through_the_lens(page):
    x, E, gain = draw(4, 3), draw(7, 3, seed=1), draw(3, seed=2)
    logits = x / (x.square().mean(dim=1, keepdim=True) + 0.1).sqrt() * gain @ E.T
    norm = nn.RMSNorm(3, eps=0.1)
    norm.weight.data = gain
    page["E"], page["model"] = E, SimpleNamespace(decoder=SimpleNamespace(norm=norm))
    yield page["lens"](x), logits.exp() / logits.exp().sum(dim=1, keepdim=True)


def residual(page):
    x, W = draw(4, 3), draw(3, 3, seed=1)
    yield page["pre_norm"](x, lambda y: y @ W, lambda y: y - 1), x + (x - 1) @ W


def shares(page):
    writes = draw(7, 3)
    z = writes.sum(dim=0)
    share = torch.stack([sum(w * z) / sum(z * z) for w in writes])
    yield share.sum(), 1.0
    found = page["assigned"]("shares =", writes=writes[:, None], z=z)
    yield found["shares"], share


def rms(page):
    x = draw(4, 3)
    expected = torch.stack([row / math.sqrt(float((row**2).mean()) + 0.1) for row in x])
    yield page["rms_norm"](x, eps=0.1), expected
    mean = x.mean(dim=1, keepdim=True)
    variance = x.var(dim=1, keepdim=True, correction=0)
    yield page["layer_norm"](x, eps=0.1), (x - mean) / (variance + 0.1).sqrt()


def swiglu(page):
    layer, x = page["SwiGLU"](3, 7).double().requires_grad_(False), draw(4, 3)
    gate, up, down = layer.gate.weight.T, layer.up.weight.T, layer.down.weight.T
    a = x @ gate
    yield layer(x), (a / (1 + (-a).exp()) * (x @ up)) @ down


def feed_forward(page):
    layer = attn_lib.FeedForward(d_model=3, d_ff=7, activation="relu").double()
    layer, x = layer.requires_grad_(False), draw(4, 3)
    h = (x @ layer.up.weight.T + layer.up.bias).clamp(min=0.0)
    yield layer(x), h @ layer.down.weight.T + layer.down.bias


def variance_of_a_product(page):
    coins = torch.tensor(list(product((-1.0, 1.0), repeat=6)))  # each q and k of width 3, once
    sums = torch.stack([sum(1.5 * x[i] * 1.5 * x[3 + i] for i in range(3)) for x in coins])
    law = 3 * 1.5**4
    yield sums.var(correction=0), law
    drawn = 1.5 * torch.stack(coins.split(3, dim=1))
    found = page["assigned"]("# (4.1)", normal=drawn, coins=drawn, d_k=3)
    yield found["law"], law
    yield found["by_normal"], sums.var()
    yield found["by_coins"], sums.var()


def spread_at_the_start(page):
    signs = torch.tensor(list(product((-1.0, 1.0), repeat=8)))  # each W^Q and W^K, once
    W_Q, W_K = (0.7 * signs).view(-1, 2, 2, 2).unbind(1)
    x, y = math.sqrt(2) * torch.eye(2)  # unrelated, of mean square one
    of_x, of_y = (0.3 * ((y @ W_Q) * (key @ W_K)).sum(dim=1) for key in (x, y))
    spread = ((of_x - of_y).square() / 2).mean().sqrt()  # the variance of two is so much
    yield spread, 0.3 * math.sqrt(2) * 2 * 0.7**2
    found = page["assigned"]("# (4.2)", c=0.3, std=0.05, kept=0, at_start=0, slow=0)
    yield found["law"], 0.3 * math.sqrt(64) * 256 * 0.05**2


def spread_of_the_related(page):
    signs = torch.tensor(list(product((-1.0, 1.0), repeat=8)))  # each W^Q and W^K, once
    c, d_k, d_model, sigma, rho = 0.3, 2, 2, 0.7, 0.4
    W_Q, W_K = (sigma * signs).view(-1, 2, d_model, d_k).unbind(1)
    x, y = torch.tensor([[1.0, 0.0], [rho, math.sqrt(1 - rho**2)]]) * math.sqrt(d_model)
    of_x, of_y = (c * ((y @ W_Q) * (key @ W_K)).sum(dim=1) for key in (x, y))
    spread = ((of_x - of_y).square() / 2).mean().sqrt()  # the variance of two is so much
    yield spread, c * math.sqrt(d_k) * d_model * sigma**2 * math.sqrt(1 - rho)
    a, b = F.layer_norm(draw(2, 384), (384,))
    words = torch.stack([a, F.layer_norm(a + b, (384,))])
    cosine = F.cosine_similarity(*words, dim=0)
    given = dict.fromkeys(("common", "own", "texts", "sentence", "ids"), 0)
    given |= {"x": words, "std": 0.05, "scale": 0.3}
    found = page["assigned"]("# (A.1)", **given)
    law = 0.3 * math.sqrt(64) * 384 * 0.05**2 * math.sqrt(1 - cosine)
    yield found["law"], law
    yield (page["row_spread"](words, 0.05, 0.3) / law - 1).abs() < 0.2, True


def keys_in_use(page):
    S, r = 100_000, 0.5
    z = torch.special.ndtri((torch.arange(S) + 0.5) / S)  # a normal sample without chance
    powers = (r * z).exp()
    p = powers / powers.sum()
    H = -(p * p.log()).sum()
    yield page["entropy"](p), H
    yield (H - (math.log(S) - r**2 / 2)).abs() < 1e-3, True
    found = page["assigned"]("# the formula", c=r / 8, S=S, q=0, k=0, p=p)  # σ = 1, d_k = 64
    yield found["law"], math.exp(math.log(S) - r**2 / 2) / S
    yield found["in_use"], H.exp() / S


def softmax(s):
    return s.exp() / s.exp().sum(dim=-1, keepdim=True)


def derivative_of_the_softmax(page):
    s = draw(4)
    p, found = softmax(s), page["assigned"]("by_torch =", cat=s, times=1)
    J = torch.tensor([[p[i] * (float(i == j) - p[j]) for j in range(4)] for i in range(4)])
    yield found["J"], J
    yield found["by_torch"], J


def derivative_for_the_query(page):
    q, k, v, c = draw(1, 3), draw(5, 3, seed=1), draw(5, 2, seed=2), 0.7
    p = softmax(c * k @ q[0])
    k_mean, v_mean = (sum(p[j] * x[j] for j in range(5)) for x in (k, v))
    pairs = (p[j] * torch.outer(v[j] - v_mean, k[j] - k_mean) for j in range(5))
    expected = c * sum(pairs)
    yield page["query_gradient"](q, k, v, c), expected
    auto = torch.autograd.functional.jacobian(lambda q: softmax(c * k @ q) @ v, q[0])
    yield auto, expected


def derivative_for_the_matrix(page):
    found, _ = page["gradient_of_W_q"](3, 5, 0.7, 0)
    torch.manual_seed(0)  # the same draws, in the same order
    x, W = F.layer_norm(torch.randn(512, 128), (128,)), torch.randn(128, 5) / math.sqrt(128)
    k, v, g = torch.randn(512, 3, 5), torch.randn(512, 3, 8), torch.randn(512, 1, 8)

    def loss(W):
        weights = softmax(0.7 * torch.einsum("td,tsd->ts", x @ W, k))
        return (torch.einsum("ts,tsv->tv", weights, v) * g[:, 0]).sum()

    of_W = torch.autograd.functional.jacobian(loss, W)
    yield found, of_W.norm()
    queries = x @ W
    weights = softmax(0.7 * torch.einsum("td,tsd->ts", queries, k))
    mean_k, mean_v = (torch.einsum("ts,tsd->td", weights, part)[:, None] for part in (k, v))
    pulls = weights * ((v - mean_v) * g).sum(dim=2)
    of_queries = 0.7 * torch.einsum("ts,tsd->td", pulls, k - mean_k)
    yield sum(torch.outer(x[t], of_queries[t]) for t in range(512)), of_W


def looked_up(c, sigma, eta, eps):
    """The output of a head after five steps of Adam, from matrices and biases of this size."""
    X, target, v, out = draw(6, 4), draw(6, 2, seed=1), draw(6, 2, seed=2), None
    W = [(sigma * draw(5, 3, seed=seed)).requires_grad_() for seed in (3, 4)]  # the last: a bias
    m, s = [0, 0], [0, 0]
    for n in range(1, 6):
        q, k = (X @ matrix[:4] + matrix[4] for matrix in W)
        out = softmax(c * q @ k.T) @ v
        gradients = torch.autograd.grad((out - target).square().sum(), W)
        for i, g in enumerate(gradients):
            m[i], s[i] = 0.9 * m[i] + 0.1 * g, 0.999 * s[i] + 0.001 * g**2
            step = eta * m[i] / (1 - 0.9**n) / ((s[i] / (1 - 0.999**n)).sqrt() + eps)
            W[i] = (W[i] - step).detach().requires_grad_()
    return out.detach()


def one_knob(page):
    a, c, sigma, eta, eps = 2, 0.5, 0.8, 0.1, 0.1  # powers of two scale without rounding
    plain = looked_up(c, sigma, eta, eps)
    yield looked_up(a**2 * c, sigma / a, eta / a, a * eps), plain
    for forgotten in ((c, sigma / a, eta / a, a * eps), (a**2 * c, sigma, eta / a, a * eps)):
        yield torch.allclose(looked_up(*forgotten), plain), False
    for rate, tiny in ((eta, a * eps), (eta / a, eps)):
        yield torch.allclose(looked_up(a**2 * c, sigma / a, rate, tiny), plain), False
    twin, first = page["start"](2.0), page["start"](1.0)
    yield page["descend"](twin, 0.03 / 2, 2e-3, 5), page["descend"](first, 0.03, 1e-3, 5)


def bound_of_scores(page):
    q, k, g, h = draw(50, 6), draw(50, 6, seed=1), draw(6, seed=2), draw(6, seed=3)
    q, k = (x / x.square().mean(dim=1, keepdim=True).sqrt() for x in (q, k))
    bound = 0.3 * 6 * max(abs(a * b) for a, b in zip(g, h, strict=True))
    yield ((0.3 * (g * q) @ (h * k).T).abs() <= bound).all(), True
    i = (g * h).abs().argmax()
    best = math.sqrt(6) * F.one_hot(i, 6).double()
    yield (0.3 * (g * best) @ (h * best)).abs(), bound
    found = page["assigned"]("# (4.7)", c=0.3, largest=0, kept=0)
    yield found["bound"], 0.3 * 64


def rotation(a):
    return torch.tensor([[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]])


def shuffled(page):
    ids, order, width = torch.tensor([3, 1, 4, 1, 5]), [2, 0, 4, 3, 1], 384
    P = torch.zeros(5, 5)
    for row, column in enumerate(order):
        P[row, column] = 1.0
    sizes = {"d_model": width, "num_heads": 2, "d_ff": 5, "num_layers": 2}
    encoder = attn_lib.TransformerEncoder(**sizes).requires_grad_(False)
    X = draw(1, 5, width)
    yield encoder(P @ X), P @ encoder(X)
    page |= {"model": SimpleNamespace(encoder=encoder), "words": draw(9, width)}
    page["norm"] = [draw(width), draw(width, seed=1)]
    E = draw(5, width, seed=2)
    yield page["encode"](ids[order], 0 * E), P @ page["encode"](ids, 0 * E)
    yield torch.allclose(page["encode"](ids[order], E), P @ page["encode"](ids, E)), False


def rotated(page):
    x, p, speeds = draw(3, 4), torch.tensor([0, 1, 5]), torch.tensor([1.0, 0.01])
    expected = torch.zeros(3, 4)
    for row, m in product(range(3), range(2)):  # pair m is (x[m], x[m + 2])
        a, (one, two) = p[row] * speeds[m], x[row, m::2]
        expected[row, m] = one * math.cos(a) - two * math.sin(a)
        expected[row, m + 2] = one * math.sin(a) + two * math.cos(a)
    yield page["rotate"](x, p, speeds), expected
    yield positions.apply_rope(x, p, base=1e4), expected


def clocks(T, speeds):
    """The ends of the hands at each position, (T, 2, hands): all x, then all y."""
    rows = [[[f(w * p) for w in speeds.tolist()] for f in (math.cos, math.sin)] for p in range(T)]
    return torch.tensor(rows)


def turned_hands(page):
    speeds = torch.tensor([1e4 ** (-m / 6) for m in range(6)])
    E = clocks(200, speeds)
    sine_first = E.flip(1).mT.flatten(1)
    yield positions.sinusoidal(200, 12), sine_first.float()
    yield page["hands"](torch.arange(200), speeds), E.flatten(1)
    shifted = page["assigned"]("shifted =", E=E.flatten(1), wide=speeds)["shifted"]
    for m, w in enumerate(speeds):
        yield E[20 + 3, :, m], rotation(w * 3) @ E[20, :, m]
        yield shifted[20, m::6], rotation(w * 3) @ E[20, :, m]


def products_of_hands(page):
    speeds = torch.tensor([1e4 ** (-m / 6) for m in range(6)])
    E = clocks(200, speeds).flatten(1)
    expected = sum(math.cos(w * 3) for w in speeds.tolist())
    yield E[20] @ E[23], expected
    found = page["assigned"]("products =", E=E, wide=speeds, shifted=None)
    yield found["products"], torch.full((197,), expected)


def rotation_of_pairs(n, speeds):
    """rot_n, as a matrix: pair m is number m and number m + d / 2."""
    d, pairs = 2 * len(speeds), len(speeds)
    matrix = torch.zeros(d, d)
    for m, w in enumerate(speeds.tolist()):
        matrix[m::pairs, m::pairs] = rotation(n * w)
    return matrix


def same_score(page):
    q, k, speeds = draw(8), draw(8, seed=1), torch.tensor([1.0, 0.7, 0.1, 0.01])
    rot = [rotation_of_pairs(n, speeds) for n in range(-8, 9)]  # that of n is at n + 8
    expected = [[(rot[i - j + 8] @ q) @ k for j in range(9)] for i in range(9)]
    at = torch.arange(9)
    queries, keys = (torch.stack([rot[p + 8] @ x for p in range(9)]) for x in (q, k))
    yield queries @ keys.T, torch.tensor(expected)
    turned = [page["rotate"](x.expand(9, 8), at, speeds) for x in (q, k)]
    yield turned[0] @ turned[1].T, torch.tensor(expected)
    growing = 1.1 ** at[:, None]  # a rotation is needed, not any power of one matrix
    yield torch.allclose((growing * queries) @ (growing * keys).T, torch.tensor(expected)), False


def powers_in_a_basis(page):
    """Any orthogonal matrix without a reflection: its planes are those of its eigenvectors."""
    A = torch.linalg.qr(draw(8, 8)).Q
    A[:, 0] *= torch.linalg.det(A).sign()
    values, vectors = torch.linalg.eig(A)
    one = values.imag > 0  # of each two
    speeds, planes = values.angle()[one], 2**0.5 * vectors[:, one].conj()
    B, x = torch.cat([planes.real, planes.imag], dim=1), draw(8, seed=1)
    yield B.T @ B, torch.eye(8)
    for n in range(5):  # A_1 decides the others
        power = torch.linalg.matrix_power(A, n)
        yield power, B @ rotation_of_pairs(n, speeds) @ B.T
        yield power @ x, B @ page["rotate"](B.T @ x, torch.tensor([n]), speeds)[0]
        q, k = draw(8, seed=2), draw(8, seed=3)  # B is absorbed: the same scores without it
        turned = page["rotate"](B.T @ q, torch.tensor([n + 3]), speeds)[0]
        yield (
            (power @ torch.linalg.matrix_power(A, 3) @ q) @ (A @ k),
            turned @ page["rotate"](B.T @ k, torch.tensor([1]), speeds)[0],
        )


def rotary(page):
    q, k, p = draw(30, 8), draw(30, 8, seed=1), torch.arange(30)
    speeds = torch.tensor([1e4 ** (-m / 4) for m in range(4)])
    rot = [rotation_of_pairs(n, speeds) for n in range(-29, 30)]
    expected = torch.tensor(
        [[(rot[i - j + 29] @ q[i]) @ k[j] for j in range(30)] for i in range(30)]
    )
    yield page["rotate"](q, p, speeds) @ page["rotate"](k, p, speeds).T, expected
    yield positions.apply_rope(q, p) @ positions.apply_rope(k, p).T, expected
    layer, x = of_random_numbers(page["Layer"]()), draw(1, 30, 32, seed=2)
    found = layer.weights(x, "RoPE", lambda distance: distance[..., None] * speeds)
    for h in range(4):  # the readers turn the query by the distance
        q, k = (linear(f, x[0])[:, 8 * h : 8 * h + 8] for f in (layer.q_proj, layer.k_proj))
        for i in (1, 17, 29):
            powers = [math.exp((rot[i - j + 29] @ q[i]) @ k[j] / math.sqrt(8)) for j in range(i)]
            row = [power / sum(powers) for power in powers] + [0.0] * (30 - i)
            yield found[0, h, i], torch.tensor(row)


def bytes_of_a_token(page):
    L, H_kv, d_k, T = 2, 3, 5, 7
    heads = {"num_kv_heads": H_kv, "d_k": d_k, "d_v": d_k}
    sizes = {"d_model": 12, "num_heads": 6, "d_ff": 4, "num_layers": L, "attention": heads}
    model = attn_lib.DecoderLM(vocab_size=9, max_len=T, **sizes).float()
    cache = page["Counting"]()
    model(torch.zeros(1, T, dtype=torch.long), cache=cache)
    yield cache.bytes, T * 2 * L * H_kv * d_k * 4


def rounded_weights(page):
    W = draw(2, 96)
    for bits, shift in ((2, 0), (3, 16)):
        groups = [W[:, [(s - shift) % 96 for s in range(a, a + 32)]] for a in (0, 32, 64)]
        expected = torch.empty_like(W)
        for a, group in zip((0, 32, 64), groups, strict=True):
            for row, weights in enumerate(group):
                low, step = min(weights), (max(weights) - min(weights)) / (2**bits - 1)
                for s, w in enumerate(weights):
                    value = low + step * math.floor(float((w - low) / step) + 0.5)
                    expected[row, (a + s - shift) % 96] = value
        yield page["rounded"](W, bits, shift), expected


def temperature(page):
    z, tau = draw(5), 0.7
    powers = [math.exp(float(x) / tau) for x in z]
    yield page["soften"](z, tau), torch.tensor([power / sum(powers) for power in powers])


def surprise(page):
    table, ids = draw(6, 6), torch.tensor([[2, 0, 5, 1]])
    page["model"] = lambda ids: table[ids].cumsum(dim=1)  # of each beginning
    expected = []
    for t in range(1, 4):
        p = softmax(sum(table[i] for i in ids[0, :t]))  # of what follows x_1 … x_{t-1}
        expected.append(-math.log2(p[ids[0, t]]))
    yield page["surprises"](ids), torch.tensor(expected)


def of_random_numbers(module):
    for n, p in enumerate(module.parameters()):
        p.data = draw(*p.shape, seed=n)
    return module.requires_grad_(False)


def linear(layer, x):
    return x @ layer.weight.T + layer.bias


def layer_norm(norm, x):
    off = x - x.mean(dim=-1, keepdim=True)
    spread = (off.square().mean(dim=-1, keepdim=True) + norm.eps).sqrt()
    return off / spread * norm.weight + norm.bias


def multi_head(layer, x, context):
    """Attention of (T, d_model) on (S, d_model), head by head."""
    q, k, v = linear(layer.q_proj, x), linear(layer.k_proj, context), linear(layer.v_proj, context)
    q, k, v = (y.split(layer.d_k, dim=1) for y in (q, k, v))  # heads
    heads = []
    for h in range(layer.num_heads):
        shared = h // (layer.num_heads // layer.num_kv_heads)
        heads.append(softmax(q[h] @ k[shared].T / math.sqrt(layer.d_k)) @ v[shared])
    return linear(layer.out_proj, torch.cat(heads, dim=1))


def network(layer, x):
    h = linear(layer.up, x)
    return linear(layer.down, h * (1 + torch.erf(h / math.sqrt(2))) / 2)  # GELU


def pooled(page):
    x, real = draw(3, 5, 4), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]])
    for row, kept, e in zip(x, real, page["pool"](x, real == 1), strict=True):
        mean = sum(row[t] for t in range(5) if kept[t]) / int(kept.sum())
        yield e, mean / math.sqrt(sum(float(number) ** 2 for number in mean))


def cross(page):
    page |= {name: getattr(attn_lib.layers, name) for name in ("MultiHeadAttention", "FeedForward")}
    block = of_random_numbers(page["DecoderBlock"](6, 2, 8))
    for part in (block.attention.out_proj, block.feed_forward.down):  # the others add nothing
        part.weight.zero_(), part.bias.zero_()
    y, c, mask = draw(3, 6), draw(5, 6, seed=1), torch.ones(1, 1, 1, 5).bool()
    expected = y + multi_head(block.cross, layer_norm(block.cross_norm, y), c)
    yield block(y[None], c[None], mask)[0], expected


def seen(page):
    """A model of the page, an image, and the stream before and after each sublayer."""
    model, z, image = of_random_numbers(page["ViT"](2, 4, 8)), {}, draw(1, 1, 4, 4)

    def keep(module, name):
        module.register_forward_pre_hook(lambda _, given: z.update({name: given[0][0]}))

    for n, block in enumerate(model.blocks):
        keep(block.norm_1, n)
        keep(block.norm_2, f"{n + 1}'")
    keep(model.head, "y")
    keep(model.norm, "class token, L")
    model(image)
    return model, image, z


def tokens_of_patches(page):
    model, image, z = seen(page)
    patches = [image[0, 0, i : i + 2, j : j + 2].flatten() for i in (0, 2) for j in (0, 2)]
    x = torch.stack([patch @ model.E.weight.T + model.E.bias for patch in patches])
    yield page["cut"](image, 2)[0], torch.stack(patches)
    yield z[0][1:] - model.positions[1:], x
    layer = attn_lib.vision.PatchEmbedding(patch_size=2, in_channels=1, d_model=8)
    layer.projection.weight.data = model.E.weight.view(8, 1, 2, 2)
    layer.projection.bias.data = model.E.bias
    yield layer(image)[0], x


def first_stream(page):
    model, image, z = seen(page)
    tokens = [model.class_token[0], *linear(model.E, page["cut"](image, 2)[0])]
    expected = torch.stack([x + model.positions[i] for i, x in enumerate(tokens)])
    yield z[0], expected


def after_attention(page):
    model, _, z = seen(page)
    for n, block in enumerate(model.blocks):
        x = layer_norm(block.norm_1, z[n])
        names = {f"{name}_proj": getattr(block, name) for name in ("q", "k", "v", "out")}
        sizes = {"d_k": 2, "num_heads": 4, "num_kv_heads": 4}
        yield z[f"{n + 1}'"], z[n] + multi_head(SimpleNamespace(**names, **sizes), x, x)


def after_network(page):
    model, _, z = seen(page)
    for n, block in enumerate(model.blocks):
        x = z[f"{n + 1}'"]
        after = x + network(block, layer_norm(block.norm_2, x))
        last = n + 1 == len(model.blocks)
        yield (z["class token, L"], after[0]) if last else (z[n + 1], after)


def read_from_the_class_token(page):
    model, _, z = seen(page)
    block = model.blocks[-1]
    after = z["4'"] + network(block, block.norm_2(z["4'"]))
    yield z["y"], layer_norm(model.norm, after[0])


def writes_of_a_chunk(page):
    """Token by token from the formula; what is written is read by the queries of the chunk."""
    C, d = 4, 3
    q, k, v = (draw(C, d, seed=n) for n in range(3))
    beta, log_gate, S = draw(C, 1, seed=3).sigmoid(), -draw(C, 1, seed=4).exp(), draw(d, d, seed=5)
    g, u = log_gate.cumsum(0)[:, 0], []
    for i in range(C):
        earlier = [(g[i] - g[j]).exp() * (k[i] @ k[j]) * u[j] for j in range(i)]
        u.append(beta[i] * (v[i] - g[i].exp() * k[i] @ S - sum(earlier, torch.zeros(d))))
    out, last = page["chunk"](q, k, v, beta, log_gate, S)
    for i in range(C):
        read = sum((g[i] - g[j]).exp() * (q[i] @ k[j]) * u[j] for j in range(i + 1))
        yield out[i], g[i].exp() * q[i] @ S + read
    written = sum((g[-1] - g[j]).exp() * torch.outer(k[j], u[j]) for j in range(C))
    yield last, g[-1].exp() * S + written


def gradient_of_a_query(page):
    """With the sum over the row as it stands on the left of the formula."""
    q, k, v, g = (draw(5, 3, seed=n) for n in range(4))
    q = q.requires_grad_()
    (found,) = torch.autograd.grad(page["Recomputed"].apply(q, k, v, 2, False), q, g)
    for row, w in enumerate((q.detach() @ k.mT / math.sqrt(3)).softmax(-1)):
        products = torch.stack([g[row] @ v[r] for r in range(5)])
        mean = sum(w[r] * products[r] for r in range(5))
        yield found[row], sum(w[s] * (products[s] - mean) * k[s] for s in range(5)) / math.sqrt(3)


def rolled_out(page):
    maps = softmax(draw(3, 2, 4, 5, 5))  # (L, B, H, T, T)
    mixed = [[sum(A[b]) / 4 * 0.5 + 0.5 * torch.eye(5) for b in range(2)] for A in maps]
    expected = torch.stack([mixed[2][b] @ mixed[1][b] @ mixed[0][b] for b in range(2)])
    yield attn_lib.attention_rollout(maps), expected
    yield page["rollout"](maps), expected


def all_options(last, page):
    """Attention with the options of the first steps, up to the last one that is asked for."""
    q, k, v, options = draw(3, 4), draw(5, 4, seed=1), draw(5, 2, seed=2), {"scale": 0.7}
    scores = torch.tensor([[0.7 * sum(a * b) for b in k] for a in q])
    if last >= 2:
        options["softcap"] = 0.8
        scores = 0.8 * ((2 * scores / 0.8).exp() - 1) / ((2 * scores / 0.8).exp() + 1)
        yield scores.abs().max() < 0.8, True
    if last >= 3:
        options["attn_bias"] = draw(3, 5, seed=3)
        scores = scores + options["attn_bias"]
    if last >= 4:
        options["mask"] = torch.arange(5) <= torch.tensor([[2], [0], [-1 if last >= 5 else 4]])
        scores[~options["mask"]] = -math.inf
    weights = torch.stack([row.exp() / max(sum(row.exp()), 1e-99) for row in scores])
    yield attn_lib.attention_weights(q, k, **options), weights
    yield attn_lib.attention(q, k, v, **options)[0], weights @ v
    if last >= 6:
        torch.manual_seed(0)
        used = attn_lib.attention(q, k, torch.eye(5), dropout_p=0.25, **options)[0]
        kept = used != 0
        yield used, kept * weights / (1 - 0.25)
        yield (weights[~kept] > 0).any() and kept.any(), True
        layer = attn_lib.MultiHeadAttention(4, 2, dropout=0.5)
        for training in (True, False):
            torch.manual_seed(0)
            layer.train(training)
            yield torch.equal(layer(q[None]), layer(q[None])), not training


def plain_attention(page):
    q, k, v = draw(3, 4), draw(5, 4, seed=1), draw(5, 2, seed=2)
    yield attn_lib.attention(q, k, v)[0], softmax(q @ k.T / math.sqrt(4)) @ v


def shared_heads(page):
    layer, x = of_random_numbers(attn_lib.MultiHeadAttention(12, 6, num_kv_heads=2)), draw(4, 12)
    yield layer(x[None])[0], multi_head(layer, x, x)
    yield layer(x[None, :1], x[None])[0], multi_head(layer, x[:1], x)


def last_queries(page):
    q, k, v = draw(3, 4), draw(5, 4, seed=1), draw(5, 2, seed=2)
    rows = [softmax(q[i] @ k[: i + 3].T / math.sqrt(4)) @ v[: i + 3] for i in range(3)]
    yield attn_lib.attention(q, k, v, causal=True)[0], torch.stack(rows)


def default_widths(page):
    layer = attn_lib.MultiHeadAttention(12, 3)
    yield layer.d_k, 12 // 3
    yield torch.tensor(layer.q_proj.weight.shape), torch.tensor([3 * 4, 12])
    other = attn_lib.MultiHeadAttention(4, 8, d_k=64, d_v=32)  # as the notation says
    yield torch.tensor(other.out_proj.weight.shape), torch.tensor([4, 8 * 32])


def joined_heads(page):
    layer, x = of_random_numbers(attn_lib.MultiHeadAttention(6, 3)), draw(4, 6)
    yield layer(x[None])[0], multi_head(layer, x, x)


@dataclass(frozen=True)
class Row:
    """A formula as it is printed, and pairs of what the page computes and what it says."""

    page: str
    number: str
    tex: str
    pairs: Callable


def rows(page: str, *of_page: tuple) -> list[Row]:
    return [Row(page, *row) for row in of_page]


OUT = r"\text{out} = \operatorname{softmax}\!\left(\frac{QK^\top}{\sqrt{d_k}}\right) V"
LENS = r"p_k = \operatorname{softmax}\left(\operatorname{norm}(x_k)\, E^\top\right)"
SHARES = r"\text{share}_i = \frac{w_i \cdot z}{z \cdot z}, \qquad \sum_i w_i = z"
LN = r"\operatorname{LN}(x) = \frac{x - \mu}{\sqrt{s^2 + \varepsilon}}"
RMS = r"\operatorname{RMS}(x) = \frac{x}{\sqrt{\overline{x^2} + \varepsilon}}"
GATED = r"h = \operatorname{silu}(x W_\text{gate}) \odot x W_\text{up}"
POOLED = r"\bar x = \frac 1 n \sum_{t \text{ real}} x_t"
ENTROPY = r"\boxed{H \approx \log S - \tfrac12 r^2}"
SPREAD = r"\boxed{r = c\,\sqrt{d_k}\; d_\text{model}\,\sigma_W^2}"
RELATED = SPREAD[:-1] + r"\, \sqrt{1 - \rho}}"
J = r"\boxed{J = \frac{\partial p}{\partial s} = \operatorname{diag}(p) - p\,p^\top}"
FOR_QUERY = r"\boxed{\frac{\partial\,\text{out}}{\partial q} = "
FOR_QUERY += r"c \sum_j p_j\, \Delta v_j\, \Delta k_j^\top}"
FOR_MATRIX = r"\frac{\partial L}{\partial W^Q} = \sum_t x_t^\top\, \frac{\partial L}{\partial q_t}"
KNOB = r"\boxed{(c,\; W,\; \eta,\; \varepsilon) \;\sim\; "
KNOB += r"\bigl(a^2 c,\; \tfrac{W}{a},\; \tfrac{\eta}{a},\; a\,\varepsilon\bigr)}"
BOUND = r"\boxed{|c\; q \cdot k| \;\le\; c\, d_k\, \max_i |g_i h_i|}"
PRODUCT = r"\boxed{e(p) \cdot e(p + n) = \sum_m \cos \omega_m n}"
ROPE = r"\boxed{(\operatorname{rot}_i q) \cdot (\operatorname{rot}_j k) = "
ROPE += r"(\operatorname{rot}_{i-j}\, q) \cdot k}"
BYTES = r"\text{bytes per token} = 2\, L\, H_\text{kv}\, d_k \cdot 4"
ROUNDED = r"w' = l + s \operatorname{round}\left(\frac{w - l}{s}\right), \quad s = "
ROUNDED += r"\frac{h - l}{2^b - 1}"
WRITES = r"\begin{aligned}" + "\n" + r"u_i = \beta_i ( & v_i - e^{g_i} k_i S \\" + "\n"
WRITES += r"& - \sum_{j < i} e^{g_i - g_j} (k_i \cdot k_j)\, u_j )" + "\n" + r"\end{aligned}"
TAKEN_OUT = r"\sum_r w_r \, g \cdot v_r = g \cdot \sum_r w_r v_r"
Z_0 = r"z_0 = [x_\text{class};\, x^1;\, \dots;\, x^N] + E_\text{pos}"
ROLLOUT = r"R = \tilde A_L \cdots \tilde A_1,\quad \tilde A = \tfrac12 (A + I)"
BOTH = r"\begin{aligned}" + "\n" + OUT.replace(" =", " &=") + r", \\" + "\n"
BOTH += r"\text{MultiHead} &= [\text{out}_1, \dots, \text{out}_H]\, W^O," + "\n" + r"\end{aligned}"
STEPS = {
    "1. scale": "`scores = q @ k.mT * scale`",
    "2. softcap": r"$c \tanh(\text{scores} / c)$ keeps every score between $-c$ and $c$",
    "3. bias": "`scores + attn_bias`",
    "4. mask": r"where `mask` is False, the score becomes $-\infty$",
    "5. softmax": "over the keys, the last axis; a row that is closed everywhere becomes zeros",
    "6. dropout": "some weights become 0, the others grow by $1/(1-p)$; in training only",
    "7. times $V$": "`out = weights @ v`",
}


def written(page, K, V):
    """The state of the page's table: all pairs, added."""
    return page["assigned"]("# all pairs, added", k=K, v=V, N=len(K))["S"]


def another_order(page):
    q, K, V = draw(1, 3), draw(5, 3, seed=1), draw(5, 2, seed=2)
    yield q @ written(page, K, V), (q @ K.T) @ V


def noise_of_others(page):
    K, V = F.normalize(draw(5, 3, seed=1), dim=1), draw(5, 2, seed=2)
    S = written(page, K, V)
    for i in range(5):
        noise = sum((K[i] @ K[j]) * V[j] for j in range(5) if j != i)
        yield K[i] @ S, V[i] + noise


def difference_written(page):
    k, v, S, beta = draw(1, 3), draw(1, 2, seed=1), draw(3, 2, seed=2), 0.3
    yield page["delta_rule"](k, v, beta, S), S + beta * k.T @ (v - k @ S)


def gated_difference(page):
    k, v, S = draw(1, 3), draw(1, 2, seed=1), draw(3, 2, seed=2)
    beta, alpha = torch.tensor([[0.3]]), torch.tensor([[0.7]])
    _, last = page["one_state"](k, k, v, beta, alpha.log(), S)
    yield last, alpha * S + beta * k.T @ (v - k @ (alpha * S))


STATE = r"S_t = \alpha_t S_{t-1} + \beta_t\, k_t^\top (v_t - k_t\, \alpha_t S_{t-1})"
READ = r"k_i S = v_i + \sum_{j \ne i} (k_i \cdot k_j)\, v_j"


ROWS = [
    *rows("01_one_head", ("1.1", OUT, one_head)),
    *rows(
        "03_many_heads",
        ("3.1", r"[\,o_0, \dots, o_{H-1}]\, W^O = \sum_h o_h W^O_h", sum_of_heads),
        ("3.2", r"8\, T d_\text{model}^2 + 4\, T^2 d_\text{model}", number_of_operations),
    ),
    *rows(
        "04_scaling",
        ("4.1", r"\boxed{\operatorname{Var}(q \cdot k) = d_k\,\sigma^4}", variance_of_a_product),
        ("4.2", SPREAD, spread_at_the_start),
        ("4.3", J, derivative_of_the_softmax),
        ("4.4", FOR_QUERY, derivative_for_the_query),
        ("4.5", FOR_MATRIX, derivative_for_the_matrix),
        ("4.6", KNOB, one_knob),
        ("4.7", BOUND, bound_of_scores),
    ),
    *rows("entropy", ("before A.1", ENTROPY, keys_in_use), ("A.1", RELATED, spread_of_the_related)),
    *rows(
        "05_positions",
        ("5.1", r"\boxed{f(PX) = P\,f(X)}", shuffled),
        ("before 5.2", r"x' = x \cos a - y \sin a", rotated),
        ("5.2", r"y' = x \sin a + y \cos a", rotated),
        ("5.3", r"\boxed{e_m(p + n) = R_{\omega_m n}\, e_m(p)}", turned_hands),
        ("5.4", PRODUCT, products_of_hands),
        ("5.5", r"(A_{n+j}\, q) \cdot (A_j\, k) = (A_n\, q) \cdot k", same_score),
        ("5.6", r"\boxed{A_n = B \operatorname{rot}_n B^\top}", powers_in_a_basis),
        ("5.7", ROPE, rotary),
    ),
    *rows(
        "06_block",
        ("6.1", LENS, seen_through_the_lens),
        ("6.2", r"x \leftarrow x + f(\operatorname{norm}(x))", residual),
        ("6.3", SHARES, shares),
        ("before 6.4", LN, rms),
        ("6.4", RMS, rms),
        ("before 6.5", r"h = \max(x W_1 + b_1, 0)", feed_forward),
        ("6.5", r"\operatorname{FFN}(x) = h\, W_2 + b_2", feed_forward),
        ("before 6.6", GATED, swiglu),
        ("6.6", r"\operatorname{SwiGLU}(x) = h\, W_\text{down}", swiglu),
    ),
    *rows(
        "07_real_encoder",
        ("before 7.1", POOLED, pooled),
        ("7.1", r"e = \frac{\bar x}{\lVert \bar x \rVert}", pooled),
    ),
    *rows(
        "smollm2",
        ("A.2", BYTES, bytes_of_a_token),
        ("A.3", ROUNDED, rounded_weights),
    ),
    *rows(
        "08_next_token",
        ("8.1", r"p_i = \frac{e^{z_i / \tau}}{\sum_j e^{z_j / \tau}}", temperature),
        ("8.2", r"s_t = -\log_2 p(x_t \mid x_1 \dots x_{t-1})", surprise),
    ),
    *rows("12_without_matrix", ("12.1", TAKEN_OUT, gradient_of_a_query)),
    *rows(
        "13_one_state",
        ("13.1", r"(q K^\top)\, V = q\, (K^\top V)", another_order),
        ("13.2", READ, noise_of_others),
        ("13.3", r"S_t = S_{t-1} + \beta_t\, k_t^\top (v_t - k_t S_{t-1})", difference_written),
        ("13.4", STATE, gated_difference),
        ("13.5", WRITES, writes_of_a_chunk),
    ),
    *rows(
        "14_encoder_decoder",
        ("14.1", r"y \leftarrow y + \operatorname{cross}(\operatorname{norm}(y),\, c)", cross),
    ),
    *rows(
        "15_vision",
        ("15.1", r"x^i = \text{patch}_i \, E + b", tokens_of_patches),
        ("15.2", Z_0, first_stream),
        (
            "15.3",
            r"z'_l = z_{l-1} + \operatorname{MSA}(\operatorname{LN}(z_{l-1}))",
            after_attention,
        ),
        ("15.4", r"z_l = z'_l + \operatorname{FFN}(\operatorname{LN}(z'_l))", after_network),
        ("15.5", r"y = \operatorname{LN}(z_L^0)", read_from_the_class_token),
    ),
    *rows("16_large_vision", ("16.1", ROLLOUT, rolled_out)),
    *rows("five_posts", ("last", BOTH, plain_attention), ("last", BOTH, joined_heads)),
    *rows("notation", ("last", OUT, plain_attention)),
    *rows("notation", *((n, tex, partial(all_options, int(n[0]))) for n, tex in STEPS.items())),
]
PAGES = {path.stem: pages.read(path) for path in pages.NOTEBOOKS}
NOTATION = nbformat.v4.new_markdown_cell((pages.BOOK / "notation.md").read_text())
PAGES["notation"] = nbformat.v4.new_notebook(cells=[NOTATION])


def unlike(row: Row, names: dict) -> list[int]:
    """Which of the row's pairs are not equal."""
    pairs = [(torch.as_tensor(a), torch.as_tensor(b)) for a, b in row.pairs(names)]
    assert pairs
    same = [a.shape == b.shape and torch.allclose(a, b, rtol=1e-12) for a, b in pairs]
    return [i for i, equal in enumerate(same) if not equal]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.page}-{row.number}")
def test_a_formula_is_printed_as_it_is_computed(row):
    notebook = PAGES[row.page]
    assert formulas(notebook)[row.number] == row.tex
    assert unlike(row, defined(notebook)) == []


@for_each(
    (r"query head $h$ uses key head $\lfloor h / (H / H_\text{kv}) \rfloor$", shared_heads),
    (
        r"a causal mask and $T \ne S$, the queries are the **last** $T$ of the $S$ positions",
        last_queries,
    ),
    (r"| $d_\text{model} / H$ by default |", default_widths),
    ("`nn.Linear(d_model, H * d_k).weight` has the shape `(H * d_k, d_model)`", default_widths),
    ("`d_model=4, H=8, d_k=64, d_v=32` is legal", default_widths),
)
def test_a_sentence_of_the_notation_is_true(sentence, pairs):
    assert NOTATION.source.count(sentence) == 1
    assert unlike(Row("notation", "", sentence, pairs), {}) == []


def test_each_displayed_formula_has_its_row():
    numbered = {name: set(formulas(notebook)) for name, notebook in PAGES.items()}
    held = {name: {row.number for row in ROWS if row.page == name} for name in PAGES}
    assert numbered == held


@for_each(
    ("1.1", "/ math.sqrt(k.shape[-1])", "/ k.shape[-1]"),
    ("3.1", "return x.transpose(1, 2).reshape(", "return x.flip(1).transpose(1, 2).reshape("),
    ("3.2", "q @ k.mT /", "(q @ k.mT + 0 * (q @ k.mT)) /"),
    ("4.1", "d_k * sigma**4", "d_k * sigma**2"),
    ("A.1", "* (1 - rho).sqrt()", ""),
    ("A.1", "scores.var(dim=-1)", "scores.sum(dim=-1)"),
    ("4.2", "* 256 * std**2", "* 256 * std"),
    ("4.3", "p.diag() - p[:, None] * p", "p.diag() - p[:, None]"),
    ("4.4", "scale * pulls.mT", "pulls.mT"),
    ("4.5", "(x.mT @ on_query).norm()", "on_query.norm()"),
    ("4.6", '{"params": pair, "lr": rate, "eps": eps}', '{"params": pair, "lr": rate}'),
    ("4.6", "LookUp(scale=a**2 / 8)", "LookUp(scale=a / 8)"),
    ("4.7", "bound = c * 64", "bound = c * 8"),
    ("5.1", "F.layer_norm(words[ids] + E,", "F.layer_norm((words[ids] + E).cumsum(dim=0),"),
    ("5.2", "x * sin + y * cos", "x * sin - y * cos"),
    ("5.3", "torch.full((200,), 3)", "torch.full((200,), -3)"),
    ("5.4", "products = (E[:-3] * E[3:])", "products = (E[:-3] * E[2:-1])"),
    ("5.5", "angles = p[:, None] * speeds", "angles = p[:, None] ** 2 * speeds"),
    ("5.6", "x * sin + y * cos", "x * cos + y * sin"),
    ("5.7", "q, e, k).real", "q, e.conj(), k).real"),
    ("6.1", "model.decoder.norm(x) @ E.T", "x @ E.T"),
    ("6.2", "return x + f(norm(x))", "return f(norm(x))"),
    ("6.3", "/ z.square().sum()", "/ z.norm()"),
    ("6.4", "x.square().mean", "x.abs().mean"),
    ("6.6", "F.silu(self.gate(x))", "F.sigmoid(self.gate(x))"),
    ("before 7.1", "* real[..., None]", ""),
    ("7.1", "mean / mean.norm(dim=1, keepdim=True)", "mean / mean.norm()"),
    ("8.1", "logits / tau", "logits * tau"),
    ("8.2", "ids[0, 1:, None]", "ids[0, :-1, None]"),
    ("A.2", "k.nbytes + v.nbytes", "k.nbytes"),
    ("A.3", "(2**bits - 1)", "2**bits"),
    ("12.1", "mean = (g * out)", "mean = (g * g)"),
    ("13.1", "S = k.mT @ v  # all pairs, added", "S = k.mT @ v.flip(-2)  # all pairs, added"),
    ("13.2", "S = k.mT @ v  # all pairs, added", "S = k.mT @ v.abs()  # all pairs, added"),
    ("13.3", "(beta * (v_t - read))", "(beta * v_t)"),
    ("13.4", "(v[..., now, :] - read)", "v[..., now, :]"),
    ("13.5", "known = beta * (v - g.exp()", "known = beta * (v - g"),
    ("14.1", "y + self.cross(", "self.cross("),
    ("15.1", "permute(0, 2, 4, 1, 3, 5)", "permute(0, 4, 2, 1, 3, 5)"),
    ("15.2", "dim=1) + self.positions", "dim=1) + self.positions.flip(0)"),
    ("15.3", "self.attention(self.norm_1(z))", "self.attention(self.norm_1(z.flip(1)))"),
    ("15.4", "return z + self.down", "return z - self.down"),
    ("15.5", "self.norm(z[:, 0])", "self.norm(z[:, 1])"),
    ("16.1", "torch.eye(A.shape[-1]).to(A)) @ total", "torch.eye(A.shape[-1]).to(A)).mT @ total"),
)
def test_another_computation_is_seen(number, old, new):
    (row,) = (row for row in ROWS if row.number == number)
    notebook = pages.read(pages.BOOK / f"{row.page}.ipynb")
    cells = [cell for cell in pages.code_cells(notebook) if old in cell.source]
    for cell in cells:
        cell.source = cell.source.replace(old, new)
    assert cells
    assert unlike(row, defined(notebook))


SYMBOL = re.compile(r"(?m)^\| \$([^$]+)\$ \| `(\w+)`")
NAMED = {"N": "num_layers", "X": "x", "C": "context", "A": "weights", "AV": "out", "M": "mask"}
NAMED |= {"W^Q": "q_proj", "W^K": "k_proj", "W^V": "v_proj", "W^O": "out_proj", "z": "logits"}
NAMED |= {"b": "attn_bias", r"QK^\top / \sqrt{d_k}": "scores", "Q": "q", "K": "k", "V": "v"}
NAMED |= {r"\beta_t": "beta", "g_t": "log_decay"}


def miscalled(text: str) -> list[tuple[str, str]]:
    """Symbols that the notation calls otherwise in code."""
    plain = {tex: re.sub(r"\\text\{(\w+)\}", r"\1", tex) for tex, _ in SYMBOL.findall(text)}
    return [(tex, name) for tex, name in SYMBOL.findall(text) if NAMED.get(tex, plain[tex]) != name]


def test_symbols_of_the_notation_are_those_of_the_code():
    assert len(SYMBOL.findall(NOTATION.source)) > 20
    assert miscalled(NOTATION.source) == []
    assert miscalled(NOTATION.source.replace("| $d_v$ | `d_v`", "| $d_k$ | `d_v`")) != []


# ---------------------------------------------------------------- inside sentences

# formulas whose parts are, with another meaning, in another order elsewhere
BOTH_ORDERS = {"g(h(PX))", r"g(P\,h(X))", r"P\,g(h(X))", "i - j", r"x = \cos a", "A_n", "W^Q x"}
BOTH_ORDERS |= {r"A_j^\top A_{n+j} = A_n", r"1/\sqrt 2", r"\sqrt{1/2}", r"a\,m"}
PART = re.compile(r"\\[a-zA-Z]+|\\.|[^\s\\]")


def parts(tex: str) -> list[str]:
    """Letters with their indices and powers, and signs."""
    tex = re.sub(r"\\[,;!]|\\(?:text|operatorname)|[{}]", "", tex)
    tex, found = tex.replace(r"^\top", "⊤"), []
    for part in PART.findall(tex):
        if found and (part in "_^" or found[-1][-1] in "_^" or found[-1] == r"\Delta"):
            found[-1] += part
        else:
            found.append(part)
    return found


def reordered(texts: dict[str, str]) -> list[str]:
    """Formulas inside sentences whose parts are in another order in another formula."""
    displayed = [tex for text in texts.values() for tex, _ in DISPLAYED.findall(text)]
    inside = [
        tex
        for text in texts.values()
        for tex in re.findall(r"\$([^$]+)\$", DISPLAYED.sub("", text))
    ]
    orders: dict[tuple[str, ...], set[str]] = {}
    for all_parts in map(parts, displayed + inside):
        for start, n in product(range(len(all_parts)), range(2, 13)):
            piece = all_parts[start : start + n]
            orders.setdefault(tuple(sorted(piece)), set()).add(" ".join(piece))
    return [
        tex
        for tex in dict.fromkeys(inside)
        if 2 <= len(parts(tex)) <= 12 and re.search("[A-Za-z]", tex) and tex not in BOTH_ORDERS
        if orders[tuple(sorted(parts(tex)))] != {" ".join(parts(tex))}
    ]


def test_formulas_in_sentences_have_the_order_of_others():
    texts = {
        name: "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
        for name, notebook in PAGES.items()
    }
    assert reordered(texts) == []
    right = texts["01_one_head"]
    assert right.count(r"of $QK^\top$") == 1
    wrong = {"01_one_head": right.replace(r"of $QK^\top$", r"of $KQ^\top$")}
    assert reordered(texts | wrong) == [r"KQ^\top"]


# letters that stand only once in the formulas of their page
ONCE = {
    "01_one_head": "W^V e^0 e^s e^{1000} k o q v",
    "02_masks": "e^{-}",
    "03_many_heads": "T^2 W^K W^O_h W^V a b d_k d_v o_0 o_{H-1} v_cat v_milk",
    "04_scaling": "J K Q Z^2 e^{s_n} k' k_1 k_{d_k} n q' q_1 q_{d_k} r r^2 s t",
    "05_positions": "A_0 A_1 A_p R_a R_{_mn} b^{-2m/d} e^{ia} x' y'",
    "06_block": "W_1 W_2 b_1 b_2 d_model e^{-z} g' k p_k s^2 x^2",
    "07_real_encoder": "e t",
    "08_next_token": "e^{z_i/} e^{z_j/} j k p_i s_t x_2 x_t x_{t-1} z_i",
    "09_language_model": "H H_kv L W^K W^Q d_ff d_k d_model e^{i}",
    "12_without_matrix": "O e^{lse_b} e^{m_old-m_new} e^{old-new} e^{score-lse} e^{score-m} n^2",
    "13_one_state": "C W_v e^{g} g_i g_j g_t v_j z",
    "15_vision": "E_pos L b i p x^1 x^N x^i x_class y z_0 z_L^0 z_l",
    "16_large_vision": "A_1 A_L I R",
    "17_weather": "r",
    "18_clinic": "e^{old-new}",
    "conventions": "B H S T d",
    "entropy": "W^Q_ c^2 e^{-r^2/2} e^{-z^2/2} e^{r^2/2} e^{s_j} k^2 q^2 s x_m y_j z^2",
    "five_posts": "H M Q V W^O d_k",
    "smollm2": "w'",
    "notation": "B C K M N W^K W^O W^Q W^V X b d_ff g_t l o s t z",
}
LETTER = re.compile(r"(?<![A-Za-z\\])[A-Za-z]'?(?:[_^](?:\{[^{}]*\}|\w+))*")


def once(text: str) -> str:
    """Letters, with their indices and powers, that only one place of a page has."""
    tex = [tex for tex, _ in DISPLAYED.findall(text)]
    tex += re.findall(r"\$([^$]+)\$", DISPLAYED.sub("", text))
    plain = re.sub(r"\\text\{(\w+)\}", r"\1", " ".join(tex))
    plain = re.sub(r"\\(?:text|operatorname|begin|end)\{[^}]*\}|\\[A-Za-z]+", " ", plain)
    found = [letter.replace(" ", "") for letter in LETTER.findall(plain)]
    return " ".join(sorted(letter for letter in {*found} if found.count(letter) == 1))


def test_no_letter_loses_the_others_of_its_kind():
    """A letter that was exchanged is alone, or leaves another alone."""
    texts = {
        name: "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
        for name, notebook in PAGES.items()
    }
    assert {name: once(text) for name, text in texts.items() if once(text)} == ONCE
    right = texts["05_positions"]
    assert once(right.replace("$A_0 = I$", "$A_0 = R$", 1)) != once(right)
