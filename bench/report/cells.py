"""A record -> what the page says of one row: its line in the index, and its part."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.analysis import memory, traffic
from bench.analysis.units import mib
from bench.errors import StoreError
from bench.record import Record
from bench.report import layout
from bench.report.layout import Column, Laid, Line, plain
from bench.runs import Run, rerun_command
from bench.stacks import INSTALLED
from bench.store import record_name


@dataclass(frozen=True)
class Part:
    """What the page says of one row. ``figures`` are its key numbers by their names, ``came`` how it was made.

    ``rerun`` is the command that measures it again; where there is none, ``no_rerun`` says why. ``alike`` are the
    blocks that would say what those of the part ``first``, the first launch of the same cell, say: they are left out.
    """

    id: str
    label: str
    record: Record
    figures: list[tuple[str, str]]
    came: list[tuple[str, str]]
    settings: dict[str, Any]
    memory: Laid | None
    memory_says: str | None
    traffic: Laid | None
    traffic_says: list[str]
    lists: list[Laid]
    traceback: str
    rerun: str | None
    no_rerun: str | None
    first: str = ""
    alike: tuple[str, ...] = ()


def part_id(cell_id: str, repeat: int, stack: str | None) -> str:
    """Return the name of a row's part, by which links find it."""
    return f"cell-{record_name(cell_id, repeat, stack)}"


def label(record: Record, *, repeated: bool) -> str:
    """Return the name of a row: of one of several launches with its number, of a stack with that."""
    parts = [record.label, *([f"r{record.repeat}"] if repeated else []), *filter(None, [record.requested_stack])]
    return " ".join(parts)


def _listed(pairs: Sequence[tuple[str, Any]]) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, value in pairs if value not in (None, "")]


def _size(value: float | None) -> str | None:
    return None if value is None else mib(value)


def _timing(record: Record) -> list[tuple[str, Any]]:
    timing, rate = record.timing, record.throughput
    if timing is None or rate is None:
        return []
    steps = len(timing.step_times_s[0]) if timing.step_times_s else 0
    return [
        ("tokens/s per GPU", f"{rate.tokens_per_second_per_gpu:,.1f}"),
        ("tokens/s", f"{rate.tokens_per_second:,.1f}"),
        ("step time", f"{timing.step_time_s * 1e3:,.1f} ms, quartiles {timing.step_time_iqr_s * 1e3:,.1f} ms apart"),
        ("steps", f"{steps} timed after {timing.warmup_steps} of warm-up"),
        ("CPU time of a step", f"{timing.step_thread_cpu_s * 1e3:,.1f} ms"),
        ("MFU", None if rate.mfu is None else f"{rate.mfu:.1%} ({rate.flops_convention})"),
    ]


def _memory(record: Record) -> list[tuple[str, Any]]:
    found = record.memory
    if found is None:
        return []
    emulated, ranks = record.emulation, found.ranks
    lowest = found.peak_allocated_min_bytes
    spread = "" if lowest == found.peak_allocated_bytes else f", lowest rank {mib(lowest)}"
    rank = record.cell.emulation.rank if record.cell.emulation else found.peak_allocated_rank
    return [
        ("peak memory", f"{mib(found.peak_allocated_bytes)} on rank {rank}{spread}"),
        ("paper's model states", _size(record.theory.model_state_bytes if record.theory else None)),
        ("reserved", _size(max((each.peak_reserved_bytes or 0 for each in ranks), default=0) or None)),
        ("between steps", mib(max(each.steady_bytes for each in ranks))),
        ("while building", mib(max(each.init_peak_bytes for each in ranks))),
        ("resident set", mib(max(each.host_peak_rss_bytes for each in ranks)) if emulated is None else None),
        ("reserved, modelled", _size(emulated.allocator.peak_reserved_bytes if emulated else None)),
        ("fits", None if emulated is None else "yes" if emulated.fits else "no"),
    ]


def _traffic(record: Record) -> list[tuple[str, Any]]:
    comm = record.comm
    if comm is None:
        return []
    sent = comm.comm_wire_bytes_per_step
    paper = record.theory.comm_wire_bytes_per_step if record.theory else None
    return [
        ("sent per step", "unknown" if sent is None else f"{mib(sent)} ({comm.wire_model})"),
        ("paper's traffic", _size(paper)),
        ("collectives", f"{comm.comm_op_count:,} of {mib(comm.mean_message_bytes)} on average"),
    ]


def _training(record: Record) -> list[tuple[str, Any]]:
    parity = record.parity
    worst = None if parity is None else parity.worst_loss_difference
    against = None if parity is None or worst is None else f"{worst:.1e} of {parity.loss_tolerance:g} allowed"
    losses = [loss for loss in record.losses if loss is not None]
    return [
        ("last loss", f"{losses[-1]:.5g}" if losses else None),
        ("loss against reference", against),
        ("parameters", None if record.num_params is None else f"{record.num_params:,}"),
        ("global batch", record.train_batch_size),
    ]


def _came(record: Record) -> list[tuple[str, str]]:
    launch = record.launch
    versions = ", ".join(f"{package} {version}" for package, version in record.stack.items())
    pairs = [
        ("provenance", record.provenance),
        ("device", " ".join(filter(None, [record.device, record.device_name and f"({record.device_name})"]))),
        ("stack", versions),
        ("requested stack", record.requested_stack),
        ("schema version", record.schema_version),
    ]
    if launch is not None:
        pairs += [
            ("started", launch.started_at),
            ("took", f"{record.spent_s:,.1f} s"),
            ("isolation", launch.isolation),
            ("exit status", "none" if launch.exit_status is None else launch.exit_status),
            ("log", launch.log),
        ]
    return _listed([*pairs, ("trace", record.emulation and record.emulation.trace)])


def _tries(record: Record) -> list[Laid]:
    if not record.batch_search:
        return []
    heads = ["micro batch", "how", "status", "fits", "peak", "phase", "reason"]
    lines = [
        Line(
            [
                f"{each.train_micro_batch_size_per_gpu:,}",
                each.how,
                each.status,
                "yes" if each.fits else "no",
                _size(each.peak_bytes) or "",
                each.phase or "",
                each.reason or "",
            ]
        )
        for each in record.batch_search
    ]
    return [Laid("Search for the largest batch", [Column(head) for head in heads], lines, wraps=True)]


def _guesses(record: Record) -> list[Laid]:
    if record.emulation is None or not record.emulation.guesses:
        return []
    heads = ["read by", "from", "first value given", "times"]
    lines = [Line([each.reader, each.origin, each.value, f"{each.count:,}"]) for each in record.emulation.guesses]
    return [Laid("Values read that an emulated rank has not", [Column(head) for head in heads], lines, wraps=True)]


def _rerun(run: Run, record: Record, *, stacked: bool) -> tuple[str | None, str | None]:
    name = f"{record.cell_id}/{record.requested_stack or INSTALLED}" if stacked else record.cell_id
    assert run.manifest is not None, "a run with records has a manifest"
    try:
        return rerun_command(run.folder, run.manifest, name), None
    except StoreError as error:
        return None, str(error)


def _settings(record: Record) -> dict[str, Any]:
    """Return what was asked for, without the defaults; what every row is known by stays."""
    kept = ("model", "strategy", "world_size", "train_micro_batch_size_per_gpu", "seq_length", "dtype")
    full = record.cell.model_dump(mode="json")
    asked = record.cell.model_dump(mode="json", exclude_defaults=True)
    return {name: value for name, value in full.items() if name in kept or name in asked}


def _own(said: str | None, record: Record) -> str | None:
    """Return a sentence on a row without the row's name, for a place where it is clear."""
    if said is None:
        return None
    said = said.removeprefix(f"{record.label}, repeat {record.repeat}: ")
    return said[0].upper() + said[1:]


def _titled(table: Laid, record: Record, title: str) -> Laid:
    more = table.title.removeprefix(record.label).removeprefix(f", repeat {record.repeat}")
    return replace(table, title=f"{title}{more}")


def _part(run: Run, record: Record, name: str, *, stacked: bool) -> Part:
    held = memory.tables([record])[1:]  # the first is of the peaks of all rows
    moved = traffic.traffic_tables([record])
    rerun, no_rerun = _rerun(run, record, stacked=stacked)
    return Part(
        id=part_id(record.cell_id, record.repeat, record.requested_stack),
        label=name,
        record=record,
        figures=_listed(_timing(record) + _memory(record) + _traffic(record) + _training(record)),
        came=_came(record),
        settings=_settings(record),
        memory=_titled(layout.memory(held[0]), record, "Memory in MiB") if held else None,
        memory_says=_own(memory.sentence(record), record),
        traffic=_titled(plain(moved[0]), record, "Traffic of one step in bytes") if moved else None,
        traffic_says=traffic.explanations(record) if moved else [],
        lists=_tries(record) + _guesses(record),
        traceback="\n".join(line.rstrip("\n") for line in record.failure.traceback) if record.failure else "",
        rerun=rerun,
        no_rerun=no_rerun,
    )


def parts(run: Run) -> list[Part]:
    """Return what the page says of each record of ``run``, in its order."""
    repeated = any(record.repeat for record in run.records)
    stacked = any(record.requested_stack for record in run.records)
    made = [_part(run, record, label(record, repeated=repeated), stacked=stacked) for record in run.records]
    firsts: dict[tuple[str, str | None], Part] = {}
    for part in made:
        firsts.setdefault((part.record.cell_id, part.record.requested_stack), part)
    return [_beside(part, firsts[part.record.cell_id, part.record.requested_stack]) for part in made]


def _command(record: Record) -> list[str]:
    return record.launch.command if record.launch else []


def _beside(part: Part, first: Part) -> Part:
    """Return ``part`` without the blocks and lines that say what those of the first launch of its cell say."""
    if part is first:
        return part
    same = {
        "memory": part.memory is not None and part.memory == first.memory,
        "traffic": part.traffic is not None and part.traffic == first.traffic,
        "configuration": (part.record.effective, part.record.ds_config)
        == (first.record.effective, first.record.ds_config),
        "launch command": _command(part.record) == _command(first.record),
        "command to run it again": part.rerun == first.rerun,
    }
    alike = tuple(name for name, equal in same.items() if equal)
    return replace(part, first=first.id, alike=alike, came=[pair for pair in part.came if pair not in first.came])
