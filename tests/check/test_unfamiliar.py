"""Attention as people write it: read without help, and its mistakes told under their names.

Each row was refused, unnamed, wrongly named or called wrong before it became a test.
"""

import dataclasses
import math
import re

import pytest
import torch
import torch.nn.functional as F
from planted.functions import distances, plain
from planted.rotations import by_complex
from subjects import WITHOUT, Masked, Packed, Separate, check_report, row, scores_of
from tables import for_each
from torch import nn

from attn_check import diagnose, search
from attn_check.calls import to_layout

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def alone(monkeypatch):
    """No pairs of mistakes, of which 1700 would be tried where nothing else explains a report."""
    usual = search._candidates

    def candidates(failing, base, depth):
        return usual(failing, base, depth) if depth == 1 else iter(())

    monkeypatch.setattr(search, "_candidates", candidates)


# ---------------------------------------------------------------- modules of x


class Head(nn.Module):
    """One head of nanoGPT's lecture: no attribute counts heads, and no output projection."""

    def __init__(self, width=lambda x, k: k.shape[-1], turned=False):
        super().__init__()
        torch.manual_seed(0)
        self.key, self.query, self.value = (nn.Linear(14, 6, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.tril(torch.ones(80, 80)))
        self.width, self.turned = width, turned

    def forward(self, sequences):
        T = sequences.shape[1]
        q, k, v = self.query(sequences), self.key(sequences), self.value(sequences)
        wei = q @ k.transpose(-2, -1) * self.width(sequences, k) ** -0.5
        if not self.turned:
            wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        wei = F.softmax(wei, dim=-1)
        return (wei.mT if self.turned else wei) @ v


class Uncounted(Packed):
    """Its heads are counted by the code alone."""

    def __init__(self):
        super().__init__()
        del self.num_heads


class OneKeyHead(nn.Module):
    """Multi-query attention with one matrix for the head of keys and values."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.heads, self.to_q, self.to_kv = 3, nn.Linear(21, 21), nn.Linear(21, 14)
        self.to_out = nn.Linear(21, 21, bias=False)

    def forward(self, x):
        q, (k, v) = self.to_q(x).unflatten(-1, (3, 7)).transpose(1, 2), self.to_kv(x).chunk(2, -1)
        return self.to_out(plain(q, k[:, None], v[:, None]).transpose(1, 2).flatten(2))


class BiasesApart(nn.Module):
    """The biases of queries and values lie beside the packed projection, as in Swin v2."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.num_heads, self.qkv = 3, nn.Linear(24, 72, bias=False)
        self.q_bias, self.v_bias = (nn.Parameter(torch.zeros(24)) for _ in range(2))

    def forward(self, x):
        bias = torch.cat([self.q_bias, torch.zeros(24), self.v_bias])
        q, k, v = (self.qkv(x) + bias).unflatten(-1, (3, 3, 8)).permute(2, 0, 3, 1, 4).unbind()
        return plain(q, k, v).transpose(1, 2).flatten(2)


class NormedHeads(nn.Module):
    """Queries and keys normed by LayerNorm; the weights that it used are returned."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)  # with which some scores are large
        self.num_heads = 4
        self.in_proj, self.out_proj = nn.Linear(32, 96), nn.Linear(32, 32)
        self.q_norm, self.k_norm = nn.LayerNorm(8), nn.LayerNorm(8)

    def forward(self, x, mask=None):
        q, k, v = self.in_proj(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        scores = scores_of(self.q_norm(q), self.k_norm(k))
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None], -math.inf)
        weights = scores.softmax(dim=-1)
        return self.out_proj((weights @ v).transpose(1, 2).flatten(2)), weights


class TwoMasks(Separate):
    """With a context, its own mask is that of the keys."""

    def __init__(self):
        super().__init__(24)

    def forward(self, x, context=None, mask=None, context_mask=None):
        y, cells = (x, mask) if context is None else (context, context_mask)
        q, k, v = map(self.heads_of, (self.q_proj(x), self.k_proj(y), self.v_proj(y)))
        s = scores_of(q, k)
        if cells is not None:
            s = s.masked_fill(~cells[:, None, None, :], -1e4)
        return self.merged(s.softmax(-1) @ v)


class Pixels(nn.Module):
    """Self-attention over the pixels of an image, with 1 x 1 convolutions or linear maps."""

    def __init__(self, first=True, axis=-1, block=False):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.axis, self.block, self.heads = first, axis, block, 2
        self.norm = nn.GroupNorm(2, 12) if block else nn.Identity()
        maps = [nn.Conv2d(12, 12, 1) if first else nn.Linear(12, 12) for _ in range(4)]
        self.q, self.k, self.v, self.proj_out = maps

    def forward(self, x):
        h = self.norm(x)
        parts = [f(h) if self.first else f(h).movedim(-1, 1) for f in (self.q, self.k, self.v)]
        q, k, v = (part.flatten(2).unflatten(1, (2, 6)).mT for part in parts)
        out = scores_of(q, k).softmax(self.axis) @ v
        out = out.mT.flatten(1, 2).unflatten(2, parts[0].shape[2:])
        out = self.proj_out(out) if self.first else self.proj_out(out.movedim(1, -1))
        return x + out if self.block else out


@dataclasses.dataclass
class Output:
    hidden: torch.Tensor
    attentions: torch.Tensor


def with_weights(axis):
    return lambda q, k, v: Output(plain(q, k, v), scores_of(q, k).softmax(axis))


def off_by_a_hundredth(q, k, v):
    weights = scores_of(q, k).softmax(-1)
    return weights @ v, 0.99 * weights + 0.01 / weights.shape[-1]


def to_the_wrong_rows(q, k, v, mask):
    """The values of keys, each by its own weights, reach the wrong rows: padding is no less."""
    s = scores_of(q, k) if mask is None else scores_of(q, k).masked_fill(~mask, -1e4)
    return torch.einsum("bhij,bhid->bhjd", s.softmax(-1), v)


def unscaled_scores(q, k, v):
    """Scores beside a wrong output excuse nothing."""
    return (q @ k.mT).softmax(-1) @ v, q @ k.mT


def bias_after(q, k, v):
    return (scores_of(q, k).softmax(-1) + distances(q.shape[-2], k.shape[-2]).to(q)) @ v


def own_value(q, k, v):
    return torch.einsum("bhqk,bhqd->bhqd", scores_of(q, k).softmax(-1), v)


def ones_added(q, k, v):
    assert q.shape == k.shape
    return F.scaled_dot_product_attention(q, k, v, torch.ones(q.shape[-2], k.shape[-2]).tril())


SCALE = re.escape("x.shape[-1] ** -0.5")
TURNED = "queries and keys are swapped and the softmax runs over the queries"
BEHIND = {"layout": "BHTd"}


@for_each(
    row(Head(), [], "the number of heads is 1, as", causal=True),
    row(Head(lambda x, k: x.shape[-1]), ["scale_by_model_width"], SCALE, causal=True),
    row(Head(turned=True), ["softmax_over_queries"], "the weights are transposed", TURNED),
    row(Uncounted(), [], "the number of heads is 4, as"),
    row(OneKeyHead(), [], "equal to the reference in"),
    row(BiasesApart(), []),
    row(NormedHeads(), [], heads=4, mask_means="attend"),
    row(TwoMasks(), [], WITHOUT.format("[Nn]ot checked.*context_mask"), mask_means="attend"),
    row(with_weights(-1), []),
    row(with_weights(-2), ["weights_wrong"]),
    row(off_by_a_hundredth, ["weights_wrong"], "Returned weights are not those"),
    row(Pixels(), [], "the layout is BdYX"),
    row(Pixels(first=False), [], WITHOUT.format("the layout is")),  # linear maps take rows, too
    row(Pixels(axis=-2), ["softmax_over_queries"], layout="BdYX"),
    row(Pixels(first=False, axis=-2), ["softmax_over_queries"], layout="BYXd"),
    row(
        Masked(24, attend=to_the_wrong_rows),
        ["softmax_over_queries"],
        "what the mask means: True = may attend",
    ),
    row(unscaled_scores, ["scale_missing"], "before the softmax", **BEHIND),
    row(bias_after, ["bias_missing"], "added after the softmax", attn_bias=distances, **BEHIND),
    row(own_value, ["values_summed"], "Every query gets its own value alone", **BEHIND),
    row(ones_added, ["mask_small_fill"], "mask of ones and zeros", causal=True, **BEHIND),
)
def test_it_is_read_without_help(fn, options, mistakes, patterns):
    check_report(fn, options, mistakes, patterns)


def test_images_have_rows_and_columns():
    assert to_layout(torch.zeros(2, 6, 12), "BdYX", True, 1).shape == (2, 12, 2, 3)


# ---------------------------------------------------------------- parts of its own


def adding(bias):
    """A layer that adds a bias to its scores, by T."""

    def attend(q, k, v):
        return (scores_of(q, k) + bias(q.shape[2]).to(q)).softmax(-1) @ v

    return Separate(24, attend=attend)


def apart(T):
    return torch.arange(T)[:, None] - torch.arange(T)


SLOPES = torch.tensor([0.5, 0.03, 1.1]).view(3, 1, 1)
TABLE = torch.randn(3, 160, generator=torch.Generator().manual_seed(3))


def by_distance(T, S=0):
    return TABLE[:, apart(T) + 79].double()  # a number for each distance, as T5's


def slopes(T, S=0):
    return -SLOPES.double() * apart(T).abs()


class Cosine(Separate):
    """Queries and keys of unit length, and a scale that is learned in one of these ways."""

    def __init__(self, ways):
        super().__init__(24)
        self.ways, scales = ways, torch.tensor([1.0, 1.5, 2.0])
        self.logit_scale = nn.Parameter(scales.view(3, 1, 1))

    def attend(self, q, k, v):
        s = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * self.ways(self.logit_scale)
        return s.softmax(-1) @ v


class Capped(Separate):
    """A softcap, and RoPE on some channels, of which only its attributes speak."""

    def __init__(self, cap=None, dims=None, axis=-1, turned=None):
        super().__init__(24)
        self.axis, self.turned = axis, turned or dims
        if cap:
            self.attn_logit_softcapping = cap
        if dims:
            self.rotary_dim = dims

    def rotated(self, x):
        turned = by_complex(x[..., : self.turned], torch.arange(x.shape[-2]))
        return torch.cat([turned, x[..., self.turned :]], -1)

    def attend(self, q, k, v):
        if self.turned:
            q, k = self.rotated(q), self.rotated(k)
        s, cap = scores_of(q, k), getattr(self, "attn_logit_softcapping", None)
        s = cap * (s / cap).tanh() if cap else s
        return s.softmax(self.axis) @ v


IF_MEANT = "if you mean what is assumed below"
ROPE = "RoPE inside, with base 10000, pairing neighbours, of 4 channels"
NO_BIAS = WITHOUT.format("a bias of its own")


@for_each(
    row(Pixels(block=True), [], IF_MEANT, "meant to add its input to its output", prenorm="norm"),
    row(adding(by_distance), [], NO_BIAS, causal=False, attn_bias=by_distance),
    row(Cosine(lambda scale: scale), [], "a scale of its own", causal=False),
    row(Cosine(lambda scale: 1.0 / scale), [], "a scale of its own", causal=False),
    row(Cosine(torch.exp), [], "a scale of its own", causal=False),
    row(Cosine(lambda x: x.clamp(max=4.0).exp()), [], "a scale of its own", causal=False),
    row(Capped(cap=1.5), [], IF_MEANT, "a softcap of 1.5", causal=False),
    row(Capped(dims=4), [], IF_MEANT, ROPE, causal=False),
    row(Capped(cap=1.5, axis=-2), ["softmax_over_queries"], causal=False, softcap=1.5),
)
def test_its_parts_are_found_where_they_fit(fn, options, mistakes, patterns):
    check_report(fn, options, mistakes, patterns)


def changing(q, k, v):
    return (scores_of(q, k) + v.mean(-1)[..., None, :]).softmax(-1) @ v


class Pooled(nn.Module):
    """Its output has a fixed length."""

    def __init__(self):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(5, 12))
        self.mha = nn.MultiheadAttention(12, 3, batch_first=True)

    def forward(self, x):
        return self.mha(self.latents.expand(len(x), -1, -1), x, x)[0]


def curved():
    layer = Separate(24)
    layer.out_proj = nn.Sequential(layer.out_proj, nn.Sigmoid())
    return layer


OWN_PARTS = r"^Capped: not judged: it has parts that are not known here \(rotary_dim\): pass rope_d"
JUDGED = WITHOUT.format("not judged")


@pytest.mark.usefixtures("alone")
@for_each(
    row(adding(by_distance), [None], "a bias of its own, as ALiBi .pass attn_bias=", causal=False),
    row(adding(lambda T: -10.0 * (apart(T) < 0)), [None], JUDGED, causal=False),  # closes keys
    row(Separate(24, attend=changing), [None], JUDGED, causal=False),  # what the inputs change
    row(adding(lambda T: 1.5 * slopes(T)), [None], NO_BIAS, causal=False, attn_bias=slopes),
    row(Cosine(lambda x: 3.0 * x), [None], qk_norm="l2"),
    row(Capped(dims=4, turned=6), [None], OWN_PARTS, causal=False),
    row(curved(), [None], JUDGED, "one mistake found", causal=False),
    row(Pixels(block=True, axis=-2), [None], prenorm="norm"),
    row(Pooled(), [None], causal=False),
)
def test_what_nothing_known_explains_is_not_passed(fn, options, mistakes, patterns):
    check_report(fn, options, mistakes, patterns)


@pytest.mark.usefixtures("alone")
def test_a_module_that_cannot_be_copied_stays_as_it_is():
    fn = adding(slopes)
    fn.lines = (line for line in ())  # a generator cannot be copied
    diagnose(fn, causal=False)
    assert {p.dtype for p in fn.parameters()} == {torch.float32}
