"""gpt-oss as it is published: experts in MXFP4, stacked, in a directory and as GGUF.

    gpt_oss_test.py LITECACHE

The model is tests/fixtures/models/gpt_oss with narrower experts, rounded to MXFP4 by the gguf package.
"""
import json
import pathlib
import struct
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
from gguf_files import FIXTURES, Type, read_safetensors, write_gguf

WIDE = 96  # the fixture's 112 is no multiple of a block
MXFP4_BYTES = 17


def to_mxfp4(stacked):
    """[experts, in, out] -> codes U8 [experts, out, in / 32, 16], scales U8 [experts, out, in / 32], rounded values."""
    rows = np.ascontiguousarray(stacked.transpose(0, 2, 1))
    packed = gguf.quants.quantize(rows, Type.MXFP4)
    blocks = packed.reshape(*rows.shape[:2], rows.shape[2] // 32, MXFP4_BYTES)
    codes = np.empty((*blocks.shape[:3], 16), np.uint8)
    for i in range(32):  # GGUF's byte j has codes j and j + 16, the published one 2 j and 2 j + 1
        code = blocks[..., 1 + i % 16] >> 4 * (i // 16) & 15
        codes[..., i // 2] = code if i % 2 == 0 else codes[..., i // 2] | code << 4
    values = gguf.quants.dequantize(packed, Type.MXFP4).reshape(rows.shape)
    return codes, np.ascontiguousarray(blocks[..., 0]), np.ascontiguousarray(values.transpose(0, 2, 1))


def write_directory(path, config, tensors):
    """{name: an array of U8 or F32}"""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    header, chunks, end = {}, [], 0
    for name, values in tensors.items():
        chunk = np.ascontiguousarray(values).tobytes()
        header[name] = {"dtype": "U8" if values.dtype == np.uint8 else "F32", "shape": values.shape,
                        "data_offsets": [end, end + len(chunk)]}
        chunks.append(chunk)
        end += len(chunk)
    text = json.dumps(header).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(chunks))
    return path


class GptOssTest(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.config = json.loads((FIXTURES / "gpt_oss/config.json").read_text()) | {"intermediate_size": WIDE}
        self.plain, self.quantized, self.kinds = {}, {}, {}
        for name, (values, _) in read_safetensors(FIXTURES / "gpt_oss/model.safetensors").items():
            if "gate_up_proj" in name:
                values = values[..., :2 * WIDE]
            elif name.endswith("down_proj"):
                values = values[:, :WIDE]
            self.kinds[name] = Type.F32
            if ".experts." in name and not name.endswith("_bias"):
                codes, scales, values = to_mxfp4(values)
                self.quantized |= {f"{name}_blocks": codes, f"{name}_scales": scales}
                self.kinds[name] = Type.MXFP4
            else:
                self.quantized[name] = values
            self.plain[name] = values

    def write(self, name="mxfp4", **changes):
        quantization = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
        return write_directory(self.directory / name, self.config | {"quantization_config": quantization},
                               self.quantized | changes)

    def run_program(self, command, model, *options):
        return subprocess.run([LITECACHE, command, "--model", model, "--device", "cpu", *options], text=True,
                              capture_output=True, check=False)

    def run_logits(self, model, *options):
        ids = self.directory / "ids"
        ids.write_text(" ".join(str(i * 7 % 189) for i in range(150)))
        return self.run_program("logits", model, "--tokens-file", ids, "--positions", "all", "--json", "--threads", "2",
                                *options)

    def logits(self, model, *options):
        result = self.run_logits(model, *options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return np.array(json.loads(result.stdout)["logits"])

    def test_values_are_those_of_the_blocks(self):
        plain = write_directory(self.directory / "plain", self.config | {"dtype": "float32"}, self.plain)
        expected, published = self.logits(plain), self.write()
        np.testing.assert_array_equal(self.logits(published, "--dtype", "f32"), expected)
        # What differs otherwise is that all but experts is bf16, as the KV cache is, and the experts that rounding
        # exchanges for some tokens.
        got = self.logits(published)
        errors = np.linalg.norm(got - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
        self.assertLess(np.median(errors), 0.05)
        path = self.directory / "model.gguf"
        write_gguf(path, self.config, {name: (values, self.kinds[name]) for name, values in self.plain.items()})
        np.testing.assert_array_equal(self.logits(path), got)
        shown = json.loads(self.run_program("inspect", published, "--json").stdout)
        experts = sum(values.size for name, values in self.plain.items() if self.kinds[name] == Type.MXFP4)
        rest = sum(v.size * (2 if v.ndim == 2 and "_bias" not in n else 4) for n, v in self.plain.items()
                   if self.kinds[n] != Type.MXFP4)
        self.assertEqual(shown["memory"]["weights"], experts // 32 * MXFP4_BYTES + rest)

    def test_tensors_that_do_not_fit_are_refused(self):
        part = "model.layers.1.mlp.experts.gate_up_proj"
        codes, scales = self.quantized[f"{part}_blocks"], self.quantized[f"{part}_scales"]
        bias = self.quantized[f"{part}_bias"]
        cases = (
            (f"{part}_blocks", codes[:, :-2], "U8 [6, 190, 2, 16]"),
            (f"{part}_blocks", codes[:4], "U8 [4, 192, 2, 16]"),
            (f"{part}_blocks", codes.astype(np.float32), "F32 [6, 192, 2, 16]"),
            (f"{part}_scales", scales[..., :1], "U8 [6, 192, 1]"),
            (f"{part}_bias", bias[:5], "F32 [5, 192]"),
            ("model.layers.2.self_attn.sinks", np.zeros(5, np.float32), "F32 [5]"),
        )
        for name, values, found in cases:
            with self.subTest(tensor=name, found=found):
                path = self.write(f"model{len(list(self.directory.iterdir()))}", **{name: values})
                error = self.run_logits(path).stderr
                self.assertIn(f"'{name}'", error)
                self.assertIn(found, error)
        self.quantized.pop(f"{part}_scales")
        self.assertIn(f"tensor '{part}_scales'", self.run_logits(self.write()).stderr)


if __name__ == "__main__":
    LITECACHE = sys.argv.pop(1)
    unittest.main()
