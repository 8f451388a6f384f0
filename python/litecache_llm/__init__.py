"""LiteCache: large language models whose KV cache does not fit the GPU. The distribution is litecache-llm.

    from litecache_llm import LLM, SamplingParams

    llm = LLM("path/to/model")
    for output in llm.generate(["Once upon a time", "The capital of France is"], SamplingParams(max_tokens=20)):
        print(output.outputs[0].text)

litecache_llm.KvCache is the KV cache alone, for one's own model; litecache_llm.transformers runs Hugging Face's models with it.
"""
from ._answers import ChatOutput, CompletionOutput, RequestOutput, SamplingParams, StreamChunk
from ._library import CapacityError, FileError, InvalidArgument, LiteCacheError, Unsupported, __version__, options
from .kv_cache import KvCache, KvPart
from .llm import LLM, Stream

__all__ = ["LLM", "CapacityError", "ChatOutput", "CompletionOutput", "FileError", "InvalidArgument", "KvCache", "KvPart",
           "LiteCacheError", "RequestOutput", "SamplingParams", "Stream", "StreamChunk", "Unsupported", "__version__", "options"]
