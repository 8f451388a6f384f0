"""Compares KV policies on a text: how much worse the model predicts it, and how often rows are found.

    python examples/python/compare_policies.py MODEL TEXT_FILE
"""
import math
import sys

from litecache_llm import LLM

POLICIES = {"full": {"kv_policy": "full"},
            "litecache 20%": {"kv_policy": "litecache", "kv_budget": "20%"},
            "litecache 5%": {"kv_policy": "litecache", "kv_budget": "5%"},
            "streaming": {"kv_policy": "streaming"}}

with open(sys.argv[2], encoding="utf-8") as file:
    text = file.read()
for name, options in POLICIES.items():
    with LLM(sys.argv[1], max_context="8k", **options) as llm:
        tokens = llm.tokenize(text)[:4000]
        first = len(tokens) - 200  # the last 200 tokens are decoded one by one, with the policy
        scores = llm.score(tokens, decode_from=first)[first:]
        kv = llm.stats()["kv"]
        hits = f"{kv['hits'] / kv['lookups']:.0%} hits" if kv["lookups"] else ""
        print(f"{name:14} perplexity {math.exp(-sum(scores) / len(scores)):7.3f}  {hits}")
