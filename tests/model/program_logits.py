"""Tests that compare the logits which the program gives of several files."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np


class ProgramLogitsTest(unittest.TestCase):
    program = None  # LITECACHE
    tokens = 200  # of the prompt

    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def run_logits(self, model, *options, tokens=None):
        ids = self.directory / "ids"
        ids.write_text(" ".join(str(i * 7 % 189) for i in range(tokens or self.tokens)))
        return subprocess.run([self.program, "logits", "--model", model, "--tokens-file", ids, "--positions", "all", "--json",
                               "--threads", "2", "--device", "cpu", *options], text=True, capture_output=True, check=False)

    def logits(self, model, *options, tokens=None):
        """[tokens, vocabulary]"""
        result = self.run_logits(model, *options, tokens=tokens)
        self.assertEqual(result.returncode, 0, result.stderr)
        return np.array(json.loads(result.stdout)["logits"])


def main():
    ProgramLogitsTest.program = sys.argv.pop(1)
    unittest.main()
