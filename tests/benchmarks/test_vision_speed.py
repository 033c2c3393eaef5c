"""How fast the Vision Transformer is, beside Hugging Face's of the same size and weights.

Both give the normalised vector of every patch; neither has a pooler or a head. How it is
measured, ``rounds.py`` says.
"""

import pytest
import torch
from rounds import race
from torch import Tensor
from transformers import ViTConfig, ViTModel

from attn_lib import interop

NAMES = ["image_size", "patch_size", "hidden_size", "num_attention_heads"]
NAMES += ["intermediate_size", "num_hidden_layers"]
SIZES = [  # B, image size, patch size, d_model, H, d_ff, layers
    (32, 32, 4, 128, 4, 512, 6),
    (2, 224, 16, 192, 3, 768, 12),  # ViT-Ti/16
]


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "forward + backward"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_speed_of_seeing(size, backward, benchmark, capsys):
    B, image_size, *_ = size
    torch.manual_seed(0)
    config = ViTConfig(**dict(zip(NAMES, size[1:], strict=True)))
    theirs = ViTModel(config, add_pooling_layer=False).eval()  # without dropout in any mode
    ours = interop.vision_transformer(theirs.state_dict(), num_heads=config.num_attention_heads)
    images = torch.randn(B, config.num_channels, image_size, image_size)

    def their_features() -> Tensor:
        return theirs(images).last_hidden_state

    models = {"ViTModel": their_features, "attn_lib": lambda: ours.features(images)}
    out = models["attn_lib"]()
    torch.testing.assert_close(out, their_features(), atol=1e-4, rtol=1e-4)  # the same work
    title = f"image, patch, d_model, H, d_ff, layers {size[1:]}, batch {B}, "
    title += "forward + backward" if backward else "forward"
    race(title, models, benchmark, capsys, backward=backward)
