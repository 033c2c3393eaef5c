"""Decoders of the package transformers and ours, with random weights: nothing is downloaded.

Its encoders: ``test_interop.py``.
A table of the worst differences, by architecture: ``python tests/library/test_architectures.py``.
"""

import copy
import functools
import itertools
import math
import random
from functools import partial

import pytest
import torch
import transformers
from tables import for_each
from torch import nn
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention, GptOssRotaryEmbedding

from attn_lib import Cache, MultiHeadAttention, generate, interop
from attn_lib.masks import from_binary, window_mask
from attn_lib.positions import apply_rope

DECODERS = {  # type: class, without ForCausalLM
    "llama": "Llama",
    "qwen3": "Qwen3",
    "gemma2": "Gemma2",
    "gemma3_text": "Gemma3",
    "olmo2": "Olmo2",
    "smollm3": "SmolLM3",
}
SEEDS, LAYERS, T, NEW, VOCABULARY = range(10), 2, 5, 8, 23
WORST = 0.00001  # of the largest: transformers computes norms and angles in float32
ENDS = [ends for n in range(T) for ends in itertools.combinations(range(1, T), n)]
SPLITS = [[b - a for a, b in itertools.pairwise([0, *ends, T])] for ends in ENDS]


def options_of(kind, seed):
    """What the configuration says; every seed has other sizes."""
    pick = random.Random(f"{kind} {seed}").choice  # noqa: S311
    groups, H_kv = pick([(2, 1), (3, 1), (2, 2), (3, 2), (1, 3)])
    kinds_of_layers = ["sliding_attention", "full_attention"]
    options = {
        "vocab_size": VOCABULARY,
        "hidden_size": groups * H_kv * pick([2, 4, 6]),
        "intermediate_size": pick([7, 11, 13]),
        "num_hidden_layers": LAYERS,
        "num_attention_heads": groups * H_kv,
        "num_key_value_heads": H_kv,
        "rms_norm_eps": pick([1e-6, 1e-2]),
        "tie_word_embeddings": pick([True, False]),
        "attention_bias": pick([True, False]),
        "rope_parameters": {"rope_type": "default", "rope_theta": pick([50.0, 1e4])},
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    if kind not in ("olmo2", "smollm3"):
        options["head_dim"] = pick([2, 4, 6])
    if kind in ("llama", "smollm3"):
        options["mlp_bias"] = pick([True, False])
    if kind not in ("llama", "olmo2"):
        options["sliding_window"] = pick([1, 2, 3, 4])  # each shorter than the text
        options["layer_types"] = kinds_of_layers[:: pick([1, -1])]
    if kind in ("qwen3", "smollm3"):
        options["use_sliding_window"] = True
    if kind == "smollm3":
        options["no_rope_layers"] = pick([[1, 0], [0, 1]])
    if kind.startswith("gemma"):
        options["query_pre_attn_scalar"] = pick([3, 16])
        options["hidden_activation"] = pick(["gelu_pytorch_tanh", "gelu"])
        options["final_logit_softcapping"] = pick([None, 2.0])
    else:
        options["hidden_act"] = pick(["silu", "silu", "gelu_pytorch_tanh"])
    if kind == "gemma2":
        options["attn_logit_softcapping"] = pick([None, 1.5])
    if kind == "gemma3_text":
        thetas = zip(kinds_of_layers, pick([(10.0, 1e4), (1e3, 50.0)]), strict=True)
        turns = {name: {"rope_type": "default", "rope_theta": theta} for name, theta in thetas}
        options["rope_parameters"] = turns
    return options


def model_of(kind, **options):
    """With random weights: an initialisation would leave norms at one."""
    name = DECODERS[kind]
    config = getattr(transformers, f"{name}TextConfig" if name == "Gemma3" else f"{name}Config")
    config = config(**options)
    config._attn_implementation = "eager"  # the only one that has a softcap
    return with_random_weights(getattr(transformers, f"{name}ForCausalLM")(config))


@torch.no_grad()
def with_random_weights(model):
    generator = torch.Generator().manual_seed(0)
    for p in model.parameters():
        p.copy_(0.5 * torch.randn(p.shape, generator=generator))
    return model.eval()


@functools.cache
def witness_of(kind, seed):
    return model_of(kind, **options_of(kind, seed))


def given_of(seed):
    """(2, T) tokens, and which are real: the first row is padded on the left."""
    tokens = torch.randint(1, VOCABULARY, (2, T), generator=torch.Generator().manual_seed(seed))
    real = torch.ones(2, T, dtype=torch.int64)
    real[0, : 1 + seed % 3] = 0
    return tokens, real


def numbers_of(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def share(found, expected):
    """The largest difference, as a share of the largest number."""
    found, expected = found.detach(), expected.detach()
    worst = float((found - expected).abs().max() / expected.abs().max())
    return math.inf if math.isnan(worst) else worst


@torch.no_grad()
def of_outputs(witness, ours, seed):
    tokens, _ = given_of(seed)
    return share(ours(tokens), witness(tokens).logits)


def in_pieces(ours, x, pieces, real):
    """What comes out from a cache, of a text in these pieces."""
    cache, outs = Cache(), []
    for piece in x.split(pieces, dim=1):
        seen = cache.length + piece.shape[1]
        outs.append(ours(piece, mask=from_binary(real[:, :seen]), cache=cache))
    assert cache.length == T
    return torch.cat(outs, dim=1)


@torch.no_grad()
def of_padded(witness, ours, seed):
    """The whole text, and from a cache in every split of it."""
    tokens, real = given_of(seed)
    expected, places = witness(tokens, attention_mask=real).logits, real.bool()
    founds = [in_pieces(ours, tokens, pieces, real) for pieces in SPLITS]
    founds.append(ours(tokens, mask=from_binary(real)))
    return max(share(found[places], expected[places]) for found in founds)


def of_gradients(witness, ours, seed):
    """Of every parameter; the expected ones find their places as the weights do."""
    ours, other, (tokens, _) = copy.deepcopy(ours), copy.deepcopy(witness), given_of(seed)
    for out in (ours(tokens), other(tokens).logits):
        (out * numbers_of(seed, *out.shape)).sum().backward()
    with torch.no_grad():
        for p in other.parameters():
            p.copy_(p.grad)
    expected = interop.from_transformers(other)
    if witness.config.model_type.startswith("gemma"):
        for name, p in expected.named_parameters():
            if "norm" in name:
                p.data.sub_(1.0)  # what was added to each weight is no part of its gradient
    found, wanted = (
        torch.cat([p.detach().flatten() for p in parameters])
        for parameters in ((p.grad for p in ours.parameters()), expected.parameters())
    )
    return share(found, wanted)


def of_greedy_tokens(witness, ours, seed):
    """How many of the written tokens differ, after padding on the left."""
    tokens, real = given_of(seed)
    options = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    if getattr(witness.config, "sliding_window", None) == 1:
        options["use_cache"] = False  # transformers would never drop a key then
    expected = witness.generate(tokens, attention_mask=real, **options)
    found = generate(ours, tokens, max_new_tokens=NEW, mask=from_binary(real))
    assert found.shape == expected.shape == (2, T + NEW)
    return int((found != expected).sum())


SORTS = {"outputs": of_outputs, "padded": of_padded, "gradients": of_gradients}
SORTS["written"] = of_greedy_tokens


def differences(kind, seed):
    witness = witness_of(kind, seed)
    ours = interop.from_transformers(witness)
    assert not any(m.training for m in ours.modules())
    assert not any(type(m).__module__.startswith("transformers") for m in ours.modules())
    return {name: of(witness, ours, seed) for name, of in SORTS.items()}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", DECODERS)
def test_equals_transformers(kind, seed):
    found = differences(kind, seed)
    assert found.pop("written") == 0
    assert {name: worst for name, worst in found.items() if worst > WORST} == {}


def test_no_two_configurations_are_alike():
    """And each window is shorter than the text."""
    for kind in DECODERS:
        chosen = [options_of(kind, seed) for seed in SEEDS]
        assert len({str(options) for options in chosen}) == len(SEEDS)
        assert all(options.get("sliding_window", 1) < T for options in chosen)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_layer_with_sinks_equals_that_of_gpt_oss(seed):
    """Outputs, from a cache in every split and whole, and gradients."""
    sliding, window = seed % 2 == 0, 1 + seed % 4
    config = transformers.GptOssConfig(
        hidden_size=7,
        head_dim=4,
        num_attention_heads=6,
        num_key_value_heads=[1, 2, 3][seed % 3],
        sliding_window=window,
        layer_types=["sliding_attention" if sliding else "full_attention"],
        num_hidden_layers=1,
        rope_parameters={"rope_type": "default", "rope_theta": 50.0},
        attention_bias=seed > 4,
    )
    config._attn_implementation = "eager"
    witness = with_random_weights(GptOssAttention(config, 0))
    ours = MultiHeadAttention(
        7,
        6,
        d_k=4,
        num_kv_heads=config.num_key_value_heads,
        window=window if sliding else None,
        sinks=True,
        rotate=partial(apply_rope, base=50.0),
        bias=config.attention_bias,
    )
    names = {name.replace("o_proj", "out_proj"): name for name, _ in witness.named_parameters()}
    ours.load_state_dict({name: witness.get_parameter(other) for name, other in names.items()})
    x, near = numbers_of(seed, 2, T, 7), window_mask(T, window=window if sliding else T)
    mask = torch.zeros(1, 1, T, T).masked_fill(~near, -math.inf)
    angles = GptOssRotaryEmbedding(config)(x, torch.arange(T)[None])
    expected, real = witness(x, angles, mask)[0], torch.ones(2, T, dtype=torch.int64)
    for pieces in SPLITS:
        found = in_pieces(partial(ours, causal=True), x, pieces, real)
        assert share(found, expected) < WORST
    for out in (found, expected):
        (out * numbers_of(seed, *out.shape)).sum().backward()
    grads = torch.cat([ours.get_parameter(name).grad.flatten() for name in names])
    wanted = torch.cat([witness.get_parameter(name).grad.flatten() for name in names.values()])
    assert share(grads, wanted) < WORST


# ---------------------------------------------------------------- planted mistakes


def window_off_by_one(ours):
    for block in ours.decoder.blocks:
        block.attention.window = block.attention.window and block.attention.window + 1


def tiled_heads(ours):
    """Query head h uses key head h % H_kv, as tile would have it."""
    for block in ours.decoder.blocks:
        layer = block.attention
        H, H_kv = layer.num_heads, layer.num_kv_heads
        for part in (layer.q_proj.weight, layer.out_proj.weight.T):
            heads = part.data.unflatten(0, (H // H_kv, H_kv, -1))
            part.data.copy_(heads.transpose(0, 1).flatten(0, 2))


@for_each(("qwen3", window_off_by_one), ("llama", tiled_heads))
def test_a_planted_mistake_is_seen(kind, mistake):
    """With some seed at least: not every configuration has what the mistake is about."""

    def off(seed):
        ours = interop.from_transformers(witness_of(kind, seed))
        mistake(ours)
        return of_outputs(witness_of(kind, seed), ours, seed)

    assert any(off(seed) > 100 * WORST for seed in SEEDS)


# ---------------------------------------------------------------- no counterpart

SMALL = {"vocab_size": VOCABULARY, "hidden_size": 12, "intermediate_size": 7}
SMALL |= {"num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1}
LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}


@for_each(
    ("llama", {"hidden_act": "tanh"}, "^the activation must be one of silu, .*, got 'tanh'$"),
    ("llama", {"rope_parameters": LINEAR}, "^rope_type must be 'default', got 'linear'$"),
    (
        "gemma3_text",
        {"use_bidirectional_attention": True, "sliding_window": 4, "head_dim": 4},
        "^use_bidirectional_attention has no counterpart: a DecoderLM is causal$",
    ),
)
def test_what_has_no_counterpart_is_named(kind, options, message):
    witness = model_of(kind, **{**SMALL, **options})
    with pytest.raises(ValueError, match=message):
        interop.from_transformers(witness)


def test_models_of_a_known_type_without_a_language_models_head_are_refused():
    config = transformers.LlamaConfig(**SMALL, pad_token_id=None)
    with pytest.raises(ValueError, match=r"^embed_tokens.weight has no counterpart in DecoderLM$"):
        interop.from_transformers(transformers.LlamaModel(config))
    with pytest.raises(ValueError, match=r"^score.weight has no counterpart in DecoderLM$"):
        interop.from_transformers(transformers.LlamaForSequenceClassification(config))


@pytest.mark.parametrize(
    ("taken", "missing"),
    [("lm_head", "output.weight"), ("model.embed_tokens", "embedding.vectors.weight")],
)
def test_a_missing_weight_is_named(taken, missing):
    """Without its head a model would pass for one whose head is tied."""
    witness = model_of("llama", **SMALL, tie_word_embeddings=False)
    witness.set_submodule(taken, nn.Identity())
    with pytest.raises(ValueError, match=f"^the weights have no counterpart of {missing}$"):
        interop.from_transformers(witness)


def table():
    print(f"{'':12}" + "".join(f"{name:>11}" for name in SORTS))
    for kind in DECODERS:
        found = [differences(kind, seed) for seed in SEEDS]
        wrong, total = sum(worst.pop("written") for worst in found), 2 * NEW * len(SEEDS)
        cells = [f"{max(worst[name] for worst in found):.1e}" for name in found[0]]
        print(
            f"{kind:12}"
            + "".join(f"{cell:>11}" for cell in [*cells, f"{total - wrong} of {total}"])
        )


if __name__ == "__main__":
    print(f"Worst difference over {len(SEEDS)} random models, as a share of the largest number;")
    print(f"padded also in all {len(SPLITS)} splits of {T} tokens; written tokens that are equal")
    table()
