"""Run operators without computing: the results have the shapes, dtypes, strides and storages of the real ones.

What an operator returns is learned once per set of argument shapes, from PyTorch's own shape functions
(``FakeTensorMode``), and remembered. Views are made by the real operator, which reads no content. Tensors of a few
elements are real, so that flags, norms and step counters can be computed with and read; where such a value depends on
content that is not there, it is a guess, and a guess that the program reads is noted with the place that reads it.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch._C._distributed_c10d import FakeWork
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from bench.emulate.guesses import mark, origin_of, reader
from bench.emulate.hollow import AddressSpace, is_hollow
from bench.emulate.kinds import COLLECTIVE, MUTATES, NATIVE, READS, VIEW, Writes, kind_of, writes_of
from bench.emulate.places import DEVICE, HOST, place
from bench.emulate.shapes import NotEmulatedError, Output, Rule, describe, flat, learn
from bench.measure.memory import COPIES


class Observer(Protocol):
    """Sees what passes, as bench.measure's instruments do."""

    def before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Called before an operator of ``c10d`` runs, and before one that copies."""
        ...

    def after(self, func: Any, result: Any) -> None:
        """Called with what an operator returned that may have made a storage."""
        ...


_CAT = torch.ops.aten.cat.default
_REDUCE_SCATTER, _SPLIT = torch.ops.c10d._reduce_scatter_base_.default, torch.ops.aten.split.Tensor
# Called once per operator: what it tells about one that just ran.
Listener = Callable[[tuple[Any, ...], Any, tuple[Any, ...], dict[str, Any], Any], None]


class Emulator(TorchDispatchMode):
    """While active, no operator computes. ``guesses`` counts what the program read of content that is not there, by the
    function that read it and the operator it came from; ``guessed`` has the first value that was given for it.

    ``listener``, if set, is called with key, operator, arguments and result of every operator that is not a view.
    ``backend``: what carries the collectives; gloo takes memory that an observer sees. ``apart``: whether host and
    device are told apart (bench.emulate.places).

    Raises:
        NotEmulatedError: by an operator whose result depends on content.
    """

    def __init__(self, backend: str = "nccl", *, apart: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._backend, self._apart = backend, apart
        self.guesses: Counter[tuple[str, str]] = Counter()
        self.guessed: dict[tuple[str, str], str] = {}
        self.listener: Listener | None = None
        self._observers: list[Observer] = []
        self._space = AddressSpace()
        self._kinds: dict[int, int] = {}  # by id: an operator's own hash is slow
        self._writes: dict[Any, Writes] = {}
        self._rules: dict[tuple[Any, ...], Rule] = {}
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
            kind = self._kinds[id(func)] = kind_of(func)
        if kind == VIEW:
            return func(*args, **kwargs) if kwargs else func(*args)
        kwargs = kwargs or {}
        if kind == COLLECTIVE:
            for observer in self._observers:
                observer.before(func, args, kwargs)
            result = self._communicate(func, args)
            if func is _REDUCE_SCATTER and self._backend == "gloo":
                self._show_copy(args[1])
            return result  # of what it was handed: nothing that observers have not seen
        if id(func) in COPIES:
            for observer in self._observers:
                observer.before(func, args, kwargs)
        result = func(*args, **kwargs) if kind == NATIVE else self._compute(func, kind, args, kwargs)
        for observer in self._observers:
            observer.after(func, result)
        return result

    def _compute(self, func: Any, kind: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is _CAT and (row := flat(args[0])) is not None:
            dtype, numel = row
            result = self._space.tensor((numel,), (1,), dtype, numel * dtype.itemsize)
            if self.listener is not None:
                self.listener((id(func), dtype, numel), func, args, kwargs, result)
            return result
        asked = kwargs
        if self._apart and kwargs.get("device") == DEVICE:
            kwargs = kwargs | {"device": HOST}  # to PyTorch one processor
        # transformers builds a model with another default dtype than it runs with.
        parts: list[Any] = [id(func), torch.get_default_dtype()]
        tensors: list[torch.Tensor] = []
        real = describe(args, parts, tensors)
        for name, value in kwargs.items():
            parts.append(name)
            real = describe((value,), parts, tensors) and real
        if not tensors:  # arange(3.0)
            parts += [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, float)]
        key = tuple(parts)
        if kind == READS:
            return self._read(func, args, tensors, real)
        if kind == MUTATES:
            result = self._write(func, args, kwargs, tensors, real)
        else:
            rule = self._rules.get(key)
            if rule is None:
                rule = self._rules[key] = learn(func, args, kwargs, self._fake)
            if rule.native:
                result = func(*args, **kwargs)
            elif real and rule.computable and "empty" not in func._schema.name:  # what empty holds is nobody's to say
                result = func(*args, **kwargs)
                self._inherit(tensors, result)
            else:
                made = [self._make(how, what, tensors, func) for how, what in rule.leaves]
                result = made[0] if rule.spec is None else tree_unflatten(made, rule.spec)
            if self._apart:
                place(result, asked, tensors)
            if rule.native:
                return result
        if self.listener is not None:
            self.listener(key, func, args, kwargs, result)
        return result

    def _communicate(self, func: Any, args: tuple[Any, ...]) -> Any:
        """Return at once, as if all other ranks held what this one holds."""
        sides = [tree_flatten(argument)[0] for argument in args[:2]]
        first = [leaf for leaf in sides[0] if isinstance(leaf, torch.Tensor)]
        if func._schema.name == "c10d::allgather_" and not any(map(is_hollow, [*first, *sides[1]])):
            for slot in first:
                slot.copy_(sides[1][0])
        for tensor in first:
            if not is_hollow(tensor):
                mark(tensor, func._schema.name)
        work = FakeWork().boxed()
        return work if len(func._schema.returns) == 1 else (args[0], work)

    def _show_copy(self, handed: torch.Tensor) -> None:
        """Let the observers see gloo's own copy of what it was ``handed`` to reduce and scatter.

        It all-reduces a copy, and splits that when it is waited for (torch 2.13): there the program sees it, until the
        wait ends. DeepSpeed waits at once, so here the copy comes and goes in one.
        """
        size = handed.numel() * handed.element_size()
        shape = Output((handed.numel(),), (1,), handed.dtype, size, not is_hollow(handed))
        copy = self._make("tensor", shape, [], _SPLIT)
        for observer in self._observers:
            observer.after(_SPLIT, copy)

    def _read(self, func: Any, args: tuple[Any, ...], tensors: list[torch.Tensor], real: bool) -> Any:
        if real:
            value = func(*args)
            origin = origin_of(tensors)
        else:
            kind = torch.bool if func is torch.ops.aten.equal.default else tensors[0].dtype
            value = kind == torch.bool if func is torch.ops.aten.equal.default else 1.0 if kind.is_floating_point else 0
            origin = "content that is not there"
        self._note(origin, value)
        return value

    def _note(self, origin: str | None, value: Any) -> None:
        if origin is not None and not (by := reader()).startswith("bench."):
            self.guesses[by, origin] += 1
            self.guessed.setdefault((by, origin), repr(value))

    def saw(self, tensor: torch.Tensor, how: str) -> None:
        """Note that the program reads ``tensor`` past the dispatcher, by its method ``how``.

        Raises:
            NotEmulatedError: it has no content.
        """
        if is_hollow(tensor):
            raise NotEmulatedError(f"{reader()} reads the content of a tensor by {how}()")
        self._note(origin_of([tensor]), f"{how}()")

    def _make(self, how: str, what: Any, tensors: list[torch.Tensor], func: Any) -> Any:
        if how == "constant":
            return what
        if not what.small:
            return self._space.tensor(what.shape, what.stride, what.dtype, what.num_bytes)
        small = torch.empty_strided(what.shape, what.stride, dtype=what.dtype).fill_(
            1 if tensors and what.dtype.is_floating_point else 0
        )
        if tensors:
            mark(small, func._schema.name)
        return small

    def _inherit(self, tensors: list[torch.Tensor], result: Any) -> None:
        """Mark what was computed from a guess as one."""
        if (origin := origin_of(tensors)) is not None:
            for leaf in result if isinstance(result, list | tuple) else (result,):
                if isinstance(leaf, torch.Tensor):
                    mark(leaf, origin)

    def _write(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[torch.Tensor], real: bool
    ) -> Any:
        if real:
            result = func(*args, **kwargs)
            self._inherit(tensors, args[0] if result is None else result)  # of lists: it has written to the first
            return result
        writes = self._writes.get(func)
        if writes is None:
            writes = self._writes[func] = writes_of(func)
        values = {
            name: args[number] if 0 <= number < len(args) else kwargs.get(name) for number, name in writes.written
        }
        for each in tree_leaves(values):
            if isinstance(each, torch.Tensor) and not is_hollow(each):
                mark(each, func._schema.name)
        outs = [values[name] for number, name in writes.written if number < 0]
        if any(isinstance(out, torch.Tensor) and not out.numel() for out in outs):
            raise NotEmulatedError(f"{func} is to resize what it writes to")
        found = [values[name] for _, name in writes.returned]
        return None if not found else found[0] if len(found) == 1 else tuple(found)
