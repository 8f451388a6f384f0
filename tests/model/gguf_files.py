"""Models written as GGUF as llama.cpp's converter does, and as safetensors; small random ones.

Importing it skips the test where packages are missing.
"""
import json
import os
import pathlib
import random
import struct
import sys

try:
    import gguf
    import numpy as np
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

SEED = int(os.environ.get("LC_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
FIXTURES = pathlib.Path(__file__).resolve().parents[1] / "fixtures/models"
Type = gguf.GGMLQuantizationType
# GGUF's names of a layer's tensors by Hugging Face's.
LAYER = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps", "mlp.experts.up_proj": "ffn_up_exps", "mlp.experts.down_proj": "ffn_down_exps",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp", "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp", "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up", "post_self_attn_layernorm": "post_attention_norm",
    "post_mlp_layernorm": "post_ffw_norm", "post_feedforward_layernorm": "post_ffw_norm",
    "mlp.router": "ffn_gate_inp", "self_attn.sinks": "attn_sinks", "post_attention_norm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm", "attention_layernorm": "attn_norm", "feedforward_layernorm": "ffn_norm",
    "self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm", "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
DTYPES = {"F32": (np.float32, Type.F32), "F16": (np.float16, Type.F16), "BF16": (np.uint16, Type.BF16)}


def gguf_name(name):
    if not name.startswith(("model.", "lm_head.")):
        return name
    stem, kind = name.rsplit(".", 1)
    if stem in TOP:
        return f"{TOP[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{LAYER[part]}.{kind}"


def halves_to_neighbours(weight, heads):
    """Rows of W_q or W_k as llama.cpp's converter orders them for Llama, written with loops."""
    d = weight.shape[0] // heads
    out = np.empty_like(weight)
    for head in range(heads):
        for i in range(d // 2):
            out[head * d + 2 * i] = weight[head * d + i]
            out[head * d + 2 * i + 1] = weight[head * d + d // 2 + i]
    return out


def stack_experts(tensors):
    """The tensors with all experts' matrices of a kind in one, as GGUF has them."""
    stacks, mixtral = {}, {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
    for name, (values, kind) in tensors.items():
        name = name.replace("block_sparse_moe", "mlp")
        before, experts, after = name.partition(".experts.")
        if name.endswith("mlp.shared_expert_gate.weight"):
            values = values[0]
        if experts and "." in after and after.split(".")[0].isdigit():
            expert, part, _ = after.split(".")
            stack = stacks.setdefault(f"{before}.experts.{mixtral.get(part, part)}.weight", ({}, kind))
            stack[0][int(expert)] = values
        else:
            stacks[name] = values, Type.F32 if name.endswith("mlp.gate.weight") else kind
    return {name: (np.stack([v for _, v in sorted(values.items())]) if isinstance(values, dict) else values, kind)
            for name, (values, kind) in stacks.items()}


def split_gpt_oss(tensors):
    """The tensors with gate and up apart, and experts' matrices not transposed, as GGUF has them."""
    split = {}
    for name, (values, kind) in tensors.items():
        name = name.replace("post_attention_layernorm", "post_attention_norm")
        before, experts, part = name.partition(".experts.")
        if not experts:
            name += ".weight" if name.endswith("sinks") else ""
            split[name] = values, Type.F32 if "router" in name else kind
            continue
        bias = part.endswith("_bias")
        rows = values if bias else np.ascontiguousarray(values.transpose(0, 2, 1))
        suffix, kind = ("bias", Type.F32) if bias else ("weight", kind)
        if part.startswith("down_proj"):
            split[f"{before}.experts.down_proj.{suffix}"] = rows, kind
            continue
        for i, of in enumerate(("gate_proj", "up_proj")):
            split[f"{before}.experts.{of}.{suffix}"] = np.ascontiguousarray(rows[:, i::2]), kind
    return split


def read_safetensors(path):
    """{name: (f32 values, GGUF's type)}"""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, info in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = info["data_offsets"]
        dtype, kind = DTYPES[info["dtype"]]
        values = np.frombuffer(data[8 + size + begin:8 + size + end], dtype)
        if info["dtype"] == "BF16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        tensors[name] = values.astype(np.float32).reshape(info["shape"]), kind
    return tensors


def write_safetensors(path, tensors, matrices):
    """matrices: their type; vectors are F32."""
    header, chunks, end = {}, [], 0
    for name, values in tensors.items():
        kind = Type.F32 if values.ndim == 1 else matrices
        chunk = gguf.quants.quantize(values, kind).tobytes()
        header[name] = {"dtype": kind.name, "shape": values.shape, "data_offsets": [end, end + len(chunk)]}
        chunks.append(chunk)
        end += len(chunk)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(chunks))


def llama3_factors(scaling, theta, dim):
    """What the frequencies are divided by, as llama.cpp's converter writes it."""
    factors = []
    for frequency in 1 / theta ** (np.arange(0, dim, 2) / dim):
        wavelength = 2 * np.pi / frequency
        original = scaling["original_max_position_embeddings"]
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        if wavelength < original / high:
            factors.append(1)
        elif wavelength > original / low:
            factors.append(scaling["factor"])
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(factors, np.float32)


def write_gguf(path, config, tensors, add=None, **split):
    """Writes {Hugging Face's name: (values, type)}; returns {name: the values after GGUF's rounding}. add: adds metadata
    to the writer."""
    architecture = {"mistral": "llama", "mixtral": "llama", "qwen3_moe": "qwen3moe", "gpt_oss": "gpt-oss",
                    "qwen2_moe": "qwen2moe", "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe",
                    "qwen3_next": "qwen3next", "ministral3": "mistral3", "olmo3": "olmo2", "glm4_moe": "glm4moe",
                    "ernie4_5_moe": "ernie4_5-moe", "minimax_m2": "minimax-m2", "gemma4_text": "gemma4",
                    "cohere": "command-r", "hunyuan_v1_dense": "hunyuan-dense"}.get(
        config["model_type"], config["model_type"])
    if architecture == "gpt-oss":
        tensors = split_gpt_oss(tensors)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope = rope.get("full_attention", rope)
    theta = rope.get("rope_theta") or config["rope_theta"]
    scaling = rope.get("rope_type") or rope.get("type")
    writer = gguf.GGUFWriter(path, architecture, **split)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    if config["intermediate_size"]:
        writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1)))
    writer.add_rope_freq_base(theta)
    if "rms_norm_eps" in config:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    else:
        writer.add_layer_norm_eps(config[next(key for key in ("layer_norm_eps", "norm_eps", "norm_epsilon") if key in config)])
    if experts := config.get("num_local_experts", config.get("num_experts")):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.get("num_experts_per_tok") or config["top_k_experts"])
        if "moe_intermediate_size" in config:
            writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        if "shared_expert_intermediate_size" in config:
            writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
        if architecture == "gpt-oss":
            writer.add_sliding_window(config["sliding_window"])
            writer.add_expert_feed_forward_length(config["intermediate_size"])
        else:
            tensors = stack_experts(tensors)
    if scaling in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(scaling))
        writer.add_rope_scaling_factor(rope["factor"])
    if scaling == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "beta_fast" in rope:
            writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
            writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    if scaling == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(rope, theta, head_dim))
    if add:
        add(writer)
    rounded = {}
    for name, (values, kind) in tensors.items():
        if values.ndim == 1:
            kind = Type.F32
        in_pairs = architecture in ("llama", "mistral3", "smollm3", "granite", "arcee")
        paired = {"self_attn.q_proj": heads, "self_attn.k_proj": kv_heads} if in_pairs else {}
        of = paired.get(".".join(name.split(".")[3:5]), 0)
        order = halves_to_neighbours(np.arange(len(values)), of) if of else np.arange(len(values))
        data = gguf.quants.quantize(values[order], kind)
        writer.add_tensor(gguf_name(name), data, raw_dtype=kind)
        rounded[name] = np.empty_like(values)
        rounded[name][order] = gguf.quants.dequantize(data, kind).reshape(values.shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return rounded


def random_model(chance, kinds, hidden=64, wide=96, spread=0.3):
    """A config, and {name: (values, type)}: types in turn."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": wide,
              "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 40,
              "max_position_embeddings": 256, "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}
    shapes = {"model.embed_tokens.weight": (40, hidden), "model.norm.weight": (hidden,)}
    for layer in range(3):
        prefix = f"model.layers.{layer}."
        shapes |= {f"{prefix}{part}.weight": shape for part, shape in {
            "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,), "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (hidden // 2, hidden), "self_attn.v_proj": (hidden // 2, hidden),
            "self_attn.o_proj": (hidden, hidden), "mlp.gate_proj": (wide, hidden), "mlp.up_proj": (wide, hidden),
            "mlp.down_proj": (hidden, wide)}.items()}
    tensors = {}
    for i, (name, shape) in enumerate(shapes.items()):
        tensors[name] = chance.normal(0, spread, shape).astype(np.float32), kinds[i % len(kinds)]
    return config, tensors


def distance(got, expected):
    return np.linalg.norm(got - expected) / np.linalg.norm(expected)
