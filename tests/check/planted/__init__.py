"""Wrong attentions of every known kind, in several forms, and right ones that look unusual."""

from importlib import import_module
from pathlib import Path

from torch import nn

from planted.plants import PLANTS, RIGHT, Plant, given

for _path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
    import_module(f"planted.{_path.stem}")

_known = set()
for _plant in PLANTS:  # what a plant would be without its mistake, with one shape of masks
    _fn = _plant.right(0)
    _intent = {name: x for name, x in _plant.intent.items() if name != "mask_shape"}
    _key = (str(_plant.right) if isinstance(_fn, nn.Module) else _fn, str(_intent))
    if not _plant.rope and _key not in _known:
        _known.add(_key)
        RIGHT[f"right of {_plant.name}"] = (lambda p=_plant: p.right(0), _plant.intent)

__all__ = ["PLANTS", "RIGHT", "Plant", "given"]
