"""The names of weights in the package transformers, and what the same weights are called here."""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_Model = TypeVar("_Model", bound=nn.Module)

# their name of a module or weight: our name; an empty one is left out
BERT = {
    "embeddings.word_embeddings": "words",
    "embeddings.position_embeddings.weight": "positions.table",
    "embeddings.token_type_embeddings.weight": "segment",
    "embeddings.LayerNorm": "norm",
    "embeddings.position_ids": "",
    "embeddings.token_type_ids": "",
    "pooler.dense": "",
}
VISION = {
    "embeddings.cls_token": "class_token",
    "embeddings.position_embeddings": "positions.table",
    "embeddings.patch_embeddings.projection": "patches.projection",
    "embeddings.mask_token": "",
    "layernorm": "encoder.norm",
    "pooler.dense": "",
}
DECODER = {
    "model.embed_tokens": "embedding.vectors",
    "model.norm": "decoder.norm",
    "lm_head": "output",
}
# the same within a block, where the names follow "encoder.layer.0." or "layers.0."
BERT_BLOCK = {
    "attention.self.query": "attention.q_proj",
    "attention.self.key": "attention.k_proj",
    "attention.self.value": "attention.v_proj",
    "attention.output.dense": "attention.out_proj",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "feed_forward.up",
    "output.dense": "feed_forward.down",
    "output.LayerNorm": "feed_forward_norm",
}
VISION_BLOCK = {
    # in published files
    "attention.attention.query": "attention.q_proj",
    "attention.attention.key": "attention.k_proj",
    "attention.attention.value": "attention.v_proj",
    "attention.output.dense": "attention.out_proj",
    "layernorm_before": "attention_norm",
    "intermediate.dense": "feed_forward.up",
    "output.dense": "feed_forward.down",
    "layernorm_after": "feed_forward_norm",
    # in version 5 of transformers, where they differ
    "attention.q_proj": "attention.q_proj",
    "attention.k_proj": "attention.k_proj",
    "attention.v_proj": "attention.v_proj",
    "attention.o_proj": "attention.out_proj",
    "mlp.fc1": "feed_forward.up",
    "mlp.fc2": "feed_forward.down",
    # Dinov2Model
    "norm1": "attention_norm",
    "norm2": "feed_forward_norm",
    "layer_scale1.lambda1": "attention_gain",
    "layer_scale2.lambda1": "feed_forward_gain",
}
DECODER_BLOCK = {
    "self_attn.q_proj": "attention.q_proj",
    "self_attn.k_proj": "attention.k_proj",
    "self_attn.v_proj": "attention.v_proj",
    "self_attn.o_proj": "attention.out_proj",
    "self_attn.q_norm": "attention.q_norm",
    "self_attn.k_norm": "attention.k_norm",
    "mlp.gate_proj": "feed_forward.gate",
    "mlp.up_proj": "feed_forward.up",
    "mlp.down_proj": "feed_forward.down",
}
# one name, three meanings: after the attention is before the feed-forward network
DECODER_NORMS = {
    "before": {
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "feed_forward_norm",
    },
    "inside": {
        "post_attention_layernorm": "attention_norm",
        "post_feedforward_layernorm": "feed_forward_norm",
    },
    "both": {
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "attention_norm_2",
        "pre_feedforward_layernorm": "feed_forward_norm",
        "post_feedforward_layernorm": "feed_forward_norm_2",
    },
}
# in GGUF files of type llama
GGUF = {
    "token_embd": "embedding.vectors",
    "output_norm": "decoder.norm",
}
GGUF_BLOCK = {
    "attn_norm": "attention_norm",
    "attn_q": "attention.q_proj",
    "attn_k": "attention.k_proj",
    "attn_v": "attention.v_proj",
    "attn_output": "attention.out_proj",
    "ffn_norm": "feed_forward_norm",
    "ffn_gate": "feed_forward.gate",
    "ffn_up": "feed_forward.up",
    "ffn_down": "feed_forward.down",
}


def renamed(
    state: Mapping[str, Tensor], outside: dict[str, str], inside: dict[str, str], kind: type
) -> dict[str, Tensor]:
    """A copy of each tensor, under our name for it."""
    names = {name: ours(name, outside, inside, kind) for name in state}
    return {names[name]: tensor.clone() for name, tensor in state.items() if names[name]}


def ours(name: str, outside: dict[str, str], inside: dict[str, str], kind: type) -> str:
    """Our name for a tensor; an empty one, if it is left out."""
    block = re.fullmatch(r"(encoder\.layer|layers|model\.layers|blk)\.(\d+)\.(.*)", name)
    known, theirs = (inside, block[3]) if block else (outside, name)
    module, dot, ending = theirs.rpartition(".")
    if theirs in known:
        found = known[theirs]
    elif ending in ("weight", "bias") and module in known:
        found = known[module] and known[module] + dot + ending
    else:
        raise ValueError(f"{name} has no counterpart in {kind.__name__}")
    stack = "decoder" if block and block[1] in ("model.layers", "blk") else "encoder"
    return f"{stack}.blocks.{block[2]}.{found}" if block and found else found


def check_has(state: dict[str, Tensor], *names: str) -> None:
    """Each of these names, which are ours."""
    for name in names:
        if name not in state:
            raise ValueError(f"the weights have no counterpart of {name}")


def count_blocks(state: dict[str, Tensor]) -> int:
    """Number of blocks that the names, which are ours, belong to."""
    return len({name.split(".")[2] for name in state if name.startswith("encoder.blocks.")})


def unfilled(kind: Callable[..., _Model], **sizes: Any) -> _Model:
    """A model whose weights are to be replaced: it takes no memory and no random numbers."""
    with torch.device("meta"), _Undrawn():
        return kind(**sizes)


class _Undrawn(TorchFunctionMode):
    """Where nothing is drawn: to draw for ``meta``, PyTorch imports its compiler, for seconds."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is nn.init.normal_:
            return kwargs["tensor"]
        return function(*args, **(kwargs or {}))


def fill(model: _Model, state: dict[str, Tensor]) -> _Model:
    """Make the tensors the parameters of an unfilled model, which is then in evaluation mode."""
    check_has(state, *sorted(model.state_dict()))
    model.load_state_dict(state, assign=True)
    return model.eval()
