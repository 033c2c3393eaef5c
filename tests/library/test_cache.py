"""What a cache holds: copies, calls that raise, layers told apart, gradients in every mode."""

import copy
import pickle
from functools import partial

import pytest
import torch
from cases import BLOCK, ROTATE, SIZES, draw, language_model, layer_of
from tables import for_each, raises_for_each

from attn_lib import Cache, Transformer, TransformerBlock, TransformerDecoder, generate

pytestmark = pytest.mark.usefixtures("one_thread")
TOKENS = torch.randint(13, (2, 6), generator=torch.Generator().manual_seed(1))


def pickled(thing):
    return pickle.loads(pickle.dumps(thing))  # noqa: S301 - our own, made here


@for_each(
    *((lambda model, cache: (model, copy.deepcopy(cache)), grad) for grad in (True, False)),
    *((lambda model, cache: (copy.deepcopy(model), cache), grad) for grad in (True, False)),
    *((lambda *both: copy.deepcopy(both), grad) for grad in (True, False)),
    (lambda model, cache: (model, pickled(cache)), False),
    (lambda *both: pickled(both), False),
)
def test_a_copied_cache_is_not_empty(copied, grad):
    """Beam search copies caches; a copy once counted as empty (off by 1.7)."""
    model, cache = language_model(max_len=40), Cache()
    with torch.set_grad_enabled(grad):
        full = model(TOKENS)
        model(TOKENS[:, :4], cache=cache)
        model, cache = copied(model, cache)
        assert cache.length == 4
        torch.testing.assert_close(model(TOKENS[:, 4:], cache=cache), full[:, 4:])


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("grad", [True, False])
def test_two_copies_of_a_cache_go_their_own_ways(copier, grad):
    model, cache, other = language_model(max_len=40), Cache(), TOKENS.flip(1)
    with torch.set_grad_enabled(grad):
        model(TOKENS[:, :3], cache=cache)
        twin = copier(cache)
        for start, stop in ((3, 5), (5, 6)):  # in turn: the second step reads the first
            for tokens, one in ((TOKENS, cache), (other, twin)):
                whole = torch.cat([TOKENS[:, :3], tokens[:, 3:stop]], dim=1)
                out = model(tokens[:, start:stop], cache=one)
                torch.testing.assert_close(out, model(whole)[:, start:])
        assert cache.length == twin.length == 6


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy])
def test_a_copy_that_is_empty_does_not_learn_of_another_context(copier):
    stack, x = TransformerDecoder(**SIZES, cross_attention=True).eval(), draw(1, 3, 6).float()
    cache = Cache()
    twin = copier(cache)
    for one, seed in ((twin, 1), (cache, 2)):
        context = draw(1, 4, 6, seed=seed).float()
        torch.testing.assert_close(stack(x, context, cache=one), stack(x, context))


def test_the_cache_of_a_layer_alone_can_be_stored():
    """It knows the layer that has filled it; a stored one belongs to nobody yet."""
    layer, x = layer_of(), draw(1, 5, 6)
    with torch.no_grad():
        full, cache = layer(x, causal=True), Cache()
        layer(x[:, :3], causal=True, cache=cache)
        found = copy.deepcopy(layer)(x[:, 3:], causal=True, cache=pickled(cache))
        torch.testing.assert_close(found, full[:, 3:])


@pytest.mark.parametrize("where", ["second block", "output", "output of a pair"])
@pytest.mark.parametrize("grad", [True, False])
def test_a_call_that_raises_leaves_the_cache_as_it_was(where, grad):
    """The retry once appended the same keys twice."""
    model, cache = language_model(max_len=40), Cache()
    part = model.decoder.blocks[1].feed_forward if where == "second block" else model.output
    if where == "output of a pair":
        pair = Transformer(source_vocab_size=13, target_vocab_size=13, max_len=9, **SIZES).eval()
        model, part = partial(pair.decode, context=draw(2, 5, 6).float()), pair.output

    def fail(*_):
        raise RuntimeError("stop")

    with torch.set_grad_enabled(grad):
        for done in (0, 3):  # an empty cache, and one that is not
            handle = part.register_forward_hook(fail)
            with pytest.raises(RuntimeError, match="stop"):
                model(TOKENS[:, done : done + 3], cache=cache)
            handle.remove()
            assert cache.length == done
            out = model(TOKENS[:, done : done + 3], cache=cache)
            torch.testing.assert_close(out, model(TOKENS[:, : done + 3])[:, done:])


@raises_for_each(({}, TypeError, "got dict$"), (True, TypeError, "got bool$"))
def test_a_cache_is_one_of_this_library(cache):
    layer_of()(draw(1, 4, 6), causal=True, cache=cache)


def test_a_refused_call_of_a_layer_leaves_the_cache_as_it_was():
    layer, x, cache = layer_of(), draw(1, 4, 6), Cache()
    layer(x[:, :2], causal=True, cache=cache)
    with pytest.raises(ValueError, match="NaN"):
        layer(x[:, 2:], attn_bias=torch.full((2, 4), torch.nan).double(), causal=True, cache=cache)
    layer.softcap = -1.0  # is looked at when the keys have been appended
    with pytest.raises(ValueError, match="softcap must be positive"):
        layer(x[:, 2:], causal=True, cache=cache)
    layer.softcap = None
    assert cache.length == 2
    out = layer(x[:, 2:], causal=True, cache=cache)
    torch.testing.assert_close(out, layer(x, causal=True)[:, 2:])


@pytest.mark.parametrize("copier", [lambda block: block, copy.deepcopy])
@pytest.mark.parametrize("cross", [False, True])
def test_a_layer_used_again_in_a_stack_has_a_place_each_time(copier, cross):
    torch.manual_seed(0)
    stack = TransformerDecoder(**{**SIZES, "num_layers": 3}, cross_attention=cross).double()
    for i in (1, 2):
        stack.blocks[i] = copier(stack.blocks[0])
    x, cache = draw(2, 5, 6), Cache()
    context = draw(2, 7, 6, seed=1) if cross else None
    pieces = x.split([3, 1, 1], dim=1)
    got = torch.cat([stack(piece, context, cache=cache) for piece in pieces], dim=1)
    torch.testing.assert_close(got, stack(x, context))
    assert cache.length == 5


@pytest.mark.parametrize("options", [{"causal": True}, {"context": draw(1, 3, 6, seed=1)}])
@pytest.mark.parametrize("kind", ["layer", "its copy", "block", "a copy of the block"])
def test_layers_called_alone_share_a_cache_by_their_index_or_not_at_all(kind, options):
    first, second = layer_of(), layer_of(1)
    if "block" in kind:
        block = partial(TransformerBlock, **BLOCK, cross_attention="context" in options)
        first, second = block().double(), block().double()
    if "copy" in kind:
        second = copy.deepcopy(first)
    x, cache = draw(1, 4, 6), Cache()
    full = second(first(x, **{**options, "causal": True}), **{**options, "causal": True})
    one, two = (partial(part, cache=cache, **options) for part in (first, second))
    got = [two(one(piece, layer=0), layer=1) for piece in x.split([2, 1, 1], dim=1)]
    if "causal" in options:
        torch.testing.assert_close(torch.cat(got, dim=1), full)
        assert cache.length == 4
    cache = Cache()
    first(x, cache=cache, **options)
    with pytest.raises(ValueError, match=r"^another layer has filled this place of the cache: gi"):
        second(x, cache=cache, **options)


def test_another_model_does_not_continue_what_a_model_began():
    first, second, cache = language_model(), language_model(seed=6), Cache()
    first(TOKENS[:, :4], cache=cache)
    with pytest.raises(ValueError, match=r"^another layer has filled this place of the cache: gi"):
        second(TOKENS[:, 4:], cache=cache)
    torch.testing.assert_close(first(TOKENS[:, 4:], cache=cache), first(TOKENS)[:, 4:])


def test_a_cache_of_ones_own_is_handed_to_every_layer():
    """As the book's page does, which counts bytes; a call that raises leaves the count as well."""

    class Counting(Cache):
        bytes = 0

        def append(self, layer, k, v, **options):
            self.bytes += k.nbytes + v.nbytes
            return super().append(layer, k, v, **options)

    model, cache = language_model(), Counting()
    each = 2 * 2 * 2 * 6 * 8  # of one token: layers, keys and values, rows, width, bytes
    for end in (3, 5):
        model(TOKENS[:, cache.length : end], cache=cache)
        assert cache.bytes == copy.copy(cache).bytes == each * end
    with pytest.raises(ValueError, match="the same batch size"):
        model(TOKENS[:1], cache=cache)
    assert (cache.bytes, cache.length) == (each * 5, 5)


def test_a_copy_taken_during_a_call_is_at_rest():
    model, cache, taken = language_model(), Cache(), []

    def look(block, args, options):
        seen = options["cache"]
        taken.extend([copy.copy(seen), pickled(seen)])
        assert cache.length == seen.length == 3

    with torch.no_grad():
        model(TOKENS[:, :3], cache=cache)
        handle = model.decoder.blocks[0].register_forward_pre_hook(look, with_kwargs=True)
        expected = model(TOKENS[:, 3:], cache=cache)
        handle.remove()
        for other in taken:
            torch.testing.assert_close(model(TOKENS[:, 3:], cache=other), expected)
            assert other.length == 6


def test_a_layer_that_other_layers_have_overtaken_is_refused():
    torch.manual_seed(0)
    stack = TransformerDecoder(**SIZES, cross_attention=False).double()
    x, cache = draw(2, 5, 6), Cache()
    stack.blocks[0].attention(x[:, :2], causal=True, cache=cache)  # one layer alone
    message = "^the cache holds 0 tokens of this layer and 2 of others: start with an empty one$"
    with pytest.raises(ValueError, match=message):
        stack(x[:, 2:], cache=cache)


def test_generate_names_a_model_that_uses_a_layer_twice():
    layer, table = layer_of(), draw(13, 6)

    def call(tokens, mask=None, cache=None):
        x = table[tokens]
        for _ in range(2):
            x = x + layer(x, causal=True, cache=cache)
        return x @ table.T

    message = "^the cache holds 12 tokens after 6 were given: the model uses a layer twice; "
    message += "call its layers through one TransformerDecoder$"
    with pytest.raises(ValueError, match=message):
        generate(call, TOKENS, max_new_tokens=2)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("then", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_a_cache_goes_on_in_another_mode_of_gradients(mode, then):
    model, cache = (language_model(max_len=40, attention={"d_k": 4, "rotate": ROTATE}), Cache())
    full, outs = model(TOKENS), []
    for context, part in ((mode, [0, 1]), (then, [2, 3]), (mode, [4, 5])):
        with context():
            outs.append(model(TOKENS[:, part], cache=cache))
    torch.testing.assert_close(torch.cat([out.clone() for out in outs], dim=1), full)


def test_a_backward_pass_after_more_tokens_finds_what_it_needs():
    """Writing in place would have changed the keys that an earlier piece's gradient needs."""
    model, cache = language_model(max_len=40), Cache()
    for name, p in model.named_parameters():
        p.requires_grad_("q_proj" in name)
    trained = [p for p in model.parameters() if p.requires_grad]
    outs = [model(piece, cache=cache) for piece in TOKENS.split(1, dim=1)]
    got = torch.autograd.grad(sum(o.square().sum() for o in outs), trained)
    expected = torch.autograd.grad(model(TOKENS).square().sum(), trained)
    torch.testing.assert_close(got, expected)


def test_a_step_copies_no_cache():
    """Memory is allocated ahead: a hundred steps allocate keys a few times, not a hundred."""
    layer, x, cache, places = layer_of(), draw(1, 100, 6), Cache(), set()
    with torch.no_grad():
        for t in range(100):
            layer(x[:, t : t + 1], causal=True, cache=cache)
            (entry,) = cache._entries.values()
            places.add((entry.k.untyped_storage().data_ptr(), entry.k.shape[2]))
    assert cache.length == 100
    assert sorted(capacity for _, capacity in places) == [2, 6, 14, 30, 62, 126]


@for_each(
    (lambda x: x.float(), "dtype and device, got torch.float32 on cpu and torch.float64 on"),
    (lambda x: x[:1], "the same batch size, got 1 and 2$"),
)
def test_a_cache_of_another_kind_is_refused(change, message):
    layer, x, cache = layer_of(), draw(2, 4, 6), Cache()
    layer(x, causal=True, cache=cache)
    layer.to(change(x).dtype)
    with pytest.raises(ValueError, match=message):
        layer(change(x), causal=True, cache=cache)
    assert cache.length == 4
