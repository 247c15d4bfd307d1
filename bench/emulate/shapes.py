"""What an operator returns, without running it: learned from PyTorch's own shape functions (``FakeTensorMode``)."""

from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._pytree import tree_flatten, tree_map

from bench.emulate.hollow import is_hollow

# Up to this many elements a tensor is real: one value for the whole tensor, or a few, as control flow needs.
SMALL_NUMEL = 16
# So are larger ones of whole numbers, where nothing but real ones went into them: positions, masks, token ids.
_INTEGER_BYTES = 8 << 20


# Its shape function refuses what its CPU kernel computes, other dtypes than bfloat16 (torch 2.13).
_BF16_SHAPES_ONLY = torch.ops.aten._grouped_mm.default
# From so many pieces on, a concatenation needs no lesson of its own.
_MANY = 8


class NotEmulatedError(Exception):
    """An operator whose result cannot be known without the content of its arguments."""


class Output(NamedTuple):
    """One tensor that an operator makes."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    num_bytes: int
    small: bool


class Rule(NamedTuple):
    """What an operator returns: a new tensor (`Output`) or a constant, per leaf.

    ``native``: the real operator is to be called, because its result aliases an argument or is on no real device.
    ``computable``: its results are so small that it is called too where all of its arguments are real.
    """

    native: bool
    leaves: tuple[tuple[str, Any], ...] = ()
    spec: Any = None
    computable: bool = False


def describe(arguments: Any, key: list[Any], tensors: list[torch.Tensor]) -> bool:
    """Append to ``key`` all that the shapes of a result can depend on; return whether every tensor is real."""
    real = True
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            tensors.append(argument)
            key += (argument.dtype, argument.shape, argument.stride(), argument.is_meta)
            real = real and not is_hollow(argument)
        elif isinstance(argument, list | tuple):
            key.append(len(argument))
            real = describe(argument, key, tensors) and real
        elif isinstance(argument, float):
            key.append(float)  # a learning rate changes every step, and no shape
        elif not isinstance(argument, torch.Generator):
            key += (type(argument), argument)
    return real


def flat(tensors: list[torch.Tensor]) -> tuple[torch.dtype, int] | None:
    """Return dtype and elements of all ``tensors`` in a row, where these are hollow vectors of one dtype, and many.

    Stage 3 joins a piece for every rank, in ever new sizes; to learn each as other operators are learned takes seconds.
    """
    if len(tensors) < _MANY:
        return None
    dtype, numel = tensors[0].dtype, 0
    for tensor in tensors:
        if tensor.dtype != dtype or tensor.dim() != 1:
            return None
        numel += tensor.shape[0]
    return (dtype, numel) if is_hollow(tensors[0]) and numel > SMALL_NUMEL else None


def learn(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], fake: FakeTensorMode) -> Rule:
    """Return the rule of a call, from PyTorch's shape function for it.

    Raises:
        NotEmulatedError: what it returns depends on content, or there is no shape function.
    """
    stand_ins: list[torch.Tensor] = []
    dtype = args[0].dtype if func is _BF16_SHAPES_ONLY else None

    def stand_in(argument: Any) -> Any:
        if not isinstance(argument, torch.Tensor):
            return None if isinstance(argument, torch.Generator) else argument
        kind = torch.bfloat16 if argument.dtype == dtype else argument.dtype
        made = torch.empty_strided(argument.shape, argument.stride(), dtype=kind, device=argument.device.type)
        stand_ins.append(made)
        return made

    try:
        with fake:
            result = func(*tree_map(stand_in, args), **tree_map(stand_in, kwargs))
    except DataDependentOutputException:
        raise NotEmulatedError(f"{func} returns a value that depends on the content of its arguments") from None
    except DynamicOutputShapeException:
        raise NotEmulatedError(f"{func} returns a shape that depends on the content of its arguments") from None
    except UnsupportedOperatorException:
        raise NotEmulatedError(f"{func} has no shape function in this release of torch") from None
    flat, spec = tree_flatten(result)
    leaves: list[tuple[str, Any]] = []
    for leaf in flat:
        if not isinstance(leaf, torch.Tensor):
            leaves.append(("constant", leaf))
            continue
        storage = leaf.untyped_storage()
        if leaf.device.type != "cpu" or any(storage._cdata == s.untyped_storage()._cdata for s in stand_ins):
            return Rule(native=True)
        num_bytes, kind = storage.nbytes(), leaf.dtype
        if dtype not in (None, kind):
            if leaf.shape[-1] % 8:  # rows are padded to 16 bytes, which is another number of elements
                raise NotEmulatedError(f"{func} of {dtype} on rows of {leaf.shape[-1]} elements")
            num_bytes, kind = num_bytes // kind.itemsize * dtype.itemsize, dtype
        made = Output(tuple(leaf.shape), leaf.stride(), kind, num_bytes, leaf.numel() <= SMALL_NUMEL)
        leaves.append(("tensor", made))
    computable = all(
        how != "tensor"
        or what.small
        or not (what.dtype.is_floating_point or what.dtype.is_complex or what.num_bytes > _INTEGER_BYTES)
        for how, what in leaves
    )
    return Rule(False, tuple(leaves), None if isinstance(result, torch.Tensor) else spec, computable)
