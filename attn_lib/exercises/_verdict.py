"""What a check returns, the table of all checks, and the comparisons that they share."""

import itertools
from collections import abc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, get_origin

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

Check = Callable[[Any], str | None]
_CHECKS: dict[str, Check] = {}


class Wrong(Exception):
    """What is wrong with an answer, in words: raised where a check has nothing left to compare."""


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
    """
    if number not in _CHECKS:
        raise ValueError(f"unknown exercise {number!r}; known: {', '.join(known())}")
    if answer is ...:
        return Verdict(
            False, f"Exercise {number} is waiting for your answer: replace the ... above."
        )
    try:
        fault = _fault(_CHECKS[number], answer)
    except Wrong as wrong:
        fault = str(wrong)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the reader's code may raise anything; that is a verdict too
        fault = f"it raised {_described(error)}"
    if fault:
        return Verdict(False, f"Exercise {number}, not yet: {fault}.")
    return Verdict(True, f"Exercise {number}: correct.")


def _fault(function: Check, answer: Any) -> str | None:
    if get_origin(function.__annotations__.get("answer")) is abc.Callable and not callable(answer):
        raise Wrong(f"a function is wanted, not {type(answer).__name__}")
    return function(answer)


def _described(error: BaseException) -> str:
    try:
        text = str(error).strip()
    except Exception:  # an error that cannot be shown is still an error
        text = ""
    first = text.splitlines()[0][:200] if text else "no message"
    return f"{type(error).__name__}: {first}"


class Called(TorchFunctionMode):
    """Names of the functions of PyTorch that are called inside ``with Called() as names:``."""

    def __enter__(self) -> set[str]:
        """Begin to listen."""
        super().__enter__()
        self.names: set[str] = set()
        return self.names

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Note the name, and call it."""
        self.names.add(getattr(function, "__name__", ""))
        return function(*args, **(kwargs or {}))


def numbers_of(answer: Any) -> list[float]:
    """At most ten numbers of a number, list, array or tensor."""
    if isinstance(answer, (Tensor, np.ndarray)):
        answer = tensor_of(answer).flatten()[:10].tolist()
    if isinstance(answer, str):
        raise Wrong("numbers are wanted, not a text")
    many = itertools.islice(answer, 10) if isinstance(answer, abc.Iterable) else [answer]
    try:
        return [float(number) for number in many]
    except (TypeError, ValueError, OverflowError):
        raise Wrong(f"numbers are wanted, not {_shown(answer)}") from None


def near(given: list[float], wanted: Sequence[float]) -> bool:
    """Whether numbers worked out on paper, to two decimals, are the wanted ones."""
    return all(abs(a - b) < 0.006 for a, b in zip(given, wanted, strict=True))


def one_number(answer: Any) -> float:
    """The only number of an answer."""
    found = numbers_of(answer)
    if len(found) != 1:
        raise Wrong(f"one number is wanted, not {len(found)}")
    return found[0]


def yes_or_no(answer: Any) -> bool:
    """A detector's verdict."""
    if isinstance(answer, (Tensor, np.ndarray)) and tensor_of(answer).numel() == 1:
        answer = answer.item()
    if not isinstance(answer, (bool, int, np.bool_)):
        raise Wrong(f"True or False is wanted, not {_shown(answer)}")
    return bool(answer)


def tensor_of(out: Any) -> Tensor:
    """A result as a plain tensor; numpy's arrays and plain numbers will do."""
    kind = type(out).__name__
    try:
        if isinstance(out, (int, float, complex, np.generic, np.ndarray)):
            out = torch.as_tensor(np.array(out))
        if isinstance(out, Tensor):
            return out.detach().cpu().to_dense()
    except (TypeError, ValueError, RuntimeError):
        kind = f"this {kind}"
    raise Wrong(f"a tensor is wanted, not {kind}")


def _shown(answer: Any) -> str:
    shape = f" of shape {tuple(answer.shape)}" if isinstance(answer, (Tensor, np.ndarray)) else ""
    return f"{type(answer).__name__}{shape}"


def differs_mask(out: Any, expected: Tensor, case: str) -> str | None:
    """How a mask differs from the expected one, or None; ``case`` names the sizes."""
    out = tensor_of(out)
    if out.dtype != torch.bool:
        return f"a mask is a bool tensor, not {out.dtype}"
    if out.shape != expected.shape:
        return f"for {case} the shape is {tuple(out.shape)} instead of {tuple(expected.shape)}"
    if torch.equal(out, ~expected):
        return "the mask is inverted: True means may attend"
    if not torch.equal(out, expected):
        wrong = (out != expected).nonzero()[0].tolist()
        return f"for {case} the cell {wrong} should be {bool(expected[tuple(wrong)])}"
    return None


def differs(out: Any, expected: Tensor, *, within: float = 1e-5) -> str | None:
    """How a result of any precision differs from the expected numbers, or None."""
    out = tensor_of(out)
    if expected.dim() == 0 and out.numel() == 1:
        out = out.flatten()[0]
    if out.shape != expected.shape:
        return f"the shape is {tuple(out.shape)} instead of {tuple(expected.shape)}"
    if out.is_complex() or out.dtype == torch.bool:
        return f"real numbers are wanted, not {out.dtype}"
    out, expected = out.double(), expected.double()
    difference = (out - expected).abs().max()
    if not difference <= within * max(1.0, float(expected.abs().max())):  # so written, NaN differs
        return f"the largest difference from PyTorch is {difference:.2g}"
    return None
