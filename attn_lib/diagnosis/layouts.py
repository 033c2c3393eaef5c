"""Tensors and masks from the canonical layout to that of a function, and back."""

from torch import Tensor

from attn_lib.diagnosis.formula import Case

LAYOUTS = ("BHTd", "BTHd", "TBHd", "HTd", "THd", "BTd", "TBd", "Td")
SHAPES = ("B1TS", "BTS", "BS", "TS", "B11S", "BHTS")
POLARITIES = ("attend", "blocked", "additive")


def to_layout(x: Tensor, layout: str, merged: bool, heads: int) -> Tensor:
    """A canonical tensor, (B, H, T, d) or (B, T, H · d), in the layout of the function.

    Args:
        x: the tensor.
        layout: letters of B, H, T and d.
        merged: whether x is (B, T, H · d).
        heads: H, to unmerge it.

    Returns:
        A contiguous tensor with one axis for each letter.

    Example:
        >>> import torch
        >>> to_layout(torch.zeros(2, 5, 12), "TBHd", True, 3).shape
        torch.Size([5, 2, 3, 4])

    Source: ``torch.permute``.
    """
    if merged and "H" in layout:
        x = x.unflatten(-1, (heads, -1)).transpose(1, 2)
    letters = "BHTd" if x.dim() == 4 else "BTd"
    for letter in "BH":
        if letter in letters and letter not in layout:
            x = x.squeeze(letters.index(letter))
            letters = letters.replace(letter, "")
    return x.permute([letters.index(letter) for letter in layout]).contiguous()


def from_layout(out: Tensor, layout: str, case: Case, projects: bool) -> Tensor:
    """The output in double precision, in the layout of the case."""
    T, _ = case.lengths
    out = out.detach().double() if not out.requires_grad else out.double()
    if projects or "H" not in layout or out.dim() == len(layout) - 1:
        letters = layout.replace("H", "") if "H" in layout else layout
        letters = "BTd" if "H" in layout else letters
    else:
        letters = layout
        sizes = {"B": case.batch, "H": case.heads, "T": T}
        expected = [sizes.get(letter) for letter in letters[:-1]]
        if list(out.shape[:-1]) != expected:
            for other in ("BTHd", "BHTd", "TBHd"):
                if list(out.shape[:-1]) == [sizes.get(letter) for letter in other[:-1]]:
                    letters = other
    out = out[None] if "B" not in letters else out
    letters = letters if "B" in letters else "B" + letters
    target = "BHTd" if "H" in letters else "BTd"
    out = out.permute([letters.index(letter) for letter in target])
    if "H" in letters and case.merged:
        return out.transpose(1, 2).flatten(-2)
    if "H" not in letters and not case.merged and not projects:
        return out.unflatten(-1, (case.heads, -1)).transpose(1, 2)
    return out


def shaped(mask: Tensor, shape: str) -> Tensor:
    """A mask (B, T, S), or (B, H, T, S), in another shape, without a loss.

    Args:
        mask: bool.
        shape: letters of B, 1, H, T and S.

    Returns:
        The mask with one axis for each letter.

    Raises:
        ValueError: a mask that this shape cannot say.

    Example:
        >>> import torch
        >>> shaped(torch.ones(2, 3, 4, dtype=torch.bool), "B11S").shape
        torch.Size([2, 1, 1, 4])

    Source: broadcasting.
    """
    full = mask if mask.dim() == 4 else mask[:, None]
    if "T" not in shape and not bool((full == full[:, :, :1]).all()):
        raise ValueError(f"a mask of shape {shape} closes keys for all queries")
    if "B" not in shape and not bool((full == full[:1]).all()):
        raise ValueError(f"a mask of shape {shape} is the same for all examples")
    if shape == "TS":
        return full[0, 0]
    if shape == "BS":
        return full[:, 0, 0]
    if shape == "BTS":
        return full[:, 0]
    return full[:, :, :1] if shape == "B11S" else full
