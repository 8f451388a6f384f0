"""The KV cache alone, for any code that computes queries, keys and values itself."""
from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from . import _dlpack, _library

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._options import KvOptions


class KvPart(NamedTuple):
    """One sequence's part of a step: a chunk of a prompt of some rows, or one generated token."""

    sequence: int
    rows: int = 1
    decode: bool = False


class KvCache:
    """Paged KV rows of many sequences under hard memory budgets, attended in full or through policy `litecache`.

    Query head j reads KV head j // (q_heads / kv_heads). `device`: "cpu", or "cuda:N", a GPU, if the library was built with CUDA.
    `device_memory` and `host_memory`: the budgets, in bytes or as "2GiB"; policy `litecache` uses both. With a GPU they are bytes of the
    GPU's memory and pinned ones of the host's, otherwise both are of the CPU's memory. `f32_rows`: store rows in float32 instead of
    bfloat16. threads, on the CPU; 0: one a core. The other keywords are the options of the KV cache
    (litecache_llm.options(kv_only=True)): kv_policy="litecache", kv_budget="10%".

        cache = KvCache(layers=2, q_heads=8, kv_heads=2, head_dim=64, device_memory="1GiB")
        sequence = cache.add()
        with cache.step([KvPart(sequence, rows=100)]):                 # a prompt
            for layer in range(2):
                out = cache.attend(layer, q, k, v)                     # [100, 8, 64], [100, 2, 64], [100, 2, 64]
        with cache.step([KvPart(sequence, decode=True)]): ...          # then one token at a time

    On a GPU attend() enqueues its work on the caller's CUDA stream and returns; the end of a step waits for it and raises its errors.

    One thread at a time may use a cache. Errors are those of LLM. This is the engine's cache, but every layer crosses from Python to
    C++ and back: for research, not for speed.
    """

    def __init__(self, *, layers: int, q_heads: int, kv_heads: int, head_dim: int, f32_rows: bool = False, threads: int = 0,
                 device: Any = "cpu", **options: Unpack[KvOptions]):
        self._cache = ctypes.c_void_p()
        self.layers, self.q_heads, self.kv_heads, self.head_dim = layers, q_heads, kv_heads, head_dim
        self._device = _dlpack.Device.parse(device)
        self.device = str(self._device)
        self._rows = 0
        self._stream = 0
        shape = layers, q_heads, kv_heads, head_dim, int(f32_rows)
        given = _library.encode(_library.option_values(dict(options)))
        if self._device.gpu is None:
            _library.call("kv_create", *shape, threads, given, ctypes.byref(self._cache))
        else:
            _library.call("kv_create_on_gpu", *shape, self._device.gpu, None, given, ctypes.byref(self._cache))

    def add(self) -> int:
        """Adds an empty sequence; ids are never used again."""
        return self._id("kv_add")

    def fork(self, parent: int) -> int:
        """Adds a sequence with the rows of `parent`; they share memory until one of them writes."""
        return self._id("kv_fork", parent)

    def remove(self, sequence: int) -> None:
        """Frees a sequence's memory. Call it between steps."""
        _library.call("kv_remove", self._cache, sequence)

    def length(self, sequence: int) -> int:
        """Tokens in a sequence, without those of the current step."""
        return self._id("kv_length", sequence)

    @contextlib.contextmanager
    def step(self, parts: Sequence[KvPart]) -> Iterator[None]:
        """A step of these parts, generated tokens first; attend() all layers in it. The rows belong to their sequences from the end
        of the block on. A step that ended with an exception may be begun again."""
        self.begin_step(parts)
        yield
        self.end_step()

    def begin_step(self, parts: Sequence[KvPart]) -> None:
        """step() as two calls. Raises CapacityError, with the cache unchanged, if a budget would be exceeded."""
        array = (_library.KvPart * len(parts))(*((p.sequence, p.rows, int(p.decode)) for p in parts))
        _library.call("kv_begin", self._cache, array, len(parts))
        self._rows = sum(part.rows for part in parts)

    def end_step(self) -> None:
        _library.call("kv_end", self._cache)

    def attend(self, layer: int, q: Any, k: Any, v: Any, *, scale: Optional[float] = None, out: Any = None,
               stream: Any = None) -> Any:
        """Stores the rows' keys and values, and returns softmax(scale * q.K) V over the rows that each query attends.

        q [rows of the step, q_heads, head_dim], k and v [rows, kv_heads, head_dim]: contiguous, on the cache's device, all float32,
        bfloat16 or float16, from any library with DLPack (PyTorch, NumPy, CuPy), keys and queries after RoPE, the rows of one part after
        those of the other. scale: 1 / sqrt(head_dim) unless given. out: where to write, as q; otherwise a new one of q's library. Call
        it for all layers in order. Attention is computed in float32.

        stream, with a GPU: the CUDA stream that works with these tensors, a stream of PyTorch's or CuPy's or the address of one.
        Without it, PyTorch's current stream, or with tensors of other libraries the default stream. It waits for what the tensors'
        library has enqueued to compute q, k and v; what reads `out` is enqueued on it. It has to exist until the next call with another
        stream, or as long as the cache.
        """
        _dlpack.check(q, "q")
        if out is None:
            out = _dlpack.empty_like(q)
        with _dlpack.Stream(q, self._device, stream) as callers:
            arrays = {name: _dlpack.Array(tensor, name, (self._rows, heads, self.head_dim), self._device, callers)
                      for name, tensor, heads in (("q", q, self.q_heads), ("k", k, self.kv_heads), ("v", v, self.kv_heads),
                                                  ("out", out, self.q_heads))}
            queries = arrays["q"]
            for name, array in arrays.items():
                if array.dtype != queries.dtype:
                    raise _library.InvalidArgument(f"{name} is {array.dtype_name}, but q is {queries.dtype_name}: they have to be of "
                                                   "one dtype")
            if callers.address != self._stream:
                _library.call("kv_use_stream", self._cache, callers.address)
                self._stream = callers.address
            _library.call("kv_attend", self._cache, layer, queries.dtype, queries.pointer, arrays["k"].pointer, arrays["v"].pointer,
                          self.head_dim ** -0.5 if scale is None else scale, arrays["out"].pointer)
        return out

    def stats(self) -> dict[str, Any]:
        """Counters since the start: "lookups", "hits", "moved" (rows and bytes by reason), "used" and "capacity" (bytes) and "heads",
        [layers * kv_heads] values each (None for policy full)."""
        return dict(_library.call_for_json("kv_stats", self._cache))

    def hit_ratios(self) -> list[list[float]]:
        """Hits per lookup of every KV head, `[layers][kv_heads]`; heads without lookups have 0. Empty for policy full."""
        heads = self.stats()["heads"]
        if heads is None:
            return []
        ratios = [hits / lookups if lookups else 0.0 for hits, lookups in zip(heads["hits"], heads["lookups"])]
        return [ratios[i:i + self.kv_heads] for i in range(0, len(ratios), self.kv_heads)]

    def close(self) -> None:
        """Frees the cache."""
        if self._cache:
            _library.function("kv_destroy")(self._cache)
            self._cache = ctypes.c_void_p()

    def __del__(self) -> None:
        if getattr(self, "_cache", None):
            self.close()

    def _id(self, name: str, *arguments: int) -> int:
        value = ctypes.c_int64()
        _library.call(name, self._cache, *arguments, ctypes.byref(value))
        return value.value
