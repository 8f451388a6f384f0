"""Prints how often every KV head of a model of Hugging Face's finds the rows it needs in LiteCache's KV cache.

    pip install torch transformers build/dist/litecache_llm-*.whl
    python examples/python/hit_ratios.py MODEL TEXT_FILE
"""
import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

from litecache_llm.transformers import LiteCache

model, tokenizer = (kind.from_pretrained(sys.argv[1]) for kind in (AutoModelForCausalLM, AutoTokenizer))
with open(sys.argv[2], encoding="utf-8") as file:
    inputs = tokenizer(file.read(), return_tensors="pt", return_token_type_ids=False)
cache = LiteCache(model.eval(), kv_policy="litecache", kv_budget="10%", device_memory="2GiB", host_memory="4GiB")
model.generate(**inputs, past_key_values=cache, max_new_tokens=50)
for layer, ratios in enumerate(cache.hit_ratios()):
    print(f"layer {layer:2}", *(f"{ratio:6.1%}" for ratio in ratios))
