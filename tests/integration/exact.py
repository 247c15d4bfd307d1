"""What two records of one cell must have in common: all but times, and where they lie."""

_FREE = {"timing", "throughput", "launch", "activity_s", "repeat"}


def exact(record):
    """Return everything of a record that time does not change."""
    found = record.model_dump(mode="json", exclude=_FREE)
    for rank in (found["memory"] or {}).get("ranks", []):
        del rank["host_peak_rss_bytes"]  # of Python and its libraries; shared pages too
    return found
