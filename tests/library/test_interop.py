"""Models of the package transformers in this library's classes; what has no counterpart raises."""

from types import SimpleNamespace

import pytest
import torch
import transformers
from cases import draw
from safetensors.torch import load_file
from tables import for_each, raises_for_each
from torch import nn
from transformers.activations import ACT2FN

from attn_lib import SentenceEncoder, VisionTransformer, interop, padding_mask

SIZES = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
IMAGE = {"image_size": 15, "patch_size": 5, "num_channels": 2}
TEXT = {"vocab_size": 17, "max_position_embeddings": 11}
MODELS = {
    "bert": (transformers.BertConfig, {**TEXT, "intermediate_size": 19}),
    "vit": (transformers.ViTConfig, {**IMAGE, "intermediate_size": 19}),
    "dinov2": (transformers.Dinov2Config, {**IMAGE, "mlp_ratio": 2}),
}
IDS = torch.tensor([[3, 16, 4, 5, 7], [2, 9, 1, 1, 1]])  # transformers gives none to token 0


def witness(kind="bert", **options):
    """Random weights, none of them special: an initialisation would leave biases at zero."""
    torch.manual_seed(0)
    config, sizes = MODELS[kind]
    model = transformers.AutoModel.from_config(config(**{**SIZES, **sizes, **options}))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape) * 0.4)
    return model.double().eval()


def converted(kind, state):
    """By the names of the weights alone."""
    if kind == "bert":
        return interop.sentence_encoder(state, num_heads=3)
    eps = {"eps": 1e-6} if kind == "dinov2" else {}  # not the default
    return interop.vision_transformer(state, num_heads=3, **eps)


def outputs_of(witness, ours, images=None):
    """(ours, expected), wherever a token is real."""
    if images is None:
        real = MASK[:, 0, 0]
        expected = witness(IDS, attention_mask=real.long()).last_hidden_state
        return ours(IDS, mask=MASK)[real], expected[real]
    return ours.features(images), witness(images).last_hidden_state


def images_of(kind):
    return None if kind == "bert" else draw(2, 2, 15, 15)


every_kind = pytest.mark.parametrize("kind", MODELS)
MASK = padding_mask(torch.tensor([5, 3]), 5)


@every_kind
@pytest.mark.parametrize("names", ["in memory", "published", "eps"])
def test_equals_transformers_in_double_precision(kind, names, tmp_path):
    """Outputs, and the gradients of every weight, which find their places as the weights do."""
    options = {"layer_norm_eps": 0.1} if names == "eps" else {}
    model, images = witness(kind, **options), images_of(kind)
    ours = interop.from_transformers(model)
    if names == "published":
        model.save_pretrained(tmp_path)
        state = load_file(tmp_path / "model.safetensors")
        assert kind == "bert" or "encoder.layer.1.attention.attention.query.weight" in state
        ours = converted(kind, state)
    assert isinstance(ours, SentenceEncoder if kind == "bert" else VisionTransformer)
    assert not any(module.training for module in ours.modules())
    out, expected = outputs_of(model, ours, images)
    torch.testing.assert_close(out, expected, atol=1e-11, rtol=0)
    weight = draw(*out.shape, seed=3)
    (out * weight).sum().backward()
    (expected * weight).sum().backward()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.zeros_like(p) if p.grad is None else p.grad)
    places = dict(interop.from_transformers(model).named_parameters())
    for name, p in ours.named_parameters():
        torch.testing.assert_close(p.grad, places[name].detach(), atol=1e-9, rtol=1e-7, msg=name)


@every_kind
def test_a_converted_model_is_its_own(kind):
    """It shares no memory with the model that it came from, draws no random number, and trains."""
    model, images = witness(kind), images_of(kind)
    torch.manual_seed(5)
    ours = interop.from_transformers(model)
    after = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(3), after)
    before, _ = outputs_of(model, ours, images)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    assert torch.equal(outputs_of(model, ours, images)[0], before)
    assert all(p.requires_grad and p.is_leaf for p in ours.parameters())


@pytest.mark.parametrize("kind", ["vit", "dinov2"])
@pytest.mark.parametrize("size", [5, 25])
def test_equals_models_of_images_at_another_size(kind, size):
    model, images = witness(kind, layer_norm_eps=0.01), draw(2, 2, size, size)
    ours = interop.from_transformers(model, image_size=size)
    assert ours.image_size == size
    options = {"interpolate_pos_encoding": True} if kind == "vit" else {}
    expected = model(images, **options).last_hidden_state
    tolerance = 1e-9 if kind == "vit" else 1e-6  # Dinov2Model resamples in single precision
    torch.testing.assert_close(ours.features(images), expected, atol=tolerance, rtol=0)


def test_a_square_may_be_said_by_both_sides():
    assert interop.from_transformers(witness("vit", image_size=(15, 15))).image_size == 15


@every_kind
def test_every_activation_but_its_own_is_refused(kind):
    """One that is taken for another is off by less than a test of small weights would see."""
    model = witness(kind)
    for model.config.hidden_act in {*ACT2FN} - {"gelu"}:
        message = f"^the activation must be gelu, got {model.config.hidden_act!r}$"
        with pytest.raises(ValueError, match=message):
            interop.from_transformers(model)


@for_each(
    (lambda: nn.Linear(2, 2), "must be of type bert, vit, dinov2, llama, qwen3, .*, got None$"),
    (
        lambda: witness(is_decoder=True),
        "^is_decoder has no counterpart: a SentenceEncoder is not ca",
    ),
    (
        lambda: witness("vit", image_size=(8, 32), patch_size=4),
        "^the images must be square, got a model of 8 x 32 pixels$",
    ),
    (
        lambda: witness().to("meta"),
        "^model is on the meta device and has no weights: load it first$",
    ),
)
def test_models_without_a_counterpart_are_named(model, message):
    with pytest.raises(ValueError, match=message):
        interop.from_transformers(model())


@for_each(
    ("bert", "embeddings.word_embeddings.weight", "words.weight"),
    ("bert", "embeddings.position_embeddings.weight", "positions.table"),
    ("bert", "embeddings.token_type_embeddings.weight", "segment"),
    ("bert", "encoder.layer.0.intermediate.dense.weight", "BLOCKS.0.feed_forward.up.weight"),
    ("bert", "encoder.layer.1.output.LayerNorm.weight", "BLOCKS.1.feed_forward_norm.weight"),
    ("vit", "embeddings.cls_token", "class_token"),
    ("vit", "embeddings.position_embeddings", "positions.table"),
    ("vit", "embeddings.patch_embeddings.projection.weight", "patches.projection.weight"),
    ("vit", "layers.0.mlp.fc1.weight", "BLOCKS.0.feed_forward.up.weight"),
)
def test_a_missing_weight_is_named(kind, name, ours):
    state, ours = witness(kind).state_dict(), ours.replace("BLOCKS", "encoder.blocks")
    del state[name]
    with pytest.raises(ValueError, match=f"^the weights have no counterpart of {ours}$"):
        converted(kind, state)


@for_each(
    ("bert", "cls.bias"),
    ("bert", "encoder.layer.0.crossattention.self.query.weight"),
    ("vit", "head.weight"),
    ("vit", "vit.layernorm"),
)
def test_a_weight_without_a_counterpart_is_named(kind, name):
    model = "SentenceEncoder" if kind == "bert" else "VisionTransformer"
    with pytest.raises(ValueError, match=f"^{name} has no counterpart in {model}$"):
        converted(kind, {**witness(kind).state_dict(), name: torch.zeros(3)})


OF_TORCH = "MultiheadAttention, TransformerEncoderLayer or TransformerDecoderLayer"


@for_each(
    (interop.from_torch, f"{OF_TORCH} of torch.nn"),
    (interop.to_torch, "MultiHeadAttention or a TransformerBlock"),
)
def test_other_layers_are_refused_by_name(convert, kinds):
    with pytest.raises(TypeError, match=f"^layer must be a {kinds}, got Linear$"):
        convert(nn.Linear(2, 2))


@raises_for_each(
    (torch.zeros(1, 12).long(), ValueError, "^a sentence must have at most 11 tokens, got 12$"),
    (torch.tensor([[17]]), ValueError, "^tokens must be 0 to 16, got 17 to 17$"),
    (torch.zeros(1, 2), TypeError, "^tokens must be integers, int64 or int32, got torch.float"),
)
def test_tokens_that_do_not_fit_are_named(tokens):
    interop.from_transformers(witness())(tokens)


def test_a_sentence_may_be_as_long_as_the_positions_and_one_token_short():
    ours = interop.from_transformers(witness())
    for ids in (torch.ones(2, 11).long(), torch.ones(2, 1).long()):
        assert ours(ids).shape == (*ids.shape, 12)
    assert ours.embed(torch.ones(11).long()).shape == (11, 12)


def test_an_encoder_has_its_tokenizer_or_reads_no_texts_and_norms_last():
    words = SimpleNamespace(encode=lambda text: SimpleNamespace(ids=[len(w) for w in text.split()]))
    ours = interop.sentence_encoder(witness().state_dict(), num_heads=3, tokenizer=words)
    assert ours.tokenizer is words
    vectors = ours.encode(["a cat drank", "the milk"])
    alone = ours(torch.tensor([[1, 3, 5]]))[0].mean(dim=0)
    torch.testing.assert_close(vectors[0], alone / alone.norm())
    assert [block.norm_at for block in ours.encoder.blocks] == ["after", "after"]
    with pytest.raises(ValueError, match=r"^to encode texts, the model needs a tokenizer$"):
        interop.from_transformers(witness()).encode(["a"])


@for_each(
    {"layer_types": ["sliding_attention"] * 2, "sliding_window": 2},
    {"no_rope_layers": [0, 0]},
    {"query_pre_attn_scalar": 7},
    {"attn_logit_softcapping": 0.1},
    {"final_logit_softcapping": 0.1},
    {"use_bidirectional_attention": True},
)
def test_options_that_llama_does_not_read_are_not_read(option):
    sizes = {**SIZES, "vocab_size": 17, "intermediate_size": 19, "num_key_value_heads": 3}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()
    expected = model(IDS).logits
    vars(model.config).update(option)
    torch.testing.assert_close(model(IDS).logits, expected, atol=0, rtol=0)
    found = interop.from_transformers(model)(IDS)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
