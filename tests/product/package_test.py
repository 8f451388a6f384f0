"""What `cmake --install` puts into a folder is enough for another project, in C and in C++. Arguments: the build folder, the program."""
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD, PROGRAM = (sys.argv.pop(1) for _ in range(2))
MODEL = ROOT / "models/litecache-demo-16m"
PROMPT = "def main("


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{command}: {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


class Package(unittest.TestCase):
    def test_a_project_that_uses_the_installed_tree(self):
        with tempfile.TemporaryDirectory() as name:
            prefix, build = Path(name) / "prefix", Path(name) / "build"
            run("cmake", "--install", BUILD, "--prefix", prefix)
            headers = {header.name for header in (prefix / "include").rglob("*.h")}
            self.assertEqual(headers, {header.name for header in (ROOT / "include/litecache").glob("*.h")} | {"tokenizer.h"})
            run("cmake", "-S", ROOT / "tests/product/consumer", "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
                "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Wpedantic -Werror -Wno-missing-field-initializers",
                "-DCMAKE_C_FLAGS=-std=c99 -Wall -Wextra -Wpedantic -Werror")
            run("cmake", "--build", build)
            expected = run(PROGRAM, "generate", "--model", MODEL, "--device", "cpu", "--quiet", "--temperature", "0", "-n", "8", PROMPT)
            self.assertEqual(run(build / "generate_cc", MODEL, PROMPT), expected.removesuffix("\n"))
            body = json.dumps({"prompt": PROMPT, "max_tokens": 8, "temperature": 0})
            answer = json.loads(run(build / "generate_c", MODEL, body))
            self.assertEqual(answer["choices"][0]["text"], expected.removesuffix("\n"))


if __name__ == "__main__":
    unittest.main()
