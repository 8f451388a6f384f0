"""Prefixes kept on disk (--prefix-store): restarts, damage, a full disk, a killed server.

usage: prefix_store_test.py PROGRAM MODEL_DIRECTORY
Exits with 77 (skipped) if the Python packages are missing.
"""

import pathlib
import resource
import shutil
import signal
import sys
import tempfile
import time
import unittest

import program
from openai_server import Server
from program import NAME


class PrefixStore(unittest.TestCase):
    # About 900 tokens, three blocks of 256.
    PROMPT = "".join(f"def f{i}(x, y):\n    return x + {i} * y\n\n" for i in range(60))

    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)

    def serve(self, *flags, **options):
        return Server("--prefix-store", self.directory.name, *flags, **options)

    def complete(self, server):
        answer = server.client().completions.create(
            model=NAME, prompt=self.PROMPT, max_tokens=16, temperature=0)
        return (answer.choices[0].text, answer.usage.prompt_tokens,
                answer.usage.prompt_tokens_details.cached_tokens)

    def blocks(self):
        return sorted(pathlib.Path(self.directory.name).glob("??/*.kv"))

    def test_a_restart_knows_the_prefix(self):
        for flags in ([], ["--kv-policy", "litecache", "--retriever", "quest"]):
            with self.subTest(flags=flags):
                server = self.serve(*flags)
                text, prompt, cached = self.complete(server)
                self.assertEqual(cached, 0)
                self.assertEqual(server.stop(), 0)
                server = self.serve(*flags)
                again, _, cached = self.complete(server)
                self.assertEqual(again, text)
                self.assertEqual(cached, (prompt - 1) // 256 * 256)
                samples = server.metrics()
                self.assertEqual(samples[("litecache_prefix_loaded_tokens_total", ())], cached)
                self.assertEqual(server.stop(), 0)

    def test_other_weights_are_another_model(self):
        """Also where they differ in one bit, which a sample of the weights misses."""
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder) / NAME
            shutil.copytree(program.MODEL, model)
            known = []
            for change in (False, False, True):
                if change:
                    weights = model / "model-00002-of-00003.safetensors"
                    data = bytearray(weights.read_bytes())
                    data[len(data) * 3 // 5] ^= 1
                    weights.write_bytes(data)
                server = self.serve(model=model)
                known.append(self.complete(server)[2] > 0)
                self.assertEqual(server.stop(), 0)
            self.assertEqual(known, [False, True, False])

    def test_damage_is_survived(self):
        server = self.serve()
        text, prompt, _ = self.complete(server)
        self.assertEqual(server.stop(), 0)
        for i, block in enumerate(self.blocks()):
            data = bytearray(block.read_bytes())
            data[[30, 150, len(data) // 2][i % 3]] ^= 1
            block.write_bytes(data)
        server = self.serve()
        self.assertEqual(self.complete(server)[0], text)
        self.assertEqual(server.stop(), 0)
        self.assertTrue(any("removed" in line for line in server.log), server.log)

    def test_a_second_server_is_refused(self):
        server = self.serve()
        with self.assertRaisesRegex(RuntimeError, "another process uses it"):
            self.serve()
        self.complete(server)
        self.assertEqual(server.stop(), 0)

    def test_a_full_disk_is_a_warning(self):
        # The limit on file sizes is 64 KiB, less than a block.
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
        server = Server("--prefix-store", self.directory.name, preexec=limit)
        text, prompt, _ = self.complete(server)
        deadline = time.time() + program.PATIENCE
        while server.metrics()[("litecache_prefix_store_writing", ())] == 1:
            self.assertLess(time.time(), deadline)
            time.sleep(0.02)
        again, _, cached = self.complete(server)
        self.assertEqual((again, cached), (text, (prompt - 1) // 16 * 16))
        self.assertEqual(server.stop(), 0)
        self.assertEqual(sum("nothing more is written" in line for line in server.log), 1)
        self.assertEqual(self.blocks(), [])

    def test_kill_leaves_a_store_that_works(self):
        server = self.serve()
        text, _, _ = self.complete(server)
        self.assertEqual(server.stop(signal.SIGKILL), -signal.SIGKILL)
        server = self.serve()
        self.assertEqual(self.complete(server)[0], text)
        self.assertEqual(server.stop(), 0)
        self.assertEqual(list(pathlib.Path(self.directory.name).glob("??/*.tmp")), [])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=2)
