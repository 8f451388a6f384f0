"""The mixed attention of tools/importance against plain masks, whole models and finite differences."""

import os
import pathlib
import random
import sys
import unittest

try:
    import torch
except ImportError:
    print("skipped: needs torch")
    sys.exit(77)

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "importance"))

from transformers import AutoConfig, AutoModelForCausalLM, logging  # noqa: E402

from mixed_attention import HeadMix, full_attention, streaming_attention  # noqa: E402

logging.disable_progress_bar()
SEED = int(os.environ.get("LC_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


def visible(length, sink, recent):
    """[length, length]: which keys a query sees, directly from the definition."""
    query, key = torch.arange(length)[:, None], torch.arange(length)[None]
    return (key <= query) & ((key < sink) | (key > query - recent))


def masked(q, k, v, scaling, mask):
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = (q @ k.mT * scaling).masked_fill(~mask, float("-inf"))
    return scores.softmax(-1) @ v


class AttentionTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(SEED)
        self.rng = random.Random(SEED)

    def inputs(self, length, heads, kv_heads, dim):
        shape = lambda h: torch.randn(1, h, length, dim, dtype=torch.float64, requires_grad=True)
        return shape(heads), shape(kv_heads), shape(kv_heads)

    def test_streaming_is_the_masked_attention(self):
        cases = [(1, 0, 1, 1), (700, 0, 1, 2), (523, 4, 64, 4), (385, 128, 256, 3), (384, 128, 256, 1), (129, 1, 127, 2)]
        cases += [(self.rng.randrange(1, 900), self.rng.randrange(0, 150), self.rng.randrange(1, 300), self.rng.randrange(1, 5))
                  for _ in range(12)]
        for length, sink, recent, group in cases:
            with self.subTest(seed=SEED, length=length, sink=sink, recent=recent, group=group):
                q, k, v = self.inputs(length, 2 * group, 2, 12)
                got = streaming_attention(q, k, v, 0.3, sink, recent)
                want = masked(q, k, v, 0.3, visible(length, sink, recent))
                torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
                weight = torch.randn_like(got)
                for a, b in zip(torch.autograd.grad((got * weight).sum(), (q, k, v)),
                                torch.autograd.grad((want * weight).sum(), (q, k, v))):
                    torch.testing.assert_close(a, b, rtol=0, atol=1e-11)

    def test_full_is_causal(self):
        q, k, v = self.inputs(77, 6, 3, 10)
        want = masked(q, k, v, 0.2, visible(77, 77, 77))
        torch.testing.assert_close(full_attention(q, k, v, 0.2), want, rtol=0, atol=1e-12)


class ModelTest(unittest.TestCase):
    """Small random models of every family, in double precision."""

    SINK, RECENT = 3, 21

    def models(self):
        for family in FAMILIES:
            torch.manual_seed(SEED)
            folder = ROOT / "tests" / "fixtures" / "models" / family
            config = AutoConfig.from_pretrained(folder)
            plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
            mix = HeadMix(config.num_hidden_layers, config.num_attention_heads, self.SINK, self.RECENT, "cpu")
            mixed = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation=HeadMix.NAME)
            mix.alpha.data = mix.alpha.data.double()
            mixed.eval().requires_grad_(False)
            ids = torch.randint(0, config.vocab_size, (1, 173))
            yield family, plain, mixed, mix, ids

    @staticmethod
    def hidden(model, ids, mask=None):
        return model.model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state

    def test_one_is_full_and_zero_is_streaming(self):
        for family, plain, mixed, mix, ids in self.models():
            with self.subTest(seed=SEED, family=family):
                with torch.no_grad():
                    full = self.hidden(plain, ids)
                    torch.testing.assert_close(self.hidden(mixed, ids), full, rtol=1e-5, atol=1e-5)
                    mix.mixing = True
                    torch.testing.assert_close(self.hidden(mixed, ids), full, rtol=1e-5, atol=1e-5)
                    mix.alpha.zero_()
                    got = self.hidden(mixed, ids)
                    bias = torch.zeros(173, 173, dtype=torch.float64).masked_fill_(~visible(173, self.SINK, self.RECENT), -1e30)
                    streaming = self.hidden(plain, ids, bias[None, None])
                    torch.testing.assert_close(got, streaming, rtol=1e-5, atol=1e-5)
                    self.assertGreater((full - streaming).abs().max(), 1e-3)

    def test_gradients_are_the_finite_differences(self):
        for family, _, mixed, mix, ids in self.models():
            with self.subTest(seed=SEED, family=family):
                mix.mixing = True
                mix.alpha.data.uniform_(0.1, 0.9)
                weight = torch.randn_like(self.hidden(mixed, ids))
                loss = lambda: (self.hidden(mixed, ids) * weight).sum()
                gradient = torch.autograd.grad(loss(), mix.alpha)[0]
                scale = gradient.abs().max().item()
                self.assertGreater(scale, 0)
                flat = mix.alpha.data.view(-1)
                with torch.no_grad():
                    # The models' norms round to single precision, so the step is large.
                    for head in random.Random(SEED).sample(range(flat.numel()), min(6, flat.numel())):
                        was = flat[head].item()
                        flat[head] = was + 1e-2
                        above = loss().item()
                        flat[head] = was - 1e-2
                        below = loss().item()
                        flat[head] = was
                        self.assertAlmostEqual((above - below) / 2e-2, gradient.view(-1)[head].item(), delta=2e-3 * scale)

    def test_checkpointing_changes_no_gradient(self):
        for family, _, mixed, mix, ids in self.models():
            with self.subTest(seed=SEED, family=family):
                mix.mixing = True
                mix.alpha.data.uniform_(0.1, 0.9)
                gradient = lambda: torch.autograd.grad(self.hidden(mixed, ids).square().sum(), mix.alpha)[0]
                plain = gradient()
                mixed.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
                mixed.train()
                torch.testing.assert_close(gradient(), plain, rtol=1e-9, atol=1e-9)


if __name__ == "__main__":
    print(f"LC_TEST_SEED={SEED}")
    unittest.main()
