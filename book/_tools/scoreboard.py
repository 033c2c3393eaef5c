"""Audit every causal type of transformers: ``python book/_tools/scoreboard.py``.

Each type of ``MODEL_FOR_CAUSAL_LM_MAPPING`` is built from its own configuration with the sizes
below: two layers, or one of each kind that the configuration names, random weights of one seed,
and matrices times 4, so that differences show. What ``attn_check.audit`` says of it goes to
``attn_lib/data/scoreboard.json``, or the reason why it could not be judged. Each type has a
process of its own, which ends where it takes too long. ``--check`` writes nothing and says where
today's verdicts are others; names of types, as ``llama gpt2``, are for these alone.
"""

import argparse
import json
import multiprocessing
import resource
import sys
import textwrap
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

import torch
import transformers
from record import DATA, checksums
from transformers import CONFIG_MAPPING, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

from attn_check import Audit, audit
from attn_check.called import RefusedError
from attn_check.runs import BREAKS, MEASURED, REFUSES
from attn_check.subject import quoted

RECORD = DATA / "scoreboard.json"
SECONDS = 60  # of a processor, for one type
SCALE, MOST = 4.0, 8_000_000  # what matrices are multiplied by; weights of a model that is tiny
# from a size to the names that configurations have for it
SIZES: dict[Any, str] = {
    64: "vocab_size max_position_embeddings n_positions n_ctx max_seq_len context_length "
    "max_target_positions vocab_size_per_layer_input decoder_vocab_size index_topk rel_extent "
    "unpadded_vocab_size image_size codebook_size mamba_d_ssm pronunciation_vocab_size "
    "shape_vocab_size encoder_hash_byte_group_vocab",
    48: "intermediate_size ffn_dim decoder_ffn_dim encoder_ffn_dim n_inner dim_ff dff mlp_dim "
    "ffn_hidden_size dense_intermediate_size",
    32: "hidden_size d_model n_embd embedding_size word_embed_proj_dim emb_dim base_channels "
    "output_channels vision_output_dim projector_input_dim projector_output_dim mm_embed_dim "
    "output_proj_dims audio_embed_dim ple_embed_dim",
    16: "moe_intermediate_size shared_expert_intermediate_size expert_ffn_hidden_size "
    "kv_lora_rank q_lora_rank o_lora_rank pronunciation_embed_dim shape_embed_dim",
    8: "head_dim v_head_dim qk_nope_head_dim qk_rope_head_dim rotary_dim index_head_dim "
    "linear_head_dim linear_key_head_dim linear_value_head_dim swa_head_dim mamba_n_heads "
    "mamba_num_heads mamba_head_dim sliding_window sliding_window_size attention_window_size "
    "window_size local_attention attention_chunk_size",
    4: "num_attention_heads n_head n_heads num_heads decoder_attention_heads "
    "encoder_attention_heads linear_num_heads linear_num_value_heads swa_num_attention_heads "
    "index_n_heads num_experts n_routed_experts num_local_experts zero_expert_num",
    2: "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers "
    "num_key_value_heads linear_num_key_heads swa_num_key_value_heads num_experts_per_tok "
    "moe_topk eos_token_id",
    1: "bos_token_id n_group topk_group first_k_dense_replace",
    0: "pad_token_id",
}
# what some types need beside these
FULL, SLIDING = "full_attention", "sliding_attention"
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
INDEXER = {"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 8}
INDEXER |= {"indexer_budget": 32, "indexer_compress_ratio": 4}
OTHERS: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "cohere_compass": {"rope_parameters": {FULL: ROPE, SLIDING: ROPE}},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}},
    "dots1": {"n_shared_experts": 1},
    "dots3_note": {"per_layer_config": {}, "head_dim": 16},
    "gemma3n": {"num_kv_shared_layers": 0},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", FULL]},
    "lfm2_moe": {"layer_types": ["conv", FULL]},
    "minimax_m3_vl": {"layer_types": ["minimax_m3_sparse", FULL]},
    "mamba2": {"num_heads": 8},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "qwen4_exp": INDEXER,
    "reformer": {"axial_pos_shape": [8, 8], "axial_pos_embds_dim": [16, 16]},
    "xlstm": {"hidden_size": 128},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zaya": {"num_experts_per_tok": 1},
}


def tiny(kind: type[PretrainedConfig], **others: Any) -> PretrainedConfig:
    """A configuration with small sizes, and a layer of each kind."""
    usual, own = kind(), {f.name for f in fields(kind)}
    sizes = {name: size for size, names in SIZES.items() for name in names.split() if name in own}
    for part in usual.sub_configs:
        if isinstance(inner := getattr(usual, part, None), PretrainedConfig):
            sizes[part] = tiny(type(inner))
    if "is_decoder" in own:
        sizes["is_decoder"] = True
    if "kv_lora_rank" in own:  # each query head has a key head, made from a small vector
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    for name in own & {"layer_types", "layers_block_type"}:
        kinds = list(dict.fromkeys(getattr(usual, name) or ()))
        depth = max(2, len(kinds))
        sizes |= {"num_hidden_layers": depth, name: (kinds * 2)[:depth] or None}
    return kind(**{**sizes, **others})


def built(name: str) -> PreTrainedModel:
    """A tiny model of a type, in evaluation mode."""
    kind, config = getattr(transformers, CLASSES[name]), CONFIG_MAPPING[name]
    if kind.config_class in {type(getattr(config(), part, None)) for part in config.sub_configs}:
        config = kind.config_class  # of a model's part that reads text
    config = tiny(config, **OTHERS.get(name.removesuffix("_text"), {}))
    with torch.device("meta"):
        weights = sum(p.numel() for p in kind(config).parameters())
    if weights > MOST:
        raise ValueError(f"not tiny: {weights} weights")
    torch.manual_seed(0)
    model = kind(config).eval()
    with torch.no_grad():
        for weight in (p for p in model.parameters() if p.dim() > 1):
            weight.mul_(SCALE)
    return model


def cells(report: Audit) -> dict[str, Any]:
    """For each way of calling, the verdict or how far it is off; and, of what refuses, the words.

    How far: in standard deviations of the logits; the share of the argmaxes that flip; whether
    other tokens beside it, which it may not see, were tried and moved it (None: not tried).
    """
    found: dict[str, Any] = {"limit": float(f"{report.limit:.1g}"), "cells": {}, "words": {}}
    for f in report.findings:
        found["cells"][f.title] = f.verdict
        if f.verdict in (BREAKS, MEASURED):
            size, flips = (float(f"{x:.2g}") for x in (f.size, f.flips))
            seen = {"they are seen.": True, "are not seen.": False}
            tried = [value for words, value in seen.items() if f.text.endswith(words)]
            found["cells"][f.title] = [size, flips, *(tried or [None])]
        elif f.verdict == REFUSES:
            found["words"][f.title] = shortened(f.text)
    return found


def judged(name: str) -> dict[str, Any]:
    """What an audit says of a type, or in a sentence why it says nothing."""
    try:
        model = built(name)
    except Exception as error:  # whatever its code raises
        return {"reason": shortened(f"building it raises {type(error).__name__}: {error}")}
    try:
        return cells(audit(model))
    except Exception as error:
        said = str(error) if isinstance(error, RefusedError) else quoted(error)
        return {"reason": shortened(said)}


def shortened(text: str) -> str:
    """In one line, with the words that fit."""
    return textwrap.shorten(text, 240, placeholder=" …")


def in_time(name: str) -> dict[str, Any]:
    """The same, in a process of its own."""

    def send() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        there.send(judged(name))

    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=send)
    process.start()
    there.close()
    try:
        found = here.recv() if here.poll(20 * SECONDS) else {}
    except EOFError:
        found = {}
    process.kill()
    process.join()
    return found or {"reason": f"takes more than {SECONDS} s of a processor"}


def record(names: list[str]) -> dict[str, Any]:
    """What is found of these types, with the versions that found it."""
    found = {}
    for n, name in enumerate(names, start=1):
        found[name] = in_time(name)
        print(f"{n} of {len(names)}: {name} {found[name].get('reason', '')}", flush=True)
    ways = dict.fromkeys(way for row in found.values() for way in row.get("cells", ()))
    for row in (row for row in found.values() if "cells" in row):  # a list is shorter
        row["cells"] = [row["cells"].get(way) for way in ways]
    return {
        "command": "python book/_tools/scoreboard.py",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "transformers": transformers.__version__,
        "torch": torch.__version__.split("+")[0],
        "ways": [*ways],
        "types": found,
    }


def named(board: dict[str, Any], name: str) -> dict[str, Any]:
    """A recorded row with its cells by way of calling."""
    row = board["types"].get(name, {"reason": "no such type"})
    pairs = zip(board["ways"], row.get("cells", ()), strict=False)
    return {**row, "cells": {way: cell for way, cell in pairs if cell is not None}}


def differences(board: dict[str, Any], name: str, now: dict[str, Any]) -> list[str]:
    """Where a type's row is not as recorded: sentences."""
    old = named(board, name)
    if ("reason" in old) != ("reason" in now):
        return [
            f"{name}: {now.get('reason', 'is judged')}; recorded: {old.get('reason', 'judged')}"
        ]
    found = []
    for way in {**old["cells"], **now.get("cells", {})}:
        one, other = old["cells"].get(way), now["cells"].get(way)
        if not alike(one, other, now["limit"], way.startswith(("kernel", "dtype"))):
            found.append(f"{name}, {way}: {other}; recorded: {one}")
    return found


def alike(one: Any, other: Any, limit: float, rounding: bool) -> bool:
    """Whether two cells say the same: of what is rounding alone, that it was measured."""
    if not (isinstance(one, list) and isinstance(other, list)) or rounding:
        return type(one) is type(other) and (rounding or one == other)
    near = abs(one[0] - other[0]) <= 0.051 * max(one[0], other[0]) + limit  # two digits are kept
    return near and one[2] == other[2]


def main(words: list[str] | None = None) -> int:
    """Write the record, or say where it is not what is found today."""
    parser = argparse.ArgumentParser("python book/_tools/scoreboard.py", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", help="types, as llama; default: all")
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    given = parser.parse_args(words)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    board = record(given.names or sorted(CLASSES))
    if not given.check:
        write(board)
        return 0
    stored = json.loads(RECORD.read_text())
    names = given.names or {**stored["types"], **board["types"]}
    found = [text for name in names for text in differences(stored, name, named(board, name))]
    print("\n".join(found or ["as recorded"]))
    return int(bool(found))


def write(board: dict[str, Any]) -> None:
    """Store a record, one type a line."""
    lines = [f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in board["types"].items()]
    head = [f" {json.dumps(k)}: {json.dumps(v)}" for k, v in board.items() if k != "types"]
    types = ' "types": {\n' + ",\n".join(lines) + "\n }"
    RECORD.write_text("{\n" + ",\n".join([*head, types]) + "\n}\n")
    checksums(DATA)


if __name__ == "__main__":
    sys.exit(main())
