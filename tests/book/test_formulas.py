"""Numbered formulas: what is printed, what it means, and what the page computes, three times.

A function has a formula's TeX as it stands on the page, and gives pairs: what the page defines or a
cell of it assigns, or the library, and an expression that is typed here from the formula, both
evaluated on random numbers. No displayed formula may be without a function, or else a line under
``held`` in its page, which asks the same there.
"""

import ast
import math
import re
from collections.abc import Callable
from contextlib import suppress
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

import attn_lib
from attn_lib import positions

pytestmark = pytest.mark.usefixtures("double")
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


# ---------------------------------------------------------------- what each formula says

FORMULAS: dict[tuple[str, str], tuple[str, Callable]] = {}
OUT = r"\text{out} = \operatorname{softmax}\!\left(\frac{QK^\top}{\sqrt{d_k}}\right) V"


def formula(page: str, number: str, tex: str):
    """A formula as it is printed; what it decorates yields pairs that must be equal."""

    def kept(pairs: Callable) -> Callable:
        FORMULAS[page, number] = tex, pairs
        return pairs

    return kept


@formula("01_one_head", "1.1", OUT)
def one_head(page):
    Q, K, V = draw(4, 3), draw(5, 3, seed=1), draw(5, 2, seed=2)
    powers = (Q @ K.T / math.sqrt(3)).exp()
    expected = powers / powers.sum(dim=1, keepdim=True) @ V
    yield page["one_head"](Q, K, V)[0], expected
    yield page["from_memory"](Q, K, V), expected


@formula(
    "entropy",
    "A.1",
    r"\boxed{r = c\,\sqrt{d_k}\; d_\text{model}\,\sigma_W^2\, \sqrt{1 - \rho}}",
)
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


def softmax(s):
    return s.exp() / s.exp().sum(dim=-1, keepdim=True)


@formula(
    "04_scaling",
    "4.3",
    r"\boxed{J = \frac{\partial p}{\partial s} = \operatorname{diag}(p) - p\,p^\top}",
)
def derivative_of_the_softmax(page):
    s = draw(4)
    p, found = softmax(s), page["assigned"]("by_torch =", cat=s, times=1)
    J = torch.tensor([[p[i] * (float(i == j) - p[j]) for j in range(4)] for i in range(4)])
    yield found["J"], J
    yield found["by_torch"], J


@formula(
    "04_scaling",
    "4.4",
    r"\boxed{\frac{\partial\,\text{out}}{\partial q} = "
    r"c \sum_j p_j\, \Delta v_j\, \Delta k_j^\top}",
)
def derivative_for_the_query(page):
    q, k, v, c = draw(1, 3), draw(5, 3, seed=1), draw(5, 2, seed=2), 0.7
    p = softmax(c * k @ q[0])
    k_mean, v_mean = (sum(p[j] * x[j] for j in range(5)) for x in (k, v))
    pairs = (p[j] * torch.outer(v[j] - v_mean, k[j] - k_mean) for j in range(5))
    expected = c * sum(pairs)
    yield page["query_gradient"](q, k, v, c), expected
    auto = torch.autograd.functional.jacobian(lambda q: softmax(c * k @ q) @ v, q[0])
    yield auto, expected


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


@formula(
    "04_scaling",
    "4.6",
    r"\boxed{(c,\; W,\; \eta,\; \varepsilon) \;\sim\; "
    r"\bigl(a^2 c,\; \tfrac{W}{a},\; \tfrac{\eta}{a},\; a\,\varepsilon\bigr)}",
)
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


@formula("04_scaling", "4.7", r"\boxed{|c\; q \cdot k| \;\le\; c\, d_k\, \max_i |g_i h_i|}")
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


def clocks(T, speeds):
    """The ends of the hands at each position, (T, 2, hands): all x, then all y."""
    rows = [[[f(w * p) for w in speeds.tolist()] for f in (math.cos, math.sin)] for p in range(T)]
    return torch.tensor(rows)


@formula("05_positions", "5.3", r"\boxed{e_m(p + n) = R_{\omega_m n}\, e_m(p)}")
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


@formula("05_positions", "5.4", r"\boxed{e(p) \cdot e(p + n) = \sum_m \cos \omega_m n}")
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


@formula("05_positions", "5.6", r"\boxed{A_n = B \operatorname{rot}_n B^\top}")
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


@formula(
    "05_positions",
    "5.7",
    r"\boxed{(\operatorname{rot}_i q) \cdot (\operatorname{rot}_j k) = "
    r"(\operatorname{rot}_{i-j}\, q) \cdot k}",
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


@formula("07_real_encoder", "before 7.1", r"\bar x = \frac 1 n \sum_{t \text{ real}} x_t")
@formula("07_real_encoder", "7.1", r"e = \frac{\bar x}{\lVert \bar x \rVert}")
def pooled(page):
    x, real = draw(3, 5, 4), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]])
    for row, kept, e in zip(x, real, page["pool"](x, real == 1), strict=True):
        mean = sum(row[t] for t in range(5) if kept[t]) / int(kept.sum())
        yield e, mean / math.sqrt(sum(float(number) ** 2 for number in mean))


@formula(
    "14_encoder_decoder",
    "14.1",
    r"y \leftarrow y + \operatorname{cross}(\operatorname{norm}(y),\, c)",
)
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


@formula("15_vision", "15.1", r"x^i = \text{patch}_i \, E + b")
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


@formula("15_vision", "15.2", r"z_0 = [x_\text{class};\, x^1;\, \dots;\, x^N] + E_\text{pos}")
def first_stream(page):
    model, image, z = seen(page)
    tokens = [model.class_token[0], *linear(model.E, page["cut"](image, 2)[0])]
    expected = torch.stack([x + model.positions[i] for i, x in enumerate(tokens)])
    yield z[0], expected


@formula("15_vision", "15.3", r"z'_l = z_{l-1} + \operatorname{MSA}(\operatorname{LN}(z_{l-1}))")
def after_attention(page):
    model, _, z = seen(page)
    for n, block in enumerate(model.blocks):
        x = layer_norm(block.norm_1, z[n])
        names = {f"{name}_proj": getattr(block, name) for name in ("q", "k", "v", "out")}
        sizes = {"d_k": 2, "num_heads": 4, "num_kv_heads": 4}
        yield z[f"{n + 1}'"], z[n] + multi_head(SimpleNamespace(**names, **sizes), x, x)


@formula("15_vision", "15.4", r"z_l = z'_l + \operatorname{FFN}(\operatorname{LN}(z'_l))")
def after_network(page):
    model, _, z = seen(page)
    for n, block in enumerate(model.blocks):
        x = z[f"{n + 1}'"]
        after = x + network(block, layer_norm(block.norm_2, x))
        last = n + 1 == len(model.blocks)
        yield (z["class token, L"], after[0]) if last else (z[n + 1], after)


@formula("15_vision", "15.5", r"y = \operatorname{LN}(z_L^0)")
def read_from_the_class_token(page):
    model, _, z = seen(page)
    block = model.blocks[-1]
    after = z["4'"] + network(block, block.norm_2(z["4'"]))
    yield z["y"], layer_norm(model.norm, after[0])


@formula(
    "13_one_state",
    "13.5",
    r"""\begin{aligned}
u_i = \beta_i ( & v_i - e^{g_i} k_i S \\
& - \sum_{j < i} e^{g_i - g_j} (k_i \cdot k_j)\, u_j )
\end{aligned}""",
)
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


@formula("12_without_matrix", "12.1", r"\sum_r w_r \, g \cdot v_r = g \cdot \sum_r w_r v_r")
def gradient_of_a_query(page):
    """With the sum over the row as it stands on the left of the formula."""
    q, k, v, g = (draw(5, 3, seed=n) for n in range(4))
    q = q.requires_grad_()
    (found,) = torch.autograd.grad(page["Recomputed"].apply(q, k, v, 2, False), q, g)
    for row, w in enumerate((q.detach() @ k.mT / math.sqrt(3)).softmax(-1)):
        products = torch.stack([g[row] @ v[r] for r in range(5)])
        mean = sum(w[r] * products[r] for r in range(5))
        yield found[row], sum(w[s] * (products[s] - mean) * k[s] for s in range(5)) / math.sqrt(3)


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


@formula("notation", "last", OUT)
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


@formula(
    "five_posts",
    "last",
    r"""\begin{aligned}
\text{out} &= \operatorname{softmax}\!\left(\frac{QK^\top}{\sqrt{d_k}}\right) V, \\
\text{MultiHead} &= [\text{out}_1, \dots, \text{out}_H]\, W^O,
\end{aligned}""",
)
def joined_heads(page):
    yield from plain_attention(page)
    layer, x = of_random_numbers(attn_lib.MultiHeadAttention(6, 3)), draw(4, 6)
    yield layer(x[None])[0], multi_head(layer, x, x)


STEPS = {
    "1. scale": "`scores = q @ k.mT * scale`",
    "2. softcap": r"$c \tanh(\text{scores} / c)$ keeps every score between $-c$ and $c$",
    "3. bias": "`scores + attn_bias`",
    "4. mask": r"where `mask` is False, the score becomes $-\infty$",
    "5. softmax": "over the keys, the last axis; a row that is closed everywhere becomes zeros",
    "6. dropout": "some weights become 0, the others grow by $1/(1-p)$; in training only",
    "7. times $V$": "`out = weights @ v`",
}
for number, tex in STEPS.items():
    formula("notation", number, tex)(partial(all_options, int(number[0])))


def written(page, K, V):
    """The state of the page's table: all pairs, added."""
    return page["assigned"]("# all pairs, added", k=K, v=V, N=len(K))["S"]


@formula("13_one_state", "13.1", r"(q K^\top)\, V = q\, (K^\top V)")
def another_order(page):
    q, K, V = draw(1, 3), draw(5, 3, seed=1), draw(5, 2, seed=2)
    yield q @ written(page, K, V), (q @ K.T) @ V


@formula("13_one_state", "13.2", r"k_i S = v_i + \sum_{j \ne i} (k_i \cdot k_j)\, v_j")
def noise_of_others(page):
    K, V = F.normalize(draw(5, 3, seed=1), dim=1), draw(5, 2, seed=2)
    S = written(page, K, V)
    for i in range(5):
        noise = sum((K[i] @ K[j]) * V[j] for j in range(5) if j != i)
        yield K[i] @ S, V[i] + noise


PAGES = {path.stem: pages.read(path) for path in pages.NOTEBOOKS}
NOTATION = nbformat.v4.new_markdown_cell((pages.BOOK / "notation.md").read_text())
PAGES["notation"] = nbformat.v4.new_notebook(cells=[NOTATION])


def unlike(pairs: Callable, names: dict) -> list[int]:
    """Which of the pairs are not equal."""
    found = [(torch.as_tensor(a), torch.as_tensor(b)) for a, b in pairs(names)]
    assert found
    same = [a.shape == b.shape and torch.allclose(a, b, rtol=1e-12) for a, b in found]
    return [i for i, equal in enumerate(same) if not equal]


@for_each(*FORMULAS)
def test_a_formula_is_printed_as_it_is_computed(page, number):
    tex, pairs = FORMULAS[page, number]
    assert formulas(PAGES[page])[number] == tex
    assert unlike(pairs, defined(PAGES[page])) == []


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
    assert unlike(pairs, {}) == []


def test_each_displayed_formula_has_its_function_or_a_line_in_its_page():
    for page, notebook in PAGES.items():
        lines = [line for cell in notebook.cells for line in cell.metadata.get("held", [])]
        held = "\n".join(line.partition(" <- ")[0] for line in lines)
        displayed = formulas(notebook)
        unheld = {n for n, tex in displayed.items() if " ".join(tex.split()) not in held}
        assert {number for of, number in FORMULAS if of == page} == unheld, page


@for_each(
    ("01_one_head", "1.1", "/ math.sqrt(k.shape[-1])", "/ k.shape[-1]"),
    ("04_scaling", "4.4", "scale * pulls.mT", "pulls.mT"),
    ("entropy", "A.1", "* (1 - rho).sqrt()", ""),
    ("05_positions", "5.6", "x * sin + y * cos", "x * cos + y * sin"),
    ("12_without_matrix", "12.1", "mean = (g * out)", "mean = (g * g)"),
    ("15_vision", "15.4", "return z + self.down", "return z - self.down"),
)
def test_another_computation_is_seen(page, number, old, new):
    notebook = pages.read(pages.BOOK / f"{page}.ipynb")
    cells = [cell for cell in pages.code_cells(notebook) if old in cell.source]
    for cell in cells:
        cell.source = cell.source.replace(old, new)
    assert cells
    assert unlike(FORMULAS[page, number][1], defined(notebook))


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
