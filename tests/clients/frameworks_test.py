"""The program with frameworks that speak OpenAI's and Anthropic's API: litellm, LangChain, LlamaIndex.

usage: tests/clients/check PROGRAM MODEL_DIRECTORY
"""

import json
import os
import sys
import unittest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # litellm asks no other server for prices

import litellm
import pydantic
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

import program

MODEL = "litecache-demo-16m"
TEXT = "def add(a, b):\n    return"
CHAT = [{"role": "user", "content": TEXT}]


class Pet(pydantic.BaseModel):
    age: int = pydantic.Field(ge=0, le=30)
    likes_dogs: bool


@tool
def keep(age: int) -> str:
    """Keeps a pet."""
    return str(age)


class Frameworks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = program.Server()
        cls.plain = cls.server.call("/v1/chat/completions", {
            "messages": CHAT, "max_tokens": 12, "temperature": 0})["choices"][0]["message"]["content"]

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, "".join(cls.server.log)

    def litellm(self, **more):
        return litellm.completion(**{
            "model": "openai/" + MODEL, "api_base": self.server.url + "/v1", "api_key": "none",
            "messages": CHAT, "max_tokens": 12, "temperature": 0, "num_retries": 0, **more})

    def test_litellm(self):
        self.assertEqual(self.litellm().choices[0].message.content, self.plain)
        pieces = [chunk.choices[0].delta.content or "" for chunk in self.litellm(stream=True)]
        self.assertGreater(len(pieces), 2)
        self.assertEqual("".join(pieces), self.plain)
        pet = self.litellm(response_format=Pet, max_tokens=200).choices[0].message.content
        Pet.model_validate_json(pet)
        schema = {"type": "object", "required": ["age"], "additionalProperties": False,
                  "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 30}}}
        call = self.litellm(
            tools=[{"type": "function", "function": {"name": "keep", "parameters": schema}}],
            tool_choice="required", max_tokens=200).choices[0].message.tool_calls[0]
        self.assertIn("age", json.loads(call.function.arguments))

    def test_litellm_recognizes_what_is_too_long(self):
        for words in (40_000, 400_000):
            with self.assertRaises(litellm.ContextWindowExceededError):
                self.litellm(messages=[{"role": "user", "content": "word " * words}])
        with self.assertRaises(litellm.ContextWindowExceededError):
            self.litellm(max_tokens=100_000)

    def test_litellm_by_anthropics_api(self):
        answer = self.litellm(model="anthropic/" + MODEL, api_base=self.server.url)
        self.assertEqual(answer.choices[0].message.content, self.plain)

    def langchain(self, **more):
        return ChatOpenAI(**{"model": MODEL, "base_url": self.server.url + "/v1", "api_key": "none",
                             "temperature": 0, "max_tokens": 12, "max_retries": 0, **more})

    def test_langchain(self):
        model = self.langchain()
        answer = model.invoke([HumanMessage(TEXT)])
        self.assertEqual(answer.content, self.plain)
        self.assertEqual(answer.usage_metadata["output_tokens"], 12)
        self.assertEqual("".join(piece.content for piece in model.stream([HumanMessage(TEXT)])), self.plain)
        self.assertTrue(model.invoke([SystemMessage("Be brief."), HumanMessage(TEXT)]).content)
        self.assertEqual(len(model.batch([TEXT, TEXT, TEXT])), 3)

    def test_langchain_structures_and_tools(self):
        model = self.langchain(max_tokens=200)
        for method in ("json_schema", "function_calling"):
            self.assertIsInstance(model.with_structured_output(Pet, method=method).invoke(TEXT), Pet)
        calls = model.bind_tools([keep], tool_choice="keep").invoke(TEXT).tool_calls
        self.assertEqual(calls[0]["name"], "keep")

    def test_langchain_by_responses(self):
        answer = self.langchain(use_responses_api=True).invoke([HumanMessage(TEXT)])
        self.assertEqual(answer.text, self.plain)

    def test_llama_index(self):
        model = OpenAILike(model=MODEL, api_base=self.server.url + "/v1", api_key="none",
                           is_chat_model=True, temperature=0, max_tokens=12, max_retries=0)
        message = [ChatMessage(role="user", content=TEXT)]
        self.assertEqual(model.chat(message).message.content, self.plain)
        self.assertEqual("".join(piece.delta or "" for piece in model.stream_chat(message)), self.plain)
        plain = OpenAILike(model=MODEL, api_base=self.server.url + "/v1", api_key="none",
                           is_chat_model=False, temperature=0, max_tokens=12, max_retries=0)
        expected = self.server.call("/v1/completions", {
            "prompt": TEXT, "max_tokens": 12, "temperature": 0})["choices"][0]["text"]
        self.assertEqual(plain.complete(TEXT).text, expected)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=2)
