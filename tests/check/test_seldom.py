"""What people seldom write, and what is then easily passed in silence, beside what is right."""

import functools

import pytest
import torch
import torch.nn.functional as F
from subjects import WITHOUT, Packed, Separate, check_report, row, scores_of, sdpa
from tables import raises_for_each
from torch import nn

from attn_check import diagnose, search
from attn_check.mistakes import MISTAKES
from attn_check.reference import Case, Intent, compute
from attn_check.search import agrees, allowed, by_size, explain, right
from attn_check.subject import Answer


def scaled(q, k, v, scale):
    return (q @ k.mT * scale).softmax(-1) @ v


def at_first(q, k, v, scale, seen=[]):  # noqa: B006
    seen.append(scale)
    return scaled(q, k, v, scale if len(seen) == 1 else 1.0)


def within_three(q, k, v):
    T, S = q.shape[-2], k.shape[-2]
    back = torch.arange(T)[:, None] + S - T - torch.arange(S)
    return sdpa(q, k, v, (back >= 0) & (back < 3))


def doubled(axis, size):
    """The output twice, one after the other, where the queries have this length."""

    def fn(q, k, v):
        out = scores_of(q, k).softmax(-1) @ v
        return torch.cat([out, out], dim=axis) if q.shape[-2] == size else out

    return fn


class WidthAlone(Separate):
    """The width of a head is all that tells how many there are."""

    def __init__(self):
        super().__init__(width=20, heads=5)
        del self.num_heads, self.num_kv_heads
        self.head_dim = self.d


class NormedTogether(Separate):
    """As OLMo 2: one norm of the queries of all heads, and one of the keys."""

    def __init__(self, normed="qk"):
        super().__init__()
        self.q_norm, self.k_norm, self.normed = nn.RMSNorm(12), nn.RMSNorm(12), normed

    def forward(self, x):
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        q = self.q_norm(q) if "q" in self.normed else q
        k = self.k_norm(k) if "k" in self.normed else k
        out = F.scaled_dot_product_attention(*map(self.heads_of, (q, k, v)))
        return self.out_proj(out.transpose(1, 2).flatten(-2))


class Turned(Packed):
    """The rows of its packed matrix in another order: cut so, two axes exchanged."""

    def __init__(self, cut, axes=(-1, -1), **options):
        super().__init__(**options)
        self.cut, self.axes = cut, axes

    def forward(self, x):
        several = self.qkv(x).unflatten(-1, self.cut).transpose(*self.axes)  # (B, T, H_kv, ·, 4)
        k, v = (
            several[..., i, :].repeat_interleave(4 // several.shape[2], dim=2) for i in (-2, -1)
        )
        parts = (part.transpose(1, 2) for part in (several[..., :-2, :].flatten(2, 3), k, v))
        return self.proj(self.attend(*parts).transpose(1, 2).flatten(2))


class AroundNorm(Separate):
    """Its input is normed, and added to its output."""

    def __init__(self, detached=False):
        super().__init__()
        self.norm, self.detached = nn.LayerNorm(12), detached

    def forward(self, x):
        q, k, v = self.parts(self.norm(x))
        return x + self.merged(self.attend(q, k.detach() if self.detached else k, v))


def in_place(q, k, v):
    q /= q.shape[-1] ** 0.5
    return torch.bmm(torch.bmm(q, k.mT).softmax(-1), v)


def by_memory(q, k, v):
    return scaled(q.as_strided(q.shape, (q[0].numel(), q.shape[-1], 1)), k, v, q.shape[-1] ** -0.5)


def never_two(q, k, v):
    assert q.shape[::2] != (2, 5)
    return scaled(q, k, v, q.shape[-1] ** -0.5)


def ahead(first):
    """Causal, with the first query at this position; None: the last of the keys are the queries."""

    def fn(q, k, v):
        T, S = q.shape[-2], k.shape[-2]
        return sdpa(q, k, v, torch.ones(T, S).tril(S - T if first is None else first).bool())

    return fn


def rounded(what, dtype):
    """One of its numbers in half precision, and all else in that of the inputs."""

    def fn(q, k, v):
        def of(name, x):
            return x.to(dtype).to(x.dtype) if name == what else x

        scores = of("scores", scores_of(of("queries", q), k))
        return of("output", of("weights", scores.softmax(-1)) @ v)

    return fn


def inverted(q, k, v, mask=None):
    """No −inf in a closed cell: a row of such cells is one of equal weights."""
    scores = q @ k.mT
    return (scores if mask is None else scores.masked_fill(mask, -1e9)).softmax(-1) @ v


def itself_excluded(q, k, v):
    T, S = q.shape[-2], k.shape[-2]
    later = torch.ones(T, S).triu(S - T).bool()
    return (q @ k.mT / q.shape[-1]).masked_fill(later, -1e9).softmax(-1) @ v


def half_products(q, k, v):
    scores = (q.bfloat16() @ k.bfloat16().mT).to(q.dtype)
    return (scores / q.shape[-1] ** 0.5).softmax(-1) @ v


def half_values(q, k, v):
    return (scores_of(q, k).softmax(-1).half() @ v.half()).to(q.dtype)


def over_examples_and_heads(q, k, v):
    scores = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT) / q.shape[-1] ** 0.5
    return torch.bmm(scores.softmax(0), v.flatten(0, 1)).unflatten(0, q.shape[:2])


def merged_by_channels(q, k, v):
    q, k, v = (x.unflatten(-1, (4, -1)).transpose(1, 2) for x in (q, k, v))
    out = scores_of(q, k).softmax(-1) @ v
    return out.transpose(2, 3).reshape(len(out), out.shape[2], -1)


def of_one_width(q, k, v):
    assert q.shape[-1] == 8
    return scores_of(q, k).softmax(-1) @ v


class InOneProduct(nn.Module):
    """Queries, keys and values in one product, of which rows are cut without a transpose."""

    def __init__(self, scale, *, cut=False):
        super().__init__()
        self.qkv, self.scale, self.cut, self.num_heads = nn.Linear(32, 96), scale, cut, 4

    def forward(self, x):
        B, T, _ = x.shape
        parts = self.qkv(x).reshape(B, T, 3, 4, 8).permute(2, 0, 3, 1, 4)
        q, k, v = self.qkv(x).reshape(B, 3, 4, T, 8).unbind(1) if self.cut else parts
        return ((q @ k.mT * self.scale).softmax(-1) @ v).transpose(1, 2).flatten(2)


def unused(q, k, v, mask):  # and yet it must be passed
    return sdpa(q, k, v)


def of_no_mask(q, k, v, mask):
    assert mask is None
    return sdpa(q, k, v)


def thrown_away(q, k, v, mask):
    scores = scores_of(q, k)
    scores.masked_fill(mask == 0, -1e4)
    return scores.softmax(-1) @ v


def cached(flag):
    """A step whose causal mask is what the flag says of the number of queries."""

    def step(q, k, v, past):
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        return F.scaled_dot_product_attention(q, k, v, is_causal=flag(q.shape[2])), (k, v)

    return step


FIXED = r"Not checked .*heads of 16 channels \(pass d_k= if one width is meant\): Assert"
PACKED, KEPT = "queries, keys, values, {} by\\b", "arguments are not changed"
REPORTED = {
    "in a partial": row(functools.partial(scaled, scale=8**-0.5), [], d_k=8),
    "for one width": row(
        functools.partial(scaled, scale=8**-0.5),
        ["scale_constant"],
        r"heads of 16 channels \(pass d_k= if one width is meant",
    ),
    "of one width": row(of_one_width, [], FIXED),
    "wrong in a partial": row(functools.partial(scaled, scale=1.0), ["scale_missing"]),
    "a state in a partial": row(
        functools.partial(at_first, scale=8**-0.5), ["state_between_calls"], d_k=8
    ),
    "a window alone": row(within_three, [], window=3),
    "a narrower window alone": row(within_three, ["window_one_less"], window=4),
    "twice for one query": row(doubled(-2, 1), ["size_of_one"]),
    "twice as wide at one length": row(doubled(-1, 70), [None]),
    "the width of a head alone": row(WidthAlone(), []),
    "packed group by group": row(Turned((2, 4, 4), kv_heads="n_kv"), [], PACKED.format("head")),
    "packed channel by channel": row(Turned((4, 3, 4), (-1, -3)), [], PACKED.format("channel")),
    "packed by both": row(Turned((4, 4, 3), (-1, -2)), [], PACKED.format("head by head, channel")),
    "in place, without examples": row(in_place, ["inplace_arguments"], WITHOUT.format(KEPT)),
    "arguments of calls that raise": row(never_two, [], WITHOUT.format(KEPT)),
    "in an order of memory, without examples": row(by_memory, ["not_contiguous"], KEPT),
    "a residual": row(AroundNorm(), [], "equal to the reference", "half .* no NaN", prenorm="norm"),
    "a residual, detached": row(AroundNorm(detached=True), ["gradient_detached_k"], prenorm="norm"),
    "a residual, and none meant": row(AroundNorm(), [None]),
    "one ahead from the top left": row(ahead(1), ["causal_sees_one_ahead"], causal=True),
    "a window that nothing reaches": row(
        ahead(None), [], "more than 133 keys, and so the window", causal=True, window=133
    ),
    "a window that is reached": row(ahead(None), ["window_ignored"], causal=True, window=100),
    "half the digits of scores": row(rounded("scores", torch.half), ["softmax_low_precision"]),
    "fewer digits of scores": row(rounded("scores", torch.bfloat16), ["softmax_low_precision"]),
    "half the digits of weights": row(rounded("weights", torch.half), ["softmax_low_precision"]),
    "fewer digits of queries": row(rounded("queries", torch.bfloat16), [None]),
    "half the digits of an output": row(rounded("output", torch.half), [None]),
    "a product of half precision": row(half_products, ["softmax_low_precision"]),
    "weights and values in half precision": row(half_values, ["softmax_low_precision"]),
    "over examples and heads": row(over_examples_and_heads, ["softmax_over_batch"]),
    "by the number of queries": row(
        lambda q, k, v: scaled(q, k, v, q.shape[-2] ** -0.5), ["scale_by_length"]
    ),
    "by as many heads as channels are usual": row(
        lambda q, k, v: scaled(q, k, v, q.shape[1] ** -0.5), ["scale_by_num_heads"], heads=8
    ),
    "a needed mask that is unused": row(unused, ["mask_ignored"]),
    "the same, by its place": row(unused, ["mask_ignored"], arguments="q, k, v, mask"),
    "a needed mask that is no tensor": row(of_no_mask, [], "no mask of a known shape"),
    "a needed mask that is thrown away": row(thrown_away, ["mask_ignored"], mask_means="attend"),
    "causal, but for one query": row(
        ahead(None), ["cache_mask"], "more than 7 pos", causal=True, step=cached(lambda T: T > 1)
    ),
    "causal as a whole alone": row(
        ahead(None), ["cache_mask"], causal=True, step=cached(lambda T: False)
    ),
    "packed, and cut by a view": row(
        InOneProduct(8**-0.5, cut=True), ["heads_split_without_transpose"]
    ),
    "by d_k, not by a constant": row(
        InOneProduct(0.125), ["scale_by_d_k"], "root, or the scale is applied"
    ),
    "by a constant": row(InOneProduct(0.1), ["scale_constant"]),
    "merged by channels": row(merged_by_channels, ["heads_merged_without_transpose"], heads=4),
    "inverted, filled, not scaled": row(
        inverted, ["mask_inverted", "scale_missing"], mask_means="attend"
    ),
    "itself excluded, filled, by d_k": row(
        itself_excluded, ["causal_excludes_self", "scale_by_d_k"], causal=True
    ),
    "heads normed together": row(NormedTogether(), []),
    "keys alone normed together": row(NormedTogether("k"), ["qk_norm_missing"], qk_norm="rms"),
}


@pytest.mark.parametrize("name", REPORTED)
def test_one_report(name):
    check_report(*REPORTED[name])


@raises_for_each(
    (lambda q, k, v: {"scores": q @ k.mT, "n": 1}, ValueError, "THd"),
    (lambda q, k, v: (), ValueError, "must return a tensor, .* that starts with one, got tuple"),
)
def test_it_is_refused(fn):
    diagnose(fn)


# ---------------------------------------------------------------- the search, asked by itself


def drawn(B=2, S=3):
    """A call, and the answer that is right."""
    random = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, B, 2, S, 4, dtype=torch.float64, generator=random)
    case = Case("drawn", {"q": q, "k": k, "v": v}, heads=2, kv_heads=2)
    return case, Answer(compute(case, Intent(), None).out)


def test_what_a_hypothesis_agrees_with():
    (case, answer), meant = drawn(), Intent()
    base, torn = right(meant, None), case.with_tensors(q=torch.zeros(2, 2, 3, 9))
    assert agrees((case, answer), base, meant)
    assert agrees((case, Answer(answer.out[:1])), base, meant) is False
    assert agrees((torn, Answer()), base, meant) is True
    assert agrees((torn, answer), base, meant) is False


@pytest.mark.parametrize("expected", [[], [0.0], [torch.nan], [torch.inf], [-torch.inf]])
def test_what_is_allowed_where_nothing_is_finite(expected):
    case, _ = drawn()
    assert allowed(case, torch.tensor(expected)) == case.tolerance


def test_what_tells_something_comes_first():
    pairs = [drawn(B, S) for B, S in ((1, 3), (2, 1), (2, 4), (2, 2))]
    sizes = [(case.batch, case.lengths[1]) for case, _ in sorted(pairs, key=by_size)]
    assert sizes == [(2, 2), (2, 4), (2, 1), (1, 3)]


def test_two_mistakes_change_other_steps_and_one_of_them_empty_rows():
    def one(name, **meant):
        change = MISTAKES[name].forms[0]
        return search.Hypothesis((name,), (0,), change, Intent(**meant), None)

    twice, scale, meant = one("softmax_twice"), one("scale_missing"), Intent(empty="nan")
    both = search._together(meant, twice, scale)
    assert both.mistakes == ("scale_missing", "softmax_twice")
    assert both.change.keys() == {"scale", "softmax"}
    assert search._together(meant, twice, one("softmax_log")) is None
    for name in ("mask_inverted", "softmax_twice"):  # the first of the two names, and the second
        even = one(name, empty="uniform")
        for pair in ((even, scale), (scale, even)):
            assert search._together(meant, *pair).intent == Intent(empty="uniform")
    assert search._together(meant, even, one("scale_missing", empty="zeros")) is None


def test_how_deep_a_search_goes():
    (case, answer), meant = drawn(), Intent()
    found = [explain([(case, answer)], meant, [None], depth=n, tries=range(9)) for n in (1, 2, 3)]
    assert [len(hypotheses) for hypotheses in found] == [1, 0, 0]
    assert found[0][0].mistakes == ()
    wrong = Answer(answer.out.flip(1) * 1.01)  # by no known mistake alone
    for n, rest in ((1, 3), (2, 2), (3, 0)):  # one form explains it, one of two, two together
        left = iter(range(3))
        assert explain([(case, wrong)], meant, [None], depth=n, tries=left) == []
        assert len([*left]) == rest
