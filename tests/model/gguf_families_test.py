"""GGUF files of architectures with fused matrices, other norms, scales, windows or factors of RoPE give the results of the
directories that have the same weights.

    gguf_families_test.py LITECACHE

The models are those of tests/fixtures/models, as llama.cpp's converter writes them.
"""
import json
import math

# Skips the test where packages are missing.
from gguf_files import FIXTURES, Type, distance, read_safetensors, write_gguf
import numpy as np
from program_logits import ProgramLogitsTest, main


def metadata(config, writer):
    """What write_gguf() does not know."""
    kind = config["model_type"]
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if kind == "phi3":
        original = config["original_max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_sliding_window(config["sliding_window"] or 0)
        if "long_factor" in rope:
            ratio = config["max_position_embeddings"] / original
            factor = math.sqrt(1 + math.log(ratio) / math.log(original))
            writer.add_rope_scaling_attn_factors(rope.get("attention_factor", factor))
            for name in ("long", "short"):
                writer.add_tensor(f"rope_factors_{name}.weight", np.array(rope[f"{name}_factor"], np.float32))
    elif kind == "olmo3":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern([layer == "sliding_attention" for layer in config["layer_types"]])
        writer.add_rope_scaling_yarn_attn_factor(0.1 * math.log(rope["full_attention"]["factor"]) + 1)
    elif kind == "ministral3":
        writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    elif kind == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
        writer.add_sliding_window(config["sliding_window"])
    elif kind == "granite":
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    elif kind.startswith("cohere"):
        writer.add_logit_scale(config["logit_scale"])
        if kind == "cohere2":
            writer.add_sliding_window(config["sliding_window"])
    elif kind.startswith("starcoder2") and config["sliding_window"]:
        writer.add_sliding_window(config["sliding_window"])


def to_gguf(config, tensors):
    kind = config["model_type"]
    if kind == "nemotron":
        return {name: (values + 1 if name.endswith("norm.weight") else values, dtype)
                for name, (values, dtype) in tensors.items()}
    if kind == "gemma2":  # files have what norms multiply with
        tensors = {name: (values + 1 if "norm" in name else values, dtype) for name, (values, dtype) in tensors.items()}
    elif not kind.startswith("olmo"):
        return tensors
    return {name.replace("post_attention_layernorm", "post_attention_norm"): tensor for name, tensor in tensors.items()}


class GgufFamiliesTest(ProgramLogitsTest):
    tokens = 300

    def fixture(self, name):
        return (json.loads((FIXTURES / name / "config.json").read_text()),
                read_safetensors(FIXTURES / name / "model.safetensors"))

    def write(self, config, tensors):
        path = self.directory / "model.gguf"
        write_gguf(path, config, to_gguf(config, tensors), add=lambda writer: metadata(config, writer))
        return path

    def test_fixtures(self):
        for name in ("phi3", "phi3-longrope", "phi3-longrope-short", "olmo2", "olmo3", "glm4", "ministral3", "granite"):
            with self.subTest(model=name):
                expected, got = self.logits(FIXTURES / name), self.logits(self.write(*self.fixture(name)))
                if name in ("granite", "olmo3"):  # scales are rounded to f32
                    self.assertLess(distance(got, expected), 5e-3)
                else:
                    np.testing.assert_array_equal(got, expected)

    def test_the_context_chooses_the_factors_of_longrope(self):
        """As of the directory, whose original context is 200 tokens."""
        path, directory = self.write(*self.fixture("phi3-longrope")), FIXTURES / "phi3-longrope"
        within = self.logits(path, "--max-context", "200", tokens=150)
        np.testing.assert_array_equal(within, self.logits(directory, "--max-context", "200", tokens=150))
        beyond = self.logits(path, "--max-context", "201", tokens=150)
        np.testing.assert_array_equal(beyond, self.logits(directory, tokens=150))
        self.assertGreater(distance(within, beyond), 0.1)

    def directory_with(self, name, config):
        """A fixture's weights with another config."""
        plain = self.directory / "plain"
        plain.mkdir()
        (plain / "model.safetensors").symlink_to(FIXTURES / name / "model.safetensors")
        (plain / "config.json").write_text(json.dumps(config))
        return plain

    def test_smollm3(self):
        """Files do not say which layers have no RoPE: every fourth."""
        config, tensors = self.fixture("smollm3-window")
        config |= {"no_rope_layers": [1, 1, 1, 0], "use_sliding_window": False, "layer_types": ["full_attention"] * 4}
        plain = self.directory_with("smollm3-window", config)
        np.testing.assert_array_equal(self.logits(self.write(config, tensors)), self.logits(plain))

    def test_gemma2(self):
        """Files do not say what scores are scaled by: the heads' dimension, in all models but the largest."""
        config, tensors = self.fixture("gemma2")
        plain = self.directory_with("gemma2", config | {"query_pre_attn_scalar": config["head_dim"]})
        # What norms multiply with is rounded to f32.
        self.assertLess(distance(self.logits(self.write(config, tensors)), self.logits(plain)), 5e-3)

    def test_feed_forward_blocks_without_a_gate(self):
        for name in ("arcee", "nemotron", "starcoder2", "starcoder2-window"):
            with self.subTest(model=name):
                expected, got = self.logits(FIXTURES / name), self.logits(self.write(*self.fixture(name)))
                if name == "nemotron":  # 1 is added to the norms' weights, in f32 as here
                    self.assertLess(distance(got, expected), 1e-6)
                else:
                    np.testing.assert_array_equal(got, expected)

    def test_cohere(self):
        for name in ("cohere", "cohere2"):
            with self.subTest(model=name):
                config, tensors = self.fixture(name)
                # Scales are rounded to f32.
                self.assertLess(distance(self.logits(self.write(config, tensors)), self.logits(FIXTURES / name)), 1e-6)

    def test_hunyuan(self):
        """Files have the base that alpha has stretched."""
        config, tensors = self.fixture("hunyuan_v1_dense")
        scaling, dim = config["rope_scaling"], config["head_dim"]
        stretched = config | {"rope_theta": config["rope_theta"] * scaling["alpha"] ** (dim / (dim - 2)), "rope_scaling": None}
        expected = self.logits(FIXTURES / "hunyuan_v1_dense")
        self.assertLess(distance(self.logits(self.write(stretched, tensors)), expected), 5e-3)  # rounded to f32
        plain = self.logits(self.write(config | {"rope_scaling": None}, tensors))
        self.assertGreater(distance(plain, expected), 0.1)

    def test_apertus(self):
        """Metadata have the numbers of xIELU, of each layer or once for all."""
        config, tensors = self.fixture("apertus")
        numbers = {key: [float(tensors.pop(f"model.layers.{layer}.mlp.act_fn.{key}")[0].item()) for layer in range(3)]
                   for key in ("alpha_p", "alpha_n", "beta", "eps")}

        def write(numbers, once=()):
            def add(writer):
                for key, values in numbers.items():
                    if key in once:
                        writer.add_float32(f"xielu.{key}", values[0])
                    else:
                        writer.add_array(f"xielu.{key}", values)
            path = self.directory / "apertus.gguf"
            write_gguf(path, config, tensors, add=add)
            return path

        expected = self.logits(FIXTURES / "apertus")
        # RoPE's factors are rounded to f32.
        self.assertLess(distance(self.logits(write(numbers)), expected), 5e-3)
        self.assertLess(distance(self.logits(write(numbers, once=("beta", "eps"))), expected), 5e-3)
        other = self.logits(write(numbers | {"alpha_n": [value + 1 for value in numbers["alpha_n"]]}))
        self.assertGreater(distance(other, expected), 0.05)
        short = write(numbers | {"alpha_p": numbers["alpha_p"][:2]})
        result = self.run_logits(short)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("'xielu.alpha_p'", result.stderr)
        self.assertIn("must have 3 elements", result.stderr)

    def test_experts_in_tensors_of_their_own(self):
        """As Mixtral's first files have them."""
        config, tensors = self.fixture("mixtral")
        parts = {"w1": "ffn_gate", "w2": "ffn_down", "w3": "ffn_up"}
        old = {}
        for name, (values, kind) in tensors.items():
            before, experts, after = name.partition(".block_sparse_moe.experts.")
            if experts:
                expert, part, _ = after.split(".")
                name = f"blk.{before.rsplit('.', 1)[1]}.{parts[part]}.{expert}.weight"
            elif "block_sparse_moe" in name:
                name, kind = name.replace("block_sparse_moe", "mlp"), Type.F32
            old[name] = values, kind
        np.testing.assert_array_equal(self.logits(self.write(config, old)), self.logits(FIXTURES / "mixtral"))


if __name__ == "__main__":
    main()
