"""Attention, checked: the small library that every page of the book imports.

Letters, the same in every signature, comment and notebook:

====================  =====================================================================
``B``                 examples in a batch
``T``                 queries (positions that ask)
``S``                 keys and values (positions that answer); T = S in self-attention
``H``                 heads
``d_model``           width of a token's vector outside the attention layer
``d_k``, ``d_v``      width of a query or key, and of a value, per head
====================  =====================================================================

``q`` (..., T, d_k), ``k`` (..., S, d_k), ``v`` (..., S, d_v); ``scores`` before the softmax,
``weights`` after it; ``mask`` is boolean, True = may attend; ``bias`` is added to the scores.

Where to start: :mod:`attn_lib.functional` is the formula and :mod:`attn_lib.masks` says who may
attend to whom; :mod:`attn_lib.layers` makes a trainable layer of them and
:mod:`attn_lib.positions` tells it where a token stands; :mod:`attn_lib.transformer` stacks such
layers, :mod:`attn_lib.models` makes whole models of them for text, :mod:`attn_lib.vision` one for
images. :mod:`attn_lib.recording` shows the weights of each, and of models that are not of this
library. :mod:`attn_lib.pretrained` fills these models with real trained weights, and
:mod:`attn_lib.interop` with those of your own models in PyTorch or transformers. Beside them,
:mod:`attn_lib.training` and :mod:`attn_lib.datasets` train on small data, :mod:`attn_lib.records`
keeps what long runs found, :mod:`attn_lib.plotting` draws, :mod:`attn_lib.exercises` checks
answers.
"""

from attn_lib.functional import attention, attention_weights
from attn_lib.layers import FeedForward, MultiHeadAttention
from attn_lib.masks import causal_mask, padding_mask, segment_mask, window_mask
from attn_lib.models import DecoderLM, SentenceEncoder, Transformer, generate
from attn_lib.recording import record_attention
from attn_lib.transformer import TransformerBlock, TransformerDecoder, TransformerEncoder
from attn_lib.vision import PatchEmbedding, VisionTransformer, attention_rollout

__all__ = [
    "DecoderLM",
    "FeedForward",
    "MultiHeadAttention",
    "PatchEmbedding",
    "SentenceEncoder",
    "Transformer",
    "TransformerBlock",
    "TransformerDecoder",
    "TransformerEncoder",
    "VisionTransformer",
    "attention",
    "attention_rollout",
    "attention_weights",
    "causal_mask",
    "generate",
    "padding_mask",
    "record_attention",
    "segment_mask",
    "window_mask",
]
