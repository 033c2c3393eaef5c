"""A GGUF file and its tokenizer in plain Python: shares no code with the library or with gguf.

Source: docs/gguf.md of the ggml project; ``block_q4_1`` and ``block_q8_0`` of its ggml-common.h.
"""

import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import regex
import torch

NUMBERS = dict(zip((*range(8), 10, 11, 12), "BbHhIif?Qqd", strict=True))
STRING, ARRAY, ALIGNMENT = 8, 9, 32
F32, Q4_1, Q8_0 = 0, 3, 8


def read(path: Path) -> tuple[dict, dict[str, torch.Tensor]]:
    """The fields and the tensors, all of them in float32, by name."""
    content, place = path.read_bytes(), 0

    def number(code):
        nonlocal place
        (value,) = struct.unpack_from(f"<{code}", content, place)
        place += struct.calcsize(f"<{code}")
        return value

    def text():
        nonlocal place
        length = number("Q")
        place += length
        return content[place - length : place].decode()

    def value(kind):
        if kind == STRING:
            return text()
        if kind == ARRAY:
            inner, length = number("I"), number("Q")
            return [value(inner) for _ in range(length)]
        return number(NUMBERS[kind])

    assert content[:4] == b"GGUF"
    place = 8
    n_tensors, n_fields = number("Q"), number("Q")
    fields = {text(): value(number("I")) for _ in range(n_fields)}
    heads = []
    for _ in range(n_tensors):
        name = text()
        shape = [number("Q") for _ in range(number("I"))][::-1]  # the fastest axis comes first
        heads.append((name, shape, number("I"), number("Q")))
    start = -(-place // ALIGNMENT) * ALIGNMENT
    return fields, {n: numbers(content, start + at, shape, k) for n, shape, k, at in heads}


def numbers(content: bytes, at: int, shape: list[int], kind: int) -> torch.Tensor:
    """A tensor whose blocks of 32 numbers begin at that byte."""
    count = int(np.prod(shape))
    if kind == F32:
        found = np.frombuffer(content, "<f4", count, at)
    elif kind == Q4_1:  # a scale, a smallest number, then 16 bytes of two halves each
        block = np.dtype([("scale", "<f2"), ("least", "<f2"), ("pairs", "u1", 16)])
        blocks = np.frombuffer(content, block, count // 32, at)
        halves = np.concatenate([blocks["pairs"] % 16, blocks["pairs"] // 16], axis=1)
        found = halves * blocks["scale"].astype("f4")[:, None]
        found = found + blocks["least"].astype("f4")[:, None]
    else:
        assert kind == Q8_0
        block = np.dtype([("scale", "<f2"), ("q", "i1", 32)])
        blocks = np.frombuffer(content, block, count // 32, at)
        found = blocks["q"] * blocks["scale"].astype("f4")[:, None]
    return torch.tensor(found, dtype=torch.float32).view(shape)


class Words:
    """Byte-pair encoding as the file's ``tokenizer.ggml.pre`` = smollm says."""

    GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

    def __init__(self, fields: dict):
        tokens, kinds = (fields[f"tokenizer.ggml.{n}"] for n in ("tokens", "token_type"))
        self.ids = {token: i for i, token in enumerate(tokens)}
        merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
        self.ranks = {merge: i for i, merge in enumerate(merges)}
        self.special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 3]
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [b for b in range(256) if b not in printable]
        self.letters = {b: chr(b) for b in printable}
        self.letters |= {b: chr(256 + i) for i, b in enumerate(others)}

    def encode(self, text: str) -> list[int]:
        found = []
        for part in regex.split("(" + "|".join(map(regex.escape, self.special)) + ")", text):
            if part in self.special:
                found.append(self.ids[part])
                continue
            for piece in regex.split(r"(\p{N})", part):  # each digit alone
                for word in regex.findall(self.GPT_2, piece):
                    found += [self.ids[symbol] for symbol in self.merged(word)]
        return found

    def merged(self, word: str) -> list[str]:
        symbols = [self.letters[byte] for byte in word.encode()]
        while len(symbols) > 1:
            ranks = [self.ranks.get(pair, len(self.ranks)) for pair in pairwise(symbols)]
            best = min(range(len(ranks)), key=ranks.__getitem__)
            if ranks[best] == len(self.ranks):
                break
            symbols[best : best + 2] = ["".join(symbols[best : best + 2])]
        return symbols
