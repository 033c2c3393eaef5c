"""The checks behind the pages' exercises: each says in words what is wrong.

A check compares an answer with PyTorch's own kernel or with plain arithmetic, never with the
code that the page teaches.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Verdict(NamedTuple):
    """What a check found; shown as one sentence, true if the answer passed."""

    passed: bool
    message: str

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return self.message


def check(number: str, answer: Any) -> Verdict:
    """Check an answer to an exercise of the book.

    Args:
        number: chapter and exercise, such as ``"1.1"``.
        answer: what the exercise asks for; ``...`` where there is no answer yet.

    Returns:
        A verdict with ``passed`` and a sentence that says what is right or wrong. A wrong
        answer of any kind is a verdict, never an exception.

    Raises:
        ValueError: an unknown exercise.

    Example:
        >>> check("1.1", ...)
        Exercise 1.1 is waiting for your answer: replace the ... above.
        >>> check("1.1", [1.0, 2.0]).passed
        False

    Source: the exercise sections of the chapters.
    """
    if number not in _CHECKS:
        raise ValueError(f"unknown exercise {number!r}; known: {', '.join(_CHECKS)}")
    if answer is ...:
        return Verdict(
            False, f"Exercise {number} is waiting for your answer: replace the ... above."
        )
    try:
        fault = _CHECKS[number](answer)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the reader's code may raise anything: a verdict too
        fault = f"it raised {_described(error)}"
    if fault:
        return Verdict(False, f"Exercise {number}, not yet: {fault}.")
    return Verdict(True, f"Exercise {number}: correct.")


def _described(error: BaseException) -> str:
    try:
        text = str(error).strip()
    except Exception:  # an error that cannot be shown is still an error
        text = ""
    first = text.splitlines()[0][:200] if text else "no message"
    return f"{type(error).__name__}: {first}"


def _numbers(answer) -> list[float]:
    """At most ten numbers of a list, array or tensor."""
    if isinstance(answer, Tensor):
        answer = answer.detach().flatten()
    return [float(number) for number in itertools.islice(iter(answer), 10)]


def _one_row(answer) -> str | None:
    """1.1: q = (1, 2), keys (2, 0), (0, 1), (1, -1)."""
    scores, root = [2.0, 2.0, -1.0], math.sqrt(2)
    given = _numbers(answer)
    if len(given) != 3:
        return f"there are three keys, so three weights are wanted, not {len(given)}"
    if not all(map(math.isfinite, given)):
        return "weights are finite numbers"

    def softmax(row):
        powers = [math.exp(s) for s in row]
        return [p / sum(powers) for p in powers]

    def near(row):
        return all(abs(a - b) < 0.006 for a, b in zip(given, row, strict=True))

    if near(softmax([s / root for s in scores])):
        return None
    if near(softmax(scores)):
        return "these weights lack the scale: divide each score by the square root of d_k first"
    if near([math.exp(s / root) for s in scores]):
        return "these are the exponentials: divide each by their sum"
    if near([s / root for s in scores]) or near(scores):
        return "these are scores: exponentiate them, then divide by the sum"
    if abs(sum(given) - 1.0) > 0.02:
        return f"weights sum to 1, yours to {sum(given):.2f}"
    return "the weights sum to 1, but at least one is off: compute the three dot products again"


def _softmax(answer: Callable[[Tensor], Tensor]) -> str | None:
    """1.2: a stable softmax over the last axis."""

    def fault_for(*rows: list[float]) -> str | None:
        scores = torch.tensor(rows)
        before = scores.clone()
        out = answer(scores)
        if not torch.equal(scores, before):
            return "it changed its argument; work on a new tensor"
        fault = _differs(out, F.softmax(scores, dim=-1))
        if fault and not _differs(out, F.softmax(scores, dim=0)):
            return "the columns sum to 1, but each query needs its row to: normalise the last axis"
        return fault

    fault = fault_for([1.0, 2.0, 4.0], [3.0, 0.0, -1.0])
    if fault:
        return fault
    if fault_for([1000.0, 999.0]):
        return "large scores give NaN: subtract the row's maximum before the exponential"
    # what is subtracted must be the maximum, and each row's own
    if fault_for([0.0, -1000.0, 1000.0], [1000.0, 0.0, -1000.0], [-1000.0, -1000.0, -2000.0]):
        return "rows of very different size go wrong: subtract each row's own maximum"
    deep = torch.arange(24.0).view(2, 3, 4)
    if _differs(answer(deep), F.softmax(deep, dim=-1)):
        return "with three axes it goes wrong: normalise the last one, whatever comes before"
    return None


def _attention(answer: Callable[[Tensor, Tensor, Tensor], Tensor]) -> str | None:
    """1.3: attention for any leading axes, T, S, d_k and d_v."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    for batch, d_k in (((), 7), ((2,), 7), ((2, 3), 7), ((), 2)):
        q, k, v = draw(*batch, 5, d_k), draw(*batch, 4, d_k), draw(*batch, 4, 3)
        given = q.clone(), k.clone(), v.clone()
        out = answer(*given)
        if not all(map(torch.equal, given, (q, k, v))):
            return "it changed an argument; work on new tensors"
        if isinstance(out, tuple):
            return "return the output alone, not a pair"
        fault = _differs(out, F.scaled_dot_product_attention(q, k, v))
        if not fault:
            continue
        for scale, said in ((1.0, "without"), (d_k**0.5, "times"), (3.0**-0.5, "with d_v in")):
            if not _differs(out, F.scaled_dot_product_attention(q, k, v, scale=scale)):
                return f"your scores are {said} the scale; it is 1 over the square root of d_k"
        wrong_axis = ((q @ k.mT) / d_k**0.5).softmax(-2) @ v
        if not _differs(out, wrong_axis):
            return "your softmax runs over the queries: the last axis holds the keys"
        return f"with {len(batch)} leading axes, {fault}"
    return None


def _query_for_milk(answer) -> str | None:
    """1.4: a query that puts more than 0.99 on milk, keys as on the page."""
    tokens = ["the", "cat", "drank", "the", "warm", "milk"]
    keys = [(0, 0), (2, 0), (1, 1), (0, 0), (-1, 1), (0, 2)]
    query = _numbers(answer)
    if len(query) != 2:
        return f"a query has d_k = 2 numbers, not {len(query)}"
    if not all(map(math.isfinite, query)):
        return "the two numbers must be finite"
    shrink = max(1.0, max(map(abs, query)) / 1e100)  # sums of the largest floats overflow
    query = [number / shrink for number in query]
    scores = [(query[0] * a + query[1] * b) / math.sqrt(2) for a, b in keys]
    powers = [math.exp(s - max(scores)) for s in scores]
    weights = [p / sum(powers) for p in powers]
    if weights[5] > 0.99:
        return None
    best = max(range(6), key=weights.__getitem__)
    if best != 5:
        return f"it looks hardest at {tokens[best]!r}: turn the arrow towards milk"
    return (
        f"milk gets {weights[5]:.3f}: the direction is right, and a longer arrow makes the "
        "softmax sharper"
    )


def _unshuffle(answer: Callable[[Tensor, Tensor], Tensor]) -> str | None:
    """1.5: undo a shuffle."""
    generator = torch.Generator().manual_seed(0)
    for order in (torch.tensor([3, 0, 4, 1, 2]), torch.tensor([6, 2, 0, 7, 3, 1, 5, 4])):
        rows = torch.rand(len(order), 2, generator=generator)
        out = answer(rows[order], order.clone())
        fault = _differs(out, rows)
        if fault and not _differs(out, rows[order][order]):
            return "that shuffles a second time: you need the inverse order, order.argsort()"
        if fault and (not isinstance(out, Tensor) or out.shape != rows.shape):
            return fault
        if fault:
            return "row order[i] of your result must be row i of the shuffled one"
    return None


def _prefix_mask(answer: Callable[[int, int], Tensor]) -> str | None:
    """2.1: the first tokens see each other, the rest is causal."""
    for T, prefix in ((5, 2), (4, 0), (3, 3), (6, 1)):
        out = answer(T, prefix)
        expected = torch.tensor([[s <= t or s < prefix for s in range(T)] for t in range(T)])
        fault = _differs_mask(out, expected, f"T={T}, prefix={prefix}")
        if fault:
            causal = torch.tensor([[s <= t for s in range(T)] for t in range(T)])
            if isinstance(out, Tensor) and out.dtype == torch.bool and torch.equal(out, causal):
                return "this is the causal mask: tokens of the prefix also see its later ones"
            return fault
    return None


def _decoder_mask(answer: Callable[[Tensor], Tensor]) -> str | None:
    """2.2: causal and blind to filler, from a tokenizer's 1 and 0."""
    for binary in (
        torch.tensor([[1, 1, 1], [1, 0, 0]]),  # B and S differ
        torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0]]),  # B and S collide
        torch.tensor([[0, 1, 1, 1]]),  # filler on the left
    ):
        B, S = binary.shape
        out = answer(binary)
        table = [
            [[bool(binary[b, s]) and s <= t for s in range(S)] for t in range(S)] for b in range(B)
        ]
        expected = torch.tensor(table)[:, None]
        if isinstance(out, Tensor) and out.dim() != 4:
            return (
                f"the shape is {tuple(out.shape)}: with heads between, it must be (B, 1, T, S), "
                f"here {(B, 1, S, S)}"
            )
        fault = _differs_mask(out, expected, f"B={B}, S={S}")
        if fault:
            return fault
    return None


def _sees_future(answer: Callable[[Callable[[Tensor], Tensor], Tensor], bool]) -> str | None:
    """2.3: a detective of leaks, tried on heads whose guilt is known."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(7, 3, generator=generator, dtype=torch.float64)

    def head(offset):
        def run(x):
            closed = torch.ones(len(x), len(x), dtype=torch.bool).triu(1 + offset)
            scores = (x @ x.mT).masked_fill(closed, -torch.inf)
            return scores.softmax(dim=-1) @ x

        return run

    def late_leak(x):  # only the first output leaks, and only from the third token
        out = head(0)(x)
        return torch.cat([out[:1] + 0.01 * x[2:3], out[1:]])

    suspects = {
        "a causal head": (head(0), False),
        "a head that sees everything": (head(99), True),
        "a head that sees one token too far": (head(1), True),
        "a head that sees only what came strictly before": (lambda x: x.cumsum(0) - x, False),
        "a head whose first output alone leaks": (late_leak, True),
        "a head that leaks the mean of all tokens": (lambda x: x + x.mean(0), True),
    }
    for name, (suspect, guilty) in suspects.items():
        verdict = answer(suspect, x.clone())
        if bool(verdict) != guilty:
            return f"{name} {'leaks' if guilty else 'does not leak'}, and you say otherwise"
    return None


def _masked_softmax(answer: Callable[[Tensor, Tensor], Tensor]) -> str | None:
    """2.4: zeros for closed cells and empty rows, with a clean gradient."""
    scores = torch.tensor([[1.0, 2.0, 4.0], [3.0, 0.0, -1.0], [-1e4, -1e4, 5.0]])
    mask = torch.tensor([[True, False, True], [False, False, False], [True, True, False]])
    leaf = scores.clone().requires_grad_()
    out = answer(leaf, mask)
    expected = torch.zeros(3, 3)
    expected[0, 0], expected[0, 2] = 1 / (1 + math.exp(3)), 1 / (1 + math.exp(-3))
    expected[2, 0] = expected[2, 1] = 0.5
    if not isinstance(out, Tensor) or out.shape != expected.shape:
        return _differs(out, expected)
    if bool(out[1].isnan().any()):
        return "a row with nothing open gives NaN: it wants zeros"
    if bool((out[1] != 0).any()):
        return "a row with nothing open gives weight to what is closed: it wants zeros"
    if not torch.allclose(out, expected, atol=1e-6):
        if bool((out[~mask] != 0).any()):
            return "a closed cell has some weight left: only minus infinity closes for sure"
        return "rows with something open must sum to 1, large negative scores included"
    if not torch.equal(leaf.detach(), scores):
        return "it changed its argument; work on a new tensor"
    if not out.requires_grad:
        return "no gradient comes back: keep the computation in tensors"
    (out * torch.arange(9.0).view(3, 3)).sum().backward()
    if not bool(leaf.grad.isfinite().all()):
        return "the gradient has NaN: NaN was made and then covered up, instead of never made"
    return None


def _spread_of_products(answer) -> str | None:
    """4.1: d_k = 9, deviation 2: variance of a product, deviation of a score."""
    given = _numbers(answer)
    if len(given) != 2:
        return f"two numbers are wanted, a variance and a deviation, not {len(given)}"
    variance, deviation = given
    wrong = {
        36.0: "that takes one variance: a product has two factors, so the fourth power of 2",
        12.0: "that is the deviation of a product: its square is the variance",
        16.0: "that is the variance of one term: there are nine",
        18.0: "a deviation of 2 enters with its fourth power: two factors, each squared",
    }
    if not abs(variance - 144.0) < 0.5:
        return "the variance of a product: " + wrong.get(
            round(variance, 6), "it is d_k times the fourth power of the deviation"
        )
    wrong = {
        12.0: "that is the product's: divide it by the square root of 9",
        16.0: "that is the variance of a score: take its root",
        36.0: "dividing by 9 instead of its root, and no root of the variance, gives 16 or 36",
    }
    if not abs(deviation - 4.0) < 0.05:
        return "the deviation of a score: " + wrong.get(
            round(deviation, 6), "the deviation of a product, divided by the square root of 9"
        )
    return None


def _softmax_jacobian(answer: Callable[[Tensor], Tensor]) -> str | None:
    """4.2: diag(p) - p p^T for any leading axes."""
    generator = torch.Generator().manual_seed(0)
    for shape in ((5,), (3, 4), (2, 3, 4), (4, 4)):
        scores = torch.randn(shape, generator=generator, dtype=torch.float64)
        given = scores.clone()
        out = answer(given)
        if not torch.equal(given, scores):
            return "it changed its argument; work on a new tensor"
        rows = [
            torch.autograd.functional.jacobian(lambda row: F.softmax(row, dim=-1), row)
            for row in scores.reshape(-1, shape[-1])
        ]
        expected = torch.stack(rows).view(*shape, shape[-1])
        fault = _differs(out, expected)
        if not fault:
            continue
        if isinstance(out, Tensor) and out.shape == expected.shape:
            p = F.softmax(scores, dim=-1)
            outer, diagonal = p[..., :, None] * p[..., None, :], torch.diag_embed(p)
            if not _differs(out, -outer):
                return "the diagonal is missing: a weight also rises with its own score"
            if not _differs(out, diagonal):
                return "off the diagonal it is not zero: the other weights must give way"
            if not _differs(out, diagonal + outer):
                return "a sign is wrong: when one weight rises, the others fall"
            if not _differs(out, outer - diagonal):
                return "every sign is turned round: a weight rises with its own score"
        return f"for scores of shape {shape}, {fault}"
    return None


def _find_scale(answer: Callable[[Callable[[Tensor, Tensor], Tensor], int], float]) -> str | None:
    """4.3: the scale of a stranger's attention, from its weights."""

    def stranger(scale):
        return lambda q, k: F.softmax(q @ k.mT * scale, dim=-1)

    def mean_free(q, k):  # the same weights: a constant in a row changes nothing
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        return F.softmax(scores - scores.mean(dim=-1, keepdim=True) + 3.0, dim=-1)

    suspects = [
        ("1 / sqrt(d_k)", 16, 0.25, stranger(0.25)),
        ("1", 16, 1.0, stranger(1.0)),
        ("1 / d_k", 64, 1 / 64, stranger(1 / 64)),
        ("sqrt(d_k)", 9, 3.0, stranger(3.0)),
        ("1 / sqrt(d_model)", 8, 64**-0.5, stranger(64**-0.5)),
        ("1 / sqrt(d_k), with a constant added to each row", 4, 0.5, mean_free),
    ]
    for name, d_k, scale, attend in suspects:
        found = float(answer(attend, d_k))
        if abs(found - scale) < 1e-3 * scale + 1e-6:
            continue
        if abs(found * scale - 1.0) < 1e-3:
            return f"for scale {name} you return its inverse, {found:.3f}"
        return f"a function with d_k = {d_k} has scale {scale:.3f}, and you say {found:.3f}"
    return None


def _scale_for_entropy(answer) -> str | None:
    """4.4: log 4096 - (scale * 8)^2 / 2 = log 64."""
    try:
        scale = float(answer)
    except TypeError:
        return "one number is wanted"
    spread = math.sqrt(2 * math.log(64))
    if abs(scale - spread / 8) < 0.002:
        return None
    if abs(scale - spread) < 0.02:
        return "that is the spread of the scores: unscaled, they spread by the root of d_k already"
    if abs(scale - spread / 64) < 0.0003:
        return "products of width d_k spread by its root, not by d_k"
    if abs(scale - math.sqrt(math.log(64)) / 8) < 0.002:
        return "(4.8) has a factor of one half before the squared spread"
    if abs(scale + spread / 8) < 0.002:
        return "a negative scale looks for the key that fits worst"
    if not math.isfinite(scale):
        return "a finite number is wanted"
    heard = math.exp(min(math.log(4096) - (8 * scale) ** 2 / 2, 99))
    return f"with this scale, (4.8) predicts that {heard:.3g} keys are heard"


def _count_weights(answer) -> str | None:
    """3.1: parameters of a layer with d_model 6, H 3, d_k 4, d_v 5, biases included."""
    sizes = [(6, 3 * 4), (6, 3 * 4), (6, 3 * 5), (3 * 5, 6)]  # in and out of each Linear
    weights = sum(width * outputs for width, outputs in sizes)
    biases = sum(outputs for _, outputs in sizes)
    given = float(answer)
    if given == weights + biases:
        return None
    if given == weights:
        return "the four matrices are right; now add the constants, one for each output number"
    if given in (weights / 3, (weights + biases) / 3, weights / 3 + 4 + 4 + 5 + 6):
        return "that is one head; there are three"
    if given == 4 * 6 * 6 + 4 * 6:
        return "that is a layer whose widths are d_model / H; here they are given"
    if given == weights + biases - 15 * 6 - 6:
        return "the matrix that joins the heads is missing"
    return "add up: each Linear has (numbers in) times (numbers out), plus its constants"


def _split_heads(answer: Callable[[Tensor, int], Tensor]) -> str | None:
    """3.2: (B, T, H · d) to (B, H, T, d)."""
    for B, T, H, d in ((2, 3, 5, 7), (1, 4, 4, 2), (3, 2, 1, 5)):
        x = torch.arange(float(B * T * H * d)).view(B, T, H * d)
        out = answer(x.clone(), H)
        rows = x.tolist()
        expected = torch.tensor(
            [[[row[h * d : (h + 1) * d] for row in text] for h in range(H)] for text in rows]
        )
        fault = _differs(out, expected)
        if not fault:
            continue
        if isinstance(out, Tensor) and out.shape == expected.shape:
            if torch.equal(out, x.reshape(B, H, T, d)):
                return "the shape is right and the numbers are scrambled: memory was only renamed"
            return "the shape is right, but head h holds numbers h * d to (h + 1) * d of a token"
        return f"for B={B}, T={T}, H={H}, d={d}, {fault}"
    return None


def _one_of_the_heads(answer: Callable[[Tensor, int, int], tuple]) -> str | None:
    """3.3: the matrices of one head of nn.MultiheadAttention, for x @ W."""
    generator = torch.Generator().manual_seed(0)
    for d_model, H in ((6, 3), (8, 2)):
        with torch.random.fork_rng(devices=[]):  # the reader's random numbers stay as they were
            layer = torch.nn.MultiheadAttention(d_model, H, bias=False).double()
        packed = torch.randn(3 * d_model, d_model, generator=generator, dtype=torch.float64)
        layer.in_proj_weight = torch.nn.Parameter(packed.clone())
        x = torch.randn(5, d_model, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            looks = layer(x, x, x, average_attn_weights=False)[1]
        for h in range(H):
            found = answer(packed.clone(), h, H)
            if not isinstance(found, (tuple, list)) or len(found) != 3:
                return "three matrices are wanted: W_q, W_k, W_v"
            d_k = d_model // H
            shapes = [tuple(W.shape) if isinstance(W, Tensor) else type(W) for W in found]
            if shapes == [(d_k, d_model)] * 3:
                return "for x @ W the matrices must be transposed: Linear stores them (out, in)"
            if shapes != [(d_model, d_k)] * 3:
                return f"each matrix must be (d_model, d_k), here {(d_model, d_k)}, not {shapes[0]}"
            W_q, W_k, W_v = found
            weights = F.softmax((x @ W_q) @ (x @ W_k).mT / d_k**0.5, dim=-1)
            if not torch.allclose(weights, looks[h]):
                return f"with them, head {h} of {H} looks elsewhere than PyTorch's: which rows?"
            rows = [2 * d_model + h * d_k + i for i in range(d_k)]
            if not torch.equal(W_v.mT, packed[rows]):
                return "queries and keys are right, the values are not: W_v comes third"
    return None


def _silence(answer: Callable[[Tensor, int, int], Tensor]) -> str | None:
    """3.4: an output matrix, (out, in) as Linear stores it, without one head."""
    generator = torch.Generator().manual_seed(0)
    for d_model, H, d_v in ((7, 3, 2), (6, 2, 3)):
        W_out = torch.randn(d_model, H * d_v, generator=generator)
        heads = torch.randn(5, H, d_v, generator=generator)
        for h in range(H):
            before = W_out.clone()
            out = answer(W_out, h, H)
            if not torch.equal(W_out, before):
                return "it changed its argument: the layer would be damaged for good; use clone()"
            quiet = heads.clone()
            quiet[:, h] = 0.0
            fault = _differs(out, W_out)
            if fault and not fault.startswith("the largest"):
                return fault
            if _differs(F.linear(heads.flatten(1), out), F.linear(quiet.flatten(1), W_out)):
                if bool((out == 0).all(dim=1).any()):
                    return "rows are output numbers; a head's are columns, h * d_v to (h + 1) * d_v"
                return f"head {h} of {H} can still be heard, or another has gone silent"
    return None


def _layer_norm(answer) -> str | None:
    """6.1: the token (2, 4, 4, 6)."""
    given = _numbers(answer)
    if len(given) != 4:
        return f"the token has four numbers, so four are wanted, not {len(given)}"

    def near(row):
        return all(abs(a - b) < 0.006 for a, b in zip(given, row, strict=True))

    centred = [-2.0, 0.0, 0.0, 2.0]
    if near([c / math.sqrt(2) for c in centred]):
        return None
    if near([c / math.sqrt(8 / 3) for c in centred]):
        return "this variance divides by three: LayerNorm divides the sum of squares by all four"
    if near([c / 2 for c in centred]):
        return "you divided by the variance: take its root first"
    if near(centred):
        return "the mean is off, as it should be: now divide by the standard deviation"
    if near([n / math.sqrt(2) for n in (2, 4, 4, 6)]):
        return "take the mean off before you divide"
    return "at least one number is off: mean 4, then the mean of the four squared deviations"


def _block_size(answer: Callable[[int, int], int]) -> str | None:
    """6.2: parameters of a block, counted in PyTorch's layer."""
    for d_model, d_ff in ((6, 10), (8, 32), (5, 3)):
        layer = torch.nn.TransformerEncoderLayer(d_model, 1, d_ff, device="meta")
        parameters = dict(layer.named_parameters())
        size, given = sum(p.numel() for p in parameters.values()), answer(d_model, d_ff)
        if given == size:
            continue
        biases = sum(p.numel() for n, p in parameters.items() if n.endswith("bias"))
        forgotten = {
            biases: "all the constants, those of the norms included",
            biases - 2 * d_model: "the constants of the Linear layers",
            4 * d_model: "the gains and shifts of the norms, or the constants of attention",
            2 * d_model: "one of the norms, or all the shifts",
            d_model * (d_model + 1): "the matrix that joins the heads",
            d_model**2: "the matrix that joins the heads",
            d_ff + d_model: "the constants of the network",
        }
        case = f"for d_model={d_model}, d_ff={d_ff} it is {size}, and you say {given}"
        missing = forgotten.get(size - given)
        return f"{case}: you forgot {missing}" if missing else case
    return None


def _pre_norm_block(answer: Callable[..., Tensor]) -> str | None:
    """6.3: x + part(norm(x)), twice."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    x, A, W, gains = draw(2, 5, 7), draw(5, 5).softmax(-1), draw(7, 7), (draw(7), draw(7))

    def attend(y):
        return A @ y

    def think(y):
        return (y @ W).relu()

    def first(y):
        return F.layer_norm(y, (7,), gains[0])

    def second(y):
        return F.layer_norm(y, (7,), gains[1])

    given = x.clone()
    out = answer(given, attend, think, first, second)
    if not torch.equal(given, x):
        return "it changed its argument: write x = x + ..., not x += ..."
    middle = x + attend(first(x))
    fault = _differs(out, middle + think(second(middle)))
    if not fault:
        return None
    post = first(x + attend(x))
    mistakes = {
        "this is post-norm: normalise what a part reads, not what it leaves": second(
            post + think(post)
        ),
        "the network must read the stream after attention has written to it": middle
        + think(second(x)),
        "the second sum must start from the stream, not from the first x": x
        + think(second(middle)),
        "you added to the normalised token: add to x itself": _on_the_norm(
            x, attend, think, first, second
        ),
        "each part has a norm of its own; you used the first twice": middle + think(first(middle)),
        "each part has a norm of its own; you swapped them": _pre_norm(
            x, attend, think, second, first
        ),
        "nothing normalises the result of a pre-norm block": second(middle + think(second(middle))),
        "there is an addition for attention, and another for the network": think(second(middle)),
    }
    for said, wrong in mistakes.items():
        if not _differs(out, wrong):
            return said
    return fault


def _pre_norm(x, attend, think, first, second):
    x = x + attend(first(x))
    return x + think(second(x))


def _on_the_norm(x, attend, think, first, second):
    x = first(x)
    x = second(x + attend(x))
    return x + think(x)


def _mean_of_real(answer: Callable[[Tensor, Tensor], Tensor]) -> str | None:
    """6.4: mean over the real tokens, whatever filler holds."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([5, 2, 3])
    for T, d in ((5, 7), (6, 4)):
        out = torch.randn(3, T, d, generator=generator)
        expected = torch.stack([rows[:n].mean(0) for rows, n in zip(out, lengths, strict=True)])
        given = answer(out.clone(), lengths.clone())
        if not _differs(given, out.mean(dim=1)):
            return "this is the mean over all rows, filler included"
        fault = _differs(given, expected)
        if fault and not _differs(given, expected * lengths[:, None] / T):
            return f"the sum is right, but you divided by T={T} instead of each sentence's length"
        if fault:
            return fault
        for filler in (math.nan, math.inf):
            spoiled = out.clone()
            for row, n in zip(spoiled, lengths, strict=True):
                row[n:] = filler
            before = spoiled.clone()
            if _differs(answer(spoiled, lengths), expected):
                return f"filler that holds {filler:g} comes through: multiplying by 0 is not enough"
            if not torch.equal(spoiled.nan_to_num(), before.nan_to_num()):
                return "it changed its argument; work on a new tensor"
    return None


def _fourth_place(answer) -> str | None:
    """5.1: sines and cosines of place 3, d = 4, base 100."""
    given = _numbers(answer)
    if len(given) != 4:
        return f"a place has d = 4 numbers here, not {len(given)}"
    if not all(map(math.isfinite, given)):
        return "sines and cosines are finite numbers"

    def row(p, slow=0.1, unit=1.0):
        angles = p * unit, p * slow * unit
        return [f(angle) for angle in angles for f in (math.sin, math.cos)]

    def near(numbers):
        return all(abs(a - b) < 0.006 for a, b in zip(given, numbers, strict=True))

    right = row(3)
    if near(right):
        return None
    for numbers, fault in (
        (row(4), "this is place 4: places are counted from zero, so the fourth token stands at 3"),
        (row(3, unit=math.pi / 180), "the angles are radians, not degrees"),
        (row(3, slow=0.01), "the second speed is 100 to the power of -2/4, and that is 1/10"),
        (row(3, slow=1.0), "the second pair has a speed of its own, 1/10"),
        ([right[i] for i in (0, 2, 1, 3)], "sine and cosine of one angle stand side by side"),
        ([right[i] for i in (1, 0, 3, 2)], "in each pair the sine comes first"),
    ):
        if near(numbers):
            return fault
    return "at least one is off: the angles are 3 and 0.3, each gives its sine, then its cosine"


def _to_half_split(answer: Callable[[Tensor, int], Tensor]) -> str | None:
    """5.2: reorder a matrix of neighbour-paired RoPE; judged by scores, in complex numbers."""
    generator = torch.Generator().manual_seed(0)
    for H, d_k, d_model in ((1, 6, 5), (3, 4, 7), (2, 8, 16)):
        W_q, W_k = torch.randn(2, H * d_k, d_model, generator=generator, dtype=torch.float64)
        x = torch.randn(9, d_model, generator=generator, dtype=torch.float64)
        speeds = 100.0 ** (-torch.arange(0, d_k, 2, dtype=torch.float64) / d_k)
        angles = torch.arange(9.0, dtype=torch.float64)[:, None] * speeds
        turns = torch.polar(torch.ones_like(angles), angles)

        def scores(W_q, W_k, halves):
            q, k = ((x @ W.T).unflatten(1, (H, d_k)).transpose(0, 1) for W in (W_q, W_k))  # noqa: B023
            pairs = [
                t.unflatten(-1, (2, -1)).mT if halves else t.unflatten(-1, (-1, 2)) for t in (q, k)
            ]
            q, k = (torch.view_as_complex(t.contiguous()) * turns for t in pairs)  # noqa: B023
            return (q @ k.mH).real

        given = W_q.clone()
        got = answer(given, H), answer(W_k.clone(), H)
        if not torch.equal(given, W_q):
            return "it changed its argument; work on a new tensor"
        wanted = scores(W_q, W_k, halves=False)
        for out in got:
            if not isinstance(out, Tensor) or out.shape != W_q.shape:
                return _differs(out, W_q)
        if not _differs(scores(*got, halves=True), wanted):
            continue
        if torch.equal(got[0], W_q):
            return "the matrix came back as it was"
        if H == 1:
            back = torch.arange(d_k).view(2, -1).T.flatten()
            if torch.equal(got[0], W_q[back]):
                return "this is the way back, from halves to neighbours"
            return "one head goes wrong: the even rows come first, then the odd ones"
        return f"with one head it is right, with {H} it is not: reorder within each head"
    return None


def _places_of(answer: Callable[[Tensor], Tensor]) -> str | None:
    """5.3: places that count real tokens only."""
    for rows in (
        [[1, 1, 1, 1], [1, 1, 0, 0]],
        [[0, 0, 1, 1], [0, 1, 1, 1], [1, 1, 1, 1]],
        [[0, 1, 1, 0, 0], [0, 0, 0, 0, 0]],
    ):
        real = torch.tensor(rows, dtype=torch.bool)
        out = answer(real.clone())
        if not isinstance(out, Tensor) or out.shape != real.shape:
            return _differs(out, real.double())
        if out.is_floating_point() or out.is_complex() or out.dtype == torch.bool:
            return f"places are looked up in a table: integers are wanted, not {out.dtype}"
        for row, places in zip(rows, out.tolist(), strict=True):
            wanted = 0
            for is_real, place in zip(row, places, strict=True):
                if is_real and place != wanted:
                    return f"for {row} the real tokens stand at 0, 1, …, but you say {places}"
                if not 0 <= place < len(row):
                    return f"for {row} some filler stands at {place}, which no table has"
                wanted += is_real
    return None


def _is_relative(answer: Callable[[Callable[[int, int], float]], bool]) -> str | None:
    """5.4: a detective of relative scores, tried on tables whose nature is known."""
    generator = torch.Generator().manual_seed(0)
    q, k, learned = torch.randn(3, 100, 8, generator=generator, dtype=torch.float64)
    p = torch.arange(100, dtype=torch.float64)
    apart = p[:, None] - p
    angles = p[:, None] * 100.0 ** (-torch.arange(4, dtype=torch.float64) / 4)
    sines = torch.cat([angles.sin(), angles.cos()], dim=1)
    turns = torch.polar(torch.ones_like(angles), angles)

    def rotary(row):
        return torch.complex(row[:4], row[4:]) * turns

    late = (p.clamp(min=90)[:, None] - p.clamp(min=90)) / 10
    suspects = {
        "RoPE": ((rotary(q[0]) @ rotary(k[0]).mH).real, True),
        "ALiBi": (-0.5 * apart.abs(), True),
        "a score with one number for each distance up to 8": (
            learned[0][(apart.clamp(-7, 0).abs()).long()],
            True,
        ),
        "a product of two rows of sines": (sines @ sines.T, True),
        "a learned table": (learned @ learned.T, False),
        "sines added to a word": ((q[0] + sines) @ (k[0] + sines).T, False),
        "a penalty for late keys": (-0.01 * p.expand(100, 100), False),
        "a score that tells places apart only near the end": (late.clamp(min=0), False),
        "a score that repeats after five places": ((p[:, None] % 5) * (p % 5), False),
        "a distance with a faint bend": (-apart.abs() + 1e-4 * p[:, None], False),
    }
    for name, (table, relative) in suspects.items():
        rows = table.tolist()
        if bool(answer(lambda i, j: rows[i][j])) != relative:  # noqa: B023
            depends = "depends" if relative else "does not depend"
            return f"{name} {depends} on i - j alone, and you say otherwise"
    return None


def _smoothed_shares(answer) -> str | None:
    """7.1: five tokens, smoothing 0.2: the right one's share, and another's."""
    given = _numbers(answer)
    if len(given) != 2:
        return f"two numbers are wanted, the right token's share and another's, not {len(given)}"
    right, other = given
    if all(abs(a - b) < 1e-4 for a, b in zip(given, (0.84, 0.04), strict=True)):
        return None
    if all(abs(a - b) < 1e-4 for a, b in zip(given, (0.8, 0.05), strict=True)):
        return "the 0.2 is spread over all five tokens, the right one included"
    if not abs(right + 4 * other - 1.0) < 1e-4:
        return f"the five shares must sum to 1, yours to {right + 4 * other:.2f}"
    return "they sum to 1, but a fifth of the smoothing belongs to each token"


def _rows_computed(answer: Callable[[int, int], tuple[int, int]]) -> str | None:
    """7.2: rows that become keys while n tokens follow a prompt of P."""
    for P, n in ((2, 10), (5, 1), (3, 4)):
        known = [P + k for k in range(n)]  # tokens there are, before each new one
        found = _numbers(answer(P, n))
        if len(found) != 2:
            return f"two numbers are wanted, without a cache and with one, not {len(found)}"
        without, kept = found
        case = f"for a prompt of {P} and {n} new tokens"
        if without == sum(known) and kept == known[-1]:
            continue
        if (without, kept) == (known[-1], sum(known)):
            return "the two are exchanged: a cache computes fewer rows"
        if kept == P + n:
            return "the last new token is written and never read: it needs no key"
        if kept == n:
            return "the prompt has to be read too, once"
        if without == sum(known) + n:
            return f"{case}, the first one needs only the prompt's {P} rows"
        if without == n * P:
            return "without a cache the new tokens are computed again, too"
        return f"{case} it is {sum(known)} without a cache and {known[-1]} with one"
    return None


def _masked_loss(answer: Callable[[Tensor, Tensor, int], Tensor]) -> str | None:
    """7.3: cross-entropy over what is no filler."""
    generator = torch.Generator().manual_seed(0)
    for B, T, V, filler in ((2, 5, 7, 6), (3, 4, 5, 0)):
        logits = 3 * torch.randn(B, T, V, generator=generator, dtype=torch.float64)
        wanted = torch.randint(1, V - 1, (B, T), generator=generator)
        wanted[0, 2:] = filler
        out = answer(logits.clone(), wanted.clone(), filler)
        expected = F.cross_entropy(logits.mT, wanted, ignore_index=filler)
        fault = _differs(out, expected)
        if not fault:
            continue
        costs = F.cross_entropy(logits.mT, wanted, reduction="none")
        real = wanted != filler
        for found, wrong in (
            ("filler is counted", costs.mean()),
            (
                "each example is averaged first, so that a short one weighs as much as a long one",
                ((costs * real).sum(1) / real.sum(1)).mean(),
            ),
            ("the sum over real tokens is divided by the number of all", (costs * real).mean()),
            ("this is the sum: divide by the number of real tokens", (costs * real).sum()),
        ):
            if not _differs(out, wrong):
                return found
        return fault
    return None


def _greedy(answer: Callable[..., list[int]]) -> str | None:
    """7.4: write until END, or as long as is allowed, for models that are plain tables."""
    START, END = 5, 6
    chain = {START: 3, 3: 1, 1: 4, 4: END}
    circle = {START: 0, 0: 2, 2: 0}

    def scores_of(follows):
        def scores(tokens):
            seen.append(list(tokens))
            row = [-3.0 - i for i in range(7)]
            row[follows[tokens[-1]]] = -1.0  # all scores are negative, as logs are
            return row

        return scores

    for name, follows, longest, expected in (
        ("a model that ends by itself", chain, 10, [3, 1, 4]),
        ("a model that never ends", circle, 5, [0, 2, 0, 2, 0]),
        ("a model that may not write", chain, 0, []),
    ):
        seen: list[list[int]] = []
        out = answer(scores_of(follows), START, END, longest)
        out = out.tolist() if isinstance(out, Tensor) else list(out)
        if out == expected:
            if any(tokens != [START, *out][: len(tokens)] for tokens in seen):
                return "the model must see START and all that is written so far, in this order"
            continue
        if out == [START, *expected] or out == [*expected, END] or START in out or END in out:
            return f"for {name}, START and END do not belong to the answer: {out}"
        return f"for {name}, {expected} is wanted, not {out}"
    return None


def _vit_sizes(answer) -> str | None:
    """8.1: 224 pixels, patches of 16, three colours, width 768."""
    given = _numbers(answer)
    if len(given) != 2:
        return f"two numbers are wanted, tokens and numbers of the embedding, not {len(given)}"
    tokens, numbers = given
    if tokens == 196:
        return "196 are the patches: the class token is a token too"
    if tokens != 197:
        return "224 / 16 patches stand in a row, and as many rows below each other; then one more"
    if numbers == 589_824:
        return "the constants are missing, one for each of the 768"
    if numbers in (196_608, 197_376):
        return "a patch has three colours"
    if numbers != 590_592:
        return "every number of a patch, 16 times 16 times 3, has a weight for each of the 768"
    return None


def _join(answer: Callable[[Tensor, int, int], Tensor]) -> str | None:
    """8.2: from patches back to images, against fold."""
    for B, channels, side, p in ((2, 1, 3, 2), (2, 3, 2, 5), (3, 2, 1, 4)):
        images = torch.arange(B * channels * (side * p) ** 2, dtype=torch.float64)
        images = images.view(B, channels, side * p, side * p)
        patches = F.unfold(images, p, stride=p).mT
        out = answer(patches.clone(), p, channels)
        fault = _differs(out, images)
        if not fault:
            continue
        if torch.equal(patches.reshape(images.shape), out) if isinstance(out, Tensor) else False:
            return "a reshape alone makes strips of pixels: bring rows of patches apart first"
        if isinstance(out, Tensor) and out.shape == images.shape and not _differs(out.mT, images):
            return "rows and columns are exchanged"
        case = f"{channels} channels and {side} by {side} patches of {p}"
        return f"for {case}: {fault}"
    return None


def _rollout(answer: Callable[[list[Tensor]], Tensor]) -> str | None:
    """8.3: the product of (A + I) / 2, last layer first."""
    generator = torch.Generator().manual_seed(0)
    for layers, B, H, T in ((1, 2, 3, 5), (3, 2, 2, 4)):
        shape = (layers, B, H, T, T)
        maps = torch.randn(shape, generator=generator, dtype=torch.float64).softmax(-1)
        eye = torch.eye(T, dtype=torch.float64)

        def product(steps):
            total = eye  # noqa: B023
            for step in steps:
                total = step @ total
            return total.expand(B, T, T)  # noqa: B023

        mean = maps.mean(dim=2)
        steps = [(A + eye) / 2 for A in mean]
        out = answer(list(maps.clone()))
        fault = _differs(out, product(steps))
        if not fault:
            continue
        for found, wrong in (
            ("the order is turned round: the first layer acts first", product(steps[::-1])),
            ("the residual stream, I, is missing", product(list(mean))),
            ("each factor is halved, so that its rows sum to one", product([2 * s for s in steps])),
            ("average over the heads, do not add them up", product([H * A + eye for A in mean])),
            ("only the last layer enters", steps[-1]),
        ):
            if not _differs(out, wrong):
                return found
        return fault
    return None


def _ignores_order(answer: Callable[[Callable[[Tensor], Tensor], Tensor], bool]) -> str | None:
    """8.4: a detective of bags of patches, tried on models whose nature is known."""
    generator = torch.Generator().manual_seed(0)
    patches, W, places = torch.randn(3, 9, 7, generator=generator, dtype=torch.float64)
    patches = patches[None]

    def attend(x):
        return (x @ W[:7] @ x.mT).softmax(-1) @ x

    suspects = {
        "attention, then the mean": (lambda x: attend(x).mean(1), True),
        "a network for each patch, then the largest": (lambda x: (x @ W[:7]).tanh().amax(1), True),
        "the sum of all patches": (lambda x: x.sum(1), True),
        "attention with positions": (lambda x: attend(x + places).mean(1), False),
        "the first patch alone": (lambda x: x[:, 0], False),
        "the last patch alone": (lambda x: x[:, -1], False),
        "neighbours multiplied": (lambda x: (x[:, 1:] * x[:, :-1]).sum(1), False),
        "faint positions": (lambda x: attend(x + 0.01 * places).mean(1), False),
        "logits that are always the same": (lambda x: x.sum(1) * 0.0, True),
    }
    for name, (model, ignores) in suspects.items():
        if bool(answer(model, patches.clone())) != ignores:
            return f"{name}: it {'ignores' if ignores else 'uses'} the order, and you say otherwise"
    return None


def _differs_mask(out, expected: Tensor, case: str) -> str | None:
    if not isinstance(out, Tensor) or out.dtype != torch.bool:
        got = out.dtype if isinstance(out, Tensor) else type(out).__name__
        return f"a mask is a bool tensor, not {got}"
    if out.shape != expected.shape:
        return f"for {case} the shape is {tuple(out.shape)} instead of {tuple(expected.shape)}"
    if torch.equal(out, ~expected):
        return "the sign is inverted: True means may attend"
    if not torch.equal(out, expected):
        wrong = (out != expected).nonzero()[0].tolist()
        return f"for {case} the cell {wrong} should be {bool(expected[tuple(wrong)])}"
    return None


def _differs(out, expected: Tensor) -> str | None:
    if not isinstance(out, Tensor):
        return f"a tensor is wanted, not {type(out).__name__}"
    if out.shape != expected.shape:
        return f"the shape is {tuple(out.shape)} instead of {tuple(expected.shape)}"
    if not out.is_floating_point():
        return f"real numbers are wanted, not {out.dtype}"
    difference = (out - expected).abs().max()
    if not difference < 1e-5:  # so written, NaN differs
        return f"the largest difference from PyTorch is {difference:.3f}"
    return None


_CHECKS: dict[str, Callable[[Any], str | None]] = {
    "1.1": _one_row,
    "1.2": _softmax,
    "1.3": _attention,
    "1.4": _query_for_milk,
    "1.5": _unshuffle,
    "2.1": _prefix_mask,
    "2.2": _decoder_mask,
    "2.3": _sees_future,
    "2.4": _masked_softmax,
    "3.1": _count_weights,
    "3.2": _split_heads,
    "3.3": _one_of_the_heads,
    "3.4": _silence,
    "4.1": _spread_of_products,
    "4.2": _softmax_jacobian,
    "4.3": _find_scale,
    "4.4": _scale_for_entropy,
    "5.1": _fourth_place,
    "5.2": _to_half_split,
    "5.3": _places_of,
    "5.4": _is_relative,
    "6.1": _layer_norm,
    "6.2": _block_size,
    "6.3": _pre_norm_block,
    "6.4": _mean_of_real,
    "7.1": _smoothed_shares,
    "7.2": _rows_computed,
    "7.3": _masked_loss,
    "7.4": _greedy,
    "8.1": _vit_sizes,
    "8.2": _join,
    "8.3": _rollout,
    "8.4": _ignores_order,
}
