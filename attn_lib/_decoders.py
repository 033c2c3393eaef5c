"""Language models of the package transformers: what their configurations say, as our options."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from attn_lib import _names
from attn_lib.layers import Rotate
from attn_lib.models import DecoderLM
from attn_lib.positions import apply_rope

# type of model: where its norms stand
NORM_AT = {
    "llama": "before",
    "qwen3": "before",
    "smollm3": "before",
    "olmo2": "inside",
    "gemma2": "both",
    "gemma3_text": "both",
}
# what only some of these models read, whatever a configuration carries
_READ_BY = {
    "attn_logit_softcapping": ("gemma2",),  # Gemma3Attention keeps it without using it
    "final_logit_softcapping": ("gemma2", "gemma3_text"),
    "layer_types": ("qwen3", "smollm3", "gemma2", "gemma3_text"),
    "mlp_bias": ("llama", "smollm3"),
    "no_rope_layers": ("smollm3",),
    "query_pre_attn_scalar": ("gemma2", "gemma3_text"),
    "use_bidirectional_attention": ("gemma2", "gemma3_text"),
}
_ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}


def decoder_lm(config: Any, state: Mapping[str, Tensor]) -> DecoderLM:
    """The language model with these weights.

    Args:
        config: of one of the types in ``NORM_AT``.
        state: from names to tensors, as ``state_dict()`` gives them.

    Returns:
        A model in evaluation mode, in the dtype of the weights; it shares no memory with them.

    Raises:
        ValueError: a part that has no counterpart; a name that is missing or unknown.
    """
    kind = config.model_type
    gemma = kind in ("gemma2", "gemma3_text")
    act = config.hidden_activation if gemma else config.hidden_act
    if act not in _ACTIVATIONS:
        raise ValueError(f"the activation must be one of {', '.join(_ACTIVATIONS)}, got {act!r}")
    if _read(config, "use_bidirectional_attention"):
        raise ValueError("use_bidirectional_attention has no counterpart: a DecoderLM is causal")
    norm_at = NORM_AT[kind]
    inside = _names.DECODER_BLOCK | _names.DECODER_NORMS[norm_at]
    ours = _names.renamed(state, _names.DECODER, inside, DecoderLM)
    _names.check_has(ours, "embedding.vectors.weight", "output.weight")
    tied = state["lm_head.weight"].data_ptr() == state["model.embed_tokens.weight"].data_ptr()
    if tied:
        del ours["output.weight"]
    for name, tensor in ours.items():
        if gemma and "norm" in name:
            ours[name] = tensor + 1.0
        elif kind == "olmo2" and name.endswith(("q_norm.weight", "k_norm.weight")):
            ours[name] = tensor.view(-1, config.hidden_size // config.num_attention_heads)
    model = _names.unfilled(
        DecoderLM,
        vocab_size=config.vocab_size,
        max_len=None,
        d_model=config.hidden_size,
        num_heads=config.num_attention_heads,
        d_ff=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        tied=tied,
        embedding_scale=config.hidden_size**0.5 if gemma else 1.0,
        logit_softcap=_read(config, "final_logit_softcapping"),
        norm=partial(nn.RMSNorm, eps=config.rms_norm_eps),
        norm_at=norm_at,
        activation=_ACTIVATIONS[act],
        gated=True,
        bias=bool(_read(config, "mlp_bias")),
        attention=partial(_attention, config),
    )
    if model.output is not None:
        model.output.register_parameter("bias", None)  # also where the feed-forward network has one
    return _names.fill(model, ours)


def _attention(config: Any, layer: int) -> dict[str, Any]:
    """Options of the attention of one layer."""
    kinds, scalar = _read(config, "layer_types"), _read(config, "query_pre_attn_scalar")
    sliding = kinds is not None and kinds[layer] == "sliding_attention"
    return {
        "d_k": getattr(config, "head_dim", None),
        "num_kv_heads": config.num_key_value_heads,
        "scale": None if scalar is None else scalar**-0.5,
        "softcap": _read(config, "attn_logit_softcapping"),
        "window": config.sliding_window if sliding else None,
        "rotate": _rotate(config, layer),
        "qk_norm": _qk_norm(config),
        "bias": config.attention_bias,
    }


def _read(config: Any, option: str) -> Any:
    """An option, or None where a model of this type reads none of this name."""
    return getattr(config, option, None) if config.model_type in _READ_BY[option] else None


def _rotate(config: Any, layer: int) -> Rotate | None:
    rotated = _read(config, "no_rope_layers")
    if rotated is not None and not rotated[layer]:
        return None
    options = config.rope_parameters
    if "rope_type" not in options:  # one for each type of layer
        options = options[config.layer_types[layer]]
    if options["rope_type"] != "default":
        raise ValueError(f"rope_type must be 'default', got {options['rope_type']!r}")
    return partial(apply_rope, base=options["rope_theta"])


def _qk_norm(config: Any) -> Any:
    """Over each head in some models, over all of them together in OLMo 2."""
    if config.model_type in ("qwen3", "gemma3_text"):
        return lambda heads, d_k: nn.RMSNorm(d_k, eps=config.rms_norm_eps)
    if config.model_type == "olmo2":
        return lambda heads, d_k: nn.RMSNorm((heads, d_k), eps=config.rms_norm_eps)
    return None
