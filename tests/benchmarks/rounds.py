"""Contestants that do the same work, timed in turn, as multiples of the first one's time.

They take turns within every round, so that a busy machine is busy for all of them, and use one
thread, so that it is not the scheduler that is measured; figures are medians and 10th and 90th
percentiles over the rounds. Ratios are printed, never asserted. ``ROUNDS`` and ``THREADS`` in the
environment change how many there are.
"""

import os
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from torch import Tensor

ROUNDS = int(os.environ.get("ROUNDS", "100"))
torch.set_num_threads(int(os.environ.get("THREADS", "1")))  # when first compared, too


def race(
    title: str,
    contestants: dict[str, Callable[[], Tensor]],
    benchmark: BenchmarkFixture,
    capsys: pytest.CaptureFixture,
    *,
    backward: bool = False,
    rounds: int = ROUNDS,
) -> None:
    """Time the contestants in interleaved rounds, and print what each takes beside the first.

    One of them is ``attn_lib``. Gradients, of the output's sum, are computed, or not prepared for.
    """
    times = {name: [] for name in contestants}

    def measure():
        for name in sorted(contestants, key=lambda _: torch.rand(())):  # in turn, in any order
            start = time.perf_counter()
            with torch.set_grad_enabled(backward):
                out = contestants[name]()
                if backward:
                    out.sum().backward()
            times[name].append(time.perf_counter() - start)

    benchmark.pedantic(measure, rounds=rounds, warmup_rounds=min(5, rounds))
    kept = {name: np.array(values[-rounds:]) for name, values in times.items()}
    first, width = next(iter(contestants)), max(map(len, contestants))
    with capsys.disabled():
        print(f"\n{title}:")
        print(f"  {first} {1e3 * np.median(kept[first]):.2f} ms, {rounds} rounds")
        for other in contestants:
            if other != "attn_lib":
                ratio = np.median(kept["attn_lib"] / kept[other])
                print(f"  attn_lib / {other}, median of the ratios within a round: {ratio:.3f}")
        for name in contestants:
            share = np.percentile(kept[name], [50, 10, 90]) / np.median(kept[first])
            print("  {:{}} {:.3f} ({:.3f} to {:.3f})".format(name, width, *share))
            benchmark.extra_info[name] = share.tolist()
