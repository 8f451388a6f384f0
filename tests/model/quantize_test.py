"""`litecache quantize` writes directories that hold what it meant, and that others read.

    quantize_test.py LITECACHE

The directories are dequantized here by their format's published definition, and by Transformers where it, torch and
compressed-tensors are installed. LC_TEST_SEED repeats a run.
"""
import json
import math
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

try:
    import numpy as np
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)
try:
    import compressed_tensors
    import torch
    import transformers
except ImportError as missing:
    print(f"without Transformers' own reading: {missing}")
    compressed_tensors = None
from gguf_files import FIXTURES
from quantized_models import (DTYPES, Model, fp8_values, logits_of, nearest_fp8, of_bf16, to_bf16,
                              write_safetensors)

SEED = int(os.environ.get("LC_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
HIDDEN, WIDE = 160, 384  # groups of 32 and of 128


def write_matrix(chance, rows, cols, dtype="BF16"):
    values = chance.normal(0, 0.05, (rows, cols)).astype(np.float32)
    stored = to_bf16(values) if dtype == "BF16" else values.astype(DTYPES[dtype])
    return {"weight": (dtype, stored)}, of_bf16(stored) if dtype == "BF16" else stored.astype(np.float32)


def read_directory(directory):
    """{name: (dtype, array)} of all files, which must be what the index says."""
    tensors = {}
    for path in sorted(directory.glob("*.safetensors")):
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + length])
        assert header.pop("__metadata__") == {"format": "pt"}
        for name, place in header.items():
            begin, end = (8 + length + offset for offset in place["data_offsets"])
            values = np.frombuffer(data[begin:end], DTYPES[place["dtype"]]).reshape(place["shape"])
            assert begin % values.itemsize == 0, "unaligned"
            tensors[name] = place["dtype"], values, path.name
    index = directory / "model.safetensors.index.json"
    if index.exists():
        shown = json.loads(index.read_text())
        assert shown["weight_map"] == {name: file for name, (_, _, file) in tensors.items()}
        assert shown["metadata"]["total_size"] == sum(values.nbytes for _, values, _ in tensors.values())
    return {name: tensor[:2] for name, tensor in tensors.items()}


def floats(dtype, values):
    return of_bf16(values) if dtype == "BF16" else values.astype(np.float32)


def dequantize(directory):
    """The plain f32 tensors of a directory, and the scales of those that are quantized, spread over columns."""
    tensors, plain, spread = read_directory(directory), {}, {}
    for name, (dtype, values) in tensors.items():
        if name.endswith(("weight_scale", "weight_shape")):
            continue
        module = name.removesuffix("_packed")
        if dtype not in ("I32", "F8_E4M3"):
            plain[name] = floats(dtype, values)
            continue
        if dtype == "I32":
            rows, cols = tensors[module + "_shape"][1]
            per_word = -(-cols // values.shape[1])
            bits = 32 // per_word
            words = values.view(np.uint32)
            codes = np.stack([words >> np.uint32(bits * i) & np.uint32((1 << bits) - 1) for i in range(per_word)], -1)
            codes = codes.reshape(rows, -1)[:, :cols].astype(np.float32) - np.float32(1 << bits - 1)
        else:
            codes = fp8_values()[values]
        scales = floats(*tensors[module + "_scale"])
        assert (scales > 0).all()
        spread[module] = np.repeat(scales, codes.shape[1] // scales.shape[1], 1)
        plain[module] = codes * spread[module]
    return plain, spread


class QuantizeTest(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.chance = np.random.default_rng(SEED)
        self.output = self.directory / "quantized"

    def run_program(self, *arguments, **options):
        return subprocess.run([LITECACHE, *map(str, arguments)], text=True, capture_output=True, check=False, **options)

    def quantize(self, model, *options):
        result = self.run_program("quantize", "--model", model, "--output", self.output, "--json", *options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def logits(self, model, *options):
        return logits_of(LITECACHE, self.directory, model, *options)

    def make(self, dtype="BF16", hidden=HIDDEN, wide=WIDE):
        model = Model(self.chance, None, write_matrix, {"dtype": dtype}, hidden, wide)
        model.config |= {"torch_dtype": {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}[dtype],
                         "rms_norm_eps": 1e-5, "new field": {"b": 1e-07, "a": "Ä"}}
        del model.config["quantization_config"]
        if dtype != "F16":  # Model writes vectors and outer matrices in f16
            for name, (kind, values) in model.tensors.items():
                if kind == "F16":
                    values = values.astype(np.float32)
                    model.tensors[name] = (dtype, to_bf16(values) if dtype == "BF16" else values)
        return model

    def check_reading(self, source):
        """The program reads the values that the format's definition gives, bit for bit."""
        plain, spread = dequantize(self.output)
        path = self.directory / "dequantized"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        config = json.loads((source / "config.json").read_text())
        config.pop("dtype", None)
        (path / "config.json").write_text(json.dumps(config | {"torch_dtype": "float32"}))
        write_safetensors(path / "model.safetensors", {name: ("F32", values) for name, values in plain.items()})
        expected = self.logits(path, "--dtype", "f32")
        self.assertGreater(np.linalg.norm(expected), 1e-3)
        np.testing.assert_array_equal(self.logits(self.output, "--dtype", "f32"), expected)
        return plain, spread

    def test_types(self):
        for types, dtype, bits in (("w4a16", "BF16", {4}), ("w8a16", "F16", {8}), ("fp8", "F32", {8}),
                                   ("w4a16,lm_head=w8a16,up_proj=w8a16", "BF16", {4, 8}),
                                   ("w4a16,down_proj=fp8,v_proj=none", "F32", {4, 8})):
            with self.subTest(types=types):
                shutil.rmtree(self.output, ignore_errors=True)
                model = self.make(dtype)
                source = model.write(self.directory / "model")
                (source / "vocab.json").write_text("{}")
                (source / "chat_template.jinja").write_text("{{ messages }}")
                (source / "pytorch_model.bin").write_text("weights")
                shown = self.quantize(source, "--type", types, "--file-size", "200KB")
                self.assertGreater(shown["files"], 1)
                names = {path.name for path in self.output.iterdir()}
                self.assertLessEqual({"vocab.json", "chat_template.jinja"}, names)
                self.assertNotIn("pytorch_model.bin", names)
                config = json.loads((self.output / "config.json").read_text())
                quantization = config.pop("quantization_config")
                self.assertEqual(list(config.items()), list(model.config.items()))
                groups = quantization["config_groups"].values()
                self.assertEqual({group["weights"]["num_bits"] for group in groups}, bits)
                self.assertTrue(all(group["input_activations"] is None for group in groups))
                plain, spread = self.check_reading(source)
                self.assertEqual("lm_head.weight" in spread, "lm_head" in types)
                self.assertEqual(any("v_proj" in name for name in spread), "v_proj" not in types)
                squares = errors = 0
                for name, values in plain.items():
                    if name not in spread:
                        np.testing.assert_array_equal(values, model.values[name])
                        continue
                    error = (values - model.values[name]).astype(float)
                    squares += (model.values[name].astype(float) ** 2).sum()
                    errors += (error ** 2).sum()
                expected = math.sqrt(errors / squares)
                weights = [(kind["relative_error"] ** 2, kind["bytes"] * 8 / kind["bits_per_weight"])
                           for kind in shown["quantized"]]
                # All weights have one variance.
                got = math.sqrt(sum(error * count for error, count in weights) / sum(count for _, count in weights))
                self.assertLess(abs(got / expected - 1), 0.02)
                print(f"{types}: {100 * expected:.2f}%")

    def test_errors_of_normal_weights(self):
        """The mean square of the largest of n normal magnitudes is at most 2 ln 2n + 2; half a step of the scale is the
        largest error of integers, evenly distributed. FP8's steps are an eighth of a power of two below the value: between
        1/8 and 1/16 of it."""
        source = self.make("F32", 256, 512).write(self.directory / "model")
        errors = {}
        for types, size, options in (("w4a16", 128, ("--no-scale-search",)), ("w4a16", 128, ()), ("w4a16", 32, ()),
                                     ("w8a16", 128, ("--no-scale-search",)), ("w8a16", 128, ()), ("fp8", 0, ())):
            shutil.rmtree(self.output, ignore_errors=True)
            shown = self.quantize(source, "--type", types, *options, *(("--group-size", size) if size else ()))
            kind, = shown["quantized"]
            error = errors[types, size, options] = kind["relative_error"]
            if types == "fp8":
                low, high = 1 / 16 / math.sqrt(12), 1 / 8 / math.sqrt(12)
            else:
                levels = 7.5 if types == "w4a16" else 127.5
                low, high = 0, math.sqrt((2 * math.log(2 * size) + 2) / 12) / levels
            print(f"{types}, groups of {size} {' '.join(options)}: {100 * error:.3f}% of {100 * high:.3f}%")
            self.assertTrue(low < error < high, (types, error))
        # Clipping the extreme values makes the steps of 4 bits smaller; with 8 bits it hardly matters.
        self.assertLess(errors["w4a16", 128, ()], 0.95 * errors["w4a16", 128, ("--no-scale-search",)])
        self.assertLessEqual(errors["w8a16", 128, ()], errors["w8a16", 128, ("--no-scale-search",)])
        self.assertLess(errors["w4a16", 32, ()], errors["w4a16", 128, ()])

    def test_each_code_is_the_nearest(self):
        model = self.make("BF16", 128, 256)
        name = "model.layers.0.mlp.up_proj.weight"
        values = model.values[name]
        values[:, :128] *= 1e-3
        values[3], values[4, 7], values[5, :5] = 0, 3, 1e-30
        model.tensors[name] = "BF16", to_bf16(values)
        values = of_bf16(to_bf16(values))
        source = model.write(self.directory / "model")
        for types, low, high in (("w4a16", -8, 7), ("w8a16", -128, 127), ("fp8", None, None)):
            shutil.rmtree(self.output, ignore_errors=True)
            self.quantize(source, "--type", types)
            plain, spread = self.check_reading(source)
            scale = spread[name].astype(float)
            if types == "fp8":
                nearest = fp8_values()[nearest_fp8(values / scale)] * scale
            else:
                nearest = np.clip(np.rint(values / scale), low, high) * scale
            distance = abs(plain[name] - values) - abs(nearest - values)
            self.assertLess((distance / scale).max(), 1e-5)

    def test_families(self):
        """Fused projections, rows in other orders, single experts, tied and prefixed embeddings."""
        for name in ("phi3", "qwen3_moe", "mixtral", "qwen3_next", "qwen3_5_text", "opt", "gemma3_text", "llama-sharded"):
            with self.subTest(model=name):
                shutil.rmtree(self.output, ignore_errors=True)
                self.quantize(FIXTURES / name, "--type", "fp8")
                _, spread = self.check_reading(FIXTURES / name)
                self.assertGreater(len(spread), 9)
                self.assertFalse(any(name.endswith(("embed_tokens.weight", "gate.weight", "lm_head.weight")) for name in spread))

    @unittest.skipIf(compressed_tensors is None, "needs torch, transformers and compressed-tensors")
    def test_transformers_reads_it(self):
        ids = torch.tensor([[i * 7 % 39 for i in range(60)]])
        for types in ("w4a16", "w8a16", "fp8", "w4a16,lm_head=w8a16", "w4a16,down_proj=fp8,v_proj=none"):
            with self.subTest(types=types):
                shutil.rmtree(self.output, ignore_errors=True)
                source = self.make("F32", 128, 256).write(self.directory / "model")
                self.quantize(source, "--type", types)
                theirs = transformers.AutoModelForCausalLM.from_pretrained(self.output, dtype=torch.float32).eval()
                with torch.no_grad():
                    expected = theirs(ids).logits[0].numpy()
                got = self.logits(self.output, "--dtype", "f32")
                error = np.linalg.norm(got - expected) / np.linalg.norm(expected)
                print(f"{types}: Transformers' logits differ by {error:.1e}")
                # f32 sums of at most 256 products in other orders, a dozen after one another.
                self.assertLess(error, 1e-5)
                difference = self.logits(source, "--dtype", "f32") - expected
                self.assertGreater(np.linalg.norm(difference) / np.linalg.norm(expected), 1e-3)

    def fails(self, model, *options, code=1, **other):
        before = sorted(self.directory.iterdir())
        result = self.run_program("quantize", "--model", model, "--output", self.output, *options, **other)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(sorted(self.directory.iterdir()), before)
        return result.stderr

    def test_errors_leave_nothing(self):
        source = self.make().write(self.directory / "model")
        for types, named in (("w3a16", "'w3a16' is not one of w4a16, w8a16, fp8"), ("w4a16,v_proj", "is not MODULE=TYPE"),
                             ("w4a16,w_proj=none", "has no such module"), ("w4a16,embed_tokens=fp8", "always stays"),
                             ("none", "no matrix of the model would be quantized")):
            self.assertIn(named, self.fails(source, "--type", types, code=2))
        for name in ("gpt_oss", "qwen3_5_moe_text"):
            self.assertIn("_proj' has the matrices of all experts", self.fails(FIXTURES / name, "--type", "fp8"))
        self.assertIn("lm_head=fp8: this model's output matrix is its embeddings",
                      self.fails(FIXTURES / "qwen2", "--type", "fp8,lm_head=fp8", code=2))
        gguf = self.directory / "model.gguf"
        gguf.write_bytes(b"GGUF\3\0\0\0" + bytes(16))
        self.assertIn("is a GGUF file", self.fails(gguf, "--type", "fp8"))
        bad = self.make()
        name = "model.layers.1.mlp.down_proj.weight"
        values = bad.tensors[name][1].copy()
        values[17, 5] = 0x7f80  # infinity
        bad.tensors[name] = "BF16", values
        for types in ("fp8", "w4a16"):
            self.assertIn(f"'{name}' has a value in row 17 that is not finite",
                          self.fails(bad.write(self.directory / "model"), "--type", types))
        bad.tensors[name] = "BF16", values[:, 1:]
        self.assertIn(f"'{name}' is BF16 [160, 383]", self.fails(bad.write(self.directory / "model"), "--type", "fp8"))
        source = self.make().write(self.directory / "model")
        self.quantize(source, "--type", "fp8")
        quantized = self.output
        self.assertIn("exists already", self.fails(source, "--type", "fp8"))
        self.output = self.directory / "again"
        self.assertIn("'quantization_config'", self.fails(quantized, "--type", "fp8"))
        self.output = self.directory / "no" / "such"
        self.assertIn("cannot create a directory beside it", self.fails(source, "--type", "fp8"))
        # As on a full disk, a write fails in the middle.
        self.output = self.directory / "limited"
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
        error = self.fails(source, "--type", "fp8", preexec_fn=limit, restore_signals=False)
        self.assertIn("cannot write: File too large", error)
        self.output.mkdir()
        self.quantize(source, "--type", "fp8")

    def test_interrupted_runs_leave_nothing(self):
        source = self.make("F16", 1024, 6144).write(self.directory / "model")
        before = sorted(self.directory.iterdir())
        with subprocess.Popen([LITECACHE, "quantize", "--model", source, "--output", self.output, "--type", "w4a16",
                               "--threads", "1"], stderr=subprocess.PIPE, text=True) as process:
            while process.poll() is None and not list(self.directory.glob("quantized.unfinished-*/*.safetensors")):
                time.sleep(0.002)
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, error)
        self.assertIn("interrupted", error)
        self.assertEqual(sorted(self.directory.iterdir()), before)

    def test_quantize_at_load_has_no_fp8(self):
        source = self.make().write(self.directory / "model")
        result = self.run_program("inspect", "--model", source, "--quantize", "fp8", "--device", "cpu")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("q8_0 is nearer", result.stderr)


if __name__ == "__main__":
    LITECACHE = sys.argv.pop(1)
    print(f"LC_TEST_SEED={SEED}")
    unittest.main()
