"""What two records of one cell must have in common, to the last bit."""

# Times; what the machine's state decides; where the record lies.
_FREE = {"timing", "throughput", "launch", "activity_s", "repeat"}


def exact(record):
    """Return all of a record that does not depend on time."""
    found = record.model_dump(mode="json", exclude=_FREE)
    for rank in (found["memory"] or {}).get("ranks", []):
        del rank["host_peak_rss_bytes"]  # shared pages and all
        del rank["init_peak_bytes"]
    return found
