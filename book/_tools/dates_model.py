"""Write the model that reads dates as a script of its page: ``python book/_tools/dates_model.py``.

A page read from disk can load a script, but no other data: so ``book/assets/dates_model.js`` holds
the weights of ``attn_lib/data/14_encoder_decoder.safetensors``, as they are stored there, in
base64, and what ``book/assets/dates.js`` has to know besides. Run it after a new record.
"""

import base64
import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load

from attn_lib.datasets import DATE_LETTERS
from attn_lib.files import packaged

PAGE = "14_encoder_decoder"
SCRIPT = Path(__file__).resolve().parents[1] / "assets" / "dates_model.js"
SIGNS = "0123456789-"  # what is written; the token after them is START, the next one END
HEADS = 4


def script() -> str:
    """The text of the file."""
    tensors = dict(sorted(load(packaged(f"{PAGE}.safetensors")).items()))
    other = sorted(name for name, value in tensors.items() if value.dtype != np.float16)
    if other:
        raise TypeError(f"{PAGE}.safetensors must hold float16 alone, not so {', '.join(other)}")
    content = b"".join(value.astype("<f2").tobytes() for value in tensors.values())
    model = {
        "letters": DATE_LETTERS,
        "signs": SIGNS,
        "start": len(SIGNS),
        "end": len(SIGNS) + 1,
        "heads": HEADS,
        "shapes": {name: value.shape for name, value in tensors.items()},
        "weights": base64.b64encode(content).decode(),
    }
    text = json.dumps(model, separators=(",", ":"), ensure_ascii=False)
    return f"// Written by book/_tools/dates_model.py.\nconst DATES_MODEL = {text};\n"


if __name__ == "__main__":
    SCRIPT.write_text(script(), encoding="utf-8")
