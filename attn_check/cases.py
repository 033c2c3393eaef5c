"""The examination of one function, and its battery: small inputs that let mistakes show."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attn_check.calls import output_shape
from attn_check.modules import read_layer
from attn_check.reference import Case, Change, Intent, Layer, compute
from attn_check.report import Note, Report, show
from attn_check.search import Answered, Hypothesis, equal
from attn_check.subject import Subject

LONG = 70  # past a block of 64, and no multiple of one


class Exam:
    """How a function is called, what is meant, and what was found; cases from random numbers."""

    def __init__(self, subject: Subject, intent: Intent):
        self.subject, self.intent, self.found = subject, intent, Report(subject.name)
        self.layers: list[Layer | None] = list(subject.layers) or [None]  # the likeliest first
        self.layer = self.layers[0]  # the way of reading the projections that fits
        self.answered: Answered = []
        self.hypothesis: Hypothesis | None = None
        self.tries = 1700  # pairs of mistakes in a search: in all tests the last to fit is 937th
        self.random = False  # equal calls of fresh copies differ
        self.drifts = False  # equal calls, with others between, differ
        self.state_example = ""  # how a call depends on earlier ones
        self.mask_refused = ""  # what a mask of the usual sizes raises
        self.wider_mask = ""  # a shape with T that is accepted, though closed keys reach
        self.refuses_cross = False  # queries and keys of different lengths raise
        self.ignores_padded = False  # outputs at padded positions are not compared
        self.guessed: list[str] = []  # what is assumed of causal and window
        self.added: Change = {}  # a residual that is meant
        self.generator = torch.Generator().manual_seed(11)
        self.heads = subject.heads or (3 if "H" in subject.layout else 1)
        self.kv_heads = subject.kv_heads or self.heads
        self.d_k = subject.d_k or (12 if 8 in (self.heads, self.kv_heads) else 8)
        self.size = 1.0
        if self.layer is not None:  # inputs so large that the scores have a spread of about 2
            self.heads = self.layer.heads
            spread = compute(self.case("probe", 5), Intent(), self.layer).scores.std().item()
            self.size = min(max((2.0 / max(spread, 1e-9)) ** 0.5, 1.0), 60.0)

    def anew(self, **changes: Any) -> "Exam":
        """The same function and intent, with the same random numbers from their beginning."""
        return Exam(replace(self.subject, **changes), self.intent)

    @property
    def masked(self) -> bool:
        """Whether masks of the usual sizes can be passed."""
        return self.subject.takes_mask and not self.mask_refused

    @property
    def broadcasts(self) -> bool:
        """Whether one query says nothing of where a mask begins: its (1, 1) mask broadcasts."""
        return self.refuses_cross and self.intent.causal == "top_left"

    def read(self, module: nn.Module) -> Layer:
        """The projections of a copy of the module, read in the way that fits."""
        s = self.subject
        layers = read_layer(module, s.heads, s.kv_heads, s.projections)
        return layers[[layer is self.layer for layer in s.layers].index(True)]

    def out(self, case: Case) -> Tensor | None:
        """The function's output, or None where it raises."""
        return self.subject.answer(case).out

    def expected(self, case: Case, change: Change | None = None) -> Tensor:
        """The reference's output."""
        return compute(case, self.intent, self.layer, {**self.added, **(change or {})}).out

    def equal(self, actual: Tensor, expected: Tensor, case: Case) -> bool:
        """Whether two outputs agree in all rows that may attend to something."""
        return equal(actual, expected, case, self.intent)

    def shown(self, case: Case, actual: Tensor, expected: Tensor) -> str:
        """The first row that differs, or both shapes."""
        if actual.shape == expected.shape:
            return show(case, actual, expected, self.intent)
        shapes = f"an output of shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
        return f"{case.name}: {shapes}, in the book's order of axes"

    def note(self, text: str, mistake: str | None = None) -> None:
        """Add a note."""
        self.found.notes.append(Note(mistake, text))

    def changes(self, case: Case) -> Tensor:
        """(B, T, S): how far another key at S changes the output at T, as a share of its size.

        1 everywhere where a call raises.
        """
        B, (T, S) = case.batch, case.lengths
        base, changes = self.out(case), torch.ones(B, T, S, dtype=torch.float64)
        if base is not None and base.shape != output_shape(case, self.layer):
            return changes
        for j in range(S):
            out = self.out(with_other_key(case, j))
            if base is None or out is None or out.shape != base.shape:
                return torch.ones_like(changes)
            change = (out - base).abs().masked_fill(out.isnan() & base.isnan(), 0.0)
            change = change.nan_to_num(1.0).transpose(-2, 1).flatten(2).amax(dim=-1)
            changes[..., j] = change / (1.0 + base.abs().max().nan_to_num(1.0))
        return changes

    def influence(self, case: Case) -> Tensor:
        """(T, S) bool: whether another key changes the output, in any example."""
        return self.changes(case).amax(dim=0) > 1e-6

    def examples(self, *lengths: int) -> int:
        """At least 3, and neither a length nor the number of heads."""
        return next(n for n in range(3, 9) if n not in (self.heads, *lengths))

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers that float16 can hold."""
        return torch.randn(shape, generator=self.generator).half().double()

    def case(
        self,
        words: str,
        T: int,
        S: int | None = None,
        *,
        B: int = 2,
        d_k: int | None = None,
        d_v: int | None = None,
        heads: int | None = None,
        tolerance: float = 3e-5,
    ) -> Case:
        """A case of given sizes."""
        S = T if S is None else S
        if self.layer is not None:
            widths = [self.layer.weights[role].shape[1] for role in "qkv"]
            tensors = {"x": self.size * self.normal(B, T, widths[0])}
            if S != T or widths[0] != widths[1]:
                tensors["context"] = self.size * self.normal(B, S, widths[1])
            if widths[1] != widths[2]:
                tensors["values"] = self.size * self.normal(B, S, widths[2])
            return Case(words, tensors, tolerance=tolerance, merged=True)
        H, kv = (heads, heads) if heads else (self.heads, self.kv_heads)
        layout = self.subject.layout
        merged = layout != "BHTd" and not ("H" not in layout and H == 1)
        d_k = d_k or self.d_k
        q, k = self.normal(B, H, T, d_k), self.normal(B, kv, S, d_k)
        tensors = {"q": q, "k": k, "v": self.normal(B, kv, S, d_v or d_k)}
        if merged:
            tensors = {role: x.transpose(1, 2).flatten(-2) for role, x in tensors.items()}
        return Case(words, tensors, None, False, tolerance, merged, H, kv)

    def cross(self, case: Case) -> Case:
        """The same case with a context of its own, for a module with two inputs."""
        assert self.layer is not None  # noqa: S101
        B, T, _ = case.tensors["x"].shape
        width = self.layer.weights["k"].shape[1]
        return case.with_tensors(context=self.size * self.normal(B, T, width))

    def padded(self, case: Case) -> Case:
        """The case with a mask that its function can be given, if it takes one."""
        B, (T, S) = case.batch, case.lengths
        mask = key_masks(B if "B" in self.subject.mask_shape else 1, S, "right").expand(B, T, S)
        return replace(case, mask=mask) if self.subject.takes_mask else case

    def allowed_mask(self, B: int, T: int, S: int) -> Tensor:
        """(B, T, S) cells at random, or padding, if the function's masks can say no more."""
        shape = self.subject.mask_shape
        if "T" not in shape:
            return key_masks(B, S, "right").expand(B, T, S)
        mask = torch.rand((B if "B" in shape else 1, T, S), generator=self.generator) < 0.5
        rows = torch.arange(T)
        mask[:, rows, (rows + S - T).clamp(0, S - 1)] = True  # every row and its own position
        return mask.expand(B, T, S)

    def with_mask(self, words: str, mask: Tensor) -> Case:
        """A case for a mask."""
        B, T, S = mask.shape[0], *mask.shape[-2:]
        return replace(self.case(words, T, S, B=B), mask=mask)


def with_other_key(case: Case, j: int) -> Case:
    """The case with another key and value, or input, at one position."""
    role = next(role for role in ("v", "context", "x") if role in case.tensors)
    roles = {role, "values"} & case.tensors.keys()
    moved = {role: case.tensors[role].clone() for role in roles}
    if role == "v" and case.tensors["k"].shape == moved["v"].shape:
        moved["k"] = case.tensors["k"].clone()
    for x in moved.values():
        x[..., j, :] = -x[..., j, :] + 1.0
    return case.with_tensors(**moved)


def key_masks(B: int, S: int, padding: str) -> Tensor:
    """(B, 1, S) open keys: the first example has all but one or two."""
    s, b = torch.arange(S), torch.arange(B)[:, None]
    n, first = 1 + b % max(S - 2, 1), 1 + b % max(S - 1, 1)  # closed ones; the first in a gap
    cells = {"right": s < S - n, "left": s >= n, "gapped": (s < first) | ((s - first) % 2 == 1)}
    return cells[padding][:, None]


def opened(case: Case) -> Case:
    """The case with a mask that closes nothing, for a function that needs one."""
    return replace(case, mask=torch.ones(case.batch, *case.lengths, dtype=torch.bool))


def without_padded_rows(case: Case) -> Case:
    """The same case, without a comparison of the outputs at padded positions."""
    if case.mask is None or case.lengths[0] != case.lengths[1]:
        return case
    return replace(case, ignored=~case.mask.any(dim=-2))


# ---------------------------------------------------------------- the battery


def plain_cases(exam: Exam) -> list[Case]:
    """Without a mask: lengths, widths and sizes that differ, and sizes that are equal."""
    subject, H = exam.subject, exam.heads
    cases = [exam.case(f"{T} positions", T, B=exam.examples(T)) for T in (3, 5)]
    if not subject.projects:
        cases.append(exam.case("values of another width than keys", 5, B=exam.examples(5), d_v=6))
        two = exam.anew().case("two heads", 6, heads=2)
        if not subject.heads and exam.out(opened(two) if subject.always_mask else two) is not None:
            cases.append(exam.case("one head", 6, B=3, heads=1))
    if subject.crosses:
        if subject.projects:
            cases.append(exam.cross(exam.case("a context of equal length", 5, B=exam.examples(5))))
        cases.append(exam.case("4 queries and 7 keys", 4, 7, B=exam.examples(4, 7)))
        cases.append(exam.case("7 queries and 4 keys", 7, 4, B=exam.examples(4, 7)))
        cases.append(exam.case("1 query and 6 keys", 1, 6, B=exam.examples(6)))
    if 1 < H <= 12:
        cases.append(exam.case(f"B = H = T = {H}", H, B=H))
    cases += [uneven(exam), exam.case(f"{LONG} positions", LONG)]
    cases += [far_below(exam)] if exam.intent.causal else []
    cases += [exam.case("67 queries and 133 keys", 67, 133)] if subject.crosses else []
    if subject.module is not None:
        cases.append(replace(exam.case("training mode without dropout", 5), training=True))
    cases += [exam.case("1 position", 1, B=3)]
    cases += [exam.case("1 example", 5, B=1)] if "B" in subject.layout else []
    cases += [exam.case("3 queries and 1 key", 3, 1, B=4)] if subject.crosses else []
    if not (subject.projects or subject.d_k):  # a constant scale is right for one width alone
        words = f"heads of {2 * exam.d_k} channels (pass d_k= if one width is meant)"
        cases.append(exam.anew().case(words, 5, B=exam.examples(5), d_k=2 * exam.d_k))
    return cases


def uneven(exam: Exam) -> Case:
    """Rows of scores near +200, near -200 and near 0."""
    case = exam.case("scores up to about 300", 5, B=exam.examples(5), tolerance=3e-3)
    if exam.layer is not None:
        rows = torch.tensor([12.0, 1.0, 0.0, 12.0, 1.0], dtype=torch.float64)[:, None]
        return case.with_tensors(**{name: x * rows for name, x in case.tensors.items()})
    sign = torch.tensor([100.0, -100.0, 1.0, 20.0, -50.0], dtype=torch.float64)[:, None]
    return case.with_tensors(q=case.tensors["q"] * sign, k=case.tensors["k"] + 1.0)


def far_below(exam: Exam) -> Case:
    """One query whose scores, of the first head at least, are all far below zero."""
    lowest = -1500 if exam.layer is None else -300
    words = f"scores down to about {lowest}"
    case, layer = exam.case(words, 5, B=exam.examples(5), tolerance=3e-3), exam.layer
    if layer is None:
        q = case.tensors["q"].clone()
        q[..., 2, :] = lowest / (exam.d_k * (exam.intent.scale or exam.d_k**-0.5))
        return case.with_tensors(q=q, k=1.0 + 0.003 * case.tensors["k"])
    width = layer.weights["q"].shape[0] // layer.heads
    if "context" in case.tensors or isinstance(exam.intent.scale, Tensor):
        return case
    # inputs from which the first head projects -u as keys, and u as the query at position 2
    both = torch.cat([layer.weights[role][:width] for role in "qk"])
    biases = [layer.biases.get(role) for role in "qk"]
    shift = torch.cat([both.new_zeros(width) if b is None else b[:width] for b in biases])
    size = (300.0 / (width * (exam.intent.scale or width**-0.5))) ** 0.5
    u = torch.full((width,), size, dtype=torch.float64)
    inverse = torch.linalg.pinv(both)
    key = inverse @ (torch.cat([0.0 * u, -u]) - shift)
    across = both[width:].mT @ u  # along it the scores change
    x = case.tensors["x"]
    x = x - (x @ across)[..., None] * across / across.square().sum() + key
    x[..., 2, :] = inverse @ (torch.cat([u, -u]) - shift)
    return case.with_tensors(x=x)


def masked_cases(exam: Exam) -> list[Case]:
    """With masks of the kinds that the function's shape of masks can say."""
    shape, H = exam.subject.mask_shape, exam.heads
    sizes = [("", exam.examples(5), 5, 5)]
    sizes += [(", equal sizes", H, H, H)] if 2 < H <= 12 else []
    sizes += [(", fewer queries", exam.examples(3, 6), 3, 6)] if exam.subject.crosses else []
    cases = []
    for words, B, T, S in sizes:
        for side in ("right", "left", "gapped") if "B" in shape else ():
            mask = key_masks(B, S, side).expand(B, T, S)
            cases.append(exam.with_mask(f"{side} padding{words}", mask))
        if "T" in shape:
            cases.append(exam.with_mask(f"random mask{words}", exam.allowed_mask(B, T, S)))
    if shape in ("BHTS", "B1TS") and H > 1:
        mask = torch.rand((exam.examples(5), H, 5, 5), generator=exam.generator) < 0.5
        mask = mask | torch.eye(5, dtype=torch.bool)
        cases.append(exam.with_mask("a mask for each head", mask))
    B = exam.examples(5)
    closed = key_masks(B, 5, "right") if "B" in shape else exam.allowed_mask(B, 5, 5)
    shallow = closed.expand(B, 5, 5)
    cases.append(replace(uneven(exam), name="a mask over scores down to about -300", mask=shallow))
    cases.append(replace(far_below(exam), mask=shallow))
    if exam.subject.module is not None:
        cases.append(replace(exam.with_mask("mask in training", shallow), training=True))
    if "B" in shape:  # a mask may be used only where the first example has padding, or one alone
        mask = key_masks(B, 5, "right").expand(B, 5, 5)
        first = mask | (torch.arange(B) == 0)[:, None, None]
        cases.append(exam.with_mask("right padding, none in example 0", first))
        cases.append(exam.with_mask("right padding, 1 example", mask[:1]))
    return cases


def with_empty_row(exam: Exam) -> Case:
    """A mask that closes every key to one query, or to one example."""
    shape = exam.subject.mask_shape
    mask = exam.allowed_mask(2, 5, 5).clone()
    if "T" in shape:  # of one example alone, where examples have masks of their own
        mask[: 1 if "B" in shape else 2, 2] = False
    else:
        mask[1] = False
    return exam.with_mask("a query that may attend to nothing", mask)
