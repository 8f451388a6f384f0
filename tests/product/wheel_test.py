"""The wheel, packed from the library of a build and installed into a fresh environment: LLM, the command, its server, the openai package.

Arguments: the build folder, a model. Exits with 77 (skipped) if the packages of tests/requirements.txt are missing.
"""
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD, MODEL = (str(Path(argument).resolve()) for argument in sys.argv[1:3])
FOLDER = tempfile.TemporaryDirectory()
ENVIRONMENT = Path(FOLDER.name) / "environment"
PROGRAM = ENVIRONMENT / "bin/litecache"
# As program.py reads them.
sys.argv[1:] = [str(PROGRAM), MODEL]
sys.path.insert(0, str(ROOT / "tests/server"))
try:
    import auditwheel  # noqa: F401
    import build  # noqa: F401
    import scikit_build_core  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}; scripts/setup-test-python installs tests/requirements.txt")
    sys.exit(77)

import openai_server
from program import NAME, TURNS

USE = """
import sys
from pathlib import Path
import litecache_llm
from litecache_llm import LLM, SamplingParams
assert Path(litecache_llm.__file__).is_relative_to(sys.prefix), litecache_llm.__file__
with LLM(sys.argv[1], device="cpu", threads=1, max_context="1k") as llm:
    print(llm.generate(sys.argv[2], SamplingParams(max_tokens=8, temperature=0))[0].outputs[0].text)
"""
PROMPT = "def main("


def run(*command):
    """What a command prints, without the variables that would replace the package or its library."""
    environment = {name: value for name, value in os.environ.items() if name not in ("LITECACHE_LIBRARY", "PYTHONPATH")}
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=FOLDER.name, env=environment)
    if done.returncode != 0:
        raise AssertionError(f"{command}: {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def setUpModule():
    run(ROOT / "scripts/wheel", "--from", BUILD, "--to", FOLDER.name, "--python", sys.executable)
    [wheel] = Path(FOLDER.name).glob("*.whl")
    assert "-py3-none-manylinux_" in wheel.name, wheel.name
    run(sys.executable, "-m", "venv", ENVIRONMENT)
    run(ENVIRONMENT / "bin/pip", "install", "--quiet", "--no-index", "--disable-pip-version-check", wheel)


def tearDownModule():
    FOLDER.cleanup()


class Wheel(unittest.TestCase):
    def test_the_package_and_its_command_give_the_same_text(self):
        text = run(ENVIRONMENT / "bin/python", "-c", USE, MODEL, PROMPT)
        self.assertGreater(len(text), 1)
        command = run(PROGRAM, "generate", "--model", MODEL, "--device", "cpu", "--threads", "1", "--quiet", "--temperature", "0",
                      "-n", "8", PROMPT)
        self.assertEqual(command, text)

    def test_every_library_is_inside(self):
        package = next(ENVIRONMENT.glob("lib/python*/site-packages/litecache_llm"))
        self.assertTrue(any((package / "licenses").iterdir()))
        system = ("linux-vdso", "ld-linux", "libc.", "libm.", "libdl.", "librt.", "libpthread.", "libgcc_s.", "libstdc++.")
        outside = [line for line in run("ldd", package / "liblitecache.so").splitlines()
                   if str(package.parent) not in line and not Path(line.split()[0]).name.startswith(system)]
        self.assertEqual(outside, [])
        # NVIDIA's are loaded when they are needed, from the packages of the extra "cuda".
        self.assertEqual([file for file in package.parent.rglob("lib*") if file.name.startswith(("libcublas", "libcudart", "libnccl"))], [])

    def test_its_server_with_the_openai_package(self):
        server = openai_server.Server("--device", "cpu")
        try:
            client = server.client()
            options = {"model": NAME, "messages": TURNS, "max_completion_tokens": 16, "temperature": 0}
            answer = client.chat.completions.create(**options)
            self.assertEqual(answer.usage.completion_tokens, 16)
            pieces = [part.choices[0].delta.content or "" for part in client.chat.completions.create(**options, stream=True) if part.choices]
            self.assertEqual("".join(pieces), answer.choices[0].message.content)
        finally:
            code = server.stop()
        self.assertEqual(code, 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
