"""An agent's conversation: every turn repeats all earlier ones, and the prefix cache computes only what is new.

    python examples/python/agent_history.py MODEL
"""
import sys

from litecache_llm import LLM, SamplingParams

with LLM(sys.argv[1], max_context="8k", prefix_cache=True) as llm:
    messages = []
    for turn in range(5):
        messages.append({"role": "user", "content": f"Result {turn} of the tool: " + "ok " * 100})
        answer = llm.chat(messages, SamplingParams(max_tokens=30, temperature=0))
        messages.append(answer.message)
        cached = answer.usage["prompt_tokens_details"]["cached_tokens"]
        print(f"turn {turn}: {answer.usage['prompt_tokens']} tokens, {cached} of them from the cache")
