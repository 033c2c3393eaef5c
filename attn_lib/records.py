"""Recorded runs: the results of the pages' own training, and the weights that came out of it.

A page that trains for longer than a reader would wait is run once by ``book/_tools/record.py``;
the numbers and weights that it stores under ``attn_lib/data`` are read here.
"""

import json
from typing import Any

import torch
from torch import Tensor

from attn_lib.files import packaged

_TO_REPEAT = ("first losses", "clocks")  # no results


def record(name: str) -> dict[str, Any]:
    """The recorded results of a page's training, one for each seed.

    Args:
        name: file name of the page, without its ending, such as ``"17_weather"``.

    Returns:
        ``"torch"``, the version that ran; ``"seeds"``; and for each result a list with one entry
        for each seed. How the runs began is left out: it is there to be repeated.

    Raises:
        FileNotFoundError: there is no such record; the message says what to do.
        ValueError: the file is damaged or altered; the message says what to do.

    Example:
        >>> record("17_weather")["seeds"]
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    found = json.loads(packaged(f"{name}.json"))
    return {key: value for key, value in found.items() if key not in _TO_REPEAT}


def shipped_tensors(name: str) -> dict[str, Tensor]:
    """Weights that a page of the book trained, and that come with the library.

    Args:
        name: file name of the page, without its ending, such as ``"14_encoder_decoder"``.

    Returns:
        A dict from names to tensors, for ``load_state_dict``; what is stored as float16 is read
        into float32.

    Raises:
        FileNotFoundError: there are none; the message says what to do.
        ValueError: the file is damaged or altered; the message says what to do.

    Example:
        >>> shipped_tensors("14_encoder_decoder")["output.weight"].shape
        torch.Size([14, 64])
    """
    from safetensors.torch import load  # an extra: the core needs torch, numpy and matplotlib

    found = load(packaged(f"{name}.safetensors"))
    return {key: w.float() if w.dtype == torch.float16 else w for key, w in found.items()}
