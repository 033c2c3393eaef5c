"""What is judged of modules and functions on a GPU, by tensors that behave as if they were on one.

That they do, a run on an H200 has shown.
"""

import pytest
import torch
from planted.functions import causal
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from attn_check import assert_rope, diagnose
from attn_lib import Cache, MultiHeadAttention, apply_rope, attention

pytestmark = pytest.mark.usefixtures("one_thread")


class Away(Tensor):
    """A tensor with numbers that says it is on a GPU, and computes with no tensor of the CPU."""

    here = False  # until its numbers are exchanged for those of a tensor of the CPU

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        away = [isinstance(x, cls) and not x.here for x in tensors]
        if func == Tensor.device.__get__ and any(away):
            return torch.device("cuda:0")
        moves = func in (Tensor.data.__set__, Tensor.cpu)
        with torch._C.DisableTorchFunctionSubclass():
            others = [
                x for x, is_away in zip(tensors, away, strict=True) if x.dim() and not is_away
            ]
            if any(away) and others and not moves:
                raise RuntimeError("Expected all tensors to be on the same device")
            out = func(*args, **(kwargs or {}))
            if func == Tensor.data.__set__:
                args[0].here = True
            its = cls if any(away) and not moves else Tensor
            return tree_map_only(Tensor, lambda x: x if type(x) is its else x.as_subclass(its), out)

    def __deepcopy__(self, memo):
        with torch._C.DisableTorchFunctionSubclass():
            twin = self.detach().clone().requires_grad_(self.requires_grad)
        twin = memo[id(self)] = twin.as_subclass(Away)
        twin.here, twin._is_param = self.here, getattr(self, "_is_param", False)
        return twin


def away(module: nn.Module) -> nn.Module:
    """The same module, moved to the GPU that is not there."""
    for part in module.modules():
        for name, x in part.named_parameters(recurse=False):
            setattr(part, name, nn.Parameter(x.detach().as_subclass(Away)))
        for name, x in part.named_buffers(recurse=False):
            setattr(part, name, x.as_subclass(Away))
    return module


def layer() -> MultiHeadAttention:
    return away(MultiHeadAttention(24, 4, rotate=apply_rope))


def test_a_copy_on_the_cpu_is_judged_and_the_report_says_so():
    there = layer()

    def step(x, cache):
        cache = Cache() if cache is None else cache
        return there(x, causal=True, cache=cache), cache

    options = {"causal": True}
    report = diagnose(there, options=options, causal=True, rope_base=10_000.0, step=step)
    assert report.ok, report
    assert "cuda:0, where parameters are: a copy on the CPU was judged" in report.unchecked
    assert any(text.startswith("pieces of") for text in report.holds)
    assert {p.device.type for p in there.parameters()} == {"cuda"}
    wrong = diagnose(there, options={"causal": False}, causal=True, rope_base=10_000.0)
    assert wrong.mistakes == ["causal_missing"], wrong


def test_what_cannot_be_copied_from_a_gpu_is_said():
    class Kept(nn.MultiheadAttention):
        def __deepcopy__(self, memo):
            raise RuntimeError("there is one of me")

    with pytest.raises(ValueError, match="fn is on cuda:0 and cannot be copied: move it to the"):
        diagnose(away(Kept(8, 2, batch_first=True)))


def test_a_function_may_compute_on_a_gpu():
    """It moves what it is given, and its output stays there."""

    def moved(q, k, v):
        return causal(q, k, v).as_subclass(Away)

    assert diagnose(moved, causal=True).ok
    assert diagnose(lambda q, k, v: [x.as_subclass(Away) for x in attention(q, k, v)]).ok
    assert_rope(lambda x, positions: apply_rope(x, positions).as_subclass(Away))
    table = torch.arange(200).as_subclass(Away)
    assert_rope(lambda x, positions: apply_rope(x, table[positions]))


def test_the_numbers_that_a_gpu_draws_stay_as_they_were(monkeypatch):
    """Where a GPU is in use, its random state is kept too."""
    forked = []
    fork = torch.random.fork_rng
    monkeypatch.setattr(torch.random, "fork_rng", lambda d: (forked.append([*d]), fork([]))[1])
    diagnose(causal, causal=True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    diagnose(causal, causal=True)
    assert (forked[0], forked[-1]) == ([], [0, 1])
