"""What becomes of an operator when it does not run: by what its schema says it reads, writes and returns."""

from typing import Any, NamedTuple

import torch

from bench.emulate.shapes import NotEmulatedError

VIEW, NATIVE, READS, MUTATES, MAKES, COLLECTIVE = range(6)
_READERS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)


def kind_of(func: Any) -> int:
    """Return one of the six kinds."""
    if func.namespace == "c10d":
        return COLLECTIVE
    if func.namespace == "_c10d_functional":
        raise NotEmulatedError(f"{func}: torch's functional collectives are not emulated")
    if func in _READERS:
        return READS
    schema = func._schema
    # set_, t_, resize_ change the tensor's description, not its content; a profiler's mark has neither. lift_fresh is
    # what torch.tensor ends with: the first that is seen of a storage.
    if torch.Tag.inplace_view in func.tags or func.namespace == "profiler" or "aten::lift" in schema.name:
        return NATIVE
    aliases = [returned.alias_info for returned in schema.returns]
    if any(alias is not None and not alias.is_write for alias in aliases):
        return VIEW
    return MUTATES if schema.is_mutable else MAKES


class Writes(NamedTuple):
    """Position (-1: none) and name of the arguments that an operator writes to, and of those it then returns."""

    written: list[tuple[int, str]]
    returned: list[tuple[int, str]]


def writes_of(func: Any) -> Writes:
    """Return what ``func`` writes to."""
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
    return Writes([*written], returned)
