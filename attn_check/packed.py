"""Packed projections: which rows belong to queries, keys and values."""

import torch
from torch import Tensor


def unpacked(
    weights: dict[str, Tensor],
    biases: dict[str, Tensor],
    heads: int,
    kv_heads: int,
    *,
    turned: bool,
    interleaved: bool,
    order: str = "qkv",
) -> tuple[dict[str, Tensor], dict[str, Tensor | None]] | None:
    """Matrices (outputs, inputs) by role, from packed ones too."""
    matrices: dict[str, Tensor] = {}
    vectors: dict[str, Tensor | None] = dict(biases)
    if not turned and any(weight.dim() == 3 for weight in weights.values()):
        return None
    counts = {"q": heads, "k": kv_heads, "v": kv_heads}
    for role, weight in weights.items():
        weight = _flat(weight, role, counts.get(role, heads))
        matrices[role] = weight.mT if turned else weight
    for packed in ("qkv", "kv"):
        if packed not in matrices:
            continue
        whole, bias = matrices.pop(packed), vectors.pop(packed, None)
        inside = order if packed == "qkv" else packed
        parts = [counts[role] for role in inside]
        if whole.shape[0] % sum(parts) or (interleaved and len(set(parts)) > 1):
            return None
        lines = _rows(whole.shape[0], parts, interleaved)
        for role, at in zip(inside, lines, strict=True):
            matrices[role] = whole[at]
            vectors[role] = None if bias is None else bias[at]
    rows = {role: len(matrices[role]) / n for role, n in counts.items()}
    fits = all(width.is_integer() for width in rows.values()) and rows["q"] == rows["k"]
    if "out" in matrices:
        fits = fits and matrices["out"].shape[1] == heads * rows["v"]
    for role, matrix in matrices.items():
        bias = vectors.get(role)
        fits = fits and (bias is None or bias.numel() == matrix.shape[0])
    fits = fits and matrices["k"].shape[1] == matrices["v"].shape[1]
    return (matrices, vectors) if fits else None


_WORDS = {"q": "queries", "k": "keys", "v": "values"}


def order_of(names: dict[str, list[str]]) -> str:
    """As the name of the packed matrix says: qkv, unless it is kqv."""
    return "kqv" if any("kqv" in name.lower() for name in names.get("qkv", [])) else "qkv"


def order_in_words(names: dict[str, list[str]], *, turned: bool, interleaved: bool) -> str:
    """What is assumed of a packed matrix; "" where there is none."""
    for role, order in (("qkv", order_of(names)), ("kv", "kv")):
        if role in names:
            parts = ", ".join(_WORDS[letter] for letter in order)
            end = "head by head" if interleaved else "in this order"
            lines = "columns" if turned else "rows"
            return f"the {lines} of {names[role][0]} are those of {parts}, {end}"
    return ""


def _flat(weight: Tensor, role: str, heads: int) -> Tensor:
    """(H, d_model, d) or (d_model, H, d), and (H, d, d_model) of the output, to two axes."""
    if weight.dim() != 3:
        return weight
    if role == "out":
        return weight.flatten(0, 1)
    return weight.transpose(0, 1).flatten(1) if len(weight) == heads else weight.flatten(1)


def _rows(total: int, parts: list[int], interleaved: bool) -> list[Tensor]:
    unit, index = total // sum(parts), torch.arange(total)
    if interleaved:  # head by head: its query, its key, its value
        by_head = index.view(parts[0], len(parts), unit)
        return [by_head[:, i].flatten() for i in range(len(parts))]
    return list(index.split([unit * n for n in parts]))
