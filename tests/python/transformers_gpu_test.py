"""litecache_llm.transformers and LLM on a GPU, against plain Transformers and the CPU. Skipped without a GPU."""
import subprocess
import sys
import unittest
from pathlib import Path

import gpu
from gpu import torch

from litecache_llm import LLM, SamplingParams

try:
    import transformers

    from litecache_llm.transformers import LiteCache
except ImportError:
    transformers = None

ROOT = Path(__file__).resolve().parents[2]
SIZES = {"vocab_size": 600, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 5, "max_position_embeddings": 4096,
         "tie_word_embeddings": False, "initializer_range": 0.1}
MEMORY = {"device_memory": "256MiB", "host_memory": "256MiB"}
POLICIES = [{"kv_policy": "full", "device_memory": "256MiB"},
            {"kv_policy": "litecache", "kv_budget": "100%", "host_rows": "full", **MEMORY}]


@unittest.skipIf(transformers is None, "needs Transformers 5")
class Models(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.random = gpu.new_random()
        torch.manual_seed(cls.random.initial_seed())
        groups = {"num_attention_heads": 8, "num_key_value_heads": 2}
        cls.configs = [transformers.LlamaConfig(**SIZES, num_attention_heads=4, num_key_value_heads=4),
                       transformers.LlamaConfig(**SIZES, **groups, head_dim=128),
                       transformers.Qwen2Config(**SIZES, **groups, head_dim=64),
                       transformers.Qwen3Config(**SIZES, **groups, head_dim=128)]

    def models(self, dtype):
        for config in self.configs:
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval().to("cuda", dtype)
            yield model

    def draw(self, batch, tokens):
        return torch.randint(3, SIZES["vocab_size"], (batch, tokens), device="cuda", generator=self.random)

    def logits(self, model, ids, cache, cuts):
        """Of all tokens, given to the model in parts that end at `cuts`."""
        parts = []
        with torch.no_grad():
            for begin, end in zip([0, *cuts], [*cuts, ids.shape[1]]):
                parts.append(model(ids[:, begin:end], past_key_values=cache, use_cache=True).logits.double())
        return torch.cat(parts, 1)

    def cases(self, ids):
        """A prompt at once, and one in parts with tokens one at a time behind it."""
        tokens = ids.shape[1]
        return [[], [1], [97, 300, *range(tokens - 20, tokens)]]

    def test_logits_in_float32_are_those_of_transformers(self):
        for model in self.models(torch.float32):
            ids = self.draw(2, 400)
            with torch.no_grad():
                expected = model(ids).logits.double()
            for options in POLICIES:
                for cuts in self.cases(ids):
                    cache = LiteCache(model, f32_rows=True, **options)
                    self.assertEqual(cache.kv.device, "cuda:0")
                    error = (self.logits(model, ids, cache, cuts) - expected).abs().max() / expected.abs().max()
                    self.assertLess(error.item(), 1e-4, (model.config.model_type, options["kv_policy"], len(cuts)))
                    self.assertEqual(cache.get_seq_length(), 400)

    def test_logits_in_16_bits_are_as_exact_as_transformers_own(self):
        for dtype in (torch.bfloat16, torch.float16):
            for model in self.models(dtype):
                ids = self.draw(1, 400)
                with torch.no_grad():
                    plain = model(ids).logits.double()
                    model.float()
                    exact = model(ids).logits.double()
                    model.to(dtype)
                own = (plain - exact).norm() / exact.norm()
                for options in POLICIES:
                    for cuts in self.cases(ids):
                        # f16 has three bits more than bf16's rows.
                        cache = LiteCache(model, f32_rows=dtype == torch.float16, **options)
                        error = (self.logits(model, ids, cache, cuts) - exact).norm() / exact.norm()
                        self.assertLess(error.item(), 1.5 * own.item(), (model.config.model_type, options["kv_policy"], len(cuts)))

    def test_generate(self):
        model = next(self.models(torch.float32))
        ids = self.draw(2, 150)
        arguments = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 15, "min_new_tokens": 15, "pad_token_id": 0,
                     "do_sample": False, "return_dict_in_generate": True, "output_logits": True, "output_scores": True}
        for options in POLICIES:
            for more in ({}, {"prefill_chunk_size": 64}):
                cache = LiteCache(model, f32_rows=True, **options)
                answer = model.generate(ids, past_key_values=cache, **arguments, **more)
                with torch.no_grad():
                    expected = model(answer.sequences).logits[:, 149:-1]
                self.assertLess(((torch.stack(answer.logits, 1) - expected).abs().max() / expected.abs().max()).item(), 1e-4)
            plain = model.generate(ids, num_beams=3, **arguments)
            beams = model.generate(ids, num_beams=3, past_key_values=LiteCache(model, f32_rows=True, **options), **arguments)
            torch.testing.assert_close(beams.sequences_scores, plain.sequences_scores, rtol=1e-3, atol=1e-3)

    def test_a_cache_on_the_cpu_for_a_model_on_the_gpu(self):
        model = next(self.models(torch.bfloat16))
        ids = self.draw(1, 120)
        with torch.no_grad():
            expected = model(ids).logits.double()
        logits = self.logits(model, ids, LiteCache(model, device="cpu", **POLICIES[0]), [50])
        self.assertLess(((logits - expected).norm() / expected.norm()).item(), 0.05)

    def test_a_side_stream(self):
        model = next(self.models(torch.float32))
        ids = self.draw(1, 200)
        with torch.no_grad():
            expected = model(ids).logits.double()
        torch.cuda.synchronize()
        for options in POLICIES:
            with torch.cuda.stream(torch.cuda.Stream()):
                logits = self.logits(model, ids, LiteCache(model, f32_rows=True, **options), [130, 199])
                error = (logits - expected).abs().max() / expected.abs().max()
                self.assertLess(error.item(), 1e-4)

    def test_hit_ratios(self):
        for model in self.models(torch.bfloat16):
            cache = LiteCache(model, kv_policy="litecache", kv_budget=32, sink=4, recent=8, resident_first_layer=False, **MEMORY)
            ids = self.draw(1, 300)
            self.logits(model, ids, cache, range(260, 300))
            self.assertEqual(cache.stats()["lookups"], 40 * 5 * model.config.num_key_value_heads)
            ratios = cache.hit_ratios()
            self.assertEqual([len(layer) for layer in ratios], [model.config.num_key_value_heads] * 5)
            self.assertTrue(all(0 <= ratio <= 1 for layer in ratios for ratio in layer))


class Engine(unittest.TestCase):
    PROGRAM = """
import sys
from litecache_llm import LLM, SamplingParams
with LLM(sys.argv[1], device="cuda", max_context="4k") as llm:
    print(llm.generate(["def main("], SamplingParams(temperature=0, max_tokens=24))[0].outputs[0].token_ids)
assert "torch" not in sys.modules
"""

    def test_llm_finds_cublas_without_pytorch(self):
        model = ROOT / "models/litecache-demo-16m"
        done = subprocess.run([sys.executable, "-c", self.PROGRAM, model], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        with LLM(model, device="cpu", threads=4, max_context="4k") as llm:
            expected = llm.generate(["def main("], SamplingParams(temperature=0, max_tokens=24))[0].outputs[0].token_ids
        self.assertEqual(done.stdout.strip(), str(expected))


if __name__ == "__main__":
    gpu.main()
