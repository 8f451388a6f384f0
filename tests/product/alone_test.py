"""The product is complete without lab/: nothing under src/ and include/ refers to it or its policies, the program contains nothing of it, and a build
without it has no part of it. Argument: a Ninja build folder.
"""
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(sys.argv.pop(1)) if len(sys.argv) > 1 else ROOT / "build/release"
SOURCES = (".h", ".cc", ".cu", ".cuh", ".txt", ".cmake", ".in")
# A path in the laboratory (except its notes on measurements), or one of its targets.
LAB = re.compile(r"(^|[\s\"(/{}])lab/(?!notes/)|litecache_lab|\blab::")


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def product_files():
    files = [p for folder in ("src", "include") for p in (ROOT / folder).rglob("*") if p.suffix in SOURCES]
    assert len(files) > 300, files
    return files


class ProductAlone(unittest.TestCase):
    def test_no_source_names_the_laboratory(self):
        named = [f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
                 for path in product_files()
                 for number, line in enumerate(path.read_text().splitlines(), 1) if LAB.search(line)]
        self.assertEqual(named, [])

    def test_no_source_names_a_policy_of_it(self):
        policies = [path.parent.name for path in (ROOT / "lab/policies").glob("*/policy.h")]
        name = re.compile("|".join(policies) or "(?!)", re.IGNORECASE)
        # FlexGen's schedule is prior work of policy kvpr.
        named = [f"{path.relative_to(ROOT)}: {match[0]}"
                 for path in product_files() for match in name.finditer(path.read_text().replace("FlexGen's", ""))]
        self.assertEqual(named, [])

    def test_the_program_has_nothing_of_it(self):
        inputs = run("ninja", "-C", str(BUILD), "-t", "inputs", "litecache").replace(f"{ROOT}/", "").splitlines()
        self.assertTrue(any(line == "src/cli/main.cc" for line in inputs), inputs[:20])
        self.assertEqual([line for line in inputs if LAB.search(line)], [])

    def test_a_build_without_it_has_no_part_of_it(self):
        with tempfile.TemporaryDirectory() as folder:
            run("cmake", "-S", str(ROOT), "-B", folder, "-G", "Ninja", "-DLITECACHE_LAB=OFF", "-DLITECACHE_TESTS=OFF",
                "-DLITECACHE_CUDA=OFF")
            targets = run("ninja", "-C", folder, "-t", "targets", "all")
            self.assertIn("litecache: CXX_EXECUTABLE_LINKER", targets)
            self.assertNotRegex(targets, r"(?m)^(lab/|litecache-lab|.*litecache_lab)")


if __name__ == "__main__":
    unittest.main()
