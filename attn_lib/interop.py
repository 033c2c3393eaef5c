"""Other libraries' models as classes of this library, and back: the same weights, equal outputs.

``from_torch`` and ``to_torch`` exchange layers with PyTorch; ``from_transformers`` takes a model of
the package transformers. What has no counterpart raises; nothing that changes outputs is dropped.
"""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, overload

import torch
from torch import Tensor, nn

from attn_lib import _decoders, _names
from attn_lib.layers import MultiHeadAttention
from attn_lib.models import DecoderLM, SentenceEncoder
from attn_lib.transformer import TransformerBlock
from attn_lib.vision import VisionTransformer, resample_positions

TorchBlock = nn.TransformerEncoderLayer | nn.TransformerDecoderLayer
_KNOWN = {"ReLU()": "relu", "GELU(approximate='none')": "gelu"}


@overload
def from_torch(layer: nn.MultiheadAttention) -> MultiHeadAttention: ...
@overload
def from_torch(layer: TorchBlock) -> TransformerBlock: ...
def from_torch(layer: nn.Module) -> MultiHeadAttention | TransformerBlock:
    """A layer of this library with the weights of one of PyTorch's, and equal outputs.

    The result is batch first, whatever ``layer`` is. PyTorch's decoder layer is not causal by
    itself, and neither is the result: pass ``causal=True`` in each call.

    Args:
        layer: a ``torch.nn.MultiheadAttention``, ``TransformerEncoderLayer`` or
            ``TransformerDecoderLayer``; its dropout, its order of norms and its mode (training or
            evaluation) are taken over.

    Returns:
        A :class:`attn_lib.layers.MultiHeadAttention`, or a
        :class:`attn_lib.transformer.TransformerBlock`, with cross-attention for a decoder layer.
        It shares no memory with ``layer``.

    Raises:
        TypeError: another kind of module.
        ValueError: what has no counterpart: ``kdim`` unlike ``vdim``, ``bias_k``,
            ``add_zero_attn``, an activation other than relu and gelu, dropouts that differ.

    Example:
        >>> theirs = nn.MultiheadAttention(4, 2, batch_first=True)
        >>> x = torch.randn(1, 3, 4)
        >>> torch.allclose(from_torch(theirs)(x), theirs(x, x, x)[0], atol=1e-5)
        True

    Source: ``torch.nn.MultiheadAttention``, whose ``in_proj_weight`` holds the query, key and value
    projections in this order; ``torch.nn.TransformerEncoderLayer`` and
    ``torch.nn.TransformerDecoderLayer``, where ``linear1`` and ``linear2`` are the feed-forward
    network and ``norm1``, ``norm2``, ``norm3`` follow the order of the sublayers.
    """
    if isinstance(layer, nn.MultiheadAttention):
        return _attention_from_torch(layer)
    if isinstance(layer, TorchBlock):
        return _block_from_torch(layer)
    raise TypeError(
        "layer must be a MultiheadAttention, TransformerEncoderLayer or TransformerDecoderLayer "
        f"of torch.nn, got {type(layer).__name__}"
    )


@overload
def to_torch(layer: MultiHeadAttention) -> nn.MultiheadAttention: ...
@overload
def to_torch(layer: TransformerBlock) -> TorchBlock: ...
def to_torch(layer: nn.Module) -> nn.MultiheadAttention | TorchBlock:
    """The same weights as a layer of PyTorch with ``batch_first=True``.

    Args:
        layer: a :class:`attn_lib.layers.MultiHeadAttention` or a
            :class:`attn_lib.transformer.TransformerBlock`.

    Returns:
        A ``torch.nn.MultiheadAttention`` for an attention layer; for a block a
        ``TransformerEncoderLayer``, or a ``TransformerDecoderLayer`` if it has cross-attention. It
        is in the mode of ``layer``, and shares no memory with it.

    Raises:
        TypeError: another kind of module.
        ValueError: what PyTorch cannot express: widths of a head other than d_model / H, grouped
            heads, another scale, softcap, window, sinks, rotary positions, norms of queries;
            LayerScale, gates, other activations, norms and places of norms than its own.

    Example:
        >>> to_torch(TransformerBlock(d_model=6, num_heads=3, d_ff=24)).linear1.out_features
        24
    """
    if isinstance(layer, MultiHeadAttention):
        return _attention_to_torch(layer)
    if isinstance(layer, TransformerBlock):
        return _block_to_torch(layer)
    raise TypeError(
        f"layer must be a MultiHeadAttention or a TransformerBlock, got {type(layer).__name__}"
    )


def _attention_from_torch(layer: nn.MultiheadAttention) -> MultiHeadAttention:
    if layer.kdim != layer.vdim:
        raise ValueError(
            f"keys and values must have the same width, got kdim={layer.kdim} and vdim={layer.vdim}"
        )
    if layer.bias_k is not None or layer.add_zero_attn:
        raise ValueError("add_bias_kv and add_zero_attn have no counterpart here")
    ours = MultiHeadAttention(
        layer.embed_dim,
        layer.num_heads,
        d_context=layer.kdim,
        bias=layer.in_proj_bias is not None,
        dropout=layer.dropout,
    ).to(layer.out_proj.weight)
    with torch.no_grad():
        for mine, theirs, rows in _pairs(ours, layer):
            mine.copy_(theirs[rows]).requires_grad_(theirs.requires_grad)
    return ours.train(layer.training)


def _attention_to_torch(layer: MultiHeadAttention) -> nn.MultiheadAttention:
    d_model = layer.q_proj.in_features
    plain = (
        layer.d_k == layer.d_v == d_model / layer.num_heads
        and layer.num_kv_heads == layer.num_heads
        and layer.scale == 1.0 / math.sqrt(layer.d_k)
        and (layer.softcap, layer.window, layer.rotate, layer.q_norm, layer.sinks) == 5 * (None,)
    )
    if not plain:
        raise ValueError(
            "nn.MultiheadAttention needs d_k = d_v = d_model / num_heads, as many key heads, the "
            "default scale, and no softcap, window, sinks, rotary positions or norm of the queries"
        )
    theirs = nn.MultiheadAttention(
        d_model,
        layer.num_heads,
        dropout=layer.dropout,
        bias=layer.q_proj.bias is not None,
        kdim=layer.k_proj.in_features,
        vdim=layer.v_proj.in_features,
        batch_first=True,
    ).to(layer.out_proj.weight)
    trained: dict[Tensor, set[bool]] = {}
    with torch.no_grad():
        for mine, other, rows in _pairs(layer, theirs):
            other[rows].copy_(mine)
            trained.setdefault(other, set()).add(mine.requires_grad)
    for other, flags in trained.items():
        if len(flags) > 1:
            raise ValueError(
                "nn.MultiheadAttention keeps the projections of queries, keys and values in one "
                "parameter: all three must require gradients, or none"
            )
        other.requires_grad_(flags.pop())
    return theirs.train(layer.training)


def _pairs(
    ours: MultiHeadAttention, theirs: nn.MultiheadAttention
) -> Iterator[tuple[Tensor, Tensor, slice]]:
    """Each of our parameters, the one of theirs that holds it, and in which rows."""
    d_model = theirs.embed_dim
    for i, role in enumerate("qkv"):
        mine, alone = getattr(ours, f"{role}_proj"), getattr(theirs, f"{role}_proj_weight")
        rows = slice(i * d_model, (i + 1) * d_model)
        if theirs.in_proj_weight is None:
            yield mine.weight, alone, slice(None)
        else:
            yield mine.weight, theirs.in_proj_weight, rows
        if theirs.in_proj_bias is not None:
            yield mine.bias, theirs.in_proj_bias, rows
    yield ours.out_proj.weight, theirs.out_proj.weight, slice(None)
    if theirs.out_proj.bias is not None:
        yield ours.out_proj.bias, theirs.out_proj.bias, slice(None)


def _block_from_torch(layer: TorchBlock) -> TransformerBlock:
    attentions = [m for m in layer.modules() if isinstance(m, nn.MultiheadAttention)]
    rates = {part.p for part in layer.modules() if isinstance(part, nn.Dropout)}
    rates |= {attention.dropout for attention in attentions}
    if len(rates) > 1:
        raise ValueError(f"one dropout for all sublayers is needed, got {sorted(rates)}")
    ours = TransformerBlock(
        d_model=layer.linear1.in_features,
        num_heads=layer.self_attn.num_heads,
        d_ff=layer.linear1.out_features,
        norm=partial(nn.LayerNorm, bias=layer.norm1.bias is not None),
        norm_at="before" if layer.norm_first else "after",
        dropout=layer.dropout.p,
        cross_attention=isinstance(layer, nn.TransformerDecoderLayer),
        activation=_activation_name(layer),
        bias=layer.linear1.bias is not None,
    ).to(layer.linear1.weight)
    ours.attention = _attention_from_torch(layer.self_attn)
    if isinstance(layer, nn.TransformerDecoderLayer):
        ours.cross = _attention_from_torch(layer.multihead_attn)
    for mine, theirs in zip(_plain_parts(ours), _torch_parts(layer), strict=True):
        _copy_part(theirs, mine)
    return ours.train(layer.training)


def _block_to_torch(block: TransformerBlock) -> TorchBlock:
    up, norm = block.feed_forward.up, block.attention_norm
    bias, norm_bias = up.bias is not None, getattr(norm, "bias", None) is not None
    activation = _KNOWN.get(repr(block.feed_forward.activation))
    for fits, rule in (
        (block.attention_gain is None, "no LayerScale"),
        (block.feed_forward.gate is None, "no gate"),
        (activation, "relu or gelu for activation"),
        (block.norm_at in ("before", "after"), "norms before or after the sublayers"),
        (isinstance(norm, nn.LayerNorm), "LayerNorm for norm"),
        (bias == norm_bias, "a bias in every part or in none"),
    ):
        if not fits:
            raise ValueError(f"PyTorch's layers have {rule}")
    options: dict[str, Any] = {"bias": bias, "activation": activation, "dropout": block.dropout.p}
    options["norm_first"] = block.norm_at == "before"
    sizes = (up.in_features, block.attention.num_heads, up.out_features)
    theirs: TorchBlock
    if block.cross is None:
        theirs = nn.TransformerEncoderLayer(*sizes, **options).to(up.weight)
    else:
        theirs = nn.TransformerDecoderLayer(*sizes, **options).to(up.weight)
        theirs.multihead_attn = _attention_to_torch(block.cross)
    theirs.self_attn = _attention_to_torch(block.attention)  # the one that is batch first
    for mine, other in zip(_plain_parts(block), _torch_parts(theirs), strict=True):
        _copy_part(mine, other)
    return theirs.train(block.training)


def _copy_part(source: nn.Module, target: nn.Module) -> None:
    """A linear layer or LayerNorm: its weights, whether they are trained, and its eps."""
    target.load_state_dict(source.state_dict())
    for mine, theirs in zip(target.parameters(), source.parameters(), strict=True):
        mine.requires_grad_(theirs.requires_grad)
    if isinstance(source, nn.LayerNorm) and isinstance(target, nn.LayerNorm):
        target.eps = source.eps


def _plain_parts(block: TransformerBlock) -> list[nn.Module]:
    network = [block.feed_forward.up, block.feed_forward.down]
    parts = [*network, block.attention_norm, block.cross_norm, block.feed_forward_norm]
    return [part for part in parts if part is not None]


def _torch_parts(layer: TorchBlock) -> list[nn.Module]:
    names = ("linear1", "linear2", "norm1", "norm2", "norm3")
    return [getattr(layer, name) for name in names if hasattr(layer, name)]


def _activation_name(layer: TorchBlock) -> str:
    used, x = layer.activation, torch.linspace(-3, 3, 7)
    for name in ("relu", "gelu"):
        f, module = getattr(nn.functional, name), isinstance(used, nn.ReLU | nn.GELU)
        if used is f or (module and torch.equal(used(x), f(x))):
            return name
    raise ValueError(f"activation must be relu or gelu, got {layer.activation}")


def from_transformers(
    model: nn.Module, *, image_size: int | None = None
) -> SentenceEncoder | VisionTransformer | DecoderLM:
    """A model of this library with the weights of a model of the package transformers.

    Gemma's norms multiply by 1 + weight; here the 1 is part of the weight, so that in half
    precision a rounding step is lost.

    Args:
        model: a ``BertModel``, ``ViTModel`` or ``Dinov2Model``; a ``ForCausalLM`` of Llama, Qwen3,
            Gemma2, Gemma3 (text), Olmo2 or SmolLM3; recognised by its ``model.config.model_type``.
            A pooler, a mask token and dropout are left out.
        image_size: side of the images, in pixels, for a model of images; default: the size at
            which it was trained. For any other size the positions are resampled.

    Returns:
        A :class:`attn_lib.models.SentenceEncoder` without a tokenizer, a
        :class:`attn_lib.vision.VisionTransformer` without classes, or a
        :class:`attn_lib.models.DecoderLM`. It is in evaluation mode and in the dtype of the
        weights; its output, or that of ``features``, equals ``last_hidden_state``, and logits equal
        ``logits``.

    Raises:
        ValueError: another type of model, a decoder of type ``bert``, one without weights (on the
            meta device) or for images that are not square; an activation, a way of stretching
            rotary positions or another part that has no counterpart here; a weight that is missing
            or unknown.

    Example:
        >>> from transformers import ViTConfig, ViTModel
        >>> config = ViTConfig(hidden_size=6, num_attention_heads=3, num_hidden_layers=2,
        ...                    intermediate_size=11, image_size=4, patch_size=2)
        >>> theirs, images = ViTModel(config).eval(), torch.randn(1, 3, 4, 4)
        >>> ours = from_transformers(theirs)
        >>> torch.allclose(ours.features(images), theirs(images).last_hidden_state, atol=1e-5)
        True
    """
    config: Any = getattr(model, "config", None)
    kind = getattr(config, "model_type", None)
    known = ("bert", "vit", "dinov2", *_decoders.NORM_AT)
    if kind not in known:
        raise ValueError(f"model must be of type {', '.join(known)}, got {kind!r}")
    if any(tensor.is_meta for tensor in model.state_dict().values()):
        raise ValueError("model is on the meta device and has no weights: load it first")
    if kind in _decoders.NORM_AT:
        return _decoders.decoder_lm(config, model.state_dict())
    if config.hidden_act != "gelu":
        raise ValueError(f"the activation must be gelu, got {config.hidden_act!r}")
    if kind == "bert" and config.is_decoder:
        raise ValueError("is_decoder has no counterpart: a SentenceEncoder is not causal")
    size = getattr(config, "image_size", None)
    if isinstance(size, list | tuple) and len(set(size)) > 1:
        raise ValueError(f"the images must be square, got a model of {size[0]} x {size[1]} pixels")
    state, heads, eps = model.state_dict(), config.num_attention_heads, config.layer_norm_eps
    if kind == "bert":
        return sentence_encoder(state, num_heads=heads, eps=eps)
    return vision_transformer(state, num_heads=heads, eps=eps, image_size=image_size)


def sentence_encoder(
    state: Mapping[str, Tensor], *, num_heads: int, eps: float = 1e-12, tokenizer: Any = None
) -> SentenceEncoder:
    """The encoder whose weights have the names of ``BertModel``.

    Args:
        state: from names to tensors. A pooler, the second segment's embedding and a stored list
            of positions are left out.
        num_heads: H, which no shape of the weights shows.
        eps: added to the variance in each LayerNorm; default 1e-12, as in ``BertModel``.
        tokenizer: as in :class:`attn_lib.models.SentenceEncoder`; default: none.

    Returns:
        A model in evaluation mode, in the dtype of the weights.

    Raises:
        ValueError: a name that is missing or has no counterpart here.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(vocab_size=7, hidden_size=6, num_attention_heads=3,
        ...                     num_hidden_layers=2, intermediate_size=11)
        >>> theirs, ids = BertModel(config).eval(), torch.tensor([[3, 1, 4, 1]])
        >>> ours = sentence_encoder(theirs.state_dict(), num_heads=3)
        >>> torch.allclose(ours(ids), theirs(ids).last_hidden_state, atol=1e-5)
        True
    """
    ours = _names.renamed(state, _names.BERT, _names.BERT_BLOCK, SentenceEncoder)
    hidden = "encoder.blocks.0.feed_forward.up.weight"
    _names.check_has(ours, "words.weight", "positions.table", "segment", hidden)
    ours["segment"] = ours["segment"][0]  # this class has a single segment
    vocab_size, d_model = ours["words.weight"].shape
    model = _names.unfilled(
        SentenceEncoder,
        vocab_size=vocab_size,
        max_len=len(ours["positions.table"]),
        d_model=d_model,
        num_heads=num_heads,
        d_ff=len(ours[hidden]),
        num_layers=_names.count_blocks(ours),
        eps=eps,
        tokenizer=tokenizer,
    )
    return _names.fill(model, ours)


def vision_transformer(
    state: Mapping[str, Tensor],
    *,
    num_heads: int,
    image_size: int | None = None,
    eps: float = 1e-12,
) -> VisionTransformer:
    """The model whose weights have the names of ``ViTModel`` or ``Dinov2Model``.

    Two spellings are read: that of published files, and that of ``state_dict()`` in version 5 of
    the package transformers.

    Args:
        state: from names to tensors. A pooler and a mask token are left out.
        num_heads: H, which no shape of the weights shows.
        image_size: side of the images, in pixels; default: the size at which the model was
            trained. For any other size the positions are resampled.
        eps: added to the variance in each LayerNorm: 1e-12, the default, in ``ViTModel``, and 1e-6
            in ``Dinov2Model``.

    Returns:
        A model without classes, in evaluation mode, in the dtype of the weights.

    Raises:
        ValueError: a name that is missing or has no counterpart here.

    Example:
        >>> from transformers import ViTConfig, ViTModel
        >>> config = ViTConfig(hidden_size=6, num_attention_heads=3, num_hidden_layers=2,
        ...                    intermediate_size=11, image_size=4, patch_size=2)
        >>> model = vision_transformer(ViTModel(config).state_dict(), num_heads=3, image_size=6)
        >>> model.image_size, len(model.positions.table)  # the class token and 3 · 3 patches
        (6, 10)
    """
    ours = _names.renamed(state, _names.VISION, _names.VISION_BLOCK, VisionTransformer)
    hidden, kernel = "encoder.blocks.0.feed_forward.up.weight", "patches.projection.weight"
    _names.check_has(ours, "class_token", "positions.table", kernel, hidden)
    for name in ("class_token", "positions.table"):
        ours[name] = ours[name][0]  # (1, ...) in theirs, for the batch
    width, channels, patch_size, _ = ours[kernel].shape
    trained_size = patch_size * math.isqrt(len(ours["positions.table"]))  # 1 + n²
    image_size = trained_size if image_size is None else image_size
    model = _names.unfilled(
        VisionTransformer,
        image_size=image_size,
        patch_size=patch_size,
        in_channels=channels,
        num_classes=0,
        d_model=width,
        num_heads=num_heads,
        d_ff=len(ours[hidden]),
        num_layers=_names.count_blocks(ours),
        layer_scale=1.0 if "encoder.blocks.0.attention_gain" in ours else None,
        norm=partial(nn.LayerNorm, eps=eps),
    )
    ours["positions.table"] = resample_positions(ours["positions.table"], image_size // patch_size)
    return _names.fill(model, ours)
