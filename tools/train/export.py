"""Writes and reads the model as a Hugging Face directory: sharded bf16 safetensors and its configuration."""

import json
import pathlib

import torch
from safetensors.torch import load_file, save_file

from model import Llama, Shape

SHARD_BYTES = 12 * 2**20


def configuration(shape: Shape) -> dict:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "torch_dtype": "bfloat16",
        "vocab_size": shape.vocabulary, "hidden_size": shape.width, "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.query_heads,
        "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim, "hidden_act": "silu",
        "max_position_embeddings": shape.context, "rope_theta": shape.theta, "rope_scaling": None,
        "rms_norm_eps": shape.eps, "attention_bias": False, "mlp_bias": False, "attention_dropout": 0.0,
        "initializer_range": 0.02, "tie_word_embeddings": True, "use_cache": True,
        "bos_token_id": 0, "eos_token_id": [1, 3], "pad_token_id": 4,
    }


GENERATION = {"bos_token_id": 0, "eos_token_id": [1, 3], "pad_token_id": 4, "do_sample": False}


def save(model: Llama, folder: pathlib.Path):
    """Writes config.json, generation_config.json and the shards with their index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(configuration(model.shape), indent=2) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(GENERATION, indent=2) + "\n")
    shards, size = [{}], 0
    for name, weight in model.state_dict().items():
        weight = weight.detach().to("cpu", torch.bfloat16).contiguous()
        count = weight.numel() * 2
        if size + count > SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1]["model." + name] = weight
        size += count
    index = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        index.update(dict.fromkeys(shard, file))
    total = sum(w.numel() * 2 for shard in shards for w in shard.values())
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=2) + "\n")


def load(folder: pathlib.Path, device) -> dict:
    """The state dict of `Llama`, float32."""
    weights = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights.update(load_file(file))
    return {name.removeprefix("model."): w.float().to(device) for name, w in weights.items()}
