"""``python -m attn_check module:function``: what is wrong with an attention, from a shell.

exit status: 0, no mistake was found; 1, there are mistakes; 2, it could not be checked. So:
  python -m attn_check mine:attention --causal
  python -m attn_check "mine.py:Attention(32, num_heads=4)" --options is_causal=True --causal
  python -m attn_check mine:apply_rope --rope --rope-base 500000 --rope-pairing neighbours
  python -m attn_check mine:language_model --audit
"""

import argparse
import ast
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attn_check import audit, diagnose, diagnose_rope
from attn_check.calls import parameters_of

_KINDS: dict[str, type] = dict.fromkeys("heads kv-heads d-k window rope-dims".split(), int)
_KINDS |= dict.fromkeys("softcap scale rope-base".split(), float)
_KINDS |= dict.fromkeys("arguments layout mask-means mask-shape qk-norm prenorm".split(), str)
_KINDS["rope-pairing"] = str
_CAUSAL = {"yes": True, "no": False, "top_left": "top_left"}
_REPORTS: dict[str | None, Callable] = {None: diagnose, "rope": diagnose_rope, "audit": audit}


def main(words: list[str] | None = None) -> int:
    """Diagnose what the words, or the command line, name; the exit status is 0, 1 or 2.

    Example:
        >>> main(["attn_lib:attention", "--markdown"])  # doctest: +ELLIPSIS
        **attention: no mistake found.**
        ...
        0
    """
    words = sys.argv[1:] if words is None else words
    pairs = zip(words, [*words, ""][1:], strict=True)  # --causal may stand in front of the target
    words = ["--causal=yes" if w == "--causal" and n not in _CAUSAL else w for w, n in pairs]
    given = vars(_parser().parse_args(words))
    target, markdown, kind = given.pop("target"), given.pop("markdown"), given.pop("kind")
    adapter = {name: value for name, value in given.items() if value is not None}
    try:
        subject = _find(target)
        if kind == "audit" and inspect.isfunction(subject):
            needed = [p for p in parameters_of(subject) or () if p.default is p.empty]
            subject = subject if needed else subject()
        if "causal" in adapter:
            adapter["causal"] = _CAUSAL[adapter["causal"]]
        if "options" in adapter:
            adapter["options"] = dict(map(_option, adapter["options"]))
        report = _REPORTS[kind](subject, **adapter)
    except Exception as error:  # one line instead of a traceback
        print(f"{target}: {type(error).__name__}: {error}{_line(error)}", file=sys.stderr)
        return 2
    print(report._repr_markdown_() if markdown else report)
    return 0 if report.ok else 1


def _find(target: str) -> Any:
    """What ``module:name`` or ``file.py:name`` names; ``module:Layer(12, 3).attend`` is called."""
    name, _, text = target.partition(":")
    if not name or not text:
        raise ValueError("pass module:function, file.py:function or module:Class(12, 3)")
    folder, _, stem = name.removesuffix(".py").rpartition("/")
    sys.path.insert(0, folder)
    try:
        found = _value(ast.parse(text, mode="eval").body, importlib.import_module(stem))
    finally:
        sys.path.pop(0)
    if isinstance(found, type):
        made = f"{name}:{text}(32, 4); its arguments are {text}{inspect.signature(found)}"
        raise TypeError(f"{text} is a class: make an instance, as in {made}")
    return found


def _value(node: ast.expr, module: Any) -> Any:
    """What constants, names, attributes and calls stand for."""
    if isinstance(node, ast.Name):
        return getattr(module, node.id)
    if isinstance(node, ast.Attribute):
        return getattr(_value(node.value, module), node.attr)
    if isinstance(node, ast.Call):
        values = [_value(argument, module) for argument in node.args]
        named = {k.arg: _value(k.value, module) for k in node.keywords if k.arg}
        return _value(node.func, module)(*values, **named)
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"{ast.unparse(node)} is no name, call or constant") from None


def _option(text: str) -> tuple[str, Any]:
    key, _, value = text.partition("=")
    if not key.isidentifier() or key == text:
        raise ValueError(f"--options takes KEY=VALUE, got {text!r}")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def _line(error: Exception) -> str:
    """Where somebody else's code raised."""
    *_, last = traceback.extract_tb(error.__traceback__)
    ours = last.filename.startswith(("<", str(Path(__file__).parent)))
    if ours or "importlib" in last.filename or isinstance(error, SyntaxError):
        return ""
    return f" ({Path(last.filename).name}, line {last.lineno}: {last.line})"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m attn_check", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("target", help="module:function, or module:Class(12, 3), of constants and names in it")
    add("--causal", choices=_CAUSAL, help="no query attends to a later key; alone it means yes")
    add("--options", nargs="+", metavar="KEY=VALUE", help="further arguments of every call")
    for name, kind in _KINDS.items():
        add(f"--{name}", type=kind, help="as in attn_check.diagnose")
    rope = "the function rotates q and k: --rope-base, --rope-pairing, --layout, --d-k go with it"
    add("--rope", dest="kind", action="store_const", const="rope", help=rope)
    whole = "the target is a language model, or makes one: does its answer stay the same?"
    add("--audit", dest="kind", action="store_const", const="audit", help=whole)
    add("--markdown", action="store_true", help="print Markdown")
    return parser


if __name__ == "__main__":
    sys.exit(main())
