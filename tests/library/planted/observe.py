"""Everything that a plant can be seen to do, in a dozen calls: to tell it from the right one."""

import torch

from planted.plants import Plant

LENGTHS = [(5, 5), (4, 7), (7, 4), (37, 37), (1, 6)]  # T and S
PIECES = [3, 1, 2, 1]


def drawn(*shape, seed, size=1.0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return (size * torch.randn(*shape, generator=generator, dtype=torch.float64)).to(dtype)


def masks(plant, B, H, T, S):
    """Random masks in the form that the plant takes, no row of them empty."""
    keep = torch.rand(B, H, T, S, generator=torch.Generator().manual_seed(S)) < 0.6
    keep[..., 0] = True
    if T == S:
        keep |= torch.eye(T, dtype=torch.bool)
    shape = plant.intent.get("mask_shape", "B1TS")
    keep = {"BS": keep[:, 0, 0], "TS": keep[0, 0], "B1TS": keep[:, :1], "BHTS": keep}[shape]
    polarity = plant.intent["mask"]
    if polarity == "additive":
        return torch.zeros(keep.shape).masked_fill(~keep, -torch.inf)
    return ~keep if polarity == "blocked" else keep


def outcome(call, *given):
    """What a call returns, or raises, and its arguments afterwards, with or without gradients."""
    given = [t.clone() for t in given]
    torch.manual_seed(0)
    try:
        with torch.no_grad():
            out = call(*given)
    except Exception as error:
        return [type(error).__name__]
    return [*([out] if torch.is_tensor(out) else out), *given]


def gradients(call, *given):
    given = [t.clone() for t in given]
    leaves = [t.requires_grad_() for t in given if t.is_floating_point()]
    torch.manual_seed(0)
    try:
        out = call(*[t * 1 if t.is_floating_point() else t for t in given])
        out = out if torch.is_tensor(out) else out[0]
        parameters = list(call.parameters()) if isinstance(call, torch.nn.Module) else []
        wanted = leaves + parameters
        found = torch.autograd.grad(out.double().square().sum(), wanted, allow_unused=True)
    except Exception as error:
        return [type(error).__name__]
    return ["none" if g is None else g for g in found]


def of_function(plant: Plant, fn):
    H, kv = plant.intent.get("heads", 3), plant.intent.get("kv_heads")
    layout = plant.intent.get("layout", "BHTd")
    cases = [(3, T, S, 1.0, torch.float32) for T, S in LENGTHS]
    cases += [(7, 7, 7, 40.0, torch.float32), (2, 3, 300, 1.0, torch.float16)]
    for i, (B, T, S, size, dtype) in enumerate(cases):
        widths = (4, 4, 4 if i == 1 or layout == "BTd" else 6)
        heads = zip((H, kv or H, kv or H), (T, S, S), widths, strict=True)
        given = [
            in_layout(drawn(B, *shape, seed=3 * i + j, size=size, dtype=dtype), layout)
            for j, shape in enumerate(heads)
        ]
        given += [masks(plant, B, H, T, S)] if "mask" in plant.intent and i % 2 == 0 else []
        yield outcome(fn, *given)
        if i < 2:
            yield gradients(fn, *given)
        if i == 0:
            yield outcome(lambda *args: fn(*map(strided, args)), *given)
        for b in range(B if i == 0 else 0):  # each example by itself
            yield outcome(fn, *[t[b : b + 1] if t.shape[0] == B else t for t in given])
    if "mask" in plant.intent:  # an empty row
        given = [in_layout(drawn(2, H, 5, 4, seed=j), layout) for j in range(3)]
        given.append(masks(plant, 2, H, 5, 5))
        if given[-1].dim() == 4:
            closed = {"attend": False, "blocked": True, "additive": -torch.inf}
            given[-1][1, :, 2] = closed[plant.intent["mask"]]
            yield outcome(fn, *given)


def in_layout(x, layout):
    """From (B, H, T, d)."""
    if layout == "BHTd":
        return x
    if layout == "TBHd":
        return x.permute(2, 0, 1, 3)
    x = x.transpose(1, 2)
    return x.flatten(2) if layout == "BTd" else x


def strided(x):
    """The same values, stored in another order."""
    return x.mT.contiguous().mT


def of_module(plant: Plant, layer):
    weight = next(p for p in layer.parameters() if p.dim() == 2)
    width, H = weight.shape[1], getattr(layer, "num_heads", 1)
    layer.train()
    yield outcome(layer, drawn(3, 5, width, seed=1))
    layer.eval()
    for i, T in enumerate([5, 37, 3]):
        x = drawn(3, T, width, seed=i, size=30.0 if T == 37 else 1.0)
        yield outcome(layer, x)
        yield gradients(layer, x)
        if plant.form in ("layer", "cross", "third") and not plant.intent.get("causal"):
            yield outcome(layer, x, drawn(3, 4, width, seed=9))
        if "mask" in plant.intent:
            B, dtype = (T, torch.float16) if i else (3, torch.float32)
            same = layer.to(dtype)
            x = drawn(B, T, width, seed=i, dtype=dtype)
            mask = masks(plant, B, H, T, T)
            given = [x, mask] if plant.form == "published" else [x, x, mask]
            yield outcome(same, *given)
            if plant.intent.get("mask_shape") == "BS":  # an example without a key
                given[-1][1] = plant.intent["mask"] == "blocked"
                yield outcome(same, *given)
            layer.float()
    if "step" in plant.intent:
        for seed in (4, 5):  # one sequence after the other
            yield outcome(
                lambda x: in_pieces(layer.step, x), drawn(2, sum(PIECES), width, seed=seed)
            )
    yield list(layer.parameters())


def in_pieces(step, x):
    cache, outs = None, []
    for piece in x.split(PIECES, dim=1):
        out, cache = step(piece, cache)
        outs.append(out)
    return torch.cat(outs, dim=1)


def of_rope(plant: Plant, fn):
    for first in (0, 3):
        q, k = drawn(2, 3, 7, 8, seed=1), drawn(2, 3, 7, 8, seed=2)
        yield outcome(fn, q, k, torch.arange(first, first + 7))


def observed(plant: Plant, fn):
    kind = of_rope if plant.rope else of_module if isinstance(fn, torch.nn.Module) else of_function
    return list(kind(plant, fn))


def differs(plant: Plant, size: int) -> bool:
    """Whether the plant and the right one differ anywhere."""
    wrong, right = (observed(plant, make(size)) for make in (plant.build, plant.right))
    for one, other in zip(wrong, right, strict=True):
        if len(one) != len(other):
            return True
        for a, b in zip(one, other, strict=True):
            if not torch.is_tensor(a) or not torch.is_tensor(b):
                if not (isinstance(a, str) and isinstance(b, str) and a == b):
                    return True
            elif (
                a.shape != b.shape
                or a.dtype != b.dtype
                or not torch.allclose(a.double(), b.double(), rtol=2e-4, atol=2e-5, equal_nan=True)
            ):
                return True
    return False
