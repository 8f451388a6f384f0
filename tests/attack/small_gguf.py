"""A small valid GGUF model: one layer of Llama in Q8_0, a byte-level tokenizer and a chat template."""

import random
import struct

U32, F32, TEXT, ARRAY, I32 = 4, 6, 8, 9, 5
TYPE_F32, TYPE_Q8_0 = 0, 8
HIDDEN, INNER, HEADS, KV_HEADS = 64, 96, 4, 2
TOKENS = ["<unk>", "<s>", "</s>", "a", "b", "ab", "Ġ", "Ġb"]
SHAPES = {  # rows and columns; one number: a vector
    "token_embd": (len(TOKENS), HIDDEN), "output_norm": (HIDDEN,),
    "blk.0.attn_norm": (HIDDEN,), "blk.0.ffn_norm": (HIDDEN,),
    "blk.0.attn_q": (HIDDEN, HIDDEN), "blk.0.attn_k": (HIDDEN // 2, HIDDEN), "blk.0.attn_v": (HIDDEN // 2, HIDDEN),
    "blk.0.attn_output": (HIDDEN, HIDDEN),
    "blk.0.ffn_gate": (INNER, HIDDEN), "blk.0.ffn_up": (INNER, HIDDEN), "blk.0.ffn_down": (HIDDEN, INNER),
}


def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def metadata(template):
    """(key, type, bytes of the value)"""
    def texts(values):
        return struct.pack("<IQ", TEXT, len(values)) + b"".join(map(text, values))

    def integers(values):
        return struct.pack(f"<IQ{len(values)}i", I32, len(values), *values)

    numbers = {"llama.context_length": 512, "llama.embedding_length": HIDDEN, "llama.feed_forward_length": INNER,
               "llama.block_count": 1, "llama.attention.head_count": HEADS, "llama.attention.head_count_kv": KV_HEADS,
               "llama.rope.dimension_count": HIDDEN // HEADS, "tokenizer.ggml.bos_token_id": 1,
               "tokenizer.ggml.eos_token_id": 2}
    return [("general.architecture", TEXT, text("llama")),
            *((key, U32, struct.pack("<I", value)) for key, value in numbers.items()),
            ("llama.attention.layer_norm_rms_epsilon", F32, struct.pack("<f", 1e-5)),
            ("llama.rope.freq_base", F32, struct.pack("<f", 1e4)),
            ("tokenizer.ggml.model", TEXT, text("gpt2")),
            ("tokenizer.ggml.pre", TEXT, text("smollm")),
            ("tokenizer.ggml.tokens", ARRAY, texts(TOKENS)),
            ("tokenizer.ggml.token_type", ARRAY, integers([2, 3, 3, 1, 1, 1, 1, 1])),
            ("tokenizer.ggml.merges", ARRAY, texts(["a b", "Ġ b"])),
            ("tokenizer.chat_template", TEXT, text(template))]


def build(template):
    """The file's bytes."""
    chance = random.Random(1)
    table, data = b"", b""
    for name, shape in SHAPES.items():
        table += text(f"{name}.weight") + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        table += struct.pack("<IQ", TYPE_F32 if len(shape) == 1 else TYPE_Q8_0, len(data))
        if len(shape) == 1:
            data += struct.pack(f"<{shape[0]}f", *[1.0] * shape[0])
        else:
            # Blocks of a scale of 2^-8 and 32 integers.
            data += b"".join(b"\x00\x1c" + chance.randbytes(32) for _ in range(shape[0] * shape[1] // 32))
        data += bytes(-len(data) % 32)
    pairs = metadata(template)
    front = b"GGUF" + struct.pack("<IQQ", 3, len(SHAPES), len(pairs))
    front += b"".join(text(key) + struct.pack("<I", kind) + value for key, kind, value in pairs) + table
    return front + bytes(-len(front) % 32) + data
