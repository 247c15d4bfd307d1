"""Which records are evidence, which of them may be compared, and the settings by which they differ."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from bench.claims.verdict import Evidence, Text
from bench.record import Finding, Record
from bench.zero.defaults import SIZES
from bench.zero.stages import zero_keys

STAGES = ("z0", "z1", "z2", "z3")
# Findings that say that something else ran than the stage's definition: for a claim on what a stage holds that is the
# subject, not a doubt.
_SUBJECT = {"known-bad release", "sharding"}
_LIMITS = ("stage3_max_live_parameters", "stage3_max_reuse_distance")
# ZeRO++ and MiCS: with these, what is shared out, among whom and in how many bytes is not as the stage defines it.
_NOT_PLAIN = ("zero_hpz_", "zero_quantized_", "mics_")
_OFF = {("zero_hpz_partition_size", 1), ("mics_shard_size", -1)}


def doubts(record: Record) -> list[Finding]:
    """Return the findings that doubt the row's figures."""
    return [found for found in record.findings if found.verdict == "suspect" and found.affects == "figures"]


def held_rows(records: Iterable[Record]) -> list[Record]:
    """Return the rows that say what a rank holds: one per cell and place, completed, not invalid, not in doubt."""
    return _first(row for row in records if {found.check for found in doubts(row)} <= _SUBJECT)


def counted_rows(records: Iterable[Record]) -> list[Record]:
    """Return the rows whose bytes can be relied on, one per cell and place."""
    return _first(row for row in records if not doubts(row))


def _first(records: Iterable[Record]) -> list[Record]:
    # A cell has one id on every machine, and of several runs each may have another release installed.
    found: dict[tuple[str, str | None, str, str], Record] = {}
    for record in records:
        if record.presentable and record.cell.world_size > 1:
            place = record.cell_id, record.requested_stack, release(record), record.device
            found.setdefault(place, record)
    return list(found.values())


def refused(records: Iterable[Record], wanted: str) -> list[Record]:
    """Return the rows of stage ``wanted`` that ended in a configuration error, one per cell and stack."""
    found: dict[tuple[str, str | None], Record] = {}
    for record in records:
        if stage(record) == wanted and record.status == "config_error" and record.cell.world_size > 1:
            found.setdefault((record.cell_id, record.requested_stack), record)
    return list(found.values())


def stage(record: Record) -> str | None:
    """Return ``z0`` to ``z3`` where a stage alone decides who holds what, all of it on the device; else ``None``."""
    cell = record.cell
    if cell.strategy not in STAGES or cell.on_host or cell.deepspeed:
        return None
    beyond = (each for each in cell.zero_optimization.items() if each[0].startswith(_NOT_PLAIN))
    return None if any(value and (key, value) not in _OFF for key, value in beyond) else cell.strategy


def settings(record: Record) -> str:
    """Return what rows must share to be compared: everything but strategy and keys of ``zero_optimization``."""
    return "|".join([beside_strategy(record), release(record), record.device])


def beside_strategy(record: Record) -> str:
    """Return what was asked for but strategy and keys of DeepSpeed's configuration."""
    return record.cell.model_dump_json(exclude={"strategy", "name", "zero_optimization", "deepspeed"})


def requested(record: Record) -> str:
    """Return the same of what was asked for: a row that never ran knows no release."""
    return "|".join([beside_strategy(record), record.requested_stack or "", record.device])


def alike(one: Record, other: Record) -> bool:
    """Whether the keys that matter to both stages have the same values."""
    shared = zero_keys(one.cell.strategy) & zero_keys(other.cell.strategy)
    here, there = one.cell.zero_optimization, other.cell.zero_optimization
    return all(here.get(key) == there.get(key) for key in shared)


# Rows by what they share and their stage.
Near = dict[tuple[str, str | None], list[Record]]


def near(rows: Iterable[Record]) -> Near:
    """Return ``rows`` so that those beside each other are found without a look at all the others."""
    found: Near = defaultdict(list)
    for row in rows:
        found[settings(row), stage(row)].append(row)
    return dict(found)


def beside(record: Record, rows: Near, wanted: str) -> Record | None:
    """Return the row of stage ``wanted`` that differs from ``record`` in nothing else; plain before variants."""
    same = [row for row in rows.get((settings(record), wanted), []) if alike(row, record)]
    return min(same, key=lambda row: row.cell.strategy_name != wanted, default=None)


def groups(rows: Iterable[Record]) -> list[list[Record]]:
    """Return the rows by what they share."""
    found: defaultdict[str, list[Record]] = defaultdict(list)
    for row in rows:
        found[settings(row)].append(row)
    return list(found.values())


def release(record: Record) -> str:
    """Return the release of DeepSpeed that ran."""
    return record.stack.get("deepspeed", "")


def over_limits(record: Record) -> float | None:
    """Parameters of the model over the elements that stage 3 lets stay; ``None`` where that is not known."""
    runs = record.effective | record.cell.zero_optimization
    limit = min(int(runs.get(key, SIZES[key])) for key in _LIMITS)
    return None if record.num_params is None else record.num_params / max(limit, 1)


def facts(record: Record) -> dict[str, Any]:
    """Return the settings by which rows can be told apart (bench.claims.separate has their names)."""
    cell = record.cell
    return {
        "deepspeed": release(record),
        "dtype": cell.dtype,
        "gradient_accumulation_steps": cell.gradient_accumulation_steps,
        "world_size": cell.world_size,
        "num_params": record.num_params,
        "over_limits": over_limits(record),
        "wire_model": record.comm.wire_model if record.comm else None,
    }


def name(record: Record) -> str:
    """Return the row's label, with the release where one was asked for."""
    return record.label.removesuffix(f"/{record.requested_stack}")


def evidence(record: Record, supports: bool, says: Text, others: Sequence[Record] = ()) -> Evidence:
    """Return ``record`` as evidence; a suspect row says what is doubted."""
    validity: str = record.validity
    if validity == "suspect":
        checks = dict.fromkeys(f"{f.check}, {f.affects}" for f in record.findings if f.verdict == "suspect")
        validity = f"suspect ({'; '.join(checks)})"
    return Evidence(
        label=name(record),
        cell_id=record.cell_id,
        repeat=record.repeat,
        stack=f"deepspeed {release(record)}",
        provenance=record.provenance,
        validity=validity,
        supports=supports,
        says=says["en"],
        says_zh=says["zh"],
        others=[other.cell_id for other in others],
        facts=facts(record),
    )
