"""Run operators without computing: the results have the shapes, dtypes, strides and storages of the real ones.

What an operator returns is learned once per set of argument shapes, from PyTorch's own shape functions
(``FakeTensorMode``), and remembered. Views are made by the real operator, which reads no content. Tensors of a few
elements are real, so that flags, norms and step counters can be computed with and read; where such a value depends on
content that is not there, it is a guess, and a guess that the program reads is noted with the place that reads it.
"""

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch._C._distributed_c10d import FakeWork
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from bench.emulate.hollow import AddressSpace, is_hollow

# Up to this many elements a tensor is real: one value for the whole tensor, or a few, as control flow needs.
SMALL_NUMEL = 16
# So are larger ones of whole numbers, where nothing but real ones went into them: positions, masks, token ids.
_INTEGER_BYTES = 8 << 20


class NotEmulatedError(Exception):
    """An operator whose result cannot be known without the content of its arguments."""


class Observer(Protocol):
    """Sees what passes, as bench.measure's instruments do."""

    def before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Called before an operator of ``c10d`` runs."""
        ...

    def after(self, func: Any, result: Any) -> None:
        """Called with what an operator returned that may have made a storage."""
        ...


class _Output(NamedTuple):
    """One tensor that an operator makes."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    num_bytes: int
    small: bool


class _Rule(NamedTuple):
    """What an operator returns: a new tensor (`_Output`), an argument (its number) or a constant, per leaf.

    ``native``: the real operator is to be called, because its result aliases an argument or is on no real device.
    ``computable``: its results are so small that it is called too where all of its arguments are real.
    """

    native: bool
    leaves: tuple[tuple[str, Any], ...] = ()
    spec: Any = None
    computable: bool = False


_VIEW, _NATIVE, _READS, _MUTATES, _MAKES, _COLLECTIVE = range(6)
_READERS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)
# Its shape function refuses what its CPU kernel computes, other dtypes than bfloat16 (torch 2.13).
_BF16_SHAPES_ONLY = torch.ops.aten._grouped_mm.default
_CAT, _MANY = torch.ops.aten.cat.default, 8
_REDUCE_SCATTER, _SPLIT = torch.ops.c10d._reduce_scatter_base_.default, torch.ops.aten.split.Tensor
# Called once per operator: what it tells about one that just ran.
Listener = Callable[[tuple[Any, ...], Any, tuple[Any, ...], dict[str, Any], Any], None]


def _kind(func: Any) -> int:
    if func.namespace == "c10d":
        return _COLLECTIVE
    if func.namespace == "_c10d_functional":
        raise NotEmulatedError(f"{func}: torch's functional collectives are not emulated")
    if func in _READERS:
        return _READS
    schema = func._schema
    # set_, t_, resize_ change the tensor's description, not its content; a profiler's mark has neither. lift_fresh is
    # what torch.tensor ends with: the first that is seen of a storage.
    if torch.Tag.inplace_view in func.tags or func.namespace == "profiler" or "aten::lift" in schema.name:
        return _NATIVE
    aliases = [returned.alias_info for returned in schema.returns]
    if any(alias is not None and not alias.is_write for alias in aliases):
        return _VIEW
    return _MUTATES if schema.is_mutable else _MAKES


class _Writes(NamedTuple):
    """Position (-1: none) and name of the arguments that an operator writes to, and of those it then returns."""

    written: list[tuple[int, str]]
    returned: list[tuple[int, str]]


def _writes(func: Any) -> _Writes:
    schema = func._schema
    written = {
        (-1 if argument.kwarg_only else number, argument.name): argument.alias_info.before_set
        for number, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    }
    returned = []
    for each in schema.returns:
        if each.alias_info is None:
            raise NotEmulatedError(f"{func} writes to an argument and makes a tensor")
        returned.append(next(where for where, alias in written.items() if alias == each.alias_info.before_set))
    return _Writes([*written], returned)


def _describe(arguments: Any, key: list[Any], tensors: list[torch.Tensor]) -> bool:
    """Append to ``key`` all that the shapes of a result can depend on; return whether every tensor is real."""
    real = True
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            tensors.append(argument)
            key += (argument.dtype, argument.shape, argument.stride(), argument.is_meta)
            real = real and not is_hollow(argument)
        elif isinstance(argument, list | tuple):
            key.append(len(argument))
            real = _describe(argument, key, tensors) and real
        elif isinstance(argument, float):
            key.append(float)  # a learning rate changes every step, and no shape
        elif not isinstance(argument, torch.Generator):
            key += (type(argument), argument)
    return real


def _flat(tensors: list[torch.Tensor]) -> tuple[torch.dtype, int] | None:
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


def _mark(tensor: torch.Tensor, origin: str) -> None:
    """Note that the content of ``tensor`` is a guess, by the operator ``origin``; its storage keeps the note."""
    tensor.untyped_storage()._zerostage_guess = origin  # type: ignore[attr-defined]


def _origin(tensors: list[torch.Tensor]) -> str | None:
    """Return the operator that a value computed from ``tensors`` is a guess by, ``None`` if it is known."""
    found = (getattr(tensor.untyped_storage(), "_zerostage_guess", None) for tensor in tensors if not tensor.is_meta)
    return next((origin for origin in found if origin), None)


def _reader() -> str:
    """Return the innermost function outside torch and the emulator that is running: module and name."""
    frame = sys._getframe(2)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module not in ("torch", __name__) and not module.startswith("torch."):
            return f"{module}.{frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return "?"


class Emulator(TorchDispatchMode):
    """While active, no operator computes. ``guesses`` counts what the program read of content that is not there, by the
    function that read it and the operator it came from; ``guessed`` has the first value that was given for it.

    ``listener``, if set, is called with key, operator, arguments and result of every operator that is not a view.
    ``backend``: what carries the collectives; gloo takes memory that an observer sees.

    Raises:
        NotEmulatedError: by an operator whose result depends on content.
    """

    def __init__(self, backend: str = "nccl") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._backend = backend
        self.guesses: Counter[tuple[str, str]] = Counter()
        self.guessed: dict[tuple[str, str], str] = {}
        self.listener: Listener | None = None
        self._observers: list[Observer] = []
        self._space = AddressSpace()
        self._kinds: dict[int, int] = {}  # by id: an operator's own hash is slow
        self._writes: dict[Any, _Writes] = {}
        self._rules: dict[tuple[Any, ...], _Rule] = {}
        self._fake = FakeTensorMode()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # its guard would cost more than the rest of this class, at every operator

    @contextlib.contextmanager
    def observed_by(self, observer: Any) -> Iterator[Any]:
        """Let ``observer`` see what passes while the ``with`` body runs."""
        self._observers.append(observer)
        try:
            yield observer
        finally:
            self._observers.remove(observer)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kind = self._kinds.get(id(func))
        if kind is None:
            kind = self._kinds[id(func)] = _kind(func)
        if kind == _VIEW:
            return func(*args, **kwargs) if kwargs else func(*args)
        kwargs = kwargs or {}
        if kind == _COLLECTIVE:
            for observer in self._observers:
                observer.before(func, args, kwargs)
            result = self._communicate(func, args)
            if func is _REDUCE_SCATTER and self._backend == "gloo":
                self._show_copy(args[1])
            return result  # of what it was handed: nothing that observers have not seen
        if kind == _NATIVE:
            result = func(*args, **kwargs)
        else:
            result = self._compute(func, kind, args, kwargs)
        for observer in self._observers:
            observer.after(func, result)
        return result

    def _compute(self, func: Any, kind: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is _CAT and (flat := _flat(args[0])) is not None:
            dtype, numel = flat
            result = self._space.tensor((numel,), (1,), dtype, numel * dtype.itemsize)
            if self.listener is not None:
                self.listener((id(func), dtype, numel), func, args, kwargs, result)
            return result
        parts: list[Any] = [id(func)]
        tensors: list[torch.Tensor] = []
        real = _describe(args, parts, tensors)
        for name, value in kwargs.items():
            parts.append(name)
            real = _describe((value,), parts, tensors) and real
        if not tensors:  # arange(3.0)
            parts += [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, float)]
        key = tuple(parts)
        if kind == _READS:
            return self._read(func, args, tensors, real)
        if kind == _MUTATES:
            result = self._write(func, args, kwargs, tensors, real)
        else:
            rule = self._rules.get(key)
            if rule is None:
                rule = self._rules[key] = self._learn(func, args, kwargs)
            if rule.native:
                return func(*args, **kwargs)
            if real and rule.computable and "empty" not in func._schema.name:  # what empty holds is nobody's to say
                result = func(*args, **kwargs)
                self._inherit(tensors, result)
            else:
                made = [self._make(how, what, tensors, func) for how, what in rule.leaves]
                result = made[0] if rule.spec is None else tree_unflatten(made, rule.spec)
        if self.listener is not None:
            self.listener(key, func, args, kwargs, result)
        return result

    def _communicate(self, func: Any, args: tuple[Any, ...]) -> Any:
        """Return at once, as if all other ranks held what this one holds."""
        sides = [tree_flatten(argument)[0] for argument in args[:2]]
        first = [leaf for leaf in sides[0] if isinstance(leaf, torch.Tensor)]
        if func._schema.name == "c10d::allgather_" and not any(map(is_hollow, first)):
            for slot in first:
                slot.copy_(sides[1][0])
        for tensor in first:
            if not is_hollow(tensor):
                _mark(tensor, func._schema.name)
        work = FakeWork().boxed()
        return work if len(func._schema.returns) == 1 else (args[0], work)

    def _show_copy(self, handed: torch.Tensor) -> None:
        """Let the observers see gloo's own copy of what it was ``handed`` to reduce and scatter.

        It all-reduces a copy, and splits that when it is waited for (torch 2.13): there the program sees it, until the
        wait ends. DeepSpeed waits at once, so here the copy comes and goes in one.
        """
        size = handed.numel() * handed.element_size()
        shape = _Output((handed.numel(),), (1,), handed.dtype, size, not is_hollow(handed))
        copy = self._make("tensor", shape, [], _SPLIT)
        for observer in self._observers:
            observer.after(_SPLIT, copy)

    def _read(self, func: Any, args: tuple[Any, ...], tensors: list[torch.Tensor], real: bool) -> Any:
        if real:
            value = func(*args)
            origin = _origin(tensors)
        else:
            kind = torch.bool if func is torch.ops.aten.equal.default else tensors[0].dtype
            value = kind == torch.bool if func is torch.ops.aten.equal.default else 1.0 if kind.is_floating_point else 0
            origin = "content that is not there"
        if origin is not None and not (reader := _reader()).startswith("bench."):
            self.guesses[reader, origin] += 1
            self.guessed.setdefault((reader, origin), repr(value))
        return value

    def _make(self, how: str, what: Any, tensors: list[torch.Tensor], func: Any) -> Any:
        if how == "argument":
            return tensors[what]
        if how == "constant":
            return what
        if not what.small:
            return self._space.tensor(what.shape, what.stride, what.dtype, what.num_bytes)
        small = torch.empty_strided(what.shape, what.stride, dtype=what.dtype).fill_(
            1 if tensors and what.dtype.is_floating_point else 0
        )
        if tensors:
            _mark(small, func._schema.name)
        return small

    def _inherit(self, tensors: list[torch.Tensor], result: Any) -> None:
        """Mark what was computed from a guess as one."""
        if (origin := _origin(tensors)) is not None:
            for leaf in result if isinstance(result, list | tuple) else (result,):
                if isinstance(leaf, torch.Tensor):
                    _mark(leaf, origin)

    def _write(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[torch.Tensor], real: bool
    ) -> Any:
        if real:
            result = func(*args, **kwargs)
            self._inherit(tensors, result)
            return result
        writes = self._writes.get(func)
        if writes is None:
            writes = self._writes[func] = _writes(func)
        values = {
            name: args[number] if 0 <= number < len(args) else kwargs.get(name) for number, name in writes.written
        }
        for each in tree_leaves(values):
            if isinstance(each, torch.Tensor) and not is_hollow(each):
                _mark(each, func._schema.name)
        outs = [values[name] for number, name in writes.written if number < 0]
        if any(isinstance(out, torch.Tensor) and not out.numel() for out in outs):
            raise NotEmulatedError(f"{func} is to resize what it writes to")
        found = [values[name] for _, name in writes.returned]
        return None if not found else found[0] if len(found) == 1 else tuple(found)

    def _learn(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Rule:
        stand_ins: list[torch.Tensor] = []
        dtype = args[0].dtype if func is _BF16_SHAPES_ONLY else None

        def stand_in(argument: Any) -> Any:
            if not isinstance(argument, torch.Tensor):
                return None if isinstance(argument, torch.Generator) else argument
            kind = torch.bfloat16 if argument.dtype == dtype else argument.dtype
            made = torch.empty_strided(argument.shape, argument.stride(), dtype=kind, device=argument.device)
            stand_ins.append(made)
            return made

        try:
            with self._fake:
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
                return _Rule(native=True)
            num_bytes, kind = storage.nbytes(), leaf.dtype
            if dtype not in (None, kind):
                if leaf.shape[-1] % 8:  # rows are padded to 16 bytes, which is another number of elements
                    raise NotEmulatedError(f"{func} of {dtype} on rows of {leaf.shape[-1]} elements")
                num_bytes, kind = num_bytes // kind.itemsize * dtype.itemsize, dtype
            made = _Output(tuple(leaf.shape), leaf.stride(), kind, num_bytes, leaf.numel() <= SMALL_NUMEL)
            leaves.append(("tensor", made))
        computable = all(
            how != "tensor"
            or what.small
            or not (what.dtype.is_floating_point or what.dtype.is_complex or what.num_bytes > _INTEGER_BYTES)
            for how, what in leaves
        )
        return _Rule(False, tuple(leaves), None if isinstance(result, torch.Tensor) else spec, computable)
