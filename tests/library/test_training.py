"""The loop follows Adam as published, repeats itself, and leaves no trace."""

import sys
from types import SimpleNamespace

import pytest
import torch
from tables import for_each
from torch import nn

from attn_lib.training import train


def squares(model, generator):
    x = torch.rand(7, 3, generator=generator, dtype=torch.float64)
    return (model(x) - x.sum(dim=-1, keepdim=True)).square().mean()


def linear(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(3, 1).double()


def adam_by_hand(model, *, steps, lr, seed):
    """Kingma and Ba (2015), algorithm 1, in plain tensors; ``lr`` has a rate for each step."""
    generator = torch.Generator().manual_seed(seed)
    history, moments = [], [(torch.zeros_like(p), torch.zeros_like(p)) for p in model.parameters()]
    for step in range(1, steps + 1):
        value = squares(model, generator)
        history.append(value.item())
        gradients = torch.autograd.grad(value, list(model.parameters()))
        with torch.no_grad():
            for p, g, (m, v) in zip(model.parameters(), gradients, moments, strict=True):
                m.mul_(0.9).add_(0.1 * g)
                v.mul_(0.999).add_(0.001 * g * g)
                p -= lr[step - 1] * (m / (1 - 0.9**step)) / ((v / (1 - 0.999**step)).sqrt() + 1e-8)
    return history


def schedule(step):
    """Up, then down, as in the paper, and not in use at first."""
    return 0.05 * min(step / 7, (step + 1) ** -0.5)


@for_each(
    (0.03, [0.03] * 23),
    (lambda step: 0.03, [0.03] * 23),
    (schedule, [schedule(step) for step in range(23)]),  # the first step is step 0,
)
def test_it_is_adam_as_published(lr, rates):
    trained, by_hand = linear(), linear()
    history = train(trained, squares, steps=23, lr=lr, seed=5)
    numbers = adam_by_hand(by_hand, steps=23, lr=rates, seed=5)
    expected = torch.tensor(numbers, dtype=torch.float64)
    torch.testing.assert_close(history, expected, rtol=1e-10, atol=0)
    torch.testing.assert_close(trained.weight, by_hand.weight, rtol=1e-10, atol=0)
    assert not history.requires_grad


def test_a_seed_gives_the_same_batches_and_the_same_dropout():
    """Batches are drawn by a generator of their own, which starts at the seed, 0 by default."""

    def run(outside, **given):
        seen, model = [], nn.Sequential(nn.Dropout(0.5), linear())

        def loss(model, generator):  # nothing in it is random but dropout
            seen.append(torch.rand(7, 3, generator=generator, dtype=torch.float64))
            return model(torch.ones_like(seen[-1])).square().mean()

        torch.manual_seed(outside)
        before = torch.get_rng_state()
        history = train(model, loss, steps=3, lr=0.01, **given)
        assert torch.equal(torch.get_rng_state(), before)  # the global state is left alone
        generator = torch.Generator().manual_seed(given.get("seed", 0))
        batches = torch.rand(3, 7, 3, generator=generator, dtype=torch.float64)
        assert torch.equal(torch.stack(seen), batches)
        return history

    first = run(outside=1)
    assert torch.equal(first, run(outside=2, seed=0))
    assert not torch.equal(first, run(outside=1, seed=5))


def test_the_random_state_of_the_model_s_own_gpu_is_kept_too(monkeypatch):
    there = torch.device("cuda:1")

    class Away(nn.Parameter):
        device = there  # it says

    kept, fork = [], torch.random.fork_rng

    def forked(devices):
        kept.append([*devices])
        Away.device = torch.device("cpu")  # where the steps can be taken
        return fork([])

    monkeypatch.setattr(torch.random, "fork_rng", forked)
    for made in (nn.Parameter, Away):
        Away.device, model = there, linear()
        model.weight = made(model.weight.detach())
        train(model, squares, steps=1, lr=0.01)
    assert kept == [[], [there]]


@pytest.mark.parametrize("outer", [True, False])
def test_every_part_gets_back_its_mode(outer):
    model = nn.Sequential(linear(), nn.Dropout(0.5)).train(outer)
    model[1].train(not outer)  # frozen by hand
    seen = []

    def loss(model, generator):
        seen.append([module.training for module in model.modules()])
        return squares(model, generator)

    train(model, loss, steps=1, lr=0.01)
    assert seen == [[True, True, True]]
    assert [module.training for module in model.modules()] == [outer, outer, not outer]


def never(model, generator):
    raise AssertionError("a step was begun")


def at(*rates):
    return rates.__getitem__


@for_each(
    (0, 0.1, never, "steps must be at least 1, got 0"),
    (3, at(0.1, 0.1, -0.5), never, r"^lr must be positive and finite, got -0\.5 at step 2$"),
    (3, at(0.1, float("nan"), 0.1), never, "^lr must be positive and finite, got nan at step 1$"),
    (3, at(float("inf"), 0.1, 0.1), never, "^lr must be positive and finite, got inf at step 0$"),
    (3, 0.0, never, r"^lr must be positive, got 0\.0 in each of 3 steps$"),
    (1, 0.1, lambda m, g: m.weight, r"no axes, got shape \(1, 3\)"),
    (1, 0.1, lambda m, g: 1.0, "no axes, got float"),
    (1, 0.1, lambda m, g: m.weight.sum() / 0, "is -?inf at step 0: try a smaller lr$"),
    (1, 0.1, lambda m, g: m.weight.sum() * torch.nan, "the loss is nan at step 0"),
)
def test_what_cannot_be_trained_is_named_and_left_as_it_was(steps, lr, loss, message):
    model = linear().eval()
    before = model.weight.clone()
    with pytest.raises(ValueError, match=message):
        train(model, loss, steps=steps, lr=lr)
    assert torch.equal(model.weight, before)
    assert not model.training


@for_each((100, 5, {"label": "a head"}, "a head"), (47, 2, {}, "training"), (5, 1, {}, "training"))
def test_progress_is_shown_in_a_notebook_and_cleared_at_the_end(
    steps, each, options, label, monkeypatch, capsys
):
    clears = []
    display = SimpleNamespace(clear_output=lambda wait=False: clears.append(wait))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    for shell, setting, shown in (
        ("a notebook", "1", range(0, steps - 1, each)),
        ("a notebook", "0", ()),  # switched off
        (None, "1", ()),
    ):
        ipython = SimpleNamespace(get_ipython=lambda shell=shell: shell, display=display)
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        monkeypatch.setenv("ATTN_LIB_PROGRESS", setting)
        train(linear(), squares, steps=steps, lr=0.01, **options)
        for step, line in zip(shown, capsys.readouterr().out.splitlines(), strict=True):
            assert line.startswith(f"{label}: step {step} of {steps}, loss ")
        assert clears == [True] * len(shown) + [False] * bool(shown)
        clears.clear()
