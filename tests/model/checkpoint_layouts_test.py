"""Directories that have a model's tensors in other forms than Transformers' save_pretrained() writes by default.

    checkpoint_layouts_test.py LITECACHE

The models are those of tests/fixtures/models.
"""
import json
import shutil
import subprocess

# Skips the test where packages are missing.
from gguf_files import FIXTURES, SEED, Type, read_safetensors, write_safetensors
import numpy as np
from program_logits import ProgramLogitsTest, main

HEAD, EMBEDDINGS = "lm_head.weight", "model.embed_tokens.weight"


class CheckpointLayoutsTest(ProgramLogitsTest):
    def write(self, fixture, tensors, dtype, **fields):
        """A directory of the fixture with these tensors and fields of its config."""
        path = self.directory / "model"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(FIXTURES / fixture, path)
        config = json.loads((path / "config.json").read_text()) | fields
        (path / "config.json").write_text(json.dumps(config))
        write_safetensors(path / "model.safetensors", tensors, dtype)
        return path

    def test_stacked_experts(self):
        """As save_pretrained(save_original_format=False) has them: all of a layer in two tensors."""
        for fixture in ("qwen3_moe", "qwen2_moe", "qwen3_next", "glm4_moe", "ernie4_5_moe", "olmoe"):
            tensors = {name: values for name, (values, _) in read_safetensors(FIXTURES / fixture / "model.safetensors").items()}
            prefixes = {name.split(".experts.")[0] + ".experts." for name in tensors if ".experts." in name}
            self.assertGreater(len(prefixes), 0)
            for prefix in prefixes:
                count = sum(name.startswith(prefix) for name in tensors) // 3
                gate, up, down = (np.stack([tensors.pop(f"{prefix}{expert}.{part}_proj.weight") for expert in range(count)])
                                  for part in ("gate", "up", "down"))
                tensors |= {prefix + "gate_up_proj": np.concatenate([gate, up], 1), prefix + "down_proj": down}
            with self.subTest(model=fixture):
                np.testing.assert_array_equal(self.logits(self.write(fixture, tensors, Type.BF16)),
                                              self.logits(FIXTURES / fixture))

    def test_head_of_its_own(self):
        """Of a model whose config ties it to the embeddings: it counts where it is another matrix."""
        fixture = "llama-llama3"
        tensors = {name: values for name, (values, _) in read_safetensors(FIXTURES / fixture / "model.safetensors").items()}
        self.assertNotIn(HEAD, tensors)
        tied = self.logits(FIXTURES / fixture)
        tensors[HEAD] = tensors[EMBEDDINGS]
        np.testing.assert_array_equal(self.logits(self.write(fixture, tensors, Type.F32)), tied)
        generator = np.random.default_rng(SEED)
        tensors[HEAD] = generator.standard_normal(tensors[EMBEDDINGS].shape).astype(np.float32)
        own = self.logits(self.write(fixture, tensors, Type.F32))
        self.assertGreater(np.abs(own - tied).max(), 0.1)
        np.testing.assert_array_equal(own, self.logits(self.write(fixture, tensors, Type.F32, tie_word_embeddings=False)))
        quantized = self.directory / "quantized"
        subprocess.run([self.program, "quantize", "--model", self.write(fixture, tensors, Type.F32), "--output", quantized,
                        "--type", "none,lm_head=w8a16", "--group-size", "32", "--no-progress"], check=True, capture_output=True)
        self.assertLess(np.abs(self.logits(quantized, "--dtype", "f32") - own).max(), 0.05 * np.abs(own).max())


if __name__ == "__main__":
    print(f"LC_TEST_SEED={SEED}")
    main()
