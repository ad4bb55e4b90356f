# SPDX-License-Identifier: Apache-2.0
"""As much of torch as fixtures/capture.py and capture_engine.py ask for, on numpy: tensors, modules and their hooks."""
import copy
import types

import numpy as np

BFLOAT16 = "bfloat16"


def rounded(values):
    """float64 to bf16, ties to even, as float64."""
    bits = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16
    return bits.astype(np.uint32).view(np.float32)


class Tensor:
    """dtype: numpy's, or BFLOAT16, whose numbers are kept as float32."""

    def __init__(self, array, dtype=None):
        self.dtype = dtype or array.dtype
        self.array = rounded(array) if dtype == BFLOAT16 else np.asarray(array)
        self.log = []

    shape = property(lambda self: self.array.shape)
    T = property(lambda self: Tensor(self.array.T))

    def like(self, array):
        return Tensor(array, self.dtype if self.dtype == BFLOAT16 else None)

    def dim(self):
        return self.array.ndim

    def clone(self):
        return self.like(self.array.copy())

    def reshape(self, *shape):
        assert min(np.ravel(shape), default=0) >= -1, shape
        return self.like(self.array.reshape(*shape))

    def to(self, dtype):
        return Tensor(self.array, dtype)

    def double(self):
        return Tensor(self.array.astype(np.float64))

    def is_floating_point(self):
        return self.dtype == BFLOAT16 or self.dtype.kind == "f"

    def data_ptr(self):
        return self.array.ctypes.data

    def cpu(self):
        return self

    def contiguous(self):
        return self

    def sum(self, dim):
        return Tensor(self.array.sum(axis=dim))

    def all(self):
        return bool(self.array.all())

    def topk(self, count, dim):
        order = np.argsort(-self.array, axis=dim, kind="stable")[:, :count]
        return Tensor(np.take_along_axis(self.array, order, dim)), Tensor(order)

    def __getitem__(self, at):
        return self.like(self.array[at])

    def __add__(self, other):
        return self.like(self.array + getattr(other, "array", other))

    __radd__ = __add__

    def __sub__(self, other):
        return self.like(self.array - other.array)

    def __mul__(self, other):
        return self.like(self.array * getattr(other, "array", other))

    def __matmul__(self, other):
        return self.like(self.array @ other.array)

    def __ne__(self, other):
        return Tensor(self.array != other)

    def __eq__(self, other):
        return Tensor(self.array == getattr(other, "array", other))


class Module:
    """Attributes that are modules or tensors are its children and parameters."""

    def __init__(self):
        self._hooks = []

    def __call__(self, *positional, **named):
        for kind, hook, with_kwargs in list(self._hooks):
            if kind == "before":
                changed = hook(self, positional, named) if with_kwargs else hook(self, positional)
                positional, named = changed or (positional, named)
        result = self.forward(*positional, **named)
        for kind, hook, with_kwargs in list(self._hooks):
            if kind == "after":
                hook(self, positional, named, result) if with_kwargs else hook(self, positional, result)
        return result

    def _register(self, *hook):
        self._hooks.append(hook)
        return types.SimpleNamespace(remove=lambda: self._hooks.remove(hook))

    def register_forward_pre_hook(self, hook, with_kwargs=False):
        return self._register("before", hook, with_kwargs)

    def register_forward_hook(self, hook, with_kwargs=False):
        return self._register("after", hook, with_kwargs)

    def children(self):
        return [value for value in vars(self).values() if isinstance(value, Module)]

    def modules(self):
        return [self] + [module for child in self.children() for module in child.modules()]

    def named_parameters(self):
        return [(name, value) for name, value in vars(self).items() if isinstance(value, Tensor)]

    def double(self):
        for module in self.modules():
            for name, value in module.named_parameters():
                setattr(module, name, value.double())
        return self

    def to(self, device):
        self.device = device
        return self

    def eval(self):
        return self


class ModuleList(Module):
    def __init__(self, entries):
        super().__init__()
        self.entries = list(entries)

    def children(self):
        return self.entries

    def __iter__(self):
        return iter(self.entries)

    def __len__(self):
        return len(self.entries)

    def __deepcopy__(self, memo):
        return ModuleList(copy.deepcopy(self.entries, memo))


class NoGradient:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def torch():
    """The module."""
    made = types.ModuleType("torch")
    made.nn = types.SimpleNamespace(Module=Module, ModuleList=ModuleList)
    made.bfloat16, made.float32 = BFLOAT16, np.dtype(np.float32)
    made.is_tensor = lambda value: isinstance(value, Tensor)
    made.equal = lambda a, b: a.shape == b.shape and bool((a.array == b.array).all())
    made.zeros_like = lambda tensor: tensor.like(np.zeros_like(tensor.array))
    made.no_grad = NoGradient
    made.tensor = lambda values, device: Tensor(np.array(values))
    made.Generator = lambda: types.SimpleNamespace(manual_seed=np.random.default_rng)
    made.randint = lambda low, high, shape, generator: types.SimpleNamespace(
        tolist=lambda: generator.integers(low, high, shape).tolist())
    made.distributed = types.SimpleNamespace(is_available=lambda: True, is_initialized=lambda: False,
                                             get_rank=lambda: 1)
    return made
