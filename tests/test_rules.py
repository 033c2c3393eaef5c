"""Rules for tests, read off their syntax: each test can fail, and none gets weaker unseen."""

import ast
import functools
import json
import math
import re
from itertools import pairwise
from pathlib import Path

import pytest
from idle import TOLERANCES, always_holds, name_of
from tables import for_each, raises_for_each

TESTS = Path(__file__).parent
FILES = sorted(TESTS.rglob("*.py"))
WRITTEN = TESTS / "asked.json"
DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
CHECKING = ("assert", "check", "raises", "warns", "fail", "expect")


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    return [*ast.walk(ast.parse(path.read_text()))]


def always_true(nodes: list[ast.AST]) -> list[int]:
    return [node.lineno for node in nodes if always_holds(node)]


def without_a_check(nodes: list[ast.AST]) -> list[int]:
    """Tests that assert nothing, neither themselves nor in a function of their file."""
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    called = {f: {name_of(n) for n in ast.walk(f) if isinstance(n, ast.Call)} for f in functions}
    checking = {
        function.name
        for function in functions
        if any(isinstance(node, ast.Assert) for node in ast.walk(function))
        or any(name.startswith(CHECKING) for name in called[function])
    }
    while found := {f.name for f in functions if called[f] & checking} - checking:
        checking |= found
    return [f.lineno for f in functions if f.name.startswith("test_") and f.name not in checking]


def ending_early(nodes: list[ast.AST]) -> list[int]:
    """Tests that return, so that what they assert after it is never tried."""

    def own(node: ast.AST) -> list[ast.AST]:  # without those of inner functions
        parts = [n for n in ast.iter_child_nodes(node) if not isinstance(n, DEFINED)]
        return parts + [n for part in parts for n in own(part)]

    return [
        node.lineno
        for node in nodes
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        if any(isinstance(part, ast.Return) for part in own(node))
    ]


def computed_twice(nodes: list[ast.AST]) -> list[int]:
    """Lines that give a second name to the very call of the line before: no rival, but a twin."""
    blocks = [getattr(node, part, None) for node in nodes for part in ("body", "orelse")]
    return [
        second.lineno
        for block in blocks
        for first, second in pairwise(block if isinstance(block, list) else ())
        if isinstance(first, ast.Assign) and isinstance(second, ast.Assign)
        if isinstance(first.value, ast.Call) and ast.dump(first.value) == ast.dump(second.value)
        if not isinstance(second.targets[0], ast.Attribute)
    ]


def passing_all(nodes: list[ast.AST]) -> list[int]:
    """Tolerances of a half and more."""
    given = [n.value for n in nodes if isinstance(n, ast.keyword) and n.arg in TOLERANCES]
    numbers = [n for n in given if type(getattr(n, "value", None)) in (int, float)]
    return [number.lineno for number in numbers if number.value >= 0.5]


RULES = (always_true, without_a_check, ending_early, computed_twice, passing_all)


@pytest.mark.parametrize("rule", RULES)
def test_each_test_can_fail(rule):
    broken = {path: lines for path in FILES if (lines := rule(nodes_of(path)))}
    assert broken == {}


@for_each(
    (always_true, "assert f() or True"),
    (always_true, "assert 1 < x.shape[0] <= x.shape[0]"),
    (always_true, "assert torch.equal(a.b, a.b)"),
    (without_a_check, "g()"),
    (computed_twice, "a, b = f(1, **c)\n    d, e = f(1, **c)\n    assert a == d"),
    (passing_all, "assert x == pytest.approx(y, abs=10)"),
    (ending_early, "if x:\n        return\n    assert f()"),
)
def test_each_broken_rule_is_seen(rule, body):
    source = f"def g():\n    pass\n\n\ndef test_a():\n    {body}\n"
    assert len(rule([*ast.walk(ast.parse(source))])) == 1


def test_a_row_that_does_not_raise_what_it_says_is_red():
    @raises_for_each((1, ValueError, "these words"))
    def does(number):
        raise ValueError(("these words", "other words")[number])

    does(number=0, error=ValueError, message="these words")
    with pytest.raises(AssertionError):
        does(number=1, error=ValueError, message="these words")


# ---------------------------------------------------------------- messages that say a direction

DIRECTION = re.compile(
    r"\b(left|right|before|after|first|last|earlier|later|above|below|smaller|larger|most|least"
    r"|rows?|columns?|query|queries|keys?)\b"
)


def texts(nodes: list[ast.AST]) -> list[str]:
    """All strings, without those that stand for themselves, as docstrings do."""
    bare = {node.value for node in nodes if isinstance(node, ast.Expr)}
    found = [n.value for n in nodes if isinstance(n, ast.Constant) and n not in bare]
    return [text for text in found if isinstance(text, str)]


def untried(source: str, matched: str) -> list[str]:
    """Words of direction in raised messages that no test has with the words around them."""
    raised = [node.exc for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Raise)]
    found = []
    for text in (text for call in raised if call for text in texts([*ast.walk(call)])):
        told = text.split()
        phrases = [" ".join(told[n : n + 4]).rstrip(".,:;") for n in range(max(1, len(told) - 3))]
        tried = " ".join(phrase for phrase in phrases if phrase in matched)
        found += [f"{word}: {text}" for word in DIRECTION.findall(text) if word not in tried]
    return found


def test_each_direction_in_a_message_is_matched():
    matched = "\n".join(text for path in FILES for text in texts(nodes_of(path))).replace("\\", "")
    sources = {path: path.read_text() for path in TESTS.parent.glob("attn_*/**/*.py")}
    found = {path: untried(source, matched) for path, source in sources.items()}
    assert {path: words for path, words in found.items() if words} == {}
    message = 'raise ValueError(f"row {i}: write it on the left, got {x}")'
    assert len(untried(message, "row 2: write it on the right")) == 1


# ---------------------------------------------------------------- how much the tests ask

CHECKS = (ast.Assert, ast.Eq, ast.Is, ast.withitem)  # of the last are ``raises`` and ``warns``


def digits(node: ast.AST) -> int:
    """How narrow a bound is, in hundredths of a digit; 0 is the narrowest."""
    bound = getattr(node, "value", None)
    if type(bound) not in (int, float):
        return 0
    return -round(100 * math.log10(abs(bound))) if bound else 3000


def narrowness(node: ast.AST) -> int:
    """The digits of a comparison's bounds, of a tolerance, or of a number between 0 and 1."""
    if isinstance(node, ast.Compare):
        number, sides = 0, pairwise([node.left, *node.comparators])
        for op, (one, other) in zip(node.ops, sides, strict=True):
            upper = isinstance(op, ast.Lt | ast.LtE) - isinstance(op, ast.Gt | ast.GtE)
            number += 2 * upper * (digits(other) - digits(one))
        return number
    if isinstance(node, ast.keyword):
        return digits(node.value) if node.arg in TOLERANCES else 0
    value = getattr(node, "value", None)
    return digits(node) if isinstance(value, float) and 0 < value < 1 else 0


def asked(nodes: list[ast.AST]) -> list[int]:
    """Tests and what they check; words and values, those of tables too; digits of bounds."""
    tests = [n for n in nodes if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")]
    checks = [node for node in nodes if isinstance(node, CHECKS)]
    words = [word for text in texts(nodes) for word in re.findall(r"\w+", text)]
    calls = [node.args for node in nodes if isinstance(node, ast.Call)]
    tables = [getattr(node, "elts", getattr(node, "keys", ())) for node in nodes]
    values = sum(map(len, calls + tables))
    return [len(tests + checks), len(words) + values, sum(map(narrowness, nodes))]


def count() -> dict[str, list[int]]:
    """Of each file of tests, and the words of each table beside them."""
    found = {path: asked(nodes_of(path)) for path in FILES}
    for path in {*TESTS.rglob("*.csv"), *TESTS.rglob("*.json")} - {WRITTEN}:
        found[path] = [len(path.read_text().split())]
    return {str(path.relative_to(TESTS)): found[path] for path in sorted(found)}


def test_no_test_asks_less_than_is_written_down():
    """``python tests/test_rules.py`` writes it anew: a smaller number is seen in the change."""
    written, now = json.loads(WRITTEN.read_text()), count()
    differ = {name: now.get(name) for name in written | now if written.get(name) != now.get(name)}
    assert differ == {}, "python tests/test_rules.py writes it anew"


TESTED = """
@for_each("a", ("b", 2), "c")
def test_a(x, y):
    assert x == approx(y, abs=0.001)
    assert all(n < 3 for n in x)
"""


@for_each(
    ("    assert x == approx(y, abs=0.001)\n", ""),
    ('("b", 2), ', ""),
    ("0.001", "0.01"),
    ("n < 3", "n < 4"),
)
def test_a_weaker_test_asks_less(old, new):
    """Of one thing less, and of none more."""
    one, other = (asked([*ast.walk(ast.parse(x))]) for x in (TESTED, TESTED.replace(old, new)))
    assert one != other == [*map(min, one, other)]


if __name__ == "__main__":
    rows = [f"{json.dumps(name)}: {json.dumps(numbers)}" for name, numbers in count().items()]
    WRITTEN.write_text("{\n" + ",\n".join(rows) + "\n}\n")
