# SPDX-License-Identifier: Apache-2.0
"""Arrays of the frameworks a kernel may be written in, from numpy and back. Bits are never changed.

numpy has no bfloat16, E4M3 or E8M0: there these are uint16 and uint8 bits. torch has them, and gets them.
"""

import importlib
import sys
import typing

import numpy as np
import numpy.typing as npt


def bf16_to_float32(bits: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """bfloat16 bits as float32, exact. bits: uint16, any shape."""
    return (np.asarray(bits, dtype=np.uint16).astype(np.uint32) << 16).view(np.float32)


def float32_to_bf16(values: npt.ArrayLike) -> npt.NDArray[np.uint16]:
    """float32 rounded to the nearest bfloat16, ties to even, as uint16 bits. NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), bits >> 16 | 0x40, rounded).astype(np.uint16)


def _torch(array, element, device):
    torch = importlib.import_module("torch")
    types = {"bf16": (np.int16, torch.bfloat16), "e4m3": (np.uint8, torch.float8_e4m3fn)}
    if hasattr(torch, "float8_e8m0fnu"):
        types["e8m0"] = (np.uint8, torch.float8_e8m0fnu)
    if element in types:
        bits, dtype = types[element]
        return torch.from_numpy(array.view(bits).copy()).to(device).view(dtype)
    return torch.from_numpy(array.copy()).to(device)


def _cupy(array, element, device):
    return importlib.import_module("cupy").asarray(array)


def _numpy(array, element, device):
    return array.copy()


FRAMEWORKS = {"numpy": _numpy, "torch": _torch, "cupy": _cupy}


def give(array: typing.Any, element: typing.Optional[str], framework: str, device: typing.Any) -> typing.Any:
    """A copy of a numpy array for a framework. element: "bf16", "e4m3", "e8m0", or None where numpy has the type."""
    if array is None:
        return None
    return FRAMEWORKS[framework](array, element, device)


def synchronise(framework: str, device: typing.Any) -> None:
    """Waits for the work that a function may have left on a device. Raises what went wrong there."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize(device if str(device).startswith("cuda") else None)
    if cupy is not None and framework == "cupy":
        cupy.cuda.get_current_stream().synchronize()


def _is_torch(value):
    return type(value).__module__.split(".")[0] == "torch"


def take(value: typing.Any, name: str) -> npt.NDArray[typing.Any]:
    """A numpy array with the bits of whatever a kernel returned, on any device; bfloat16 comes as uint16 bits.

    TypeError if it is no array. Understood: numpy, torch, everything with DLPack on the CPU, everything with
    __cuda_array_interface__ (through CuPy or torch)."""
    if _is_torch(value):
        torch = importlib.import_module("torch")
        value = value.detach().contiguous().cpu()
        if value.dtype.is_floating_point and value.element_size() == 1:
            value = value.view(torch.uint8)  # numpy has no such types; it has their bits
        return value.view(torch.int16).numpy().view(np.uint16) if value.dtype == torch.bfloat16 else value.numpy()
    if hasattr(value, "__cuda_array_interface__"):
        return _from_cuda(value)
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value)
    if hasattr(value, "__dlpack__"):
        return np.ascontiguousarray(np.from_dlpack(value))
    raise TypeError(f"{name} is a {type(value).__name__}: return an array of numpy, torch or CuPy, or one with DLPack")


def _from_cuda(value):
    try:
        return importlib.import_module("cupy").asarray(value).get()
    except ImportError:
        return importlib.import_module("torch").as_tensor(value, device="cuda").cpu().numpy()
