"""JSON that is deep, wide or huge, wherever a request or a file may contain it.

usage: json_attack.py PROGRAM MODEL_DIRECTORY
"""

import json
import os
import pathlib
import struct
import subprocess
import tempfile
import unittest

import mutants
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
            self.refuse("/v1/messages", f'{{"messages": [{{"role": "assistant", "content": [{{"input": {text}}}]}}]}}'
                        .encode(), "deep")

    def test_schemas_in_strings(self):
        body = {"prompt": "x", "max_tokens": 1}
        self.refuse("/v1/completions", {**body, "guided_json": OBJECTS}, "deep")
        self.refuse("/v1/completions", {**body, "structured_outputs": {"json": OBJECTS}}, "deep")

    def test_bodies(self):
        for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages",
                     "/v1/messages/count_tokens", "/tokenize", "/detokenize", "/apply-template", "/infill"):
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


class Bodies:
    """Valid bodies with parts replaced, and with bytes changed, cut or doubled."""

    KIND = ""

    def test_valid(self):
        for path, body in self.VALID:
            self.assertEqual(self.send(path, json.dumps(body).encode()), 200, (path, body))

    def test_fields(self):
        def attempt(chance):
            path, body = chance.choice(self.VALID)
            return self.send(path, mutants.replaced_json(chance, json.dumps(body)))

        self.campaign(f"JSON bodies{self.KIND}, fields replaced", 200, attempt)

    def test_bytes(self):
        def attempt(chance):
            path, body = chance.choice(self.VALID)
            return self.send(path, mutants.damaged(chance, json.dumps(body).encode()))

        self.campaign(f"JSON bodies{self.KIND}, bytes changed", 200, attempt)


class Mutants(Bodies, victim.Attack):
    # Short prompts: what a request costs besides them is limited here, and two cores take 2 s for 2,500 tokens.
    FLAGS = ("--max-context", "1k", "--max-tokens", "4", "--default-max-tokens", "4", "--log-level", "info",
             "--chat-template", str(pathlib.Path(__file__).resolve().parent.parent / "tokenizer_jinja/data/qwen2_5.jinja"))

    TEXT = {"prompt": "def f(", "max_tokens": 2, "temperature": 0.5, "logit_bias": {"5": 1}, "stop": ["x"],
            "logprobs": 2, "n": 2, "seed": 7, "top_p": 0.9, "stream": False}
    SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, "x"]}, "b": {"pattern": "^a+$"}}}
    CALLS = {**chat('{"a": [1, {"b": 2}]}'), "tools": [
        {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]}
    TURNS = {"max_tokens": 2, "system": [{"type": "text", "text": "s"}], "messages": [
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": ""},
                                          {"type": "tool_use", "id": "1", "name": "f", "input": {"a": [1]}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "1"}]}],
        "tools": [{"name": "f", "input_schema": SCHEMA}], "tool_choice": {"type": "any"},
        "stop_sequences": ["x"], "thinking": {"type": "disabled"}}
    VALID = [("/v1/completions", TEXT), ("/v1/chat/completions", CALLS),
             ("/v1/chat/completions", {**CALLS, "tool_choice": "required", "stream": True}),
             ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2,
                                       "response_format": {"type": "json_object"}}),
             ("/v1/completions", {"prompt": ["x", [5, 6]], "max_tokens": 2, "stream": True,
                                  "stream_options": {"include_usage": True}}),
             ("/v1/completions", {"prompt": "x", "max_tokens": 2, "guided_json": SCHEMA}),
             ("/v1/completions", {"prompt": "x y z", "max_tokens": 2, "echo": True, "logprobs": 1,
                                  "prompt_logprobs": 2, "min_tokens": 1, "bad_words": ["a b", "c"],
                                  "truncate_prompt_tokens": 3, "return_token_ids": True,
                                  "include_stop_str_in_output": True, "guided_choice": ["x", "yy"]}),
             ("/v1/completions", {"prompt": "x", "max_tokens": 2, "guided_regex": "(ab|[c-f]+){1,3}"}),
             ("/v1/completions", {"prompt": "x", "max_tokens": 2,
                                  "grammar": 'root ::= a{2,5} | "b" root\na ::= [c-f] [^x]* # c'}),
             ("/v1/responses", {"input": [{"role": "user", "content": "x"}], "max_output_tokens": 2}),
             ("/v1/messages", TURNS), ("/v1/messages/count_tokens", TURNS),
             ("/tokenize", {"prompt": "a b", "return_token_strs": True}),
             ("/tokenize", {"messages": CALLS["messages"], "add_generation_prompt": True}),
             ("/apply-template", {**CALLS, "chat_template_kwargs": {"x": [1, {"y": "z"}]},
                                  "add_generation_prompt": False}),
             ("/detokenize", {"tokens": [5, 6]})]


class Thinkers(Bodies, victim.Attack):
    """The same of a model that thinks, and fills in the middle of texts."""

    KIND = " to a model that thinks"
    FLAGS = ("--max-context", "1k", "--max-tokens", "6", "--default-max-tokens", "6", "--chat-template",
             str(pathlib.Path(__file__).resolve().parent.parent / "tokenizer_jinja/data/qwen3.jinja"))
    REGEX = {"structured_outputs": {"regex": "[a-f]{2}(x|yz)*"}}
    GBNF = {"grammar": 'root ::= "a" b* ("," root)?\nb ::= [^,\\n]{1,3} | "(" b ")"'}
    TALK = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5}
    INFILL = {"input_prefix": "def f(", "input_suffix": "return", "prompt": "a", "n_predict": 3,
              "input_extra": [{"filename": "a.py", "text": "x = 1"}, {"filename": "b.py", "text": ""}]}
    VALID = [("/infill", INFILL), ("/infill", {**INFILL, "stream": True, **GBNF}),
             ("/v1/completions", {"prompt": "x", "suffix": "y", "max_tokens": 3, **REGEX}),
             ("/v1/completions", {"prompt": ["x y", "z"], "max_tokens": 0, "echo": True, "logprobs": 3}),
             ("/v1/completions", {"prompt": "x y z w", "max_tokens": 2, "prompt_logprobs": 20, "n": 2,
                                  "guided_choice": ["a", "ab", "abc"]}),
             ("/v1/chat/completions", {**TALK, **REGEX, "stream": True}),
             ("/v1/chat/completions", {**TALK, **GBNF, "chat_template_kwargs": {"enable_thinking": False}}),
             ("/v1/chat/completions", {**TALK, "enable_thinking": True, "prompt_logprobs": 1,
                                       "tools": Mutants.CALLS["tools"], "tool_choice": "required"}),
             ("/v1/responses", {"input": [
                 {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
                 {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
                 {"type": "function_call", "call_id": "1", "name": "f", "arguments": '{"a": 1}'},
                 {"type": "function_call_output", "call_id": "1", "output": "1"}],
                 "reasoning": {"effort": "low", "summary": "auto"}, "max_output_tokens": 4, "stream": True,
                 "tools": [{"type": "function", "name": "f", "parameters": Mutants.SCHEMA}]}),
             ("/v1/messages", {**Mutants.TURNS, "thinking": {"type": "enabled", "budget_tokens": 1024},
                               "max_tokens": 4, "tool_choice": {"type": "auto"}}),
             ("/v1/messages", {**Mutants.TURNS, "stream": True})]

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.MODEL = pathlib.Path(cls.folder.name)
        for item in pathlib.Path(program.MODEL).resolve().iterdir():
            if item.name != "tokenizer.json":
                (cls.MODEL / item.name).symlink_to(item)
        tokenizer = json.loads((pathlib.Path(program.MODEL) / "tokenizer.json").read_text())
        vocabulary = tokenizer["model"]["vocab"]
        for name in ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>"):
            last = max(vocabulary, key=vocabulary.get)
            tokenizer["added_tokens"].append({**tokenizer["added_tokens"][-1], "id": vocabulary[last], "content": name})
            del vocabulary[last]
            tokenizer["model"]["merges"].pop()
        (cls.MODEL / "tokenizer.json").write_text(json.dumps(tokenizer))
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.folder.cleanup()


class Channels(Bodies, victim.Attack):
    """The same of a small gpt-oss, which thinks, answers and calls in messages on channels (harmony)."""

    KIND = " to a model that writes harmony"
    # A letter is a token: the template writes some 500.
    FLAGS = ("--max-context", "3k", "--max-tokens", "24", "--default-max-tokens", "24", "--chat-template",
             str(pathlib.Path(__file__).resolve().parent.parent / "tokenizer_jinja/data/gpt_oss.jinja"))
    TAGS = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>")
    SHOWN = "<|channel|>analysis<|message|>t<|end|><|start|>assistant to=functions.f<|channel|>"

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.MODEL = pathlib.Path(cls.folder.name)
        fixture = pathlib.Path(__file__).resolve().parent.parent / "fixtures/models/gpt_oss"
        (cls.MODEL / "model.safetensors").symlink_to(fixture / "model.safetensors")
        tokenizer = json.loads((pathlib.Path(program.MODEL) / "tokenizer.json").read_text())
        added = tokenizer["added_tokens"]
        # The model has 192 tokens: ASCII, and the bytes of some other characters.
        letters = [text for text in tokenizer["model"]["vocab"] if len(text) == 1]
        kept = [text for text in letters if text < "\u00c6" or text in "\u00e2\u00e4\u00f0\u0109\u010a" or "\u0120" <= text]
        names = [token["content"] for token in added] + list(cls.TAGS)
        tokenizer["model"]["vocab"] = {text: number for number, text in enumerate(names + kept)}
        tokenizer["model"]["merges"] = []
        tokenizer["added_tokens"] = [{**added[0], "id": number, "content": name} for number, name in enumerate(names)]
        (cls.MODEL / "tokenizer.json").write_text(json.dumps(tokenizer))
        number = tokenizer["model"]["vocab"]
        config = json.loads((fixture / "config.json").read_text())
        config.update(max_position_embeddings=8192, eos_token_id=[number["<|return|>"], number["<|call|>"]])
        (cls.MODEL / "config.json").write_text(json.dumps(config))
        # Answers of random letters and tags, whose likelihood the random bodies change.
        bias = {str(number[tag]): 3 for tag in cls.TAGS[:5]}
        talk = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 24, "temperature": 1, "logit_bias": bias}
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1, {"b": "<|end|>"}]}'}}
        turns = {**talk, "reasoning_effort": "low", "tools": Mutants.CALLS["tools"], "messages": [
            {"role": "system", "content": "s"}, {"role": "developer", "content": "d"},
            {"role": "user", "content": [{"type": "text", "text": "<|start|>x"}]},
            {"role": "assistant", "content": "c", "reasoning_content": "t", "tool_calls": [call, {**call, "id": "2"}]},
            {"role": "tool", "tool_call_id": "2", "content": cls.SHOWN}, {"role": "tool", "tool_call_id": "1", "content": "1"},
            {"role": "assistant", "content": "a", "reasoning": "r"}, {"role": "user", "content": "y"}]}
        begun = {"continue_final_message": True, "add_generation_prompt": False}
        cls.VALID = [
            ("/v1/chat/completions", turns), ("/v1/chat/completions", {**turns, "stream": True, "n": 2}),
            ("/v1/chat/completions", {**turns, "tool_choice": "required", "parallel_tool_calls": False}),
            ("/v1/chat/completions", {**turns, "tool_choice": {"type": "function", "function": {"name": "f"}}, "stream": True}),
            ("/v1/chat/completions", {**talk, "guided_json": Mutants.SCHEMA, "logprobs": True, "top_logprobs": 2}),
            ("/v1/chat/completions", {**talk, **Thinkers.REGEX, "stream": True, "ignore_eos": True}),
            ("/v1/chat/completions", {**talk, **Thinkers.GBNF, "include_reasoning": False, "stop": ["<|message|>", "z"]}),
            ("/v1/chat/completions", {**talk, **begun, "messages": [
                *talk["messages"], {"role": "assistant", "content": "a", "thinking": "t"}]}),
            ("/v1/responses", {"input": [
                {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
                {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
                {"type": "function_call", "call_id": "1", "name": "f", "arguments": '{"a": 1}'},
                {"type": "function_call_output", "call_id": "1", "output": "1"}],
                "reasoning": {"effort": "low", "summary": "auto"}, "max_output_tokens": 24, "stream": True,
                "logit_bias": bias, "tools": [{"type": "function", "name": "f", "parameters": Mutants.SCHEMA}]}),
            ("/v1/messages", {**Mutants.TURNS, "thinking": {"type": "enabled", "budget_tokens": 1024},
                              "max_tokens": 24, "tool_choice": {"type": "auto"}}),
            ("/v1/messages", {**Mutants.TURNS, "stream": True}), ("/v1/messages/count_tokens", Mutants.TURNS),
            ("/tokenize", {key: turns[key] for key in ("messages", "tools")}),
            ("/apply-template", {"messages": turns["messages"], "chat_template_kwargs": {"builtin_tools": ["browser"]}})]
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.folder.cleanup()

    def test_many_messages(self):
        """Messages are put together and calls are taken apart in a time proportional to their number."""
        user = {"role": "user", "content": "x"}
        self.bounded("/v1/chat/completions", {"messages": [{"role": "system", "content": ""}] * 50_000 + [user]})
        calls = [{"id": "1", "function": {"name": "f"}}] * 30_000
        results = [{"role": "tool", "tool_call_id": "2", "content": ""}] * 30_000
        # What the template's loops over so many messages may take (docs/reference/server.md) is most of this.
        self.bounded("/v1/chat/completions", {"messages": [{"role": "assistant", "tool_calls": calls}, *results, user]},
                     seconds=4 * victim.CPU_SECONDS)


class Files(unittest.TestCase):
    def run_program(self, *words, seconds=10 * victim.CPU_SECONDS):
        before = os.times()
        done = subprocess.run([program.PROGRAM, *words], capture_output=True, text=True,
                              timeout=program.PATIENCE)
        self.assertNotRegex(done.stderr, program.REPORT)
        self.assertGreaterEqual(done.returncode, 0, "killed by a signal: " + done.stderr[-300:])
        after = os.times()
        self.assertLess(after.children_user - before.children_user + after.children_system - before.children_system, seconds)
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
            done = self.run_program("generate", "--model", directory, "x", seconds=victim.CPU_SECONDS)
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
