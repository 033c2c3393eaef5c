"""The attention of the five posts, written anew with its mistakes: what the page on them says.

Each layer draws its matrices in the order of its post, so that with seed 0 they are those that were
measured when the posts were first read. `right` is PyTorch's attention between the same matrices.
A test, or a line of a table, is named after its row of `seed_rows.csv`; rows that the page itself
shows stand there. `same` is the figure that was noted then, to its last digit; `about`, where its
draw was not noted, its size.
"""

import copy
import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from cases import draw
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import attn_lib
from attn_lib.recording import record_attention

pytestmark = pytest.mark.filterwarnings("ignore:Initializing zero-element")


class Layer(nn.Module):
    """Four maps `q`, `k`, `v`, `fc`; closed scores are overwritten with `fill`."""

    closed_is, fill = False, -1e9  # what a mask of three axes holds at a closed cell
    scale = None  # 1 / sqrt(d_k)

    def __init__(self):
        super().__init__()
        self.drop = nn.Identity()  # of the weights

    def project(self, q, k, v) -> list[Tensor]:
        """The batch is that of the queries, whatever keys and values have."""
        inputs = ((self.q, q), (self.k, k), (self.v, v))
        return [self.cut(f(x), len(q), len(f.weight) // self.H) for f, x in inputs]

    def cut(self, x, B, d) -> Tensor:  # to (B, H, T, d)
        return x.view(B, -1, self.H, d).transpose(1, 2)

    def closed(self, mask) -> Tensor:
        return mask.unsqueeze(1) == 0

    def attend(self, q, k, v, mask=None) -> tuple[Tensor, Tensor]:
        scores = q @ k.mT * (q.shape[-1] ** -0.5 if self.scale is None else self.scale)
        if mask is not None:
            scores = scores.masked_fill(self.closed(mask), self.fill)
        weights = self.drop(scores.softmax(dim=-1))
        return weights @ v, weights

    def join(self, out, q) -> Tensor:
        return self.fc(out.transpose(1, 2).reshape(*q.shape[:2], -1))

    def finish(self, out, q) -> Tensor:
        return self.join(out, q)

    def forward(self, q, k, v, mask=None) -> tuple[Tensor, Tensor]:
        """The weights that come back are dropped ones."""
        out, weights = self.attend(*self.project(q, k, v), mask)
        return self.finish(out, q), weights

    def right(self, q, k=None, v=None, mask=None, **options) -> Tensor:
        k, v = (q, q) if k is None else (k, k if v is None else v)
        out = F.scaled_dot_product_attention(*self.project(q, k, v), attn_mask=mask, **options)
        return self.finish(out, q)

    def matrices(self) -> list[Tensor]:
        return [f.weight for f in (self.q, self.k, self.v, self.fc)]


class Post000(Layer):
    """The sum with the query, and its norm, are inside."""

    def __init__(self, E, H, d_k, d_v, dropout=0.1):
        super().__init__()
        self.H = H
        self.q, self.k, self.v = (nn.Linear(E, H * d, bias=False) for d in (d_k, d_k, d_v))
        self.fc = nn.Linear(H * d_v, E, bias=False)
        self.drop, self.drop_out = nn.Dropout(0.1), nn.Dropout(dropout)  # 0.1, whatever is asked
        self.norm = nn.LayerNorm(E, eps=1e-6)

    def finish(self, out, q):
        return self.norm(self.drop_out(self.join(out, q)) + q)


class Post001(Layer):
    """One small matrix serves every head, sqrt(E) divides, and values come first."""

    fill = -1e20

    def __init__(self, E, H, *, shared=True, scale=None):
        super().__init__()
        self.H, self.shared, self.scale = H, shared, scale or E**-0.5
        side = E // H if shared else E
        self.v, self.k, self.q = (nn.Linear(side, side, bias=False) for _ in range(3))
        self.fc = nn.Linear(E, E)

    def project(self, q, k, v):
        if not self.shared:
            return super().project(q, k, v)
        inputs = ((self.q, q), (self.k, k), (self.v, v))
        return [f(self.cut(x, len(x), len(f.weight))) for f, x in inputs]

    def closed(self, mask):
        return mask == 0

    def forward(self, values, keys, query, mask=None):
        return super().forward(query, keys, values, mask)

    def matrices(self):
        """As matrices for the whole input: a shared one is block-diagonal."""
        copies = self.H if self.shared else 1
        maps = self.q.weight, self.k.weight, self.v.weight
        return [*(torch.block_diag(*[w] * copies) for w in maps), self.fc.weight]


class Post002(Layer):
    """Its second to fifth class; the fourth blocks where True stands, some do not join heads."""

    def __init__(self, E, H, *, closed_is=False, joined=True):
        super().__init__()
        self.H, self.closed_is = H, closed_is
        self.q, self.k, self.v = (nn.Linear(E, E) for _ in range(3))
        self.fc = nn.Linear(E, E) if joined else nn.Identity()
        self.fc.weight = self.fc.weight if joined else torch.eye(E).double()

    def closed(self, mask):
        mask = mask[:, None, None] if mask.dim() == 2 else mask
        mask = mask[:, None] if mask.dim() == 3 else mask
        return mask.bool() == self.closed_is

    def join(self, out, q):
        return self.fc(out.transpose(1, 2).reshape(q.shape))


class Post003(Layer):
    """Its class, with the names that it lacks; a mask is True where it blocks."""

    closed_is, fill = True, -math.inf

    def __init__(self, E, H, d_k=None, d_v=None):
        super().__init__()
        d_k, d_v = d_k or E // H, d_v or E // H
        self.H = H
        self.q, self.k, self.v = (nn.Linear(E, d * H, bias=False) for d in (d_k, d_k, d_v))
        self.fc = nn.Linear(d_v * H, E, bias=False)

    def project(self, q, k, v):
        """Keys are as many as values."""
        inputs = ((self.q, q, q), (self.k, k, v), (self.v, v, v))
        cut = [f(x).view(len(q), y.shape[1], self.H, -1) for f, x, y in inputs]
        return [x.transpose(1, 2) for x in cut]

    def closed(self, mask):
        return mask


class Post004(Layer):
    """Four copies of one matrix."""

    fill = -1e10

    def __init__(self, E, H, dropout=0.1):
        super().__init__()
        self.H, first = H, nn.Linear(E, E)
        self.q, self.k, self.v, self.fc = (copy.deepcopy(first) for _ in range(4))
        self.drop = nn.Dropout(dropout)

    def join(self, out, q):
        return self.fc(out.transpose(1, 2).reshape(len(q), -1, q.shape[-1]))


# ---------------------------------------------------------------- measuring


def made(kind, *sizes, train=False, x=(), **options):
    """A layer with the weights of seed 0, and then the inputs that follow them."""
    torch.manual_seed(0)
    layer = kind(*sizes, **options).train(train)
    return layer, torch.randn(x)


def real(lengths, L):
    """(B, L): real tokens of each length, then padding."""
    return torch.arange(L) < torch.tensor(lengths)[:, None]


def past(T, S=None):
    return torch.ones(T, S or T).tril().bool()


def off(found, right):
    return (found - right).abs().max().item()


same, about = partial(pytest.approx, abs=6e-4), partial(pytest.approx, rel=0.4)


# ---------------------------------------------------------------- with the same weights

E, H, D = 21, 3, 7
SELF = ["self", "padding", "causal", "both"]
OPEN, ALL = ["self", "cross"], [*SELF, "cross", "padded cross"]
LAYERS = {
    "000": (Post000, (E, H, D, D), {}, ALL),
    "000, d_k 64, d_v 32": (Post000, (E, H, 64, 32), {}, ALL),
    "001": (Post001, (E, H), {}, ALL),
    "001, scale": (Post001, (E, H), {"scale": D**-0.5}, ALL),
    "001, scale and heads": (Post001, (E, H), {"scale": D**-0.5, "shared": False}, ALL),
    "002.1, one head": (Post002, (E, 1), {"joined": False}, SELF),
    "002.2": (Post002, (E, H), {}, ["self"]),
    "002.4": (Post002, (E, H), {"closed_is": True}, SELF),
    "002.5": (Post002, (E, H), {"joined": False}, SELF),
    "003": (Post003, (E, H), {}, [*OPEN, "causal"]),
    "003, 4 wide": (Post003, (4, 8, 64, 32), {}, OPEN),  # which its own check refuses
    "003, 10 wide": (Post003, (10, 4, 2, 2), {}, OPEN),
    "004": (Post004, (E, H), {}, ALL),
}


def ours(layer):
    """This library's layer with a post's weights."""
    weights = layer.matrices()
    biases = [getattr(f, "bias", None) for f in (layer.q, layer.k, layer.v, layer.fc)]
    sizes = {"d_k": len(weights[0]) // layer.H, "d_v": len(weights[2]) // layer.H}
    biased = any(b is not None for b in biases)
    options = {**sizes, "scale": layer.scale, "bias": biased}
    own = attn_lib.MultiHeadAttention(len(weights[3]), layer.H, **options).double()
    state = {name: torch.zeros_like(p) for name, p in own.state_dict().items()}
    for name, weight, bias in zip(("q", "k", "v", "out"), weights, biases, strict=True):
        state[f"{name}_proj.weight"] = weight.detach()
        state |= {} if bias is None else {f"{name}_proj.bias": bias.detach()}
    own.load_state_dict(state)
    return own


def compare(layer, own, mode):
    """Output, weights of every head, gradients of the inputs: the post's, PyTorch's, and ours."""
    T, S, width = 5, 11, len(layer.matrices()[3])
    x, other, probe = (draw(2, n, width, seed=n).requires_grad_() for n in (T, S, 7))
    inputs = [x, other] if "cross" in mode else [x]
    context = inputs[-1]
    padding = real([context.shape[1], 3], context.shape[1])[:, None]
    masks = {"causal": past(T)[None], "both": padding[..., :T] & past(T)}
    masks |= {"padding": padding, "padded cross": padding}
    mask = given = None
    if mode in masks:
        mask, given = masks[mode][:, None], masks[mode] != layer.closed_is
        given = given[:, None] if isinstance(layer, Post001) else given
    order = (context, context, x) if isinstance(layer, Post001) else (x, context, context)
    out, maps = layer(*order, given)
    with record_attention(own) as recorded:
        found = own(x, context, mask=mask)
    found = layer.norm(found + x) if isinstance(layer, Post000) else found
    answers = [out, found, layer.right(x, context, mask=mask, scale=layer.scale)]
    answers = [[y, *torch.autograd.grad((y * probe[:, :T]).sum(), inputs)] for y in answers]
    for answer in answers[1:]:
        torch.testing.assert_close(answer, answers[0], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(recorded[""], maps, rtol=1e-10, atol=1e-12)


def built(row):
    kind, sizes, options, _ = LAYERS[row]
    return made(kind, *sizes, **options)[0].double()


@pytest.mark.parametrize(("row", "mode"), [(row, m) for row in LAYERS for m in LAYERS[row][-1]])
def test_equals_the_layer_with_its_weights(row, mode):
    layer = built(row)
    compare(layer, ours(layer), mode)


def test_a_wrong_mapping_is_seen():
    layer = built("000")
    own = ours(layer)
    own.scale = E**-0.5
    with pytest.raises(AssertionError, match="not close"):
        compare(layer, own, "both")


# ---------------------------------------------------------------- lines that cannot run, and others

A_LAYER = {"nn": nn, "torch": torch, "F": F, "math": math, "FakeTensorMode": FakeTensorMode}
A_MODULE = "class M(nn.Module):\n    def __init__(self, E, H):\n        "
OF_SIZE = r"'\[15, 50, 4\]' is invalid for input of size 192000"
BMM = "torch.bmm(torch.ones(5, 3, 3).masked_fill(mask == 0, -1e9), torch.ones(5, 3, 4))"
OTHER = "there = torch.empty(2, 3, dtype=torch.long, device='cuda:0')"
OTHER = f"with FakeTensorMode():  # tensors without numbers: no GPU is needed\n    {OTHER}\n    "
CRASHES = {
    "A01, B21, D04": ("class Layer(nn.Module): pass", NameError, "'nn' is not defined"),
    "B13": (f"{OTHER}nn.Embedding(5, 3)(there)", RuntimeError, "on the same device, but found"),
    "C01": (f"mask = torch.ones(5, 3, 3).unsqueeze(1)\n{BMM}", RuntimeError, "batch1 must be a 3D"),
    "C02": (f"mask = torch.ones(5, 1, 1, 3)\n{BMM}", RuntimeError, "batch1 must be a 3D"),
    "C11": (f"{A_MODULE}self.Q = nn.Linear(E, E)\nM(8, 2)", AttributeError, "__init__"),
    "C12": ("torch.sqrt(8 // 2)", TypeError, "must be Tensor, not int"),
    "C13": ("torch.ones(2).mask_fill(None, -1e9)", AttributeError, "'mask_fill'"),
    "C15": (
        "assert 64 // -1 * -1 == 64\ntorch.ones(1, 4, 8).view(1, -1, -2, -4)",
        RuntimeError,
        "invalid shape dimension -2",
    ),
    "D01": ("scores = torch.matmul(Q, K) * .scale", SyntaxError, "invalid syntax"),
    "D03": ("torch.zeros(15, 50, 8, 32).reshape(15, 50, 4)", RuntimeError, OF_SIZE),
    "D05": (
        f"{A_MODULE}super(FullAttention, self).__init__()\nM(8, 2)",
        NameError,
        "'FullAttention' is not defined",
    ),
    # its `mask.cuda()` goes to the first GPU, also where the scores are on another
    "D12": (
        f"{OTHER}torch.empty(2, 3, device='cuda:1').masked_fill(there > 0, -math.inf)",
        RuntimeError,
        "found at least two devices, cuda:1 and cuda:0",
    ),
    "D19": ("torch.ones(2, 3, 5).mT.view(2, 15)", RuntimeError, "view size is not compatible"),
    "E01": ("import copy import torch", SyntaxError, "invalid syntax"),
    "E03": ("dropout = 0.1\ndropout(torch.ones(2))", TypeError, "'float' object is not"),
}


@pytest.mark.parametrize("row", CRASHES)
def test_a_line_that_cannot_run(row):
    lines, error, message = CRASHES[row]
    names = {name: module for name, module in A_LAYER.items() if f"'{name}'" not in message}
    with pytest.raises(error, match=message):
        exec(lines, names)  # noqa: S102


ANNOTATED = "def layer(x: torch.tensor): pass"
RUN = {
    "A13, a second string is not the docstring": "class M: 'A'; 'B'\nholds = M.__doc__ == 'A'",
    "D18, no type": f"{ANNOTATED}\nholds = not isinstance(layer.__annotations__['x'], type)",
    "D23, a comment with tabs is harmless": "if True:\n\t# scale\n    holds = True",
}


@pytest.mark.parametrize("row", RUN)
def test_a_line_that_runs_and_is_not_what_it_seems(row):
    names = {**A_LAYER}
    exec(RUN[row], names)  # noqa: S102
    assert names["holds"]


# ---------------------------------------------------------------- masks that are not asked for


A, B, C, W = (Post000, 512, 8, 64, 64), (Post001, 512, 8), (Post002, 64, 4), (Post004, 8, 2)
SHORTER, BY_KEY = real(range(10, 0, -1), 10), (slice(None), None, None)
ADDED = torch.zeros(1, 10, 10).masked_fill(~past(10), -math.inf)
EIGHT = SHORTER[:8]
MASKS = {  # the layer, its mask, the right mask, examples and tokens, how far off it is
    "A05": (A, SHORTER[3:4][BY_KEY], SHORTER[3:4], (1, 10), same(0.624)),
    "A06": (A, ~past(10)[None], past(10), (4, 10), about(1.13)),
    "A06, additive": (A, ADDED, past(10), (4, 10), about(1.13)),
    "B05": (B, SHORTER, SHORTER[BY_KEY], (10, 10), about(1.1)),
    "B05, three axes": (B, EIGHT[:, None], EIGHT[BY_KEY], (8, 10), about(0.41)),
    "C04": ((Post002, 64, 1), past(7), past(7), (7, 7), about(2.276)),
    "C07": (C, past(7), past(7), (7, 7), same(1.063)),
    "E05": (W, real([5, 3], 5), real([5, 3], 5)[BY_KEY], (2, 5), about(0.287)),
    "E05, causal": (W, past(2), past(2), (8, 2), about(0.861)),
}
OPTIONS = {"C04": {"joined": False}, "C07": {"closed_is": True}}


@pytest.mark.parametrize("row", MASKS)
def test_a_mask_of_another_kind_runs_and_is_wrong(row):
    """Where sizes collide nothing is raised."""
    (kind, *sizes), given, mask, shape, noted = MASKS[row]
    layer, x = made(kind, *sizes, **OPTIONS.get(row, {}), x=(*shape, sizes[0]))
    given = given != layer.closed_is if given.dtype == torch.bool else given
    right = layer.right(x, mask=mask, scale=layer.scale)
    assert off(layer(x, x, x, given)[0], right) == noted


# ---------------------------------------------------------------- posts 000 and 001


def test_A02_the_dropout_of_the_weights_cannot_be_switched_off():
    layer, x = made(*A, dropout=0.0, train=True, x=(4, 10, 512))
    assert off(layer(x, x, x)[0], layer(x, x, x)[0]) == same(0.254)


@pytest.mark.parametrize(
    ("layer", "x", "noted"),
    [(A, (16, 10, 512), 0.519), (W, (64, 10, 8), 0.424)],
    ids=["A07", "E09"],
)
def test_the_weights_that_come_back_are_dropped_ones(layer, x, noted):
    layer, x = made(*layer, train=True, x=x)
    sums = layer(x, x, x)[1].sum(dim=-1)
    assert sums.min().item() == about(noted)
    assert sums.max().item() == same(1.111)  # a row that lost nothing: 1 / 0.9


def test_A09_a_row_without_a_key_attends_to_what_it_was_told_to_ignore():
    layer, x = made(*A, x=(4, 10, 512))
    keep = real([10, 10, 10, 0], 10)[:, None]
    context = torch.randn(4, 10, 512, requires_grad=True)
    out, weights = layer(x, context, context, keep)
    assert weights[3].unique().tolist() == same([0.1])
    (grad,) = torch.autograd.grad((out * torch.randn(out.shape)).sum(), context)
    assert grad[3].abs().max().item() == about(0.36)
    q, k, v = layer.project(x, context, context)
    assert not F.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None])[3].any()


def test_A14_its_layer_is_a_whole_sublayer():
    layer, x = made(*A, x=(4, 10, 512))
    alone, found = layer.join(layer.attend(*layer.project(x, x, x))[0], x), layer(x, x, x)[0]
    assert off(found, alone) == about(3.893)
    assert off(found, F.layer_norm(alone + x, (512,), eps=1e-6)) < 1e-5


def test_B04_the_arguments_come_in_another_order():
    layer, q = made(*B, x=(4, 10, 512))
    k, v = torch.randn(2, 4, 10, 512)
    right = layer.right(q, k, v, scale=layer.scale)
    assert off(layer(q, k, v)[0], right) == about(0.615)
    assert off(layer(v, k, q)[0], right) < 1e-6
    with pytest.raises(RuntimeError, match=r"to be: \[32, 10\] but got: \[32, 6\]"):
        layer(q[:, :6], k, v)


def test_B07_a_row_without_a_key_is_the_mean_of_all_values():
    layer, x = made(*B, x=(4, 10, 512))
    out, _ = layer(x, x, x, torch.zeros(4, 1, 1, 10))
    mean = layer.project(x, x, x)[2].mean(dim=2, keepdim=True).expand(4, 8, 10, 64)
    assert off(out, layer.finish(mean, x)) < 1e-6


def test_B12_dropout_after_the_norm_leaves_zeros():
    torch.manual_seed(0)
    layer, norm = Post001(512, 8), nn.LayerNorm(512)
    wide = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512))
    x, drop = torch.randn(4, 10, 512), nn.Dropout(0.1)
    attended, _ = layer(x, x, x)
    here = drop(norm(attended + x))
    here = drop(norm(wide(here) + here))
    paper = norm(drop(attended) + x)
    paper = norm(drop(wide(paper)) + paper)
    assert [(out == 0).float().mean().item() for out in (here, paper)] == same([0.104, 0])
    means = [out.mean(dim=-1).abs().max().item() for out in (here, paper)]
    assert [*here.std(dim=-1).detach().aminmax(), *means] == same([1.007, 1.085, 0.025, 0])


def test_B15_padding_changes_the_real_tokens():
    """Its encoder makes no mask, and counts its positions from the first place, padding too."""
    layer, places = made(Post001, 64, 4, x=(10, 64))
    short, pads, keep = torch.randn(1, 6, 64), torch.zeros(1, 4, 64), real([6], 10)[BY_KEY]

    def encode(*parts, mask=None):
        x = torch.cat(parts, dim=1)
        x = x + places[: x.shape[1]]
        return layer(x, x, x, mask)[0]

    right = encode(short)
    assert off(encode(short, pads, mask=keep)[:, :6], right) < 2e-6
    assert off(encode(short, pads)[:, :6], right) > 0.05
    assert off(encode(pads, short, mask=keep.flip(-1))[:, 4:], right) > 0.05


# ---------------------------------------------------------------- post 002


def test_C03_only_the_future_is_attended_to():
    """With the smallest repair of C01: a mask of three axes is left alone."""
    torch.manual_seed(0)
    layer, x, future = Post002(4, 1, joined=False), torch.rand(1, 3, 4), ~past(3)[None]
    out, weights = layer(x, x, x, future)
    table = torch.tensor([[0, 0.509, 0.491], [0, 0, 1], [1 / 3, 1 / 3, 1 / 3]])
    assert torch.allclose(weights[0, 0], table, atol=1e-3)
    assert off(out, layer.right(x, mask=~future)) == same(0.301)


def test_C08_an_additive_mask_is_made_boolean():
    layer, x = made(*C, closed_is=True, x=(3, 7, 64))
    added = torch.zeros(3, 7).masked_fill(~real([7, 5, 3], 7), -math.inf)
    right = layer.right(x, mask=added[BY_KEY])
    assert off(layer(x, x, x, added)[0], right) < 1e-6
    # +0.5 on every open key: a softmax does not see it
    assert off(layer.right(x, mask=added[BY_KEY] + 0.5), right) < 1e-6
    assert off(layer(x, x, x, added + 0.5)[0], right) == same(0.409)


def test_C09_without_assertions_the_sizes_may_lie():
    layer, x = made(Post002, 10, 4, x=(3, 4, 10))  # what `python -O` leaves of the check
    out, weights = layer(x, x, x)
    assert (out.shape, weights.shape) == ((3, 4, 10), (3, 4, 5, 5))


def test_C14_the_last_class_has_no_output_projection():
    layer, x = made(*C, x=(5, 7, 64))
    plain, _ = made(*C, joined=False)
    assert off(plain(x, x, x)[0], layer(x, x, x)[0]) == about(0.996)


# ---------------------------------------------------------------- post 003


def test_D07_the_inner_width_shrinks():
    layer, x = made(Post003, 10, 4, x=(3, 5, 10))
    assert layer(x, x, x)[0].shape == x.shape
    rank = torch.linalg.matrix_rank(layer.fc.weight @ layer.v.weight)
    assert (len(layer.v.weight), int(rank)) == (8, 8)


def test_D10_a_mask_from_the_top_left_hides_the_past_of_a_continued_text():
    layer, x = made(Post003, 8, 2, x=(3, 6, 8))
    right = layer(x, x, x, ~past(6))[0][:, 4:]
    found, weights = layer(x[:, 4:], x, x, ~past(2, 6))
    assert (weights[0, 0] > 0).sum(dim=-1).tolist() == [1, 2]  # of 5 and 6 keys
    assert off(layer(x[:, 4:], x, x, ~attn_lib.causal_mask(2, 6))[0], right) < 1e-6
    assert off(found, right) == about(0.896)


def test_D11_rows_without_a_key_become_nan():
    layer, x = made(Post003, 8, 2, x=(3, 6, 8))
    mask = attn_lib.causal_mask(6, 2)
    out, _ = layer(x, x[:, 4:], x[:, 4:], ~mask)
    assert out[0].isnan().any(dim=-1).tolist() == [True] * 4 + [False] * 2


def test_D14_the_length_of_the_keys_is_read_from_the_values():
    layer, q = made(Post003, 8, 2, x=(3, 5, 8))
    out, _ = layer(q, torch.randn(6, 3, 8), torch.randn(3, 6, 8))
    assert out.shape == (3, 5, 8)
    with pytest.raises(RuntimeError, match=r"\[3, 6, 2, -1\]' is invalid for input of size 168"):
        layer(q, torch.randn(3, 7, 8), torch.randn(3, 6, 8))


# ---------------------------------------------------------------- post 004


def test_E04_a_mask_of_four_axes_makes_an_output_that_is_too_long():
    layer, x = made(*W, x=(4, 5, 8))
    for mask in (torch.ones(4, 1, 1, 5), torch.ones(4, 2, 5, 5)):
        assert layer(x, x, x, mask)[0].shape == (4, 20, 8)
    one, keep = x[:1], real([3], 5)[BY_KEY]
    assert off(layer(one, one, one, keep)[0], layer.right(one, mask=keep)) == about(0.705)


def test_E07_tokens_without_a_batch_attend_to_themselves_alone():
    layer, x = made(*W, x=(6, 8))
    out, weights = layer(x, x, x)
    assert torch.equal(weights, torch.ones(6, 2, 1, 1))
    assert off(out[:, 0], layer.right(x[None])[0]) == same(0.48)


def test_E12_a_score_is_a_query_with_a_key_not_a_key_with_a_value():
    layer, x = made(Post000, 8, 2, 4, 4, x=(2, 5, 8))  # matrices that are no copies
    q, k, v = layer.project(x, x, x)
    weights = layer(x, x, x)[1]
    assert off((q @ k.mT / 2).softmax(dim=-1), weights) < 1e-6
    assert off((k @ v.mT / 2).softmax(dim=-1), weights) > 0.1
    with pytest.raises(RuntimeError, match="to be: "):
        k @ torch.randn(2, 2, 5, 6).mT  # values of another width


def test_E13_a_token_attends_to_itself_too():
    layer, x = made(*W, x=(2, 5, 8))
    out, weights = layer(x, x, x)
    assert bool((weights.diagonal(dim1=-2, dim2=-1) > 0).all())
    assert off(layer.right(x, mask=~torch.eye(5).bool()), out) > 0.1


def test_E19_the_example_changes_from_call_to_call():
    layer, x = made(*W, train=True, x=(6, 3, 8))
    assert off(layer(x, x, x)[0], layer(x, x, x)[0]) > 0.1
    layer.eval()
    assert torch.equal(layer(x, x, x)[0], layer(x, x, x)[0])
