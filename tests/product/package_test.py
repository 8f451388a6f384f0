"""What `cmake --install` puts into a folder is enough for another project, in C and in C++, the packages that the image for CPUs
installs for the program, and what a bundle is built for. Arguments: the build folder, the program."""
import json
import re
import shlex
import shutil
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


class Image(unittest.TestCase):
    @unittest.skipUnless(shutil.which("dpkg"), "packages are Debian's")
    def test_has_the_packages_of_the_libraries_that_the_program_loads(self):
        dockerfile = (ROOT / "packaging/Dockerfile").read_text(encoding="utf-8")
        [names] = re.findall(r"--no-install-recommends ([^\\]*)", dockerfile)
        needed = set(re.findall(r"NEEDED +(\S+)", run("objdump", "-p", PROGRAM)))
        found = dict(re.findall(r"^\s*(\S+) => (/\S+)", run("ldd", PROGRAM), re.MULTILINE))
        packages = set()
        for library in needed & found.keys():
            file = Path(found[library]).resolve()
            # Debian's list may have the file without /usr, to which the folders of / lead.
            owners = [line.split(":")[0] for path in (file, str(file).removeprefix("/usr"))
                      for line in subprocess.run(["dpkg", "-S", path], capture_output=True, text=True).stdout.splitlines()]
            self.assertTrue(owners, f"{file} belongs to no package")
            packages.add(owners[0])
        self.assertEqual(set(names.split()), packages - {"libc6", "libgcc-s1", "libstdc++6"})


class Bundle(unittest.TestCase):
    def test_is_configured_for_several_gpus(self):
        # Only printed. A shell ends a command at a semicolon that is not quoted.
        plan = run("make", "--no-print-directory", "-n", "-C", ROOT, "bundle")
        configure = next(line for line in plan.splitlines() if line.startswith("cmake --preset"))
        words = shlex.shlex(configure, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        self.assertIn("-DCMAKE_CUDA_ARCHITECTURES=80-real;90", list(words))


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
