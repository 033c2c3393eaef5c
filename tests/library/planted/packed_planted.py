"""Each mistake of ``packed``, with what its author would say."""

from functools import partial

import torch

from planted import packed
from planted.packed_more import CausalSelfAttention, WithWeights  # plants the rarer ones too
from planted.plants import PLANTS, Plant

SIZES = [(24, 4), (30, 5)]


def build(size: int, kind: type) -> torch.nn.Module:
    torch.manual_seed(7 + size)
    return kind(*SIZES[size]).eval()


for _mistake, _kind in packed.KINDS.items():
    _right = WithWeights if _kind.returns_att else CausalSelfAttention
    PLANTS.append(
        Plant(
            _mistake,
            "packed",
            partial(build, kind=_kind),
            partial(build, kind=_right),
            packed.CAUSAL,
        )
    )
