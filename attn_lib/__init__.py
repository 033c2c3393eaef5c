"""Attention, checked: the small library that every page of the book imports.

Letters, the same in every signature, comment and notebook:

====================  =====================================================================
``B``                 examples in a batch
``T``                 queries: the positions that attend
``S``                 keys and values: the positions attended to; T = S in self-attention
``H``                 heads
``d_model``           width of a token's vector outside the attention layer
``d_k``, ``d_v``      width of a query or key, and of a value, per head
``d_ff``              hidden activations of a feed-forward network, at each position
====================  =====================================================================

``q`` (..., T, d_k), ``k`` (..., S, d_k), ``v`` (..., S, d_v); ``scores`` before the softmax,
``weights`` after it; ``mask`` is boolean, True = may attend; ``attn_bias`` is added to the
scores.

Where to start: :mod:`attn_lib.functional` is the formula and :mod:`attn_lib.masks` says who may
attend to whom; :mod:`attn_lib.layers` makes a trainable layer of them and
:mod:`attn_lib.positions` tells it the position of each token; :mod:`attn_lib.transformer` stacks
such layers, :mod:`attn_lib.models` builds whole models for text from them,
:mod:`attn_lib.generation` writes with them, and :mod:`attn_lib.vision` is one for images.
:mod:`attn_lib.recording` shows the attention weights of any PyTorch model, and
:mod:`attn_lib.recurrent` is attention without the softmax, with one state in place of a cache.
:mod:`attn_lib.pretrained` fills these models with real trained weights, and
:mod:`attn_lib.interop` with those of your own models in PyTorch or transformers. Beside them,
:mod:`attn_lib.training` and :mod:`attn_lib.datasets` train on small data, :mod:`attn_lib.records`
reads the results of long runs, :mod:`attn_lib.plotting` draws, and :mod:`attn_lib.exercises`
checks your answers. The sibling package :mod:`attn_check` says in words what is wrong with an
attention of your own.
"""

from attn_lib.cache import Cache
from attn_lib.functional import attention, attention_weights
from attn_lib.generation import generate
from attn_lib.interop import from_torch
from attn_lib.layers import FeedForward, MultiHeadAttention, split_heads
from attn_lib.masks import causal_mask, padding_mask, window_mask
from attn_lib.models import DecoderLM, SentenceEncoder, Transformer
from attn_lib.positions import apply_rope
from attn_lib.recording import record_attention
from attn_lib.transformer import TransformerBlock, TransformerDecoder, TransformerEncoder
from attn_lib.vision import VisionTransformer, attention_rollout

__version__ = "0.3.0"

__all__ = [
    "Cache",
    "DecoderLM",
    "FeedForward",
    "MultiHeadAttention",
    "SentenceEncoder",
    "Transformer",
    "TransformerBlock",
    "TransformerDecoder",
    "TransformerEncoder",
    "VisionTransformer",
    "apply_rope",
    "attention",
    "attention_rollout",
    "attention_weights",
    "causal_mask",
    "from_torch",
    "generate",
    "padding_mask",
    "record_attention",
    "split_heads",
    "window_mask",
]
