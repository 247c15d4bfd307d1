"""Records made from a stored one, for tests of what is said about them."""

from pathlib import Path
from typing import Any

from bench.record import Record, parse_record

RECORDS = Path(__file__).parents[1] / "data" / "records"


def stored(name: str = "v1-completed") -> Record:
    path = RECORDS / f"{name}.json"
    return parse_record(path.read_text(), str(path))


def made(
    strategy: str,
    world_size: int = 2,
    *,
    step_s: float | None = 0.1,
    peak: int = 1000,
    sent: float = 500.0,
    repeat: int = 0,
    cell: dict[str, Any] | None = None,
    **changes: Any,
) -> Record:
    """Return a completed record of a cell: ``step_s`` of a step, or without any figure where that is ``None``."""
    base = stored()
    settings = {"strategy": strategy, "world_size": world_size} | (cell or {})
    asked = base.cell.model_copy(update=settings)
    tokens = asked.train_batch_size * asked.seq_length
    new: dict[str, Any] = {
        "cell": asked,
        "cell_id": asked.cell_id,
        "label": asked.label,
        "repeat": repeat,
        "train_batch_size": asked.train_batch_size,
        "findings": [],
        "validity": "valid",
        "timing": base.timing.model_copy(update={"step_time_s": step_s or 1.0, "suspect_reasons": []}),
        "throughput": base.throughput.model_copy(
            update={"tokens_per_second_per_gpu": tokens / (step_s or 1.0) / world_size}
        ),
        "memory": base.memory.model_copy(update={"peak_allocated_bytes": peak}),
        "comm": base.comm.model_copy(update={"comm_wire_bytes_per_step": sent}),
    }
    if step_s is None:
        new |= {"timing": None, "throughput": None, "memory": None, "comm": None, "losses": []}
    return base.model_copy(update=new | changes)


def failed(strategy: str, world_size: int = 2, status: str = "oom", **changes: Any) -> Record:
    return made(strategy, world_size, step_s=None, status=status, **({"reason": "because of this"} | changes))
