"""Whole models against PyTorch's parts; caches, generation, and a part taken out."""

import itertools
import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from cases import ORDERS, PADDING, SIZES, TARGET, draw, language_model, shaken, torch_stack
from tables import for_each, raises_for_each
from torch import nn

from attn_lib import Cache, causal_mask, padding_mask, positions
from attn_lib.generation import generate
from attn_lib.layers import MultiHeadAttention
from attn_lib.masks import to_blocked
from attn_lib.models import DecoderLM, SentenceEncoder, Transformer

SOURCE = torch.tensor([[18, 3, 4, 1, 7, 2, 9], [5, 5, 11, 8, 0, 0, 0]])


def translator(seed=8, max_len=17, **options):
    sizes = {"source_vocab_size": 19, "target_vocab_size": 13, "max_len": max_len, **SIZES}
    return shaken(Transformer(**sizes, **options), seed).eval()


def writer(kind, side="none"):
    """A model that continues TARGET, called as ``generate`` calls it, and its embedding."""
    if kind == "language model":
        model = language_model()
        return model, model.embedding
    model, mask = translator(), PADDING[side][0]
    context = model.encode(SOURCE, mask=mask)
    return partial(model.decode, context=context, context_mask=mask), model.target


KINDS = ["language model", "translator"]


def embedded_by_hand(embedding, tokens, mask):
    """Token by token: its vector, and that of its position among the real ones."""
    vectors, table, rows = embedding.vectors.weight, embedding.positions.table, []
    for b, row in enumerate(tokens.tolist()):
        position = 0
        for t, token in enumerate(row):
            rows.append(vectors[token] + table[position])
            # the position of padding does not matter, that of the next real token does
            position += 1 if mask is None else int(mask[b, 0, 0, t])
    return torch.stack(rows).view(*tokens.shape, -1)


def blocked(mask):
    return None if mask is None else to_blocked(mask)[:, 0, 0]


def check_real(found, model, x, mask):
    """Equal logits, of what comes out of the decoder, wherever a token is real."""
    expected = x @ model.output.weight.T + model.output.bias
    real = torch.ones(2, 5).bool() if mask is None else mask[:, 0, 0]
    torch.testing.assert_close(found[real], expected[real])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("side", ["none", "right"])  # a row of PyTorch's may not be empty
def test_a_language_model_equals_one_composed_of_torchs_parts(order, side):
    model, mask = language_model(norm_at=ORDERS[order]), PADDING[side][1]
    x = embedded_by_hand(model.embedding, TARGET, mask)
    options = {"mask": to_blocked(causal_mask(5)), "src_key_padding_mask": blocked(mask)}
    check_real(model(TARGET, mask=mask), model, torch_stack(model.decoder)(x, **options), mask)


@for_each(*itertools.product(ORDERS, PADDING, ["none", "right"]))
def test_a_transformer_equals_one_composed_of_torchs_parts(order, source_side, target_side):
    model = translator(norm_at=ORDERS[order], activation="relu")
    source_mask, target_mask = PADDING[source_side][0], PADDING[target_side][1]
    source = embedded_by_hand(model.source, SOURCE, source_mask)
    context = torch_stack(model.encoder)(source, src_key_padding_mask=blocked(source_mask))
    x = torch_stack(model.decoder)(
        embedded_by_hand(model.target, TARGET, target_mask),
        context,
        tgt_mask=to_blocked(causal_mask(5)),
        tgt_key_padding_mask=blocked(target_mask),
        memory_key_padding_mask=blocked(source_mask),
    )
    found = model(SOURCE, TARGET, source_mask=source_mask, target_mask=target_mask)
    check_real(found, model, x, target_mask)


def test_embeddings_are_scaled_before_the_positions_are_added():
    model = language_model(embedding_scale=3.0)
    expected = 3.0 * model.embedding.vectors(TARGET) + model.embedding.positions.table[:5]
    torch.testing.assert_close(model.embedding(TARGET, None), expected)


def test_models_pass_their_options_on():
    """To every sublayer, and from there to its parts."""
    options = {"norm_at": "after", "norm": partial(nn.LayerNorm, eps=1e-3), "dropout": 0.25}
    options |= {"attention": {"scale": 2.0}, "max_len": 5}
    model = DecoderLM(vocab_size=13, **SIZES, **options)
    pair = Transformer(source_vocab_size=19, target_vocab_size=13, **SIZES, **options)
    for stack in (model.decoder, pair.encoder, pair.decoder):
        for block in stack.blocks:
            attentions = [part for part in block.modules() if isinstance(part, MultiHeadAttention)]
            assert len(attentions) == (2 if stack is pair.decoder else 1)
            rates = {
                block.dropout.p,
                block.feed_forward.dropout.p,
                *(a.dropout for a in attentions),
            }
            norms = [part.eps for part in block.modules() if isinstance(part, nn.LayerNorm)]
            assert (rates, norms) == ({0.25}, [1e-3] * (1 + len(attentions)))
            scales = [2.0, 1 / 2**0.5]  # options of the attention are not the cross-attention's
            assert [a.scale for a in attentions] == scales[: len(attentions)]
            assert block.norm_at == "after"
    for embedding, words in ((model.embedding, 13), (pair.source, 19), (pair.target, 13)):
        assert embedding.dropout.p == 0.25
        assert embedding.vectors.num_embeddings == words
        assert embedding.positions.table.shape[0] == 5


def test_what_enters_is_dropped_in_training_only():
    model = language_model(dropout=1.0)
    assert torch.equal(model.train().embedding(TARGET, None), torch.zeros(2, 5, 6).double())
    by_hand = embedded_by_hand(model.embedding, TARGET, None)
    torch.testing.assert_close(model.eval().embedding(TARGET, None), by_hand)


# ---------------------------------------------------------------- caches and generation

ENDS = [ends for n in range(5) for ends in itertools.combinations(range(1, 5), n)]
SPLITS = [[b - a for a, b in itertools.pairwise([0, *ends, 5])] for ends in ENDS]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", PADDING)
def test_models_with_a_cache_in_any_split_equal_the_full_pass(kind, side):
    (call, _), mask = writer(kind, side), PADDING[side][1]
    full = call(TARGET, mask=mask)
    assert len(SPLITS) == 2**4
    for pieces in SPLITS:
        cache, outs, end = Cache(), [], 0
        for tokens in TARGET.split(pieces, dim=1):
            end += tokens.shape[1]
            so_far = None if mask is None else mask[..., :end]
            outs.append(call(tokens, mask=so_far, cache=cache))
        torch.testing.assert_close(torch.cat(outs, 1), full, msg=lambda m, p=pieces: f"{p}: {m}")
        assert cache.length == 5


def written_by_full_passes(call, tokens, n, *, temperature=0.0, mask=None, generator=None):
    """What ``generate`` promises, without a cache."""
    for _ in range(n):
        logits = call(tokens, mask=mask)[:, -1]
        if temperature == 0.0:
            new = torch.tensor([row.index(max(row)) for row in logits.tolist()])[:, None]
        else:
            powers = (logits / temperature).exp()
            weights = powers / powers.sum(dim=1, keepdim=True)
            new = torch.multinomial(weights, 1, generator=generator)
        tokens = torch.cat([tokens, new], dim=1)
        if mask is not None:
            mask = torch.cat([mask, torch.ones(len(tokens), 1, 1, 1).bool()], dim=-1)
    return tokens


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["none", "left"])
@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_generate_equals_full_passes(kind, side, temperature):
    (call, _), mask = writer(kind, side), PADDING[side][1]
    seeds = [torch.Generator().manual_seed(5) for _ in range(2)]
    options = {"temperature": temperature, "mask": mask}
    found = generate(call, TARGET, max_new_tokens=11, generator=seeds[0], **options)
    expected = written_by_full_passes(call, TARGET, 11, generator=seeds[1], **options)
    assert torch.equal(found, expected)
    assert torch.equal(found[:, :5], TARGET)
    assert torch.equal(seeds[0].get_state(), seeds[1].get_state())
    assert len(set(found[0, 5:].tolist())) > 1  # not one token over and over


def test_the_global_generator_is_the_default():
    call, texts = writer("language model")[0], []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        texts.append(generate(call, TARGET, max_new_tokens=7, temperature=2.0))
    assert torch.equal(texts[0], texts[1])
    assert not torch.equal(texts[0], texts[2])


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_filled_up_on_the_left_continue_as_each_alone(kind):
    mask = PADDING["left"][1]
    together = generate(writer(kind)[0], TARGET, max_new_tokens=7, mask=mask)
    call = model = language_model() if kind == "language model" else translator()
    for b, length in enumerate(mask.sum(-1).flatten().tolist()):
        if kind == "translator":
            call = partial(model.decode, context=model.encode(SOURCE[b : b + 1]))
        alone = generate(call, TARGET[b : b + 1, 5 - length :], max_new_tokens=7)
        assert torch.equal(alone[0, length:], together[b, 5:])
    unmasked = generate(writer(kind)[0], TARGET, max_new_tokens=7)
    assert not torch.equal(unmasked, together)


def test_generate_leaves_everything_as_it_was():
    model, modes = language_model(), []
    model.register_forward_hook(lambda *_: modes.append(torch.is_grad_enabled()))
    tokens, mask = TARGET.clone(), PADDING["left"][1].clone()
    assert torch.equal(generate(model, tokens, max_new_tokens=0), TARGET)
    out = generate(model, tokens, max_new_tokens=2, mask=mask)
    assert modes == [False, False]
    assert (out.dtype, out.shape) == (torch.int64, (2, 7))
    assert torch.is_grad_enabled()
    assert torch.equal(tokens, TARGET)
    assert torch.equal(mask, PADDING["left"][1])
    assert not out.is_inference()  # so that a model can learn from what was written
    model(out).sum().backward()
    assert model.embedding.vectors.weight.grad is not None


@pytest.mark.parametrize("changing", [{0}, {1}, {0, 1}])
def test_a_layer_may_change_its_positions_in_place(changing):
    """One tensor for all layers of a pass would be changed for the others as well."""

    def attention(layer):
        def rotate(x, places):
            return positions.apply_rope(x, places.mul_(3) if layer in changing else places)

        return {"d_k": 4, "rotate": rotate}

    model, cache = language_model(max_len=None, attention=attention), Cache()
    with torch.inference_mode():
        pieces = [model(TARGET[:, i : i + 2], cache=cache) for i in range(0, 5, 2)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), model(TARGET))


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_text_of_the_longest_length_fits_beside_padding(side):
    """One more token does not, nor is it written: ``test_generation.py``."""
    model, mask = language_model(max_len=3), padding_mask(torch.tensor([3, 3]), 4)
    mask = mask.flip(-1) if side == "left" else mask
    out = model(TARGET[:, :4], mask=mask)[mask[:, 0, 0]]
    tokens = TARGET[:, :4][mask[:, 0, 0]].view(2, 3)
    torch.testing.assert_close(out.view(2, 3, 13), model(tokens))
    with pytest.raises(ValueError, match=r"^positions must be 0 to 2, got 0 to 3$"):
        model(TARGET[:, :4])


def test_empty_batches_and_one_token():
    model, nobody = language_model(), torch.zeros(0, 5).long()
    assert model(nobody).shape == (0, 5, 13)
    assert generate(model, nobody, max_new_tokens=2, temperature=1.0).shape == (0, 7)
    assert translator()(SOURCE[:, :1], TARGET[:, :1]).shape == (2, 1, 13)
    torch.testing.assert_close(model(TARGET.int()), model(TARGET))


# ---------------------------------------------------------------- a part taken out turns a test red


def influence(embedding, logits_of):
    """(T, B, B', S): whether row t of example b depends on embedded token s of example b'."""
    embedded = []
    handle = embedding.register_forward_hook(lambda module, args, out: embedded.append(out))
    logits = logits_of()
    handle.remove()
    each = torch.eye(logits[..., 0].numel()).double().view(-1, *logits.shape[:2])
    numbers = logits @ draw(logits.shape[-1], seed=3)
    (rows,) = torch.autograd.grad(numbers, embedded, each, is_grads_batched=True)
    return (rows != 0).any(-1).unflatten(0, logits.shape[:2]).transpose(0, 1)


def test_nothing_comes_from_the_future():
    """Exactly no gradient from a later token or another example, and some from all others."""
    model, pair = language_model(), translator()
    expected = torch.eye(2).bool()[:, :, None] & torch.ones(5, 5).tril().bool()[:, None, None]
    assert torch.equal(influence(model.embedding, lambda: model(TARGET)), expected)
    assert torch.equal(influence(pair.target, lambda: pair(SOURCE, TARGET)), expected)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_has_no_influence(side):
    """Padding that holds NaN changes not one bit; its gradient is exactly 0, no other is."""
    source_mask, mask = PADDING[side]
    real_source, real = source_mask[:, 0, 0], mask[:, 0, 0]
    model, pair = language_model(), translator()
    masks = {"source_mask": source_mask, "target_mask": mask}
    alone, translated = model(TARGET, mask=mask), pair(SOURCE, TARGET, **masks)

    same = torch.eye(2).bool()[:, :, None]
    before = torch.ones(5, 5).tril().bool()[:, None, None]
    found = influence(pair.source, lambda: pair(SOURCE, TARGET, **masks))
    assert torch.equal(found, (same & real_source).expand(5, 2, 2, 7))
    calls = {model.embedding: lambda: model(TARGET, mask=mask)}
    calls[pair.target] = lambda: pair(SOURCE, TARGET, **masks)
    for embedding, logits_of in calls.items():
        found = influence(embedding, logits_of)
        assert torch.equal(found[real.T], (same & real & before)[real.T])

    for embedding, token in ((model.embedding, 11), (pair.target, 11), (pair.source, 17)):
        embedding.vectors.weight.data[token] = torch.nan
    source, target = SOURCE.where(real_source, 17), TARGET.where(real, 11)
    assert torch.equal(model(target, mask=mask)[real], alone[real])
    assert torch.equal(pair(source, target, **masks)[real], translated[real])


# ---------------------------------------------------------------- what models refuse

ALL = torch.ones(2, 1, 1, 5).bool()
REAL = "^mask must be bool, True = a real token, got torch.float32$"


@for_each(
    (TARGET.float(), None, TypeError, "int64 or int32, got torch.float32$"),
    (TARGET[0], None, ValueError, r"^tokens must be \(B, T\), got \(5,\)$"),
    (TARGET + 1, None, ValueError, "^tokens must be 0 to 12, got 1 to 13$"),
    (TARGET, ALL.float(), TypeError, REAL),
    (TARGET, ALL[:, 0, 0], ValueError, r"^mask must be \(B, 1, 1, 5\) with B=2, got \(2, 5\)$"),
)
def test_bad_tokens_and_masks_are_named(tokens, mask, error, message):
    pair = translator()
    for model in (
        language_model(),
        lambda tokens, mask=None: pair(SOURCE, tokens, target_mask=mask),
        partial(pair.decode, context=pair.encode(SOURCE)),
    ):
        with pytest.raises(error, match=message):
            model(tokens, mask=mask)


@raises_for_each(
    (17, SOURCE + 1, None, ValueError, r"^tokens must be 0 to 18, got 1 to 19$"),
    (17, SOURCE, PADDING["left"][1], ValueError, r"with B=2, got \(2, 1, 1, 5\)$"),
    (5, SOURCE, None, ValueError, r"^positions must be 0 to 4, got 0 to 6$"),
    (17, SOURCE[:1], None, ValueError, "same batch size, got 2 and 1"),
)
def test_bad_sources_are_named(max_len, source, mask):
    translator(max_len=max_len)(source, TARGET, source_mask=mask)


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_counts_what_the_cache_holds(kind):
    call, cache = writer(kind)[0], Cache()
    call(TARGET[:, :3], cache=cache)
    with pytest.raises(ValueError, match=r"\(B, 1, 1, 5\) with B=2, got \(2, 1, 1, 2\)$"):
        call(TARGET[:, 3:], mask=torch.ones(2, 1, 1, 2).bool(), cache=cache)


ON_THE_LEFT = "^each row must end with its real tokens, side by side: put the padding on the left$"


@raises_for_each(
    ({"max_new_tokens": 1.5}, TypeError, "^max_new_tokens must be an integer, got 1.5$"),
    ({"end": 1.5}, TypeError, "^end must be an integer, got 1.5$"),
    ({"temperature": -0.5}, ValueError, "^temperature must be at least 0 and finite, got -0.5"),
    ({"temperature": float("nan")}, ValueError, "at least 0 and finite, got nan$"),
    ({"mask": PADDING["right"][1]}, ValueError, ON_THE_LEFT),
    ({"mask": padding_mask(torch.tensor([4, 5]), 5)}, ValueError, ON_THE_LEFT),
    ({"mask": (torch.arange(5) % 2 == 0).expand(2, 1, 1, 5)}, ValueError, ON_THE_LEFT),
    ({"tokens": TARGET[:, :0]}, ValueError, r"T at least 1, got \(2, 0\)$"),
    ({"tokens": TARGET[0]}, ValueError, r"T at least 1, got \(5,\)$"),
)
def test_what_cannot_be_written_on_is_named(options):
    options = {"tokens": TARGET, "max_new_tokens": 2, **options}
    generate(language_model(), options.pop("tokens"), **options)


def test_nobody_is_written_for():
    """A batch of none, with a mask and without."""
    for mask in (None, torch.ones(0, 1, 1, 5, dtype=torch.bool)):
        assert generate(language_model(), TARGET[:0], mask=mask, max_new_tokens=2).shape == (0, 7)


# ---------------------------------------------------------------- what an attack found


@raises_for_each(
    (
        DecoderLM,
        {"logit_softcap": float("inf")},
        ValueError,
        "^logit_softcap must be finite, got i",
    ),
    (DecoderLM, {"logit_softcap": 0.0}, ValueError, "^logit_softcap must be positive, got 0.0$"),
    (
        DecoderLM,
        {"embedding_scale": math.nan},
        ValueError,
        "^embedding_scale must be finite, got n",
    ),
    (DecoderLM, {"layer_scale": math.nan}, ValueError, "^layer_scale must be finite, got nan$"),
    (DecoderLM, {"tied": 1}, TypeError, "^tied must be True or False, got 1$"),
    (DecoderLM, {"vocab_size": 0}, ValueError, "^vocab_size must be at least 1, got 0"),
    (DecoderLM, {"max_len": 0}, ValueError, "^max_len must be at least 1, got 0"),
    (SentenceEncoder, {"vocab_size": 0}, ValueError, "^vocab_size must be at least 1, got 0"),
    (SentenceEncoder, {"max_len": 0}, ValueError, "^max_len must be at least 1, got 0"),
)
def test_numbers_are_refused_when_the_model_is_made(kind, options):
    kind(**{"vocab_size": 7, "max_len": 5, **SIZES, **options})


def test_a_text_without_a_token_is_named():
    tokenizer = SimpleNamespace(encode=lambda text: SimpleNamespace(ids=[int(c) for c in text]))
    model = SentenceEncoder(vocab_size=7, max_len=5, **SIZES, tokenizer=tokenizer).eval()
    assert model.encode(["12", "3"]).isfinite().all()
    with pytest.raises(ValueError, match=r"^a text must have at least one token, got none for ''$"):
        model.encode(["12", ""])


def test_a_translation_longer_than_max_len_is_named_before_it_is_written():
    model = translator(max_len=7)
    write = partial(model.decode, context=model.encode(SOURCE))
    with pytest.raises(ValueError, match="need a model with max_len of at least 13, got 7"):
        generate(write, TARGET, max_new_tokens=9)


def test_what_models_start_with():
    """Vectors as large as positions, BERT's eps; and no biases where none are wanted."""
    embedding = DecoderLM(vocab_size=300, max_len=300, **SIZES).embedding
    for table in (embedding.vectors.weight, embedding.positions.table):
        assert 0.018 < table.std() < 0.022
    assert DecoderLM(vocab_size=7, max_len=5, **SIZES, bias=False).output.bias is None
    encoder = SentenceEncoder(vocab_size=7, max_len=5, **SIZES)
    assert {part.eps for part in encoder.modules() if isinstance(part, nn.LayerNorm)} == {1e-12}


def test_too_long_a_sentence_is_named_without_a_batch_too():
    encoder = SentenceEncoder(vocab_size=7, max_len=5, **SIZES)
    with pytest.raises(ValueError, match=r"^a sentence must have at most 5 tokens, got 6$"):
        encoder.embed(torch.zeros(6, dtype=torch.int64))


def test_models_run_on_the_meta_device():
    model = DecoderLM(vocab_size=7, max_len=5, **SIZES).to("meta")
    assert model(torch.zeros(2, 4, dtype=torch.int64, device="meta")).shape == (2, 4, 7)
