"""The layers of the five posts, written anew with the mistakes that the posts have in them.

Each draws its matrices in the order of its post: with seed 0 they are those that were measured when
the posts were first read. `project` and `finish` are what is right in a layer; the reference goes
through them too, and lets PyTorch attend in between.

What cannot run is a function, with the names of its post: `run` calls it with the names it is given
and no others. `import` lines of this file do not help it.
"""

import builtins
import copy
import math
from abc import ABC
from collections.abc import Callable
from types import FunctionType, SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def heads(x: Tensor, H: int) -> Tensor:
    return x.unflatten(-1, (H, -1)).transpose(1, 2)


def attend(q, k, v, *, divisor=None, closed=None, fill=-1e9, drop=None) -> tuple[Tensor, Tensor]:
    """Closed scores are overwritten with a number; the weights that come back are dropped ones."""
    scores = q @ k.mT / (q.shape[-1] ** 0.5 if divisor is None else divisor)
    scores = scores if closed is None else scores.masked_fill(closed, fill)
    weights = scores.softmax(dim=-1)
    weights = weights if drop is None else drop(weights)
    return weights @ v, weights


def run(lines, names):
    """Call a function where nothing is known but these names."""
    names["__builtins__"] = builtins
    return FunctionType(lines.__code__, names)()


class Layer(nn.Module):
    """Four maps, and the reference: PyTorch's attention between the same maps."""

    H: int
    q: Callable
    k: Callable
    v: Callable
    fc: Callable

    def project(self, q, k, v) -> list[Tensor]:
        return [heads(f(x), self.H) for f, x in ((self.q, q), (self.k, k), (self.v, v))]

    def finish(self, out, q) -> Tensor:
        return self.fc(out.transpose(1, 2).flatten(2))

    def right(self, q, k=None, v=None, mask=None, **options) -> Tensor:
        k, v = (q, q) if k is None else (k, k if v is None else v)
        out = F.scaled_dot_product_attention(*self.project(q, k, v), attn_mask=mask, **options)
        return self.finish(out, q)


class Post000(Layer):
    """0 = blocked, after `unsqueeze(1)`; the sum with the query and its norm are inside."""

    def __init__(self, H, E, d_k, d_v, dropout=0.1):
        super().__init__()
        self.H = H
        self.q, self.k, self.v = (nn.Linear(E, H * d, bias=False) for d in (d_k, d_k, d_v))
        self.fc = nn.Linear(H * d_v, E, bias=False)
        self.drop, self.drop_out = nn.Dropout(0.1), nn.Dropout(dropout)  # 0.1, whatever is asked
        self.norm = nn.LayerNorm(E, eps=1e-6)

    def finish(self, out, q):
        return self.norm(super().finish(out, q) + q)

    def forward(self, q, k, v, mask=None):
        closed = None if mask is None else mask.unsqueeze(1) == 0
        out, weights = attend(*self.project(q, k, v), closed=closed, drop=self.drop)
        out = self.fc(out.transpose(1, 2).contiguous().view(len(q), q.shape[1], -1))
        out = self.drop_out(out)
        out += q  # in eval mode this is what `fc` has returned
        return self.norm(out), weights


def multi_head_000():
    class MultiHeadAttention(nn.Module):
        def __init__(self, n_head, d_model, d_k, d_v, dropout=0.1):
            super().__init__()
            self.n_head, self.fc = n_head, nn.Linear(n_head * d_v, d_model, bias=False)
            self.attention = ScaledDotProductAttention(temperature=d_k**0.5)  # noqa: F821

        def forward(self, q, k, v, mask=None):
            q, attn = self.attention(q, k, v, mask=mask)
            return self.fc(q.transpose(1, 2).flatten(2)), attn

    return MultiHeadAttention


def scaled_dot_product_000():
    class ScaledDotProductAttention(nn.Module):
        def __init__(self, temperature, attn_dropout=0.1):
            super().__init__()
            self.temperature, self.dropout = temperature, nn.Dropout(attn_dropout)

        def forward(self, q, k, v, mask=None):
            attn = torch.matmul(q / self.temperature, k.transpose(2, 3))
            attn = self.dropout(F.softmax(attn, dim=-1))
            return torch.matmul(attn, v), attn

    return ScaledDotProductAttention


class Post001(Layer):
    """One matrix serves every head; sqrt(E) divides; values come first; 0 = blocked."""

    def __init__(self, E, H):
        super().__init__()
        self.E, self.H = E, H
        self.v, self.k, self.q = (nn.Linear(E // H, E // H, bias=False) for _ in range(3))
        self.fc = nn.Linear(E, E)

    def project(self, q, k, v):
        return [f(heads(x, self.H)) for f, x in ((self.q, q), (self.k, k), (self.v, v))]

    def forward(self, values, keys, query, mask):
        N, H, inputs = len(query), self.H, ((self.q, query), (self.k, keys), (self.v, values))
        q, k, v = (f(x.reshape(N, x.shape[1], H, self.E // H)) for f, x in inputs)
        energy = torch.einsum("nqhd,nkhd->nhqk", q, k)
        if mask is not None:
            energy = energy.masked_fill(mask == 0, -1e20)
        self.weights = torch.softmax(energy / self.E ** (1 / 2), dim=3)
        out = torch.einsum("nhql,nlhd->nqhd", self.weights, v)
        return self.fc(out.reshape(N, query.shape[1], self.E))


def block_001():
    class TransformerBlock(nn.Module):
        def __init__(self, embed_size, heads, dropout, forward_expansion):
            super().__init__()
            self.attention = SelfAttention(embed_size, heads)  # noqa: F821
            self.norm1, self.dropout = nn.LayerNorm(embed_size), nn.Dropout(dropout)

    return TransformerBlock


class Block001(nn.Module):
    def __init__(self, E, H, dropout, times):
        super().__init__()
        self.attention = Post001(E, H)
        self.norms = nn.ModuleList([nn.LayerNorm(E), nn.LayerNorm(E)])
        wide = nn.Linear(E, times * E), nn.ReLU(), nn.Linear(times * E, E)
        self.forth, self.dropout = nn.Sequential(*wide), nn.Dropout(dropout)

    def forward(self, x, mask):
        x = self.dropout(self.norms[0](self.attention(x, x, x, mask) + x))
        return self.dropout(self.norms[1](self.forth(x) + x))

    def as_in_the_paper(self, x, mask):
        x = self.norms[0](self.dropout(self.attention(x, x, x, mask)) + x)
        return self.norms[1](self.dropout(self.forth(x)) + x)


class Encoder001(nn.Module):
    def __init__(self, words, E, layers, H, device, times, dropout, max_length):
        super().__init__()
        self.device = device  # an argument, kept: `.to` does not move it
        self.words, self.places = nn.Embedding(words, E), nn.Embedding(max_length, E)
        self.blocks = nn.ModuleList([Block001(E, H, dropout, times) for _ in range(layers)])

    def forward(self, ids, mask):
        places = torch.arange(ids.shape[1]).expand(ids.shape).to(self.device)
        x = self.words(ids) + self.places(places)
        for block in self.blocks:
            x = block(x, mask)
        return x


class Single002(Layer):
    """One head with three axes, and a mask of three that is given a fourth."""

    H = 1

    def __init__(self, E):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(E, E) for _ in range(3))
        self.fc = nn.Identity()

    def forward(self, x, mask=None, product=torch.bmm):
        scores = torch.bmm(self.q(x), self.k(x).mT) / x.shape[-1] ** 0.5
        if mask is not None:
            mask = mask.unsqueeze(1) if mask.dim() in (2, 3) else mask
            scores = scores.masked_fill(mask == 0, -1e9)
        weights = scores.softmax(dim=-1)
        return product(weights, self.v(x)), weights


class Post002(Layer):
    """Biases; `closed_is` is what the mask holds at a closed key: it differs between classes."""

    def __init__(self, E, H, *, closed_is=False, joined=True):
        super().__init__()
        self.E, self.H, self.closed_is = E, H, closed_is
        self.q, self.k, self.v = (nn.Linear(E, E) for _ in range(3))
        self.fc = nn.Linear(E, E) if joined else nn.Identity()

    def forward(self, x, mask=None):
        B, T, d = len(x), x.shape[1], self.E // self.H
        parts = [f(x).view(B, -1, self.H, d).transpose(1, 2) for f in (self.q, self.k, self.v)]
        closed = None
        if mask is not None:
            mask = mask[:, None, None] if mask.dim() == 2 else mask
            mask = mask[:, None] if mask.dim() == 3 else mask
            closed = mask.bool() == self.closed_is
        out, weights = attend(*parts, closed=closed)
        return self.fc(out.transpose(1, 2).contiguous().view(B, T, self.E)), weights


def unified_002():
    class MultiHeadAttention(nn.Module):
        def __init__(self, embed_size=512, num_heads=8):
            self.embed_size, self.num_heads = embed_size, num_heads
            self.head_dim = embed_size // num_heads
            assert self.head_dim * num_heads == embed_size
            self.Q = nn.Linear(embed_size, embed_size)
            self.K = nn.Linear(embed_size, embed_size)
            self.V = nn.Linear(embed_size, embed_size)
            self.scale = torch.sqrt(self.head_dim)
            self.softmax = nn.Softmax(dim=-1)

        def forward(self, X, mask=None):
            if self.num_heads <= 1:
                scores = torch.bmm(self.Q(X), self.K(X).transpose(1, 2)) / self.scale
                if mask is not None:
                    if mask.dim() == 2:
                        mask = mask.unsqueeze(dim=1)
                    elif mask.dim() != 3:
                        raise ValueError("The dim of mask must be 2 or 3!")
                    scores = scores.mask_fill(mask == 0, -1e9)
                return torch.bmm(self.softmax(scores), self.V(X))
            sizes = len(X), -1, self.num_heads, self.head_dim
            parts = (f(X).view(sizes) for f in (self.Q, self.K, self.V))
            query, key, value = (part.permute(0, 2, 1, 3) for part in parts)
            scores = torch.matmul(query, key.transpose(2, 3)) / self.scale
            if mask is not None:
                if mask.dim() == 2:
                    mask = mask.unsqueeze(dim=1).unsqueeze(dim=1)
                elif mask.dim() == 3:
                    mask = mask.unsqueeze(dim=1)
                else:
                    raise ValueError("The dim of mask must be 2 or 3!")
                scores = scores.mask_fill(mask == 0, -1e9)
            output = torch.matmul(self.softmax(scores), value).permute(0, 2, 1, 3)
            return output.contiguous().view(len(X), X.shape[1], self.embed_size)

    return MultiHeadAttention


CORE_003 = """
# scale is the coefficient of the formula, the root of dk
scores = nn.Softmax(dim=-1)(torch.matmul(Q, K.transpose(-1, -2)) * .scale)
Z = torch.matmul(scores, V)
"""


def fully_connection_003(Z, B, U, E, H, Dv):
    fully_connection = nn.Linear(Dv * H, E)
    return fully_connection(Z.transpose(1, 2).reshape(B, U, E))


def attention_003():  # it imports `torch` alone, and a name that it does not use
    class Attention(nn.Module, ABC):
        def __init__(
            self, embed_dim, n_heads, kq_dim=None, v_dim=None, mask_flag=False, scale=None
        ):
            super(FullAttention, self).__init__()  # noqa: F821
            self.check(embed_dim, n_heads)
            self.kq_dim = kq_dim or (embed_dim // n_heads)
            self.v_dim = v_dim or (embed_dim // n_heads)
            self.n_heads, self.mask_flag = n_heads, mask_flag
            self.matrix_Q = nn.Linear(embed_dim, self.kq_dim * n_heads, bias=False)
            self.matrix_K = nn.Linear(embed_dim, self.kq_dim * n_heads, bias=False)
            self.matrix_V = nn.Linear(embed_dim, self.v_dim * n_heads, bias=False)
            self.scale = scale or 1.0 / math.sqrt(self.kq_dim)
            self.fully_con = nn.Linear(self.v_dim * n_heads, embed_dim, bias=False)

        def check(self, embed_dim, n_heads):  # apart from the rest, so that a test can leave it out
            if embed_dim < n_heads:
                raise Exception("embedding dimension must greater than heads number.")

        def forward(self, queries, keys, values):
            B, unit_q, unit_v = len(queries), queries.shape[1], values.shape[1]
            q = self.matrix_Q(queries).view(B, unit_q, self.n_heads, -1).transpose(1, 2)
            k = self.matrix_K(keys).view(B, unit_v, self.n_heads, -1).transpose(1, 2)
            v = self.matrix_V(values).view(B, unit_v, self.n_heads, -1).transpose(1, 2)
            scores = torch.matmul(q, k.transpose(-1, -2)) * self.scale
            if self.mask_flag:
                mask = triangular_mask(unit_q, unit_v)  # noqa: F821
                if torch.cuda.is_available():
                    mask = mask.cuda()
                scores.masked_fill_(mask, -np.inf)  # noqa: F821
            scores = nn.Softmax(dim=-1)(scores)
            out = torch.matmul(scores, v).transpose(1, 2).reshape(B, unit_q, -1)
            return self.fully_con(out), scores

    return Attention


def top_left(T, S):  # True = blocked
    return torch.ones(T, S).triu(1).bool()


def names_003(triangular_mask=top_left, torch=torch):
    """What the class of post 003 has to be given, but its own name."""
    names = {"torch": torch, "nn": nn, "ABC": ABC, "math": math}
    return names | {"np": SimpleNamespace(inf=math.inf), "triangular_mask": triangular_mask}


def post_003(**others):
    names = names_003(**others)
    names["FullAttention"] = made = run(attention_003, names)
    return made


class Post004(Layer):
    """Four copies of one matrix; 0 = blocked, after `unsqueeze(1)`; the weights are kept."""

    def __init__(self, H, E, dropout=0.1):
        super().__init__()
        self.H, self.E, first = H, E, nn.Linear(E, E)
        self.q, self.k, self.v, self.fc = (copy.deepcopy(first) for _ in range(4))
        self.drop, self.weights = nn.Dropout(dropout), None

    def forward(self, query, key, value, mask=None):
        B, d = len(query), self.E // self.H
        closed = None if mask is None else mask.unsqueeze(1) == 0
        inputs = ((self.q, query), (self.k, key), (self.v, value))
        parts = [f(x).view(B, -1, self.H, d).transpose(1, 2) for f, x in inputs]
        out, self.weights = attend(*parts, closed=closed, fill=-1e10, drop=self.drop)
        return self.fc(out.transpose(1, 2).contiguous().view(B, -1, self.E))
