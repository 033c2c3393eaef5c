"""What a report says is literally true of the function, and what it does not say is not hidden."""

import math

import pytest
import torch
import torch.nn.functional as F
from subjects import Separate, plain, scores_of, words_of
from torch import nn

from attn_lib import diagnose

pytestmark = pytest.mark.usefixtures("one_thread")


def triangle(q, k):
    """Later keys, the queries being the last."""
    T, S = q.shape[-2], k.shape[-2]
    return torch.ones(T, S, dtype=torch.bool).triu(S - T + 1)


def causal(q, k, v):
    return scores_of(q, k).masked_fill(triangle(q, k), -math.inf).softmax(-1) @ v


# ---------------------------------------------------------------- a mask that is always needed


def inverted(q, k, v, mask):
    return scores_of(q, k).masked_fill(mask, -math.inf).softmax(-1) @ v


def inverted_padding(q, k, v, mask):
    return scores_of(q, k).masked_fill(mask[:, None, None] == 1, -1e9).softmax(-1) @ v


class InvertedLayer(Separate):
    def forward(self, x, mask):
        self.mask = mask
        return super().forward(x)

    def attend(self, q, k, v):
        return inverted(q, k, v, self.mask)


@pytest.mark.parametrize("fn", [inverted, inverted_padding, InvertedLayer()])
def test_a_mask_that_is_needed_and_inverted(fn):
    report = diagnose(fn, mask="attend")
    assert report.mistakes == ["mask_inverted"]
    assert any("needs a mask" in text for text in report.assumed)
    assert diagnose(fn, mask="blocked").mistakes in ([], ["mask_fill_overflows_half"])


# ---------------------------------------------------------------- gradients and half precision


class DetachedBias(Separate):
    def forward(self, x):
        k = F.linear(x, self.k_proj.weight.data, self.k_proj.bias)
        v = F.linear(x, self.v_proj.weight, self.v_proj.bias.detach())
        out = self.attend(*map(self.heads_of, (self.q_proj(x), k, v)))
        return self.merged(out)


def test_each_parameter_without_a_gradient_is_listed():
    (failure,) = diagnose(DetachedBias()).failures
    assert failure.mistake == "gradient_missing_projection"
    lines = failure.example.splitlines()
    assert [line.partition(":")[0] for line in lines[1:]] == [
        "gradient to the weight of keys",
        "gradient to the bias of values",
    ]


class WrongOfWeight(Separate):
    def forward(self, x):
        twice = 2 * self.q_proj.weight - self.q_proj.weight.detach()
        q = F.linear(x, twice, self.q_proj.bias)
        parts = (q, self.k_proj(x), self.v_proj(x))
        out = self.attend(*map(self.heads_of, parts))
        return self.merged(out)


def test_a_wrong_gradient_of_a_parameter():
    (failure,) = diagnose(WrongOfWeight()).failures
    assert failure.mistake == "gradient_wrong"
    assert "gradient to the weight of queries" in failure.example


REPORTS = {
    "function": (lambda: plain, {}),
    "causal": (lambda: causal, {}),
    "mask": (lambda: F.scaled_dot_product_attention, {"arguments": "q, k, v, attn_mask=mask"}),
    "module": (Separate, {}),
    "module in double": (lambda: Separate().double(), {}),
    "module in half": (lambda: Separate().half(), {}),
    "torch": (lambda: nn.MultiheadAttention(12, 3, batch_first=True), {}),
    "wrong": (lambda: lambda q, k, v: (q @ k.mT).softmax(-1) @ v, {}),
    "keeps something": (lambda: keeps, {}),
    "unknown": (lambda: lambda q, k, v: 1.1 * plain(q, k, v), {}),
    "not in half": (lambda: only_float, {}),
    "by gradients": (lambda: by_mode, {}),
}
KEPT = []


def keeps(q, k, v):
    KEPT.append(0)
    return plain(q * min(len(KEPT), 4), k, v)


def only_float(q, k, v):
    assert q.dtype not in (torch.float16, torch.bfloat16)
    return plain(q, k, v)


def by_mode(q, k, v):
    """Right under no_grad alone."""
    return plain(q, k, v).detach() if not torch.is_grad_enabled() else plain(2 * q, k, v)


@pytest.mark.parametrize("name", REPORTS)
def test_gradients_and_half_precision_are_in_every_report(name):
    make, adapter = REPORTS[name]
    report = diagnose(make(), **adapter)
    notes = [note.text for note in report.notes]
    said = "\n".join([words_of(report, "holds", "unchecked"), *notes])
    assert "half precision" in said or "alf-precision" in said
    failures = " ".join(failure.name for failure in report.failures)
    assert "gradients" in said + failures
    if name.startswith("module"):
        assert "gradients to the projections" in said


def far_from_float16(q, k, v, mask=None):
    """Rounded once more where there is a mask."""
    scores = scores_of(q.float(), k.float()) if q.dtype != torch.float64 else scores_of(q, k)
    if mask is not None:
        scores = scores.to(q.dtype).masked_fill(~mask, -math.inf)
    return (scores.softmax(-1).to(v.dtype)) @ v


def test_half_precision_has_one_limit_with_a_mask_and_without():
    report = diagnose(far_from_float16, mask="attend")
    assert report.ok, report
    (note,) = (note for note in report.notes if note.mistake == "not_float32_inside")
    assert "in float16 with a mask" in note.text
    assert not any("half precision" in text for text in report.holds)


class Coarse(Separate):
    def attend(self, q, k, v):
        fine = q.dtype != torch.bfloat16
        return plain(q, k, v if fine else v.round())


def test_a_module_that_is_coarse_in_half_precision():
    assert any("half precision: the error" in text for text in diagnose(Separate()).holds)
    report = diagnose(Coarse())
    assert report.ok, report
    assert any("In bfloat16 the largest error is" in note.text for note in report.notes)


def by_requirement(q, k, v):
    return plain(q, k, v) if not q.requires_grad else plain(q, k, 1.5 * v)


@pytest.mark.parametrize("fn", [by_mode, by_requirement])
def test_an_output_that_depends_on_gradients_is_called_so(fn):
    (failure,) = diagnose(fn).failures
    assert failure.name == "the output depends on whether gradients are recorded"
    assert "The output is right, but" not in failure.likely


def test_gradients_are_asked_for_where_the_caller_has_none():
    with torch.no_grad():
        report = diagnose(Separate())
    assert report.ok, report
    assert "gradients to the projections" in words_of(report, "holds")


# ---------------------------------------------------------------- what was compared


def test_rows_without_keys_are_not_counted():
    def mine(q, k, v):
        assert q.shape[-2] == k.shape[-2]
        return causal(q, k, v)

    text = next(text for text in diagnose(mine, causal=True).holds if "equal to" in text)
    n = sum(a.isdigit() and int(a) for a in text.split())
    assert text == f"equal to the reference in {n} different calls"
    more = next(text for text in diagnose(causal, causal=True).holds if "equal to" in text)
    assert more.endswith("different calls, rows that may attend to nothing left out")


class ZeroesPadding(Separate):
    def forward(self, x, mask=None):
        self.mask = mask
        return super().forward(x) * (1.0 if mask is None else mask[..., None])

    def attend(self, q, k, v):
        closed = None if self.mask is None else self.mask[:, None, None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=closed)


def test_padded_positions_that_are_not_compared_are_said():
    report = diagnose(ZeroesPadding(), mask="attend", mask_shape="BS")
    assert report.ok, report
    assert any("padded positions left out" in text for text in report.holds)


# ---------------------------------------------------------------- RoPE that nobody mentioned


class Rotary(Separate):
    """Halves, or neighbours; the queries are not scaled if ``scaled`` is not."""

    def __init__(self, base, pairing="half", scaled=True, width=24):
        super().__init__(width)
        self.base, self.pairing, self.scaled = base, pairing, scaled

    def turned(self, x):
        T, d = x.shape[-2:]
        angles = torch.arange(T)[:, None] / self.base ** (torch.arange(0, d, 2) / d)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        if self.pairing == "half":
            a, b = x.chunk(2, dim=-1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)

    def attend(self, q, k, v):
        q, k = self.turned(q), self.turned(k)
        return plain(q if self.scaled else q * q.shape[-1] ** 0.5, k, v)


@pytest.mark.parametrize("base", [10_000.0, 500_000.0, 1_000_000.0, 100_000.0, 160_000.0])
@pytest.mark.parametrize("pairing", ["half", "neighbours"])
def test_usual_bases_are_tried_and_said(base, pairing):
    report = diagnose(Rotary(base, pairing))
    assert report.ok, report
    words = {"half": "halves", "neighbours": "neighbours"}[pairing]
    meant = f"it is meant to have RoPE inside, with base {base:.0f}, pairing {words}"
    assert report.assumed == [meant]


@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
def test_a_mistake_beside_rope_that_nobody_mentioned(base):
    report = diagnose(Rotary(base, scaled=False))
    assert report.mistakes == ["scale_missing"]
    assert (
        f"it is meant to have RoPE inside, with base {base:.0f}, pairing halves" in report.assumed
    )


def test_a_base_that_nobody_uses_is_asked_for():
    (failure,) = diagnose(Rotary(777.0)).failures
    assert failure.mistake is None
    assert "no usual base fits; if there is, say rope_base=" in failure.likely
    assert diagnose(Rotary(777.0), rope_base=777.0).ok


# ---------------------------------------------------------------- dropout in training


class Dropping(Separate):
    def __init__(self, where, heads=3):
        super().__init__(heads=heads)
        self.where, self.drop = where, nn.Dropout(0.3)

    def dropped(self, name, x):
        return self.drop(x) if name == self.where else x

    def attend(self, q, k, v):
        scores = self.dropped("raw scores", q @ k.mT) / math.sqrt(q.shape[-1])
        weights = self.dropped("scores", scores).softmax(-1)
        weights = self.dropped("squares", self.dropped("weights", weights) ** 0.5) ** 2
        return self.dropped("output", weights @ v)


class ByHead(Dropping):
    def attend(self, q, k, v):
        parts = zip(*(t.split(1, dim=1) for t in (q, k, v)), strict=True)
        outs = [super(ByHead, self).attend(*(t[:, 0] for t in three)) for three in parts]
        return torch.stack(outs, dim=1)


@pytest.mark.parametrize("kind", [Dropping, ByHead])
@pytest.mark.parametrize("where", ["scores", "raw scores"])
def test_dropout_of_scores_is_named(kind, where):
    (failure,) = diagnose(kind(where)).failures
    assert failure.mistake == "dropout_before_softmax"
    assert ("times 1/sqrt(d_k)" in failure.example) == (where == "raw scores")


@pytest.mark.parametrize("kind", [Dropping, ByHead])
def test_dropout_of_weights_is_right(kind):
    report = diagnose(kind("weights"))
    assert report.ok, report
    assert "in training, dropout is applied to the weights" in report.holds


def test_dropout_of_something_else_is_no_mistake():
    report = diagnose(Dropping("output"))
    assert report.ok, report
    assert "dropout" not in words_of(report, "unchecked")
    assert "not recognised" in words_of(diagnose(Dropping("squares")), "unchecked")


def test_the_dropout_of_a_function_is_not_checked():
    def mine(q, k, v, dropout_p=0.0):
        return plain(F.dropout(q, dropout_p), k, v)

    assert "dropout: dropout_p was left at its default" in diagnose(mine).unchecked
    held = diagnose(mine, options={"dropout_p": 0.0})
    assert "dropout" not in words_of(held, "unchecked")


# ---------------------------------------------------------------- fills that close too little


def filled(number):
    def mine(q, k, v, mask=None):
        scores = scores_of(q, k)
        scores = scores if mask is None else scores.masked_fill(~mask, number)
        return scores.softmax(-1) @ v

    return mine


def causally_filled(number):
    return lambda q, k, v: scores_of(q, k).masked_fill(triangle(q, k), number).softmax(-1) @ v


class LearnedFill(nn.Module):
    def __init__(self):
        super().__init__()
        self.fill = nn.Parameter(torch.tensor(-6.7))

    def forward(self, q, k, v, mask=None):
        scores = scores_of(q, k)
        scores = scores if mask is None else torch.where(mask, scores, self.fill.to(scores.dtype))
        return scores.softmax(-1) @ v


@pytest.mark.parametrize("number", [-20.0, -50.0, -100.0, -1e3])
def test_usual_fills_that_are_too_small_are_named(number):
    assert diagnose(filled(number), mask="attend").mistakes == ["mask_small_fill"]
    assert diagnose(filled(number)).mistakes == ["mask_small_fill"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: filled(-7.3), {"mask": "attend"}),
        (lambda: filled(-30.0), {"mask": "attend"}),
        (lambda: filled(-41.0), {}),
        (LearnedFill, {"mask": "attend"}),
        (lambda: causally_filled(-7.3), {"causal": True}),
        (lambda: causally_filled(-30.0), {"causal": True}),
        (lambda: causally_filled(-200.0), {}),
    ],
)
def test_other_fills_are_shown_to_leak_in_numbers(make, said):
    (failure,) = diagnose(make(), **said).failures
    assert failure.mistake == "closed_key_reaches_output"
    assert "is closed to query" in failure.example
    before, after = (line.partition("[")[2] for line in failure.example.splitlines()[1:])
    assert before != after


@pytest.mark.parametrize("number", [-1e4, -1e9, torch.finfo(torch.float32).min])
def test_large_fills_are_right(number):
    assert set(diagnose(filled(number)).mistakes) <= {"mask_fill_overflows_half"}
    assert set(diagnose(causally_filled(number)).mistakes) <= {"mask_fill_overflows_half"}


class FilledLayer(Separate):
    def __init__(self, number):
        super().__init__()
        self.number = number

    def forward(self, x, mask=None):
        self.mask = mask
        return super().forward(x)

    def attend(self, q, k, v):
        return filled(self.number)(q, k, v, self.mask)


@pytest.mark.parametrize("number", [-50.0, -100.0])
def test_small_fills_of_a_module(number):
    assert diagnose(FilledLayer(number), mask="attend").mistakes == ["mask_small_fill"]
    assert diagnose(FilledLayer(-1e4), mask="attend").ok


REQUIRED = (
    lambda q, k, v, mask: scores_of(q, k).masked_fill(~mask, -1e9).softmax(-1) @ v,
    lambda q, k, v, mask=None: filled(-1e9)(q, k, v, mask),
    lambda q, k, v: causally_filled(-1e9)(q, k, v),
)


@pytest.mark.parametrize("fn", REQUIRED)
def test_a_fill_that_overflows_has_its_hint(fn):
    (failure,) = diagnose(fn).failures
    assert failure.mistake == "mask_fill_overflows_half"
    assert "In float16" in failure.example


# ---------------------------------------------------------------- methods, flags and packed weights


class Core(Separate):
    """Methods of a module that are not the module."""

    def __init__(self, width=12, heads=3):
        super().__init__(width, heads)
        self.scale = (width // heads) ** -0.5

    def own_scale(self, q, k, v):
        return (q @ k.mT * self.scale).softmax(-1) @ v

    def unscaled(self, q, k, v):
        return (q @ k.mT).softmax(-1) @ v

    def projecting(self, q, k, v):
        parts = (self.q_proj(q), self.k_proj(k), self.v_proj(v))
        out = plain(*map(self.heads_of, parts))
        return self.merged(out)

    def last_only(self, q, k, v):
        return self.merged(plain(q, k, v))


@pytest.mark.parametrize("name", ["attend", "own_scale"])
def test_a_method_that_uses_no_projection_is_a_function(name):
    report = diagnose(getattr(Core(), name))
    assert report.ok, report
    assert f"{name} does not use the module's projections" in report.assumed[0]


def test_a_method_is_examined_as_what_it_is():
    assert diagnose(Core().unscaled).mistakes == ["scale_missing"]
    report = diagnose(Core().projecting)
    assert report.ok, report
    assert "does not use" not in words_of(report, "assumed")
    with pytest.raises(ValueError, match="last_only applies the module's output projection"):
        diagnose(Core().last_only)


def with_flag(q, k, v, is_causal=False):
    return causal(q, k, v) if is_causal else plain(q, k, v)


def test_a_flag_that_is_passed_on_is_said():
    assert "is_causal=True is passed in each call" in diagnose(with_flag, causal=True).assumed
    assert "is_causal" not in words_of(diagnose(with_flag), "assumed")
    said = diagnose(with_flag, causal=True, options={"is_causal": True})
    assert said.ok
    assert "is_causal" not in words_of(said, "assumed")


class PackedLayer(Separate):
    order = "qkv"

    def __init__(self, name="qkv", by_head=False, width=12, heads=3):
        super().__init__(width, heads)
        del self.q_proj, self.k_proj, self.v_proj
        self.name, self.by_head = name, by_head
        self.add_module(name, nn.Linear(width, 3 * width))

    def forward(self, x):
        packed = getattr(self, self.name)(x)
        if self.by_head:
            heads = packed.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            parts = heads.chunk(3, dim=-1)
        else:
            parts = [self.heads_of(part) for part in packed.chunk(3, dim=-1)]
        given = dict(zip(self.order, parts, strict=True))
        out = self.attend(*(given[role] for role in "qkv"))
        return self.merged(out)


class KeysFirst(PackedLayer):
    order = "kqv"


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (PackedLayer(), "the rows of qkv.weight are those of queries, keys, values, in this order"),
        (PackedLayer(by_head=True), "rows of qkv.weight are those of queries, keys, values, head"),
        (KeysFirst("kqv"), "the rows of kqv.weight are those of keys, queries, values, in this"),
    ],
)
def test_the_order_of_packed_weights_is_said(layer, words):
    report = diagnose(layer)
    assert report.ok, report
    assert words in words_of(report, "assumed")


def test_another_order_is_a_mistake_beside_what_was_assumed():
    report = diagnose(KeysFirst())
    assert report.mistakes == ["query_key_swapped"]
    assert "queries, keys, values, in this order" in words_of(report, "assumed")
    assert "in this order" not in words_of(diagnose(nn.MultiheadAttention(12, 3)), "assumed")


@pytest.mark.parametrize("masked", [False, True])
def test_a_third_example_is_compared_in_most_calls(masked):
    """Wrong from the third example on, for 5 positions only."""

    def mine(q, k, v, mask=None):
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        if q.shape[-2] == 5 and masked == (mask is not None):
            out[2:] = out[2:] * 1.5
        return out

    (failure,) = diagnose(mine, mask="attend").failures
    assert failure.mistake is None


# ---------------------------------------------------------------- what is kept


STALE = []
TABLE = {"mask": None}


def kept_mask(T, S):
    if TABLE["mask"] is None:
        TABLE["mask"] = torch.ones(T, S, dtype=torch.bool).triu(S - T + 1)
    return TABLE["mask"]


def in_a_list(q, k, v):
    if not STALE:
        STALE.append(triangle(q, k))
    return scores_of(q, k).masked_fill(STALE[0], -math.inf).softmax(-1) @ v


def in_a_table(q, k, v):
    mask, scores = kept_mask(q.shape[-2], k.shape[-2]), scores_of(q, k)
    T, S = (min(n) for n in zip(mask.shape, scores.shape[-2:], strict=True))
    closed = torch.zeros(scores.shape[-2:], dtype=torch.bool)
    closed[:T, :S] = mask[:T, :S]
    return scores.masked_fill(closed, -math.inf).softmax(-1) @ v


@pytest.mark.parametrize("fn", [in_a_list, in_a_table])
def test_what_a_global_name_keeps_is_found_and_left_alone(fn):
    assert diagnose(fn, causal=True, layout="BHTd").mistakes == ["causal_cached_length"]
    assert not STALE
    assert TABLE == {"mask": None}


LOG = []


def counted(q, k, v):
    LOG.append(len(LOG))
    return plain(q, k, v)


def test_a_global_name_that_changes_nothing_is_no_mistake():
    report = diagnose(counted)
    assert report.ok, report
    assert not LOG


class Stale(Separate):
    """The triangle of the first call; beyond it everything is open."""

    def __init__(self):
        super().__init__()
        self.closed = None

    def attend(self, q, k, v):
        T = q.shape[-2]
        if self.closed is None:
            self.closed = torch.ones(T, T, dtype=torch.bool).triu(1)
        closed, n = torch.zeros(T, T, dtype=torch.bool), min(T, len(self.closed))
        closed[:n, :n] = self.closed[:n, :n]
        return scores_of(q, k).masked_fill(closed, -math.inf).softmax(-1) @ v


@pytest.mark.parametrize("length", [0, 2, 3, 4, 8, 16])
def test_a_mask_that_is_too_short_is_named(length):
    layer = Stale()
    if length:  # it was called before
        layer(torch.randn(1, length, 12))
    assert diagnose(layer, causal=True).mistakes == ["causal_cached_length"]


def more_examples():
    seen = []

    def mine(q, k, v):
        seen.append(q.shape[0])
        return plain(q * (1.0 if q.shape[0] <= seen[0] else 2.0), k, v)

    return mine


def test_what_depends_on_earlier_examples_is_not_called_a_length():
    report = diagnose(more_examples(), causal=False)
    assert report.mistakes == ["state_between_calls"]
    assert "5 examples" in report.failures[0].example


def first_keys_alone(q, k, v):
    closed = torch.arange(k.shape[-2]) >= 4
    return scores_of(q, k).masked_fill(triangle(q, k) | closed, -math.inf).softmax(-1) @ v


def test_the_first_keys_are_no_window():
    assert "window" not in words_of(diagnose(first_keys_alone), "assumed")


def not_a_number(q, k, v, mask=None):
    scores = scores_of(q, k)
    if mask is not None:
        scores = scores + (~mask).to(q.dtype) * torch.tensor(-1e9).to(q.dtype)
    return scores.softmax(-1) @ v


def test_nan_in_half_precision_is_said():
    (failure,) = diagnose(not_a_number).failures
    assert "In float16 with a mask some rows that may attend to something" in failure.likely


@pytest.mark.parametrize("options", [{"kdim": 6, "vdim": 6}, {"bias": False}, {"dropout": 0.3}])
def test_layers_of_torch_are_right(options):
    torch.manual_seed(1)
    report = diagnose(nn.MultiheadAttention(12, 3, batch_first=True, **options))
    assert report.ok, report


class Normed(Separate):
    """Norms of queries and keys, whose gains have no gradient."""

    def __init__(self, detached=""):
        super().__init__()
        self.q_norm, self.k_norm = nn.RMSNorm(4, eps=1e-6), nn.RMSNorm(4, eps=1e-6)
        self.detached = detached

    def normed(self, norm, x):
        gain = norm.weight.detach() if self.detached else norm.weight
        return F.rms_norm(x, (4,), gain, norm.eps)

    def attend(self, q, k, v):
        return plain(self.normed(self.q_norm, q), self.normed(self.k_norm, k), v)


def test_gains_of_norms_have_gradients_too():
    assert diagnose(Normed(), qk_norm="rms").ok
    (failure,) = diagnose(Normed("all"), qk_norm="rms").failures
    assert failure.mistake == "gradient_missing_projection"
    assert "gradient to the gain of the norm of keys" in failure.example


class Stubborn(Separate):
    def __deepcopy__(self, memo):
        raise RuntimeError("no")


def test_what_cannot_be_copied_is_not_checked_and_stays():
    layer = Stubborn()
    before = {name: p.clone() for name, p in layer.named_parameters()}
    report = diagnose(layer)
    assert report.ok, report
    parts = "half precision, other dtypes; gradients to the projections"
    assert f"{parts}: the module cannot be copied" in report.unchecked
    assert all(torch.equal(p, before[name]) for name, p in layer.named_parameters())


# ---------------------------------------------------------------- what only the author can say


def closes_where_true(q, k, v, mask=None):
    scores = scores_of(q, k)
    return (scores if mask is None else scores.masked_fill(mask, -math.inf)).softmax(-1) @ v


@pytest.mark.parametrize(
    ("fn", "guess"), [(closes_where_true, "mask='attend'"), (causal, "causal")]
)
def test_nothing_is_right_without_what_was_guessed(fn, guess):
    report = diagnose(fn)
    assert report.ok, report
    assert str(report).startswith(
        f"{fn.__name__}: no mistake found, if you mean what is assumed below."
    )
    assert any(guess in text for text in report.assumed)
    said = {"mask": "blocked"} if fn is closes_where_true else {"causal": True}
    assert "if you mean" not in str(diagnose(fn, **said))


def test_what_was_guessed_and_is_not_meant_is_found_when_it_is_said():
    assert diagnose(closes_where_true, mask="attend").mistakes == ["mask_inverted"]


def test_a_function_that_cannot_run_is_told_so_and_not_asked_for_layouts():
    def forgot(q, k, v):
        return (q @ k.mT / maths.sqrt(q.shape[-1])).softmax(-1) @ v  # noqa: F821

    words = r"^fn fails whatever it is given, mend that first: NameError: name 'maths'"
    with pytest.raises(ValueError, match=words):
        diagnose(forgot)
