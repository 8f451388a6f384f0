"""Answers of the engine and what they consist of."""
from __future__ import annotations

import ctypes
import dataclasses
import json
import threading
from dataclasses import dataclass, field
from typing import Any, Optional, Union

from . import _library


@dataclass
class SamplingParams:
    """How an answer is sampled; the names are vLLM's. None: the model's own default, from its generation_config.json.

    `max_tokens` defaults to 16 in LLM.generate() and LLM.stream(), and to what the context leaves in chats. `temperature` 0 is
    greedy. `logprobs` k: log-probabilities of every token and of the k likeliest ones. `structured_outputs` restricts the text:
    {"json": SCHEMA}, {"regex": ...}, {"choice": [...]} or {"grammar": GBNF}.
    """

    n: int = 1
    temperature: Optional[float] = None
    top_p: Optional[float] = None
    top_k: Optional[int] = None
    min_p: Optional[float] = None
    repetition_penalty: Optional[float] = None
    presence_penalty: Optional[float] = None
    frequency_penalty: Optional[float] = None
    seed: Optional[int] = None
    stop: Union[str, list[str], None] = None
    stop_token_ids: Optional[list[int]] = None
    bad_words: Optional[list[str]] = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: Optional[int] = None
    min_tokens: int = 0
    logprobs: Optional[int] = None
    prompt_logprobs: Optional[int] = None
    skip_special_tokens: bool = True
    logit_bias: Optional[dict[int, float]] = None
    structured_outputs: Optional[dict[str, Any]] = None

    def fields(self) -> dict[str, Any]:
        """The fields of a request."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        if values["logit_bias"]:
            values["logit_bias"] = {str(token): bias for token, bias in values["logit_bias"].items()}
        return {name: value for name, value in values.items() if value is not None}


@dataclass
class CompletionOutput:
    """One answer to a prompt.

    `finish_reason`: "stop" or "length". `logprobs`, if asked for: {"tokens", "token_logprobs", "top_logprobs", "text_offset"}, as
    OpenAI's completions have them.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: Optional[str]
    logprobs: Optional[dict[str, Any]] = None


@dataclass
class RequestOutput:
    """The answers to one prompt. `usage`: "prompt_tokens", "completion_tokens", "total_tokens" and details; `timings`: as
    llama.cpp's server has them ("prompt_ms", "predicted_per_second" ...)."""

    prompt: Optional[str]
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    usage: dict[str, Any]
    timings: dict[str, Any]
    prompt_logprobs: Optional[list[Any]] = None


@dataclass
class ChatOutput:
    """The answer to a conversation.

    `message`: {"role", "content"} and, where there are some, "tool_calls" and "reasoning_content", as it is appended to the
    messages. `choices`: all of them, as OpenAI's API has them.
    """

    text: str
    message: dict[str, Any]
    finish_reason: Optional[str]
    usage: dict[str, Any]
    timings: dict[str, Any]
    choices: list[dict[str, Any]] = field(repr=False)

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """The functions that the model calls: [{"id", "type", "function": {"name", "arguments"}}]."""
        return list(self.message.get("tool_calls") or [])


@dataclass
class StreamChunk:
    """What a stream brings next. `index` numbers the samples. `delta`: the part of a chat's message, with tool calls; None in
    completions."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: Optional[str]
    delta: Optional[dict[str, Any]] = None


class Answer:
    """A litecache_answer. next() is called by one thread at a time, cancel() and release() by any."""

    # A call that waits longer would keep Ctrl-C waiting.
    SLICE = 0.2

    def __init__(self, engine: ctypes.c_void_p, path: str, body: dict[str, Any]):
        self._pointer = ctypes.c_void_p()
        self._reading = threading.Lock()
        self._state = threading.Lock()
        _library.call("start", engine, path.encode(), _library.encode(body), ctypes.byref(self._pointer))

    def next(self, seconds: Optional[float] = None) -> Optional[str]:
        """The next part, None after the last one and after cancel(); raises TimeoutError after `seconds`."""
        left = seconds
        while True:
            slice_ = self.SLICE if left is None else min(self.SLICE, left)
            out = ctypes.c_void_p()
            with self._reading:
                if not self._pointer:
                    return None
                status = _library.function("next")(self._pointer, slice_, ctypes.byref(out))
                if status not in (_library.OK, _library.TIMEOUT, _library.CANCELLED):
                    raise _library.error_of(status)
            if status == _library.CANCELLED:
                return None
            if status == _library.OK:
                return _library.take_text(out) if out else None
            if left is not None:
                left -= slice_
                if left <= 0:
                    raise TimeoutError(f"no answer within {seconds} s")

    def whole(self) -> dict[str, Any]:
        """The answer that is no stream; raises LiteCacheError if it was cancelled."""
        text = self.next()
        if text is None:
            raise _library.LiteCacheError("the request was cancelled")
        return dict(json.loads(text))

    def cancel(self) -> None:
        with self._state:
            if self._pointer:
                _library.function("cancel")(self._pointer)

    def release(self) -> None:
        with self._state:
            if not self._pointer:
                return
            _library.function("cancel")(self._pointer)
            with self._reading:
                _library.function("release")(self._pointer)
                self._pointer = ctypes.c_void_p()

    def __del__(self) -> None:
        if getattr(self, "_state", None) is not None:
            self.release()


def request_output(prompt: Optional[str], answer: dict[str, Any]) -> RequestOutput:
    """From an answer of /v1/completions."""
    choices = answer["choices"]
    first = choices[0]
    return RequestOutput(
        prompt=prompt,
        prompt_token_ids=first.get("prompt_token_ids", []),
        outputs=[CompletionOutput(c["index"], c["text"], c.get("token_ids", []), c["finish_reason"], c.get("logprobs"))
                 for c in choices],
        usage=answer["usage"],
        timings=answer.get("timings", {}),
        prompt_logprobs=first.get("prompt_logprobs"))


def chat_output(answer: dict[str, Any]) -> ChatOutput:
    """From an answer of /v1/chat/completions."""
    choice = answer["choices"][0]
    message = {name: value for name, value in choice["message"].items() if name != "refusal"}
    return ChatOutput(message.get("content") or "", message, choice["finish_reason"], answer["usage"],
                      answer.get("timings", {}), answer["choices"])


def stream_chunks(events: str) -> list[StreamChunk]:
    """From server-sent events of either."""
    chunks = []
    for line in events.splitlines():
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line[6:]).get("choices", []):
            delta = choice.get("delta")
            text = choice.get("text", "") if delta is None else delta.get("content") or ""
            chunks.append(StreamChunk(choice["index"], text, choice.get("token_ids", []), choice["finish_reason"], delta))
    return chunks
