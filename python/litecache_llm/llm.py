"""The engine: load a model, generate, chat, stream, score."""
from __future__ import annotations

import asyncio
import ctypes
import inspect
import operator
import threading
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Optional, Union

from . import _library
from ._answers import (Answer, ChatOutput, RequestOutput, SamplingParams, StreamChunk, chat_output, request_output,
                       stream_chunks)

if TYPE_CHECKING:
    import os

    from typing_extensions import Unpack

    from ._options import Options

Prompt = Union[str, Sequence[int]]
Messages = Sequence[dict[str, Any]]

# More streams at once wait for one another's next chunk.
_STREAM_THREADS = 256


class Stream:
    """The chunks of an answer as they come: an iterator and an async iterator. cancel() ends it, from any thread; so does
    leaving a `with` block."""

    def __init__(self, answer: Answer, executor: ThreadPoolExecutor):
        self._answer = answer
        self._executor = executor
        self._ready: list[StreamChunk] = []

    def __iter__(self) -> Iterator[StreamChunk]:
        return self

    def __next__(self) -> StreamChunk:
        while not self._ready:
            events = self._answer.next()
            if events is None:
                raise StopIteration
            self._ready = stream_chunks(events)[::-1]
        return self._ready.pop()

    def __aiter__(self) -> AsyncIterator[StreamChunk]:
        return self

    async def __anext__(self) -> StreamChunk:
        while not self._ready:
            try:
                events = await asyncio.get_running_loop().run_in_executor(self._executor, self._answer.next)
            except asyncio.CancelledError:
                self.cancel()
                raise
            if events is None:
                raise StopAsyncIteration
            self._ready = stream_chunks(events)[::-1]
        return self._ready.pop()

    def cancel(self) -> None:
        """Ends the answer at the engine's next step; iteration ends with the chunks that had come."""
        self._answer.cancel()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self._answer.release()
        self._ready = []


class LLM:
    """A model and its KV cache, in this process.

    `model`: a directory in Hugging Face's layout, a GGUF file, or org/name from the local Hugging Face cache; nothing is
    downloaded. `shape`: instead of a model, random weights of a published shape ("llama3.1-8b"), to measure speed.
    `chat_template`: a file with the template to use instead of the model's own. The other keywords are the options of
    `litecache generate`, with underscores: kv_policy="litecache", max_context="32k", threads=4, budget="10%";
    litecache_llm.options() describes them all.

        llm = LLM("path/to/model", max_context="16k")
        print(llm.generate("The capital of France is", SamplingParams(max_tokens=20))[0].outputs[0].text)

    Any thread may call; requests of all threads are batched. The interpreter's lock is free while the engine works. Raises
    InvalidArgument, FileError, Unsupported, CapacityError, all of them LiteCacheError.
    """

    def __init__(self, model: Union[str, os.PathLike[str], None] = None, *, shape: Optional[str] = None,
                 chat_template: Union[str, os.PathLike[str], None] = None, **options: Unpack[Options]):
        if (model is None) == (shape is None):
            raise _library.InvalidArgument("LLM: give either a model or shape=")
        self._engine = ctypes.c_void_p()
        self._answers: weakref.WeakSet[Answer] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._executor = ThreadPoolExecutor(_STREAM_THREADS, "litecache-stream")
        values = _library.option_values({**options, "shape": shape, "chat_template": chat_template})
        _library.call("open", None if model is None else str(model).encode(), _library.encode(values), ctypes.byref(self._engine))

    def generate(self, prompts: Union[Prompt, Sequence[Prompt]],
                 sampling_params: Union[SamplingParams, Sequence[SamplingParams], None] = None, *,
                 use_tqdm: bool = False) -> list[RequestOutput]:
        """Continues prompts together, and returns their answers in the same order.

        prompts: one or several, each a text or a sequence of token ids. sampling_params: for all of them, or one for each.
        use_tqdm: show a progress bar, if the package tqdm is installed. If it is interrupted, all of them are cancelled.
        """
        many = _prompt_list(prompts)
        params = [sampling_params or SamplingParams()] * len(many) if not isinstance(sampling_params, Sequence) else sampling_params
        if len(params) != len(many):
            raise _library.InvalidArgument(f"sampling_params: {len(params)} for {len(many)} prompts")
        answers: list[Answer] = []
        try:
            for prompt, one in zip(many, params):
                answers.append(self._start("/v1/completions", {"prompt": prompt, **_report(one)}))
            return [request_output(prompt if isinstance(prompt, str) else None, answer.whole())
                    for prompt, answer in zip(many, _progress(answers, use_tqdm))]
        finally:
            for answer in answers:
                answer.release()

    def chat(self, messages: Messages, sampling_params: Optional[SamplingParams] = None, *,
             tools: Optional[Sequence[dict[str, Any]]] = None, tool_choice: Union[str, dict[str, Any], None] = None,
             response_format: Optional[dict[str, Any]] = None,
             chat_template_kwargs: Optional[dict[str, Any]] = None) -> ChatOutput:
        """Answers a conversation, with the model's chat template.

        messages: [{"role": "user", "content": "..."}], as in OpenAI's API; so are tools, tool_choice and response_format
        ({"type": "json_object"} or {"type": "json_schema", "json_schema": {"name": ..., "schema": ...}}).
        """
        answer = self._start("/v1/chat/completions", _chat_body(messages, sampling_params, tools, tool_choice, response_format,
                                                                chat_template_kwargs))
        try:
            return chat_output(answer.whole())
        finally:
            answer.release()

    def stream(self, prompt: Union[Prompt, Messages], sampling_params: Optional[SamplingParams] = None, *,
               tools: Optional[Sequence[dict[str, Any]]] = None, tool_choice: Union[str, dict[str, Any], None] = None,
               response_format: Optional[dict[str, Any]] = None,
               chat_template_kwargs: Optional[dict[str, Any]] = None) -> Stream:
        """The same as an iterator, and as an async iterator, of StreamChunk: of a prompt, or of a conversation."""
        if len(prompt) > 0 and isinstance(prompt[0], dict):
            path, body = "/v1/chat/completions", _chat_body(prompt, sampling_params, tools, tool_choice, response_format,
                                                            chat_template_kwargs)
        elif tools or tool_choice or chat_template_kwargs:
            raise _library.InvalidArgument("tools and chat_template_kwargs belong to a conversation, a list of messages")
        else:
            path, body = "/v1/completions", {"prompt": _ids_or_text(prompt), **_report(sampling_params)}
            if response_format is not None:
                body["response_format"] = response_format
        body.pop("timings_per_token")
        return Stream(self._start(path, {**body, "stream": True}), self._executor)

    def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text; add_special_tokens: with those that begin a text."""
        return list(self._call("/tokenize", {"prompt": text, "add_special_tokens": add_special_tokens})["tokens"])

    def detokenize(self, tokens: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of token ids."""
        return str(self._call("/detokenize", {"tokens": _id_list(tokens), "skip_special_tokens": skip_special_tokens})["prompt"])

    def apply_chat_template(self, messages: Messages, **fields: Any) -> str:
        """The prompt that the model's template makes of a conversation."""
        return str(self._call("/apply-template", {"messages": list(messages), **fields})["prompt"])

    def score(self, tokens: Union[str, Sequence[int]], *, decode_from: int = -1) -> list[float]:
        """Natural logarithms of the probabilities of tokens 1, 2, ... given those before them: one fewer than there are tokens.

        decode_from: tokens from this index on are processed one at a time, as in generation, so that the KV policy acts; -1: all
        of them as a prompt, with full attention.
        """
        ids = self._ids(tokens)
        out = (ctypes.c_float * max(len(ids) - 1, 0))()
        self._score(ids, decode_from, [], out, None)
        return list(out)

    def logits(self, tokens: Union[str, Sequence[int]], positions: Optional[Sequence[int]] = None, *,
               decode_from: int = -1) -> memoryview:
        """Logits `[positions, vocabulary]`, f32, at the given positions (None: all); numpy.asarray() does not copy them."""
        ids = self._ids(tokens)
        at = list(range(len(ids))) if positions is None else list(positions)
        if not at:
            raise _library.InvalidArgument("positions: there are none")
        vocabulary = int(self.info()["vocab_size"])
        out = (ctypes.c_float * (len(at) * vocabulary))()
        self._score(ids, decode_from, at, None, out)
        return memoryview(out).cast("B").cast("f", (len(at), vocabulary))

    def stats(self) -> dict[str, Any]:
        """Counters since the start: "requests", "tokens", "kv" (lookups, hits, bytes by reason) and "heads", [layers * kv_heads]
        values each (None for policy full)."""
        return self._call("/stats")

    def info(self) -> dict[str, Any]:
        """The model ("description", "vocab_size", "default_sampling"), the memory plan ("memory", bytes) and the KV policy with
        its decisions ("kv")."""
        return self._call("/props")

    def close(self) -> None:
        """Cancels all answers and frees the model."""
        with self._lock:
            for answer in list(self._answers):
                answer.release()
            self._executor.shutdown(wait=True)
            if self._engine:
                _library.function("close")(self._engine)
                self._engine = ctypes.c_void_p()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_executor", None) is not None:
            self.close()

    def _open(self) -> ctypes.c_void_p:
        if not self._engine:
            raise _library.LiteCacheError("this LLM has been closed")
        return self._engine

    def _start(self, path: str, body: dict[str, Any]) -> Answer:
        with self._lock:
            answer = Answer(self._open(), path, body)
            self._answers.add(answer)
        return answer

    def _call(self, path: str, body: Optional[dict[str, Any]] = None) -> dict[str, Any]:
        return dict(_library.call_for_json("call", self._open(), path.encode(), None if body is None else _library.encode(body)))

    def _ids(self, tokens: Union[str, Sequence[int]]) -> list[int]:
        return self.tokenize(tokens) if isinstance(tokens, str) else _id_list(tokens)

    def _score(self, ids: list[int], decode_from: int, positions: list[int], logprobs: Any, logits: Any) -> None:
        tokens, at = (ctypes.c_int32 * len(ids))(*ids), (ctypes.c_int64 * len(positions))(*positions)
        _library.call("score", self._open(), tokens, len(ids), decode_from, at, len(positions), logprobs, logits)


def _id_list(tokens: Any) -> list[int]:
    # The elements of NumPy's and PyTorch's arrays are no ints, which JSON and ctypes take alone.
    return [operator.index(token) for token in tokens]


def _is_id(value: Any) -> bool:
    # PyTorch's arrays of one element have an index, too.
    return hasattr(value, "__index__") and getattr(value, "ndim", 0) == 0


def _ids_or_text(prompt: Any) -> Union[str, list[int]]:
    return prompt if isinstance(prompt, str) else _id_list(prompt)


def _prompt_list(prompts: Any) -> list[Union[str, list[int]]]:
    single = isinstance(prompts, str) or (len(prompts) > 0 and _is_id(prompts[0]))
    return [_ids_or_text(prompt) for prompt in ([prompts] if single else prompts)]


def _report(params: Optional[SamplingParams]) -> dict[str, Any]:
    return {**(params or SamplingParams()).fields(), "return_token_ids": True, "timings_per_token": True}


def _chat_body(messages: Any, params: Optional[SamplingParams], tools: Any, tool_choice: Any, response_format: Any,
               chat_template_kwargs: Any) -> dict[str, Any]:
    body = {"messages": list(messages), **_report(params), "tools": None if tools is None else list(tools),
            "tool_choice": tool_choice, "response_format": response_format, "chat_template_kwargs": chat_template_kwargs}
    # A chat asks for log-probabilities with two fields.
    if body.get("logprobs") is not None:
        body["top_logprobs"] = body["logprobs"]
        body["logprobs"] = True
    return {name: value for name, value in body.items() if value is not None}


def _progress(answers: list[Answer], use_tqdm: bool) -> Any:
    if not use_tqdm:
        return answers
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return answers
    return tqdm(answers, desc="Generating", unit="prompt")


def _signature() -> inspect.Signature:
    """LLM's, with all options, for help() and for completion in notebooks."""
    given = inspect.signature(LLM.__init__)
    known = [p for p in given.parameters.values() if p.kind is not p.VAR_KEYWORD]
    options = [inspect.Parameter(option["flag"].lstrip("-").replace("-", "_"), inspect.Parameter.KEYWORD_ONLY, default=None)
               for option in _library.options()]
    return given.replace(parameters=known + options)


LLM.__init__.__signature__ = _signature()  # type: ignore[attr-defined]
