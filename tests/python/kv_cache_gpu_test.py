"""litecache_llm.KvCache on a GPU, on PyTorch's tensors, against attention in double precision. Skipped without a GPU."""
import threading
import unittest

import gpu
from gpu import torch

from litecache_llm import CapacityError, InvalidArgument, KvCache, KvPart, LiteCacheError

SHAPE = {"layers": 2, "q_heads": 8, "kv_heads": 2, "head_dim": 64}
HEADS = {"q": 8, "k": 2, "v": 2}
MEMORY = {"device_memory": "256MiB", "host_memory": "256MiB"}
FULL = {"kv_policy": "full", "device_memory": "256MiB"}
# Rows as they are also on the host, so that only roundings to the rows' dtype remain.
ALL_ROWS = {"kv_policy": "litecache", "kv_budget": "100%", "host_rows": "full", **MEMORY}


def attention(q, k, v, past, scale):
    """q [rows][q_heads][d] of the tokens from `past` on, k and v [tokens][kv_heads][d], in double precision."""
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    k, v = (x.repeat_interleave(len(q) // len(k), 0) for x in (k, v))
    scores = scale * q @ k.transpose(1, 2)
    tokens = torch.arange(k.shape[1], device=q.device)
    scores.masked_fill_(tokens > past + torch.arange(q.shape[1], device=q.device)[:, None], -torch.inf)
    return (scores.softmax(-1) @ v).transpose(0, 1)


def largest_error(out, expected):
    """Of all rows and heads, relative to the vector's size."""
    return ((out.double() - expected).norm(dim=-1) / expected.norm(dim=-1)).max().item()


class Sequences:
    """What a cache is given, and what it should return."""

    def __init__(self, random, dtype, tolerance):
        self.random, self.dtype, self.tolerance = random, dtype, tolerance
        self.rows = {}  # (sequence, layer): (keys, values)

    def draw(self, rows):
        """New queries, keys and values, made on the current stream."""
        return [torch.randn(rows, HEADS[name], SHAPE["head_dim"], device="cuda", generator=self.random).to(self.dtype) for name in "qkv"]

    def step(self, test, cache, parts, scale=None):
        rows = sum(part.rows for part in parts)
        with cache.step(parts):
            for layer in range(SHAPE["layers"]):
                q, k, v = self.draw(rows)
                out = cache.attend(layer, q, k, v, scale=scale)
                test.assertEqual((out.device, out.dtype, out.shape), (q.device, q.dtype, q.shape))
                self.check(test, layer, parts, q, k, v, out, SHAPE["head_dim"] ** -0.5 if scale is None else scale)

    def check(self, test, layer, parts, q, k, v, out, scale):
        first = 0
        for part in parts:
            own = slice(first, first + part.rows)
            first += part.rows
            past = self.rows.get((part.sequence, layer), (k[:0], v[:0]))
            keys, values = torch.cat([past[0], k[own]]), torch.cat([past[1], v[own]])
            self.rows[part.sequence, layer] = keys, values
            error = largest_error(out[own], attention(q[own], keys, values, len(past[0]), scale))
            test.assertLess(error, self.tolerance, part)

    def fork(self, cache, sequence):
        copy = cache.fork(sequence)
        for layer in range(SHAPE["layers"]):
            self.rows[copy, layer] = self.rows[sequence, layer]
        return copy


class OnGpu(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.random = gpu.new_random()

    def test_prompts_in_chunks_and_generated_tokens(self):
        # Attention in bf16 rounds queries and probabilities; results are rounded to their dtype.
        cases = [(torch.float32, True, 1e-4), (torch.bfloat16, True, 2**-8), (torch.float16, True, 2**-11 + 1e-4),
                 (torch.float32, False, 2**-5), (torch.bfloat16, False, 2**-5), (torch.float16, False, 2**-5)]
        for options in (FULL, ALL_ROWS):
            for dtype, f32_rows, tolerance in cases:
                with self.subTest(options["kv_policy"], dtype=dtype, f32_rows=f32_rows):
                    cache = KvCache(**SHAPE, f32_rows=f32_rows, device="cuda", **options)
                    self.assertEqual(cache.device, "cuda:0")
                    sequences = Sequences(self.random, dtype, tolerance)
                    first, second = cache.add(), cache.add()
                    sequences.step(self, cache, [KvPart(first, 1037), KvPart(second, 41)])
                    sequences.step(self, cache, [KvPart(first, 333)])
                    for _ in range(20):
                        sequences.step(self, cache, [KvPart(first, decode=True), KvPart(second, decode=True)])
                    sequences.step(self, cache, [KvPart(second, decode=True), KvPart(first, 130)], scale=0.3)
                    self.assertEqual((cache.length(first), cache.length(second)), (1520, 62))
                    copy = sequences.fork(cache, first)
                    for _ in range(3):
                        sequences.step(self, cache, [KvPart(copy, decode=True), KvPart(first, decode=True)])
                    for sequence in (first, second, copy):
                        cache.remove(sequence)
                    self.assertEqual(cache.stats()["used"]["device"], 0)

    def test_rows_in_8_bits_on_the_host(self):
        options = {**ALL_ROWS, "host_rows": "int8", "resident_first_layer": False}
        cache, sequences = KvCache(**SHAPE, device="cuda:0", **options), Sequences(self.random, torch.bfloat16, 2**-4)
        sequence = cache.add()
        sequences.step(self, cache, [KvPart(sequence, 700)])
        for _ in range(100):
            sequences.step(self, cache, [KvPart(sequence, decode=True)])
        self.assertGreater(cache.stats()["used"]["host"], 0)

    def test_work_takes_its_turn_on_pytorch_s_current_stream(self):
        for options in (FULL, ALL_ROWS):
            cache, sequences = KvCache(**SHAPE, f32_rows=True, device="cuda", **options), Sequences(self.random, torch.float32, 1e-4)
            sequence = cache.add()
            streams = [torch.cuda.Stream(), torch.cuda.default_stream(), torch.cuda.Stream()]
            torch.cuda.synchronize()
            turn = 0
            for parts in [KvPart(sequence, 500)], [KvPart(sequence, 70)], *[[KvPart(sequence, decode=True)]] * 8:
                made = []
                with cache.step(parts):
                    for layer in range(SHAPE["layers"]):
                        with torch.cuda.stream(streams[turn % 3]):
                            inputs = self.late(sequences.draw(parts[0].rows))
                            out = cache.attend(layer, *inputs)
                            # What a call that is late would read, and what one that is early would have written.
                            kept = [tensor.clone() for tensor in (*inputs, out)]
                            for tensor in (*inputs, out):
                                tensor.fill_(torch.nan)
                            made.append(kept)
                        turn += 1
                torch.cuda.synchronize()
                for layer, (q, k, v, out) in enumerate(made):
                    sequences.check(self, layer, parts, q, k, v, out, SHAPE["head_dim"] ** -0.5)

    def late(self, tensors):
        """Copies that are made some milliseconds after the host has enqueued them."""
        torch.cuda._sleep(20_000_000)
        return [tensor.clone() for tensor in tensors]

    def test_a_stream_that_is_not_the_current_one(self):
        for kind in (lambda stream: stream, lambda stream: stream.cuda_stream):
            cache, sequences = KvCache(**SHAPE, f32_rows=True, device="cuda", **FULL), Sequences(self.random, torch.float32, 1e-4)
            sequence, side = cache.add(), torch.cuda.Stream()
            for part in (KvPart(sequence, 900), KvPart(sequence, decode=True)):
                with cache.step([part]):
                    for layer in range(SHAPE["layers"]):
                        drawn = sequences.draw(part.rows)
                        with torch.cuda.stream(side):
                            torch.cuda._sleep(60_000_000)
                        inputs = self.late(drawn)
                        out = cache.attend(layer, *inputs, stream=kind(side))
                        # Their memory must not be taken for what the current stream allocates now.
                        shapes = [tensor.shape for tensor in inputs]
                        del inputs
                        taken = [torch.full(shape, torch.nan, device="cuda") for shape in shapes]
                        side.synchronize()
                        sequences.check(self, layer, [part], *drawn, out, SHAPE["head_dim"] ** -0.5)
                        del taken

    def test_two_caches_at_once(self):
        failures = []

        def work(options, dtype, tolerance, seed):
            try:
                with torch.cuda.stream(torch.cuda.Stream()):
                    cache = KvCache(**SHAPE, f32_rows=dtype == torch.float32, device="cuda", **options)
                    sequences = Sequences(torch.Generator("cuda").manual_seed(seed), dtype, tolerance)
                    sequence = cache.add()
                    sequences.step(self, cache, [KvPart(sequence, 800)])
                    for _ in range(30):
                        sequences.step(self, cache, [KvPart(sequence, decode=True)])
            except BaseException as error:
                failures.append(error)

        cases = [(FULL, torch.float32, 1e-4), (ALL_ROWS, torch.bfloat16, 2**-5), (ALL_ROWS, torch.float32, 1e-4)]
        seeds = torch.randint(2**31, (len(cases),), device="cuda", generator=self.random).tolist()
        threads = [threading.Thread(target=work, args=(*case, seed)) for case, seed in zip(cases, seeds)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        # And in turns in one thread.
        caches = [KvCache(**SHAPE, f32_rows=True, device="cuda", **options) for options in (FULL, ALL_ROWS)]
        pairs = [(cache, Sequences(self.random, torch.float32, 1e-4), cache.add()) for cache in caches]
        for rows in (300, 1, 1, 1):
            part = {"rows": rows, "decode": rows == 1}
            for cache, _, sequence in pairs:
                cache.begin_step([KvPart(sequence, **part)])
            for layer in range(SHAPE["layers"]):
                for cache, sequences, sequence in pairs:
                    q, k, v = sequences.draw(rows)
                    out = cache.attend(layer, q, k, v)
                    sequences.check(self, layer, [KvPart(sequence, **part)], q, k, v, out, SHAPE["head_dim"] ** -0.5)
            for cache, _, _ in pairs:
                cache.end_step()

    def test_hits_are_those_of_the_cpu(self):
        options = {"kv_policy": "litecache", "kv_budget": 64, "sink": 4, "recent": 16, "thresholds": "fixed", "eta": 0.5,
                   "retriever": "exact", "resident_first_layer": False, "prefetch": "0", **MEMORY}
        caches = [KvCache(**SHAPE, f32_rows=True, device=device, **options) for device in ("cpu", "cuda")]
        ids = [cache.add() for cache in caches]
        direction = torch.randn(1, 8, 64, device="cuda", generator=self.random)
        for step in range(24):
            part = {"rows": 1, "decode": True} if step else {"rows": 600}
            rows = part["rows"]
            if step % 5 == 4:
                direction = torch.randn(1, 8, 64, device="cuda", generator=self.random)
            for cache, sequence in zip(caches, ids):
                cache.begin_step([KvPart(sequence, **part)])
            for layer in range(2):
                k, v = (torch.randn(rows, 2, 64, device="cuda", generator=self.random) for _ in range(2))
                q = direction.repeat(rows, 1, 1) + 0.01 * torch.randn(rows, 8, 64, device="cuda", generator=self.random)
                expected = caches[0].attend(layer, q.cpu(), k.cpu(), v.cpu())
                out = caches[1].attend(layer, q, k, v)
                self.assertLess(largest_error(out.cpu(), expected.double()), 1e-3)
            for cache in caches:
                cache.end_step()
        lookups = [cache.stats()["lookups"] for cache in caches]
        self.assertEqual(lookups, [23 * 4] * 2)
        self.assertEqual(caches[1].hit_ratios(), caches[0].hit_ratios())
        self.assertTrue(all(0.4 < ratio < 1 for layer in caches[1].hit_ratios() for ratio in layer), caches[1].hit_ratios())

    def test_tensors_of_another_library(self):
        class Foreign:
            """A tensor that is none of PyTorch's, and notes the stream it is asked for."""

            def __init__(self, tensor):
                self.tensor, self.streams = tensor, []

            def __dlpack_device__(self):
                return tuple(map(int, self.tensor.__dlpack_device__()))

            def __dlpack__(self, *, stream=None):
                self.streams.append(stream)
                return self.tensor.__dlpack__(stream=stream)

        sequences, side = Sequences(self.random, torch.float32, 1e-4), torch.cuda.Stream()
        cache = KvCache(**SHAPE, f32_rows=True, device="cuda", **FULL)
        part = KvPart(cache.add(), 10)
        with cache.step([part]):
            for layer, (stream, asked) in enumerate([(None, 1), (side.cuda_stream, side.cuda_stream)]):
                tensors = [*sequences.draw(10), torch.empty(10, 8, 64, device="cuda")]
                foreign = [Foreign(tensor) for tensor in tensors]
                self.assertIs(cache.attend(layer, *foreign[:3], out=foreign[3], stream=stream), foreign[3])
                self.assertEqual([tensor.streams for tensor in foreign], [[asked]] * 4)
                torch.cuda.synchronize()
                sequences.check(self, layer, [part], *tensors, 64**-0.5)

    def test_errors(self):
        cache = KvCache(**SHAPE, device="cuda", **FULL)
        sequence = cache.add()
        with self.assertRaises(CapacityError):
            cache.begin_step([KvPart(sequence, 10_000_000)])
        cache.begin_step([KvPart(sequence, 3)])
        good = [torch.zeros(3, HEADS[name], 64, device="cuda") for name in "qkv"]
        wide = torch.zeros(3 * 128 + 1, device="cuda")
        for at, wrong, words in [(0, good[0].cpu(), r"q is not on the device of the cache, cuda:0: move it with \.to\('cuda:0'\)"),
                                 (1, good[1].double(), "k is neither float32, nor bfloat16, nor float16"),
                                 (2, good[2].bfloat16(), "v is bfloat16, but q is float32"),
                                 (1, torch.zeros(3, 64, 2, device="cuda").transpose(1, 2), "k is not contiguous"),
                                 (1, torch.zeros(3, 2, 32, device="cuda"), r"k has the shape \[3, 2, 32\]; expected \[3, 2, 64\]"),
                                 (2, wide[1:].view(3, 2, 64), "multiple of 16 bytes")]:
            tensors = list(good)
            tensors[at] = wrong
            with self.assertRaisesRegex(InvalidArgument, words):
                cache.attend(0, *tensors, out=torch.empty(3, 8, 64, device="cuda"))
        with self.assertRaisesRegex(InvalidArgument, "neither a stream"):
            cache.attend(0, *good, stream="side")
        on_cpu = KvCache(**SHAPE, **FULL)
        on_cpu.begin_step([KvPart(on_cpu.add(), 3)])
        with self.assertRaisesRegex(InvalidArgument, "device of the cache, cpu"):
            on_cpu.attend(0, *good)
        with self.assertRaisesRegex(LiteCacheError, "GPU 99 does not exist"):
            KvCache(**SHAPE, device="cuda:99", **FULL)
        self.assertEqual(torch.cuda.current_device(), 0)
        # None of this has harmed the step.
        self.assertEqual(cache.attend(0, *good).shape, (3, 8, 64))


class VeryLongPrompt(unittest.TestCase):
    def test_a_prompt_of_more_rows_than_a_grid_has(self):
        random = gpu.new_random()
        cache, rows = KvCache(layers=1, q_heads=2, kv_heads=1, head_dim=64, device="cuda", **FULL), 70001
        sequence = cache.add()
        q, k, v = (torch.randn(rows, heads, 64, device="cuda", generator=random).bfloat16() for heads in (2, 1, 1))
        with cache.step([KvPart(sequence, rows)]):
            out = cache.attend(0, q, k, v)
        expected = attention(q[-5:], k, v, rows - 5, 64**-0.5)
        self.assertLess(largest_error(out[-5:], expected), 2**-5)


if __name__ == "__main__":
    gpu.main()
