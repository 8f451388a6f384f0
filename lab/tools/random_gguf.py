#!/usr/bin/env python3
"""Writes a GGUF file of a Llama's shape with random weights and no tokenizer, to compare the speed of programs.

    lab/tools/random_gguf.py Q4_K_M model.gguf [--shape llama3.2-1b]
    llama-bench -m model.gguf -p 0 -n 32 -d 8192
    litecache bench --model model.gguf --context 8192 --only decode

Types: Q8_0, and Q4_K_M with the mixture that llama.cpp's quantizer chooses: Q6_K for the output, and for half of the
layers' v_proj and down_proj; the rest Q4_K. Shapes: Llama 3.1 8B's, and Llama 3.2 1B's, whose output matrix is that of
the embeddings. Needs the packages gguf and numpy.
"""

import argparse

import gguf
import numpy as np

# Layers, hidden size, feed-forward size, size of a head, tied embeddings.
SHAPES = {"llama3.1-8b": (32, 4096, 14336, 128, False), "llama3.2-1b": (16, 2048, 8192, 64, True)}
HEADS, KV_HEADS, VOCAB = 32, 8, 128256
BLOCKS = 4096  # different ones; matrices repeat them


def blocks(kind, random):
    """Random blocks of a type, whose scales give weights of about 0.02."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    data = random.integers(0, 256, (BLOCKS, size), dtype=np.uint8)

    def scale(first, value):
        data[:, first:first + 2] = np.full(BLOCKS, value, np.float16).view(np.uint8).reshape(BLOCKS, 2)

    if kind == gguf.GGMLQuantizationType.Q8_0:
        scale(0, 0.02 / 74)
    elif kind == gguf.GGMLQuantizationType.Q4_K:  # d * scale * q - dmin * min
        scale(0, 0.02 / 150)
        scale(2, 0.02 / 20)
    elif kind == gguf.GGMLQuantizationType.Q6_K:
        scale(size - 2, 0.02 / 1400)
    else:
        raise ValueError(kind)
    return data


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("type", choices=["Q8_0", "Q4_K_M"])
    parser.add_argument("file")
    parser.add_argument("--shape", choices=list(SHAPES), default="llama3.1-8b")
    options = parser.parse_args()
    layers, hidden, feed_forward, head_dim, tied = SHAPES[options.shape]
    mixed = options.type == "Q4_K_M"
    base = gguf.GGMLQuantizationType.Q4_K if mixed else gguf.GGMLQuantizationType.Q8_0
    better = gguf.GGMLQuantizationType.Q6_K if mixed else base
    random = np.random.default_rng(1)
    made = {kind: blocks(kind, random) for kind in {base, better}}

    writer = gguf.GGUFWriter(options.file, "llama")
    writer.add_name(f"random {options.shape} {options.type}")
    writer.add_block_count(layers)
    writer.add_context_length(131072)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(feed_forward)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(500000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("no_vocab")

    def matrix(name, rows, cols, kind=base):
        values, size = gguf.GGML_QUANT_SIZES[kind]
        count = rows * cols // values
        data = np.resize(made[kind], (count, size)).reshape(rows, cols // values * size)
        writer.add_tensor(name, data, raw_dtype=kind)

    def norm(name):
        writer.add_tensor(name, np.ones(hidden, np.float32))

    matrix("token_embd.weight", VOCAB, hidden, better if tied else base)
    if not tied:
        matrix("output.weight", VOCAB, hidden, better)
    norm("output_norm.weight")
    for layer in range(layers):
        more = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
        important = better if more else base
        prefix = f"blk.{layer}."
        norm(prefix + "attn_norm.weight")
        norm(prefix + "ffn_norm.weight")
        matrix(prefix + "attn_q.weight", HEADS * head_dim, hidden)
        matrix(prefix + "attn_k.weight", KV_HEADS * head_dim, hidden)
        matrix(prefix + "attn_v.weight", KV_HEADS * head_dim, hidden, important)
        matrix(prefix + "attn_output.weight", hidden, HEADS * head_dim)
        matrix(prefix + "ffn_gate.weight", feed_forward, hidden)
        matrix(prefix + "ffn_up.weight", feed_forward, hidden)
        matrix(prefix + "ffn_down.weight", hidden, feed_forward, important)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
