"""Does offload keep and move what DeepSpeed's code keeps and moves?"""

from bench.record import Finding, Offload

_CHECK = "offload"
# Flags, norms and step counters: a few bytes per tensor.
SLACK_BYTES = 1024


def check(found: Offload | None, first_rank: int = 0) -> list[Finding]:
    """Return one finding that names what differs from the prediction; ``first_rank``: the number of the first rank."""
    if found is None:
        return []
    words = [
        f"rank {number}: {name} {value:,}, expected {expected[name]:,}"
        for number, (rank, expected) in enumerate(zip(found.ranks, found.predicted, strict=True), first_rank)
        for name, value in rank
        if name in expected and abs(value - expected[name]) > SLACK_BYTES
    ]
    if not words:
        return []
    more = f" (and {len(words) - 2} more)" if len(words) > 2 else ""
    return [Finding(check=_CHECK, verdict="suspect", text=f"offload: {'; '.join(words[:2])}{more}")]
