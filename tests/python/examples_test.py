"""The scripts in examples/python run as they are, with the shipped model. hit_ratios.py needs PyTorch, and is left out without it."""
import importlib.util
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = str(ROOT / "models/litecache-demo-16m")
TEXT = str(ROOT / "data/haystack/python_stdlib.txt")


def example(name, *arguments):
    """What the example prints."""
    command = [sys.executable, str(ROOT / "examples/python" / f"{name}.py"), MODEL, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    if done.returncode != 0:
        raise AssertionError(f"{name}: {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


class Examples(unittest.TestCase):
    def short_text(self, characters):
        with open(TEXT, encoding="utf-8") as file:
            text = file.read(characters)
        path = Path(self.enterContext(tempfile.TemporaryDirectory())) / "text.txt"
        path.write_text(text, encoding="utf-8")
        return str(path)

    def test_every_example_has_a_test(self):
        tested = {name.removeprefix("test_") for name in dir(self) if name.startswith("test_")}
        self.assertLessEqual({path.stem for path in (ROOT / "examples/python").glob("*.py")}, tested)

    def test_generate(self):
        self.assertIn("def main(", example("generate"))

    def test_agent_history(self):
        cached = [int(count) for count in re.findall(r"(\d+) of them from the cache", example("agent_history"))]
        self.assertEqual(len(cached), 5)
        self.assertEqual(cached[0], 0)
        self.assertGreater(cached[4], cached[1])

    def test_compare_policies(self):
        perplexities = [float(value) for value in re.findall(r"perplexity +([0-9.]+)", example("compare_policies", self.short_text(20000)))]
        self.assertEqual(len(perplexities), 4)
        self.assertLess(perplexities[1], 1.1 * perplexities[0])  # litecache 20%, beside full

    def test_question_a_book(self):
        answers = re.findall(r"\([0-9.]+ s, (\d+) tokens from the cache\)", example("question_a_book", self.short_text(8000), "What is this?", "Who wrote it?"))
        self.assertEqual(len(answers), 2)
        self.assertEqual(int(answers[0]), 0)
        self.assertGreater(int(answers[1]), 500)

    @unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed")
    def test_hit_ratios(self):
        layers = [line for line in example("hit_ratios", self.short_text(4000)).splitlines() if line.startswith("layer")]
        self.assertEqual(len(layers), 6)


if __name__ == "__main__":
    unittest.main()
