"""The checks behind the pages' exercises: each says in words what is wrong.

A check compares an answer with PyTorch's own kernel or with plain arithmetic, never with the
code that the page teaches. Each page has a file of its own here: the exercises of
``book/01_one_head.ipynb`` stand in ``one_head.py``.
"""

from attn_lib.exercises import (  # noqa: F401 - each registers its exercises
    block,
    encoder_decoder,
    many_heads,
    masks,
    one_head,
    positions,
    scaling,
    vision,
)
from attn_lib.exercises._verdict import Verdict, check, exercise, known

__all__ = ["Verdict", "check", "exercise", "known"]
