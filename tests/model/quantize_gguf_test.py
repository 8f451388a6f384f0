"""`litecache quantize` writes GGUF files that hold what it meant, and that others read.

    quantize_gguf_test.py LITECACHE TOKENIZER_DUMP

The files are read with the package gguf. The models are those of tests/fixtures/models with a vocabulary of 400 tokens, a
random one, and the shipped one. LC_TEST_SEED repeats a run.
"""
import json
import random
import shutil
import struct
import subprocess
import sys
import unittest

# Skips the test where packages are missing.
from gguf_files import (FIXTURES, SEED, Type, gguf_name, halves_to_neighbours, random_model, read_safetensors,
                        write_safetensors)
import gguf
import numpy as np
from program_logits import ProgramLogitsTest

TESTS = FIXTURES.parents[1]
DEMO = TESTS.parent / "models/litecache-demo-16m"
sys.path.append(str(TESTS / "tokenizer"))
from texts import Texts  # noqa: E402

KEPT = "embed_tokens=none,lm_head=none"
ROWS = 400  # of the embeddings


def tokenizer_json(kind):
    """A tokenizer of the tests that GGUF has a name for: llama-bpe, qwen2, llama (SentencePiece)."""
    name = "spm" if kind == "llama" else "byte_level"
    document = json.loads((TESTS / f"tokenizer/fixtures/{name}.json").read_text())
    if kind == "llama":
        # As Transformers converts SentencePiece's vocabularies: all splits of each piece.
        vocabulary = document["model"]["vocab"]
        merged = {"".join(pair): None for pair in document["model"]["merges"]}
        document["model"]["merges"] = [[piece[:cut], piece[cut:]] for piece in merged for cut in range(len(piece) - 1, 0, -1)
                                       if piece[:cut] in vocabulary and piece[cut:] in vocabulary]
        return document
    document["added_tokens"][-1]["lstrip"] = False  # which GGUF does not have
    if kind == "llama-bpe":
        document["normalizer"] = None
    if kind == "qwen2":
        split = document["pre_tokenizer"]["pretokenizers"][0]
        split["pattern"]["Regex"] = split["pattern"]["Regex"].replace(r"\p{N}{1,3}", r"\p{N}")
        document["model"]["ignore_merges"] = False
    return document


class QuantizeGgufTest(ProgramLogitsTest):
    tokens = 60
    dump = None  # TOKENIZER_DUMP

    def setUp(self):
        super().setUp()
        self.model, self.output = self.directory / "model", self.directory / "new.gguf"
        self.dequantized = self.directory / "dequantized"

    def run_program(self, *arguments):
        return subprocess.run([self.program, *map(str, arguments)], text=True, capture_output=True, check=False)

    def quantize(self, types, model=None, *options):
        self.output.unlink(missing_ok=True)
        result = self.run_program("quantize", "--model", model or self.model, "--output", self.output, "--type", types,
                                  "--json", *options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def write(self, config, tensors, tokenizer="llama-bpe", **changes):
        shutil.rmtree(self.model, ignore_errors=True)
        self.model.mkdir()
        document = tokenizer if isinstance(tokenizer, dict) else tokenizer_json(tokenizer)
        config = config | {"vocab_size": ROWS, "torch_dtype": "bfloat16"} | changes
        config.pop("dtype", None)
        tensors = {name: np.resize(values, (ROWS, values.shape[1])) if "embed_tokens" in name or "lm_head" in name else values
                   for name, (values, _) in tensors.items()}
        (self.model / "config.json").write_text(json.dumps(config))
        (self.model / "tokenizer.json").write_text(json.dumps(document))
        (self.model / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
        write_safetensors(self.model / "model.safetensors", tensors, Type.BF16)
        return config, tensors

    def write_fixture(self, name, tokenizer="llama-bpe", **changes):
        config = json.loads((FIXTURES / name / "config.json").read_text())
        return self.write(config, read_safetensors(FIXTURES / name / "model.safetensors"), tokenizer, **changes)

    def write_random(self, **changes):
        config, tensors = random_model(np.random.default_rng(SEED), [Type.BF16], 256, 512, 1 / 16)
        return self.write(config, tensors, **changes)

    def check_tensors(self, config, tensors, kind_of):
        """The file has these tensors, near the values here. Their own go into a directory for check_values()."""
        reader = gguf.GGUFReader(self.output)
        read = {tensor.name: tensor for tensor in reader.tensors}
        self.assertEqual(set(read) - {"rope_freqs.weight"}, {gguf_name(name) for name in tensors})
        self.assertTrue(all(tensor.data_offset % 32 == 0 for tensor in reader.tensors))
        read_values = {}
        heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
        for name, values in tensors.items():
            tensor, module = read[gguf_name(name)], name.split(".")[-2]
            self.assertEqual(tensor.shape.tolist(), list(values.shape[::-1]), name)
            kind = Type.F32 if values.ndim == 1 else kind_of(module, values.shape[1])
            self.assertEqual(tensor.tensor_type, kind, name)
            got = gguf.quants.dequantize(tensor.data, kind).reshape(values.shape)
            if config["model_type"] in ("llama", "mistral") and module in heads:
                stored = got
                got = np.empty_like(stored)
                got[halves_to_neighbours(np.arange(len(got)), heads[module])] = stored
            read_values[name] = got
            stored = Type.F32 if values.ndim == 1 else Type.BF16
            exact = gguf.quants.dequantize(gguf.quants.quantize(values, stored), stored).reshape(values.shape)
            if kind in (Type.F32, Type.BF16):
                np.testing.assert_array_equal(got, exact, name)
            else:
                error = np.linalg.norm(got - exact) / np.linalg.norm(exact)
                self.assertLess(error, {Type.Q8_0: 0.01, Type.Q6_K: 0.03}.get(kind, 0.13), name)
        self.dequantized.mkdir(exist_ok=True)
        (self.dequantized / "config.json").write_text(json.dumps(config | {"torch_dtype": "float32"}))
        write_safetensors(self.dequantized / "model.safetensors", read_values, Type.F32)
        return reader

    def check_values(self, types):
        """The values that the package reads are those of the program's quantizer, bit for bit."""
        expected = self.logits(self.model, "--dtype", "f32", "--quantize", f"{types},{KEPT}")
        np.testing.assert_array_equal(self.logits(self.dequantized, "--dtype", "f32"), expected)

    def check_logits(self, types):
        """Loading the directory with the same types gives the same weights."""
        quantized = self.logits(self.model, "--quantize", f"{types},{KEPT}")
        self.assertGreater(np.linalg.norm(quantized), 1e-3)
        np.testing.assert_array_equal(self.logits(self.output), quantized)

    def test_blocks(self):
        config, tensors = self.write_random()
        for types, kinds in (("q4_k", {}), ("q6_k", {}), ("q8_0", {}), ("q4_0,v_proj=none", {"v_proj": Type.BF16}),
                             ("q5_k,down_proj=q6_k", {"down_proj": Type.Q6_K})):
            with self.subTest(types=types):
                kinds = kinds | {"embed_tokens": Type.BF16}
                general = Type[types.split(",", maxsplit=1)[0].upper()]
                shown = self.quantize(types)
                self.assertEqual(shown["kept"][0]["module"], "embed_tokens")
                self.check_tensors(config, tensors, lambda module, _, k=kinds, g=general: k.get(module, g))
                self.check_values(types)
                self.check_logits(types)

    def test_families(self):
        for name, tokenizer in (("llama", "llama"), ("llama-bias", "llama-bpe"), ("llama-linear", "llama"),
                                ("llama-yarn", "llama-bpe"), ("mistral", "llama"), ("mistral-window", "llama-bpe"),
                                ("qwen2", "qwen2"), ("qwen2-yarn", "qwen2"), ("qwen3", "qwen2")):
            with self.subTest(model=name):
                config, tensors = self.write_fixture(name, tokenizer)
                self.quantize("q8_0")
                reader = self.check_tensors(config, tensors, lambda module, cols: Type.BF16 if cols % 32 != 0 or module in (
                    "embed_tokens", "lm_head") else Type.Q8_0)
                self.check_values("q8_0")
                self.check_logits("q8_0")
                architecture = "llama" if name.startswith(("llama", "mistral")) else name.split("-", maxsplit=1)[0]
                self.assertEqual(reader.get_field("general.architecture").contents(), architecture)
                self.assertEqual(reader.get_field(f"{architecture}.block_count").contents(), config["num_hidden_layers"])

    def test_factors_of_frequencies(self):
        """Llama 3's scaling is a tensor of f32."""
        self.write_fixture("llama-llama3")
        self.quantize("q8_0")
        expected = self.logits(self.model, "--quantize", f"q8_0,{KEPT}")
        self.assertLess(np.abs(self.logits(self.output) - expected).max(), 0.02 * np.abs(expected).max())

    def test_the_shipped_model(self):
        shown = self.quantize("q4_k", DEMO)
        self.assertEqual(shown["file"], str(self.output))
        self.assertEqual(shown["bytes"] // 2**20, self.output.stat().st_size // 2**20)
        fields = {name: field.contents() for name, field in gguf.GGUFReader(self.output).fields.items()}
        expected = {
            "general.architecture": "llama", "general.name": DEMO.name, "general.file_type": gguf.LlamaFileType.MOSTLY_Q4_K_S,
            "general.quantization_version": 2, "llama.context_length": 32768, "llama.embedding_length": 512,
            "llama.block_count": 6, "llama.feed_forward_length": 1152, "llama.attention.head_count": 8,
            "llama.attention.head_count_kv": 2, "llama.rope.freq_base": 1e6, "llama.vocab_size": 4096,
            "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.bos_token_id": 0,
            "tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.eot_token_id": 3, "tokenizer.ggml.padding_token_id": 4,
            "tokenizer.ggml.add_bos_token": True,
            "tokenizer.chat_template": json.loads((DEMO / "tokenizer_config.json").read_text())["chat_template"]}
        self.assertEqual({name: fields.get(name) for name in expected}, expected)
        document = json.loads((DEMO / "tokenizer.json").read_text())
        self.assertEqual({token: i for i, token in enumerate(fields["tokenizer.ggml.tokens"])}, document["model"]["vocab"])
        pairs = [merge if isinstance(merge, str) else " ".join(merge) for merge in document["model"]["merges"]]
        self.assertEqual(fields["tokenizer.ggml.merges"], pairs)
        for prompt in ("The cache keeps", "def main():", "Ein Satz über Züge."):
            options = (prompt, "-n", "40", "--temperature", "0", "--device", "cpu")
            quantized = self.run_program("generate", "--model", DEMO, "--quantize", f"q4_k,{KEPT}", *options)
            self.assertEqual(quantized.returncode, 0, quantized.stderr)
            written = self.run_program("generate", "--model", self.output, *options)
            self.assertEqual(written.stdout, quantized.stdout, written.stderr)
            self.assertGreater(len(written.stdout), 20)

    def test_tokenizers(self):
        chance = random.Random(SEED)
        for tokenizer in ("llama-bpe", "qwen2", "llama"):
            with self.subTest(tokenizer=tokenizer):
                self.write_fixture("llama", tokenizer)
                self.quantize("q8_0")
                self.compare_ids(chance, self.model / "tokenizer.json")
        self.quantize("q8_0", DEMO)
        self.compare_ids(chance, DEMO / "tokenizer.json")

    def compare_ids(self, chance, path):
        specials = [token["content"] for token in json.loads(path.read_text())["added_tokens"]]
        texts = Texts(chance, specials)
        drawn = [texts.one().encode("utf-8", "replace") for _ in range(1000)]
        data = b"".join(struct.pack("<I", len(text)) + text for text in drawn)
        of_directory, of_file = (subprocess.run([self.dump, file], input=data, capture_output=True, check=True).stdout
                                 for file in (path, self.output))
        self.assertGreater(len(of_directory), len(data))
        self.assertTrue(of_directory == of_file)

    def refuse(self, named, *options, types="q8_0", output=None, code=1):
        result = self.run_program("quantize", "--model", self.model, "--output", output or self.output, "--type", types,
                                  *options)
        self.assertEqual(result.returncode, code, result.stderr)
        for text in named:
            self.assertIn(text, result.stderr)
        self.assertEqual([path.name for path in self.directory.iterdir() if ".unfinished" in path.name], [])

    def test_refusals(self):
        instead = "into a directory instead"
        self.write_fixture("olmo2")
        self.refuse(["Olmo2ForCausalLM", instead])
        self.write_fixture("llama", json.loads((TESTS / "tokenizer/fixtures/byte_level.json").read_text()))
        self.refuse(["tokenizer.json", "pre_tokenizer", "llama-bpe", instead])
        self.write_random()
        document = tokenizer_json("llama-bpe")
        document["added_tokens"][-1]["id"] = ROWS
        (self.model / "tokenizer.json").write_text(json.dumps(document))
        self.refuse(["embeddings"])
        document["added_tokens"][-1] |= {"id": ROWS - 1, "lstrip": True}
        (self.model / "tokenizer.json").write_text(json.dumps(document))
        self.refuse(["tokenizer.json", "'added_tokens'", instead])
        (self.model / "tokenizer.json").unlink()
        self.refuse(["tokenizer.json"])
        self.write_random()
        self.refuse(["'fp8' is not one of", "q4_k", "directory"], types="fp8", code=2)
        self.refuse(["'q4_k' is not one of", "NAME.gguf"], types="q4_k", output=self.directory / "folder", code=2)
        self.refuse(["lm_head", "embeddings, which stay"], types="q4_k,lm_head=q8_0", code=2)
        self.refuse(["--group-size"], "--group-size", "32", code=2)
        self.output.write_text("mine")
        self.refuse(["exists already"])
        self.assertEqual(self.output.read_text(), "mine")


if __name__ == "__main__":
    ProgramLogitsTest.program, QuantizeGgufTest.dump = sys.argv.pop(1), sys.argv.pop(1)
    print(f"LC_TEST_SEED={SEED}")
    unittest.main()
