"""Continues several prompts together, and streams the answer to a conversation.

    python examples/python/generate.py MODEL
"""
import sys

from litecache_llm import LLM, SamplingParams

with LLM(sys.argv[1], max_context="4k") as llm:
    prompts = ["def main(", "import os\n", "for line in"]
    for output in llm.generate(prompts, SamplingParams(max_tokens=20, temperature=0)):
        print(repr(output.prompt + output.outputs[0].text))
    for chunk in llm.stream([{"role": "user", "content": "Hello"}], SamplingParams(max_tokens=20)):
        print(chunk.text, end="", flush=True)
    print()
