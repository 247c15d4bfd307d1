"""The batch triple: train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x world_size."""

from typing import Any

from bench.configs.keys import BATCH
from bench.configs.values import is_auto, whole

TOTAL, MICRO, STEPS = BATCH


def batch(
    content: dict[str, Any], beside: dict[str, Any], asked: dict[str, int | None], world_size: int, notes: list[str]
) -> tuple[dict[str, int], str | None]:
    """Settle the triple: the file, then the file around it, then the scenario; what is left follows or is 1.

    Returns:
        The three sizes, and why they cannot hold (``None``: they do).

    Raises:
        ValueError: one of them is no whole number from 1.
    """
    file: dict[str, int] = {}
    for key in BATCH:
        value = content.get(key)
        value = beside.get(key) if value is None or is_auto(value) else value
        if value is not None and not is_auto(value):
            file[key] = whole(key, value, 1)
    sizes = dict(file)
    # Two of three in the file settle the third, unless it is left open ("auto"): transformers then compares.
    settled = len(file) == 2 and not any(is_auto(content.get(key)) for key in BATCH)
    for key in (MICRO, STEPS, TOTAL):
        given = asked[key]
        if given is not None and key not in file and not settled:
            sizes[key] = given
            if is_auto(content.get(key)):
                notes.append(f"{key} auto -> {given}, the scenario's")
    result, reason = _complete(sizes, world_size, content, notes)
    over = [key for key in BATCH if asked[key] not in (None, result[key]) and reason is None]
    notes += [f"{key} {result[key]} is the configuration's, over the scenario's {asked[key]}" for key in over]
    return result, reason


def _complete(
    sizes: dict[str, int], world_size: int, content: dict[str, Any], notes: list[str]
) -> tuple[dict[str, int], str | None]:
    total, micro, steps = (sizes.get(key) for key in BATCH)
    if total is None:
        open_ = [key for key in (MICRO, STEPS) if key not in sizes and is_auto(content.get(key))]
        notes += [f"{key} auto -> 1: nothing says otherwise" for key in open_]
        micro, steps = micro or 1, steps or 1
        total = micro * steps * world_size
    elif micro is None and steps is None:
        micro, steps = total // world_size, 1  # as DeepSpeed's _set_batch_related_parameters (runtime/config.py)
    elif micro is None:
        micro = total // world_size // (steps or 1)
    elif steps is None:
        steps = total // micro // world_size
    result = {TOTAL: total, MICRO: micro, STEPS: steps or 0}
    holds = total == micro * (steps or 0) * world_size
    for key in BATCH:
        if holds and key not in sizes and TOTAL in sizes:
            notes.append(f"{key} -> {result[key]}, for {TOTAL} {total} on {world_size} ranks")
    reason = None if holds else _reason(result, sizes, world_size)
    return {key: max(1, value) for key, value in result.items()}, reason


def _reason(result: dict[str, int], sizes: dict[str, int], world_size: int) -> str:
    factors = " x ".join(f"{key} {result[key] if key in sizes else 'a whole number'}" for key in (MICRO, STEPS))
    return f"batch triple impossible: {TOTAL} {result[TOTAL]} = {factors} x world_size {world_size} does not hold"
