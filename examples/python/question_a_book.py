"""Asks questions about a long text, such as a book of 500 pages. The text is read once: later questions begin behind it.

    python examples/python/question_a_book.py MODEL TEXT_FILE QUESTION [QUESTION ...]
"""
import sys
import time

from litecache_llm import LLM, SamplingParams

with open(sys.argv[2], encoding="utf-8") as file:
    book = file.read()
# With `litecache` the KV cache lies in host memory, so that the book need not fit the GPU's.
with LLM(sys.argv[1], kv_policy="litecache", prefix_cache=True) as llm:
    print(f"{len(llm.tokenize(book))} tokens")
    for question in sys.argv[3:]:
        start = time.monotonic()
        turn = {"role": "user", "content": f"{book}\n\n{question}"}
        answer = llm.chat([turn], SamplingParams(max_tokens=300, temperature=0))
        cached = answer.usage["prompt_tokens_details"]["cached_tokens"]
        print(f"\n{question}\n{answer.text}\n({time.monotonic() - start:.1f} s, {cached} tokens from the cache)")
