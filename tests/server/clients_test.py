"""The program with real clients: the official openai package, curl, Prometheus's own parser.

usage: clients_test.py PROGRAM MODEL_DIRECTORY
Exits with 77 (skipped) if the Python packages are missing.
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import typing
import unittest

try:
    import jsonschema
    import openai
    import pydantic
except ImportError as error:
    print(f"skipped: {error}; scripts/setup-test-python installs tests/requirements.txt")
    sys.exit(77)

from openai_server import KEY, Server
import program
from program import NAME, TURNS, ServerTest


class Pet(pydantic.BaseModel):
    """Bounded, so that a model that ignores it still comes to an end."""

    kind: typing.Literal["cat", "dog"]
    age: int = pydantic.Field(ge=0, le=30)
    names: list[typing.Annotated[str, pydantic.Field(max_length=8)]] = pydantic.Field(max_length=3)
    mother: typing.Optional[typing.Literal["Tom", "Ann"]]


KEEP = {"type": "function", "function": {
    "name": "keep", "description": "Keeps a pet.", "strict": True,
    "parameters": {**Pet.model_json_schema(), "additionalProperties": False}}}


class Clients(ServerTest):
    @classmethod
    def serve(cls):
        return Server()

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = cls.server.client()

    def test_models(self):
        models = self.client.models.list().data
        self.assertEqual(len(models), 1)
        self.assertEqual(self.client.models.retrieve(models[0].id).id, models[0].id)

    def test_chat_streamed_and_whole_are_the_same(self):
        options = {"model": NAME, "messages": TURNS, "max_completion_tokens": 24,
                   "temperature": 0}
        whole = self.client.chat.completions.create(**options)
        self.assertTrue(whole.choices[0].message.content)
        text, usage = "", None
        for chunk in self.client.chat.completions.create(
                **options, stream=True, stream_options={"include_usage": True}):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
        self.assertEqual(text, whole.choices[0].message.content)
        # The prompt is cached, except for its last tokens.
        prompt = usage.prompt_tokens
        self.assertEqual(usage.prompt_tokens_details.cached_tokens, (prompt - 1) // 16 * 16)
        self.assertEqual((prompt, usage.completion_tokens),
                         (whole.usage.prompt_tokens, whole.usage.completion_tokens))

    def test_a_second_turn_pays_for_what_is_new(self):
        options = {"model": NAME, "max_completion_tokens": 60, "temperature": 0,
                   "extra_body": {"ignore_eos": True}}
        messages = [{"role": "user", "content": "class Stack:\n    def __init__(self):\n" * 20}]
        first = self.client.chat.completions.create(messages=messages, **options)
        messages += [{"role": "assistant", "content": first.choices[0].message.content},
                     {"role": "user", "content": "    def pop(self):"}]
        second = self.client.chat.completions.create(messages=messages, **options)
        cached = second.usage.prompt_tokens_details.cached_tokens
        # The text of an answer may be tokenized differently as part of a prompt; the first prompt, except for the end
        # of its template, may not.
        self.assertGreater(cached, first.usage.prompt_tokens - 32)
        self.assertLess(cached, second.usage.prompt_tokens)

    def test_the_stream_helper_accumulates(self):
        with self.client.chat.completions.stream(
                model=NAME, messages=TURNS, max_tokens=16, logprobs=True,
                top_logprobs=2) as stream:
            content = "".join(e.delta for e in stream if e.type == "content.delta")
            try:
                final = stream.get_final_completion()
            except openai.LengthFinishReasonError as cut:  # the package reports "length" this way
                final = cut.completion
        self.assertEqual(final.choices[0].message.content, content)
        self.assertEqual(len(final.choices[0].logprobs.content[0].top_logprobs), 2)

    def test_extensions(self):
        answer = self.client.chat.completions.create(
            model=NAME, messages=TURNS, max_tokens=5, seed=1, n=2,
            extra_body={"top_k": 5, "min_p": 0.01, "repetition_penalty": 1.1, "ignore_eos": True})
        self.assertEqual([c.finish_reason for c in answer.choices], ["length", "length"])
        self.assertEqual(answer.usage.completion_tokens, 10)

    def test_completions(self):
        answer = self.client.completions.create(
            model=NAME, prompt=["import os\n", "class A"], max_tokens=6, logprobs=2)
        self.assertEqual([c.index for c in answer.choices], [0, 1])
        self.assertEqual(len(answer.choices[0].logprobs.tokens),
                         len(answer.choices[0].logprobs.token_logprobs))

    def test_prompt_logprobs(self):
        prompt = "def add(a, b):\n    return a + b\n"
        for tokens in (0, 3):
            choice = self.client.completions.create(
                model=NAME, prompt=prompt, echo=True, logprobs=1, max_tokens=tokens,
                temperature=0, extra_body={"return_token_ids": True, "prompt_logprobs": 0}).choices[0]
            self.assertTrue(choice.text.startswith(prompt))
            logprobs, ids = choice.logprobs, choice.prompt_token_ids
            self.assertEqual(len(logprobs.tokens), len(ids) + len(choice.token_ids))
            self.assertIsNone(logprobs.token_logprobs[0])
            self.assertEqual(len(choice.token_ids), tokens)
            for i in range(1, len(ids)):
                # What is likely enough is listed first; the token itself is listed in any case.
                self.assertEqual(logprobs.top_logprobs[i][logprobs.tokens[i]],
                                 logprobs.token_logprobs[i])
                self.assertEqual(choice.prompt_logprobs[i][str(ids[i])]["logprob"],
                                 logprobs.token_logprobs[i])
            # What the model writes itself is the likeliest.
            for i in range(len(ids), len(logprobs.tokens)):
                self.assertEqual(logprobs.token_logprobs[i], max(logprobs.top_logprobs[i].values()))

    def test_texts_of_a_form(self):
        grammar = 'root ::= sum "=" [0-9]{1,3}\nsum ::= [0-9]{1,2} ("+" sum)?'
        forms = [({"choice": ["red", "green"]}, "red|green"),
                 ({"regex": "[A-Z][a-z]{2,5}(-[0-9]{2})?"}, "[A-Z][a-z]{2,5}(-[0-9]{2})?"),
                 ({"grammar": grammar}, r"[0-9]{1,2}(\+[0-9]{1,2})*=[0-9]{1,3}")]
        for form, expected in forms:
            answer = self.client.chat.completions.create(
                model=NAME, messages=TURNS, n=4, temperature=1.5, seed=3,
                max_completion_tokens=400, extra_body={"structured_outputs": form})
            for choice in answer.choices:
                if choice.finish_reason == "stop":  # a sum may be as long as the model likes
                    self.assertRegex(choice.message.content, f"^({expected})$")
            self.assertIn("stop", [choice.finish_reason for choice in answer.choices])
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(
                model=NAME, messages=TURNS, extra_body={"grammar": "root ::= root"})
        self.assertEqual(caught.exception.param, "grammar")

    def test_responses(self):
        options = {"model": NAME, "input": TURNS[0]["content"],
                   "max_output_tokens": 12, "temperature": 0}
        whole = self.client.responses.create(**options)
        self.assertTrue(whole.output_text)
        with self.client.responses.stream(**options) as stream:
            text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        self.assertEqual(text, whole.output_text)

    def test_parse_gives_objects(self):
        for temperature in (0, 1, 1.5):
            answer = self.client.chat.completions.parse(
                model=NAME, messages=TURNS, response_format=Pet, n=3,
                temperature=temperature, max_completion_tokens=400)
            for choice in answer.choices:
                self.assertEqual(choice.finish_reason, "stop")
                self.assertIsInstance(choice.message.parsed, Pet)
        parsed = self.client.responses.parse(
            model=NAME, input="x", text_format=Pet, max_output_tokens=400)
        self.assertIsInstance(parsed.output_parsed, Pet)
        with self.client.chat.completions.stream(
                model=NAME, messages=TURNS, response_format=Pet,
                max_completion_tokens=400) as stream:
            self.assertIsInstance(stream.get_final_completion().choices[0].message.parsed, Pet)

    def test_json_of_a_schema(self):
        schema = {"type": "array", "minItems": 1, "maxItems": 4, "items": {"anyOf": [
            {"type": "string", "pattern": "^[a-z]{1,6}(-[0-9]{2})?$"}, {"type": "null"},
            {"type": "number", "minimum": -1, "exclusiveMaximum": 2.5},
            {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 2}]}}
        answer = self.client.chat.completions.create(
            model=NAME, messages=TURNS, n=8, temperature=1.3,
            max_completion_tokens=2000,
            response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}})
        for choice in answer.choices:
            self.assertEqual(choice.finish_reason, "stop")
            jsonschema.validate(json.loads(choice.message.content), schema)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(
                model=NAME, messages=TURNS,
                response_format={"type": "json_schema", "json_schema": {
                    "name": "a", "schema": {"type": "array", "items": {"not": {}}}}})
        self.assertEqual(caught.exception.param, "response_format.json_schema.schema")
        self.assertIn("#/items", str(caught.exception))

    def test_tools(self):
        options = {"model": NAME, "messages": TURNS, "tools": [KEEP],
                   "max_completion_tokens": 400, "temperature": 1, "seed": 4,
                   "parallel_tool_calls": False}
        for choice in ("required", {"type": "function", "function": {"name": "keep"}}):
            whole = self.client.chat.completions.create(**options, tool_choice=choice).choices[0]
            self.assertEqual(whole.finish_reason, "tool_calls")
            self.assertIsNone(whole.message.content)
            call = whole.message.tool_calls[0]
            self.assertEqual((call.type, call.function.name), ("function", "keep"))
            Pet.model_validate_json(call.function.arguments)
            arguments, names, finish = "", [], None
            for chunk in self.client.chat.completions.create(**options, tool_choice=choice,
                                                             stream=True):
                finish = chunk.choices[0].finish_reason or finish
                for part in chunk.choices[0].delta.tool_calls or []:
                    names += [part.function.name] if part.function.name else []
                    arguments += part.function.arguments
            self.assertEqual((names, arguments, finish),
                             (["keep"], call.function.arguments, "tool_calls"))
        parsed = self.client.chat.completions.parse(**options, tool_choice="required")
        Pet.model_validate(parsed.choices[0].message.tool_calls[0].function.parsed_arguments)
        # The model may choose; a small one that continues code does not call.
        choice = self.client.chat.completions.create(**options).choices[0]
        self.assertIn(choice.finish_reason, ("stop", "length", "tool_calls"))

    def test_tools_of_responses(self):
        tool = {"type": "function", **KEEP["function"]}
        options = {"model": NAME, "input": "x", "tools": [tool],
                   "tool_choice": "required", "max_output_tokens": 400, "temperature": 0,
                   "parallel_tool_calls": False}
        call = self.client.responses.create(**options).output[0]
        self.assertEqual((call.type, call.name), ("function_call", "keep"))
        Pet.model_validate_json(call.arguments)
        with self.client.responses.stream(**options) as stream:
            arguments = "".join(e.delta for e in stream
                                if e.type == "response.function_call_arguments.delta")
            self.assertEqual(stream.get_final_response().output[0].arguments, arguments)
        self.assertEqual(arguments, call.arguments)

    def test_errors_have_their_classes(self):
        create = self.client.chat.completions.create
        with self.assertRaises(openai.BadRequestError) as caught:
            create(model=NAME, messages=TURNS, temperature=-1)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.BadRequestError) as caught:
            create(model=NAME, messages=TURNS, extra_body={"mirostat": 2})
        self.assertEqual(caught.exception.code, "unsupported_parameter")
        with self.assertRaises(openai.NotFoundError):
            create(model="another", messages=TURNS)
        with self.assertRaises(openai.AuthenticationError):
            self.server.client(api_key="wrong").models.list()
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.completions.create(model=NAME, prompt=[5] * 40000)
        self.assertEqual(caught.exception.code, "context_length_exceeded")

    def test_a_timeout_cancels(self):
        with self.assertRaises(openai.APITimeoutError):
            self.server.client(timeout=0.5).completions.create(
                model=NAME, prompt="x", max_tokens=30000,
                extra_body={"ignore_eos": True})
        self.server.wait_idle()

    def test_closing_a_stream_cancels(self):
        stream = self.client.completions.create(
            model=NAME, prompt="x", max_tokens=30000, stream=True,
            extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        self.server.wait_idle()
        deadline = time.time() + program.PATIENCE
        while True:
            samples = self.server.metrics()
            used, kept = ([samples[(name, (("tier", tier),))] for tier in ("device", "host")]
                          for name in ("litecache_kv_used_bytes", "litecache_prefix_bytes"))
            # All used memory belongs to kept prefixes, once the engine has ended its step.
            if used == kept or time.time() > deadline:
                break
            time.sleep(0.05)
        self.assertEqual(used, kept)

    def test_metrics_parse_and_count(self):
        before = self.server.metrics()
        self.client.completions.create(model=NAME, prompt="a b", max_tokens=7,
                                       extra_body={"ignore_eos": True})
        after = self.server.metrics()

        def grown(name, *labels):
            return after[(name, labels)] - before.get((name, labels), 0)

        self.assertEqual(grown("litecache_generation_tokens_total"), 7)
        self.assertEqual(grown("litecache_time_to_first_token_seconds_count"), 1)
        self.assertEqual(grown("litecache_time_per_output_token_seconds_count"), 6)
        self.assertEqual(grown("litecache_http_responses_total", ("route", "/v1/completions"),
                               ("status", "200")), 1)

    @unittest.skipUnless(shutil.which("curl"), "curl is not installed")
    def test_curl(self):
        body = json.dumps({"messages": TURNS, "max_tokens": 4, "stream": True})
        # -N: unbuffered; a body this large makes curl send Expect: 100-continue.
        padded = json.dumps({"prompt": "x " * 10, "max_tokens": 1, "user": "u" * 2_000_000})
        common = ["curl", "-sS", "--fail", "-N", "-H", "Authorization: Bearer " + KEY,
                  "-H", "Content-Type: application/json"]
        stream = subprocess.run([*common, self.server.url + "/v1/chat/completions", "-d", body],
                                capture_output=True, text=True, check=True).stdout
        self.assertTrue(stream.endswith("data: [DONE]\n\n"), stream)
        large = subprocess.run([*common, self.server.url + "/v1/completions", "-d", "@-"],
                               input=padded, capture_output=True, text=True, check=True).stdout
        self.assertEqual(json.loads(large)["usage"]["completion_tokens"], 1)


class TaggedCalls(ServerTest):
    """The same calls of a model whose template asks for arguments in tags."""

    @classmethod
    def serve(cls):
        folder = pathlib.Path(__file__).parents[1] / "tokenizer_jinja" / "data"
        source = (folder / "qwen3_5.jinja").read_text(encoding="utf-8")
        with tempfile.NamedTemporaryFile("w", suffix=".jinja", encoding="utf-8") as template:
            # Without thoughts, which this model would not end.
            template.write("{% set enable_thinking = false %}" + source)
            template.flush()
            return Server("--chat-template", template.name)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = cls.server.client()

    test_tools = Clients.test_tools
    test_tools_of_responses = Clients.test_tools_of_responses

    def test_a_call_goes_back_into_the_prompt(self):
        create, options = self.client.chat.completions.create, {"model": NAME, "tools": [KEEP]}
        call = create(messages=TURNS, tool_choice="required", max_completion_tokens=400,
                      parallel_tool_calls=False, **options).choices[0].message
        turns = [*TURNS, call.model_dump(exclude_none=True),
                 {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "kept"}]
        prompt = self.server.call("/apply-template", {"messages": turns, "tools": [KEEP]})["prompt"]
        pet = Pet.model_validate_json(call.tool_calls[0].function.arguments)
        self.assertIn("<tool_call>\n<function=keep>\n<parameter=kind>\n"
                      f"{pet.kind}\n</parameter>\n<parameter=age>\n{pet.age}\n</parameter>\n",
                      prompt)
        self.assertEqual(create(messages=turns, tool_choice="none", max_completion_tokens=2,
                                **options).choices[0].message.role, "assistant")


class RandomWeights(unittest.TestCase):
    def test_a_shape_needs_no_files(self):
        server = Server("--shape", "opt-125m", "--served-model-name", "dummy", model=None)
        client = server.client()
        self.assertEqual([model.id for model in client.models.list()], ["dummy"])
        options = {"model": "dummy", "max_tokens": 8, "temperature": 0, "extra_body": {"ignore_eos": True}}
        answer = client.completions.create(prompt="four", **options)
        self.assertEqual((answer.usage.prompt_tokens, answer.usage.completion_tokens), (4, 8))
        self.assertTrue(answer.choices[0].text)
        chat = client.chat.completions.create(messages=TURNS, **options)
        self.assertEqual(chat.usage.prompt_tokens, len(f"user: {TURNS[0]['content']}\nassistant:"))
        self.assertEqual(server.stop(), 0)


class Reasoning(unittest.TestCase):
    def test_thoughts_have_a_field_of_their_own(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
            template.write("{{ messages[0].content }}{% if enable_thinking is defined and "
                           "not enable_thinking %}<think></think>{% else %}<think>{% endif %}")
            template.flush()
            server = Server("--chat-template", template.name)
            create = server.client().chat.completions.create
            options = {"model": NAME, "messages": TURNS, "max_completion_tokens": 12,
                       "temperature": 0}
            # The model knows no tags: all that it says is thought.
            whole = create(**options)
            message = whole.choices[0].message
            self.assertEqual(message.content, "")
            self.assertTrue(message.reasoning_content)
            self.assertEqual(whole.usage.completion_tokens_details.reasoning_tokens,
                             whole.usage.completion_tokens)
            deltas = [choice.delta for chunk in create(**options, stream=True)
                      for choice in chunk.choices]
            self.assertEqual("".join(getattr(delta, "reasoning_content", None) or ""
                                     for delta in deltas), message.reasoning_content)
            self.assertEqual("".join(delta.content or "" for delta in deltas), "")
            for extra in ({"enable_thinking": False},
                          {"chat_template_kwargs": {"enable_thinking": False}}):
                answer = create(**options, extra_body=extra).choices[0].message
                self.assertTrue(answer.content)
                self.assertFalse(hasattr(answer, "reasoning_content"))
            self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=2)
