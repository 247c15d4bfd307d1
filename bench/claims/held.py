"""What a rank holds of the model's states: its own part, or the whole. Counted, not taken from the stage's number.

Parameters and optimizer states are counted as elements of the tensors that a rank owns (`bench.record.Shards`). For
gradients the end of backward does not tell, since stage 1 too lets go of what it has reduced for others. They are whole
if a rank holds them whole there, or between the micro-steps of a step with accumulation (at the end of its last
forward); they are shared if it holds a part between micro-steps.
"""

from typing import Literal

from bench.claims.verdict import Text
from bench.record import Record
from bench.zero.stages import STRATEGIES
from bench.zero.theory import BYTES_PER_ELEMENT

Held = Literal["whole", "shared"]
WORDS: dict[str, Text] = {
    "optimizer states": {"en": "optimizer states", "zh": "优化器状态"},
    "gradients": {"en": "gradients", "zh": "梯度"},
    "parameters": {"en": "parameters", "zh": "参数"},
}
STATES = tuple(WORDS)


def _whole_elements(record: Record, state: str) -> int:
    """Return the elements of the whole model's states; the optimizer's as bench.validity.sharding has them."""
    trained = record.num_trainable_params or record.num_params or 0
    if state == "parameters":
        return record.num_params or 0
    if state == "gradients":
        return trained
    master = record.cell.dtype != "fp32" or (STRATEGIES[record.cell.strategy].zero_stage or 0) >= 1
    return trained * (3 if master else 2)


def share(record: Record, state: str) -> float | None:
    """Return the part of ``state`` that the rank with most of it holds, 1 being the whole; ``None`` if unknown."""
    whole = _whole_elements(record, state)
    if not record.shards or not whole:
        return None
    if state == "gradients":
        return _gradients(record, whole)
    key = state.replace(" ", "_")
    return float(max(getattr(rank, key) for rank in record.shards)) / whole


def _gradients(record: Record, whole: int) -> float | None:
    at_end = [rank.gradients for rank in record.shards if rank.gradients is not None]
    if at_end and max(at_end) >= whole:
        return max(at_end) / whole
    if record.cell.gradient_accumulation_steps == 1 or record.memory is None:
        return None
    between = [
        point.bytes.get("gradients", 0)
        for rank in record.memory.ranks
        for point in rank.points
        if point.point == "forward"
    ]
    return max(between) / (whole * BYTES_PER_ELEMENT[record.cell.dtype]) if between else None


def held(record: Record, state: str) -> Held | None:
    """Return whether ``state`` is whole on some rank, or shared out; ``None`` where the row does not tell."""
    part = share(record, state)
    if part is None:
        return None
    # Padding, and gradients of tensors that two ranks own, come on top of 1/N; half way is far from both.
    return "shared" if part < (1 + 1 / record.cell.world_size) / 2 else "whole"


def shared_states(record: Record) -> frozenset[str] | None:
    """Return the states that are shared out; ``None`` where the row does not tell of all three."""
    found = {state: held(record, state) for state in STATES}
    return None if None in found.values() else frozenset(s for s, how in found.items() if how == "shared")


def listed(states: frozenset[str], language: str) -> str:
    """Return the names of ``states`` in a fixed order."""
    names = [WORDS[state][language] for state in STATES if state in states]
    if language == "zh":
        return "、".join(names) or "无"
    return ", ".join(names) or "nothing"
