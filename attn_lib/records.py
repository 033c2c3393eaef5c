"""Recorded runs: what the pages' own training found, and the weights that it left.

A page that trains longer than a reader waits is run once by ``book/_tools/record.py``; the
numbers and weights that it stores under ``attn_lib/data`` are read here.
"""

import json
from typing import Any

from torch import Tensor

from attn_lib.files import packaged


def record(name: str) -> dict[str, Any]:
    """The results of a page's training for its seeds, with which the page compares its own.

    Args:
        name: of the page, such as ``"03_many_heads"``.

    Returns:
        ``"torch"``, the version that ran; ``"seeds"``; and for each result a list with one entry
        a seed.

    Raises:
        FileNotFoundError: there is no such record; the message says what to do.
        ValueError: the file is damaged or altered; the message says what to do.

    Example:
        >>> record("03_many_heads")["seeds"]
        [0, 1, 2]

    Source: ``book/_tools/record.py``, which runs the page's own cells.
    """
    return json.loads(packaged(f"{name}.json"))


def shipped_tensors(name: str) -> dict[str, Tensor]:
    """Weights that the book trained itself and that come with the library.

    Args:
        name: of the page that trains them, such as ``"07_encoder_decoder"``.

    Returns:
        Name to tensor, to be given to ``load_state_dict``.

    Raises:
        FileNotFoundError: there are none; the message says what to do.
        ValueError: the file is damaged or altered; the message says what to do.

    Example:
        >>> shipped_tensors("07_encoder_decoder")["output.weight"].dtype
        torch.float32

    Source: ``book/_tools/record.py``, which runs the page's own cells.
    """
    from safetensors.torch import load  # an extra: the core needs torch, numpy and matplotlib

    return load(packaged(f"{name}.safetensors"))
