"""The battery: small chosen inputs, each of which lets a certain kind of mistake show."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from attn_check.reference import Case, Intent, compute
from attn_check.subject import Subject

LONG = 70  # past a block of 64, and no multiple of one


class Draw:
    """Cases for one subject, from random numbers of their own."""

    def __init__(self, subject: Subject, intent: Intent):
        self.subject, self.intent = subject, intent
        self.random = torch.Generator().manual_seed(11)
        self.heads = subject.heads or (3 if "H" in subject.layout else 1)
        self.kv_heads = subject.kv_heads or self.heads
        self.d_k = subject.d_k or 8
        self.size = 1.0
        if subject.projects:
            self._fit_size()

    def _fit_size(self) -> None:
        """Make a module's inputs as large as lets its scores have a spread of about 2."""
        probe = self.case("probe", 5)
        spread = compute(probe, Intent(), self.subject.layers[0]).scores.std().item()
        self.size = min(max((2.0 / max(spread, 1e-9)) ** 0.5, 1.0), 60.0)

    def examples(self, *lengths: int) -> int:
        """At least 3, and neither a length nor the number of heads."""
        H = self.subject.layers[0].heads if self.subject.projects else self.heads
        return next(n for n in range(3, 9) if n not in (H, *lengths))

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers that float16 can hold."""
        return torch.randn(shape, generator=self.random).half().double()

    def case(
        self,
        name: str,
        T: int,
        S: int | None = None,
        *,
        B: int = 2,
        d_v: int | None = None,
        heads: int | None = None,
        mask: Tensor | None = None,
        training: bool = False,
        words: str = "",
        tolerance: float = 3e-5,
    ) -> Case:
        """A case of given sizes."""
        S = T if S is None else S
        H = heads or self.heads
        kv = self.kv_heads if heads is None else heads
        merged = self.subject.layout != "BHTd" and not ("H" not in self.subject.layout and H == 1)
        if self.subject.projects:
            layer = self.subject.layers[0]
            tensors = {"x": self.size * self.normal(B, T, layer.weights["q"].shape[1])}
            if S != T or layer.weights["k"].shape[1] != layer.weights["q"].shape[1]:
                width = layer.weights["k"].shape[1]
                tensors["context"] = self.size * self.normal(B, S, width)
        else:
            q, k = self.normal(B, H, T, self.d_k), self.normal(B, kv, S, self.d_k)
            v = self.normal(B, kv, S, d_v or self.d_k)
            merge: Callable[[Tensor], Tensor] = (
                (lambda t: t.transpose(1, 2).flatten(-2)) if merged else (lambda t: t)
            )
            tensors = {"q": merge(q), "k": merge(k), "v": merge(v)}
        return Case(name, tensors, mask, training, tolerance, words, merged, H, kv)

    def cross(self, case: Case) -> Case:
        """The same case with a context of its own, for a module with two inputs."""
        x = case.tensors["x"]
        width = self.subject.layers[0].weights["k"].shape[1]
        context = self.size * self.normal(x.shape[0], x.shape[1], width)
        return Case(**{**vars(case), "tensors": {"x": x, "context": context}})


def plain_cases(draw: Draw) -> list[Case]:
    """Without a mask: lengths, widths and sizes that differ, and sizes that are equal."""
    subject = draw.subject
    cases = [
        draw.case("short", 3, B=draw.examples(3), words="3 positions"),
        draw.case("plain", 5, B=draw.examples(5), words="5 positions"),
    ]
    if not subject.projects:
        B = draw.examples(5)
        cases.append(draw.case("values", 5, B=B, d_v=6, words="values of another width than keys"))
        if not subject.heads:
            cases.append(draw.case("heads", 6, B=3, heads=1, words="one head"))
    if subject.crosses:
        if subject.projects:
            B, words = draw.examples(5), "a context of equal length"
            cases.append(draw.cross(draw.case("context", 5, B=B, words=words)))
        B = draw.examples(4, 7)
        cases += [
            draw.case("fewer queries", 4, 7, B=B, words="4 queries and 7 keys"),
            draw.case("more queries", 7, 4, B=B, words="7 queries and 4 keys"),
            draw.case("one query", 1, 6, B=draw.examples(6), words="1 query and 6 keys"),
        ]
    H = subject.layers[0].heads if subject.projects else draw.heads
    if 1 < H <= 12:
        cases.append(draw.case("equal sizes", H, B=H, words=f"B = H = T = {H}"))
    cases += [uneven(draw), draw.case("long", LONG, words=f"{LONG} positions")]
    cases += [far_below(draw)] if draw.intent.causal else []
    if subject.crosses:
        cases.append(draw.case("longer", 67, 133, words="67 queries and 133 keys"))
    if subject.module is not None:
        cases.append(draw.case("training", 5, training=True, words="training mode without dropout"))
    return cases


def uneven(draw: Draw) -> Case:
    """Rows of scores near +200, near -200 and near 0."""
    B, words = draw.examples(5), "scores up to about 300"
    case = draw.case("large scores", 5, B=B, words=words, tolerance=3e-3)
    if draw.subject.projects:
        rows = torch.tensor([12.0, 1.0, 0.0, 12.0, 1.0], dtype=torch.float64)[:, None]
        return Case(**{**vars(case), "tensors": {n: x * rows for n, x in case.tensors.items()}})
    sign = torch.tensor([100.0, -100.0, 1.0, 20.0, -50.0], dtype=torch.float64)[:, None]
    q, k = case.tensors["q"], case.tensors["k"]
    return Case(**{**vars(case), "tensors": {**case.tensors, "q": q * sign, "k": k + 1.0}})


def far_below(draw: Draw) -> Case:
    """One query whose scores, of the first head at least, are all far below zero."""
    B = draw.examples(5)
    if draw.subject.projects:
        words = "scores down to about -300"
        case = draw.case("far below", 5, B=B, words=words, tolerance=3e-3)
        x = _far_below(draw, case.tensors["x"])
        return replace(case, tensors={**case.tensors, "x": x})
    words = "scores down to about -1500"
    case = draw.case("far below", 5, B=B, words=words, tolerance=3e-3)
    q, k = case.tensors["q"].clone(), case.tensors["k"]
    q[..., 2, :] = -1500.0 / (draw.d_k * (draw.intent.scale or draw.d_k**-0.5))
    return replace(case, tensors={**case.tensors, "q": q, "k": 1.0 + 0.003 * k})


def _far_below(draw: Draw, x: Tensor) -> Tensor:
    """Inputs from which the first head projects -u as keys, and u as the query at position 2."""
    layer = draw.subject.layers[0]
    width = layer.weights["q"].shape[0] // layer.heads
    if layer.weights["k"].shape[1] != layer.weights["q"].shape[1]:
        return x
    both = torch.cat([layer.weights[role][:width] for role in "qk"])
    biases = [layer.biases.get(role) for role in "qk"]
    shift = torch.cat([both.new_zeros(width) if b is None else b[:width] for b in biases])
    u = torch.ones(width, dtype=torch.float64)
    u = u * (300.0 / (width * (draw.intent.scale or width**-0.5))) ** 0.5
    inverse = torch.linalg.pinv(both)
    key = inverse @ (torch.cat([0.0 * u, -u]) - shift)
    across = both[width:].mT @ u  # along it the scores change
    x = x - (x @ across)[..., None] * across / across.square().sum() + key
    x[..., 2, :] = inverse @ (torch.cat([u, -u]) - shift)
    return x


def key_masks(B: int, S: int, padding: str) -> Tensor:
    """(B, 1, S) open keys: the first example has all but one or two."""
    mask = torch.ones(B, 1, S, dtype=torch.bool)
    for b in range(B):
        n = 1 + b % max(S - 2, 1)
        if padding == "right":
            mask[b, 0, S - n :] = False
        elif padding == "left":
            mask[b, 0, :n] = False
        else:
            mask[b, 0, 1 + b % (S - 1) :: 2] = False
            mask[b, 0, 0] = True
    return mask


def matrix_mask(draw: Draw, B: int, T: int, S: int) -> Tensor:
    """(B, T, S) of random cells; every row and its own position are open."""
    mask = torch.rand((B, T, S), generator=draw.random) < 0.5
    rows = torch.arange(T)
    mask[:, rows, (rows + S - T).clamp(0, S - 1)] = True
    return mask


def masked_cases(draw: Draw) -> list[Case]:
    """With masks of the kinds that the function's shape of masks can say."""
    subject, shape = draw.subject, draw.subject.mask_shape
    cases = []
    sizes = [("", draw.examples(5), 5, 5)]
    H = subject.layers[0].heads if subject.projects else draw.heads
    if 2 < H <= 12:
        sizes.append((", equal sizes", H, H, H))
    if subject.crosses:
        sizes.append((", fewer queries", draw.examples(3, 6), 3, 6))
    for words, B, T, S in sizes:
        if "B" in shape:
            for side in ("right", "left", "gapped"):
                mask = key_masks(B, S, side).expand(B, T, S)
                cases.append(_masked(draw, f"{side} padding{words}", mask))
        if "T" in shape:
            mask = matrix_mask(draw, B if "B" in shape else 1, T, S).expand(B, T, S)
            cases.append(_masked(draw, f"random mask{words}", mask))
    if shape in ("BHTS", "B1TS") and H > 1:
        mask = torch.rand((draw.examples(5), H, 5, 5), generator=draw.random) < 0.5
        cases.append(_masked(draw, "a mask for each head", mask | torch.eye(5, dtype=torch.bool)))
    B = draw.examples(5)
    shallow = key_masks(B, 5, "right") if "B" in shape else matrix_mask(draw, 1, 5, 5)
    shallow = shallow.expand(B, 5, 5)
    cases += [_deep(draw, shallow), replace(far_below(draw), mask=shallow)]
    if subject.module is not None:
        case = _masked(draw, "mask in training", shallow)
        cases.append(Case(**{**vars(case), "training": True}))
    return cases


def _masked(draw: Draw, name: str, mask: Tensor) -> Case:
    B, T, S = mask.shape[0], *mask.shape[-2:]
    case = draw.case(name, T, S, B=B, words=name)
    return Case(**{**vars(case), "mask": mask})


def _deep(draw: Draw, mask: Tensor) -> Case:
    """A mask over scores that are far below zero."""
    case = uneven(draw)
    return Case(
        **{
            **vars(case),
            "name": "mask, large scores",
            "mask": mask,
            "words": "a mask over scores down to about -300",
        }
    )


def guessed_cases(draw: Draw) -> list[Case]:
    """Masks where sizes are equal, for a function that refuses them otherwise."""
    subject = draw.subject
    H = subject.layers[0].heads if subject.projects else draw.heads
    cases = []
    for B, T in {(H, 5), (5, 5), (2, H), (H, H), (1, 5)}:
        S = T
        if subject.mask_shape in ("BS", "B11S"):
            mask = key_masks(B, S, "right").expand(B, T, S)
        else:
            mask = matrix_mask(draw, B if "B" in subject.mask_shape else 1, T, S).expand(B, T, S)
        cases.append(_masked(draw, f"a mask with B = {B} and T = {T}", mask))
    return cases


def opened(case: Case) -> Case:
    """The case with a mask that closes nothing, for a function that needs one."""
    return Case(**{**vars(case), "mask": torch.ones(case.batch, *case.lengths, dtype=torch.bool)})


def without_padded_rows(case: Case) -> Case:
    """The same case, without a comparison of the outputs at padded positions."""
    T, S = case.lengths
    if case.mask is None or T != S:
        return case
    return Case(**{**vars(case), "ignored": ~case.mask.any(dim=-2)})


def with_empty_row(draw: Draw) -> Case:
    """A mask that closes every key to one query, or to one example."""
    shape = draw.subject.mask_shape
    mask = torch.ones(2, 5, 5, dtype=torch.bool)
    if "T" in shape:  # of one example alone, where examples have masks of their own
        mask[: 1 if "B" in shape else 2, 2] = False
    else:
        mask[1] = False
    case = _masked(draw, "empty row", mask)
    return Case(**{**vars(case), "words": "a query that may attend to nothing"})
