"""What the attention layers of the five posts compute, written anew from their formulas.

With the same weights each is compared with our layer and with PyTorch's: output, weights of
every head, gradients. Where a published class cannot run, its smallest repair is meant. A mask
has three axes, (B or 1, T or 1, S), and the polarity of its post.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attn_lib.layers import MultiHeadAttention
from attn_lib.recording import record_attention

B, T, S = 2, 5, 11  # S: length of another context
E, H, D = 21, 3, 7  # width and heads of most layers, E = H · D


class Post(NamedTuple):
    """A post's layer with drawn weights, and the four projections that it amounts to."""

    forward: Callable  # ((query, key, value), mask) -> out (B, T, E), weights (B, H, T, S)
    heads: int
    weights: list[Tensor]  # (H·d_k, E), (H·d_k, E), (H·d_v, E), (E, H·d_v)
    biases: list[Tensor] | None = None
    scale: float | None = None  # None: 1/sqrt(d_k)
    closed: bool = False  # what the post's mask holds where a query may not attend
    after: Callable = lambda out, query: out  # what follows the output projection

    def sizes(self) -> tuple[int, int, int, int]:
        q, _, v, _ = self.weights
        return q.shape[1], self.heads, len(q) // self.heads, len(v) // self.heads


def draw(*shapes: tuple, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    drawn = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return [1.5 / x.shape[-1] ** 0.5 * x for x in drawn]


def attend(q, k, v, heads, divisor, mask, closed, fill) -> tuple[Tensor, Tensor]:
    """Each head by itself, on its own columns; closed scores are overwritten with the fill."""
    outs, maps = [], []
    for a, b, c in zip(*(x.chunk(heads, dim=-1) for x in (q, k, v)), strict=True):
        scores = a @ b.mT / divisor
        if mask is not None:
            scores = torch.where(mask == closed, fill, scores)
        maps.append(scores.softmax(dim=-1))
        outs.append(maps[-1] @ c)
    return torch.cat(outs, dim=-1), torch.stack(maps, dim=1)


def post_000(E, H, d_k, d_v) -> Post:
    """No biases; 0 = blocked; the query is added to the output, and the sum normalised."""
    wide, tall = (H * d_k, E), (H * d_v, E)
    *weights, gain, shift = draw(wide, wide, tall, tall[::-1], (E,), (E,))

    def after(out, query):
        return F.layer_norm(out + query, (E,), gain, shift, eps=1e-6)

    def forward(inputs, mask):
        out, maps = attend(*map(F.linear, inputs, weights), H, d_k**0.5, mask, False, -1e9)
        return after(out @ weights[3].T, inputs[0]), maps

    return Post(forward, H, weights, after=after)


def post_001(E, H, *, shared, divisor) -> Post:
    """As published, one small matrix serves all heads and sqrt(E) divides; 0 = blocked."""
    side = E // H if shared else E
    *small, fc, constant = draw(*[(side, side)] * 3, (E, E), (E,))

    def project(x, matrix):
        return torch.cat([part @ matrix.T for part in x.split(side, dim=-1)], dim=-1)

    def forward(inputs, mask):
        out, maps = attend(*map(project, inputs, small), H, divisor, mask, False, -1e20)
        return out @ fc.T + constant, maps

    large = [torch.block_diag(*[w] * (E // side)) for w in small]
    biases = [*torch.zeros(3, E, dtype=torch.float64), constant]
    return Post(forward, H, [*large, fc], biases, scale=1 / divisor)


def post_002(E, H, *, joined, closed=False) -> Post:
    """Biases; some classes lack the output projection; the fourth blocks where True stands."""
    drawn = draw(*[(E, E)] * 4, *[(E,)] * 4)
    weights, biases = drawn[:4], drawn[4:]
    if not joined:
        weights[3], biases[3] = torch.eye(E, dtype=torch.float64), torch.zeros_like(biases[3])

    def forward(inputs, mask):
        projected = map(F.linear, inputs, weights, biases)
        out, maps = attend(*projected, H, (E // H) ** 0.5, mask, closed, -1e9)
        return F.linear(out, weights[3], biases[3]) if joined else out, maps

    return Post(forward, H, weights, biases, closed=closed)


def post_003(E, H, d_k, d_v) -> Post:
    """No biases; given any mask at all, it makes its own: −inf above the diagonal."""
    weights = draw((H * d_k, E), (H * d_k, E), (H * d_v, E), (E, H * d_v))

    def forward(inputs, mask):
        later = None if mask is None else torch.ones(T, T).triu(1)
        out, maps = attend(*map(F.linear, inputs, weights), H, d_k**0.5, later, 1, -torch.inf)
        return out @ weights[3].T, maps

    return Post(forward, H, weights)


def post_004(E, H) -> Post:
    """One list of four equal layers with biases; 0 = blocked."""
    weights, biases = draw(*[(E, E)] * 4), draw(*[(E,)] * 4, seed=2)

    def forward(inputs, mask):
        projected = map(F.linear, inputs, weights, biases)
        out, maps = attend(*projected, H, (E // H) ** 0.5, mask, False, -1e10)
        return F.linear(out, weights[3], biases[3]), maps

    return Post(forward, H, weights, biases)


SELF = ["self", "padding", "causal", "both"]
OPEN, ALL = ["self", "causal", "cross"], [*SELF, "cross", "padded cross"]
ROWS = {
    "000": (post_000(E, H, D, D), ALL),
    "000, d_k 64, d_v 32": (post_000(E, H, 64, 32), ALL),
    "000, d_k 10, d_v 13": (post_000(E, 7, 10, 13), ALL),
    "001": (post_001(E, H, shared=True, divisor=E**0.5), ALL),
    "001, scale": (post_001(E, H, shared=True, divisor=D**0.5), ALL),
    "001, scale and heads": (post_001(E, H, shared=False, divisor=D**0.5), ALL),
    "002.1, 002.3, 002.5 with one head": (post_002(E, 1, joined=False), SELF),
    "002.2": (post_002(E, H, joined=True), ["self"]),
    "002.4": (post_002(E, H, joined=True, closed=True), SELF),
    "002.5": (post_002(E, H, joined=False), SELF),
    "003": (post_003(E, H, D, D), OPEN),
    "003, 4 wide": (post_003(4, 8, 64, 32), OPEN),
    "003, 10 wide": (post_003(10, 4, 2, 2), OPEN),
    "003, 64 wide": (post_003(64, 4, 24, 8), OPEN),
    "004": (post_004(E, H), ALL),
}


def published(post) -> Callable:
    def call(x, context, keep):
        return post.forward((x, context, context), None if keep is None else keep != post.closed)

    return call


def ours(post) -> Callable:
    E, H, d_k, d_v = post.sizes()
    options = {"d_k": d_k, "d_v": d_v, "scale": post.scale, "bias": post.biases is not None}
    layer = MultiHeadAttention(E, H, **options).double()
    names = ("q", "k", "v", "out")
    state = {f"{n}_proj.weight": w for n, w in zip(names, post.weights, strict=True)}
    state |= {f"{n}_proj.bias": b for n, b in zip(names, post.biases or [], strict=False)}
    layer.load_state_dict(state)

    def call(x, context, keep):
        with record_attention(layer) as maps:
            out = layer(x, context, mask=None if keep is None else keep[:, None])
        return post.after(out, x), maps[""]

    return call


def theirs(post) -> Callable:
    """PyTorch knows one width d a head, and H · d outside: zeros fill what is narrower."""
    E, H, d_k, d_v = post.sizes()
    d = max(d_k, d_v, -(-E // H))
    missing = H * d - E

    def fill(w):  # (H·width, E) -> (H·d, E), zeros below the rows of each head
        return F.pad(w.unflatten(0, (H, -1)), (0, 0, 0, d - len(w) // H)).flatten(0, 1)

    factor = d**0.5 * (post.scale or d_k**-0.5)
    q, k, v, out = (fill(w) for w in (*post.weights[:3], post.weights[3].T))
    q, out = F.pad(q * factor, (0, missing)), F.pad(out, (0, missing)).T
    state = {"q_proj_weight": q, "k_proj_weight": k, "v_proj_weight": v}
    state = state if missing else {"in_proj_weight": torch.cat([q, k, v])}
    if post.biases:
        b_q, *others, b_out = post.biases
        state |= {"in_proj_bias": torch.cat([b_q * factor, *others]), "out_proj.bias": b_out}
    options = {"bias": bool(post.biases), "kdim": E, "vdim": E, "batch_first": True}
    layer = nn.MultiheadAttention(H * d, H, **options).double()
    layer.load_state_dict(state | {"out_proj.weight": out})

    def call(x, context, keep):
        masks = {}
        if keep is not None and keep.shape[1] == 1:
            masks = {"key_padding_mask": ~keep[:, 0]}
        elif keep is not None:
            masks = {"attn_mask": (~keep).expand(B, -1, -1).repeat_interleave(H, dim=0)}
        query = F.pad(x, (0, missing))
        out, maps = layer(query, context, context, average_attn_weights=False, **masks)
        return post.after(out[..., :E], x), maps

    return call


def answers(call, width, mode) -> list[Tensor]:
    """Output, weights of every head, gradients of the inputs."""
    drawn = draw((B, T, width), (B, S, width), (B, T, width), seed=1)
    x, other, probe = ((width**0.5 * t).requires_grad_() for t in drawn)
    context = other if "cross" in mode else x
    length = context.shape[1]
    real = torch.arange(length) < torch.tensor([length, 3])[:, None, None]
    past = torch.ones(1, T, T).tril().bool()
    keep = {"self": None, "cross": None, "causal": past, "both": past & real[..., :T]}
    out, maps = call(x, context, keep.get(mode, real))
    inputs = [x, context] if "cross" in mode else [x]
    return [out, maps, *torch.autograd.grad((out * probe).sum(), inputs)]


def compare(post, layer, mode) -> None:
    width = post.sizes()[0]
    expected = answers(published(post), width, mode)
    for made, right in zip(answers(layer(post), width, mode), expected, strict=True):
        torch.testing.assert_close(made, right, rtol=1e-12, atol=1e-12)


both_layers = pytest.mark.parametrize("layer", [ours, theirs])


@both_layers
@pytest.mark.parametrize(("row", "mode"), [(row, m) for row in ROWS for m in ROWS[row][1]])
def test_equals_the_layer_with_its_weights(row, mode, layer):
    compare(ROWS[row][0], layer, mode)


RIGHT = post_004(E, H)
QKV, FC = RIGHT.weights[:3], RIGHT.weights[3]
WRONG = {
    "polarity": (RIGHT, {"closed": True}),
    "scale": (RIGHT, {"scale": E**-0.5}),
    "keys for values": (RIGHT, {"weights": [QKV[0], QKV[2], QKV[1], FC]}),
    "order of heads": (RIGHT, {"weights": [*QKV, FC.roll(D, 1)]}),
    "transposed": (RIGHT, {"weights": [QKV[0].T, *QKV[1:], FC]}),
    "no output projection": (RIGHT, {"weights": [*QKV, torch.eye(E)]}),
    "no biases": (RIGHT, {"biases": [torch.zeros(E)] * 4}),
    # what the posts publish, taken for what it seems to be
    "000 for attention alone": (ROWS["000"][0], {"after": lambda out, query: out}),
    "001 for the usual scale": (ROWS["001"][0], {"scale": None}),
    "002.4 for the polarity of 002.3": (ROWS["002.4"][0], {"closed": False}),
    "002.5 for the layer of 002.2": (ROWS["002.5"][0], {"weights": ROWS["002.2"][0].weights}),
}


@both_layers
@pytest.mark.parametrize(("post", "changes"), WRONG.values(), ids=WRONG)
def test_a_wrong_mapping_is_seen(post, changes, layer):
    with pytest.raises(AssertionError, match="not close"):
        compare(post._replace(**changes), layer, "both")


def test_post_001_spreads_its_weights_too_evenly():
    """sqrt(E) divides in place of sqrt(E / H): every row is flatter."""
    rows = ("001", "001, scale")
    maps, right = (answers(published(ROWS[row][0]), E, "self")[1] for row in rows)
    assert bool((torch.special.entr(maps).sum(-1) > torch.special.entr(right).sum(-1)).all())


@pytest.mark.parametrize(("row", "alone"), [("001", True), ("001, scale and heads", False)])
def test_the_shared_matrix_of_post_001_shows_a_head_its_own_columns_only(row, alone):
    x = draw((B, T, E))[0].requires_grad_()
    (grad,) = torch.autograd.grad(ROWS[row][0].forward((x, x, x), None)[1][:, 0].norm(), x)
    assert bool((grad[..., :D] != 0).all())
    assert bool((grad[..., D:] == 0).all()) == alone
