"""Patches in loops, the model from its parts, rollout by hand."""

import itertools
import re
from functools import partial

import pytest
import torch
from cases import draw
from tables import for_each, raises_for_each
from torch import nn

from attn_lib.vision import PatchEmbedding, VisionTransformer, attention_rollout, resample_positions

SIZES = {"d_model": 12, "num_heads": 3, "d_ff": 19, "num_layers": 2}


def model_of(num_classes=7, **options):
    torch.manual_seed(0)
    image = {"image_size": 15, "patch_size": 5, "in_channels": 2, "num_classes": num_classes}
    return VisionTransformer(**image | SIZES | options).double().eval()


# ---------------------------------------------------------------- patches


def test_a_patch_is_a_square_times_a_matrix():
    B, C, p, rows, columns = 2, 3, 5, 2, 7
    torch.manual_seed(0)
    patches = PatchEmbedding(patch_size=p, in_channels=C, d_model=11).double()
    images = draw(B, C, rows * p, columns * p)
    out = patches(images)
    assert out.shape == (B, rows * columns, 11)
    W, b = patches.projection.weight.flatten(1), patches.projection.bias
    for n, (row, column) in enumerate(itertools.product(range(rows), range(columns))):
        square = images[1, :, row * p : (row + 1) * p, column * p : (column + 1) * p]
        torch.testing.assert_close(out[1, n], W @ square.flatten() + b)


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
    assert model(images[:0]).shape == (0, 7)
    model(images).square().sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in model.parameters())


def test_the_mean_needs_no_class_token():
    model, images = model_of(pool="mean"), draw(2, 2, 15, 15)
    assert model.class_token is None
    assert model.positions.table.shape == (9, 12)
    assert model.features(images).shape == (2, 9, 12)
    torch.testing.assert_close(model(images), model.head(model.features(images).mean(dim=1)))
    pooled = model_of(num_classes=0)  # without classes, what is pooled is returned
    assert torch.equal(pooled(images), pooled.features(images)[:, 0])


def test_options_reach_the_blocks_and_dropout_what_enters_them():
    norm = partial(nn.LayerNorm, eps=1e-3)
    model = model_of(dropout=0.25, norm=norm, attention={"num_kv_heads": 1})
    assert [block.attention.dropout for block in model.encoder.blocks] == [0.25, 0.25]
    assert [block.attention.num_kv_heads for block in model.encoder.blocks] == [1, 1]
    assert model.encoder.norm.eps == 1e-3
    assert model.dropout.p == 0.25
    seen, images = [], draw(5, 2, 15, 15)
    model.train().encoder.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(images)
    assert 0.15 < (seen[0] == 0).double().mean() < 0.35
    plain = model_of()  # nothing is dropped unless it is asked for
    assert torch.equal(plain(images), plain.train()(images))


@raises_for_each(
    ({"patch_size": 4}, ValueError, "patch_size=4 must divide image_size=15"),
    ({"image_size": 0}, ValueError, "image_size must be at least 1, got 0"),
    ({"patch_size": 0}, ValueError, "patch_size must be at least 1, got 0"),
    ({"num_classes": -1}, ValueError, "num_classes must be at least 0, got num_classes=-1"),
    ({"pool": "max"}, ValueError, "pool must be 'class' or 'mean', got 'max'"),
)
def test_bad_models_are_named(options):
    model_of(**options)


@raises_for_each(
    ({"patch_size": 0}, ValueError, "^patch_size must be at least 1, got 0"),
    ({"in_channels": 0}, ValueError, "^in_channels must be at least 1, got 0"),
    ({"d_model": 0}, ValueError, "^d_model must be at least 1, got 0"),
)
def test_bad_patches_are_named(options):
    PatchEmbedding(**{"patch_size": 5, "in_channels": 2, "d_model": 4, **options})


def test_the_class_token_starts_as_large_as_positions():
    model = model_of(d_model=900)
    assert 0.017 < model.class_token.std() < 0.023
    assert 0.017 < model.positions.table.std() < 0.023


SIDES = r"\(B, 2, height, width\) with sides that 5 divides"


@for_each(
    *(("patches", shape, SIDES) for shape in [(2, 3, 10, 15), (2, 2, 11, 15), (2, 2, 10, 14)]),
    ("patches", (2, 10, 15), SIDES),
    *(("model", shape, r"\(B, 2, 15, 15\)") for shape in [(2, 2, 10, 10), (2, 2, 15, 20)]),
    *(("model", shape, r"\(B, 2, 15, 15\)") for shape in [(2, 2, 15), (2, 15, 15, 2)]),
)
def test_images_of_another_size_are_named(part, shape, wanted):
    model = model_of()
    with pytest.raises(ValueError, match=rf"^images must be {wanted}, got {re.escape(str(shape))}"):
        (model if part == "model" else model.patches)(torch.zeros(shape))


# ---------------------------------------------------------------- resampling


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


# ---------------------------------------------------------------- rollout


def test_rollout_equals_paths_counted_one_by_one():
    """The weight of all paths from each input through every layer's mixed weights."""
    B, H, T = 2, 3, 5
    maps = [draw(B, H, T, T, seed=i).softmax(-1) for i in range(3)]
    maps[1][1, :, 2] = 0.0  # where nothing may be attended to, all stays as it is
    out = attention_rollout(maps)
    torch.testing.assert_close(out.sum(-1), torch.ones(B, T).double())
    for b, i, j in itertools.product(range(B), range(T), range(T)):

        def mixed(layer, i, j, b=b):
            mean = sum(maps[layer][b, h, i, j].item() for h in range(H)) / H
            return 0.5 * (mean + (i == j)) if maps[layer][b, :, i].any() else float(i == j)

        ways = itertools.product(range(T), range(T))
        paths = sum(mixed(2, i, m) * mixed(1, m, n) * mixed(0, n, j) for m, n in ways)
        assert abs(out[b, i, j].item() - paths) < 1e-12


@pytest.mark.parametrize("kind", [{"dtype": torch.bfloat16}, {"device": "meta"}], ids=str)
def test_rollout_stays_where_its_maps_are(kind):
    maps = torch.full((2, 3, 5, 5), 0.2, **kind)
    out = attention_rollout([maps])
    assert (out.shape, out.dtype, out.device) == ((2, 5, 5), maps.dtype, maps.device)


@raises_for_each(
    ([], ValueError, "^maps must hold at least one map, got none"),
    ([(2, 5, 5)], ValueError, r"\(B, H, T, T\), got \(2, 5, 5\)"),
    ([(2, 3, 5, 7)], ValueError, r"\(B, H, T, T\), got \(2, 3, 5, 7\)"),
    ([(2, 3, 5, 5), (2, 3, 7, 7)], ValueError, r"B and T, got \(2, 5, 5\) and \(2, 7, 7\)"),
    ([(2, 3, 5, 5), (1, 3, 5, 5)], ValueError, r"B and T, got \(2, 5, 5\) and \(1, 5, 5\)"),
)
def test_maps_that_cannot_be_multiplied_are_named(shapes):
    attention_rollout([torch.zeros(shape) for shape in shapes])
