"""The sentences below a plot: where its numbers come from, of how many launches, and what is not drawn."""

from collections.abc import Iterable, Sequence

from bench.plots.groups import Entry, Group, doubtful, plain

_MOST = 6


def listed(names: Iterable[str]) -> str:
    """Return ``a, b and 3 more``: at most six names."""
    found = list(dict.fromkeys(names))
    text = ", ".join(found[:_MOST])
    return text if len(found) <= _MOST else f"{text} and {len(found) - _MOST} more"


def provenance(group: Group, of: str) -> str:
    """Return where ``of`` (the numbers drawn) comes from, with the group's settings."""
    record = group.first
    if group.emulated:
        return f"{of}: emulated, no GPU ran. {group.settings}."
    on = record.device + (f" ({plain(record.device_name)})" if record.device_name else "")
    rank = "; a rank stands for a GPU" if record.device == "cpu" else ""
    return f"{of}: measured on {on}{rank}. {group.settings}."


def kinds(groups: Iterable[Group]) -> str:
    """Return how the rows came to be: ``Emulated``, ``Measured`` or both."""
    return " and ".join(dict.fromkeys("emulated" if group.emulated else "measured" for group in groups)).capitalize()


def launches(entries: Iterable[Entry]) -> str:
    """Return how many launches stand behind each number."""
    counts = sorted({len(entry.good) for entry in entries if entry.good})
    if not counts:
        return ""
    if counts == [1]:
        return "n = 1 launch per cell."
    text = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"n = {text} launches per cell."


def _named(entries: Iterable[tuple[Entry, str]], group: Group) -> str:
    """Return ``z1 N=2/4: oom, z3 N=4``: cells, and a word for each if there is one."""
    counts: dict[tuple[str, str], list[str]] = {}
    for entry, word in entries:
        counts.setdefault((entry.name, word), []).append(str(entry.world_size))
    several = len(group.counts) > 1
    return listed(
        name + (f" N={'/'.join(found)}" if several else "") + (f": {word}" if word else "")
        for (name, word), found in counts.items()
    )


def missing(group: Group, entries: Sequence[Entry] | None = None) -> str:
    """Return which cells failed and with what, and how many launches are left out for being invalid."""
    entries = group.entries if entries is None else entries
    failed = []
    for entry in entries:
        words = [bad.status for bad in entry.bad if bad.status != "completed"]
        some = f" ({len(words)} of {len(entry.good) + len(entry.bad)} launches)" if entry.good else ""
        failed += [(entry, "/".join(dict.fromkeys(words)) + some)] if words else []
    invalid = sum(bad.status == "completed" for entry in entries for bad in entry.bad)
    parts = [f"Failed: {_named(failed, group)}."] if failed else []
    parts += [f"{invalid} invalid row{'s' if invalid > 1 else ''} not drawn."] if invalid else []
    return " ".join(parts)


def of_launches(entries: Iterable[Entry], of: str) -> str:
    """Return which of several launches a bar is."""
    if all(len(entry.good) < 2 for entry in entries):
        return ""
    return f"The bar is the launch of median {of}; the line through its end spans the launches."


def suspects(group: Group, entries: Iterable[Entry], *, timed: bool, how: str) -> str:
    """Return which of the drawn cells are not to be relied on; ``how`` they are marked."""
    found = [(entry, "") for entry in entries if doubt(entry, timed=timed)]
    return f"{how}, not to be relied on: {_named(found, group)}." if found else ""


def doubt(entry: Entry, *, timed: bool = False) -> str:
    """Return the ``?`` that the tables put behind a doubtful number."""
    return "?" if any(doubtful(record, timed=timed) for record in entry.good) else ""


def joined(*sentences: str) -> str:
    """Return the sentences that say something, as one text."""
    return " ".join(sentence for sentence in sentences if sentence)
