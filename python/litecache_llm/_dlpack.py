"""Tensors of other libraries, through DLPack: their memory, without a copy."""
from __future__ import annotations

import contextlib
import ctypes
import sys
from typing import Any, NamedTuple, Optional

from . import _library


class _DLTensor(ctypes.Structure):
    """DLPack's DLTensor, with which a DLManagedTensor begins."""

    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


_CPU, _CUDA, _PINNED = 1, 2, 3
# (code, bits, lanes) of an element: its name, and its litecache_dtype.
_DTYPES = {(2, 32, 1): ("float32", 0), (4, 16, 1): ("bfloat16", 1), (2, 16, 1): ("float16", 2)}
# DLPack has no stream 0: 1 is CUDA's default stream.
_DEFAULT_STREAM = 1
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class Device(NamedTuple):
    """The CPU, or the GPU of this number."""

    gpu: Optional[int] = None

    @classmethod
    def parse(cls, name: Any) -> Device:
        """"cpu", "cuda" (GPU 0), "cuda:N", or PyTorch's device of that name."""
        kind, colon, number = str(name).partition(":")
        if kind == "cpu" and not colon:
            return cls()
        if kind == "cuda" and (number.isdecimal() if colon else True):
            return cls(int(number or 0))
        raise _library.InvalidArgument(f"device {str(name)!r} is not 'cpu', 'cuda' or 'cuda:N'")

    def __str__(self) -> str:
        return "cpu" if self.gpu is None else f"cuda:{self.gpu}"


class Stream:
    """The CUDA stream on which a call works with tensors of one library; `address` 0: the default one.

    given: None, an address, or an object with one (PyTorch's and CuPy's streams). None: PyTorch's current stream, or with tensors of other
    libraries the default one. The block of a `with` is the call.
    """

    def __init__(self, tensor: Any, device: Device, given: Any):
        if given is not None and device.gpu is None:
            raise _library.InvalidArgument("stream: the cache is on the CPU, which has no CUDA streams")
        address = next((getattr(given, name) for name in ("cuda_stream", "ptr") if hasattr(given, name)), given)
        if not (address is None or isinstance(address, int)):
            raise _library.InvalidArgument(f"stream: a {type(given).__name__} is neither a stream nor the address of one")
        self.address: int = address or 0
        self._exported: list[Any] = []
        self._device = device
        self._scope: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        self._foreign: Any = None  # PyTorch's object of a stream that is not its current one
        torch = sys.modules.get("torch")
        if device.gpu is None or torch is None or not isinstance(tensor, torch.Tensor):
            return
        # PyTorch exports tensors of the current GPU only.
        self._scope = torch.cuda.device(device.gpu)
        current = torch.cuda.current_stream(device.gpu).cuda_stream
        if address is None:
            self.address = current
        elif address != current:
            self._foreign = torch.cuda.ExternalStream(address, device=device.gpu)

    def export(self, tensor: Any) -> Any:
        """The tensor's capsule; the stream waits for what the tensor's library has enqueued."""
        if self._device.gpu is None:
            return tensor.__dlpack__()
        self._exported.append(tensor)
        return tensor.__dlpack__(stream=self.address or _DEFAULT_STREAM)

    def __enter__(self) -> Stream:
        self._scope.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        # PyTorch would otherwise give a tensor's memory away while the stream still works with it.
        if self._foreign is not None:
            for tensor in self._exported:
                tensor.record_stream(self._foreign)
        self._scope.__exit__(*error)


class Array:
    """The memory of a tensor on a device, as long as this exists.

    Raises InvalidArgument, which calls the tensor `name`, unless it has the shape [rows, heads, head_dim] or [rows, heads * head_dim], is
    contiguous, float32, bfloat16 or float16, and on `device`.
    """

    def __init__(self, tensor: Any, name: str, shape: tuple[int, int, int], device: Device, stream: Stream):
        check(tensor, name)
        kind, number = tensor.__dlpack_device__()
        if not (kind in (_CPU, _PINNED) if device.gpu is None else (kind, number) == (_CUDA, device.gpu)):
            raise _library.InvalidArgument(f"{name} is not on the device of the cache, {device}: move it with .to('{device}'), or make the "
                                           "cache with device=")
        # A capsule that is not renamed stays the producer's, and frees its part when it is collected.
        self._capsule = stream.export(tensor)
        view = ctypes.cast(_capsule_pointer(self._capsule, b"dltensor"), ctypes.POINTER(_DLTensor)).contents
        rows, heads, head_dim = shape
        found = tuple(view.shape[i] for i in range(view.ndim))
        if found not in (shape, (rows, heads * head_dim)):
            raise _library.InvalidArgument(f"{name} has the shape {list(found)}; expected [{rows}, {heads}, {head_dim}], rows of the step, "
                                           "heads, head_dim")
        known = _DTYPES.get((view.code, view.bits, view.lanes))
        if known is None:
            raise _library.InvalidArgument(f"{name} is neither float32, nor bfloat16, nor float16: convert it with .float()")
        self.dtype_name, self.dtype = known
        expected = 1
        for i in reversed(range(view.ndim)):
            if view.strides and found[i] != 1 and 0 not in found and view.strides[i] != expected:
                raise _library.InvalidArgument(f"{name} is not contiguous: call .contiguous() on it")
            expected *= found[i]
        self.pointer = (view.data or 0) + view.byte_offset


def check(tensor: Any, name: str) -> None:
    """Raises InvalidArgument for anything but a tensor."""
    if not hasattr(tensor, "__dlpack__"):
        raise _library.InvalidArgument(f"{name}: a {type(tensor).__name__} is no tensor that offers DLPack")


def empty_like(tensor: Any) -> Any:
    """A tensor of the same library, shape, dtype and device, with any contents."""
    return sys.modules[type(tensor).__module__.split(".")[0]].empty_like(tensor)
