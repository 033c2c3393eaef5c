"""One training loop for every page: Adam, a seed, and the loss of each step."""

import math
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

_REPORTS = 20  # number of progress reports in a run


def train(
    model: nn.Module,
    loss: Callable[[nn.Module, torch.Generator], Tensor],
    *,
    steps: int,
    lr: float | Callable[[int], float],
    seed: int = 0,
    label: str = "training",
) -> Tensor:
    """Minimise ``loss`` with Adam, and return its value at each step.

    The same seed gives the same run, dropout included, and the global random state is left as it
    was. The seed does not cover the *initial* parameters: seed those before you build the model.

    Args:
        model: trained in place, in training mode; afterwards each module has its earlier mode.
        loss: a function of the model and of a seeded generator, from which it draws its batch;
            returns a tensor with one number.
        steps: number of Adam steps, at least 1.
        lr: learning rate; or a schedule, a function of the step, counted from 0.
        seed: of the batches and of dropout; default 0.
        label: the first words of the progress line. The line appears only in notebooks,
            disappears at the end, and is switched off by ``ATTN_LIB_PROGRESS=0``.

    Returns:
        (steps,) the loss before each step, detached.

    Raises:
        ValueError: ``steps`` below 1; a learning rate that is negative or not finite, or 0 in
            every step; a loss that is not one finite number (the message names the step).

    Example:
        >>> model = nn.Linear(1, 1)
        >>> history = train(model, lambda m, g: (m.weight - 3.0).square().sum(), steps=300, lr=0.1)
        >>> round(model.weight.item(), 2), history.shape
        (3.0, torch.Size([300]))

    Source: Kingma and Ba (2015), "Adam: A Method for Stochastic Optimization".
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    schedule = lr if callable(lr) else lambda step: lr
    rates = [float(schedule(step)) for step in range(steps)]
    for step, rate in enumerate(rates):
        if not 0.0 <= rate < math.inf:
            raise ValueError(f"lr must be positive and finite, got {rate} at step {step}")
    if not any(rates):
        raise ValueError(f"lr must be positive, got 0.0 in each of {steps} steps")
    optimizer = torch.optim.Adam(model.parameters(), fused=True)  # one call for all parameters
    generator = torch.Generator().manual_seed(seed)
    history, mode = [], {module: module.training for module in model.modules()}
    report, devices = _reporter(label, steps), {p.device for p in model.parameters()}
    model.train()
    try:
        with torch.random.fork_rng([d for d in devices if d.type == "cuda"]):
            torch.manual_seed(seed)  # dropout draws from the global state
            for step in range(steps):
                value = loss(model, generator)
                _check(value, step)
                for group in optimizer.param_groups:
                    group["lr"] = rates[step]
                optimizer.zero_grad()
                value.backward()
                optimizer.step()
                history.append(value.detach())
                report(step, value)
    finally:
        for module, was_training in mode.items():
            module.training = was_training
    return torch.stack(history)


def _check(value: Any, step: int) -> None:
    if not isinstance(value, Tensor) or value.dim() != 0:
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"loss must return a tensor with one number and no axes, got {got}")
    if not value.isfinite():
        raise ValueError(f"the loss is {value.item()} at step {step}: try a smaller lr")


def _reporter(label: str, steps: int) -> Callable[[int, Tensor], None]:
    """A function that shows progress in a notebook, and does nothing elsewhere."""
    # a line that is replaced and then removed leaves no output that a re-check would compare
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None or os.environ.get("ATTN_LIB_PROGRESS") == "0":
        return lambda step, value: None
    from IPython.display import clear_output

    every = max(1, steps // _REPORTS)

    def report(step: int, value: Tensor) -> None:
        if step + 1 == steps:
            clear_output()
        elif step % every == 0:
            clear_output(wait=True)
            print(f"{label}: step {step} of {steps}, loss {value.item():.4f}")

    return report
