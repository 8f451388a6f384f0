"""GGUF files of Seed-OSS, ERNIE 4.5, EXAONE 4, GLM-4.5, MiniMax-M2 and Gemma 4 give the results of the directories that
have the same weights.

    gguf_newer_families_test.py LITECACHE

The models are those of tests/fixtures/models, as llama.cpp's converter writes them; names of tensors are those of the
package gguf.
"""
import json
import logging
import re
import unittest
import unittest.mock

# Skips the test where packages are missing.
from gguf_files import FIXTURES, Type, distance, gguf, read_safetensors, write_gguf
import numpy as np
from program_logits import ProgramLogitsTest, main

ARCHITECTURES = {"seed_oss": gguf.MODEL_ARCH.SEED_OSS, "ernie4_5": gguf.MODEL_ARCH.ERNIE4_5,
                 "ernie4_5_moe": gguf.MODEL_ARCH.ERNIE4_5_MOE, "exaone4": gguf.MODEL_ARCH.EXAONE4,
                 "glm4_moe": gguf.MODEL_ARCH.GLM4_MOE, "minimax_m2": gguf.MODEL_ARCH.MINIMAXM2,
                 "gemma4_text": gguf.MODEL_ARCH.GEMMA4}
RENAMED = {r"e_score_correction_bias$": "e_score_correction.bias", r"layer_scalar$": "layer_scalar.weight",
           r"\.experts\.(gate_up|down)_proj$": r".experts.\1_proj.weight"}
SCALES = {"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale"}


def to_gguf(config, tensors, split_experts=False):
    """{GGUF's name: (values, type)}; split_experts: gates and ups that are in one tensor become two."""
    names = gguf.get_tensor_name_map(ARCHITECTURES[config["model_type"]], config["num_hidden_layers"])
    result, stacks = {}, {}
    for name, (values, kind) in tensors.items():
        _, _, layer, part = (name.split(".", 3) + [""] * 3)[:4]
        if part in SCALES:
            result[f"blk.{layer}.{SCALES[part]}"] = values, Type.F32
            continue
        for pattern, renamed in RENAMED.items():
            name = re.sub(pattern, renamed, name)
        expert = re.search(r"\.experts\.(\d+)\.", name)
        if expert:
            stacks.setdefault(name.replace(expert[0], ".experts."), ({}, kind))[0][int(expert[1])] = values
        elif split_experts and name.endswith("gate_up_proj.weight"):
            for i, of in enumerate(("gate_exps", "up_exps")):
                half = values.shape[1] // 2
                result[f"blk.{layer}.ffn_{of}.weight"] = values[:, i * half:(i + 1) * half], kind
        else:
            gate = re.search(r"(mlp|block_sparse_moe)\.gate\.weight$|router\.proj", name)
            mapped = names.get_name(name, try_suffixes=(".weight", ".bias"))
            assert mapped, name
            result[mapped] = values.squeeze() if "e_score" in name else values, Type.F32 if gate else kind
    for name, (values, kind) in stacks.items():
        mapped = names.get_name(name, try_suffixes=(".weight",))
        assert mapped, name
        result[mapped] = np.stack([values[i] for i in range(len(values))]), kind
    return result


def add_gemma4(config, writer):
    windowed = [kind == "sliding_attention" for kind in config["layer_types"]]
    layers, head_dim, shared = config["num_hidden_layers"], config["head_dim"], config["num_kv_shared_layers"]
    heads = config.get("per_layer_config", {}).get(str(windowed.index(False)), {})
    whole_dim = config.get("global_head_dim") or heads["head_dim"]
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"] or 0)
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern(windowed)
    writer.add_key_length(whole_dim)
    writer.add_value_length(whole_dim)
    writer.add_key_length_swa(head_dim)
    writer.add_value_length_swa(head_dim)
    writer.add_rope_dimension_count(whole_dim)
    writer.add_rope_dimension_count_swa(head_dim)
    writer.add_rope_freq_base_swa(config["rope_parameters"]["sliding_attention"]["rope_theta"])
    if config.get("num_global_key_value_heads"):
        writer.add_head_count_kv([config["num_key_value_heads"] if window else config["num_global_key_value_heads"]
                                  for window in windowed])
    if config["use_double_wide_mlp"]:
        width = config["intermediate_size"]
        writer.add_feed_forward_length([width if i < layers - shared else 2 * width for i in range(layers)])
    if config["final_logit_softcapping"]:
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    rotated = int(whole_dim * config["rope_parameters"]["full_attention"]["partial_rotary_factor"] / 2)
    factors = [1.0] * rotated + [1e30] * (whole_dim // 2 - rotated)
    writer.add_tensor("rope_freqs.weight", np.array(factors, np.float32))


def metadata(config, writer):
    """What write_gguf() does not know."""
    kind = config["model_type"]
    if kind == "gemma4_text":
        add_gemma4(config, writer)
    elif kind == "exaone4":
        writer.add_vocab_size(config["vocab_size"])
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern([layer == "sliding_attention" for layer in config["layer_types"]])
    elif kind == "ernie4_5_moe":
        writer.add_expert_count(config["moe_num_experts"])
        writer.add_expert_used_count(config["moe_k"])
        writer.add_interleave_moe_layer_step(config["moe_layer_interval"])
        writer.add_leading_dense_block_count(config["moe_layer_start_index"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_expert_shared_count(config["moe_num_shared_experts"])
        # As the converter has it, which is of no use.
        writer.add_expert_shared_feed_forward_length(config["intermediate_size"] // config["num_key_value_heads"])
    elif kind == "glm4_moe":
        writer.add_expert_count(config["n_routed_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_expert_shared_count(config["n_shared_experts"])
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])
        writer.add_leading_dense_block_count(config["first_k_dense_replace"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        writer.add_expert_weights_norm(config["norm_topk_prob"])
    elif kind == "minimax_m2":
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_feed_forward_length(config["intermediate_size"])


class GgufNewerFamiliesTest(ProgramLogitsTest):
    def setUp(self):
        super().setUp()
        self.path = self.directory / "model.gguf"

    def fixture(self, name):
        return (json.loads((FIXTURES / name / "config.json").read_text()),
                read_safetensors(FIXTURES / name / "model.safetensors"))

    def write(self, config, tensors, add=None):
        def all_of(writer):
            metadata(config, writer)
            if add:
                add(writer)

        return write_gguf(self.path, config, tensors, add=all_of)

    def check(self, name, tensors, config):
        self.write(config, tensors)
        expected, got = self.logits(FIXTURES / name), self.logits(self.path)
        if name == "glm4_moe":  # the weights' scale is rounded to f32
            self.assertLess(distance(got, expected), 1e-5)
        else:
            np.testing.assert_array_equal(got, expected)

    def test_fixtures(self):
        for name in ("seed_oss", "ernie4_5", "ernie4_5_moe", "exaone4", "glm4_moe", "minimax_m2", "gemma4_text",
                     "gemma4_text-keys", "gemma4_text-experts"):
            with self.subTest(model=name):
                config, tensors = self.fixture(name)
                self.check(name, to_gguf(config, tensors), config)

    def test_gates_and_ups_of_experts_in_two_tensors(self):
        config, tensors = self.fixture("gemma4_text-experts")
        self.check("gemma4_text-experts", to_gguf(config, tensors, split_experts=True), config)

    def test_quantized_weights_of_gemma4(self):
        """Among them gates and ups in one tensor, and the embeddings of all layers."""
        kinds = {"ffn_gate_up_exps": Type.Q8_0, "ffn_gate": Type.Q4_0, "attn_q": Type.Q5_1, "inp_gate": Type.Q8_0,
                 "per_layer_token_embd": Type.Q5_0, "per_layer_model_proj": Type.Q8_0, "token_embd": Type.Q8_0}
        for model in ("gemma4_text-experts", "gemma4_text"):
            with self.subTest(model=model):
                config, tensors = self.fixture(model)
                rounded = self.write(config, {name: (values, kinds.get(name.split(".")[-2], kind))
                                              for name, (values, kind) in to_gguf(config, tensors).items()})
                got, in_blocks = self.logits(self.path, "--dtype", "f32"), self.logits(self.path)
                self.write(config, {name: (values, Type.F32) for name, values in rounded.items()})
                expected = self.logits(self.path, "--dtype", "f32")
                np.testing.assert_array_equal(got, expected)
                self.assertGreater(distance(got, self.logits(FIXTURES / model, "--dtype", "f32")), 1e-3)
                # Rounding may exchange the experts of some tokens.
                errors = np.linalg.norm(in_blocks - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
                self.assertLess(np.median(errors), 0.05)

    def test_layers_that_predict_further_tokens_are_left_out(self):
        config, tensors = self.fixture("glm4_moe")
        parts = to_gguf(config, tensors)
        layers, hidden = config["num_hidden_layers"], config["hidden_size"]
        parts |= {name.replace(f"blk.{layers - 1}.", f"blk.{layers}."): (values + 1, kind)
                  for name, (values, kind) in parts.items() if name.startswith(f"blk.{layers - 1}.")}
        for part, shape in {"eh_proj": (hidden, 2 * hidden), "enorm": (hidden,), "hnorm": (hidden,),
                            "embed_tokens": (192, hidden), "shared_head_head": (192, hidden),
                            "shared_head_norm": (hidden,)}.items():
            parts[f"blk.{layers}.nextn.{part}.weight"] = np.ones(shape, np.float32), Type.F32
        self.write(config | {"num_hidden_layers": layers + 1}, parts,
                   add=lambda writer: writer.add_uint32("glm4moe.nextn_predict_layers", 1))
        self.assertLess(distance(self.logits(self.path), self.logits(FIXTURES / "glm4_moe")), 1e-5)

    def test_exaone4_without_windows(self):
        """As the smaller models: all layers have RoPE, here of Llama 3's factors."""
        config, tensors = self.fixture("exaone4")
        rope = {"rope_type": "llama3", "rope_theta": 1e6, "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 100}
        plain = {key: value for key, value in config.items() if not key.startswith("sliding_window") and key != "layer_types"}
        directory = self.directory / "plain"
        directory.mkdir()
        (directory / "model.safetensors").symlink_to(FIXTURES / "exaone4/model.safetensors")
        (directory / "config.json").write_text(json.dumps(plain | {"sliding_window": None, "rope_parameters": rope}))
        write_gguf(self.path, config | {"rope_parameters": rope}, to_gguf(config, tensors))
        # The frequencies' factors are rounded to f32.
        expected = self.logits(directory, "--dtype", "f32")
        self.assertLess(distance(self.logits(self.path, "--dtype", "f32"), expected), 1e-5)
        self.assertGreater(distance(self.logits(FIXTURES / "exaone4", "--dtype", "f32"), expected), 0.1)

    def refusal(self, config, tensors, add=None):
        self.write(config, tensors, add)
        result = self.run_logits(self.path)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("model.gguf", result.stderr)
        return result.stderr

    def test_what_differs_is_refused(self):
        config, tensors = self.fixture("gemma4_text")
        parts = to_gguf(config, tensors)
        widths = [112] * 7 + [200]
        for add, shown in ((lambda w: w.add_feed_forward_length(widths), "gemma4.feed_forward_length"),
                           (lambda w: w.add_feed_forward_length(widths[1:]), "8 elements"),
                           (lambda w: w.add_head_count_kv([2, 2, 1, 2, 2, 2, 2, 2]), "gemma4.attention.head_count_kv"),
                           (lambda w: w.add_sliding_window_pattern([True] * 7), "8 elements"),
                           (lambda w: w.add_rope_dimension_count_swa(12), "gemma4.rope.dimension_count_swa"),
                           (lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN), "gemma4.rope.scaling.type")):
            with self.subTest(shown=shown):
                self.assertIn(shown, self.refusal(config, parts, add))
        factors = np.array([1, 1, 1e30, 2] + [1e30] * 16, np.float32)
        with unittest.mock.patch.object(np, "array", side_effect=lambda *_: factors):
            self.assertIn("'rope_freqs.weight' holds 2 behind 2", self.refusal(config, parts))


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # that later keys replace earlier ones
    main()
