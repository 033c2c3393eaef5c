"""The checks behind the pages' exercises: each says in words what is wrong.

A check compares an answer with PyTorch's own kernel or with plain arithmetic, never with the
code that the page teaches. Each page has a file of its own here: the checks of
``book/NN_name.ipynb`` are in ``name.py``.
"""

import importlib
import pkgutil

from attn_lib.exercises._verdict import Verdict, check, exercise, known

__all__ = ["Verdict", "check", "exercise", "known"]

for _page in pkgutil.iter_modules(__path__):  # each registers its exercises
    importlib.import_module(f"{__name__}.{_page.name}")
