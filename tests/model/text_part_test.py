"""The language part of models that also read images gives the results of the same model by itself.

    text_part_test.py LITECACHE

The models are those of tests/fixtures/models, in the layouts in which models with images are published.
"""
import json
import shutil

# Skips the test where packages are missing.
from gguf_files import FIXTURES, Type, read_safetensors, write_safetensors
import numpy as np
from program_logits import ProgramLogitsTest, main

NESTED, FLAT = "model.language_model.", "model."


class TextPartTest(ProgramLogitsTest):
    def write(self, fixture, architecture, rope, nested):
        """A directory of the fixture with a matrix for images. nested: tensors and fields of the language part have a place of
        their own. rope: further parameters of RoPE."""
        config = json.loads((FIXTURES / fixture / "config.json").read_text())
        config.pop("layer_types")
        parameters = config.pop("rope_parameters")
        config |= {"rope_theta": parameters["rope_theta"], "rope_scaling": rope}
        whole = {"architectures": [architecture], "vision_config": {"depth": 1, "hidden_size": 8}}
        if nested:
            whole |= {"tie_word_embeddings": config.pop("tie_word_embeddings"), "text_config": config | {"architectures": None}}
        else:
            whole = config | whole
        tensors = {name.replace(FLAT, NESTED if nested else FLAT, 1): values
                   for name, (values, _) in read_safetensors(FIXTURES / fixture / "model.safetensors").items()}
        tensors[f"{FLAT if nested else ''}visual.blocks.0.attn.proj.weight"] = np.ones((8, 8), np.float32)
        path = self.directory / architecture
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        (path / "config.json").write_text(json.dumps(whole))
        write_safetensors(path / "model.safetensors", tensors, Type.BF16)
        return path

    def test_qwen(self):
        sections = {"mrope_section": [16, 24, 24]}
        for fixture, architecture, rope, nested in (
                ("qwen2", "Qwen2VLForConditionalGeneration", {"type": "mrope"} | sections, False),
                ("qwen2", "Qwen2_5_VLForConditionalGeneration", {"type": "mrope"} | sections, False),
                ("qwen2", "Qwen2_5_VLForConditionalGeneration", {"rope_type": "default"} | sections, True),
                ("qwen3", "Qwen3VLForConditionalGeneration",
                 {"rope_type": "default", "mrope_interleaved": True} | sections, True)):
            with self.subTest(architecture=architecture, nested=nested):
                np.testing.assert_array_equal(self.logits(self.write(fixture, architecture, rope, nested)),
                                              self.logits(FIXTURES / fixture))


if __name__ == "__main__":
    main()
