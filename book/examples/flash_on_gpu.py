"""Time and memory of attention by length on a GPU, and which kernel PyTorch chose: a record.

    OUT=folder python book/examples/flash_on_gpu.py

writes ``folder/flash_on_gpu.json``: for each form of causal attention (9 heads of width 64, as in
SmolLM2, bfloat16) and each length, milliseconds forward and forward with backward (median), and
the most memory held beyond inputs and results, in MB; and what PyTorch gives a query to which a
mask closes every key. A minute. It needs torch and triton, and nothing of this book. ``--small``
tries every line on a machine without a GPU.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

try:
    import triton
    from flash_kernel import flash_attention as triton_attention
except ImportError:
    triton = None

LENGTHS = [1024, 2048, 4096, 8192, 16384, 32768, 65536]
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
HEADS, WIDTH = 9, 64
DTYPE = torch.bfloat16 if GPU else torch.float16  # Triton's interpreter multiplies no bfloat16


def matrix(q, k, v):
    """The formula, with the whole matrix of weights."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(ahead, -torch.inf).softmax(-1) @ v


def tiles(q, k, v, block=1024):
    """The loop of the page in PyTorch: one tile of scores at a time."""
    outs = []
    for i in range(0, q.shape[-2], block):
        rows = q[..., i : i + block, :]
        m = torch.full_like(rows[..., :1], -torch.inf, dtype=torch.float32)
        total, out = torch.zeros_like(m), torch.zeros_like(rows, dtype=torch.float32)
        for j in range(0, i + 1, block):
            scores = (rows @ k[..., j : j + block, :].mT).float() / q.shape[-1] ** 0.5
            if j == i:
                ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
                scores = scores.masked_fill(ahead, -torch.inf)
            new = torch.maximum(m, scores.amax(-1, keepdim=True))
            old, w = torch.exp(m - new), torch.exp(scores - new)
            total = total * old + w.sum(-1, keepdim=True)
            out = out * old + (w.to(v.dtype) @ v[..., j : j + block, :]).float()
            m = new
        outs.append((out / total).to(q.dtype))
    return torch.cat(outs, dim=-2)


def sdpa(backend):
    """PyTorch's function, held to one of its kernels."""

    def attend(q, k, v):
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return attend


COMPILED = torch.compile(flex_attention) if GPU else flex_attention


def flex(q, k, v):
    """FlexAttention, compiled, with a causal mask that skips whole blocks."""
    T = q.shape[-2]
    if T not in flex.masks:
        causal = lambda b, h, i, j: i >= j  # noqa: E731
        flex.masks[T] = create_block_mask(causal, None, None, T, T, device=q.device)
    return COMPILED(q, k, v, block_mask=flex.masks[T])


flex.masks = {}

# the form, and whether it has a backward pass here
FORMS = {
    "matrix": (matrix, True),
    "PyTorch: math": (sdpa(SDPBackend.MATH), True),
    "PyTorch: efficient": (sdpa(SDPBackend.EFFICIENT_ATTENTION), True),
    "PyTorch: flash": (sdpa(SDPBackend.FLASH_ATTENTION), True),
    "PyTorch: cuDNN": (sdpa(SDPBackend.CUDNN_ATTENTION), True),
    "tiles in PyTorch": (tiles, False),
    "Triton, 25 lines": (lambda q, k, v: triton_attention(q, k, v, causal=True), False),
    "FlexAttention": (flex, GPU),
}


def inputs(T, dtype=DTYPE, *, grad=False):
    """The same random queries, keys and values each time."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, HEADS, T, WIDTH, device=DEVICE).to(dtype)
    return [x.clone().requires_grad_(grad) for x in (q, k, v)]


def wait():
    """Until the device has done what it was given."""
    if GPU:
        torch.cuda.synchronize()


def milliseconds(step):
    """Median of at most 20 runs, and of at most two seconds of them."""
    for _ in range(2):
        step()
    wait()
    found, began = [], time.perf_counter()
    while len(found) < 20 and time.perf_counter() - began < 2:
        start = time.perf_counter()
        step()
        wait()
        found.append(1000 * (time.perf_counter() - start))
    return round(statistics.median(found), 4)


def most_memory(step):
    """MB that were held at once beyond what was held before, without what the step returns."""
    if not GPU:
        return None
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = step()
    wait()
    returned = sum(x.nbytes for x in result)
    return round((torch.cuda.max_memory_allocated() - before - returned) / 1e6, 2)


def measured(form, T, *, backward):
    """One row: forward without gradients, then forward and backward."""
    q, k, v = inputs(T, grad=backward)
    gradient = torch.randn_like(q)

    def step():
        if not backward:
            with torch.no_grad():
                return [form(q, k, v)]
        out = form(q, k, v)
        return [out, *torch.autograd.grad(out, (q, k, v), gradient)]

    step()  # what is compiled or set up once
    return {"ms": milliseconds(step), "MB": most_memory(step)}


def guarded(made):
    """What it makes, or why it cannot."""
    try:
        return made()
    except torch.cuda.OutOfMemoryError:
        return {"failed": "out of memory"}
    except Exception as error:  # a kernel that this machine does not have is a result, too
        return {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    finally:
        if GPU:
            torch.cuda.empty_cache()


def largest_difference(form, T):
    """From the formula in double precision, on the same bfloat16 numbers."""
    q, k, v = inputs(T)
    expected = matrix(q.double(), k.double(), v.double())
    return {"largest": (form(q, k, v).double() - expected).abs().max().item()}


def kernels(step):
    """PyTorch's operators for attention that it calls, in order, each once."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as run:
        step()
        wait()
    names = [e.name for e in run.events() if "::_scaled_dot_product" in e.name]
    return list(dict.fromkeys(names))


def choices(T):
    """What PyTorch chooses by itself, by what it is given."""
    ones = torch.ones(T, T, dtype=torch.bool, device=DEVICE).tril()
    cases = {}
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        bias = torch.zeros(T, T, dtype=dtype, device=DEVICE)
        learned = bias.clone().requires_grad_()
        given = {"nothing": {}, "is_causal": {"is_causal": True}, "bool mask": {"attn_mask": ones}}
        given |= {"float mask": {"attn_mask": bias}, "float mask with gradient": {}}
        given["float mask with gradient"] = {"attn_mask": learned}
        given["dropout"] = {"dropout_p": 0.1}
        q, k, v = inputs(T, dtype, grad=True)
        for name, options in given.items():
            call = lambda o=options: F.scaled_dot_product_attention(q, k, v, **o)  # noqa: B023, E731
            cases[f"{str(dtype)[6:]}, {name}"] = guarded(lambda c=call: kernels(c))
        wide = [torch.cat([x] * 8, dim=-1) for x in (q, k, v)]
        call = lambda: F.scaled_dot_product_attention(*wide)  # noqa: B023, E731
        cases[f"{str(dtype)[6:]}, heads of width 512"] = guarded(lambda c=call: kernels(c))
    return cases


def closed_rows(T):
    """The output of a query that may attend to nothing, by dtype and kind of mask.

    ``largest`` is its largest number; ``from open`` is how far it lies from the output of the same
    query where it may attend to every key, ``from mean`` from the mean of all values. ``NaN`` is
    whether the gradient to the queries has one, where nothing is made of that output.
    """
    mask = torch.rand(T, T, device=DEVICE) < 0.5
    mask[3] = False
    numbers = torch.zeros(T, T, device=DEVICE).masked_fill(~mask, -torch.inf)
    cases = {}
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        q, k, v = inputs(T, dtype, grad=True)
        opened = F.scaled_dot_product_attention(q.double(), k.double(), v.double())[:, :, 3]
        for name, attn_mask in {"bool mask": mask, "float mask": numbers.to(dtype)}.items():
            whole = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
            out = whole[:, :, 3].double()
            far = {"largest": out, "from open": out - opened}
            far["from mean"] = out - v.double().mean(dim=-2)
            found = {what: x.abs().max().item() for what, x in far.items()}
            (gradient,) = torch.autograd.grad(whole[:, :, 4:].float().square().sum(), q)
            cases[f"{str(dtype)[6:]}, {name}"] = found | {"NaN": gradient.isnan().any().item()}
    return cases


def main():
    """Differences first, then choices, then times; what is found is saved after each length."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="short lengths, on any machine")
    small = parser.parse_args().small
    if not (GPU or small):
        raise SystemExit("no GPU here; --small tries the script without one")
    lengths = [64, 128] if small else LENGTHS
    folder = Path(os.environ.get("OUT", "."))
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "command": "python book/examples/flash_on_gpu.py",
        "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name() if GPU else "processor",
        "torch": torch.__version__,
        "triton": triton.__version__ if triton else None,
        "shape": {"batch": 1, "heads": HEADS, "width": WIDTH, "dtype": str(DTYPE), "causal": True},
        "difference": {},
        "chosen": {},
        "closed_row": {},
        "forward": {},
        "forward_and_backward": {},
    }

    def save():
        lines = [f" {json.dumps(name)}: {json.dumps(part)}" for name, part in record.items()]
        (folder / "flash_on_gpu.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")

    began = time.perf_counter()
    for name, (form, _) in FORMS.items():
        found = guarded(lambda f=form: largest_difference(f, lengths[0]))
        record["difference"][name] = found
        print(f"{name:20} {found}", flush=True)
    record["chosen"] = choices(lengths[1])
    for name, found in record["chosen"].items():
        print(f"{name:36} {found}", flush=True)
    record["closed_row"] = {T: closed_rows(T) for T in (128, 192)}
    for T, rows in record["closed_row"].items():
        for name, found in rows.items():
            print(f"{T:6} {name:20} {found}", flush=True)
    save()
    for T in lengths:
        for name, (form, has_backward) in FORMS.items():
            for kind, backward in [("forward", False), ("forward_and_backward", True)]:
                if backward and not has_backward:
                    continue
                rows = record[kind].setdefault(name, {})
                rows[T] = guarded(lambda f=form, b=backward: measured(f, T, backward=b))  # noqa: B023
                print(f"{T:6} {name:20} {kind:21} {rows[T]}", flush=True)
        save()
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
