"""What a check returns, the table of all checks, and the comparisons that they share."""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

Check = Callable[[Any], str | None]
_CHECKS: dict[str, Check] = {}


class Verdict(NamedTuple):
    """What a check found: shown as one sentence, and true if the answer passed."""

    passed: bool
    message: str

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return self.message


def exercise(number: str) -> Callable[[Check], Check]:
    """Register the decorated function as the check of an exercise.

    Args:
        number: the exercise's number in the book, such as ``"1.1"``.

    Returns:
        A decorator for a function that takes the answer and returns what is wrong with it, in
        words, or None.

    Raises:
        ValueError: the number has a check already.

    Example:
        >>> exercise("1.1")(lambda answer: None)
        Traceback (most recent call last):
        ValueError: exercise 1.1 has a check already, one_row

    Source: the exercise sections of the book's pages.
    """

    def register(function: Check) -> Check:
        if number in _CHECKS:
            raise ValueError(
                f"exercise {number} has a check already, {_CHECKS[number].__qualname__}"
            )
        _CHECKS[number] = function
        return function

    return register


def known() -> list[str]:
    """The numbers of all exercises, in the order of the book.

    Returns:
        A list of numbers, such as ``"1.1"``.

    Example:
        >>> known()[:2]
        ['1.1', '1.2']

    Source: the exercise sections of the book's pages.
    """
    return sorted(_CHECKS, key=lambda number: [int(part) for part in number.split(".")])


def check(number: str, answer: Any) -> Verdict:
    """Check an answer to an exercise of the book.

    Args:
        number: the exercise's number in the book, such as ``"1.1"``.
        answer: what the exercise asks for; ``...`` if there is no answer yet.

    Returns:
        A verdict with ``passed`` and a sentence that says what is right or wrong. A wrong answer
        of any kind gives a verdict, never an exception.

    Raises:
        ValueError: an unknown exercise.

    Example:
        >>> check("1.1", ...)
        Exercise 1.1 is waiting for your answer: replace the ... above.
        >>> check("1.1", [1.0, 2.0])
        Exercise 1.1, not yet: there are three keys, so three weights are wanted, not 2.

    Source: the exercise sections of the book's pages.
    """
    if number not in _CHECKS:
        raise ValueError(f"unknown exercise {number!r}; known: {', '.join(known())}")
    if answer is ...:
        return Verdict(
            False, f"Exercise {number} is waiting for your answer: replace the ... above."
        )
    try:
        fault = _CHECKS[number](answer)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the reader's code may raise anything; that is a verdict too
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


def numbers_of(answer: Any) -> list[float]:
    """At most ten numbers of a list, array or tensor."""
    if isinstance(answer, Tensor):
        answer = answer.detach().flatten()
    return [float(number) for number in itertools.islice(iter(answer), 10)]


def differs_mask(out: Any, expected: Tensor, case: str) -> str | None:
    """How a mask differs from the expected one, or None; ``case`` names the sizes."""
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


def differs(out: Any, expected: Tensor) -> str | None:
    """How a result differs from the expected numbers, or None within 1e-5."""
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
