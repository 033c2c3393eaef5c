"""Patches three ways, the model against two others of its kind, rollout by hand."""

import itertools
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from cases import draw
from safetensors.torch import load_file
from torch import nn
from transformers import Dinov2Config, Dinov2Model, ViTConfig, ViTModel

from attn_lib import interop
from attn_lib.recording import record_attention
from attn_lib.transformer import TransformerBlock, TransformerEncoder
from attn_lib.vision import (
    PatchEmbedding,
    VisionTransformer,
    attention_rollout,
    resample_positions,
)

SIZES = {"d_model": 12, "num_heads": 3, "d_ff": 19, "num_layers": 2}


def model_of(seed=0, **options):
    torch.manual_seed(seed)
    return (
        VisionTransformer(
            image_size=15, patch_size=5, in_channels=2, num_classes=7, **SIZES, **options
        )
        .double()
        .eval()
    )


# ---------------------------------------------------------------- patches


def test_patches_three_ways():
    """A strided convolution, unfold with a matrix, and a reshape with a matrix; and in loops."""
    B, C, p, rows, columns = 2, 3, 5, 2, 7
    torch.manual_seed(0)
    patches = PatchEmbedding(patch_size=p, in_channels=C, d_model=11).double()
    images = draw(B, C, rows * p, columns * p)
    out = patches(images)
    assert out.shape == (B, rows * columns, 11)
    W, b = patches.projection.weight.flatten(1), patches.projection.bias
    unfolded = F.unfold(images, p, stride=p).transpose(1, 2)  # (B, N, C · p · p)
    torch.testing.assert_close(out, unfolded @ W.T + b)
    squares = images.reshape(B, C, rows, p, columns, p).permute(0, 2, 4, 1, 3, 5)
    torch.testing.assert_close(out, squares.reshape(B, rows * columns, -1) @ W.T + b)
    for n, (row, column) in enumerate(itertools.product(range(rows), range(columns))):
        square = images[1, :, row * p : (row + 1) * p, column * p : (column + 1) * p]
        torch.testing.assert_close(out[1, n], W @ square.flatten() + b)


@pytest.mark.parametrize(
    "shape", [(2, 3, 10, 15), (2, 2, 11, 15), (2, 2, 10, 14), (2, 10, 15), (1, 2, 2, 10, 15)]
)
def test_images_that_cannot_be_cut_are_named(shape):
    message = rf"\(B, 2, height, width\) with sides that 5 divides, got \({shape[0]}, .*{shape[-1]}"
    with pytest.raises(ValueError, match=message):
        PatchEmbedding(patch_size=5, in_channels=2, d_model=7)(torch.zeros(shape))


# ---------------------------------------------------------------- the model


def test_the_model_is_its_parts():
    """Class token, positions, encoder, the class token's row, head: written out."""
    model, images = model_of(layer_scale=0.3), draw(2, 2, 15, 15)
    x = model.patches(images)
    x = torch.cat([model.class_token[None].repeat(2, 1, 1), x], dim=1) + model.positions.table
    for block in model.encoder.blocks:
        x = x + 0.3 * block.attention(block.attention_norm(x))
        x = x + 0.3 * block.feed_forward(block.feed_forward_norm(x))
    x = model.encoder.norm(x)
    torch.testing.assert_close(model.features(images), x)
    torch.testing.assert_close(model(images), x[:, 0] @ model.head.weight.T + model.head.bias)
    assert model(images).shape == (2, 7)


def test_the_mean_needs_no_class_token():
    model, images = model_of(pool="mean"), draw(2, 2, 15, 15)
    assert model.class_token is None
    assert model.positions.table.shape == (9, 12)
    assert model.features(images).shape == (2, 9, 12)
    torch.testing.assert_close(model(images), model.head(model.features(images).mean(dim=1)))


def test_without_classes_the_model_returns_what_is_pooled():
    torch.manual_seed(0)
    model, images = (
        VisionTransformer(
            image_size=15, patch_size=5, in_channels=2, num_classes=0, **SIZES
        ).double(),
        draw(2, 2, 15, 15),
    )
    assert torch.equal(model(images), model.features(images)[:, 0])


def test_every_parameter_learns_and_every_pixel_counts():
    model, images = model_of(), draw(2, 2, 15, 15).requires_grad_()
    model(images).square().sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in model.parameters())
    assert (images.grad != 0).all()


def test_only_the_positions_know_where_a_patch_is():
    model, images = model_of(pool="mean"), draw(2, 2, 15, 15)
    squares = F.unfold(images, 5, stride=5)  # (B, C · 25, 9)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    shuffled = F.fold(squares[..., order], (15, 15), 5, stride=5)
    assert not torch.allclose(model(shuffled), model(images), atol=1e-3)
    nn.init.zeros_(model.positions.table)
    torch.testing.assert_close(model(shuffled), model(images))


def test_options_reach_the_blocks_and_dropout_what_enters_them():
    norm = partial(nn.LayerNorm, eps=1e-3)
    model = model_of(dropout=0.25, norm=norm, attention={"num_kv_heads": 1})
    assert [block.attention.dropout for block in model.encoder.blocks] == [0.25, 0.25]
    assert [block.attention.num_kv_heads for block in model.encoder.blocks] == [1, 1]
    assert model.encoder.norm.eps == 1e-3
    assert model.dropout.p == 0.25
    seen = []
    model.train().encoder.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(draw(5, 2, 15, 15))
    assert 0.15 < (seen[0] == 0).double().mean() < 0.35


def test_nothing_is_dropped_unless_it_is_asked_for():
    model, images = model_of(), draw(3, 2, 15, 15)
    expected = model(images)
    assert torch.equal(model.train()(images), expected)


def test_class_token_and_positions_start_small_and_apart():
    torch.manual_seed(0)
    model = VisionTransformer(
        image_size=32,
        patch_size=2,
        in_channels=1,
        num_classes=3,
        d_model=97,
        num_heads=1,
        d_ff=5,
        num_layers=1,
    )
    for drawn in (model.class_token, model.positions.table):
        assert 0.015 < drawn.std() < 0.025
        assert drawn.mean().abs() < 0.01
    assert not torch.equal(model.class_token, model.positions.table[:1])


@pytest.mark.parametrize(
    ("sizes", "options", "error", "message"),
    [
        ((15, 4, 1, 3), {}, ValueError, "patch_size=4 must divide image_size=15"),
        ((0, 5, 1, 3), {}, ValueError, "image_size must be at least 1, got 0"),
        ((15, 0, 1, 3), {}, ValueError, "patch_size must be at least 1, got 0"),
        ((15, 5, 0, 3), {}, ValueError, "in_channels must be at least 1, got 0"),
        ((15, 5, 1, -1), {}, ValueError, "num_classes must be at least 0, got num_classes=-1"),
        ((15, 5.0, 1, 3), {}, TypeError, "patch_size must be an int"),
        ((15, 5, 1, 3), {"pool": "max"}, ValueError, "pool must be 'class' or 'mean', got 'max'"),
        ((15, 5, 1, 3), {"dropout": 1.5}, ValueError, r"1\.5"),
    ],
)
def test_bad_models_are_named(sizes, options, error, message):
    names = ("image_size", "patch_size", "in_channels", "num_classes")
    sizes = dict(zip(names, sizes, strict=True))
    with pytest.raises(error, match=message):
        VisionTransformer(**sizes, **SIZES, **options)


@pytest.mark.parametrize("name", ["patch_size", "in_channels", "d_model"])
def test_bad_sizes_of_patches_are_named(name):
    with pytest.raises(ValueError, match=f"^{name} must be at least 1, got 0$"):
        PatchEmbedding(**{"patch_size": 2, "in_channels": 3, "d_model": 5, name: 0})


@pytest.mark.parametrize("shape", [(2, 2, 10, 10), (2, 2, 15, 20), (2, 2, 15), (2, 15, 15, 2)])
def test_images_of_another_size_are_named(shape):
    with pytest.raises(ValueError, match=rf"\(B, 2, 15, 15\), got \(2, .*{shape[-1]}\)"):
        model_of()(torch.zeros(shape))


def test_another_number_of_channels_is_named():
    with pytest.raises(ValueError, match=r"\(B, 2, .*got \(2, 3, 15, 15\)"):
        model_of()(torch.zeros(2, 3, 15, 15))


def test_a_batch_is_its_images():
    model, images = model_of(), draw(3, 2, 15, 15)
    singles = torch.cat([model(image[None]) for image in images])
    torch.testing.assert_close(model(images), singles)
    assert model(images[:0]).shape == (0, 7)


def test_the_model_can_be_exported():
    model, images = model_of(layer_scale=0.1), draw(3, 2, 15, 15)
    batch = {0: torch.export.Dim("B", min=1)}
    graph = torch.export.export(model, (images,), dynamic_shapes=(batch,)).module()
    torch.testing.assert_close(graph(images[:2]), model(images[:2]))


# ---------------------------------------------------------------- LayerScale


def test_a_gain_multiplies_what_each_sublayer_adds():
    torch.manual_seed(0)
    for order in ("before", "after"):
        block = TransformerBlock(
            d_model=6, num_heads=3, d_ff=11, cross_attention=True, norm_at=order, layer_scale=1
        ).double()
        x, context = draw(2, 5, 6), draw(2, 7, 6, seed=1)
        gains = [block.attention_gain, block.cross_gain, block.feed_forward_gain]
        with torch.no_grad():
            for i, gain in enumerate(gains):
                assert torch.equal(gain, torch.ones(6).double())
                gain.copy_(draw(6, seed=2 + i))
        y = x
        parts = [
            (block.attention, block.attention_norm),
            (lambda z, block=block, context=context: block.cross(z, context), block.cross_norm),
            (block.feed_forward, block.feed_forward_norm),
        ]
        for (part, norm), gain in zip(parts, gains, strict=True):
            y = y + gain * part(norm(y)) if order == "before" else norm(y + gain * part(y))
        torch.testing.assert_close(block(x, context), y)


def test_without_layer_scale_a_block_has_nothing_new():
    names = {
        name for name, _ in TransformerBlock(d_model=6, num_heads=3, d_ff=11).named_parameters()
    }
    scaled = TransformerBlock(d_model=6, num_heads=3, d_ff=11, layer_scale=1e-5)
    new = {name for name, _ in scaled.named_parameters()} - names
    assert new == {"attention_gain", "feed_forward_gain"}
    assert not any("gain" in name for name in names)
    for name in new:
        assert torch.equal(scaled.get_parameter(name), torch.full((6,), 1e-5))
    x = draw(2, 5, 6, dtype=torch.float32)
    torch.testing.assert_close(scaled(x), x, atol=1e-3, rtol=0)
    stack = TransformerEncoder(d_model=6, num_heads=3, d_ff=11, num_layers=2, layer_scale=0.5)
    assert [block.feed_forward_gain[0].item() for block in stack.blocks] == [0.5, 0.5]
    with pytest.raises(ValueError, match=r"^PyTorch's layers have no LayerScale$"):
        interop.to_torch(scaled)


# ---------------------------------------------------------------- names of transformers


def witness(kind, **options):
    """A randomly initialised model of the package transformers; none of its numbers is special."""
    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "num_channels": 2}
    torch.manual_seed(0)
    if kind == "vit":
        config = ViTConfig(**sizes, image_size=15, patch_size=5, intermediate_size=19, **options)
        model = ViTModel(config, add_pooling_layer=True)
    else:
        config = Dinov2Config(**sizes, image_size=15, patch_size=5, mlp_ratio=2, **options)
        model = Dinov2Model(config)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape) * 0.4)
    return model.double().eval()


EPS = {"vit": 1e-12, "dinov2": 1e-6}


@pytest.mark.parametrize("kind", EPS)
@pytest.mark.parametrize("names", ["in memory", "published"])
def test_equals_a_model_of_transformers(kind, names, tmp_path):
    theirs = witness(kind)
    state = theirs.state_dict()
    if names == "published":
        theirs.save_pretrained(tmp_path)
        state = load_file(tmp_path / "model.safetensors")
        assert "encoder.layer.1.attention.attention.query.weight" in state
    ours = interop.vision_transformer(state, num_heads=3, eps=EPS[kind])
    assert not ours.training
    assert ours.patches.projection.weight.dtype == torch.float64
    images = draw(2, 2, 15, 15).requires_grad_()
    out, expected = ours.features(images), theirs(images).last_hidden_state
    torch.testing.assert_close(out, expected, atol=1e-10, rtol=0)
    torch.testing.assert_close(ours(images), expected[:, 0], atol=1e-10, rtol=0)
    weight = draw(2, 10, 12, seed=3)
    ours_of, theirs_of = dict(ours.named_parameters()), dict(theirs.named_parameters())
    pairs = {
        "positions.table": "embeddings.position_embeddings",
        "class_token": "embeddings.cls_token",
        "patches.projection.weight": "embeddings.patch_embeddings.projection.weight",
        "encoder.norm.bias": "layernorm.bias",
    }
    mine = torch.autograd.grad((out * weight).sum(), [images, *(ours_of[n] for n in pairs)])
    other = torch.autograd.grad(
        (expected * weight).sum(), [images, *(theirs_of[n] for n in pairs.values())]
    )
    for a, b in zip(mine, other, strict=True):
        torch.testing.assert_close(a, b.reshape(a.shape), atol=1e-9, rtol=1e-7)


def test_equals_vit_in_single_precision():
    theirs = witness("vit").float()
    ours = interop.vision_transformer(theirs.state_dict(), num_heads=3)
    images = draw(5, 2, 15, 15, dtype=torch.float32)
    expected = theirs(images).last_hidden_state
    torch.testing.assert_close(ours.features(images), expected, atol=1e-5, rtol=0)


def test_every_tensor_of_theirs_has_a_counterpart():
    """Altering any of them alters the output as it alters theirs."""
    theirs, images = witness("dinov2"), draw(2, 2, 15, 15)
    for name, p in theirs.named_parameters():
        if name == "embeddings.mask_token":
            continue
        with torch.no_grad():
            p.mul_(1.25)
        ours = interop.vision_transformer(theirs.state_dict(), num_heads=3, eps=1e-6)
        torch.testing.assert_close(
            ours.features(images), theirs(images).last_hidden_state, atol=1e-9, rtol=0, msg=name
        )


@pytest.mark.parametrize("size", [5, 10, 25, 35])
def test_positions_at_another_size_equal_theirs(size):
    theirs, images = witness("vit"), draw(2, 2, size, size)
    ours = interop.vision_transformer(theirs.state_dict(), num_heads=3, image_size=size)
    expected = theirs(images, interpolate_pos_encoding=True).last_hidden_state
    torch.testing.assert_close(ours.features(images), expected, atol=1e-9, rtol=0)


def test_resampling_keeps_the_class_token_and_what_is_smooth():
    n, grid = 5, 11
    ramp = torch.arange(n).double()
    table = torch.stack([ramp.repeat_interleave(n), ramp.repeat(n)], dim=1)  # row, column
    table = torch.cat([torch.tensor([[7.0, -7.0]]).double(), table])
    out = resample_positions(table, grid)
    assert out.shape == (1 + grid * grid, 2)
    assert torch.equal(out[0], table[0])
    rows, columns = out[1:].T.unflatten(1, (grid, grid))
    torch.testing.assert_close(rows, columns.T)
    torch.testing.assert_close(rows, rows[:, :1].expand(-1, grid))
    assert (rows[1:, 0] > rows[:-1, 0]).all()
    assert abs(rows[grid // 2, 0].item() - 2.0) < 1e-12
    assert torch.equal(resample_positions(table, n), table)


@pytest.mark.parametrize(("rows", "grid"), [(11, 3), (1, 3), (0, 3), (10, 0)])
def test_positions_that_cannot_be_resampled_are_named(rows, grid):
    message = "grid must be at least 1, got 0" if grid == 0 else rf"1 \+ n² rows, got {rows}"
    with pytest.raises(ValueError, match=message):
        resample_positions(torch.zeros(rows, 2), grid)


@pytest.mark.parametrize("name", ["head.weight", "encoder.layer.0.gate.weight", "vit.layernorm"])
def test_a_name_without_a_counterpart_is_named(name):
    state = {**witness("vit").state_dict(), name: torch.zeros(3)}
    with pytest.raises(ValueError, match=f"{name} has no counterpart in VisionTransformer"):
        interop.vision_transformer(state, num_heads=3)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("embeddings.cls_token", "class_token"),
        ("embeddings.position_embeddings", "positions.table"),
        ("embeddings.patch_embeddings.projection.weight", "patches.projection.weight"),
        ("layers.0.mlp.fc1.weight", "encoder.blocks.0.feed_forward.up.weight"),
        ("layers.1.attention.k_proj.bias", "encoder.blocks.1.attention.k_proj.bias"),
        ("layernorm.bias", "encoder.norm.bias"),
    ],
)
def test_a_missing_weight_is_named(name, ours):
    state = witness("vit").state_dict()
    del state[name]
    with pytest.raises(ValueError, match=f"the weights have no counterpart of {ours}$"):
        interop.vision_transformer(state, num_heads=3)


# ---------------------------------------------------------------- rollout


def test_rollout_by_hand():
    """Two layers of three tokens: the first copies token 0 to 1, the second 1 to 2."""
    first = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    second = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    out = attention_rollout([first[None, None], second[None, None]])[0]
    expected = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.25, 0.25, 0.5]])
    assert torch.equal(out, expected)
    swapped = attention_rollout([second[None, None], first[None, None]])[0]
    assert swapped[2, 0] == 0.0  # what reaches 1 too late is not passed on to 2


def test_rollout_equals_paths_counted_one_by_one():
    """The weight of all paths from each input through every layer's mixed weights."""
    B, H, T, L = 2, 3, 5, 3
    maps = [draw(B, H, T, T, seed=i).softmax(-1) for i in range(L)]
    out = attention_rollout(maps)
    for b in range(B):
        mixed = [[[0.0] * T for _ in range(T)] for _ in range(L)]
        for layer, i, j in itertools.product(range(L), range(T), range(T)):
            mean = sum(maps[layer][b, h, i, j].item() for h in range(H)) / H
            mixed[layer][i][j] = 0.5 * (mean + (i == j))
        for i, j in itertools.product(range(T), range(T)):
            paths = sum(
                mixed[2][i][m] * mixed[1][m][n] * mixed[0][n][j]
                for m, n in itertools.product(range(T), range(T))
            )
            assert abs(out[b, i, j].item() - paths) < 1e-12


def test_rollout_rows_sum_to_one_also_where_nothing_may_be_attended_to():
    maps = [draw(2, 3, 5, 5, seed=i).softmax(-1) for i in range(4)]
    maps[1][1, :, 2] = 0.0
    out = attention_rollout(maps)
    torch.testing.assert_close(out.sum(-1), torch.ones(2, 5).double())
    assert (out >= 0).all()
    nothing = attention_rollout([torch.zeros(2, 3, 5, 5)] * 3)
    assert torch.equal(nothing, torch.eye(5).expand(2, 5, 5))


@pytest.mark.parametrize("kind", [{"dtype": torch.bfloat16}, {"device": "meta"}], ids=str)
def test_rollout_stays_where_its_maps_are(kind):
    maps = torch.full((2, 3, 5, 5), 0.2, **kind)
    out = attention_rollout([maps])
    assert (out.shape, out.dtype, out.device) == ((2, 5, 5), maps.dtype, maps.device)


def test_rollout_of_a_model():
    model, images = model_of(), draw(2, 2, 15, 15)
    with record_attention(model) as maps:
        model(images)
    assert list(maps) == ["encoder.blocks.0.attention", "encoder.blocks.1.attention"]
    out = attention_rollout(maps.values())
    assert out.shape == (2, 10, 10)
    first, second = (A.mean(1) / 2 + torch.eye(10) / 2 for A in maps.values())
    torch.testing.assert_close(out, second @ first)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([], "^maps must hold at least one map, got none"),
        ([(2, 5, 5)], r"\(B, H, T, T\), got \(2, 5, 5\)"),
        ([(2, 3, 5, 7)], r"\(B, H, T, T\), got \(2, 3, 5, 7\)"),
        ([(2, 3, 5, 5), (2, 3, 7, 7)], r"B and T, got \(2, 5, 5\) and \(2, 7, 7\)"),
        ([(2, 3, 5, 5), (1, 3, 5, 5)], r"B and T, got \(2, 5, 5\) and \(1, 5, 5\)"),
    ],
)
def test_maps_that_cannot_be_multiplied_are_named(shapes, message):
    with pytest.raises(ValueError, match=message):
        attention_rollout([torch.zeros(shape) for shape in shapes])
