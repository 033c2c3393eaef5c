"""Rules for tests, read off their syntax: each test can fail, and none gets weaker unseen."""

import ast
import functools
import json
import math
import re
from itertools import pairwise
from pathlib import Path

import pytest
from tables import for_each, raises_for_each

TESTS = Path(__file__).parent
FILES = sorted(TESTS.rglob("*.py"))
WRITTEN = TESTS / "asked.json"
DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
# of pytest, torch and numpy
COMPARING = {"equal", "allclose", "isclose", "assert_close", "array_equal", "assert_allclose"}
CHECKING = ("assert", "check", "raises", "warns", "fail", "expect")


@functools.cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in FILES}


def name_of(node: ast.AST) -> str:
    """The last part of a name: ``raises`` of ``pytest.raises``."""
    return getattr(node, "attr", getattr(node, "id", ""))


def always_true(tree: ast.Module) -> list[int]:
    """Lines with ``or True``."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or)
        if any(isinstance(part, ast.Constant) and part.value is True for part in node.values)
    ]


def expected_to_fail(tree: ast.Module) -> list[int]:
    return [node.lineno for node in ast.walk(tree) if name_of(node) == "xfail"]


def compared_with_itself(tree: ast.Module) -> list[int]:
    """Lines where a value stands on both sides; two calls may differ, so they may be compared."""
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and name_of(node.func) in COMPARING:
            receiver = [node.func.value] if isinstance(node.func, ast.Attribute) else []
            sides = [*receiver, *node.args[:2]]
        else:
            continue
        pairs = pairwise(sides)
        lines += [
            node.lineno
            for one, other in pairs
            if ast.dump(one) == ast.dump(other)
            and not any(isinstance(part, ast.Call) for part in ast.walk(one))
        ]
    return lines


def without_a_check(tree: ast.Module) -> list[int]:
    """Tests that assert nothing, neither themselves nor in a function of their file."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    parts = {function: [*ast.walk(function)] for function in functions}
    calls = {
        function: {name_of(node.func) for node in inside if isinstance(node, ast.Call)}
        for function, inside in parts.items()
    }
    checking = {
        function.name
        for function, inside in parts.items()
        if any(isinstance(node, ast.Assert) for node in inside)
        or any(name.startswith(CHECKING) for name in calls[function])
    }
    while found := {f.name for f in functions if calls[f] & checking} - checking:
        checking |= found
    return [f.lineno for f in functions if f.name.startswith("test_") and f.name not in checking]


def ending_early(tree: ast.Module) -> list[int]:
    """Tests that return, so that what they assert after it is never tried."""

    def own(node: ast.AST) -> list[ast.AST]:  # without those of inner functions
        parts = [n for n in ast.iter_child_nodes(node) if not isinstance(n, DEFINED)]
        return parts + [n for part in parts for n in own(part)]

    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        if any(isinstance(part, ast.Return) for part in own(node))
    ]


def computed_twice(tree: ast.Module) -> list[int]:
    """Lines that give a second name to the very call of the line before: no rival, but a twin."""
    blocks = [
        block
        for node in ast.walk(tree)
        for block in (getattr(node, "body", None), getattr(node, "orelse", None))
        if isinstance(block, list)
    ]
    return [
        second.lineno
        for block in blocks
        for first, second in pairwise(block)
        if isinstance(first, ast.Assign) and isinstance(second, ast.Assign)
        if isinstance(first.value, ast.Call) and ast.dump(first.value) == ast.dump(second.value)
        if not isinstance(second.targets[0], ast.Attribute)
    ]


def passing_all(tree: ast.Module) -> list[int]:
    """Tolerances of a half and more."""
    return [
        node.value.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg in ("abs", "rel", "atol", "rtol")
        if isinstance(node.value, ast.Constant) and not isinstance(node.value.value, str | bool)
        if node.value.value is not None and node.value.value >= 0.5
    ]


def always_full(tree: ast.Module) -> list[int]:
    """Lines that assert a name which the function gave to a list with something in it."""
    lines = []
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        given = {
            target.id
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and getattr(node.value, "elts", None)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        lines += [
            node.lineno
            for node in ast.walk(function)
            if isinstance(node, ast.Assert) and isinstance(node.test, ast.Name)
            if node.test.id in given
        ]
    return lines


RULES = (always_true, expected_to_fail, compared_with_itself, without_a_check, ending_early)
RULES += (computed_twice, passing_all, always_full)


@pytest.mark.parametrize("rule", RULES)
def test_each_test_can_fail(rule):
    assert len(FILES) > 50
    broken = {path: rule(tree) for path, tree in trees().items()}
    assert {path: lines for path, lines in broken.items() if lines} == {}


@for_each(
    (always_true, "assert f() or True"),
    (expected_to_fail, "pytest.xfail('later')"),
    (expected_to_fail, "assert pytest.param(1, marks=pytest.mark.xfail)"),
    (compared_with_itself, "assert x == x"),
    (compared_with_itself, "assert 1 < x.shape[0] <= x.shape[0]"),
    (compared_with_itself, "assert torch.equal(a.b, a.b)"),
    (compared_with_itself, "assert a.equal(a)"),
    (without_a_check, "f()"),
    (without_a_check, "g()"),
    (computed_twice, "x = f(1)\n    y = f(1)\n    assert x == y"),
    (computed_twice, "a, b = f(1, **c)\n    d, e = f(1, **c)\n    assert a == d"),
    (passing_all, "assert x == pytest.approx(y, abs=10)"),
    (always_full, "x = [f(1), f(2)]\n    assert x"),
    (ending_early, "return\n    assert f()"),
    (ending_early, "if x:\n        return\n    assert f()"),
)
def test_each_broken_rule_is_seen(rule, body):
    source = f"def g():\n    pass\n\n\ndef test_a():\n    {body}\n"
    assert len(rule(ast.parse(source))) == 1


@for_each(
    "assert f() or x",
    "x = [f(a) for a in b]\n    assert x",
    "assert str(f()) == str(f())",
    "assert torch.equal(a.b, b.a)",
    "x = f(1)\n    y = f(2)\n    assert x == pytest.approx(y, abs=0.1)",
    "with pytest.raises(ValueError):\n        f()",
    "h()",
    "def inner():\n        return 1\n\n    assert inner()",
)
def test_what_can_fail_is_no_broken_rule(body):
    helpers = "def g():\n    assert f()\n\n\ndef h():\n    g()\n\n\n"
    tree = ast.parse(f"{helpers}def test_a():\n    {body}\n")
    assert [rule(tree) for rule in RULES] == [[]] * len(RULES)


@for_each(None, KeyError("no other error"), ValueError("other words"))
def test_a_row_that_does_not_raise_what_it_says_is_red(error):
    @raises_for_each((error, ValueError, "these words"))
    def does(raised):
        if raised is not None:
            raise raised

    does(raised=ValueError("these words"), error=ValueError, message="these words")
    with pytest.raises((KeyError, AssertionError, pytest.fail.Exception)):
        does(raised=error, error=ValueError, message="these words")


# ---------------------------------------------------------------- messages that say a direction

DIRECTION = re.compile(
    r"\b(left|right|before|after|first|last|earlier|later|above|below|smaller|larger|most|least"
    r"|rows?|columns?|query|queries|keys?)\b"
)


def texts(node: ast.AST) -> list[str]:
    """All strings of a part of a file, without those that stand for themselves, as docstrings."""
    parts = [*ast.walk(node)]
    bare = {part.value for part in parts if isinstance(part, ast.Expr)}
    parts = [part for part in parts if isinstance(part, ast.Constant) and part not in bare]
    return [part.value for part in parts if isinstance(part.value, str)]


def untried(source: str, matched: str) -> list[str]:
    """Words of direction in raised messages that no test has with the words around them."""
    raised = [node.exc for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Raise)]
    found = []
    for text in (text for call in raised if call for text in texts(call)):
        told = text.split()
        for i in (i for i, word in enumerate(told) if DIRECTION.search(word)):
            starts = range(max(0, min(i - 3, len(told) - 4)), max(0, min(i, len(told) - 4)) + 1)
            phrases = [" ".join(told[start : start + 4]).rstrip(".,:;") for start in starts]
            found += [] if any(phrase in matched for phrase in phrases) else [f"{told[i]}: {text}"]
    return found


def test_each_direction_in_a_message_is_matched():
    matched = "\n".join(text.replace("\\", "") for tree in trees().values() for text in texts(tree))
    sources = {path: path.read_text() for path in TESTS.parent.glob("attn_*/**/*.py")}
    found = {path: untried(source, matched) for path, source in sources.items()}
    assert {path: words for path, words in found.items() if words} == {}
    message = 'raise ValueError(f"row {i}: write it on the left, got {x}")'
    assert untried(message, "row 2: write it on the left") == []
    assert len(untried(message, "row 2: write it on the right")) == 1


# ---------------------------------------------------------------- how much the tests ask


def digits(bound: object) -> int:
    """How narrow a bound is, in hundredths of a digit; 0 is the narrowest."""
    if not isinstance(bound, int | float) or isinstance(bound, bool):
        return 0
    return -round(100 * math.log10(abs(bound))) if bound else 3000


def words(*parts: ast.AST) -> int:
    """The words of all texts in a part of a test."""
    texts = [n.value for part in parts for n in ast.walk(part) if isinstance(n, ast.Constant)]
    return sum(len(re.findall(r"\w+", text)) for text in texts if isinstance(text, str))


def of_bounds(node: ast.AST) -> int:
    """What a node says of how near, how much or how often: more is stricter."""
    number = 0
    if isinstance(node, ast.Compare):
        sides = [digits(getattr(side, "value", "")) for side in (node.left, *node.comparators)]
        for op, (one, other) in zip(node.ops, pairwise(sides), strict=True):
            upper = isinstance(op, ast.Lt | ast.LtE) - isinstance(op, ast.Gt | ast.GtE)
            number += 2 * upper * (other - one)
    elif isinstance(node, ast.keyword) and node.arg in ("abs", "rel", "atol", "rtol"):
        number += 1 + digits(getattr(node.value, "value", ""))
    elif isinstance(node, ast.Constant) and isinstance(node.value, float) and 0 < node.value < 1:
        number += digits(node.value)
    elif isinstance(node, ast.keyword) and node.arg == "max_examples":
        number -= digits(getattr(node.value, "value", ""))
    elif isinstance(node, ast.Call) and name_of(node.func) == "range":
        number -= sum(digits(getattr(arg, "value", "")) for arg in node.args[:2])
    return number


def asked(tree: ast.Module) -> int:
    """Tests, assertions, words, rows of tables and digits of bounds, in one number."""
    nodes = [*ast.walk(tree)]
    tables = [node for node in tree.body if not isinstance(node, DEFINED)]
    tables += [part for node in nodes for part in getattr(node, "decorator_list", [])]
    tables += [node.iter for node in nodes if isinstance(node, ast.For | ast.comprehension)]
    tables += [n.value for n in nodes if isinstance(n, ast.Assign) and n not in tree.body]
    number = words(*tables)
    for node in (part for table in tables for part in ast.walk(table)):
        number += len(getattr(node, "elts", []))
        number += len(node.keys) if isinstance(node, ast.Dict) else 0
        number -= isinstance(node, ast.Slice)
        number += len(node.args) if isinstance(node, ast.Call) else 0
    for node in nodes:
        number += of_bounds(node)
        number += isinstance(node, ast.Eq | ast.Is | ast.And | ast.withitem)
        number += isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        number += getattr(node, "name", "").startswith("test_") if isinstance(node, DEFINED) else 0
        number += isinstance(node, ast.Call) and name_of(node.func) in ("all", "equal")
        number -= isinstance(node, ast.If | ast.Continue | ast.Break | ast.Try | ast.Or)
        number -= len(getattr(node, "ifs", []))
        if isinstance(node, ast.Assert) or (isinstance(node, ast.keyword) and node.arg == "match"):
            number += 1 + words(node)
    return number


def count() -> dict[str, int]:
    """Of each file of tests, and the words of each table beside them."""
    found = {path: asked(tree) for path, tree in trees().items()}
    for path in sorted({*TESTS.rglob("*.csv"), *TESTS.rglob("*.json")} - {WRITTEN}):
        found[path] = len(path.read_text().split())
    return {str(path.relative_to(TESTS)): number for path, number in found.items()}


def test_no_test_asks_less_than_is_written_down():
    """``python tests/test_rules.py`` writes it anew: a smaller number is seen in the change."""
    written, now = json.loads(WRITTEN.read_text()), count()
    differ = {name: now.get(name) for name in written | now if written.get(name) != now.get(name)}
    assert differ == {}, "python tests/test_rules.py writes it anew"


TESTED = """
LIMIT = 1e-6
CASES = {"one": 1, "two": 2}


@for_each("a", ("b", 2), "c")
@pytest.mark.parametrize("word", "red blue green".split())
def test_a(x, y):
    assert x == approx(y, abs=0.001)
    for size in (1, 3):
        with pytest.raises(ValueError, match="no such"):
            f(x, size)
    some = [f(n) for n in range(20)]
    assert f(y) < LIMIT
    assert all(n < 3 and n > 0.5 for n in some[:9])
    assert_close(x, y, rtol=0, atol=0)
    assert torch.equal(x, y)
    assert len(some) > 10
    assert "two words" in f(2)
    others = [1, 2]
    g(others)
"""


@for_each(
    ("1e-6", "2e-6"),
    ("0.001", "0.01"),
    (', "two": 2', ""),
    ('("b", 2), ', ""),
    ("red blue", "red"),
    ("(1, 3)", "(1,)"),
    (', match="no such"', ""),
    ("no such", "no"),
    (" == approx(y, abs=0.001)", ""),
    ("    assert f(y) < LIMIT\n", ""),
    ("def test_a", "def a"),
    ("range(20)", "range(2)"),
    ("range(20)]", "range(20) if n]"),
    ("all(", "any("),
    ("n < 3", "n < 4"),
    ("n > 0.5", "n > 0.4"),
    ("n < 3 and", "n < 3 or"),
    ("rtol=0, ", ""),
    ("atol=0", "atol=1e-9"),
    ("torch.equal", "torch.allclose"),
    ("> 10", "> 9"),
    ("two words", "two"),
    ("[1, 2]", "[1]"),
    ("    g(others)\n", ""),
    ("        with pytest", "        if x:\n            continue\n        with pytest"),
)
def test_a_weaker_test_asks_less(old, new):
    assert TESTED.count(old) == 1
    assert asked(ast.parse(TESTED.replace(old, new))) < asked(ast.parse(TESTED))


if __name__ == "__main__":
    WRITTEN.write_text(json.dumps(count(), indent=1) + "\n")
