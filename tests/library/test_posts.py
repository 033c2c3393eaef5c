"""The attention of the five posts, written anew with its mistakes: what the page on them says.

Each layer draws its matrices in the order of its post, so that with seed 0 they are those that were
measured when the posts were first read. `right` is PyTorch's attention between the same matrices.
A test, or a line of a table, is named after its row of `seed_rows.csv`. `same` asks for the figure
that was noted then, to its last digit; `about`, where its draw was not noted, for its size.
"""

import ast
import copy
import inspect
import math
from typing import NamedTuple, get_type_hints

import pytest
import torch
import torch.nn.functional as F
from cases import draw
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import attn_lib
from attn_lib.recording import record_attention

pytestmark = pytest.mark.filterwarnings("ignore:Initializing zero-element")


def split(x: Tensor, H: int) -> Tensor:  # (B, T, H * d) -> (B, H, T, d)
    return x.unflatten(-1, (H, -1)).transpose(1, 2)


def attend(q, k, v, *, divisor=None, closed=None, fill=-1e9, drop=None) -> tuple[Tensor, Tensor]:
    """Closed scores are overwritten with a number; the weights that come back are dropped ones."""
    scores = q @ k.mT / (q.shape[-1] ** 0.5 if divisor is None else divisor)
    scores = scores if closed is None else scores.masked_fill(closed, fill)
    weights = scores.softmax(dim=-1)
    weights = weights if drop is None else drop(weights)
    return weights @ v, weights


class Layer(nn.Module):
    """Four maps `q`, `k`, `v`, `fc`; a mask of three axes holds `closed_is` at a closed cell."""

    closed_is, scale = False, None  # None: 1 / sqrt(d_k)

    def project(self, q, k, v) -> list[Tensor]:
        return [split(f(x), self.H) for f, x in ((self.q, q), (self.k, k), (self.v, v))]

    def finish(self, out, q) -> Tensor:
        return self.fc(out.transpose(1, 2).flatten(2))

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
        return self.norm(super().finish(out, q) + q)

    def forward(self, q, k, v, mask=None):
        closed = None if mask is None else mask.unsqueeze(1) == 0
        out, weights = attend(*self.project(q, k, v), closed=closed, drop=self.drop)
        out = self.fc(out.transpose(1, 2).contiguous().view(len(q), q.shape[1], -1))
        out = self.drop_out(out)
        out += q  # in eval mode this is what `fc` has returned
        return self.norm(out), weights


class Post001(Layer):
    """One small matrix serves every head, sqrt(E) divides, and values come first."""

    def __init__(self, E, H, *, shared=True, scale=None):
        super().__init__()
        self.H, self.shared, self.scale = H, shared, scale or E**-0.5
        side = E // H if shared else E
        self.v, self.k, self.q = (nn.Linear(side, side, bias=False) for _ in range(3))
        self.fc = nn.Linear(E, E)

    def project(self, q, k, v):
        if not self.shared:
            return super().project(q, k, v)
        return [f(split(x, self.H)) for f, x in ((self.q, q), (self.k, k), (self.v, v))]

    def forward(self, values, keys, query, mask=None):
        q, k, v = (part.transpose(1, 2) for part in self.project(query, keys, values))
        energy = torch.einsum("nqhd,nkhd->nhqk", q, k)
        if mask is not None:
            energy = energy.masked_fill(mask == 0, -1e20)
        self.weights = torch.softmax(energy * self.scale, dim=3)
        out = torch.einsum("nhql,nlhd->nqhd", self.weights, v)
        return self.fc(out.flatten(2))

    def matrices(self):
        """As matrices for the whole input: a shared one is block-diagonal."""
        copies = self.H if self.shared else 1
        maps = self.q.weight, self.k.weight, self.v.weight
        return [*(torch.block_diag(*[w] * copies) for w in maps), self.fc.weight]


class Post002(Layer):
    """Its second to fifth class; the fourth blocks where True stands, some do not join heads."""

    def __init__(self, E, H, *, closed_is=False, joined=True):
        super().__init__()
        self.E, self.H, self.closed_is = E, H, closed_is
        self.q, self.k, self.v = (nn.Linear(E, E) for _ in range(3))
        self.fc = nn.Linear(E, E) if joined else nn.Identity()
        self.fc.weight = self.fc.weight if joined else torch.eye(E).double()

    def forward(self, x, mask=None):
        B, T, d = len(x), x.shape[1], self.E // self.H
        parts = [f(x).view(B, -1, self.H, d).transpose(1, 2) for f in (self.q, self.k, self.v)]
        closed = None
        if mask is not None:
            mask = mask[:, None, None] if mask.dim() == 2 else mask
            mask = mask[:, None] if mask.dim() == 3 else mask
            closed = mask.bool() == self.closed_is
        out, weights = attend(*parts, closed=closed)
        return self.fc(out.transpose(1, 2).contiguous().view(B, T, self.E)), weights


class Post003(Layer):
    """Its class, with the names that it lacks; `triangle(T, S)` is True where it blocks."""

    def __init__(self, E, H, d_k=None, d_v=None, triangle=None, scale=None):
        super().__init__()
        d_k, d_v = d_k or E // H, d_v or E // H
        self.H, self.triangle = H, triangle
        self.q, self.k, self.v = (nn.Linear(E, d * H, bias=False) for d in (d_k, d_k, d_v))
        self.scale = scale or 1.0 / math.sqrt(d_k)
        self.fc = nn.Linear(d_v * H, E, bias=False)

    def forward(self, queries, keys, values):
        B, T, S = len(queries), queries.shape[1], values.shape[1]
        q = self.q(queries).view(B, T, self.H, -1).transpose(1, 2)
        k = self.k(keys).view(B, S, self.H, -1).transpose(1, 2)
        v = self.v(values).view(B, S, self.H, -1).transpose(1, 2)
        closed = self.triangle and self.triangle(T, S)
        out, weights = attend(q, k, v, divisor=1 / self.scale, closed=closed, fill=-math.inf)
        return self.fc(out.transpose(1, 2).reshape(B, T, -1)), weights


def top_left(T, S):  # True = blocked
    return torch.ones(T, S).triu(1).bool()


def bottom_right(T, S):
    return ~attn_lib.causal_mask(T, S)


class Post004(Layer):
    """Four copies of one matrix; the weights stay on the layer."""

    def __init__(self, E, H, dropout=0.1):
        super().__init__()
        self.H, self.E, first = H, E, nn.Linear(E, E)
        self.q, self.k, self.v, self.fc = (copy.deepcopy(first) for _ in range(4))
        self.drop, self.weights = nn.Dropout(dropout), None

    def forward(self, query, key, value, mask=None):
        B, d = len(query), self.E // self.H
        closed = None if mask is None else mask.unsqueeze(1) == 0
        inputs = ((self.q, query), (self.k, key), (self.v, value))
        parts = [f(x).view(B, -1, self.H, d).transpose(1, 2) for f, x in inputs]
        out, self.weights = attend(*parts, closed=closed, fill=-1e10, drop=self.drop)
        return self.fc(out.transpose(1, 2).contiguous().view(B, -1, self.E))


# ---------------------------------------------------------------- measuring


def made(kind, *sizes, train=False, x=(), **options):
    """A layer with the weights of seed 0, and then the inputs that follow them."""
    torch.manual_seed(0)
    layer = kind(*sizes, **options).train(train)
    return layer, torch.randn(x)


def published(layer, x, context=None, mask=None) -> tuple[Tensor, Tensor]:
    """Output and weights, with the mask as it is given to the post's layer."""
    context = x if context is None else context
    if isinstance(layer, Post002):
        return layer(x, mask)
    if isinstance(layer, Post003):
        return layer(x, context, context)
    inputs = (context, context, x) if isinstance(layer, Post001) else (x, context, context)
    out = layer(*inputs, mask)
    return out if isinstance(out, tuple) else (out, layer.weights)


def real(lengths, L):
    """(B, L): real tokens of each length, then padding."""
    return torch.arange(L) < torch.tensor(lengths)[:, None]


def past(T):
    return torch.ones(T, T).tril().bool()


def off(found, right):
    return (found - right).detach().abs().max().item()


def relative(found, right):
    return ((found - right).norm() / right.norm()).item()


def numbers(found):
    return [x.item() if torch.is_tensor(x) else x for x in found]


def same(found, noted):
    assert numbers(found) == pytest.approx(noted, abs=6e-4)


def about(found, noted):
    assert numbers(found) == pytest.approx(noted, rel=0.4)


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
    "003": (Post003, (E, H), {}, OPEN),
    "003, causal": (Post003, (E, H), {"triangle": top_left}, ["causal"]),
    "003, 4 wide": (Post003, (4, 8, 64, 32), {}, OPEN),
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
    out, maps = published(layer, x, context, given)
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


# ---------------------------------------------------------------- lines that cannot run

A_LAYER = {"nn": nn, "torch": torch, "F": F, "math": math}
A_MODULE = "class M(nn.Module):\n    def __init__(self, E, H):\n        "
OF_SIZE = r"'\[15, 50, 4\]' is invalid for input of size 192000"
BMM = "torch.bmm(torch.ones(5, 3, 3).masked_fill(mask == 0, -1e9), torch.ones(5, 3, 4))"
CRASHES = {
    "A01": ("class MultiHeadAttention(nn.Module): pass", NameError, "'nn' is not defined"),
    "B21": ("class TransformerBlock(nn.Module): pass", NameError, "'nn' is not defined"),
    "C01": (f"mask = torch.ones(5, 3, 3).unsqueeze(1)\n{BMM}", RuntimeError, "batch1 must be a 3D"),
    "C02": (f"mask = torch.ones(5, 1, 1, 3)\n{BMM}", RuntimeError, "batch1 must be a 3D"),
    "C11": (f"{A_MODULE}self.Q = nn.Linear(E, E)\nM(8, 2)", AttributeError, "__init__"),
    "C12": ("torch.sqrt(8 // 2)", TypeError, "must be Tensor, not int"),
    "C13": ("torch.ones(2).mask_fill(None, -1e9)", AttributeError, "'mask_fill'"),
    "D01": ("scores = torch.matmul(Q, K) * .scale", SyntaxError, "invalid syntax"),
    "D03": ("torch.zeros(15, 50, 8, 32).reshape(15, 50, 4)", RuntimeError, OF_SIZE),
    "D04": ("class Attention(nn.Module, ABC): pass", NameError, "'nn' is not"),
    "D05": (
        f"{A_MODULE}super(FullAttention, self).__init__()\nM(8, 2)",
        NameError,
        "'FullAttention' is not defined",
    ),
    "E03": ("dropout = 0.1\ndropout(torch.ones(2))", TypeError, "'float' object is not"),
}


@pytest.mark.parametrize("row", CRASHES)
def test_a_line_that_cannot_run(row):
    lines, error, message = CRASHES[row]
    names = {name: module for name, module in A_LAYER.items() if f"'{name}'" not in message}
    with pytest.raises(error, match=message):
        exec(lines, names)  # noqa: S102


def test_D06_the_check_refuses_its_own_example():
    """It raises where the width is smaller than the number of heads; nothing is wrong with that."""
    layer, x = made(Post003, 4, 8, 64, 32, x=(15, 50, 4))
    assert off(layer(x, x, x)[0], layer.right(x)) < 1e-6
    own = attn_lib.MultiHeadAttention(4, 8, d_k=64, d_v=32, bias=False)
    assert own(x).shape == x.shape


def test_B13_the_device_is_an_argument():
    """Places are made there, and the table is where the model was moved to."""
    with FakeTensorMode():  # tensors without numbers: no such machine is needed
        table = torch.empty(16, 32, device="cuda:0")
        with pytest.raises(RuntimeError, match="to be on the same device, but found at least two"):
            F.embedding(torch.arange(5).to("cpu"), table)


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_D12_the_mask_goes_to_the_first_gpu_that_is_there(device):
    def on_the_first_gpu(T, S):  # what its `mask.cuda()` does where there is one
        return torch.empty(T, S, dtype=torch.bool, device="cuda:0")

    model = Post003(8, 2, triangle=on_the_first_gpu)
    with FakeTensorMode():
        there = {n: torch.empty(p.shape, device=device) for n, p in model.named_parameters()}
        x = torch.empty(2, 5, 8, device=device)
        with pytest.raises(RuntimeError, match=f"found at least two devices, {device} and cuda:0"):
            torch.func.functional_call(model, there, (x, x, x))


def test_E01_a_program_on_one_line_is_none():
    lines = "import copy\nimport torch\n" + inspect.getsource(Post004)
    assert len(ast.parse(lines).body) == 3
    with pytest.raises(SyntaxError, match="invalid syntax"):
        ast.parse(" ".join(lines.split()))


# ---------------------------------------------------------------- masks that are not asked for


class Mask(NamedTuple):
    """What a layer is given in place of the right mask, and how far its output is off then."""

    layer: tuple
    given: Tensor
    right: Tensor
    x: tuple[int, int]  # examples and tokens with which it runs
    same: tuple = ()  # the largest difference, and the mean
    about: tuple = ()
    refused: tuple = ()  # (examples and tokens, mask, what is raised then), ...


A, B, C, W = (Post000, 512, 8, 64, 64), (Post001, 512, 8), (Post002, 64, 4), (Post004, 8, 2)
SHORTER, BY_KEY = real(range(10, 0, -1), 10), (slice(None), None, None)
ADDED = torch.zeros(1, 10, 10).masked_fill(~past(10), -math.inf)
EIGHT = SHORTER[:8]
# fmt: off
MASKS = {
    "A03": Mask(A, EIGHT, EIGHT[BY_KEY], (8, 10), (0.473, 0.076), (),
                ((4, 10), EIGHT[:4], r"size of tensor a \(4\) must match .* b \(8\)")),
    "A04": Mask(A, past(8), past(8), (4, 8), (0.972,), (),
                ((4, 10), past(10), r"size of tensor a \(10\) must match .* b \(8\)")),
    "A05": Mask(A, SHORTER[3:4][BY_KEY], SHORTER[3:4], (1, 10), (0.624, 0.129), (),
                ((8, 10), EIGHT[BY_KEY], r"cannot be multiplied \(80x4096 and 512x512\)")),
    "A06": Mask(A, ~past(10)[None], past(10), (4, 10), (), (1.13,)),
    "A06, additive": Mask(A, ADDED, past(10), (4, 10), (), (1.13,)),
    "B05": Mask(B, SHORTER, SHORTER[BY_KEY], (10, 10), (), (1.1,),
                ((7, 10), SHORTER[:7], "must match the size")),
    "B05, three axes": Mask(B, EIGHT[:, None], EIGHT[BY_KEY], (8, 10), (), (0.41,),
                            ((7, 10), EIGHT[:7, None], "must match the size")),
    "C04": Mask((Post002, 64, 1, {"joined": False}), past(7), past(7), (7, 7), (), (2.276,),
                ((5, 7), past(7), "must match the size of tensor b")),
    "C07": Mask((*C, {"closed_is": True}), ~past(7), past(7), (7, 7), (1.063, 0.127), (),
                ((1, 7), ~past(7), "invalid for input of size 3136")),
    "C16": Mask((*C, {"joined": False}), past(7), past(7), (7, 7), (2.053,), (),
                ((5, 7), past(7), "must match the size")),
    "E05": Mask(W, real([5, 3], 5), real([5, 3], 5)[BY_KEY], (2, 5), (), (0.287,)),
    "E05, causal": Mask(W, past(2), past(2), (8, 2), (), (0.861,),
                        ((4, 5), past(5), r"size of tensor a \(5\) must match .* b \(2\)")),
}
# fmt: on


@pytest.mark.parametrize("row", MASKS)
def test_a_mask_of_another_kind_runs_and_is_wrong(row):
    """Where sizes collide nothing is raised; the same call with others is refused."""
    case = MASKS[row]
    kind, *sizes = case.layer
    options = sizes.pop() if isinstance(sizes[-1], dict) else {}
    layer, x = made(kind, *sizes, **options, x=(*case.x, sizes[0]))
    right = layer.right(x, mask=case.right, scale=layer.scale)
    gap = (published(layer, x, mask=case.given)[0] - right).abs()
    same([gap.max(), gap.mean()][: len(case.same)], list(case.same))
    about([gap.max()][: len(case.about)], list(case.about))
    if case.refused:
        shape, mask, message = case.refused
        with pytest.raises(RuntimeError, match=message):
            published(layer, torch.randn(*shape, sizes[0]), mask=mask)


# ---------------------------------------------------------------- post 000


def test_A02_the_dropout_of_the_weights_cannot_be_switched_off():
    layer, x = made(*A, dropout=0.0, train=True, x=(4, 10, 512))
    same([off(layer(x, x, x)[0], layer(x, x, x)[0]), layer.drop.p], [0.254, 0.1])


def test_A07_the_weights_that_come_back_are_dropped_ones():
    layer, x = made(*A, train=True, x=(16, 10, 512))
    sums = layer(x, x, x)[1].sum(dim=-1)
    about([sums.min(), ((sums - 1).abs() > 0.05).float().mean()], [0.519, 0.647])
    same([sums.max()], [1.111])  # a row that lost nothing: 1 / 0.9
    torchs = nn.MultiheadAttention(512, 8, dropout=0.1, batch_first=True)
    sums = torchs(x, x, x, average_attn_weights=False)[1].sum(dim=-1)
    about([sums.min(), sums.max()], [0.493, 1.111])


def test_A09_a_row_without_a_key_attends_to_what_it_was_told_to_ignore():
    layer, x = made(*A, x=(4, 10, 512))
    keep = real([10, 10, 10, 0], 10)[:, None]
    context = torch.randn(4, 10, 512, requires_grad=True)
    out, weights = layer(x, context, context, keep)
    same(weights[3].unique(), [0.1])
    (grad,) = torch.autograd.grad((out * torch.randn(out.shape)).sum(), context)
    about([grad[3].abs().max()], [0.36])
    q, k, v = layer.project(x, context, context)
    assert not F.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None])[3].any()


def test_A10_a_hook_sees_the_sum():
    layer, x = made(*A, x=(4, 10, 512))
    outputs = []
    layer.fc.register_forward_hook(lambda m, args, out: outputs.extend([out, out.clone()]))
    layer(x, x, x)
    same([off(*outputs)], [3.928])
    assert torch.equal(outputs[0], outputs[1] + x)


def test_A13_a_second_string_is_not_the_docstring():
    lines = "class M:\n    'A layer.'\n    'n_head: the number of heads.'"
    assert ast.get_docstring(ast.parse(lines).body[0]) == "A layer."


def test_A14_its_layer_is_a_whole_sublayer():
    layer, x = made(*A, x=(4, 10, 512))
    out, found = attend(*layer.project(x, x, x))[0], layer(x, x, x)[0]
    alone = layer.fc(out.transpose(1, 2).flatten(2))
    about([off(found, alone)], [3.893])
    assert off(found, F.layer_norm(alone + x, (512,), eps=1e-6)) < 1e-5


# ---------------------------------------------------------------- post 001


def test_B01_the_root_of_the_whole_width_divides():
    layer, x = made(*B, x=(4, 10, 512))
    for size, noted in ((1, [0.12, 0.205]), (3, [1.665, 0.518])):
        out, right = layer(*[size * x] * 3), layer.right(size * x)
        same([off(out, right), relative(out, right)], noted)
    q, k = torch.randn(2, 64, 8, 10, 64)
    rows = ((q @ k.mT / w**0.5).softmax(dim=-1) for w in (512, 64))
    entropies = [torch.special.entr(row).sum(dim=-1).mean() for row in rows]
    assert entropies == pytest.approx([2.247, 1.918], abs=0.02)
    one, x = made(Post001, 512, 1, x=(4, 10, 512))
    assert off(one(x, x, x), one.right(x)) < 1e-6


def test_B02_one_small_matrix_serves_all_heads():
    layer, x = made(*B, x=(4, 10, 512))
    assert sum(f.weight.numel() for f in (layer.q, layer.k, layer.v)) == 12288
    other = x.clone()
    other[..., 64:] = torch.randn(4, 10, 448)
    maps = [published(layer, y)[1] for y in (x, other, x[..., :64].repeat(1, 1, 8))]
    assert torch.equal(maps[0][:, 0], maps[1][:, 0])  # head 0 reads 64 features of 512
    assert off(maps[0][:, 1], maps[1][:, 1]) > 0.01
    assert maps[2].std(dim=1).max().item() < 1e-7  # equal slices: all heads are one


def test_B04_the_arguments_come_in_another_order():
    layer, q = made(*B, x=(4, 10, 512))
    k, v = torch.randn(2, 4, 10, 512)
    right = layer.right(q, k, v, scale=layer.scale)
    about([off(layer(q, k, v), right), relative(layer(q, k, v), right)], [0.615, 1.344])
    assert off(layer(v, k, q), right) < 1e-6
    with pytest.raises(RuntimeError, match=r"subscript l has size 6 for operand 1 .* seen size 10"):
        layer(q[:, :6], k, v)


def test_B07_a_row_without_a_key_is_the_mean_of_all_values():
    layer, x = made(*B, x=(4, 10, 512))
    out = layer(x, x, x, torch.zeros(4, 1, 1, 10))
    mean = layer.project(x, x, x)[2].mean(dim=2, keepdim=True).expand(4, 8, 10, 64)
    assert off(out, layer.finish(mean, x)) < 1e-6


def test_B12_dropout_after_the_norm_leaves_zeros():
    torch.manual_seed(0)
    layer, norm = Post001(512, 8), nn.LayerNorm(512)
    wide = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512))
    x, drop = torch.randn(4, 10, 512), nn.Dropout(0.1)
    here = drop(norm(layer(x, x, x) + x))
    here = drop(norm(wide(here) + here))
    paper = norm(drop(layer(x, x, x)) + x)
    paper = norm(drop(wide(paper)) + paper)
    same([(out == 0).float().mean() for out in (here, paper)], [0.104, 0])
    same([*here.std(dim=-1).aminmax(), here.mean(dim=-1).abs().max()], [1.007, 1.085, 0.025])
    same([*paper.std(dim=-1).aminmax(), paper.mean(dim=-1).abs().max()], [1.001, 1.001, 0])


def test_B15_padding_changes_the_real_tokens():
    """Its encoder makes no mask, and counts its positions from the first place, padding too."""
    layer, places = made(Post001, 64, 4, x=(10, 64))
    short, pads, keep = torch.randn(1, 6, 64), torch.zeros(1, 4, 64), real([6], 10)[BY_KEY]

    def encode(*parts, mask=None):
        x = torch.cat(parts, dim=1)
        x = x + places[: x.shape[1]]
        return layer(x, x, x, mask)

    right = encode(short)
    assert off(encode(short, pads, mask=keep)[:, :6], right) < 2e-6
    assert off(encode(short, pads)[:, :6], right) > 0.05
    assert off(encode(pads, short, mask=keep.flip(-1))[:, 4:], right) > 0.05


# ---------------------------------------------------------------- post 002


def test_C03_only_the_future_is_attended_to():
    """With the smallest repair of C01: a mask of three axes is left alone."""
    torch.manual_seed(0)
    layer, x, future = Post002(4, 1, joined=False), torch.rand(1, 3, 4), ~past(3)[None]
    out, weights = layer(x, future)
    table = torch.tensor([[0, 0.509, 0.491], [0, 0, 1], [1 / 3, 1 / 3, 1 / 3]])
    assert torch.allclose(weights[0, 0], table, atol=1e-3)
    same([off(out, layer.right(x, mask=~future))], [0.301])


def test_C05_its_padding_example_blocks_the_real_tokens():
    torch.manual_seed(0)
    layer, x = Post002(8, 2, closed_is=True), torch.rand(1, 4, 8)
    mask = torch.tensor([[True, True, False, False]])
    out, weights = layer(x, mask)
    right = layer.right(x, mask=mask[BY_KEY])
    same([*weights[0, 0, 0], off(out, right)], [0, 0, 0.498, 0.502, 0.085])
    assert off(layer(x, ~mask)[0], right) < 1e-6


def test_C06_two_classes_of_one_article_mean_opposite_things():
    torch.manual_seed(0)
    x, keep = torch.randn(5, 7, 64), real([6, 5, 4, 3, 2], 7)
    layers = [made(Post002, 64, 1, closed_is=c, joined=False)[0] for c in (False, True)]
    (one, maps), (other, others) = (layer(x, keep) for layer in layers)
    assert torch.equal(layers[0](x)[0], layers[1](x)[0])
    about([off(one, other)], [1.784])
    assert not (maps * others).any()


def test_C08_an_additive_mask_is_made_boolean():
    layer, x = made(*C, closed_is=True, x=(3, 7, 64))
    added = torch.zeros(3, 7).masked_fill(~real([7, 5, 3], 7), -math.inf)
    right = layer.right(x, mask=added[BY_KEY])
    assert off(layer(x, added)[0], right) < 1e-6
    # +0.5 on every open key: a softmax does not see it
    assert off(layer.right(x, mask=added[BY_KEY] + 0.5), right) < 1e-6
    same([off(layer(x, added + 0.5)[0], right)], [0.409])


def test_C09_without_assertions_the_sizes_may_lie():
    layer, x = made(Post002, 10, 4, x=(3, 4, 10))  # what `python -O` leaves of the check
    out, weights = layer(x)
    assert (out.shape, weights.shape) == ((3, 4, 10), (3, 4, 5, 5))


def test_C14_the_last_class_has_no_output_projection():
    layer, x = made(*C, x=(5, 7, 64))
    plain, _ = made(*C, joined=False)
    about([off(plain(x)[0], layer(x)[0])], [0.996])


def test_C15_minus_one_head_passes_the_check():
    E, H, x = 64, -1, torch.randn(2, 5, 64)
    assert E // H * H == E
    assert bool(attend(x, x, x, divisor=torch.tensor(float(E // H)).sqrt())[0].isnan().all())
    with pytest.raises(RuntimeError, match=r"invalid shape dimension -2"):
        Post002(8, -2)(torch.randn(1, 4, 8))  # the second class


# ---------------------------------------------------------------- post 003


def test_D02_to_multiply_by_the_root_makes_scores_too_large():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 15, 8, 50, 64)
    right = F.scaled_dot_product_attention(q, k, v)
    out, sharp = attend(q, k, v, divisor=64**-0.5)
    divided, flat = attend(q, k, v, divisor=64**0.5)
    about([off(out, right), relative(out, right)], [4.337, 3.974])
    assert off(divided, right) < 2e-6
    same([sharp.amax(-1).mean(), flat.amax(-1).mean()], [0.975, 0.126])


@pytest.mark.parametrize(("E", "H"), [(10, 4), (15, 8)])
def test_D07_the_inner_width_shrinks(E, H):
    layer, x = made(Post003, E, H, x=(3, 5, E))
    assert layer(x, x, x)[0].shape == x.shape
    rank = torch.linalg.matrix_rank(layer.fc.weight @ layer.v.weight)
    assert (len(layer.v.weight), int(rank)) == (8, 8)
    with pytest.raises(ValueError, match="must be divisible"):
        attn_lib.MultiHeadAttention(E, H)


def test_D09_zero_counts_as_not_given():
    assert Post003(8, 2, scale=0.0).scale == 0.5
    assert attn_lib.MultiHeadAttention(8, 2, scale=0.0).scale == 0.0


def test_D10_a_mask_from_the_top_left_hides_the_past_of_a_continued_text():
    layer, x = made(Post003, 8, 2, triangle=top_left, x=(3, 6, 8))
    other, _ = made(Post003, 8, 2, triangle=bottom_right)
    (out, weights), (right, corner) = layer(x[:, 4:], x, x), other(x[:, 4:], x, x)
    keys = [(w[0, 0] > 0).sum(dim=-1).tolist() for w in (weights, corner)]
    assert keys == [[1, 2], [5, 6]]
    assert off(right, layer(x, x, x)[0][:, 4:]) < 1e-6
    about([off(out, right)], [0.896])


def test_D11_rows_without_a_key_become_nan():
    layer, x = made(Post003, 8, 2, triangle=bottom_right, x=(3, 6, 8))
    out, _ = layer(x, x[:, 4:], x[:, 4:])
    assert out[0].isnan().any(dim=-1).tolist() == [True] * 4 + [False] * 2
    zeros = attn_lib.attention(x, x[:, 4:], x[:, 4:], mask=attn_lib.causal_mask(6, 2))[0]
    assert not zeros[:, :4].any()


def test_D14_the_length_of_the_keys_is_read_from_the_values():
    layer, q = made(Post003, 8, 2, x=(3, 5, 8))
    out, _ = layer(q, torch.randn(6, 3, 8), torch.randn(3, 6, 8))
    assert out.shape == (3, 5, 8)
    with pytest.raises(RuntimeError, match=r"\[3, 6, 2, -1\]' is invalid for input of size 168"):
        layer(q, torch.randn(3, 7, 8), torch.randn(3, 6, 8))


def test_D18_annotations_that_are_no_types():
    def layer(queries: torch.tensor, d_k: int = None): ...  # noqa: RUF013

    hints = get_type_hints(layer)
    assert not isinstance(hints["queries"], type)
    assert isinstance(Tensor, type)
    assert hints["d_k"] is int  # None is not among its values


def test_D19_a_linear_map_is_no_regression_and_view_no_reshape():
    f, x = made(nn.Linear, 4, 6, x=(15, 4))
    assert off(f(x), x @ f.weight.T + f.bias) < 1e-6
    across = torch.randn(2, 3, 5).transpose(1, 2)
    assert across.reshape(2, 15).shape == (2, 15)
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        across.view(2, 15)


def test_D23_a_comment_with_tabs_is_harmless():
    plain, tabs = "if True:\n    x = 1", "if True:\n\t# scale\n    x = 1"
    assert ast.dump(ast.parse(tabs)) == ast.dump(ast.parse(plain))


# ---------------------------------------------------------------- post 004


def test_E02_four_copies_of_one_matrix():
    layer, x = made(Post004, 512, 8, x=(4, 10, 512))
    assert all(torch.equal(f.weight, layer.q.weight) for f in (layer.k, layer.v, layer.fc))
    other = nn.Linear(512, 512)
    for size, copied, own in ((1, 0.594, 0.099), (3, 1.0, 0.106)):
        layer(*[size * x] * 3)
        same([layer.weights.diagonal(dim1=-2, dim2=-1).mean()], [copied])
        q, k = split(layer.q(size * x), 8), split(other(size * x), 8)
        about([(q @ k.mT / 8).softmax(-1).diagonal(dim1=-2, dim2=-1).mean()], [own])


def test_E04_a_mask_of_four_axes_makes_an_output_that_is_too_long():
    layer, x = made(*W, x=(4, 5, 8))
    for mask in (torch.ones(4, 1, 1, 5), torch.ones(4, 2, 5, 5)):
        assert layer(x, x, x, mask).shape == (4, 20, 8)
    keep = real([3], 5)[BY_KEY]
    about([off(layer(x[:1], x[:1], x[:1], keep), layer.right(x[:1], mask=keep))], [0.705])


def test_E06_another_batch_is_folded_into_time():
    layer, q = made(*W, x=(2, 3, 8))
    other = torch.randn(4, 3, 8)
    assert off(layer(q, other, other), layer(q, *[other.view(2, 6, 8)] * 2)) < 1e-6
    q, one = torch.randn(3, 4, 8), torch.randn(1, 6, 8)
    same([off(layer(q, one, one), layer.right(q, one.expand(3, 6, 8)))], [0.496])


def test_E07_tokens_without_a_batch_attend_to_themselves_alone():
    layer, x = made(*W, x=(6, 8))
    out = layer(x, x, x)
    assert (out.shape, layer.weights.shape) == ((6, 1, 8), (6, 2, 1, 1))
    assert bool((layer.weights == 1).all())
    same([off(out[:, 0], layer.right(x[None])[0])], [0.48])


def test_E09_the_weights_on_the_layer_are_dropped_ones():
    layer, x = made(*W, train=True, x=(64, 10, 8))
    layer(x, x, x)
    about(layer.weights.sum(dim=-1).aminmax(), [0.424, 1.111])


def test_E12_a_score_is_a_query_with_a_key_not_a_key_with_a_value():
    layer, x = made(Post000, 8, 2, 4, 4, x=(2, 5, 8))  # matrices that are no copies
    q, k, v = layer.project(x, x, x)
    weights = attend(q, k, v)[1]
    assert off((q @ k.mT / 2).softmax(dim=-1), weights) < 1e-6
    assert off((k @ v.mT / 2).softmax(dim=-1), weights) > 0.1
    with pytest.raises(RuntimeError, match="to be: "):
        k @ torch.randn(2, 2, 5, 6).mT  # values of another width


def test_E13_a_token_attends_to_itself_too():
    layer, x = made(*W, x=(2, 5, 8))
    layer(x, x, x)
    assert bool((layer.weights.diagonal(dim1=-2, dim2=-1) > 0).all())
    others = ~torch.eye(5).bool()
    assert off(layer.right(x, mask=others), layer(x, x, x)) > 0.1
    alone = torch.zeros(1, 1).masked_fill(~others[:1, :1], -math.inf).softmax(dim=-1)
    assert bool(alone.isnan())  # of a single token, nothing is left


def test_E19_the_example_changes_from_call_to_call():
    layer, x = made(*W, train=True, x=(6, 3, 8))
    assert off(layer(x, x, x), layer(x, x, x)) > 0.1
    assert torch.equal(layer.eval()(x, x, x), layer(x, x, x))
