"""The audit names planted leaks under the right property, and passes right models."""

import copy
import json
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from planted.plants import edited
from right_models import VOCABULARY, Convolution, Decoder
from tables import for_each, raises_for_each
from torch import nn

from attn_check import Audit, Finding, assert_same_answer, audit, runs
from attn_check.__main__ import main
from attn_check.runs import PROPERTIES
from attn_lib import DecoderLM
from attn_lib.positions import apply_rope

pytestmark = pytest.mark.usefixtures("one_thread")

RIGHT = {
    "rope": (Decoder, {}),
    "table": (Decoder, {"positions_by": "table"}),
    "sinks and a window": (Decoder, {"sinks": True, "window": 5}),
    "convolution": (Convolution, {}),
}


def built(kind, *edits, **more):
    right, options = RIGHT[kind]
    torch.manual_seed(0)
    return (edited(right, edits) if edits else right)(**{**options, **more}).eval()


def judged(model, **adapter):
    given = {"length": 8, "properties": [*PROPERTIES], **adapter}
    return audit(model, step=getattr(model, "step", None), **given)


def wrong(report):
    """The properties that may not break and do."""
    return " ".join(dict.fromkeys(f.name.replace(" ", "-") for f in report.broken if f.counts))


# ---------------------------------------------------------------- planted leaks

MAY = "may = keys <= at[:, None]"
MASKED = "may = may & mask[:, None, None, :].bool()"
SAME = "segments[:, None, :, None] == segments[:, None, None, :]"
EMBEDDED = "self.embedding(tokens)"
LAST = "self.norm(x) @"
PADDING = "left-padding right-padding"
SHORT = "(k[:, :, -self.window + 1 :], v[:, :, -self.window + 1 :], seen)"
REMEMBERED = f"""{EMBEDDED} + getattr(self, "before", 0.0)
        self.before = 0.1 * x[:1, :1]"""

# by the kind of model: what stands there, what is put in its place, the properties that break
EDITS = {
    "rope": {
        "one token ahead": (MAY, f"{MAY} + 1", "causal cache chunks"),
        "statistics of the batch": (LAST, "self.norm(x - x.mean(0) / 2) @", "batch"),
        "a cache shared by rows": ("[old[0], k]", "[old[0][:1].expand_as(old[0]), k]", "batch"),
        "padding mask dropped": (MASKED, "pass", "left-padding"),
        "padding mask dropped beside a cache": (
            MASKED,
            f"{MASKED} | (past is not None)",
            "left-padding",
        ),
        "padding mask shifted": ("may & mask[", "may & mask.roll(1, 1)[", PADDING),
        "padding mask of the first row": ("may & mask[", "may & mask[:1][", "left-padding"),
        "segments ignored": (SAME, "segments[:, None, None, :] >= 0", "packing"),
        "segments of ten tokens": (SAME, f"({SAME}) | (at[:, None] >= 10)", "packing"),
        "new values are lost": ("[old[1], v]", "[old[1], v * 0]", "cache chunks"),
        "a chunk without a mask": (MAY, f"{MAY} + T * (seen > 0)", "chunks"),
        "a memory of the last call": (EMBEDDED, REMEMBERED, "repeat"),
        "a memory of a batch": (EMBEDDED, f"{REMEMBERED} * (B > 1)", "repeat"),
        "dropout that is always on": (EMBEDDED, f"F.dropout({EMBEDDED}, 0.1, True)", "repeat"),
    },
    "table": {
        "positions ignored": ("self.table(positions)", "self.table(at)", "left-padding packing"),
        "positions off by one with the cache": (
            "at.expand(B, T)",
            "(at - int(seen > 0)).expand(B, T)",
            "cache chunks",
        ),
    },
    "sinks and a window": {
        "a ring that is written over too early": (
            SHORT,
            SHORT.replace("+ 1 :", "+ 1 + (seen > 11) :"),
            "cache",
        ),
    },
    "convolution": {
        "a convolution that wraps": (
            "longer[:, 2 - back : 2 - back + T]",
            "x.roll(back, 1)",
            f"causal {PADDING} packing cache chunks",
        )
    },
}
LEAKS = {
    name: (kind, (old, new), broken)
    for kind, edits in EDITS.items()
    for name, (old, new, broken) in edits.items()
}
SMALLEST = {
    "one token ahead": ("causal", "another token 1 in a text of 2, token 0 (from 0): a logit is "),
    "statistics of the batch": ("batch", "2 rows of 4 tokens, row 0, token "),
    "padding mask dropped": ("left padding", "padding of 1, text of 2, token "),
    "padding mask shifted": ("right padding", "padding of 1, text of 2, token 1"),
    "segments ignored": ("packing", "documents of 2, 3 tokens, document 1, token "),
    "new values are lost": ("cache", "pieces of 1, 1 tokens, token 1"),
    "a chunk without a mask": ("chunks", "pieces of 1, 4 tokens, token "),
    "a memory of a batch": ("repeat", "the same call after others, token"),
}


@pytest.mark.parametrize("name", LEAKS)
def test_a_planted_leak_is_named_and_its_smallest_example_is_shown(name):
    kind, edit, expected = LEAKS[name]
    report = judged(built(kind, edit))
    assert wrong(report) == expected, report
    if name in SMALLEST:
        leaking, beginning = SMALLEST[name]
        assert report[leaking].text.startswith(beginning)
    if name == "dropout that is always on":  # no verdict follows two calls that differ
        assert {f.verdict for f in report.findings[1:]} == {"not checked"}


class Kept(list):
    """A cache by the name of its class alone."""


class Keeping(Decoder):
    """Takes a cache of a class that the annotation names; what it keeps beside it is a leak."""

    beside, before = 0.0, 0.0

    def forward(self, tokens, cache: Kept | None = None):
        logits, kept = self.read(tokens, cache or None, None, None, None)
        if cache is not None:
            cache[:], self.before = kept, self.beside * logits[:1, :1].detach()
        return logits + self.before


def test_a_model_that_keeps_something_beside_its_cache():
    torch.manual_seed(0)
    model = Keeping().eval()
    assert audit(model, length=6)["chunks"].verdict == "holds"
    model.beside = 0.1
    report = audit(model, length=6)
    assert wrong(report) == "repeat"
    assert report["repeat"].text.startswith("the same call after others with a cache, token ")


def test_every_split_of_five_tokens_is_tried(monkeypatch):
    tried = []
    monkeypatch.setattr(runs, "_split", lambda _, splits: tried.extend(splits))
    runs.chunks(SimpleNamespace(length=8))
    assert len({split for split in tried if sum(split) == 5}) == 2**4 - 2  # one, and five pieces
    assert {(i, 8 - i) for i in range(1, 8)} | {(3, 3, 2)} == {s for s in tried if sum(s) == 8}


def test_every_property_breaks():
    assert {p for _, _, broken in LEAKS.values() for p in broken.split()} == {
        name.replace(" ", "-") for name in PROPERTIES
    }


# ---------------------------------------------------------------- right models


@pytest.mark.parametrize("kind", RIGHT)
def test_a_right_model_is_passed(kind):
    report = judged(built(kind))
    assert report.ok, report
    assert report["cache"].verdict == report["chunks"].verdict == "holds"
    assert report["repeat"].size < report["chunks"].size < report.limit < 1e-3


class Noted(Decoder):
    """Annotations that only a type checker can read."""

    def forward(self, tokens, mask: "Mask" = None, cache: "Kept" = None):  # noqa: F821
        return super().forward(tokens, mask)


class Dropping(nn.Module):
    """In training mode, with logits of −inf, returned first of a tuple."""

    def __init__(self):
        super().__init__()
        self.inner, self.drop = built("rope"), nn.Dropout(0.5)
        self.train()

    def forward(self, idx, mask=None):
        logits = self.drop(self.inner(idx, mask))
        never = torch.arange(VOCABULARY) < 2
        return logits.masked_fill(never, float("-inf")), None


def in_a_closure(model):
    def logits(tokens, keep=None):
        return model(tokens, None if keep is None else keep[:, 0, 0])

    return logits


def with_integers(tokens, mask=None):
    return built("table")(tokens, None if mask is None else 1 - (1 - mask), count(mask))


def count(mask):
    return None if mask is None else (mask.cumsum(1) - 1).clamp(min=0)


def known_by_a_token(tokens):
    return built("rope")(tokens, tokens != 5)


UNUSUAL = {
    "training mode, −inf, a tuple": (Dropping, {}),
    "a closure, masks (B, 1, 1, S)": (
        lambda: in_a_closure(built("rope")),
        {"arguments": "keep=mask"},
    ),
    "annotations that cannot be read": (Noted, {}),
    "masks of integers": (lambda: with_integers, {}),
    "padding that is a token": (lambda: known_by_a_token, {"pad": 5}),
    "bfloat16": (lambda: built("rope").bfloat16(), {}),
    "positions that begin at 2 where none are given": (
        lambda: built("table", ("at.expand(B, T)", "(at + 2).expand(B, T)")),
        {},
    ),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_a_right_model_of_an_unusual_kind_is_passed(name):
    make, adapter = UNUSUAL[name]
    report = judged(make(), **adapter)
    assert report.ok, report
    assert report["left padding"].verdict == "holds"
    assert any("to bfloat16" in text for text in report.unknown) == (name == "bfloat16")


OURS = {  # more kinds are compared with those of transformers in test_architectures.py
    "GPT-2": {"max_len": 40},
    "gpt-oss": {"attention": {"d_k": 4, "rotate": apply_rope, "sinks": True, "window": 5}},
}


@pytest.mark.parametrize("name", OURS)
def test_models_of_the_library_are_as_they_should_be(name):
    sizes = {"vocab_size": 31, "d_model": 12, "num_heads": 3, "d_ff": 24, "num_layers": 2}
    torch.manual_seed(0)
    report = audit(DecoderLM(**sizes, **{"max_len": None, **OURS[name]}))
    verdicts = {f.title: f.verdict for f in report.findings if f.counts}
    assert verdicts.pop("packing") == "not supported"
    assert [*verdicts] == (
        "repeat,causal,batch: cache off,batch: cache on,left padding: cache off,"
        "left padding: cache on,right padding: cache off,cache,chunks"
    ).split(",")
    assert {*verdicts.values()} == {"holds"}, report


# ---------------------------------------------------------------- models of transformers

SIZES = {"vocab_size": 41, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
SIZES |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
EXPERTS = {"head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 4}
EXPERTS |= {"layer_types": ["sliding_attention", "full_attention"]}
THEIRS = {"Llama": {}, "GptOss": EXPERTS}  # more kinds are asked in test_scoreboard.py


def of_transformers(name):
    """A tiny one, whose random weights are large enough for leaks to show."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES, **THEIRS[name])
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for weight in (p for p in model.parameters() if p.dim() > 1):
            weight.mul_(4.0)
    return model


START = "packing: restarted positions"
WAYS = {  # what is passed, apart from the positions
    f"{START}, cache off": {"use_cache": False},
    f"{START}, the default call": {},
    f"{START}, mask of ones": {"use_cache": False, "attention_mask": torch.ones(1, 9).long()},
}


def sees_the_other(model, options):
    """Whether the second of two documents depends on the tokens of the first."""
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    outs = []
    for first in ([5, 6, 7, 8], [9, 8, 11, 12]):
        tokens = torch.tensor([[*first, 13, 14, 15, 16, 17]])
        with torch.no_grad():
            outs.append(model(input_ids=tokens, position_ids=positions, **options).logits[0, 4:])
    return bool((outs[0] - outs[1]).abs().max() > 1e-3 * outs[0].std())


@for_each(("Llama", "holds"), ("GptOss", "does not hold"))
def test_packed_documents_by_each_way_of_calling(name, called_rightly):
    model = of_transformers(name)
    report = audit(model, properties=["packing"], length=8)
    verdicts = [report[way].verdict for way in WAYS]
    assert verdicts == [called_rightly, "does not hold", "does not hold"], report
    seen = [sees_the_other(model, options) for options in WAYS.values()]
    assert seen == [verdict != "holds" for verdict in verdicts]
    assert report.ok == (called_rightly == "holds")


def test_an_audit_of_llama():
    model = of_transformers("Llama")
    report = audit(model)
    assert report.ok
    assert [f.title for f in report.broken] == [
        "right padding: mask alone, cache on",
        f"{START}, the default call",
        f"{START}, mask of ones",
    ]
    assert {f.verdict for f in report.findings if f.counts} == {"holds"}
    kernel, bfloat16, float16 = report.of("measured")
    assert 0 < kernel.size < 1e-5 < float16.size < bfloat16.size < 0.2
    text = str(report)
    assert text.startswith(
        "LlamaForCausalLM: the answer stays the same; it changes in 3 other ways"
    )
    assert "documents of 2, 3 tokens, document 1, token" in text
    assert "they are seen" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 79
    assert json.loads(json.dumps(report.as_dict()))["findings"][0]["verdict"] == "holds"
    assert report._repr_markdown_().startswith("**LlamaForCausalLM")


# ---------------------------------------------------------------- what is not judged


class Cached(nn.Module):
    """Takes one token at a time, once there is a cache, and refuses masks."""

    def __init__(self):
        super().__init__()
        self.inner = built("rope")

    def forward(self, tokens, mask=None, attention=None):
        if mask is not None:
            raise ValueError("masks are for training")
        return self.inner(tokens)

    def step(self, tokens, past):
        if past is not None and tokens.shape[1] > 1:
            raise NotImplementedError("one token at a time\nas decoders do")
        return self.inner.step(tokens, past)


def test_what_is_refused_or_cannot_be_said():
    report = judged(Cached())
    assert report.ok
    assert str(report).startswith(
        "Cached: the answer stays the same; refused: left padding, right padding,\n  chunks."
    )
    assert report["left padding"].verdict == report["chunks"].verdict == "refuses"
    assert report["chunks"].text == (
        "given tokens (1, 4) and a cache, it raises NotImplementedError: one token at a time"
    )
    assert report["left padding"].text == (
        "given tokens (1, 3) and mask, it raises ValueError: masks are for training"
    )
    assert report["batch: cache on"].verdict == report["cache"].verdict == "holds"
    assert report["packing"].verdict == "not supported"
    without = audit(built("rope"), properties=["cache"])
    assert without["cache"].text == "takes no cache; if it has one, pass step="


def test_a_model_in_which_nothing_can_leak_is_not_passed():
    table = nn.Embedding(23, 23)
    report = audit(lambda tokens: table(tokens), properties=["causal", "packing", "cache"])
    assert [f.verdict for f in report.findings] == ["holds", "not checked", "not checked"]
    with pytest.raises(AssertionError, match="nothing can leak"):
        assert_same_answer(lambda tokens: table(tokens), properties=["cache"])


def test_texts_reach_a_window_or_the_report_says_so():
    report = judged(built("rope", window=11, layers=1), properties=["repeat"])
    assert "Texts of more than 15 tokens." in report.unknown
    report = judged(built("rope", window=500, layers=1), properties=["repeat"])
    assert report.unknown[-1] == "A window of 500: pass length=."


@raises_for_each(
    (Decoder, {}, TypeError, "must be a module or a function"),
    (3, {}, TypeError, "must be a module or a function"),
    (built("rope"), {"properties": ["caches"]}, ValueError, "repeat, causal, batch.*'caches'"),
    (built("rope"), {"properties": ["packing: by hand"]}, ValueError, "packing: by hand"),
    (built("rope"), {"arguments": "mask=seen"}, ValueError, "mask, positions, segments"),
    (lambda tokens: tokens, {}, ValueError, r"must give logits \(B, T, V\), got \(1, 2\)"),
    (lambda tokens: 3, {}, ValueError, "got int"),
    (lambda tokens: torch.full((*tokens.shape, 9), torch.nan), {}, ValueError, "hold NaN"),
)
def test_what_cannot_be_audited(model, adapter):
    audit(model, **adapter)


# ---------------------------------------------------------------- nothing is changed


def counting(module, *_):
    module.seen += 1


def test_nothing_of_the_model_is_changed():
    model = Dropping()
    model.inner.eval()
    model(torch.tensor([[3, 4]]))[0].nan_to_num(0.0, neginf=0.0).sum().backward()
    model.inner.norm.register_buffer("seen", torch.zeros(()))
    model.inner.norm.register_forward_hook(counting)
    before = copy.deepcopy(model.state_dict())
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    torch.manual_seed(3)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    reports = [audit(model, properties=["causal", "left padding"]) for _ in range(2)]
    assert reports[0].as_dict() == reports[1].as_dict()
    assert all(part.training for part in (model, model.drop))
    assert not model.inner.training
    assert before.keys() == model.state_dict().keys()
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    after = [p.grad for p in model.parameters() if p.grad is not None]
    assert len(after) == len(gradients) > 20
    assert all(map(torch.equal, gradients, after))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[1:]
    assert torch.is_grad_enabled()


def test_a_model_that_cannot_be_copied_keeps_its_modes_and_buffers():
    model = built("rope").train()
    model.register_buffer("seen", torch.zeros(()))
    model.register_forward_hook(counting)
    model.lines = (line for line in ())  # a generator cannot be copied
    report = audit(model, step=model.step, length=6)
    assert report.ok
    assert "What it remembers: it cannot be copied, so it was judged itself." in report.unknown
    assert "Its rounding, which is taken for 1e-5." in report.unknown
    assert model.training
    assert model.seen == 0


# ---------------------------------------------------------------- tests, and a shell


def test_one_line_in_a_test():
    right, leak = built("rope"), built("rope", LEAKS["segments ignored"][1])
    assert_same_answer(right, step=right.step, length=6)
    assert_same_answer(leak, properties=["left padding"])
    with pytest.raises(AssertionError, match=r"the answer changes \(packing\)"):
        assert_same_answer(leak, properties=["packing"])
    with pytest.raises(AssertionError, match="takes no cache"):
        assert_same_answer(right, properties=["cache"])
    table = built("table")
    assert_same_answer(table, properties=["left padding"])
    with pytest.raises(AssertionError, match=r"they\s+are\s+not\s+seen"):
        assert_same_answer(table, properties=["left padding: mask alone"])


def test_ways_that_do_not_count_count_when_they_are_asked_for():
    def model(tokens, positions=None):
        return built("table")(tokens, positions=positions)

    report = audit(model)
    assert report.ok
    assert report["packing"].verdict == "does not hold"
    assert not audit(model, properties=["packing"]).ok


def test_a_report_is_shown_in_words():
    report = Audit("Mine", [Finding("causal", "", "does not hold", 0.5, 0.0, "Two tokens.")], 1e-5)
    assert str(report).splitlines()[:5] == [
        "Mine: the answer changes (causal).",
        "",
        "1. Causal: does not hold.",
        "   Meant: a later token changes no earlier logit",
        "   Size: 0.5 standard deviations of the logits; no argmax flips",
    ]
    with pytest.raises(KeyError, match="packing"):
        report["packing"]
    assert "   - *Example:* Two tokens." in report._repr_markdown_().splitlines()


FILE = """
from right_models import Decoder
import torch

def right():
    torch.manual_seed(0)
    return Decoder(layers=1).eval()

def ahead(tokens, keep=None):
    logits = right()(tokens, keep)
    return logits + logits.roll(-1, 1)
"""


@for_each(
    ("right", 0, "Decoder: the answer stays the same.", ""),
    ("right()", 0, "Decoder: the answer stays the same.", ""),
    ("ahead --arguments keep=mask", 1, "ahead: the answer changes (causal, left", ""),
    ("right --window 3", 2, "", "with --audit, --window cannot be passed"),
    ("right --arguments keep", 2, "", "ValueError: arguments must name the roles mask"),
)
def test_from_a_shell(words, status, out, err, tmp_path, monkeypatch, capsys):
    (tmp_path / "my_model.py").write_text(FILE)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(f"my_model:{words} --audit".split()) == status
    said = capsys.readouterr()
    assert said.out.startswith(out)
    assert err in said.err
