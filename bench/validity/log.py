"""What the ranks' log says against the figures."""

from bench.messages import allocator_flushes
from bench.record import Finding


def memory_pressure(log: str) -> list[Finding]:
    """Return a finding if the caching allocator ran out of room and gave its blocks back, which stalls every rank.

    Stage 3 warns of it (deepspeedai/DeepSpeedExamples#186); the other strategies keep silent.
    """
    count = allocator_flushes(log)
    text = f"{count} allocator cache flushes: memory was nearly out, steps take longer than with room to spare"
    return [Finding(check="allocator", verdict="suspect", text=text)] if count else []
