"""Does the memory that was counted hold what it must? What each rank's states weigh is known to the byte."""

from bench.record import Finding, Memory, MemoryPoint

_CHECK = "memory"
# Parameters and optimizer states do not depend on what a release does with its buffers.
_KNOWN = ("parameters", "optimizer_states")
# Step counters of the optimizer and such: a few bytes per tensor.
_SLACK_BYTES, _SLACK = 1024, 1e-3


def _differences(point: MemoryPoint) -> list[str]:
    found = []
    for category in _KNOWN:
        expected, counted = point.predicted.get(category), point.bytes.get(category, 0)
        if expected is not None and abs(counted - expected) > max(_SLACK_BYTES, _SLACK * expected):
            words = category.replace("_", " ")
            found.append(f"{counted:,} bytes of {words} at {point.point}, expected {expected:,.0f}")
    return found


def check(memory: Memory, first_rank: int = 0) -> list[Finding]:
    """Return where the counted memory lacks or exceeds the model's states, and a peak that is not the highest.

    ``first_rank``: the number of the first that ``memory`` holds.
    """
    wrong = []
    for number, rank in enumerate(memory.ranks, first_rank):
        for point in rank.points:
            wrong += [f"rank {number} holds {text}" for text in _differences(point)]
            if point.point == "peak" and point.total_bytes != rank.peak_allocated_bytes:
                wrong.append(
                    f"rank {number} peaked at {rank.peak_allocated_bytes:,} bytes by the meter, at "
                    f"{point.total_bytes:,} by the births and releases of the same step"
                )
    if not wrong:
        return []
    more = f" (and {len(wrong) - 2} more)" if len(wrong) > 2 else ""
    return [Finding(check=_CHECK, verdict="suspect", text=f"memory: {'; '.join(wrong[:2])}{more}")]
