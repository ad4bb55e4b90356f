# SPDX-License-Identifier: Apache-2.0
"""What the package asks of torch, CuPy and pytest, which stand-ins answer that hold numpy arrays and refuse what those
refuse: cli_python_torch and cli_python_pytest do the same where they are installed."""
import dataclasses
import sys
import types

import numpy as np

from package import moe
from program import expect, small


@dataclasses.dataclass(frozen=True)
class Type:
    name: str
    bits: type  # numpy's, of as many bytes
    is_floating_point: bool = False
    in_numpy: bool = True


TYPES = {t.name: t for t in (
    Type("uint8", np.uint8), Type("int16", np.int16), Type("int32", np.int32), Type("int64", np.int64),
    Type("float32", np.float32, True), Type("float64", np.float64, True), Type("bfloat16", np.int16, True, False),
    Type("float8_e4m3fn", np.uint8, True, False), Type("float8_e8m0fnu", np.uint8, True, False))}


class Tensor:
    """Bits in numpy, as a type that numpy may not have, on a device."""

    __module__ = "torch._tensor"

    def __init__(self, array, dtype=None, device="cpu", attached=False):
        self.array, self.dtype = array, dtype or TYPES[array.dtype.name]
        self.device, self.attached, self.shape = device, attached, array.shape

    def like(self, array, **changes):
        return Tensor(array, **{"dtype": self.dtype, "device": self.device, "attached": self.attached, **changes})

    def detach(self):
        return self.like(self.array, attached=False)

    def contiguous(self):
        return self.like(np.ascontiguousarray(self.array))

    def cpu(self):
        return self.to("cpu")

    def to(self, device):
        return self.like(self.array, device=device)

    def view(self, dtype):
        expect(np.dtype(dtype.bits).itemsize == self.array.itemsize, f"{self.dtype.name} as {dtype.name}")
        return self.like(self.array.view(dtype.bits), dtype=dtype)

    def element_size(self):
        return self.array.itemsize

    def stride(self):
        return tuple(step // self.array.itemsize for step in self.array.strides)

    def transpose(self, a, b):
        return self.like(self.array.swapaxes(a, b))

    def index_select(self, axis, index):
        raise NotImplementedError

    def __getitem__(self, index):
        expect(self.dtype.in_numpy or self.array.itemsize > 1, f"an index into {self.dtype.name}")
        expect(index.device == self.device, "an index on another device")
        return self.like(self.array[index.array])

    def numpy(self):
        ready = self.dtype.in_numpy and self.device == "cpu" and not self.attached and self.array.flags.c_contiguous
        expect(ready, f"numpy() of {self.dtype.name} on {self.device}")
        return self.array


waited = []


def torch_with(*left_out):
    """The module, without some of its types."""
    made = types.SimpleNamespace(
        from_numpy=lambda array: Tensor(array), cuda=types.SimpleNamespace(is_initialized=lambda: True, synchronize=waited.append),
        as_tensor=lambda value, device: Tensor(np.asarray(getattr(value, "array", value)), device=device))
    vars(made).update({name: t for name, t in TYPES.items() if name not in left_out})
    return made


sys.modules["torch"] = torch_with()
import gaugeblock  # noqa: E402
from gaugeblock import Verdict, arrays, layouts, testing  # noqa: E402

# Bits go there and come back; what is given is a copy, of a type that says what the bits are.
bits16, bits8 = np.arange(6, dtype=np.uint16).reshape(2, 3) + 0xBF80, np.arange(6, dtype=np.uint8).reshape(3, 2)
for array, element, name in ((bits16, "bf16", "bfloat16"), (bits8, "e4m3", "float8_e4m3fn"), (bits8, "e8m0", "float8_e8m0fnu"),
                             (bits8, None, "uint8"), (np.float32([1, 2]), None, "float32")):
    given = arrays.give(array, element, "torch", "cuda:1")
    expect(given.dtype.name == name and given.device == "cuda:1" and not np.shares_memory(given.array, array), f"{element}: {given.dtype}")
    back = arrays.take(Tensor(given.array, given.dtype, "cuda:1", attached=True), "given")
    expect(back.dtype == array.dtype and np.array_equal(back, array), f"{element} came back as {back.dtype}")
sys.modules["torch"] = torch_with("float8_e8m0fnu")
expect(arrays.give(bits8, "e8m0", "torch", "cpu").dtype.name == "uint8", "a torch without E8M0")
sys.modules["torch"] = torch_with()
turned = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3)).transpose(0, 1)
expect(np.array_equal(arrays.take(turned, "turned"), turned.array) and arrays.take(turned, "turned").flags.c_contiguous, "a view")


# To bf16 by nearest, ties to even: every code, the values around the middle to the next one, and NaN.
every = np.arange(0x7F80, dtype=np.uint32)
every = np.concatenate([every, every | 0x8000])
exact, middle = every << 16, (every << 16) + 0x8000
for values, expected in ((exact, every), (middle - 1, every), (middle, every + every % 2), (middle + 1, every + 1)):
    expect(np.array_equal(gaugeblock.float32_to_bf16(values.view(np.float32)), expected), "rounding to bf16")
expect(np.array_equal(gaugeblock.bf16_to_float32(every).view(np.uint32), exact), "bf16 as float32")
nan = np.array([0x7F800001, 0xFFBFFFFF, 0x7FC12345], np.uint32).view(np.float32)
expect(gaugeblock.float32_to_bf16(nan).tolist() == [0x7FC0, 0xFFFF, 0x7FC1], "NaN to bf16")

# What only has an interface of CUDA goes through CuPy, or else through torch.
class OnDevice:
    __cuda_array_interface__ = {}
    array = np.float32([3, 4])


expect(np.array_equal(arrays.take(OnDevice(), "device"), OnDevice.array), "through torch")
streams = []
stream = types.SimpleNamespace(synchronize=lambda: streams.append(1))
sys.modules["cupy"] = types.SimpleNamespace(
    asarray=lambda value: types.SimpleNamespace(get=lambda: 2 * value.array) if isinstance(value, OnDevice) else ("cupy", value),
    cuda=types.SimpleNamespace(get_current_stream=lambda: stream))
expect(np.array_equal(arrays.take(OnDevice(), "device"), 2 * OnDevice.array), "through CuPy")
expect(arrays.give(bits8, None, "cupy", "cuda") == ("cupy", bits8), "for CuPy")

# After a call the device is waited for: torch's whatever the framework, CuPy's stream for CuPy.
arrays.synchronise("torch", "cuda:1")
arrays.synchronise("numpy", "cpu")
expect(waited == ["cuda:1", None] and not streams, f"{waited}, {streams}")
arrays.synchronise("cupy", "cuda")
expect(streams == [1], "CuPy's stream")
del sys.modules["cupy"]

# A layer on a device is judged; a device that fails in a call, or is lost before one, is the function's crash.
fixture = small()


def on_device(layer):
    expect(layer.x.dtype.name == "bfloat16" and layer.gate_up.scales.dtype.name == "float8_e4m3fn", "types of a layer")
    expect({layer.x.device, layer.ids.device, layer.down.codes.device} == {"cuda:1"}, "the device of a layer")
    own = {name: arrays.take(getattr(layer, name), name) for name in ("x", "ids", "routing_weights")}
    output, _ = moe(dataclasses.replace(layer, **own))
    return arrays.give(output, None, "torch", "cuda:1")


asked = {"framework": "torch", "device": "cuda:1", "arguments": ("--no-diagnosis",)}
gaugeblock.verify(on_device, fixture, **asked).check()


def fails(*arguments):
    raise RuntimeError("an illegal\nmemory access")


sys.modules["torch"].cuda.synchronize = fails
report = gaugeblock.verify(on_device, fixture, **asked)
expect(report.verdict is Verdict.CRASH and "layer 0: what it started on the device failed: RuntimeError: an illegal memory access"
       in str(report), str(report))
sys.modules["torch"] = torch_with()


def loses_it(layer):
    sys.modules["torch"].from_numpy = fails
    return Tensor(np.zeros((layer.tokens, layer.hidden), np.float32))


report = gaugeblock.verify(loses_it, fixture, **asked)
expect(report.verdict is Verdict.CRASH and "layer 1: its inputs cannot be put on cuda:1: RuntimeError: an illegal" in str(report), str(report))
sys.modules["torch"] = torch_with()


class Unreadable:
    @property
    def shape(self):
        raise RuntimeError("no shape")


report = gaugeblock.verify(lambda layer: Unreadable(), fixture)
expect(report.verdict is Verdict.FAIL and "layer 0: what it returned cannot be read: RuntimeError: no shape" in str(report), str(report))

# Assertions on tensors: limits lie where x does; of weights on a device only the experts in use are fetched.
layer = gaugeblock.Fixture(gaugeblock.make(fixture, shape=(4, 2, 64, 32), tokens=3, format="bf16")).layer(0)
given = {"ids": layer.ids, "weights": layer.routing_weights, "w13": layer.gate_up.codes, "w2": layer.down.codes, "format": "bf16"}
plain = testing.limits(layer.x, **given)
found = testing.limits(arrays.give(layer.x, "bf16", "torch", "cuda:1"), **given)
for name in ("truth", "limit"):
    made, expected = getattr(found, name), getattr(plain, name)
    expect(made.device == "cuda:1" and made.dtype.name == "float64" and np.array_equal(made.array, expected), name)
placed = type("Placed", (np.ndarray,), {"device": "cpu"})  # as numpy 2 has it
expect(type(testing.limits(layer.x.view(placed), **given).limit) is np.ndarray, "limits of what numpy has on a device")
codes = np.arange(4 * 6 * 8, dtype=np.uint8).reshape(4, 6, 8)
for element, dtype in (("e4m3", "float8_e4m3fn"), ("bf16", "bfloat16")):
    whole = arrays.give(codes if element == "e4m3" else codes.astype(np.uint16), element, "torch", "cuda:1")
    picked = layouts._pick(whole, np.array([3, 1]))
    expect(picked.dtype.name == dtype and picked.device == "cuda:1" and np.array_equal(picked.array, whole.array[[3, 1]]), dtype)
    expect(layouts._pick(whole, np.arange(4)) is whole, "all experts are not copied")
p = layouts.Projection("w2", "mxfp8", "torchao-grouped", 4, 64, 32, 1)
parts = [np.arange(4 * 64 * width, dtype=np.uint32).astype(np.uint8).reshape(4, 64, width) for width in (32, 1)]
read = layouts.canonical(p, [arrays.give(part, None, "torch", "cuda:1").transpose(1, 2) for part in parts], np.array([2, 0]))
expect(np.array_equal(read.codes, parts[0][[2, 0]]) and np.array_equal(read.scales, parts[1][[2, 0]]), "views on a device")
del sys.modules["torch"]


# pytest's fixture: what was judged as properties of the test, which is skipped where the function cannot run.
class Skipped(Exception):
    pass


def skip(reason):
    raise Skipped(reason)


sys.modules["pytest"] = types.SimpleNamespace(fixture=lambda function: function, skip=skip)
from gaugeblock.pytest_plugin import gaugeblock_verify  # noqa: E402

small()
properties = []
judge = gaugeblock_verify(lambda name, value: properties.append((name, value)))
report = judge(moe, fixture, batches=[1, 9])
cosines = [case.record["metrics"]["overall"]["subject_truth"]["quantised"]["cosine_min"] for case in report.cases]
expect(report.passed and properties == [("gaugeblock_verdict", "PASS"), ("gaugeblock_batch_1_cosine_min", cosines[0]),
                                        ("gaugeblock_batch_9_cosine_min", cosines[1])], str(properties))


def unable(layer):
    raise NotImplementedError("needs a GPU")


for function, error, words in ((unable, Skipped, "needs a GPU"),
                               (lambda layer: moe(layer)[0] * np.float32(1.5), gaugeblock.VerificationError, "FAIL")):
    try:
        judge(function, fixture, batches=[1])
    except error as raised:
        expect(words in str(raised), str(raised))
    else:
        sys.exit(f"{error} was not raised")
expect([value for name, value in properties if name == "gaugeblock_verdict"][1:] == ["UNSUPPORTED", "FAIL"], str(properties))
