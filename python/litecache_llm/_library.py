"""liblitecache.so, through the C interface of include/litecache/litecache.h.

ctypes lets go of the interpreter's lock during every call, and the same library serves every version of Python.
"""
from __future__ import annotations

import ctypes
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

__all__ = ["CapacityError", "FileError", "InvalidArgument", "LiteCacheError", "Unsupported"]


class LiteCacheError(RuntimeError):
    """An error of the engine; the message names the cause and the fix."""


class InvalidArgument(LiteCacheError, ValueError):
    """An option or an argument has a value that cannot work."""


class FileError(LiteCacheError, OSError):
    """A file is missing, unreadable or malformed."""


class Unsupported(LiteCacheError, NotImplementedError):
    """The model or the request needs a feature that the engine does not have."""


class CapacityError(LiteCacheError, MemoryError):
    """A memory budget or the context would be exceeded; the message gives the numbers."""


OK, TIMEOUT, CANCELLED = 0, 6, 7
_ERRORS = {2: InvalidArgument, 3: FileError, 4: Unsupported, 5: CapacityError}

_pointer, _text, _int64 = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64
_out = ctypes.POINTER(ctypes.c_void_p)


class KvPart(ctypes.Structure):
    """litecache_kv_part"""

    _fields_ = [("sequence", _int64), ("rows", _int64), ("decode", ctypes.c_int32)]


_ARGUMENTS = {
    "options": [ctypes.c_int, _out],
    "open": [_text, _text, _out],
    "call": [_pointer, _text, _text, _out],
    "start": [_pointer, _text, _text, _out],
    "next": [_pointer, ctypes.c_double, _out],
    "score": [_pointer, _pointer, _int64, _int64, _pointer, _int64, _pointer, _pointer],
    "kv_create": [_int64, _int64, _int64, _int64, ctypes.c_int, ctypes.c_int, _text, _out],
    "kv_create_on_gpu": [_int64, _int64, _int64, _int64, ctypes.c_int, ctypes.c_int, _pointer, _text, _out],
    "kv_use_stream": [_pointer, _pointer],
    "kv_add": [_pointer, ctypes.POINTER(_int64)],
    "kv_fork": [_pointer, _int64, ctypes.POINTER(_int64)],
    "kv_remove": [_pointer, _int64],
    "kv_length": [_pointer, _int64, ctypes.POINTER(_int64)],
    "kv_begin": [_pointer, ctypes.POINTER(KvPart), _int64],
    "kv_attend": [_pointer, _int64, ctypes.c_int, _pointer, _pointer, _pointer, ctypes.c_float, _pointer],
    "kv_end": [_pointer],
    "kv_stats": [_pointer, _out],
}
_NO_STATUS = {"close": [_pointer], "cancel": [_pointer], "release": [_pointer], "kv_destroy": [_pointer], "free": [_pointer]}


def _folders_of_cuda() -> list[str]:
    """The folders of cuBLASLt and NCCL in NVIDIA's packages for CUDA 13 and 12 (the extra "cuda" has cuBLASLt), if they are installed."""
    try:
        found = importlib.util.find_spec("nvidia")
    except ValueError:  # another module of that name, without a specification
        return []
    folders = [Path(place) / name for place in (found and found.submodule_search_locations) or []
               for name in ("cu13/lib", "cublas/lib", "nccl/lib")]
    return [str(folder) for folder in folders if folder.is_dir()]


def _load() -> ctypes.CDLL:
    if folders := _folders_of_cuda():
        # The library opens them when it needs them, unless they are loaded already, as with PyTorch.
        os.environ.setdefault("LITECACHE_CUDA_LIBRARIES", ":".join(folders))
    beside = Path(__file__).with_name("liblitecache.so")
    # For a build folder, in which the library is not beside this file.
    path = os.environ.get("LITECACHE_LIBRARY") or str(beside)
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"{path} cannot be loaded: {error}") from error
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, "litecache_" + name)
        function.argtypes, function.restype = arguments, ctypes.c_int
    for name, arguments in _NO_STATUS.items():
        function = getattr(library, "litecache_" + name)
        function.argtypes, function.restype = arguments, None
    library.litecache_error.restype = library.litecache_version.restype = _text
    library.litecache_error.argtypes = library.litecache_version.argtypes = []
    library.litecache_main.argtypes = [ctypes.c_int, ctypes.POINTER(_text)]
    return library


_library = _load()


def function(name: str) -> Any:
    """The function litecache_NAME, which reports no error."""
    return getattr(_library, "litecache_" + name)


def error_of(status: int) -> LiteCacheError:
    """The exception for a status of this thread's last call."""
    return _ERRORS.get(status, LiteCacheError)(_library.litecache_error().decode("utf-8", "replace"))


def call(name: str, *arguments: Any) -> None:
    """Calls litecache_NAME; raises its error."""
    status = function(name)(*arguments)
    if status != OK:
        raise error_of(status)


def take_text(pointer: ctypes.c_void_p) -> str:
    """A text that the library returned; frees it."""
    text = ctypes.string_at(pointer.value or 0).decode("utf-8")
    _library.litecache_free(pointer)
    return text


def call_for_json(name: str, *arguments: Any) -> Any:
    """Calls a function whose last argument receives JSON."""
    out = ctypes.c_void_p()
    call(name, *arguments, ctypes.byref(out))
    return json.loads(take_text(out))


def encode(value: Any) -> bytes:
    """JSON for the library."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def options(kv_only: bool = False) -> list[dict[str, Any]]:
    """The options of the engine, or those of the KV cache alone, one dict each: "name", "flag", "type", "values", "help",
    "group", "policies" (that read it; empty: all) and "default"."""
    return call_for_json("options", int(kv_only))


def option_values(given: dict[str, Any]) -> dict[str, Any]:
    """Options as the library takes them: None is left out, paths become texts."""
    return {name: value if isinstance(value, (bool, int, float)) else os.fspath(value)
            for name, value in given.items() if value is not None}


__version__: str = _library.litecache_version().decode()
