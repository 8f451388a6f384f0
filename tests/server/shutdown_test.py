"""How the server ends: signals, its time limit, exit codes.

usage: shutdown_test.py PROGRAM MODEL_DIRECTORY
Exits with 77 (skipped) if the Python packages are missing.
"""

import signal
import subprocess
import sys
import threading
import time
import unittest
import urllib.error

from openai_server import Server, openai
import program
from program import NAME


class Shutdown(unittest.TestCase):
    def generate(self, server, results, max_tokens):
        try:
            answer = server.client().completions.create(
                model=NAME, prompt="x", max_tokens=max_tokens,
                extra_body={"ignore_eos": True})
            results.append(answer.usage.completion_tokens)
        except openai.APIError as error:
            results.append(error)

    def run_and_stop(self, max_tokens, *flags):
        server, results = Server(*flags), []
        thread = threading.Thread(target=self.generate, args=(server, results, max_tokens))
        thread.start()
        while server.metrics()[("litecache_generation_tokens_total", ())] == 0:
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        return server, results, thread

    def test_sigterm_lets_requests_finish(self):
        server, results, thread = self.run_and_stop(300, "--shutdown-timeout", "100")
        self.assertEqual(server.wait(), 0)
        thread.join()
        self.assertEqual(results, [300])

    def test_sigterm_as_soon_as_it_serves(self):
        # A client that has read that the server is ready, or has learned it from /health, may end it normally.
        for _ in range(5):
            self.assertEqual(Server().stop(), 0)

    def test_sigterm_as_soon_as_it_is_healthy(self):
        for _ in range(5):
            server = Server(until=program.LISTENS)
            while True:
                try:
                    server.call("/health")
                    break
                except urllib.error.HTTPError as error:
                    self.assertEqual(error.code, 503)
            self.assertEqual(server.stop(), 0, server.log)

    def test_the_timeout_cancels_and_the_exit_code_says_so(self):
        server, results, thread = self.run_and_stop(30000, "--shutdown-timeout", "0.2")
        self.assertEqual(server.wait(), 3)
        thread.join()
        self.assertIsInstance(results[0], openai.InternalServerError)

    def test_a_second_signal_ends_at_once(self):
        for second, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with self.subTest(second.name):
                server, results, thread = self.run_and_stop(30000, "--shutdown-timeout", "100")
                while not any("second signal" in line for line in server.log):
                    self.assertIsNone(server.process.poll(), server.log)
                    time.sleep(0.01)
                self.assertEqual(server.stop(second), code)
                thread.join()
                self.assertIsInstance(results[0], openai.APIConnectionError)

    def test_a_model_that_is_missing_is_an_error(self):
        result = subprocess.run([program.PROGRAM, "serve", "--model", "/nonexistent", "--port", "0"],
                                capture_output=True, text=True, timeout=program.PATIENCE)
        self.assertEqual(result.returncode, 1)
        self.assertIn("/nonexistent", result.stderr)
        self.assertNotRegex(result.stderr, program.REPORT)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=2)
