"""The machinery of ``diagnose``: reference, forms, adapter, projections, copies, report."""

import math
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import attn_check
import attn_lib
import attn_lib.positions
from attn_check import Report, __main__, assume, diagnose
from attn_check.cases import Draw, masked_cases, plain_cases
from attn_check.conventions import read_arguments, shaped, to_layout
from attn_check.mistakes import FORMS, MISTAKES
from attn_check.projections import read_layer, role_of
from attn_check.quiet import WithoutDropout, copied, make_random, quietly, unchanged
from attn_check.reference import STEPS, Case, Intent, compute
from attn_check.search import agrees, equal, explain, right
from attn_check.stepwise import PIECES, PLANS
from attn_check.subject import Answer, Subject


def drawn(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def case_of(B=2, H=4, T=5, S=7, d_k=6, d_v=3, kv=4, **options):
    q, k, v = drawn(B, H, T, d_k), drawn(B, kv, S, d_k, seed=1), drawn(B, kv, S, d_v, seed=2)
    return Case("drawn", {"q": q, "k": k, "v": v}, heads=H, kv_heads=kv, **options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True},
        {"scale": 0.7},
        {"softcap": 1.5},
        {"causal": True, "softcap": 0.5, "scale": 2.0},
    ],
)
def test_the_formula_is_the_librarys(options):
    mask = torch.rand(2, 5, 7, generator=torch.Generator().manual_seed(3)) < 0.7
    mask[..., 0] = True
    case = case_of(mask=mask)
    out, weights = attn_lib.attention(*case.tensors.values(), mask=mask[:, None], **options)
    run = compute(case, Intent(**options), None)
    torch.testing.assert_close(run.out, out)
    torch.testing.assert_close(run.weights, weights)


def test_the_formula_of_a_layer_is_the_librarys():
    options = {"window": 3, "sinks": True, "rotate": attn_lib.positions.apply_rope}
    options["qk_norm"] = lambda heads, d_k: nn.RMSNorm(d_k, eps=1e-6)
    layer = attn_lib.MultiHeadAttention(16, 4, num_kv_heads=2, **options).double()
    make_random(layer)
    x = drawn(2, 9, 16)
    read = read_layer(layer, heads=None, kv_heads=None, projections=None)[0]
    intent = Intent(causal=True, window=3, rope_base=10_000.0, qk_norm="rms", sinks=layer.sinks)
    out = compute(Case("layer", {"x": x}), intent, read).out
    torch.testing.assert_close(out, layer(x, causal=True))


def subject_of(fn=attn_lib.attention, **options):
    return Subject(fn, "mine", *read_arguments(fn, None), **options)


INTENTS = [
    Intent(),
    Intent(causal=True),
    Intent(causal="top_left"),
    Intent(causal=True, window=3),
    Intent(scale=0.2),
    Intent(softcap=1.5, causal=True),
    Intent(sinks=torch.tensor([0.5, 1.0, -1.0])),
    Intent(rope_base=10_000.0, qk_norm="rms", causal=True),
    Intent(rope_base=10_000.0, qk_norm="l2", rope_pairing="neighbours"),
]


def visible(mistake):
    """Whether a row changes the output of some case of the battery, under some intent."""
    subjects = [subject_of(heads=3)]
    for options in ({"num_kv_heads": 2, "d_v": 3}, {"qk_norm": lambda heads, d_k: nn.RMSNorm(d_k)}):
        layer = attn_lib.MultiHeadAttention(16, 4, **options)
        make_random(layer)
        layers = read_layer(layer, heads=None, kv_heads=None, projections=None)
        subjects.append(subject_of(layer, layers=layers, module=layer))
    subjects.append(subject_of(mask_shape="BS", layout="BTHd", heads=3))
    for subject in subjects:
        for intent in INTENTS:
            if subject.projects and intent.sinks is not None:
                continue
            draw = Draw(subject, intent)
            for case in plain_cases(draw) + masked_cases(draw):
                expected = compute(case, intent, subject.layers[0] if subject.projects else None)
                for change in mistake.forms:
                    try:
                        run = compute(case, intent, expected.layer, change)
                    except (RuntimeError, ValueError, IndexError, TypeError):
                        continue
                    if not equal(run.out, expected.out, case, intent):
                        return True
    return False


@pytest.mark.parametrize("name", [name for name, row in MISTAKES.items() if row.forms])
def test_the_battery_sees_every_variant(name):
    assert visible(MISTAKES[name])


def test_forms_and_words_stand_under_the_same_names():
    assert FORMS.keys() <= MISTAKES.keys()
    assert {step for forms in FORMS.values() for form in forms for step in form} <= STEPS.keys()
    for name, row in MISTAKES.items():
        numbers = range(1, len(row.forms or PLANS.get(name, ())))
        assert {int(number) for number in row.words} <= set(numbers), name
    code = "".join(p.read_text() for p in Path(attn_check.__file__).parent.glob("*.py"))
    properties = MISTAKES.keys() - FORMS.keys() - PLANS.keys()
    assert {name for name in properties if f'"{name}"' not in code} == set()


def test_rows_are_written_alike():
    for name, row in MISTAKES.items():
        assert re.fullmatch(r"[a-z0-9_]+", name)
        assert row.likely[0].isupper(), name
        assert row.likely.endswith("."), name
        assert not row.name.endswith("."), name
        assert row.source.startswith("https://"), name
        assert row.look_for, name
        assert row.repair, name
    assert len({row.likely for row in MISTAKES.values()}) == len(MISTAKES)
    assert len(MISTAKES) >= 45
    assert set(PLANS) <= set(MISTAKES)
    assert sum(PIECES) > max(PIECES) > 1 in PIECES


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("q_proj.weight", "q"),
        ("attn.to_k.weight", "k"),
        ("W_v", "v"),
        ("wo.weight", "out"),
        ("heads.0.query.weight", "q"),
        ("c_attn.weight", "qkv"),
        ("c_proj.weight", "out"),
        ("Wqkv.weight", "qkv"),
        ("in_proj_weight", "qkv"),
        ("to_kv.weight", "kv"),
        ("to_out.0.weight", "out"),
        ("fc_out.weight", "out"),
        ("proj.weight", "out"),
        ("unifyheads.weight", "out"),
        ("ln.weight", None),
    ],
)
def test_roles_are_read_from_names(name, role):
    assert role_of(name) == role


@pytest.mark.parametrize(
    "attribute", ["num_heads", "n_head", "n_heads", "nhead", "heads", "h", "num_attention_heads"]
)
def test_heads_are_read_from_attributes(attribute):
    layer = attn_lib.MultiHeadAttention(12, 3)
    del layer.num_heads, layer.num_kv_heads, layer.d_k
    layer.some = nn.Identity()
    setattr(layer.some, attribute, 3)
    assert read_layer(layer, heads=None, kv_heads=None, projections=None)[0].heads == 3


@pytest.mark.parametrize("attribute", ["n_kv", "n_kv_heads", "num_key_value_heads"])
def test_key_heads_are_read_from_attributes(attribute):
    layer = attn_lib.MultiHeadAttention(16, 4, num_kv_heads=2)
    del layer.num_kv_heads
    setattr(layer, attribute, 2)
    assert read_layer(layer, heads=None, kv_heads=None, projections=None)[0].kv_heads == 2
    delattr(layer, attribute)  # then from the widths
    assert read_layer(layer, heads=None, kv_heads=None, projections=None)[0].kv_heads == 2
    setattr(layer, attribute, 2)
    with pytest.raises(ValueError, match="contradicts"):
        read_layer(layer, heads=None, kv_heads=4, projections=None)


def test_projections_that_are_named_by_hand():
    layer = nn.Module()
    layer.one, layer.two = nn.Linear(6, 18), nn.Linear(6, 6)
    read = read_layer(layer, heads=2, kv_heads=None, projections={"qkv": "one", "out": "two"})
    assert torch.equal(read[0].weights["k"], layer.one.weight[6:12].double())
    with pytest.raises(ValueError, match="there are one"):
        read_layer(layer, heads=2, kv_heads=None, projections={"q": "three"})
    assert read_layer(layer, heads=2, kv_heads=None, projections=None) == []


def test_a_closure_is_copied_with_what_it_remembers():
    seen, layer = [], nn.Linear(2, 2)

    def fn(x):
        seen.append(x)
        return layer(x)

    twin, module = copied(fn, layer)
    twin(torch.ones(2))
    assert not seen
    assert module is not layer
    assert torch.equal(module.weight, layer.weight)
    step, _ = copied(layer.forward, layer)
    assert step.__self__ is not layer


def test_what_cannot_be_copied_stays_as_it_is():
    class Stubborn(nn.Linear):
        def __deepcopy__(self, memo):
            raise RuntimeError("no")

    layer = Stubborn(2, 2)
    assert copied(layer, layer) == (layer, layer)


def test_modes_and_buffers_are_restored():
    layer = nn.BatchNorm1d(3).eval()
    with unchanged(layer):
        layer.train()(torch.randn(5, 3))
    assert not layer.training
    assert torch.equal(layer.running_mean, torch.zeros(3))


def test_every_dropout_is_switched_off():
    x = torch.ones(200)
    q = torch.randn(1, 1, 30, 8)
    layer = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
    with WithoutDropout() as mode:
        assert torch.equal(F.dropout(x), x)
        assert torch.equal(F.dropout(x, 0.3, training=True), x)
        assert torch.equal(nn.Dropout(0.5)(x), x)
        assert torch.equal(torch.dropout(x, 0.5, True), x)
        whole = F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
        assert torch.equal(whole, F.scaled_dot_product_attention(q, q, q, None, 0.5))
        assert torch.equal(layer(q[0], q[0], q[0])[0], layer(q[0], q[0], q[0])[0])
    assert len(mode.dropped) == 4
    torch.testing.assert_close(whole, F.scaled_dot_product_attention(q, q, q))


def test_random_states_are_restored(capsys):
    before = torch.get_rng_state()
    with quietly():
        torch.rand(3)
        print("nothing")
    assert torch.equal(torch.get_rng_state(), before)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("layout", ["BHTd", "BTHd", "TBHd", "HTd", "THd", "BTd", "TBd", "Td"])
def test_every_layout_is_found_or_can_be_said(layout):
    def mine(q, k, v):
        letters = layout if "H" in layout else layout.replace("T", "HT")
        letters = letters if "B" in letters else "B" + letters
        back = ["BHTd".index(c) for c in letters]
        q, k, v = (t.unsqueeze(layout.index("T")) if "H" not in layout else t for t in (q, k, v))
        q, k, v = (t[None] if "B" not in layout else t for t in (q, k, v))
        q, k, v = (t.permute([letters.index(c) for c in "BHTd"]) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v).permute(back)
        out = out[0] if "B" not in layout else out
        return out.squeeze(layout.index("T")) if "H" not in layout else out

    assert diagnose(mine, layout=layout).failures == []


def test_masks_are_said_in_every_shape():
    mask = torch.ones(2, 3, 4, dtype=torch.bool)
    mask[1, :, 2] = False
    shapes = {"B1TS": (2, 1, 3, 4), "BTS": (2, 3, 4), "BS": (2, 4), "B11S": (2, 1, 1, 4)}
    for shape, expected in shapes.items():
        assert shaped(mask, shape).shape == expected
    with pytest.raises(ValueError, match="all examples"):
        shaped(mask, "TS")
    mask[0, 1, 1] = False
    with pytest.raises(ValueError, match="all queries"):
        shaped(mask, "BS")
    assert to_layout(drawn(2, 3, 5, 4), "THd"[:0] + "BTHd", False, 3).shape == (2, 5, 3, 4)


def plain(q, k, v, mask=None):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(dim=-1) @ v


@pytest.mark.parametrize("polarity", ["attend", "blocked", "additive"])
@pytest.mark.parametrize("shape", ["B1TS", "BTS", "BS", "TS"])
def test_the_kind_of_mask_is_found(polarity, shape):
    def mine(q, k, v, mask=None):
        if mask is None:
            return plain(q, k, v)
        assert mask.dim() == len(shape)
        mask = ~mask if polarity == "blocked" else mask
        if shape not in ("B1TS", "TS"):
            mask = mask[:, None] if shape == "BTS" else mask[:, None, None]
        if polarity == "additive":
            return (q @ k.mT / math.sqrt(q.shape[-1]) + mask).softmax(dim=-1) @ v
        return plain(q, k, v, mask)

    subject = subject_of(mine)
    found = assume.find_mask(subject, Intent(), polarity=None, shape=None)
    assert found == (polarity, shape)


@pytest.mark.parametrize("polarity", ["attend", "blocked", "additive"])
def test_a_mask_that_is_needed_in_every_call(polarity):
    def mine(q, k, v, mask):
        if polarity == "additive":
            return (q @ k.mT / math.sqrt(q.shape[-1]) + mask).softmax(dim=-1) @ v
        return plain(q, k, v, ~mask if polarity == "blocked" else mask.clone())

    report = diagnose(mine)
    assert report.failures == []
    assert any("needs a mask" in text for text in report.assumed)
    assert report.unchecked == ["more than 133 keys"]
    with pytest.raises(ValueError, match=r"with a mask or without one.*ZeroDivisionError"):
        diagnose(lambda q, k, v, mask: 1 / 0)


@pytest.mark.parametrize(
    ("empty", "words"), [("nan", "NaN"), ("uniform", "equally"), ("other", "neither")]
)
def test_empty_rows_are_a_note(empty, words):
    def mine(q, k, v, mask=None):
        out = plain(q, k, v, mask)
        if mask is not None and empty != "nan":
            v = (
                v.mean(dim=-2, keepdim=True)
                if empty == "uniform"
                else torch.ones_like(v[..., :1, :])
            )
            out = torch.where(mask.any(dim=-1, keepdim=True), out, v)
        return out

    report = diagnose(mine)
    assert report.failures == []
    assert any(words in note.text for note in report.notes)


def test_two_mistakes_are_two_failures():
    def mine(q, k, v, mask=None):
        scores = q @ k.mT
        if mask is not None:
            scores = scores.masked_fill(mask, -math.inf)
        return scores.softmax(dim=-1) @ v

    report = diagnose(mine, mask_means="attend")
    assert sorted(report.mistakes) == ["mask_inverted", "scale_missing"]
    assert all("actual" in failure.example for failure in report.failures)


def test_two_mistakes_that_act_together():
    def mine(q, k, v):
        return (v.mT @ (q @ k.mT).softmax(dim=-2).mT).mT

    assert sorted(diagnose(mine).mistakes) == ["scale_missing", "softmax_over_queries"]


def test_a_mistake_must_fit_everywhere():
    case = case_of(S=5, d_v=6)
    wrong = compute(case, Intent(), None, MISTAKES["scale_missing"].forms[0]).out
    other = case_of(T=3, S=5, d_v=6)
    answers = [(case, Answer(wrong)), (other, Answer(torch.zeros(2, 4, 3, 6).double()))]
    assert explain(answers[:1], Intent(), [None], depth=1)[0].mistakes == ("scale_missing",)
    assert explain(answers, Intent(), [None], depth=1) == []
    assert agrees(Answer(raised="no"), case, right(Intent(), None), Intent())


def test_sizes_that_make_mistakes_alike_are_said():
    torch.manual_seed(0)
    layer = attn_lib.MultiHeadAttention(16, 4, scale=0.25)  # d_k = H = 4, 1/sqrt(16) = 1/4
    failure = diagnose(layer).failures[0]
    assert {failure.mistake, *failure.alike} >= {"scale_by_model_width", "scale_by_d_k"}
    assert "Or it is one of those named below, which give the same" in failure.likely
    (twin,) = diagnose(lambda q, k, v: plain(q, k, v), causal=True).failures
    assert len(twin.alike) == 1
    assert "Or it is the one named below, which gives the same" in twin.likely


def test_rope_and_norms_that_nobody_mentioned_are_found():
    options = {"rotate": attn_lib.positions.apply_rope}
    options["qk_norm"] = lambda heads, d_k: nn.RMSNorm(d_k, eps=1e-6)
    report = diagnose(attn_lib.MultiHeadAttention(16, 4, **options), arguments="x")
    assert report.failures == []
    assert any("RoPE" in text and "rms" in text for text in report.assumed)


def test_a_window_that_nobody_mentioned_is_found():
    layer = attn_lib.MultiHeadAttention(16, 4, window=4)
    report = diagnose(layer, arguments="x", options={"causal": True})
    assert report.failures == []
    assert any("window of 4" in text for text in report.assumed)


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (lambda x, cache: x, "must return (out, cache), got Tensor"),
        (lambda x, cache: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_a_step_that_does_not_fit_is_said(step, words):
    layer = attn_lib.MultiHeadAttention(12, 3)
    report = diagnose(layer, options={"causal": True}, causal=True, step=step)
    assert words in report.failures[0].example


def test_steps_of_a_function():
    def step(q, k, v, cache):
        if cache is not None:
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        return attn_lib.attention(q, k, v, causal=True)[0], (k, v)

    fn = lambda q, k, v: attn_lib.attention(q, k, v, causal=True)  # noqa: E731
    assert any("cache" in text for text in diagnose(fn, causal=True, step=step).holds)


def test_a_cache_that_is_not_checked_is_named():
    report = diagnose(attn_lib.MultiHeadAttention(12, 3))
    assert any("cache" in text and "step=" in text for text in report.unchecked)


@pytest.mark.parametrize(
    ("fn", "options", "error", "words"),
    [
        (nn.MultiheadAttention, {}, TypeError, "the class MultiheadAttention"),
        (3, {}, TypeError, "callable"),
        (plain, {"layout": "BHSD"}, ValueError, "'BTHd'"),
        (plain, {"mask_means": "keep"}, ValueError, "'blocked'"),
        (plain, {"mask_shape": "SB"}, ValueError, "'B1TS'"),
        (plain, {"causal": "yes"}, ValueError, "'top_left'"),
        (plain, {"window": 0}, ValueError, "at least 1"),
        (plain, {"window": 7, "causal": False}, ValueError, "causal=True"),
        (plain, {"rope_base": True}, ValueError, "rope_base must be"),
        (plain, {"arguments": "q, k, w"}, ValueError, "'w'"),
        (lambda a, b: a, {}, ValueError, "arguments="),
        (lambda x: x, {}, ValueError, "module="),
        (torch.relu, {}, ValueError, "accepts no inputs"),
    ],
)
def test_errors_say_what_would_fit(fn, options, error, words):
    with pytest.raises(error, match=re.escape(words)):
        diagnose(fn, **options)


def test_a_report_is_data_text_and_markdown():
    report = diagnose(lambda q, k, v: (q @ k.mT).softmax(dim=-1) @ v)
    assert report.as_dict()["failures"][0]["mistake"] == "scale_missing"
    markdown = report._repr_markdown_()
    assert "1. **The scale is missing.**" in markdown
    assert "```text" in markdown
    for line in ("actual", "expected"):
        assert markdown.count(line) == str(report).count(line) == 1
    assert str(Report("mine")) == repr(Report("mine")) == "mine: no mistake found."


def without_last_key(q, k, v):
    return plain(q, k[..., :-1, :], v[..., :-1, :]) if k.shape[-2] > 2 else plain(q, k, v)


def cosine(q, k, v):
    return (F.normalize(q, dim=-1) @ k.mT).softmax(dim=-1) @ v


def one_head_only_differs(q, k, v):
    return torch.cat([3.0 * plain(q, k, v)[:, :1], plain(q, k, v)[:, 1:]], dim=1)


def last_row_differs(q, k, v):
    out = plain(q, k, v)
    return torch.cat([out[..., :-1, :], out[..., -1:, :] * 0.5], dim=-2)


def decays(q, k, v):
    distance = torch.arange(k.shape[-2]) - torch.arange(q.shape[-2])[:, None]
    return (q @ k.mT / math.sqrt(q.shape[-1]) - 0.3 * distance.abs()).softmax(dim=-1) @ v


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (without_last_key, "the value of key 69 reaches no row"),
        (cosine, "Three times larger queries, 6 of them without a mask, change"),
        (one_head_only_differs, "head 0 of 3 differs by up to"),
        (last_row_differs, "unit vectors as values, query 69 differs by up to"),
        (decays, "6 keys in another order"),
        (lambda q, k, v: plain(q, k, v).round(decimals=1), "not linear in v"),
        (lambda q, k, v: plain(q, k, v) + 0.5, "values of zero"),
        (lambda q, k, v: 1.1 * plain(q, k, v) - 0.2 * v.mean(-2, True), "as low as"),
        (
            lambda q, k, v: 1.25 * plain(q, k, v),
            "With 70 keys whose values are all 1, the output is 1.25, not 1.",
        ),
    ],
)
def test_what_is_true_of_an_unknown_mistake(fn, words):
    report = diagnose(fn, layout="BHTd", causal=False)
    assert report.mistakes == [None]
    assert words in report.failures[0].likely


def test_an_example_shows_the_entry_that_differs():
    def mine(q, k, v):
        out = plain(q, k, v)
        out[0, 1, 2, -1] += 2e-4
        return out

    (failure,) = diagnose(mine, layout="BHTd", causal=False).failures
    assert "example 0, head 1, position 2, channels 4-7 (from 0)" in failure.example
    one, two = failure.example.splitlines()[1:]
    assert one.removeprefix("actual") != two.removeprefix("expected")


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda q, k, v, mask=None: plain(q, k, v, mask) * (1 + (mask is not None)), "without a"),
        (lambda q, k, v: plain(q, k, v) * (1 + (q.shape[2] != k.shape[2])), "all with T = S."),
        (lambda q, k, v: plain(q, k, v) * (1 + (q.shape[2] == 1)), "all with more than one query."),
        (lambda q, k, v: plain(q, k, v) * (1 + (max(q.shape[2], k.shape[2]) > 64)), "up to 7 pos"),
    ],
)
def test_what_the_calls_that_agree_have_in_common(fn, words):
    (failure,) = diagnose(fn, layout="BHTd", causal=False, mask_means="attend").failures
    assert words in failure.likely
    bound = float(re.search(r"it agrees with it within (\S+) in", failure.likely)[1])
    assert 0 < bound < 1e-4


def test_rope_that_was_not_said_is_asked_for():
    (failure,) = diagnose(lambda q, k, v: 1.1 * plain(q, k, v)).failures
    assert "if there is, pass rope_base=" in failure.likely


COUNTS = {"calls": 0}


def wrong_from_call_37(q, k, v):
    COUNTS["calls"] += 1
    return plain(q, k, v) * (1.5 if COUNTS["calls"] > 36 else 1.0)


def wrong_every_fifth_call(q, k, v):
    COUNTS["calls"] += 1
    return plain(q, k, v) * (1.0 if COUNTS["calls"] % 5 else 1.01)


@pytest.mark.parametrize("fn", [wrong_from_call_37, wrong_every_fifth_call])
def test_the_first_call_is_repeated_after_all_others(fn):
    COUNTS["calls"] = 0
    report = diagnose(fn, layout="BHTd")
    assert report.mistakes
    assert "a call does not depend on earlier ones" not in report.holds
    assert "batch_leak" not in report.mistakes


def test_a_third_example_is_looked_at():
    def mine(q, k, v):
        out = plain(q, k, v)
        out[2:] = 0.0
        return out

    assert not diagnose(mine, layout="BHTd").ok


def test_a_window_is_found_where_causal_is_said():
    def mine(q, k, v):
        distance = torch.arange(q.shape[-2])[:, None] - torch.arange(k.shape[-2])
        distance = distance + k.shape[-2] - q.shape[-2]
        return plain(q, k, v, (distance >= 0) & (distance < 7))

    report = diagnose(mine, causal=True)
    assert report.ok
    assert "it is meant to have a window of 7" in report.assumed
    everything = diagnose(lambda q, k, v: attn_lib.attention(q, k, v, causal=True)[0], causal=True)
    assert everything.ok
    assert not any("window" in text for text in everything.assumed)


class ReadsOne(nn.Module):
    """A module of (query, key, value) that reads one of the last two for both."""

    def __init__(self, name):
        super().__init__()
        self.inside, self.name = nn.MultiheadAttention(12, 3, batch_first=True), name

    def forward(self, query, key, value):
        one = {"key": key, "value": value}.get(self.name)
        key, value = (key, value) if one is None else (one, one)
        return self.inside(query, key, value)[0]


@pytest.mark.parametrize("name", ["key", "value"])
def test_an_input_that_is_ignored(name):
    other = {"key": "value", "value": "key"}[name]
    report = diagnose(ReadsOne(name), heads=3)
    assert report.mistakes == [None]
    assert f"Another {other} gives the same output." in report.failures[0].likely
    assert diagnose(ReadsOne("both"), heads=3).ok


def test_a_mask_that_one_query_ignores():
    def mine(q, k, v, mask=None):
        return plain(q, k, v, mask if q.shape[2] > 1 else None)

    report = diagnose(mine, mask_means="attend", mask_shape="B1TS")
    assert report.mistakes == [None]
    assert "the output is that without a mask" in report.failures[0].likely


def test_a_step_that_returns_no_cache():
    layer = attn_lib.MultiHeadAttention(12, 3)
    report = diagnose(
        layer, options={"causal": True}, causal=True, step=lambda x, cache: (layer(x), None)
    )
    assert "step returned None as the cache" in report.failures[0].likely
    assert report.mistakes == [None]


def test_a_block_is_told_from_its_attention():
    report = diagnose(nn.TransformerEncoderLayer(12, 3, batch_first=True))
    assert "linear1, linear2, norm1, norm2" in report.failures[0].likely


def test_masks_that_fit_by_accident():
    def mine(q, k, v, mask=None):
        return plain(q, k, v, None if mask is None else mask.unsqueeze(1))

    report = diagnose(mine, mask_means="attend", mask_shape="BS")
    assert report.mistakes == ["mask_guessed_by_rank"]
    never = diagnose(
        lambda q, k, v, mask=None: plain(q, k, v, mask and 1), mask_means="attend", mask_shape="BS"
    )
    assert never.failures[0].name == "the mask raises"


def shape_changes(x, cache):
    return torch.zeros(len(x), 1, 12), cache


def noisy_pieces(x, cache):
    return torch.full_like(x, 0.5), ()


@pytest.mark.parametrize(
    ("step", "name"),
    [(shape_changes, "another shape"), (noisy_pieces, "differ from the whole")],
)
def test_pieces_that_no_known_mistake_explains(step, name):
    layer = attn_lib.MultiHeadAttention(12, 3)
    report = diagnose(layer, options={"causal": True}, causal=True, step=step)
    assert report.mistakes == [None]
    assert name in report.failures[0].name
    report = diagnose(layer, causal=False, step=step)
    assert any("causal=True" in text for text in report.unchecked)


apply_rope = attn_lib.positions.apply_rope


def stretched(x, positions):
    return 1.5 * apply_rope(x, positions)


def half_rotated(q, k, start=0):
    at = torch.arange(start, start + q.shape[-2])
    return tuple(torch.cat([apply_rope(x[..., :2], at), x[..., 2:]], dim=-1) for x in (q, k))


class Rotary(nn.Module):
    def forward(self, xq, xk, offset=0):
        at = torch.arange(offset, offset + xq.shape[-2])
        return apply_rope(xq, at), apply_rope(xk, at)


@pytest.mark.parametrize(
    ("fn", "options", "words"),
    [
        (stretched, {}, "length of a row changes by up to 50 %"),
        (lambda x, positions: apply_rope(x, 3 * positions + 2), {}, "Position 0 is changed"),
        (half_rotated, {"rope_pairing": "neighbours"}, "No known mistake"),
        (lambda x, positions: x[..., :4], {}, "has the shape"),
    ],
)
def test_rotations_that_no_known_mistake_explains(fn, options, words):
    report = attn_check.diagnose_rope(fn, **options)
    assert report.mistakes == [None]
    assert words in report.failures[0].likely


def test_right_rotations():
    assert attn_check.diagnose_rope(Rotary()).ok
    assert "'half'" in attn_check.diagnose_rope(apply_rope, rope_pairing=None).assumed[0]
    behind = lambda x, p: apply_rope(x.transpose(1, 2), p).transpose(1, 2)  # noqa: E731
    assert attn_check.diagnose_rope(behind, layout="BTHd").ok
    assert attn_check.diagnose_rope(
        lambda x: apply_rope(x, torch.arange(x.shape[-2])), layout="Td"
    ).ok


def test_rotations_that_change_their_input():
    def fn(q, k, positions):
        q.copy_(apply_rope(q, positions))
        return q, apply_rope(k, positions)

    assert attn_check.diagnose_rope(fn).mistakes == ["inplace_arguments"]


@pytest.mark.parametrize(
    ("fn", "options", "error", "words"),
    [
        (Rotary, {}, TypeError, "an instance"),
        (apply_rope, {"rope_pairing": "other"}, ValueError, "'neighbours'"),
        (apply_rope, {"layout": "BSHD"}, ValueError, "'BTHd'"),
        (lambda x, positions: 1 / 0, {}, ValueError, "ZeroDivisionError"),
    ],
)
def test_errors_of_diagnose_rope(fn, options, error, words):
    with pytest.raises(error, match=words):
        attn_check.diagnose_rope(fn, **options)


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["attn_lib:attention"], 0),
        (["attn_lib:MultiHeadAttention(12, num_heads=3)", "--markdown"], 0),
        (["torch.nn.functional:scaled_dot_product_attention", "--scale", "0.5"], 1),
        (["attn_lib.positions:apply_rope", "--rope"], 0),
        (["attn_lib:nothing"], 2),
        (["no_such_module_anywhere:fn"], 2),
        (["attn_lib"], 2),
        (["attn_lib:MultiHeadAttention(open)"], 2),
    ],
)
def test_the_command_line(words, status, capsys):
    assert __main__.main(words) == status
    out, err = capsys.readouterr()
    assert bool(out) == (status < 2)
    assert bool(err) == (status == 2)
    assert "Traceback" not in err


def test_an_output_without_a_graph_is_one_mistake():
    assert diagnose(torch.no_grad()(plain), arguments="q, k, v").mistakes == ["gradient_missing"]


def test_a_layer_in_half_precision_is_right():
    assert diagnose(attn_lib.MultiHeadAttention(12, 3).half()).failures == []


def test_an_output_of_nan_is_said():
    report = diagnose(lambda q, k, v: plain(q, k, v) * math.nan)
    assert "the whole output is NaN" in report.failures[0].likely


def remembers():
    seen = []

    def fn(q, k, v):
        seen.append(0)
        return plain(q * min(len(seen), 4), k, v)

    return fn


def cached():
    kept = []

    def fn(q, k, v):
        T, S = q.shape[-2], k.shape[-2]
        kept[:] = kept or [torch.ones(T, S, dtype=torch.bool).tril(S - T)]
        return plain(q, k, v, kept[0])

    return fn


def weighted(change, **options):
    def fn(q, k, v):
        out, weights = attn_lib.attention(q, k, v, **options)
        return out, change(weights, q, k)

    return fn


def spreads(q, k, v, mask=None):
    out = plain(q, k, v, mask)
    return out * 0.0 if bool(out.isnan().any()) else out


def leaks(q, k, v, mask=None):
    out = plain(q, k, v, mask)
    return out if mask is None else out + 0.1 * v.mean(dim=-2, keepdim=True)


def by_memory(q, k, v):
    return plain(q, k.as_strided(k.shape, torch.empty(k.shape).stride()), v)


def in_place(q, k, v):
    return plain(q.mul_(2.0) / 2.0, k, v)


class Modes(attn_lib.MultiHeadAttention):
    def _attend(self, q, *others):
        return super()._attend(q * 2.0 if self.training else q, *others)


def cloned():
    layer = attn_lib.MultiHeadAttention(12, 3)
    layer.k_proj.load_state_dict(layer.q_proj.state_dict())
    return layer


@pytest.mark.parametrize(
    ("fn", "options", "mistake"),
    [
        (remembers(), {}, "state_between_calls"),
        (cached(), {"causal": True}, "causal_cached_length"),
        (lambda q, k, v: plain(q, k, v) + 1e-3 * torch.randn(1), {}, "not_deterministic"),
        (lambda q, k, v: F.dropout(plain(q, k, v), 0.2), {}, "dropout_in_evaluation"),
        (lambda q, k, v: plain(q / q.abs().mean(0).add(0.1), k, v), {}, "batch_leak"),
        (lambda q, k, v: plain(q, k, v.detach()), {}, "gradient_detached_v"),
        (lambda q, k, v: plain(q.detach(), k.detach(), v), {}, "gradient_detached_weights"),
        (lambda q, k, v: plain(q.float(), k.float(), v.float()), {}, "output_dtype"),
        (weighted(lambda w, q, k: q @ k.mT), {}, "weights_before_softmax"),
        (weighted(lambda w, q, k: w.flip(1)), {}, "weights_wrong"),
        (weighted(lambda w, q, k: w.mT.mT), {}, None),
        (spreads, {"mask_means": "attend"}, "empty_row_spreads"),
        (leaks, {"mask_means": "attend"}, "closed_key_reaches_output"),
        (by_memory, {}, "not_contiguous"),
        (in_place, {}, "inplace_arguments"),
        (Modes(12, 3), {}, "train_eval_differ"),
        (cloned(), {}, "projections_cloned"),
    ],
)
def test_properties_are_named(fn, options, mistake):
    assert diagnose(fn, **options).mistakes == ([] if mistake is None else [mistake])


@pytest.mark.parametrize(
    ("fn", "mistake"),
    [
        (weighted(lambda w, q, k: w.mean(dim=1)), "weights_averaged"),
        (lambda q, k, v: (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v, "not_float32_inside"),
        (nn.MultiheadAttention(12, 3, dropout=0.4, batch_first=True), "weights_after_dropout"),
    ],
)
def test_properties_that_are_notes(fn, mistake):
    report = diagnose(fn)
    assert report.failures == []
    assert mistake in {note.mistake for note in report.notes}
