"""Tables of cases: a test runs once for each row, whose values are its first arguments."""

import functools
import inspect

import pytest


def for_each(*rows, **options):
    """A row of one value may stand without a tuple."""
    rows = [row if isinstance(row, tuple) else (row,) for row in rows]

    def over_rows(test):
        names = [*inspect.signature(test).parameters][: len(rows[0])]
        return pytest.mark.parametrize(names, rows, **options)(test)

    return over_rows


def raises_for_each(*rows):
    """A row ends with the error that the test has to raise, and the words that it must have."""

    def over_rows(test):
        @functools.wraps(test)
        def raising(error, message, **given):
            with pytest.raises(error, match=message):
                test(**given)

        own = [*inspect.signature(test).parameters.values()]
        told = [*inspect.signature(raising, follow_wrapped=False).parameters.values()][:2]
        at = len(rows[0]) - 2
        raising.__signature__ = inspect.Signature([*own[:at], *told, *own[at:]])
        return for_each(*rows)(raising)

    return over_rows
