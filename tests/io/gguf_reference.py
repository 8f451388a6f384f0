"""Compares the values of quantized blocks with those of the package gguf, bit for bit.

    gguf_reference.py GGUF_DUMP

Blocks are random bytes, so that every bit of a block matters and scales are of any size, infinite or not a number
too. LC_TEST_SEED repeats a run.
"""
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

try:
    import gguf
    import numpy as np
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

SEED = int(os.environ.get("LC_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
         "IQ4_XS", "MXFP4")
ROWS, BLOCKS = 64, 8


class BlocksTest(unittest.TestCase):
    def test_values_are_those_of_the_package(self):
        chance = np.random.default_rng(SEED)
        expected = {}
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "blocks.gguf"
            writer = gguf.GGUFWriter(path, "llama")
            for name in TYPES:
                kind = gguf.GGMLQuantizationType[name]
                data = chance.integers(0, 256, (ROWS, BLOCKS * gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)
                writer.add_tensor(name, data, raw_dtype=kind)
                with np.errstate(all="ignore"):
                    expected[name] = gguf.quants.dequantize(data, kind).astype(np.float32).reshape(-1)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
            output = subprocess.run([DUMP, path], stdout=subprocess.PIPE, check=True).stdout
        values = np.frombuffer(output, np.float32)
        for name in sorted(expected):
            with self.subTest(type=name):
                got, values = values[:expected[name].size], values[expected[name].size:]
                bits, wanted = got.view(np.uint32), expected[name].view(np.uint32)
                differ = np.flatnonzero((bits != wanted) & ~(np.isnan(got) & np.isnan(expected[name])))
                self.assertGreater(np.isfinite(got).sum(), got.size // 2)
                self.assertEqual(differ.size, 0, f"value {differ[:1]}: {got[differ[:1]]}, {expected[name][differ[:1]]}")
        self.assertEqual(values.size, 0)


if __name__ == "__main__":
    DUMP = sys.argv.pop(1)
    print(f"LC_TEST_SEED={SEED}")
    unittest.main()
