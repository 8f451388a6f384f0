"""A field that config.json leaves out is what Transformers' config class has for it.

    config_defaults_test.py LITECACHE

Of the first of tests/fixtures/models of each family: all that can be left out, compared with what the class makes of it.
"""
import json
import shutil
import subprocess

from gguf_files import FIXTURES  # skips the test where packages are missing
import numpy as np
from program_logits import ProgramLogitsTest, main
from transformers import CONFIG_MAPPING

# Sizes and tokens, which differ from the classes', and lists that have an element for each layer.
SIZES = {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
         "head_dim", "max_position_embeddings", "original_max_position_embeddings", "ffn_dim", "word_embed_proj_dim",
         "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_experts_per_tok", "moe_k",
         "moe_intermediate_size", "shared_expert_intermediate_size", "vocab_size_per_layer_input",
         "hidden_size_per_layer_input", "layer_types", "no_rope_layers", "per_layer_config", "model_type", "architectures",
         "dtype", "torch_dtype", "bos_token_id", "eos_token_id", "pad_token_id"}
# Fields by which a model has other tensors.
TENSORS = {"attention_bias", "mlp_bias", "use_bias", "qkv_bias", "attention_out_bias", "use_qk_norm", "n_shared_experts",
           "moe_num_shared_experts", "tie_word_embeddings", "do_layer_norm_before", "mlp_only_layers", "decoder_sparse_step",
           "first_k_dense_replace", "moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval",
           "num_kv_shared_layers", "use_double_wide_mlp", "attention_k_eq_v", "enable_moe_block", "top_k_experts",
           "linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim", "linear_num_key_heads",
           "linear_num_value_heads"}
# Fields that are asked for, because all published files have them.
REQUIRED = {"gemma2": {"sliding_window"}, "gemma4_text": {"sliding_window", "rope_parameters"}, "cohere2": {"sliding_window"},
            "ministral3": {"rope_parameters"}}


def first_of_each_family():
    families = {}
    for path in sorted(FIXTURES.glob("*/config.json")):
        families.setdefault(json.loads(path.read_text())["model_type"], path.parent)
    return families


class ConfigDefaultsTest(ProgramLogitsTest):
    def results(self, fixture, config):
        """What the program says of the config, and logits."""
        path = self.directory / "model"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(fixture, path)
        (path / "config.json").write_text(json.dumps(config))
        inspected = subprocess.run([self.program, "inspect", "--model", path, "--json", "--device", "cpu", "--memory",
                                    "1GiB"], text=True, capture_output=True, check=False)
        self.assertEqual(inspected.returncode, 0, inspected.stderr)
        return json.loads(inspected.stdout), self.logits(path)

    def test_left_out(self):
        for model_type, fixture in first_of_each_family().items():
            config = json.loads((fixture / "config.json").read_text())
            config["max_position_embeddings"] = 8192 if model_type != "opt" else config["max_position_embeddings"]
            defaults = CONFIG_MAPPING[model_type]().to_dict()
            fields = set(defaults) - SIZES - REQUIRED.get(model_type, set())
            fields = {key for key in fields if key not in TENSORS or config.get(key) == defaults[key]}
            left_out = set(fields)
            if "rope_parameters" in fields:
                left_out |= {"rope_scaling", "rope_theta", "partial_rotary_factor"}
            if "linear_attention" not in config.get("layer_types", []) and model_type != "gemma4_text":
                left_out.add("layer_types")
            absent = {key: value for key, value in config.items() if key not in left_out}
            written = absent | CONFIG_MAPPING[model_type](**absent).to_dict()
            with self.subTest(model=fixture.name):
                self.assertGreater(len(written), len(absent) + 5)
                said, logits = self.results(fixture, absent)
                said_of_written, logits_of_written = self.results(fixture, written)
                self.assertEqual(said, said_of_written)
                np.testing.assert_array_equal(logits, logits_of_written)


if __name__ == "__main__":
    main()
