"""Hugging Face directories with quantized weights give the results of plain ones that have the same values.

    quantized_checkpoint_test.py LITECACHE

The models are small random ones (quantized_models.py). LC_TEST_SEED repeats a run.
"""
import itertools
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

try:
    import numpy as np
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)
from gguf_files import FIXTURES, read_safetensors
from quantized_models import (DTYPES, MODELS, Model, awq, compressed, fp8, gptq, logits_of, write_awq, write_fp8, write_gptq,
                              write_int8, write_packed, write_safetensors)

SEED = int(os.environ.get("LC_TEST_SEED", random.SystemRandom().randrange(1 << 32)))


def distance(got, expected):
    return np.linalg.norm(got - expected) / np.linalg.norm(expected)


class QuantizedCheckpointTest(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.chance = np.random.default_rng(SEED)

    def make(self, name):
        return Model(self.chance, *MODELS[name])

    def run_program(self, *arguments):
        return subprocess.run([LITECACHE, *arguments], text=True, capture_output=True, check=False)

    def logits(self, model, *options):
        return logits_of(LITECACHE, self.directory, model, *options)

    def test_formats(self):
        for name in MODELS:
            with self.subTest(format=name):
                model = self.make(name)
                quantized, plain = model.write(self.directory / "model"), model.write_plain(self.directory / "plain")
                expected = self.logits(plain, "--dtype", "f32")
                np.testing.assert_array_equal(self.logits(quantized, "--dtype", "f32"), expected)
                # Some weights are rounded to 8 bits, and the KV cache to bf16.
                error = distance(self.logits(quantized), expected)
                self.assertLess(error, 0.03)
                # From the same values, the same blocks: Q5_1 is no format's own.
                np.testing.assert_array_equal(self.logits(quantized, "--quantize", "q5_1"),
                                              self.logits(plain, "--quantize", "q5_1"))
                shown = self.run_program("inspect", "--model", quantized, "--json", "--device", "cpu")
                self.assertEqual(shown.returncode, 0, shown.stderr)
                shown = json.loads(shown.stdout)
                self.assertEqual({tensor["name"] for tensor in shown["tensors"]}, set(model.tensors))
                self.assertEqual(shown["memory"]["weights"], model.bytes_in_memory(MODELS[name][-1]))
                self.assertFalse(shown["memory"]["weights_mapped"])
                print(f"{name}: {100 * error:.2f}%, {shown['bits_per_weight']:.2f} bits")

    def test_language_part_of_a_model_with_images(self):
        """As Mistral publishes it: in FP8, with names of its own, beside what reads images."""
        name = "fp8 per tensor, named as of blocks"
        model = self.make(name)
        plain = model.write_plain(self.directory / "plain")
        model.tensors = {f"language_model.{of}": tensor for of, tensor in model.tensors.items()}
        model.tensors["vision_tower.patch_conv.weight"] = "F16", np.ones((4, 3, 2, 2), np.float16)
        text = {key: value for key, value in model.config.items() if key != "quantization_config"}
        model.config = {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3",
                        "quantization_config": model.config["quantization_config"], "torch_dtype": "float16",
                        "text_config": text | {"model_type": "mistral"}, "vision_config": {}}
        whole = model.write(self.directory / "whole")
        np.testing.assert_array_equal(self.logits(whole, "--dtype", "f32"), self.logits(plain, "--dtype", "f32"))
        shown = json.loads(self.run_program("inspect", "--model", whole, "--json", "--device", "cpu").stdout)
        model.tensors = {of.removeprefix("language_model."): tensor for of, tensor in model.tensors.items()}
        self.assertEqual(shown["memory"]["weights"], model.bytes_in_memory(MODELS[name][-1]))

    def test_all_zeros_are_read(self):
        """Zero is any code, and its code minus one wraps around."""
        for bits, v2 in itertools.product((4, 8), (False, True)):
            with self.subTest(bits=bits, v2=v2):
                config = gptq(bits=bits, checkpoint_format="gptq_v2" if v2 else "gptq", group_size=32)
                model = Model(self.chance, config, write_gptq, {"bits": bits, "size": 32, "v2": v2}, 128, 160)
                expected = self.logits(model.write_plain(self.directory / "plain"), "--dtype", "f32")
                got = self.logits(model.write(self.directory / "model"), "--dtype", "f32")
                np.testing.assert_array_equal(got, expected)

    def test_what_configs_leave_out(self):
        """Transformers' classes have groups of 128 columns and blocks of 128 x 128."""
        for name, key in (("gptq", "group_size"), ("awq 128", "group_size"), ("awq 128", "bits"),
                          ("fp8 blocks", "weight_block_size"), ("several fp8 blocks", "weight_block_size")):
            with self.subTest(format=name, without=key):
                several = name.startswith("several")
                model = Model(self.chance, fp8(), write_fp8, {"block": (128, 128)}, 264, 160) if several else self.make(name)
                stated = model.config["quantization_config"]
                model.config["quantization_config"] = {of: value for of, value in stated.items() if of != key}
                expected = self.logits(model.write_plain(self.directory / "plain"), "--dtype", "f32")
                got = self.logits(model.write(self.directory / "model"), "--dtype", "f32")
                np.testing.assert_array_equal(got, expected)

    def test_quantized_output_matrix_and_shards(self):
        model = self.make("pack-quantized per channel")
        model.tensors.pop("lm_head.weight")
        tensors, model.values["lm_head.weight"] = write_packed(self.chance, Model.vocab, 136, size=-1, symmetric=False)
        model.tensors |= {f"lm_head.{name}": tensor for name, tensor in tensors.items()}
        expected = self.logits(model.write_plain(self.directory / "plain"), "--dtype", "f32")
        path = model.write(self.directory / "model")
        (path / "model.safetensors").unlink()
        names = list(model.tensors)
        self.chance.shuffle(names)
        weight_map = {}
        for shard in range(3):
            part = {name: model.tensors[name] for name in names[shard::3]}
            write_safetensors(path / f"{shard}.safetensors", part)
            weight_map |= {name: f"{shard}.safetensors" for name in part}
        (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        np.testing.assert_array_equal(self.logits(path, "--dtype", "f32"), expected)

    def test_rows_in_other_orders(self):
        """Matrices whose rows are not in the order of their tensors, beside plain ones, and single experts."""
        for name in ("qwen3_5_text", "qwen3_next"):
            config = json.loads((FIXTURES / name / "config.json").read_text())
            quantized, plain = {}, {}
            for key, (values, dtype) in read_safetensors(FIXTURES / name / "model.safetensors").items():
                module, kind = key.removesuffix(".weight"), key.rsplit(".", 2)[-2]
                quantized[key] = plain[key] = ("F32", values)
                if key.endswith("proj.weight") or kind in ("in_proj_qkv", "in_proj_qkvz", "in_proj_z"):
                    tensors, values = write_fp8(self.chance, *values.shape, block=(16, 24))
                    del quantized[key]
                    quantized |= {f"{module}.{part}": tensor for part, tensor in tensors.items()}
                    plain[key] = ("F32", values)
            config = {key: value for key, value in config.items() if key != "dtype"} | {"dtype": "float32"}
            results = []
            for tensors, added in ((plain, {}), (quantized, {"quantization_config": fp8(weight_block_size=[16, 24])})):
                path = self.directory / f"{name}-{len(results)}"
                path.mkdir()
                (path / "config.json").write_text(json.dumps(config | added))
                write_safetensors(path / "model.safetensors", tensors)
                results.append(self.logits(path, "--dtype", "f32"))
            with self.subTest(model=name):
                self.assertGreater(len(quantized), len(plain) + 20)
                self.assertGreater(np.linalg.norm(results[0]), 1)
                np.testing.assert_array_equal(results[1], results[0])

    def test_groups_of_modules_that_differ(self):
        """As compressed-tensors writes them: each group has its format, strategy and bits, and some have zero points."""
        group = {"targets": ["Linear"], "input_activations": None}
        kinds = (
            ("pack-quantized", "group", {"group_size": 32, "symmetric": False}, write_packed, {"size": 32, "symmetric": False}),
            ("pack-quantized", "channel", {"num_bits": 8}, write_packed, {"bits": 8, "size": -1}),
            ("int-quantized", "channel", {"num_bits": 8}, write_int8, {}),
            ("int-quantized", "channel", {"num_bits": 8, "symmetric": False}, write_int8, {"symmetric": False}),
            ("float-quantized", "channel", {"num_bits": 8}, write_fp8, {"per_row": True, "scales": "BF16"}),
            ("naive-quantized", "tensor", {"num_bits": 8, "type": "float"}, write_fp8, {"scalar": True}),
            ("naive-quantized", "block", {"num_bits": 8, "type": "float", "block_structure": [48, 96]}, write_fp8,
             {"block": (48, 96), "named": "weight_scale"}),
        )
        model = self.make("pack-quantized, zero points")
        modules = [name.removesuffix("weight_scale") for name in model.tensors if name.endswith("weight_scale")]
        model.tensors = {name: tensor for name, tensor in model.tensors.items() if tensor[0] == "F16" and
                         not name.endswith("weight_scale")}
        groups = {}
        for i, (form, strategy, weights, writer, arguments) in enumerate(kinds):
            of = compressed(form, strategy, **weights)["config_groups"]["group_0"]["weights"]
            groups[f"group_{i}"] = group | {"format": form, "weights": of}
        for i, module in enumerate(modules):
            _, _, _, writer, arguments = kinds[i % len(kinds)]
            tensors, values = writer(self.chance, *model.values[module + "weight"].shape, **arguments)
            model.tensors |= {module + name: tensor for name, tensor in tensors.items()}
            model.values[module + "weight"] = values
        self.assertGreater(len(modules), len(kinds))
        model.config["quantization_config"] = compressed("mixed-precision", "channel", top={"config_groups": groups})
        expected = self.logits(model.write_plain(self.directory / "plain"), "--dtype", "f32")
        quantized = model.write(self.directory / "model")
        np.testing.assert_array_equal(self.logits(quantized, "--dtype", "f32"), expected)
        self.assertLess(distance(self.logits(quantized), expected), 0.03)

    def test_scales_of_activations_in_awq(self):
        """Of StarCoder2, AutoAWQ divides what the activation function gives."""
        config = json.loads((FIXTURES / "starcoder2/config.json").read_text())
        config = {key: value for key, value in config.items() if key != "torch_dtype"} | {"dtype": "float32"}
        quantized, plain = {}, {}
        for key, (values, _) in read_safetensors(FIXTURES / "starcoder2/model.safetensors").items():
            quantized[key] = plain[key] = ("F32", values)
            if not key.endswith("mlp.c_proj.weight"):
                continue
            tensors, values = write_awq(self.chance, *values.shape, size=16)
            scales = self.chance.uniform(0.5, 2, values.shape[1]).astype(np.float16)
            del quantized[key]
            quantized |= {key.removesuffix("weight") + part: tensor for part, tensor in tensors.items()}
            quantized[key.replace("c_proj.weight", "act.scales")] = "F16", scales
            plain[key] = "F32", values / scales.astype(np.float32)
        results = []
        for name, tensors, added in (("plain", plain, {}), ("awq", quantized, {"quantization_config": awq(group_size=16)})):
            path = self.directory / name
            path.mkdir()
            (path / "config.json").write_text(json.dumps(config | added))
            write_safetensors(path / "model.safetensors", tensors)
            results += [self.logits(path, "--dtype", "f32"), self.logits(path)]
        np.testing.assert_array_equal(results[2], results[0])
        self.assertLess(distance(results[3], results[0]), 0.03)
        write_safetensors(path / "model.safetensors", quantized | {of: plain[of] for of in plain if "c_proj" in of})
        result = self.run_program("inspect", "--model", path, "--device", "cpu")
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn("mlp.act.scales' scales what 'model.layers.0.mlp.c_proj.weight' reads", result.stderr)

    def error_of(self, model):
        model.write(self.directory / "model")
        result = self.run_program("inspect", "--model", self.directory / "model", "--device", "cpu")
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        return result.stderr

    def test_other_formats_are_refused(self):
        group = {"group_0": {"targets": ["Linear"], "weights": None}}
        mixed = compressed("float-quantized", "block", 8, block_structure=[128, 128])["config_groups"]
        mixed |= {"group_1": compressed("float-quantized", "block", 8, block_structure=[64, 64])["config_groups"]["group_0"]}
        cases = (
            ({"quant_method": "hqq", "bits": 4}, "quant_method' = \"hqq\""),
            ({"load_in_4bit": True}, "quant_method' = null"),
            (fp8(fmt="e5m2"), "fmt' = \"e5m2\""), (fp8(weight_block_size=[128]), "weight_block_size' = [128]"),
            (fp8(weight_block_size=[0, 128]), "weight_block_size' = [0, 128]"),
            (fp8(weight_block_size=[]), "weight_block_size' = []"),
            (awq(version="gemv"), "version' = \"gemv\""), (awq(bits=8), "bits' = 8"),
            (awq(zero_point=False), "zero_point' = false"), (awq(group_size=0), "group_size' = 0"),
            (awq(group_size="128"), "group_size' = \"128\""), (awq(format="gemv"), "format' = \"gemv\""),
            (awq(backend="llm-awq"), "backend' = \"llm-awq\""),
            (gptq(bits=3), "bits' = 3"), (gptq(bits=2), "bits' = 2"), (gptq(group_size=0), "group_size' = 0"),
            (gptq(group_size=-2), "group_size' = -2"), (gptq(checkpoint_format="marlin"), "checkpoint_format' = \"marlin\""),
            (gptq(is_marlin_format=True), "is_marlin_format' = true"), (gptq(sym="yes"), "sym' = \"yes\""),
            (gptq(dynamic={"+:.*down_proj": {"bits": 8}}), "dynamic.+:.*down_proj'"),
            (compressed("nvfp4-pack-quantized", "group"), "format' = \"nvfp4-pack-quantized\""),
            (compressed("pack-quantized", "channel", 3), "config_groups.group_0.weights.num_bits' = 3"),
            (compressed("pack-quantized", "group", group_size=0), "weights.group_size' = 0"),
            (compressed("pack-quantized", "group"), "weights.group_size' is missing"),
            (compressed("pack-quantized", "tensor_group"), "weights.strategy' = \"tensor_group\""),
            (compressed("pack-quantized", "channel", actorder="new"), "weights.actorder' = \"new\""),
            (compressed("float-quantized", "channel", 8, symmetric=False), "weights.symmetric' = false"),
            (compressed("int-quantized", "channel", 16), "weights.num_bits' = 16"),
            (compressed("naive-quantized", "channel", 4, type="float"), "weights.num_bits' = 4"),
            (compressed("int-quantized", "channel", 8, type="float"), "weights.type' = \"float\""),
            (compressed("float-quantized", "block", 8), "weights.block_structure' = null"),
            (compressed("pack-quantized", "channel", top={"transform_config": {"config_groups": {}}}), "transform_config'"),
            (compressed("pack-quantized", "channel", top={"sparsity_config": {"format": "sparse-24-bitmask"}}),
             "sparsity_config.format' = \"sparse-24-bitmask\""),
            (compressed("pack-quantized", "channel", top={"config_groups": {}}), "config_groups'"),
            (compressed("pack-quantized", "channel", top={"config_groups": group}), "config_groups.group_0.weights' = null"),
            (compressed("float-quantized", "channel", top={"config_groups": mixed}), "config_groups'"),
        )
        model = self.make("gptq")
        for quantization, named in cases:
            with self.subTest(named=named):
                model.config["quantization_config"] = quantization
                error = self.error_of(model)
                self.assertIn("config.json: field 'quantization_config.", error)
                self.assertIn(named, error)

    def test_quantization_that_only_another_file_describes(self):
        for name, file in (("fp8 per tensor", "hf_quant_config.json"), ("gptq", "quantize_config.json"),
                           ("awq 128", "quant_config.json")):
            with self.subTest(file=file):
                model = self.make(name)
                del model.config["quantization_config"]
                path = model.write(self.directory / name)
                (path / file).write_text("{}")
                result = self.run_program("inspect", "--model", path, "--device", "cpu")
                self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
                for part in ("q_proj.weight'", f": {file} says", "'quantization_config' of config.json"):
                    self.assertIn(part, result.stderr)

    def test_tensors_that_do_not_fit_are_refused(self):
        def shape(value):
            return "I64", np.array(value)

        def changed(tensor, index, value):
            values = tensor[1].copy()
            values.flat[index] = value
            return tensor[0], values

        cases = (  # the model, the tensor's name after its module's, the tensor instead of it, parts of the message
            ("gptq act-order", "g_idx", lambda t: changed(t, 5, 2), ("holds 2 at 5", "2 groups")),
            ("gptq act-order", "g_idx", lambda t: changed(t, 127, -1), ("holds -1 at 127",)),
            ("gptq act-order", "g_idx", lambda t: (t[0], t[1][1:]), ("I32 [127]", "I32 [128]")),
            ("gptq act-order", "g_idx", lambda t: ("I64", t[1]), ("I64 [128]", "I32 [128]")),
            ("gptq act-order", "g_idx", None, ("I32 [128], is missing",)),
            ("gptq", "qweight", lambda t: (t[0], t[1][:-1]), ("I32 [15, 128]", "I32 [16, 128]")),
            ("gptq", "qweight", lambda t: ("F32", t[1]), ("F32 [16, 128]",)),
            ("gptq", "qzeros", None, ("I32 [1, 16], is missing",)),
            ("gptq", "scales", lambda t: (t[0], t[1].T), ("F16 [128, 1]", "F16 or BF16 or F32 [1, 128]")),
            ("gptq", "scales", lambda t: ("I32", t[1]), ("I32 [1, 128]",)),
            ("awq 32", "qweight", lambda t: (t[0], t[1].T), ("I32 [20, 160]", "I32 [160, 20]")),
            ("awq 32", "qzeros", lambda t: (t[0], t[1][:1]), ("I32 [1, 20]", "I32 [5, 20]")),
            ("fp8 blocks", "weight", lambda t: ("F8_E5M2", t[1]), ("F8_E5M2 [136, 136]", "F8_E4M3 [136, 136]")),
            ("fp8 blocks", "weight_scale_inv", lambda t: (t[0], t[1][:1]), ("F32 [1, 2]", "[2, 2]")),
            ("fp8 per tensor", "weight_scale", lambda t: (t[0], np.ones(2)), ("F32 [2]", "[1]")),
            ("int-quantized", "weight", lambda t: (t[0], t[1][1:]), ("I8 [127, 128]", "I8 [128, 128]")),
            ("int-quantized", "weight_scale", None, ("[128, 1], is missing",)),
            ("int-quantized, zero points", "weight_zero_point", None, ("I8 [128, 1], is missing",)),
            ("int-quantized, zero points", "weight_zero_point", lambda t: ("I32", t[1]), ("I32 [128, 1]", "I8 [128, 1]")),
            ("pack-quantized", "weight_shape", lambda t: shape([128, 120]), ("holds [128, 120]", "[128, 128]")),
            ("pack-quantized", "weight_shape", lambda t: shape([1 << 62, 1 << 62]), ("[128, 128]",)),
            ("pack-quantized", "weight_shape", lambda t: shape([128]), ("I64 [1]", "I64 [2]")),
            ("pack-quantized", "weight_packed", lambda t: (t[0], t[1][:, :8]), ("I32 [128, 8]", "I32 [128, 16]")),
            ("pack-quantized, zero points", "weight_zero_point", None, ("I32 [16, 4], is missing",)),
            ("pack-quantized act-order", "weight_g_idx", lambda t: changed(t, 0, 1 << 30), ("holds 1073741824 at 0",)),
            ("gptq v2, symmetric", "qzeros", lambda t: changed(t, 0, 0x11111111), ("puts zero at 1 in row 0, group 0",)),
            ("gptq", "qweight", None, ("self_attn.q_proj.weight", "is missing")),
        )
        for name, suffix, change, parts in cases:
            with self.subTest(model=name, tensor=suffix, parts=parts):
                model = self.make(name)
                tensor = "model.layers.0.self_attn.q_proj." + suffix
                old = model.tensors.pop(tensor)
                if change:
                    model.tensors[tensor] = change(old)
                error = self.error_of(model)
                self.assertIn(str(self.directory / "model"), error)
                if suffix != "qweight" or change:
                    self.assertIn(f"'{tensor}'", error)
                for part in parts:
                    self.assertIn(part, error)

    def test_damaged_models_never_crash(self):
        for _ in range(60):
            model = self.make(self.chance.choice(list(MODELS)))
            name = str(self.chance.choice([name for name in model.tensors if not name.endswith(".weight")] or
                                          list(model.tensors)))
            dtype, values = model.tensors[name]
            values = np.ascontiguousarray(values).astype(DTYPES[dtype])
            match self.chance.integers(4):
                case 0:  # any bytes
                    values = np.frombuffer(self.chance.bytes(values.nbytes), values.dtype).reshape(values.shape)
                case 1:
                    values = values.reshape(-1)[:self.chance.integers(values.size + 1)]
                case 2:
                    values = np.resize(values, self.chance.integers(0, 300, values.ndim))
                case 3:
                    dtype = str(self.chance.choice(list(DTYPES)))
            model.tensors[name] = dtype, values
            path = model.write(self.directory / "model")
            result = self.run_program("inspect", "--model", path, "--device", "cpu")
            self.assertIn(result.returncode, (0, 1), (name, dtype, values.shape, result.stderr))


if __name__ == "__main__":
    LITECACHE = sys.argv.pop(1)
    print(f"LC_TEST_SEED={SEED}")
    unittest.main()
