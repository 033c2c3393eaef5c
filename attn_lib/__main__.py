"""``python -m attn_lib module:function``: what is wrong with an attention, from a shell.

Exits with 0 if no mistake is found, with 1 if there are some, and with 2 if nothing can be said.
"""

import argparse
import ast
import importlib
import sys
from typing import Any

from attn_lib.diagnosis import diagnose, diagnose_rope

_NUMBERS = {"heads": int, "kv-heads": int, "d-k": int, "window": int, "softcap": float}
_NUMBERS |= {"scale": float, "rope-base": float}
_WORDS = ("arguments", "layout", "mask", "mask-shape", "qk-norm", "rope-pairing")


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

    Source: :func:`attn_lib.diagnose`.
    """
    said = vars(_parser().parse_args(words))
    target, markdown, rope = said.pop("target"), said.pop("markdown"), said.pop("rope")
    adapter = {name: value for name, value in said.items() if value is not None}
    try:
        subject = find(target)
        report = diagnose_rope(subject, **adapter) if rope else diagnose(subject, **adapter)
    except Exception as error:  # one line instead of a traceback
        print(f"{target}: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print(report._repr_markdown_() if markdown else report)
    return 0 if report.ok else 1


def find(target: str) -> Any:
    """The object that ``module:name`` names; a call such as ``module:Layer(12, 3)`` is made.

    Args:
        target: a module and a name in it; constant arguments are allowed.

    Returns:
        A function or an instance.

    Raises:
        ValueError: no colon, or arguments that are not constants.
        AttributeError: a name that the module does not have.
        ImportError: a module that cannot be imported.

    Example:
        >>> type(find("attn_lib:MultiHeadAttention(12, 3)")).__name__
        'MultiHeadAttention'

    Source: the entry points of Python packages.
    """
    name, colon, text = target.partition(":")
    if not colon or not name or not text:
        raise ValueError("say module:function, or module:Class(12, 3)")
    sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(name)
    finally:
        sys.path.pop(0)
    node = ast.parse(text, mode="eval").body
    call = node if isinstance(node, ast.Call) else None
    for part in ast.unparse(node if call is None else call.func).split("."):
        found = getattr(found, part)
    if call is None:
        return found
    options = {k.arg: ast.literal_eval(k.value) for k in call.keywords if k.arg is not None}
    return found(*map(ast.literal_eval, call.args), **options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m attn_lib", description="Say in words what is wrong with an attention."
    )
    parser.add_argument("target", help="module:function, or module:Class(12, 3)")
    parser.add_argument(
        "--causal", action="store_true", default=None, help="no query attends to a later key"
    )
    for name, kind in _NUMBERS.items():
        parser.add_argument(f"--{name}", type=kind)
    for name in _WORDS:
        parser.add_argument(f"--{name}", help="as in attn_lib.diagnose")
    parser.add_argument("--rope", action="store_true", help="the function rotates q and k")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    return parser


if __name__ == "__main__":
    sys.exit(main())
