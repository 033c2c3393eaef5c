"""The audit names planted leaks under the right property, and passes right models."""

import copy
import json
import random
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from planted.plants import edited
from right_models import VOCABULARY, Decoder
from tables import for_each, raises_for_each
from torch import nn

from attn_check import Audit, Finding, assert_same_answer, audit, runs
from attn_check.__main__ import main
from attn_check.runs import PROPERTIES
from attn_lib import DecoderLM

pytestmark = pytest.mark.usefixtures("one_thread")


def built(*edits, **options):
    """A right model of one layer, or an edited one."""
    torch.manual_seed(0)
    return (edited(Decoder, edits) if edits else Decoder)(**options).eval()


def judged(model, **adapter):
    given = {"length": 8, "properties": [*PROPERTIES], **adapter}
    return audit(model, step=getattr(model, "step", None), **given)


# ---------------------------------------------------------------- planted leaks

MAY = "may = keys <= at[:, None]"
MASKED = "may = may & mask[:, None, None, :].bool()"
SAME = "segments[:, None, :, None] == segments[:, None, None, :]"
LAST = "self.norm(x) @"
TOKENS = "self.embedding(tokens)"
REMEMBERED = f"""{TOKENS} + getattr(self, "before", 0.0)
        self.before = 0.1 * x[:1, :1]"""
RING = "(k[:, :, -self.window + 1 :], v[:, :, -self.window + 1 :], seen)"
TABLE, WINDOW = {"positions_by": "table"}, {"sinks": True, "window": 5}


@for_each(
    # what is put in the place of what, the properties that break, and how the smallest example of
    # the first of them begins
    ({}, MAY, f"{MAY} + 1", "causal, cache, chunks", "another token 1 in a text of 2, token 0"),
    ({}, LAST, "self.norm(x - x.mean(0) / 2) @", "batch", "2 rows of 4 tokens, row 0, token "),
    ({}, "[old[0], k]", "[old[0][:1].expand_as(old[0]), k]", "batch", "2 rows of 4 tokens, row 1"),
    ({}, MASKED, "pass", "left padding", "padding of 1, text of 2, token "),
    ({}, MASKED, f"{MASKED} | (past is not None)", "left padding", "padding of 1, text of 5, "),
    ({}, "& mask[", "& mask[:1][", "left padding", "padding of 0 and 3, text of 8 and 5, row 1"),
    ({}, "& mask[", "& mask.roll(1, 1)[", "left padding, right padding", "padding of 0 and 3, "),
    (
        {},
        SAME,
        "segments[:, None, None, :] >= 0",
        "packing",
        "documents of 2, 3 tokens, document 1",
    ),
    (
        TABLE,
        "self.table(positions)",
        "self.table(at)",
        "left padding, packing",
        "padding of 1, text of",
    ),
    ({}, "[old[1], v]", "[old[1], v * 0]", "cache, chunks", "pieces of 1, 1 tokens, token 1"),
    ({}, MAY, f"{MAY} + T * (seen > 0)", "chunks", "pieces of 1, 4 tokens, token "),
    (WINDOW, RING, RING.replace("1 :", "1 + (seen > 11) :"), "cache", "pieces of 1, 1, 1, "),
    ({}, TOKENS, f"{REMEMBERED} * (B > 1)", "repeat", "the same call after others, token "),
    ({}, TOKENS, f"F.dropout({TOKENS}, 0.1, True)", "repeat", "the same call again"),
)
def test_a_planted_leak_is_named_and_its_smallest_example_is_shown(options, old, new, broken, text):
    report = judged(built((old, new), **options))
    wrong = [f for f in report.broken if f.counts]
    assert ", ".join(dict.fromkeys(f.name for f in wrong)) == broken, report
    assert wrong[0].text.startswith(text), report
    if "dropout" in new:  # no verdict follows two calls that differ
        assert {f.verdict for f in report.findings[1:]} == {"not checked"}


def test_a_memory_beside_the_cache_is_named():
    def remember(model, args, given, logits):
        before = getattr(model, "before", 0.0)
        if given.get("cache") is not None:
            model.before = 0.1 * logits[:1, :1]
        return logits + before

    sizes = {"d_model": 12, "num_heads": 3, "d_ff": 24, "num_layers": 1}
    model = DecoderLM(vocab_size=31, max_len=40, **sizes)
    model.register_forward_hook(remember, with_kwargs=True)
    report = audit(model, properties=["repeat"])
    assert report["repeat"].text.startswith("the same call after others with a cache, token ")


def test_every_split_of_five_tokens_is_tried(monkeypatch):
    tried = []
    monkeypatch.setattr(runs, "_split", lambda _, splits: tried.extend(splits))
    runs.chunks(SimpleNamespace(length=8))
    assert len({split for split in tried if sum(split) == 5}) == 2**4 - 2  # one, and five pieces
    assert {(i, 8 - i) for i in range(1, 8)} | {(3, 3, 2)} == {s for s in tried if sum(s) == 8}


# ---------------------------------------------------------------- right models


class Noted(Decoder):
    """Annotations that only a type checker can read."""

    def forward(self, tokens, mask: "Mask" = None, cache: "Kept" = None):  # noqa: F821
        return super().forward(tokens, mask)


class Dropping(nn.Module):
    """In training mode, with logits of −inf, returned first of a tuple."""

    def __init__(self):
        super().__init__()
        self.inner, self.drop = built(), nn.Dropout(0.5)
        self.train()

    def forward(self, idx, mask=None):
        logits = self.drop(self.inner(idx, mask))
        never = torch.arange(VOCABULARY) < 2
        return logits.masked_fill(never, float("-inf")), None


def with_four_axes(tokens, keep=None):
    return built()(tokens, None if keep is None else keep[:, 0, 0])


def with_integers(tokens, mask=None):
    places = None if mask is None else (mask.cumsum(1) - 1).clamp(min=0)
    return built(**TABLE)(tokens, None if mask is None else 1 - (1 - mask), places)


def known_by_a_token(tokens):
    return built()(tokens, tokens != 5)


@for_each(
    (lambda: built(layers=2), {}),
    (lambda: built(**WINDOW), {}),
    # positions that begin at 2 where none are given
    (lambda: built(("at.expand(B, T)", "(at + 2).expand(B, T)"), **TABLE), {}),
    (lambda: built().bfloat16(), {}),
    (Dropping, {}),
    (Noted, {}),
    (lambda: with_four_axes, {"arguments": "keep=mask"}),
    (lambda: with_integers, {}),
    (lambda: known_by_a_token, {"pad": 5}),
)
def test_a_right_model_is_passed(make, adapter):
    model = make()
    report = judged(model, **adapter)
    assert report.ok, report
    assert report["left padding"].verdict == "holds"
    if type(model) is Decoder:
        assert report["cache"].verdict == report["chunks"].verdict == "holds"
        assert report["repeat"].size < report["chunks"].size < report.limit
        half = model.norm.weight.dtype == torch.bfloat16
        assert half == any("to bfloat16" in text for text in report.unknown)


# ---------------------------------------------------------------- models of transformers

SIZES = {"vocab_size": 41, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
SIZES |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def llama():
    """A tiny one, whose random weights are large enough for leaks to show."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
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


@torch.no_grad()
def sees_the_other(model, options):
    """Whether the second of two documents depends on the tokens of the first."""
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    outs = []
    for first in ([5, 6, 7, 8], [9, 8, 11, 12]):
        tokens = torch.tensor([[*first, 13, 14, 15, 16, 17]])
        outs.append(model(input_ids=tokens, position_ids=positions, **options).logits[0, 4:])
    return bool((outs[0] - outs[1]).abs().max() > 1e-3 * outs[0].std())


def test_an_audit_of_llama():
    """More kinds are asked in ``test_scoreboard.py``."""
    model = llama()
    report = audit(model)
    assert report.ok
    counted = {f.title: f.verdict for f in report.findings if f.counts}
    assert [*counted] == [
        *("repeat", "causal", "batch: cache off", "batch: cache on"),
        *(f"left padding: mask and positions, cache {way}" for way in ("off", "on")),
        "right padding: mask and positions, cache off",
        *(f"{START}, cache off", "cache", "chunks"),
    ]
    assert {*counted.values()} == {"holds"}
    _, by_default, mask_of_ones = WAYS
    others = ["right padding: mask alone, cache on", by_default, mask_of_ones]
    assert [f.title for f in report.broken] == others
    seen = [sees_the_other(model, options) for options in WAYS.values()]
    assert seen == [report[way].verdict != "holds" for way in WAYS] == [False, True, True]
    assert not audit(model, properties=[by_default]).ok  # what is asked for counts
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
        self.inner = built()

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


def test_a_model_in_which_nothing_can_leak_is_not_passed():
    table = nn.Embedding(23, 23)
    report = audit(lambda tokens: table(tokens), properties=["causal", "packing", "cache"])
    assert [f.verdict for f in report.findings] == ["holds", "not checked", "not checked"]
    with pytest.raises(AssertionError, match="nothing can leak"):
        assert_same_answer(lambda tokens: table(tokens), properties=["cache"])


@for_each((11, "Texts of more than 15 tokens."), (500, "A window of 500: pass length=."))
def test_texts_reach_a_window_or_the_report_says_so(window, unknown):
    assert unknown in judged(built(window=window), properties=["repeat"]).unknown


@raises_for_each(
    (Decoder, {}, TypeError, "must be a module or a function"),
    (3, {}, TypeError, "must be a module or a function"),
    (built(), {"properties": ["caches"]}, ValueError, "repeat, causal, batch.*'caches'"),
    (built(), {"properties": ["packing: by hand"]}, ValueError, "packing: by hand"),
    (built(), {"arguments": "mask=seen"}, ValueError, "mask, positions, segments"),
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

    def state():
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        assert len(gradients) > 10
        tensors = {**model.state_dict(), "random": torch.get_rng_state()}
        tensors |= {f"gradient of {name}": grad for name, grad in gradients.items()}
        others = (random.getstate(), np.random.get_state()[1].tolist(), torch.is_grad_enabled())
        return copy.deepcopy(tensors), others, [part.training for part in model.modules()]

    before = state()
    reports = [audit(model, properties=["causal", "left padding"]) for _ in range(2)]
    assert reports[0].as_dict() == reports[1].as_dict()
    after = state()
    torch.testing.assert_close(after[0], before[0], rtol=0, atol=0)
    assert after[1:] == before[1:]


def test_a_model_that_cannot_be_copied_keeps_its_modes_and_buffers():
    model = built().train()
    model.register_buffer("seen", torch.zeros(()))
    model.register_forward_hook(counting)
    model.lines = (line for line in ())  # a generator cannot be copied
    report = audit(model, step=model.step, properties=["repeat", "left padding"])
    assert report.ok
    assert "What it remembers: it cannot be copied, so it was judged itself." in report.unknown
    assert "Its rounding, which is taken for 1e-5." in report.unknown
    assert model.training
    assert model.seen == 0


# ---------------------------------------------------------------- tests, and a shell


@for_each(
    (["left padding"], None),
    (["packing"], r"the answer changes \(packing\)"),
    (["cache"], "takes no cache; if it has one, pass step="),
    (["left padding: mask alone"], r"they\s+are\s+not\s+seen"),
)
def test_one_line_in_a_test(properties, message):
    model = built((SAME, "segments[:, None, None, :] >= 0"), **TABLE)
    with nullcontext() if message is None else pytest.raises(AssertionError, match=message):
        assert_same_answer(model, properties=properties)


def test_ways_that_do_not_count_count_when_no_way_does():
    def model(tokens, positions=None):
        return built(**TABLE)(tokens, positions=positions)

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
    return Decoder().eval()

def ahead(tokens, keep=None):
    logits = right()(tokens, keep)
    return logits + logits.roll(-1, 1)
"""


@for_each(
    ("right", 0, "Decoder: the answer stays the same.", ""),
    ("right()", 0, "Decoder: the answer stays the same.", ""),
    ("ahead --arguments keep=mask", 1, "ahead: the answer changes (causal, left", ""),
    ("right --window 3", 2, "", "unexpected keyword argument 'window'"),
    ("right --arguments keep", 2, "", "ValueError: arguments must name the roles mask"),
)
def test_from_a_shell(words, status, out, err, tmp_path, monkeypatch, capsys):
    (tmp_path / "my_model.py").write_text(FILE)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(f"my_model:{words} --audit".split()) == status
    said = capsys.readouterr()
    assert said.out.startswith(out)
    assert err in said.err
