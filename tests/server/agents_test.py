"""The program against what coding agents and clients of other servers send, by the openai package.

usage: agents_test.py PROGRAM MODEL_DIRECTORY
Exits with 77 (skipped) where the package is missing.
"""

import json
import sys
import time
import unittest
import urllib.error

try:
    import openai
except ImportError as error:
    print(f"skipped: {error}; scripts/setup-test-python installs tests/requirements.txt")
    sys.exit(77)

import program
from program import NAME, TURNS

# What clients of llama.cpp's server and of vLLM add.
HARMLESS = {"cache_prompt": True, "id_slot": -1, "request_id": "r\n\x1b[31m", "add_generation_prompt": True}
SHELL = {"type": "function", "name": "shell", "description": "Runs a command.", "strict": False,
         "parameters": {"type": "object", "required": ["command"], "additionalProperties": False,
                        "properties": {"command": {"type": "array", "maxItems": 2,
                                                   "items": {"enum": ["ls", "cat"]}}}}}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Changes files.",
         "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}}


def connect(server, path="/v1"):
    return openai.OpenAI(base_url=server.url + path, api_key="none", max_retries=0)


class Agents(program.ServerTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = connect(cls.server)

    def agent(self, **more):
        """A request as Codex sends it."""
        return {"model": NAME, "instructions": "You are a coding agent.", "store": False,
                "stream": True, "tool_choice": "auto", "parallel_tool_calls": False,
                "reasoning": {"effort": "medium", "summary": "auto"}, "temperature": 0,
                "include": ["reasoning.encrypted_content"], "prompt_cache_key": "0123-4567",
                "text": {"verbosity": "medium"}, "tools": [SHELL, PATCH, {"type": "web_search"}],
                "max_output_tokens": 12,
                "input": [{"type": "message", "role": "developer",
                           "content": [{"type": "input_text", "text": "Be brief."}]},
                          {"type": "message", "role": "user",
                           "content": [{"type": "input_text", "text": "List the files."}]}], **more}

    def test_a_turn_and_the_next(self):
        events = list(self.client.responses.create(**self.agent(
            tool_choice={"type": "function", "name": "shell"}, max_output_tokens=200)))
        self.assertEqual(events[0].type, "response.created")
        self.assertEqual(events[-1].type, "response.completed")
        call = events[-1].response.output[0]
        self.assertEqual((call.type, call.name), ("function_call", "shell"))
        self.assertIn("command", json.loads(call.arguments))
        turn = self.agent()["input"] + [
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "e"},
            call.to_dict(),
            {"type": "function_call_output", "call_id": call.call_id, "output": "a.txt"}]
        kinds = [event.type for event in self.client.responses.create(**self.agent(input=turn))]
        self.assertIn(kinds[-1], ("response.completed", "response.incomplete"))

    def test_a_custom_tool(self):
        events = list(self.client.responses.create(**self.agent(
            tool_choice={"type": "custom", "name": "apply_patch"}, max_output_tokens=60)))
        call = events[-1].response.output[0]
        self.assertEqual((call.type, call.name), ("custom_tool_call", "apply_patch"))
        self.assertEqual([e.delta for e in events if e.type == "response.custom_tool_call_input.delta"],
                         [call.input])

    def test_harmless_fields_are_logged_once(self):
        create = self.client.chat.completions.create
        plain = create(model=NAME, messages=TURNS, max_tokens=5, temperature=0)
        for _ in range(3):
            answer = create(model=NAME, messages=TURNS, max_tokens=5, temperature=0,
                            extra_body={**HARMLESS, "frob\nnicate\x1b[2J": 1})
            self.assertEqual(answer.choices[0].message.content, plain.choices[0].message.content)
        self.assertEqual(create(model=NAME, messages=TURNS, max_tokens=-1, temperature=0,
                                stop=["\n"]).choices[0].finish_reason, "stop")
        names = ("'cache_prompt'", "'id_slot'", "'request_id'", r"'frob\x0anicate\x1b[J'")
        deadline = time.time() + program.PATIENCE  # the log comes through a pipe of its own
        while not all(any(name in line for line in self.server.log) for name in names):
            self.assertLess(time.time(), deadline, self.server.log)
            time.sleep(0.02)
        for name in names:
            self.assertEqual(sum(name in line for line in self.server.log), 1, self.server.log)
        with self.assertRaises(openai.BadRequestError) as caught:
            create(model=NAME, messages=TURNS, extra_body={"dry_multiplier": 0.8})
        self.assertEqual(caught.exception.param, "dry_multiplier")

    def test_strict_fields(self):
        server = program.Server("--strict-fields")
        client = connect(server)
        for name, value in HARMLESS.items():
            if name == "add_generation_prompt":
                continue
            with self.assertRaises(openai.BadRequestError) as caught:
                client.chat.completions.create(model=NAME, messages=TURNS, extra_body={name: value})
            self.assertEqual((caught.exception.code, caught.exception.param),
                             ("unknown_parameter", name))
        self.assertEqual(server.stop(), 0)

    def test_paths_without_a_version(self):
        client = connect(self.server, "")
        self.assertEqual(client.models.list().data[0].id, NAME)
        self.assertEqual(client.models.retrieve(NAME).id, NAME)
        options = {"model": NAME, "messages": TURNS, "max_tokens": 4, "temperature": 0}
        answer = client.chat.completions.create(**options, extra_body={"timings_per_token": True})
        self.assertEqual(answer.choices[0].message.content,
                         self.client.chat.completions.create(**options).choices[0].message.content)
        self.assertEqual(answer.timings["predicted_n"], 4)
        self.assertEqual(client.completions.create(model=NAME, prompt="x", max_tokens=1)
                         .usage.completion_tokens, 1)
        self.assertEqual(client.responses.create(model=NAME, input="x", max_output_tokens=1)
                         .usage.output_tokens, 1)

    def test_what_open_webui_sends(self):
        models = self.server.call("/v1/models")
        self.assertEqual([model["object"] for model in models["data"]], ["model"])
        self.assertEqual(models["data"][0]["id"], NAME)
        body = {"model": NAME, "messages": TURNS, "max_tokens": 6, "temperature": 0}
        plain = self.server.call("/v1/chat/completions", body)["choices"][0]["message"]["content"]
        # What its front end, its filters and its tasks (a title, tags) add.
        more = {"chat_id": "c", "session_id": "s", "id": "m", "params": {}, "variables": {}, "features": {
                    "web_search": False, "code_interpreter": False}, "tool_ids": [], "tool_servers": [],
                "background_tasks": {"title_generation": True}, "model_item": {"id": NAME},
                "metadata": {"task": "title_generation", "chat_id": "c"}, "user": {"id": "u", "name": "n"}}
        answer = self.server.call("/v1/chat/completions", {**body, **more, "stream": False})
        self.assertEqual(answer["choices"][0]["message"]["content"], plain)
        with self.server.open("/v1/chat/completions", {
                **body, **more, "stream": True, "stream_options": {"include_usage": True}}) as stream:
            lines = [line.decode().strip() for line in stream]
        self.assertEqual(lines[-2], "data: [DONE]")
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        self.assertEqual("".join(choice["delta"].get("content") or ""
                                 for event in events for choice in event["choices"]), plain)
        self.assertEqual(events[-1]["usage"]["completion_tokens"], 6)

    def test_small_endpoints(self):
        self.assertEqual(self.server.call("/ping"), {"status": "ok"})
        self.assertRegex(self.server.call("/version")["version"], r"^\d+\.\d+")
        slots = self.server.call("/slots")
        self.assertEqual([slot["id"] for slot in slots], list(range(64)))
        prompt = self.server.call("/apply-template", {"messages": TURNS})["prompt"]
        self.assertIn(TURNS[0]["content"], prompt)
        with self.assertRaises(urllib.error.HTTPError) as caught:
            self.server.call("/nowhere")
        caught.exception.close()
        self.assertEqual(caught.exception.code, 404)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=2)
