"""The program against the official anthropic package.

usage: anthropic_test.py PROGRAM MODEL_DIRECTORY
Exits with 77 (skipped) where the package is missing.
"""

import sys
import unittest

try:
    import anthropic
    import pydantic
except ImportError as error:
    print(f"skipped: {error}; scripts/setup-test-python installs tests/requirements.txt")
    sys.exit(77)

import program
from program import NAME, TURNS

KEY = "test-key"
KEEP = {"name": "keep", "description": "Keeps a pet.", "input_schema": {
    "type": "object", "required": ["kind", "age"], "additionalProperties": False,
    "properties": {"kind": {"enum": ["cat", "dog"]},
                   "age": {"type": "integer", "minimum": 0, "maximum": 30}}}}


class Pet(pydantic.BaseModel):
    age: int = pydantic.Field(ge=0, le=30)
    likes_dogs: bool


class Messages(program.ServerTest):
    @classmethod
    def serve(cls):
        return program.Server(key=KEY)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = cls.connect(KEY)

    @classmethod
    def connect(cls, key):
        return anthropic.Anthropic(base_url=cls.server.url, api_key=key, max_retries=0, timeout=program.PATIENCE)

    def create(self, temperature=0, **more):
        return self.client.messages.create(
            **{"model": NAME, "max_tokens": 16, "messages": TURNS, **more},
            extra_body={"temperature": temperature})

    def stream(self, **more):
        return self.client.messages.stream(
            **{"model": NAME, "max_tokens": 16, "messages": TURNS, **more},
            extra_body={"temperature": 0})

    def test_a_message(self):
        message = self.create()
        self.assertEqual((message.type, message.role, message.model), ("message", "assistant", NAME))
        self.assertTrue(message.content[0].text)
        self.assertEqual((message.stop_reason, message.usage.output_tokens), ("max_tokens", 16))

    def test_a_stream_is_the_same_message(self):
        whole = self.create()
        with self.stream() as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, whole.content[0].text)
        self.assertEqual(final.content[0].text, text)
        self.assertEqual(final.stop_reason, whole.stop_reason)
        self.assertEqual(final.usage.output_tokens, whole.usage.output_tokens)
        inputs = [m.usage.input_tokens + m.usage.cache_read_input_tokens for m in (whole, final)]
        self.assertEqual(inputs[0], inputs[1])

    def test_events_in_their_order(self):
        kinds = []
        for event in self.create(stream=True):
            if not kinds or kinds[-1] != event.type:
                kinds.append(event.type)
        self.assertEqual(kinds, ["message_start", "content_block_start", "content_block_delta",
                                 "content_block_stop", "message_delta", "message_stop"])

    def test_tokens_are_counted(self):
        count = self.client.messages.count_tokens(model=NAME, messages=TURNS).input_tokens
        usage = self.create().usage
        self.assertEqual(count, usage.input_tokens + usage.cache_read_input_tokens)
        more = self.client.messages.count_tokens(
            model=NAME, messages=TURNS, system=[{"type": "text", "text": "Be brief."}])
        self.assertGreater(more.input_tokens, count)

    def test_a_stop_sequence(self):
        text = self.create().content[0].text
        stop = next(c for c in text if c.isalpha())
        message = self.create(stop_sequences=["\x01", stop])
        self.assertEqual((message.stop_reason, message.stop_sequence), ("stop_sequence", stop))
        with self.stream(stop_sequences=[stop]) as stream:
            final = stream.get_final_message()
        self.assertEqual((final.stop_reason, final.stop_sequence), ("stop_sequence", stop))

    def test_tools(self):
        for choice in ({"type": "any", "disable_parallel_tool_use": True},
                       {"type": "tool", "name": "keep"}):
            options = {"tools": [KEEP], "tool_choice": choice, "max_tokens": 400}
            whole = self.create(**options)
            self.assertEqual(whole.stop_reason, "tool_use")
            call = whole.content[0]
            self.assertEqual((call.type, call.name), ("tool_use", "keep"))
            self.assertIn(call.input["kind"], ("cat", "dog"))
            with self.stream(**options) as stream:
                final = stream.get_final_message()
            self.assertEqual(final.content[0].input, call.input)
        # What came of the call goes into the next turn.
        turns = [*TURNS, {"role": "assistant", "content": [call.to_dict()]},
                 {"role": "user", "content": [
                     {"type": "tool_result", "tool_use_id": call.id, "content": "kept"}]}]
        self.assertEqual(self.create(messages=turns, tools=[KEEP],
                                     tool_choice={"type": "none"}).role, "assistant")

    def test_parse_gives_objects(self):
        message = self.client.messages.parse(
            model=NAME, max_tokens=200, messages=TURNS, output_format=Pet)
        self.assertIsInstance(message.parsed_output, Pet)

    def test_errors_have_their_classes(self):
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.create(temperature=-1)
        self.assertEqual(caught.exception.body["error"]["type"], "invalid_request_error")
        with self.assertRaises(anthropic.NotFoundError):
            self.create(model="another")
        with self.assertRaises(anthropic.AuthenticationError) as caught:
            self.connect("wrong").messages.create(model=NAME, max_tokens=1, messages=TURNS)
        self.assertEqual(caught.exception.body["error"]["type"], "authentication_error")
        with self.assertRaises(anthropic.BadRequestError):
            self.create(messages=[{"role": "user", "content": [{
                "type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}]}])

    def test_a_bearer_is_a_key_too(self):
        client = anthropic.Anthropic(base_url=self.server.url, auth_token=KEY, max_retries=0)
        self.assertEqual(client.messages.create(model=NAME, max_tokens=1, messages=TURNS)
                         .usage.output_tokens, 1)

    def test_closing_a_stream_cancels(self):
        with self.stream(max_tokens=30000, messages=[{"role": "user", "content": "x"}]) as stream:
            next(iter(stream))
        self.server.wait_idle()


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=2)
