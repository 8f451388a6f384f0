"""JSON that is deep, wide or huge, wherever a request or a file may contain it.

usage: json_attack.py PROGRAM MODEL_DIRECTORY
"""

import json
import pathlib
import random
import struct
import subprocess
import tempfile
import time
import unittest

import victim
from victim import program

DEEP = 200_000
ARRAYS = "[" * DEEP + "]" * DEEP
OBJECTS = '{"a":' * DEEP + "1" + "}" * DEEP


def chat(arguments):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"messages": [{"role": "user", "content": "x"},
                         {"role": "assistant", "tool_calls": [call]},
                         {"role": "tool", "tool_call_id": "1", "content": "1"}], "max_tokens": 1}


class Deep(victim.Attack):
    def test_arguments_of_calls(self):
        for text in (ARRAYS, OBJECTS):
            self.refuse("/v1/chat/completions", chat(text), "deep")
            self.refuse("/tokenize",
                        {"messages": chat(text)["messages"]}, "deep")
            self.refuse("/v1/responses",
                        {"input": [{"type": "function_call", "call_id": "1", "name": "f",
                                    "arguments": text}]}, "deep")

    def test_schemas_in_strings(self):
        body = {"prompt": "x", "max_tokens": 1}
        self.refuse("/v1/completions", {**body, "guided_json": OBJECTS}, "deep")
        self.refuse("/v1/completions", {**body, "structured_outputs": {"json": OBJECTS}}, "deep")

    def test_bodies(self):
        for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/tokenize",
                     "/detokenize"):
            for text in (ARRAYS, OBJECTS, '{"messages":' + ARRAYS + "}"):
                self.refuse(path, text.encode(), "deep")


class Wide(victim.Attack):
    """Time must be proportional to the length of the text."""

    def test_elements(self):
        for element in ("{}", "[]", "0", '""', "null", "1e5"):
            text = ",".join([element] * (900_000 // (len(element) + 1)))
            self.refuse("/v1/completions", f'{{"messages": [{text}]}}'.encode())
            self.refuse("/tokenize", f'{{"messages": [{text}]}}'.encode())

    def test_more_values_than_a_request_may_have(self):
        self.refuse("/v1/completions", b'{"prompt": [' + b"0," * 3_000_000 + b"0]}", "too many")

    def test_keys(self):
        keys = ",".join(f'"k{i:06}":{i}' for i in range(100_000))
        for body in (f"{{{keys}}}", f'{{"metadata": {{{keys}}}}}', f'{{"logit_bias": {{{keys}}}}}'):
            self.refuse("/v1/completions", body.encode(), "fields")
        self.refuse("/v1/chat/completions", chat(f"{{{keys}}}"), "fields")

    def test_keys_that_are_taken(self):
        keys = {f"k{i:06}": i for i in range(9_990)}
        status, _ = self.bounded("/v1/completions",
                                 {"prompt": "x", "max_tokens": 1, "metadata": keys})
        self.assertEqual(status, 200)
        self.bounded("/v1/completions", {"prompt": "x", "max_tokens": 1, "guided_json": {
            "type": "object", "properties": {key: {"const": 1} for key in list(keys)[:2000]}}})
        self.bounded("/v1/chat/completions", chat(json.dumps(keys)))

    def test_one_long_token(self):
        for text in ('"' + "x" * 5_000_000, "1" * 5_000_000, "t" * 5_000_000):
            self.refuse("/v1/completions", ('{"prompt": ' + text).encode())


VALUES = [None, True, -1, 0, 1e308, 2**63, 2**64, "", "x", "\u0000", "\ud800", "<|im_end|>", [], {}, [[]],
          {"$ref": "#"}, {"allOf": [{"$ref": "#"}]}, {"type": "string", "pattern": "(a*)*"}, "[" * 200,
          ["x"] * 70, {"a": {"b": {}}}, "x" * 5000]
PIECES = [b"[", b"]", b"{", b"}", b",", b":", b'"', b"\\", b"0", b"-", b"1e99", b"null", b"\xff", b"\x00",
          b"\\ud800", b'{"$ref":"#"}', b'"allOf":', b"18446744073709551616"]


def replaced(chance, value):
    """The same value with one of its parts replaced."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(list(value))
        return {**value, key: replaced(chance, value[key])}
    if isinstance(value, list) and value and chance.random() < 0.9:
        at = chance.randrange(len(value))
        return value[:at] + [replaced(chance, value[at])] + value[at + 1:]
    return chance.choice(VALUES)


class Mutants(victim.Attack):
    """Bodies with parts replaced, or random bytes changed, cut or doubled."""

    FLAGS = ("--max-tokens", "4", "--default-max-tokens", "4", "--log-level", "info")

    def test_mutants(self):
        seed = int(time.time())
        print("seed", seed)
        chance = random.Random(seed)
        text = {"prompt": "def f(", "max_tokens": 2, "temperature": 0.5, "logit_bias": {"5": 1},
                "stop": ["x"], "logprobs": 2, "n": 2}
        schema = {"type": "object", "properties": {"a": {"enum": [1, "x"]}, "b": {"pattern": "^a+$"}}}
        calls = {**chat('{"a": [1, {"b": 2}]}'), "tools": [
            {"type": "function", "function": {"name": "f", "parameters": schema}}]}
        good = [("/v1/completions", text), ("/v1/chat/completions", calls),
                ("/v1/completions", {"prompt": "x", "max_tokens": 2, "guided_json": schema}),
                ("/v1/responses", {"input": [{"role": "user", "content": "x"}], "max_output_tokens": 2}),
                ("/tokenize", {"prompt": "a b"}), ("/detokenize", {"tokens": [5, 6]})]
        statuses = {}
        for _ in range(int(400 * victim.SCALE)):
            path, value = chance.choice(good)
            for _ in range(chance.randrange(3)):
                value = replaced(chance, value)
            body = bytearray(json.dumps(value).encode())
            for _ in range(chance.randrange(3) if chance.random() < 0.5 else 0):
                at = chance.randrange(len(body))
                if chance.random() < 0.3:
                    body[at:at] = body[at:at + chance.randrange(40)]
                else:
                    body[at:at + chance.randrange(6)] = chance.choice(PIECES)
            status, _ = self.bounded(path, bytes(body))
            statuses[status] = statuses.get(status, 0) + 1
        print("answers by status:", statuses)


class Files(unittest.TestCase):
    def run_program(self, *words, seconds=20):
        started = time.time()
        done = subprocess.run([program.PROGRAM, *words], capture_output=True, text=True,
                              timeout=120)
        self.assertGreaterEqual(done.returncode, 0, "killed by a signal: " + done.stderr[-300:])
        self.assertLess(time.time() - started, seconds)
        return done

    def test_schema_files(self):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "schema.json"
            path.write_text(OBJECTS)
            done = self.run_program("generate", "--model", program.MODEL, "--json-schema", str(path),
                                    "--max-tokens", "1", "x")
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("deep", done.stderr)

    def test_many_tensors(self):
        """A header of 20,000 tensors is read in well under a second."""
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory)
            for item in pathlib.Path(program.MODEL).resolve().iterdir():
                if not item.name.startswith("model"):
                    (path / item.name).symlink_to(item)
            header = json.dumps({f"t{i}": {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]}
                                 for i in range(20_000)}).encode()
            (path / "model.safetensors").write_bytes(
                struct.pack("<Q", len(header)) + header + bytes(20_000))
            done = self.run_program("generate", "--model", directory, "x", seconds=2)
            self.assertIn("tensor", done.stderr)

    def test_deep_files(self):
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json",
                     "generation_config.json"):
            with tempfile.TemporaryDirectory() as directory:
                path = pathlib.Path(directory)
                for item in pathlib.Path(program.MODEL).resolve().iterdir():
                    if item.name != name:
                        (path / item.name).symlink_to(item)
                (path / name).write_text('{"a":' * 1_000_000 + "1" + "}" * 1_000_000)
                done = self.run_program("generate", "--model", directory, "--chat",
                                        "--max-tokens", "1", "x")
                self.assertNotEqual(done.returncode, 0, name)
                self.assertIn("deep", done.stderr)


if __name__ == "__main__":
    victim.main()
