"""What the pages on the same answer and the clinic say of transformers' attentions."""

import functools

import pages
import pytest
import torch
from tables import for_each
from torch.nn.functional import scaled_dot_product_attention
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    LlamaConfig,
    LlamaForCausalLM,
    masking_utils,
    modeling_flash_attention_utils,
)

import attn_check

CLINIC = pages.sources(pages.BOOK / "18_clinic.ipynb")


def gap(now, alone):
    return ((now - alone).abs().max() / alone.std()).item()


def tiny():
    torch.manual_seed(0)
    sizes = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 3, "initializer_range": 0.3}
    return LlamaForCausalLM(LlamaConfig(vocab_size=97, pad_token_id=0, **sizes, **heads)).eval()


# ---------------------------------------------------------------- the clinic


def pasted(*changes):
    """The clinic's own attention for transformers, perhaps with some of its code changed."""
    parts = ["import torch.nn.functional as F", CLINIC["ch18-custom"]]
    return pages.defined_by(parts, *changes)["custom"]


@torch.no_grad()
def off_in_a_model(custom, *, flag, mask_function):
    """Largest gaps of logits to transformers' own attention: no padding, padding, with a cache."""
    model, tokens = tiny(), torch.arange(1, 13).view(2, 6)
    for block in model.model.layers:
        block.self_attn.scaling = 0.7  # as models do that have a scale of their own
    padded = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    name, answers = f"pasted_{id(custom)}_{flag}", {}
    AttentionInterface.register(name, functools.partial(custom, flag=flag))
    AttentionMaskInterface.register(name, mask_function)
    for attention in ("sdpa", name):
        model.set_attn_implementation(attention)
        first = model(tokens[:, :4], use_cache=True)
        answers[attention] = (
            model(tokens).logits,
            model(tokens, attention_mask=padded).logits[padded.bool()],
            model(tokens[:, 4:], past_key_values=first.past_key_values).logits,
        )
    return [gap(*pair) for pair in zip(*answers.values(), strict=True)]


@for_each((True, masking_utils.sdpa_mask), (False, masking_utils.eager_mask))
def test_the_clinics_repairs_are_what_transformers_computes(flag, mask_function):
    given = {"flag": flag, "mask_function": mask_function}
    assert max(off_in_a_model(pasted(), **given)) < 1e-5
    assert min(off_in_a_model(pasted((", scale=scaling", "")), **given)) > 0.01


def test_the_clinics_function_refuses_what_it_does_not_compute():
    q = torch.randn(2, 4, 3, 8)
    assert pasted()(None, q, q, q, None, position_ids=q, sliding_window=None, softcap=None)
    with pytest.raises(ValueError, match="softcap"):
        pasted()(None, q, q, q, None, softcap=1.0)


def test_the_clinic_says_rightly_what_diagnose_does_not_take():
    """Packed texts, and a kernel that needs a GPU: each passes inside a wrapper."""

    def kernel(q, k, v, cu_seqlens):  # (total, H, d)
        cuts = torch.tensor(cu_seqlens)
        return _varlen(q, k, v, cuts, cuts)

    def elsewhere(q, k, v):
        if q.dtype != torch.float32:  # stands for a device that the inputs are not on
            raise RuntimeError("not on this device")
        return scaled_dot_product_attention(q, k, v)

    with pytest.raises(ValueError, match="cu_seqlens"):
        attn_check.diagnose(kernel)
    assert attn_check.diagnose(lambda q, k, v: kernel(q, k, v, [0, len(q)]), layout="THd").ok

    def moved(q, k, v):  # there and back
        return elsewhere(q.float(), k.float(), v.float()).to(q.dtype)

    assert attn_check.diagnose(moved).ok


def test_the_14_equal_calls_of_the_first_report_are_those_without_a_mask():
    mine = pages.defined_by(["import math", "import torch", CLINIC["ch18-mine"]])["mine"]
    (with_mask,) = [x for x in attn_check.diagnose(mine).holds if "different calls" in x]
    assert with_mask in attn_check.diagnose(lambda q, k, v: mine(q, k, v)).holds


# ---------------------------------------------------------------- FlashAttention's path


def _varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale=None, causal=False, **ignored):
    """What the kernel for packed rows computes, (tokens, heads, width), document by document."""
    assert torch.equal(cu_seqlens_q, cu_seqlens_k)
    cuts = cu_seqlens_q[1:-1].tolist()
    documents = zip(*(x[None].tensor_split(cuts, dim=1) for x in (q, k, v)), strict=True)
    return torch.cat([_flash(*one, softmax_scale, causal) for one in documents], dim=1)[0]


def _flash(q, k, v, softmax_scale=None, causal=False, **ignored):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    options = {"scale": softmax_scale, "is_causal": causal, "enable_gqa": True}
    return scaled_dot_product_attention(q, k, v, **options).transpose(1, 2)


def flash_moves(monkeypatch, rows, **passed):
    """How far a token of the first document moves the logits of the last one, in rows alike.

    And how far these are from the logits of that document alone.
    """
    pad = modeling_flash_attention_utils._pad_input, modeling_flash_attention_utils._unpad_input
    stand_in = lambda *_, **__: (_flash, _varlen, None, *pad)  # noqa: E731
    monkeypatch.setattr(modeling_flash_attention_utils, "_lazy_imports", stand_in)
    monkeypatch.setattr(modeling_flash_attention_utils, "_loaded_implementation", None)
    model = tiny()
    model.config._attn_implementation = "flash_attention_2"
    first = torch.arange(20, 38).repeat(rows, 1)
    other = first.clone()
    other[:, 3] = 60
    passed = {name: x.repeat(rows, 1) if torch.is_tensor(x) else x for name, x in passed.items()}
    seen = [model(tokens, **passed).logits[0, -4:] for tokens in (first, other)]
    return gap(seen[1], seen[0]), gap(seen[0], model(first[:1, -4:]).logits[0])


POSITIONS = torch.cat([torch.arange(n) for n in (7, 7, 4)])[None]


@for_each(
    (1, {}, False),
    (1, {"position_ids": POSITIONS}, True),  # the default call, with its cache
    (1, {"position_ids": POSITIONS, "use_cache": False}, True),
    (1, {"position_ids": POSITIONS, "attention_mask": torch.ones(1, 18).long()}, True),
    (2, {"position_ids": POSITIONS}, False),
    (2, {"position_ids": POSITIONS, "use_cache": False}, False),
)
@torch.no_grad()
def test_flash_attention_reads_documents_from_the_positions_of_a_single_row(
    rows, passed, isolated, monkeypatch
):
    """As the page says; with a plain function in place of the kernel, which needs a GPU."""
    gaps = flash_moves(monkeypatch, rows, **passed)
    assert max(gaps) < 1e-4 if isolated else min(gaps) > 0.1
