"""The KV cache alone, for any code that computes queries, keys and values itself."""
from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from . import _library

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._options import KvOptions


class KvPart(NamedTuple):
    """One sequence's part of a step: a chunk of a prompt of some rows, or one generated token."""

    sequence: int
    rows: int = 1
    decode: bool = False


class _DLTensor(ctypes.Structure):
    """DLPack's DLTensor, with which a DLManagedTensor begins."""

    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


_CPU, _FLOAT = 1, 2
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class _Array:
    """The memory of a tensor, kept while this exists."""

    def __init__(self, tensor: Any, name: str, rows: int, heads: int, head_dim: int):
        if not hasattr(tensor, "__dlpack__"):
            raise _library.InvalidArgument(f"{name}: a {type(tensor).__name__} is no tensor that offers DLPack")
        self._capsule = tensor.__dlpack__()
        view = ctypes.cast(_capsule_pointer(self._capsule, b"dltensor"), ctypes.POINTER(_DLTensor)).contents
        shape = tuple(view.shape[i] for i in range(view.ndim))
        if shape not in ((rows, heads, head_dim), (rows, heads * head_dim)):
            raise _library.InvalidArgument(f"{name} has the shape {list(shape)}; expected [{rows}, {heads}, {head_dim}], rows of the step, "
                                           "heads, head_dim")
        if view.device_type != _CPU:
            raise _library.InvalidArgument(f"{name} is not in the CPU's memory: move it there with .cpu()")
        if (view.code, view.bits, view.lanes) != (_FLOAT, 32, 1):
            raise _library.InvalidArgument(f"{name} is not float32: convert it with .float()")
        expected = 1
        for i in reversed(range(view.ndim)):
            if view.strides and shape[i] != 1 and 0 not in shape and view.strides[i] != expected:
                raise _library.InvalidArgument(f"{name} is not contiguous: call .contiguous() on it")
            expected *= shape[i]
        self.pointer = (view.data or 0) + view.byte_offset


class KvCache:
    """Paged KV rows of many sequences under hard memory budgets, attended in full or through policy `litecache`.

    Query head j reads KV head j // (q_heads / kv_heads). `device_memory` and `host_memory`: the budgets, in bytes or as "2GiB"; policy
    `litecache` uses both, here both of the CPU's memory. `f32_rows`: store rows in float32 instead of bfloat16. threads 0: one a core.
    The other keywords are the options of the KV cache (litecache_llm.options(kv_only=True)): kv_policy="litecache", kv_budget="10%".

        cache = KvCache(layers=2, q_heads=8, kv_heads=2, head_dim=64, device_memory="1GiB")
        sequence = cache.add()
        with cache.step([KvPart(sequence, rows=100)]):                 # a prompt
            for layer in range(2):
                out = cache.attend(layer, q, k, v)                     # [100, 8, 64], [100, 2, 64], [100, 2, 64]
        with cache.step([KvPart(sequence, decode=True)]): ...          # then one token at a time

    One thread at a time may use a cache. Errors are those of LLM. This is the engine's cache, but every layer crosses from Python to
    C++ and back: for research, not for speed.
    """

    def __init__(self, *, layers: int, q_heads: int, kv_heads: int, head_dim: int, f32_rows: bool = False, threads: int = 0,
                 **options: Unpack[KvOptions]):
        self._cache = ctypes.c_void_p()
        self.layers, self.q_heads, self.kv_heads, self.head_dim = layers, q_heads, kv_heads, head_dim
        self._rows = 0
        _library.call("kv_create", layers, q_heads, kv_heads, head_dim, int(f32_rows), threads,
                      _library.encode(_library.option_values(dict(options))), ctypes.byref(self._cache))

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

    def attend(self, layer: int, q: Any, k: Any, v: Any, *, scale: Optional[float] = None, out: Any = None) -> Any:
        """Stores the rows' keys and values, and returns softmax(scale * q.K) V over the rows that each query attends.

        q [rows of the step, q_heads, head_dim], k and v [rows, kv_heads, head_dim]: contiguous float32 in the CPU's memory, from any
        library with DLPack (PyTorch, NumPy), keys and queries after RoPE, the rows of one part after those of the other. scale: 1 /
        sqrt(head_dim) unless given. out: where to write, as q; otherwise a new one of q's library. Call it for all layers in order.
        """
        if out is None:
            out = sys.modules[type(q).__module__.split(".")[0]].empty_like(q)
        arrays = [_Array(tensor, name, self._rows, heads, self.head_dim)
                  for tensor, name, heads in ((q, "q", self.q_heads), (k, "k", self.kv_heads), (v, "v", self.kv_heads),
                                              (out, "out", self.q_heads))]
        _library.call("kv_attend", self._cache, layer, *(a.pointer for a in arrays[:3]),
                      self.head_dim ** -0.5 if scale is None else scale, arrays[3].pointer)
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
