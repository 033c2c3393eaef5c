"""Wrong attentions of every known kind, in several forms, and right ones that look unusual."""

from importlib import import_module
from pathlib import Path

from planted.plants import PLANTS, RIGHT, Plant, given

for _path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
    import_module(f"planted.{_path.stem}")

__all__ = ["PLANTS", "RIGHT", "Plant", "given"]
