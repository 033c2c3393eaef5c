"""``python -m attn_check module:function``: what is wrong with an attention, from a shell.

Exits with 0 if no mistake is found, with 1 if there are some, and with 2 if nothing can be said.
"""

import argparse
import ast
import importlib
import inspect
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from attn_check import diagnose, diagnose_rope

_NUMBERS = {"heads": int, "kv-heads": int, "d-k": int, "window": int, "softcap": float}
_NUMBERS |= {"scale": float, "rope-base": float}
_WORDS = ("arguments", "layout", "mask-means", "mask-shape", "qk-norm", "rope-pairing")
_CAUSAL = {"yes": True, "no": False, "top_left": "top_left"}
_OF_ROPE = ("rope_base", "rope_pairing", "layout", "d_k")
_STATUS = """\
exit status: 0, no mistake was found; 1, there are mistakes; 2, it could not be checked.

python -m attn_check mine:attention --causal
python -m attn_check "mine:Attention(32, num_heads=4)" --options is_causal=True --causal
python -m attn_check mine:apply_rope --rope --rope-base 500000 --rope-pairing neighbours
"""


def main(words: list[str] | None = None) -> int:
    """Diagnose what the command line names.

    Args:
        words: as in ``sys.argv[1:]``, the default.

    Returns:
        The exit status: 0, 1 or 2.

    Example:
        >>> main(["attn_lib:attention", "--markdown"])  # doctest: +ELLIPSIS
        **attention: no mistake found.**
        ...
        0

    Source: :func:`attn_check.diagnose`.
    """
    said = vars(_parser().parse_args(_with_causal(sys.argv[1:] if words is None else words)))
    target, markdown, rope = said.pop("target"), said.pop("markdown"), said.pop("rope")
    adapter = {name: value for name, value in said.items() if value is not None}
    try:
        subject = find(target)
        if rope:
            report = diagnose_rope(subject, **_of_rope(adapter))
        else:
            report = diagnose(subject, **_of_attention(adapter))
    except Exception as error:  # one line instead of a traceback
        print(f"{target}: {type(error).__name__}: {error}{_line(error)}", file=sys.stderr)
        return 2
    print(report._repr_markdown_() if markdown else report)
    return 0 if report.ok else 1


def find(target: str) -> Any:
    """The object that ``module:name`` names; a call such as ``module:Layer(12, 3)`` is made.

    Args:
        target: a module and a name in it; constant arguments are allowed, and names of methods
            after a call: ``module:Layer(12, 3).attend``.

    Returns:
        A function or an instance.

    Raises:
        ValueError: no colon, or arguments that are not constants.
        TypeError: a class instead of an instance.
        AttributeError: a name that the module does not have.
        ImportError: a module that cannot be imported.

    Example:
        >>> type(find("attn_lib:MultiHeadAttention(12, 3)")).__name__
        'MultiHeadAttention'

    Source: the entry points of Python packages.
    """
    name, colon, text = target.partition(":")
    if not colon or not name or not text:
        raise ValueError("pass module:function, or module:Class(12, 3)")
    sys.path.insert(0, "")
    try:
        module = importlib.import_module(name)
    finally:
        sys.path.pop(0)
    found = _named(ast.parse(text, mode="eval").body, module)
    if isinstance(found, type):
        raise TypeError(
            f"{text} is a class: make an instance, as in {name}:{text}(32, 4); its arguments "
            f"are {text}{_signature(found)}"
        )
    return found


def _named(node: ast.expr, module: ModuleType) -> Any:
    """What names, attributes and calls with constants stand for."""
    if isinstance(node, ast.Name):
        return getattr(module, node.id)
    if isinstance(node, ast.Attribute):
        return getattr(_named(node.value, module), node.attr)
    if not isinstance(node, ast.Call):
        raise ValueError(f"{ast.unparse(node)} is neither a name nor a call")
    made = _named(node.func, module)
    values = [_constant(argument) for argument in node.args]
    return made(*values, **{k.arg: _constant(k.value) for k in node.keywords if k.arg})


def _constant(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"the argument {ast.unparse(node)} is not a constant") from None


def _signature(found: type) -> str:
    try:
        return str(inspect.signature(found))
    except (TypeError, ValueError):
        return "(...)"


def _line(error: Exception) -> str:
    """Where somebody else's code raised."""
    frames = traceback.extract_tb(error.__traceback__)
    if (
        not frames
        or isinstance(error, SyntaxError)
        or Path(frames[-1].filename).is_relative_to(Path(__file__).parent)
    ):
        return ""
    last = frames[-1]
    if "importlib" in last.filename or last.filename.startswith("<"):
        return ""
    return f" ({Path(last.filename).name}, line {last.lineno}: {last.line})"


def _with_causal(words: list[str]) -> list[str]:
    """``--causal`` alone means yes, also in front of the target."""
    following = [*words, ""][1:]
    return [
        "--causal=yes" if word == "--causal" and after not in _CAUSAL else word
        for word, after in zip(words, following, strict=True)
    ]


def _of_rope(adapter: dict[str, Any]) -> dict[str, Any]:
    foreign = [f"--{name.replace('_', '-')}" for name in adapter if name not in _OF_ROPE]
    if foreign:
        raise ValueError(f"with --rope, {', '.join(foreign)} cannot be passed")
    return adapter


def _of_attention(adapter: dict[str, Any]) -> dict[str, Any]:
    if "causal" in adapter:
        adapter["causal"] = _CAUSAL[adapter["causal"]]
    if "options" in adapter:
        adapter["options"] = dict(map(_option, adapter["options"]))
    return adapter


def _option(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise ValueError(f"--options takes KEY=VALUE, got {text!r}")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m attn_check",
        description="Say in words what is wrong with an attention.",
        epilog=_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "target", help="module:function, or module:Class(12, 3) with constants in the call"
    )
    parser.add_argument(
        "--causal", choices=_CAUSAL, help="no query attends to a later key; alone it means yes"
    )
    parser.add_argument(
        "--options", nargs="+", metavar="KEY=VALUE", help="further arguments of every call"
    )
    for name, kind in _NUMBERS.items():
        parser.add_argument(f"--{name}", type=kind)
    for name in _WORDS:
        parser.add_argument(f"--{name}", help="as in attn_check.diagnose")
    parser.add_argument(
        "--rope",
        action="store_true",
        help="the function rotates q and k; of the others, --rope-base, --rope-pairing, --layout "
        "and --d-k go with it",
    )
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    return parser


if __name__ == "__main__":
    sys.exit(main())
