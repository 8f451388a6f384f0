"""Model directories whose files are damaged, hostile or not files at all: `litecache generate` refuses them with
an error, or generates.

usage: file_attack.py PROGRAM MODEL_DIRECTORY
"""

import json
import os
import pathlib
import resource
import shutil
import struct
import subprocess
import tempfile
import unittest

import mutants
import small_gguf
import victim
from victim import MIB, program

TESTS = pathlib.Path(__file__).resolve().parent.parent
# Of a run that is refused, or generates two tokens with --memory 256MiB.
MEMORY = victim.MEMORY_FACTOR * 512 * MIB
TEMPLATE = "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}{% endfor %}"


def replaced_header(chance, data):
    """A safetensors file with parts of its header replaced."""
    size = struct.unpack("<Q", data[:8])[0]
    header = mutants.replaced_json(chance, data[8:8 + size])
    return struct.pack("<Q", len(header)) + header + data[8 + size:]


class Directories(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name) / "model"
        # Valid directories: by name of a file, what it is copied from or its bytes.
        self.valid = []
        tokenizers = [(TESTS / "fuzz/corpus/tokenizer" / kind).read_bytes().split(b"\xff")[0]
                      for kind in ("affixes", "byte_level", "classes", "fused_replace", "metaspace", "spm")]
        configured = json.dumps({"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}).encode()
        for model in sorted((TESTS / "fixtures/models").iterdir()):
            if model.is_dir():
                for tokenizer in tokenizers:
                    self.valid.append({**self.files_of(model), "tokenizer.json": tokenizer,
                                       "tokenizer_config.json": configured})
        self.valid += [{"model.gguf": small_gguf.build(TEMPLATE)}] * (len(self.valid) // 4)
        self.valid += [self.files_of(pathlib.Path(program.MODEL).resolve())] * (len(self.valid) // 5)

    def tearDown(self):
        self.folder.cleanup()

    @staticmethod
    def files_of(model):
        return {file.name: file for file in sorted(model.iterdir())
                if file.suffix in (".json", ".safetensors") and file.name != "packages.json"
                and not file.name.startswith("reference")}

    def damage(self, chance, files):
        """The files with one of them changed."""
        if not files:  # the only one has been removed before
            return files
        name = chance.choice([name for name in files for _ in range(1 if name.startswith("litecache-") else 2)])
        if callable(files[name]):
            return files
        data = files[name] if isinstance(files[name], bytes) else files[name].read_bytes()
        what = chance.random()
        if what < 0.06:
            return {file: kept for file, kept in files.items() if file != name}
        if what < 0.10:
            return {**files, name: chance.choice((b"", b"\n", b"[]", b"{}", b"null", data * 2, data[:len(data) // 2]))}
        if what < 0.14:
            return {**files, name: files[chance.choice(list(files))]}
        if what < 0.18:
            return {**files, name: chance.choice((os.mkdir, os.mkfifo, lambda path: os.symlink(path, path),
                                                  lambda path: os.symlink("/dev/zero", path)))}
        if what < 0.2:
            return {**files, "chat_template.jinja": mutants.damaged(chance, TEMPLATE.encode() * 2, mutants.JINJA)}
        if what < 0.7 and not name.endswith(".gguf"):
            try:
                replace = replaced_header if name.endswith(".safetensors") else mutants.replaced_json
                return {**files, name: replace(chance, data)}
            except (ValueError, struct.error):  # it has been damaged before
                pass
        head = len(data) if name.endswith(".json") else 4096
        return {**files, name: mutants.damaged(chance, data[:head]) + data[head:]}

    def write(self, files):
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir()
        for name, contents in files.items():
            if isinstance(contents, bytes):
                (self.path / name).write_bytes(contents)
            elif isinstance(contents, pathlib.Path):
                (self.path / name).symlink_to(contents)
            else:
                contents(self.path / name)

    def generate(self, chance):
        """Runs the program on what is written; whether it generated."""
        flags = chance.choice(([], ["--chat"], ["--kv-policy", "litecache", "--kv-budget", "8"],
                               ["--dtype", "f32", "--samples", "2", "--temperature", "1"]))
        done = subprocess.run(
            [program.PROGRAM, "generate", "--model", str(self.path), "--threads", "1", "--memory", "256MiB",
             "--max-tokens", "2", *flags, "a b"], stdin=subprocess.DEVNULL, capture_output=True,
            timeout=program.PATIENCE)
        errors = done.stderr.decode(errors="replace")
        self.assertIn(done.returncode, (0, 1, 2), errors[-500:])
        self.assertNotRegex(errors, program.REPORT)
        if done.returncode != 0:
            self.assertIn("error: ", errors)
            self.assertLess(len(errors), 4000, errors[:200])
        self.assertNotIn("\x1b[2J", errors)
        return "refused" if done.returncode else "generated from"

    def test_valid(self):
        for files in self.valid[:len(self.valid) - 1:7] + self.valid[-1:]:
            self.write(files)
            for _ in range(3):
                self.assertEqual(self.generate(victim.random.Random(1)), "generated from")

    def test_directories(self):
        tally = victim.Tally("model directories")
        largest = 0

        def seconds():
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            return used.ru_utime + used.ru_stime

        for chance in tally.attempts(60):
            files = chance.choice(self.valid)
            for _ in range(chance.choice((1, 1, 1, 2, 3))):
                files = self.damage(chance, files)
            self.write(files)
            before = seconds()
            with self.subTest(number=tally.number, seed=victim.OPTIONS.seed):
                outcome = self.generate(chance)
                self.assertLess(seconds() - before, victim.CPU_SECONDS)
                tally.add(outcome, seconds() - before)
        largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        tally.print(f"at most {largest / MIB:.0f} MiB")
        self.assertLess(largest, MEMORY)


if __name__ == "__main__":
    victim.main()
