"""What two records of one cell must have in common."""

# Times; where the record lies.
_FREE = {"timing", "throughput", "launch", "activity_s", "repeat"}
# A gloo thread lets go of a message some time after the call that sent it has returned. At the ends of a phase the
# suite waits for that; the peaks are inside, and may hold a message more or less from one run to the next.
_PEAKS = ("init_peak_bytes", "peak_allocated_bytes")
_POINTS = ("step", "peak")


def exact(record):
    """Return all of a record that depends neither on time nor on gloo's threads."""
    found = record.model_dump(mode="json", exclude=_FREE)
    if found["memory"] is None:
        return found
    found["memory"] = [rank | {"points": _settled(rank)} for rank in found["memory"]["ranks"]]
    for rank in found["memory"]:
        for name in (*_PEAKS, "host_peak_rss_bytes"):
            del rank[name]
    return found


def _settled(rank):
    return [point for point in rank["points"] if point["point"] not in _POINTS]


def peaks(record):
    """Return the peaks of every rank, in bytes."""
    return [getattr(rank, name) for rank in record.memory.ranks for name in _PEAKS]


def largest_message(record):
    """Return the bytes of the largest collective."""
    return max((row.num_bytes for row in record.comm.collectives), default=0)


def assert_same(record, other):
    """Assert that nothing but times differs, and peaks by a few messages at most."""
    assert exact(record) == exact(other)
    # In fp32 beside 16 bit a message is once more and twice as large.
    slack = 3 * largest_message(record) + 1024
    for peak, another in zip(peaks(record), peaks(other), strict=True):
        assert abs(peak - another) <= slack, (peaks(record), peaks(other), slack)
