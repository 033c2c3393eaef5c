"""Writing: when it stops, what is refused, and from what a token is drawn."""

import sys
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from cases import SIZES, draw, language_model
from tables import raises_for_each

from attn_lib import Transformer, generate

pytestmark = pytest.mark.usefixtures("one_thread")
TOKENS = torch.randint(13, (2, 6), generator=torch.Generator().manual_seed(1))


def test_a_model_in_training_mode_is_refused():
    model = language_model(max_len=40).train()
    with pytest.raises(ValueError, match=r"is in training mode: call model.eval\(\) first$"):
        generate(model, TOKENS, max_new_tokens=2)
    pair = Transformer(source_vocab_size=13, target_vocab_size=13, max_len=9, **SIZES)
    call = partial(pair.decode, context=draw(2, 5, 6).float())
    with pytest.raises(ValueError, match="training mode"):
        generate(call, TOKENS, max_new_tokens=2)
    pair.eval()
    assert generate(call, TOKENS, max_new_tokens=2).shape == (2, 8)


def test_writing_stops_when_every_row_has_ended():
    calls = []

    def count(tokens, mask=None, cache=None):
        calls.append(tokens.shape[1])
        return F.one_hot((tokens + 1) % 13, 13).float()

    got = generate(count, torch.tensor([[4, 0], [0, 2]]), max_new_tokens=1000, end=4)
    # an end in the prompt ends nothing
    assert got.tolist() == [[4, 0, 1, 2, 3, 4], [0, 2, 3, 4, 4, 4]]
    assert calls == [2, 1, 1, 1]  # each step computes the newest token alone


def test_too_small_a_max_len_is_named_before_writing_starts():
    model, called = language_model(max_len=40), []
    model.register_forward_hook(lambda *_: called.append(1))
    message = "^6 tokens and max_new_tokens=36 need a model with max_len of at least 41, got 40$"
    with pytest.raises(ValueError, match=message):
        generate(model, TOKENS, max_new_tokens=36)
    assert called == []
    assert generate(model, TOKENS, max_new_tokens=35).shape == (2, 41)  # the last is not read
    mask = torch.arange(6) >= torch.tensor([[2], [3]])
    padded = generate(model, TOKENS, max_new_tokens=37, mask=mask[:, None, None])
    assert padded.shape == (2, 43)
    with pytest.raises(ValueError, match=r"^4 tokens and max_new_tokens=38 need a model with max"):
        generate(model, TOKENS, max_new_tokens=38, mask=mask[:, None, None])


def test_a_model_without_a_max_len_has_no_limit():
    class Same(torch.nn.Module):
        def forward(self, tokens, mask=None, cache=None):
            return F.one_hot(tokens, 13).float()

    got = generate(Same().eval(), torch.tensor([[3]]), max_new_tokens=50)
    assert got.tolist() == [[3] * 51]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_not_chosen(bad, temperature):
    def call(tokens, mask=None, cache=None):
        return torch.tensor([0.0, bad, 1.0]).expand(*tokens.shape, 3)

    with pytest.raises(ValueError, match=r"^the model's logits must be finite, got NaN or infin"):
        generate(call, TOKENS, max_new_tokens=1, temperature=temperature)


def test_a_token_may_be_forbidden_by_minus_infinity():
    def call(tokens, mask=None, cache=None):
        return torch.tensor([0.0, -torch.inf, 1.0]).expand(*tokens.shape, 3)

    for temperature in (0.0, 5.0):
        got = generate(call, TOKENS, max_new_tokens=50, temperature=temperature)[:, 6:]
        assert 1 not in got.tolist()[0] + got.tolist()[1]


@pytest.mark.parametrize("temperature", [1e-60, 5e-324, 1e300, sys.float_info.max])
def test_temperatures_beyond_the_range_of_floats_are_sound(temperature):
    def call(tokens, mask=None, cache=None):
        return torch.tensor([-1.0, 4.0, 3.0]).expand(*tokens.shape, 3)

    tokens_drawn = generate(call, TOKENS[:1], max_new_tokens=60, temperature=temperature)[:, 6:]
    assert set(tokens_drawn[0].tolist()) == ({1} if temperature < 1 else {0, 1, 2})
    with pytest.raises(ValueError, match=r"^temperature must be at least 0 and finite, got 1000"):
        generate(call, TOKENS, max_new_tokens=1, temperature=10**400)


def test_top_p_draws_among_the_most_probable():
    """Probabilities 0.4, 0.3, 0.2, 0.1 in an order of their own, 20,000 rows."""
    shares = torch.tensor([0.2, 0.4, 0.1, 0.3]).double()

    def call(tokens, mask=None, cache=None):
        return shares.log().expand(*tokens.shape, 4)

    rows = torch.zeros(20_000, 1).long()
    likely = {1e-9: {1}, 0.39: {1}, 0.41: {1, 3}, 0.75: {0, 1, 3}, 1.0: {0, 1, 2, 3}}
    for top_p, likeliest in likely.items():
        generator = torch.Generator().manual_seed(0)
        options = {"temperature": 1.0, "top_p": top_p, "generator": generator}
        tokens_drawn = generate(call, rows, max_new_tokens=1, **options)[:, 1]
        total = sum(float(shares[token]) for token in likeliest)
        for token in range(4):
            p = float(shares[token]) / total if token in likeliest else 0.0
            error = (p * (1 - p) / 20_000) ** 0.5
            assert abs(float((tokens_drawn == token).double().mean()) - p) <= 4 * error
    options = {"max_new_tokens": 1, "temperature": 1.0, "top_p": 0.5}
    written = generate(lambda tokens, **_: torch.zeros(*tokens.shape, 2), rows, **options)
    assert len(written[:, 1].unique()) == 1  # of two halves, one is probable enough


@raises_for_each(
    ({"top_p": 0.5}, ValueError, "^top_p needs a temperature above 0"),
    ({"top_p": 0.0, "temperature": 1.0}, ValueError, r"^top_p must be in \(0, 1\], got 0.0$"),
    ({"top_p": 1.5, "temperature": 1.0}, ValueError, r"^top_p must be in \(0, 1\], got 1.5$"),
    ({"top_p": "all", "temperature": 1.0}, TypeError, "^top_p must be a number, got 'all'$"),
    ({"temperature": "hot"}, TypeError, "^temperature must be a number, got 'hot'$"),
)
def test_choices_that_cannot_be_are_named(options):
    generate(language_model(max_len=40), TOKENS, max_new_tokens=1, **options)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_each_row_is_asked_whether_its_logits_are_finite(temperature):
    """In float16 the sum of four best logits of 20,000 is infinite."""

    def call(tokens, mask=None, cache=None):
        return torch.tensor([0.0, 20_000.0, 1.0]).half().expand(*tokens.shape, 3)

    rows = torch.zeros(4, 1).long()
    out = generate(call, rows, max_new_tokens=2, temperature=temperature)
    assert out.tolist() == [[0, 1, 1]] * 4

    def spoiled(tokens, mask=None, cache=None):
        return call(tokens).index_fill(0, torch.tensor([2]), float("nan"))

    with pytest.raises(ValueError, match=r"^the model's logits must be finite"):
        generate(spoiled, rows, max_new_tokens=2, temperature=temperature)
