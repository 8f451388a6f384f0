"""Writes small random Hugging Face directories with quantized weights, in each format by its published definition, with
loops; and the plain directories that have the same values. And the logits that the program computes of them."""
import json
import struct
import subprocess

import numpy as np

DTYPES = {"F32": np.float32, "F16": np.float16, "I32": np.int32, "I64": np.int64, "I8": np.int8, "F8_E4M3": np.uint8,
          "F8_E5M2": np.uint8, "BF16": np.uint16}
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which of 8 outputs nibble i has
BLOCK_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}


def logits_of(program, directory, model, *options):
    """[tokens, vocabulary]: of 60 tokens, with `litecache logits`; their ids are written into the directory."""
    ids = directory / "ids"
    ids.write_text(" ".join(str(i * 7 % 39) for i in range(60)))
    result = subprocess.run([program, "logits", "--model", model, "--tokens-file", ids, "--positions", "all", "--json",
                             "--threads", "2", "--device", "cpu", *options], text=True, capture_output=True, check=False)
    assert result.returncode == 0, result.stderr
    return np.array(json.loads(result.stdout)["logits"])


def to_bf16(values):
    return (values.astype(np.float32).view(np.uint32) + 0x8000 >> 16).astype(np.uint16)


def of_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def pack_columns(codes, bits):
    """[rows, cols] -> I32 [rows, cols * bits / 32], the first code in the lowest bits, padded with zeros."""
    per_word = 32 // bits
    packed = np.zeros((codes.shape[0], -(-codes.shape[1] // per_word)), np.uint32)
    for col in range(codes.shape[1]):
        packed[:, col // per_word] |= codes[:, col].astype(np.uint32) << np.uint32(bits * (col % per_word))
    return packed.view(np.int32)


def pack_rows(codes, bits):
    return np.ascontiguousarray(pack_columns(np.ascontiguousarray(codes.T), bits).T)


def pack_awq(codes):
    packed = np.zeros((codes.shape[0], codes.shape[1] // 8), np.uint32)
    for word in range(packed.shape[1]):
        for nibble, output in enumerate(AWQ_ORDER):
            packed[:, word] |= codes[:, 8 * word + output].astype(np.uint32) << np.uint32(4 * nibble)
    return packed.view(np.int32)


def fp8_values():
    """What the 256 codes of E4M3 stand for."""
    values = []
    for code in range(256):
        sign, exponent, mantissa = -1 if code >> 7 else 1, code >> 3 & 15, code & 7
        if code & 127 == 127:
            values.append(np.nan)
        elif exponent == 0:
            values.append(sign * mantissa / 8 * 2.0 ** -6)
        else:
            values.append(sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    return np.array(values, np.float32)


def nearest_fp8(values):
    known = fp8_values()
    codes = np.array([code for code in range(256) if not np.isnan(known[code])])
    codes = codes[np.argsort(known[codes], kind="stable")]
    places = np.searchsorted((known[codes][1:] + known[codes][:-1]) / 2, values)
    return codes[places].astype(np.uint8)


class Groups:
    """Scales and zeros of random 4-bit or 8-bit codes [out, in], and what they stand for."""

    def __init__(self, chance, rows, cols, bits, size, symmetric=False, order=False, scale_dtype="F16", lowest_zero=0):
        size = cols if size == -1 else size
        count = -(-cols // size)
        middle = 1 << bits - 1
        self.codes = np.clip(np.rint(chance.normal(middle, middle / 2.5, (rows, cols))), 0, 2 * middle - 1).astype(int)
        self.zeros = np.full((rows, count), middle)
        if not symmetric:
            self.zeros = np.clip(np.rint(chance.normal(middle, middle / 8, (rows, count))), lowest_zero, 2 * middle - 1)
            self.zeros.flat[0] = lowest_zero
        self.zeros = self.zeros.astype(int)
        scales = chance.uniform(0.5, 1.5, (rows, count)) * 0.2 / middle
        self.scale_dtype = scale_dtype
        if scale_dtype == "BF16":
            self.stored = to_bf16(scales)
            self.scales = of_bf16(self.stored)
        else:
            self.stored = scales.astype(DTYPES[scale_dtype])
            self.scales = self.stored.astype(np.float32)
        self.group_of = np.arange(cols) // size
        if order:
            chance.shuffle(self.group_of)
        self.values = np.empty((rows, cols), np.float32)
        for col in range(cols):
            group = self.group_of[col]
            self.values[:, col] = (self.codes[:, col] - self.zeros[:, group]).astype(np.float32) * self.scales[:, group]


# Each writer returns ({name after the module's: (dtype, array)}, f32 values).


def write_gptq(chance, rows, cols, bits=4, size=128, symmetric=False, order=False, v2=False, g_idx=True, scales="F16"):
    groups = Groups(chance, rows, cols, bits, size, symmetric, order, scales)
    zeros = groups.zeros if v2 else (groups.zeros - 1) % (1 << bits)
    tensors = {"qweight": ("I32", pack_rows(groups.codes.T, bits)), "qzeros": ("I32", pack_columns(zeros.T, bits)),
               "scales": (scales, np.ascontiguousarray(groups.stored.T))}
    if g_idx:
        tensors["g_idx"] = "I32", groups.group_of.astype(np.int32)
    return tensors, groups.values


def write_awq(chance, rows, cols, size=128):
    groups = Groups(chance, rows, cols, 4, size)
    return {"qweight": ("I32", pack_awq(groups.codes.T)), "qzeros": ("I32", pack_awq(groups.zeros.T)),
            "scales": ("F16", np.ascontiguousarray(groups.stored.T))}, groups.values


def write_packed(chance, rows, cols, bits=4, size=128, symmetric=True, order=False, scales="BF16"):
    groups = Groups(chance, rows, cols, bits, size, symmetric, order, scales)
    tensors = {"weight_packed": ("I32", pack_columns(groups.codes, bits)), "weight_scale": (scales, groups.stored),
               "weight_shape": ("I64", np.array([rows, cols]))}
    if not symmetric:
        tensors["weight_zero_point"] = "I32", pack_rows(groups.zeros, bits)
    if order:
        tensors["weight_g_idx"] = "I32", groups.group_of.astype(np.int32)
    return tensors, groups.values


def write_int8(chance, rows, cols, size=-1, scales="BF16", bits=8, symmetric=True):
    groups = Groups(chance, rows, cols, bits, size, symmetric, scale_dtype=scales)
    middle = 1 << bits - 1
    tensors = {"weight": ("I8", (groups.codes - middle).astype(np.int8)), "weight_scale": (scales, groups.stored)}
    if not symmetric:
        tensors["weight_zero_point"] = "I8", (groups.zeros - middle).astype(np.int8)
    return tensors, groups.values


def write_fp8(chance, rows, cols, block=None, per_row=False, scales="F32", scalar=False, as_blocks=False,
              named=None):
    """named: the tensor of scales. as_blocks: the scale of the whole matrix is named as those of blocks, and has no dimension."""
    block_rows, block_cols = block or (1 if per_row else rows, cols)
    stored = chance.uniform(0.0005, 0.0015, (-(-rows // block_rows), -(-cols // block_cols))).astype(np.float32)
    if scales == "BF16":
        stored = to_bf16(stored)
    factors = of_bf16(stored) if scales == "BF16" else stored
    factors = np.repeat(np.repeat(factors, block_rows, 0)[:rows], block_cols, 1)[:, :cols]
    codes = nearest_fp8(chance.normal(0, 100, (rows, cols)))
    tensors = {"weight": ("F8_E4M3", codes), "input_scale": ("F32", np.ones(1, np.float32)),
               named or ("weight_scale_inv" if block else "weight_scale"): (scales, stored.reshape(-1)[0:1] if scalar else stored)}
    if as_blocks:
        del tensors["input_scale"], tensors["weight_scale"]
        tensors |= {"weight_scale_inv": (scales, stored[0, 0]), "activation_scale": ("F32", np.float32(0.5))}
    return tensors, fp8_values()[codes] * factors


def gptq(**changes):
    return {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": False, "desc_act": False} | changes


def awq(**changes):
    return {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"} | changes


def fp8(**changes):
    return {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]} | changes


def compressed(form, strategy, bits=4, top=None, **changes):
    weights = {"num_bits": bits, "type": "float" if form == "float-quantized" else "int", "symmetric": True,
               "strategy": strategy, "group_size": None, "actorder": None, "dynamic": False} | changes
    return {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
            "kv_cache_scheme": None, "ignore": ["lm_head"]} | (top or {})


def blocks(name):
    return lambda cols: name if cols % 32 == 0 else None


# {name: (quantization_config, writer, its arguments, hidden size, feed-forward size, a matrix's blocks by its columns)}
MODELS = {
    "fp8 blocks": (fp8(), write_fp8, {"block": (128, 128)}, 136, 224, blocks("Q8_0")),
    "fp8 blocks, bf16 scales": (fp8(weight_block_size=[64, 96]), write_fp8, {"block": (64, 96), "scales": "BF16"}, 128, 203,
                                blocks("Q8_0")),
    "fp8 per tensor": (fp8(weight_block_size=None, activation_scheme="static"), write_fp8, {"scalar": True}, 128, 160,
                       blocks("Q8_0")),
    "fp8 per tensor, named as of blocks": (fp8(weight_block_size=None, activation_scheme="static"), write_fp8,
                                           {"as_blocks": True}, 128, 160, blocks("Q8_0")),
    "float-quantized per channel": (compressed("float-quantized", "channel", 8), write_fp8,
                                    {"per_row": True, "scales": "BF16"}, 128, 203, blocks("Q8_0")),
    "float-quantized per tensor": (compressed("float-quantized", "tensor", 8, top={
        "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor"}}), write_fp8, {"scalar": True}, 128, 160,
                                   blocks("Q8_0")),
    "awq 128": (awq(), write_awq, {"size": 128}, 128, 256, blocks("Q4_1")),
    "awq 32": (awq(group_size=32, version="GEMM"), write_awq, {"size": 32}, 160, 224, blocks("Q4_1")),
    "gptq": (gptq(), write_gptq, {}, 128, 256, blocks("Q4_1")),
    "gptq v2, symmetric": (gptq(sym=True, checkpoint_format="gptq_v2", group_size=64), write_gptq,
                           {"symmetric": True, "v2": True, "size": 64}, 128, 224, blocks("Q4_0")),
    "gptq, symmetric, without g_idx": (gptq(sym=True, checkpoint_format="gptq", group_size=32), write_gptq,
                                       {"symmetric": True, "size": 32, "g_idx": False}, 160, 200, blocks("Q4_0")),
    "gptq per channel": (gptq(group_size=-1, desc_act=True), write_gptq, {"size": -1, "scales": "BF16"}, 128, 160,
                         blocks("Q4_1")),
    "gptq act-order": (gptq(desc_act=True, group_size=64), write_gptq, {"order": True, "size": 64}, 128, 192,
                       blocks("Q8_0")),
    "gptq groups of 16": (gptq(group_size=16), write_gptq, {"size": 16}, 128, 160, blocks("Q8_0")),
    "gptq 8 bits": (gptq(bits=8, group_size=32, sym=True), write_gptq, {"bits": 8, "symmetric": True, "size": 32}, 128, 164,
                    blocks("Q8_0")),
    "gptq 8 bits, act-order": (gptq(bits=8, desc_act=True), write_gptq, {"bits": 8, "order": True}, 128, 256,
                               blocks("Q8_0")),
    "pack-quantized": (compressed("pack-quantized", "group", group_size=128), write_packed, {}, 128, 256, blocks("Q4_0")),
    "pack-quantized, zero points": (compressed("pack-quantized", "group", group_size=32, symmetric=False), write_packed,
                                    {"size": 32, "symmetric": False, "scales": "F16"}, 128, 160, blocks("Q4_1")),
    "pack-quantized per channel": (compressed("pack-quantized", "channel", symmetric=False), write_packed,
                                   {"size": -1, "symmetric": False}, 136, 203, blocks("Q4_1")),
    "pack-quantized act-order": (compressed("pack-quantized", "group", group_size=64, actorder="group"), write_packed,
                                 {"size": 64, "order": True}, 128, 192, blocks("Q8_0")),
    "pack-quantized, static order": (compressed("pack-quantized", "group", group_size=64, actorder="static"), write_packed,
                                     {"size": 64, "scales": "F32"}, 128, 192, blocks("Q4_0")),
    "pack-quantized 8 bits": (compressed("pack-quantized", "group", 8, group_size=128), write_packed, {"bits": 8}, 128, 256,
                              blocks("Q8_0")),
    "int-quantized": (compressed("int-quantized", "channel", 8), write_int8, {}, 128, 203, blocks("Q8_0")),
    "int-quantized, zero points": (compressed("int-quantized", "channel", 8, symmetric=False), write_int8,
                                   {"symmetric": False}, 128, 203, blocks("Q8_0")),
    "int-quantized, 4 bits": (compressed("int-quantized", "channel", 4), write_int8, {"bits": 4}, 128, 160, blocks("Q8_0")),
    "naive-quantized": (compressed("naive-quantized", "group", 8, group_size=32), write_int8, {"size": 32}, 128, 160,
                        blocks("Q8_0")),
    "naive-quantized, FP8 in blocks": (compressed("naive-quantized", "block", 8, type="float", block_structure=[64, 96]),
                                       write_fp8, {"block": (64, 96), "named": "weight_scale"}, 128, 203, blocks("Q8_0")),
    "int-quantized in groups": (compressed("int-quantized", "group", 8, group_size=32), write_int8, {"size": 32}, 128, 160,
                                blocks("Q8_0")),
}


def write_safetensors(path, tensors):
    """{name: (dtype, array)}"""
    header, chunks, end = {}, [], 0
    for name, (dtype, values) in tensors.items():
        chunk = np.ascontiguousarray(values).astype(DTYPES[dtype]).tobytes()
        header[name] = {"dtype": dtype, "shape": values.shape, "data_offsets": [end, end + len(chunk)]}
        chunks.append(chunk)
        end += len(chunk)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(chunks))


class Model:
    """A random model: tensors quantized by `writer`, and their values. The matrix that config lists name is plain."""

    layers, vocab, plain = 2, 41, "model.layers.1.self_attn.o_proj"

    def __init__(self, chance, quantization, writer, arguments, hidden, wide, _=None):
        self.config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden,
                       "intermediate_size": wide, "num_hidden_layers": self.layers, "num_attention_heads": 4,
                       "num_key_value_heads": 2, "vocab_size": self.vocab, "max_position_embeddings": 256,
                       "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "torch_dtype": "float16",
                       "quantization_config": quantization}
        self.tensors, self.values = {}, {}
        half = hidden // 2
        self.add_plain(chance, "model.embed_tokens", (self.vocab, hidden))
        self.add_plain(chance, "lm_head", (self.vocab, hidden))
        self.add_plain(chance, "model.norm", (hidden,))
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}."
            self.add_plain(chance, prefix + "input_layernorm", (hidden,))
            self.add_plain(chance, prefix + "post_attention_layernorm", (hidden,))
            for part, rows, cols in (("self_attn.q_proj", hidden, hidden), ("self_attn.k_proj", half, hidden),
                                     ("self_attn.v_proj", half, hidden), ("self_attn.o_proj", hidden, hidden),
                                     ("mlp.gate_proj", wide, hidden), ("mlp.up_proj", wide, hidden),
                                     ("mlp.down_proj", hidden, wide)):
                if prefix + part == self.plain:
                    self.add_plain(chance, prefix + part, (rows, cols))
                    continue
                tensors, values = writer(chance, rows, cols, **arguments)
                self.tensors |= {f"{prefix}{part}.{name}": tensor for name, tensor in tensors.items()}
                self.values[f"{prefix}{part}.weight"] = values

    def add_plain(self, chance, name, shape):
        # Exact in bf16 as in f16.
        values = chance.normal(0.3 if len(shape) == 1 else 0, 0.1, shape)
        values = of_bf16(to_bf16(values)).astype(np.float16)
        self.tensors[name + ".weight"] = "F16", values
        self.values[name + ".weight"] = values.astype(np.float32)

    def write(self, directory):
        directory.mkdir(exist_ok=True)
        (directory / "config.json").write_text(json.dumps(self.config))
        write_safetensors(directory / "model.safetensors", self.tensors)
        return directory

    def write_plain(self, directory):
        directory.mkdir(exist_ok=True)
        config = {key: value for key, value in self.config.items() if key != "quantization_config"}
        (directory / "config.json").write_text(json.dumps(config | {"torch_dtype": "float32"}))
        write_safetensors(directory / "model.safetensors", {name: ("F32", v) for name, v in self.values.items()})
        return directory

    def bytes_in_memory(self, blocks_of):
        """Of all matrices in their blocks, else in bf16, and of vectors in f32."""
        total = 0
        for name, values in self.values.items():
            kind = blocks_of(values.shape[-1])
            if values.ndim == 1:
                total += 4 * values.size
            elif name in self.tensors and self.tensors[name][0] == "F16" or kind is None:
                total += 2 * values.size
            else:
                total += values.size // 32 * BLOCK_BYTES[kind]
        return total
