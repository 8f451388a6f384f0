"""litecache_llm.KvCache against attention written out in NumPy, and litecache_llm.transformers against plain Transformers where
PyTorch is installed."""
import itertools
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np

from litecache_llm import CapacityError, InvalidArgument, KvCache, KvPart, LiteCacheError

ROOT = Path(__file__).resolve().parents[2]
SHAPE = {"layers": 2, "q_heads": 6, "kv_heads": 2, "head_dim": 24, "f32_rows": True, "threads": 2}


def attention(q, k, v, past, scale):
    """q [rows][q_heads][d] of the tokens from `past` on, k and v [tokens][kv_heads][d], in double precision."""
    group = q.shape[1] // k.shape[1]
    out = np.empty(q.shape)
    for head in range(q.shape[1]):
        scores = scale * q[:, head].astype(float) @ k[:, head // group].astype(float).T
        scores[np.arange(len(k))[None, :] > past + np.arange(len(q))[:, None]] = -np.inf
        weights = np.exp(scores - scores.max(1, keepdims=True))
        out[:, head] = weights / weights.sum(1, keepdims=True) @ v[:, head // group].astype(float)
    return out


class Sequences:
    """What the cache is given, and what it should return."""

    def __init__(self, seed=5):
        self.random = np.random.default_rng(seed)
        self.rows = {}  # (sequence, layer): (keys, values)

    def draw(self, rows, heads):
        return self.random.standard_normal((rows, heads, SHAPE["head_dim"]), dtype=np.float32)

    def step(self, test, cache, parts, scale=None):
        with cache.step(parts):
            for layer in range(SHAPE["layers"]):
                rows = sum(part.rows for part in parts)
                q, k, v = self.draw(rows, 6), self.draw(rows, 2), self.draw(rows, 2)
                out = cache.attend(layer, q, k, v, scale=scale)
                first = 0
                for part in parts:
                    own = slice(first, first + part.rows)
                    first += part.rows
                    past = self.rows.get((part.sequence, layer), (k[:0], v[:0]))
                    keys, values = np.concatenate([past[0], k[own]]), np.concatenate([past[1], v[own]])
                    self.rows[part.sequence, layer] = keys, values
                    expected = attention(q[own], keys, values, len(past[0]), SHAPE["head_dim"] ** -0.5 if scale is None else scale)
                    np.testing.assert_allclose(out[own], expected, atol=2e-5)


class WithNumpy(unittest.TestCase):
    def test_both_policies_with_all_rows_are_exact(self):
        for options in ({"kv_policy": "full"}, {"kv_policy": "litecache", "kv_budget": "100%", "host_memory": "64MiB"}):
            cache, sequences = KvCache(**SHAPE, device_memory="64MiB", **options), Sequences()
            first, second = cache.add(), cache.add()
            sequences.step(self, cache, [KvPart(first, 137), KvPart(second, 41)])
            sequences.step(self, cache, [KvPart(first, decode=True), KvPart(second, 1, True)])
            sequences.step(self, cache, [KvPart(second, decode=True), KvPart(first, 30)], scale=0.3)
            self.assertEqual((cache.length(first), cache.length(second)), (168, 43))
            copy = cache.fork(first)
            for layer in range(SHAPE["layers"]):
                sequences.rows[copy, layer] = sequences.rows[first, layer]
            sequences.step(self, cache, [KvPart(copy, decode=True), KvPart(first, decode=True)])
            cache.remove(first)
            with self.assertRaises(LiteCacheError):
                cache.length(first)

    def test_hits_are_counted(self):
        cache = KvCache(**SHAPE, device_memory="64MiB", host_memory="64MiB", kv_policy="litecache", kv_budget=64, sink=4, recent=16,
                        thresholds="fixed", eta=0.5, resident_first_layer=False)
        sequence, random = cache.add(), np.random.default_rng(3)
        same = random.standard_normal((1, 6, 24), dtype=np.float32)
        for step in range(6):
            part = KvPart(sequence, 1, True) if step else KvPart(sequence, 500)
            q = np.repeat(-same if step == 5 else same, part.rows, 0).reshape(part.rows, 144)
            with cache.step([part]):
                for layer in range(2):
                    k, v = (random.standard_normal((part.rows, 2, 24), dtype=np.float32) for _ in range(2))
                    out = np.empty_like(q)
                    self.assertIs(cache.attend(layer, q, k, v, out=out), out)
        # The query of the prompt's end finds its rows again in four steps, and its opposite does not.
        self.assertEqual(cache.stats()["lookups"], 5 * 4)
        self.assertEqual(cache.hit_ratios(), [[0.8, 0.8]] * 2)
        self.assertEqual(KvCache(**SHAPE, device_memory="1MiB", kv_policy="full").hit_ratios(), [])

    def test_errors(self):
        with self.assertRaisesRegex(InvalidArgument, "budgets"):
            KvCache(**SHAPE, kv_policy="full")
        with self.assertRaisesRegex(InvalidArgument, "'budge' is not an option"):
            KvCache(**SHAPE, device_memory="1MiB", budge=1)
        with self.assertRaisesRegex(LiteCacheError, "inputs|hidden|split"):
            KvCache(**SHAPE, device_memory="64MiB", host_memory="64MiB", kv_policy="kvpr", kvpr_split="50%")
        cache = KvCache(**SHAPE, device_memory="1MiB", kv_policy="full")
        sequence = cache.add()
        with self.assertRaises(CapacityError):
            cache.begin_step([KvPart(sequence, 100000)])
        good = [np.zeros((3, heads, 24), np.float32) for heads in (6, 2, 2)]
        with self.assertRaisesRegex(InvalidArgument, "BeginStep"):
            KvCache(**SHAPE, device_memory="1MiB", kv_policy="full").attend(0, *(array[:0] for array in good))
        cache.begin_step([KvPart(sequence, 3)])
        for at, wrong, words in [(0, good[1], r"q has the shape \[3, 2, 24\]; expected \[3, 6, 24\]"),
                                 (1, good[1].astype(np.float64), "k is neither float32, nor bfloat16, nor float16"),
                                 (1, good[1].astype(np.float16), "k is float16, but q is float32"),
                                 (2, np.zeros((3, 24, 2), np.float32).transpose(0, 2, 1), "v is not contiguous"),
                                 (2, [1, 2], "v: a list is no tensor")]:
            arrays = list(good)
            arrays[at] = wrong
            with self.assertRaisesRegex(InvalidArgument, words):
                cache.attend(0, *arrays, out=np.empty((3, 6, 24), np.float32))
        with self.assertRaisesRegex(InvalidArgument, "layer 2 of 2"):
            cache.attend(2, *good)
        with self.assertRaisesRegex(InvalidArgument, "q: a list is no tensor"):
            cache.attend(0, [1], *good[1:])
        with self.assertRaisesRegex(InvalidArgument, "the cache is on the CPU"):
            cache.attend(0, *good, stream=1)
        for device in ("gpu", "cuda:x", "cpu:1"):
            with self.assertRaisesRegex(InvalidArgument, f"device '{device}' is not 'cpu', 'cuda' or 'cuda:N'"):
                KvCache(**SHAPE, device=device, device_memory="1MiB", kv_policy="full")
        self.assertEqual(cache.attend(0, *good).shape, (3, 6, 24))

    def test_arrays_of_16_bits(self):
        random = np.random.default_rng(7)
        caches = [KvCache(**SHAPE, device="cpu", device_memory="64MiB", kv_policy="full") for _ in range(2)]
        parts = [KvPart(cache.add(), 33) for cache in caches]
        given = [random.standard_normal((33, heads, 24)).astype(np.float16) for heads in (6, 2, 2)]
        for cache, part in zip(caches, parts):
            cache.begin_step([part])
        out, expected = (cache.attend(0, *(array.astype(kind) for array in given))
                         for cache, kind in zip(caches, (np.float16, np.float32)))
        self.assertEqual(out.dtype, np.float16)
        np.testing.assert_array_equal(out, expected.astype(np.float16))

    def test_the_folders_of_nvidia_s_packages_are_found(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("cu13/lib", "nccl/lib", "cublas/include"):
                (Path(folder) / "nvidia" / name).mkdir(parents=True)
            code = "import os, litecache_llm; print(os.environ.get('LITECACHE_CUDA_LIBRARIES'))"
            environment = {name: value for name, value in os.environ.items() if name != "LITECACHE_CUDA_LIBRARIES"}
            environment["PYTHONPATH"] = ":".join(filter(None, [folder, environment.get("PYTHONPATH")]))
            for given, expected in [({}, f"{folder}/nvidia/cu13/lib:{folder}/nvidia/nccl/lib"),
                                    ({"LITECACHE_CUDA_LIBRARIES": "/mine"}, "/mine")]:
                printed = subprocess.run([sys.executable, "-c", code], env={**environment, **given}, check=True, capture_output=True,
                                         text=True).stdout
                self.assertTrue(printed.startswith(expected), printed)


try:
    import torch
    import transformers

    from litecache_llm.transformers import LiteCache
except ImportError:
    torch = None


@unittest.skipIf(torch is None, "needs PyTorch")
class WithTransformers(unittest.TestCase):
    MODELS = ("llama", "llama-llama3", "qwen2", "qwen3")

    @classmethod
    def setUpClass(cls):
        folder = ROOT / "tests/fixtures/models"
        cls.models = [transformers.AutoModelForCausalLM.from_pretrained(folder / name, dtype=torch.float32).eval()
                      for name in cls.MODELS]

    def generate(self, model, ids, **arguments):
        return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, min_new_tokens=12, pad_token_id=0,
                              return_dict_in_generate=True, output_logits=True, **arguments)

    def test_all_rows_give_the_tokens_and_logits_of_transformers(self):
        for model in self.models:
            ids = torch.randint(3, model.config.vocab_size, (2, 91), generator=torch.Generator().manual_seed(4))
            for arguments in ({"do_sample": False}, {"num_beams": 2, "do_sample": False}, {"prefill_chunk_size": 32, "do_sample": False}):
                plain = self.generate(model, ids, **arguments)
                for options in ({"kv_policy": "full"}, {"kv_policy": "litecache", "kv_budget": "100%", "host_memory": "64MiB"}):
                    cache = LiteCache(model, f32_rows=True, threads=2, device_memory="64MiB", **options)
                    ours = self.generate(model, ids, past_key_values=cache, **arguments)
                    self.assertTrue(torch.equal(plain.sequences, ours.sequences))
                    for expected, logits in zip(plain.logits, ours.logits):
                        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4 * expected.abs().max().item())
                    self.assertEqual(cache.get_seq_length(), 102)

    def test_the_logits_of_whole_prompts_of_odd_lengths(self):
        for model, length in itertools.product(self.models, (1, 17, 131)):
            ids = torch.arange(length)[None] % (model.config.vocab_size - 3) + 3
            with torch.no_grad():
                expected = model(ids).logits
                cache = LiteCache(model, f32_rows=True, threads=2, kv_policy="litecache", kv_budget="100%", device_memory="64MiB",
                                  host_memory="64MiB")
                logits = model(ids, past_key_values=cache).logits
            torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4 * expected.abs().max().item())

    def test_a_model_in_16_bits(self):
        for dtype in (torch.bfloat16, torch.float16):
            model = transformers.AutoModelForCausalLM.from_pretrained(ROOT / "tests/fixtures/models/llama", dtype=dtype).eval()
            ids = torch.arange(3, 103)[None]
            with torch.no_grad():
                plain, exact = model(ids).logits.double(), self.models[0](ids).logits.double()
                cache = LiteCache(model, f32_rows=dtype == torch.float16, threads=2, kv_policy="full", device_memory="64MiB")
                logits = model(ids, past_key_values=cache).logits
            self.assertEqual(logits.dtype, dtype)
            self.assertLess((logits.double() - exact).norm().item(), 1.5 * (plain - exact).norm().item())

    def test_hit_ratios(self):
        for model in self.models:
            self.check_hit_ratios(model)

    def check_hit_ratios(self, model):
        cache = LiteCache(model, kv_policy="litecache", kv_budget=32, sink=4, recent=8, device_memory="64MiB", host_memory="64MiB")
        self.generate(model, torch.arange(3, 190)[None], past_key_values=cache, do_sample=False)
        self.assertEqual(len(cache.hit_ratios()), model.config.num_hidden_layers)
        self.assertGreater(cache.stats()["lookups"], 0)

    def test_padding_is_refused(self):
        ids = torch.arange(3, 23)[None].repeat(2, 1)
        mask = torch.ones_like(ids)
        mask[0, :5] = 0
        with torch.no_grad(), self.assertRaisesRegex(LiteCacheError, "padding"):
            self.models[0](ids, attention_mask=mask, past_key_values=LiteCache(self.models[0], device_memory="64MiB", kv_policy="full"))
        # Without this cache the model attends as it did.
        with torch.no_grad():
            self.models[0](ids, attention_mask=mask)

    def test_taking_tokens_back_is_refused(self):
        ids = torch.arange(3, 23)[None].repeat(1, 3)
        cache = LiteCache(self.models[0], device_memory="64MiB", kv_policy="full")
        with self.assertRaisesRegex(LiteCacheError, "prompt_lookup_num_tokens"):
            self.models[0].generate(ids, attention_mask=torch.ones_like(ids), prompt_lookup_num_tokens=3, past_key_values=cache,
                                    do_sample=False, max_new_tokens=20)


if __name__ == "__main__":
    unittest.main()
