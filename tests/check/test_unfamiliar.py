"""Attention as people write it: read without help, and its mistakes told under their names.

Each row was refused, unnamed, wrongly named or called wrong before it became a test.
"""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from planted.functions import distances, plain
from planted.rotations import by_complex
from subjects import Masked, Packed, Separate, headline, scores_of
from tables import for_each
from torch import nn

from attn_check import diagnose
from attn_check.calls import to_layout

pytestmark = pytest.mark.usefixtures("one_thread")


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


def test_a_head_that_nobody_counts_is_one():
    report = diagnose(Head(), causal=True)
    assert report.ok, report
    assert any(text.startswith("the number of heads is 1, as") for text in report.assumed)


def test_a_single_head_is_scaled_by_the_width_of_the_model():
    (failure,) = diagnose(Head(width=lambda x, k: x.shape[-1]), causal=True).failures
    assert failure.mistake == "scale_by_model_width"
    assert "x.shape[-1] ** -0.5" in failure.look_for


def test_transposed_weights_are_named_with_what_gives_the_same():
    (failure,) = diagnose(Head(turned=True)).failures
    assert (failure.mistake, failure.name) == ("softmax_over_queries", "the weights are transposed")
    assert "queries and keys are swapped and the softmax runs over the queries" in failure.likely


def test_heads_that_only_the_code_counts():
    layer = Packed()
    del layer.num_heads
    report = diagnose(layer)
    assert report.ok, report
    assert any("the number of heads is 4, as" in text for text in report.assumed)


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


def test_one_head_of_keys_and_values_is_read_without_help():
    report = diagnose(OneKeyHead())
    assert report.ok, report
    assert any(text.startswith("equal to the reference in") for text in report.holds)


@dataclasses.dataclass
class Output:
    hidden: torch.Tensor
    attentions: torch.Tensor


@for_each((-1, []), (-2, ["weights_wrong"]))
def test_weights_in_a_dataclass_are_compared(axis, mistakes):
    def fn(q, k, v):
        return Output(plain(q, k, v), scores_of(q, k).softmax(axis))

    assert diagnose(fn).mistakes == mistakes


def test_outputs_of_a_fixed_length_are_no_crash():
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.latents = nn.Parameter(torch.randn(5, 12))
            self.mha = nn.MultiheadAttention(12, 3, batch_first=True)

        def forward(self, x):
            return self.mha(self.latents.expand(len(x), -1, -1), x, x)[0]

    assert diagnose(Pooled(), causal=False).mistakes == [None]


# ---------------------------------------------------------------- images


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


@for_each((True, "BdYX"), (False, "BYXd"))
def test_images_are_read(first, layout):
    report = diagnose(Pixels(first))
    assert report.ok, report
    # linear maps take rows of positions too
    assert report.assumed == (["the layout is BdYX"] if first else [])
    assert diagnose(Pixels(first), layout=layout).ok
    wrong = Pixels(first, axis=-2)
    assert diagnose(wrong, layout=layout).mistakes == ["softmax_over_queries"]


def test_images_have_rows_and_columns():
    assert to_layout(torch.zeros(2, 6, 12), "BdYX", True, 1).shape == (2, 12, 2, 3)


def test_a_block_of_images_with_its_norm_and_its_residual():
    report = diagnose(Pixels(block=True), prenorm="norm")
    assert report.ok, report
    assert "it is meant to add its input to its output" in report.assumed
    assert "if you mean what is assumed below" in headline(report)
    assert diagnose(Pixels(block=True, axis=-2), prenorm="norm").mistakes != []


# ---------------------------------------------------------------- parts of its own


def adding(bias):
    """A layer that adds a bias to its scores, by T."""
    return Separate(24, attend=lambda q, k, v: (scores_of(q, k) + bias(q.shape[2])).softmax(-1) @ v)


def apart(T):
    return torch.arange(T)[:, None] - torch.arange(T)


SLOPES = torch.tensor([0.5, 0.03, 1.1]).view(3, 1, 1)
TABLE = torch.randn(3, 160, generator=torch.Generator().manual_seed(3))


def test_a_bias_that_no_input_changes_is_found():
    def bias(T):
        return TABLE[:, apart(T) + 79]  # a number for each distance, as T5's

    report = diagnose(adding(bias), causal=False)
    assert not report.ok  # which bias is meant, its sign too, only the author knows
    (failure,) = report.failures
    row = bias(5)[0, 4]
    assert f"{(row - row[4])[0]:.4g}" in failure.likely
    assert headline(report).endswith(
        "not judged: it adds a bias of its own to the scores: pass attn_bias=."
    )
    given = diagnose(adding(bias), causal=False, attn_bias=lambda T, S: bias(T).double())
    assert given.ok
    assert "a bias of its own" not in str(given)


def test_what_closes_keys_is_no_bias():
    closing = adding(lambda T: -10.0 * (apart(T) < 0))  # if not quite
    assert "not judged" not in headline(diagnose(closing, causal=False))


def test_what_the_inputs_change_is_no_bias():
    def changing(q, k, v):
        return (scores_of(q, k) + v.mean(-1)[..., None, :]).softmax(-1) @ v

    assert diagnose(Separate(24, attend=changing)).mistakes == [None]


def test_a_declared_bias_is_not_excused():
    fn = adding(lambda T: -1.5 * SLOPES * apart(T).abs())
    report = diagnose(fn, attn_bias=lambda T, S: -SLOPES.double() * apart(T).abs(), causal=False)
    assert not report.ok
    assert "a bias of its own" not in str(report)


def test_a_module_that_cannot_be_copied_stays_as_it_is():
    fn = adding(lambda T: -SLOPES * apart(T).abs())
    fn.lines = (line for line in ())  # a generator cannot be copied
    diagnose(fn, causal=False)
    assert {p.dtype for p in fn.parameters()} == {torch.float32}


class Cosine(Separate):
    """Queries and keys of unit length, and a scale that is learned in one of these ways."""

    def __init__(self, ways):
        super().__init__(24)
        self.ways, scales = ways, torch.tensor([1.0, 1.5, 2.0])
        self.logit_scale = nn.Parameter(scales.view(3, 1, 1))

    def attend(self, q, k, v):
        s = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * self.ways(self.logit_scale)
        return s.softmax(-1) @ v


@for_each(
    lambda scale: scale,
    lambda scale: 1.0 / scale,
    lambda scale: scale.exp(),
    lambda scale: scale.clamp(max=math.log(100.0)).exp(),
)
def test_a_learned_scale_is_found(ways):
    report = diagnose(Cosine(ways), causal=False)
    assert report.ok, report
    assert any("a scale of its own" in text for text in report.assumed)


def test_a_scale_that_no_usual_function_learns_is_not_passed():
    assert not diagnose(Cosine(lambda x: 3.0 * x), qk_norm="l2").ok


# ---------------------------------------------------------------- words that fit


def test_scores_beside_a_wrong_output_excuse_nothing():
    def unscaled(q, k, v):
        return (q @ k.mT).softmax(-1) @ v, q @ k.mT

    report = diagnose(unscaled, layout="BHTd")
    assert report.mistakes == ["scale_missing"], report
    assert "weights_before_softmax" in {note.mistake for note in report.notes}


def bias_after(q, k, v):
    return (scores_of(q, k).softmax(-1) + distances(q.shape[-2], k.shape[-2]).to(q)) @ v


def own_value(q, k, v):
    return torch.einsum("bhqk,bhqd->bhqd", scores_of(q, k).softmax(-1), v)


def ones_added(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, torch.ones(q.shape[-2], k.shape[-2]).tril())


@for_each(
    (bias_after, "bias_missing", "the bias is added after the softmax", {"attn_bias": distances}),
    (own_value, "values_summed", "every query gets its own value alone", {}),
    (
        lambda q, k, v: ones_added(q, k, v) if q.shape == k.shape else 1 / 0,
        "mask_small_fill",
        "a causal mask of ones and zeros is added",
        {"causal": True},
    ),
)
def test_forms_with_words_of_their_own(fn, mistake, name, options):
    (failure,) = diagnose(fn, layout="BHTd", **options).failures
    assert (failure.mistake, failure.name) == (mistake, name)


def to_the_wrong_rows(q, k, v, mask):
    """The values of keys, each by its own weights, reach the wrong rows: padding is no less."""
    s = scores_of(q, k) if mask is None else scores_of(q, k).masked_fill(~mask, -1e4)
    return torch.einsum("bhij,bhid->bhjd", s.softmax(-1), v)


def test_a_guess_of_the_mask_adds_no_mistake():
    report = diagnose(Masked(24, attend=to_the_wrong_rows))
    assert report.mistakes == ["softmax_over_queries"], report
    assert any(text.startswith("what the mask means: True = may attend") for text in report.assumed)


# ---------------------------------------------------------------- parts that are not known


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


@for_each(
    ({"cap": 1.5}, "a softcap of 1.5"),
    ({"dims": 4}, "RoPE inside, with base 10000, pairing neighbours, of 4 channels"),
)
def test_what_attributes_say_is_assumed_where_it_fits(options, text):
    report = diagnose(Capped(**options), causal=False)
    assert report.ok, report
    assert any(text in assumed for assumed in report.assumed)
    assert "if you mean what is assumed below" in headline(report)


def test_a_module_with_parts_that_are_not_known_is_not_judged():
    report = diagnose(Capped(dims=4, turned=6), causal=False)
    assert not report.ok
    text = "not judged: it has parts that are not known here (rotary_dim): pass rope_dims="
    assert headline(report) == f"Capped: {text}."
    report = diagnose(Capped(axis=-2, cap=1.5), causal=False, softcap=1.5)
    assert report.mistakes == ["softmax_over_queries"]
    curved = Separate(24)
    curved.out_proj = nn.Sequential(curved.out_proj, nn.Sigmoid())
    report = diagnose(curved, causal=False)
    assert "not judged" not in str(report)
    assert "one mistake found" in headline(report)


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


def test_with_a_context_its_mask_is_that_of_the_keys():
    report = diagnose(TwoMasks(), mask_means="attend")
    assert report.ok, report
    assert not any("context_mask" in text for text in report.unchecked)


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


def test_biases_beside_a_packed_projection_are_read():
    assert diagnose(BiasesApart()).ok


class NormedHeads(nn.Module):
    """Queries and keys normed by LayerNorm; the weights that it used are returned."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.num_heads = heads
        self.in_proj, self.out_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.q_norm, self.k_norm = nn.LayerNorm(width // heads), nn.LayerNorm(width // heads)

    def forward(self, x, mask=None):
        B, T, d = x.shape
        q, k, v = self.in_proj(x).view(B, T, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q, k = self.q_norm(q), self.k_norm(k)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None], -math.inf)
        weights = scores.softmax(dim=-1)
        return self.out_proj((weights @ v).transpose(1, 2).reshape(B, T, d)), weights


def test_weights_of_large_scores_are_compared_as_coarsely_as_outputs():
    torch.manual_seed(3)
    assert diagnose(NormedHeads(), heads=4, mask_means="attend").ok


def test_weights_that_are_off_by_a_hundredth_are_still_seen():
    def off(q, k, v):
        weights = scores_of(q, k).softmax(-1)
        return weights @ v, 0.99 * weights + 0.01 / weights.shape[-1]

    report = diagnose(off)
    assert not report.ok
    assert "Returned weights are not those" in str(report)
