"""Models of the package transformers in this library's classes; what has no counterpart raises."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel, Dinov2Config, Dinov2Model, ViTConfig, ViTModel

from attn_lib import SentenceEncoder, VisionTransformer, interop, padding_mask

SIZES = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
IMAGES = {**SIZES, "image_size": 15, "patch_size": 5, "num_channels": 2}


def bert(**options):
    """Random weights, none of them special: an initialisation would leave biases at zero."""
    torch.manual_seed(0)
    config = BertConfig(
        **SIZES, vocab_size=17, max_position_embeddings=11, intermediate_size=19, **options
    )
    model = BertModel(config)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape) * 0.4)
    return model.double().eval()


IDS = torch.tensor([[3, 16, 4, 5, 7], [2, 9, 1, 1, 1]])  # theirs gives no gradient to token 0
MASK = padding_mask(torch.tensor([5, 3]), 5)


def expected_of(theirs):
    mask = MASK[:, 0, 0]
    return theirs(IDS, attention_mask=mask.long()).last_hidden_state[mask], mask


@pytest.mark.parametrize("eps", [1e-12, 0.1])
def test_equals_bert_outputs_and_gradients(eps):
    theirs = bert(layer_norm_eps=eps)
    ours = interop.from_transformers(theirs)
    assert isinstance(ours, SentenceEncoder)
    assert not any(module.training for module in ours.modules())
    expected, mask = expected_of(theirs)
    out = ours(IDS, mask=MASK)[mask]
    torch.testing.assert_close(out, expected, atol=1e-11, rtol=0)
    weight = torch.randn(out.shape, dtype=torch.float64)
    (out * weight).sum().backward()
    (expected * weight).sum().backward()
    words, positions = theirs.embeddings.word_embeddings, theirs.embeddings.position_embeddings
    torch.testing.assert_close(ours.words.weight.grad, words.weight.grad, atol=1e-10, rtol=0)
    torch.testing.assert_close(ours.positions.table.grad, positions.weight.grad, atol=1e-10, rtol=0)
    kinds = theirs.embeddings.token_type_embeddings.weight.grad[0]
    torch.testing.assert_close(ours.segment.grad, kinds, atol=1e-10, rtol=0)


def test_every_tensor_of_bert_has_its_place():
    """Altering any of them alters the output as it alters theirs; the pooler alters nothing."""
    theirs = bert()
    for name, p in theirs.named_parameters():
        with torch.no_grad():
            p.mul_(1.25)
        expected, mask = expected_of(theirs)
        ours = interop.sentence_encoder(theirs.state_dict(), num_heads=3)
        torch.testing.assert_close(
            ours(IDS, mask=MASK)[mask], expected, atol=1e-9, rtol=0, msg=name
        )


def test_a_converted_model_is_its_own():
    """It shares no memory with the model that it came from, and trains."""
    theirs = bert()
    ours = interop.from_transformers(theirs)
    before = ours(IDS, mask=MASK)
    with torch.no_grad():
        for p in theirs.parameters():
            p.zero_()
    assert torch.equal(ours(IDS, mask=MASK), before)
    assert all(p.requires_grad and p.is_leaf for p in ours.parameters())


def test_converting_draws_no_random_numbers():
    theirs = bert()
    torch.manual_seed(5)
    interop.from_transformers(theirs)
    after = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(3), after)


@pytest.mark.parametrize(("kind", "config"), [(ViTModel, ViTConfig), (Dinov2Model, Dinov2Config)])
@pytest.mark.parametrize("size", [15, 10])
def test_equals_models_of_images(kind, config, size):
    torch.manual_seed(0)
    theirs = kind(config(**IMAGES, layer_norm_eps=0.01)).double().eval()
    ours = interop.from_transformers(theirs, image_size=None if size == 15 else size)
    assert isinstance(ours, VisionTransformer)
    assert ours.image_size == size
    images = torch.randn(2, 2, size, size, dtype=torch.float64)
    options = {"interpolate_pos_encoding": True} if kind is ViTModel else {}
    expected = theirs(images, **options).last_hidden_state
    tolerance = 1e-10 if size == 15 else 1e-6  # Dinov2Model resamples in single precision
    torch.testing.assert_close(ours.features(images), expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            lambda: nn.Linear(2, 2),
            "^model must be of type bert, vit, dinov2, llama, qwen3, .*, got None$",
        ),
        (
            lambda: bert(is_decoder=False, hidden_act="relu"),
            "^the activation must be gelu, got 'relu'$",
        ),
    ],
)
def test_models_without_a_counterpart_are_named(model, message):
    with pytest.raises(ValueError, match=message):
        interop.from_transformers(model())


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("embeddings.word_embeddings.weight", "words.weight"),
        ("embeddings.position_embeddings.weight", "positions.table"),
        ("embeddings.token_type_embeddings.weight", "segment"),
        ("embeddings.LayerNorm.bias", "norm.bias"),
        ("encoder.layer.0.intermediate.dense.weight", "encoder.blocks.0.feed_forward.up.weight"),
        ("encoder.layer.1.output.LayerNorm.weight", "encoder.blocks.1.feed_forward_norm.weight"),
    ],
)
def test_a_missing_weight_of_bert_is_named(name, ours):
    state = bert().state_dict()
    del state[name]
    with pytest.raises(ValueError, match=f"^the weights have no counterpart of {ours}$"):
        interop.sentence_encoder(state, num_heads=3)


@pytest.mark.parametrize(
    "name",
    ["cls.bias", "encoder.layer.0.crossattention.self.query.weight", "embeddings.extra.gain"],
)
def test_a_weight_without_a_counterpart_in_the_encoder_is_named(name):
    state = {**bert().state_dict(), name: torch.zeros(3)}
    with pytest.raises(ValueError, match=f"^{name} has no counterpart in SentenceEncoder$"):
        interop.sentence_encoder(state, num_heads=3)


@pytest.mark.parametrize(
    ("convert", "kinds"),
    [
        (
            interop.from_torch,
            "MultiheadAttention, TransformerEncoderLayer or TransformerDecoderLayer of torch.nn",
        ),
        (interop.to_torch, "MultiHeadAttention or a TransformerBlock"),
    ],
)
def test_other_layers_are_refused_by_name(convert, kinds):
    with pytest.raises(TypeError, match=f"^layer must be a {kinds}, got Linear$"):
        convert(nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("tokens", "error", "message"),
    [
        (torch.zeros(1, 12).long(), ValueError, "^a sentence must have at most 11 tokens, got 12$"),
        (torch.tensor([[17]]), ValueError, "^tokens must be 0 to 16, got 17 to 17$"),
        (
            torch.zeros(1, 2),
            TypeError,
            "^tokens must be integers, int64 or int32, got torch.float32",
        ),
    ],
)
def test_tokens_that_do_not_fit_are_named(tokens, error, message):
    ours = interop.from_transformers(bert())
    with pytest.raises(error, match=message):
        ours(tokens)


def test_a_sentence_may_be_as_long_as_the_positions_and_one_token_short():
    ours = interop.from_transformers(bert())
    for ids in (torch.ones(2, 11).long(), torch.ones(2, 1).long()):
        assert ours(ids).shape == (*ids.shape, 12)
    assert ours.embed(torch.ones(11).long()).shape == (11, 12)


def test_an_encoder_keeps_its_tokenizer_and_norms_last():
    words = SimpleNamespace(encode=lambda text: SimpleNamespace(ids=[len(w) for w in text.split()]))
    ours = interop.sentence_encoder(bert().state_dict(), num_heads=3, tokenizer=words)
    assert ours.tokenizer is words
    vectors = ours.encode(["a cat drank", "the milk"])
    alone = ours(torch.tensor([[1, 3, 5]]))[0].mean(dim=0)
    torch.testing.assert_close(vectors[0], alone / alone.norm())
    assert [block.norm_at for block in ours.encoder.blocks] == ["after", "after"]


def test_texts_need_a_tokenizer():
    with pytest.raises(ValueError, match=r"^to encode texts, the model needs a tokenizer$"):
        interop.from_transformers(bert()).encode(["a"])


def test_sizes_of_an_encoder_are_checked():
    sizes = {"d_model": 6, "num_heads": 3, "d_ff": 24, "num_layers": 2}
    for wrong in ({"vocab_size": 0, "max_len": 5}, {"vocab_size": 5, "max_len": 0}):
        with pytest.raises(ValueError, match="must be at least 1, got 0"):
            SentenceEncoder(**wrong, **sizes)
    norms = SentenceEncoder(vocab_size=5, max_len=5, **sizes).modules()
    assert {norm.eps for norm in norms if isinstance(norm, nn.LayerNorm)} == {1e-12}
