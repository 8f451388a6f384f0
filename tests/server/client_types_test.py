"""The program's answers as types: the openai package's, which are generated from OpenAI's specification, and those of Hugging Face's
client.

usage: client_types_test.py PROGRAM MODEL_DIRECTORY
Exits with 77 (skipped) if the Python packages are missing.
"""

import sys
import unittest

try:
    import huggingface_hub
    import pydantic
    from openai import types
except ImportError as error:
    print(f"skipped: {error}; scripts/setup-test-python installs tests/requirements.txt")
    sys.exit(77)

from clients_test import KEEP, Pet
from openai_server import KEY, Server
from program import NAME, TURNS, ServerTest


class Types(ServerTest):
    @classmethod
    def serve(cls):
        return Server()

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = cls.server.client()

    def test_answers_have_the_types_of_the_specification(self):
        """The package itself reads leniently; programs in other languages that are generated from the same specification do
        not."""
        tool = {"type": "function", **KEEP["function"]}
        requests = [
            (self.client.chat.completions, types.chat.ChatCompletion, types.chat.ChatCompletionChunk,
             {"messages": TURNS, "max_tokens": 8, "logprobs": True, "top_logprobs": 2}),
            (self.client.chat.completions, types.chat.ChatCompletion, types.chat.ChatCompletionChunk,
             {"messages": TURNS, "max_tokens": 200, "tools": [KEEP], "tool_choice": "required"}),
            # Its streams have no type of their own there.
            (self.client.completions, types.Completion, None, {"prompt": "a", "max_tokens": 8, "logprobs": 2}),
            (self.client.responses, types.responses.Response, types.responses.ResponseStreamEvent,
             {"input": "a", "max_output_tokens": 8, "metadata": {"a": "b"}}),
            (self.client.responses, types.responses.Response, types.responses.ResponseStreamEvent,
             {"input": "a", "max_output_tokens": 200, "tools": [tool], "tool_choice": "required"})]
        for api, whole, event, options in requests:
            options = {"model": NAME, **options}
            pydantic.TypeAdapter(whole).validate_json(api.with_raw_response.create(**options).http_response.content, strict=True)
            if event is None:
                continue
            adapter = pydantic.TypeAdapter(event)
            with api.with_streaming_response.create(**options, stream=True) as answer:
                for line in answer.iter_lines():
                    if line.startswith("data: {"):
                        adapter.validate_json(line.removeprefix("data: "), strict=True)

    def test_hugging_face_s_client(self):
        client = huggingface_hub.InferenceClient(base_url=str(self.client.base_url), api_key=KEY)
        options = {"messages": TURNS, "model": NAME, "max_tokens": 200}
        whole = client.chat_completion(**options, temperature=0)
        parts = client.chat_completion(**options, temperature=0, stream=True)
        self.assertEqual("".join(chunk.choices[0].delta.content or "" for chunk in parts), whole.choices[0].message.content)
        schema = {**Pet.model_json_schema(), "additionalProperties": False}
        form = {"type": "json_schema", "json_schema": {"name": "pet", "schema": schema, "strict": True}}
        Pet.model_validate_json(client.chat_completion(**options, response_format=form).choices[0].message.content)
        calls = client.chat_completion(**options, tools=[KEEP], tool_choice={"function": {"name": "keep"}}).choices[0].message.tool_calls
        Pet.model_validate_json(calls[0].function.arguments)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=2)
